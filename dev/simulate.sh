#!/usr/bin/env bash
# Run a program of `make simulated` on virtual hosts, one a rank, in virtual time (SimGrid's SMPI): every rank's clock runs by the
# processor time of what it computes, messages take the time of a network of which only the numbers below exist. What is
# printed, metrics.jsonl and traces have virtual times; losses are those of real ranks. Gives the program's status.
#   dev/simulate.sh -n RANKS [--platform NAME[,NAME..]] [--seed N] [--rendezvous] [--cfg KEY:VALUE].. -- PROGRAM ARGUMENTS
#   dev/simulate.sh -n 4 --platform slow-from:60 -- build/simulated/train_gpt2-dynapipe -i data/train.bin --stages 4 --costs FILE
# fast             all ranks on one node: 10 GB/s and 1 us from any rank to any other, as through the memory of a host. A message
#                  takes a 500th of the job that made it, as between H200s on NVLink.
# ethernet         two nodes with half of the ranks each, and between the nodes 25 Gb/s each way, shared, and 20 us
# slow-host[:R[:F]]    the host of rank R (1) takes F (1.5) times as long for everything
# slow-from:T[:R[:F]]  the same from T seconds of virtual time on
# jitter[:P]       each host is off by P (10) percent, anew every 0.25 s (standard deviation; a job takes about as long); --seed
# --rendezvous: no send is through before its receive is posted, however small. --cfg: for SMPI, see smpimain --help.
set -eu
die() { echo "$1" >&2; exit 2; }
ranks='' platform=fast seed=1 cfg=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
        --rendezvous) cfg+=(--cfg=smpi/send-is-detached-thresh:0); shift; continue ;;
        -n | --platform | --seed | --cfg) [ $# -ge 2 ] || die "$1: no value" ;;&
        -n) ranks=$2 ;;
        --platform) platform=$2 ;;
        --seed) seed=$2 ;;
        --cfg) cfg+=("--cfg=$2") ;;
        *) die "$1 ---> dev/simulate.sh -n RANKS [--platform NAME] [--seed N] [--rendezvous] [--cfg KEY:VALUE] -- PROGRAM ARGUMENTS" ;;
    esac
    shift 2
done
if [ $# -lt 2 ] || [[ ! $ranks =~ ^[1-9][0-9]*$ ]]; then die "nothing to run ---> dev/simulate.sh -n RANKS -- PROGRAM ARGUMENTS"; fi
shift
program=$(realpath -e "$1") || exit 2
shift
smpirun=$(command -v smpirun) || die "no smpirun here ---> dev/setup.sh --dev"
# smpirun itself would take arguments with spaces apart
smpimain=$(sed -nE 's/^\$\{WRAPPER\} "([^"]*smpimain)".*/\1/p' "$smpirun")
[ -x "$smpimain" ] || die "$smpirun does not say where smpimain is ---> another version of SimGrid than 3.32 may do that elsewhere"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

speed_of=()  # of a rank: attributes of its host
between=memory
for ((r = 0; r < ranks; r++)); do speed_of+=('speed="1Gf"'); done
profile() {  # rank: its speed is in $work/RANK.speed, which SimGrid finds beside the platform
    speed_of[$1]+=" speed_file=\"$1.speed\""
}
slow() {  # rank, factor: sets r
    r=${1:-1} factor=${2:-1.5}
    if [[ ! $r =~ ^[0-9]+$ ]] || [ "$r" -ge "$ranks" ]; then die "--platform: rank $r, there are 0..$((ranks - 1))"; fi
}
IFS=, read -ra parts <<<"$platform"
for part in "${parts[@]}"; do
    IFS=: read -r name a b c <<<"$part"
    case $name in
        fast) ;;
        ethernet) between=ethernet ;;
        slow-host)
            slow "$a" "$b"
            speed_of[r]=$(awk -v f="$factor" 'BEGIN {printf "speed=\"%.6fGf\"", 1 / f}')
            ;;
        slow-from)
            slow "$b" "$c"
            awk -v t="${a:?slow-from:SECONDS}" -v f="$factor" 'BEGIN {printf "0 1\n%s %.6f\n", t, 1 / f}' >"$work/$r.speed"
            profile "$r"
            ;;
        jitter)
            for ((r = 0; r < ranks; r++)); do
                # factors of the time that a job takes, Box and Muller's way
                awk -v seed=$((seed * 1000 + r)) -v percent="${a:-10}" 'BEGIN {
                    srand(seed); interval = 0.25; n = 4096; pi = atan2(0, -1)
                    for (i = 0; i < n; i++) {
                        f = 1 + percent / 100 * sqrt(-2 * log(1 - rand())) * cos(2 * pi * rand())
                        printf "%.2f %.6f\n", i * interval, 1 / (f < 0.2 ? 0.2 : f)
                    }
                    printf "LOOPAFTER %.2f\n", interval}' >"$work/$r.speed"
                profile "$r"
            done
            ;;
        *) die "--platform $name ---> fast, ethernet, slow-host, slow-from:SECONDS, jitter" ;;
    esac
done

# Each pair's messages have the memory for themselves (FATPIPE); what goes from one node to the other shares a cable each way.
node() { echo $((2 * $1 / ranks)); }
{
    echo '<?xml version="1.0"?><!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">'
    echo '<platform version="4.1"><zone id="all" routing="Full">'
    for ((r = 0; r < ranks; r++)); do echo "<host id=\"r$r\" ${speed_of[r]}/>"; done
    echo '<link id="memory" bandwidth="10GBps" latency="1us" sharing_policy="FATPIPE"/>'
    echo '<link id="ethernet" bandwidth="25Gbps" latency="20us" sharing_policy="SPLITDUPLEX"/>'
    for ((r = 0; r < ranks; r++)); do
        echo "<route src=\"r$r\" dst=\"r$r\"><link_ctn id=\"memory\"/></route>"
        for ((q = r + 1; q < ranks; q++)); do
            if [ "$(node "$r")" = "$(node "$q")" ] || [ $between = memory ]; then
                echo "<route src=\"r$r\" dst=\"r$q\"><link_ctn id=\"memory\"/></route>"
            else
                echo "<route src=\"r$r\" dst=\"r$q\" symmetrical=\"NO\"><link_ctn id=\"ethernet\" direction=\"UP\"/></route>"
                echo "<route src=\"r$q\" dst=\"r$r\" symmetrical=\"NO\"><link_ctn id=\"ethernet\" direction=\"DOWN\"/></route>"
            fi
        done
    done
    echo '</zone></platform>'
} >"$work/platform.xml"
for ((r = 0; r < ranks; r++)); do echo "r$r"; done >"$work/hosts"

. "$(dirname "$0")/mpi_env.sh"
# A rank is a host of its own with one core, whatever this machine has.
export OMP_NUM_THREADS=1 MPI_LOCALNRANKS=1 MPI_LOCALRANKID=0
# host-speed: a second here is a second on a host of 1Gf. Messages take latency + bytes / bandwidth, without the corrections
# for TCP that SMPI knows. test, wtime: what a look costs that finds nothing (by default 0.1 ms, and more each time), and one at the clock.
"$smpimain" "$program" --cfg=smpi/privatization:dlopen --cfg=smpi/tmpdir:"$work" --cfg=smpi/np:"$ranks" --cfg=smpi/hostfile:"$work/hosts" \
    --cfg=smpi/host-speed:1Gf --cfg=smpi/simulate-computation:yes --cfg=smpi/test:2e-7 --cfg=smpi/iprobe:2e-7 --cfg=smpi/wtime:5e-8 \
    --cfg=smpi/grow-injected-times:no --cfg=surf/precision:1e-9 --cfg=network/model:CM02 --cfg=network/crosstraffic:0 \
    --cfg=network/TCP-gamma:0 --log=root.thresh:warning ${cfg[@]+"${cfg[@]}"} "$work/platform.xml" "$@" </dev/null
