#!/usr/bin/env bash
# Fuzzes the decoders, a hostile directory, sequences of operations, and the inputs of hps-keyset and
# hps-import; fuzz/README.md says what each target asks.
#
#   tools/fuzz.sh [SECONDS] [TARGET...]           each target (all) for SECONDS (60)
#   tools/fuzz.sh --total SECONDS [TARGET...]     all of them together, the sum of their times: a target
#                                                 that opens stores gets four times as long as a decoder
#
# Prints a line per target: executions, edges covered, seconds, findings; then the sum. Exits 1 on a
# finding, and
# says where the input is that shows it; 8 where nothing could be built, 16 for an unknown
# target. Writes only below fuzz/target and fuzz/artifacts; what the corpus grows by is kept in
# fuzz/target/corpus and used by the next run.
#
#   HPS_FUZZ_INSTALL=1          installs cargo-fuzz where it is missing; without, nothing is fuzzed
#   HPS_FUZZ_SANITIZER=address  builds with AddressSanitizer, which also refuses allocations beyond
#                               the limit that are never touched; several times slower; not by
#                               default
#   HPS_FUZZ_JOBS=N             targets at the same time (as many as there are processors)
#   HPS_FUZZ_RAW=1              shows what libFuzzer prints
#   CARGO_TARGET_DIR            builds there instead of in fuzz/target
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

export CARGO_TERM_PROGRESS_WHEN=never
# libFuzzer's instrumentation needs flags that stable Rust has only for itself.
export RUSTC_BOOTSTRAP=1
# Large allocations are used again, not mapped and unmapped for each input.
export MALLOC_MMAP_THRESHOLD_=67108864 MALLOC_TRIM_THRESHOLD_=268435456
# Freed memory that AddressSanitizer keeps counts towards the limit.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_odr_violation=0:quarantine_size_mb=32"

seconds=60
total=""
if [ "${1:-}" = --total ]; then
  if ! [[ ${2:-} =~ ^[0-9]+$ ]]; then
    echo "fuzz.sh: --total needs seconds" >&2
    exit 16
  fi
  total=$2
  shift 2
elif [[ ${1:-} =~ ^[0-9]+$ ]]; then
  seconds=$1
  shift
fi
memory_mb=512
slowest_s=5
sanitizer=${HPS_FUZZ_SANITIZER:-none}
target_dir=$(realpath -m "${CARGO_TARGET_DIR:-fuzz/target}")
artifacts=$PWD/fuzz/artifacts
host=$(rustc -vV | sed -n 's/^host: //p')

if ! cargo fuzz --version >/dev/null 2>&1; then
  if [ -z "${HPS_FUZZ_INSTALL:-}" ]; then
    echo "fuzz.sh: SKIPPED: cargo-fuzz is not installed, NOTHING WAS FUZZED" >&2
    echo "fuzz.sh: HPS_FUZZ_INSTALL=1 tools/fuzz.sh installs it" >&2
    exit 0
  fi
  # It only starts others: built for debugging.
  CARGO_PROFILE_DEV_DEBUG=0 cargo install cargo-fuzz --locked --debug
fi

known=$(sed -n '/^\[\[bin\]\]/,/^$/s/^name = "\(.*\)"/\1/p' fuzz/Cargo.toml)
if [ $# -eq 0 ]; then
  # shellcheck disable=SC2086 # names have no spaces
  set -- $known
fi
for target in "$@"; do
  if ! grep -qx -- "$target" <<<"$known"; then
    echo "fuzz.sh: no target '$target'; there are:" $known >&2
    exit 16
  fi
done

# Shares of the time: targets that open whole stores do a thousandth of what decoders do in it.
weight() { # target
  case $1 in
    delta | hostile_directory | mend | operations) echo 4 ;;
    *) echo 1 ;;
  esac
}

# Longest input: what the structure needs, or the list of changes or operations.
longest() { # target
  case $1 in
    current) echo 320 ;;
    store_identity | param_footer | key_block_and_record) echo 4608 ;;
    manifest | index_snapshot | import_parquet) echo 8192 ;;
    delta | meta | keyset_* | import_deeprec | import_paddle) echo 1024 ;;
    *) echo 512 ;;
  esac
}

# The last number before a word's value in libFuzzer's lines: "cov: 123" or "#4567".
last_of() { # word, file
  sed -n "s/.*$1 *\([0-9][0-9]*\).*/\1/p" "$2" | tail -n 1
}

start=$SECONDS
echo "== build (sanitizer: $sanitizer)"
if ! cargo fuzz build --sanitizer "$sanitizer" --target-dir "$target_dir"; then
  echo "fuzz.sh: the targets could not be built" >&2
  exit 8
fi
echo "built in $((SECONDS - start)) s"

# One target, until its time is over; what it did as a line. 1 where it found something.
fuzz() { # target
  local target=$1 seconds=$seconds grown=$target_dir/corpus/$1 log=$target_dir/$1.log prefix=$artifacts/$1/
  local start=$SECONDS status=0 found=0 executions edges
  if [ -n "$total" ]; then
    seconds=$((total * $(weight "$target") / weights))
  fi
  # What is found is written to the first directory; the seeds are only read.
  "$target_dir/$host/release/$target" "$grown" "fuzz/corpus/$target" \
    -max_total_time="$seconds" -rss_limit_mb="$memory_mb" -timeout="$slowest_s" \
    -max_len="$(longest "$target")" -artifact_prefix="$prefix" -print_final_stats=1 \
    >"$log" 2>&1 || status=$?
  [ -z "${HPS_FUZZ_RAW:-}" ] || cat "$log"
  [ "$status" -eq 0 ] || found=1
  executions=$(last_of 'stat::number_of_executed_units:' "$log")
  [ -n "$executions" ] || executions=$(last_of '^#' "$log")
  edges=$(last_of 'cov:' "$log")
  echo "${executions:-0}" >"$target_dir/$target.executions"
  printf '%-22s %12s %8s %8s %9s\n' "$target" "${executions:-?}" "${edges:-?}" \
    $((SECONDS - start)) "$found"
  if [ "$found" -ne 0 ]; then
    {
      echo "fuzz.sh: $target FAILED (status $status); the last lines of $log:"
      grep -vE '^#[0-9]+|NEW_FUNC' "$log" | tail -n 40
      echo "fuzz.sh: to run it again:"
      sed -n "s|.*Test unit written to \(.*\)|  $target_dir/$host/release/$target \1|p" "$log"
    } >&2
  else
    rmdir --ignore-fail-on-non-empty "$prefix" "$artifacts" 2>/dev/null || true
  fi
  return "$found"
}

jobs=${HPS_FUZZ_JOBS:-$(nproc)}
[ "$jobs" -le $# ] || jobs=$#
weights=0
for target in "$@"; do
  weights=$((weights + $(weight "$target")))
done
findings=0
pids=()
# A fuzzer is a child of the subshell that waits for it.
stop() {
  local pid
  for pid in "${pids[@]}"; do
    pkill -TERM -P "$pid" 2>/dev/null || true
    kill "$pid" 2>/dev/null || true
  done
  wait
  exit 130
}
trap stop INT TERM
printf '%-22s %12s %8s %8s %9s\n' target executions edges seconds findings
for target in "$@"; do
  mkdir -p "$target_dir/corpus/$target" "$artifacts/$target"
done
# Waits until fewer than so many run; with shares of the time, any may end next. Two that end at once are
# both asked how they ended, which `wait -n` does not promise.
wait_below() { # count
  local left pid
  while [ "${#pids[@]}" -ge "$1" ]; do
    left=()
    for pid in "${pids[@]}"; do
      if kill -0 "$pid" 2>/dev/null; then
        left+=("$pid")
      else
        wait "$pid" || findings=1
      fi
    done
    pids=("${left[@]}")
    [ "${#pids[@]}" -lt "$1" ] || sleep 0.5
  done
}
# Those that take longest first: none is left over at the end.
for target in $(for t in "$@"; do echo "$(weight "$t") $t"; done | sort -srn -k 1,1 | cut -d ' ' -f 2); do
  wait_below "$jobs"
  fuzz "$target" &
  pids+=($!)
done
wait_below 1
sum=0
for target in "$@"; do
  sum=$((sum + $(cat "$target_dir/$target.executions")))
done
echo "fuzz.sh: $sum executions of $# targets"
[ "$findings" -eq 0 ] || exit 1
