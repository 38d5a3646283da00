#!/usr/bin/env bash
# Law: the trainer without MPI on a GPU (emulated here) is the CPU's. fp32: every loss within 1e-4. bf16: within 2e-3; a
# logit of size 1 is off by 2^-8 at most, the mean over the 256 tokens of a step by some thirtieth of that, a norm or
# a layer that was left out by far more than either. A run that stopped goes on bit for bit, in whatever order the
# streams run, and each build goes on from the other's checkpoints, as close as its own rounding.
# Law: the profiler measures that model and writes a cost file of that precision and card.
# concerns: llmc/cuda trainer test/cuda_emu test/ptx
. "$(dirname "$0")/check_lib.sh"
. dev/mpi_env.sh
export OMP_NUM_THREADS=1
build=build/${BUILD:-release}
export DYNAPIPE_CACHE=$work/costs

[ -n "$(make -s BACKEND=emu print-nvcc)" ] ||
    skip_all "no nvcc ---> install cuda-nvcc, cuda-cudart-dev and libcublas-dev of CUDA 12 or later, or set CUDA_HOME"
must_build() {
    make -s -j2 "$@" >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
}
must_build "$build/train_gpt2" "$build/train_t5" "$build/prepare_data" "$build/dev/make_tasks"
for precision in FP32 BF16; do
    out=$build-emu${EMU_ARCH-}-${precision,,}
    must_build BACKEND=emu PRECISION=$precision "$out/train_gpt2" "$out/train_t5" "$out/profile_costs"
done
declare -A trainer=([cpu]=$build/train_gpt2 [fp32]=$build-emu${EMU_ARCH-}-fp32/train_gpt2 [bf16]=$build-emu${EMU_ARCH-}-bf16/train_gpt2
    [cpu-t5]=$build/train_t5 [fp32-t5]=$build-emu${EMU_ARCH-}-fp32/train_t5 [bf16-t5]=$build-emu${EMU_ARCH-}-bf16/train_t5)


run() {  # name, build, arguments...: output in $work/NAME.log, checkpoints in $work/NAME
    local name=$1 which=$2
    shift 2
    timeout -k 5 120 "${trainer[$which]}" -i "$work/data/train.bin" -t 64 -b 2 -d 256 -c 0.1 -s 0 --refit off -o "$work/$name" \
        "$@" >"$work/$name.log" 2>&1 || { echo "$name: the run failed"; tail -5 "$work/$name.log"; }
}

# Losses of training and validation, in the order of the log, those of steps > $2 only.
losses() {  # name, step
    awk -v after="$2" 'BEGIN {s = 0} /^step / {s = $2; sub("/.*", "", s)} /^step |^val loss/ && s + 0 > after {
        print $1, s, /^val/ ? $3 : $5}' "$work/$1.log"
}

agree() {  # name, name, tolerance, after step (default: all)
    local worst
    worst=$(paste <(losses "$1" "${4:--1}") <(losses "$2" "${4:--1}") |
        awk '{d = $3 - $6; if (d < 0) d = -d; if (d > m) m = d; if (NF != 6 || $1 != $4 || $2 != $5) bad = 1}
             END {print NR == 0 || bad ? "no such losses" : m + 0}')
    awk -v d="$worst" -v t="$3" 'BEGIN {exit !(d ~ /^[0-9.e-]+$/ && d <= t)}'
    ok $? "$1 against $2: losses differ by $worst, at most $3"
}

same_files() {  # directory, directory, step
    local step
    step=$(printf %08d "$3")
    cmp "$work/$1/model_$step.bin" "$work/$2/model_$step.bin" &&
        cmp "$work/$1/state_${step}_00000.bin" "$work/$2/state_${step}_00000.bin"
    ok $? "$1 and $2: step $3 bit for bit"
}

from_step() {  # name, name: a directory with the other's checkpoint of step 3 alone
    mkdir "$work/$2"
    cp "$work/$1/"*00000003* "$work/$2/"
}

"$build/dev/make_tasks" --out "$work/tasks.jsonl" --samples 300 --seed 7 --max-tokens 120 >"$work/data.log" 2>&1 &&
    "$build/prepare_data" --out "$work/data" "$work/tasks.jsonl" >>"$work/data.log" 2>&1 &&
    "$build/prepare_data" --tokenizer byt5 --out "$work/pairs" "$work/tasks.jsonl" >>"$work/data.log" 2>&1 ||
    { cat "$work/data.log"; exit 1; }
model="-e l2c64h2 -x 5 -j $work/data/val.bin -v 3 -m 8"
declare -A tolerance=([fp32]=1e-4 [bf16]=2e-3)
run cpu cpu $model -n 3
for precision in fp32 bf16; do
    run $precision $precision $model -n 3
    agree $precision cpu ${tolerance[$precision]}
    grep -q "$precision on " "$work/$precision.log"
    ok $? "$precision: the model's line names precision and card"

    from_step $precision $precision-resumed
    EMU_SEED=7 run $precision-resumed $precision $model -y 1
    same_files $precision $precision-resumed 5

    from_step cpu $precision-of-cpu
    run $precision-of-cpu $precision $model -y 1
    agree $precision-of-cpu cpu ${tolerance[$precision]} 3
    from_step $precision cpu-of-$precision
    run cpu-of-$precision cpu $model -y 1
    agree cpu-of-$precision cpu ${tolerance[$precision]} 3

    out=$build-emu${EMU_ARCH-}-$precision
    timeout -k 5 60 "$out/profile_costs" --model l2c64h2 --vocab 257 --tokens 64 --mb-tokens 128 --seconds 0 \
        --out "$work/$precision.costs" >"$work/costs.log" 2>&1
    grep -q "^signature gpt2 C 64 NH 2 Vp 384 $precision [A-Za-z0-9_.-]*$" "$work/$precision.costs" ||
        { tail -3 "$work/costs.log"; false; }
    ok $? "$precision: $(grep ^signature "$work/$precision.costs" 2>/dev/null)"
    timeout -k 5 60 "$out/profile_costs" --model byt5:l2c64h2 --tokens 64 --mb-tokens 128 --seconds 0 \
        --out "$work/$precision.costs" >"$work/costs.log" 2>&1
    grep -q "^signature t5 C 64 NH 2 HS 32 F 160 gated Vp 384 $precision [A-Za-z0-9_.-]*$" "$work/$precision.costs" &&
        grep -q '^part dec_block2 mode none time F .* enc_tokens .* dec_tokens' "$work/$precision.costs" ||
        { tail -3 "$work/costs.log"; false; }
    ok $? "$precision: $(grep ^signature "$work/$precision.costs" 2>/dev/null)"
done

# T5: pairs, both stacks, dropout; what it answers to samples of validation. A step supervises some twenty tokens, which
# average out less: bf16 within 1e-2 (dropout left out: 0.06 to 0.4).
tolerance[bf16]=1e-2
pairs="-i $work/pairs/train.bin -j $work/pairs/val.bin -e t5:l2d2c64h2k32f128 --dropout 0.1 -x 4 -v 4 -m 8 -s 4 -g 8"
answers() {  # name
    LC_ALL=C sed -n '/^  answers  ./p' "$work/$1.log"
}
run t5 cpu-t5 $pairs
for precision in fp32 bf16; do
    run t5-$precision $precision-t5 $pairs -n 3
    agree t5-$precision t5 ${tolerance[$precision]}
    from_step t5-$precision t5-$precision-resumed
    EMU_SEED=7 run t5-$precision-resumed $precision-t5 $pairs -y 1
    same_files t5-$precision t5-$precision-resumed 4
done
[ -n "$(answers t5)" ] && cmp -s <(answers t5) <(answers t5-fp32)
ok $? "t5-fp32 answers what t5 does, $(answers t5 | grep -ac .) times"

# A product that cuBLASLt refuses: plain tiles, said once for each shape; another status is an error.
refuse="-e l1c64h2 -x 2 -v 0"
run served fp32 $refuse
EMU_CUBLASLT_REFUSE=15 run refused fp32 $refuse
agree refused served 1e-4
said=$(grep -c 'warning: cuBLASLt has no algorithm for .* C .* ---> plain tiles' "$work/refused.log")
[ "$said" -gt 0 ] && [ "$(grep 'warning: cuBLASLt has no' "$work/refused.log" | sed 's/T [0-9]*,//' | sort | uniq -d | wc -l)" -eq 0 ] &&
    grep -qE 'warning: [0-9]+ matrix products ran on plain tiles' "$work/refused.log" && ! grep -q 'plain tiles' "$work/served.log"
ok $? "products that cuBLASLt refuses: $said shapes said, $(grep -oE '[0-9]+ matrix products' "$work/refused.log")"
for where in REFUSE REFUSE_CALL; do
    env EMU_CUBLASLT_$where=14 OMP_NUM_THREADS=1 timeout -k 5 60 "${trainer[fp32]}" -i "$work/data/train.bin" -t 64 $refuse >"$work/error.log" 2>&1
    [ $? -eq 1 ] && [ "$(grep -c 'CUBLAS_STATUS_INTERNAL_ERROR.*--->' "$work/error.log")" -eq 1 ]
    ok $? "any other status is an error: $(grep -om1 'CUBLAS_STATUS.*' "$work/error.log")"
done

for lacks in EMU_NO_DEVICE=100 EMU_CAPABILITY=75; do
    env $lacks "${trainer[bf16]}" -i "$work/data/train.bin" -t 64 >"$work/none.log" 2>&1
    [ $? -eq 2 ] && grep -q -- "---> " "$work/none.log"
    ok $? "without a GPU, or with one before sm_80: exit status 2, and what to do: $(head -c 120 "$work/none.log")"
done
EMU_DEVICE_BYTES=150e6 timeout -k 5 60 "$build-emu${EMU_ARCH-}-bf16/profile_costs" --vocab 257 --tokens 64 --out "$work/none" \
    >"$work/none.log" 2>&1
[ $? -eq 1 ] && grep -q -- "--mb-tokens" "$work/none.log" && ! [ -e "$work/none" ]
ok $? "profiler on a full card: $(head -c 120 "$work/none.log")"
# The version of a model file is the precision's; a state of bf16 has float32 weights too.
version() {
    od -An -t d4 -j "$2" -N 4 "$1" | tr -d ' '
}
versions=
for precision in cpu fp32 bf16; do
    versions+=" $(version "$work/$precision/model_00000005.bin" 4)$(version "$work/$precision/state_00000005_00000.bin" 16)"
done
[ "$versions" = " 30 30 51" ]
ok $? "versions and master weights:$versions"
finish
