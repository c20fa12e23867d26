//! `hps-bench`: measures an hps store beside the limits of the machine, and beside other stores.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use hps_tools::bench::args::{Args, Usage};

fn main() -> ExitCode {
    let comparison = std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == "compare");
    let done = if comparison {
        compare()
    } else {
        Args::try_parse().map(|a| hps_tools::bench::run(&a))
    };
    match done {
        Err(error) => {
            let fault = error.use_stderr();
            let _closed = error.print();
            ExitCode::from(if fault { 16 } else { 0 })
        }
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            let _closed = writeln!(std::io::stderr().lock(), "hps-bench: {error:#}");
            let usage = error.downcast_ref::<Usage>().is_some();
            ExitCode::from(if usage { 16 } else { 8 })
        }
    }
}

/// `hps-bench compare`: other stores in the same run.
#[cfg(feature = "peers")]
fn compare() -> Result<anyhow::Result<()>, clap::Error> {
    use hps_tools::peers::compare::{CompareArgs, run};
    CompareArgs::try_parse_from(std::env::args_os().skip(1)).map(|args| run(&args))
}

#[cfg(not(feature = "peers"))]
fn compare() -> Result<anyhow::Result<()>, clap::Error> {
    let why = "compare needs the other stores, which are not in this build: tools/peers.sh builds \
               it (cargo build --release -p hps-tools --features peers)";
    Ok(Err(Usage(why.to_owned()).into()))
}
