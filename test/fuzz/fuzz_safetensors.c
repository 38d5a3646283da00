// fuzz_safetensors.c -- any bytes as a safetensors file: refused with a remedy, or every tensor lies in the
// file, none on another, and can be read to its end.
#include "../../llmc/llmc_error.h"
#include "../../llmc/safetensors.h"
#include "fuzz.h"
#include "memory_files.h"

static void require_sane(const Safetensors* file, size_t num_bytes) {
    int64_t sum_bytes = 0;
    for (int i = 0; i < file->num_tensors; i++) {
        const SafetensorsTensor* tensor = &file->tensors[i];
        REQUIRE(safetensors_find(file, tensor->name) == tensor);
        REQUIRE(tensor->begin >= 8 && tensor->begin <= tensor->end && tensor->end <= (int64_t)num_bytes);
        sum_bytes += tensor->end - tensor->begin;
        if (tensor->dtype == SAFETENSORS_OTHER) { continue; }
        REQUIRE(tensor->num_values <= (int64_t)num_bytes);
        float* values = malloc((size_t)tensor->num_values * sizeof *values + 1);
        REQUIRE(safetensors_read(file, tensor, values, 0, tensor->num_values));
        free(values);
    }
    REQUIRE(sum_bytes <= (int64_t)num_bytes - 8);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    Safetensors file;
    memory_files_set("memory/a.safetensors", data, num_bytes);
    if (safetensors_open(&file, "memory/a.safetensors")) {
        require_sane(&file, num_bytes);
        safetensors_close(&file);
    } else {
        REQUIRE(fuzz_has_remedy(status_message()));
    }
    return 0;
}
