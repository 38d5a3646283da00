#!/usr/bin/env bash
# Every header compiles alone, as C11 and as C++17 (exit 77 where there is no C++ compiler to ask). Those of the GPU build
# need CUDA's own headers, and those of kernels a C++ compiler that knows them: test/test_cuda_build.sh.
. "$(dirname "$0")/help.sh"
set -u
cd "$(dirname "$0")/.."
cxx=$(command -v g++ || command -v clang++)
cuda=$(ls -d /usr/local/cuda/include 2>/dev/null)
check() {  # header
    local bad=0
    case $1 in
        llmc/cuda/* | dynapipe_plugin/cuda/*) [ -n "$cuda" ] || return 0 ;;
        test/cuda_emu/* | test/ptx/*) return 0 ;;  # C++ for one compiler
    esac
    echo "#include \"$1\"" | gcc -std=gnu11 -I. ${cuda:+-isystem $cuda} -Wall -Wextra -Werror -Wno-unused -x c -fsyntax-only - || bad=1
    [ -z "$cxx" ] || echo "#include \"$1\"" | "$cxx" -std=c++17 -I. ${cuda:+-isystem $cuda} -Wall -Wno-unused -Werror -x c++ -fsyntax-only - || bad=1
    return $bad
}
export -f check
export cxx cuda
git ls-files '*.h' | xargs -P "$(nproc)" -I{} bash -c 'check {}' || exit 1
[ -n "$cxx" ] || { echo "skip headers as C++17: no C++ compiler here ---> dev/setup.sh --dev"; exit 77; }
