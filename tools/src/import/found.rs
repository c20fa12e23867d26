//! What is in a folder, by the names and lengths of its files?
//!
//! Nothing here is believed yet: `shape` compares the lengths with each other and with the table.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use hps::{Error, Optimizer, RowMetadata, TableDescriptor};

use super::fixed::Fixed;
use super::plan::{self, Plan};
use super::shape::{self, Shape};
use super::source::{Folder, Source};
use super::{Args, deeprec, threads};
use crate::cli::Usage;
use crate::models::columns::{is_metadata, metadata_among, optimizer_of};
use crate::models::{Format, hugectr, npy};

/// A file of the folder.
#[derive(Debug)]
pub struct FileFound {
    /// Where it is.
    pub path: PathBuf,
    /// Opened for reading; tensors of a checkpoint may lie in the same one.
    pub file: Arc<File>,
    /// Bytes before the first row.
    pub head_bytes: u64,
    /// Bytes behind these.
    pub bytes: u64,
    /// What its header says, where it has one: rows, and elements of each.
    pub told: Option<(u64, u64)>,
    /// What it is of a checkpoint of TensorFlow.
    pub tensor: Option<Tensor>,
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// The CRC-32C that its bytes must have.
    pub crc: u32,
    /// The byte of the index that says so.
    pub said_at: u64,
}

/// A model of files, or of tensors, with a fixed stride each; of a variable of DeepRec, one partition.
#[derive(Debug)]
pub struct Found {
    /// Where it is.
    pub folder: PathBuf,
    /// Its format.
    pub format: Format,
    /// Keys.
    pub keys: FileFound,
    /// Weights.
    pub weights: FileFound,
    /// Slots of localized embeddings.
    pub slots: Option<FileFound>,
    /// State and metadata, by the name without `.npy`.
    pub others: Vec<(String, FileFound)>,
    /// Keys that must be those of `keys`, byte by byte.
    pub twins: Vec<FileFound>,
}

impl Found {
    /// Looks at a folder of HugeCTR's.
    ///
    /// # Errors
    /// `Usage` where it is something else; `Corrupt`, `Io`.
    pub fn hugectr(folder: &Path, weights_only: bool) -> Result<Found> {
        if let Some(why) = hugectr::why_refused(folder) {
            return Err(Usage(why).into());
        }
        Ok(Found {
            folder: folder.to_path_buf(),
            format: Format::Hugectr,
            keys: needed(folder, hugectr::KEY)?,
            weights: needed(folder, hugectr::WEIGHTS)?,
            slots: raw(folder, hugectr::SLOT)?,
            others: match weights_only {
                true => Vec::new(),
                false => state_of_hugectr(folder)?,
            },
            twins: Vec::new(),
        })
    }

    /// Looks at a folder of NumPy arrays.
    ///
    /// # Errors
    /// As [`Found::hugectr`].
    pub fn npy(folder: &Path, weights_only: bool) -> Result<Found> {
        Ok(Found {
            folder: folder.to_path_buf(),
            format: Format::Npy,
            keys: array(needed(folder, "keys.npy")?, &["<u8", "<i8"])?,
            weights: array(needed(folder, "weights.npy")?, &["<f4"])?,
            slots: None,
            others: match weights_only {
                true => Vec::new(),
                false => columns_of_npy(folder)?,
            },
            twins: Vec::new(),
        })
    }

    /// Its first `rows`, as those of `table`.
    ///
    /// # Errors
    /// As [`Folder::source`].
    pub fn fixed(&self, args: &Args, rows: u64, table: &TableDescriptor) -> Result<Fixed<'_>> {
        let plan = Plan::new(args, self, table)?;
        Ok(Fixed::new(plan, rows, threads(args)))
    }
}

impl Folder for Found {
    fn path(&self) -> &Path {
        &self.folder
    }

    fn state(&self) -> Vec<&str> {
        let names = self.others.iter().map(|(name, _)| name.as_str());
        names.filter(|name| !is_metadata(name)).collect()
    }

    fn metadata(&self) -> RowMetadata {
        metadata_among(self.others.iter().map(|(name, _)| name.as_str()))
    }

    fn optimizer(&self) -> Option<Optimizer> {
        let state = self.state();
        match (self.format, state.as_slice()) {
            (_, []) => None,
            (Format::Deeprec, _) => deeprec::optimizer_of(&state),
            (Format::Hugectr, _) => {
                let of = |(_, files): &&(Optimizer, &[hugectr::StateFile])| {
                    files.iter().any(|file| state.contains(&file.name))
                };
                let mut found = hugectr::STATE.iter().filter(of);
                let first = found.next().map(|(optimizer, _)| *optimizer);
                first.filter(|_| found.next().is_none())
            }
            (Format::Npy, ["a"]) => {
                let (_, a) = self.others.iter().find(|(name, _)| name == "a")?;
                let is_wide = a.told.is_some_and(|told| told.1 > 1);
                let dim = self.weights.told?.1;
                match (is_wide, dim) {
                    (true, _) => Some(Optimizer::Adagrad),
                    (false, 1) => None,
                    (false, _) => Some(Optimizer::RowwiseAdagrad),
                }
            }
            (Format::Npy, _) => optimizer_of(&state),
        }
    }

    fn needed(&self, optimizer: Optimizer) -> Result<Vec<&'static str>> {
        // The learning rate does not matter here.
        let needed = plan::state(self.format, optimizer, Some(1.0))?;
        Ok(needed.iter().map(|(name, ..)| *name).collect())
    }

    fn missing(&self, name: &str) -> (PathBuf, String) {
        let file = String::from("the file");
        match self.format {
            Format::Hugectr => (self.folder.join(name), file),
            Format::Npy => (self.folder.join(format!("{name}.npy")), file),
            Format::Deeprec => (self.folder.clone(), format!("slot {name}")),
        }
    }

    fn has_slots(&self) -> bool {
        self.slots.is_some()
    }

    fn shape(&self, args: &Args, wanted: Option<usize>, optimizer: Optimizer) -> Result<Shape> {
        let width = |name: &str, dim| plan::width(self.format, optimizer, name, dim);
        shape::shape(self, wanted, args.repair, width)
    }

    fn source<'a>(
        &'a self,
        args: &Args,
        shape: &Shape,
        table: &TableDescriptor,
    ) -> Result<Box<dyn Source + 'a>> {
        Ok(Box::new(self.fixed(args, shape.rows, table)?))
    }
}

fn needed(folder: &Path, name: &str) -> Result<FileFound> {
    raw(folder, name)?.ok_or_else(|| {
        let folder = folder.display();
        let why = match Path::new(&folder.to_string()).is_dir() {
            true => format!("{folder}: no model of this format: it has no file {name}"),
            false => format!("{folder}: is no folder"),
        };
        Usage(why).into()
    })
}

/// Opens a file without a header; `None` where it is not there.
fn raw(folder: &Path, name: &str) -> Result<Option<FileFound>> {
    let path = folder.join(name);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) => match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => return Ok(None),
            _ => return Err(Error::io("open", &path, error).into()),
        },
    };
    let metadata = file
        .metadata()
        .map_err(|e| Error::io("look at", &path, e))?;
    if !metadata.is_file() {
        return Err(Usage(format!("{}: is no plain file", path.display())).into());
    }
    Ok(Some(FileFound {
        path,
        file: Arc::new(file),
        head_bytes: 0,
        bytes: metadata.len(),
        told: None,
        tensor: None,
    }))
}

/// Reads the header of an array, whose elements are of one of these types.
fn array(mut found: FileFound, types: &[&str]) -> Result<FileFound> {
    let corrupt = |what: String| Error::corrupt(&found.path, 0, what);
    let failed = |e| Error::io("read", &found.path, e);
    let mut head = Vec::new();
    let more = |bytes: usize, head: &mut Vec<u8>| {
        let missing = bytes.saturating_sub(head.len()) as u64;
        let mut part = (&*found.file).take(missing);
        part.read_to_end(head).map_err(failed)
    };
    more(12, &mut head)?;
    let length = npy::length(&head).map_err(corrupt)?;
    more(length, &mut head)?;
    let head = npy::read(&head).map_err(corrupt)?;
    if !types.contains(&head.descr.as_str()) {
        let (found, expected) = (head.descr, types.join(" or "));
        return Err(corrupt(format!(
            "found elements of type {found}, expected {expected}"
        ))
        .into());
    }
    found.told = match *head.shape.as_slice() {
        [rows] => Some((rows, 1)),
        [rows, width] => Some((rows, width)),
        _ => {
            let axes = head.shape.len();
            return Err(corrupt(format!("found an array of {axes} axes, expected 1 or 2")).into());
        }
    };
    found.head_bytes = head.bytes;
    found.bytes = found.bytes.saturating_sub(head.bytes);
    Ok(found)
}

fn state_of_hugectr(folder: &Path) -> Result<Vec<(String, FileFound)>> {
    let mut found = Vec::new();
    for file in hugectr::STATE.iter().flat_map(|(_, files)| *files) {
        if let Some(opened) = raw(folder, file.name)? {
            found.push((file.name.to_owned(), opened));
        }
    }
    Ok(found)
}

/// All arrays beside keys and weights; one that no table can have is refused, not passed over.
fn columns_of_npy(folder: &Path) -> Result<Vec<(String, FileFound)>> {
    let list = fs::read_dir(folder).map_err(|e| Error::io("list", folder, e))?;
    let mut names: Vec<String> = Vec::new();
    for entry in list {
        let entry = entry.map_err(|e| Error::io("list", folder, e))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".npy").map(str::to_owned));
    }
    names.retain(|name| name != "keys" && name != "weights");
    names.sort();
    let mut found = Vec::new();
    for name in names {
        let file = needed(folder, &format!("{name}.npy"))?;
        let types = match &*name {
            "a" | "m" | "v" | "t" | "z" | "n" => "<f4",
            other if is_metadata(other) => "<u4",
            _ => {
                let path = file.path.display();
                let why = "no table has a column of that name; remove the file, or leave all columns but the weights \
                           out by --weights-only";
                return Err(Usage(format!("{path}: {why}")).into());
            }
        };
        found.push((name, array(file, &[types])?));
    }
    Ok(found)
}
