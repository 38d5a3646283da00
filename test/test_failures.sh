#!/usr/bin/env bash
# A killed rank ends the run within seconds with the last checkpoint intact; a full disk costs a checkpoint, not the old one.
# concerns: dynapipe_plugin/run trainer llmc/checkpoint
needs=pgrep
. "$(dirname "$0")/train_lib.sh"
make_data 3000 300
base="-i $work/data/train.bin -e l4c64h4 -t 256 -d 8000 -v 0 -s 0 --stages 2"

mkdir "$work/killed"
timeout -k 5 120 mpirun -np 4 "$trainer" $base -x 100000 -n 3 -o "$work/killed" >"$work/killed.log" 2>&1 &
mpirun_pid=$!
for _ in $(seq 300); do
    ls "$work/killed"/DONE_* >/dev/null 2>&1 && break
    sleep 0.1
done
sleep 0.3
victim=$(pgrep -f -- "-o $work/killed" | while read -r pid; do case "$(cat /proc/"$pid"/comm)" in train*) echo "$pid" ;; esac; done | tail -1)
kill -9 "$victim"
begin=$(date +%s)
for _ in $(seq 100); do
    kill -0 $mpirun_pid 2>/dev/null || break
    sleep 0.1
done
! kill -0 $mpirun_pid 2>/dev/null
ok $? "kill -9 of a rank: the run ends within 10 seconds ($(($(date +%s) - begin)) s)"
wait $mpirun_pid
ok $(($? != 0 ? 0 : 1)) "and says so with its exit status"
grep -q 'signal 9 (Killed)' "$work/killed.log"
ok $? "with a line that names the cause"
! pgrep -f -- "-o $work/killed" >/dev/null
ok $? "no rank is left behind"
run after 4 $base -x 0 -y 1 -o "$work/killed"
ok $? "the last checkpoint can be read: $(grep resumed "$work/after.log" | sed "s|$work/||")"

# --- processes that are stopped, for longer than --comm-timeout -----------------------------------------------------
train_pids() { ranks_of $job | while read -r pid; do case "$(cat /proc/"$pid"/comm)" in train*) echo "$pid" ;; esac; done; }
start '^step +3/' paused 4 ${base/--stages 2/--stages 4} -x 100000 --comm-timeout 1 -o "$work/paused"
pids=$(train_pids)
kill -STOP $pids && sleep 2.5 && lines=$(wc -l <"$work/paused.log") && kill -CONT $pids
for _ in $(seq 100); do [ "$(wc -l <"$work/paused.log")" -gt $((lines + 3)) ] && break; sleep 0.1; done
kill -TERM $(echo $pids | cut -d' ' -f1)
wait $job
ok $? "all ranks were stopped for 2.5 s (a paused machine): the run goes on, $(grep -c '^step' "$work/paused.log") steps"
start '^step +5/' stopped 2 $base -x 100000 --comm-timeout 2
kill -STOP $(train_pids | tail -1)
wait $job
[ $? -ne 0 ] && grep -q 'no message from rank 1 --->' "$work/stopped.log"
ok $? "one rank stays stopped: $(grep -o 'no message from rank .* --->' "$work/stopped.log")"

# A file-size limit stands in for a full disk: the model file does not fit (MPI's own shared memory files do).
big="-i $work/data/train.bin -e l4c384h4 -t 256 -d 2000 -v 0 -s 0 --stages 2"
run saved 2 $big -x 1 -o "$work/full"
before=$(md5sum "$work/full/model_00000001.bin" "$work/full/state_00000001_00000.bin")
(
    trap '' XFSZ
    ulimit -f 20000
    run full 2 $big -x 3 -n 1 -y 1 -o "$work/full"
)
ok $(($? != 0 ? 0 : 1)) "a run whose last checkpoint was not saved says so with its exit status"
grep -q 'not saved' "$work/full.log"
ok $? "and with a message: $(grep -m1 'not saved' "$work/full.log" | sed "s|$work/||g")"
grep -q '^step *3/3' "$work/full.log"
ok $? "and goes on training"
[ "$before" = "$(md5sum "$work/full/model_00000001.bin" "$work/full/state_00000001_00000.bin")" ]
ok $? "the old checkpoint survives"
! ls "$work/full" | grep -q 'tmp$'
ok $? "nothing half-written is left"

# --- checkpoints that are not what was saved -----------------------------------------------------------------------
base="-i $work/data/train.bin -e l4c32h4 -t 128 -d 2000 -v 0 -s 0"
damage() { printf 'x' | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null; }
step6() { cp "$work/kept"/*_00000006* "$work/seal"; }
run seal 4 $base --stages 4 -x 6 -n 2 -o "$work/seal" && cp -r "$work/seal" "$work/kept"
damage "$work/seal/state_00000006_00000.bin" 54321
refuses "state_00000006_00000.bin: its contents are not those that were saved" "a damaged value" 4 $base --stages 2 -z 1 -x 8 -y 1 -o "$work/seal"
grep -q -- '---> -y 4 resumes from step 4' "$work/bad.log"
ok $? "and which step is a whole one"
run taken 1 $base -x 6 -y 1 --verify 0 -o "$work/seal"
[ $? -eq 0 ] && grep -q -- '--verify 0: .*is not verified' "$work/taken.log"
ok $? "--verify 0 takes it, and says so"
refuses "-y 3: no finished checkpoint of that step" "a step that is not there" 2 $base --stages 2 -x 6 -y 3 -o "$work/seal"
grep -q -- '---> one of these: -y 2, 4, 6' "$work/bad.log"
ok $? "and which there are"
damage "$work/seal/model_00000004.bin" 1000
refuses "model_00000004.bin: its header is not the one that was sealed" "a damaged header, -y 4" 2 $base --stages 2 -x 6 -y 4 -o "$work/seal"
cp "$work/kept/model_00000004.bin" "$work/seal"
run older 4 $base --stages 4 -x 5 -y 4 -o "$work/seal"
[ "$(cd "$work/seal" && echo DONE_*)" = "DONE_00000002 DONE_00000004 DONE_00000005" ]
ok $? "-y 4 goes on from there: the damaged one is no longer the newest"
run newer 4 $base --stages 4 -x 6 -y 1 -o "$work/seal"
cmp -s "$work/seal/model_00000006.bin" "$work/kept/model_00000006.bin" && cmp -s "$work/seal/state_00000006_00000.bin" "$work/kept/state_00000006_00000.bin"
ok $? "and ends where the first run did, bit for bit"
step6 && cp "$work/kept/state_00000004_00000.bin" "$work/seal/state_00000006_00000.bin"
refuses "sealed at step 4, not 6 as its name says" "the state of another step" 2 $base --stages 2 -x 8 -y 1 -o "$work/seal"
step6 && printf '\7' | dd of="$work/seal/state_00000006_00000.bin" bs=4 seek=10 conv=notrunc 2>/dev/null
refuses "its header is not the one that was sealed" "an edited step" 2 $base --stages 2 -x 8 -y 1 -o "$work/seal"
cp "$work/kept/model_00000006.bin" "$work/begin.bin" && damage "$work/begin.bin" 20000
from="-i $work/data/train.bin -t 128 -d 2000 -x 1 -v 0 -s 0 --stages 2"
refuses "begin.bin: its contents are not those that were saved" "a damaged -e" 2 $from -e "$work/begin.bin"
dd if=/dev/zero of="$work/begin.bin" bs=4 seek=244 count=12 conv=notrunc 2>/dev/null
run plain 2 $from -e "$work/begin.bin"
[ $? -eq 0 ] && grep -q 'begin.bin: not sealed' "$work/plain.log"
ok $? "llm.c's own has no seal: $(grep -o 'not sealed.*' "$work/plain.log")"

# --- ranks that look at different folders: each in its own, on the same command line ----------------------------------
mkdir "$work/rank0" "$work/rank1" && cp -r "$work/kept" "$work/rank0/out" && cp -r "$work/kept" "$work/rank1/out"
apart() {  # words, what, arguments...
    local words=$1 what=$2
    shift 2
    local trainer_path=$PWD/$trainer
    timeout -k 5 60 mpirun -np 1 -wdir "$work/rank0" "$trainer_path" "$@" : -np 1 -wdir "$work/rank1" "$trainer_path" "$@" >"$work/bad.log" 2>&1
    [ $? -ne 0 ] && [ "$(grep -cF -- "$words" "$work/bad.log")" -eq 1 ]
    ok $? "$what: $(grep -m1 error "$work/bad.log")"
}
rm "$work/rank1/out/DONE_00000006"
apart "1 of 2 ranks find another newest checkpoint than rank 0" "another newest step" $base --stages 2 -x 8 -y 1 -o out
cp "$work/kept/DONE_00000006" "$work/rank1/out" && cp "$work/kept/state_00000004_00000.bin" "$work/rank1/out/state_00000006_00000.bin"
apart "state_00000006_00000.bin: 1 of 2 ranks have another file there than rank 0" "another state" $base --stages 2 -x 8 -y 1 -o out
cp "$work/rank0/out/model_00000006.bin" "$work/rank0/begin.bin" && cp "$work/rank0/out/model_00000004.bin" "$work/rank1/begin.bin"
apart "begin.bin: 1 of 2 ranks have another file there than rank 0" "another -e" $from -e begin.bin
rm "$work/rank1/begin.bin"
apart "begin.bin: 1 of 2 ranks have another file" "an -e that one rank lacks" $from -e begin.bin

# --- a model of other tokens ----------------------------------------------------------------------------------------
"$build/prepare_data" --tokenizer byt5 --out "$work/byt5" "$work/tasks.jsonl" >"$work/byt5.log" 2>&1
run byt5 1 -i "$work/byt5/train.bin" -e l2c32h4 -t 128 -d 1000 -x 1 -v 0 -s 0 -o "$work/byt5"
refuses "trained on tokens of vocabulary" "-e of another tokenizer than the data's" 2 $from -e "$work/byt5/model_00000001.bin"
finish
