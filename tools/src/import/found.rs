//! What is in a folder, by the names and lengths of its files?
//!
//! Nothing here is believed yet: `shape` compares the lengths with each other and with the table.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use hps::{Error, Optimizer, RowMetadata};

use super::{Args, deeprec};
use crate::cli::Usage;
use crate::models::columns::{metadata_of, state_of};
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

/// A folder of a model.
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
    /// What is there and is not taken, and how many rows or keys of it.
    pub lost: Vec<(String, u64)>,
}

impl Found {
    /// Looks at all models that the arguments name: one, but where a variable has partitions.
    ///
    /// # Errors
    /// As [`Found::look`].
    pub fn all(format: Format, args: &Args) -> Result<Vec<Found>> {
        match format {
            Format::Deeprec => deeprec::look(args),
            _ => Ok(vec![Found::look(format, &args.folder, args.weights_only)?]),
        }
    }

    /// Looks at a folder.
    ///
    /// # Errors
    /// `Usage` where it is something else; `Corrupt`, `Io`.
    pub fn look(format: Format, folder: &Path, weights_only: bool) -> Result<Found> {
        if format == Format::Hugectr
            && let Some(why) = hugectr::why_refused(folder)
        {
            return Err(Usage(why).into());
        }
        let is_hugectr = format == Format::Hugectr;
        let (keys, weights, slots) = match is_hugectr {
            true => (
                needed(folder, hugectr::KEY)?,
                needed(folder, hugectr::WEIGHTS)?,
                raw(folder, hugectr::SLOT)?,
            ),
            false => (
                array(needed(folder, "keys.npy")?, &["<u8", "<i8"])?,
                array(needed(folder, "weights.npy")?, &["<f4"])?,
                None,
            ),
        };
        let others = match is_hugectr {
            _ if weights_only => Vec::new(),
            true => state_of_hugectr(folder)?,
            false => columns_of_npy(folder)?,
        };
        Ok(Found {
            folder: folder.to_path_buf(),
            format,
            keys,
            weights,
            slots,
            others,
            twins: Vec::new(),
            lost: Vec::new(),
        })
    }

    /// The names of its state files, metadata left out.
    pub fn state(&self) -> Vec<&str> {
        let all = metadata_of(every_metadata());
        let names = self.others.iter().map(|(name, _)| name.as_str());
        names.filter(|name| !all.contains(name)).collect()
    }

    /// The metadata that it has.
    #[must_use]
    pub fn metadata(&self) -> RowMetadata {
        let has = |name| self.others.iter().any(|(found, _)| found == name);
        RowMetadata::new()
            .show(has("show"))
            .click(has("click"))
            .count(has("count"))
            .last_step(has("last_step"))
    }

    /// The optimizer whose state this is; `None` where several have the same, or there is none.
    #[must_use]
    pub fn optimizer(&self) -> Option<Optimizer> {
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
            (Format::Npy, _) => [Optimizer::Adam, Optimizer::Ftrl]
                .into_iter()
                .find(|optimizer| {
                    let columns = state_of(*optimizer, 1);
                    let has = |name: &str| state.contains(&name);
                    columns.len() == state.len() && columns.iter().all(|(name, _)| has(name))
                }),
        }
    }
}

fn every_metadata() -> RowMetadata {
    let all = RowMetadata::new().show(true).click(true);
    all.count(true).last_step(true)
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
    let integers = metadata_of(every_metadata());
    let mut found = Vec::new();
    for name in names {
        let file = needed(folder, &format!("{name}.npy"))?;
        let types = match &*name {
            "a" | "m" | "v" | "t" | "z" | "n" => "<f4",
            other if integers.contains(&other) => "<u4",
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
