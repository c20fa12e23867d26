//! `hps-keyset`: which keys does a pass over a data set need?
//!
//! - What is written is sorted and unique, and has its name once it is whole.
//! - Memory is bounded by `--memory`, whatever the data.
//! - Nothing is guessed: how wide keys are, what a file is. What contradicts the flags is an error that
//!   names the file and the byte.

mod args;
mod collector;
mod crew;
mod estimate;
mod extract;
mod fixed;
mod layout;
mod merge;
mod missing;
mod norm;
mod npy;
mod output;
#[cfg(feature = "parquet")]
mod parquet;
mod plan;
mod radix;
mod run;
mod scheme;
mod seen;
mod sets;
mod sorting;
mod source;
mod split;
mod stat;
mod stream;
mod text;
mod tsv;
mod values;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;

pub use args::{Args, Verb};
pub use layout::{Format, KeyType};
#[cfg(feature = "parquet")]
pub use values::parquet_values;
pub use values::{Record, values};

use args::SetArgs;
use crew::Crew;

use crate::cli::{Common, Exit, Interrupt, Meter, show};

const TOOL: &str = "hps-keyset";

/// Runs the tool.
///
/// # Errors
/// What kept it from its work: the exit code is that of [`crate::cli::exit_of`].
pub fn run(args: &Args) -> Result<Exit> {
    let common = &args.common;
    match &args.verb {
        Verb::Extract(args) => {
            let inputs = args.data.inputs(&args.inputs)?;
            let made = with_crew(common, inputs.bytes, |crew| {
                extract::extract(args, &inputs, crew)
            })?;
            let json = args.json.then(|| text::extracted_json(&made));
            show(common, json, |out| text::extracted(out, &made))?;
            Ok(Exit::Clean)
        }
        Verb::Split(args) => {
            let inputs = args.data.inputs(&args.inputs)?;
            let made = with_crew(common, inputs.bytes, |crew| {
                split::split(args, &inputs, crew)
            })?;
            let json = args.json.then(|| text::passes_json(&made));
            show(common, json, |out| text::passes(out, &made))?;
            Ok(Exit::Clean)
        }
        Verb::Stat(args) => {
            let passes = if args.estimate { 1 } else { 3 };
            let bytes = bytes_of(&args.files, passes);
            let stats = with_crew(common, bytes, |crew| stat::stat(args, crew))?;
            let json = args.json.then(|| text::stats_json(args, &stats));
            show(common, json, |out| text::stats(out, args, &stats))?;
            Ok(Exit::Clean)
        }
        Verb::Merge(args) => combine(common, args, "merge"),
        Verb::Intersect(args) => combine(common, args, "intersect"),
        Verb::Diff(args) => {
            let bytes = bytes_of([&args.first, &args.second], 2);
            let found = with_crew(common, bytes, |crew| sets::diff(args, crew))?;
            let json = args.json.then(|| text::difference_json(&found));
            show(common, json, |out| text::difference(out, args, &found))?;
            Ok(changed_if(found.only_first + found.only_second > 0))
        }
        Verb::Verify(args) => {
            let bytes = bytes_of(&args.files, 1);
            let found = with_crew(common, bytes, |crew| stat::verify(args, crew))?;
            let json = args.json.then(|| text::verified_json(&found));
            show(common, json, |out| text::verified(out, &found))?;
            Ok(match found.findings.is_empty() {
                true => Exit::Clean,
                false => Exit::Findings,
            })
        }
        Verb::Missing(args) => {
            let bytes = bytes_of([&args.file], 2);
            let found = with_crew(common, bytes, |crew| missing::missing(args, crew))?;
            let json = args.json.then(|| text::missing_json(&found));
            show(common, json, |out| text::missing(out, &found))?;
            Ok(changed_if(found.missing > 0))
        }
    }
}

fn combine(common: &Common, args: &SetArgs, verb: &str) -> Result<Exit> {
    let bytes = bytes_of(&args.files, 2);
    let made = with_crew(common, bytes, |crew| {
        sets::combine(args, verb == "intersect", crew)
    })?;
    let json = args.json.then(|| text::made_json(verb, &made));
    show(common, json, |out| text::made(out, &made))?;
    Ok(Exit::Clean)
}

fn changed_if(differs: bool) -> Exit {
    match differs {
        true => Exit::Changed,
        false => Exit::Clean,
    }
}

/// Bytes that so many passes over files read; what can't be looked at is told when it is opened.
fn bytes_of<'a>(files: impl IntoIterator<Item = &'a PathBuf>, passes: u64) -> u64 {
    let sizes = files.into_iter().filter_map(|file| file.metadata().ok());
    sizes.map(|file| file.len()).sum::<u64>() * passes
}

/// Works with progress, and an ear for Ctrl-C.
fn with_crew<T>(
    common: &Common,
    bytes: u64,
    work: impl FnOnce(&mut Crew<'_>) -> Result<T>,
) -> Result<T> {
    let interrupt = Interrupt::listen()?;
    let mut meter = Meter::new(TOOL, common.show())?;
    let mut crew = Crew {
        meter: &mut meter,
        interrupt: &interrupt,
        done: Arc::default(),
        all: bytes,
    };
    let made = work(&mut crew);
    crew.show();
    meter.end();
    made
}
