//! How does a row of one size get the memory that rows of another had?
//!
//! - Rows leave, the coldest of all tables first, until a span's worth of one size is free; then the rows of
//!   the emptiest span of that size move into the others, and its memory is anybody's.
//! - Only places change: slots, and the leases that name them, stay. Pinned rows move like all others.
//! - Where fewer rows fit than there are slots, rows with high numbers get lower ones, unless they are
//!   pinned; the memory of their states goes back to the budget.

use super::Cache;
use crate::error::Result;
use crate::mem::arena::Class;
use crate::mem::policy::Policies;
use crate::mem::queues::{Pool, Queue};
use crate::mem::row_state::{Flags, States};
use crate::mem::words::Words;
use crate::units::{Slot, to_usize};

/// Room that the hash table gets beyond what it needs at once, one in this many.
const AHEAD_SHARE: usize = 16;
/// Slots beyond the rows that fit, before the last numbers are given back: one in this many.
const SPARE_SHARE: usize = 16;
/// Slots that are not worth it.
const SPARE_MIN: usize = 256;
/// Rows whose memory is freed at a time while a cache gets smaller, at most: the shard is locked meanwhile.
const SHRINK_ROWS_MAX: usize = 1 << 14;

/// What is left to do so that a cache has no more than its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shrunk {
    /// Nothing.
    Fits,
    /// Some of it was done; go on.
    More,
    /// No row may leave.
    Held,
}

impl Cache {
    /// Drops clean unpinned rows from the cold end until a table can have `want` more rows, or no such
    /// row is left; returns how many it can have.
    ///
    /// # Cost
    /// Each row looked at moves to where it belongs by now, and is not looked at again until it
    /// has become cold once more. Where memory goes from one row size to another, a look at every state for
    /// one or more spans.
    pub fn reclaim(&mut self, table: usize, want: usize) -> usize {
        self.keep_ceiling(table, want);
        let class = self.rows.tables[table].class;
        loop {
            let spare = self.arena.spare_rows(class);
            if spare >= want {
                break;
            }
            if self.rearrange(class, want - spare) {
                continue;
            }
            if self.evict(want - spare) == 0 {
                break;
            }
        }
        self.trim(false);
        // Rows that come in now may begin spans.
        let spans = |cache: &Cache| {
            let rows = want.min(cache.arena.spare_rows(class));
            cache.arena.spans_for(class, rows)
        };
        while matches!(self.give_way(class, spans(self), false), Shrunk::More) {}
        self.arena.spare_rows(class)
    }

    /// Memory of slot numbers, hash table and queues that more rows had once than fit now. Rows are promised
    /// room as if it were not there, so that nobody waits in vain for pinned rows with high numbers; but
    /// while there is some, rows that may leave give way to it.
    fn left_over(&self, rows: usize, charged: u64) -> u64 {
        let counted = rows as u64 * self.arena.row_meta_bytes() + charged;
        let pool = &self.rows.pool;
        let growth = pool.bytes_max() - pool.bytes();
        (self.bytes_but_rows() + growth as u64).saturating_sub(counted)
    }

    /// How much more memory is taken with that than there is, once there are so many more spans of a class.
    fn bytes_over(&self, class: Class, spans: usize) -> u64 {
        let rows = self.shaped_for + spans * self.arena.rows_per_span(class);
        let left_over = self.left_over(rows, self.arena.charged());
        let more = spans as u64 * self.arena.cost(class);
        (self.arena.bytes_used() + more + left_over).saturating_sub(self.arena.bytes_max())
    }

    /// Frees memory of other row sizes for one; whether it did.
    fn rearrange(&mut self, class: Class, want: usize) -> bool {
        let before = self.arena.spare_rows(class);
        let spans = self.arena.spans_for(class, want.saturating_add(before));
        let mut closed = false;
        while self.arena.close_for(class, spans) {
            closed = true;
        }
        if !closed {
            let mut needed = (spans as u64).saturating_mul(self.arena.cost(class));
            for donor in self.arena.donors(class) {
                while needed > 0 && self.arena.close_emptiest(donor) {
                    needed = needed.saturating_sub(self.arena.cost(donor));
                }
            }
        }
        let used = self.arena.bytes_used();
        self.move_out() && (self.arena.bytes_used() < used || self.arena.spare_rows(class) > before)
    }

    /// Moves the rows of closed spans into others; whether there were such rows, and all were moved.
    fn move_out(&mut self) -> bool {
        let closing = self.arena.closing_rows();
        if closing == 0 && !self.arena.has_reserved() {
            return false;
        }
        let mut left = closing;
        let mut slot = 0;
        while left > 0 && slot < self.rows.states.touched() {
            let state = self.rows.states.get_mut(Slot::new(slot));
            slot += 1;
            if !state.used() || !self.arena.is_closing(state.place) {
                continue;
            }
            let table = &self.rows.tables[state.table()];
            let Some(place) = self.arena.take(table.class) else {
                break;
            };
            self.arena.copy(state.place, place, table.row_f32s);
            self.arena.free(table.class, state.place);
            state.place = place;
            left -= 1;
        }
        self.arena.reopen();
        let moved = closing > 0 && left == 0;
        if self.arena.rows_in_spans() != self.shaped_for {
            self.reshape();
        }
        moved
    }

    /// Queues and hash table get room for the rows that fit into the spans there are.
    pub(super) fn reshape(&mut self) {
        let rows = self.arena.rows_in_spans();
        self.shaped_for = rows;
        self.rows.states.expect(rows);
        let step = self.step_rows(rows);
        self.policies.set_shape(&mut self.rows, rows, step);
        if self.arena.set_row_meta(self.policies.row_meta_bytes()) {
            for table in &mut self.rows.tables {
                table.set_cost(self.arena.row_cost(table.class));
            }
        }
        let room = self.words.room();
        if rows > room {
            let most = self.rows_max();
            let ahead = match self.has_one_size() && rows > most / 2 {
                true => most,
                false => ahead_of(rows),
            };
            self.words.set_room(ahead.min(most).max(rows));
        }
        self.charge();
    }

    fn has_one_size(&self) -> bool {
        let mut sizes = self.rows.tables.windows(2);
        sizes.all(|two| two[0].class == two[1].class)
    }

    /// What is kept beside rows takes more than the arena counts with each. The same however many rows there
    /// are: what fits now fits when the cache is full, so that who is promised room gets it. Numbers of slots
    /// that more rows had once are not counted; [`Cache::trim`] gives them back.
    fn charge(&mut self) {
        let most = self.rows_uncharged();
        let steps =
            std::iter::successors(Some(most), |rows| Some(rows / 2).filter(|rows| *rows > 0));
        let beside = steps.map(|rows| self.bytes_beside(rows, most)).max();
        let fixed = Policies::bytes_for(most) as u64 + Cache::fixed();
        let charged = beside.unwrap_or(0) + fixed;
        self.arena
            .charge(charged, self.left_over(self.shaped_for, charged));
    }

    /// What is kept beside so many rows, less what the arena counts with each.
    fn bytes_beside(&self, rows: usize, most: usize) -> u64 {
        let words = Words::bytes_for(ahead_of(rows).min(most).max(rows));
        let (numbers, queues) = self.policies.queued(rows, self.step_rows(rows));
        let all = States::bytes_for(rows) + words + Pool::bytes_for(numbers, queues);
        (all as u64).saturating_sub(rows as u64 * self.arena.row_meta_bytes())
    }

    /// Gives numbers of slots back that more rows than fit had once.
    fn trim(&mut self, at_once: bool) {
        let rows = self.shaped_for;
        let touched = self.rows.states.touched();
        let spare = (rows / SPARE_SHARE).max(SPARE_MIN);
        let is_due = touched > rows + spare && self.evicted >= self.trim_after;
        if !is_due && !(at_once && (touched > rows || self.words.room() > rows + spare)) {
            return;
        }
        self.trim_after = self.evicted + spare as u64;
        let standing = self.take_out_of_queues();
        self.rows.pool.let_go();
        let (numbers, end) = self.renumber(rows, touched);
        // No number is left of a slot that is gone.
        self.list_copies();
        self.rows.states.truncate(end, rows);
        self.put_into_queues(&standing, |slot| {
            let moved = slot.index().checked_sub(rows);
            moved.map_or(slot, |at| numbers[at])
        });
        if self.words.room() > rows + spare {
            self.words.set_room(rows + SPARE_MIN.min(spare));
        }
        self.charge();
    }

    /// Gives rows from a number on lower numbers, except for those in use. The number that each has now, and
    /// one more than the highest that is left.
    fn renumber(&mut self, rows: usize, touched: usize) -> (Vec<Slot>, usize) {
        const BUSY: Flags = Flags::LOADING
            .with(Flags::FAILED)
            .with(Flags::WRITING)
            .with(Flags::FROZEN_COPY);
        let mut numbers: Vec<Slot> = (rows..touched).map(Slot::new).collect();
        let mut lower = 0;
        let mut end = rows.min(touched);
        for number in &mut numbers {
            let old = *number;
            let state = *self.rows.states.get(old);
            if !state.used() {
                continue;
            }
            let is_held = self.numbers_held != (false, 0);
            let held = is_held && state.flags.any(Flags::DIRTY);
            if state.is_pinned() || state.flags.any(BUSY) || held {
                end = old.index() + 1;
                continue;
            }
            // No more rows are there than fit, so a lower slot is free.
            while self.rows.states.get(Slot::new(lower)).used() {
                lower += 1;
            }
            let new = Slot::new(lower);
            self.words.remove(state.table(), state.hash(), old);
            *self.rows.states.get_mut(new) = state;
            *self.rows.states.get_mut(old) = Default::default();
            self.words.insert(state.table(), state.hash(), new);
            *number = new;
        }
        (numbers, end)
    }

    /// Takes all rows out of all queues: by queue, in their order.
    fn take_out_of_queues(&mut self) -> Vec<Vec<Slot>> {
        let rows = &mut self.rows;
        let own = [&mut self.cold_clean, &mut self.cold_dirty];
        let queues = own.into_iter().chain(self.policies.queues_mut());
        let standing = |queue: &mut Queue| std::iter::from_fn(|| rows.pop(queue)).collect();
        queues.map(standing).collect()
    }

    /// Puts them back, as far as there is room.
    fn put_into_queues(&mut self, standing: &[Vec<Slot>], number: impl Fn(Slot) -> Slot) {
        let own = [&mut self.cold_clean, &mut self.cold_dirty];
        let queues = own.into_iter().chain(self.policies.queues_mut());
        for (queue, slots) in queues.zip(standing) {
            for slot in slots {
                self.rows.push(queue, number(*slot));
            }
        }
    }

    /// While a checkpoint goes through the slots of dirty rows, none gets another number.
    pub fn hold_numbers(&mut self, held: bool) {
        self.numbers_held.0 = held;
    }

    /// The same for one more flush that goes through them, or one less.
    pub fn hold_numbers_once_more(&mut self, held: bool) {
        let flushes = &mut self.numbers_held.1;
        *flushes = if held { *flushes + 1 } else { *flushes - 1 };
    }

    /// Drops up to so many clean rows of a table, those of lowest rank; how many.
    pub fn drop_clean(&mut self, table: usize, rows: usize) -> usize {
        let before = self.evicted;
        if self.rows.tables[table].counts.evictable > 0 {
            self.evict_any(rows, Some(table));
        }
        to_usize(self.evicted - before)
    }

    /// Drops rows of a table itself where it would have more than its ceiling.
    fn keep_ceiling(&mut self, table: usize, want: usize) {
        let of_table = &self.rows.tables[table];
        let rows = of_table.counts.used.saturating_add(want) as u64;
        if rows > of_table.ceiling_rows && of_table.counts.evictable > 0 {
            let over = to_usize(rows - of_table.ceiling_rows);
            // A look at every state serves some rows to come, too.
            let share = of_table.counts.used / SPARE_SHARE;
            self.evict_of(table, over.max(share));
        }
    }

    /// Gives the cache more memory or less. Rows leave with [`Cache::shrink`].
    ///
    /// # Errors
    /// `InvalidArgument` where the system does not give the memory; nothing has changed.
    pub fn set_bytes(&mut self, bytes: u64) -> Result<()> {
        let before = self.arena.bytes_max();
        self.arena.set_bytes_max(bytes)?;
        if let Err(error) = self.reserve_memory() {
            // Less than there was.
            let _had = self.arena.set_bytes_max(before);
            return Err(error);
        }
        self.reshape();
        Ok(())
    }

    /// Drops some clean unpinned rows if the cache has more than its memory.
    pub fn shrink(&mut self) -> Shrunk {
        self.trim(true);
        match self.arena.classes().next() {
            Some(class) => self.give_way(class, 0, true),
            None => Shrunk::Fits,
        }
    }

    /// Drops some clean unpinned rows if more memory is taken, once there are so many more spans of a class,
    /// than there is.
    fn give_way(&mut self, class: Class, spans: usize, at_once: bool) -> Shrunk {
        let over = self.bytes_over(class, spans);
        if over == 0 {
            return Shrunk::Fits;
        }
        if self.close_spans(over) && self.move_out() {
            self.trim(at_once);
            return Shrunk::More;
        }
        // About as many as take what is too much: spans are emptied by few looks at every state.
        let want = to_usize(over / self.mean_cost()).clamp(1, SHRINK_ROWS_MAX);
        let before = self.evicted;
        while to_usize(self.evicted - before) < want && self.evict(want) > 0 {}
        match self.evicted == before {
            true => Shrunk::Held,
            false => Shrunk::More,
        }
    }

    /// Closes spans that take so much, as far as their rows have room in others; whether there is one.
    fn close_spans(&mut self, bytes: u64) -> bool {
        let mut over = bytes;
        for class in self.arena.classes() {
            while over > 0 && self.arena.close_emptiest(class) {
                over = over.saturating_sub(self.arena.cost(class));
            }
        }
        over < bytes
    }
}

/// Rows that the hash table gets room for when it needs it for so many.
fn ahead_of(rows: usize) -> usize {
    rows + rows / AHEAD_SHARE + SPARE_MIN.min(rows)
}
