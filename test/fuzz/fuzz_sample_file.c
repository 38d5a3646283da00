/*
fuzz_sample_file.c -- any bytes as a sample file: refused, or every sample can be read.

The first byte of an input says how it is parsed, the rest is the file. Random bytes never carry the right
checksums, so bit 0 puts both right first: the checks after them are what is to be tried.
*/
#include <stdlib.h>
#include <string.h>

#include "../../dataloader/sample_file.h"
#include "../../util/numbers.h"
#include "fuzz.h"

// Where the tokens begin if names and index are as the header says; 0: they do not fit.
static size_t find_tokens(const SampleFormatHeader* header, const unsigned char* bytes, size_t num_bytes,
                          size_t* hashes_at) {
    size_t at = sizeof *header;
    for (uint32_t k = 0; k < header->num_tasks; k++) {
        if (at > num_bytes - 2) { return 0; }
        at += 2 + (bytes[at] | (size_t)bytes[at + 1] << 8);
    }
    at = (at + 7) / 8 * 8;
    if (at > num_bytes || header->num_samples > (num_bytes - at) / sizeof(SampleIndex)) { return 0; }
    *hashes_at = at + (size_t)header->num_samples * sizeof(SampleIndex);
    if (header->num_gaps > num_bytes / sizeof(SampleGap)) { return 0; }
    *hashes_at += header->num_gaps * sizeof(SampleGap);
    if (header->num_tokens > num_bytes || header->bytes_per_token > 4) { return 0; }
    uint64_t num_chunks = sample_format_num_chunks(header->num_tokens * header->bytes_per_token);
    size_t tokens_at = *hashes_at + (size_t)num_chunks * sizeof(uint64_t);
    return tokens_at <= num_bytes ? tokens_at : 0;
}

static void repair(unsigned char* bytes, size_t num_bytes) {
    SampleFormatHeader header;
    size_t hashes_at = 0;
    if (num_bytes < sizeof header) { return; }
    memcpy(&header, bytes, sizeof header);
    memcpy(header.magic, SAMPLE_FORMAT_MAGIC, sizeof header.magic);
    header.version = SAMPLE_FORMAT_VERSION;
    size_t tokens_at = find_tokens(&header, bytes, num_bytes, &hashes_at);
    if (tokens_at > hashes_at) {  // inputs are shorter than a chunk: there is one at most
        uint64_t hash = sample_format_chunk_hash(bytes + tokens_at, num_bytes - tokens_at);
        memcpy(bytes + hashes_at, &hash, sizeof hash);
    }
    if (tokens_at > 0) {
        header.checksum =
            hash_finish(hash_bytes(HASH_SEED, bytes + sizeof header, tokens_at - sizeof header));
    }
    header.header_checksum = hash_finish(hash_bytes(HASH_SEED, &header, SAMPLE_FORMAT_HASHED_BYTES));
    memcpy(bytes, &header, sizeof header);
}

// Whatever was accepted must be usable.
static void use(SampleFile* file) {
    int32_t tokens[64];
    for (int64_t s = 0; s < file->num_samples; s++) {
        REQUIRE(file->index[s].task < (uint32_t)file->num_tasks);
        int64_t length = (int64_t)file->index[s].n_input + file->index[s].n_target;
        int64_t count = length < 64 ? length : 64;
        Status status = sample_file_read(file, s, length - count, count, tokens);
        REQUIRE(status == STATUS_OK || status == STATUS_BAD_FORMAT);
        const SampleGap* gaps;
        int32_t num_gaps = sample_file_gaps(file, s, &gaps);
        for (int32_t g = 0; g < num_gaps; g++) {
            REQUIRE(gaps[g].begin > file->index[s].n_input && gaps[g].end < length);
        }
    }
    for (int32_t k = 0; k < file->num_tasks; k++) {
        REQUIRE(strlen(file->task_names[k]) <= SAMPLE_FILE_MAX_NAME);
    }
    REQUIRE(sample_file_cut(file, 3) == STATUS_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    if (num_bytes < 1) { return 0; }
    bool repaired = data[0] & 1;
    data += 1;
    num_bytes -= 1;
    unsigned char* bytes = malloc(num_bytes + (num_bytes == 0));
    if (bytes == NULL) { return 0; }
    memcpy(bytes, data, num_bytes);
    if (repaired) { repair(bytes, num_bytes); }
    SampleFile file;
    if (sample_file_parse(&file, "fuzz.bin", bytes, num_bytes) == STATUS_OK) {
        use(&file);
        sample_file_close(&file);
    }
    free(bytes);
    return 0;
}
