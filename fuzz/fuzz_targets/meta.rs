//! What does `decode_meta` make of any bytes, with wrong and with right checksums of header and
//! body?
//!
//! Promise: a value or an error, never a panic; what is taken is written again to the same bytes.

#![no_main]

use hps::format::meta::{decode_meta, encode_meta_header};
use hps_fuzz::{META, forge, identity, is_of_newest_version};
use libfuzzer_sys::fuzz_target;

fn decode(bytes: &[u8]) {
    let id = identity(META);
    if let Ok(meta) = decode_meta(bytes, &id) {
        let (header, sum) = encode_meta_header(&id, meta.checkpoint_id, meta.body);
        if is_of_newest_version(bytes) {
            assert_eq!(sum, meta.checksum, "checksum");
            let again = [header.as_slice(), meta.body].concat();
            assert_eq!(again, bytes, "written again");
        }
    }
}

fuzz_target!(|input: &[u8]| {
    decode(input);
    let mut bytes = input.to_vec();
    forge::meta(&mut bytes, &identity(META));
    decode(&bytes);
});
