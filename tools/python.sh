#!/usr/bin/env bash
# Builds the Python package as its users do, installs it in a virtual environment and tests it there.
#
#   tools/python.sh [PYTEST ARGUMENTS]
#
# HPS_PYTHON names the interpreter; without it, that of the system is taken where it has torch (Debian's
# python3-torch), else the first python3. Tests of hps.torch are left out, loudly, where torch is not there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

wheel_bytes_max=$((10 << 20))
made=$PWD/target/python
export CARGO_TARGET_DIR=$made/build
unset PYTHONPATH

python=${HPS_PYTHON:-}
if [ -z "$python" ]; then
  python=python3
  if /usr/bin/python3 -c 'import torch' 2>/dev/null; then
    python=/usr/bin/python3
  fi
fi

mkdir -p "$made"
"$python" -m venv --clear --system-site-packages "$made/venv"
pip() { "$made/venv/bin/pip" --quiet --disable-pip-version-check "$@"; }
pip install 'pytest>=7' 'hypothesis>=6' mypy

rm -rf "$made/wheel"
pip wheel --no-deps --wheel-dir "$made/wheel" ./python
wheel=$(ls "$made"/wheel/hps-*-cp39-abi3-*.whl)
bytes=$(stat -c %s "$wheel")
echo "wheel: $bytes bytes"
if [ "$bytes" -gt "$wheel_bytes_max" ]; then
  echo "the wheel has more than $wheel_bytes_max bytes" >&2
  exit 1
fi
pip install "$wheel"

# The stubs are those of what was built.
(cd "$made" && "$made/venv/bin/python" -m mypy.stubtest --ignore-disjoint-bases hps._hps)

# What an example does, in Rust.
cargo build --release --quiet -p hps-python --example twin
export HPS_TWIN=$CARGO_TARGET_DIR/release/examples/twin

log=$made/pytest.log
"$made/venv/bin/python" -m pytest -q -rs -p no:cacheprovider python/tests "$@" 2>&1 | tee "$log"
echo "python.sh: $(sed -n 's/^\([0-9]*\) passed.*/\1/p' "$log" | tail -n 1) Python tests"
