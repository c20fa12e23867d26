//! `hps-export`: writes a table of a checkpoint into the files of another system.
//!
//! - The store is only read; a trainer may have it open.
//! - The folder appears when all of it is durable, or not at all.

mod args;
mod delta;
mod folder;
mod paddle;
mod text;
mod write;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use hps::{CheckpointInfo, Store, TableDescriptor, TableId};

pub use args::{Args, rate};
use folder::Partial;
use write::{Columns, Finished, Scope, Written};

use crate::cli::{Exit, Interrupt, Meter, Usage, show};
use crate::models::{
    Choices, Content, Exchange, FileOf, Format, crew, deeprec, files_of, refuse_flags,
    refuse_remote,
};
use crate::store::{index_keys, open_for_rows};
use crate::threads::cores;

pub(crate) const TOOL: &str = "hps-export";

/// Memory of a thread: windows of 16 MiB, their key blocks, buffers.
const THREAD_BYTES: u64 = 24 << 20;

/// What was exported.
struct Outcome {
    checkpoint: CheckpointInfo,
    /// Names and bytes.
    files: Vec<(String, u64)>,
    /// Columns that the format has no place for.
    lost: Vec<String>,
    written: Written,
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
    let (store, checkpoint) = open_for_rows(&args.store, args.checkpoint, "rows to export")?;
    let (table, descriptor) = find(&store, &checkpoint, args.table())?;
    let choices = Choices {
        lr: args.lr,
        slots: args.localized.then_some(args.slot),
        weights_only: args.weights_only,
    };
    let (files, lost) = files_of(format, &descriptor, &choices)?;
    let partial = Partial::new(&args.out)?;
    let removed = args
        .since
        .map(|_| FileOf::new(format, "removed", Content::Key));
    let is_deeprec = format == Format::Deeprec;
    let columns = Columns::create(partial.path(), files, removed, &descriptor)?;
    let columns = columns.with_sums(is_deeprec);
    let row_bytes: usize = columns.files().map(|f| f.content.row_bytes()).sum();
    let scope = Scope {
        since: args.since,
        checkpoint: checkpoint.id,
        table,
    };
    let done = crew::run(
        threads(args) + 1,
        &interrupt,
        &mut meter,
        index_keys(&store, table) * row_bytes as u64,
        |crew| columns.work(&store, &scope, threads(args), crew),
    );
    meter.end();
    done?;
    let finished = columns.finish()?;
    let index = match is_deeprec {
        true => finish_deeprec(args, partial.path(), &descriptor, &finished)?,
        false => Vec::new(),
    };
    let Finished { files, written, .. } = finished;
    let files = files.into_iter().map(|(file, bytes)| (file.name, bytes));
    let files = files.chain(index).collect();
    interrupt.check()?;
    partial.keep(&args.out)?;
    let outcome = Outcome {
        checkpoint,
        files,
        lost,
        written,
        time: since.elapsed(),
    };
    tell(args, &outcome)?;
    Ok(Exit::Clean)
}

fn tell(args: &Args, outcome: &Outcome) -> Result<()> {
    let json = args.json.then(|| text::json(args, outcome));
    show(&args.common, json, |out| text::print(out, args, outcome))
}

/// The index of a checkpoint of DeepRec.
fn finish_deeprec(
    args: &Args,
    folder: &Path,
    table: &TableDescriptor,
    finished: &Finished,
) -> Result<Vec<(String, u64)>> {
    let rows = finished.written.rows;
    if rows > deeprec::ROWS_MAX {
        let most = deeprec::ROWS_MAX;
        let why = format!("{rows} rows; DeepRec counts those of a variable up to {most}");
        return Err(Usage(why).into());
    }
    let variable = args.variable.as_deref().unwrap_or(args.table());
    deeprec::finish(
        folder,
        variable,
        table,
        &finished.files,
        &finished.sums,
        rows,
    )
}

fn threads(args: &Args) -> usize {
    let fit = usize::try_from(args.memory / THREAD_BYTES).unwrap_or(usize::MAX);
    let wanted = args.threads.map_or(cores(), usize::from);
    wanted.min(fit).max(1)
}

/// Checks what clap can't.
fn check(args: &Args) -> Result<()> {
    refuse_remote(&args.store)?;
    refuse_remote(&args.out)?;
    if args.after.is_some() {
        let why = "--after is of --format delta; --since ID writes what changed in other formats";
        return Err(Usage(why.to_owned()).into());
    }
    let (hugectr, deeprec) = ([Exchange::Hugectr], [Exchange::Deeprec]);
    let (paddle, arrays) = ([Exchange::PaddleText], [Exchange::Hugectr, Exchange::Npy]);
    let flags = [
        ("--lr", args.lr.is_some(), &hugectr[..]),
        ("--localized", args.localized, &hugectr),
        ("--variable", args.variable.is_some(), &deeprec),
        ("--since", args.since.is_some(), &arrays),
        ("--shards", args.shards.is_some(), &paddle),
        ("--accessor", args.accessor.is_some(), &paddle),
        ("--embed-rule", args.embed_rule.is_some(), &paddle),
        ("--embedx-rule", args.embedx_rule.is_some(), &paddle),
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
