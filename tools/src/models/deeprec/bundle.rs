//! What does the index of a TensorFlow checkpoint say of each tensor?
//!
//! - The values of its table are protocol buffers; those fields are read that a reader of whole tensors needs,
//!   others are passed over, as the encoding asks.
//!
//! Source: TensorFlow, core/protobuf/tensor_bundle.proto, core/framework/tensor_shape.proto, types.proto.

use super::table::{mask, put_varint, unmask, varint};

/// `DT_FLOAT`.
pub const FLOAT: u64 = 1;
/// `DT_INT64`.
pub const INT64: u64 = 9;
/// No tensor of an embedding has more axes.
const AXES_MAX: usize = 8;

/// What stands at the key "".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Files with data.
    pub shards: u64,
}

/// A tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The type of its elements.
    pub dtype: u64,
    /// Lengths of its axes.
    pub shape: Vec<u64>,
    /// The data file.
    pub shard: u64,
    /// Its first byte there.
    pub offset: u64,
    /// Its bytes.
    pub size: u64,
    /// Their CRC-32C.
    pub crc: u32,
}

/// A field of a message.
enum Field<'a> {
    Number(u64),
    Word(u32),
    Bytes(&'a [u8]),
    Other,
}

/// Calls `see` with the number and value of each field.
fn fields<'a>(
    mut message: &'a [u8],
    mut see: impl FnMut(u64, Field<'a>) -> Result<(), String>,
) -> Result<(), String> {
    while !message.is_empty() {
        let mut field = || {
            let tag = varint(&mut message)?;
            let value = match tag & 7 {
                0 => Field::Number(varint(&mut message)?),
                1 => {
                    message = message.get(8..)?;
                    Field::Other
                }
                2 => {
                    let length = usize::try_from(varint(&mut message)?).ok()?;
                    let (bytes, rest) = message.split_at_checked(length)?;
                    message = rest;
                    Field::Bytes(bytes)
                }
                5 => {
                    let (word, rest) = message.split_first_chunk::<4>()?;
                    message = rest;
                    Field::Word(u32::from_le_bytes(*word))
                }
                _ => return None,
            };
            Some((tag >> 3, value))
        };
        let (number, value) = field().ok_or("no protocol buffer, or one that is cut off")?;
        see(number, value)?;
    }
    Ok(())
}

impl Header {
    /// Reads it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(message: &[u8]) -> Result<Header, String> {
        let mut shards = 0;
        fields(message, |number, value| {
            match (number, value) {
                (1, Field::Number(count)) => shards = count,
                (2, Field::Number(1)) => return Err(String::from("a checkpoint in big-endian")),
                _ => {}
            }
            Ok(())
        })?;
        match shards {
            1..=99_999 => Ok(Header { shards }),
            _ => Err(format!("{shards} data files, expected 1 to 99999")),
        }
    }

    /// As it is stored.
    #[must_use]
    pub fn write(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        number(&mut bytes, 1, self.shards);
        // Version 1 of the format, which any reader may read.
        message(&mut bytes, 3, &[8, 1]);
        bytes
    }
}

impl Entry {
    /// Reads one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(message: &[u8]) -> Result<Entry, String> {
        let mut entry = Entry {
            dtype: 0,
            shape: Vec::new(),
            shard: 0,
            offset: 0,
            size: 0,
            crc: unmask(0),
        };
        fields(message, |number, value| {
            match (number, value) {
                (1, Field::Number(dtype)) => entry.dtype = dtype,
                (2, Field::Bytes(shape)) => entry.shape = axes(shape)?,
                (3, Field::Number(shard)) => entry.shard = shard,
                (4, Field::Number(offset)) => entry.offset = offset,
                (5, Field::Number(size)) => entry.size = size,
                (6, Field::Word(masked)) => entry.crc = unmask(masked),
                (7, _) => return Err(String::from("slices of a tensor, expected a whole one")),
                _ => {}
            }
            Ok(())
        })?;
        Ok(entry)
    }

    /// As it is stored.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let mut shape = Vec::new();
        for length in &self.shape {
            let mut axis = Vec::new();
            number(&mut axis, 1, *length);
            message(&mut shape, 2, &axis);
        }
        let mut bytes = Vec::new();
        number(&mut bytes, 1, self.dtype);
        message(&mut bytes, 2, &shape);
        number(&mut bytes, 3, self.shard);
        number(&mut bytes, 4, self.offset);
        number(&mut bytes, 5, self.size);
        put_varint(&mut bytes, 6 << 3 | 5);
        bytes.extend_from_slice(&mask(self.crc).to_le_bytes());
        bytes
    }
}

/// Lengths of the axes of a shape.
fn axes(shape: &[u8]) -> Result<Vec<u64>, String> {
    let mut axes = Vec::new();
    fields(shape, |number, value| {
        match (number, value) {
            (2, Field::Bytes(axis)) => {
                let mut length = 0;
                fields(axis, |number, value| {
                    if let (1, Field::Number(found)) = (number, value) {
                        length = found;
                    }
                    Ok(())
                })?;
                axes.push(length);
                if axes.len() > AXES_MAX {
                    return Err(format!("a tensor of more than {AXES_MAX} axes"));
                }
            }
            (3, Field::Number(1)) => return Err(String::from("a tensor of unknown shape")),
            _ => {}
        }
        Ok(())
    })?;
    Ok(axes)
}

/// Appends a number; 0 is what a field is that is not there.
fn number(bytes: &mut Vec<u8>, field: u64, value: u64) {
    if value != 0 {
        put_varint(bytes, field << 3);
        put_varint(bytes, value);
    }
}

/// Appends a message within a message.
fn message(bytes: &mut Vec<u8>, field: u64, value: &[u8]) {
    put_varint(bytes, field << 3 | 2);
    put_varint(bytes, value.len() as u64);
    bytes.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let header = Header { shards: 3 };
        assert_eq!(Header::read(&header.write()), Ok(header));
        for (shape, offset) in [(vec![5, 8], 0), (vec![0], 1 << 40), (vec![], 3)] {
            let entry = Entry {
                dtype: INT64,
                shape,
                shard: 2,
                offset,
                size: 40,
                crc: 0x1234_5678,
            };
            assert_eq!(Entry::read(&entry.write()), Ok(entry));
        }
    }

    /// `dtype: DT_FLOAT, shape { dim { size: 2 } dim { size: 3 } }, size: 24, crc32c: 1`, as protoc encodes it, with a
    /// field of each kind that is not known.
    #[test]
    fn fields_that_are_not_known_are_passed_over() {
        let known = b"\x08\x01\x12\x08\x12\x02\x08\x02\x12\x02\x08\x03\x28\x18\x35\x01\x00\x00\x00";
        let other = b"\xf8\x01\x05\xf9\x0112345678\xfa\x01\x02ab\xfd\x011234";
        let found = Entry::read(&[&other[..], known].concat()).unwrap();
        assert_eq!((found.dtype, found.size), (FLOAT, 24));
        assert_eq!((found.shape, found.crc), (vec![2, 3], unmask(1)));
    }

    #[test]
    fn messages_that_are_cut_off_are_refused() {
        let entry = Entry::read(b"\x08\x09").unwrap();
        let whole = Entry {
            shape: vec![300, 70],
            size: 1 << 30,
            crc: 5,
            ..entry
        };
        let bytes = whole.write();
        for length in 0..bytes.len() {
            // Where a field ends, what is there is a message as well.
            let cut = Entry::read(&bytes[..length]);
            assert!(cut.as_ref() != Ok(&whole), "{length}");
        }
        assert!(Entry::read(b"\x0b").unwrap_err().contains("cut off"));
        assert!(Entry::read(b"\x3a\x00").unwrap_err().contains("slices"));
        assert!(
            Entry::read(b"\x12\x02\x18\x01")
                .unwrap_err()
                .contains("unknown")
        );
        assert!(
            Header::read(b"\x08\x01\x10\x01")
                .unwrap_err()
                .contains("big")
        );
        assert!(Header::read(b"").unwrap_err().contains("0 data files"));
    }
}
