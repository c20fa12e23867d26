//! How does what the store logs come to Python's `logging`?
//!
//! - Threads of the store never ask for the GIL: what they log goes into a queue of bounded length.
//! - The queue is emptied by waits that may be long, and five times a second by a thread of Python's
//!   that `hps._log` starts.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, TryLockError};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Lines that wait; more are counted, and lost.
const LINES_MAX: usize = 4096;

/// What was logged: level of `logging`, target, text.
type Line = (u8, &'static str, String);

static LINES: Mutex<VecDeque<Line>> = Mutex::new(VecDeque::new());
static WAITING: AtomicBool = AtomicBool::new(false);
static LOST: AtomicUsize = AtomicUsize::new(0);
/// What is logged at all: levels of `logging`, 20 is INFO.
static LEVEL: AtomicUsize = AtomicUsize::new(30);

/// Tries before a line is given up.
const TRIES_MAX: usize = 1000;

/// The lines that wait. None in a forked child whose parent was logging at that moment: there nobody
/// gives the lock back.
fn lines() -> Option<MutexGuard<'static, VecDeque<Line>>> {
    for _ in 0..TRIES_MAX {
        match LINES.try_lock() {
            Ok(lines) => return Some(lines),
            Err(TryLockError::Poisoned(lines)) => return Some(lines.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    None
}

struct ToQueue {
    spans: AtomicU64,
}

/// The fields of an event as text: its message, then `name=value`.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message.push_str(value),
            name => drop(write!(self.fields, " {name}={value}")),
        }
    }
}

fn level_of(level: Level) -> u8 {
    match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        Level::TRACE => 5,
    }
}

impl Subscriber for ToQueue {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let level = usize::from(level_of(*metadata.level()));
        metadata.is_event() && level >= LEVEL.load(Ordering::Relaxed)
    }

    fn register_callsite(&self, _: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        // The level may change at any time.
        tracing::subscriber::Interest::sometimes()
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let metadata = event.metadata();
        let line = (
            level_of(*metadata.level()),
            metadata.target(),
            text.message + &text.fields,
        );
        match lines() {
            Some(mut lines) if lines.len() < LINES_MAX => lines.push_back(line),
            _ => drop(LOST.fetch_add(1, Ordering::Relaxed)),
        }
        WAITING.store(true, Ordering::Release);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Begins to take what the store logs.
pub fn begin() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let spans = AtomicU64::new(0);
        // Another subscriber in this module there is none.
        drop(tracing::subscriber::set_global_default(ToQueue { spans }));
    });
}

/// Hands on what waits, if anything does. What a handler raises is Python's to print.
pub fn forward(py: Python<'_>) {
    if WAITING.load(Ordering::Acquire)
        && let Err(error) = drain_log(py)
    {
        error.write_unraisable(py, None);
    }
}

/// Hands what the store has logged to `logging`.
#[pyfunction]
pub fn drain_log(py: Python<'_>) -> PyResult<()> {
    static HANDLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let Some(mut taken) = lines() else {
        return Ok(());
    };
    WAITING.store(false, Ordering::Release);
    let lines = std::mem::take(&mut *taken);
    drop(taken);
    let lost = LOST.swap(0, Ordering::Relaxed);
    if lines.is_empty() && lost == 0 {
        return Ok(());
    }
    let handle = HANDLE.get_or_try_init(py, || {
        Ok::<_, PyErr>(py.import("hps._log")?.getattr("handle")?.unbind())
    })?;
    for (level, target, text) in lines {
        handle.call1(py, (level, target, text))?;
    }
    if lost > 0 {
        let text = format!("{lost} lines of the log were lost");
        handle.call1(py, (30, "hps", text))?;
    }
    Ok(())
}

/// Sets what is logged at all: a level of `logging`.
#[pyfunction]
pub fn set_log_level(level: usize) {
    LEVEL.store(level, Ordering::Relaxed);
}
