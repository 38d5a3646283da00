#!/usr/bin/env bash
# Every measurement of dev/results in turn (make bench). TORCH_PYTHON: a python with PyTorch, for comparison.
set -eu
cd "$(dirname "$0")"
for bench in bench_*.sh; do
    echo "--- $bench"
    "./$bench"
done
