// session_model.c -- the model put into the session: what each rank tells of it, compared with the others.
#include <stdlib.h>

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

// bytes: (2, num_ranks) before and behind every rank's blocks.
static Status compare_boundaries(const Dynapipe* dp, const DynapipeBatch* probe, const double* bytes) {
    int32_t num_ranks = dp->transport.num_ranks;
    for (int32_t r = 0; r + 1 < num_ranks; r++) {
        double behind = bytes[num_ranks + r], before = bytes[r + 1];
        bool is_last = r % dp->num_stages == dp->num_stages - 1;
        if (is_last || behind == before) { continue; }
        return FAIL(STATUS_MISMATCH,
                    "ranks %d and %d: of %d + %d tokens, %.0f bytes leave the one's blocks, %.0f enter the "
                    "other's ---> both need the same model, cut as dynapipe_choose_stages() says",
                    r, r + 1, probe->num_tokens, probe->num_dec_tokens, behind, before);
    }
    return STATUS_OK;
}

// What leaves a stage is what the next one takes; else a message of one length would meet a receive of
// another. A collective, which fails on all ranks alike.
static Status check_boundaries(Dynapipe* dp, const DynapipeModel_v1* api, void* model) {
    static const int32_t tokens[2][2] = {{48, 176}, {1009, 97}};
    int32_t num_ranks = dp->transport.num_ranks, me = dp->transport.rank;
    Status status = STATUS_OK;
    for (int i = 0; i < 2 && status == STATUS_OK && dp->num_stages > 1; i++) {
        DynapipeBatch probe = probe_batch(dp, tokens[i][0], tokens[i][1]);
        double* bytes = calloc(2 * (size_t)num_ranks, sizeof *bytes);
        if (bytes == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks); }
        bytes[me] = dp->stage > 0 ? (double)api->boundary_bytes(model, &probe, 0) : 0;
        bool is_last = dp->stage == dp->num_stages - 1;
        bytes[num_ranks + me] = is_last ? 0 : (double)api->boundary_bytes(model, &probe, 1);
        status = collective_all_reduce_sum(&dp->world, bytes, 2 * num_ranks);
        if (status == STATUS_OK) { status = compare_boundaries(dp, &probe, bytes); }
        free(bytes);
    }
    return status;
}

// --- attaching -------------------------------------------------------------------------------------------

// A rank has one range of blocks: the first and the last.
enum { NUM_RANGES = 1 };

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
    if (dp->links == NULL) {
        return FAIL(STATUS_BAD_OPTION,
                    "a model before its stage is known ---> dynapipe_choose_stages() comes before "
                    "dynapipe_attach()");
    }
    if (idx < 0 || idx >= NUM_RANGES) {
        return FAIL(STATUS_OUT_OF_RANGE, "a model for range %d: this rank has %d ---> 0 <= idx < *num_ranges",
                    idx, NUM_RANGES);
    }
    if (dp->api != NULL) {
        return FAIL(STATUS_OUT_OF_RANGE, "range %d has a model already ---> attach each range once", idx);
    }
    TRY(interface_check_model(api));
    return check_params(idx, params);
}

static Status attach(Dynapipe* dp, const DynapipeModel_v1* api, void* model,
                     const DynapipeParams_v1* params) {
    int64_t timeout_ns = (int64_t)dp->options.comm_timeout_s * 1000000000;
    dp->params = *params;
    TRY(check_boundaries(dp, api, model));
    TRY(tied_groups_open(&dp->tied, &dp->world, dp->num_stages, params));
    dp->params.num_tied = 0;
    dp->params.tied = NULL;
    TRY(session_sums_open(dp));
    TRY(executor_create(&dp->executor, api, model, dp->links, timeout_ns));
    executor_use_device(dp->executor, dp->device);
    dp->api = api;
    dp->model = model;
    return STATUS_OK;
}

int dynapipe_attach(Dynapipe* dp, int32_t idx, const DynapipeModel_v1* api, void* model,
                    const DynapipeParams_v1* params) {
    Status status = check_attach(dp, idx, api, params);
    return (int)(status == STATUS_OK ? attach(dp, api, model, params) : status);
}

void session_model_detach(Dynapipe* dp) {
    executor_free(dp->executor);
    dp->executor = NULL;
    sums_close(&dp->sums);
    tied_groups_free(&dp->tied);
    session_release(dp);
    dp->params = (DynapipeParams_v1){0};
    dp->api = NULL;
    dp->model = NULL;
    dp->eval_tokens = 0;  // of another stage
}

Status session_need_model(const Dynapipe* dp) {
    if (dp->api != NULL) { return STATUS_OK; }
    return FAIL(STATUS_BAD_OPTION,
                "rank %d: no model for range 0 of %d ---> dynapipe_attach() for each range that "
                "dynapipe_choose_stages() gave",
                dp->transport.rank, NUM_RANGES);
}

// --- what is counted -------------------------------------------------------------------------------------

// The first stage of those with copies counts them.
static bool counts_group(const Dynapipe* dp, const TiedGroup* group) {
    uint64_t stages = dp->tied.holders[group->holders].stages;
    return (stages & ((UINT64_C(1) << dp->stage) - 1)) == 0;
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
        return FAIL(STATUS_OUT_OF_RANGE, "room for %d spans ---> one more than the range has tied groups",
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
