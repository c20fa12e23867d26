//! How does a test say that it does nothing here?
//!
//! - Past the test harness, which keeps what a passing test prints.
//! - To the file that `HPS_SKIPS_FILE` names, too: `tools/check.sh` fails on what `tools/skips.txt`
//!   does not allow.

use std::io::Write;

/// Says that a test, or a part of it, is left out, and why.
pub fn skipped(why: &str) {
    let line = format!("SKIPPED: {why}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    if let Some(path) = std::env::var_os("HPS_SKIPS_FILE") {
        let list = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path);
        list.unwrap().write_all(line.as_bytes()).unwrap();
    }
}
