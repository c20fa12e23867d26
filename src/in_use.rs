//! How much memory does work hold that runs now, and is there some of a kind?
//!
//! A flush, a compaction or an index snapshot takes buffers and arrays when it begins and frees them
//! when it ends. They are counted here, so that the store can tell its memory by purpose.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Bytes held by all work of one kind.
#[derive(Debug, Default)]
pub struct InUse(AtomicU64);

impl InUse {
    /// Bytes held now.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts nothing yet for work that begins.
    pub fn begin(&self) -> HeldBytes<'_> {
        HeldBytes { all: self, own: 0 }
    }
}

/// What one piece of work holds; nothing when this is dropped.
#[derive(Debug)]
pub struct HeldBytes<'a> {
    all: &'a InUse,
    own: u64,
}

impl HeldBytes<'_> {
    /// It holds so many bytes now.
    pub fn set(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        match bytes.checked_sub(self.own) {
            Some(more) => self.all.0.fetch_add(more, Ordering::Relaxed),
            None => self.all.0.fetch_sub(self.own - bytes, Ordering::Relaxed),
        };
        self.own = bytes;
    }

    /// It holds so many bytes less, if it held so many.
    pub fn less(&mut self, bytes: usize) {
        let less = self.own.min(bytes as u64);
        self.all.0.fetch_sub(less, Ordering::Relaxed);
        self.own -= less;
    }
}

impl Drop for HeldBytes<'_> {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Whether something is under way that others make way for.
#[derive(Debug, Default)]
pub struct Ongoing(AtomicUsize);

impl Ongoing {
    /// It is, until what this gives is dropped.
    pub fn begin(&self) -> OneOngoing<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        OneOngoing(self)
    }

    /// Whether it is, once at least.
    pub fn is(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// One that is under way; it ends when this is dropped.
#[derive(Debug)]
pub struct OneOngoing<'a>(&'a Ongoing);

impl Drop for OneOngoing<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_each_work_holds_is_counted_until_it_ends() {
        let all = InUse::default();
        let mut first = all.begin();
        first.set(100);
        {
            let mut second = all.begin();
            second.set(7);
            first.set(30);
            assert_eq!(all.bytes(), 37);
        }
        assert_eq!(all.bytes(), 30);
        first.less(10);
        assert_eq!(all.bytes(), 20);
        first.less(21);
        assert_eq!(all.bytes(), 0);
        first.set(5);
        drop(first);
        assert_eq!(all.bytes(), 0);
    }

    #[test]
    fn something_is_under_way_until_the_last_of_it_ends() {
        let all = Ongoing::default();
        assert!(!all.is());
        let first = all.begin();
        let second = all.begin();
        drop(first);
        assert!(all.is());
        drop(second);
        assert!(!all.is());
    }
}
