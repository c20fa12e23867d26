//! Does `hps-bench compare` run every engine through every workload and tell the oracle about it?
#![cfg(feature = "peers")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn compare(dir: &Path, more: &[&str]) -> Output {
    let small = "--rows 20000 --memory-mib 128 --memory-rows 5000 --memory-rows-mib 128 \
                 --seconds 0.2 --warm-seconds 0.1 --load-seconds 5 --probe-seconds 0.05 \
                 --batch 512 --rounds 1 --json --dir";
    let mut command = Command::new(env!("CARGO_BIN_EXE_hps-bench"));
    command
        .arg("compare")
        .args(small.split_whitespace())
        .arg(dir);
    command.args(more).output().unwrap()
}

fn objects(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_default();
    match serde_json::from_str(last) {
        Ok(Value::Array(objects)) => objects,
        _ => panic!("{text}\n{}", String::from_utf8_lossy(&output.stderr)),
    }
}

#[test]
fn every_engine_does_every_workload_and_the_directory_is_left_empty() {
    let dir = tempfile::tempdir().unwrap();
    let output = compare(dir.path(), &[]);
    let objects = objects(&output);
    assert!(output.status.success(), "{output:?}");
    // Four engines with all six, the hash map with W4 only.
    assert_eq!(objects.len(), 4 * 6 + 1);
    for object in &objects {
        assert!(object["failure"].is_null(), "{object}");
        assert!(object["rows_per_s"].as_f64() > Some(0.0), "{object}");
        assert!(object["hps_by_engine"].as_f64() > Some(0.0), "{object}");
        let told = &object["rounds"][0];
        assert_eq!(
            (&told["wrong"], &told["stale"]),
            (&Value::from(0), &Value::from(0))
        );
        if object["workload"] == "w1" {
            assert_eq!(told["complete"], true, "{object}");
        }
        if object["workload"] == "w5" {
            assert_eq!(told["lost"], 0, "{object}");
            let exact = told["as_checkpointed"].as_u64().unwrap();
            let newer = told["newer"].as_u64().unwrap();
            assert_eq!(exact + newer, 20_000_u64.div_ceil(64), "{object}");
            // Only hps promises the checkpoint and nothing else.
            assert!(object["engine"] != "hps" || newer == 0, "{object}");
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn telling_ahead_is_measured_too() {
    let dir = tempfile::tempdir().unwrap();
    let output = compare(
        dir.path(),
        &["--engines", "hps", "--workloads", "w2a", "--depth", "2"],
    );
    let objects = objects(&output);
    assert!(objects.len() == 1 && objects[0]["failure"].is_null());
    assert!(objects[0]["rows_per_s"].as_f64() > Some(0.0));
}

#[test]
fn wrong_arguments_end_with_16() {
    let dir = tempfile::tempdir().unwrap();
    for more in [
        ["--engines", "hps,hps"],
        ["--engines", "faster"],
        ["--rounds", "0"],
    ] {
        let output = compare(dir.path(), &more);
        assert_eq!(output.status.code(), Some(16), "{more:?}");
    }
}
