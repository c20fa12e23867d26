//! How does C push changes to the rows of a lease?
#![expect(unsafe_code, reason = "C finds its functions by their names")]

use crate::border::call;
use crate::codes::{UpdateFlags, Values, unknown};
use crate::error::{Fault, Result};
use crate::pointers::{
    ErrorOut, Floats, LeaseRef, PushReportOut, Room, StoreRef, UpdateRef, Words,
};

/// What a push does to the rows of a lease, or of a part of it. Set it to zeros, then fill in what
/// is needed.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Update<'a> {
    /// What the values are: a number of hps_values.
    pub kind: i32,
    /// Numbers of hps_update_flags, added.
    pub flags: u32,
    /// Learning rate of HPS_GRADIENTS; ignored else.
    pub lr: f32,
    /// The trainer's step, for the column HPS_METADATA_LAST_STEP.
    pub step: u32,
    /// `[n, dim]`, or `[n, row_f32s]` of HPS_ROWS; n is m with HPS_AT_POSITIONS.
    pub values: Floats<'a>,
    /// f32s in values.
    pub values_len: usize,
    /// `[n]`, what is added to the column HPS_METADATA_SHOW. Shows and clicks are given together,
    /// or neither is.
    pub shows: Words<'a>,
    /// `[n]`, what is added to the column HPS_METADATA_CLICK.
    pub clicks: Words<'a>,
    /// Numbers in shows, and as many in clicks; 0: neither is read.
    pub shows_clicks_len: usize,
    /// `[m]`, each below the keys of the lease or part; read with HPS_AT_POSITIONS only.
    pub positions: Words<'a>,
    /// Numbers in positions.
    pub positions_len: usize,
    /// 0; room for later versions.
    pub reserved: [u64; 2],
}

/// What a push did.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PushReport {
    /// Distinct rows changed.
    pub rows: u64,
    /// Positions whose values were not finite (skipped or applied, as the options say).
    pub non_finite: u64,
}

impl From<store::PushReport> for PushReport {
    fn from(of: store::PushReport) -> PushReport {
        PushReport {
            rows: of.rows,
            non_finite: of.non_finite,
        }
    }
}

/// What a put did.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PutReport {
    /// Keys whose rows were written; one that is there twice counts twice.
    pub rows: u64,
    /// Keys whose values were not finite (skipped or written, as the options say).
    pub non_finite: u64,
}

impl From<store::PutReport> for PutReport {
    fn from(of: store::PutReport) -> PutReport {
        PutReport {
            rows: of.rows,
            non_finite: of.non_finite,
        }
    }
}

impl<'a> Update<'a> {
    /// As the store wants it.
    pub fn of_store(&self) -> Result<store::Update<'a>> {
        const VERBATIM: u32 = UpdateFlags::HPS_VERBATIM as u32;
        const AT: u32 = UpdateFlags::HPS_AT_POSITIONS as u32;
        let values = self.values.slice("values", self.values_len)?;
        let mut update = match self.kind {
            kind if kind == Values::HPS_GRADIENTS as i32 => {
                store::Update::gradients(values, self.lr)
            }
            kind if kind == Values::HPS_DELTAS as i32 => store::Update::deltas(values),
            kind if kind == Values::HPS_WEIGHTS as i32 => store::Update::weights(values),
            kind if kind == Values::HPS_ROWS as i32 => store::Update::rows(values),
            other => return Err(unknown("kind", other)),
        };
        if self.flags & !(VERBATIM | AT) != 0 {
            return Err(unknown("flags", self.flags));
        }
        if self.reserved != [0, 0] {
            let why = "must be zeros: set the struct to zeros first";
            return Err(Fault::option("reserved", self.reserved[0], why));
        }
        update = update.step(self.step);
        if self.shows_clicks_len > 0 {
            let shows = self.shows.slice("shows", self.shows_clicks_len)?;
            let clicks = self.clicks.slice("clicks", self.shows_clicks_len)?;
            update = update.shows_clicks(shows, clicks);
        }
        if self.flags & AT != 0 {
            update = update.at(self.positions.slice("positions", self.positions_len)?);
        }
        if self.flags & VERBATIM != 0 {
            update = update.verbatim();
        }
        Ok(update)
    }
}

fn push(
    store: StoreRef,
    lease: LeaseRef,
    update: store::Update<'_>,
    report: PushReportOut,
) -> Result<()> {
    let (report, lease) = (report.optional("report")?, lease.get("lease")?);
    let done = store.get("store")?.0.get()?.push(&lease.0, update)?;
    if let Some(report) = report {
        report.write(done.into());
    }
    Ok(())
}

/// Changes the rows of a lease of one part. No I/O.
///
/// update: what is done; report: what was done, or NULL.
///
/// # Durability
/// With the next checkpoint.
///
/// # Errors
/// HPS_INVALID_ARGUMENT (a lease of another store, lengths, lr, positions, values that are not
/// finite when the options reject them), HPS_READ_ONLY, HPS_POISONED; nothing changed.
///
/// # Threads
/// Any. Pushes that run at the same time are applied row by row in an order that is not defined.
#[unsafe(no_mangle)]
pub extern "C" fn hps_push(
    store: StoreRef,
    lease: LeaseRef,
    update: UpdateRef,
    report: PushReportOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let update = update.get("update")?.of_store()?;
        push(store, lease, update, report)
    })
}

/// Lets the table's optimizer apply gradients to the rows of a lease of one part; those of equal
/// keys are summed first. The same as `hps_push` of HPS_GRADIENTS.
///
/// gradients: `[n, dim]` for the n keys of the lease.
///
/// # Durability
/// With the next checkpoint.
///
/// # Errors
/// As `hps_push`.
///
/// # Threads
/// As `hps_push`.
#[unsafe(no_mangle)]
pub extern "C" fn hps_push_gradients(
    store: StoreRef,
    lease: LeaseRef,
    gradients: Floats,
    gradients_len: usize,
    lr: f32,
    report: PushReportOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let gradients = gradients.slice("gradients", gradients_len)?;
        push(
            store,
            lease,
            store::Update::gradients(gradients, lr),
            report,
        )
    })
}
