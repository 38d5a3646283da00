// sample_format.h -- the header of a sample file as a struct, and the hashes of its tokens' chunks;
// sample_file.h documents both.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include "../util/numbers.h"

#define SAMPLE_FORMAT_MAGIC "DPSAMPLE"
enum { SAMPLE_FORMAT_VERSION = 4, SAMPLE_FORMAT_HEADER_BYTES = 88, SAMPLE_FORMAT_HASHED_BYTES = 80 };

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
    uint64_t vocab_hash;  // 0: unknown
    uint32_t num_gaps;
    uint32_t input_tail;
    uint64_t checksum;         // of everything between the header and the tokens
    uint64_t header_checksum;  // of the bytes before it
} SampleFormatHeader;

// Chunks are small enough that one is read at a gulp and a message says where, large enough that their hashes
// are few.
enum { SAMPLE_FORMAT_CHUNK_BYTES = 1 << 20 };

static inline uint64_t sample_format_num_chunks(uint64_t num_bytes) {
    return num_bytes / SAMPLE_FORMAT_CHUNK_BYTES + (num_bytes % SAMPLE_FORMAT_CHUNK_BYTES != 0);
}

static inline size_t sample_format_chunk_bytes(uint64_t num_bytes, uint64_t chunk) {
    uint64_t left_bytes = num_bytes - chunk * SAMPLE_FORMAT_CHUNK_BYTES;
    return left_bytes < SAMPLE_FORMAT_CHUNK_BYTES ? (size_t)left_bytes : SAMPLE_FORMAT_CHUNK_BYTES;
}

static inline uint64_t sample_format_chunk_hash(const void* chunk, size_t num_bytes) {
    return hash_finish(hash_bytes(HASH_SEED, chunk, num_bytes));
}
