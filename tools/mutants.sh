#!/usr/bin/env bash
# If a line of the engine were wrong, would a test say so?
#
#   tools/mutants.sh                   25 viable mutants each of format ssd store mem repair inspect
#   tools/mutants.sh [-n N] MODULE...  N each of these
#
# cargo-mutants changes one place at a time, builds, and runs tests: the module's unit tests first, then,
# for what these miss, tests of whole stores that were chosen for the module (`tests_of`), for at most
# 60 s. Which places is drawn by a seed, which is printed: HPS_SEED, or the commit. Code that only
# prints and code of tests is left as it is. Fields taken out of structs are not counted: cargo-mutants
# 27.1 can't choose among these.
#
#   caught     a test failed, as it should
#   missed     no test did: listed at the end, each is equivalent or wants a test
#   timeout    a test did not end, which counts as caught
#   unviable   did not compile, which counts as nothing: another one is drawn instead
#
# Prints a line a module and the survivors; ends with 1 where a module has less than HPS_MUTANTS_MIN
# (85) percent caught, 8 where tests fail without any change. Needs cargo-mutants; HPS_MUTANTS_INSTALL=1
# installs it where it is missing; without it this is SKIPPED, loudly, and ends with 0. A job for the
# night, not a gate: a mutant takes a minute or two on two cores.
#
#   HPS_MUTANTS_ONLY=REGEX   only mutants whose line in `cargo mutants --list` matches
#   PROPTEST_CASES, HPS_CRASH_WORKLOADS   kept if they are set, else 32, and 3 (store: 1)
#   HPS_MUTANTS_SECONDS=N    instead of 60: where other work takes the processors
#   CARGO_TARGET_DIR         builds in its folder mutants instead of in target/mutants
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

. tools/seed.sh
seed=$(fresh_seed)
minimum=${HPS_MUTANTS_MIN:-85}
wanted=25
if [ "${1:-}" = -n ]; then
  wanted=${2:-}
  shift 2 || true
fi
known="format ssd store mem repair inspect"
modules=${*:-$known}
for module in $modules; do
  if [[ " $known " != *" $module "* || ! $wanted =~ ^[1-9][0-9]*$ ]]; then
    echo "mutants.sh: [-n N] MODULE..., of: $known" >&2
    exit 16
  fi
done
# Most of the time goes into building the library again, so it is built as fast as can be.
quick=(--cargo-arg=--config=profile.dev.package.hps.opt-level=0
  --cargo-arg=--config=profile.dev.package.hps.debug=false)
test_seconds_max=${HPS_MUTANTS_SECONDS:-60}

# Tests of whole stores that see what a module does; in 60 s without optimisation.
tests_of() { # module
  case $1 in
    format) echo open_reader damage open formats torn_writes crash ;;
    ssd)
      echo open_reader damage open open_or_create torn_writes crash maintenance missing_directory reads
      ;;
    store)
      echo store open model crash stress maintenance observe waits panics panics_in_calls damage \
        open_files no_room bad_disk missing_directory
      ;;
    mem) echo store model stress ;;
    repair) echo missing_directory repair repair_cut repair_manifest repair_told ;;
    inspect) echo inspect inspect_report inspect_forged inspect_beside_writer repair_manifest ;;
  esac
}

# Many tests see the store for what one crash workload takes: 12 s.
workloads_of() { # module
  case $1 in
    store) echo 1 ;;
    *) echo 3 ;;
  esac
}

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
export PROPTEST_CASES=${PROPTEST_CASES:-32}
asked_workloads=${HPS_CRASH_WORKLOADS:-}

# All mutants of a module, in an order that the seed draws. Modules that src/lib.rs names twice, public
# for tests and private without, are listed twice, made twice, and counted once.
list() { # module
  cargo mutants --no-config --list --file "src/$1/**/*.rs" --file "src/$1.rs" \
    --exclude 'src/**/*tests.rs' --exclude 'src/**/tests/*.rs' \
    --exclude-re 'impl (std::)?(fmt::)?(Debug|Display) for' |
    { grep -v ': delete field' || true; } |
    { grep -E "${HPS_MUTANTS_ONLY:-.}" || true; } |
    sort -u |
    shuf --random-source=<(yes "$seed $1")
}

# Runs the mutants listed in a file against tests; the results are in a folder of that name.
run() { # name, filter of unit tests, which tests
  local name=$1 filter=$2 config=$out/$1.toml line status=0 files=() tests=("${quick[@]}")
  shift 2
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
  echo "== $name: $(wc -l <"$out/$name.txt") mutants: cargo test --features sim $* -- $filter"
  # shellcheck disable=SC2086 # no filter is no argument
  nice -n 10 cargo mutants --config "$config" "${files[@]}" --output "$out/$name" \
    --jobs 1 --no-shuffle --features sim --colors never --timeout "$test_seconds_max" \
    --build-timeout 600 "${tests[@]}" -- -- $filter || status=$?
  # 2: some are missed; 3: some did not end. Anything else is a fault of ours.
  case $status in
    0 | 2 | 3) ;;
    *) exit 8 ;;
  esac
}

of() { # result, names
  local result=$1 name
  shift
  for name in "$@"; do
    grep -v ': delete field' "$out/$name/mutants.out/$result.txt" 2>/dev/null || true
  done | sort -u
}

# Draws until enough mutants of a module have compiled, or there are no more.
module() { # module
  local module=$1 round=0 taken=0 missing=$wanted units=() stores=() tests=() name
  export HPS_CRASH_WORKLOADS=${asked_workloads:-$(workloads_of "$module")}
  for name in $(tests_of "$module"); do
    tests+=(--test "$name")
  done
  list "$module" >"$out/$module.listed"
  while [ "$missing" -gt 0 ] && [ "$taken" -lt "$(wc -l <"$out/$module.listed")" ]; do
    round=$((round + 1))
    sed -n "$((taken + 1)),$((taken + missing))p" "$out/$module.listed" >"$out/$module-unit-$round.txt"
    taken=$((taken + missing))
    units+=("$module-unit-$round")
    stores+=("$module-store-$round")
    run "$module-unit-$round" "$module::" --lib
    of missed "$module-unit-$round" >"$out/$module-store-$round.txt"
    run "$module-store-$round" "" "${tests[@]}"
    missing=$(of unviable "$module-unit-$round" | wc -l)
  done
  local caught timeouts unviable missed viable
  caught=$(of caught "${units[@]}" "${stores[@]}" | wc -l)
  timeouts=$(of timeout "${units[@]}" "${stores[@]}" | wc -l)
  unviable=$(of unviable "${units[@]}" | wc -l)
  missed=$(of missed "${stores[@]}" | wc -l)
  viable=$((caught + timeouts + missed))
  if [ "$viable" -eq 0 ]; then
    echo "mutants.sh: nothing of $module was tried" >&2
    exit 8
  fi
  {
    printf '%-8s %4d viable of %5d, %4d caught, %3d timeout, %3d missed (%3d unviable): %3d %%\n' \
      "$module" "$viable" "$(wc -l <"$out/$module.listed")" "$caught" "$timeouts" "$missed" \
      "$unviable" $((100 * (caught + timeouts) / viable))
    of missed "${stores[@]}" | sed 's/^/  missed: /'
    of timeout "${units[@]}" "${stores[@]}" | sed 's/^/  timeout: /'
  } | tee -a "$out/table"
  if [ $((100 * (caught + timeouts))) -lt $((minimum * viable)) ]; then
    low+=("$module")
  fi
}

echo "mutants.sh: seed $seed, $wanted each of $modules"
low=()
for module in $modules; do
  module "$module"
done
echo "mutants.sh: seed $seed, commit $(git describe --always --dirty 2>/dev/null || echo 'no git')"
cat "$out/table"
if [ "${#low[@]}" -gt 0 ]; then
  echo "mutants.sh: less than $minimum % of ${low[*]}" >&2
  exit 1
fi
