#!/usr/bin/env bash
# Every check of the project, in stages, cheapest first; the same here and in CI.
#
#   tools/check.sh                  all stages
#   tools/check.sh --tests-done     without the tests of the root package, where `cargo test` (which
#                                   covers only it) has just passed
#   tools/check.sh STAGE...         only these: format clippy layers tests tools features docs
#                                   figures trainer bounds bench crash flips schedules sanitizers
#                                   disks supply fuzz
#
# Stops at the first stage that fails, naming it. Needs Rust with rustfmt and clippy, and a C
# compiler. The figures need python3 (and numpy, fetched into target/); without it they are left
# out, and the last lines say so.
#
# The feature `peers` of hps-tools (other stores, to compare with) is in no stage: it may compile
# RocksDB for 20 minutes. `tools/peers.sh test` builds and tests it, by hand.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

export CARGO_TERM_PROGRESS_WHEN=never

# Kills and power cuts under the trainer; tools/soak.sh is the long run of all of it.
kills=${HPS_CHECK_KILLS:-200}
cuts=${HPS_CHECK_CUTS:-20}
# Every member of the workspace with every feature but hps-tools' `peers`; see above.
workspace=(--workspace --features hps/sim)
# What `hps-bench --tiny all` has to report, each name as often as it is here.
workloads="pull-hit push-hit train-memory first-touch load pull-miss train train reopen reopen-killed
  checkpoint checkpoint-beside checkpoint-beside-disk compaction index growth-pull-hit-4000
  growth-pull-miss-4000 growth-pull-hit-8000 growth-pull-miss-8000 growth-pull-hit-16000
  growth-pull-miss-16000"
report=()
current=""

finish() {
  local status=$?
  if [ "${#report[@]}" -gt 0 ]; then
    printf '%s\n' "${report[@]}"
  fi
  if [ "$status" -ne 0 ]; then
    echo "check.sh: FAILED in stage '$current'" >&2
  else
    echo "check.sh: passed"
  fi
}
trap finish EXIT

run_stage() { # name
  current=$1
  echo "== $current"
  local start=$SECONDS
  "stage_$current"
  report+=("$(printf '%-10s %5d s' "$current" $((SECONDS - start)))")
}

skip() { # why
  echo "SKIPPED in stage '$current': $1" >&2
  report+=("SKIPPED in stage '$current': $1")
}

stage_format() {
  cargo fmt --all --check
}

stage_clippy() {
  cargo clippy "${workspace[@]}" --all-targets -- -D warnings
}

stage_layers() {
  cargo test --quiet --test layers
}

# The README's command: the root package.
stage_tests() {
  cargo test
}

# In the release profile, which stage bench needs too: a test of damaged traces takes minutes without.
stage_tools() {
  run_or_note cargo test --release -p hps-tools
}

# The library with each feature alone and with none, without what tests switch on.
stage_features() {
  cargo check --lib --no-default-features
  local feature
  for feature in $(features); do
    cargo check --lib --no-default-features --features "$feature"
  done
}

features() {
  sed -n '/^\[features\]/,/^\[/s/^\([A-Za-z0-9_-]*\) *=.*/\1/p' Cargo.toml | grep -vx default
}

stage_docs() {
  RUSTDOCFLAGS="-D warnings" cargo doc --no-deps "${workspace[@]}"
}

# The figures that tests compare with are what their scripts compute.
stage_figures() {
  if ! command -v python3 >/dev/null; then
    skip "python3 is not installed; tests/data/*.py were not run"
    return 0
  fi
  local made=target/figures
  mkdir -p "$made"
  compare_figures python3 initialisers
  local venv=$made/venv
  if ! "$venv/bin/python" -c 'import numpy' 2>/dev/null; then
    if ! { python3 -m venv --clear "$venv" && "$venv/bin/pip" install --quiet numpy; }; then
      skip "numpy could not be installed; tests/data/optimizers.py was not run"
      return 0
    fi
  fi
  compare_figures "$venv/bin/python" optimizers
}

compare_figures() { # python, name
  "$1" "tests/data/$2.py" "target/figures/$2.tsv"
  if ! cmp "target/figures/$2.tsv" "tests/data/$2.tsv"; then
    echo "tests/data/$2.tsv is not what tests/data/$2.py computes" >&2
    return 1
  fi
}

# The README's command: what it prints is what is promised of it.
stage_trainer() {
  cargo build --release --quiet --example ctr
  target/release/examples/ctr --json 2>/dev/null | tail -n 1 | tr ',{}' '\n\n\n' | tr -d '"' |
    awk -F: '{ f[$1] = $2 } END {
      gap = f["planted_auc"] - f["auc_tail"]; if (gap < 0) gap = -gap
      lost = f["auc_tail"] - f["frozen_auc"]
      times = f["live_bytes"] / f["cache_bytes"]
      printf "planted AUC %.4f, reached %.4f, frozen %.4f, live rows %.1f x the cache\n",
        f["planted_auc"], f["auc_tail"], f["frozen_auc"], times
      exit !(gap <= 0.03 && lost >= 0.05 && times >= 4 && f["big_slots_variance_share"] >= 0.5)
    }'
}

# Memory, disk and files inside their bounds, for seconds; docs/BENCHMARKS.md has the long run.
stage_bounds() {
  cargo bench --quiet --bench churn -- --seconds 20 --rows 600000 --cache-mib 32
}

# hps-bench measures everything that it knows, tiny: the figures mean nothing, but all are there.
stage_bench() {
  cargo build --release --quiet -p hps-tools --bin hps-bench
  local bench=${CARGO_TARGET_DIR:-target}/release/hps-bench out=target/hps-bench
  mkdir -p target
  if ! timeout 60 "$bench" --tiny all --json >"$out.txt" 2>"$out.log"; then
    cat "$out.log" "$out.txt" >&2
    echo "hps-bench --tiny all failed, or took more than 60 s" >&2
    return 1
  fi
  if command -v python3 >/dev/null; then
    tail -n 1 "$out.txt" | workload_names_python >"$out.found"
  else
    skip "python3 is not installed; the last line of hps-bench was not parsed, only searched"
    tail -n 1 "$out.txt" | grep -o '"workload":"[^"]*"' | cut -d '"' -f 4 >"$out.found"
  fi
  if ! diff <(tr -s ' \n' '\n' <<<"$workloads" | sort) <(sort "$out.found") >&2; then
    echo "the workloads of hps-bench are not those of this script (<)" >&2
    return 1
  fi
  echo "$(wc -l <"$out.found") workloads"
}

# The names in an array of objects; each object must hold what a reader of it relies on.
workload_names_python() {
  python3 -c '
import json, sys
for entry in json.loads(sys.stdin.read()):
    assert entry["rows_per_s"] > 0 and entry["limit_rows_per_s"] > 0, entry
    assert entry["ratio"] > 0 and entry["limit"] and entry["machine"], entry
    print(entry["workload"])'
}

# Every call of 200 workloads is a crash, with eight remains each; then kill -9 at random moments,
# resume, compare digests.
stage_crash() {
  HPS_CRASH_WORKLOADS=${HPS_CRASH_WORKLOADS:-200} cargo test --quiet --test crash
  tools/kill_resume.sh "$kills"
}

# Every byte of a store that holds every kind of file, changed in three ways.
stage_flips() {
  local said
  said=$(HPS_FLIPS=all cargo test --quiet --test inspect a_changed_byte -- --nocapture 2>&1) ||
    { echo "$said" >&2; return 1; }
  grep -oE '[0-9]{6} bytes changed' <<<"$said" || { echo "$said" >&2; return 1; }
}

# The engine's threads in chosen orders.
stage_schedules() {
  cargo test --quiet --features shuttle --test shuttle
}

# AddressSanitizer and LeakSanitizer over unit tests, and a tenth of model and crash tests.
stage_sanitizers() {
  tools/asan.sh
}

# Power cuts of ext4, and a disk that is slow; where there is no right to mount, they are left out.
stage_disks() {
  run_or_note tools/power_cut.sh "$cuts"
  run_or_note tools/slow_disk.sh "${HPS_CHECK_SLOW_SECONDS:-20}"
}

# Licences, bans, sources and the table of dependencies; without cargo-deny it is left out, loudly.
stage_supply() {
  run_or_note tools/deny.sh
}

# Each fuzz target for a while; without cargo-fuzz it is left out, loudly.
stage_fuzz() {
  run_or_note tools/fuzz.sh "${HPS_FUZZ_SECONDS:-60}"
}

# Runs a script and repeats in the summary what it skipped.
run_or_note() { # command
  local out=target/stage.txt line
  mkdir -p target
  "$@" 2>&1 | tee "$out"
  while IFS= read -r line; do
    report+=("$line")
  done < <(grep 'SKIPPED' "$out" || true)
}

stages=(format clippy layers tests tools features docs figures trainer bounds bench crash flips
  schedules sanitizers disks supply fuzz)
case "${1:-}" in
  "") ;;
  --tests-done)
    stages=(format clippy tools features docs figures trainer bounds bench crash flips schedules
      sanitizers disks supply fuzz)
    ;;
  -*)
    echo "check.sh: unknown option $1" >&2
    current=arguments
    exit 16
    ;;
  *) stages=("$@") ;;
esac

for stage in "${stages[@]}"; do
  if ! declare -F "stage_$stage" >/dev/null; then
    current=arguments
    echo "check.sh: unknown stage $stage" >&2
    exit 16
  fi
done
for stage in "${stages[@]}"; do
  run_stage "$stage"
done
