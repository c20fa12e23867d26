//! Does the trainer's command line keep its promises? Runs the built example on small data.
//!
//! - The same digest for any cache, shards, threads, depth and I/O engine.
//! - The same digest and scores after `kill -9` at random moments and `--resume`.
//! - Every kind of bad input is told what is wrong and where.

#[path = "common/example.rs"]
mod example;
#[path = "ctr_cli/passes.rs"]
mod passes;
#[path = "common/seed.rs"]
#[expect(clippy::unwrap_used, reason = "test helpers fail the test")]
mod seed;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use example::example;
use serde_json::Value;

const ROWS: u64 = 2000;

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Criteo-layout text: slot 1 decides the label, slot 2 has thousands of ids.
fn text(rows: u64) -> Result<String> {
    let mut state = 5;
    let mut out = String::new();
    for _ in 0..rows {
        let bits = splitmix(&mut state);
        let (clicky, noise) = (bits % 7, bits >> 8 & 15);
        let label = u8::from(if clicky < 2 { noise > 2 } else { noise > 12 });
        write!(out, "{label}")?;
        for i in 0..13u64 {
            match splitmix(&mut state) % 5 {
                0 => out.push('\t'),
                x => write!(out, "\t{}", i * x * x)?,
            }
        }
        write!(out, "\t{clicky:08x}\t{:x}", bits >> 40 & 0xfff)?;
        for slot in 2..26 {
            match splitmix(&mut state) % (slot * slot) {
                0 => out.push('\t'),
                x => write!(out, "\t{x:X}")?,
            }
        }
        out.push('\n');
    }
    Ok(out)
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    Ok(std::fs::File::create(path)?.write_all(bytes)?)
}

struct Place {
    directory: tempfile::TempDir,
    data: PathBuf,
}

fn place() -> Result<Place> {
    let directory = tempfile::tempdir()?;
    let data = directory.path().join("data.tsv");
    write(&data, text(ROWS)?.as_bytes())?;
    Ok(Place { directory, data })
}

impl Place {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

fn command(flags: &[&str], paths: &[&Path]) -> Result<Command> {
    let mut command = Command::new(example("ctr")?);
    if !flags.contains(&"--dim") {
        command.args(["--dim", "4"]);
    }
    command.args(["--batch", "64"]).args(flags).args(paths);
    command.stdin(Stdio::null());
    Ok(command)
}

fn run(flags: &[&str], paths: &[&Path]) -> Result<Output> {
    Ok(command(flags, paths)?.output()?)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The summary of a run that must succeed.
fn summary(flags: &[&str], paths: &[&Path]) -> Result<Value> {
    let output = run(&[flags, &["--json", "--digest"]].concat(), paths)?;
    ensure!(output.status.success(), "{flags:?}: {}", stderr(&output));
    let text = String::from_utf8(output.stdout)?;
    let last = text.lines().last().context("some output")?;
    let value: Value = serde_json::from_str(last)?;
    ensure!(
        value["summary"] == Value::Bool(true),
        "the last line is the summary: {last}"
    );
    Ok(value)
}

/// What must not depend on how a run was made.
fn result(summary: &Value) -> Vec<String> {
    [
        "digest",
        "auc",
        "auc_tail",
        "logloss",
        "examples",
        "skipped_lines",
    ]
    .iter()
    .map(|name| format!("{name} {}", summary[*name]))
    .collect()
}

#[test]
fn results_do_not_depend_on_cache_shards_threads_depth_or_engine() -> Result<()> {
    let place = place()?;
    let data: &[&Path] = &[&place.data];
    let plain = summary(&[], data)?;
    let runs: [&[&str]; 7] = [
        &[
            "--shards",
            "1",
            "--threads",
            "1",
            "--depth",
            "0",
            "--io",
            "pread",
        ],
        &["--shards", "1", "--threads", "2", "--depth", "3"],
        &[
            "--shards",
            "4",
            "--threads",
            "1",
            "--depth",
            "1",
            "--io",
            "pread",
        ],
        &["--cache-mib", "2", "--depth", "0"],
        &["--cache-mib", "2", "--depth", "3", "--shards", "1"],
        &["--cache-mib", "64", "--shards", "7", "--depth", "3"],
        &["--checkpoint-every", "3"],
    ];
    for flags in runs {
        assert_eq!(result(&summary(flags, data)?), result(&plain), "{flags:?}");
    }
    assert_ne!(result(&summary(&["--seed", "9"], data)?), result(&plain));
    // The same with rows so wide that the small cache holds a fraction of the table.
    let wide = ["--dim", "128", "--shards", "2", "--cache-mib"];
    let with_cache = |mib: &'static str| summary(&[&wide[..], &[mib]].concat(), data);
    let (small, large) = (with_cache("2")?, with_cache("64")?);
    assert_eq!(result(&small), result(&large));
    assert!(
        small["hit_rate"].as_f64() < Some(0.99),
        "rows left memory: {small}"
    );
    assert!(
        large["hit_rate"].as_f64() > Some(0.99),
        "rows stayed: {large}"
    );
    Ok(())
}

#[test]
fn the_summary_has_every_field_and_the_model_learns() -> Result<()> {
    let place = place()?;
    let value = summary(&[], &[&place.data])?;
    let numbers = [
        "auc",
        "auc_tail",
        "logloss",
        "examples",
        "examples_per_s",
        "cache_bytes",
        "peak_rss_mib",
        "disk_bytes",
        "live_bytes",
        "skipped_lines",
    ];
    for name in numbers {
        assert!(value[name].is_number(), "{name} in {value}");
    }
    assert!(value["planted_auc"].is_null());
    assert!(value.get("hit_rate").is_some());
    assert_eq!(value["digest"].as_str().map(str::len), Some(32));
    assert_eq!(value["examples"], ROWS);
    assert!(value["auc_tail"].as_f64() > Some(0.7), "{value}");
    assert!(value["live_bytes"].as_u64() > Some(1000 * 40), "{value}");
    Ok(())
}

/// Batches between checkpoints of runs that are killed.
const EVERY: u64 = 2;

/// Where a run began: after this batch of a checkpoint, or at the beginning.
fn began_after(said: &str) -> Option<u64> {
    let (_, rest) = said.split_once("resuming after batch ")?;
    rest.split(' ').next()?.parse().ok()
}

/// Kills a run once it has printed so many batches, and a moment later; the batch where it began.
fn kill_after(
    flags: &[&str],
    place: &Place,
    data: &[&Path],
    batches: u64,
    wait: Duration,
) -> Result<Option<u64>> {
    let log = place.path("stderr");
    let mut child = command(&[flags, &["--json"]].concat(), data)?
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&log)?)
        .spawn()?;
    let output = BufReader::new(child.stdout.take().context("a pipe")?);
    let mut lines = output.lines();
    let mut seen = 0;
    while seen < batches {
        let line = lines.next().context("it ended before it was killed")??;
        let value: Value = serde_json::from_str(&line)?;
        seen += u64::from(value["batch"].is_number());
    }
    std::thread::sleep(wait);
    child.kill()?;
    let signal = child.wait()?.signal();
    let said = std::fs::read_to_string(log)?;
    ensure!(signal == Some(9), "it ended before it was killed: {said}");
    Ok(began_after(&said))
}

/// Kills are placed by what the run has printed, never by a clock alone: on a slow machine they would
/// all come before the first checkpoint, and no run would have to resume.
#[test]
fn runs_killed_before_and_after_checkpoints_resume_to_the_same_bits() -> Result<()> {
    let place = place()?;
    let wide = ["--dim", "128", "--cache-mib", "2"];
    let plain = summary(&wide, &[&place.data])?;
    let mut state = seed::fresh("ctr_cli");
    let (mut before, mut after) = (0u32, 0u32);
    for round in 0..3 {
        let directory = place.path(&format!("store-{round}"));
        let directory = directory.to_str().context("a path in UTF-8")?;
        let every = EVERY.to_string();
        let own = ["--dir", directory, "--resume", "--checkpoint-every", &every];
        let flags = [&own[..], &wide].concat();
        let mut last = None;
        let mut first = true;
        // Where a run begins tells where the kill before it came.
        let mut count = |began: Option<u64>| match began {
            _ if std::mem::take(&mut first) => {}
            None => before += 1,
            Some(_) => after += 1,
        };
        // The first kill comes before a batch is printed, the others after checkpoints.
        for batches in [0, 3 * EVERY, 3 * EVERY + splitmix(&mut state) % 6] {
            let wait = Duration::from_micros(splitmix(&mut state) % 3000);
            let began = kill_after(&flags, &place, &[&place.data], batches, wait)?;
            count(began);
            ensure!(
                began >= last,
                "round {round}: began after {began:?}, {last:?} was acknowledged"
            );
            // When batch n is printed, the checkpoint before the last one was waited for.
            last = (batches > 0).then(|| began.unwrap_or(0) + EVERY);
        }
        let output = run(
            &[&flags[..], &["--json", "--digest"]].concat(),
            &[&place.data],
        )?;
        let began = began_after(&stderr(&output));
        count(began);
        ensure!(
            began.is_some() && began >= last,
            "round {round}: resumed after {began:?}, {last:?} was acknowledged"
        );
        let text = String::from_utf8(output.stdout)?;
        let last = text.lines().last().context("some output")?;
        let resumed: Value = serde_json::from_str(last)?;
        assert_eq!(result(&resumed), result(&plain), "round {round}");
    }
    let seen = format!("{before} kills before a checkpoint, {after} after one");
    ensure!(before >= 2 && after >= 6, "{seen}");
    println!("{seen}, each of these resumed");
    Ok(())
}

#[test]
fn a_store_is_neither_overwritten_nor_resumed_with_other_arguments() -> Result<()> {
    let place = place()?;
    let directory = place.path("store");
    let directory = directory.to_str().context("a path in UTF-8")?;
    let output = run(&["--dir", directory, "--resume"], &[&place.data])?;
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("starting from the beginning"),
        "{}",
        stderr(&output)
    );

    let output = run(&["--dir", directory], &[&place.data])?;
    assert_eq!(output.status.code(), Some(16));
    assert!(stderr(&output).contains("--resume"), "{}", stderr(&output));

    let output = run(
        &["--dir", directory, "--resume", "--lr", "0.5"],
        &[&place.data],
    )?;
    assert_eq!(output.status.code(), Some(16));
    assert!(
        stderr(&output).contains("--lr was 0.05, now 0.5"),
        "{}",
        stderr(&output)
    );

    // A finished run resumes to its own end, whatever the speed flags are.
    let plain = summary(&[], &[&place.data])?;
    let again = summary(
        &["--dir", directory, "--resume", "--shards", "2"],
        &[&place.data],
    )?;
    assert_eq!(result(&again), result(&plain));

    Ok(())
}

/// Kills on a network file system once left WRITER behind, which the trainer took for a stranger's.
#[test]
fn a_creation_that_was_cut_short_is_begun_again() -> Result<()> {
    let place = place()?;
    let directory = place.path("store");
    let path = directory.to_str().context("a path in UTF-8")?;
    let own = ["--dir", path, "--resume"];
    let part = directory.join("part-0");
    std::fs::create_dir_all(&part)?;
    std::fs::write(part.join("PART"), "half of it")?;
    for left in ["LOCK", "WRITER", "WRITER.0123", "CURRENT", "STORE.tmp"] {
        std::fs::write(directory.join(left), "half of it")?;
    }
    let stranger = directory.join("notes.txt");
    std::fs::write(&stranger, "of somebody")?;
    let output = run(&own, &[&place.data])?;
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(16), "{said}");
    assert!(said.contains("notes.txt"), "{said}");
    assert!(directory.join("STORE.tmp").exists(), "nothing is removed");
    std::fs::remove_file(stranger)?;
    let plain = summary(&[], &[&place.data])?;
    assert_eq!(result(&summary(&own, &[&place.data])?), result(&plain));
    Ok(())
}
/// The path counted, and the content did not: who mounted the data elsewhere could not resume.
#[test]
fn data_is_known_by_its_content_wherever_it_is() -> Result<()> {
    let place = place()?;
    let directory = place.path("store");
    let directory = directory.to_str().context("a path in UTF-8")?;
    let own = ["--dir", directory, "--resume"];
    let first = summary(&own, &[&place.data])?;
    let moved = place.path("moved.txt");
    std::fs::rename(&place.data, &moved)?;
    assert_eq!(result(&summary(&own, &[&moved])?), result(&first));

    let whole = std::fs::read(&moved)?;
    ensure!(whole.len() > 200 << 10, "both ends and a middle");
    let refused = |code: i32, what: &str| -> Result<()> {
        let output = run(&own, &[&moved])?;
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(what), "{said}");
        Ok(())
    };
    // Shorter; another first line; another last one.
    write(&moved, text(ROWS - 100)?.as_bytes())?;
    refused(16, "DATA was ")?;
    for place in [0, whole.len() - 100] {
        let mut other = whole.clone();
        other[place] ^= 1;
        write(&moved, &other)?;
        refused(16, "DATA was ")?;
    }
    // What only the middle shows is seen where a line is none any more.
    let mut other = whole.clone();
    other[whole.len() / 2..][..300].fill(b'x');
    write(&moved, &other)?;
    refused(8, "not the data of that run")?;
    write(&moved, &whole)?;
    assert_eq!(result(&summary(&own, &[&moved])?), result(&first));
    Ok(())
}

#[test]
fn a_directory_with_other_files_is_left_alone() -> Result<()> {
    let place = place()?;
    let directory = place.path("mine");
    std::fs::create_dir(&directory)?;
    write(&directory.join("thesis.txt"), b"years of work")?;
    for flags in [&["--resume"][..], &[]] {
        let directory = directory.to_str().context("a path in UTF-8")?;
        let output = run(&[flags, &["--dir", directory]].concat(), &[&place.data])?;
        assert!(!output.status.success(), "{}", stderr(&output));
        assert!(stderr(&output).contains(directory), "{}", stderr(&output));
    }
    let left: Vec<_> = std::fs::read_dir(&directory)?.collect::<std::io::Result<_>>()?;
    assert_eq!(left.len(), 1);
    assert_eq!(
        std::fs::read_to_string(directory.join("thesis.txt"))?,
        "years of work"
    );
    Ok(())
}

fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

#[test]
fn what_is_no_data_is_told_what_is_wrong_and_where() -> Result<()> {
    let place = place()?;
    let good = text(50)?;
    let unlabelled: String = good
        .lines()
        .map(|line| format!("{}\n", line.get(2..).unwrap_or("")))
        .collect();
    let zipped = gzip(text(ROWS)?.as_bytes())?;
    let (whole, rest) = zipped.split_at(zipped.len() / 2);
    ensure!(!rest.is_empty());
    let cases: [(&str, &[u8], &str); 7] = [
        ("empty.tsv", b"", "empty.tsv: is empty"),
        ("blank.tsv", b"\n\n\n", "blank.tsv: holds no row"),
        (
            "binary.bin",
            b"\x7fELF\0\0\0\x01",
            "binary.bin: binary data",
        ),
        ("zipped.tsv.gz", whole, "truncated"),
        (
            "damaged.gz",
            b"\x1f\x8b\x08\0\0\0\0\0\0\x03not deflate at all",
            "damaged",
        ),
        (
            "test.txt",
            unlabelled.as_bytes(),
            "39 columns instead of 40",
        ),
        (
            "prose.txt",
            b"It was a dark\nand stormy night\n",
            "1 columns instead of 40",
        ),
    ];
    for (name, bytes, wanted) in cases {
        let path = place.path(name);
        write(&path, bytes)?;
        let output = run(&[], &[&path])?;
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(8), "{name}: {said}");
        assert!(
            said.contains(wanted) && said.contains(name),
            "{name}: {said}"
        );
    }
    for (path, wanted) in [
        (place.path(""), "is a directory"),
        (place.path("none"), "No such"),
    ] {
        let output = run(&[], &[&path])?;
        assert_eq!(output.status.code(), Some(8));
        assert!(stderr(&output).contains(wanted), "{}", stderr(&output));
    }
    Ok(())
}

#[test]
fn malformed_lines_are_counted_and_reported_or_stop_a_strict_run() -> Result<()> {
    let place = place()?;
    let mut lines: Vec<String> = text(200)?.lines().map(str::to_owned).collect();
    let clean = place.path("clean.tsv");
    write(&clean, (lines.join("\n") + "\n").as_bytes())?;
    let plain = summary(&[], &[&clean])?;
    for (at, line) in [
        (3, "2\tx"),
        (70, "0\t1\t2"),
        (71, "hello"),
        (150, "1"),
        (204, "0\tq"),
    ] {
        lines.insert(at, line.to_owned());
    }
    lines.insert(100, String::new());
    lines.push("the last".to_owned());
    let dirty = place.path("dirty.tsv");
    write(&dirty, (lines.join("\r\n") + "\r\n").as_bytes())?;

    let found = summary(&[], &[&dirty])?;
    assert_eq!(found["skipped_lines"], 6);
    assert_eq!(found["digest"], plain["digest"]);
    let said = stderr(&run(&[], &[&dirty])?);
    assert!(
        said.contains("dirty.tsv:4: 2 columns instead of 40"),
        "{said}"
    );
    assert_eq!(
        said.matches("dirty.tsv:").count(),
        5,
        "only the first five: {said}"
    );

    let output = run(&["--strict"], &[&dirty])?;
    assert_eq!(output.status.code(), Some(8));
    assert!(
        stderr(&output).contains("dirty.tsv:4:"),
        "{}",
        stderr(&output)
    );
    Ok(())
}

#[test]
fn files_gzip_members_and_stdin_give_the_same_rows() -> Result<()> {
    let place = place()?;
    let whole = text(300)?;
    let cut = whole.match_indices('\n').nth(120).map_or(0, |(i, _)| i + 1);
    let (first, second) = whole.split_at(cut);
    let paths = [
        place.path("whole"),
        place.path("first"),
        place.path("second"),
        place.path("gz"),
    ];
    let members = [gzip(first.as_bytes())?, gzip(second.as_bytes())?].concat();
    let contents = [
        whole.as_bytes(),
        first.as_bytes(),
        second.as_bytes(),
        &members,
    ];
    for (path, bytes) in paths.iter().zip(contents) {
        write(path, bytes)?;
    }
    let [all, first, second, zipped] = &paths;
    let plain = result(&summary(&[], &[all])?);
    assert_eq!(result(&summary(&[], &[first, second])?), plain);
    assert_eq!(result(&summary(&[], &[zipped])?), plain);

    let mut piped = command(&["--json", "--digest"], &[Path::new("-")])?;
    let output = piped.stdin(std::fs::File::open(zipped)?).output()?;
    ensure!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout)?;
    let last: Value = serde_json::from_str(text.lines().last().context("some output")?)?;
    assert_eq!(result(&last), plain);
    Ok(())
}

#[test]
fn wrong_arguments_end_with_16_and_say_what_to_change() -> Result<()> {
    let place = place()?;
    let cases: [(&[&str], &str); 6] = [
        (&["--shards", "0"], "--shards"),
        (&["--lr", "-1"], "--lr"),
        (&["--resume"], "--dir"),
        (&["--io", "tape"], "uring"),
        (&["--nonsense"], "--nonsense"),
        (
            &["--cache-mib", "1", "--batch", "2000", "--dim", "512"],
            "give --cache-mib",
        ),
    ];
    for (flags, wanted) in cases {
        let mut command = Command::new(example("ctr")?);
        let output = command.args(flags).arg(&place.data).output()?;
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(16), "{flags:?}: {said}");
        assert!(said.contains(wanted), "{flags:?}: {said}");
    }
    let help = Command::new(example("ctr")?).arg("--help").output()?;
    assert!(help.status.success());
    assert!(String::from_utf8_lossy(&help.stdout).contains("--checkpoint-every"));
    Ok(())
}
