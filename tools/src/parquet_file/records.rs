//! What is in a column of a row group?

use ::parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use ::parquet::data_type::{FloatType, Int32Type, Int64Type};
use ::parquet::errors::ParquetError;
use ::parquet::schema::types::ColumnDescriptor;

/// A column that is read, and what of it was decoded last.
pub struct Records {
    /// Its values; those that are missing have none.
    pub values: Typed,
    /// The level of a value that is there; 0 where none can be missing, and there are no levels.
    pub level: i16,
    /// Whether each row has a list.
    pub is_list: bool,
    /// The level of each value, and of each that is missing.
    pub levels: Vec<i16>,
    /// Of lists, 0 where one begins.
    pub repeats: Vec<i16>,
}

/// The values of a column, by their type.
pub enum Typed {
    I32(ColumnReaderImpl<Int32Type>, Vec<i32>),
    I64(ColumnReaderImpl<Int64Type>, Vec<i64>),
    F32(ColumnReaderImpl<FloatType>, Vec<f32>),
}

impl Records {
    /// Begins a column; `None` where it has values of another type.
    #[must_use]
    pub fn new(reader: ColumnReader, descr: &ColumnDescriptor) -> Option<Records> {
        let values = match reader {
            ColumnReader::Int32ColumnReader(reader) => Typed::I32(reader, Vec::new()),
            ColumnReader::Int64ColumnReader(reader) => Typed::I64(reader, Vec::new()),
            ColumnReader::FloatColumnReader(reader) => Typed::F32(reader, Vec::new()),
            _ => return None,
        };
        Some(Records {
            values,
            level: descr.max_def_level(),
            is_list: descr.max_rep_level() > 0,
            levels: Vec::new(),
            repeats: Vec::new(),
        })
    }

    /// Decodes so many rows; how many there were.
    ///
    /// # Errors
    /// What the library says. It may panic: this is called guarded.
    pub fn decode(&mut self, rows: usize) -> Result<usize, ParquetError> {
        self.levels.clear();
        self.repeats.clear();
        let (levels, repeats) = (Some(&mut self.levels), Some(&mut self.repeats));
        let (found, ..) = match &mut self.values {
            Typed::I32(reader, values) => {
                values.clear();
                reader.read_records(rows, levels, repeats, values)?
            }
            Typed::I64(reader, values) => {
                values.clear();
                reader.read_records(rows, levels, repeats, values)?
            }
            Typed::F32(reader, values) => {
                values.clear();
                reader.read_records(rows, levels, repeats, values)?
            }
        };
        Ok(found)
    }
}
