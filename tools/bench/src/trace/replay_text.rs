//! How is a replay told?

use std::io::{IsTerminal, Write};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::Accesses;
use super::replay_args::{Competitor, ReplayArgs};

/// What a policy has as much of as ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Equal {
    Slots,
    Bytes,
}

/// What one policy did.
pub(super) struct Outcome {
    pub competitor: Competitor,
    pub equal: Equal,
    /// Rows that it holds, where they all have one size.
    pub rows: Option<usize>,
    /// Bytes that it pays beside a row.
    pub beside: u64,
    /// Misses of the whole trace and of its later batches.
    pub misses: [u64; 2],
}

/// What all did.
pub(super) struct Report {
    /// Uses of the whole trace and of its later batches.
    pub uses: [u64; 2],
    /// Batches that the later ones leave out.
    pub skip: usize,
    /// Ours: its slots where all rows have one size, its bytes beside a row, all its bytes, its misses,
    /// the rows it wrote.
    pub slots: Option<usize>,
    pub beside: u64,
    pub bytes: u64,
    pub ours: [u64; 2],
    pub written: u64,
    pub outcomes: Vec<Outcome>,
}

pub(super) fn progress() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{msg:15} batch {pos}/{len} {eta}") {
        bar.set_style(style);
    }
    bar
}

const COUNTED: &str = "\
ours / it: misses of ours for each miss of the policy; above 1 it misses less than ours. Ours is the
engine's own cache: its bytes are what it allocates for state, table, lists and frequencies; it alone
keeps the rows of leases pinned and flushes in steps. At equal bytes LRU and S3-FIFO pay 22 bytes a
row to find it and 8 or 9 of their own. Belady, static and LFU are ideals that pay --beside: the
counts of LFU cost nothing, Belady and static know the trace. All start empty.";

/// The share of the uses that missed, as percent.
fn percent(misses: u64, uses: u64) -> f64 {
    100.0 * misses as f64 / uses.max(1) as f64
}

impl Report {
    fn line(&self, name: &str, rows: Option<usize>, beside: u64, misses: [u64; 2]) -> String {
        let rows = rows.map_or(String::from("-"), |rows| rows.to_string());
        let mut line = format!("{name:<15} {rows:>10} {beside:>5}");
        for (i, missed) in misses.iter().enumerate() {
            let ratio = self.ours[i] as f64 / (*missed).max(1) as f64;
            let share = percent(*missed, self.uses[i]);
            line.push_str(&format!(" | {missed:>11} {share:>7.3} % {ratio:>10.4}"));
        }
        line
    }

    fn object(&self, o: &Outcome) -> Value {
        let ratio = |i: usize| self.ours[i] as f64 / o.misses[i].max(1) as f64;
        json!({
            "policy": o.competitor.id(),
            "equal": match o.equal { Equal::Slots => "slots", Equal::Bytes => "bytes" },
            "rows": o.rows, "beside_bytes": o.beside,
            "misses": o.misses[0], "misses_late": o.misses[1],
            "ours_to_it": ratio(0), "ours_to_it_late": ratio(1),
        })
    }
}

/// Prints the tables, and with `--json` an array.
pub(super) fn print(args: &ReplayArgs, accesses: &Accesses, report: &Report) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let load = accesses.load_batches();
    let slots = report
        .slots
        .map_or(String::new(), |n| format!("{n} slots, "));
    writeln!(
        out,
        "{}: {} batches behind {load} of load, {} uses of {} rows\n\
         ours: {}{} bytes beside a row, {:.1} MiB in all; flushed {:.4} rows for each use\n",
        args.title(),
        accesses.batches() - load,
        report.uses[0],
        accesses.distinct(),
        slots,
        report.beside,
        report.bytes as f64 / f64::from(1 << 20),
        report.written as f64 / accesses.total() as f64,
    )?;
    for equal in [Equal::Slots, Equal::Bytes] {
        let outcomes = report.outcomes.iter().filter(|o| o.equal == equal);
        let mut outcomes = outcomes.peekable();
        if outcomes.peek().is_none() {
            continue;
        }
        let late = format!("behind batch {}", report.skip);
        writeln!(
            out,
            "{:<15} {:>10} {:>5} | {:<32} | {late}",
            match equal {
                Equal::Slots => "equal slots",
                Equal::Bytes => "equal bytes",
            },
            "rows",
            "+ B",
            "all batches"
        )?;
        let heads = format!("{:>11} {:>9} {:>10}", "misses", "share", "ours / it");
        writeln!(out, "{:<15} {:>10} {:>5} | {heads} | {heads}", "", "", "")?;
        writeln!(
            out,
            "{}",
            report.line("ours", report.slots, report.beside, report.ours)
        )?;
        for o in outcomes {
            let line = report.line(o.competitor.name(), o.rows, o.beside, o.misses);
            writeln!(out, "{line}")?;
        }
        writeln!(out)?;
    }
    writeln!(out, "{COUNTED}")?;
    if args.json {
        let ours = json!({
            "policy": "ours", "rows": report.slots, "beside_bytes": report.beside,
            "bytes": report.bytes, "uses": report.uses[0], "uses_late": report.uses[1],
            "misses": report.ours[0], "misses_late": report.ours[1], "written": report.written,
        });
        let others = report.outcomes.iter().map(|o| report.object(o));
        let all: Vec<Value> = std::iter::once(ours).chain(others).collect();
        writeln!(out, "{}", json!(all))?;
    }
    Ok(())
}
