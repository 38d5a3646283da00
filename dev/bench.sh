#!/usr/bin/env bash
# Every measurement of dev/results in turn (make bench), of GPT-2 and of T5. TORCH_PYTHON: a python with PyTorch and
# transformers, for comparison.
. "$(dirname "$0")/help.sh"
set -eu
cd "$(dirname "$0")"
for bench in bench_*.sh; do
    case $bench in bench_simulated.sh | bench_fork.sh) continue ;; esac  # an hour: make bench-simulated; a tree of llm.c is asked for
    echo "--- $bench"
    "./$bench"
done
echo "--- bench_single.sh of T5"
MODEL=t5:small ./bench_single.sh
