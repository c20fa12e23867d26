//! Parquet files of a model, good and bad, as a column after another.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use parquet::column::writer::ColumnWriter;
use parquet::file::metadata::ParquetMetaDataWriter;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

/// A column of a file: values, and for each list how many.
#[derive(Clone)]
pub struct Written {
    pub name: &'static str,
    kind: &'static str,
    values: Vec<f32>,
    keys: Vec<i64>,
    /// Elements of each row; `None` for no list.
    lists: Option<Vec<Vec<f32>>>,
    is_old: bool,
    /// A row that is null, and one whose first element is.
    null: Option<usize>,
    hole: Option<usize>,
}

const NOTHING: Written = Written {
    name: "",
    kind: "float",
    values: Vec::new(),
    keys: Vec::new(),
    lists: None,
    is_old: false,
    null: None,
    hole: None,
};

pub fn keys_of(keys: &[i64]) -> Written {
    Written {
        name: "key",
        kind: "int64",
        keys: keys.to_vec(),
        ..NOTHING
    }
}

pub fn integers(name: &'static str, rows: usize) -> Written {
    Written {
        name,
        kind: "int32",
        keys: vec![0; rows],
        ..NOTHING
    }
}

pub fn numbers(name: &'static str, rows: usize) -> Written {
    Written {
        name,
        values: vec![0.5; rows],
        ..NOTHING
    }
}

/// Lists of two.
pub fn lists(name: &'static str, rows: usize) -> Written {
    Written {
        name,
        lists: Some(vec![vec![0.25, -0.5]; rows]),
        ..NOTHING
    }
}

impl Written {
    pub fn of(mut self, kind: &'static str) -> Written {
        self.kind = kind;
        self
    }

    /// As some writers did before.
    pub fn old(mut self) -> Written {
        self.is_old = true;
        self
    }

    pub fn without(mut self, row: usize) -> Written {
        self.null = Some(row);
        self
    }

    pub fn hole(mut self, row: usize) -> Written {
        self.hole = Some(row);
        self
    }

    pub fn cut(mut self, row: usize) -> Written {
        self.lists.as_mut().unwrap()[row].pop();
        self
    }

    pub fn longer(mut self, row: usize) -> Written {
        self.lists.as_mut().unwrap()[row].push(0.5);
        self
    }

    pub fn wide(mut self) -> Written {
        self.lists
            .as_mut()
            .unwrap()
            .iter_mut()
            .for_each(|l| l.push(1.0));
        self
    }

    /// A list of so many numbers.
    pub fn filled(mut self, row: usize, count: usize) -> Written {
        self.lists.as_mut().unwrap()[row] = vec![0.5; count];
        self
    }

    pub fn with(mut self, at: usize, value: f32) -> Written {
        self.lists.as_mut().unwrap()[at / 2][at % 2] = value;
        self
    }

    fn schema(&self) -> String {
        let (name, kind) = (self.name, self.kind);
        let logical = match kind {
            "int32" => " (INTEGER(32,false))",
            _ => "",
        };
        match (&self.lists, self.is_old) {
            (None, _) => format!("optional {kind} {name}{logical};"),
            (Some(_), true) => {
                format!("optional group {name} (LIST) {{ repeated {kind} element; }}")
            }
            (Some(_), false) => format!(
                "optional group {name} (LIST) {{ repeated group list {{ optional {kind} element; }} }}"
            ),
        }
    }

    /// Values with their levels.
    fn levels(&self) -> (Vec<f32>, Vec<i16>, Vec<i16>) {
        let (mut values, mut levels, mut repeats) = (Vec::new(), Vec::new(), Vec::new());
        let there = if self.is_old { 2 } else { 3 };
        for (row, list) in self.lists.as_ref().unwrap().iter().enumerate() {
            if self.null == Some(row) {
                levels.push(0);
                repeats.push(0);
                continue;
            }
            for (at, value) in list.iter().enumerate() {
                let is_hole = self.hole == Some(row) && at == 0;
                levels.push(if is_hole { 2 } else { there });
                repeats.push(i16::from(at > 0));
                values.extend((!is_hole).then_some(*value));
            }
        }
        (values, levels, repeats)
    }

    fn put(&self, writer: &mut ColumnWriter<'_>) {
        if self.lists.is_some() {
            let (values, levels, repeats) = self.levels();
            let (levels, repeats) = (Some(&levels[..]), Some(&repeats[..]));
            match writer {
                ColumnWriter::FloatColumnWriter(writer) => {
                    writer.write_batch(&values, levels, repeats).unwrap();
                }
                ColumnWriter::DoubleColumnWriter(writer) => {
                    let values: Vec<f64> = values.into_iter().map(f64::from).collect();
                    writer.write_batch(&values, levels, repeats).unwrap();
                }
                _ => unreachable!(),
            }
            return;
        }
        let rows = self.values.len().max(self.keys.len());
        let is_there = |row: &usize| self.null != Some(*row);
        let levels: Vec<i16> = (0..rows).map(|row| i16::from(is_there(&row))).collect();
        let there: Vec<usize> = (0..rows).filter(is_there).collect();
        match writer {
            ColumnWriter::FloatColumnWriter(writer) => {
                let values: Vec<f32> = there.iter().map(|row| self.values[*row]).collect();
                writer.write_batch(&values, Some(&levels), None).unwrap();
            }
            ColumnWriter::Int64ColumnWriter(writer) => {
                let values: Vec<i64> = there.iter().map(|row| self.keys[*row]).collect();
                writer.write_batch(&values, Some(&levels), None).unwrap();
            }
            ColumnWriter::Int32ColumnWriter(writer) => {
                writer
                    .write_batch(&vec![0; rows], Some(&levels), None)
                    .unwrap();
            }
            _ => unreachable!(),
        }
    }
}

/// A file of one row group.
pub fn write(path: &Path, columns: &[Written]) {
    let schema: Vec<String> = columns.iter().map(Written::schema).collect();
    let schema = parse_message_type(&format!("message m {{ {} }}", schema.join(" "))).unwrap();
    let file = File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for column in columns {
        let mut open = group.next_column().unwrap().unwrap();
        column.put(open.untyped());
        open.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
}

/// Copies a file with a footer that has so many rows, with two weights each, and so many keys.
pub fn with_footer(from: &Path, to: &Path, rows: i64, keys: i64) {
    let reader = SerializedFileReader::new(File::open(from).unwrap()).unwrap();
    let metadata = reader.metadata().clone();
    let group = metadata.row_group(0).clone();
    let values = [keys, 2 * rows];
    let columns = group.columns().iter().zip(values);
    let columns = columns.map(|(column, values)| {
        let builder = column.clone().into_builder().set_num_values(values);
        builder.build().unwrap()
    });
    let columns = columns.collect();
    let group = group
        .into_builder()
        .set_num_rows(rows)
        .set_column_metadata(columns);
    let metadata = metadata
        .into_builder()
        .set_row_groups(vec![group.build().unwrap()]);
    let bytes = std::fs::read(from).unwrap();
    let footer = bytes[bytes.len() - 8..].first_chunk().unwrap();
    let footer = usize::try_from(u32::from_le_bytes(*footer)).unwrap();
    let mut file = File::create(to).unwrap();
    file.write_all(&bytes[..bytes.len() - 8 - footer]).unwrap();
    let metadata = metadata.build();
    ParquetMetaDataWriter::new(&mut file, &metadata)
        .finish()
        .unwrap();
}
