#!/usr/bin/env bash
# install.sh -- DynaPipe in somebody else's llm.c: copies the plugin's files there and prints the lines to add, or adds them.
#
#     dynapipe_plugin/install.sh /path/to/their/llm.c              copy, and print the lines as a diff with a reason for each
#     dynapipe_plugin/install.sh --apply /path/to/their/llm.c      copy, and add the lines
#     dynapipe_plugin/install.sh --check /path/to/their/llm.c      what is still missing? (exit status 1: something is)
#     dynapipe_plugin/install.sh --remove /path/to/their/llm.c     lines and files out again: the tree as it was
#
# --link: link the folder dynapipe_plugin/ to dist/ instead of copying it. Exit status: 0, 1 (something is missing or was
# refused), 2 (no tree of a known family, wrong usage).
#
# Lines are found by function and by a piece of code, never by line number, past comments and #if branches (edits.awk). What was
# changed is kept as a patch in .dynapipe/ of the tree, which --remove takes back.
set -u
export LC_ALL=C
source=$(cd "$(dirname "$0")/.." && pwd -P)
edits_awk=$source/dynapipe_plugin/edits.awk
dist=$source/dist

say() { printf '%s\n' "$@"; }  # a line each
die() { printf 'install.sh: %s ---> %s\n' "$2" "$3" >&2; exit "$1"; }  # exit status, what is wrong, what to do
usage() { sed -n '2,10s/^# \{0,1\}//p' "$0"; }

# --- families of trees -----------------------------------------------------------------------------------------
families="cpu cuda llama3"
name_of() { case $1 in cpu) echo "llm.c's CPU trainer" ;; cuda) echo "llm.c's CUDA trainer" ;; llama3) echo "Llama 3 of llm.c's branch llama3" ;; esac; }
# The file, functions that it defines ("f>g": f calls g, wherever g is defined; "!f": not that one), and members that it has (".m"):
# what an adapter uses.
has() {
    case $1 in
        cpu) echo train_gpt2.c gpt2_build_from_checkpoint gpt2_forward gpt2_zero_grad gpt2_backward gpt2_update gpt2_free main !gpt2_backward_and_reduce \
            malloc_and_point_{parameters,activations} .{mean_loss,param_sizes,act_sizes} \
            .{batch_size,seq_len,num_parameters,num_activations,params_memory,grads_memory,m_memory,v_memory,acts_memory,grads_acts_memory} \
            gpt2_forward\>{encoder,layernorm,matmul,attention,softmax,crossentropy}_forward \
            gpt2_backward\>{crossentropy_softmax,matmul,layernorm,attention,encoder}_backward ;;
        cuda) echo train_gpt2.cu gpt2_{allocate_state,forward,backward_and_reduce,calculate_grad_norm,update,write_to_checkpoint} fill_in_{activation,parameter}_sizes main \
            .{acts,params,grads,m,v}_memory .num_parameters{,_bytes} .rng_state{,_last_update} \
            .{master_weights,param_elements,recompute,workload_indices,bucket_info,cpu_losses,mean_loss,batch_size,seq_len} ;;
        llama3) has cuda | sed 's/gpt2/llama3/g' ;;
    esac
}
start_of() {
    local data='./prepare_data --tokenizer gpt2/ --out data/mine mine.jsonl    (gpt2/: vocab.json, merges.txt)' model=d12
    case $1 in
        cpu) say "make train_gpt2 prepare_data DYNAPIPE=1" "$data"
            [ -e "$tree/gpt2_124M.bin" ] || say "./dev/download_starter_pack.sh    (or python3 train_gpt2.py: writes gpt2_124M.bin)"
            say "dynapipe_plugin/mpirun.sh -np 2 ./train_gpt2 --model gpt2_124M.bin --train-data data/mine/train.bin --val-data data/mine/val.bin" ;;
        cuda) [ ! -e "$tree/gpt2_124M_bf16.bin" ] || model=gpt2_124M_bf16.bin
            say "make train_gpt2cu prepare_data DYNAPIPE=1" "$data"
            say "dynapipe_plugin/mpirun.sh -np 2 ./train_gpt2cu -e $model -i data/mine/train.bin -j data/mine/val.bin" ;;
        llama3) say "make train_llama3cu DYNAPIPE=1" "dynapipe_plugin/mpirun.sh -np 2 ./train_llama3cu -e MODEL.bin -i TRAIN.bin -j VAL.bin    (llm.c's token files)" ;;
    esac
}
# What $file lacks that later trees have.
early() {
    grep -qw padded_vocab_size "$tree/$file" || printf '#define DYNAPIPE_UNPADDED\\\\n'
    [ -z "$(lacks "$file" fill_in_parameter_sizes)" ] || printf '#define DYNAPIPE_NO_PARAMETER_SIZES\\\\n'
}
# The edits of its file: function|where|piece of code|lines or what replaces the piece|why. where: above the function, first in
# it, after the statement with the piece, replace the piece; with ?: nothing is wrong where the piece is not there.
edits_of() {
    case $1 in
        cpu) cat <<'END' | sed "1s/#include/$(early)&/" ;;
gpt2_forward|above||#include "dynapipe_plugin/dynapipe_llmc.h"|calls of gpt2_forward() and gpt2_backward() that a slice of the model makes in another way
main|above||#define DYNAPIPE_MAIN\n#include "dynapipe_plugin/dynapipe_llmc.h"|what the calls of main() mean to the plugin
main|replace?|main()|main(int argc, char** argv)|the plugin reads its options from the command line
main|replace?|main(void)|main(int argc, char** argv)|the plugin reads its options from the command line
main|first||    DYNAPIPE_OPEN(argc, argv)|joins the ranks and takes the plugin's --options out of argv
main|replace|step = 0; step|step = DYNAPIPE_FIRST(&model, 0); DYNAPIPE_STEPS_OR(step) step|model and data are known: the model is measured and cut; --steps of them
main|replace?|step > 0 && step %|DYNAPIPE_WHOLE_AND step > 0 && step %|generating text needs the whole model: on one stage as ever, else passed over
END
        cuda) cat <<'END' ;;
gpt2_allocate_state|above||#include "dynapipe_plugin/dynapipe_llmc.cuh"|calls of their forward, backward and update that a slice of the model makes in another way
main|above||#define DYNAPIPE_MAIN\n#include "dynapipe_plugin/dynapipe_llmc.cuh"|what the calls of main() mean to the plugin
main|first||    DYNAPIPE_OPEN(argc, argv)|joins the ranks, takes a GPU each, and takes the plugin's --options out of argv
main|after?|int tokens_per_fwdbwd =|    DYNAPIPE_BATCH(tokens_per_fwdbwd, total_batch_size)|a step may have any number of tokens (-d), as one call makes all of it
main|after|dataloader_init(&val_loader|    DYNAPIPE_START(model, max_steps, total_batch_size, val_max_steps, overfit_single_batch, output_log_dir)|model and data are known: the model is measured and cut
main|replace?|hellaswag_eval && hellaswag_available|DYNAPIPE_WHOLE(hellaswag_eval && hellaswag_available)|multiple-choice questions need the whole model: on one stage as ever, else passed over
main|replace?|multi_gpu_config.process_rank == 0 && sample_every > 0|DYNAPIPE_WHOLE(multi_gpu_config.process_rank == 0 && sample_every > 0)|generating text needs the whole model: on one stage as ever, else passed over
main|after?|size_t tokens_processed =|        DYNAPIPE_TOKENS(tokens_processed)|tokens of a step, for tokens per second
END
        llama3) edits_of cuda | sed 's/gpt2/llama3/; 1s/#include/#define DYNAPIPE_LLAMA3\\n&/' ;;
        make) say '|bottom||-include dynapipe_plugin/dynapipe.mk|flags, objects and libraries of the plugin; nothing without DYNAPIPE=1' ;;
    esac
}

# --- which family ----------------------------------------------------------------------------------------------
facts_of() { [ -e "$work/facts/$1" ] || table='' awk -f "$edits_awk" "$tree/$1" >"$work/facts/$1"; cat "$work/facts/$1"; }  # file: "def f", "call f g"
lacks() {  # file, has()'s words: the first that does not hold, in words; nothing if all do
    local file=$1 word
    shift
    for word; do
        case $word in
            !*) ! facts_of "$file" | grep -qx "def ${word#!}" || { say "defines ${word#!}()"; return; } ;;
            .*) grep -qw "${word#.}" "$tree/$file" || { say "has no ${word#.}"; return; } ;;
            *\>*) facts_of "$file" | grep -qx "call ${word/>/ }" || { say "${word%>*}() does not call ${word#*>}()"; return; } ;;
            *) facts_of "$file" | grep -qx "def $word" || { say "defines no $word()"; return; } ;;
        esac
    done
}
# Sets tasks: "family file" a line. A family's file may have another name, where one alone of its kind has all.
recognise() {
    local family file words other found why other_why looked='' not_taken=''
    tasks=''
    for family in $families; do
        read -r file words <<<"$(has "$family")"
        found='' why="there is no $file"
        for other in "$tree/$file" "$tree"/*."${file##*.}"; do
            other=${other##*/}
            [ -f "$tree/$other" ] && [[ " $found " != *" $other "* ]] || continue
            # shellcheck disable=SC2086
            other_why="$other: $(lacks "$other" $words)"
            [ "$other" != "$file" ] || why=$other_why
            [ -n "${other_why#*: }" ] || { found+=" $other"; [ "$other" != "$file" ] || break; }
        done
        found=${found# }
        if [ -n "$found" ] && [ "$found" = "${found%% *}" ]; then
            tasks+="$family $found"$'\n'
            say "recognised: $(name_of "$family")"
        else
            looked+="  $(name_of "$family"): ${found:-$why}"$'\n'
            [ ! -f "$tree/$file" ] || not_taken+="note: not taken: ${found:-$why} ---> it stays without the plugin: a later llm.c has what is missing, or doc/porting.md"$'\n'
        fi
    done
    [ -n "$tasks" ] || { printf '%s' "$looked" >&2; die 2 "$tree is no tree of a family that is known" "doc/porting.md says how to bring any other trainer"; }
    printf '%s' "$not_taken"
    file=Makefile
    for other in makefile GNUmakefile; do [ ! -f "$tree/$other" ] || file=$other; done
    ! grep -qs hipcc "$tree/$file" || say "note: HIP targets (train_gpt2amd, ...) are not supported ---> the plugin runs in the CPU and CUDA targets alone"
    tasks+="make $file"
}

# --- lines -----------------------------------------------------------------------------------------------------
# What becomes of each file: $work/b/FILE; $work/patch, $work/report ("add|there|missing|passed FILE:LINE: why").
work_out() {
    local family file no_newline
    : >"$work/report"
    while read -r family file; do
        [ -f "$tree/$file" ] || { say "missing $file: no such file" >>"$work/report"; continue; }
        mkdir -p "$work/a" "$work/b"
        cp "$tree/$file" "$work/a/$file"
        [ -z "$(tail -c1 "$tree/$file")" ] && no_newline='' || no_newline=1
        table=$(edits_of "$family") file=$file no_newline=$no_newline report=$work/report awk -f "$edits_awk" "$tree/$file" >"$work/b/$file" || exit 2
    done <<<"$tasks"
    awk '!seen[$0]++' "$work/report" >"$work/once" && mv "$work/once" "$work/report"  # (two rows may find the same text)
    (cd "$work" && diff -u -r a b) | sed 's/^\(---\|+++\) \([ab][^\t]*\)\t.*/\1 \2/; /^diff /d' >"$work/patch"
}
print_report() {  # word for what is to be added; sets num_add, num_open
    sed "s/^missing /by hand  /; s/^add /$1/; s/^there /there    /; /^passed /d" "$work/report"
    num_add=$(grep -c '^add ' "$work/report") num_open=$(grep -c '^missing ' "$work/report")
}

# --- the folder ------------------------------------------------------------------------------------------------
changed_files() {  # of ours, by the user
    [ -e "$state/files" ] && [ -d "$tree/dynapipe_plugin" ] || return 0
    (cd "$tree/dynapipe_plugin" && cksum -- * 2>/dev/null) | grep -vxFf "$state/files" | sed -E 's/^[^ ]+ [^ ]+ //'
}
check_writable() {
    local file closed='' changed
    for file in . dynapipe_plugin .dynapipe $(sed -n 's|^+++ b/||p' "$work/patch"); do
        [ ! -e "$tree/$file" ] || [ -L "$tree/$file" ] || [ -w "$tree/$file" ] || closed+=" $file"
    done
    [ -z "$closed" ] || die 1 "cannot be written:$closed" "nothing was changed: their permissions"
    changed=$(changed_files | tr '\n' ' ')
    [ -z "$changed" ] || die 1 "changed or added in dynapipe_plugin/: $changed" "keep that elsewhere and take it out, then again"
}
place_folder() {
    local folder=$tree/dynapipe_plugin
    [ ! -e "$folder" ] || [ -L "$folder" ] || [ -e "$state/files" ] || diff -r "$dist" "$folder" >/dev/null 2>&1 ||
        die 1 "$folder is there and is not ours" "move it out of the way: the plugin has a folder of this name"
    rm -rf "$folder" && mkdir -p "$state" || exit 1
    if [ -n "$link" ]; then ln -s "$dist" "$folder" && rm -f "$state/files" || exit 1
    else mkdir "$folder" && cp -p "$dist"/* "$folder" && (cd "$folder" && cksum -- *) >"$state/files" || exit 1; fi
    say "$([ -n "$link" ] && echo linked || echo copied): dynapipe_plugin/, $(ls "$dist" | wc -l) files"
}
remove_folder() {
    local folder=$tree/dynapipe_plugin out=$tree/build/dynapipe
    if [ -L "$folder" ]; then rm "$folder"
    elif [ -e "$state/files" ] || diff -r "$dist" "$folder" >/dev/null 2>&1; then rm -rf "$folder"
    elif [ -e "$folder" ]; then say "dynapipe_plugin/ was not put there by install.sh: left"; return; fi
    if [ -e "$out/prepare_data" ] && cmp -s "$tree/prepare_data" "$out/prepare_data"; then rm "$tree/prepare_data"; fi
    (cd "$out" 2>/dev/null && rm -f dynapipe.o dynapipe_cuda.o prepare_data.o spiece.o ./*.flags libdynapipe.a libdynapipe_cuda.a prepare_data)
    rmdir "$out" "$tree/build" 2>/dev/null
    rm -rf "$state"
    say "removed: dynapipe_plugin/"
}

# --- what is asked for -----------------------------------------------------------------------------------------
check() {
    local missing=0
    work_out
    if [ -e "$tree/dynapipe_plugin/dynapipe.mk" ]; then say "there    dynapipe_plugin/"; else say "missing  dynapipe_plugin/"; missing=1; fi
    print_report "missing  "
    [ $((num_add + num_open + missing)) -gt 0 ] || { say "all is there"; return; }
    say "$((num_add + num_open)) edits are missing ---> install.sh $tree says how"
    exit 1
}

install() {
    local file number family
    work_out
    check_writable
    place_folder
    if [ -n "$apply" ]; then
        for file in $(sed -n 's|^+++ b/||p' "$work/patch"); do cat "$work/b/$file" >"$tree/$file" || die 1 "$file could not be written" "install.sh --remove"; done
        number=$(ls "$state" | grep -c '^patch') && [ ! -s "$work/patch" ] || cp "$work/patch" "$state/patch$number"
        rm -f "$state/shown"
        print_report "added    "
    else
        cp "$work/patch" "$state/shown"
        print_report "to add   "
        cat "$work/patch"
        [ "$num_add" -eq 0 ] || say "to have these lines added: install.sh --apply $tree"
    fi
    [ "$num_open" -eq 0 ] || { say "$num_open places were not found ---> put these lines there by hand; --check knows them afterwards"; exit 1; }
    while read -r family file; do start_of "$family" | sed 's/^/then: /'; done <<<"$tasks"
    say 'mine.jsonl has a line {"task": "name", "inputs": "text", "targets": "text"} for each sample. vocab.json, merges.txt: GPT-2'"'"'s, from its page at Hugging Face'
}

# All of it, or nothing.
remove() {
    local patch left
    command -v patch >/dev/null || die 2 "no patch here" "install patch"
    cp -r "$state" "$work/state" 2>/dev/null
    : >"$work/patch"
    cat "$state"/patch* "$state/shown" >"$work/patch" 2>/dev/null
    check_writable
    mkdir "$work/tree"
    for patch in $(sed -n 's|^+++ b/||p' "$work/patch" | sort -u); do cp -p "$tree/$patch" "$work/tree/" 2>/dev/null; done
    for patch in $(ls -r "$work/state" 2>/dev/null | grep '^patch') shown; do
        [ -e "$work/state/$patch" ] || continue
        (cd "$work/tree" && patch -R --binary -f -s -p1 --no-backup-if-mismatch -r - <"$work/state/$patch") >"$work/said" 2>&1 || [ "$patch" = shown ] ||
            { grep -v '^patch: ' "$work/said" >&2; die 1 "lines of the plugin are not as they were added" "put them back as .dynapipe/$patch has them, or take them out by hand and remove that file; then again"; }
    done
    rm -f "$work"/tree/*.orig "$work"/tree/*.rej
    left=$(for patch in "$tree"/*; do
        case $patch in *.c | *.h | *.cu | *.cuh | *.cpp | *.mk | */[Mm]akefile | */GNUmakefile) ;; *) continue ;; esac
        [ ! -e "$work/tree/${patch##*/}" ] || patch=$work/tree/${patch##*/}
        table='' words=1 file=${patch##*/} awk -f "$edits_awk" "$patch"
    done)
    [ -z "$left" ] || { printf '%s\n' "$left" >&2; die 1 "these lines name the plugin and are not as install.sh put them" "take them out by hand, then again"; }
    for patch in "$work"/tree/*; do [ ! -e "$patch" ] || cmp -s "$patch" "$tree/${patch##*/}" || { cat "$patch" >"$tree/${patch##*/}" && say "lines out of: ${patch##*/}"; }; done
    if [ -e "$tree/dynapipe_plugin" ] || [ -L "$tree/dynapipe_plugin" ] || [ -d "$state" ]; then remove_folder; else recognise && say "nothing of the plugin's was there to be removed"; fi
}

command='' apply='' link='' tree=''
while [ $# -gt 0 ]; do
    case $1 in
        --apply | --check | --remove) [ -z "$command" ] || [ "$command" = "${1#--}" ] || die 2 "--$command and $1" "one of them at a time"; command=${1#--} ;;
        --link) link=1 ;;
        -h | --help) usage; exit 0 ;;
        -*) usage >&2; die 2 "$1 is no option" "one of the above" ;;
        *) [ -z "$tree" ] || die 2 "two trees: $tree and $1" "one at a time (a path with blanks in quotes)"; tree=$1 ;;
    esac
    shift
done
[ -n "$tree" ] || { usage >&2; die 2 "which tree?" "the path of an llm.c"; }
[ -d "$tree" ] || die 2 "$tree is no folder" "the root of an llm.c"
tree=$(cd "$tree" && pwd -P) state=$tree/.dynapipe
[ ! "$tree" -ef "$source" ] || die 2 "$tree is DynaPipe itself" "the path of an llm.c"
[ ! -e "$source/dev/dist.py" ] || (cd "$source" && python3 dev/dist.py) || die 2 "dist/ cannot be made" "python3, or a release that has dist/"
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
mkdir "$work/facts"
[ "$command" = remove ] || recognise
case $command in check | remove) $command ;; *) [ "$command" != apply ] || apply=1; install ;; esac
