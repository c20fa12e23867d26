//! How does an input become a directory that someone has changed?
//!
//! - Two bytes of flags, then changes to the files of a tiny store ([`crate::tiny`]): bytes, lengths,
//!   files gone, copied over each other or new.
//! - A flag puts right checksums over everything after that ([`crate::forge`]), up to `CURRENT`.

use std::path::{Path, PathBuf};

use hps::FileNumber;
use hps::format::{FileKind, file_name};

use crate::Input;
use crate::forge::{self, Files};
use crate::tiny::ROOT;

/// Most changes of an input, and most bytes of a file.
const CHANGES_MAX: usize = 12;
const FILE_BYTES_MAX: usize = 1 << 16;

/// A changed directory.
#[derive(Debug)]
pub struct Changed {
    flags: u64,
    /// All of its files.
    pub files: Files,
}

impl Changed {
    /// What an input makes of a whole store.
    #[must_use]
    pub fn new(bytes: &[u8], whole: &Files) -> Changed {
        let mut input = Input::new(bytes);
        let flags = input.number(2);
        let mut files = whole.clone();
        for _ in 0..CHANGES_MAX {
            if input.is_empty() {
                break;
            }
            change(&mut files, &mut input);
        }
        let changed = Changed { flags, files };
        match changed.is_forged() {
            true => changed.forged(),
            false => changed,
        }
    }

    /// Whether a flag is set.
    #[must_use]
    pub fn flag(&self, bit: u32) -> bool {
        self.flags & (1 << bit) != 0
    }

    /// Whether checksums are right whatever they cover.
    #[must_use]
    pub fn is_forged(&self) -> bool {
        self.flag(0)
    }

    fn forged(mut self) -> Changed {
        forge::store(&mut self.files, Path::new(ROOT));
        self
    }
}

/// Makes one change.
fn change(files: &mut Files, input: &mut Input<'_>) {
    let kind = input.below(9);
    let paths: Vec<PathBuf> = files.keys().cloned().collect();
    if paths.is_empty() {
        return;
    }
    let path = &paths[input.below(paths.len())];
    let Some(bytes) = files.get_mut(path) else {
        return;
    };
    let drawn = input.number(2) as usize;
    // Most files are far shorter than 64 KiB: a place behind their end would change nothing.
    let at = drawn % (bytes.len() + 1);
    match kind {
        0 => {
            let mask = input.number(1) as u8;
            bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= mask);
        }
        1 | 2 => {
            let count = if kind == 1 { 8 } else { 1 + input.below(32) };
            let new = input.take(count);
            let places = bytes.iter_mut().skip(at);
            places.zip(new).for_each(|(place, new)| *place = *new);
        }
        3 => bytes.truncate(at),
        4 => {
            let value = input.number(1) as u8;
            bytes.resize((bytes.len() + drawn).min(FILE_BYTES_MAX), value);
        }
        5 => drop(files.remove(path)),
        6 => {
            let copy = bytes.clone();
            files.insert(paths[input.below(paths.len())].clone(), copy);
        }
        7 => {
            let from = input.number(2) as usize % (bytes.len() + 1);
            let count = input.number(2) as usize;
            let count = count.min(bytes.len().saturating_sub(from.max(at)));
            if count > 0 {
                bytes.copy_within(from..from + count, at);
            }
        }
        _ => {
            let copy = bytes.clone();
            let kind = FileKind::ALL[input.below(FileKind::ALL.len())];
            let name = file_name(kind, FileNumber(input.number(1)));
            let beside = path.parent().unwrap_or(Path::new(ROOT)).join(name);
            files.insert(beside, copy);
        }
    }
}
