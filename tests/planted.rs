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
#[path = "common/mistakes.rs"]
#[expect(dead_code, reason = "other tests plant the rest")]
mod mistakes;
#[path = "common/trial.rs"]
#[expect(dead_code, reason = "the crash test uses the rest")]
mod trial;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::plans::{Plan, some_options};
use common::{Op, Random, key};
use hps::{CreateOptions, Thresholds};
use mistakes::{Call, Met, Mistake, Planted, late, unlinked, without};
use trial::{Liar, Told, Trial, crash_everywhere, in_parallel};

/// Weights of a narrow row.
const NARROW_DIM: usize = 256;

const RENAMED: Call = ("rename", "CURRENT.tmp");
const STORE_RENAMED: Call = ("rename", "STORE.tmp");

/// What is done when the mistake is made, its number of DURABILITY.md, and the mistake.
const BREAKS: [(&str, &str, Mistake); 31] = [
    ("create", "CURRENT unsynced", without(("sync", "CURRENT"))),
    (
        "create",
        "manifest unsynced",
        without(("sync", ".manifest")),
    ),
    ("create", "PART unsynced", without(("sync", "PART"))),
    (
        "create",
        "data directory unsynced",
        without(("sync_dir", "store/a")),
    ),
    (
        "create",
        "STORE renamed before the manifest is synced",
        late(("sync", ".manifest"), STORE_RENAMED),
    ),
    (
        "recovery",
        "CURRENT.tmp unsynced",
        without(("sync", "CURRENT.tmp")),
    ),
    (
        "recovery",
        "unlinks before CURRENT is durable",
        late(("sync_dir", "store"), ("remove", ".manifest")),
    ),
    (
        "checkpoint",
        "4a: row files unsynced",
        without(("sync", ".rows")),
    ),
    (
        "checkpoint",
        "4b: meta file unsynced",
        without(("sync", ".meta")),
    ),
    (
        "checkpoint",
        "4c: data directory unsynced",
        without(("sync_dir", "store/a")),
    ),
    (
        "checkpoint",
        "4c: root unsynced",
        without(("sync_dir", "store")),
    ),
    ("checkpoint", "5: copy unsynced", without(("sync", ".copy"))),
    (
        "checkpoint",
        "6b before 5: CURRENT renamed before the manifest is synced",
        late(("sync", ".manifest"), RENAMED),
    ),
    (
        "checkpoint",
        "6b before 6a: CURRENT renamed before its bytes are synced",
        late(("sync", "CURRENT.tmp"), RENAMED),
    ),
    (
        "checkpoint",
        "6b before 4a: CURRENT renamed before row files are synced",
        late(("sync", ".rows"), RENAMED),
    ),
    (
        "checkpoint",
        "7 before 6b: a forgotten meta file unlinked before CURRENT",
        unlinked(&["meta"], RENAMED),
    ),
    (
        "checkpoint",
        "7 before 6b: the old manifest unlinked before CURRENT",
        unlinked(&["manifest", "copy"], RENAMED),
    ),
    (
        "snapshot",
        "8a: a part of the index snapshot unsynced",
        without(("sync", ".snapshot")),
    ),
    (
        "snapshot",
        "8b: data directory unsynced",
        without(("sync_dir", "store/a")),
    ),
    (
        "snapshot",
        "8c: manifest unsynced",
        without(("sync", ".manifest")),
    ),
    (
        "snapshot",
        "8e before 8d: the old parts unlinked before CURRENT",
        unlinked(&["snapshot"], RENAMED),
    ),
    (
        "Rollback",
        "manifest unsynced",
        without(("sync", ".manifest")),
    ),
    ("Rollback", "root unsynced", without(("sync_dir", "store"))),
    (
        "Rollback",
        "CURRENT renamed before the manifest is synced",
        late(("sync", ".manifest"), RENAMED),
    ),
    (
        "Export",
        "target unsynced",
        without(("sync_dir", "export-0")),
    ),
    (
        "Export",
        "manifest unsynced",
        without(("sync", ".manifest")),
    ),
    (
        "Export",
        "STORE renamed before links are durable",
        late(("sync_dir", "export-0/part-0"), STORE_RENAMED),
    ),
    ("Recommit", "row files unsynced", without(("sync", ".rows"))),
    (
        "Recommit",
        "data directory unsynced",
        without(("sync_dir", "store/a")),
    ),
    (
        "Recommit",
        "CURRENT renamed before the manifest is synced",
        late(("sync", ".manifest"), RENAMED),
    ),
    (
        "Recommit",
        "the old manifest unlinked before CURRENT",
        unlinked(&["manifest", "copy"], RENAMED),
    ),
];

/// An engine with this mistake.
fn liar(during: &'static str, mistake: Mistake) -> Liar {
    Arc::new(move || {
        let mut snapshot = false;
        let mut planted = Planted::new(mistake);
        Box::new(move |disk, doing, kind, path| {
            if kind == "create" {
                let ends = |extension: &str| path.extension().is_some_and(|e| e == extension);
                snapshot = ends("snapshot") || snapshot && !ends("meta");
            }
            let now = match doing {
                _ if snapshot && doing.starts_with("checkpoint") => "snapshot",
                other => other,
            };
            let acted = planted.catch_up(disk);
            let met = match now.starts_with(during) {
                true => planted.meet(disk, kind, path),
                false => Met::Nothing,
            };
            match met {
                Met::Answered => Told::Answer(Ok(())),
                Met::Nothing if !acted => Told::Nothing,
                Met::Nothing | Met::Acted => Told::Acted,
            }
        })
    })
}

/// A workload that takes every step of which there is a break.
fn plan(seed: u64) -> Plan {
    let mut options = some_options(&mut Random(seed));
    options.retain_checkpoints = 2;
    options.thresholds = Thresholds {
        snapshot_young_bytes: 0,
        snapshot_young_part: 1000,
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
        create: CreateOptions::new().data_directories(vec!["a".into(), "b".into()]),
        options,
        compacting: false,
        older: false,
    }
}

/// Of how many workloads each break must be found in one.
const WORKLOADS: u64 = 4;

#[test]
fn the_engine_as_it_is_has_none_of_these_mistakes() {
    for (seed, verdict) in in_parallel(0..2, |seed| crash_everywhere(seed, &plan(seed), None)) {
        let tally = verdict.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(tally.snapshots > 1 && tally.compactions > 0, "{tally:?}");
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
        reorderings += usize::from(!matches!(mistake, Mistake::Without(_)));
        match found {
            Some(violation) => println!("{during}, {what}: {violation:.160}"),
            None => missed.push(format!("{during}, {what}")),
        }
    }
    assert!(missed.is_empty(), "no crash shows {missed:#?}");
    assert!(by_step.values().all(|n| *n >= 2), "{by_step:?}");
    assert!(reorderings >= 6, "{reorderings} reorderings");
}
