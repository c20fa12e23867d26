//! What are the columns of a Parquet file, by its schema?

use ::parquet::basic::{ConvertedType, LogicalType, Repetition};
use ::parquet::schema::types::{SchemaDescriptor, Type};

/// The value of a column, and whether each row has a list of it, in the form that writers use today; `None`
/// for anything else.
#[must_use]
pub fn value_of(field: &Type) -> Option<(&Type, bool)> {
    if is(field, Repetition::REPEATED) {
        return None;
    }
    if field.is_primitive() {
        return Some((field, false));
    }
    let info = field.get_basic_info();
    let is_list = info.logical_type_ref() == Some(&LogicalType::List)
        || info.converted_type() == ConvertedType::LIST;
    match field.get_fields() {
        [repeated] if is_list && repeated.is_group() && is(repeated, Repetition::REPEATED) => {
            match repeated.get_fields() {
                [element] if element.is_primitive() && !is(element, Repetition::REPEATED) => {
                    Some((element, true))
                }
                _ => None,
            }
        }
        _ => None,
    }
}

fn is(field: &Type, repetition: Repetition) -> bool {
    let info = field.get_basic_info();
    info.has_repetition() && info.repetition() == repetition
}

/// The number of the first leaf of a column.
#[must_use]
pub fn leaf_of(schema: &SchemaDescriptor, column: usize) -> usize {
    let mut leaves = 0..schema.num_columns();
    leaves
        .find(|leaf| schema.get_column_root_idx(*leaf) == column)
        .unwrap_or(0)
}

/// The type of a column, for messages.
#[must_use]
pub fn shown(field: &Type) -> String {
    let info = field.get_basic_info();
    let logical = info
        .logical_type_ref()
        .map(|logical| format!(" ({logical:?})"));
    let logical = logical.unwrap_or_else(|| match info.converted_type() {
        ConvertedType::NONE => String::new(),
        converted => format!(" ({converted})"),
    });
    let repeated = if is(field, Repetition::REPEATED) {
        "repeated "
    } else {
        ""
    };
    match field.is_primitive() {
        true => format!("{repeated}{}{logical}", field.get_physical_type()),
        false => {
            let parts: Vec<String> = field.get_fields().iter().map(|part| shown(part)).collect();
            format!("a {repeated}group{logical} of [{}]", parts.join(", "))
        }
    }
}
