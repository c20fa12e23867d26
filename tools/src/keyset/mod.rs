//! `hps-keyset`: which keys does a pass over a data set need?
//!
//! - What is written is sorted and unique, and has its name once it is whole.
//! - Memory is bounded by `--memory`, whatever the data.
//! - Nothing is guessed: how wide keys are, what a file is. What contradicts the flags is an error that
//!   names the file and the byte.

mod args;
mod collector;
mod crew;
mod extract;
mod fixed;
mod layout;
mod merge;
mod norm;
mod npy;
mod output;
mod plan;
mod radix;
mod run;
mod scheme;
mod sorting;
mod source;
mod text;
mod tsv;

use std::io::{self, Write};

use anyhow::Result;
use serde_json::Value;

pub use args::{Args, Verb};

use crate::cli::{self, Common, Exit};

const TOOL: &str = "hps-keyset";

/// Runs the tool.
///
/// # Errors
/// What kept it from its work: the exit code is that of [`crate::cli::exit_of`].
pub fn run(args: &Args) -> Result<Exit> {
    let common = &args.common;
    match &args.verb {
        Verb::Extract(args) => {
            let made = extract::extract(common, args)?;
            let json = args.json.then(|| text::extracted_json(&made));
            show(common, json, |out| text::extracted(out, &made))?;
            Ok(Exit::Clean)
        }
    }
}

/// Prints what was found: one object, or text, or nothing.
fn show(
    common: &Common,
    json: Option<Value>,
    text: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    let print = || match json {
        Some(object) => {
            let mut out = io::stdout().lock();
            writeln!(out, "{object}")?;
            out.flush()
        }
        None if common.quiet => Ok(()),
        None => {
            let mut out = common.color.stdout();
            text(&mut out)?;
            out.flush()
        }
    };
    cli::reader_may_leave(print())
}
