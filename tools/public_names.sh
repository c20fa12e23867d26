#!/usr/bin/env bash
# Has what a user of the library can name changed without a word?
#
#   tools/public_names.sh               compares the public names with docs/PUBLIC_NAMES.txt
#   HPS_BLESS=1 tools/public_names.sh   writes that file anew: the diff is for a reviewer, and CHANGELOG.md
#
# By rustdoc's JSON, with what is hidden from the documents. Without the feature `sim` nothing public
# is hidden. Ends with 1 where the names differ or something is hidden.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

names=docs/PUBLIC_NAMES.txt
target=${CARGO_TARGET_DIR:-target}
RUSTC_BOOTSTRAP=1 cargo rustdoc --quiet -p hps --lib -- -Z unstable-options --output-format json \
  --document-hidden-items
found=$(python3 tools/public_names.py <"$target/doc/hps.json")
if grep '^hidden ' <<<"$found"; then
  echo "public_names.sh: these can be named and are hidden: make them private, or document them" >&2
  exit 1
fi
if [ -n "${HPS_BLESS:-}" ]; then
  printf '%s\n' "$found" >"$names"
fi
if ! diff -u "$names" - <<<"$found"; then
  echo "public_names.sh: public names have changed: if that is meant, HPS_BLESS=1 tools/public_names.sh" >&2
  exit 1
fi
echo "public_names.sh: $(wc -l <"$names") public names, as docs/PUBLIC_NAMES.txt has them"
