#!/usr/bin/env bash
# Checks the Triton attention backend on a GPU machine and times it: kernels against the reference, golden tokens,
# attention and step times. Under 6 minutes, no network; needs torch, triton and transformers only.
#
#   benchmarks/gpu_check.sh                 writes gpu_check.json into $OUT, or into benchmarks/results
#   benchmarks/gpu_check.sh --device cpu    the same script on tiny shapes through Triton's interpreter (no figures)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
if [[ -z "${PYTHON:-}" ]]; then
    PYTHON=python3
    [[ -x .venv/bin/python ]] && PYTHON=.venv/bin/python
fi
exec "$PYTHON" -m benchmarks.gpu_check "$@"
