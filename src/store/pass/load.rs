//! How does a pass come into memory?
//!
//! - Its keys come by pieces. One that does not fit is tried again when a lease or pass was let go.
//! - Whoever has the work of a pass brings in the next piece: the thread for passes, or, where there is
//!   none, the caller.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::super::core::Table;
use super::super::lease::{OutGuard, Pins};
use super::super::pull::Full;
use super::Passes;
use super::held::{Held, KEY_BYTES};
use super::report::{PassReport, PassTable};
use super::source::{Piece, Source};
use crate::error::{Error, Result};
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::units::to_usize;

/// How far a pass has come.
#[derive(Debug)]
pub enum State {
    /// It waits for others, or comes in.
    Coming,
    /// There was no room for the next piece when leases had been dropped so often.
    NoRoom { drops: u64, error: Option<Error> },
    /// It is there, or can't be.
    Done(Result<Loaded>),
    /// Handed out or given up.
    Gone,
}

/// A pass that is there.
#[derive(Debug)]
pub struct Loaded {
    pub report: PassReport,
    pub held: Vec<(Arc<Table>, Held)>,
    pub pins: Vec<Arc<Pins>>,
    pub out: OutGuard,
}

/// One part of a pass that comes in.
#[derive(Debug)]
struct Part {
    table: Arc<Table>,
    source: Source,
    pins: Pins,
    held: Held,
    told: PassTable,
}

/// What is left to do for a pass.
#[derive(Debug)]
struct Work {
    parts: Vec<Part>,
    /// The part whose keys come next.
    next: usize,
    /// Keys that are due.
    piece: Piece,
    /// When the first piece was asked for.
    begun: Option<Instant>,
    /// From the begin of the pass on: nobody may drop its tables.
    out: OutGuard,
}

/// A pass that comes in.
#[derive(Debug)]
pub struct Loading {
    work: Mutex<Option<Work>>,
    state: Mutex<State>,
    changed: Condvar,
    /// Keys of each table.
    asked: Vec<(Arc<Table>, u64)>,
}

impl Loading {
    pub fn new(passes: &Passes, parts: Vec<(Arc<Table>, Source)>) -> Loading {
        let asked = parts
            .iter()
            .map(|(table, source)| (Arc::clone(table), source.keys_left()));
        let asked: Vec<(Arc<Table>, u64)> = asked.collect();
        let tables = asked.iter().map(|(table, _)| table.id).collect();
        let part = |(table, source): (Arc<Table>, Source)| Part {
            pins: Pins::new(&passes.leases, table.tuning().policy.has_blocks()),
            held: Held::default(),
            told: PassTable::new(&table),
            source,
            table,
        };
        Loading {
            work: Mutex::new(Some(Work {
                parts: parts.into_iter().map(part).collect(),
                next: 0,
                piece: Piece::default(),
                begun: None,
                out: OutGuard::new(&passes.leases, tables),
            })),
            state: Mutex::new(State::Coming),
            changed: Condvar::new(),
            asked,
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keys of each table.
    pub fn asked(&self) -> &[(Arc<Table>, u64)] {
        &self.asked
    }

    /// Waits until the state has changed, or a while.
    pub fn wait<'s>(&self, state: MutexGuard<'s, State>, limit: Duration) -> MutexGuard<'s, State> {
        let waited = self.changed.wait_timeout(state, limit);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    pub fn wake(&self) {
        drop(self.lock());
        self.changed.notify_all();
    }

    fn becomes(&self, next: State) {
        let mut state = self.lock();
        if !matches!(*state, State::Gone) {
            let before = std::mem::replace(&mut *state, next);
            drop(state);
            drop(before);
        }
        self.changed.notify_all();
    }

    /// Nobody wants it any more: what it has pinned is let go of, once the piece at hand has come in.
    pub fn give_up(&self) {
        let before = std::mem::replace(&mut *self.lock(), State::Gone);
        drop(before);
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let given_up = work.take();
        drop(work);
        drop(given_up);
    }

    /// Brings it in as far as there is room. True if nothing is left to do.
    pub fn bring_in(&self, passes: &Passes) -> bool {
        let mut guard = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let Some(work) = guard.as_mut() else {
                return true;
            };
            if matches!(*self.lock(), State::Gone) {
                *guard = None;
                return true;
            }
            // Before the attempt: a drop meanwhile makes another one worth while.
            let drops = passes.leases.drops();
            match work.step(passes) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error @ Error::OverBudget { .. }) => {
                    let error = Some(error);
                    drop(guard);
                    self.becomes(State::NoRoom { drops, error });
                    return false;
                }
                Err(error) => {
                    *guard = None;
                    self.becomes(State::Done(Err(error)));
                    return true;
                }
            }
            if let Some(done) = guard.take() {
                let loaded = done.loaded(passes);
                self.becomes(State::Done(Ok(loaded)));
            }
            return true;
        }
    }
}

impl Work {
    /// Brings in the next piece; false where there is none.
    fn step(&mut self, passes: &Passes) -> Result<bool> {
        passes.core.check_open()?;
        self.begun.get_or_insert_with(Instant::now);
        let Some(part) = self.parts.get_mut(self.next) else {
            return Ok(false);
        };
        let piece = &mut self.piece;
        if piece.keys.is_empty() {
            part.source.next_piece(piece)?;
        }
        if piece.keys.is_empty() {
            self.next += 1;
            return Ok(true);
        }
        let pools = passes.workers.pools();
        // Callers are served by the other pools.
        let pool = if passes.core.options.inline {
            &pools.foreground
        } else {
            &pools.prefetch[1]
        };
        let kept = passes.puller.keep(pool, &part.table, &piece.keys)?;
        part.held.add(piece, &kept.lease);
        let rows = part.pins.add(kept.lease);
        part.told
            .add_piece(&part.table, rows, (kept.known, kept.read));
        let bytes = rows.0 * Pins::ROW_BYTES + piece.keys.len() * KEY_BYTES;
        self.out.add_bytes(bytes);
        piece.keys.clear();
        Ok(true)
    }

    /// All its rows are there: some of its parts may become blocks.
    fn loaded(self, passes: &Passes) -> Loaded {
        let mut report = PassReport::default();
        let mut all = Vec::with_capacity(self.parts.len());
        let mut held = Vec::with_capacity(self.parts.len());
        for Part {
            table,
            pins,
            held: of_part,
            mut told,
            ..
        } in self.parts
        {
            let pins = Arc::new(pins);
            told.is_block = passes.blocks.decide(&table, &pins, told.known, told.hits);
            report.add(told);
            all.push(pins);
            held.push((table, of_part));
        }
        report.seconds = self
            .begun
            .map_or(0.0, |since| since.elapsed().as_secs_f64());
        Loaded {
            report,
            held,
            pins: all,
            out: self.out,
        }
    }
}

impl Passes {
    /// Fails where a pass has more rows than the cache has room for.
    ///
    /// # Errors
    /// `OverBudget`.
    pub fn check_fits(&self, asked: &[(Arc<Table>, u64)]) -> Result<()> {
        let shard = self.core.shards[0].lock();
        let needed = shard.cache.cost_of(&self.rows_of_shard(asked, 0));
        let fits = shard.has_bytes(needed);
        drop(shard);
        match fits {
            true => Ok(()),
            false => Err(self.too_large(asked)),
        }
    }

    /// Rows of each table in a shard, if all shards have as many, and some more: no shard has exactly its
    /// share.
    fn rows_of_shard(&self, asked: &[(Arc<Table>, u64)], deviations: u64) -> Vec<usize> {
        let shards = self.core.shards.len() as u64;
        let mut rows = vec![0; self.core.all_tables().len()];
        for (table, keys) in asked {
            let share = keys / shards;
            let more = deviations * share.isqrt();
            rows[table.id.0 as usize] += to_usize(share + more);
        }
        rows
    }

    /// More rows than the cache has room for, those of blocks included.
    pub fn too_large(&self, asked: &[(Arc<Table>, u64)]) -> Error {
        let shards = self.core.shards.len() as u64;
        let tables = self.core.all_tables();
        let mut rows = self.rows_of_shard(asked, 6);
        for (table, more) in self.blocks.rows() {
            rows[table.0 as usize] += to_usize(more / shards);
        }
        let shard = self.core.shards[0].lock();
        let most = (0..tables.len()).max_by_key(|t| rows[*t] as u64 * shard.cache.row_cost(*t));
        let most = most.unwrap_or(0);
        let asked = keys_of(asked, &tables[most]).div_ceil(to_usize(shards));
        let (capacity, needed) = (shard.cache.capacity(most), shard.cache.cost_of(&rows));
        let full = Full::alone(asked, capacity, needed);
        drop(shard);
        self.puller.over_budget(&tables[most], &full)
    }
}

/// Keys of one table.
fn keys_of(asked: &[(Arc<Table>, u64)], table: &Table) -> usize {
    let of_table = asked.iter().filter(|(of, _)| of.id == table.id);
    to_usize(of_table.map(|(_, keys)| *keys).sum::<u64>())
}
