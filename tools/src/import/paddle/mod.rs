//! How does the text of Paddle's parameter server become rows?
//!
//! - Threads take pieces of files. Every line is read to its end before its row is put.
//! - How many lines there are only reading tells: rows are numbered by the piece and the line in it, and where one
//!   stands is found by reading its piece again.

mod lines;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use anyhow::Result;
use hps::{Optimizer, RowMetadata, TableDescriptor};

use super::args::{Args, NonFinite};
use super::plan::start_of_state;
use super::put::ROWS_MAX;
use super::shape::Shape;
use super::source::{Chunk, Folder, Noticed, Place, Reader, Seen, Source};
use crate::cli::{Interrupt, Usage};
use crate::models::columns::columns;
use crate::models::paddle::{COUNTS, Layout, counts, key_of, whole};
use lines::{Files, Lines};

/// Bytes of rows that are put at once.
const ROWS_BYTES: usize = 1 << 20;
/// Lines after which is looked whether the user asked to end.
const LOOK_LINES: u64 = 4096;
/// Bits of a row's number that count the lines of a piece.
const LINE_BITS: u32 = 40;

/// A folder of text that was looked at.
pub struct Text {
    folder: PathBuf,
    files: Files,
    layout: Layout,
    weights_only: bool,
}

impl Text {
    /// Looks at the names of the files, and at what the flags say of their lines.
    ///
    /// # Errors
    /// `Usage` where there are other files, or none; `Io`.
    pub fn look(args: &Args) -> Result<Text> {
        Ok(Text {
            folder: args.folder.clone(),
            files: Files::list(&args.folder)?,
            layout: args.paddle.layout(args.embedx_dim.map_or(0, usize::from)),
            weights_only: args.weights_only,
        })
    }
}

impl Folder for Text {
    fn path(&self) -> &Path {
        &self.folder
    }

    /// None: that of Paddle's rules is not taken.
    fn state(&self) -> Vec<&str> {
        Vec::new()
    }

    fn metadata(&self) -> RowMetadata {
        let has_counts = !self.weights_only;
        RowMetadata::new().show(has_counts).click(has_counts)
    }

    fn optimizer(&self) -> Option<Optimizer> {
        None
    }

    fn needed(&self, _: Optimizer) -> Result<Vec<&'static str>> {
        Ok(Vec::new())
    }

    fn missing(&self, name: &str) -> (PathBuf, String) {
        (self.folder.clone(), name.to_owned())
    }

    fn shape(&self, _: &Args, wanted: Option<usize>, _: Optimizer) -> Result<Shape> {
        let dim = self.layout.dim();
        if let Some(other) = wanted.filter(|other| *other != dim) {
            let why = format!(
                "--embedx-dim {}: rows of {dim} weights, with embed_w; expected {other}, as the table has, or --dim asks for",
                self.layout.embedx_dim
            );
            return Err(Usage(why).into());
        }
        Ok(Shape {
            rows: 0,
            dim,
            left: Vec::new(),
        })
    }

    fn source<'a>(
        &'a self,
        args: &Args,
        _: &Shape,
        table: &TableDescriptor,
    ) -> Result<Box<dyn Source + 'a>> {
        Ok(Box::new(Rows::new(self, args.non_finite, table)))
    }
}

/// The rows of a folder.
struct Rows<'a> {
    text: &'a Text,
    non_finite: NonFinite,
    /// Words of a row that are f32s.
    numbers: usize,
    is_whole: bool,
    /// Whether the table has no state.
    has_state: bool,
    /// What a row has that no line says.
    start: Vec<f32>,
    /// Where [`COUNTS`] stand.
    counts: [Option<usize>; 2],
    next: AtomicUsize,
    /// Rows that are taken, and what was seen of them.
    rows: AtomicU64,
    without_embedx: AtomicU64,
    rounded: AtomicU64,
}

impl<'a> Rows<'a> {
    fn new(text: &'a Text, non_finite: NonFinite, table: &TableDescriptor) -> Rows<'a> {
        let columns = columns(table);
        let counts = counts(&columns, text.weights_only);
        let is_whole = counts.iter().any(Option::is_some);
        let integers = columns.iter().find(|column| column.is_integer);
        let (row_f32s, numbers) = match (is_whole, integers) {
            (true, Some(first)) => (table.row_f32s(), first.begin),
            _ => (table.dim, table.dim),
        };
        let mut start = vec![0.0; row_f32s];
        if is_whole {
            for (place, value) in start_of_state(table) {
                start[place].fill(value);
            }
        }
        Rows {
            text,
            non_finite,
            numbers,
            is_whole,
            has_state: table.optimizer.state_f32s(table.dim) == 0,
            start,
            counts,
            next: AtomicUsize::new(0),
            rows: AtomicU64::new(0),
            without_embedx: AtomicU64::new(0),
            rounded: AtomicU64::new(0),
        }
    }

    /// Appends the row of a line, and says whether it will be taken; or the byte that is wrong, and what.
    fn read(
        &self,
        line: &[u8],
        chunk: &mut Chunk,
        seen: &mut Seen,
    ) -> Result<bool, (usize, String)> {
        let begin = chunk.rows.len();
        chunk.rows.extend_from_slice(&self.start);
        let row = &mut chunk.rows[begin..];
        let layout = self.text.layout;
        let read = layout.read(line, &mut row[..layout.dim()]);
        let feature = read.map_err(|fault| (fault.at, fault.what))?;
        chunk.keys.push(feature.key);
        if feature.not_finite.is_some() {
            chunk.is_finite = false;
            if self.non_finite != NonFinite::Apply {
                // Refused or left out, whatever else it has.
                return Ok(false);
            }
        }
        let mut is_rounded = false;
        let counts = COUNTS.into_iter().zip([feature.show, feature.click]);
        for ((name, value), place) in counts.zip(self.counts) {
            let Some(place) = place else {
                continue;
            };
            let Some((number, rounded)) = whole(value) else {
                let what = format!(
                    "key {}: found {value} as its {name}, expected 0 to {}; --weights-only leaves it out",
                    feature.key,
                    u32::MAX
                );
                return Err((0, what));
            };
            row[place] = f32::from_bits(number);
            is_rounded |= rounded;
        }
        seen.rounded += u64::from(is_rounded);
        seen.without_embedx += u64::from(!feature.has_embedx);
        Ok(true)
    }

    /// A line, by the number of its row: where it begins, it, and whether its file is packed.
    fn line(&self, row: u64) -> Result<Option<(u64, Vec<u8>, bool)>> {
        let (piece, index) = piece_of(row);
        if piece >= self.text.files.pieces() {
            return Ok(None);
        }
        let mut lines = self.text.files.lines(piece)?;
        for _ in 0..index {
            lines.next()?;
        }
        let is_packed = lines.is_packed();
        let found = lines.next()?;
        Ok(found.map(|(at, line)| (at, line.to_vec(), is_packed)))
    }
}

/// The number of a row: its piece, and which line of it.
fn number_of(piece: usize, line: u64) -> u64 {
    (piece as u64) << LINE_BITS | line
}

fn piece_of(row: u64) -> (usize, u64) {
    let piece = usize::try_from(row >> LINE_BITS).unwrap_or(usize::MAX);
    (piece, row & ((1 << LINE_BITS) - 1))
}

impl Source for Rows<'_> {
    fn rows(&self) -> Option<u64> {
        None
    }

    fn bytes(&self) -> u64 {
        self.text.files.bytes()
    }

    fn row_f32s(&self) -> usize {
        self.start.len()
    }

    fn numbers(&self) -> usize {
        self.numbers
    }

    fn is_whole(&self) -> bool {
        self.is_whole
    }

    fn has_state(&self) -> bool {
        self.has_state
    }

    fn reader(&self) -> Box<dyn Reader + '_> {
        Box::new(TextReader {
            rows: self,
            open: None,
        })
    }

    fn keys(&self, interrupt: &Interrupt, see: &mut dyn FnMut(u64, u64)) -> Result<()> {
        for piece in 0..self.text.files.pieces() {
            let mut lines = self.text.files.lines(piece)?;
            let mut row = number_of(piece, 0);
            while let Some((at, line)) = lines.next()? {
                // A packed file is one piece, whatever its length.
                if row.is_multiple_of(LOOK_LINES) {
                    interrupt.check()?;
                }
                let key = key_of(line).map(|(key, _)| key);
                see(row, key.map_err(|fault| lines.corrupt(at, fault.what))?);
                row += 1;
            }
        }
        Ok(())
    }

    fn place(&self, row: u64, word: Option<usize>) -> Place {
        let path = self.text.files.path(piece_of(row).0).to_path_buf();
        let Ok(Some((at, line, is_packed))) = self.line(row) else {
            let name = String::from("a line that is gone");
            return Place {
                path,
                offset: 0,
                name,
            };
        };
        let layout = self.text.layout;
        let mut weights = vec![0.0; layout.dim()];
        let feature = layout.read(&line, &mut weights);
        // The only words that are asked for are those that are not finite.
        let byte = feature.ok().and_then(|feature| feature.not_finite);
        let byte = byte.filter(|_| word.is_some()).map_or(0, |(byte, _)| byte);
        let key = line.split(u8::is_ascii_whitespace).next();
        let key = String::from_utf8_lossy(key.unwrap_or_default());
        let unpacked = if is_packed {
            " of the unpacked text"
        } else {
            ""
        };
        Place {
            path,
            offset: at + byte as u64,
            name: format!("the line of key {key} at byte {at}{unpacked}"),
        }
    }

    fn finish(&self) -> Result<Noticed> {
        let mut noticed = Noticed {
            text: Some(Seen {
                without_embedx: self.without_embedx.load(Ordering::Relaxed),
                rounded: self.rounded.load(Ordering::Relaxed),
            }),
            ..Noticed::default()
        };
        for (name, place) in COUNTS.into_iter().zip(self.counts) {
            if place.is_none() && !self.text.weights_only {
                noticed.lose(name, self.rows.load(Ordering::Relaxed));
            }
        }
        Ok(noticed)
    }
}

/// Reads pieces, one after another.
struct TextReader<'a> {
    rows: &'a Rows<'a>,
    open: Option<Open<'a>>,
}

/// A piece that is read.
struct Open<'a> {
    lines: Lines<'a>,
    /// The number of the next row.
    next: u64,
}

impl Reader for TextReader<'_> {
    fn next(&mut self, chunk: &mut Chunk) -> Result<bool> {
        loop {
            let mut open = match self.open.take() {
                Some(open) => open,
                None => match self.rows.open_next()? {
                    Some(open) => open,
                    None => return Ok(false),
                },
            };
            if open.read(self.rows, chunk)? {
                self.open = Some(open);
            }
            if !chunk.keys.is_empty() {
                return Ok(true);
            }
        }
    }
}

impl Rows<'_> {
    fn open_next(&self) -> Result<Option<Open<'_>>> {
        let piece = self.next.fetch_add(1, Ordering::Relaxed);
        let files = &self.text.files;
        if piece >= files.pieces() {
            return Ok(None);
        }
        Ok(Some(Open {
            lines: files.lines(piece)?,
            next: number_of(piece, 0),
        }))
    }
}

impl Open<'_> {
    /// Reads some rows; whether more of the piece may be left.
    fn read(&mut self, rows: &Rows<'_>, chunk: &mut Chunk) -> Result<bool> {
        let most = (ROWS_BYTES / (rows.start.len() * 4 + 8)).clamp(16, ROWS_MAX);
        let begin = self.lines.at();
        chunk.first = self.next;
        chunk.keys.clear();
        chunk.rows.clear();
        chunk.is_finite = true;
        let mut seen = Seen::default();
        let (mut taken, mut is_left) = (0, true);
        while chunk.keys.len() < most {
            let Some((at, line)) = self.lines.next()? else {
                is_left = false;
                break;
            };
            let read = rows.read(line, chunk, &mut seen);
            let read = read.map_err(|(byte, what)| self.lines.corrupt(at + byte as u64, what));
            taken += u64::from(read?);
        }
        self.next += chunk.keys.len() as u64;
        chunk.bytes = match (self.lines.is_packed(), is_left) {
            (false, _) => self.lines.at() - begin,
            (true, true) => 0,
            (true, false) => self.lines.file_bytes(),
        };
        let add = |to: &AtomicU64, count| to.fetch_add(count, Ordering::Relaxed);
        add(&rows.rows, taken);
        add(&rows.without_embedx, seen.without_embedx);
        add(&rows.rounded, seen.rounded);
        Ok(is_left)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::models::paddle::SgdRule;

    #[test]
    fn keys_of_one_piece_end_when_the_user_asks() {
        let dir = tempfile::tempdir().unwrap();
        let lines: String = (0..20_000)
            .map(|key| format!("{key} -1 0 0 5 2 0.5\n"))
            .collect();
        fs::write(dir.path().join("part-000-00000"), lines).unwrap();
        let text = Text {
            folder: dir.path().to_path_buf(),
            files: Files::list(dir.path()).unwrap(),
            layout: Layout {
                embed: SgdRule::Naive,
                embedx: SgdRule::Naive,
                embedx_dim: 0,
            },
            weights_only: true,
        };
        assert_eq!(text.files.pieces(), 1);
        let rows = Rows::new(&text, NonFinite::Reject, &TableDescriptor::new("t", 1));
        let interrupt = Interrupt::never();
        let mut seen = 0;
        let mut see = |_, key| {
            seen += 1;
            if key == 9 {
                interrupt.ask();
            }
        };
        assert!(rows.keys(&interrupt, &mut see).is_err());
        assert_eq!(seen, LOOK_LINES);
    }
}
