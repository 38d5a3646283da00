/*
embedding_sort.h -- the numbers 0 .. T-1 of tokens ordered by id, equal ids as they come; for tokens alone, or
tokens and positions at once.
*/
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "../ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SORT_TABLES = 2 };

// Scratch of both tables: 16 bytes per token and 128 KiB.
size_t embedding_sort_bytes(int T);
// For i < num_tables order[i] (T) points into scratch afterwards: tokens by ids[i] (T). T > 0; 0 <= id <
// OPS_MAX_IDS.
void embedding_sort(const int32_t* order[SORT_TABLES], const int32_t* const ids[SORT_TABLES], int num_tables,
                    void* scratch, int T, OpsContext* ops);

#ifdef __cplusplus
}
#endif
