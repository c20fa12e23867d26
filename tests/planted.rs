//! Would the crash test find an engine with a mistake in the order of its syncs?
//!
//! Each planted break is an engine that leaves a call out, makes it too late or too early at one
//! documented step (docs/DURABILITY.md, "The order of syncs"). What the disk sees is changed, not
//! the engine. A break that no crash shows fails the test, and so does the engine as it is where
//! anything is found.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/crash.rs"]
#[expect(dead_code, reason = "the crash test uses the rest")]
mod common;
#[path = "common/hooked.rs"]
mod hooked;
#[path = "common/trial.rs"]
#[expect(dead_code, reason = "the crash test uses the rest")]
mod trial;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::plans::{Plan, some_options};
use common::{Op, Random, key};
use hps::Thresholds;
use hps::io::OpenMode;
use hps::io::sim::SimDisk;
use trial::{Liar, Told, Trial, crash_everywhere, in_parallel};

/// The kind of a call, and how its path ends.
type Call = (&'static str, &'static str);

/// What is wrong with an engine.
#[derive(Clone, Copy, Debug)]
enum Mistake {
    /// A call is left out.
    Without(Call),
    /// A sync is made only once this other call has been made.
    Late(Call, Call),
    /// Just before this call, the oldest files with one of these endings are unlinked.
    Unlinked(&'static [&'static str], Call),
}

use Mistake::{Late, Unlinked, Without};

const RENAMED: Call = ("rename", "CURRENT.tmp");
const STORE_RENAMED: Call = ("rename", "STORE.tmp");

/// What is done when the mistake is made, its number of DURABILITY.md, and the mistake.
const BREAKS: [(&str, &str, Mistake); 30] = [
    ("create", "CURRENT unsynced", Without(("sync", "CURRENT"))),
    (
        "create",
        "manifest unsynced",
        Without(("sync", ".manifest")),
    ),
    ("create", "PART unsynced", Without(("sync", "PART"))),
    (
        "create",
        "data directory unsynced",
        Without(("sync_dir", "store/a")),
    ),
    (
        "create",
        "STORE renamed before the manifest is synced",
        Late(("sync", ".manifest"), STORE_RENAMED),
    ),
    (
        "recovery",
        "CURRENT.tmp unsynced",
        Without(("sync", "CURRENT.tmp")),
    ),
    (
        "recovery",
        "unlinks before CURRENT is durable",
        Late(("sync_dir", "store"), ("remove", ".manifest")),
    ),
    (
        "checkpoint",
        "4a: row files unsynced",
        Without(("sync", ".rows")),
    ),
    (
        "checkpoint",
        "4b: meta file unsynced",
        Without(("sync", ".meta")),
    ),
    (
        "checkpoint",
        "4c: data directory unsynced",
        Without(("sync_dir", "store/a")),
    ),
    (
        "checkpoint",
        "4c: root unsynced",
        Without(("sync_dir", "store")),
    ),
    ("checkpoint", "5: copy unsynced", Without(("sync", ".copy"))),
    (
        "checkpoint",
        "6b before 5: CURRENT renamed before the manifest is synced",
        Late(("sync", ".manifest"), RENAMED),
    ),
    (
        "checkpoint",
        "6b before 6a: CURRENT renamed before its bytes are synced",
        Late(("sync", "CURRENT.tmp"), RENAMED),
    ),
    (
        "checkpoint",
        "6b before 4a: CURRENT renamed before row files are synced",
        Late(("sync", ".rows"), RENAMED),
    ),
    (
        "checkpoint",
        "7 before 6b: a forgotten meta file unlinked before CURRENT",
        Unlinked(&["meta"], RENAMED),
    ),
    (
        "checkpoint",
        "7 before 6b: the old manifest unlinked before CURRENT",
        Unlinked(&["manifest", "copy"], RENAMED),
    ),
    ("image", "8a: image unsynced", Without(("sync", ".image"))),
    (
        "image",
        "8c: manifest unsynced",
        Without(("sync", ".manifest")),
    ),
    (
        "image",
        "8e before 8d: the old image unlinked before CURRENT",
        Unlinked(&["image"], RENAMED),
    ),
    (
        "Rollback",
        "manifest unsynced",
        Without(("sync", ".manifest")),
    ),
    ("Rollback", "root unsynced", Without(("sync_dir", "store"))),
    (
        "Rollback",
        "CURRENT renamed before the manifest is synced",
        Late(("sync", ".manifest"), RENAMED),
    ),
    (
        "Export",
        "target unsynced",
        Without(("sync_dir", "export-0")),
    ),
    (
        "Export",
        "manifest unsynced",
        Without(("sync", ".manifest")),
    ),
    (
        "Export",
        "STORE renamed before links are durable",
        Late(("sync_dir", "export-0/part-0"), STORE_RENAMED),
    ),
    ("Recommit", "row files unsynced", Without(("sync", ".rows"))),
    (
        "Recommit",
        "data directory unsynced",
        Without(("sync_dir", "store/a")),
    ),
    (
        "Recommit",
        "CURRENT renamed before the manifest is synced",
        Late(("sync", ".manifest"), RENAMED),
    ),
    (
        "Recommit",
        "the old manifest unlinked before CURRENT",
        Unlinked(&["manifest", "copy"], RENAMED),
    ),
];

fn is(call: Call, kind: &str, path: &Path) -> bool {
    kind == call.0 && path.to_string_lossy().ends_with(call.1)
}

/// Syncs what a call named that was answered too early; CURRENT.tmp has its other name by now.
fn make_late(disk: &SimDisk, kind: &str, path: &Path) {
    let renamed = path.with_extension("");
    let path = match path.extension() {
        Some(e) if e == "tmp" && disk.read_file(path).is_err() => &renamed,
        _ => path,
    };
    match kind {
        "sync_dir" => disk.sync_dir(path).unwrap(),
        _ => disk.open(path, OpenMode::Read).unwrap().sync().unwrap(),
    }
}

/// Unlinks the oldest file of each ending beside `path`, if it is not the only one.
fn unlink_oldest(disk: &SimDisk, endings: &[&str], path: &Path) {
    for ending in endings {
        let of = |p: &PathBuf| {
            p.parent() == path.parent() && p.extension().is_some_and(|e| e == *ending)
        };
        let files: Vec<PathBuf> = disk.paths().into_iter().filter(of).collect();
        if let [oldest, _, ..] = &files[..] {
            disk.remove(oldest).unwrap();
        }
    }
}

/// An engine with this mistake.
fn liar(during: &'static str, mistake: Mistake) -> Liar {
    Arc::new(move || {
        let mut image = false;
        let mut late: Vec<(&'static str, PathBuf)> = Vec::new();
        let mut passed = false;
        Box::new(move |disk, doing, kind, path| {
            if kind == "create" {
                let ends = |extension: &str| path.extension().is_some_and(|e| e == extension);
                image = ends("image") || image && !ends("meta");
            }
            let now = match doing {
                _ if image && doing.starts_with("checkpoint") => "image",
                other => other,
            };
            let mut acted = false;
            if passed {
                passed = false;
                acted = !late.is_empty();
                for (kind, path) in late.drain(..) {
                    make_late(disk, kind, &path);
                }
            }
            let told = |acted| if acted { Told::Acted } else { Told::Nothing };
            if !now.starts_with(during) {
                return told(acted);
            }
            match mistake {
                Without(call) if is(call, kind, path) => Told::Answer(Ok(())),
                Late(call, _) if is(call, kind, path) => {
                    late.push((kind, path.to_path_buf()));
                    Told::Answer(Ok(()))
                }
                Late(_, after) if is(after, kind, path) => {
                    passed = true;
                    told(acted)
                }
                Unlinked(endings, before) if is(before, kind, path) => {
                    unlink_oldest(disk, endings, path);
                    Told::Acted
                }
                _ => told(acted),
            }
        })
    })
}

/// A workload that takes every step of which there is a break.
fn plan(seed: u64) -> Plan {
    let mut options = some_options(&mut Random(seed), vec!["a".into(), "b".into()]);
    options.retain_checkpoints = 2;
    options.thresholds = Thresholds {
        image_young_bytes: 0,
        image_young_part: 100,
        manifest_roll_bytes: 0,
        numbers_reserved: 17,
        ..Thresholds::default()
    };
    let rows = |from: u64, to: u64, value| Op::Rows(0, (from..to).map(key).collect(), value);
    let checkpoint = |step: u8| Op::Checkpoint(u64::from(step), vec![step; 700]);
    let ops = vec![
        rows(0, 20, 1.0),
        rows(20, 40, 2.0),
        checkpoint(1),
        rows(0, 8, 3.0),
        Op::Remove(0, vec![key(9), key(0)]),
        checkpoint(2),
        Op::Export,
        rows(4, 12, 4.0),
        checkpoint(3),
        Op::Recommit,
        rows(8, 16, 5.0),
        checkpoint(4),
        Op::Rollback(1),
        rows(1, 5, 6.0),
        checkpoint(5),
        Op::ReopenOther(seed),
        rows(2, 6, 7.0),
        checkpoint(6),
    ];
    Plan {
        ops,
        options,
        compacting: false,
    }
}

/// Of how many workloads each break must be found in one.
const WORKLOADS: u64 = 4;

#[test]
fn the_engine_as_it_is_has_none_of_these_mistakes() {
    for (seed, verdict) in in_parallel(0..2, |seed| crash_everywhere(seed, &plan(seed), None)) {
        let tally = verdict.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(tally.images > 1 && tally.compactions > 0, "{tally:?}");
    }
}

#[test]
fn every_planted_break_is_found() {
    let count = BREAKS.len() as u64;
    let found = in_parallel(0..count, |i| {
        let (during, _, mistake) = BREAKS[usize::try_from(i).unwrap()];
        (0..WORKLOADS).find_map(|seed| {
            let plan = plan(seed);
            let mut trial = Trial::new(seed, &plan, Some(liar(during, mistake)));
            trial.cuts_again = during == "recovery";
            trial.whole(&plan, false).err()
        })
    });
    let mut by_step: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut reorderings, mut missed) = (0, Vec::new());
    for (i, found) in found {
        let (during, what, mistake) = BREAKS[usize::try_from(i).unwrap()];
        *by_step.entry(during).or_default() += 1;
        reorderings += usize::from(!matches!(mistake, Without(_)));
        match found {
            Some(violation) => println!("{during}, {what}: {violation:.160}"),
            None => missed.push(format!("{during}, {what}")),
        }
    }
    assert!(missed.is_empty(), "no crash shows {missed:#?}");
    assert!(by_step.values().all(|n| *n >= 2), "{by_step:?}");
    assert!(reorderings >= 6, "{reorderings} reorderings");
}
