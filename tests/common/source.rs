//! Rust source as text: what names does it use, and where?

use std::fs;
use std::io;
use std::path::Path;

/// A source file: its path from the package's root, and its text.
pub struct Source {
    pub path: String,
    pub text: String,
}

/// Where an inline `#[cfg(test)] mod` begins; the end of the code if there is none.
pub fn start_of_tests(code: &[char]) -> usize {
    let marker: Vec<char> = "#[cfg(test)]\nmod tests {".chars().collect();
    code.windows(marker.len())
        .position(|window| window == marker)
        .unwrap_or(code.len())
}

pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Where `word` stands as a whole word.
pub fn words(code: &[char], word: &str) -> Vec<usize> {
    let word: Vec<char> = word.chars().collect();
    let bound = |c: Option<&char>| c.is_none_or(|c| !is_word(*c));
    (0..code.len().saturating_sub(word.len() - 1))
        .filter(|at| code[*at..].starts_with(&word))
        .filter(|at| (*at == 0 || bound(code.get(at - 1))) && bound(code.get(at + word.len())))
        .collect()
}

/// Skips white space; then `::` and white space, if it stands there.
pub fn after_colons(code: &[char], mut at: usize) -> Option<usize> {
    let blank = |at: usize| code.get(at).is_some_and(|c| c.is_whitespace());
    while blank(at) {
        at += 1;
    }
    if !code[at.min(code.len())..].starts_with(&[':', ':']) {
        return None;
    }
    at += 2;
    while blank(at) {
        at += 1;
    }
    Some(at)
}

/// The first path that starts with `library` (`use nix`, `nix::x`).
pub fn first_path(code: &[char], library: &str) -> Option<usize> {
    let uses = |at: &usize| after_colons(code, at + library.len()).is_some();
    words(code, library).into_iter().find(uses)
}

/// A path in the code: its names, each with where it stands.
pub type CodePath = Vec<(usize, String)>;

/// All paths that begin with `root::`, groups in braces taken apart; a chain of `super::` is one root.
pub fn paths(code: &[char], root: &str) -> Vec<CodePath> {
    let mut found = Vec::new();
    let mut end_of_last = 0;
    for start in words(code, root) {
        if start < end_of_last {
            continue;
        }
        end_of_last = start + root.len();
        if after_colons(code, end_of_last).is_none() {
            continue;
        }
        let first = found.len();
        expand(code, start, &mut Vec::new(), &mut found);
        let chain = found.get(first).into_iter().flatten();
        if let Some((last, _)) = chain.take_while(|(_, name)| name == root).last() {
            end_of_last = last + root.len();
        }
    }
    found
}

/// Takes a path or a group apart that stands at `at`; gives where what follows it stands.
fn expand(code: &[char], mut at: usize, before: &mut CodePath, found: &mut Vec<CodePath>) -> usize {
    let skip_blanks = |at: usize| {
        let blanks = code[at..].iter().take_while(|c| c.is_whitespace()).count();
        at + blanks
    };
    at = skip_blanks(at);
    if code.get(at) == Some(&'{') {
        loop {
            at = skip_blanks(expand(code, at + 1, &mut before.clone(), found));
            match code.get(at) {
                Some(',') => {}
                Some('}') => return at + 1,
                _ => return at,
            }
        }
    }
    let name: String = code[at..].iter().take_while(|c| is_word(**c)).collect();
    let end = at + name.chars().count();
    if !name.is_empty() {
        before.push((at, name));
        if let Some(next) = after_colons(code, end) {
            return expand(code, next, before, found);
        }
        found.push(before.clone());
    }
    // `x as y`, and whatever else ends an item.
    let rest = code[end..].iter();
    end + rest.take_while(|c| ![',', '}', ';'].contains(*c)).count()
}

/// The names that follow `root::`, also inside `root::{a::b, c}`.
pub fn named_after(code: &[char], root: &str) -> Vec<(usize, String)> {
    named(&paths(code, root), |_| Some(1))
}

/// The names that follow a chain of `super::` which leads out of a module `depth` below the root.
pub fn named_after_supers(code: &[char], depth: usize) -> Vec<(usize, String)> {
    named(&paths(code, "super"), |path| {
        let count = supers(path.iter().map(|(_, name)| name));
        (count >= depth).then_some(count)
    })
}

/// How many `super`s a path begins with.
pub fn supers<'a>(names: impl Iterator<Item = &'a String>) -> usize {
    names.take_while(|name| *name == "super").count()
}

/// One name of each path, each place once.
fn named(paths: &[CodePath], which: impl Fn(&CodePath) -> Option<usize>) -> Vec<(usize, String)> {
    let name = |path: &CodePath| path.get(which(path)?).cloned();
    let mut names: Vec<_> = paths.iter().filter_map(name).collect();
    names.dedup();
    names
}

/// The text with comments, strings and character literals blanked; lines stay where they are.
pub fn without_comments_and_strings(text: &str) -> Vec<char> {
    let given: Vec<char> = text.chars().collect();
    let mut code = given.clone();
    let mut at = 0;
    while at < given.len() {
        let end = end_of_literal(&given, at).unwrap_or(at);
        for c in &mut code[at..end] {
            if *c != '\n' {
                *c = ' ';
            }
        }
        at = end.max(at + 1);
    }
    code
}

/// Where the comment, string or character literal ends that begins at `at`.
pub fn end_of_literal(text: &[char], at: usize) -> Option<usize> {
    let rest = &text[at..];
    let find = |from: usize, what: &[char]| {
        let place = rest
            .get(from..)?
            .windows(what.len())
            .position(|window| window == what)?;
        Some(at + from + place + what.len())
    };
    let end = text.len();
    let word_before = at > 0 && is_word(text[at - 1]);
    match rest {
        ['/', '/', ..] => Some(rest.iter().position(|c| *c == '\n').map_or(end, |n| at + n)),
        ['/', '*', ..] => Some(find(2, &['*', '/']).unwrap_or(end)),
        ['r', '"' | '#', ..] | ['b', 'r', '"' | '#', ..] if !word_before => {
            let start = rest.iter().position(|c| *c == 'r')? + 1;
            let hashes = rest[start..].iter().take_while(|c| **c == '#').count();
            // `r#name` is a raw identifier.
            if rest.get(start + hashes) != Some(&'"') {
                return None;
            }
            let close: Vec<char> = std::iter::once('"').chain(vec!['#'; hashes]).collect();
            Some(find(start + hashes + 1, &close).unwrap_or(end))
        }
        ['"', ..] => Some(end_of_quoted(text, at + 1, '"')),
        ['\'', '\\', ..] | ['\'', _, '\'', ..] => Some(end_of_quoted(text, at + 1, '\'')),
        _ => None,
    }
}

pub fn end_of_quoted(text: &[char], mut at: usize, quote: char) -> usize {
    while at < text.len() && text[at] != quote {
        at += if text[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(text.len())
}

/// Every source file under `folder`, with its path from `root`; none if there is no such folder.
pub fn collect(root: &Path, folder: &Path, files: &mut Vec<Source>) -> io::Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, files)?;
        } else if path
            .extension()
            .is_some_and(|e| ["rs", "sh", "py"].iter().any(|x| e == *x))
        {
            let name = path
                .strip_prefix(root)
                .unwrap_or(&path)
                .to_string_lossy()
                .into_owned();
            files.push(Source {
                path: name,
                text: fs::read_to_string(&path)?,
            });
        }
    }
    Ok(())
}
