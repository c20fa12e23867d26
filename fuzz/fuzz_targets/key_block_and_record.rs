//! What do the decoders of key blocks and records make of any bytes, with a wrong and with a right
//! checksum? The first byte says which; a record's width in words and its place follow.
//!
//! Promise: a value or an error, never a panic; an error changes nothing of the caller's; what is
//! taken is written again to the same bytes; a row of another key is refused.

#![no_main]

use hps::format::param_file::{
    decode_key_block, decode_record, encode_key_block, encode_record_bytes, record_stride,
    view_record,
};
use hps::format::{BLOCK_BYTES, Kind};
use hps_fuzz::{Input, ROWS, fix, identity, padded};
use libfuzzer_sys::fuzz_target;

fn key_block(bytes: &[u8], offset: u64) {
    let id = identity(ROWS);
    let (mut keys, mut intervals) = (vec![7], vec![9]);
    match decode_key_block(bytes, &id, offset, &mut keys, &mut intervals) {
        Err(_) => assert_eq!((keys, intervals), (vec![7], vec![9]), "nothing is appended"),
        Ok(sum) => {
            let mut again = vec![0xee; BLOCK_BYTES];
            let found = encode_key_block(&mut again, &keys[1..], &intervals[1..], &id, offset);
            assert_eq!((again.as_slice(), found), (bytes, sum), "written again");
        }
    }
}

fn record(bytes: &[u8], words: usize, offset: u64) {
    let id = identity(ROWS);
    let mut row = vec![f32::MAX; words];
    let Ok(view) = view_record(bytes, words * 4, &id, offset) else {
        assert!(decode_record(bytes, &mut row, &id, offset, None).is_err());
        assert!(
            row.iter().all(|value| *value == f32::MAX),
            "an error leaves the row"
        );
        return;
    };
    let mut again = vec![0xee; bytes.len()];
    let sum = encode_record_bytes(&mut again, view.key, view.row, &id, offset);
    assert_eq!(
        (again.as_slice(), sum),
        (bytes, view.checksum),
        "written again"
    );
    assert_eq!(
        decode_record(bytes, &mut row, &id, offset, Some(view.key)),
        Ok(view.key)
    );
    let other = Some(view.key ^ 1);
    assert!(
        decode_record(bytes, &mut row, &id, offset, other).is_err(),
        "another key"
    );
}

fuzz_target!(|input: &[u8]| {
    let mut input = Input::new(input);
    let which = input.below(2);
    let words = usize::try_from(input.number(2)).unwrap_or(0);
    let offset = input.number(4) * 8;
    let file = input.take_all();
    if which == 0 {
        key_block(file, offset);
        let mut bytes = padded(file, BLOCK_BYTES);
        fix(&mut bytes, &identity(ROWS), Kind::KeyBlock, offset);
        key_block(&bytes, offset);
    } else {
        record(file, words, offset);
        let mut bytes = padded(file, record_stride(words.min(1 << 10) * 4));
        fix(&mut bytes, &identity(ROWS), Kind::Record, offset);
        record(&bytes, words, offset);
    }
});
