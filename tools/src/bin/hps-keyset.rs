//! `hps-keyset`: makes and compares the keysets of passes over a data set.

use std::process::ExitCode;

use hps_tools::cli;
use hps_tools::keyset::{Args, run};

fn main() -> ExitCode {
    cli::end("hps-keyset", cli::parse::<Args>().map(|args| run(&args)))
}
