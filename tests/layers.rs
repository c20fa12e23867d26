//! Who may know whom, how long a file may be, and where `unsafe` and `std::fs` may stand.
//!
//! - The tables below are the rule; the code is read as text, without comments and strings.
//! - The checker is a pure function of (path, text), and is itself tested on planted violations.

use std::fs;
use std::io;
use std::path::Path;

/// Modules that know only each other.
const PLAIN: &[&str] = &[
    "error",
    "units",
    "options",
    "stats",
    "prometheus",
    "observe",
    "batch",
    "fork",
    "pages",
    "keymap",
    "row",
    "sync",
];

/// What each other module may know, beside plain data and itself.
const MAY_KNOW: &[(&str, &[&str])] = &[
    ("format", &[]),
    ("io", &[]),
    ("ssd", &["format", "io"]),
    ("mem", &[]),
    ("store", &["format", "io", "ssd", "mem"]),
    ("inspect", &["format", "io", "ssd"]),
    ("repair", &["format", "io", "ssd", "inspect"]),
];

/// Libraries and the modules that may name them.
const HOMES: &[(&str, &str)] = &[
    ("io_uring", "io"),
    ("nix", "io"),
    ("nix", "fork"),
    ("nix", "pages"),
    ("zerocopy", "format"),
    ("xxhash_rust", "format"),
    ("pulp", "row"),
    ("metrics", "observe"),
    ("parking_lot", "sync"),
    ("shuttle", "sync"),
];

const UNSAFE_FILES: &[&str] = &[
    "src/io/buffer.rs",
    "src/fork.rs",
    "src/io/uring.rs",
    "src/io/uring/queue.rs",
    "src/io/uring/ring.rs",
    "src/pages.rs",
    "tests/common/limits.rs",
    "tests/fork.rs",
    "tools/src/peers/lmdb.rs",
    "tools/src/peers/mmap.rs",
];
/// What such a file says at its top, without white space.
const UNSAFE_REASON: &str = "#![expect(unsafe_code,reason=";
const FILE_LINES_MAX: usize = 600;
const DEPTH_MAX: usize = 2;

/// A source file: its path from the package's root, and its text.
struct Source {
    path: String,
    text: String,
}

/// Everything the files do that the tables forbid, as `path:line: what`.
fn violations(files: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        let lines = file.text.lines().count();
        if lines > FILE_LINES_MAX {
            found.push(format!(
                "{}:{lines}: more than {FILE_LINES_MAX} lines",
                file.path
            ));
        }
        if file.path.ends_with(".rs") {
            check_code(file, &mut found);
        }
    }
    found
}

fn check_code(file: &Source, found: &mut Vec<String>) {
    let code = without_comments_and_strings(&file.text);
    let mut report = |at: usize, what: String| {
        let line = code[..at].iter().filter(|c| **c == '\n').count() + 1;
        found.push(format!("{}:{line}: {what}", file.path));
    };
    let uses_unsafe = words(&code, "unsafe");
    if !UNSAFE_FILES.contains(&file.path.as_str()) {
        for at in uses_unsafe {
            report(at, format!("unsafe is for {UNSAFE_FILES:?}"));
        }
    } else if let Some(at) = uses_unsafe.first()
        && !file
            .text
            .split_whitespace()
            .collect::<String>()
            .contains(UNSAFE_REASON)
    {
        report(
            *at,
            "the file must say why: #![expect(unsafe_code, reason = …)]".to_owned(),
        );
    }
    let Some(inside) = file.path.strip_prefix("src/") else {
        return;
    };
    let parts: Vec<&str> = inside.trim_end_matches(".rs").split('/').collect();
    if parts.len() > DEPTH_MAX + 1 {
        report(0, format!("deeper than {DEPTH_MAX} directories under src"));
    }
    let module = parts[0];
    if module == "lib" {
        return;
    }
    if !PLAIN.contains(&module) && MAY_KNOW.iter().all(|(name, _)| *name != module) {
        report(0, format!("module {module} is not in the table"));
        return;
    }
    let depth = parts.len() - usize::from(parts.ends_with(&["mod"]));
    let known = known_to(module);
    let mut named = named_after(&code, "crate");
    named.extend(named_after_supers(&code, depth));
    for (at, name) in named {
        let other_module =
            PLAIN.contains(&name.as_str()) || MAY_KNOW.iter().any(|(module, _)| *module == name);
        if other_module && !known.contains(&name.as_str()) {
            report(at, format!("{module} must not know {name}"));
        }
    }
    for (library, home) in HOMES {
        let at_home = HOMES.contains(&(library, module));
        if !at_home && let Some(at) = first_path(&code, library) {
            report(at, format!("{library} has its home in {home}"));
        }
    }
    let test_code = if parts.contains(&"tests") {
        0
    } else {
        start_of_tests(&code)
    };
    for (at, name) in named_after(&code, "std") {
        if name == "fs" && module != "io" && at < test_code {
            report(at, "std::fs is for io".to_owned());
        }
    }
}

fn known_to(module: &str) -> Vec<&str> {
    let more = MAY_KNOW
        .iter()
        .find(|(name, _)| *name == module)
        .map_or(&[][..], |(_, more)| more);
    PLAIN.iter().chain(more).copied().chain([module]).collect()
}

/// Where an inline `#[cfg(test)] mod` begins; the end of the code if there is none.
fn start_of_tests(code: &[char]) -> usize {
    let marker: Vec<char> = "#[cfg(test)]\nmod tests {".chars().collect();
    code.windows(marker.len())
        .position(|window| window == marker)
        .unwrap_or(code.len())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Where `word` stands as a whole word.
fn words(code: &[char], word: &str) -> Vec<usize> {
    let word: Vec<char> = word.chars().collect();
    let bound = |c: Option<&char>| c.is_none_or(|c| !is_word(*c));
    (0..code.len().saturating_sub(word.len() - 1))
        .filter(|at| code[*at..].starts_with(&word))
        .filter(|at| (*at == 0 || bound(code.get(at - 1))) && bound(code.get(at + word.len())))
        .collect()
}

/// Skips white space; then `::` and white space, if it stands there.
fn after_colons(code: &[char], mut at: usize) -> Option<usize> {
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
fn first_path(code: &[char], library: &str) -> Option<usize> {
    let uses = |at: &usize| after_colons(code, at + library.len()).is_some();
    words(code, library).into_iter().find(uses)
}

/// The names that follow `root::`, also inside `root::{a::b, c}`.
fn named_after(code: &[char], root: &str) -> Vec<(usize, String)> {
    let starts = words(code, root).into_iter();
    starts
        .filter_map(|at| after_colons(code, at + root.len()))
        .flat_map(|at| names_at(code, at))
        .collect()
}

/// The names that follow a chain of `super::` which leads out of a module `depth` below the root.
fn named_after_supers(code: &[char], depth: usize) -> Vec<(usize, String)> {
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
fn names_at(code: &[char], at: usize) -> Vec<(usize, String)> {
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
fn without_comments_and_strings(text: &str) -> Vec<char> {
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
fn end_of_literal(text: &[char], at: usize) -> Option<usize> {
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

fn end_of_quoted(text: &[char], mut at: usize, quote: char) -> usize {
    while at < text.len() && text[at] != quote {
        at += if text[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(text.len())
}

/// Every source file under `folder`, with its path from `root`; none if there is no such folder.
fn collect(root: &Path, folder: &Path, files: &mut Vec<Source>) -> io::Result<()> {
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

#[test]
fn every_file_keeps_the_layers_and_limits() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["src", "tests", "tools", "examples", "benches"] {
        collect(root, &root.join(folder), &mut files).unwrap();
    }
    let modules = files.iter().filter(|f| f.path.starts_with("src/")).count();
    assert!(
        modules > 20,
        "only {modules} files found under {}/src",
        root.display()
    );
    let found = violations(&files);
    assert!(
        found.is_empty(),
        "{} violations:\n{}",
        found.len(),
        found.join("\n")
    );
}

fn found_in(path: &str, text: &str) -> Vec<String> {
    violations(&[Source {
        path: path.to_owned(),
        text: text.to_owned(),
    }])
}

#[test]
fn planted_violations_are_found() {
    let planted = [
        (
            "src/mem/cache.rs",
            "use crate::ssd::reader;",
            "1: mem must not know ssd",
        ),
        (
            "src/mem/cache.rs",
            "\nfn f() { crate :: io::open() }",
            "2: mem must not know io",
        ),
        (
            "src/format/mod.rs",
            "use crate::{units::mix64, io::{Disk}};",
            "1: format must not know io",
        ),
        (
            "src/io/mod.rs",
            "use crate::{\n    error::Error,\n    format,\n};",
            "3: io must not know",
        ),
        (
            "src/row/mod.rs",
            "use crate::format::x;",
            "1: row must not know format",
        ),
        (
            "src/units.rs",
            "fn f(x: crate::mem::Cache) {}",
            "1: units must not know mem",
        ),
        (
            "src/ssd/mod.rs",
            "use super::mem::Cache;",
            "1: ssd must not know mem",
        ),
        (
            "src/ssd/scan.rs",
            "use super::super::store;",
            "1: ssd must not know store",
        ),
        (
            "src/io/sim/disk.rs",
            "use super::super::super::ssd;",
            "1: io must not know ssd",
        ),
        (
            "src/inspect.rs",
            "use crate::mem;",
            "1: inspect must not know mem",
        ),
        ("src/extra.rs", "", "1: module extra is not in the table"),
        (
            "src/mem/cache.rs",
            "// a\nunsafe { x() }",
            "2: unsafe is for",
        ),
        (
            "examples/ctr/main.rs",
            "unsafe fn f() {}",
            "1: unsafe is for",
        ),
        (
            "src/io/uring.rs",
            "unsafe { x() }",
            "1: the file must say why",
        ),
        ("src/a/b/c/d.rs", "", "deeper than 2"),
        (
            "src/store/mod.rs",
            "use std::{fs, io};",
            "1: std::fs is for io",
        ),
        (
            "src/store/mod.rs",
            "let x = std::fs::File::open(p);",
            "1: std::fs is for io",
        ),
        (
            "src/store/mod.rs",
            "use nix::sys;",
            "1: nix has its home in io",
        ),
        (
            "src/ssd/mod.rs",
            "let h = xxhash_rust::xxh3::xxh3_64(b);",
            "xxhash_rust has its home",
        ),
        (
            "src/store/push.rs",
            "metrics::counter!(\"rows\").increment(1);",
            "1: metrics has its home in observe",
        ),
    ];
    for (path, text, expected) in planted {
        let found = found_in(path, text);
        assert!(
            found.iter().any(|x| x.contains(expected)),
            "{path}: {text:?}: found {found:?}"
        );
    }
    let long = "\n".repeat(FILE_LINES_MAX + 1);
    for path in ["tools/check.sh", "src/mem/mod.rs", "tests/data/figures.py"] {
        assert_eq!(
            found_in(path, &long),
            [format!("{path}:601: more than 600 lines")]
        );
        assert_eq!(found_in(path, &long[1..]), [""; 0]);
    }
}

#[test]
fn what_is_allowed_is_not_reported() {
    let allowed = [
        ("src/lib.rs", "use crate::{mem, ssd}; use std::fs;"),
        (
            "src/store/mod.rs",
            "use crate::{mem::Cache, ssd, io, format, error::Error};",
        ),
        (
            "src/store/push.rs",
            "use super::super::mem; use super::flush;",
        ),
        (
            "src/io/pread.rs",
            "use std::fs::{self, File}; use nix::sys;",
        ),
        (
            "src/io/buffer.rs",
            "#![expect(\n    unsafe_code,\n    reason = \"x\"\n)]\nunsafe { x() }",
        ),
        (
            "src/io/sim/state.rs",
            "use super::super::format_name; use super::super::OpenMode;",
        ),
        (
            "src/mem/cache.rs",
            "//! unsafe use crate::ssd::x;\n/* crate::io:: unsafe */",
        ),
        (
            "src/mem/cache.rs",
            "let s = \"unsafe crate::ssd:: \\\" std::fs::x\"; let c = '\"'; f('\\'');",
        ),
        (
            "src/mem/cache.rs",
            "let s = r#\"unsafe \" crate::ssd::x\"#; fn f<'a>(x: &'a str) {}",
        ),
        (
            "src/mem/cache.rs",
            "#![expect(unsafe_code, reason = \"x\")]",
        ),
        ("src/mem/tests.rs", "use std::fs;"),
        (
            "src/mem/cache.rs",
            "fn f() {}\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}",
        ),
        ("src/mem/cache.rs", "fn f(nix: u32) -> u32 { nix }"),
        ("tests/pull_push.rs", "use std::fs; use hps::Store;"),
    ];
    for (path, text) in allowed {
        assert_eq!(found_in(path, text), [""; 0], "{path}: {text:?}");
    }
    // After a string and a lifetime the checker is awake again.
    let found = found_in(
        "src/mem/a.rs",
        "fn f<'a>(x: &'a str, c: char) -> bool { c == 'a' }\nuse crate::ssd;",
    );
    assert_eq!(found, ["src/mem/a.rs:2: mem must not know ssd"]);
}
