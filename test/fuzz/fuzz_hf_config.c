// fuzz_hf_config.c -- any bytes as a config.json: refused with a remedy, or the numbers are in range and what
// we would write of it is read back alike.
#include <stdlib.h>
#include <string.h>

#include "../../llmc/hf.h"
#include "../../llmc/llmc_error.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    HfConfig config, back;
    if (!hf_config_parse(&config, (const char*)data, num_bytes, "fuzz.json")) {
        REQUIRE(strncmp(status_message(), "fuzz.json:", 10) == 0 &&
                strstr(status_message(), " ---> ") != NULL);
        return 0;
    }
    const ModelConfig* shape = &config.shape;
    REQUIRE(shape->vocab >= 1 && shape->padded_vocab >= shape->vocab && shape->padded_vocab % 128 == 0);
    REQUIRE(shape->channels >= 1 && shape->num_heads >= 1 && shape->num_layers >= 1 &&
            shape->max_seq_len >= 1);
    REQUIRE((config.type == HF_GPT2) == (shape->num_dec_layers == 0));
    char* text = hf_config_text(&config, "float32");
    REQUIRE(hf_config_parse(&back, text, strlen(text), "back.json"));
    REQUIRE(back.shape.vocab == shape->vocab && back.shape.num_layers == shape->num_layers);
    REQUIRE(back.shape.num_dec_layers == shape->num_dec_layers && back.shape.gated == shape->gated);
    free(text);
    return 0;
}
