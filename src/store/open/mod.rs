//! How do files and options become an open store?

mod cache_bytes;
mod drop_table;
mod staged;
mod tables;
mod threads;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

pub use tables::Wanted;
pub use threads::Threads;

use tracing::field::Empty;

use super::Parts;
use super::core::{Core, Table, of_table};
use super::rebuild_index::Rebuild;
use super::workers::Workers;
use crate::error::{ArgumentError, Error, Result};
use crate::io::{Directory, Io, descriptor_limit, raise_descriptor_limit_to};
use crate::observe::Timed;
use crate::options::{
    HyperParameters, IoEngine, PolicyKind, RuntimeOptions, TABLES_MAX, TableDescriptor,
    TableOptions,
};
use crate::row::check_hyper;
use crate::ssd::recover::{self, OpenRequest, Recovered};
use crate::ssd::tables::{TableState, check_computable};
use crate::units::{CheckpointId, TableId, narrow, to_usize};

/// The I/O engine asked for, or its plain twin where the kernel refuses it.
pub fn choose_io(engine: IoEngine) -> Io {
    if engine == IoEngine::Uring {
        match Io::uring() {
            Ok(io) => return io,
            Err(error) => {
                tracing::warn!(%error, "io_uring is refused; plain reads and writes are used");
            }
        }
    }
    Io::pread()
}

/// Checks options that depend on each other.
///
/// # Errors
/// `InvalidArgument` naming the option.
pub fn validate(options: &RuntimeOptions) -> Result<()> {
    options.validate()?;
    check_hyper(&options.hyper)?;
    let mut tables = options.tables.iter();
    tables.try_for_each(|(name, table)| validate_table(name, table))
}

/// Fails where the options of a create say that data directories have moved.
///
/// # Errors
/// `InvalidArgument` naming the option.
pub fn check_nothing_moved(options: &RuntimeOptions) -> Result<()> {
    let moved = &options.moved_directories;
    if moved.is_empty() {
        return Ok(());
    }
    Err(Error::InvalidArgument(ArgumentError::Option {
        name: "moved_directories",
        value: format!("{moved:?}"),
        why: String::from("a new store's are data_directories of CreateOptions; none has moved"),
    }))
}

/// Checks the options of a table.
///
/// # Errors
/// `InvalidArgument` naming the option and the table.
pub fn validate_table(name: &str, options: &TableOptions) -> Result<()> {
    let hyper = options.hyper.as_ref();
    hyper.map_or(Ok(()), |hyper| {
        check_hyper(hyper).map_err(|e| of_table(e, name))
    })?;
    let policy = options.policy.map_or(Ok(()), PolicyKind::validate);
    policy.map_err(|e| of_table(e, name))?;
    let least = options.cache_bytes_min;
    match options.cache_bytes_max {
        Some(most) if most < least => {
            let value = format!("{most}");
            let why = format!("it is less than cache_bytes_min, which is {least}");
            let option = ArgumentError::Option {
                name: "cache_bytes_max",
                value,
                why,
            };
            Err(of_table(option.into(), name))
        }
        _ => Ok(()),
    }
}

/// A table from its descriptor, with options of its own beside those of all tables.
pub fn make_table(
    id: usize,
    descriptor: &TableDescriptor,
    own: TableOptions,
    all: &RuntimeOptions,
) -> Table {
    let id = TableId(narrow(id));
    Table::new(id, descriptor, own, all)
}

/// Which directory is opened as a store.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// The one that a path leads to.
    Path(&'a Path),
    /// One that is open already.
    Open(&'a Arc<dyn Directory>),
}

impl<'a> Place<'a> {
    fn path(self) -> &'a Path {
        match self {
            Place::Path(path) => path,
            Place::Open(root) => root.path(),
        }
    }
}

/// Opens a store.
///
/// # Errors
/// `InvalidArgument`, `Locked`, `Corrupt`, `Unsupported`, `Io`.
pub fn open(
    io: &Io,
    place: Place<'_>,
    options: RuntimeOptions,
    read_only: bool,
    checkpoint: Option<CheckpointId>,
) -> Result<Parts> {
    validate(&options)?;
    let span = Timed::new(tracing::info_span!(
        "open",
        directory = %place.path().display(),
        read_only,
        checkpoint = Empty,
        step = Empty,
        files = Empty,
        index_keys = Empty,
        seconds = Empty,
    ));
    let _open = span.enter();
    let parts = {
        let recovery = tracing::info_span!("recovery", index_seconds = Empty, seconds = Empty);
        let recovery = Timed::new(recovery);
        let _recovery = recovery.enter();
        let request = open_request(&options, read_only, checkpoint);
        let recovered = match place {
            Place::Path(path) => recover::open(io, path, &request)?,
            Place::Open(root) => recover::open_again(io, root, &request)?,
        };
        let opened = recovered.checkpoint;
        let parts = build(recovered, options, read_only)?;
        let since = Instant::now();
        Rebuild::new(&parts.core).run(opened.as_ref().map_or(CheckpointId::NONE, |c| c.id))?;
        recovery.record("index_seconds", since.elapsed().as_secs_f64());
        if let Some(checkpoint) = opened {
            parts.stage(checkpoint.id)?;
            span.record("checkpoint", checkpoint.id.0);
            span.record("step", checkpoint.step);
        }
        parts
    };
    if !span.is_disabled() {
        let stats = parts.core.stats();
        span.record("files", stats.files);
        span.record("index_keys", stats.index_keys);
    }
    tracing::info!("the store is open");
    Ok(parts)
}

/// Builds the parts of a store on an opened tier: caches and index empty.
///
/// # Errors
/// `Io`, `Corrupt`, `InvalidArgument`.
fn build(recovered: Recovered, options: RuntimeOptions, read_only: bool) -> Result<Parts> {
    let ssd = recovered.ssd;
    let tables = make_tables(&recovered.tables, &options, ssd.root.path())?;
    report_hyper(&tables, &recovered.hyper);
    let workers = Workers::new(&ssd, &options, &tables)?;
    let interval = recovered.checkpoint.as_ref().map_or(1, |c| c.interval + 1);
    let core = Core::new(ssd, options, read_only, tables.clone(), interval)?;
    let parts = Parts::new(core, workers)?;
    parts.add_to_caches(&tables)?;
    Ok(parts)
}

/// Fails where [`open`] would refuse a store with these tables, which lies where this open one does,
/// for the sake of its tables and options.
///
/// # Errors
/// `InvalidArgument`, `UnsupportedTable`, `Corrupt`.
pub fn check(parts: &Parts, states: &[TableState], options: &RuntimeOptions) -> Result<()> {
    validate(options)?;
    check_computable(states)?;
    let tables = make_tables(states, options, parts.core.ssd.root.path())?;
    parts.check_caches(&tables)
}

/// The tables that a checkpoint knows, by number, without slots for rows.
///
/// # Errors
/// `Corrupt` in `path` where they are too many.
fn make_tables(
    states: &[TableState],
    options: &RuntimeOptions,
    path: &Path,
) -> Result<Vec<Arc<Table>>> {
    if states.len() > TABLES_MAX {
        let what = format!("{} tables, at most {TABLES_MAX}", states.len());
        return Err(Error::corrupt(path, 0, what));
    }
    let table = |(i, state)| Arc::new(table_of(i, state, options));
    Ok(states.iter().enumerate().map(table).collect())
}

/// A table that a checkpoint knows, perhaps as one that was dropped.
fn table_of(id: usize, state: &TableState, options: &RuntimeOptions) -> Table {
    let descriptor = &state.descriptor;
    let own = match state.is_dropped {
        true => TableOptions::default(),
        false => options.of_table(&descriptor.name),
    };
    let table = make_table(id, descriptor, own, options);
    table.set_dropped(state.is_dropped);
    table
}

/// Says of which tables the hyperparameters are others than at the checkpoint that was opened.
fn report_hyper(tables: &[Arc<Table>], then: &[Option<HyperParameters>]) {
    for (table, then) in tables.iter().zip(then).filter(|(t, _)| !t.is_dropped()) {
        let tuning = table.tuning();
        let (now, name) = (tuning.updater.hyper(), &table.descriptor.name);
        if let Some(then) = then.as_ref().filter(|then| *then != now) {
            tracing::info!(table = %name, ?then, ?now, "hyperparameters differ from the checkpoint's");
        }
    }
}

/// The tier's part of the options.
fn open_request<'a>(
    options: &'a RuntimeOptions,
    read_only: bool,
    checkpoint: Option<CheckpointId>,
) -> OpenRequest<'a> {
    OpenRequest {
        moved: &options.moved_directories,
        read_only,
        checkpoint,
        disk_bytes_max: options.disk_bytes_max,
        thresholds: options.thresholds_in_force(),
        open_files_max: open_files_max(options, read_only),
        threads: if options.inline { 1 } else { options.threads },
    }
}

/// Descriptors that are left for all that is no parameter file, where a number of these is asked for.
const DESCRIPTORS_SPARE: u64 = 64;

/// Most parameter files that stay open. A reader closes none: its checkpoint stays readable though a
/// writer rolls back behind it.
fn open_files_max(options: &RuntimeOptions, read_only: bool) -> usize {
    if read_only {
        return usize::MAX;
    }
    let least = options.thresholds_in_force().open_files_least;
    let asked = options.open_files_max as u64;
    let max = files_within(asked, descriptor_limit(), raise_descriptor_limit_to);
    to_usize(max).max(least)
}

/// Files that may stay open where so many are asked for (0: half of the limit) and so many
/// descriptors may be; `raise` raises that limit, and gives what it is then.
fn files_within(asked: u64, limit: u64, raise: impl FnOnce(u64) -> u64) -> u64 {
    match asked {
        0 => limit / 2,
        asked if asked + DESCRIPTORS_SPARE <= limit => asked,
        asked => {
            let limit = raise(asked + DESCRIPTORS_SPARE);
            asked.min(limit.saturating_sub(DESCRIPTORS_SPARE))
        }
    }
}

#[cfg(test)]
mod tests;
