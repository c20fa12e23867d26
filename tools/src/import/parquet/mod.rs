//! What is in a folder of Parquet files, by their footers?
//!
//! - All `*.parquet` are read but those whose names begin with `.` or `_`, as other readers do it; or one file.
//! - Each file has the same columns, in any order. Columns are known by their names.
//! - Nothing here is believed yet: `shape` compares what footers say with the files and with the table, and each value
//!   is looked at when it is read.

mod column;
mod schema;
mod shape;
mod source;

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use ::parquet::file::metadata::ParquetMetaData;
use anyhow::Result;
use hps::{Error, Optimizer, RowMetadata, TableDescriptor};

use super::shape::Shape;
use super::source::{Folder, Source};
use super::{Args, threads};
use crate::cli::Usage;
use crate::models::columns::{is_metadata, metadata_among, optimizer_of, state_of};
use crate::models::parquet::{self, optimizer_named};
use crate::parquet_file::{check_ends, footer};
use schema::{Named, columns_of};
use source::Rows;

/// What a table may have: rows that are more are no rows.
const ROWS_MAX: u64 = 1 << 48;

/// A file of the folder.
pub struct FileOf {
    /// Where it is.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// Its footer.
    pub metadata: ParquetMetaData,
    /// The leaves of the folder's columns, in their order.
    pub leaves: Vec<usize>,
}

impl FileOf {
    /// Opens it again, as it was.
    pub fn open(&self) -> Result<File> {
        let failed = |e| Error::io("open", &self.path, e);
        let file = File::open(&self.path).map_err(failed)?;
        if file.metadata().map_err(failed)?.len() != self.bytes {
            let path = self.path.display();
            anyhow::bail!("{path}: changed while it was read");
        }
        Ok(file)
    }
}

/// A row group with rows.
#[derive(Clone, Copy, Debug)]
pub struct GroupAt {
    /// Its file.
    pub file: usize,
    /// Its number there.
    pub number: usize,
    /// The number of its first row in the folder.
    pub first: u64,
    /// Rows.
    pub rows: u64,
}

/// A folder of Parquet files that was looked at.
pub struct Found {
    path: PathBuf,
    files: Vec<FileOf>,
    /// Key, weights, and the others.
    columns: Vec<Named>,
    groups: Vec<GroupAt>,
    rows: u64,
    /// What all footers say alike.
    optimizer: Option<Optimizer>,
    dim: Option<usize>,
}

impl Found {
    /// Looks at a folder, or at one file.
    ///
    /// # Errors
    /// `Usage` where it is something else; `Corrupt`, `Io`.
    pub fn look(path: &Path, weights_only: bool) -> Result<Found> {
        let mut found = Found {
            path: path.to_path_buf(),
            files: Vec::new(),
            columns: Vec::new(),
            groups: Vec::new(),
            rows: 0,
            optimizer: None,
            dim: None,
        };
        for path in list(path)? {
            found.add(path, weights_only)?;
        }
        found.check_parts()?;
        let told = |name| {
            let mut all = found.files.iter().map(|file| told(file, name));
            let first = all.next().flatten();
            first.filter(|first| all.all(|other| other == Some(*first)))
        };
        found.optimizer = told(parquet::OPTIMIZER).and_then(optimizer_named);
        found.dim = told(parquet::DIM).and_then(|dim| dim.parse().ok());
        Ok(found)
    }

    fn add(&mut self, path: PathBuf, weights_only: bool) -> Result<()> {
        let file = File::open(&path).map_err(|e| Error::io("open", &path, e))?;
        let bytes = check_ends(&path, &file)?;
        let metadata = footer(&path, &file, bytes)?;
        let schema = metadata.file_metadata().schema_descr();
        let (columns, leaves) = columns_of(&path, schema, weights_only)?;
        match self.files.first() {
            None => self.columns = columns,
            Some(first) => schema::compare(&first.path, &self.columns, &path, &columns)?,
        }
        for (number, group) in metadata.row_groups().iter().enumerate() {
            // What is below zero is refused with the places.
            let rows = u64::try_from(group.num_rows()).unwrap_or(0);
            if rows == 0 {
                continue;
            }
            self.groups.push(GroupAt {
                file: self.files.len(),
                number,
                first: self.rows,
                rows,
            });
            let all = self.rows.checked_add(rows).filter(|all| *all <= ROWS_MAX);
            self.rows = all.ok_or_else(|| {
                let what = format!("row group {number}: found {rows} rows, more than can be");
                Error::corrupt(&path, 0, what)
            })?;
        }
        self.files.push(FileOf {
            path,
            bytes,
            metadata,
            leaves,
        });
        Ok(())
    }

    /// Refuses a folder of an export of ours that lacks a file before its last one. What other writers name so has its
    /// own numbers.
    fn check_parts(&self) -> Result<()> {
        if !self.path.is_dir() {
            return Ok(());
        }
        let ours = self
            .files
            .iter()
            .filter(|file| told(file, parquet::TABLE).is_some());
        let mut parts: Vec<u32> = ours.filter_map(|file| part_of(&file.path)).collect();
        parts.sort_unstable();
        let Some((missing, _)) = (0..).zip(&parts).find(|(number, part)| number != *part) else {
            return Ok(());
        };
        let (path, last) = (
            self.path.join(parquet::part(missing)),
            parts.last().copied(),
        );
        let last = parquet::part(last.unwrap_or(0));
        Err(Usage(format!(
            "{}: is not there, {last} is: the folder is no whole export of hps; copy it again, or import its files one by \
             one",
            path.display()
        ))
        .into())
    }

    /// Columns beside key and weights.
    fn others(&self) -> &[Named] {
        self.columns.get(2..).unwrap_or_default()
    }
}

/// What a footer says.
fn told<'a>(file: &'a FileOf, name: &str) -> Option<&'a str> {
    let pairs = file.metadata.file_metadata().key_value_metadata()?;
    let pair = pairs.iter().find(|pair| pair.key == name)?;
    pair.value.as_deref()
}

/// The number of a file that is named as an export of ours names it.
fn part_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    let number = name.strip_prefix("part-")?.strip_suffix(".parquet")?;
    let number = number.parse().ok()?;
    (parquet::part(number) == name).then_some(number)
}

/// The files of a folder, by name.
fn list(path: &Path) -> Result<Vec<PathBuf>> {
    let failed = |e| Error::io("list", path, e);
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) => {
            return match error.kind() {
                ErrorKind::NotADirectory => Ok(vec![path.to_path_buf()]),
                ErrorKind::NotFound => {
                    Err(Usage(format!("{}: is no folder, and no file", path.display())).into())
                }
                _ => Err(failed(error).into()),
            };
        }
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let file = entry.path();
        if name == "_temporary" {
            let path = file.display();
            let why = "is where Spark keeps files until all are written: the job has not ended, or it failed; write the \
                       folder again, or remove this one if it is whole";
            return Err(Usage(format!("{path}: {why}")).into());
        }
        if name.starts_with(['.', '_']) {
            continue;
        }
        let shown = file.display();
        if file.is_dir() {
            let why = "is a folder in the folder, whose rows would be passed over; import the folders one by one, or \
                       move it away";
            return Err(Usage(format!("{shown}: {why}")).into());
        }
        if name == parquet::REMOVED {
            let why = "has the keys that an export of changes found removed; an import removes none: move the file \
                       away to import the rows alone";
            return Err(Usage(format!("{shown}: {why}")).into());
        }
        if name.ends_with(".parquet") {
            files.push(file);
        }
    }
    if files.is_empty() {
        let path = path.display();
        let why = format!("{path}: no model of this format: it has no file *.parquet");
        return Err(Usage(why).into());
    }
    files.sort();
    Ok(files)
}

impl Folder for Found {
    fn path(&self) -> &Path {
        &self.path
    }

    fn state(&self) -> Vec<&str> {
        let names = self.others().iter().map(|column| column.name);
        names.filter(|name| !is_metadata(name)).collect()
    }

    fn metadata(&self) -> RowMetadata {
        metadata_among(self.others().iter().map(|column| column.name))
    }

    fn optimizer(&self) -> Option<Optimizer> {
        let state = self.state();
        let has_all = |optimizer: &Optimizer| {
            let names = state_of(*optimizer, 1).into_iter().map(|(name, _)| name);
            state.is_empty() || names.collect::<Vec<_>>() == state
        };
        let own = || match *state.as_slice() {
            ["a"] => {
                let a = self.others().iter().find(|column| column.name == "a");
                match a.is_some_and(|a| a.is_list) {
                    true => Some(Optimizer::Adagrad),
                    false => Some(Optimizer::RowwiseAdagrad),
                }
            }
            _ => optimizer_of(&state),
        };
        self.optimizer.filter(has_all).or_else(own)
    }

    fn needed(&self, optimizer: Optimizer) -> Result<Vec<&'static str>> {
        Ok(state_of(optimizer, 1)
            .into_iter()
            .map(|(name, _)| name)
            .collect())
    }

    fn missing(&self, name: &str) -> (PathBuf, String) {
        let path = self.files.first().map_or(&self.path, |file| &file.path);
        (path.clone(), format!("column {name}"))
    }

    fn shape(&self, _: &Args, wanted: Option<usize>, optimizer: Optimizer) -> Result<Shape> {
        shape::shape(self, wanted, optimizer)
    }

    fn source<'a>(
        &'a self,
        args: &Args,
        _: &Shape,
        table: &TableDescriptor,
    ) -> Result<Box<dyn Source + 'a>> {
        Ok(Box::new(Rows::new(self, table, threads(args))?))
    }
}
