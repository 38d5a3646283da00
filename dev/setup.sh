#!/usr/bin/env bash
# Installs missing packages on Debian or Ubuntu and prints them; needs no sudo if all are installed.
. "$(dirname "$0")/help.sh"
set -eu
declare -A need=(
    [gcc]="command -v gcc" [make]="command -v make" [git]="command -v git"
    [openmpi-bin]="command -v mpirun" [libopenmpi-dev]="command -v mpicc"
    [libopenblas-openmp-dev]="ls /usr/lib/*/openblas-openmp/libopenblas.so"
    [libpcre2-dev]="ls /usr/include/pcre2.h" [libjansson-dev]="ls /usr/include/jansson.h"
    [gzip]="command -v gzip" [zstd]="command -v zstd"
    [libsentencepiece-dev]="ls /usr/include/sentencepiece_processor.h" [g++]="command -v g++"
    [libutf8proc-dev]="ls /usr/include/utf8proc.h"
)
if [ "${1:-}" = "--dev" ] || [ -n "${CI:-}" ]; then
    need+=([clang]="command -v clang" [clang-format]="command -v clang-format" [ccache]="command -v ccache"
           [libclang-rt-14-dev]="find /usr/lib -name 'libclang_rt.fuzzer-x86_64.a' -print -quit | grep -q ."
           [iproute2]="command -v ip"  # hosts of test/test_hosts.sh
           [libsimgrid-dev]="command -v smpicc")
fi
optional=" libsimgrid-dev "  # not in every distribution: tests that need it say so and are skipped
missing=()
for package in "${!need[@]}"; do
    bash -c "${need[$package]}" >/dev/null 2>&1 || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
echo "setup: installing ${missing[*]}"
if ! command -v apt-get >/dev/null; then
    echo "setup: no apt-get here ---> install these with your system's package manager, then run again" >&2
    exit 1
fi
sudo=""
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "setup: needs root ---> apt-get install ${missing[*]}" >&2; exit 1; }
    sudo=sudo
fi
log=$(mktemp)
export DEBIAN_FRONTEND=noninteractive
install() {
    local known=() package
    $sudo apt-get update || return
    for package in "${missing[@]}"; do
        if [[ $optional != *" $package "* ]] || apt-cache show "$package" >/dev/null; then known+=("$package"); fi
    done
    [ ${#known[@]} -eq 0 ] || $sudo apt-get install -y --no-install-recommends "${known[@]}"
}
if ! install >"$log" 2>&1; then
    tail -5 "$log" >&2
    echo "setup: could not install ${missing[*]} ---> the whole log is in $log" >&2
    exit 1
fi
rm -f "$log"
