//! Completions and man pages of tools, made from their flags.
//!
//! - [`check`] compares what is made with a folder of the package, and with `HPS_BLESS=1` writes it.
//! - Each page names all other tools, those of other packages too.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::{Generator, Shell};

/// Every tool, whatever package it is in.
const TOOLS: &[&str] = &[
    "hps-bench",
    "hps-compact",
    "hps-export",
    "hps-fsck",
    "hps-import",
    "hps-keyset",
];
/// In the foot of each page: the package that has the tool.
const SOURCE: &str = concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"));

pub type Files = BTreeMap<PathBuf, Vec<u8>>;

/// For each tool and each shell.
pub fn completions(commands: Vec<Command>) -> Files {
    let mut files = Files::new();
    for mut command in commands {
        let name = command.get_name().to_owned();
        for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut command, &name, &mut text);
            files.insert(shell.file_name(&name).into(), text);
        }
    }
    files
}

/// A page for each tool and each of its subcommands.
pub fn pages(commands: Vec<Command>) -> Files {
    let mut files = Files::new();
    for command in commands {
        let name = command.get_name();
        assert!(TOOLS.contains(&name), "{name}: no page would name it");
        let mut command = command.disable_help_subcommand(true);
        command.build();
        pages_of(&command, &mut files);
    }
    files
}

fn pages_of(command: &Command, files: &mut Files) {
    let shown = command.get_subcommands().filter(|s| !s.is_hide_set());
    shown.for_each(|subcommand| pages_of(subcommand, files));
    let page = clap_mangen::Man::new(command.clone());
    let mut text = Vec::new();
    write_page(command, &mut text).unwrap();
    files.insert(page.get_filename().into(), text);
}

/// What clap_mangen makes of a command, and the sections that it does not know.
fn write_page(command: &Command, out: &mut Vec<u8>) -> io::Result<()> {
    let long = command.get_long_about().map(ToString::to_string);
    let (about, exits) = match &long {
        Some(text) => text
            .split_once("\n\nExit codes: ")
            .unwrap_or((text.as_str(), "")),
        None => ("", ""),
    };
    let mut described = command.clone();
    if long.is_some() {
        described = described.long_about(about.to_owned());
    }
    let page = clap_mangen::Man::new(described).source(SOURCE);
    page.render_title(out)?;
    page.render_name_section(out)?;
    page.render_synopsis_section(out)?;
    page.render_description_section(out)?;
    page.render_options_section(out)?;
    if command.get_subcommands().any(|s| !s.is_hide_set()) {
        page.render_subcommands_section(out)?;
    }
    if !exits.is_empty() {
        writeln!(out, ".SH \"EXIT STATUS\"")?;
        for (code, meaning) in exit_codes(exits) {
            writeln!(out, ".TP\n\\fB{code}\\fR\n{}", roff(&meaning))?;
        }
    }
    if command.get_arguments().any(|a| a.get_id() == "color") {
        let names = "NO_COLOR, CLICOLOR_FORCE, TERM";
        let what = "With --color auto: a value of NO_COLOR other than the empty one takes colours \
                    away, CLICOLOR_FORCE=1 brings them where there is no terminal, and a TERM of \
                    dumb has none (and no progress bar).";
        writeln!(out, ".SH ENVIRONMENT\n.TP\n\\fB{names}\\fR\n{}", roff(what))?;
    }
    if command.get_version().is_some() {
        page.render_version_section(out)?;
    }
    let own = command.get_name();
    let others = TOOLS.iter().filter(|name| **name != own);
    let others: Vec<String> = others.map(|n| format!("\\fB{}\\fR(1)", roff(n))).collect();
    writeln!(out, ".SH \"SEE ALSO\"\n{}", others.join(", "))
}

/// "0 whole, 4 damage (of rows, of keys), 8 no store." as codes with their meanings.
pub fn exit_codes(text: &str) -> Vec<(u32, String)> {
    let mut codes: Vec<(u32, String)> = Vec::new();
    for part in text.trim_end_matches('.').split(", ") {
        let (first, rest) = part.split_once(' ').unwrap_or((part, ""));
        match (first.parse(), codes.last_mut()) {
            (Ok(code), _) => codes.push((code, rest.to_owned())),
            (Err(_), Some((_, meaning))) => *meaning += &format!(", {part}"),
            (Err(_), None) => panic!("exit codes begin with one: {text}"),
        }
    }
    codes
}

/// A text whose characters mean nothing to roff.
fn roff(text: &str) -> String {
    assert!(!text.starts_with(['.', '\'']), "a request: {text}");
    text.replace('\\', "\\e").replace('-', "\\-")
}

fn read(directory: &Path) -> Files {
    let mut files = Files::new();
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        files.insert(entry.file_name().into(), fs::read(entry.path()).unwrap());
    }
    files
}

/// What is checked in, after a blessing if there was one, is what is generated.
pub fn check(directory: &str, generated: &Files) {
    assert!(!generated.is_empty());
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    if std::env::var_os("HPS_BLESS").is_some() {
        fs::create_dir_all(&directory).unwrap();
        for name in read(&directory).keys() {
            fs::remove_file(directory.join(name)).unwrap();
        }
        for (name, content) in generated {
            fs::write(directory.join(name), content).unwrap();
        }
    }
    let there = read(&directory);
    let names = |files: &Files| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(
        names(&there),
        names(generated),
        "HPS_BLESS=1 writes them anew"
    );
    for (name, content) in generated {
        let same = there[name] == *content;
        let path = directory.join(name);
        assert!(same, "{}: HPS_BLESS=1 writes it anew", path.display());
    }
}
