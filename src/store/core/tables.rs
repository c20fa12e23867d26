//! Which tables does an open store have, and which options were said for their names?

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use super::{Core, Table};
use crate::error::{ArgumentError, Error, Result};
use crate::options::{HyperParameters, RuntimeOptions, TableOptions};
use crate::ssd::tables::TableState;
use crate::sync::{Mutex, MutexGuard, RwLock};
use crate::units::TableId;

/// Options of single tables, by name.
type OptionsByName = BTreeMap<String, TableOptions>;

/// What the options said of single tables.
#[derive(Debug)]
struct Said {
    /// Where a table was renamed, under its new name.
    by_name: OptionsByName,
    /// For names that a table got by a rename: what was said for them before. It is for the next table
    /// that is created under the name.
    waiting: OptionsByName,
}

impl Said {
    /// A table has another name. What was said for it goes with it.
    fn rename(&mut self, old: &str, new: &str) {
        let own = self.by_name.remove(old);
        self.free(old);
        if let Some(waits) = self.by_name.remove(new) {
            self.waiting.insert(new.to_owned(), waits);
        }
        if let Some(own) = own {
            self.by_name.insert(new.to_owned(), own);
        }
    }

    /// No table has this name any more.
    fn free(&mut self, name: &str) {
        if let Some(waits) = self.waiting.remove(name) {
            self.by_name.insert(name.to_owned(), waits);
        }
    }
}

/// The tables of an open store.
#[derive(Debug)]
pub(super) struct Tables {
    /// By id, dropped ones included.
    list: RwLock<Vec<Arc<Table>>>,
    /// What the options said.
    said: Mutex<Said>,
}

impl Tables {
    pub fn new(list: Vec<Arc<Table>>, options: &RuntimeOptions) -> Tables {
        Tables {
            list: RwLock::new(list),
            said: Mutex::new(Said {
                by_name: options.tables.clone(),
                waiting: OptionsByName::new(),
            }),
        }
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Core {
    /// A table by id.
    ///
    /// # Errors
    /// `InvalidArgument` for an id of another store and for a dropped table, `Forked`.
    pub fn table(&self, id: TableId) -> Result<Arc<Table>> {
        self.check_process()?;
        let found = {
            let tables = self
                .tables
                .list
                .read()
                .unwrap_or_else(PoisonError::into_inner);
            tables.get(id.0 as usize).cloned()
        };
        let table = found.ok_or_else(|| self.unknown_table(format!("#{id}")))?;
        table.check_there()?;
        Ok(table)
    }

    /// A table by name.
    ///
    /// # Errors
    /// `InvalidArgument`, `Forked`.
    pub fn table_named(&self, name: &str) -> Result<Arc<Table>> {
        self.check_process()?;
        let found = self.tables_there().find(|t| t.descriptor.name == name);
        found.ok_or_else(|| self.unknown_table(name.to_owned()))
    }

    #[cold]
    fn unknown_table(&self, name: String) -> Error {
        let known = self.tables_there().map(|t| t.descriptor.name.clone());
        let known = known.collect();
        ArgumentError::UnknownTable { name, known }.into()
    }

    /// The tables that were not dropped, by id.
    pub fn tables_there(&self) -> impl Iterator<Item = Arc<Table>> + use<> {
        self.all_tables().into_iter().filter(|t| !t.is_dropped())
    }

    /// All tables by id, dropped ones included.
    pub fn all_tables(&self) -> Vec<Arc<Table>> {
        let list = self.tables.list.read();
        list.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the list of tables: slots for their rows are there.
    pub fn set_tables(&self, tables: Vec<Arc<Table>>) {
        let list = self.tables.list.write();
        *list.unwrap_or_else(PoisonError::into_inner) = tables;
    }

    /// All tables as they are now, by id.
    pub fn table_states(&self) -> Vec<TableState> {
        let tables = self.all_tables();
        let state = |table: &Arc<Table>| TableState {
            descriptor: table.descriptor.clone(),
            is_dropped: table.is_dropped(),
        };
        tables.iter().map(state).collect()
    }

    /// Hyperparameters in force, by table id.
    pub fn hypers(&self) -> Vec<Option<HyperParameters>> {
        let tables = self.all_tables();
        let hyper = |table: &Arc<Table>| {
            let there = !table.is_dropped();
            there.then(|| *table.tuning().updater.hyper())
        };
        tables.iter().map(hyper).collect()
    }

    /// What the options say of a table of this name.
    pub fn options_of(&self, name: &str) -> TableOptions {
        let said = self.tables.said();
        said.by_name.get(name).copied().unwrap_or_default()
    }

    /// The name of a table that was dropped is free.
    pub fn free_name(&self, name: &str) {
        self.tables.said().free(name);
    }

    /// Puts a table of another name into the place of the one of its id. What the options said for the
    /// old name is said for the new one; what they said for that waits until it is free again.
    pub fn replace_renamed(&self, table: Table) {
        let mut tables = self.all_tables();
        let place = &mut tables[table.id.0 as usize];
        let (old, new) = (&place.descriptor.name, &table.descriptor.name);
        self.tables.said().rename(old, new);
        *place = Arc::new(table);
        self.set_tables(tables);
    }

    /// The options of single tables as they are to be after a rollback to these: those in force, under
    /// the names that the tables have then.
    pub fn table_options_of(&self, rolled_back: &[TableState]) -> BTreeMap<String, TableOptions> {
        let (mut options, waiting) = {
            let said = self.tables.said();
            (said.by_name.clone(), said.waiting.clone())
        };
        let tables = self.all_tables();
        for table in tables.iter().filter(|t| !t.is_dropped()) {
            options.remove(&table.descriptor.name);
        }
        for table in &tables {
            let own = table.tuning().options;
            match rolled_back.get(table.id.0 as usize) {
                Some(then) if !then.is_dropped => {
                    options.insert(then.descriptor.name.clone(), own);
                }
                // It is made anew, if at all.
                _ if !table.is_dropped() => {
                    let name = table.descriptor.name.clone();
                    options.entry(name).or_insert(own);
                }
                _ => {}
            }
        }
        for (name, waits) in waiting {
            options.entry(name).or_insert(waits);
        }
        options
    }
}
