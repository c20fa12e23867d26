//! Which passes keep their rows in memory when they have ended?
//!
//! - A block is the pins of a pass. A row is in memory once, whatever blocks have it, and leaves when the
//!   youngest that has it has left.
//! - What is decided depends on counts of keys alone, so it is the same in each run.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, PoisonError};

use super::super::core::Table;
use super::super::lease::Pins;
use crate::options::PolicyKind;
use crate::sync::{Mutex, MutexGuard};
use crate::units::TableId;

/// The blocks of all tables.
#[derive(Debug, Default)]
pub struct Blocks(Mutex<BTreeMap<TableId, OfTable>>);

#[derive(Debug, Default)]
struct OfTable {
    /// Oldest first.
    blocks: VecDeque<Arc<Pins>>,
    /// Blocks that left for another since the last thaw.
    evictions: u64,
}

impl OfTable {
    fn remove_oldest(&mut self) {
        if let Some(oldest) = self.blocks.pop_front() {
            oldest.mark(false);
            // Those that another block has are still in one.
            self.blocks.iter().for_each(|pins| pins.mark(true));
        }
    }
}

impl Blocks {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<TableId, OfTable>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of a pass so many keys are known, so many of these in blocks; whether it becomes a block.
    pub fn decide(&self, table: &Table, pins: &Arc<Pins>, known: u64, hits: u64) -> bool {
        let PolicyKind::Cached {
            num_blocks,
            target_hit_rate,
            max_num_evict,
        } = table.tuning().policy
        else {
            return false;
        };
        let mut all = self.lock();
        let of_table = all.entry(table.id).or_default();
        while of_table.blocks.len() > num_blocks as usize {
            of_table.remove_oldest();
        }
        if num_blocks == 0 {
            return false;
        }
        if of_table.blocks.len() == num_blocks as usize {
            // hits ÷ known < target; of a pass without known keys nothing had to be read.
            let misses_target = known > 0 && (hits as f64) < target_hit_rate * known as f64;
            if !misses_target || of_table.evictions >= max_num_evict {
                return false;
            }
            of_table.evictions += 1;
            of_table.remove_oldest();
        }
        pins.mark(true);
        of_table.blocks.push_back(Arc::clone(pins));
        true
    }

    /// Blocks of a table may leave again, as often as its policy says.
    pub fn unfreeze(&self, table: TableId) {
        if let Some(of_table) = self.lock().get_mut(&table) {
            of_table.evictions = 0;
        }
    }

    /// Blocks of a table, and how many left for another since the last thaw.
    pub fn count_of(&self, table: TableId) -> (u64, u64) {
        let all = self.lock();
        let of_table = all.get(&table);
        of_table.map_or((0, 0), |t| (t.blocks.len() as u64, t.evictions))
    }

    /// Rows of the blocks of all tables; those in several count several times.
    pub fn rows(&self) -> Vec<(TableId, u64)> {
        let rows = |of_table: &OfTable| of_table.blocks.iter().map(|pins| pins.rows()).sum();
        let all = self.lock();
        all.iter()
            .map(|(id, of_table)| (*id, rows(of_table)))
            .collect()
    }

    /// Lets the blocks of tables go.
    pub fn let_go(&self, is_one: impl Fn(TableId) -> bool) {
        let mut all = self.lock();
        all.retain(|id, of_table| {
            let goes = is_one(*id);
            if goes {
                // All of them before one goes: none may leave rows that count as another's.
                of_table.blocks.iter().for_each(|pins| pins.mark(false));
            }
            !goes
        });
    }
}
