#!/usr/bin/env bash
# ./generate says what the trainer's -s says, whatever the weights come from; puts prompts into the data's form; says of what it
# cannot do what to do instead.
# shellcheck source=test/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
make -s "$build/generate" || exit 1
generate=$build/generate

same() {  # what, file, file
    cmp -s "$2" "$3"
    ok $? "$1: $(diff "$2" "$3" | head -4)"
}
refuses() {  # exit status, words, arguments...: nothing on standard output, and a remedy
    local status=$1 words=$2 rc output
    shift 2
    output=$("$generate" "$@" 2>&1 >"$work/refused" </dev/null)
    rc=$?
    [ "$rc" = "$status" ] && grep -qF -- "$words" <<<"$output" && grep -q -- '--->' <<<"$output" && [ ! -s "$work/refused" ]
    ok $? "exit $status with '$words' expected, got $rc: $output"
}

# --- as the trainer answers: each question of its log, put to ./generate --------------------------------------------------
"$build/dev/make_tasks" --mixture easy --out "$work/all.jsonl" --samples 3000 >"$work/data.log" || exit 1
grep -v '"task": "\(topic\|review\)"' "$work/all.jsonl" >"$work/tasks.jsonl"
as_the_trainer() {  # name, tokenizer, program, trainer's arguments...
    local name=$1 tokenizer=$2 program=$3
    shift 3
    "$build/prepare_data" --tokenizer "$tokenizer" --out "$work/$name-data" "$work/tasks.jsonl" >"$work/data.log" 2>&1 || cat "$work/data.log"
    trainer=$build/$program run "$name" 2 -i "$work/$name-data/train*.bin" -j "$work/$name-data/val*.bin" -o "$work/$name" -t 128 -d 2048 \
        -x 60 -v 0 -s 60 -m 8 -g 24 --stages 2 --debug measure-seconds=0.3 "$@"
    ok $? "$name: a run: $(tail -3 "$work/$name.log")"
    sed -nE 's/^  asked    (<s> )?//p' "$work/$name.log" >"$work/$name.asked"
    sed -n 's/^  answers  //p' "$work/$name.log" | sed 's/^(nothing)$//' >"$work/$name.answers"
    [ "$name" != pieces ] || sed -i 's/^ //' "$work/$name.answers"  # the blank of a text's first word
    "$generate" "$work/$name" --max-tokens 24 <"$work/$name.asked" >"$work/$name.said" 2>"$work/$name.err"
    ok $? "$name: $(tail -3 "$work/$name.err")"
    [ "$(wc -l <"$work/$name.asked")" -ge 4 ] && [ "$(sort -u "$work/$name.answers" | wc -l)" -ge 2 ]
    ok $? "$name: answers to compare: $(wc -l < "$work/$name.answers")"
    same "$name: the trainer's answers" "$work/$name.said" "$work/$name.answers"
}
as_the_trainer gpt2 bytes train_gpt2-dynapipe -e l2c64h4 -l 5e-3 --export-hf "$work/gpt2hf"
as_the_trainer llama bytes train_llama-dynapipe -e llama:l2c64h4g2 -l 5e-3 --export-hf "$work/llamahf"
if ldd "$build/prepare_data" | grep -q sentencepiece; then  # <s> first, in data and prompts
    mkdir "$work/llama.tok" && cp test/golden/spiece_llama.model "$work/llama.tok/tokenizer.model"
    as_the_trainer pieces "$work/llama.tok" train_llama-dynapipe -e llama:l2c64h4g2 -l 5e-3
fi
as_the_trainer t5 byt5 train_t5-dynapipe -e byt5:l2c64h4 --target-tokens 32 --optimizer adamw-scaled -l 2e-2 --export-hf "$work/hf"

# --- the same model from other places ---------------------------------------------------------------------------------------
ask() { "$generate" "$@" --quiet --max-tokens 24 <"$work/t5.asked" 2>>"$work/err"; }
ask "$work/hf" >"$work/hf.said"
same "Hugging Face's files" "$work/hf.said" "$work/t5.answers"
"$generate" "$work/gpt2hf" --quiet --max-tokens 24 <"$work/gpt2.asked" >"$work/hf.said" 2>>"$work/err"
same "Hugging Face's files of bytes" "$work/hf.said" "$work/gpt2.answers"
"$generate" "$work/llamahf" --quiet --max-tokens 24 <"$work/llama.asked" >"$work/hf.said" 2>>"$work/err"
same "Hugging Face's files of a Llama" "$work/hf.said" "$work/llama.answers"
grep -q '"bos_token_id": null' "$work/llamahf/config.json"
ok $? "a new Llama's begin is not its end: $(grep bos_token "$work/llamahf/config.json")"
# Several ends: an "i" is one, too, for ./generate and the trainer's answers, in the run's folder and in what it exports
sed -i 's/"eos_token_id": 256/"eos_token_id": [256, 105]/' "$work/llamahf/config.json"
sed 's/i.*//' "$work/llama.answers" >"$work/ends.expected"
ends_at_i() {  # what, folder
    "$generate" "$2" --quiet --max-tokens 24 <"$work/llama.asked" >"$work/hf.said" 2>>"$work/err"
    same "$1" "$work/hf.said" "$work/ends.expected"
}
"$generate" "$work/llamahf" --quiet --max-tokens 24 <"$work/llama.asked" >"$work/hf.said" 2>>"$work/err"
same "generation_config.json's ends are before config.json's" "$work/hf.said" "$work/llama.answers"
rm "$work/llamahf/generation_config.json"
ends_at_i "each end of config.json's list" "$work/llamahf"
! cmp -s "$work/ends.expected" "$work/llama.answers"
ok $? "and some answer has an i"
echo '{"bos_token_id": 7, "eos_token_id": [256, 105], "do_sample": true, "temperature": 0.6, "transformers_version": "4.45"}' >"$work/llamahf/generation_config.json"
as_the_trainer ends bytes train_llama-dynapipe -e "$work/llamahf" -l 0 --export-hf "$work/endshf"
ends_at_i "the run's folder keeps the list" "$work/ends"
ends_at_i "the export writes it" "$work/endshf"
trainer=$build/train_llama-dynapipe run on 1 -e "$work/ends" -i "$work/llama-data/train*.bin" -t 128 -d 2048 -x 1 -l 0 -o "$work/on" --export-hf "$work/onhf"
ends_at_i "a run that began with that run's folder keeps it" "$work/on"
ends_at_i "and exports it" "$work/onhf"
python3 - "$work" <<'E'
import json, sys
for folder in ("endshf", "onhf"):
    for name in ("config", "generation_config"):
        assert json.load(open("%s/%s/%s.json" % (sys.argv[1], folder, name)))["eos_token_id"] == [256, 105], (folder, name)
    assert json.load(open("%s/%s/generation_config.json" % (sys.argv[1], folder))) == json.load(open(sys.argv[1] + "/llamahf/generation_config.json"))
    assert json.load(open("%s/%s/config.json" % (sys.argv[1], folder)))["bos_token_id"] == (None if folder == "endshf" else 7)
E
ok $? "as it was, with all that the first files said of generation"
ask "$work/t5/model_00000060.bin" >"$work/file.said"
same "a model file by its name" "$work/file.said" "$work/t5.answers"
mkdir "$work/alone" && cp "$work/t5/model_00000060.bin" "$work/alone/m.bin"
ask "$work/alone/m.bin" --tokenizer "$work/t5-data" >"$work/alone.said"
same "weights alone, with --tokenizer" "$work/alone.said" "$work/t5.answers"
for f in "$work/t5.asked" "$work/gpt2.asked"; do
    while read -r question; do
        "$generate" "$work/$(basename "$f" .asked)" --quiet --max-tokens 24 --prompt "$question"
    done <"$f" >"$work/one.said"
    same "one by one" "$work/one.said" "${f%.asked}.answers"
done
[ "$(ldd "$generate" | grep -c libmpi)" = 0 ]
ok $? "generate needs no MPI"

# --- files ------------------------------------------------------------------------------------------------------------------------
head -20 "$work/tasks.jsonl" >"$work/q.jsonl"
"$generate" "$work/gpt2" --file "$work/q.jsonl" --max-tokens 24 >"$work/a.jsonl" 2>"$work/a.err"
ok $? "$(cat "$work/a.err")"
python3 - "$work" <<'E'
import json, re, sys
work = sys.argv[1]
asked = [json.loads(line) for line in open(work + "/q.jsonl")]
got = [json.loads(line) for line in open(work + "/a.jsonl")]
assert len(asked) == len(got)
right = 0
for q, a in zip(asked, got):
    assert all(a[field] == q[field] for field in q) and isinstance(a["generated"], str)
    assert a["right"] == (a["generated"].strip() == q["targets"].strip())
    right += a["right"]
err = open(work + "/a.err").read()
assert re.search(r"^all +%d of 20 right" % right, err, re.M), err
by_task = re.findall(r"^(\w+) +(\d+) of (\d+) right$", err, re.M)
assert sum(int(n) for _, n, _ in by_task) == right and sum(int(n) for _, _, n in by_task) == 20, err
E
ok $? "lines of JSON come back with their answers and counts"
for size in 1 3; do
    "$generate" "$work/gpt2" --file "$work/q.jsonl" --max-tokens 24 --batch $size --quiet 2>>"$work/err" | cmp -s - "$work/a.jsonl"
    ok $? "--batch $size"
done
"$generate" "$work/gpt2" --file "$work/gpt2.asked" --max-tokens 24 --quiet 2>>"$work/err" |
    python3 -c 'import json, sys; [print(json.loads(line)["generated"]) for line in sys.stdin]' >"$work/text.said"
same "lines of text" "$work/text.said" "$work/gpt2.answers"

# --- what is drawn ------------------------------------------------------------------------------------------------------------------
draw() { "$generate" "$work/gpt2" --quiet --max-tokens 24 --prompt "Anna asks: the capital of Peru?" "$@" 2>>"$work/err"; }
[ "$(draw --temperature 1 --seed 5)" = "$(draw --temperature 1 --seed 5)" ]
ok $? "a seed says what is drawn"
[ "$(for s in 1 2 3 4 5 6; do draw --temperature 2 --seed $s | od -c; done | sort -u | wc -l)" -gt 6 ]
ok $? "another seed draws something else"
[ "$(draw --temperature 3 --top-k 1)" = "$(draw)" ] && [ "$(draw --temperature 3 --top-p 0.000001)" = "$(draw)" ]
ok $? "the likeliest alone is the greedy answer"

# --- an answer is a line, whatever is drawn -------------------------------------------------------------------------------------
for _ in $(seq 30); do echo big; done >"$work/lines.txt"
drawn() { "$generate" "$work/$1" --quiet --temperature 100 "${@:2}" <"$work/lines.txt" 2>>"$work/err"; }
drawn gpt2 >"$work/drawn.said"
drawn gpt2 --json >"$work/drawn.jsonl"
drawn t5 >"$work/plain.said"
drawn t5 --special-tokens >"$work/special.said"
python3 - "$work" <<'E'
import json, sys
work = sys.argv[1]
said, plain, special = (open(work + "/%s.said" % name, "rb").read().decode().split("\n")[:-1] for name in ("drawn", "plain", "special"))
got = [json.loads(line) for line in open(work + "/drawn.jsonl")]
assert [len(x) for x in (said, got, plain, special)] == [30] * 4
assert all(a["inputs"] == "big" for a in got) and any("\n" in a["generated"] for a in got) and "\ufffd" in "".join(said)
def escape(c):
    return "\\n" if c == "\n" else "".join("\\x%02x" % b for b in c.encode()) if ord(c) < 32 or 127 <= ord(c) < 160 else c
for line, a in zip(said, got):
    assert line == "".join(map(escape, a["generated"])), (line, a)
assert any("<extra_id_" in line for line in special) and not any("<extra_id_" in line for line in plain)
E
ok $? "an answer is a line, JSON has its text; sentinels are shown with --special-tokens"
# A sentinel whose embedding is that of "x" is read as "x".
python3 - "$work" <<'E'
import sys
work, row = sys.argv[1], 4 * 64
model = bytearray(open(work + "/t5/model_00000060.bin", "rb").read())
model[4 * 244:1024] = bytes(4 * 12)  # no seal
at = lambda token: slice(1024 + token * row, 1024 + (token + 1) * row)
model[at(259 + 17)] = model[at(ord("x") + 3)]
open(work + "/alone/x.bin", "wb").write(model)
E
read_as() { "$generate" "$work/alone/x.bin" --tokenizer "$work/t5-data" --quiet --temperature 1 --max-tokens 24 --prompt "$1" 2>>"$work/err"; }
x=$(read_as axb) sentinel=$(read_as 'a<extra_id_17>b')
[ -n "$x" ] && [ "$sentinel" = "$x" ] && [ "$x" != "$(read_as 'a<extra_id_1>b')" ]
ok $? "<extra_id_17> in a prompt is a token: '$sentinel', '$x'"

# --- the data's form --------------------------------------------------------------------------------------------------------------
mkdir "$work/form" && cp "$work/gpt2-data/tokenizer.bin" "$work/form"
form() {  # template
    python3 - "$work" "$1" <<'E'
import json, sys
about = json.load(open(sys.argv[1] + "/gpt2-data/data.json"))
about["input_end"], about["template"] = "none", json.loads(sys.argv[2])
json.dump(about, open(sys.argv[1] + "/form/data.json", "w"))
E
}
formed() { "$generate" "$work/gpt2" --tokenizer "$work/form" --quiet --max-tokens 24 "$@" 2>>"$work/err"; }
generated() { python3 -c 'import json, sys; [print(json.loads(line)["generated"]) for line in sys.stdin]'; }
form '{"prompt": "Q: {inputs}\nA:"}'
raw=$(draw --raw)
[ "$(formed --raw --prompt $'Q: big\nA:')" = "$(formed --prompt big)" ]
ok $? "a template stands around a prompt"
form '{"prompt": "Q: {inputs}\nHint: {hint}\nA:"}'
refuses 1 "--prompt: text alone is not enough, the data's template has {hint}" "$work/gpt2" --tokenizer "$work/form" --prompt big
echo '{"question": "big", "hint": "so"}' >"$work/hint.jsonl"
[ "$(formed --raw --prompt $'Q: big\nHint: so\nA:')" = "$(formed --file "$work/hint.jsonl" | generated)" ]
ok $? "a template's fields come from the record"
[ -n "$raw" ] && [ "$raw" != "$(draw)" ]
ok $? "without what ends the inputs it is another text"
# --- templates and fields of one's own: what prepare_data was given, and a prompt is what stood before the targets ------------------
own() {  # name, line of JSON, prepare_data's options...
    local name=$1
    echo "$2" >"$work/$name.jsonl"
    shift 2
    "$build/prepare_data" --val-fraction 0 "$@" --out "$work/$name" "$work/$name.jsonl" >"$work/data.log" || cat "$work/data.log"
}
ask_own() { "$generate" "$work/gpt2" --tokenizer "$work/$1" --quiet --max-tokens 24 --temperature 1 "${@:2}" 2>>"$work/err"; }
is_asked() {  # what, folder, text that was trained on, arguments...
    local got expected
    expected=$(ask_own "$2" --json --raw --prompt "$3" | generated)
    got=$(ask_own "$2" --json "${@:4}" | generated)
    [ -n "$expected" ] && [ "$got" = "$expected" ]
    ok $? "$1"
}
own question '{"question": "big", "answer": "small"}' --template 'Question: {question}\nAnswer: {answer}'
is_asked "own template: --prompt" question $'Question: big\nAnswer: ' --prompt big
is_asked "own template: --file" question $'Question: big\nAnswer: ' --file "$work/question.jsonl"
own unframed '{"foo": "big", "bar": "small"}' --inputs-field foo --targets-field bar
is_asked "own names without a template" unframed $'big\n' --file "$work/unframed.jsonl"
is_asked "names as options" unframed $'small\n' --file "$work/unframed.jsonl" --inputs-field bar
own text '{"text": "Once upon"}'
is_asked "a text is gone on with" text "Once upon" --file "$work/text.jsonl"

# --- all that prepare_data reads ----------------------------------------------------------------------------------------------------
python3 - "$work" <<'E'
import gzip, json, os, sys
work = sys.argv[1]
lines = open(work + "/q.jsonl").read().splitlines()
array = json.dumps([json.loads(line) for line in lines], indent=1)
os.mkdir(work + "/forms")
put = lambda name, text: open(work + "/forms/" + name, "wb").write(text.encode())
put("array.json", array)
put("array", array)
put("mark.jsonl", "\ufeff" + "\n".join(lines))
put("ends.jsonl", "\r\n".join(lines) + "\r\n")
gzip.open(work + "/forms/packed.jsonl.gz", "wt").write("\n".join(lines))
gzip.open(work + "/forms/packed", "wt").write(array)
os.mkdir(work + "/folder")
for i in range(2):
    open(work + "/folder/%d.jsonl" % i, "w").write("\n".join(lines[10 * i:10 * i + 10]))
E
command -v zstd >/dev/null && zstd -q "$work/q.jsonl" -o "$work/forms/packed.zst"
for f in "$work"/forms/* "$work/folder"; do
    "$generate" "$work/gpt2" --file "$f" --max-tokens 24 --quiet 2>"$work/err.form" | cmp -s - "$work/a.jsonl"
    ok $? "$(basename "$f"): $(cat "$work/err.form")"
done
"$generate" "$work/gpt2" --file <(cat "$work/q.jsonl") --max-tokens 24 --quiet 2>>"$work/err" | cmp -s - "$work/a.jsonl"
ok $? "a pipe as a file"
for f in array packed.jsonl.gz; do
    "$generate" "$work/gpt2" --max-tokens 24 --quiet <"$work/forms/$f" 2>>"$work/err" | cmp -s - "$work/a.jsonl"
    ok $? "$f as standard input"
done
{ printf '\xef\xbb\xbf'; sed 's/$/\r/' "$work/gpt2.asked"; } | gzip >"$work/text.gz"
"$generate" "$work/gpt2" --max-tokens 24 --quiet <"$work/text.gz" 2>>"$work/err" >"$work/text.said"
same "packed text with a mark and CRLF" "$work/text.said" "$work/gpt2.answers"
head -c 100 "$work/forms/packed.jsonl.gz" >"$work/broken.gz"
"$generate" "$work/gpt2" --file "$work/broken.gz" >/dev/null 2>"$work/broken.err"
[ $? = 1 ] && grep -q "broken.gz: packed data is damaged or cut off --->" "$work/broken.err"
ok $? "a damaged file is an error: $(cat "$work/broken.err")"
refuses 1 "model_00000060.bin:1: a NUL byte, so neither text nor JSON" "$work/gpt2" --file "$work/gpt2/model_00000060.bin"
echo '{"inputs": "big", "id": 123456789012345678, "x": 2}' >"$work/number.jsonl"
"$generate" "$work/gpt2" --quiet --file "$work/number.jsonl" 2>>"$work/err" | grep -qF '{"inputs":"big","id":123456789012345678,"x":2,"generated":'
ok $? "numbers come back as they were"
coproc asked { exec "$generate" "$work/gpt2" --quiet --max-tokens 24 2>>"$work/err"; }
asked_pid=$asked_PID
for i in 1 2; do
    sed -n "${i}p" "$work/gpt2.asked" >&"${asked[1]}"
    IFS= read -r -t 60 answer <&"${asked[0]}"
    [ "$answer" = "$(sed -n "${i}p" "$work/gpt2.answers")" ]
    ok $? "through a pipe, line $i is answered before the next is there: '$answer'"
done
eval "exec ${asked[1]}>&-"
wait "$asked_pid"
for f in /dev/null -; do refuses 1 "empty, no prompt in it" "$work/gpt2" --file $f; done
refuses 1 "standard input: empty, no prompt in it" "$work/gpt2"
{ printf '\n'; sed -n 1p "$work/gpt2.asked"; printf ' \r\n'; sed -n 2p "$work/gpt2.asked"; } >"$work/blank.txt"
{ printf '\n'; sed -n 1p "$work/gpt2.answers"; printf '\n'; sed -n 2p "$work/gpt2.answers"; } >"$work/blank.answers"
cat "$work/blank.txt" | "$generate" "$work/gpt2" --quiet --max-tokens 24 2>>"$work/err" >"$work/blank.said"
same "a blank line has a blank answer" "$work/blank.said" "$work/blank.answers"
"$generate" "$work/gpt2" --quiet --json --max-tokens 24 <"$work/blank.txt" 2>>"$work/err" | generated >"$work/blank.said"
same "as JSON, too" "$work/blank.said" "$work/blank.answers"

# --- too long: what goes is what training leaves out ---------------------------------------------------------------------------------
long=$(seq -s' ' 500 | head -c 600)
was_cut() {  # what, folder, text that is left, words, arguments...
    is_asked "$1" "$2" "$3" "${@:5}"
    "$generate" "$work/gpt2" --tokenizer "$work/$2" --max-tokens 24 "${@:5}" 2>&1 >/dev/null | grep -qF "1 of 1 prompts are longer than the model's 128 tokens: cut $4"
    ok $? "$1: told"
}
was_cut "the end of a question" question "Question: ${long:0:85}"$'\nAnswer: ' "the end of the input" --prompt "$long"
was_cut "the end before the newline" unframed "${long:0:103}"$'\n' "the end of the input" --prompt "$long"
was_cut "a text's beginning" text "${long:496}" "the beginning" --raw --prompt "$long"
was_cut "the middle" unframed "${long:0:52}${long:549}"$'\n' "the middle of the input" --long-samples cut-input-middle --prompt "$long"
was_cut "the beginning" unframed "${long:497}"$'\n' "the beginning of the input" --long-samples cut-input-start --prompt "$long"
chats='{"system": "S {content}.", "user": "{system}U {content}. A", "next": "N {content}. A", "assistant": "{content}", "joint": "<", "turn_end": ">"}'
chat() { printf '{"messages": [{"role": "system", "content": "x"}'; printf ', {"role": "%s", "content": "%s"}' "$@"; echo ']}'; }
chat user a assistant b user "${long:0:60}" assistant c user "${long:0:40}" assistant d user e >"$work/turns.jsonl"
chat user a assistant b user "${long:0:40}" assistant d user e >"$work/fewer.jsonl"
form "$chats"
for f in turns fewer; do formed --file "$work/$f.jsonl" --max-tokens 40 --temperature 1 | generated >"$work/$f.said"; done
same "of a chat turns go, the oldest behind the first" "$work/turns.said" "$work/fewer.said"
"$generate" "$work/gpt2" --tokenizer "$work/form" --max-tokens 40 --file "$work/turns.jsonl" 2>&1 >/dev/null | grep -q "tokens: cut some earlier turns"
ok $? "which is told"

# --- quiet --------------------------------------------------------------------------------------------------------------------------
OPENBLAS_CORETYPE=Prescott "$generate" "$work/gpt2" --quiet --prompt x 2>&1 >/dev/null | wc -c | grep -qx 0
ok $? "--quiet: no word on the CPU"

# --- what cannot be done ------------------------------------------------------------------------------------------------------------
refuses 2 "no model"
for name in --max_new_tokens --max-new-tokens --max_length --n-predict; do refuses 2 "${name//_/-}: unknown option ---> did you mean --max-tokens?" "$work/gpt2" $name 3; done
refuses 2 "there is no beam search" "$work/gpt2" --num_beams 4
refuses 2 "the model comes first" --model "$work/gpt2" --prompt x
refuses 2 "--prompt and --file" "$work/gpt2" --prompt x --file y
refuses 2 "one model at a time" "$work/gpt2" what is it
refuses 1 "No such file" "$work/absent" --prompt x
refuses 1 "no checkpoint there" "$work/form" --prompt x
refuses 1 "no tokenizer there" "$work/alone/m.bin" --prompt x
refuses 1 "trained with another tokenizer" "$work/gpt2" --tokenizer "$work/t5-data" --prompt x
cp -r "$work/gpt2hf" "$work/other" && cp test/golden/bpe_tiny_tokenizer.json "$work/other/tokenizer.json"
refuses 1 "trained with another tokenizer" "$work/other" --tokenizer "$work/gpt2-data" --prompt x
refuses 1 "384 tokens, the model has 257" "$work/gpt2hf" --tokenizer "$work/t5-data" --prompt x
refuses 1 "absent.jsonl: No such file" "$work/gpt2" --file "$work/absent.jsonl"
refuses 1 "main.log: no model ---> the folder of a run" "$work/gpt2/main.log" --prompt x
skips() {  # file of two good records and a bad one, words
    "$generate" "$work/gpt2" --file "$1" >"$work/bad.said" 2>"$work/bad.err"
    [ $? = 0 ] && grep -qF -- "$2" "$work/bad.err" && [ "$(wc -l <"$work/bad.said")" = 2 ] && grep -q "^bad records skipped: 1" "$work/bad.err"
    ok $? "'$2' expected: $(cat "$work/bad.err")"
}
printf '{"inputs": "a"}\n{"inputs": [3]}\n{"inputs": "b"}\n' >"$work/bad.jsonl"
skips "$work/bad.jsonl" "skipped $work/bad.jsonl:2: field \"inputs\" is an array"
printf '{"inputs": "a"}\n{"inputs": "b"\n{"inputs": "c"}\n' >"$work/bad.jsonl"
skips "$work/bad.jsonl" "skipped $work/bad.jsonl:2: not JSON"
printf 'not JSON\n{"inputs": []}\n' >"$work/bad.jsonl"
refuses 1 "bad.jsonl: no prompt in it that can be answered (bad records: 2)" "$work/gpt2" --file "$work/bad.jsonl"
cp "$work/t5/model_00000060.bin" "$work/alone/damaged.bin"
printf 'x' | dd of="$work/alone/damaged.bin" bs=1 seek=5001 conv=notrunc status=none
refuses 1 "damaged.bin" "$work/alone/damaged.bin" --tokenizer "$work/t5-data" --prompt x
"$generate" "$work/gpt2" --prompt x >/dev/full 2>"$work/full.err"
ok $([ $? = 1 ]; echo $?) "a full disk: $(cat "$work/full.err")"
"$generate" --help | awk 'length > 100 { exit 1 }'
ok $? "--help fits"
finish
