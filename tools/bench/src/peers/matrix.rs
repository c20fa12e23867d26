//! Which cells does the comparison have, and what does a process need to know to run one?
//!
//! - A workload is a row of the tables in `performance.md`, section 0; a phase is what one process
//!   does for it.

use std::path::PathBuf;

use clap::ValueEnum;
use serde_json::Value;

use super::{Kind, Place};
use crate::keys::Distribution;

/// The workloads by name.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Load in random key order with a closing checkpoint.
    W1,
    /// Pull only, uniform.
    W3,
    /// Train, zipf 0.99.
    W2a,
    /// Train, zipf 1.2.
    W2b,
    /// Train, zipf 0.99, everything in memory.
    W4,
    /// Open after kill -9.
    W5,
}

impl Workload {
    /// The name on the command line and in the report.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Workload::W1 => "w1",
            Workload::W2a => "w2a",
            Workload::W2b => "w2b",
            Workload::W3 => "w3",
            Workload::W4 => "w4",
            Workload::W5 => "w5",
        }
    }

    /// What it does, for the report.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Workload::W1 => "load in random key order, closing checkpoint included",
            Workload::W2a => "train, zipf 0.99",
            Workload::W2b => "train, zipf 1.2",
            Workload::W3 => "pull only, uniform",
            Workload::W4 => "train, zipf 0.99, all in memory",
            Workload::W5 => "open after kill -9, then train, zipf 0.99",
        }
    }

    /// Exponent of the draw; 0 is uniform.
    #[must_use]
    pub fn theta(self) -> f64 {
        match self {
            Workload::W1 | Workload::W3 => 0.0,
            Workload::W2b => 1.2,
            Workload::W2a | Workload::W4 | Workload::W5 => 0.99,
        }
    }

    /// Whether it works on the store that earlier cells left.
    #[must_use]
    pub fn uses_base(self) -> bool {
        !matches!(self, Workload::W1 | Workload::W4)
    }

    /// Whether an engine takes part.
    #[must_use]
    pub fn suits(self, kind: Kind) -> bool {
        kind.persists() || self == Workload::W4
    }
}

/// What one process does.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Loads all rows in key order, for the workloads that read.
    Bulk,
    /// Loads in random order for a bounded time.
    Load,
    /// Pulls, and nothing else.
    Pull,
    /// Pulls and pushes.
    Train,
    /// Loads, then pulls and pushes, in a store of its own.
    Memory,
    /// Trains, makes a checkpoint, trains on and waits to be killed.
    Doomed,
    /// Opens what a kill left, and trains.
    Reopen,
}

impl Phase {
    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Phase::Bulk => "bulk",
            Phase::Load => "load",
            Phase::Pull => "pull",
            Phase::Train => "train",
            Phase::Memory => "memory",
            Phase::Doomed => "doomed",
            Phase::Reopen => "reopen",
        }
    }
}

/// One process of one cell.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The engine.
    pub kind: Kind,
    /// What to do.
    pub phase: Phase,
    /// Where, how much, in how much memory.
    pub place: Place,
    /// The counts of pushes that go with the store.
    pub counts: PathBuf,
    /// Exponent of the draw; 0 is uniform.
    pub theta: f64,
    /// Samples of a batch, before they are made unique.
    pub samples: usize,
    /// Seconds measured, and before them.
    pub seconds: f64,
    /// Seconds of the same work before what is measured.
    pub warm_seconds: f64,
    /// Seconds of loading at most (phase `Load`).
    pub load_seconds: f64,
    /// Keys of a batch of a load (phases `Bulk` and `Load`).
    pub load_keys: usize,
    /// Which key has which rank.
    pub seed: u64,
    /// In which order they are drawn.
    pub stream: u64,
    /// Batches that the engine is told ahead.
    pub depth: usize,
}

impl Cell {
    /// The distribution of the draw.
    #[must_use]
    pub fn distribution(&self) -> Distribution {
        Distribution::from_theta(self.theta)
    }
}

/// A number of a process's answer; NaN where it is not there.
#[must_use]
pub fn number(answer: &Value, field: &str) -> f64 {
    answer[field].as_f64().unwrap_or(f64::NAN)
}
