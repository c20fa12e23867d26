//! What do people and scripts see of the tools: help, reports, errors?
//!
//! - Each case is a file in `snapshots/`; `support/cases.rs` says what stands there.
//! - `HPS_BLESS=1 cargo test -p hps-tools --test snapshots` writes them anew: look at the diff.
#![expect(clippy::unwrap_used, reason = "test helpers fail the test")]

#[path = "support/cases.rs"]
mod cases;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use cases::{Cases, check_names, command, files};
use hps::{CreateOptions, RuntimeOptions, Store, TableDescriptor, TableId, Update};

const FSCK: &str = env!("CARGO_BIN_EXE_hps-fsck");
const COMPACT: &str = env!("CARGO_BIN_EXE_hps-compact");
const EXPORT: &str = env!("CARGO_BIN_EXE_hps-export");
const IMPORT: &str = env!("CARGO_BIN_EXE_hps-import");
const DIM: usize = 4;

fn set(store: &Store, table: TableId, keys: &[u64], value: f32) {
    let mut out = vec![0.0; keys.len() * DIM];
    let lease = store.pull(table, keys, &mut out).unwrap();
    out.fill(value);
    store.push(&lease, Update::weights(&out)).unwrap();
}

/// Room for every row, one shard and one thread: nothing is written but by checkpoints, and the
/// same calls make the same files.
fn options() -> RuntimeOptions {
    RuntimeOptions::new()
        .cache_bytes(64 << 20)
        .shards(1)
        .threads(1)
        .retain_checkpoints(2)
}

/// Two tables, two checkpoints, removed keys and an index snapshot. `last`: a value of the second.
fn sample(directory: &Path, last: f32) {
    let store = Store::create(directory, CreateOptions::new(), options()).unwrap();
    let ads = TableDescriptor::new("ads", DIM);
    let ads = store.create_table(&ads).unwrap();
    let users = TableDescriptor::new("users", DIM);
    let users = store.create_table(&users).unwrap();
    let keys: Vec<u64> = (0..6000).collect();
    for batch in keys.chunks(1000) {
        set(&store, ads, batch, 1.0);
    }
    set(&store, users, &[1, 2, 3], 0.25);
    store.checkpoint(1, b"first").unwrap();
    // The index snapshot is made in the background: it has its number before the next file asks for one.
    store.close().unwrap();
    let store = Store::open(directory, options()).unwrap();
    set(&store, ads, &keys[5000..], last);
    store.remove(ads, &[1, 2, 3]).unwrap();
    store.checkpoint(2, b"second").unwrap();
    store.close().unwrap();
}

fn of_kind(directory: &Path, suffix: &str) -> PathBuf {
    let named = |p: &PathBuf| p.to_string_lossy().ends_with(suffix);
    files(directory).into_iter().find(named).unwrap()
}

/// Runs `work` with one byte of a file changed.
fn with_damage<T>(path: &Path, offset: usize, work: impl FnOnce() -> T) -> T {
    let whole = fs::read(path).unwrap();
    let mut bytes = whole.clone();
    bytes[offset] ^= 0x20;
    fs::write(path, &bytes).unwrap();
    let result = work();
    fs::write(path, &whole).unwrap();
    result
}

impl Cases {
    fn fsck(&mut self, name: &str, args: &[&str]) {
        self.run(name, &mut command(FSCK), "hps-fsck", args);
    }
}

#[test]
fn help_and_versions_read_as_they_did() {
    let dir = tempfile::tempdir().unwrap();
    let mut cases = Cases::new(dir.path());
    cases.run_help("hps-fsck", FSCK);
    cases.run_help("hps-compact", COMPACT);
    cases.run_help("hps-export", EXPORT);
    cases.run_help("hps-import", IMPORT);
    cases.end();
}

#[test]
fn reports_of_a_whole_store_read_as_they_did() {
    let dir = tempfile::tempdir().unwrap();
    let mut cases = Cases::new(dir.path());
    sample(&dir.path().join("s"), 2.0);
    cases.fsck("whole", &["s"]);
    cases.fsck("whole-json", &["s", "--json"]);
    cases.fsck("whole-quick", &["s", "--quick"]);
    cases.fsck("whole-norms", &["s", "--norms"]);
    cases.fsck("whole-digest", &["s", "--digest"]);
    cases.fsck("whole-verbose", &["s", "-v"]);
    cases.fsck("whole-quiet", &["s", "-q"]);
    cases.fsck("whole-colours", &["s", "--color", "always"]);
    cases.fsck("whole-first", &["s", "--checkpoint", "1"]);
    sample(&dir.path().join("t"), 3.5);
    cases.fsck("diff-same", &["s", "--diff", "s"]);
    cases.fsck("diff-other", &["s", "--diff", "t"]);
    cases.fsck("diff-json", &["s", "--diff", "t", "--json", "--quick"]);
    let store = Store::open(&dir.path().join("s"), options()).unwrap();
    cases.fsck("live", &["s"]);
    store.close().unwrap();
    Store::create(&dir.path().join("new"), CreateOptions::new(), options())
        .unwrap()
        .close()
        .unwrap();
    cases.fsck("new", &["new"]);
    cases.fsck("new-digest", &["new", "--digest"]);
    cases.fsck("diff-new", &["s", "--diff", "new"]);
    cases.end();
}

#[test]
fn what_compaction_says_reads_as_it_did() {
    let dir = tempfile::tempdir().unwrap();
    let mut cases = Cases::new(dir.path());
    let mut compact = |name: &str, args: &[&str]| {
        cases.run(name, &mut command(COMPACT), "hps-compact", args);
    };
    compact("compact-plan-help", &["plan", "--help"]);
    compact("compact-run-help", &["run", "--help"]);
    compact("compact-gc-help", &["gc", "--help"]);
    let root = dir.path().join("s");
    sample(&root, 2.0);
    compact(
        "compact-run-dry",
        &["run", "s", "--dry-run", "--threshold", "0.1"],
    );
    // Of a store that does not open no ages are shown, which differ.
    with_damage(&of_kind(&root, ".rows"), 100, || {
        compact("compact-plan-check", &["plan", "s", "--check"]);
    });
    compact("compact-gc-last", &["gc", "s", "--checkpoint", "2"]);
    compact(
        "compact-gc-dry",
        &["gc", "s", "--keep-checkpoints", "1", "--dry-run"],
    );
    let store = Store::open(&root, options()).unwrap();
    compact("compact-locked", &["run", "s", "--json"]);
    store.close().unwrap();
    compact("compact-gc", &["gc", "s", "--keep-checkpoints", "1"]);
    compact("compact-run", &["run", "s", "--threshold", "0.1"]);
    compact(
        "compact-run-again-json",
        &["run", "s", "--threshold", "0.1", "--json"],
    );
    compact("compact-no-verb", &["s"]);
    compact("compact-bad-size", &["run", "s", "--max-bytes", "many"]);
    compact("compact-nowhere", &["plan", "nowhere"]);
    cases.end();
}

/// The list of keys, and where the damaged store is.
#[test]
fn repairs_read_as_they_did() {
    let dir = tempfile::tempdir().unwrap();
    let mut cases = Cases::new(dir.path());
    let store = dir.path().join("s");
    sample(&store, 2.0);
    let change = |suffix: &str, offset: usize| {
        let path = of_kind(&store, suffix);
        let mut bytes = fs::read(&path).unwrap();
        bytes[offset] ^= 1;
        fs::write(&path, bytes).unwrap();
    };
    cases.fsck("repair-whole", &["s", "--repair"]);
    change(".rows", 5000);
    cases.fsck("repair-rows", &["s", "--repair"]);
    change("CURRENT", 100);
    cases.fsck("repair-current-json", &["s", "--repair", "--json"]);
    cases.fsck("repair-usage", &["s", "--force"]);
    cases.end();
}

#[test]
fn reports_of_damage_read_as_they_did() {
    let dir = tempfile::tempdir().unwrap();
    let mut cases = Cases::new(dir.path());
    let store = dir.path().join("s");
    sample(&store, 2.0);
    for (suffix, offset) in [
        ("CURRENT", 100),
        ("STORE", 3000),
        (".manifest", 70),
        (".copy", 70),
        (".meta", 130),
        (".rows", 5000),
        (".snapshot", 9000),
    ] {
        let name = format!("damaged-{}", suffix.trim_start_matches('.').to_lowercase());
        let path = of_kind(&store, suffix);
        with_damage(&path, offset, || {
            cases.fsck(&name, &["s"]);
            cases.fsck(&format!("{name}-json"), &["s", "--json"]);
        });
    }
    let rows = of_kind(&store, ".rows");
    with_damage(&rows, 5000, || {
        cases.fsck("damaged-colours", &["s", "--color=always"]);
        cases.fsck("damaged-quiet", &["s", "-q"]);
        cases.fsck("damaged-digest", &["s", "--digest", "--diff", "s"]);
    });
    let away = dir.path().join("away");
    fs::rename(&rows, &away).unwrap();
    cases.fsck("missing-rows", &["s"]);
    fs::rename(&away, &rows).unwrap();
    let other = dir.path().join("t");
    sample(&other, 2.0);
    with_damage(&of_kind(&other, "CURRENT"), 100, || {
        cases.fsck("diff-damaged", &["s", "--diff", "t"]);
    });
    for number in 9001..9009 {
        fs::copy(&rows, rows.with_file_name(format!("{number:012}.rows"))).unwrap();
    }
    cases.fsck("leftovers", &["s"]);
    cases.fsck("leftovers-verbose", &["s", "-v", "--quick"]);
    cases.end();
}

#[test]
fn errors_name_the_thing_and_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let mut cases = Cases::new(dir.path());
    sample(&dir.path().join("s"), 2.0);
    cases.fsck("error-nowhere", &["nowhere"]);
    cases.fsck("error-nowhere-json", &["nowhere", "--json"]);
    fs::create_dir(dir.path().join("empty")).unwrap();
    cases.fsck("error-empty", &["empty"]);
    fs::create_dir(dir.path().join("photos")).unwrap();
    fs::write(dir.path().join("photos/cat.jpg"), "meow").unwrap();
    cases.fsck("error-photos", &["photos"]);
    cases.fsck("error-file", &["photos/cat.jpg"]);
    cases.fsck("error-part", &["s/part-0"]);
    cases.fsck("error-name", &["a\u{1b}[31mb\nc"]);
    cases.fsck("error-checkpoint", &["s", "--checkpoint", "9"]);
    cases.fsck("error-other", &["s", "--diff", "nowhere"]);
    cases.fsck("error-other-json", &["s", "--diff", "nowhere", "--json"]);
    cases.fsck("error-none", &[]);
    cases.fsck("error-flag", &["--nonsense", "s"]);
    cases.fsck("error-flag-json", &["--nonsense", "s", "--json"]);
    cases.fsck("error-flags", &["--quick", "--digest", "s"]);
    cases.fsck("error-quiet", &["-q", "nowhere"]);
    cases.fsck("error-quiet-json", &["-q", "--json", "s"]);
    fs::write(dir.path().join("s/STORE"), "").unwrap();
    cases.fsck("error-store-empty", &["s"]);
    cases.end();
}

/// Root may read everything: as somebody else, with a copy of the tool that anybody can run.
#[test]
fn a_store_without_rights_says_whose_it_is_to_read() {
    const NOBODY: u32 = 65534;
    let dir = tempfile::tempdir().unwrap();
    let open = |path: &Path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode));
    let mut cases = Cases::new(dir.path());
    let tool = dir.path().join("tool");
    fs::copy(FSCK, &tool).unwrap();
    open(&tool, 0o755).unwrap();
    open(dir.path(), 0o755).unwrap();
    let store = dir.path().join("s");
    sample(&store, 2.0);
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    let as_other = || {
        let mut command = command(tool.to_str().unwrap());
        if is_root {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    };
    open(&store, 0o000).unwrap();
    cases.run("denied", &mut as_other(), "hps-fsck", &["s"]);
    cases.run("denied-json", &mut as_other(), "hps-fsck", &["s", "--json"]);
    open(&store, 0o755).unwrap();
    open(&store.join("CURRENT"), 0o000).unwrap();
    open(&store.join("STORE"), 0o644).unwrap();
    cases.run("denied-current", &mut as_other(), "hps-fsck", &["s"]);
    open(&store, 0o700).unwrap();
    cases.end();
}

/// `serde_json` refuses such a path: the tool ended with a panic.
#[test]
fn a_directory_whose_name_is_no_text_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let name = OsStr::from_bytes(b"s\xff");
    let store = dir.path().join(name);
    sample(&store, 2.0);
    let look = |flag: &str| {
        let output = command(FSCK).arg(flag).arg(&store).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), output.stdout, errors)
    };
    with_damage(&of_kind(&store, ".meta"), 130, || {
        for flag in ["--json", "--verbose"] {
            let (code, out, errors) = look(flag);
            assert_eq!(code, Some(4), "{errors}");
            let out = String::from_utf8(out).unwrap();
            assert!(out.contains("s\u{fffd}/part-0/"), "{out}");
        }
    });
}

#[test]
fn every_snapshot_has_its_case() {
    let kinds = [
        "current", "store", "manifest", "copy", "meta", "rows", "snapshot",
    ];
    let tools = ["hps-fsck", "hps-compact", "hps-export", "hps-import"];
    check_names(&tools, |name| {
        let damaged = name.strip_prefix("damaged-");
        let damaged = damaged.map(|kind| kind.trim_end_matches("-json"));
        damaged.is_some_and(|kind| kinds.contains(&kind))
    });
}
