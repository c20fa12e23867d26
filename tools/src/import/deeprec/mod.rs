//! How do the partitions of an EmbeddingVariable of DeepRec become rows?
//!
//! - Each partition is a model of its own: keys, values, and what belongs to them. Rows are numbered through all of them.

mod index;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use hps::{Error, Optimizer, RowMetadata, TableDescriptor};

use super::Args;
use super::fixed::Fixed;
use super::found::Found;
use super::shape::Shape;
use super::source::{Chunk, Folder, Noticed, Place, Reader, Source};
use crate::cli::Interrupt;
use crate::models::deeprec::{STATE, prefix_of};
use index::{Index, Tensors};

/// A variable that was looked at.
pub struct Variable {
    /// One of its partitions, which has rows if any has: it says what the table is like.
    first: Found,
    /// Those of the others that have rows.
    others: Vec<Found>,
    /// What is there and is not taken.
    noticed: Noticed,
}

impl Variable {
    /// Looks at all partitions of a variable.
    ///
    /// # Errors
    /// `Usage` where it is not there, or of a type that can't be taken; `Corrupt`, `Io`.
    pub fn look(args: &Args) -> Result<Variable> {
        let variable = args.variable.as_deref().unwrap_or(args.table());
        let prefix = prefix_of(&args.folder)?;
        let index = Index::read(&prefix, variable)?;
        let mut tensors = Tensors::new(&index, &prefix, variable);
        let mut found = Vec::new();
        let parts = index.parts(variable)?;
        index.refuse_ssd(&prefix, variable)?;
        for part in &parts {
            found.push(tensors.part(*part, args.weights_only)?);
        }
        let noticed = tensors.finish(&parts, args.weights_only)?;
        let has_rows = |found: &Found| found.keys.bytes > 0;
        let first = found.iter().position(has_rows).unwrap_or(0);
        if found.is_empty() {
            bail!("{}: no partition of {variable}", prefix.display());
        }
        let first = found.remove(first);
        found.retain(has_rows);
        let names = |found: &Found| -> Vec<String> {
            let all = found.others.iter().filter(|(_, file)| file.bytes > 0);
            all.map(|(name, _)| name.clone()).collect()
        };
        if let Some(other) = found.iter().find(|other| names(other) != names(&first)) {
            let what = format!(
                "one partition has {:?}, another {:?} beside keys and values; --weights-only leaves all of that out",
                names(&first),
                names(other)
            );
            return Err(Error::corrupt(index.path(), 0, what).into());
        }
        Ok(Variable {
            first,
            others: found,
            noticed,
        })
    }

    fn parts(&self) -> impl Iterator<Item = &Found> {
        [&self.first].into_iter().chain(&self.others)
    }
}

impl Folder for Variable {
    fn path(&self) -> &Path {
        self.first.path()
    }

    fn state(&self) -> Vec<&str> {
        self.first.state()
    }

    fn metadata(&self) -> RowMetadata {
        self.first.metadata()
    }

    fn optimizer(&self) -> Option<Optimizer> {
        self.first.optimizer()
    }

    fn needed(&self, optimizer: Optimizer) -> Result<Vec<&'static str>> {
        self.first.needed(optimizer)
    }

    fn missing(&self, name: &str) -> (PathBuf, String) {
        self.first.missing(name)
    }

    fn shape(&self, args: &Args, wanted: Option<usize>, optimizer: Optimizer) -> Result<Shape> {
        let mut all = self.first.shape(args, wanted, optimizer)?;
        for part in &self.others {
            all.rows += part.shape(args, Some(all.dim), optimizer)?.rows;
        }
        Ok(all)
    }

    fn source<'a>(
        &'a self,
        args: &Args,
        _: &Shape,
        table: &TableDescriptor,
    ) -> Result<Box<dyn Source + 'a>> {
        let mut source = Partitions {
            parts: Vec::new(),
            noticed: &self.noticed,
        };
        let mut rows = 0;
        for part in self.parts() {
            // The shape of each was compared with what the index says.
            let count = part.keys.told.map_or(0, |told| told.0);
            source.parts.push((rows, part.fixed(args, count, table)?));
            rows += count;
        }
        Ok(Box::new(source))
    }
}

/// The rows of all partitions.
struct Partitions<'a> {
    /// Each with the number of its first row. There is one at least.
    parts: Vec<(u64, Fixed<'a>)>,
    noticed: &'a Noticed,
}

impl<'a> Partitions<'a> {
    /// One that is as all are.
    fn any(&self) -> &Fixed<'a> {
        &self.parts[0].1
    }
}

impl Source for Partitions<'_> {
    fn rows(&self) -> Option<u64> {
        self.parts.iter().map(|(_, part)| part.rows()).sum()
    }

    fn bytes(&self) -> u64 {
        self.parts.iter().map(|(_, part)| part.bytes()).sum()
    }

    fn row_f32s(&self) -> usize {
        self.any().row_f32s()
    }

    fn numbers(&self) -> usize {
        self.any().numbers()
    }

    fn is_whole(&self) -> bool {
        self.any().is_whole()
    }

    fn has_state(&self) -> bool {
        self.any().has_state()
    }

    fn reader(&self) -> Box<dyn Reader + '_> {
        let readers = self.parts.iter().rev();
        let readers = readers.map(|(first, part)| (*first, part.reader()));
        Box::new(PartitionReader {
            readers: readers.collect(),
        })
    }

    fn keys(&self, interrupt: &Interrupt, see: &mut dyn FnMut(u64, u64)) -> Result<()> {
        for (first, part) in &self.parts {
            part.keys(interrupt, &mut |row, key| see(first + row, key))?;
        }
        Ok(())
    }

    fn place(&self, row: u64, word: Option<usize>) -> Place {
        let behind = self.parts.partition_point(|(first, _)| *first <= row);
        let (first, part) = &self.parts[behind.saturating_sub(1)];
        part.place(row - first, word)
    }

    fn finish(&self) -> Result<Noticed> {
        let mut all = self.noticed.clone();
        for (_, part) in &self.parts {
            for (name, count) in part.finish()?.lost {
                all.lose(&name, count);
            }
        }
        Ok(all)
    }
}

/// Reads partitions, one after another.
struct PartitionReader<'a> {
    /// What is left of them, the next one last, each with the number of its first row.
    readers: Vec<(u64, Box<dyn Reader + 'a>)>,
}

impl Reader for PartitionReader<'_> {
    fn next(&mut self, chunk: &mut Chunk) -> Result<bool> {
        while let Some((first, reader)) = self.readers.last_mut() {
            if reader.next(chunk)? {
                chunk.first += *first;
                return Ok(true);
            }
            self.readers.pop();
        }
        Ok(false)
    }
}

/// The optimizer whose slots these are.
#[must_use]
pub fn optimizer_of(state: &[&str]) -> Option<hps::Optimizer> {
    let of = |(_, slots): &&(hps::Optimizer, &[crate::models::deeprec::Slot])| {
        slots.iter().any(|slot| state.contains(&slot.name))
    };
    let mut found = STATE.iter().filter(of).map(|(optimizer, _)| *optimizer);
    let first = found.next();
    first.filter(|_| found.next().is_none())
}
