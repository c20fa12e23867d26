//! How is one entry kept? In 11 bytes where that is possible, else in 16.
//!
//! A value is a location as the index has it, and a class: a 24-bit file slot at bit 40, a tombstone bit
//! at 39, the class at 35 ([`CLASS_BITS`]), a 32-bit entry number. Other bits are zero
//! ([`SPARE_BITS`]).
//!
//! ```text
//! narrow, 11 bytes    remainder 6 | packed value 5
//! wide, 16 bytes      remainder 8 | value 8
//!
//! packed value        bits 0 to e   the entry number          e: of the segment's packing
//!                     e to 35       the file slot
//!                     35 to 39      the class, as in the value
//!                     39            tombstone, as in the value
//! ```
//!
//! - The remainder is the offset of the hash in its map, or its low 48 bits: the bits above are those
//!   of the segment and the bucket. So an entry is always of one hash alone.
//! - What does not fit makes its segment wide, and is never an error.

/// Bits of a value that are zero.
pub const SPARE_BITS: u64 = 7 << NUMBER_BITS;
/// Where the class of a value begins, and its bits.
pub const CLASS_SHIFT: u32 = 35;
pub const CLASS_BITS: u64 = 15 << CLASS_SHIFT;
/// Classes that there are.
pub const CLASSES: usize = 16;
/// Bits of an entry number.
const NUMBER_BITS: u32 = 32;
/// Class and tombstone, of a value and of a packed one alike, and where the file slot of a value begins.
const ALIKE_BITS: u64 = CLASS_BITS | 1 << 39;
const SLOT_SHIFT: u32 = 40;
/// Where the class begins in its byte.
const CLASS_BYTE_SHIFT: u32 = CLASS_SHIFT % 8;
const CLASS_BYTE_BITS: u8 = 15 << CLASS_BYTE_SHIFT;
/// Bits of a narrow entry's remainder.
pub(super) const REMAINDER_BITS: u32 = 48;
/// Bits that file slot and entry number share in a packed value.
const SHARED_BITS: u32 = 35;

/// How file slots and entry numbers share the bits of a packed value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Packing {
    number_bits: u8,
}

impl Packing {
    /// One that any of some values fits into; `all`: their bits, joined by `or`. None if no packing
    /// is wide enough.
    pub(super) fn of(all: u64) -> Option<Packing> {
        let number = 64 - (all & u64::from(u32::MAX)).leading_zeros();
        let slot = 64 - (all >> SLOT_SHIFT).leading_zeros();
        let left = SHARED_BITS.checked_sub(number + slot)?;
        let number_bits = (number + left / 2).min(NUMBER_BITS);
        u8::try_from(number_bits)
            .ok()
            .map(|number_bits| Packing { number_bits })
    }

    #[inline]
    pub(super) fn fits(self, value: u64) -> bool {
        let number = value & u64::from(u32::MAX);
        let slot = value >> SLOT_SHIFT;
        (number >> self.number_bits) | (slot >> (SHARED_BITS - u32::from(self.number_bits))) == 0
    }

    #[inline]
    fn pack(self, value: u64) -> u64 {
        let number = value & u64::from(u32::MAX);
        number | (value >> SLOT_SHIFT) << self.number_bits | (value & ALIKE_BITS)
    }

    #[inline]
    fn unpack(self, packed: u64) -> u64 {
        let shared = packed & ((1 << SHARED_BITS) - 1);
        let number = shared & ((1 << self.number_bits) - 1);
        number | (packed & ALIKE_BITS) | (shared >> self.number_bits) << SLOT_SHIFT
    }
}

/// For each byte that holds a class what it is when the classes are replaced by those of a table.
#[derive(Debug)]
pub(super) struct ClassBytes([u8; 256]);

impl ClassBytes {
    pub(super) fn new(classes: &[u8; CLASSES]) -> ClassBytes {
        let mut bytes = [0; 256];
        for (old, new) in (0u8..=u8::MAX).zip(&mut bytes) {
            let class = classes[usize::from((old & CLASS_BYTE_BITS) >> CLASS_BYTE_SHIFT)];
            *new = (old & !CLASS_BYTE_BITS) | (class << CLASS_BYTE_SHIFT);
        }
        ClassBytes(bytes)
    }

    #[inline]
    pub(super) fn replace<F: Form>(&self, entry: &mut F::Entry) {
        let byte = F::class_byte(entry);
        *byte = self.0[usize::from(*byte)];
    }
}

/// One of the two forms of an entry.
pub(super) trait Form: Sized {
    /// The bytes of an entry.
    type Entry: Copy + std::fmt::Debug;
    const ZERO: Self::Entry;
    /// The bits of an offset that an entry holds.
    const REMAINDER: u64;

    fn remainder(entry: &Self::Entry) -> u64;
    fn value(entry: &Self::Entry, packing: Packing) -> u64;
    /// Makes an entry of these.
    fn write(entry: &mut Self::Entry, remainder: u64, value: u64, packing: Packing);
    /// The byte of an entry that holds the class: its bits 3 to 7.
    fn class_byte(entry: &mut Self::Entry) -> &mut u8;

    #[inline]
    fn new(remainder: u64, value: u64, packing: Packing) -> Self::Entry {
        let mut entry = Self::ZERO;
        Self::write(&mut entry, remainder, value, packing);
        entry
    }

    #[inline]
    fn set_class(entry: &mut Self::Entry, class: u8) {
        let byte = Self::class_byte(entry);
        *byte = (*byte & !CLASS_BYTE_BITS) | (class << CLASS_BYTE_SHIFT);
    }
}

/// 6 bytes of the offset and 5 of the value.
#[derive(Debug)]
pub(super) struct Narrow;

/// 8 bytes of the offset and 8 of the value; there is nothing to pack.
#[derive(Debug)]
pub(super) struct Wide;

impl Form for Narrow {
    type Entry = [u8; 11];
    const ZERO: [u8; 11] = [0; 11];
    const REMAINDER: u64 = (1 << REMAINDER_BITS) - 1;

    #[inline]
    fn remainder(entry: &[u8; 11]) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = *entry;
        u64::from_le_bytes([a, b, c, d, e, f, g, h]) & Self::REMAINDER
    }

    #[inline]
    fn value(entry: &[u8; 11], packing: Packing) -> u64 {
        let [.., a, b, c, d, e, f, g, h] = *entry;
        packing.unpack(u64::from_le_bytes([a, b, c, d, e, f, g, h]) >> 24)
    }

    #[inline]
    fn write(entry: &mut [u8; 11], remainder: u64, value: u64, packing: Packing) {
        let (remainder, packed) = (remainder & Self::REMAINDER, packing.pack(value));
        let (head, tail) = (remainder | packed << 48, remainder >> 24 | packed << 24);
        // Two stores that overlap, and not one for each byte.
        entry[3..].copy_from_slice(&tail.to_le_bytes());
        entry[..8].copy_from_slice(&head.to_le_bytes());
    }

    #[inline]
    fn class_byte(entry: &mut [u8; 11]) -> &mut u8 {
        &mut entry[10]
    }
}

impl Form for Wide {
    type Entry = [u8; 16];
    const ZERO: [u8; 16] = [0; 16];
    const REMAINDER: u64 = u64::MAX;

    #[inline]
    fn remainder(entry: &[u8; 16]) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = *entry;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    #[inline]
    fn value(entry: &[u8; 16], _: Packing) -> u64 {
        let [.., a, b, c, d, e, f, g, h] = *entry;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    #[inline]
    fn write(entry: &mut [u8; 16], remainder: u64, value: u64, _: Packing) {
        entry[..8].copy_from_slice(&remainder.to_le_bytes());
        entry[8..].copy_from_slice(&value.to_le_bytes());
    }

    #[inline]
    fn class_byte(entry: &mut [u8; 16]) -> &mut u8 {
        &mut entry[12]
    }
}
