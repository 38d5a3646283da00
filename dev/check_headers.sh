#!/usr/bin/env bash
# Every header compiles alone, as C11 and as C++17.
set -u
cd "$(dirname "$0")/.."
bad=0
for h in $(git ls-files '*.h'); do
    echo "#include \"$h\"" | gcc -std=gnu11 -I. -Wall -Wextra -Werror -Wno-unused -x c -fsyntax-only - || bad=1
    echo "#include \"$h\"" | g++ -std=c++17 -I. -Wall -Wno-unused -Werror -x c++ -fsyntax-only - || bad=1
done
exit $bad
