//! How does one train a click model whose embeddings do not fit in memory?
//!
//! ```text
//! cargo run --release --example ctr                          # planted data, best AUC known
//! cargo run --release --example ctr -- --dir run train.txt   # Criteo's layout, also .gz or -
//! ```
//!
//! - The final rows, state and dense parameters are bit-identical for any cache, shards, threads,
//!   depth and I/O engine, and after `kill -9` and `--resume`.
//! - stdout holds results, stderr progress and notes; exit codes: 0 done, 8 could not run, 16 wrong
//!   arguments.

mod args;
mod data;
mod digest;
mod meta;
mod model;
mod parse;
mod passes;
mod pipeline;
mod planted;
mod report;
mod scores;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use hps::{ArgumentError, CreateOptions, Error, Initialiser, Store, TableDescriptor, TableId};

use crate::args::{Args, Usage, fingerprint, usage};
use crate::data::Reader;
use crate::meta::{State, decode};
use crate::passes::Folder;
use crate::pipeline::{Job, explain, finish, train};
use crate::planted::Planted;
use crate::report::{Report, Summary, note};

const COULD_NOT_RUN: u8 = 8;
const WRONG_ARGUMENTS: u8 = 16;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(WRONG_ARGUMENTS)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(&format!("error: {error:#}"));
            ExitCode::from(if is_usage(&error) {
                WRONG_ARGUMENTS
            } else {
                COULD_NOT_RUN
            })
        }
    }
}

fn is_usage(error: &anyhow::Error) -> bool {
    let option = |error: &Error| {
        matches!(
            error,
            Error::InvalidArgument(
                ArgumentError::Option { .. } | ArgumentError::DescriptorChanged { .. }
            )
        )
    };
    error.is::<Usage>() || error.downcast_ref::<Error>().is_some_and(option)
}

fn run(args: &Args) -> Result<()> {
    args.check()?;
    let passes = args.passes.as_deref().map(Folder::read).transpose()?;
    let data = passes.as_ref().map_or(args.data.clone(), Folder::data);
    data::check(&data)?;
    let mut temporary = None;
    let directory = match &args.dir {
        Some(path) => path.clone(),
        None => temporary
            .insert(temporary_directory()?)
            .path()
            .join("store"),
    };
    let fingerprint = fingerprint(args, &data)?;
    let store = open(&directory, args)?;
    let table = store.create_table(&descriptor(args))?;
    let mut state = resume(&store, &fingerprint, args)?;
    let planted = data.is_empty().then(|| Planted::new(args.seed));
    let paths = match planted {
        None => data,
        Some(planted) => vec![write_planted(planted, &directory, args)?],
    };
    let rows = planted.map(|_| planted::ROWS);
    let mut report = Report::new("train", args.json, rows, &state, &store)?;
    let job = Job {
        args,
        store: &store,
        table,
        frozen: false,
        fingerprint: &fingerprint,
        passes: passes.as_ref(),
    };
    let reader = Reader::new(paths.clone(), args.strict, planted);
    let skipped = train(&job, reader, &mut state, &mut report)?;
    let checkpoint = finish(&job, &state)?;
    let figures = report.finish(&state);
    let stats = store.stats();
    let digest = match args.digest {
        true => Some(digest::digest(&store, checkpoint, &state.model)?),
        false => None,
    };
    // Closed first: two stores at once would need two caches.
    store.close()?;
    let planted = match planted {
        None => None,
        Some(planted) => Some((frozen(args, &paths)?, planted.big_share())),
    };
    let summary = Summary {
        state: &state,
        figures: &figures,
        stats: &stats,
        skipped,
        digest,
        planted,
    };
    summary.print(args.json)
}

fn temporary_directory() -> Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix("hps-ctr-")
        .tempdir()
        .context("make a temporary directory")
}

fn descriptor(args: &Args) -> TableDescriptor {
    let (optimizer, accumulator) = args.rule();
    TableDescriptor::new("ctr", usize::from(args.dim) + 1)
        .optimizer(optimizer)
        .accumulator(accumulator)
        .initialiser(Initialiser::Uniform {
            low: -0.01,
            high: 0.01,
        })
        .seed(args.seed)
}

/// Makes the store, or opens it with `--resume`.
fn open(directory: &Path, args: &Args) -> Result<Store> {
    let what = || format!("make a store in {}", directory.display());
    if !args.resume {
        return match Store::create(directory, CreateOptions::new(), args.options()) {
            Err(Error::InvalidArgument(ArgumentError::AlreadyAStore { path })) => usage(format!(
                "{} already holds a store: continue it with --resume, or name an empty directory",
                path.display()
            )),
            other => other.with_context(what),
        };
    }
    // Begins a creation again that was cut short.
    match Store::open_or_create(directory, CreateOptions::new(), args.options(), &[]) {
        Err(Error::InvalidArgument(ArgumentError::NotAStore { path, why })) => usage(format!(
            "{} holds no store but something else: {why}",
            path.display()
        )),
        Err(error) => {
            let doing = format!("open the store in {}", directory.display());
            Err(explain(error, args, &doing))
        }
        Ok((store, _)) => Ok(store),
    }
}

/// The state of the last checkpoint with `--resume`, else the first state.
fn resume(store: &Store, fingerprint: &[(String, String)], args: &Args) -> Result<State> {
    let dim = usize::from(args.dim);
    match store.last_checkpoint() {
        Some(info) if args.resume => {
            let state = decode(&store.checkpoint_meta(info.id)?, fingerprint, dim)?;
            if state.batches != info.step {
                bail!(
                    "the checkpoint's step {} is not its batch {}",
                    info.step,
                    state.batches
                );
            }
            note(&format!(
                "resuming after batch {} ({} rows)",
                state.batches, state.scores.rows
            ));
            return Ok(state);
        }
        None if args.resume => {
            note("the store holds no checkpoint yet: starting from the beginning");
        }
        _ => {}
    }
    Ok(State::new(dim, args.seed))
}

/// Writes the planted data beside the rows; with `--dir` it stays for `--resume`.
fn write_planted(planted: Planted, directory: &Path, args: &Args) -> Result<PathBuf> {
    let path = directory.join(format!("planted-{}.tsv", args.seed));
    note(&format!(
        "planted data: {} rows in {}",
        planted::ROWS,
        path.display()
    ));
    planted.write(&path)?;
    Ok(path)
}

/// Trains the same dense model over embeddings that stay as initialised; its AUC on the last fifth.
fn frozen(args: &Args, paths: &[PathBuf]) -> Result<Option<f64>> {
    let directory = temporary_directory()?;
    let store = Store::create(
        &directory.path().join("store"),
        CreateOptions::new(),
        args.options(),
    )?;
    let table: TableId = store.create_table(&descriptor(args))?;
    let mut state = State::new(usize::from(args.dim), args.seed);
    let mut report = Report::new(
        "train with frozen embeddings",
        args.json,
        Some(planted::ROWS),
        &state,
        &store,
    )?;
    report.silence();
    let job = Job {
        args,
        store: &store,
        table,
        frozen: true,
        fingerprint: &[],
        passes: None,
    };
    let reader = Reader::new(paths.to_vec(), args.strict, None);
    train(&job, reader, &mut state, &mut report)?;
    report.finish(&state);
    store.close_discarding();
    Ok(state.scores.tail_auc())
}
