//! What does the user see?
//!
//! - stdout holds results only: JSON lines with `--json`, else the summary. Progress and notes go
//!   to stderr, a bar only on a terminal.
//! - With passes there is a JSON line for each, before its first batch.
//! - The last JSON line is the one with `"summary":true`.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hps::{Stats, Store};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use crate::data::Batch;
use crate::meta::State;
use crate::passes::Entered;
use crate::pipeline::Job;

const PLAIN_EVERY: Duration = Duration::from_secs(10);
const BAR_EVERY: Duration = Duration::from_millis(200);

/// Writes one line to stderr; a closed stderr is nobody's loss.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "ctr: {text}");
}

/// Writes one line to stdout.
pub(crate) fn line(text: &str) -> Result<()> {
    writeln!(io::stdout().lock(), "{text}").context("write to stdout")
}

/// Seconds of each stage. `read` and `prefetch` run beside the others.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    pub(crate) read: f64,
    pub(crate) prefetch: f64,
    pub(crate) idle: f64,
    pub(crate) wait: f64,
    pub(crate) gather: f64,
    pub(crate) forward: f64,
    pub(crate) backward: f64,
    pub(crate) push: f64,
    pub(crate) checkpoint: f64,
}

impl Times {
    fn named(&self) -> [(&'static str, f64); 9] {
        [
            ("read", self.read),
            ("prefetch", self.prefetch),
            ("idle", self.idle),
            ("wait", self.wait),
            ("gather", self.gather),
            ("forward", self.forward),
            ("backward", self.backward),
            ("push", self.push),
            ("checkpoint", self.checkpoint),
        ]
    }

    fn add(&mut self, other: &Times) {
        self.read += other.read;
        self.prefetch += other.prefetch;
        self.idle += other.idle;
        self.wait += other.wait;
        self.gather += other.gather;
        self.forward += other.forward;
        self.backward += other.backward;
        self.push += other.push;
        self.checkpoint += other.checkpoint;
    }
}

/// Follows one training run.
pub(crate) struct Report {
    json: bool,
    silent: bool,
    bar: ProgressBar,
    title: &'static str,
    start: Instant,
    shown: Instant,
    before: Stats,
    rows_at_start: u64,
    total: Times,
    passes: Vec<Entered>,
}

impl Report {
    /// `rows`: how many there will be, where that is known.
    pub(crate) fn new(
        title: &'static str,
        json: bool,
        rows: Option<u64>,
        state: &State,
        store: &Store,
    ) -> Result<Report> {
        let bar = ProgressBar::with_draw_target(rows, ProgressDrawTarget::hidden());
        if !json && io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            let template = if rows.is_some() {
                "{prefix} {bar:30} {human_pos}/{human_len} rows, {eta} left {msg}"
            } else {
                "{prefix} {spinner} {human_pos} rows {msg}"
            };
            bar.set_style(ProgressStyle::with_template(template)?);
            bar.set_prefix(title);
        }
        let now = Instant::now();
        Ok(Report {
            json,
            silent: false,
            bar,
            title,
            start: now,
            shown: now,
            before: store.stats(),
            rows_at_start: state.position.rows,
            total: Times::default(),
            passes: Vec::new(),
        })
    }

    /// Leaves the batches of this run out of the JSON lines.
    pub(crate) fn silence(&mut self) {
        self.silent = self.json;
    }

    /// Tells of a pass whose rows are there.
    pub(crate) fn pass(&mut self, entered: Entered) -> Result<()> {
        self.passes.push(entered);
        match self.json {
            true => line(&entered.object().to_string()),
            false => Ok(()),
        }
    }

    /// Shows one batch.
    pub(crate) fn batch(
        &mut self,
        job: &Job<'_>,
        state: &State,
        batch: &Batch,
        loss: f64,
        times: &Times,
    ) -> Result<()> {
        self.total.add(times);
        let examples = batch.labels.len();
        if self.silent {
            return Ok(());
        }
        if self.json {
            let now = job.store.stats();
            let asked = now.unique_asked - self.before.unique_asked;
            let hits = now.unique_hits - self.before.unique_hits;
            let ms: serde_json::Map<String, Value> = times
                .named()
                .iter()
                .map(|(name, s)| ((*name).to_owned(), json!((s * 1e6).round() / 1e3)))
                .collect();
            let object = json!({
                "batch": state.batches,
                "examples": state.position.rows,
                "loss": loss / examples as f64,
                "auc": state.scores.all.auc(),
                "hit_rate": ratio(hits, asked),
                "stage_ms": ms,
                "read_bytes": now.read_bytes - self.before.read_bytes,
                "written_bytes": now.written_bytes - self.before.written_bytes,
            });
            self.before = now;
            return line(&object.to_string());
        }
        let pause = if self.bar.is_hidden() {
            PLAIN_EVERY
        } else {
            BAR_EVERY
        };
        if self.shown.elapsed() >= pause {
            self.shown = Instant::now();
            let auc = state
                .scores
                .all
                .auc()
                .map_or("none".to_owned(), |x| format!("{x:.4}"));
            let text = format!("AUC {auc} log loss {:.4}", state.scores.mean_loss());
            if self.bar.is_hidden() {
                note(&format!(
                    "{}: {} rows, {text}",
                    self.title, state.position.rows
                ));
            }
            self.bar.set_position(state.position.rows);
            self.bar.set_message(text);
        }
        Ok(())
    }

    /// Ends the bar; returns the figures of the run.
    pub(crate) fn finish(&self, state: &State) -> Figures {
        self.bar.finish_and_clear();
        let seconds = self.start.elapsed().as_secs_f64();
        let rows = state.position.rows - self.rows_at_start;
        Figures {
            seconds,
            rate: rows as f64 / seconds.max(1e-9),
            times: self.total,
            passes: self.passes.clone(),
        }
    }
}

/// Speed of a run.
pub(crate) struct Figures {
    pub(crate) seconds: f64,
    pub(crate) rate: f64,
    pub(crate) times: Times,
    pub(crate) passes: Vec<Entered>,
}

/// What the end of a run says.
pub(crate) struct Summary<'a> {
    pub(crate) state: &'a State,
    pub(crate) figures: &'a Figures,
    pub(crate) stats: &'a Stats,
    pub(crate) skipped: u64,
    pub(crate) digest: Option<String>,
    /// Only with planted data: AUC with frozen embeddings, share of the big slots' variance.
    pub(crate) planted: Option<(Option<f64>, f64)>,
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Highest resident memory of this process, in MiB.
fn peak_rss_mib() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(mib(kib << 10))
}

impl Summary<'_> {
    /// Prints it.
    pub(crate) fn print(&self, json: bool) -> Result<()> {
        if json {
            line(&self.object().to_string())
        } else {
            self.table()
        }
    }

    fn object(&self) -> Value {
        let scores = &self.state.scores;
        let stats = self.stats;
        let mut object = json!({
            "summary": true,
            "auc": scores.all.auc(),
            "auc_tail": scores.tail_auc(),
            "planted_auc": scores.planted_auc(),
            "logloss": scores.mean_loss(),
            "examples": self.state.position.rows,
            "examples_per_s": self.figures.rate,
            "hit_rate": ratio(stats.unique_hits, stats.unique_asked),
            "cache_bytes": stats.cache_bytes,
            "peak_rss_mib": peak_rss_mib(),
            "disk_bytes": stats.disk_bytes,
            "live_bytes": stats.live_bytes,
            "skipped_lines": self.skipped,
        });
        if let Some(digest) = &self.digest {
            object["digest"] = json!(digest);
        }
        if let Some((frozen, share)) = self.planted {
            object["frozen_auc"] = json!(frozen);
            object["big_slots_variance_share"] = json!(share);
        }
        object
    }

    fn table(&self) -> Result<()> {
        let show = |x: Option<f64>| x.map_or("none".to_owned(), |x| format!("{x:.4}"));
        let scores = &self.state.scores;
        let (stats, figures) = (self.stats, self.figures);
        let mut rows = vec![
            ("AUC, all rows", show(scores.all.auc())),
            ("AUC, last fifth", show(scores.tail_auc())),
        ];
        if let Some((frozen, share)) = self.planted {
            rows.push(("  planted model on it", show(scores.planted_auc())));
            rows.push(("  frozen embeddings on it", show(frozen)));
            let share = format!("{:.0} % in slots with >= 10^5 ids", share * 100.0);
            rows.push(("planted logit's variance", share));
        }
        rows.push(("log loss", format!("{:.5}", scores.mean_loss())));
        rows.push(("examples", self.state.position.rows.to_string()));
        rows.push(("malformed lines", self.skipped.to_string()));
        rows.push(("time", format!("{:.1} s", figures.seconds)));
        rows.push(("speed", format!("{:.0} examples/s", figures.rate)));
        rows.push((
            "hit rate",
            show(ratio(stats.unique_hits, stats.unique_asked)),
        ));
        rows.push(("cache", format!("{:.1} MiB", mib(stats.cache_bytes))));
        rows.push(("live rows", format!("{:.1} MiB", mib(stats.live_bytes))));
        rows.push(("disk", format!("{:.1} MiB", mib(stats.disk_bytes))));
        rows.push((
            "read from disk",
            format!("{:.1} MiB", mib(stats.read_bytes)),
        ));
        rows.push((
            "written to disk",
            format!("{:.1} MiB", mib(stats.written_bytes)),
        ));
        let peak = peak_rss_mib().map_or("unknown".to_owned(), |x| format!("{x:.1} MiB"));
        rows.push(("peak memory", peak));
        if let Some(digest) = &self.digest {
            rows.push(("digest", digest.clone()));
        }
        for (name, value) in rows {
            line(&format!("{name:<26}{value}"))?;
        }
        for (name, value) in figures.passes.iter().map(Entered::row) {
            line(&format!("{name:<26}{value}"))?;
        }
        line("time per stage, s (read and prefetch run beside the others)")?;
        for (name, seconds) in figures.times.named() {
            line(&format!("  {name:<24}{seconds:.2}"))?;
        }
        Ok(())
    }
}
