//! Everything that the store counts, as dictionaries: each field by its name.

use hps::{Stats, TableStats};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::config::policy_name;

/// Sets each number under its name.
fn set_all(dict: &Bound<'_, PyDict>, numbers: Vec<(&'static str, u64)>) -> PyResult<()> {
    let mut numbers = numbers.into_iter();
    numbers.try_for_each(|(name, number)| dict.set_item(name, number))
}

/// The counters of a store.
pub fn as_dict<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    set_all(&dict, stats.numbers())?;
    dict.set_item("io_engine", stats.io_engine)?;
    dict.set_item("direct_io", stats.direct_io)?;
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
    set_all(&dict, table.numbers())?;
    dict.set_item("id", table.id.0)?;
    dict.set_item("name", &table.name)?;
    dict.set_item("policy", policy_name(table.policy))?;
    dict.set_item("hit_rate", table.hit_rate())?;
    let waits = PyDict::new(py);
    for (cause, wait) in table.waits() {
        let one = PyDict::new(py);
        set_all(
            &one,
            vec![
                ("count", wait.count),
                ("us", wait.us),
                ("us_max", wait.us_max),
            ],
        )?;
        one.set_item("histogram", wait.histogram)?;
        waits.set_item(cause.name(), one)?;
    }
    dict.set_item("waits", waits)?;
    Ok(dict)
}
