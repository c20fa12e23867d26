//! Does `hps-bench paired` run two builds by turns, judge by intervals, and say what is wrong?
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test helpers fail the test"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const BENCH: &str = env!("CARGO_BIN_EXE_hps-bench");

fn paired(old: &Path, new: &Path, args: &[&str]) -> Output {
    Command::new(BENCH)
        .arg("paired")
        .args([old, new])
        .args(["--tiny", "--json"])
        .args(args)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn figures(output: &Output) -> Vec<Value> {
    let out = text(&output.stdout);
    let last = out.lines().last().unwrap_or_default();
    let found = serde_json::from_str(last);
    found.unwrap_or_else(|e| panic!("{e}: {out}\n{}", text(&output.stderr)))
}

fn script(dir: &Path, name: &str, body: &str) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A build that answers `pull-hit` at once with a rate: `$runs` is the number of the run.
fn fake(dir: &Path, name: &str, rate: &str) -> PathBuf {
    let log = dir.join("order");
    let runs = dir.join(format!("{name}-runs"));
    let body = format!(
        r#"[ "$1" = --version ] && {{ echo "hps-bench 0.0.0"; exit 0; }}
echo {name} "$@" >>{log}
echo x >>{runs}
runs=$(wc -l <{runs})
echo '[{{"workload": "pull-hit", "rows_per_s": '"{rate}"'}}]'"#,
        log = log.display(),
        runs = runs.display(),
    );
    script(dir, name, &body)
}

#[test]
fn each_workload_of_two_real_builds_gets_its_figures() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("place");
    let args = ["--dir", place.to_str().unwrap(), "--pairs", "2"];
    let output = paired(Path::new(BENCH), Path::new(BENCH), &args);
    let code = output.status.code();
    assert!(
        matches!(code, Some(0 | 1 | 4)),
        "{code:?} {}",
        text(&output.stderr)
    );
    let found = figures(&output);
    let names: Vec<String> = found
        .iter()
        .map(|o| format!("{} {}", o["workload"], o["figure"]).replace('"', ""))
        .filter(|name| !name.ends_with("device_operations_per_row"))
        .collect();
    assert_eq!(
        names,
        [
            "pull-hit rows_per_s",
            "push-hit rows_per_s",
            "w2a processor_ns_per_row",
            "w2a device_reads_per_row",
            "w2a written_per_pushed_byte",
            "w2a rows_per_s",
            "checkpoint processor_ns_per_row",
            "checkpoint written_bytes_per_row",
            "checkpoint rows_per_s",
            "load processor_ns_per_row",
            "load written_bytes_per_row",
            "load rows_per_s",
        ]
    );
    for object in &found {
        assert_eq!(object["old"].as_array().unwrap().len(), 2, "{object}");
        assert_eq!(object["new"].as_array().unwrap().len(), 2, "{object}");
        let is_rate_of_device =
            object["figure"] == "rows_per_s" && object.pointer("/bound/low_min").is_some();
        let in_memory = ["pull-hit", "push-hit"].contains(&object["workload"].as_str().unwrap());
        let told_only = is_rate_of_device && !in_memory;
        assert_eq!(object["verdict"].is_null(), told_only, "{object}");
    }
    // A row of 512 B is written once with a checksum and its key, or a little more.
    for workload in ["checkpoint", "load"] {
        let named =
            |o: &&Value| o["workload"] == workload && o["figure"] == "written_bytes_per_row";
        let object = found.iter().find(named).unwrap();
        let runs = ["old", "new"].into_iter();
        let runs = runs.flat_map(|side| object[side].as_array().unwrap());
        // Of one run a part may be missing: rows that were flushed before its window began.
        let bytes = runs.filter_map(Value::as_f64).fold(0.0, f64::max);
        // tmpfs and overlays have no device: nothing is counted there.
        assert!(bytes == 0.0 || (400.0..2000.0).contains(&bytes), "{object}");
    }
    assert!(text(&output.stdout).contains("the same file"));
    assert!(!place.exists(), "what was made is removed");
}

#[test]
fn verdicts_come_from_the_interval_and_give_the_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let old = fake(at, "old", "100$((runs % 2))");
    let verdict = |new: &Path| {
        let args = ["--workloads", "pull-hit", "--pairs", "6"];
        let output = paired(&old, new, &args);
        let found = figures(&output);
        let verdict = found[0]["verdict"].as_str().unwrap().to_owned();
        (verdict, output.status.code().unwrap())
    };
    let same = fake(at, "same", "99$((runs % 3 + 5))");
    assert_eq!(verdict(&same), ("not slower".to_owned(), 0));
    let slower = fake(at, "slower", "90$((runs % 2))");
    assert_eq!(verdict(&slower), ("slower".to_owned(), 1));
    let noisy = fake(at, "noisy", "$((700 + runs % 2 * 600))");
    assert_eq!(verdict(&noisy), ("undecided".to_owned(), 4));
}

#[test]
fn builds_run_by_turns_and_the_first_pair_does_not_count() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    // The first run of each is the warm-up: its figure would be seen.
    let old = fake(at, "old", "$((runs == 1 ? 1 : 1000))");
    let new = fake(at, "new", "$((runs == 1 ? 9 : 1000))");
    let args = ["--workloads", "pull-hit", "--pairs", "3", "--seed", "4"];
    let output = paired(&old, &new, &args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let found = figures(&output);
    assert_eq!(found[0]["old"], serde_json::json!([1000.0, 1000.0, 1000.0]));
    let log = fs::read_to_string(at.join("order")).unwrap();
    let order: Vec<&str> = log
        .lines()
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    assert_eq!(
        order,
        ["old", "new", "new", "old", "old", "new", "new", "old"]
    );
    assert!(log.contains("--rows 20000"), "{log}");
}

#[test]
fn beside_each_other_both_run_in_each_pair_on_processors_of_their_own() {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return; // Said and tested where there is one: `beside::halves`.
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let own = |name: &str| {
        let there = at.join(format!("{name}-cpus"));
        let body = format!(
            "grep Cpus_allowed_list /proc/self/status >>{}",
            there.display()
        );
        let build = fake(at, name, "1000");
        let text = fs::read_to_string(&build).unwrap();
        fs::write(
            &build,
            text.replace("runs=$(wc", &format!("{body}\nruns=$(wc")),
        )
        .unwrap();
        (build, there)
    };
    let ((old, old_cpus), (new, new_cpus)) = (own("old"), own("new"));
    let args = ["--workloads", "pull-hit", "--pairs", "3", "--beside"];
    let output = paired(&old, &new, &args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let read = |path: &Path| -> Vec<String> {
        let text = fs::read_to_string(path).unwrap();
        text.lines().map(str::to_owned).collect()
    };
    let (old_cpus, new_cpus) = (read(&old_cpus), read(&new_cpus));
    assert_eq!((old_cpus.len(), new_cpus.len()), (4, 4));
    for (pair, (old, new)) in old_cpus.iter().zip(&new_cpus).enumerate() {
        assert_ne!(old, new, "pair {pair}");
        assert_eq!(old == &old_cpus[0], pair % 2 == 0, "they change sides");
    }
    let refused = paired(&old, &new, &["--workloads", "pull-hit,load", "--beside"]);
    assert_eq!(refused.status.code(), Some(16));
    let said = text(&refused.stderr);
    assert!(
        said.contains("load") && said.contains("--workloads"),
        "{said}"
    );
}

#[test]
fn a_missing_foreign_or_failing_build_is_named_with_what_it_said() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let good = fake(at, "good", "1000");
    let error = |old: &Path, new: &Path, args: &[&str]| {
        let output = paired(old, new, args);
        assert_eq!(output.status.code(), Some(8));
        text(&output.stderr)
    };
    let missing = error(&at.join("nowhere"), &good, &[]);
    assert!(missing.contains("OLD: no build at "), "{missing}");
    assert!(missing.contains("nowhere"), "{missing}");
    let foreign = error(&good, Path::new("/bin/true"), &[]);
    assert!(
        foreign.contains("NEW: /bin/true is no hps-bench"),
        "{foreign}"
    );
    let body = "[ \"$1\" = --version ] && { echo hps-bench 0.0.0; exit; }\n\
                echo \"error: invalid value 'pull-hit' for '[WORKLOAD]...'\" >&2; exit 16";
    let ignorant = script(at, "ignorant", body);
    let said = error(&ignorant, &good, &["--workloads", "pull-hit"]);
    assert!(
        said.contains("OLD: ") && said.contains("exit status: 16"),
        "{said}"
    );
    assert!(said.contains("invalid value 'pull-hit'"), "{said}");
    let absent = error(&good, &good, &["--workloads", "push-hit"]);
    assert!(absent.contains("no push-hit in the report"), "{absent}");
}

#[test]
fn faults_of_the_user_have_their_exit_code() {
    let code = |args: &[&str]| {
        paired(Path::new(BENCH), Path::new(BENCH), args)
            .status
            .code()
    };
    assert_eq!(code(&["--workloads", "unheard-of"]), Some(16));
    assert_eq!(code(&["--pairs", "1"]), Some(16));
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().to_str().unwrap();
    fs::create_dir(dir.path().join("new-rows")).unwrap();
    assert_eq!(code(&["--dir", at]), Some(16));
    assert!(dir.path().join("new-rows").is_dir(), "not ours: left");
}
