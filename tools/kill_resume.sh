#!/bin/sh
# Kills the trainer at random moments and resumes it; every resumed run must end with the digest
# and the AUC of one that was never killed.
#
#   tools/kill_resume.sh [CYCLES] [DATA ...]
#
# CYCLES (default 50) kills in all; a run that gets to its end begins a new store.
# DATA: files for the trainer; without any, a small set is made here. Flags in CTR_FLAGS.
# SEED repeats the same delays. Exit codes: 0 all equal, 4 a difference, 8 could not run.
set -eu
cd "$(dirname "$0")/.."
cycles=${1:-50}
[ $# -gt 0 ] && shift
seed=${SEED:-$(date +%s)}
flags=${CTR_FLAGS:---batch 64 --checkpoint-every 5 --cache-mib 2 --depth 1}

cargo build --release --quiet --example ctr || exit 8
ctr=${CARGO_TARGET_DIR:-target}/release/examples/ctr
work=$(mktemp -d "${TMPDIR:-/tmp}/kill-resume-XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM

if [ $# -eq 0 ]; then
    tools/clicks.sh 4 40000 > "$work/data.tsv"
    set -- "$work/data.tsv"
fi

# The figures that must not differ, of a run that ends.
figures() {
    # shellcheck disable=SC2086
    "$ctr" --json --digest $flags "$@" 2> "$work/stderr" | tail -n 1 |
        tr ',{}' '\n\n\n' | grep -E '"(digest|auc|auc_tail|logloss|examples|skipped_lines)"' | sort
}

begin=$(date +%s%N)
figures "$@" > "$work/expected"
end=$(date +%s%N)
[ -s "$work/expected" ] || { cat "$work/stderr" >&2; exit 8; }
whole_ms=$(((end - begin) / 1000000))

killed=0 ended=0 round=0 failed=0 state=$seed
while [ "$killed" -lt "$cycles" ]; do
    # Up to half of a whole run, so that most rounds take several kills.
    state=$(((state * 1103515245 + 12345) % 2147483648))
    delay=$(((state / 65536) % (whole_ms / 2 + 1)))
    # shellcheck disable=SC2086
    "$ctr" --dir "$work/store" --resume $flags "$@" > /dev/null 2>> "$work/log" &
    child=$!
    sleep "$(printf '%d.%03d' $((delay / 1000)) $((delay % 1000)))"
    kill -9 "$child" 2> /dev/null || true
    code=0
    wait "$child" 2> /dev/null || code=$?
    case $code in
    0) ended=$((ended + 1)) ;;
    137) killed=$((killed + 1)) ;;
    *)
        tail -n 3 "$work/log" >&2
        failed=$((failed + 1))
        ;;
    esac
    round=$((round + 1))
    # Every fifth round, and at the end: run to the end, compare, start a new store.
    if [ $((round % 5)) -eq 0 ] || [ "$killed" -ge "$cycles" ] || [ "$code" -eq 0 ]; then
        figures --dir "$work/store" --resume "$@" > "$work/found"
        if ! diff "$work/expected" "$work/found" >&2; then
            cat "$work/stderr" >&2
            failed=$((failed + 1))
        fi
        rm -rf "$work/store"
        ended=$((ended + 1))
    fi
done
echo "kill_resume: $killed kills, $ended runs ended, $failed differ or failed, seed $seed," \
    "$(tr '\n' ' ' < "$work/expected")"
[ "$failed" -eq 0 ] || exit 4
