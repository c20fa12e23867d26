//! When is one transfer over, and what has to be asked again?
//!
//! Every engine drives its reads and writes through [`Transfer`], so that short and interrupted
//! calls are absorbed by one piece of code, which the simulated disk exercises too.
//!
//! Invariants:
//! - A transfer ends: it makes progress of at least one unit, or counts a retry, and retries
//!   without progress are bounded by [`RETRIES_MAX`].
//! - What is asked again starts at a multiple of the file's alignment.

use std::io::{self, ErrorKind};
use std::ops::Range;

/// Calls in a row that may move nothing before the transfer fails.
pub(super) const RETRIES_MAX: u32 = 64;

/// One read or write, possibly in several calls.
#[derive(Debug)]
pub(super) struct Transfer {
    write: bool,
    offset: u64,
    bytes: usize,
    done: usize,
    align_bytes: usize,
    retries: u32,
}

/// What to do after a call.
#[derive(Debug)]
pub(super) enum Step {
    /// Ask for `rest()` at `file_offset()`.
    Again,
    /// The transfer is over.
    Done(io::Result<usize>),
}

impl Transfer {
    /// A read of `bytes` at `offset` of a file with this alignment.
    pub(super) fn read(offset: u64, bytes: usize, align_bytes: usize) -> Transfer {
        Transfer {
            write: false,
            offset,
            bytes,
            done: 0,
            align_bytes,
            retries: 0,
        }
    }

    /// A write of `bytes` at `offset` of a file with this alignment.
    pub(super) fn write(offset: u64, bytes: usize, align_bytes: usize) -> Transfer {
        Transfer {
            write: true,
            offset,
            bytes,
            done: 0,
            align_bytes,
            retries: 0,
        }
    }

    /// Whether this is a write.
    pub(super) fn is_write(&self) -> bool {
        self.write
    }

    /// The part of the buffer that the next call moves.
    pub(super) fn rest(&self) -> Range<usize> {
        self.done..self.bytes
    }

    /// The file offset of the next call.
    pub(super) fn file_offset(&self) -> u64 {
        self.offset.saturating_add(self.done as u64)
    }

    /// Takes the result of a call for `rest()` at `file_offset()`.
    pub(super) fn advance(&mut self, result: io::Result<usize>) -> Step {
        #[cfg(test)]
        let result = faults::applied(result, self.rest().len(), self.align_bytes);
        let moved = match result {
            Ok(moved) => moved,
            Err(error) if is_transient(&error) => {
                self.retries += 1;
                let over = self.retries > RETRIES_MAX;
                return if over {
                    Step::Done(Err(error))
                } else {
                    Step::Again
                };
            }
            Err(error) => return Step::Done(Err(error)),
        };
        let before = self.done;
        assert!(moved <= self.bytes - before, "more bytes moved than asked");
        self.done += moved;
        if self.done == self.bytes {
            return Step::Done(Ok(self.done));
        }
        let unaligned = self.done % self.align_bytes;
        if self.write {
            self.done -= unaligned;
        } else if moved == 0 || unaligned != 0 {
            return Step::Done(Ok(self.done));
        }
        if self.done > before {
            self.retries = 0;
            return Step::Again;
        }
        self.retries += 1;
        if self.retries > RETRIES_MAX {
            return Step::Done(Err(ErrorKind::WriteZero.into()));
        }
        Step::Again
    }

    /// Makes calls, each given the buffer's part and the file offset, until the transfer is over.
    pub(super) fn run(
        mut self,
        mut call: impl FnMut(Range<usize>, u64) -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            let result = call(self.rest(), self.file_offset());
            if let Step::Done(result) = self.advance(result) {
                return result;
            }
        }
    }
}

/// Whether the same call may succeed at once.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock)
}

/// Repeats a call that moves no bytes while it is interrupted, a bounded number of times.
pub(super) fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut retries = 0;
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted && retries < RETRIES_MAX => {
                retries += 1;
            }
            result => return result,
        }
    }
}

/// Faults that tests put between the system and any engine, per thread.
#[cfg(test)]
pub(super) mod faults {
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::io::{self, ErrorKind};

    /// What becomes of the next call's result.
    #[derive(Clone, Copy, Debug)]
    pub(in crate::io) enum Fault {
        /// Half of what was asked is reported (whole alignment units, at least one).
        Short,
        /// The call is reported as interrupted.
        Interrupted,
    }

    thread_local! {
        static FAULTS: RefCell<VecDeque<Fault>> = const { RefCell::new(VecDeque::new()) };
    }

    /// The results of this thread's next calls are changed so.
    pub(in crate::io) fn inject(faults: &[Fault]) {
        FAULTS.with_borrow_mut(|queue| queue.extend(faults));
    }

    /// Faults that no call has met yet.
    pub(in crate::io) fn left() -> usize {
        FAULTS.with_borrow(VecDeque::len)
    }

    pub(super) fn applied(
        result: io::Result<usize>,
        asked: usize,
        align: usize,
    ) -> io::Result<usize> {
        match (FAULTS.with_borrow_mut(VecDeque::pop_front), result) {
            (Some(Fault::Interrupted), _) => Err(ErrorKind::Interrupted.into()),
            (Some(Fault::Short), Ok(moved)) => Ok(moved.min((asked / 2 / align).max(1) * align)),
            (_, result) => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_calls_resume_at_an_aligned_offset() {
        let mut asked = Vec::new();
        let moved = Transfer::write(4096, 4096, 512).run(|rest, offset| {
            asked.push((rest.clone(), offset));
            Ok(if asked.len() == 1 { 1000 } else { rest.len() })
        });
        assert_eq!(moved.unwrap(), 4096);
        assert_eq!(asked, [(0..4096, 4096), (512..4096, 4608)]);
    }

    #[test]
    fn a_read_ends_at_the_end_of_the_file() {
        let mut left = [512, 0].into_iter();
        let moved = Transfer::read(0, 4096, 512).run(|_, _| Ok(left.next().unwrap()));
        assert_eq!(moved.unwrap(), 512);
        let moved = Transfer::read(0, 4096, 512).run(|_, _| Ok(700));
        assert_eq!(
            moved.unwrap(),
            700,
            "an unaligned end is the end, without another call"
        );
    }

    #[test]
    fn calls_that_move_nothing_are_repeated_a_bounded_number_of_times() {
        for kind in [ErrorKind::Interrupted, ErrorKind::WouldBlock] {
            let mut calls = 0;
            let result = Transfer::read(0, 8, 1).run(|_, _| {
                calls += 1;
                Err(kind.into())
            });
            assert_eq!(result.unwrap_err().kind(), kind);
            assert_eq!(calls, RETRIES_MAX + 1);
        }
        let mut calls = 0;
        let result = Transfer::write(0, 1024, 512).run(|_, _| {
            calls += 1;
            Ok(usize::from(calls % 2 == 0) * 100)
        });
        assert_eq!(result.unwrap_err().kind(), ErrorKind::WriteZero);
        assert_eq!(calls, RETRIES_MAX + 1);
    }

    #[test]
    fn progress_makes_up_for_earlier_interruptions() {
        let mut calls = 0;
        let result = Transfer::read(0, 1000, 1).run(|_, _| {
            calls += 1;
            if calls % 2 == 1 {
                Err(ErrorKind::Interrupted.into())
            } else {
                Ok(1)
            }
        });
        assert_eq!((result.unwrap(), calls), (1000, 2000));
    }

    #[test]
    fn an_error_ends_a_transfer_at_once_and_nothing_asked_is_nothing_moved() {
        let mut calls = 0;
        let result = Transfer::write(0, 8, 1).run(|_, _| {
            calls += 1;
            Err(io::Error::from_raw_os_error(5))
        });
        assert_eq!((result.unwrap_err().raw_os_error(), calls), (Some(5), 1));
        assert_eq!(Transfer::write(0, 0, 1).run(|_, _| Ok(0)).unwrap(), 0);
    }

    #[test]
    fn an_interrupted_metadata_call_is_repeated_a_bounded_number_of_times() {
        let mut calls = 0;
        let result = retry(|| {
            calls += 1;
            if calls < 3 {
                Err(ErrorKind::Interrupted.into())
            } else {
                Ok(calls)
            }
        });
        assert_eq!(result.unwrap(), 3);
        let result: io::Result<()> = retry(|| Err(ErrorKind::Interrupted.into()));
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Interrupted);
    }
}
