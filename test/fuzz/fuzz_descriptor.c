// fuzz_descriptor.c -- any text as -e names a new model: a shape that passes the kind's own check, or an
// error with a remedy. libFuzzer: -max_len=64
#include "../../llmc/gpt2.h"
#include "../../llmc/llmc_error.h"
#include "../../llmc/t5.h"
#include "fuzz.h"

static void try_one(bool parsed, bool is_valid, const ModelConfig* config, const char* error) {
    if (!parsed) {
        REQUIRE(fuzz_has_remedy(error) && strlen(error) < LLMC_ERROR_CHARS - 1);
        return;
    }
    REQUIRE(is_valid && config->padded_vocab >= config->vocab && config->padded_vocab % 128 == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    char error[LLMC_ERROR_CHARS] = "", again[LLMC_ERROR_CHARS];
    char* text = fuzz_text(data, num_bytes);
    ModelConfig config = {0};
    bool parsed = gpt2_config_parse(&config, text, 0, 0);
    try_one(parsed, parsed && gpt2_config_check(&config, "again", again), &config, error);
    parsed = t5_config_parse(&config, text, 384, 64);
    try_one(parsed, parsed && t5_config_check(&config, "again", again), &config, error);
    free(text);
    return 0;
}
