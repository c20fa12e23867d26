//! What do `ManifestReader` and `Replay` make of any bytes, with wrong checksums and with right
//! ones over header and records?
//!
//! Promise: a value or an error, never a panic; after an error nothing more is read; edits that
//! are taken are written again to the same bytes and the same digest; a replay says yes or no.

#![no_main]

use hps::format::manifest::{Edit, ManifestReader, encode_edit, encode_manifest_header};
use hps::ssd::edits::Replay;
use hps_fuzz::{MANIFEST, forge, identity};
use libfuzzer_sys::fuzz_target;

/// Reads all edits up to the first error; checks that they are written as they were read.
fn read(bytes: &[u8]) -> Vec<Edit> {
    let id = identity(MANIFEST);
    let Ok(mut reader) = ManifestReader::new(bytes, &id) else {
        return Vec::new();
    };
    let version = reader.version().expect("a header was read");
    let (header, mut digest) = encode_manifest_header(version, &id);
    let mut again = header.to_vec();
    let mut edits = Vec::new();
    let mut failed = false;
    for edit in reader.by_ref() {
        assert!(!failed, "an edit after an error");
        let Ok(edit) = edit else {
            failed = true;
            continue;
        };
        let offset = again.len() as u64;
        encode_edit(version, &edit, &id, offset, &mut again, &mut digest);
        edits.push(edit);
    }
    assert!(bytes.starts_with(&again), "written again");
    assert!(failed || again.len() == bytes.len(), "bytes left over");
    assert_eq!(reader.digest(), digest, "digest");
    edits
}

/// Applies edits until one is refused; the state keeps its order.
fn replay(edits: Vec<Edit>) {
    let mut replay = Replay::default();
    for edit in edits {
        if replay.apply(edit).is_err() {
            break;
        }
        assert!(
            replay.checkpoints.is_sorted_by(|a, b| a.id < b.id),
            "checkpoints rise"
        );
        assert!(
            replay
                .files
                .iter()
                .all(|(number, file)| *number == file.number)
        );
        let all_sane = replay.files.values().all(|file| file.added < file.removed);
        assert!(all_sane, "a file leaves after it came");
    }
}

fuzz_target!(|input: &[u8]| {
    read(input);
    let mut bytes = input.to_vec();
    forge::manifest(&mut bytes, &identity(MANIFEST));
    replay(read(&bytes));
});
