//! `hps-keyset merge`, `intersect`, `diff`: which keys do files have together, and apart?

use std::env::temp_dir;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::args::{DiffArgs, SetArgs};
use super::crew::Crew;
use super::layout::KeyType;
use super::output::{KeyWriter, Output};
use super::plan::Plan;
use super::stream::{Stream, facts, settle, walk};
use crate::durable::folder_of;

/// Keys that are handed on together.
const BATCH: usize = 4096;

/// What was written, of what.
#[derive(Debug)]
pub struct Made {
    /// Files read, with the number of their unique keys.
    pub files: Vec<(PathBuf, u64)>,
    /// The file written, with the number of its keys.
    pub output: (PathBuf, u64),
}

/// How two keysets differ.
#[derive(Debug)]
pub struct Difference {
    /// Keys of the first file alone, of the second alone, of both.
    pub only_first: u64,
    /// See above.
    pub only_second: u64,
    /// See above.
    pub both: u64,
    /// The file written, with the keys of the first alone; none if there are none.
    pub output: Option<(PathBuf, u64)>,
}

/// Opens files for a walk.
///
/// # Errors
/// What is wrong with a file; `Cancelled`.
fn open(
    files: &[PathBuf],
    given: Option<KeyType>,
    plan: &Plan,
    folder: &Path,
    crew: &mut Crew<'_>,
) -> Result<Vec<Stream>> {
    let keys = given.unwrap_or(KeyType::I64);
    let mut streams = Vec::with_capacity(files.len());
    for path in files {
        let facts = facts(path, keys, plan, crew, |_| {})?;
        settle(path, given, &facts)?;
        streams.push(Stream::open(
            path,
            &facts,
            (plan, files.len()),
            folder,
            crew,
        )?);
    }
    Ok(streams)
}

/// Opens files for a walk, and a file for some of its keys, if one is asked for.
///
/// # Errors
/// As [`open`]; what the file system says.
pub fn open_with_output(
    files: &[PathBuf],
    given: Option<KeyType>,
    output: Option<&Path>,
    plan: &Plan,
    crew: &mut Crew<'_>,
) -> Result<(Vec<Stream>, Option<Batches>)> {
    let folder = output.map_or_else(temp_dir, |path| folder_of(path).to_path_buf());
    let streams = open(files, given, plan, &folder, crew)?;
    let keys = given.unwrap_or(KeyType::I64);
    let output = output.map(|path| Batches::create(path, keys, plan));
    Ok((streams, output.transpose()?))
}

/// Writes keys that come one by one.
pub struct Batches {
    output: Output,
    writer: KeyWriter,
    batch: Vec<u64>,
}

impl Batches {
    /// Into a file.
    ///
    /// # Errors
    /// What the file system says.
    pub fn create(path: &Path, keys: KeyType, plan: &Plan) -> Result<Batches> {
        let output = Output::create(path)?;
        let writer = KeyWriter::new(output.file()?, path, keys, plan.file_bytes);
        Ok(Batches {
            output,
            writer,
            batch: Vec::with_capacity(BATCH),
        })
    }

    /// Takes a key, greater than the one before.
    ///
    /// # Errors
    /// What the file system says.
    pub fn put(&mut self, key: u64) -> Result<()> {
        self.batch.push(key);
        if self.batch.len() == BATCH {
            self.writer.write(&self.batch, 0)?;
            self.batch.clear();
        }
        Ok(())
    }

    /// Gives the file its name, and says how many keys it has; `None`, and no file, if there are none.
    ///
    /// # Errors
    /// What the file system says.
    pub fn finish(mut self) -> Result<Option<(PathBuf, u64)>> {
        self.writer.write(&self.batch, 0)?;
        match self.writer.count {
            0 => Ok(None),
            count => Ok(Some((self.output.finish()?, count))),
        }
    }
}

/// The keys that one file has (`all` unset), or that all have.
///
/// # Errors
/// What is wrong with a file, or what writing met; `Cancelled`.
pub fn combine(args: &SetArgs, all: bool, crew: &mut Crew<'_>) -> Result<Made> {
    let plan = Plan::new(args.resources.memory, args.resources.threads);
    let keys = args.dtype.unwrap_or(KeyType::I64);
    let folder = folder_of(&args.output);
    let mut streams = open(&args.files, args.dtype, &plan, folder, crew)?;
    let mut output = Batches::create(&args.output, keys, &plan)?;
    let mut counts = vec![0; streams.len()];
    walk(&mut streams, crew, |key, has| {
        for (count, has) in counts.iter_mut().zip(has) {
            *count += u64::from(*has);
        }
        match all && has.contains(&false) {
            true => Ok(()),
            false => output.put(key),
        }
    })?;
    let Some(output) = output.finish()? else {
        bail!(
            "{}: not written: no key is in all files, and HugeCTR refuses an empty keyset",
            args.output.display()
        );
    };
    Ok(Made {
        files: args.files.iter().cloned().zip(counts).collect(),
        output,
    })
}

/// How two files differ.
///
/// # Errors
/// As [`combine`].
pub fn diff(args: &DiffArgs, crew: &mut Crew<'_>) -> Result<Difference> {
    let plan = Plan::new(args.resources.memory, args.resources.threads);
    let files = [args.first.clone(), args.second.clone()];
    let output = args.output.as_deref();
    let (mut streams, mut output) = open_with_output(&files, args.dtype, output, &plan, crew)?;
    let mut counts = [0u64; 3];
    walk(&mut streams, crew, |key, has| {
        match has {
            [true, false] => counts[0] += 1,
            [false, true] => counts[1] += 1,
            _ => counts[2] += 1,
        }
        match &mut output {
            Some(output) if has == [true, false] => output.put(key),
            _ => Ok(()),
        }
    })?;
    let [only_first, only_second, both] = counts;
    Ok(Difference {
        only_first,
        only_second,
        both,
        output: output.map(Batches::finish).transpose()?.flatten(),
    })
}
