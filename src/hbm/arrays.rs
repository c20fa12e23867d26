//! How does the table in plain Rust get its arrays?

use crate::error::{Error, Result};
use crate::pages::advise_huge;

/// So many values; `DeviceMemory` where there is no memory for them.
pub fn filled<T: Clone>(value: T, count: usize, what: &'static str) -> Result<Vec<T>> {
    let mut values = Vec::new();
    let refused = |_| Error::DeviceMemory {
        device: "cpu".to_owned(),
        what,
        asked_bytes: (count as u64).saturating_mul(size_of::<T>() as u64),
        free_bytes: None,
    };
    values.try_reserve_exact(count).map_err(refused)?;
    advise_huge(&values);
    values.resize(count, value);
    Ok(values)
}
