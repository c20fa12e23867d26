//! Are two runs bit-identical? One number over every row of a checkpoint and the dense parameters.
//!
//! - xxh3-128 over (table, key, weights and state) of each row in rising (table, key), then over
//!   the dense parameters with their Adam state.
//! - Rows come in another order (mix64), and may not fit in memory: they are spread over files by
//!   ranges of the key, and each file is sorted alone.

use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};

use anyhow::{Context, Result};
use hps::{CheckpointId, Store};
use xxhash_rust::xxh3::Xxh3;

use crate::model::Model;

/// Bytes of rows sorted in memory at once.
const PART_BYTES: u64 = 8 << 20;
const PARTS_MAX: u64 = 256;
/// One key in 64, by the upper bits of a product, is looked at to choose the ranges.
const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;

/// The digest in hexadecimal.
pub(crate) fn digest(store: &Store, checkpoint: CheckpointId, model: &Model) -> Result<String> {
    let (mut count, mut width, mut sample) = (0u64, 0u64, Vec::new());
    let mut rows = store.rows(checkpoint)?;
    while let Some(row) = rows.next_row()? {
        count += 1;
        width = width.max(12 + 4 * row.values.len() as u64);
        if row.key.wrapping_mul(SCATTER) >> 58 == 0 {
            sample.push((row.table.0, row.key));
        }
    }
    sample.sort_unstable();
    let parts = (count * width / PART_BYTES + 1)
        .min(PARTS_MAX)
        .min(sample.len() as u64 + 1);
    let parts = usize::try_from(parts)?;
    let edges: Vec<(u32, u64)> = (1..parts)
        .filter_map(|i| sample.get(i * sample.len() / parts).copied())
        .collect();
    let mut hash = Xxh3::new();
    for mut file in spread(store, checkpoint, &edges)? {
        hash_part(&mut file, &mut hash)?;
    }
    for values in [&model.weights, &model.first, &model.second] {
        for x in values {
            hash.update(&x.to_le_bytes());
        }
    }
    hash.update(&model.steps.to_le_bytes());
    Ok(format!("{:032x}", hash.digest128()))
}

/// Writes the rows into one unnamed file per range, as (table, key, length, values).
fn spread(store: &Store, checkpoint: CheckpointId, edges: &[(u32, u64)]) -> Result<Vec<File>> {
    let what = "sort rows in a temporary file";
    let mut files = Vec::new();
    for _ in 0..=edges.len() {
        files.push(BufWriter::with_capacity(
            16 << 10,
            tempfile::tempfile().context(what)?,
        ));
    }
    let mut record = Vec::new();
    let mut rows = store.rows(checkpoint)?;
    while let Some(row) = rows.next_row()? {
        let part = edges.partition_point(|edge| *edge <= (row.table.0, row.key));
        record.clear();
        record.extend_from_slice(&row.table.0.to_le_bytes());
        record.extend_from_slice(&row.key.to_le_bytes());
        record.extend_from_slice(&u32::try_from(row.values.len())?.to_le_bytes());
        record.extend(row.values.iter().flat_map(|x| x.to_le_bytes()));
        files[part].write_all(&record).context(what)?;
    }
    files
        .into_iter()
        .map(|file| {
            file.into_inner()
                .map_err(|error| error.into_error())
                .context(what)
        })
        .collect()
}

fn hash_part(file: &mut File, hash: &mut Xxh3) -> Result<()> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    let mut rows = Vec::new();
    let mut rest = bytes.as_slice();
    while let Some((head, tail)) = rest.split_first_chunk::<16>() {
        let [
            t0,
            t1,
            t2,
            t3,
            k0,
            k1,
            k2,
            k3,
            k4,
            k5,
            k6,
            k7,
            n0,
            n1,
            n2,
            n3,
        ] = *head;
        let table = u32::from_le_bytes([t0, t1, t2, t3]);
        let key = u64::from_le_bytes([k0, k1, k2, k3, k4, k5, k6, k7]);
        let count = usize::try_from(u32::from_le_bytes([n0, n1, n2, n3]))?;
        let (values, after) = tail
            .split_at_checked(4 * count)
            .context("a row was cut short")?;
        rows.push((table, key, values));
        rest = after;
    }
    rows.sort_unstable_by_key(|row| (row.0, row.1));
    for (table, key, values) in rows {
        hash.update(&table.to_le_bytes());
        hash.update(&key.to_le_bytes());
        hash.update(values);
    }
    Ok(())
}
