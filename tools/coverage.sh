#!/usr/bin/env bash
# Which lines of format, recovery, inspection and repair do the tests of the root package run?
#
#   tools/coverage.sh             unit tests and tests/*.rs, in the debug profile, few random cases
#   tools/coverage.sh ARGUMENTS   what `cargo test` is to run instead, as in
#                                 tools/coverage.sh --lib
#
# Prints a table: lines, lines that ran and their share, per file and per group. A line counts once,
# however many tests run it; unit tests inside a file and files of tests do not count. What a killed
# process has run is not counted: it leaves no profile.
#
# Ends with 1 where a test fails, or where less than HPS_COVERAGE_MIN (85) percent of the lines of
# format and recovery ran; 8 where nothing could be built. Needs llvm-profdata and llvm-cov of LLVM
# 19 or later (Debian: llvm-19; older ones can't read the profiles of this Rust); without them it is
# SKIPPED, loudly, and ends with 0. Builds below target/coverage.
#
#   PROPTEST_CASES, HPS_CRASH_WORKLOADS   kept if they are set, else 32 and 10
#   HPS_LLVM_SUFFIX=-19                   which tools: llvm-cov-19
#   HPS_COVERAGE_UNSEEN=1                 lists the lines that did not run, too
#   CARGO_TARGET_DIR                      builds in its folder coverage, not in target/coverage
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

minimum=${HPS_COVERAGE_MIN:-85}
suffix=${HPS_LLVM_SUFFIX--19}
if [ $# -eq 0 ]; then
  # All of tests/ but what runs only under shuttle's scheduler.
  set -- --lib
  for file in tests/*.rs; do
    file=$(basename "$file" .rs)
    if [ "$file" != shuttle ]; then
      set -- "$@" --test "$file"
    fi
  done
fi
for tool in llvm-profdata llvm-cov; do
  if ! command -v "$tool$suffix" >/dev/null; then
    echo "SKIPPED: coverage: $tool$suffix is not installed (Debian: apt-get install llvm-19)" >&2
    echo "coverage.sh: SKIPPED"
    exit 0
  fi
done

# group, then the files below src.
recovery="ssd/recover.rs ssd/open_reader.rs ssd/create.rs ssd/edits.rs ssd/commit.rs ssd/manifest.rs
  ssd/manifest_reader.rs ssd/small_files.rs ssd/directories.rs ssd/names.rs ssd/version.rs ssd/data_file.rs
  ssd/rollback.rs ssd/export.rs ssd/scan.rs ssd/index_snapshot.rs"
groups() {
  local file
  for file in src/format/*.rs; do
    case $file in
      */tests.rs | */*_tests.rs) ;;
      *) echo "format ${file#src/}" ;;
    esac
  done
  for file in $recovery; do echo "recovery $file"; done
  echo "other ssd/recommit.rs"
  for file in src/inspect/*.rs; do echo "inspect ${file#src/}"; done
  for file in src/repair/*.rs; do echo "repair ${file#src/}"; done
}

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/coverage
profiles=$target/profiles
mkdir -p "$target"
rm -rf "$profiles"
# Only our own crates are measured, so libraries are built as always.
printf '#!/bin/sh\nexec "$@" -Cinstrument-coverage\n' >"$target/rustc.sh"
chmod +x "$target/rustc.sh"
export CARGO_TARGET_DIR=$target RUSTC_WORKSPACE_WRAPPER=$target/rustc.sh
export CARGO_TERM_PROGRESS_WHEN=never
# Every process adds its counts to one of a few files.
export LLVM_PROFILE_FILE=$profiles/%4m.profraw
export PROPTEST_CASES=${PROPTEST_CASES:-32} HPS_CRASH_WORKLOADS=${HPS_CRASH_WORKLOADS:-10}

built=$target/built.txt
if ! cargo test --features sim --no-run "$@" 2>&1 | tee "$built" ||
  ! cargo build --features sim --examples; then
  echo "coverage.sh: could not build" >&2
  exit 8
fi
mapfile -t programs < <(sed -n 's/^ *Executable .*(\(.*\))$/\1/p' "$built")
if [ "${#programs[@]}" -eq 0 ]; then
  echo "coverage.sh: cargo named no test program" >&2
  exit 8
fi
rm -rf "$profiles" # the build's own
log=$target/tests.txt
echo "coverage.sh: PROPTEST_CASES=$PROPTEST_CASES HPS_CRASH_WORKLOADS=$HPS_CRASH_WORKLOADS" \
  "cargo test --features sim $*"
status=0
cargo test --no-fail-fast --features sim "$@" 2>&1 | tee "$log" || status=$?
tests=$(awk '/^test result:/ { sum += $4 } END { print sum + 0 }' "$log")

# A process that is killed may leave a torn profile; that one is left out, and named.
"llvm-profdata$suffix" merge -sparse --failure-mode=warn "$profiles"/*.profraw \
  -o "$target/all.profdata"
objects=("${programs[0]}")
for program in "${programs[@]:1}" "$target/debug/examples/ctr"; do
  objects+=(-object "$program")
done
"llvm-cov$suffix" export -format=lcov -instr-profile="$target/all.profdata" "${objects[@]}" \
  >"$target/lcov.txt" 2>"$target/lcov.log" || {
  cat "$target/lcov.log" >&2
  exit 1
}

# Where the unit tests inside each file start.
starts() {
  groups | while read -r group file; do
    echo "$group $file $(awk '/^mod [a-z_]+ \{/ { print NR; exit }' "src/$file")"
  done
}
starts >"$target/groups.txt"
table=0
awk -v root="$PWD/src/" -v minimum="$minimum" -v unseen="${HPS_COVERAGE_UNSEEN:-}" '
  function row(name, ran, lines) {
    printf "| %s | %d | %d | %.1f %% |\n", name, lines, ran, lines ? 100 * ran / lines : 0
  }
  function group_row(name) { row("**" name "**", group_ran[name], group_lines[name]) }
  NR == FNR { order[++files] = $2; group[$2] = $1; end[$2] = $3 ? $3 : 1e9; next }
  /^SF:/ { file = substr($0, 4); sub(root, "", file); known = file in group }
  known && /^DA:/ {
    split(substr($0, 4), at, ",")
    if (at[1] + 0 < end[file]) {
      lines[file]++
      if (at[2] > 0) ran[file]++
      else missed[file] = missed[file] " " at[1]
    }
  }
  END {
    print "| file below src | lines | ran | share |\n|---|---:|---:|---:|"
    for (i = 1; i <= files; i++) {
      file = order[i]; name = group[file]
      if (last != "" && name != last) group_row(last)
      last = name
      row(file, ran[file], lines[file])
      group_lines[name] += lines[file]; group_ran[name] += ran[file]
      all_lines += lines[file]; all_ran += ran[file]
    }
    group_row(last)
    row("**all of these**", all_ran, all_lines)
    must = group_lines["format"] + group_lines["recovery"]
    held = group_ran["format"] + group_ran["recovery"]
    row("**format and recovery**", held, must)
    if (unseen) for (i = 1; i <= files; i++) if (order[i] in missed)
      print order[i] ": not run:" missed[order[i]]
    exit !(must > 0 && 100 * held >= minimum * must)
  }' "$target/groups.txt" "$target/lcov.txt" || table=1

echo "coverage.sh: $tests tests passed"
if [ "$status" -ne 0 ] || [ "$tests" -eq 0 ]; then
  echo "coverage.sh: a test failed" >&2
  exit 1
fi
if [ "$table" -ne 0 ]; then
  echo "coverage.sh: less than $minimum % of the lines of format and recovery ran" >&2
  exit 1
fi
echo "coverage.sh: passed"
