// session_step.c -- one training step: run my instruction list, then sum gradients; and validation.
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../plan/problem.h"
#include "../plan/types.h"
#include "session.h"
#include "../../util/program.h"

// First the copies of a tied parameter become one sum, group after group (sums.h), then every parameter is
// summed over the replicas: its owner's shard everywhere, the rest too where the optimizer is not shared.
static Status reduce_gradients(Dynapipe* dp) {
    const DynapipeParams_v1* params = &dp->params;
    const Sums* sums = &dp->sums;
    const DynapipeType type = (DynapipeType)params->grad_type;
    const int32_t bytes_per_value = collective_type_bytes(type);
    unsigned char* grads = (unsigned char*)params->grads;
    for (int32_t i = 0; i < dp->tied.num_groups; i++) {
        const TiedGroup* group = &dp->tied.groups[i];
        unsigned char* copy = grads + group->begin * bytes_per_value;
        TRY(sums->api->sum_copies(sums->ctx, group->holders, copy, group->count, type));
    }
    if (dp->num_replicas == 1) { return STATUS_OK; }
    TRY(sums->api->reduce_scatter(sums->ctx, grads, params->num_params, type));
    if (dp->run.zero_stage > 0) { return STATUS_OK; }
    return sums->api->all_gather(sums->ctx, grads, params->num_params, bytes_per_value);
}

// Sums queued on a device follow the last job at once, and the host waits for all of it together.
static Status run_and_reduce(Dynapipe* dp) {
    TRY(executor_start(dp->executor));
    if (dp->sums.api->is_queued) {
        TRY(executor_queue_begin(dp->executor, TRACE_REDUCE));
        TRY(reduce_gradients(dp));
        TRY(executor_queue_end(dp->executor));
        return executor_finish(dp->executor);
    }
    TRY(executor_finish(dp->executor));
    int64_t reduce_begin_ns = clock_now_ns();
    TRY(reduce_gradients(dp));
    executor_trace_add(dp->executor, TRACE_REDUCE, reduce_begin_ns, clock_now_ns());
    return STATUS_OK;
}

// All ranks run the same plan, and expect the messages that the others send.
static Status agree(Dynapipe* dp, const ExecutorStep* run, const SessionStep* step) {
    StepClaim claim = {.plan_hash = step->plan_hashes[0], .replica_hash = step->plan_hashes[1]};
    TRY(executor_prepare_step(dp->executor, run, &claim));
    return step_agree(&dp->world, dp->num_stages, &claim, dp->next_step + 1);
}

static Status run_pipeline(Dynapipe* dp) {
    dp->ranges[0].api->zero_gradients(dp->ranges[0].model);
    Status status = run_and_reduce(dp);
    if (status == STATUS_OK || dp->device.api == NULL) { return status; }
    // Every rank prints its position, since the one that failed first is often not at fault, and at once,
    // since ending work on a device may end the program.
    char message[STATUS_MESSAGE_BYTES], position[512];
    snprintf(message, sizeof message, "%s", status_message());
    executor_position(dp->executor, position, sizeof position);
    fprintf(stderr, "[rank %d] step %d, %s: %s\n", dp->transport.rank, dp->next_step + 1, position, message);
    fflush(stderr);
    session_device_abort(dp);
    return FAIL(status, "%s", message);
}

// Where the last job ended: sums follow it.
static int64_t pipeline_end_ns(const TraceRank* trace) {
    int64_t end_ns = trace->begin_ns;
    for (int32_t i = 0; i < trace->num_events; i++) {
        const TraceEvent* event = &trace->events[i];
        if (event->kind < INSTR_COUNT && event->end_ns > end_ns) { end_ns = event->end_ns; }
    }
    return end_ns;
}

// sums: losses and then numbers of rows of each task, of the rows whose losses I have. task_of: NULL: the
// batch's own numbers.
static void add_losses(const Dynapipe* dp, double* sums, const DynapipeBatch* batch, const float* losses,
                       const int32_t* task_of) {
    int32_t begin, end;
    executor_loss_rows(&dp->request.placement, dp->stage, batch->num_rows, &begin, &end);
    for (int32_t i = begin; i < end; i++) {
        int32_t task = task_of != NULL ? task_of[batch->row_tasks[i]] : batch->row_tasks[i];
        sums[task] += losses[i];
        sums[dp->num_tasks + task] += 1;
    }
}

// Of all ranks: means of each task (NaN: no row; NULL: not wanted) and of all rows. weights: of a row of each
// task; NULL: 1.
static Status mean_losses(Dynapipe* dp, double* sums, const double* weights, double* loss,
                          double* task_loss) {
    const double* rows = sums + dp->num_tasks;
    double sum = 0, num_rows = 0;
    TRY(collective_all_reduce_sum(&dp->world, sums, 2 * dp->num_tasks));
    for (int32_t t = 0; t < dp->num_tasks; t++) {
        sum += sums[t] * (weights != NULL ? weights[t] : 1);
        num_rows += rows[t] * (weights != NULL ? weights[t] : 1);
        if (task_loss != NULL) { task_loss[t] = rows[t] > 0 ? sums[t] / rows[t] : NAN; }
    }
    *loss = num_rows > 0 ? sum / num_rows : NAN;
    return STATUS_OK;
}

static Status take_losses(Dynapipe* dp, const SessionStep* step, DynapipeStep_v1* out) {
    memset(dp->task_sum, 0, 2 * sizeof(double) * (size_t)dp->num_tasks);
    for (int32_t m = 0; m < step->plan.M; m++) {
        if (step->batches[m] == NULL) { continue; }
        add_losses(dp, dp->task_sum, step->batches[m], step->losses[m], NULL);
    }
    *out = (DynapipeStep_v1){
        .supervised_tokens = step->batch.supervised_tokens,
        .total_tokens = step->batch.num_tokens,
        .computed_tokens = step->computed_tokens,
        .task_loss = dp->task_loss,
    };
    TRY(mean_losses(dp, dp->task_sum, NULL, &out->loss, dp->task_loss));
    if (isnan(out->loss) && out->supervised_tokens == 0) { out->loss = 0; }
    for (int32_t i = 0; i < step->batch.num_samples; i++) {
        const int64_t enc = step->batch.lengths[i].enc_tokens, dec = step->batch.lengths[i].dec_tokens;
        out->dec_tokens += dec;
        out->squares += enc * enc;
        out->dec_squares += dec * dec;
        out->cross_products += enc * dec;
    }
    dp->last = *out;
    return STATUS_OK;
}

static void warn_of_bound(Dynapipe* dp, const Plan* plan) {
    if (plan->bound_over_ns == 0 || dp->says_bound || dp->transport.rank != 0) { return; }
    dp->says_bound = true;
    fprintf(
        stderr,
        "warning: step %d: the planner's lower bound lies %lld ns above the step it predicts, %lld ns: the "
        "plan is sound, the bound is not ---> please report it, with the file of --debug dump-plan and the "
        "costs\n",
        dp->next_step + 1, (long long)plan->bound_over_ns, (long long)plan->makespan_ns);
}

int dynapipe_step(Dynapipe* dp, DynapipeStep_v1* out) {
    SessionStep* step;
    TRY(session_need_model(dp));
    TRY(session_resplit_check(dp));
    TRY(sample_verify_damage(dp->verify));
    if (dp->next_step >= dp->num_steps) {
        return FAIL(STATUS_OUT_OF_RANGE, "step %d: the run has %d steps", dp->next_step + 1, dp->num_steps);
    }
    dp->step_begin_ns = clock_now_ns();
    TRY(session_plan_get(dp, &step));
    dp->now = step;
    TRY(session_reserve(dp, step->plan.ranks[dp->transport.rank].arena_bytes));
    const ExecutorStep run = {.plan = &step->plan,
                              .batches = step->batches,
                              .losses = step->losses,
                              .arena = dp->memory,
                              .arena_bytes = dp->memory_bytes};
    TRY(agree(dp, &run, step));
    warn_of_bound(dp, &step->plan);
    int64_t pipeline_begin_ns = clock_now_ns();
    TRY(run_pipeline(dp));
    dp->pipeline_ns = pipeline_end_ns(executor_trace(dp->executor)) - pipeline_begin_ns;
    dp->next_step++;
    if (dp->next_step == dp->num_steps) { TRY(session_verify_wait(dp)); }
    TRY(take_losses(dp, step, out));
    session_refit_note(&dp->refit, &step->plan, executor_trace(dp->executor), step->refit_slow);
    TRY(session_refit_agree(&dp->refit, &dp->world, dp->next_step));
    dp->step_end_ns = clock_now_ns();
    return STATUS_OK;
}

void dynapipe_shard(const Dynapipe* dp, int64_t* begin, int64_t* end) {
    bool shared = dp->run.zero_stage > 0 && dp->num_replicas > 1;
    int64_t n = dp->params.num_params;
    *begin = shared ? collective_slice(n, dp->num_replicas, dp->replica) : 0;
    *end = shared ? collective_slice(n, dp->num_replicas, dp->replica + 1) : n;
}

int dynapipe_share_params(Dynapipe* dp) {
    TRY(session_need_model(dp));
    int64_t begin_ns = clock_now_ns();
    executor_trace_add(dp->executor, TRACE_UPDATE, dp->step_end_ns, begin_ns);
    if (dp->run.zero_stage == 0 || dp->num_replicas == 1) { return 0; }
    Status status = dp->sums.api->all_gather(dp->sums.ctx, dp->params.params, dp->params.num_params,
                                             collective_type_bytes((DynapipeType)dp->params.param_type));
    executor_trace_add(dp->executor, TRACE_SHARE, begin_ns, clock_now_ns());
    return (int)status;
}

// --- validation: forward only, on the present stages -------------------------------------------------------

// Tokens of the decoder for this many of the encoder: the same fraction of the longest target, 0 without.
static int32_t target_tokens(const Dynapipe* dp, int32_t num_tokens) {
    int64_t longest = dp->run.max_seq_tokens, part = (int64_t)dp->run.max_target_tokens * num_tokens;
    return (int32_t)((part + longest - 1) / longest);
}

static ExecutorPass eval_pass(const Dynapipe* dp, const DynapipeBatch* batches, int32_t num_batches) {
    return (ExecutorPass){.placement = &dp->request.placement,
                          .num_stages = dp->num_stages,
                          .batches = batches,
                          .num_batches = num_batches};
}

// Bytes of a forward pass with all tokens in one sequence and supervised: the largest for that many tokens.
static int64_t forward_bytes(const Dynapipe* dp, int32_t num_tokens) {
    int64_t num_bytes;
    int32_t num_targets = target_tokens(dp, num_tokens);
    DynapipeBatch batch = {
        .num_seqs = 1,
        .num_tokens = num_tokens,
        .num_rows = dp->run.max_target_tokens > 0 ? num_targets : num_tokens,
        .max_seq_tokens = num_tokens,
        .num_squares = (int64_t)num_tokens * num_tokens,
        .num_dec_tokens = num_targets,
        .max_dec_seq_tokens = num_targets,
        .num_dec_squares = (int64_t)num_targets * num_targets,
        .num_cross = (int64_t)num_tokens * num_targets,
    };
    ExecutorPass pass = eval_pass(dp, &batch, 1);
    executor_pass_bytes(&num_bytes, NULL, dp->executor, &pass);
    return num_bytes;
}

// The most tokens, up to the longest sequence, whose forward pass --memory-limit allows every rank: so they
// cut the same microbatches. A collective, once in a run.
static Status agree_on_tokens(Dynapipe* dp) {
    if (dp->eval_tokens > 0) { return STATUS_OK; }
    int32_t fits = dp->run.max_seq_tokens;
    if (dp->options.memory_limit_bytes > 0) {
        int64_t limit_bytes = session_arena_limit(dp);
        int32_t too_many = fits + 1;
        for (fits = 0; too_many - fits > 1;) {
            int32_t middle = fits + (too_many - fits) / 2;
            *(forward_bytes(dp, middle) <= limit_bytes ? &fits : &too_many) = middle;
        }
        double most = -fits;
        TRY(session_most(dp, &most));
        fits = (int32_t)-most;
    }
    if (fits == 0) {
        return FAIL(STATUS_INFEASIBLE,
                    "--memory-limit %lld: not one token of validation fits ---> raise it, or -v 0 -s 0",
                    (long long)dp->options.memory_limit_bytes);
    }
    dp->eval_tokens = fits;
    dp->eval_target_tokens = target_tokens(dp, fits);
    return STATUS_OK;
}

// --- validation batches ------------------------------------------------------------------------------------

// Microbatches of a validation batch in the order of its samples, distributed over the replicas in turn;
// ragged, unless the model's kernels take only padded windows.
typedef struct {
    DynapipeBatch* batches;
    float** losses;
    int32_t num_batches;
} EvalWork;

// A microbatch while it is filled.
typedef struct {
    int32_t enc, dec;          // longest
    int32_t enc_pad, dec_pad;  // padded lengths, where they are padded
    MbShape shape;
} Filling;

static Filling filling_with(const Dynapipe* dp, Filling filling, const PlanSample* sample) {
    const ShapeRules* rules = &dp->request.rules;
    int64_t num = filling.shape.num_seqs + 1;
    if (sample->enc_tokens > filling.enc) { filling.enc = sample->enc_tokens; }
    if (sample->dec_tokens > filling.dec) { filling.dec = sample->dec_tokens; }
    if (!rules->padded) {
        mb_shape_add(&filling.shape, sample->enc_tokens, sample->dec_tokens, 0);
        return filling;
    }
    filling.enc_pad = shape_rules_pad(rules, filling.enc, num, dp->run.max_seq_tokens);
    filling.dec_pad = shape_rules_pad(rules, filling.dec, num, dp->run.max_target_tokens);
    filling.shape = (MbShape){0};
    for (int64_t i = 0; i < num; i++) { mb_shape_add(&filling.shape, filling.enc_pad, filling.dec_pad, 0); }
    return filling;
}

static bool filling_fits(const Dynapipe* dp, const Filling* filling) {
    return filling->shape.enc_tokens <= dp->eval_tokens &&
           filling->shape.dec_tokens <= dp->eval_target_tokens &&
           shape_rules_allow(&dp->request.rules, &filling->shape);
}

static Status add_micro_batch(Dynapipe* dp, EvalWork* work, const LoaderBatch* batch, int32_t begin,
                              const Filling* filling) {
    Arena* arena = &dp->eval_arena;
    const bool is_padded = dp->request.rules.padded;
    int32_t num_seqs = (int32_t)filling->shape.num_seqs;
    PlanSequence* sequences;
    PlanSegment* segments;
    ARENA_TRY_NEW(sequences, arena, PlanSequence, num_seqs);
    ARENA_TRY_NEW(segments, arena, PlanSegment, num_seqs);
    for (int32_t i = 0; i < num_seqs; i++) {
        const PlanSample* sample = &batch->lengths[begin + i];
        segments[i] = (PlanSegment){begin + i, 0, sample->enc_tokens};
        sequences[i] = (PlanSequence){i, i + 1, is_padded ? filling->enc_pad : sample->enc_tokens,
                                      is_padded ? filling->dec_pad : sample->dec_tokens};
    }
    DynapipeBatch* out = &work->batches[work->num_batches];
    CollateParams params = session_collate_params(dp, 0, 0);
    TRY(collate(out, dp->val, batch, sequences, num_seqs, segments, &params, arena));
    out->token_keys = out->dec_token_keys = NULL;  // nothing is dropped
    ARENA_TRY_NEW(work->losses[work->num_batches], arena, float, out->num_rows);
    work->num_batches++;
    return STATUS_OK;
}

static Status check_fits(const Dynapipe* dp, const PlanSample* sample) {
    Filling alone = filling_with(dp, (Filling){0}, sample);
    if (filling_fits(dp, &alone)) { return STATUS_OK; }
    if (!shape_rules_allow(&dp->request.rules, &alone.shape)) {
        char words[SHAPE_WORDS];
        shape_rules_say(words, &dp->request.rules, &alone.shape);
        return FAIL(STATUS_INFEASIBLE, "-j: a sample of %d + %d tokens: %s ---> a smaller -t, or -v 0",
                    sample->enc_tokens, sample->dec_tokens, words);
    }
    char what[64], room[64];
    bool has_decoder = dp->run.max_target_tokens > 0;
    int32_t enc = (int32_t)alone.shape.enc_tokens, dec = (int32_t)alone.shape.dec_tokens;
    snprintf(what, sizeof what, has_decoder ? "%d + %d" : "%d", enc, dec);
    snprintf(room, sizeof room, has_decoder ? "%d + %d" : "%d", dp->eval_tokens, dp->eval_target_tokens);
    return FAIL(STATUS_INFEASIBLE,
                "-j: a sample of %s tokens, but --memory-limit %lld leaves room for %s ---> raise it, "
                "a smaller -t, or -v 0",
                what, (long long)dp->options.memory_limit_bytes, room);
}

static Status split_batch(Dynapipe* dp, EvalWork* work, const LoaderBatch* batch) {
    ARENA_TRY_NEW(work->batches, &dp->eval_arena, DynapipeBatch, batch->num_samples);
    ARENA_TRY_NEW(work->losses, &dp->eval_arena, float*, batch->num_samples);
    work->num_batches = 0;
    int32_t mb_idx = 0;
    for (int32_t begin = 0, end; begin < batch->num_samples; begin = end) {
        TRY(check_fits(dp, &batch->lengths[begin]));
        Filling filling = filling_with(dp, (Filling){0}, &batch->lengths[begin]);
        for (end = begin + 1; end < batch->num_samples; end++) {
            Filling grown = filling_with(dp, filling, &batch->lengths[end]);
            if (!filling_fits(dp, &grown)) { break; }
            filling = grown;
        }
        if (mb_idx++ % dp->num_replicas == dp->replica) {
            TRY(add_micro_batch(dp, work, batch, begin, &filling));
        }
    }
    return STATUS_OK;
}

static Status run_forward(Dynapipe* dp, const EvalWork* work, double* sums) {
    int64_t num_bytes;
    ExecutorPass pass = eval_pass(dp, work->batches, work->num_batches);
    executor_pass_bytes(&num_bytes, NULL, dp->executor, &pass);
    TRY(session_reserve(dp, num_bytes));
    pass.losses = work->losses;
    pass.arena = dp->memory;
    pass.arena_bytes = dp->memory_bytes;
    TRY(executor_run_pass(dp->executor, &pass));
    for (int32_t m = 0; m < work->num_batches; m++) {
        add_losses(dp, sums, &work->batches[m], work->losses[m], dp->val_task);
    }
    return STATUS_OK;
}

// In training tokens, a batch takes a third of the time without backward: a run that is told to end does so
// within the time of a step. Ranks wait for each other at a check, so not at every batch.
enum { BATCHES_BETWEEN_CHECKS = 2 };

static Status run_batches(Dynapipe* dp, double* sums) {
    for (int32_t b = 0;; b++) {
        LoaderBatch batch;
        EvalWork work = {0};
        if (b % BATCHES_BETWEEN_CHECKS == 0) { TRY(session_stop_agree(dp)); }
        if (dp->stop_signal != 0) { break; }
        arena_reset(&dp->eval_arena);
        TRY(loader_next(dp->val, &batch, &dp->eval_arena));
        if (batch.num_samples == 0) { break; }
        TRY(split_batch(dp, &work, &batch));
        TRY(run_forward(dp, &work, sums));
        if (batch.end) { break; }
    }
    return STATUS_OK;
}

// A task counts as in all of the validation data, however few of its samples are picked.
static void weigh_tasks(const Dynapipe* dp, double* weights) {
    const LoaderInfo* info = loader_info(dp->val);
    for (int32_t v = 0; v < info->num_tasks; v++) {
        bool any = info->task_picked[v] > 0;
        weights[dp->val_task[v]] = any ? (double)info->task_samples[v] / (double)info->task_picked[v] : 0;
    }
}

int dynapipe_validate(Dynapipe* dp, int32_t max_samples, double* loss, double* task_loss) {
    if (dp->val == NULL) { return (int)FAIL(STATUS_BAD_OPTION, "no validation data ---> give -j"); }
    double* sums = (double*)calloc(3 * (size_t)dp->num_tasks + 1, sizeof(double));
    Status status = sums != NULL ? session_need_model(dp)
                                 : FAIL(STATUS_NO_MEMORY, "no memory for %d tasks", dp->num_tasks);
    if (status == STATUS_OK) { status = agree_on_tokens(dp); }
    if (status == STATUS_OK) {
        dp->num_validated = loader_pick(dp->val, max_samples);
        weigh_tasks(dp, sums + 2 * dp->num_tasks);
        status = run_batches(dp, sums);
    }
    if (status == STATUS_OK) { status = mean_losses(dp, sums, sums + 2 * dp->num_tasks, loss, task_loss); }
    if (dp->stop_signal != 0) { *loss = NAN; }
    free(sums);
    return (int)status;
}
