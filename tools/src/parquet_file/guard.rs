//! What if the library for Parquet fails, or panics?

use std::cell::Cell;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Once;

use ::parquet::errors::ParquetError;
use anyhow::Result;
use hps::Error;

/// What the library says, or that it panicked.
#[derive(Debug)]
pub enum Broken {
    /// Its error.
    Said(ParquetError),
    /// It did.
    Panicked,
}

/// What is wrong at a place in the file, told through the library.
#[derive(Debug)]
pub struct At {
    offset: u64,
    what: String,
}

impl At {
    /// As an error of the library.
    #[must_use]
    pub fn error(offset: u64, what: String) -> ParquetError {
        ParquetError::External(Box::new(At { offset, what }))
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for At {}

/// An error of the library, with its place.
#[must_use]
pub fn told(path: &Path, offset: u64, what: &str, broken: Broken) -> anyhow::Error {
    let why = match broken {
        Broken::Panicked => String::from("the library for Parquet can't go on"),
        Broken::Said(ParquetError::External(error)) => {
            let error = match error.downcast::<io::Error>() {
                Ok(error) => return Error::io("read", path, *error).into(),
                Err(error) => error,
            };
            if let Some(At { offset, what: why }) = error.downcast_ref() {
                return Error::corrupt(path, *offset, format!("{what}: {why}")).into();
            }
            error.to_string()
        }
        Broken::Said(error) => error.to_string(),
    };
    Error::corrupt(path, offset, format!("{what}: {why}")).into()
}

thread_local! {
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Calls the library. What it says of a panic is not shown: the error that follows says where it was.
///
/// # Errors
/// What the library says, or that it panicked.
pub fn guarded<T>(call: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, Broken> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IS_GUARDED.get() {
                before(info);
            }
        }));
    });
    IS_GUARDED.set(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    IS_GUARDED.set(false);
    match result {
        Ok(result) => result.map_err(Broken::Said),
        Err(_) => Err(Broken::Panicked),
    }
}
