//! How do large arrays that are visited at random get few address translations?
//!
//! - Arrays stay ordinary `Vec`s; the kernel is only asked to back them with huge pages. Where it
//!   refuses, nothing changes but speed.
//! - Asked before memory is touched, so that a page is huge from its first use on; small arrays
//!   are left alone, so that a table that is hardly used costs hardly any memory.
//! - Arrays can be kept from forked children, who then have no such pages; their owner takes care
//!   that no child looks at them, and takes the advice back before the memory is freed.
//! - Arrays of work that is soon over get pages of their own, so that they go back to the system with it.
//! - Pages can be given back: they read as zeros then, and cost memory again when they are next written.
//! - Cache lines can be asked for ahead: a hint without effect on any value. Values can be copied past the caches, which
//!   has none either once the copies are ended.
//!
//! Measured (2 threads, rows of 512 B, 1 GiB): gathers of 256 B 20 M rows/s with 4 KiB pages, 28 M
//! to 36 M with huge ones.
#![expect(unsafe_code, reason = "madvise and prefetch take addresses")]

use nix::sys::mman::{MmapAdvise, madvise};

/// Arrays below are not worth it: up to a huge page at each end stays small, or is touched in vain.
const WORTH_BYTES: usize = 4 << 20;
/// Bytes of a huge page.
pub const HUGE_BYTES: usize = 2 << 20;
/// Bytes of a page, or a multiple.
const PAGE_BYTES_MAX: usize = 64 << 10;
/// Bytes of a page; where it is not known, the most that one has.
const PAGE_BYTES: usize = if cfg!(target_arch = "x86_64") {
    4 << 10
} else {
    PAGE_BYTES_MAX
};
/// Bytes of a cache line.
const LINE_BYTES: usize = 64;
/// Values of one.
const LINE_F32S: usize = LINE_BYTES / size_of::<f32>();

/// Arrays of fewer bytes are the allocator's affair.
const OWN_PAGES_MIN_BYTES: usize = 128 << 10;
/// Addresses that are asked for: glibc maps more than 32 MiB by themselves, whatever was freed before. Less may lie in
/// memory that it keeps for the next who asks, for each thread that ever had such an array.
const OWN_PAGES_BYTES: usize = 33 << 20;

/// An empty vector for about so many items that are needed for a while: large ones lie in pages of their own, which
/// the system gets back when the vector is dropped. Only what is used of them costs memory.
pub fn own_pages<T>(count: usize) -> Vec<T> {
    let item = size_of::<T>().max(1);
    if count.saturating_mul(item) < OWN_PAGES_MIN_BYTES {
        return Vec::with_capacity(count);
    }
    let mut vector = Vec::new();
    if vector
        .try_reserve_exact(count.max(OWN_PAGES_BYTES / item))
        .is_err()
    {
        // So many addresses can't be had.
        return Vec::with_capacity(count);
    }
    advise(&vector, HUGE_BYTES, MmapAdvise::MADV_NOHUGEPAGE);
    vector
}

/// Asks for huge pages under the whole capacity of a vector; to be called before it is filled.
pub fn advise_huge<T>(vector: &Vec<T>) {
    advise(vector, HUGE_BYTES, MmapAdvise::MADV_HUGEPAGE);
}

/// Gives advice on the whole capacity of a vector, as far as it is parts of so many bytes each. Small arrays are left
/// alone.
fn advise<T>(vector: &Vec<T>, part_bytes: usize, advice: MmapAdvise) {
    let start = vector.as_ptr().addr().next_multiple_of(part_bytes);
    let end = vector.as_ptr().addr() + vector.capacity() * size_of::<T>();
    let bytes = end.saturating_sub(start) / part_bytes * part_bytes;
    if bytes < WORTH_BYTES {
        return;
    }
    let Some(address) = std::ptr::NonNull::new(vector.as_ptr().with_addr(start).cast_mut()) else {
        return;
    };
    // SAFETY: the range lies inside the vector's allocation, and no advice that is given here changes its
    // content or its protection in this process; in a child that has no such pages the vector's owner does not
    // use it.
    let result = unsafe { madvise(address.cast(), bytes, advice) };
    if let Err(error) = result {
        tracing::debug!(%error, bytes, ?advice, "advice is not taken");
    }
}

/// Says whether forked children get the pages of a vector, those at its ends excepted: others may
/// have a part of them. Small arrays are left alone.
pub fn share_with_children<T>(vector: &Vec<T>, shared: bool) {
    let advice = match shared {
        true => MmapAdvise::MADV_DOFORK,
        false => MmapAdvise::MADV_DONTFORK,
    };
    advise(vector, PAGE_BYTES_MAX, advice);
}

/// Gives the whole pages of a slice back to the system: what is in them reads as zeros. False where there
/// are none, or the system refuses: the content stays.
#[must_use]
pub fn release(items: &mut [f32]) -> bool {
    let start = items.as_ptr().addr().next_multiple_of(PAGE_BYTES);
    let end = items.as_ptr().addr() + size_of_val(items);
    let bytes = end.saturating_sub(start) / PAGE_BYTES * PAGE_BYTES;
    if bytes == 0 {
        return false;
    }
    let Some(address) = std::ptr::NonNull::new(items.as_mut_ptr().with_addr(start)) else {
        return false;
    };
    // SAFETY: the pages lie wholly inside the slice, which is borrowed exclusively; they are private
    // memory of the allocator's, which reads as zeros afterwards, and that is a valid f32.
    let result = unsafe { madvise(address.cast(), bytes, MmapAdvise::MADV_DONTNEED) };
    if let Err(error) = result {
        tracing::debug!(%error, bytes, "pages are kept");
    }
    result.is_ok()
}

/// Gives back the memory of what a vector has allocated and does not use, pages at the ends excepted; it
/// can be used again.
pub fn release_spare<T>(vector: &mut Vec<T>) {
    let spare = vector.spare_capacity_mut();
    let start = spare.as_ptr().addr().next_multiple_of(PAGE_BYTES_MAX);
    let end = spare.as_ptr().addr() + size_of_val(spare);
    let bytes = end.saturating_sub(start) / PAGE_BYTES_MAX * PAGE_BYTES_MAX;
    let Some(address) = std::ptr::NonNull::new(spare.as_mut_ptr().with_addr(start)) else {
        return;
    };
    if bytes > 0 {
        // SAFETY: the range lies inside the part of the vector's allocation that holds no values; it may
        // be zeroed. It is borrowed exclusively.
        let result = unsafe { madvise(address.cast(), bytes, MmapAdvise::MADV_DONTNEED) };
        if let Err(error) = result {
            tracing::debug!(%error, bytes, "memory is not given back");
        }
    }
}

/// Announces that an item will be read or changed soon, if there is one of this number.
#[inline]
pub fn prefetch_item<T>(items: &[T], at: usize) {
    // One that is as long as its alignment goes into no further line. (A look whether another does would be guessed
    // wrong for every other item; the same line once more costs little.)
    let goes_on = size_of::<T>() != align_of::<T>();
    let start = items.as_ptr().wrapping_add(at).cast();
    prefetch_lines(start, size_of::<T>(), goes_on);
}

/// Announces that `items` will be read or changed soon.
#[inline]
pub fn prefetch<T>(items: &[T]) {
    let (start, bytes) = (items.as_ptr(), size_of_val(items));
    // Rows of one table do or do not, all of them: that is guessed right.
    let goes_on = !(start.addr() | bytes).is_multiple_of(LINE_BYTES);
    prefetch_lines(start.cast(), bytes, goes_on);
}

/// Announces so many bytes; they may go on in one more line than they fill where they do not begin with one.
#[inline(always)]
fn prefetch_lines(start: *const i8, bytes: usize, goes_on: bool) {
    for offset in (0..bytes).step_by(LINE_BYTES) {
        prefetch_line(start.wrapping_add(offset));
    }
    if goes_on {
        prefetch_line(start.wrapping_add(bytes.saturating_sub(1)));
    }
}

#[inline(always)]
fn prefetch_line(line: *const i8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch never faults and has no effect that a program could see.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Copies values to where they are not read again soon: whole lines go to memory past the processor's caches, so that
/// no line is fetched only to be overwritten. [`end_copies`] follows before anybody else may look.
#[inline]
pub fn copy_past_caches(from: &[f32], to: &mut [f32]) {
    let in_front = to.as_ptr().align_offset(LINE_BYTES).min(to.len());
    let (head, to) = to.split_at_mut(in_front);
    let (from_head, from) = from.split_at(in_front);
    head.copy_from_slice(from_head);
    let (from_lines, from_tail) = from.as_chunks::<LINE_F32S>();
    let (lines, tail) = to.as_chunks_mut::<LINE_F32S>();
    for (from, to) in from_lines.iter().zip(lines) {
        // SAFETY: what is in front of the first line was split off.
        unsafe { store_line(from, to) };
    }
    tail.copy_from_slice(from_tail);
}

/// What this thread copied past the caches is seen by whoever sees what it writes from here on.
pub fn end_copies() {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: a fence touches no memory; every processor of this architecture has it.
        unsafe { std::arch::x86_64::_mm_sfence() };
    }
}

/// Stores a line past the caches.
///
/// # Safety
/// `to` begins with a line.
#[inline(always)]
unsafe fn store_line(from: &[f32; LINE_F32S], to: &mut [f32; LINE_F32S]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_loadu_ps, _mm_stream_ps};
        const PART: usize = 4;
        debug_assert!(to.as_ptr().addr().is_multiple_of(LINE_BYTES), "a line");
        let parts = from.as_chunks::<PART>().0.iter();
        for (from, to) in parts.zip(to.as_chunks_mut::<PART>().0) {
            // SAFETY: four values are there to be read, in any place.
            let values = unsafe { _mm_loadu_ps(from.as_ptr()) };
            // SAFETY: four values are there to be written, borrowed exclusively, and they begin with a multiple of
            // 16 bytes, because the line does.
            unsafe { _mm_stream_ps(to.as_mut_ptr(), values) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    to.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn a_copy_past_the_caches_is_a_copy_wherever_it_begins_and_ends() {
        let from: Vec<f32> = (0..200_u16).map(f32::from).collect();
        for (start, count) in (0..20).flat_map(|start| (0..150).map(move |count| (start, count))) {
            let (mut copied, mut twin) = ([-1.0; 180], [-1.0; 180]);
            copy_past_caches(&from[start..][..count], &mut copied[start..][..count]);
            end_copies();
            twin[start..][..count].copy_from_slice(&from[start..][..count]);
            assert_eq!(copied, twin, "{count} from {start} on");
        }
    }

    #[test]
    fn advice_changes_no_content_whatever_the_size() {
        for bytes in [
            0,
            1,
            4096,
            WORTH_BYTES - 1,
            WORTH_BYTES + 2 * HUGE_BYTES + 5,
        ] {
            let mut vector: Vec<u8> = vec![7; bytes];
            advise_huge(&vector);
            assert!(vector.iter().all(|b| *b == 7));
            vector.fill(9);
            advise_huge(&vector);
            share_with_children(&vector, false);
            assert!(vector.iter().all(|b| *b == 9));
            share_with_children(&vector, true);
            assert!(vector.iter().all(|b| *b == 9));
        }
    }

    #[test]
    fn arrays_with_pages_of_their_own_are_as_any_others() {
        for count in [0, 1, 1000, 100_000, 6_000_000] {
            let mut vector: Vec<u64> = own_pages(count);
            assert!(vector.is_empty() && vector.capacity() >= count);
            vector.extend(0..count as u64);
            assert!(vector.iter().copied().eq(0..count as u64));
        }
        assert!(own_pages::<()>(usize::MAX).is_empty());
    }

    /// glibc keeps what is freed for the next who asks, once a larger array was freed before: a store's process held
    /// 28 MiB more than its arrays needed.
    #[test]
    fn pages_of_their_own_go_back_to_the_system() {
        // In a process of its own: other tests' threads map something there as soon as it is free.
        const ALONE: &str = "HPS_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let name = "pages::tests::pages_of_their_own_go_back_to_the_system";
            let alone = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name, "--test-threads=1"])
                .env(ALONE, "1")
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&alone.stdout);
            assert!(
                alone.status.success() && said.contains("1 passed"),
                "{alone:?}"
            );
            return;
        }
        drop(std::hint::black_box(vec![1u8; 30 << 20]));
        // Room beforehand: what is read must not come to lie where the array was.
        let mut maps = String::with_capacity(8 << 20);
        let mut is_mapped = |address: usize| {
            maps.clear();
            let mut file = std::fs::File::open("/proc/self/maps").unwrap();
            file.read_to_string(&mut maps).unwrap();
            let has = |line: &str| {
                let (start, rest) = line.split_once('-').unwrap();
                let end = rest.split_once(' ').unwrap().0;
                let at = |text| usize::from_str_radix(text, 16).unwrap();
                (at(start)..at(end)).contains(&address)
            };
            maps.lines().any(has)
        };
        // Another thread may map something there at once.
        let mut goes = |make: fn() -> Vec<u8>| {
            (0..50).any(|_| {
                let mut array = make();
                array.resize(1 << 20, 7);
                let address = array.as_ptr().addr();
                assert!(is_mapped(address));
                drop(array);
                !is_mapped(address)
            })
        };
        // As an array does that is too large for any allocator to keep. A sanitizer's keeps that, too.
        let large = goes(|| Vec::with_capacity(64 << 20));
        assert_eq!(goes(|| own_pages(1 << 20)), large);
    }

    #[test]
    fn what_is_given_back_holds_no_value() {
        let mut vector: Vec<u32> = (0..1 << 18).collect();
        vector.truncate(1000);
        release_spare(&mut vector);
        assert!(vector.iter().copied().eq(0..1000));
        vector.resize(1 << 18, 7);
        assert!(vector[1000..].iter().all(|x| *x == 7));
        release_spare(&mut Vec::<u64>::new());
    }

    #[test]
    fn released_pages_read_as_zeros_and_no_others() {
        assert!(!release(&mut []));
        for (f32s, from, to) in [
            (100, 0, 100),
            (100_000, 0, 100_000),
            (3_000_000, 17, 2_999_999),
        ] {
            let mut vector = vec![1.0f32; f32s];
            let addresses = vector[from..to].as_ptr_range();
            let first = addresses.start.addr().next_multiple_of(PAGE_BYTES);
            let last = addresses.end.addr() / PAGE_BYTES * PAGE_BYTES;
            assert_eq!(release(&mut vector[from..to]), first < last);
            for item in &vector {
                let address = std::ptr::from_ref(item).addr();
                let released = first <= address && address < last;
                assert_eq!(*item == 0.0, released, "{f32s} {from} {to}");
            }
            vector.fill(2.0);
            assert!(vector.iter().all(|item| *item == 2.0));
        }
    }

    #[test]
    fn prefetch_takes_any_slice() {
        prefetch::<u64>(&[]);
        prefetch(&[1u8]);
        prefetch(&vec![1.0f32; 1000]);
    }
}
