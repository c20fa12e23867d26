//! Which columns of a Parquet file are those of a model, and of what type are they?

use std::path::Path;

use ::parquet::basic::{ConvertedType, LogicalType, Type as Physical};
use ::parquet::schema::types::{SchemaDescriptor, Type};
use anyhow::Result;
use hps::Error;

use crate::cli::Usage;
use crate::models::columns::is_metadata;
use crate::models::parquet::{KEY, WEIGHTS};
use crate::parquet_file::schema::{leaf_of, shown, value_of};

/// Columns that files may have beside key and weights, in the order in which tables have them.
const OTHERS: [&str; 10] = [
    "a",
    "m",
    "v",
    "t",
    "z",
    "n",
    "show",
    "click",
    "count",
    "last_step",
];

/// A column of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its name.
    pub name: &'static str,
    /// Whether each row has a list.
    pub is_list: bool,
}

/// What values of a column there must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Key,
    List,
    Number,
    ListOrNumber,
    Integer,
}

impl Wanted {
    fn of(name: &str) -> Wanted {
        match name {
            KEY => Wanted::Key,
            "a" => Wanted::ListOrNumber,
            "t" => Wanted::Number,
            name if is_metadata(name) => Wanted::Integer,
            _ => Wanted::List,
        }
    }

    fn told(self) -> &'static str {
        match self {
            Wanted::Key => "uint64 or int64 (INT64)",
            Wanted::List => "lists of float32 (a group LIST of a repeated group of one FLOAT)",
            Wanted::Number => "float32 (FLOAT)",
            Wanted::ListOrNumber => "float32 (FLOAT), or lists of it",
            Wanted::Integer => "uint32 (INT32 without sign)",
        }
    }

    fn is(self, value: &Type, is_list: bool) -> bool {
        let info = value.get_basic_info();
        let (logical, converted) = (info.logical_type_ref(), info.converted_type());
        let bits = |bits: i8, signed: Option<bool>| match logical {
            Some(LogicalType::Integer(integer)) => {
                integer.bit_width == bits && signed.is_none_or(|s| integer.is_signed == s)
            }
            _ => false,
        };
        let is_plain = logical.is_none() && converted == ConvertedType::NONE;
        match (self, value.get_physical_type()) {
            (Wanted::Key, Physical::INT64) => {
                let old = [ConvertedType::INT_64, ConvertedType::UINT_64];
                !is_list
                    && (is_plain
                        || bits(64, None)
                        || (logical.is_none() && old.contains(&converted)))
            }
            (Wanted::Integer, Physical::INT32) => {
                let old = logical.is_none() && converted == ConvertedType::UINT_32;
                !is_list && (bits(32, Some(false)) || old)
            }
            (Wanted::List, Physical::FLOAT) => is_list && is_plain,
            (Wanted::Number, Physical::FLOAT) => !is_list && is_plain,
            (Wanted::ListOrNumber, Physical::FLOAT) => is_plain,
            _ => false,
        }
    }
}

/// Finds the columns of a model in a file: key and weights first, then the others, each with its leaf.
///
/// # Errors
/// `Corrupt` for a column of another type, or one that is there twice; `Usage` for one that is not there, or that no
/// table has.
pub fn columns_of(
    path: &Path,
    schema: &SchemaDescriptor,
    weights_only: bool,
) -> Result<(Vec<Named>, Vec<usize>)> {
    let there = schema.root_schema().get_fields();
    let file = path.display();
    let others = OTHERS.iter().filter(|_| !weights_only);
    let known: Vec<&'static str> = [KEY, WEIGHTS].iter().chain(others).copied().collect();
    let mut foreign = there.iter().filter(|field| !known.contains(&field.name()));
    if let Some(field) = foreign.next().filter(|_| !weights_only) {
        let why = "no table has a column of that name; write the files without it, or leave all columns but the \
                   weights out by --weights-only";
        return Err(Usage(format!("{file}: column {}: {why}", field.name())).into());
    }
    let (mut columns, mut leaves) = (Vec::new(), Vec::new());
    for name in known {
        let mut named = (0..).zip(there).filter(|(_, field)| field.name() == name);
        let (first, second) = (named.next(), named.next());
        let Some((root, field)) = first else {
            if [KEY, WEIGHTS].contains(&name) {
                let all: Vec<&str> = there.iter().map(|field| field.name()).take(100).collect();
                let all = all.join(", ");
                let why = format!("{file}: found no column {name}; there are: {all}");
                return Err(Usage(why).into());
            }
            continue;
        };
        if second.is_some() {
            let what = format!("found two columns of the name {name}, expected one");
            return Err(Error::corrupt(path, 0, what).into());
        }
        let wanted = Wanted::of(name);
        let value = value_of(field).filter(|(value, is_list)| wanted.is(value, *is_list));
        let (_, is_list) = value.ok_or_else(|| {
            let (found, expected) = (shown(field), wanted.told());
            let what = format!("column {name}: found {found}, expected {expected}");
            Error::corrupt(path, 0, what)
        })?;
        columns.push(Named { name, is_list });
        leaves.push(leaf_of(schema, root));
    }
    Ok((columns, leaves))
}

/// Checks that a file has the columns of the first one.
///
/// # Errors
/// `Corrupt`.
pub fn compare(first: &Path, expected: &[Named], path: &Path, found: &[Named]) -> Result<()> {
    let differs = |of: &[Named], than: &[Named]| of.iter().find(|c| !than.contains(c)).copied();
    let Some(column) = differs(expected, found).or_else(|| differs(found, expected)) else {
        return Ok(());
    };
    let of = |columns: &[Named]| match columns.iter().find(|c| c.name == column.name) {
        None => "none",
        Some(column) if column.is_list => "lists",
        Some(_) => "numbers",
    };
    let (found, expected, first) = (of(found), of(expected), first.display());
    let what = format!(
        "column {}: found {found}, expected {expected} as in {first}",
        column.name
    );
    Err(Error::corrupt(path, 0, what).into())
}
