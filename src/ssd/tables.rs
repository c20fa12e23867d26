//! Which tables did each retained checkpoint have, and what were their names?
//!
//! - A table is that of its number; numbers are never given twice.
//! - A checkpoint's view has its own tables under the names of that time. Tables that it did not know are
//!   there too, empty and under the name that they have now, unless they were dropped since or a table of
//!   the checkpoint has that name.

use std::collections::HashSet;

use crate::format::manifest::{Edit, NOT_REMOVED};
use crate::options::TableDescriptor;
use crate::units::CheckpointId;

/// A table as it is at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct TableState {
    /// Its descriptor, with the name of that moment.
    pub descriptor: TableDescriptor,
    /// Whether it is there no more.
    pub is_dropped: bool,
}

/// The descriptors of all tables, dropped ones included.
#[must_use]
pub fn descriptors(tables: &[TableState]) -> Vec<TableDescriptor> {
    tables
        .iter()
        .map(|table| table.descriptor.clone())
        .collect()
}

/// Fails where this build can't compute with the rows of one of them that is there.
///
/// # Errors
/// `UnsupportedTable`.
pub fn check_computable(tables: &[TableState]) -> crate::error::Result<()> {
    let mut there = tables.iter().filter(|table| !table.is_dropped);
    there.try_for_each(|table| table.descriptor.check_computable())
}

/// A table through all times.
#[derive(Clone, Debug)]
struct Life {
    /// Its descriptor, with its first name.
    descriptor: TableDescriptor,
    /// The first checkpoint that has it; [`NOT_REMOVED`] until there is one.
    created: CheckpointId,
    /// Later names, each with the first checkpoint that has it; these rise.
    names: Vec<(CheckpointId, String)>,
    /// The first checkpoint without it; [`NOT_REMOVED`] while it is there.
    dropped: CheckpointId,
}

impl Life {
    fn new(descriptor: TableDescriptor, created: CheckpointId) -> Life {
        Life {
            descriptor,
            created,
            names: Vec::new(),
            dropped: NOT_REMOVED,
        }
    }

    /// Its name at a checkpoint, and the checkpoint that was the first to have it.
    fn name_at(&self, id: CheckpointId) -> (CheckpointId, &str) {
        let mut names = self.names.iter().rev();
        let found = names.find(|(from, _)| *from <= id);
        let first = (CheckpointId::NONE, &*self.descriptor.name);
        found.map_or(first, |(from, name)| (*from, name))
    }

    fn name(&self) -> &str {
        self.name_at(NOT_REMOVED).1
    }

    fn descriptor_at(&self, id: CheckpointId) -> TableDescriptor {
        let mut descriptor = self.descriptor.clone();
        self.name_at(id).1.clone_into(&mut descriptor.name);
        descriptor
    }

    fn is_there(&self) -> bool {
        self.dropped == NOT_REMOVED
    }
}

/// All tables through all times.
#[derive(Clone, Debug, Default)]
pub struct TableHistory {
    /// By number.
    lives: Vec<Life>,
    /// The last checkpoint that a replay came to.
    last: CheckpointId,
    /// The greatest checkpoint that an edit behind it named.
    named: CheckpointId,
    /// Whether an edit behind it changed a name or gave one.
    is_changed: bool,
}

impl TableHistory {
    /// Tables, dropped ones included.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lives.len()
    }

    /// The tables as they are now, by number.
    #[must_use]
    pub fn now(&self) -> Vec<TableState> {
        let state = |life: &Life| TableState {
            descriptor: life.descriptor_at(NOT_REMOVED),
            is_dropped: !life.is_there(),
        };
        self.lives.iter().map(state).collect()
    }

    /// The tables in a checkpoint's view, by number.
    #[must_use]
    pub fn view(&self, id: CheckpointId) -> Vec<TableState> {
        let of_checkpoint = |life: &&Life| life.created <= id && id < life.dropped;
        let own = self.lives.iter().filter(of_checkpoint);
        let names: HashSet<&str> = own.map(|life| life.name_at(id).1).collect();
        let state = |life: &Life| match life.created <= id {
            true => TableState {
                descriptor: life.descriptor_at(id),
                is_dropped: life.dropped <= id,
            },
            false => TableState {
                descriptor: life.descriptor_at(NOT_REMOVED),
                is_dropped: !life.is_there() || names.contains(life.name()),
            },
        };
        self.lives.iter().map(state).collect()
    }

    /// Notes the tables of a new checkpoint.
    pub fn note(&mut self, id: CheckpointId, tables: &[TableState]) {
        for (life, now) in self.lives.iter_mut().zip(tables) {
            if !life.is_there() {
                continue;
            }
            if life.name() != now.descriptor.name {
                life.names.push((id, now.descriptor.name.clone()));
            }
            if now.is_dropped {
                life.dropped = id;
            }
        }
        for new in tables.iter().skip(self.lives.len()) {
            let mut life = Life::new(new.descriptor.clone(), id);
            if new.is_dropped {
                life.dropped = id;
            }
            self.lives.push(life);
        }
        self.last = id;
    }

    /// The edits that make the tables of a new checkpoint of the last one's.
    #[must_use]
    pub fn changes(&self, id: CheckpointId, tables: &[TableState]) -> Vec<Edit> {
        let mut next = self.clone();
        next.note(id, tables);
        let before = self.last;
        let mut edits = Vec::new();
        for (table, life) in (0..).zip(&next.lives) {
            let is_new = table as usize >= self.lives.len();
            life.tell(table, is_new, before, id, &mut edits);
        }
        edits
    }

    /// The edits that a snapshot of the manifest has before the edit of checkpoint `id`, where the one
    /// before that is `before`.
    pub(super) fn tell(&self, before: CheckpointId, id: CheckpointId, edits: &mut Vec<Edit>) {
        for (table, life) in (0..).zip(&self.lives) {
            if life.created <= id {
                let is_new = before == CheckpointId::NONE || life.created > before;
                life.tell(table, is_new, before, id, edits);
            }
        }
    }

    /// The history as it goes on from a checkpoint: its view has become the truth. `now`: all tables by
    /// number, as they are by now; those that the checkpoint did not know stay so.
    #[must_use]
    pub fn going_on_from(&self, id: CheckpointId, now: &[TableState]) -> TableHistory {
        /// Stands for the checkpoint that would have come next.
        const NEXT: CheckpointId = CheckpointId(NOT_REMOVED.0 - 1);
        let mut all = self.clone();
        all.note(NEXT, now);
        let view = all.view(id);
        for (life, state) in all.lives.iter_mut().zip(view) {
            if life.created > id {
                *life = Life::new(state.descriptor, id);
            }
            life.names.retain(|(from, _)| *from <= id);
            life.dropped = match state.is_dropped {
                true => life.dropped.min(id),
                false => NOT_REMOVED,
            };
        }
        all.last = id;
        all
    }

    /// Of a store with one checkpoint: the tables that have come up to then, and no later ones.
    #[must_use]
    pub fn up_to(&self, id: CheckpointId) -> TableHistory {
        let count = self.lives.iter().filter(|life| life.created <= id).count();
        let mut all = self.going_on_from(id, &[]);
        all.lives.truncate(count);
        all
    }

    /// Applies `Table`.
    ///
    /// # Errors
    /// A description of the contradiction; so of all that follow.
    pub(super) fn add(&mut self, id: u32, descriptor: TableDescriptor) -> Result<(), String> {
        if id as usize != self.lives.len() {
            return Err(format!("table {id} follows {} tables", self.lives.len()));
        }
        self.lives.push(Life::new(descriptor, NOT_REMOVED));
        self.is_changed = true;
        Ok(())
    }

    /// Applies `DropTable`.
    pub(super) fn drop_table(&mut self, id: u32, dropped: CheckpointId) -> Result<(), String> {
        self.check_change(id, dropped, self.last)?;
        if let Some(life) = self.lives.get_mut(id as usize) {
            life.dropped = dropped;
        }
        Ok(())
    }

    /// Applies `RenameTable`.
    pub(super) fn rename(
        &mut self,
        id: u32,
        renamed: CheckpointId,
        name: String,
    ) -> Result<(), String> {
        let life = self.lives.get(id as usize);
        let before = life.and_then(|life| life.names.last());
        let before = before.map_or(CheckpointId::NONE, |(from, _)| *from);
        self.check_change(id, renamed, self.last.max(before))?;
        if let Some(life) = self.lives.get_mut(id as usize) {
            life.names.push((renamed, name));
        }
        self.is_changed = true;
        Ok(())
    }

    /// A change is of a table that is there, and of a checkpoint behind this one.
    fn check_change(
        &mut self,
        id: u32,
        at: CheckpointId,
        behind: CheckpointId,
    ) -> Result<(), String> {
        if !self.is_there(id) {
            return Err(format!("table {id} is changed and is not there"));
        }
        if at <= behind || at == NOT_REMOVED {
            return Err(format!(
                "a change of table {id} is of checkpoint {at}, after {behind}"
            ));
        }
        self.named = self.named.max(at);
        Ok(())
    }

    /// Whether a table is there now.
    pub(super) fn is_there(&self, id: u32) -> bool {
        self.lives.get(id as usize).is_some_and(Life::is_there)
    }

    /// A replay has come to a checkpoint.
    pub(super) fn note_next(&mut self, id: CheckpointId) -> Result<(), String> {
        if self.named > id {
            let named = self.named;
            return Err(format!(
                "a change of tables is of checkpoint {named}, before {id}"
            ));
        }
        if std::mem::take(&mut self.is_changed) {
            let mut names = HashSet::new();
            for life in self.lives.iter().filter(|life| life.is_there()) {
                if !names.insert(life.name()) {
                    return Err(format!(
                        "two tables of checkpoint {id} are named {:?}",
                        life.name()
                    ));
                }
            }
        }
        let fresh = self.lives.iter_mut().rev();
        for life in fresh.take_while(|life| life.created == NOT_REMOVED) {
            life.created = id;
        }
        self.last = id;
        Ok(())
    }
}

impl Life {
    /// Says what a checkpoint has of it that the one before has not.
    fn tell(
        &self,
        table: u32,
        is_new: bool,
        before: CheckpointId,
        id: CheckpointId,
        edits: &mut Vec<Edit>,
    ) {
        let (renamed, name) = self.name_at(id);
        if is_new {
            let descriptor = self.descriptor_at(id);
            edits.push(Edit::Table {
                id: table,
                descriptor,
            });
        } else if renamed > before {
            edits.push(Edit::RenameTable {
                table,
                renamed,
                name: name.to_owned(),
            });
        }
        if self.dropped <= id && (is_new || self.dropped > before) {
            edits.push(Edit::DropTable {
                table,
                dropped: self.dropped,
            });
        }
    }
}

#[cfg(test)]
mod tests;
