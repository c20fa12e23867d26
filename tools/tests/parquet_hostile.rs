//! Is a Parquet file refused by name whose numbers the library would allocate by? Needs the feature `parquet`.
//!
//! Headers are made here byte by byte: no writer makes such files. `hps-keyset` reads them; an import is the same reader.
#![cfg(feature = "parquet")]
#![expect(clippy::unwrap_used, reason = "test helpers fail the test")]

#[path = "support/import_args.rs"]
mod import_args;
#[path = "keysets/support.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod support;
#[path = "support/thrift.rs"]
mod thrift;

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use flate2::Compression as Level;
use flate2::write::GzEncoder;
use import_args::import_args;
use parquet::basic::Compression;
use parquet::data_type::Int64Type;
use parquet::file::metadata::{ParquetMetaDataReader, ParquetMetaDataWriter};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use support::{keyset, read_i64, run};
use thrift::*;

const NONE: Compression = Compression::UNCOMPRESSED;
const SNAPPY: Compression = Compression::SNAPPY;
const FLAT: &str = "message m { required int64 key; }";
const LISTS: &str =
    "message m { required group key (LIST) { repeated group list { required int64 element; } } }";

/// A file whose one column has these pages, and in the footer so many rows and values.
fn file(schema: &str, codec: Compression, pages: &[u8], rows: i64, values: i64) -> Vec<u8> {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut whole = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut whole, schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let typed = column.typed::<Int64Type>();
    typed.write_batch(&[1], Some(&[1]), Some(&[0])).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    let (_, footer) = parts(&whole);
    let metadata = ParquetMetaDataReader::decode_metadata(footer).unwrap();
    let group = metadata.row_group(0).clone();
    let column = group.column(0).clone().into_builder();
    let column = column
        .set_compression(codec)
        .set_num_values(values)
        .set_dictionary_page_offset(None)
        .set_data_page_offset(4)
        .set_total_compressed_size(i64::try_from(pages.len()).unwrap());
    let group = group.into_builder().set_num_rows(rows);
    let group = group.set_column_metadata(vec![column.build().unwrap()]);
    let metadata = metadata.into_builder();
    let metadata = metadata.set_row_groups(vec![group.build().unwrap()]);
    let mut made = [b"PAR1", pages].concat();
    let metadata = metadata.build();
    ParquetMetaDataWriter::new(&mut made, &metadata)
        .finish()
        .unwrap();
    made
}

/// Body and footer.
fn parts(file: &[u8]) -> (&[u8], &[u8]) {
    let end = file.len() - 8;
    let length = u32::from_le_bytes(*file[end..].first_chunk().unwrap());
    let (body, rest) = file.split_at(end - usize::try_from(length).unwrap());
    (body, &rest[..rest.len() - 8])
}

fn with_footer(footer: &[u8]) -> Vec<u8> {
    let length = u32::try_from(footer.len()).unwrap().to_le_bytes();
    [b"PAR1", footer, &length, b"PAR1"].concat()
}

/// A page of plain values, whose header says what it is given.
fn data(uncompressed: i64, compressed: i64, values: i64, encoding: i64, bytes: &[u8]) -> Vec<u8> {
    let about = [int(1, values), int(2, encoding), int(3, 3), int(4, 3)];
    let header = [
        int(1, 0),
        int(2, uncompressed),
        int(3, compressed),
        under(5, &about),
    ];
    [&ended(&header)[..], bytes].concat()
}

fn dictionary(values: i64, bytes: &[u8]) -> Vec<u8> {
    let length = i64::try_from(bytes.len()).unwrap();
    let about = [int(1, values), int(2, 0)];
    let header = [int(1, 2), int(2, length), int(3, length), under(7, &about)];
    [&ended(&header)[..], bytes].concat()
}

/// A page of the second version, with lengths of its levels.
fn second(definition: i64, repetition: i64, bytes: &[u8]) -> Vec<u8> {
    let length = i64::try_from(bytes.len()).unwrap();
    second_of(length, definition, repetition, bytes)
}

fn second_of(uncompressed: i64, definition: i64, repetition: i64, bytes: &[u8]) -> Vec<u8> {
    let length = i64::try_from(bytes.len()).unwrap();
    let about = [
        int(1, 1),
        int(2, 0),
        int(3, 1),
        int(4, 0),
        int(5, definition),
        int(6, repetition),
    ];
    let header = [
        int(1, 3),
        int(2, uncompressed),
        int(3, length),
        under(8, &about),
    ];
    [&ended(&header)[..], bytes].concat()
}

/// Runs the tool on a file; the one line that it says, and that it takes no time of note.
fn refused(folder: &Path, name: &str, bytes: &[u8]) -> String {
    fs::write(folder.join(name), bytes).unwrap();
    let line = format!("extract -o out --from parquet --columns key {name}");
    let mut tool = keyset(folder, &line.split(' ').collect::<Vec<_>>());
    let output = tool.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{name}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{name}: {stderr}");
    let place = format!("{name}: corrupt at byte ");
    assert!(stderr.contains(&place), "{name}: {stderr}");
    assert!(!folder.join("out").exists(), "{name}");
    stderr
}

fn check(cases: &[(&str, Vec<u8>, &str)]) {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes, told) in cases {
        let said = refused(dir.path(), name, bytes);
        assert!(said.contains(told), "{name}: {told}: {said}");
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Level::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn pages_as_their_headers_say_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let values: Vec<u8> = (5..8i64).flat_map(i64::to_le_bytes).collect();
    let squeezed = gzip(&values);
    let length = i64::try_from(squeezed.len()).unwrap();
    let numbers = [&[2][..], &[3, 0b10_01_00, 0]].concat();
    let index = ended(&[int(1, 1), int(2, 4), int(3, 4), under(6, &[])]);
    let cases = [
        (NONE, data(24, 24, 3, 0, &values)),
        (
            Compression::GZIP(Default::default()),
            data(24, length, 3, 0, &squeezed),
        ),
        (
            NONE,
            [dictionary(3, &values), data(4, 4, 3, 8, &numbers)].concat(),
        ),
        // An index is passed over.
        (
            NONE,
            [&index[..], &[0xff; 4], &data(24, 24, 3, 0, &values)].concat(),
        ),
    ];
    for (codec, pages) in cases {
        fs::write(dir.path().join("a"), file(FLAT, codec, &pages, 3, 3)).unwrap();
        let line = "extract -o out --key raw --from parquet --columns key a";
        run(dir.path(), &line.split(' ').collect::<Vec<_>>(), 0);
        assert_eq!(read_i64(&dir.path().join("out")), [5, 6, 7]);
        fs::remove_file(dir.path().join("out")).unwrap();
    }
}

#[test]
fn a_page_header_that_is_none_is_named_with_its_place() {
    let about = [int(1, 1), int(2, 0), int(3, 3), int(4, 3)];
    let page = |more: Vec<u8>| {
        let header = [int(1, 0), int(2, 8), int(3, 8), under(5, &about), more];
        file(FLAT, NONE, &[&ended(&header)[..], &[0; 8]].concat(), 1, 1)
    };
    let raw = |bytes: &[u8]| file(FLAT, NONE, bytes, 1, 1);
    // Lists in each other, each of one.
    let deep = [field(9, 20), vec![0x19; 40], vec![0x03]].concat();
    let cases = [
        (
            "cut",
            raw(&[0x15]),
            "at byte 5: row group 0, column key, rows from 0: page header: it ends before",
        ),
        ("long", raw(&[0xff; 40]), "page header: "),
        (
            "number",
            raw(&[&[0x15][..], &[0xff; 12]].concat()),
            "found a number of more than 64 bits",
        ),
        (
            "wide",
            raw(&[0x15, 0xfe, 0xff, 0xff, 0xff, 0x1f]),
            "which its type does not have",
        ),
        (
            "text",
            page([field(8, 20), varint(1 << 40)].concat()),
            "found text of 1099511627776 bytes",
        ),
        (
            "list",
            page([field(9, 20), vec![0xf5], varint(1 << 30)].concat()),
            "found a list of 1073741824 elements in",
        ),
        // To the library a truth in a list is of no bytes: two thousand million of them take a while.
        (
            "truths",
            page([field(9, 20), vec![0x31, 0, 0, 0]].concat()),
            "found a list of truths",
        ),
        (
            "truths-map",
            page([field(11, 20), vec![1, 0x11, 0, 0]].concat()),
            "found a list of truths",
        ),
        (
            "deep",
            page(deep),
            "found more than 32 structs and lists in each other",
        ),
        (
            "kind",
            raw(&ended(&[int(1, 9), int(2, 8), int(3, 8)])),
            "found a page of kind 9",
        ),
        (
            "none",
            raw(&ended(&[int(1, 0), int(2, 8), int(3, 8)])),
            "found no field 1 of DataPageHeader",
        ),
        (
            "encoding",
            file(FLAT, NONE, &data(8, 8, 1, 77, &[0; 8]), 1, 1),
            "found encoding 77, which is not known",
        ),
        (
            "other-type",
            raw(&ended(&[
                int(1, 0),
                int(2, 8),
                int(3, 8),
                [field(8, 5), vec![0]].concat(),
            ])),
            "found text in field 5 of PageHeader, expected a struct",
        ),
    ];
    check(&cases);
}

#[test]
fn a_page_is_as_large_as_its_header_says() {
    let gz = Compression::GZIP(Default::default());
    let zstd = Compression::ZSTD(Default::default());
    let one = |codec, page: Vec<u8>| file(FLAT, codec, &page, 1, 1);
    let bomb = gzip(&vec![0; 16 << 20]);
    let bomb_length = i64::try_from(bomb.len()).unwrap();
    let few = gzip(&[0; 4]);
    let few_length = i64::try_from(few.len()).unwrap();
    // A frame of 4 bytes that are repeated 1 << 17 times, and one that is as it is.
    let repeated = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58, 0x03, 0x00, 0x10, 0x00];
    // Eight bytes as they are, of which the header knows sixteen.
    let plain = [&[8, 7 << 2][..], &[1; 8]].concat();
    let most = i64::from(i32::MAX);
    let cases = [
        (
            "beyond",
            one(NONE, data(8, 1000, 1, 0, &[0; 8])),
            "found a page of 1000 bytes, its column has 8 more",
        ),
        (
            "below",
            one(NONE, data(8, -1, 1, 0, &[0; 8])),
            "found -1 in field 3 of PageHeader",
        ),
        (
            "below-all",
            one(NONE, data(-1, 8, 1, 0, &[0; 8])),
            "found -1 in field 2 of PageHeader",
        ),
        (
            "below-values",
            one(NONE, data(8, 8, -1, 0, &[0; 8])),
            "found -1 in field 1 of DataPageHeader",
        ),
        (
            "huge",
            one(zstd, data(most, 10, 1, 0, &repeated)),
            "found a page of 2147483647 bytes when it is decompressed, at most 268435456 are read",
        ),
        (
            "snappy",
            one(SNAPPY, data(100 << 20, 10, 1, 0, &plain)),
            "found 104857600 bytes that are made of 10, more than can be",
        ),
        (
            "snappy-other",
            one(SNAPPY, data(16, 10, 1, 0, &plain)),
            "found fewer bytes than the 16 that its header has",
        ),
        (
            "gzip",
            one(gz, data(100 << 20, few_length, 1, 0, &few)),
            "more than can be",
        ),
        (
            "gzip-more",
            one(gz, data(8, bomb_length, 1, 0, &bomb)),
            "found more bytes than the 8 that its header has",
        ),
        (
            "gzip-fewer",
            one(gz, data(8, few_length, 1, 0, &few)),
            "found fewer bytes than the 8",
        ),
        (
            "zstd-more",
            one(zstd, data(8, 10, 1, 0, &repeated)),
            "row group 0, column key, rows from 0: ",
        ),
        (
            "levels",
            one(NONE, second(most, most, &[0; 8])),
            "found 4294967294 bytes of levels in a page of 8",
        ),
        (
            "levels-other",
            one(NONE, second_of(4, 5, 0, &[0; 8])),
            "found 5 bytes of levels in a page of 4",
        ),
        (
            "levels-packed",
            one(SNAPPY, second(11, 0, &plain)),
            "found 11 bytes of levels in a page of 10",
        ),
        (
            "values",
            one(NONE, data(8, 8, 1000, 0, &[0; 8])),
            "found a page of 1000 values, the footer has 1 more",
        ),
        (
            "dictionary",
            one(NONE, dictionary(1 << 30, &[0; 8])),
            "found a dictionary of 1073741824 values in 8 bytes",
        ),
        (
            "no-dictionary",
            one(NONE, data(2, 2, 1, 8, &[0, 2])),
            "no dictionary before it",
        ),
    ];
    check(&cases);
}

/// A list of any length takes four bytes: its levels.
#[test]
fn lists_that_no_memory_holds_are_refused_before_they_are_decoded() {
    // Of each list a begin, and what goes on.
    let lists = |rows: i64, length: i64| {
        let list = [
            vec![2, 0],
            varint(u64::try_from(length - 1).unwrap() << 1),
            vec![1],
        ]
        .concat();
        let levels = list.repeat(usize::try_from(rows).unwrap());
        let bytes = u32::try_from(levels.len()).unwrap().to_le_bytes();
        let levels = [&bytes[..], &levels, &[0; 8]].concat();
        let size = i64::try_from(levels.len()).unwrap();
        let page = data(size, size, rows * length, 0, &levels);
        file(LISTS, NONE, &page, rows, rows * length)
    };
    check(&[
        (
            "long",
            lists(1, 1 << 30),
            "found a list of 1073741824 numbers or more",
        ),
        (
            "together",
            lists(1024, 100_000),
            "found 1024 rows with lists of more than 33554432 numbers together",
        ),
    ]);
}

#[test]
fn a_footer_that_claims_more_than_it_has_is_named() {
    let element =
        |name: &[u8], more: &[Vec<u8>]| ended(&[&[int(3, 0), text(4, name)], more].concat());
    let schema = |elements: &[Vec<u8>]| {
        let all = [
            vec![int(1, 1)],
            vec![list(2, elements)],
            vec![long(3, 0), list(4, &[])],
        ]
        .concat();
        with_footer(&ended(&all))
    };
    let leaf = ended(&[int(1, 2), int(3, 0), text(4, b"key")]);
    let group = |children| element(b"m", &[int(5, children)]);
    let deep = [vec![group(1); 70], vec![leaf.clone()]].concat();
    let long = element(&vec![b'a'; 1 << 20], &[int(5, 100)]);
    let named = [vec![group(1), long], vec![leaf.clone(); 100]].concat();
    let huge = i64::from(i32::MAX);
    let claims = |begin: Vec<u8>| with_footer(&[int(1, 1), begin].concat());
    let good = file(FLAT, NONE, &[], 0, 0);
    let mut torn = good.clone();
    let length = torn.len() - 8;
    torn[length..length + 4].copy_from_slice(&[0xff, 0xff, 0xff, 0x7f]);
    let cases = [
        (
            "length",
            torn,
            "footer: found a length of 2147483647 bytes, the file has",
        ),
        (
            "children",
            schema(&[group(huge), leaf.clone()]),
            "schema: element 0 claims 2147483647 children, 1 elements are behind it",
        ),
        (
            "below",
            schema(&[group(-1), leaf.clone()]),
            "schema: element 0 claims -1 children",
        ),
        (
            "deep",
            schema(&deep),
            "schema: found more than 64 groups in each other",
        ),
        (
            "ends",
            schema(&[group(2), group(1), leaf.clone()]),
            "schema: it ends before its groups do",
        ),
        (
            "names",
            schema(&named),
            "schema: found columns with names of more than 67108864 bytes",
        ),
        (
            "list",
            claims([field(9, 2), vec![0xfc], varint(1 << 30)].concat()),
            "found a list of 1073741824 elements in",
        ),
        (
            "type",
            claims(text(2, b"abc")),
            "found text in field 2 of FileMetaData, expected a list",
        ),
        (
            "elements",
            claims([field(9, 2), vec![0x18, 0]].concat()),
            "found a list of text, expected a struct",
        ),
        (
            "empty",
            claims(list(5, &[vec![0]])),
            "found KeyValue of 1 bytes, it has more",
        ),
        (
            "empty-key",
            claims(list(5, &[ended(&[text(1, b"k")]), vec![0]])),
            "found KeyValue of 1 bytes, it has more",
        ),
        ("cut", claims(text(2, b"")[..1].to_vec()), "footer: "),
        (
            "beyond",
            claims([field(5, i16::MAX), vec![0], vec![0x15, 0]].concat()),
            "found a field beyond all numbers",
        ),
        (
            "twice",
            claims(int(1, 1)),
            "found field 1 of FileMetaData twice",
        ),
        (
            "list-kind",
            claims([field(9, 20), vec![0x0f]].concat()),
            "found a list of type 15, which there is not",
        ),
        (
            "kind",
            claims(field(14, 20)),
            "found type 14, which there is not",
        ),
    ];
    check(&cases);
    // Bytes of a file that are nowhere on a disk.
    let dir = tempfile::tempdir().unwrap();
    let mut large = File::create(dir.path().join("large")).unwrap();
    large.write_all(b"PAR1").unwrap();
    large.set_len(129 << 20).unwrap();
    let mut end = File::options()
        .append(true)
        .open(dir.path().join("large"))
        .unwrap();
    end.write_all(&u32::to_le_bytes((129 << 20) - 4)).unwrap();
    end.write_all(b"PAR1").unwrap();
    let line = "extract -o out --from parquet --columns key large";
    let output = keyset(dir.path(), &line.split(' ').collect::<Vec<_>>())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("footer: found 135266300 bytes, at most 134217728 are read"),
        "{said}"
    );
    assert_eq!(output.status.code(), Some(4));
}

/// Columns of the same pages: an import has the same reader.
#[test]
fn an_import_refuses_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let args = |name: &str| import_args("--optimizer sgd", &dir.path().join(name));
    let schema = "message m { required int64 key; required group weights (LIST) { repeated group list { required \
                  float element; } } }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut good = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut good, schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column
        .typed::<Int64Type>()
        .write_batch(&[7], None, None)
        .unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let typed = column.typed::<parquet::data_type::FloatType>();
    typed
        .write_batch(&[0.5, 1.5], Some(&[1, 1]), Some(&[0, 1]))
        .unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    fs::write(dir.path().join("good"), &good).unwrap();
    assert_eq!(
        hps_tools::import::rows(&args("good")).unwrap().rows.len(),
        1
    );
    let (body, footer) = parts(&good);
    let mut larger = good.clone();
    assert_eq!(larger[4..8], [0x15, 4, 0x15, 16], "a dictionary of 8 bytes");
    larger[9] = 0x7e;
    fs::write(dir.path().join("page"), larger).unwrap();
    let mut claimed = footer.to_vec();
    assert_eq!(claimed[..3], [0x15, 2, 0x19], "a version, and the schema");
    claimed[3] |= 0xf0;
    let length = u32::try_from(claimed.len()).unwrap().to_le_bytes();
    let claimed = [body, &claimed, &length, b"PAR1"].concat();
    fs::write(dir.path().join("footer"), claimed).unwrap();
    for (name, told) in [
        ("page", "found a page of 63 bytes, its column has"),
        ("footer", "footer: "),
    ] {
        let said = hps_tools::import::rows(&args(name)).map(drop).unwrap_err();
        let said = format!("{said:#}");
        assert!(
            said.contains(told) && said.contains("corrupt at byte"),
            "{name}: {said}"
        );
    }
}
