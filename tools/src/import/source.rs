//! What must a folder tell and give, whatever its format, for its rows to be put?
//!
//! - A [`Folder`] has been looked at: it tells its columns and its shape, and nothing has been put.
//! - A [`Source`] gives rows to several threads, each with a [`Reader`] of its own; every row comes once.
//! - Numbers of rows rise through the whole folder; those of rows that are read together follow one another. A number
//!   says where a row stands: [`Place`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use hps::{Error, Optimizer, RowMetadata, TableDescriptor};

use super::Args;
use super::shape::Shape;
use crate::cli::Interrupt;

/// A folder that was looked at.
pub trait Folder {
    /// Where it is.
    fn path(&self) -> &Path;

    /// The names of its state, as the format has them; metadata left out.
    fn state(&self) -> Vec<&str>;

    /// The metadata that it has.
    fn metadata(&self) -> RowMetadata;

    /// The optimizer whose state this is; `None` where several have the same, or there is none.
    fn optimizer(&self) -> Option<Optimizer>;

    /// The names of state that an optimizer needs in this format.
    ///
    /// # Errors
    /// `Usage` where the format has no place for it.
    fn needed(&self, optimizer: Optimizer) -> Result<Vec<&'static str>>;

    /// What is not there where this name is missing: its path, and what that path is.
    fn missing(&self, name: &str) -> (PathBuf, String);

    /// Whether there are slots of localized embeddings.
    fn has_slots(&self) -> bool {
        false
    }

    /// How many rows of which dim there are; `wanted`: the dim that the table has or shall have.
    ///
    /// # Errors
    /// `Corrupt` naming the file; `Usage` where all of the folder is of another dim.
    fn shape(&self, args: &Args, wanted: Option<usize>, optimizer: Optimizer) -> Result<Shape>;

    /// Its rows, as those of `table`.
    ///
    /// # Errors
    /// `Usage` where a flag is missing, or the table lacks what the folder has.
    fn source<'a>(
        &'a self,
        args: &Args,
        shape: &Shape,
        table: &TableDescriptor,
    ) -> Result<Box<dyn Source + 'a>>;
}

/// The rows of a folder.
pub trait Source: Sync {
    /// How many there are; `None` where only reading tells.
    fn rows(&self) -> Option<u64>;

    /// Bytes that all of them have in the files, of columns before they are compressed.
    fn bytes(&self) -> u64;

    /// Words of a row that is put.
    fn row_f32s(&self) -> usize;

    /// Words at its beginning that are f32s; behind them are u32s, of which any bits are good.
    fn numbers(&self) -> usize;

    /// Whether rows are whole; else weights.
    fn is_whole(&self) -> bool;

    /// Whether they have the state that the folder has; else that of keys never pushed.
    fn has_state(&self) -> bool {
        self.is_whole()
    }

    /// What one thread reads with.
    fn reader(&self) -> Box<dyn Reader + '_>;

    /// Gives the number and the key of every row.
    ///
    /// # Errors
    /// `Corrupt`, `Io`; `Cancelled`.
    fn keys(&self, interrupt: &Interrupt, see: &mut dyn FnMut(u64, u64)) -> Result<()>;

    /// Where the key of a row stands, or a word of it.
    fn place(&self, row: u64, word: Option<usize>) -> Place;

    /// Checks what only all rows together tell, once they were read: what was noticed of them.
    ///
    /// # Errors
    /// `Corrupt`.
    fn finish(&self) -> Result<Noticed> {
        Ok(Noticed::default())
    }
}

/// What was noticed of rows, beside what was put.
#[derive(Clone, Debug, Default)]
pub struct Noticed {
    /// What the folder has and the table does not take, and how many rows or keys have it.
    pub lost: BTreeMap<String, u64>,
    /// What was rounded, or was not there, in the text of Paddle.
    pub text: Option<Seen>,
}

impl Noticed {
    /// So many rows or keys have this, which is not taken.
    pub fn lose(&mut self, name: &str, count: u64) {
        if count > 0 {
            *self.lost.entry(name.to_owned()).or_default() += count;
        }
    }
}

/// Lines of text whose numbers are not all as they are in rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Those without the embedx part.
    pub without_embedx: u64,
    /// Those of which show or click were no whole numbers.
    pub rounded: u64,
}

/// Reads rows that no other reader has.
pub trait Reader {
    /// Reads the next rows; `false` when none are left.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    fn next(&mut self, chunk: &mut Chunk) -> Result<bool>;
}

/// Rows that were read.
#[derive(Debug, Default)]
pub struct Chunk {
    /// The number of the first; the others follow it.
    pub first: u64,
    /// Their keys.
    pub keys: Vec<u64>,
    /// Their words, row after row.
    pub rows: Vec<f32>,
    /// Whether each number was seen to be finite.
    pub is_finite: bool,
    /// Bytes that were read for them, as [`Source::bytes`] has them.
    pub bytes: u64,
}

/// Where something stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub path: PathBuf,
    /// The byte.
    pub offset: u64,
    /// The row, as the format counts them.
    pub name: String,
}

impl Place {
    /// What is wrong there.
    #[must_use]
    pub fn corrupt(&self, what: String) -> anyhow::Error {
        Error::corrupt(&self.path, self.offset, what).into()
    }
}

/// Whether no value is a NaN or an infinity.
#[must_use]
pub fn is_finite(values: &[f32]) -> bool {
    // The exponent of what is not finite is all ones.
    let finite = values
        .iter()
        .map(|value| value.to_bits() & 0x7f80_0000 != 0x7f80_0000);
    finite.fold(true, |all, one| all & one)
}
