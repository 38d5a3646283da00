// session_model.c -- the model put into the session: what each rank tells of it, compared with the others.
#include <stdlib.h>
#include <string.h>

#include "interface.h"
#include "session.h"

// --- boundaries ------------------------------------------------------------------------------------------

// Counts of a micro-batch that no two sizes of a boundary agree on by chance; nothing else of it is read.
static DynapipeBatch probe_batch(const Dynapipe* dp, int32_t num_tokens, int32_t num_dec_tokens) {
    bool has_decoder = dp->run.max_target_tokens > 0;
    int32_t num_dec = has_decoder ? num_dec_tokens : 0;
    return (DynapipeBatch){.num_seqs = 1,
                           .num_tokens = num_tokens,
                           .num_rows = has_decoder ? num_dec : num_tokens,
                           .max_seq_tokens = num_tokens,
                           .num_squares = (int64_t)num_tokens * num_tokens,
                           .num_dec_tokens = num_dec,
                           .max_dec_seq_tokens = num_dec,
                           .num_dec_squares = (int64_t)num_dec * num_dec,
                           .num_cross = (int64_t)num_tokens * num_dec};
}

// What each chunk and each share of the head says of itself, by replica and row (chunks, then shares).
enum { BEFORE, BEHIND, PART, FACTORS, BOUNDARY_VALUES };

typedef struct {
    double* values;  // (num_replicas, num_rows, BOUNDARY_VALUES)
    int32_t num_rows;
} Boundaries;

static double* said_of(const Boundaries* b, int32_t replica, int32_t row) {
    return b->values + ((int64_t)replica * b->num_rows + row) * BOUNDARY_VALUES;
}

static void say_boundaries(const Dynapipe* dp, const DynapipeBatch* probe, const Boundaries* out) {
    const Placement* placement = &dp->request.placement;
    int32_t K = placement->num_chunks, idx = 0;
    for (int32_t row = 0; row < out->num_rows; row++) {
        bool is_share = row >= K;
        bool is_mine = is_share ? row - K == dp->stage && placement_has_share(placement, dp->stage)
                                : placement->stage_of[row] == dp->stage;
        if (!is_mine) { continue; }
        const ExecutorRange* range = &dp->ranges[idx++];
        double* said = said_of(out, dp->replica, row);
        bool has_head = row == K - 1 && placement->head == HEAD_WHOLE;
        if (row > 0) { said[BEFORE] = (double)range->api->boundary_bytes(range->model, probe, 0); }
        if (!has_head && !is_share) {
            said[BEHIND] = (double)range->api->boundary_bytes(range->model, probe, 1);
        }
        if (row < K - 1 || placement->head != HEAD_BY_VOCABULARY) { continue; }
        const int flags = DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD;
        said[PART] = (double)range->api->part_bytes(range->model, probe, flags);
        said[FACTORS] = (double)range->api->factor_bytes(range->model, probe);
    }
}

// What leaves `row` is what enters `next`, and of a share, what both say of its part and factors.
static Status compare_rows(const Dynapipe* dp, const DynapipeBatch* probe, const Boundaries* b,
                           int32_t replica, int32_t row, int32_t next) {
    static const char* const words[BOUNDARY_VALUES] = {
        [BEHIND] = "%.0f bytes leave the one's blocks, %.0f enter the other's",
        [PART] = "a part of the head is %.0f bytes to the one, %.0f to the other",
        [FACTORS] = "its factors are %.0f bytes to the one, %.0f to the other"};
    const Placement* placement = &dp->request.placement;
    const double *said = said_of(b, replica, row), *other = said_of(b, replica, next);
    int32_t first = replica * dp->num_stages, end = next < placement->num_chunks ? PART : BOUNDARY_VALUES;
    for (int i = BEHIND; i < end; i++) {
        double theirs = other[i == BEHIND ? BEFORE : i];
        if (said[i] == theirs) { continue; }
        char differs[128];
        snprintf(differs, sizeof differs, words[i], said[i], theirs);
        return FAIL(STATUS_MISMATCH,
                    "ranks %d and %d: of %d + %d tokens, %s ---> both need the same model, cut as "
                    "dynapipe_choose_stages() says",
                    first + placement_stage_of(placement, row), first + placement_stage_of(placement, next),
                    probe->num_tokens, probe->num_dec_tokens, differs);
    }
    return STATUS_OK;
}

static Status compare_boundaries(const Dynapipe* dp, const DynapipeBatch* probe, const Boundaries* b) {
    const Placement* placement = &dp->request.placement;
    int32_t K = placement->num_chunks;
    for (int32_t replica = 0; replica < dp->num_replicas; replica++) {
        for (int32_t row = 1; row < K; row++) { TRY(compare_rows(dp, probe, b, replica, row - 1, row)); }
        for (int32_t row = K; row < b->num_rows; row++) {
            if (!placement_has_share(placement, row - K)) { continue; }
            TRY(compare_rows(dp, probe, b, replica, K - 1, row));
        }
    }
    return STATUS_OK;
}

// What leaves a chunk is what the next one takes; else a message of one length would meet a receive of
// another. A collective, which fails on all ranks alike.
static Status check_boundaries(Dynapipe* dp) {
    static const int32_t tokens[2][2] = {{48, 176}, {1009, 97}};
    const Placement* placement = &dp->request.placement;
    Boundaries b = {.num_rows = placement_num_rows(placement, dp->num_stages)};
    int32_t num_values = dp->num_replicas * b.num_rows * BOUNDARY_VALUES;
    Status status = STATUS_OK;
    b.values = malloc((size_t)num_values * sizeof *b.values);
    if (b.values == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d boundaries", num_values); }
    for (int i = 0; i < 2 && status == STATUS_OK && b.num_rows > 1; i++) {
        DynapipeBatch probe = probe_batch(dp, tokens[i][0], tokens[i][1]);
        memset(b.values, 0, (size_t)num_values * sizeof *b.values);
        say_boundaries(dp, &probe, &b);
        status = collective_all_reduce_sum(&dp->world, b.values, num_values);
        if (status == STATUS_OK) { status = compare_boundaries(dp, &probe, &b); }
    }
    free(b.values);
    return status;
}

// --- attaching -------------------------------------------------------------------------------------------

static bool is_type(int32_t type) {
    return type == DYNAPIPE_FLOAT32 || type == DYNAPIPE_BFLOAT16 || type == DYNAPIPE_FLOAT16;
}

static Status check_params(int32_t idx, const DynapipeParams_v1* params) {
    if (params == NULL || params->num_params < 0 ||
        (params->num_params > 0 && (params->params == NULL || params->grads == NULL))) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "range %d: %lld parameters, but no array of them or of their gradients ---> "
                    "DynapipeParams_v1.params and .grads",
                    idx, params != NULL ? (long long)params->num_params : 0);
    }
    if (!is_type(params->param_type) || !is_type(params->grad_type)) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "range %d: parameters of type %d, gradients of type %d ---> DYNAPIPE_FLOAT32 (%d), "
                    "DYNAPIPE_BFLOAT16 (%d) or DYNAPIPE_FLOAT16 (%d)",
                    idx, params->param_type, params->grad_type, DYNAPIPE_FLOAT32, DYNAPIPE_BFLOAT16,
                    DYNAPIPE_FLOAT16);
    }
    if (params->num_tied < 0 || (params->num_tied > 0 && params->tied == NULL)) {
        return FAIL(STATUS_OUT_OF_RANGE, "range %d: %d tied groups, but no list of them", idx,
                    params->num_tied);
    }
    return interface_check_params(params);
}

static Status check_attach(const Dynapipe* dp, int32_t idx, const DynapipeModel_v1* api,
                           const DynapipeParams_v1* params) {
    int32_t num_ranges = session_num_ranges(dp);
    if (dp->links == NULL) {
        return FAIL(STATUS_BAD_OPTION,
                    "a model before its stage is known ---> dynapipe_choose_stages() comes before "
                    "dynapipe_attach()");
    }
    if (idx < 0 || idx >= num_ranges) {
        return FAIL(STATUS_OUT_OF_RANGE, "a model for range %d: this rank has %d ---> 0 <= idx < *num_ranges",
                    idx, num_ranges);
    }
    if (dp->ranges[idx].api != NULL) {
        return FAIL(STATUS_OUT_OF_RANGE, "range %d has a model already ---> attach each range once", idx);
    }
    TRY(interface_check_model(api));
    if (!executor_can_share(api, (HeadSplit)dp->request.placement.head)) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "the model %s cannot share its head: no part_bytes, factor_bytes, combine ---> --head "
                    "whole, or give it these",
                    api->name);
    }
    if (idx == 0) { return check_params(idx, params); }
    if (params == NULL) { return STATUS_OK; }
    return FAIL(
        STATUS_OUT_OF_RANGE,
        "range %d: parameters are those of all ranges together ---> with range 0; NULL with the others", idx);
}

static bool is_whole(const Dynapipe* dp) {
    int32_t num_ranges = session_num_ranges(dp), attached = 0;
    while (attached < num_ranges && dp->ranges[attached].api != NULL) { attached++; }
    return num_ranges > 0 && attached == num_ranges;
}

// All ranges are there.
static Status open_model(Dynapipe* dp) {
    int64_t timeout_ns = (int64_t)dp->options.comm_timeout_s * 1000000000;
    TRY(check_boundaries(dp));
    TRY(tied_groups_open(&dp->tied, &dp->world, dp->num_stages, &dp->params));
    dp->params.num_tied = 0;
    dp->params.tied = NULL;
    TRY(session_sums_open(dp));
    TRY(executor_create(&dp->executor, dp->ranges, session_num_ranges(dp), dp->links, timeout_ns));
    executor_use_device(dp->executor, dp->device);
    return STATUS_OK;
}

static Status take_params(Dynapipe* dp, const DynapipeParams_v1* params) {
    free(dp->tied_given);
    dp->tied_given = calloc((size_t)params->num_tied + 1, sizeof *dp->tied_given);
    if (dp->tied_given == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for %d groups", params->num_tied);
    }
    for (int32_t i = 0; i < params->num_tied; i++) { dp->tied_given[i] = params->tied[i]; }
    dp->params = *params;
    dp->params.tied = dp->tied_given;
    return STATUS_OK;
}

int dynapipe_attach(Dynapipe* dp, int32_t idx, const DynapipeModel_v1* api, void* model,
                    const DynapipeParams_v1* params) {
    Status status = check_attach(dp, idx, api, params);
    if (status == STATUS_OK && idx == 0) { status = take_params(dp, params); }
    if (status != STATUS_OK) { return (int)status; }
    dp->ranges[idx] = (ExecutorRange){api, model};
    if (!is_whole(dp)) { return 0; }
    status = open_model(dp);
    if (status != STATUS_OK) { dp->ranges[idx] = (ExecutorRange){NULL, NULL}; }
    return (int)status;
}

void session_model_detach(Dynapipe* dp) {
    executor_free(dp->executor);
    dp->executor = NULL;
    sums_close(&dp->sums);
    tied_groups_free(&dp->tied);
    session_release(dp);
    free(dp->tied_given);
    dp->tied_given = NULL;
    dp->params = (DynapipeParams_v1){0};
    memset(dp->ranges, 0, sizeof dp->ranges);
    dp->eval_tokens = 0;  // of another stage
}

Status session_need_model(const Dynapipe* dp) {
    if (dp->executor != NULL) { return STATUS_OK; }
    int32_t num_ranges = session_num_ranges(dp), missing = 0;
    while (missing < num_ranges && dp->ranges[missing].api != NULL) { missing++; }
    return FAIL(STATUS_BAD_OPTION,
                "rank %d: no model for range %d of %d ---> dynapipe_attach() for each range that "
                "dynapipe_choose_stages() gave",
                dp->transport.rank, missing, num_ranges);
}

// --- what is counted -------------------------------------------------------------------------------------

// The first stage of those with copies counts them.
static bool counts_group(const Dynapipe* dp, const TiedGroup* group) {
    int32_t first = 0;
    while (!tied_holders_have(&dp->tied.holders[group->holders], first)) { first++; }
    return first == dp->stage;
}

// Of the copies that another stage counts, the first that ends behind `at`; NULL: none.
static const TiedGroup* next_left_out(const Dynapipe* dp, int64_t at) {
    const TiedGroup* next = NULL;
    for (int32_t i = 0; i < dp->tied.num_groups; i++) {
        const TiedGroup* group = &dp->tied.groups[i];
        if (counts_group(dp, group) || group->begin + group->count <= at) { continue; }
        if (next == NULL || group->begin < next->begin) { next = group; }
    }
    return next;
}

static Status add_span(DynapipeSpan* out, int32_t max_spans, int32_t* num_spans, int64_t begin, int64_t end) {
    if (begin >= end) { return STATUS_OK; }
    if (*num_spans == max_spans) {
        return FAIL(STATUS_OUT_OF_RANGE, "room for %d spans ---> one more than the rank has tied groups",
                    max_spans);
    }
    out[(*num_spans)++] = (DynapipeSpan){begin, end};
    return STATUS_OK;
}

static Status count_values(const Dynapipe* dp, DynapipeSpan* out, int32_t max_spans, int32_t* num_spans) {
    int64_t begin, end;
    TRY(session_need_model(dp));
    dynapipe_shard(dp, &begin, &end);
    bool all_have_it = dp->run.zero_stage == 0 || dp->num_replicas == 1;
    if (all_have_it && dp->replica > 0) { return STATUS_OK; }  // the first replica's are the same
    while (begin < end) {
        const TiedGroup* group = next_left_out(dp, begin);
        int64_t until = group != NULL && group->begin < end ? group->begin : end;
        TRY(add_span(out, max_spans, num_spans, begin, until));
        begin = until < end ? group->begin + group->count : end;
    }
    return STATUS_OK;
}

int dynapipe_counted(const Dynapipe* dp, DynapipeSpan* out, int32_t max_spans, int32_t* num_spans) {
    *num_spans = 0;
    return (int)count_values(dp, out, max_spans, num_spans);
}
