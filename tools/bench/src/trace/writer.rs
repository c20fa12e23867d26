//! How does a run leave a trace? One block per batch, buffered, with an end that says it is whole.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::format::{END, END_BYTES, KEYS_MAX, encode, head, header};

/// Writes the batches of a run to a file.
///
/// Without [`TraceWriter::finish`] the file has no end and a reader refuses it.
#[derive(Debug)]
pub struct TraceWriter {
    path: PathBuf,
    file: BufWriter<File>,
    offset: u64,
    batches: u64,
    keys: u64,
    payload: Vec<u8>,
}

impl TraceWriter {
    /// Makes the file, or empties it.
    ///
    /// # Errors
    /// What the file system says.
    pub fn create(path: &Path) -> Result<TraceWriter> {
        let file = File::create(path).with_context(|| format!("make {}", path.display()))?;
        let mut writer = TraceWriter {
            path: path.to_owned(),
            file: BufWriter::with_capacity(1 << 18, file),
            offset: 0,
            batches: 0,
            keys: 0,
            payload: Vec::new(),
        };
        writer.write(&header())?;
        Ok(writer)
    }

    /// Appends the keys of one batch, in their order; repeated keys are kept.
    ///
    /// # Shapes
    /// keys: `[n]`, n at most 2^28
    ///
    /// # Errors
    /// What the file system says; too many keys.
    pub fn batch(&mut self, keys: &[u64]) -> Result<()> {
        let count = u32::try_from(keys.len()).unwrap_or(u32::MAX);
        ensure!(
            count <= KEYS_MAX,
            "a batch of {} keys is too large for a trace",
            keys.len()
        );
        let mut payload = std::mem::take(&mut self.payload);
        payload.clear();
        encode(keys, &mut payload);
        let bytes = u32::try_from(payload.len()).context("a batch too large for a trace")?;
        let head = head(self.offset, [bytes, count], &payload);
        self.write(&head)?;
        self.write(&payload)?;
        self.payload = payload;
        self.batches += 1;
        self.keys += u64::from(count);
        Ok(())
    }

    /// Writes the end and hands everything to the file system; it does not sync.
    ///
    /// # Errors
    /// What the file system says.
    pub fn finish(mut self) -> Result<()> {
        let mut payload = self.batches.to_le_bytes().to_vec();
        payload.extend_from_slice(&self.keys.to_le_bytes());
        let head = head(self.offset, [END_BYTES, END], &payload);
        self.write(&head)?;
        self.write(&payload)?;
        self.file
            .flush()
            .with_context(|| format!("write {}", self.path.display()))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all(bytes)
            .with_context(|| format!("write {}", self.path.display()))?;
        self.offset += bytes.len() as u64;
        Ok(())
    }
}
