//! Does `hps-bench` measure every workload, say what it must, and clean up?
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test helpers fail the test"
)]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hps-bench"))
        .arg("--tiny")
        .args(args)
        .output()
        .unwrap()
}

/// The objects of the last line of a run that went well.
fn objects(output: &Output) -> Vec<Value> {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    let last = out.lines().last().unwrap();
    serde_json::from_str(last).unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn names(objects: &[Value]) -> Vec<&str> {
    objects
        .iter()
        .map(|o| o["workload"].as_str().unwrap())
        .collect()
}

/// A figure that must be there and above 0.
fn figure(object: &Value, name: &str) -> f64 {
    let found = object.pointer(&format!("/{name}")).and_then(Value::as_f64);
    let x = found.unwrap_or_else(|| panic!("{name} of {object}"));
    assert!(x > 0.0 && x.is_finite(), "{name} of {object}");
    x
}

fn check_required(object: &Value) {
    assert!(!object["limit"].as_str().unwrap().is_empty());
    let (rate, limit) = (
        figure(object, "rows_per_s"),
        figure(object, "limit_rows_per_s"),
    );
    let ratio = figure(object, "ratio");
    // One round: the medians are the readings.
    assert!((ratio / (rate / limit) - 1.0).abs() < 1e-9, "{object}");
    assert!(object["machine"]["cores"].as_u64() > Some(0));
}

#[test]
fn in_memory_workloads_hit_every_row_and_tell_their_limit() {
    let output = bench(&["w4", "first-touch", "--json", "--rows", "5000"]);
    let found = objects(&output);
    assert_eq!(
        names(&found),
        ["pull-hit", "push-hit", "train-memory", "first-touch"]
    );
    for object in &found {
        check_required(object);
        assert_eq!(object["resident_rows"], 5000);
    }
    for object in &found[..3] {
        assert_eq!(object["hit_rate"], 1.0, "{object}");
    }
    let table = text(&output.stdout);
    assert!(
        table.contains("ratio") && table.contains("pull-hit"),
        "{table}"
    );
}

#[test]
fn a_call_for_26_tables_is_measured_beside_one_for_one_table() {
    let found = objects(&bench(&["tables", "--json"]));
    assert_eq!(names(&found), ["tables-hit", "tables-cold"]);
    for object in &found {
        check_required(object);
        assert_eq!(object["tables"], 26);
    }
    assert_eq!(found[0]["hit_rate"], 1.0);
    let cold = found[1]["hit_rate"].as_f64().unwrap();
    assert!(cold < 0.9, "rows were read: {cold}");
}

#[test]
fn a_load_by_pushes_writes_each_row_and_reads_none() {
    let found = objects(&bench(&["load-push", "--json"]));
    assert_eq!(names(&found), ["load-push"]);
    check_required(&found[0]);
    assert!(figure(&found[0], "write_amplification/median") >= 1.0);
    assert_eq!(found[0]["index_keys"], 20_000);
    assert_eq!(found[0]["device_reads"], 0, "no row was there before");
}

#[test]
fn out_of_memory_workloads_read_and_the_plot_is_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let plot = dir.path().join("plot.svg");
    let args = ["load", "pull-miss", "w2a", "w2b", "--json", "--plot"];
    let output = bench(&[&args[..], &[plot.to_str().unwrap()]].concat());
    let found = objects(&output);
    assert_eq!(names(&found), ["load", "pull-miss", "train", "train"]);
    found.iter().for_each(check_required);
    let load = &found[0];
    assert!(
        figure(load, "write_amplification/median") >= 1.0,
        "each row is written"
    );
    assert_eq!(load["index_keys"], 20_000);
    assert_eq!(load["device_reads"], 0, "nothing is read to be replaced");
    for object in &found[1..] {
        let hits = object["hit_rate"]["median"].as_f64().unwrap();
        assert!(hits < 0.999, "rows were read: {object}");
        figure(object, "device_reads_per_s");
        figure(object, "pull/p99_ms");
    }
    let skew = |o: &Value| figure(o, "hit_rate/median");
    assert!(
        skew(&found[3]) > skew(&found[2]),
        "zipf 1.2 hits more than 0.99"
    );
    for object in &found[2..] {
        figure(object, "peak_rss_bytes");
        figure(object, "model_miss_share");
        // On a busy machine the few batches of 0.2 s flush nothing.
        let written = &object["write_amplification"]["median"];
        assert!((0.0..5.0).contains(&written.as_f64().unwrap()), "{object}");
    }
    let drawing = std::fs::read_to_string(plot).unwrap();
    assert_eq!(drawing.matches("<polyline").count(), 3);
}

#[test]
fn checkpoints_reopening_churn_index_and_growth_are_measured() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fixture");
    let at = path.to_str().unwrap();
    let args = [
        "checkpoint",
        "reopen",
        "compaction",
        "index",
        "growth",
        "--json",
        "--dir",
        at,
    ];
    let found = objects(&bench(&args));
    found.iter().for_each(check_required);
    let by_name = |name: &str| {
        let object = found.iter().find(|o| o["workload"] == name);
        object.unwrap_or_else(|| panic!("{name} in {:?}", names(&found)))
    };
    figure(by_name("checkpoint"), "dirty_bytes_per_s");
    for name in ["checkpoint-beside", "checkpoint-beside-disk"] {
        figure(by_name(name), "pull_p99_beside_to_idle");
        figure(by_name(name), "batch_ms");
    }
    for name in ["reopen", "reopen-killed"] {
        figure(by_name(name), "open_s/median");
        figure(by_name(name), "first_batch_to_steady/median");
    }
    let churn = by_name("compaction");
    figure(churn, "compactions_inside");
    assert!(figure(churn, "cleaning_factor/median") >= 1.0);
    assert!(figure(churn, "space_amplification/max") >= 1.0);
    assert_eq!(
        churn["enough_for_p99"], false,
        "a tiny run has too few pulls, and says so"
    );
    let index = by_name("index");
    assert!(
        figure(index, "bytes_per_key_max") >= 12.0,
        "hash and value take 12 bytes at least"
    );
    figure(by_name("growth-pull-hit-16000"), "cost_growth_to_gather");
    figure(by_name("growth-pull-miss-16000"), "cost_growth_to_device");
    assert!(!path.exists(), "what was made is removed");
}

#[test]
fn the_hits_of_a_store_are_told_beside_the_best_split_of_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("made");
    let output = Command::new(env!("CARGO_BIN_EXE_hps-bench"))
        .args(["hot-table", "--tiny", "--json", "--cache-mib", "6", "--dir"])
        .arg(&at)
        .output()
        .unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    let told: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    let ratios = told["ratios"].as_array().unwrap();
    assert_eq!(ratios.len(), 8, "20 batches twice, by five");
    for half in ["ratio_before", "ratio_after"] {
        let ratio = told[half].as_f64().unwrap();
        assert!((0.0..1.5).contains(&ratio), "{half} of {told}");
    }
    // A split uses its bytes, or holds every row.
    let split = told["split"].as_array().unwrap();
    assert_eq!(split.len(), 26);
    let bytes = |table: &Value, half: usize| table["bytes"][half].as_u64().unwrap();
    for half in 0..2 {
        let sum: u64 = split.iter().map(|t| bytes(t, half)).sum();
        let room = told["row_room_bytes"].as_u64().unwrap();
        assert!(sum <= room && sum > room / 4, "{sum} of {room}");
    }
    assert!(
        split.iter().any(|t| bytes(t, 0) != bytes(t, 1)),
        "the split moves"
    );
    assert_eq!(
        std::fs::read_dir(&at).unwrap().count(),
        0,
        "the store is removed"
    );
}

#[test]
fn memory_is_told_by_purpose_beside_what_the_process_holds() {
    let output = Command::new(env!("CARGO_BIN_EXE_hps-bench"))
        .args(["memory", "--tiny", "--json", "--checkpoint-every", "2"])
        .output()
        .unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    let told: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    let lines = told["lines"].as_object().unwrap();
    let number = |value: &Value| value.as_u64().unwrap();
    let sum: u64 = lines.values().map(|line| number(&line["bytes"])).sum();
    assert_eq!(sum, number(&told["counted"]));
    for (name, line) in lines {
        assert!(
            number(&line["bytes"]) <= number(&line["most"]),
            "{name} of {told}"
        );
    }
    for name in [
        "rows",
        "states",
        "hash_table",
        "index",
        "read_buffers",
        "write_buffers",
    ] {
        assert!(number(&lines[name]["bytes"]) > 0, "{name} of {told}");
    }
    // Dim 64 and as many of AdaGrad's.
    let rows = number(&lines["rows"]["bytes"]) / number(&told["rows"]);
    assert!((512..600).contains(&rows), "{rows} of {told}");
    assert!(
        number(&lines["flushes"]["most"]) > 0,
        "checkpoints wrote: {told}"
    );
    assert_eq!(
        number(&lines["flushes"]["bytes"]),
        0,
        "none runs at the end: {told}"
    );
    assert!(number(&told["peak_rss"]) >= number(&told["rss"]), "{told}");
}

/// Whether a run had to load rows.
fn loads(args: &[&str]) -> bool {
    let output = bench(args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stderr).contains("load: rows on disk")
}

#[test]
fn a_kept_store_is_used_again_by_runs_with_equal_rows_only() {
    let dir = tempfile::tempdir().unwrap();
    let foreign = dir.path().join("mine.txt");
    std::fs::write(&foreign, "not of the bench").unwrap();
    let at = dir.path().to_str().unwrap();
    let kept = ["pull-miss", "--keep", "--dir", at];
    assert!(loads(&kept));
    assert!(!loads(&kept));
    assert!(loads(&["pull-miss", "--dir", at, "--dim", "32"]));
    assert!(loads(&kept), "the run without --keep removed it");
    assert!(Path::new(at).join("rows").is_dir());
    assert!(!Path::new(at).join("probe").exists());
    assert!(foreign.exists());
}

#[test]
fn faults_of_the_user_and_of_the_system_have_their_exit_codes() {
    let code = |args: &[&str]| bench(args).status.code();
    assert_eq!(code(&["no-such-workload"]), Some(16));
    assert_eq!(code(&[]), Some(16));
    assert_eq!(code(&["--help"]), Some(0));
    assert_eq!(code(&["train", "--memory-mib", "1"]), Some(16));
    assert_eq!(code(&["train", "--dir", "/proc/none"]), Some(8));
}

#[test]
fn passes_are_read_and_written_back_by_four_ways() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("figure");
    let output = Command::new(env!("CARGO_BIN_EXE_hps-bench"))
        .args(["etc", "--tiny", "--json", "--plot"])
        .arg(&prefix)
        .output()
        .unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    let told: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert_eq!(told["ratios"]["cached_hits_as_the_model"], true, "{told}");
    for name in ["staged_read_to_gather", "staged_write_to_update"] {
        figure(&told["ratios"], name);
    }
    for name in ["gather_rows_per_s", "update_rows_per_s"] {
        figure(&told["limits"], name);
    }
    let ways = told["ways"].as_array().unwrap();
    let names: Vec<&str> = ways.iter().map(|w| w["way"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["Staged", "Cached(2, 0.4, 0)", "Bilevel", "SSD only"]
    );
    for way in ways {
        assert_eq!(way["phases"].as_array().unwrap().len(), 20);
        figure(way, "mean_rows_read_per_s");
        figure(way, "mean_rows_written_per_s");
    }
    assert_eq!(ways[0]["mean_hit_rate"], 1.0);
    assert_eq!(ways[3]["mean_hit_rate"], 0.0);
    for name in ["figure-read.svg", "figure-write.svg"] {
        assert!(dir.path().join(name).exists());
    }
}
