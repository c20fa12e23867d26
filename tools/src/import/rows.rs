//! Which rows would come from a folder into a new table? For fuzz targets, which have no store.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use hps::TableDescriptor;

use super::found::Found;
use super::put::Import;
use super::target::Target;
use super::{Args, check, duplicates, keys_of, look_closer, paddle, plans};
use crate::cli::{Interrupt, Meter, Show, Usage};
use crate::models::{Exchange, crew};

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
    let format = match (args.format.columns(), args.format) {
        (Some(format), _) => format,
        (None, Exchange::PaddleText) => return paddle::rows(args),
        (None, _) => {
            let why = "a delta has more than the rows of a table";
            return Err(Usage(why.to_owned()).into());
        }
    };
    check(args)?;
    let interrupt = Interrupt::never();
    let mut meter = Meter::new(super::TOOL, Show::Never)?;
    let target = Target::none();
    let (sources, table) = look_closer(args, Found::all(format, args)?, &target)?;
    let plans = plans(args, &sources, &table)?;
    duplicates::refuse(&keys_of(&sources), args.cache, &interrupt)?;
    let rows = Mutex::new(BTreeMap::new());
    for (source, plan) in sources.iter().zip(&plans) {
        let put = |keys: &[u64], values: &[f32]| {
            let values = values.chunks_exact(plan.row_f32s).map(<[f32]>::to_vec);
            let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
            rows.extend(keys.iter().copied().zip(values));
            Ok(())
        };
        let import = Import::new(&put, plan, source.shape.rows, args.non_finite, 1);
        crew::run(1, &interrupt, &mut meter, 0, |crew| import.work(crew))?;
        import.check_sums()?;
    }
    let is_whole = plans.first().is_some_and(|plan| plan.is_whole);
    Ok(Rows {
        table,
        rows: rows.into_inner().unwrap_or_else(PoisonError::into_inner),
        is_whole,
    })
}
