//! How does an error of the store become a code, a message and fields?
#![expect(unsafe_code, reason = "C finds its functions by their names")]

use std::any::Any;
use std::ffi::{CStr, CString, OsStr, c_char};
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null;

use store::{ArgumentError, Error, Holder};

use crate::border::{free, survive};
use crate::codes::Code;
use crate::pointers::{ErrorRef, Room, Text, U64Out};

/// Why a call of this library fails.
pub type Result<T> = std::result::Result<T, Fault>;

/// An error with all that it says; on the heap, so that a call which works carries a pointer only.
#[derive(Debug)]
pub struct Fault(Box<ErrorHandle>);

/// What a field holds.
#[derive(Debug)]
enum Value {
    Number(u64),
    Text(CString),
}

/// Why a call failed. `hps_error_free` frees it.
#[derive(Debug)]
pub struct ErrorHandle {
    code: Code,
    kind: &'static CStr,
    message: CString,
    fields: Vec<(&'static str, Value)>,
}

/// As C wants it; a zero byte, which would end it, becomes a question mark.
pub fn c_string(bytes: &[u8]) -> CString {
    let without = |byte: &u8| match byte {
        0 => b'?',
        other => *other,
    };
    let bytes: Vec<u8> = bytes.iter().map(without).collect();
    CString::new(bytes).unwrap_or_default()
}

impl Fault {
    fn new(code: Code, kind: &'static CStr, message: &str) -> Fault {
        Fault(Box::new(ErrorHandle {
            code,
            kind,
            message: c_string(message.as_bytes()),
            fields: Vec::new(),
        }))
    }

    /// An argument is NULL that must not be.
    pub fn null(name: &'static str) -> Fault {
        let message = format!("{name} is NULL");
        Fault::new(Code::HPS_NULL_POINTER, c"", &message).text("name", name)
    }

    /// An argument of C's own is wrong.
    pub fn other(what: String) -> Fault {
        ArgumentError::Other { what }.into()
    }

    /// An option or a number is out of its range.
    pub fn option(name: &'static str, value: impl Display, why: &str) -> Fault {
        let (value, why) = (value.to_string(), why.to_owned());
        ArgumentError::Option { name, value, why }.into()
    }

    /// A buffer has another length than it needs.
    pub fn length(what: &'static str, expected: usize, found: usize) -> Fault {
        let length = ArgumentError::Length {
            what,
            expected,
            found,
        };
        length.into()
    }

    /// A panic was caught.
    pub fn panicked(payload: &(dyn Any + Send)) -> Fault {
        let text = payload.downcast_ref::<&str>().copied();
        let said = text.or_else(|| payload.downcast_ref::<String>().map(|said| &**said));
        let said = said.unwrap_or("a panic without a message");
        let message =
            format!("hps has a bug: {said}; open the store again, at its last checkpoint");
        Fault::new(Code::HPS_PANIC, c"", &message)
    }

    pub fn code(&self) -> Code {
        self.0.code
    }

    fn number(mut self, name: &'static str, value: impl TryInto<u64>) -> Fault {
        let value = value.try_into().unwrap_or(u64::MAX);
        self.0.fields.push((name, Value::Number(value)));
        self
    }

    fn bytes(mut self, name: &'static str, value: &[u8]) -> Fault {
        self.0.fields.push((name, Value::Text(c_string(value))));
        self
    }

    fn text(self, name: &'static str, value: &str) -> Fault {
        self.bytes(name, value.as_bytes())
    }

    fn path(self, path: &Path) -> Fault {
        self.bytes("path", OsStr::as_bytes(path.as_os_str()))
    }
}

impl From<Fault> for ErrorHandle {
    fn from(fault: Fault) -> ErrorHandle {
        *fault.0
    }
}

impl From<Fault> for Box<ErrorHandle> {
    fn from(fault: Fault) -> Box<ErrorHandle> {
        fault.0
    }
}

impl From<ArgumentError> for Fault {
    fn from(what: ArgumentError) -> Fault {
        Error::InvalidArgument(what).into()
    }
}

fn holder_name(holder: Holder) -> &'static str {
    match holder {
        Holder::Writer => "writer",
        Holder::Elsewhere => "elsewhere",
        Holder::Reader => "reader",
        Holder::Dropping => "dropping",
        _ => "unknown",
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        let message = error.to_string();
        let of = |code| Fault::new(code, c"", &message);
        match &error {
            Error::InvalidArgument(what) => of_argument(what, &message),
            Error::Corrupt { path, offset, what } => of(Code::HPS_CORRUPT)
                .path(path)
                .number("offset", *offset)
                .text("what", what),
            Error::MissingDirectory { index, path, empty } => of(Code::HPS_MISSING_DIRECTORY)
                .path(path)
                .number("index", *index)
                .number("empty", u64::from(*empty)),
            Error::Io {
                operation,
                path,
                source,
            } => of(Code::HPS_IO)
                .path(path)
                .text("operation", operation)
                .number("errno", source.raw_os_error().unwrap_or(0)),
            Error::NoSpace {
                path,
                used_bytes,
                asked_bytes,
                limit_bytes,
            } => of(Code::HPS_NO_SPACE)
                .path(path)
                .number("used_bytes", *used_bytes)
                .number("asked_bytes", *asked_bytes)
                .number("limit_bytes", *limit_bytes),
            Error::OverBudget {
                table,
                pinned_rows,
                asked_rows,
                capacity_rows,
                needed_bytes,
                leases,
            } => of(Code::HPS_OVER_BUDGET)
                .text("table", table)
                .number("pinned_rows", *pinned_rows)
                .number("asked_rows", *asked_rows)
                .number("capacity_rows", *capacity_rows)
                .number("needed_bytes", *needed_bytes)
                .text("leases", &format!("{leases:?}")),
            Error::Locked { path, holder } => of(Code::HPS_LOCKED)
                .path(path)
                .text("holder", holder_name(*holder)),
            Error::Unsupported {
                path,
                found,
                supported,
            } => of(Code::HPS_UNSUPPORTED)
                .path(path)
                .number("found", *found)
                .number("supported", *supported),
            Error::UnsupportedTable { table, dtype } => of(Code::HPS_UNSUPPORTED_TABLE)
                .text("table", table)
                .text("dtype", dtype),
            Error::Poisoned { cause } => of(Code::HPS_POISONED).text("cause", cause),
            Error::Uncheckpointed { rows } => of(Code::HPS_UNCHECKPOINTED).number("rows", *rows),
            Error::Cancelled => of(Code::HPS_CANCELLED),
            Error::ReadOnly { path } => of(Code::HPS_READ_ONLY).path(path),
            Error::Deadline { waited_ms } => of(Code::HPS_DEADLINE).number("waited_ms", *waited_ms),
            Error::Forked => of(Code::HPS_FORKED),
            gpu => of_gpu(gpu, &message),
        }
    }
}

/// Those of GPUs; and of later versions.
fn of_gpu(error: &Error, message: &str) -> Fault {
    let of = |code| Fault::new(code, c"", message);
    match error {
        Error::Device {
            device,
            operation,
            why,
        } => of(Code::HPS_DEVICE)
            .text("device", device)
            .text("operation", operation)
            .text("why", why),
        Error::DeviceMemory {
            device,
            what,
            asked_bytes,
            free_bytes,
        } => of(Code::HPS_DEVICE_MEMORY)
            .text("device", device)
            .text("what", what)
            .number("asked_bytes", *asked_bytes)
            .number("free_bytes", free_bytes.unwrap_or(0)),
        Error::RefusedCall {
            call,
            why,
            key,
            position,
            positions,
        } => of(Code::HPS_REFUSED_CALL)
            .number("call", *call)
            .text("why", why)
            .number("key", *key)
            .number("position", *position)
            .number("positions", *positions),
        _ => of(Code::HPS_OTHER),
    }
}

fn of_argument(what: &ArgumentError, message: &str) -> Fault {
    let of = |kind| Fault::new(Code::HPS_INVALID_ARGUMENT, kind, message);
    match what {
        ArgumentError::UnknownTable { name, known } => of(c"UnknownTable")
            .text("name", name)
            .text("known", &known.join(", ")),
        ArgumentError::TableDropped { name, table } => of(c"TableDropped")
            .text("name", name)
            .number("table", table.0),
        ArgumentError::TableExists { name } => of(c"TableExists").text("name", name),
        ArgumentError::DescriptorChanged {
            name,
            field,
            stored,
            asked,
        } => of(c"DescriptorChanged")
            .text("name", name)
            .text("field", field)
            .text("stored", stored)
            .text("asked", asked),
        ArgumentError::Length {
            what,
            expected,
            found,
        } => of(c"Length")
            .text("what", what)
            .number("expected", *expected)
            .number("found", *found),
        ArgumentError::NonFinite { table, key, index } => of(c"NonFinite")
            .text("table", table)
            .number("key", *key)
            .number("index", *index),
        ArgumentError::ForeignLease => of(c"ForeignLease"),
        ArgumentError::WrongTable {
            part,
            leased,
            given,
        } => of(c"WrongTable")
            .number("part", *part)
            .text("leased", leased)
            .text("given", given),
        ArgumentError::Position {
            position,
            index,
            rows,
        } => of(c"Position")
            .number("position", *position)
            .number("index", *index)
            .number("rows", *rows),
        ArgumentError::SeveralParts { parts, .. } => of(c"SeveralParts").number("parts", *parts),
        ArgumentError::Closed => of(c"Closed"),
        ArgumentError::NotAStore { path, why } => of(c"NotAStore").path(path).text("why", why),
        ArgumentError::AlreadyAStore { path } => of(c"AlreadyAStore").path(path),
        ArgumentError::Option { name, value, why } => of(c"Option")
            .text("name", name)
            .text("value", value)
            .text("why", why),
        ArgumentError::StepNotRising { step, last } => of(c"StepNotRising")
            .number("step", *step)
            .number("last", *last),
        ArgumentError::UnknownCheckpoint { id, .. } => of(c"UnknownCheckpoint").number("id", id.0),
        ArgumentError::HistoryGone { since, .. } => of(c"HistoryGone").number("since", since.0),
        ArgumentError::Delta { path, why } => of(c"Delta").path(path).text("why", why),
        ArgumentError::LeasesOutstanding { what, count } => of(c"LeasesOutstanding")
            .text("what", what)
            .number("count", *count),
        _ => of(c"Other"),
    }
}

/// The code of an error: what the call that gave it has returned. HPS_OK for NULL.
///
/// # Threads
/// Any; an error is never changed.
#[unsafe(no_mangle)]
pub extern "C" fn hps_error_code(error: ErrorRef) -> i32 {
    error.get("error").map_or(Code::HPS_OK, |error| error.code) as i32
}

/// What went wrong, in one sentence that names the thing and the way out. It lives as long as the
/// error. NULL for NULL.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_error_message(error: ErrorRef) -> *const c_char {
    error
        .get("error")
        .map_or(null(), |error| error.message.as_ptr())
}

/// Of HPS_INVALID_ARGUMENT, which rule the argument broke: "UnknownTable", "TableDropped",
/// "TableExists", "DescriptorChanged", "Length", "NonFinite", "ForeignLease", "WrongTable",
/// "Position", "SeveralParts", "Closed", "NotAStore", "AlreadyAStore", "Option", "StepNotRising",
/// "UnknownCheckpoint", "HistoryGone", "Delta", "LeasesOutstanding", "Other". Empty for other codes, NULL for NULL. It is
/// never freed.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_error_kind(error: ErrorRef) -> *const c_char {
    error
        .get("error")
        .map_or(null(), |error| error.kind.as_ptr())
}

fn find<'a>(error: ErrorRef<'a>, name: Text) -> Option<&'a Value> {
    let (error, name) = (error.get("error").ok()?, name.text("name").ok()?);
    let mut fields = error.fields.iter();
    fields.find(|(of, _)| *of == name).map(|(_, value)| value)
}

/// Gives a number that the error holds, such as "needed_bytes" of HPS_OVER_BUDGET: the codes say
/// which fields there are. Returns 1, or 0 where the error has no number of this name.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_error_field_u64(error: ErrorRef, name: Text, value: U64Out) -> i32 {
    match (
        survive(|| find(error, name)).flatten(),
        value.place("value"),
    ) {
        (Some(Value::Number(number)), Ok(value)) => {
            value.write(*number);
            1
        }
        _ => 0,
    }
}

/// Gives a text that the error holds, such as "path" of HPS_IO; NULL where it has no text of this
/// name. It lives as long as the error.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_error_field_text(error: ErrorRef, name: Text) -> *const c_char {
    match survive(|| find(error, name)).flatten() {
        Some(Value::Text(text)) => text.as_ptr(),
        _ => null(),
    }
}

/// Frees an error. NULL is allowed.
///
/// # Threads
/// None may use the error any more.
#[unsafe(no_mangle)]
pub extern "C" fn hps_error_free(error: Option<Box<ErrorHandle>>) {
    free(error);
}
