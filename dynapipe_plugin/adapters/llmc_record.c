#include "llmc_record.h"

#include <string.h>

static const char MAGIC[8] = {'l', 'l', 'm', 'c', 'r', 'u', 'n', '2'};

static uint64_t fnv1a(const uint8_t* bytes, uint64_t num_bytes) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (uint64_t i = 0; i < num_bytes; i++) { hash = (hash ^ bytes[i]) * 0x100000001b3u; }
    return hash;
}

LlmcRecord dynapipe_record_of(const void* position, size_t num_bytes) {
    LlmcRecord record = {.position_bytes = num_bytes, .hash = fnv1a(position, num_bytes)};
    memcpy(record.magic, MAGIC, sizeof record.magic);
    return record;
}

Status dynapipe_record_read(LlmcRecord* out, const uint8_t* bytes, int64_t num_bytes, const char* path) {
    LlmcRecord record;
    if (num_bytes >= (int64_t)sizeof record) { memcpy(&record, bytes, sizeof record); }
    if (num_bytes < (int64_t)sizeof record || memcmp(record.magic, MAGIC, sizeof MAGIC) != 0) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: no position in the data: llm.c's own, or cut off ---> begin with its model file, "
                    "without resuming",
                    path);
    }
    uint64_t left = (uint64_t)num_bytes - sizeof record;
    if (record.position_bytes > left || record.settings_bytes != left - record.position_bytes ||
        record.hash != fnv1a(bytes + sizeof record, left)) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: the run's record at its end is damaged ---> use another checkpoint", path);
    }
    *out = record;
    return STATUS_OK;
}
