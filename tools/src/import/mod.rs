//! `hps-import`: reads a table from the files of another system.
//!
//! - The folder is checked before the store is touched, as far as lengths go.
//! - One checkpoint at the end has all rows. On any error before it the store is closed without one.

mod args;
mod deeprec;
mod delta;
mod duplicates;
mod found;
mod paddle;
mod plan;
mod put;
mod rows;
mod shape;
mod target;
mod text;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use hps::{CheckpointInfo, PutRows, Store, TableDescriptor, TableId};

pub use args::{Args, NonFinite};
use found::{FileFound, Found};
use plan::Plan;
use put::Import;
pub use rows::{Rows, rows};
use shape::Shape;
use target::Target;

use crate::cli::{Exit, Interrupt, Meter, Usage, show};
use crate::models::{Exchange, crew, refuse_flags, refuse_remote};
use crate::store::index_keys;
use crate::threads::cores;

pub(crate) const TOOL: &str = "hps-import";

/// Threads that read, at most: the store has its own.
const THREADS_MAX: usize = 8;

/// What was imported.
struct Outcome {
    checkpoint: CheckpointInfo,
    descriptor: TableDescriptor,
    /// Rows put, and keys of the table afterwards.
    rows: u64,
    keys: u64,
    bytes: u64,
    non_finite: u64,
    /// Bytes left out by `--repair`.
    left: Vec<(PathBuf, u64)>,
    /// What the files have and the table does not take, with the rows of it.
    lost: BTreeMap<String, u64>,
    has_state: bool,
    has_slots: bool,
    /// What was seen of the text of Paddle.
    text: Option<paddle::Seen>,
    time: Duration,
}

/// Runs the tool.
///
/// # Errors
/// What kept it from its work: the exit code is that of [`crate::cli::exit_of`].
pub fn run(args: &Args) -> Result<Exit> {
    let since = Instant::now();
    let format = match (args.format.columns(), args.format) {
        (Some(format), _) => format,
        (None, Exchange::PaddleText) => return paddle::run(args),
        (None, _) => return delta::run(args),
    };
    check(args)?;
    let interrupt = Interrupt::listen()?;
    let mut meter = Meter::new(TOOL, args.common.show())?;
    let found = Found::all(format, args)?;
    let target = Target::find(args)?;
    let (sources, wanted) = look_closer(args, found, &target)?;
    let plans = plans(args, &sources, &wanted)?;
    let (store, table) = target.open(args, &wanted)?;
    let work = Work {
        args,
        sources: &sources,
        plans: &plans,
    };
    let done = work.run(&store, table, &interrupt, &mut meter);
    meter.end();
    end(args, store, done, since)
}

/// Closes the store as it should be, and says what was done.
fn end(args: &Args, store: Store, done: Result<Outcome>, since: Instant) -> Result<Exit> {
    let mut outcome = match done {
        Ok(outcome) => outcome,
        Err(error) => {
            store.close_discarding();
            return Err(error);
        }
    };
    store.close()?;
    outcome.time = since.elapsed();
    let json = args.json.then(|| text::json(args, &outcome));
    show(&args.common, json, |out| text::print(out, args, &outcome))?;
    Ok(match outcome.left.is_empty() {
        true => Exit::Clean,
        false => Exit::Changed,
    })
}

/// A model, or a partition of one, and what its files hold.
struct Source {
    found: Found,
    shape: Shape,
}

/// What the files of a folder hold, and the table that its rows are for.
fn look_closer(
    args: &Args,
    all: Vec<Found>,
    target: &Target,
) -> Result<(Vec<Source>, TableDescriptor)> {
    // One that has rows, if there is any, says what the table is like.
    let first = all.iter().find(|found| found.keys.bytes > 0);
    let Some(first) = first.or(all.first()) else {
        bail!("{}: no model", args.folder.display());
    };
    let optimizer = target.optimizer(args, first)?;
    plan::check_state(first, optimizer)?;
    let width = |name: &str, dim| plan::width(first.format, optimizer, name, dim);
    let dim = target.dim(args);
    let own = shape::shape(first, dim, args.repair, width)?;
    let wanted = target.descriptor(args, own.dim, first.metadata(), optimizer)?;
    let mut sources = Vec::new();
    for found in all {
        plan::check_state(&found, optimizer)?;
        let width = |name: &str, dim| plan::width(found.format, optimizer, name, dim);
        let dim = dim.or((own.dim > 0).then_some(own.dim));
        let shape = shape::shape(&found, dim, args.repair, width)?;
        sources.push(Source { found, shape });
    }
    Ok((sources, wanted))
}

/// How the rows of each model are made.
fn plans<'a>(args: &Args, sources: &'a [Source], table: &TableDescriptor) -> Result<Vec<Plan<'a>>> {
    let plan = |source: &'a Source| Plan::new(args, &source.found, table);
    sources.iter().map(plan).collect()
}

/// The keys of all models, and how many there are.
fn keys_of(sources: &[Source]) -> Vec<(&FileFound, u64)> {
    let keys = sources.iter();
    keys.map(|source| (&source.found.keys, source.shape.rows))
        .collect()
}

/// Checks what clap can't.
fn check(args: &Args) -> Result<()> {
    refuse_remote(&args.store)?;
    refuse_remote(&args.folder)?;
    let (hugectr, deeprec) = ([Exchange::Hugectr], [Exchange::Deeprec]);
    let paddle = [Exchange::PaddleText];
    let (with_slots, arrays) = (
        [Exchange::Hugectr, Exchange::Deeprec],
        [Exchange::Hugectr, Exchange::Npy],
    );
    let flags = [
        ("--lr", args.lr.is_some(), &hugectr[..]),
        ("--adam-step", args.adam_step.is_some(), &with_slots),
        ("--variable", args.variable.is_some(), &deeprec),
        ("--repair", args.repair, &arrays),
        ("--embedx-dim", args.embedx_dim.is_some(), &paddle),
        ("--accessor", args.accessor.is_some(), &paddle),
        ("--embed-rule", args.embed_rule.is_some(), &paddle),
        ("--embedx-rule", args.embedx_rule.is_some(), &paddle),
    ];
    refuse_flags(args.format, &flags)
}

/// What is imported.
struct Work<'a> {
    args: &'a Args,
    sources: &'a [Source],
    plans: &'a [Plan<'a>],
}

impl Work<'_> {
    /// Puts all rows, and makes them durable.
    fn run(
        &self,
        store: &Store,
        table: TableId,
        interrupt: &Interrupt,
        meter: &mut Meter,
    ) -> Result<Outcome> {
        let args = self.args;
        let last = store.last_checkpoint();
        let step = step(args, last.as_ref())?;
        let keys = keys_of(self.sources);
        let duplicates = || duplicates::refuse(&keys, args.cache, interrupt);
        let before = index_keys(store, table);
        if before > 0 {
            duplicates()?;
        }
        let threads = threads(args);
        let (mut rows, mut bytes, mut non_finite) = (0, 0, 0);
        for (source, plan) in self.sources.iter().zip(self.plans) {
            let put = |keys: &[u64], rows: &[f32]| {
                let values = match plan.is_whole {
                    true => PutRows::whole(rows),
                    false => PutRows::weights(rows),
                };
                // Every number has been looked at.
                store.put(table, keys, values.verbatim()).map(drop)
            };
            let count = source.shape.rows;
            let import = Import::new(&put, plan, count, args.non_finite, threads);
            let own = count * plan.row_bytes() as u64;
            crew::run(threads, interrupt, meter, own, |crew| import.work(crew))?;
            import.check_sums()?;
            rows += import.put.load(Ordering::Relaxed);
            non_finite += import.seen_non_finite.load(Ordering::Relaxed);
            bytes += own;
        }
        let checkpoint = commit(
            &Put {
                store,
                table,
                step,
                before,
                rows,
            },
            args,
            interrupt,
            duplicates,
        )?;
        Ok(Outcome {
            checkpoint,
            descriptor: target::descriptor_of(store, table)?,
            rows,
            keys: index_keys(store, table),
            bytes,
            non_finite,
            left: self
                .sources
                .iter()
                .flat_map(|s| s.shape.left.clone())
                .collect(),
            lost: self.lost(),
            has_state: self.plans.iter().all(|plan| plan.has_state),
            has_slots: self.sources.iter().any(|s| s.found.slots.is_some()),
            text: None,
            time: Duration::ZERO,
        })
    }
}

fn threads(args: &Args) -> usize {
    args.threads.map_or(cores(), usize::from).min(THREADS_MAX)
}

/// What is to be made durable.
struct Put<'a> {
    store: &'a Store,
    table: TableId,
    step: u64,
    /// Keys of the table before, and rows put since.
    before: u64,
    rows: u64,
}

/// Makes the checkpoint, with the meta of the one before. `duplicates` names a key that stands twice: into a table that
/// was empty, the number of its keys tells whether there is one.
fn commit(
    put: &Put<'_>,
    args: &Args,
    interrupt: &Interrupt,
    duplicates: impl Fn() -> Result<()>,
) -> Result<CheckpointInfo> {
    let store = put.store;
    let meta = match store.last_checkpoint() {
        Some(last) => store.checkpoint_meta(last.id)?,
        None => Vec::new(),
    };
    interrupt.check()?;
    if put.before == 0 {
        // What is in memory alone is not in the index.
        store.flush()?;
        let (rows, keys) = (put.rows, index_keys(store, put.table));
        if keys != rows {
            duplicates()?;
            let folder = args.folder.display();
            bail!("{folder}: {rows} rows made {keys} keys: it was changed while it was read");
        }
    }
    interrupt.check()?;
    Ok(store.checkpoint(put.step, &meta)?)
}

impl Work<'_> {
    /// What the files have and the table does not take, with the rows of it.
    fn lost(&self) -> BTreeMap<String, u64> {
        let mut lost = BTreeMap::new();
        for (source, plan) in self.sources.iter().zip(self.plans) {
            let columns = plan.lost.iter().map(|name| (name, source.shape.rows));
            let others = source.found.lost.iter().map(|(name, count)| (name, *count));
            for (name, count) in columns.chain(others) {
                *lost.entry(name.clone()).or_default() += count;
            }
        }
        lost
    }
}

/// The step of the checkpoint to come.
fn step(args: &Args, last: Option<&CheckpointInfo>) -> Result<u64> {
    let last = last.map(|last| last.step);
    match (args.step, last) {
        (Some(step), Some(last)) if step <= last => Err(Usage(format!(
            "--step {step}: must be greater than {last}, the step of the last checkpoint"
        ))
        .into()),
        (Some(step), _) => Ok(step),
        (None, None) => Ok(1),
        (None, Some(last)) => last.checked_add(1).ok_or_else(|| {
            let why = "no step comes after that of the last checkpoint";
            Usage(why.to_owned()).into()
        }),
    }
}
