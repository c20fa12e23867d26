//! Which batches does a trace hold? Block after block, each checked before it is believed.
//!
//! - Every error names the file, and the batch and byte where it was found.
//! - A length is checked against what the file can hold; memory follows the bytes really read.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::format::{
    END, END_BYTES, HEAD_BYTES, HEADER_BYTES, KEYS_MAX, MAGIC, VARINT_MAX, VERSION, checksum,
    decode, header, u32_at, u64_at,
};

/// Reads the batches of a trace in order.
#[derive(Debug)]
pub struct TraceReader {
    path: PathBuf,
    file: BufReader<File>,
    offset: u64,
    batches: u64,
    keys: u64,
    payload: Vec<u8>,
    ended: bool,
}

impl TraceReader {
    /// Opens a trace and checks its header.
    ///
    /// # Errors
    /// What the file system says; not a trace, or of another version.
    pub fn open(path: &Path) -> Result<TraceReader> {
        let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
        let mut reader = TraceReader {
            path: path.to_owned(),
            file: BufReader::with_capacity(1 << 18, file),
            offset: 0,
            batches: 0,
            keys: 0,
            payload: Vec::new(),
            ended: false,
        };
        reader
            .check_header()
            .with_context(|| format!("{} is no usable trace: header", path.display()))?;
        Ok(reader)
    }

    fn check_header(&mut self) -> Result<()> {
        let found = self.read(HEADER_BYTES)?;
        ensure!(found.len() as u64 == HEADER_BYTES, "the file is too short");
        ensure!(found[..8] == MAGIC, "other first bytes than a trace has");
        let version = u32_at(found, 8);
        ensure!(
            version == VERSION,
            "version {version}; this program reads version {VERSION}"
        );
        ensure!(*found == header(), "damaged");
        Ok(())
    }

    /// Replaces `keys` by those of the next batch; false, with no keys, behind the last one.
    ///
    /// # Errors
    /// Damage, a cut, or what the file system says: with the batch and the byte.
    pub fn next_batch(&mut self, keys: &mut Vec<u64>) -> Result<bool> {
        keys.clear();
        if self.ended {
            return Ok(false);
        }
        let (batch, offset) = (self.batches, self.offset);
        self.block(keys).with_context(|| {
            let path = self.path.display();
            format!("{path} is damaged: block {batch} at byte {offset}")
        })
    }

    fn block(&mut self, keys: &mut Vec<u64>) -> Result<bool> {
        let offset = self.offset;
        let head: [u8; HEAD_BYTES] = match self.read(HEAD_BYTES as u64)? {
            [] => bail!("the trace was not finished: no end follows its batches"),
            some => match (*some).try_into() {
                Ok(head) => head,
                Err(_) => bail!("the file ends within the block's head"),
            },
        };
        let (bytes, count) = (u32_at(&head, 0), u32_at(&head, 4));
        let plausible = match count {
            END => bytes == END_BYTES,
            _ => count <= KEYS_MAX && bytes >= count && bytes.div_ceil(VARINT_MAX_U32) <= count,
        };
        ensure!(plausible, "{bytes} bytes for {count} keys can't be");
        let payload = self.read(u64::from(bytes))?;
        ensure!(
            payload.len() as u64 == u64::from(bytes),
            "the file ends after {} of the block's {bytes} bytes",
            payload.len()
        );
        ensure!(
            checksum(offset, [bytes, count], payload) == u64_at(&head, 8),
            "checksum mismatch"
        );
        if count == END {
            let (batches, all) = (u64_at(payload, 0), u64_at(payload, 8));
            return self.end(batches, all);
        }
        decode(payload, count, keys)?;
        self.batches += 1;
        self.keys += u64::from(count);
        Ok(true)
    }

    fn end(&mut self, batches: u64, keys: u64) -> Result<bool> {
        ensure!(
            (batches, keys) == (self.batches, self.keys),
            "the end says {batches} batches of {keys} keys, the file has {} of {}",
            self.batches,
            self.keys
        );
        ensure!(self.read(1)?.is_empty(), "bytes follow the trace's end");
        self.ended = true;
        Ok(false)
    }

    /// Up to `bytes` bytes, fewer only at the end of the file.
    fn read(&mut self, bytes: u64) -> Result<&[u8]> {
        self.payload.clear();
        let read = (&mut self.file)
            .take(bytes)
            .read_to_end(&mut self.payload)
            .context("read")?;
        self.offset += read as u64;
        Ok(&self.payload)
    }
}

const VARINT_MAX_U32: u32 = 10;
const _: () = assert!(VARINT_MAX_U32 as usize == VARINT_MAX);
