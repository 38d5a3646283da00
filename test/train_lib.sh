# train_lib.sh -- sourced by the tests that run the trainer: build, a small task mixture, runs, checks.
. "$(dirname "${BASH_SOURCE[0]}")/check_lib.sh"
. dev/mpi_env.sh
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
build=build/${BUILD:-release}
export DYNAPIPE_CACHE=$work/costs  # measured once a test: its runs plan alike

for tool in mpicc mpirun ${needs:-}; do
    command -v "$tool" >/dev/null || skip_all "no $tool here ---> dev/setup.sh"
done
if ! make -s -j2 "$build/train_gpt2-dynapipe" "$build/train_gpt2" "$build/train_t5-dynapipe" "$build/train_t5" "$build/train_llama-dynapipe" "$build/prepare_data" "$build/profile_costs" "$build/dev/make_tasks" \
        "$build/tools/plain_gradients" "$build/tools/compare_checkpoints" >"$work/build.log" 2>&1; then
    cat "$work/build.log"
    exit 1
fi
trainer=$build/train_gpt2-dynapipe
all=${TEST_ALL:-}             # make test-all: every case; else a part of those that are alike
export DYNAPIPE_OPT=-O1  # of the plugin in trees of tests, one file: half the time of -O2

# Small samples of all built-in tasks: $work/data/train.bin and val.bin, vocabulary 257 (byt5: 384).
make_data() {  # samples, max tokens[, tokenizer]
    "$build/dev/make_tasks" --out "$work/tasks.jsonl" --samples "$1" --seed 7 --max-tokens "$2" >"$work/data.log" 2>&1 &&
        "$build/prepare_data" --tokenizer "${3:-bytes}" --out "$work/data" "$work/tasks.jsonl" >>"$work/data.log" 2>&1 ||
        { cat "$work/data.log"; exit 1; }
}

# Of samples so long that, few to a step, they are cut into pieces whatever the measured costs.
make_long_data() {  # folder
    "$build/dev/make_tasks" --out "$work/tasks.jsonl" --samples 4000 --seed 7 --max-tokens 400 >"$work/data.log" 2>&1 &&
        awk 'length($0) > 330' "$work/tasks.jsonl" >"$work/long.jsonl" &&
        "$build/prepare_data" --tokenizer bytes --out "$1" "$work/long.jsonl" >>"$work/data.log" 2>&1 ||
        { cat "$work/data.log"; exit 1; }
}

# Law of gradients: those of the run's first step ($work/NAME.bin) are the plain loop's ($work/plain.bin). $model: its
# arguments.
agree() {  # name, ranks, options...
    local name=$1 ranks=$2
    shift 2
    # shellcheck disable=SC2086,SC2154
    if ! run "$name" "$ranks" $model --debug dump-gradients="$work/$name.bin" "$@"; then
        tail -5 "$work/$name.log"
        ok 1 "$name: the run failed"
        return
    fi
    "$build/tools/compare_checkpoints" "$work/$name.bin" "$work/plain.bin" 1e-5 >"$work/compare.log"
    ok $? "$name: $(tail -1 "$work/compare.log")"
    rm -f "$work/$name.bin"
}

# The trainer on N ranks; output in $work/NAME.log. A run may not take longer than two minutes.
run() {  # name, ranks, arguments...
    local name=$1 ranks=$2
    shift 2
    timeout -k 5 120 mpirun -np "$ranks" "$trainer" "$@" >"$work/$name.log" 2>&1
}

# Waits until a file has such a line, a minute at most.
await() {  # pattern, file
    for _ in $(seq 600); do
        grep -qsE -- "$1" "$2" && return
        sleep 0.1
    done
    return 1
}

# As run(), in the background ($job), until the log has such a line.
start() {  # pattern, name, ranks, arguments...
    local pattern=$1 name=$2 ranks=$3
    shift 3
    timeout -k 5 120 mpirun -np "$ranks" "$trainer" "$@" >"$work/$name.log" 2>&1 &
    job=$!
    await "$pattern" "$work/$name.log"
}

# Of the run in the background: its ranks, in the order of their start (one process without mpirun: itself).
ranks_of() {  # $job
    pgrep -P "$(pgrep -P "$1")"
}

# The step after which the log says that the run was stopped by this signal.
stopped_after() {  # signal, name
    sed -nE "s/^stopped by $1 after step ([0-9]+) of .*, saved in .* ---> .*/\\1/p" "$work/$2.log"
}

# The run ends with an error, which one line says, once, with these words.
refuses() {  # words expected, what, ranks, arguments...
    local words=$1 what=$2 ranks=$3
    shift 3
    # mpirun's waits for processes that it has killed, 1 s each time, are half a minute of such a test
    OMPI_MCA_odls_base_sigkill_timeout=0 run bad "$ranks" "$@"
    local code=$?
    [ $code -ne 0 ] && [ $code -ne 124 ] && grep -qF -- "$words" "$work/bad.log" && [ "$(grep -cF -- "$words" "$work/bad.log")" -eq 1 ]
    local verdict=$?
    ok $verdict "$what: $(grep -m1 -F -- "$words" "$work/bad.log" | sed "s|$work/||g")"
    [ $verdict -eq 0 ] || head -5 "$work/bad.log"
}

losses() {  # name of a run with -o $work/NAME: "step loss" lines, all digits
    sed -nE 's/.*"step":([0-9]+),"loss":([^,]+),.*/\1 \2/p' "$work/$1/metrics.jsonl"
}

# Largest difference of the pairs on stdin, "a b" a line. Fails unless it is at most the limit and all are finite numbers (which
# awk's < does not ask for: a nan is beyond no limit), and there are so many of them (0: any number but none).
within() {  # limit, pairs, absolute|relative (to b)
    awk -v limit="$1" -v pairs="$2" -v kind="$3" '
        function is_number(x) {return x ~ /^[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?$/}
        NF != 2 || !is_number($1) || !is_number($2) {if (bad == "") bad = "no two numbers: " $0; next}
        {d = $1 - $2; if (d < 0) d = -d; b = $2 < 0 ? -$2 : $2; if (kind == "relative" && b > 0) d /= b; if (d > m) m = d; n++}
        END {if (bad == "" && (n == 0 || (pairs > 0 && n != pairs))) bad = n + 0 " pairs"
             print bad == "" ? m + 0 : bad; exit bad != "" || m + 0 > limit + 0}'
}

# Of two runs' losses, over the steps that both have.
loss_difference() {  # name, name, limit
    awk 'NR == FNR {a[$1] = $2; next} $1 in a {print a[$1], $2}' <(losses "$1") <(losses "$2") | within "$3" 0 absolute
}

# Of a run's losses of 6 steps and the plain loop's ($work/plain.log), which adapters' tests have.
plain_difference() {  # name, limit
    awk 'NR == FNR {plain[FNR] = $5; next} {print $2, plain[$1]}' <(grep 'train loss' "$work/plain.log") <(losses "$1") | within "$2" 6 relative
}
