#include "llmc_record.h"

#include <string.h>

static const char MAGIC[8] = {'l', 'l', 'm', 'c', 'r', 'u', 'n', '3'};

static uint64_t fnv1a(uint64_t hash, const void* bytes, uint64_t num_bytes) {
    const uint8_t* at = (const uint8_t*)bytes;
    for (uint64_t i = 0; i < num_bytes; i++) { hash = (hash ^ at[i]) * 0x100000001b3u; }
    return hash;
}

// Of both numbers and what they count.
static uint64_t hash_of(const LlmcRecord* record, const void* texts) {
    uint64_t hash = fnv1a(0xcbf29ce484222325u, &record->position_bytes, sizeof record->position_bytes);
    hash = fnv1a(hash, &record->settings_bytes, sizeof record->settings_bytes);
    return fnv1a(hash, texts, record->position_bytes + record->settings_bytes);
}

LlmcRecord dynapipe_record_of(const void* position, size_t num_bytes) {
    LlmcRecord record = {.position_bytes = num_bytes};
    record.hash = hash_of(&record, position);
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
        record.hash != hash_of(&record, bytes + sizeof record)) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: the run's record at its end is damaged ---> use another checkpoint", path);
    }
    *out = record;
    return STATUS_OK;
}
