//! `hps-bench`: measures an hps store beside the limits of the machine, and beside other stores.

use std::process::ExitCode;

use hps_bench::args::Args;
use hps_bench::hbm::args::HbmArgs;
use hps_tools::cli::{self, Exit};

fn main() -> ExitCode {
    let first = std::env::args_os().nth(1).unwrap_or_default();
    let done = if first == "compare" {
        compare()
    } else if first.to_string_lossy().starts_with("hbm-") {
        cli::parse::<HbmArgs>().map(|args| hps_bench::hbm::run(&args))
    } else {
        cli::parse::<Args>().map(|args| hps_bench::run(&args))
    };
    cli::end("hps-bench", done)
}

/// `hps-bench compare`: other stores in the same run.
#[cfg(feature = "peers")]
fn compare() -> Result<anyhow::Result<Exit>, clap::Error> {
    use clap::Parser;
    use hps_bench::peers::compare::{CompareArgs, run};
    CompareArgs::try_parse_from(std::env::args_os().skip(1))
        .map(|args| run(&args).map(|()| Exit::Clean))
}

#[cfg(not(feature = "peers"))]
fn compare() -> Result<anyhow::Result<Exit>, clap::Error> {
    let why = "compare needs the other stores, which are not in this build: tools/peers.sh builds \
               it (cargo build --release -p hps-bench --features peers)";
    Ok(Err(cli::Usage(why.to_owned()).into()))
}
