//! `hps-fsck --repair`: what is saved, what is lost, and where is the damaged store now?
//!
//! - The list of lost keys is durable before the stores change places.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use hps::inspect::Report;
use hps::repair::{Fate, LostRow, RepairOptions, RepairOutcome, Repaired, repair};
use hps::{CheckpointId, Error};
use serde_json::{Value, json};

use super::Args;
use crate::cli::{GOOD, Interrupt, Meter, count, numbers, of, refuse_strange_owner, visible};

/// Lost keys that are printed.
const NAMED_MAX: usize = 16;

/// A finished repair.
#[derive(Debug)]
pub struct Mended {
    repaired: Repaired,
    /// The store.
    root: PathBuf,
    /// Where the damaged one is.
    aside: PathBuf,
    /// The list of lost keys, if there are any.
    list: Option<PathBuf>,
    /// The first of them, with their tables.
    named: Vec<(String, LostRow)>,
}

impl Mended {
    /// Whether every row is what it was.
    #[must_use]
    pub fn lost_nothing(&self) -> bool {
        self.repaired.lost_nothing()
    }
}

/// Repairs the store, if it is damaged.
pub(super) fn run(
    args: &Args,
    meter: &mut Meter,
    interrupt: &Interrupt,
) -> Result<(Report, Option<Mended>)> {
    let directory = &args.directory;
    let root = directory
        .canonicalize()
        .with_context(|| format!("find {}", directory.display()))?;
    refuse_strange_owner(&root, args.force)?;
    let options = RepairOptions::new()
        .checkpoint(args.checkpoint)
        .without_meta(args.without_meta)
        .without_directories(args.without_directory.clone());
    let mut list = List {
        root: &root,
        file: None,
        named: Vec::new(),
    };
    let mut told = |table: &str, row| {
        let added = list.add(table, row);
        added.map_err(|e| Error::io("write the list of lost keys beside", &root, e))
    };
    let outcome = repair(&root, options, &mut told, &mut |done, all| {
        meter.at(done, all);
        interrupt.flow()
    });
    meter.end();
    let (report, repaired) = match outcome {
        Ok(RepairOutcome::Whole(report)) => return Ok((report, None)),
        Ok(RepairOutcome::Built(report, repaired)) => (report, *repaired),
        Err(error) => {
            list.discard();
            return Err(error.into());
        }
    };
    let listed = list.end().context("write the list of lost keys")?;
    let named = std::mem::take(&mut list.named);
    let aside = repaired.swap(&root)?;
    let mended = Mended {
        repaired,
        root,
        aside,
        list: listed,
        named,
    };
    Ok((report, Some(mended)))
}

fn word(now: Fate) -> &'static str {
    match now {
        Fate::Gone => "gone",
        Fate::Older => "older copy",
        Fate::Back => "removed key is back",
    }
}

/// The list of lost keys: a file of a name that is free, beside the store, once there is a row.
struct List<'a> {
    root: &'a Path,
    file: Option<(PathBuf, BufWriter<File>)>,
    /// The first ones.
    named: Vec<(String, LostRow)>,
}

impl List<'_> {
    fn add(&mut self, table: &str, row: LostRow) -> io::Result<()> {
        if self.named.len() < NAMED_MAX {
            self.named.push((table.to_owned(), row));
        }
        let (_, out) = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(List::create(self.root)?),
        };
        writeln!(out, "{table}\t{}\t{}\t{}", row.key, row.file, word(row.now))
    }

    fn create(root: &Path) -> io::Result<(PathBuf, BufWriter<File>)> {
        let base = root.file_name().unwrap_or_default().to_string_lossy();
        let mut n = 0;
        loop {
            n += 1;
            let path = root.with_file_name(format!("{base}.lost-{n}.tsv"));
            match File::create_new(&path) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                other => {
                    let mut out = BufWriter::new(other?);
                    writeln!(out, "table\tkey\tfile\tnow")?;
                    return Ok((path, out));
                }
            }
        }
    }

    /// Makes it durable; where it is.
    fn end(&mut self) -> io::Result<Option<PathBuf>> {
        let Some((path, out)) = &mut self.file else {
            return Ok(None);
        };
        out.flush()?;
        out.get_ref().sync_all()?;
        File::open(self.root.parent().unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(Some(path.clone()))
    }

    /// Removes what a repair that failed has written.
    fn discard(self) {
        if let Some((path, _)) = self.file {
            let _left = std::fs::remove_file(path);
        }
    }
}

/// The object `repair` of the report.
pub(super) fn json(mended: &Mended) -> Value {
    let r = &mended.repaired;
    let (gone, older, back) = (r.lost.gone, r.lost.older, r.lost.back);
    json!({
        "store": mended.root.to_string_lossy(),
        "damaged": mended.aside.to_string_lossy(),
        "checkpoint": r.checkpoint.0,
        "step": r.step,
        "meta_lost": r.meta_lost,
        "version_lost": r.version_lost,
        "checkpoints_kept": numbers(&r.checkpoints_kept),
        "checkpoints_dropped": numbers(&r.checkpoints_dropped),
        "data_directories": r.moved.iter().map(|(old, new)| json!({
            "damaged": old.to_string_lossy(), "store": new.to_string_lossy(),
        })).collect::<Vec<_>>(),
        "directories_given_up": r.given_up.iter().map(|(index, new)| json!({
            "directory": index, "store": new.to_string_lossy(),
        })).collect::<Vec<_>>(),
        "files_shared": r.files_shared,
        "files_rewritten": r.files_rewritten,
        "files_gone": r.files_gone,
        "entries_saved": r.entries_saved,
        "rows_gone": gone,
        "rows_older": older,
        "keys_back": back,
        "entries_nameless": r.nameless,
        "copies_undecided": r.undecided,
        "lost_list": mended.list.as_ref().map(|l| l.to_string_lossy()),
    })
}

/// What a person reads.
pub(super) fn print(out: &mut dyn Write, mended: &Mended) -> io::Result<()> {
    let r = &mended.repaired;
    writeln!(
        out,
        "{GOOD}repaired{GOOD:#}: checkpoint {} of step {}; {} shared, {} written anew, {} gone",
        r.checkpoint,
        r.step,
        of(r.files_shared, "file"),
        count(r.files_rewritten),
        count(r.files_gone)
    )?;
    if let Some(why) = &r.version_lost {
        writeln!(out, "  later checkpoints may be lost: {why}")?;
    }
    for (what, ids) in [
        ("earlier checkpoints kept", &r.checkpoints_kept),
        ("checkpoints that are lost", &r.checkpoints_dropped),
    ] {
        if !ids.is_empty() {
            let ids: Vec<String> = ids.iter().map(CheckpointId::to_string).collect();
            writeln!(out, "  {what}: {}", ids.join(", "))?;
        }
    }
    if r.meta_lost {
        writeln!(out, "  the checkpoint's meta is lost: it is empty now")?;
    }
    let (gone, older, back) = (r.lost.gone, r.lost.older, r.lost.back);
    if r.lost.sum() + r.nameless == 0 {
        writeln!(out, "  no row is lost")?;
    } else {
        writeln!(
            out,
            "  lost: {} gone, {} older copies now",
            of(gone, "row"),
            count(older)
        )?;
    }
    if back > 0 {
        writeln!(out, "  {} back", of(back, "removed key"))?;
    }
    if r.nameless > 0 {
        let entries = count(r.nameless);
        writeln!(
            out,
            "  entries that can't be named: {entries}; of these, rows without a newer copy are lost, and removed \
             keys may be back"
        )?;
    }
    if r.undecided > 0 {
        let copies = count(r.undecided);
        writeln!(
            out,
            "  copies that contradict others: {copies}; of each of their keys the one in the younger file was \
             kept, which may not be the right one"
        )?;
    }
    for (table, row) in &mended.named {
        let now = word(row.now);
        writeln!(out, "  table {}, key {}: {now}", visible(table), row.key)?;
    }
    if let Some(list) = &mended.list {
        writeln!(out, "  all lost keys: {}", visible(&list.to_string_lossy()))?;
    }
    for (index, new) in &r.given_up {
        let new = visible(&new.to_string_lossy());
        writeln!(
            out,
            "data directory {index} was given up; its new one is {new}"
        )?;
    }
    for (old, new) in &r.moved {
        writeln!(
            out,
            "data directory {} is inside that of the damaged store: remove files from {}, not the \
             directory",
            visible(&new.to_string_lossy()),
            visible(&old.to_string_lossy())
        )?;
    }
    writeln!(
        out,
        "the damaged store is kept as {}; remove it when it is not needed any more",
        visible(&mended.aside.to_string_lossy())
    )
}
