//! How fast is a compaction, and how far is one that somebody asked for?
//!
//! - Everything it reads and writes is counted, and held back where there is a limit.
//! - A limit may be changed, and lifted, at any time: nobody sleeps long for one that is no more.
//! - Whoever asked is told after about every megabyte; the answer is for later, the work goes on.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::in_use::{OneOngoing, Ongoing};
use crate::io::DiskFile;
use crate::ssd::open_files::Handle;
use crate::sync::{Mutex, thread};

/// Between two words to the one who asked.
const REPORT_BYTES: u64 = 1 << 20;

/// The longest that some bytes are paid for: a day.
const SECONDS_MAX: f64 = 86_400.0;
/// Whoever sleeps looks so often whether it still has to.
const NAP: Duration = Duration::from_millis(10);

/// Counts bytes, and sleeps where there were too many.
#[derive(Debug)]
pub struct RateLimiter {
    /// 0: no limit.
    bytes_per_second: AtomicU64,
    /// How often it was changed.
    changes: AtomicU64,
    /// Those who can't wait for what is held back.
    hurried: Ongoing,
    /// When the bytes counted so far are paid for.
    due: Mutex<Instant>,
    read: AtomicU64,
    written: AtomicU64,
}

impl RateLimiter {
    /// Nothing counted yet.
    pub fn new(bytes_per_second: Option<u64>) -> RateLimiter {
        RateLimiter {
            bytes_per_second: AtomicU64::new(bytes_per_second.unwrap_or(0)),
            changes: AtomicU64::new(0),
            hurried: Ongoing::default(),
            due: Mutex::new(Instant::now()),
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
        }
    }

    /// Another limit, from now on; what was counted is paid for.
    pub fn set(&self, bytes_per_second: Option<u64>) {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        *due = Instant::now();
        self.bytes_per_second
            .store(bytes_per_second.unwrap_or(0), Ordering::Relaxed);
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Lets everything pass until what this gives is dropped.
    pub fn hurry(&self) -> OneOngoing<'_> {
        self.hurried.begin()
    }

    /// Whether somebody can't wait.
    pub fn is_hurried(&self) -> bool {
        self.hurried.is()
    }

    /// Bytes read so far.
    pub fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Bytes read and written so far.
    pub fn moved(&self) -> u64 {
        self.read() + self.written()
    }

    fn count(&self, counter: &AtomicU64, bytes: u64) {
        counter.fetch_add(bytes, Ordering::Relaxed);
        if self.bytes_per_second.load(Ordering::Relaxed) == 0 {
            return;
        }
        let changes = || self.changes.load(Ordering::Relaxed);
        let (paid, seen) = {
            let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
            // As of the lock: a change resets what is due.
            let limit = self.bytes_per_second.load(Ordering::Relaxed);
            if limit == 0 || self.is_hurried() {
                return;
            }
            let seconds = (bytes as f64 / limit as f64).min(SECONDS_MAX);
            *due = (*due).max(Instant::now()) + Duration::from_secs_f64(seconds);
            (*due, changes())
        };
        while changes() == seen && !self.is_hurried() {
            let left = paid.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(NAP));
        }
    }

    /// So many bytes were written.
    pub fn wrote(&self, bytes: u64) {
        self.count(&self.written, bytes);
    }
}

/// A file whose reads are counted.
pub struct ThrottledFile {
    /// The file.
    pub file: Arc<dyn DiskFile>,
    /// Where they are counted.
    pub limiter: Arc<RateLimiter>,
}

impl fmt::Debug for ThrottledFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(f)
    }
}

impl DiskFile for ThrottledFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let got = self.file.read_at(bytes, offset)?;
        self.limiter.count(&self.limiter.read, got as u64);
        Ok(got)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn bytes(&self) -> io::Result<u64> {
        self.file.bytes()
    }

    fn align_bytes(&self) -> usize {
        self.file.align_bytes()
    }

    fn is_direct(&self) -> bool {
        self.file.is_direct()
    }

    fn raw_fd(&self) -> Option<std::os::fd::RawFd> {
        self.file.raw_fd()
    }
}

/// A compaction that somebody asked for; the default is one that nobody did.
#[derive(Default)]
pub struct CompactionJob<'a> {
    limiter: Option<Arc<RateLimiter>>,
    report: Option<&'a mut dyn FnMut(u64)>,
    reported_bytes: u64,
}

impl fmt::Debug for CompactionJob<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.limiter.fmt(f)
    }
}

impl<'a> CompactionJob<'a> {
    /// Counts in `limiter` and tells the bytes moved to `report`.
    pub fn new(limiter: Arc<RateLimiter>, report: &'a mut dyn FnMut(u64)) -> CompactionJob<'a> {
        let reported_bytes = limiter.moved();
        CompactionJob {
            limiter: Some(limiter),
            report: Some(report),
            reported_bytes,
        }
    }

    /// Counts in `limiter`, and tells nobody.
    pub fn limited(limiter: Arc<RateLimiter>) -> CompactionJob<'a> {
        CompactionJob {
            limiter: Some(limiter),
            ..CompactionJob::default()
        }
    }

    /// The file to read from instead, if its reads are counted.
    pub fn throttled(&self, file: &Arc<Handle>) -> Option<Arc<dyn DiskFile>> {
        let file: Arc<dyn DiskFile> = Arc::<Handle>::clone(file);
        let limiter = Arc::clone(self.limiter.as_ref()?);
        Some(Arc::new(ThrottledFile { file, limiter }))
    }

    /// What was read past the files that count it has grown from `before` to `now` bytes.
    pub fn read(&mut self, before: &mut u64, now: u64) {
        if now > *before
            && let Some(limiter) = &self.limiter
        {
            limiter.count(&limiter.read, now - *before);
        }
        *before = now;
    }

    /// The output has grown from `before` to `now` bytes.
    pub fn progress(&mut self, before: &mut u64, now: u64) {
        let Some(limiter) = &self.limiter else { return };
        limiter.wrote(now.saturating_sub(*before));
        *before = now;
        let moved = limiter.moved();
        if let Some(report) = &mut self.report
            && moved >= self.reported_bytes + REPORT_BYTES
        {
            self.reported_bytes = moved;
            report(moved);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_kept_and_no_limit_takes_no_time() {
        let start = Instant::now();
        let limiter = RateLimiter::new(Some(1_000_000));
        for _ in 0..10 {
            limiter.wrote(10_000);
        }
        let due = *limiter.due.lock().unwrap();
        assert!(due >= start + Duration::from_millis(99), "0.1 s of work");
        assert_eq!(
            (limiter.read(), limiter.written(), limiter.moved()),
            (0, 100_000, 100_000)
        );
        let free = RateLimiter::new(Some(0));
        free.wrote(u64::MAX / 2);
        assert_eq!(free.written(), u64::MAX / 2, "0 is no limit");
    }

    /// Does something that a limit of one byte a second would hold back for a day.
    fn ends_with(what: impl FnOnce(&RateLimiter)) {
        let limiter = RateLimiter::new(Some(1));
        let since = Instant::now();
        std::thread::scope(|scope| {
            let moving = scope.spawn(|| limiter.wrote(1 << 40));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!moving.is_finished(), "it is held back");
            what(&limiter);
            while !moving.is_finished() {
                assert!(since.elapsed() < Duration::from_secs(60), "it sleeps on");
                std::thread::sleep(Duration::from_millis(1));
            }
        });
    }

    #[test]
    fn nobody_sleeps_on_for_a_limit_that_was_changed_or_lifted() {
        ends_with(|limiter| limiter.set(None));
        // Another limit counts for what is moved from then on.
        ends_with(|limiter| {
            limiter.set(Some(1 << 20));
            let since = Instant::now();
            limiter.wrote(40 << 10);
            assert!((38..60_000).contains(&since.elapsed().as_millis()));
        });
        ends_with(|limiter| {
            let hurry = limiter.hurry();
            limiter.wrote(1 << 40);
            std::thread::sleep(Duration::from_millis(50));
            drop(hurry);
        });
    }

    #[test]
    fn the_one_who_asked_is_told_after_every_megabyte() {
        let mut reported_bytes = Vec::new();
        let mut report = |moved| reported_bytes.push(moved);
        let mut job = CompactionJob::new(Arc::new(RateLimiter::new(None)), &mut report);
        let mut before = 0;
        for now in [500_000, 1_100_000, 1_200_000, 2_500_000] {
            job.progress(&mut before, now);
        }
        assert_eq!(reported_bytes, [1_100_000, 2_500_000]);
    }

    /// Each answer is another one.
    struct Odd;

    impl DiskFile for Odd {
        fn read_at(&self, bytes: &mut [u8], _offset: u64) -> io::Result<usize> {
            Ok(bytes.len().min(3))
        }

        fn write_at(&self, _bytes: &[u8], _offset: u64) -> io::Result<()> {
            Err(io::Error::from_raw_os_error(1))
        }

        fn sync(&self) -> io::Result<()> {
            Err(io::Error::from_raw_os_error(2))
        }

        fn bytes(&self) -> io::Result<u64> {
            Ok(77)
        }

        fn align_bytes(&self) -> usize {
            512
        }

        fn is_direct(&self) -> bool {
            true
        }

        fn raw_fd(&self) -> Option<std::os::fd::RawFd> {
            Some(9)
        }
    }

    impl fmt::Debug for Odd {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("odd")
        }
    }

    #[test]
    fn a_file_whose_reads_are_counted_is_that_file_in_all_else() {
        let limiter = Arc::new(RateLimiter::new(None));
        let file = ThrottledFile {
            file: Arc::new(Odd),
            limiter: Arc::clone(&limiter),
        };
        let code = |result: io::Result<()>| result.unwrap_err().raw_os_error();
        assert_eq!(file.read_at(&mut [0; 8], 0).unwrap(), 3);
        assert_eq!(file.read_at(&mut [0; 2], 0).unwrap(), 2);
        assert_eq!(code(file.write_at(&[0], 0)), Some(1));
        assert_eq!(code(file.sync()), Some(2));
        assert_eq!((file.bytes().unwrap(), file.align_bytes()), (77, 512));
        assert_eq!((file.is_direct(), file.raw_fd()), (true, Some(9)));
        assert_eq!((limiter.read(), limiter.written()), (5, 0));
        limiter.wrote(10);
        assert_eq!(limiter.moved(), 15);
    }

    #[test]
    fn what_a_job_writes_is_counted_from_where_it_was() {
        let limiter = Arc::new(RateLimiter::new(None));
        limiter.wrote(REPORT_BYTES - 1);
        let mut reported_bytes = Vec::new();
        let mut report = |moved| reported_bytes.push(moved);
        // What was moved before is not told again.
        let mut job = CompactionJob::new(Arc::clone(&limiter), &mut report);
        let mut before = 100;
        job.progress(&mut before, 100 + REPORT_BYTES - 1);
        job.progress(&mut before, 100 + REPORT_BYTES);
        job.progress(&mut before, 50);
        assert_eq!(before, 50);
        assert_eq!(limiter.written(), 2 * REPORT_BYTES - 1);
        assert_eq!(reported_bytes, [2 * REPORT_BYTES - 1]);
        let mut nobody = CompactionJob::default();
        nobody.progress(&mut before, 60);
        assert_eq!(before, 50, "nobody counts");
    }

    #[test]
    fn bytes_are_paid_for_one_after_the_other() {
        let limiter = RateLimiter::new(Some(1000));
        let start = Instant::now();
        limiter.wrote(20);
        limiter.wrote(30);
        assert!(start.elapsed() >= Duration::from_millis(49));
        // Time in which nothing is moved is not saved up.
        thread::sleep(Duration::from_millis(60));
        let start = Instant::now();
        limiter.wrote(30);
        assert!(start.elapsed() >= Duration::from_millis(29));
    }
}
