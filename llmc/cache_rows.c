#include "cache_rows.h"

#include <stdio.h>
#include <stdlib.h>

#include "llmc_error.h"

CacheRows cache_rows_stage(int num_seqs, const int32_t* cu_seqlens, const int32_t* slots,
                           const int32_t* num_before, int max_tokens, OpsContext* ops) {
    size_t n = (size_t)num_seqs, T = (size_t)cu_seqlens[num_seqs];
    int32_t* memory = llmc_alloc((T + 4 * n) * sizeof(int32_t), "rows of a cache");
    int32_t *rows = memory, *begins = rows + T, *lens = begins + n, *starts = lens + n,
            *last_rows = starts + n;
    for (int b = 0; b < num_seqs; b++) {
        int num_new = cu_seqlens[b + 1] - cu_seqlens[b];
        begins[b] = slots[b] * max_tokens;
        starts[b] = num_before != NULL ? num_before[b] : 0;
        lens[b] = starts[b] + num_new;
        last_rows[b] = cu_seqlens[b + 1] - 1;
        if (lens[b] > max_tokens || num_new < 1) {
            fprintf(stderr, "cache: slot %d has %d tokens, %d more do not fit into %d\n", slots[b], starts[b],
                    num_new, max_tokens);
            exit(1);
        }
        for (int i = 0; i < num_new; i++) { rows[cu_seqlens[b] + i] = begins[b] + starts[b] + i; }
    }
    return (CacheRows){
        .rows = ops_stage(ops, rows, T),
        .begins = ops_stage(ops, begins, n),
        .lens = ops_stage(ops, lens, n),
        .starts = ops_stage(ops, starts, n),
        .last_rows = ops_stage(ops, last_rows, n),
        .memory = memory,
    };
}

void cache_rows_free(CacheRows* rows) {
    free(rows->memory);
    rows->memory = NULL;
}
