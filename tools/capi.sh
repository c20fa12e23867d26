#!/usr/bin/env bash
# Checks the C library: its header is what its sources say, programs in C and C++ against it do what they
# promise, and neither valgrind nor AddressSanitizer sees anything in them.
#
#   tools/capi.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/header.sh --check
# A folder of its own: no other build waits for this one.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/capi
cargo test -p hps-capi
tools/capi_valgrind.sh
