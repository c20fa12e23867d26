#!/usr/bin/env bash
# Runs the tests of the tables in GPU memory, with UndefinedBehaviorSanitizer and ThreadSanitizer in the kernels.
#
#   tools/emu_sanitizers.sh              both
#   tools/emu_sanitizers.sh undefined    only this one; so is `thread`
#
# The kernels are built with the sanitizer (HPS_EMU_SANITIZE, see build.rs), the rest of the library is not.
# UBSan: overflows, shifts, misaligned and null addresses, in all tests of the kernels (these took as long
# without it: the emulator looks at each access anyway). Where it can't be had the tests run without it. TSan:
# every CUDA thread is a fiber that it takes for a thread; launches, barriers and __syncwarp are all the order
# there is between two of them, so that it finds a race whatever the schedule is. That it would is tried first,
# on a kernel with a planted race. A fiber costs TSan much, so it sees one schedule of each of the four tables of
# tests/kernel_faults.rs: every barrier, and a call of each kind, but four of the seven rules and few widths of
# rows. (races.cpp finds the same and more in all tests; this is a second opinion.)
#
# Prints tests and reports of each; exits 1 on a report or a test that failed, 8 where nothing could be
# built. Without a compiler nothing is run, without the library of a sanitizer it is left out: SKIPPED.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

export CARGO_TERM_PROGRESS_WHEN=never RUST_BACKTRACE=0
compiler=${CXX:-c++}
# The emulator takes the time of these tests, not the library, and g++ optimises that one (build.rs): to compile the
# library as all other tests want it takes four times as long.
cargo=(cargo --config profile.dev.package.hps.opt-level=0)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# ThreadSanitizer wants addresses where it expects them.
run=()

skip() { # why
  echo "SKIPPED: emu_sanitizers.sh: $1" >&2
}

# Whether a program with this sanitizer can be built and run here.
works() { # sanitizer
  command -v "$compiler" >/dev/null || return 1
  echo 'int main() { return 0; }' >"$scratch/try.cpp"
  "$compiler" "-fsanitize=$1" "$scratch/try.cpp" -o "$scratch/try" 2>/dev/null || return 1
  if [ "$1" = thread ] && setarch -R true 2>/dev/null; then
    run=(setarch -R)
  fi
  "${run[@]}" "$scratch/try"
}

# Builds tests.
build() { # what cargo is to build...
  "${cargo[@]}" test --no-run "$@" 2>&1 | tee "$scratch/build" >&2 || {
    echo "emu_sanitizers.sh: could not build" >&2
    exit 8
  }
}

# Fails if a test did, none ran, or a report is there.
told() { # sanitizer, pattern of a report, status
  local passed reports
  passed=$(awk '/^test result:/ { sum += $4 } END { print sum + 0 }' "$scratch/log")
  reports=$(grep -c "$2" "$scratch/log" || true)
  echo "emu_sanitizers.sh: $1: $passed tests, $reports reports"
  if [ "$3" -ne 0 ] || [ "$reports" -ne 0 ] || [ "$passed" -eq 0 ]; then
    exit 1
  fi
}

check_undefined() {
  local name="with UBSan" status=0
  export HPS_EMU_SANITIZE=undefined
  if ! works undefined; then
    skip "$compiler with -fsanitize=undefined makes no program that runs"
    HPS_EMU_SANITIZE="" name="without UBSan"
  fi
  # One set of features: nothing is built twice.
  local tests=(kernels kernel_faults hbm_model hbm_split hbm_bad_input hbm_faults hbm_driver)
  build --features emu,cuda --lib "${tests[@]/#/--test=}"
  "${cargo[@]}" test --no-fail-fast --features emu,cuda "${tests[@]/#/--test=}" 2>&1 |
    tee "$scratch/log" || status=$?
  "${cargo[@]}" test --features emu,cuda --lib hbm:: -- --skip hbm::kernels 2>&1 |
    tee -a "$scratch/log" || status=$?
  # Arrays of more than 4 GiB that are not there begin where pointers wrap around.
  "${cargo[@]}" test --features emu,cuda --lib hbm::kernels 2>&1 |
    sed '/runtime error: pointer index expression/d' | tee -a "$scratch/log" || status=$?
  told "$name" "runtime error:" "$status"
}

check_thread() {
  works thread || { skip "$compiler with -fsanitize=thread makes no program that runs"; return 0; }
  export HPS_EMU_SANITIZE=thread
  build --features emu --test kernel_faults
  local program status=0
  program=$(sed -n 's/.*tests\/kernel_faults\.rs (\(.*\))/\1/p' "$scratch/build")
  # What Rust's own channels order, a sanitizer of the kernels does not see: tests run on one thread, and how the
  # harness is told of a test's end is left out.
  echo "race:CompletedTest" >"$scratch/suppressed"
  local options="halt_on_error=0:exitcode=66:suppressions=$scratch/suppressed"
  export TSAN_OPTIONS="${TSAN_OPTIONS:+$TSAN_OPTIONS:}$options"
  local faults=("${run[@]}" "$program" --test-threads=1)
  # The test itself fails: what it waits for is said by races.cpp, in whose place TSan stands.
  "${faults[@]}" a_row_with_two_writers >"$scratch/log" 2>&1 || true
  if ! grep -q "^WARNING: ThreadSanitizer: data race" "$scratch/log"; then
    cat "$scratch/log" >&2
    echo "emu_sanitizers.sh: ThreadSanitizer does not see a planted race" >&2
    exit 1
  fi
  # One schedule: that in which it looks which barriers are met.
  HPS_KERNEL_SEEDS=0 "${faults[@]}" nothing_is_found 2>&1 | tee "$scratch/log" || status=$?
  told TSan "^WARNING: ThreadSanitizer" "$status"
}

if ! command -v "$compiler" >/dev/null; then
  skip "$compiler is not installed; the kernels were not run on their emulator"
  exit 0
fi
case ${1:-both} in
  undefined | thread) "check_$1" ;;
  both)
    check_undefined
    check_thread
    ;;
  *)
    echo "usage: tools/emu_sanitizers.sh [undefined|thread]" >&2
    exit 2
    ;;
esac
