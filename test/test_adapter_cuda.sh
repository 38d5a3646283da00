#!/usr/bin/env bash
# Laws of the adapter for CUDA trainers, in a made-up tree of llm.c's family (test/foreign_llmc_cuda, the same model as
# test/foreign_llmc) that install.sh --apply has been at, on the emulator: without the plugin the preprocessed text is the tree's
# own, with --fixed-length it does the same, and with the plugin gradients and losses are those of the CPU tree's own functions,
# fed one sample at a time.
# concerns: dynapipe_plugin/adapters dynapipe_plugin/cuda llmc/cuda test/foreign_llmc_cuda test/cuda_emu test/ptx
. "$(dirname "$0")/train_lib.sh"
nvcc=$(make --no-print-directory -s BACKEND=emu print-nvcc)
[ -n "$nvcc" ] || skip_all "no nvcc ---> cuda-nvcc, cuda-cudart-dev, libcublas-dev of CUDA 12 or later, or set CUDA_HOME"
include=$(make --no-print-directory -s BACKEND=emu print-cuda-include)
root=$PWD tree=$work/tree emu=build/release-emu${EMU_ARCH-}-fp32 plain_tree=$work/plain
env -u BUILD make --no-print-directory -s -j2 BACKEND=emu PRECISION=FP32 emulator >"$work/emu.log" 2>&1 || { cat "$work/emu.log"; exit 1; }
make_data 300 120
mpi=$(mpicc --showme:compile | tr " " "\n" | grep "^-[ID]") mpi_libs=$(mpicc --showme:link)

# --- the tree, with and without ---------------------------------------------------------------------------------
cp -r test/foreign_llmc_cuda "$plain_tree" && cp test/foreign_llmc/{ops,tokens}.h "$plain_tree" && cp -r "$plain_tree" "$tree"
dynapipe_plugin/install.sh --link --apply "$tree" >"$work/install.log" && dynapipe_plugin/install.sh --check "$tree" >>"$work/install.log"
ok $? "install.sh --apply finds every line: $(diff "$tree/train_gpt2.cu" "$plain_tree/train_gpt2.cu" | grep -c '^<') in train_gpt2.cu"
text_of() { (cd "$1" && g++ -x c++ -std=c++17 -E -P -D__LINE__=0 -isystem "$include" -w train_gpt2.cu) | tr -d ' \n'; }
[ "$(text_of "$tree" | cksum)" = "$(text_of "$plain_tree" | cksum)" ] && [ "$(text_of "$tree" | wc -c)" -gt 100000 ]
ok $? "without DYNAPIPE=1: the same text, once preprocessed"

# The tree for the emulator.
build_tree() {  # where to, from, flags...
    local to=$1 from=$2
    shift 2
    mkdir -p "$to"
    test/ptx/compile.sh "$from/train_gpt2.cu" "$to/trainer.o" "$nvcc" -std=c++17 -O2 -DOMPI_SKIP_MPICXX=1 "$@" &&
        g++ "$to/trainer.o" $library $emu/test/{ptx,cuda_emu}/*.o -o "$to/trainer" -fopenmp -lopenblas $mpi_libs -ljansson -lpcre2-8 -lm -lpthread
}
library='' && build_tree "$work/bare" "$plain_tree" >"$work/make.log" 2>&1 || { cat "$work/make.log"; exit 1; }
make -C "$tree" --no-print-directory -j2 dynapipecu DYNAPIPE=1 DYNAPIPE_OUT="$root/$build/foreign_llmc_cuda" >"$work/make.log" 2>&1 || { cat "$work/make.log"; exit 1; }
library=$build/foreign_llmc_cuda/libdynapipe_cuda.a
# shellcheck disable=SC2086
build_tree "$work/with" "$tree" -DDYNAPIPE -DDYNAPIPE_TREE_LEAST_VOCAB=1 -Werror all-warnings $mpi >"$work/make.log" 2>&1
ok $? "with it: by nvcc, without a warning"
[ -x "$work/with/trainer" ] || { cat "$work/make.log"; exit 1; }
trainer=$work/with/trainer
gcc -O2 -I. test/foreign_llmc/one_by_one.c "$build"/dataloader/{sample_file,loader,collate}.o "$build"/util/*.o -lpcre2-8 -ljansson -lm -lpthread -o "$work/one_by_one" || exit 1
"$work/one_by_one" new "$tree/model.bin"
"$work/one_by_one" tokens "$tree/train.tok" 5000
"$work/one_by_one" tokens "$tree/val.tok" 900
export EMU_HANG_S=30
(cd "$tree" && "$work/bare/trainer" >"$work/bare.log" && "$trainer" --fixed-length >"$work/fixed.log")
cmp -s "$work/bare.log" "$work/fixed.log" && [ "$(grep -c 'train loss' "$work/bare.log")" -eq 6 ]
ok $? "--fixed-length: every digit as without the plugin"

# --- gradients and losses ---------------------------------------------------------------------------------------
data="-i $work/data/train.bin -j $work/data/val.bin -e $tree/model.bin -b 2 -t 128 -d 600 -x 6 -l 1e-3 --refit off"
gradients='' runs=''
train() {  # name, ranks, options...
    local name=$1 ranks=$2
    shift 2
    # shellcheck disable=SC2086
    run "$name" "$ranks" $data -o "$work/$name" --debug dump-gradients="$work/$name.bin" "$@" && gradients+=" $work/$name.bin" runs+=" $name" && return
    tail -5 "$work/$name.log"
    ok 1 "$name: the run failed"
}
for ranks in 1x1 2x1 1x2 2x2; do train "$ranks" $((${ranks%x*} * ${ranks#*x})) --stages "${ranks%x*}" -n 3; done
EMU_SEED=7 train other-order 4 --stages 4 -r 0
train staged 2 --stages 2 --transport mpi
train pieces 2 --stages 2 --placement interleaved --head whole
train rows 2 --stages 2 --placement vee --head rows
train rows-replicas 4 --stages 2 --head rows
train recompute 2 --stages 2 --placement 2,2 --head whole --recompute full --debug dump-plan="$work/recompute.plan"
# shellcheck disable=SC2086
"$work/one_by_one" "$work/data/train.bin" "$tree/model.bin" 128 600 6 1e-3 $gradients >"$work/plain.log" 2>"$work/plain.txt"
ok $? "gradients: $(sed "s|$work/||; s|.bin:.*difference||" "$work/plain.txt" | awk '{print $1, $2}' | tr '\n' ',')"
for name in $runs; do
    worst=$(plain_difference "$name" 1e-5)
    ok $? "$name: losses of 6 steps are the plain loop's, within $worst"
done
# Law of forwards without a backward to come: activations of one layer, here of two, and none of a head.
awk '/^rank/ {r = $2} /buffer forward/ {f[r, $6] = $10} /buffer acts/ {n++; bad += !(f[r, $6] > 0 && f[r, $6] < 0.6 * $10)} END {exit n < 4 || bad}' "$work/recompute.plan"
ok $? "recompute: the $(grep -c 'buffer forward' "$work/recompute.plan") forwards that are made again take less than 0.6 of the other's bytes"
# Law of measuring: what a step ends with takes its time, 1 ns a parameter and more. (Zeroing gradients takes a tenth.)
update=$(cat "$DYNAPIPE_CACHE"/* | sed -nE 's/.*update_ns_per_byte ([0-9.e+-]+).*/\1/p' | sort -g | head -1)
awk -v ns="$update" 'BEGIN {exit !(4 * ns > 1)}'
ok $? "the optimizer was measured: $update ns for each byte of a gradient"
norms() { grep -o 'train loss.*norm [0-9.]*' "$work/$1.log" | sed 's/.*norm //' | cut -c1-6 | tr '\n' ' '; }
[ "$(norms 1x1)" = "$(norms 2x2)" ] && [ "$(norms 1x1)" = "$(norms other-order)" ] && [ "$(norms 1x1 | wc -w)" -eq 6 ]
ok $? "norms do not depend on how many hold a tensor: $(norms 2x2)"
paste <(norms plain | tr ' ' '\n') <(norms 2x2 | tr ' ' '\n') | awk 'NF == 2 && $1 > 0 {d = $2 / $1; n += d > 0.9998 && d < 1.0002} END {exit n == 6 ? 0 : 1}'
ok $? "and are the plain loop's: $(norms plain)"
vals() { grep -o '^val loss [0-9.]*' "$work/$1.log" | cut -c1-14 | tr '\n' ' '; }
[ "$(vals 1x1)" = "$(vals 2x2)" ] && [ "$(vals 2x1 | wc -w)" -eq 9 ]
ok $? "validation, too: $(vals 2x2)"

# shellcheck disable=SC2086
run check 1 $data --check-model 1
[ $? -eq 0 ] && ! grep -q '^FAIL' "$work/check.log" && [ "$(grep -c '^ok ' "$work/check.log")" -ge 8 ] && grep -q '^ok .*gpt2_validate()' "$work/check.log"
ok $? "--check-model 1: $(grep -c '^ok ' "$work/check.log") laws hold"

# --- what main() does besides -----------------------------------------------------------------------------------
rm -f "$work"/2x2/*_00000006*
# shellcheck disable=SC2086
run on 2 $data -o "$work/2x2" -n 3 -y 1 --stages 2
[ "$(grep -m1 'train loss' "$work/on.log" | cut -d: -f1)" = "step 3" ] && difference=$(loss_difference 2x1 2x2 1e-5)
ok $? "2 x 2 write, 2 x 1 go on: losses within $difference"
# shellcheck disable=SC2086
run whole 2 $data --stages 1 -s 5 -z 1 && run cut 2 $data -s 5 --stages 2
[ "$(grep -c "first token's logit" "$work/whole.log")" -eq 1 ] && [ "$(grep -c 'keeps all of its stage' "$work/whole.log")" -eq 1 ]
ok $? "two replicas of the whole model: one samples; -z 1 falls back, said once"
[ "$(grep -c "first token's logit" "$work/cut.log")" -eq 0 ] && [ "$(grep -c 'questions are skipped' "$work/cut.log")" -eq 1 ]
ok $? "a split one: skipped, said once"
# shellcheck disable=SC2086
refuses "has an earlier run's checkpoints, up to step 6" "a new run in that folder" 2 $data -o "$work/2x2" --stages 2
refuses "multiple of 16 tokens" "a longest sample that its kernels cannot take" 2 $data -t 120 --stages 2
# shellcheck disable=SC2086
build_tree "$work/small" "$tree" -DDYNAPIPE $mpi >"$work/make.log" 2>&1 && trainer=$work/small/trainer refuses "never ends on so small a vocabulary" "llm.c's classifier, were it this tree's" 1 $data

# --- told to end ------------------------------------------------------------------------------------------------
# shellcheck disable=SC2086
{
    start '^step +2/' told 2 $data -x 100000 --stages 2 -o "$work/told"
    kill -USR1 "$(ranks_of "$job" | tail -1)"
    wait "$job"
    ok $? "SIGUSR1 to one rank: exit status 0"
    step=$(stopped_after SIGUSR1 told)
    file=$(printf '%08d' "${step:-1}")
    run until 2 $data -x "${step:-1}" --stages 2 -n 1 -o "$work/until"
    cmp "$work/told/model_$file.bin" "$work/until/model_$file.bin" && cmp "$work/told/state_${file}_00000.bin" "$work/until/state_${file}_00000.bin" && [ -e "$work/told/DONE_$file" ]
    ok $? "step $step is saved without a -n, byte for byte what a run of as many steps ends with"
    grep -q "^step  *${step:-1}/.*train loss\|^step $((${step:-1} - 1)): train loss" "$work/told.log"
    ok $? "their own line of that step is there"
}

# --- forks of the tree ------------------------------------------------------------------------------------------
# Its products take whole tiles of 128 tokens, as llm.kittens's.
cp -r "$tree" "$work/fork_tree" && sed -i -f "$plain_tree/fork.sed" "$work/fork_tree/train_gpt2.cu" &&
    sed -i '/^void matmul_.*(/,/{$/s/{$/{\n    assert(B * T % 128 == 0);/' "$work/fork_tree/kernels.cuh"
# shellcheck disable=SC2086
build_tree "$work/fork" "$work/fork_tree" -DDYNAPIPE -DDYNAPIPE_TREE_LEAST_VOCAB=1 -DDYNAPIPE_TREE_TOKENS_MULTIPLE=128 $mpi >"$work/make.log" 2>&1 || cat "$work/make.log"
trainer=$work/fork/trainer
# shellcheck disable=SC2086
run fork-whole 1 $data -o "$work/fork-whole" && run fork-cut 2 $data -o "$work/fork-cut" --stages 2
ok $? "rank 0 alone logs, main() has other names, products take $(grep -c 'B \* T % 128' "$work/fork_tree/kernels.cuh") times whole tiles of tokens: two ranks go on"
# shellcheck disable=SC2086
refuses "head cannot be shared in that way" "a share of its head, of any number of rows" 2 $data --stages 2 --head rows
[ "$(norms fork-whole)" = "$(norms fork-cut)" ] && [ "$(norms fork-cut | wc -w)" -eq 6 ] && awk -v d="$(loss_difference fork-whole fork-cut 1e-5)" 'BEGIN {exit d < 1e-5 ? 0 : 1}'
ok $? "a tied head in the middle of a slice (two spans) counts once: $(norms fork-cut)"
# shellcheck disable=SC2086
FORK=outlier run outlier 2 $data -o "$work/outlier" --stages 2 && [ "$(losses outlier | wc -l)" -eq 6 ] && [ "$(norms outlier | wc -w)" -eq 6 ]
ok $? "an update passed over: all of $(losses outlier | wc -l) steps are reported"
forked() {  # what, words
    # shellcheck disable=SC2086
    FORK=$1 refuses "$2" "a fork's $1" 2 $data --stages 2
}
forked encoder_forward "made 0 calls of encoder_forward()"
forked encoder_backward "made 0 calls of encoder_backward()"
forked fused_classifier "made 0 calls of fused_classifier()"
forked layernorm_backward "made 0 calls of layernorm_backward()"
forked head_forward "made 0 calls of matmul_forward_cublaslt() with the head's weights"
forked head_backward "made 0 calls of matmul_backward() with the head's weights"
forked positions "loss by gpt2_validate() is"
forked order "is not at that tensor of fill_in_parameter_sizes()"
forked total "do not add up to num_parameters"
sed -i 's/ \*gatew;/ *gatew, *more;/' "$work/fork_tree/train_gpt2.cu"
# shellcheck disable=SC2086
"$nvcc" -std=c++17 -w -ptx -DDYNAPIPE -DOMPI_SKIP_MPICXX=1 $mpi "$work/fork_tree/train_gpt2.cu" -o "$work/fork.ptx" 2>&1 |
    grep -q "error.*ParameterTensors has other tensors than NUM_PARAMETER_TENSORS"
ok $? "a tensor that is not in NUM_PARAMETER_TENSORS: does not compile, in words"
trainer=$work/with/trainer

! grep -nE 'asm|0xffffffff|warpSize|__shfl' dynapipe_plugin/adapters/dynapipe_llmc.cuh
ok $? "no PTX and no width of a warp in the adapter: hipify takes it"
finish
