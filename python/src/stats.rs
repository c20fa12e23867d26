//! Everything that the store counts, as dictionaries: each field by its name.

use hps::{Stats, TableStats};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::config::policy_name;

/// Sets each field under its name.
macro_rules! set_fields {
    ($dict:ident, $from:ident, [$($field:ident),* $(,)?]) => {
        $($dict.set_item(stringify!($field), $from.$field)?;)*
    };
}

/// The counters of a store.
pub fn as_dict<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    set_fields!(
        dict,
        stats,
        [
            io_engine,
            direct_io,
            unique_asked,
            unique_hits,
            rows_read,
            rows_pushed,
            bytes_pushed,
            rows_put,
            bytes_put,
            non_finite,
            reads,
            read_bytes,
            written_bytes,
            compaction_written_bytes,
            flushes,
            compactions,
            compaction_failures,
            checkpoints,
            stall_us_max,
            stall_us,
            cut_us_max,
            leases,
            lease_bytes,
            holds,
            pinned_rows,
            resident_rows,
            capacity_rows,
            dirty_rows,
            uncheckpointed_rows,
            cache_bytes,
            cache_row_bytes,
            cache_state_bytes,
            cache_hash_table_bytes,
            cache_order_bytes,
            cache_frequency_bytes,
            buffer_bytes,
            read_buffer_bytes,
            write_buffer_bytes,
            flush_bytes,
            compaction_bytes,
            snapshot_buffer_bytes,
            array_bytes,
            queues,
            plain_queues,
            rings_lost,
            queue_buffers,
            registered_buffers,
            index_bytes,
            index_keys,
            files,
            open_files,
            open_files_max,
            files_reopened,
            files_set_aside,
            directories_paused,
            current_bytes,
            live_bytes,
            pinned_bytes,
            disk_bytes,
            publisher_panics,
        ]
    );
    dict.set_item("hit_rate", stats.hit_rate())?;
    dict.set_item("write_amplification", stats.write_amplification())?;
    let tables = PyDict::new(py);
    for table in &stats.tables {
        tables.set_item(&table.name, of_table(py, table)?)?;
    }
    dict.set_item("tables", tables)?;
    Ok(dict)
}

fn of_table<'py>(py: Python<'py>, table: &TableStats) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    set_fields!(
        dict,
        table,
        [
            unique_asked,
            unique_hits,
            rows_read,
            rows_pushed,
            bytes_pushed,
            rows_put,
            bytes_put,
            non_finite,
            rows_flushed,
            rows_evicted,
            pinned_rows,
            resident_rows,
            capacity_rows,
            dirty_rows,
            cache_bytes,
            index_bytes,
            index_keys,
        ]
    );
    dict.set_item("id", table.id.0)?;
    dict.set_item("name", &table.name)?;
    dict.set_item("policy", policy_name(table.policy))?;
    dict.set_item("hit_rate", table.hit_rate())?;
    let waits = PyDict::new(py);
    for (cause, wait) in table.waits() {
        let one = PyDict::new(py);
        set_fields!(one, wait, [count, us, us_max, histogram]);
        waits.set_item(cause.name(), one)?;
    }
    dict.set_item("waits", waits)?;
    Ok(dict)
}
