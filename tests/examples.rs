//! Do the small examples do what they print?
#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/example.rs"]
mod example;

use std::process::Command;

use example::example;

/// What an example prints.
fn printed(name: &str) -> String {
    let output = Command::new(example(name).unwrap()).output().unwrap();
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
