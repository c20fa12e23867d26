//! How does a trainer use the store? Prefetch by tickets, read, push.
//!
//! - The next `depth` batches are always asked for before the one in hand is waited for; with
//!   depth 0 a batch is a plain pull.
//! - Keys are drawn before the clock runs, except in a warm-up.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::{Context, Result};
use hps::{CheckpointTicket, Store, TableId, Ticket, Update};

use super::args::Settings;
use super::keys::{Draw, Order};
use crate::trace::TraceWriter;

/// Where batches come from.
pub trait Supply {
    /// The keys of the next batch; `None` when there are no more.
    fn next(&mut self) -> Option<&[u64]>;
}

/// The same batches again and again.
#[derive(Debug)]
pub struct Cycle<'a> {
    pool: &'a [Vec<u64>],
    at: usize,
}

impl<'a> Cycle<'a> {
    /// Over these batches.
    #[must_use]
    pub fn new(pool: &'a [Vec<u64>]) -> Cycle<'a> {
        Cycle { pool, at: 0 }
    }
}

impl Supply for Cycle<'_> {
    fn next(&mut self) -> Option<&[u64]> {
        let found = self.pool.get(self.at % self.pool.len().max(1))?;
        self.at += 1;
        Some(found)
    }
}

/// Each batch once.
#[derive(Debug)]
pub struct Once<'a>(pub std::slice::Iter<'a, Vec<u64>>);

impl Supply for Once<'_> {
    fn next(&mut self) -> Option<&[u64]> {
        self.0.next().map(Vec::as_slice)
    }
}

/// Batches drawn when they are asked for.
#[derive(Debug)]
pub struct Drawn<'a> {
    draw: &'a mut Draw,
    samples: usize,
    keys: Vec<u64>,
}

impl<'a> Drawn<'a> {
    /// Batches of `samples` samples.
    pub fn new(draw: &'a mut Draw, samples: usize) -> Drawn<'a> {
        let keys = Vec::new();
        Drawn {
            draw,
            samples,
            keys,
        }
    }
}

impl Supply for Drawn<'_> {
    fn next(&mut self) -> Option<&[u64]> {
        self.draw.fill(self.samples, Order::Sorted, &mut self.keys);
        Some(&self.keys)
    }
}

/// One batch, in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step {
    /// Unique keys.
    pub rows: usize,
    /// Until the rows were resident.
    pub wait: f64,
    /// Copying the weights out.
    pub read: f64,
    /// Pushing, and starting a checkpoint.
    pub push: f64,
}

impl Step {
    /// All of it.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.wait + self.read + self.push
    }

    /// What a pull takes: waiting and copying.
    #[must_use]
    pub fn pull(&self) -> f64 {
        self.wait + self.read
    }
}

/// Steps done within some time.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// The steps.
    pub steps: Vec<Step>,
    /// Wall time.
    pub seconds: f64,
}

impl Window {
    /// Takes in another window.
    pub fn extend(&mut self, other: Window) {
        self.steps.extend(other.steps);
        self.seconds += other.seconds;
    }

    /// Rows of all steps.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.steps.iter().map(|s| s.rows).sum()
    }

    /// Rows a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.rows() as f64 / self.seconds.max(1e-9)
    }
}

enum Waiting {
    Ticket(usize, Ticket),
    Keys(Vec<u64>),
}

/// A trainer without a model: its gradients are constants.
pub struct Trainer<'a> {
    store: &'a Store,
    table: TableId,
    dim: usize,
    depth: usize,
    pushes: bool,
    queue: VecDeque<Waiting>,
    out: Vec<f32>,
    gradients: Vec<f32>,
    checkpoint_every: u64,
    running: Option<CheckpointTicket>,
    batches: u64,
    next_step: u64,
    trace: Option<TraceWriter>,
}

impl<'a> Trainer<'a> {
    /// A trainer of a store that is open.
    #[must_use]
    pub fn new(store: &'a Store, table: TableId, settings: &Settings) -> Trainer<'a> {
        let floats = settings.batch * settings.dim;
        Trainer {
            store,
            table,
            dim: settings.dim,
            depth: settings.depth,
            pushes: true,
            queue: VecDeque::new(),
            out: vec![0.0; floats],
            gradients: vec![0.01; floats],
            checkpoint_every: settings.checkpoint_every,
            running: None,
            batches: 0,
            next_step: store.last_checkpoint().map_or(0, |c| c.step) + 1,
            trace: None,
        }
    }

    /// Pulls only.
    #[must_use]
    pub fn without_pushes(mut self) -> Trainer<'a> {
        self.pushes = false;
        self
    }

    /// Fetches that many batches ahead.
    #[must_use]
    pub fn with_depth(mut self, depth: usize) -> Trainer<'a> {
        self.depth = depth;
        self
    }

    /// Records the keys of every batch from now on.
    pub fn record(&mut self, trace: TraceWriter) {
        self.trace = Some(trace);
    }

    /// Ends the recording, if there is one.
    ///
    /// # Errors
    /// What the file system says.
    pub fn end_record(&mut self) -> Result<()> {
        self.trace.take().map_or(Ok(()), TraceWriter::finish)
    }

    /// Whether batches are pushed from now on.
    pub fn set_pushes(&mut self, pushes: bool) {
        self.pushes = pushes;
    }

    /// Whether no checkpoint of this trainer is running.
    #[must_use]
    pub fn checkpoint_is_done(&self) -> bool {
        self.running.as_ref().is_none_or(CheckpointTicket::is_done)
    }

    /// Bytes that the trainer itself holds.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.out.len() + self.gradients.len()) as u64 * 4
    }

    fn refill(&mut self, supply: &mut dyn Supply) -> Result<()> {
        while self.queue.len() <= self.depth
            && let Some(keys) = supply.next()
        {
            if let Some(trace) = &mut self.trace {
                trace.batch(keys)?;
            }
            self.queue.push_back(if self.depth == 0 {
                Waiting::Keys(keys.to_vec())
            } else {
                Waiting::Ticket(keys.len(), self.store.prefetch(self.table, keys)?)
            });
        }
        Ok(())
    }

    /// One batch; `None` when the supply has ended.
    ///
    /// # Errors
    /// What the store says.
    pub fn step(&mut self, supply: &mut dyn Supply) -> Result<Option<Step>> {
        self.refill(supply)?;
        let Some(waiting) = self.queue.pop_front() else {
            return Ok(None);
        };
        let since = Instant::now();
        let (lease, wait) = match waiting {
            Waiting::Ticket(rows, ticket) => {
                let lease = ticket.wait().context("rows of a batch")?;
                let wait = since.elapsed().as_secs_f64();
                lease.read(&mut self.out[..rows * self.dim])?;
                (lease, wait)
            }
            Waiting::Keys(keys) => {
                let out = &mut self.out[..keys.len() * self.dim];
                (self.store.pull(self.table, &keys, out)?, 0.0)
            }
        };
        let pulled = since.elapsed().as_secs_f64();
        if self.pushes {
            let gradients = &self.gradients[..lease.len() * self.dim];
            self.store
                .push(&lease, Update::gradients(gradients, 0.01))?;
        }
        let rows = lease.len();
        drop(lease);
        self.batches += 1;
        if self.checkpoint_every > 0 && self.batches.is_multiple_of(self.checkpoint_every) {
            self.start_checkpoint()?;
        }
        Ok(Some(Step {
            rows,
            wait,
            read: pulled - wait,
            push: since.elapsed().as_secs_f64() - pulled,
        }))
    }

    /// Starts a checkpoint; waits for the one before.
    ///
    /// # Errors
    /// What the store says about either.
    pub fn start_checkpoint(&mut self) -> Result<()> {
        self.end_checkpoint()?;
        let step = self.next_step;
        self.running = Some(self.store.checkpoint_begin(step, &[])?);
        self.next_step += 1;
        Ok(())
    }

    /// Waits for the checkpoint that runs, if one does.
    ///
    /// # Errors
    /// What the store says about it.
    pub fn end_checkpoint(&mut self) -> Result<()> {
        if let Some(running) = self.running.take() {
            running.wait().context("a checkpoint beside training")?;
        }
        Ok(())
    }

    /// Steps until the time is over or the supply ends; `each` sees every step.
    ///
    /// # Errors
    /// What the store says.
    pub fn run(
        &mut self,
        supply: &mut dyn Supply,
        seconds: f64,
        each: &mut dyn FnMut(&Step),
    ) -> Result<Window> {
        let mut window = Window::default();
        let since = Instant::now();
        while since.elapsed().as_secs_f64() < seconds
            && let Some(step) = self.step(supply)?
        {
            each(&step);
            window.steps.push(step);
        }
        window.seconds = since.elapsed().as_secs_f64();
        Ok(window)
    }
}
