//! What does the user see?
//!
//! - stdout holds results only: the table, and with `--json` one array as the last line. Notes on
//!   progress go to stderr: a spinner on a terminal, else plain lines.
//! - A ratio is taken within each round, and its median over the rounds is told.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget};
use serde_json::{Map, Value, json};

use super::figures::{Spread, short};

/// What became of one workload.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Name, with what sets it apart: `train`.
    pub workload: String,
    /// Rows a second, by round.
    pub rows_per_s: Vec<f64>,
    /// What the limit is.
    pub limit: String,
    /// Rows a second of the limit, by round.
    pub limit_rows_per_s: Vec<f64>,
    /// Everything else that was measured.
    pub extra: Map<String, Value>,
}

impl Outcome {
    /// An outcome without rounds yet.
    #[must_use]
    pub fn new(workload: &str, limit: &str) -> Outcome {
        Outcome {
            workload: workload.to_owned(),
            rows_per_s: Vec::new(),
            limit: limit.to_owned(),
            limit_rows_per_s: Vec::new(),
            extra: Map::new(),
        }
    }

    /// Adds a round.
    pub fn round(&mut self, rows_per_s: f64, limit_rows_per_s: f64) {
        self.rows_per_s.push(rows_per_s);
        self.limit_rows_per_s.push(limit_rows_per_s);
    }

    /// Adds a figure.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.extra.insert(name.to_owned(), value.into());
    }

    /// Adds the median and spread of a figure by round.
    pub fn spread(&mut self, name: &str, readings: &[f64]) {
        self.set(name, Spread::of(readings).json());
    }

    /// Adds a figure of which the lowest of all rounds counts.
    pub fn lowest(&mut self, name: &str, value: f64) {
        let before = self.extra.get(name).and_then(Value::as_f64);
        self.set(name, before.map_or(value, |x| x.min(value)));
    }

    /// Work ÷ limit, by round.
    #[must_use]
    pub fn ratios(&self) -> Vec<f64> {
        let pairs = self.rows_per_s.iter().zip(&self.limit_rows_per_s);
        pairs.map(|(value, limit)| value / limit).collect()
    }

    /// The object of the JSON array.
    #[must_use]
    pub fn json(&self) -> Value {
        let (rate, limit) = (
            Spread::of(&self.rows_per_s),
            Spread::of(&self.limit_rows_per_s),
        );
        let ratio = Spread::of(&self.ratios());
        let mut object = Map::new();
        object.insert("workload".into(), json!(self.workload));
        object.insert("rows_per_s".into(), json!(rate.median));
        object.insert("limit".into(), json!(self.limit));
        object.insert("limit_rows_per_s".into(), json!(limit.median));
        object.insert("ratio".into(), json!(ratio.median));
        object.insert("rounds".into(), json!(self.rows_per_s.len()));
        object.insert("rows_per_s_spread".into(), rate.json());
        object.insert("limit_rows_per_s_spread".into(), limit.json());
        object.insert("ratio_spread".into(), ratio.json());
        object.extend(self.extra.clone());
        Value::Object(object)
    }

    fn lines(&self) -> Vec<String> {
        let (rate, limit) = (
            Spread::of(&self.rows_per_s),
            Spread::of(&self.limit_rows_per_s),
        );
        let ratio = Spread::of(&self.ratios());
        let spread = format!("({} to {})", short(rate.min), short(rate.max));
        let mut lines = vec![format!(
            "{:<22} {:>9} {:<20} {:>9}  {:>5.3} ({:.3} to {:.3})  {}",
            self.workload,
            short(rate.median),
            spread,
            short(limit.median),
            ratio.median,
            ratio.min,
            ratio.max,
            self.limit,
        )];
        let mut line = String::from("   ");
        for (name, value) in &self.extra {
            let word = format!(" {name}={}", plain(value));
            if line.len() + word.len() > 110 && line.len() > 3 {
                lines.push(std::mem::replace(&mut line, String::from("   ")));
            }
            line.push_str(&word);
        }
        lines.push(line);
        lines
    }
}

/// A value for people: a spread as `median (min to max)`, floats with few digits.
fn plain(value: &Value) -> String {
    match value {
        Value::Number(n) => match n.as_f64() {
            Some(x) if !n.is_u64() && x.abs() < 1e3 => format!("{x:.4}"),
            Some(x) => short(x).replace(' ', ""),
            None => n.to_string(),
        },
        Value::Object(o) if o.contains_key("median") => {
            let part = |name: &str| plain(&o[name]);
            format!("{} ({} to {})", part("median"), part("min"), part("max"))
        }
        Value::Object(o) => {
            let parts: Vec<String> = o.iter().map(|(k, v)| format!("{k} {}", plain(v))).collect();
            format!("[{}]", parts.join(", "))
        }
        Value::String(s) => s.clone(),
        other => other.to_string(),
    }
}

/// Prints the table, and the JSON array last.
///
/// # Errors
/// When stdout is closed.
pub fn print(title: &str, machine: &Value, outcomes: &[Outcome], as_json: bool) -> Result<()> {
    let mut out = io::stdout().lock();
    let mut text = format!("{title}\n{}\n", plain(machine));
    text.push_str(&format!(
        "{:<22} {:>9} {:<20} {:>9}  {:<22} {}\n",
        "workload", "rows/s", "(spread)", "limit", "ratio (spread)", "what the limit is"
    ));
    for outcome in outcomes {
        for line in outcome.lines() {
            text.push_str(&line);
            text.push('\n');
        }
    }
    out.write_all(text.as_bytes()).context("write to stdout")?;
    if as_json {
        let all: Vec<Value> = outcomes
            .iter()
            .map(|o| {
                let mut object = o.json();
                object["machine"] = machine.clone();
                object
            })
            .collect();
        writeln!(out, "{}", Value::Array(all)).context("write to stdout")?;
    }
    Ok(())
}

/// Tells on stderr what is going on.
#[derive(Debug)]
pub struct Notes {
    bar: Option<ProgressBar>,
}

impl Default for Notes {
    fn default() -> Notes {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Notes { bar }
    }
}

impl Notes {
    /// Says what comes next; a closed stderr is nobody's loss.
    pub fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(text.to_owned()),
            None => {
                let _closed = writeln!(io::stderr().lock(), "hps-bench: {text}");
            }
        }
    }

    /// Clears the spinner.
    pub fn done(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_the_median_of_ratios_not_the_ratio_of_medians() {
        let mut outcome = Outcome::new("w", "l");
        for (value, limit) in [(1.0, 1.0), (10.0, 20.0), (30.0, 120.0)] {
            outcome.round(value, limit);
        }
        outcome.set("hit_rate", 0.5);
        let object = outcome.json();
        assert_eq!(object["ratio"], json!(0.5));
        assert_eq!(object["rows_per_s"], json!(10.0));
        assert_eq!(object["limit_rows_per_s"], json!(20.0));
        assert_eq!(object["hit_rate"], json!(0.5));
        assert!(outcome.lines()[1].contains("hit_rate=0.5000"));
    }
}
