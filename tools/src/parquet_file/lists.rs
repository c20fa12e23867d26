//! Does a page of a column have no more than the footer and the dim allow? It is asked before its values are decoded.
//!
//! - A list without end takes a few bytes in a file, and its values many: how long lists are is counted in the runs of
//!   their repetition levels, which tell 0 where a list begins, and 1 where it goes on.
//! - So are those of [`BLOCK_ROWS`] rows together, as many as are decoded at a time.
//! - What else is wrong with a list is told once its values are there, with their row.

use ::parquet::basic::Encoding;
use ::parquet::column::page::{Page, PageMetadata, PageReader};
use ::parquet::errors::{ParquetError, Result};

/// Rows that are decoded at a time, at most.
pub const BLOCK_ROWS: usize = 1024;
/// Values of so many rows, at most: with their levels 384 MiB.
pub const BLOCK_VALUES_MAX: u64 = 32 << 20;

/// Pages of a column.
pub struct Pages<R> {
    pages: R,
    /// Values that the footer says are left.
    left: u64,
    lists: Option<Lists>,
}

/// How long the lists are.
struct Lists {
    /// Values of a list, at most. A list that is a little too long is read, for its length to be told.
    most: u64,
    /// Values of the last one so far.
    length: u64,
    /// Rows of a block so far, and their values.
    block_rows: u64,
    block_values: u64,
}

impl<R: PageReader> Pages<R> {
    /// Those of a column with so many values, as the footer says; `most`: of lists, how many values each may have.
    pub fn new(pages: R, values: u64, most: Option<u64>) -> Pages<R> {
        Pages {
            pages,
            left: values,
            lists: most.map(Lists::new),
        }
    }

    fn check(&mut self, page: &Page) -> Result<()> {
        if matches!(page, Page::DictionaryPage { .. }) {
            return Ok(());
        }
        let values = page.num_values();
        let Some(left) = self.left.checked_sub(u64::from(values)) else {
            let left = self.left;
            return Err(fault(format!(
                "found a page of {values} values, the footer has {left} more"
            )));
        };
        self.left = left;
        match &mut self.lists {
            None => Ok(()),
            Some(lists) => lists.see(levels(page)?, u64::from(values)),
        }
    }
}

fn fault(what: String) -> ParquetError {
    ParquetError::General(what)
}

/// The repetition levels of a page, in runs.
fn levels(page: &Page) -> Result<&[u8]> {
    let short = || fault(String::from("found a page that is shorter than its levels"));
    match page {
        Page::DataPageV2 {
            buf,
            rep_levels_byte_len,
            ..
        } => buf.get(..*rep_levels_byte_len as usize).ok_or_else(short),
        Page::DataPage {
            buf,
            rep_level_encoding: Encoding::RLE,
            ..
        } => {
            let (length, rest) = buf.split_first_chunk().ok_or_else(short)?;
            rest.get(..u32::from_le_bytes(*length) as usize)
                .ok_or_else(short)
        }
        _ => Err(fault(String::from(
            "found repetition levels of an old encoding, expected RLE",
        ))),
    }
}

impl Lists {
    fn new(most: u64) -> Lists {
        Lists {
            most,
            length: 0,
            block_rows: 0,
            block_values: 0,
        }
    }

    /// Counts the values of a page.
    fn see(&mut self, levels: &[u8], values: u64) -> Result<()> {
        let mut rest = levels;
        let mut left = values;
        while left > 0 {
            let (header, bytes) = varint(rest).ok_or_else(|| {
                fault(format!(
                    "found levels of {} values, expected {values}",
                    values - left
                ))
            })?;
            rest = bytes;
            // Of 1 bit each: a byte has 8 of them, or the one that is repeated.
            let count = match header & 1 {
                0 => 1,
                _ => usize::try_from((header >> 1).min(left.div_ceil(8))).unwrap_or(usize::MAX),
            };
            let Some((run, bytes)) = rest.split_at_checked(count) else {
                return Err(fault(String::from("found levels that are cut off")));
            };
            rest = bytes;
            match header & 1 {
                0 => {
                    let length = (header >> 1).min(left);
                    self.repeat(run[0] & 1 == 1, length)?;
                    left -= length;
                }
                _ => {
                    for byte in run {
                        let length = left.min(8);
                        for bit in 0..length {
                            self.repeat(byte >> bit & 1 == 1, 1)?;
                        }
                        left -= length;
                    }
                }
            }
        }
        Ok(())
    }

    /// So many values begin a list each, or go on with one.
    fn repeat(&mut self, goes_on: bool, values: u64) -> Result<()> {
        if !goes_on {
            self.length = values.min(1);
            self.block_rows += values;
            self.block_values += values;
            if self.block_rows >= BLOCK_ROWS as u64 {
                self.block_rows %= BLOCK_ROWS as u64;
                self.block_values = self.block_rows;
            }
            return Ok(());
        }
        self.length += values;
        self.block_values += values;
        let (length, most) = (self.length, self.most);
        if length > most {
            return Err(fault(format!(
                "found a list of {length} numbers or more, far more than the others: at most {most} can be"
            )));
        }
        if self.block_values > BLOCK_VALUES_MAX {
            return Err(fault(format!(
                "found {BLOCK_ROWS} rows with lists of more than {BLOCK_VALUES_MAX} numbers together"
            )));
        }
        Ok(())
    }
}

/// A number of 7 bits a byte, and what is behind it.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0;
    for (index, byte) in bytes.iter().enumerate().take(5) {
        number |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((number, &bytes[index + 1..]));
        }
    }
    None
}

impl<R: PageReader> Iterator for Pages<R> {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl<R: PageReader> PageReader for Pages<R> {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.pages.get_next_page()?;
        if let Some(page) = &page {
            self.check(page)?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    /// No page is skipped: each would be counted.
    fn skip_next_page(&mut self) -> Result<()> {
        self.get_next_page().map(drop)
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.pages.at_record_boundary()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn see(most: u64, pages: &[(&[u8], u64)]) -> Result<()> {
        let mut lists = Lists::new(most);
        pages
            .iter()
            .try_for_each(|(levels, values)| lists.see(levels, *values))
    }

    #[test]
    fn lists_are_as_long_as_their_levels_say() {
        // 0 1 1 1, as runs of one and of three; and as bits.
        see(4, &[(&[2, 0, 6, 1, 2, 0, 6, 1], 8)]).unwrap();
        see(4, &[(&[3, 0b1110_1110], 8)]).unwrap();
        for levels in [&[2, 0, 6, 1][..], &[3, 0b1110]] {
            assert!(see(3, &[(levels, 4)]).is_err());
        }
        // On the next page, the last list goes on.
        see(8, &[(&[3, 0b1110], 4), (&[8, 1], 4)]).unwrap();
        assert!(see(7, &[(&[3, 0b1110], 4), (&[8, 1], 4)]).is_err());
        // 2^30 of them in a few bytes; bits that are no values do not count.
        let long = [2, 0, 0x80, 0x80, 0x80, 0x80, 0x08, 1];
        assert!(see(1 << 20, &[(&long, 1 << 30)]).is_err());
        see(4, &[(&[3, 0b1111_1110], 4)]).unwrap();
    }

    #[test]
    fn levels_that_are_cut_off_are_refused() {
        for levels in [&[][..], &[0x80], &[2], &[3], &[2, 0], &[0xff; 6]] {
            let why = see(9, &[(levels, 8)]).unwrap_err().to_string();
            assert!(why.contains("levels"), "{why}");
        }
        // Runs of nothing end with the bytes.
        assert!(see(9, &[(&[0, 0, 0, 0], 1)]).is_err());
    }
}
