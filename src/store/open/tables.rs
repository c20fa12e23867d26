//! How does an open store get another table?

use std::sync::Arc;

use super::super::Parts;
use super::super::core::{ShardCell, Table, point};
use super::make_table;
use crate::error::{ArgumentError, Result};
use crate::options::{TABLES_MAX, TableDescriptor};
use crate::units::TableId;

impl Parts {
    /// Adds a table, or finds it.
    ///
    /// # Errors
    /// `InvalidArgument`: a changed descriptor, leases outstanding, no room for a row.
    pub fn create_table(&self, descriptor: &TableDescriptor) -> Result<TableId> {
        descriptor.validate()?;
        let tables = self.core.all_tables();
        if let Some(known) = tables.iter().find(|t| t.descriptor.name == descriptor.name) {
            compare(&known.descriptor, descriptor)?;
            return Ok(known.id);
        }
        self.core.check_writable()?;
        self.puller.wait_cancelled();
        // No checkpoint runs, no batch is admitted, nothing is pushed while the slots move.
        let _role = self.checkpointer.wait_idle();
        let _alarm = self.core.ssd.poison.alarm();
        let _admission = self.puller.admission_alone();
        let _whole = self.core.gate_alone();
        let mut tables = self.core.all_tables();
        if let Some(known) = tables.iter().find(|t| t.descriptor.name == descriptor.name) {
            compare(&known.descriptor, descriptor)?;
            return Ok(known.id);
        }
        let count = self.in_use();
        if count > 0 {
            let what = "a table can't be created";
            return Err(ArgumentError::LeasesOutstanding { what, count }.into());
        }
        if tables.len() >= TABLES_MAX {
            let what = format!("a store has at most {TABLES_MAX} tables");
            return Err(ArgumentError::Other { what }.into());
        }
        self.flusher.flush_all()?;
        let table = Arc::new(make_table(tables.len(), descriptor, &self.core.options));
        let id = table.id;
        tables.push(table);
        self.workers
            .fit(&self.core.ssd, &self.core.options, &tables)?;
        self.rebuild_caches(&tables)?;
        point("create_table");
        self.core.set_tables(tables);
        Ok(id)
    }

    /// Gives every table its slots anew. No row is resident that is not clean, no lease is out.
    ///
    /// # Errors
    /// `InvalidArgument` when a table's share holds no row.
    pub fn rebuild_caches(&self, tables: &[Arc<Table>]) -> Result<()> {
        let buffers = self.workers.bytes() + self.flusher.buffer_bytes();
        self.core.rebuild_caches(tables, buffers)
    }

    /// Leases and tickets that are out, and rows that a batch needs.
    pub fn in_use(&self) -> usize {
        self.puller.outstanding() + self.busy_rows()
    }

    /// Rows that a batch has pinned or was promised, or that are not on SSD.
    fn busy_rows(&self) -> usize {
        let busy = |cell: &ShardCell| -> usize {
            cell.lock().tables.iter().map(|t| t.wanted_slots()).sum()
        };
        self.core.shards.iter().map(busy).sum()
    }
}

fn compare(stored: &TableDescriptor, asked: &TableDescriptor) -> Result<()> {
    fn same<T: PartialEq + std::fmt::Debug>(
        name: &str,
        field: &'static str,
        stored: &T,
        asked: &T,
    ) -> Result<()> {
        if stored == asked {
            return Ok(());
        }
        let (stored, asked) = (format!("{stored:?}"), format!("{asked:?}"));
        Err(ArgumentError::DescriptorChanged {
            name: name.to_owned(),
            field,
            stored,
            asked,
        }
        .into())
    }
    let name = &stored.name;
    same(name, "dim", &stored.dim, &asked.dim)?;
    same(name, "dtype", &stored.dtype, &asked.dtype)?;
    same(name, "optimizer", &stored.optimizer, &asked.optimizer)?;
    same(name, "initialiser", &stored.initialiser, &asked.initialiser)?;
    same(name, "seed", &stored.seed, &asked.seed)?;
    same(name, "accumulator", &stored.accumulator, &asked.accumulator)?;
    same(name, "metadata", &stored.metadata, &asked.metadata)
}
