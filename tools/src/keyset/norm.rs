//! How is a file of HugeCTR's Norm read? A header of 64 bytes, then samples: labels and dense values
//! as floats, then for each slot a count and as many keys.
//!
//! - With the check `sum` the header and every sample stand in a unit: length, bytes, one byte with the
//!   sum of the bytes. A unit may hold several samples.
//! - No length is trusted: what does not add up is named with its offset.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;

use super::fixed::Element;
use super::layout::{KeyType, Place, Sink, value_at};

const HEADER: usize = 64;
/// Bytes of the count of a unit or of a slot.
const COUNT: usize = 4;
/// More of anything is no sample.
const WIDTH_MAX: i64 = 1 << 16;

/// The samples of a file.
#[derive(Debug)]
pub struct Norm {
    has_sums: bool,
    records: u64,
    seen: AtomicU64,
    front: usize,
    slots: usize,
    element: Element,
}

impl Norm {
    /// From the header, whose length is given, too.
    ///
    /// # Errors
    /// What is not as it must be.
    pub fn read_header(bytes: &[u8], keys: KeyType, place: &Place<'_>) -> Result<(Norm, usize)> {
        let has_sums = count_at(bytes, 0) == Some(64);
        let (start, end) = match has_sums {
            true => (COUNT, COUNT + HEADER + 1),
            false => (0, HEADER),
        };
        if bytes.len() < end {
            let found = bytes.len();
            return Err(place.bad(
                0,
                format!("found {found} bytes, expected a header of {end}"),
            ));
        }
        if has_sums {
            check_sum(&bytes[..end], 0, place)?;
        }
        let field = |number: usize| {
            let bytes = bytes[start + number * 8..].first_chunk();
            bytes.map_or(0, |bytes| i64::from_le_bytes(*bytes))
        };
        let check = field(0);
        if check != i64::from(has_sums) {
            let expected = match has_sums {
                true => "1 (sum), since the header has a length before it",
                false => "0 (none), since the header has no length before it",
            };
            return Err(place.bad(
                start,
                format!("error_check: found {check}, expected {expected}: is this a Norm file?"),
            ));
        }
        let width = |number: usize, name: &str| match field(number) {
            found @ 0..=WIDTH_MAX => Ok(usize::try_from(found).unwrap_or(0)),
            found => {
                let what = format!("{name}: found {found}, expected 0 to {WIDTH_MAX}");
                Err(place.bad(start + number * 8, what))
            }
        };
        let records = u64::try_from(field(1));
        let norm = Norm {
            has_sums,
            records: records.map_err(|_| {
                place.bad(start + 8, format!("number_of_records: found {}", field(1)))
            })?,
            seen: AtomicU64::new(0),
            front: (width(2, "label_dim")? + width(3, "dense_dim")?) * 4,
            slots: width(4, "slot_num")?,
            element: keys.into(),
        };
        if norm.slots == 0 {
            return Err(place.bad(start + 32, "slot_num: found 0, expected at least 1"));
        }
        Ok((norm, end))
    }

    /// Slots of a sample.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// As [`super::layout::Layout::cut`].
    ///
    /// # Errors
    /// When the last sample is not whole, or a count can't be.
    pub fn cut(&self, bytes: &[u8], is_all: bool, place: &Place<'_>) -> Result<usize> {
        let mut at = 0;
        while at < bytes.len() {
            let length = match self.has_sums {
                true => self.unit_length(bytes, at, place)?,
                false => self.sample_length(bytes, at, place)?,
            };
            match length.filter(|length| *length <= bytes.len() - at) {
                Some(length) => at += length,
                None if is_all => {
                    let found = bytes.len() - at;
                    let told = length.map_or(String::new(), |length| format!(" of {length} bytes"));
                    return Err(place.bad(
                        at,
                        format!(
                            "found {found} bytes, expected a sample{told}: the file is cut off, or \
                             its keys are not of {} bytes (--dtype)",
                            self.element.bytes()
                        ),
                    ));
                }
                None => break,
            }
        }
        Ok(at)
    }

    /// Bytes of the unit at a place; `None` if its length is not there.
    fn unit_length(&self, bytes: &[u8], at: usize, place: &Place<'_>) -> Result<Option<usize>> {
        let Some(count) = count_at(bytes, at) else {
            return Ok(None);
        };
        let least = self.front + self.slots * COUNT;
        match usize::try_from(count) {
            Ok(count) if count >= least => Ok(Some(COUNT + count + 1)),
            _ => {
                let what = format!("length of a unit: found {count}, expected at least {least}");
                Err(place.bad(at, what))
            }
        }
    }

    /// Bytes of the sample at a place; `None` if the counts of its slots are not all there.
    fn sample_length(&self, bytes: &[u8], at: usize, place: &Place<'_>) -> Result<Option<usize>> {
        let mut length = self.front;
        for slot in 0..self.slots {
            let Some(count) = count_at(bytes, at + length) else {
                return Ok(None);
            };
            let keys = self.keys(count, slot, at + length, place)?;
            length += COUNT + keys * self.element.bytes();
        }
        Ok(Some(length))
    }

    fn keys(&self, count: i32, slot: usize, at: usize, place: &Place<'_>) -> Result<usize> {
        usize::try_from(count).map_err(|_| {
            place.bad(
                at,
                format!("slot {slot}: found {count} keys, expected 0 or more: wrong --dtype?"),
            )
        })
    }

    /// As [`super::layout::Layout::parse`].
    ///
    /// # Errors
    /// A wrong sum, counts that don't add up, or what the sink says.
    pub fn parse(&self, bytes: &[u8], place: &Place<'_>, sink: &mut impl Sink) -> Result<()> {
        let (mut at, mut samples) = (0, 0);
        while at < bytes.len() {
            let (end, next) = match (self.has_sums, self.unit_length(bytes, at, place)) {
                (false, _) => (bytes.len(), bytes.len()),
                (true, length) => {
                    let next = at + length?.unwrap_or(0).min(bytes.len() - at);
                    check_sum(&bytes[at..next], at, place)?;
                    at += COUNT;
                    (next - 1, next)
                }
            };
            while at < end {
                let row = at;
                at = self.parse_sample(&bytes[..end], at, place, sink)?;
                sink.end_row(row..at)
                    .map_err(|fault| place.fault(row, fault))?;
                samples += 1;
            }
            at = next;
        }
        self.seen.fetch_add(samples, Ordering::Relaxed);
        Ok(())
    }

    fn parse_sample(
        &self,
        bytes: &[u8],
        start: usize,
        place: &Place<'_>,
        sink: &mut impl Sink,
    ) -> Result<usize> {
        let size = self.element.bytes();
        let mut at = start + self.front;
        for slot in 0..self.slots {
            let past = || {
                // Labels may reach beyond the unit; what is named is a byte that is there, or the end.
                let found = format!("slot {slot}: found the end of the unit");
                place.bad(
                    at.min(bytes.len()),
                    format!("{found}, expected the number of its keys: wrong --dtype?"),
                )
            };
            let count = count_at(bytes, at).ok_or_else(past)?;
            let count = self.keys(count, slot, at, place)?;
            let values = bytes.get(at + COUNT..).and_then(|b| b.get(..count * size));
            let values = values.ok_or_else(|| {
                let why = "more than its unit has room for: wrong --dtype?";
                place.bad(
                    at,
                    format!("slot {slot}: found {count} keys of {size} bytes, {why}"),
                )
            })?;
            at += COUNT;
            for value in values.chunks_exact(size) {
                if let Some(value) = value_at(value, self.element) {
                    sink.put(slot, value)
                        .map_err(|fault| place.fault(at, fault))?;
                }
                at += size;
            }
        }
        Ok(at)
    }

    /// As [`super::layout::Layout::end`].
    ///
    /// # Errors
    /// When the header has another number of samples.
    pub fn end(&self, place: &Place<'_>) -> Result<()> {
        let (found, promised) = (self.seen.load(Ordering::Relaxed), self.records);
        if found != promised {
            return Err(place.bad(
                0,
                format!("found {found} samples, number_of_records in the header is {promised}"),
            ));
        }
        Ok(())
    }
}

fn count_at(bytes: &[u8], at: usize) -> Option<i32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(i32::from_le_bytes(*bytes))
}

/// Checks a unit: length, bytes, sum.
fn check_sum(unit: &[u8], at: usize, place: &Place<'_>) -> Result<()> {
    let Some((found, bytes)) = unit.get(COUNT..).and_then(<[u8]>::split_last) else {
        return Err(place.bad(at, "found no whole unit"));
    };
    let sum = bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    if sum != *found {
        return Err(place.bad(
            at,
            format!(
                "checksum of a unit of {} bytes: found {found:#04x}, expected {sum:#04x}",
                bytes.len()
            ),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::super::{Format, values};
    use super::*;

    /// The byte was counted from the labels, which a second sample of a unit need not have: behind the end
    /// of the file.
    #[test]
    fn a_unit_that_ends_in_labels_is_told_with_its_end() {
        let header = [1u64, 2, 3, 0, 1, 0, 0, 0];
        let header: Vec<u8> = header.iter().flat_map(|n| n.to_le_bytes()).collect();
        // One sample, and a byte of a second one.
        let file: Vec<u8> = [header, vec![0; 16 + 1]]
            .into_iter()
            .flat_map(|bytes| {
                let sum = bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
                let length = u32::try_from(bytes.len()).unwrap();
                [&length.to_le_bytes()[..], &bytes, &[sum]].concat()
            })
            .collect();
        let end = file.len() - 1;
        let found = values("a", Cursor::new(file), Format::Norm(KeyType::I64), 4096);
        let told = found.unwrap_err().to_string();
        let place = format!("a: corrupt at byte {end}: slot 0: found the end of the unit");
        assert!(told.starts_with(&place), "{told}");
    }
}
