#!/usr/bin/env bash
# Runs over several hosts, which are network namespaces of this one, joined by a bridge: mpirun over a launch agent, losses equal to one
# host's, the link measured, a rank that is killed and a host that vanishes named. Namespaces, processes, names and links are this test's
# own and end with it, however it ends.
# concerns: dynapipe_plugin/run/hosts dynapipe_plugin/run/transport dynapipe_plugin/run/session_ dev/hosts_train.sh
if [ -z "${HOSTS_INSIDE:-}" ]; then
    own="unshare -n -m -u -p -f --mount-proc --kill-child"
    if ! command -v ip >/dev/null || ! $own ip link add probe type veth peer name eborp 2>/dev/null; then
        echo "skip test_hosts: no network namespaces, or no ip, here ---> as root, in a container with --cap-add=SYS_ADMIN,NET_ADMIN; dev/setup.sh --dev"
        echo "0 passed, 0 failed, 1 skipped"
        exit 77
    fi
    HOSTS_INSIDE=1 exec $own bash "$0" "$@"
fi
hostname hosts1
needs=pgrep
. "$(dirname "$0")/train_lib.sh"

# hosts1 is where mpirun runs, the others are namespaces that a bridge joins.
net=10.231.7
mount -t tmpfs tmpfs /run && mkdir /run/netns
printf '127.0.0.1 localhost\n' >"$work/names"
for h in 1 2 3 4; do echo "$net.$h hosts$h" >>"$work/names"; done
mount --bind "$work/names" /etc/hosts
ip link set lo up
ip link add bridge0 type bridge && ip addr add "$net.1/24" dev bridge0 && ip link set bridge0 up
for h in 2 3 4; do
    ip netns add "hosts$h"
    ip link add "to$h" type veth peer name eth0 netns "hosts$h" && ip link set "to$h" master bridge0 up
    ip -n "hosts$h" addr add "$net.$h/24" dev eth0 && ip -n "hosts$h" link set eth0 up && ip -n "hosts$h" link set lo up
done
if tc qdisc add dev to2 root netem delay 1ms rate 200mbit 2>"$work/tc.log"; then
    slow=1
else
    echo "no slow link: this kernel's tc cannot (sch_netem): $(head -1 "$work/tc.log")"
fi
# In place of ssh, as plm_rsh_agent calls it.
cat >"$work/agent" <<'AGENT'
#!/bin/sh
host=$1
shift
exec ip netns exec "$host" unshare -u sh -c "hostname $host; $*"
AGENT
chmod +x "$work/agent"

# The trainer as dev/hosts_train.sh starts it on these hosts.
on() {  # name, hosts (a rank on each), arguments...
    local name=$1 hosts=$2
    shift 2
    tr ',' '\n' <<<"$hosts" >"$work/$name.hosts"
    AGENT=$work/agent INTERFACES=$net.0/24 timeout -k 5 60 dev/hosts_train.sh "$work/$name.hosts" -- "$PWD/$trainer" "$@" >"$work/$name.log" 2>&1
}

make_data 400 300
# Plans depend on the costs alone: what the first run measured.
base="-i $work/data/train.bin -e l4c64h4 -t 256 -d 4000 -v 0 -s 0 --refit off --debug effort=2000"
on two hosts1,hosts2 $base -x 3 --stages 2 -o "$work/two"
ok $? "two hosts: $(grep -o 'ranks: .*replicas' "$work/two.log"), $(grep -h '^comm' "$work"/costs/*)"
costs=$(ls "$work"/costs/*)
on four hosts1,hosts2,hosts3,hosts4 $base -x 3 --stages 2 --costs "$costs" -o "$work/four"
ok $? "four hosts: $(grep -o 'ranks: .*replicas' "$work/four.log")"
run one 4 $base -x 3 --stages 2 --costs "$costs" -o "$work/one"
[ "$(losses four)" = "$(losses one)" ] && [ "$(losses one | wc -l)" -eq 3 ]
ok $? "losses of four hosts are one host's, every digit"
if [ -n "${slow:-}" ]; then
    awk '/^comm/ {exit !($5 < 0.05)}' "$costs"
    ok $? "a link of 200 Mb/s is measured as one"
fi

# --- hosts that are gone -----------------------------------------------------------------------------------------
gone() {  # name, hosts, seconds, how it goes...
    local name=$1 hosts=$2 limit=$3 begin=''
    shift 3
    on "$name" "$hosts" $base -x 100000 --stages 3 --comm-timeout 3 &
    job=$!
    while kill -0 $job 2>/dev/null && ! grep -qsE '^step +2/' "$work/$name.log"; do sleep 0.1; done
    kill -0 $job 2>/dev/null && begin=$(date +%s%N) && eval "$@"
    local was_there=$?
    [ $was_there -eq 0 ] || pkill -P $job  # no need to wait for its end
    wait $job
    code=$? took=$((($(date +%s%N) - ${begin:-0}) / 1000000))
    [ $was_there -eq 0 ] || { echo "nothing was there to end: $(tail -1 "$work/$name.log")"; took=none; return 1; }
    [ $code -ne 0 ] && [ $code -ne 124 ] && [ $took -lt $((1000 * limit)) ]
}
# The trainers of a host, killed; not 0: it has none.
kill_trainers() {  # host
    local pids
    pids=$(ip netns pids "$1" | while read -r p; do grep -ls train "/proc/$p/comm"; done | cut -d/ -f3)
    # shellcheck disable=SC2086
    [ -n "$pids" ] && kill -9 $pids
}
gone killed hosts1,hosts2,hosts3 10 'kill_trainers hosts2'
ok $? "kill -9 of a rank on hosts2: the run ends in $took ms"
grep -q 'on node hosts2 exited on signal 9' "$work/killed.log"
ok $? "$(grep -o 'process rank .* exited on signal 9' "$work/killed.log")"
gone cut hosts1,hosts2,hosts3 40 'ip link del to2'
ok $? "the cable of hosts2 is cut: the run ends in $took ms"
grep -q 'no message from rank 1 (on hosts2) --->' "$work/cut.log"
ok $? "$(grep 'no message' "$work/cut.log")"
[ "${HOSTS_SHOW:-}" ] && cat "$work"/{killed,cut}.log
times >"$work/times"  # of the shell itself, not of a pipe's
awk 'NR == 2 { for (i = 1; i <= 2; i++) { split($i, part, /[ms]/); s += 60 * part[1] + part[2] } printf "processor time: %.0f s\n", s }' "$work/times"
finish
