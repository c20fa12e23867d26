//! What do `StoreIdentity::decode` and `decode_part` make of any bytes, with a wrong and with a
//! right checksum? The first byte says which; the rest is the file.
//!
//! Promise: a value or an error, never a panic; what is taken is written again to the same bytes,
//! and names 1 to 256 directories, or an index below 256.

#![no_main]

use hps::FileNumber;
use hps::format::DIRECTORIES_MAX;
use hps::format::checksum::{FileIdentity, Kind, ZERO_STORE};
use hps::format::identity::{PART_BYTES, STORE_BYTES, StoreIdentity, decode_part, encode_part};
use hps_fuzz::{Input, STORE, fix, identity, is_of_newest_version, padded, u64_at};
use libfuzzer_sys::fuzz_target;

/// Where the index is in `PART`, which seeds the checksum.
const INDEX_AT: usize = 48;

fn decode_store(bytes: &[u8]) {
    if let Ok(store) = StoreIdentity::decode(bytes) {
        assert!((1..=DIRECTORIES_MAX).contains(&store.directories.len()));
        let again = store.encode().expect("what is taken can be written");
        if is_of_newest_version(bytes) {
            assert_eq!(again.as_slice(), bytes, "written again");
        }
    }
}

fn decode_directory(bytes: &[u8]) {
    if let Ok(index) = decode_part(bytes, &STORE) {
        assert!((index as usize) < DIRECTORIES_MAX);
        if is_of_newest_version(bytes) {
            let again = encode_part(&STORE, index);
            assert_eq!(again.as_slice(), bytes, "written again");
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let mut input = Input::new(input);
    if input.below(2) == 0 {
        let file = input.take_all();
        decode_store(file);
        let mut bytes = padded(file, STORE_BYTES);
        fix(
            &mut bytes,
            &FileIdentity::new(ZERO_STORE, FileNumber(0)),
            Kind::Identity,
            0,
        );
        decode_store(&bytes);
    } else {
        let file = input.take_all();
        decode_directory(file);
        let mut bytes = padded(file, PART_BYTES);
        let index = u64_at(&bytes, INDEX_AT);
        fix(&mut bytes, &identity(index), Kind::Part, 0);
        decode_directory(&bytes);
    }
});
