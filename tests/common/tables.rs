//! Tables that come, go and change their names between batches.
//!
//! - A table has the number that the store gave it; what it looks like is a function of that number, so that
//!   a number that a crash made free again stands for the same.
//! - Names come from a small pool: those of dropped tables are used again.

use hps::*;

use super::{FIRST_TABLES, KEYS, Op, Random, Run, descriptor, key};

/// Keys that workloads use of a table that comes and goes.
const BRIEF_KEYS: u64 = 8;
/// Names that such tables have one after the other.
const NAMES: u64 = 3;
/// Most of them at a time, and in all.
const THERE_MAX: usize = 3;
const COUNT_MAX: usize = 12;

/// Tables by number: the name of each, or nothing once it was dropped.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tables(Vec<Option<String>>);

/// What was done to tables.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Changes {
    pub created: u64,
    pub dropped: u64,
    pub renamed: u64,
    /// Of those that were created, with the name of a dropped one.
    pub named_again: u64,
}

/// What a table that comes and goes looks like: 3 to 128 weights, three optimizers.
pub fn brief(number: usize) -> TableDescriptor {
    let optimizers = [Optimizer::Sgd, Optimizer::Adagrad, Optimizer::Adam];
    TableDescriptor::new("brief", [3, 128, 17, 64, 40][number % 5])
        .optimizer(optimizers[number % 3])
        .initialiser(Initialiser::Constant { value: 0.125 })
        .accumulator(0.25)
}

/// How many keys of a table workloads use.
pub fn keys_of(table: usize) -> u64 {
    KEYS.get(table).copied().unwrap_or(BRIEF_KEYS)
}

impl Tables {
    /// Numbers that were given.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn has(&self, table: usize) -> bool {
        self.0.get(table).is_some_and(Option::is_some)
    }

    /// Those that are there, by number.
    pub fn there(&self) -> impl Iterator<Item = (usize, &str)> {
        let all = self.0.iter().enumerate();
        all.filter_map(|(number, name)| Some((number, name.as_deref()?)))
    }

    fn is_named(&self, name: &str) -> bool {
        self.there().any(|(_, other)| other == name)
    }

    /// Those that come and go.
    fn brief(&self) -> Vec<usize> {
        let there = self.there().map(|(number, _)| number);
        there.filter(|number| *number > FIRST_TABLES).collect()
    }

    pub fn push(&mut self, name: &str) {
        self.0.push(Some(name.to_owned()));
    }

    /// Those of a store that goes back to a checkpoint that had these.
    pub fn back_to(&self, cut: &Tables) -> Tables {
        let younger = self.0.iter().skip(cut.0.len()).map(|name| {
            let name = name.as_ref()?;
            (!cut.is_named(name)).then(|| name.clone())
        });
        Tables(cut.0.iter().cloned().chain(younger).collect())
    }

    /// What is wrong with the tables that a store shows.
    pub fn differ(&self, store: &Store) -> Option<String> {
        let shown = store.tables();
        let fits = |((number, name), (id, found)): ((usize, &str), &(TableId, TableDescriptor))| {
            let expected = descriptor(number).name(name.to_owned());
            id.0 as usize == number && *found == expected
        };
        let same = shown.len() == self.there().count() && self.there().zip(&shown).all(fits);
        (!same).then(|| format!("tables {shown:?} instead of {self:?}"))
    }
}

impl Run {
    /// Makes a table that comes and goes, after the ones that stay.
    pub fn create_brief(&mut self, seed: u64) -> Result<()> {
        let tables = &self.model.tables;
        if tables.brief().len() >= THERE_MAX || tables.count() >= COUNT_MAX {
            return Ok(());
        }
        if !tables.has(FIRST_TABLES) {
            return self.create_table();
        }
        let name = format!("brief-{}", Random(seed).below(NAMES));
        if self.model.tables.is_named(&name) {
            return Ok(());
        }
        let number = self.model.tables.count();
        let descriptor = descriptor(number).name(name.clone());
        let id = self.store().create_table(&descriptor)?;
        assert_eq!(id.0 as usize, number, "numbers rise one by one");
        self.model.tables.push(&name);
        self.changes.created += 1;
        self.changes.named_again += u64::from(self.gone.contains(&name));
        self.brief_rows(seed as u8 as f32)
    }

    /// Gives some rows of each table that comes and goes a value.
    pub fn brief_rows(&mut self, value: f32) -> Result<()> {
        for table in self.model.tables.brief() {
            let first = value.to_bits() as u64 % 5;
            let keys = (first..first + 3).map(key).collect();
            self.step(&Op::Rows(table, keys, value))?;
        }
        Ok(())
    }

    /// Drops a table that comes and goes.
    pub fn drop_brief(&mut self, seed: u64) -> Result<()> {
        let brief = self.model.tables.brief();
        let Some(number) = brief.get(seed as usize % brief.len().max(1)).copied() else {
            return Ok(());
        };
        self.store().drop_table(TableId(number as u32))?;
        let name = self.model.tables.0[number].take();
        self.gone.extend(name);
        self.model.rows.retain(|(table, _), _| *table != number);
        self.model.half_put.retain(|(table, _), _| *table != number);
        self.changes.dropped += 1;
        Ok(())
    }

    /// Gives a table that comes and goes another name, where that is free.
    pub fn rename_brief(&mut self, seed: u64) -> Result<()> {
        let brief = self.model.tables.brief();
        let Some(number) = brief.get(seed as usize % brief.len().max(1)).copied() else {
            return Ok(());
        };
        let name = format!("brief-{}", Random(seed).below(NAMES));
        let id = TableId(number as u32);
        if self.model.tables.is_named(&name) {
            let own = self.model.tables.0[number].as_ref() == Some(&name);
            let result = self.store().rename_table(id, &name);
            assert!(result.is_ok() == own || matches!(result, Err(Error::Poisoned { .. })));
            return Ok(());
        }
        self.store().rename_table(id, &name)?;
        self.model.tables.0[number] = Some(name);
        self.changes.renamed += 1;
        Ok(())
    }
}
