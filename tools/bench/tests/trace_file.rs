//! Do traces come back as they were written, and are damaged ones refused with the place?
#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};

use hps::mix64;
use hps_bench::trace::{Accesses, TraceReader, TraceWriter};

fn write(path: &Path, batches: &[Vec<u64>]) {
    let mut writer = TraceWriter::create(path).unwrap();
    for batch in batches {
        writer.batch(batch).unwrap();
    }
    writer.finish().unwrap();
}

fn read(path: &Path) -> anyhow::Result<Vec<Vec<u64>>> {
    let mut reader = TraceReader::open(path)?;
    let (mut keys, mut batches) = (Vec::new(), Vec::new());
    while reader.next_batch(&mut keys)? {
        batches.push(keys.clone());
    }
    assert!(!reader.next_batch(&mut keys)? && keys.is_empty());
    Ok(batches)
}

fn sample() -> Vec<Vec<u64>> {
    let mut batches: Vec<Vec<u64>> = (0..5u64)
        .map(|b| (0..b * 7).map(|i| mix64(b << 32 | i)).collect())
        .collect();
    batches.push(vec![0, u64::MAX, 0, 1 << 63, 7, 7, 7]);
    batches.push((1000..1300).collect());
    batches
}

fn file(dir: &tempfile::TempDir) -> PathBuf {
    dir.path().join("keys.trace")
}

#[test]
fn batches_come_back_in_order_with_repeated_extreme_and_no_keys() {
    let dir = tempfile::tempdir().unwrap();
    write(&file(&dir), &sample());
    assert_eq!(read(&file(&dir)).unwrap(), sample());
    write(&file(&dir), &[]);
    assert!(
        read(&file(&dir)).unwrap().is_empty(),
        "an older trace is replaced"
    );
}

#[test]
fn sorted_keys_take_about_two_bytes_each() {
    let dir = tempfile::tempdir().unwrap();
    let batch: Vec<u64> = (0..10_000).map(|i| i * 444).collect();
    write(&file(&dir), std::slice::from_ref(&batch));
    let bytes = fs::metadata(file(&dir)).unwrap().len();
    assert!(bytes < 21_000, "{bytes} bytes for 10 000 keys");
}

#[test]
fn a_trace_cut_anywhere_is_refused_and_names_the_place() {
    let dir = tempfile::tempdir().unwrap();
    write(&file(&dir), &sample());
    let whole = fs::read(file(&dir)).unwrap();
    for length in 0..whole.len() {
        fs::write(file(&dir), &whole[..length]).unwrap();
        let error = format!("{:#}", read(&file(&dir)).unwrap_err());
        assert!(error.contains("keys.trace"), "{error}");
        let place = if length < 24 { "header" } else { "at byte" };
        assert!(error.contains(place), "cut to {length}: {error}");
    }
}

#[test]
fn a_trace_with_any_byte_changed_is_refused_and_names_the_block() {
    let dir = tempfile::tempdir().unwrap();
    write(&file(&dir), &sample());
    let whole = fs::read(file(&dir)).unwrap();
    for at in 0..whole.len() {
        for change in [1u8, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] ^= change;
            fs::write(file(&dir), &bytes).unwrap();
            let error = format!("{:#}", read(&file(&dir)).unwrap_err());
            assert!(
                error.contains("header") || error.contains("block"),
                "byte {at}: {error}"
            );
        }
    }
}

#[test]
fn the_place_of_damage_is_the_block_that_holds_it() {
    let dir = tempfile::tempdir().unwrap();
    write(&file(&dir), &[vec![1; 100], vec![2; 100], vec![3; 100]]);
    let mut bytes = fs::read(file(&dir)).unwrap();
    // Header 24, and blocks of 16 + 100 bytes (2 is written as 4, 0, 0, ...).
    bytes[24 + 116 + 16 + 50] ^= 4;
    fs::write(file(&dir), &bytes).unwrap();
    let error = format!("{:#}", read(&file(&dir)).unwrap_err());
    assert!(error.contains("block 1 at byte 140"), "{error}");
}

#[test]
fn blocks_swapped_left_out_or_appended_are_found() {
    let dir = tempfile::tempdir().unwrap();
    write(&file(&dir), &[vec![5; 84], vec![9; 84]]);
    let whole = fs::read(file(&dir)).unwrap();
    let (first, second, end) = (24..124, 124..224, 224..256);
    assert_eq!(whole.len(), end.end);
    let mut tries = Vec::new();
    let part = |range: &std::ops::Range<usize>| whole[range.clone()].to_vec();
    tries.push([part(&(0..24)), part(&second), part(&first), part(&end)].concat());
    tries.push([part(&(0..24)), part(&first), part(&end)].concat());
    tries.push([whole.clone(), vec![0]].concat());
    tries.push([whole.clone(), part(&end)].concat());
    for bytes in tries {
        fs::write(file(&dir), bytes).unwrap();
        read(&file(&dir)).unwrap_err();
    }
}

#[test]
fn lengths_of_random_bytes_do_not_take_memory_or_panic() {
    let dir = tempfile::tempdir().unwrap();
    write(&file(&dir), &[]);
    let header = fs::read(file(&dir)).unwrap()[..24].to_vec();
    for seed in 0..500u64 {
        let mut bytes = if seed % 4 == 0 {
            Vec::new()
        } else {
            header.clone()
        };
        for i in 0..seed % 60 {
            bytes.extend_from_slice(&mix64(seed << 32 | i).to_le_bytes());
        }
        fs::write(file(&dir), &bytes).unwrap();
        read(&file(&dir)).unwrap_err();
    }
}

#[test]
fn a_trace_that_was_not_finished_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TraceWriter::create(&file(&dir)).unwrap();
    writer.batch(&[1, 2, 3]).unwrap();
    drop(writer);
    let error = format!("{:#}", read(&file(&dir)).unwrap_err());
    assert!(error.contains("not finished"), "{error}");
}

#[test]
fn accesses_number_keys_by_first_use_and_take_each_once_a_batch() {
    let dir = tempfile::tempdir().unwrap();
    let batches = vec![vec![70, 50, 70], vec![], vec![60, 50, 60, 70]];
    write(&file(&dir), &batches);
    let accesses = Accesses::read(&file(&dir), 4, || ()).unwrap();
    assert_eq!(accesses.keys(), [70, 50, 60]);
    assert_eq!((accesses.batches(), accesses.total()), (3, 5));
    let rows: Vec<&[u32]> = (0..3).map(|b| accesses.batch(b)).collect();
    assert_eq!(rows, [&[0, 1][..], &[], &[2, 1, 0]]);
    write(&file(&dir), &[vec![]]);
    Accesses::read(&file(&dir), 4, || ()).unwrap_err();
}
