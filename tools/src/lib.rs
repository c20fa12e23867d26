//! What do the command line tools of hps share?
//!
//! - `cli`: exit codes, progress, sizes.
//! - `fsck`: is a store on disk whole?
//! - `compact`: how small can it be?
//! - `bench`: the workloads of `hps-bench`, and the machine's own limits beside them.
//! - `trace`: recorded keys, replayed through cache policies.
//! - `peers` (feature): other stores under the same workloads.

pub mod bench;
pub mod cli;
pub mod compact;
pub mod fsck;
#[cfg(feature = "peers")]
pub mod peers;
pub mod trace;
