//! What a file holds that was written through few small buffers, and what a failure leaves.

use super::*;
use crate::io::Engine;
use crate::io::sim::Fault;
use crate::ssd::tests::rows::Place;
use crate::units::{FileNumber, unmix64};

const NAME: &str = "000000000007.rows";

fn identity() -> FileIdentity {
    FileIdentity::new([7; 16], FileNumber(7))
}

fn row(hash: u64, width: usize) -> Vec<f32> {
    (0..width).map(|i| hash as f32 + i as f32 / 4.0).collect()
}

/// 300 rows of 23 f32s (112 bytes), 200 of one (24 bytes), 400 tombstones of the same table, and ten more
/// rows of another; asserts what the writer says of itself meanwhile.
fn fill(writer: &mut FileWriter<'_>) {
    let mut bytes = 4096;
    assert_eq!((writer.entries(), writer.bytes()), (0, bytes));
    for hash in 0..300 {
        writer.row(1, unmix64(hash), 3, &row(hash, 23));
        bytes += 112 + 13;
        assert_eq!(writer.bytes(), bytes);
    }
    for hash in 100..300 {
        writer.row(2, unmix64(hash), 2, &row(hash, 1));
        bytes += 24 + 13;
        assert_eq!(writer.bytes(), bytes);
    }
    for hash in 0..400 {
        writer.tombstone(2, unmix64(7 + hash * 10), 9);
        bytes += 13;
        assert_eq!(writer.bytes(), bytes);
    }
    (5000..5010).for_each(|hash| writer.row(4, unmix64(hash), 4, &row(hash, 2)));
    assert_eq!(writer.entries(), 910);
}

#[test]
fn a_file_is_the_same_whatever_the_buffers_and_as_long_as_it_says() {
    let mut contents = Vec::new();
    for (depth, buffer_bytes) in [(1, 4096), (2, 4096), (2, 8192), (4, 1 << 20)] {
        let place = Place::new();
        let mut queue = place.disk.queue(depth + 1, buffer_bytes).unwrap();
        let name = String::from(NAME);
        let writer = FileWriter::create(&place.directory, &mut *queue, name, identity(), 0);
        let mut writer = writer.unwrap();
        fill(&mut writer);
        let finished = writer.finish().unwrap();
        assert_eq!(queue.in_flight(), 0);
        let path = std::path::Path::new("/part").join(NAME);
        assert_eq!(finished.path, path);
        let content = place.disk.read_file(&path).unwrap();
        assert_eq!(finished.bytes, content.len() as u64);
        assert_eq!((finished.rows, finished.tombstones), (510, 400));
        let footer = &finished.footer;
        // Records from 4096 on: 300 of 112 bytes, 200 of 24, ten of 24; then three key blocks.
        let records = 4096 + 300 * 112 + 200 * 24 + 10 * 24_u64;
        assert_eq!(footer.keys_offset, records.next_multiple_of(4096));
        assert_eq!(finished.footer_offset, footer.keys_offset + 3 * 4096);
        assert_eq!(finished.bytes, finished.footer_offset + 4096);
        assert_eq!(
            (footer.entries, footer.hash_min, footer.hash_max),
            (910, 0, 5009)
        );
        assert_eq!((footer.interval_min, footer.interval_max), (2, 9));
        let runs: Vec<_> = footer
            .runs
            .iter()
            .map(|r| (r.table, r.first_entry, r.entries, r.offset, r.stride))
            .collect();
        let after = 4096 + 300 * 112;
        let expected = [
            (1, 0, 300, 4096, 112),
            (2, 300, 200, after, 24),
            (2, 500, 400, after + 200 * 24, 0),
            (4, 900, 10, after + 200 * 24, 24),
        ];
        assert_eq!(runs, expected);
        let at = usize::try_from(finished.footer_offset).unwrap();
        let read = Footer::decode(&content[at..], &identity(), finished.footer_offset);
        assert_eq!(read.unwrap(), (footer.clone(), finished.footer_checksum));
        contents.push(content);
    }
    assert!(contents.iter().all(|content| *content == contents[0]));
}

#[test]
fn a_writer_that_is_given_up_or_fails_leaves_no_file_and_nothing_in_flight() {
    let place = Place::new();
    let path = std::path::Path::new("/part").join(NAME);
    let mut queue = place.disk.queue(2, 4096).unwrap();
    let name = || String::from(NAME);
    let create = FileWriter::create(&place.directory, &mut *queue, name(), identity(), 0);
    let mut writer = create.unwrap();
    fill(&mut writer);
    assert!(place.disk.read_file(&path).is_ok());
    drop(writer);
    assert_eq!(queue.in_flight(), 0);
    assert!(place.disk.read_file(&path).is_err());
    let buffers = [0, 1].map(|_| queue.buffer().unwrap());
    for buffer in buffers {
        queue.recycle(buffer);
    }
    let writes = || place.disk.calls_by_kind()["write"];
    let before = writes();
    let create = FileWriter::create(&place.directory, &mut *queue, name(), identity(), 0);
    let mut writer = create.unwrap();
    fill(&mut writer);
    writer.finish().unwrap();
    place.disk.remove(&path).unwrap();
    let healthy = writes() - before;
    for fail in [1, 3, 6] {
        let mut queue = place.disk.queue(2, 4096).unwrap();
        let create = FileWriter::create(&place.directory, &mut *queue, name(), identity(), 0);
        let mut writer = create.unwrap();
        let before = writes();
        let next = place.disk.calls();
        place.disk.fail_at(next + fail, Fault::Error(5), false);
        fill(&mut writer);
        let error = writer.finish().unwrap_err();
        assert!(error.to_string().contains(NAME), "{error}");
        let made = writes() - before;
        assert!(made > fail && made < healthy, "{made} of {healthy} writes");
        assert_eq!(queue.in_flight(), 0);
        assert!(place.disk.read_file(&path).is_err());
        assert!((0..2).all(|_| queue.buffer().is_some()));
    }
    let taken = place.disk.write_file(&path, b"");
    taken.unwrap();
    let exists = FileWriter::create(&place.directory, &mut *queue, name(), identity(), 0);
    assert!(exists.err().unwrap().to_string().contains("create"));
    assert!(place.disk.read_file(&path).is_ok(), "it was not made here");
}
