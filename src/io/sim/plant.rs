//! Which panics has a test planted where no disk is called?
//!
//! One at a time for the whole process: tests that plant follow each other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

static ARMED: AtomicBool = AtomicBool::new(false);
static PLANTED: Mutex<Option<(&'static str, String)>> = Mutex::new(None);

/// Lets the first thread panic that comes by `point` and whose name begins like this.
pub fn panic_at(point: &'static str, thread: &str) {
    *PLANTED.lock().unwrap_or_else(PoisonError::into_inner) = Some((point, thread.to_owned()));
    ARMED.store(true, Ordering::Release);
}

/// Plants none.
pub fn clear() {
    *PLANTED.lock().unwrap_or_else(PoisonError::into_inner) = None;
    ARMED.store(false, Ordering::Release);
}

/// Whether the panic is still to come.
#[must_use]
pub fn is_armed() -> bool {
    ARMED.load(Ordering::Acquire)
}

/// A thread comes by.
#[expect(clippy::panic, reason = "that is what it is for")]
pub fn pass(point: &'static str) {
    if !is_armed() {
        return;
    }
    let mut planted = PLANTED.lock().unwrap_or_else(PoisonError::into_inner);
    let name = std::thread::current().name().unwrap_or("").to_owned();
    let hit = |(at, thread): &mut (&str, String)| *at == point && name.starts_with(&*thread);
    if planted.take_if(hit).is_some() {
        ARMED.store(false, Ordering::Release);
        drop(planted);
        panic!("planted at {point}");
    }
}
