//! Which runs are made for a workload, and which figures are taken from them?
//!
//! - Work in memory is judged by its rate; it keeps the processor busy, so that time is its cost.
//! - Work on the device is judged by what a row costs: processor time, device operations, bytes
//!   written. Its rate depends on the device's mood and is told beside.
//! - One run may serve several workloads: those in memory share a store.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde_json::Value;

use super::PairedArgs;
use super::child::{Run, Watch};
use super::interval::Better;

/// What can be compared.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workload {
    /// Pulls of resident rows.
    PullHit,
    /// Pushes to resident rows.
    PushHit,
    /// Pull, change and push, every row in memory.
    TrainMemory,
    /// Pulls of cold rows.
    PullMiss,
    /// Training out of memory, zipf 0.99.
    W2a,
    /// Training out of memory, zipf 1.2.
    W2b,
    /// A checkpoint of all rows, trainer idle.
    Checkpoint,
    /// Every row once, with a closing checkpoint.
    Load,
}

impl Workload {
    /// Its name on the command line of every build.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Workload::PullHit => "pull-hit",
            Workload::PushHit => "push-hit",
            Workload::TrainMemory => "train-memory",
            Workload::PullMiss => "pull-miss",
            Workload::W2a => "w2a",
            Workload::W2b => "w2b",
            Workload::Checkpoint => "checkpoint",
            Workload::Load => "load",
        }
    }

    /// Its name in a report.
    fn reported(self) -> &'static str {
        match self {
            Workload::W2a | Workload::W2b => "train",
            other => other.name(),
        }
    }

    /// Whether it leaves the device alone.
    #[must_use]
    pub fn is_in_memory(self) -> bool {
        self <= Workload::TrainMemory
    }
}

/// One run of a build.
#[derive(Clone, Debug)]
pub struct Job {
    /// What it measures.
    pub workloads: Vec<Workload>,
    /// What of it is watched from outside.
    pub watch: Watch,
}

impl Job {
    /// The runs of a pair and build: those in memory together, the others alone.
    #[must_use]
    pub fn all(workloads: &[Workload]) -> Vec<Job> {
        let mut jobs: Vec<Job> = Vec::new();
        let (memory, device): (Vec<Workload>, Vec<Workload>) =
            workloads.iter().partition(|w| w.is_in_memory());
        if !memory.is_empty() {
            jobs.push(Job {
                workloads: memory,
                watch: Watch::Report,
            });
        }
        for workload in device {
            jobs.push(Job {
                workloads: vec![workload],
                watch: match workload {
                    Workload::Checkpoint => Watch::Checkpoint,
                    Workload::Load => Watch::Load,
                    _ => Watch::Report,
                },
            });
        }
        jobs
    }

    /// For messages: `pull-hit push-hit`.
    #[must_use]
    pub fn title(&self) -> String {
        let names: Vec<&str> = self.workloads.iter().map(|w| w.name()).collect();
        names.join(" ")
    }

    /// Where a build does it, below the directory of the comparison.
    #[must_use]
    pub fn place(&self, role: &str) -> PathBuf {
        // Training begins with the same loaded store in each pair.
        let what = match self.watch {
            Watch::Report => "rows",
            Watch::Checkpoint => "checkpoint",
            Watch::Load => "load",
        };
        PathBuf::from(format!("{}-{what}", role.to_lowercase()))
    }

    /// Whether what the run leaves is of no use to the next pair.
    #[must_use]
    pub fn leaves_nothing(&self) -> bool {
        self.watch != Watch::Report
    }

    /// The words that every build knows.
    #[must_use]
    pub fn words(&self, args: &PairedArgs) -> Vec<String> {
        let mut words: Vec<String> = self.workloads.iter().map(|w| w.name().to_owned()).collect();
        let mut add = |flag: &str, value: String| words.extend([flag.to_owned(), value]);
        add("--rows", args.rows().to_string());
        add("--rounds", args.rounds().to_string());
        add("--seconds", args.seconds().to_string());
        add("--warmup-seconds", args.warmup_seconds().to_string());
        add("--threads", args.threads_each().to_string());
        add("--seed", args.seed.to_string());
        if !args.tiny {
            add("--batch", "32768".to_owned());
            add("--memory-mib", args.memory_mib().to_string());
        }
        words.push("--json".to_owned());
        words.push("--keep".to_owned());
        // What is watched has no use for long probes of the device; sizes are given above.
        if args.tiny || self.watch != Watch::Report {
            words.push("--tiny".to_owned());
        }
        words
    }

    /// The figures of one run.
    ///
    /// # Errors
    /// A workload or figure is not in the report.
    pub fn figures(&self, run: &Run, rows: u64) -> Result<Vec<Figure>> {
        let mut figures = Vec::new();
        for workload in &self.workloads {
            let named = |o: &&Value| o["workload"] == workload.reported();
            let object = run.report.iter().find(named);
            let object = object.with_context(|| format!("no {} in the report", workload.name()))?;
            let get = |name: &str| -> Result<f64> {
                let found = object.pointer(name).and_then(Value::as_f64);
                found.with_context(|| format!("no figure {name} of {}", workload.name()))
            };
            let rate = get("/rows_per_s")?;
            let mut add = |name, value, better, is_judged| {
                figures.push(Figure {
                    workload: *workload,
                    name,
                    value,
                    better,
                    is_judged,
                });
            };
            match self.watch {
                Watch::Report if workload.is_in_memory() => {}
                Watch::Report => {
                    let processor = get("/cores_used")? / rate * 1e9;
                    let reads = get("/device_reads_used_per_s")? / rate;
                    let written = get("/write_amplification/median")?;
                    add("processor_ns_per_row", processor, Better::Lower, true);
                    add("device_reads_per_row", reads, Better::Lower, true);
                    add("written_per_pushed_byte", written, Better::Lower, true);
                }
                Watch::Load | Watch::Checkpoint => {
                    let rows = rows as f64;
                    let processor = run.costs.processor_seconds / rows * 1e9;
                    let bytes = run.costs.written_bytes / rows;
                    add("processor_ns_per_row", processor, Better::Lower, true);
                    if let Some(operations) = run.costs.device_operations {
                        let each = operations / rows;
                        add("device_operations_per_row", each, Better::Lower, true);
                    }
                    add("written_bytes_per_row", bytes, Better::Lower, true);
                }
            }
            add("rows_per_s", rate, Better::Higher, workload.is_in_memory());
        }
        Ok(figures)
    }
}

/// One figure of one run.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Of this workload.
    pub workload: Workload,
    /// Its name.
    pub name: &'static str,
    /// What was read.
    pub value: f64,
    /// Which way is better.
    pub better: Better,
    /// Whether it counts for the verdict.
    pub is_judged: bool,
}
