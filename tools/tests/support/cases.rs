//! What a tool said, compared with what it said before.
//!
//! - A case is a file in `snapshots/` of the package: the command, its exit code, stdout, stderr. What
//!   differs from run to run stands there as a word: `<DIR>`, `<UUID>`, `<TIME>`, `<VERSION>`.
//! - JSON is laid out over lines, so that a diff can be read.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// What could change help, colours or messages.
const VARIABLES: &[&str] = &[
    "COLUMNS",
    "LINES",
    "CI",
    "NO_COLOR",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "RUST_BACKTRACE",
];

/// Cases of one directory, each compared with its file.
pub struct Cases {
    root: PathBuf,
    differ: Vec<String>,
}

impl Cases {
    pub fn new(root: &Path) -> Cases {
        Cases {
            root: root.to_path_buf(),
            differ: Vec::new(),
        }
    }

    /// Long and short help, and the version.
    pub fn run_help(&mut self, tool: &str, program: &str) {
        for (case, flag) in [("help", "--help"), ("h", "-h"), ("version", "--version")] {
            let name = format!("{tool}-{case}");
            self.run(&name, &mut command(program), tool, &[flag]);
        }
    }

    pub fn run(&mut self, name: &str, command: &mut Command, tool: &str, args: &[&str]) {
        let output = command.args(args).current_dir(&self.root).output().unwrap();
        let line = [&[tool], args].concat().join(" ");
        self.compare(name, &self.snapshot(&line, &output));
    }

    fn snapshot(&self, line: &str, output: &Output) -> String {
        let code = output.status.code();
        let code = code.map_or("killed".to_owned(), |code| code.to_string());
        let mut text = format!("$ {line}\nexit {code}\n");
        for (name, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
            let written = String::from_utf8(bytes.clone()).unwrap();
            if !written.is_empty() {
                text += &format!("--- {name}\n{}", laid_out(&written));
            }
        }
        let root = self.root.to_str().unwrap();
        let text = text.replace(root, "<DIR>");
        let text = text.replace(env!("CARGO_PKG_VERSION"), "<VERSION>");
        without_what_varies(&text)
    }

    fn compare(&mut self, name: &str, found: &str) {
        let path = snapshots().join(format!("{name}.txt"));
        if std::env::var_os("HPS_BLESS").is_some() {
            fs::create_dir_all(snapshots()).unwrap();
            fs::write(&path, found).unwrap();
        }
        let wanted = fs::read_to_string(&path).unwrap_or_default();
        if wanted != found {
            let path = path.display();
            self.differ
                .push(format!("== {path}\n-- wanted\n{wanted}\n-- found\n{found}"));
        }
    }

    pub fn end(self) {
        let all = self.differ.join("\n");
        assert!(all.is_empty(), "{all}\nHPS_BLESS=1 writes them anew");
    }
}

fn snapshots() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots")
}

/// A tool in a world without terminal.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    for name in VARIABLES {
        command.env_remove(name);
    }
    command
}

/// Each line that is an object, over several lines; plain arrays of numbers stay on one.
fn laid_out(text: &str) -> String {
    let lay = |line: &str| match serde_json::from_str::<Value>(line) {
        Ok(value) if value.is_object() => serde_json::to_string_pretty(&value).unwrap(),
        _ => line.to_owned(),
    };
    let lines: Vec<String> = text.lines().map(lay).collect();
    let mut laid = String::new();
    let mut in_numbers = false;
    for line in lines.join("\n").lines() {
        let item = line.trim();
        let number = item.starts_with(|c: char| c.is_ascii_digit() || c == '-');
        in_numbers = number && (in_numbers || laid.ends_with("[\n"));
        if in_numbers || (item.starts_with(']') && laid.ends_with(|c: char| c.is_ascii_digit())) {
            laid.truncate(laid.trim_end().len());
            laid += if laid.ends_with(',') { " " } else { "" };
            laid += item;
        } else {
            laid += line;
        }
        laid += if in_numbers && !item.ends_with(',') {
            ""
        } else {
            "\n"
        };
    }
    laid
}

/// The uuid of a store, and times.
fn without_what_varies(text: &str) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        let (start, rest) = match line.find("store ") {
            Some(0) => line.split_at(6),
            _ => ("", line),
        };
        let hex = |c: char| c.is_ascii_hexdigit();
        let is_uuid = rest.len() >= 32 && rest.chars().take(32).all(hex);
        let trimmed = line.trim_start();
        let indent = &line[..line.len() - trimmed.len()];
        lines.push(if !start.is_empty() && is_uuid {
            format!("{start}<UUID>{}", &rest[32..])
        } else if trimmed.starts_with("\"store\": \"") {
            format!("{indent}\"store\": \"<UUID>\",")
        } else if trimmed.starts_with("\"unix_seconds\": ") {
            format!("{indent}\"unix_seconds\": <TIME>")
        } else {
            line.to_owned()
        });
    }
    lines.join("\n") + "\n"
}

/// Every file below a directory, in order.
pub fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

/// Fails on a snapshot that no case writes any more: it says nothing about the tools. `is_made` knows
/// the names that are not written out in the package's `tests/snapshots.rs`.
pub fn check_names(tools: &[&str], is_made: impl Fn(&str) -> bool) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots.rs");
    let source = fs::read_to_string(source).unwrap();
    for path in files(&snapshots()) {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let help = ["-help", "-h", "-version"].iter();
        let mut help = help.filter_map(|end| name.strip_suffix(end));
        let known = help.any(|tool| tools.contains(&tool))
            || is_made(name)
            || source.contains(&format!("\"{name}\""));
        assert!(known, "{}: no case of this name", path.display());
    }
}
