//! Are the completions and man pages of `hps-bench` those of the flags that there are?
//!
//! - `HPS_BLESS=1 cargo test -p hps-bench --test generated` writes them anew.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test helpers fail the test"
)]

#[path = "../../tests/support/pages.rs"]
mod pages;

use clap::CommandFactory;
use hps_bench::args::Args;

use pages::check;

#[test]
fn completions_are_those_of_the_flags() {
    check("completions", &pages::completions(vec![Args::command()]));
}

#[test]
fn man_pages_are_those_of_the_flags() {
    check("man", &pages::pages(vec![Args::command()]));
}
