//! `hps-export`: writes a table of a checkpoint into the files of another system.
//!
//! - The store is only read; a trainer may have it open.
//! - The folder appears when all of it is durable, or not at all.

mod args;
mod arrays;
mod delta;
mod files;
mod folder;
mod paddle;
#[cfg(feature = "parquet")]
mod parquet;
mod text;
mod walk;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use hps::{CheckpointInfo, Store, TableDescriptor, TableId};

pub use args::{Args, rate};
use arrays::Columns;
use files::{Files, Writers};
use folder::Partial;
use walk::{Scope, Tour, Written};

use crate::cli::{Exit, Interrupt, Meter, Usage, show};
use crate::models::{
    Choices, Exchange, Flag, Format, check_weights, crew, deeprec, files_of, refuse_flags,
    refuse_remote,
};
use crate::store::{index_keys, open_for_rows};
use crate::threads::cores;

pub(crate) const TOOL: &str = "hps-export";

/// Memory of a thread: windows of 16 MiB, their key blocks, buffers; parquet and paddle-text need more.
const THREAD_BYTES: u64 = 24 << 20;

/// What was exported.
struct Outcome {
    checkpoint: CheckpointInfo,
    /// Names and bytes.
    files: Vec<(String, u64)>,
    /// Columns that the format has no place for.
    lost: Vec<String>,
    written: Written,
    /// Keys that were removed, where only changes are asked for.
    removed: Option<u64>,
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
    let (store, checkpoint) = open_for_rows(&args.store, args.checkpoint, "rows to export")?;
    let (table, descriptor) = find(&store, &checkpoint, args.table())?;
    let keys = index_keys(&store, table);
    if args.format == Exchange::Deeprec {
        // Before anything is written; --since, with which there are fewer rows, is of other formats.
        deeprec::check_rows(keys)?;
    }
    let partial = Partial::new(&args.out)?;
    let files = create(args, &descriptor, &checkpoint, partial.path())?;
    let scope = Scope {
        since: args.since,
        checkpoint: checkpoint.id,
        table,
    };
    let threads = threads(args);
    let tour = Tour::new(&store, scope, &descriptor, files.row_bytes(), threads);
    let writers = Writers::new(threads);
    let done = crew::run(
        threads + 1,
        &interrupt,
        &mut meter,
        keys * files.row_bytes() as u64,
        |crew| writers.work(&*files, &tour, crew),
    );
    meter.end();
    done?;
    let lost = files.left_out().to_vec();
    let (written, removed) = tour.finish();
    let files = files.finish(removed.as_deref(), &interrupt)?;
    interrupt.check()?;
    partial.keep(&args.out)?;
    let outcome = Outcome {
        checkpoint,
        files,
        lost,
        written,
        removed: removed.map(|keys| keys.len() as u64),
        time: since.elapsed(),
    };
    let json = args.json.then(|| text::json(args, &outcome));
    show(&args.common, json, |out| text::print(out, args, &outcome))?;
    Ok(Exit::Clean)
}

/// Makes the files of a format in a folder.
fn create(
    args: &Args,
    table: &TableDescriptor,
    checkpoint: &CheckpointInfo,
    folder: &Path,
) -> Result<Box<dyn Files>> {
    check_weights(table)?;
    Ok(match args.format {
        Exchange::Hugectr => Box::new(create_columns(args, Format::Hugectr, table, folder)?),
        Exchange::Npy => Box::new(create_columns(args, Format::Npy, table, folder)?),
        Exchange::Parquet => create_parquet(args, table, checkpoint, folder)?,
        Exchange::Deeprec => {
            let columns = create_columns(args, Format::Deeprec, table, folder)?;
            let variable = args.variable.as_deref().unwrap_or(args.table());
            Box::new(columns.with_index(variable, table))
        }
        Exchange::PaddleText => Box::new(paddle::Text::create(folder, args, table)?),
        Exchange::Delta => {
            let why = "a delta has more than the rows of a table";
            return Err(Usage(why.to_owned()).into());
        }
    })
}

fn create_columns(
    args: &Args,
    format: Format,
    table: &TableDescriptor,
    folder: &Path,
) -> Result<Columns> {
    let choices = Choices {
        lr: args.lr,
        slots: args.localized.then_some(args.slot),
        weights_only: args.weights_only,
    };
    let (files, lost) = files_of(format, table, &choices)?;
    Columns::create(folder, format, files, lost)
}

#[cfg(feature = "parquet")]
fn create_parquet(
    args: &Args,
    table: &TableDescriptor,
    checkpoint: &CheckpointInfo,
    folder: &Path,
) -> Result<Box<dyn Files>> {
    let fixed = THREAD_BYTES + parquet::PAGE_BYTES;
    let group_bytes = (args.memory / threads(args) as u64).saturating_sub(fixed);
    let parts = parquet::Parts::new(args, table, checkpoint, folder, group_bytes)?;
    Ok(Box::new(parts))
}

#[cfg(not(feature = "parquet"))]
fn create_parquet(
    _: &Args,
    _: &TableDescriptor,
    _: &CheckpointInfo,
    _: &Path,
) -> Result<Box<dyn Files>> {
    Err(crate::cli::without_parquet(TOOL).into())
}

fn threads(args: &Args) -> usize {
    let each = THREAD_BYTES
        + match args.format {
            #[cfg(feature = "parquet")]
            Exchange::Parquet => parquet::GROUP_BYTES_MIN + parquet::PAGE_BYTES,
            Exchange::PaddleText => paddle::thread_bytes(args),
            _ => 0,
        };
    let fit = usize::try_from(args.memory / each).unwrap_or(usize::MAX);
    let wanted = args.threads.map_or(cores(), usize::from);
    wanted.min(fit).max(1)
}

/// Checks what clap can't.
fn check(args: &Args) -> Result<()> {
    use Exchange::{Deeprec, Delta, Hugectr, Npy, PaddleText, Parquet};
    refuse_remote(&args.store)?;
    refuse_remote(&args.out)?;
    #[cfg(not(feature = "parquet"))]
    if args.format == Parquet {
        return Err(crate::cli::without_parquet(TOOL).into());
    }
    if let Some(after) = &args.after {
        if args.format != Delta {
            let why =
                "--after is of --format delta; --since ID writes what changed in other formats";
            return Err(Usage(why.to_owned()).into());
        }
        refuse_remote(after)?;
    }
    let tables = &Exchange::OF_A_TABLE;
    // It is of a delta as well, which the text leaves out: a delta is no way out for one table.
    let since = args.since.is_some() && args.format != Delta;
    let [accessor, embed_rule, embedx_rule] = args.paddle.given();
    let flags: [Flag; 12] = [
        ("--since", since, &[Hugectr, Npy, Parquet]),
        ("--table", args.table.is_some(), tables),
        ("--variable", args.variable.is_some(), &[Deeprec]),
        accessor,
        embed_rule,
        embedx_rule,
        ("--shards", args.shards.is_some(), &[PaddleText]),
        ("--weights-only", args.weights_only, tables),
        ("--lr", args.lr.is_some(), &[Hugectr]),
        ("--localized", args.localized, &[Hugectr]),
        ("--compression", args.compression.is_some(), &[Parquet]),
        ("--threads", args.threads.is_some(), tables),
    ];
    refuse_flags(args.format, &flags)
}

/// The table of a checkpoint, by name.
fn find(
    store: &Store,
    checkpoint: &CheckpointInfo,
    name: &str,
) -> Result<(TableId, TableDescriptor)> {
    let tables = store.tables_at(checkpoint.id)?;
    let known: Vec<String> = tables.iter().map(|(_, t)| t.name.clone()).collect();
    let found = tables.into_iter().find(|(_, table)| table.name == name);
    found.ok_or_else(|| {
        let id = checkpoint.id;
        Usage(format!(
            "no table {name:?} in checkpoint {id}; there are: {known:?}"
        ))
        .into()
    })
}
