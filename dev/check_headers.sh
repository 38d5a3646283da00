#!/usr/bin/env bash
# Every header compiles alone, as C11 and as C++17 (exit 77 where there is no C++ compiler to ask).
set -u
cd "$(dirname "$0")/.."
cxx=$(command -v g++ || command -v clang++)
check() {  # header
    local bad=0
    echo "#include \"$1\"" | gcc -std=gnu11 -I. -Wall -Wextra -Werror -Wno-unused -x c -fsyntax-only - || bad=1
    [ -z "$cxx" ] || echo "#include \"$1\"" | "$cxx" -std=c++17 -I. -Wall -Wno-unused -Werror -x c++ -fsyntax-only - || bad=1
    return $bad
}
export -f check
export cxx
git ls-files '*.h' | xargs -P "$(nproc)" -I{} bash -c 'check {}' || exit 1
[ -n "$cxx" ] || { echo "skip headers as C++17: no C++ compiler here ---> dev/setup.sh --dev"; exit 77; }
