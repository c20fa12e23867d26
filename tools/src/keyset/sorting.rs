//! How do the keys of files become one sorted sequence, within `--memory`?
//!
//! - First all threads parse and collect runs, then all of them merge ranges of keys.
//! - For one output a field each range is a field, so that no output has two writers.

use std::fs::File;
use std::io::Seek;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, anyhow};
use hps::Error;

use super::collector::Collector;
use super::crew::{Crew, Failure};
use super::layout::{Fault, Format, KeyType, Sink};
use super::merge;
use super::output::{KeyWriter, Output};
use super::plan::Plan;
use super::run::{Run, Writer};
use super::scheme::{Refused, Scheme};
use super::source::{Inputs, Source};

/// The keys of some files, sorted in runs.
#[derive(Debug)]
pub struct Sorted {
    runs: Vec<Run>,
    plan: Plan,
    folder: PathBuf,
    /// What was read.
    pub counts: Counts,
}

/// What was read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Records.
    pub rows: u64,
    /// Values that have a key.
    pub values: u64,
    /// The most fields that a file has.
    pub fields: usize,
    /// Sorted runs, and how often they were merged before the last time.
    pub runs: u64,
    /// See above.
    pub levels: u32,
}

/// Makes keys of values, and collects them.
struct Keys<'a> {
    scheme: &'a Scheme,
    collector: Collector,
    rows: u64,
    values: u64,
}

impl From<Refused> for Fault {
    fn from(refused: Refused) -> Fault {
        Fault::Refused(refused)
    }
}

impl From<anyhow::Error> for Fault {
    fn from(error: anyhow::Error) -> Fault {
        Fault::Other(error)
    }
}

impl Sink for Keys<'_> {
    #[inline]
    fn put(&mut self, field: usize, value: u64) -> Result<(), Fault> {
        self.values += 1;
        let key = self.scheme.key(field, value)?;
        Ok(self.collector.put(key)?)
    }

    #[inline]
    fn end_row(&mut self, _: Range<usize>) -> Result<(), Fault> {
        self.rows += 1;
        Ok(())
    }
}

/// Reads all inputs; runs that don't fit into memory go into `folder`.
///
/// # Errors
/// What reading met, or what is wrong with a file; `Cancelled`.
pub fn sort(
    inputs: &Inputs,
    format: Format,
    scheme: &Scheme,
    plan: &Plan,
    folder: &Path,
    crew: &mut Crew<'_>,
) -> Result<Sorted> {
    let checked = scheme.clone();
    let check = move |fields| checked.check_fields(fields);
    let source = Source::new(inputs, format, (plan.chunk_bytes, &crew.done), check);
    let source = Mutex::new(source);
    let interrupt = crew.interrupt;
    // Chunks before one that fails are with a thread already, which ends them: the first error is found.
    let failed = AtomicBool::new(false);
    let fail = |order: u64, error: anyhow::Error| {
        failed.store(true, Ordering::Relaxed);
        Failure::at(order, error)
    };
    let parts = crew.run(plan.threads, |_| {
        let mut keys = Keys {
            scheme,
            collector: Collector::new(plan, folder),
            rows: 0,
            values: 0,
        };
        let mut bytes = Vec::with_capacity(plan.chunk_bytes);
        while !failed.load(Ordering::Relaxed) {
            interrupt.check().map_err(Failure::first)?;
            let chunk = {
                let lock = source.lock();
                let mut source = lock.map_err(|_| Failure::first(anyhow!("a thread ended")))?;
                let number = source.number();
                source.next(&mut bytes).map_err(|e| fail(number, e))?
            };
            let Some(chunk) = chunk else { break };
            let parsed = chunk.layout.parse(&bytes, &chunk.place(), &mut keys);
            parsed.map_err(|e| fail(chunk.number, e))?;
        }
        let (rows, values) = (keys.rows, keys.values);
        let runs = keys.collector.end().map_err(Failure::first)?;
        Ok((runs, rows, values))
    })?;
    let source = source.into_inner().map_err(|_| anyhow!("a thread ended"))?;
    source.end()?;
    let (mut rows, mut values, mut runs) = (0, 0, Vec::new());
    for (found, rows_of, values_of) in parts {
        rows += rows_of;
        values += values_of;
        runs.extend(found);
    }
    let mut sorted = Sorted::of_runs(runs, plan, folder, crew)?;
    sorted.counts = Counts {
        rows,
        values,
        fields: source.fields(),
        ..sorted.counts
    };
    Ok(sorted)
}

impl Sorted {
    /// Of runs that are there.
    ///
    /// # Errors
    /// What merging met, where there are too many for one merge; `Cancelled`.
    pub fn of_runs(
        runs: Vec<Run>,
        plan: &Plan,
        folder: &Path,
        crew: &mut Crew<'_>,
    ) -> Result<Sorted> {
        let count = runs.len() as u64;
        let (runs, levels) = merge::level(runs, plan, folder, crew)?;
        Ok(Sorted {
            runs,
            plan: *plan,
            folder: folder.to_path_buf(),
            counts: Counts {
                runs: count,
                levels,
                ..Counts::default()
            },
        })
    }

    /// Writes all keys to the end of a file, whose path is for messages; how many there are.
    ///
    /// # Errors
    /// What reading and writing met; `Cancelled`.
    pub fn write(
        &self,
        target: &File,
        path: &Path,
        keys: KeyType,
        crew: &mut Crew<'_>,
    ) -> Result<u64> {
        let cloned = || target.try_clone().map_err(|e| Error::io("write", path, e));
        let ranges = merge::ranges(&self.runs, self.plan.threads)?;
        let pieces: Vec<(usize, RangeInclusive<u64>)> = ranges.into_iter().enumerate().collect();
        let interrupt = crew.interrupt;
        let parts = merge::each(crew, self.plan.threads, &pieces, |_, (number, range)| {
            let file = match number {
                0 => cloned()?,
                _ => tempfile::tempfile_in(&self.folder)
                    .map_err(|e| Error::io("make a temporary file in", &self.folder, e))?,
            };
            let held = file.try_clone()?;
            let mut writer = KeyWriter::new(file, path, keys, self.plan.file_bytes);
            merge::merge(&self.runs, range, self.windows(), interrupt, |keys| {
                writer.write(keys, 0)
            })?;
            Ok((held, writer.count))
        })?;
        let mut count = 0;
        let mut whole = cloned()?;
        for (number, (mut part, keys)) in parts.into_iter().enumerate() {
            count += keys;
            if number > 0 {
                let copied = part
                    .rewind()
                    .and_then(|()| std::io::copy(&mut part, &mut whole));
                copied.map_err(|e| Error::io("write", path, e))?;
            }
            crew.interrupt.check()?;
        }
        Ok(count)
    }

    /// Writes the keys of each field into a file of its own; how many there are in each.
    ///
    /// # Errors
    /// What reading and writing met; `Cancelled`.
    pub fn write_fields(
        &self,
        scheme: &Scheme,
        paths: &[PathBuf],
        keys: KeyType,
        crew: &mut Crew<'_>,
    ) -> Result<Vec<(Output, u64)>> {
        let interrupt = crew.interrupt;
        merge::each(crew, self.plan.threads, paths, |field, path| {
            let output = Output::create(path)?;
            let first = (field as u64) << 32;
            let mut writer = KeyWriter::new(output.file()?, path, keys, self.plan.file_bytes);
            let range = first..=first | u64::from(u32::MAX);
            merge::merge(&self.runs, &range, self.windows(), interrupt, |keys| {
                writer.write(keys, scheme.added(field))
            })?;
            Ok((output, writer.count))
        })
    }

    /// All keys in one run, in a file.
    ///
    /// # Errors
    /// What reading and writing met; `Cancelled`.
    pub fn into_run(self, crew: &Crew<'_>) -> Result<Run> {
        let mut writer = Writer::new(&self.folder, self.plan.file_bytes)?;
        let all = 0..=u64::MAX;
        merge::merge(&self.runs, &all, self.windows(), crew.interrupt, |keys| {
            writer.write(keys)
        })?;
        Ok(writer.end_run())
    }

    fn windows(&self) -> (usize, usize) {
        let (_, keys) = self.plan.windows(self.runs.len(), merge::held(&self.runs));
        (keys, self.plan.file_bytes)
    }
}

/// Where the outputs of fields are: OUT.0.keyset and so on, beside OUT.
#[must_use]
pub fn paths_of_fields(path: &Path, fields: usize) -> Vec<PathBuf> {
    let name = path.file_name().unwrap_or_default();
    let of = |field: usize| {
        let mut name = name.to_os_string();
        name.push(format!(".{field}.keyset"));
        path.with_file_name(name)
    };
    (0..fields).map(of).collect()
}
