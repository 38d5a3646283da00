#include "cache_rows.h"

#include <stdio.h>
#include <stdlib.h>

#include "llmc_error.h"

CacheRows cache_rows_stage(int num_seqs, const int32_t* cu_seqlens, const int32_t* slots,
                           const int32_t* num_before, int max_tokens, OpsContext* ops) {
    size_t n = (size_t)num_seqs, T = cu_seqlens != NULL ? (size_t)cu_seqlens[num_seqs] : 0;
    int32_t* memory = llmc_alloc((T + 4 * n) * sizeof(int32_t), "rows of a cache");
    int32_t *rows = memory, *begins = rows + T, *lens = begins + n, *starts = lens + n,
            *last_rows = starts + n;
    for (int b = 0; b < num_seqs; b++) {
        int num_new = cu_seqlens != NULL ? cu_seqlens[b + 1] - cu_seqlens[b] : 0;
        begins[b] = slots[b] * max_tokens;
        starts[b] = num_before != NULL ? num_before[b] : 0;
        lens[b] = starts[b] + num_new;
        last_rows[b] = num_new > 0 ? cu_seqlens[b + 1] - 1 : 0;
        if (lens[b] > max_tokens || (cu_seqlens != NULL && num_new < 1)) {
            fprintf(stderr, "cache: slot %d has %d tokens, %d more do not fit into %d\n", slots[b], starts[b],
                    num_new, max_tokens);
            exit(1);
        }
        for (int i = 0; i < num_new; i++) { rows[cu_seqlens[b] + i] = begins[b] + starts[b] + i; }
    }
    return (CacheRows){
        .rows = T > 0 ? ops_stage(ops, rows, T) : NULL,
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
