#!/usr/bin/env bash
# Registers, spills and shared memory of every CUDA kernel, as ptxas tells them, and the instructions of a step of those on
# tensor cores (dev/loop_instructions.awk), against dev/results/kernel_resources.md.
#   dev/kernel_resources.sh            compares; fails where a kernel spills (more), needs over 8 registers more, or its step
#                                      over 5 % more instructions
#   dev/kernel_resources.sh --renew    writes the table anew
# CUOBJDUMP=/path: of the CUDA toolkit, or of Triton's wheel; where there is none, instructions are not compared.
# Compiles what is not compiled yet: bf16 for all cards; float32 for sm_90 (in a folder of its own), and of that to compare only
# the kernels that bf16 has not: the others are the same text with another type, and a minute of compiling.
# A kernel that is new and does not spill is fine; another release of nvcc than the table's is not compared.
. "$(dirname "$0")/help.sh"
set -eu
cd "$(dirname "$0")/.."
export LC_ALL=C
table=dev/results/kernel_resources.md
slack_registers=8 slack_instructions=0.05  # what another order of the same code may cost
jobs=${JOBS:-2}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

make -j"$jobs" BACKEND=cuda PRECISION=BF16 cuda-objects
fp32=build/release-cuda-fp32-sm90 fp32_targets=$fp32/llmc/cuda/attention_fp32.o
[ "${1:-}" != --renew ] || fp32_targets=cuda-objects
make -j"$jobs" BACKEND=cuda PRECISION=FP32 GPU_ARCHS=90 OUT=$fp32 $fp32_targets
# shellcheck disable=SC2016
nvcc=$(make -s BACKEND=cuda print-nvcc)
for cuobjdump in "${CUOBJDUMP:-}" "$(dirname "$nvcc")/cuobjdump" "$(command -v cuobjdump)"; do [ ! -x "$cuobjdump" ] || break; done
[ -x "$cuobjdump" ] || cuobjdump=
release=$(sed -nE 's/^nvcc ([0-9.]+) .*/\1/p' build/release-cuda-bf16/nvcc_flags)

# "kernel<tab>file<tab>build<tab>sm_N<tab>registers<tab>spilled<tab>loaded<tab>shared bytes<tab>instructions of a step", one line
# a kernel and card; no instructions: "-"
read_ptxas() {  # build folder, its name
    local source
    for source in llmc/cuda/*.cu dynapipe_plugin/cuda/*.cu; do
        [ -e "$1/${source%.cu}.ptxas" ] || continue
        : >"$work/steps"
        if [ -n "$cuobjdump" ] && grep -q attention_tile "$source" && grep -q "entry function" "$1/${source%.cu}.ptxas"; then
            "$cuobjdump" -sass "$1/${source%.cu}.o" >"$work/sass"
            awk -f dev/loop_instructions.awk "$work/sass" >"$work/steps"
        fi
        awk -v file="$source" -v build="$2" -v OFS='\t' '
            FILENAME ~ /steps$/        { steps[$1, $2] = $3; next }
            /Compiling entry function/ { split($0, part, "\047"); name = part[2]; card = part[4]; stores = loads = 0 }
            /Function properties for/  { of = $NF }
            /bytes stack frame/        { if (of == name) { stores = $5; loads = $9 } }
            /: Used [0-9]+ registers/  {
                shared = 0
                for (i = 1; i < NF; i++) { if ($i == "Used") registers = $(i + 1); if ($(i + 2) ~ /^smem/) shared = $i }
                print name, file, build, card, registers, stores, loads, shared, ((name, card) in steps) ? steps[name, card] : "-"
            }' "$work/steps" "$1/${source%.cu}.ptxas"
    done
}
{
    read_ptxas build/release-cuda-bf16 bf16
    read_ptxas $fp32 fp32
} >"$work/raw"
# Names without parameters, return types and the name of the hidden namespace.
paste <(cut -f1 "$work/raw" | c++filt -p | sed -E 's/^void //; s/\(anonymous namespace\)::|[a-z_]*::_GLOBAL[^:]*:://g; s/__nv_bfloat16/bf16/g') \
    <(cut -f2- "$work/raw") | sort -t "$(printf '\t')" -k2,2 -k1,1 -k3,3 -k4,4V >"$work/now"
[ -s "$work/now" ] || { echo "kernel_resources: ptxas said nothing of any kernel ---> rm -rf build/release-cuda-bf16" >&2; exit 1; }

print_table() {
    awk -F'\t' '
        function flush_row(  step) {
            if (steps) step = cell["step", "sm_80"] " / " cell["step", "sm_90"] " / " cell["step", "sm_100"]
            if (key != "") printf "| %s | %s | %s | %s | %s |\n", key, cell["sm_80"], cell["sm_90"], cell["sm_100"], step
        }
        { k = $2 " | `" $1 "` | " $3 " | " $8 }
        k != key { flush_row(); key = k; steps = 0; split("", cell) }
        { cell[$4] = $5 ($6 + $7 > 0 ? " spills " $6 "/" $7 : ""); cell["step", $4] = $9; if ($9 != "-") steps = 1 }
        END { flush_row() }' "$work/now"
}

if [ "${1:-}" = --renew ]; then
    [ -n "$cuobjdump" ] || { echo "kernel_resources: no cuobjdump to count instructions with ---> CUOBJDUMP=/path/cuobjdump" >&2; exit 1; }
    {
        echo "# What each CUDA kernel takes"
        echo
        echo "\`dev/kernel_resources.sh --renew\`, nvcc $release. Registers of a thread; \"spills 16/24\": bytes stored and loaded because registers ran out."
        echo "Shared: static bytes of a block (what a launch asks for besides is in the source). \`make test-all\` compares (test/test_cuda_build.sh)."
        echo "Step: instructions of the loop around products on tensor cores, for sm_80 / sm_90 / sm_100, as they stand in the code: loops"
        echo "inside it counted once, and parts that most steps jump over too (masks, a new maximum)."
        echo
        echo "| file | kernel | build | shared | sm_80 | sm_90 | sm_100 | step |"
        echo "|---|---|---|---:|---:|---:|---:|---:|"
        print_table
    } >"$table"
    echo "wrote $table: $(cut -f1,2 "$work/now" | sort -u | wc -l) kernels"
    exit 0
fi

[ -e "$table" ] || { echo "kernel_resources: no $table ---> dev/kernel_resources.sh --renew" >&2; exit 1; }
table_release=$(sed -nE 's/.*--renew`, nvcc ([0-9]+\.[0-9]+).*/\1/p' "$table")
if [ "$release" != "$table_release" ]; then
    echo "skip kernel_resources: the table is of nvcc $table_release, this is $release ---> compare by eye: dev/kernel_resources.sh --renew; git diff $table"
    exit 77
fi
grep -E '^\| .*\.cu \|' "$table" | sed -E 's/^\| //; s/ \|$//; s/ *\| */\t/g; s/`//g' |
    awk -F'\t' -v OFS='\t' '
        function put(card, cell, step,  part, spill) {
            if (cell == "") return
            split(cell, part, " "); split(part[3], spill, "/")
            print $2, $1, $3, card, part[1], spill[1] + 0, spill[2] + 0, $4, step == "" ? "-" : step
        }
        { split($8, step, " / "); put("sm_80", $5, step[1]); put("sm_90", $6, step[2]); put("sm_100", $7, step[3]) }' >"$work/then"
awk -F'\t' -v slack=$slack_registers -v slack_instructions=$slack_instructions -v counted="$cuobjdump" '
    { key = $2 " " $1 " (" $3 ", " $4 ")" }
    NR == FNR { known[key] = 1; registers[key] = $5; spilled[key] = $6 + $7; steps[key] = $9; next }
    { seen++ }
    !(key in known) && $6 + $7 > 0 { print "FAIL " key ": new, and spills " $6 "/" $7 " bytes"; bad++; next }
    !(key in known) { fresh++; next }
    $6 + $7 > spilled[key] { print "FAIL " key ": spills " $6 "/" $7 " bytes, in the table " spilled[key] " together"; bad++ }
    $9 != "-" && steps[key] > 0 && $9 > steps[key] * (1 + slack_instructions) { print "FAIL " key ": " $9 " instructions a step, in the table " steps[key]; bad++ }
    $5 > registers[key] + slack { print "FAIL " key ": " $5 " registers, in the table " registers[key]; bad++ }
    END {
        if (bad) print "---> mend the kernel, or where that is the price of something: dev/kernel_resources.sh --renew, and say what for in the commit"
        else printf "kernel_resources: %d kernels by card as in the table%s%s\n", seen, counted == "" ? ", no cuobjdump to count instructions (CUOBJDUMP=/path)" : "", fresh ? ", " fresh " of them new (dev/kernel_resources.sh --renew)" : ""
        exit bad > 0
    }' "$work/then" "$work/now"
