//! The calls for rows of several tables.
#![expect(unsafe_code, reason = "C finds its functions by their names")]

use store::TableId;

use crate::border::call;
use crate::error::{Fault, Result};
use crate::lease::LeaseHandle;
use crate::pointers::{
    ErrorOut, FloatsOut, Keys, LeaseOut, LeaseRef, Output, PrefetchParts, PullParts, PushParts,
    PushReportsOut, StoreRef, TicketOut,
};
use crate::ticket::TicketHandle;
use crate::update::Update;

/// One part of `hps_pull_many`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PullPart<'a> {
    /// The table.
    pub table: u32,
    /// 0; room for later versions.
    pub reserved: u32,
    /// `[keys_len]`, any u64, duplicates allowed.
    pub keys: Keys<'a>,
    /// Keys.
    pub keys_len: usize,
    /// `[keys_len, dim]`: where the weights go.
    pub out: FloatsOut<'a>,
    /// f32s in out.
    pub out_len: usize,
}

/// One part of `hps_prefetch_many`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PrefetchPart<'a> {
    /// The table.
    pub table: u32,
    /// 0; room for later versions.
    pub reserved: u32,
    /// `[keys_len]`, any u64, duplicates allowed.
    pub keys: Keys<'a>,
    /// Keys.
    pub keys_len: usize,
}

/// One part of `hps_push_many`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PushPart<'a> {
    /// The table of the lease's part.
    pub table: u32,
    /// 0; room for later versions.
    pub reserved: u32,
    /// What is done to its rows.
    pub update: Update<'a>,
}

fn check_reserved(reserved: u32) -> Result<()> {
    match reserved {
        0 => Ok(()),
        other => Err(Fault::option("reserved", other, "must be 0")),
    }
}

impl<'a> PullPart<'a> {
    fn read(&self) -> Result<store::PullPart<'a>> {
        check_reserved(self.reserved)?;
        let keys = self.keys.slice("keys", self.keys_len)?;
        let out = self.out.slice("out", self.out_len)?;
        Ok(store::PullPart::new(TableId(self.table), keys, out))
    }
}

impl<'a> PrefetchPart<'a> {
    fn read(&self) -> Result<store::PrefetchPart<'a>> {
        check_reserved(self.reserved)?;
        let keys = self.keys.slice("keys", self.keys_len)?;
        Ok(store::PrefetchPart::new(TableId(self.table), keys))
    }
}

impl<'a> PushPart<'a> {
    fn read(&self) -> Result<store::PushPart<'a>> {
        check_reserved(self.reserved)?;
        let update = self.update.of_store()?;
        Ok(store::PushPart::new(TableId(self.table), update))
    }
}

/// Makes rows of several tables resident, pins them and copies their weights: all parts or none,
/// under one lease. A table may be in several parts, and a key in several of them.
///
/// parts: `[parts_len]`, at least one.
///
/// # Durability
/// None: nothing changes.
///
/// # Errors
/// As `hps_pull`; nothing is pinned, of no part.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_pull_many(
    store: StoreRef,
    parts: PullParts,
    parts_len: usize,
    lease: LeaseOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let place = lease.place("lease")?;
        let parts = parts.slice("parts", parts_len)?.iter().map(PullPart::read);
        let mut wanted = parts.collect::<Result<Vec<_>>>()?;
        let lease = store.get("store")?.0.get()?.pull_many(&mut wanted)?;
        place.write(Some(Box::new(LeaseHandle(lease))));
        Ok(())
    })
}

/// Starts making rows of several tables resident, all parts or none. The keys are copied.
///
/// parts: `[parts_len]`, at least one.
///
/// # Durability
/// None: nothing changes.
///
/// # Errors
/// HPS_INVALID_ARGUMENT; everything else comes from `hps_ticket_wait`.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_prefetch_many(
    store: StoreRef,
    parts: PrefetchParts,
    parts_len: usize,
    ticket: TicketOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let place = ticket.place("ticket")?;
        let parts = parts.slice("parts", parts_len)?;
        let wanted = parts.iter().map(PrefetchPart::read);
        let wanted = wanted.collect::<Result<Vec<_>>>()?;
        let ticket = store.get("store")?.0.get()?.prefetch_many(&wanted)?;
        place.write(Some(Box::new(TicketHandle::new(ticket))));
        Ok(())
    })
}

/// Changes the rows of all parts of a lease, in their order. A part whose rows are to stay as they
/// are gets an update of HPS_AT_POSITIONS without positions.
///
/// parts: `[parts_len]`, one for each part of the lease, in its order; reports: the same, or NULL.
///
/// # Durability
/// With the next checkpoint: all parts, or none where its cut came before.
///
/// # Errors
/// As `hps_push`; HPS_INVALID_ARGUMENT also for another number of parts, or another table than a
/// part's. Nothing changed, of no part.
///
/// # Threads
/// As `hps_push`.
#[unsafe(no_mangle)]
pub extern "C" fn hps_push_many(
    store: StoreRef,
    lease: LeaseRef,
    parts: PushParts,
    parts_len: usize,
    reports: PushReportsOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let reports = reports.slice_or_none("reports", parts_len)?;
        let parts = parts.slice("parts", parts_len)?.iter().map(PushPart::read);
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let lease = &lease.get("lease")?.0;
        let done = store.get("store")?.0.get()?.push_many(lease, &parts)?;
        for (report, done) in reports.iter_mut().zip(done) {
            report.write(done.into());
        }
        Ok(())
    })
}
