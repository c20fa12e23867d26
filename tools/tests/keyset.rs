//! Does `hps-keyset` do what it says, compared with `sort -u`, with sets in memory and with files that
//! NumPy wrote?
#![expect(clippy::unwrap_used, reason = "test helpers fail the test")]

#[path = "keysets/extract.rs"]
mod extract;
#[path = "support/python.rs"]
mod python;
#[path = "keysets/refused.rs"]
mod refused;
#[path = "../../tests/common/seed.rs"]
mod seed;
#[path = "keysets/sets.rs"]
mod sets;
#[path = "../../tests/common/skip.rs"]
mod skip;
#[path = "keysets/split.rs"]
mod split;
#[path = "keysets/support.rs"]
mod support;
