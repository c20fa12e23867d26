//! Which tensors of a checkpoint are the variable that is asked for, and where do they lie?
//!
//! - What the index says is checked against the lengths of the data files before anything is read by it; checksums are
//!   checked while tensors are read, before the checkpoint that makes rows durable.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use hps::Error;

use crate::cli::Usage;
use crate::import::found::{FileFound, Found, Tensor};
use crate::import::source::Noticed;
use crate::models::Format;
use crate::models::deeprec::bundle::{Entry, FLOAT, Header, INT64};
use crate::models::deeprec::table::{self, Damage};
use crate::models::deeprec::{FREQS, KEYS, Place, SSD_ENDS, STATE, VALUES, VERSIONS, data_name};

/// No index of a checkpoint comes near it.
const INDEX_BYTES_MAX: u64 = 64 << 20;
/// Nor does a variable have so many tensors.
const TENSORS_MAX: usize = 100_000;
/// Variables that are named where the one that was asked for is not there.
const NAMED_MAX: usize = 10;

/// What the index says of a variable.
pub struct Index {
    path: PathBuf,
    header: Header,
    /// Its tensors, and where the index says so.
    tensors: BTreeMap<Place, (Entry, u64)>,
    /// Other variables.
    others: BTreeSet<String>,
}

impl Index {
    /// Reads it.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn read(prefix: &Path, variable: &str) -> Result<Index> {
        let mut path = prefix.as_os_str().to_owned();
        path.push(".index");
        let path = PathBuf::from(path);
        let bytes = path
            .metadata()
            .map_err(|e| Error::io("look at", &path, e))?;
        if bytes.len() > INDEX_BYTES_MAX {
            let what = format!(
                "found {} bytes, the index of a checkpoint has at most {INDEX_BYTES_MAX}",
                bytes.len()
            );
            return Err(Error::corrupt(&path, INDEX_BYTES_MAX, what).into());
        }
        let bytes = std::fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
        let mut header = None;
        let mut tensors = BTreeMap::new();
        let mut others = BTreeSet::new();
        let read = table::each(&bytes, |key, value, at| {
            if key.is_empty() {
                header = Some(Header::read(value).map_err(|what| Damage::new(at, what))?);
                return Ok(());
            }
            let name = String::from_utf8_lossy(key);
            let Some(place) = Place::of(variable, &name) else {
                let other = name.strip_suffix("-values").unwrap_or_default();
                let other = other.split("/part_").next().unwrap_or_default();
                // Slots come behind the variable that they are of.
                let is_slot = others.iter().any(|known: &String| {
                    other
                        .strip_prefix(known.as_str())
                        .is_some_and(|rest| rest.starts_with('/'))
                });
                if !other.is_empty() && !is_slot && others.len() < NAMED_MAX {
                    others.insert(other.to_owned());
                }
                return Ok(());
            };
            let entry =
                Entry::read(value).map_err(|what| Damage::new(at, format!("{name}: {what}")))?;
            let owner = place.owner(variable);
            if tensors.insert(place, (entry, at as u64)).is_some() {
                // As part_1 and part_01.
                let what = format!("{name}: another tensor is of {owner} as well");
                return Err(Damage::new(at, what));
            }
            match tensors.len() {
                0..=TENSORS_MAX => Ok(()),
                _ => Err(Damage::new(
                    at,
                    format!("more than {TENSORS_MAX} tensors of {variable}"),
                )),
            }
        });
        read.map_err(|damage| Error::corrupt(&path, damage.at, damage.what))?;
        let header = header.ok_or_else(|| {
            let what = "no entry of the empty key, which TensorFlow writes first";
            Error::corrupt(&path, 0, what)
        })?;
        Ok(Index {
            path,
            header,
            tensors,
            others,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The partitions of the variable, all of which must be there.
    ///
    /// # Errors
    /// `Usage` where none is; `Corrupt`.
    pub fn parts(&self, variable: &str) -> Result<Vec<Option<u32>>> {
        let is_own = |place: &&Place| place.slot.is_empty() && place.what == KEYS;
        let parts = self.tensors.keys().filter(is_own).map(|place| place.part);
        let parts: Vec<Option<u32>> = parts.collect();
        let shown = self.path.display();
        match parts.as_slice() {
            [] => {
                let others = &self.others;
                let why = match self
                    .tensors
                    .keys()
                    .any(|place| place.what.starts_with("sparse_incr"))
                {
                    true => String::from("an incremental checkpoint; import the full one"),
                    false => {
                        format!("among those that are there: {others:?}; name one by --variable")
                    }
                };
                Err(Usage(format!("{shown}: no EmbeddingVariable {variable:?}: {why}")).into())
            }
            [None] => Ok(parts),
            [None, ..] => {
                let what = format!("{variable} is there as a whole and in partitions as well");
                Err(Error::corrupt(&self.path, 0, what).into())
            }
            numbered => match (0..)
                .zip(numbered)
                .find(|(number, part)| Some(*number) != **part)
            {
                None => Ok(parts),
                Some((number, _)) => {
                    let what =
                        format!("{variable}/part_{number} is not there, later partitions are");
                    Err(Error::corrupt(&self.path, 0, what).into())
                }
            },
        }
    }
}

impl Index {
    /// Refuses a variable whose rows are in memory and on SSD: the tensors have only those in memory.
    ///
    /// # Errors
    /// `Usage` with the file that DeepRec writes for the others; `Io`.
    pub fn refuse_ssd(&self, prefix: &Path, variable: &str) -> Result<()> {
        let (Some(folder), Some(name)) = (self.path.parent(), prefix.file_name()) else {
            return Ok(());
        };
        let start = format!("{}-", name.to_string_lossy());
        let mut owners: Vec<String> = self.tensors.keys().map(|p| p.owner(variable)).collect();
        owners
            .iter_mut()
            .for_each(|owner| *owner = owner.replace('/', "_"));
        owners.sort_unstable();
        let folder = match folder.as_os_str().is_empty() {
            true => Path::new("."),
            false => folder,
        };
        for entry in std::fs::read_dir(folder).map_err(|e| Error::io("list", folder, e))? {
            let entry = entry.map_err(|e| Error::io("list", folder, e))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(rest) = name.strip_prefix(&start) else {
                continue;
            };
            let owner = SSD_ENDS.iter().find_map(|end| rest.strip_suffix(end));
            if owner.is_some_and(|owner| owners.binary_search_by(|o| o.as_str().cmp(owner)).is_ok())
            {
                return Err(Usage(format!(
                    "{}: rows of {variable} are on SSD, in files of DeepRec's own format; restore the checkpoint by \
                     DeepRec into a variable whose storage is DRAM alone, save it, and import that",
                    entry.path().display()
                ))
                .into());
            }
        }
        Ok(())
    }
}

/// The tensors of a variable, in data files that are opened once.
pub struct Tensors<'a> {
    index: &'a Index,
    prefix: &'a Path,
    variable: &'a str,
    open: BTreeMap<u64, (PathBuf, Arc<File>, u64)>,
    /// What is there and is not taken.
    pub noticed: Noticed,
}

impl<'a> Tensors<'a> {
    /// No file is open yet.
    pub fn new(index: &'a Index, prefix: &'a Path, variable: &'a str) -> Tensors<'a> {
        Tensors {
            index,
            prefix,
            variable,
            open: BTreeMap::new(),
            noticed: Noticed::default(),
        }
    }

    /// One partition.
    ///
    /// # Errors
    /// `Usage` where it is of a type that can't be taken; `Corrupt`, `Io`.
    pub fn part(&mut self, part: Option<u32>, weights_only: bool) -> Result<Found> {
        let place = |slot: &str, what: &str| Place {
            part,
            slot: slot.to_owned(),
            what: what.to_owned(),
        };
        let keys = self.needed(&place("", KEYS), INT64, 1)?;
        let weights = self.needed(&place("", VALUES), FLOAT, 2)?;
        let rows = keys.told.map_or(0, |told| told.0);
        self.as_long(&weights, rows)?;
        let mut found = Found {
            folder: self.index.path.clone(),
            format: Format::Deeprec,
            keys,
            weights,
            slots: None,
            others: Vec::new(),
            twins: Vec::new(),
        };
        if let Some((entry, _)) = self.index.tensors.get(&place("", "keys_filtered")) {
            let count = entry.shape.first().copied().unwrap_or(0);
            self.noticed.lose("filtered keys", count);
        }
        if weights_only {
            return Ok(found);
        }
        for slot in self.slots(part) {
            if !is_state(&slot) {
                self.noticed.lose(&format!("slot {slot}"), rows);
                continue;
            }
            let values = self.needed(&place(&slot, VALUES), FLOAT, 2)?;
            let keys = self.needed(&place(&slot, KEYS), INT64, 1)?;
            for tensor in [&values, &keys] {
                self.as_long(tensor, rows)?;
            }
            found.twins.push(keys);
            found.others.push((slot, values));
        }
        for (name, column) in [(FREQS, "count"), (VERSIONS, "last_step")] {
            let Some(mut tensor) = self.tensor(&place("", name), INT64, 1)? else {
                continue;
            };
            // A variable that does not keep it has none, instead of N.
            if rows > 0 && tensor.bytes == 0 {
                continue;
            }
            self.as_long(&tensor, rows)?;
            tensor.told = Some((rows, 2));
            found.others.push((column.to_owned(), tensor));
        }
        Ok(found)
    }

    /// Names of the slots of a partition that have keys or values.
    fn slots(&self, part: Option<u32>) -> Vec<String> {
        let first = Place {
            part,
            slot: String::new(),
            what: String::new(),
        };
        // Those of a partition stand together, and those of a slot.
        let own = self.index.tensors.range(first..);
        let own = own.map(|(place, _)| place);
        let own = own.take_while(|place| place.part == part);
        let slots = own.filter(|place| !place.slot.is_empty() && is_rows(&place.what));
        let mut slots: Vec<String> = slots.map(|place| place.slot.clone()).collect();
        slots.dedup();
        slots
    }

    /// Refuses tensors of partitions that have no keys, once all that have keys were looked at: nothing vanishes.
    ///
    /// # Errors
    /// `Corrupt` with the tensor.
    pub fn finish(mut self, parts: &[Option<u32>], weights_only: bool) -> Result<Noticed> {
        for (place, (entry, said_at)) in &self.index.tensors {
            if parts.binary_search(&place.part).is_ok() {
                continue;
            }
            let is_own = place.slot.is_empty() || is_state(&place.slot);
            let is_other = place.part.is_none() && !is_own;
            match is_other {
                false if is_rows(&place.what) || matches!(&*place.what, FREQS | VERSIONS) => {
                    let own = Place {
                        slot: String::new(),
                        what: KEYS.to_owned(),
                        ..place.clone()
                    };
                    let what = format!("{} is there, {} is not", self.name(place), self.name(&own));
                    return Err(Error::corrupt(&self.index.path, *said_at, what).into());
                }
                true if self.tells_of_slot(place) && !weights_only => {
                    // A variable whose name begins as that of a partitioned one.
                    let rows = entry.shape.first().copied().unwrap_or(0);
                    self.noticed.lose(&format!("slot {}", place.slot), rows);
                }
                _ => {}
            }
        }
        Ok(self.noticed)
    }

    /// Whether a slot is counted by this tensor: its values, or its keys where it has no values.
    fn tells_of_slot(&self, place: &Place) -> bool {
        let values = Place {
            what: VALUES.to_owned(),
            ..place.clone()
        };
        let has_values = || self.index.tensors.contains_key(&values);
        place.what == VALUES || place.what == KEYS && !has_values()
    }

    fn name(&self, place: &Place) -> String {
        format!("{}-{}", place.owner(self.variable), place.what)
    }

    fn needed(&mut self, place: &Place, dtype: u64, axes: usize) -> Result<FileFound> {
        let found = self.tensor(place, dtype, axes)?;
        found.ok_or_else(|| {
            let what = format!("{} is not there", self.name(place));
            Error::corrupt(&self.index.path, 0, what).into()
        })
    }

    /// A tensor must have so many rows.
    fn as_long(&self, tensor: &FileFound, rows: u64) -> Result<()> {
        match (tensor.told, &tensor.tensor) {
            (Some((found, _)), Some(named)) if found != rows => {
                let name = &named.name;
                let what = format!(
                    "{name}: found {found} rows, expected {rows}, as many as there are keys"
                );
                Err(Error::corrupt(&self.index.path, named.said_at, what).into())
            }
            _ => Ok(()),
        }
    }

    /// Where a tensor lies, if it is there.
    fn tensor(&mut self, place: &Place, dtype: u64, axes: usize) -> Result<Option<FileFound>> {
        let index = self.index;
        let Some((entry, said_at)) = index.tensors.get(place) else {
            return Ok(None);
        };
        let name = self.name(place);
        if entry.dtype != dtype {
            let expected = if dtype == FLOAT { "float32" } else { "int64" };
            let (path, found) = (index.path.display(), entry.dtype);
            let why = format!(
                "{path}: {name} is of type {found} of TensorFlow; only {expected} can be taken"
            );
            return Err(Usage(why).into());
        }
        let corrupt =
            |what: String| Error::corrupt(&index.path, *said_at, format!("{name}: {what}"));
        let element = if dtype == FLOAT { 4 } else { 8 };
        let bytes = entry
            .shape
            .iter()
            .try_fold(element, |all: u64, axis| all.checked_mul(*axis));
        if entry.shape.len() != axes || bytes != Some(entry.size) {
            let what = format!(
                "found a shape {:?} of {} bytes, expected {axes} axes of elements of {element} bytes",
                entry.shape, entry.size
            );
            return Err(corrupt(what).into());
        }
        if entry.shard >= index.header.shards {
            let (shard, shards) = (entry.shard, index.header.shards);
            return Err(corrupt(format!("in data file {shard} of {shards}")).into());
        }
        let (path, file, length) = self.data(entry.shard)?;
        let end = entry.offset.checked_add(entry.size);
        if end.is_none_or(|end| end > length) {
            let what = format!(
                "the file ends here; {name} has {} bytes from byte {}: the file is cut off, or of another checkpoint",
                entry.size, entry.offset
            );
            return Err(Error::corrupt(&path, length, what).into());
        }
        let width = entry.shape.get(1).copied().unwrap_or(1);
        Ok(Some(FileFound {
            path,
            file,
            head_bytes: entry.offset,
            bytes: entry.size,
            told: Some((entry.shape.first().copied().unwrap_or(0), width)),
            tensor: Some(Tensor {
                name,
                crc: entry.crc,
                said_at: *said_at,
            }),
        }))
    }

    /// A data file, and its length.
    fn data(&mut self, shard: u64) -> Result<(PathBuf, Arc<File>, u64)> {
        if let Some(open) = self.open.get(&shard) {
            return Ok(open.clone());
        }
        let name = data_name("", shard, self.index.header.shards);
        let mut path = self.prefix.as_os_str().to_owned();
        path.push(name);
        let path = PathBuf::from(path);
        let file = File::open(&path).map_err(|e| Error::io("open", &path, e))?;
        let metadata = file
            .metadata()
            .map_err(|e| Error::io("look at", &path, e))?;
        let open = (path, Arc::new(file), metadata.len());
        self.open.insert(shard, open.clone());
        Ok(open)
    }
}

/// Whether a tensor has something of each row.
fn is_rows(what: &str) -> bool {
    matches!(what, KEYS | VALUES)
}

/// Whether a slot is state of an optimizer that hps has.
fn is_state(slot: &str) -> bool {
    let mut slots = STATE.iter().flat_map(|(_, slots)| *slots);
    slots.any(|known| known.name == slot)
}
