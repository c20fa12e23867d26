#!/bin/sh
# Are four disks four times one? Loads, pulls cold rows and compacts on loop images that a cgroup holds to 8 000 reads and
# 60 MB a second each: on one of them, then on four, by turns. four_disks.py says what is measured.
#
#   tools/four_disks.sh [ROUNDS [FLAGS]]
#
# ROUNDS: how often both are measured (default 3). FLAGS: more flags of hps-bench. BIN: a directory with hps-bench, instead
# of building it. Needs root, loop devices, a blkio cgroup (version 1 or 2), python3 and up to 24 GB of disk; where one is
# missing it says SKIPPED. 12 minutes a round.
# Exit codes: 0 each is 3.5 times as fast, or SKIPPED; 4 not; 8 could not run.
set -eu
cd "$(dirname "$0")/.."

. tools/with_trainer.sh
if ! command -v python3 > /dev/null; then
    echo "four_disks: SKIPPED: python3 is not installed; NOTHING RAN ON FOUR DISKS" >&2
    exit 0
fi
binaries hps-bench
work_folder four_disks
rounds=${1:-3}
[ $# -eq 0 ] || shift
own=
if unshare --mount true 2> /dev/null; then own='unshare --mount'; fi
# shellcheck disable=SC2086
$own python3 tools/four_disks.py "$rounds" "$BIN/hps-bench" "$work" "$@"
