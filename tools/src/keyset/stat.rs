//! `hps-keyset stat` and `verify`: what is in keyset files, and are they what they should be?

use std::env::temp_dir;
use std::path::{Path, PathBuf};

use anyhow::Result;
use hps::Error;

use super::args::{StatArgs, VerifyArgs};
use super::crew::Crew;
use super::estimate::Estimate;
use super::layout::KeyType;
use super::plan::Plan;
use super::stream::{Facts, Stream, facts, settle, walk};

/// What is in a file.
#[derive(Debug)]
pub struct Stat {
    /// Which file.
    pub path: PathBuf,
    /// What a pass has shown.
    pub facts: Facts,
    /// How many different keys there are.
    pub unique: u64,
    /// Whether that is an estimate.
    pub is_estimate: bool,
    /// How many of them the file before has, too.
    pub shared: Option<u64>,
}

/// Looks at all files.
///
/// # Errors
/// What is wrong with a file; `Cancelled`.
pub fn stat(args: &StatArgs, crew: &mut Crew<'_>) -> Result<Vec<Stat>> {
    let plan = Plan::new(args.resources.memory, args.resources.threads);
    let keys = args.dtype.unwrap_or(KeyType::I64);
    let mut stats: Vec<Stat> = Vec::new();
    for path in &args.files {
        let mut estimate = args.estimate.then(Estimate::new);
        let facts = facts(path, keys, &plan, crew, |key| {
            if let Some(estimate) = &mut estimate {
                estimate.put(key);
            }
        })?;
        settle(path, args.dtype, &facts)?;
        let (unique, shared) = match &estimate {
            Some(_) if facts.is_strict() => (facts.count, None),
            Some(estimate) => (rounded(estimate.keys()).min(facts.count), None),
            None => {
                let before = stats.last().map(|stat| (stat.path.as_path(), stat.facts));
                count((path, facts), before, &plan, crew)?
            }
        };
        stats.push(Stat {
            path: path.clone(),
            facts,
            unique,
            is_estimate: args.estimate && !facts.is_strict(),
            shared,
        });
    }
    Ok(stats)
}

fn rounded(estimate: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate is not negative; saturates"
    )]
    let whole = estimate.round() as u64;
    whole
}

/// Unique keys of a file, and those that the one before has, too.
fn count(
    (path, facts): (&Path, Facts),
    before: Option<(&Path, Facts)>,
    plan: &Plan,
    crew: &mut Crew<'_>,
) -> Result<(u64, Option<u64>)> {
    if facts.is_strict() && before.is_none() {
        return Ok((facts.count, None));
    }
    let folder = temp_dir();
    let of = 1 + usize::from(before.is_some());
    let mut streams = vec![Stream::open(path, &facts, (plan, of), &folder, crew)?];
    if let Some((path, facts)) = &before {
        streams.push(Stream::open(path, facts, (plan, of), &folder, crew)?);
    }
    let (mut unique, mut shared) = (0, 0);
    walk(&mut streams, crew, |_, has| {
        unique += u64::from(has[0]);
        shared += u64::from(!has.contains(&false));
        Ok(())
    })?;
    Ok((unique, before.map(|_| shared)))
}

/// What is wrong with files, and how many keys those have with which nothing is.
#[derive(Debug, Default)]
pub struct Verified {
    /// File and what is wrong with it.
    pub findings: Vec<(PathBuf, String)>,
    /// Files in which nothing was found, with their keys.
    pub good: Vec<(PathBuf, u64)>,
}

/// Checks all files.
///
/// # Errors
/// What reading met; `Cancelled`.
pub fn verify(args: &VerifyArgs, crew: &mut Crew<'_>) -> Result<Verified> {
    let plan = Plan::new(args.memory, Some(1));
    let keys = args.dtype.unwrap_or(KeyType::I64);
    let mut verified = Verified::default();
    for path in &args.files {
        let mut found = |what: String| verified.findings.push((path.clone(), what));
        let facts = match facts(path, keys, &plan, crew, |_| {}) {
            Ok(facts) => facts,
            Err(error) => match error.downcast_ref::<Error>() {
                Some(Error::Corrupt { offset, what, .. }) => {
                    found(format!("byte {offset}: {what}"));
                    continue;
                }
                _ => return Err(error),
            },
        };
        let at = |number: u64| number * keys.bytes() as u64;
        if let Some(number) = facts.falls {
            let at = at(number);
            found(format!(
                "byte {at}: not sorted: a key is less than the one before it"
            ));
        }
        if let Some(number) = facts.repeats {
            let at = at(number);
            found(format!(
                "byte {at}: not unique: a key equals the one before it"
            ));
        }
        if let Some(what) = facts.contradiction() {
            found(String::from(what));
        }
        if facts.is_strict() && facts.contradiction().is_none() {
            verified.good.push((path.clone(), facts.count));
        }
    }
    Ok(verified)
}
