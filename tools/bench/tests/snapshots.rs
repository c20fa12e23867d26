//! What do people and scripts see of `hps-bench`: help and errors?
//!
//! - Each case is a file in `snapshots/`; `tools/tests/support/cases.rs` says what stands there.
//! - `HPS_BLESS=1 cargo test -p hps-bench --test snapshots` writes them anew: look at the diff.
#![expect(clippy::unwrap_used, reason = "test helpers fail the test")]

#[path = "../../tests/support/cases.rs"]
mod cases;

use cases::{Cases, check_names, command};

const BENCH: &str = env!("CARGO_BIN_EXE_hps-bench");

/// One case: its name, and the arguments.
fn bench(cases: &mut Cases, name: &str, args: &[&str]) {
    cases.run(name, &mut command(BENCH), "hps-bench", args);
}

#[test]
fn help_and_versions_read_as_they_did() {
    let dir = tempfile::tempdir().unwrap();
    let mut cases = Cases::new(dir.path());
    cases.run_help("hps-bench", BENCH);
    bench(&mut cases, "hps-bench-paired-help", &["paired", "--help"]);
    bench(&mut cases, "hps-bench-replay-help", &["replay", "--help"]);
    bench(
        &mut cases,
        "hps-bench-hot-table-help",
        &["hot-table", "--help"],
    );
    bench(&mut cases, "hps-bench-memory-help", &["memory", "--help"]);
    bench(&mut cases, "hps-bench-etc-help", &["etc", "--help"]);
    cases.end();
}

#[test]
fn errors_name_the_thing_and_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let mut cases = Cases::new(dir.path());
    let too_little = ["train", "--tiny", "--memory-mib", "1", "--json"];
    bench(&mut cases, "hps-bench-memory", &too_little);
    bench(&mut cases, "hps-bench-none", &[]);
    cases.end();
}

#[test]
fn every_snapshot_has_its_case() {
    check_names(&["hps-bench"], |_| false);
}
