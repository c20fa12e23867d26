//! `hps-keyset missing`: which keys of a keyset does a store not have?
//!
//! - The store is opened at its last checkpoint, beside a trainer if there is one; nothing is written
//!   to it.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use hps::{Store, TableId};

use super::args::MissingArgs;
use super::crew::Crew;
use super::plan::Plan;
use super::sets::{Batches, open_with_output};
use super::stream::walk;
use crate::cli::Usage;
use crate::store::open_for_rows;

/// Keys that the store is asked about together.
const ASKED: usize = 1 << 14;
/// Keys that are named one by one.
const NAMED_MAX: usize = 10;

/// What was found.
#[derive(Debug, Default)]
pub struct Missing {
    /// The table.
    pub table: String,
    /// Keys of the file.
    pub keys: u64,
    /// Those that the store does not have.
    pub missing: u64,
    /// The first ones.
    pub named: Vec<u64>,
    /// The file written; none if nothing is missing.
    pub output: Option<(PathBuf, u64)>,
}

/// Asks the store.
///
/// # Errors
/// What is wrong with the file, what the store says; `Cancelled`.
pub fn missing(args: &MissingArgs, crew: &mut Crew<'_>) -> Result<Missing> {
    let plan = Plan::new(args.resources.memory, args.resources.threads);
    let (store, table, name) = open_table(&args.store, args.table.as_deref())?;
    let file = std::slice::from_ref(&args.file);
    let output = args.output.as_deref();
    let (mut streams, mut output) = open_with_output(file, args.dtype, output, &plan, crew)?;
    let mut found = Missing {
        table: name,
        ..Missing::default()
    };
    let mut batch = Vec::with_capacity(ASKED);
    let mut ask = |batch: &mut Vec<u64>| {
        let known = store.contains(table, batch)?;
        for (key, _) in batch.iter().zip(known).filter(|(_, known)| !known) {
            found.missing += 1;
            if found.named.len() < NAMED_MAX {
                found.named.push(*key);
            }
            if let Some(output) = &mut output {
                output.put(*key)?;
            }
        }
        found.keys += batch.len() as u64;
        batch.clear();
        Ok::<(), anyhow::Error>(())
    };
    walk(&mut streams, crew, |key, _| {
        batch.push(key);
        if batch.len() < ASKED {
            return Ok(());
        }
        ask(&mut batch)
    })?;
    ask(&mut batch)?;
    found.output = output.map(Batches::finish).transpose()?.flatten();
    Ok(found)
}

/// Opens a store, and finds the table of a name, or the only one.
fn open_table(directory: &Path, name: Option<&str>) -> Result<(Store, TableId, String)> {
    let (store, _) = open_for_rows(directory, None, "rows")?;
    let tables = store.tables();
    let known = || {
        let names: Vec<&str> = tables
            .iter()
            .map(|(_, table)| table.name.as_str())
            .collect();
        names.join(", ")
    };
    let found = match (name, tables.as_slice()) {
        (None, [only]) => Some(only),
        (None, _) => {
            bail!(Usage(format!("--table: which one of {}", known())));
        }
        (Some(name), tables) => tables.iter().find(|(_, table)| table.name == name),
    };
    match found {
        Some((id, table)) => {
            let (id, name) = (*id, table.name.clone());
            Ok((store, id, name))
        }
        None => bail!(Usage(format!(
            "{}: no table of this name: it has {}",
            directory.display(),
            known()
        ))),
    }
}
