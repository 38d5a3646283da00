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
# Several names: what they do to a host is multiplied (jitter beside slow-from: until 1024 s after it). F: 0.01 to 100, P: 0 to 100.
# --rendezvous: no send is through before its receive is posted, however small. --cfg: for SMPI, see smpimain --help.
. "$(dirname "$0")/help.sh"
set -eu
die() { echo "$1" >&2; exit 2; }
ranks='' platform=fast seed=1 cfg=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
        -h | --help) script_help; exit 0 ;;
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
if [[ ! $seed =~ ^[0-9]{1,9}$ ]]; then die "--seed $seed ---> a whole number of at most 9 digits"; fi
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

between=memory jitter=0
factor_of=() froms_of=()  # of a rank: as many times as long from the beginning; "SECONDS FACTOR .." from then on
for ((r = 0; r < ranks; r++)); do factor_of+=(1) froms_of+=(''); done
number() {  # what, text, least, most, example
    local decimal='^([0-9]+[.]?[0-9]*|[.][0-9]+)$'
    [[ $2 =~ $decimal ]] && awk -v x="$2" -v least="$3" -v most="$4" 'BEGIN {exit !(x + 0 >= least && x + 0 <= most)}' ||
        die "--platform $part: $1 is '$2' ---> a number from $3 to $4, as in $5"
}
slow() {  # rank, factor, example: sets r and factor
    r=${1:-1} factor=${2:-1.5}
    if [[ ! $r =~ ^(0|[1-9][0-9]{0,5})$ ]] || [ "$r" -ge "$ranks" ]; then
        die "--platform $part: rank '$r', there are 0..$((ranks - 1)) ---> one of them, as in $3"
    fi
    number "the factor" "$factor" 0.01 100 "$3"
}
IFS=, read -ra parts <<<"$platform"
for part in "${parts[@]}"; do
    IFS=: read -r name a b c more <<<"$part"
    case $name in
        fast | ethernet) more=$a ;;
        jitter) more=$b ;;
        slow-host) more=$c ;;
    esac
    [ -z "$more" ] || die "--platform $part: $name takes no '$more' ---> dev/simulate.sh --help"
    case $name in
        fast) ;;
        ethernet) between=ethernet ;;
        slow-host)
            slow "$a" "$b" slow-host:1:1.5
            factor_of[r]=$(awk -v f="${factor_of[r]}" -v g="$factor" 'BEGIN {printf "%.9g", f * g}')
            ;;
        slow-from)
            number "when" "$a" 0 100000 slow-from:60:1:1.5
            slow "$b" "$c" slow-from:60:1:1.5
            froms_of[r]+=" $a $factor"
            ;;
        jitter)
            [ "$jitter" = 0 ] || die "--platform $platform: jitter twice ---> leave one of them out"
            number "the percentage" "${a:-10}" 0 100 jitter:10
            jitter=${a:-10}
            ;;
        *) die "--platform $name ---> fast, ethernet, slow-host, slow-from:SECONDS, jitter" ;;
    esac
done

# How fast a host is over time, for SimGrid: what jitter does times what slow-from does. Jitter's factors are of the time that a job
# takes (Box-Muller).
profile() {  # rank
    awk -v seed=$((seed * 1000 + $1)) -v percent="$jitter" -v froms="${froms_of[$1]}" 'BEGIN {
        srand(seed); interval = 0.25; n = percent > 0 ? 4096 : 1; pi = atan2(0, -1)
        num_froms = split(froms, from, " ")
        for (k = 1; k <= num_froms; k += 2) if (from[k] + 0 > last) last = from[k] + 0
        if (percent > 0) n += int(last / interval)
        for (i = 0; i < n; i++) {
            f = percent > 0 ? 1 + percent / 100 * sqrt(-2 * log(1 - rand())) * cos(2 * pi * rand()) : 1
            off[i] = f < 0.2 ? 0.2 : f
            is_change[i * interval] = 1
        }
        for (k = 1; k <= num_froms; k += 2) is_change[from[k] + 0] = 1
        for (t in is_change) {
            i = int(t / interval)
            f = off[i < n ? i : n - 1]
            for (k = 1; k <= num_froms; k += 2) if (from[k] <= t + 0) f *= from[k + 1]
            printf "%.6f %.6f\n", t, 1 / f | "sort -g"
        }
        close("sort -g")
        if (percent > 0 && num_froms == 0) printf "LOOPAFTER %.2f\n", interval
    }' >"$work/$1.speed"
}
speed_of=()  # of a rank: attributes of its host, whose file SimGrid finds beside the platform
for ((r = 0; r < ranks; r++)); do
    speed_of+=("$(awk -v f="${factor_of[r]}" 'BEGIN {printf "speed=\"%.6fGf\"", 1 / f}')")
    [ "$jitter" = 0 ] && [ -z "${froms_of[r]}" ] && continue
    profile "$r"
    speed_of[r]+=" speed_file=\"$r.speed\""
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
