//! How does C say what may differ for one table at each open?
#![expect(unsafe_code, reason = "C finds its functions by their names")]

use std::sync::Mutex;

use store::{PolicyKind, TableOptions};

use crate::border::{call, free, lock, survive};
use crate::codes::policy;
use crate::error::Result;
use crate::pointers::{ErrorOut, HyperRef, TableOptionsRef};

/// Options of one table. `hps_table_options_new` makes them, `hps_table_options_free` frees them.
pub struct TableOptionsHandle(Mutex<TableOptions>);

impl TableOptionsRef<'_> {
    pub fn asked(self) -> Result<TableOptions> {
        Ok(*lock(&self.get("table_options")?.0))
    }

    fn set(self, change: impl FnOnce(&mut TableOptions) -> Result<()>) -> Result<()> {
        change(&mut lock(&self.get("table_options")?.0))
    }
}

/// Makes options of one table: all are as the store's.
#[unsafe(no_mangle)]
pub extern "C" fn hps_table_options_new() -> Option<Box<TableOptionsHandle>> {
    survive(|| Box::new(TableOptionsHandle(Mutex::default())))
}

/// Frees options of a table. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn hps_table_options_free(table_options: Option<Box<TableOptionsHandle>>) {
    free(table_options);
}

/// Sets the hyperparameters of the table's update rule. They are copied.
///
/// # Errors
/// HPS_NULL_POINTER.
#[unsafe(no_mangle)]
pub extern "C" fn hps_table_options_set_hyper(
    table_options: TableOptionsRef,
    hyper: HyperRef,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let hyper = hyper.get("hyper")?.parameters();
        table_options.set(|asked| {
            asked.hyper = Some(hyper);
            Ok(())
        })
    })
}

/// Sets which of the table's rows leave memory first, a number of hps_policy.
///
/// # Errors
/// HPS_NULL_POINTER; HPS_INVALID_ARGUMENT for another number.
#[unsafe(no_mangle)]
pub extern "C" fn hps_table_options_set_policy(
    table_options: TableOptionsRef,
    policy_number: i32,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        table_options.set(|asked| {
            asked.policy = Some(policy(policy_number)?);
            Ok(())
        })
    })
}

/// Sets a policy for a table that is trained pass by pass: see `hps_options_set_policy_cached`.
///
/// # Errors
/// HPS_NULL_POINTER. The call that takes the options checks the range.
#[unsafe(no_mangle)]
pub extern "C" fn hps_table_options_set_policy_cached(
    table_options: TableOptionsRef,
    num_blocks: u32,
    target_hit_rate: f64,
    max_num_evict: u64,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        table_options.set(|asked| {
            asked.policy = Some(PolicyKind::Cached {
                num_blocks,
                target_hit_rate,
                max_num_evict,
            });
            Ok(())
        })
    })
}

/// Sets the memory of the cache, in bytes, that the table's rows keep while other tables need it.
/// Default 0.
///
/// # Errors
/// HPS_NULL_POINTER.
#[unsafe(no_mangle)]
pub extern "C" fn hps_table_options_set_cache_bytes_min(
    table_options: TableOptionsRef,
    bytes: u64,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        table_options.set(|asked| {
            asked.cache_bytes_min = bytes;
            Ok(())
        })
    })
}

/// Sets the memory of the cache, in bytes, that the table's rows take at most, but for rows that
/// leases or dirty rows hold. Default: no limit.
///
/// # Errors
/// HPS_NULL_POINTER.
#[unsafe(no_mangle)]
pub extern "C" fn hps_table_options_set_cache_bytes_max(
    table_options: TableOptionsRef,
    bytes: u64,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        table_options.set(|asked| {
            asked.cache_bytes_max = Some(bytes);
            Ok(())
        })
    })
}
