#!/usr/bin/env bash
# Do UndefinedBehaviorSanitizer and ThreadSanitizer see anything in the kernels, run on their emulator?
#
#   tools/emu_sanitizers.sh              both
#   tools/emu_sanitizers.sh undefined    only this one; so is `thread`
#
# The kernels are built with the sanitizer (HPS_EMU_SANITIZE, see build.rs), the rest of the library is not.
# UBSan: overflows, shifts, misaligned and null addresses while the tests compare with plain Rust. TSan: every
# CUDA thread is a fiber that it takes for a thread; launches, barriers and __syncwarp are all the order there
# is between two of them, so that it finds a race whatever the schedule is. That it would is tried first, on a
# kernel with a planted race. A fiber costs TSan much, so it sees one schedule of each table of
# tests/kernel_faults.rs. (races.cpp finds the same and more in all tests; this is a second opinion.)
#
# Prints tests and reports of each; exits 1 on a report or a test that failed, 8 where nothing could be
# built. Where the compiler or a library of a sanitizer is missing it says SKIPPED, and 0.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

export CARGO_TERM_PROGRESS_WHEN=never RUST_BACKTRACE=0
compiler=${CXX:-c++}
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

# Builds the tests and says where they are: kernels, kernel_faults, hbm_model.
build() { # sanitizer
  HPS_EMU_SANITIZE=$1 cargo test --features emu --test kernels --test kernel_faults --test hbm_model \
    --no-run 2>&1 | tee "$scratch/build" >&2 || {
    echo "emu_sanitizers.sh: could not build" >&2
    exit 8
  }
}

program() { # test
  sed -n "s/.*tests\/$1\.rs (\(.*\))/\1/p" "$scratch/build"
}

# Runs some tests; what they say stays in $scratch/log.
tests() { # test, what it is to run...
  # On one thread: what others are told by Rust's own channels, a sanitizer of the kernels does not see.
  "${run[@]}" "$(program "$1")" --test-threads=1 "${@:2}" >>"$scratch/log" 2>&1
}

# Fails if a test did, or a report is there.
told() { # sanitizer, pattern of a report, status
  local passed reports
  passed=$(awk '/^test result:/ { sum += $4 } END { print sum + 0 }' "$scratch/log")
  reports=$(grep -c "$2" "$scratch/log" || true)
  echo "emu_sanitizers.sh: $1: $passed tests of the emulator, $reports reports"
  if [ "$3" -ne 0 ] || [ "$reports" -ne 0 ] || [ "$passed" -eq 0 ]; then
    head -n 200 "$scratch/log" >&2
    exit 1
  fi
}

check_undefined() {
  works undefined || { skip "$compiler with -fsanitize=undefined makes no program that runs"; return 0; }
  build undefined
  local status=0
  : >"$scratch/log"
  HPS_KERNEL_SEEDS=1 tests kernels || status=$?
  tests kernel_faults nothing_is_found || status=$?
  PROPTEST_CASES=4 tests hbm_model emulator || status=$?
  told UBSan "runtime error:" "$status"
}

check_thread() {
  works thread || { skip "$compiler with -fsanitize=thread makes no program that runs"; return 0; }
  build thread
  local status=0
  # How the test harness is told of a test's end: a channel of Rust's library, which is not built with TSan.
  echo "race:CompletedTest" >"$scratch/suppressed"
  local options="halt_on_error=0:exitcode=66:suppressions=$scratch/suppressed"
  export TSAN_OPTIONS="${TSAN_OPTIONS:+$TSAN_OPTIONS:}$options"
  # The test itself fails: what it waits for is said by races.cpp, in whose place TSan stands.
  : >"$scratch/log"
  tests kernel_faults a_row_with_two_writers || true
  if ! grep -q "^WARNING: ThreadSanitizer: data race" "$scratch/log"; then
    cat "$scratch/log" >&2
    echo "emu_sanitizers.sh: ThreadSanitizer does not see a planted race" >&2
    exit 1
  fi
  : >"$scratch/log"
  HPS_KERNEL_SEEDS=1 tests kernel_faults nothing_is_found || status=$?
  told TSan "^WARNING: ThreadSanitizer" "$status"
}

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
