//! What is a shard: rows in memory and their locations on SSD, behind one lock?

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use super::guard::point;
use super::promises::Promises;
use super::waits::{Stretch, Waiting, Waits};
use crate::error::{ArgumentError, Error, Result};
use crate::mem::{Cache, Shrunk, halved};
use crate::options::{PolicyKind, RuntimeOptions, TableDescriptor, TableOptions};
use crate::row::{RowLayout, Updater};
use crate::ssd::index::{Files, Index as _, KeyIndex};
use crate::stats::{TableStats, Wait};
use crate::sync::RwLock;
use crate::sync::atomic::AtomicBool;
use crate::units::{TableId, narrow, to_usize};

/// Rows between the one whose class is kept and the one whose line the processor is asked to fetch.
const AHEAD_ROWS: usize = 8;

/// Keys whose classes are halved at a time: some ten microseconds.
const HALVED_KEYS: usize = 1 << 14;
/// Rows that never leave let those of other tables have this share of the cache, one in so many.
const KEPT_SHARE: u64 = 8;

/// What was done with the rows of a table; counted once a batch, or once a file. Nothing is decided by
/// these numbers: they are no points where a schedule of a test may change.
#[derive(Debug, Default)]
pub struct Work {
    pub(super) asked: AtomicU64,
    pub(super) hits: AtomicU64,
    pub(super) read: AtomicU64,
    pub(super) pushed: AtomicU64,
    pub(super) put: AtomicU64,
    pub(super) non_finite: AtomicU64,
    pub(super) flushed: AtomicU64,
}

/// One table of a store.
#[derive(Debug)]
pub struct Table {
    /// Its number.
    pub id: TableId,
    /// As stored.
    pub descriptor: TableDescriptor,
    /// Where weights and state lie.
    pub layout: RowLayout,
    /// What stays the same when it is renamed.
    lasting: Arc<Lasting>,
}

/// What a table has whatever its name.
#[derive(Debug)]
struct Lasting {
    /// What may differ from open to open. Replaced while nothing is pushed, pulled or cut.
    tuning: RwLock<Tuning>,
    /// Set while nothing is pushed, put, pulled or cut.
    is_dropped: AtomicBool,
    /// What its batches waited for.
    waits: Waits,
    /// What was done with its rows.
    work: Work,
}

/// What the options of a table come to.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// What is said for it beside what is said for all tables.
    pub options: TableOptions,
    /// The update rule, with its hyperparameters.
    pub updater: Arc<Updater>,
    /// Which of its rows leave memory first.
    pub policy: PolicyKind,
}

impl Tuning {
    fn new(descriptor: &TableDescriptor, options: TableOptions, all: &RuntimeOptions) -> Tuning {
        Tuning {
            options,
            updater: Arc::new(Updater::new(descriptor, &options.hyper_or(all))),
            policy: options.policy_or(all),
        }
    }
}

impl Table {
    /// A table that nobody has used yet.
    #[must_use]
    pub fn new(
        id: TableId,
        descriptor: &TableDescriptor,
        options: TableOptions,
        all: &RuntimeOptions,
    ) -> Table {
        Table {
            id,
            descriptor: descriptor.clone(),
            layout: RowLayout::new(descriptor),
            lasting: Arc::new(Lasting {
                tuning: RwLock::new(Tuning::new(descriptor, options, all)),
                is_dropped: AtomicBool::new(false),
                waits: Waits::default(),
                work: Work::default(),
            }),
        }
    }

    /// The same table under another name.
    #[must_use]
    pub fn renamed(&self, name: &str) -> Table {
        let mut descriptor = self.descriptor.clone();
        name.clone_into(&mut descriptor.name);
        Table {
            id: self.id,
            descriptor,
            layout: self.layout,
            lasting: Arc::clone(&self.lasting),
        }
    }

    /// Whether it was dropped.
    #[inline]
    #[must_use]
    pub fn is_dropped(&self) -> bool {
        self.lasting.is_dropped.load(Ordering::Acquire)
    }

    /// Says whether it was dropped. The caller keeps pulls, pushes, puts and cuts away, or is about to open
    /// the store.
    pub fn set_dropped(&self, is_dropped: bool) {
        self.lasting.is_dropped.store(is_dropped, Ordering::Release);
    }

    /// Fails for a table that was dropped.
    ///
    /// # Errors
    /// `InvalidArgument`.
    #[inline]
    pub fn check_there(&self) -> Result<()> {
        match self.is_dropped() {
            false => Ok(()),
            true => Err(self.dropped()),
        }
    }

    #[cold]
    fn dropped(&self) -> Error {
        let (name, table) = (self.descriptor.name.clone(), self.id);
        ArgumentError::TableDropped { name, table }.into()
    }

    /// What was done with its rows.
    pub(super) fn work(&self) -> &Work {
        &self.lasting.work
    }

    /// What its options come to now.
    #[must_use]
    pub fn tuning(&self) -> Tuning {
        let tuning = self.lasting.tuning.read();
        tuning.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives it other options. The caller keeps pulls, pushes and cuts away, and makes its cache anew.
    pub fn set_options(&self, options: TableOptions, all: &RuntimeOptions) {
        let tuning = Tuning::new(&self.descriptor, options, all);
        let now = self.lasting.tuning.write();
        *now.unwrap_or_else(PoisonError::into_inner) = tuning;
    }

    /// One of its batches waits; the wait ends when what this gives is dropped.
    pub fn waits(&self, cause: Wait) -> Waiting<'_> {
        self.lasting
            .waits
            .begin(&self.descriptor.name, cause, Instant::now())
    }

    /// One of its batches waits for this since then, or still does.
    pub fn waits_on<'a>(&'a self, stretch: &mut Stretch<'a>, cause: Wait, since: Instant) {
        stretch.go_on(&self.lasting.waits, &self.descriptor.name, cause, since);
    }

    /// Whether it is one of its batches that waits, for this.
    pub fn is_waited_for(&self, stretch: &Stretch<'_>, cause: Wait) -> bool {
        stretch.is(&self.lasting.waits, cause)
    }

    /// What is counted for it; not what its shards hold.
    #[must_use]
    pub fn stats(&self) -> TableStats {
        let mut stats = TableStats {
            id: self.id,
            name: self.descriptor.name.clone(),
            policy: self.tuning().policy,
            waits: self.lasting.waits.stats(),
            ..TableStats::default()
        };
        self.work()
            .count(self.descriptor.row_bytes() as u64, &mut stats);
        stats
    }

    /// About the bytes of a row in a file: record head, padding, its share of key blocks.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.descriptor.row_bytes() as u64 + 30
    }
}

/// One table's locations in one shard, and what its batches were promised.
#[derive(Debug)]
pub struct ShardTable {
    /// Rows on SSD.
    pub index: KeyIndex,
    /// What its batches and puts were promised.
    pub promises: Promises,
    /// Halvings of the cache's frequencies that the classes of the index have gone through, and where
    /// the next one is.
    halvings: u64,
    halving: u64,
    /// Halvings that are gone through at once now.
    at_once: u64,
}

impl ShardTable {
    /// Nothing is promised.
    pub(super) fn new(index: KeyIndex) -> ShardTable {
        ShardTable {
            index,
            promises: Promises::default(),
            halvings: 0,
            halving: 0,
            at_once: 0,
        }
    }

    /// Replaces the index: the store is being opened.
    pub fn set_index(&mut self, index: KeyIndex) {
        self.index = index;
    }

    /// Forgets where its rows are on SSD: the table was dropped. `range`: the shard's.
    pub fn forget_all(&mut self, files: &Files, range: (u64, u64)) {
        self.index.forget_all(files, range);
    }

    /// Halves the classes of some keys, if the cache has halved its frequencies since.
    fn halve_some(&mut self, halvings: u64) {
        if self.halvings >= halvings {
            return;
        }
        if self.halving == 0 {
            self.at_once = halvings - self.halvings;
        }
        let once = halved();
        let none: [u8; 16] = std::array::from_fn(narrow);
        let again = |all: [u8; 16]| all.map(|class| once[usize::from(class)]);
        // No class outlives eight.
        let several = (0..self.at_once.min(8)).fold(none, |all, _| again(all));
        match self
            .index
            .replace_classes(self.halving, HALVED_KEYS, &several)
        {
            Some(next) => self.halving = next,
            None => (self.halving, self.halvings) = (0, self.halvings + self.at_once),
        }
    }
}

/// Beside what a call wants memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// All slots that are busy.
    Copies,
    /// Those that stay so when the copies of a running checkpoint are written.
    Promises,
    /// Of these, of the tables that it names, those that are taken or lent: slots that were promised may be for the
    /// rows that the call wants.
    Rows,
}

/// A range of mix64.
#[derive(Debug)]
pub struct Shard {
    /// By table id.
    pub tables: Vec<ShardTable>,
    /// Rows in memory, of all tables.
    pub cache: Cache,
    /// The current checkpoint interval.
    interval: u32,
    /// Between a cut and its capture: rows dirty at or before this interval are frozen.
    frozen: Option<u32>,
    /// A state as of the cut could not be written and exists no more: the running checkpoint
    /// can't be completed.
    lost: bool,
    /// The table whose classes are halved next beside those of one whose rows come in.
    halved: usize,
    /// Calls that wait until promises have ended.
    awaiting: usize,
}

impl Shard {
    /// Without tables.
    #[must_use]
    pub fn new(interval: u32, cache: Cache) -> Shard {
        Shard {
            tables: Vec::new(),
            cache,
            interval,
            frozen: None,
            lost: false,
            halved: 0,
            awaiting: 0,
        }
    }

    /// Drops cold clean rows until a table can have so many more or no such row is left; the index
    /// remembers how often they were used.
    pub fn reclaim(&mut self, table: usize, want: usize) -> usize {
        let room = self.cache.reclaim(table, want);
        self.remember_left();
        // Some of the keys each time, and some of a table that may seldom miss.
        let halvings = self.cache.halvings();
        self.tables[table].halve_some(halvings);
        self.halved = (self.halved + 1) % self.tables.len();
        self.tables[self.halved].halve_some(halvings);
        room
    }

    /// Drops some cold clean rows if the cache has more than its memory; what is left to do.
    pub fn shrink(&mut self) -> Shrunk {
        let shrunk = self.cache.shrink();
        self.remember_left();
        shrunk
    }

    /// Drops clean rows of a table, which are to stay from now on, until those that stay leave others their
    /// share; whether they do.
    pub fn thin_out(&mut self, table: usize) -> bool {
        let fits = loop {
            let needed = self.standing_bytes(|t| t == table || !self.cache.evicts(t));
            let over = needed.saturating_sub(self.cache.bytes_max());
            let rows = over.div_ceil(self.cache.row_cost(table));
            if over == 0 || self.cache.drop_clean(table, to_usize(rows)) == 0 {
                break over == 0;
            }
        };
        self.remember_left();
        fits
    }

    /// Keeps how often the rows that left were used.
    pub(in crate::store) fn remember_left(&mut self) {
        let left = self.cache.left();
        for (i, row) in left.iter().enumerate() {
            if let Some(ahead) = left.get(i + 2 * AHEAD_ROWS) {
                let index = &self.tables[usize::from(ahead.table)].index;
                index.prefetch_segment(ahead.hash);
            }
            if let Some(ahead) = left.get(i + AHEAD_ROWS) {
                let index = &self.tables[usize::from(ahead.table)].index;
                index.prefetch_line(ahead.hash);
            }
            let index = &mut self.tables[usize::from(row.table)].index;
            index.set_class(row.hash, row.class);
        }
        self.cache.forget_left();
    }

    /// Rows of a table that can come in while no other leaves, and nobody who was promised room goes without.
    #[must_use]
    pub fn rows_spare(&self, table: usize) -> usize {
        let promised = self.tables.iter().enumerate();
        let cost =
            |(t, of): (usize, &ShardTable)| of.promises.slots() as u64 * self.cache.row_cost(t);
        let bytes: u64 = promised.map(cost).sum();
        let rows = bytes.div_ceil(self.cache.row_cost(table).max(1));
        self.cache.rows_spare(table).saturating_sub(to_usize(rows))
    }

    /// Slots of rows that a batch has pinned or was promised, of one table.
    #[must_use]
    pub fn wanted_slots(&self, table: usize) -> usize {
        self.cache.pinned_of(table) + self.tables[table].promises.slots()
    }

    /// Slots of one table that are taken, or promised, or hold a copy for a running checkpoint.
    #[must_use]
    pub fn busy_slots(&self, table: usize) -> usize {
        self.cache.held_of(table) + self.tables[table].promises.slots()
    }

    /// Slots of all tables that are taken, or promised, or hold a copy for a running checkpoint.
    #[must_use]
    pub fn all_busy_slots(&self) -> usize {
        (0..self.tables.len())
            .map(|table| self.busy_slots(table))
            .sum()
    }

    /// Promises that were ever made, if without those that are open there were room for so many more rows of some
    /// tables: they may be for the same rows.
    #[must_use]
    pub fn promises_in_the_way(&self, more: &[(usize, usize)]) -> Option<u64> {
        let fits = self.has_bytes(self.needed_bytes(more, Beside::Rows));
        let made = self.tables.iter().map(|table| table.promises.made()).sum();
        (fits && self.promises_ended() < made).then_some(made)
    }

    pub(super) fn promises_ended(&self) -> u64 {
        self.tables.iter().map(|table| table.promises.ended()).sum()
    }

    /// Somebody waits until promises have ended.
    pub(super) fn begin_to_wait(&mut self) {
        self.awaiting += 1;
    }

    /// He does not any more.
    pub(super) fn end_wait(&mut self) {
        self.awaiting -= 1;
    }

    /// Whether somebody waits until promises have ended.
    #[must_use]
    pub fn are_promises_awaited(&self) -> bool {
        self.awaiting > 0
    }

    /// Memory that is needed for slots that are busy, and so many more of some tables. Rows that never leave
    /// may take all but a share of it where those of other tables leave: those would find no room any more.
    #[must_use]
    pub fn needed_bytes(&self, more: &[(usize, usize)], beside: Beside) -> u64 {
        let busy = |table| match beside {
            Beside::Copies => self.busy_slots(table),
            Beside::Promises => self.busy_slots(table) - self.cache.frozen_of(table),
            Beside::Rows => {
                let open = match more.iter().any(|(wanted, _)| *wanted == table) {
                    true => self.tables[table].promises.open(),
                    false => 0,
                };
                self.busy_slots(table) - self.cache.frozen_of(table) - open
            }
        };
        let mut rows: Vec<usize> = (0..self.tables.len()).map(busy).collect();
        for (table, count) in more {
            rows[*table] += count;
        }
        let needed = self.cache.cost_of(&rows);
        let stays = |table: usize| !self.cache.evicts(table);
        let more_stay = more
            .iter()
            .any(|(table, count)| *count > 0 && stays(*table));
        match more_stay {
            true => needed.max(self.with_share(rows, stays)),
            false => needed,
        }
    }

    /// Memory with which rows that stay leave others their share, where there are such tables: rows of
    /// these numbers, of the tables that stay.
    fn with_share(&self, mut rows: Vec<usize>, stays: impl Fn(usize) -> bool) -> u64 {
        let mut others = (0..rows.len()).filter(|table| !stays(*table));
        if !others.any(|table| self.cache.evicts(table)) {
            return 0;
        }
        for (table, count) in rows.iter_mut().enumerate() {
            *count *= usize::from(stays(table));
        }
        let kept = self.cache.cost_of(&rows);
        kept + kept / (KEPT_SHARE - 1)
    }

    /// Memory with which the rows that are in memory and stay leave others their share.
    fn standing_bytes(&self, stays: impl Fn(usize) -> bool) -> u64 {
        let rows = (0..self.tables.len()).map(|table| self.cache.resident_of(table));
        self.with_share(rows.collect(), stays)
    }

    /// The least memory with which nobody who was promised room waits in vain.
    #[must_use]
    pub fn least_bytes(&self) -> u64 {
        let standing = self.standing_bytes(|table| !self.cache.evicts(table));
        self.needed_bytes(&[], Beside::Promises).max(standing)
    }

    /// Whether the cache has so much memory.
    #[must_use]
    pub fn has_bytes(&self, needed: u64) -> bool {
        needed <= self.cache.bytes_max()
    }

    /// The interval that changes belong to, and during a checkpoint the last one before its cut.
    #[must_use]
    pub fn intervals(&self) -> (u32, Option<u32>) {
        (self.interval, self.frozen)
    }

    /// Rows changed after this interval may not be written yet.
    #[must_use]
    pub fn interval_max(&self) -> u32 {
        self.frozen.unwrap_or(self.interval)
    }

    /// A checkpoint's cut: gives the interval that ends with it.
    pub fn cut(&mut self) -> u32 {
        let ended = self.interval;
        self.frozen = Some(ended);
        self.cache.hold_numbers(true);
        point("cut");
        self.interval += 1;
        self.lost = false;
        ended
    }

    /// Ends the time in which younger rows may not be written, and drops copies of rows as of the cut.
    pub fn end_cut(&mut self) {
        self.frozen = None;
        self.cache.hold_numbers(false);
        self.cache.discard_frozen();
    }

    /// A state as of the cut exists no more.
    pub fn mark_lost(&mut self) {
        self.lost = true;
    }

    /// Whether one does not.
    #[must_use]
    pub fn has_lost(&self) -> bool {
        self.lost
    }
}
