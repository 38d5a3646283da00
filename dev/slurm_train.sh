#!/usr/bin/env bash
#SBATCH --job-name=train
#SBATCH --ntasks=8
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
# slurm_train.sh -- a run that is longer than a job may be: two minutes before the time limit Slurm tells this script (B: the batch
# script alone), the ranks finish their step, save and end, and the job is queued again and goes on from there. Preemption
# (SIGTERM) and scancel --signal=USR1 --batch do the same. Copy it, change the lines above and:
#
#   sbatch dev/slurm_train.sh ./train_gpt2 -i 'data/mine/train*.bin' -t 1024 -d 65536 -x 100000 -o out/mine --stages 4
#
# The command has -o and no -y: -y 1 is added, which begins anew where -o has no checkpoint. LAUNCH: what starts the ranks, srun if not set; with
# mpirun: LAUNCH="dynapipe_plugin/mpirun.sh -np 8". doc/slurm.md has the rest.
set -u
launch=${LAUNCH:-srun --kill-on-bad-exit=1}

out=''
for ((i = 1; i < $#; i++)); do
    next=$((i + 1))
    if [ "${!i}" = -o ]; then out=${!next}; fi
done
if [ $# -eq 0 ] || [ -z "$out" ]; then
    echo "slurm_train.sh: a command with -o DIR is needed ---> sbatch dev/slurm_train.sh ./train_gpt2 -i FILES ... -o DIR" >&2
    exit 2
fi

step='' told=''
tell() {  # what came
    told=$1
    echo "slurm_train.sh: SIG$1 after $SECONDS s: the ranks finish their step, save and end"
    [ -z "$step" ] || kill -USR1 "$step" 2>/dev/null
}
trap 'tell USR1' USR1
trap 'tell TERM' TERM

# shellcheck disable=SC2086
$launch "$@" -y 1 &
step=$!
[ -z "$told" ] || kill -USR1 "$step" 2>/dev/null
# No `wait` yet: where they end while a signal interrupts it, bash gives the status of the signal, or waits for ever.
exec {never}<> <(:)
while kill -0 "$step" 2>/dev/null; do read -rt 0.2 -u "$never"; done
wait "$step"
status=$?

# Status 0 and told: ended early, or finished at that moment; then the next job has nothing to do and says so.
if [ $status -eq 0 ] && [ -n "$told" ]; then
    echo "slurm_train.sh: ended early; job ${SLURM_JOB_ID:?} is queued again"
    scontrol requeue "$SLURM_JOB_ID"
    exit
fi
exit $status
