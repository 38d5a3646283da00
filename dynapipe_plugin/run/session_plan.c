// session_plan.c -- the next step made in the background: draw a batch, plan it, collate my micro-batches.
#include <stdlib.h>
#include <string.h>

#include "../../util/program.h"
#include "../plan/cost/cost_rank.h"
#include "../plan/planner.h"
#include "session.h"

// A batch that is the same in every step (-a 1): the loader goes back to where it stood at the start.
static Status draw_batch(Dynapipe* dp, SessionStep* step) {
    if (dp->run.overfit) { loader_rewind(dp->train); }
    TRY(loader_next(dp->train, &step->batch, &step->arena));
    if (step->batch.num_samples == 0) {
        return FAIL(STATUS_BAD_OPTION, "-i %s: no sample to train on ---> look at --long-samples and -t",
                    dp->run.train_pattern);
    }
    return STATUS_OK;
}

static Status collate_mine(Dynapipe* dp, SessionStep* step, int64_t step_idx) {
    const Plan* plan = &step->plan;
    step->batches = ARENA_NEW(&step->arena, const DynapipeBatch*, plan->M);
    step->losses = ARENA_NEW(&step->arena, float*, plan->M);
    if (step->batches == NULL || step->losses == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for a step");
    }
    // The seed of the data's order: a run that is resumed goes on with its own.
    CollateParams params = session_collate_params(dp, loader_seed(dp->train), step_idx);
    for (int32_t m = 0; m < plan->M; m++) {
        const PlanMicrobatch* mb = &plan->mbs[m];
        step->computed_tokens += mb->shape.enc_tokens + mb->shape.dec_tokens;
        if (mb->replica != dp->replica) { continue; }
        DynapipeBatch* batch = ARENA_NEW(&step->arena, DynapipeBatch, 1);
        if (batch == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a micro-batch"); }
        TRY(collate(batch, dp->train, &step->batch, plan->sequences + mb->sequence_begin,
                    mb->sequence_end - mb->sequence_begin, plan->segments, &params, &step->arena));
        batch->loss_scale =
            step->batch.supervised_tokens > 0 ? (float)(1.0 / (double)step->batch.supervised_tokens) : 0;
        step->batches[m] = batch;
        step->losses[m] = ARENA_NEW(&step->arena, float, batch->num_rows);
        if (step->losses[m] == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for losses"); }
    }
    return STATUS_OK;
}

static Status make_step(void* ctx, int64_t step_idx, int32_t slot) {
    Dynapipe* dp = ctx;
    SessionStep* step = &dp->slots[slot];
    Arena arena = step->arena;
    arena_reset(&arena);
    *step = (SessionStep){.arena = arena};
    TRY(draw_batch(dp, step));
    PlanRequest request = dp->request;
    if (session_report_shows(dp, step_idx + 1)) { request.one_replica = false; }
    const CostModel* costs;
    step->refit_step = session_refit_plan_with(dp, step_idx, &costs, &request.machine);
    int64_t begin_ns = clock_cpu_ns();
    TRY(plan_make(&step->plan, &request, costs, step->batch.lengths, step->batch.num_samples, &step->arena));
    step->plan_cpu_ns = clock_cpu_ns() - begin_ns;
    step->plan_hashes[0] = plan_hash_decisions(&step->plan);
    step->plan_hashes[1] = plan_hash_replica(&step->plan, dp->replica);
    return collate_mine(dp, step, step_idx);
}

Status session_plan_start(Dynapipe* dp) {
    if (dp->ahead != NULL) { return STATUS_OK; }
    int32_t left = dp->num_steps - dp->next_step;
    int32_t num_ahead = dp->options.plan_before ? left : dp->options.plan_ahead;
    dp->num_slots = num_ahead + 1;
    dp->slots = calloc((size_t)dp->num_slots, sizeof(SessionStep));
    if (dp->slots == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d steps ahead", num_ahead); }
    dp->refit.is_on = dp->refit.is_on && !dp->options.plan_before;
    TRY(session_refit_start(&dp->refit, &dp->costs, dp->request.machine, dp->transport.rank,
                            dp->transport.num_ranks, num_ahead));
    TRY(plan_ahead_start(&dp->ahead, make_step, dp, dp->next_step, dp->num_steps, num_ahead));
    if (dp->options.plan_before) { TRY(plan_ahead_wait_all(dp->ahead)); }
    return STATUS_OK;
}

void session_plan_stop(Dynapipe* dp) {
    plan_ahead_stop(dp->ahead);
    dp->ahead = NULL;
    for (int32_t i = 0; i < dp->num_slots; i++) { arena_free(&dp->slots[i].arena); }
    free(dp->slots);
    dp->slots = NULL;
    dp->num_slots = 0;
    dp->now = NULL;
}

Status session_plan_get(Dynapipe* dp, int32_t step_idx, SessionStep** out) {
    TRY(session_plan_start(dp));
    int32_t slot;
    TRY(plan_ahead_get(dp->ahead, step_idx, &slot));
    *out = &dp->slots[slot];
    return STATUS_OK;
}

int64_t session_arena_limit(const Dynapipe* dp) {
    int64_t limit_bytes = session_machine_limit_bytes(dp);
    if (limit_bytes == 0) { return INT64_MAX; }
    CostRank ranks[PLAN_MAX_STAGES];
    cost_ranks_make(ranks, &dp->costs, &dp->request.placement, dp->num_stages);
    return limit_bytes - cost_rank_state_bytes(&dp->costs, &ranks[dp->stage]);
}

// On a GPU all that plans may ever ask for, at once, so that no step allocates: to grow means to wait until
// the card is idle, and pieces that were freed may not make a larger one. Where somebody else has taken of
// the card since the limit was found, what this step needs, and an eighth, since the next one's plan is
// seldom exactly as large; where memory is limited, what the plan was promised and no more.
static Status alloc_on_device(Dynapipe* dp, int64_t num_bytes) {
    const DynapipeDevice_v1* api = dp->device.api;
    int64_t limit_bytes = session_arena_limit(dp) / PLAN_BUFFER_ALIGN * PLAN_BUFFER_ALIGN;
    int64_t more_bytes = dp->options.memory_limit_bytes > 0 ? 0 : num_bytes / 8 / PLAN_BUFFER_ALIGN;
    int64_t sizes[2] = {limit_bytes >= num_bytes ? limit_bytes : num_bytes,
                        num_bytes + more_bytes * PLAN_BUFFER_ALIGN};
    Status status = STATUS_NO_MEMORY;
    for (int i = 0; i < 2 && status == STATUS_NO_MEMORY; i++) {
        status = api->alloc(dp->device.ctx, &dp->memory, sizes[i]);
        dp->memory_bytes = status == STATUS_OK ? sizes[i] : 0;
    }
    return status;
}

Status session_reserve(Dynapipe* dp, int64_t num_bytes) {
    if (num_bytes <= dp->memory_bytes) { return STATUS_OK; }
    if (num_bytes > session_arena_limit(dp)) {
        return FAIL(
            STATUS_INFEASIBLE,
            "rank %d: %lld bytes beside the model's state are beyond --memory-limit %lld ---> raise it",
            dp->transport.rank, (long long)num_bytes, (long long)session_machine_limit_bytes(dp));
    }
    if (dp->device.api != NULL) {
        session_release(dp);
        return alloc_on_device(dp, num_bytes);
    }
    bool is_there = page_memory_grow(&dp->pages, num_bytes);
    dp->memory = dp->pages.data;
    dp->memory_bytes = dp->pages.num_bytes;
    if (is_there) { return STATUS_OK; }
    return FAIL(STATUS_NO_MEMORY,
                "no memory for %lld bytes of activations ---> give --memory-limit, or a smaller -d",
                (long long)num_bytes);
}

void session_release(Dynapipe* dp) {
    if (dp->device.api != NULL) {
        dp->device.api->release(dp->device.ctx, dp->memory);
    } else {
        page_memory_free(&dp->pages);
    }
    dp->memory = NULL;
    dp->memory_bytes = 0;
}

int dynapipe_position(const Dynapipe* dp, const void** out, size_t* num_bytes) {
    if (dp->now == NULL && dp->resplit.position == NULL) {
        return (int)FAIL(STATUS_OUT_OF_RANGE, "no step has run: there is no position to save");
    }
    Dynapipe* mine = (Dynapipe*)(uintptr_t)dp;  // what is given out, and what is said, is kept there
    Status status = session_verify_wait(mine);
    if (status != STATUS_OK) { return (int)status; }
    *out = dp->now != NULL ? dp->now->batch.position : dp->resplit.position;
    *num_bytes = dp->now != NULL ? dp->now->batch.position_bytes : dp->resplit.position_bytes;
    status = session_refit_position(&mine->refit, out, num_bytes);
    if (status == STATUS_OK) { status = session_resplit_position(mine, out, num_bytes); }
    return (int)(status == STATUS_OK ? session_settings_add(mine, out, num_bytes) : status);
}

int dynapipe_restore(Dynapipe* dp, const void* position, size_t num_bytes, int32_t step) {
    session_plan_stop(dp);
    dp->next_step = dp->first_step = step;
    Status status = session_settings_take(dp, &position, &num_bytes);
    if (status != STATUS_OK) { return (int)status; }
    session_report_goes_on(dp);
    session_resplit_restore(dp, position, &num_bytes);
    status = session_refit_restore(&dp->refit, position, &num_bytes);
    if (status == STATUS_OK) { status = loader_restore(dp->train, position, num_bytes); }
    uint64_t seed = loader_seed(dp->train), option = (uint64_t)dp->options.seed;
    if (status == STATUS_OK && seed != option && dp->run.overfit == 0 && dp->transport.rank == 0) {
        fprintf(stderr,
                "warning: --seed %llu is not used: the run that goes on draws its data by --seed %llu\n  "
                "---> say "
                "--seed %llu; another -o for a new run\n",
                (unsigned long long)option, (unsigned long long)seed, (unsigned long long)seed);
    }
    return (int)status;
}
