#!/usr/bin/env bash
# Trains on the same data with every combination of cache size, shards, threads, depth and I/O
# engine; all runs must end with the same digest, AUC and log loss.
#
#   tools/digest_matrix.sh [DATA ...]
#
# DATA: files for the trainer; without any, a set is made here. Cache sizes in MiB in CACHES
# (default 3 11 225: 2 %, 10 % and 200 % of the table of the set made here). Exit codes: 0 all
# equal, 4 a difference, 8 could not run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
caches=${CACHES:-3 11 225}
cargo build --release --quiet --example ctr || exit 8
ctr=${CARGO_TARGET_DIR:-target}/release/examples/ctr
work=$(mktemp -d "${TMPDIR:-/tmp}/digest-matrix-XXXXXX")
trap 'rm -rf "$work"' EXIT

if [ $# -eq 0 ]; then
  tools/clicks.sh 20 60000 >"$work/data.tsv"
  set -- "$work/data.tsv"
fi

figures() {
  "$ctr" --json --digest --batch 64 "$@" 2>"$work/stderr" | tail -n 1 |
    tr ',{}' '\n\n\n' | grep -E '"(digest|auc|auc_tail|logloss|examples)"' | sort
}

runs=0
different=0
for cache in $caches; do
  for shards in 1 4; do
    for threads in 1 2; do
      for depth in 0 3; do
        for io in uring pread; do
          flags=(--cache-mib "$cache" --shards "$shards" --threads "$threads"
            --depth "$depth" --io "$io")
          if ! figures "${flags[@]}" "$@" >"$work/found" || [ ! -s "$work/found" ]; then
            echo "could not run with ${flags[*]}:" >&2
            cat "$work/stderr" >&2
            exit 8
          fi
          runs=$((runs + 1))
          [ -f "$work/expected" ] || cp "$work/found" "$work/expected"
          if ! diff "$work/expected" "$work/found" >&2; then
            echo "DIFFERS with ${flags[*]}" >&2
            different=$((different + 1))
          fi
        done
      done
    done
  done
done
grep digest "$work/expected"
echo "digest_matrix.sh: $runs runs, $different differ"
[ "$different" -eq 0 ] || exit 4
