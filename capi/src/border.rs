//! How does a call from C begin and end?
//!
//! - No panic crosses: it becomes `HPS_PANIC`. The store poisons itself by a panic in its calls.
//! - The error is NULL after a call that worked, whatever was in it before.
//! - In a forked child no lock of this crate is waited for: another thread of the parent may have
//!   held it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use store::Error;

use crate::codes::Code;
use crate::error::{Fault, Result};
use crate::pointers::ErrorOut;

/// Does the work of a call and gives its code, and its error to whoever wants it.
pub fn call(error: ErrorOut, work: impl FnOnce() -> Result<()>) -> i32 {
    let place = error.place("error").ok();
    let fault = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return Code::HPS_OK as i32,
        Ok(Err(fault)) => fault,
        Err(payload) => {
            let fault = Fault::panicked(&*payload);
            survive(|| drop(payload));
            fault
        }
    };
    let code = fault.code() as i32;
    if let Some(place) = place {
        place.write(Some(fault.into()));
    }
    code
}

/// Does work that has no way to tell of a panic.
pub fn survive<T>(work: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => Some(result),
        Err(payload) => {
            // Dropping it may panic once more.
            let _again = catch_unwind(AssertUnwindSafe(|| drop(payload)));
            None
        }
    }
}

/// Takes a lock; whoever panicked with it has poisoned the store, not what is behind the lock.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frees a handle.
pub fn free<T>(handle: Option<Box<T>>) {
    survive(|| drop(handle));
}

/// The process that a handle was made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    pub fn this() -> Process {
        Process(std::process::id())
    }

    pub fn check(self) -> Result<()> {
        match self == Process::this() {
            true => Ok(()),
            false => Err(Error::Forked.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::*;

    /// A payload whose drop panics once more.
    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }

    #[test]
    fn a_panic_becomes_an_error() {
        let mut error = None;
        let code = call(ErrorOut::of(&mut error), || panic!("planted {}", 7));
        assert_eq!(code, Code::HPS_PANIC as i32);
        let told = format!("{error:?}");
        assert!(told.contains("planted 7"), "{told}");
    }

    #[test]
    fn a_panic_that_panics_when_it_is_dropped_crosses_nothing() {
        let mut error = None;
        let code = call(ErrorOut::of(&mut error), || panic_any(Bomb));
        assert_eq!(code, Code::HPS_PANIC as i32);
        assert!(error.is_some());
        free(Some(Box::new(Bomb)));
        assert!(survive(|| panic_any(Bomb)).is_none());
    }

    #[test]
    fn the_error_is_null_after_a_call_that_worked() {
        let mut error = None;
        assert_eq!(call(ErrorOut::of(&mut error), || Ok(())), 0);
        assert!(error.is_none());
    }
}
