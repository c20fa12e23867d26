//! What is told of a pass?

use std::sync::Arc;

use super::super::core::Table;
use crate::options::PolicyKind;
use crate::units::TableId;

/// What bringing a pass in came to.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct PassReport {
    /// Keys, each once; of a `Staged` table those of each 65 536.
    pub keys: u64,
    /// Rows among them that were ever pushed and not removed since; others have no row on SSD.
    pub known: u64,
    /// Known rows that were in memory when their turn came; of a table with blocks those that were in one.
    pub hits: u64,
    /// Rows that were read from SSD, in bytes of rows.
    pub bytes: u64,
    /// From the begin of the load to its end, waits for room included; not that for passes before.
    pub seconds: f64,
    /// The same by part, in their order.
    pub tables: Vec<PassTable>,
}

/// What bringing in one part of a pass came to.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct PassTable {
    /// The table.
    pub table: TableId,
    /// Its name.
    pub name: String,
    /// As in [`PassReport`].
    pub keys: u64,
    /// As in [`PassReport`].
    pub known: u64,
    /// As in [`PassReport`].
    pub hits: u64,
    /// As in [`PassReport`].
    pub bytes: u64,
    /// Whether its rows stay as a block when the pass ends.
    pub is_block: bool,
}

fn rate(hits: u64, known: u64) -> f64 {
    match known {
        0 => 1.0,
        _ => hits as f64 / known as f64,
    }
}

impl PassReport {
    /// Hits per known key, 0 to 1; 1 where none is known: nothing had to be read.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        rate(self.hits, self.known)
    }

    pub(super) fn add(&mut self, table: PassTable) {
        self.keys += table.keys;
        self.known += table.known;
        self.hits += table.hits;
        self.bytes += table.bytes;
        self.tables.push(table);
    }
}

impl PassTable {
    /// Hits per known key, 0 to 1; 1 where none is known.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        rate(self.hits, self.known)
    }

    pub(super) fn new(table: &Arc<Table>) -> PassTable {
        PassTable {
            table: table.id,
            name: table.descriptor.name.clone(),
            ..PassTable::default()
        }
    }

    /// A piece came in: rows, those of them in blocks, known ones and those that were read.
    pub(super) fn add_piece(
        &mut self,
        table: &Table,
        (rows, in_blocks): (usize, usize),
        (known, read): (u64, u64),
    ) {
        self.keys += rows as u64;
        self.known += known;
        self.bytes += read * table.descriptor.row_bytes() as u64;
        self.hits += match table.tuning().policy {
            PolicyKind::Cached { .. } => (in_blocks as u64).min(known),
            _ => known.saturating_sub(read),
        };
    }
}
