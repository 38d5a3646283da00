#!/usr/bin/env bash
# README.md and doc/ as a small static site in out/site (mkdocs), with links checked; --serve: look at it on localhost:8000.
. "$(dirname "$0")/help.sh"
set -eu
cd "$(dirname "$0")/.."
command -v mkdocs >/dev/null || { echo "no mkdocs here ---> apt-get install mkdocs, or pip install mkdocs" >&2; exit 1; }
src=out/site-pages
rm -rf $src
mkdir -p $src/results
cp doc/*.md doc/*.svg $src/
cp dev/results/*.md $src/results/
cp CONTRIBUTING.md $src/contributing.md
cp dynapipe_plugin/README.md $src/plugin.md
cp README.md $src/index.md
# What programs print has 100 columns: room for these, and tables as wide as the page.
cat >$src/wide.css <<'END'
.wy-nav-content { max-width: 60rem; }
.rst-content pre, .rst-content pre code { font-size: 11.5px; line-height: 1.45; }
.rst-content table { margin-bottom: 1.5rem; }
END
# Pages link as their places in the tree have it; what is no page is a file of the repository, and only named.
python3 - $src <<'END'
import os, re, sys
root = sys.argv[1]
place = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "dynapipe_plugin/README.md": "plugin.md"}
for name in os.listdir("doc"):
    place["doc/" + name] = name
for name in os.listdir("dev/results"):
    place["dev/results/" + name] = "results/" + name
for origin, page in place.items():
    if not page.endswith(".md"):
        continue
    path = os.path.join(root, page)
    text = open(path).read()
    def link(match):
        words, target = match.groups()
        if re.match(r"(https?:|mailto:|#)", target):
            return match.group(0)
        file, _, anchor = target.partition("#")
        there = os.path.normpath(os.path.join(os.path.dirname(origin), file))
        if there not in place:
            return words if words.startswith("`") else "%s (`%s`)" % (words, there)
        to = os.path.relpath(place[there], os.path.dirname(page) or ".")
        return "[%s](%s)" % (words, to + ("#" + anchor if anchor else ""))
    parts = re.split(r"(?ms)(^```.*?^```$)", text)
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"(?<!\!)\[([^\]]+)\]\(([^)\s]+)\)", link, parts[i])
        parts[i] = re.sub(r"\!\[([^\]]*)\]\(doc/([^)\s]+)\)", r"![\1](\2)", parts[i])
    open(path, "w").write("".join(parts))
END
if [ "${1:-}" = --serve ]; then exec mkdocs serve -f dev/mkdocs.yml; fi
mkdocs build -q --strict -f dev/mkdocs.yml
echo "site: $(find out/site -name '*.html' | wc -l) pages in out/site/index.html"
