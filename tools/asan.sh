#!/usr/bin/env bash
# Do AddressSanitizer and LeakSanitizer see anything in the unit, model and crash tests?
#
#   tools/asan.sh                  all unit tests; a tenth of the model's cases and of the crash
#                                  workloads
#   HPS_ASAN_FULL=1 tools/asan.sh  as many of both as `cargo test`
#   tools/asan.sh ARGUMENTS...     what `cargo test` is to run instead
#
# `PROPTEST_CASES` and `HPS_CRASH_WORKLOADS` are kept if they are set. Prints what it ran and how
# many tests; exits 1 on a report or a test that failed, 8 where nothing could be built. Builds
# below target/asan.
#
#   CARGO_TARGET_DIR           builds in its folder asan instead of in target/asan
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

if [ $# -eq 0 ]; then
  set -- --lib --test model --test crash
fi
if [ -z "${HPS_ASAN_FULL:-}" ]; then
  export PROPTEST_CASES=${PROPTEST_CASES:-26} HPS_CRASH_WORKLOADS=${HPS_CRASH_WORKLOADS:-5}
fi
host=$(rustc -vV | sed -n 's/^host: //p')
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/asan
# Sanitizers need flags that stable Rust has only for itself.
export RUSTC_BOOTSTRAP=1 CARGO_TERM_PROGRESS_WHEN=never CARGO_TARGET_DIR=$target
export RUSTFLAGS="-Zsanitizer=address"
# A test asks for more memory than there is, and for the error that it gets.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=1:detect_stack_use_after_return=1:allocator_may_return_null=1"

# With --target, build scripts and macros are left alone.
cargo test --target "$host" --features sim --no-run "$@" || {
  echo "asan.sh: could not build" >&2
  exit 8
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cases="PROPTEST_CASES=${PROPTEST_CASES:-} HPS_CRASH_WORKLOADS=${HPS_CRASH_WORKLOADS:-}"
echo "asan.sh: $cases cargo test --target $host --features sim $*"
status=0
cargo test --no-fail-fast --target "$host" --features sim "$@" 2>&1 | tee "$log" || status=$?
tests=$(awk '/^test result:/ { sum += $4 } END { print sum + 0 }' "$log")
reports=$(grep -cE '^(==[0-9]+==)?ERROR: (Address|Leak)Sanitizer' "$log" || true)
echo "asan.sh: $tests tests passed, $reports reports"
if [ "$status" -ne 0 ] || [ "$reports" -ne 0 ] || [ "$tests" -eq 0 ]; then
  exit 1
fi
