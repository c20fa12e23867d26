//! Data for tests of `hps-keyset`, and the same work done by other means.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The tool, with `args`, in a folder.
pub fn keyset(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hps-keyset"));
    command.args(args).current_dir(folder).stdin(Stdio::null());
    command
}

/// Runs it; the exit code must be this one. What it wrote to stdout.
pub fn run(folder: &Path, args: &[&str], code: i32) -> String {
    let output = keyset(folder, args).output().unwrap();
    check_code(&output, args, code);
    String::from_utf8(output.stdout).unwrap()
}

pub fn check_code(output: &Output, args: &[&str], code: i32) {
    let error = String::from_utf8_lossy(&output.stderr);
    let found = output.status.code();
    assert_eq!(found, Some(code), "{args:?}: {error}");
}

/// A sequence that looks random.
pub struct Draw(pub u64);

impl Draw {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Lines of Criteo's text: few values come often, others once; some are missing, or short, or in
/// capitals.
pub fn criteo(rows: usize, seed: u64, has_label: bool) -> String {
    let mut draw = Draw(seed);
    let mut text = String::new();
    for _ in 0..rows {
        let mut columns = Vec::with_capacity(40);
        if has_label {
            columns.push(draw.below(2).to_string());
        }
        for _ in 0..13 {
            columns.push(match draw.below(8) {
                0 => String::new(),
                1 => format!("-{}", draw.below(3)),
                _ => draw.below(5000).to_string(),
            });
        }
        for _ in 0..26 {
            let value = match draw.below(4) {
                0 | 1 => draw.below(40),
                _ => draw.below(1 << 32),
            };
            columns.push(match draw.below(16) {
                0 => String::new(),
                1 => format!("{value:x}"),
                2 => format!("{value:08X}"),
                _ => format!("{value:08x}"),
            });
        }
        text += &columns.join("\t");
        text.push('\n');
    }
    text
}

/// Field and value of each categorical value of such lines.
pub fn values_of(text: &str) -> Vec<(u64, u64)> {
    let mut values = Vec::new();
    for line in text.lines() {
        let columns: Vec<&str> = line.split('\t').collect();
        let categorical = &columns[columns.len() - 26..];
        for (field, value) in (0..)
            .zip(categorical)
            .filter(|(_, value)| !value.is_empty())
        {
            values.push((field, u64::from_str_radix(value, 16).unwrap()));
        }
    }
    values
}

/// Sorted unique keys, by the program `sort`.
pub fn sort_u(keys: impl Iterator<Item = u64>) -> Vec<u64> {
    let text: String = keys.map(|key| format!("{key:016x}\n")).collect();
    let mut command = Command::new("sort");
    command.arg("-u").env("LC_ALL", "C");
    let mut running = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = running.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()).unwrap());
    let output = running.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success());
    let lines = String::from_utf8(output.stdout).unwrap();
    lines
        .lines()
        .map(|line| u64::from_str_radix(line, 16).unwrap())
        .collect()
}

/// Keys of a file of i64.
pub fn read_i64(path: &Path) -> Vec<u64> {
    let bytes = fs::read(path).unwrap();
    let (keys, rest) = bytes.as_chunks::<8>();
    assert!(rest.is_empty());
    keys.iter().map(|key| u64::from_le_bytes(*key)).collect()
}

/// Keys of a file of u32.
pub fn read_u32(path: &Path) -> Vec<u64> {
    let bytes = fs::read(path).unwrap();
    let (keys, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty());
    keys.iter()
        .map(|key| u32::from_le_bytes(*key).into())
        .collect()
}

/// Writes a file of i64.
pub fn write_i64(path: &Path, keys: &[u64]) {
    let bytes: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    fs::write(path, bytes).unwrap();
}

/// Names of all that is in a folder.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// What a script says is in files that it wrote: field and value.
pub fn expected(folder: &Path, files: &[impl AsRef<str>]) -> Vec<(u64, u64)> {
    let mut values = Vec::new();
    for file in files {
        let path = folder.join(format!("{}.expected", file.as_ref()));
        let text = fs::read_to_string(path).unwrap();
        values.extend(text.lines().map(|line| {
            let (field, value) = line.split_once(' ').unwrap();
            (field.parse::<u64>().unwrap(), value.parse::<u64>().unwrap())
        }));
    }
    values
}
