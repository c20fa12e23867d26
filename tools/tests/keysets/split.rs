//! Does `split` cut where a plain loop would cut, and lose nothing?

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::support::{criteo, names, read_i64, run, sort_u, values_of, write_i64};

fn split(folder: &Path, flags: &str, code: i32) -> Value {
    let line = format!("split --from criteo-tsv --json {flags}");
    let args: Vec<&str> = line.split(' ').collect();
    serde_json::from_str(&run(folder, &args, code)).unwrap()
}

fn keys_of(lines: &str) -> BTreeSet<u64> {
    values_of(lines)
        .iter()
        .map(|(field, value)| field << 32 | value)
        .collect()
}

/// Where passes begin: the plain way.
fn cut_by_keys(lines: &[&str], keys_max: usize) -> Vec<String> {
    let mut passes = vec![String::new()];
    let mut keys = BTreeSet::new();
    for line in lines {
        let with: BTreeSet<u64> = keys.union(&keys_of(line)).copied().collect();
        if with.len() > keys_max {
            passes.push(String::new());
            keys = keys_of(line);
        } else {
            keys = with;
        }
        *passes.last_mut().unwrap() += line;
    }
    passes
}

fn check(folder: &Path, report: &Value, passes: &[String]) {
    assert_eq!(
        report["passes"].as_array().unwrap().len(),
        passes.len(),
        "{report}"
    );
    for (number, lines) in passes.iter().enumerate() {
        let pass = &report["passes"][number];
        let keys = read_i64(&folder.join(format!("p.{number}.keyset")));
        assert!(keys.iter().eq(&keys_of(lines)), "{pass}");
        assert_eq!(pass["keys"], keys.len());
        assert_eq!(pass["rows"], lines.lines().count());
        let data = fs::read_to_string(folder.join(format!("p.{number}.tsv"))).unwrap();
        assert!(data == *lines, "{pass}");
    }
}

#[test]
fn passes_are_those_of_a_plain_loop() {
    let dir = tempfile::tempdir().unwrap();
    let text = criteo(
        1500,
        super::seed::fresh("passes_are_those_of_a_plain_loop"),
        true,
    );
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    // The last line has no end, and the cut between files is no cut between passes.
    let (first, second) = (lines[..700].concat(), lines[700..].concat());
    fs::write(dir.path().join("a.tsv"), first).unwrap();
    fs::write(dir.path().join("b.tsv"), second.trim_end_matches('\n')).unwrap();
    let flags = "--memory 512KiB --data -o p a.tsv b.tsv";
    let by_rows = split(dir.path(), &format!("--rows 400 {flags}"), 0);
    let wanted: Vec<String> = lines.chunks(400).map(<[&str]>::concat).collect();
    check(dir.path(), &by_rows, &wanted);
    // 2 x 4 weights of 4 bytes a key: 3000 of them.
    let gib = 3000.0 * 32.0 / f64::from(1 << 30);
    let gib = format!("{gib:.12}");
    let by_keys = split(
        dir.path(),
        &format!("--hbm-gib {gib} --dim 4 --optimizer adagrad {flags}"),
        0,
    );
    let keys_max = usize::try_from(by_keys["keys_max"].as_u64().unwrap()).unwrap();
    assert!((2999..=3000).contains(&keys_max));
    let wanted = cut_by_keys(&lines, keys_max);
    assert!(wanted.len() > 3);
    check(dir.path(), &by_keys, &wanted);
    // The list of the parts is a file list.
    let args = [
        "extract",
        "--from",
        "criteo-tsv",
        "-o",
        "all",
        "--file-list",
        "p.txt",
    ];
    run(dir.path(), &args, 0);
    let keys = values_of(&text)
        .into_iter()
        .map(|(field, value)| field << 32 | value);
    assert_eq!(read_i64(&dir.path().join("all")), sort_u(keys));
}

#[test]
fn what_can_not_be_cut_is_told_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.tsv"), criteo(4000, 1, true)).unwrap();
    let empty = format!("0{}\n", "\t".repeat(39));
    fs::write(dir.path().join("gap.tsv"), criteo(2, 1, true) + &empty).unwrap();
    fs::write(dir.path().join("bad.tsv"), criteo(9, 1, true) + "0\tx").unwrap();
    write_i64(&dir.path().join("keys"), &[3, 4]);
    let by = |gib: &str| format!("--hbm-gib {gib} --dim 1 --optimizer sgd -o p a.tsv");
    for (flags, code, told) in [
        ("-o p a.tsv", 16, "required"),
        ("--rows 0 -o p a.tsv", 16, "invalid value '0'"),
        (
            "--rows 5 --hbm-gib 1 --dim 1 --optimizer sgd -o p a.tsv",
            16,
            "cannot be used with",
        ),
        ("--hbm-gib 1 --dim 1 -o p a.tsv", 16, "required"),
        (
            "--hbm-gib 0 --dim 1 --optimizer sgd -o p a.tsv",
            16,
            "above 0",
        ),
        (&*by("0.000000001"), 16, "a row alone takes 4 bytes"),
        (&*by("0.00000003"), 16, "different keys, and only 8 fit"),
        (
            &*format!("--memory 256KiB {}", by("1")),
            16,
            "it needs at least",
        ),
        (
            "--rows 1 -o p gap.tsv",
            8,
            "1 record of the pass have no key",
        ),
        ("--rows 2 --data -o p bad.tsv", 4, "found 'x'"),
    ] {
        let report = split(dir.path(), flags, code);
        let error = report["error"].as_str().unwrap();
        assert!(error.contains(told), "{flags}: {error}");
        assert_eq!(
            names(dir.path()),
            ["a.tsv", "bad.tsv", "gap.tsv", "keys"],
            "{flags}"
        );
    }
    let line = "split --from keys --dtype i64 --rows 1 --data -o p --json keys";
    let told = run(dir.path(), &line.split(' ').collect::<Vec<_>>(), 16);
    assert!(told.contains("--data writes Criteo's text"), "{told}");
    let line = "split --from keys --dtype i64 --rows 1 -o p keys";
    run(dir.path(), &line.split(' ').collect::<Vec<_>>(), 0);
    assert_eq!(read_i64(&dir.path().join("p.1.keyset")), [4]);
}
