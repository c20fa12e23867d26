//! What does a copy of a store make of a delta that someone else has changed?
//!
//! The input is a kind and, of kind 0, a file `DELTA`; else changes of the files of a delta: which, how
//! (a byte, a length, gone, the content of another one), where.
//!
//! Promise: what is taken of `DELTA` is written again to the same bytes. A changed folder is refused and
//! nothing is changed, or the copy is what the delta leads to, to the bit.

#![no_main]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use hps::format::delta::{DELTA_BYTES, Delta};
use hps::format::{FileIdentity, Kind};
use hps::io::Io;
use hps::io::sim::{CrashMode, SimDisk};
use hps::{
    CreateOptions, DeltaBase, FileNumber, Optimizer, PutRows, RuntimeOptions, Store,
    TableDescriptor,
};
use hps_fuzz::{Input, fix, padded};
use libfuzzer_sys::fuzz_target;

const COPY: &str = "/copy";
const FIRST: &str = "/delta-0";
const SECOND: &str = "/delta-1";

/// Rows by (table, key), as bits, and names of tables.
type Content = (BTreeMap<(u32, u64), Vec<u32>>, Vec<String>);

/// A copy that has taken one delta, the next one, and what the copy holds before and after it.
struct Base {
    disk: SimDisk,
    files: Vec<PathBuf>,
    before: Content,
    after: Content,
}

static BASE: LazyLock<Base> = LazyLock::new(base);

fn options() -> RuntimeOptions {
    RuntimeOptions::new()
        .cache_bytes(1 << 20)
        .shards(1)
        .inline(true)
}

fn open(disk: &SimDisk) -> Store {
    Store::open_on(Io::of(disk.clone()), Path::new(COPY), options()).expect("the copy opens")
}

fn create(disk: &SimDisk, root: &str) -> Store {
    let io = Io::of(disk.clone());
    Store::create_on(io, Path::new(root), CreateOptions::new(), options()).expect("a store")
}

fn content(store: &Store) -> Content {
    let last = store.last_checkpoint().expect("a checkpoint").id;
    let mut walk = store.rows(last).expect("rows");
    let mut rows = BTreeMap::new();
    while let Some(row) = walk.next_row().expect("a row") {
        let bits = row.values.iter().map(|value| value.to_bits()).collect();
        rows.insert((row.table.0, row.key), bits);
    }
    let names = store.tables().into_iter().map(|(_, table)| table.name);
    (rows, names.collect())
}

fn base() -> Base {
    let disk = SimDisk::new(1);
    let source = create(&disk, "/source");
    let adam = TableDescriptor::new("users", 2).optimizer(Optimizer::Adam);
    let users = source.create_table(&adam).expect("a table");
    let put = |keys: std::ops::Range<u64>, value: f32| {
        let keys: Vec<u64> = keys.collect();
        let rows = vec![value; keys.len() * adam.row_f32s()];
        source
            .put(users, &keys, PutRows::whole(&rows))
            .expect("put");
    };
    put(0..40, 1.0);
    let first = source.checkpoint(1, b"first").expect("a checkpoint").id;
    let folder = Path::new(FIRST);
    source
        .write_delta(first, folder, DeltaBase::Nothing)
        .expect("a delta");
    put(30..60, 2.0);
    source.remove(users, &[1, 2, 3]).expect("remove");
    let ads = source
        .create_table(&TableDescriptor::new("ads", 1))
        .expect("a table");
    source
        .put(ads, &[7], PutRows::weights(&[0.5]))
        .expect("put");
    let second = source.checkpoint(2, b"second").expect("a checkpoint").id;
    let base = DeltaBase::Delta(folder);
    source
        .write_delta(second, Path::new(SECOND), base)
        .expect("a delta");
    let copy = create(&disk, COPY);
    copy.apply_delta(folder).expect("the first delta");
    let (before, after) = (content(&copy), content(&source));
    drop((copy.close(), source.close()));
    let files = disk.paths().into_iter();
    let files = files.filter(|path| path.starts_with(SECOND)).collect();
    Base {
        disk,
        files,
        before,
        after,
    }
}

fn decode(bytes: &[u8]) {
    if let Ok((delta, sum)) = Delta::decode(bytes) {
        let (again, sum_again) = delta.encode();
        assert_eq!((&again[..], sum_again), (bytes, sum), "written again");
    }
}

/// Changes a file; false where there is nothing to change.
fn change(disk: &SimDisk, files: &[PathBuf], input: &mut Input<'_>) -> bool {
    let path = &files[input.below(files.len())];
    let Ok(mut bytes) = disk.read_file(path) else {
        return false;
    };
    match input.below(4) {
        0 if !bytes.is_empty() => {
            let at = usize::try_from(input.number(3)).unwrap_or(0) % bytes.len();
            bytes[at] ^= u8::try_from(input.number(1)).unwrap_or(1).max(1);
        }
        1 => {
            let length = usize::try_from(input.number(3)).unwrap_or(0) % (bytes.len() + 5000);
            bytes.resize(length, u8::try_from(input.number(1)).unwrap_or(0));
        }
        2 => return disk.remove(path).is_ok(),
        _ => {
            let other = &files[input.below(files.len())];
            match disk.read_file(other) {
                Ok(content) => bytes = content,
                Err(_) => return false,
            }
        }
    }
    disk.write_file(path, &bytes).is_ok()
}

fuzz_target!(|input: &[u8]| {
    let mut input = Input::new(input);
    if input.below(8) == 0 {
        let bytes = input.take_all();
        decode(bytes);
        let mut bytes = padded(bytes, DELTA_BYTES);
        let identity = FileIdentity::new([0; 16], FileNumber(0));
        fix(&mut bytes, &identity, Kind::Delta, 0);
        decode(&bytes);
        return;
    }
    let disk = BASE.disk.crash(0, CrashMode::KeepAll);
    for _ in 0..8 {
        if input.is_empty() || !change(&disk, &BASE.files, &mut input) {
            break;
        }
    }
    let copy = open(&disk);
    match copy.apply_delta(Path::new(SECOND)) {
        Ok(_) => assert!(content(&copy) == BASE.after, "taken, and something else"),
        Err(_) => assert!(
            content(&copy) == BASE.before,
            "refused, and something changed"
        ),
    }
    drop(copy);
    let again = content(&open(&disk));
    assert!(again == BASE.before || again == BASE.after, "half of it");
});
