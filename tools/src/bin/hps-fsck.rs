//! `hps-fsck`: checks a store on disk, without changing it.

use std::process::ExitCode;

use hps_tools::cli;
use hps_tools::fsck::{Args, run};

fn main() -> ExitCode {
    cli::end("hps-fsck", cli::parse::<Args>().map(|args| run(&args)))
}
