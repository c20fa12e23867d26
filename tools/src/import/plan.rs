//! Which words of a row come from which file?
//!
//! - State comes whole or not at all: without it, rows begin with that of a key never pushed.
//! - Nothing of the folder is passed over but slots, unless weights alone are asked for.

use std::ops::Range;

use anyhow::Result;
use hps::{Error, Optimizer, TableDescriptor};

use super::Args;
use super::found::{FileFound, Found};
use super::source::Folder;
use crate::cli::Usage;
use crate::models::columns::{Column, columns, state_of};
use crate::models::{Change, Format, change_of, deeprec, hugectr};

/// A file, and what it gives to a row.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The file.
    pub file: &'a FileFound,
    /// The first word.
    pub begin: usize,
    /// Words.
    pub width: usize,
    /// How numbers differ.
    pub change: Change,
    /// Whether they are u32s, of which any bits are good.
    pub is_integer: bool,
}

impl Part<'_> {
    /// Bytes of a row in the file.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.width * self.change.word_bytes()
    }
}

/// What is not 0 in the state of a key never pushed.
#[must_use]
pub fn start_of_state(table: &TableDescriptor) -> Vec<(Range<usize>, f32)> {
    let names: &[&str] = match table.optimizer {
        Optimizer::Adagrad | Optimizer::RowwiseAdagrad => &["a"],
        Optimizer::Ftrl => &["n"],
        _ => &[],
    };
    let columns = columns(table).into_iter();
    let accumulators = columns.filter(|column| names.contains(&column.name));
    accumulators
        .map(|column| (column.begin..column.begin + column.width, table.accumulator))
        .collect()
}

/// How rows are made.
#[derive(Debug)]
pub struct Plan<'a> {
    /// Keys.
    pub keys: &'a FileFound,
    /// Everything else.
    pub parts: Vec<Part<'a>>,
    /// Words that no file has, and that are not 0: Adam's step count, accumulators that begin.
    pub fill: Vec<(Range<usize>, f32)>,
    /// Keys that must be the same as `keys`.
    pub twins: &'a [FileFound],
    /// Columns of the files that the table lacks.
    pub lost: Vec<String>,
    /// Words of a row that is put.
    pub row_f32s: usize,
    /// Whether rows are whole; else weights.
    pub is_whole: bool,
    /// Whether the files have all state that the table has.
    pub has_state: bool,
}

/// The state files that a table needs: names in the folder, columns, and how they differ.
///
/// # Errors
/// `Usage` where the learning rate is needed and not known.
pub fn state(
    format: Format,
    optimizer: Optimizer,
    lr: Option<f32>,
) -> Result<Vec<(&'static str, &'static str, Change)>> {
    match format {
        Format::Npy => {
            let columns = state_of(optimizer, 1).into_iter();
            Ok(columns
                .map(|(name, _)| (name, name, Change::None))
                .collect())
        }
        Format::Hugectr => {
            let files = hugectr::state_files(optimizer).iter();
            let file = |file| Ok((file_name(file), file.column, change_of(file, lr)?));
            files.map(file).collect()
        }
        Format::Deeprec => {
            let slots = deeprec::slots(optimizer).iter();
            Ok(slots
                .map(|slot| (slot.name, slot.column, Change::None))
                .collect())
        }
    }
}

fn file_name(file: &hugectr::StateFile) -> &'static str {
    file.name
}

/// The f32s of a row in a file of state or metadata.
#[must_use]
pub fn width(format: Format, optimizer: Optimizer, name: &str, dim: usize) -> usize {
    let columns = state_of(optimizer, dim);
    match (format, columns.iter().find(|(column, _)| *column == name)) {
        (Format::Hugectr, _) => dim,
        // int64s of metadata, of which the columns have the names of ours.
        (Format::Deeprec, _) if matches!(name, "count" | "last_step") => 2,
        (Format::Deeprec, _) => dim,
        (Format::Npy, Some((_, width))) => *width,
        (Format::Npy, None) => 1,
    }
}

/// Checks the state and metadata of a folder against an optimizer, before lengths are looked at.
///
/// # Errors
/// `Usage` where they contradict; `Corrupt` where a part of the state is missing.
pub fn check_state(folder: &dyn Folder, optimizer: Optimizer) -> Result<()> {
    let needed = folder.needed(optimizer)?;
    let there = folder.state();
    if let Some(name) = there.iter().find(|name| !needed.contains(name)) {
        return Err(Usage(format!(
            "{}: {name} is no state of {optimizer:?}, the table's optimizer, which has {needed:?} in this format; \
             import into a table of another optimizer, or --weights-only",
            folder.path().display()
        ))
        .into());
    }
    let missing = needed.iter().find(|name| !there.contains(name));
    match (missing, there.first()) {
        (Some(missing), Some(first)) => {
            let (path, missing) = folder.missing(missing);
            let what = format!(
                "{missing} is not there, {first} is: the state of {optimizer:?} is incomplete; --weights-only leaves \
                 it out"
            );
            Err(Error::corrupt(&path, 0, what).into())
        }
        _ => Ok(()),
    }
}

/// Checks that rows of `table` can be whole, from a folder that has columns beside keys and weights.
///
/// # Errors
/// `Usage` where it has metadata alone, and the table has state.
pub fn check_whole(folder: &dyn Folder, table: &TableDescriptor) -> Result<()> {
    match folder.state().is_empty() && table.optimizer.state_f32s(table.dim) > 0 {
        false => Ok(()),
        true => Err(Usage(format!(
            "{}: there is metadata, and no state of {:?}; --weights-only leaves both out",
            folder.path().display(),
            table.optimizer
        ))
        .into()),
    }
}

/// The column of a table that has this name; `place`: where it is asked for.
///
/// # Errors
/// `Usage` where it has none.
pub fn column_of(table: &TableDescriptor, name: &str, place: &str) -> Result<Column> {
    let column = columns(table).into_iter().find(|c| c.name == name);
    column.ok_or_else(|| {
        let table = &table.name;
        Usage(format!(
            "{place}: table {table} has no such column; --weights-only leaves all columns out"
        ))
        .into()
    })
}

impl<'a> Plan<'a> {
    /// How the rows of `table` come from a folder that has been checked.
    ///
    /// # Errors
    /// `Usage` where a flag is missing, or the table lacks what the folder has.
    pub fn new(args: &Args, found: &'a Found, table: &TableDescriptor) -> Result<Plan<'a>> {
        let dim = table.dim;
        let mut plan = Plan {
            keys: &found.keys,
            parts: vec![Part {
                file: &found.weights,
                begin: 0,
                width: dim,
                change: Change::None,
                is_integer: false,
            }],
            fill: Vec::new(),
            twins: &found.twins,
            lost: Vec::new(),
            row_f32s: dim,
            is_whole: false,
            has_state: false,
        };
        if found.others.is_empty() {
            return Ok(plan);
        }
        let has_state = !found.state().is_empty();
        let is_deeprec = found.format == Format::Deeprec;
        if is_deeprec && !has_state {
            // Counts are taken all the same.
            plan.fill = start_of_state(table);
        } else {
            check_whole(found, table)?;
        }
        plan.is_whole = true;
        plan.has_state = has_state || table.optimizer.state_f32s(dim) == 0;
        plan.row_f32s = table.row_f32s();
        let needed = state(found.format, table.optimizer, args.lr)?;
        for (name, file) in &found.others {
            let state = needed.iter().find(|(file, ..)| file == name);
            let (column, change) = state.map_or((name.as_str(), Change::None), |s| (s.1, s.2));
            let column = match column_of(table, column, &file.path.display().to_string()) {
                Err(_) if is_deeprec => {
                    plan.lost.push(name.clone());
                    continue;
                }
                found => found?,
            };
            plan.parts.push(Part {
                file,
                begin: column.begin,
                width: column.width,
                change: match column.is_integer && is_deeprec {
                    true => Change::Long,
                    false => change,
                },
                is_integer: column.is_integer,
            });
        }
        let has_no_steps = found.format != Format::Npy && has_state;
        if has_no_steps && table.optimizer == Optimizer::Adam {
            let step = args.adam_step.ok_or_else(|| {
                Usage(String::from(
                    "Adam has a step count by row in hps, and these files have none: name the iteration of the \
                     training by --adam-step, or leave the state out by --weights-only",
                ))
            })?;
            let begin = column_of(table, "t", "--adam-step")?.begin;
            plan.fill.push((begin..begin + 1, step as f32));
        }
        Ok(plan)
    }

    /// Bytes of a row in all files.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        8 + self.parts.iter().map(Part::row_bytes).sum::<usize>()
    }
}
