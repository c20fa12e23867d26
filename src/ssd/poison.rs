//! Why does a store refuse writes?
//!
//! After a failed sync nobody knows what the device holds; after a panic nobody knows what memory
//! holds. Either way nothing is written any more, and the next open is at the last checkpoint.
//!
//! Invariants:
//! - Whoever takes a lock that a panicking thread let go of sees that writes are refused, where the
//!   lock was taken with [`Poison::watch`].
//! - The first cause stays.

use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};
use crate::sync::thread;

/// Whether writes are refused, and why.
#[derive(Debug, Default)]
pub struct Poison {
    refusing: AtomicBool,
    panicked: AtomicBool,
    /// The first thread that panicked.
    thread: OnceLock<String>,
    cause: OnceLock<String>,
}

impl Poison {
    /// Refuses writes from here on.
    pub fn set(&self, cause: String) {
        let _first = self.cause.set(cause);
        self.refusing.store(true, Ordering::Release);
    }

    /// Fails once writes are refused.
    ///
    /// # Errors
    /// `Poisoned`.
    pub fn check(&self) -> Result<()> {
        match self.refusing.load(Ordering::Acquire) {
            true => Err(self.error()),
            false => Ok(()),
        }
    }

    /// Fails once a thread has panicked: what it was to do, nobody does any more.
    ///
    /// # Errors
    /// `Poisoned`.
    pub fn check_threads(&self) -> Result<()> {
        match self.panicked.load(Ordering::Acquire) {
            true => Err(self.error()),
            false => Ok(()),
        }
    }

    fn error(&self) -> Error {
        let cause = self.cause.get().cloned();
        // A panic is known before its message is.
        let cause = cause.unwrap_or_else(|| format!("{} panicked", self.thread()));
        Error::Poisoned { cause }
    }

    fn thread(&self) -> &str {
        self.thread.get().map_or("a thread", String::as_str)
    }

    fn note_panic(&self) {
        let _first = self.thread.set(match std::thread::current().name() {
            Some(name) => format!("thread {name}"),
            None => String::from("a thread without a name"),
        });
        self.panicked.store(true, Ordering::Release);
        self.refusing.store(true, Ordering::Release);
    }

    /// Refuses writes because this thread, or one that worked for it, panicked.
    pub fn set_panic(&self, payload: &(dyn Any + Send)) {
        self.note_panic();
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("no message");
        let cause = format!("{} panicked: {text}", self.thread());
        tracing::error!(%cause, "the store refuses writes from here on");
        self.set(cause);
    }

    /// Refuses writes when it is dropped by a panic that begins while it is there.
    pub fn alarm(&self) -> Alarm<'_> {
        Alarm {
            poison: self,
            before: thread::panicking(),
        }
    }

    /// Refuses writes when a panic lets go of `guard`, before it does.
    pub fn watch<G>(&self, guard: G) -> Watched<'_, G> {
        Watched {
            _alarm: self.alarm(),
            guard,
        }
    }
}

/// See [`Poison::alarm`].
#[derive(Debug)]
pub struct Alarm<'a> {
    poison: &'a Poison,
    before: bool,
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if !self.before && thread::panicking() {
            self.poison.note_panic();
        }
    }
}

/// A lock that is held, under an alarm: the alarm goes first.
#[derive(Debug)]
pub struct Watched<'a, G> {
    _alarm: Alarm<'a>,
    guard: G,
}

impl<G: Deref> Deref for Watched<'_, G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Watched<'_, G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Mutex;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_panic_refuses_writes_before_its_lock_is_free_and_names_thread_and_message() {
        let poison = Poison::default();
        let lock = Mutex::new(0);
        let work = || {
            let _watched = poison.watch(lock.lock());
            panic!("at {}", 7);
        };
        let caught = catch_unwind(AssertUnwindSafe(work));
        let unnamed = poison.check().unwrap_err().to_string();
        assert!(unnamed.contains("panicked") && !unnamed.contains("at 7"));
        poison.set_panic(&*caught.unwrap_err());
        let (error, threads) = (poison.check(), poison.check_threads());
        let error = error.unwrap_err().to_string();
        let name = std::thread::current().name().unwrap().to_owned();
        assert!(
            error.contains(&format!("thread {name} panicked: at 7")),
            "{error}"
        );
        assert!(threads.is_err());
        poison.set(String::from("later"));
        assert_eq!(
            poison.check().unwrap_err().to_string(),
            error,
            "the first cause stays"
        );
    }

    #[test]
    fn a_call_made_while_its_caller_panics_is_no_panic_of_the_store() {
        struct Calls<'a>(&'a Poison);
        impl Drop for Calls<'_> {
            fn drop(&mut self) {
                drop(self.0.alarm());
            }
        }
        let poison = Poison::default();
        let work = || {
            let _calls = Calls(&poison);
            panic!("the caller's own");
        };
        assert!(catch_unwind(AssertUnwindSafe(work)).is_err());
        assert!(poison.check().is_ok() && poison.check_threads().is_ok());
        poison.set(String::from("a sync failed"));
        assert!(poison.check().is_err() && poison.check_threads().is_ok());
    }
}
