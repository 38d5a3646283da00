// fuzz_hf_checkpoint.c -- a config.json, behind the first empty line the JSON header of a .safetensors file
// with zeros for values: a model whose names and shapes all fit, or refused with a remedy. The length of the
// header is put right, as random bytes never have it. libFuzzer: -max_len=4096
#include "../../llmc/gpt2.h"
#include "../../llmc/hf.h"
#include "../../llmc/llmc_error.h"
#include "../../llmc/t5.h"
#include "fuzz.h"
#include "memory_files.h"

enum { MOST_VALUE_BYTES = 1 << 16 };

// As many zeros as the last number of the last "data_offsets" asks for.
static size_t value_bytes_of(const char* header) {
    const char* last = NULL;
    for (const char* at = header; (at = strstr(at, "data_offsets")) != NULL; at++) { last = at; }
    const char* comma = last != NULL ? strchr(last, ',') : NULL;
    unsigned long long num_bytes = comma != NULL ? strtoull(comma + 1, NULL, 10) : 0;
    return num_bytes <= MOST_VALUE_BYTES ? (size_t)num_bytes : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    size_t header_at, config_bytes = fuzz_first_bytes(data, num_bytes, &header_at);
    uint64_t header_bytes = num_bytes - header_at;
    char* header = fuzz_text(data + header_at, header_bytes);
    size_t value_bytes = value_bytes_of(header);
    uint8_t* file = calloc(1, 8 + header_bytes + value_bytes);
    REQUIRE(file != NULL);
    memcpy(file, &header_bytes, 8);
    memcpy(file + 8, header, header_bytes);
    free(header);
    memory_files_set("memory/config.json", data, config_bytes);
    memory_files_set("memory/model.safetensors", file, 8 + header_bytes + value_bytes);
    const ModelKind* const kinds[] = {&gpt2_kind, &t5_kind};
    for (int i = 0; i < 2; i++) {
        ModelConfig config;
        HfConfig details;
        if (hf_checkpoint_read_config(&config, &details, kinds[i], "memory/model.safetensors")) {
            REQUIRE(config.kind == kinds[i] && model_check(&config, "again"));
        } else {
            REQUIRE(fuzz_has_remedy(status_message()));
        }
    }
    free(file);
    return 0;
}
