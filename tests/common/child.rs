//! How does a test run a part of itself in another process?
//!
//! - [`Child::start`] runs this test binary again, only the test `role`, which looks into
//!   [`role_of_this_process`] and does what it is told there.
//! - A child says something by [`say`], a line that begins with `@`; it hears lines on its stdin.
//! - Nobody waits for ever: a child that says nothing for a minute fails the test, and a child
//!   that is dropped is killed.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long a child may say nothing, or take to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// The name of the test that plays the roles.
pub const ROLE_TEST: &str = "role";

/// A process that plays a role.
pub struct Child {
    process: std::process::Child,
    lines: Receiver<String>,
}

/// Which role this process plays, and where; `None` in the test's own process.
pub fn role_of_this_process() -> Option<(String, std::path::PathBuf)> {
    let role = std::env::var("HPS_TEST_ROLE").ok()?;
    Some((role, std::env::var_os("HPS_TEST_PLACE")?.into()))
}

/// Tells the parent something.
pub fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    // libtest has written the name of the test, without an end of line.
    let written = writeln!(out, "\n@{what}").and_then(|()| out.flush());
    written.expect("the parent listens");
}

/// Waits for a line of the parent; `None` when it has hung up.
pub fn hear() -> Option<String> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(bytes) if bytes > 0 => Some(line.trim().to_owned()),
        _ => None,
    }
}

impl Child {
    pub fn start(role: &str, place: &Path) -> Child {
        let this = std::env::current_exe().expect("the test binary has a path");
        Child::from_command(Command::new(this), role, place)
    }

    /// As [`Child::start`], by a command that runs this binary when it gets its arguments.
    pub fn from_command(mut command: Command, role: &str, place: &Path) -> Child {
        command
            .args(["--exact", ROLE_TEST, "--nocapture", "--test-threads=1"])
            .env("HPS_TEST_ROLE", role)
            .env("HPS_TEST_PLACE", place)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = command.spawn().expect("a child starts");
        let out = process.stdout.take().expect("a pipe");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let said = line.strip_prefix('@').map(str::to_owned);
                if said.is_some_and(|said| sender.send(said).is_err()) {
                    return;
                }
            }
        });
        Child { process, lines }
    }

    /// Sends a line.
    pub fn tell(&mut self, line: &str) {
        let stdin = self.process.stdin.as_mut().expect("a pipe");
        let told = writeln!(stdin, "{line}").and_then(|()| stdin.flush());
        told.expect("the child listens");
    }

    /// The next thing that the child says; `None` when it has ended.
    pub fn listen(&mut self) -> Option<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("a child says nothing: it hangs"),
        }
    }

    /// What the child has said and nobody has heard yet.
    pub fn heard(&mut self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// SIGKILL, and the rest of what it said.
    pub fn kill(mut self) -> Vec<String> {
        self.process.kill().expect("it can be killed");
        self.process.wait().expect("it has ended");
        self.lines.iter().collect()
    }

    /// Hangs up and waits for the end.
    pub fn end(mut self) -> ExitStatus {
        drop(self.process.stdin.take());
        let start = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().expect("a child") {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "a child does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended before.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
