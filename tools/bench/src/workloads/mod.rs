//! The workloads, one file for those that share a store.

pub mod checkpoint;
pub mod compaction;
pub mod disk;
pub mod growth;
pub mod index;
pub mod load;
pub mod memory;
pub mod reopen;
pub mod tables;
pub mod warm_restart;
