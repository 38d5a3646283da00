#!/usr/bin/env bash
# --help and results in the manual are what the programs print today, its links lead somewhere, and it builds as a site. `make docs-try` runs
# its commands too.
# concerns: doc README.md CONTRIBUTING.md dynapipe_plugin/README.md dev/results
cd "$(dirname "$0")/.."
dev/check_docs.sh --check || exit 1
if ! command -v mkdocs >/dev/null; then
    echo "the manual's site: no mkdocs here; skipped"
    exit 0
fi
dev/docs_site.sh
