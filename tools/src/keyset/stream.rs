//! How are keyset files walked in order, also those that are not sorted?
//!
//! - A first pass finds out what a file is. One that is sorted is read again, one that is not is sorted
//!   within `--memory`.
//! - Sorted keys of 32 bits read as sorted keys of 64 bits, too: what speaks against the type that was
//!   given, or taken, is an error.

use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use hps::Error;

use super::crew::Crew;
use super::fixed::Element;
use super::layout::{Fault, Format, KeyType, Sink, value_at};
use super::plan::Plan;
use super::run::Run;
use super::scheme::Scheme;
use super::sorting::sort;
use super::source::{Inputs, Source};
use crate::cli::Usage;

/// Fewer words of 32 bits than these say nothing about the type.
const WORDS_MIN: u64 = 8;

/// What a pass over a keyset file has shown.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// The type that its keys were read as.
    pub keys: KeyType,
    /// How many there are, equal ones included.
    pub count: u64,
    /// The least.
    pub min: u64,
    /// The greatest.
    pub max: u64,
    /// The number of the first key that is less than the one before it.
    pub falls: Option<u64>,
    /// The number of the first key that equals the one before it.
    pub repeats: Option<u64>,
    /// Whether keys of the other type would rise from one to the next.
    other_rises: bool,
}

impl Facts {
    /// Sorted, and no key twice.
    #[must_use]
    pub fn is_strict(&self) -> bool {
        self.falls.is_none() && self.repeats.is_none()
    }

    /// What speaks against the type.
    #[must_use]
    pub fn contradiction(&self) -> Option<&'static str> {
        let words = self.count * (self.keys.bytes() / 4) as u64;
        if words < WORDS_MIN || !self.other_rises {
            return None;
        }
        match self.keys {
            KeyType::I64 => Some(
                "read as u32 the keys rise from the first to the last, too, which keys of i64 hardly \
                 do: found u32 (--dtype u32), expected i64",
            ),
            KeyType::U32 if !self.is_strict() && self.count.is_multiple_of(2) => Some(
                "read as u32 the keys are in disorder, read as i64 they rise from the first to the \
                 last: found i64 (--dtype i64), expected u32",
            ),
            KeyType::U32 => None,
        }
    }
}

/// Watches the keys of a file go by.
struct Watch<F> {
    facts: Facts,
    last: Option<u64>,
    /// The last word, or the last pair of words.
    other_last: Option<u64>,
    word: u64,
    also: F,
}

impl<F: FnMut(u64)> Sink for Watch<F> {
    fn put(&mut self, _: usize, key: u64) -> Result<(), Fault> {
        let facts = &mut self.facts;
        match self.last {
            Some(last) if key < last => facts.falls = facts.falls.or(Some(facts.count)),
            Some(last) if key == last => facts.repeats = facts.repeats.or(Some(facts.count)),
            _ => {}
        }
        self.last = Some(key);
        facts.min = facts.min.min(key);
        facts.max = facts.max.max(key);
        let mut other = |key: u64| {
            facts.other_rises &= self.other_last.is_none_or(|last| last < key);
            self.other_last = Some(key);
        };
        match facts.keys {
            KeyType::I64 => {
                other(key & u64::from(u32::MAX));
                other(key >> 32);
            }
            KeyType::U32 if facts.count % 2 == 1 => other(key << 32 | self.word),
            KeyType::U32 => self.word = key,
        }
        facts.count += 1;
        (self.also)(key);
        Ok(())
    }

    fn end_row(&mut self, _: Range<usize>) -> Result<(), Fault> {
        Ok(())
    }
}

/// One pass over a file; each key also goes to `also`.
///
/// # Errors
/// What reading met, what is wrong with the file; `Cancelled`.
pub fn facts(
    path: &Path,
    keys: KeyType,
    plan: &Plan,
    crew: &mut Crew<'_>,
    also: impl FnMut(u64),
) -> Result<Facts> {
    let mut watch = Watch {
        facts: Facts {
            keys,
            count: 0,
            min: u64::MAX,
            max: 0,
            falls: None,
            repeats: None,
            other_rises: true,
        },
        last: None,
        other_last: None,
        word: 0,
        also,
    };
    let mut source = source(path, keys, plan, crew)?;
    let mut bytes = Vec::new();
    while let Some(chunk) = source.next(&mut bytes)? {
        crew.interrupt.check()?;
        chunk.layout.parse(&bytes, &chunk.place(), &mut watch)?;
        crew.show();
    }
    Ok(watch.facts)
}

fn inputs(path: &Path) -> Result<Inputs> {
    if path.as_os_str() == "-" {
        bail!(Usage(String::from(
            "standard input can't be read twice: make a file of it with extract --from keys"
        )));
    }
    Inputs::find(&[PathBuf::from(path)], false)
}

fn source(path: &Path, keys: KeyType, plan: &Plan, crew: &Crew<'_>) -> Result<Source> {
    let sizes = (plan.chunk_bytes, &crew.done);
    Ok(Source::new(
        &inputs(path)?,
        Format::Keys(keys),
        sizes,
        |_| Ok(()),
    ))
}

/// The type of a file's keys: the one that was given, or i64 if nothing speaks against it.
///
/// # Errors
/// `Corrupt` when something does.
pub fn settle(path: &Path, given: Option<KeyType>, facts: &Facts) -> Result<()> {
    match facts.contradiction() {
        Some(what) if given.is_none() => Err(Error::corrupt(path, 0, what).into()),
        _ => Ok(()),
    }
}

/// Unique keys of a file, in order.
pub struct Stream {
    from: From,
    keys: Vec<u64>,
    at: usize,
}

enum From {
    File(Box<Source>, Element, Vec<u8>),
    Run(Run, u64, Vec<u8>),
}

impl Stream {
    /// Opens a file that was looked at; sorts it first, where it must be. One of `of` streams: all of them
    /// have a quarter of the memory, and what is sorted at a time the rest.
    ///
    /// # Errors
    /// What reading and sorting met; `Cancelled`.
    pub fn open(
        path: &Path,
        facts: &Facts,
        (plan, of): (&Plan, usize),
        folder: &Path,
        crew: &mut Crew<'_>,
    ) -> Result<Stream> {
        let memory = plan.share * plan.threads;
        // A chunk, and its keys, which take twice as much if they have 32 bits.
        let bytes = (memory / of / 16).clamp(4096, 1 << 20);
        let from = if facts.is_strict() {
            let plan = Plan {
                chunk_bytes: bytes,
                ..*plan
            };
            let element = Element::from(facts.keys);
            From::File(
                Box::new(source(path, facts.keys, &plan, crew)?),
                element,
                Vec::new(),
            )
        } else {
            let plan = &Plan::new(memory as u64 / 4 * 3, Some(plan.threads));
            let (inputs, format) = (inputs(path)?, Format::Keys(facts.keys));
            let sorted = sort(&inputs, format, &Scheme::raw(), plan, folder, crew)?;
            From::Run(sorted.into_run(crew)?, 0, vec![0; bytes])
        };
        let mut stream = Stream {
            from,
            keys: Vec::new(),
            at: 0,
        };
        stream.fill()?;
        Ok(stream)
    }

    /// The next key.
    #[inline]
    #[must_use]
    pub fn peek(&self) -> Option<u64> {
        self.keys.get(self.at).copied()
    }

    /// Goes on behind it.
    ///
    /// # Errors
    /// What reading met.
    #[inline]
    pub fn advance(&mut self) -> Result<()> {
        self.at += 1;
        if self.at >= self.keys.len() {
            self.fill()?;
        }
        Ok(())
    }

    fn fill(&mut self) -> Result<()> {
        let last = self.keys.last().copied();
        self.keys.clear();
        self.at = 0;
        match &mut self.from {
            From::File(source, element, bytes) => {
                let Some(chunk) = source.next(bytes)? else {
                    return Ok(());
                };
                let values = bytes.chunks_exact(element.bytes());
                self.keys
                    .extend(values.filter_map(|bytes| value_at(bytes, *element)));
                let rises = self.keys.is_sorted_by(|a, b| a < b);
                if !rises || last.is_some_and(|last| self.keys.first() <= Some(&last)) {
                    bail!("{}: changed while it was read", chunk.path.display());
                }
            }
            From::Run(run, from, bytes) => {
                let count = usize::try_from(run.keys - *from)?.min(bytes.len() / 8);
                run.read(*from, count, bytes, &mut self.keys)?;
                *from += count as u64;
            }
        }
        Ok(())
    }
}

/// Walks several streams side by side: each key that one of them has, and which ones have it.
///
/// # Errors
/// What reading met, what `emit` says; `Cancelled`.
pub fn walk(
    streams: &mut [Stream],
    crew: &mut Crew<'_>,
    mut emit: impl FnMut(u64, &[bool]) -> Result<()>,
) -> Result<()> {
    let mut has = vec![false; streams.len()];
    let mut steps = 0u32;
    while let Some(key) = streams.iter().filter_map(Stream::peek).min() {
        steps = steps.wrapping_add(1);
        if steps.trailing_zeros() >= 16 {
            crew.interrupt.check()?;
            crew.show();
        }
        for (stream, has) in streams.iter_mut().zip(&mut has) {
            *has = stream.peek() == Some(key);
            if *has {
                stream.advance()?;
            }
        }
        emit(key, &has)?;
    }
    Ok(())
}
