//! Do the tools behave on a terminal, under Ctrl-C, and in front of a reader that leaves?
//!
//! - Terminals are made by `script` of util-linux; without it these tests say so and pass.
//! - Nothing here depends on time: a signal may come too late, but then the run has ended well.
#![expect(clippy::unwrap_used, reason = "test helpers fail the test")]

#[path = "../../tests/common/skip.rs"]
mod skip;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use hps::{CreateOptions, RuntimeOptions, Store, TableDescriptor, Update};
use serde_json::Value;

const FSCK: &str = env!("CARGO_BIN_EXE_hps-fsck");
const ESCAPE: char = '\u{1b}';
const COLOUR_VARIABLES: [&str; 5] = ["CI", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TERM"];

/// A store of so many rows of 256 weights, 2 KiB each with their state.
fn sample(directory: &Path, rows: u64) {
    const DIM: usize = 256;
    let options = RuntimeOptions::new().cache_bytes(16 << 20);
    let store = Store::create(directory, CreateOptions::new(), options).unwrap();
    let table = TableDescriptor::new("wide", DIM);
    let table = store.create_table(&table).unwrap();
    let keys: Vec<u64> = (0..rows).collect();
    for batch in keys.chunks(1000) {
        let mut values = vec![0.0; batch.len() * DIM];
        let lease = store.pull(table, batch, &mut values).unwrap();
        values.fill(1.0);
        store.push(&lease, Update::weights(&values)).unwrap();
    }
    store.checkpoint(1, b"").unwrap();
    store.close().unwrap();
}

fn fsck(directory: &Path) -> Command {
    let mut command = Command::new(FSCK);
    command.arg(directory).stdin(Stdio::null());
    for name in COLOUR_VARIABLES {
        command.env_remove(name);
    }
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn colours_without_a_terminal_are_for_those_who_force_them() {
    let dir = tempfile::tempdir().unwrap();
    sample(dir.path(), 10);
    let look = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = fsck(dir.path());
        command.args(arguments).envs(variables.iter().copied());
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        stdout(&output).contains(ESCAPE)
    };
    assert!(!look(&[], &[]));
    assert!(!look(&["--color=never"], &[("CLICOLOR_FORCE", "1")]));
    assert!(!look(&[], &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "0")]));
    assert!(look(&[], &[("CLICOLOR_FORCE", "1")]));
    assert!(look(&["--color=always"], &[("NO_COLOR", "1")]));
    // Help and usage errors are clap's, and follow the same flag.
    let usage = |flag: &str| {
        let output = fsck(dir.path()).args([flag, "--nonsense"]).output();
        String::from_utf8(output.unwrap().stderr).unwrap()
    };
    assert!(usage("--color=always").contains(ESCAPE));
    assert!(!usage("--color=never").contains(ESCAPE));
}

/// What a terminal shows of a command line of the shell; `None`: there is no `script`.
fn on_terminal(line: &str, variables: &[(&str, &str)]) -> Option<String> {
    let mut command = Command::new("script");
    command.args(["-qec", line, "/dev/null"]);
    for name in COLOUR_VARIABLES {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied()).stdin(Stdio::null());
    match command.output() {
        Ok(output) => Some(String::from_utf8_lossy(&output.stdout).into_owned()),
        Err(error) => {
            skip::skipped(&format!("terminals are made by `script`: {error}"));
            None
        }
    }
}

#[test]
fn a_terminal_has_colours_and_a_bar_unless_told_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    sample(dir.path(), 10);
    let line = |flags: &str| format!("'{FSCK}' {flags} '{}'", dir.path().display());
    let term = ("TERM", "xterm");
    let Some(plain) = on_terminal(&line("--progress=never"), &[term]) else {
        return;
    };
    assert!(plain.contains("\u{1b}[32mwhole"), "{plain:?}");
    for (flags, variables) in [
        ("--progress=never", &[term, ("NO_COLOR", "1")][..]),
        ("--progress=never --color=never", &[term]),
        ("--progress=never", &[("TERM", "dumb")]),
        ("--progress=never --json", &[term]),
        ("", &[("TERM", "dumb")]),
    ] {
        let shown = on_terminal(&line(flags), variables).unwrap();
        assert!(!shown.contains(ESCAPE), "{flags} {variables:?}: {shown:?}");
        assert!(shown.contains("store"), "{shown:?}");
    }
    let empty = [term, ("NO_COLOR", "")];
    let shown = on_terminal(&line("--progress=never"), &empty).unwrap();
    assert!(shown.contains(ESCAPE), "an empty value is none: {shown:?}");
    // Only stdout is a file: the bar may be drawn, the report has no colours.
    let file = dir.path().join("report");
    let into = format!("{} >'{}'", line("--progress=always"), file.display());
    on_terminal(&into, &[term]).unwrap();
    let report = fs::read_to_string(file).unwrap();
    assert!(!report.contains(ESCAPE), "{report:?}");
    let bar = on_terminal(&line("--color=never"), &[term]).unwrap();
    assert!(bar.contains(ESCAPE), "{bar:?}");
    let quiet = on_terminal(&line("--quiet"), &[term]).unwrap();
    assert_eq!(quiet, "", "neither report nor bar");
}

#[test]
fn progress_that_is_always_wanted_has_a_first_and_a_last_line() {
    let dir = tempfile::tempdir().unwrap();
    sample(dir.path(), 10);
    let lines = |flags: &[&str]| {
        let output = fsck(dir.path()).args(flags).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let always = lines(&["--progress=always"]);
    assert!(always.len() >= 2, "{always:?}");
    for line in &always {
        assert!(line.starts_with("hps-fsck: "), "{line}");
    }
    assert!(always.last().unwrap().contains("(100 %)"), "{always:?}");
    assert_eq!(lines(&["--progress=always", "-q"]), [""; 0]);
    assert_eq!(lines(&["--progress=never"]), [""; 0]);
}

#[test]
fn a_reader_that_leaves_changes_nothing_but_a_full_disk_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    sample(&store, 10);
    let mut running = fsck(&store).stdout(Stdio::piped()).spawn().unwrap();
    drop(running.stdout.take());
    assert_eq!(running.wait().unwrap().code(), Some(0));
    let full = fs::OpenOptions::new().write(true).open("/dev/full");
    let output = fsck(&store).stdout(full.unwrap()).output().unwrap();
    assert_eq!(output.status.code(), Some(8));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("write to stdout: No space left"), "{error}");
}

/// Starts a check and sends it a signal once its progress has said `when`; how it ended.
fn interrupted(directory: &Path, signal: &str, flag: &str, when: &str) -> Option<i32> {
    let mut command = fsck(directory);
    command.arg(flag).arg("--progress=always");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = command.spawn().unwrap();
    let mut errors = BufReader::new(running.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains(when) {
        assert_ne!(errors.read_line(&mut said).unwrap(), 0, "{said}");
    }
    let kill = format!("kill -{signal} {}", running.id());
    Command::new("sh").args(["-c", &kill]).output().unwrap();
    let mut rest = String::new();
    errors.read_to_string(&mut rest).unwrap();
    let output = running.wait_with_output().unwrap();
    let code = output.status.code();
    if code == Some(32) {
        let last = rest.lines().last().unwrap_or_default();
        assert!(
            last.starts_with("hps-fsck: stopped before the end"),
            "{rest}"
        );
        match flag {
            "--json" => {
                let object: Value = serde_json::from_slice(&output.stdout).unwrap();
                assert_eq!((&object["v"], &object["exit"]), (&1.into(), &32.into()));
            }
            _ => assert_eq!(stdout(&output), "", "half a report"),
        }
    }
    code
}

#[test]
fn a_signal_ends_a_check_cleanly_with_its_own_code() {
    const TRIES: usize = 20;
    let dir = tempfile::tempdir().unwrap();
    sample(dir.path(), 32 << 10);
    let other = dir.path().to_str().unwrap();
    let diff = format!("--diff={other}");
    for (signal, flag, when) in [
        ("INT", "--full", "hps-fsck: "),
        ("TERM", "--json", "hps-fsck: "),
        // All is read: what follows is a second walk over the rows.
        ("INT", "--digest", "(100 %)"),
        ("INT", &diff, "(100 %)"),
    ] {
        let mut codes = Vec::new();
        while codes.len() < TRIES && !codes.contains(&Some(32)) {
            codes.push(interrupted(dir.path(), signal, flag, when));
        }
        let clean = codes.iter().all(|c| [Some(0), Some(32)].contains(c));
        assert!(
            clean && codes.contains(&Some(32)),
            "{signal} {flag}: {codes:?}"
        );
    }
    let after = fsck(dir.path()).output().unwrap();
    assert_eq!(after.status.code(), Some(0), "nothing was changed");
}
