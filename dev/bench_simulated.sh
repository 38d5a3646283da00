#!/usr/bin/env bash
# Real training steps on pipelines of 2 to 16 virtual ranks, in virtual time (dev/simulate.sh), by policy: tokens/s, measured against
# predicted step time, idle time. Writes dev/results/simulated.md. One run is a cell, kept in out/simulated: what is there is not
# run again, so a bench that was interrupted goes on. Needs no more than one core, and that one for itself (below one hour).
#   dev/bench_simulated.sh [--model gpt2|t5] [--stages P,PxR,..] [--platforms P,..] [--policies P,..] [--again] [-- TRAINER OPTIONS]
#   dev/bench_simulated.sh --model gpt2 --stages 4 --policies dynamic,dynapipe      these cells, and the table of all there are
#   dev/bench_simulated.sh --stages 8 --size l16c256h4,32768,2048                   another size: model, tokens a step, longest
#   dev/bench_simulated.sh --table                                                  only the table
# --out FOLDER: cells, costs and table.md of their own there. --tokenizer bytes: not GPT-2's.
# --again: also what is there, costs too. --costs FILE: of ./profile_costs, for platform fast; else measured there first, by two virtual ranks.
# On the other platforms ranks and links differ, so the trainer measures them itself, all policies' runs once.
# STEPS (7); SKIP (2): the first, in which memory is touched for the first time, do not count. SHARED (../shared): texts.
. "$(dirname "$0")/help.sh"
set -eu
cd "$(dirname "$0")/.."
shopt -s extglob
out=out/simulated texts=out/simulated result=dev/results/simulated.md tokenizer=gpt2
steps=${STEPS:-7} skip=${SKIP:-2}
models=gpt2,t5 stages='' platforms='' policies='' size='' costs='' again='' table='' more=()
words="$0 $*"
die() { echo "$1" >&2; exit 2; }
while [ $# -gt 0 ]; do
    case $1 in
        --again) again=1; shift; continue ;;
        --table) table=1; shift; continue ;;
        --) shift; more=("$@"); break ;;
        --model | --stages | --platforms | --policies | --size | --costs | --out | --tokenizer) [ $# -ge 2 ] || die "$1: no value" ;;&
        --model) models=$2 ;;
        --stages) stages=$2 ;;
        --platforms) platforms=$2 ;;
        --policies) policies=$2 ;;
        --size) size=$2 ;;
        --costs) costs=$2 ;;
        --out) out=$2 result=$2/table.md ;;
        --tokenizer) tokenizer=$2 ;;
        *) die "$1 ---> head -15 $0" ;;
    esac
    shift 2
done
# whole: dynamic with no sample cut; linear: with one contiguous stage a rank and the head on the last one; packed-ragged-zb: its packs in our schedule, with
# weight gradients apart (zero bubble); grouped: samples of similar lengths up to a number of tokens, padded.
all_policies=dynamic,whole,linear,dynapipe,packed-ragged,packed-ragged-zb,kk,packed,grouped,padded
batching_of() {
    case $1 in
        whole) echo --batching dynamic --slices off ;;
        linear) echo --batching dynamic --placement linear --head whole ;;
        packed-ragged-zb) echo --batching packed-ragged --schedule adaptive --split-backward on ;;
        grouped) echo --batching tokens --layout padded ;;
        *) echo --batching "$1" ;;
    esac
}

# What is run where nothing else is asked for, and at which size: model, tokens a step, longest sample (input+target). Batches of 8
# (16 from 8 stages on) times the longest sample, as a run of 2048 tokens with 16,384 a step.
cells() {  # model: "STAGES PLATFORM POLICIES" a line
    case $1 in
        gpt2)
            for p in 2 4 8 16 4x2; do echo "$p fast $all_policies"; done
            for platform in ethernet slow-host jitter; do echo "4 $platform dynamic,linear,dynapipe,packed-ragged"; done
            ;;
        t5) for p in 4 8; do echo "$p fast $all_policies"; done ;;
        *) die "--model $1 ---> gpt2 or t5" ;;
    esac
}
size_of() {  # model, stages
    case $1:$2 in
        gpt2:2 | gpt2:4) echo l8c256h4,8192,1024 ;;
        gpt2:8) echo l16c256h4,8192,512 ;;
        gpt2:16) echo l32c256h4,8192,512 ;;
        gpt2:4x2) echo l8c256h4,16384,1024 ;;
        gpt2:*) echo l16c256h4,16384,1024 ;;
        t5:8) echo t5:l8c256h4,8192,512+128 ;;
        t5:*) echo t5:l4c256h4,8192,512+128 ;;
    esac
}

# --- runs --------------------------------------------------------------------------------------------------------
spent() {  # seconds of processors, of all that this shell has waited for
    times >$out/times
    awk -F'[ms ]+' 'NR == 2 {printf "%d", 60 * $1 + $2 + 60 * $3 + $4}' $out/times
}
simulated() { timeout -k 10 3000 dev/simulate.sh "$@"; }
prepare() {  # model: sets trainer, data, vocab, about
    case $1 in
        gpt2) task_data "$texts" "$tokenizer" newline bytes ;;
        t5) task_data "$texts" "${tokenizer/#bytes/byt5}" eos byt5 ;;
    esac
    trainer=build/simulated/train_$1-dynapipe
}
lengths() {  # of "longest" or "longest+target": options of trainer ($2: -t) and profile_costs ($2: --tokens)
    echo "$2" "${1%+*}"
    [[ $1 != *+* ]] || echo --target-tokens "${1#*+}"
}
# Costs for all cells of a model's kind (layers of one shape) on the platform where ranks do not differ. Sets cost_file.
measure() {  # model, longest
    cost_file=$costs
    [ -z "$costs" ] || return 0
    cost_file=$out/costs-$(tr -c 'a-z0-9\n' - <<<"${1/l+([0-9])/l}-$2").txt
    [ ! -e "$cost_file" ] || [ "$cost_file" -ot "$data/train.bin" ] || return 0
    # shellcheck disable=SC2046
    simulated -n 2 -- build/simulated/profile_costs --model "$1" $(lengths "$2" --tokens) --vocab "$vocab" --seconds 12 --out "$cost_file" >"$cost_file.log" 2>&1 ||
        { tail -5 "$cost_file.log"; exit 1; }
}
run_cell() {  # kind of model, stages, platform, policy
    local kind=$1 layout=$2 platform=$3 policy=$4 P R options
    local cell=$out/$kind-$layout-$platform-$policy
    IFS=, read -r model batch longest <<<"${size:-$(size_of "$kind" "$layout")}"
    IFS=x read -r P R <<<"${layout}x1"
    R=${R%x*}
    options=(-e "$model" -d "$batch" -x "$steps" --stages "$P" --replicas "$R")
    # shellcheck disable=SC2207
    options+=($(batching_of "$policy") $(lengths "$longest" -t) ${more[@]+"${more[@]}"})
    if [ "$platform" = fast ]; then  # hosts are alike: nothing to move for, and a search for it would be one of a few steps
        measure "$model" "$longest"
        options+=(--costs "$cost_file" --resplit off)
    else
        options+=(--debug measure-seconds=12)
    fi
    local settings="${options[*]} data $about"
    if [ -z "$again" ] && [ -e "$cell/seconds" ] && [ "$(cat "$cell/settings")" = "$settings" ]; then return; fi
    spent >$out/before
    rm -rf "$cell"
    mkdir -p "$cell"
    echo "$settings" >"$cell/settings"
    git rev-parse --short HEAD >"$cell/commit"
    DYNAPIPE_CACHE=$out/cache-$layout-$platform simulated -n $((P * R)) --platform "$platform" -- "$trainer" -i "$data/train.bin" -v 0 -s 0 -n 0 \
        -o "$cell" --trace "$cell/trace.json" --show-step "$steps" --verbose "${options[@]}" >"$cell/log" 2>&1 || { tail -5 "$cell/log"; echo "$cell failed ---> $cell/log"; return 0; }
    rm -f "$cell"/*.bin
    spent >$out/after
    echo $(($(cat $out/after) - $(cat $out/before))) >"$cell/seconds"
    echo "$kind, $layout stages, $platform, $policy: $(median <(field "$cell" total_tokens step_ms | awk '{print $1 * 1e3 / $2}')) tokens/s, $(cat "$cell/seconds") s of a core"
}

# --- table -------------------------------------------------------------------------------------------------------
median() { sort -g "$1" | awk '{a[NR] = $1} END {print NR == 0 ? "-" : NR % 2 ? a[(NR + 1) / 2] : (a[NR / 2] + a[NR / 2 + 1]) / 2}'; }
# Fields of the steps that count, one step a line; "idle" is the ranks' mean.
field() {  # cell, fields...
    local cell=$1
    shift
    awk -v names="$*" -v skip=$skip 'NR > skip {
        n = split(names, name, / /); line = ""
        for (i = 1; i <= n; i++) {
            match($0, "\"" name[i] "\":(\\[[^]]*\\]|[^,}]*)")
            text = substr($0, RSTART + length(name[i]) + 3, RLENGTH - length(name[i]) - 3)
            gsub(/[][]/, "", text)
            count = split(text, part, /,/); sum = 0
            for (k = 1; k <= count; k++) sum += part[k]
            line = line " " sum / count
        }
        print line}' "$cell/metrics.jsonl"
}
planned_idle() { sed -nE 's/^ .* idle .*\(plan *([0-9.]+)%\).*/\1/p' "$1/log" | tail -n +$((skip + 1)); }
percent() { awk '{printf "%+.1f %%\n", 100 * $1}'; }
# Of what was predicted.
part() { median <(field "$1" "$2" predicted_ms | awk '{print $1 / $2}') | percent; }
row() {  # cell, cell of dynamic, policy
    local error ratio=-
    error=$(median <(field "$1" step_ms predicted_ms | awk '{print $1 / $2 - 1}') | percent)
    [ ! -e "$2/seconds" ] || ratio=$(ratio "$1" "$2")
    printf '| %s | %.0f | %s | %s | %s, %s, %s | %.1f %% (%.1f %%) | %.1f %% | %d |\n' "$3" \
        "$(median <(field "$1" total_tokens step_ms | awk '{print $1 * 1e3 / $2}'))" "$ratio" "$error" "$(part "$1" jobs_off_ms)" "$(part "$1" transfers_off_ms)" \
        "$(part "$1" waiting_off_ms)" "$(median <(field "$1" idle | awk '{print 100 * $1}'))" "$(median <(planned_idle "$1"))" \
        "$(median <(field "$1" total_tokens computed_tokens | awk '{print 100 * (1 - $1 / $2)}'))" "$(cat "$1/seconds")"
}
# In the same batches, how much longer a cell's steps take than dynamic's: the median.
ratio() { median <(paste <(field "$1" step_ms) <(field "$2" step_ms) | awk '{print $1 / $2}') | awk '{printf "%.2f x\n", $1}'; }
section() {  # kind, stages, platform
    local policy cell best='' dynamic=$out/$1-$2-$3-dynamic first
    first=$(compgen -G "$out/$1-$2-$3-*/seconds" | head -1)
    echo
    echo "## $1, $2 stages, $3"
    echo
    # shellcheck disable=SC2016
    sed -E 's/ --(batching|placement|head|schedule|split-backward|layout|resplit) [^ ]+//g; s| --costs [^ ]+||; s/^(.*) data (.*)/`\1`; \2./' "${first%/*}/settings"
    echo
    echo "| batching | tokens/s | dynamic is faster by | step takes longer than predicted by | of it jobs, transfers, waiting | idle (planned) | padding | seconds of a core |"
    echo "|---|---|---|---|---|---|---|---|"
    for policy in ${all_policies//,/ }; do
        cell=$out/$1-$2-$3-$policy
        [ -e "$cell/seconds" ] || continue
        row "$cell" "$dynamic" "$policy"
        [ "$policy" = dynamic ] || [ ! -e "$dynamic/seconds" ] || best+="$(ratio "$cell" "$dynamic") $policy"$'\n'
    done
    [ ! -e "$dynamic/seconds" ] || sed -nE 's/^.*(stages: .*)/\ndynamic, \1/p' "$dynamic/log" | head -2
    [ -z "$best" ] || grep -vE ' (whole|linear)$' <<<"$best" | sort -g | awk 'NF {printf "\nAgainst the best of the others, %s: %s x.\n", $3, $1; exit}'
}
write_table() {
    {
        echo "# Training steps on virtual ranks"
        echo
        echo "\`$1\`, commit $(sort -u $out/*/commit | paste -sd' '): the trainers as they are, one rank a host, all on one core in turn, each with a clock of its"
        echo "own that runs by the processor time of what it computes (SimGrid $(smpicc -version | grep -oE '[0-9.]+' | head -1)). What the platforms are: dev/simulate.sh. Medians over"
        echo "steps $((skip + 1)) to $steps. Costs measured before, in virtual time."
        echo "Machine: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(getconf _NPROCESSORS_ONLN) cores, load $2 at the start; $(${CC:-gcc} -dumpfullversion -dumpversion | sed 's/^/gcc /'), OpenBLAS."
        for kind in gpt2 t5; do
            for layout in 2 4 8 16 4x2 $(compgen -G "$out/*-*/seconds" | sed -nE 's/.*\/(gpt2|t5)-([0-9x]+)-.*/\2/p' | sort -u | grep -vxE '2|4|8|16|4x2'); do
                for platform in fast ethernet slow-host jitter; do
                    ! compgen -G "$out/$kind-$layout-$platform-*/seconds" >/dev/null || section $kind "$layout" $platform
                done
            done
        done
    } >$result.tmp
    mv $result.tmp $result
}

command -v smpicc >/dev/null || die "no smpicc here ---> dev/setup.sh --dev"
. dev/task_data.sh
load=$(cut -d' ' -f1 /proc/loadavg)
mkdir -p $out $texts dev/results
[ -z "$again" ] || rm -rf $out/costs-* $out/cache-*
if [ -z "$table" ]; then
    make -s simulated prepare_data make_tasks
    for kind in ${models//,/ }; do
        prepare "$kind"
        # what is asked for, in place of the usual
        wanted=$(cells "$kind")
        if [ -n "$stages$platforms" ]; then
            wanted=$(for p in ${stages:-4}; do for platform in ${platforms:-fast}; do
                for q in ${p//,/ }; do for one in ${platform//,/ }; do echo "$q $one $all_policies"; done; done
            done; done)
        fi
        while read -r layout platform usual; do
            list=${policies:-$usual}
            for policy in ${list//,/ }; do run_cell "$kind" "$layout" "$platform" "$policy"; done
        done <<<"$wanted"
    done
fi
write_table "${words/#*dev/dev}" "$load"
cat $result
