//! The C API of `hps`: `libhps.so`, `libhps.a` and `include/hps.h`.
//!
//! Each exported function is one call of the Rust API behind a border that checks pointers, catches
//! panics and turns errors into codes. The rules for callers stand at the top of `include/hps.h`,
//! which `tools/header.sh` makes from this crate with cbindgen; docs/C.md is the manual.
//!
//! - `pointers`: the only code that dereferences what C passes. Other files say `unsafe` only to
//!   export functions by name.
//! - `border`, `cell`, `error`, `codes`: what all calls have in common; `walk`: what walks have.
//! - The rest: the exported functions, by what they are about.

// In this order they stand in the header.
mod store_calls;

mod options;
mod table_options;

mod descriptor;
mod tables;

mod batches;
mod many;

mod lease;
mod ticket;
mod update;

mod passes;

mod checkpoint;
mod rows;

mod changes;
mod stats;

mod log;

mod error;

/// What hps.h says of threads: any handle, on any of them.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<store_calls::StoreHandle>();
    shared::<options::OptionsHandle>();
    shared::<table_options::TableOptionsHandle>();
    shared::<descriptor::DescriptorHandle>();
    shared::<lease::LeaseHandle>();
    shared::<ticket::TicketHandle>();
    shared::<passes::PassTicketHandle>();
    shared::<passes::PassHandle>();
    shared::<checkpoint::CheckpointTicketHandle>();
    shared::<checkpoint::HoldHandle>();
    shared::<checkpoint::BytesHandle>();
    shared::<rows::RowsHandle>();
    shared::<changes::ChangesHandle>();
    shared::<stats::StatsHandle>();
    shared::<error::ErrorHandle>();
};

mod border;
mod cell;
mod codes;
mod pointers;
mod walk;
