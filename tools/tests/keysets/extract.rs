//! Does `extract` give the keys that are in the data, within its memory, and leave nothing half?

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

use super::python::python_with;
use super::support::{
    Draw, check_code, criteo, expected, keyset, names, read_i64, read_u32, run, sort_u, values_of,
    write_i64,
};

fn by_field(text: &str) -> Vec<u64> {
    sort_u(
        values_of(text)
            .iter()
            .map(|(field, value)| field << 32 | value),
    )
}

#[test]
fn criteo_text_gives_what_sort_gives_at_any_memory() {
    let seed = super::seed::fresh("criteo_text_gives_what_sort_gives_at_any_memory");
    let dir = tempfile::tempdir().unwrap();
    let text = criteo(12_000, seed, true);
    fs::write(dir.path().join("a.tsv"), &text).unwrap();
    let wanted = by_field(&text);
    for (memory, threads, has_levels) in [
        ("256KiB", "2", true),
        ("256KiB", "1", false),
        ("1MiB", "7", true),
        ("4MiB", "3", false),
        ("64MiB", "2", false),
    ] {
        let line = format!(
            "extract --from criteo-tsv --memory {memory} --threads {threads} -o out --json a.tsv"
        );
        let args: Vec<&str> = line.split(' ').collect();
        let report: Value = serde_json::from_str(&run(dir.path(), &args, 0)).unwrap();
        assert!(
            read_i64(&dir.path().join("out")) == wanted,
            "{line}: {report}"
        );
        assert_eq!(report["keys"], wanted.len(), "{line}");
        assert_eq!(report["rows"], 12_000, "{line}");
        assert_eq!(report["bytes"], text.len(), "{line}");
        assert_eq!(report["values"], values_of(&text).len(), "{line}");
        let levels = report["levels"].as_u64().unwrap();
        assert!(!has_levels || levels > 0, "{line}: {report}");
    }
    assert_eq!(
        names(dir.path()),
        ["a.tsv", "out"],
        "no temporary file is left"
    );
}

#[test]
fn memory_stays_within_the_bound() {
    let dir = tempfile::tempdir().unwrap();
    let text = criteo(100_000, 3, true);
    fs::write(dir.path().join("a.tsv"), &text).unwrap();
    // The limit is on private memory that may be written to, used or not: 1 MiB and 32 MiB.
    let limited = |memory: &str| {
        let line = format!(
            "ulimit -d {} && exec '{}' extract --from criteo-tsv --threads 2 --memory {memory} -o out a.tsv",
            33 << 10,
            env!("CARGO_BIN_EXE_hps-keyset")
        );
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &line])
            .current_dir(dir.path())
            .output()
            .unwrap()
    };
    check_code(&limited("1MiB"), &["1MiB"], 0);
    assert!(read_i64(&dir.path().join("out")) == by_field(&text));
    let unbounded = limited("1GiB").status;
    assert!(!unbounded.success(), "the limit is one: {unbounded}");
}

#[test]
fn keys_are_made_as_the_flags_say() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let text = criteo(500, 5, false);
    fs::write(dir.path().join("test.tsv"), &text).unwrap();
    let values = values_of(&text);
    let extract = ["extract", "--from", "criteo-tsv", "-o", "out"];
    let with = |flags: &[&str], code: i32| {
        let args = [&extract[..], flags, &["test.tsv"]].concat();
        run(dir.path(), &args, code)
    };
    with(&[], 0);
    assert_eq!(read_i64(&out), by_field(&text));
    with(&["--key", "raw"], 0);
    let raw = sort_u(values.iter().map(|(_, value)| *value));
    assert_eq!(read_i64(&out), raw);
    with(&["--key", "raw", "--dtype", "u32"], 0);
    assert_eq!(read_u32(&out), raw);
    let sizes: Vec<u64> = (0..26).map(|field| (1 << 32) + field * 10).collect();
    let before = |field: u64| sizes[..usize::try_from(field).unwrap()].iter().sum::<u64>();
    let list: Vec<String> = sizes.iter().map(u64::to_string).collect();
    let list = list.join(",");
    with(&["--key", "offset", "--slot-sizes", &list], 0);
    let offset = sort_u(values.iter().map(|(field, value)| before(*field) + value));
    assert_eq!(read_i64(&out), offset);
    fs::remove_file(&out).unwrap();
    // One file a field: the same keys, each where it belongs.
    for (flags, key) in [
        (
            &[][..],
            &(|field: u64, value: u64| field << 32 | value) as &dyn Fn(u64, u64) -> u64,
        ),
        (&["--key", "raw"], &|_, value| value),
        (
            &["--key", "offset", "--slot-sizes", &list],
            &|field, value| before(field) + value,
        ),
    ] {
        with(&[flags, &["--per-table"]].concat(), 0);
        for field in 0..26 {
            let path = dir.path().join(format!("out.{field}.keyset"));
            let own = values.iter().filter(|(of, _)| *of == field);
            let wanted = sort_u(own.map(|(field, value)| key(*field, *value)));
            assert_eq!(read_i64(&path), wanted, "{flags:?} {field}");
        }
    }
    assert_eq!(names(dir.path()).len(), 27);
}

#[test]
fn fields_without_a_value_have_an_empty_file_that_is_told() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join("a.tsv"),
        format!("0{}\t0000000a{}\n", "\t".repeat(13), "\t".repeat(25)),
    )
    .unwrap();
    let args = [
        "extract",
        "--from",
        "criteo-tsv",
        "--per-table",
        "-o",
        "o",
        "a.tsv",
    ];
    let told = run(dir.path(), &args, 0);
    assert!(told.contains("o.0.keyset: 1 key\n"), "{told}");
    assert!(
        told.contains("o.1.keyset: 0 keys (empty: HugeCTR refuses such a file)"),
        "{told}"
    );
    assert_eq!(names(dir.path()).len(), 27);
}

#[test]
fn compressed_files_standard_input_and_lists_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let text = criteo(3000, 9, true);
    let (first, second) = text.split_at(text[..text.len() / 2].rfind('\n').unwrap() + 1);
    let packed = |text: &str| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    fs::create_dir(dir.path().join("sub")).unwrap();
    // Two members in one file, as `cat a.gz b.gz` makes.
    let both = [packed(&first[..100]), packed(&first[100..])].concat();
    fs::write(dir.path().join("sub/a.tsv.gz"), both).unwrap();
    fs::write(dir.path().join("sub/b.tsv"), second).unwrap();
    let absolute = dir.path().join("sub/b.tsv");
    let list = format!("2\na.tsv.gz\n{}\n", absolute.display());
    fs::write(dir.path().join("sub/list.txt"), list).unwrap();
    let wanted = by_field(&text);
    let extract = [
        "extract",
        "--from",
        "criteo-tsv",
        "--memory",
        "256KiB",
        "-o",
        "out",
    ];
    for inputs in [
        &["sub/a.tsv.gz", "sub/b.tsv"][..],
        &["--file-list", "sub/list.txt"],
        &["sub/a.tsv.gz", "-"],
    ] {
        let args = [&extract[..], inputs].concat();
        let mut command = keyset(dir.path(), &args);
        let mut running = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut input = running.stdin.take().unwrap();
        let _not_read = input.write_all(second.as_bytes());
        drop(input);
        check_code(&running.wait_with_output().unwrap(), &args, 0);
        assert_eq!(read_i64(&dir.path().join("out")), wanted, "{inputs:?}");
        fs::remove_file(dir.path().join("out")).unwrap();
    }
}

#[test]
fn files_of_hugectr_that_numpy_wrote_give_their_keys() {
    let missing = "hugectr.py: no python3 that has NumPy: HugeCTR's files are not compared";
    let Some(python) = python_with("numpy", missing) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/hugectr.py");
    let write = |line: &str| {
        let mut command = Command::new(python);
        command
            .arg(&script)
            .args(line.split(' '))
            .current_dir(dir.path());
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    let extract = |line: &str| {
        let line = format!("extract --memory 256KiB -o out --from {line}");
        run(dir.path(), &line.split(' ').collect::<Vec<_>>(), 0);
    };
    for dtype in ["i64", "u32"] {
        write(&format!("keyset keys --dtype {dtype} --keys 20000"));
        extract(&format!("keys --input-dtype {dtype} keys"));
        let wanted = sort_u(expected(dir.path(), &["keys"]).iter().map(|(_, key)| *key));
        assert_eq!(read_i64(&out), wanted, "{dtype}");
        for check in ["none", "sum"] {
            write(&format!(
                "norm norm --check {check} --dtype {dtype} --samples 2000 --slots 5"
            ));
            let files = ["norm/0.data", "norm/1.data", "norm/2.data"];
            let values = expected(dir.path(), &files);
            extract(&format!(
                "norm --input-dtype {dtype} --key raw --file-list norm/file_list.txt"
            ));
            assert_eq!(
                read_i64(&out),
                sort_u(values.iter().map(|(_, value)| *value)),
                "{check}"
            );
            if dtype == "u32" {
                extract(&format!("norm --input-dtype u32 {}", files.join(" ")));
                let wanted = sort_u(values.iter().map(|(field, value)| field << 32 | value));
                assert_eq!(read_i64(&out), wanted, "{check}");
            }
        }
    }
    write("raw raw --samples 3000 --labels 2 --dense 3 --slots 4");
    extract("raw --labels 2 --dense 3 --slots 4 raw");
    let values = expected(dir.path(), &["raw"]);
    assert_eq!(
        read_i64(&out),
        sort_u(values.iter().map(|(field, value)| field << 32 | value))
    );
    for (array, scheme) in [
        (
            "numpy.arange(5000, dtype='<i8')[::-1].reshape(1000, 5) // 3",
            "field",
        ),
        (
            "numpy.arange(5000, dtype='<u4').reshape(1000, 5) // 3",
            "field",
        ),
        ("numpy.arange(5000, dtype='<i4') // 3", "field"),
        ("numpy.arange(5000, dtype='<u8') * 2**50", "raw"),
    ] {
        let save = format!(
            "import numpy; a = {array}; numpy.save('a.npy', a); a = a.reshape(len(a), -1)
for r in a.tolist():
    for i, v in enumerate(r): print(i, v % 2**64)"
        );
        let output = Command::new(python)
            .args(["-c", &save])
            .current_dir(dir.path())
            .output();
        fs::write(dir.path().join("a.npy.expected"), output.unwrap().stdout).unwrap();
        extract(&format!("npy --key {scheme} a.npy"));
        let field = |field: u64| if scheme == "raw" { 0 } else { field << 32 };
        let values = expected(dir.path(), &["a.npy"]);
        let wanted = sort_u(values.iter().map(|(of, value)| field(*of) + value));
        assert_eq!(read_i64(&out), wanted, "{array}");
    }
}

#[test]
fn a_signal_leaves_nothing_behind_and_the_old_file_as_it_is() {
    let mut draw = Draw(1);
    let keys: Vec<u64> = (0..200_000).map(|_| draw.next()).collect();
    let bytes: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    for (signal, code) in [("INT", Some(32)), ("TERM", Some(32)), ("KILL", None)] {
        let mut codes = Vec::new();
        while codes.len() < 20 && !codes.contains(&code) {
            let dir = tempfile::tempdir().unwrap();
            write_i64(&dir.path().join("out"), &[7]);
            let args = "extract --from keys --dtype i64 --memory 256KiB -o out -";
            let args: Vec<&str> = args.split(' ').collect();
            let mut command = keyset(dir.path(), &args);
            command
                .stdin(Stdio::piped())
                .stderr(Stdio::null())
                .stdout(Stdio::null());
            let mut running = command.spawn().unwrap();
            let mut input = running.stdin.take().unwrap();
            input.write_all(&bytes).unwrap();
            let kill = format!("kill -{signal} {}", running.id());
            Command::new("sh").args(["-c", &kill]).output().unwrap();
            let _ended = input.write_all(&bytes);
            drop(input);
            codes.push(running.wait().unwrap().code());
            if codes.last() == Some(&code) {
                assert_eq!(names(dir.path()), ["out"], "{signal}");
                assert_eq!(read_i64(&dir.path().join("out")), [7], "{signal}");
            }
        }
        assert!(codes.contains(&code), "{signal}: {codes:?}");
    }
}
