//! How are the rows of a lease read?
#![expect(unsafe_code, reason = "C finds its functions by their names")]

use store::{Lease, LeasePart};

use crate::border::{call, free, survive};
use crate::error::{Fault, Result};
use crate::pointers::{ErrorOut, FloatsOut, LeaseRef, Output, Room, SizeOut, U32Out, Words};

/// Rows that stay in memory until it is freed; it holds no values. A pull or a ticket gives it,
/// `hps_lease_free` frees it.
pub struct LeaseHandle(pub Lease);

fn number(lease: LeaseRef, of: impl FnOnce(&Lease) -> usize) -> usize {
    survive(|| lease.get("lease").map_or(0, |lease| of(&lease.0))).unwrap_or(0)
}

/// The keys of the batch, duplicates included, of all parts. 0 for NULL.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_lease_len(lease: LeaseRef) -> usize {
    number(lease, Lease::len)
}

/// The parts of a lease: 1, or as many as `hps_pull_many` and `hps_prefetch_many` were asked for. 0
/// for NULL.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_lease_parts(lease: LeaseRef) -> usize {
    number(lease, |lease| lease.parts().len())
}

/// The number of the lease, as HPS_OVER_BUDGET names it. 0 for NULL.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_lease_id(lease: LeaseRef) -> u64 {
    survive(|| lease.get("lease").map_or(0, |lease| lease.0.id())).unwrap_or(0)
}

fn part(lease: &Lease, index: usize) -> Result<LeasePart<'_>> {
    let count = lease.parts().len();
    let part = lease.parts().nth(index);
    part.ok_or_else(|| Fault::option("part", index, &format!("the lease has {count} parts")))
}

/// Describes a part of a lease: its table, its keys, the weights and all words of a row. Any of the
/// places may be NULL.
///
/// # Errors
/// HPS_INVALID_ARGUMENT for a part that is not there.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_lease_part(
    lease: LeaseRef,
    part_index: usize,
    table: U32Out,
    len: SizeOut,
    dim: SizeOut,
    row_f32s: SizeOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let part = part(&lease.get("lease")?.0, part_index)?;
        if let Some(table) = table.optional("table")? {
            table.write(part.table().0);
        }
        let sizes = [
            (len.optional("len")?, part.len()),
            (dim.optional("dim")?, part.dim()),
            (row_f32s.optional("row_f32s")?, part.row_f32s()),
        ];
        for (place, size) in sizes {
            if let Some(place) = place {
                place.write(size);
            }
        }
        Ok(())
    })
}

/// Copies the weights as they are now: every push before it shows. Rows of a store that was closed
/// are as they were.
///
/// out: `[n, dim]`, in the order of the keys; of several parts, one after the other.
///
/// # Errors
/// HPS_INVALID_ARGUMENT when `out` has another length, HPS_FORKED.
///
/// # Threads
/// Any, several at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn hps_lease_read(
    lease: LeaseRef,
    out: FloatsOut,
    out_len: usize,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let out = out.slice("out", out_len)?;
        Ok(lease.get("lease")?.0.read(out)?)
    })
}

/// Copies whole rows as they are now: weights, optimizer state, metadata (u32 bit patterns).
///
/// out: `[n, row_f32s]`, in the order of the keys; of several parts, one after the other.
///
/// # Errors
/// As `hps_lease_read`.
///
/// # Threads
/// Any, several at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn hps_lease_read_rows(
    lease: LeaseRef,
    out: FloatsOut,
    out_len: usize,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let out = out.slice("out", out_len)?;
        Ok(lease.get("lease")?.0.read_rows(out)?)
    })
}

/// Copies the weights of one part. out: `[n, dim]` of the part.
///
/// # Errors
/// As `hps_lease_read`; HPS_INVALID_ARGUMENT for a part that is not there.
///
/// # Threads
/// Any, several at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn hps_lease_read_part(
    lease: LeaseRef,
    part_index: usize,
    out: FloatsOut,
    out_len: usize,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let out = out.slice("out", out_len)?;
        Ok(part(&lease.get("lease")?.0, part_index)?.read(out)?)
    })
}

/// Copies whole rows of one part. out: `[n, row_f32s]` of the part.
///
/// # Errors
/// As `hps_lease_read`; HPS_INVALID_ARGUMENT for a part that is not there.
///
/// # Threads
/// Any, several at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn hps_lease_read_rows_part(
    lease: LeaseRef,
    part_index: usize,
    out: FloatsOut,
    out_len: usize,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let out = out.slice("out", out_len)?;
        Ok(part(&lease.get("lease")?.0, part_index)?.read_rows(out)?)
    })
}

/// Copies whole rows at some positions of one part.
///
/// positions: `[m]`, each below the keys of the part, in any order; out: `[m, row_f32s]`.
///
/// # Errors
/// As `hps_lease_read`; HPS_INVALID_ARGUMENT for a part or a position that is not there.
///
/// # Threads
/// Any, several at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn hps_lease_read_rows_at(
    lease: LeaseRef,
    part_index: usize,
    positions: Words,
    positions_len: usize,
    out: FloatsOut,
    out_len: usize,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let positions = positions.slice("positions", positions_len)?;
        let out = out.slice("out", out_len)?;
        let part = part(&lease.get("lease")?.0, part_index)?;
        Ok(part.read_rows_at(positions, out)?)
    })
}

/// Frees a lease: its rows may leave memory. NULL is allowed.
///
/// # Threads
/// None may use the lease any more.
#[unsafe(no_mangle)]
pub extern "C" fn hps_lease_free(lease: Option<Box<LeaseHandle>>) {
    free(lease);
}
