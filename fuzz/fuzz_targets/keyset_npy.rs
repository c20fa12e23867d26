//! What does `hps-keyset` make of any bytes as NumPy's array? The input is the bytes that are in memory
//! at a time, divided by four, then the file.
//!
//! Promise: records or an error that names a byte of the file, never a panic; the values are all that
//! stands behind the header, and, written with a header of ours, give the same records again; how much
//! of the file is in memory at a time changes nothing.

#![no_main]

use hps_fuzz::{Input, data_set, records};
use hps_tools::keyset::Format;
use hps_tools::models::npy;
use libfuzzer_sys::fuzz_target;

/// More than any input has.
const WHOLE: usize = 1 << 16;

fuzz_target!(|input: &[u8]| {
    let mut input = Input::new(input);
    let chunk_bytes = 4 * (1 + input.below(256));
    let file = input.take_all();
    let Some(found) = data_set::read(file, Format::Npy, WHOLE) else {
        data_set::compare_chunks(file, Format::Npy, chunk_bytes, None);
        return;
    };
    let header = records::npy_header(file).expect("a header");
    let data = &file[header..];
    if found.is_empty() {
        assert!(data.is_empty(), "bytes without records");
        return;
    }
    let columns = found[0].len();
    let width = data.len() / (found.len() * columns);
    assert!(width == 4 || width == 8, "values of {width} bytes");
    let mut plain = records::fixed(data, 0, columns, width).expect("whole rows");
    assert_eq!(found, plain.records, "values behind the header");
    plain.longest = plain.longest.max(header);
    data_set::compare_chunks(file, Format::Npy, chunk_bytes, Some(&plain));
    let mut again = npy::write("<u8", &[found.len() as u64, columns as u64]);
    let values = found.iter().flatten();
    again.extend(values.flat_map(|(_, value)| value.to_le_bytes()));
    let again = data_set::read(&again, Format::Npy, 2 * WHOLE);
    assert_eq!(again, Some(found), "written again");
});
