//! Does `extract` refuse what it can't read, and say what is wrong, where, and the way out?

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

use super::support::{criteo, keyset, names, run, write_i64};

/// A Norm file with sums: 1 label, 1 dense value, 2 slots; in each sample the keys 1 2 | 3.
fn norm(samples: usize) -> Vec<u8> {
    let unit = |bytes: Vec<u8>| {
        let length = u32::try_from(bytes.len()).unwrap().to_le_bytes();
        let sum = bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        [&length[..], &bytes, &[sum]].concat()
    };
    let header = [1, samples as u64, 1, 1, 2, 0, 0, 0];
    let mut file = unit(
        header
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect(),
    );
    for _ in 0..samples {
        let sample = [0u32, 0, 2, 1, 2, 1, 3];
        file.extend(unit(
            sample
                .iter()
                .flat_map(|number| number.to_le_bytes())
                .collect(),
        ));
    }
    file
}

/// An array of i64, of a shape, with so many values, all 7.
fn npy(shape: &str, values: usize) -> Vec<u8> {
    let header = format!("{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}");
    let length = u16::try_from(header.len()).unwrap().to_le_bytes();
    let start = [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes()].concat();
    let values = std::iter::repeat_n(7u64.to_le_bytes(), values).flatten();
    start.into_iter().chain(values).collect()
}

#[test]
fn bad_input_is_named_with_its_place_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let changed = |at: usize, value: u8| {
        let mut file = norm(3);
        file[at] = value;
        file
    };
    let good = criteo(3, 1, true);
    let mut cut_gz = {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(good.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    cut_gz.truncate(cut_gz.len() / 2);
    let norm_flags = "--from norm --dtype u32 --key raw";
    let tsv = "--from criteo-tsv";
    let keys = "--from keys --dtype i64";
    let second = good.len();
    let other_columns = good.clone() + &criteo(1, 1, false);
    let slots = format!(
        "{tsv} --key offset --slot-sizes {}",
        vec!["1"; 26].join(",")
    );
    // Name, bytes, flags, exit code, what is told.
    let cases: Vec<(&str, Vec<u8>, &str, i32, String)> = vec![
        (
            "empty",
            vec![],
            tsv,
            8,
            "the 0 records of the input have no key".into(),
        ),
        (
            "columns",
            b"1\t2\n".to_vec(),
            tsv,
            4,
            "byte 0: the first line has 2 columns".into(),
        ),
        (
            "mixed",
            other_columns.into_bytes(),
            tsv,
            4,
            format!("the line that begins at byte {second}"),
        ),
        ("list", b"1\na.tsv\n".to_vec(), tsv, 4, "--file-list".into()),
        (
            "long",
            vec![b'1'; 100_000],
            tsv,
            4,
            "no line ends within".into(),
        ),
        (
            "nokey",
            format!("0{}\n", "\t".repeat(39)).into_bytes(),
            tsv,
            8,
            "the 1 record of".into(),
        ),
        ("cut.gz", cut_gz, tsv, 4, "gzip".into()),
        ("plain.gz", good.clone().into_bytes(), tsv, 4, "gzip".into()),
        (
            "size",
            vec![0; 20],
            keys,
            4,
            "byte 16: found 4 bytes, expected a key of 8".into(),
        ),
        ("trap", vec![0; 20], keys, 4, "--int32_keyset False".into()),
        ("none", vec![], keys, 4, "an empty keyset".into()),
        (
            "wide",
            vec![1; 8],
            "--from keys --input-dtype i64 --dtype u32",
            8,
            "does not fit into 32 bits".into(),
        ),
        (
            "odd",
            vec![0; 7],
            "--from keys --dtype u32",
            4,
            "byte 4: found 3 bytes".into(),
        ),
        (
            "raw",
            vec![0; 30],
            "--from raw --labels 1 --dense 1 --slots 2",
            4,
            "a sample of 16: 30 bytes".into(),
        ),
        (
            "sum",
            changed(69 + 8, 9),
            norm_flags,
            4,
            "byte 69: checksum of a unit of 28 bytes".into(),
        ),
        (
            "header",
            changed(4 + 16, 9),
            norm_flags,
            4,
            "byte 0: checksum of a unit of 64 bytes".into(),
        ),
        (
            "length",
            changed(69 + 3, 0xff),
            norm_flags,
            4,
            "byte 69: length of a unit: found -".into(),
        ),
        (
            "short",
            norm(3)[..150].to_vec(),
            norm_flags,
            4,
            "byte 135: found 15 bytes, expected a sample of 33".into(),
        ),
        (
            "count",
            [norm(2), norm(1)[69..].to_vec()].concat(),
            norm_flags,
            4,
            "found 3 samples, number_of_records in the header is 2".into(),
        ),
        (
            "type",
            norm(3),
            "--from norm --dtype i64 --key raw",
            4,
            "wrong --dtype?".into(),
        ),
        (
            "unframed",
            norm(3)[4..].to_vec(),
            norm_flags,
            4,
            "error_check: found 1, expected 0".into(),
        ),
        (
            "rows.npy",
            npy("(3,)", 2),
            "--from npy",
            4,
            "found 16 bytes of data, the header promises 24".into(),
        ),
        (
            "torn.npy",
            npy("(3, 2)", 3),
            "--from npy",
            4,
            "found 8 bytes, expected a row of 16: cut off".into(),
        ),
        (
            "npy",
            b"PK\x03\x04".to_vec(),
            "--from npy",
            4,
            "found no \\x93NUMPY".into(),
        ),
        (
            "slot",
            good.into_bytes(),
            &slots,
            4,
            "its slot in --slot-sizes has 1 values".into(),
        ),
    ];
    for (name, bytes, flags, code, told) in cases {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        let line = format!("extract --memory 256KiB {flags} -o out --json {name}");
        let args: Vec<&str> = line.split(' ').collect();
        let report: Value = serde_json::from_str(&run(dir.path(), &args, code)).unwrap();
        let error = report["error"].as_str().unwrap();
        assert!(error.contains(&told), "{line}: {error}");
        assert!(error.contains(name) || code == 8, "{line}: {error}");
        fs::remove_file(path).unwrap();
        assert_eq!(names(dir.path()), [""; 0], "{line}");
    }
}

#[test]
fn arguments_that_do_not_fit_together_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    write_i64(&dir.path().join("in"), &[1, 2]);
    fs::write(dir.path().join("a.tsv"), criteo(2, 1, true)).unwrap();
    for (flags, told) in [
        ("--from keys in", "need --dtype"),
        ("--from norm in", "need --dtype"),
        ("--from raw in", "--labels, --dense and --slots"),
        ("--from raw --labels 1 --dense 1 --slots 0 in", "at least 1"),
        ("--from keys --dtype i64 --columns a in", "--from parquet"),
        #[cfg(not(feature = "parquet"))]
        ("--from parquet --columns a in", "--features parquet"),
        ("--from criteo-tsv --slots 3 a.tsv", "are for --from raw"),
        (
            "--from criteo-tsv --input-dtype u32 a.tsv",
            "--input-dtype is for",
        ),
        (
            "--from criteo-tsv --dtype u32 a.tsv",
            "no room for the field",
        ),
        ("--from criteo-tsv --key offset a.tsv", "need each other"),
        ("--from criteo-tsv --slot-sizes 1 a.tsv", "need each other"),
        (
            "--from criteo-tsv --key offset --slot-sizes 1,2 a.tsv",
            "2 sizes, the data has 26 fields",
        ),
        ("--from keys --dtype i64 --key field in", "only --key raw"),
        ("--from keys --dtype i64 --per-table in", "not --per-table"),
        ("--from keys --dtype i64 - -", "only once"),
        (
            "--from keys --dtype i64 --memory 100KiB in",
            "at least 256KiB",
        ),
        (
            "--from keys --dtype i64 --threads 0 in",
            "a number from 1 to 1024",
        ),
        ("--from keys --dtype i64", "required"),
    ] {
        let line = format!("extract -o out --json {flags}");
        let args: Vec<&str> = line.split(' ').collect();
        let told_all = run(dir.path(), &args, 16);
        assert!(told_all.contains(told), "{line}: {told_all}");
    }
    for (flags, told) in [
        ("--from keys --dtype i64 gone", "gone: No such file"),
        ("--from keys --dtype i64 .", "is a directory"),
        (
            "--from keys --dtype i64 --file-list in",
            "begins with the number of files",
        ),
        (
            "--from keys --dtype i64 --file-list a.tsv",
            "begins with the number of files",
        ),
    ] {
        let line = format!("extract -o out --json {flags}");
        let output = keyset(dir.path(), &line.split(' ').collect::<Vec<_>>())
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr).to_lowercase();
        assert!(error.contains(&told.to_lowercase()), "{line}: {error}");
    }
    assert_eq!(names(dir.path()), ["a.tsv", "in"]);
}

#[test]
fn the_first_error_is_told_whichever_thread_meets_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut text = criteo(4000, 2, true);
    let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
    for line in [1000, 2000, 3000] {
        text.replace_range(ends[line] - 1..ends[line], "\tx");
    }
    fs::write(dir.path().join("a.tsv"), &text).unwrap();
    let told: BTreeSet<String> = (0..10)
        .map(|_| {
            let args = "extract --from criteo-tsv --memory 256KiB --threads 2 -o out --json a.tsv";
            run(dir.path(), &args.split(' ').collect::<Vec<_>>(), 4)
        })
        .collect();
    let line = format!("the line that begins at byte {}", ends[999] + 1);
    assert!(
        told.len() == 1 && told.first().unwrap().contains(&line),
        "{told:?}"
    );
}
