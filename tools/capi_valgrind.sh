#!/usr/bin/env bash
# Do valgrind and AddressSanitizer see anything in programs that use the C library?
#
#   tools/capi_valgrind.sh            both
#   tools/capi_valgrind.sh valgrind   valgrind alone
#   tools/capi_valgrind.sh asan       AddressSanitizer alone (of the programs; the library is as it is)
#
# Runs the test programs of capi/tests/c and the trainer of capi/examples/c. Builds below target/capi-valgrind.
# Exit codes: 0 nothing was seen, 1 something was, 8 could not run (no valgrind, no compiler), 16 wrong
# arguments.
#
#   CARGO_TARGET_DIR  builds in its folder capi-valgrind instead
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

case "${1:-both}" in
  both | valgrind | asan) wanted=${1:-both} ;;
  *)
    sed -n '2,12s/^# \?//p' "$0" >&2
    exit 16
    ;;
esac
if [ "$wanted" != asan ] && ! command -v valgrind >/dev/null; then
  echo "capi_valgrind.sh: there is no valgrind" >&2
  exit 8
fi

work=$(realpath -m "${CARGO_TARGET_DIR:-target}")/capi-valgrind
mkdir -p "$work"
tools/install_c.sh --profile dev "$work/prefix" >/dev/null || exit 8
export PKG_CONFIG_PATH=$work/prefix/lib/pkgconfig LD_LIBRARY_PATH=$work/prefix/lib
stores=$(mktemp -d "$work/stores.XXXXXX")
trap 'rm -rf "$stores"' EXIT

# compile NAME FLAGS...: the programs, as $work/NAME-PROGRAM.
compile() {
  local name=$1
  shift
  local flags
  flags=$(pkg-config --cflags --libs hps)
  # shellcheck disable=SC2086 # the flags are words
  {
    cc -std=c99 -g "$@" capi/tests/c/all_calls.c $flags -lm -o "$work/$name-all_calls"
    cc -std=c99 -g "$@" capi/tests/c/history.c $flags -o "$work/$name-history"
    cc -std=c99 -g "$@" capi/tests/c/lifetimes.c $flags -lpthread -o "$work/$name-lifetimes"
    cc -std=c99 -g "$@" capi/tests/c/passes.c $flags -o "$work/$name-passes"
    cc -std=c99 -g "$@" capi/tests/c/deltas.c $flags -o "$work/$name-deltas"
    c++ -std=c++17 -g "$@" capi/tests/c/wrapper.cpp $flags -o "$work/$name-wrapper"
    cc -std=c99 -g "$@" capi/examples/c/train.c $flags -o "$work/$name-train"
  } || exit 8
}

# run NAME COMMAND...: each program under a command.
seen=0
run() {
  local name=$1
  shift
  for program in all_calls history lifetimes passes deltas wrapper train; do
    local directory=$stores/$name-$program arguments=()
    mkdir "$directory"
    [ "$program" != train ] || arguments=(20 10)
    local log=$work/$name-$program.log
    if "$@" "$work/$name-$program" "$directory" "${arguments[@]}" >"$log" 2>&1; then
      echo "$name: $program: nothing seen"
    else
      echo "$name: $program: exit code $?"
      tail -n 60 "$log"
      seen=1
    fi
    rm -rf "$directory"
  done
}

if [ "$wanted" != asan ]; then
  compile valgrind
  run valgrind valgrind --quiet --error-exitcode=1 --leak-check=full --show-leak-kinds=definite \
    --errors-for-leak-kinds=definite --fair-sched=yes
fi
if [ "$wanted" != valgrind ]; then
  compile asan -fsanitize=address,undefined -fno-sanitize-recover=all
  run asan env ASAN_OPTIONS=detect_leaks=1
fi
exit "$seen"
