//! What does `hps-keyset` make of any bytes as HugeCTR's Raw, and as keys? The input is labels, dense
//! values and slots of a sample (no slots: keys, of 8 bytes, or of 4 if there are labels), the bytes
//! that are in memory at a time, divided by four, then the file.
//!
//! Promise: the records of a plain reader, or an error that names a byte of the file, never a panic;
//! how much of it is in memory at a time changes nothing.

#![no_main]

use hps_fuzz::{Input, data_set, records};
use hps_tools::keyset::{Format, KeyType};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut input = Input::new(input);
    let (labels, dense, slots) = (input.below(4), input.below(16), input.below(32));
    let chunk_bytes = 4 * (1 + input.below(256));
    let file = input.take_all();
    let (format, plain) = match (slots, labels) {
        (0, 0) => (Format::Keys(KeyType::I64), records::fixed(file, 0, 1, 8)),
        (0, _) => (Format::Keys(KeyType::U32), records::fixed(file, 0, 1, 4)),
        (1.., _) => {
            let plain = records::fixed(file, 4 * (labels + dense), slots, 4);
            (Format::Raw(labels, dense, slots), plain)
        }
    };
    let plain = plain.filter(|_| slots > 0 || !file.is_empty());
    data_set::compare(file, format, chunk_bytes, plain.as_ref());
});
