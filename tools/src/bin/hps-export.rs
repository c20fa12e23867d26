//! `hps-export`: writes a table of a checkpoint into the files of another system.

use std::process::ExitCode;

use hps_tools::cli;
use hps_tools::export::{Args, run};

fn main() -> ExitCode {
    cli::end("hps-export", cli::parse::<Args>().map(|args| run(&args)))
}
