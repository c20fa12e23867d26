//! How does a moment of training become durable while training goes on?
//!
//! Cut → write-behind → capture → commit (docs/decisions/0005). The cut locks every shard for a
//! moment; all the rest happens in a thread of its own.
//!
//! Invariants:
//! - Between cut and capture no row changed after the cut is written.
//! - A checkpoint that fails leaves the last one in force and every row dirty that was.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use tracing::field::Empty;

use super::engine::{Engine, micros};
use super::guard::point;
use crate::error::{Error, Invalid, Result};
use crate::fork::Process;
use crate::format::manifest::CheckpointMeta;
use crate::observe::Timed;
use crate::options::TableDescriptor;
use crate::ssd::commit::{Captured, CheckpointRequest};
use crate::sync::{Condvar, Mutex, MutexGuard, thread};

/// A durable checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointInfo {
    /// Never used again, also after a rollback.
    pub id: u64,
    /// The trainer's step.
    pub step: u64,
    /// Seconds since 1970 at which it was made.
    pub unix_seconds: u64,
    /// Bytes of the trainer's meta.
    pub meta_bytes: u64,
}

impl From<&CheckpointMeta> for CheckpointInfo {
    fn from(meta: &CheckpointMeta) -> CheckpointInfo {
        let header = crate::format::meta::META_HEADER_BYTES as u64;
        CheckpointInfo {
            id: meta.id,
            step: meta.step,
            unix_seconds: meta.unix_seconds,
            meta_bytes: meta.meta_bytes.saturating_sub(header),
        }
    }
}

#[derive(Debug, Default)]
struct Outcome {
    result: Mutex<Option<Result<CheckpointInfo>>>,
    done: Condvar,
}

/// A checkpoint on its way to the device.
#[derive(Debug)]
pub struct CheckpointTicket {
    outcome: Arc<Outcome>,
    process: Process,
}

impl CheckpointTicket {
    /// Whether [`CheckpointTicket::wait`] returns at once: the checkpoint is durable, or failed.
    #[must_use]
    pub fn is_done(&self) -> bool {
        if !self.process.is_this() {
            return true;
        }
        self.outcome
            .result
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some()
    }

    /// Waits until the checkpoint is durable.
    ///
    /// # Durability
    /// Every push before `checkpoint_begin` survives a crash once this returns.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Poisoned`: the last checkpoint stays in force.
    pub fn wait(self) -> Result<CheckpointInfo> {
        if !self.process.is_this() {
            return Err(Error::Forked);
        }
        let mut result = self
            .outcome
            .result
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(result) = result.take() {
                return result;
            }
            result = self
                .outcome
                .done
                .wait(result)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Whether a checkpoint's thread is running. It is kept apart from the engine, so that the thread
/// can let go of the engine, and of the store's lock with it, before it says that it has ended.
#[derive(Debug, Default)]
pub struct Running {
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

/// Versions that wait for an index image: only the last counts. Apart from the engine, as above.
#[derive(Debug, Default)]
pub struct Images {
    state: Mutex<Imaging>,
    idle: Condvar,
}

#[derive(Debug, Default)]
struct Imaging {
    /// Whether a thread will look for more.
    working: bool,
    /// Threads that have not ended.
    threads: usize,
    waiting: Option<Captured>,
}

impl Images {
    fn lock(&self) -> MutexGuard<'_, Imaging> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a version to be imaged; true if the caller is to do it.
    fn offer(&self, captured: Captured) -> bool {
        let mut state = self.lock();
        state.waiting = Some(captured);
        let first = !std::mem::replace(&mut state.working, true);
        state.threads += usize::from(first);
        first
    }

    fn next(&self) -> Option<Captured> {
        let mut state = self.lock();
        let next = state.waiting.take();
        state.working = next.is_some();
        next
    }

    fn end(&self, panicked: bool) {
        let mut state = self.lock();
        state.threads -= 1;
        if panicked {
            state.working = false;
            state.waiting = None;
        }
        drop(state);
        self.idle.notify_all();
    }

    /// Waits until no image is being made.
    pub fn wait_idle(&self) {
        let mut state = self.lock();
        while state.threads > 0 {
            state = self
                .idle
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

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
    epoch: u32,
    tables: Vec<TableDescriptor>,
    meta: Vec<u8>,
}

impl Engine {
    /// Cuts, and writes behind in a thread (or at once with `inline`).
    ///
    /// # Errors
    /// `InvalidArgument` for a step that does not rise or too long a meta, `ReadOnly`, `Poisoned`.
    pub fn checkpoint_begin(
        self: &Arc<Engine>,
        step: u64,
        meta: &[u8],
    ) -> Result<CheckpointTicket> {
        self.check_writer()?;
        self.ssd.check_writable()?;
        let meta = self.copy_meta(meta)?;
        let outcome = Arc::new(Outcome::default());
        let ticket = CheckpointTicket {
            outcome: Arc::clone(&outcome),
            process: self.process,
        };
        let role = Arc::new(self.running.begin());
        let _alarm = self.ssd.poison.alarm();
        // Whoever had the role may have panicked with it.
        self.ssd.check_writable()?;
        let span = checkpoint_span(step);
        let cut = span.in_scope(|| self.cut(step, meta))?;
        if self.options.inline {
            let captured = self.carry_out(span, &cut, &outcome);
            if let Some(captured) = captured {
                self.ssd.refresh_image(&captured);
            }
            drop(role);
            self.compact_inline();
            self.publish(true);
            return Ok(ticket);
        }
        self.ssd.images.pace(true);
        let engine = Arc::clone(self);
        let running = Arc::clone(&role);
        let work = move || {
            let role = running;
            // The result first: whoever waits for the end finds it.
            let captured = engine.survive(|| engine.carry_out(span, &cut, &outcome));
            if captured.is_none()
                && let Err(poisoned) = engine.ssd.check_writable()
            {
                outcome.finish(Err(poisoned));
            }
            engine.publish(false);
            let images = Arc::clone(&engine.images);
            let imaging = captured
                .flatten()
                .is_some_and(|captured| images.offer(captured));
            if imaging {
                // The next checkpoint need not wait for the image of this one.
                drop(role);
                let ended = engine.survive(|| {
                    while let Some(captured) = images.next() {
                        engine.ssd.refresh_image(&captured);
                    }
                });
                drop(engine);
                images.end(ended.is_none());
            } else {
                drop(engine);
                drop(role);
            }
        };
        let started = thread::Builder::new()
            .name(String::from("hps-checkpoint"))
            .spawn(work);
        match started {
            Ok(_) => Ok(ticket),
            Err(e) => {
                {
                    let _writer = self.lock_writer();
                    self.thaw();
                }
                drop(role);
                self.counters.changed.store(true, Ordering::Release);
                Err(Error::thread(self.ssd.root.path(), e))
            }
        }
    }

    /// Waits until no checkpoint is running.
    pub fn wait_idle(&self) -> Role {
        self.running.begin()
    }

    /// The caller's bytes, of which he may do what he likes once the call is over.
    fn copy_meta(&self, meta: &[u8]) -> Result<Vec<u8>> {
        let (bytes, limit) = (meta.len() as u64, self.ssd.thresholds.meta_bytes_max);
        if bytes > limit {
            let what =
                format!("the meta of a checkpoint has {bytes} bytes, at most {limit} are possible");
            return Err(Invalid::Other { what }.into());
        }
        let mut copy = Vec::new();
        if copy.try_reserve_exact(meta.len()).is_err() {
            let what = format!(
                "the meta of a checkpoint has {bytes} bytes, and there is no memory for a copy"
            );
            return Err(Invalid::Other { what }.into());
        }
        copy.extend_from_slice(meta);
        Ok(copy)
    }

    fn cut(&self, step: u64, meta: Vec<u8>) -> Result<Cut> {
        if let Some(last) = self.ssd.last_step()
            && step <= last
        {
            return Err(Invalid::StepNotRising { step, last }.into());
        }
        let _cut = tracing::debug_span!("cut").entered();
        let since = Instant::now();
        // No push is between two shards: it is in the checkpoint whole, or not at all.
        let _whole = self.gate_alone();
        let mut shards = self.lock_all();
        let tables = self.descriptors();
        self.counters.changed.store(false, Ordering::Release);
        self.counters.flushed_rows.cut();
        let mut epoch = 0;
        for shard in &mut shards {
            epoch = shard.epoch;
            shard.frozen = Some(epoch);
            point("cut");
            shard.epoch += 1;
            shard.lost = false;
        }
        drop(shards);
        self.counters
            .cut_us_max
            .fetch_max(micros(since.elapsed()), Ordering::Relaxed);
        Ok(Cut {
            step,
            epoch,
            tables,
            meta,
        })
    }

    /// Ends the time in which younger rows may not be written.
    fn thaw(&self) {
        for cell in &self.shards {
            let mut shard = cell.lock();
            shard.frozen = None;
            for table in &mut shard.tables {
                table.cache.discard_frozen();
            }
            drop(shard);
            cell.notify();
        }
    }

    /// Does all that is left to do after a cut, and says how it ended; with success, gives the
    /// version that became durable. The span ends with it.
    fn carry_out(&self, span: Timed, cut: &Cut, outcome: &Outcome) -> Option<Captured> {
        let _checkpoint = span.enter();
        let (result, captured) = self.write_behind(&span, cut);
        outcome.finish(result);
        captured
    }

    /// The outcome, and with success the version that became durable.
    fn write_behind(&self, span: &Timed, cut: &Cut) -> (Result<CheckpointInfo>, Option<Captured>) {
        let captured = self.write_frozen(cut.epoch);
        {
            // As the writer: no copy is being written, so all that are left are dropped.
            let _writer = self.lock_writer();
            self.thaw();
        }
        let result = captured.and_then(|(captured, rows)| {
            span.record("checkpoint", captured.id);
            span.record("rows", rows);
            span.record("files", captured.files.len());
            span.record(
                "bytes",
                captured.files.iter().map(|f| f.meta.bytes).sum::<u64>(),
            );
            let request = CheckpointRequest {
                step: cut.step,
                epoch: cut.epoch,
                hyper: self.options.hyper,
                tables: &cut.tables,
                meta: &cut.meta,
                retain: self.options.retain_checkpoints,
            };
            let meta = self.ssd.commit(&captured, &request)?;
            Ok((meta, captured))
        });
        match result {
            Ok((meta, captured)) => {
                self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
                (Ok(CheckpointInfo::from(&meta)), Some(captured))
            }
            Err(e) => {
                // What was changed before the cut is not in a checkpoint after all.
                self.counters.changed.store(true, Ordering::Release);
                (Err(e), None)
            }
        }
    }

    /// Writes every frozen row and captures the version that then holds exactly the cut; tells how
    /// many entries were written.
    fn write_frozen(&self, epoch: u32) -> Result<(Captured, u64)> {
        let _writing = tracing::debug_span!("write_behind").entered();
        let mut rows = 0;
        let mut cursors = vec![0; self.cursors()];
        let mut clean_pass = true;
        loop {
            self.wait_for_space();
            let mut writer = self.lock_writer();
            self.ssd.check_writable()?;
            let (mut picks, mut all) = (0, false);
            let mut next = || {
                // Between two picks, those who wait for room have the writer.
                let yields = || {
                    self.waiting.load(Ordering::Relaxed) > 0
                        || self.is_low()
                        || self.is_over_space()
                };
                if picks > 0 && yields() {
                    return None;
                }
                let picked = self.pick_frozen(&mut cursors, Some(epoch));
                picks += usize::from(picked.is_some());
                all = picked.is_none();
                picked
            };
            let (written, result) = self.write_all(&mut writer, true, &mut next);
            rows += written;
            result?;
            if picks > 0 {
                clean_pass = false;
            }
            if !all {
                drop(writer);
                self.flushed.notify();
            } else if !clean_pass {
                cursors.fill(0);
                clean_pass = true;
            } else {
                if self.shards.iter().any(|cell| cell.lock().lost) {
                    let source = std::io::Error::other(
                        "a write failed and the row was changed since; checkpoint again",
                    );
                    return Err(Error::io("write the cut of", self.ssd.root.path(), source));
                }
                // Who panicked may have left a row neither dirty nor written.
                self.ssd.check_writable()?;
                // Still the writer: no younger row reaches a file before the capture.
                return Ok((self.ssd.capture(), rows));
            }
        }
    }
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

impl Outcome {
    fn finish(&self, result: Result<CheckpointInfo>) {
        match &result {
            Ok(_) => tracing::info!("the checkpoint is durable"),
            Err(error) => {
                tracing::error!(%error, "a checkpoint failed; the last one stays in force");
            }
        }
        *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        self.done.notify_all();
    }
}
