// session_eval.c -- validation: forward only, on the stages as they stand.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../plan/problem/shape_rules.h"
#include "../plan/types/mb_shape.h"
#include "session.h"

// --- memory ----------------------------------------------------------------------------------------------

// Tokens of the decoder that go with so many of the encoder: the same part of the longest target, 0 without.
static int32_t target_tokens(const Dynapipe* dp, int32_t num_tokens) {
    int64_t longest = dp->run.max_seq_tokens, part = (int64_t)dp->run.max_target_tokens * num_tokens;
    return (int32_t)((part + longest - 1) / longest);
}

// Of a forward pass, all tokens in one sequence and supervised: the most that so many tokens can need.
static int64_t forward_bytes(const Dynapipe* dp, int32_t num_tokens) {
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
    return executor_forward_bytes(dp->executor, &batch, 1);
}

// The most tokens, up to the longest sequence, whose forward pass --memory-limit allows this rank.
static int32_t most_tokens(const Dynapipe* dp) {
    int64_t limit_bytes = session_arena_limit(dp);
    int32_t fits = 0, too_many = dp->run.max_seq_tokens + 1;
    while (too_many - fits > 1) {
        int32_t middle = fits + (too_many - fits) / 2;
        *(forward_bytes(dp, middle) <= limit_bytes ? &fits : &too_many) = middle;
    }
    return fits;
}

// All ranks agree, so that they cut the same micro-batches: the least of them. A collective, once in a run.
static Status agree_on_tokens(Dynapipe* dp) {
    if (dp->eval_tokens > 0) { return STATUS_OK; }
    if (dp->options.memory_limit_bytes == 0) {
        dp->eval_tokens = dp->run.max_seq_tokens;
        dp->eval_target_tokens = dp->run.max_target_tokens;
        return STATUS_OK;
    }
    int32_t num_ranks = dp->transport.num_ranks;
    double* tokens = calloc((size_t)num_ranks, sizeof *tokens);
    if (tokens == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks); }
    tokens[dp->transport.rank] = most_tokens(dp);
    Status status = collective_all_reduce_sum(&dp->world, tokens, num_ranks);
    int32_t least = dp->run.max_seq_tokens;
    for (int32_t r = 0; r < num_ranks; r++) { least = tokens[r] < least ? (int32_t)tokens[r] : least; }
    free(tokens);
    TRY(status);
    if (least == 0) {
        return FAIL(STATUS_INFEASIBLE,
                    "--memory-limit %lld: not one token of validation fits ---> raise it, or -v 0 -s 0",
                    (long long)dp->options.memory_limit_bytes);
    }
    dp->eval_tokens = least;
    dp->eval_target_tokens = target_tokens(dp, least);
    return STATUS_OK;
}

// --- validation ------------------------------------------------------------------------------------------

// Micro-batches of a validation batch in the order the samples came, dealt to the replicas in turn; ragged,
// unless the model's kernels take padded windows only.
typedef struct {
    DynapipeBatch* batches;
    float** losses;
    int32_t num_batches;
} EvalWork;

// A micro-batch while it is filled.
typedef struct {
    int32_t enc, dec;          // longest
    int32_t enc_pad, dec_pad;  // what they are padded to, where they are
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
    int32_t end = begin + (int32_t)filling->shape.num_seqs;
    PlanSequence* sequences = ARENA_NEW(arena, PlanSequence, end - begin);
    PlanSegment* segments = ARENA_NEW(arena, PlanSegment, end - begin);
    if (sequences == NULL || segments == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for validation"); }
    for (int32_t i = 0; i < end - begin; i++) {
        const PlanSample* sample = &batch->lengths[begin + i];
        segments[i] = (PlanSegment){begin + i, 0, sample->enc_tokens};
        sequences[i] = (PlanSequence){i, i + 1, sample->enc_tokens, sample->dec_tokens};
        if (!dp->request.rules.padded) { continue; }
        sequences[i].enc_tokens = filling->enc_pad;
        sequences[i].dec_tokens = filling->dec_pad;
    }
    DynapipeBatch* out = &work->batches[work->num_batches];
    CollateParams params = session_collate_params(dp, 0, 0);
    TRY(collate(out, dp->val, batch, sequences, end - begin, segments, &params, arena));
    out->token_keys = out->dec_token_keys = NULL;  // nothing is dropped
    work->losses[work->num_batches] = ARENA_NEW(arena, float, out->num_rows);
    if (work->losses[work->num_batches] == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for losses"); }
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
    work->batches = ARENA_NEW(&dp->eval_arena, DynapipeBatch, batch->num_samples);
    work->losses = ARENA_NEW(&dp->eval_arena, float*, batch->num_samples);
    work->num_batches = 0;
    if (work->batches == NULL || work->losses == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for validation");
    }
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

static Status run_forward(Dynapipe* dp, const DynapipeBatch* batches, float** losses, int32_t num_batches) {
    TRY(session_reserve(dp, executor_forward_bytes(dp->executor, batches, num_batches)));
    int32_t rank = dp->transport.rank;
    ExecutorForward forward = {
        .batches = batches,
        .num_batches = num_batches,
        .losses = losses,
        .prev_rank = dp->stage > 0 ? rank - 1 : -1,
        .next_rank = dp->stage < dp->num_stages - 1 ? rank + 1 : -1,
        .arena = dp->memory,
        .arena_bytes = dp->memory_bytes,
    };
    return executor_run_forward(dp->executor, &forward);
}

static void add_losses(const Dynapipe* dp, const EvalWork* work, double* sums, double* rows) {
    if (dp->stage != dp->num_stages - 1) { return; }
    for (int32_t m = 0; m < work->num_batches; m++) {
        for (int32_t i = 0; i < work->batches[m].num_rows; i++) {
            int32_t task = dp->val_task[work->batches[m].row_tasks[i]];
            sums[task] += work->losses[m][i];
            rows[task] += 1;
        }
    }
}

// Of training tokens, a batch takes a third of the time without backward: a run that is to end does so within
// a step's. Ranks wait for each other at a check, so not at every batch.
enum { BATCHES_BETWEEN_CHECKS = 2 };

static Status validate(Dynapipe* dp, int32_t max_batches, double* loss, double* task_loss) {
    if (dp->val == NULL) { return FAIL(STATUS_BAD_OPTION, "no validation data ---> give -j"); }
    TRY(session_need_model(dp));
    TRY(agree_on_tokens(dp));
    double* sums = calloc(2 * (size_t)dp->num_tasks + 1, sizeof(double));
    if (sums == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d tasks", dp->num_tasks); }
    double* rows = sums + dp->num_tasks;
    loader_rewind(dp->val);
    Status status = STATUS_OK;
    for (int32_t b = 0; status == STATUS_OK && (max_batches < 0 || b < max_batches); b++) {
        if (b % BATCHES_BETWEEN_CHECKS == 0) { status = session_stop_agree(dp); }
        if (status != STATUS_OK || dp->stop_signal != 0) { break; }
        arena_reset(&dp->eval_arena);
        LoaderBatch batch;
        EvalWork work;
        status = loader_next(dp->val, &batch, &dp->eval_arena);
        if (status != STATUS_OK || batch.num_samples == 0) { break; }
        status = split_batch(dp, &work, &batch);
        if (status == STATUS_OK) { status = run_forward(dp, work.batches, work.losses, work.num_batches); }
        if (status == STATUS_OK) { add_losses(dp, &work, sums, rows); }
        if (batch.end) { break; }
    }
    if (status == STATUS_OK) { status = collective_all_reduce_sum(&dp->world, sums, 2 * dp->num_tasks); }
    double all_sum = 0, all_rows = 0;
    for (int32_t t = 0; t < dp->num_tasks; t++) {
        all_sum += sums[t];
        all_rows += rows[t];
        if (task_loss != NULL) { task_loss[t] = rows[t] > 0 ? sums[t] / rows[t] : NAN; }
    }
    *loss = all_rows > 0 && dp->stop_signal == 0 ? all_sum / all_rows : NAN;
    free(sums);
    return status;
}

int dynapipe_validate(Dynapipe* dp, int32_t max_batches, double* loss, double* task_loss) {
    return (int)validate(dp, max_batches, loss, task_loss);
}
