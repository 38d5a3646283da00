#!/usr/bin/env bash
# What a run leaves behind it: whose -o is, what of its logs stays where it goes on, what a full disk, a removed folder and a
# reader that is gone cost it. And of every program: output that did not arrive is an error.
. "$(dirname "$0")/train_lib.sh"
make -s "$build/dynapipe" "$build/profile_costs" >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
make_data 300 200
data="-i $work/data/train.bin -t 64 -e l1c16h2 -v 0 -s 0"
plugin="$data -j $work/data/val.bin -d 500 -v 2 -m 1 --answers 0 --robust off"
stock() {  # name, arguments...: the stock trainer, whose status is returned
    local name=$1
    shift
    timeout 60 "$build/train_gpt2" $data -b 2 "$@" >"$work/$name.log" 2>&1
}
says() { grep -qF -- "$2" "$work/$1.log"; }
steps() { sed -nE 's/^\{"(step|validation)":([0-9]+),.*\}$/\1 \2/p' "$1/metrics.jsonl" | xargs; }

# --- whose folder ------------------------------------------------------------------------------------------------
run first 2 $plugin --stages 2 -x 4 -n 2 -o "$work/o"
[ "$(steps "$work/o")" = "validation 0 step 1 step 2 validation 2 step 3 step 4 validation 4" ]
ok $? "a run's records: $(steps "$work/o")"
before=$(cd "$work/o" && md5sum *)
refuses "has an earlier run (checkpoints up to step 4) ---> -y 1 goes on from it; another -o keeps the runs apart; --overwrite 1" \
    "a fresh run where there is one" 2 $plugin --stages 2 -x 4 -o "$work/o"
refuses "-y and --overwrite 1" "both" 2 $plugin --stages 2 -x 4 -o "$work/o" -y 1 --overwrite 1
refuses "has 9 positions" "what fails later than that" 2 $plugin --stages 2 -x 4 -o "$work/o" --overwrite 1 -e nothing 2>/dev/null || true
[ "$before" = "$(cd "$work/o" && md5sum *)" ]
ok $? "and not a byte of it has changed"
finish
