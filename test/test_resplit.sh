#!/usr/bin/env bash
# --resplit: layers move between ranks behind a step, and the run goes on as if nothing had happened: what a checkpoint has then is
# bit for bit what it has without, plans that do not depend on the split give the same losses; GPT-2, T5, optimizer shards.
# concerns: dynapipe_plugin/run/session_resplit dynapipe_plugin/run/session_refit dynapipe_plugin/run/session_step dynapipe_plugin/run/session_model dynapipe_plugin/plan/placement llmc/model llmc/checkpoint
. "$(dirname "$0")/train_lib.sh"
make_data 300 120 byt5
same_plans="--batching tokens --schedule 1f1b --split-backward off --recompute none"
base="--refit off -i $work/data/train.bin -t 64 -d 400 -l 1e-3 -k constant -v 0 -s 0 -n 3 -nk 9 --debug effort=50 --debug measure-seconds=0 --comm-timeout 30"
gpt="-e l4c32h2 $base" pairs="-e t5:l2c32h2 $base"

train() {  # name, ranks, options...
    local name=$1 ranks=$2
    shift 2
    run "$name" "$ranks" -o "$work/$name" "$@" || { grep -m1 error "$work/$name.log"; ok 1 "$name: the run failed"; }
}
# Parameters, moments and their order in the files of a step: all of the model's, all of the state's but header and record.
same_values() {  # name, name, step, what
    local file
    file=$(printf '%08d' "$3")
    values=$(($(stat -c %s "$work/$1/model_$file.bin") - 1024))
    cmp "$work/$1/model_$file.bin" "$work/$2/model_$file.bin" &&
        cmp -i 1024 -n $((2 * values)) "$work/$1/state_${file}_00000.bin" "$work/$2/state_${file}_00000.bin"
    ok $? "$4: parameters and moments are bit for bit those of the run that stayed"
}
moves() {  # name, splits as said
    [ "$(sed -nE 's/^layers move after step ([0-9]+): stages ([^ ]+) become ([^ ]+).*/\1:\2>\3/p' "$work/$1.log" | tr '\n' ' ')" = "$2 " ]
    ok $? "$1: $2; $(grep -m1 '^moved' "$work/$1.log")"
}

train stays 2 $gpt $same_plans -x 7 --stages 2 --placement 2,2 --head whole --resplit off
train moved 2 $gpt $same_plans -x 7 --stages 2 --placement 2,2 --head whole --resplit 3:4,0/5:1,3
moves moved "3:2,2>4,0 5:4,0>1,3"
same_values stays moved 3 "GPT-2, one stage the head alone"
cmp -s <(losses stays) <(losses moved) && cmp -s "$work/stays/model_00000007.bin" "$work/moved/model_00000007.bin"
ok $? "GPT-2, plans alike: losses of 7 steps and the last model too"

cp -r "$work/moved" "$work/resumed"
train resumed 2 $gpt $same_plans -x 7 --stages 2 --placement 2,2 --head whole --resplit 3:4,0/5:1,3 -y 3
moves resumed "3:2,2>4,0 5:4,0>1,3"
cmp -s "$work/moved/state_00000007_00000.bin" "$work/resumed/state_00000007_00000.bin"
ok $? "resumed at step 3: it begins with the split it had, and ends with the same bytes"
train other 4 $gpt $same_plans -x 7 --stages 2 --replicas 2 --placement 3,1 --head whole --resplit off -z 1 -o "$work/resumed" -y 3
difference=$(loss_difference stays resumed 1e-4)
ok $? "what was saved behind a move goes on at 2 x 2 with another split: losses within $difference"

# What was agreed on behind step 4 (plans use it from step 7 on) travels with the checkpoint: the same plans, to the nanosecond.
plans() {  # name
    sed -nE 's/^\{"step":([789]),"loss":([0-9.]+),.*"predicted_ms":([0-9.]+),.*"refit_step":([0-9]+),.*/\1:\2:\3:\4/p' "$work/$1/metrics.jsonl"
}
if [ "$(getconf _NPROCESSORS_ONLN)" -ge 2 ]; then  # on one core nothing is refit
    refit="$gpt --refit auto --resplit auto -x 9 --stages 2"
    train whole 2 $refit
    cp -r "$work/whole" "$work/goes_on"
    DYNAPIPE_CACHE="$work/other_costs" train goes_on 2 $refit -y 6  # as on a machine that measured otherwise
    grep -q "^measured" "$work/goes_on.log" && grep -q "^costs: as in the checkpoint" "$work/goes_on.log"
    ok $? "resumed without the kept costs: the checkpoint has them"
    [ "$(plans whole | wc -l)" -eq 3 ] && [ "$(plans whole)" = "$(plans goes_on)" ] &&
        cmp -s "$work/whole/model_00000009.bin" "$work/goes_on/model_00000009.bin"
    ok $? "resumed with --refit auto: plans, losses and the last model as of the whole run"
fi

for z in 0 1; do
    train stays4 4 $gpt -x 6 -z $z --stages 2 --replicas 2 --placement 2,2 --head whole --resplit off
    train moved4 4 $gpt -x 6 -z $z --stages 2 --replicas 2 --placement 2,2 --head whole --resplit 3:1,3
    same_values stays4 moved4 3 "2 x 2, -z $z"
    difference=$(loss_difference stays4 moved4 1e-4)
    ok $? "2 x 2, -z $z, dynamic plans: losses within $difference"
    rm -rf "$work/stays4" "$work/moved4"
done

trainer=$build/train_t5-dynapipe
train stays5 3 $pairs -x 6 --stages 3 --placement 1,2,1 --head whole --resplit off
train moved5 3 $pairs -x 6 --stages 3 --placement 1,2,1 --head whole --resplit 3:3,1,0
same_values stays5 moved5 3 "T5, the decoder begins elsewhere"
difference=$(loss_difference stays5 moved5 1e-4)
ok $? "T5: losses within $difference"

# From any placement and head to any other, and on from a checkpoint behind that.
placed() {  # name, model's words, options, to
    train "$1_costs" 2 $2 -x 1 --stages 2 --resplit off  # measured once: both runs begin with the same shares
    train "$1" 2 $2 -x 6 --stages 2 $3 --resplit off
    train "$1_moved" 2 $2 -x 6 --stages 2 $3 --resplit "3:$4"
    grep -q "^layers move after step 3: .* become $4\b" "$work/$1_moved.log"
    ok $? "$1: $(grep -m1 '^layers move' "$work/$1_moved.log")"
    same_values "$1" "$1_moved" 3 "$1"
    difference=$(loss_difference "$1" "$1_moved" 1e-4)
    ok $? "$1: losses within $difference"
    cp -r "$work/$1_moved" "$work/$1_on"
    train "$1_on" 2 $2 -x 6 --stages 2 $3 --resplit "3:$4" -y 3
    cmp -s "$work/$1_moved/state_00000006_00000.bin" "$work/$1_on/state_00000006_00000.bin"
    ok $? "$1: resumed at step 3, it has the placement it had, and ends with the same bytes"
    local at="${4%+*}" head="${4#*+}"
    cp -r "$work/$1_moved" "$work/$1_told"
    train "$1_told" 2 $2 -x 6 --stages 2 --placement "$at" --head "$head" -y 3
    cmp -s "$work/$1_moved/state_00000006_00000.bin" "$work/$1_told/state_00000006_00000.bin" &&
        grep -q "^stages: $4\b" "$work/$1_told.log" && ! grep -q "^layers " "$work/$1_told.log"
    ok $? "$1: told that placement and its shares, it begins there: $(grep -m1 '^stages' "$work/$1_told.log")"
    cp -r "$work/$1_moved" "$work/$1_back"
    train "$1_back" 2 $2 -x 6 --stages 2 $3 -y 3
    grep -q "^layers are placed by this run's options: " "$work/$1_back.log" && ! grep -q "^layers move" "$work/$1_back.log" &&
        grep -qF "(the checkpoint was saved with $4)" "$work/$1_back.log"
    ok $? "$1: told $3, it says that the checkpoint was saved with another"
    difference=$(loss_difference "$1" "$1_back" 1e-4)
    ok $? "$1: losses within $difference"
}
trainer=$build/train_gpt2-dynapipe
placed vee "$gpt" "--placement vee --head vocabulary" "1:3,0:1+rows:300,724"
placed linear "$gpt" "--placement linear --head whole" "0:1,1:2,0:1+vocabulary:512,512"
trainer=$build/train_t5-dynapipe
placed stacks "$pairs" "--placement stacks --head rows" "1:1,0:1,1:1,0:1+vocabulary:0,1024"

refuses "--resplit 3:1,2,1: no split of 4 layers onto 2 stages" "layers of more stages than there are" \
    2 $pairs -o "$work/bad" -x 6 --stages 2 --resplit 3:1,2,1
refuses "--placement 0:1,1:2: " "not all layers" 2 $pairs -o "$work/bad" -x 6 --stages 2 --placement 0:1,1:2
refuses "--placement vees ---> auto, linear," "no such word" 2 $pairs -o "$work/bad" -x 6 --stages 2 --placement vees
refuses "--head rows:1,1022 ---> auto, whole," "not all of the head" 2 $pairs -o "$work/bad" -x 6 --stages 2 --head rows:1,1022
refuses "--resplit 3:4,4" "of another model" 2 $pairs -o "$work/bad" -x 6 --stages 2 --placement 2,2 --resplit 3:4,4
finish
