//! Do the tools work on a store whose data directories have moved?
//!
//! They have no option that says where a directory is now: a symbolic link at its old place does.
#![expect(clippy::unwrap_used, reason = "test helpers fail the test")]

#[path = "support/store.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod store;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hps::{CreateOptions, RuntimeOptions, Store, TableDescriptor};
use store::*;

const KEYS: u64 = 7000;

fn compact(verb: &str, directory: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hps-compact"));
    command.arg(verb).arg(directory).output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Names of the parameter files in a directory.
fn files(place: &Path) -> BTreeSet<OsString> {
    let entries = fs::read_dir(place).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name());
    names
        .filter(|name| name.to_string_lossy().ends_with(".rows"))
        .collect()
}

/// A store whose data directories stand at `places`; half of the rows of its first files are stale.
fn made(root: &Path, places: &[PathBuf; 2]) {
    let options = RuntimeOptions::new()
        .cache_bytes(8 << 20)
        .retain_checkpoints(1)
        .space_bound(10.0);
    let create = CreateOptions::new().data_directories(places.to_vec());
    let store = Store::create(root, create, options).unwrap();
    let table = store
        .create_table(&TableDescriptor::new("ads", DIM))
        .unwrap();
    let keys: Vec<u64> = (0..KEYS).collect();
    set(&store, table, &keys, 1.0);
    store.checkpoint(1, &[]).unwrap();
    set(&store, table, &keys[..4000], 2.0);
    store.checkpoint(2, &[]).unwrap();
    store.close().unwrap();
}

#[test]
fn a_data_directory_that_has_moved_is_found_by_a_symbolic_link() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    for name in ["old", "new"] {
        fs::create_dir(at(name)).unwrap();
    }
    let (root, old, new) = (at("store"), at("old/ssd-1"), at("new/ssd-1"));
    made(&root, &[at("old/ssd-0"), old.clone()]);
    let whole = json(&fsck(&["--digest", "--json"], &root))["digest"].clone();
    fs::rename(&old, &new).unwrap();

    // Each tool names the way out, and changes nothing.
    let before = content(home.path());
    let found = fsck(&[], &root);
    assert_eq!(code(&found), 4);
    let way = format!(
        "if {} is on a file system that is not mounted, mount it and look again; if it has moved, put a \
         symbolic link to it there;",
        old.display()
    );
    assert!(text(&found).contains(&way), "{}", text(&found));
    let refused = [
        fsck(&["--repair"], &root),
        compact("plan", &root),
        compact("run", &root),
    ];
    for output in refused {
        assert_eq!(code(&output), 8, "{}", errors(&output));
        let said = errors(&output);
        let missing = format!("data directory 1 ({}) is not there", old.display());
        assert!(said.contains(&missing), "{said}");
        assert!(
            said.contains("if it has moved, put a symbolic link to it at that path"),
            "{said}"
        );
    }
    assert_eq!(content(home.path()), before);

    symlink(&new, &old).unwrap();
    let found = json(&fsck(&["--digest", "--json"], &root));
    assert_eq!((&found["damage"], &found["digest"]), (&0.into(), &whole));
    let stale = files(&new);
    for verb in ["plan", "run"] {
        let output = compact(verb, &root);
        assert_eq!(code(&output), 0, "{}", errors(&output));
    }
    assert_ne!(files(&new), stale, "what is stale is gone from where it is");
    assert!(old.is_symlink());
    let after = fsck(&["--digest", "--json"], &root);
    assert_eq!((code(&after), &json(&after)["digest"]), (0, &whole));

    // A repair makes its files where the directory is.
    change_byte(&of_kind(&new, ".rows"), 5000);
    let mended = json(&fsck(&["--repair", "--json"], &root));
    assert_eq!(mended["repair"]["rows_gone"], 1, "{mended}");
    assert!(!files(&new.join("repaired-1")).is_empty());
    let after = json(&fsck(&["--json"], &root));
    assert_eq!(after["damage"], 0, "{after}");
    assert_eq!(after["tables"][0]["rows"], KEYS - 1);
    let store = Store::open(&root, RuntimeOptions::new().cache_bytes(8 << 20)).unwrap();
    assert_eq!(store.directories()[1].path, old.join("repaired-1"));
    store.close().unwrap();
}
