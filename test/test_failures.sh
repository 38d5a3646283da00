#!/usr/bin/env bash
# A killed rank ends the run within seconds with the last checkpoint intact; a full disk costs a checkpoint, not the old one.
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
finish
