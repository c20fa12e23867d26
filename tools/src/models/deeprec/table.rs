//! How is a sorted table of LevelDB read and written? TensorFlow keeps the index of a checkpoint in one.
//!
//! - Blocks of entries, then a block that says where these are, then a footer. Each block has a masked CRC-32C.
//! - Nothing is believed that a checksum and the length of the file do not confirm: a reader allocates no more than
//!   one key, looks at each byte once, and never panics.
//!
//! Source: LevelDB, doc/table_format.md; TensorFlow, core/lib/io/format.cc and block.cc.

/// Bytes of the footer.
const FOOTER_BYTES: usize = 48;
/// The last 8 of them, as a little-endian number.
const MAGIC: u64 = 0xdb47_7524_8b80_fb57;
/// Behind each block: its compression, and the checksum.
const TRAILER_BYTES: usize = 5;
/// A longer key is no name of a tensor.
const KEY_BYTES_MAX: usize = 4096;

/// Where a table is damaged, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The byte of the file.
    pub at: u64,
    /// What was found, and what was expected.
    pub what: String,
}

impl Damage {
    /// At a byte of the file.
    #[must_use]
    pub fn new(at: usize, what: impl Into<String>) -> Damage {
        Damage {
            at: at as u64,
            what: what.into(),
        }
    }
}

/// The mask under which LevelDB stores checksums.
#[must_use]
pub fn mask(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The checksum that was masked.
#[must_use]
pub fn unmask(masked: u32) -> u32 {
    masked.wrapping_sub(0xa282_ead8).rotate_left(15)
}

/// Takes a varint off the front.
#[must_use]
pub fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for index in 0..10 {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let low = u64::from(byte & 0x7f);
        if index == 9 && low > 1 {
            return None;
        }
        value |= low << (7 * index);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Appends a varint.
pub fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    bytes.push(value.to_le_bytes()[0]);
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let (word, _) = bytes.get(at..)?.split_first_chunk::<4>()?;
    Some(u32::from_le_bytes(*word))
}

/// A block: where it begins, and its entries with their restarts.
#[derive(Clone, Copy, Debug)]
struct Block<'a> {
    at: usize,
    bytes: &'a [u8],
}

impl<'a> Block<'a> {
    /// The block that a handle names. `said_at`: where the handle is.
    fn open(table: &'a [u8], handle: &mut &[u8], said_at: usize) -> Result<Block<'a>, Damage> {
        let (Some(at), Some(length)) = (varint(handle), varint(handle)) else {
            return Err(Damage::new(said_at, "no place of a block is here"));
        };
        let place = || {
            let at = usize::try_from(at).ok()?;
            let end = at.checked_add(usize::try_from(length).ok()?)?;
            let trailer = table.get(end..end.checked_add(TRAILER_BYTES)?)?;
            Some((at, table.get(at..end)?, trailer))
        };
        let Some((at, bytes, trailer)) = place() else {
            let what = format!(
                "a block of {length} bytes at byte {at} is named; the file has {} bytes",
                table.len()
            );
            return Err(Damage::new(said_at, what));
        };
        let end = at + bytes.len();
        let expected = unmask(u32_at(trailer, 1).unwrap_or(0));
        let found = crc32c::crc32c(table.get(at..=end).unwrap_or(&[]));
        if found != expected {
            let what = format!("a block of checksum {found:#010x}, expected {expected:#010x}");
            return Err(Damage::new(at, what));
        }
        match trailer {
            [0, ..] => Ok(Block { at, bytes }),
            _ => Err(Damage::new(
                end,
                "a compressed block; TensorFlow writes the index of a checkpoint without compression",
            )),
        }
    }

    /// Calls `see` with each entry: key, value, and where it begins in the file.
    fn each(
        &self,
        mut see: impl FnMut(&[u8], &'a [u8], usize) -> Result<(), Damage>,
    ) -> Result<(), Damage> {
        let length = self.bytes.len();
        let entries = || {
            let last = length.checked_sub(4)?;
            let restarts = usize::try_from(u32_at(self.bytes, last)?).ok()?;
            self.bytes
                .get(..last.checked_sub(restarts.checked_mul(4)?)?)
        };
        let Some(entries) = entries() else {
            return Err(Damage::new(
                self.at,
                "more restarts than the block has bytes",
            ));
        };
        let mut left = entries;
        let mut key = Vec::new();
        while !left.is_empty() {
            let at = self.at + entries.len() - left.len();
            let mut entry = || {
                let mut number = || usize::try_from(varint(&mut left)?).ok();
                let (shared, own, length) = (number()?, number()?, number()?);
                let (suffix, rest) = left.split_at_checked(own)?;
                let (value, rest) = rest.split_at_checked(length)?;
                left = rest;
                (shared <= key.len()).then_some((shared, suffix, value))
            };
            let Some((shared, suffix, value)) = entry() else {
                return Err(Damage::new(at, "an entry that reaches past its block"));
            };
            if shared + suffix.len() > KEY_BYTES_MAX {
                let what = format!("a key of more than {KEY_BYTES_MAX} bytes");
                return Err(Damage::new(at, what));
            }
            key.truncate(shared);
            key.extend_from_slice(suffix);
            see(&key, value, at)?;
        }
        Ok(())
    }
}

/// Calls `see` with each entry of a table in its order: key, value, and the byte where it begins.
///
/// # Errors
/// What is damaged, or what `see` says.
pub fn each<'a>(
    table: &'a [u8],
    mut see: impl FnMut(&[u8], &'a [u8], usize) -> Result<(), Damage>,
) -> Result<(), Damage> {
    let length = table.len();
    let Some((_, footer)) = table.split_last_chunk::<FOOTER_BYTES>() else {
        let what = format!("found {length} bytes, a table has at least {FOOTER_BYTES}");
        return Err(Damage::new(0, what));
    };
    let footer_at = length - FOOTER_BYTES;
    let (handles, magic) = footer.split_at(FOOTER_BYTES - 8);
    if magic != MAGIC.to_le_bytes() {
        let what = "the magic of a LevelDB table is not there";
        return Err(Damage::new(length - 8, what));
    }
    let mut handle = handles;
    // Of filters, which TensorFlow does not write.
    let (_, _) = (varint(&mut handle), varint(&mut handle));
    let index = Block::open(table, &mut handle, footer_at)?;
    let mut end = 0;
    let mut last: Option<Vec<u8>> = None;
    index.each(|_, mut value, at| {
        let block = Block::open(table, &mut value, at)?;
        if block.at < end {
            let what = format!("a block at byte {}, inside of one before", block.at);
            return Err(Damage::new(at, what));
        }
        end = block.at + block.bytes.len();
        block.each(|key, value, at| {
            if last.as_ref().is_some_and(|last| last.as_slice() >= key) {
                return Err(Damage::new(at, "keys do not rise"));
            }
            let last = last.get_or_insert_default();
            last.clear();
            last.extend_from_slice(key);
            see(key, value, at)
        })
    })
}

/// Appends a block with its trailer: its handle.
fn put_block(table: &mut Vec<u8>, entries: &[(&[u8], &[u8])]) -> Vec<u8> {
    let at = table.len();
    let mut restarts = Vec::new();
    for (key, value) in entries {
        // No key shares bytes with the one before, so each entry is a restart.
        restarts.push(u32::try_from(table.len() - at).unwrap_or(u32::MAX));
        put_varint(table, 0);
        put_varint(table, key.len() as u64);
        put_varint(table, value.len() as u64);
        table.extend_from_slice(key);
        table.extend_from_slice(value);
    }
    if restarts.is_empty() {
        restarts.push(0);
    }
    let count = u32::try_from(restarts.len()).unwrap_or(u32::MAX);
    for number in restarts.into_iter().chain([count]) {
        table.extend_from_slice(&number.to_le_bytes());
    }
    let mut handle = Vec::new();
    put_varint(&mut handle, at as u64);
    put_varint(&mut handle, (table.len() - at) as u64);
    table.push(0);
    let crc = mask(crc32c::crc32c(&table[at..]));
    table.extend_from_slice(&crc.to_le_bytes());
    handle
}

/// The table of a few entries, whose keys rise.
#[must_use]
pub fn write(entries: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut table = Vec::new();
    let all: Vec<(&[u8], &[u8])> = entries
        .iter()
        .map(|(key, value)| (key.as_slice(), value.as_slice()))
        .collect();
    let data = put_block(&mut table, &all);
    let meta = put_block(&mut table, &[]);
    let last = all.last().map_or(&[][..], |(key, _)| key);
    let index = put_block(&mut table, &[(last, data.as_slice())]);
    let mut footer = [meta, index].concat();
    footer.resize(FOOTER_BYTES - 8, 0);
    footer.extend_from_slice(&MAGIC.to_le_bytes());
    table.extend(footer);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pair = (Vec<u8>, Vec<u8>);

    fn sample() -> Vec<Pair> {
        let entry = |name: &str, value: &[u8]| (name.as_bytes().to_vec(), value.to_vec());
        vec![
            entry("", b"header"),
            entry("a-keys", &[7; 300]),
            entry("a-values", b""),
        ]
    }

    fn read(table: &[u8]) -> Result<Vec<Pair>, Damage> {
        let mut found = Vec::new();
        each(table, |key, value, _| {
            found.push((key.to_vec(), value.to_vec()));
            Ok(())
        })?;
        Ok(found)
    }

    /// A table whose only data block is this.
    fn table_of(block: &[u8]) -> Vec<u8> {
        let mut table = block.to_vec();
        table.push(0);
        let crc = mask(crc32c::crc32c(&table));
        table.extend_from_slice(&crc.to_le_bytes());
        let mut handle = Vec::new();
        put_varint(&mut handle, 0);
        put_varint(&mut handle, block.len() as u64);
        let index = put_block(&mut table, &[(b"z", &handle)]);
        let mut footer = [vec![0, 0], index].concat();
        footer.resize(40, 0);
        footer.extend_from_slice(&MAGIC.to_le_bytes());
        table.extend(footer);
        table
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(read(&write(&sample())).unwrap(), sample());
        assert_eq!(read(&write(&[])).unwrap(), []);
    }

    #[test]
    fn masks_are_taken_off_again() {
        for crc in [0, 1, 0xa282_ead8, u32::MAX] {
            assert_eq!(unmask(mask(crc)), crc);
        }
        // CRC-32C of "123456789", as every table of checksums has it.
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn varints_end() {
        for value in [0, 127, 128, 300, u64::MAX] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            assert_eq!(varint(&mut bytes.as_slice()), Some(value));
            bytes.pop();
            assert_eq!(varint(&mut bytes.as_slice()), None);
        }
        assert_eq!(varint(&mut [0xff; 11].as_slice()), None);
    }

    #[test]
    fn keys_that_share_bytes_with_the_one_before_are_read() {
        let block = b"\x00\x06\x01a-keysX\x02\x06\x00values\x00\x00\x00\x00\x01\x00\x00\x00";
        let found = read(&table_of(block)).unwrap();
        assert_eq!(found[0], (b"a-keys".to_vec(), b"X".to_vec()));
        assert_eq!(found[1], (b"a-values".to_vec(), Vec::new()));
    }

    #[test]
    fn damage_is_named_with_its_byte() {
        let say = |table: &[u8]| read(table).unwrap_err();
        let good = write(&sample());
        assert_eq!(say(&good[..20]).at, 0);
        let magic = say(&good[..good.len() - 1]);
        assert!(magic.what.contains("magic"), "{magic:?}");
        let mut other = good.clone();
        other[40] ^= 1;
        let sum = say(&other);
        assert!(sum.at == 0 && sum.what.contains("checksum"), "{sum:?}");
        let restarts = say(&table_of(b"\xff\xff\xff\xff"));
        assert!(restarts.what.contains("restarts"), "{restarts:?}");
        let past = say(&table_of(b"\x00\x7f\x00a\x00\x00\x00\x00"));
        assert!(past.what.contains("past its block"), "{past:?}");
        let shared = say(&table_of(b"\x05\x01\x00a\x00\x00\x00\x00"));
        assert!(shared.what.contains("past its block"), "{shared:?}");
        let order = say(&table_of(b"\x00\x01\x00b\x00\x01\x00a\x00\x00\x00\x00"));
        assert!(order.at == 4 && order.what.contains("rise"), "{order:?}");
        let long = [b"\x00\x81\x20\x00", &[b'k'; 4097][..], &[0; 4]].concat();
        assert!(say(&table_of(&long)).what.contains("4096"));
        let mut snappy = table_of(b"\x00\x00\x00\x00");
        snappy[4] = 1;
        let crc = mask(crc32c::crc32c(&snappy[..5])).to_le_bytes();
        snappy[5..9].copy_from_slice(&crc);
        assert!(say(&snappy).what.contains("compressed"));
    }

    #[test]
    fn any_change_gives_an_answer() {
        let good = write(&sample());
        for at in 0..good.len() {
            let _cut = read(&good[..at]);
            for bit in [1, 0x80, 0xff] {
                let mut other = good.clone();
                other[at] ^= bit;
                let _changed = read(&other);
            }
        }
    }
}
