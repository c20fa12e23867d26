//! How is a table's descriptor written?
//!
//! - Enum numbers are part of the format and never reused. Version 1 has no data types but f32.
//! - Parameters that an initialiser does not have are zero.
//! - Whatever is decoded has passed [`TableDescriptor::validate`].

use zerocopy::IntoBytes;
use zerocopy::little_endian::{F32, U32, U64};

use super::Version;
use super::layout::{DecodeError, Decoded, layout, view};
use crate::options::{Dtype, Initialiser, Optimizer, RowMetadata, TABLES_MAX, TableDescriptor};
use crate::units::{all_of, narrow, to_usize};

layout! {
    /// A table's number and descriptor; the name follows.
    TableEdit = 48 {
        id: U32,
        name_bytes: U32,
        dim: U32,
        dtype: U32,
        optimizer: U32,
        initialiser: U32,
        initialiser_a: F32,
        initialiser_b: F32,
        seed: U64,
        accumulator: F32,
        metadata: U32,
    }
}

/// The data types' numbers.
pub const DTYPE_F32: u32 = 1;
/// As [`DTYPE_F32`], from version 2 on.
pub const DTYPE_F16: u32 = 2;
/// As [`DTYPE_F32`], from version 2 on.
pub const DTYPE_BF16: u32 = 3;

/// `show` of the metadata bits.
pub const METADATA_SHOW: u32 = 1;
/// `click`.
pub const METADATA_CLICK: u32 = 2;
/// `count`.
pub const METADATA_COUNT: u32 = 4;
/// `last_step`.
pub const METADATA_LAST_STEP: u32 = 8;
const METADATA_ALL: u32 = METADATA_SHOW | METADATA_CLICK | METADATA_COUNT | METADATA_LAST_STEP;

/// All data types, in the order of their numbers.
pub const DTYPES: [Dtype; 3] = all_of!(Dtype: F32, F16, Bf16);

const fn dtype_number(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::F32 => DTYPE_F32,
        Dtype::F16 => DTYPE_F16,
        Dtype::Bf16 => DTYPE_BF16,
    }
}

/// Whether a table of a manifest of this version may have weights of a type.
pub(super) fn is_dtype_of(version: Version, dtype: Dtype) -> bool {
    version >= Version::V2 || dtype == Dtype::F32
}

/// The number of an optimizer on disk.
#[must_use]
pub const fn optimizer_number(optimizer: Optimizer) -> u32 {
    match optimizer {
        Optimizer::Sgd => 1,
        Optimizer::Momentum => 2,
        Optimizer::Nesterov => 3,
        Optimizer::Adagrad => 4,
        Optimizer::RowwiseAdagrad => 5,
        Optimizer::Adam => 6,
        Optimizer::Ftrl => 7,
    }
}

/// All optimizers, in the order of their numbers.
pub const OPTIMIZERS: [Optimizer; 7] =
    all_of!(Optimizer: Sgd, Momentum, Nesterov, Adagrad, RowwiseAdagrad, Adam, Ftrl);

/// The number of an initialiser on disk.
#[must_use]
#[cfg(any(test, feature = "sim"))]
pub fn initialiser_number(initialiser: Initialiser) -> u32 {
    initialiser_parts(initialiser).0
}

/// An initialiser as its number and two parameters.
fn initialiser_parts(initialiser: Initialiser) -> (u32, f32, f32) {
    match initialiser {
        Initialiser::Zero => (1, 0.0, 0.0),
        Initialiser::Constant { value } => (2, value, 0.0),
        Initialiser::Uniform { low, high } => (3, low, high),
        Initialiser::Normal { mean, deviation } => (4, mean, deviation),
    }
}

fn initialiser_of(number: u32, a: f32, b: f32) -> Option<Initialiser> {
    match (number, a.to_bits(), b.to_bits()) {
        (1, 0, 0) => Some(Initialiser::Zero),
        (2, _, 0) => Some(Initialiser::Constant { value: a }),
        (3, _, _) => Some(Initialiser::Uniform { low: a, high: b }),
        (4, _, _) => Some(Initialiser::Normal {
            mean: a,
            deviation: b,
        }),
        _ => None,
    }
}

fn metadata_bits(metadata: RowMetadata) -> u32 {
    let bit = |on: bool, bit: u32| if on { bit } else { 0 };
    let RowMetadata {
        show,
        click,
        count,
        last_step,
    } = metadata;
    bit(show, METADATA_SHOW)
        | bit(click, METADATA_CLICK)
        | bit(count, METADATA_COUNT)
        | bit(last_step, METADATA_LAST_STEP)
}

fn metadata_of(bits: u32) -> Option<RowMetadata> {
    (bits & !METADATA_ALL == 0).then_some(RowMetadata {
        show: bits & METADATA_SHOW != 0,
        click: bits & METADATA_CLICK != 0,
        count: bits & METADATA_COUNT != 0,
        last_step: bits & METADATA_LAST_STEP != 0,
    })
}

/// Appends number and descriptor of a table.
pub fn encode_table(id: u32, descriptor: &TableDescriptor, out: &mut Vec<u8>) {
    let valid = descriptor.validate();
    assert!(
        valid.is_ok(),
        "a descriptor is validated before it is written: {valid:?}"
    );
    let small = |value: usize| U32::new(narrow(value));
    let (initialiser, a, b) = initialiser_parts(descriptor.initialiser);
    let head = TableEdit {
        id: U32::new(id),
        name_bytes: small(descriptor.name.len()),
        dim: small(descriptor.dim),
        dtype: U32::new(dtype_number(descriptor.dtype)),
        optimizer: U32::new(optimizer_number(descriptor.optimizer)),
        initialiser: U32::new(initialiser),
        initialiser_a: F32::new(a),
        initialiser_b: F32::new(b),
        seed: U64::new(descriptor.seed),
        accumulator: F32::new(descriptor.accumulator),
        metadata: U32::new(metadata_bits(descriptor.metadata)),
    };
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(descriptor.name.as_bytes());
}

/// Decodes what [`encode_table`] wrote, from exactly its bytes.
///
/// # Errors
/// `Damaged` at `offset`, naming the field.
pub fn decode_table(bytes: &[u8], offset: u64) -> Decoded<(u32, TableDescriptor)> {
    let bad = |why: String| DecodeError::damaged(offset, format!("table: {why}"));
    let (head, name) = view::<TableEdit>(bytes, offset, "table")?;
    if usize::try_from(head.name_bytes.get()).ok() != Some(name.len()) || name.len() > 255 {
        return Err(bad("its name has another length".to_owned()));
    }
    let name = str::from_utf8(name).map_err(|error| bad(format!("its name: {error}")))?;
    if !usize::try_from(head.id.get()).is_ok_and(|id| id < TABLES_MAX) {
        return Err(bad(format!("number {} is too large", head.id)));
    }
    let dtype = DTYPES
        .into_iter()
        .find(|dtype| dtype_number(*dtype) == head.dtype.get())
        .ok_or_else(|| bad(format!("data type {} is not known", head.dtype)))?;
    let optimizer = OPTIMIZERS
        .into_iter()
        .find(|optimizer| optimizer_number(*optimizer) == head.optimizer.get())
        .ok_or_else(|| bad(format!("optimizer {} is not known", head.optimizer)))?;
    let (a, b) = (head.initialiser_a.get(), head.initialiser_b.get());
    let initialiser = initialiser_of(head.initialiser.get(), a, b)
        .ok_or_else(|| bad(format!("initialiser {} is not known", head.initialiser)))?;
    let metadata = metadata_of(head.metadata.get())
        .ok_or_else(|| bad(format!("metadata {:#x} is not known", head.metadata.get())))?;
    let descriptor = TableDescriptor {
        name: name.to_owned(),
        dim: to_usize(head.dim.get()),
        dtype,
        optimizer,
        initialiser,
        seed: head.seed.get(),
        accumulator: head.accumulator.get(),
        metadata,
    };
    descriptor
        .validate()
        .map_err(|error| bad(error.to_string()))?;
    Ok((head.id.get(), descriptor))
}
