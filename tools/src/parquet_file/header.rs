//! What does the header of a page say?
//!
//! - Nothing of it is believed but that it is a header: [`super::pages`] compares it with what is there.

use ::parquet::basic::Encoding;

use super::shapes::{DATA, DATA_V2, DICTIONARY, PAGE};
use super::thrift::{Fault, Seen, Shape, walk};

/// The header of a page.
#[derive(Debug)]
pub struct Header {
    /// Its own length.
    pub bytes: usize,
    /// Bytes of the page in the file, and when they are decompressed.
    pub compressed: u32,
    pub uncompressed: u32,
    pub what: What,
}

/// What a page is.
#[derive(Debug)]
pub enum What {
    Data {
        values: u32,
        encoding: Encoding,
        definition: Encoding,
        repetition: Encoding,
    },
    DataV2 {
        values: u32,
        nulls: u32,
        rows: u32,
        encoding: Encoding,
        /// Bytes of levels, which stand before the values and are not compressed.
        definition: u32,
        repetition: u32,
        is_compressed: bool,
    },
    Dictionary {
        values: u32,
        encoding: Encoding,
        is_sorted: bool,
    },
    /// Nothing that has values.
    Index,
}

/// Numbers of a header, by struct and field.
struct Numbers(Vec<(&'static str, i16, i64)>);

impl Header {
    /// Reads the header that these bytes begin with.
    ///
    /// # Errors
    /// What is wrong with it, or that it is longer than the bytes.
    pub fn read(bytes: &[u8]) -> Result<Header, Fault> {
        let mut numbers = Numbers(Vec::new());
        let length = walk(bytes, &PAGE, &mut |seen| {
            if let Seen::Value(name, id, value) = seen {
                numbers.0.push((name, id, value));
            }
        })?;
        let what = numbers.what().map_err(in_header)?;
        Ok(Header {
            bytes: length,
            compressed: numbers.get(&PAGE, 3).map_err(in_header)?,
            uncompressed: numbers.get(&PAGE, 2).map_err(in_header)?,
            what,
        })
    }
}

fn in_header(what: String) -> Fault {
    Fault {
        offset: 0,
        what,
        is_cut: false,
    }
}

impl Numbers {
    fn find(&self, of: &Shape, id: i16) -> Option<i64> {
        let mut found = self.0.iter().rev();
        let found = found.find(|(name, other, _)| *name == of.name && *other == id);
        found.map(|(.., value)| *value)
    }

    /// A number that must be there, and is never below zero.
    fn get(&self, of: &Shape, id: i16) -> Result<u32, String> {
        let name = of.name;
        let found = self.find(of, id);
        let found = found.ok_or_else(|| format!("found no field {id} of {name}"))?;
        u32::try_from(found).map_err(|_| format!("found {found} in field {id} of {name}"))
    }

    fn encoding(&self, of: &Shape, id: i16) -> Result<Encoding, String> {
        let encoding = match self.get(of, id)? {
            0 => Encoding::PLAIN,
            2 => Encoding::PLAIN_DICTIONARY,
            3 => Encoding::RLE,
            #[expect(deprecated, reason = "old files have it")]
            4 => Encoding::BIT_PACKED,
            5 => Encoding::DELTA_BINARY_PACKED,
            6 => Encoding::DELTA_LENGTH_BYTE_ARRAY,
            7 => Encoding::DELTA_BYTE_ARRAY,
            8 => Encoding::RLE_DICTIONARY,
            9 => Encoding::BYTE_STREAM_SPLIT,
            10 => Encoding::ALP,
            other => return Err(format!("found encoding {other}, which is not known")),
        };
        Ok(encoding)
    }

    fn what(&self) -> Result<What, String> {
        Ok(match self.get(&PAGE, 1)? {
            0 => What::Data {
                values: self.get(&DATA, 1)?,
                encoding: self.encoding(&DATA, 2)?,
                definition: self.encoding(&DATA, 3)?,
                repetition: self.encoding(&DATA, 4)?,
            },
            1 => What::Index,
            2 => What::Dictionary {
                values: self.get(&DICTIONARY, 1)?,
                encoding: self.encoding(&DICTIONARY, 2)?,
                is_sorted: self.find(&DICTIONARY, 3) == Some(1),
            },
            3 => What::DataV2 {
                values: self.get(&DATA_V2, 1)?,
                nulls: self.get(&DATA_V2, 2)?,
                rows: self.get(&DATA_V2, 3)?,
                encoding: self.encoding(&DATA_V2, 4)?,
                definition: self.get(&DATA_V2, 5)?,
                repetition: self.get(&DATA_V2, 6)?,
                is_compressed: self.find(&DATA_V2, 7) != Some(0),
            },
            other => return Err(format!("found a page of kind {other}, which is not known")),
        })
    }
}
