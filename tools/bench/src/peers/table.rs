//! How are the results of all cells read?
//!
//! - One table a workload, engines by row: medians over rounds with their spread, hps ÷ engine,
//!   the share of the ideal model with the probe of the same cell.
//! - What was not measured is a dash; a failure stands where the figures would.

use std::io::Write;

use anyhow::Result;
use serde_json::{Value, json};

use super::Kind;
use super::compare::CompareArgs;
use super::matrix::{Workload, number};
use crate::figures::Spread;

/// The result of one cell in one round.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The workload.
    pub workload: Workload,
    /// The engine.
    pub kind: Kind,
    /// The device's probe before the cell: random reads of 4 KiB a second.
    pub reads_per_s: f64,
    /// The device's probe of the round: bytes a second in order.
    pub write_bytes_per_s: f64,
    /// What the device alone would allow.
    pub limit_rows_per_s: Option<f64>,
    /// What the process answered.
    pub answer: Value,
    /// Why there is no answer.
    pub failure: Option<String>,
}

/// Everything that a run found.
#[derive(Debug)]
pub struct Report {
    args: CompareArgs,
    machine: Value,
    /// What holds the engines within their memory, or why nothing does.
    pub capped: std::result::Result<&'static str, String>,
    /// Bytes a second in order, a probe a round.
    pub write_probes: Vec<f64>,
    /// Seconds of loads in key order.
    pub bulk_loads: Vec<(Kind, f64)>,
    /// All cells.
    pub entries: Vec<Entry>,
}

/// Readings of the cells of one workload and engine.
struct Group<'a> {
    entries: Vec<&'a Entry>,
}

impl Group<'_> {
    fn numbers(&self, field: &str) -> Vec<f64> {
        let all = self.entries.iter().map(|e| number(&e.answer, field));
        all.filter(|x| x.is_finite()).collect()
    }

    fn spread(&self, field: &str) -> Option<Spread> {
        let numbers = self.numbers(field);
        (!numbers.is_empty()).then(|| Spread::of(&numbers))
    }

    fn median(&self, field: &str) -> Option<f64> {
        self.spread(field).map(|s| s.median)
    }

    fn of_limit(&self) -> Option<f64> {
        let ratio = |e: &&Entry| Some(number(&e.answer, "rows_per_s") / e.limit_rows_per_s?);
        let ratios: Vec<f64> = self.entries.iter().filter_map(ratio).collect();
        let ratios: Vec<f64> = ratios.into_iter().filter(|r| r.is_finite()).collect();
        (!ratios.is_empty()).then(|| Spread::of(&ratios).median)
    }

    fn limit(&self) -> Option<f64> {
        let limits: Vec<f64> = self
            .entries
            .iter()
            .filter_map(|e| e.limit_rows_per_s)
            .collect();
        (!limits.is_empty()).then(|| Spread::of(&limits).median)
    }

    fn probe(&self) -> f64 {
        let probes: Vec<f64> = self.entries.iter().map(|e| e.reads_per_s).collect();
        Spread::of(&probes).median
    }

    fn failure(&self) -> Option<&str> {
        self.entries.iter().find_map(|e| e.failure.as_deref())
    }
}

/// A number with so many digits, or a dash.
fn cell(value: Option<f64>, digits: usize) -> String {
    match value {
        Some(x) if x.is_finite() => format!("{x:.digits$}"),
        _ => "-".to_owned(),
    }
}

/// Thousands, with the spread behind it.
fn thousands(spread: Option<Spread>) -> String {
    spread.map_or("-".to_owned(), |s| {
        let [median, min, max] = [s.median, s.min, s.max].map(|x| x / 1e3);
        format!("{median:.1} ({min:.1} to {max:.1})")
    })
}

/// The headings of the table of a workload.
const HEADINGS: [&str; 10] = [
    "engine",
    "K records/s",
    "hps ÷ it",
    "of the model",
    "p50 ms",
    "p99 ms",
    "write amp",
    "peak MiB",
    "cores",
    "probe K/s",
];

impl Report {
    /// A report without cells.
    #[must_use]
    pub fn new(
        args: &CompareArgs,
        capped: std::result::Result<&'static str, String>,
        machine: Value,
    ) -> Report {
        Report {
            args: args.clone(),
            machine,
            capped,
            write_probes: Vec::new(),
            bulk_loads: Vec::new(),
            entries: Vec::new(),
        }
    }

    fn group(&self, workload: Workload, kind: Kind) -> Group<'_> {
        let mine = |e: &&Entry| e.workload == workload && e.kind == kind;
        Group {
            entries: self.entries.iter().filter(mine).collect(),
        }
    }

    /// Rows that were another key's, lacked a push, or lost one that a checkpoint had.
    #[must_use]
    pub fn wrong(&self) -> u64 {
        let fields = ["wrong", "stale", "lost"];
        let count = |e: &Entry| {
            fields
                .iter()
                .filter_map(|f| e.answer[f].as_u64())
                .sum::<u64>()
        };
        self.entries.iter().map(count).sum()
    }

    fn ratio(&self, workload: Workload, group: &Group) -> Option<f64> {
        let ours = self.group(workload, Kind::Hps).median("rows_per_s")?;
        Some(ours / group.median("rows_per_s")?)
    }

    /// Prints the tables and, when asked, the JSON.
    ///
    /// # Errors
    /// What the output says.
    pub fn print(&self, json: bool) -> Result<()> {
        let mut out = std::io::stdout().lock();
        self.preamble(&mut out)?;
        for workload in &self.args.workloads {
            self.table(&mut out, *workload)?;
        }
        self.notes(&mut out)?;
        if json {
            writeln!(out, "{}", Value::Array(self.objects()))?;
        }
        Ok(())
    }

    fn memory(&self) -> String {
        match &self.capped {
            Ok(name) => format!("{name}, page cache included"),
            Err(why) => format!("NOT CAPPED ({why}): ratios with page-cache engines mean nothing"),
        }
    }

    fn preamble(&self, out: &mut impl Write) -> Result<()> {
        let args = &self.args;
        let text = |field: &str| self.machine[field].as_str().unwrap_or("unknown").to_owned();
        writeln!(
            out,
            "machine: {}, {} cores, {} MiB, kernel {}{}",
            text("cpu"),
            self.machine["cores"],
            self.machine["memory_bytes"].as_u64().unwrap_or(0) >> 20,
            text("kernel"),
            if cfg!(debug_assertions) {
                "; DEBUG BUILD"
            } else {
                ""
            },
        )?;
        writeln!(
            out,
            "{} rows of 512 B in {} MiB (W4: {} rows in {} MiB); {} samples a batch; {} rounds of \
             {} s; told ahead to hps: {} batches",
            args.rows,
            args.memory_mib,
            args.memory_rows,
            args.memory_rows_mib,
            args.batch,
            args.rounds,
            args.seconds,
            args.depth,
        )?;
        writeln!(out, "memory: {}", self.memory())?;
        let writes = Spread::of(&self.write_probes);
        writeln!(
            out,
            "device: {:.2} GB/s written in order",
            writes.median / 1e9
        )?;
        Ok(())
    }

    fn line(&self, workload: Workload, kind: Kind) -> Option<Vec<String>> {
        let group = self.group(workload, kind);
        if group.entries.is_empty() {
            return None;
        }
        let peak = group.median("peak_bytes").map(|b| b / f64::from(1 << 20));
        let mut rate = thousands(group.spread("rows_per_s"));
        if let Some(failure) = group.failure() {
            rate = format!("{rate} FAILED: {failure}");
        }
        Some(vec![
            kind.name().to_owned(),
            rate,
            cell(self.ratio(workload, &group), 2),
            cell(group.of_limit(), 2),
            cell(group.median("step_p50_ms"), 1),
            cell(group.median("step_p99_ms"), 1),
            cell(group.median("write_amplification"), 2),
            cell(peak, 0),
            cell(group.median("cores"), 2),
            cell(Some(group.probe() / 1e3), 1),
        ])
    }

    fn table(&self, out: &mut impl Write, workload: Workload) -> Result<()> {
        let kinds = self.args.engines.iter();
        let lines: Vec<_> = kinds
            .filter_map(|kind| self.line(workload, *kind))
            .collect();
        writeln!(
            out,
            "\n### {}: {}\n",
            workload.name().to_uppercase(),
            workload.title()
        )?;
        writeln!(out, "| {} |", HEADINGS.join(" | "))?;
        writeln!(out, "|{}", " --- |".repeat(HEADINGS.len()))?;
        for line in lines {
            writeln!(out, "| {} |", line.join(" | "))?;
        }
        match workload {
            Workload::W1 => self.load_notes(out),
            Workload::W5 => self.reopen_notes(out),
            _ => self.told_notes(out, workload),
        }
    }

    /// What each engine said about itself in its last cell.
    fn told_notes(&self, out: &mut impl Write, workload: Workload) -> Result<()> {
        for kind in &self.args.engines {
            let group = self.group(workload, *kind);
            let told = group.entries.last().and_then(|e| e.answer["told"].as_str());
            if let Some(told) = told.filter(|told| !told.is_empty()) {
                writeln!(out, "{}: {told}", kind.name())?;
            }
        }
        Ok(())
    }

    fn load_notes(&self, out: &mut impl Write) -> Result<()> {
        for kind in &self.args.engines {
            let group = self.group(Workload::W1, *kind);
            let Some(rows) = group.median("rows") else {
                continue;
            };
            let share = 100.0 * rows / self.args.rows as f64;
            writeln!(
                out,
                "{}: {share:.0} % of the rows in at most {} s of loading, the checkpoint took {} s",
                kind.name(),
                self.args.load_seconds,
                cell(group.median("checkpoint_s"), 2),
            )?;
        }
        Ok(())
    }

    fn reopen_notes(&self, out: &mut impl Write) -> Result<()> {
        for kind in &self.args.engines {
            let group = self.group(Workload::W5, *kind);
            let Some(open) = group.median("open_s") else {
                continue;
            };
            writeln!(
                out,
                "{}: open {open:.3} s, first step {} ms at {} of the steady speed; sampled rows as \
                 checkpointed {}, newer {}, lost {}",
                kind.name(),
                cell(group.median("first_step_ms"), 1),
                cell(group.median("first_of_steady"), 2),
                cell(group.median("as_checkpointed"), 0),
                cell(group.median("newer"), 0),
                cell(group.median("lost"), 0),
            )?;
        }
        Ok(())
    }

    fn notes(&self, out: &mut impl Write) -> Result<()> {
        writeln!(
            out,
            "\nK records/s: median (least to most) by the time inside pull and push, the closing \
             checkpoint of W1 included. Of the model: W1 the device's sequential write, the others \
             the ideal store of the performance notes, with the probe before each cell. Write amp: \
             bytes charged to the process by the kernel (a page of a mapped or cached file when it \
             becomes dirty) ÷ row bytes pushed, the closing checkpoint left out. Peak: of the \
             cgroup, page cache included."
        )?;
        if !self.bulk_loads.is_empty() {
            let loads = self.bulk_loads.iter();
            let loads: Vec<_> = loads
                .map(|(k, s)| format!("{} {s:.1} s", k.name()))
                .collect();
            writeln!(
                out,
                "Loaded in key order for the workloads that read (RocksDB compacted to one run): \
                 {}",
                loads.join(", ")
            )?;
        }
        if self.wrong() > 0 {
            writeln!(out, "{} ROWS WERE WRONG, STALE OR LOST", self.wrong())?;
        }
        Ok(())
    }

    /// One object per workload and engine.
    #[must_use]
    pub fn objects(&self) -> Vec<Value> {
        let mut objects = Vec::new();
        for workload in &self.args.workloads {
            for kind in &self.args.engines {
                let group = self.group(*workload, *kind);
                if group.entries.is_empty() {
                    continue;
                }
                objects.push(json!({
                    "workload": workload.name(),
                    "engine": kind.name(),
                    "rows_per_s": group.median("rows_per_s"),
                    "limit": match workload {
                        Workload::W1 => "sequential write",
                        Workload::W4 => "none",
                        _ => "ideal model",
                    },
                    "limit_rows_per_s": group.limit(),
                    "ratio": group.of_limit(),
                    "hps_by_engine": self.ratio(*workload, &group),
                    "probe_reads_per_s": group.probe(),
                    "memory": self.memory(),
                    "failure": group.failure(),
                    "rounds": group.entries.iter().map(|e| &e.answer).collect::<Vec<_>>(),
                }));
            }
        }
        objects
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn entry(kind: Kind, rate: f64) -> Entry {
        Entry {
            workload: Workload::W2a,
            kind,
            reads_per_s: 75_000.0,
            write_bytes_per_s: 1e9,
            limit_rows_per_s: Some(400_000.0),
            answer: json!({"rows_per_s": rate, "wrong": 0, "stale": 0}),
            failure: None,
        }
    }

    fn report(entries: Vec<Entry>) -> Report {
        let args = CompareArgs::parse_from(["compare", "--workloads", "w2a"]);
        let mut report = Report::new(&args, Err("no root".to_owned()), json!({}));
        report.entries = entries;
        report
    }

    #[test]
    fn ratios_are_of_medians_over_rounds() {
        let rates = [
            (Kind::Hps, [300e3, 100e3, 200e3]),
            (Kind::Lmdb, [10e3, 20e3, 90e3]),
        ];
        let all = rates
            .iter()
            .flat_map(|(k, r)| r.map(|rate| entry(*k, rate)));
        let objects = report(all.collect()).objects();
        assert_eq!(objects.len(), 2);
        assert_eq!(
            (&objects[0]["engine"], &objects[0]["ratio"]),
            (&json!("hps"), &json!(0.5))
        );
        assert_eq!(
            (&objects[1]["engine"], &objects[1]["hps_by_engine"]),
            (&json!("lmdb"), &json!(10.0))
        );
        assert_eq!(objects[0]["rounds"].as_array().map(Vec::len), Some(3));
    }

    #[test]
    fn a_failure_and_a_missing_cap_are_in_the_table() {
        let mut failed = entry(Kind::Rocksdb, f64::NAN);
        failed.answer = json!({});
        failed.failure = Some("killed".to_owned());
        let report = report(vec![entry(Kind::Hps, 1e3), failed]);
        let mut text = Vec::new();
        report.preamble(&mut text).unwrap();
        report.table(&mut text, Workload::W2a).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("NOT CAPPED (no root)"), "{text}");
        assert!(
            text.contains("| rocksdb | - FAILED: killed | - | - |"),
            "{text}"
        );
        assert!(
            text.contains("| hps | 1.0 (1.0 to 1.0) | 1.00 | 0.00 |"),
            "{text}"
        );
    }

    #[test]
    fn rows_that_were_wrong_stale_or_lost_are_counted() {
        let mut bad = entry(Kind::Mmap, 1.0);
        bad.answer = json!({"wrong": 1, "stale": 2, "lost": 4, "newer": 8});
        assert_eq!(report(vec![entry(Kind::Hps, 1.0), bad]).wrong(), 7);
    }
}
