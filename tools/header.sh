#!/usr/bin/env bash
# Makes capi/include/hps.h from the sources of capi.
#
#   tools/header.sh          writes the header
#   tools/header.sh --check  writes nothing; prints how the header differs from what it should be, and
#                            exits 1 if it does
#
# Installs cbindgen below target/cbindgen if it is not there. Exit codes: 0 done or equal, 1 differs, 8 could
# not run, 16 wrong arguments.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

version=0.29.4
header=capi/include/hps.h
case "${1:-}" in
  "" | --check) ;;
  *)
    sed -n '2,9s/^# \?//p' "$0" >&2
    exit 16
    ;;
esac

cbindgen=target/cbindgen/bin/cbindgen
if [ "$("$cbindgen" --version 2>/dev/null)" != "cbindgen $version" ]; then
  # It reads a few files: built for debugging, in a third of the time.
  CARGO_PROFILE_DEV_DEBUG=0 cargo install --root target/cbindgen --locked --force --debug "cbindgen@$version" || {
    echo "header.sh: could not install cbindgen $version" >&2
    exit 8
  }
fi

made=$(mktemp)
trap 'rm -f "$made"' EXIT
"$cbindgen" --quiet --config capi/cbindgen.toml --output "$made" capi || {
  echo "header.sh: cbindgen failed" >&2
  exit 8
}
# `const char * name` as people write it, in declarations.
sed -i -E '/^ *(\*|\/)/!s/ (\*+) ([a-z])/ \1\2/g; s/[ \t]+$//' "$made"

case "${1:-}" in
  --check)
    if ! diff -u --label "$header" --label "made from capi/src" "$header" "$made"; then
      echo "header.sh: $header is not what tools/header.sh makes" >&2
      exit 1
    fi
    ;;
  *)
    cp "$made" "$header"
    chmod 644 "$header"
    ;;
esac
