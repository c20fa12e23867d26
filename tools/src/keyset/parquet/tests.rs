use std::ops::Range;
use std::sync::Arc;

use ::parquet::basic::{Compression, Encoding};
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::parser::parse_message_type;
use ::parquet::schema::types::ColumnPath;

use ::parquet::data_type::{FloatType, Int32Type, Int64Type};

use super::super::layout::{Fault, Place, Sink};
use super::*;

const SCHEMA: &str = "message m {
    required float label;
    optional int32 a;
    required int64 b;
    optional group c (LIST) { repeated group list { optional int64 element; } }
}";

/// Field and value, then the end of a row.
#[derive(Default)]
struct Seen(Vec<Option<(usize, u64)>>);

impl Sink for Seen {
    fn put(&mut self, field: usize, value: u64) -> Result<(), Fault> {
        self.0.push(Some((field, value)));
        Ok(())
    }

    fn end_row(&mut self, _: Range<usize>) -> Result<(), Fault> {
        self.0.push(None);
        Ok(())
    }
}

/// A file of row groups of 5 rows, in which row n has a = n, unless 3 divides n, b = 10 n, and a list of n % 3
/// elements, the first of which is missing.
fn write(path: &Path, rows: i32, properties: WriterProperties) -> Seen {
    let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
    let file = File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
    let mut seen = Seen::default();
    let all: Vec<i32> = (0..rows).collect();
    for rows in all.chunks(5) {
        let mut group = writer.next_row_group().unwrap();
        let a: Vec<i32> = rows.iter().copied().filter(|n| n % 3 != 0).collect();
        let a_levels: Vec<i16> = rows.iter().map(|n| i16::from(n % 3 != 0)).collect();
        let b: Vec<i64> = rows.iter().map(|n| i64::from(n * 10)).collect();
        let (mut c, mut levels, mut repeats) = (Vec::new(), Vec::new(), Vec::new());
        for row in rows {
            // No list, one without a value, and one that has one.
            levels.extend([&[0][..], &[2], &[2, 3]][usize::try_from(row % 3).unwrap()]);
            repeats.extend([&[0][..], &[0], &[0, 1]][usize::try_from(row % 3).unwrap()]);
            c.extend((row % 3 == 2).then_some(i64::from(row * 100)));
        }
        let labels = vec![0.5f32; rows.len()];
        let mut column = group.next_column().unwrap().unwrap();
        let typed = column.typed::<FloatType>();
        typed.write_batch(&labels, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let typed = column.typed::<Int32Type>();
        typed.write_batch(&a, Some(&a_levels), None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let typed = column.typed::<Int64Type>();
        typed.write_batch(&b, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let typed = column.typed::<Int64Type>();
        typed
            .write_batch(&c, Some(&levels), Some(&repeats))
            .unwrap();
        column.close().unwrap();
        group.close().unwrap();
        for n in rows {
            let n64 = u64::try_from(*n).unwrap();
            seen.0.extend((n % 3 == 2).then_some(Some((0, n64 * 100))));
            seen.0.push(Some((1, n64 * 10)));
            seen.0.extend((n % 3 != 0).then_some(Some((2, n64))));
            seen.0.push(None);
        }
    }
    writer.close().unwrap();
    seen
}

/// Reads a file so many bytes at a time.
fn read(path: &Path, chunk_bytes: usize) -> Result<Seen> {
    let asked = ["c", "b", "a"].map(String::from);
    let mut groups = RowGroups::open(path, &asked)?;
    let (mut seen, mut bytes, done) = (Seen::default(), Vec::new(), AtomicU64::new(0));
    while let Some(rows) = groups.next(&mut bytes, chunk_bytes, &done)? {
        assert!(!bytes.is_empty() && bytes.len() <= chunk_bytes);
        rows.parse(&bytes, &Place { path, offset: 0 }, &mut seen)?;
    }
    assert_eq!(done.load(Ordering::Relaxed), path.metadata().unwrap().len());
    Ok(seen)
}

fn properties() -> ::parquet::file::properties::WriterPropertiesBuilder {
    WriterProperties::builder()
}

#[test]
fn rows_are_whole_wherever_chunks_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(Default::default()),
        Compression::ZSTD(Default::default()),
    ];
    for codec in codecs {
        for has_dictionary in [true, false] {
            let properties = properties()
                .set_compression(codec)
                .set_dictionary_enabled(has_dictionary);
            let wanted = write(&path, 23, properties.build());
            for chunk_bytes in (36..120).chain([4096]) {
                let found = read(&path, chunk_bytes).unwrap();
                assert_eq!(found.0, wanted.0, "{codec:?} {chunk_bytes}");
            }
        }
    }
    let error = read(&path, 35).map(drop).unwrap_err().to_string();
    assert!(
        error.contains("row group 0, row 2, column c: found a row of 36 bytes"),
        "{error}"
    );
}

/// Also where the library itself panics.
#[test]
fn no_bytes_cause_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let (mut refused, mut panicked) = (0, 0);
    for properties in [
        properties().build(),
        properties()
            .set_dictionary_enabled(false)
            .set_column_encoding(ColumnPath::from("b"), Encoding::DELTA_BINARY_PACKED)
            .set_compression(Compression::SNAPPY)
            .build(),
    ] {
        write(&path, 7, properties);
        let whole = std::fs::read(&path).unwrap();
        let mut look = |bytes: &[u8], what: &str| {
            // A file that was cut and written again is synced by some file systems.
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, bytes).unwrap();
            if let Err(error) = read(&path, 4096) {
                let told = format!("{error:#}");
                assert!(told.contains("a.parquet"), "{what}: {told}");
                refused += 1;
                panicked += i32::from(told.contains("can't go on"));
            }
        };
        for length in 0..whole.len() {
            look(&whole[..length], &format!("{length} bytes"));
        }
        for at in 0..whole.len() {
            for bits in [1, 0x80] {
                let mut bytes = whole.clone();
                bytes[at] ^= bits;
                look(&bytes, &format!("{bits:#x} at byte {at}"));
            }
        }
    }
    assert!(refused > 1000, "{refused}, {panicked} of these by a panic");
}
