//! Which key does a value of a field have?
//!
//! - `field`: field << 32 | value, fields counted from 0 unless told, so that fields that share the 32-bit space do not collide.
//! - `offset`: value + the sizes of the slots before, as HugeCTR has it; a value that is not in its
//!   slot is refused.
//! - `raw`: the value itself.
//! - For one output a field, keys are sorted as field << 32 | value, and become what they are when they
//!   are written.

use std::fmt;

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::cli::Usage;

/// How a key is made, as it stands on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum KeyKind {
    /// The field's number, from --first-field, in the upper 32 bits, the value in the lower ones
    #[default]
    Field,
    /// The value plus the sizes of the slots before (HugeCTR's slot_size_array): needs --slot-sizes
    Offset,
    /// The value itself
    Raw,
}

/// How a key is made.
#[derive(Clone, Debug)]
pub struct Scheme {
    kind: KeyKind,
    sizes: Vec<u64>,
    offsets: Vec<u64>,
    per_field: bool,
    /// The number of the first field in keys.
    first_field: u32,
}

/// Why a value has no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is not in its slot.
    Slot {
        /// Which field.
        field: usize,
        /// The value.
        value: u64,
        /// How many values the slot has.
        size: u64,
    },
    /// It does not fit into 32 bits.
    Wide {
        /// Which field.
        field: usize,
        /// The value.
        value: u64,
        /// Whether each field was to have an output of its own.
        per_field: bool,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Slot { field, value, size } => write!(
                f,
                "field {field} has value {value}, and its slot in --slot-sizes has {size} values: \
                 give the sizes that the data was made with"
            ),
            Refused::Wide {
                field,
                value,
                per_field,
            } => write!(
                f,
                "field {field} has value {value}, which 32 bits don't hold: {}",
                match per_field {
                    true => "use --key raw, and extract each field from data of its own",
                    false => "use --key raw, or --key offset with --slot-sizes",
                }
            ),
        }
    }
}

impl Scheme {
    /// From the flags.
    ///
    /// # Errors
    /// `Usage`: sizes without `offset`, or the reverse; sizes whose sum is too large.
    pub fn new(kind: KeyKind, sizes: &[u64], per_field: bool) -> Result<Scheme> {
        if (kind == KeyKind::Offset) == sizes.is_empty() {
            bail!(Usage(String::from(
                "--slot-sizes and --key offset need each other"
            )));
        }
        let mut offsets = Vec::with_capacity(sizes.len());
        let mut sum = 0u64;
        for size in sizes {
            offsets.push(sum);
            let Some(next) = sum.checked_add(*size) else {
                bail!(Usage(String::from(
                    "--slot-sizes: their sum is 2^64 or more"
                )));
            };
            sum = next;
        }
        Ok(Scheme {
            kind,
            sizes: sizes.to_vec(),
            offsets,
            per_field,
            first_field: 0,
        })
    }

    /// The same with fields counted from another number than 0.
    #[must_use]
    pub fn counted_from(self, first_field: u32) -> Scheme {
        Scheme {
            first_field,
            ..self
        }
    }

    /// The one that takes keys as they are.
    #[must_use]
    pub fn raw() -> Scheme {
        Scheme {
            kind: KeyKind::Raw,
            sizes: Vec::new(),
            offsets: Vec::new(),
            per_field: false,
            first_field: 0,
        }
    }

    /// Whether each field has an output of its own.
    #[must_use]
    pub fn is_per_field(&self) -> bool {
        self.per_field
    }

    /// Checks the number of fields of a data set.
    ///
    /// # Errors
    /// `Usage` when there are not as many slots.
    pub fn check_fields(&self, fields: usize) -> Result<()> {
        let sizes = self.sizes.len();
        if sizes != fields && self.kind == KeyKind::Offset {
            bail!(Usage(format!(
                "--slot-sizes has {sizes} sizes, the data has {fields} fields"
            )));
        }
        Ok(())
    }

    /// The number by which a value is sorted: its key, unless each field has an output of its own.
    ///
    /// # Errors
    /// Why there is none.
    #[inline]
    pub fn key(&self, field: usize, value: u64) -> Result<u64, Refused> {
        if self.kind == KeyKind::Offset {
            let size = self.sizes[field];
            if value >= size {
                return Err(Refused::Slot { field, value, size });
            }
            if !self.per_field {
                return Ok(self.offsets[field] + value);
            }
        }
        if self.kind == KeyKind::Raw && !self.per_field {
            return Ok(value);
        }
        if value >> 32 != 0 {
            return Err(Refused::Wide {
                field,
                value,
                per_field: self.per_field,
            });
        }
        let number = match self.per_field {
            // What is missing is added when they are written.
            true => field as u64,
            false => field as u64 + u64::from(self.first_field),
        };
        Ok(number << 32 | value)
    }

    /// What is added to the keys of a field when they are written to an output of its own.
    #[must_use]
    pub fn added(&self, field: usize) -> u64 {
        match self.kind {
            KeyKind::Field => u64::from(self.first_field) << 32,
            KeyKind::Raw => 0u64.wrapping_sub((field as u64) << 32),
            KeyKind::Offset => self.offsets[field].wrapping_sub((field as u64) << 32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_what_the_scheme_says_and_nothing_else_passes() {
        let field = Scheme::new(KeyKind::Field, &[], false).unwrap();
        assert_eq!(field.key(3, 7), Ok((3 << 32) + 7));
        let from_one = field.clone().counted_from(1);
        assert_eq!(from_one.key(3, 7), Ok((4 << 32) + 7));
        let wide = field.key(3, 1 << 32).unwrap_err();
        assert!(wide.to_string().contains("--key raw"), "{wide}");
        let offset = Scheme::new(KeyKind::Offset, &[10, 0, 5], false).unwrap();
        assert_eq!((offset.key(0, 9), offset.key(2, 4)), (Ok(9), Ok(14)));
        for (slot, value) in [(0, 10), (1, 0), (2, 5)] {
            assert!(offset.key(slot, value).is_err(), "{slot} {value}");
        }
        assert!(offset.check_fields(2).is_err() && offset.check_fields(3).is_ok());
        assert_eq!(Scheme::raw().key(25, u64::MAX), Ok(u64::MAX));
        assert!(Scheme::new(KeyKind::Offset, &[], false).is_err());
        assert!(Scheme::new(KeyKind::Raw, &[1], false).is_err());
        assert!(Scheme::new(KeyKind::Offset, &[u64::MAX, 1], false).is_err());
    }

    #[test]
    fn keys_of_one_field_become_what_they_are_when_they_are_written() {
        for (kind, sizes, wanted) in [
            (KeyKind::Field, &[][..], (2u64 << 32) + 4),
            (KeyKind::Raw, &[], 4),
            (KeyKind::Offset, &[10, 0, 5], 14),
        ] {
            let scheme = Scheme::new(kind, sizes, true).unwrap();
            let sorted_as = scheme.key(2, 4).unwrap();
            assert_eq!(sorted_as >> 32, 2);
            assert_eq!(sorted_as.wrapping_add(scheme.added(2)), wanted, "{kind:?}");
        }
        let scheme = Scheme::new(KeyKind::Field, &[], true).unwrap();
        let scheme = scheme.counted_from(1);
        let sorted_as = scheme.key(2, 4).unwrap();
        assert_eq!(
            (sorted_as >> 32, sorted_as.wrapping_add(scheme.added(2))),
            (2, (3 << 32) + 4)
        );
    }
}
