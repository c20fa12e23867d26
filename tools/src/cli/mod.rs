//! What do the admin tools have in common on the command line?
//!
//! - Exit codes are those of e2fsck where they fit; a script can rely on them.
//! - What was asked for goes to stdout, progress and errors to stderr; with `--json` an error is
//!   an object on stdout as well.
//! - Sizes are human in text, plain numbers in JSON; no file name can move the cursor.
//! - Each part here knows no tool: what it needs of one is an argument.

mod colour;
mod exit;
mod progress;
mod words;

pub use colour::{BAD, Colour, GOOD, ODD};
#[cfg(not(feature = "parquet"))]
pub use exit::without_parquet;
pub use exit::{Exit, Interrupt, Usage, end, exit_of, refuse_strange_owner, show, with_holder};
pub use progress::{Meter, Show};
pub use words::{count, duration, numbers, of, size, size_of, visible};

use std::ffi::OsString;
use std::sync::LazyLock;

use clap::{Args, CommandFactory, FromArgMatches};
use hps::FORMAT_VERSION;

/// Flags that every admin tool has: `#[command(flatten)] pub common: Common`.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Common {
    /// When text has colours; auto: on a terminal, if neither NO_COLOR nor TERM=dumb is set
    #[arg(long, value_enum, value_name = "WHEN", default_value_t, global = true)]
    pub color: Colour,
    /// When progress is shown on stderr
    #[arg(long, value_enum, value_name = "WHEN", default_value_t, global = true)]
    pub progress: Show,
    /// Print nothing but errors: the exit code tells the rest
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Print more of what was found
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    pub verbose: bool,
}

impl Common {
    /// When progress is shown: never, if nothing is to be printed.
    #[must_use]
    pub fn show(&self) -> Show {
        if self.quiet {
            Show::Never
        } else {
            self.progress
        }
    }
}

/// Parses the command line of a tool; `--color` holds for help and usage errors as well.
///
/// # Errors
/// Those of clap, which [`end`] prints; `--help` and `--version` are among them.
pub fn parse<A: CommandFactory + FromArgMatches>() -> Result<A, clap::Error> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let command = A::command().color(Colour::named_in(&words).for_clap());
    let matches = command.try_get_matches_from(words)?;
    A::from_arg_matches(&matches).map_err(|error| error.format(&mut A::command()))
}

/// What `--version` prints after the tool's name: its version, and the formats that it reads.
#[must_use]
pub fn version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let formats = formats(FORMAT_VERSION);
        format!("{}\nreads stores of {formats}", env!("CARGO_PKG_VERSION"))
    });
    &TEXT
}

fn formats(highest: u32) -> String {
    match highest {
        1 => String::from("format version 1"),
        _ => format!("format versions 1 to {highest}"),
    }
}

/// Whether a flag stands among the words of a command line; for what must be known also when
/// parsing failed.
fn given(words: &[OsString], flag: &str) -> bool {
    let flags = words.iter().skip(1).take_while(|word| *word != "--");
    flags.into_iter().any(|word| word == flag)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn a_flag_is_seen_before_the_end_of_flags_only() {
        assert!(given(&words("tool DIR --json"), "--json"));
        assert!(!given(&words("tool --jsonp x"), "--json"));
        assert!(!given(&words("tool -- --json"), "--json"));
        assert!(
            !given(&words("--json DIR"), "--json"),
            "the tool's own name"
        );
    }

    #[test]
    fn a_range_of_formats_is_written_as_one() {
        assert_eq!(formats(1), "format version 1");
        assert_eq!(formats(3), "format versions 1 to 3");
        assert!(version().ends_with(&formats(FORMAT_VERSION)));
    }
}
