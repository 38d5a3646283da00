#!/usr/bin/env bash
# hosts_train.sh -- one run over several hosts, without a scheduler: Open MPI's mpirun over ssh.
#
#   dev/hosts_train.sh HOSTFILE -- ./train_gpt2 -i 'data/mine/train*.bin' -t 1024 -d 65536 -x 1000 -o out/mine --stages 4
#
# HOSTFILE: a host a line, "node1 slots=8" (no slots: one rank); # begins a comment. This script runs on one of them, or where ssh reaches all
# without a password. Program, libraries and data lie at the same path on every host (one file system, or copies), and so does -o: only
# rank 0 of a stage writes there, but a run that goes on reads on all. The run ends as one on a single host does: Ctrl-C, SIGTERM or
# SIGUSR1 to this script saves and ends it.
#
# Options, as variables before the command:
#   INTERFACES=eth2          what MPI talks through: names of interfaces, or networks (10.1.0.0/16), comma between; default: all it finds
#   AGENT=ssh                what starts a command on a host
#   RANKS=                   default: the slots of all hosts
#   DRY_RUN=1                says what would be run
# For NCCL set on the command line: what begins with NCCL_ or DYNAPIPE_, OMP_ and OPENBLAS_ goes to all hosts. doc/hosts.md says which to set.
. "$(dirname "$0")/help.sh"
set -u
fail() {
    echo "hosts_train.sh: $1" >&2
    exit 2
}
[ $# -ge 3 ] && [ "$2" = -- ] || fail "HOSTFILE -- PROGRAM ARGUMENTS are needed ---> dev/hosts_train.sh --help"
hostfile=$1
shift 2
[ -r "$hostfile" ] || fail "$hostfile: cannot be read ---> a file with a line for each host, 'node1 slots=8'"
declare -A seen=()
hosts='' slots=0 line=0
while read -r host about more || [ -n "$host" ]; do
    line=$((line + 1)) host=${host%%#*}
    [ -n "$host" ] || continue
    case ${about:=slots=1} in '#'*) about=slots=1 more='' ;; esac
    [[ "$about ${more%%#*}" =~ ^slots=([1-9][0-9]*)\ *$ ]] || fail "$hostfile, line $line: '$host $about $more' is no host ---> 'node1', or 'node1 slots=8'"
    [ -z "${seen[$host]:-}" ] || fail "$hostfile, line $line: $host stands above already ---> once, with slots=N"
    seen[$host]=1 slots=$((slots + BASH_REMATCH[1])) hosts+=${hosts:+,}$host:${BASH_REMATCH[1]}
done <"$hostfile"
[ "$slots" -gt 0 ] || fail "$hostfile: names no host ---> a line for each, 'node1 slots=8'"
ranks=${RANKS:-$slots}
[[ $ranks =~ ^[1-9][0-9]*$ ]] && [ "$ranks" -le "$slots" ] || fail "RANKS=$ranks: $hostfile has $slots slots ---> 1 to $slots"
command -v "${AGENT:-ssh}" >/dev/null || fail "AGENT=${AGENT:-ssh}: not found ---> apt-get install openssh-client, or AGENT=another"

# Every rank is where the file says, one after the other: neighbouring stages, which talk most, share a host.
args=(-np "$ranks" --host "$hosts" --map-by slot --mca plm_rsh_agent "${AGENT:-ssh}" --mca plm rsh)
if [ -n "${INTERFACES:-}" ]; then args+=(--mca btl_tcp_if_include "$INTERFACES" --mca oob_tcp_if_include "$INTERFACES"); fi
while read -r name; do args+=(-x "$name"); done < <(compgen -e | grep -E '^(NCCL|DYNAPIPE|OMP|OPENBLAS)_')
launch="$(dirname "$0")/../dynapipe_plugin/mpirun.sh"
if [ -n "${DRY_RUN:-}" ]; then
    printf '%q ' "$launch" "${args[@]}" "$@"
    echo
    exit
fi
exec "$launch" "${args[@]}" "$@"
