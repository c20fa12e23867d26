//! What is a small store that has a file of every kind?
//!
//! - [`Tiny::new`] makes one on a simulated disk, the same each time but for the wall clock in its
//!   checkpoints: two tables, two retained checkpoints, removed keys, an index snapshot.
//! - [`Tiny::rows`] says what each checkpoint holds, to the bit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use hps::format::current::Current;
use hps::format::footer::{Footer, RunKind};
use hps::format::index_snapshot::{
    self, ENTRIES_PER_BLOCK, SnapshotEntry, encode_covered_block, encode_entry_block,
};
use hps::format::manifest::{Edit, FileMeta, ManifestReader, encode_manifest};
use hps::format::param_file::{decode_key_block, key_blocks};
use hps::format::{BLOCK_BYTES, CURRENT_NAME, FileKind, file_name};
use hps::io::sim::SimDisk;
use hps::ssd::create::{Unfinished, create};
use hps::ssd::edits::Replay;
use hps::{
    CheckpointId, FileNumber, Initialiser, Optimizer, RuntimeOptions, Store, TableDescriptor,
    TableId, Update, mix64,
};

use crate::forge::Files;
use crate::{STORE, identity};

/// Where the store is.
pub const ROOT: &str = "/store";
/// Its data directory.
const PART: &str = "/store/part-0";
/// Numbers of keys that may be in it.
pub const KEYS: u64 = 24;

/// Rows by (table, key), as bits.
pub type Rows = BTreeMap<(u32, u64), Vec<u32>>;

/// A key: both ends of u64 are among them.
#[must_use]
pub fn key(number: u64) -> u64 {
    match number {
        1 => u64::MAX,
        n => n.wrapping_mul(0x9e37_79b9_7f4a_7c15),
    }
}

/// The tables, by number.
#[must_use]
pub fn descriptors() -> [TableDescriptor; 2] {
    let narrow = TableDescriptor::new("narrow", 3)
        .optimizer(Optimizer::Adagrad)
        .initialiser(Initialiser::Constant { value: 0.5 })
        .accumulator(0.25);
    let wide = TableDescriptor::new("wide", 40)
        .optimizer(Optimizer::Sgd)
        .initialiser(Initialiser::Zero);
    [narrow, wide]
}

/// The row of a key that was never pushed.
#[must_use]
pub fn initial_row(table: u32) -> Vec<u32> {
    let (weight, width) = if table == 0 { (0.5f32, 3) } else { (0.0, 40) };
    let mut row = vec![weight.to_bits(); width];
    if table == 0 {
        row.extend([0.25f32.to_bits(); 3]);
    }
    row
}

/// Options under which a store does everything in the caller's thread.
#[must_use]
pub fn options() -> RuntimeOptions {
    OPTIONS.clone()
}

/// Made once: the defaults count the processors, which reads files of the kernel.
static OPTIONS: LazyLock<RuntimeOptions> = LazyLock::new(|| {
    RuntimeOptions::new()
        .cache_bytes(1 << 20)
        .shards(1)
        .threads(1)
        .io_depth(2)
        .file_bytes(1 << 20)
        .retain_checkpoints(2)
        .inline(true)
});

/// A valid store.
#[derive(Debug)]
pub struct Tiny {
    /// Its files.
    pub files: Files,
    /// Rows and meta of each retained checkpoint.
    pub checkpoints: BTreeMap<CheckpointId, (Rows, Vec<u8>)>,
}

/// Puts rows into a store and into the map of what it must hold.
///
/// # Errors
/// As the store's pull and push.
pub fn push(
    store: &Store,
    rows: &mut Rows,
    table: u32,
    keys: &[u64],
    value: u8,
) -> hps::Result<()> {
    let descriptor = &descriptors()[table as usize];
    let mut out = vec![0.0; keys.len() * descriptor.dim];
    let lease = store.pull(TableId(table), keys, &mut out)?;
    let width = descriptor.row_f32s();
    let new: Vec<f32> = (0..keys.len() * width)
        .map(|i| f32::from(value) + i as f32)
        .collect();
    store.push(&lease, Update::rows(&new))?;
    for (key, row) in keys.iter().zip(new.chunks(width)) {
        rows.insert((table, *key), row.iter().map(|v| v.to_bits()).collect());
    }
    Ok(())
}

impl Tiny {
    /// Makes the store.
    ///
    /// # Errors
    /// None that a working engine gives.
    pub fn new() -> hps::Result<Tiny> {
        Tiny::with(&mut |_, _| {})
    }

    /// As [`Tiny::new`]; `each` is told id and rows of every checkpoint, forgotten ones too.
    ///
    /// # Errors
    /// None that a working engine gives.
    pub fn with(each: &mut dyn FnMut(CheckpointId, &Rows)) -> hps::Result<Tiny> {
        let root = Path::new(ROOT);
        let disk = SimDisk::new(1);
        create(
            &disk,
            root,
            &[],
            (STORE, *b"tiny store's one"),
            Unfinished::Refused,
        )?;
        let store = Store::open_on(Arc::new(disk.clone()), root, options())?;
        for descriptor in descriptors() {
            store.create_table(&descriptor)?;
        }
        let keys = |range: std::ops::Range<u64>| range.map(key).collect::<Vec<u64>>();
        let mut rows = Rows::new();
        let mut checkpoints = BTreeMap::new();
        for round in 0..3 {
            let value = 10 * (round + 1);
            let from = u64::from(round) * 5;
            push(&store, &mut rows, 0, &keys(from..from + 8), value)?;
            push(&store, &mut rows, 1, &keys(from..from + 4), value + 5)?;
            for table in 0..2 {
                let gone = keys(from + 2..from + 4);
                store.remove(TableId(table), &gone)?;
                gone.iter()
                    .for_each(|key| drop(rows.remove(&(table, *key))));
            }
            let meta = vec![value; 40];
            let info = store.checkpoint(u64::from(value), &meta)?;
            each(info.id, &rows);
            checkpoints.insert(info.id, (rows.clone(), meta));
        }
        checkpoints.pop_first();
        store.close()?;
        let mut files = Files::new();
        for path in disk.paths() {
            let bytes = disk.read_file(&path).unwrap_or_default();
            files.insert(path, bytes);
        }
        let mut tiny = Tiny { files, checkpoints };
        tiny.add_snapshot();
        Ok(tiny)
    }

    /// The disk with these files instead of the store's.
    #[must_use]
    pub fn disk(files: &Files) -> SimDisk {
        let disk = SimDisk::new(1);
        for directory in [ROOT, PART] {
            drop(disk.create_dir(Path::new(directory)));
        }
        for (path, bytes) in files {
            drop(disk.write_file(path, bytes));
        }
        disk
    }

    /// Gives the store an index snapshot of its older checkpoint, which the engine makes only for
    /// larger stores; the manifest is written anew with it.
    fn add_snapshot(&mut self) {
        let root = Path::new(ROOT);
        let current_path = root.join(CURRENT_NAME);
        let current = Current::decode(&self.files[&current_path], &STORE).expect("CURRENT");
        let id = identity(current.manifest_number.0);
        let path = root.join(file_name(FileKind::Manifest, current.manifest_number));
        let committed = usize::try_from(current.manifest_bytes).expect("small");
        let reader = ManifestReader::new(&self.files[&path][..committed], &id).expect("manifest");
        let mut edits: Vec<Edit> = reader.collect::<Result<_, _>>().expect("edits");
        let mut replay = Replay::default();
        edits
            .iter()
            .for_each(|edit| replay.apply(edit.clone()).expect("replay"));
        let first = replay.checkpoints[0].id;
        let covered: Vec<FileMeta> = replay
            .files
            .into_values()
            .filter(|f| f.in_checkpoint(first))
            .collect();
        let number = FileNumber(current.file_number_limit.0 - 1);
        let (bytes, checksum) = self.snapshot(number, first, &covered);
        let edit = Edit::Snapshot {
            directory: 0,
            number,
            bytes: bytes.len() as u64,
            checksum,
        };
        edits.insert(edits.len() - 1, edit);
        self.files.insert(
            Path::new(PART).join(file_name(FileKind::Snapshot, number)),
            bytes,
        );

        let (out, digest) = encode_manifest(current.version, &edits, &id);
        let manifest_bytes = out.len() as u64;
        let current = Current {
            manifest_bytes,
            manifest_digest: digest,
            ..current
        };
        let copy = root.join(file_name(FileKind::ManifestCopy, current.manifest_number));
        self.files.insert(copy, out.clone());
        self.files.insert(path, out);
        self.files
            .insert(current_path, current.encode(&STORE).to_vec());
    }

    fn snapshot(
        &self,
        number: FileNumber,
        checkpoint: CheckpointId,
        covered: &[FileMeta],
    ) -> (Vec<u8>, u64) {
        let id = identity(number.0);
        let count = u32::try_from(covered.len()).expect("few files");
        let (header, mut tally) = index_snapshot::encode_part_header(&id, checkpoint, 0, count);
        let mut out = header.to_vec();
        let mut block = vec![0; BLOCK_BYTES];
        let numbers: Vec<FileNumber> = covered.iter().map(|file| file.number).collect();
        encode_covered_block(&mut block, &numbers, &id, &mut tally);
        out.extend_from_slice(&block);
        // The newest home of each key, in the order of (table, mix64(key)).
        let mut homes: BTreeMap<(u32, u64), (u64, SnapshotEntry)> = BTreeMap::new();
        for (file, ordinal) in covered.iter().zip(0..) {
            for (table, entry) in self.entries(file, ordinal) {
                let home = homes.entry((table, mix64(entry.key))).or_insert((0, entry));
                if file.rank >= home.0 {
                    *home = (file.rank, entry);
                }
            }
        }
        for table in 0..2 {
            let of_table = homes.range((table, 0)..=(table, u64::MAX));
            let entries: Vec<SnapshotEntry> = of_table.map(|(_, (_, entry))| *entry).collect();
            for entries in entries.chunks(ENTRIES_PER_BLOCK) {
                encode_entry_block(&mut block, table, entries, &id, &mut tally);
                out.extend_from_slice(&block);
            }
        }
        let (footer, checksum) = index_snapshot::encode_snapshot_footer(&id, &tally);
        out.extend_from_slice(&footer);
        (out, checksum)
    }

    /// The entries of a parameter file, with their tables.
    fn entries(&self, file: &FileMeta, ordinal: u32) -> Vec<(u32, SnapshotEntry)> {
        let path = PathBuf::from(PART).join(file_name(FileKind::Rows, file.number));
        let (bytes, id) = (&self.files[&path], identity(file.number.0));
        let at = |offset: u64| usize::try_from(offset).expect("small");
        let tail = &bytes[at(file.footer_offset)..];
        let (footer, _) = Footer::decode(tail, &id, file.footer_offset).expect("footer");
        let (mut keys, mut intervals) = (Vec::new(), Vec::new());
        for block in 0..key_blocks(footer.entries) {
            let offset = footer.keys_offset + block * BLOCK_BYTES as u64;
            let block = &bytes[at(offset)..at(offset) + BLOCK_BYTES];
            decode_key_block(block, &id, offset, &mut keys, &mut intervals).expect("key block");
        }
        let mut out = Vec::new();
        for run in &footer.runs {
            for entry in run.first_entry..run.first_entry + run.entries {
                let place = SnapshotEntry {
                    key: keys[at(entry)],
                    ordinal,
                    tombstone: run.kind == RunKind::Tombstones,
                    entry: u32::try_from(entry).expect("few entries"),
                    class: 0,
                };
                out.push((run.table, place));
            }
        }
        out
    }
}
