//! The admin tools of hps, and what all its tools share on the command line.
//!
//! - `cli`: exit codes, progress, sizes; `hps-bench`, a package of its own, uses it too.
//! - `fsck`: is a store on disk whole?
//! - `compact`: how small can it be?
//! - `keyset`: which keys does a pass over a data set need?
//! - `export`, `import`: how do rows leave for other systems, and come in from them? `models`: what stands in
//!   their files.
//! - What several of these share: `durable` (when does a new file have its name for good?), `npy` (what
//!   does the header of a NumPy file say?), `parquet_file` (what is checked of a Parquet file?), `store` (how
//!   is a store opened that is only read?), `threads` (how do several do one piece of work?).

pub mod cli;
pub mod compact;
mod durable;
pub mod export;
pub mod fsck;
pub mod import;
pub mod keyset;
pub mod models;
mod npy;
#[cfg(feature = "parquet")]
pub mod parquet_file;
mod store;
mod threads;
