//! How fast is a store, beside the limits of the machine and beside other stores?
//!
//! - `workloads`: what is measured. Each measures its limit in the same round and reports both; see `report`.
//! - `keys`, `pipeline` and `limits` know no workload: others measure with them, too.
//! - `paired`: is a new build slower than an old one?
//! - `trace`: recorded or drawn keys, replayed through cache policies.
//! - `memory_table`: what is each byte of an open store for?
//! - `hot_table`: does the cache follow the table that is hot?
//! - `etc`: rows of whole passes, as HugeCTR measures its Embedding Training Cache.
//! - `hbm`: rows in device memory, beside the limits of that memory.
//! - `peers` (feature): other stores under the same workloads.

pub mod args;
pub mod context;
pub mod etc;
pub mod figures;
pub mod fixture;
pub mod hbm;
pub mod hot_table;
pub mod keys;
pub mod limits;
pub mod machine;
pub mod memory_table;
pub mod model;
pub mod paired;
#[cfg(feature = "peers")]
pub mod peers;
pub mod pipeline;
pub mod plot;
pub mod report;
pub mod trace;
pub mod workloads;

use std::fs;

use anyhow::{Context as _, Result};
use hps_tools::cli::Exit;

use args::{Args, Job, Name};
use context::Context;

/// Runs what the flags ask for and prints the report.
///
/// # Errors
/// A [`args::Usage`] error for a fault of the user's; else what the store or the system says.
pub fn run(args: &Args) -> Result<Exit> {
    match (&args.command, &args.child) {
        (Some(args::Command::Replay(replay)), _) => trace::replay(replay)?,
        (Some(args::Command::Etc(etc)), _) => etc::run(etc)?,
        (Some(args::Command::HotTable(hot)), _) => hot_table::run::run(hot)?,
        (Some(args::Command::Memory(memory)), _) => memory_table::run(memory)?,
        (Some(args::Command::Paired(paired)), _) => return paired::run(paired),
        (None, Some(store)) => workloads::reopen::child(args, store)?,
        (None, None) => measure(args)?,
    }
    Ok(Exit::Clean)
}

/// Measures the workloads that are asked for.
fn measure(args: &Args) -> Result<()> {
    let mut context = Context::new(args)?;
    let jobs = args.jobs();
    let memory: Vec<Job> = jobs.iter().copied().filter(|j| is_memory(j.name)).collect();
    let mut memory_done = false;
    for job in &jobs {
        match job.name {
            name if is_memory(name) => {
                if !std::mem::replace(&mut memory_done, true) {
                    workloads::memory::run(&mut context, &memory)?;
                }
            }
            Name::Load => workloads::load::run(&mut context)?,
            Name::LoadPush => workloads::load::run_push(&mut context)?,
            Name::PullMiss => workloads::disk::pull_miss(&mut context)?,
            Name::Tables => workloads::tables::run(&mut context)?,
            Name::Train => workloads::disk::train(&mut context, job.zipf)?,
            Name::Checkpoint => workloads::checkpoint::run(&mut context)?,
            Name::Reopen => workloads::reopen::run(&mut context)?,
            Name::WarmRestart => workloads::warm_restart::run(&mut context)?,
            Name::Compaction => workloads::compaction::run(&mut context, job.zipf)?,
            Name::Index => workloads::index::run(&mut context)?,
            Name::Growth => workloads::growth::run(&mut context)?,
            other => anyhow::bail!("{other:?} is no single workload"),
        }
    }
    context.notes.done();
    let title = title(&context);
    if let (Some(path), Some(samples)) = (&args.plot, &context.samples) {
        let text = plot::svg(&title, samples);
        fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    let machine = machine::describe(context.fixture.root());
    report::print(&title, &machine, &context.outcomes, args.json)
}

fn is_memory(name: Name) -> bool {
    matches!(
        name,
        Name::PullHit | Name::PushHit | Name::TrainMemory | Name::FirstTouch
    )
}

fn title(context: &Context) -> String {
    let s = &context.settings;
    format!(
        "hps-bench: {} rows, dim {}, {:?} ({} B a row), batch {}, {} threads, {} rounds of {} s",
        s.rows,
        s.dim,
        s.descriptor.optimizer,
        s.row_bytes(),
        s.batch,
        s.threads,
        s.rounds,
        s.seconds
    )
}
