//! How is the store of `fuzz/src/tiny.rs` used on a real file system?

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use hps::format::current::Current;
use hps::inspect::{Scope, Severity, inspect_on};
use hps::io::Io;
use hps::*;

use crate::forge::Files;
use crate::forging::STORE;
use crate::oracle::{Oracle, name_of};
use crate::tiny::{self, ROOT, Rows, Tiny, key, options};

/// Longest time that an open, an inspection or a checkpoint of a tiny store may take.
const SECONDS_MAX: u64 = 20;

/// Does something in a thread of its own; fails when that takes too long.
pub fn within<T: Send + 'static>(what: &str, action: impl FnOnce() -> T + Send + 'static) -> T {
    within_seconds(SECONDS_MAX, what, action)
}

/// As [`within`].
pub fn within_seconds<T: Send + 'static>(
    seconds: u64,
    what: &str,
    action: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (sender, receiver) = channel();
    std::thread::spawn(move || sender.send(action()));
    match receiver.recv_timeout(Duration::from_secs(seconds)) {
        Ok(done) => done,
        Err(RecvTimeoutError::Timeout) => panic!("{what} hangs"),
        Err(RecvTimeoutError::Disconnected) => panic!("{what} panicked"),
    }
}

pub fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

pub fn copy_dir(source: &Path, target: &Path) {
    fs::create_dir(target).unwrap();
    for entry in fs::read_dir(source).unwrap() {
        let (from, to) = {
            let entry = entry.unwrap();
            (entry.path(), target.join(entry.file_name()))
        };
        match from.is_dir() {
            true => copy_dir(&from, &to),
            false => drop(fs::copy(&from, &to).unwrap()),
        }
    }
}

/// A store with a file of every kind, and what it holds.
#[derive(Clone)]
pub struct Sample {
    files: Arc<Files>,
    oracle: Arc<Oracle>,
}

impl Sample {
    pub fn new() -> Sample {
        let tiny = Tiny::new().unwrap();
        Sample {
            oracle: Arc::new(Oracle::new(&tiny)),
            files: Arc::new(tiny.files),
        }
    }

    /// Names of the files, from the store's directory.
    pub fn names(&self) -> Vec<String> {
        let name = |path: &PathBuf| {
            path.strip_prefix(ROOT)
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned()
        };
        self.files.keys().map(name).collect()
    }

    pub fn file(&self, name: &str) -> &[u8] {
        &self.files[&Path::new(ROOT).join(name)]
    }

    /// The first file number that was never given out.
    pub fn next_number(&self) -> u64 {
        Current::decode(self.file("CURRENT"), &STORE)
            .unwrap()
            .file_number_limit
            .0
    }

    /// Writes the store to a directory that is not there.
    pub fn write(&self, directory: &Path) {
        for name in self.names() {
            let path = directory.join(&name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, self.file(&name)).unwrap();
        }
    }

    /// Opens the store and reads all of it; says "opens", or which error there was.
    pub fn open(&self, directory: &Path, read_only: bool) -> String {
        let opened = match read_only {
            true => Store::open_read_only(directory, None, options()),
            false => Store::open(directory, options()),
        };
        match opened {
            Err(error) => format!("{}: {error}", name_of(&error)),
            Ok(store) => {
                let told: Vec<String> = self.oracle.read(&store).into_iter().collect();
                match told.is_empty() {
                    true => String::from("opens"),
                    false => format!("opens ({})", told.join(", ")),
                }
            }
        }
    }

    /// Opens the store, changes a row, makes a checkpoint, opens it again and finds the row; says
    /// "went on", or which error there was before the checkpoint.
    pub fn go_on(&self, directory: &Path) -> String {
        let go_on = || -> Result<()> {
            let store = Store::open(directory, options())?;
            tiny::push(&store, &mut Rows::new(), 0, &[key(20)], 99)?;
            store.checkpoint(1 << 40, b"went on")?;
            store.close()
        };
        if let Err(error) = go_on() {
            return format!("{}: {error}", name_of(&error));
        }
        let store = Store::open(directory, options()).unwrap();
        let mut out = [0.0; 3];
        drop(store.pull(TableId(0), &[key(20)], &mut out).unwrap());
        assert_eq!(out, [99.0, 100.0, 101.0]);
        String::from("went on")
    }
}

/// The worst finding of a full inspection.
pub fn look(_: &Sample, directory: &Path) -> String {
    let disk = Io::pread();
    let scope = Scope::new().full(true);
    let go_on = &mut |_, _| ControlFlow::Continue(());
    match inspect_on(&disk, directory, scope, go_on) {
        Err(error) => format!("{}: {error}", name_of(&error)),
        Ok(report) => match report.worst() {
            None => "clean",
            Some(Severity::Leftover) => "leftover",
            Some(Severity::Cache) => "cache",
            Some(Severity::Damage) => "damage",
        }
        .to_owned(),
    }
}
