#!/usr/bin/env bash
# Tests hps.torch with the newest torch of PyPI, with torch.compile and torch.distributed.checkpoint. By
# hand: it downloads gigabytes.
#
#   python/tests/torch2.sh [DIRECTORY OF THE ENVIRONMENT] [PYTEST ARGUMENTS]
#
# The native module is taken from python/hps if it was built there, else it is built.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

made=${1:-target/python/torch2}
shift || true
python=$made/bin/python
if [ ! -x "$python" ]; then
  "${HPS_PYTHON:-python3}" -m venv "$made"
  "$python" -m pip install --quiet 'torch>=2' 'numpy>=1.22' 'pytest>=7' 'hypothesis>=6' setuptools
fi
if [ ! -e python/hps/_hps.abi3.so ]; then
  "$python" -m pip install --quiet ./python
else
  export PYTHONPATH=$PWD/python
fi
"$python" -c 'import torch; print("torch", torch.__version__)'
"$python" -m pytest -q -rs -p no:cacheprovider python/tests/test_torch*.py python/tests/torch2_only.py "$@"
