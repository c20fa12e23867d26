//! Do places in a file beyond 4 GiB fit wherever they are counted?
//!
//! - Options let no file of rows grow so long, the format does. Writer and readers work on a file
//!   of which only what is not zero is kept in memory.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::fd::{BorrowedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::data_file::{DataFile, Location};
use super::reader::{RowBatch, RowReader, Want};
use super::scan::RunCursor;
use super::writer::{FileWriter, Finished};
use crate::format::FileIdentity;
use crate::format::manifest::FileMeta;
use crate::format::param_file::ROW_BYTES_MAX;
use crate::io::sim::SimDisk;
use crate::io::{
    Directory, DirectoryEntry, DirectoryId, DiskFile, Engine, LockGuard, LockKind, OpenMode, Space,
};
use crate::units::{CheckpointId, FileNumber, FileSlot, unmix64};

const LINE_BYTES: usize = 64;
const FOUR_GIB: u64 = 1 << 32;

/// A long file, most of it zeros.
#[derive(Debug, Default)]
struct Sparse {
    /// Lines that are not zero, by number.
    lines: Mutex<BTreeMap<u64, [u8; LINE_BYTES]>>,
    bytes: AtomicU64,
}

impl DiskFile for Sparse {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = self.bytes()?.saturating_sub(offset);
        let held = bytes.len().min(usize::try_from(left).unwrap());
        let lines = self.lines.lock().unwrap();
        for (number, piece) in (offset / 64..).zip(bytes[..held].chunks_mut(LINE_BYTES)) {
            let line = lines.get(&number).copied().unwrap_or([0; LINE_BYTES]);
            piece.copy_from_slice(&line[..piece.len()]);
        }
        Ok(held)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        assert!(offset.is_multiple_of(64) && bytes.len().is_multiple_of(LINE_BYTES));
        let mut lines = self.lines.lock().unwrap();
        for (number, piece) in (offset / 64..).zip(bytes.chunks_exact(LINE_BYTES)) {
            if piece != [0; LINE_BYTES] {
                lines.insert(number, piece.try_into().unwrap());
            }
        }
        let end = offset + bytes.len() as u64;
        self.bytes.fetch_max(end, Ordering::Relaxed);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.bytes.load(Ordering::Relaxed))
    }

    fn align_bytes(&self) -> usize {
        4096
    }

    fn is_direct(&self) -> bool {
        true
    }

    fn raw_fd(&self) -> Option<RawFd> {
        None
    }
}

/// A directory of one file.
#[derive(Debug)]
struct Only(Arc<Sparse>);

fn no<T>() -> io::Result<T> {
    Err(ErrorKind::Unsupported.into())
}

impl Directory for Only {
    fn path(&self) -> &Path {
        Path::new("/store")
    }
    fn id(&self) -> io::Result<DirectoryId> {
        no()
    }
    fn open(&self, _: &str, _: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::clone(&self.0) as Arc<dyn DiskFile>)
    }
    fn open_dir(&self, _: &Path) -> io::Result<Arc<dyn Directory>> {
        no()
    }
    fn create_dir(&self, _: &OsStr) -> io::Result<()> {
        no()
    }
    fn list(&self) -> io::Result<Vec<DirectoryEntry>> {
        no()
    }
    fn rename(&self, _: &OsStr, _: &OsStr) -> io::Result<()> {
        no()
    }
    fn exchange(&self, _: &OsStr, _: &OsStr) -> io::Result<()> {
        no()
    }
    fn remove(&self, _: &str) -> io::Result<()> {
        no()
    }
    fn hard_link(&self, _: &str, _: &dyn Directory, _: &str) -> io::Result<()> {
        no()
    }
    fn sync(&self) -> io::Result<()> {
        no()
    }
    fn lock(&self, _: &str, _: LockKind, _: bool) -> io::Result<Box<dyn LockGuard>> {
        no()
    }
    fn lock_whole(&self) -> io::Result<Box<dyn LockGuard>> {
        no()
    }
    fn space(&self) -> io::Result<Space> {
        no()
    }
    fn is_shared(&self) -> io::Result<bool> {
        no()
    }
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The key of the n-th row of a table, in the order of the file.
fn key(n: u64) -> u64 {
    unmix64(n << 32 | 7)
}

/// Weights of the widest rows there are, all zero but the first.
fn wide(n: u64) -> Vec<f32> {
    let mut row = vec![0.0; ROW_BYTES_MAX / 4];
    row[0] = n as f32;
    row
}

/// A file of `rows` of the widest rows, then as many narrow ones and removed keys as `few`.
fn write(file: &Arc<Sparse>, identity: FileIdentity, rows: u64, few: u64) -> Finished {
    let place: Arc<dyn Directory> = Arc::new(Only(Arc::clone(file)));
    let mut queue = SimDisk::new(1).queue(2, 1 << 20).unwrap();
    let name = String::from("000000000001.rows");
    let writer = FileWriter::create(&place, &mut *queue, name, identity, FOUR_GIB);
    let mut writer = writer.unwrap();
    let mut row = wide(0);
    for n in 0..rows {
        row[0] = n as f32;
        writer.row(0, key(n), 1, &row);
    }
    (0..few).for_each(|n| writer.row(1, key(n), 2, &[n as f32; 3]));
    (0..few).for_each(|n| writer.tombstone(1, key(few + n), 3));
    writer.finish().unwrap()
}

fn data_file(finished: Finished, identity: FileIdentity) -> Arc<DataFile> {
    let footer = finished.footer;
    let meta = FileMeta {
        number: FileNumber(1),
        directory: 0,
        rank: 1,
        bytes: finished.bytes,
        footer_offset: finished.footer_offset,
        footer_checksum: finished.footer_checksum,
        rows: finished.rows,
        tombstones: finished.tombstones,
        hash_min: footer.hash_min,
        hash_max: footer.hash_max,
        interval_min: footer.interval_min,
        interval_max: footer.interval_max,
        added: CheckpointId(1),
        removed: CheckpointId(u64::MAX),
    };
    let (path, file) = (finished.path, finished.file);
    Arc::new(DataFile::new(
        FileSlot::new(3),
        meta,
        footer,
        identity,
        path,
        file,
        true,
    ))
}

#[test]
fn rows_beyond_4_gib_of_a_file_are_written_and_read_at_their_places() {
    const FEW: u64 = 700;
    let identity = FileIdentity::new([7; 16], FileNumber(1));
    let file = Arc::new(Sparse::default());
    let rows = FOUR_GIB / ROW_BYTES_MAX as u64 + 50;
    let finished = write(&file, identity, rows, FEW);
    assert!(finished.footer.keys_offset > FOUR_GIB && finished.bytes == file.bytes().unwrap());
    let data = data_file(finished, identity);

    // Those on both sides of the border, across it, and the last.
    let beyond = |n: &u64| data.record(u32::try_from(*n).unwrap()).unwrap().0 > FOUR_GIB;
    let first = (0..rows).find(beyond).unwrap();
    let chosen = [0, first - 2, first - 1, first, first + 1, rows - 1];
    let wants = chosen.map(|n| Want {
        location: Location::new(FileSlot::new(3), false, u32::try_from(n).unwrap()),
        key: key(n),
        tag: u32::try_from(n).unwrap(),
        row_f32s: u32::try_from(ROW_BYTES_MAX / 4).unwrap(),
    });
    let mut queue = SimDisk::new(2).queue(4, 1 << 20).unwrap();
    let files = vec![Arc::clone(&data)];
    let width = ROW_BYTES_MAX / 4;
    let mut reader = RowReader::new(&mut *queue);
    reader.add(files, wants.to_vec()).unwrap();
    let (mut batch, mut seen) = (RowBatch::default(), 0);
    while reader.next(&mut batch, 1).unwrap() {
        for (tag, row) in batch.tags.iter().zip(batch.rows.chunks(width)) {
            assert!(*row == wide(u64::from(*tag)), "row {tag}");
            seen += 1;
        }
    }
    assert_eq!(seen, chosen.len());

    // A run that begins beyond the border, in its order.
    assert_eq!(data.runs.len(), 3);
    assert!(data.runs[1].offset > FOUR_GIB);
    let mut cursor = RunCursor::new(&data, 1, 64 << 10).unwrap();
    for n in 0..FEW {
        let entry = cursor.entry().unwrap();
        assert_eq!((entry.key, u64::from(entry.number)), (key(n), rows + n));
        let mut row = [0.0; 3];
        cursor.read_row(&mut row).unwrap();
        assert_eq!(row, [n as f32; 3]);
        cursor.advance().unwrap();
    }
    assert!(cursor.entry().is_none());
    let removed = RunCursor::new(&data, 2, 64 << 10).unwrap();
    assert_eq!(removed.entry().unwrap().key, key(FEW));
}
