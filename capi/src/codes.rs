//! Which number means what? None is ever used for something else.
#![expect(
    non_camel_case_types,
    reason = "the names are C's, where constants of all enums share one space"
)]

use store::{IoEngine, KeyType, NonFinite, Optimizer, PolicyKind};

use crate::error::{Fault, Result};

/// What a call returns. A later version may have more; treat an unknown one as a failure.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// It did what it was asked.
    HPS_OK = 0,
    /// An argument can't be served; nothing changed. `hps_error_kind` says which rule it broke.
    HPS_INVALID_ARGUMENT = 1,
    /// Bytes on disk are not what was written. Fields: path, offset, what.
    HPS_CORRUPT = 2,
    /// A data directory is not there. Fields: index, path, empty.
    HPS_MISSING_DIRECTORY = 3,
    /// The operating system refused an operation. Fields: operation, path, errno.
    HPS_IO = 4,
    /// The disk is full, or disk_bytes_max reached. Fields: path, used_bytes, asked_bytes,
    /// limit_bytes.
    HPS_NO_SPACE = 5,
    /// The batch and the outstanding leases can't be in memory together. Fields: table,
    /// pinned_rows, asked_rows, capacity_rows, needed_bytes, leases (text).
    HPS_OVER_BUDGET = 6,
    /// Somebody else holds what the call needs for itself. Fields: path, holder.
    HPS_LOCKED = 7,
    /// The file is of a version of the format that this build does not know. Fields: path, found,
    /// supported.
    HPS_UNSUPPORTED = 8,
    /// The weights of a table are of a type that this build can't compute with. Fields: table,
    /// dtype.
    HPS_UNSUPPORTED_TABLE = 9,
    /// An earlier failure left the store without writes; open it again. Field: cause.
    HPS_POISONED = 10,
    /// The store was closed with changes after its last checkpoint, which are gone. Field: rows.
    HPS_UNCHECKPOINTED = 11,
    /// The call was asked to stop; nothing changed.
    HPS_CANCELLED = 12,
    /// The store was opened read-only. Field: path.
    HPS_READ_ONLY = 13,
    /// The time given for a wait passed; the ticket stays valid. Field: waited_ms.
    HPS_DEADLINE = 14,
    /// A GPU, or its driver, failed. Fields: device, operation, why.
    HPS_DEVICE = 15,
    /// The memory of a GPU does not suffice. Fields: device, what, asked_bytes, free_bytes.
    HPS_DEVICE_MEMORY = 16,
    /// A call on a GPU was refused. Fields: call, why, key, position, positions.
    HPS_REFUSED_CALL = 17,
    /// The handle belongs to the process that this one was forked from.
    HPS_FORKED = 18,
    /// A pointer is NULL that must not be. Field: name.
    HPS_NULL_POINTER = 100,
    /// The library has a bug: a panic was caught. The store, if one was called, is poisoned; open
    /// it again.
    HPS_PANIC = 101,
    /// An error that has no number in this version of hps.h.
    HPS_OTHER = 102,
}

/// Which I/O engine to use.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// io_uring, or plain calls where the kernel refuses it.
    HPS_IO_URING = 0,
    /// Plain calls.
    HPS_IO_PREAD = 1,
}

/// Which rows leave memory first. `hps_options_set_policy_cached` sets one that has numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// LRU list of current rows, LFU list of candidates, frequencies that survive eviction.
    HPS_POLICY_BILEVEL = 0,
    /// Least recently used.
    HPS_POLICY_LRU = 1,
    /// First in, first out.
    HPS_POLICY_FIFO = 2,
    /// The whole table stays in memory; a table that does not fit is an error.
    HPS_POLICY_PIN_ALL = 3,
    /// As HPS_POLICY_PIN_ALL, and the whole table is read when the store is opened.
    HPS_POLICY_STAGED = 4,
}

/// The type of the keys in a keyset file: little-endian, one after the other, nothing else.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyTypes {
    /// 8 bytes each (HugeCTR's `long long`): the bits of a u64.
    HPS_KEYS_I64 = 0,
    /// 4 bytes each (HugeCTR's `unsigned int`).
    HPS_KEYS_U32 = 1,
}

/// What to do with gradients that are NaN or infinite. They are always counted.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NonFiniteValues {
    /// Leave the row as it is; other rows of the batch are updated.
    HPS_NON_FINITE_SKIP = 0,
    /// Refuse the batch; nothing changes.
    HPS_NON_FINITE_REJECT = 1,
    /// Apply them.
    HPS_NON_FINITE_APPLY = 2,
}

/// The rule that turns a gradient into a change of the row, and the state it keeps.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateRule {
    /// `w -= lr * g`; no state.
    HPS_SGD = 0,
    /// `v = momentum * v + g; w -= lr * v`; state: v `[dim]`.
    HPS_MOMENTUM = 1,
    /// `v = momentum * v + g; w -= lr * (g + momentum * v)`; state: v `[dim]`.
    HPS_NESTEROV = 2,
    /// `a += g * g; w -= lr * g / (sqrt(a) + epsilon)`; state: a `[dim]`.
    HPS_ADAGRAD = 3,
    /// `a += mean(g * g); w -= lr * g / (sqrt(a) + epsilon)`; state: a `[1]`.
    HPS_ROWWISE_ADAGRAD = 4,
    /// Lazy Adam with the row's own step count; state: m `[dim]`, v `[dim]`, t `[1]`.
    HPS_ADAM = 5,
    /// FTRL-Proximal; state: z `[dim]`, n `[dim]`.
    HPS_FTRL = 6,
}

/// What a key that was never pushed looks like.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialiserKind {
    /// All weights zero.
    HPS_INIT_ZERO = 0,
    /// All weights a.
    HPS_INIT_CONSTANT = 1,
    /// Weights uniform in `[a, b)`.
    HPS_INIT_UNIFORM = 2,
    /// Weights normal, of mean a and standard deviation b.
    HPS_INIT_NORMAL = 3,
}

/// Optional columns of a row, as bits that are added: u32 values that a push changes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataColumns {
    /// The sum of the shows given at push.
    HPS_METADATA_SHOW = 1,
    /// The sum of the clicks given at push.
    HPS_METADATA_CLICK = 2,
    /// The number of pushes of the row.
    HPS_METADATA_COUNT = 4,
    /// The step given at the last push of the row.
    HPS_METADATA_LAST_STEP = 8,
}

/// What the values of a push or put are.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// `[n, dim]`: the table's optimizer applies them; those of equal keys are summed first. Push
    /// only.
    HPS_GRADIENTS = 0,
    /// `[n, dim]`: added to the weights; equal keys add up in the order of the batch. Push only.
    HPS_DELTAS = 1,
    /// `[n, dim]`: replace the weights. A push leaves the state; a put gives the state of a key
    /// that was never pushed. Of equal keys the last one counts.
    HPS_WEIGHTS = 2,
    /// `[n, row_f32s]`: replace whole rows, state and metadata included (u32 bit patterns). Of
    /// equal keys the last one counts.
    HPS_ROWS = 3,
}

/// How the values of a push or put are meant, as bits that are added.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateFlags {
    /// Weights or rows are stored to the bit, NaN and infinities included.
    HPS_VERBATIM = 1,
    /// Only the rows at `positions` change: values, shows and clicks are those of these positions.
    /// With `positions_len` 0 nothing changes. Push only.
    HPS_AT_POSITIONS = 2,
}

/// How grave a line of the log is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Something failed, and nobody else is told.
    HPS_LOG_ERROR = 1,
    /// Something is not as it should be, and the store goes on.
    HPS_LOG_WARN = 2,
    /// Checkpoints, opens, closes.
    HPS_LOG_INFO = 3,
    /// Flushes, compactions.
    HPS_LOG_DEBUG = 4,
    /// Everything.
    HPS_LOG_TRACE = 5,
}

/// The error for a number that no constant has.
pub fn unknown(name: &'static str, number: impl Into<i64>) -> Fault {
    Fault::option(name, number.into(), "no constant of hps.h has this number")
}

/// Finds what a number of C's stands for.
macro_rules! numbers {
    ($read:ident, $name:literal, $enum:ident => $type:ident {
        $($constant:ident: $variant:ident,)*
    }) => {
        pub fn $read(number: i32) -> Result<$type> {
            $(if number == $enum::$constant as i32 {
                return Ok($type::$variant);
            })*
            Err(unknown($name, number))
        }
    };
}

numbers!(io_engine, "io", Io => IoEngine {
    HPS_IO_URING: Uring,
    HPS_IO_PREAD: Pread,
});
numbers!(policy, "policy", Policy => PolicyKind {
    HPS_POLICY_BILEVEL: Bilevel,
    HPS_POLICY_LRU: Lru,
    HPS_POLICY_FIFO: Fifo,
    HPS_POLICY_PIN_ALL: PinAll,
    HPS_POLICY_STAGED: Staged,
});
numbers!(key_type, "key_type", KeyTypes => KeyType {
    HPS_KEYS_I64: I64,
    HPS_KEYS_U32: U32,
});
numbers!(non_finite, "non_finite", NonFiniteValues => NonFinite {
    HPS_NON_FINITE_SKIP: Skip,
    HPS_NON_FINITE_REJECT: Reject,
    HPS_NON_FINITE_APPLY: Apply,
});
numbers!(optimizer, "optimizer", UpdateRule => Optimizer {
    HPS_SGD: Sgd,
    HPS_MOMENTUM: Momentum,
    HPS_NESTEROV: Nesterov,
    HPS_ADAGRAD: Adagrad,
    HPS_ROWWISE_ADAGRAD: RowwiseAdagrad,
    HPS_ADAM: Adam,
    HPS_FTRL: Ftrl,
});

/// The number of an optimizer; -1 where this version has none.
pub fn optimizer_number(rule: Optimizer) -> i32 {
    let numbers = 0..=UpdateRule::HPS_FTRL as i32;
    let is_it = |number: &i32| optimizer(*number).is_ok_and(|of| of == rule);
    numbers.into_iter().find(is_it).unwrap_or(-1)
}
