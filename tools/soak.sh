#!/usr/bin/env bash
# Runs the long column of the test ladder for hours: kills, power cuts, simulated crashes, random
# models, faults, flipped bytes, fuzzing, full disks, slow disks.
#
#   tools/soak.sh --hours H [--out FILE] [--rungs a,b,c] [--seed N] [--failures N]
#   tools/soak.sh --table FILE       only the table, of a log that is there
#
# The rung that had the least time so far goes next, one slice at a time (seconds to minutes). It stops
# when the time is over and the slice at hand has ended, or after N failed slices (10); a rung of which
# three slices failed is left out from then on. `--hours 0` runs one slice of each. Rungs: see `rungs`
# below; without --rungs all of them but `asan` and `tsan`, which build everything once more.
# Seeds go on from --seed; without it from HPS_SEED or the commit and the time.
#
# Each slice is a line of FILE (target/soak.log; appended to): UTC time, rung, seed, what and how
# many, seconds, result, commit; tabs between. The seed and the commit repeat it. A failure keeps its
# output beside FILE, and the others go on. At the end, and at Ctrl-C, a Markdown table of the lines of
# this run. Nothing depends on time: it may run at `nice` beside other work.
#
# Exit codes: 0 nothing failed (what was SKIPPED is said), 1 something did, 8 could not build, 16
# wrong arguments.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

export CARGO_TERM_PROGRESS_WHEN=never
# Large buffers are used again, not mapped and unmapped: some tests open a store a million times.
export MALLOC_MMAP_THRESHOLD_=67108864 MALLOC_TRIM_THRESHOLD_=268435456

# Rung, and what a slice of it does.
rungs=(
  "kill      L4: 100 x kill -9 of the trainer, resumed; digests compared"
  "power     L5: 50 power cuts of ext4 and XFS under the trainer, resumed; digests compared"
  "blocks    L6: 200 images of what a disk with ext4 may hold when the power goes, 100 each of XFS and btrfs"
  "repairs   L6: 200 images of a repair and its exchange of names, cut off; the next repair ends it"
  "crash     L2, L3: 200 workloads on the simulated disk, cut off at every call"
  "maintenance L2: compaction and forgetting without a trainer, cut off at every call, 25 workloads"
  "shuttle   the engine under 20 000 schedules of each model, drawn by the seed"
  "model     L1: 1024 random cases of 200 operations against a map, a fifth of them with threads"
  "stress    trainers, prefetches and checkpoints at the same time, 20 seeds"
  "fault     L10: every call of a workload fails in 8 ways, 10 workloads"
  "damage    L9: lengths, junk, absence; once a run"
  "flips     L8: every bit of a sample store changed, one at a time; each byte also repaired; once a run"
  "full      L11: a full ext4, 25 fill levels; limits of file size and of the store"
  "fuse      L10: the n-th read, write or sync of a FUSE file system fails, under io_uring"
  "slow      L20: the trainer on a disk of 10 MiB/s, then 200 IOPS; memory, files and disk flat"
  "fuzz      L13: the next fuzz target for 5 minutes"
  "asan      L14: crash and model tests under AddressSanitizer, 20 workloads and 128 cases"
  "tsan      the stress test under ThreadSanitizer, 5 seeds"
)
once="damage flips"

. tools/seed.sh
hours="" out="" wanted="" seed=$(($(fresh_seed) + $(date +%s) % 1000000 * 1000)) table="" failures_max=10
commit=$(git describe --always --dirty 2>/dev/null || echo 'no git')
while [ $# -gt 0 ]; do
  case $1 in
    --hours | --out | --rungs | --seed | --table | --failures)
      [ $# -gt 1 ] || { echo "soak.sh: $1 needs a value" >&2; exit 16; }
      case $1 in
        --hours) hours=$2 ;;
        --out) out=$2 ;;
        --rungs) wanted=${2//,/ } ;;
        --seed) seed=$2 ;;
        --table) table=$2 ;;
        --failures) failures_max=$2 ;;
      esac
      shift 2
      ;;
    *)
      sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
      printf '  %s\n' "${rungs[@]}" >&2
      [ "$1" = --help ] && exit 0
      exit 16
      ;;
  esac
done

# Rungs of a log, each with what it did in all.
print_table() { # log
  awk -F '\t' '
    /^#/ || NF < 6 { next }
    !($2 in slices) { order[++rungs] = $2 }
    {
      slices[$2]++; seconds[$2] += $5; sum += $5
      if ($6 ~ /^FAILED/) failed[$2]++
      if ($6 ~ /^SKIPPED/) { skipped[$2]++; next }
      n = split($4, parts, ", ")
      for (i = 1; i <= n; i++) {
        split(parts[i], words, " ")
        unit = substr(parts[i], length(words[1]) + 2)
        if (!(($2, unit) in count)) units[$2] = units[$2] (units[$2] == "" ? "" : "\n") unit
        count[$2, unit] += words[1]
      }
    }
    END {
      print "| rung | slices | how many | seconds | failed | skipped |"
      print "|---|---:|---|---:|---:|---:|"
      for (i = 1; i <= rungs; i++) {
        rung = order[i]; text = ""
        n = split(units[rung], list, "\n")
        for (j = 1; j <= n; j++)
          text = text (j > 1 ? ", " : "") sprintf("%d %s", count[rung, list[j]], list[j])
        printf "| %s | %d | %s | %d | %d | %d |\n", rung, slices[rung], text, seconds[rung],
          failed[rung], skipped[rung]
        all += slices[rung]; bad += failed[rung]; left += skipped[rung]
      }
      printf "| all | %d | | %d | %d | %d |\n", all, sum, bad, left
    }' "$1"
}

if [ -n "$table" ]; then
  print_table "$table"
  exit 0
fi
if ! [[ $hours =~ ^[0-9]+(\.[0-9]+)?$ && $seed =~ ^[0-9]+$ && $failures_max =~ ^[1-9][0-9]*$ ]]; then
  echo "soak.sh: --hours H, a number; --seed N; --failures N" >&2
  exit 16
fi
known=" $(printf '%s\n' "${rungs[@]}" | cut -d ' ' -f 1 | tr '\n' ' ')"
both=${known/ asan / }
for rung in ${wanted:=${both/ tsan / }}; do
  [[ $known == *" $rung "* ]] || { echo "soak.sh: no rung '$rung'; there are:$known" >&2; exit 16; }
done
has() { # rung
  [[ " $wanted " == *" $1 "* ]]
}

out=$(realpath -m "${out:-target/soak.log}")
mkdir -p "$(dirname "$out")"
work=$(mktemp -d "${TMPDIR:-/tmp}/hps-soak-XXXXXX")
this=$work/lines
: >"$this"
pid="" ended=""

# What was done so far; also where somebody ends it early.
finish() {
  trap '' INT TERM
  if [ -n "$pid" ]; then
    # Its whole group: scripts and what they started; mounts are its own and go with it.
    kill -TERM -- "-$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  fi
  if [ -n "$ended" ]; then
    print_table "$this"
    if grep -q $'\tFAILED' "$this"; then
      echo "soak.sh: FAILED:" >&2
      grep $'\tFAILED' "$this" >&2
      ended=1
    fi
    grep $'\tSKIPPED' "$this" | cut -f 2,6 | sort -u | sed 's/^/soak.sh: /' >&2 || true
  fi
  rm -rf "$work"
  exit "${ended:-8}"
}
trap finish EXIT
trap 'ended=${ended:-8}; exit' INT TERM

# Puts the executable of a test where later changes of the sources don't reach it.
test_binary() { # name, arguments of cargo
  local name=$1 made
  shift
  made=$(cargo test --quiet --no-run --message-format=json "$@" 2>"$work/build.log" |
    sed -n 's/.*"name":"'"$name"'".*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
  if [ -z "$made" ]; then
    cat "$work/build.log" >&2
    echo "soak.sh: $name could not be built" >&2
    exit 8
  fi
  cp "$made" "$work/bin/$name"
}

build() {
  local name target=${CARGO_TARGET_DIR:-target}
  mkdir -p "$work/bin"
  for name in crash maintenance model stress fault damage; do
    ! has "$name" || test_binary "$name" --release --test "$name"
  done
  if has shuttle; then
    RUSTFLAGS="--cfg hps_shuttle" test_binary shuttle --release --target-dir "$target/hps_shuttle" --test shuttle
  fi
  if has flips; then
    test_binary inspect --release --test inspect
    test_binary repair --release --test repair
  fi
  if has kill || has power || has slow; then
    cargo build --release --quiet --example ctr
    cp "$target/release/examples/ctr" "$work/bin/"
  fi
  if has power || has slow; then
    cargo build --release --quiet -p hps-tools --bin hps-fsck
    cp "$target/release/hps-fsck" "$work/bin/"
  fi
  ! has full || test_binary full_disk --release -p hps-tools --test full_disk
  if has blocks || has repairs; then
    test_binary block_log --release -p hps-tools --test block_log
  fi
  ! has fuse || test_binary fuse_faults --release -p hps-tools --test fuse_faults
  if has asan; then
    export RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address
    local host
    host=$(rustc -vV | sed -n 's/^host: //p')
    for name in crash model; do
      test_binary "$name" --release --target "$host" --target-dir "$target/asan" --test "$name"
      mv "$work/bin/$name" "$work/bin/$name-asan"
    done
    unset RUSTC_BOOTSTRAP RUSTFLAGS
    # The plain ones were in the same place.
    for name in crash model; do
      ! has "$name" || test_binary "$name" --release --test "$name"
    done
  fi
  if has tsan; then
    # As tools/tsan.sh does it.
    export RUSTC_BOOTSTRAP=1
    export RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer --cfg hps_tsan"
    test_binary stress --target "$(rustc -vV | sed -n 's/^host: //p')" --target-dir "$target/tsan" \
      --features sim --test stress
    mv "$work/bin/stress" "$work/bin/stress-tsan"
    unset RUSTC_BOOTSTRAP RUSTFLAGS
    cp tools/tsan.supp "$work/bin/"
    ! has stress || test_binary stress --release --test stress
  fi
  if has fuzz && cargo fuzz --version >/dev/null 2>&1; then
    nice tools/fuzz.sh 1 current >"$work/build.log" 2>&1 || { cat "$work/build.log" >&2; exit 8; }
  fi
}

# Each slice: runs with the seed $1, prints what it prints. Beside it, what to read from that: lines
# of "COUNT UNIT".
slice_kill() { SEED=$1 BIN=$work/bin tools/kill_resume.sh 100; }
count_kill() { sed -n 's/^kill_resume: \([0-9]* kills\) .* \([0-9]*\) resumed,.*/\1, \2 resumed/p'; }

slice_power() { SEED=$1 BIN=$work/bin KEEP=$out.$1.image tools/power_cut.sh 50; }
count_power() {
  sed -n 's/^power_cut: \([0-9]* cuts\),.*cut; \([0-9]*\) lost.*/\1, \2 while a checkpoint was written/p'
}

slice_crash() { HPS_CRASH_SEED=$1 HPS_CRASH_WORKLOADS=200 "$work/bin/crash" --nocapture; }
count_crash() {
  sed -n 's/^\([0-9]* workloads, [0-9]* crashes\), .*, \([0-9]*\) of them distinct/\1, \2 states opened/p'
}

slice_maintenance() { HPS_CRASH_SEED=$1 HPS_CRASH_WORKLOADS=200 "$work/bin/maintenance" a_crash --nocapture; }
count_maintenance() {
  sed -n 's/^\([0-9]* workloads, [0-9]* crashes\), \([0-9]*\) distinct.*/\1, \2 states opened/p'
}

slice_shuttle() { HPS_SHUTTLE_SEED=$1 HPS_SHUTTLE_SCHEDULES=20000 "$work/bin/shuttle" --nocapture; }
count_shuttle() { echo "$(sed -n 's/^test result: ok. \([0-9]*\) passed.*/\1/p') models of 20 000 schedules"; }

slice_model() { PROPTEST_RNG_SEED=$1 PROPTEST_CASES=1024 "$work/bin/model" --nocapture; }
count_model() { grep -q '^test result: ok' && echo "1228 cases"; }

slice_stress() {
  local i
  for i in $(seq 20); do HPS_SEED=$(($1 + i)) "$work/bin/stress" || return 1; done
}
count_stress() { echo "$(($(grep -c '^test result: ok') * 6)) runs"; }

slice_fault() {
  local i
  for i in $(seq 10); do HPS_FAULT_SEED=$(($1 + i)) "$work/bin/fault" --nocapture || return 1; done
}
# A line a fault: {Absorbed: 3, Poisoned: 7}, the runs that ended so.
count_fault() {
  grep -o 'seed [0-9]*, .*sticky .*{.*}' | grep -o ': [0-9]*' |
    awk '{ sum += $2 } END { printf "%d failed calls\n", sum }'
}

slice_damage() { "$work/bin/damage"; }
count_damage() { echo "$(sed -n 's/^test result: ok. \([0-9]*\) passed.*/\1/p') tests"; }


slice_flips() {
  HPS_FLIPS=bits "$work/bin/inspect" a_changed_byte --nocapture &&
    HPS_FLIPS=all "$work/bin/repair" whatever_byte --nocapture
}
count_flips() {
  grep -oE '[0-9]+ bytes changed|[0-9]+ stores with a changed byte repaired, [0-9]+ refused' |
    awk '/bytes changed/ { changed += $1 } /with a changed byte repaired/ { repaired += $1 + $8 }
    END { if (changed && repaired) printf "%d changes, %d repairs\n", changed, repaired }'
}

slice_full() { HPS_SEED=$1 HPS_FILL_LEVELS=25 "$work/bin/full_disk" --nocapture; }
count_full() { sed -n 's/.*full_disk: \([0-9]* fill levels\).*/\1/p'; }

slice_fuse() { HPS_SEED=$1 HPS_FUSE_CALLS=40 "$work/bin/fuse_faults" --nocapture; }
count_fuse() { sed -n 's/.*fuse_faults: \([0-9]* failed calls\).*/\1/p'; }

slice_blocks() { HPS_SEED=$1 HPS_BLOCK_IMAGES=200 "$work/bin/block_log" whatever_blocks --nocapture; }
count_blocks() { sed -n 's/.*block_log: \([0-9]* images\) of .* with \([0-9]* flushes\).*/\1, \2/p'; }

slice_repairs() { HPS_SEED=$1 HPS_BLOCK_IMAGES=400 "$work/bin/block_log" a_repair --nocapture; }
count_repairs() { count_blocks; }

slice_slow() { SEED=$1 BIN=$work/bin tools/slow_disk.sh 120; }
count_slow() { sed -n 's/^slow_disk: \([0-9]* seconds\).*/\1 trained/p'; }

slice_fuzz() {
  if ! cargo fuzz --version >/dev/null 2>&1; then
    echo "SKIPPED: cargo-fuzz is not installed"
    return 0
  fi
  local targets
  # shellcheck disable=SC2207 # names have no spaces
  targets=($(sed -n '/^\[\[bin\]\]/,/^$/s/^name = "\(.*\)"/\1/p' fuzz/Cargo.toml))
  tools/fuzz.sh "${HPS_SOAK_FUZZ_SECONDS:-300}" "${targets[$(($2 % ${#targets[@]}))]}"
}
count_fuzz() { awk 'NF == 5 && $5 ~ /^[0-9]+$/ { printf "%d of %s\n", $2, $1 }'; }

slice_asan() {
  HPS_CRASH_SEED=$1 HPS_CRASH_WORKLOADS=20 "$work/bin/crash-asan" --nocapture &&
    PROPTEST_RNG_SEED=$1 PROPTEST_CASES=128 "$work/bin/model-asan"
}
count_asan() { count_crash; }

slice_tsan() {
  local i
  export TSAN_OPTIONS="suppressions=$work/bin/tsan.supp:halt_on_error=0:history_size=7:exitcode=66"
  for i in $(seq 5); do HPS_SEED=$(($1 + i)) "$work/bin/stress-tsan" || return 1; done
}
count_tsan() { count_stress; }

# One slice, in a process group of its own, so that all of it can be ended.
run_slice() { # rung, seed, number
  local rung=$1 begin=$SECONDS status=0 result count log=$work/slice.log
  set -m
  (trap - EXIT; "slice_$rung" "$2" "$3") >"$log" 2>&1 &
  pid=$!
  set +m
  wait "$pid" || status=$?
  pid=""
  count=$("count_$rung" <"$log" | paste -sd '|' | sed 's/|/, /g') || true
  result=ok
  if [ "$status" -ne 0 ]; then
    cp "$log" "$out.$rung.$2"
    result="FAILED: status $status, output in $out.$rung.$2"
  elif grep -q SKIPPED "$log"; then
    result=$(grep -m 1 -o 'SKIPPED.*' "$log")
  elif [ -z "$count" ]; then
    cp "$log" "$out.$rung.$2"
    result="FAILED: nothing was counted, output in $out.$rung.$2"
  fi
  printf '%s\t%s\t%s\t%s\t%d\t%s\t%s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$rung" "$2" \
    "${count:--}" $((SECONDS - begin)) "$result" "$commit" | tee -a "$this" "$out"
  case $result in
    FAILED*)
      failed[$rung]=$((${failed[$rung]:-0} + 1))
      failures=$((failures + 1))
      ;;
  esac
}

echo "# build" >&2
begin=$SECONDS
build
printf '# %s soak of %s hours, seed %s, %s, built in %d s, rungs:%s\n' \
  "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$hours" "$seed" \
  "$commit" $((SECONDS - begin)) \
  " $wanted" | tee -a "$out"

ended=0
SECONDS=0
limit=$(awk -v hours="$hours" 'BEGIN { printf "%d", hours * 3600 }')
declare -A spent slices failed
number=0 failures=0
while :; do
  next=""
  for rung in $wanted; do
    [[ " $once " == *" $rung "* && -n ${slices[$rung]:-} ]] && continue
    [ "${failed[$rung]:-0}" -lt 3 ] || continue
    # Those that never ran come first, in their order.
    [ -n "${slices[$rung]:-}" ] || { next=$rung; break; }
    if [ -z "$next" ] || [ "${spent[$rung]}" -lt "${spent[$next]}" ]; then next=$rung; fi
  done
  [ -n "$next" ] || break
  if [ "$failures" -ge "$failures_max" ]; then break; fi
  # The time is over, or, without one, each had its slice.
  if [ "$SECONDS" -ge "$limit" ] && [ "$limit" -gt 0 ]; then break; fi
  if [ "$limit" -eq 0 ] && [ -n "${slices[$next]:-}" ]; then break; fi
  before=$SECONDS
  # Slices of one rung use the seeds from theirs on, at most 1000 of them.
  run_slice "$next" $((seed + number * 1000)) "${slices[$next]:-0}"
  number=$((number + 1))
  slices[$next]=$((${slices[$next]:-0} + 1))
  # One that takes no time, because it is skipped or fails at once, must not be drawn for ever.
  took=$((SECONDS - before))
  spent[$next]=$((${spent[$next]:-0} + (took > 20 ? took : 20)))
done
