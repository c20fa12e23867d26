//! Where do missing rows go? They get slots, some hundred at a time.
//!
//! - Slots are taken as promised; cold clean rows leave for them, dirty ones are flushed first.
//! - A shard is locked for one step only. What has a slot is marked as being read until it is, and others
//!   who want it wait.

use super::super::core::{Core, Shard, Table, point};
use super::super::lease::PartMap;
use super::super::workers::Share;
use super::batch::{Cell, Intent, Missing, Pending, open};
use super::reads::Reads;
use crate::mem::{Cache, Flags};
use crate::ssd::data_file::Location;
use crate::ssd::index::{Index as _, IndexEntry};
use crate::units::{Slot, narrow, unmix64};

/// Rows between the one that gets its slot and the one whose lines the processor is asked to fetch.
const AHEAD_ROWS: usize = 8;
/// Rows of one table that get a slot before others may have the shard, and before it is looked what has arrived: that is
/// 0.1 ms, and what a thread has asked for keeps the device busy for more than one.
const SLOT_ROWS: usize = if cfg!(test) { 16 } else { 128 };

/// Rows that are nowhere yet for each that is read, or more: room is made ahead of such a batch.
const NEW_FOR_EACH_READ: usize = 3;

/// How far the rows of a shard have slots.
enum Progress {
    /// All have one.
    Done,
    /// Some have; go on.
    More,
    /// No slot is free.
    NoRoom,
}

/// What a step has led to.
pub(super) enum Step {
    /// Rows got slots: some of them are to be read, or none.
    Slots(Reads),
    /// No slot is free for rows of a part (its ordinal) in a shard. What has slots so far is read before room
    /// is made, or being read by another thread, which makes no room before it has: nothing stays half-read.
    NoRoom { shard: usize, ordinal: usize },
    /// All rows of all shards have slots.
    Done,
}

/// The missing rows of some shards, which get slots one after the other.
pub(super) struct Walk<'w, 'a> {
    core: &'w Core,
    pub map: &'w PartMap,
    pub cells: &'w [Cell<'a>],
    intent: Intent,
    shards: Share,
    /// The shard that it has come to.
    at: Option<usize>,
    /// Rows that got slots so far: those that are nowhere yet, and those that are read.
    new: usize,
    read: usize,
}

impl<'w, 'a> Walk<'w, 'a> {
    /// No row has a slot yet.
    pub fn new(
        core: &'w Core,
        (map, cells): (&'w PartMap, &'w [Cell<'a>]),
        shards: Share,
        intent: Intent,
    ) -> Walk<'w, 'a> {
        Walk {
            core,
            map,
            cells,
            intent,
            shards,
            at: None,
            new: 0,
            read: 0,
        }
    }

    /// Whether most rows so far are new ones: room is what such a batch waits for, not the device. `None` where none is
    /// new or read.
    pub fn brings_new_rows(&self) -> Option<bool> {
        (self.new + self.read > 0).then_some(self.new >= self.read * NEW_FOR_EACH_READ)
    }

    /// Gives slots to some more rows.
    pub fn step(&mut self) -> Step {
        loop {
            let Some(s) = self.at.or_else(|| self.shards.next()) else {
                return Step::Done;
            };
            let pending = &mut *open(&self.cells[s]);
            if pending.assigned == pending.missing.len() {
                self.at = None;
                continue;
            }
            self.at = Some(s);
            let mut reads = Reads::default();
            let before = pending.assigned;
            let cell = &self.core.shards[s];
            let mut shard = cell.lock();
            let mut assign = |shard: &mut Shard, reads: &mut Reads| {
                let new = &mut self.new;
                assign_slots((self.map, self.intent), (s, shard), pending, reads, new)
            };
            let mut progress = assign(&mut shard, &mut reads);
            while matches!(progress, Progress::More) && reads.len() < SLOT_ROWS {
                // A file is pinned under the lock under which its location was looked up.
                if reads.is_empty() {
                    cell.pass(&mut shard);
                }
                progress = assign(&mut shard, &mut reads);
            }
            reads.pin(&self.core.ssd.file_slots());
            // A promise ends with each row that has its slot.
            let awaited = shard.are_promises_awaited() && pending.assigned > before;
            drop(shard);
            self.read += reads.len();
            if awaited {
                cell.notify();
            }
            if matches!(progress, Progress::NoRoom) && reads.is_empty() {
                let ordinal = pending.missing[pending.assigned].ordinal as usize;
                return Step::NoRoom { shard: s, ordinal };
            }
            return Step::Slots(reads);
        }
    }
}

/// Gives slots to some missing rows of one table, or to as many as slots are free; counts those that are nowhere yet.
fn assign_slots(
    (map, intent): (&PartMap, Intent),
    (s, shard): (usize, &mut Shard),
    pending: &mut Pending<'_>,
    reads: &mut Reads,
    new: &mut usize,
) -> Progress {
    let missing = std::mem::take(&mut pending.missing);
    let rest = &missing[pending.assigned..];
    let ordinal = rest[0].ordinal;
    let rest = &rest[..rest.partition_point(|m| m.ordinal == ordinal)];
    let table = map.table(ordinal as usize);
    let id = table.id.0 as usize;
    let groups = || rest.chunk_by(Missing::is_same_row).take(SLOT_ROWS);
    let hashes: Vec<u64> = groups().map(|g| g[0].hash).collect();
    let mut known = Vec::new();
    shard.tables[id].index.get_batch(&hashes, &mut known);
    // Makes room before the look-up: what is found stays until it is pinned.
    shard.reclaim(id, hashes.len());
    let mut found = vec![Slot::NONE; hashes.len()];
    shard.cache.lookup(id, &hashes, &mut found);
    let mut pins = Vec::with_capacity(hashes.len());
    let mut used_again = Vec::new();
    let mut room = true;
    for (i, group) in groups().enumerate() {
        if let Some(ahead) = hashes.get(i + AHEAD_ROWS) {
            shard.cache.prefetch_word(id, *ahead);
        }
        let slot = match found[i] {
            Slot::NONE => {
                let class = known[i].map_or(0, IndexEntry::class);
                let location = known[i].map(IndexEntry::location);
                let location = location.filter(|l| !l.is_tombstone());
                let of = (
                    ordinal,
                    hashes[i],
                    location,
                    class,
                    narrow(pending.assigned),
                );
                let cache = (s, &mut shard.cache);
                let Some(slot) = assign_slot(cache, table, of, intent, reads) else {
                    room = false;
                    break;
                };
                *new += usize::from(location.is_none());
                let count = &mut pending.counts[ordinal as usize];
                count.0 += u32::from(location.is_some());
                count.1 += u32::from(location.is_some());
                if location.is_some() && intent == Intent::Remove {
                    pending.claimed.push((ordinal, slot));
                }
                slot
            }
            slot => {
                let flags = shard.cache.flags(slot);
                let gone = flags.any(Flags::ABSENT | Flags::REMOVED);
                pending.counts[ordinal as usize].0 += u32::from(!gone);
                if flags.any(Flags::LOADING | Flags::FAILED) {
                    pending.foreign.push((ordinal, slot));
                }
                used_again.push(slot);
                slot
            }
        };
        for wanted in group {
            pending.slots[wanted.index as usize] = slot;
        }
        pins.push(slot);
        pending.assigned += group.len();
        shard.tables[id].promises.end(1);
    }
    point("place");
    shard.cache.pin(&pins);
    shard.cache.touch(&used_again);
    pending.missing = missing;
    match room {
        false => Progress::NoRoom,
        true if pending.assigned == pending.missing.len() => Progress::Done,
        true => Progress::More,
    }
}

/// A slot for one missing row (ordinal of its table, hash, where it is, its frequency class; where it stands among the
/// missing): to be read, removed, or left without content until somebody wants it.
fn assign_slot(
    (s, cache): (usize, &mut Cache),
    table: &Table,
    (ordinal, hash, location, class, wanted): (u32, u64, Option<Location>, u8, u32),
    intent: Intent,
    reads: &mut Reads,
) -> Option<Slot> {
    let id = table.id.0 as usize;
    match location {
        Some(location) if intent == Intent::Read => {
            let slot = cache.insert(id, hash, Flags::LOADING, class)?;
            let (key, row_f32s) = (unmix64(hash), narrow(table.descriptor.row_f32s()));
            reads.push(s, (ordinal, slot, wanted), (location, key, row_f32s));
            Some(slot)
        }
        // On SSD and about to be removed: its content does not matter, that it exists does.
        Some(_) => cache.insert(id, hash, Flags::LOADING, class),
        None => cache.insert(id, hash, Flags::ABSENT | Flags::UNFILLED, class),
    }
}
