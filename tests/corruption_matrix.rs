//! What do an open and an inspection say of each kind of damage to each kind of file?
//!
//! - A table is made by doing it: every kind of file and part of a file, times every kind of
//!   damage. It must be the table in docs/TESTING.md; `HPS_BLESS=1` writes it there.
//! - A cell of damage that can be done in several places is done in several; all must agree, or the
//!   cell names each answer.
//! - In no cell may a row, a meta or a checkpoint be shown that is not the one written, nor one be
//!   left out without an error. The inspection and the open for reading write nothing.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "../fuzz/src/forge.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod forge;
#[path = "common/forging.rs"]
mod forging;
#[path = "common/oracle.rs"]
mod oracle;
#[path = "../fuzz/src/tiny.rs"]
#[expect(
    clippy::expect_used,
    reason = "a test that can not make its store must fail"
)]
mod tiny;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

use forge::Files;
use forging::{STORE, fix, identity, put_u64, reseal, u32_at, u64_at};
use hps::format::FORMAT_VERSION;
use hps::format::current::Current;
use hps::format::identity::encode_part;
use hps::format::manifest::{Edit, ManifestReader};
use hps::inspect::{Scope, Severity, inspect_on};
use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;
use oracle::Oracle;
use tiny::{ROOT, Tiny, descriptors, options};

/// Where the table is, and between which lines.
const DOCUMENT: &str = "docs/TESTING.md";
const START: &str = "<!-- corruption matrix -->\n";
const END: &str = "<!-- /corruption matrix -->\n";

/// Kinds of damage, in the order of the columns.
const DAMAGES: [&str; 10] = [
    "missing",
    "empty",
    "short",
    "long",
    "bit flip",
    "zero block",
    "swapped",
    "stale",
    "other store",
    "newer version",
];

/// Another store, with the same rows.
const OTHER: [u8; 16] = *b"another store, 2";

/// What is damaged.
struct Target {
    name: &'static str,
    path: PathBuf,
    /// The file whose content it has; another name of it where it is not a file of the store.
    like: PathBuf,
    /// The part of the file; `None`: the file itself.
    part: Option<Range<usize>>,
    /// Another file of its kind.
    twin: Option<PathBuf>,
}

fn root(name: &str) -> PathBuf {
    Path::new(ROOT).join(name)
}

fn rows_of(number: u64) -> PathBuf {
    root(&format!("part-0/{number:012}.rows"))
}

fn find(files: &Files, extension: &str) -> Vec<PathBuf> {
    let is = |p: &&PathBuf| p.extension().is_some_and(|e| e == extension);
    files.keys().filter(is).cloned().collect()
}

/// Where header, records, padding, key blocks and footer of a parameter file are.
fn sections(bytes: &[u8]) -> [Range<usize>; 5] {
    let footer = bytes.len() - 4096;
    let keys = usize::try_from(u64_at(bytes, footer + 48)).unwrap();
    let runs = u32_at(bytes, footer + 20) as usize;
    let end = |run: usize| {
        let at = footer + 88 + run * 40;
        let (entries, stride) = (u64_at(bytes, at + 16), u64::from(u32_at(bytes, at + 32)));
        usize::try_from(u64_at(bytes, at + 24) + entries * stride).unwrap()
    };
    let rows_end = (0..runs).map(end).max().unwrap();
    [
        0..4096,
        4096..rows_end,
        rows_end..keys,
        keys..footer,
        footer..bytes.len(),
    ]
}

fn targets(files: &Files) -> Vec<Target> {
    let whole = |name, path: PathBuf, twin| Target {
        name,
        like: path.clone(),
        path,
        part: None,
        twin,
    };
    let fixed = |name| whole(name, root(name), None);
    let all_rows = find(files, "rows");
    let (rows, older) = (all_rows[2].clone(), all_rows[1].clone());
    let metas = find(files, "meta");
    let manifest = find(files, "manifest").remove(0);
    let copy = find(files, "copy").remove(0);
    let snapshot = find(files, "snapshot").remove(0);
    let part = |name, range: &Range<usize>| Target {
        part: Some(range.clone()),
        ..whole(name, rows.clone(), Some(older.clone()))
    };
    let [_, records, padding, keys, footer] = &sections(&files[&rows]);
    let beside = |name, path, like: &str| Target {
        like: root(like),
        ..whole(name, path, None)
    };
    vec![
        fixed("STORE"),
        fixed("CURRENT"),
        whole("PART", root("part-0/PART"), None),
        whole("manifest", manifest, None),
        whole("its copy", copy, None),
        whole("rows, the file", rows.clone(), Some(older.clone())),
        part("rows, records", records),
        part("rows, padding", padding),
        part("rows, key blocks", keys),
        part("rows, footer", footer),
        whole("meta", metas[1].clone(), Some(metas[0].clone())),
        whole("index snapshot", snapshot, None),
        fixed("LOCK"),
        beside("temporary", root("CURRENT.tmp"), "CURRENT"),
        beside("orphan", rows_of(1), "part-0/000000000002.rows"),
        beside("unknown name", root("notes.txt"), "STORE"),
    ]
}

/// The content of a file as a file of another store, or of a later version, with right checksums.
fn restamped(like: &Path, bytes: &[u8], at: usize, stamp: &[u8], store: [u8; 16]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    out[at..at + stamp.len()].copy_from_slice(stamp);
    reseal(like.file_name().unwrap().to_str().unwrap(), &mut out, store);
    out
}

fn foreign(like: &Path, bytes: &[u8]) -> Vec<u8> {
    restamped(like, bytes, 32, &OTHER, OTHER)
}

fn newer(like: &Path, bytes: &[u8], at: usize) -> Vec<u8> {
    restamped(
        like,
        bytes,
        at + 16,
        &(FORMAT_VERSION + 1).to_le_bytes(),
        STORE,
    )
}

/// Length and digest of the manifest as they were after an earlier checkpoint.
fn earlier(files: &Files, current: &Current, checkpoint: CheckpointId) -> (u64, Current) {
    let path = find(files, "manifest").remove(0);
    let committed = usize::try_from(current.manifest_bytes).unwrap();
    let id = identity(current.manifest_number.0);
    let mut reader = ManifestReader::new(&files[&path][..committed], &id).unwrap();
    while let Some(edit) = reader.next_edit().unwrap() {
        if let Edit::Checkpoint(meta) = edit
            && meta.id == checkpoint
        {
            let older = Current {
                manifest_bytes: reader.offset(),
                manifest_digest: reader.digest(),
                checkpoint_id: meta.id,
                step: meta.step,
                next_checkpoint_id: CheckpointId(meta.id.0 + 1),
                ..*current
            };
            return (reader.offset(), older);
        }
    }
    panic!("no checkpoint {checkpoint}");
}

/// What was under this name at an earlier time, or could have been; `None` for what never changes.
fn stale(files: &Files, target: &Target) -> Option<Vec<u8>> {
    let bytes = files.get(&target.path)?;
    let current = Current::decode(&files[&root("CURRENT")], &STORE).unwrap();
    let (length, older) = earlier(files, &current, CheckpointId(2));
    match target.name {
        "CURRENT" => Some(older.encode(&STORE).to_vec()),
        "manifest" | "its copy" => Some(bytes[..usize::try_from(length).unwrap()].to_vec()),
        "index snapshot" => {
            // An older index snapshot, which has another number.
            let number = u64_at(bytes, 48) - 1;
            let mut out = bytes.clone();
            put_u64(&mut out, 48, number);
            reseal(&format!("{number:012}.snapshot"), &mut out, STORE);
            Some(out)
        }
        _ => Some(files[target.twin.as_ref()?].clone()),
    }
}

/// Exchanges a target with another of its kind.
fn swapped(files: &Files, target: &Target) -> Vec<Files> {
    let mut out = files.clone();
    if target.name == "PART" {
        out.insert(target.path.clone(), encode_part(&STORE, 1).to_vec());
        return vec![out];
    }
    let Some(twin) = &target.twin else {
        return Vec::new();
    };
    let (mine, other) = (files[&target.path].clone(), files[twin].clone());
    let Some(part) = target.part.clone() else {
        out.insert(target.path.clone(), other);
        out.insert(twin.clone(), mine);
        return vec![out];
    };
    out.get_mut(&target.path).unwrap()[part.clone()].copy_from_slice(&other[part.clone()]);
    out.get_mut(twin).unwrap()[part.clone()].copy_from_slice(&mine[part.clone()]);
    let mut all = vec![out];
    if target.name == "rows, records" {
        // Two records of one file too: their checksums know their places.
        let mut neighbours = files.clone();
        let stride = 16 + descriptors()[0].row_bytes();
        let (first, second) = (part.start, part.start + stride);
        let bytes = neighbours.get_mut(&target.path).unwrap();
        bytes.copy_within(second..second + stride, first);
        bytes[second..second + stride].copy_from_slice(&mine[first..first + stride]);
        all.push(neighbours);
    }
    all
}

/// Where there are magic bytes and a version in a target of a file of so many bytes.
fn newer_at(target: &Target, bytes: usize) -> Vec<usize> {
    match target.name {
        "rows, footer" => vec![bytes - 4096],
        "index snapshot" => vec![0, bytes - 4096],
        _ if target.part.is_none() => vec![0],
        _ => Vec::new(),
    }
}

/// The files with a damage, for each place where it was done; none where there is no such damage.
fn damaged(files: &Files, target: &Target, damage: &str) -> Vec<Files> {
    let mut base = files.clone();
    base.entry(target.path.clone())
        .or_insert_with(|| files[&target.like].clone());
    let bytes = base[&target.path].clone();
    let (whole, part) = (
        target.part.is_none(),
        target.part.clone().unwrap_or(0..bytes.len()),
    );
    let with = |new: Vec<u8>| {
        let mut out = base.clone();
        out.insert(target.path.clone(), new);
        out
    };
    // Only the part is replaced.
    let placed = |new: &[u8]| {
        let mut out = bytes.clone();
        out[part.clone()].copy_from_slice(&new[part.clone()]);
        with(out)
    };
    let changed = |new: Vec<u8>| match target.part {
        Some(_) => placed(&new),
        None => with(new),
    };
    // What has a twin: a file of the store, and not zeros.
    let own = files.contains_key(&target.path) && target.name != "rows, padding";
    match damage {
        "missing" if whole => {
            base.remove(&target.path);
            vec![base]
        }
        "empty" if whole && !bytes.is_empty() => vec![with(Vec::new())],
        "short" if whole && bytes.len() > 1 => [bytes.len() / 2, bytes.len() - 1]
            .map(|n| with(bytes[..n].to_vec()))
            .to_vec(),
        "long" if whole => vec![with([bytes, vec![1; 4096]].concat())],
        "bit flip" if !bytes.is_empty() => {
            // The header of a file of rows; its other parts have lines of their own.
            let end = if target.name == "rows, the file" {
                4096
            } else {
                part.end
            };
            let step = ((end - part.start) / 16).max(1);
            let flip = |at: usize| {
                let mut out = bytes.clone();
                out[at] ^= 1 << (at % 8);
                with(out)
            };
            (part.start..end).step_by(step).map(flip).collect()
        }
        "zero block" if bytes[part.clone()].iter().any(|b| *b != 0) => {
            let mut out = bytes.clone();
            out[part.start..part.end.min(part.start + 4096)].fill(0);
            vec![with(out)]
        }
        "swapped" if own => swapped(files, target),
        "stale" if own => stale(files, target).map(changed).into_iter().collect(),
        "other store" if !bytes.is_empty() && bytes[part.clone()].iter().any(|b| *b != 0) => {
            vec![changed(foreign(&target.like, &bytes))]
        }
        "newer version" if !bytes.is_empty() => newer_at(target, bytes.len())
            .into_iter()
            .map(|at| with(newer(&target.like, &bytes, at)))
            .collect(),
        _ => Vec::new(),
    }
}

fn variant(error: &Error) -> String {
    let name = oracle::name_of(error);
    let expected = ["Corrupt", "Unsupported", "NotAStore"];
    assert!(
        expected.contains(&&*name),
        "an error of another kind: {error}"
    );
    name
}

/// What an open says, and what reading gives then.
fn open(oracle: &Oracle, files: &Files, read_only: bool) -> String {
    let disk = Tiny::disk(files);
    let shared = Io::of(disk.clone());
    let opened = match read_only {
        true => Store::open_read_only_on(shared, Path::new(ROOT), None, options()),
        false => Store::open_on(shared, Path::new(ROOT), options()),
    };
    let said = match opened {
        Err(e) => variant(&e),
        Ok(store) => {
            let told: Vec<String> = oracle.read(&store).into_iter().collect();
            drop(store);
            match told.is_empty() {
                true => String::from("opens"),
                false => format!("opens ({})", told.join(", ")),
            }
        }
    };
    if read_only {
        assert_eq!(&contents(&disk), files, "a reader wrote");
    }
    said
}

fn contents(disk: &SimDisk) -> Files {
    let read = |path: PathBuf| (path.clone(), disk.read_file(&path).unwrap());
    disk.paths().into_iter().map(read).collect()
}

/// The finding of an inspection, and the exit code that `hps-fsck` gives for it.
fn look(files: &Files, full: bool) -> (String, u8) {
    let disk = Tiny::disk(files);
    let scope = Scope::new().full(full);
    let shared = Io::of(disk.clone());
    let go_on = &mut |_, _| ControlFlow::Continue(());
    let looked = inspect_on(&shared, Path::new(ROOT), scope, go_on);
    assert_eq!(&contents(&disk), files, "an inspection wrote");
    let (found, code) = match looked.map(|report| report.worst()) {
        Ok(None) => ("clean", 0),
        Ok(Some(Severity::Leftover)) => ("leftover", 0),
        Ok(Some(Severity::Cache)) => ("cache", 4),
        Ok(Some(Severity::Damage)) => ("damage", 4),
        Err(e) => return (variant(&e), 8),
    };
    (found.to_owned(), code)
}

/// What is said of one damage in one place.
fn verdict(oracle: &Oracle, files: &Files, reader_too: bool) -> String {
    let mut said = open(oracle, files, false);
    if reader_too {
        let reader = open(oracle, files, true);
        if reader != said {
            write!(said, ", a reader: {reader}").unwrap();
        }
    }
    let (quick, full) = (look(files, false), look(files, true));
    if quick == full {
        format!("{said}; {} {}", full.0, full.1)
    } else {
        format!(
            "{said}; quick {} {}, full {} {}",
            quick.0, quick.1, full.0, full.1
        )
    }
}

/// The table, and how many damages it was made of.
fn table() -> (String, usize) {
    let tiny = Tiny::new().unwrap();
    let oracle = Oracle::new(&tiny);
    let files = &tiny.files;
    assert_eq!(verdict(&oracle, files, true), "opens; clean 0");
    let mut out = format!(
        "| file | {} |\n|---|{}\n",
        DAMAGES.join(" | "),
        "---|".repeat(10)
    );
    let mut count = 0;
    for target in targets(files) {
        write!(out, "| {} |", target.name).unwrap();
        for damage in DAMAGES {
            let cases = damaged(files, &target, damage);
            count += cases.len();
            let verdicts: BTreeSet<String> = cases
                .iter()
                .enumerate()
                // A reader waits for a writer to finish what looks half done: not in every place.
                .map(|(i, files)| verdict(&oracle, files, i == 0))
                .collect();
            let cell = match verdicts.is_empty() {
                true => String::from("-"),
                false => Vec::from_iter(verdicts).join(" *or* "),
            };
            write!(out, " {cell} |").unwrap();
        }
        out.push('\n');
    }
    (out, count)
}

#[test]
fn what_is_said_of_each_damage_is_what_the_document_says() {
    let (made, count) = table();
    println!("{count} damaged stores\n{made}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(DOCUMENT);
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(START).expect("a start marker");
    let (found, after) = rest.split_once(END).expect("an end marker");
    if std::env::var("HPS_BLESS").is_ok_and(|v| v == "1") {
        let blessed = format!("{before}{START}{made}{END}{after}");
        std::fs::write(&path, blessed).unwrap();
        return;
    }
    assert_eq!(
        found, made,
        "write it anew with HPS_BLESS=1, and read what changed"
    );
}

#[test]
fn a_value_that_is_not_the_one_written_is_found() {
    let tiny = Tiny::new().unwrap();
    let mut oracle = Oracle::new(&tiny);
    let row = oracle
        .0
        .get_mut(&CheckpointId(3))
        .unwrap()
        .0
        .values_mut()
        .next()
        .unwrap();
    row[0] ^= 1;
    let files = tiny.files;
    let silent = std::panic::catch_unwind(|| open(&oracle, &files, false));
    assert!(silent.is_err());
}
