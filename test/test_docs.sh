#!/usr/bin/env bash
# --help in the manual is what the programs print today, and its links lead somewhere. `make docs-try` runs its commands too.
cd "$(dirname "$0")/.."
dev/check_docs.sh --check
