//! How do tests repair a damaged store, and compare what comes of it with the truth?

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::repair::{Fate, LostRow, RepairOptions, RepairOutcome, Repaired, repair_on};
use hps::*;

use super::common::ROOT;
use super::sample::{Bits, COPIES, grow, read_rows, sample};

/// Bits of each row by (table, key).
pub type Rows = BTreeMap<(usize, u64), Vec<u32>>;

pub fn contents(disk: impl Into<Io>, root: &Path, checkpoint: CheckpointId) -> Result<Rows> {
    let (rows, error) = read_rows(disk, root, Some(checkpoint));
    let by_key = |(table, key, bits): Bits| ((table.0 as usize, key), bits);
    match error {
        Some(error) => Err(error),
        None => Ok(rows.into_iter().map(by_key).collect()),
    }
}

pub fn of_sim(disk: &SimDisk, root: &Path, checkpoint: CheckpointId) -> Rows {
    contents(Arc::new(disk.clone()), root, checkpoint).unwrap()
}

pub fn run_repair(disk: &SimDisk, options: RepairOptions) -> Result<RepairOutcome> {
    repair_telling(disk, options).map(|(outcome, _)| outcome)
}

/// A repair, and the rows that it has told to be lost.
pub fn repair_telling(
    disk: &SimDisk,
    options: RepairOptions,
) -> Result<(RepairOutcome, Vec<LostRow>)> {
    repaired_on(&Io::of(disk.clone()), options)
}

pub fn repaired_on(io: &Io, options: RepairOptions) -> Result<(RepairOutcome, Vec<LostRow>)> {
    let mut lost: Vec<LostRow> = Vec::new();
    let outcome = repair_on(
        io,
        Path::new(ROOT),
        options,
        &mut |_, row| {
            let order = |row: &LostRow| (row.table, mix64(row.key));
            assert!(lost.last().is_none_or(|last| order(last) < order(&row)));
            lost.push(row);
            Ok(())
        },
        &mut |_, _| ControlFlow::Continue(()),
    )?;
    if let RepairOutcome::Built(_, repaired) = &outcome {
        assert_eq!(repaired.lost.sum(), lost.len() as u64);
    }
    Ok((outcome, lost))
}

pub fn files_of(disk: &SimDisk, root: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = disk.paths().into_iter();
    paths
        .filter(|p| p.starts_with(root) && !p.ends_with("LOCK"))
        .map(|p| (p.clone(), disk.read_file(&p).unwrap()))
        .collect()
}

/// What the rows were at each checkpoint.
pub struct Truth {
    pub by_checkpoint: BTreeMap<CheckpointId, Rows>,
    /// What older copies may be.
    pub older: Rows,
}

impl Truth {
    pub fn of(disk: &SimDisk) -> Truth {
        let of = |id| (id, of_sim(disk, Path::new(ROOT), id));
        let by_checkpoint: BTreeMap<_, _> = [1, 2].map(CheckpointId).into_iter().map(of).collect();
        let older = by_checkpoint[&CheckpointId(1)].clone();
        Truth {
            by_checkpoint,
            older,
        }
    }

    /// Whatever differs from the truth must have been told.
    pub fn check(&self, repaired: &Repaired, lost: &[LostRow], found: &Rows, what: &str) {
        let truth = &self.by_checkpoint[&repaired.checkpoint];
        let mut unexplained = 0;
        let keys: std::collections::BTreeSet<_> = truth.keys().chain(found.keys()).collect();
        for at in keys {
            let told = |l: &&LostRow| (l.table as usize, l.key) == *at;
            let told = lost.iter().find(told);
            let (right, left) = (truth.get(at), found.get(at));
            match told {
                None => unexplained += u64::from(right != left),
                Some(lost) if lost.now != Fate::Gone => {
                    let older = self.older.get(at);
                    assert!(left.is_some() && left == older, "{what}: {lost:?}");
                }
                Some(lost) => assert_eq!(left, None, "{what}: {lost:?}"),
            }
        }
        let most = repaired.nameless;
        assert!(
            unexplained <= most,
            "{what}: {unexplained} rows differ, {most} were told"
        );
    }
}

/// A store with an index snapshot.
pub fn grown() -> (SimDisk, Truth) {
    let (disk, mut run) = sample(1);
    let mut older = of_sim(&disk, Path::new(ROOT), CheckpointId(1));
    grow(&mut run);
    let by_checkpoint: BTreeMap<_, _> = [2, 3]
        .map(CheckpointId)
        .map(|id| (id, of_sim(&disk, Path::new(ROOT), id)))
        .into();
    let newest = f32::from(COPIES).to_bits();
    let before = f32::from(COPIES - 1).to_bits();
    let many = by_checkpoint[&CheckpointId(3)]
        .iter()
        .filter(|(_, row)| **row == [newest]);
    older.extend(many.map(|(at, _)| (*at, vec![before])));
    let truth = Truth {
        by_checkpoint,
        older,
    };
    let snapshot = |p: &PathBuf| p.extension().is_some_and(|e| e == "snapshot");
    assert!(disk.paths().iter().any(snapshot));
    (disk, truth)
}

/// A repair of the damaged store: what was saved is right or told, and nothing else was touched.
/// Gives what was built, or what the error says.
pub fn check_repair(
    disk: &SimDisk,
    truth: &Truth,
    options: RepairOptions,
    what: &str,
) -> Result<Repaired> {
    let before = files_of(disk, ROOT);
    let outcome = repair_telling(disk, options);
    assert!(
        files_of(disk, ROOT) == before,
        "{what}: the damaged store was changed"
    );
    let beside = "/store.repair";
    match outcome {
        Ok((RepairOutcome::Whole(report), _)) => {
            panic!("{what}: {:?} was taken for whole", report.findings)
        }
        Ok((RepairOutcome::Built(_, repaired), lost)) => {
            assert_eq!(repaired.path, Path::new(beside));
            let found = of_sim(disk, Path::new(beside), repaired.checkpoint);
            truth.check(&repaired, &lost, &found, what);
            for path in disk.paths().into_iter().filter(|p| p.starts_with(beside)) {
                disk.remove(&path).unwrap();
            }
            Ok(*repaired)
        }
        Err(error) => {
            let left = files_of(disk, beside);
            assert!(left.is_empty(), "{what}: {:?} stays behind", left.keys());
            Err(error)
        }
    }
}
