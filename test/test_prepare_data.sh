#!/usr/bin/env bash
# prepare_data and make_tasks from end to end: what lands in the files, and what is said about bad input.
. "$(dirname "$0")/check_lib.sh"
make --no-print-directory -s prepare_data make_tasks || exit 1
dir=$work
fails() {  # words, command...: exit status 1 and a message with these words
    local words=$1 output rc
    shift
    output=$("$@" 2>&1 >/dev/null)
    rc=$?
    check "'$words' expected with exit 1; got $rc: $output" [ "$rc:$(grep -cF -- "$words" <<<"$output")" = 1:1 ]
}
misused() {  # words, command...: exit status 2 and a message with these words
    local words=$1 output rc
    shift
    output=$("$@" 2>&1 >/dev/null)
    rc=$?
    check "'$words' expected with exit 2; got $rc: $output" [ "$rc:$(grep -cF -- "$words" <<<"$output")" = 2:1 ]
}
number() { od -An -t "u$3" -j "$2" -N "$3" "$1" | tr -d ' '; }  # file, offset, bytes
samples() { number "$1" 16 8; }
tokens() { number "$1" 24 8; }
good() { printf '{"task": "%s", "inputs": "%s", "targets": "%s"}\n' "$@"; }

# --- options
check "--help" grep -q -- '--val-fraction' <(./prepare_data --help)
good a b c >"$dir/one.jsonl"
misused "--tokeniser: unknown option ---> did you mean --tokenizer?" ./prepare_data --tokeniser gpt2 --out "$dir/x" "$dir/one.jsonl"
fails "gpt2: no tokenizer there ---> --tokenizer DIR" ./prepare_data --tokenizer gpt2 --out "$dir/x" "$dir/one.jsonl"
misused "--out: missing" ./prepare_data "$dir/one.jsonl"
misused "name the .jsonl files" ./prepare_data --out "$dir/x"
misused "error: extra: not an option" ./make_tasks --out "$dir/x" extra
check "nothing was written" [ ! -e "$dir/x" ]

# --- one sample, token by token: "b", newline | "c", end-of-text
check "one sample" ./prepare_data --val-fraction 0 --out "$dir/one" "$dir/one.jsonl" >/dev/null
file=$dir/one/train.bin
check "magic" [ "$(head -c 8 "$file")" = DPSAMPLE ]
check "vocabulary, end-of-text, tokenizer" [ "$(number "$file" 36 4) $(number "$file" 40 4) $(number "$file" 44 4)" = "257 256 1" ]
check "lengths of input and target" [ "$(od -An -tu4 -j 104 -N 8 "$file" | tr -s ' ')" = " 2 2" ]
check "tokens" [ "$(tail -c 8 "$file" | od -An -tu2 | tr -s ' ')" = " 98 10 99 256" ]
check "no validation file" [ ! -e "$dir/one/val.bin" ]
file=$dir/one/tokenizer.bin
check "tokenizer.bin: header, length, last token" [ "$(od -An -tu4 -N 16 "$file" | tr -s ' ') $(stat -c %s "$file") $(tail -c 13 "$file")" = " 20240328 2 257 256 $((1024 + 256 * 2 + 1 + 13)) <|endoftext|>" ]

# --- what is learnt is said, and what is not
printf '%s\n' '{"q": "2+2?", "why": "sum"}' '{"q": "3", "why": "b"}' >"$dir/why.jsonl"
check "a template of one's own" ./prepare_data --val-fraction 0 --template 'Q: {q} W: {why}' --targets-field why --out "$dir/why" "$dir/why.jsonl" >"$dir/log"
check "names what is learnt" grep -q '2 records, why (learnt; what --template has before it is read)' "$dir/log"
good a b "" a c d >"$dir/empty.jsonl"
./prepare_data --val-fraction 0 --out "$dir/why" "$dir/empty.jsonl" "$dir/one.jsonl" >"$dir/log"
check "empty targets are counted" [ "$(grep -c 'a: 1 of 3 samples have empty targets' "$dir/log") $(grep -c 'empty targets' "$dir/log")" = "1 1" ]

# --- GPT-2's tokenizer, with the small vocabulary of the tests
tokenizer() {  # name, files: a folder as a model has it
    mkdir "$dir/$1.tok" && for file in "${@:2}"; do cp "test/golden/${file%=*}" "$dir/$1.tok/${file#*=}"; done
}
tokenizer gpt2 bpe_tiny_vocab.json=vocab.json bpe_tiny_merges.txt=merges.txt
tokenizer hf bpe_tiny_tokenizer.json=tokenizer.json
tokenizer none bpe_tiny_vocab.json=tokenizer.json
tokenizer t5 spiece_tiny.model=spiece.model
echo '{"extra_ids": 7}' >"$dir/t5.tok/tokenizer_config.json"
tokenizer broken bpe_tiny_vocab.json=spiece.model
check "gpt2" ./prepare_data --tokenizer "$dir/gpt2.tok" --val-fraction 0 --out "$dir/tiny" "$dir/one.jsonl" >/dev/null
check "gpt2's files lie beside" cmp -s test/golden/bpe_tiny_merges.txt "$dir/tiny/merges.txt"
check "tokenizer.json of a BPE" ./prepare_data --tokenizer "$dir/hf.tok" --val-fraction 0 \
    --out "$dir/tiny_hf" "$dir/one.jsonl" >/dev/null
check "is the same data" cmp -s "$dir/tiny/train.bin" "$dir/tiny_hf/train.bin"

# --- encoder-decoder models: the input ends as the target does, with </s>
header() { echo $(number "$1" 36 4) $(number "$1" 40 4) $(number "$1" 44 4) $(number "$1" 48 4) $(number "$1" 52 4); }
sample() { od -An -tu4 -j 104 -N 8 "$1"; tail -c "$((2 * $(tokens "$1")))" "$1" | od -An -tu2; }  # one of a task of one letter
check "byt5" ./prepare_data --tokenizer byt5 --val-fraction 0 --out "$dir/byt5" "$dir/one.jsonl" >/dev/null
check "byt5: vocabulary, end, kind, padding, end of input" [ "$(header "$dir/byt5/train.bin")" = "384 1 3 0 2" ]
check "byt5: tokens" [ "$(echo $(sample "$dir/byt5/train.bin"))" = "2 2 101 1 102 1" ]
make --no-print-directory -s build/release/prepare_data-plain || exit 1
tokenizer qwen2 bpe_qwen2_tokenizer.json=tokenizer.json
fails "built without utf8proc ---> install libutf8proc-dev" build/release/prepare_data-plain --tokenizer "$dir/qwen2.tok" --out "$dir/x" "$dir/one.jsonl"
fails "built without SentencePiece ---> install libsentencepiece-dev" build/release/prepare_data-plain --tokenizer "$dir/t5.tok" --out "$dir/x" "$dir/one.jsonl"
if ldd ./prepare_data | grep -q sentencepiece; then
    good t "The planner cuts the batch." "h" >"$dir/t5.jsonl"
    check "sentencepiece" ./prepare_data --tokenizer "$dir/t5.tok" --val-fraction 0 \
        --out "$dir/t5" "$dir/t5.jsonl" >/dev/null
    check "sentencepiece: vocabulary, end, kind, padding, end of input" [ "$(header "$dir/t5/train.bin")" = "227 1 4 0 2" ]
    ids=$(grep -F '"text":"The planner cuts the batch.",' test/golden/spiece_texts.json | sed -E 's/.*"pieces":\[([0-9,]*)\].*/\1/; s/,/ /g')
    check "sentencepiece: tokens are the golden ones" [ "$(echo $(sample "$dir/t5/train.bin"))" = "$(($(wc -w <<<"$ids") + 1)) 3 $ids 1 3 4 1" ]
    check "spiece.model lies beside" cmp -s test/golden/spiece_tiny.model "$dir/t5/spiece.model"
    check "all that the model has of it" cmp -s "$dir/t5.tok/tokenizer_config.json" "$dir/t5/tokenizer_config.json"
    check "tokenizer.bin" [ "$(od -An -tu4 -N 16 "$dir/t5/tokenizer.bin" | tr -s ' ')" = " 20240328 2 227 1" ]
    check "hf" ./prepare_data --tokenizer "$dir/hf.tok" --val-fraction 0 --out "$dir/t5" "$dir/t5.jsonl" >"$dir/log"
    check "an earlier tokenizer's file is named" grep -q "$dir/t5/spiece.model is of another tokenizer ---> remove it" "$dir/log"
    check "tokenizer.json lies beside" cmp -s test/golden/bpe_tiny_tokenizer.json "$dir/t5/tokenizer.json"
    good t " " " " a b c >"$dir/blank.jsonl"
    check "without an end they are bad lines" ./prepare_data --tokenizer "$dir/t5.tok" --input-end none \
        --val-fraction 0 --out "$dir/blank" "$dir/blank.jsonl" >"$dir/log" 2>"$dir/err"
    check "which are named and counted" grep -q "skipped $dir/blank.jsonl:1: no token but the end" "$dir/err"
    check "and left out" [ "$(samples "$dir/blank/train.bin") $(grep -c 'bad records skipped: 1' "$dir/log")" = "1 1" ]
    # without padding: the name says whose pieces they are, or --input-end
    for case in "model=tokenizer.model auto 1 400 1 true" "model=tokenizer.model auto 1 400 0 false" "model=tokenizer.model eos 2 400 0 true" \
        "model=spiece.model auto 2 500 0 true"; do
        read -r file end wanted vocabulary begins adds <<<"$case"
        rm -rf "$dir/llama.tok" "$dir/llama" && tokenizer llama "spiece_llama.$file"
        echo "{\"add_bos_token\": $adds}" >"$dir/llama.tok/tokenizer_config.json"
        good t "The planner cuts the batch." "The planner cuts the batch." >"$dir/llama.jsonl"
        ./prepare_data --quiet --tokenizer "$dir/llama.tok" --input-end "$end" --val-fraction 0 --out "$dir/llama" "$dir/llama.jsonl"
        check "pieces of $file, --input-end $end" [ "$(number "$dir/llama/train.bin" 52 4) $(number "$dir/llama/train.bin" 36 4)" = "$wanted $vocabulary" ]
        check "<s> first: $case" [ "$(sample "$dir/llama/train.bin" | awk 'NR == 2 {print ($1 == 1) + 0}')" = "$begins" ]
    done
    fails "no SentencePiece model" ./prepare_data --tokenizer "$dir/broken.tok" --out "$dir/x" "$dir/one.jsonl"
else
    skip "sentencepiece: prepare_data is built without it ---> dev/setup.sh"
fi

# --- Llama 3: <|begin_of_text|> first, answers end as tokenizer_config.json says; special tokens of a chat are named by the template
# alone, not by who writes
tokenizer llama3 bpe_llama3_tokenizer.json=tokenizer.json
echo '{"eos_token": {"content": "<|eot_id|>"}}' >"$dir/llama3.tok/tokenizer_config.json"
echo '{"task": "t", "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "a<|eot_id|>"}, {"role": "assistant",
    "content": "b"}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d<|eot_id|>"}]}' | tr -d '\n' >"$dir/chat.jsonl"
ids() { echo $(tail -c "$((2 * $(tokens "$1")))" "$1" | od -An -v -tu2); }
text() { echo "$(ids "$1")" | tr ' ' '\n' | awk '$1 >= 419 {printf "%s", substr("BEhe.", $1 - 418, 1); next} {printf "_"}' | tr -s _; }
check "llama3" ./prepare_data --template llama3 --tokenizer "$dir/llama3.tok" --val-fraction 0 --out "$dir/chat" "$dir/chat.jsonl" >/dev/null
check "llama3: special tokens: $(text "$dir/chat/train.bin")" [ "$(text "$dir/chat/train.bin")" = "Bh_e_.h_e_.h_e_.h_e_.h_e_." ]
check "llama3: the end" [ "$(number "$dir/chat/train.bin" 40 4)" = 423 ]
check "one's own" ./prepare_data --template '{<|start_header_id|>}{inputs}{<|eot_id|>}{targets}' --tokenizer "$dir/llama3.tok" --val-fraction 0 \
    --out "$dir/own" "$dir/one.jsonl" >/dev/null
check "one's own: special tokens" [ "$(text "$dir/own/train.bin")" = "Bh_._." ]
check "what stands behind the input counts" [ "$(number "$dir/own/train.bin" 68 4)" = 1 ]
misused "<|im_end|> is no special token of this tokenizer" ./prepare_data --template '{inputs}{<|im_end|>}{targets}' --tokenizer "$dir/llama3.tok" --out "$dir/x" "$dir/one.jsonl"
check "chatml, where there are none, is text" ./prepare_data --template chatml --tokenizer "$dir/llama3.tok" --val-fraction 0 --out "$dir/own" "$dir/chat.jsonl" >/dev/null
check "chatml: no special token" [ "$(text "$dir/own/train.bin")" = "B_._." ]
rm "$dir/llama3.tok/tokenizer_config.json"
echo '{"eos_token": "<|im_end|>"}' >"$dir/llama3.tok/tokenizer_config.json"
fails "no token <|im_end|> to end texts with" ./prepare_data --tokenizer "$dir/llama3.tok" --out "$dir/x" "$dir/one.jsonl"
fails 'pre_tokenizer.type is null' ./prepare_data --tokenizer "$dir/none.tok" --out "$dir/x" "$dir/one.jsonl"
check "refused ones write nothing" [ ! -e "$dir/x" ]

# --- bad lines
{
    good sum 1+1 2
    echo '{"task": "sum", "inputs": "1+2"}'
    echo
    echo 'not json'
    good sum 1+3 4
    printf '{"task": "sum", "inputs": "\xff", "targets": "x"}\n'
    for i in $(seq 12); do echo '{"inputs": [5], "targets": "x"}'; done
    echo '{"inputs": "no task", "targets": "x"}'
} >"$dir/bad.jsonl"
err=$dir/err
check "bad lines are skipped" ./prepare_data --val-fraction 0 --out "$dir/bad" "$dir/bad.jsonl" >"$dir/log" 2>"$err"
check "bad line 2" grep -qF "skipped $dir/bad.jsonl:2: field \"targets\" is missing" "$err"
check "bad line 7" grep -qF 'bad.jsonl:7: field "inputs" is an array, not a text or a number' "$err"
check "the first 10 are shown" [ "$(grep -c '^skipped /' "$err")" -eq 10 ]
check "all 15 are counted" grep -q 'bad records skipped: 15' "$dir/log"
check "3 good ones are written" [ "$(samples "$dir/bad/train.bin")" -eq 3 ]
check "--quiet, nothing skipped" ./prepare_data --quiet --out "$dir/quiet" "$dir/one.jsonl" >"$dir/quiet.log" 2>"$err"
check "says nothing" [ ! -s "$dir/quiet.log" -a ! -s "$err" ]
check "a missing task is the file's name" grep -q '^bad  *1 ' "$dir/log"
fails "---> mend it, or leave out --strict" ./prepare_data --strict --out "$dir/strict" "$dir/bad.jsonl"
check "--strict writes nothing" [ ! -e "$dir/strict" ]
: >"$dir/empty.jsonl"
fails "$dir/empty.jsonl: no valid sample (bad records: 0) ---> write lines like" ./prepare_data --out "$dir/x" "$dir/empty.jsonl"
fails "$dir/absent.jsonl: No such file" ./prepare_data --out "$dir/x" "$dir/one.jsonl" "$dir/absent.jsonl"
printf 'A text.\n{"text": "a record within"}\n' >"$dir/read.me"
fails "read.me: does not begin with a record or a list of records --->" ./prepare_data --out "$dir/x" "$dir/read.me"
mkdir "$dir/none_here"
fails "no *.json or *.jsonl (.gz, .zst) in this folder" ./prepare_data --out "$dir/x" "$dir/none_here"
fails "one.jsonl: cannot create directory: Not a directory --->" ./prepare_data --out "$dir/one.jsonl/x" "$dir/one.jsonl"

# --- what people have: forms, packings, folders, standard input
misused "--inputs-field: needs --targets-field" ./prepare_data --inputs-field a --out "$dir/x" "$dir/one.jsonl"
mkdir "$dir/forms"
good t a b t c d >"$dir/forms/a.jsonl"
python3 - "$dir/forms" <<'END'
import gzip, json, sys
rows = [{"task": "t", "instruction": "i%d" % i, "input": "", "output": "o"} for i in range(1200)]
gzip.open(sys.argv[1] + "/b.json.gz", "wt").write(json.dumps(rows, indent=2))
END
echo '{"question": "q", "answer": "a"}' >"$dir/forms/c.ndjson"
echo 'not data' >"$dir/forms/readme.txt"
check "a folder" ./prepare_data --val-fraction 0 --out "$dir/folder" "$dir/forms" >"$dir/log"
check "has its files read by name, and each's form said" [ "$(grep -c "^$dir/forms/" "$dir/log")" -eq 3 ]
check "inputs, targets" grep -qF "a.jsonl: 2 records, inputs -> targets" "$dir/log"
check "gzip, an array, Alpaca" grep -qF "b.json.gz: 1200 records, Alpaca (instruction, input -> output)" "$dir/log"
check "all of them are there" [ "$(samples "$dir/folder/train.bin")" -eq 1203 ]
echo '{"foo": "a", "bar": 4}' >"$dir/named.jsonl"
check "named fields" ./prepare_data --val-fraction 0 --inputs-field foo --targets-field bar --out "$dir/named" "$dir/named.jsonl" >"$dir/log"
check "are said as they are named" grep -qF "named.jsonl: 1 records, foo -> bar" "$dir/log"
echo '{"input": "a", "label": "b"}' >"$dir/named.jsonl"
./prepare_data --out "$dir/named" "$dir/named.jsonl" >/dev/null 2>"$dir/err"
check "other names: a hint" grep -qF 'field "output" is missing, it has {input, label} --->' "$dir/err"
mkdir -p "$dir/nested/a" "$dir/nested/b" "$dir/nested/.git"
fails "in this folder, and those in it are not read ---> name the files, or the folders" ./prepare_data --out "$dir/x" "$dir/nested"
cp "$dir/forms/c.ndjson" "$dir/nested"
check "folders in a folder" ./prepare_data --val-fraction 0 --out "$dir/named" "$dir/nested" >"$dir/log"
check "are passed over with a word" grep -qF "2 folders in the given one are not read ---> name them as well to have their files" "$dir/log"
check "standard input" bash -c "cat '$dir/forms/a.jsonl' | ./prepare_data --val-fraction 0 --out '$dir/stdin' - >/dev/null"
check "a pipe" ./prepare_data --val-fraction 0 --out "$dir/pipe" <(cat "$dir/forms/a.jsonl") >/dev/null
./prepare_data --val-fraction 0 --out "$dir/file" "$dir/forms/a.jsonl" >/dev/null
check "are the same data" cmp -s "$dir/stdin/train.bin" "$dir/file/train.bin"
check "however they come" cmp -s "$dir/pipe/train.bin" "$dir/file/train.bin"
fails "packed data is damaged or cut off" ./prepare_data --out "$dir/x" <(head -c 900 "$dir/forms/b.json.gz")
echo '{"inputs": "a", "targets": "b", "text": "c"}' >"$dir/many.jsonl"
misused "does not end with {targets}" ./prepare_data --template '{inputs} {text}' --out "$dir/x" "$dir/many.jsonl"
check "refused templates write nothing" [ ! -e "$dir/x" ]
echo '{"question": "q", "answer": "a"}' >"$dir/own.jsonl"
check "data.json of a template with the records' names" ./prepare_data --val-fraction 0 --template 'Q: {question}\nA: {answer}' --out "$dir/template" "$dir/own.jsonl" >/dev/null
check "has one place for a prompt, and ends where the targets begin" grep -qF '"prompt": "Q: {inputs}\nA: "' "$dir/template/data.json"
check "what stands behind the input is its tail, which cuts leave" [ "$(number "$dir/template/train.bin" 68 4)" -eq 4 ]
check "names as options" ./prepare_data --val-fraction 0 --inputs-field question --targets-field answer \
    --out "$dir/template" "$dir/own.jsonl" >/dev/null
check "are in data.json" grep -qF '"fields":{"inputs":"question","targets":"answer"}' <(tr -d ' \n' <"$dir/template/data.json")

# --- a conversation, token by token: S, q, newline | a, end, [q, newline], a, end
chat='{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "r"}, {"role": "assistant", "content": "b"}]}'
echo "$chat" >"$dir/c.jsonl"
check "a conversation" ./prepare_data --val-fraction 0 --out "$dir/chat" "$dir/c.jsonl" >"$dir/log"
check "is said to be one" grep -q "c.jsonl: 1 records, chat (messages)" "$dir/log"
file=$dir/chat/train.bin
check "one gap; a newline is the inputs' tail" [ "$(number "$file" 64 4) $(number "$file" 68 4)" = "1 1" ]
check "input and target" [ "$(echo $(od -An -tu4 -j 104 -N 8 "$file"))" = "4 6" ]
check "the gap is the second question" [ "$(echo $(od -An -tu4 -j 120 -N 8 "$file"))" = "6 8" ]
check "tokens" [ "$(echo $(tail -c 20 "$file" | od -An -tu2))" = "83 10 113 10 97 256 114 10 98 256" ]
check "apart for encoder-decoder models" ./prepare_data --tokenizer byt5 --val-fraction 0 --out "$dir/apart" "$dir/c.jsonl" >/dev/null
file=$dir/apart/train.bin
check "two samples, no gap" [ "$(samples "$file") $(number "$file" 64 4)" = "2 0" ]
check "the second has all before it as input" [ "$(echo $(tail -c 20 "$file" | od -An -tu2))" = "86 13 116 13 100 13 117 1 101 1" ]

# --- long texts, whole; lengths are of the tokens that the trainer runs
python3 -c 'import json; [print(json.dumps({"text": c * n})) for c, n in [("a", 200), ("b", 64), ("c", 65)]]' >"$dir/text.jsonl"
check "texts" ./prepare_data --val-fraction 0 --out "$dir/text" "$dir/text.jsonl" >"$dir/log"
check "run all tokens but the last" grep -qE '^text +3 +329 +109 +200$' "$dir/log"

# --- make_tasks: the same seed gives the same bytes, and answers are right
check "tasks" ./make_tasks --out "$dir/tasks.jsonl" --samples 3000 --max-tokens 1000 >/dev/null
check "tasks again" ./make_tasks --out "$dir/again.jsonl" --samples 3000 --max-tokens 1000 >/dev/null
check "same seed, same file" cmp -s "$dir/tasks.jsonl" "$dir/again.jsonl"
check "answers" awk -F'"' '
    { task = $4; question = $8; answer = $12; expected = ""; n = split(question, word, /[ +?-]/) }
    task == "add" { expected = word[2] + word[3] }
    task == "subtract" { expected = word[2] - word[3] }
    task == "copy" { expected = word[2] }
    task == "reverse" { for (i = length(word[2]); i > 0; i--) expected = expected substr(word[2], i, 1) }
    task == "max" { expected = 0; for (i = 2; i <= n; i++) if (word[i] > expected) expected = word[i] }
    task == "sort" { for (d = 0; d < 10; d++) for (i = 2; i <= n; i++) if (word[i] == d "") expected = expected " " d
                     expected = substr(expected, 2) }
    task == "compare" { expected = word[2] + 0 > word[5] + 0 ? "yes" : "no" }
    task == "count" { expected = gsub(word[3], "", word[5]) }
    task == "lookup" { split(answer, part, "="); if (question ~ "(^| )" answer "[ .]" && question ~ part[1] "\\?$") expected = answer }
    task == "document" { split(answer, part, " "); if (index(question, "The code of " answer ". ") && question ~ part[1] "\\?$") expected = answer }
    task == "notes" { n = split(question, part, "*"); for (i = 2; i < n; i += 2) expected = expected " " part[i]; expected = substr(expected, 2) }
    task == "to_words" { words[question + 0] = answer; expected = answer }
    task == "to_digits" { sub(/ in digits/, "", question); digits[question] = answer; expected = answer }
    expected == "" || expected != answer { print; bad = 1 }
    length(question) + length(answer) + 2 > 1000 { print "too long: " $0; bad = 1 }
    { seen[task] = 1 }
    END { for (n in words) { if (words[n] in digits && digits[words[n]] != n) { print n, words[n]; bad = 1 } else both++ }
          for (task in seen) num_tasks++
          if (num_tasks != 13 || both < 60) { print num_tasks " tasks, " both " numbers both ways"; bad = 1 }
          exit bad }' "$dir/tasks.jsonl"
check "small limits hold" ./make_tasks --out "$dir/small.jsonl" --samples 3000 --max-tokens 120 >/dev/null
check "no sample beyond 120" awk -F'"' 'length($8) + length($12) + 2 > 120 { exit 1 }' "$dir/small.jsonl"

# --- own data into the planner, without training: by the file, as by its lengths
make --no-print-directory -s dynapipe || exit 1
plan() { ./dynapipe plan "$1" --model "$2" --stages 2 --batch-tokens 4000 --text "$dir/$3.txt" "${@:4}" >"$dir/plan" 2>&1; }
check "tasks" ./prepare_data --shard-tokens 40K --val-fraction 0 --out "$dir/all" "$dir/tasks.jsonl" >/dev/null
check "dynapipe plan 'train*.bin'" plan "$dir/all/train*.bin" d12 bin
python3 -c 'import json, sys
print("n_input,n_target", *("%d,%d" % (len(r["inputs"]), len(r["targets"]) + 1) for r in map(json.loads, sys.stdin)), sep="\n")' <"$dir/tasks.jsonl" >"$dir/all.csv"
check "dynapipe plan LENGTHS.csv" plan "$dir/all.csv" d12 csv --vocab 257
check "are one plan" cmp -s "$dir/bin.txt" "$dir/csv.txt"
mkdir "$dir/beside" && cp "$dir"/all/train*.bin "$dir/all/tokenizer.bin" "$dir/beside"
check "a pattern leaves tokenizer.bin out" plan "$dir/beside/*.bin" d12 beside
check "and has the same files" cmp -s "$dir/bin.txt" "$dir/beside.txt"
check "texts, cut by the loader" plan "$dir/text/train.bin" d12 text --max-tokens 64
printf '%s\n' n_input,n_target 0,64 0,64 0,64 0,8 0,64 0,64 0,1 >"$dir/pieces.csv"
check "are pieces of 64 tokens" plan "$dir/pieces.csv" d12 pieces --vocab 257 --max-tokens 64
check "that the planner counts alike" cmp -s "$dir/text.txt" "$dir/pieces.txt"
printf '%s\n' n_input,n_target 5,4 >"$dir/chat.csv"
./prepare_data --val-fraction 0 --out "$dir/chat" "$dir/c.jsonl" >/dev/null
check "a conversation: 9 tokens run" plan "$dir/chat/train.bin" d12 chat
check "of which 4 are learnt" plan "$dir/chat.csv" d12 chatcsv --vocab 257
check "and the gap is not" cmp -s "$dir/chat.txt" "$dir/chatcsv.txt"

# --- validation split: by content and seed, some of every task, whatever the order of lines
check "split" ./prepare_data --out "$dir/split" "$dir/tasks.jsonl" >"$dir/log"
check "split again" ./prepare_data --out "$dir/split2" "$dir/tasks.jsonl" >/dev/null
tac "$dir/tasks.jsonl" >"$dir/turned.jsonl"
check "split of turned lines" ./prepare_data --out "$dir/turned" "$dir/turned.jsonl" >/dev/null
train=$(samples "$dir/split/train.bin") val=$(samples "$dir/split/val.bin")
check "all samples are somewhere" [ $((train + val)) -eq 3000 ]
check "about 2 % are held out: $val" [ "$val" -ge 30 -a "$val" -le 100 ]
check "every task is in both" [ "$(number "$dir/split/train.bin" 32 4) $(number "$dir/split/val.bin" 32 4)" = "13 13" ]
check "same seed, same files" cmp -s "$dir/split/val.bin" "$dir/split2/val.bin"
check "order of lines is no matter" [ "$(tokens "$dir/split/val.bin")" = "$(tokens "$dir/turned/val.bin")" ]
check "13 tasks in the table" [ "$(grep -cE '^[a-z_]+ +[0-9]+ +[0-9]+ +[0-9]+ +[0-9]+$' "$dir/log")" -eq 13 ]
check "one sample a task: no validation" ./prepare_data --out "$dir/lone" "$dir/one.jsonl" >"$dir/log"
check "and that is said" grep -q 'there is no validation file' "$dir/log"

# --- numbered files, and what an earlier run left
echo "not ours" >"$dir/split/train_000999.bin"
check "shards" ./prepare_data --shard-tokens 20K --out "$dir/split" "$dir/tasks.jsonl" >"$dir/log"
check "train.bin gave way to shards" [ ! -e "$dir/split/train.bin" -a -e "$dir/split/train_000000.bin" -a -e "$dir/split/val.bin" ]
total=0
for file in "$dir"/split/train_0000*.bin; do
    total=$((total + $(samples "$file")))
    check "$file within the limit" [ "$(tokens "$file")" -le 20480 ]
done
check "shards hold all samples" [ "$total" -eq "$train" ]
check "a foreign file stays" grep -q 'not ours' "$dir/split/train_000999.bin"
shards=$(ls "$dir"/split/train_0000*.bin | wc -l)
check "one file again" ./prepare_data --out "$dir/split" "$dir/tasks.jsonl" >"$dir/log"
check "$shards shards gone, and that is said" grep -q "^$shards files of an earlier run removed" "$dir/log"
check "shards gave way to train.bin" [ ! -e "$dir/split/train_000000.bin" -a ! -e "$dir/split/train_000001.bin" ]
check "with the same bytes" cmp -s "$dir/split/train.bin" "$dir/split2/train.bin"
finish
