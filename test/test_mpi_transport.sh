#!/usr/bin/env bash
# The MPI transport under mpirun: the cases of every transport, failures that must end everybody, and whether
# messages arrive while their sender computes, with and without single-copy shared memory.
. "$(dirname "$0")/check_lib.sh"
. dev/mpi_env.sh
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
command -v mpirun >/dev/null && command -v mpicc >/dev/null || skip_all "no mpirun or mpicc here"
out=build/${BUILD:-release}$([[ "${CC:-gcc}" == clang* ]] && echo -clang)
make --no-print-directory -s "$out/mpi_transport" || exit 1
log=$work/log

# name, expected exit (0, or "bad" for any other), words that must be in the output, command...
expect() {
    local name=$1 exit=$2 words=$3 begin=$SECONDS rc
    shift 3
    timeout -k 5 60 "$@" >"$log" 2>&1
    rc=$?
    case $exit:$rc in
        0:0) true;;
        0:* | bad:0 | bad:124) false;;
        *) true;;
    esac
    [ $? -eq 0 ] && grep -qF -- "$words" "$log" && [ $((SECONDS - begin)) -le 30 ]
    ok $? "$name (exit $rc, $((SECONDS - begin)) s)" "$log"
}

for np in 1 2 4; do
    expect "exchange, $np ranks" 0 "passed" mpirun -np $np "$out/mpi_transport" exchange
done
export OMPI_MCA_odls_base_sigkill_timeout=0  # mpirun's wait for processes that it has killed, 1 s each time
# A large message for a receive that is too short is left out: it may be written past its end (transport_mpi.c).
for lengths in "8 16" "16 8"; do
    sent=${lengths% *} expected=${lengths#* } words="expects ${lengths#* } bytes, tag 3, but rank 0 sends"
    said=$([ $sent -gt $expected ] && echo more || echo $sent)
    expect "unequal lengths: $lengths" bad "$words $said" mpirun -np 2 "$out/mpi_transport" mismatch $lengths
done
expect "closing with requests in flight" bad "closes with 1 requests in flight" mpirun -np 2 "$out/mpi_transport" in-flight

unset OMPI_MCA_odls_base_sigkill_timeout
# A rank that fails, and one that is killed: all end within 10 seconds, and the first says why.
begin=$SECONDS
expect "a rank gives up" bad "rank 1: the disk is full" mpirun -np 4 "$out/mpi_transport" abort
expect "a rank is killed" bad "signal 9" mpirun -np 4 "$out/mpi_transport" kill
[ $((SECONDS - begin)) -le 20 ]
ok $? "the others end soon"

# Does a thread have to move messages while ranks compute? All ranks find the same, and messages arrive whole with one.
expect "how messages move" 0 "messages are received" mpirun -np 3 "$out/mpi_transport" measure
expect "how messages move, TCP" 0 "messages are received" mpirun --mca btl tcp,self -np 2 "$out/mpi_transport" measure

# With the thread the receiver has a message long before its sender stops computing (100 ms); busy machines may delay some.
for mechanism in cma none; do
    expect "waiting, single copy $mechanism" 0 "passed" \
        env OMPI_MCA_btl_vader_single_copy_mechanism=$mechanism mpirun -np 4 "$out/mpi_transport" wait
    grep waiting "$log" | sort | head -1
    awk '/^waiting/ && $3 > 40 {dear++} /^waiting/ {n++} END {exit !(n == 3 && dear == 0)}' "$log"
    ok $? "ranks that wait take no time from ranks that compute" "$log"
    expect "overlap, single copy $mechanism" 0 "passed" env OMPI_MCA_btl_vader_single_copy_mechanism=$mechanism \
        mpirun -np 2 "$out/mpi_transport" overlap
    grep overlap "$log"
    awk '/^overlap/ && $4 > 80 {late++} /^overlap/ {n++} END {exit !(n == 3 && late < 3)}' "$log"
    ok $? "messages do not wait for their sender"
done
expect "exchange without single copy" 0 "passed" env OMPI_MCA_btl_vader_single_copy_mechanism=none \
    mpirun -np 4 "$out/mpi_transport" exchange
finish
