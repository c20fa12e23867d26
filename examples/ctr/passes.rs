//! How does the trainer go through data that `hps-keyset split --data` has cut into passes?
//!
//! - The folder holds PREFIX.0.keyset, PREFIX.0.tsv and so on, and the list of the data,
//!   PREFIX.txt. That they belong together is checked before a store is made.
//! - The rows of pass n + 1 come in while the trainer is in pass n. A batch may have examples of
//!   both: pass n ends after it.
//! - Batches that are fetched ahead may ask for rows of a pass that comes in: both pin them.
//! - No value depends on passes.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use hps::{KeyType, Pass, PassPart, PassTicket};
use serde_json::{Value, json};

use crate::args::usage;
use crate::data::Reader;
use crate::pipeline::{Job, explain};
use crate::report::{Report, mib};

/// Keysets are i64, the bits of u64 keys, and sorted.
const KEY_BYTES: u64 = 8;

/// What is there of one pass.
#[derive(Debug)]
struct Files {
    keyset: PathBuf,
    data: PathBuf,
}

/// A folder of passes.
#[derive(Debug)]
pub(crate) struct Folder {
    files: Vec<Files>,
}

impl Folder {
    /// Looks for the passes and checks that they are whole.
    pub(crate) fn read(directory: &Path) -> Result<Folder> {
        let place = directory.display();
        let sets = match numbers(directory) {
            Ok(sets) => sets,
            Err(error) => return usage(format!("--passes {place}: {error}")),
        };
        let mut sets = sets.into_iter();
        let Some((prefix, numbers)) = sets.next() else {
            return usage(format!(
                "--passes {place}: holds no keyset PREFIX.0.keyset; make the passes with \
                 hps-keyset split --from criteo-tsv --first-field 1 --data -o {place}/PREFIX"
            ));
        };
        if let Some((other, _)) = sets.next() {
            return usage(format!(
                "--passes {place}: holds the passes of several data sets ({prefix} and {other}); \
                 give each a folder of its own"
            ));
        }
        let count = numbers.len() as u64;
        let path = |ending: &str| directory.join(format!("{prefix}.{ending}"));
        let mut files = Vec::new();
        for number in 0..count {
            let keyset = path(&format!("{number}.keyset"));
            let data = path(&format!("{number}.tsv"));
            if !numbers.contains(&number) {
                return usage(format!(
                    "{} is missing, and there are others with higher numbers: split the data anew",
                    keyset.display()
                ));
            }
            if !data.is_file() {
                return usage(format!(
                    "{} has no data beside it ({}): give --data to hps-keyset split",
                    keyset.display(),
                    data.display()
                ));
            }
            let pair = Files { keyset, data };
            check_keyset(&pair)?;
            files.push(pair);
        }
        check_list(&path("txt"), &files)?;
        Ok(Folder { files })
    }

    /// The data of all passes, in order.
    pub(crate) fn data(&self) -> Vec<PathBuf> {
        self.files.iter().map(|files| files.data.clone()).collect()
    }
}

/// The numbers of the keysets in a folder, by prefix.
fn numbers(directory: &Path) -> std::io::Result<BTreeMap<String, Vec<u64>>> {
    let mut found: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for entry in std::fs::read_dir(directory)? {
        let name = entry?.file_name();
        let stem = name.to_str().and_then(|name| name.strip_suffix(".keyset"));
        let Some((prefix, text)) = stem.and_then(|stem| stem.rsplit_once('.')) else {
            continue;
        };
        // Not 007 or +7.
        let number = text.parse::<u64>().ok().filter(|x| x.to_string() == text);
        if let Some(number) = number {
            found.entry(prefix.to_owned()).or_default().push(number);
        }
    }
    Ok(found)
}

/// Refuses a keyset that has no whole number of keys, or not those of the first row of its data.
fn check_keyset(files: &Files) -> Result<()> {
    let (path, place) = (&files.keyset, files.keyset.display());
    let file = File::open(path).with_context(|| place.to_string())?;
    let bytes = file.metadata().with_context(|| place.to_string())?.len();
    if bytes == 0 {
        return usage(format!("{place}: is empty; split the data anew"));
    }
    let rest = bytes % KEY_BYTES;
    if rest > 0 {
        return usage(format!(
            "{place}: {bytes} bytes are no whole number of i64 keys, {rest} are left over at \
             offset {}; split the data anew, with --dtype i64",
            bytes - rest
        ));
    }
    let row = Reader::new(vec![files.data.clone()], false, None).batch(1)?;
    for key in row.iter().flat_map(|row| &row.keys) {
        if !holds(&file, bytes / KEY_BYTES, *key).with_context(|| place.to_string())? {
            return usage(format!(
                "{place}: has no key {key} (field {}, value {:#x}) of the first row of {}: is it \
                 of other data, not sorted, or does it number the fields from 0? ctr does from 1: \
                 split the data with --first-field 1",
                key >> 32,
                key & 0xffff_ffff,
                files.data.display()
            ));
        }
    }
    Ok(())
}

/// Whether a sorted keyset of so many keys has this one.
fn holds(file: &File, count: u64, key: u64) -> std::io::Result<bool> {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        let mut found = [0; 8];
        file.read_exact_at(&mut found, middle * KEY_BYTES)?;
        match u64::from_le_bytes(found).cmp(&key) {
            Ordering::Equal => return Ok(true),
            Ordering::Less => low = middle + 1,
            Ordering::Greater => high = middle,
        }
    }
    Ok(false)
}

/// Refuses a list of data other than that of the passes: their number, then a name on each line.
fn check_list(path: &Path, files: &[Files]) -> Result<()> {
    let place = path.display();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            return usage(format!(
                "{place}: {error}; hps-keyset split --data writes this list of the data's files"
            ));
        }
    };
    let mut lines = text.lines();
    let first = lines.next().unwrap_or("");
    let names: Vec<&str> = lines.collect();
    let count = names.len();
    if first.parse::<usize>().ok() != Some(count) {
        return usage(format!(
            "{place}: the first line is {first:?}, and {count} names follow; split the data anew"
        ));
    }
    if count != files.len() {
        return usage(format!(
            "{place}: lists {count} files, and there are {} keysets; remove those of an older \
             split, or split the data anew",
            files.len()
        ));
    }
    for (i, (name, files)) in names.iter().zip(files).enumerate() {
        let expected = files.data.file_name();
        if Path::new(name).file_name() != expected {
            return usage(format!(
                "{place}:{}: {name:?} instead of {:?}; split the data anew",
                i + 2,
                expected.unwrap_or_default()
            ));
        }
    }
    Ok(())
}

/// What is told of a pass whose rows are there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entered {
    number: usize,
    keys: u64,
    hit_rate: f64,
    read_bytes: u64,
    /// Seconds that the trainer waited for it.
    wait_s: f64,
}

impl Entered {
    /// The object of `--json`.
    pub(crate) fn object(&self) -> Value {
        json!({
            "pass": self.number,
            "keys": self.keys,
            "hit_rate": self.hit_rate,
            "read_bytes": self.read_bytes,
            "wait_s": self.wait_s,
        })
    }

    /// The line of the summary: its name and the rest.
    pub(crate) fn row(&self) -> (String, String) {
        let rest = format!(
            "{} keys, hit rate {:.4}, {:.1} MiB read, {:.2} s waited",
            self.keys,
            self.hit_rate,
            mib(self.read_bytes),
            self.wait_s
        );
        (format!("pass {}", self.number), rest)
    }
}

/// Goes through the passes of a folder.
pub(crate) struct Passes<'a> {
    job: &'a Job<'a>,
    files: &'a [Files],
    /// Passes whose rows stay, the current one last.
    held: Vec<Pass>,
    coming: Option<PassTicket>,
    /// The number of the pass that comes in, or is to be begun next.
    next: usize,
}

impl<'a> Passes<'a> {
    /// Begins the first pass of a run.
    pub(crate) fn begin(job: &'a Job<'a>, folder: &'a Folder, first: u64) -> Result<Passes<'a>> {
        let mut passes = Passes {
            job,
            files: &folder.files,
            held: Vec::new(),
            coming: None,
            next: usize::try_from(first)?,
        };
        passes.begin_next()?;
        Ok(passes)
    }

    fn begin_next(&mut self) -> Result<()> {
        if self.coming.is_none()
            && let Some(files) = self.files.get(self.next)
        {
            let part = PassPart::from_file(self.job.table, &files.keyset, KeyType::I64);
            let begun = self.job.store.begin_pass(&[part]);
            self.coming = Some(begun.map_err(|error| self.explain(error))?);
        }
        Ok(())
    }

    /// Before a batch: waits until all passes up to that of its last example are there. Those
    /// before it end with [`Passes::leave`]; until then nothing else is asked to come in.
    pub(crate) fn enter(&mut self, pass: u64, report: &mut Report) -> Result<()> {
        while self.next as u64 <= pass {
            self.begin_next()?;
            let Some(ticket) = self.coming.take() else {
                return Ok(());
            };
            let start = Instant::now();
            let entered = ticket.wait().map_err(|error| self.explain(error))?;
            let told = entered.report();
            report.pass(Entered {
                number: self.next,
                keys: told.keys,
                hit_rate: told.hit_rate(),
                read_bytes: told.bytes,
                wait_s: start.elapsed().as_secs_f64(),
            })?;
            self.held.push(entered);
            self.next += 1;
        }
        if self.held.len() == 1 {
            self.begin_next()?;
        }
        Ok(())
    }

    /// After a batch: ends the passes before the current one.
    pub(crate) fn leave(&mut self) {
        let before = self.held.len().saturating_sub(1);
        self.held.drain(..before);
    }

    fn explain(&self, error: hps::Error) -> anyhow::Error {
        let keyset = self.files.get(self.next).map(|files| &files.keyset);
        let name = keyset.map_or_else(String::new, |path| path.display().to_string());
        explain(error, self.job.args, &format!("bring in the pass {name}"))
    }
}
