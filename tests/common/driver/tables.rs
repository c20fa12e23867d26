//! Tables that come, go and change their names between batches.

use super::super::model::TableModel;
use super::super::rng::Rng;
use super::{Driver, Totals};
use hps::*;

/// Tables that stay, made with the store.
const FIRST: usize = 3;
/// Names that the others have one after the other, and most of these at a time.
const NAMES: usize = 3;
const BRIEF_MAX: usize = 2;

/// A table that comes and goes: 3 to 128 weights, three optimizers. What it looks like is a function of
/// its number.
fn brief(number: usize, name: &str) -> TableDescriptor {
    let (dim, optimizer) = [
        (3, Optimizer::Adam),
        (128, Optimizer::Sgd),
        (17, Optimizer::Adagrad),
        (64, Optimizer::Sgd),
        (40, Optimizer::Adagrad),
    ][number % 5];
    TableDescriptor::new(name, dim)
        .optimizer(optimizer)
        .initialiser(Initialiser::Constant { value: -0.5 })
        .accumulator(0.1)
}

impl Driver<'_> {
    /// Tables that were not dropped.
    pub fn there(&self) -> Vec<usize> {
        let all = self.tables.iter().enumerate();
        all.filter(|(_, t)| !t.is_dropped).map(|(t, _)| t).collect()
    }

    /// This table, or the first one where it was dropped.
    pub fn live(&self, table: usize) -> usize {
        if self.tables[table].is_dropped {
            0
        } else {
            table
        }
    }

    fn briefs(&self) -> Vec<usize> {
        let there = self.there().into_iter();
        there.filter(|table| *table >= FIRST).collect()
    }

    pub fn has_brief(&self) -> bool {
        self.there().len() > FIRST
    }

    fn is_named(&self, name: &str) -> bool {
        let mut there = self.tables.iter().filter(|t| !t.is_dropped);
        there.any(|t| t.descriptor.name == name)
    }

    /// The tables after a rollback: the checkpoint's with its rows and names, younger ones without rows,
    /// if their name is free there.
    pub fn tables_back_to(&self, cut: &[TableModel]) -> Vec<TableModel> {
        let taken = |name: &str| {
            let mut there = cut.iter().filter(|t| !t.is_dropped);
            there.any(|t| t.descriptor.name == name)
        };
        let younger = self.tables.iter().skip(cut.len()).map(|table| {
            let mut table = table.clone();
            table.rows.clear();
            table.is_dropped |= taken(&table.descriptor.name);
            table
        });
        cut.iter().cloned().chain(younger).collect()
    }

    /// The store has the tables of the model, and no other.
    pub fn check_tables(&self) {
        let found = self.store().tables();
        let expected = self.there().into_iter();
        let expected = expected.map(|t| (Self::id(t), self.tables[t].descriptor.clone()));
        assert_eq!(found, expected.collect::<Vec<_>>());
        for (table, model) in self.tables.iter().enumerate().filter(|(_, t)| t.is_dropped) {
            let error = self.store().contains(Self::id(table), &[]).unwrap_err();
            let (name, table) = (model.descriptor.name.clone(), Self::id(table));
            let dropped = ArgumentError::TableDropped { name, table };
            assert!(matches!(error, Error::InvalidArgument(e) if e == dropped));
        }
    }

    /// A table that is new, or one that is there.
    pub fn create_table(&mut self, rng: &mut Rng) {
        let name = format!("brief-{}", rng.below(NAMES));
        let known = self.there().into_iter();
        let mut known = known.filter(|t| self.tables[*t].descriptor.name == name);
        if let Some(known) = known.next() {
            let descriptor = self.tables[known].descriptor.clone();
            let id = self.store().create_table(&descriptor).unwrap();
            assert_eq!(id, Self::id(known));
            return;
        }
        if self.briefs().len() >= BRIEF_MAX {
            return;
        }
        // Leases may be out.
        let number = self.tables.len();
        let descriptor = brief(number, &name);
        let id = self.store().create_table(&descriptor).unwrap();
        assert_eq!(id, Self::id(number), "no number is given twice");
        self.tables.push(TableModel::new(descriptor, 200));
        Totals::add(&self.totals.tables_created, 1);
    }

    pub fn drop_table(&mut self, rng: &mut Rng) {
        let briefs = self.briefs();
        let Some(table) = briefs.get(rng.below(briefs.len().max(1))).copied() else {
            return;
        };
        // Leases and tickets of other tables may be out.
        if let Err(error) = self.store().drop_table(Self::id(table)) {
            assert!(self.held() > 0);
            let held = ArgumentError::LeasesOutstanding {
                what: "a table can't be dropped",
                count: 0,
            };
            let is_held =
                |e: &ArgumentError| std::mem::discriminant(e) == std::mem::discriminant(&held);
            assert!(matches!(error, Error::InvalidArgument(e) if is_held(&e)));
            Totals::add(&self.totals.drops_refused, 1);
            if rng.one_in(2) {
                return;
            }
            self.let_go();
            self.store().drop_table(Self::id(table)).unwrap();
        }
        self.tables[table].rows.clear();
        self.tables[table].is_dropped = true;
        self.changed = true;
        self.check_tables();
        Totals::add(&self.totals.tables_dropped, 1);
    }

    /// Also while rows are held.
    pub fn rename_table(&mut self, rng: &mut Rng) {
        let all = self.there();
        let table = all[rng.below(all.len())];
        let own = self.tables[table].descriptor.name.clone();
        let name = format!("brief-{}", rng.below(NAMES));
        let result = self.store().rename_table(Self::id(table), &name);
        if self.is_named(&name) {
            assert_eq!(result.is_ok(), own == name, "{own} -> {name}");
            return;
        }
        result.unwrap();
        self.tables[table].descriptor.name = name;
        self.changed = true;
        self.check_tables();
        Totals::add(&self.totals.tables_renamed, 1);
    }
}
