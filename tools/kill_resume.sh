#!/bin/sh
# Kills the trainer at random moments and resumes it; every resumed run must end with the digest
# and the AUC of one that was never killed.
#
#   tools/kill_resume.sh [CYCLES] [DATA ...]
#
# CYCLES (default 50) kills in all; a run that gets to its end begins a new store.
# DATA: files for the trainer; without any, a small set of ROWS (12000) is made here. Flags in
# CTR_FLAGS. The first kill of a store comes at once, before its first checkpoint; every third waits
# until the trainer has printed BATCHES (14) batches, after some checkpoints; the others come within
# SHARE (30) percent of the time of a whole run, which is measured first. A store is run to its end
# and compared after ROUNDS (12) kills at the latest. Where a run begins tells where the kill before
# it came: of 12 kills or more, one in 20 must come before a checkpoint, and one in four after one,
# resumed from there.
# BIN: a directory with ctr, instead of building it.
# SEED repeats the same delays; else HPS_SEED or the commit. Exit codes: 0 all equal, 4 a
# difference or too few kills on a side, 8 could not run.
set -eu
cd "$(dirname "$0")/.."
cycles=${1:-50}
[ $# -gt 0 ] && shift
. tools/seed.sh
seed=${SEED:-$(fresh_seed)}
batches=${BATCHES:-14}
share=${SHARE:-30}
rounds=${ROUNDS:-12}
flags=${CTR_FLAGS:---batch 64 --checkpoint-every 5 --cache-mib 2 --depth 1}

. tools/with_trainer.sh
binaries ctr
work_folder kill-resume

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

# Until the trainer has printed so many batches, or has ended and waits for its end to be noticed.
wait_for_batches() {
    while [ "$(wc -l < "$work/lines")" -lt "$1" ]; do
        case $(sed 's/.*) //' "/proc/$child/stat" 2> /dev/null) in
        Z* | "") break ;;
        esac
        sleep 0.005
    done
}

# Where the kill of the run before this one came.
count_last_kill() {
    if grep -q 'resuming after batch' "$work/log"; then
        resumed=$((resumed + 1))
        [ "$was_killed" -eq 0 ] || after=$((after + 1))
    elif [ "$was_killed" -eq 1 ] && grep -q 'starting from the beginning' "$work/log"; then
        before=$((before + 1))
    fi
    was_killed=0
}

killed=0 ended=0 resumed=0 round=0 failed=0 state=$seed
before=0 after=0 was_killed=0
while [ "$killed" -lt "$cycles" ]; do
    draw_delay "$longest_us"
    : > "$work/lines"
    # shellcheck disable=SC2086
    "$ctr" --dir "$work/store" --resume --json $flags "$@" > "$work/lines" 2> "$work/log" &
    child=$!
    case $((round % rounds)) in
    0) delay=$((delay % 5000)) ;;
    2 | 5 | 8 | 11)
        wait_for_batches "$batches"
        delay=$((delay % 5000))
        ;;
    esac
    kill_child "$delay"
    count_last_kill
    case $code in
    0) ;;
    137)
        killed=$((killed + 1))
        was_killed=1
        ;;
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
        cp "$work/stderr" "$work/log"
        count_last_kill
        rm -rf "$work/store"
        ended=$((ended + 1))
        # A new store begins with its first kill.
        round=$(((round + rounds - 1) / rounds * rounds))
    fi
done
seconds=$((($(date +%s%N) - begin) / 1000000000))
echo "kill_resume: $killed kills in $seconds s, $before before the first checkpoint, $after after" \
    "one, $resumed resumed, $ended runs ended, $failed differ or failed, seed $seed, $(tr '\n' ' ' < "$work/expected")"
[ "$failed" -eq 0 ] || exit 4
if [ "$cycles" -ge 12 ] && { [ $((before * 20)) -lt "$killed" ] || [ $((after * 4)) -lt "$killed" ]; }; then
    echo "kill_resume: too few kills before the first checkpoint, or after one" >&2
    exit 4
fi
