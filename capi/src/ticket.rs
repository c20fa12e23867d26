//! How does C wait for rows that were asked for ahead of time?
#![expect(unsafe_code, reason = "C finds its functions by their names")]

use std::sync::{Mutex, TryLockError};
use std::time::Duration;

use store::{ArgumentError, Error, Lease, Ticket};

use crate::border::{Process, call, free, lock};
use crate::error::Result;
use crate::lease::LeaseHandle;
use crate::pointers::{ErrorOut, I32Out, LeaseOut, Room, TicketRef};

/// A wait of so many microseconds has no end.
pub const HPS_FOREVER: u64 = u64::MAX;

/// What can be waited for.
pub trait Awaited: Sized {
    /// What comes of it.
    type Given;
    /// As messages call that.
    const GIVEN: &'static str;
    fn is_ready(&self) -> bool;
    fn wait(self) -> store::Result<Self::Given>;
    fn wait_for(&self, limit: Duration) -> store::Result<Self::Given>;
}

/// Something on its way, for whoever waits for it.
pub struct Waiting<T> {
    process: Process,
    /// None once it has given what it stands for, or why there is none.
    ticket: Mutex<Option<T>>,
}

/// A prefetch on its way. `hps_prefetch` and `hps_prefetch_many` give it, `hps_ticket_free` frees
/// it.
pub struct TicketHandle(pub Waiting<Ticket>);

impl Awaited for Ticket {
    type Given = Lease;
    const GIVEN: &'static str = "its lease";

    fn is_ready(&self) -> bool {
        Ticket::is_ready(self)
    }

    fn wait(self) -> store::Result<Lease> {
        Ticket::wait(self)
    }

    fn wait_for(&self, limit: Duration) -> store::Result<Lease> {
        Ticket::wait_for(self, limit)
    }
}

impl TicketHandle {
    pub fn new(ticket: Ticket) -> TicketHandle {
        TicketHandle(Waiting::new(ticket))
    }
}

impl<T: Awaited> Waiting<T> {
    pub fn new(ticket: T) -> Waiting<T> {
        Waiting {
            process: Process::this(),
            ticket: Mutex::new(Some(ticket)),
        }
    }

    pub fn is_ready(&self) -> Result<bool> {
        self.process.check()?;
        let ticket = match self.ticket.try_lock() {
            Ok(ticket) => ticket,
            Err(TryLockError::Poisoned(ticket)) => ticket.into_inner(),
            // Another thread waits for it.
            Err(TryLockError::WouldBlock) => return Ok(false),
        };
        Ok(ticket.as_ref().is_none_or(T::is_ready))
    }

    pub fn wait(&self, timeout_us: u64) -> Result<T::Given> {
        self.process.check()?;
        let mut guard = lock(&self.ticket);
        let Some(ticket) = guard.take() else {
            let what = format!("this ticket has given {}, or why there is none", T::GIVEN);
            return Err(ArgumentError::Other { what }.into());
        };
        let result = match timeout_us {
            HPS_FOREVER => ticket.wait(),
            limit => match ticket.wait_for(Duration::from_micros(limit)) {
                Err(late @ Error::Deadline { .. }) => {
                    *guard = Some(ticket);
                    return Err(late.into());
                }
                other => other,
            },
        };
        Ok(result?)
    }
}

/// Tells whether `hps_ticket_wait` returns at once: 1 or 0. Never waits.
///
/// # Errors
/// HPS_NULL_POINTER, HPS_FORKED.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_ticket_poll(ticket: TicketRef, ready: I32Out, error: ErrorOut) -> i32 {
    call(error, || {
        let place = ready.place("ready")?;
        place.write(i32::from(ticket.get("ticket")?.0.is_ready()?));
        Ok(())
    })
}

/// Waits until the rows are resident, at most `timeout_us` microseconds, and gives the lease. With
/// HPS_FOREVER, a prefetch that has not started is served by this thread, like a pull: that never
/// depends on room which the caller itself holds. The ticket has to be freed in any case.
///
/// # Errors
/// HPS_DEADLINE when the rows are not resident yet: the prefetch goes on, wait again or free the
/// ticket. HPS_OVER_BUDGET when it can't fit beside the outstanding leases, HPS_IO, HPS_CORRUPT,
/// HPS_NO_SPACE, HPS_POISONED. HPS_INVALID_ARGUMENT once a lease or another error was given, and
/// when the store was closed.
///
/// # Threads
/// Any; several that wait for one ticket take turns.
#[unsafe(no_mangle)]
pub extern "C" fn hps_ticket_wait(
    ticket: TicketRef,
    timeout_us: u64,
    lease: LeaseOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let place = lease.place("lease")?;
        let lease = ticket.get("ticket")?.0.wait(timeout_us)?;
        place.write(Some(Box::new(LeaseHandle(lease))));
        Ok(())
    })
}

/// Frees a ticket; a prefetch that has given no lease is cancelled. NULL is allowed.
///
/// # Threads
/// None may use the ticket any more.
#[unsafe(no_mangle)]
pub extern "C" fn hps_ticket_free(ticket: Option<Box<TicketHandle>>) {
    free(ticket);
}
