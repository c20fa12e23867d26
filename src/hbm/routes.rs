//! By which way does a GPU send to each other GPU of its node?
//!
//! [`Links::parse`] reads the links from the text of `nvidia-smi topo -m`; [`plan`] picks the routes.
//!
//! Invariants:
//! - A plan depends on the links alone: every process of a node computes the same one.
//! - GPUs with an NVLink between them send directly. Two others go through one middleman that has an
//!   NVLink to both; where there is none, directly under one PCIe switch, else through host memory.
//! - A route has at most one middleman, and each of its two hops is an NVLink.
//! - A link carries both directions at once, so that transfers are counted per direction.
//! - Links are symmetric. Text that says otherwise, or that is cut off, is an error: no link is guessed.
//! - GPU numbers are those of nvidia-smi: CUDA's where `CUDA_DEVICE_ORDER` is `PCI_BUS_ID`.

use std::error::Error;
use std::fmt;

/// GPUs of a node at most. Today's nodes have up to 16.
const GPUS_MAX: usize = 64;
/// Characters of the text that an error quotes at most.
const QUOTE_CHARS_MAX: usize = 24;

/// What connects two GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// So many bonded NVLinks, at least 1. An NVSwitch also counts as NVLinks between all its GPUs.
    NvLink(u32),
    /// PCIe switches, without a host bridge: PIX, PXB.
    Switch,
    /// A PCIe host bridge, or what lies between several: PHB, NODE, SYS.
    Host,
}

/// How one GPU sends to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// It copies to the other's memory.
    Direct,
    /// It copies to the memory of this GPU, which forwards the rows.
    Via(usize),
    /// The rows go through pinned memory of the host.
    Host,
}

/// Why links were refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopologyError {
    /// The line of the text, counted from 1; none where the fault isn't in one line.
    pub line: Option<usize>,
    /// What is wrong.
    pub what: String,
    /// What the caller can do.
    pub way_out: &'static str,
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("links of the GPUs")?;
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        write!(f, ": {}; {}", self.what, self.way_out)
    }
}

impl Error for TopologyError {}

const WAY_OUT: &str = "pass the whole output of `nvidia-smi topo -m`, or state the links yourself \
    with `Links::new`";

fn refused(line: impl Into<Option<usize>>, what: String) -> TopologyError {
    TopologyError {
        line: line.into(),
        what,
        way_out: WAY_OUT,
    }
}

/// The links between all GPUs of a node: a symmetric square matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Links {
    gpus: usize,
    /// Row by row; none on the diagonal.
    cells: Vec<Option<Link>>,
}

impl Links {
    /// The links of `gpus` GPUs. `link` is asked once for each pair, with the lower number first.
    ///
    /// # Errors
    /// Where there is no GPU or there are more than 64, or where a link has no NVLinks: `NvLink(0)`.
    pub fn new(
        gpus: usize,
        mut link: impl FnMut(usize, usize) -> Link,
    ) -> Result<Links, TopologyError> {
        let way_out = "give 1 to 64 GPUs, and each NVLink a width of at least 1";
        let refused = |what| TopologyError {
            line: None,
            what,
            way_out,
        };
        if !(1..=GPUS_MAX).contains(&gpus) {
            return Err(refused(format!("a node of {gpus} GPUs")));
        }
        let mut cells = vec![None; gpus * gpus];
        for from in 0..gpus {
            for to in from + 1..gpus {
                let link = link(from, to);
                if link == Link::NvLink(0) {
                    return Err(refused(format!("GPU{from} and GPU{to} have 0 NVLinks")));
                }
                cells[from * gpus + to] = Some(link);
                cells[to * gpus + from] = Some(link);
            }
        }
        Ok(Links { gpus, cells })
    }

    /// Reads the first matrix in the output of `nvidia-smi topo -m`.
    ///
    /// Rows and columns of network cards, the affinity columns, the legend, lines before the matrix and
    /// escape sequences of a terminal are skipped.
    ///
    /// # Errors
    /// Where there is no matrix, where a row is missing, too short or there twice, where a cell is
    /// unknown, or where two cells of a pair differ. The error names the line.
    pub fn parse(text: &str) -> Result<Links, TopologyError> {
        let mut lines = text
            .lines()
            .map(without_escapes)
            .enumerate()
            .map(|(at, s)| (at + 1, s));
        let is_header = |line: &str| {
            line.split_whitespace()
                .next()
                .and_then(gpu_number)
                .is_some()
        };
        let Some((header_at, header)) = lines.find(|(_, line)| is_header(line)) else {
            return Err(refused(None, "no line begins with GPU0".to_owned()));
        };
        let gpus = columns(header_at, &header)?;
        let mut rows: Vec<Option<Row>> = vec![None; gpus];
        for (at, line) in lines {
            if line.trim().is_empty() && rows.iter().any(Option::is_some) {
                break;
            }
            let Some((gpu, row)) = Row::parse(at, &line, gpus)? else {
                continue;
            };
            match rows.get_mut(gpu) {
                Some(place @ None) => *place = Some(row),
                Some(Some(first)) => {
                    let what = format!("a second row of GPU{gpu}, after that of line {}", first.at);
                    return Err(refused(at, what));
                }
                None => {
                    return Err(refused(
                        at,
                        format!("a row of GPU{gpu}, which has no column"),
                    ));
                }
            }
        }
        if let Some(gpu) = rows.iter().position(Option::is_none) {
            let what = format!("GPU{gpu} has a column here and no row below");
            return Err(refused(header_at, what));
        }
        let rows: Vec<Row> = rows.into_iter().flatten().collect();
        check_symmetric(&rows)?;
        Ok(Links {
            gpus,
            cells: rows.into_iter().flat_map(|row| row.cells).collect(),
        })
    }

    /// GPUs of the node.
    #[must_use]
    pub fn gpus(&self) -> usize {
        self.gpus
    }

    /// What connects two GPUs; none between a GPU and itself.
    ///
    /// # Panics
    /// Where the node has no such GPU.
    #[must_use]
    pub fn between(&self, from: usize, to: usize) -> Option<Link> {
        self.cells[place(self.gpus, from, to)]
    }

    /// NVLinks between two GPUs; none where there are none.
    fn width(&self, from: usize, to: usize) -> Option<u32> {
        match self.between(from, to) {
            Some(Link::NvLink(width)) => Some(width),
            _ => None,
        }
    }
}

/// Where the cell of a pair lies in a matrix.
fn place(gpus: usize, from: usize, to: usize) -> usize {
    assert!(
        from < gpus && to < gpus,
        "GPU {from} to {to}, in a node of {gpus}"
    );
    from * gpus + to
}

/// The row of one GPU.
#[derive(Clone, Debug)]
struct Row {
    /// Its line.
    at: usize,
    cells: Vec<Option<Link>>,
}

impl Row {
    /// The GPU and its row; none where the line is not that of a GPU.
    fn parse(at: usize, line: &str, gpus: usize) -> Result<Option<(usize, Row)>, TopologyError> {
        let mut words = line.split_whitespace();
        let Some(gpu) = words.next().and_then(gpu_number) else {
            return Ok(None);
        };
        let mut cells = Vec::with_capacity(gpus);
        for (to, word) in words.take(gpus).enumerate() {
            let link = cell(word).ok_or_else(|| {
                let known = "known are X, NV1 and up, PIX, PXB, PHB, NODE and SYS";
                refused(
                    at,
                    format!("GPU{gpu} to GPU{to} is {}, {known}", quoted(word)),
                )
            })?;
            if link.is_none() != (gpu == to) {
                let what = format!("GPU{gpu} to GPU{to} is {}, X is for itself", quoted(word));
                return Err(refused(at, what));
            }
            cells.push(link);
        }
        if cells.len() < gpus {
            let what = format!(
                "GPU{gpu} has {} links, the header has {gpus} GPUs",
                cells.len()
            );
            return Err(refused(at, what));
        }
        Ok(Some((gpu, Row { at, cells })))
    }
}

/// GPUs that the header names: its first words, GPU0 and on.
fn columns(at: usize, header: &str) -> Result<usize, TopologyError> {
    let mut gpus = 0;
    for (to, gpu) in header.split_whitespace().map_while(gpu_number).enumerate() {
        if gpu != to {
            return Err(refused(at, format!("GPU{gpu} stands where GPU{to} should")));
        }
        gpus = to + 1;
    }
    if gpus > GPUS_MAX {
        return Err(refused(at, format!("{gpus} GPUs, {GPUS_MAX} is the most")));
    }
    Ok(gpus)
}

/// The number of a GPU, from its name.
fn gpu_number(word: &str) -> Option<usize> {
    number(word.strip_prefix("GPU")?)
}

/// A number of digits alone: `parse` would also take a sign.
fn number<N: std::str::FromStr>(digits: &str) -> Option<N> {
    let only_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
    only_digits.then(|| digits.parse().ok()).flatten()
}

/// What a cell says: none for an unknown word, `Some(None)` for the GPU itself.
fn cell(word: &str) -> Option<Option<Link>> {
    let link = match word {
        "X" => return Some(None),
        "PIX" | "PXB" => Link::Switch,
        // SOC is what old drivers call SYS.
        "PHB" | "NODE" | "SYS" | "SOC" => Link::Host,
        _ => Link::NvLink(number(word.strip_prefix("NV")?).filter(|width| *width > 0)?),
    };
    Some(Some(link))
}

/// Checks that the two cells of each pair are equal. A last row that is cut off is found here too.
fn check_symmetric(rows: &[Row]) -> Result<(), TopologyError> {
    for (from, row) in rows.iter().enumerate() {
        for (to, (other, there)) in rows.iter().zip(&row.cells).enumerate() {
            let back = other.cells.get(from).copied().flatten();
            if back != *there {
                let (a, b) = (name(*there), name(back));
                let what = format!(
                    "GPU{from} to GPU{to} is {a}, and {b} the other way in line {}",
                    other.at
                );
                return Err(refused(row.at, what));
            }
        }
    }
    Ok(())
}

fn name(link: Option<Link>) -> String {
    match link {
        None => "X".to_owned(),
        Some(Link::NvLink(width)) => format!("NV{width}"),
        Some(Link::Switch) => "a PCIe switch".to_owned(),
        Some(Link::Host) => "the host".to_owned(),
    }
}

/// A word of the text, short and printable.
fn quoted(word: &str) -> String {
    let start: String = word.chars().take(QUOTE_CHARS_MAX).collect();
    format!("{start:?}")
}

/// A line without the escape sequences that color or underline it: ESC, `[`, then up to a letter.
fn without_escapes(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, sequence)) = rest.split_once("\x1b[") {
        plain.push_str(before);
        let parameters = |c: char| matches!(c, '0'..='?' | ' '..='/');
        let mut after = sequence.trim_start_matches(parameters).chars();
        after.next();
        rest = after.as_str();
    }
    plain.push_str(rest);
    plain
}

/// The routes between all GPUs of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes {
    gpus: usize,
    routes: Vec<Route>,
}

impl Routes {
    /// How `from` sends to `to`. A GPU reaches itself directly.
    ///
    /// # Panics
    /// Where the node has no such GPU.
    #[must_use]
    pub fn route(&self, from: usize, to: usize) -> Route {
        self.routes[place(self.gpus, from, to)]
    }

    /// The targets of `from` in the order in which to send to them: the next GPU, the one after it, and
    /// round to the one before. At each step every GPU is the target of exactly one other.
    ///
    /// # Panics
    /// Where the node has no such GPU.
    pub fn order(&self, from: usize) -> impl Iterator<Item = usize> + use<> {
        targets(self.gpus, from)
    }
}

fn targets(gpus: usize, from: usize) -> impl Iterator<Item = usize> + use<> {
    assert!(from < gpus, "GPU {from}, in a node of {gpus}");
    (1..gpus).map(move |distance| (from + distance) % gpus)
}

/// Plans the routes for an exchange in which each GPU sends as much to each other.
///
/// Of several middlemen it takes the one whose slower hop is least loaded, then the one whose other
/// hop is, then the one of the lowest number. The load of a hop is its transfers so far and this one,
/// by the width of the link.
///
/// # Cost
/// `gpus`^3 steps.
#[must_use]
pub fn plan(links: &Links) -> Routes {
    let gpus = links.gpus;
    let direct = |cell: &Option<Link>| match cell {
        None | Some(Link::NvLink(_) | Link::Switch) => Route::Direct,
        Some(Link::Host) => Route::Host,
    };
    let mut routes: Vec<Route> = links.cells.iter().map(direct).collect();
    // Every NVLink carries the rows of its own two GPUs.
    let carries = |cell: &Option<Link>| u64::from(matches!(cell, Some(Link::NvLink(_))));
    let mut transfers: Vec<u64> = links.cells.iter().map(carries).collect();
    for from in 0..gpus {
        for to in targets(gpus, from) {
            if links.width(from, to).is_some() {
                continue;
            }
            let load = |a, b| Some(load(transfers[place(gpus, a, b)], links.width(a, b)?));
            let loads = |via| {
                let (first, second) = (load(from, via)?, load(via, to)?);
                Some((first.max(second), first.min(second), via))
            };
            if let Some((_, _, via)) = (0..gpus).filter_map(loads).min() {
                routes[place(gpus, from, to)] = Route::Via(via);
                transfers[place(gpus, from, via)] += 1;
                transfers[place(gpus, via, to)] += 1;
            }
        }
    }
    Routes { gpus, routes }
}

/// The load of a link of this width with one transfer more, in parts of 2^-32. A link of one of 64 GPUs
/// carries fewer than 128 transfers, so that this can't overflow.
fn load(transfers: u64, width: u32) -> u64 {
    ((transfers + 1) << 32) / u64::from(width)
}

#[cfg(test)]
mod tests;
