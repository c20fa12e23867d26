//! What does `hps-keyset` make of any bytes as HugeCTR's Norm? The input is flags (1: keys of 4 bytes,
//! 2: right sums), the bytes that are in memory at a time, divided by four, then the file.
//!
//! Promise: the records of a plain reader, or an error that names a byte of the file, never a panic;
//! how much of it is in memory at a time changes nothing.

#![no_main]

use hps_fuzz::{Input, data_set, records};
use hps_tools::keyset::{Format, KeyType};
use libfuzzer_sys::fuzz_target;

/// Puts right sums behind the header and all units.
fn forge(file: &mut [u8]) {
    let mut at = 0;
    while let Some(length) = file.get(at..at + 4) {
        let length = i32::from_le_bytes(length.try_into().expect("four bytes"));
        let Ok(length) = usize::try_from(length) else {
            return;
        };
        let Some(bytes) = file.get(at + 4..at + 4 + length) else {
            return;
        };
        let sum = bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        at += 4 + length;
        let Some(place) = file.get_mut(at) else {
            return;
        };
        *place = sum;
        at += 1;
    }
}

fuzz_target!(|input: &[u8]| {
    let mut input = Input::new(input);
    let flags = input.number(1);
    let chunk_bytes = 4 * (1 + input.below(256));
    let mut file = input.take_all().to_vec();
    if flags & 2 != 0 {
        forge(&mut file);
    }
    let keys = [KeyType::I64, KeyType::U32][(flags & 1) as usize];
    let plain = records::norm(&file, keys.bytes());
    data_set::compare(&file, Format::Norm(keys), chunk_bytes, plain.as_ref());
});
