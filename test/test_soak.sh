#!/usr/bin/env bash
# dev/soak.sh, a few rounds with one of each fault: what must hold is said there. Hundreds of rounds: dev/results/soak.md.
# concerns: dev/soak.sh trainer dynapipe_plugin/run/session
. "$(dirname "$0")/check_lib.sh"
for tool in mpicc mpirun pgrep python3; do
    command -v "$tool" >/dev/null || skip_all "no $tool here ---> dev/setup.sh"
done
FAULTS="kill mpirun stop full flip term all int usr1" IN_TURN=1 dev/soak.sh 9
