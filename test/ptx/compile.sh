#!/usr/bin/env bash
# compile.sh FILE.cu OUT.o NVCC FLAGS... -- for the emulator: nvcc's host object, and the PTX in it as C++ (translate.py), in one object.
# OUT.ptx stays. EMU_ARCH=80: the card whose PTX it is.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
source=$1 object=$2 base=${2%.o} arch=${EMU_ARCH:-80}
shift 2
rm -rf "$base.kept" && mkdir -p "$base.kept"
"$@" -gencode "arch=compute_$arch,code=compute_$arch" --keep --keep-dir "$base.kept" -MMD -MP -MT "$object" -MF "$base.d" -c "$source" -o "$base.host.o"
cat "$base.kept"/*.ptx >"$base.ptx" && rm -r "$base.kept"
if grep -q '\.entry' "$base.ptx"; then
    python3 "$here/translate.py" "$base.ptx" "$base.ptx.cpp"
    # Kernels are compiled once and run a little: -O1.
    ${CXX:-g++} -std=gnu++20 -O1 -fno-strict-aliasing -ffp-contract=off -ftrivial-auto-var-init=pattern -march=native -I"$here/../.." -w -c "$base.ptx.cpp" -o "$base.ptx.o"
    ld -r "$base.host.o" "$base.ptx.o" -o "$object"
else
    mv "$base.host.o" "$object"
fi
