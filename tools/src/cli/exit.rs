//! How does a tool end, and what does it say when it can't do what was asked?
//!
//! - Exit codes are those of e2fsck where they fit.
//! - A message names the thing and, where there is one, the way out; it is one line.
//! - With `--json` the same message is an object on stdout, so that no script parses stderr.
//! - Ctrl-C is a request to end between two steps, with a code of its own.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, bail};
use hps::{ArgumentError, Error, Holder};
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::{Common, given, visible};

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

/// A fault of the user's that the flags alone don't show: exit code 16.
#[derive(Debug)]
pub struct Usage(pub String);

/// What a tool says of Parquet, for which it was not built.
#[cfg(not(feature = "parquet"))]
#[must_use]
pub fn without_parquet(tool: &str) -> Usage {
    Usage(format!(
        "this {tool} was built without Parquet; cargo build --release -p hps-tools --features parquet builds one that \
         has it"
    ))
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Ends a tool whose arguments clap has parsed: prints what went wrong and gives the exit code.
///
/// With `--json` among the arguments, an error is printed on stdout, too, as one object: `v` (1),
/// `tool`, `error` (the message) and `exit` (the code).
pub fn end(tool: &str, parsed: Result<Result<Exit>, clap::Error>) -> ExitCode {
    let (exit, text) = match parsed {
        Ok(Ok(exit)) => return exit.into(),
        Ok(Err(error)) => {
            let text = text_of(&error);
            let _closed = writeln!(io::stderr().lock(), "{tool}: {text}");
            (exit_of(&error), text)
        }
        Err(error) => {
            let _closed = error.print();
            if !error.use_stderr() {
                return Exit::Clean.into();
            }
            (Exit::Usage, text_of_usage(&error))
        }
    };
    let words: Vec<OsString> = std::env::args_os().collect();
    if given(&words, "--json") {
        let object = json!({"v": 1, "tool": tool, "error": text, "exit": exit as u8});
        let _closed = writeln!(io::stdout().lock(), "{object}");
    }
    exit.into()
}

/// The exit code of an error: damage is a finding; a checkpoint that is not retained, changes that are not
/// kept, and a delta that does not follow are arguments.
#[must_use]
pub fn exit_of(error: &anyhow::Error) -> Exit {
    if error.downcast_ref::<Usage>().is_some() {
        return Exit::Usage;
    }
    match error.downcast_ref::<Error>() {
        Some(Error::Cancelled) => Exit::Cancelled,
        Some(Error::Corrupt { .. }) => Exit::Findings,
        Some(Error::InvalidArgument(
            ArgumentError::UnknownCheckpoint { .. }
            | ArgumentError::HistoryGone { .. }
            | ArgumentError::Delta { .. },
        )) => Exit::Usage,
        _ => Exit::Failed,
    }
}

/// Files that root writes into the store of a trainer are not the trainer's: it could not open them.
///
/// # Errors
/// When the store belongs to another user and that was not allowed; when its owner is unknown.
pub fn refuse_strange_owner(directory: &Path, force: bool) -> Result<()> {
    let of = |path: &Path| {
        let metadata = path.metadata();
        let metadata = metadata.with_context(|| format!("look at {}", path.display()))?;
        Ok::<u32, anyhow::Error>(metadata.uid())
    };
    let (owner, user) = (of(directory)?, of(Path::new("/proc/self"))?);
    if owner != user && !force {
        bail!(
            "{}: belongs to user {owner}, and what user {user} writes there its owner could not \
             open; run it as that user, or with --force",
            directory.display()
        );
    }
    Ok(())
}

/// Says of a lock who has it.
#[must_use]
pub fn with_holder(error: Error) -> anyhow::Error {
    match &error {
        Error::Locked {
            path,
            holder: Holder::Reader,
        } => anyhow!(
            "Locked: {}: a reader elsewhere has the last checkpoint open, and its files must stay \
             until it closes; nothing was lost",
            path.display()
        ),
        Error::Locked { .. } => anyhow!("Locked: {error}"),
        _ => error.into(),
    }
}

/// A reader of stdout that has seen enough (`| head`) is no fault of the tool: the exit code still
/// says what was found.
///
/// # Errors
/// Any other one that writing met: what could not be printed must not look as if it were nothing.
pub fn reader_may_leave(printed: io::Result<()>) -> Result<()> {
    match printed {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|e| anyhow::Error::new(e).context("write to stdout")),
    }
}

/// Prints what was found: one object, or text, or nothing.
///
/// # Errors
/// That of a write to stdout, unless its reader has left.
pub fn show(
    common: &Common,
    json: Option<Value>,
    text: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    let print = || match json {
        Some(object) => {
            let mut out = io::stdout().lock();
            writeln!(out, "{object}")?;
            out.flush()
        }
        None if common.quiet => Ok(()),
        None => {
            let mut out = common.color.stdout();
            text(&mut out)?;
            out.flush()
        }
    };
    reader_may_leave(print())
}

/// The message of an error, with the way out.
fn text_of(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let own = cause.downcast_ref::<Error>();
        parts.push(match own {
            Some(Error::InvalidArgument(what)) => what.to_string(),
            Some(Error::Cancelled) => String::from("stopped before the end by Ctrl-C or SIGTERM"),
            _ => cause.to_string(),
        });
    }
    let text = visible(&parts.join(": "));
    match way_out(error) {
        Some(way) => format!("{text}; {way}"),
        None => text,
    }
}

/// What the user can do, where the message does not say it.
fn way_out(error: &anyhow::Error) -> Option<&'static str> {
    match error.downcast_ref::<Error>()? {
        Error::Io { source, .. } => match source.kind() {
            ErrorKind::PermissionDenied => Some("run this as the user that owns the store"),
            ErrorKind::QuotaExceeded | ErrorKind::StorageFull => Some("free some space"),
            _ if source.raw_os_error() == Some(EIO) => {
                Some("the device failed: look into the kernel's log, copy what can be read")
            }
            _ => None,
        },
        Error::MissingDirectory { .. } => Some(
            "this tool has no moved_directories: if it has moved, put a symbolic link to it at that path",
        ),
        _ => None,
    }
}

/// Linux' number of "Input/output error", which has no `ErrorKind`.
const EIO: i32 = 5;

/// The first paragraph of a message of clap's, in one line.
fn text_of_usage(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let first: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).collect();
    let line = first.iter().map(|l| l.trim()).collect::<Vec<_>>().join(" ");
    visible(line.trim_start_matches("error: "))
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

    /// Listens to nobody: for callers that are no command.
    #[must_use]
    pub fn never() -> Interrupt {
        Interrupt {
            asked: Arc::default(),
        }
    }

    /// Asks as the user would.
    #[cfg(test)]
    pub fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
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

    /// For loops of the tools: an error once the user asked to end.
    ///
    /// # Errors
    /// `Cancelled`.
    pub fn check(&self) -> Result<(), Error> {
        if self.is_asked() {
            Err(Error::Cancelled)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use anyhow::Context;

    use super::*;

    #[test]
    fn messages_keep_their_context_and_say_a_source_once() {
        let denied = || Error::io("list", Path::new("/s"), ErrorKind::PermissionDenied.into());
        let plain = text_of(&anyhow::Error::new(denied()));
        assert_eq!(
            plain,
            "list /s: permission denied; run this as the user that owns the store"
        );
        let more = Err::<(), _>(denied()).context("the other store");
        let more = text_of(&more.unwrap_err());
        assert_eq!(more, format!("the other store: {plain}"));
        let torn = Error::corrupt(Path::new("/s/a\nb"), 7, "torn");
        let torn = anyhow::Error::new(torn).context("x");
        assert_eq!(text_of(&torn), "x: /s/a\\nb: corrupt at byte 7: torn");
        assert_eq!(exit_of(&torn), Exit::Findings);
    }

    #[test]
    fn faults_of_the_user_are_told_from_those_of_the_system() {
        let usage = anyhow::Error::new(Usage("two at once".into()));
        assert_eq!(exit_of(&usage), Exit::Usage);
        assert_eq!(exit_of(&anyhow::anyhow!("other")), Exit::Failed);
        assert_eq!(exit_of(&Error::Cancelled.into()), Exit::Cancelled);
        assert!(reader_may_leave(Err(ErrorKind::BrokenPipe.into())).is_ok());
        let full = reader_may_leave(Err(ErrorKind::StorageFull.into()));
        assert!(text_of(&full.unwrap_err()).starts_with("write to stdout: "));
    }
}
