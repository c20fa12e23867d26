//! What happens when a call of a reader or of an inspection fails?
//!
//! - Every call of opening a store read-only, walking its rows and reading its metas fails, one per
//!   run, in every way, once or from then on: a clean error, or all the rows. The same handle reads
//!   on once the disk works.
//! - The same for an inspection: an error, or a report that tells it; never damage unfounded.
//! - Neither changes a byte.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/crash.rs"]
#[expect(dead_code, reason = "the crash test uses the rest")]
mod common;
#[path = "common/sample.rs"]
mod sample;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use common::ROOT;
use hps::format::checksum::digest128;
use hps::inspect::{Report, Scope, inspect_on};
use hps::io::Io;
use hps::io::sim::{Fault, SimDisk};
use hps::*;
use nix::errno::Errno;
use sample::{Bits, grow, read_rows, sample};

/// Weights of a narrow row.
const NARROW_DIM: usize = 256;

/// How a call fails, and whether all after it do.
type Failing = (Fault, bool);

const EIO: Fault = Fault::Error(Errno::EIO as i32);
const ENOMEM: Fault = Fault::Error(Errno::ENOMEM as i32);

/// Of each checkpoint: its id, its meta, its rows.
type Shown = Vec<(CheckpointId, Vec<u8>, Vec<Bits>)>;

/// Everything that a store shows.
fn walk(store: &Store) -> Result<Shown> {
    let mut all = Shown::new();
    for info in store.checkpoints() {
        let meta = store.checkpoint_meta(info.id)?;
        let (mut iter, mut rows) = (store.rows(info.id)?, Vec::new());
        while let Some(row) = iter.next_row()? {
            let bits = row.values.iter().map(|v| v.to_bits()).collect();
            rows.push((row.table, row.key, bits));
        }
        all.push((info.id, meta, rows));
    }
    Ok(all)
}

/// The system's error, with the file or directory of the store that it came of.
fn is_clean(error: &Error, fault: Fault) {
    let expected = match fault {
        Fault::Error(errno) => errno,
        _ => Errno::EINTR as i32,
    };
    match error {
        Error::Io { path, source, .. } => {
            assert_eq!(source.raw_os_error(), Some(expected), "{error}");
            assert!(path.starts_with(ROOT), "{error}");
        }
        other => panic!("{fault:?}: {other:?}"),
    }
}

/// Does `work` on a disk of which one call fails, for each call that it makes, in each of these ways;
/// how often each of its words came.
fn at_every_call(
    disk: &SimDisk,
    ways: &[Failing],
    work: impl Fn(&SimDisk, Fault) -> &'static str,
) -> BTreeMap<&'static str, u64> {
    let before = disk.digest(digest128);
    let mut ends = BTreeMap::new();
    for (fault, sticky) in ways.iter().copied() {
        for call in 0.. {
            let disk = disk.killed(1);
            disk.fail_at(call, fault, sticky);
            let end = work(&disk, fault);
            assert!(
                end == "whole" || fault != Fault::Short,
                "call {call} is short"
            );
            assert_eq!(
                disk.digest(digest128),
                before,
                "{fault:?} at {call}: a byte changed"
            );
            *ends.entry(end).or_default() += 1;
            if disk.calls() <= call {
                assert_eq!(end, "whole");
                break;
            }
        }
    }
    ends
}

#[test]
fn whichever_call_of_a_reader_fails_it_says_so_and_reads_on_once_the_disk_works() {
    let (disk, run) = sample(1);
    let open = |disk: &SimDisk| {
        let io = Io::of(disk.clone());
        Store::open_read_only_on(io, Path::new(ROOT), None, run.options.clone())
    };
    let truth = walk(&open(&disk.killed(1)).unwrap()).unwrap();
    let faults = [EIO, ENOMEM, Fault::Interrupted, Fault::Short];
    let ways = faults.map(|fault| [(fault, false), (fault, true)]);
    let ends = at_every_call(&disk, ways.as_flattened(), |disk, fault| {
        let store = match open(disk) {
            Ok(store) => store,
            Err(error) => {
                is_clean(&error, fault);
                disk.clear_faults();
                assert!(walk(&open(disk).unwrap()).unwrap() == truth);
                return "not opened";
            }
        };
        let Err(error) = walk(&store).map(|all| assert!(all == truth, "other rows")) else {
            return "whole";
        };
        is_clean(&error, fault);
        disk.clear_faults();
        assert!(walk(&store).unwrap() == truth, "the same handle, later");
        "not read"
    });
    println!("a reader: {ends:?}");
    assert!(
        ends.len() == 3 && ends.values().all(|n| *n > 20),
        "{ends:?}"
    );
}

fn look(disk: &SimDisk) -> Result<Report> {
    let scope = Scope::new().full(true);
    let on = &mut |_, _| ControlFlow::Continue(());
    inspect_on(&Io::of(disk.clone()), Path::new(ROOT), scope, on)
}

#[test]
fn whichever_call_of_an_inspection_fails_it_says_so_and_finds_nothing_later() {
    let (disk, mut run) = sample(1);
    grow(&mut run);
    let counts = |report: &Report| {
        let tables = report.tables.iter();
        tables.map(|t| (t.rows, t.tombstones)).collect::<Vec<_>>()
    };
    let whole = look(&disk.killed(1)).unwrap();
    assert!(whole.findings.is_empty(), "{:?}", whole.findings);
    let (all, short) = ((EIO, true), (Fault::Short, false));
    let ways = [(EIO, false), all, (Fault::Interrupted, true), short];
    let ends = at_every_call(&disk, &ways, |disk, fault| {
        let end = match look(disk) {
            Ok(report) if report.findings.is_empty() => {
                assert_eq!(counts(&report), counts(&whole));
                return "whole";
            }
            Ok(report) => {
                for finding in &report.findings {
                    let told = finding.what.contains("os error");
                    assert!(told, "{fault:?}: {finding:?}");
                }
                "found"
            }
            Err(error) => {
                is_clean(&error, fault);
                "refused"
            }
        };
        disk.clear_faults();
        let later = look(disk).unwrap();
        assert!(later.findings.is_empty(), "{:?}", later.findings);
        end
    });
    println!("an inspection: {ends:?}");
    assert!(ends.values().sum::<u64>() > 300, "{ends:?}");
    let (rows, error) = read_rows(Arc::new(disk), Path::new(ROOT), None);
    assert!(error.is_none() && !rows.is_empty());
}
