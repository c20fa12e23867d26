//! Is the choice of a compaction the same without sorting, and without looking at every file?

#![expect(
    clippy::cast_possible_truncation,
    reason = "numbers of a test that are small"
)]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::compaction::*;
use super::data_file::DataFile;
use super::held::Tally;
use super::version::{Slots, Versions};
use super::*;
use crate::format::footer::{Footer, Run, RunKind};
use crate::io::sim::SimDisk;
use crate::units::CheckpointId;

/// The choice as it was: everything is sorted, and then the first are taken.
mod sorted {
    use super::*;

    pub fn take(order: &[&Candidate], output_bytes: u64) -> Vec<FileNumber> {
        let mut inputs = Vec::new();
        let mut sum = 0;
        for file in order.iter().take(INPUTS_MAX) {
            sum += file.live_bytes;
            if sum > output_bytes && !inputs.is_empty() {
                break;
            }
            inputs.push(file.number);
        }
        inputs
    }

    pub fn share(file: &Candidate) -> f64 {
        file.live_bytes as f64 / file.bytes.max(1) as f64
    }

    pub fn by_share(files: &mut [&Candidate]) {
        files.sort_by(|a, b| share(a).total_cmp(&share(b)).then(a.number.cmp(&b.number)));
    }

    fn smallest(files: &[Candidate], limits: &Limits) -> Vec<FileNumber> {
        let small = files.iter().filter(|f| f.live_bytes < limits.file_bytes);
        let mut order: Vec<&Candidate> = small.collect();
        order.sort_by_key(|f| (f.live_bytes, f.number));
        let inputs = take(&order, 2 * limits.file_bytes);
        let chosen = files.iter().filter(|f| inputs.contains(&f.number));
        let live: u64 = chosen.map(|f| f.live_bytes).sum();
        let outputs = live.div_ceil(limits.file_bytes.max(1)).max(1);
        if outputs < inputs.len() as u64 {
            inputs
        } else {
            Vec::new()
        }
    }

    pub fn choose(files: &[Candidate], limits: &Limits) -> Vec<FileNumber> {
        let current: u64 = files.iter().map(|f| f.bytes).sum();
        let live: u64 = files.iter().map(|f| f.live_bytes).sum();
        let bound = (live as f64 * limits.space_bound) as u64;
        let below = [1.0 / limits.space_bound, 0.999_999][usize::from(limits.force)];
        if files.len() as u64 > limits.files_max(live) {
            let inputs = smallest(files, limits);
            if !inputs.is_empty() {
                return inputs;
            }
        }
        let there_soon = current + limits.coming_bytes;
        if there_soon > bound + limits.slack_bytes() || limits.force {
            let mut order: Vec<&Candidate> = files.iter().filter(|f| share(f) < below).collect();
            by_share(&mut order);
            let inputs = take(&order, limits.file_bytes);
            if !inputs.is_empty() {
                return inputs;
            }
        }
        match limits.force {
            true => smallest(files, limits),
            false => Vec::new(),
        }
    }

    pub fn choose_stale(
        files: &[Candidate],
        share: f64,
        size: u64,
        cost_max: u64,
    ) -> Vec<FileNumber> {
        let mut order: Vec<&Candidate> = files.iter().filter(|f| is_stale(f, share)).collect();
        by_share(&mut order);
        let mut inputs = take(&order, size);
        let mut cost = 0u64;
        let affordable = order.iter().take_while(|f| {
            cost += f.bytes + f.live_bytes;
            cost <= cost_max
        });
        inputs.truncate(affordable.count().max(1));
        inputs
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = crate::units::mix64(self.0.wrapping_add(0x9e37_79b9_7f4a_7c15));
        self.0 % n
    }
}

#[test]
fn the_choice_is_that_of_sorting_everything_and_never_missed_by_the_sums() {
    let (mut chosen, mut idle) = (0, 0);
    for seed in 0..4000 {
        let mut random = Random(seed);
        let limits = Limits {
            space_bound: 1.1 + random.below(30) as f64 / 10.0,
            file_bytes: 1000,
            directories: 1 + random.below(4),
            force: random.below(4) == 0,
            coming_bytes: random.below(20_000) * u64::from(random.below(16) == 0),
        };
        let count = random.below(200);
        let equal = random.below(4) == 0;
        let dead = 1 + random.below(20);
        let mut files: Vec<Candidate> = (0..count)
            .map(|number| {
                let bytes = if equal { 960 } else { 1 + random.below(1500) };
                let live = if random.below(dead) == 0 {
                    0
                } else {
                    random.below(bytes + 1)
                };
                Candidate {
                    number: FileNumber(number),
                    bytes,
                    live_bytes: if equal { live / 240 * 240 } else { live },
                }
            })
            .collect();
        for i in (1..files.len()).rev() {
            files.swap(i, random.below(i as u64 + 1) as usize);
        }
        let expected = sorted::choose(&files, &limits);
        assert_eq!(choose(&files, &limits), expected, "seed {seed}");
        let share = random.below(11) as f64 / 10.0;
        let cost = random.below(6000);
        assert_eq!(
            choose_stale(&files, share, 1000, cost),
            sorted::choose_stale(&files, share, 1000, cost),
            "seed {seed}"
        );
        let current = files.iter().map(|f| f.bytes).sum();
        let live: u64 = files.iter().map(|f| f.live_bytes).sum();
        let counted = (live + random.below(count + 1)).saturating_sub(random.below(3));
        let due = may_be_due(current, counted, count, &limits);
        assert!(due || expected.is_empty(), "seed {seed}: missed");
        chosen += u32::from(!expected.is_empty());
        idle += u32::from(!due);
    }
    assert!(chosen > 500 && idle > 500, "{chosen} chosen, {idle} idle");
}

#[test]
fn compaction_starts_before_anybody_waits_for_it() {
    const MIB: u64 = 1 << 20;
    let limits = |file_bytes, directories| Limits {
        space_bound: 2.0,
        file_bytes,
        directories,
        force: false,
        coming_bytes: 0,
    };
    // Half a file, or 16 MiB, for all directories together.
    assert_eq!(limits(8 * MIB, 1).slack_bytes(), 4 * MIB);
    assert_eq!(limits(64 * MIB, 1).slack_bytes(), 16 * MIB);
    assert_eq!(limits(64 * MIB, 4).slack_bytes(), 4 * MIB);
    let limits = limits(64 * MIB, 4);
    assert_eq!(limits.hard_bytes(100 * MIB), (200 + 32) * MIB);
    assert_eq!(limits.files_hard(640 * MIB), 20 + 60);
    assert_eq!(limits.files_max(640 * MIB), 20 + 12);
}

#[test]
fn room_for_what_is_coming_is_made_before_it_is_there_and_waited_for_only_then() {
    const MIB: u64 = 1 << 20;
    let limits = |coming_bytes| Limits {
        space_bound: 2.0,
        file_bytes: 32 * MIB,
        directories: 1,
        force: false,
        coming_bytes,
    };
    let file = |number, live_bytes| Candidate {
        number: FileNumber(number),
        bytes: 32 * MIB,
        live_bytes,
    };
    // 64 MiB current, 40 live: 16 and the slack of 16 are left.
    let files = [file(1, 32 * MIB), file(2, 8 * MIB)];
    let due = |limits| may_be_due(64 * MIB, 40 * MIB, 2, &limits);
    for (coming, chosen) in [
        (0, false),
        (31 * MIB, false),
        (33 * MIB, true),
        (u64::MAX, true),
    ] {
        let limits = limits(coming);
        let expected: &[FileNumber] = if chosen { &[FileNumber(2)] } else { &[] };
        assert_eq!(choose(&files, &limits), expected, "{coming} bytes");
        assert_eq!(due(limits), chosen, "{coming} bytes");
        assert_eq!(limits.hard_bytes(40 * MIB), 112 * MIB);
    }
    // Files that are live for the most part stay, whatever is coming.
    assert!(choose(&[file(1, 32 * MIB), file(2, 16 * MIB)], &limits(u64::MAX)).is_empty());
}

const FILES: u64 = 100_000;

/// Files of 64 rows, made current in 4 directories.
fn many_files() -> (Versions, Vec<Arc<DataFile>>) {
    let disk = SimDisk::new(1);
    let place = Io::of(disk.clone());
    disk.write_file(std::path::Path::new("/rows"), &[0; 4096])
        .unwrap();
    let root = place.disk.open_dir(std::path::Path::new("/")).unwrap();
    let file = root.open("rows", OpenMode::Read).unwrap();
    let (mut versions, slots) = (Versions::default(), Slots::default());
    let mut files = Vec::new();
    for number in 0..FILES {
        let meta = FileMeta {
            number: FileNumber(number),
            directory: (number % 4) as u32,
            rank: number,
            bytes: 32 << 20,
            footer_offset: 0,
            footer_checksum: 0,
            rows: 60_001,
            tombstones: 0,
            hash_min: 0,
            hash_max: u64::MAX,
            interval_min: 1,
            interval_max: 1,
            added: CheckpointId(1),
            removed: CheckpointId(u64::MAX),
        };
        let run = Run {
            table: 0,
            kind: RunKind::Rows,
            first_entry: 0,
            entries: meta.rows,
            offset: 4096,
            stride: 544,
        };
        let footer = Footer {
            entries: meta.rows,
            rows_digest: 0,
            keys_digest: 0,
            keys_offset: 4096,
            hash_min: 0,
            hash_max: u64::MAX,
            interval_min: 1,
            interval_max: 1,
            runs: vec![run],
            sections: Vec::new(),
        };
        let identity = FileIdentity::new([1; 16], FileNumber(number));
        let slot = versions.take_slot(&slots).unwrap();
        let path = PathBuf::from("/rows");
        let made = DataFile::new(slot, meta, footer, identity, path, Arc::clone(&file), true);
        let made = Arc::new(made);
        versions.install(&slots, Arc::clone(&made));
        files.push(made);
    }
    (versions, files)
}

/// Every flush walked all files twice, under the lock that every other step needs.
#[test]
fn what_a_flush_asks_of_a_hundred_thousand_files_takes_no_walk() {
    let (versions, files) = many_files();
    let mut random = Random(1);
    for file in &files {
        file.add_live_many(0, 30_000 + random.below(30_001));
    }
    let mut tally = Tally::of(&files[0]);
    for file in &files[..1000] {
        tally.sub_live(file, 7);
    }
    drop(tally);
    assert!(versions.held().iter().all(held::Held::equals_a_recount));
    let exact: u64 = files.iter().map(|f| f.live_bytes()).sum();
    let usage = versions.usage();
    assert_eq!((usage.files, usage.current_bytes), (FILES, FILES << 25));
    assert!(
        usage.live_bytes <= exact + FILES,
        "{usage:?}, exactly {exact}"
    );
    assert!(
        exact - usage.live_bytes.min(exact) <= FILES * 2,
        "{usage:?}, exactly {exact}"
    );
    let limits = Limits {
        space_bound: 2.0,
        file_bytes: 32 << 20,
        directories: 4,
        force: false,
        coming_bytes: 0,
    };
    let timed = |times: u32, work: &mut dyn FnMut()| {
        let since = Instant::now();
        (0..times).for_each(|_| work());
        since.elapsed() / times
    };
    let asked = timed(1000, &mut || {
        for d in 0..4 {
            let usage = versions.choosable(d);
            let due = may_be_due(usage.current_bytes, usage.live_bytes, usage.files, &limits);
            assert!(!due, "inside its bounds");
        }
    });
    let chosen = timed(5, &mut || {
        let held = &versions.held()[0];
        let candidates: Vec<Candidate> = held
            .current
            .values()
            .map(|f| Candidate {
                number: f.meta.number,
                bytes: f.meta.bytes,
                live_bytes: f.live_bytes(),
            })
            .collect();
        assert!(choose(&candidates, &limits).is_empty());
        let forced = Limits {
            force: true,
            ..limits
        };
        assert!(!choose(&candidates, &forced).is_empty());
    });
    println!("{FILES} files: a flush asks in {asked:?}; a directory's choice takes {chosen:?}");
    assert!(
        asked * 20 < chosen.max(Duration::from_micros(200)),
        "{asked:?} and {chosen:?}"
    );
}
