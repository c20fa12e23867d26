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

/// The names that follow `root::`, also inside `root::{a::b, c}`.
pub fn named_after(code: &[char], root: &str) -> Vec<(usize, String)> {
    let starts = words(code, root).into_iter();
    starts
        .filter_map(|at| after_colons(code, at + root.len()))
        .flat_map(|at| names_at(code, at))
        .collect()
}

/// The names that follow a chain of `super::` which leads out of a module `depth` below the root.
pub fn named_after_supers(code: &[char], depth: usize) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut end_of_last = 0;
    for start in words(code, "super") {
        if start < end_of_last {
            continue;
        }
        let (mut at, mut count) = (start, 0);
        while code[at..].starts_with(&['s', 'u', 'p', 'e', 'r'])
            && let Some(next) = after_colons(code, at + 5)
        {
            (at, count) = (next, count + 1);
        }
        end_of_last = at;
        if count >= depth && count > 0 {
            found.extend(names_at(code, at));
        }
    }
    found
}

/// The name at `at`, or the first names of the items if a `{` group stands there.
pub fn names_at(code: &[char], at: usize) -> Vec<(usize, String)> {
    let name = |at: usize| -> String { code[at..].iter().take_while(|c| is_word(**c)).collect() };
    if code.get(at) != Some(&'{') {
        return vec![(at, name(at))];
    }
    let (mut names, mut open, mut fresh) = (Vec::new(), 0, false);
    for (i, c) in code.iter().enumerate().skip(at) {
        match c {
            '{' => (open, fresh) = (open + 1, open == 0),
            '}' if open == 1 => break,
            '}' => open -= 1,
            ',' => fresh = open == 1,
            c if fresh && is_word(*c) => {
                names.push((i, name(i)));
                fresh = false;
            }
            _ => {}
        }
    }
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
