//! One damaged parameter file, on the simulated disk.

use std::path::Path;

use super::*;
use crate::format::manifest::NOT_REMOVED;
use crate::io::Disk;
use crate::io::sim::{Fault, SimDisk};
use crate::io::{Directory, Engine};
use crate::options::TableDescriptor;

const STORE: [u8; 16] = [7; 16];
const CHECKPOINT: CheckpointId = CheckpointId(9);
const EIO: i32 = 5;
const ENOMEM: i32 = 12;

/// A disk with a directory.
struct Place {
    disk: SimDisk,
    place: Arc<dyn Directory>,
    queue: Box<dyn Queue>,
}

fn tables(dims: &[usize]) -> Vec<TableState> {
    let table = |dim: &usize| TableState {
        descriptor: TableDescriptor::new(&format!("t{dim}"), *dim),
        is_dropped: false,
    };
    dims.iter().map(table).collect()
}

fn row_of(key: u64, table: &TableState) -> Vec<f32> {
    let floats = table.descriptor.row_bytes() / 4;
    (0..floats)
        .map(|i| (key * 1000) as f32 + i as f32)
        .collect()
}

/// So many keys, rising by mix64.
fn keys(count: u64) -> Vec<u64> {
    by_hash(1..=count)
}

/// So many others.
fn removed(count: u64) -> Vec<u64> {
    by_hash(1_000_001..=1_000_000 + count)
}

fn by_hash(keys: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut keys: Vec<u64> = keys.collect();
    keys.sort_by_key(|key| mix64(*key));
    keys
}

fn one(range: Range<u32>) -> Vec<Range<u32>> {
    vec![range]
}

/// Of entry `i`.
fn interval_of(i: usize) -> u32 {
    u32::try_from(10 + i).unwrap()
}

impl Place {
    fn new() -> Place {
        let disk = SimDisk::new(1);
        disk.create_dir(Path::new("/part")).unwrap();
        Place {
            place: disk.open_dir(Path::new("/part")).unwrap(),
            queue: disk.queue(4, 64 << 10).unwrap(),
            disk,
        }
    }

    /// A file with rows and removed keys of each table.
    fn make(&mut self, number: u64, tables: &[TableState], rows: u64, gone: u64) -> FileMeta {
        let old = FileMeta {
            number: FileNumber(number),
            directory: 3,
            rank: 77,
            bytes: 0,
            footer_offset: 0,
            footer_checksum: 0,
            rows: 0,
            tombstones: 0,
            hash_min: 0,
            hash_max: 0,
            interval_min: 0,
            interval_max: 0,
            added: CheckpointId(2),
            removed: NOT_REMOVED,
        };
        let mut target = Target {
            queue: &mut *self.queue,
            directory: &self.place,
            store: STORE,
            number: FileNumber(number),
            checkpoint: CheckpointId(2),
        };
        let mut writer = target.writer().unwrap();
        for (table, state) in (0..).zip(tables) {
            for key in keys(rows) {
                let interval = interval_of(writer.entries());
                writer.row(table, key, interval, &row_of(key, state));
            }
            for key in removed(gone) {
                let interval = interval_of(writer.entries());
                writer.tombstone(table, key, interval);
            }
        }
        finish(writer, &old, FileNumber(number), CheckpointId(2)).unwrap()
    }

    fn path(number: u64) -> PathBuf {
        Path::new("/part").join(data_file_name(FileNumber(number)))
    }

    /// Changes bytes of a file.
    fn change(&self, number: u64, change: impl FnOnce(&mut [u8])) {
        let path = Place::path(number);
        let mut bytes = self.disk.read_file(&path).unwrap();
        change(&mut bytes);
        self.disk.write_file(&path, &bytes).unwrap();
    }

    fn save(&mut self, old: &FileMeta, tables: &[TableState], to: u64) -> Result<SavedFile> {
        let identity = FileIdentity::new(STORE, old.number);
        let mut target = Target {
            queue: &mut *self.queue,
            directory: &self.place,
            store: STORE,
            number: FileNumber(to),
            checkpoint: CHECKPOINT,
        };
        save(Some(&*self.place), &identity, old, tables, &mut target)
    }

    fn exists(&self, number: u64) -> bool {
        self.disk.read_file(&Place::path(number)).is_ok()
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

/// Where the key blocks of a file without sections are.
fn keys_offset(meta: &FileMeta) -> u64 {
    let blocks = param_file::key_blocks(meta.rows + meta.tombstones);
    meta.footer_offset - blocks * BLOCK_BYTES
}

#[test]
fn entries_without_a_name_are_counted_by_ranges() {
    let mut saved = SavedFile::default();
    for entry in [3, 4, 5, 9, 10, 12] {
        saved.add_nameless(entry);
    }
    assert_eq!(saved.nameless, [3..6, 9..11, 12..13]);
}

#[test]
fn a_window_of_a_file_is_read_once_and_follows_what_is_asked() {
    let place = Place::new();
    let length = 2 * WINDOW_BYTES + WINDOW_BYTES / 2;
    let byte = |i: u64| u8::try_from((i / 7 * 31 + i / 4096) % 251).unwrap();
    let bytes: Vec<u8> = (0..length).map(byte).collect();
    place.disk.write_file(&Place::path(1), &bytes).unwrap();
    let mut source = Source::open(&*place.place, &data_file_name(FileNumber(1)))
        .unwrap()
        .unwrap();
    let mut at = |offset: u64, count: usize| {
        let found = source.bytes(offset, count).to_vec();
        let right = &bytes[index(offset)..(index(offset) + count).min(bytes.len())];
        assert_eq!(found.len(), count, "{offset}");
        assert!(&found[..right.len()] == right, "{count} bytes at {offset}");
        assert!(
            found[right.len()..].iter().all(|b| *b == 0),
            "behind the end"
        );
        place.disk.read_bytes()
    };
    let first = at(0, 100);
    assert_eq!(at(5000, 70), first);
    assert_eq!(at(0, 4096), first, "from its start");
    assert_eq!(at(WINDOW_BYTES - 4096, 4096), first, "to its end");
    let second = at(WINDOW_BYTES - 50, 100);
    assert!(second > first, "across its end");
    // From the start of a block on.
    assert_eq!(at(WINDOW_BYTES - 4096, 4096), second);
    assert_eq!(at(2 * WINDOW_BYTES - 4096 - 8, 8), second);
    assert!(at(2 * WINDOW_BYTES + 1234, 999) > second);
    assert!(at(8192, 24) > second, "back");
    at(length - 10, 100);
    at(12_345, 1 << 19);
}

/// Two runs of each kind, and more keys than fit into one block.
#[test]
fn all_of_a_sound_file_is_saved_with_its_rank_and_its_intervals() {
    let (mut place, tables) = (Place::new(), tables(&[4, 9]));
    let old = place.make(1, &tables, 400, 120);
    let saved = place.save(&old, &tables, 2).unwrap();
    assert_eq!(saved.entries, 2 * 520);
    assert!(saved.lost.is_empty() && saved.nameless.is_empty() && !saved.guessed);
    let written = saved.written.unwrap();
    let right = FileMeta {
        number: FileNumber(2),
        added: CHECKPOINT,
        footer_checksum: written.footer_checksum,
        ..old
    };
    assert_eq!(written, right);
    // The first table's rows and removed keys, and both of the second.
    let mut source = Source::open(&*place.place, &data_file_name(FileNumber(2)))
        .unwrap()
        .unwrap();
    let identity = FileIdentity::new(STORE, FileNumber(2));
    let places = (keys_offset(&written), written.bytes);
    let entries = Entries::read(&mut source, &identity, &written, places);
    let of_table = || keys(400).into_iter().chain(removed(120));
    let expected: Vec<u64> = of_table().chain(of_table()).collect();
    for (i, key) in expected.into_iter().enumerate() {
        assert_eq!(entries.get(i as u64), Some((key, interval_of(i))));
    }
    assert_eq!(entries.get(2 * 520), None);
}

#[test]
fn a_damaged_record_costs_one_row_which_its_key_block_names() {
    let (mut place, tables) = (Place::new(), tables(&[4]));
    let old = place.make(1, &tables, 400, 5);
    let stride = param_file::record_stride(tables[0].descriptor.row_bytes()) as u64;
    let keys_offset = keys_offset(&old);
    place.change(1, |bytes| bytes[index(4096 + 7 * stride)] ^= 1);
    let saved = place.save(&old, &tables, 2).unwrap();
    assert_eq!(saved.lost, [(0, keys(400)[7])]);
    assert_eq!((saved.entries, saved.guessed), (404, false));
    assert!(saved.nameless.is_empty());
    // Its key block as well: the others of that block stand for themselves, with the greatest interval.
    place.change(1, |bytes| bytes[index(keys_offset + 100)] ^= 1);
    let saved = place.save(&old, &tables, 3).unwrap();
    assert_eq!(saved.nameless, one(7..8));
    assert!(saved.lost.is_empty() && saved.guessed);
    assert_eq!(saved.entries, 404);
    let written = saved.written.unwrap();
    assert_eq!((written.rows, written.tombstones), (399, 5));
    let first_known = interval_of(KEYS_PER_BLOCK);
    assert_eq!(
        (written.interval_min, written.interval_max),
        (first_known, old.interval_max)
    );
    // A block of removed keys has nothing else that says what they are.
    place.change(1, |bytes| bytes[index(keys_offset + 4096 + 100)] ^= 1);
    let saved = place.save(&old, &tables, 4).unwrap();
    assert_eq!(saved.nameless, [7..8, 400..405]);
    let written = saved.written.unwrap();
    assert_eq!(written.interval_min, old.interval_max);
}

/// Under a right checksum: its place says another key, and rows of a run rise.
#[test]
fn a_key_that_a_run_has_had_is_not_written_again() {
    let (mut place, tables) = (Place::new(), tables(&[4]));
    let old = place.make(1, &tables, 50, 0);
    let stride = param_file::record_stride(tables[0].descriptor.row_bytes());
    let identity = FileIdentity::new(STORE, FileNumber(1));
    let (second, keys_offset) = (4096 + stride, keys_offset(&old));
    place.change(1, |bytes| {
        let row = row_of(1, &tables[0]);
        let to = &mut bytes[second..second + stride];
        param_file::encode_record(to, keys(50)[0], &row, &identity, second as u64);
        bytes[index(keys_offset + 10)] ^= 1;
    });
    let saved = place.save(&old, &tables, 2).unwrap();
    assert_eq!(saved.nameless, one(1..2));
    assert_eq!(saved.entries, 49);
}

#[test]
fn no_file_is_written_where_nothing_verifies() {
    let (mut place, tables) = (Place::new(), tables(&[4, 9]));
    let old = place.make(1, &tables, 30, 3);
    place.change(1, |bytes| bytes[4096..index(old.footer_offset)].fill(0));
    let saved = place.save(&old, &tables, 2).unwrap();
    assert_eq!(saved.nameless, one(0..66));
    assert!(saved.written.is_none() && saved.entries == 0 && saved.lost.is_empty());
    assert!(!place.exists(2));
    place.change(1, |bytes| bytes.fill(0));
    let saved = place.save(&old, &tables, 2).unwrap();
    assert_eq!(saved.nameless, one(0..66));
}

#[test]
fn rows_and_removed_keys_of_a_file_that_is_gone_are_counted() {
    let (mut place, tables) = (Place::new(), tables(&[4]));
    let old = place.make(1, &tables, 30, 3);
    let gone = |place: &mut Place, what: &str| {
        let saved = place.save(&old, &tables, 2).unwrap();
        assert_eq!(saved.nameless, one(0..33), "{what}");
        assert!(saved.written.is_none() && !place.exists(2), "{what}");
    };
    place
        .disk
        .fail_at(place.disk.calls(), Fault::Error(EIO), false);
    gone(&mut place, "the device can't open it");
    place.disk.remove(&Place::path(1)).unwrap();
    gone(&mut place, "removed");
    place.disk.create_dir(&Place::path(1)).unwrap();
    gone(&mut place, "a directory");
    let identity = FileIdentity::new(STORE, FileNumber(1));
    let mut target = Target {
        queue: &mut *place.queue,
        directory: &place.place,
        store: STORE,
        number: FileNumber(2),
        checkpoint: CHECKPOINT,
    };
    let saved = save(None, &identity, &old, &tables, &mut target).unwrap();
    assert_eq!(saved.nameless, one(0..33), "its directory is gone");
}

/// Another file of the same number and store, such as one of a restored backup, has a footer that
/// verifies; the manifest says which is meant.
#[test]
fn runs_are_believed_only_of_the_footer_that_the_manifest_means() {
    let (mut place, two) = (Place::new(), tables(&[4, 9]));
    let old = place.make(1, &two, 30, 3);
    let mut of = |meta: &FileMeta, tables: &[TableState], to: u64| {
        place.save(meta, tables, to).unwrap().entries
    };
    assert_eq!(of(&old, &two, 2), 66);
    let checksum = old.footer_checksum ^ 1;
    let other = FileMeta {
        footer_checksum: checksum,
        ..old
    };
    assert_eq!(of(&other, &two, 3), 0, "another footer");
    let rows = old.rows + 1;
    assert_eq!(of(&FileMeta { rows, ..old }, &two, 4), 0, "other entries");
    assert_eq!(of(&old, &tables(&[4, 5]), 5), 0, "other rows");
}

/// A repair wrote the rows of dropped tables into each file that it wrote anew, whence only a compaction
/// took them out again, and counted those that did not verify among the rows that are lost.
#[test]
fn entries_of_a_dropped_table_are_left_out_and_not_missed() {
    let (mut place, mut tables) = (Place::new(), tables(&[4, 9, 5]));
    let old = place.make(1, &tables, 40, 10);
    let stride = |table: &TableState| param_file::record_stride(table.descriptor.row_bytes());
    let second = 4096 + 40 * stride(&tables[0]);
    // A row of the second table, by its record; and the block that names all keys.
    place.change(1, |bytes| bytes[second] ^= 1);
    let saved = place.save(&old, &tables, 2).unwrap();
    assert_eq!(saved.lost, [(1, keys(40)[0])]);
    assert_eq!(saved.entries, 149);
    tables[1].is_dropped = true;
    let saved = place.save(&old, &tables, 3).unwrap();
    assert!(saved.lost.is_empty() && saved.nameless.is_empty());
    let written = saved.written.unwrap();
    assert_eq!((written.rows, written.tombstones), (80, 20));
    assert_eq!(saved.entries, 100);
    let block = keys_offset(&old);
    place.change(1, |bytes| bytes[index(block + 100)] ^= 1);
    let saved = place.save(&old, &tables, 4).unwrap();
    assert_eq!(
        saved.nameless,
        [40..50, 140..150],
        "removed keys of the others"
    );
    assert_eq!(saved.entries, 80);
    for table in &mut tables {
        table.is_dropped = true;
    }
    let saved = place.save(&old, &tables, 5).unwrap();
    assert!(saved.written.is_none() && !place.exists(5));
    assert_eq!((saved.entries, saved.nameless.len()), (0, 0));
}

#[test]
fn where_there_is_one_table_its_runs_are_known_without_a_footer() {
    let (mut place, one) = (Place::new(), tables(&[4]));
    for (number, rows, gone) in [(1, 40, 0), (2, 0, 40), (3, 400, 350)] {
        let old = place.make(number, &one, rows, gone);
        let mut source = Source::open(&*place.place, &data_file_name(FileNumber(number)))
            .unwrap()
            .unwrap();
        let identity = FileIdentity::new(STORE, FileNumber(number));
        let right = places_of_footer(&mut source, &identity, &old, &one).unwrap();
        assert_eq!(places_of_one_table(&old, &one).unwrap(), right);
        assert_eq!(right.runs.len(), 1 + usize::from(rows > 0 && gone > 0));
        assert!(places_of_one_table(&old, &tables(&[4, 9])).is_none());
        if rows > 0 {
            assert!(places_of_one_table(&old, &tables(&[2000])).is_none());
        }
    }
}

/// Only what the device has lost may be given up.
#[test]
fn a_read_that_fails_for_want_of_memory_gives_up_no_row() {
    let (mut place, tables) = (Place::new(), tables(&[4]));
    let old = place.make(1, &tables, 30, 3);
    let before = place.disk.calls();
    assert_eq!(place.save(&old, &tables, 2).unwrap().entries, 33);
    let calls = place.disk.calls() - before;
    for call in 0..calls {
        // A read that failed is made again, piece by piece.
        for n in 0..2 {
            let call = place.disk.calls() + call + n;
            place.disk.fail_at(call, Fault::Error(ENOMEM), false);
        }
        let number = 10 + call;
        assert!(place.save(&old, &tables, number).is_err(), "call {call}");
        place.disk.clear_faults();
    }
    // Opened, but not measured: no key block is looked for.
    place
        .disk
        .fail_at(place.disk.calls() + 1, Fault::Error(EIO), false);
    let saved = place.save(&old, &tables, 3).unwrap();
    assert_eq!((saved.entries, saved.guessed), (30, true));
    assert_eq!(saved.nameless, one(30..33));
}
