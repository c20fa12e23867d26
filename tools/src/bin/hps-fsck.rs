//! `hps-fsck`: checks a store on disk, without changing it.

use std::process::ExitCode;

use clap::Parser;
use hps_tools::cli;
use hps_tools::fsck::{Args, run};

fn main() -> ExitCode {
    cli::end("hps-fsck", Args::try_parse().map(|args| run(&args)))
}
