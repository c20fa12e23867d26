//! Does `hps-compact` give space back, keep every row and the last checkpoint, survive kills, and
//! end as documented?
#![expect(clippy::unwrap_used, reason = "test helpers fail the test")]

#[path = "../../tests/common/seed.rs"]
mod seed;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use hps::{
    CheckpointId, CreateOptions, RuntimeOptions, Store, TableDescriptor, TableId, Update, mix64,
};
use serde_json::Value;

const DIM: usize = 64;
/// Keys, and rows of a file.
const KEYS: u64 = 8000;
const FILE_ROWS: usize = 100;

fn tool(arguments: &[&str], directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hps-compact"));
    command
        .arg(arguments[0])
        .arg(directory)
        .args(&arguments[1..]);
    command
}

fn compact(arguments: &[&str], directory: &Path) -> Output {
    tool(arguments, directory).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs the tool, which must end with a code, and reads its JSON.
fn json(arguments: &[&str], directory: &Path, expected: i32) -> Value {
    let output = compact(&[arguments, &["--json"]].concat(), directory);
    assert_eq!(code(&output), expected, "{}", text(&output.stderr));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["v"], 1);
    assert_eq!(value["tool"], "hps-compact");
    assert_eq!(value["verb"], arguments[0]);
    value
}

fn options(retain: usize) -> RuntimeOptions {
    RuntimeOptions::new()
        .cache_bytes(16 << 20)
        .file_bytes(1 << 20)
        .space_bound(10.0)
        .retain_checkpoints(retain)
        .inline(true)
}

/// Sets rows, a file for each hundred.
fn write(store: &Store, keys: &[u64], value: f32) {
    for batch in keys.chunks(FILE_ROWS) {
        let mut out = vec![0.0; batch.len() * DIM];
        let lease = store.pull(TableId(0), batch, &mut out).unwrap();
        out.fill(value);
        store.push(&lease, Update::weights(&out)).unwrap();
        drop(lease);
        store.flush().unwrap();
    }
}

/// 8000 rows, of which two thirds and then one third were written again; a checkpoint after each,
/// of which `retain` are left. A third of the first files is live, half of the second.
fn worn(directory: &Path, retain: usize) {
    let store = Store::create(directory, CreateOptions::new(), options(retain)).unwrap();
    store
        .create_table(&TableDescriptor::new("ads", DIM))
        .unwrap();
    for step in 0..3u64 {
        let keys: Vec<u64> = (0..KEYS).filter(|k| k % 3 >= step).collect();
        write(&store, &keys, step as f32);
        let meta = [u8::try_from(step).unwrap(); 500];
        store.checkpoint(step + 1, &meta).unwrap();
    }
    store.close().unwrap();
}

/// What a trainer finds, and the digest of all rows; the store must be whole.
#[derive(Debug, PartialEq)]
struct Found {
    id: CheckpointId,
    step: u64,
    meta: Vec<u8>,
    digest: String,
}

fn found(directory: &Path) -> Found {
    let fsck = Command::new(env!("CARGO_BIN_EXE_hps-fsck"))
        .args(["--json", "--digest"])
        .arg(directory)
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&fsck.stdout).unwrap();
    assert_eq!(code(&fsck), 0, "{report}");
    let store = Store::open_read_only(directory, None, options(1)).unwrap();
    let last = store.last_checkpoint().unwrap();
    Found {
        id: last.id,
        step: last.step,
        meta: store.checkpoint_meta(last.id).unwrap(),
        digest: report["digest"].as_str().unwrap().to_owned(),
    }
}

/// Every file below a directory.
fn content(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.append(&mut content(&path)),
            false => drop(files.insert(path.clone(), std::fs::read(&path).unwrap())),
        }
    }
    files
}

/// Bytes of the row files of a directory.
fn row_bytes(directory: &Path) -> u64 {
    let files = content(directory).into_iter();
    let rows = files.filter(|(path, _)| path.extension().is_some_and(|e| e == "rows"));
    rows.map(|(_, bytes)| bytes.len() as u64).sum()
}

#[test]
fn plans_and_dry_runs_say_what_would_be_done_and_write_nothing() {
    let dir = tempfile::tempdir().unwrap();
    worn(dir.path(), 2);
    let before = content(dir.path());
    let plan = json(&["plan"], dir.path(), 0);
    let files = plan["files"].as_array().unwrap();
    let chosen = files.iter().filter(|f| f["chosen"] == true);
    assert_eq!(plan["chosen_files"], chosen.clone().count());
    let mut pinned = 0;
    for file in chosen {
        assert!(file["live_percent"].as_f64().unwrap() <= 50.1, "{file}");
        // What an older checkpoint needs stays, beside its live rows in another file.
        let shared = file["checkpoints"].as_array().unwrap().len() == 2;
        assert_eq!(file["gain_now"].as_i64().unwrap() < 0, shared, "{file}");
        pinned += u64::from(shared);
        assert!(file["gain_later"].as_i64().unwrap() > 0, "{file}");
        assert!(file["age_seconds"].as_u64().unwrap() < 600, "{file}");
    }
    assert!(pinned > 0, "{plan}");
    let youngest = files.last().unwrap();
    assert_eq!(
        (&youngest["live_percent"], &youngest["chosen"]),
        (&100.0.into(), &false.into())
    );
    let strict = json(&["plan", "--threshold", "0.6"], dir.path(), 0);
    assert!(strict["chosen_files"].as_u64() < plan["chosen_files"].as_u64());
    let little = json(&["plan", "--max-bytes", "1kB"], dir.path(), 0);
    assert_eq!(little["chosen_files"], 1, "at least one");
    let shown = compact(&["plan"], dir.path());
    assert_eq!(code(&shown), 0);
    for part in [
        "held by",
        "yes",
        "would be rewritten",
        "checkpoint 3 of step 3",
    ] {
        assert!(
            text(&shown.stdout).contains(part),
            "{part}: {}",
            text(&shown.stdout)
        );
    }
    let run = json(
        &["run", "--dry-run", "--keep-checkpoints", "1"],
        dir.path(),
        0,
    );
    assert_eq!(run["dropped"], serde_json::json!([2]));
    assert!(
        run["gain_now"].as_i64().unwrap() > 0,
        "no older checkpoint is left"
    );
    let gc = json(&["gc", "--dry-run", "--checkpoint", "2"], dir.path(), 0);
    assert_eq!(gc["dropped"], serde_json::json!([2]));
    assert!(content(dir.path()) == before, "something was written");
}

#[test]
fn a_run_gives_space_back_and_changes_no_row() {
    let dir = tempfile::tempdir().unwrap();
    worn(dir.path(), 2);
    let (before, bytes) = (found(dir.path()), row_bytes(dir.path()));
    let plan = json(
        &["run", "--dry-run", "--keep-checkpoints", "1"],
        dir.path(),
        0,
    );
    let run = json(&["run", "--keep-checkpoints", "1"], dir.path(), 0);
    assert_eq!(run["dropped"], serde_json::json!([2]));
    assert_eq!(run["files"], plan["chosen_files"]);
    assert_eq!(
        (&run["durable"], &run["cancelled"]),
        (&true.into(), &false.into())
    );
    assert_eq!(found(dir.path()), before);
    let left = row_bytes(dir.path());
    assert_eq!(run["disk_bytes_after"], left);
    assert!(left * 10 < bytes * 6, "{bytes} bytes before, {left} now");
    let gained = plan["gain_now"].as_u64().unwrap() + plan["freed_bytes"].as_u64().unwrap();
    assert!(
        (bytes - left).abs_diff(gained) * 10 < gained,
        "as planned, by a tenth: {gained}"
    );
    let again = compact(&["run"], dir.path());
    assert_eq!(code(&again), 0);
    assert!(
        text(&again.stdout).contains("nothing to do"),
        "{}",
        text(&again.stdout)
    );
    // The trainer goes on.
    let store = Store::open(dir.path(), options(2)).unwrap();
    write(&store, &[1, 2, 3], 9.0);
    store.checkpoint(4, b"next").unwrap();
    store.close().unwrap();
    assert_eq!(found(dir.path()).step, 4);
}

#[test]
fn a_run_stops_at_its_byte_limit_and_the_next_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    worn(dir.path(), 1);
    let before = found(dir.path());
    let mut left = u64::MAX;
    for round in 0.. {
        let run = json(&["run", "--max-bytes", "2MB"], dir.path(), 0);
        assert!(run["bytes_read"].as_u64().unwrap() < 2_500_000, "{run}");
        assert!(run["files_left"].as_u64().unwrap() < left, "{run}");
        left = run["files_left"].as_u64().unwrap();
        assert_eq!(found(dir.path()), before);
        if left == 0 {
            assert!(round > 1, "one run did it all");
            break;
        }
    }
}

#[test]
fn old_checkpoints_are_dropped_by_number_and_by_name() {
    let dir = tempfile::tempdir().unwrap();
    worn(dir.path(), 3);
    // Then the older checkpoints alone need the old files.
    json(&["run"], dir.path(), 0);
    let (before, bytes) = (found(dir.path()), row_bytes(dir.path()));
    let planned = json(&["gc", "--dry-run", "--checkpoint", "1"], dir.path(), 0);
    let first = json(&["gc", "--checkpoint", "1"], dir.path(), 0);
    assert_eq!(first["dropped"], serde_json::json!([1]));
    assert_eq!(first["freed_bytes"], planned["freed_bytes"]);
    let reader = Store::open_read_only(dir.path(), Some(CheckpointId(2)), options(1)).unwrap();
    let held = compact(&["gc", "--keep-checkpoints", "1"], dir.path());
    assert_eq!(code(&held), 0);
    assert!(
        text(&held.stdout).contains("kept checkpoint 2: a reader"),
        "{}",
        text(&held.stdout)
    );
    reader.close().unwrap();
    let second = json(&["gc", "--keep-checkpoints", "1"], dir.path(), 0);
    assert_eq!(
        (&second["dropped"], &second["held"]),
        (&serde_json::json!([2]), &serde_json::json!([]))
    );
    let freed = [&first, &second].map(|r| r["freed_bytes"].as_u64().unwrap());
    assert!(freed[1] > 0);
    assert_eq!(row_bytes(dir.path()), bytes - freed[0] - freed[1]);
    assert_eq!(found(dir.path()), before);
    let nothing = json(&["gc", "--keep-checkpoints", "1"], dir.path(), 0);
    assert_eq!(nothing["dropped"], serde_json::json!([]));
}

#[test]
fn what_can_not_be_done_has_its_own_exit_codes() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    worn(&store, 2);
    let before = found(&store);
    for arguments in [
        &["gc"][..],
        &["gc", "--keep-checkpoints", "0"],
        &["gc", "--checkpoint", "9"],
        &["gc", "--checkpoint", "3"],
        &["gc", "--dry-run", "--checkpoint", "3"],
        &["gc", "--checkpoint", "2", "--keep-checkpoints", "1"],
        &["run", "--threshold", "1.5"],
        &["run", "--io-limit", "0"],
        &["run", "--max-bytes", "12 parsecs"],
        &["shrink"],
    ] {
        let output = compact(arguments, &store);
        assert_eq!(code(&output), 16, "{arguments:?}: {}", text(&output.stderr));
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
    let help = Command::new(env!("CARGO_BIN_EXE_hps-compact"))
        .arg("--help")
        .output()
        .unwrap();
    assert_eq!(code(&help), 0);
    for part in [
        "plan",
        "run",
        "gc",
        "Exit codes",
        "32 stopped",
        "16 wrong",
        "Locked",
    ] {
        assert!(text(&help.stdout).contains(part), "{part}");
    }
    for verb in [
        &["plan"][..],
        &["run"],
        &["run", "--dry-run"],
        &["gc", "--keep-checkpoints", "1"],
    ] {
        assert_eq!(
            code(&compact(verb, &dir.path().join("nowhere"))),
            8,
            "{verb:?}"
        );
    }
    assert_eq!(found(&store), before);
    let reader = Store::open_read_only(&store, Some(CheckpointId(2)), options(1)).unwrap();
    assert_eq!(reader.checkpoints().len(), 2, "none is dropped");
    drop(reader);
    let empty = dir.path().join("empty");
    Store::create(&empty, CreateOptions::new(), options(1))
        .unwrap()
        .close()
        .unwrap();
    for verb in [
        &["plan"][..],
        &["run"],
        &["run", "--dry-run"],
        &["gc", "--keep-checkpoints", "1"],
    ] {
        let output = compact(verb, &empty);
        assert_eq!(code(&output), 0, "{verb:?}: {}", text(&output.stderr));
        assert!(text(&output.stdout).contains("nothing to do"), "{verb:?}");
    }
}

#[test]
fn a_store_that_is_open_elsewhere_is_planned_and_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    worn(dir.path(), 2);
    let trainer = Store::open(dir.path(), options(2)).unwrap();
    let before = content(dir.path());
    for verb in [&["run"][..], &["gc", "--keep-checkpoints", "1"]] {
        let output = compact(verb, dir.path());
        assert_eq!(code(&output), 8);
        assert!(
            text(&output.stderr).contains("Locked"),
            "{}",
            text(&output.stderr)
        );
    }
    assert!(
        json(&["plan"], dir.path(), 0)["chosen_files"]
            .as_u64()
            .unwrap()
            > 0
    );
    assert!(content(dir.path()) == before, "something was written");
    trainer.close().unwrap();
    // A reader of the last checkpoint keeps its files, too.
    let reader = Store::open_read_only(dir.path(), None, options(1)).unwrap();
    let output = compact(&["run"], dir.path());
    assert_eq!(code(&output), 8);
    let error = text(&output.stderr);
    assert!(
        error.contains("Locked") && error.contains("reader"),
        "{error}"
    );
    reader.close().unwrap();
    assert_eq!(code(&compact(&["run"], dir.path())), 0);
    // Where there is nothing to do, nobody is in the way.
    let reader = Store::open_read_only(dir.path(), None, options(1)).unwrap();
    assert_eq!(code(&compact(&["run"], dir.path())), 0);
    reader.close().unwrap();
}

#[test]
fn a_damaged_file_is_named_and_the_others_are_compacted() {
    let dir = tempfile::tempdir().unwrap();
    worn(dir.path(), 1);
    let before = found(dir.path());
    let plan = json(&["plan"], dir.path(), 0);
    let chosen = plan["chosen_files"].as_u64().unwrap();
    let files = plan["files"].as_array().unwrap();
    let bad = files.iter().find(|f| f["chosen"] == true).unwrap();
    let bad = bad["path"].as_str().unwrap();
    let change = || {
        let mut bytes = std::fs::read(bad).unwrap();
        // A row in the first block of records, whichever is live.
        for record in bytes[4096..4096 + 3 * 528].chunks_mut(528) {
            record[100] ^= 1;
        }
        std::fs::write(bad, bytes).unwrap();
    };
    change();
    let output = compact(&["run"], dir.path());
    assert_eq!(code(&output), 4, "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(shown.contains(bad) && shown.contains("damage"), "{shown}");
    let again = json(&["run"], dir.path(), 4);
    assert_eq!(again["damaged"][0]["path"], bad, "{again}");
    assert_eq!(again["files"], 0, "the others are done");
    change();
    let last = json(&["run"], dir.path(), 0);
    assert_eq!(
        last["files"], 1,
        "of {chosen} only the damaged one was left"
    );
    assert_eq!(found(dir.path()), before);
}

/// Starts a run that takes its time.
fn slow(directory: &Path) -> Child {
    tool(
        &["run", "--io-limit", "300kB/s", "--progress", "never"],
        directory,
    )
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap()
}

/// Parameter files of a store with one data directory.
fn rows(directory: &Path) -> BTreeSet<PathBuf> {
    let entries = std::fs::read_dir(directory.join("part-0")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|e| e == "rows"))
        .collect()
}

/// Names of manifests in a directory.
fn manifests(directory: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(directory)
        .unwrap()
        .map(|e| e.unwrap().path());
    paths
        .filter(|p| p.extension().is_some_and(|e| e == "manifest"))
        .collect()
}

#[test]
fn a_killed_run_loses_nothing_and_the_next_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    worn(dir.path(), 1);
    let (before, bytes) = (found(dir.path()), row_bytes(dir.path()));
    let chosen = || {
        json(&["plan"], dir.path(), 0)["chosen_files"]
            .as_u64()
            .unwrap()
    };
    let (first, mut killed, mut progress) = (chosen(), 0, 0);
    let mut left = first;
    let seed = seed::fresh("compact_cli");
    for round in 0..12u64 {
        let random = mix64(seed << 8 | round) % 1000;
        let pause = if round % 2 == 0 { random } else { random / 4 };
        let manifest = manifests(dir.path());
        let mut run = slow(dir.path());
        // Every other one lives until it has made something durable, with a new manifest.
        while round % 2 == 1 && run.try_wait().unwrap().is_none() {
            if manifests(dir.path()).iter().any(|m| !manifest.contains(m)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(pause));
        killed += u64::from(run.try_wait().unwrap().is_none());
        run.kill().unwrap();
        run.wait().unwrap();
        assert_eq!(
            found(dir.path()),
            before,
            "round {round}, after {pause} ms, seed {seed}"
        );
        let now = chosen();
        assert!(
            now <= left,
            "round {round}: {now} files to do, {left} before"
        );
        progress += u64::from(now < left);
        left = now;
    }
    println!("{killed} of 12 killed at work, {progress} left progress, {left} of {first} to do");
    assert!(
        killed >= 9 && progress >= 1 && left > 0,
        "{killed} killed, {progress}, {left}"
    );
    let last = json(&["run"], dir.path(), 0);
    assert_eq!(
        (&last["files"], &last["files_left"]),
        (&left.into(), &0.into())
    );
    assert_eq!(found(dir.path()), before);
    assert!(row_bytes(dir.path()) * 10 < bytes * 7);
}

#[test]
fn ctrl_c_ends_after_the_group_at_hand_and_keeps_what_was_done() {
    let dir = tempfile::tempdir().unwrap();
    worn(dir.path(), 1);
    let (before, there) = (found(dir.path()), rows(dir.path()));
    let run = slow(dir.path());
    // Until a group is being rewritten, however long the tool takes to begin.
    while rows(dir.path()).is_subset(&there) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let since = Instant::now();
    let kill = format!("kill -INT {}", run.id());
    assert!(
        Command::new("sh")
            .args(["-c", &kill])
            .status()
            .unwrap()
            .success()
    );
    let output = run.wait_with_output().unwrap();
    assert_eq!(code(&output), 32, "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(
        shown.contains("stopped") && shown.contains("rewritten"),
        "{shown}"
    );
    println!("ended {} ms after Ctrl-C", since.elapsed().as_millis());
    let fsck = Command::new(env!("CARGO_BIN_EXE_hps-fsck"))
        .arg(dir.path())
        .output()
        .unwrap();
    assert!(
        !text(&fsck.stdout).contains("leftover"),
        "{}",
        text(&fsck.stdout)
    );
    assert_eq!(found(dir.path()), before);
    assert_eq!(json(&["run"], dir.path(), 0)["files_left"], 0);
}
