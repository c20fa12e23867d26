//! How does a moment of training become durable while training goes on?
//!
//! Cut → drain → capture → commit (docs/decisions/0005). The cut locks every shard for a
//! moment; all the rest happens in a thread of its own. Once the outcome is told, files go that nothing
//! needs any more, and an index snapshot is made.
//!
//! Invariants:
//! - Between cut and capture no row changed after the cut is written.
//! - A checkpoint that fails leaves the last one in force and every row dirty that was.

mod recommit;
mod snapshots;
mod ticket;

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use tracing::field::Empty;

pub use ticket::{CheckpointInfo, CheckpointTicket};

use super::compact::Compactor;
use super::core::{Core, Part, add, get, micros};
use super::flush::Flusher;
use super::warm::Classes;
use crate::error::{ArgumentError, Error, Result};
use crate::observe::Timed;
use crate::options::HyperParameters;
use crate::ssd::commit::{Captured, CheckpointRequest};
use crate::ssd::index_snapshot::KeyClasses;
use crate::ssd::tables::TableState;
use crate::stats::Stats;
use crate::sync::atomic::AtomicU64;
use crate::sync::{Condvar, Mutex, thread};
use snapshots::Snapshots;
use ticket::Outcome;

/// Whether a checkpoint's thread is running. It is kept apart from the core, so that the thread
/// can let go of the core, and of the store's lock with it, before it says that it has ended.
#[derive(Debug, Default)]
struct Running {
    busy: Mutex<bool>,
    idle: Condvar,
}

impl Running {
    /// Waits until no checkpoint is running, and takes the role.
    fn begin(self: &Arc<Running>) -> Role {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        while *busy {
            busy = self.idle.wait(busy).unwrap_or_else(PoisonError::into_inner);
        }
        *busy = true;
        Role(Arc::clone(self))
    }

    fn end(&self) {
        *self.busy.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.idle.notify_all();
    }
}

/// Most threads that write the parts of an index snapshot: as many as compact.
const SNAPSHOT_WRITERS: usize = 4;

/// The role of the one checkpoint (or change of tables) that runs; ends when dropped.
#[derive(Debug)]
pub struct Role(Arc<Running>);

impl Drop for Role {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A cut that was made.
struct Cut {
    step: u64,
    interval: u32,
    tables: Vec<TableState>,
    hyper: Vec<Option<HyperParameters>>,
    meta: Vec<u8>,
}

/// Makes checkpoints.
#[derive(Debug)]
pub struct Checkpointer {
    core: Arc<Core>,
    compactor: Arc<Compactor>,
    flusher: Arc<Flusher>,
    /// Whether a checkpoint's thread is running.
    running: Arc<Running>,
    /// Versions that wait for an index snapshot.
    snapshots: Arc<Snapshots>,
    checkpoints: AtomicU64,
    cut_us_max: AtomicU64,
}

impl Part for Checkpointer {
    fn wake(&self) {}

    fn count(&self, stats: &mut Stats) {
        stats.checkpoints = get(&self.checkpoints);
        stats.cut_us_max = get(&self.cut_us_max);
    }
}

impl Checkpointer {
    /// None is running.
    pub fn new(
        core: &Arc<Core>,
        compactor: &Arc<Compactor>,
        flusher: &Arc<Flusher>,
    ) -> Checkpointer {
        Checkpointer {
            core: Arc::clone(core),
            compactor: Arc::clone(compactor),
            flusher: Arc::clone(flusher),
            running: Arc::default(),
            snapshots: Arc::default(),
            checkpoints: AtomicU64::new(0),
            cut_us_max: AtomicU64::new(0),
        }
    }

    /// Waits until no index snapshot is being made and nothing is unlinked for a checkpoint. A snapshot is not
    /// written slowly meanwhile.
    pub fn wait_snapshots(&self) {
        self.core.ssd.snapshots.pace(false);
        self.snapshots.wait_idle();
    }

    /// Threads that write the parts of an index snapshot.
    pub(super) fn snapshot_writers(&self) -> usize {
        // Calls in an order that depends on the store only.
        if self.core.options.inline || cfg!(hps_shuttle) {
            return 1;
        }
        self.core.ssd.directories.len().min(SNAPSHOT_WRITERS)
    }

    /// Cuts, and writes behind in a thread (or at once with `inline`).
    ///
    /// # Errors
    /// `InvalidArgument` for a step that does not rise or too long a meta, `ReadOnly`, `Poisoned`.
    pub fn begin(self: &Arc<Checkpointer>, step: u64, meta: &[u8]) -> Result<CheckpointTicket> {
        self.core.check_writable()?;
        let meta = self.copy_meta(meta)?;
        let outcome = Arc::new(Outcome::default());
        let ticket = CheckpointTicket::new(&outcome, self.core.process);
        let role = Arc::new(self.running.begin());
        let _alarm = self.core.ssd.poison.alarm();
        // Whoever had the role may have panicked with it.
        self.core.ssd.check_writable()?;
        let span = checkpoint_span(step);
        let cut = span.in_scope(|| self.cut(step, meta))?;
        if self.core.options.inline {
            let captured = self.carry_out(span, &cut, &outcome);
            if let Some(captured) = captured {
                self.core.ssd.collect_garbage();
                refresh_snapshot(&self.core, &captured, self.snapshot_writers());
            }
            drop(role);
            self.compactor.compact_inline();
            self.core.publish(true);
            return Ok(ticket);
        }
        self.core.ssd.snapshots.pace(true);
        let checkpointer = Arc::clone(self);
        let running = Arc::clone(&role);
        let work = move || {
            let role = running;
            // The result first: whoever waits for the end finds it.
            let core = Arc::clone(&checkpointer.core);
            let captured = core.survive(|| checkpointer.carry_out(span, &cut, &outcome));
            if captured.is_none()
                && let Err(poisoned) = core.ssd.check_writable()
            {
                outcome.finish(Err(poisoned));
            }
            core.publish(false);
            let snapshots = Arc::clone(&checkpointer.snapshots);
            let writers = checkpointer.snapshot_writers();
            drop(checkpointer);
            let Some(captured) = captured.flatten() else {
                drop(core);
                drop(role);
                return;
            };
            let imaging = snapshots.offer(captured);
            // The next checkpoint need not wait for what is left of this one.
            drop(role);
            let ended = core.survive(|| {
                core.ssd.collect_garbage();
                while imaging && let Some(captured) = snapshots.next() {
                    refresh_snapshot(&core, &captured, writers);
                }
            });
            drop(core);
            snapshots.end(imaging && ended.is_none());
        };
        let started = thread::Builder::new()
            .name(String::from("hps-checkpoint"))
            .spawn(work);
        match started {
            Ok(_) => Ok(ticket),
            Err(e) => {
                self.flusher.end_cut();
                drop(role);
                self.core.changes.note();
                Err(Error::thread(self.core.ssd.root.path(), e))
            }
        }
    }

    /// Waits until no checkpoint is running.
    pub fn wait_idle(&self) -> Role {
        self.running.begin()
    }

    /// The caller's bytes, of which he may do what he likes once the call is over.
    fn copy_meta(&self, meta: &[u8]) -> Result<Vec<u8>> {
        let (bytes, limit) = (meta.len() as u64, self.core.ssd.thresholds.meta_bytes_max);
        if bytes > limit {
            let what =
                format!("the meta of a checkpoint has {bytes} bytes, at most {limit} are possible");
            return Err(ArgumentError::Other { what }.into());
        }
        let mut copy = Vec::new();
        if copy.try_reserve_exact(meta.len()).is_err() {
            let what = format!(
                "the meta of a checkpoint has {bytes} bytes, and there is no memory for a copy"
            );
            return Err(ArgumentError::Other { what }.into());
        }
        copy.extend_from_slice(meta);
        Ok(copy)
    }

    fn cut(&self, step: u64, meta: Vec<u8>) -> Result<Cut> {
        if let Some(last) = self.core.ssd.last_step()
            && step <= last
        {
            return Err(ArgumentError::StepNotRising { step, last }.into());
        }
        let _cut = tracing::debug_span!("cut").entered();
        let since = Instant::now();
        // No push is between two shards: it is in the checkpoint whole, or not at all.
        let _whole = self.core.gate_alone();
        let mut shards = self.core.lock_all();
        let (tables, hyper) = (self.core.table_states(), self.core.hypers());
        self.core.changes.cut();
        let mut interval = 0;
        for shard in &mut shards {
            interval = shard.cut();
        }
        drop(shards);
        self.cut_us_max
            .fetch_max(micros(since.elapsed()), Ordering::Relaxed);
        Ok(Cut {
            step,
            interval,
            tables,
            hyper,
            meta,
        })
    }

    /// Does all that is left to do after a cut, and says how it ended; with success, gives the
    /// version that became durable. The span ends with it.
    fn carry_out(&self, span: Timed, cut: &Cut, outcome: &Outcome) -> Option<Captured> {
        let _checkpoint = span.enter();
        let (result, captured) = self.drain_and_capture(&span, cut);
        outcome.finish(result);
        captured
    }

    /// The outcome, and with success the version that became durable.
    fn drain_and_capture(
        &self,
        span: &Timed,
        cut: &Cut,
    ) -> (Result<CheckpointInfo>, Option<Captured>) {
        let captured = self.flusher.drain(cut.interval).map(|(writer, rows)| {
            // No younger row reaches a file before this.
            let captured = self.core.ssd.capture();
            drop(writer);
            (captured, rows)
        });
        self.flusher.end_cut();
        let result = captured.and_then(|(captured, rows)| {
            span.record("checkpoint", captured.id.0);
            span.record("rows", rows);
            span.record("files", captured.files.len());
            span.record(
                "bytes",
                captured.files.iter().map(|f| f.meta.bytes).sum::<u64>(),
            );
            let request = CheckpointRequest {
                step: cut.step,
                interval: cut.interval,
                hyper: &cut.hyper,
                tables: &cut.tables,
                meta: &cut.meta,
                retain: self.core.options.retain_checkpoints,
            };
            let meta = self.core.ssd.commit(&captured, &request)?;
            Ok((meta, captured))
        });
        match result {
            Ok((meta, captured)) => {
                add(&self.checkpoints, 1);
                (Ok(CheckpointInfo::from(&meta)), Some(captured))
            }
            Err(e) => {
                // What was changed before the cut is not in a checkpoint after all.
                self.core.changes.note();
                (Err(e), None)
            }
        }
    }
}

/// Brings the index snapshot up to a checkpoint; where warm restarts are wanted, with what caches and indexes
/// know of how often rows were used.
fn refresh_snapshot(core: &Core, captured: &Captured, writers: usize) {
    let classes = Classes(core);
    let classes: Option<&dyn KeyClasses> = match core.options.warm {
        true => Some(&classes),
        false => None,
    };
    core.ssd.refresh_snapshot(captured, writers, classes);
}

fn checkpoint_span(step: u64) -> Timed {
    Timed::new(tracing::info_span!(
        "checkpoint",
        checkpoint = Empty,
        step,
        rows = Empty,
        files = Empty,
        bytes = Empty,
        seconds = Empty,
    ))
}

#[cfg(test)]
mod tests;
