//! How is a walk given to C, as much at a time as there is room for?

use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard};

use store::part_range;

use crate::border::{Process, lock};
use crate::error::{Fault, Result};

/// A key that was read and not given yet.
pub struct Pending {
    pub table: u32,
    pub key: u64,
    pub interval: u32,
    /// None: it was removed.
    pub values: Option<Vec<f32>>,
}

/// What is walked.
pub trait Source {
    /// The next key, if any.
    fn next(&mut self) -> Result<Option<Pending>>;
}

/// A walk, and what it has read ahead.
pub struct Walk<S> {
    source: S,
    pub pending: Option<Pending>,
}

impl<S: Source> Walk<S> {
    /// The key that comes next, if any.
    pub fn peek(&mut self) -> Result<Option<&Pending>> {
        if self.pending.is_none() {
            self.pending = self.source.next()?;
        }
        Ok(self.pending.as_ref())
    }
}

/// A walk that several threads use in turn, of the process that began it.
pub struct Shared<S> {
    process: Process,
    walk: Mutex<Walk<S>>,
}

impl<S> Shared<S> {
    pub fn new(source: S) -> Shared<S> {
        let pending = None;
        Shared {
            process: Process::this(),
            walk: Mutex::new(Walk { source, pending }),
        }
    }

    /// The walk, for a call.
    ///
    /// # Errors
    /// `Forked`.
    pub fn walk(&self) -> Result<MutexGuard<'_, Walk<S>>> {
        self.process.check()?;
        Ok(lock(&self.walk))
    }
}

/// One of equal ranges of keys.
///
/// # Errors
/// `Option` where there is no such part.
pub fn range_of_part(part: usize, parts: usize) -> Result<RangeInclusive<u64>> {
    if part >= parts {
        let why = format!("must be below parts, which is {parts}");
        return Err(Fault::option("part", part, &why));
    }
    Ok(part_range(part, parts))
}
