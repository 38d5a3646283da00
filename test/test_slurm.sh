#!/usr/bin/env bash
# Launch scripts. dev/slurm_train.sh against stand-ins for Slurm: sbatch gives a job a number and the signal that the script asks for, srun starts the
# ranks, scontrol notes what is queued again. A run in pieces ends with the bits of a run in one.
# concerns: dev/slurm_train.sh dynapipe_plugin/mpirun.sh
needs=pgrep
. "$(dirname "$0")/train_lib.sh"
make_data 600 120
base="-i $work/data/train.bin -e l2c32h2 -t 128 -d 1500 -v 0 -s 0 --refit off --stages 2 -x 60"
mkdir "$work/bin"
printf '#!/bin/sh\nshift\nexec mpirun -np 2 "$@"\n' >"$work/bin/srun"  # passes signals on, as Slurm's does
printf '#!/bin/sh\necho "$@" >>"%s/queue"\n' "$work" >"$work/bin/scontrol"
chmod +x "$work"/bin/*
export PATH=$work/bin:$PATH

# One stay of the job in the machine: until the log has such a line, then the signal of --signal=B:USR1@120 to the script alone.
stay() {  # name, pattern, command...
    local name=$1 pattern=$2 seen
    shift 2
    seen=$(cat "$work/$name.log" 2>/dev/null | wc -l)
    SLURM_JOB_ID=17 timeout -k 5 120 dev/slurm_train.sh "$@" >>"$work/$name.log" 2>&1 &
    job=$!
    for _ in $(seq 600); do
        tail -n "+$((seen + 1))" "$work/$name.log" | grep -qE "$pattern" && break
        kill -0 "$job" 2>/dev/null || break
        sleep 0.05
    done
    pkill "-$(sed -n 's/^#SBATCH --signal=B:\(.*\)@.*/\1/p' dev/slurm_train.sh)" -P "$job" -f slurm_train.sh
    wait "$job"
}

# shellcheck disable=SC2086
{
    run all 2 $base -o "$work/all"
    ok $? "a run in one piece"
    : >"$work/queue"
    stay job '^step +2/' "$trainer" $base -o "$work/job"
    ok $? "told before its time is up: $(grep -m1 'slurm_train.sh: SIG' "$work/job.log")"
    [ "$(cat "$work/queue")" = "requeue 17" ] && grep -q 'stopped by SIGUSR1 after step' "$work/job.log"
    ok $? "saved, then queued again: scontrol $(cat "$work/queue")"
    first=$(stopped_after SIGUSR1 job)
    stay job "^step +$((first + 3))/" "$trainer" $base -o "$work/job"
    [ $? -eq 0 ] && [ "$(wc -l <"$work/queue")" -eq 2 ] && grep -q "resumed from .*, step $first\$" "$work/job.log"
    ok $? "the second goes on from step $first and is queued again"
    stay job 'no such line' "$trainer" $base -o "$work/job"
    [ $? -eq 0 ] && [ "$(wc -l <"$work/queue")" -eq 2 ] && [ -e "$work/job/DONE_00000060" ]
    ok $? "the third ends, and nothing is queued"
    cmp "$work/job/model_00000060.bin" "$work/all/model_00000060.bin" && cmp "$work/job/state_00000060_00000.bin" "$work/all/state_00000060_00000.bin"
    ok $? "in three pieces: model and state of the one, byte for byte"
    mkdir "$work/early" && cp "$work/all/main.log" "$work/all/metrics.jsonl" "$work/early"
    SLURM_JOB_ID=20 timeout 120 dev/slurm_train.sh "$trainer" $base -x 3 -o "$work/early" >"$work/early.log" 2>&1 && [ -e "$work/early/DONE_00000003" ]
    ok $? "a job whose node failed before the first checkpoint begins anew"
    SLURM_JOB_ID=18 dev/slurm_train.sh "$trainer" $base -l wrong -o "$work/wrong" >"$work/wrong.log" 2>&1
    [ $? -ne 0 ] && [ "$(wc -l <"$work/queue")" -eq 2 ]
    ok $? "a run that fails is not queued again"
    SLURM_JOB_ID=19 dev/slurm_train.sh "$trainer" $base >"$work/nowhere.log" 2>&1
    [ $? -eq 2 ] && grep -q 'a command with -o DIR is needed --->' "$work/nowhere.log"
    ok $? "no -o: $(cat "$work/nowhere.log")"
}

# dev/hosts_train.sh: what it would run, what it refuses. test_hosts.sh runs it.
hosts_train() {  # words expected, what, variables..., with the hostfile on stdin
    local words=$1 what=$2
    shift 2
    cat >"$work/hostfile"
    env AGENT=true DRY_RUN=1 "$@" dev/hosts_train.sh "$work/hostfile" -- ./train_gpt2 -i 'a b' >"$work/dry.log" 2>&1
    grep -qF -- "$words" "$work/dry.log"
    ok $? "$what: $(sed "s|$work/||g" "$work/dry.log")"
}
hosts_train '-np 5 --host node1:4\,node2:1 ' "hosts and slots" <<<$'# mine\nnode1 slots=4 # four cards\n\nnode2'
hosts_train '-x NCCL_SOCKET_IFNAME ' "settings go to all hosts" NCCL_SOCKET_IFNAME=eth2 <<<'node1'
hosts_train 'btl_tcp_if_include 10.1.0.0/16 ' "interfaces" INTERFACES=10.1.0.0/16 <<<'node1'
hosts_train "./train_gpt2 -i a\\ b" "the command as it was" <<<'node1'
hosts_train "line 2: 'node2 cores=4 ' is no host --->" "a line that is none" <<<$'node1\nnode2 cores=4'
hosts_train 'node1 stands above already --->' "a host twice" <<<$'node1\nnode1'
hosts_train 'names no host --->' "an empty file" <<<'# none'
hosts_train 'RANKS=9: ' "more ranks than slots" RANKS=9 <<<'node1 slots=8'
hosts_train 'AGENT=no-such: not found --->' "no agent" AGENT=no-such <<<'node1'
finish
