//! `hps-compact`: makes a store smaller that no trainer has open.

use std::process::ExitCode;

use hps_tools::cli;
use hps_tools::compact::{Args, run};

fn main() -> ExitCode {
    cli::end("hps-compact", cli::parse::<Args>().map(|args| run(&args)))
}
