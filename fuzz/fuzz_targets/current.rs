//! What does `Current::decode` make of any bytes, with a wrong and with a right checksum?
//!
//! Promise: a value or an error, never a panic; what is taken is written again to the same bytes.

#![no_main]

use hps::format::Kind;
use hps::format::current::{CURRENT_BYTES, Current};
use hps_fuzz::{STORE, fix, identity, padded};
use libfuzzer_sys::fuzz_target;

fn decode(bytes: &[u8]) {
    if let Ok(current) = Current::decode(bytes, &STORE) {
        assert_eq!(current.encode(&STORE), bytes, "written again");
    }
}

fuzz_target!(|input: &[u8]| {
    decode(input);
    let mut bytes = padded(input, CURRENT_BYTES);
    fix(&mut bytes, &identity(0), Kind::Current, 0);
    decode(&bytes);
});
