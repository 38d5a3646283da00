/*
cache_rows.h -- where the new tokens of some sequences go in a cache of keys and values, and what attention
then reads (ops.h: Attention.k_lens, q_starts, place_rows).

A slot has room for max_tokens rows, one behind the other; a sequence's new tokens follow the num_before it
has.

    CacheRows rows = cache_rows_stage(num_seqs, batch->cu_seqlens, cache->slots, cache->num_before,
max_tokens, ops); place_rows(keys, C, qkv + C, 3 * C, rows.rows, T, C, ops); about.cu_k = rows.begins,
about.k_lens = rows.lens, about.q_starts = rows.starts ... cache_rows_free(&rows);
*/
#pragma once

#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

// All but `memory` are the device's, for one job (ops_stage).
typedef struct {
    const int32_t* rows;       // (new tokens) of the cache
    const int32_t* begins;     // (num_seqs) first row of the sequence's slot
    const int32_t* lens;       // (num_seqs) tokens it then has
    const int32_t* starts;     // (num_seqs) tokens it had
    const int32_t* last_rows;  // (num_seqs) the last new token of each, among the new tokens
    void* memory;              // of the host
} CacheRows;

// Belongs to a job whose staging has begun. num_before NULL: none. cu_seqlens NULL: nothing new; else every
// sequence has a new token at least. A slot that would overflow ends the program.
CacheRows cache_rows_stage(int num_seqs, const int32_t* cu_seqlens, const int32_t* slots,
                           const int32_t* num_before, int max_tokens, OpsContext* ops);
void cache_rows_free(CacheRows* rows);  // after the job's last operation was queued

#ifdef __cplusplus
}
#endif
