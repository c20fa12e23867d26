//! Which rows of a call belong to which of its parts?
//!
//! A part is keys of one table. Inside of a call the parts are put in the order of their tables, so
//! that those of one table lie next to each other: a part's *ordinal* is its place in that order, its
//! *index* the one in the caller's. In each shard the rows of the parts follow each other by ordinal.

use std::ops::Range;
use std::sync::Arc;

use super::super::core::Table;
use crate::units::narrow;

/// One part of a call.
#[derive(Debug)]
struct Part {
    table: Arc<Table>,
    /// Its first row, in the order of ordinals.
    first: usize,
    /// Keys, duplicates included.
    keys: usize,
}

/// Where the rows of a call's parts lie.
#[derive(Debug, Default)]
pub struct PartMap {
    /// By ordinal.
    parts: Vec<Part>,
    /// Rank by the caller's index.
    ordinals: Vec<usize>,
    /// The shard of each row, in the order of ordinals.
    shards: Vec<u16>,
    /// Where each part ends in each shard: `[parts, shards]`.
    ends: Vec<u32>,
    shard_count: usize,
}

impl PartMap {
    /// Parts by the caller's index, as (table, keys); their rows are yet to be placed.
    pub fn new<'t>(
        parts: impl Iterator<Item = (&'t Arc<Table>, usize)>,
        shard_count: usize,
    ) -> PartMap {
        let given: Vec<(&Arc<Table>, usize)> = parts.collect();
        let mut order: Vec<usize> = (0..given.len()).collect();
        order.sort_by_key(|index| given[*index].0.id.0);
        let mut ordinals = vec![0; given.len()];
        let mut first = 0;
        let place = |(ordinal, index): (usize, &usize)| {
            let (table, keys) = given[*index];
            ordinals[*index] = ordinal;
            let table = Arc::clone(table);
            first += keys;
            Part {
                table,
                first: first - keys,
                keys,
            }
        };
        PartMap {
            parts: order.iter().enumerate().map(place).collect(),
            ends: Vec::with_capacity(given.len() * shard_count),
            ordinals,
            shards: Vec::new(),
            shard_count,
        }
    }

    /// The part of the next ordinal was split: so many rows lie in each shard by now.
    pub fn end_part(&mut self, rows: impl Iterator<Item = usize>) {
        self.ends.extend(rows.map(narrow::<u32>));
    }

    /// All parts were split: the shard of each row.
    pub fn set_shards(&mut self, shards: Vec<u16>) {
        self.shards = shards;
    }

    /// Gives the array of [`PartMap::set_shards`] back.
    #[must_use]
    pub fn into_shards(self) -> Vec<u16> {
        self.shards
    }

    /// Parts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Keys of all parts.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.parts.last().map_or(0, |p| p.first + p.keys)
    }

    /// Keys of a part.
    #[must_use]
    pub fn keys_of(&self, ordinal: usize) -> usize {
        self.parts[ordinal].keys
    }

    /// The table of a part.
    #[must_use]
    pub fn table(&self, ordinal: usize) -> &Arc<Table> {
        &self.parts[ordinal].table
    }

    /// The ordinal of the caller's part.
    #[must_use]
    pub fn ordinal(&self, index: usize) -> usize {
        self.ordinals[index]
    }

    /// The shards of a part's rows, by position.
    #[must_use]
    pub fn shards_of(&self, ordinal: usize) -> &[u16] {
        let part = &self.parts[ordinal];
        &self.shards[part.first..part.first + part.keys]
    }

    /// Where the rows of a part lie in a shard.
    #[must_use]
    pub fn range(&self, s: usize, ordinal: usize) -> Range<usize> {
        self.range_of(s, ordinal..ordinal + 1)
    }

    /// Where the rows of neighbouring parts lie in a shard.
    #[must_use]
    pub fn range_of(&self, s: usize, ordinals: Range<usize>) -> Range<usize> {
        let end = |ordinals: usize| match ordinals {
            0 => 0,
            _ => self.ends[(ordinals - 1) * self.shard_count + s] as usize,
        };
        end(ordinals.start)..end(ordinals.end)
    }

    /// The tables of the call, each once, with the ordinals of its parts.
    pub fn tables(&self) -> impl Iterator<Item = (&Arc<Table>, Range<usize>)> {
        let mut ordinal = 0;
        self.parts
            .chunk_by(|a, b| a.table.id == b.table.id)
            .map(move |parts| {
                ordinal += parts.len();
                (&parts[0].table, ordinal - parts.len()..ordinal)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{RuntimeOptions, TableDescriptor, TableOptions};
    use crate::units::TableId;

    fn table(id: u32) -> Arc<Table> {
        let descriptor = TableDescriptor::new("t", 2);
        let (own, all) = (TableOptions::new(), RuntimeOptions::new());
        Arc::new(Table::new(TableId(id), &descriptor, own, &all))
    }

    #[test]
    fn parts_of_one_table_are_neighbours_in_the_callers_order() {
        let (a, b) = (table(7), table(3));
        let parts = [(&a, 2), (&b, 1), (&a, 0), (&b, 3)];
        let mut map = PartMap::new(parts.into_iter(), 2);
        assert_eq!((map.len(), map.keys()), (4, 6));
        let ordinals: Vec<usize> = (0..4).map(|index| map.ordinal(index)).collect();
        assert_eq!(ordinals, [2, 0, 3, 1]);
        let tables: Vec<_> = map
            .tables()
            .map(|(t, ordinals)| (t.id.0, ordinals))
            .collect();
        assert_eq!(tables, [(3, 0..2), (7, 2..4)]);

        // By ordinal: [1], [0, 1, 1], [0, 0], [].
        map.set_shards(vec![1, 0, 1, 1, 0, 0]);
        for ends in [[0, 1], [1, 3], [3, 3], [3, 3]] {
            map.end_part(ends.into_iter());
        }
        assert_eq!(map.shards_of(map.ordinal(3)), [0, 1, 1]);
        assert_eq!(map.shards_of(map.ordinal(2)), [0u16; 0]);
        assert_eq!((map.range(0, 0), map.range(1, 0)), (0..0, 0..1));
        assert_eq!((map.range(0, 1), map.range(1, 1)), (0..1, 1..3));
        assert_eq!((map.range_of(0, 0..2), map.range_of(0, 2..4)), (0..1, 1..3));
        assert_eq!(map.into_shards(), [1, 0, 1, 1, 0, 0]);
    }
}
