//! What does a device remember of its calls until the host asks? The host twin of `Status` in
//! `kernels/common.cu`.

use crate::error::{Error, Result};

/// What stays on the device until the host asks: [`Status::WORDS`] words of 8 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// First refused call; 0: none.
    pub call: u64,
    pub key: u64,
    pub reason: u32,
    pub position: u32,
    /// Positions of that call that were refused.
    pub refused: u64,
    /// Positions left out so far: gradients that are not finite.
    pub skipped: u64,
    /// Rows of the last pack.
    pub packed: u64,
}

impl Status {
    pub const WORDS: usize = 8;
    pub const BYTES: usize = Status::WORDS * size_of::<u64>();
    /// Where `packed` lies.
    #[cfg(any(feature = "cuda", feature = "emu"))]
    pub const PACKED_AT: u64 = 40;

    /// The error of the first refused call.
    pub fn refusal(&self) -> Result<()> {
        if self.call == 0 {
            return Ok(());
        }
        let why = match self.reason {
            REFUSED_KEY => "the index does not hold the key",
            REFUSED_GRADIENT => "a gradient is not finite: key",
            REFUSED_POSITION => "beyond the rows of the merge: position",
            _ => "beyond the arena: row number",
        };
        Err(Error::RefusedCall {
            call: self.call,
            why,
            key: self.key,
            position: self.position,
            positions: self.refused,
        })
    }

    /// The record in words.
    #[cfg(any(feature = "cuda", feature = "emu"))]
    pub fn of(words: [u64; Status::WORDS]) -> Status {
        let [call, key, why, refused, skipped, packed, ..] = words;
        let halves = [why & 0xffff_ffff, why >> 32];
        let [reason, position] = halves.map(|half| u32::try_from(half).unwrap_or(u32::MAX));
        Status {
            call,
            key,
            reason,
            position,
            refused,
            skipped,
            packed,
        }
    }
}

/// Why a call was refused, as the kernels number it.
pub const REFUSED_KEY: u32 = 1;
pub const REFUSED_GRADIENT: u32 = 2;
pub const REFUSED_ROW: u32 = 3;
pub const REFUSED_POSITION: u32 = 4;
