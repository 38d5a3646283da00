#!/usr/bin/env bash
# Where memory is short: the planner's own choice of a placement is feasible wherever a told one is, and not much slower than any; told
# that nothing fits, it says what the best placement needs.
# concerns: dynapipe_plugin/plan
. "$(dirname "$0")/check_lib.sh"
build=build/${BUILD:-release}$([[ "${CC:-gcc}" == clang* ]] && echo -clang)
make -s BUILD="${BUILD:-release}" "$build/dynapipe" || exit 1
predicted() { timeout 60 "$build/dynapipe" plan "$@" 2>/dev/null | awk '/^predicted / {print $3 == "s," ? 1000 * $2 : $2}'; }
told=("--placement linear" "--placement vee" "--placement interleaved" "--placement stacks" "--head whole" "--head vocabulary" "--head rows"
    "--placement 0:1,1:4,2:4,3:3 --head vocabulary:0,341,341,342")
against() {  # percent, problem and options...
    local most=$1 ours theirs one
    shift
    ours=$(predicted "$@")
    for one in "${told[@]}"; do
        # shellcheck disable=SC2086
        theirs=$(predicted "$@" $one)
        [ -n "$theirs" ] || continue
        awk -v a="${ours:-1e18}" -v b="$theirs" -v most="$most" 'BEGIN {exit !(a <= b * (1 + most / 100))}'
        ok $? "$*: ${ours:-nothing fits}, told $one $theirs"
    done
}
for limit in 2300M 2600M 3G 4G; do against 12 test/problems/t5_small.json --memory-limit $limit; done
for limit in 750M 800M 1500M; do against 8 test/problems/lengths.csv --model d12 --stages 4 --batch-tokens 8192 --memory-limit $limit; done
if [ -r ../shared/data/lengths.csv ]; then  # hundreds of microbatches
    against 8 ../shared/data/lengths.csv --model d12 --batch-tokens 16384 --max-tokens 1024 --memory-limit 900M
fi
message=$("$build/dynapipe" plan test/problems/lengths.csv --model d12 --stages 4 --batch-tokens 8192 --memory-limit 600M 2>&1)
[ $? -eq 3 ] && grep -q 'of stage 0 take 6685[0-9]* bytes' <<<"$message"
ok $? "600M: $message"
finish
