//! How does an update change rows that lie in memory?

use super::super::core::Table;
use super::update::{Kind, Update};
use crate::mem::{AHEAD_STATES, Cache};
use crate::row::{RowVisitor, accumulate};
use crate::units::Slot;

/// Rows between the one that is changed and the one whose lines the processor is asked to fetch.
const AHEAD_ROWS: usize = 4;

/// Changes rows: (slot, position) of the values that count, equal slots next to each other.
pub(super) fn apply(
    cache: &mut Cache,
    kept: &[(Slot, u32)],
    (table, update, width): (&Table, &Update<'_>, usize),
) {
    match update.kind {
        Kind::Gradients { values, lr } => {
            let dim = width;
            let mut visitor = Gradients {
                cache,
                rest: kept,
                values,
                dim,
                sum: Vec::new(),
            };
            table.tuning().updater.apply_all(lr, &mut visitor);
        }
        Kind::Deltas { values } => {
            for (slot, position) in kept {
                let delta = slice(values, *position, width);
                table.layout.apply_delta(cache.row_mut(*slot), delta);
            }
        }
        Kind::Weights { values } | Kind::Rows { values } => {
            for (slot, position) in kept {
                let new = slice(values, *position, width);
                cache.row_mut(*slot)[..width].copy_from_slice(new);
            }
        }
    }
    if table.descriptor.metadata.columns() > 0 && !matches!(update.kind, Kind::Rows { .. }) {
        let at = |column: Option<&[u32]>, i: u32| column.map_or(0, |c| c[i as usize]);
        for group in kept.chunk_by(|a, b| a.0 == b.0) {
            let sum = |column| {
                group
                    .iter()
                    .fold(0u32, |sum, (_, i)| sum.saturating_add(at(column, *i)))
            };
            let (show, click) = (sum(update.shows), sum(update.clicks));
            let row = cache.row_mut(group[0].0);
            table.layout.update_metadata(row, show, click, update.step);
        }
    }
}

fn slice(values: &[f32], position: u32, width: usize) -> &[f32] {
    let start = position as usize * width;
    &values[start..start + width]
}

/// Yields each row with the sum of its gradients.
struct Gradients<'a> {
    cache: &'a mut Cache,
    rest: &'a [(Slot, u32)],
    values: &'a [f32],
    dim: usize,
    sum: Vec<f32>,
}

impl RowVisitor for Gradients<'_> {
    #[inline]
    fn next(&mut self) -> Option<(&mut [f32], &[f32])> {
        let (slot, first) = *self.rest.first()?;
        let same = self.rest.iter().take_while(|(p, _)| *p == slot).count();
        let (group, rest) = self.rest.split_at(same);
        self.rest = rest;
        if let Some((ahead, _)) = rest.get(AHEAD_STATES) {
            self.cache.prefetch_state(*ahead);
        }
        if let Some((ahead, _)) = rest.get(AHEAD_ROWS) {
            self.cache.prefetch_line(*ahead);
        }
        let gradient = slice(self.values, first, self.dim);
        if same == 1 {
            return Some((self.cache.row_mut(slot), gradient));
        }
        self.sum.clear();
        self.sum.extend_from_slice(gradient);
        for (_, position) in &group[1..] {
            accumulate(&mut self.sum, slice(self.values, *position, self.dim));
        }
        Some((self.cache.row_mut(slot), &self.sum))
    }
}
