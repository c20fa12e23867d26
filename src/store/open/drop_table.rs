//! How does an open store lose a table, or a table get another name?

use std::sync::Arc;

use super::super::Parts;
use super::super::core::{Table, point};
use crate::error::{ArgumentError, Result};
use crate::options::check_name;
use crate::units::TableId;

impl Parts {
    /// Drops a table: its memory is the others', its rows are stale.
    ///
    /// # Errors
    /// `InvalidArgument`: no such table, leases outstanding; `NoSpace`, `Io`, `Poisoned`, `ReadOnly`. The
    /// table is there as before.
    pub fn drop_table(&self, id: TableId) -> Result<()> {
        self.core.table(id)?;
        self.core.check_writable()?;
        self.puller.wait_cancelled();
        self.passes.blocks.let_go(|of| of == id);
        {
            // As where a table is made: no checkpoint runs, no batch is admitted, nothing is pushed.
            let _role = self.checkpointer.wait_idle();
            let _alarm = self.core.ssd.poison.alarm();
            let _admission = self.puller.admission_alone();
            let _whole = self.core.gate_alone();
            let table = self.core.table(id)?;
            self.check_not_in_use(id, "a table can't be dropped")?;
            // Nobody writes rows of it while they go.
            let _writer = self.flusher.lock_writer();
            self.take_away(&table);
        }
        self.compactor.rows_were_flushed();
        Ok(())
    }

    /// Takes memory and rows of a table away. Nobody reads, changes or writes rows meanwhile.
    fn take_away(&self, table: &Table) {
        // First of all: whoever finds no rows finds the mark.
        table.set_dropped(true);
        self.core.drop_from_caches(table);
        point("drop_table");
        self.core.forget_rows(table);
        self.core.free_name(&table.descriptor.name);
        self.core.changes.note();
    }

    /// Gives a table another name.
    ///
    /// # Errors
    /// `InvalidArgument`: no such table, a name that is taken or can't be; `Poisoned`, `ReadOnly`.
    pub fn rename_table(&self, id: TableId, name: &str) -> Result<()> {
        self.core.table(id)?;
        self.core.check_writable()?;
        check_name(name)?;
        let _alarm = self.core.ssd.poison.alarm();
        // A cut has the old name or the new one.
        let _whole = self.core.gate_alone();
        let table = self.core.table(id)?;
        if table.descriptor.name == name {
            return Ok(());
        }
        let is_taken = |other: Arc<Table>| other.descriptor.name == name;
        if self.core.tables_there().any(is_taken) {
            let name = name.to_owned();
            return Err(ArgumentError::TableExists { name }.into());
        }
        point("rename_table");
        self.core.replace_renamed(table.renamed(name));
        self.core.changes.note();
        Ok(())
    }
}
