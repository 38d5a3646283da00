#!/usr/bin/env bash
# Everything to run where an NVIDIA GPU is at hand: builds for this card, runs all kernel tests on it, compares training with the CPU's, measures, and
# writes dev/results/gpu-CARD.md; that and all output are $OUT/gpu-CARD.tgz (out/gpu_check). It ends after TOTAL_SECONDS (470), and names the parts that
# had no time. How far it comes on a card is not known, none was there; on the emulator, with tiny sizes, all of it took 461 s on 2 cores.
#   dev/gpu_check.sh [PART ...]     parts: needs build kernels train operations steps sanitizer mixture torch (default: all)
#   EMULATED=1 dev/gpu_check.sh     the same on the CPU emulator, tiny sizes: shows that the script works; no report in dev/results
# A part that fails or runs out of its time does not stop the others; exit status 1 then. Needs nvcc, gcc, make, jansson, pcre2,
# OpenBLAS (to compare with); without MPI (mpirun, mpicc; DYNAPIPE_MPICC, OPAL_PREFIX) only one rank; compute-sanitizer and PyTorch
# (TORCH_PYTHON) where they are. LENGTHS_CSV: lengths of the mixture (default ../shared/data/lengths.csv, else made up).
# Nothing is downloaded. DEPS=FOLDER: unpacked Debian packages (dpkg -x libopenmpi-dev_*.deb FOLDER ...), for machines without.
. "$(dirname "$0")/help.sh"
set -u
cd "$(dirname "$0")/.."
. dev/mpi_env.sh
unset MAKEFLAGS MFLAGS
OUT=${OUT:-out/gpu_check}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
export GPU_CHECK_WORK=${GPU_CHECK_WORK:-out/gpu_check.work}
work=$GPU_CHECK_WORK
PATH=$PATH:/usr/local/cuda/bin
use_deps() {  # folder of unpacked packages
    local usr=$1/usr lib
    lib=$usr/lib/$(${CC:-gcc} -dumpmachine)
    mkdir -p "$work/bin"
    for tool in mpirun mpicc; do [ ! -e "$usr/bin/$tool.openmpi" ] || ln -sf "$usr/bin/$tool.openmpi" "$work/bin/$tool"; done
    export PATH=$PWD/$work/bin:$usr/bin:$PATH CPATH=$usr/include:$usr/include/${lib##*/}${CPATH:+:$CPATH}
    for folder in "$lib" "$lib"/openblas-* "$lib/openmpi/lib"; do
        [ -d "$folder" ] && export LIBRARY_PATH=$folder${LIBRARY_PATH:+:$LIBRARY_PATH} LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    done
    export OPAL_PREFIX=$usr OPAL_LIBDIR=$lib/openmpi/lib OPAL_INCLUDEDIR=$lib/openmpi/include
}
[ -z "${DEPS:-}" ] || use_deps "$(cd "$DEPS" && pwd)"
cores=$(nproc)
jobs=${JOBS:-$cores}
backend=cuda total_s=${TOTAL_SECONDS:-470} tiny=() train_tokens=3000 train_steps=5 longest=256 planning=()
if [ -n "${EMULATED:-}" ]; then
    backend=emu total_s=${TOTAL_SECONDS:-3600} tiny=(--sizes tiny) train_tokens=100 train_steps=2 longest=32 TRAIN_SECONDS=${TRAIN_SECONDS:-300} TEST_SECONDS=${TEST_SECONDS:-400}
    planning=(--debug measure-seconds=0 --debug effort=50)  # 4 ranks that measure the emulator on 2 cores take over 40 s
else
    export GPU_ARCHS=${GPU_ARCHS:-native}
fi
release=build/release-$backend${EMULATED:+${EMU_ARCH-}}
bf16=$release-bf16 fp32=$release-fp32
has_mpi() { command -v mpirun >/dev/null && command -v "${DYNAPIPE_MPICC:-mpicc}" >/dev/null; }
# nvidia-smi of the cards that CUDA shows, in its order; nothing where it fails, which it tells on stdout.
export CUDA_DEVICE_ORDER=PCI_BUS_ID
query() {
    local found
    found=$(nvidia-smi ${CUDA_VISIBLE_DEVICES:+-i "$CUDA_VISIBLE_DEVICES"} --format=csv,noheader,nounits "$@") && { [ -z "$found" ] || echo "$found"; }
}
card_name() { if [ -n "${EMULATED:-}" ]; then echo emulator; else query --query-gpu=name | head -1; fi; }
# Exit status of a part that does not apply here; its last line holds the reason.
skip=77

# Ranks that share a card also share its memory and its time; they are not synchronised, so each gets some slack.
free_mib() {  # of the card that has least
    if [ -n "${EMULATED:-}" ]; then echo 8192; else query --query-gpu=memory.free | sort -n | head -1 | grep . || echo 0; fi
}
rank_limits() {  # ranks: seconds, MiB of each; MiB 0: too little is free
    local per_card mib cards
    cards=$(cards)
    [ "$cards" -gt 0 ] || { echo 0 0; return; }
    per_card=$((($1 + cards - 1) / cards))
    mib=$(($(free_mib) / per_card - 1024))  # a context, its libraries and kernels
    echo "$((${TRAIN_SECONDS:-40} * per_card)) $((mib < 512 ? 0 : mib))"
}
# NCCL and MPI talk through it: some 10 MB for each pair of ranks. Containers have 64 MiB of it unless told otherwise.
check_shm() {
    local mib
    mib=$(($(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 {print $4}' | grep . || echo 0) / 1024))
    [ "$mib" -ge 512 ] && return 0
    echo "/dev/shm has $mib MiB free ---> docker run --shm-size=1g (or --ipc=host), or mount -o remount,size=1g /dev/shm; NCCL: NCCL_SHM_DISABLE=1"
    [ "$(cards)" -lt 2 ]  # one card: ranks exchange little
}

# What would fail late, or make all times worthless.
check_cards() {
    local rc=0 driver toolkit kinds others
    driver=$(nvidia-smi | sed -nE 's/.*CUDA Version: *([0-9]+)\..*/\1/p')
    toolkit=$(sed -nE 's/^nvcc ([0-9]+)\..*/\1/p' "$work/found")
    [ "${driver:-99}" -ge "${toolkit:-0}" ] || { echo "the driver is for CUDA $driver, nvcc is of CUDA $toolkit ---> a newer driver, or NVCC=/usr/local/cuda-$driver.x/bin/nvcc"; rc=1; }
    kinds=$(query --query-gpu=name | sort -u | paste -sd,)
    [ "${kinds/,/}" = "$kinds" ] || echo "cards of several kinds: $kinds; the first is measured ---> CUDA_VISIBLE_DEVICES=... of one kind"
    others=$(query --query-compute-apps=pid,process_name,used_memory | paste -sd\;)
    [ -z "$others" ] || { echo "others use the card: $others MiB ---> end them, or all times are theirs too"; rc=1; }
    has_nccl || [ "$(cards)" -lt 2 ] || { echo "$(cards) cards, but no NCCL: nothing between cards is tested ---> libnccl-dev, or NCCL_HOME=/path"; rc=1; }
    return $rc
}

# --- parts: each writes its section of the report to $work/NAME.md -------------------------------------------
can_link() {  # header, library
    printf '#include <%s>\nint main(void) { return 0; }\n' "$1" | ${CC:-gcc} -x c - -o "$work/probe" "-l$2" 2>/dev/null
}
part_needs() {
    [ -z "${DEPS:-}" ] || mpicc --showme 2>&1
    local missing=() rc=0 ranks seconds mib
    for tool in gcc make; do command -v $tool >/dev/null || missing+=("$tool"); done
    can_link jansson.h jansson || missing+=("jansson (libjansson-dev): metrics, data")
    printf '#define PCRE2_CODE_UNIT_WIDTH 8\n#include <pcre2.h>\nint main(void) { return 0; }\n' | ${CC:-gcc} -x c - -o "$work/probe" -lpcre2-8 2>/dev/null ||
        missing+=("pcre2 (libpcre2-dev): data")
    can_link cblas.h openblas || missing+=("OpenBLAS (libopenblas-openmp-dev): kernel tests compare with the CPU's operations")
    [ -z "${EMULATED:-}" ] || [ -n "$(make -s BACKEND=emu print-nvcc)" ] || missing+=("nvcc (cuda-nvcc, cuda-cudart-dev, libcublas-dev of CUDA 12 or later)")
    if [ -z "${EMULATED:-}" ]; then
        make -s BACKEND=cuda DYNAPIPE=1 cuda-found >"$work/found" 2>&1 || rc=1
        cat "$work/found"
        if query --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit; then check_cards || rc=1; else missing+=("a card and its driver: $(nvidia-smi 2>&1 | head -1)"); fi
        check_shm || rc=1
        for ranks in 1 $(has_mpi && echo 2 4); do
            read -r seconds mib <<<"$(rank_limits $ranks)"
            [ "$mib" -gt 0 ] && echo "$ranks ranks on $(cards) card(s): at most $seconds s and $mib MiB each" ||
                { echo "$ranks ranks on $(cards) card(s): $(free_mib) MiB are too little, left out ---> see nvidia-smi for who has the rest"; [ $ranks -gt 1 ] || rc=1; }
        done
    fi
    has_mpi || echo "no MPI (mpirun, mpicc) ---> only one rank is tested; see DYNAPIPE_MPICC, OPAL_PREFIX"
    command -v compute-sanitizer >/dev/null || echo "no compute-sanitizer"
    for what in "${missing[@]}"; do echo "missing ---> $what"; rc=1; done
    echo "$cores cores, $(${CC:-gcc} --version | head -1)"
    return $rc
}

kernel_tests() { make -s BACKEND=$backend print-kernel-tests | tr " " "\n"; }

part_build() {
    local rc=0 t targets=() between=()
    { has_mpi && has_nccl && [ "$(cards)" -ge 2 ]; } && between=("$fp32/cuda_links" "$fp32/cuda_sums")
    for t in $(kernel_tests); do targets+=("$bf16/$t"); done
    # What one part needs is built even if another's does not compile (-k).
    make -k -j"$jobs" BACKEND=$backend PRECISION=BF16 "${targets[@]}" "$bf16/cuda_bench_operations" "$bf16/cuda_bench_steps" "$bf16/train_gpt2" \
        "$bf16/train_gpt2-dynapipe" "$bf16/train_t5" "$bf16/train_t5-dynapipe" "$bf16/train_llama" "$bf16/train_llama-dynapipe" "$bf16/profile_costs" || rc=1
    make -k -j"$jobs" BACKEND=$backend PRECISION=FP32 "${targets[@]//$bf16/$fp32}" "$fp32/train_gpt2" "$fp32/train_gpt2-dynapipe" \
        "$fp32/train_t5-dynapipe" "$fp32/train_llama-dynapipe" "${between[@]}" || rc=1
    make -k -j"$jobs" build/release/train_gpt2 build/release/train_gpt2-dynapipe build/release/train_t5-dynapipe build/release/train_llama-dynapipe build/release/prepare_data \
        build/release/dev/make_tasks build/release/bench_lengths || rc=1
    return $rc
}

part_kernels() {
    local rc=0 t folder
    {
        echo "## Kernel tests"
        echo
        echo "| test | bf16 | float32 |"
        echo "|---|---|---|"
    } >"$work/kernels.md"
    for t in $(kernel_tests); do
        local cell=()
        for folder in "$bf16" "$fp32"; do
            echo "--- $folder/$t"
            TEST_ALL=$([ "$backend" = emu ] || echo 1) timeout -k 5 "${TEST_SECONDS:-40}" "$folder/$t" >"$work/test.log" 2>&1
            local status=$?
            cat "$work/test.log"
            if [ $status -eq 0 ]; then cell+=("$(tail -1 "$work/test.log")"); else cell+=("**exit $status**"); rc=1; fi
        done
        echo "| $t | ${cell[0]} | ${cell[1]} |" >>"$work/kernels.md"
    done
    return $rc
}

part_operations() {
    "$bf16/cuda_bench_operations" "${tiny[@]}" >"$work/operations.md"
}
part_steps() {
    "$bf16/cuda_bench_steps" "${tiny[@]}" ${EMULATED:+--steps 3} >"$work/steps.md"
}

# Losses of small runs against the CPU trainer's: same data, same seed, other plans (costs differ), so other orders of the same sums.
# Of a loss, float32: 2e-5 (emulator: GPT-2 3e-8, T5 1e-7); bf16, 8 bits of mantissa in every activation and weight: GPT-2 2e-3 (1e-4),
# T5 4e-3 (2e-3: its untied head begins with logits of 8 and a loss of 27), Llama 4e-3 (q and k are rounded once more after their turn, and its gate
# multiplies two rounded values). T5 with dropout: its masks are the same everywhere.
losses() { sed -nE 's/.*"step":([0-9]+),"loss":([^,]+),.*/\1 \2/p' "$work/$1/metrics.jsonl" 2>/dev/null; }
difference() {
    awk 'NR == FNR {a[$1] = $2; next} $1 in a {d = 1 - $2 / a[$1]; if (d < 0) d = -d; if (d > m) m = d; if (!(d >= 0)) bad = 1; n++}
         END {if (n == 0 || bad) print "none"; else printf "%.2e\n", m}' <(losses "$1") <(losses "$2")
}
cards() { if [ -n "${EMULATED:-}" ]; then echo "${EMU_DEVICES:-8}"; else query --query-gpu=name | wc -l; fi; }
has_nccl() { [ -n "$(make -s BACKEND=$backend --eval='print-nccl: ; @echo $(HAS_NCCL)' print-nccl)" ]; }
train() {  # name, trainer, ranks, options...
    local name=$1 trainer=$2 ranks=$3 launcher=() seconds mib limit=()
    shift 3
    read -r seconds mib <<<"$(rank_limits "$ranks")"
    [ "$ranks" -le "$(cards)" ] || limit=(--memory-limit "${mib}M")
    has_mpi && launcher=(mpirun --quiet -np "$ranks")
    rm -rf "${work:?}/$name" && mkdir -p "$work/$name"
    OMP_NUM_THREADS=1 timeout -k 5 "$seconds" "${launcher[@]}" "$trainer" -d $train_tokens -x $train_steps -v 0 -s 0 -n 0 \
        -o "$work/$name" "${planning[@]}" "${limit[@]}" "$@" >"$work/$name.log" 2>&1 || { echo "$name failed:"; tail -5 "$work/$name.log"; return 1; }
}
# Every precision, number of ranks and transport against the CPU.
train_all() {  # program, model in words, "stages x replicas ...", options...
    local program=$1 about=$2 all_ranks=$3 name precision folder tolerance ranks stages transport off verdict rc=0
    shift 3
    train "$program-cpu" "build/release/$program-dynapipe" 1 "$@" || return 1
    for precision in fp32 bf16; do
        folder=$fp32 tolerance=2e-5
        [ $precision = bf16 ] && folder=$bf16 tolerance=$([ "$program" = train_gpt2 ] && echo 2e-3 || echo 4e-3)
        for ranks in $all_ranks; do
            stages=${ranks%x*}
            local count=$((stages * ${ranks#*x})) transports=(none)
            if [ $count -gt 1 ]; then
                has_mpi || continue
                transports=(mpi)
                [ "$(cards)" -lt $count ] || ! has_nccl || transports+=(nccl)  # a card each
                [ "$(rank_limits $count | cut -d' ' -f2)" -gt 0 ] || { echo "$program, $precision, $ranks: too little memory for $count ranks"; continue; }
            fi
            for transport in "${transports[@]}"; do
                local options=(--stages "$stages")
                [ "$transport" = none ] || options+=(--transport "$transport")
                name=$program-$precision-$ranks-$transport
                off=none
                train "$name" "$folder/$program-dynapipe" $count "$@" "${options[@]}" && off=$(difference "$program-cpu" "$name")
                verdict=$(awk -v d="$off" -v t=$tolerance 'BEGIN {print d != "none" && d + 0 <= t + 0 ? "ok" : "**FAIL**"}')
                [ "$verdict" = ok ] || rc=1
                echo "$name: off by $off, $verdict"
                echo "| $about | $precision | $ranks | $transport | $off | $tolerance | $verdict |" >>"$work/train.md"
            done
        done
    done
    return $rc
}
# Messages between any two ranks and sums over any of them, by NCCL: one card each.
between_cards() {
    local rc=0 ranks what verdict
    ranks=$(($(cards) < 4 ? $(cards) : 4))
    has_mpi && has_nccl && [ $ranks -ge 2 ] || return 0
    for what in links sums; do
        verdict=ok
        timeout -k 5 60 mpirun --quiet -np $ranks "$fp32/cuda_$what" nccl >"$work/$what.log" 2>&1 || { verdict="**FAIL**" rc=1; tail -5 "$work/$what.log"; }
        echo "$what between $ranks cards: $verdict"
        printf '\n%s between %d cards by NCCL (test/mpi/%s_main.c): %s\n' "$what" $ranks $what "$verdict" >>"$work/train.md"
    done
    return $rc
}
part_train() {
    local rc=0
    build/release/dev/make_tasks --out "$work/tasks.jsonl" --samples 300 --seed 7 --max-tokens 250 >/dev/null &&
        build/release/prepare_data --out "$work/tasks" "$work/tasks.jsonl" >/dev/null &&
        build/release/prepare_data --tokenizer byt5 --out "$work/tasks-t5" "$work/tasks.jsonl" >/dev/null || return 1
    {
        echo "## Training losses against the CPU trainer's"
        echo
        echo "$train_steps steps of $train_tokens tokens of the built-in tasks, samples of at most $longest; largest relative difference of a step's loss."
        echo
        echo "| model | build | ranks (stages x replicas) | transport | off by | at most | |"
        echo "|---|---|---|---|---:|---:|---|"
    } >"$work/train.md"
    train_all train_gpt2 "GPT-2 l4c64h2" "1x1 2x1 1x2 4x1 2x2" -i "$work/tasks/train.bin" -e l4c64h2 -t $longest || rc=1
    train_all train_t5 "byt5:l2c64h2, dropout 0.1" "1x1 4x1 2x2" -i "$work/tasks-t5/train.bin" -e byt5:l2c64h2 -t $longest --target-tokens $((longest / 4)) --dropout 0.1 || rc=1
    train_all train_llama "qwen2:l4c64h2g1" "1x1 4x1 2x2" -i "$work/tasks/train.bin" -e qwen2:l4c64h2g1 -t $longest || rc=1
    between_cards || rc=1
    return $rc
}

# One test under one tool; 0, 9 (found something), 124, 137 (not through, so nothing is known), 77 (the tool does not work on this machine).
sanitize_one() {  # tool, program, log
    timeout -k 5 "${SANITIZER_SECONDS:-240}" compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 5 "$2" >"$3" 2>&1
    local rc=$?
    grep -qE 'Device not supported|not supported on this' "$3" && return 77
    [ $rc -ne 124 ] && [ $rc -ne 137 ] || echo "ran out of time ---> SANITIZER_SECONDS=N, dev/gpu_check.sh sanitizer" >>"$3"
    return $rc
}
part_sanitizer() {
    local rc=0 t tool pids=() names=() i status
    [ -n "${EMULATED:-}" ] && { echo "the emulator checks accesses and races in every run"; return $skip; }
    command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer ---> it is in the CUDA toolkit's bin"; return $skip; }
    for tool in memcheck racecheck; do
        for t in $(kernel_tests); do
            sanitize_one $tool "$bf16/$t" "$work/sanitize-$tool-$t.log" &
            pids+=($!) names+=("$tool $t")
            while [ "$(jobs -rp | wc -l)" -ge $((cores > 8 ? 8 : cores)) ]; do sleep 0.1; done
        done
    done
    printf '## compute-sanitizer\n\n' >"$work/sanitizer.md"
    for i in "${!pids[@]}"; do
        wait "${pids[$i]}"
        status=$?
        if [ $status -eq 77 ]; then echo "compute-sanitizer does not know this machine's device"; echo "It does not work on this machine." >>"$work/sanitizer.md"; return $skip; fi
        [ $status -eq 0 ] || { rc=1; tail -20 "$work/sanitize-${names[$i]/ /-}.log"; }
        echo "- ${names[$i]}: $([ $status -eq 0 ] && grep -hE 'ERROR SUMMARY|RACECHECK SUMMARY' "$work/sanitize-${names[$i]/ /-}.log" | tail -1 | sed 's/=* *//' || case $status in 124|137) echo "**out of time**" ;; *) echo "**exit $status**" ;; esac)" >>"$work/sanitizer.md"
    done
    return $rc
}

part_mixture() {
    local csv=${LENGTHS_CSV:-../shared/data/lengths.csv} source=()
    [ -e "$csv" ] || csv=shared/data/lengths.csv
    [ -e "$csv" ] && source=(--lengths "$csv")
    export TRAINER=$bf16/train_gpt2-dynapipe PROFILER=$bf16/profile_costs DATA=$work/mixture.bin WORK=$work/mixture
    if [ -n "${EMULATED:-}" ]; then
        export MODELS=l2c64h2 LONGEST=128 BATCH=600 MB_TOKENS=200 STEPS=4 RUN_SECONDS=300 VOCAB=300 PROFILE_SECONDS=0.1
    fi
    build/release/bench_lengths "${source[@]}" --out "$DATA" --vocab "${VOCAB:-50257}" --samples "${SAMPLES:-20000}" || return 1
    dev/cuda_bench/mixture.sh >"$work/mixture.md"
    local rc=$?
    echo "Lengths: ${source[1]:-made up}." >>"$work/mixture.md"
    return $rc
}

part_torch() {
    "${TORCH_PYTHON:-python3}" dev/cuda_bench/torch_compare.py ${EMULATED:+--tiny} >"$work/torch.md"
    local rc=$?
    [ $rc -eq $skip ] && { cat "$work/torch.md"; rm -f "$work/torch.md"; }
    return $rc
}

if [ "${1:-}" = --part ]; then  # called by this script under a time limit
    "part_$2"
    exit
fi

# --- all parts, most important first ---------------------------------------------------------------------------
declare -A limit_s=([needs]=20 [build]=170 [kernels]=90 [train]=140 [operations]=60 [steps]=85 [sanitizer]=90 [mixture]=240 [torch]=45)
parts=("$@")
[ $# -gt 0 ] || parts=(needs build kernels train operations steps mixture torch sanitizer)
[ $# -gt 0 ] || rm -rf "$work"
mkdir -p "$work"
rm -f "$work"/*.md
failed=0
# Products that cuBLASLt refused in a part that trains or measures; kernel tests have odd shapes on purpose.
plain_products() {  # part
    case $1 in
        train) grep -hs 'plain tiles stand in' "$work"/train_*.log ;;
        mixture) grep -rhs --include='*.log' 'plain tiles stand in' "$work/mixture" "$work/mixture.log" ;;
        operations | steps) grep -hs 'plain tiles stand in' "$work/$1.log" ;;
    esac | sort | uniq -c
}
{
    echo "| part | result | seconds |"
    echo "|---|---|---:|"
} >"$work/summary"
for part in "${parts[@]}"; do
    [ -n "${limit_s[$part]:-}" ] || { echo "gpu_check: $part: no such part ---> ${!limit_s[*]}" >&2; exit 1; }
    left=$((total_s - SECONDS)) limit=${limit_s[$part]}
    [ -z "${EMULATED:-}" ] || limit=$((total_s / 2))
    [ $limit -le $left ] || limit=$left
    begin=$SECONDS
    echo "=== $part (at most $limit s)"
    if [ $limit -lt 5 ]; then
        rc=124
    else
        timeout -k 10 $limit bash "$0" --part "$part" >"$work/$part.log" 2>&1 </dev/null
        rc=$?
    fi
    took=$((SECONDS - begin))
    case $rc in
        0) result=ok; tail -3 "$work/$part.log";;
        "$skip") result="skipped: $(tail -1 "$work/$part.log")";;
        124|137) result="**out of time** after $took s"; failed=1; tail -5 "$work/$part.log" 2>/dev/null;;
        *) result="**failed** (exit $rc)"; failed=1; tail -25 "$work/$part.log";;
    esac
    plain=$(plain_products "$part")
    if [ -n "$plain" ]; then
        failed=1
        result+="; **cuBLASLt refused $(wc -l <<<"$plain") products**"
        echo "$plain" | head -5
    fi
    echo "--- $part: $result, $took s"
    echo "| $part | $result | $took |" >>"$work/summary"
done

dev/cuda_bench/against_torch.sh "$work/torch.md" "$work/operations.md" "$work/steps.md"
for part in "${parts[@]}"; do
    missed=$(cat "$work/$part.md" 2>/dev/null | grep -cF '**no**')
    [ "$missed" -eq 0 ] || { echo "$part: $missed targets missed"; sed -i "s/^| $part | \([^|]*\) |/| $part | \1; $missed targets missed |/" "$work/summary"; }
done
card=$(card_name)
short=$(tr 'A-Z ' 'a-z-' <<<"$card" | sed -E 's/^nvidia-//; s/^geforce-//; s/^(rtx-[^-]*|[^-]*).*/\1/')
report=$OUT/gpu-${short:-none}.md
{
    echo "# ${card:-No card}"
    echo
    echo "\`dev/gpu_check.sh${*:+ $*}\` at commit $(git describe --always --dirty 2>/dev/null), $(date -u +%F), $SECONDS s in all."
    echo
    sed 's/^/    /' "$work/needs.log" 2>/dev/null
    echo
    cat "$work/summary"
    for part in kernels train operations steps mixture torch sanitizer; do
        [ -s "$work/$part.md" ] && { echo; cat "$work/$part.md"; }
    done
} >"$report"
for log in "$work"/*.log; do echo "=== $log"; cat "$log"; done >"$OUT/logs.txt"
if [ -z "${EMULATED:-}" ] && [ $# -eq 0 ] && [ -n "$card" ]; then mkdir -p dev/results && cp "$report" dev/results/; fi
echo
cat "$work/summary"
tar -czf "${report%.md}.tgz" -C "$OUT" "$(basename "$report")" logs.txt
echo "report: $report; $SECONDS s; please send ${report%.md}.tgz, which has the report and all output"
exit $failed
