//! How do rows get into Parquet?
//!
//! - Each thread has a file of its own, begun with its first row. It keeps the values of a row group by column, and
//!   writes it when it is full: no row waits for another thread.
//! - Words are moved as bits. Lists have as many elements as the column has words.

use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ::parquet::basic::{Compression as Codec, ZstdLevel};
use ::parquet::column::writer::ColumnWriterImpl;
use ::parquet::data_type::{DataType, FloatType, Int32Type, Int64Type};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::KeyValue;
use ::parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr};
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::parser::parse_message_type;
use ::parquet::schema::types::{ColumnPath, TypePtr};
use anyhow::Result;
use hps::{CheckpointInfo, Error, Row, TableDescriptor};

use super::Args;
use super::args::Compression;
use super::files::Files;
use super::walk::Tour;
use crate::cli::Interrupt;
use crate::models::columns::{Column, columns};
use crate::models::crew::Crew;
use crate::models::parquet::{self, KEY, WEIGHTS};

/// Bytes of the values of a row group, at most; and at least, however little memory there is.
const GROUP_BYTES_MAX: u64 = 64 << 20;
pub const GROUP_BYTES_MIN: u64 = 8 << 20;
/// Memory of a thread beside its row group: pages that are encoded and compressed.
pub const PAGE_BYTES: u64 = 4 << 20;
/// Row groups of a file, at most: the footer, which is in memory, has all of them.
const GROUPS_MAX: usize = 4096;
/// Elements of lists that are given to the library at a time.
const BATCH_VALUES: usize = 8192;

/// The files of a model that is written.
pub struct Parts {
    folder: PathBuf,
    schema: TypePtr,
    /// That of removed keys.
    of_keys: TypePtr,
    properties: WriterPropertiesPtr,
    columns: Vec<What>,
    left_out: Vec<String>,
    row_bytes: usize,
    group_rows: usize,
    next_part: AtomicU32,
    written_bytes: AtomicU64,
    files: Mutex<Vec<(Arc<File>, PathBuf)>>,
}

/// What a column has of a row.
#[derive(Clone, Copy, Debug)]
enum What {
    Key,
    Floats {
        begin: usize,
        width: usize,
        is_list: bool,
    },
    Integer {
        at: usize,
    },
}

impl What {
    fn row_bytes(self) -> usize {
        match self {
            What::Key => 8,
            What::Floats { .. } | What::Integer { .. } => 4 * self.words().len(),
        }
    }

    /// Which words of a row it has: none, where it has the key.
    fn words(self) -> Range<usize> {
        match self {
            What::Key => 0..0,
            What::Floats { begin, width, .. } => begin..begin + width,
            What::Integer { at } => at..at + 1,
        }
    }

    /// How many values each list has.
    fn list(self) -> Option<usize> {
        match self {
            What::Floats { width, is_list, .. } => is_list.then_some(width),
            What::Key | What::Integer { .. } => None,
        }
    }

    /// Room for the values of so many rows.
    fn values(self, rows: usize) -> Values {
        match self {
            What::Key => Values::Keys(Vec::with_capacity(rows)),
            What::Floats { width, .. } => Values::Floats(Vec::with_capacity(rows * width)),
            What::Integer { .. } => Values::Integers(Vec::with_capacity(rows)),
        }
    }
}

impl Parts {
    /// Files that will be made in a folder, each by a thread that has so much memory for row groups.
    ///
    /// # Errors
    /// When the library refuses the schema.
    pub fn new(
        args: &Args,
        table: &TableDescriptor,
        checkpoint: &CheckpointInfo,
        folder: &Path,
        group_bytes: u64,
    ) -> Result<Parts> {
        let behind = columns(table);
        let (behind, left_out) = match args.weights_only {
            false => (behind, Vec::new()),
            true => (Vec::new(), behind),
        };
        let of = |column: &Column| match column.is_integer {
            true => What::Integer { at: column.begin },
            false => What::Floats {
                begin: column.begin,
                width: column.width,
                is_list: parquet::is_list(table.optimizer, column.name),
            },
        };
        let weights = What::Floats {
            begin: 0,
            width: table.dim,
            is_list: true,
        };
        let mut named = vec![(KEY, What::Key), (WEIGHTS, weights)];
        named.extend(behind.iter().map(|column| (column.name, of(column))));
        let row_bytes: usize = named.iter().map(|(_, what)| what.row_bytes()).sum();
        let group_bytes = group_bytes.clamp(GROUP_BYTES_MIN, GROUP_BYTES_MAX);
        let group_bytes = usize::try_from(group_bytes).unwrap_or(usize::MAX);
        Ok(Parts {
            folder: folder.to_path_buf(),
            schema: schema(&named)?,
            of_keys: schema(&named[..1])?,
            properties: Arc::new(properties(args, table, checkpoint)?),
            columns: named.into_iter().map(|(_, what)| what).collect(),
            left_out: left_out.iter().map(|c| c.name.to_owned()).collect(),
            row_bytes,
            group_rows: (group_bytes / row_bytes).max(1),
            next_part: AtomicU32::new(0),
            written_bytes: AtomicU64::new(0),
            files: Mutex::default(),
        })
    }

    /// Begins the next file.
    fn next_part(&self) -> Result<Part> {
        let number = self.next_part.fetch_add(1, Ordering::Relaxed);
        self.begin(&parquet::part(number), &self.schema)
    }

    fn begin(&self, name: &str, schema: &TypePtr) -> Result<Part> {
        let path = self.folder.join(name);
        let file = File::create_new(&path).map_err(|e| Error::io("make", &path, e))?;
        let handle = file.try_clone().map_err(|e| Error::io("open", &path, e))?;
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.push((Arc::new(handle), path.clone()));
        drop(files);
        let (schema, properties) = (Arc::clone(schema), Arc::clone(&self.properties));
        let writer = SerializedFileWriter::new(file, schema, properties);
        Ok(Part {
            writer: writer.map_err(|e| failed(&path, e))?,
            path,
        })
    }

    fn open_files(&self) -> Vec<(Arc<File>, PathBuf)> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.clone()
    }
}

impl Files for Parts {
    fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    fn left_out(&self) -> &[String] {
        &self.left_out
    }

    fn write(&self, tour: &Tour<'_>, crew: &Crew<'_>) -> Result<()> {
        let mut part: Option<Part> = None;
        let mut group = Group::new(self);
        let mut write = |group: &mut Group| {
            let open = match part.take() {
                Some(full) if full.writer.flushed_row_groups().len() == GROUPS_MAX => {
                    full.end()?;
                    None
                }
                open => open,
            };
            let open = match open {
                Some(open) => open,
                None => self.next_part()?,
            };
            let bytes = (group.rows * self.row_bytes) as u64;
            part.insert(open).write(group)?;
            self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
            Ok(())
        };
        tour.each(crew, |row| {
            group.add(row);
            match group.rows == self.group_rows {
                true => write(&mut group),
                false => Ok(()),
            }
        })?;
        if group.rows > 0 {
            write(&mut group)?;
        }
        part.map_or(Ok(()), Part::end)
    }

    fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    fn sync(&self, _: &Interrupt) -> Result<()> {
        for (file, path) in self.open_files() {
            file.sync_data().map_err(|e| Error::io("sync", &path, e))?;
        }
        Ok(())
    }

    fn finish(
        self: Box<Self>,
        removed: Option<&[u64]>,
        _: &Interrupt,
    ) -> Result<Vec<(String, u64)>> {
        if self.next_part.load(Ordering::Relaxed) == 0 {
            self.next_part()?.end()?;
        }
        if let Some(keys) = removed {
            let mut part = self.begin(parquet::REMOVED, &self.of_keys)?;
            let rows = usize::try_from(GROUP_BYTES_MIN / 8).unwrap_or(usize::MAX);
            for keys in keys.chunks(rows) {
                let keys = keys.iter().map(|key| key.cast_signed()).collect();
                part.write_columns(&mut [(What::Key, Values::Keys(keys))])?;
            }
            part.end()?;
        }
        let mut files = Vec::new();
        for (file, path) in self.open_files() {
            let done = file.sync_all().and_then(|()| fs::metadata(&path));
            let bytes = done.map_err(|e| Error::io("sync", &path, e))?.len();
            let name = path.file_name().unwrap_or_default();
            files.push((name.to_string_lossy().into_owned(), bytes));
        }
        files.sort();
        Ok(files)
    }
}

/// The schema of some columns.
fn schema(columns: &[(&str, What)]) -> Result<TypePtr> {
    let column = |(name, what): &(&str, What)| match what {
        What::Key => format!("required int64 {name} (INTEGER(64,false));"),
        What::Integer { .. } => format!("required int32 {name} (INTEGER(32,false));"),
        What::Floats { is_list: false, .. } => format!("required float {name};"),
        What::Floats { is_list: true, .. } => format!(
            "required group {name} (LIST) {{ repeated group list {{ required float element; }} }}"
        ),
    };
    let columns: Vec<String> = columns.iter().map(column).collect();
    let schema = parse_message_type(&format!("message hps {{ {} }}", columns.join(" ")))?;
    Ok(Arc::new(schema))
}

/// How files are written, and what their footers say.
fn properties(
    args: &Args,
    table: &TableDescriptor,
    checkpoint: &CheckpointInfo,
) -> Result<WriterProperties> {
    let codec = match args.compression {
        None | Some(Compression::None) => Codec::UNCOMPRESSED,
        Some(Compression::Snappy) => Codec::SNAPPY,
        Some(Compression::Zstd) => Codec::ZSTD(ZstdLevel::try_new(1)?),
    };
    let mut told = vec![
        (parquet::TABLE, table.name.clone()),
        (parquet::DIM, table.dim.to_string()),
        (parquet::OPTIMIZER, parquet::name_of(table.optimizer)),
        (parquet::CHECKPOINT, checkpoint.id.to_string()),
        (parquet::STEP, checkpoint.step.to_string()),
    ];
    told.extend(args.since.map(|since| (parquet::SINCE, since.to_string())));
    let told = told.into_iter();
    let told = told.map(|(name, value)| KeyValue::new(name.to_owned(), value));
    // Weights repeat too seldom for a dictionary, and least and greatest of them help no reader.
    Ok(WriterProperties::builder()
        .set_compression(codec)
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_column_statistics_enabled(ColumnPath::from(KEY), EnabledStatistics::Chunk)
        .set_key_value_metadata(Some(told.collect()))
        .build())
}

/// A file that is written.
struct Part {
    path: PathBuf,
    writer: SerializedFileWriter<File>,
}

impl Part {
    /// Writes a row group, and empties it.
    fn write(&mut self, group: &mut Group) -> Result<()> {
        group.rows = 0;
        self.write_columns(&mut group.columns)
    }

    fn write_columns(&mut self, columns: &mut [(What, Values)]) -> Result<()> {
        let write = || {
            let mut group = self.writer.next_row_group()?;
            for (what, values) in columns {
                let Some(mut column) = group.next_column()? else {
                    return Err(ParquetError::General(String::from("a column is missing")));
                };
                let list = what.list();
                match values {
                    Values::Keys(values) => put(column.typed::<Int64Type>(), values, list)?,
                    Values::Floats(values) => put(column.typed::<FloatType>(), values, list)?,
                    Values::Integers(values) => put(column.typed::<Int32Type>(), values, list)?,
                }
                column.close()?;
            }
            group.close().map(drop)
        };
        write().map_err(|error| failed(&self.path, error))
    }

    fn end(self) -> Result<()> {
        let done = self.writer.close();
        done.map(drop).map_err(|error| failed(&self.path, error))
    }
}

/// An error of the library, which has nothing to refuse in what it is given.
fn failed(path: &Path, error: ParquetError) -> anyhow::Error {
    match error {
        ParquetError::External(error) => match error.downcast::<std::io::Error>() {
            Ok(error) => Error::io("write", path, *error).into(),
            Err(error) => anyhow::anyhow!("write {}: {error}", path.display()),
        },
        error => anyhow::anyhow!("write {}: {error}", path.display()),
    }
}

/// Writes values, and forgets them; `list`: how many each list has.
fn put<T: DataType>(
    column: &mut ColumnWriterImpl<'_, T>,
    values: &mut Vec<T::T>,
    list: Option<usize>,
) -> Result<(), ParquetError> {
    match list {
        None => {
            column.write_batch(values, None, None)?;
        }
        Some(width) => {
            let count = (BATCH_VALUES / width).max(1) * width;
            let levels = vec![1; count];
            let repeats: Vec<i16> = (0..count).map(|i| i16::from(i % width > 0)).collect();
            for values in values.chunks(count) {
                let count = values.len();
                column.write_batch(values, Some(&levels[..count]), Some(&repeats[..count]))?;
            }
        }
    }
    values.clear();
    Ok(())
}

/// The rows of a row group that is not yet written.
struct Group {
    columns: Vec<(What, Values)>,
    rows: usize,
}

/// Values of a column.
enum Values {
    Keys(Vec<i64>),
    Floats(Vec<f32>),
    Integers(Vec<i32>),
}

impl Group {
    fn new(parts: &Parts) -> Group {
        let columns = parts.columns.iter();
        Group {
            columns: columns
                .map(|what| (*what, what.values(parts.group_rows)))
                .collect(),
            rows: 0,
        }
    }

    fn add(&mut self, row: &Row<'_>) {
        for (what, values) in &mut self.columns {
            let words = &row.values[what.words()];
            match values {
                Values::Keys(keys) => keys.push(row.key.cast_signed()),
                Values::Floats(values) => values.extend_from_slice(words),
                Values::Integers(values) => {
                    values.extend(words.iter().map(|word| word.to_bits().cast_signed()));
                }
            }
        }
        self.rows += 1;
    }
}
