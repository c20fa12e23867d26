//! What came of the pairs, for people and for scripts?

use std::io::{self, Write};

use anyhow::{Context, Result, ensure};
use hps_tools::cli::Exit;
use serde_json::{Value, json};

use super::PairedArgs;
use super::child::Build;
use super::interval::{Better, CONFIDENCE, COST_MAX, Interval, RATE_MIN, Verdict};
use super::work::Figure;
use crate::figures::{Spread, short};

/// One figure over all pairs.
#[derive(Clone, Debug)]
struct Series {
    first: Figure,
    pairs: Vec<(f64, f64)>,
}

impl Series {
    fn interval(&self) -> Option<Interval> {
        Interval::of(&self.pairs)
    }

    /// None for what is only told.
    fn verdict(&self) -> Option<Verdict> {
        let verdict = |interval: Interval| interval.verdict(self.first.better);
        let found = self.interval().map_or(Verdict::Undecided, verdict);
        self.first.is_judged.then_some(found)
    }

    fn medians(&self) -> (f64, f64) {
        let median = |side: fn(&(f64, f64)) -> f64| {
            let readings: Vec<f64> = self.pairs.iter().map(side).collect();
            Spread::of(&readings).median
        };
        (median(|pair| pair.0), median(|pair| pair.1))
    }

    fn line(&self) -> String {
        let (old, new) = self.medians();
        let ratio = match self.interval() {
            Some(i) => format!("{:>7.3}  {:.3} to {:.3}", i.ratio, i.low, i.high),
            None => format!("{:>7}  {:<14}", "none", "no ratio"),
        };
        format!(
            "{:<13} {:<26} {:>9} {:>9} {ratio}  {}\n",
            self.first.workload.name(),
            self.first.name,
            brief(old),
            brief(new),
            self.verdict().map_or("-", Verdict::word)
        )
    }

    fn json(&self, seed: u64) -> Value {
        let (old, new) = self.medians();
        let interval = self.interval();
        let bound = match self.first.better {
            Better::Higher => json!({"low_min": RATE_MIN}),
            Better::Lower => json!({"high_max": COST_MAX}),
        };
        let side =
            |side: fn(&(f64, f64)) -> f64| -> Vec<f64> { self.pairs.iter().map(side).collect() };
        json!({
            "workload": self.first.workload.name(),
            "figure": self.first.name,
            "pairs": self.pairs.len(),
            "seed": seed,
            "old_median": old,
            "new_median": new,
            "ratio": interval.map(|i| i.ratio),
            "low": interval.map(|i| i.low),
            "high": interval.map(|i| i.high),
            "confidence": CONFIDENCE,
            "bound": bound,
            "verdict": self.verdict().map(Verdict::word),
            "old": side(|pair| pair.0),
            "new": side(|pair| pair.1),
        })
    }
}

/// All figures, in the order in which they were read first.
#[derive(Debug, Default)]
pub struct Compared {
    series: Vec<Series>,
}

impl Compared {
    /// Adds the readings of a pair.
    ///
    /// # Errors
    /// The builds did not read the same figures.
    pub fn add(&mut self, old: &[Figure], new: &[Figure]) -> Result<()> {
        ensure!(old.len() == new.len(), "the builds report other figures");
        for (old, new) in old.iter().zip(new) {
            let same = |f: &Figure| f.workload == old.workload && f.name == old.name;
            ensure!(same(new), "OLD has {}, NEW has {}", old.name, new.name);
            let pair = (old.value, new.value);
            match self.series.iter_mut().find(|s| same(&s.first)) {
                Some(series) => series.pairs.push(pair),
                None => self.series.push(Series {
                    first: *old,
                    pairs: vec![pair],
                }),
            }
        }
        Ok(())
    }

    /// The worst verdict as an exit code.
    #[must_use]
    pub fn exit(&self) -> Exit {
        let any = |verdict| self.series.iter().any(|s| s.verdict() == Some(verdict));
        if any(Verdict::Slower) {
            Exit::Changed
        } else if any(Verdict::Undecided) {
            Exit::Findings
        } else {
            Exit::Clean
        }
    }
}

/// All that is told.
#[derive(Clone, Copy, Debug)]
pub struct Comparison<'a> {
    /// The flags.
    pub args: &'a PairedArgs,
    /// Old and new.
    pub builds: &'a [Build; 2],
    /// What was read.
    pub figures: &'a Compared,
}

impl Comparison<'_> {
    /// Prints the table, and the JSON array last.
    ///
    /// # Errors
    /// When stdout is closed.
    pub fn print(&self) -> Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(self.text().as_bytes())
            .context("write to stdout")?;
        if self.args.json {
            let series = self.figures.series.iter();
            let objects: Vec<Value> = series.map(|s| s.json(self.args.seed)).collect();
            writeln!(out, "{}", Value::Array(objects)).context("write to stdout")?;
        }
        Ok(())
    }

    fn text(&self) -> String {
        let (args, builds) = (self.args, self.builds);
        let mut text = format!(
            "hps-bench paired: {} pairs of {} rows, {}windows of {} s, {} threads, seed {}{}\n",
            args.pairs(),
            args.rows(),
            if args.rounds() > 1 {
                format!("{} ", args.rounds())
            } else {
                String::new()
            },
            args.seconds(),
            args.threads_each(),
            args.seed,
            if args.beside {
                ", beside each other"
            } else {
                ""
            }
        );
        for build in builds {
            text += &format!(
                "{}: {} ({})\n",
                build.role,
                build.binary.display(),
                build.version
            );
        }
        if builds[0].binary == builds[1].binary {
            text += "the same file: this shows what the machine alone does\n";
        }
        text += &format!(
            "{:<13} {:<26} {:>9} {:>9} {:>7}  {:<14}  verdict\n",
            "workload", "figure (median)", "old", "new", "new/old", "95 % interval"
        );
        for series in &self.figures.series {
            text += &series.line();
        }
        text
    }
}

/// A reading with a unit's prefix, or with digits enough to see a small one.
fn brief(x: f64) -> String {
    if x == 0.0 || x.abs() >= 1.0 {
        short(x)
    } else {
        format!("{x:.4}")
    }
}
