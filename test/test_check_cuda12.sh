#!/usr/bin/env bash
# dev/check_cuda12.sh on a small tree with stand-ins for nvcc and ptxas: a source that one of them refuses fails the check, and so
# does a job that ends without a word.
# concerns: dev/check_cuda12.sh
set -u
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
tree=$work/tree
mkdir -p "$tree"/{dev/cuda_bench,llmc/cuda,dynapipe_plugin/cuda,test/cuda_emu} "$work"/cuda/{bin,include/crt}
cp dev/check_cuda12.sh dev/mpi_env.sh "$tree/dev"
for source in llmc/cuda/good.cu llmc/cuda/other.cu dynapipe_plugin/cuda/a.c dev/cuda_bench/b.c; do echo 'int it;' >"$tree/$source"; done
echo 'int it;' >"$tree/test/cuda_emu/c.cpp"
for header in cuda_runtime.h cublasLt.h crt/host_defines.h; do : >"$work/cuda/include/$header"; done
cat >"$work/nvcc" <<'END'
#!/usr/bin/env bash
for arg; do [ "${last:-}" != -o ] || out=$arg; last=$arg; done
[[ -z "$NVCC_REFUSES" || "$*" != *$NVCC_REFUSES* ]] || { echo "refused"; exit 1; }
echo '.version 9.0' >"$out"
END
cat >"$work/cuda/bin/ptxas" <<'END'
#!/usr/bin/env bash
case $* in
    --version) echo 'Cuda compilation tools, release 12.9, V12.9.86' ;;
    *version.ptx*) echo "unsupported .version 99.0; current version is '8.8'"; exit 1 ;;
    *) grep -q '^.version 8.8' "${@: -3:1}" || exit 1
       [ -z "$PTXAS_KILLS" ] || [[ "$*" != *$PTXAS_KILLS* ]] || kill -KILL "$PPID"
       [[ -z "$PTXAS_REFUSES" || "$*" != *$PTXAS_REFUSES* ]] || { echo "refused"; exit 1; } ;;
esac
END
chmod +x "$work/nvcc" "$work/cuda/bin/ptxas"

check() {  # what, exit status, line, VARIABLE=pattern...
    local what=$1 status=$2 line=$3 got
    shift 3
    env NVCC_REFUSES= PTXAS_REFUSES= PTXAS_KILLS= CUDA12="$work/cuda" NVCC="$work/nvcc" "$@" timeout 60 "$tree/dev/check_cuda12.sh" >"$work/log" 2>&1
    got=$?
    if [ $got -eq "$status" ] && [ "$(tail -1 "$work/log")" = "$line" ]; then
        passed=$((passed + 1))
        echo "ok   $what: $line"
    else
        failed=$((failed + 1))
        echo "FAIL $what: status $got, not $status; not $line"
        cat "$work/log"
    fi
}
check "all well" 0 "7 passed, 0 failed, 0 skipped" NONE=
check "nvcc refuses a source" 1 "5 passed, 2 failed, 0 skipped" NVCC_REFUSES=good.cu
check "ptxas refuses a source" 1 "6 passed, 1 failed, 0 skipped" PTXAS_REFUSES=bf16-good.ptx
check "ptxas refuses a card" 1 "3 passed, 4 failed, 0 skipped" PTXAS_REFUSES=sm_100
check "a job is killed, and with it the rest" 1 "2 passed, 5 failed, 0 skipped" PTXAS_KILLS=fp32-good.ptx JOBS=1
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
