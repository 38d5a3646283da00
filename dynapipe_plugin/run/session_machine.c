// session_machine.c -- in what the ranks and links of this run differ: as measured, as memory is left.
#include <stdlib.h>
#include <string.h>

#include "session.h"

// Limits that were found are multiples of this: a library that takes a little more today changes no plan.
#define LIMIT_STEP_BYTES (INT64_C(64) << 20)
// Memory that differs by less is the least of all: plans need not tell such ranks apart.
#define ALIKE 0.97

// --- speed and links ---------------------------------------------------------------------------------------

// Where nothing was known to differ: ranks that are alike, to be told apart.
static Status need_ranks(Dynapipe* dp) {
    int32_t num_ranks = dp->transport.num_ranks;
    if (dp->machine_ranks != NULL) { return STATUS_OK; }
    dp->machine_ranks = malloc((size_t)num_ranks * sizeof *dp->machine_ranks);
    if (dp->machine_ranks == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks); }
    for (int32_t r = 0; r < num_ranks; r++) { dp->machine_ranks[r] = machine_rank(NULL, r); }
    dp->machine.num_ranks = num_ranks;
    dp->machine.ranks = dp->machine_ranks;
    return STATUS_OK;
}

Status session_machine_take(Dynapipe* dp, const Machine* machine) {
    TRY(machine_check(machine, dp->transport.num_ranks));
    dp->request.machine = &dp->machine;
    if (machine->num_ranks == 0) { return STATUS_OK; }
    TRY(need_ranks(dp));
    memcpy(dp->machine_ranks, machine->ranks, (size_t)machine->num_ranks * sizeof *machine->ranks);
    return STATUS_OK;
}

void session_machine_free(Dynapipe* dp) {
    free(dp->machine_ranks);
    dp->machine_ranks = NULL;
    dp->machine = (Machine){0};
}

// --- memory ------------------------------------------------------------------------------------------------

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// out[num_ranks]: what each rank says. A collective.
static Status of_all(double** out, Dynapipe* dp, int64_t mine) {
    int32_t num_ranks = dp->transport.num_ranks;
    double* values = calloc((size_t)num_ranks, sizeof *values);
    if (values == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks); }
    values[dp->transport.rank] = (double)mine;
    Status status = collective_all_reduce_sum(&dp->world, values, num_ranks);
    *out = values;
    if (status != STATUS_OK) { free(values); }
    return status;
}

static Status set_limits(Dynapipe* dp, const double* limit_bytes) {
    int64_t* common = &dp->options.memory_limit_bytes;
    double least = limit_bytes[0], most = limit_bytes[0];
    for (int32_t r = 1; r < dp->transport.num_ranks; r++) {
        least = limit_bytes[r] < least ? limit_bytes[r] : least;
        most = limit_bytes[r] > most ? limit_bytes[r] : most;
    }
    if (*common == 0) { *common = (int64_t)(least > ALIKE * most ? least : most); }
    dp->request.memory_limit_bytes = *common;
    if (least >= (double)*common) { return STATUS_OK; }
    TRY(need_ranks(dp));
    for (int32_t r = 0; r < dp->transport.num_ranks; r++) {
        bool has_less = limit_bytes[r] < (double)*common;
        dp->machine_ranks[r].memory_limit_bytes = has_less ? (int64_t)limit_bytes[r] : 0;
    }
    return STATUS_OK;
}

Status session_machine_limit(Dynapipe* dp, int64_t mine_bytes) {
    double* limits;
    int64_t whole = mine_bytes / LIMIT_STEP_BYTES * LIMIT_STEP_BYTES;
    TRY(of_all(&limits, dp, larger(whole, LIMIT_STEP_BYTES)));
    Status status = set_limits(dp, limits);
    free(limits);
    return status;
}

Status session_machine_take_bytes(Dynapipe* dp, int64_t mine_bytes) {
    double *taken, most = 0;
    TRY(of_all(&taken, dp, larger(mine_bytes, 0)));
    for (int32_t r = 0; r < dp->transport.num_ranks; r++) { most = taken[r] > most ? taken[r] : most; }
    free(taken);
    int64_t whole = ((int64_t)most + LIMIT_STEP_BYTES - 1) / LIMIT_STEP_BYTES * LIMIT_STEP_BYTES;
    int64_t* common = &dp->options.memory_limit_bytes;
    *common = dp->request.memory_limit_bytes = larger(*common - whole, LIMIT_STEP_BYTES);
    for (int32_t r = 0; r < dp->machine.num_ranks; r++) {
        int64_t* own = &dp->machine_ranks[r].memory_limit_bytes;
        if (*own > 0) { *own = larger(*own - whole, LIMIT_STEP_BYTES); }
    }
    return STATUS_OK;
}

int64_t session_machine_limit_bytes(const Dynapipe* dp) {
    const int32_t rank = dp->transport.rank;
    int64_t own = rank < dp->machine.num_ranks ? dp->machine_ranks[rank].memory_limit_bytes : 0;
    return own > 0 ? own : dp->options.memory_limit_bytes;
}
