#!/bin/sh
# Trains on a disk that a cgroup holds to 10 MiB/s, then to 200 requests a second; memory,
# descriptors and disk must be flat after the warm-up. slow_disk.py says what is asked.
#
#   tools/slow_disk.sh [SECONDS]
#
# SECONDS (default 60) after the warm-up, half for each limit. Flags of the trainer in CTR_FLAGS.
# BIN: a directory with ctr and hps-fsck, instead of building them. Needs root, loop devices, a blkio
# cgroup (version 1 or 2) and python3; where they are missing it says SKIPPED.
# Exit codes: 0 flat, or SKIPPED; 4 not; 8 could not run.
set -eu
cd "$(dirname "$0")/.."
flags=${CTR_FLAGS:---batch 256 --cache-mib 4 --depth 1 --checkpoint-every 10}

. tools/with_trainer.sh
with_trainer slow_disk "NOTHING RAN ON A SLOW DISK"

tools/clicks.sh 8 60000 | head -n 20000 > "$work/data.tsv"
# A mount of its own, which goes with the last process even where that is killed.
own=
if unshare --mount true 2> /dev/null; then own='unshare --mount'; fi
# shellcheck disable=SC2086
$own python3 tools/slow_disk.py "${1:-60}" "$ctr" "$BIN/hps-fsck" "$work/data.tsv" $flags
