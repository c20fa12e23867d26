//! How are records of one size read: keyset files, HugeCTR's Raw, NumPy's arrays?

use anyhow::Result;

use super::layout::{KeyType, Place, Sink, value_at};

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// 8 bytes, with or without sign: the bits count.
    U64,
    /// 4 bytes without sign.
    U32,
    /// 4 bytes; below zero there is no key that everybody would agree on.
    I32,
}

impl Element {
    /// Bytes of a value.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Element::U64 => 8,
            Element::U32 | Element::I32 => 4,
        }
    }
}

impl From<KeyType> for Element {
    fn from(keys: KeyType) -> Element {
        match keys {
            KeyType::I64 => Element::U64,
            KeyType::U32 => Element::U32,
        }
    }
}

/// Records of one size: some bytes that are skipped, then a value for each field.
#[derive(Clone, Debug)]
pub struct Fixed {
    skipped: usize,
    element: Element,
    fields: usize,
    /// Bytes of data that a header promises.
    promised: Option<u64>,
    /// What it is, for messages.
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Keys(KeyType),
    Raw,
    Array,
}

impl Fixed {
    /// A keyset file.
    #[must_use]
    pub fn keys(keys: KeyType) -> Fixed {
        Fixed {
            skipped: 0,
            element: keys.into(),
            fields: 1,
            promised: None,
            what: What::Keys(keys),
        }
    }

    /// HugeCTR's Raw.
    #[must_use]
    pub fn raw(labels: usize, dense: usize, slots: usize) -> Fixed {
        Fixed {
            skipped: (labels + dense) * 4,
            element: Element::U32,
            fields: slots,
            promised: None,
            what: What::Raw,
        }
    }

    /// Rows of an array, whose header promises so many bytes.
    #[must_use]
    pub fn array(element: Element, fields: usize, promised: u64) -> Fixed {
        Fixed {
            skipped: 0,
            element,
            fields,
            promised: Some(promised),
            what: What::Array,
        }
    }

    /// How many fields a record has.
    #[must_use]
    pub fn fields(&self) -> usize {
        self.fields
    }

    fn stride(&self) -> usize {
        self.skipped + self.fields * self.element.bytes()
    }

    /// As [`super::layout::Layout::cut`].
    ///
    /// # Errors
    /// When the last record is not whole.
    pub fn cut(&self, bytes: &[u8], is_all: bool, place: &Place<'_>) -> Result<usize> {
        let stride = self.stride();
        let rest = bytes.len() % stride;
        let cut = bytes.len() - rest;
        if rest == 0 || !is_all {
            return Ok(cut);
        }
        let size = place.offset + bytes.len() as u64;
        Err(place.bad(cut, match self.what {
            What::Keys(KeyType::I64) => format!(
                "found {rest} bytes, expected a key of 8: {size} bytes are no whole number of i64 \
                 keys. Of 32 bits are keys of HugeCTR's generate_keyset.py, also with \
                 --int32_keyset False, and of older NVTabular: --dtype u32"
            ),
            What::Keys(KeyType::U32) => format!(
                "found {rest} bytes, expected a key of 4: {size} bytes are no whole number of u32 \
                 keys; the file was cut off, or is no keyset"
            ),
            What::Raw => format!(
                "found {rest} bytes, expected a sample of {stride}: {size} bytes are no whole \
                 number of them; check --labels, --dense and --slots"
            ),
            What::Array => format!("found {rest} bytes, expected a row of {stride}: cut off"),
        }))
    }

    /// As [`super::layout::Layout::parse`].
    ///
    /// # Errors
    /// A negative value of 32 bits, or what the sink says.
    pub fn parse(&self, bytes: &[u8], place: &Place<'_>, sink: &mut impl Sink) -> Result<()> {
        let (stride, size) = (self.stride(), self.element.bytes());
        for (number, record) in bytes.chunks_exact(stride).enumerate() {
            let start = number * stride;
            for (field, bytes) in record[self.skipped..].chunks_exact(size).enumerate() {
                let at = start + self.skipped + field * size;
                let Some(value) = value_at(bytes, self.element) else {
                    continue;
                };
                if self.element == Element::I32 && value >> 31 != 0 {
                    return Err(place.bad(
                        at,
                        format!(
                            "found {} in an array of int32: a negative value could be one key or \
                             another; save the array as uint32 or int64",
                            i64::from_le_bytes(value.to_le_bytes()) - (1 << 32)
                        ),
                    ));
                }
                sink.put(field, value)
                    .map_err(|fault| place.fault(at, fault))?;
            }
            sink.end_row(start..start + stride)
                .map_err(|fault| place.fault(start, fault))?;
        }
        Ok(())
    }

    /// As [`super::layout::Layout::end`].
    ///
    /// # Errors
    /// When a header promises another number of bytes.
    pub fn end(&self, data_bytes: u64, place: &Place<'_>) -> Result<()> {
        match self.promised {
            Some(promised) if promised != data_bytes => Err(place.bad(
                0,
                format!("found {data_bytes} bytes of data, the header promises {promised}"),
            )),
            _ => Ok(()),
        }
    }
}
