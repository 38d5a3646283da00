#!/usr/bin/env bash
# Every measurement of dev/results in turn (make bench), of GPT-2 and of T5. TORCH_PYTHON: a python with PyTorch and
# transformers, for comparison.
. "$(dirname "$0")/help.sh"
set -eu
cd "$(dirname "$0")"
for bench in bench_*.sh; do
    [ $bench != bench_simulated.sh ] || continue  # an hour: make bench-simulated
    echo "--- $bench"
    "./$bench"
done
echo "--- bench_single.sh of T5"
MODEL=t5:small ./bench_single.sh
