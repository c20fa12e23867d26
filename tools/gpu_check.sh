#!/usr/bin/env bash
# Rows in GPU memory on a machine with a GPU: correctness, compute-sanitizer if it is there, limits of the
# device, benchmarks beside them. A table, and JSON in the file that is named.
#
#   tools/gpu_check.sh [JSON FILE]
#
# HPS_BENCH names a binary of hps-bench with the feature cuda (carried from where it was built); without
# it cargo builds one. HPS_NVRTC_DIR is the folder of libnvrtc.so.13; without it the usual places are
# looked at. Takes a minute and a half on an H200. Without a GPU it says SKIPPED and ends with 0.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

json=${1:-}
if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L 2>/dev/null | grep -q GPU; then
  echo "SKIPPED: gpu_check.sh: nvidia-smi lists no GPU" >&2
  exit 0
fi
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader

bench=${HPS_BENCH:-}
if [ -z "$bench" ]; then
  cargo build --release -p hps-bench --features cuda
  bench=${CARGO_TARGET_DIR:-target}/release/hps-bench
fi

# Where CUDA's toolkit, or a Python with torch, keeps NVRTC.
find_nvrtc() {
  local place
  for place in "${HPS_NVRTC_DIR:-}" /usr/local/cuda*/targets/*/lib /usr/local/cuda*/lib64 \
    "$(python3 -c 'import nvidia.cu13, os; print(os.path.join(list(nvidia.cu13.__path__)[0], "lib"))' 2>/dev/null || true)"; do
    if [ -n "$place" ] && [ -e "$place/libnvrtc.so.13" ]; then
      echo "$place"
      return
    fi
  done
}
nvrtc=$(find_nvrtc)
if [ -n "$nvrtc" ]; then
  export LD_LIBRARY_PATH=$nvrtc${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  echo "NVRTC: $nvrtc"
fi

echo "== correctness"
timeout 120 "$bench" hbm-check --device cuda

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1 || true)
if [ -n "$sanitizer" ]; then
  for tool in memcheck racecheck synccheck; do
    echo "== compute-sanitizer $tool"
    timeout 150 "$sanitizer" --tool "$tool" --error-exitcode 1 "$bench" hbm-check --device cuda --tiny | tail -n 2
  done
else
  echo "SKIPPED: gpu_check.sh: compute-sanitizer was not found" >&2
fi

echo "== limits and figures"
out=$(mktemp)
trap 'rm -f "$out"' EXIT
timeout 200 "$bench" hbm-get hbm-insert hbm-accumulate hbm-place hbm-pack \
  --dims 64,128,16 --device cuda --json >"$out"
sed '$d' "$out"
if [ -n "$json" ]; then
  tail -n 1 "$out" >"$json"
fi
echo "gpu_check.sh: passed"
