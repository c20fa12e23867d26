//! What stands in a line of the text that Paddle's parameter server saves of a sparse table?
//!
//! - `KEY slot unseen_days delta_score show click embed_w embed_state... embedx_w... embedx_state...`: the key in
//!   decimal, numbers with a space before each. The embedx part is there from a score on; a feature without it has
//!   none, and is pulled as zeros.
//! - `CtrCommonAccessor` and `SparseAccessor` write the same line; `CtrDoubleAccessor` writes as many numbers in
//!   another order, which nothing in a file tells. How much state there is depends on the rules, which no file says
//!   either. Other rules may give as many numbers; so what stands where state should is compared with what it can be:
//!   `StateBound`.
//! - What is written reads back to the bit: the fewest digits that tell an f32 from all others.
//!
//! Source: Paddle, fluid/distributed/ps/table: ctr_accessor.cc, sparse_accessor.cc (`ParseToString`,
//! `ParseFromString`), sparse_sgd_rule.h (`Dim`) and .cc (`InitValueWork`), memory_sparse_table.cc (`Save`, `Load`,
//! `PullSparse`).

use std::io::Write;
use std::str::FromStr;

use clap::{Args, ValueEnum};

use super::columns::Column;
use super::{Exchange, Flag};

/// Numbers before `embed_w`.
const HEAD: usize = 5;
/// Where `show` and `click` stand among them.
const SHOW: usize = 3;
const CLICK: usize = 4;
/// The metadata that has a place in a line, in its order there.
pub const COUNTS: [&str; 2] = ["show", "click"];
/// The longest line: that of the most weights, with their state, is shorter.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// Flags that an export and an import have: `#[command(flatten)] pub paddle: Flags`.
#[derive(Clone, Copy, Debug, Args)]
pub struct Flags {
    /// paddle-text: the accessor of Paddle's table. Lines of others have other numbers in these places
    #[arg(
        long,
        value_enum,
        value_name = "ACCESSOR",
        required_if_eq("format", "paddle-text")
    )]
    accessor: Option<Accessor>,
    /// paddle-text: the rule of embed_w; default: adagrad
    #[arg(long, value_enum, value_name = "RULE")]
    embed_rule: Option<SgdRule>,
    /// paddle-text: the rule of embedx_w; default: adagrad
    #[arg(long, value_enum, value_name = "RULE")]
    embedx_rule: Option<SgdRule>,
}

impl Flags {
    /// Those that were given.
    #[must_use]
    pub fn given(&self) -> [Flag; 3] {
        let of = &[Exchange::PaddleText];
        [
            ("--accessor", self.accessor.is_some(), of),
            ("--embed-rule", self.embed_rule.is_some(), of),
            ("--embedx-rule", self.embedx_rule.is_some(), of),
        ]
    }

    /// The lines of a table whose `embedx_w` has so many weights.
    #[must_use]
    pub fn layout(&self, embedx_dim: usize) -> Layout {
        Layout {
            embed: self.embed_rule.unwrap_or_default(),
            embedx: self.embedx_rule.unwrap_or_default(),
            embedx_dim,
        }
    }
}

/// Where each of [`COUNTS`] stands in a row; of weights alone, nowhere.
#[must_use]
pub fn counts(columns: &[Column], weights_only: bool) -> [Option<usize>; 2] {
    COUNTS.map(|name| {
        let column = columns.iter().find(|column| column.name == name);
        let column = column.filter(|_| !weights_only);
        column.map(|column| column.begin)
    })
}

/// An accessor whose lines are known. It must be named, so that nobody takes those of another for these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Accessor {
    /// CtrCommonAccessor
    CtrCommon,
    /// SparseAccessor, whose lines are the same
    Sparse,
}

/// An update rule of Paddle's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SgdRule {
    /// SparseNaiveSGDRule, without state
    Naive,
    /// SparseAdaGradSGDRule, one g2sum
    #[default]
    Adagrad,
    /// StdAdaGradSGDRule, a g2sum for each weight
    StdAdagrad,
    /// SparseAdamSGDRule
    Adam,
    /// SparseSharedAdamSGDRule, one gsum and one g2sum
    SharedAdam,
}

impl SgdRule {
    /// Numbers of state for so many weights.
    #[must_use]
    pub fn width(self, dim: usize) -> usize {
        match self {
            SgdRule::Naive => 0,
            SgdRule::Adagrad => 1,
            SgdRule::StdAdagrad => dim,
            SgdRule::Adam => 2 * dim + 2,
            SgdRule::SharedAdam => 4,
        }
    }

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            SgdRule::Naive => "naive",
            SgdRule::Adagrad => "adagrad",
            SgdRule::StdAdagrad => "std-adagrad",
            SgdRule::Adam => "adam",
            SgdRule::SharedAdam => "shared-adam",
        }
    }

    /// What number `index` of the state for so many weights can be.
    fn bound(self, dim: usize, index: usize) -> StateBound {
        use StateBound::{Any, Power, Square};
        match self {
            SgdRule::Naive => Any,
            SgdRule::Adagrad | SgdRule::StdAdagrad => Square,
            SgdRule::Adam if index < dim => Any,
            SgdRule::Adam if index < 2 * dim => Square,
            SgdRule::SharedAdam if index == 0 => Any,
            SgdRule::SharedAdam if index == 1 => Square,
            SgdRule::Adam | SgdRule::SharedAdam => Power,
        }
    }

    /// The state that a feature begins with, as text: zeros, and the powers of Adam's betas.
    fn start(self, dim: usize, line: &mut Vec<u8>) {
        let powers: &[u8] = match self {
            SgdRule::Adam | SgdRule::SharedAdam => b" 0.9 0.999",
            _ => b"",
        };
        let zeros = self.width(dim) - if powers.is_empty() { 0 } else { 2 };
        for _ in 0..zeros {
            line.extend_from_slice(b" 0");
        }
        line.extend_from_slice(powers);
    }
}

/// What a number of state can be. A NaN may be any, as that of a feature whose training diverged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StateBound {
    /// Gradients have both signs.
    Any,
    /// A sum of squares is never below 0.
    Square,
    /// A power of a beta is at most 1, and 0 where it got too small for an f32.
    Power,
}

impl StateBound {
    fn has(self, value: f32) -> bool {
        match self {
            StateBound::Any => true,
            StateBound::Square => value >= 0.0 || value.is_nan(),
            StateBound::Power => (0.0..=1.0).contains(&value) || value.is_nan(),
        }
    }

    fn expected(self) -> &'static str {
        match self {
            StateBound::Any => "any number",
            StateBound::Square => "a sum of squares, which is never below 0",
            StateBound::Power => "a power of a beta, which is 0 to 1",
        }
    }
}

/// How many numbers a line has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The rule of `embed_w`.
    pub embed: SgdRule,
    /// The rule of `embedx_w`.
    pub embedx: SgdRule,
    /// Numbers of `embedx_w`.
    pub embedx_dim: usize,
}

/// What is kept of a line, beside its weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Feature {
    /// The key.
    pub key: u64,
    /// Times that it was shown, which decay; read as an f64, which has every u32.
    pub show: f64,
    /// Clicks, likewise.
    pub click: f64,
    /// Whether the embedx part is there.
    pub has_embedx: bool,
    /// The byte of the first weight that is not finite, and what it is.
    pub not_finite: Option<(usize, f32)>,
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The byte of the line.
    pub at: usize,
    /// What was found, and expected.
    pub what: String,
}

impl Layout {
    /// Weights of a row: `embed_w` and `embedx_w`.
    #[must_use]
    pub fn dim(self) -> usize {
        1 + self.embedx_dim
    }

    /// Numbers of a line without the embedx part.
    #[must_use]
    pub fn short(self) -> usize {
        HEAD + 1 + self.embed.width(1)
    }

    /// Numbers of a line with it.
    #[must_use]
    pub fn long(self) -> usize {
        self.short() + self.embedx_dim + self.embedx.width(self.embedx_dim)
    }

    /// Reads a line without its end. Weights that are not there are 0.
    ///
    /// # Shapes
    /// weights: `[self.dim()]`
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(self, line: &[u8], weights: &mut [f32]) -> Result<Feature, Fault> {
        let (key, digits) = key_of(line)?;
        let mut feature = Feature {
            key,
            show: 0.0,
            click: 0.0,
            has_embedx: false,
            not_finite: None,
        };
        let embedx = self.short()..self.short() + self.embedx_dim;
        weights.fill(0.0);
        let (mut count, mut at) = (0, digits);
        for word in line[digits..].split(u8::is_ascii_whitespace) {
            let begin = at;
            at += word.len() + 1;
            if word.is_empty() {
                continue;
            }
            let fault = || Fault {
                at: begin,
                what: format!("found {:?}, expected a number", shown(word)),
            };
            let value: f32 = number(word).ok_or_else(fault)?;
            let weight = match count {
                SHOW => {
                    feature.show = number(word).ok_or_else(fault)?;
                    None
                }
                CLICK => {
                    feature.click = number(word).ok_or_else(fault)?;
                    None
                }
                HEAD => Some(0),
                other if embedx.contains(&other) => Some(1 + other - embedx.start),
                _ => None,
            };
            if let Some(place) = weight.and_then(|index| weights.get_mut(index)) {
                *place = value;
                if !value.is_finite() && feature.not_finite.is_none() {
                    feature.not_finite = Some((begin, value));
                }
            } else if let Some((of, bound)) = self.bound(count).filter(|(_, b)| !b.has(value)) {
                let expected = bound.expected();
                return Err(Fault {
                    at: begin,
                    what: format!(
                        "found {value} in the state of {of}, expected {expected}: the table has other rules or another \
                         dim than {}",
                        self.flags()
                    ),
                });
            }
            count += 1;
        }
        if count != self.short() && count != self.long() {
            return Err(Fault {
                at: 0,
                what: format!("found {count} numbers behind the key, expected {self}"),
            });
        }
        feature.has_embedx = count == self.long();
        Ok(feature)
    }

    /// Which weights the state in this place of a line is of, and what it can be; `None` where no state stands.
    fn bound(self, count: usize) -> Option<(&'static str, StateBound)> {
        let (embed, embedx) = (HEAD + 1, self.short() + self.embedx_dim);
        if (embed..self.short()).contains(&count) {
            return Some(("embed_w", self.embed.bound(1, count - embed)));
        }
        let index = count.checked_sub(embedx).filter(|_| count < self.long())?;
        Some(("embedx_w", self.embedx.bound(self.embedx_dim, index)))
    }

    /// The flags that say it.
    fn flags(self) -> String {
        format!(
            "--embed-rule {}, --embedx-rule {}, --embedx-dim {}",
            self.embed.name(),
            self.embedx.name(),
            self.embedx_dim
        )
    }

    /// Appends a line with its end.
    ///
    /// # Shapes
    /// weights: `[self.dim()]`
    pub fn write(self, line: &mut Vec<u8>, key: u64, counts: [u32; 2], weights: &[f32]) {
        let [show, click] = counts;
        // A slot of -1 is that of a feature never pushed; the first push gives it its own.
        print(line, format_args!("{key} -1 0 0 {show} {click}"));
        for (index, weight) in weights.iter().enumerate() {
            line.push(b' ');
            print_number(line, *weight);
            if index == 0 {
                self.embed.start(1, line);
            }
        }
        self.embedx.start(self.embedx_dim, line);
        line.push(b'\n');
    }
}

impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}, or {} with the embedx part ({})",
            self.short(),
            self.long(),
            self.flags()
        )
    }
}

/// The key of a line, and its digits.
///
/// # Errors
/// What is wrong with it.
pub fn key_of(line: &[u8]) -> Result<(u64, usize), Fault> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let end = line.get(digits);
    let is_whole = end.is_none_or(u8::is_ascii_whitespace);
    let key = line
        .get(..digits)
        .and_then(|digits| str::from_utf8(digits).ok());
    match key.and_then(|key| key.parse().ok()) {
        Some(key) if is_whole => Ok((key, digits)),
        _ => {
            let word = line
                .split(u8::is_ascii_whitespace)
                .next()
                .unwrap_or_default();
            let found = match line.is_empty() {
                true => String::from("an empty line, where Paddle stops to read"),
                false => format!("{:?}", shown(word)),
            };
            Err(Fault {
                at: 0,
                what: format!("found {found}, expected a key of 0 to {}", u64::MAX),
            })
        }
    }
}

/// A number, as C++ prints it.
fn number<T: FromStr>(word: &[u8]) -> Option<T> {
    let word = str::from_utf8(word).ok()?;
    // Where it has a sign, which says nothing.
    let word = if word == "-nan" { "nan" } else { word };
    word.parse().ok()
}

/// The beginning of a word, for a message.
fn shown(word: &[u8]) -> String {
    String::from_utf8_lossy(&word[..word.len().min(40)]).into_owned()
}

/// What a show or click becomes: rounded to a whole number, and whether that changed it.
#[must_use]
pub fn whole(value: f64) -> Option<(u32, bool)> {
    let rounded = value.round();
    if !(0.0..=f64::from(u32::MAX)).contains(&rounded) {
        return None;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "in range, and whole"
    )]
    let number = rounded as u32;
    Some((number, rounded != value))
}

/// As few digits as tell it from all others; an exponent where these would be many.
fn print_number(line: &mut Vec<u8>, value: f32) {
    let size = value.abs();
    if value.is_nan() {
        line.extend_from_slice(b"nan");
    } else if size == 0.0 || size.is_infinite() || (1e-4..1e9).contains(&size) {
        print(line, format_args!("{value}"));
    } else {
        print(line, format_args!("{value:e}"));
    }
}

/// Appends text.
fn print(line: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // A vector takes all that is written to it.
    let _always = line.write_fmt(text);
}

#[cfg(test)]
mod tests;
