#!/usr/bin/env bash
# A thousand inputs per parser, those of its corpus first, so that a broken one or a broken target shows at once (most of the time
# goes into building them); `make fuzz` runs longer.
# concerns: test/fuzz dev/fuzz.sh util dataloader tool llmc/hf llmc/safetensors llmc/checkpoint dynapipe_plugin/plan
cd "$(dirname "$0")/.."
FUZZ_OPT=-O0 FUZZ_JOBS=$(nproc) FUZZ_FOUND=build/fuzz/corpus_test dev/fuzz.sh --runs 1000 | tee build/test_fuzz.txt
rc=${PIPESTATUS[0]}
if [ "$rc" -eq 77 ]; then
    echo "0 passed, 0 failed, 1 skipped"
    exit 77
fi
failed=$(grep -c '^FAIL' build/test_fuzz.txt)
echo "$(grep -c '^ok ' build/test_fuzz.txt) passed, $failed failed, 0 skipped"
[ "$rc" -eq 0 ] && [ "$failed" -eq 0 ]
