//! Mistakes in the order of syncs, planted between an engine and its disk.
#![expect(clippy::unwrap_used, reason = "used by tests")]

use std::path::{Path, PathBuf};

use hps::io::OpenMode;
use hps::io::sim::SimDisk;

/// The kind of a call, and how its path ends.
pub type Call = (&'static str, &'static str);

/// What is wrong with an engine.
#[derive(Clone, Copy, Debug)]
pub enum Mistake {
    /// A call is left out.
    Without(Call),
    /// A sync is made only once this other call has been made.
    Late(Call, Call),
    /// The same, but right until a first call has been made.
    LateSince(Call, Call, Call),
    /// Just before this call, the oldest files with one of these endings are unlinked.
    Unlinked(&'static [&'static str], Call),
}

use Mistake::{Late, LateSince, Unlinked, Without};

pub const fn without(call: Call) -> Mistake {
    Without(call)
}

pub const fn late(call: Call, after: Call) -> Mistake {
    Late(call, after)
}

pub const fn late_since(first: Call, call: Call, after: Call) -> Mistake {
    LateSince(first, call, after)
}

pub const fn unlinked(endings: &'static [&'static str], before: Call) -> Mistake {
    Unlinked(endings, before)
}

/// What the mistake does about a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Met {
    /// Nothing.
    Nothing,
    /// Something else was done to the disk before it.
    Acted,
    /// It is answered without the disk.
    Answered,
}

/// A mistake, while calls are made.
#[derive(Debug)]
pub struct Planted {
    mistake: Mistake,
    since: bool,
    passed: bool,
    late: Vec<(&'static str, PathBuf)>,
}

impl Planted {
    pub fn new(mistake: Mistake) -> Planted {
        Planted {
            mistake,
            since: !matches!(mistake, LateSince(..)),
            passed: false,
            late: Vec::new(),
        }
    }

    /// Before each call: makes what was left for after the one before; whether there was something.
    pub fn catch_up(&mut self, disk: &SimDisk) -> bool {
        if !std::mem::take(&mut self.passed) {
            return false;
        }
        let acted = !self.late.is_empty();
        for (kind, path) in self.late.drain(..) {
            make_late(disk, kind, &path);
        }
        acted
    }

    /// A call in which the mistake may be made.
    pub fn meet(&mut self, disk: &SimDisk, kind: &'static str, path: &Path) -> Met {
        let is = |call: Call| kind == call.0 && path.to_string_lossy().ends_with(call.1);
        match self.mistake {
            Without(call) if is(call) => Met::Answered,
            Unlinked(endings, before) if is(before) => {
                unlink_oldest(disk, endings, path);
                Met::Acted
            }
            Late(late, after) | LateSince(_, late, after) => {
                self.passed = is(after);
                let answered = self.since && is(late);
                self.since |= matches!(self.mistake, LateSince(first, ..) if is(first));
                if !answered {
                    return Met::Nothing;
                }
                self.late.push((kind, path.to_path_buf()));
                Met::Answered
            }
            _ => Met::Nothing,
        }
    }
}

/// Syncs what a call named that was answered too early. A file that was renamed, and a repaired
/// store, have their other names by now.
fn make_late(disk: &SimDisk, kind: &str, path: &Path) {
    let path = match path.strip_prefix("/store.repair") {
        Ok(inside) => Path::new("/store").join(inside),
        Err(_) => path.to_path_buf(),
    };
    let path = match path.extension() {
        Some(e) if e == "tmp" && disk.read_file(&path).is_err() => path.with_extension(""),
        _ => path,
    };
    match kind {
        "sync_dir" => disk.sync_dir(&path).unwrap(),
        _ => disk.open(&path, OpenMode::Read).unwrap().sync().unwrap(),
    }
}

/// Unlinks the oldest file of each ending in the directory of `path` and in each one inside it, where
/// it is not the only one.
fn unlink_oldest(disk: &SimDisk, endings: &[&str], path: &Path) {
    let root = path.parent();
    for ending in endings {
        let of = |p: &PathBuf| p.extension().is_some_and(|e| e == *ending);
        let files: Vec<PathBuf> = disk.paths().into_iter().filter(of).collect();
        for files in files.chunk_by(|a, b| a.parent() == b.parent()) {
            let place = files[0].parent();
            let inside = place == root || place.and_then(Path::parent) == root;
            if let [oldest, _, ..] = files
                && inside
            {
                disk.remove(oldest).unwrap();
            }
        }
    }
}
