//! Rows that are put, and nothing of them read before.

use hps::*;

use super::{Run, descriptor, initial_row};

impl Run {
    /// Puts whole rows, or weights where `value` is not a whole number; of equal keys the last counts.
    /// A put that fails may have written any of them.
    pub fn put(&mut self, table: usize, keys: &[u64], value: f32) -> Result<()> {
        let (dim, width) = (descriptor(table).dim, descriptor(table).row_f32s());
        let are_whole = value.fract() == 0.0;
        let new: Vec<Vec<f32>> = (0..keys.len())
            .map(|position| {
                let mut row = initial_row(table);
                let changed = if are_whole { width } else { dim };
                for (i, v) in row[..changed].iter_mut().enumerate() {
                    *v = value - position as f32 - i as f32;
                }
                row
            })
            .collect();
        let values: Vec<f32> = match are_whole {
            true => new.concat(),
            false => new.iter().flat_map(|row| &row[..dim]).copied().collect(),
        };
        let rows = match are_whole {
            true => PutRows::whole(&values),
            false => PutRows::weights(&values),
        };
        let id = TableId(u32::try_from(table).unwrap());
        let before = self.store().stats();
        let result = self.store().put(id, keys, rows);
        let rows = keys.iter().zip(&new);
        match result {
            Ok(report) => {
                let after = self.store().stats();
                assert_eq!((report.rows, report.non_finite), (keys.len() as u64, 0));
                assert_eq!(after.rows_put - before.rows_put, keys.len() as u64);
                assert_eq!(after.reads, before.reads, "a put reads nothing");
                rows.for_each(|(key, row)| self.model.set(table, *key, row));
                self.model.half_put.clear();
                Ok(())
            }
            Err(error) => {
                for (key, row) in rows {
                    let bits = row.iter().map(|v| v.to_bits()).collect();
                    self.model
                        .half_put
                        .entry((table, *key))
                        .or_default()
                        .push(bits);
                }
                Err(error)
            }
        }
    }
}
