#!/bin/sh
# Cuts the power of ext4 and XFS file systems under the trainer, at random moments; every run that resumes
# must end with the digest of one that was never stopped. power_cut.py says what is asked.
#
#   tools/power_cut.sh [CUTS]
#
# CUTS (default 20). SEED repeats the delays; else HPS_SEED or the commit. Flags of the trainer in CTR_FLAGS; EVERY batches a
# checkpoint (4); ROWS of the data set (12000). On a failure the image is kept in the file KEEP.
# BIN: a directory with ctr and hps-fsck, instead of building them.
# Needs root, loop devices, e2fsprogs, xfsprogs and python3; where they are missing it says SKIPPED.
# Exit codes: 0 all held, or SKIPPED; 4 something did not; 8 could not run.
set -eu
cd "$(dirname "$0")/.."
cuts=${1:-20}
. tools/seed.sh
seed=${SEED:-$(fresh_seed)}
flags=${CTR_FLAGS:---batch 64 --cache-mib 2 --depth 1}

. tools/with_trainer.sh
with_trainer power_cut "NO POWER WAS CUT"

tools/clicks.sh 4 40000 | head -n "${ROWS:-12000}" > "$work/data.tsv"
# A mount of its own, which goes with the last process even where that is killed.
own=
if unshare --mount true 2> /dev/null; then own='unshare --mount'; fi
# shellcheck disable=SC2086
$own python3 tools/power_cut.py "$cuts" "$seed" "${EVERY:-4}" "$ctr" "$BIN/hps-fsck" \
    "$work/data.tsv" $flags
