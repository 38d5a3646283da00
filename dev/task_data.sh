# shellcheck shell=bash disable=SC2034
# Sourced by benches: task_data FOLDER TOKENIZER INPUT_END BYTES makes train.bin and val.bin there, once, of the texts of
# $SHARED/data (30 tasks; SHARED: ../shared) by TOKENIZER (gpt2, of $SHARED/tokenizer, or BYTES); where there are none, of the
# built-in tasks by BYTES (bytes|byt5). Sets data, its folder; vocab; and about, in words.
task_data() {
    local out=$1 tokenizer=$2 input_end=$3 bytes=$4 shared=${SHARED:-../shared} texts flags
    [ "$tokenizer" = gpt2 ] && [ -d "$shared/data" ] || tokenizer=$bytes
    flags=(--input-end "$input_end" --tokenizer "$tokenizer")
    case $tokenizer in
        gpt2)
            vocab=50257 about="GPT-2 tokens"
            flags[3]=$shared/tokenizer
            ;;
        byt5) vocab=384 about=bytes ;;
        *) vocab=257 about=bytes ;;
    esac
    mkdir -p "$out"
    if [ -d "$shared/data" ]; then
        about="the texts of ../shared/data (30 tasks, $about)" texts=("$shared"/data/*.jsonl) data=$out/data-$tokenizer-$input_end
    else
        about="the built-in tasks ($about)" texts=("$out/tasks.jsonl") data=$out/data-made-$tokenizer
        [ -e "$out/tasks.jsonl" ] || ./make_tasks --out "$out/tasks.jsonl" --max-tokens 5000 >"$out/data.log" 2>&1
    fi
    [ -e "$data/train.bin" ] || ./prepare_data "${flags[@]}" --out "$data" "${texts[@]}" >"$out/data.log" 2>&1 || { tail -5 "$out/data.log"; return 1; }
}
