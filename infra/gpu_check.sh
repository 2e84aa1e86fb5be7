#!/usr/bin/env bash
# Measures encoding and protecting on one GPU: rows/s, tokens/s, busy share of the GPU, share of its bf16 peak.
# Takes less than five minutes. From the repository root:  PYTHON=.venv/bin/python infra/gpu_check.sh
# SPARSE_MPNET names an mpnet-size model (hub id or folder); without it, random weights of that architecture.
# With "attacks" as first argument it trains the attacks that write texts on the bundled sentences instead, in less than
# eight minutes; SPARSE_ATTACK_MODEL names a causal language model to be one of the decoders.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON="${PYTHON:-.venv/bin/python}"
if ! command -v "$PYTHON" > /dev/null; then
    echo "There is no $PYTHON: set PYTHON to the interpreter that SPARSE is installed in." >&2
    exit 2
fi
program=infra/gpu_check.py
if [ "${1:-}" = attacks ]; then
    program=infra/gpu_check_attacks.py
    shift
fi
exec "$PYTHON" "$program" "$@"
