#!/usr/bin/env bash
# Laws of the adapter for llm.c's CPU trainer, in a made-up tree of its family (test/foreign_llmc, which has a parameter and an
# activation of its own) that install.sh --apply has been at: without DYNAPIPE=1 the program is the same, with --fixed-length it
# does the same, and with the plugin gradients and losses are those of the tree's own functions, fed one sample at a time.
# concerns: dynapipe_plugin/adapters dynapipe_plugin/install dynapipe_plugin/edits.awk dynapipe_plugin/dynapipe.h dynapipe_plugin/measure dynapipe_plugin/run/session test/foreign_llmc/
. "$(dirname "$0")/train_lib.sh"
make_data 300 120
export DYNAPIPE_CACHE=$work/cache
root=$PWD tree=$work/tree
make_tree() { make -C "$tree" --no-print-directory -j"$(nproc)" train_gpt2 DYNAPIPE_OUT="$root/$build/foreign_llmc" "$@" >"$work/make.log" 2>&1 || { cat "$work/make.log"; exit 1; }; }
cp -r test/foreign_llmc "$tree"
make_tree CFLAGS="-O2 -D__LINE__=0 -w" && cp "$tree/train_gpt2" "$work/bare"
dynapipe_plugin/install.sh --link --apply "$tree" >"$work/install.log" && dynapipe_plugin/install.sh --check "$tree" >>"$work/install.log"
ok $? "install.sh --apply finds every line: $(diff "$tree/train_gpt2.c" test/foreign_llmc/train_gpt2.c | grep -c '^<') in train_gpt2.c"
make_tree CFLAGS="-O2 -D__LINE__=0 -w" && cmp -s "$tree/train_gpt2" "$work/bare"
ok $? "without DYNAPIPE=1: the same program, byte for byte"

make_tree DYNAPIPE=1
trainer=$tree/train_gpt2
gcc -O2 -I. test/foreign_llmc/one_by_one.c "$build"/dataloader/{sample_file,loader,collate}.o "$build"/util/*.o -lpcre2-8 -ljansson -lm -lpthread -o "$work/one_by_one" || exit 1
"$work/one_by_one" new "$tree/model.bin"
"$work/one_by_one" tokens "$tree/train.tok" 5000
"$work/one_by_one" tokens "$tree/val.tok" 900

# --- their own loop ---------------------------------------------------------------------------------------------
(cd "$tree" && "$work/bare" >"$work/bare.log" && ./train_gpt2 --fixed-length >"$work/fixed.log")
cmp -s "$work/bare.log" "$work/fixed.log"
ok $? "--fixed-length: every digit of $(grep -c 'loss' "$work/bare.log") losses, every token, as without the plugin"
(cd "$tree" && ./train_gpt2 --fixed-length --steps 4 --model model.bin >"$work/fixed4.log")
[ "$(grep 'train loss' "$work/bare.log" | head -4)" = "$(grep 'train loss' "$work/fixed4.log")" ]
ok $? "--fixed-length takes --steps and --model"

# --- gradients and losses ---------------------------------------------------------------------------------------
data="--train-data $work/data/train.bin --model $tree/model.bin --max-tokens 120 --batch-tokens 600 --lr 1e-3 --refit off"
gradients='' runs=''
train() {  # name, ranks, options...
    local name=$1 ranks=$2
    shift 2
    # shellcheck disable=SC2086
    run "$name" "$ranks" $data --steps 6 --output-dir "$work/$name" --debug dump-gradients="$work/$name.bin" "$@" && gradients+=" $work/$name.bin" runs+=" $name" && return
    tail -5 "$work/$name.log"
    ok 1 "$name: the run failed"
}
for ranks in 1x1 2x1 4x1 ${all:+1x2} 2x2; do train "$ranks" $((${ranks%x*} * ${ranks#*x})) --stages "${ranks%x*}"; done
train rows 2 --stages 2 --placement vee --head rows
train rows-replicas 4 --stages 2 --placement interleaved --head rows
if [ -n "$all" ]; then
    train pieces 2 --stages 2 --placement interleaved --head whole
    train feeds-alone 2 --stages 2 --placement 0:2,1:1,0:1,1:0 --head rows:0,1024
    train head-alone 3 --stages 3 --placement 2,2,0 --head whole
    train gpipe 3 --stages 3 --schedule gpipe
fi
train layout-padded 2 --stages 2 --layout padded
train recompute 4 --stages 2 --placement 2,2 --head whole --recompute full --debug dump-plan="$work/recompute.plan"
# shellcheck disable=SC2086
"$work/one_by_one" "$work/data/train.bin" "$tree/model.bin" 120 600 6 1e-3 $gradients >"$work/plain.log" 2>"$work/plain.txt"
ok $? "gradients: $(sed "s|$work/||; s|.bin:.*difference||" "$work/plain.txt" | awk '{print $1, $2}' | tr '\n' ',')"
cp "$work/1x1.bin" "$work/nan.bin"
printf '\000\000\300\177' | dd of="$work/nan.bin" bs=4 seek=1000 conv=notrunc 2>/dev/null
! "$work/one_by_one" "$work/data/train.bin" "$tree/model.bin" 120 600 1 1e-3 "$work/nan.bin" >/dev/null 2>"$work/nan.txt" && grep -q 'difference inf ' "$work/nan.txt"
ok $? "a gradient that is not a number would be seen"
for name in $runs; do
    worst=$(plain_difference "$name" 1e-5)
    ok $? "$name: losses of 6 steps are the plain loop's, within $worst"
done
for name in 1x1 2x2 4x1; do
    norm=$(paste -d' ' <(sed -nE 's/.*"norm":([^,]+),.*/\1/p' "$work/$name/metrics.jsonl") <(sed -n 's/.* norm //p' "$work/plain.log") | within 1e-5 6 relative)
    ok $? "$name: norms of 6 steps are the plain loop's, within $norm"
done
# Law of forwards without a backward to come: activations of one layer, here of two, and none of a head.
awk '/^rank/ {r = $2} /buffer forward/ {f[r, $6] = $10} /buffer acts/ {n++; bad += !(f[r, $6] > 0 && f[r, $6] < 0.6 * $10)} END {exit n < 4 || bad}' "$work/recompute.plan"
ok $? "recompute: the $(grep -c 'buffer forward' "$work/recompute.plan") forwards that are made again take less than 0.6 of the other's bytes"
# Law of measuring: what a step ends with takes its time, 1 ns a parameter and more. (Zeroing gradients takes a tenth.)
update=$(cat "$DYNAPIPE_CACHE"/* | sed -nE 's/.*update_ns_per_byte ([0-9.e+-]+).*/\1/p' | sort -g | head -1)
awk -v ns="$update" 'BEGIN {exit !(4 * ns > 1)}'
ok $? "the optimizer was measured: $update ns for each byte of a gradient"
# Law of kept costs: they are the program's that they were measured with. (A byte after the last one changes nothing but the file.)
cp "$trainer" "$work/rebuilt" && printf x >>"$work/rebuilt"
known=$(for program in "$trainer" "$trainer" "$work/rebuilt" "$work/rebuilt" "$trainer"; do
    # shellcheck disable=SC2086
    timeout 60 "$program" $data --steps 1 2>&1 | grep -c 'costs: as measured before'
done | tr -d '\n')
[[ $known = ?1011 ]]
ok $? "costs are kept for each program: $known"
first=$(losses 1x1 | head -1) last=$(losses 1x1 | tail -1)
awk -v a="${first#* }" -v b="${last#* }" 'BEGIN {exit b < a - 0.1 ? 0 : 1}'
ok $? "the loss falls: from ${first#* } to ${last#* }"

# --- a tree of llm.c's first weeks ------------------------------------------------------------------------------
april=$work/april
cp -r test/foreign_llmc "$april" && sed -i -f test/foreign_llmc/april.sed "$april"/{train_gpt2,one_by_one}.c
dynapipe_plugin/install.sh --link --apply "$april" >"$work/april_install.log" && tree=$april make_tree DYNAPIPE=1
ok $? "a tree of April 2024 takes the plugin: $(grep -c '^#define DYNAPIPE_[NU]' "$april/train_gpt2.c") words for what it lacks"
gcc -O2 -I. -Itest/foreign_llmc "$april/one_by_one.c" "$build"/dataloader/{sample_file,loader,collate}.o "$build"/util/*.o -lpcre2-8 -ljansson -lm -lpthread -o "$work/april_one_by_one" || exit 1
"$work/april_one_by_one" new "$april/model.bin"
data="--train-data $work/data/train.bin --model $april/model.bin --max-tokens 120 --batch-tokens 600 --lr 1e-3 --refit off" gradients='' trainer=$april/train_gpt2
train april 2 --stages 2 --placement vee --head rows
# shellcheck disable=SC2086
"$work/april_one_by_one" "$work/data/train.bin" "$april/model.bin" 120 600 6 1e-3 $gradients >"$work/plain.log" 2>"$work/plain.txt" && worst=$(plain_difference april 1e-5)
ok $? "its gradients are its own functions', and losses of 6 steps, within $worst"
run april-on 1 --train-data "$work/data/train.bin" --max-tokens 120 --batch-tokens 600 --steps 1 --model "$work/april/model_00000006.bin"
grep -q 'step 0: train loss' "$work/april-on.log"
ok $? "it reads the model that the plugin has written"

trainer=$tree/train_gpt2 data=${data/april/tree}
# --- what main() does besides -----------------------------------------------------------------------------------
# shellcheck disable=SC2086
run whole 2 $data --stages 1 --steps 9 --val-data "$work/data/val.bin"
[ "$(grep -c 'likeliest tokens' "$work/whole.log")" -eq 1 ]
ok $? "two replicas of the whole model: its text is sampled once"
grep -q tokenizer "$work/bare.log" && ! grep tokenizer "$work/whole.log"
ok $? "not a word of a tokenizer that is not used"
# shellcheck disable=SC2086
run cut 2 $data --steps 9 --val-data "$work/data/val.bin" --stages 2
[ "$(grep -c 'likeliest tokens' "$work/cut.log")" -eq 0 ] && [ "$(grep -c 'questions are skipped' "$work/cut.log")" -eq 1 ]
ok $? "a split one: skipped, said once"
[ "$(grep -c 'val loss [0-9]' "$work/cut.log")" -eq 3 ] && [ "$(grep 'val loss' "$work/cut.log" | cut -c1-14)" = "$(grep 'val loss' "$work/whole.log" | cut -c1-14)" ]
ok $? "validation: 3 times the same by 2x1 and 1x2, $(grep -m1 'val loss' "$work/cut.log")"
# shellcheck disable=SC2086
run val-all 2 $data --steps 1 --val-data "$work/data/train.bin" --stages 2
val=$(echo "$(sed -n 's/^val loss //p' "$work/val-all.log") $("$work/one_by_one" loss "$work/data/train.bin" "$tree/model.bin" 120 600 | sed -n 's/^mean loss //p')" | within 1e-5 1 relative)
ok $? "the loss of all samples by the tree's own functions, within $val"
# llm.c's token files say GPT-2's vocabulary, and may be of a small one; what fills up a padded microbatch is not learnt.
llmc_tokens() { printf '\x88\xd8\x34\x01\1\0\0\0\x88\x13\0\0' && head -c 1012 /dev/zero && cat; }  # 5000 of them
llmc_tokens <"$tree/train.tok" >"$work/llmc_train.bin"
run llmc 2 --train-data "$work/llmc_train.bin" --val-data "$work/llmc_train.bin" --model "$tree/model.bin" --max-tokens 120 --batch-tokens 600 --steps 1 --lr 1e-9 --stages 2 --layout padded
val=$(echo "$(sed -n 's/^val loss //p' "$work/llmc.log") $("$work/one_by_one" loss "$work/llmc_train.bin" "$tree/model.bin" 120 600 | sed -n 's/^mean loss //p')" | within 1e-5 1 relative)
ok $? "llm.c's token file of a small vocabulary: the loss of the tree's own functions, within $val"
{ printf '\1\1' && tail -c +3 "$tree/train.tok"; } | llmc_tokens >"$work/llmc_large.bin"
refuses "the data has 258 ids, the model 257" "one with an id beyond it" 1 --train-data "$work/llmc_large.bin" --model "$tree/model.bin" --max-tokens 120
cp "$tree/model.bin" "$work/260.bin" && printf '\x04' | dd of="$work/260.bin" bs=1 seek=12 conv=notrunc 2>/dev/null
# shellcheck disable=SC2086
run few 2 $data --steps 1 --model "$work/260.bin"
[ "$(grep -c '^warning: the data has 257 ids, the model 260.* ---> ' "$work/few.log")" -eq 1 ] && ! grep '^warning' "$work/whole.log"
ok $? "a model of more ids than the data: $(grep -o 'warning: .*' "$work/few.log")"
# shellcheck disable=SC2086
run check 1 $data --check-model 1
[ $? -eq 0 ] && ! grep -q '^FAIL' "$work/check.log" && [ "$(grep -c '^ok ' "$work/check.log")" -ge 11 ] && grep -q "^ok .*program's own" "$work/check.log"
ok $? "--check-model 1: $(grep -c '^ok ' "$work/check.log") laws hold"

# --- checkpoints ------------------------------------------------------------------------------------------------
# shellcheck disable=SC2086
timeout 60 "$trainer" $data --steps 2 --output-dir "$work/unheard" >/dev/full 2>"$work/unheard.log"
[ $? -eq 1 ] && [ -e "$work/unheard/DONE_00000002" ] && [ "$(grep -c '^warning: standard output: cannot be written' "$work/unheard.log")" -eq 1 ]
ok $? "a full disk behind standard output: the run goes on, saves, and ends with status 1"
half() { run "$1" "$2" $data --steps 3 --output-dir "$work/$1" --stages "$3" && run "$1-on" "$4" $data --steps 6 --resume 1 --output-dir "$work/$1" --stages "$5"; }
half same 2 2 2 2 && cmp -s "$work/same/model_00000006.bin" "$work/2x1/model_00000006.bin" && cmp -s "$work/same/state_00000006_00000.bin" "$work/2x1/state_00000006_00000.bin"
ok $? "3 steps and 3 more are 6: model and state, byte for byte"
half other 4 4 4 2 && difference=$(loss_difference other 2x2 1e-5) && grep -q 'resumed from .*step 3' "$work/other-on.log"
ok $? "4 stages write, 2 x 2 go on: losses within $difference"
run again 1 --train-data "$work/data/train.bin" --max-tokens 120 --batch-tokens 600 --steps 1 --model "$work/2x1/model_00000006.bin"
grep -q 'step 0: train loss' "$work/again.log"
ok $? "a written model is one to begin with"

# --- told to end ------------------------------------------------------------------------------------------------
# shellcheck disable=SC2086
{
    start '^step +2/' told 2 $data --steps 100000 --stages 2 --output-dir "$work/told"
    kill -TERM "$(ranks_of "$job" | tail -1)"
    wait "$job"
    ok $? "SIGTERM to one rank: exit status 0"
    step=$(stopped_after SIGTERM told)
    run until 2 $data --steps "${step:-1}" --stages 2 --output-dir "$work/until"
    file=$(printf '%08d' "${step:-1}")
    cmp "$work/told/model_$file.bin" "$work/until/model_$file.bin" && cmp "$work/told/state_${file}_00000.bin" "$work/until/state_${file}_00000.bin" && [ -e "$work/told/DONE_$file" ]
    ok $? "step $step is saved, byte for byte what a run of as many steps ends with"
    start '^step +2/' told-int 2 $data --steps 100000 --stages 2
    kill -INT "$(ranks_of "$job" | head -1)"
    wait "$job"
    [ $? -eq 130 ] && grep -q 'stopped by SIGINT.*nothing is saved' "$work/told-int.log"
    ok $? "SIGINT, no folder: 130, $(grep 'stopped by' "$work/told-int.log")"
    timeout 60 "$trainer" $data --steps 100000 --output-dir "$work/unheard-int" --checkpoint-every 1 >/dev/full 2>"$work/unheard-int.log" &
    job=$!
    await '^warning: standard output' "$work/unheard-int.log" && kill -INT "$(pgrep -P "$job")"
    wait "$job"
    [ $? -eq 130 ]
    ok $? "SIGINT where standard output is lost: still 130"
    start '^step +2/' limited 1 $data --steps 100000 --output-dir "$work/limited"
    rank=$(ranks_of "$job") && prlimit --fsize=40000 --pid "$rank" && kill -TERM "$rank"
    wait "$job"
    [ $? -eq 1 ] && [ "$(ls "$work/limited")" = metrics.jsonl ] && grep -q 'stopped by SIGTERM .* not saved' "$work/limited.log" && grep -q 'checkpoint not saved: .*File too large' "$work/limited.log"
    ok $? "no room for a checkpoint: said, status 1, nothing left: $(grep -o 'not saved: .*' "$work/limited.log")"
    start '^saved' timed 2 $data --steps 100000 --stages 2 --output-dir "$work/timed" --checkpoint-every 1s
    kill -TERM "$(ranks_of "$job" | tail -1)"
    wait "$job"
    [ $? -eq 0 ] && [ "$(grep -c '^saved' "$work/timed.log")" -ge 2 ] && ! grep '^saved' "$work/timed.log" | sort | uniq -d | grep .
    ok $? "--checkpoint-every 1s: saved $(grep -c '^saved' "$work/timed.log") times, no step twice"
    refuses "--checkpoint-every: '5x'" "an interval that is none" 2 $data --stages 2 --checkpoint-every 5x --output-dir "$work/timed"
}

# --- wrong use --------------------------------------------------------------------------------------------------
# shellcheck disable=SC2086
{
    refuses "the model takes 128" "longer samples than the model" 2 $data --max-tokens 129 --stages 2
    refuses "not an option" "a word that is no option" 2 $data oops
    refuses "from where?" "--resume without a folder" 1 $data --resume 1
    cp -r "$work/same" "$work/damaged" && printf 'x' | dd of="$work/damaged/state_00000006_00000.bin" bs=1 seek=0 conv=notrunc 2>/dev/null
    refuses "magic" "a damaged state" 2 $data --stages 2 --resume 1 --output-dir "$work/damaged"
    cp -r "$work/same" "$work/flipped" && printf 'x' | dd of="$work/flipped/state_00000006_00000.bin" bs=1 seek=9999 conv=notrunc 2>/dev/null
    refuses "state_00000006_00000.bin: its contents are not those that were saved" "a damaged value" 2 $data --stages 2 --resume 1 --output-dir "$work/flipped"
    run older 2 $data --stages 2 --steps 6 --resume 3 --output-dir "$work/flipped"
    grep -q -- '---> --resume 3 goes on from step 3' "$work/bad.log" && cmp -s "$work/flipped/state_00000006_00000.bin" "$work/2x1/state_00000006_00000.bin"
    ok $? "--resume 3, as it says: 3 steps and 3 more again"
    cp "$work/other/state_00000006_00000.bin" "$work/flipped" && cp "$work/same/model_00000003.bin" "$work/flipped.bin"
    refuses "saved beside other weights" "the state of another run" 2 $data --stages 2 --resume 1 --output-dir "$work/flipped"
    refuses "up to step 6" "a new run in that folder" 2 $data --stages 2 --steps 1 --output-dir "$work/flipped"
    run over 2 $data --stages 2 --steps 1 --overwrite 1 --output-dir "$work/flipped"
    [ "$(cd "$work/flipped" && echo DONE_*)" = DONE_00000001 ]
    ok $? "--overwrite 1: and its checkpoint is the newest then"
    printf 'x' | dd of="$work/flipped.bin" bs=1 seek=9999 conv=notrunc 2>/dev/null
    refuses "flipped.bin: its contents" "a damaged --model" 2 --train-data "$work/data/train.bin" --max-tokens 120 --batch-tokens 600 --steps 1 --model "$work/flipped.bin"
    # ranks that look at different folders: each in its own, on the same command line
    mkdir "$work/rank0" "$work/rank1" && cp "$work/same/model_00000003.bin" "$work/rank0/begin.bin"
    from="--train-data $work/data/train.bin --max-tokens 120 --batch-tokens 600 --stages 2 --steps 1 --model begin.bin"
    apart() {  # what
        timeout -k 5 60 mpirun -np 1 -wdir "$work/rank0" "$trainer" $from : -np 1 -wdir "$work/rank1" "$trainer" $from >"$work/bad.log" 2>&1
        local code=$?
        [ $code -ne 0 ] && [ $code -ne 124 ] && [ "$(grep -cF 'begin.bin: not all ranks have this file, the same one' "$work/bad.log")" -eq 1 ]
        ok $? "$1: $(grep -m1 error "$work/bad.log")"
    }
    apart "a --model that one rank lacks"
    cp "$work/same/model_00000006.bin" "$work/rank1/begin.bin"
    apart "another --model, sealed, on each rank"
    for rank in 0 1; do dd if=/dev/zero of="$work/rank$rank/begin.bin" bs=4 seek=244 count=12 conv=notrunc 2>/dev/null; done
    apart "the same two without a seal"
    "$work/one_by_one" vocabulary "$work/data/train.bin" "$work/other.bin"
    refuses "same/model_00000003.bin: trained on tokens of vocabulary" "a --model of another tokenizer than the data's" 2 --train-data "$work/other.bin" --max-tokens 120 --batch-tokens 600 --stages 2 --steps 1 --model "$work/same/model_00000003.bin"
    refuses "not a finite number" "a loss that is none" 2 $data --stages 2 --lr 1000 --output-dir "$work/wild" --checkpoint-every 1
    [ -e "$work/wild/DONE_00000001" ] && [ ! -e "$work/wild/model_00000002.bin" ]
    ok $? "and no checkpoint of it"
    forks=(
        "DYNAPIPE_FIRST is missing|s/DYNAPIPE_FIRST(&model, 0)/0/"
        "DYNAPIPE_WHOLE_AND is missing|s/DYNAPIPE_WHOLE_AND //"
        "layers that are all alike|s/C, *C, *L \* C}/C, C, L * L * C \/ 4}/"
        "one tensor for each of their sizes|s/^    return malloc_and_point(&acts->encoded.*/    float* m = malloc_and_point(\&acts->encoded, sizes, NUM_ACTIVATION_TENSORS); acts->ln2 = acts->ln1; return m;/"
        "do not add up to num_parameters|s/printf(\"layers/model->num_parameters -= 3; &/"
        "0 calls of encoder_forward()|s/\bencoder_forward\b/my_&/"
        "0 calls of attention_forward(), a slice needs 4|s/\battention_forward\b/my_&/"
        "0 calls of layernorm_forward()|s/\blayernorm_forward\b/my_&/"
        "0 calls of encoder_backward()|s/\bencoder_backward\b/my_&/"
        "0 calls of attention_backward()|s/\battention_backward\b/my_&/"
        "the loss of a made-up sequence is|s/^ *attention_forward(atty/for (size_t i = 0; i < N * 3 * C; i++) { qkv[i] *= cosf(i \/ (3 * C) % T); } &/"
        "the loss of a made-up sequence is|s/mean_loss += a.losses/mean_loss += 1.01f * a.losses/"
        "gradients of parameter tensor|s/d.wpe, g.encoded/d.wpe + (T > 1 ? C : 0), g.encoded/; s/matmul_backward(g.lnf, d.wte/d.lnfb[0] += B; &/"
        "tokens without targets|s/train_loader.inputs, train_loader.targets/train_loader.inputs, NULL/"
        "gpt2_update() without|s/^ *gpt2_forward(&model, train_loader.*//"
    )
    for i in "${!forks[@]}"; do
        [ -n "$all" ] || [ $((i % 4)) -eq 0 ] || continue
        fork=${forks[$i]}
        cp "$tree/train_gpt2.c" "$work/kept.c"
        sed -i "${fork#*|}" "$tree"/{train_gpt2.c,ops.h}
        cmp -s "$tree/train_gpt2.c" "$work/kept.c" && ok 1 "${fork%%|*}: nothing was changed"
        make_tree DYNAPIPE=1 DYNAPIPE_TARGETS=train_gpt2
        refuses "${fork%%|*}" "a tree where that is so" 2 --train-data "$work/data/train.bin" --model "$tree/model.bin" --stages 2 --steps 9
        cp "$work/kept.c" "$tree/train_gpt2.c" && cp test/foreign_llmc/ops.h "$tree"
    done
}
cp "$tree/train_gpt2.c" "$work/kept.c" && sed -i 's/\bcrossentropy_forward\b/my_&/' "$tree/train_gpt2.c"
! make -C "$tree" train_gpt2 DYNAPIPE=1 DYNAPIPE_OUT="$root/$build/foreign_llmc" >"$work/made.log" 2>&1 && grep -q crossentropy_forward "$work/made.log"
ok $? "a loss of another name: no program"
cp "$work/kept.c" "$tree/train_gpt2.c"
cp -r test/foreign_llmc "$work/other-tree" && sed -i 's/\battention_forward\b/flash_forward/' "$work/other-tree/train_gpt2.c"
dynapipe_plugin/install.sh "$work/other-tree" >"$work/refused.log" 2>&1
[ $? -eq 2 ] && grep -q 'gpt2_forward() does not call attention_forward()' "$work/refused.log"
ok $? "install.sh: $(grep -o 'gpt2_forward() does.*' "$work/refused.log")"

# --- a main() of another manner ---------------------------------------------------------------------------------
cp "$tree/train_gpt2.c" "$work/kept.c"
again="dataloader_next_batch(\&train_loader); gpt2_forward(\&model, train_loader.inputs, train_loader.targets, B, T); gpt2_backward(\&model);"
sed -i "/^int main/,\$ {s/^ *gpt2_backward(&model);/& $again/; s/gpt2_forward(&model, text, NULL/int* none = NULL; gpt2_forward(\&model, text, none/}" "$tree/train_gpt2.c"
sed -i '/^int main/,$ s/gpt2_forward(&model, val_loader.inputs, val_loader.targets/int *in = val_loader.inputs, *NULLS = val_loader.targets; gpt2_forward(\&model, in, NULLS/' "$tree/train_gpt2.c"
make_tree DYNAPIPE=1 DYNAPIPE_TARGETS=train_gpt2
# shellcheck disable=SC2086
run micro 1 $data --steps 9 --val-data "$work/data/val.bin" --output-dir "$work/micro"
difference=$(loss_difference micro 1x1 1e-6) && [ "$(losses micro | wc -l)" -eq 9 ] && [ "$(grep -c 'several training batches' "$work/micro.log")" -eq 1 ]
ok $? "two batches for an update are one step, said once: losses within $difference"
[ "$(grep -c 'likeliest tokens' "$work/micro.log")" -eq 1 ] && [ "$(grep 'val loss' "$work/micro.log" | cut -c1-14)" = "$(grep 'val loss' "$work/whole.log" | cut -c1-14)" ]
ok $? "targets are what their value is, however spelled"
cp "$work/kept.c" "$tree/train_gpt2.c"

# --- languages --------------------------------------------------------------------------------------------------
gcc -std=c99 -Wall -Wextra -Werror -D_POSIX_C_SOURCE=200809L -DDYNAPIPE -c "$tree/train_gpt2.c" -o "$work/c99.o"
ok $? "C99, no warning"
g++ -x c++ -std=c++17 -Wall -Wextra -Werror -Wno-missing-field-initializers -O2 -DDYNAPIPE -c "$tree/train_gpt2.c" -o "$work/cxx.o"
ok $? "C++17, no warning"
libs=$(cd "$tree" && printf 'include Makefile\nshow:\n\t@echo $(DYNAPIPE_LIBS)\n' | make -s --no-print-directory -f - show DYNAPIPE=1 DYNAPIPE_OUT="$root/$build/foreign_llmc")
# shellcheck disable=SC2086
g++ "$work/cxx.o" $libs -o "$tree/train_gpt2" && train as-cxx 2 --stages 2 && loss_difference as-cxx 2x1 1e-6 >/dev/null
ok $? "and the same losses of it"
dynapipe_plugin/install.sh --remove "$tree" >"$work/install.log" && diff -r test/foreign_llmc "$tree" | grep -v '^Only in .*tree: ' >"$work/rest"
[ ! -s "$work/rest" ]
ok $? "install.sh --remove: the tree as it was"
finish
