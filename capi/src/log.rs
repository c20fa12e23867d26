//! How does what the store logs come to a callback of C's?
#![expect(unsafe_code, reason = "C finds its functions by their names")]

use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::border::{Process, call};
use crate::codes::{LogLevel, unknown};
use crate::error::{Fault, c_string};
use crate::pointers::{ErrorOut, UserData};

/// Is called with each line of the log: how grave it is (a number of hps_log_level), where it comes
/// from, and the text. The strings live until it returns.
pub type LogCallback = Option<
    extern "C" fn(level: i32, target: *const c_char, message: *const c_char, userdata: *mut c_void),
>;

/// Who is told.
#[derive(Clone, Copy)]
struct Listener {
    callback: extern "C" fn(i32, *const c_char, *const c_char, *mut c_void),
    userdata: UserData,
    process: Process,
}

static LISTENER: RwLock<Option<Listener>> = RwLock::new(None);
/// The gravest level is the least; 0 where nobody listens.
static LEVEL: AtomicI32 = AtomicI32::new(0);

thread_local! {
    /// Whether this thread is in the callback.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

struct ToCallback {
    spans: AtomicU64,
}

/// The fields of an event as text: its message, then `name=value`.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
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

fn number_of(level: Level) -> i32 {
    let of = match level {
        Level::ERROR => LogLevel::HPS_LOG_ERROR,
        Level::WARN => LogLevel::HPS_LOG_WARN,
        Level::INFO => LogLevel::HPS_LOG_INFO,
        Level::DEBUG => LogLevel::HPS_LOG_DEBUG,
        Level::TRACE => LogLevel::HPS_LOG_TRACE,
    };
    of as i32
}

impl Subscriber for ToCallback {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && number_of(*metadata.level()) <= LEVEL.load(Ordering::Relaxed)
    }

    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        // The level may change at any time.
        Interest::sometimes()
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        if INSIDE.get() {
            return;
        }
        let mut line = Line::default();
        event.record(&mut line);
        let metadata = event.metadata();
        let target = c_string(metadata.target().as_bytes());
        let message = c_string((line.message + &line.fields).as_bytes());
        // Held until the callback returns: who takes it away waits for that.
        let listener = LISTENER.read().unwrap_or_else(PoisonError::into_inner);
        let Some(told) = *listener else { return };
        if told.process.check().is_err() {
            return;
        }
        INSIDE.set(true);
        let level = number_of(*metadata.level());
        (told.callback)(
            level,
            target.as_ptr(),
            message.as_ptr(),
            told.userdata.get(),
        );
        INSIDE.set(false);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Gives each line that is logged from now on, by all stores of the process, to a callback; NULL
/// ends that. Once this returns, the callback that was set before runs on no thread, and is not
/// called again.
///
/// level: a number of hps_log_level, the least grave that is told; userdata: given to the callback
/// as it is.
///
/// The callback is called on the thread that logs, which may be one of a store's own and may hold
/// locks of it: it has to be quick, must not call this library for a store (its own calls are not
/// logged) and must not leave by longjmp or an exception. Several threads may be in it at the same
/// time.
///
/// # Errors
/// HPS_INVALID_ARGUMENT for another level, where it is called by the callback itself, and in a
/// program whose Rust code has a `tracing` subscriber of its own.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_set_log(
    callback: LogCallback,
    userdata: UserData,
    level: i32,
    error: ErrorOut,
) -> i32 {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    call(error, || {
        if INSIDE.get() {
            return Err(Fault::other(String::from(
                "the log can't be set by its own callback",
            )));
        }
        let levels = LogLevel::HPS_LOG_ERROR as i32..=LogLevel::HPS_LOG_TRACE as i32;
        if callback.is_some() && !levels.contains(&level) {
            return Err(unknown("level", level));
        }
        let is_installed = *INSTALLED.get_or_init(|| {
            let spans = AtomicU64::new(0);
            tracing::subscriber::set_global_default(ToCallback { spans }).is_ok()
        });
        if callback.is_some() && !is_installed {
            let what = String::from("the program has a subscriber of tracing already");
            return Err(Fault::other(what));
        }
        let mut listener = LISTENER.write().unwrap_or_else(PoisonError::into_inner);
        *listener = callback.map(|callback| Listener {
            callback,
            userdata,
            process: Process::this(),
        });
        LEVEL.store(
            if callback.is_some() { level } else { 0 },
            Ordering::Relaxed,
        );
        Ok(())
    })
}
