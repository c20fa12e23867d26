//! How does an open store get another table, or a table other options?

use std::sync::Arc;

use super::super::Parts;
use super::super::core::{Core, ShardCell, Table, of_table, point};
use super::super::workers::Workers;
use super::{make_table, validate_table};
use crate::error::{ArgumentError, Result};
use crate::options::{TABLES_MAX, TableDescriptor, TableOptions};
use crate::units::TableId;

/// What is done so that a store has some tables.
#[derive(Default)]
struct Plan {
    /// All tables, by id.
    tables: Vec<Arc<Table>>,
    /// Those of them that are new, at the end.
    made: usize,
    /// Tables with other options than before, and those.
    tuned: Vec<(Arc<Table>, TableOptions)>,
}

impl Plan {
    fn changes_nothing(&self) -> bool {
        self.made == 0 && self.tuned.is_empty()
    }

    /// Gives tables other options; those that they had.
    fn tune(&self, core: &Core) -> Vec<(Arc<Table>, TableOptions)> {
        let tune = |(table, options): &(Arc<Table>, TableOptions)| {
            let before = table.tuning().options;
            table.set_options(*options, &core.options);
            core.tune_caches(table);
            (Arc::clone(table), before)
        };
        self.tuned.iter().map(tune).collect()
    }
}

/// A table that there is to be. Without options one that is there keeps its own.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// What is fixed with its data.
    pub descriptor: &'a TableDescriptor,
    /// What is said for it beside what is said for all tables.
    pub options: Option<TableOptions>,
}

impl Wanted<'_> {
    fn validate(&self) -> Result<()> {
        self.descriptor.validate()?;
        self.descriptor.check_computable()?;
        let name = &self.descriptor.name;
        self.options.map_or(Ok(()), |o| validate_table(name, &o))
    }
}

impl Parts {
    /// Adds a table, or finds it.
    ///
    /// # Errors
    /// As [`Parts::create_tables`].
    pub fn create_table(&self, wanted: &Wanted<'_>) -> Result<TableId> {
        wanted.validate()?;
        self.carry_out(|plan| self.add(plan, wanted))
    }

    /// Adds tables, or finds them; all or none.
    ///
    /// # Errors
    /// `UnsupportedTable`; `InvalidArgument`: a changed descriptor, no room for a row.
    pub fn create_tables(&self, wanted: &[Wanted<'_>]) -> Result<Vec<TableId>> {
        wanted.iter().try_for_each(Wanted::validate)?;
        self.carry_out(|plan| wanted.iter().map(|w| self.add(plan, w)).collect())
    }

    /// Does what is planned, and gives what the plan gave; `plan` is asked again once nothing else
    /// changes the tables.
    fn carry_out<T>(&self, plan: impl Fn(&mut Plan) -> Result<T>) -> Result<T> {
        let planned = || -> Result<(Plan, T)> {
            let mut all = Plan {
                tables: self.core.all_tables(),
                ..Plan::default()
            };
            let found = plan(&mut all)?;
            if all.tables.len() > TABLES_MAX {
                let what =
                    format!("a store has at most {TABLES_MAX} tables, dropped ones included");
                return Err(ArgumentError::Other { what }.into());
            }
            Ok((all, found))
        };
        let (plan, found) = planned()?;
        if plan.changes_nothing() {
            return Ok(found);
        }
        self.core.check_writable()?;
        // No checkpoint runs, no batch is admitted, nothing is pushed meanwhile; leases may be out.
        let _role = self.checkpointer.wait_idle();
        let _alarm = self.core.ssd.poison.alarm();
        let _admission = self.puller.admission_alone();
        let _whole = self.core.gate_alone();
        let (plan, found) = planned()?;
        if plan.changes_nothing() {
            return Ok(found);
        }
        let pins = |(table, own): &&(Arc<Table>, TableOptions)| {
            let asked = own.policy.unwrap_or(self.core.options.policy);
            asked.keeps_all() && !table.tuning().policy.keeps_all()
        };
        let count = self.in_use();
        if count > 0 && plan.tuned.iter().any(|tuned| pins(&tuned)) {
            // Batches were promised the room of rows that would stay from now on.
            let what = "a table can't be given the policy PinAll or Staged";
            return Err(ArgumentError::LeasesOutstanding { what, count }.into());
        }
        if !plan.tuned.is_empty() {
            self.warmer.stop();
        }
        self.leave_room(&plan, pins)?;
        let before = self.core.caches();
        let (ssd, options) = (&self.core.ssd, &self.core.options);
        let buffers = Workers::bytes_for(options, &plan.tables) + self.flusher.buffer_bytes();
        self.core.add_to_caches(&plan.tables, buffers)?;
        let options_before = plan.tune(&self.core);
        let room = self.check_promises();
        let made = room.and_then(|()| self.workers.fit(ssd, options, &plan.tables));
        if made.is_err() {
            let undo = Plan {
                tuned: options_before,
                ..Plan::default()
            };
            undo.tune(&self.core);
            self.core.restore_caches(before);
        }
        made?;
        point("create_table");
        self.core.set_tables(plan.tables);
        self.passes.blocks.let_go(|id| {
            let table = self.core.table(id);
            table.is_ok_and(|table| !table.tuning().policy.has_blocks())
        });
        Ok(found)
    }

    /// Lets rows leave of tables that are to keep theirs from now on, until other tables have their share.
    ///
    /// # Errors
    /// `InvalidArgument` where too many may not leave; `NoSpace`, `Io`, `Poisoned` where changed ones could not
    /// be written.
    fn leave_room(
        &self,
        plan: &Plan,
        pins: impl Fn(&&(Arc<Table>, TableOptions)) -> bool,
    ) -> Result<()> {
        for (table, _) in plan.tuned.iter().filter(pins) {
            let id = table.id.0 as usize;
            let thinned = || {
                let mut shards = self.core.shards.iter();
                shards.all(|cell| cell.lock().thin_out(id))
            };
            if !thinned() && !self.core.read_only {
                // Changed ones leave once they are written.
                self.flusher.flush_all()?;
            }
            if !thinned() {
                let why = String::from(
                    "its rows in memory leave too little room for those of other tables: make the cache larger",
                );
                let (name, value) = ("policy", String::from("PinAll"));
                let error = ArgumentError::Option { name, value, why };
                return Err(of_table(error.into(), &table.descriptor.name));
            }
        }
        Ok(())
    }

    /// Fails where batches hold, or were promised, more than the caches have: they wait for no room in vain.
    ///
    /// # Errors
    /// `OverBudget`.
    fn check_promises(&self) -> Result<()> {
        let bytes = self.core.cache_bytes();
        self.core.shards.iter().try_for_each(|cell| {
            let shard = cell.lock();
            self.check_room(&shard, bytes, shard.cache.bytes_max())
        })
    }

    /// Plans what there is to do for this table; gives the id that it has or will have.
    ///
    /// # Errors
    /// `InvalidArgument`: a changed descriptor.
    fn add(&self, plan: &mut Plan, wanted: &Wanted<'_>) -> Result<TableId> {
        let (all, descriptor) = (&self.core.options, wanted.descriptor);
        let own = wanted.options;
        let own = own.unwrap_or_else(|| self.core.options_of(&descriptor.name));
        let same = |t: &&Arc<Table>| t.descriptor.name == descriptor.name && !t.is_dropped();
        let Some(known) = plan.tables.iter().find(same) else {
            let table = Arc::new(make_table(plan.tables.len(), descriptor, own, all));
            let id = table.id;
            plan.tables.push(table);
            plan.made += 1;
            return Ok(id);
        };
        compare(&known.descriptor, descriptor)?;
        let (id, before) = (known.id, known.tuning().options);
        if wanted.options.is_some() && own != before {
            plan.tuned.push((Arc::clone(known), own));
        }
        Ok(id)
    }

    /// Gives the caches the memory that buffers leave, and makes them know these tables.
    ///
    /// # Errors
    /// `InvalidArgument` where a row has no room.
    pub fn add_to_caches(&self, tables: &[Arc<Table>]) -> Result<()> {
        let buffers = self.workers.bytes() + self.flusher.buffer_bytes();
        self.core.add_to_caches(tables, buffers)
    }

    /// Fails while leases have rows of a table, tickets are out, or a batch needs its rows.
    ///
    /// # Errors
    /// `InvalidArgument` with their number, and what can't be done.
    pub fn check_not_in_use(&self, table: TableId, what: &'static str) -> Result<()> {
        let id = table.0 as usize;
        let busy = |cell: &ShardCell| cell.lock().wanted_slots(id);
        let rows: usize = self.core.shards.iter().map(busy).sum();
        match self.puller.outstanding_of(table) + rows {
            0 => Ok(()),
            count => Err(ArgumentError::LeasesOutstanding { what, count }.into()),
        }
    }

    /// Fails where a store that is opened with these tables would have no room for their rows.
    ///
    /// # Errors
    /// As [`Parts::add_to_caches`].
    pub fn check_caches(&self, tables: &[Arc<Table>]) -> Result<()> {
        let workers = Workers::bytes_for(&self.core.options, tables);
        let buffers = workers + self.flusher.buffer_bytes();
        self.core.check_caches(tables, buffers)
    }

    /// Leases and tickets that are out, and rows that a batch needs.
    pub fn in_use(&self) -> usize {
        self.puller.outstanding() + self.busy_rows()
    }

    /// Rows that a batch has pinned or was promised, or that are not on SSD.
    fn busy_rows(&self) -> usize {
        let busy = |cell: &ShardCell| -> usize {
            let shard = cell.lock();
            (0..shard.tables.len())
                .map(|table| shard.wanted_slots(table))
                .sum()
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
