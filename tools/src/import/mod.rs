//! `hps-import`: reads a table from the files of another system.
//!
//! - The folder is checked before the store is touched, as far as lengths go.
//! - One checkpoint at the end has all rows. On any error before it the store is closed without one.

mod args;
mod deeprec;
mod delta;
mod duplicates;
mod fixed;
mod found;
mod paddle;
#[cfg(feature = "parquet")]
mod parquet;
mod plan;
mod put;
mod rows;
mod shape;
mod source;
mod target;
mod text;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use hps::{CheckpointInfo, PutRows, Store, TableDescriptor, TableId};

pub use args::{Args, NonFinite};
use found::Found;
use put::Import;
pub use rows::{Rows, rows};
use shape::Shape;
use source::{Folder, Noticed, Source};
use target::Target;

use crate::cli::{Exit, Interrupt, Meter, Usage, show};
use crate::models::columns::metadata_of;
use crate::models::{Exchange, Flag, crew, refuse_flags, refuse_remote};
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
    has_state: bool,
    has_slots: bool,
    noticed: Noticed,
    /// Metadata that the table has and the folder lacks.
    without: Vec<&'static str>,
    time: Duration,
}

/// Runs the tool.
///
/// # Errors
/// What kept it from its work: the exit code is that of [`crate::cli::exit_of`].
pub fn run(args: &Args) -> Result<Exit> {
    let since = Instant::now();
    check(args)?;
    if args.format == Exchange::Delta {
        return delta::run(args);
    }
    let interrupt = Interrupt::listen()?;
    let mut meter = Meter::new(TOOL, args.common.show())?;
    let folder = look(args)?;
    let target = Target::find(args)?;
    let (shape, wanted) = look_closer(args, &*folder, &target)?;
    let source = folder.source(args, &shape, &wanted)?;
    let (store, table) = target.open(args, &wanted)?;
    let work = Work {
        args,
        folder: &*folder,
        shape: &shape,
        source: &*source,
    };
    let done = work.run(&store, table, &interrupt, &mut meter);
    meter.end();
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

/// Looks at the folder.
fn look(args: &Args) -> Result<Box<dyn Folder>> {
    let (folder, weights_only) = (args.folder.as_path(), args.weights_only);
    Ok(match args.format {
        Exchange::Hugectr => Box::new(Found::hugectr(folder, weights_only)?),
        Exchange::Npy => Box::new(Found::npy(folder, weights_only)?),
        Exchange::Parquet => look_at_parquet(args)?,
        Exchange::Deeprec => Box::new(deeprec::Variable::look(args)?),
        Exchange::PaddleText => Box::new(paddle::Text::look(args)?),
        Exchange::Delta => {
            let why = "a delta has more than the rows of a table";
            return Err(Usage(why.to_owned()).into());
        }
    })
}

#[cfg(feature = "parquet")]
fn look_at_parquet(args: &Args) -> Result<Box<dyn Folder>> {
    let found = parquet::Found::look(&args.folder, args.weights_only)?;
    Ok(Box::new(found))
}

#[cfg(not(feature = "parquet"))]
fn look_at_parquet(_: &Args) -> Result<Box<dyn Folder>> {
    Err(crate::cli::without_parquet(TOOL).into())
}

/// What the files of a folder hold, and the table that its rows are for.
fn look_closer(
    args: &Args,
    folder: &dyn Folder,
    target: &Target,
) -> Result<(Shape, TableDescriptor)> {
    let optimizer = target.optimizer(args, folder)?;
    plan::check_state(folder, optimizer)?;
    let shape = folder.shape(args, target.dim(args), optimizer)?;
    let wanted = target.descriptor(args, folder, &shape, optimizer)?;
    Ok((shape, wanted))
}

/// Threads that read.
fn threads(args: &Args) -> usize {
    args.threads.map_or(cores(), usize::from).min(THREADS_MAX)
}

/// Checks what clap can't.
fn check(args: &Args) -> Result<()> {
    use Exchange::{Deeprec, Hugectr, Npy, PaddleText, Parquet};
    refuse_remote(&args.store)?;
    refuse_remote(&args.folder)?;
    if args.format == Parquet && args.repair {
        let why = "--repair is not of --format parquet: nothing can be read of a file that was cut, since its footer is \
                   at the end; take the file away, or write it again";
        return Err(Usage(why.to_owned()).into());
    }
    let tables = &Exchange::OF_A_TABLE;
    let [accessor, embed_rule, embedx_rule] = args.paddle.given();
    let non_finite = args.non_finite != NonFinite::Reject;
    let flags: [Flag; 18] = [
        ("--table", args.table.is_some(), tables),
        ("--variable", args.variable.is_some(), &[Deeprec]),
        accessor,
        embed_rule,
        embedx_rule,
        ("--embedx-dim", args.embedx_dim.is_some(), &[PaddleText]),
        ("--optimizer", args.optimizer.is_some(), tables),
        ("--dim", args.dim.is_some(), tables),
        ("--initialiser", args.initialiser.is_some(), tables),
        ("--seed", args.seed.is_some(), tables),
        ("--accumulator", args.accumulator.is_some(), tables),
        ("--step", args.step.is_some(), tables),
        ("--weights-only", args.weights_only, tables),
        ("--lr", args.lr.is_some(), &[Hugectr]),
        ("--adam-step", args.adam_step.is_some(), &[Hugectr, Deeprec]),
        ("--repair", args.repair, &[Hugectr, Npy]),
        ("--non-finite", non_finite, tables),
        ("--threads", args.threads.is_some(), tables),
    ];
    refuse_flags(args.format, &flags)
}

/// What is imported.
struct Work<'a> {
    args: &'a Args,
    folder: &'a dyn Folder,
    shape: &'a Shape,
    source: &'a dyn Source,
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
        let (args, source) = (self.args, self.source);
        let last = store.last_checkpoint();
        let step = step(args, last.as_ref())?;
        let duplicates = || duplicates::refuse(source, args.cache, interrupt);
        let before = index_keys(store, table);
        if before > 0 {
            duplicates()?;
        }
        let put = |keys: &[u64], rows: &[f32]| {
            let values = match source.is_whole() {
                true => PutRows::whole(rows),
                false => PutRows::weights(rows),
            };
            // Every number has been looked at.
            store.put(table, keys, values.verbatim()).map(drop)
        };
        let import = Import::new(&put, source, args.non_finite);
        let bytes = source.bytes();
        crew::run(threads(args), interrupt, meter, bytes, |crew| {
            import.work(crew)
        })?;
        let noticed = source.finish()?;
        let rows = import.put.load(Ordering::Relaxed);
        let meta = match &last {
            Some(last) => store.checkpoint_meta(last.id)?,
            None => Vec::new(),
        };
        interrupt.check()?;
        if before == 0 {
            // What is in memory alone is not in the index.
            store.flush()?;
            let keys = index_keys(store, table);
            if keys != rows {
                duplicates()?;
                let folder = self.folder.path().display();
                bail!("{folder}: {rows} rows made {keys} keys: it was changed while it was read");
            }
        }
        interrupt.check()?;
        let checkpoint = store.checkpoint(step, &meta)?;
        let descriptor = target::descriptor_of(store, table)?;
        let there = metadata_of(self.folder.metadata());
        let mut without = metadata_of(descriptor.metadata);
        without.retain(|name| !there.contains(name));
        Ok(Outcome {
            checkpoint,
            descriptor,
            without,
            rows,
            keys: index_keys(store, table),
            bytes,
            non_finite: import.seen_non_finite.load(Ordering::Relaxed),
            left: self.shape.left.clone(),
            has_state: source.has_state(),
            has_slots: self.folder.has_slots(),
            noticed,
            time: Duration::ZERO,
        })
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
