//! Which small Parquet files do inputs start from, how are they changed, and what does the library itself read of one?
//!
//! - A model and a data set, each by every codec, and by plain pages, dictionaries and both versions.
//! - [`read`] is the reader that the library has: what the tools take, it must take, and give the same values.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use parquet::basic::{Compression, Encoding};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::DataType;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter};
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;

use crate::Input;

const MODEL: &str = "message m {
    required int64 key (INTEGER(64,false));
    required group weights (LIST) { repeated group list { required float element; } }
    optional group a (LIST) { repeated group list { optional float element; } }
    required int32 show (INTEGER(32,false));
}";
const SET: &str = "message m {
    required float label;
    optional int32 a;
    required int64 b;
    optional group c (LIST) { repeated group list { optional int64 element; } }
}";
/// Files of each schema.
pub const STYLES: usize = 16;
/// Rows of each row group.
const ROWS: i64 = 5;

/// The files: [`STYLES`] models, then as many data sets.
pub fn bases() -> &'static [Vec<u8>] {
    static BASES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    BASES.get_or_init(|| {
        let all = [MODEL, SET].map(|schema| (0..STYLES).map(move |style| base(schema, style)));
        all.into_iter().flatten().collect()
    })
}

fn base(schema: &str, style: usize) -> Vec<u8> {
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(Default::default()),
        Compression::ZSTD(Default::default()),
    ];
    let mut properties = WriterProperties::builder()
        .set_compression(codecs[style % 4])
        .set_dictionary_enabled(style & 4 != 0)
        .set_writer_version(match style & 8 {
            0 => WriterVersion::PARQUET_1_0,
            _ => WriterVersion::PARQUET_2_0,
        });
    if style & 4 == 0 {
        let split = ColumnPath::from(vec!["weights".into(), "list".into(), "element".into()]);
        properties = properties.set_column_encoding(split, Encoding::BYTE_STREAM_SPLIT);
        for name in ["key", "b"] {
            let name = ColumnPath::from(name);
            properties = properties.set_column_encoding(name, Encoding::DELTA_BINARY_PACKED);
        }
    }
    let parsed = Arc::new(parse_message_type(schema).expect("a schema"));
    let mut file = Vec::new();
    let properties = Arc::new(properties.build());
    let mut writer = SerializedFileWriter::new(&mut file, parsed, properties).expect("a file");
    for first in [0, ROWS] {
        let rows: Vec<i64> = (first..first + ROWS).collect();
        let mut group = writer.next_row_group().expect("a row group");
        let mut number = 0;
        while let Some(mut column) = group.next_column().expect("a column") {
            put(schema, number, &rows, column.untyped());
            column.close().expect("a column");
            number += 1;
        }
        group.close().expect("a row group");
    }
    writer.close().expect("a file");
    file
}

/// Writes a column of a row group.
fn put(schema: &str, number: usize, rows: &[i64], writer: &mut ColumnWriter<'_>) {
    let lists = |there: i16| {
        let levels = vec![there; 2 * rows.len()];
        let repeats: Vec<i16> = rows.iter().flat_map(|_| [0, 1]).collect();
        (levels, repeats)
    };
    let floats: Vec<f32> = (0..2 * rows.len()).map(|at| at as f32 / 4.0).collect();
    let done = match (schema == MODEL, number, writer) {
        (true, 0, ColumnWriter::Int64ColumnWriter(writer)) => writer.write_batch(rows, None, None),
        (true, 1, ColumnWriter::FloatColumnWriter(writer)) => {
            let (levels, repeats) = lists(1);
            writer.write_batch(&floats, Some(&levels), Some(&repeats))
        }
        (true, 2, ColumnWriter::FloatColumnWriter(writer)) => {
            let (levels, repeats) = lists(3);
            writer.write_batch(&floats, Some(&levels), Some(&repeats))
        }
        (true, _, ColumnWriter::Int32ColumnWriter(writer)) => {
            writer.write_batch(&vec![7; rows.len()], None, None)
        }
        (false, 0, ColumnWriter::FloatColumnWriter(writer)) => {
            writer.write_batch(&floats[..rows.len()], None, None)
        }
        (false, 1, ColumnWriter::Int32ColumnWriter(writer)) => {
            let levels: Vec<i16> = rows.iter().map(|row| i16::from(row % 3 != 0)).collect();
            let there: Vec<i32> = rows
                .iter()
                .filter(|row| *row % 3 != 0)
                .map(|r| *r as i32)
                .collect();
            writer.write_batch(&there, Some(&levels), None)
        }
        (false, 2, ColumnWriter::Int64ColumnWriter(writer)) => writer.write_batch(rows, None, None),
        (false, _, ColumnWriter::Int64ColumnWriter(writer)) => {
            // No list, one without a value, and one that has one.
            let (mut levels, mut repeats) = (Vec::new(), Vec::new());
            for row in rows {
                levels.extend([&[0][..], &[2], &[2, 3]][(row % 3) as usize]);
                repeats.extend([&[0][..], &[0], &[0, 1]][(row % 3) as usize]);
            }
            let there: Vec<i64> = rows.iter().copied().filter(|row| row % 3 == 2).collect();
            writer.write_batch(&there, Some(&levels), Some(&repeats))
        }
        _ => unreachable!("a column of another type"),
    };
    done.expect("a column");
}

/// Where the footer begins.
#[must_use]
pub fn footer_at(file: &[u8]) -> usize {
    let end = file.len() - 8;
    end - crate::u32_at(file, end) as usize
}

/// A file of a body and a footer, with the length that it has.
#[must_use]
pub fn joined(body: &[u8], footer: &[u8]) -> Vec<u8> {
    let length = (footer.len() as u32).to_le_bytes();
    [body, footer, &length, b"PAR1"].concat()
}

/// Changes bytes anywhere, and lengths and numbers in the footer.
#[must_use]
pub fn changed(base: &[u8], input: &mut Input<'_>) -> Vec<u8> {
    let (body, rest) = base.split_at(footer_at(base));
    let (mut body, mut footer) = (body.to_vec(), rest[..rest.len() - 8].to_vec());
    while !input.is_empty() {
        let (what, at) = (input.below(6), input.number(2) as usize);
        let place = if what < 2 { &mut body } else { &mut footer };
        let at = if place.is_empty() {
            0
        } else {
            at % place.len()
        };
        let (gone, new) = match what {
            0 | 2 => {
                let byte = place.get(at).copied().unwrap_or(0) ^ input.number(1) as u8;
                (1, vec![byte])
            }
            1 | 3 => {
                let new = input.take(16).to_vec();
                (new.len(), new)
            }
            4 => {
                let count = input.below(8);
                let length = input.below(12);
                (count, input.take(length).to_vec())
            }
            _ => {
                let old = place[at.min(place.len())..].iter();
                let old = 1 + old.take_while(|byte| **byte & 0x80 != 0).count();
                let length = input.below(9);
                (old, varint(input.number(length)))
            }
        };
        let end = (at + gone).min(place.len());
        place.splice(at.min(end)..end, new);
    }
    joined(&body, &footer)
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// A base with its first row group, in which a column stands behind the others, made of these bytes.
#[must_use]
pub fn with_column(base: &[u8], column: usize, pages: &[u8]) -> Vec<u8> {
    let at = footer_at(base);
    let metadata = metadata(base);
    let group = metadata.row_group(0).clone();
    let mut columns = group.columns().to_vec();
    let changed = columns[column].clone().into_builder();
    let changed = changed
        .set_dictionary_page_offset(None)
        .set_data_page_offset(at as i64)
        .set_total_compressed_size(pages.len() as i64);
    columns[column] = changed.build().expect("a column");
    let group = group.into_builder().set_column_metadata(columns);
    let metadata = metadata.into_builder();
    let metadata = metadata.set_row_groups(vec![group.build().expect("a row group")]);
    let mut file = [&base[..at], pages].concat();
    let metadata = metadata.build();
    ParquetMetaDataWriter::new(&mut file, &metadata)
        .finish()
        .expect("a footer");
    file
}

/// The pages of a column of the first row group.
#[must_use]
pub fn pages(base: &[u8], column: usize) -> &[u8] {
    let metadata = metadata(base);
    let (at, length) = metadata.row_group(0).column(column).byte_range();
    &base[at as usize..(at + length) as usize]
}

fn metadata(base: &[u8]) -> ParquetMetaData {
    let end = base.len() - 8;
    ParquetMetaDataReader::decode_metadata(&base[footer_at(base)..end]).expect("a footer")
}

/// The values of a column, as bits, by the library's own reader, from all row groups. `None` where it refuses a header
/// for a field that the tools do not read: a number that no type has, or one that is missing.
///
/// # Panics
/// Where it refuses anything else of the file, which has been taken.
#[must_use]
pub fn read(path: &Path, column: &str) -> Option<Vec<u64>> {
    let file = std::fs::File::open(path).expect("a file");
    let reader = SerializedFileReader::new(file).expect("a footer");
    let schema = reader.metadata().file_metadata().schema_descr();
    let leaf = (0..schema.num_columns())
        .find(|leaf| schema.column(*leaf).path().parts()[0] == column)
        .expect("a column");
    let mut all = Vec::new();
    for number in 0..reader.num_row_groups() {
        let group = reader.get_row_group(number).expect("a row group");
        let rows = group.metadata().num_rows() as usize;
        match group.get_column_reader(leaf).expect("a column") {
            ColumnReader::Int32ColumnReader(reader) => {
                let values = values(reader, rows)?.into_iter();
                all.extend(values.map(|v| u64::from(v.cast_unsigned())));
            }
            ColumnReader::Int64ColumnReader(reader) => {
                let values = values(reader, rows)?.into_iter();
                all.extend(values.map(i64::cast_unsigned));
            }
            ColumnReader::FloatColumnReader(reader) => {
                let values = values(reader, rows)?.into_iter();
                all.extend(values.map(|v| u64::from(v.to_bits())));
            }
            _ => panic!("taken with another type"),
        }
    }
    Some(all)
}

fn values<T: DataType>(mut reader: ColumnReaderImpl<T>, rows: usize) -> Option<Vec<T::T>> {
    let (mut levels, mut repeats, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let all = (Some(&mut levels), Some(&mut repeats));
    match reader.read_records(rows, all.0, all.1, &mut values) {
        Ok((found, ..)) => {
            assert_eq!(found, rows);
            Some(values)
        }
        Err(ParquetError::General(why))
            if why.starts_with("Unexpected ") || why.starts_with("Required field ") =>
        {
            None
        }
        Err(error) => panic!("taken, but not by the library: {error}"),
    }
}
