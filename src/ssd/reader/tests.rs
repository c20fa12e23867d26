//! Which reads are made for which rows, in which batches they come, and what an error leaves.

use super::*;
use crate::io::Engine;
use crate::io::sim::{Fault, SimDisk};
use crate::ssd::open_files::OpenFiles;
use crate::ssd::tests::rows::{Part, Place, row, rows, tombstones};
use crate::units::{FileNumber, FileSlot, to_usize, unmix64};

const EIO: i32 = 5;
const EMFILE: i32 = 24;
/// f32s of a row whose record takes one sector.
const SECTOR: usize = 124;

fn queue(depth: usize, buffer_bytes: usize) -> Box<dyn Queue> {
    SimDisk::new(3).queue(depth, buffer_bytes).unwrap()
}

/// Wants these entries of a file with one run, whose hashes are 0, 1, 2 and so on.
fn wants(file: u32, width: usize, entries: &[u32]) -> Vec<Want> {
    let want = |entry: &u32| Want {
        location: Location::new(FileSlot::new(to_usize(file)), false, *entry),
        key: unmix64(u64::from(*entry)),
        tag: file * 1000 + entry,
        row_f32s: u32::try_from(width).unwrap(),
    };
    entries.iter().map(want).collect()
}

/// A reader of one lot.
fn reader<'q>(
    queue: &'q mut dyn Queue,
    files: Vec<Arc<DataFile>>,
    wants: Vec<Want>,
) -> Result<RowReader<'q>> {
    let mut reader = RowReader::new(queue);
    reader.add(files, wants)?;
    Ok(reader)
}

/// File, offset, bytes, first and end of wants of each planned read.
type Planned = Vec<(usize, u64, usize, usize, usize)>;

fn planned(files: &[Arc<DataFile>], wants: Vec<Want>, buffer_bytes: usize) -> Planned {
    let mut queue = queue(2, buffer_bytes);
    let reader = reader(&mut *queue, files.to_vec(), wants).unwrap();
    let reads = reader.reads.iter();
    reads
        .map(|r| (r.file, r.offset, r.bytes, r.first, r.end))
        .collect()
}

#[test]
fn rows_share_a_read_up_to_the_gap_that_is_cheaper_to_read() {
    let place = Place::new();
    let file = place.shared(1, &[rows(0, SECTOR, 0..200)]);
    let plan = |entries: &[u32], buffer_bytes| {
        let wants = wants(1, SECTOR, entries);
        planned(&[Arc::clone(&file)], wants, buffer_bytes)
    };
    let at = |entry: u64| 4096 + 512 * entry;
    assert_eq!(GAP_BYTES, 12_288);
    assert_eq!(plan(&[7], 1 << 20), [(0, at(7), 512, 0, 1)]);
    // Whatever their order, and twice is once.
    assert_eq!(plan(&[9, 7, 8, 7], 1 << 20), [(0, at(7), 3 * 512, 0, 4)]);
    let (near, far) = (plan(&[7, 32], 1 << 20), plan(&[7, 33], 1 << 20));
    assert_eq!(near, [(0, at(7), 26 * 512, 0, 2)]);
    assert_eq!(far, [(0, at(7), 512, 0, 1), (0, at(33), 512, 1, 2)]);
    // No longer than a buffer.
    assert_eq!(plan(&[7, 28, 38], 16_384), [(0, at(7), 16_384, 0, 3)]);
    let two = [(0, at(7), 22 * 512, 0, 2), (0, at(39), 512, 2, 3)];
    assert_eq!(plan(&[7, 28, 39], 16_384), two);
}

#[test]
fn what_was_not_asked_for_yet_is_counted() {
    let place = Place::new();
    let file = place.shared(1, &[rows(0, SECTOR, 0..200)]);
    let mut queue = queue(2, 1 << 20);
    let mut reader = RowReader::new(&mut *queue);
    assert_eq!(reader.unasked(), 0);
    for lot in [&[0, 40, 80][..], &[120, 160]] {
        let wants = wants(1, SECTOR, lot);
        reader.add(vec![Arc::clone(&file)], wants).unwrap();
    }
    assert_eq!(reader.unasked(), 5);
    let mut batch = RowBatch::default();
    // Two are on their way at a time; the place of one that has arrived is filled when the next is waited for.
    for left in [3, 2, 1, 0, 0] {
        assert!(reader.next(&mut batch, 1).unwrap());
        assert_eq!((batch.tags.len(), reader.unasked()), (1, left));
    }
    assert!(!reader.next(&mut batch, 1).unwrap());
}

#[test]
fn of_several_data_directories_the_one_with_the_fewest_requests_left_is_known() {
    let place = Place::new();
    let files: Vec<Arc<DataFile>> = [(1, 0), (2, 2)]
        .map(|(number, directory)| {
            let mut file = place.file(number, &[rows(0, SECTOR, 0..200)]);
            file.meta.directory = directory;
            Arc::new(file)
        })
        .into();
    let mut queue = queue(2, 1 << 20);
    let mut reader = RowReader::new(&mut *queue);
    assert_eq!(reader.fewest_unasked(), 0, "nothing was planned");
    let mut lot = wants(1, SECTOR, &[0, 40, 80, 120, 160]);
    lot.extend(wants(2, SECTOR, &[0, 40]));
    reader.add(files, lot).unwrap();
    // None of directory 1, which does not count for the fewest.
    assert_eq!((reader.fewest_unasked(), reader.unasked()), (2, 7 / 3));
    let mut batch = RowBatch::default();
    for fewest in [1, 0, 0] {
        assert!(reader.next(&mut batch, 1).unwrap());
        assert_eq!(reader.fewest_unasked(), fewest);
    }
}

#[test]
fn a_read_begins_and_ends_where_the_device_can() {
    let place = Place::new();
    // Records of 24 bytes, 21 and a third in a sector.
    let parts = [tombstones(0, 0..30), rows(1, 1, 0..1000)];
    let file = place.shared(1, &parts);
    let plan = |entries: &[u32]| {
        let wants = entries.iter().map(|entry| Want {
            location: Location::new(FileSlot::new(1), false, 30 + entry),
            key: 0,
            tag: 0,
            row_f32s: 1,
        });
        planned(&[Arc::clone(&file)], wants.collect(), 1 << 20)
    };
    assert_eq!(plan(&[0, 3, 20]), [(0, 4096, 512, 0, 3)]);
    assert_eq!(plan(&[21]), [(0, 4096, 1024, 0, 1)]);
    assert_eq!(plan(&[22]), [(0, 4096 + 512, 512, 0, 1)]);
    assert_eq!(plan(&[64]), [(0, 4096 + 1536, 512, 0, 1)]);
    assert_eq!(plan(&[21, 22]), [(0, 4096, 1024, 0, 2)]);
    let mut queue = queue(1, 4096);
    let tombstone = Want {
        location: Location::new(FileSlot::new(1), true, 7),
        key: 0,
        tag: 0,
        row_f32s: 1,
    };
    let refused = reader(&mut *queue, vec![file], vec![tombstone]).err();
    let error = refused.unwrap().to_string();
    assert!(error.contains("entry 7 has no row"), "{error}");
}

/// Three files with the same keys.
fn three(place: &Place) -> Vec<Arc<DataFile>> {
    let parts = [rows(0, 3, 0..500)];
    (1..4).map(|n| place.shared(n, &parts)).collect()
}

/// Everything that is read, by tag.
fn all(reader: &mut RowReader<'_>, width: usize) -> Vec<(u32, Vec<f32>)> {
    let (mut batch, mut found) = (RowBatch::default(), Vec::new());
    while reader.next(&mut batch, 1).unwrap() {
        assert_eq!(batch.rows.len(), width * batch.tags.len());
        let rows = batch.rows.chunks(width).map(<[f32]>::to_vec);
        found.extend(batch.tags.iter().copied().zip(rows));
    }
    assert!(batch.tags.is_empty() && batch.rows.is_empty());
    found.sort_by_key(|(tag, _)| *tag);
    found
}

/// A file in each of some data directories, and so many rows of each, far from each other.
fn across(counts: &[u32]) -> (Vec<Arc<DataFile>>, Vec<Want>) {
    let place = Place::new();
    let one = |(directory, count): (u32, &u32)| {
        let mut file = place.file(u64::from(1 + directory), &[rows(0, SECTOR, 0..4000)]);
        file.meta.directory = directory;
        let far: Vec<u32> = (0..*count).map(|i| 100 * i).collect();
        (Arc::new(file), wants(1 + directory, SECTOR, &far))
    };
    let (files, wants): (Vec<_>, Vec<_>) = (0..).zip(counts).map(one).unzip();
    (files, wants.into_iter().flatten().collect())
}

fn asked_for(reader: &RowReader<'_>) -> Vec<usize> {
    reader.lanes.iter().map(|lane| lane.next).collect()
}

#[test]
fn each_data_directory_has_its_share_of_a_queue_and_what_others_leave() {
    for (depth, counts, expected) in [
        (8, [20, 20], [4, 4]),
        (8, [20, 2], [6, 2]),
        (8, [1, 39], [1, 7]),
        (8, [3, 3], [3, 3]),
        (1, [20, 20], [1, 0]),
    ] {
        let (files, wants) = across(&counts);
        let mut queue = queue(depth, 16_384);
        let mut reader = reader(&mut *queue, files, wants).unwrap();
        reader.fill_queue().unwrap();
        assert_eq!(asked_for(&reader), expected, "depth {depth}, {counts:?}");
        let in_flight: Vec<usize> = reader.lanes.iter().map(|lane| lane.in_flight).collect();
        assert_eq!(in_flight, expected);
        assert_eq!(
            all(&mut reader, SECTOR).len(),
            to_usize(counts[0] + counts[1])
        );
        let idle = |lane: &Lane| lane.in_flight == 0 && lane.open.is_none();
        assert!(reader.lanes.iter().all(idle));
    }
}

/// One with less depth than there are directories does not serve the first ones alone.
#[test]
fn data_directories_take_turns_in_a_short_queue() {
    let (files, wants) = across(&[20; 4]);
    let mut queue = queue(1, 16_384);
    let mut reader = reader(&mut *queue, files, wants).unwrap();
    let mut batch = RowBatch::default();
    for round in 1..=20 {
        for _ in 0..4 {
            assert!(reader.next(&mut batch, 1).unwrap());
        }
        assert_eq!(asked_for(&reader), [round; 4]);
    }
    assert!(!reader.next(&mut batch, 1).unwrap());
}

/// No descriptor is left, and those of another directory's last file are given back for it.
#[test]
fn a_directory_gives_its_open_file_back_where_no_descriptor_is_left() {
    let (files, wants) = across(&[2, 2]);
    let mut queue = queue(1, 16_384);
    let mut reader = reader(&mut *queue, files, wants).unwrap();
    let mut batch = RowBatch::default();
    assert!(reader.next(&mut batch, 1).unwrap());
    assert!(reader.lanes[0].open.is_some() && close_files(&mut reader.lanes));
    assert!(reader.lanes[0].open.is_none() && !close_files(&mut reader.lanes));
    assert_eq!(all(&mut reader, SECTOR).len(), 3);
}

#[test]
fn rows_of_several_files_come_with_their_names_and_reads_are_counted() {
    let place = Place::new();
    let files = three(&place);
    let slots: Vec<Option<Arc<DataFile>>> = [None]
        .into_iter()
        .chain(files.iter().cloned().map(Some))
        .collect();
    let wants: Vec<Want> = [(3, [499, 0]), (1, [498, 1]), (3, [1, 300])]
        .iter()
        .flat_map(|(file, entries)| wants(*file, 3, entries))
        .collect();
    let pinned = pin_files(&slots, &wants);
    let numbers: Vec<FileNumber> = pinned.iter().map(|file| file.meta.number).collect();
    assert_eq!(numbers, [1, 3].map(FileNumber));
    assert!(pin_files(&slots, &[]).is_empty());
    let mut queue = queue(2, 1 << 20);
    let mut reader = reader(&mut *queue, pinned, wants).unwrap();
    let (found, reads) = place.counted(|| all(&mut reader, 3));
    let expected = [1001, 1498, 3000, 3001, 3300, 3499];
    let expected = expected.map(|tag: u32| {
        let (file, entry) = (u64::from(tag / 1000), u64::from(tag % 1000));
        (tag, row(file, entry, 3))
    });
    assert_eq!(found, expected);
    // Those of the first file are further apart than the gap, those of the other share a read.
    let counted = (reader.count.reads, reader.count.bytes);
    assert_eq!(counted, (3, 512 + 512 + 16_384));
    assert_eq!(reads, counted);
}

/// Also where another file has the slot by then, and while earlier lots are read.
#[test]
fn lots_are_read_together_each_with_its_own_files() {
    let place = Place::new();
    let files = three(&place);
    let mut moved = place.file(9, &[rows(0, 3, 0..500)]);
    moved.slot = FileSlot::new(1);
    let mut queue = queue(2, 4096);
    let mut reader = RowReader::new(&mut *queue);
    let mut batch = RowBatch::default();
    assert!(!reader.poll(&mut batch, 1).unwrap() && !reader.next(&mut batch, 1).unwrap());
    reader
        .add(vec![Arc::clone(&files[0])], wants(1, 3, &[7, 490]))
        .unwrap();
    // Something of it comes in the end.
    assert!((0..10_000).any(|_| reader.poll(&mut batch, 1).unwrap()));
    let mut found: Vec<(u32, Vec<f32>)> = Vec::new();
    let rows_of = |batch: &RowBatch| -> Vec<(u32, Vec<f32>)> {
        let rows = batch.rows.chunks(3).map(<[f32]>::to_vec);
        batch.tags.iter().copied().zip(rows).collect()
    };
    found.extend(rows_of(&batch));
    let mut again = wants(1, 3, &[8]);
    again[0].tag = 9008;
    reader.add(vec![Arc::new(moved)], again).unwrap();
    reader
        .add(vec![Arc::clone(&files[2])], wants(3, 3, &[5]))
        .unwrap();
    found.extend(all(&mut reader, 3));
    found.sort_by_key(|(tag, _)| *tag);
    let expected = [(1007, 1, 7), (1490, 1, 490), (3005, 3, 5), (9008, 9, 8)];
    let expected = expected.map(|(tag, file, entry)| (tag, row(file, entry, 3)));
    assert_eq!(found, expected);
    // A lot that can't be read ends those before it.
    reader
        .add(vec![Arc::clone(&files[1])], wants(2, 3, &[1, 300]))
        .unwrap();
    assert!(reader.fill_queue().is_ok() && reader.queue.in_flight() == 2);
    let error = reader
        .add(vec![Arc::clone(&files[0])], wants(1, 3, &[500]))
        .unwrap_err();
    assert!(
        error.to_string().contains("entry 500 has no row"),
        "{error}"
    );
    assert_eq!(reader.queue.in_flight(), 0);
    assert!(!reader.next(&mut batch, 1).unwrap());
}

#[test]
fn a_batch_has_as_many_rows_as_asked_or_what_is_left() {
    let place = Place::new();
    let file = place.shared(1, &[rows(0, SECTOR, 0..200)]);
    // Five reads of a row each.
    let wants = wants(1, SECTOR, &[0, 40, 80, 120, 160]);
    for depth in [1, 2, 8] {
        let mut queue = queue(depth, 4096);
        let files = vec![Arc::clone(&file)];
        let mut reader = reader(&mut *queue, files, wants.clone()).unwrap();
        let mut batch = RowBatch::default();
        let mut sizes = Vec::new();
        while reader.next(&mut batch, 3).unwrap() {
            sizes.push(batch.tags.len());
        }
        assert_eq!(sizes, [3, 2], "depth {depth}");
        assert_eq!((reader.count.reads, reader.count.bytes), (5, 5 * 512));
    }
    // One that is not read to its end leaves nothing in flight.
    let mut queue = queue(4, 4096);
    let mut reader = reader(&mut *queue, vec![file], wants).unwrap();
    let mut batch = RowBatch::default();
    assert!(reader.next(&mut batch, 1).unwrap());
    assert_eq!(reader.queue.in_flight(), 3, "the queue is kept full");
    drop(reader);
    assert_eq!(queue.in_flight(), 0);
    assert!((0..4).all(|_| queue.buffer().is_some()));
}

#[test]
fn after_an_error_nothing_is_in_flight_and_no_row_comes() {
    let place = Place::new();
    let parts = [rows(0, SECTOR, 0..200)];
    let file = place.shared(1, &parts);
    let five = wants(1, SECTOR, &[0, 40, 80, 120, 160]);
    let failed = |file: &Arc<DataFile>, wants: &[Want]| {
        let mut queue = queue(3, 4096);
        let mut reader = reader(&mut *queue, vec![Arc::clone(file)], wants.to_vec());
        let reader = reader.as_mut().unwrap();
        let mut batch = RowBatch::default();
        let error = loop {
            if let Err(error) = reader.next(&mut batch, 1) {
                break error;
            }
        };
        assert_eq!(reader.queue.in_flight(), 0);
        assert!(!reader.next(&mut batch, 1).unwrap());
        error.to_string()
    };
    let mut other_key = five.clone();
    other_key[2].key += 1;
    let error = failed(&file, &other_key);
    assert!(error.contains("not of key"), "{error}");
    let next = place.disk.calls();
    place.disk.fail_at(next + 1, Fault::Error(EIO), false);
    let error = failed(&file, &five);
    assert!(error.contains("os error 5"), "{error}");
    // The file ends inside the last record.
    let bytes = place.disk.read_file(&Place::path(1)).unwrap();
    let path = Place::path(1);
    place.disk.remove(&path).unwrap();
    let end = 4096 + 160 * 512 + 100;
    place.disk.write_file(&path, &bytes[..end]).unwrap();
    let again = crate::format::data_file_name(FileNumber(1));
    let short = place
        .directory
        .open(&again, crate::io::OpenMode::ReadDirect);
    let short = Arc::new(file.view(short.unwrap()));
    let error = failed(&short, &five);
    assert!(error.contains("ends inside a record"), "{error}");
    place.disk.corrupt(&path, 4096 + 80 * 512 + 20, 1).unwrap();
    let error = failed(&short, &five[..4]);
    assert!(error.contains("record"), "{error}");
}

/// Two files that are closed, under one bound.
fn closed(place: &Place) -> (Arc<OpenFiles>, Vec<Arc<DataFile>>) {
    let open_files = OpenFiles::new(100, &Arc::default());
    let adopted = |number| {
        let part: Part = rows(0, 3, 0..100);
        let file = place.file(number, &[part]);
        let opened = file.file.get().unwrap();
        let handle = open_files.adopt(&place.directory, FileNumber(number), opened, true);
        Arc::new(DataFile {
            file: handle,
            ..file
        })
    };
    let files = (1..3).map(adopted).collect();
    assert!(open_files.give_back() && open_files.open() == 0);
    (open_files, files)
}

#[test]
fn without_a_descriptor_a_read_waits_for_those_in_flight() {
    let two = || [wants(1, 3, &[1]), wants(2, 3, &[2])].concat();
    let fails = |errno, rows_min, kept: bool| {
        let place = Place::new();
        let (open_files, files) = closed(&place);
        let wants = if kept { two() } else { wants(2, 3, &[2]) };
        if kept {
            // It can't be closed to have its descriptor back.
            open_files.keep(FileNumber(1)).unwrap();
        }
        let files = pin_files(
            &[vec![None], files.into_iter().map(Some).collect()].concat(),
            &wants,
        );
        let mut queue = queue(4, 4096);
        let mut reader = reader(&mut *queue, files, wants).unwrap();
        let next = place.disk.calls();
        place.disk.fail_at(next, Fault::Error(errno), false);
        let mut batch = RowBatch::default();
        let read = reader.next(&mut batch, rows_min);
        read.map(|_| batch.tags.clone()).map_err(|e| e.to_string())
    };
    assert_eq!(fails(EMFILE, 2, true).unwrap(), [1001, 2002]);
    assert_eq!(fails(EMFILE, 1, true).unwrap(), [1001]);
    for refused in [
        fails(EMFILE, 1, false),
        fails(EIO, 1, false),
        fails(EIO, 1, true),
    ] {
        let error = refused.unwrap_err();
        assert!(error.starts_with("open"), "{error}");
    }
}
