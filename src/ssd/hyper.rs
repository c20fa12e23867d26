//! Which hyperparameters were in force at each retained checkpoint?
//!
//! - By table; a table that was not there yet, or that nobody has said of, has none.
//! - Checkpoints that have the same share them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::format::manifest::Edit;
use crate::options::HyperParameters;
use crate::units::CheckpointId;

/// Hyperparameters by table id.
pub type Hypers = Arc<[Option<HyperParameters>]>;

/// Those of the retained checkpoints.
#[derive(Clone, Debug, Default)]
pub struct HyperHistory {
    at: BTreeMap<CheckpointId, Hypers>,
    /// Of the checkpoint that a replay comes to next.
    next: Vec<Option<HyperParameters>>,
}

impl HyperHistory {
    /// Those of a checkpoint; of one that is not retained, none.
    #[must_use]
    pub fn at(&self, id: CheckpointId) -> Hypers {
        self.at.get(&id).cloned().unwrap_or_default()
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = (CheckpointId, &HyperParameters)> {
        self.at
            .iter()
            .flat_map(|(id, of)| of.iter().flatten().map(|hyper| (*id, hyper)))
    }

    /// Notes those of a new checkpoint.
    pub fn note(&mut self, id: CheckpointId, hypers: &[Option<HyperParameters>]) {
        let last = self.at.last_key_value().map(|(_, last)| last);
        let same = last.filter(|last| ***last == *hypers).cloned();
        self.at.insert(id, same.unwrap_or_else(|| hypers.into()));
    }

    /// A replay has come to a checkpoint.
    pub fn note_next(&mut self, id: CheckpointId) {
        let next = std::mem::take(&mut self.next);
        self.note(id, &next);
        self.next = next;
    }

    /// Says of one of so many tables what the next checkpoint of a replay has; false where it is none
    /// of them.
    pub fn set_next(&mut self, table: u32, tables: usize, hyper: HyperParameters) -> bool {
        self.next.resize(tables, None);
        let place = self.next.get_mut(table as usize);
        place.map(|place| *place = Some(hyper)).is_some()
    }

    /// A table is there no more from the next checkpoint of a replay on.
    pub fn clear_next(&mut self, table: u32) {
        if let Some(place) = self.next.get_mut(table as usize) {
            *place = None;
        }
    }

    /// A checkpoint is no longer retained.
    pub fn forget(&mut self, id: CheckpointId) {
        self.at.remove(&id);
    }
}

/// The edits that make `now` of `before`: what a manifest says of a checkpoint, ahead of it.
pub(super) fn changed<'a>(
    before: &'a [Option<HyperParameters>],
    now: &'a [Option<HyperParameters>],
) -> impl Iterator<Item = Edit> + 'a {
    let before = before.iter().copied().chain(std::iter::repeat(None));
    let pairs = (0..).zip(now.iter().copied().zip(before));
    pairs.filter_map(|(table, (now, before))| {
        let hyper = now.filter(|_| now != before)?;
        Some(Edit::HyperParameters { table, hyper })
    })
}
