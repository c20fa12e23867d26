//! What many trainers use today: one file mapped as an array, a row at its key's place.
//!
//! - `MADV_RANDOM`: without it the kernel reads 128 KiB and more around each fault.
//! - The checkpoint is msync. A crash in between leaves rows of any moment: no consistent cut.
//!
//! Unsafe here: mapping the file.
#![expect(unsafe_code, reason = "a mapped file can be changed by others")]

use std::fs::OpenOptions;

use anyhow::{Context, Result, ensure};
use hps::row::{RowVisitor, Updater};
use memmap2::{Advice, MmapMut};
use zerocopy::FromBytes;

use super::{DIM, Engine, LEARNING_RATE, Place, ROW, ROW_BYTES, both, updater};

/// The mapped array.
pub struct Array {
    map: MmapMut,
    updater: Updater,
}

struct Visit<'a> {
    rows: &'a mut [f32],
    first: u64,
    keys: std::slice::Iter<'a, u64>,
    gradients: std::slice::ChunksExact<'a, f32>,
}

/// Where the row of a key lies in a slice that begins with the row of `first`.
fn place(key: u64, first: u64) -> Option<std::ops::Range<usize>> {
    let at = usize::try_from(key - first).ok()? * ROW;
    Some(at..at + ROW)
}

impl RowVisitor for Visit<'_> {
    fn next(&mut self) -> Option<(&mut [f32], &[f32])> {
        let range = place(*self.keys.next()?, self.first)?;
        Some((&mut self.rows[range], self.gradients.next()?))
    }
}

impl Array {
    /// Maps the file, made at its full size where there is none.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(place: &Place) -> Result<Array> {
        let path = place.file("array");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .with_context(|| format!("open {}", path.display()))?;
        let bytes = place.rows * ROW_BYTES as u64;
        if file.metadata()?.len() != bytes {
            let flags = nix::fcntl::FallocateFlags::empty();
            let length = i64::try_from(bytes)?;
            if nix::fcntl::fallocate(&file, flags, 0, length).is_err() {
                file.set_len(bytes)?; // a file system without it: the file grows as it is written
            }
            file.sync_all()?;
        }
        // SAFETY: the file belongs to this comparison, which runs one process on it at a time, and
        // nothing shortens it while it is mapped.
        let map = unsafe { MmapMut::map_mut(&file) }.context("map the array")?;
        map.advise(Advice::Random)?;
        Ok(Array {
            map,
            updater: updater(),
        })
    }

    fn rows(&self) -> Result<&[f32]> {
        <[f32]>::ref_from_bytes(&self.map).map_err(|e| anyhow::anyhow!("the mapped file: {e}"))
    }

    /// The rows in two parts, the second one beginning with the row of `middle`.
    fn parts(&mut self, middle: u64) -> Result<(&mut [f32], &mut [f32])> {
        let rows = <[f32]>::mut_from_bytes(&mut self.map);
        let rows = rows.map_err(|e| anyhow::anyhow!("the mapped file: {e}"))?;
        Ok(rows.split_at_mut(usize::try_from(middle)? * ROW))
    }
}

/// Writes rows at the places of their keys.
fn put(target: &mut [f32], first: u64, keys: &[u64], rows: &[f32]) -> Result<()> {
    for (key, row) in keys.iter().zip(rows.chunks_exact(ROW)) {
        let range = place(*key, first).context("a key past the address space")?;
        target[range].copy_from_slice(row);
    }
    Ok(())
}

fn get(rows: &[f32], keys: &[u64], out: &mut [f32]) -> Result<()> {
    for (key, out) in keys.iter().zip(out.chunks_exact_mut(DIM)) {
        let range = place(*key, 0).context("a key past the address space")?;
        out.copy_from_slice(&rows[range][..DIM]);
    }
    Ok(())
}

impl Engine for Array {
    fn load(&mut self, keys: &[u64], rows: &[f32]) -> Result<()> {
        let n = keys.len() / 2;
        let Some(middle) = keys.get(n).copied() else {
            return Ok(());
        };
        let (left, right) = self.parts(middle)?;
        both(
            || put(left, 0, &keys[..n], &rows[..n * ROW]),
            || put(right, middle, &keys[n..], &rows[n * ROW..]),
        )
    }

    fn pull(&mut self, keys: &[u64], out: &mut [f32]) -> Result<()> {
        let n = keys.len() / 2;
        let rows = self.rows()?;
        let (left, right) = out.split_at_mut(n * DIM);
        both(
            || get(rows, &keys[..n], left),
            || get(rows, &keys[n..], right),
        )
    }

    fn push(&mut self, keys: &[u64], gradients: &[f32]) -> Result<()> {
        ensure!(gradients.len() == keys.len() * DIM, "one gradient a key");
        let n = keys.len() / 2;
        let Some(middle) = keys.get(n).copied() else {
            return Ok(());
        };
        let updater = self.updater.clone();
        let apply = |rows: &mut [f32], first, keys: &[u64], gradients: &[f32]| {
            let mut visit = Visit {
                rows,
                first,
                keys: keys.iter(),
                gradients: gradients.chunks_exact(DIM),
            };
            updater.apply_all(LEARNING_RATE, &mut visit);
            Ok(())
        };
        let (left, right) = self.parts(middle)?;
        both(
            || apply(left, 0, &keys[..n], &gradients[..n * DIM]),
            || apply(right, middle, &keys[n..], &gradients[n * DIM..]),
        )
    }

    fn checkpoint(&mut self) -> Result<()> {
        self.map.flush().context("sync the array")
    }
}
