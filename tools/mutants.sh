#!/usr/bin/env bash
# If a line of the format or of recovery were wrong, would a test say so?
#
#   tools/mutants.sh              every mutant: hours
#   tools/mutants.sh 3/20         every 20th of them; 0/20 to 19/20 are all
#
# cargo-mutants changes one place of src/format/*.rs and src/ssd/{recover,attach,create,edits}.rs at a
# time, builds, and runs tests: the unit tests of format first, then, for what these miss and for
# src/ssd, the tests of whole stores that are fast. Code that only prints and code of tests is left as it is.
# Fields taken out of structs are not counted: cargo-mutants 27.1 can't choose among these.
#
#   caught     a test failed, as it should
#   missed     no test did: listed at the end, each is equivalent or wants a test
#   timeout    a test did not end, which counts as caught
#   unviable   did not compile, which counts as nothing
#
# Prints the four numbers and the share caught; ends with 1 where it is less than HPS_MUTANTS_MIN
# (60) percent, 8 where tests fail without any change. Needs cargo-mutants; HPS_MUTANTS_INSTALL=1
# installs it where it is missing; without it this is SKIPPED, loudly, and ends with 0. A job for
# the night, not a gate.
#
#   HPS_MUTANTS_ONLY=REGEX   only mutants whose line in `cargo mutants --list` matches
#   PROPTEST_CASES, HPS_CRASH_WORKLOADS   kept if they are set, else 32 and 3
#   CARGO_TARGET_DIR         builds in its folder mutants instead of in target/mutants
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

minimum=${HPS_MUTANTS_MIN:-60}
# What is listed here takes seconds; the other tests take minutes, and find more.
store_tests=(--test attach --test damage --test open --test formats --test torn_writes --test crash)
# Most of the time goes into building the library again, so it is built as fast as can be.
quick=(--cargo-arg=--config=profile.dev.package.hps.opt-level=0
  --cargo-arg=--config=profile.dev.package.hps.debug=false)
# Unit tests of what is not looked at.
skips=(--skip io:: --skip mem:: --skip row:: --skip keymap:: --skip store::)

if ! cargo mutants --version >/dev/null 2>&1; then
  if [ -z "${HPS_MUTANTS_INSTALL:-}" ]; then
    echo "SKIPPED: mutants: cargo-mutants is not installed (HPS_MUTANTS_INSTALL=1 installs it)" >&2
    echo "mutants.sh: SKIPPED"
    exit 0
  fi
  cargo install cargo-mutants --locked -j 1
fi

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/mutants
out=$target/results
rm -rf "$out"
mkdir -p "$out"
export CARGO_TARGET_DIR=$target CARGO_INCREMENTAL=1 CARGO_TERM_PROGRESS_WHEN=never
export PROPTEST_CASES=${PROPTEST_CASES:-32} HPS_CRASH_WORKLOADS=${HPS_CRASH_WORKLOADS:-3}

choice=(--file 'src/format/*.rs' --file src/ssd/recover.rs --file src/ssd/attach.rs --file src/ssd/create.rs
  --file src/ssd/edits.rs --exclude 'src/format/*tests.rs' --exclude src/format/samples.rs
  --exclude-re 'impl (std::)?(fmt::)?(Debug|Display) for')
if [ $# -gt 0 ]; then
  choice+=(--shard "$1" --sharding round-robin)
fi
cargo mutants --no-config --list "${choice[@]}" >"$out/listed.txt"
grep -v ': delete field' "$out/listed.txt" >"$out/chosen.txt" || true
if [ -n "${HPS_MUTANTS_ONLY:-}" ]; then
  grep -E "$HPS_MUTANTS_ONLY" "$out/chosen.txt" >"$out/some.txt" || true
  mv "$out/some.txt" "$out/chosen.txt"
fi
echo "mutants.sh: $(wc -l <"$out/chosen.txt") mutants chosen${1:+, share $1}"

# Runs the mutants listed in a file against tests; the results are in a folder of that name.
run() { # name, which tests
  local name=$1 config=$out/$1.toml line status=0 files=() tests=("${quick[@]}")
  shift
  if [ ! -s "$out/$name.txt" ]; then
    return 0
  fi
  {
    echo 'examine_re = ['
    while IFS= read -r line; do
      # A literal string of TOML; names have lifetimes, but no three quotes.
      printf "'''^%s\$''',\n" "$(sed 's/[][\\.*^$+?(){}|]/\\&/g' <<<"$line")"
    done <"$out/$name.txt"
    echo ']'
  } >"$config"
  # To the build too: what follows `--` is only for the run.
  for line in "$@"; do
    tests+=("--cargo-arg=$line")
  done
  while IFS= read -r line; do
    files+=(--file "$line")
  done < <(cut -d : -f 1 "$out/$name.txt" | sort -u)
  echo "== $name: $(wc -l <"$out/$name.txt") mutants: cargo test --features sim $* -- ${skips[*]}"
  nice -n 10 cargo mutants --config "$config" "${files[@]}" --output "$out/$name" \
    --jobs 1 --no-shuffle --features sim --colors never --minimum-test-timeout 30 \
    --timeout-multiplier 4 --build-timeout 300 "${tests[@]}" -- -- "${skips[@]}" || status=$?
  # 2: some are missed; 3: some did not end. Anything else is a fault of ours.
  case $status in
    0 | 2 | 3) ;;
    *) exit 8 ;;
  esac
}

of() { # result, name
  grep -v ': delete field' "$out/$2/mutants.out/$1.txt" 2>/dev/null || true
}

grep '^src/format/' "$out/chosen.txt" >"$out/unit.txt" || true
run unit --lib
{
  of missed unit
  grep -v '^src/format/' "$out/chosen.txt" || true
} >"$out/store.txt"
run store "${store_tests[@]}"

caught=$({ of caught unit; of caught store; } | wc -l)
timeouts=$({ of timeout unit; of timeout store; } | wc -l)
unviable=$({ of unviable unit; of unviable store; } | wc -l)
missed=$(of missed store | wc -l)
echo "mutants.sh: caught $caught, timeout $timeouts, missed $missed, unviable $unviable"
of missed store | sed 's/^/missed: /'
of timeout unit | sed 's/^/timeout: /'
of timeout store | sed 's/^/timeout: /'
viable=$((caught + timeouts + missed))
if [ "$viable" -eq 0 ]; then
  echo "mutants.sh: nothing was tried" >&2
  exit 8
fi
echo "mutants.sh: $((100 * (caught + timeouts) / viable)) % of $viable caught"
if [ $((100 * (caught + timeouts))) -lt $((minimum * viable)) ]; then
  echo "mutants.sh: less than $minimum %" >&2
  exit 1
fi
