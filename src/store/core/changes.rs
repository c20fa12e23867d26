//! What has changed since the last durable checkpoint's cut?

use std::sync::atomic::Ordering;

use crate::sync::atomic::{AtomicBool, AtomicU64};

/// The lower bits of [`Changes::flushed`], which count rows.
const ROWS: u64 = (1 << 40) - 1;

/// Which cut rows are counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutMark(u64);

/// Whether, and how much, the store holds that its last checkpoint does not.
#[derive(Debug, Default)]
pub struct Changes {
    changed: AtomicBool,
    /// A number of the last cut in the upper bits, rows flushed since then in the lower.
    flushed: AtomicU64,
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
        self.discard();
        let next = |x: u64| Some((x | ROWS).wrapping_add(1));
        self.update_flushed(next);
    }

    /// Which cut flushed rows are counted from.
    pub fn mark(&self) -> CutMark {
        CutMark(self.flushed.load(Ordering::Relaxed) & !ROWS)
    }

    /// Rows were flushed, unless there was a cut since `mark` was taken: that cut has them.
    pub fn flushed(&self, mark: CutMark, rows: u64) {
        self.update_flushed(|x| (x & !ROWS == mark.0).then_some(x + rows));
    }

    /// Rows flushed since the last cut.
    pub fn flushed_rows(&self) -> u64 {
        self.flushed.load(Ordering::Relaxed) & ROWS
    }

    fn update_flushed(&self, next: impl FnMut(u64) -> Option<u64>) {
        let _late = self
            .flushed
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }
}
