/*
llmc_record.h -- a run's record, behind the values of a state file, where llm.c does not look.

8 bytes "llmcrun3", uint64 bytes of the position in the data, uint64 bytes of settings (text; this
repository's own trainers have some there, adapters none and skip them), uint64 FNV-1a hash of both
numbers and both texts; then both. The same as llmc/checkpoint_record.h; test_llmc_seal.c compares them.
*/
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "../../util/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    char magic[8];
    uint64_t position_bytes, settings_bytes, hash;
} LlmcRecord;

LlmcRecord dynapipe_record_of(const void* position, size_t num_bytes);
// bytes: all that follows the values. The position begins right behind the record. path: for messages.
Status dynapipe_record_read(LlmcRecord* out, const uint8_t* bytes, int64_t num_bytes, const char* path);

#ifdef __cplusplus
}
#endif
