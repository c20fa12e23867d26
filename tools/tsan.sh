#!/usr/bin/env bash
# Does ThreadSanitizer see two threads at the same memory without an order between them?
#
#   tools/tsan.sh                      the stress test
#   tools/tsan.sh ARGUMENTS...         what `cargo test` is to run instead, as in
#                                      tools/tsan.sh --lib io::
#
# The standard library that comes with Rust is not built for it, so the engine's locks are
# parking_lot's here (src/sync/visible.rs), and what is still reported about the standard library is
# in tools/tsan.supp, each with a reason. Prints what it ran, how many tests, and how many reports were
# suppressed; exits 1 on a report or a test that failed, 8 where nothing could be built. A job for
# the night, not a gate: 5 to 15 times slower than without. Builds below target/tsan.
#
#   HPS_TSAN_SUPPRESSIONS=FILE  instead of tools/tsan.supp; /dev/null shows everything
#   CARGO_TARGET_DIR            builds in its folder tsan instead of in target/tsan
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

if [ $# -eq 0 ]; then
  set -- --test stress
fi
host=$(rustc -vV | sed -n 's/^host: //p')
suppressions=$(realpath "${HPS_TSAN_SUPPRESSIONS:-tools/tsan.supp}")
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/tsan
# Sanitizers need flags that stable Rust has only for itself.
export RUSTC_BOOTSTRAP=1 CARGO_TERM_PROGRESS_WHEN=never CARGO_TARGET_DIR=$target
export RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer --cfg hps_tsan"
export TSAN_OPTIONS="${TSAN_OPTIONS:+$TSAN_OPTIONS:}suppressions=$suppressions:halt_on_error=0:history_size=7:print_suppressions=1:exitcode=66"

# With --target, build scripts and macros are left alone.
cargo test --target "$host" --features sim --no-run "$@" || {
  echo "tsan.sh: could not build" >&2
  exit 8
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "tsan.sh: cargo test --target $host --features sim $*"
status=0
cargo test --target "$host" --features sim "$@" 2>&1 | tee "$log" || status=$?
tests=$(awk '/^test result:/ { sum += $4 } END { print sum + 0 }' "$log")
reports=$(grep -c '^WARNING: ThreadSanitizer' "$log" || true)
echo "tsan.sh: $tests tests passed, $reports reports"
if [ "$status" -ne 0 ] || [ "$reports" -ne 0 ] || [ "$tests" -eq 0 ]; then
  exit 1
fi
