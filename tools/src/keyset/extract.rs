//! `hps-keyset extract`: which keys does a data set have?

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use anyhow::{Result, bail};

use super::args::{DataArgs, ExtractArgs, From};
use super::crew::Crew;
use super::layout::{Format, KeyType};
use super::output::Output;
use super::plan::Plan;
use super::scheme::{KeyKind, Scheme};
use super::sorting::{Counts, paths_of_fields, sort};
use super::source::Inputs;
use crate::cli::Usage;
use crate::durable::folder_of;

/// What was done.
#[derive(Debug)]
pub struct Extracted {
    /// Input files, and their bytes.
    pub files: usize,
    /// See above.
    pub bytes: u64,
    /// What was read.
    pub counts: Counts,
    /// Files written, with the number of their keys.
    pub outputs: Vec<(PathBuf, u64)>,
}

impl DataArgs {
    /// The format of the inputs.
    ///
    /// # Errors
    /// `Usage` when something is missing, or there for nothing.
    pub fn format(&self) -> Result<Format> {
        let keys = self.input_dtype.or(self.dtype);
        let format = match (self.from, keys) {
            (From::CriteoTsv, _) => Format::CriteoTsv,
            (From::Npy, _) => Format::Npy,
            (From::Raw, _) => match (self.labels, self.dense, self.slots) {
                (Some(labels), Some(dense), Some(slots @ 1..)) => Format::Raw(labels, dense, slots),
                _ => bail!(Usage(String::from(
                    "--from raw needs --labels, --dense and --slots (at least 1): the file has no header"
                ))),
            },
            (From::Parquet, _) => parquet()?,
            (From::Norm, Some(keys)) => Format::Norm(keys),
            (From::Keys, Some(keys)) => Format::Keys(keys),
            (From::Norm | From::Keys, None) => bail!(Usage(String::from(
                "--from norm and --from keys need --dtype, or --input-dtype where the output has \
                 another type: the files don't say how wide their keys are"
            ))),
        };
        let has_widths = self.labels.or(self.dense).or(self.slots).is_some();
        if has_widths && self.from != From::Raw {
            bail!(Usage(String::from(
                "--labels, --dense and --slots are for --from raw"
            )));
        }
        if self.input_dtype.is_some() && !matches!(self.from, From::Norm | From::Keys) {
            bail!(Usage(String::from(
                "--input-dtype is for --from norm and --from keys"
            )));
        }
        if !self.columns.is_empty() && self.from != From::Parquet {
            bail!(Usage(String::from("--columns is for --from parquet")));
        }
        Ok(format)
    }

    /// The files.
    ///
    /// # Errors
    /// `Usage` where a flag is wrong; a file that is not there.
    pub fn inputs(&self, paths: &[PathBuf]) -> Result<Inputs> {
        self.format()?;
        let inputs = Inputs::find(paths, self.file_list)?;
        Ok(inputs.with_columns(&self.columns))
    }

    /// The type of the keys that are written.
    #[must_use]
    pub fn written(&self) -> KeyType {
        self.dtype.unwrap_or(KeyType::I64)
    }

    /// How keys are made.
    ///
    /// # Errors
    /// `Usage` for what does not fit together.
    pub fn scheme(&self, per_field: bool) -> Result<Scheme> {
        let of_keys = self.from == From::Keys;
        let kind = self.key.unwrap_or(if of_keys {
            KeyKind::Raw
        } else {
            KeyKind::Field
        });
        if of_keys && (kind != KeyKind::Raw || per_field) {
            bail!(Usage(String::from(
                "--from keys has keys already, of no field: only --key raw, not --per-table"
            )));
        }
        if kind == KeyKind::Field && self.written() == KeyType::U32 {
            bail!(Usage(String::from(
                "keys of 32 bits have no room for the field: --dtype u32 needs --key raw or --key \
                 offset (keys of norm that are read as u32 and written as i64: --input-dtype u32)"
            )));
        }
        if self.first_field != 0 && kind != KeyKind::Field {
            bail!(Usage(String::from(
                "--first-field is for --key field: other keys do not have the field's number"
            )));
        }
        let scheme = Scheme::new(kind, &self.slot_sizes, per_field)?;
        Ok(scheme.counted_from(self.first_field))
    }
}

#[cfg(feature = "parquet")]
fn parquet() -> Result<Format> {
    Ok(Format::Parquet)
}

#[cfg(not(feature = "parquet"))]
fn parquet() -> Result<Format> {
    Err(crate::cli::without_parquet("hps-keyset").into())
}

/// Makes the keyset.
///
/// # Errors
/// What kept it from that.
pub fn extract(args: &ExtractArgs, inputs: &Inputs, crew: &mut Crew<'_>) -> Result<Extracted> {
    let format = args.data.format()?;
    let scheme = args.data.scheme(args.per_table)?;
    let plan = Plan::new(args.resources.memory, args.resources.threads);
    let (keys, path) = (args.data.written(), args.output.as_path());
    let sorted = sort(inputs, format, &scheme, &plan, folder_of(path), crew)?;
    let mut outputs = Vec::new();
    if args.per_table {
        let paths = paths_of_fields(path, sorted.counts.fields);
        for (output, count) in sorted.write_fields(&scheme, &paths, keys, crew)? {
            outputs.push((output.finish()?, count));
        }
    } else {
        let output = Output::create(path)?;
        let count = sorted.write(&output.file()?, path, keys, crew)?;
        if count == 0 {
            bail!(nothing(path, sorted.counts));
        }
        outputs.push((output.finish()?, count));
    }
    Ok(Extracted {
        files: inputs.files(),
        bytes: crew.done.load(Ordering::Relaxed),
        counts: sorted.counts,
        outputs,
    })
}

fn nothing(path: &Path, counts: Counts) -> String {
    format!(
        "{}: not written: the {} of the input have no key, and HugeCTR refuses an empty keyset",
        path.display(),
        crate::cli::of(counts.rows, "record")
    )
}
