//! What is the best fixed split of a cache's bytes between tables?
//!
//! - Each table is simulated alone, as an LFU with exact counts, with a range of sizes: its hits as a
//!   function of its bytes.
//! - Bytes go where a byte adds the most hits, along the upper concave hulls of these functions.
//! - Sizes are a fifth apart; what is left behind the last whole step goes to the table whose turn it
//!   is.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};

use crate::trace::counts::{Lfu, Room};
use crate::trace::{Accesses, misses};

/// The least size above none, in rows.
const FIRST_ROWS: usize = 8;

/// Hits of one table by its size.
#[derive(Clone, Debug)]
struct Curve {
    /// Rows, and hits in each of the ranges of batches.
    points: Vec<(usize, Vec<u64>)>,
}

/// The hit curves of all tables.
#[derive(Clone, Debug)]
pub struct Curves {
    curves: Vec<Curve>,
    /// Bytes of a slot, by table.
    slot_bytes: Vec<u64>,
}

/// Hits of each batch of a table with so many rows of cache.
///
/// # Errors
/// None in fact: LFU serves every batch.
pub fn hits(table: &Accesses, rows: usize) -> Result<Vec<usize>> {
    let room = Room::slots(table, rows);
    let found = misses(table, &mut Lfu::new(table, &room), table.batches(), || {})?;
    let batches = found.iter().enumerate();
    Ok(batches
        .map(|(b, missed)| table.batch(b).len() - missed)
        .collect())
}

/// Sizes to try for a table of so many rows.
fn sizes(rows: usize) -> Vec<usize> {
    let (mut found, mut size) = (vec![0], FIRST_ROWS);
    while size < rows {
        found.push(size);
        size += size / 5 + 1;
    }
    found.push(rows);
    found
}

impl Curves {
    /// Simulates every table, with hits counted over each of the ranges of batches.
    ///
    /// # Errors
    /// As [`hits`].
    pub fn simulate(
        tables: &[Accesses],
        slot_bytes: &[u64],
        ranges: &[Range<usize>],
        threads: usize,
        each: impl Fn() + Sync,
    ) -> Result<Curves> {
        let mut points: Vec<(usize, usize)> = Vec::new();
        for (t, table) in tables.iter().enumerate() {
            points.extend(sizes(table.distinct()).into_iter().map(|rows| (t, rows)));
        }
        let next = AtomicUsize::new(0);
        let work = || {
            let mut found = Vec::new();
            while let Some((t, rows)) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
                let hits = hits(&tables[*t], *rows)?;
                let of = |range: &Range<usize>| -> u64 {
                    hits[range.clone()].iter().map(|n| *n as u64).sum()
                };
                found.push((*t, *rows, ranges.iter().map(of).collect()));
                each();
            }
            anyhow::Ok(found)
        };
        let done = std::thread::scope(|scope| {
            let spawned: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let joined = spawned.into_iter().map(|thread| {
                let found = thread.join().ok();
                found.context("a simulation panicked").flatten()
            });
            joined.collect::<Result<Vec<Vec<(usize, usize, Vec<u64>)>>>>()
        })?;
        let mut curves = vec![Curve { points: Vec::new() }; tables.len()];
        for (t, rows, hits) in done.into_iter().flatten() {
            curves[t].points.push((rows, hits));
        }
        for curve in &mut curves {
            curve.points.sort();
        }
        Ok(Curves {
            curves,
            slot_bytes: slot_bytes.to_vec(),
        })
    }

    /// Rows of each table in the best split of so many bytes for one of the ranges.
    #[must_use]
    pub fn best(&self, bytes: u64, range: usize) -> Vec<usize> {
        let mut steps = Vec::new();
        for (t, curve) in self.curves.iter().enumerate() {
            let points = curve.points.iter().map(|(rows, hits)| (*rows, hits[range]));
            for [from, to] in hull(&points.collect::<Vec<_>>()) {
                let size = (to.0 - from.0) as u64 * self.slot_bytes[t];
                steps.push(((to.1 - from.1) as f64 / size as f64, t, to.0 - from.0));
            }
        }
        // A table's own steps fall along its hull, so they stay in their order.
        steps.sort_by(|a, b| b.0.total_cmp(&a.0));
        let (mut rows, mut left) = (vec![0; self.curves.len()], bytes);
        for (_, t, more) in steps {
            let fits = usize::try_from(left / self.slot_bytes[t]).unwrap_or(usize::MAX);
            rows[t] += more.min(fits);
            left -= more.min(fits) as u64 * self.slot_bytes[t];
            if fits < more {
                break;
            }
        }
        rows
    }
}

/// The steps of the upper concave hull of rising points that begin with no rows, without flat ones.
fn hull(points: &[(usize, u64)]) -> Vec<[(usize, u64); 2]> {
    let mut hull: Vec<(usize, u64)> = Vec::new();
    for point in points {
        while let [.., a, b] = hull[..] {
            // Whether b lies on or below the line from a to the point.
            let to_b = u128::from(b.1.saturating_sub(a.1)) * (point.0 - a.0) as u128;
            let to_point = u128::from(point.1.saturating_sub(a.1)) * (b.0 - a.0) as u128;
            if to_b > to_point {
                break;
            }
            hull.pop();
        }
        if hull.last().is_none_or(|last| point.1 > last.1) {
            hull.push(*point);
        }
    }
    let pairs = hull.windows(2).filter_map(|pair| match pair {
        [from, to] => Some([*from, *to]),
        _ => None,
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hps::mix64;

    #[test]
    fn a_hull_leaves_out_what_lies_below_it() {
        let points = [(0, 0), (1, 1), (2, 10), (3, 11), (4, 18), (5, 18), (6, 17)];
        assert_eq!(
            hull(&points),
            [[(0, 0), (2, 10)], [(2, 10), (4, 18)]],
            "1 and 3 lie below, 5 and 6 add nothing"
        );
    }

    /// Tables of uniform keys: a row of each is worth its uses ÷ keys ÷ bytes.
    #[test]
    fn the_best_split_fills_tables_in_the_order_of_hits_per_byte() {
        let table = |keys: u64, uses: u64| {
            let batch = |b: u64| (0..uses).map(|i| mix64(b << 32 | i) % keys).collect();
            let batches: Vec<Vec<u64>> = (0..400).map(batch).collect();
            Accesses::from_batches(&batches).unwrap()
        };
        // Hits per byte: 8 / 100 / 1, 8 / 100 / 4, 8 / 800 / 1.
        let tables = [table(100, 8), table(100, 8), table(800, 8)];
        let curves = Curves::simulate(&tables, &[1, 4, 1], &[0..100, 100..400], 2, || {}).unwrap();
        // LFU over few uniform keys swings a little: no split to the row.
        let near = |rows: &[usize], wanted: [usize; 3]| {
            assert!(
                rows.iter().zip(wanted).all(|(a, b)| a.abs_diff(b) <= 20),
                "{rows:?}"
            );
        };
        near(&curves.best(100, 1), [100, 0, 0]);
        near(&curves.best(500, 1), [100, 100, 0]);
        near(&curves.best(900, 1), [100, 100, 400]);
        near(&curves.best(5000, 1), [100, 100, 785]);
        let all: usize = hits(&tables[0], 100).unwrap()[100..].iter().sum();
        let uses: usize = (100..400).map(|b| tables[0].batch(b).len()).sum();
        assert_eq!(all, uses, "everything fits");
    }
}
