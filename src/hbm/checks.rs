//! What is asked of a call's buffers and counts? The same for every device.

use super::shape::{Shape, option};
use super::{Buffer, Gradients, Kind, Values, ValuesMut};
use crate::error::{ArgumentError, Result};
use crate::row::check_learning_rate;
use crate::units::narrow;

impl Shape {
    pub fn check_batch(&self, count: usize) -> Result<u32> {
        if count > self.options.batch_keys_max {
            let why = format!(
                "batch_keys_max is {}: split the call, or open the table with more",
                self.options.batch_keys_max
            );
            return Err(option("count", &count, why));
        }
        Ok(narrow(count))
    }

    pub fn check_gradients(&self, gradients: &Gradients) -> Result<u32> {
        let n = self.check_batch(gradients.count)?;
        check(gradients.keys, Kind::Keys, gradients.count, "keys")?;
        let values = gradients.count * self.dim;
        check(gradients.values, Kind::Floats, values, "gradients")?;
        for (column, what) in [(gradients.shows, "shows"), (gradients.clicks, "clicks")] {
            if let Some(column) = column {
                check(column, Kind::Words, gradients.count, what)?;
            }
        }
        check_learning_rate(self.descriptor.optimizer, gradients.lr)?;
        Ok(n)
    }

    /// Of `insert`; the keys as a count of 32 bits.
    pub fn check_insert(
        &self,
        (keys, rows, count): (Buffer, Buffer, usize),
        failed: Buffer,
    ) -> Result<u32> {
        let n = narrow_count(count)?;
        check(keys, Kind::Keys, count, "keys")?;
        check(rows, Kind::Words, count, "rows")?;
        check(failed, Kind::Keys, 0, "failed")?;
        check_apart(&[failed], &[keys, rows])?;
        Ok(n)
    }

    /// Of a `get` of rows of `width` floats.
    pub fn check_get(
        &self,
        (keys, count, out): (Buffer, usize, Buffer),
        width: usize,
    ) -> Result<u32> {
        let n = narrow_count(count)?;
        check(keys, Kind::Keys, count, "keys")?;
        check(out, Kind::Floats, count * width, "out")?;
        check_apart(&[out], &[keys])?;
        Ok(n)
    }

    /// Of `place`.
    pub fn check_place(&self, rows: Buffer, packed: Buffer, count: usize) -> Result<u32> {
        let n = narrow_count(count)?;
        check(rows, Kind::Words, count, "rows")?;
        check(packed, Kind::Floats, count * self.row_f32s, "packed")?;
        Ok(n)
    }

    /// Of `pack`.
    pub fn check_pack(
        &self,
        (rows, count): (Buffer, usize),
        (packed, positions): (Buffer, Buffer),
    ) -> Result<u32> {
        let n = self.check_batch(count)?;
        check(rows, Kind::Words, count, "rows")?;
        check(packed, Kind::Floats, count * self.row_f32s, "packed")?;
        check(positions, Kind::Words, count, "positions")?;
        check_apart(&[packed, positions], &[rows])?;
        Ok(n)
    }

    /// Of `split`.
    pub fn check_split(
        &self,
        (keys, count, parts): (Buffer, usize, usize),
        (out, positions, ends): (Buffer, Buffer, Buffer),
    ) -> Result<u32> {
        let n = self.check_batch(count)?;
        check_parts(parts)?;
        check(keys, Kind::Keys, count, "keys")?;
        check(out, Kind::Keys, count, "out")?;
        check(positions, Kind::Words, count, "positions")?;
        check(ends, Kind::Keys, parts, "ends")?;
        check_apart(&[out, positions, ends], &[keys])?;
        Ok(n)
    }
}

/// Of `merge`.
pub(crate) fn check_merge(
    positions: Buffer,
    (from, to): (Buffer, Buffer),
    (count, width): (usize, usize),
) -> Result<u32> {
    let n = narrow_count(count)?;
    check(positions, Kind::Words, count, "positions")?;
    check(from, Kind::Floats, count.saturating_mul(width), "from")?;
    check(to, Kind::Floats, count.saturating_mul(width), "to")?;
    check_apart(&[to], &[positions, from])?;
    Ok(n)
}

/// Of `copy`.
pub(crate) fn check_copy(from: Buffer, to: Buffer, count: usize) -> Result<()> {
    check(from, from.kind, count, "from")?;
    check(to, from.kind, count, "to")?;
    check_apart(&[to], &[from])
}

/// Of `write`: how many values.
pub(crate) fn check_write(to: Buffer, at: usize, values: Values<'_>) -> Result<usize> {
    let (kind, count) = match values {
        Values::Keys(values) => (Kind::Keys, values.len()),
        Values::Words(values) => (Kind::Words, values.len()),
        Values::Floats(values) => (Kind::Floats, values.len()),
    };
    check(to, kind, at.saturating_add(count), "buffer")?;
    Ok(count)
}

/// Of `read`: how many values.
pub(crate) fn check_read(from: Buffer, at: usize, values: &ValuesMut<'_>) -> Result<usize> {
    let (kind, count) = match values {
        ValuesMut::Keys(values) => (Kind::Keys, values.len()),
        ValuesMut::Words(values) => (Kind::Words, values.len()),
        ValuesMut::Floats(values) => (Kind::Floats, values.len()),
    };
    check(from, kind, at.saturating_add(count), "buffer")?;
    Ok(count)
}

/// A count of 32 bits.
pub(crate) fn narrow_count(count: usize) -> Result<u32> {
    let why = || "a call takes fewer than 2^32 keys".to_owned();
    u32::try_from(count).map_err(|_| option("count", &count, why()))
}

/// Checks that a buffer is of a kind and long enough.
pub(crate) fn check(buffer: Buffer, kind: Kind, count: usize, what: &'static str) -> Result<()> {
    if buffer.kind != kind {
        let why = format!("must be a buffer of {kind:?}");
        return Err(option(what, &format!("{:?}", buffer.kind), why));
    }
    if buffer.count < count {
        return Err(ArgumentError::Length {
            what,
            expected: count,
            found: buffer.count,
        }
        .into());
    }
    Ok(())
}

/// Checks that no output of a call is another of its buffers.
fn check_apart(outputs: &[Buffer], inputs: &[Buffer]) -> Result<()> {
    for (at, output) in outputs.iter().enumerate() {
        let others = inputs.iter().chain(&outputs[..at]);
        if others.into_iter().any(|other| other.id == output.id) {
            let why = "the output of a call must be a buffer of its own".to_owned();
            return Err(option("buffer", &output.id, why));
        }
    }
    Ok(())
}

/// Checks a number of parts.
fn check_parts(parts: usize) -> Result<()> {
    match parts {
        1..=256 => Ok(()),
        _ => Err(option("parts", &parts, "must be from 1 to 256".to_owned())),
    }
}
