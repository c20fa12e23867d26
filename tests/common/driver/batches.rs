//! Batches of one table, by the calls for one, and of several, by the calls for several.

use super::super::model::{Push, key_of, same_bits};
use super::super::rng::Rng;
use super::{Begun, Driver, Totals};
use hps::*;

/// Tables and keys; a table may be there twice.
pub type Parts = Vec<(usize, Vec<u64>)>;

impl Driver<'_> {
    /// These keys, or as many of several tables.
    pub fn parts(&self, rng: &mut Rng, table: usize, keys: Vec<u64>) -> Parts {
        if !rng.one_in(3) {
            return vec![(table, keys)];
        }
        let count = 1 + rng.below(4);
        let mut parts = Parts::new();
        for part in 0..count {
            let table = self.live(rng.below(self.tables.len()));
            let share = keys.len() / count;
            let keys = match rng.below(6) {
                0 => Vec::new(),
                // Again keys of a part before, where it is of this table.
                1 if part > 0 && parts[0].0 == table => parts[0].1.clone(),
                _ => self.tables[table].keys(rng, share),
            };
            parts.push((table, keys));
        }
        parts
    }

    pub fn prefetch(&self, parts: &Parts) -> Ticket {
        if let [(table, keys)] = &parts[..] {
            return self.store().prefetch(Self::id(*table), keys).unwrap();
        }
        let part = |(table, keys): &'_ (usize, Vec<u64>)| (Self::id(*table), keys.clone());
        let owned: Vec<_> = parts.iter().map(part).collect();
        let wanted = owned.iter().map(|(id, keys)| PrefetchPart::new(*id, keys));
        self.store()
            .prefetch_many(&wanted.collect::<Vec<_>>())
            .unwrap()
    }

    pub fn pull(&mut self, parts: &Parts) -> Lease {
        let dim = |table: usize| self.tables[table].descriptor.dim;
        let empty = |(table, keys): &(usize, Vec<u64>)| vec![0.0; keys.len() * dim(*table)];
        let mut outs: Vec<Vec<f32>> = parts.iter().map(empty).collect();
        let lease = if let [(table, keys)] = &parts[..] {
            self.store().pull(Self::id(*table), keys, &mut outs[0])
        } else {
            let wanted = parts.iter().zip(&mut outs);
            let mut wanted: Vec<PullPart<'_>> = wanted
                .map(|((table, keys), out)| PullPart::new(Self::id(*table), keys, out))
                .collect();
            self.store().pull_many(&mut wanted)
        };
        let lease = lease.unwrap();
        let rows = self.check_lease(parts, &lease);
        for (((table, _), out), rows) in parts.iter().zip(&outs).zip(&rows) {
            let width = self.tables[*table].descriptor.row_f32s();
            let both = out.chunks_exact(dim(*table)).zip(rows.chunks_exact(width));
            for (weights, row) in both {
                assert!(same_bits(weights, &row[..dim(*table)]), "weights");
            }
        }
        lease
    }

    /// The rows of a lease, part by part, are those of the model.
    pub fn check_lease(&self, parts: &Parts, lease: &Lease) -> Vec<Vec<f32>> {
        let keys: usize = parts.iter().map(|(_, keys)| keys.len()).sum();
        assert_eq!((lease.len(), lease.parts().len()), (keys, parts.len()));
        let mut all = Vec::new();
        for ((table, keys), part) in parts.iter().zip(lease.parts()) {
            let model = &self.tables[*table];
            assert_eq!(part.table(), Self::id(*table));
            let width = model.descriptor.row_f32s();
            let mut rows = vec![0.0; keys.len() * width];
            part.read_rows(&mut rows).unwrap();
            model.compare(keys, &rows, "a lease");
            if let Some(last) = (keys.len() as u32).checked_sub(1) {
                let mut row = vec![0.0; width];
                part.read_rows_at(&[last], &mut row).unwrap();
                assert!(same_bits(&row, &rows[last as usize * width..]), "{last}");
            }
            all.push(rows);
        }
        let mut joined = vec![0.0; all.iter().map(Vec::len).sum()];
        lease.read_rows(&mut joined).unwrap();
        assert!(same_bits(&joined, &all.concat()), "one after the other");
        Totals::add(&self.totals.rows_compared, keys as u64);
        all
    }

    /// Changes all rows, or some positions of each part.
    pub fn push(&mut self, parts: &Parts, lease: &Lease, rng: &mut Rng) {
        let mut pushes: Vec<Push> = Vec::new();
        let mut expected = Vec::new();
        for (table, keys) in parts {
            let model = &mut self.tables[*table];
            let positions = rng.one_in(4).then(|| {
                let count = rng.below(keys.len() + 1);
                let at = |_| rng.below(keys.len()) as u32;
                (0..count).map(at).collect::<Vec<u32>>()
            });
            let chosen: Vec<u64> = match &positions {
                Some(positions) => positions.iter().map(|p| keys[*p as usize]).collect(),
                None => keys.clone(),
            };
            let mut push = model.random_push(rng, chosen.len());
            push.positions = positions;
            expected.push(model.push(&chosen, &push));
            pushes.push(push);
        }
        let found = match (&parts[..], &pushes[..]) {
            ([_], [push]) => vec![self.store().push(lease, push.update()).unwrap()],
            _ => {
                Totals::add(&self.totals.pushes_of_several, 1);
                let pushed = parts.iter().zip(&pushes);
                let pushed = pushed.map(|((t, _), p)| PushPart::new(Self::id(*t), p.update()));
                let pushed: Vec<PushPart<'_>> = pushed.collect();
                self.store().push_many(lease, &pushed).unwrap()
            }
        };
        assert_eq!(found, expected, "{pushes:?}");
        self.changed |= expected.iter().any(|report| report.rows > 0);
    }

    /// Puts the rows of these keys, or of all keys of a table, some twice: leases that are out have as
    /// few or as many of them as there happen to be, and are looked at later.
    pub fn put(&mut self, table: usize, mut keys: Vec<u64>, rng: &mut Rng) {
        let model = &mut self.tables[table];
        if rng.one_in(4) {
            keys.extend((0..model.universe).map(key_of));
            keys.extend(model.keys(rng, 20));
        }
        let (push, is_whole) = model.random_put(rng, keys.len());
        let expected = model.put(&keys, &push.values, push.verbatim);
        let rows = match is_whole {
            true => PutRows::whole(&push.values),
            false => PutRows::weights(&push.values),
        };
        let rows = if push.verbatim { rows.verbatim() } else { rows };
        let before = self.store().stats();
        let found = self.store().put(Self::id(table), &keys, rows).unwrap();
        let after = self.store().stats();
        assert_eq!((found.rows, found.non_finite), expected);
        // With threads, prefetches read meanwhile.
        let alone = self.tickets.is_empty() && self.coming_passes.is_empty();
        let alone = alone && !self.dropped_ticket;
        if alone || !self.background {
            assert_eq!(before.reads, after.reads, "a put reads nothing");
        }
        self.changed |= found.rows > 0;
        Totals::add(&self.totals.puts, 1);
        let flushed = after.flushes > before.flushes;
        // What went past the cache needs no room in it: nothing else is flushed for it.
        let straight = flushed && !self.background && after.dirty_rows >= before.dirty_rows;
        Totals::add(&self.totals.straight_puts, u64::from(straight));
        Totals::add(&self.totals.flushing_puts, u64::from(flushed && !straight));
    }

    /// Ends a pass whose rows are read, perhaps written, or waits for one, or gives one up.
    pub fn end_pass(&mut self, rng: &mut Rng) {
        if !self.passes.is_empty() {
            let Begun { table, keys, pass } = self.passes.swap_remove(rng.below(self.passes.len()));
            let model = &mut self.tables[table];
            let width = model.descriptor.row_f32s();
            let mut rows = vec![0.0; keys.len() * width];
            pass.read_rows(0, 0, &mut rows).unwrap();
            model.compare(&keys, &rows, "a pass");
            if rng.one_in(2) {
                // The rows of some keys, turned round.
                let first = rng.below(keys.len() + 1);
                let turned: Vec<f32> = rows[first * width..]
                    .chunks(width)
                    .rev()
                    .flatten()
                    .copied()
                    .collect();
                let put = PutRows::whole(&turned).verbatim();
                let report = pass.put(0, first, put).unwrap();
                let expected = model.put(&keys[first..], &turned, true);
                assert_eq!((report.rows, report.non_finite), expected);
                self.changed |= first < keys.len();
                Totals::add(&self.totals.passes_put, 1);
            }
            let report = pass.end();
            assert!(report.hits <= report.known && report.known <= report.keys);
            Totals::add(&self.totals.passes, 1);
        } else if !self.coming_passes.is_empty() {
            let coming = &mut self.coming_passes;
            let Begun { table, keys, pass } = coming.swap_remove(rng.below(coming.len()));
            if !rng.one_in(4) {
                let pass = pass.wait().unwrap();
                self.passes.push(Begun { table, keys, pass });
            }
        }
    }
}
