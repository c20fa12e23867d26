//! `hps-import`: reads a table from the files of another system.

use std::process::ExitCode;

use hps_tools::cli;
use hps_tools::import::{Args, run};

fn main() -> ExitCode {
    cli::end("hps-import", cli::parse::<Args>().map(|args| run(&args)))
}
