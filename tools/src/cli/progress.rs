//! How far is a tool, and how long will it take?
//!
//! - Progress goes to stderr, so that what was asked for stays alone on stdout.
//! - A bar on a terminal; elsewhere a line every ten seconds, so that a short run says nothing.
//! - The time left is that of the work left at the pace so far.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{duration, size};

/// When progress is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Show {
    /// A bar where stderr is a terminal, elsewhere a line every ten seconds.
    #[default]
    Auto,
    /// The same, and at least a first and a last line where there is no bar.
    Always,
    /// A line every ten seconds, also on a terminal.
    Lines,
    /// Nothing.
    Never,
}

const LINE_EVERY: Duration = Duration::from_secs(10);

/// Shows how far a tool is.
pub struct Meter {
    tool: &'static str,
    bar: Option<ProgressBar>,
    lines: bool,
    /// Whether the first and the last line are shown, however short the work.
    ends: bool,
    started: Instant,
    last: Option<Instant>,
    seen: (u64, u64),
}

impl Meter {
    /// A meter of bytes.
    ///
    /// # Errors
    /// None in practice: the bar's template is fixed.
    pub fn new(tool: &'static str, show: Show) -> Result<Meter> {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let terminal = std::io::stderr().is_terminal() && !dumb;
        let may_draw = matches!(show, Show::Auto | Show::Always);
        let bar = if may_draw && terminal {
            let style = "{bar:40} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left";
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(5));
            Some(bar.with_style(ProgressStyle::with_template(style)?))
        } else {
            None
        };
        Ok(Meter {
            tool,
            lines: bar.is_none() && show != Show::Never,
            ends: bar.is_none() && show == Show::Always,
            bar,
            started: Instant::now(),
            last: None,
            seen: (0, 0),
        })
    }

    /// So many bytes of so many are done.
    pub fn at(&mut self, done: u64, all: u64) {
        self.seen = (done, all);
        if let Some(bar) = &self.bar {
            bar.set_length(all);
            bar.set_position(done);
            return;
        }
        let due = match self.last {
            Some(last) => last.elapsed() >= LINE_EVERY,
            None => self.ends || self.started.elapsed() >= LINE_EVERY,
        };
        if self.lines && due {
            self.last = Some(Instant::now());
            self.say();
        }
    }

    /// Takes the bar away; the last line, where lines are always shown.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        } else if self.ends {
            self.say();
        }
    }

    fn say(&self) {
        let (done, all) = self.seen;
        let text = line(done, all, self.started.elapsed());
        let _closed = writeln!(std::io::stderr().lock(), "{}: {text}", self.tool);
    }
}

/// What a line says; the time left only if there is something to compute it from.
fn line(done: u64, all: u64, elapsed: Duration) -> String {
    let mut text = format!("{} of {}", size(done), size(all));
    let share = u128::from(done) * 100;
    if let Some(percent) = share.checked_div(u128::from(all)) {
        text += &format!(" ({} %)", percent.min(100));
    }
    text += &format!(" after {}", duration(elapsed));
    let left = u128::from(all.saturating_sub(done)) * elapsed.as_millis();
    if let Some(left) = left.checked_div(u128::from(done)).filter(|ms| *ms > 0) {
        let left = u64::try_from(left.div_ceil(1000)).unwrap_or(u64::MAX);
        text += &format!(", about {} left", duration(Duration::from_secs(left)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_the_time_left_at_the_pace_so_far() {
        let at = |done, all, seconds| line(done, all, Duration::from_secs(seconds));
        assert_eq!(
            at(1_000_000, 4_000_000, 30),
            "1.0 MB of 4.0 MB (25 %) after 30 s, about 90 s left"
        );
        assert_eq!(
            at(1 << 40, u64::MAX, 60),
            "1.1 TB of 18447 PB (0 %) after 60 s, about 279 620 h 15 min left"
        );
    }

    #[test]
    fn a_line_promises_nothing_where_there_is_nothing_to_tell() {
        let at = |done, all| line(done, all, Duration::from_secs(12));
        assert_eq!(at(0, 0), "0 B of 0 B after 12 s");
        assert_eq!(at(0, 5000), "0 B of 5.0 kB (0 %) after 12 s");
        assert_eq!(at(5000, 5000), "5.0 kB of 5.0 kB (100 %) after 12 s");
        assert_eq!(
            at(6000, 5000),
            "6.0 kB of 5.0 kB (100 %) after 12 s",
            "more than was to be done"
        );
    }
}
