# shellcheck shell=bash
# Sourced by demo.sh and demo_t5.sh: titles, a run's lines, questions that the training data lacks, and the answers.
set -eu -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. dev/mpi_env.sh
cores=$(nproc)

part=0
say() {
    part=$((part + 1))
    if [ -t 1 ]; then printf '\n\033[1m%d. %s\033[0m\n' $part "$*"; else printf '\n%d. %s\n' $part "$*"; fi
}

set_up_and_build() {
    dev/setup.sh
    say "Build"
    local begin=$SECONDS
    make -s -j"$cores" programs >/dev/null
    echo "./train_gpt2, ./train_t5, ./generate, ./prepare_data, ./profile_costs, ./make_tasks in $((SECONDS - begin)) s"
}

# Predictions are for cores that do nothing else: how many of them others have, over half a second.
say_if_busy() {  # what that means here
    [ -r /proc/stat ] || return 0
    { head -1 /proc/stat && sleep 0.5 && head -1 /proc/stat; } | awk -v cores="$cores" -v what="$1" '
        { idle[NR] = $5 + $6; for (i = 2; i <= 9; i++) all[NR] += $i }
        END {
            passed = all[2] - all[1]
            busy = passed > 0 ? cores * (1 - (idle[2] - idle[1]) / passed) : 0
            if (busy < 0.3) exit
            printf "other programs keep %.1f of %d cores busy: %s\n", busy, cores, what
        }'
}

# A line every few steps, and other messages; costs that are refitted during the run go to its metrics.
few_steps() {  # how many steps a line
    awk -v every="$1" '/^refit after/ { next } /^step / { split($2, at, "/"); if (at[1] > 3 && at[1] % every) next } { print; fflush() }'
}

# TRAIN.jsonl, and QUESTIONS.jsonl whose texts are none of TRAIN's.
make_easy_tasks() {  # folder, samples, questions, longest sample
    ./make_tasks --mixture easy --out "$1/questions.jsonl" --samples "$3" --seed 2 --max-tokens "$4" >/dev/null
    ./make_tasks --mixture easy --out "$1/all.jsonl" --samples "$2" --seed 1 --max-tokens "$4" >/dev/null
    grep -vxFf "$1/questions.jsonl" "$1/all.jsonl" >"$1/tasks.jsonl"
    rm "$1/all.jsonl"
}

# How many of the questions the model answers, by task; and a few of them.
ask() {  # folder of checkpoints, QUESTIONS.jsonl
    echo "\$ ./generate $1 --file $2 >$1/answers.jsonl"
    OMP_NUM_THREADS=$cores ./generate "$1" --file "$2" >"$1/answers.jsonl"
    local question
    for question in "Anna asks: the capital of Peru?" "Tell me: what comes after May?" "the opposite of early?"; do
        printf '\n$ ./generate %s --prompt "%s"\n' "$1" "$question"
        OMP_NUM_THREADS=$cores ./generate "$1" --quiet --prompt "$question"
    done
}
