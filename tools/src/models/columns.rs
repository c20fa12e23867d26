//! Which columns does a row have beside its weights, and where?

use hps::{Optimizer, RowMetadata, TableDescriptor};

/// A column of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name, as the documentation of [`Optimizer`] and [`RowMetadata`] has it.
    pub name: &'static str,
    /// The first of its words in the row.
    pub begin: usize,
    /// Words.
    pub width: usize,
    /// Whether it holds u32s; else f32s.
    pub is_integer: bool,
}

/// Columns of an optimizer's state: names and words.
#[must_use]
pub fn state_of(optimizer: Optimizer, dim: usize) -> Vec<(&'static str, usize)> {
    match optimizer {
        Optimizer::Momentum | Optimizer::Nesterov => vec![("v", dim)],
        Optimizer::Adagrad => vec![("a", dim)],
        Optimizer::RowwiseAdagrad => vec![("a", 1)],
        Optimizer::Adam => vec![("m", dim), ("v", dim), ("t", 1)],
        Optimizer::Ftrl => vec![("z", dim), ("n", dim)],
        _ => Vec::new(),
    }
}

/// Names of the metadata that a table has.
#[must_use]
pub fn metadata_of(metadata: RowMetadata) -> Vec<&'static str> {
    let all = [
        ("show", metadata.show),
        ("click", metadata.click),
        ("count", metadata.count),
        ("last_step", metadata.last_step),
    ];
    let there = all.into_iter().filter(|(_, there)| *there);
    there.map(|(name, _)| name).collect()
}

/// Whether a table may have metadata of this name.
#[must_use]
pub fn is_metadata(name: &str) -> bool {
    let all = RowMetadata::new().show(true).click(true);
    metadata_of(all.count(true).last_step(true)).contains(&name)
}

/// The metadata whose names are among these.
#[must_use]
pub fn metadata_among<'a>(names: impl Iterator<Item = &'a str> + Clone) -> RowMetadata {
    let has = |name| names.clone().any(|found| found == name);
    RowMetadata::new()
        .show(has("show"))
        .click(has("click"))
        .count(has("count"))
        .last_step(has("last_step"))
}

/// The one optimizer that has these columns of state, whatever their width; `None` where several have the same.
#[must_use]
pub fn optimizer_of(state: &[&str]) -> Option<Optimizer> {
    let all = [Optimizer::Adam, Optimizer::Ftrl];
    all.into_iter().find(|optimizer| {
        let columns = state_of(*optimizer, 1);
        let has = |name: &str| state.contains(&name);
        columns.len() == state.len() && columns.iter().all(|(name, _)| has(name))
    })
}

/// The columns behind the weights, in their order.
#[must_use]
pub fn columns(table: &TableDescriptor) -> Vec<Column> {
    let state = state_of(table.optimizer, table.dim).into_iter();
    let state = state.map(|(name, width)| (name, width, false));
    let metadata = metadata_of(table.metadata).into_iter();
    let mut begin = table.dim;
    let column = |(name, width, is_integer)| {
        let column = Column {
            name,
            begin,
            width,
            is_integer,
        };
        begin += width;
        column
    };
    state
        .chain(metadata.map(|name| (name, 1, true)))
        .map(column)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fill_the_row() {
        for &optimizer in Optimizer::ALL {
            let metadata = RowMetadata::new().click(true).last_step(true);
            let table = TableDescriptor::new("t", 5).optimizer(optimizer);
            let table = table.metadata(metadata);
            let mut next = 5;
            for column in columns(&table) {
                assert_eq!(column.begin, next, "{optimizer:?}");
                next += column.width;
            }
            assert_eq!(next, table.row_f32s(), "{optimizer:?}");
        }
    }
}
