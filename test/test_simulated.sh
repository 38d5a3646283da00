#!/usr/bin/env bash
# The trainers on virtual ranks in virtual time (make simulated, dev/simulate.sh): plans and losses are those of mpirun's ranks, to
# the last digit; sends that wait for their receives end no run; virtual time is what the platform says.
# concerns: dynapipe_plugin/run dev/simulate.sh
. "$(dirname "${BASH_SOURCE[0]}")/train_lib.sh"
command -v smpicc >/dev/null || skip_all "no smpicc here ---> dev/setup.sh --dev"
virtual=build/simulated
if ! make -s -j2 simulated >"$work/build.log" 2>&1; then cat "$work/build.log"; exit 1; fi

# As run(), on virtual ranks. options: dev/simulate.sh's
simulate() {  # name, options, program, arguments...
    local name=$1 options=$2 program=$3
    shift 3
    # shellcheck disable=SC2086
    timeout -k 5 60 dev/simulate.sh $options -- "$virtual/$program" "$@" >"$work/$name.log" 2>&1
}
# The plan of a run's second step and every step's loss are another run's.
same_run() {  # name, name, steps, what
    [ "$(losses "$1" | wc -l)" -eq "$3" ] && diff <(losses "$1") <(losses "$2") >"$work/diff.log" &&
        diff -q "$work/$1.plan" "$work/$2.plan" >>"$work/diff.log"
    local verdict=$?
    ok $verdict "$4: losses and plans as under mpirun"
    [ $verdict -eq 0 ] || { head -5 "$work/diff.log"; tail -5 "$work/$1.log"; }
}
field() { sed -nE 's/.*"'"$2"'":([^,]+),.*/\1/p' "$work/$1/metrics.jsonl"; }
smallest() { field "$1" "$2" | sort -g | head -1; }

# --- costs: links have the platform's numbers --------------------------------------------------------------------
for platform in "fast 1 10" "ethernet 20 3.125"; do
    read -r name us rate <<<"$platform"
    simulate "link-$name" "-n 2 --platform $name" profile_costs --model l4c64h4 --tokens 200 --vocab 257 --seconds 1 --out "$work/$name.txt"
    line=$(grep '^transfers: ' "$work/link-$name.log")
    awk -v us="$us" -v rate="$rate" '{exit !($2 >= us && $2 < 2 * us + 10 && $5 > 0.8 * rate && $5 < 1.1 * rate)}' <<<"$line"
    ok $? "$name, $us us and $rate GB/s: ${line%%;*}"
done

# --- losses and plans ------------------------------------------------------------------------------------------
make_data 200 200
args=(-i "$work/data/train.bin" -e l4c64h4 -t 200 -d 2048 -x 4 -v 0 -s 0 -n 0 --stages 4 --costs "$work/fast.txt")
of() { echo -o "$work/$1" --debug dump-plan="$work/$1.plan"; }
# shellcheck disable=SC2046
{
    run mpi 4 "${args[@]}" $(of mpi)
    simulate virtual "-n 4" train_gpt2-dynapipe "${args[@]}" $(of virtual)
    same_run virtual mpi 4 "4 virtual ranks"
    simulate rendezvous "-n 4 --rendezvous --platform ethernet" train_gpt2-dynapipe "${args[@]}" $(of rendezvous)
    same_run rendezvous mpi 4 "sends that wait for their receives"
    simulate jitter "-n 4 --platform jitter" train_gpt2-dynapipe "${args[@]}" --refit off $(of jitter)
    same_run jitter mpi 4 "hosts that are off by 10 %"

    replicas=("${args[@]}" --stages 2 --replicas 2 -z 1)
    run mpi22 4 "${replicas[@]}" $(of mpi22)
    simulate virtual22 "-n 4 --rendezvous" train_gpt2-dynapipe "${replicas[@]}" $(of virtual22)
    same_run virtual22 mpi22 4 "2 stages x 2 replicas, sends that wait"

    make_data 60 120 byt5
    simulate t5costs "-n 1" profile_costs --model t5:l2c64h4 --tokens 120 --target-tokens 60 --vocab 384 --seconds 1 --out "$work/t5.txt"
    t5=(-i "$work/data/train.bin" -e t5:l2c64h4 -t 120 --target-tokens 60 -d 1024 -x 2 -v 0 -s 0 -n 0 --stages 4 --costs "$work/t5.txt")
    trainer=$build/train_t5-dynapipe run mpit5 4 "${t5[@]}" $(of mpit5)
    simulate virtualt5 "-n 4 --rendezvous" train_t5-dynapipe "${t5[@]}" $(of virtualt5)
    same_run virtualt5 mpit5 2 "T5, sends that wait"

    # --- time ----------------------------------------------------------------------------------------------------
    simulate slow "-n 4 --platform slow-host:1:5" train_gpt2-dynapipe "${args[@]}" $(of slow)
    simulate from "-n 4 --platform slow-from:1000:1:5" train_gpt2-dynapipe "${args[@]}" $(of from)
}
fast_ms=$(smallest virtual step_ms) slow_ms=$(smallest slow step_ms) from_ms=$(smallest from step_ms)
awk -v f="$fast_ms" -v s="$slow_ms" 'BEGIN {exit !(f > 0 && s > 2 * f)}'
ok $? "a host 5 times as slow: the fastest step takes $slow_ms ms, otherwise $fast_ms"
awk -v f="$from_ms" -v s="$slow_ms" 'BEGIN {exit !(f > 0 && 2 * f < s)}'
ok $? "before it becomes slow, $from_ms ms"
paste <(field virtual plan_ms) <(field virtual plan_wait_ms) | awk '!($1 > 0 && $2 < $1 / 5) {bad = 1} END {exit bad || NR != 4}'
ok $? "planning takes time ($(smallest virtual plan_ms) ms), but none of the ranks'"

simulate bad "-n 4" train_gpt2-dynapipe "${args[@]}" --replicas 3
code=$?
[ $code -eq 2 ] && grep -q "^error: --stages 4 x --replicas 3 are 12 ranks" "$work/bad.log"
ok $? "a run that fails gives its status, $code"
simulate bad "-n 4 --platform token-ring" train_gpt2-dynapipe
[ $? -eq 2 ] && grep -q "^--platform token-ring ---> fast, ethernet" "$work/bad.log"
ok $? "$(head -1 "$work/bad.log")"
for bad in slow-host:1:0 slow-host:1:abc slow-host:1:-2 slow-host:4 slow-host:x slow-from slow-from:x slow-from:1:1:0 jitter:abc jitter:-5 jitter,jitter fast:2; do
    simulate bad "-n 4 --platform $bad" train_gpt2-dynapipe
    [ $? -eq 2 ] && grep -q "^--platform $bad: .* --->" "$work/bad.log"
    ok $? "refused: $(head -1 "$work/bad.log")"
done
dev/simulate.sh --help >"$work/help.log" && grep -q "^slow-from:T" "$work/help.log" && ! grep -q "^set -eu" "$work/help.log"
ok $? "--help prints the manual"

# --- several of them at once: multiplied ------------------------------------------------------------------------
# As smpimain sees it: the files beside the platform, which end with the run.
mkdir "$work/bin" && printf '#!/bin/sh\nWRAPPER=\n${WRAPPER} "%s"\n' "$work/bin/smpimain" >"$work/bin/smpirun"
printf '#!/bin/bash\nfor a; do [ -f "${a%%/*}/platform.xml" ] && cp "${a%%/*}"/* "$SEEN"; done\n' >"$work/bin/smpimain"
chmod +x "$work"/bin/*
seen() {  # name, platform
    mkdir "$work/$1" && PATH=$work/bin:$PATH SEEN=$work/$1 dev/simulate.sh -n 3 --platform "$2" -- /bin/true >"$work/seen.log" 2>&1
}
seen shaken jitter:30 && seen both slow-from:1.1:1:2,jitter:30,slow-host:1:4 && seen twice slow-from:1:2:3,slow-from:2:2:2
ok $? "platforms of several names"
grep -q 'id="r1" speed="0.250000Gf" speed_file="1.speed"/' "$work/both/platform.xml" && ! grep -q 'speed_file.*speed_file' "$work/both/platform.xml"
ok $? "a host has one file, and slow-host's speed beside it"
diff -q <(head -4000 "$work/shaken/0.speed") <(head -4000 "$work/both/0.speed") >"$work/diff.log" &&
    paste <(head -4000 "$work/shaken/1.speed") <(awk '$1 != 1.1' "$work/both/1.speed" | head -4000) | awk '{ x = $2 / $4 / ($1 < 1.1 ? 1 : 2); if ($1 != $3 || x < 0.999 || x > 1.001) bad = 1 } END { exit bad || NR < 4000 }' &&
    [ "$(grep -c '^1\.100000 ' "$work/both/1.speed")" -eq 1 ]
ok $? "jitter goes on under slow-from, and is the same for the others"
[ "$(cat "$work/twice/2.speed")" = $'0.000000 1.000000\n1.000000 0.333333\n2.000000 0.166667' ] && [ ! -e "$work/twice/1.speed" ]
ok $? "slow twice: $(tr '\n' ' ' <"$work/twice/2.speed")"
finish
