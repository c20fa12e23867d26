#!/usr/bin/env bash
# Do the CUDA kernels compile to what they promise, for sm_80 and sm_90? Needs no GPU.
#
#   tools/kernels.sh                 checks; kernels.py says what
#   tools/kernels.sh --registers     also prints registers, shared memory, stack and spills of each kernel
#   tools/kernels.sh --cubin DIR     also writes hps-kernels-sm_80.cubin and hps-kernels-sm_90.cubin into DIR
#
# NVRTC and the disassembler come as wheels into a Python environment of their own, target/kernels/venv,
# once: 250 MB. Without python3 or the wheels it says SKIPPED and ends with 0.
# Exit codes: 0 passed, or SKIPPED; 1 a kernel breaks a promise; 2 usage; 8 could not run.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# 13.0 is the NVRTC that users have with driver 580. 13.2.78 is the oldest of the other two.
wheels=(nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-cuobjdump==13.2.78 nvidia-cuda-nvdisasm==13.2.78)
# A relative CARGO_TARGET_DIR is below the caller's folder, as it is for cargo.
venv=$(realpath -m "${CARGO_TARGET_DIR:-$root/target}")/kernels/venv

skip() {
  echo "SKIPPED: kernels.sh: $1" >&2
  exit 0
}

if ! command -v python3 >/dev/null; then
  skip "python3 is not installed"
fi
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  said=$(python3 -m venv --clear "$venv" 2>&1) ||
    skip "python3 -m venv $venv failed: $(tail -n 1 <<<"$said")"
fi
# Asks no server where they are installed already.
said=$("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: \
  --retries 1 "${wheels[@]}" 2>&1) ||
  skip "the wheels could not be installed: $(tail -n 1 <<<"$said")"
exec "$venv/bin/python" "$root/tools/kernels.py" "$@"
