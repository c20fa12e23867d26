//! Do the small examples do what they print?
#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

use std::path::PathBuf;
use std::process::Command;

/// What an example prints. `cargo test` builds them; with `--test examples` alone they must be there.
fn printed(name: &str) -> String {
    let test = std::env::current_exe().unwrap();
    let profile: PathBuf = test.parent().unwrap().parent().unwrap().to_path_buf();
    let output = Command::new(profile.join("examples").join(name)).output();
    let output =
        output.unwrap_or_else(|error| unreachable!("cargo build --example {name}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_quickstart_finds_what_it_has_trained() {
    let text = printed("quickstart");
    assert!(
        text.starts_with("step 100: the weights of key 7 are [1.0"),
        "{text}"
    );
}

#[test]
fn the_look_ahead_reads_from_the_device() {
    let text = printed("prefetch");
    let (rate, reads) = text.split_once(", ").unwrap();
    let rate: f64 = rate.strip_prefix("hit rate ").unwrap().parse().unwrap();
    let reads: u64 = reads.split(' ').next().unwrap().parse().unwrap();
    assert!(rate > 0.0 && rate < 1.0 && reads > 0, "{text}");
}

#[test]
fn the_restore_goes_on_and_goes_back() {
    let text = printed("restore");
    assert!(
        text.contains("go on after step 3 with data at row 3000; the row is [3.0]"),
        "{text}"
    );
    assert!(
        text.contains("step 1 beside it: the row was [1.0]"),
        "{text}"
    );
}
