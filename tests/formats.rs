//! Does docs/FORMAT.md say what the code does?
//!
//! - Every structure of the code is in the document, field by field, and no other.
//! - Constants, magic bytes and numbers of enums are those of the code.

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that finds no row must fail"
)]

use hps::Initialiser;
use hps::format::checksum::Kind;
use hps::format::delta::{DELTA_BYTES, DELTA_MAGIC, DeltaBlock};
use hps::format::descriptor::{
    DTYPE_BF16, DTYPE_F16, DTYPE_F32, METADATA_CLICK, METADATA_COUNT, METADATA_LAST_STEP,
    METADATA_SHOW, OPTIMIZERS, initialiser_number, optimizer_number,
};
use hps::format::edit::{EDIT_NUMBERS, FILE_BYTES_MAX};
use hps::format::footer::{FOOTER_MAGIC, RUNS_MAX, RunKind, SECTIONS_MAX};
use hps::format::index_snapshot::{
    COVERED_MAX, COVERED_PER_BLOCK, ENTRIES_PER_BLOCK, SNAPSHOT_FOOTER_MAGIC, SNAPSHOT_MAGIC,
};
use hps::format::param_file::{
    ENTRIES_MAX, KEYS_PER_BLOCK, PARAM_HEADER_BYTES, PARAM_MAGIC, ROW_BYTES_MAX, STRIDE_MAX,
    STRIDE_MIN,
};
use hps::format::{BLOCK_BYTES, DIRECTORIES_MAX, FORMAT_VERSION, Version};
use hps::format::{current, identity, manifest, meta};

const DOCUMENT: &str = include_str!("../docs/FORMAT.md");

/// A field: offset, bytes, name.
type Row = (usize, usize, String);

/// The structures of a document: name, size, fields.
fn structures(document: &str) -> Vec<(String, usize, Vec<Row>)> {
    let mut found: Vec<(String, usize, Vec<Row>)> = Vec::new();
    let mut inside = false;
    for line in document.lines() {
        if let Some(title) = line.strip_prefix("#### `") {
            let (name, rest) = title
                .split_once("`: ")
                .expect("a structure has name and size");
            let bytes = rest.strip_suffix(" bytes").and_then(|n| n.parse().ok());
            found.push((name.to_owned(), bytes.expect("a size in bytes"), Vec::new()));
            inside = true;
        } else if line.starts_with('#') {
            inside = false;
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, offset, bytes, field, _, _] = cells[..] else {
            continue;
        };
        if let (true, Ok(offset), Ok(bytes)) = (inside, offset.parse(), bytes.parse()) {
            let fields = &mut found.last_mut().expect("a structure").2;
            fields.push((offset, bytes, field.trim_matches('`').to_owned()));
        }
    }
    found
}

/// The numbers of rows like "| word `Name` | 3 |", by word.
fn numbers(document: &str, word: &str) -> Vec<(String, u64)> {
    let start = format!("| {word} `");
    document
        .lines()
        .filter_map(|line| line.strip_prefix(&start)?.split_once('`'))
        .map(|(name, rest)| {
            let value = rest
                .trim_end_matches('|')
                .rsplit('|')
                .next()
                .unwrap_or("")
                .trim();
            let digits = value.rsplit(' ').next().unwrap_or("");
            (
                name.to_owned(),
                digits
                    .parse()
                    .unwrap_or_else(|_| panic!("{name}: {value:?}")),
            )
        })
        .collect()
}

fn owned(pairs: &[(&str, u64)]) -> Vec<(String, u64)> {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), *value))
        .collect()
}

#[test]
fn every_structure_is_documented_to_the_byte() {
    let mut all = Version::ALL.map(Version::layouts).concat();
    // It is of no store, and so of no version's fingerprint.
    all.push(("DeltaBlock", DeltaBlock::FIELDS));
    let mut expected: Vec<(String, usize, Vec<Row>)> = all
        .iter()
        .map(|(name, fields)| {
            let row =
                |field: &hps::format::Field| (field.offset, field.bytes, field.name.to_owned());
            let bytes = fields.iter().map(|field| field.bytes).sum();
            ((*name).to_owned(), bytes, fields.iter().map(row).collect())
        })
        .collect();
    let mut found = structures(DOCUMENT);
    found.sort();
    expected.sort();
    // Most structures are the same in both versions.
    expected.dedup();
    let names = |all: &[(String, usize, Vec<Row>)]| {
        all.iter()
            .map(|(name, ..)| name.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&found), names(&expected));
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected, "structure {}", found.0);
    }
}

/// The rows of a table that says which versions have an edit.
#[test]
fn the_versions_of_each_edit_are_documented() {
    for (name, number) in EDIT_NUMBERS {
        let versions = match number {
            7 => "1",
            1..9 => "1, 2",
            _ => "2",
        };
        let row = format!("| edit `{name}` | {versions} | {number} |");
        assert!(DOCUMENT.lines().any(|line| line == row), "no row {row:?}");
    }
}

#[test]
fn a_wrong_offset_in_the_document_is_found() {
    let right = structures(DOCUMENT);
    let wrong = DOCUMENT.replacen("| 16 | 4 | `version` |", "| 20 | 4 | `version` |", 1);
    assert_ne!(DOCUMENT, wrong);
    assert_ne!(structures(&wrong), right);
}

#[test]
fn constants_are_documented() {
    let constants = [
        ("FORMAT_VERSION", u64::from(FORMAT_VERSION)),
        ("BLOCK_BYTES", BLOCK_BYTES as u64),
        ("KEYS_PER_BLOCK", KEYS_PER_BLOCK as u64),
        ("ENTRIES_PER_BLOCK", ENTRIES_PER_BLOCK as u64),
        ("COVERED_PER_BLOCK", COVERED_PER_BLOCK as u64),
        ("ROW_BYTES_MAX", ROW_BYTES_MAX as u64),
        ("STRIDE_MIN", STRIDE_MIN as u64),
        ("STRIDE_MAX", STRIDE_MAX as u64),
        ("ENTRIES_MAX", ENTRIES_MAX),
        ("RUNS_MAX", RUNS_MAX as u64),
        ("SECTIONS_MAX", SECTIONS_MAX as u64),
        ("DIRECTORIES_MAX", DIRECTORIES_MAX as u64),
        ("EDIT_BYTES_MAX", u64::from(manifest::EDIT_BYTES_MAX)),
        ("COVERED_MAX", u64::from(COVERED_MAX)),
        ("FILE_BYTES_MAX", FILE_BYTES_MAX),
    ];
    for (name, value) in constants {
        let row = format!("| `{name}` | {value} |");
        assert!(DOCUMENT.lines().any(|line| line == row), "no row {row:?}");
    }
}

#[test]
fn magic_bytes_and_first_blocks_are_documented() {
    let files = [
        (PARAM_MAGIC, Some(PARAM_HEADER_BYTES)),
        (
            manifest::MANIFEST_MAGIC,
            Some(manifest::MANIFEST_HEADER_BYTES),
        ),
        (meta::META_MAGIC, Some(meta::META_HEADER_BYTES)),
        (SNAPSHOT_MAGIC, Some(BLOCK_BYTES)),
        (current::CURRENT_MAGIC, Some(current::CURRENT_BYTES)),
        (identity::STORE_MAGIC, Some(identity::STORE_BYTES)),
        (identity::PART_MAGIC, Some(identity::PART_BYTES)),
        (FOOTER_MAGIC, None),
        (SNAPSHOT_FOOTER_MAGIC, None),
        (DELTA_MAGIC, Some(DELTA_BYTES)),
    ];
    for (magic, bytes) in files {
        let letters = std::str::from_utf8(&magic[..7]).expect("7 letters");
        assert_eq!(magic[7], 0, "{letters}");
        let cell = format!("magic `{letters}` |");
        let line = DOCUMENT.lines().find(|line| line.contains(&cell));
        let line = line.unwrap_or_else(|| panic!("no row with {cell:?}"));
        let end = bytes.map_or("| |".to_owned(), |bytes| format!("| first block {bytes} |"));
        assert!(line.ends_with(&end), "{line:?} should end in {end:?}");
    }
    let rows = DOCUMENT
        .lines()
        .filter(|line| line.contains("| magic `"))
        .count();
    assert_eq!(rows, files.len());
}

#[test]
fn numbers_of_enums_are_documented() {
    let kinds: Vec<(String, u64)> = Kind::ALL
        .iter()
        .map(|kind| (format!("{kind:?}"), kind.number()))
        .collect();
    assert_eq!(numbers(DOCUMENT, "kind"), kinds);
    let edits: Vec<(String, u64)> = EDIT_NUMBERS
        .iter()
        .map(|(name, number)| ((*name).to_owned(), u64::from(*number)))
        .collect();
    assert_eq!(numbers(DOCUMENT, "edit"), edits);
    let runs: Vec<(String, u64)> = [RunKind::Rows, RunKind::Tombstones]
        .iter()
        .map(|kind| (format!("{kind:?}"), u64::from(kind.number())))
        .collect();
    assert_eq!(numbers(DOCUMENT, "run"), runs);
    let optimizers = OPTIMIZERS.map(|optimizer| {
        let number = optimizer_number(optimizer);
        (format!("{optimizer:?}"), u64::from(number))
    });
    assert_eq!(numbers(DOCUMENT, "optimizer"), optimizers);
    let initialisers = [
        ("Zero", Initialiser::Zero),
        ("Constant", Initialiser::Constant { value: 1.0 }),
        (
            "Uniform",
            Initialiser::Uniform {
                low: 0.0,
                high: 1.0,
            },
        ),
        (
            "Normal",
            Initialiser::Normal {
                mean: 0.0,
                deviation: 1.0,
            },
        ),
    ]
    .map(|(name, initialiser)| (name, u64::from(initialiser_number(initialiser))));
    assert_eq!(numbers(DOCUMENT, "initialiser"), owned(&initialisers));
    let dtypes = [("F32", DTYPE_F32), ("F16", DTYPE_F16), ("BF16", DTYPE_BF16)]
        .map(|(name, number)| (name, u64::from(number)));
    assert_eq!(numbers(DOCUMENT, "dtype"), owned(&dtypes));
    let metadata = [
        ("show", METADATA_SHOW),
        ("click", METADATA_CLICK),
        ("count", METADATA_COUNT),
        ("last_step", METADATA_LAST_STEP),
    ]
    .map(|(name, bit)| (name, u64::from(bit)));
    assert_eq!(numbers(DOCUMENT, "metadata"), owned(&metadata));
}
