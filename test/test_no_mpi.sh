#!/usr/bin/env bash
# Without MPI on the machine: the trainers and the data tools build and run, on one rank.
# SANITIZE=1 (make asan): the same under the address sanitizer; MPI's own leaks are not in the way here, so none is allowed.
# concerns: dynapipe_plugin/run/session Makefile dynapipe_plugin/sources.mk
. "$(dirname "$0")/check_lib.sh"
unset BUILD CFLAGS
export DYNAPIPE_CACHE=$work/costs
build=no-mpi${SANITIZE:+-asan}
out=build/$build opt=-O0
[ -n "${SANITIZE:-}" ] && opt="-O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"

# Every program of this machine but what tells of MPI.
mkdir "$work/bin"
IFS=: read -ra folders <<<"$PATH"
for folder in "${folders[@]}"; do
    case $folder in */ccache) continue ;; esac  # links to one program, which looks for compilers on PATH
    for program in "$folder"/*; do
        case ${program##*/} in mpi* | ompi* | orte* | oshcc | pkg-config | pkgconf) continue ;; esac
        [ -e "$work/bin/${program##*/}" ] || echo "$program"
    done
done | xargs ln -s -t "$work/bin" 2>/dev/null
export PATH=$work/bin
! command -v mpicc >/dev/null
ok $? "no mpicc on PATH"
env -i PATH="$PATH" HOME="$work" make --no-print-directory -n prepare_data >/dev/null 2>"$work/bare.log" && [ ! -s "$work/bare.log" ]
ok $? "make needs nothing of the environment but PATH: $(head -1 "$work/bare.log")"

make --no-print-directory -s -j"$(nproc)" BUILD=$build OPT="$opt" $out/train_gpt2 $out/train_gpt2-dynapipe $out/prepare_data $out/dev/make_tasks \
    >"$work/build.log" 2>&1 || { cat "$work/build.log"; ok 1 "the programs build"; finish; }
! grep 'warning:' "$work/build.log"
ok $? "the programs build, without a warning"
! ldd $out/train_gpt2 $out/train_gpt2-dynapipe | grep -E 'libmpi|libopen-rte'
ok $? "none needs MPI's libraries"

$out/dev/make_tasks --out "$work/tasks.jsonl" --samples 200 --seed 7 --max-tokens 150 >"$work/log" 2>&1 &&
    $out/prepare_data --out "$work/data" "$work/tasks.jsonl" >>"$work/log" 2>&1
ok $? "a task mixture: $(tail -1 "$work/log" | sed "s|$work/||g")"
$out/train_gpt2 -i "$work/data/train.bin" -e l2c32h4 -j "$work/data/val.bin" -t 64 -b 4 -x 2 -v 1 -s 1 -m 16 -o "$work/alone" >"$work/log" 2>&1
ok $? "the trainer without DYNAPIPE=1: $(tail -1 "$work/log")"
$out/train_gpt2-dynapipe -i "$work/data/train.bin" -j "$work/data/val.bin" -e l2c32h4 -t 64 -d 1000 -x 4 -v 2 -s 2 -m 16 -n 2 \
    -o "$work/plugin" --trace "$work/trace.json" --debug dump-plan="$work/plan.txt" --debug dump-gradients="$work/grads.bin" --show-step 2 >"$work/log" 2>&1
ok $? "with DYNAPIPE=1, one rank: $(tail -1 "$work/log")"
# saved behind step 4, after which ranks compare their times: what was decided then is not decided again
$out/train_gpt2-dynapipe -i "$work/data/train.bin" -e l2c32h4 -t 64 -d 1000 -x 6 -y 1 -v 0 -s 0 -o "$work/plugin" >"$work/log" 2>&1
ok $? "and goes on from its checkpoint: $(tail -1 "$work/log")"
$out/train_gpt2-dynapipe -i "$work/data/train.bin" -e l2c32h4 -t 64 -d 1000 -x 2 --stages 2 >"$work/log" 2>&1
ok $(($? != 0 ? 0 : 1)) "two stages on one rank are refused: $(tail -1 "$work/log")"
for launcher in OMPI_COMM_WORLD_SIZE MV2_COMM_WORLD_SIZE PMI_SIZE SLURM_STEP_NUM_TASKS; do
    env "$launcher=2" $out/train_gpt2-dynapipe -i "$work/data/train.bin" -e l2c32h4 -t 64 -d 1000 -x 1 >"$work/log" 2>&1
    [ $? -ne 0 ] && grep -q '2 processes were started, but this program was built without MPI --->' "$work/log"
    ok $? "$launcher=2: $(tail -1 "$work/log")"
done
finish
