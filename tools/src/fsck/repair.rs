//! `hps-fsck --repair`: what is saved, what is lost, and where is the damaged store now?
//!
//! - The list of lost keys is durable before the stores change places.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use hps::inspect::Report;
use hps::io::Io;
use hps::repair::{Now, Options, Outcome, Repaired, repair};
use serde_json::{Value, json};

use super::Args;
use crate::cli::{GOOD, Interrupt, Meter, count, of, refuse_strange_owner, visible};

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
    disk: &Io,
    meter: &mut Meter,
    interrupt: &Interrupt,
) -> Result<(Report, Option<Mended>)> {
    let directory = &args.directory;
    let root = directory
        .canonicalize()
        .with_context(|| format!("find {}", directory.display()))?;
    refuse_strange_owner(&root, args.force)?;
    let options = Options {
        checkpoint: args.checkpoint,
        without_meta: args.without_meta,
        without_directories: args.without_directory.clone(),
    };
    let outcome = repair(disk, &root, options, &mut |done, all| {
        meter.at(done, all);
        interrupt.flow()
    });
    meter.end();
    let (report, repaired) = match outcome? {
        Outcome::Whole(report) => return Ok((report, None)),
        Outcome::Built(report, repaired) => (report, *repaired),
    };
    let list = if repaired.lost.is_empty() {
        None
    } else {
        Some(write_list(&root, &repaired)?)
    };
    let aside = repaired.swap(disk, &root)?;
    let mended = Mended {
        repaired,
        root,
        aside,
        list,
    };
    Ok((report, Some(mended)))
}

fn table(repaired: &Repaired, id: u32) -> &str {
    repaired.tables.get(id as usize).map_or("?", String::as_str)
}

fn word(now: Now) -> &'static str {
    match now {
        Now::Gone => "gone",
        Now::Older => "older copy",
        Now::Back => "removed key is back",
    }
}

/// Lost rows that are gone, that are older, and removed keys that are back.
fn counts(repaired: &Repaired) -> [u64; 3] {
    [Now::Gone, Now::Older, Now::Back]
        .map(|now| repaired.lost.iter().filter(|l| l.now == now).count() as u64)
}

/// Writes the keys into a file of a name that is free, beside the store.
fn write_list(root: &Path, repaired: &Repaired) -> Result<PathBuf> {
    let base = root.file_name().unwrap_or_default().to_string_lossy();
    let mut text = String::from("table\tkey\tfile\tnow\n");
    for row in &repaired.lost {
        let (table, now) = (table(repaired, row.table), word(row.now));
        writeln!(text, "{table}\t{}\t{}\t{now}", row.key, row.file)?;
    }
    let mut n = 0;
    loop {
        n += 1;
        let path = root.with_file_name(format!("{base}.lost-{n}.tsv"));
        let mut file = match File::create_new(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
            other => other.with_context(|| format!("create {}", path.display()))?,
        };
        file.write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
            .and_then(|()| File::open(root.parent().unwrap_or(Path::new(".")))?.sync_all())
            .with_context(|| format!("write {}", path.display()))?;
        return Ok(path);
    }
}

/// The object `repair` of the report.
pub(super) fn json(mended: &Mended) -> Value {
    let r = &mended.repaired;
    let [gone, older, back] = counts(r);
    json!({
        "store": mended.root.to_string_lossy(),
        "damaged": mended.aside.to_string_lossy(),
        "checkpoint": r.checkpoint,
        "step": r.step,
        "meta_lost": r.meta_lost,
        "version_lost": r.version_lost,
        "checkpoints_kept": r.checkpoints_kept,
        "checkpoints_dropped": r.checkpoints_dropped,
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
            let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
            writeln!(out, "  {what}: {}", ids.join(", "))?;
        }
    }
    if r.meta_lost {
        writeln!(out, "  the checkpoint's meta is lost: it is empty now")?;
    }
    let [gone, older, back] = counts(r);
    if r.lost.is_empty() && r.nameless == 0 {
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
    for row in r.lost.iter().take(NAMED_MAX) {
        let (table, now) = (table(r, row.table), word(row.now));
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
