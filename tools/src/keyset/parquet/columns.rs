//! Which columns of a Parquet file are fields, and of what type are they?
//!
//! - Their names come from the command line, or else from `cats` of the `_metadata.json` beside the file, as
//!   NVTabular writes it and HugeCTR reads it. Nothing is guessed from the file.
//! - Taken are columns of integers, and lists of integers in the form that writers use today.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use ::parquet::basic::{ConvertedType, LogicalType, Type as Physical};
use ::parquet::schema::types::{SchemaDescriptor, Type};
use anyhow::Result;
use hps::Error;
use serde_json::Value;

use crate::cli::Usage;
use crate::parquet_file::schema::{leaf_of, shown, value_of};

/// What HugeCTR calls the file that names the columns.
const METADATA: &str = "_metadata.json";
/// More is no list of columns.
const METADATA_BYTES_MAX: u64 = 64 << 20;
/// As many as any other format may have.
const COLUMNS_MAX: usize = 1 << 16;

/// How the values of a column are numbers without sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 32 bits; below zero there is no key that everybody would agree on.
    I32,
    /// 32 bits without sign.
    U32,
    /// 64 bits, with or without sign: the bits count.
    U64,
}

/// A column that is a field.
#[derive(Clone, Debug)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its number among the leaves of the schema.
    pub leaf: usize,
    /// Its values.
    pub kind: Kind,
}

/// Names of columns, in the order of the fields, and who says so.
#[derive(Debug, Default)]
pub struct Wanted {
    /// Each with its place in the file, if that is known.
    columns: Vec<(String, Option<u64>)>,
    /// Rows that the file should have.
    pub rows: Option<u64>,
    is_asked: bool,
}

impl Wanted {
    /// For a file: those that were asked for, or those of the metadata beside it.
    ///
    /// # Errors
    /// `Usage` where there is neither; `Corrupt`, `Io`.
    pub fn of(path: &Path, asked: &[String]) -> Result<Wanted> {
        let mut wanted = match asked {
            [] => metadata(path)?,
            asked => Wanted {
                columns: asked.iter().map(|name| (name.clone(), None)).collect(),
                ..Wanted::default()
            },
        };
        wanted.is_asked = !asked.is_empty();
        let mut names: Vec<&str> = wanted.columns.iter().map(|(name, _)| &**name).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            let what = format!("column {} is named twice", twice[0]);
            return Err(wanted.wrong(&path.with_file_name(METADATA), &what));
        }
        Ok(wanted)
    }

    /// What is wrong with the names: with the flag, or with the file.
    fn wrong(&self, path: &Path, what: &str) -> anyhow::Error {
        match self.is_asked {
            true => Usage(format!("--columns: {what}")).into(),
            false => Error::corrupt(path, 0, what).into(),
        }
    }

    /// Finds the columns in the schema of a file.
    ///
    /// # Errors
    /// `Usage` or `Corrupt`, naming the file, for a column that is not there, that is there twice, or that
    /// has no integers.
    pub fn find(&self, path: &Path, schema: &SchemaDescriptor) -> Result<Vec<Column>> {
        let there = schema.root_schema().get_fields();
        let file = path.display();
        let mut columns = Vec::new();
        for (name, index) in &self.columns {
            let mut named = (0..).zip(there).filter(|(_, field)| field.name() == name);
            let (Some((root, field)), second) = (named.next(), named.next()) else {
                let all: Vec<&str> = there.iter().map(|field| field.name()).take(100).collect();
                let what = format!(
                    "{file}: found no column {name}; there are: {}",
                    all.join(", ")
                );
                return Err(self.wrong(path, &what));
            };
            if second.is_some() {
                let what = format!("found two columns of the name {name}, expected one");
                return Err(Error::corrupt(path, 0, what).into());
            }
            if index.is_some_and(|index| index != root as u64) {
                let index = index.unwrap_or_default();
                let what = format!(
                    "column {name}: found it as number {root}, {METADATA} has it as number {index}"
                );
                return Err(Error::corrupt(path, 0, what).into());
            }
            let kind = value_of(field).and_then(|(value, _)| integers(value));
            let kind = kind.ok_or_else(|| {
                let what = format!(
                    "column {name}: found {}, expected integers of 32 or 64 bits, or a list of such (a group \
                     LIST of a repeated group of one)",
                    shown(field)
                );
                Error::corrupt(path, 0, what)
            })?;
            let leaf = leaf_of(schema, root);
            let name = name.clone();
            columns.push(Column { name, leaf, kind });
        }
        Ok(columns)
    }
}

/// The integers of a column, flat or in a list; `None` for anything else.
fn integers(field: &Type) -> Option<Kind> {
    let info = field.get_basic_info();
    let has_sign = match (info.logical_type_ref(), info.converted_type()) {
        (Some(LogicalType::Integer(integer)), _) => integer.is_signed,
        (Some(_), _) => return None,
        (None, ConvertedType::NONE) => true,
        (None, ConvertedType::INT_8 | ConvertedType::INT_16) => true,
        (None, ConvertedType::INT_32 | ConvertedType::INT_64) => true,
        (None, ConvertedType::UINT_8 | ConvertedType::UINT_16) => false,
        (None, ConvertedType::UINT_32 | ConvertedType::UINT_64) => false,
        (None, _) => return None,
    };
    match (field.get_physical_type(), has_sign) {
        (Physical::INT32, true) => Some(Kind::I32),
        (Physical::INT32, false) => Some(Kind::U32),
        (Physical::INT64, _) => Some(Kind::U64),
        _ => None,
    }
}

/// The columns that the metadata beside a file names.
fn metadata(path: &Path) -> Result<Wanted> {
    let metadata = path.with_file_name(METADATA);
    let bytes = match metadata.metadata() {
        Ok(found) if found.len() > METADATA_BYTES_MAX => {
            let what = format!("found {} bytes, expected a list of columns", found.len());
            return Err(Error::corrupt(&metadata, 0, what).into());
        }
        Ok(_) => fs::read(&metadata).map_err(|e| Error::io("read", &metadata, e))?,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let file = path.display();
            return Err(Usage(format!(
                "{file}: no {METADATA} beside it says which columns are categorical: name them by --columns, in the \
                 order of the fields"
            ))
            .into());
        }
        Err(error) => return Err(Error::io("look at", &metadata, error).into()),
    };
    let bad = |what: String| -> anyhow::Error { Error::corrupt(&metadata, 0, what).into() };
    let value: Value =
        serde_json::from_slice(&bytes).map_err(|error| bad(format!("found no JSON: {error}")))?;
    let cats = value.get("cats").and_then(Value::as_array);
    let cats = cats.filter(|cats| (1..=COLUMNS_MAX).contains(&cats.len()));
    let cats = cats.ok_or_else(|| {
        bad(format!(
            "found no list `cats` of 1 to {COLUMNS_MAX} categorical columns"
        ))
    })?;
    let mut wanted = Wanted::default();
    for (number, column) in cats.iter().enumerate() {
        let name = column.get("col_name").and_then(Value::as_str);
        let name = name.ok_or_else(|| bad(format!("cats[{number}]: found no text `col_name`")))?;
        let index = match column.get("index") {
            None => None,
            Some(index) => Some(index.as_u64().ok_or_else(|| {
                bad(format!(
                    "cats[{number}]: found index {index}, expected a number"
                ))
            })?),
        };
        wanted.columns.push((name.to_owned(), index));
    }
    let own = path.file_name().map(|name| name.to_string_lossy());
    let files = value.get("file_stats").and_then(Value::as_array);
    let mut files = files.into_iter().flatten();
    let file = files.find(|file| file.get("file_name").and_then(Value::as_str) == own.as_deref());
    wanted.rows = file
        .and_then(|file| file.get("num_rows"))
        .and_then(Value::as_u64);
    Ok(wanted)
}
