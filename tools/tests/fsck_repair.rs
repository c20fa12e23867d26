//! Does `hps-fsck --repair` save what it can, say what is lost, and end as documented?
#![expect(clippy::unwrap_used, reason = "test helpers fail the test")]

#[path = "support/store.rs"]
mod store;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use hps::{RuntimeOptions, Store};
use store::*;

/// Names in a directory.
fn names(directory: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// A parameter file whose first record is of a key that was written once.
fn with_old_row_first(root: &Path) -> std::path::PathBuf {
    let rows = content(root).into_iter();
    let mut rows = rows.filter(|(path, _)| path.extension().is_some_and(|e| e == "rows"));
    let old = |bytes: &[u8]| u64::from_le_bytes(bytes[4104..4112].try_into().unwrap()) < 6000;
    rows.find(|(_, bytes)| old(bytes)).unwrap().0
}

/// A trainer can go on: the number of keys known, after a push and a checkpoint.
fn go_on(root: &Path) -> usize {
    let options = RuntimeOptions::new().cache_bytes(1 << 20);
    let store = Store::open(root, options).unwrap();
    let table = store.table("ads").unwrap();
    let keys: Vec<u64> = (0..7000).collect();
    let known = store.contains(table, &keys).unwrap();
    set(&store, table, &[123_456], 9.0);
    let step = store.last_checkpoint().unwrap().step + 1;
    store.checkpoint(step, b"on").unwrap();
    store.close().unwrap();
    known.into_iter().filter(|k| *k).count()
}

#[test]
fn lost_rows_are_listed_and_the_rest_goes_on() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("store");
    sample(&root, 2.0);
    change_byte(&with_old_row_first(&root), 4096 + 20);
    let damaged = content(&root);
    let found = fsck(&["--repair"], &root);
    let said = text(&found);
    assert_eq!(code(&found), 4, "{said}");
    for part in ["1 written anew", "lost: 1 row gone", "kept as"] {
        assert!(said.contains(part), "{part} in:\n{said}");
    }
    let expected = ["store", "store.damaged", "store.lost-1.tsv"];
    assert_eq!(names(home.path()), expected.map(String::from).into());
    let list = std::fs::read_to_string(home.path().join("store.lost-1.tsv")).unwrap();
    let lines: Vec<&str> = list.lines().collect();
    assert_eq!(lines.len(), 2, "{list}");
    assert!(
        lines[1].starts_with("ads\t") && lines[1].ends_with("\tgone"),
        "{list}"
    );
    // The damaged store is what it was.
    let aside = home.path().join("store.damaged");
    let moved = content(&aside).into_iter();
    let moved = moved.map(|(p, bytes)| (root.join(p.strip_prefix(&aside).unwrap()), bytes));
    assert!(moved.collect::<std::collections::BTreeMap<_, _>>() == damaged);
    let before = content(&root);
    let again = fsck(&["--repair", "--json"], &root);
    assert!(content(&root) == before, "twice is once");
    assert_eq!((code(&again), json(&again)["repair"].is_null()), (0, true));
    assert_eq!(go_on(&root), 6999);
    assert_eq!(code(&fsck(&[], &root)), 0);
}

#[test]
fn what_costs_no_row_is_mended_and_says_so() {
    for (suffix, offset) in [
        ("CURRENT", 60),
        ("PART", 50),
        ("STORE", 40),
        (".snapshot", 5000),
    ] {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().join("store");
        sample(&root, 2.0);
        let whole = json(&fsck(&["--digest", "--json"], &root))["digest"].clone();
        change_byte(&of_kind(&root, suffix), offset);
        assert_eq!(code(&fsck(&[], &root)), 4, "{suffix}");
        let mended = fsck(&["--repair", "--json"], &root);
        let report = json(&mended);
        let lost = report["repair"]["rows_gone"].as_u64().unwrap();
        assert_eq!(lost, 0, "{suffix}: {report}");
        assert_eq!(code(&mended), 1, "{suffix}: {report}");
        let after = fsck(&["--digest", "--json"], &root);
        assert_eq!(
            (code(&after), &json(&after)["digest"]),
            (0, &whole),
            "{suffix}"
        );
        assert_eq!(go_on(&root), 7000, "{suffix}");
    }
}

#[test]
fn what_can_not_be_repaired_is_left_with_the_way_out() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("store");
    sample(&root, 2.0);
    let meta = of_kind(&root, ".meta");
    for entry in std::fs::read_dir(&root).unwrap() {
        let path = entry.unwrap().path();
        if path.extension() == meta.extension() {
            change_byte(&path, 130);
        }
    }
    let before = content(home.path());
    let refused = fsck(&["--repair"], &root);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(code(&refused), 4, "{said}");
    assert!(said.contains("--without-meta"), "{said}");
    assert!(content(home.path()) == before);
    let kept = fsck(&["--repair", "--without-meta"], &root);
    assert_eq!(code(&kept), 4, "{}", text(&kept));
    assert!(text(&kept).contains("no row is lost") && text(&kept).contains("meta is lost"));
    assert_eq!(go_on(&root), 7000);
    assert_eq!(code(&fsck(&["--without-meta"], &root)), 16);
    assert_eq!(code(&fsck(&["--repair", "--quick"], &root)), 16);
    let store = Store::open(&root, RuntimeOptions::default()).unwrap();
    assert_eq!(code(&fsck(&["--repair"], &root)), 8, "the store is open");
    drop(store);
}

/// Killed at any moment, the store is the damaged one or the repaired one, and the next run ends it.
#[test]
fn a_repair_that_is_killed_is_done_again() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("store");
    sample(&root, 2.0);
    change_byte(&with_old_row_first(&root), 4096 + 20);
    let (mut killed, mut delay) = (0, 0);
    loop {
        let mut child = Command::new(env!("CARGO_BIN_EXE_hps-fsck"))
            .args(["--repair", "--progress", "never"])
            .arg(&root)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(delay));
        child.kill().unwrap();
        let status = child.wait().unwrap();
        match status.code() {
            None => killed += 1,
            Some(4) => break,
            // A run before was killed after the stores had changed places.
            Some(0) => break,
            other => panic!("{other:?}"),
        }
        let state = code(&fsck(&["--quick"], &root));
        assert!(
            state == 0 || state == 4,
            "a store is there, whole or damaged: {state}"
        );
        delay += 1500;
    }
    assert!(killed >= 3, "{killed} kills");
    assert_eq!(go_on(&root), 6999);
    // The next run ends what was begun.
    assert_eq!(code(&fsck(&["--repair"], &root)), 0);
    let left = names(home.path());
    let lists = left.iter().filter(|n| n.ends_with(".tsv")).count();
    assert!(lists >= 1);
    let stores: Vec<_> = left.iter().filter(|n| !n.ends_with(".tsv")).collect();
    assert_eq!(stores, ["store", "store.damaged"]);
}
