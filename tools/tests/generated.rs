//! Are the completions and man pages that are checked in those of the flags that there are?
//!
//! - `HPS_BLESS=1 cargo test -p hps-tools --test generated` writes them anew.
//! - A file that no tool has any more is an error, too.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test helpers fail the test"
)]

#[path = "support/pages.rs"]
mod pages;

use clap::{Command, CommandFactory};

use pages::{check, exit_codes};

/// Every tool of this package, one line each.
fn commands() -> Vec<Command> {
    vec![
        hps_tools::compact::Args::command(),
        hps_tools::export::Args::command(),
        hps_tools::fsck::Args::command(),
        hps_tools::import::Args::command(),
        hps_tools::keyset::Args::command(),
    ]
}

#[test]
fn exit_codes_are_told_apart_from_commas() {
    let codes = exit_codes("0 whole, 4 damage (of rows, of keys), 16 bad.");
    let meanings = codes.iter().map(|(code, text)| (*code, text.as_str()));
    assert_eq!(
        meanings.collect::<Vec<_>>(),
        [(0, "whole"), (4, "damage (of rows, of keys)"), (16, "bad")]
    );
}

#[test]
fn completions_are_those_of_the_flags() {
    check("completions", &pages::completions(commands()));
}

#[test]
fn man_pages_are_those_of_the_flags() {
    check("man", &pages::pages(commands()));
}
