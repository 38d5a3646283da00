#!/usr/bin/env bash
# What each part and constant of the planner's search brings, on shared and generated cases: writes dev/results/ablation.md.
#   dev/ablate.sh            three random seeds, about a quarter of an hour on one core
#   dev/ablate.sh --quick    one seed
#   dev/ablate.sh --only 'half the budget,FIELD 12 -> 24'
. "$(dirname "$0")/help.sh"
set -eu
cd "$(dirname "$0")/.."
exec python3 dev/ablate.py --out dev/results/ablation.md "$@"
