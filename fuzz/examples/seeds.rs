//! Which inputs do the fuzz targets start from?
//!
//! `cargo run --manifest-path fuzz/Cargo.toml --example seeds` writes `fuzz/corpus`, from the files
//! in `tests/data/golden-v2` (each at the place in its target's input that it has there) and from
//! short lists of changes and operations below. The same each time.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use hps::format::delta::Delta;
use hps::format::index_snapshot::ORDINAL_SHIFT;
use hps::{CheckpointId, Store};
use hps_fuzz::forge::Files;
use hps_fuzz::hostile::Changed;
use hps_fuzz::tiny::{ROOT, Tiny, options};
use hps_fuzz::{STORE, parquets, records, u32_at, u64_at};
use hps_tools::models::npy;

/// Blocks of the golden files.
const BLOCK: usize = 4096;
/// Largest seed.
const SEED_BYTES_MAX: usize = 8 << 10;

type Failure = Box<dyn std::error::Error>;

/// Bytes up to the last one that is not zero.
fn trimmed(bytes: &[u8]) -> &[u8] {
    let end = bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |at| at + 1);
    &bytes[..end]
}

fn write(target: &str, name: &str, bytes: &[u8]) -> Result<(), Failure> {
    if bytes.len() > SEED_BYTES_MAX {
        return Err(format!("{target}/{name}: {} bytes are too many", bytes.len()).into());
    }
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    fs::create_dir_all(&directory)?;
    fs::write(directory.join(name), bytes)?;
    Ok(())
}

fn golden(name: &str) -> Result<Vec<u8>, Failure> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/golden-v2");
    Ok(fs::read(directory.join(name))?)
}

fn small_files() -> Result<(), Failure> {
    write("current", "golden", &golden("CURRENT")?)?;
    let (store, part) = (golden("STORE")?, golden("PART")?);
    write("store_identity", "store", &[&[0], trimmed(&store)].concat())?;
    write(
        "store_identity",
        "store_whole",
        &[&[0], store.as_slice()].concat(),
    )?;
    write("store_identity", "part", &[&[1], part.as_slice()].concat())?;
    let meta = golden("000000000008.meta")?;
    write("meta", "golden", &meta)?;
    write("meta", "empty_body", &meta[..128])
}

/// `DELTA` behind its kind; then changes of files: kind, and of each which, how, where, what.
fn deltas() -> Result<(), Failure> {
    let delta = Delta {
        store: STORE,
        timeline: [7; 16],
        since: CheckpointId(3),
        until: CheckpointId(5),
        sequence: 2,
        before: 9,
        since_print: 10,
        until_print: 11,
        step: 40,
        manifest_digest: 12,
        rows: 13,
        removed: 14,
    };
    write(
        "delta",
        "file",
        &[&[0], trimmed(&delta.encode().0)].concat(),
    )?;
    for file in 0..9 {
        write("delta", &format!("flip_{file}"), &[1, file, 0, 90, 0, 0, 8])?;
        write("delta", &format!("cut_{file}"), &[1, file, 1, 200, 0, 0, 0])?;
        write("delta", &format!("gone_{file}"), &[1, file, 2])?;
        write("delta", &format!("other_{file}"), &[1, file, 3, file + 1])?;
    }
    Ok(())
}

/// The golden manifest, and one manifest for each of its records.
fn manifest() -> Result<(), Failure> {
    let bytes = golden("000000000003.manifest")?;
    write("manifest", "golden", &bytes)?;
    let mut at = 64;
    while at < bytes.len() {
        let length = (16 + u32_at(&bytes, at + 8) as usize).next_multiple_of(8);
        let name = format!("edit_{}", u32_at(&bytes, at + 12));
        write(
            "manifest",
            &name,
            &[&bytes[..64], &bytes[at..at + length]].concat(),
        )?;
        at += length;
    }
    Ok(())
}

fn rows() -> Result<(), Failure> {
    let bytes = golden("000000000007.rows")?;
    let footer = bytes.len() - BLOCK;
    let keys = usize::try_from(u64_at(&bytes, footer + 48))?;
    write(
        "param_footer",
        "golden",
        &[&[0, 0], trimmed(&bytes[footer..])].concat(),
    )?;
    // Some keys for check_entries: those of the last key block.
    let count = u32_at(&bytes, footer - BLOCK + 8).min(63);
    let mut seed = vec![u8::try_from(count)?, 0];
    seed.extend_from_slice(&bytes[footer - BLOCK + 16..][..8 * count as usize]);
    seed.extend_from_slice(trimmed(&bytes[footer..]));
    write("param_footer", "with_keys", &seed)?;
    // A footer that is three blocks of sections behind its key blocks.
    let sectioned = golden("000000000010.rows")?;
    let tail = trimmed(&sectioned[sectioned.len() - BLOCK..]);
    write("param_footer", "with_sections", &[&[0, 3], tail].concat())?;
    // Which decoder, words of a row, offset / 8; then the structure.
    let block = |at: usize| -> Result<Vec<u8>, Failure> {
        let place = u32::try_from(at / 8)?.to_le_bytes();
        Ok([
            &[0, 0, 0],
            place.as_slice(),
            trimmed(&bytes[at..at + BLOCK]),
        ]
        .concat())
    };
    write("key_block_and_record", "full_block", &block(keys)?)?;
    write(
        "key_block_and_record",
        "last_block",
        &block(footer - BLOCK)?,
    )?;
    let record = &bytes[BLOCK..BLOCK + 32];
    write(
        "key_block_and_record",
        "record",
        &[&[1, 4, 0, 0, 2, 0, 0], record].concat(),
    )?;
    write(
        "key_block_and_record",
        "narrow_record",
        &[1, 3, 0, 0, 2, 0, 0, 5],
    )
}

/// Blocks of the golden snapshot, each with its length; whole and with few entries.
fn index_snapshot() -> Result<(), Failure> {
    let bytes = golden("000000000009.snapshot")?;
    let mut piece = Vec::new();
    let mut put = |block: &[u8]| -> Result<(), Failure> {
        piece.extend_from_slice(&u16::try_from(block.len())?.to_le_bytes());
        piece.extend_from_slice(block);
        Ok(())
    };
    // Header of one covered file, its number, two entries, a footer to match.
    let mut header = bytes[..72].to_vec();
    header[64..68].copy_from_slice(&1u32.to_le_bytes());
    put(trimmed(&header))?;
    let mut covered = bytes[BLOCK..BLOCK + 24].to_vec();
    covered[8..12].copy_from_slice(&1u32.to_le_bytes());
    put(trimmed(&covered))?;
    let mut entries = bytes[3 * BLOCK..3 * BLOCK + 48].to_vec();
    entries[8..12].copy_from_slice(&2u32.to_le_bytes());
    for (place, entry) in [(24, 1u64 << 39), (40, 7)] {
        entries[place..place + 8].copy_from_slice(&entry.to_le_bytes());
    }
    put(&entries)?;
    let mut footer = bytes[bytes.len() - BLOCK..][..56].to_vec();
    footer[20..24].copy_from_slice(&1u32.to_le_bytes());
    for (place, value) in [(24, 2u64), (32, 2), (40, 1)] {
        footer[place..place + 8].copy_from_slice(&value.to_le_bytes());
    }
    put(&footer)?;
    write("index_snapshot", "small", &piece)?;
    let mut part = Vec::new();
    for at in [0, 5 * BLOCK, 6 * BLOCK] {
        let block = trimmed(&bytes[at..at + BLOCK]);
        part.extend_from_slice(&u16::try_from(block.len())?.to_le_bytes());
        part.extend_from_slice(block);
    }
    write("index_snapshot", "golden_ends", &part)
}

/// Flags (1 forged, 2 go on, 4 read, 8 older checkpoints; of `mend`: 1 forged, 2 without meta), then
/// changes: kind, file, offset, and what they need.
fn hostile_directory(target: &str, flags_all: u8) -> Result<(), Failure> {
    for flags in 0..flags_all {
        write(target, &format!("untouched_{flags}"), &[flags, 0])?;
    }
    for file in 0..10u8 {
        for (name, change) in [
            ("bit", &[0, file, 60, 0, 1][..]),
            ("number", &[1, file, 24, 0, 1, 0, 0, 0, 0, 0, 0, 0][..]),
            ("cut", &[3, file, 100, 0][..]),
            ("longer", &[4, file, 0, 16, 0][..]),
            ("gone", &[5, file, 0, 0][..]),
            ("copied", &[6, file, 0, 0, (file + 1) % 10][..]),
        ] {
            let flags = if name == "number" { 15 } else { 14 } % flags_all;
            let seed = [&[flags, 0], change].concat();
            write(target, &format!("{name}_{file}"), &seed)?;
        }
    }
    Ok(())
}

/// Where a file of the tiny store is among all, and its bytes.
fn tiny_file<'a>(files: &'a Files, end: &str) -> Result<(u8, &'a [u8]), Failure> {
    let mut named = (0..).zip(files);
    let found = named.find(|(_, (path, _))| path.to_string_lossy().ends_with(end));
    let (i, (_, bytes)) = found.ok_or(format!("no file ends with {end}"))?;
    Ok((i, bytes))
}

/// A forged store of which only the end of the manifest is wrong: a third table behind the last checkpoint.
fn table_behind_the_last_checkpoint(files: &Files) -> Result<Vec<u8>, Failure> {
    let (file, bytes) = tiny_file(files, ".manifest")?;
    let (current, _) = tiny_file(files, "CURRENT")?;
    let (mut at, mut table) = (64, None);
    while at < bytes.len() {
        let length = (16 + u32_at(bytes, at + 8) as usize).next_multiple_of(8);
        if u32_at(bytes, at + 12) == 2 {
            table = Some((at, length));
        }
        at += length;
    }
    let (from, length) = table.ok_or("the manifest has no table")?;
    let place = |at: usize| u16::try_from(at).map(u16::to_le_bytes);
    let [length_bytes, from, end] = [place(length)?, place(from)?, place(bytes.len())?];
    let number = place(bytes.len() + 16)?;
    let committed = (bytes.len() + length) as u64;
    // Longer by an edit; the copy of the last table there; number 1 is 2 in it; all of it is committed.
    let longer = [&[4, file][..], &length_bytes, &[0]].concat();
    let copied = [&[7, file][..], &end, &from, &length_bytes].concat();
    let other = [&[0, file][..], &number, &[3]].concat();
    let commits = [&[1, current, 72, 0][..], &committed.to_le_bytes()].concat();
    Ok([longer, copied, other, commits].concat())
}

/// A forged store of which only the index snapshot is wrong: all keys of one table that are in the second
/// file are at the first entry of the first one, which has fewer entries than keys then.
fn keys_at_one_entry(files: &Files) -> Result<Vec<u8>, Failure> {
    let (file, bytes) = tiny_file(files, ".snapshot")?;
    let mut changes = Vec::new();
    let entries = bytes[2 * BLOCK..3 * BLOCK].chunks_exact(16).skip(1);
    for (i, entry) in (1..).zip(entries) {
        let location = u64_at(entry, 8);
        if location >> ORDINAL_SHIFT == 1 {
            let at = u16::try_from(2 * BLOCK + 16 * i + 8)?;
            changes.extend([&[1, file][..], &at.to_le_bytes(), &[0; 8]].concat());
        }
    }
    Ok(changes)
}

/// Under right checksums up to CURRENT: what no store writes.
fn crafted() -> Result<(), Failure> {
    let tiny = Tiny::new()?;
    // Whether it opens, and whether a writer has removed the index snapshot.
    let opened = |seed: &[u8]| {
        let disk = Tiny::disk(&Changed::new(seed, &tiny.files).files);
        let store = Store::open_on(Arc::new(disk.clone()), Path::new(ROOT), options());
        let mut paths = disk.paths().into_iter();
        let removed = !paths.any(|path| path.extension().is_some_and(|end| end == "snapshot"));
        store.map(|_| removed).map_err(|error| error.to_string())
    };
    for (name, changes, refused) in [
        (
            "table_behind",
            table_behind_the_last_checkpoint(&tiny.files)?,
            true,
        ),
        ("keys_at_one_entry", keys_at_one_entry(&tiny.files)?, false),
    ] {
        for (target, flags) in [("hostile_directory", 15), ("mend", 1)] {
            let seed = [&[flags, 0], changes.as_slice()].concat();
            let said = opened(&seed);
            let expected = match (&said, refused) {
                (Err(error), true) => error.contains("no checkpoint has"),
                (Ok(removed), false) => *removed,
                _ => false,
            };
            if !expected {
                return Err(format!("{target}/{name}: {said:?}").into());
            }
            write(target, name, &seed)?;
        }
    }
    Ok(())
}

/// Shards, flush step, retained, policy; then operations: kind, table, first key, count, and what
/// they need.
fn operations() -> Result<(), Failure> {
    let push = |first: u8, value: u8| [0, 0, first, 2, value];
    let checkpoint = [10, 0, 9, 0];
    let fill = (0..48).step_by(3).flat_map(|first| push(first, first));
    let mut flushes: Vec<u8> = vec![1, 4, 1, 0];
    flushes.extend(fill);
    write("operations", "flushes", &flushes)?;
    let mut all = vec![0, 2, 1, 1];
    for (first, value) in [(0, 1), (3, 2), (6, 3)] {
        all.extend(push(first, value));
    }
    all.extend(checkpoint);
    all.extend([5, 0, 1, 1, 4, 0, 4, 1, 8, 0, 0, 0, 9, 0, 0, 0]);
    all.extend(checkpoint);
    write("operations", "calm", &all)?;
    for (name, end) in [
        ("crash", &[14, 0, 3, 0, 2][..]),
        ("rollback", &[12, 0, 0, 0, 1, 7, 0, 1, 2][..]),
        ("reopen", &[13, 0, 0, 0, 2, 7, 0, 1, 2][..]),
        ("stop", &[15, 0, 0, 0, 9, 0, 0, 0, 1, 1, 7, 10, 0, 4, 0][..]),
    ] {
        write("operations", name, &[all.as_slice(), end].concat())?;
    }
    Ok(())
}

/// Bytes in memory at a time, where nothing is to be cut: 4 * (1 + 255).
const CHUNK: u8 = 255;

/// Inputs of `hps-keyset`, each valid.
fn data_sets() -> Result<(), Failure> {
    let front = "-5\t\t7\t".repeat(4) + "3\t";
    let criteo = |label: &str| format!("{label}{front}0000000a\tfF{}\n", "\t".repeat(24));
    let text = criteo("1\t").repeat(3);
    let chunked = |bytes: &[u8]| [&[CHUNK], bytes].concat();
    write("keyset_criteo", "lines", &chunked(text.as_bytes()))?;
    write(
        "keyset_criteo",
        "no_end",
        &chunked(text.trim_end_matches('\n').as_bytes()),
    )?;
    write("keyset_criteo", "no_label", &chunked(criteo("").as_bytes()))?;
    write(
        "keyset_criteo",
        "chunks",
        &[&[27], text.as_bytes()].concat(),
    )?;
    let samples: Vec<Vec<Vec<u64>>> = (0..5u64)
        .map(|row| vec![vec![row, row << 20], Vec::new(), vec![7]])
        .collect();
    for (name, flags, width, samples_of_unit) in [
        ("i64", 0, 8, 0),
        ("u32", 1, 4, 0),
        ("i64_sums", 2, 8, 1),
        ("u32_sums", 3, 4, 1),
        ("sums_of_two", 3, 4, 2),
    ] {
        let file = records::norm_file(&samples, width, samples_of_unit);
        write("keyset_norm", name, &[&[flags, CHUNK][..], &file].concat())?;
        let chunks = [&[flags, 30][..], &file].concat();
        write("keyset_norm", &format!("{name}_chunks"), &chunks)?;
    }
    let keys: Vec<u8> = (0..30u64)
        .flat_map(|key| (key * key).to_le_bytes())
        .collect();
    write(
        "keyset_fixed",
        "i64",
        &[&[0, 0, 0, CHUNK], keys.as_slice()].concat(),
    )?;
    write(
        "keyset_fixed",
        "u32",
        &[&[1, 0, 0, 3], keys.as_slice()].concat(),
    )?;
    write(
        "keyset_fixed",
        "raw",
        &[&[1, 2, 3, 9], keys.as_slice()].concat(),
    )?;
    for (name, descr, shape) in [
        ("i64", "<i8", &[30][..]),
        ("u64_columns", "<u8", &[10, 3]),
        ("i32", "<i4", &[60]),
        ("u32_columns", "<u4", &[4, 15]),
        ("empty", "<i8", &[0]),
    ] {
        let data = if name == "empty" {
            &[]
        } else {
            keys.as_slice()
        };
        let file = [npy::write(descr, shape).as_slice(), data].concat();
        write("keyset_npy", name, &chunked(&file))?;
        write(
            "keyset_npy",
            &format!("{name}_chunks"),
            &[&[40], file.as_slice()].concat(),
        )?;
    }
    Ok(())
}

/// Folders of `hps-import`: all that an optimizer needs is there, whole.
fn models() -> Result<(), Failure> {
    // Which of the target's files are there, in its order; each with a seed.
    let folder = |all: u8, there: &[u8]| -> Vec<u8> {
        let file = |file| {
            if there.contains(&file) {
                vec![1, 2 + file]
            } else {
                vec![0]
            }
        };
        let files: Vec<u8> = (0..all).flat_map(file).collect();
        [&[20, 2][..], &files].concat()
    };
    for (name, optimizer, there) in [
        ("sgd", 0, &[0, 1][..]),
        ("slots", 0, &[0, 1, 2]),
        ("momentum", 1, &[0, 1, 3]),
        ("nesterov", 2, &[0, 1, 4]),
        ("adagrad", 3, &[0, 1, 5]),
        ("adam", 4, &[0, 1, 2, 6, 7]),
        ("ftrl", 5, &[0, 1, 8, 9]),
    ] {
        for (end, flags) in [("", 6), ("_weights", 5), ("_repair", 12)] {
            let seed = [&[flags, optimizer, 0][..], &folder(10, there)].concat();
            write("import_hugectr", &format!("{name}{end}"), &seed)?;
        }
    }
    for (name, optimizer, there) in [
        ("sgd", 1, &[0, 1][..]),
        ("momentum", 2, &[0, 1, 4]),
        ("adagrad", 4, &[0, 1, 2]),
        ("adam", 6, &[0, 1, 3, 4, 5, 8]),
        ("ftrl", 7, &[0, 1, 6, 7, 9, 10, 11]),
    ] {
        for (end, flags) in [("", 2), ("_weights", 1), ("_repair", 4)] {
            let seed = [&[flags, optimizer, 0][..], &folder(13, there)].concat();
            write("import_npy", &format!("{name}{end}"), &seed)?;
        }
    }
    Ok(())
}

/// Checkpoints of TensorFlow and text of Paddle, as tests of the tools have them.
fn samples() -> Result<(), Failure> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/tests/data");
    let index = fs::read(data.join("deeprec/model.ckpt-30.index"))?;
    write(
        "import_deeprec",
        "tensorflow",
        &[&[0, 0, 0], index.as_slice()].concat(),
    )?;
    // The first block, which has everything.
    let length = index.len().min(800);
    write(
        "import_deeprec",
        "block",
        &[&[1, 0, 0], &index[..length]].concat(),
    )?;
    for (name, flags, optimizer, there) in [
        ("plain", 0, 0, &[0u8, 1, 2, 3, 4][..]),
        ("adagrad", 0, 1, &[0, 1, 5, 6, 7]),
        ("weights", 1, 2, &[0, 1, 5, 6]),
        ("parts", 0, 0, &[8, 9, 10, 11, 13]),
    ] {
        let tensor = |tensor: u8| match there.contains(&tensor) {
            true => vec![1, 2],
            false => vec![0],
        };
        let tensors: Vec<u8> = (0..14).flat_map(tensor).collect();
        let seed = [&[2, flags, optimizer, 5, 2], tensors.as_slice()].concat();
        write("import_deeprec", name, &seed)?;
    }
    let text = fs::read(data.join("paddle/part-000-00000"))?;
    let head: Vec<&[u8]> = text
        .split_inclusive(|byte| *byte == b'\n')
        .take(6)
        .collect();
    for (name, flags) in [("one", 0), ("weights", 1), ("two", 2), ("gz", 6)] {
        let seed = [&[1, 3, 3, flags, 0], head.concat().as_slice()].concat();
        write("import_paddle", name, &seed)?;
    }
    let plain = b"1 -1 0 0 5 2.5 0.5 0.25 -1e-7\n2 -1 0 0 5 2 nan inf 3\n18446744073709551615 0 0 0 0 0 -0\n";
    write(
        "import_paddle",
        "naive",
        &[&[0, 0, 2, 2, 2], plain.as_slice()].concat(),
    )
}

/// Files of Parquet: whole, their footers, their pages, and small changes of them.
fn parquet_files() -> Result<(), Failure> {
    let seed = |name: &str, head: [u8; 4], rest: &[u8]| {
        write("import_parquet", name, &[&head, rest].concat())
    };
    for (number, base) in (0..).zip(parquets::bases()) {
        seed(&format!("good_{number}"), [2, number & 1, number, 0], &[])?;
        for column in 0..4 {
            let pages = parquets::pages(base, usize::from(column));
            let name = format!("pages_{number}_{column}");
            seed(&name, [3, column & 1, number, column], pages)?;
        }
        // A bit of a page, and one of the footer; a number there that is large.
        let changes = [0, 6, 0, 4, 2, 9, 0, 1, 5, 30, 0, 4, 0xff, 0xff, 0xff, 0x7f];
        seed(&format!("changed_{number}"), [2, 0, number, 0], &changes)?;
    }
    for number in [0, 16] {
        let base = &parquets::bases()[usize::from(number)];
        let footer = &base[parquets::footer_at(base)..base.len() - 8];
        seed(&format!("footer_{number}"), [1, 0, number, 0], footer)?;
        seed(&format!("file_{number}"), [0; 4], base)?;
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    data_sets()?;
    models()?;
    samples()?;
    parquet_files()?;
    small_files()?;
    manifest()?;
    rows()?;
    index_snapshot()?;
    deltas()?;
    hostile_directory("hostile_directory", 16)?;
    hostile_directory("mend", 4)?;
    crafted()?;
    operations()
}
