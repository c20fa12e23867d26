//! Parameter files on a real file system, for benchmarks that write, read or merge them.

use std::sync::Arc;

use hps::format::FileIdentity;
use hps::format::manifest::FileMeta;
use hps::io::Io;
use hps::ssd::data_file::DataFile;
use hps::ssd::writer::FileWriter;
use hps::{CheckpointId, FileNumber, FileSlot, unmix64};

/// f32s of a row: 64 weights and their AdaGrad state.
pub const ROW_F32S: usize = 128;

/// A directory that is removed at the end, and the disk it is on.
pub struct Scratch {
    directory: tempfile::TempDir,
    pub io: Io,
}

impl Scratch {
    pub fn new() -> Scratch {
        let io = Io::best();
        Scratch {
            directory: tempfile::tempdir().unwrap(),
            io,
        }
    }

    /// Writes a file of rows that rise by hash; its rank is its number, its slot one less.
    pub fn write(&mut self, number: u64, hashes: &[u64]) -> Arc<DataFile> {
        let identity = FileIdentity::new([7; 16], FileNumber(number));
        let place = self.io.disk.open_dir(self.directory.path()).unwrap();
        let name = format!("{number}.param");
        let mut queue = self.io.engine.queue(4, 512 << 10).unwrap();
        let mut writer = FileWriter::create(&place, &mut *queue, name, identity, 0).unwrap();
        let row = [0.5; ROW_F32S];
        for hash in hashes {
            writer.row(0, unmix64(*hash), 1, &row);
        }
        let done = writer.finish().unwrap();
        let footer = &done.footer;
        let meta = FileMeta {
            number: FileNumber(number),
            directory: 0,
            rank: number,
            bytes: done.bytes,
            footer_offset: done.footer_offset,
            footer_checksum: done.footer_checksum,
            rows: done.rows,
            tombstones: 0,
            hash_min: footer.hash_min,
            hash_max: footer.hash_max,
            interval_min: 1,
            interval_max: 1,
            added: CheckpointId(1),
            removed: CheckpointId(u64::MAX),
        };
        let slot = FileSlot::new(usize::try_from(number - 1).unwrap());
        let (footer, path) = (done.footer, done.path);
        let file = DataFile::new(slot, meta, footer, identity, path, done.file, false);
        Arc::new(file)
    }
}
