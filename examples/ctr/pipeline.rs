//! How do reading, fetching, training and writing back overlap without changing a value?
//!
//! Four stages with bounded queues: a thread reads and parses, a thread asks the store for the rows
//! of coming batches, the caller's thread trains, and the store writes back on its own.
//!
//! - Gather, train, push and checkpoint run strictly in batch order in one thread; the depth only
//!   changes when rows become resident.
//! - A batch is scored before it is trained on.
//! - Where the data is cut into passes, the trainer's thread begins, enters and ends them.
//! - An error anywhere ends all stages and is the one that is returned.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use hps::{CheckpointId, Error, Store, TableId, Ticket, Update};

use crate::args::{Args, Policy, Usage};
use crate::data::{Batch, Reader};
use crate::meta::{State, encode};
use crate::model::Work;
use crate::passes::{Folder, Passes};
use crate::report::{Report, Times};

/// Batches parsed ahead of the fetching stage.
const PARSED_MAX: usize = 2;
/// What errors say that the pipeline was doing.
const FETCH: &str = "fetch the rows of a batch";

/// What a run trains, and on what.
pub(crate) struct Job<'a> {
    pub(crate) args: &'a Args,
    pub(crate) store: &'a Store,
    pub(crate) table: TableId,
    /// Rows are read but never changed, and no checkpoint is made.
    pub(crate) frozen: bool,
    pub(crate) fingerprint: &'a [(String, String)],
    /// Where the data is cut into passes; each has one file of it.
    pub(crate) passes: Option<&'a Folder>,
}

/// What the reading stage sends.
enum Parsed {
    Batch(Batch),
    /// The end, with the number of malformed lines.
    End(u64),
}

/// What the fetching stage sends.
enum Fetched {
    Batch(Batch, Option<Ticket>, f64),
    End(u64),
}

/// Trains from where `state` stands to the end of the data; returns the malformed lines.
pub(crate) fn train(
    job: &Job<'_>,
    reader: Reader,
    state: &mut State,
    report: &mut Report,
) -> Result<u64> {
    let depth = usize::from(job.args.depth);
    let rows = job.args.batch_rows();
    let start = state.position;
    let passes = match job.passes {
        Some(folder) => Some(Passes::begin(job, folder, start.file)?),
        None => None,
    };
    thread::scope(|scope| {
        let (parsed_to, parsed) = sync_channel(PARSED_MAX);
        // The fetching stage holds one batch while it waits for room: depth in all.
        let (fetched_to, fetched) = sync_channel(depth.saturating_sub(1));
        scope.spawn(move || read(reader, start, rows, &parsed_to));
        scope.spawn(move || fetch(job, &parsed, &fetched_to));
        // `fetched` moves in and is dropped at the end of the call: the other stages end too.
        consume(job, fetched, passes, state, report)
    })
}

fn read(
    mut reader: Reader,
    start: crate::data::Position,
    rows: usize,
    to: &SyncSender<Result<Parsed>>,
) {
    if let Err(error) = reader.skip_to(start) {
        // A closed queue means that the trainer ended first, with an error of its own.
        let _ = to.send(Err(error));
        return;
    }
    loop {
        let message = match reader.batch(rows) {
            Ok(Some(batch)) => Ok(Parsed::Batch(batch)),
            Ok(None) => Ok(Parsed::End(reader.skipped())),
            Err(error) => Err(error),
        };
        let last = !matches!(message, Ok(Parsed::Batch(_)));
        if to.send(message).is_err() || last {
            return;
        }
    }
}

fn fetch(job: &Job<'_>, from: &Receiver<Result<Parsed>>, to: &SyncSender<Result<Fetched>>) {
    for message in from {
        let message = match message {
            Err(error) => Err(error),
            Ok(Parsed::End(skipped)) => Ok(Fetched::End(skipped)),
            Ok(Parsed::Batch(batch)) if job.args.depth == 0 => Ok(Fetched::Batch(batch, None, 0.0)),
            Ok(Parsed::Batch(batch)) => {
                let start = Instant::now();
                let ticket = job.store.prefetch(job.table, &batch.keys);
                let spent = start.elapsed().as_secs_f64();
                ticket
                    .map(|x| Fetched::Batch(batch, Some(x), spent))
                    .map_err(|error| explain(error, job.args, FETCH))
            }
        };
        let last = !matches!(message, Ok(Fetched::Batch(..)));
        if to.send(message).is_err() || last {
            return;
        }
    }
}

fn consume(
    job: &Job<'_>,
    from: Receiver<Result<Fetched>>,
    mut passes: Option<Passes<'_>>,
    state: &mut State,
    report: &mut Report,
) -> Result<u64> {
    let mut work = Work::default();
    let (mut rows, mut gradients) = (Vec::new(), Vec::new());
    let mut pending = None;
    let skipped = loop {
        let waiting = Instant::now();
        let (batch, ticket, prefetch) = match from.recv() {
            Ok(Ok(Fetched::Batch(batch, ticket, spent))) => (batch, ticket, spent),
            Ok(Ok(Fetched::End(skipped))) => break skipped,
            Ok(Err(error)) => return Err(error),
            Err(_) => bail!("a stage of the pipeline ended early"),
        };
        let mut times = Times {
            read: batch.read_s,
            prefetch,
            ..Times::default()
        };
        let entering = lap(waiting, &mut times.idle);
        if let Some(passes) = &mut passes {
            passes.enter(batch.position.file, report)?;
            lap(entering, &mut times.wait);
        }
        let count = batch.keys.len() * (usize::from(job.args.dim) + 1);
        rows.clear();
        rows.resize(count, 0.0);
        let step = Step {
            job,
            batch: &batch,
            ticket,
        };
        let loss = step.run(&mut rows, &mut gradients, state, &mut work, &mut times)?;
        if let Some(passes) = &mut passes {
            passes.leave();
        }
        if !loss.is_finite() {
            bail!(
                "batch {}: the loss is not finite; lower --lr",
                state.batches
            );
        }
        let every = job.args.checkpoint_every;
        if !job.frozen && every > 0 && state.batches.is_multiple_of(every) {
            let start = Instant::now();
            if let Some(ticket) = pending.take() {
                hps::CheckpointTicket::wait(ticket)?;
            }
            let meta = encode(job.fingerprint, state);
            pending = Some(job.store.checkpoint_begin(state.batches, &meta)?);
            lap(start, &mut times.checkpoint);
        }
        report.batch(job, state, &batch, loss, &times)?;
    };
    if let Some(ticket) = pending {
        hps::CheckpointTicket::wait(ticket)?;
    }
    Ok(skipped)
}

/// One batch through the trainer.
struct Step<'a> {
    job: &'a Job<'a>,
    batch: &'a Batch,
    ticket: Option<Ticket>,
}

impl Step<'_> {
    fn run(
        self,
        rows: &mut [f32],
        gradients: &mut Vec<f32>,
        state: &mut State,
        work: &mut Work,
        times: &mut Times,
    ) -> Result<f64> {
        let Step { job, batch, ticket } = self;
        let start = Instant::now();
        let lease = match ticket {
            Some(ticket) => {
                let lease = ticket.wait();
                let lease = lease.map_err(|error| explain(error, job.args, FETCH))?;
                let start = lap(start, &mut times.wait);
                lease.read(rows)?;
                lap(start, &mut times.gather);
                lease
            }
            None => {
                let lease = job
                    .store
                    .pull(job.table, &batch.keys, rows)
                    .map_err(|error| explain(error, job.args, FETCH))?;
                lap(start, &mut times.gather);
                lease
            }
        };
        let start = Instant::now();
        state.model.forward(batch, rows, work);
        let loss = state.scores.add(batch, &work.logits);
        let start = lap(start, &mut times.forward);
        if job.frozen {
            state.model.backward(batch, work, None);
            lap(start, &mut times.backward);
        } else {
            gradients.clear();
            gradients.resize(rows.len(), 0.0);
            state.model.backward(batch, work, Some(gradients));
            let start = lap(start, &mut times.backward);
            job.store
                .push(&lease, Update::gradients(gradients, job.args.rate()))?;
            lap(start, &mut times.push);
        }
        state.batches += 1;
        state.position = batch.position;
        Ok(loss)
    }
}

/// Adds the seconds since `start`; returns now.
fn lap(start: Instant, seconds: &mut f64) -> Instant {
    let now = Instant::now();
    *seconds += now.duration_since(start).as_secs_f64();
    now
}

/// Says what to change when the cache can't hold the work.
pub(crate) fn explain(error: Error, args: &Args, doing: &str) -> anyhow::Error {
    if let Error::OverBudget { needed_bytes, .. } = &error {
        let mib = needed_bytes.div_ceil(1 << 20);
        let or = match (args.policy, &args.passes) {
            (Policy::Staged, _) => "another --policy",
            (Policy::Cached, Some(_)) => {
                "fewer --blocks, or cut the data into smaller passes (hps-keyset split)"
            }
            (_, Some(_)) => "cut the data into smaller passes (hps-keyset split)",
            (_, None) => "lower --batch or --depth",
        };
        let text = format!("{doing}: {error}\ngive --cache-mib {mib} or more, or {or}");
        return anyhow::Error::new(Usage(text));
    }
    anyhow!(error).context(doing.to_owned())
}

/// Makes the run's end durable, unless its last checkpoint is that; returns the checkpoint's id.
pub(crate) fn finish(job: &Job<'_>, state: &State) -> Result<CheckpointId> {
    if let Some(last) = job.store.last_checkpoint()
        && last.step == state.batches
    {
        return Ok(last.id);
    }
    let meta = encode(job.fingerprint, state);
    let info = job
        .store
        .checkpoint(state.batches, &meta)
        .context("make the last checkpoint")?;
    Ok(info.id)
}
