//! What do the admin tools have in common on the command line?
//!
//! - Exit codes are those of e2fsck where they fit; a script can rely on them.
//! - Progress goes to stderr: a bar on a terminal, a plain line every ten seconds elsewhere.
//! - Sizes are human in text, plain numbers in JSON.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use hps::{Error, Invalid};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// How a tool ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All is well.
    Clean = 0,
    /// Something was repaired, or two things differ.
    Changed = 1,
    /// Damage was found and left.
    Findings = 4,
    /// The tool could not run: no directory, no permission, a lock, an I/O error.
    Failed = 8,
    /// Wrong arguments.
    Usage = 16,
    /// Stopped by Ctrl-C or SIGTERM; what was begun was ended cleanly.
    Cancelled = 32,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// Ends a tool whose arguments clap has parsed: prints what went wrong and gives the exit code.
pub fn end(tool: &str, parsed: Result<Result<Exit>, clap::Error>) -> ExitCode {
    match parsed {
        Err(error) => {
            let fault = error.use_stderr();
            let _closed = error.print();
            if fault { Exit::Usage } else { Exit::Clean }.into()
        }
        Ok(Ok(exit)) => exit.into(),
        Ok(Err(error)) => {
            // The library's errors say all of their sources themselves.
            let own = error.downcast_ref::<Error>().map(ToString::to_string);
            let text = own.unwrap_or_else(|| format!("{error:#}"));
            let _closed = writeln!(std::io::stderr().lock(), "{tool}: {text}");
            exit_of(&error).into()
        }
    }
}

/// The exit code of an error: damage is a finding, a checkpoint that is not retained an argument.
#[must_use]
pub fn exit_of(error: &anyhow::Error) -> Exit {
    match error.downcast_ref::<Error>() {
        Some(Error::Cancelled) => Exit::Cancelled,
        Some(Error::Corrupt { .. }) => Exit::Findings,
        Some(Error::InvalidArgument(Invalid::UnknownCheckpoint { .. })) => Exit::Usage,
        _ => Exit::Failed,
    }
}

/// Ctrl-C and SIGTERM, as a request to end soon. A second one ends the process at once.
#[derive(Clone, Debug)]
pub struct Interrupt {
    asked: Arc<AtomicBool>,
}

impl Interrupt {
    /// Listens from now on.
    ///
    /// # Errors
    /// When the system refuses a handler.
    pub fn listen() -> Result<Interrupt> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            flag::register_conditional_default(signal, Arc::clone(&asked))?;
            flag::register(signal, Arc::clone(&asked))?;
        }
        Ok(Interrupt { asked })
    }

    /// Whether the user asked to end.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// `Break` once the user asked to end.
    pub fn flow(&self) -> ControlFlow<()> {
        if self.is_asked() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// Bytes as people read them: 4.3 GB.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 99.95);
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A number with its thousands apart: 8 000 000.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// When progress is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Show {
    /// A bar where stderr is a terminal, lines elsewhere.
    #[default]
    Auto,
    /// Lines, also on a terminal.
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
    started: Instant,
    last: Instant,
}

impl Meter {
    /// A meter of bytes.
    ///
    /// # Errors
    /// None in practice: the bar's template is fixed.
    pub fn new(tool: &'static str, show: Show) -> Result<Meter> {
        let terminal = std::io::stderr().is_terminal();
        let bar = if show == Show::Auto && terminal {
            let style = "{bar:40} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left";
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(5));
            Some(bar.with_style(ProgressStyle::with_template(style)?))
        } else {
            None
        };
        let lines = show == Show::Lines || (show == Show::Auto && !terminal);
        let now = Instant::now();
        Ok(Meter {
            tool,
            bar,
            lines,
            started: now,
            last: now,
        })
    }

    /// So many bytes of so many are done.
    pub fn at(&mut self, done: u64, all: u64) {
        if let Some(bar) = &self.bar {
            bar.set_length(all);
            bar.set_position(done);
        } else if self.lines && self.last.elapsed() >= LINE_EVERY {
            self.last = Instant::now();
            let (tool, seconds) = (self.tool, self.started.elapsed().as_secs());
            let left = u128::from(seconds) * u128::from(all.saturating_sub(done));
            let left = left / u128::from(done.max(1));
            let (done, all) = (size(done), size(all));
            let _closed = writeln!(
                std::io::stderr().lock(),
                "{tool}: {done} of {all} after {seconds} s, about {left} s left"
            );
        }
    }

    /// Takes the bar away.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_counts_read_well_at_their_edges() {
        let sizes = [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (999_499, "999 kB"),
            (999_500, "1.0 MB"),
            (4_321_000_000, "4.3 GB"),
            (99_960_000, "100 MB"),
            (u64::MAX, "18447 PB"),
        ];
        for (bytes, text) in sizes {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(8_000_000), "8 000 000");
    }
}
