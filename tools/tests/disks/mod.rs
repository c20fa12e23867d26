//! How do tests compare a store on a real file system with what must be there?
//!
//! - [`Trainer`] keeps, beside the store, the rows now and those of the last checkpoint.
//! - A test that can't run where it is says so by [`skipped`], past the capture of the harness.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test helpers fail the test"
)]

#[path = "../../../tests/common/skip.rs"]
mod skip;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use hps::inspect::{Scope, Severity, inspect_on};
use hps::io::Io;
use hps::*;

/// Weights of a row, all equal.
pub const DIM: usize = 64;

/// splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % bound
    }
}

/// Says a line that the harness does not keep to itself.
pub fn say(text: &str) {
    let line = format!("{text}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// Says that a test does nothing here.
pub fn skipped(test: &str, why: &str) {
    skip::skipped(&format!("{test}: {why}; NOTHING WAS TESTED"));
}

/// Runs this one test in a mount namespace of its own, whose mounts go with its last process; false
/// where that was done, true where the caller is in there and has to do the work.
pub fn own_mounts(test: &str) -> bool {
    const INSIDE: &str = "HPS_OWN_MOUNTS";
    let unshare = || {
        let mut command = Command::new("unshare");
        command.arg("--mount");
        command
    };
    let can = unshare().arg("true").output();
    if std::env::var_os(INSIDE).is_some() || !can.is_ok_and(|o| o.status.success()) {
        return true;
    }
    let mut command = unshare();
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    command.env(INSIDE, "1").stderr(Stdio::inherit());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{test}: {}\n{said}", output.status);
    // A name that no test has would pass, too.
    assert!(said.contains("1 passed"), "{test}: {said}");
    false
}

/// The given number, or the default.
pub fn environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Options of all stores here: a small cache, and no limit but that of the file system.
pub fn options() -> RuntimeOptions {
    RuntimeOptions::new()
        .cache_bytes(1 << 20)
        .file_bytes(1 << 20)
        .shards(2)
        .threads(2)
        .io_depth(8)
        .disk_bytes_max(1 << 40)
}

/// A store, and what must be in it.
pub struct Trainer {
    pub path: PathBuf,
    pub options: RuntimeOptions,
    pub store: Option<Store>,
    pub rows: BTreeMap<u64, f32>,
    /// Rows of the last checkpoint, and its step.
    pub durable: BTreeMap<u64, f32>,
    pub step: u64,
}

impl Trainer {
    /// A new store with one table.
    pub fn create(path: &Path, options: RuntimeOptions) -> Result<Trainer> {
        Trainer::create_in(path, Vec::new(), options)
    }

    /// The same with these data directories.
    pub fn create_in(path: &Path, parts: Vec<PathBuf>, options: RuntimeOptions) -> Result<Trainer> {
        let create = CreateOptions::new().data_directories(parts);
        let store = Store::create(path, create, options.clone())?;
        store.create_table(&TableDescriptor::new("rows", DIM).initialiser(Initialiser::Zero))?;
        let (path, store) = (path.to_path_buf(), Some(store));
        let (rows, durable) = (BTreeMap::new(), BTreeMap::new());
        Ok(Trainer {
            path,
            options,
            store,
            rows,
            durable,
            step: 0,
        })
    }

    pub fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    /// Sets some rows.
    pub fn set(&mut self, keys: &[u64], value: f32) -> Result<()> {
        let mut out = vec![0.0; keys.len() * DIM];
        let lease = self.store().pull(TableId(0), keys, &mut out)?;
        for (key, row) in keys.iter().zip(out.chunks_exact(DIM)) {
            let wanted = self.rows.get(key).copied().unwrap_or(0.0);
            assert!(row.iter().all(|w| *w == wanted), "key {key}: {}", row[0]);
        }
        out.fill(value);
        self.store().push(&lease, Update::weights(&out))?;
        self.rows.extend(keys.iter().map(|key| (*key, value)));
        Ok(())
    }

    /// Sets random rows of `0..keys`.
    pub fn set_random(&mut self, random: &mut Random, keys: u64, count: u64) -> Result<()> {
        let chosen: std::collections::BTreeSet<u64> =
            (0..count).map(|_| random.below(keys)).collect();
        let chosen: Vec<u64> = chosen.into_iter().collect();
        let value = 1.0 + random.below(1 << 20) as f32;
        self.set(&chosen, value)
    }

    pub fn checkpoint(&mut self, meta: &[u8]) -> Result<()> {
        self.store().checkpoint(self.step + 1, meta)?;
        self.step += 1;
        self.durable = self.rows.clone();
        Ok(())
    }

    /// The last checkpoint holds what it must.
    pub fn last_checkpoint_is_whole(&self) {
        let store = self.store();
        let Some(last) = store.last_checkpoint() else {
            assert_eq!(self.step, 0, "no checkpoint");
            return;
        };
        assert_eq!(last.step, self.step, "the last checkpoint");
        let mut found = BTreeMap::new();
        let mut rows = store.rows(last.id).unwrap();
        while let Some(row) = rows.next_row().unwrap() {
            let weights = &row.values[..DIM];
            assert!(weights.iter().all(|w| *w == weights[0]), "a torn row");
            found.insert(row.key, weights[0]);
        }
        assert!(found == self.durable, "rows of checkpoint {}", last.step);
    }

    /// Rows can be read, unless room in memory needs room on the disk, or writing is over.
    pub fn rows_are_readable(&self) -> u64 {
        self.rows_are_readable_but_of(&BTreeSet::new())
    }

    /// As [`Trainer::rows_are_readable`]; those of files with these names, of which the disk has
    /// lost bytes, may be refused as damaged. None has another value.
    pub fn rows_are_readable_but_of(&self, dropped: &BTreeSet<OsString>) -> u64 {
        let lost = |path: &Path| path.file_name().is_some_and(|name| dropped.contains(name));
        let mut read = 0;
        let step = (self.rows.len() / 500).max(1);
        for (key, value) in self.rows.iter().step_by(step) {
            let mut out = vec![0.0; DIM];
            match self.store().pull(TableId(0), &[*key], &mut out) {
                Ok(_) => {
                    assert!(out.iter().all(|w| w == value), "key {key}: {}", out[0]);
                    read += 1;
                }
                Err(Error::NoSpace { .. } | Error::Poisoned { .. }) => {}
                Err(Error::Corrupt { path, .. } | Error::Io { path, .. }) if lost(&path) => {}
                Err(error) => panic!("key {key}: {error}"),
            }
        }
        read
    }

    /// Opens it at its last checkpoint, whatever happened to it before.
    pub fn reopen(&mut self) {
        self.store = None;
        let store = Store::open(&self.path, self.options.clone());
        self.store = Some(store.unwrap_or_else(|error| panic!("does not open again: {error}")));
        self.rows = self.durable.clone();
        self.last_checkpoint_is_whole();
        assert!(self.rows.is_empty() || self.rows_are_readable() > 0);
    }

    /// The closed store has no damage. Files that no checkpoint needs may be there: a compaction
    /// that ended after the last checkpoint leaves them to the next opening.
    pub fn inspection_is_clean(&self) {
        let disk = Io::pread();
        let scope = Scope::new().full(true);
        let mut go_on = |_, _| std::ops::ControlFlow::Continue(());
        let report = inspect_on(&disk, &self.path, scope, &mut go_on).unwrap();
        let worst = report.worst();
        let fine = worst.is_none_or(|worst| worst == Severity::Leftover);
        assert!(fine, "{:?}", report.findings);
    }
}
