#!/usr/bin/env bash
# The README's --help and results are what the programs print today. `make docs` runs its commands too.
cd "$(dirname "$0")/.."
dev/check_docs.sh --check
