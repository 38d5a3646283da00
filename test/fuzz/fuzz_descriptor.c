// fuzz_descriptor.c -- any text as -e names a new model: a shape that passes the kind's own check, or an
// error with a remedy. libFuzzer: -max_len=64
#include "../../llmc/gpt2.h"
#include "../../llmc/llmc_error.h"
#include "../../llmc/t5.h"
#include "fuzz.h"

static void try_one(bool parsed, bool is_valid, const ModelConfig* config) {
    if (!parsed) {
        REQUIRE(fuzz_has_remedy(status_message()));
        return;
    }
    REQUIRE(is_valid && config->padded_vocab >= config->vocab && config->padded_vocab % 128 == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    char* text = fuzz_text(data, num_bytes);
    ModelConfig config = {0};
    bool parsed = model_parse(&config, &gpt2_kind, text, 0, 0);
    try_one(parsed, parsed && model_check(&config, "again"), &config);
    parsed = model_parse(&config, &t5_kind, text, 384, 64);
    try_one(parsed, parsed && model_check(&config, "again"), &config);
    free(text);
    return 0;
}
