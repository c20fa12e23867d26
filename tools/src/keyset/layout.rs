//! Where are the records of a file, and what are the values of their fields?
//!
//! - A layout is found in the first bytes of a file, or follows from the command line; it says where a
//!   chunk may be cut, and gives the values of a chunk to a sink.
//! - Whatever the bytes are, the answer is values or an error with file, offset, found and expected.

use std::ops::Range;
use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;
use hps::Error;

use super::fixed::{Element, Fixed};
use super::norm::Norm;
#[cfg(feature = "parquet")]
use super::parquet::Rows;
use super::scheme::Refused;
use super::{npy, tsv};

/// The type of keys in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KeyType {
    /// 8 bytes, the bits of a u64 (HugeCTR: long long, i64_input_key=True)
    I64,
    /// 4 bytes (HugeCTR: unsigned int)
    U32,
}

impl KeyType {
    /// Bytes of a key.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            KeyType::I64 => 8,
            KeyType::U32 => 4,
        }
    }

    /// As it stands on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            KeyType::I64 => "i64",
            KeyType::U32 => "u32",
        }
    }
}

/// What kind of files the inputs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Criteo's text.
    CriteoTsv,
    /// NumPy's arrays.
    Npy,
    /// HugeCTR's Norm, with keys of a type.
    Norm(KeyType),
    /// HugeCTR's Raw: labels, dense values and slots of a sample.
    Raw(usize, usize, usize),
    /// Keyset files.
    Keys(KeyType),
    /// Parquet, which is read by row groups, not as a stream.
    #[cfg(feature = "parquet")]
    Parquet,
}

/// Where the records of a file are.
#[derive(Debug)]
pub enum Layout {
    /// Lines of so many columns.
    Text(usize),
    /// Records of one size.
    Fixed(Fixed),
    /// Samples of HugeCTR's Norm.
    Norm(Norm),
    /// Rows of Parquet, decoded.
    #[cfg(feature = "parquet")]
    Rows(Rows),
}

/// Why a value was not taken.
#[derive(Debug)]
pub enum Fault {
    /// It has no key.
    Refused(Refused),
    /// Its key could not be stored.
    Other(anyhow::Error),
}

/// Who takes values.
pub trait Sink {
    /// A value of a field.
    ///
    /// # Errors
    /// Why it was not taken.
    fn put(&mut self, field: usize, value: u64) -> Result<(), Fault>;

    /// The record ends to which the values since the last such call belong; its bytes in the chunk.
    ///
    /// # Errors
    /// Why it was not taken.
    fn end_row(&mut self, row: Range<usize>) -> Result<(), Fault>;
}

/// Where a chunk comes from.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The file.
    pub path: &'a Path,
    /// Of the chunk's first byte, after decompression.
    pub offset: u64,
}

impl Place<'_> {
    /// What is wrong, at a byte of the chunk.
    #[cold]
    pub fn bad(&self, at: usize, what: impl Into<String>) -> anyhow::Error {
        Error::corrupt(self.path, self.offset + at as u64, what).into()
    }

    /// What a sink says, with the place.
    #[cold]
    pub fn fault(&self, at: usize, fault: Fault) -> anyhow::Error {
        match fault {
            Fault::Refused(refused) => self.bad(at, refused.to_string()),
            Fault::Other(error) => error,
        }
    }
}

impl Format {
    /// The layout of a file that begins like this, and the length of its header. `is_all`: the file
    /// has no more bytes.
    ///
    /// # Errors
    /// What keeps it from being such a file.
    pub fn begin(&self, bytes: &[u8], is_all: bool, place: &Place<'_>) -> Result<(Layout, usize)> {
        match *self {
            Format::CriteoTsv => Ok((Layout::Text(tsv::columns(bytes, is_all, place)?), 0)),
            Format::Npy => {
                let (fixed, header) = npy::read_header(bytes, place)?;
                Ok((Layout::Fixed(fixed), header))
            }
            Format::Norm(keys) => {
                let (norm, header) = Norm::read_header(bytes, keys, place)?;
                Ok((Layout::Norm(norm), header))
            }
            Format::Raw(labels, dense, slots) => {
                Ok((Layout::Fixed(Fixed::raw(labels, dense, slots)), 0))
            }
            Format::Keys(keys) => {
                if bytes.is_empty() && is_all {
                    return Err(place.bad(0, "an empty keyset, which HugeCTR refuses, too"));
                }
                Ok((Layout::Fixed(Fixed::keys(keys)), 0))
            }
            #[cfg(feature = "parquet")]
            Format::Parquet => Err(place.bad(0, "Parquet is no stream")),
        }
    }
}

impl Layout {
    /// How many fields a record has.
    #[must_use]
    pub fn fields(&self) -> usize {
        match self {
            Layout::Text(_) => tsv::FIELDS,
            Layout::Fixed(fixed) => fixed.fields(),
            Layout::Norm(norm) => norm.slots(),
            #[cfg(feature = "parquet")]
            Layout::Rows(rows) => rows.columns.len(),
        }
    }

    /// How many of the bytes are whole records. `is_all`: the file has no more bytes.
    ///
    /// # Errors
    /// When the last record is not whole, or a length in the bytes can't be.
    pub fn cut(&self, bytes: &[u8], is_all: bool, place: &Place<'_>) -> Result<usize> {
        match self {
            Layout::Text(_) if is_all => Ok(bytes.len()),
            Layout::Text(_) => Ok(bytes
                .iter()
                .rposition(|b| *b == b'\n')
                .map_or(0, |at| at + 1)),
            Layout::Fixed(fixed) => fixed.cut(bytes, is_all, place),
            Layout::Norm(norm) => norm.cut(bytes, is_all, place),
            #[cfg(feature = "parquet")]
            Layout::Rows(_) => Ok(bytes.len()),
        }
    }

    /// Gives all values of whole records to a sink.
    ///
    /// # Errors
    /// What is wrong with the bytes, or what the sink says.
    pub fn parse(&self, bytes: &[u8], place: &Place<'_>, sink: &mut impl Sink) -> Result<()> {
        match self {
            Layout::Text(columns) => tsv::parse(bytes, *columns, place, sink),
            Layout::Fixed(fixed) => fixed.parse(bytes, place, sink),
            Layout::Norm(norm) => norm.parse(bytes, place, sink),
            #[cfg(feature = "parquet")]
            Layout::Rows(rows) => rows.parse(bytes, place, sink),
        }
    }

    /// Checks a file that was parsed to its end.
    ///
    /// # Errors
    /// When its header promises another number of records.
    pub fn end(&self, data_bytes: u64, place: &Place<'_>) -> Result<()> {
        match self {
            Layout::Text(_) => Ok(()),
            Layout::Fixed(fixed) => fixed.end(data_bytes, place),
            Layout::Norm(norm) => norm.end(place),
            #[cfg(feature = "parquet")]
            Layout::Rows(_) => Ok(()),
        }
    }
}

/// A value that stands at the front of some bytes.
pub fn value_at(bytes: &[u8], element: Element) -> Option<u64> {
    match element {
        Element::U64 => Some(u64::from_le_bytes(*bytes.first_chunk()?)),
        Element::U32 | Element::I32 => Some(u32::from_le_bytes(*bytes.first_chunk()?).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts what it is given.
    #[derive(Default)]
    struct Counted(usize);

    impl Sink for Counted {
        fn put(&mut self, _: usize, _: u64) -> Result<(), Fault> {
            self.0 += 1;
            Ok(())
        }

        fn end_row(&mut self, _: Range<usize>) -> Result<(), Fault> {
            Ok(())
        }
    }

    /// Reads bytes as a file of which `buffer` bytes are in memory at a time; how many values there are.
    fn read(format: Format, bytes: &[u8], buffer: usize) -> Result<usize> {
        let path = Path::new("a");
        let place = |offset: usize| Place {
            path,
            offset: offset as u64,
        };
        let first = &bytes[..bytes.len().min(buffer)];
        let (layout, header) = format.begin(first, first.len() == bytes.len(), &place(0))?;
        assert!(header <= first.len());
        let mut sink = Counted::default();
        let mut at = header;
        while at < bytes.len() {
            let end = bytes.len().min(at + buffer);
            let is_all = end == bytes.len();
            let cut = layout.cut(&bytes[at..end], is_all, &place(at))?;
            if cut == 0 {
                return Err(place(at).bad(0, "longer than the buffer"));
            }
            layout.parse(&bytes[at..at + cut], &place(at), &mut sink)?;
            at += cut;
        }
        layout.end((at - header) as u64, &place(0))?;
        Ok(sink.0)
    }

    fn norm_bytes(has_sums: bool, samples: u64) -> Vec<u8> {
        let mut file = Vec::new();
        let mut unit = |bytes: Vec<u8>| {
            if has_sums {
                file.extend(u32::try_from(bytes.len()).unwrap().to_le_bytes());
            }
            file.extend(&bytes);
            if has_sums {
                file.push(bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte)));
            }
        };
        let header = [u64::from(has_sums), samples, 1, 1, 2, 0, 0, 0];
        unit(
            header
                .iter()
                .flat_map(|number| number.to_le_bytes())
                .collect(),
        );
        for _ in 0..samples {
            let sample = [0u32, 0, 2, 1, 2, 1, 3];
            unit(
                sample
                    .iter()
                    .flat_map(|number| number.to_le_bytes())
                    .collect(),
            );
        }
        file
    }

    /// Whole files, with the number of their values.
    fn files() -> Vec<(Format, Vec<u8>, usize)> {
        let header = "{'descr': '<i8', 'fortran_order': False, 'shape': (9, 2), }\n";
        let length = u16::try_from(header.len()).unwrap().to_le_bytes();
        let npy = [
            b"\x93NUMPY\x01\x00",
            &length[..],
            header.as_bytes(),
            &[7; 144],
        ]
        .concat();
        let line = format!("1{}\t0000000a\tff{}\n", "\t-5".repeat(13), "\t".repeat(24));
        vec![
            (Format::CriteoTsv, line.repeat(5).into_bytes(), 10),
            (Format::Npy, npy, 18),
            (Format::Norm(KeyType::U32), norm_bytes(true, 5), 15),
            (Format::Norm(KeyType::U32), norm_bytes(false, 5), 15),
            (Format::Raw(1, 2, 3), vec![5; 96], 12),
            (Format::Keys(KeyType::I64), vec![5; 96], 12),
            (Format::Keys(KeyType::U32), vec![5; 96], 24),
        ]
    }

    #[test]
    fn records_are_whole_wherever_chunks_end() {
        for (format, bytes, values) in files() {
            for buffer in 128..300 {
                let found = read(format, &bytes, buffer).unwrap();
                assert_eq!(found, values, "{format:?} {buffer}");
            }
        }
    }

    #[test]
    fn no_bytes_cause_a_panic() {
        let mut state = 1u64;
        let mut draw = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            usize::try_from(state >> 33).unwrap() % below
        };
        let mut refused = 0;
        for (format, whole, _) in files() {
            for _ in 0..4000 {
                let mut bytes = whole.clone();
                for _ in 0..1 + draw(4) {
                    let at = draw(bytes.len());
                    bytes[at] = [0, 1, 9, 10, 48, 127, 128, 255][draw(8)];
                }
                bytes.truncate(bytes.len() - [0, 0, 0, 1, 40][draw(5)]);
                refused += usize::from(read(format, &bytes, 100 + draw(200)).is_err());
            }
        }
        assert!(refused > 10_000, "{refused}");
    }
}
