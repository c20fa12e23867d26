//! Does `hps-keyset` read Parquet as it is written elsewhere, and say what is wrong with a file? Needs the
//! feature `parquet`.
//!
//! `data/parquet_sets.py` writes data sets of NVTabular's layout with pyarrow; files for errors are written here.
#![cfg(feature = "parquet")]
#![expect(clippy::unwrap_used, reason = "test helpers fail the test")]

#[path = "support/python.rs"]
mod python;
#[path = "../../tests/common/skip.rs"]
mod skip;
#[path = "keysets/support.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod support;

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use parquet::data_type::{Int32Type, Int64Type};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use python::python_with;
use support::{expected, keyset, read_i64, run, sort_u};

#[test]
fn data_sets_that_pyarrow_wrote_give_their_keys() {
    let missing =
        "parquet_sets.py: no python3 that has pyarrow: Parquet files of others are not read";
    let Some(python) = python_with("pyarrow, numpy", missing) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let set = dir.path().join("set");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/parquet_sets.py");
    let output = Command::new(python).arg(script).arg(&set).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let out = dir.path().join("out");
    let extract = |line: &str| {
        let line = format!("extract --memory 256KiB -o out --from parquet {line}");
        run(dir.path(), &line.split(' ').collect::<Vec<_>>(), 0)
    };
    let all: Vec<String> = (0..6)
        .map(|number| format!("part_{number}.parquet"))
        .collect();
    for file in &all {
        let values = expected(&set, std::slice::from_ref(file));
        assert!(values.len() > 8000, "{}", values.len());
        let said = extract(&format!("set/{file}"));
        let wanted = sort_u(values.iter().map(|(field, value)| field << 32 | value));
        assert_eq!(read_i64(&out), wanted, "{file}: {said}");
        // Two columns by name, in another order than in the file.
        extract(&format!("--columns list,c32 set/{file}"));
        let wanted = values.iter().filter(|(field, _)| [0, 4].contains(field));
        let wanted = sort_u(wanted.map(|(field, value)| u64::from(*field == 0) << 32 | value));
        assert_eq!(read_i64(&out), wanted, "{file}");
    }
    let values = expected(&set, &all);
    extract("--file-list --key raw set/_file_list.txt");
    assert_eq!(
        read_i64(&out),
        sort_u(values.iter().map(|(_, value)| *value))
    );
    extract("--file-list --per-table set/_file_list.txt");
    for field in 0..5 {
        let wanted = sort_u(
            values
                .iter()
                .filter(|v| v.0 == field)
                .map(|(f, v)| f << 32 | v),
        );
        let path = dir.path().join(format!("out.{field}.keyset"));
        assert_eq!(read_i64(&path), wanted, "{field}");
    }
    let line = "split --rows 5000 -o pass --from parquet --file-list set/_file_list.txt";
    run(dir.path(), &line.split(' ').collect::<Vec<_>>(), 0);
    let passes = (0..3).flat_map(|pass| read_i64(&dir.path().join(format!("pass.{pass}.keyset"))));
    let wanted = sort_u(values.iter().map(|(field, value)| field << 32 | value));
    assert_eq!(sort_u(passes), wanted);
}

/// A file of two row groups of three rows: `a` INT32, `b` INT64, and what the schema has besides is left out.
fn write(path: &Path, a: [i32; 3], b: [i64; 3]) {
    let schema = "message m { required int32 a; required int64 b; }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let file = File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::default()).unwrap();
    for (a, b) in [([1; 3], [1; 3]), (a, b)] {
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let typed = column.typed::<Int32Type>();
        typed.write_batch(&a, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let typed = column.typed::<Int64Type>();
        typed.write_batch(&b, None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
}

/// A file without rows, of a schema.
fn empty(path: &Path, columns: &str) {
    let schema = parse_message_type(&format!("message m {{ {columns} }}")).unwrap();
    let file = File::create(path).unwrap();
    let writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::default()).unwrap();
    writer.close().unwrap();
}

#[test]
fn bad_parquet_is_named_with_its_place_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    write(&folder.join("good"), [1, 2, 3], [4, 5, 6]);
    write(&folder.join("wide"), [1, 2, 3], [4, 1 << 32, 6]);
    write(&folder.join("negative"), [1, 2, -3], [4, 5, 6]);
    let good = fs::read(folder.join("good")).unwrap();
    fs::write(folder.join("cut"), &good[..good.len() - 1]).unwrap();
    let mut torn = good.clone();
    torn.truncate(good.len() - 8);
    torn.extend([0xff, 0xff, 0, 0]);
    torn.extend(b"PAR1");
    fs::write(folder.join("torn"), torn).unwrap();
    fs::write(folder.join("text"), "a\tb\tc\td\te\tf\n").unwrap();
    fs::write(folder.join("short"), "PAR1").unwrap();
    empty(&folder.join("twice"), "required int32 a; required int64 a;");
    empty(
        &folder.join("types"),
        "required double d; required binary s (UTF8); required int32 date (DATE); repeated int32 r;
         optional group old (LIST) { repeated int32 element; }
         optional group deep (LIST) { repeated group list { optional group element (LIST) {
             repeated group list { optional int32 element; } } } }
         optional group struct { optional int32 x; }",
    );
    let metadata = |name: &str, cats: &str| {
        let folder = folder.join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("a"), &good).unwrap();
        fs::write(folder.join("_metadata.json"), cats).unwrap();
    };
    metadata("m1", "{");
    metadata("m2", r#"{"conts": []}"#);
    metadata("m3", r#"{"cats": [{"index": 1}]}"#);
    metadata("m4", r#"{"cats": [{"col_name": "c", "index": 1}]}"#);
    metadata("m5", r#"{"cats": [{"col_name": "b", "index": 0}]}"#);
    metadata("m6", r#"{"cats": [{"col_name": "b"}, {"col_name": "b"}]}"#);
    let stats = r#""file_stats": [{"file_name": "a", "num_rows": 7}]"#;
    metadata(
        "m7",
        &format!(r#"{{{stats}, "cats": [{{"col_name": "b", "index": 1}}]}}"#),
    );
    let cases: &[(&str, i32, &[&str])] = &[
        ("good", 16, &["good: no _metadata.json", "--columns"]),
        ("--columns a -", 16, &["standard input"]),
        (
            "--columns a,c good",
            16,
            &["good: found no column c; there are: a, b"],
        ),
        (
            "--columns a,a good",
            16,
            &["--columns: column a is named twice"],
        ),
        (
            "--columns a twice",
            4,
            &["twice: corrupt at byte 0: found two columns of the name a"],
        ),
        (
            "--columns a text",
            4,
            &["text: corrupt at byte 0: found a\\tb\\t, expected PAR1"],
        ),
        (
            "--columns a short",
            4,
            &["short: corrupt at byte 0: found 4 bytes"],
        ),
        (
            "--columns a cut",
            4,
            &[
                "cut: corrupt at byte",
                "found \\x00PAR, expected PAR1",
                "cut off",
            ],
        ),
        ("--columns a torn", 4, &["torn: corrupt at byte", "footer"]),
        (
            "--columns d types",
            4,
            &["types", "column d: found DOUBLE, expected integers"],
        ),
        (
            "--columns s types",
            4,
            &["column s: found BYTE_ARRAY (UTF8), expected"],
        ),
        (
            "--columns date types",
            4,
            &["column date: found INT32 (Date)"],
        ),
        ("--columns r types", 4, &["column r: found repeated INT32"]),
        (
            "--columns old types",
            4,
            &["column old: found a group (List) of [repeated INT32]"],
        ),
        ("--columns deep types", 4, &["column deep: found a group"]),
        (
            "--columns struct types",
            4,
            &["column struct: found a group of [INT32]"],
        ),
        (
            "--columns a,b wide",
            4,
            &[
                "wide: corrupt at byte",
                "row group 1, row 1, column b: field 1 has value 4294967296",
            ],
        ),
        (
            "--columns a,b negative",
            4,
            &["row group 1, row 2, column a: found -3"],
        ),
        (
            "m1/a",
            4,
            &["m1/_metadata.json", "found no JSON", "line 1 column 1"],
        ),
        ("m2/a", 4, &["m2/_metadata.json", "found no list `cats`"]),
        ("m3/a", 4, &["cats[0]: found no text `col_name`"]),
        ("m4/a", 4, &["m4/a", "found no column c; there are: a, b"]),
        (
            "m5/a",
            4,
            &[
                "m5/a",
                "column b: found it as number 1, _metadata.json has it as number 0",
            ],
        ),
        ("m6/a", 4, &["m6/_metadata.json", "column b is named twice"]),
        ("m7/a", 4, &["m7/a", "found 6 rows, _metadata.json has 7"]),
    ];
    for (line, code, told) in cases {
        let line = format!("extract -o out --from parquet {line}");
        let output = keyset(folder, &line.split(' ').collect::<Vec<_>>());
        let output = { output }.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(*code), "{line}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{line}: {stderr}");
        for told in *told {
            assert!(stderr.contains(told), "{line}: {stderr}: {told}");
        }
        assert!(!folder.join("out").exists(), "{line}");
    }
    let line = "extract -o out --from parquet --columns b,a good";
    run(folder, &line.split(' ').collect::<Vec<_>>(), 0);
    let keys = [1, 4, 5, 6, (1 << 32) + 1, (1 << 32) + 2, (1 << 32) + 3];
    assert_eq!(read_i64(&folder.join("out")), keys);
}
