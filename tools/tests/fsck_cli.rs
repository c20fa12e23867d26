//! Does `hps-fsck` say what is there, find damage, write nothing, and end as documented?
#![expect(clippy::unwrap_used, reason = "test helpers fail the test")]

#[path = "support/store.rs"]
mod store;

use hps::{RuntimeOptions, Store, TableId};
use store::*;

#[test]
fn a_whole_store_is_described_and_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    sample(dir.path(), 2.0);
    let before = content(dir.path());
    let full = fsck(&["--norms"], dir.path());
    assert_eq!(code(&full), 0, "{}", text(&full));
    for part in [
        "table ads: 7 000 rows",
        "checkpoint 2 of step 2",
        "an index snapshot of 1 part,",
        "whole",
        "norm from 2^",
    ] {
        assert!(text(&full).contains(part), "{part}: {}", text(&full));
    }
    assert!(full.stderr.is_empty(), "no progress for a second of work");
    let quick = json(&fsck(&["--quick", "--json"], dir.path()));
    assert_eq!((&quick["v"], &quick["damage"]), (&1.into(), &0.into()));
    assert_eq!(quick["bytes_read"], 0);
    let (part, path) = (&quick["snapshot"][0], of_kind(dir.path(), ".snapshot"));
    assert_eq!(part["path"], path.to_str().unwrap());
    assert_eq!(part["bytes"], path.metadata().unwrap().len());
    assert_eq!(
        (&part["directory"], &part["checkpoint"]),
        (&0.into(), &1.into())
    );
    let all = json(&fsck(&["--json", "--digest"], dir.path()));
    assert_eq!(all["tables"][0]["rows"], 7000);
    assert_eq!(all["tables"][0]["weights"]["largest"], 2.0);
    assert_eq!(all["digest"].as_str().unwrap().len(), 32);
    let first = json(&fsck(
        &["--json", "--digest", "--checkpoint", "1"],
        dir.path(),
    ));
    assert_eq!(first["tables"][0]["weights"]["largest"], 1.0);
    assert_ne!(first["digest"], all["digest"]);
    assert_eq!(content(dir.path()), before, "nothing is written");
}

#[test]
fn damage_is_named_with_its_place_and_exit_code_4() {
    let dir = tempfile::tempdir().unwrap();
    sample(dir.path(), 2.0);
    for (suffix, offset, severity) in [
        ("CURRENT", 100, "damage"),
        ("STORE", 3000, "damage"),
        (".manifest", 70, "damage"),
        (".copy", 70, "cache"),
        (".meta", 130, "damage"),
        (".rows", 5000, "damage"),
        (".snapshot", 9000, "cache"),
    ] {
        let path = of_kind(dir.path(), suffix);
        change_byte(&path, offset);
        let output = fsck(&["--json"], dir.path());
        let found = json(&output);
        change_byte(&path, offset);
        assert_eq!(code(&output), 4, "{suffix}: {found}");
        let first = &found["findings"][0];
        assert_eq!(first["severity"], severity, "{found}");
        assert_eq!(first["path"], path.to_str().unwrap(), "{found}");
    }
    assert_eq!(code(&fsck(&[], dir.path())), 0);
}

#[test]
fn stores_are_compared_row_by_row() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    sample(&a, 2.0);
    sample(&b, 3.5);
    let same = fsck(&["--diff", a.to_str().unwrap()], &a);
    assert_eq!(code(&same), 0, "{}", text(&same));
    let output = fsck(&["--json", "--diff", b.to_str().unwrap()], &a);
    assert_eq!(code(&output), 1);
    let found = &json(&output)["difference"];
    assert_eq!(
        (&found["changed"], &found["only_here"]),
        (&1000.into(), &0.into())
    );
    assert_eq!(found["largest"], 1.5);
}

#[test]
fn what_can_not_be_checked_has_its_own_exit_codes() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = fsck(&[], &dir.path().join("nowhere"));
    assert_eq!(code(&nowhere), 8);
    let error = String::from_utf8_lossy(&nowhere.stderr).into_owned();
    assert!(
        error.contains("nowhere") && error.contains("no such directory"),
        "{error}"
    );
    assert_eq!(
        code(&fsck(&[], dir.path())),
        8,
        "an empty directory is no store"
    );
    assert_eq!(code(&fsck(&["--nonsense"], dir.path())), 16);
    assert_eq!(code(&fsck(&["--quick", "--digest"], dir.path())), 16);
    assert_eq!(code(&fsck(&["--help"], dir.path())), 0);
    sample(&dir.path().join("s"), 2.0);
    let unknown = fsck(&["--checkpoint", "9"], &dir.path().join("s"));
    assert_eq!(
        code(&unknown),
        16,
        "{}",
        String::from_utf8_lossy(&unknown.stderr)
    );
}

#[test]
fn a_store_that_is_open_is_checked_beside_its_writer() {
    let dir = tempfile::tempdir().unwrap();
    sample(dir.path(), 2.0);
    let store = Store::open(dir.path(), RuntimeOptions::default()).unwrap();
    set(&store, TableId(0), &[1, 2, 3], 9.0);
    store.flush().unwrap();
    let output = fsck(&["--json"], dir.path());
    let found = json(&output);
    assert_eq!(code(&output), 0, "{found}");
    assert_eq!(found["open_elsewhere"], true);
    assert_eq!(found["tables"][0]["weights"]["largest"], 2.0);
    store.close_discarding();
}

/// Beside a trainer the tool advised to repair the store that the trainer had open.
#[test]
fn a_repair_is_offered_only_where_no_writer_has_the_store() {
    let dir = tempfile::tempdir().unwrap();
    sample(dir.path(), 2.0);
    let store = Store::open(dir.path(), RuntimeOptions::default()).unwrap();
    change_byte(&of_kind(dir.path(), ".snapshot"), 9000);
    let live = fsck(&[], dir.path());
    assert_eq!(code(&live), 4, "{}", text(&live));
    let said = text(&live);
    assert!(said.contains("index snapshot is damaged"), "{said}");
    assert!(!said.contains("--repair"), "{said}");
    assert!(said.contains("close the writer"), "{said}");
    store.close().unwrap();
    let alone = fsck(&[], dir.path());
    assert_eq!(code(&alone), 4, "{}", text(&alone));
    assert!(text(&alone).contains("--repair"), "{}", text(&alone));
}
