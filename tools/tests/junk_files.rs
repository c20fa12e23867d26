//! Does a store open, and do the tools cope, among very many files that are not its own?
//!
//! Files with names and numbers of the store, which a writer removes; with numbers that were never
//! given out, which are told and stay; with any other names. `HPS_JUNK_FILES` says how many (20 000).
#![expect(clippy::unwrap_used, reason = "test helpers fail the test")]

#[expect(dead_code, reason = "other tests use the rest")]
mod disks;
#[path = "support/store.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod store;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use disks::{environment, say};
use hps::{RuntimeOptions, Store};
use serde_json::Value;
use store::{code, fsck, json, sample, set, text};

/// Numbers that a store reserves at first; those below are given out.
const RESERVED: u64 = 4000;

/// Files that are not the store's.
#[derive(Default)]
struct Junk {
    /// An opening removes them.
    orphans: Vec<PathBuf>,
    /// With numbers that were never given out.
    beyond: Vec<PathBuf>,
    /// With any names.
    strangers: Vec<PathBuf>,
}

impl Junk {
    /// Those that nobody may remove are there.
    fn stays(&self) {
        assert_eq!(are_there(&self.beyond), self.beyond.len());
        assert_eq!(are_there(&self.strangers), self.strangers.len());
    }
}

/// Makes files, a half of them in the data directory.
fn litter(root: &Path, count: u64) -> Junk {
    let part = root.join("part-0");
    let mut junk = Junk::default();
    for n in 0..count {
        let place = if n % 2 == 0 { root } else { &part };
        // Those of the store itself are not written over.
        let number = 100 + n / 8 % (RESERVED - 100);
        let beyond = 1_000_000 + n;
        let (list, name) = match n % 8 {
            0 => (&mut junk.orphans, format!("{number:012}.meta")),
            1 | 6 => (&mut junk.orphans, format!("{number:012}.rows")),
            2 => (&mut junk.orphans, format!("{number:012}.snapshot")),
            3 => (&mut junk.beyond, format!("{beyond:012}.rows")),
            4 => (&mut junk.beyond, format!("{beyond:012}.manifest")),
            _ => (&mut junk.strangers, format!("photo-{n}.jpg")),
        };
        let path = place.join(name);
        fs::File::create(&path).unwrap();
        list.push(path);
    }
    junk.orphans.sort();
    junk.orphans.dedup();
    junk
}

fn are_there(paths: &[PathBuf]) -> usize {
    paths.iter().filter(|path| path.exists()).count()
}

/// The whole store's digest, and how many leftovers there are beside it.
fn look(root: &Path) -> (Value, u64) {
    let output = fsck(&["--json", "--digest"], root);
    let found = json(&output);
    assert_eq!(code(&output), 0, "{}", text(&output));
    assert_eq!(found["damage"], 0, "{found}");
    let findings = found["findings"].as_array().unwrap();
    let leftovers = findings.iter().filter(|f| f["severity"] == "leftover");
    (found["digest"].clone(), leftovers.count() as u64)
}

#[test]
fn among_very_many_files_of_others_a_store_opens_and_tools_cope() {
    let count = environment("HPS_JUNK_FILES", 20_000);
    // In memory, where there is such a place: making so many files keeps a disk busy.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let dir = dir.unwrap();
    let root = dir.path();
    sample(root, 2.0);
    let (digest, leftovers) = look(root);
    assert_eq!(leftovers, 0);
    let junk = litter(root, count);
    let told = (junk.orphans.len() + junk.beyond.len()) as u64;
    let mut begun = Instant::now();
    let mut took = |what: &str| {
        let seconds = begun.elapsed().as_secs_f64();
        say(&format!("{count} junk files: {what} {seconds:.1} s"));
        begun = Instant::now();
    };

    let (found, leftovers) = look(root);
    assert_eq!(found, digest);
    assert_eq!(leftovers, told);
    let told = text(&fsck(&["--quick"], root));
    assert!(told.lines().count() < 40, "{told}");
    took("hps-fsck, full and quick,");

    let gc = Command::new(env!("CARGO_BIN_EXE_hps-compact"))
        .args(["gc", "--keep-checkpoints", "1"])
        .arg(root)
        .output()
        .unwrap();
    assert_eq!(code(&gc), 0, "{}", String::from_utf8_lossy(&gc.stderr));
    took("hps-compact gc");
    assert_eq!(are_there(&junk.orphans), 0);
    junk.stays();
    assert_eq!(look(root), (digest, junk.beyond.len() as u64));

    for orphan in &junk.orphans {
        fs::File::create(orphan).unwrap();
    }
    took("making some again and looking");
    let store = Store::open(root, RuntimeOptions::default()).unwrap();
    took("an opening for writing");
    assert_eq!(are_there(&junk.orphans), 0);
    set(&store, store.table("ads").unwrap(), &[1, 2, 3], 7.0);
    store.checkpoint(3, b"third").unwrap();
    store.close().unwrap();
    took("a checkpoint");
    let whole = json(&fsck(&["--json"], root));
    assert_eq!(whole["tables"][0]["rows"], 7000);
    assert_eq!(whole["tables"][0]["weights"]["largest"], 7.0);
    junk.stays();
}
