//! What do the calls of a table name? Streams, kinds of memory, marks.

use super::shape::option;
use crate::error::Error;

/// What kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// The device's own.
    Device,
    /// The host's, which the device reads and writes over the bus. Fast for the host to read, too.
    Pinned,
}

/// Work in order. Two of them, so that one index is built while the other is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// The batches of a trainer.
    Train,
    /// Rows that come and go, and the next index.
    Transfer,
}

impl Stream {
    /// Both.
    pub const ALL: [Stream; 2] = [Stream::Train, Stream::Transfer];

    /// Its place in [`Stream::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self == Stream::Transfer)
    }
}

/// What a device says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name, and the driver's version.
    pub name: String,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Multiprocessors: how many blocks run beside each other is a multiple of it.
    pub multiprocessors: u32,
}

/// Launches that were recorded, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphId(pub u32);

impl GraphId {
    /// There is no such recording.
    pub(super) fn unknown(self) -> Error {
        let why = "nothing was recorded under this number".to_owned();
        option("graph", &self.0, why)
    }
}

/// A point of a stream whose time is taken, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(pub u32);
