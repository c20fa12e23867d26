#!/bin/sh
# Kills the trainer at random moments and resumes it; every resumed run must end with the digest
# and the AUC of one that was never killed.
#
#   tools/kill_resume.sh [CYCLES] [DATA ...]
#
# CYCLES (default 50) kills in all; a run that gets to its end begins a new store.
# DATA: files for the trainer; without any, a small set of ROWS (12000) is made here. Flags in
# CTR_FLAGS. The time of a whole run is measured first; a kill comes within SHARE (30) percent of
# it, and a store is run to its end and compared after ROUNDS (12) kills at the latest.
# BIN: a directory with ctr, instead of building it.
# SEED repeats the same delays. Exit codes: 0 all equal, 4 a difference, 8 could not run.
set -eu
cd "$(dirname "$0")/.."
cycles=${1:-50}
[ $# -gt 0 ] && shift
seed=${SEED:-$(date +%s)}
share=${SHARE:-30}
rounds=${ROUNDS:-12}
flags=${CTR_FLAGS:---batch 64 --checkpoint-every 5 --cache-mib 2 --depth 1}

if [ -z "${BIN:-}" ]; then
    cargo build --release --quiet --example ctr || exit 8
    ctr=${CARGO_TARGET_DIR:-target}/release/examples/ctr
else
    ctr=$BIN/ctr
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/kill-resume-XXXXXX")
child=
trap '[ -z "$child" ] || kill -9 "$child" 2> /dev/null || true; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

if [ $# -eq 0 ]; then
    tools/clicks.sh 4 40000 | head -n "${ROWS:-12000}" > "$work/data.tsv"
    set -- "$work/data.tsv"
fi

# The figures that must not differ, of a run that ends.
figures() {
    # shellcheck disable=SC2086
    "$ctr" --json --digest $flags "$@" 2> "$work/stderr" | tail -n 1 |
        tr ',{}' '\n\n\n' | grep -E '"(digest|auc|auc_tail|logloss|examples|skipped_lines)"' | sort
}

begin=$(date +%s%N)
figures "$@" > "$work/expected" || true
end=$(date +%s%N)
[ -s "$work/expected" ] || { cat "$work/stderr" >&2; exit 8; }
longest_us=$(((end - begin) * share / 100000 + 1))

killed=0 ended=0 resumed=0 round=0 failed=0 state=$seed
while [ "$killed" -lt "$cycles" ]; do
    state=$(((state * 1103515245 + 12345) % 2147483648))
    delay=$(((state / 128) % longest_us))
    # shellcheck disable=SC2086
    "$ctr" --dir "$work/store" --resume $flags "$@" > /dev/null 2> "$work/log" &
    child=$!
    sleep "$(printf '%d.%06d' $((delay / 1000000)) $((delay % 1000000)))"
    kill -9 "$child" 2> /dev/null || true
    code=0
    wait "$child" 2> /dev/null || code=$?
    child=
    if grep -q 'resuming after batch' "$work/log"; then
        resumed=$((resumed + 1))
    fi
    case $code in
    0) ;;
    137) killed=$((killed + 1)) ;;
    *)
        tail -n 3 "$work/log" >&2
        failed=$((failed + 1))
        [ "$failed" -lt 10 ] || { echo "kill_resume: ten failures, given up" >&2; break; }
        ;;
    esac
    round=$((round + 1))
    # At the end, and at times before it: run to the end, compare, start a new store.
    if [ $((round % rounds)) -eq 0 ] || [ "$killed" -ge "$cycles" ] || [ "$code" -eq 0 ]; then
        figures --dir "$work/store" --resume "$@" > "$work/found" || true
        if ! diff "$work/expected" "$work/found" >&2; then
            cat "$work/stderr" >&2
            failed=$((failed + 1))
        fi
        rm -rf "$work/store"
        ended=$((ended + 1))
    fi
done
seconds=$((($(date +%s%N) - begin) / 1000000000))
echo "kill_resume: $killed kills in $seconds s, $resumed resumed from a checkpoint," \
    "$ended runs ended, $failed differ or failed, seed $seed, $(tr '\n' ' ' < "$work/expected")"
[ "$failed" -eq 0 ] || exit 4
