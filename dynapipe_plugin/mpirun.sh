#!/usr/bin/env bash
# mpirun.sh -- mpirun, for runs that are told to end and save first. Takes mpirun's arguments and does what it does; besides:
#
#   SIGTERM, SIGINT (Ctrl-C), SIGUSR1, SIGHUP   reach the ranks as SIGUSR1, SIGINT as SIGUSR2 if they catch that; they finish
#                             their step, save and end. Exit status 0, for SIGINT 130. A second SIGINT ends them now.
#   mpirun is killed          its ranks on this host end too, and what Open MPI leaves behind then is removed: shared memory in
#                             /dev/shm and the folder of the session, as long as nobody uses them
#   a host is gone            the ranks give up (--comm-timeout), but mpirun waits for that host, for a quarter of an hour: 6 seconds
#                             after the last rank here it is killed
#   mpirun.sh --clean         does only that, for all runs of this user that have died
#   as root, or with more ranks than cores   mpirun does not refuse
#   a rank fails              its own message is all that is printed; the exit status is the rank's
#   this script is killed     the run goes on without it, and what Open MPI may leave stays: kill -USR1 to mpirun ends it, saved
#
# Open MPI's own mpirun (4.1) answers SIGTERM and SIGINT with SIGCONT at once, SIGTERM a second later, SIGKILL another second
# later (odls_base_sigkill_timeout), and exit status 1, whatever the ranks do. SIGUSR1 it hands on and waits. MPIRUN: the command
# to use in place of mpirun.
set -u
mpirun='' told='' signal='' as=USR1
for name in TERM INT USR1 HUP; do
    # shellcheck disable=SC2064
    trap "signal=$name; [ -z \"\$mpirun\" ] || tell" "$name"
done
host=$(uname -n)
shared=${OMPI_MCA_btl_vader_backing_directory:-/dev/shm}
session=${TMPDIR:-/tmp}/ompi.${host%%.*}.$(id -u)
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_base_warn_component_unused=0
export OMPI_MCA_rmaps_base_oversubscribe=${OMPI_MCA_rmaps_base_oversubscribe:-1}
export OMPI_MCA_hwloc_base_binding_policy=${OMPI_MCA_hwloc_base_binding_policy:-none}  # one or two ranks would have a core each

# Nobody has it mapped or open. What belongs to others is not looked at: names have the user's number.
is_unused() {
    ! grep -qsF -- "$1" /proc/[0-9]*/maps && ! find /proc/[0-9]*/fd -lname "$1*" -print -quit 2>/dev/null | grep -q .
}

clean() {
    local file pid unused=()
    for file in "$shared"/vader_segment."${host%%.*}"*."$(id -u)".*; do
        [ -O "$file" ] && is_unused "$file" && unused+=("$file")
    done
    if [ ${#unused[@]} -gt 0 ]; then
        sleep 0.2  # a run that starts now has made its file and is about to map it
        for file in "${unused[@]}"; do
            if is_unused "$file"; then rm -f "$file"; fi
        done
    fi
    for file in "$session"/pid.*; do
        pid=${file##*.}
        if [ -O "$file" ] && ! kill -0 "$pid" 2>/dev/null; then rm -rf "$file"; fi
    done
    rmdir "$session" 2>/dev/null
}

if [ "${1:-}" = --clean ]; then
    clean
    exit 0
fi

# Of what is printed, without mpirun's two notices that a rank has ended with an error, and with one line where there is no such
# program: then the status is 5. (Its --quiet would also hide that, and ranks that a signal has killed.)
without_notices() {
    trap '' TERM INT USR1 HUP
    exec sed -u '/^-\{74\}$/ {
        N
        /\n\(Primary job  terminated normally\|mpirun detected that one or more processes exited with non-zero\)/ {
            :more
            N
            /\n-\{74\}$/ !b more
            d
        }
        /\n[^ ]* was unable to \(find the specified executable\|launch the specified application as it could not\)/ {
            :all
            N
            /\n-\{74\}$/ !b all
            s/.*\nExecutable: *\([^\n]*\).*/mpirun.sh: \1: no such program, or no permission to run it ---> make it, or check the path/
            q 5
        }
    }' >&2
}

# Processes on this host that mpirun started: its environment goes to them.
ranks() {
    grep -lsz "^DYNAPIPE_MPIRUN=$$\$" /proc/[0-9]*/environ 2>/dev/null | sed -E 's|/proc/([0-9]+)/.*|\1|' | grep -vx "$mpirun"
}

# Of these, ranks; the others reach hosts.
has_ranks() {
    grep -lsz "^DYNAPIPE_MPIRUN=$$\$" /proc/[0-9]*/environ 2>/dev/null | xargs -r grep -qsz '^OMPI_COMM_WORLD_RANK='
}

# A signal is handed on from the moment that mpirun, and noted from the moment that the ranks catch it: before, it kills.
catches() {
    local caught
    caught=$(awk '/^SigCgt/ {print $2}' "/proc/$1/status" 2>/dev/null)
    [ -n "$caught" ] && (((0x$caught >> ($(kill -l $as) - 1) & 1) != 0))
}
is_ready() {
    local all rank
    all=$(ranks)
    [ -n "$all" ] && catches "$mpirun" || return 1
    for rank in $all; do catches "$rank" || return 1; done
}

tell() {
    local first=$told
    told=$signal signal=''
    if [ -n "$first" ] && [ "$told" = INT ]; then
        echo "mpirun.sh: SIGINT again: the ranks end now" >&2
        kill -TERM "$mpirun" 2>/dev/null
        return
    fi
    [ -z "$first" ] || return
    echo "mpirun.sh: SIG$told: the ranks finish their step, save and end (Ctrl-C again: at once)" >&2
    [ "$told" != INT ] || as=USR2
    for _ in $(seq 50); do
        is_ready && break
        kill -0 "$mpirun" 2>/dev/null && [ -z "$signal" ] || break
        sleep 0.1
    done
    is_ready || as=USR1
    kill -$as "$mpirun" 2>/dev/null
}

exec {said}> >(without_notices)
filter=$!
[ ! -t 0 ] || exec </dev/null  # a job in the background may not read from a terminal
set -m                         # a process group of its own: Ctrl-C is for this script alone
DYNAPIPE_MPIRUN=$$ "${MPIRUN:-mpirun}" "$@" 2>&"$said" {said}>&- &
mpirun=$!
exec {said}>&-
[ -z "$signal" ] || tell
# No `wait` yet: where mpirun ends while a signal interrupts it, bash gives the status of the signal, or waits for ever.
exec {never}<> <(:)
looks=0 had_ranks='' without=0
while kill -0 "$mpirun" 2>/dev/null; do
    read -rt 0.2 -u "$never"
    if [ $((++looks % 10)) -ne 0 ]; then continue; fi
    # mpirun loses one now and then; ranks that have noted it do not mind another
    if [ -n "$told" ]; then kill -$as "$mpirun" 2>/dev/null; fi
    if has_ranks; then
        had_ranks=1 without=0
    elif [ -n "$had_ranks" ] && [ $((++without)) -eq 3 ]; then
        echo "mpirun.sh: all ranks here have ended, mpirun waits for a host that does not answer: killed" >&2
        kill -KILL "$mpirun" 2>/dev/null
    fi
done
wait "$mpirun"
status=$?

# Its ranks notice that mpirun is gone, most often at once.
for _ in $(seq 50); do
    [ -n "$(ranks)" ] || break
    sleep 0.1
done
left=$(ranks)
# shellcheck disable=SC2086
[ -z "$left" ] || kill -KILL $left 2>/dev/null
wait "$filter"
if [ $? -eq 5 ]; then status=127; fi
clean
# Open MPI says so only at times
[ $status -le 128 ] || [ -n "$told" ] || echo "mpirun.sh: exit status $status, as by SIG$(kill -l $status)" >&2
if [ $status -eq 0 ] && [ "$told" = INT ]; then status=130; fi
exit $status
