//! Do two checkpoints hold the same rows?
//!
//! - Rows come in the order of (table, mix64(key)), so that both are walked once, side by side.
//! - Tables are compared by number; a table that only one store has differs by all of its rows.

use std::path::Path;

use anyhow::Result;
use hps::{CheckpointId, RowIter, Store, mix64};
use xxhash_rust::xxh3::Xxh3;

use crate::cli::Interrupt;
use crate::store::open_for_rows;

/// Keys named one by one.
const NAMED_MAX: usize = 16;

/// How the rows of two checkpoints differ.
#[derive(Debug, Default)]
pub struct Difference {
    /// Rows that only the first store has.
    pub only_here: u64,
    /// Rows that only the other has.
    pub only_there: u64,
    /// Rows that both have, with other bits.
    pub changed: u64,
    /// The greatest difference of a value among these.
    pub largest: f32,
    /// Table and key of the first ones.
    pub named: Vec<(u32, u64)>,
}

impl Difference {
    /// Rows that differ.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.only_here + self.only_there + self.changed
    }

    fn name(&mut self, order: (u32, u64), key: u64) {
        if self.named.len() < NAMED_MAX {
            self.named.push((order.0, key));
        }
    }
}

fn open(directory: &Path, checkpoint: Option<CheckpointId>) -> Result<(Store, CheckpointId)> {
    let (store, info) = open_for_rows(directory, checkpoint, "rows to compare with")?;
    Ok((store, info.id))
}

/// xxh3-128 over (table, key, values) of all rows, in the order of (table, mix64(key)).
///
/// # Errors
/// What the store says; `Cancelled` on request.
pub fn digest(directory: &Path, checkpoint: CheckpointId, interrupt: &Interrupt) -> Result<String> {
    let (store, id) = open(directory, Some(checkpoint))?;
    let mut rows = store.rows(id)?;
    let mut digest = Xxh3::new();
    let mut bytes = Vec::new();
    while let Some(row) = rows.next_row()? {
        interrupt.check()?;
        bytes.clear();
        bytes.extend_from_slice(&row.table.0.to_le_bytes());
        bytes.extend_from_slice(&row.key.to_le_bytes());
        bytes.extend(row.values.iter().flat_map(|v| v.to_le_bytes()));
        digest.update(&bytes);
    }
    Ok(format!("{:032x}", digest.digest128()))
}

/// A walk over rows, with the one that it stands at.
struct Side {
    rows: RowIter,
    at: Option<((u32, u64), u64)>,
    values: Vec<f32>,
}

impl Side {
    fn new(rows: RowIter) -> Result<Side> {
        let mut side = Side {
            rows,
            at: None,
            values: Vec::new(),
        };
        side.step()?;
        Ok(side)
    }

    fn step(&mut self) -> Result<()> {
        self.at = match self.rows.next_row()? {
            Some(row) => {
                self.values.clear();
                self.values.extend_from_slice(row.values);
                Some(((row.table.0, mix64(row.key)), row.key))
            }
            None => None,
        };
        Ok(())
    }
}

/// Compares a checkpoint with the last one of another store.
///
/// # Errors
/// What the stores say; `Cancelled` on request.
pub fn diff(
    directory: &Path,
    checkpoint: CheckpointId,
    other: &Path,
    interrupt: &Interrupt,
) -> Result<Difference> {
    let (here, id) = open(directory, Some(checkpoint))?;
    let (there, other_id) = open(other, None)?;
    let mut a = Side::new(here.rows(id)?)?;
    let mut b = Side::new(there.rows(other_id)?)?;
    let mut difference = Difference::default();
    while let Some(order) = a.at.iter().chain(&b.at).map(|(order, _)| *order).min() {
        interrupt.check()?;
        let (left, right) = (
            a.at.filter(|(o, _)| *o == order),
            b.at.filter(|(o, _)| *o == order),
        );
        let key = left.or(right).map_or(0, |(_, key)| key);
        match (left, right) {
            (Some(_), Some(_)) => {
                let same = a.values.len() == b.values.len()
                    && (a.values.iter().zip(&b.values)).all(|(x, y)| x.to_bits() == y.to_bits());
                if !same {
                    difference.changed += 1;
                    difference.name(order, key);
                    for (x, y) in a.values.iter().zip(&b.values) {
                        difference.largest = difference.largest.max((x - y).abs());
                    }
                }
            }
            (Some(_), None) => {
                difference.only_here += 1;
                difference.name(order, key);
            }
            _ => {
                difference.only_there += 1;
                difference.name(order, key);
            }
        }
        if left.is_some() {
            a.step()?;
        }
        if right.is_some() {
            b.step()?;
        }
    }
    Ok(difference)
}
