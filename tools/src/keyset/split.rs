//! `hps-keyset split`: how is a data set cut into passes whose rows fit?
//!
//! - Records keep their order. A pass ends after a number of them, or before the one whose keys would
//!   be too many.
//! - All files get their names together, once the last one is whole.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use hps::Error;

use super::args::{From, SplitArgs};
use super::collector::Collector;
use super::crew::Crew;
use super::layout::{Fault, KeyType, Sink};
use super::output::{KeyWriter, Output, Whole};
use super::plan::Plan;
use super::scheme::Scheme;
use super::seen::{Full, Seen};
use super::sorting::Sorted;
use super::source::{Inputs, Source};
use crate::cli::{Usage, of, size};
use crate::durable::folder_of;

/// One pass.
#[derive(Debug)]
pub struct Pass {
    /// Its keyset.
    pub keyset: PathBuf,
    /// Its records, if they were written.
    pub data: Option<PathBuf>,
    /// How many records.
    pub rows: u64,
    /// How many different keys.
    pub keys: u64,
}

/// What was done.
#[derive(Debug)]
pub struct Passes {
    /// In order.
    pub passes: Vec<Pass>,
    /// Keys that a pass may have, if that was the bound.
    pub keys_max: Option<u64>,
    /// The list of the data's files, if they were written.
    pub list: Option<PathBuf>,
}

/// When a pass ends, and what is kept of its keys until then.
enum Bound {
    Rows(u64, Collector),
    Keys(u64, Seen),
}

struct Splitter<'a, 'b> {
    args: &'a SplitArgs,
    plan: Plan,
    scheme: Scheme,
    keys: KeyType,
    crew: &'a mut Crew<'b>,
    bound: Bound,
    /// Keys of the record at hand.
    row: Vec<u64>,
    rows: u64,
    data: Option<(Output, BufWriter<File>)>,
    passes: Vec<Pass>,
    whole: Vec<Whole>,
}

/// Keys of rows that fit into so many GiB.
///
/// # Errors
/// `Usage` when not one does.
fn keys_max(args: &SplitArgs) -> Result<Option<u64>> {
    let (Some(gib), Some(dim), Some(optimizer)) = (args.hbm_gib, args.dim, args.optimizer) else {
        return Ok(None);
    };
    let row = optimizer.row_bytes(1, dim) as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive; saturates"
    )]
    let keys = (gib * f64::from(1 << 30) / row) as u64;
    match keys {
        0 => bail!(Usage(format!(
            "--hbm-gib {gib}: a row alone takes {row} bytes"
        ))),
        keys => Ok(Some(keys)),
    }
}

/// Cuts a data set.
///
/// # Errors
/// What is wrong with the data, what writing met; `Cancelled`.
pub fn split(args: &SplitArgs, inputs: &Inputs, crew: &mut Crew<'_>) -> Result<Passes> {
    let format = args.data.format()?;
    let scheme = args.data.scheme(false)?;
    if args.write_data && args.data.from != From::CriteoTsv {
        bail!(Usage(String::from(
            "--data writes Criteo's text: it is for --from criteo-tsv"
        )));
    }
    let keys_max = keys_max(args)?;
    let plan = Plan::new(args.memory, Some(1));
    let folder = folder_of(&args.output);
    let bound = match keys_max {
        Some(keys) => Bound::Keys(keys, Seen::new((plan.share - plan.chunk_bytes * 2) as u64)),
        None => Bound::Rows(args.rows.unwrap_or(u64::MAX), Collector::new(&plan, folder)),
    };
    let checked = scheme.clone();
    let sizes = (plan.chunk_bytes, &crew.done);
    let mut source = Source::new(inputs, format, sizes, move |fields| {
        checked.check_fields(fields)
    });
    let mut splitter = Splitter {
        args,
        plan,
        scheme,
        keys: args.data.written(),
        crew,
        bound,
        row: Vec::new(),
        rows: 0,
        data: None,
        passes: Vec::new(),
        whole: Vec::new(),
    };
    let mut bytes = Vec::with_capacity(plan.chunk_bytes);
    while let Some(chunk) = source.next(&mut bytes)? {
        splitter.crew.interrupt.check()?;
        splitter.crew.show();
        let mut sink = Rows {
            splitter: &mut splitter,
            bytes: &bytes,
        };
        chunk.layout.parse(&bytes, &chunk.place(), &mut sink)?;
    }
    source.end()?;
    splitter.end_pass()?;
    splitter.finish(keys_max)
}

/// The records of a chunk, on their way to a splitter.
struct Rows<'a, 'b, 'c> {
    splitter: &'a mut Splitter<'b, 'c>,
    bytes: &'a [u8],
}

impl Sink for Rows<'_, '_, '_> {
    fn put(&mut self, field: usize, value: u64) -> Result<(), Fault> {
        let key = self.splitter.scheme.key(field, value)?;
        self.splitter.row.push(key);
        Ok(())
    }

    fn end_row(&mut self, row: Range<usize>) -> Result<(), Fault> {
        Ok(self.splitter.end_row(&self.bytes[row])?)
    }
}

impl Splitter<'_, '_> {
    fn end_row(&mut self, bytes: &[u8]) -> Result<()> {
        let row = std::mem::take(&mut self.row);
        self.end_pass_if_full(&row)?;
        match &mut self.bound {
            Bound::Rows(_, collector) => row.iter().try_for_each(|key| collector.put(*key))?,
            Bound::Keys(_, seen) => {
                let put = row.iter().try_for_each(|key| seen.put(*key));
                put.map_err(|full| no_room(full, self.args))?;
            }
        }
        self.rows += 1;
        if self.args.write_data {
            self.write_row(bytes)?;
        }
        self.row = row;
        self.row.clear();
        Ok(())
    }

    /// Ends the pass if the record is one too many.
    fn end_pass_if_full(&mut self, row: &[u64]) -> Result<()> {
        let is_full = match &self.bound {
            Bound::Rows(rows_max, _) => self.rows >= *rows_max,
            Bound::Keys(keys_max, seen) if seen.count() + row.len() as u64 > *keys_max => {
                let mut new: Vec<u64> = row.iter().copied().filter(|key| !seen.has(*key)).collect();
                new.sort_unstable();
                new.dedup();
                if self.rows == 0 && new.len() as u64 > *keys_max {
                    bail!(Usage(format!(
                        "record {} has {} different keys, and only {keys_max} fit into --hbm-gib",
                        self.passes.iter().map(|pass| pass.rows).sum::<u64>() + 1,
                        new.len()
                    )));
                }
                seen.count() + new.len() as u64 > *keys_max
            }
            Bound::Keys(..) => false,
        };
        if is_full && self.rows > 0 {
            self.end_pass()?;
            return self.end_pass_if_full(row);
        }
        Ok(())
    }

    fn write_row(&mut self, bytes: &[u8]) -> Result<()> {
        let path = part(&self.args.output, self.passes.len(), "tsv");
        let (_, writer) = match &mut self.data {
            Some(data) => data,
            none => {
                let output = Output::create(&path)?;
                let writer = BufWriter::with_capacity(self.plan.file_bytes, output.file()?);
                none.insert((output, writer))
            }
        };
        let end: &[u8] = if bytes.ends_with(b"\n") { b"" } else { b"\n" };
        let written = writer.write_all(bytes).and_then(|()| writer.write_all(end));
        written.map_err(|e| Error::io("write", &path, e).into())
    }

    fn end_pass(&mut self) -> Result<()> {
        let number = self.passes.len();
        let path = part(&self.args.output, number, "keyset");
        let output = Output::create(&path)?;
        let keys = match &mut self.bound {
            Bound::Rows(_, collector) => {
                let folder = folder_of(&self.args.output);
                let next = Collector::new(&self.plan, folder);
                let runs = std::mem::replace(collector, next).end()?;
                let sorted = Sorted::of_runs(runs, &self.plan, folder, self.crew)?;
                sorted.write(&output.file()?, &path, self.keys, self.crew)?
            }
            Bound::Keys(_, seen) => {
                let keys = seen.take();
                let file = output.file()?;
                let mut writer = KeyWriter::new(file, &path, self.keys, self.plan.file_bytes);
                writer.write(&keys, 0)?;
                writer.count
            }
        };
        if keys == 0 {
            bail!(
                "{}: not written: {} of the pass have no key, and HugeCTR refuses an empty keyset",
                path.display(),
                of(self.rows, "record")
            );
        }
        self.whole.push(output.whole()?);
        let mut data = None;
        if let Some((output, writer)) = self.data.take() {
            let path = part(&self.args.output, number, "tsv");
            let flushed = writer.into_inner().map_err(|e| e.into_error());
            flushed.map_err(|e| Error::io("write", &path, e))?;
            self.whole.push(output.whole()?);
            data = Some(path);
        }
        let rows = std::mem::take(&mut self.rows);
        self.passes.push(Pass {
            keyset: path,
            data,
            rows,
            keys,
        });
        Ok(())
    }

    fn finish(mut self, keys_max: Option<u64>) -> Result<Passes> {
        let mut list = None;
        if self.args.write_data {
            let mut path = self.args.output.clone().into_os_string();
            path.push(".txt");
            let path = PathBuf::from(path);
            let output = Output::create(&path)?;
            let files = self.passes.iter().filter_map(|pass| pass.data.as_deref());
            let files: Vec<&Path> = files
                .filter_map(|file| file.file_name().map(Path::new))
                .collect();
            let mut text = format!("{}\n", files.len()).into_bytes();
            for file in files {
                text.extend_from_slice(file.as_os_str().as_encoded_bytes());
                text.push(b'\n');
            }
            let written = output.file()?.write_all(&text);
            written.map_err(|e| Error::io("write", &path, e))?;
            self.whole.push(output.whole()?);
            list = Some(path);
        }
        self.crew.interrupt.check()?;
        for whole in self.whole {
            whole.finish()?;
        }
        Ok(Passes {
            passes: self.passes,
            keys_max,
            list,
        })
    }
}

fn no_room(full: Full, args: &SplitArgs) -> anyhow::Error {
    anyhow!(Usage(format!(
        "a pass has {} and more, which --memory {} can't count: it needs at least {}",
        of(full.keys, "different key"),
        size(args.memory),
        size(full.bytes + full.bytes / 4)
    )))
}

/// PREFIX.0.keyset and so on.
fn part(prefix: &Path, number: usize, ending: &str) -> PathBuf {
    let mut path = prefix.as_os_str().to_os_string();
    path.push(format!(".{number}.{ending}"));
    PathBuf::from(path)
}
