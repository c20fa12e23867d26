//! What does `hps-keyset` make of any text as Criteo's? The input is the bytes that are in memory at a
//! time, divided by four, then the file.
//!
//! Promise: the records of a plain reader, or an error that names a byte of the file, never a panic;
//! how much of it is in memory at a time changes nothing.

#![no_main]

use hps_fuzz::{Input, data_set, records};
use hps_tools::keyset::Format;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut input = Input::new(input);
    let chunk_bytes = 4 * (1 + input.below(256));
    let file = input.take_all();
    let plain = records::criteo(file);
    data_set::compare(file, Format::CriteoTsv, chunk_bytes, plain.as_ref());
});
