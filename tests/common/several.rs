//! A batch of several tables, pulled and pushed by one call each.

use std::collections::BTreeMap;

use hps::*;

use super::{Run, descend, descriptor, same};

/// What is done to the rows of a part.
fn changed(part: usize, row: &mut [f32], dim: usize, value: f32) -> Vec<f32> {
    match part % 3 {
        0 => {
            row.iter_mut()
                .enumerate()
                .for_each(|(i, v)| *v = value + i as f32);
            row.to_vec()
        }
        1 => {
            descend(row, dim, 0.25);
            vec![0.25; dim]
        }
        _ => {
            row[..dim].fill(value);
            row[..dim].to_vec()
        }
    }
}

impl Run {
    /// Pulls the parts together, compares them with the model, and pushes to all of them: rows to
    /// the first, gradients to the second, weights to the third. Keys of a part are distinct.
    pub fn several(&mut self, parts: &[(usize, Vec<u64>)], value: f32) -> Result<()> {
        let known = |(table, _): &&(usize, Vec<u64>)| self.model.tables.has(*table);
        let parts: Vec<&(usize, Vec<u64>)> = parts.iter().filter(known).collect();
        let id = |table: usize| TableId(u32::try_from(table).unwrap());
        let dims: Vec<usize> = parts.iter().map(|(t, _)| descriptor(*t).dim).collect();
        let mut outs: Vec<Vec<f32>> = parts
            .iter()
            .zip(&dims)
            .map(|((_, keys), dim)| vec![0.0; keys.len() * dim])
            .collect();
        let wanted = parts.iter().zip(&mut outs);
        let mut wanted: Vec<PullPart<'_>> = wanted
            .map(|((table, keys), out)| PullPart::new(id(*table), keys, out))
            .collect();
        let lease = self.store().pull_many(&mut wanted)?;
        let mut new: BTreeMap<(usize, u64), Vec<f32>> = BTreeMap::new();
        let mut values = Vec::new();
        for (p, ((table, keys), out)) in parts.iter().zip(&outs).enumerate() {
            let mut pushed = Vec::new();
            for (key, got) in keys.iter().zip(out.chunks(dims[p])) {
                let old = self.model.row(*table, *key);
                assert!(
                    same(got, &old[..dims[p]]),
                    "a pull of several tables gave other weights than the model"
                );
                let row = new.entry((*table, *key)).or_insert(old);
                pushed.extend(changed(p, row, dims[p], value));
            }
            values.push(pushed);
        }
        let update = |(p, values)| match p % 3 {
            0 => Update::rows(values),
            1 => Update::gradients(values, 0.5),
            _ => Update::weights(values),
        };
        let updates = values.iter().map(|v| &v[..]).enumerate().map(update);
        let pushed = parts.iter().zip(updates);
        let pushed: Vec<PushPart<'_>> = pushed
            .map(|((table, _), update)| PushPart::new(id(*table), update))
            .collect();
        self.store().push_many(&lease, &pushed)?;
        for ((table, key), row) in new {
            self.model.set(table, key, &row);
        }
        Ok(())
    }
}
