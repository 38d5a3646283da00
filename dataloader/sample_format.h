// sample_format.h -- the header of a sample file as a struct; sample_file.h documents its fields.
#pragma once

#include <stdint.h>

#define SAMPLE_FORMAT_MAGIC "DPSAMPLE"
enum { SAMPLE_FORMAT_VERSION = 2, SAMPLE_FORMAT_HEADER_BYTES = 80, SAMPLE_FORMAT_HASHED_BYTES = 72 };

typedef struct {
    char magic[8];
    uint32_t version;
    uint32_t bytes_per_token;
    uint64_t num_samples;
    uint64_t num_tokens;
    uint32_t num_tasks;
    uint32_t vocab;
    uint32_t eot_token;
    uint32_t tokenizer;
    uint32_t pad_token;  // UINT32_MAX: none
    uint32_t input_end;
    uint64_t vocab_hash;       // 0: unknown
    uint64_t checksum;         // of everything behind the header
    uint64_t header_checksum;  // of the bytes before it
} SampleFormatHeader;
