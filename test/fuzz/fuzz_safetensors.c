// fuzz_safetensors.c -- any bytes as a safetensors file: refused with a remedy, or every tensor lies in the
// file, none on another, and can be read to its end.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE  // memfd_create
#endif
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../llmc/llmc_error.h"
#include "../../llmc/safetensors.h"

#define REQUIRE(condition)                      \
    do {                                        \
        if (!(condition)) { __builtin_trap(); } \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes);

static void require_sane(const Safetensors* file, size_t num_bytes) {
    int64_t sum_bytes = 0;
    char error[LLMC_ERROR_CHARS];
    for (int i = 0; i < file->num_tensors; i++) {
        const SafetensorsTensor* tensor = &file->tensors[i];
        REQUIRE(safetensors_find(file, tensor->name) == tensor);
        REQUIRE(tensor->begin >= 8 && tensor->begin <= tensor->end && tensor->end <= (int64_t)num_bytes);
        sum_bytes += tensor->end - tensor->begin;
        if (tensor->dtype == SAFETENSORS_OTHER) { continue; }
        REQUIRE(tensor->num_values <= (int64_t)num_bytes);
        float* values = malloc((size_t)tensor->num_values * sizeof *values + 1);
        REQUIRE(safetensors_read(file, tensor, values, 0, tensor->num_values, error));
        free(values);
    }
    REQUIRE(sum_bytes <= (int64_t)num_bytes - 8);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    static int memory = -1;
    if (memory < 0) { memory = memfd_create("fuzz.safetensors", 0); }
    REQUIRE(memory >= 0 && ftruncate(memory, 0) == 0);
    REQUIRE(pwrite(memory, data, num_bytes, 0) == (ssize_t)num_bytes);
    char path[64], error[LLMC_ERROR_CHARS] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", memory);
    Safetensors file;
    if (safetensors_open(&file, path, error)) {
        require_sane(&file, num_bytes);
        safetensors_close(&file);
    } else {
        REQUIRE(strstr(error, " ---> ") != NULL);
    }
    return 0;
}
