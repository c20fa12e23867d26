//! Which seed does a test take that shall see something new with each commit?

use std::io::Write;
use std::process::Command;

/// `HPS_SEED`; without it the first digits of the commit; without both 1. Says which, past the test
/// harness, so that a failure can be repeated.
pub fn fresh(test: &str) -> u64 {
    let given = std::env::var("HPS_SEED").map(|text| text.parse().unwrap());
    let seed = given.unwrap_or_else(|_| of_commit().unwrap_or(1));
    let line = format!("{test}: HPS_SEED={seed}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    seed
}

/// As `tools/seed.sh` computes it.
fn of_commit() -> Option<u64> {
    let mut git = Command::new("git");
    git.current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = git.args(["rev-parse", "HEAD"]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    u64::from_str_radix(text.get(..7)?, 16).ok()
}
