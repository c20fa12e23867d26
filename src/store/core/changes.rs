//! What has changed since the last durable checkpoint's cut?

use std::sync::atomic::Ordering;

use crate::sync::atomic::{AtomicBool, AtomicU64};

/// Rows counted since the last cut: a number of the cut in the upper bits, the rows in the lower.
#[derive(Debug, Default)]
struct SinceCut(AtomicU64);

/// Which cut rows are counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutMark(u64);

impl SinceCut {
    const ROWS: u64 = (1 << 40) - 1;

    fn cut(&self) {
        let next = |x: u64| Some((x | Self::ROWS).wrapping_add(1));
        let _always = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    fn mark(&self) -> CutMark {
        CutMark(self.0.load(Ordering::Relaxed) & !Self::ROWS)
    }

    fn add(&self, mark: CutMark, rows: u64) {
        let sum = |x: u64| (x & !Self::ROWS == mark.0).then_some(x + rows);
        let _late = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }

    fn rows(&self) -> u64 {
        self.0.load(Ordering::Relaxed) & Self::ROWS
    }
}

/// Whether, and how much, the store holds that its last checkpoint does not.
#[derive(Debug, Default)]
pub struct Changes {
    changed: AtomicBool,
    flushed_rows: SinceCut,
}

impl Changes {
    /// Something was changed, or is about to be.
    pub fn note(&self) {
        self.changed.store(true, Ordering::Release);
    }

    /// The changes so far are given up.
    pub fn discard(&self) {
        self.changed.store(false, Ordering::Release);
    }

    /// Whether something changed since the last cut that became durable.
    pub fn any(&self) -> bool {
        self.changed.load(Ordering::Acquire)
    }

    /// A cut: what changed so far is the checkpoint's. All shards are locked.
    pub fn cut(&self) {
        self.changed.store(false, Ordering::Release);
        self.flushed_rows.cut();
    }

    /// Which cut flushed rows are counted from.
    pub fn mark(&self) -> CutMark {
        self.flushed_rows.mark()
    }

    /// Rows were flushed, unless there was a cut since `mark` was taken: that cut has them.
    pub fn flushed(&self, mark: CutMark, rows: u64) {
        self.flushed_rows.add(mark, rows);
    }

    /// Rows flushed since the last cut.
    pub fn flushed_rows(&self) -> u64 {
        self.flushed_rows.rows()
    }
}
