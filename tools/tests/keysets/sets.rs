//! Do `merge`, `intersect`, `diff`, `stat`, `verify` and `missing` find what sets in memory find?

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use hps::{CreateOptions, RuntimeOptions, Store, TableDescriptor, Update};
use serde_json::Value;

use super::support::{Draw, keyset, names, read_i64, read_u32, run, write_i64};

fn json(folder: &Path, line: &str, code: i32) -> Value {
    let args: Vec<&str> = line.split(' ').collect();
    let text = run(folder, &args, code);
    serde_json::from_str(&text).unwrap()
}

/// A file in order, or in disorder and with repeats.
fn write(path: &Path, keys: &BTreeSet<u64>, is_u32: bool, draw: &mut Draw) {
    let mut list: Vec<u64> = keys.iter().copied().collect();
    if draw.below(2) == 0 {
        for i in 0..list.len() {
            let other = usize::try_from(draw.below(list.len() as u64)).unwrap();
            list.swap(i, other);
        }
        let repeated: Vec<u64> = list.iter().copied().filter(|key| key % 3 == 0).collect();
        list.extend(repeated);
    }
    let bytes = |key: &u64| match is_u32 {
        true => u32::try_from(*key).unwrap().to_le_bytes().to_vec(),
        false => key.to_le_bytes().to_vec(),
    };
    fs::write(path, list.iter().flat_map(bytes).collect::<Vec<u8>>()).unwrap();
}

#[test]
fn set_operations_are_those_of_sets() {
    let mut draw = Draw(super::seed::fresh("set_operations_are_those_of_sets"));
    for case in 0..40 {
        let dir = tempfile::tempdir().unwrap();
        let is_u32 = draw.below(3) == 0;
        // Sometimes larger than the memory, so that runs are on disk.
        let most = if case % 10 == 0 { 60_000 } else { 300 };
        let width = [8, 300, 1 << 20, u64::MAX][usize::try_from(draw.below(4)).unwrap()];
        let width = if is_u32 { width.min(1 << 32) } else { width };
        let sets: Vec<BTreeSet<u64>> = (0..1 + draw.below(4))
            .map(|_| {
                let count = 1 + draw.below(most);
                (0..count).map(|_| draw.below(width)).collect()
            })
            .collect();
        let files: Vec<String> = (0..sets.len()).map(|i| format!("f{i}")).collect();
        for (set, file) in sets.iter().zip(&files) {
            write(&dir.path().join(file), set, is_u32, &mut draw);
        }
        let dtype = if is_u32 { "u32" } else { "i64" };
        let flags = format!("--dtype {dtype} --memory 256KiB --threads 2 --json");
        let read = |name: &str| match is_u32 {
            true => read_u32(&dir.path().join(name)),
            false => read_i64(&dir.path().join(name)),
        };
        let list = files.join(" ");
        let all: BTreeSet<u64> = sets.iter().flatten().copied().collect();
        let report = json(dir.path(), &format!("merge {flags} -o out {list}"), 0);
        assert!(read("out").iter().eq(&all), "{case}: {report}");
        assert_eq!(report["output"]["keys"], all.len());
        for (set, file) in sets.iter().zip(report["files"].as_array().unwrap()) {
            assert_eq!(file["unique"], set.len(), "{case}");
        }
        let common: BTreeSet<u64> = all
            .iter()
            .copied()
            .filter(|key| sets.iter().all(|set| set.contains(key)))
            .collect();
        fs::remove_file(dir.path().join("out")).unwrap();
        let intersect = format!("intersect {flags} -o out {list}");
        if common.is_empty() {
            let report = json(dir.path(), &intersect, 8);
            assert!(
                report["error"]
                    .as_str()
                    .unwrap()
                    .contains("no key is in all files")
            );
            assert!(!names(dir.path()).contains(&String::from("out")));
        } else {
            json(dir.path(), &intersect, 0);
            assert!(read("out").iter().eq(&common), "{case}");
        }
        let (first, second) = (&sets[0], &sets[sets.len() - 1]);
        let differ = i32::from(first != second);
        let report = json(
            dir.path(),
            &format!("diff {flags} -o only f0 {}", files[files.len() - 1]),
            differ,
        );
        let only: BTreeSet<u64> = first.difference(second).copied().collect();
        assert_eq!(report["only_first"], only.len(), "{case}");
        assert_eq!(
            report["only_second"],
            second.difference(first).count(),
            "{case}"
        );
        assert_eq!(report["both"], first.intersection(second).count(), "{case}");
        match only.is_empty() {
            true => {
                assert!(report["output"].is_null() && !names(dir.path()).contains(&"only".into()))
            }
            false => assert!(read("only").iter().eq(&only), "{case}"),
        }
        let report = json(dir.path(), &format!("stat {flags} --dim 16 {list}"), 0);
        for (i, set) in sets.iter().enumerate() {
            let file = &report["files"][i];
            assert_eq!(file["unique"], set.len(), "{case}: {file}");
            assert_eq!(file["min"].as_u64(), set.first().copied());
            assert_eq!(file["max"].as_u64(), set.last().copied());
            let shared = i
                .checked_sub(1)
                .map(|before| set.intersection(&sets[before]).count() as u64);
            assert_eq!(file["shared_with_previous"].as_u64(), shared, "{case}");
            let gib = 3.0 * set.len() as f64 * 16.0 * 4.0 / f64::from(1 << 30);
            assert!((file["gib"]["adam"].as_f64().unwrap() - gib).abs() < 1e-12);
        }
    }
}

#[test]
fn an_estimate_is_close_in_one_pass() {
    let dir = tempfile::tempdir().unwrap();
    let mut draw = Draw(11);
    let keys: Vec<u64> = (0..200_000).map(|_| draw.below(100_000) << 20).collect();
    let unique = keys.iter().collect::<BTreeSet<_>>().len() as f64;
    write_i64(&dir.path().join("a"), &keys);
    let report = json(dir.path(), "stat --estimate --json a", 0);
    let file = &report["files"][0];
    let found = file["unique"].as_f64().unwrap();
    // Four standard deviations; the hash is always the same.
    assert!((found / unique - 1.0).abs() < 0.017, "{found} of {unique}");
    assert_eq!(file["is_estimate"], true);
    assert_eq!(file["keys"], keys.len());
}

#[test]
fn what_a_keyset_should_not_be_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let words = |words: &[u32]| {
        words
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let longs = |keys: &[u64]| {
        keys.iter()
            .flat_map(|key| key.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let sorted: Vec<u32> = (1..=20).map(|i| i * 7).collect();
    let wide: Vec<u64> = (1..=20).map(|i| i * 7).collect();
    // Bytes, type, what is found: nothing, if empty.
    let cases = [
        (longs(&wide), "", ""),
        (words(&sorted), "--dtype u32", ""),
        (longs(&[1, u64::MAX]), "", ""),
        (longs(&[1, 3, 2]), "", "byte 16: not sorted"),
        (longs(&[1, 3, 3]), "", "byte 16: not unique"),
        (longs(&wide)[..156].to_vec(), "", "byte 152: found 4 bytes"),
        (Vec::new(), "", "an empty keyset"),
        (words(&sorted), "", "found u32 (--dtype u32), expected i64"),
        (
            words(&sorted),
            "--dtype i64",
            "found u32 (--dtype u32), expected i64",
        ),
        (
            longs(&wide),
            "--dtype u32",
            "found i64 (--dtype i64), expected u32",
        ),
        (words(&[5, 3]), "--dtype u32", "byte 4: not sorted"),
    ];
    for (bytes, dtype, told) in cases {
        fs::write(dir.path().join("a"), bytes).unwrap();
        let line = format!("verify --json a {dtype}");
        let code = if told.is_empty() { 0 } else { 4 };
        let report = json(dir.path(), line.trim_end(), code);
        let findings = report["findings"].to_string();
        assert!(findings.contains(told), "{line}: {findings}");
        assert_eq!(
            report["good"].as_array().unwrap().len(),
            usize::from(code == 0)
        );
    }
    // Nothing else takes a file whose bytes contradict the type, unless it was given.
    fs::write(dir.path().join("a"), words(&sorted)).unwrap();
    let report = json(dir.path(), "stat --json a", 4);
    assert!(
        report["error"].as_str().unwrap().contains("--dtype u32"),
        "{report}"
    );
    assert_eq!(
        json(dir.path(), "stat --json --dtype u32 a", 0)["files"][0]["keys"],
        20
    );
    assert_eq!(
        json(dir.path(), "stat --json --dtype i64 a", 0)["files"][0]["keys"],
        10
    );
    let report = json(dir.path(), "merge --json -o b a -", 4);
    assert!(report["error"].as_str().unwrap().contains("expected i64"));
    let report = json(dir.path(), "merge --json --dtype u32 -o b a -", 16);
    assert!(
        report["error"]
            .as_str()
            .unwrap()
            .contains("extract --from keys")
    );
    assert_eq!(names(dir.path()), ["a"]);
}

#[test]
fn keys_that_a_store_lacks_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let options = RuntimeOptions::new().cache_bytes(16 << 20);
    let store = Store::create(&path, CreateOptions::new(), options).unwrap();
    write_i64(&dir.path().join("keys"), &[9, 4, 5, 6, u64::MAX]);
    let told = run(dir.path(), &["missing", "--json", "store", "keys"], 8);
    assert!(told.contains("no checkpoint yet"), "{told}");
    let ads = store.create_table(&TableDescriptor::new("ads", 1)).unwrap();
    let lease = store.pull(ads, &[5, u64::MAX], &mut [0.0; 2]).unwrap();
    store.push(&lease, Update::weights(&[1.0, 2.0])).unwrap();
    drop(lease);
    store.checkpoint(1, &[]).unwrap();
    // The trainer is still there, and has pushed more since.
    let lease = store.pull(ads, &[6], &mut [0.0; 1]).unwrap();
    store.push(&lease, Update::weights(&[1.0])).unwrap();
    drop(lease);
    let report = json(dir.path(), "missing --json -o out store keys", 1);
    assert_eq!(
        (&report["missing"], &report["keys"]),
        (&3.into(), &5.into()),
        "{report}"
    );
    assert_eq!(report["table"], "ads");
    assert_eq!(read_i64(&dir.path().join("out")), [4, 6, 9]);
    write_i64(&dir.path().join("keys"), &[5]);
    json(dir.path(), "missing --json store keys", 0);
    store
        .create_table(&TableDescriptor::new("users", 1))
        .unwrap();
    store.checkpoint(2, &[]).unwrap();
    for (flags, told) in [
        ("", "which one of ads, users"),
        ("--table x ", "it has ads, users"),
    ] {
        let report = json(dir.path(), &format!("missing --json {flags}store keys"), 16);
        assert!(report["error"].as_str().unwrap().contains(told), "{report}");
    }
    json(dir.path(), "missing --json --table ads store keys", 0);
    json(dir.path(), "missing --json --table users store keys", 1);
    let output = keyset(dir.path(), &["missing", "nowhere", "keys"])
        .output()
        .unwrap();
    assert_ne!(output.status.code(), Some(0));
    store.close().unwrap();
}
