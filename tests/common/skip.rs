//! How does a test say that it does nothing here?

use std::io::Write;

/// Says it past the test harness, which keeps what a passing test prints.
pub fn skipped(why: &str) {
    writeln!(std::io::stderr().lock(), "SKIPPED: {why}").unwrap();
}
