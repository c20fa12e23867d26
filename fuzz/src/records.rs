//! What are the records of a data set, read as plainly as can be? `hps-keyset` is compared with this.
//!
//! - Whole files in memory, a byte at a time, one answer: records or none.
//! - Also writes such files, for seeds.

use hps_tools::keyset::Record;

/// Categorical columns of Criteo's text.
const CRITEO_FIELDS: usize = 26;

/// What a file holds.
#[derive(Debug, Default)]
pub struct Plain {
    /// Its records.
    pub records: Vec<Record>,
    /// Bytes of its longest record, or of its header, if that is longer.
    pub longest: usize,
}

impl Plain {
    fn add(&mut self, record: Record, bytes: usize) {
        self.records.push(record);
        self.longest = self.longest.max(bytes);
    }
}

/// Criteo's text.
#[must_use]
pub fn criteo(text: &[u8]) -> Option<Plain> {
    let mut plain = Plain::default();
    let mut columns = None;
    let mut lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
    if lines.last().is_some_and(|line| line.is_empty()) {
        lines.pop();
    }
    for line in lines {
        let values: Vec<&[u8]> = line.split(|byte| *byte == b'\t').collect();
        let count = *columns.get_or_insert(values.len());
        if values.len() != count || !(39..=40).contains(&count) {
            return None;
        }
        let (front, back) = values.split_at(count - CRITEO_FIELDS);
        let is_number = |value: &&[u8]| value.iter().all(|b| b"-0123456789".contains(b));
        if !front.iter().all(is_number) {
            return None;
        }
        let mut record = Record::new();
        for (field, value) in back.iter().enumerate() {
            let text = str::from_utf8(value).ok()?;
            match text.len() {
                0 => {}
                1..=8 if text.bytes().all(|b| b.is_ascii_hexdigit()) => {
                    record.push((field, u64::from_str_radix(text, 16).ok()?));
                }
                _ => return None,
            }
        }
        plain.add(record, line.len() + 1);
    }
    Some(plain)
}

/// Bytes that are read from the front.
struct Front<'a>(&'a [u8]);

impl<'a> Front<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (piece, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(piece)
    }

    fn i32(&mut self) -> Option<i32> {
        Some(i32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn i64(&mut self) -> Option<i64> {
        Some(i64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    /// A number without sign of so many bytes.
    fn key(&mut self, width: usize) -> Option<u64> {
        let mut bytes = [0; 8];
        bytes[..width].copy_from_slice(self.take(width)?);
        Some(u64::from_le_bytes(bytes))
    }

    /// Length, bytes, and the sum of these.
    fn unit(&mut self) -> Option<&'a [u8]> {
        let count = usize::try_from(self.i32()?).ok()?;
        let bytes = self.take(count)?;
        let sum = bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        (self.take(1)? == [sum]).then_some(bytes)
    }
}

/// HugeCTR's Norm, with keys of so many bytes.
#[must_use]
pub fn norm(bytes: &[u8], width: usize) -> Option<Plain> {
    let mut file = Front(bytes);
    let has_sums = Front(bytes).i32() == Some(64);
    let mut header = Front(match has_sums {
        true => file.unit()?,
        false => file.take(64)?,
    });
    let mut fields = [0; 8];
    for field in &mut fields {
        *field = header.i64()?;
    }
    let [check, promised, labels, dense, slots, ..] = fields;
    let is_width = |width: i64| (0..=65_536).contains(&width);
    if check != i64::from(has_sums) || ![labels, dense, slots].into_iter().all(is_width) {
        return None;
    }
    let (front, slots) = (usize::try_from(4 * (labels + dense)).ok()?, slots as usize);
    let mut plain = Plain {
        longest: bytes.len() - file.0.len(),
        ..Plain::default()
    };
    if slots == 0 {
        return None;
    }
    while !file.0.is_empty() {
        let left = file.0.len();
        let mut records = Vec::new();
        if has_sums {
            let mut unit = Front(file.unit()?);
            if unit.0.is_empty() {
                return None;
            }
            while !unit.0.is_empty() {
                records.push(sample(&mut unit, (front, slots, width))?);
            }
        } else {
            records.push(sample(&mut file, (front, slots, width))?);
        }
        let used = left - file.0.len();
        records
            .into_iter()
            .for_each(|record| plain.add(record, used));
    }
    (plain.records.len() as i64 == promised).then_some(plain)
}

fn sample(from: &mut Front<'_>, (front, slots, width): (usize, usize, usize)) -> Option<Record> {
    from.take(front)?;
    let mut record = Record::new();
    for slot in 0..slots {
        for _ in 0..usize::try_from(from.i32()?).ok()? {
            record.push((slot, from.key(width)?));
        }
    }
    Some(record)
}

/// Records of one size: bytes that are skipped, then values of so many bytes.
#[must_use]
pub fn fixed(bytes: &[u8], skipped: usize, fields: usize, width: usize) -> Option<Plain> {
    let mut plain = Plain::default();
    let mut file = Front(bytes);
    while !file.0.is_empty() {
        file.take(skipped)?;
        let mut record = Record::new();
        for field in 0..fields {
            record.push((field, file.key(width)?));
        }
        plain.add(record, skipped + fields * width);
    }
    Some(plain)
}

/// Bytes of the header of a `.npy` file.
#[must_use]
pub fn npy_header(bytes: &[u8]) -> Option<usize> {
    let mut file = Front(bytes);
    let start = file.take(8)?;
    Some(match start[6] {
        1 => 10 + usize::try_from(file.key(2)?).ok()?,
        _ => 12 + usize::try_from(file.key(4)?).ok()?,
    })
}

/// A file of Norm: samples of one label, two dense values and slots of some keys each.
#[must_use]
pub fn norm_file(samples: &[Vec<Vec<u64>>], width: usize, samples_of_unit: usize) -> Vec<u8> {
    let mut file = Vec::new();
    let mut put = |bytes: Vec<u8>| {
        if samples_of_unit > 0 {
            file.extend((bytes.len() as u32).to_le_bytes());
        }
        file.extend(&bytes);
        if samples_of_unit > 0 {
            file.push(bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte)));
        }
    };
    let (count, slots) = (samples.len(), samples.first().map_or(1, Vec::len));
    let header = [
        usize::from(samples_of_unit > 0),
        count,
        1,
        2,
        slots,
        0,
        0,
        0,
    ];
    put(header
        .iter()
        .flat_map(|n| (*n as u64).to_le_bytes())
        .collect());
    for unit in samples.chunks(samples_of_unit.max(1)) {
        let mut bytes = Vec::new();
        for sample in unit {
            bytes.extend([1.0f32, 0.5, -2.0].iter().flat_map(|n| n.to_le_bytes()));
            for keys in sample {
                bytes.extend((keys.len() as u32).to_le_bytes());
                keys.iter()
                    .for_each(|key| bytes.extend(&key.to_le_bytes()[..width]));
            }
        }
        put(bytes);
    }
    file
}
