#include "machine_io.h"

#include <stdlib.h>

#include "cost_model.h"

enum { MOST_RANKS = 1 << 20 };

void machine_print(const Machine* machine, FILE* out) {
    for (int32_t r = 0; r < machine->num_ranks; r++) {
        const MachineRank* rank = &machine->ranks[r];
        fprintf(out, "rank %d slow", r);
        for (int kind = 0; kind < JOB_COUNT; kind++) {
            fprintf(out, " %s ", cost_job_names[kind]);
            cost_number_print(rank->slow[kind], out);
        }
        fprintf(out, " memory %lld link latency_ns ", (long long)rank->memory_limit_bytes);
        cost_number_print(rank->link_latency_ns, out);
        fputs(" bytes_per_ns ", out);
        cost_number_print(rank->link_bytes_per_ns, out);
        fputc('\n', out);
    }
}

static Status rank_parse(CostReader* r, MachineRank* out) {
    TRY(cost_reader_expect(r, "slow"));
    for (int kind = 0; kind < JOB_COUNT; kind++) {
        TRY(cost_reader_expect(r, cost_job_names[kind]));
        TRY(cost_reader_number(r, &out->slow[kind]));
    }
    TRY(cost_reader_expect(r, "memory"));
    TRY(cost_reader_int(r, &out->memory_limit_bytes, COST_LIMIT));
    TRY(cost_reader_expect(r, "link"));
    TRY(cost_reader_expect(r, "latency_ns"));
    TRY(cost_reader_number(r, &out->link_latency_ns));
    TRY(cost_reader_expect(r, "bytes_per_ns"));
    return cost_reader_number(r, &out->link_bytes_per_ns);
}

// Room doubles: at powers of two.
Status machine_line_parse(CostReader* r, MachineRank** ranks, int32_t* num_ranks) {
    const int32_t n = *num_ranks;
    int64_t number = 0;
    TRY(cost_reader_int(r, &number, MOST_RANKS - 1));
    if (number != n) { return cost_reader_fail(r, "ranks in order, from 0 on"); }
    if ((n & (n - 1)) == 0) {
        MachineRank* more = realloc(*ranks, (n > 0 ? 2 * (size_t)n : 1) * sizeof *more);
        if (more == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: %d ranks", r->name, n + 1); }
        *ranks = more;
    }
    MachineRank rank = {0};
    TRY(rank_parse(r, &rank));
    (*ranks)[n] = rank;
    *num_ranks = n + 1;
    return STATUS_OK;
}
