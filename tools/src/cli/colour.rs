//! When does text have colours, and which?
//!
//! - Callers always write styles; the stream takes them out where they are not wanted.
//! - `auto` follows the conventions: a terminal, NO_COLOR (any value but none), CLICOLOR_FORCE,
//!   TERM=dumb. `always` and `never` are stronger than all of them.

use std::ffi::OsString;
use std::io::{StdoutLock, stdout};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use clap::ValueEnum;

/// What is lost or wrong.
pub const BAD: Style = AnsiColor::Red.on_default().bold();
/// What should be looked at.
pub const ODD: Style = AnsiColor::Yellow.on_default();
/// What is well.
pub const GOOD: Style = AnsiColor::Green.on_default().bold();

/// When text has colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Colour {
    /// On a terminal that knows colours, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Also into files and pipes.
    Always,
    /// Nowhere.
    Never,
}

impl Colour {
    /// Standard output, which keeps styles or drops them.
    #[must_use]
    pub fn stdout(self) -> AutoStream<StdoutLock<'static>> {
        let choice = match self {
            Colour::Auto => ColorChoice::Auto,
            Colour::Always => ColorChoice::Always,
            Colour::Never => ColorChoice::Never,
        };
        AutoStream::new(stdout().lock(), choice)
    }

    /// The same, for help and usage errors.
    #[must_use]
    pub(super) fn for_clap(self) -> clap::ColorChoice {
        match self {
            Colour::Auto => clap::ColorChoice::Auto,
            Colour::Always => clap::ColorChoice::Always,
            Colour::Never => clap::ColorChoice::Never,
        }
    }

    /// What the words of a command line ask for, before they are parsed; `Auto` when in doubt.
    pub(super) fn named_in(words: &[OsString]) -> Colour {
        let mut found = Colour::Auto;
        let mut words = words.iter().skip(1).take_while(|word| *word != "--");
        while let Some(word) = words.next() {
            let word = word.to_string_lossy();
            let value = match word.strip_prefix("--color") {
                Some("") => words.next().map(|next| next.to_string_lossy().into_owned()),
                Some(rest) => rest.strip_prefix('=').map(str::to_owned),
                None => None,
            };
            let named = value.and_then(|value| Colour::from_str(&value, false).ok());
            found = named.unwrap_or(found);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_is_found_before_parsing() {
        let named = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            Colour::named_in(&words)
        };
        assert_eq!(named("tool --color never --nonsense"), Colour::Never);
        assert_eq!(named("tool --nonsense --color=always"), Colour::Always);
        assert_eq!(named("tool --color sometimes"), Colour::Auto);
        assert_eq!(named("tool --colors=always --color"), Colour::Auto);
        assert_eq!(named("tool -- --color=always"), Colour::Auto);
    }
}
