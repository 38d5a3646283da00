#!/usr/bin/env bash
# dynapipe_plugin/mpirun.sh and dev/slurm_train.sh give the status of what they started, also where it ends by itself while they
# answer a signal. Stand-ins sleep and exit; no MPI is needed.
# concerns: dynapipe_plugin/mpirun.sh dev/slurm_train.sh
. "$(dirname "$0")/check_lib.sh"
printf '#!/bin/sh\ntrap "" USR1\nsleep "$1"\nexit "$2"\n' >"$work/ranks"
printf '#!/bin/sh\necho "$@" >>"%s/queue"\n' "$work" >"$work/scontrol"
# an mpirun that loses the first SIGUSR1, and a rank of it
cat >"$work/forgetful" <<'END'
#!/usr/bin/env bash
exec {never}<> <(:)
bash -c 'trap : USR1; while kill -0 "$0" 2>/dev/null; do read -rt 0.1 -u "$1"; done' $$ "$never" &
told=0
trap '[ $((++told)) -lt 2 ] || exit 4' USR1
for _ in $(seq 100); do read -rt 0.1 -u "$never"; done
exit 9
END
# one whose ranks fail, with Open MPI's notices
cat >"$work/failing" <<'END'
#!/bin/sh
notice() { printf '%074d\n%b\n%074d\n' 0 "$1" 0 | sed '/^0*$/ s/0/-/g' >&2; }
echo "error: what is wrong ---> what to do" >&2
notice 'Primary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction, the job has been aborted.'
notice 'mpirun detected that one or more processes exited with non-zero status, thus causing\n\n  Exit code:    7'
[ "$1" -le 128 ] || notice 'mpirun noticed that process rank 0 with PID 0 on node vm exited on signal 9 (Killed).'
exit "$1"
END
# one without a program, which ends as mpirun does
cat >"$work/programless" <<'END'
#!/bin/sh
line=$(printf '%074d' 0 | sed 's/0/-/g')
printf '%s\n' "$line" "mpirun was unable to find the specified executable file, and therefore" "did not launch the job." "" \
    "Node:       vm" "Executable: ./trian" "$line" "2 total processes failed to start" >&2
exit 132
END
chmod +x "$work"/*
export PATH=$work:$PATH MPIRUN=$work/ranks LAUNCH=env SLURM_JOB_ID=17

ends() {  # expected status, seconds and status of the ranks, signal, command...
    local expected=$1 seconds=$2 status=$3 signal=$4 job got
    shift 4
    (set -m; exec timeout --foreground 30 "$@" >"$work/log" 2>&1) &
    job=$!
    sleep 0.25
    pkill "-$signal" -P "$job" -f "$1"
    wait "$job"
    got=$?
    [ $got -eq "$expected" ]
    ok $? "$(basename "$1"), SIG$signal, ranks end after $seconds s with $status: $got ($expected)" "$work/log"
}
for seconds in 0.3 0.6; do
    for signal in USR1 TERM; do
        ends 0 $seconds 0 $signal dynapipe_plugin/mpirun.sh $seconds 0
        ends 3 $seconds 3 $signal dynapipe_plugin/mpirun.sh $seconds 3
    done
    ends 130 $seconds 0 INT dynapipe_plugin/mpirun.sh $seconds 0
done
MPIRUN=$work/forgetful ends 4 2.5 4 TERM dynapipe_plugin/mpirun.sh
prints() {  # status of the ranks, lines
    local got lines
    MPIRUN=$work/failing dynapipe_plugin/mpirun.sh "$1" 2>"$work/log"
    got=$? lines=$(grep -v '^-*$' "$work/log")
    [ $got -eq "$1" ] && [ "$lines" = "$2" ]
    ok $? "status $1: $got, $lines"
}
prints 7 "error: what is wrong ---> what to do"
prints 137 "error: what is wrong ---> what to do
mpirun noticed that process rank 0 with PID 0 on node vm exited on signal 9 (Killed).
mpirun.sh: exit status 137, as by SIGKILL"
MPIRUN=$work/programless dynapipe_plugin/mpirun.sh -np 2 ./trian 2>"$work/log"
[ $? -eq 127 ] && grep -qx "mpirun.sh: ./trian: no such program, .* ---> .*" "$work/log" && [ "$(wc -l <"$work/log")" -eq 1 ]
ok $? "no such program: $(cat "$work/log")"
for status in 0 3; do ends $status 0.6 $status USR1 dev/slurm_train.sh ranks 0.6 $status -o "$work/out"; done
finish
