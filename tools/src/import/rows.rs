//! Which rows would come from a folder into a new table? For fuzz targets, which have no store.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use hps::TableDescriptor;

use super::put::Import;
use super::target::Target;
use super::{Args, check, duplicates, look, look_closer};
use crate::cli::{Interrupt, Meter, Show};
use crate::models::crew;

/// Rows of a folder.
#[derive(Debug)]
pub struct Rows {
    /// The table that they are for.
    pub table: TableDescriptor,
    /// What each key has.
    pub rows: BTreeMap<u64, Vec<f32>>,
    /// Whether rows are whole; else weights.
    pub is_whole: bool,
}

/// Reads a folder as an import with `--create` into a store that is not there. Keeps all rows.
///
/// # Errors
/// As [`super::run`].
pub fn rows(args: &Args) -> Result<Rows> {
    check(args)?;
    let interrupt = Interrupt::never();
    let mut meter = Meter::new(super::TOOL, Show::Never)?;
    let folder = look(args)?;
    let (shape, table) = look_closer(args, &*folder, &Target::none())?;
    let source = folder.source(args, &shape, &table)?;
    duplicates::refuse(&*source, args.cache, &interrupt)?;
    let rows = Mutex::new(BTreeMap::new());
    let put = |keys: &[u64], values: &[f32]| {
        let values = values.chunks_exact(source.row_f32s()).map(<[f32]>::to_vec);
        let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.extend(keys.iter().copied().zip(values));
        Ok(())
    };
    let import = Import::new(&put, &*source, args.non_finite);
    crew::run(1, &interrupt, &mut meter, 0, |crew| import.work(crew))?;
    source.finish()?;
    Ok(Rows {
        table,
        rows: rows.into_inner().unwrap_or_else(PoisonError::into_inner),
        is_whole: source.is_whole(),
    })
}
