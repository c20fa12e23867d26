//! Does what the documents name exist? (variables of the environment, files, links)
#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Files with one of these endings below a folder, but what is built.
fn files(folder: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !["target", "corpus", "artifacts", ".git"].contains(&&*name) {
                files(&path, endings, found);
            }
        } else if endings.iter().any(|end| name.ends_with(end)) {
            found.push(path);
        }
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Documents with their text.
fn documents() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    files(root(), &[".md"], &mut found);
    assert!(found.len() > 20, "only {} documents", found.len());
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        (path, text)
    };
    found.into_iter().map(read).collect()
}

/// Names that begin with `HPS_`.
fn variables(text: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c| !is_part(c));
    words
        .filter(|word| word.starts_with("HPS_") && word.len() > 4)
        .collect()
}

#[test]
fn variables_of_the_environment_are_read_by_something() {
    let mut code = Vec::new();
    for folder in [
        "src", "tests", "tools", "examples", "benches", "fuzz", "python", "capi",
    ] {
        files(&root().join(folder), &[".rs", ".sh", ".py"], &mut code);
    }
    // A comment reads nothing.
    let is_code = |line: &&str| !line.trim_start().starts_with(['#', '/']);
    let read = |path: PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        text.lines().filter(is_code).collect::<Vec<_>>().join("\n")
    };
    let code: Vec<String> = code.into_iter().map(read).collect();
    let known: BTreeSet<&str> = code.iter().flat_map(|text| variables(text)).collect();
    let mut count = 0;
    for (path, text) in documents() {
        for name in variables(&text) {
            assert!(
                known.contains(name),
                "{}: nothing reads {name}",
                path.display()
            );
            count += 1;
        }
    }
    assert!(count > 10, "{count} variables");
}

#[test]
fn links_lead_somewhere() {
    let mut count = 0;
    for (path, text) in documents() {
        for target in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let file = target.split('#').next().unwrap();
            if file.is_empty() || target.contains("://") || target.contains(char::is_whitespace) {
                continue;
            }
            let there = path.parent().unwrap().join(file).exists();
            assert!(there, "{}: there is no {target}", path.display());
            count += 1;
        }
    }
    assert!(count > 10, "{count} links");
}

#[test]
fn files_in_code_marks_exist() {
    const FOLDERS: [&str; 9] = [
        "src/",
        "tests/",
        "tools/",
        "examples/",
        "benches/",
        "docs/",
        "fuzz/",
        "python/",
        "capi/",
    ];
    let mut count = 0;
    for (path, text) in documents() {
        // Decisions and changes tell of files that have gone since.
        let name = path.strip_prefix(root()).unwrap();
        if name.starts_with("docs/decisions") || name == Path::new("CHANGELOG.md") {
            continue;
        }
        for word in text.split('`').skip(1).step_by(2) {
            let is_path = FOLDERS.iter().any(|folder| word.starts_with(folder));
            let made = |part: &str| {
                ["target", "artifacts"].contains(&part) || part.ends_with(".regressions")
            };
            let made = word.split('/').any(made);
            let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
            if is_path && !made && word.chars().all(plain) {
                let folders = [root(), path.parent().unwrap()];
                let there = folders.iter().any(|folder| folder.join(word).exists());
                assert!(there, "{}: there is no {word}", path.display());
                count += 1;
            }
        }
    }
    assert!(count > 30, "{count} files");
}

/// Of the table "Where do I change …?": `path` is a file or a folder, and names of code that follow a
/// path are in that file.
#[test]
fn the_table_of_changes_names_what_is_there() {
    let text = fs::read_to_string(root().join("docs/ARCHITECTURE.md")).unwrap();
    let (_, rest) = text.split_once("## Where do I change").unwrap();
    let (table, _) = rest.split_once("\n## ").unwrap();
    let (mut paths, mut names, mut wrong) = (0, 0, Vec::new());
    for line in table.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.split(" | ").collect();
        let mut file = String::new();
        // Every second piece is between code marks.
        for (i, mark) in cells[1].split('`').enumerate() {
            if i % 2 == 0 {
                // What follows the bracket is of no file.
                if mark.contains(')') {
                    file.clear();
                }
            } else if mark.contains('/') {
                let path = root().join(mark);
                file.clear();
                match (path.is_dir(), fs::read_to_string(&path)) {
                    (false, Ok(text)) => file = text,
                    (true, _) => {}
                    _ => wrong.push(format!("{mark} is not there")),
                }
                paths += 1;
            } else if !file.is_empty() {
                if !file.contains(mark) {
                    wrong.push(format!("{mark} is not in the file before it: {line:.60}"));
                }
                names += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(paths > 15 && names > 10, "{paths} paths, {names} names");
}
