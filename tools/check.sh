#!/usr/bin/env bash
# Every check of the project, in stages, cheapest first; the same here and in CI.
#
#   tools/check.sh                  all stages
#   tools/check.sh STAGE...         only these: format clippy layers tests tools features parquet kernels
#                                   docs figures trainer bounds bench crash flips schedules sanitizers
#                                   disks supply fuzz python capi
#
# All stages run in two lanes beside each other, one with debug builds and one with release builds, since
# few stages keep two processors busy: HPS_CHECK_LANES=1 runs them one after the other, and so are stages
# run that are named. In two lanes the log of a stage is printed when it ends; until then a line every five
# minutes says what is going on.
#
# A stage that takes longer than HPS_STAGE_SECONDS (1800) is ended, and fails: first it says which of its
# processes run, and where they wait if gdb is there. So are all stages once HPS_CHECK_SECONDS are over, if
# that is set.
#
# Stops at the first stage that fails, naming it. Needs Rust with rustfmt and clippy, and a C
# compiler. At the end each stage is a line: seconds, processor seconds, and what it counted (tests,
# crashes, kills, ...). A stage fails
#
# - that counts less than tools/test_counts.txt asks for; HPS_CHECK_COUNTS=off leaves that out, for runs
#   that are made shorter; HPS_BLESS_COUNTS=1 raises the numbers of the file to what was counted;
# - that leaves something out: a line with SKIPPED that tools/skips.txt does not allow.
#
# Half of the random cases are the same each time, half come from HPS_SEED, or, without it, from the
# commit. No seed is run twice.
#
# The feature `peers` of hps-bench (other stores, to compare with) is in no stage: it may compile
# RocksDB for 20 minutes. `tools/peers.sh test` builds and tests it, by hand.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

export CARGO_TERM_PROGRESS_WHEN=never
. tools/seed.sh
HPS_SEED=$(fresh_seed)
export HPS_SEED

# Kills and power cuts under the trainer; tools/soak.sh is the long run of all of it.
kills=${HPS_CHECK_KILLS:-200}
cuts=${HPS_CHECK_CUTS:-20}
# Every member of the workspace with every feature but hps-bench's `peers`; see above.
workspace=(--workspace --features hps/sim)
# Workloads of each kind of the crash test, half of them new; `cargo test` runs the first 30 at most.
workloads_all=${HPS_CRASH_WORKLOADS:-90}
unset HPS_CRASH_WORKLOADS
workloads_tested=30
# Logs of the stages, and all that was left out.
logs=$PWD/target/stages
mkdir -p "$logs"
allowed=${HPS_SKIPS_ALLOWED:-tools/skips.txt}
# Seconds that a stage, and all of them, may take.
stage_seconds=${HPS_STAGE_SECONDS:-1800}
all_seconds=${HPS_CHECK_SECONDS:-}
pulse_seconds=300
# Not to be found in the log of a stage.
exec 3>&1
# What `hps-bench --tiny all` has to report, each name as often as it is here.
workloads="pull-hit push-hit train-memory first-touch load load-push pull-miss train train reopen reopen-killed
  warm-restart warm-restart-training
  checkpoint checkpoint-beside checkpoint-beside-disk compaction index growth-pull-hit-4000
  growth-pull-miss-4000 growth-pull-hit-8000 growth-pull-miss-8000 growth-pull-hit-16000
  growth-pull-miss-16000 tables-hit tables-cold"
passed=""
# This shell: a subshell has a number of its own.
shell=$BASHPID
in_lane=""
current=""
begun=$SECONDS
lanes=()
reports=$logs/reports
failed=$logs/failed
rm -f "$logs"/*.skips "$reports" "$failed"
rm -rf "$logs"/*.taken "$logs"/lane.*

finish() {
  local status=$?
  trap - EXIT INT TERM
  stop_lanes
  if [ -s "$reports" ]; then
    cat "$reports"
    cat "$logs"/*.skips 2>/dev/null | sort -u
    printf '%-10s %5d s, seed %s\n' all $((SECONDS - begun)) "$HPS_SEED"
  fi
  if [ "$status" -ne 0 ]; then
    # A lane that was killed could not say so: then it is one of those at hand.
    [ ! -s "$failed" ] || current=$(head -n 1 "$failed")
    [ -n "$current" ] || current=$(cat "$logs"/lane.* 2>/dev/null | paste -sd ' ')
    echo "check.sh: FAILED in stage '$current'" >&2
  else
    echo "check.sh: passed"
  fi
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM

# Each lane is a process group of its own.
stop_lanes() {
  local lane
  for lane in "${lanes[@]}"; do
    kill -TERM -- "-$lane" 2>/dev/null || true
  done
  # What they have mounted goes with them; who does not end is not waited for.
  for lane in "${lanes[@]}"; do
    for _ in {1..30}; do
      kill -0 -- "-$lane" 2>/dev/null || break
      sleep 1
    done
  done
}

# A line between the logs of stages.
progress() { # what
  flock "$logs/printing" echo "-- $((SECONDS - begun)) s: $1"
}

# The stage at hand, ended if it takes too long.
limited() {
  local seconds=$stage_seconds left=$((${all_seconds:-$stage_seconds} - SECONDS + begun))
  if [ -n "$all_seconds" ] && [ "$left" -lt "$seconds" ]; then
    seconds=$left
  fi
  (
    set -e
    tools/watchdog.sh "$current" "$seconds" "$pulse_seconds" >&3 2>&1 &
    "stage_$current"
  )
}

run_stage() { # name
  current=$1
  local start=$SECONDS status counts log=$logs/$1.log before
  export HPS_SKIPS_FILE=$logs/$1.skips
  : >"$HPS_SKIPS_FILE"
  before=$(processor_seconds)
  # As a condition, `set -e` would be off in the stage.
  set +e
  if [ -n "$in_lane" ]; then
    progress "$current begins"
    echo "$current" >"$logs/lane.$shell"
    limited >"$log" 2>&1
    status=$?
    flock "$logs/printing" sh -c 'echo "== $1"; cat "$2"' sh "$current" "$log"
    progress "$current ends after $((SECONDS - start)) s, status $status"
  else
    echo "== $current"
    limited 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
  fi
  set -e
  counts=$(counted <"$log")
  printf '%-10s %5d s, %5d s of processors  %s\n' "$current" $((SECONDS - start)) \
    $(($(processor_seconds) - before)) "$(paste -sd '|' <<<"$counts" | sed 's/|/, /g')" >>"$reports"
  # What scripts and cargo said; tests have written it themselves.
  grep -o 'SKIPPED.*' "$log" >>"$HPS_SKIPS_FILE" || true
  [ "$status" -eq 0 ] || exit "$status"
  check_skips
  check_counts "$counts"
  passed+=" $1 "
}

# Of all that this lane has started and that has ended.
processor_seconds() {
  awk -v tick="$(getconf CLK_TCK)" '{ sub(/.*[)] /, ""); printf "%d\n", ($14 + $15) / tick }' "/proc/$shell/stat"
}

# Binaries that a stage before has built with what tests switch on: built alone, the library would be
# compiled once more.
built() { # stages that build them
  local stage
  for stage in "$@"; do
    [[ $passed == *" $stage "* ]] || return 1
  done
}

# Where scripts find the trainer and hps-fsck; nothing where they have to build them.
bin_of_scripts() {
  local from=${CARGO_TARGET_DIR:-target}/release to=$logs/bin
  if built tools trainer; then
    mkdir -p "$to"
    cp "$from"/hps-{fsck,export,import,keyset} "$from/examples/ctr" "$to"
    echo "$to"
  fi
}

skip() { # why
  echo "SKIPPED: in stage '$current': $1" >&2
}

# Fails on what was left out of a stage and is not on the list.
check_skips() {
  local patterns=$logs/$current.allowed unlisted
  if grep -nvE '^(#.*|.+ -- .+)?$' "$allowed" >&2; then
    echo "$allowed: lines that are no pattern with a reason" >&2
    exit 1
  fi
  sed -n 's/^\([^#].*\) -- .*/\1/p' "$allowed" >"$patterns"
  unlisted=$(sort -u "$HPS_SKIPS_FILE" | grep -vEf "$patterns" || true)
  if [ -n "$unlisted" ]; then
    echo "$unlisted" >&2
    echo "check.sh: the above was left out, and $allowed does not allow it" >&2
    exit 1
  fi
}

# What a stage did, from its log: lines of "COUNT UNIT".
counted() {
  awk '
    # The first number of what matches, wherever in a line: tests write into those of the harness.
    function add(pattern, unit,   found) {
      if (!match($0, pattern)) return
      found = substr($0, RSTART, RLENGTH)
      match(found, /[0-9]+/)
      if (!(unit in sum)) units[++n] = unit
      sum[unit] += substr(found, RSTART, RLENGTH)
    }
    {
      add("^test result: ok[.] [0-9]+ passed", "tests")
      add("[0-9]+ workloads, [0-9]+ crashes, ", "workloads")
      add(" [0-9]+ crashes, ", "crashes")
      add("^[0-9]+ workloads$", "benchmarks")
      add("^kill_resume: [0-9]+ kills", "kills")
      add("^power_cut: [0-9]+ cuts", "cuts")
      add("^slow_disk: [0-9]+ seconds", "slow seconds")
      add("block_log: [0-9]+ images", "images")
      add("full_disk: [0-9]+ fill levels", "fill levels")
      add("fuse_faults: [0-9]+ failed calls", "failed calls")
      add("[0-9]+ bytes changed", "changes")
      add("^fuzz.sh: [0-9]+ executions", "executions")
      add("^python.sh: [0-9]+ Python tests", "Python tests")
    }
    END { for (i = 1; i <= n; i++) print sum[units[i]], units[i] }'
}

# Fails where a stage counted less than it is asked for.
check_counts() { # what it counted
  local stage least unit found
  if [ "${HPS_CHECK_COUNTS:-}" = off ]; then
    return 0
  fi
  if [ -n "${HPS_BLESS_COUNTS:-}" ]; then
    bless_counts "$1"
  fi
  while read -r stage least unit; do
    if [ "$stage" != "$current" ]; then
      continue
    fi
    found=$(sed -n "s/^\([0-9]*\) $unit\$/\1/p" <<<"$1")
    if [ "${found:-0}" -lt "$least" ]; then
      echo "check.sh: ${found:-0} $unit, tools/test_counts.txt asks for $least" >&2
      exit 1
    fi
  done <tools/test_counts.txt
}

# Raises the numbers of the file to what this stage counted; it never lowers one.
bless_counts() { # what it counted
  awk -v stage="$current" -v counted="$1" '
    BEGIN {
      n = split(counted, lines, "\n")
      for (i = 1; i <= n; i++) {
        unit = lines[i]; sub(/^[0-9]+ /, "", unit)
        found[unit] = lines[i] + 0
      }
    }
    !/^#/ && $1 == stage {
      unit = $0; sub(/^[^ ]+ +[0-9]+ /, "", unit)
      if (found[unit] > $2) $0 = sprintf("%s %d %s", stage, found[unit], unit)
    }
    { print }' tools/test_counts.txt >"$logs/counts"
  cp "$logs/counts" tools/test_counts.txt
}

stage_format() {
  cargo fmt --all --check
}

stage_clippy() {
  cargo clippy "${workspace[@]}" --all-targets -- -D warnings
  # The library as users get it: without the feature sim, code that nothing calls is found.
  cargo clippy -p hps --lib -- -D warnings
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
  cargo test --release -p hps-tools -p hps-bench
}

# The library with each feature alone and with none, without what tests switch on.
stage_features() {
  cargo check --lib --no-default-features
  local feature
  for feature in $(features); do
    cargo check --lib --no-default-features --features "$feature"
  done
  # The stage schedules compiles it with hps_shuttle.
  with_cfg hps_tsan check --lib
}

# Parquet in hps-keyset, hps-export and hps-import, which is in no other stage: it builds zstd. Files of others come from pyarrow.
stage_parquet() {
  cargo clippy -p hps-tools --features parquet --all-targets -- -D warnings
  local venv=$PWD/target/parquet/venv
  if command -v python3 >/dev/null && ! "$venv/bin/python3" -c 'import numpy, pyarrow' 2>/dev/null; then
    # Without, the test says that it is left out.
    python3 -m venv --clear "$venv" && "$venv/bin/pip" install --quiet numpy pyarrow || true
  fi
  # What is tested here is not the library: to optimise it takes longer than these tests do.
  PATH=$venv/bin:$PATH cargo --config profile.dev.package.hps.opt-level=0 test -p hps-tools --features parquet \
    --lib --test keyset --test parquet --test parquet_hostile --test models --test models_refused \
    --test models_parquet --test models_parquet_refused
}

# cargo for builds that only tests make; in a folder of their own, since they change every crate's flags.
with_cfg() { # name, what cargo is to do
  local name=$1
  shift
  RUSTFLAGS="${RUSTFLAGS:-} --cfg $name" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/$name" cargo "$@"
}

features() {
  sed -n '/^\[features\]/,/^\[/s/^\([A-Za-z0-9_-]*\) *=.*/\1/p' Cargo.toml | grep -vx default
}

stage_docs() {
  RUSTDOCFLAGS="-D warnings" cargo doc --no-deps "${workspace[@]}"
  if ! command -v python3 >/dev/null; then
    skip "python3 is not installed; the public names were not compared"
    return 0
  fi
  tools/public_names.sh
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

# The kernels of GPUs: their machine code, what they compute on their emulator, and what sanitizers see there.
# Three schedules of each case, not five or ten.
stage_kernels() {
  tools/kernels.sh
  HPS_KERNEL_SEEDS=${HPS_KERNEL_SEEDS:-3} tools/emu_sanitizers.sh
}

# The README's command: what it prints is what is promised of it.
stage_trainer() {
  local ctr=${CARGO_TARGET_DIR:-target}/release/examples/ctr log=$logs/ctr
  cargo build --release --quiet --example ctr
  if ! "$ctr" --json >"$log.json" 2>"$log.err"; then
    cat "$log.err" >&2
    return 1
  fi
  tail -n 1 "$log.json" | tr ',{}' '\n\n\n' | tr -d '"' |
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
  built tools || cargo build --release --quiet -p hps-bench
  local bench=${CARGO_TARGET_DIR:-target}/release/hps-bench out=target/hps-bench
  mkdir -p target
  if ! timeout 180 "$bench" --tiny all --json >"$out.txt" 2>"$out.log"; then
    cat "$out.log" "$out.txt" >&2
    echo "hps-bench --tiny all failed, or took more than 180 s" >&2
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

# The release profile's tests of whole stores: they run long, so they are built to run fast. The same
# library as the trainer's.
release_test() { # test, arguments
  local name=$1 processor=()
  shift
  # Stores in one thread, mapping and unmapping memory all the time: in a process on two processors each
  # unmapping interrupts the other one, which takes a third more of both. A lane has one anyway.
  if [ -n "$in_lane" ] && command -v taskset >/dev/null; then
    processor=(taskset -c "$(sed -n 's/^Cpus_allowed_list:.*[^0-9]\([0-9]\{1,\}\)$/\1/p' /proc/self/status)")
  fi
  "${processor[@]}" cargo test --release --quiet --test "$name" -- --nocapture "$@"
}

# Every call of each workload is a crash, with eight remains each: the other half of the fixed seeds
# (`cargo test` had the first) and as many new ones; then kill -9, resume, compare digests;
# and the same of an import of a delta.
stage_crash() {
  local test=a_crash_at_every_call
  local fixed=$((workloads_all / 2 - workloads_tested)) new=$((workloads_all / 2))
  if [ "$fixed" -gt 0 ]; then
    HPS_CRASH_SEED=$workloads_tested HPS_CRASH_WORKLOADS=$fixed release_test crash "$test"
  fi
  HPS_CRASH_SEED=$((1000000 + HPS_SEED)) HPS_CRASH_WORKLOADS=$new release_test crash "$test"
  local bin
  bin=$(bin_of_scripts)
  SEED=$HPS_SEED BIN=$bin tools/kill_resume.sh "$kills"
  SEED=$HPS_SEED BIN=$bin tools/kill_import.sh 20
}

# Every byte of a store that holds every kind of file, changed in three ways.
stage_flips() {
  HPS_FLIPS=all release_test inspect a_changed_byte
}

# The engine's threads in chosen orders.
stage_schedules() {
  with_cfg hps_shuttle test --quiet --test shuttle
}

# AddressSanitizer and LeakSanitizer over unit tests, and a tenth of model and crash tests.
stage_sanitizers() {
  tools/asan.sh
}

# Power cuts of ext4, a disk that is slow, and a network file system; where there is no right to mount,
# they are left out.
stage_disks() {
  local bin
  bin=$(bin_of_scripts)
  SEED=$HPS_SEED BIN=$bin tools/power_cut.sh "$cuts"
  BIN=$bin tools/slow_disk.sh "${HPS_CHECK_SLOW_SECONDS:-20}"
  if [ -n "$bin" ] && built bench; then
    cp "${CARGO_TARGET_DIR:-target}/release/hps-bench" "$bin"
    SEED=$HPS_SEED BIN=$bin tools/remote_fs.sh 12 20000
  else
    SEED=$HPS_SEED tools/remote_fs.sh 12 20000
  fi
}

# The Python package, built and installed as users do, with its tests; those of hps.torch need torch.
stage_python() {
  if ! command -v python3 >/dev/null; then
    skip "python3 is not installed; the Python package was not built"
    return 0
  fi
  tools/python.sh
}

# The C library: its header, and programs in C and C++ against it.
stage_capi() {
  tools/capi.sh
}

# Licences, bans, sources and the table of dependencies; without cargo-deny it is left out, loudly.
stage_supply() {
  tools/deny.sh
}

# Four minutes of fuzzing in all, shared by the targets; without cargo-fuzz it is left out, loudly.
stage_fuzz() {
  tools/fuzz.sh --total "${HPS_FUZZ_SECONDS:-240}"
}

# What builds for debugging, and what builds for release: in two lanes, no build waits for another one.
# The others build in folders of their own: whichever lane is free first takes the next.
debug_stages=(format clippy layers tests schedules features parquet kernels docs figures)
release_stages=(tools trainer bench flips crash bounds disks)
other_stages=(python sanitizers fuzz capi supply)
case "${1:-}" in
  "") stages=("${debug_stages[@]}" "${release_stages[@]}" "${other_stages[@]}") ;;
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

start_lane() { # stages
  # A process group of its own, to be stopped with all that it has started.
  set -m
  (
    set +m
    trap - EXIT INT TERM
    shell=$BASHPID
    in_lane=1
    trap '[ "$?" -eq 0 ] || echo "$current" >>"$failed"' EXIT
    for stage in "$@"; do
      run_stage "$stage"
    done
    for stage in "${other_stages[@]}"; do
      if mkdir "$logs/$stage.taken" 2>/dev/null; then
        run_stage "$stage"
      fi
    done
  ) &
  lanes+=("$!")
  set +m
}

# Numbers that are raised are written to one file.
if [ $# -eq 0 ] && [ -z "${HPS_BLESS_COUNTS:-}" ] && [ "${HPS_CHECK_LANES:-2}" -gt 1 ]; then
  # A build for each processor, as without lanes.
  export CARGO_BUILD_JOBS=1
  start_lane "${debug_stages[@]}"
  start_lane "${release_stages[@]}"
  for _ in "${lanes[@]}"; do
    wait -n
  done
else
  for stage in "${stages[@]}"; do
    run_stage "$stage"
  done
fi
