//! How do the rows of a table stand in the files of other systems?
//!
//! - A [`Format`] is a list of files, each with some words of every row, or its key, at a fixed stride behind a
//!   header of fixed length: [`FileOf`]. `export` and `import` know little more of it than that.
//! - Parquet and Paddle's text have rows in other ways: `parquet`, `paddle`. So has a delta, which is the store's.
//! - Little-endian throughout. Words are moved as bits, but where [`Change`] says otherwise.

pub mod columns;
pub mod crew;
pub mod deeprec;
pub mod delta;
pub mod hugectr;
pub mod npy;
pub mod paddle;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod sums;

use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;
use hps::{Dtype, Optimizer, TableDescriptor};

use crate::cli::Usage;
use columns::columns;

/// Which way to another format is open.
pub const CONVENTIONAL: &str = "read it with a script of your own, write key and emb_vector (or keys.npy and \
                                weights.npy), and import these";

/// What an export makes, and an import takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Exchange {
    /// HugeCTR's sparse model folder: key, emb_vector, slot_id, optimizer state
    Hugectr,
    /// NumPy arrays: keys.npy, weights.npy, and a file for each column of state and metadata
    Npy,
    /// Parquet files of keys and lists of weights, and columns of state and metadata (a build with --features parquet)
    Parquet,
    /// An EmbeddingVariable of DeepRec in a checkpoint of TensorFlow: keys, values, optimizer slots, freqs, versions
    Deeprec,
    /// The text of a sparse table of Paddle's parameter server
    PaddleText,
    /// All tables, with all that hps keeps of them: whole, or what changed since a delta or checkpoint before
    Delta,
}

impl Exchange {
    /// Those that have the rows of one table: all but a delta, which has all of a store.
    pub const OF_A_TABLE: [Exchange; 5] = [
        Exchange::Hugectr,
        Exchange::Npy,
        Exchange::Parquet,
        Exchange::Deeprec,
        Exchange::PaddleText,
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Exchange::Hugectr => "hugectr",
            Exchange::Npy => "npy",
            Exchange::Parquet => "parquet",
            Exchange::Deeprec => "deeprec",
            Exchange::PaddleText => "paddle-text",
            Exchange::Delta => "delta",
        }
    }
}

/// A format that has a file for each column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// HugeCTR's sparse model folder.
    Hugectr,
    /// NumPy arrays.
    Npy,
    /// A checkpoint of DeepRec.
    Deeprec,
}

/// An optimizer, by its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Rule {
    /// No state
    Sgd,
    /// MomentumSGD of HugeCTR
    Momentum,
    /// Nesterov
    Nesterov,
    /// AdaGrad, an accumulator for each weight
    Adagrad,
    /// AdaGrad with one accumulator a row
    RowwiseAdagrad,
    /// Adam with a step count for each row
    Adam,
    /// FTRL-Proximal
    Ftrl,
}

impl Rule {
    /// As the library has it.
    #[must_use]
    pub fn optimizer(self) -> Optimizer {
        match self {
            Rule::Sgd => Optimizer::Sgd,
            Rule::Momentum => Optimizer::Momentum,
            Rule::Nesterov => Optimizer::Nesterov,
            Rule::Adagrad => Optimizer::Adagrad,
            Rule::RowwiseAdagrad => Optimizer::RowwiseAdagrad,
            Rule::Adam => Optimizer::Adam,
            Rule::Ftrl => Optimizer::Ftrl,
        }
    }
}

/// How a number in a file differs from the one in the row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// Not at all: the bits are moved.
    None,
    /// It is the row's times this, rounded to f32; and the row's is the file's divided by it.
    Times(f32),
    /// It is the row's u32 as an i64; of a file, what no u32 is becomes the nearest that is one.
    Long,
}

impl Change {
    /// Bytes of a number in the file.
    #[must_use]
    pub fn word_bytes(self) -> usize {
        match self {
            Change::None | Change::Times(_) => 4,
            Change::Long => 8,
        }
    }
}

/// What of a row stands in a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Content {
    /// The key, u64.
    Key,
    /// The slot, u64: this one, or else the upper half of the key.
    Slot(Option<u64>),
    /// Words of the row.
    Words {
        /// The first.
        begin: usize,
        /// How many.
        width: usize,
        /// How they differ.
        change: Change,
        /// Whether they are u32s; else f32s.
        is_integer: bool,
    },
}

impl Content {
    /// Bytes of it for one row.
    #[must_use]
    pub fn row_bytes(self) -> usize {
        match self {
            Content::Key | Content::Slot(_) => 8,
            Content::Words { width, change, .. } => width * change.word_bytes(),
        }
    }
}

/// A file of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct FileOf {
    /// Its name in the folder.
    pub name: String,
    /// Bytes before the first row.
    pub head_bytes: usize,
    /// What stands there of each row.
    pub content: Content,
    /// The type of its elements, as NumPy writes it.
    pub descr: &'static str,
}

impl FileOf {
    /// The file of a format that holds this.
    #[must_use]
    pub fn new(format: Format, name: &str, content: Content) -> FileOf {
        let descr = match content {
            Content::Key | Content::Slot(_) => "<u8",
            Content::Words {
                is_integer: true, ..
            } => "<u4",
            Content::Words { .. } => "<f4",
        };
        let (name, head_bytes) = match format {
            Format::Hugectr => (name.to_owned(), 0),
            Format::Npy => (format!("{name}.npy"), npy::HEAD_BYTES),
            Format::Deeprec => (name.to_owned(), 0),
        };
        FileOf {
            name,
            head_bytes,
            content,
            descr,
        }
    }

    /// Its header, once the number of rows is known.
    #[must_use]
    pub fn head(&self, rows: u64) -> Vec<u8> {
        match (self.head_bytes, self.content) {
            (0, _) => Vec::new(),
            (
                _,
                Content::Words {
                    begin: 0, width, ..
                },
            ) => npy::write(self.descr, &[rows, width as u64]),
            (_, Content::Words { width, .. }) if width > 1 => {
                npy::write(self.descr, &[rows, width as u64])
            }
            _ => npy::write(self.descr, &[rows]),
        }
    }
}

/// What an export may choose.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choices {
    /// The learning rate that momentum is multiplied with.
    pub lr: Option<f32>,
    /// Whether there is a file of slots, and whether it has this slot for all rows.
    pub slots: Option<Option<u64>>,
    /// Keys and weights alone.
    pub weights_only: bool,
}

/// The files of a table in a format, and what of its rows has no place there.
///
/// # Errors
/// `Usage` where a choice is missing.
pub fn files_of(
    format: Format,
    table: &TableDescriptor,
    choices: &Choices,
) -> Result<(Vec<FileOf>, Vec<String>)> {
    let words = |begin, width, change, is_integer| Content::Words {
        begin,
        width,
        change,
        is_integer,
    };
    let weights = words(0, table.dim, Change::None, false);
    let (key, weights_name) = match format {
        Format::Hugectr => (hugectr::KEY, hugectr::WEIGHTS),
        Format::Npy => ("keys", "weights"),
        Format::Deeprec => (deeprec::KEYS, deeprec::VALUES),
    };
    let mut files = vec![
        FileOf::new(format, key, Content::Key),
        FileOf::new(format, weights_name, weights),
    ];
    if let Some(slot) = choices.slots {
        files.push(FileOf::new(format, hugectr::SLOT, Content::Slot(slot)));
    }
    let mut lost = Vec::new();
    for column in columns(table) {
        let file = match format {
            _ if choices.weights_only => None,
            Format::Npy => Some((column.name, Change::None)),
            Format::Deeprec => {
                let name = deeprec::tensor_of(table.optimizer, &column);
                let change = if column.is_integer {
                    Change::Long
                } else {
                    Change::None
                };
                name.map(|name| (name, change))
            }
            Format::Hugectr => {
                let files = hugectr::state_files(table.optimizer).iter();
                let mut files = files.filter(|_| !column.is_integer);
                let file = files.find(|file| file.column == column.name);
                file.map(|file| Ok::<_, anyhow::Error>((file.name, change_of(file, choices.lr)?)))
                    .transpose()?
            }
        };
        match file {
            Some((name, change)) => {
                let content = words(column.begin, column.width, change, column.is_integer);
                files.push(FileOf::new(format, name, content));
            }
            None => lost.push(column.name.to_owned()),
        }
    }
    if format == Format::Deeprec {
        deeprec::name_shards(&mut files);
    }
    Ok((files, lost))
}

/// How a state file of HugeCTR's differs from our column.
///
/// # Errors
/// `Usage` without the learning rate that it needs.
pub fn change_of(file: &hugectr::StateFile, lr: Option<f32>) -> Result<Change> {
    match (file.is_scaled, lr) {
        (false, _) => Ok(Change::None),
        (true, Some(lr)) => Ok(Change::Times(-lr)),
        (true, None) => Err(Usage(format!(
            "{} holds -lr times the momentum of hps: name the learning rate by --lr, or leave it out by \
             --weights-only",
            file.name
        ))
        .into()),
    }
}

/// Weights of 2 bytes have no place in these formats.
///
/// # Errors
/// `Usage`.
pub fn check_weights(table: &TableDescriptor) -> Result<()> {
    match table.dtype {
        Dtype::F32 => Ok(()),
        other => Err(Usage(format!(
            "table {}: its weights are {}; only f32 can be moved",
            table.name,
            other.name()
        ))
        .into()),
    }
}

/// A flag, whether it was given, and the formats that it is of.
pub type Flag = (&'static str, bool, &'static [Exchange]);

/// Refuses flags of other formats.
///
/// # Errors
/// `Usage` with the first one.
pub fn refuse_flags(format: Exchange, flags: &[Flag]) -> Result<()> {
    let wrong = flags
        .iter()
        .find(|(_, is_given, of)| *is_given && !of.contains(&format));
    let Some((flag, _, of)) = wrong else {
        return Ok(());
    };
    if format == Exchange::Delta {
        let why = format!("{flag} is not of --format delta, which has all of a store");
        return Err(Usage(why).into());
    }
    let mut names: Vec<&str> = of.iter().map(|format| format.name()).collect();
    let last = names.pop().unwrap_or_default();
    let of = match names.as_slice() {
        [] => last.to_owned(),
        others => format!("{} and {last}", others.join(", ")),
    };
    Err(Usage(format!(
        "{flag} is of --format {of}, not of {}",
        format.name()
    ))
    .into())
}

/// Refuses what no file system has mounted.
///
/// # Errors
/// `Usage`.
pub fn refuse_remote(path: &Path) -> Result<()> {
    let text = path.to_string_lossy();
    for scheme in ["s3", "hdfs"] {
        if text.starts_with(&format!("{scheme}://")) {
            return Err(Usage(format!(
                "{text}: {scheme}:// is planned, and not there yet; mount it as a file system, or copy it"
            ))
            .into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(
        format: Format,
        optimizer: Optimizer,
        choices: &Choices,
    ) -> (Vec<String>, Vec<String>) {
        let table = TableDescriptor::new("t", 4).optimizer(optimizer);
        let (files, lost) = files_of(format, &table, choices).unwrap();
        (files.into_iter().map(|f| f.name).collect(), lost)
    }

    #[test]
    fn files_of_adam_are_named_and_its_step_count_is_lost_in_hugectr_alone() {
        let none = Choices::default();
        let (files, lost) = names(Format::Hugectr, Optimizer::Adam, &none);
        assert_eq!(files, ["key", "emb_vector", "Adam.m", "Adam.v"]);
        assert_eq!(lost, ["t"]);
        let (files, lost) = names(Format::Npy, Optimizer::Adam, &none);
        let npy = ["keys.npy", "weights.npy", "m.npy", "v.npy", "t.npy"];
        assert_eq!((&files[..], lost.len()), (&npy.map(String::from)[..], 0));
        let bare = Choices {
            weights_only: true,
            ..none
        };
        let (files, lost) = names(Format::Hugectr, Optimizer::Adam, &bare);
        assert_eq!((files.len(), lost.join(" ")), (2, String::from("m v t")));
    }

    #[test]
    fn momentum_asks_for_the_learning_rate() {
        let table = TableDescriptor::new("t", 4).optimizer(Optimizer::Momentum);
        let asked = files_of(Format::Hugectr, &table, &Choices::default());
        assert!(asked.unwrap_err().to_string().contains("--lr"));
        let known = Choices {
            lr: Some(0.5),
            ..Choices::default()
        };
        let (files, _) = files_of(Format::Hugectr, &table, &known).unwrap();
        let Content::Words { change, .. } = files[2].content else {
            panic!("{files:?}")
        };
        assert_eq!(change, Change::Times(-0.5));
    }

    #[test]
    fn what_no_file_system_has_is_refused_by_name() {
        for path in ["s3://bucket/model", "hdfs://node/model"] {
            let why = refuse_remote(Path::new(path)).unwrap_err().to_string();
            assert!(why.starts_with(path) && why.contains("planned"), "{why}");
        }
        assert!(refuse_remote(Path::new("s3/model")).is_ok());
    }
}
