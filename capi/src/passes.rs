//! How does C say which rows its next pass needs?
#![expect(unsafe_code, reason = "C finds its functions by their names")]

use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use store::{Pass, PassTicket, TableId};

use crate::batches::put_rows;
use crate::border::{Process, call, free, lock};
use crate::codes::key_type;
use crate::error::{Fault, Result};
use crate::pointers::{
    ErrorOut, Floats, FloatsOut, I32Out, Keys, Output, PassOut, PassParts, PassRef, PassReportOut,
    PassTableReportsOut, PassTicketOut, PassTicketRef, PutReportOut, Room, SizeOut, StoreRef, Text,
};
use crate::ticket::{Awaited, Waiting};

/// One part of a pass: keys of one table, in memory or in a keyset file. Set it to zeros, then fill
/// in what is needed.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PassPart<'a> {
    /// The table.
    pub table: u32,
    /// The type of the keys in the file, a number of hps_key_type; 0 without a file.
    pub key_type: i32,
    /// `[keys_len]`, any u64, each once: room is asked for as often as a key is there, and its row
    /// is brought in once. NULL with a file.
    pub keys: Keys<'a>,
    /// Keys; 0 with a file.
    pub keys_len: usize,
    /// A keyset file, whose keys are read piece by piece; NULL: there is none.
    pub path: Text<'a>,
    /// 0; room for later versions.
    pub reserved: u64,
}

/// What bringing a pass in came to.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PassReport {
    /// Keys.
    pub keys: u64,
    /// Rows among them that were ever pushed and not removed since; others have no row on SSD.
    pub known: u64,
    /// Known rows that were in memory when their turn came; of a table with blocks those in one.
    pub hits: u64,
    /// Rows that were read from SSD, in bytes of rows.
    pub bytes: u64,
    /// From the begin of the load to its end, waits for room included; not that for passes before.
    pub seconds: f64,
    /// Hits per known key, 0 to 1; 1 where none is known: nothing had to be read.
    pub hit_rate: f64,
    /// 0; room for later versions.
    pub reserved: [u64; 2],
}

/// What bringing in one part of a pass came to; see hps_pass_report.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PassTableReport {
    /// The table.
    pub table: u32,
    /// 1: its rows stay as a block when the pass ends; else 0.
    pub is_block: i32,
    /// Keys.
    pub keys: u64,
    /// Rows among them that were ever pushed.
    pub known: u64,
    /// Known rows that were in memory, or in a block.
    pub hits: u64,
    /// Rows that were read from SSD, in bytes of rows.
    pub bytes: u64,
    /// Hits per known key.
    pub hit_rate: f64,
    /// 0; room for later versions.
    pub reserved: u64,
}

/// A pass on its way. `hps_begin_pass` gives it, `hps_pass_ticket_free` frees it.
pub struct PassTicketHandle(Waiting<PassTicket>);

/// Keeps the rows of a pass in memory until it ends. `hps_pass_ticket_wait` gives it,
/// `hps_pass_free` frees it.
pub struct PassHandle {
    process: Process,
    report: store::PassReport,
    /// None once it has ended.
    pass: Mutex<Option<Arc<Pass>>>,
}

impl Awaited for PassTicket {
    type Given = Pass;
    const GIVEN: &'static str = "its pass";

    fn is_ready(&self) -> bool {
        PassTicket::is_ready(self)
    }

    fn wait(self) -> store::Result<Pass> {
        PassTicket::wait(self)
    }

    fn wait_for(&self, limit: Duration) -> store::Result<Pass> {
        PassTicket::wait_for(self, limit)
    }
}

impl<'a> PassPart<'a> {
    fn read(&self) -> Result<store::PassPart<'a>> {
        if self.reserved != 0 {
            return Err(Fault::option("reserved", self.reserved, "must be 0"));
        }
        let (table, key_type) = (TableId(self.table), key_type(self.key_type)?);
        let Some(path) = self.path.optional_path("path")? else {
            let keys = self.keys.slice("keys", self.keys_len)?;
            return Ok(store::PassPart::new(table, keys));
        };
        if self.keys_len > 0 {
            let why = "must be 0 with a path: the keys of a part come from one place";
            return Err(Fault::option("keys_len", self.keys_len, why));
        }
        Ok(store::PassPart::from_file(table, path, key_type))
    }
}

impl PassHandle {
    fn new(pass: Pass) -> PassHandle {
        PassHandle {
            process: Process::this(),
            report: pass.report().clone(),
            pass: Mutex::new(Some(Arc::new(pass))),
        }
    }

    /// The pass, unless it has ended.
    fn there(&self) -> Result<Arc<Pass>> {
        self.process.check()?;
        let pass = lock(&self.pass).clone();
        pass.ok_or_else(|| Fault::other(String::from("the pass has ended; begin another")))
    }
}

impl From<&store::PassReport> for PassReport {
    fn from(of: &store::PassReport) -> PassReport {
        PassReport {
            keys: of.keys,
            known: of.known,
            hits: of.hits,
            bytes: of.bytes,
            seconds: of.seconds,
            hit_rate: of.hit_rate(),
            reserved: [0; 2],
        }
    }
}

impl From<&store::PassTable> for PassTableReport {
    fn from(of: &store::PassTable) -> PassTableReport {
        PassTableReport {
            table: of.table.0,
            is_block: i32::from(of.is_block),
            keys: of.keys,
            known: of.known,
            hits: of.hits,
            bytes: of.bytes,
            hit_rate: of.hit_rate(),
            reserved: 0,
        }
    }
}

/// Begins a pass: the rows of its keys come into memory, beside other calls, and stay until the
/// pass ends, so that pulls and pushes of them are hits. Passes come in one after the other, in the
/// order in which they were begun. Keys in memory are copied. Values depend on nothing of this.
///
/// Of a table with a cached policy (`hps_options_set_policy_cached`) the rows may stay beyond the
/// end of the pass, as a block.
///
/// parts: `[parts_len]`, at least one.
///
/// # Durability
/// None: what is pushed in a pass is durable with the next checkpoint.
///
/// # Errors
/// HPS_OVER_BUDGET: more rows than the cache has room for; needed_bytes is one that would do.
/// HPS_INVALID_ARGUMENT, also for a keyset file without keys, or that has no whole number of them;
/// HPS_IO. Everything else comes from `hps_pass_ticket_wait`.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_begin_pass(
    store: StoreRef,
    parts: PassParts,
    parts_len: usize,
    ticket: PassTicketOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let place = ticket.place("ticket")?;
        let parts = parts.slice("parts", parts_len)?.iter().map(PassPart::read);
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let ticket = store.get("store")?.0.get()?.begin_pass(&parts)?;
        place.write(Some(Box::new(PassTicketHandle(Waiting::new(ticket)))));
        Ok(())
    })
}

/// Tells whether `hps_pass_ticket_wait` returns at once: 1 or 0. Never waits.
///
/// # Errors
/// HPS_NULL_POINTER, HPS_FORKED.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_pass_ticket_poll(
    ticket: PassTicketRef,
    ready: I32Out,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let place = ready.place("ready")?;
        place.write(i32::from(ticket.get("ticket")?.0.is_ready()?));
        Ok(())
    })
}

/// Waits until the rows are in memory, at most `timeout_us` microseconds, and gives the pass. The
/// ticket has to be freed in any case.
///
/// # Errors
/// HPS_DEADLINE when the rows are not there yet: wait again or free the ticket. HPS_OVER_BUDGET,
/// with HPS_FOREVER only, when the pass can't fit although nobody else holds rows, and at once when
/// it has no room beside what others hold. HPS_IO, HPS_CORRUPT, HPS_NO_SPACE, HPS_POISONED.
/// HPS_INVALID_ARGUMENT once a pass or another error was given, and when the store was closed.
///
/// # Threads
/// Any; several that wait for one ticket take turns.
#[unsafe(no_mangle)]
pub extern "C" fn hps_pass_ticket_wait(
    ticket: PassTicketRef,
    timeout_us: u64,
    pass: PassOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let place = pass.place("pass")?;
        let pass = ticket.get("ticket")?.0.wait(timeout_us)?;
        place.write(Some(Box::new(PassHandle::new(pass))));
        Ok(())
    })
}

/// Frees a ticket; one that has given no pass is given up. NULL is allowed.
///
/// # Threads
/// None may use the ticket any more.
#[unsafe(no_mangle)]
pub extern "C" fn hps_pass_ticket_free(ticket: Option<Box<PassTicketHandle>>) {
    free(ticket);
}

/// Tells what bringing a pass in came to, before its end or after.
///
/// report: NULL if it is not wanted; tables: `[capacity]`, one for each part, in their order, of
/// which as many are written as there are; count: the parts, which may be more, or NULL.
///
/// # Errors
/// HPS_NULL_POINTER, HPS_FORKED.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_pass_read(
    pass: PassRef,
    report: PassReportOut,
    tables: PassTableReportsOut,
    capacity: usize,
    count: SizeOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let pass = pass.get("pass")?;
        pass.process.check()?;
        let tables: &mut [MaybeUninit<PassTableReport>] = tables.slice("tables", capacity)?;
        if let Some(report) = report.optional("report")? {
            report.write((&pass.report).into());
        }
        for (place, table) in tables.iter_mut().zip(&pass.report.tables) {
            place.write(table.into());
        }
        if let Some(count) = count.optional("count")? {
            count.write(pass.report.tables.len());
        }
        Ok(())
    })
}

/// Copies weights of rows of a pass, as they are now: of one part, from its key number `first` on,
/// as many as `out` has room for. No key is looked up.
///
/// part_index: in the order of `hps_begin_pass`; out: `[n, dim]`, in the order of the part's keys.
///
/// # Errors
/// HPS_INVALID_ARGUMENT: the pass has no such part, the part not so many keys, `out` no whole
/// number of rows, or the pass has ended; nothing was copied. HPS_FORKED.
///
/// # Threads
/// Any, several at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn hps_pass_read_weights(
    pass: PassRef,
    part_index: usize,
    first: usize,
    out: FloatsOut,
    out_len: usize,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let out = out.slice("out", out_len)?;
        Ok((pass.get("pass")?.there()?).read(part_index, first, out)?)
    })
}

/// Copies whole rows of a pass: weights, optimizer state, metadata (u32 bit patterns).
///
/// out: `[n, row_f32s]`; all else as of `hps_pass_read_weights`.
///
/// # Errors
/// As `hps_pass_read_weights`.
///
/// # Threads
/// Any, several at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn hps_pass_read_rows(
    pass: PassRef,
    part_index: usize,
    first: usize,
    out: FloatsOut,
    out_len: usize,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let out = out.slice("out", out_len)?;
        Ok((pass.get("pass")?.there()?).read_rows(part_index, first, out)?)
    })
}

/// Writes rows of a pass, whatever they held, from key number `first` of a part on: as `hps_put` of
/// these keys, but they are not looked up.
///
/// kind: HPS_WEIGHTS, values: `[n, dim]`, or HPS_ROWS, `[n, row_f32s]`, in the order of the part's
/// keys; of a key that is there twice the last row counts. flags: 0 or HPS_VERBATIM; report: what
/// was done, or NULL.
///
/// # Durability
/// With the next checkpoint: all of the call, or nothing.
///
/// # Errors
/// HPS_INVALID_ARGUMENT, HPS_READ_ONLY, HPS_FORKED: nothing changed. HPS_POISONED: some rows may
/// have changed.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_pass_put(
    pass: PassRef,
    part_index: usize,
    first: usize,
    kind: i32,
    values: Floats,
    values_len: usize,
    flags: u32,
    report: PutReportOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let report = report.optional("report")?;
        let rows = put_rows(kind, values.slice("values", values_len)?, flags)?;
        let done = (pass.get("pass")?.there()?).put(part_index, first, rows)?;
        if let Some(report) = report {
            report.write(done.into());
        }
        Ok(())
    })
}

/// Ends a pass: its rows may leave memory, but for those of blocks; where another thread reads or
/// writes them, once it has. The handle stays; a pass that has ended stays so.
///
/// report: what bringing it in came to, or NULL.
///
/// # Errors
/// HPS_NULL_POINTER, HPS_FORKED.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_pass_end(pass: PassRef, report: PassReportOut, error: ErrorOut) -> i32 {
    call(error, || {
        let (pass, place) = (pass.get("pass")?, report.optional("report")?);
        pass.process.check()?;
        let ended = lock(&pass.pass).take();
        drop(ended);
        if let Some(place) = place {
            place.write((&pass.report).into());
        }
        Ok(())
    })
}

/// Frees a pass, and ends it. NULL is allowed.
///
/// # Threads
/// None may use the pass any more.
#[unsafe(no_mangle)]
pub extern "C" fn hps_pass_free(pass: Option<Box<PassHandle>>) {
    free(pass);
}

/// Lets blocks of a table leave again, as often as its policy says
/// (`hps_options_set_policy_cached`): what is popular has changed.
///
/// # Errors
/// HPS_INVALID_ARGUMENT of kind "UnknownTable" for a number that no table has; HPS_FORKED.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_unfreeze(store: StoreRef, table: u32, error: ErrorOut) -> i32 {
    call(error, || {
        Ok(store.get("store")?.0.get()?.unfreeze(TableId(table))?)
    })
}
