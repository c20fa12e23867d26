//! How does a model stand in Parquet?
//!
//! - A folder of files, each with some of the rows: `key`, `weights`, and a column for each of state and metadata.
//! - A column whose width follows the dim has lists, of a table of dim 1 as well.

use clap::ValueEnum;
use hps::Optimizer;

use super::Rule;
use super::columns::state_of;

/// Keys.
pub const KEY: &str = "key";
/// Weights.
pub const WEIGHTS: &str = "weights";
/// The file of removed keys.
pub const REMOVED: &str = "removed.parquet";

/// The name of a file of rows: they are counted from 0.
#[must_use]
pub fn part(number: u32) -> String {
    format!("part-{number:05}.parquet")
}

/// What a footer says: the table's name,
pub const TABLE: &str = "hps.table";
/// its dim,
pub const DIM: &str = "hps.dim";
/// its optimizer,
pub const OPTIMIZER: &str = "hps.optimizer";
/// the checkpoint,
pub const CHECKPOINT: &str = "hps.checkpoint";
/// its step,
pub const STEP: &str = "hps.step";
/// and since which checkpoint, where only changes are there.
pub const SINCE: &str = "hps.since";

/// Whether a column of an optimizer's state has a list of the table's dim in each row; else one number.
#[must_use]
pub fn is_list(optimizer: Optimizer, name: &str) -> bool {
    let width = |dim| {
        let columns = state_of(optimizer, dim);
        columns
            .iter()
            .find(|(column, _)| *column == name)
            .map(|c| c.1)
    };
    width(2) != width(1)
}

/// An optimizer as footers name it: as the command line does.
#[must_use]
pub fn name_of(optimizer: Optimizer) -> String {
    let rules = Rule::value_variants().iter();
    let mut rules = rules.filter(|rule| rule.optimizer() == optimizer);
    let value = rules.next().and_then(Rule::to_possible_value);
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// The optimizer that a footer names.
#[must_use]
pub fn optimizer_named(name: &str) -> Option<Optimizer> {
    Rule::from_str(name, false).ok().map(Rule::optimizer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_follow_the_dim_are_lists() {
        assert!(is_list(Optimizer::Adagrad, "a"));
        assert!(!is_list(Optimizer::RowwiseAdagrad, "a"));
        assert!(is_list(Optimizer::Adam, "v"));
        assert!(!is_list(Optimizer::Adam, "t"));
        assert!(!is_list(Optimizer::Adam, "show"));
    }

    #[test]
    fn optimizers_are_known_by_the_names_that_are_written() {
        for optimizer in [Optimizer::Sgd, Optimizer::RowwiseAdagrad, Optimizer::Ftrl] {
            assert_eq!(optimizer_named(&name_of(optimizer)), Some(optimizer));
        }
        assert_eq!(name_of(Optimizer::RowwiseAdagrad), "rowwise-adagrad");
        assert_eq!(optimizer_named("lion"), None);
    }
}
