//! In which order do rows stand? Doubly linked lists through two arrays, heads behind the rows.

/// Lists of rows `0..rows`; a row is in at most one of them.
#[derive(Debug)]
pub struct Lists {
    colder: Vec<u32>,
    hotter: Vec<u32>,
    rows: usize,
}

impl Lists {
    /// `heads` empty lists.
    pub fn new(rows: usize, heads: usize) -> Lists {
        let itself = |i: usize| u32::try_from(i).unwrap_or(u32::MAX);
        let links: Vec<u32> = (0..rows + heads).map(itself).collect();
        Lists {
            colder: links.clone(),
            hotter: links,
            rows,
        }
    }

    /// Links a row that is in no list at the hot end.
    pub fn push_hot(&mut self, list: usize, row: u32) {
        let head = self.rows + list;
        let below = self.colder[head];
        self.hotter[below as usize] = row;
        self.colder[row as usize] = below;
        self.hotter[row as usize] = u32::try_from(head).unwrap_or(u32::MAX);
        self.colder[head] = row;
    }

    /// Takes a row out of its list.
    pub fn unlink(&mut self, row: u32) {
        let (below, above) = (self.colder[row as usize], self.hotter[row as usize]);
        self.hotter[below as usize] = above;
        self.colder[above as usize] = below;
    }

    /// Whether a list has no rows.
    pub fn is_empty(&self, list: usize) -> bool {
        self.hotter[self.rows + list] as usize >= self.rows
    }

    /// Takes the row at the cold end.
    pub fn pop_cold(&mut self, list: usize) -> Option<u32> {
        let row = self.hotter[self.rows + list];
        if row as usize >= self.rows {
            return None;
        }
        self.unlink(row);
        Some(row)
    }
}
