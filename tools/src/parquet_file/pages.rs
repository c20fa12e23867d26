//! How are the pages of a column read, and is each as large as its header says?
//!
//! - The library's own reader allocates by the header, and decompresses gzip for as long as it goes on. Here the header
//!   is compared with the column's place in the file first, and no more is decompressed than it says.
//! - Whatever the codec, at most [`PAGE_BYTES_MAX`] come of a page; of snappy and gzip no more than they can make of
//!   its bytes. What is not compressed is as large as it is in the file.

use std::fs::File;
use std::io::{Cursor, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use ::parquet::basic::{Compression, Encoding, Type};
use ::parquet::column::page::{Page, PageMetadata, PageReader};
use ::parquet::errors::{ParquetError, Result};
use ::parquet::file::metadata::ColumnChunkMetaData;
use flate2::read::MultiGzDecoder;
use snap::raw::{Decoder, decompress_len};
use zstd::bulk::Decompressor;

use super::guard::At;
use super::header::{Header, What};

/// Most that is decompressed of a page. Writers make pages of 1 MiB, some of 100 MB.
pub const PAGE_BYTES_MAX: u32 = 256 << 20;
/// What stands before a page is a hundred bytes, and a value or two in its statistics.
const HEADER_BYTES_MAX: usize = 1 << 20;
/// Bytes that are read for a header, at first.
const HEADER_BYTES: usize = 512;
/// Snappy makes 64 bytes of 3.
const SNAPPY_RATIO_MAX: u64 = 22;
/// Deflate makes 258 bytes of 2 bits.
const GZIP_RATIO_MAX: u64 = 1032;

/// The pages of a column in a row group.
pub struct FilePages {
    file: Arc<File>,
    /// Where the next page begins, and bytes of the column from there on.
    at: u64,
    left: u64,
    /// The next header, if it was looked at.
    next: Option<Header>,
    /// How pages are compressed, if they are.
    codec: Option<Codec>,
    /// Bytes of a value.
    width: u64,
    has_dictionary: bool,
}

enum Codec {
    Snappy(Decoder),
    Gzip,
    Zstd(Decompressor<'static>),
}

impl FilePages {
    /// Those of a column that is a place in the file, as [`super::check_group`] has checked.
    ///
    /// # Errors
    /// That its codec is not known here.
    pub fn new(file: Arc<File>, column: &ColumnChunkMetaData) -> Result<FilePages> {
        let (at, left) = column.byte_range();
        let codec = match column.compression() {
            Compression::UNCOMPRESSED => None,
            Compression::SNAPPY => Some(Codec::Snappy(Decoder::new())),
            Compression::GZIP(_) => Some(Codec::Gzip),
            Compression::ZSTD(_) => Some(Codec::Zstd(Decompressor::new()?)),
            other => {
                let what = format!("is compressed by {other}, which can't be read here");
                return Err(ParquetError::General(what));
            }
        };
        Ok(FilePages {
            file,
            at,
            left,
            next: None,
            codec,
            width: match column.column_type() {
                Type::INT64 | Type::DOUBLE => 8,
                Type::INT32 | Type::FLOAT => 4,
                _ => 1,
            },
            has_dictionary: false,
        })
    }

    fn fault(&self, what: String) -> ParquetError {
        At::error(self.at, what)
    }

    /// The next header; `None` at the end. The page of an index is passed over.
    fn header(&mut self) -> Result<Option<&Header>> {
        while self.next.is_none() && self.left > 0 {
            let header = self.read_header()?;
            self.at += header.bytes as u64;
            self.left -= header.bytes as u64;
            if u64::from(header.compressed) > self.left {
                let (found, left) = (header.compressed, self.left);
                let what = format!("found a page of {found} bytes, its column has {left} more");
                return Err(self.fault(what));
            }
            if matches!(header.what, What::Index) {
                self.at += u64::from(header.compressed);
                self.left -= u64::from(header.compressed);
            } else {
                self.next = Some(header);
            }
        }
        Ok(self.next.as_ref())
    }

    fn read_header(&self) -> Result<Header> {
        let mut length = HEADER_BYTES;
        loop {
            let left = usize::try_from(self.left).unwrap_or(usize::MAX);
            let mut bytes = vec![0; length.min(left)];
            self.file.read_exact_at(&mut bytes, self.at)?;
            match Header::read(&bytes) {
                Ok(header) => return Ok(header),
                Err(fault) if fault.is_cut && length < left && length < HEADER_BYTES_MAX => {
                    length = (16 * length).min(HEADER_BYTES_MAX);
                }
                Err(fault) => {
                    let offset = self.at + fault.offset as u64;
                    return Err(At::error(offset, format!("page header: {}", fault.what)));
                }
            }
        }
    }

    /// What is in a page: levels as they are, then the rest, decompressed.
    fn read(&mut self, header: &Header, levels: u64, is_compressed: bool) -> Result<Vec<u8>> {
        let (mut bytes, size) = (Vec::new(), u64::from(header.uncompressed));
        let compressed = header.compressed as usize;
        reserve(&mut bytes, compressed)?;
        bytes.resize(compressed, 0);
        self.file.read_exact_at(&mut bytes, self.at)?;
        let most = size.min(compressed as u64);
        if levels > most {
            return Err(self.fault(format!(
                "found {levels} bytes of levels in a page of {most}"
            )));
        }
        let Some(codec) = self.codec.as_mut().filter(|_| is_compressed) else {
            return Ok(bytes);
        };
        if header.uncompressed > PAGE_BYTES_MAX {
            let what = format!(
                "found a page of {size} bytes when it is decompressed, at most {PAGE_BYTES_MAX} are read"
            );
            return Err(self.fault(what));
        }
        let (levels, values) = bytes.split_at(usize::try_from(levels).unwrap_or(0));
        let mut page = Vec::new();
        let size = header.uncompressed as usize - levels.len();
        let made = codec.decompress(values, size, levels, &mut page);
        made.map_err(|what| self.fault(what))?;
        Ok(page)
    }

    /// Reads a page whose header is the next one.
    fn page(&mut self, header: Header) -> Result<Page> {
        let (levels, is_compressed) = match header.what {
            What::DataV2 {
                definition,
                repetition,
                is_compressed,
                ..
            } => (u64::from(definition) + u64::from(repetition), is_compressed),
            _ => (0, true),
        };
        let bytes = self.read(&header, levels, is_compressed)?;
        let encoding = match header.what {
            What::Data { encoding, .. } | What::DataV2 { encoding, .. } => encoding,
            _ => Encoding::PLAIN,
        };
        let by_number = [Encoding::PLAIN_DICTIONARY, Encoding::RLE_DICTIONARY];
        if by_number.contains(&encoding) && !self.has_dictionary {
            let what = "found a page of a dictionary's numbers, and no dictionary before it";
            return Err(self.fault(String::from(what)));
        }
        let length = bytes.len() as u64;
        let buf = bytes.into();
        let page = match header.what {
            What::Dictionary {
                values,
                encoding,
                is_sorted,
            } => {
                if u64::from(values) * self.width > length {
                    let what = format!("found a dictionary of {values} values in {length} bytes");
                    return Err(self.fault(what));
                }
                self.has_dictionary = true;
                Page::DictionaryPage {
                    buf,
                    num_values: values,
                    encoding,
                    is_sorted,
                }
            }
            What::DataV2 {
                values,
                nulls,
                rows,
                encoding,
                definition,
                repetition,
                is_compressed,
            } => Page::DataPageV2 {
                buf,
                num_values: values,
                encoding,
                num_nulls: nulls,
                num_rows: rows,
                def_levels_byte_len: definition,
                rep_levels_byte_len: repetition,
                is_compressed,
                statistics: None,
            },
            What::Data {
                values,
                encoding,
                definition,
                repetition,
            } => Page::DataPage {
                buf,
                num_values: values,
                encoding,
                def_level_encoding: definition,
                rep_level_encoding: repetition,
                statistics: None,
            },
            What::Index => return Err(self.fault(String::from("found an index, expected a page"))),
        };
        self.at += u64::from(header.compressed);
        self.left -= u64::from(header.compressed);
        Ok(page)
    }
}

/// Room for so many bytes, or an error: not the end of the process.
fn reserve(bytes: &mut Vec<u8>, count: usize) -> Result<()> {
    let reserved = bytes.try_reserve_exact(count);
    reserved.map_err(|_| ParquetError::General(format!("no memory for a page of {count} bytes")))
}

impl Codec {
    /// Appends the levels, then what is made of the values, which must be `size` bytes.
    fn decompress(
        &mut self,
        values: &[u8],
        size: usize,
        levels: &[u8],
        page: &mut Vec<u8>,
    ) -> Result<(), String> {
        let most = match self {
            Codec::Snappy(_) => SNAPPY_RATIO_MAX * values.len() as u64,
            Codec::Gzip => GZIP_RATIO_MAX * values.len() as u64,
            Codec::Zstd(_) => u64::MAX,
        };
        if size as u64 > most {
            let from = values.len();
            return Err(format!(
                "found {size} bytes that are made of {from}, more than can be"
            ));
        }
        reserve(page, levels.len() + size).map_err(|e| e.to_string())?;
        page.extend_from_slice(levels);
        // Of no values nothing was compressed.
        if size == 0 {
            return Ok(());
        }
        let made = match self {
            Codec::Snappy(decoder) => {
                let made = decompress_len(values).map_err(|e| e.to_string())?;
                if made == size {
                    page.resize(levels.len() + size, 0);
                    let decoded = decoder.decompress(values, &mut page[levels.len()..]);
                    decoded.map_err(|e| e.to_string())?;
                }
                made
            }
            Codec::Gzip => {
                let mut decoder = MultiGzDecoder::new(values).take(size as u64 + 1);
                decoder.read_to_end(page).map_err(|e| e.to_string())?
            }
            Codec::Zstd(decoder) => {
                let mut behind = Cursor::new(&mut *page);
                behind.set_position(levels.len() as u64);
                let made = decoder.decompress_to_buffer(values, &mut behind);
                made.map_err(|e| e.to_string())?
            }
        };
        if made == size {
            return Ok(());
        }
        let found = if made > size { "more" } else { "fewer" };
        Err(format!(
            "found {found} bytes than the {size} that its header has, decompressed"
        ))
    }
}

impl Iterator for FilePages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for FilePages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        self.header()?;
        match self.next.take() {
            None => Ok(None),
            Some(header) => self.page(header).map(Some),
        }
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        let header = self.header()?;
        Ok(header.map(|header| {
            let (rows, levels) = match header.what {
                What::Data { values, .. } => (None, Some(values as usize)),
                What::DataV2 { values, rows, .. } => (Some(rows as usize), Some(values as usize)),
                What::Dictionary { .. } | What::Index => (None, None),
            };
            PageMetadata {
                num_rows: rows,
                num_levels: levels,
                is_dict: matches!(header.what, What::Dictionary { .. }),
            }
        }))
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.get_next_page().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression as Level;
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn gzip_that_goes_on_is_not_followed() {
        let mut encoder = GzEncoder::new(Vec::new(), Level::fast());
        encoder.write_all(&vec![0; 16 << 20]).unwrap();
        let bomb = encoder.finish().unwrap();
        let mut page = Vec::new();
        let made = Codec::Gzip.decompress(&bomb, 100, &[1, 2], &mut page);
        assert!(made.unwrap_err().contains("found more bytes than the 100"));
        assert_eq!(page.len(), 2 + 101);
        assert!(page.capacity() < 1 << 10, "{}", page.capacity());
    }
}
