//! Which files are rewritten, and when?
//!
//! A pure function of the files' counters: the caller acts on the answer.
//!
//! Invariants:
//! - If `current` exceeds b × live, some file's live share is below 1/b; such files are chosen,
//!   the stalest first, so each compaction frees more than it writes.
//! - Small files are merged, whatever their staleness, before their number passes
//!   2 × live ÷ file size + [`FILES_SPARE_MAX`]; a merge always leaves fewer files than it took.
//!
//! # Source
//! HPS appendix E (more than half stale), AIBox §4.4 (usage threshold), LevelDB.

use std::cmp::Ordering;

use crate::units::FileNumber;

/// What the choice needs to know of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// File number.
    pub number: FileNumber,
    /// Bytes of the file.
    pub bytes: u64,
    /// The part of them that live entries stand for.
    pub live_bytes: u64,
}

/// The bounds that compaction keeps.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// b: `current` stays under b × live plus what is in flight.
    pub space_bound: f64,
    /// Target size of a file.
    pub file_bytes: u64,
    /// Data directories: each is compacted by itself and gets its share of the slack.
    pub directories: u64,
    /// Any file with a stale entry is worth rewriting (a compaction asked for by the user).
    pub force: bool,
    /// Bytes that a running checkpoint is about to write: their room is made as if they were there.
    pub coming_bytes: u64,
}

/// Most inputs of one compaction: bounds its memory.
pub const INPUTS_MAX: usize = 16;

/// Files beyond twice those that live rows fill: from here on small ones are merged ...
pub const FILES_SPARE: u64 = 48;
/// ... and from here on flushes wait for that.
pub const FILES_SPARE_MAX: u64 = 60;
/// Bytes beyond the space bound: from here on stale files are rewritten, or from half a file on ...
pub const SLACK_BYTES: u64 = 16 << 20;
/// ... and from here on flushes wait for that.
pub const SLACK_BYTES_MAX: u64 = 32 << 20;

// Whoever waits waits for something that is due.
const _: () = assert!(SLACK_BYTES < SLACK_BYTES_MAX && FILES_SPARE < FILES_SPARE_MAX);

impl Limits {
    /// `current` may exceed b × live by this before compaction starts.
    #[must_use]
    pub fn slack_bytes(&self) -> u64 {
        (self.file_bytes / 2).min(SLACK_BYTES) / self.directories.max(1)
    }

    /// Bytes of `current` beyond which flushes wait for compaction: more than the slack of all
    /// directories, so that whoever waits waits for something that is due.
    #[must_use]
    pub fn hard_bytes(&self, live_bytes: u64) -> u64 {
        self.bound_bytes(live_bytes) + SLACK_BYTES_MAX
    }

    /// Whether stale files are rewritten where so many bytes are current.
    fn is_over(&self, current_bytes: u64, live_bytes: u64) -> bool {
        let begins = self.bound_bytes(live_bytes) + self.slack_bytes();
        current_bytes.saturating_add(self.coming_bytes) > begins
    }

    fn bound_bytes(&self, live_bytes: u64) -> u64 {
        let bound = live_bytes as f64 * self.space_bound;
        // A float to u64 cast saturates; live bytes are far below 2^53.
        #[expect(clippy::cast_possible_truncation, reason = "saturates")]
        let bound = bound as u64;
        bound
    }

    /// Files of the current version beyond which flushes wait for compaction.
    #[must_use]
    pub fn files_hard(&self, live_bytes: u64) -> u64 {
        2 * live_bytes / self.file_bytes.max(1) + FILES_SPARE_MAX
    }

    /// Most files of the current version before small ones are merged.
    #[must_use]
    pub fn files_max(&self, live_bytes: u64) -> u64 {
        2 * live_bytes / self.file_bytes.max(1) + FILES_SPARE / self.directories.max(1)
    }
}

/// Chooses the inputs of the next compaction; empty when there is nothing to do.
#[must_use]
pub fn choose(files: &[Candidate], limits: &Limits) -> Vec<FileNumber> {
    let current: u64 = files.iter().map(|f| f.bytes).sum();
    let live: u64 = files.iter().map(|f| f.live_bytes).sum();
    let over_space = limits.is_over(current, live);
    let over_files = files.len() as u64 > limits.files_max(live);
    if over_files {
        // First: the files with the fewest live rows go, which makes room as well.
        let inputs = smallest(files, limits);
        if !inputs.is_empty() {
            return inputs;
        }
    }
    if over_space || limits.force {
        let inputs = stalest(files, limits);
        if !inputs.is_empty() {
            return inputs;
        }
    }
    if limits.force {
        return smallest(files, limits);
    }
    Vec::new()
}

/// Whether [`choose`] may choose something, by sums alone; false is sure. `live_bytes` may be one
/// byte a file above the sum of the candidates'.
#[must_use]
pub fn may_be_due(current_bytes: u64, live_bytes: u64, files: u64, limits: &Limits) -> bool {
    let live_bytes = live_bytes.saturating_sub(files);
    limits.force
        || limits.is_over(current_bytes, live_bytes)
        || files > limits.files_max(live_bytes)
}

fn stalest(files: &[Candidate], limits: &Limits) -> Vec<FileNumber> {
    let below = if limits.force {
        0.999_999
    } else {
        1.0 / limits.space_bound
    };
    let order = files.iter().filter(|f| live_share(f) < below);
    numbers(&take(
        &first(order.collect(), stalest_first),
        limits.file_bytes,
    ))
}

fn live_share(file: &Candidate) -> f64 {
    file.live_bytes as f64 / file.bytes.max(1) as f64
}

fn stalest_first(a: &Candidate, b: &Candidate) -> Ordering {
    live_share(a)
        .total_cmp(&live_share(b))
        .then(a.number.cmp(&b.number))
}

/// The first [`INPUTS_MAX`] in this order; the others are not sorted.
fn first(
    mut files: Vec<&Candidate>,
    order: fn(&Candidate, &Candidate) -> Ordering,
) -> Vec<&Candidate> {
    if files.len() > INPUTS_MAX {
        files.select_nth_unstable_by(INPUTS_MAX, |a, b| order(a, b));
        files.truncate(INPUTS_MAX);
    }
    files.sort_unstable_by(|a, b| order(a, b));
    files
}

fn numbers(files: &[&Candidate]) -> Vec<FileNumber> {
    files.iter().map(|f| f.number).collect()
}

/// Whether some of a file is stale, and at least this share of it.
#[must_use]
pub fn is_stale(file: &Candidate, stale_share: f64) -> bool {
    // Shares are of entries, given in bytes: rounding must not hide what is just at the bound.
    file.live_bytes < file.bytes && 1.0 - live_share(file) >= stale_share - 1e-9
}

/// Chooses the inputs of the next compaction that somebody asked for: files that are stale by at
/// least `stale_share`, the stalest first, whose live rows fit into one file, and that cost at
/// most `cost_max` bytes of reading and writing together; at least one, if there is any.
#[must_use]
pub fn choose_stale(
    files: &[Candidate],
    stale_share: f64,
    file_bytes: u64,
    cost_max: u64,
) -> Vec<FileNumber> {
    let stale = files.iter().filter(|f| is_stale(f, stale_share));
    let order = first(stale.collect(), stalest_first);
    let mut inputs = numbers(&take(&order, file_bytes));
    let mut cost = 0u64;
    let affordable = order.iter().take_while(|f| {
        cost = cost.saturating_add(f.bytes + f.live_bytes);
        cost <= cost_max
    });
    let count = affordable.count().max(1);
    inputs.truncate(count);
    inputs
}

fn smallest(files: &[Candidate], limits: &Limits) -> Vec<FileNumber> {
    let small = files.iter().filter(|f| f.live_bytes < limits.file_bytes);
    let fewest =
        |a: &Candidate, b: &Candidate| (a.live_bytes, a.number).cmp(&(b.live_bytes, b.number));
    let inputs = take(&first(small.collect(), fewest), 2 * limits.file_bytes);
    let live: u64 = inputs.iter().map(|f| f.live_bytes).sum();
    let outputs = live.div_ceil(limits.file_bytes.max(1)).max(1);
    if outputs < inputs.len() as u64 {
        numbers(&inputs)
    } else {
        Vec::new()
    }
}

/// The first files whose live rows fit into `output_bytes` together; at least one.
fn take<'a>(order: &[&'a Candidate], output_bytes: u64) -> Vec<&'a Candidate> {
    let mut inputs = Vec::new();
    let mut sum = 0;
    for file in order {
        sum += file.live_bytes;
        if sum > output_bytes && !inputs.is_empty() {
            break;
        }
        inputs.push(*file);
    }
    inputs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(number: u64, bytes: u64, live_bytes: u64) -> Candidate {
        Candidate {
            number: FileNumber(number),
            bytes,
            live_bytes,
        }
    }

    const LIMITS: Limits = Limits {
        space_bound: 2.0,
        file_bytes: 1000,
        directories: 1,
        force: false,
        coming_bytes: 0,
    };

    #[test]
    fn nothing_is_chosen_inside_the_bounds() {
        assert!(choose(&[], &LIMITS).is_empty());
        let files: Vec<Candidate> = (0..8).map(|n| file(n, 1000, 600)).collect();
        assert!(choose(&files, &LIMITS).is_empty());
    }

    #[test]
    fn the_stalest_files_go_first_and_free_more_than_they_write() {
        let files = [
            file(1, 1000, 400),
            file(2, 1000, 100),
            file(3, 1000, 900),
            file(4, 1000, 0),
        ];
        let inputs = choose(&files, &LIMITS);
        assert_eq!(inputs, [4, 2, 1].map(FileNumber));
    }

    #[test]
    fn small_files_are_merged_before_there_are_too_many() {
        let files: Vec<Candidate> = (0..60).map(|n| file(n, 10, 10)).collect();
        let inputs = choose(&files, &LIMITS);
        assert_eq!(inputs.len(), INPUTS_MAX);
        let few: Vec<Candidate> = (0..40).map(|n| file(n, 10, 10)).collect();
        assert!(choose(&few, &LIMITS).is_empty());
    }

    #[test]
    fn too_many_files_are_merged_also_when_space_is_over_its_bound() {
        // Each is stale by more than half: the stalest alone would go, one by one.
        let files: Vec<Candidate> = (0..60).map(|n| file(n, 30, 10)).collect();
        assert_eq!(choose(&files, &LIMITS).len(), INPUTS_MAX);
        let full: Vec<Candidate> = (0..300).map(|n| file(n, 1000, 300 + n / 10)).collect();
        let inputs = choose(&full, &LIMITS);
        assert!(inputs.len() >= 3, "{inputs:?}");
    }

    #[test]
    fn what_is_asked_for_is_chosen_by_share_and_cost() {
        let files = [
            file(1, 1000, 500),
            file(2, 1000, 501),
            file(3, 1000, 0),
            file(4, 1000, 1000),
            file(5, 999, 400),
        ];
        assert_eq!(
            choose_stale(&files, 0.5, 1000, u64::MAX),
            [3, 5, 1].map(FileNumber)
        );
        assert_eq!(
            choose_stale(&files, 0.5, 400, u64::MAX),
            [3, 5].map(FileNumber)
        );
        assert_eq!(
            choose_stale(&files, 0.0, 9000, u64::MAX),
            [3, 5, 1, 2].map(FileNumber)
        );
        assert_eq!(
            choose_stale(&files, 1.0, 9000, u64::MAX),
            [3].map(FileNumber)
        );
        assert_eq!(
            choose_stale(&files, 0.5, 1000, 2399),
            [3, 5].map(FileNumber)
        );
        assert_eq!(
            choose_stale(&files, 0.5, 1000, 1),
            [3].map(FileNumber),
            "at least one"
        );
        assert!(choose_stale(&files[3..4], 0.0, 1000, u64::MAX).is_empty());
    }

    #[test]
    fn at_a_bound_nothing_is_chosen_and_a_byte_or_a_file_beyond_it_something_is() {
        // Twice 600 bytes that live, and 500.
        let at = [file(1, 1000, 400), file(2, 700, 200)];
        assert!(choose(&at, &LIMITS).is_empty());
        assert_eq!(
            choose(&[at[0], file(2, 701, 200)], &LIMITS),
            [2, 1].map(FileNumber)
        );
        assert!(!may_be_due(1700, 600, 0, &LIMITS) && may_be_due(1701, 600, 0, &LIMITS));
        assert!(!may_be_due(1700, 601, 1, &LIMITS) && may_be_due(1702, 602, 2, &LIMITS));
        assert!(!may_be_due(0, 0, 48, &LIMITS) && may_be_due(0, 0, 49, &LIMITS));
        let forced = Limits {
            force: true,
            ..LIMITS
        };
        assert!(may_be_due(0, 0, 0, &forced));
        let many: Vec<Candidate> = (0..49).map(|n| file(n, 10, 10)).collect();
        assert!(choose(&many[..48], &LIMITS).is_empty());
        assert!(
            choose(&many, &LIMITS)
                .into_iter()
                .eq((0..16).map(FileNumber))
        );
        // A file that is stale by just half is not worth it, nor one that is hardly stale.
        let half = [file(1, 1000, 500), file(2, 2000, 100)];
        assert_eq!(choose(&half, &LIMITS), [2].map(FileNumber));
        assert!(choose(&[file(1, 1_000_000, 999_999)], &forced).is_empty());
        assert_eq!(
            choose(&[file(1, 1_000_000, 999_998)], &forced),
            [1].map(FileNumber)
        );
    }

    #[test]
    fn small_files_are_merged_into_fewer_whose_rows_fit_into_two() {
        let small = |lives: &[u64]| {
            let files = (1..).zip(lives).map(|(n, live)| file(n, 1000, *live));
            smallest(&files.collect::<Vec<_>>(), &LIMITS)
        };
        assert_eq!(
            small(&[1000, 999, 1]),
            [3, 2].map(FileNumber),
            "a full one is not small"
        );
        assert_eq!(small(&[999, 999, 2]), [3, 1, 2].map(FileNumber));
        assert!(small(&[999, 999, 3]).is_empty(), "as many files as before");
        assert_eq!(small(&[500, 500]), [1, 2].map(FileNumber));
        assert!(small(&[500, 501]).is_empty() && small(&[5]).is_empty());
        let fits = |lives: &[u64], bytes| {
            let files: Vec<Candidate> = lives.iter().map(|live| file(0, 9999, *live)).collect();
            take(&files.iter().collect::<Vec<_>>(), bytes).len()
        };
        assert_eq!(
            (fits(&[400, 600, 1], 1000), fits(&[400, 601], 1000)),
            (2, 1)
        );
        assert_eq!((fits(&[400, 600, 0], 1000), fits(&[1001, 1], 1000)), (3, 1));
    }

    #[test]
    fn force_ends() {
        // Rewriting is simulated: inputs become full files without stale rows.
        let mut files: Vec<Candidate> = (0..50).map(|n| file(n, 300 + n, (7 * n) % 300)).collect();
        let limits = Limits {
            force: true,
            ..LIMITS
        };
        let mut next = 100;
        for round in 0.. {
            let inputs = choose(&files, &limits);
            if inputs.is_empty() {
                break;
            }
            assert!(round < 200, "compaction does not end");
            let gone = |f: &Candidate| inputs.contains(&f.number);
            let mut live: u64 = files.iter().filter(|f| gone(f)).map(|f| f.live_bytes).sum();
            files.retain(|f| !gone(f));
            while live > 0 {
                let bytes = live.min(1000);
                files.push(file(next, bytes, bytes));
                next += 1;
                live -= bytes;
            }
        }
        assert!(files.iter().all(|f| f.bytes == f.live_bytes));
        assert!(
            files.iter().filter(|f| f.bytes < 500).count() <= 1,
            "{files:?}"
        );
    }
}
