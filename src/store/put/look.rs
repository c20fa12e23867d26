//! When are the values of a long put looked at?
//!
//! While its first file is written, piece by piece, by those of its threads that have nothing to write yet. Nothing of
//! the call is seen, or changed, before all of them were found finite.

use std::sync::PoisonError;

use crate::row::all_finite;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// Values that a thread looks at without asking what is left.
const PIECE_F32S: usize = if cfg!(any(test, hps_shuttle)) {
    64
} else {
    1 << 18
};

/// Values, and how many of them were looked at.
#[derive(Debug)]
pub(super) struct Look<'a> {
    values: &'a [f32],
    pieces: Mutex<Pieces>,
    /// The last piece was looked at.
    ended: Condvar,
    /// One that is not finite was found.
    refused: AtomicBool,
}

#[derive(Debug)]
struct Pieces {
    begun: usize,
    ended: usize,
    all: usize,
}

/// A piece that a thread has begun: others wait for it until it is dropped, whatever happens.
struct Piece<'l, 'a> {
    look: &'l Look<'a>,
    finite: bool,
}

impl Drop for Piece<'_, '_> {
    fn drop(&mut self) {
        if !self.finite {
            self.look.refused.store(true, Ordering::Release);
        }
        let mut pieces = self.look.open();
        pieces.ended += 1;
        if pieces.ended == pieces.all {
            self.look.ended.notify_all();
        }
    }
}

impl<'a> Look<'a> {
    /// No value was looked at.
    pub fn new(values: &'a [f32]) -> Look<'a> {
        Look {
            values,
            pieces: Mutex::new(Pieces {
                begun: 0,
                ended: 0,
                all: values.len().div_ceil(PIECE_F32S),
            }),
            ended: Condvar::new(),
            refused: AtomicBool::new(false),
        }
    }

    /// Whether all values are finite: looks at those that nobody looks at, and waits for the others.
    pub fn are_finite(&self) -> bool {
        let mut pieces = self.open();
        while pieces.begun < pieces.all {
            let start = pieces.begun * PIECE_F32S;
            pieces.begun += 1;
            drop(pieces);
            let end = self.values.len().min(start + PIECE_F32S);
            let mut piece = Piece {
                look: self,
                finite: false,
            };
            // One is enough to know.
            piece.finite = !self.is_refused() && all_finite(&self.values[start..end]);
            drop(piece);
            pieces = self.open();
        }
        while pieces.ended < pieces.all {
            pieces = self
                .ended
                .wait(pieces)
                .unwrap_or_else(PoisonError::into_inner);
        }
        !self.is_refused()
    }

    /// Whether one that is not finite was found already.
    pub fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Acquire)
    }

    fn open(&self) -> MutexGuard<'_, Pieces> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::by_team;

    #[test]
    fn one_value_that_is_not_finite_is_found_wherever_it_stands_and_by_all() {
        let values = vec![1.0; 5 * PIECE_F32S + 3];
        assert!(Look::new(&[]).are_finite());
        for at in [None, Some(0), Some(PIECE_F32S), Some(values.len() - 1)] {
            let mut values = values.clone();
            at.into_iter().for_each(|at: usize| values[at] = f32::NAN);
            let look = Look::new(&values);
            let found = by_team("look", (0..3).map(|_| || look.are_finite()));
            assert_eq!(found, [at.is_none(); 3], "{at:?}");
            assert_eq!(look.are_finite(), at.is_none(), "asked again");
            let pieces = look.open();
            assert_eq!((pieces.begun, pieces.ended), (6, 6), "each once");
        }
    }
}
