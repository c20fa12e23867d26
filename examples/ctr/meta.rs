//! What of a run is in its checkpoint beside the rows?
//!
//! Position, scores, dense parameters and the arguments that must not change, in a binary form of
//! its own: little-endian, lengths before lists.
//!
//! - Decoding checks every length against what is left before it allocates, and never panics.
//! - What is decoded and encoded again has the same bytes.

use std::collections::VecDeque;

use anyhow::{Result, bail};

use crate::args::usage;
use crate::data::Position;
use crate::model::Model;
use crate::scores::Scores;

const MAGIC: u64 = 0x3154_4d52_5443_5048;
const VERSION: u32 = 1;

/// Everything of a run that is not in the store's rows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct State {
    /// Batches trained on.
    pub(crate) batches: u64,
    pub(crate) position: Position,
    pub(crate) scores: Scores,
    pub(crate) model: Model,
}

impl State {
    /// The state before the first batch.
    pub(crate) fn new(dim: usize, seed: u64) -> State {
        State {
            batches: 0,
            position: Position::default(),
            scores: Scores::new(),
            model: Model::new(dim, seed),
        }
    }
}

/// The checkpoint's meta: the arguments, then the state.
pub(crate) fn encode(fingerprint: &[(String, String)], state: &State) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    put(&mut out, fingerprint.len() as u64);
    for text in fingerprint.iter().flat_map(|(name, value)| [name, value]) {
        put(&mut out, text.len() as u64);
        out.extend_from_slice(text.as_bytes());
    }
    let position = state.position;
    let scores = &state.scores;
    for x in [
        state.batches,
        position.file,
        position.line,
        position.rows,
        position.skipped,
    ] {
        put(&mut out, x);
    }
    put(&mut out, scores.rows);
    put(&mut out, scores.loss.to_bits());
    let counts = &scores.all.counts;
    put(&mut out, counts.iter().filter(|x| **x > 0).count() as u64);
    for (i, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        put(&mut out, i as u64);
        put(&mut out, *count);
    }
    for codes in [&scores.tail, &scores.planted] {
        put(&mut out, codes.len() as u64);
        out.extend(codes.iter().flat_map(|x| x.to_le_bytes()));
    }
    let model = &state.model;
    put(&mut out, model.steps);
    for values in [&model.weights, &model.first, &model.second] {
        put(&mut out, values.len() as u64);
        out.extend(values.iter().flat_map(|x| x.to_le_bytes()));
    }
    out
}

fn put(out: &mut Vec<u8>, x: u64) {
    out.extend_from_slice(&x.to_le_bytes());
}

/// The state of a checkpoint whose arguments are `fingerprint`.
pub(crate) fn decode(bytes: &[u8], fingerprint: &[(String, String)], dim: usize) -> Result<State> {
    let mut input = Input { bytes };
    if input.word().ok() != Some(MAGIC) {
        bail!("the checkpoint was not made by this trainer");
    }
    let version = u32::from_le_bytes(input.number()?);
    if version != VERSION {
        bail!("the checkpoint's meta has version {version}, this trainer reads {VERSION}");
    }
    let mut stored = Vec::new();
    for _ in 0..input.count(16)? {
        stored.push((input.text()?, input.text()?));
    }
    compare(&stored, fingerprint)?;
    let mut state = State::new(dim, 0);
    state.batches = input.word()?;
    state.position = Position {
        file: input.word()?,
        line: input.word()?,
        rows: input.word()?,
        skipped: input.word()?,
    };
    let scores = &mut state.scores;
    scores.rows = input.word()?;
    scores.loss = f64::from_bits(input.word()?);
    for _ in 0..input.count(16)? {
        let (i, count) = (input.word()?, input.word()?);
        match usize::try_from(i)
            .ok()
            .and_then(|i| scores.all.counts.get_mut(i))
        {
            Some(place) => *place = count,
            None => bail!("the checkpoint's meta is damaged: bucket {i}"),
        }
    }
    scores.tail = input
        .list(u16::from_le_bytes)?
        .into_iter()
        .collect::<VecDeque<u16>>();
    scores.planted = input
        .list(u16::from_le_bytes)?
        .into_iter()
        .collect::<VecDeque<u16>>();
    let model = &mut state.model;
    model.steps = input.word()?;
    for values in [&mut model.weights, &mut model.first, &mut model.second] {
        *values = input.list(f32::from_le_bytes)?;
        if values.len() != Model::parameters(dim) {
            bail!(
                "the checkpoint's meta is damaged: {} dense parameters",
                values.len()
            );
        }
    }
    if !input.bytes.is_empty() {
        bail!(
            "the checkpoint's meta is damaged: {} bytes too many",
            input.bytes.len()
        );
    }
    Ok(state)
}

/// Refuses arguments other than those of the checkpoint, naming each.
fn compare(stored: &[(String, String)], given: &[(String, String)]) -> Result<()> {
    let differing: Vec<String> = stored
        .iter()
        .zip(given)
        .filter(|(old, new)| old != new)
        .map(|((name, old), (_, new))| format!("{name} was {old}, now {new}"))
        .collect();
    if differing.is_empty() && stored.len() == given.len() {
        return Ok(());
    }
    usage(format!(
        "the run in --dir can't be resumed with other arguments: {}; give the same ones, or start \
         anew in an empty directory",
        differing.join("; ")
    ))
}

/// What is left to decode.
struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let Some((head, rest)) = self.bytes.split_at_checked(count) else {
            bail!("the checkpoint's meta is damaged: it ends early");
        };
        self.bytes = rest;
        Ok(head)
    }

    fn number<const W: usize>(&mut self) -> Result<[u8; W]> {
        Ok(self.take(W)?.try_into()?)
    }

    fn word(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.number()?))
    }

    /// The length of a list whose entries take at least `width` bytes each.
    fn count(&mut self, width: usize) -> Result<usize> {
        match usize::try_from(self.word()?) {
            Ok(count) if count <= self.bytes.len() / width => Ok(count),
            _ => bail!("the checkpoint's meta is damaged: a list longer than itself"),
        }
    }

    fn list<const W: usize, T>(&mut self, number: fn([u8; W]) -> T) -> Result<Vec<T>> {
        let count = self.count(W)?;
        Ok(self
            .take(count * W)?
            .as_chunks::<W>()
            .0
            .iter()
            .map(|x| number(*x))
            .collect())
    }

    fn text(&mut self) -> Result<String> {
        let count = self.count(1)?;
        Ok(String::from_utf8(self.take(count)?.to_vec())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(lr: &str) -> Vec<(String, String)> {
        vec![
            ("--lr".to_owned(), lr.to_owned()),
            ("DATA".to_owned(), "a b".to_owned()),
        ]
    }

    #[test]
    fn what_is_decoded_is_what_was_encoded_and_every_cut_is_refused() {
        let mut state = State::new(1, 7);
        state.batches = 3;
        state.position = Position {
            file: 1,
            line: 2,
            rows: 3,
            skipped: 4,
        };
        let batch = crate::data::Batch {
            labels: vec![0.0, 1.0, 1.0],
            planted: vec![0.1, 0.2, 0.3],
            ..Default::default()
        };
        state.scores.add(&batch, &[0.5, -0.5, 99.0]);
        let bytes = encode(&arguments("0.1"), &state);
        assert_eq!(decode(&bytes, &arguments("0.1"), 1).unwrap(), state);
        for cut in (0..bytes.len()).step_by(7) {
            assert!(decode(&bytes[..cut], &arguments("0.1"), 1).is_err());
        }
        let error = decode(&bytes, &arguments("0.2"), 1)
            .unwrap_err()
            .to_string();
        assert!(error.contains("--lr was 0.1, now 0.2"), "{error}");
    }
}
