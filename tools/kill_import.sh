#!/bin/sh
# Kills hps-import while it applies a delta; each time the copy must be as before or as after, and
# applying it again must end with the source's rows.
#
#   tools/kill_import.sh [KILLS]
#
# KILLS (default 50) at random moments of the run; those that come after its end are made again.
# BIN: a directory with ctr, hps-fsck, hps-export and hps-import, instead of building them.
# SEED repeats the same delays; else HPS_SEED or the commit. Exit codes: 0 all equal, 4 a difference, 8
# could not run.
set -eu
cd "$(dirname "$0")/.."
kills=${1:-50}
. tools/seed.sh
seed=${SEED:-$(fresh_seed)}

. tools/with_trainer.sh
binaries ctr hps-fsck hps-export hps-import
work_folder kill-import

# Of all rows, of a store in which hps-fsck finds nothing wrong.
digest() { # store
    "$BIN/hps-fsck" --digest "$1" > "$work/fsck.out" && grep -i digest "$work/fsck.out"
}
wrong() {
    echo "kill_import: $1 (seed $seed)" >&2
    exit 4
}

# A checkpoint in the middle, and one at the end.
tools/clicks.sh 4 40000 | head -n 12000 > "$work/data.tsv"
flags="--dir $work/source --json --batch 64 --cache-mib 2 --depth 1"
# The checkpoint of batch 60 is made beside the batches after it: with a busy processor later than batch 70.
for batches in 70 100 130 150; do
    : > "$work/lines"
    # shellcheck disable=SC2086
    "$ctr" $flags --resume --checkpoint-every 60 "$work/data.tsv" > "$work/lines" 2> /dev/null &
    child=$!
    until [ "$(wc -l < "$work/lines")" -ge "$batches" ]; do
        kill -0 "$child" 2> /dev/null || break
        sleep 0.01
    done
    kill_child 0
    "$BIN/hps-export" --quiet "$work/source" "$work/whole" --format delta 2> "$work/log" && break
done
[ -d "$work/whole" ] || { cat "$work/log" >&2; exit 8; }
# shellcheck disable=SC2086
"$ctr" $flags --resume "$work/data.tsv" > /dev/null || exit 8
"$BIN/hps-export" --quiet "$work/source" "$work/delta" --format delta --after "$work/whole" || exit 8
"$BIN/hps-import" --quiet "$work/base" "$work/whole" --format delta --create || exit 8
before=$(digest "$work/base")
after=$(digest "$work/source")
[ "$before" != "$after" ] || wrong "the delta changes nothing"

begin=$(date +%s%N)
cp -r "$work/base" "$work/copy"
"$BIN/hps-import" --quiet "$work/copy" "$work/delta" --format delta || exit 8
longest_us=$((($(date +%s%N) - begin) / 1000 + 1))
[ "$(digest "$work/copy")" = "$after" ] || wrong "the copy differs from its source"

killed=0 late=0 was_before=0 was_after=0 state=$seed
while [ "$killed" -lt "$kills" ]; do
    rm -rf "$work/copy"
    cp -r "$work/base" "$work/copy"
    draw_delay "$longest_us"
    "$BIN/hps-import" --quiet "$work/copy" "$work/delta" --format delta 2> "$work/log" &
    child=$!
    kill_child "$delay"
    case $code in
    137) killed=$((killed + 1)) ;;
    0)
        late=$((late + 1))
        [ "$late" -lt $((10 * kills + 100)) ] || wrong "no kill comes in time"
        ;;
    *) wrong "exit code $code: $(cat "$work/log")" ;;
    esac
    found=$(digest "$work/copy") || wrong "the copy is damaged after a kill: $(cat "$work/fsck.out")"
    case $found in
    "$before") was_before=$((was_before + 1)) ;;
    "$after") was_after=$((was_after + 1)) ;;
    *) wrong "neither as before nor as after: $found" ;;
    esac
    "$BIN/hps-import" --quiet "$work/copy" "$work/delta" --format delta || wrong "applying it again failed"
    [ "$(digest "$work/copy")" = "$after" ] || wrong "the copy differs from its source"
done
echo "kill_import: $killed kills, $late imports ended before; the copy was $was_before times as before, $was_after times as after; seed $seed"
