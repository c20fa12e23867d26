//! Is the store at its last checkpoint, and no folder half written, when a tool is stopped?
#![expect(clippy::unwrap_used, reason = "test helpers fail the test")]

#[path = "support/models.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod models;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use hps::Optimizer;
use models::*;

const DIM: usize = 6;

/// Stops a tool once `is_at_work` by a signal: its exit code, `None` for a kill.
fn stopped(
    program: &str,
    flags: &str,
    store: &Path,
    folder: &Path,
    signal: &str,
    is_at_work: impl Fn() -> bool,
) -> Option<i32> {
    let mut command = Command::new(program);
    command
        .args(flags.split_whitespace())
        .args(["--table", TABLE]);
    command.arg(store).arg(folder).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    while !is_at_work() {
        assert!(child.try_wait().unwrap().is_none(), "it ended too soon");
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut kill = Command::new("kill");
    let kill = kill.arg(signal).arg(child.id().to_string());
    assert!(kill.status().unwrap().success());
    child.wait().unwrap().code()
}

/// How many parameter files a store has.
fn row_files(store: &Path) -> usize {
    let part = fs::read_dir(store.join("part-0"));
    let part = part.into_iter().flatten().flatten();
    part.filter(|entry| entry.path().extension().is_some_and(|e| e == "rows"))
        .count()
}

/// Whether a file has its first bytes.
fn is_begun(path: &Path) -> bool {
    path.metadata().is_ok_and(|data| data.len() > 0)
}

#[test]
fn an_import_that_is_stopped_leaves_the_store_at_its_last_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let [store, model] = ["s", "m"].map(|name| dir.path().join(name));
    sample(&store, &table(Optimizer::Adagrad, DIM), &keys(20));
    fs::create_dir(&model).unwrap();
    let before = digest(&store);
    // 38 MB of rows of 48 bytes, through a cache of 4 MiB.
    let rows = 800_000;
    let order: Vec<u64> = (0..rows as u64).map(|i| i << 7).collect();
    write_u64s(&model.join("key"), &order);
    for name in ["emb_vector", "AdaGrad.accm"] {
        write_f32s(&model.join(name), &vec![0.5; rows * DIM]);
    }
    let flags = "--format hugectr --cache 4MiB --progress never";
    for (signal, code) in [("-INT", Some(32)), ("-KILL", None), ("-TERM", Some(32))] {
        let first = row_files(&store);
        let is_at_work = || row_files(&store) > first + 1;
        let ended = stopped(IMPORT, flags, &store, &model, signal, is_at_work);
        assert_eq!(ended, code, "{signal}");
        assert_eq!(digest(&store), before, "{signal}");
    }
    let told = json(IMPORT, flags, &store, &model, 0);
    assert_eq!(told["rows"], rows as u64);
    // And out again, stopped: nothing is left but after a kill, whose rest is named.
    let out = dir.path().join("out");
    let partial = dir.path().join(".out.partial");
    let is_written = || is_begun(&partial.join("key"));
    let flags = "--format hugectr --threads 1";
    let ended = stopped(EXPORT, flags, &store, &out, "-INT", is_written);
    assert_eq!(ended, Some(32));
    assert!(!out.exists() && !partial.exists());
    let ended = stopped(EXPORT, flags, &store, &out, "-KILL", is_written);
    assert_eq!(ended, None);
    assert!(!out.exists() && partial.exists());
    let said = says(EXPORT, "--format hugectr", &store, &out, 8);
    assert!(said.contains(".out.partial: left by an export"), "{said}");
    fs::remove_dir_all(&partial).unwrap();
    let told = json(EXPORT, "--format hugectr", &store, &out, 0);
    assert_eq!(told["rows"], rows as u64 + 20 - 1, "key 0 is in both");
}

/// Text of Paddle has a reader and a writer of its own; a checkpoint of DeepRec ends with an index.
#[test]
fn other_formats_are_stopped_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let [store, new] = ["s", "n"].map(|name| dir.path().join(name));
    let rows = 300_000;
    sample(&store, &table(Optimizer::Adagrad, DIM), &keys(rows));
    let cases = [
        (
            "--format deeprec --threads 1",
            "--format deeprec --create --cache 4MiB --progress never",
            "model.ckpt.data-00000-of-00003",
        ),
        (
            "--format paddle-text --accessor ctr-common --shards 3 --threads 1",
            "--format paddle-text --accessor ctr-common --create --embedx-dim 5 --optimizer adagrad \
             --cache 4MiB --progress never",
            "part-000-00000",
        ),
    ];
    for (index, (export, import, first)) in cases.into_iter().enumerate() {
        let name = format!("out{index}");
        let [out, partial] = [
            dir.path().join(&name),
            dir.path().join(format!(".{name}.partial")),
        ];
        let is_written = || is_begun(&partial.join(first));
        let ended = stopped(EXPORT, export, &store, &out, "-INT", is_written);
        assert_eq!(ended, Some(32), "{export}");
        assert!(!out.exists() && !partial.exists());
        json(EXPORT, export, &store, &out, 0);
        let is_at_work = || row_files(&new) > 1;
        let ended = stopped(IMPORT, import, &new, &out, "-INT", is_at_work);
        assert_eq!(ended, Some(32), "{import}");
        let opened = hps::Store::open(&new, options()).unwrap();
        assert_eq!((opened.checkpoints().len(), opened.tables().len()), (0, 0));
        opened.close().unwrap();
        let told = json(IMPORT, import, &new, &out, 0);
        assert_eq!(told["rows"], rows);
        fs::remove_dir_all(&new).unwrap();
    }
}
