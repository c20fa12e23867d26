//! How is a moment kept, and how does one get back to it?
#![expect(unsafe_code, reason = "C finds its functions by their names")]

use std::path::PathBuf;
use std::ptr::null;
use std::time::Duration;

use store::{CheckpointId, CheckpointTicket, Hold};

use crate::border::{call, free};
use crate::error::Result;
use crate::pointers::{
    Bytes, BytesHandleOut, BytesRef, CheckpointInfoOut, CheckpointInfosOut, CheckpointTicketOut,
    CheckpointTicketRef, ErrorOut, HoldOut, I32Out, IdentityOut, Keys, Output, Room, SizeOut,
    StoreRef, Text, Texts, U64Out,
};
use crate::ticket::HPS_FOREVER;

/// A durable checkpoint.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CheckpointInfo {
    /// From 1 on; never used again, also after a rollback.
    pub id: u64,
    /// The trainer's step.
    pub step: u64,
    /// Bytes of the trainer's meta.
    pub meta_bytes: u64,
    /// Seconds since 1970 at which it was made.
    pub unix_seconds: u64,
}

impl From<store::CheckpointInfo> for CheckpointInfo {
    fn from(of: store::CheckpointInfo) -> CheckpointInfo {
        CheckpointInfo {
            id: of.id.0,
            step: of.step,
            meta_bytes: of.meta_bytes,
            unix_seconds: of.unix_seconds,
        }
    }
}

/// Which store this is, and which of its histories.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Identity {
    /// The uuid that the store got when it was made; its exports and repairs have it too.
    pub store: [u8; 16],
    /// The uuid of its history: a rollback, an export and a repair each begin a new one.
    pub timeline: [u8; 16],
    /// The last durable checkpoint, 0 if there is none; of a reader, the one that it has open.
    pub checkpoint: u64,
}

/// A checkpoint on its way. `hps_checkpoint_begin` gives it, `hps_checkpoint_ticket_free` frees it.
pub struct CheckpointTicketHandle(CheckpointTicket);

/// Keeps a checkpoint until it is freed. `hps_hold_checkpoint` gives it, `hps_hold_free` frees it.
pub struct HoldHandle(#[expect(dead_code, reason = "it is there to be dropped")] Hold);

/// Bytes that the library has allocated. `hps_bytes_free` frees them.
pub struct BytesHandle(Vec<u8>);

/// Makes everything pushed so far durable, together with bytes of the trainer's own.
///
/// step: rises from checkpoint to checkpoint; meta: `[meta_len]`; info: the checkpoint, or NULL.
///
/// # Durability
/// All earlier pushes, puts, removes and tables survive a crash once this returns HPS_OK; else none
/// of those since the checkpoint before.
///
/// # Errors
/// HPS_INVALID_ARGUMENT when `step` does not rise, HPS_NO_SPACE, HPS_IO, HPS_POISONED,
/// HPS_READ_ONLY.
///
/// # Threads
/// Any; other calls go on meanwhile, a second checkpoint waits for the first.
#[unsafe(no_mangle)]
pub extern "C" fn hps_checkpoint(
    store: StoreRef,
    step: u64,
    meta: Bytes,
    meta_len: usize,
    info: CheckpointInfoOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let (place, meta) = (info.optional("info")?, meta.slice("meta", meta_len)?);
        let info = store.get("store")?.0.get()?.checkpoint(step, meta)?;
        if let Some(place) = place {
            place.write(info.into());
        }
        Ok(())
    })
}

/// Freezes the state and writes behind: training may go on at once. Waits first for a checkpoint
/// that is still running. The meta is copied.
///
/// # Durability
/// None yet: with `hps_checkpoint_ticket_wait`.
///
/// # Errors
/// As `hps_checkpoint`; what happens later comes from `hps_checkpoint_ticket_wait`.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_checkpoint_begin(
    store: StoreRef,
    step: u64,
    meta: Bytes,
    meta_len: usize,
    ticket: CheckpointTicketOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let (place, meta) = (ticket.place("ticket")?, meta.slice("meta", meta_len)?);
        let ticket = store.get("store")?.0.get()?.checkpoint_begin(step, meta)?;
        place.write(Some(Box::new(CheckpointTicketHandle(ticket))));
        Ok(())
    })
}

/// Tells whether `hps_checkpoint_ticket_wait` returns at once: 1 or 0. Never waits.
///
/// # Errors
/// HPS_NULL_POINTER.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_checkpoint_ticket_poll(
    ticket: CheckpointTicketRef,
    done: I32Out,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let place = done.place("done")?;
        place.write(i32::from(ticket.get("ticket")?.0.is_done()));
        Ok(())
    })
}

/// Waits until the checkpoint is durable, at most `timeout_us` microseconds; HPS_FOREVER has no
/// end.
///
/// info: the checkpoint, or NULL.
///
/// # Durability
/// Every push before `hps_checkpoint_begin` survives a crash once this returns HPS_OK.
///
/// # Errors
/// HPS_DEADLINE when it is not durable yet: it goes on, and may be waited for again. HPS_NO_SPACE,
/// HPS_IO, HPS_POISONED: the last checkpoint stays in force. HPS_INVALID_ARGUMENT once its end was
/// told. HPS_FORKED.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_checkpoint_ticket_wait(
    ticket: CheckpointTicketRef,
    timeout_us: u64,
    info: CheckpointInfoOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let place = info.optional("info")?;
        let limit = match timeout_us {
            // As good as for ever.
            HPS_FOREVER => Duration::from_secs(1 << 32),
            limit => Duration::from_micros(limit),
        };
        let info = ticket.get("ticket")?.0.wait_for(limit)?;
        if let Some(place) = place {
            place.write(info.into());
        }
        Ok(())
    })
}

/// Frees the ticket; the checkpoint goes on. NULL is allowed.
///
/// # Threads
/// None may use the ticket any more.
#[unsafe(no_mangle)]
pub extern "C" fn hps_checkpoint_ticket_free(ticket: Option<Box<CheckpointTicketHandle>>) {
    free(ticket);
}

/// Lists the retained checkpoints, oldest first.
///
/// infos: `[capacity]`, of which as many are written as there are; count: how many there are, which
/// may be more. With capacity 0 infos may be NULL.
///
/// # Errors
/// HPS_NULL_POINTER, HPS_INVALID_ARGUMENT (closed), HPS_FORKED.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_checkpoints(
    store: StoreRef,
    infos: CheckpointInfosOut,
    capacity: usize,
    count: SizeOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let (out, count) = (infos.slice("infos", capacity)?, count.place("count")?);
        let all = store.get("store")?.0.get()?.checkpoints();
        count.write(all.len());
        for (out, info) in out.iter_mut().zip(all) {
            out.write(info.into());
        }
        Ok(())
    })
}

/// Gives the last durable checkpoint; all zeros where there is none.
///
/// # Errors
/// HPS_NULL_POINTER, HPS_INVALID_ARGUMENT (closed), HPS_FORKED.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_last_checkpoint(
    store: StoreRef,
    info: CheckpointInfoOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let place = info.place("info")?;
        let none = CheckpointInfo {
            id: 0,
            step: 0,
            meta_bytes: 0,
            unix_seconds: 0,
        };
        let last = store.get("store")?.0.get()?.last_checkpoint();
        place.write(last.map_or(none, CheckpointInfo::from));
        Ok(())
    })
}

/// Gives the bytes that a retained checkpoint was made with; they are read and verified.
///
/// # Errors
/// HPS_INVALID_ARGUMENT for an unknown checkpoint, HPS_CORRUPT, HPS_IO, HPS_FORKED.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_checkpoint_meta(
    store: StoreRef,
    checkpoint: u64,
    meta: BytesHandleOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let place = meta.place("meta")?;
        let store = store.get("store")?.0.get()?;
        let meta = store.checkpoint_meta(CheckpointId(checkpoint))?;
        place.write(Some(Box::new(BytesHandle(meta))));
        Ok(())
    })
}

/// The bytes; they live as long as the handle. NULL for NULL.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_bytes_data(bytes: BytesRef) -> *const u8 {
    bytes.get("bytes").map_or(null(), |bytes| bytes.0.as_ptr())
}

/// How many bytes there are. 0 for NULL.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_bytes_len(bytes: BytesRef) -> usize {
    bytes.get("bytes").map_or(0, |bytes| bytes.0.len())
}

/// Frees bytes. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn hps_bytes_free(bytes: Option<Box<BytesHandle>>) {
    free(bytes);
}

/// Goes back to a retained checkpoint; later ones, and all changes since, are gone. Waits for calls
/// of other threads.
///
/// # Durability
/// The store opens at that checkpoint once this returns HPS_OK.
///
/// # Errors
/// HPS_INVALID_ARGUMENT (kind "UnknownCheckpoint"; "LeasesOutstanding": leases or tickets; "Option":
/// a cache too small for a dropped table that comes back), HPS_UNSUPPORTED_TABLE, HPS_POISONED,
/// HPS_READ_ONLY, HPS_FORKED: the store is open as before. After any other error it is closed: open
/// it again, at that checkpoint or at the last one.
///
/// # Threads
/// Any; not from a callback of the log.
#[unsafe(no_mangle)]
pub extern "C" fn hps_rollback(store: StoreRef, checkpoint: u64, error: ErrorOut) -> i32 {
    call(error, || {
        store.get("store")?.0.rollback(CheckpointId(checkpoint))
    })
}

/// Makes a store at `target` that holds one retained checkpoint, by hard links: no bytes of rows
/// are copied.
///
/// parts: `[parts_len]`, a directory for each data directory, on its file system; with parts_len 0
/// they are inside `target`.
///
/// # Durability
/// The export survives a crash once this returns HPS_OK.
///
/// # Errors
/// HPS_INVALID_ARGUMENT (an unknown checkpoint, a directory in use), HPS_IO (another file system),
/// HPS_FORKED.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_export(
    store: StoreRef,
    checkpoint: u64,
    target: Text,
    parts: Texts,
    parts_len: usize,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let target = target.path("target")?;
        let parts = parts.slice("parts", parts_len)?.iter();
        let parts = parts.map(|part| Ok(part.path("parts")?.to_owned()));
        let parts: Vec<PathBuf> = parts.collect::<Result<_>>()?;
        let store = store.get("store")?.0.get()?;
        Ok(store.export(CheckpointId(checkpoint), target, &parts)?)
    })
}

/// Keeps a retained checkpoint, whatever is retained, until the hold is freed, also after the store
/// was closed. It ends with the process.
///
/// # Errors
/// HPS_INVALID_ARGUMENT for an unknown checkpoint, HPS_LOCKED when it is being dropped,
/// HPS_CORRUPT, HPS_IO, HPS_FORKED.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_hold_checkpoint(
    store: StoreRef,
    checkpoint: u64,
    hold: HoldOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let place = hold.place("hold")?;
        let hold = store
            .get("store")?
            .0
            .get()?
            .hold(CheckpointId(checkpoint))?;
        place.write(Some(Box::new(HoldHandle(hold))));
        Ok(())
    })
}

/// Frees a hold: its checkpoint is retained as the others are. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn hps_hold_free(hold: Option<Box<HoldHandle>>) {
    free(hold);
}

/// Drops retained checkpoints, and unlinks the files that only they need. One that a reader or a
/// hold keeps stays.
///
/// checkpoints: `[checkpoints_len]`, without the last one; dropped: how many were, or NULL.
///
/// # Durability
/// They are gone for good once this returns HPS_OK; after a crash before that, all are there or
/// none.
///
/// # Errors
/// HPS_INVALID_ARGUMENT for a checkpoint that is not retained or is the last one (nothing changed),
/// HPS_NO_SPACE, HPS_IO, HPS_POISONED, HPS_READ_ONLY.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_drop_checkpoints(
    store: StoreRef,
    checkpoints: Keys,
    checkpoints_len: usize,
    dropped: U64Out,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let place = dropped.optional("dropped")?;
        let ids = checkpoints.slice("checkpoints", checkpoints_len)?.iter();
        let ids: Vec<CheckpointId> = ids.copied().map(CheckpointId).collect();
        let report = store.get("store")?.0.get()?.drop_checkpoints(&ids)?;
        if let Some(place) = place {
            place.write(report.dropped.len() as u64);
        }
        Ok(())
    })
}

/// Tells which store and which history this is, and how far it is: what a job writes down beside
/// its results.
///
/// # Errors
/// HPS_NULL_POINTER, HPS_INVALID_ARGUMENT (closed), HPS_FORKED.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_store_identity(
    store: StoreRef,
    identity: IdentityOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let place = identity.place("identity")?;
        let of = store.get("store")?.0.get()?.identity()?;
        place.write(Identity {
            store: of.store,
            timeline: of.timeline,
            checkpoint: of.checkpoint.map_or(0, |id| id.0),
        });
        Ok(())
    })
}
