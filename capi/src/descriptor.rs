//! How does C say what is fixed with a table's data, and learn it?
#![expect(unsafe_code, reason = "C finds its functions by their names")]

use std::ffi::c_char;
use std::sync::Mutex;

use store::{Initialiser, RowMetadata, TableDescriptor, TableId};

use crate::border::{call, free, lock};
use crate::codes::{InitialiserKind, MetadataColumns, optimizer, optimizer_number, unknown};
use crate::error::{Fault, Result};
use crate::pointers::{DescriptorOut, DescriptorRef, ErrorOut, Text};

/// What is fixed with a table's data. `hps_descriptor_new` makes it, `hps_descriptor_free` frees
/// it.
pub struct DescriptorHandle(Mutex<TableDescriptor>);

impl DescriptorRef<'_> {
    pub fn asked(self) -> Result<TableDescriptor> {
        Ok(lock(&self.get("descriptor")?.0).clone())
    }

    fn set(self, change: impl FnOnce(&mut TableDescriptor) -> Result<()>) -> Result<()> {
        change(&mut lock(&self.get("descriptor")?.0))
    }

    fn set_initialiser(self, initialiser: Initialiser) -> Result<()> {
        self.set(|asked| {
            asked.initialiser = initialiser;
            Ok(())
        })
    }
}

/// Most bytes of a table's name.
const NAME_BYTES_MAX: usize = 255;

/// A table, as it is stored.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TableInfo {
    /// Its number in all calls; never given to another table of the store.
    pub id: u32,
    /// Weights of a row.
    pub dim: u32,
    /// Optimizer state of a row, in f32s.
    pub state_f32s: u32,
    /// Columns of metadata, one word each.
    pub metadata_columns: u32,
    /// Words of a whole row: weights, state, metadata, in this order.
    pub row_f32s: u32,
    /// A number of hps_optimizer.
    pub optimizer: i32,
    /// A number of hps_initialiser.
    pub initialiser: i32,
    /// Numbers of hps_metadata, added.
    pub metadata: i32,
    /// First number of the initialiser: the constant, the lower bound, the mean.
    pub init_a: f32,
    /// Second number of the initialiser: the upper bound, the standard deviation.
    pub init_b: f32,
    /// Initial value of the optimizer's accumulator.
    pub accumulator: f32,
    /// 0; room for later versions.
    pub reserved: u32,
    /// Seed of the initialiser.
    pub seed: u64,
    /// Its name, with a zero byte at the end.
    pub name: [c_char; 256],
}

fn metadata_bits(metadata: RowMetadata) -> i32 {
    let bit = |on: bool, column: MetadataColumns| i32::from(on) * column as i32;
    bit(metadata.show, MetadataColumns::HPS_METADATA_SHOW)
        + bit(metadata.click, MetadataColumns::HPS_METADATA_CLICK)
        + bit(metadata.count, MetadataColumns::HPS_METADATA_COUNT)
        + bit(metadata.last_step, MetadataColumns::HPS_METADATA_LAST_STEP)
}

fn metadata_of(bits: i32) -> Result<RowMetadata> {
    let has = |column: MetadataColumns| bits & column as i32 != 0;
    let metadata = RowMetadata::new()
        .show(has(MetadataColumns::HPS_METADATA_SHOW))
        .click(has(MetadataColumns::HPS_METADATA_CLICK))
        .count(has(MetadataColumns::HPS_METADATA_COUNT))
        .last_step(has(MetadataColumns::HPS_METADATA_LAST_STEP));
    match metadata_bits(metadata) == bits {
        true => Ok(metadata),
        false => Err(unknown("metadata", bits)),
    }
}

/// What C is told of a table.
pub fn info(id: TableId, of: &TableDescriptor) -> TableInfo {
    let words = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let (initialiser, init_a, init_b) = match of.initialiser {
        Initialiser::Zero => (InitialiserKind::HPS_INIT_ZERO as i32, 0.0, 0.0),
        Initialiser::Constant { value } => (InitialiserKind::HPS_INIT_CONSTANT as i32, value, 0.0),
        Initialiser::Uniform { low, high } => (InitialiserKind::HPS_INIT_UNIFORM as i32, low, high),
        Initialiser::Normal { mean, deviation } => {
            (InitialiserKind::HPS_INIT_NORMAL as i32, mean, deviation)
        }
        _ => (-1, 0.0, 0.0),
    };
    let mut name = [0; 256];
    let bytes = of.name.as_bytes();
    for (to, from) in name.iter_mut().take(NAME_BYTES_MAX).zip(bytes) {
        *to = *from as c_char;
    }
    TableInfo {
        id: id.0,
        dim: words(of.dim),
        state_f32s: words(of.optimizer.state_f32s(of.dim)),
        metadata_columns: words(of.metadata.columns()),
        row_f32s: words(of.row_f32s()),
        optimizer: optimizer_number(of.optimizer),
        initialiser,
        metadata: metadata_bits(of.metadata),
        init_a,
        init_b,
        accumulator: of.accumulator,
        reserved: 0,
        seed: of.seed,
        name,
    }
}

/// Makes the descriptor of a table: AdaGrad, new rows uniform in ±0.01, seed 0, no metadata.
///
/// name: 1 to 255 bytes of UTF-8; dim: weights of a row, 1 to 8192. Both are checked when the table
/// is made.
///
/// # Errors
/// HPS_NULL_POINTER; HPS_INVALID_ARGUMENT for a name that is not UTF-8.
///
/// # Threads
/// Any thread may use it; setters and calls that read it take turns.
#[unsafe(no_mangle)]
pub extern "C" fn hps_descriptor_new(
    name: Text,
    dim: usize,
    descriptor: DescriptorOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let place = descriptor.place("descriptor")?;
        let made = TableDescriptor::new(name.text("name")?, dim);
        place.write(Some(Box::new(DescriptorHandle(Mutex::new(made)))));
        Ok(())
    })
}

/// Frees a descriptor. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn hps_descriptor_free(descriptor: Option<Box<DescriptorHandle>>) {
    free(descriptor);
}

/// Sets the update rule, a number of hps_optimizer.
///
/// # Errors
/// HPS_NULL_POINTER; HPS_INVALID_ARGUMENT for another number.
#[unsafe(no_mangle)]
pub extern "C" fn hps_descriptor_set_optimizer(
    descriptor: DescriptorRef,
    number: i32,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        descriptor.set(|asked| {
            asked.optimizer = optimizer(number)?;
            Ok(())
        })
    })
}

/// Sets what rows of keys never pushed are made from: `initialiser` is a number of hps_initialiser,
/// which says what a and b are. A number that it does not use is ignored.
///
/// # Errors
/// HPS_NULL_POINTER; HPS_INVALID_ARGUMENT for another number.
#[unsafe(no_mangle)]
pub extern "C" fn hps_descriptor_set_initialiser(
    descriptor: DescriptorRef,
    initialiser: i32,
    a: f32,
    b: f32,
    error: ErrorOut,
) -> i32 {
    const ZERO: i32 = InitialiserKind::HPS_INIT_ZERO as i32;
    const CONSTANT: i32 = InitialiserKind::HPS_INIT_CONSTANT as i32;
    const UNIFORM: i32 = InitialiserKind::HPS_INIT_UNIFORM as i32;
    const NORMAL: i32 = InitialiserKind::HPS_INIT_NORMAL as i32;
    call(error, || {
        let made = match initialiser {
            ZERO => Initialiser::Zero,
            CONSTANT => Initialiser::Constant { value: a },
            UNIFORM => Initialiser::Uniform { low: a, high: b },
            NORMAL => Initialiser::Normal {
                mean: a,
                deviation: b,
            },
            other => return Err(unknown("initialiser", other)),
        };
        descriptor.set_initialiser(made)
    })
}

/// Sets the seed of the initialiser.
///
/// # Errors
/// HPS_NULL_POINTER.
#[unsafe(no_mangle)]
pub extern "C" fn hps_descriptor_set_seed(
    descriptor: DescriptorRef,
    seed: u64,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        descriptor.set(|asked| {
            asked.seed = seed;
            Ok(())
        })
    })
}

/// Sets the initial value of the optimizer's accumulator (AdaGrad a, FTRL n). Default 0.
///
/// # Errors
/// HPS_NULL_POINTER.
#[unsafe(no_mangle)]
pub extern "C" fn hps_descriptor_set_accumulator(
    descriptor: DescriptorRef,
    accumulator: f32,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        descriptor.set(|asked| {
            asked.accumulator = accumulator;
            Ok(())
        })
    })
}

/// Sets the optional columns of a row: numbers of hps_metadata, added. Default 0: none.
///
/// # Errors
/// HPS_NULL_POINTER; HPS_INVALID_ARGUMENT for other bits.
#[unsafe(no_mangle)]
pub extern "C" fn hps_descriptor_set_metadata(
    descriptor: DescriptorRef,
    columns: i32,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let metadata = metadata_of(columns)?;
        descriptor.set(|asked| {
            asked.metadata = metadata;
            Ok(())
        })
    })
}

/// Checks the range of every field, as making the table does.
///
/// # Errors
/// HPS_NULL_POINTER; HPS_INVALID_ARGUMENT naming the field.
#[unsafe(no_mangle)]
pub extern "C" fn hps_descriptor_validate(descriptor: DescriptorRef, error: ErrorOut) -> i32 {
    call(error, || {
        descriptor.asked()?.validate().map_err(Fault::from)
    })
}
