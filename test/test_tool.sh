#!/usr/bin/env bash
# ./dynapipe: every command and every error; plans of every policy counted again by test/judge_plan.py, and on the
# shared cases (where there are some) by their own judge.
. "$(dirname "$0")/check_lib.sh"
build=build/${BUILD:-release}$([[ "${CC:-gcc}" == clang* ]] && echo -clang)
log=$work/err cases=../shared/cases
if ! make -s -j2 BUILD="${BUILD:-release}" "$build/dynapipe" >"$work/build.log" 2>&1; then
    cat "$work/build.log"
    exit 1
fi
tool() { timeout -k 5 60 "$build/dynapipe" "$@" >"$work/out" 2>"$work/err"; }
# The exit status, one line on stderr that has the words and a remedy, nothing else there.
refuses() {  # exit status, words, arguments...
    local want=$1 words=$2 code
    shift 2
    tool "$@"
    code=$?
    [ $code -eq "$want" ] && [ "$(wc -l <"$work/err")" -eq 1 ] && grep -qF -- "$words" "$work/err" && grep -qF -- '--->' "$work/err"
    ok $? "exit $code (want $want) '$words': $(head -c 110 "$work/err" | sed "s|$work/||g")"
}
have_python=$(command -v python3)

# --- commands and their help
tool --help && grep -q '^  plan ' "$work/out"; ok $? "--help lists the commands"
for command in $(awk '/^  [a-z]/ {print $1}' "$work/out"); do
    tool "$command" --help && grep -q "usage: ./dynapipe $command" "$work/out"
    ok $? "$command --help"
done
tool; ok $(($? == 2 ? 0 : 1)) "no command: exit 2"
refuses 2 "zigzag" zigzag
refuses 2 "usage" plan
refuses 2 "--polcy" plan test/problems/gpt_small.json --polcy auto
tool plan test/problems/gpt_small.json --policy zigzag; [ $? -eq 2 ] && grep -q -- '--policy.*packed-ragged' "$work/err"
ok $? "an unknown policy: $(head -c 80 "$work/err")"

# --- every problem, every policy: the published form is judged
judge() {  # problem, what; the plan is $work/plan.json
    [ -n "$have_python" ] || return
    local verdict
    verdict=$(python3 test/judge_plan.py "$1" "$work/plan.json"); ok $? "judge: $2: $verdict"
    # the table of memory has the same peaks, to its last digit; of shares of the head a little more, which the judge leaves out,
    # and of pieces: keys and values of a whole sample, for as long as one of its pieces is open
    [ -z "$verdict" ] || awk -v want="$verdict" -v more="$(($(grep -c '"piece"' "$work/plan.json") > 0 ? 20 : 0))" 'BEGIN {n = split(want, peak, " "); mb["GiB"] = 1073.741824; mb["MiB"] = 1.048576; mb["KiB"] = 0.001024; mb["B"] = 1e-6}
        /^memory of each stage/ {table = 1} table && / head / {head = 2; more += 2}
        table && /^ +[0-9]/ {together = $(8 + head); unit = mb[$(9 + head)]; decimals = index(together, ".") ? length(together) - index(together, ".") : 0
                             d = together * unit - peak[$1 + 3]; most = 0.51 * unit / 10 ^ decimals
                             if (unit == 0 || d > most + more * 0.005 * peak[$1 + 3] || d < -most) bad = 1; rows++}
        /^$/ {table = 0} END {exit bad || rows != n - 2}' <(echo; cat "$work/shown")
    ok $? "memory as the judge has it: $2"
}
plan_and_judge() {  # 0: must fit, 3: may say that nothing fits; problem, options...
    local may=$1 problem=$2 code
    shift 2
    tool plan "$problem" --json "$work/plan.json" --text "$work/plan.txt" "$@"
    code=$?
    if [ $code -eq 3 ] && [ "$may" -eq 3 ]; then
        grep -q 'stage.* over .*--->' "$work/err"; ok $? "nothing fits: $(basename "$problem") $*: $(head -c 90 "$work/err")"
        return 3
    fi
    ok $code "plan $(basename "$problem") $*"
    cp "$work/out" "$work/shown"
    [ $code -eq 0 ] && judge "$problem" "$(basename "$problem") $*"
}
for problem in test/problems/{gpt_small,gpt_tight,t5_small,one_sample}.json; do
    for options in "" "--layout padded" "--layout padded --split-backward off --placement equal" "--split-backward on --schedule adaptive" \
        "--schedule 1f1b --placement equal" "--schedule gpipe" "--policy dynapipe" "--effort 50"; do
        # shellcheck disable=SC2086
        plan_and_judge $([[ "$options" == *equal* || "$options" == *gpipe* ]] && echo 3 || echo 0) $problem $options
    done
    for policy in packed-ragged padded tokens kk; do plan_and_judge 3 $problem --policy $policy; done
done
refuses 2 "--json: policy packed" plan test/problems/gpt_small.json --policy packed --json "$work/plan.json"
tool plan test/problems/gpt_small.json --policy packed --text "$work/plan.txt"; ok $? "packed, as text"

if [ -n "$have_python" ] && [ -r $cases/evaluate.py ]; then
    for problem in $cases/*_s*_r*.json; do
        for policy in auto dynapipe packed-ragged padded tokens kk; do
            tool plan "$problem" --policy $policy --json "$work/plan.json" --text "$work/plan.txt"
            code=$?
            if [ $code -eq 3 ] && [ $policy != auto ] && [ $policy != dynapipe ]; then
                echo "     $(basename "$problem") $policy: $(head -c 100 "$work/err")"
                continue
            fi
            ok $code "plan $(basename "$problem") $policy"
            verdict=$(python3 $cases/evaluate.py "$problem" "$work/plan.json") &&
                python3 - "$verdict" "$work/plan.json" <<'EOF'
import json, sys
judged, plan = json.loads(sys.argv[1])["makespan_ms"], json.load(open(sys.argv[2]))["predicted_makespan_ms"]
sys.exit(abs(plan - judged) > 1e-3 * judged)
EOF
            ok $? "the judge agrees: $(head -c 70 <<<"$verdict")"
        done
    done
else
    skip "shared cases: no python3, or no $cases here"
fi

# --- what plan prints and writes
small=test/problems/gpt_small.json
tool plan $small --text "$work/a.txt"
for words in "microbatches of 40 samples" "stage 2 |" "memory of each stage" "^bound " "^makespan .*100.00 %" \
    "^- Stages" "^- Lost against the bound" "planned in"; do
    grep -q -- "$words" "$work/out"; ok $? "plan prints: $words"
done
sum=$(awk '/^bound /{in_it = 1} in_it && /%/ && !/^makespan/ {for (i = 1; i <= NF; i++) if ($i == "ms" || $i == "s") s += $(i - 1)}
           /^makespan/ {if (in_it) {d = s - $2; print (d < 0.02 && d > -0.02) ? "exact" : s " " $2; exit}}' "$work/out")
[ "$sum" = exact ]; ok $? "the waterfall's rows add up to the makespan ($sum)"
# The gain's figure for packs, from plans of each size of pack by themselves.
gain="test/problems/lengths.csv --model l8c256h4 --vocab 257 --stages 4 --batch-tokens 4000"
predicted() { tool plan "$@" && awk '/^predicted/ {print $2 * ($3 == "s," ? 1000 : 1)}' "$work/out"; }
# shellcheck disable=SC2086
own=$(predicted $gain) printed=$(awk '/^gain at/ {print $10; exit}' "$work/out")
longest=$(awk '$4 == "ragged" && $6 > most {most = $6} END {print most}' "$work/out")
# shellcheck disable=SC2086
best=$(for tokens in $longest $((longest * 2)) $((longest * 4)); do
    predicted $gain --policy packed-ragged --mb-tokens $tokens --schedule 1f1b --split-backward off --placement linear; done | sort -n | head -1)
awk "BEGIN {exit !($printed > 1 && sqrt(($best / $own - $printed) ^ 2) <= 0.00501)}"; ok $? "gain over packs with 1F1B: $printed, planned alone $best / $own ms"
# One stage, jobs that are hardly longer than a launch: few microbatches, whatever the replica of the longest sample says.
printf '%s\n' n_input,n_target 14,1 2,1 3,1 1,1 2,1 3,1 2,1 1,1 1,1 2,1 3,1 2,1 3,1 3,1 1,1 3,1 1,1 3,1 >"$work/tiny.csv"
for replicas in 4 8; do
    tool plan "$work/tiny.csv" --model l5c64h4 --vocab 257 --stages 1 --replicas $replicas --batch-tokens 68
    gain=$(awk '/^gain at/ {print $10; exit}' "$work/out"); awk "BEGIN {exit !($gain >= 1)}"; ok $? "$replicas replicas, tiny samples: $gain over packs"
done
tool plan $small --placement linear --svg "$work/both.svg" --compare packed-ragged && [ "$(grep -c 'class="value"' "$work/both.svg")" -eq 2 ] && grep -q 'packed-ragged at its best' "$work/both.svg"
ok $? "two plans in one picture"
tool plan $small --compare packed-ragged; [ $? -eq 2 ] && grep -q -- '---> --svg FILE' "$work/err"; ok $? "--compare without a picture is refused"
tool plan $small --json - && { [ -z "$have_python" ] || python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "$work/out"; }
ok $? "--json - : only the plan on stdout"
tool plan $small --text "$work/b.txt" && cmp -s "$work/a.txt" "$work/b.txt"; ok $? "the same plan twice, byte for byte"
tool plan $small --json "$work/no/such/folder.json"; [ $? -eq 1 ] && grep -q "cannot create" "$work/err"
ok $? "a folder that is not there: $(sed "s|$work/||g" "$work/err")"
tool plan $small --placement 5,4,3 --json "$work/plan.json" && grep -qF '"stage_layers": [[5, 0], [4, 0], [3, 0]]' "$work/plan.json"
ok $? "--placement 5,4,3 is kept"
tool plan test/problems/t5_small.json --head whole --placement 2,5,3,2 --json "$work/plan.json" &&
    grep -qF '"stage_layers": [[2, 0], [4, 1], [0, 3], [0, 2]]' "$work/plan.json"
ok $? "--placement counts encoder layers first"
tool plan $small --placement 6,6,0 --head whole --json "$work/plan.json" --text "$work/plan.txt"; ok $? "--placement 6,6,0"; cp "$work/out" "$work/shown"
judge $small "a last stage of the head alone"
for split in 5,4 5,4,4 -1,5,8 x; do
    refuses 2 "--placement" plan $small --placement "$split"
done
refuses 2 "--stages" plan $small --stages 4

# --- infeasible is an answer: which stage, how many bytes over, which option would help
refuses 3 "bytes over" plan test/problems/nothing_fits.json
few="plan test/problems/lengths.csv --model d12 --stages 3 --batch-tokens 7000"
refuses 3 "rank 0's own memory (./dynapipe plan: --rank-memory): parameters" $few --rank-memory 1K,0,8G
refuses 3 "---> raise rank 1's own memory" $few --placement linear --head whole --rank-memory 880M,880M,880M
refuses 3 "error: --memory-limit: parameters, gradients and optimizer of stage 0" $few --rank-memory 0,0,8G --memory-limit 1K
# --- ranks that differ: the plan says each rank's limit
differ=(--rank-speed 1,0.7,1.2 --rank-memory 3G,0,6G --link-rate 5,0.5)
tool plan test/problems/lengths.csv --model d12 --stages 3 --batch-tokens 7000 --memory-limit 4G "${differ[@]}" --text "$work/plan.txt" --svg "$work/plan.svg" &&
    [ "$(grep -c '^rank .* limit_bytes' "$work/plan.txt")" -eq 2 ] && grep -q '^rank 0 .* limit_bytes 3221225472$' "$work/plan.txt"
ok $? "--rank-speed, --rank-memory, --link-rate: a plan for ranks that differ"
tool plan $small --rank-speed 0.5,0.5,0.5 && cp "$work/out" "$work/slow" && tool plan $small && awk '
    FNR == NR {if ($1 == "bound") slow = $2; next} $1 == "bound" {exit !(slow > 1.99 * $2 && slow < 2.01 * $2)}' "$work/slow" "$work/out"
ok $? "bound: half the speed, twice the time"
for numbers in 1,1 1,,1 1,1,-1 1,1,nan; do refuses 2 "give 3 numbers" plan $small --rank-speed "$numbers"; done
refuses 2 "give 3 numbers" plan $small --rank-memory 1G,1G,1Q
refuses 2 "give 2 numbers" plan $small --link-rate 1,1,1
refuses 3 "stage 2" plan $small --rank-memory 0,0,1M --placement equal

refuses 3 "stage 0 take" plan $small --memory-limit 1M --placement equal
refuses 3 "(--placement)" plan test/problems/t5_small.json --memory-limit 1800M --policy kk   # and it helps:
tool plan test/problems/t5_small.json --memory-limit 1800M --policy kk --placement auto; ok $? "another split fits"
refuses 3 "--recompute auto" plan $small --placement linear --head whole --memory-limit 950000000 --recompute none
tool plan $small --memory-limit 1200000000 --recompute auto; ok $? "recomputation fits"
tool plan test/problems/nothing_fits.json --memory-limit 1G; ok $? "and with what it says, it fits"

# --- malformed problems
bad() {  # words, sed script that spoils gpt_small.json
    sed -E "$2" $small >"$work/bad.json"
    cmp -s $small "$work/bad.json" && { ok 1 "the script '$2' changes nothing"; return; }
    refuses 1 "$1" plan "$work/bad.json"
    grep -qF "bad.json" "$work/err" || ok 1 "names the file"
}
bad 'model' 's/"gpt"/"bert"/'
bad 'n_stages' 's/"n_stages": 3/"n_stages": 129/'
bad 'n_stages is missing' 's/"n_stages": 3, //'
bad 't5 needs an even number' 's/"gpt"/"t5"/'
bad 'samples[0]' 's/"samples": \[\[[0-9]+, 0/"samples": [[5, 4/'
bad 'cost_model.encoder.a' 's/"a": 0.0005, //'
bad 'cost_model.postprocess.c' 's/"postprocess": \{"a": 0.0012, "c": 0.1/"postprocess": {"a": 0.0012/'
bad 'cost_model.rc.fool' 's/"full":/"fool":/'

# --- lengths
lengths=test/problems/lengths.csv
common="--model l4c64h4 --batch-tokens 2000 --stages 2"
# shellcheck disable=SC2086
plan_lengths() { tool plan "$1" $common --text "$work/plan.txt" "${@:2}"; }
plan_lengths $lengths; ok $? "lengths with names"
cp "$work/plan.txt" "$work/named.txt"
same() { cmp -s "$work/plan.txt" "$work/named.txt"; }
tail -n +2 $lengths | cut -d, -f2,3 >"$work/l.csv"
plan_lengths "$work/l.csv" && same; ok $? "numbers only"
sed 's/$/\r/; s/,/, /g' "$work/l.csv" >"$work/crlf.csv"
plan_lengths "$work/crlf.csv" && same; ok $? "CRLF and spaces"
{ printf '\xef\xbb\xbf'; cat "$work/l.csv"; } >"$work/bom.csv"
plan_lengths "$work/bom.csv" && same; ok $? "a byte-order mark"
cut -d, -f1 "$work/l.csv" >"$work/one.csv"
plan_lengths "$work/one.csv"; ok $? "one column"
plan_lengths $lengths --batch 2 && ! same; ok $? "the second batch is another one"
plan_lengths $lengths --shuffle 3 && ! same; ok $? "shuffled"
plan_lengths $lengths --max-tokens 20 --replicas 2; ok $? "cut to 20 tokens, 2 replicas"
plan_lengths $lengths --memory-limit 72M; ok $? "under a memory limit"
refuses 3 "--memory-limit" plan $lengths --memory-limit 100K --model l4c64h4 --stages 2
# shellcheck disable=SC2086
tool plan $lengths $common --policy packed --text "$work/plan.txt"
ok $? "packed"
sed -n 's|^cost_model/analytic ||p' test/fuzz/corpus.txt | base64 -d >"$work/costs"
tool plan $lengths --stages 2 --batch-tokens 2000 --costs "$work/costs"; ok $? "measured costs"
make -s BUILD="${BUILD:-release}" "$build/profile_costs" >"$work/build.log" 2>&1 && timeout 60 "$build/profile_costs" --model l4c64h4 --tokens 64 --vocab 257 --seconds 0.5 --out "$work/measured" >"$work/profile.log" 2>&1 &&
    tool plan $lengths --stages 2 --batch-tokens 2000 --costs "$work/measured" --model l4c64h4
ok $? "costs of profile_costs: $(grep '^wrote' "$work/profile.log" | sed "s|$work/||")"
# Hugging Face's files: what a descriptor has no words for, or the same where it has
tool plan $lengths --stages 2 --batch-tokens 2000 --model test/golden/hf_llama --text "$work/hf.txt" &&
    tool plan $lengths --stages 2 --batch-tokens 2000 --model llama:l2c16h4g2k8f20 --vocab 50 --text "$work/shape.txt" && cmp -s "$work/hf.txt" "$work/shape.txt"
ok $? "a folder of a Llama is planned as its shape"
refuses 2 "--vocab 51: --model test/golden/hf_llama has its own, of 50 tokens" plan $lengths --stages 2 --model test/golden/hf_llama --vocab 51
llmc_tokens() { python3 -c 'import struct, sys; sys.stdout.buffer.write(struct.pack("<256i", 20240520, 1, 4, *[0] * 253) + struct.pack("<4H", int(sys.argv[1]), 1, 2, 3))' "$1"; }
llmc_tokens 49 >"$work/tokens.bin" && tool plan "$work/tokens.bin" --stages 2 --model test/golden/hf_llama; ok $? "llm.c's tokens of a smaller vocabulary"
llmc_tokens 50 >"$work/tokens.bin"
refuses 1 "--model test/golden/hf_llama: vocabulary 50, the data has 51 ids" plan "$work/tokens.bin" --stages 2 --model test/golden/hf_llama
cp -r test/golden/hf_llama "$work/pieces" && cp test/golden/spiece_llama.model "$work/pieces/tokenizer.model"
refuses 1 "its tokenizer (sentencepiece, " plan "$work/tokens.bin" --stages 2 --model "$work/pieces"
timeout 60 "$build/profile_costs" --model test/golden/hf_gpt2_like --tokens 32 --seconds 0.5 --out "$work/like" >"$work/profile.log" 2>&1 &&
    tool plan $lengths --max-tokens 32 --stages 2 --batch-tokens 2000 --costs "$work/like" --model test/golden/hf_gpt2_like
ok $? "a folder of a GPT-2 with a head and a width of its own: $(grep '^wrote' "$work/profile.log" | sed "s|$work/||")"
refuses 2 "--model: test/golden/config.json: cannot open" plan $lengths --model test/golden/safetensors_mixed.safetensors
sed 's/last_in_rows 1/last_in_rows 0/' "$work/measured" >"$work/whole"
refuses 2 "last_in_rows 0, --model has 2 and 1, 1" plan $lengths --stages 2 --batch-tokens 2000 --costs "$work/whole" --model l4c64h4
printf 'dynapipe-costs 7\nsignature gpt2 C 96 NH 4 Vp 384 threads 1\n' >"$work/narrow"
refuses 2 "C 96 NH 4" plan $lengths --costs "$work/narrow" --model l4c64h4
cp "$work/narrow" "$work/known"
refuses 2 "--vocab 1000: --costs $work/known was measured with a vocabulary of 384" plan $lengths --costs "$work/known" --model l4c96h4 --vocab 1000
refuses 2 "--vocab" plan $small --vocab 257
refuses 2 "--batch 99" plan $lengths --batch 99
refuses 2 "--stages 9" plan $lengths --model l4c64h4 --stages 9
refuses 2 "--model" plan $lengths --model l4c65h4
: >"$work/bad.csv"; refuses 1 "empty" plan "$work/bad.csv"
printf 'foo,bar\n1,2\n' >"$work/bad.csv"; refuses 1 "bad.csv:1" plan "$work/bad.csv"
printf '1,2\n3\n' >"$work/bad.csv"; refuses 1 "bad.csv:2" plan "$work/bad.csv"
printf 'n_input\n' >"$work/bad.csv"; refuses 2 "0 batches" plan "$work/bad.csv"

echo '{"messages": [{"role": "assistant", "content": "a"}]}' >"$work/chat.jsonl"
refuses 1 "if these are records of data: ./prepare_data --out DIR $work/chat.jsonl, then plan" plan "$work/chat.jsonl"
refuses 1 "no file matches" plan "$work/none*.bin"
refuses 1 "$work: a folder ---> plan '$work/train*.bin'" plan "$work"
refuses 2 "--model: test: a folder without config.json or a finished checkpoint" plan $lengths --model test

# --- lengths of an encoder-decoder model
common="--model t5:l3d3c64h4 --batch-tokens 2000 --stages 3"
for options in "" "--policy dynapipe" "--policy packed-ragged --replicas 2" "--max-target-tokens 16 --policy padded"; do
    # shellcheck disable=SC2086
    tool plan $lengths $common $options --text "$work/plan.txt"; ok $? "T5 $options"
    # the text form's sequences: both limits, and a decoder's side for each
    awk '/^  seq / {n++; if ($3 < 1 || $5 < 1 || $5 > ('"$([[ "$options" == *16* ]] && echo 16 || echo 10000)"')) bad = 1} END {exit bad || n == 0}' "$work/plan.txt"
    ok $? "T5 $options: lengths of both sides"
done
# shellcheck disable=SC2086
tool plan $lengths $common --placement linear --head whole --json "$work/plan.json" && cp "$work/out" "$work/shown"; ok $? "T5: the published form"
grep -q '^- Stages: encoder+decoder layers [0-9]+[0-9]' "$work/shown"; ok $? "T5: $(grep -o '^- Stages[^,;]*' "$work/shown")"
# input and target of the first batch, counted here (an empty target is its end token)
awk -F, 'NR > 1 {m = $3 > 0 ? $3 : 1; if (n + $2 + m > 2000) exit; n += $2 + m; i += $2; t += m} END {print i "+" t " " t}' $lengths >"$work/want"
awk '/^  mb /{on = 1; next} on && /^$/ {exit} on {split($7, tokens, "+"); i += tokens[1]; t += tokens[2]; rows += $10} END {print i "+" t " " rows}' "$work/shown" |
    cmp -s - "$work/want"; ok $? "T5: the table has all tokens of both sides, the decoder's supervised ($(cat "$work/want"))"
printf 'n_input,n_target\n400,20\n300,30\n500,10\n' >"$work/deep.csv"
tool plan "$work/deep.csv" --model byt5:l12d4c64h4 --stages 4 --placement linear --head whole && grep -q '^- Stages: encoder+decoder layers [1-9]*+0 [1-9]*+0 [1-9]*+0 [1-9]*+4' "$work/out"
ok $? "T5: long inputs, a deep encoder: all cuts in it: $(grep -o '^- Stages[^,;]*' "$work/out")"
printf 'dynapipe-costs 7\nsignature t5 C 64 NH 4 HS 16 F 160 gated Vp 384 threads 1\n' >"$work/gated"
refuses 2 'C 64 NH 4 HS 16 F 256"' plan $lengths --costs "$work/gated" --model t5:l3d3c64h4
refuses 2 "--max-target-tokens" plan $lengths --max-target-tokens 16
# Batches of thousands of samples, of which memory keeps few: hundreds of microbatches, and still near the bound.
(head -1 test/problems/lengths.csv; for _ in {1..21}; do tail -n +2 test/problems/lengths.csv; done) >"$work/many.csv"
for limit in 1500M 3G; do
    tool plan "$work/many.csv" --model d12 --stages 4 --batch-tokens 1000000 --memory-limit $limit
    sed -nE 's/^predicted .*\(([0-9.]+) x\).*/\1/p' "$work/out" | awk '{n++; ok = $1 <= 1.05} END {exit !(n == 1 && ok)}'
    ok $? "2520 samples within $limit a stage: $(grep -m1 ^predicted "$work/out")"
done

refuses 2 "--model" plan $lengths --model t5:huge
refuses 2 "--max-target-tokens" plan test/problems/t5_small.json --max-target-tokens 16
finish
