//! How many blocks a second does the device read in no order, and how many bytes in order?
//!
//! - Files are opened O_DIRECT; where that is refused the answer says so.
//! - Data is incompressible and differs in each block.
//! - A measurement takes the best of the depths that it is given.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};
use std::time::Instant;

use anyhow::{Context, Result};
use hps::io::{AlignedBuffer, DiskFile, Io, OpenMode, Queue};
use hps::mix64;

use super::share;

/// Bytes of a request in order.
pub(super) const SEQUENTIAL_BYTES: usize = 1 << 20;

/// Random reads a second, and how they were reached.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RandomReads {
    /// Bytes of a read.
    pub block_bytes: usize,
    /// Reads in flight, all threads together, at which most were done.
    pub depth: usize,
    /// Reads a second.
    pub per_second: f64,
}

/// Bytes a second in order, and how they were reached.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sequential {
    /// Requests of 1 MiB in flight at which most was moved.
    pub depth: usize,
    /// Bytes a second until the last request was done.
    pub per_second: f64,
    /// The same with the file's sync inside the time (writes only).
    pub synced_per_second: f64,
}

/// The disk that a store would use: io_uring, else plain calls.
#[must_use]
pub fn disk() -> Io {
    Io::best()
}

/// Fills a buffer with bytes that no device can compress, different for each `tag`.
fn fill_random(buffer: &mut [u8], tag: u64) {
    let seed = mix64(tag.wrapping_add(0x2545_f491_4f6c_dd1d));
    for (i, bytes) in buffer.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&mix64(seed ^ (i as u64)).to_le_bytes());
    }
}

/// Fills all buffers of a queue before the clock runs; each request then is stamped only.
pub(super) fn fill_buffers(queue: &mut dyn Queue, tag: u64) {
    let mut buffers = Vec::new();
    while let Some(mut buffer) = queue.buffer() {
        fill_random(&mut buffer, tag + buffers.len() as u64);
        buffers.push(buffer);
    }
    buffers.into_iter().for_each(|b| queue.recycle(b));
}

/// Changes one word of each block, so that none is like one of another request.
pub(super) fn stamp(buffer: &mut [u8], request: u64) {
    for (block, chunk) in buffer.chunks_exact_mut(4096).enumerate() {
        chunk[..8].copy_from_slice(&mix64(request << 20 | block as u64).to_le_bytes());
    }
}

/// A buffer for the next request: a free one, or that of the next completion.
pub(super) fn next_buffer(queue: &mut dyn Queue) -> Result<AlignedBuffer> {
    if let Some(buffer) = queue.buffer() {
        return Ok(buffer);
    }
    let done = queue.wait().context("a queue without buffers")?;
    done.result.context("a request of the probe")?;
    Ok(done.buffer)
}

/// Takes all completions.
pub(super) fn drain(queue: &mut dyn Queue) -> Result<()> {
    while let Some(done) = queue.wait() {
        done.result.context("a request of the probe")?;
        queue.recycle(done.buffer);
    }
    Ok(())
}

/// Writes a file of `bytes` in order, 1 MiB a request, at each of the depths; the last one stays.
///
/// # Errors
/// What the system says.
pub fn sequential_write(io: &Io, path: &Path, bytes: u64, depths: &[usize]) -> Result<Sequential> {
    let mut best = Sequential::default();
    for depth in depths {
        let found = write_once(io, path, bytes, *depth)?;
        if found.per_second > best.per_second {
            best = found;
        }
    }
    Ok(best)
}

fn write_once(io: &Io, path: &Path, bytes: u64, depth: usize) -> Result<Sequential> {
    let _gone = std::fs::remove_file(path);
    let file = reach(io, path, OpenMode::CreateDirect)
        .with_context(|| format!("make {}", path.display()))?;
    let mut queue = io.engine.queue(depth, SEQUENTIAL_BYTES)?;
    fill_buffers(&mut *queue, 0);
    let requests = (bytes / SEQUENTIAL_BYTES as u64).max(1);
    let since = Instant::now();
    for i in 0..requests {
        let mut buffer = next_buffer(&mut *queue)?;
        stamp(&mut buffer, i);
        let offset = i * SEQUENTIAL_BYTES as u64;
        queue.write(&file, offset, SEQUENTIAL_BYTES, buffer, i);
        queue.submit();
    }
    drain(&mut *queue)?;
    let moved = (requests * SEQUENTIAL_BYTES as u64) as f64;
    let per_second = moved / since.elapsed().as_secs_f64();
    file.sync().context("sync the probe")?;
    let synced_per_second = moved / since.elapsed().as_secs_f64();
    Ok(Sequential {
        depth,
        per_second,
        synced_per_second,
    })
}

/// Reads files in order, 1 MiB a request, at each of the depths.
///
/// # Errors
/// What the system says.
pub fn sequential_read(io: &Io, paths: &[PathBuf], depths: &[usize]) -> Result<Sequential> {
    let files: Vec<_> = paths.iter().map(|p| open(io, p)).collect::<Result<_>>()?;
    let mut best = Sequential::default();
    for depth in depths {
        let mut queue = io.engine.queue(*depth, SEQUENTIAL_BYTES)?;
        let mut moved = 0;
        let since = Instant::now();
        for file in &files {
            let bytes = file.bytes()?;
            for offset in (0..bytes).step_by(SEQUENTIAL_BYTES) {
                let buffer = next_buffer(&mut *queue)?;
                queue.read(file, offset, SEQUENTIAL_BYTES, buffer, 0);
                queue.submit();
            }
            moved += bytes;
        }
        drain(&mut *queue)?;
        let per_second = moved as f64 / since.elapsed().as_secs_f64();
        if per_second > best.per_second {
            best = Sequential {
                depth: *depth,
                per_second,
                synced_per_second: per_second,
            };
        }
    }
    Ok(best)
}

fn open(io: &Io, path: &Path) -> Result<Arc<dyn DiskFile>> {
    let named = || format!("open {}", path.display());
    reach(io, path, OpenMode::ReadDirect).with_context(named)
}

/// Opens or makes the file at a path.
pub(super) fn reach(io: &Io, path: &Path, mode: OpenMode) -> std::io::Result<Arc<dyn DiskFile>> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    let place = io.disk.open_dir(parent.unwrap_or(Path::new(".")))?;
    let name = path.file_name().and_then(|name| name.to_str());
    place.open(name.ok_or(std::io::ErrorKind::InvalidInput)?, mode)
}

/// Reads of a probe that are longer than a block.
#[derive(Clone, Copy, Debug, Default)]
pub struct LongReads {
    /// Their share of the reads.
    pub share: f64,
    /// Their bytes on the average: of a block to twice as many less a block, all equally often.
    pub bytes: usize,
}

/// What a probe of random reads does.
#[derive(Clone, Copy, Debug)]
pub struct RandomProbe<'a> {
    /// Bytes of a read, and of the offsets' grid.
    pub block_bytes: usize,
    /// Those that are longer.
    pub long: LongReads,
    /// Threads, each with its own queue.
    pub threads: usize,
    /// Reads in flight, all threads together, to try.
    pub depths: &'a [usize],
    /// Seconds at each depth.
    pub seconds: f64,
    /// Seed of the offsets.
    pub seed: u64,
}

impl RandomProbe<'_> {
    /// The length of a read that was drawn as a number from 0 to 1: long ones are at its end.
    fn read_bytes(&self, drawn: f64) -> usize {
        let LongReads { share, bytes } = self.long;
        if share <= 0.0 || drawn < 1.0 - share {
            return self.block_bytes;
        }
        let at = (drawn - (1.0 - share)) / share;
        let more = 2.0 * at * bytes.saturating_sub(self.block_bytes) as f64;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a length, far below 2^53"
        )]
        let more = more as usize;
        (self.block_bytes + more + 256) / 512 * 512
    }
}

/// A number from 0 to 1 of a hash.
fn unit(hash: u64) -> f64 {
    hash as f64 / u64::MAX as f64
}

/// Files as one row of blocks.
struct Blocks {
    /// By file: the file, and the number of blocks up to its end.
    files: Vec<(Arc<dyn DiskFile>, u64)>,
    count: u64,
}

impl Blocks {
    fn open(io: &Io, paths: &[PathBuf], block_bytes: usize) -> Result<Blocks> {
        let (mut files, mut count) = (Vec::new(), 0);
        for path in paths {
            let file = open(io, path)?;
            count += file.bytes()? / block_bytes as u64;
            files.push((file, count));
        }
        anyhow::ensure!(count > 0, "no blocks of {block_bytes} bytes to read");
        Ok(Blocks { files, count })
    }

    /// The file of a block, and the block's number in it, or that of an earlier one behind which so many are.
    fn find(&self, block: u64, blocks: u64) -> Option<(&Arc<dyn DiskFile>, u64)> {
        let at = self.files.partition_point(|(_, end)| *end <= block);
        let before = at.checked_sub(1).map_or(0, |i| self.files[i].1);
        let (file, end) = self.files.get(at)?;
        let last = (end - before).saturating_sub(blocks);
        Some((file, (block - before).min(last)))
    }
}

/// Reads blocks of files in no order.
///
/// # Errors
/// What the system says.
pub fn random_reads(io: &Io, paths: &[PathBuf], probe: &RandomProbe) -> Result<RandomReads> {
    let blocks = Blocks::open(io, paths, probe.block_bytes)?;
    let mut best = RandomReads {
        block_bytes: probe.block_bytes,
        ..RandomReads::default()
    };
    for depth in probe.depths {
        let start = Barrier::new(probe.threads);
        let rates = std::thread::scope(|scope| {
            let spawned: Vec<_> = (0..probe.threads)
                .map(|thread| {
                    let (blocks, start) = (&blocks, &start);
                    let depth = share(*depth, probe.threads, thread).max(1);
                    let seed = probe.seed ^ mix64((thread as u64 + 1) << 32 | depth as u64);
                    scope.spawn(move || {
                        let buffer_bytes = probe.read_bytes(1.0).next_multiple_of(4096);
                        let queue = io.engine.queue(depth, buffer_bytes);
                        start.wait();
                        read_blocks(queue?, blocks, probe, seed)
                    })
                })
                .collect();
            let joined = spawned.into_iter().map(|thread| {
                let rate = thread.join();
                rate.map_err(|_| anyhow::anyhow!("a probe's thread panicked"))?
            });
            joined.collect::<Result<Vec<f64>>>()
        })?;
        let per_second = rates.iter().sum();
        if per_second > best.per_second {
            best.depth = *depth;
            best.per_second = per_second;
        }
    }
    Ok(best)
}

/// One thread's reads a second.
fn read_blocks(
    mut queue: Box<dyn Queue>,
    blocks: &Blocks,
    probe: &RandomProbe,
    seed: u64,
) -> Result<f64> {
    let (mut state, mut count) = (seed, 0u64);
    // Several at a time, so that a system call carries more than one read.
    let refill = (queue.depth() / 8).max(1);
    let since = Instant::now();
    while since.elapsed().as_secs_f64() < probe.seconds {
        while let Some(buffer) = queue.buffer() {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let block = (u128::from(mix64(state)) * u128::from(blocks.count)) >> 64;
            let bytes = probe.read_bytes(unit(mix64(!state)));
            let long = bytes.div_ceil(probe.block_bytes) as u64;
            let found = blocks.find(u64::try_from(block)?, long);
            let (file, block) = found.context("a block out of range")?;
            let offset = block * probe.block_bytes as u64;
            queue.read(file, offset, bytes, buffer, count);
            count += 1;
        }
        for _ in 0..refill {
            if let Some(done) = queue.wait() {
                done.result.context("a read of the probe")?;
                queue.recycle(done.buffer);
            }
        }
    }
    drain(&mut *queue)?;
    Ok(count as f64 / since.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_write_incompressible_data_and_read_it_back() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, path) = (disk(), dir.path().join("probe"));
        let bytes = 8 << 20;
        let written = sequential_write(&disk, &path, bytes, &[4, 8]).unwrap();
        assert!(written.per_second >= written.synced_per_second);
        assert!(written.synced_per_second > 0.0 && [4, 8].contains(&written.depth));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), bytes);
        let data = std::fs::read(&path).unwrap();
        let mut words: Vec<&[u8]> = data.chunks_exact(8).collect();
        words.sort_unstable();
        words.dedup();
        // Buffers are used again, but for the first word of each block.
        assert!(words.len() > (4 << 20) / 8);
        let mut blocks: Vec<&[u8]> = data.chunks_exact(4096).collect();
        blocks.sort_unstable();
        blocks.dedup();
        assert_eq!(blocks.len(), 8 << 8, "no block is like another");
        let paths = [path.clone(), path];
        assert!(sequential_read(&disk, &paths, &[4]).unwrap().per_second > 0.0);
        let probe = RandomProbe {
            block_bytes: 4096,
            long: LongReads::default(),
            threads: 2,
            depths: &[3, 8],
            seconds: 0.02,
            seed: 1,
        };
        let reads = random_reads(&disk, &paths, &probe).unwrap();
        assert!(reads.per_second > 0.0 && [3, 8].contains(&reads.depth));
        let (share, bytes) = (0.25, 3 << 20);
        let long = LongReads { share, bytes };
        let mixed = RandomProbe { long, ..probe };
        assert!(random_reads(&disk, &paths, &mixed).unwrap().per_second > 0.0);
        let lengths = [0.0, 0.74, 0.75, 0.875, 1.0].map(|drawn| mixed.read_bytes(drawn));
        assert_eq!(lengths, [4096, 4096, 4096, 3 << 20, (6 << 20) - 4096]);
        assert_eq!(probe.read_bytes(1.0), 4096);
    }
}
