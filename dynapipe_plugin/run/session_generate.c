// session_generate.c -- greedy answers to validation samples, many at a time, a share on each replica; keys
// and values of earlier tokens stay in a cache on every stage.
#include <stdlib.h>
#include <string.h>

#include "session.h"

enum { MOST_SLOTS = 64, PREFILL_TOKENS = 4096 };

// One replica's share of the samples, processed `num_slots` at a time.
typedef struct {
    Dynapipe* dp;
    DynapipeAnswer_v1* answers;  // [num_samples], of all replicas
    int32_t num_samples, max_tokens;
    bool has_decoder;
    int32_t longest_prompt;  // of the whole list
    int32_t num_slots, prefill_tokens;
    DynapipeCache cache;  // its memory follows the arena of a call
    int64_t call_bytes;
    // one call: arrays for num_slots sequences
    int32_t *tokens, *positions, *cu_seqlens, *dec_tokens, *dec_positions, *dec_cu_seqlens;
    int32_t *slots, *num_before, *num_enc, *next;
    int32_t* sample_of;  // [num_slots] the answer that a slot generates
} Generation;

static Status no_memory(void) {
    return FAIL(STATUS_NO_MEMORY, "no memory for answers ---> a smaller -g, or -s 0");
}

// --- memory ----------------------------------------------------------------------------------------------

// Decoder-only: prompt and answer are one sequence, as long as the model takes.
static Status size_cache(Generation* g, int32_t num_slots, int64_t* total_bytes) {
    const Dynapipe* dp = g->dp;
    int32_t together = g->longest_prompt + g->max_tokens;
    int32_t most = together < dp->run.max_seq_tokens ? together : dp->run.max_seq_tokens;
    g->cache.num_slots = num_slots;
    g->cache.max_tokens = g->has_decoder ? g->max_tokens + 1 : most;
    g->cache.max_enc_tokens = g->has_decoder ? g->longest_prompt : 0;
    g->prefill_tokens = num_slots * g->longest_prompt;
    int32_t least = g->longest_prompt > PREFILL_TOKENS ? g->longest_prompt : PREFILL_TOKENS;
    if (g->prefill_tokens > least) { g->prefill_tokens = least; }
    DynapipeBatch batch = {.num_seqs = num_slots,
                           .num_tokens = g->prefill_tokens,
                           .num_rows = num_slots,
                           .max_seq_tokens = g->longest_prompt,
                           .num_squares = (int64_t)g->prefill_tokens * g->longest_prompt,
                           .num_dec_tokens = g->has_decoder ? num_slots : 0,
                           .max_dec_seq_tokens = g->has_decoder ? 1 : 0,
                           .num_dec_squares = g->has_decoder ? num_slots : 0,
                           .num_cross = g->has_decoder ? g->prefill_tokens : 0};
    ExecutorPass pass = {.placement = &dp->request.placement,
                         .num_stages = dp->num_stages,
                         .batches = &batch,
                         .num_batches = 1,
                         .cache = &g->cache};
    *total_bytes = 0;
    TRY(executor_pass_bytes(&g->call_bytes, total_bytes, dp->executor, &pass));
    *total_bytes += g->call_bytes;
    return STATUS_OK;
}

// As many slots as fit in every rank's memory. A collective.
static Status choose_slots(Generation* g) {
    Dynapipe* dp = g->dp;
    int32_t most = (g->num_samples + dp->num_replicas - 1) / dp->num_replicas;
    int32_t num_slots = most < MOST_SLOTS ? most : MOST_SLOTS;
    for (; num_slots > 0; num_slots /= 2) {
        int64_t total_bytes;
        TRY(size_cache(g, num_slots, &total_bytes));
        if (total_bytes <= session_arena_limit(dp)) { break; }
    }
    double least = -num_slots;
    TRY(session_most(dp, &least));
    num_slots = (int32_t)-least;
    if (num_slots == 0) {
        return FAIL(STATUS_INFEASIBLE,
                    "--memory-limit %lld: not one answer fits ---> raise it, or -s 0 and --answers 0",
                    (long long)dp->options.memory_limit_bytes);
    }
    g->num_slots = num_slots;
    int64_t needed_bytes;
    TRY(size_cache(g, num_slots, &needed_bytes));
    TRY(session_reserve(dp, needed_bytes));
    g->cache.memory = (unsigned char*)dp->memory + g->call_bytes;
    return STATUS_OK;
}

static Status allocate(Generation* g) {
    Arena* arena = &g->dp->eval_arena;
    int32_t T = g->prefill_tokens + 1, B = g->num_slots + 1;
    int32_t** arrays[] = {&g->tokens,        &g->positions,      &g->cu_seqlens, &g->dec_tokens,
                          &g->dec_positions, &g->dec_cu_seqlens, &g->slots,      &g->num_before,
                          &g->num_enc,       &g->next,           &g->sample_of};
    for (int i = 0; i < 11; i++) {
        *arrays[i] = ARENA_NEW(arena, int32_t, i < 2 ? T : B);
        if (*arrays[i] == NULL) { return no_memory(); }
    }
    return STATUS_OK;
}

// --- one call of the pipeline ----------------------------------------------------------------------------

typedef struct {
    int32_t num_seqs, num_tokens, num_dec_tokens, longest;
    int64_t num_squares, num_cross;  // of the windows of this call, without the cache
} Call;

static void call_begin(Generation* g, Call* call) {
    *call = (Call){0};
    g->cu_seqlens[0] = g->dec_cu_seqlens[0] = 0;
}

// `num_tokens` tokens of a slot: the only side's, or the encoder's.
static void call_add_prompt(Generation* g, Call* call, int32_t slot) {
    const DynapipeAnswer_v1* answer = &g->answers[g->sample_of[slot]];
    for (int32_t i = 0; i < answer->num_prompt; i++) {
        g->tokens[call->num_tokens] = answer->prompt[i];
        g->positions[call->num_tokens++] = i;
    }
    if (answer->num_prompt > call->longest) { call->longest = answer->num_prompt; }
    g->cu_seqlens[call->num_seqs + 1] = call->num_tokens;
}

static int32_t start_token(const Loader* loader) {
    int32_t token = loader_info(loader)->pad_token;
    return token >= 0 ? token : loader_info(loader)->eot_token;
}

// The last token (an encoder-decoder's first: its start).
static void call_add_token(Generation* g, Call* call, int32_t slot) {
    const DynapipeAnswer_v1* answer = &g->answers[g->sample_of[slot]];
    int32_t n = answer->num_answer;
    int32_t token = n > 0 ? answer->answer[n - 1] : start_token(g->dp->val);
    int32_t position = g->has_decoder ? n : answer->num_prompt + n - 1;
    int32_t* count = g->has_decoder ? &call->num_dec_tokens : &call->num_tokens;
    (g->has_decoder ? g->dec_tokens : g->tokens)[*count] = token;
    (g->has_decoder ? g->dec_positions : g->positions)[(*count)++] = position;
    (g->has_decoder ? g->dec_cu_seqlens : g->cu_seqlens)[call->num_seqs + 1] = *count;
    if (!g->has_decoder && call->longest < 1) { call->longest = 1; }
}

static void call_add(Generation* g, Call* call, int32_t slot, bool with_prompt) {
    const DynapipeAnswer_v1* answer = &g->answers[g->sample_of[slot]];
    g->slots[call->num_seqs] = slot;
    g->num_enc[call->num_seqs] = g->has_decoder ? answer->num_prompt : 0;
    g->num_before[call->num_seqs] = g->has_decoder ? answer->num_answer
                                    : with_prompt  ? 0
                                                   : answer->num_prompt + answer->num_answer - 1;
    g->cu_seqlens[call->num_seqs + 1] = call->num_tokens;
    if (with_prompt) { call_add_prompt(g, call, slot); }
    if (!with_prompt || g->has_decoder) { call_add_token(g, call, slot); }
    int64_t num_new = call->num_tokens - g->cu_seqlens[call->num_seqs];
    call->num_squares += num_new * num_new;
    call->num_cross += g->has_decoder ? num_new : 0;  // of the decoder, one token each
    call->num_seqs++;
}

// The next tokens of the call's sequences, on every rank of the replica.
static Status call_run(Generation* g, const Call* call) {
    Dynapipe* dp = g->dp;
    DynapipeBatch batch = {.num_seqs = call->num_seqs,
                           .num_tokens = call->num_tokens,
                           .num_rows = call->num_seqs,
                           .max_seq_tokens = call->longest,
                           .num_squares = call->num_squares,
                           .cu_seqlens = g->cu_seqlens,
                           .tokens = g->tokens,
                           .positions = g->positions,
                           .num_dec_tokens = call->num_dec_tokens,
                           .max_dec_seq_tokens = call->num_dec_tokens > 0 ? 1 : 0,
                           .num_dec_squares = call->num_dec_tokens,
                           .num_cross = call->num_cross,
                           .dec_cu_seqlens = g->dec_cu_seqlens,
                           .dec_tokens = g->dec_tokens,
                           .dec_positions = g->dec_positions};
    DynapipeCache cache = g->cache;
    cache.slots = g->slots;
    cache.num_before = g->num_before;
    cache.num_enc = g->num_enc;
    ExecutorPass pass = {.placement = &dp->request.placement,
                         .num_stages = dp->num_stages,
                         .batches = &batch,
                         .num_batches = 1,
                         .cache = &cache,
                         .next = g->next,
                         .arena = dp->memory,
                         .arena_bytes = g->call_bytes};
    TRY(executor_run_pass(dp->executor, &pass));
    return collective_broadcast(&dp->pipeline, g->next, sizeof(int32_t) * (size_t)call->num_seqs,
                                session_last_stage(dp));
}

// Is the slot's answer complete with this token?
static bool add_answer(Generation* g, int32_t slot, int32_t token) {
    DynapipeAnswer_v1* answer = &g->answers[g->sample_of[slot]];
    if (token == loader_info(g->dp->val)->eot_token) { return true; }
    ((int32_t*)(uintptr_t)answer->answer)[answer->num_answer++] = token;
    bool full = !g->has_decoder && answer->num_prompt + answer->num_answer > g->cache.max_tokens;
    return full || answer->num_answer == g->max_tokens;
}

// --- all answers of a replica ----------------------------------------------------------------------------

// Runs the call and keeps the unfinished slots: `active` slots in `going`, *num_going of them.
static Status call_finish(Generation* g, const Call* call, int32_t* going, int32_t* num_going) {
    if (call->num_seqs == 0) { return STATUS_OK; }
    TRY(call_run(g, call));
    for (int32_t b = 0; b < call->num_seqs; b++) {
        if (!add_answer(g, g->slots[b], g->next[b])) { going[(*num_going)++] = g->slots[b]; }
    }
    return STATUS_OK;
}

// Samples begin .. end (one a slot): the prompts in calls of bounded size, then token by token.
static Status answer_together(Generation* g, const int32_t* samples, int32_t num) {
    int32_t* going = ARENA_NEW(&g->dp->eval_arena, int32_t, num);
    if (going == NULL) { return no_memory(); }
    int32_t num_going = 0;
    Call call;
    call_begin(g, &call);
    for (int32_t slot = 0; slot < num; slot++) {
        g->sample_of[slot] = samples[slot];
        if (call.num_tokens + g->answers[samples[slot]].num_prompt > g->prefill_tokens) {
            TRY(call_finish(g, &call, going, &num_going));
            call_begin(g, &call);
        }
        call_add(g, &call, slot, true);
    }
    TRY(call_finish(g, &call, going, &num_going));
    while (num_going > 0) {
        int32_t n = num_going;
        call_begin(g, &call);
        for (int32_t i = 0; i < n; i++) { call_add(g, &call, going[i], false); }
        num_going = 0;
        TRY(call_finish(g, &call, going, &num_going));
    }
    return STATUS_OK;
}

static Status answer_mine(Generation* g) {
    Dynapipe* dp = g->dp;
    int32_t* mine = ARENA_NEW(&dp->eval_arena, int32_t, g->num_slots);
    if (mine == NULL) { return no_memory(); }
    // equally many groups on every replica (the last may be empty): before each, the ranks check for a signal
    int32_t most = (g->num_samples + dp->num_replicas - 1) / dp->num_replicas, next = dp->replica;
    for (int32_t begin = 0; begin < most; begin += g->num_slots) {
        TRY(session_stop_agree(dp));
        if (dp->stop_signal != 0) { break; }
        int32_t num = 0;
        for (; num < g->num_slots && next < g->num_samples; next += dp->num_replicas) { mine[num++] = next; }
        if (num > 0) { TRY(answer_together(g, mine, num)); }
    }
    return STATUS_OK;
}

// Every rank gets every answer: one rank of each replica has its numbers, so the sum is exact.
static Status share_answers(Generation* g) {
    Dynapipe* dp = g->dp;
    int64_t width = g->max_tokens + 1, num_values = width * g->num_samples;
    double* values = ARENA_NEW(&dp->eval_arena, double, num_values);
    if (values == NULL) { return no_memory(); }
    memset(values, 0, sizeof *values * (size_t)num_values);
    for (int32_t i = dp->replica; dp->stage == 0 && i < g->num_samples; i += dp->num_replicas) {
        values[i * width] = g->answers[i].num_answer;
        for (int32_t k = 0; k < g->answers[i].num_answer; k++) {
            values[i * width + 1 + k] = g->answers[i].answer[k];
        }
    }
    TRY(collective_all_reduce_sum(&dp->world, values, (int32_t)num_values));
    for (int32_t i = 0; i < g->num_samples; i++) {
        g->answers[i].num_answer = (int32_t)values[i * width];
        for (int32_t k = 0; k < g->answers[i].num_answer; k++) {
            ((int32_t*)(uintptr_t)g->answers[i].answer)[k] = (int32_t)values[i * width + 1 + k];
        }
    }
    return STATUS_OK;
}

// Of a sample without input (plain text) the first token is the prompt.
static Status read_samples(Generation* g, const int64_t* samples) {
    Dynapipe* dp = g->dp;
    for (int32_t i = 0; i < g->num_samples; i++) {
        LoaderSample sample;
        TRY(loader_sample(dp->val, samples[i], &sample));
        int32_t* tokens = ARENA_NEW(&dp->eval_arena, int32_t, sample.n_input + sample.n_target + 1);
        int32_t* answer = ARENA_NEW(&dp->eval_arena, int32_t, g->max_tokens + 1);
        if (tokens == NULL || answer == NULL) { return no_memory(); }
        TRY(loader_read(dp->val, &sample, tokens));
        int32_t num_prompt = sample.n_input > 0 || g->has_decoder ? sample.n_input : 1;
        g->answers[i] = (DynapipeAnswer_v1){.task = dp->val_task[sample.task],
                                            .num_prompt = num_prompt,
                                            .num_target = sample.n_input + sample.n_answer - num_prompt,
                                            .prompt = tokens,
                                            .target = tokens + num_prompt,
                                            .answer = answer};
        if (num_prompt == 0) {  // an encoder needs an input anyway
            tokens[sample.n_target] = loader_info(dp->val)->eot_token;
            g->answers[i].prompt = tokens + sample.n_target;
            g->answers[i].num_prompt = num_prompt = 1;
        }
        if (num_prompt > g->longest_prompt) { g->longest_prompt = num_prompt; }
    }
    return STATUS_OK;
}

static Status generate(Generation* g, const int64_t* samples) {
    Dynapipe* dp = g->dp;
    if (dp->val == NULL) { return FAIL(STATUS_BAD_OPTION, "nothing to answer ---> give -j"); }
    TRY(session_need_model(dp));
    const DynapipeModel_v1* api = dp->ranges[0].api;
    bool can_pick =
        dp->request.placement.head == HEAD_WHOLE || (api->pick_bytes != NULL && api->pick != NULL);
    if (api->infer == NULL || api->infer_bytes == NULL || api->cache_bytes == NULL || !can_pick) {
        return FAIL(
            STATUS_BAD_OPTION,
            "the model %s cannot answer: it has no infer() with infer_bytes() and cache_bytes(), or, "
            "its head being shared, no pick() with pick_bytes() ---> -s 0 and --answers 0, or give it "
            "these",
            api->name);
    }
    arena_reset(&dp->eval_arena);
    g->answers = ARENA_NEW(&dp->eval_arena, DynapipeAnswer_v1, g->num_samples);
    if (g->answers == NULL) { return no_memory(); }
    TRY(read_samples(g, samples));
    if (g->num_samples == 0) { return STATUS_OK; }
    TRY(choose_slots(g));
    TRY(allocate(g));
    TRY(answer_mine(g));
    return share_answers(g);
}

int dynapipe_generate(Dynapipe* dp, const int64_t* samples, int32_t num_samples, int32_t max_tokens,
                      const DynapipeAnswer_v1** out) {
    Generation g = {.dp = dp,
                    .num_samples = num_samples,
                    .max_tokens = max_tokens,
                    .has_decoder = dp->run.max_target_tokens > 0};
    Status status = generate(&g, samples);
    *out = g.answers;
    return (int)status;
}

// A prompt: plain text begins with at most one token.
static bool is_question(const Dynapipe* dp, int64_t n, int32_t* task) {
    LoaderSample sample;
    if (loader_sample(dp->val, n, &sample) != STATUS_OK) { return false; }
    *task = dp->val_task[sample.task];
    return sample.n_input > 1;
}

static Status pick_samples(const Dynapipe* dp, int32_t per_task, int64_t* out, int32_t* num) {
    int64_t num_samples = dp->val != NULL ? loader_info(dp->val)->num_samples : 0;
    int64_t* counts = (int64_t*)calloc(2 * (size_t)dp->num_tasks + 1, sizeof *counts);
    if (counts == NULL) { return no_memory(); }
    int64_t* met = counts + dp->num_tasks;
    int32_t task;
    for (int64_t n = 0; n < num_samples; n++) {
        if (is_question(dp, n, &task)) { counts[task]++; }
    }
    for (int64_t n = 0; n < num_samples; n++) {
        if (!is_question(dp, n, &task)) { continue; }
        // every (count / per_task)-th, so that samples are spread over the file
        int64_t wanted = counts[task] < per_task ? counts[task] : per_task, k = met[task]++;
        if ((k + 1) * wanted / counts[task] > k * wanted / counts[task]) { out[(*num)++] = n; }
    }
    free(counts);
    return STATUS_OK;
}

int dynapipe_pick_samples(const Dynapipe* dp, int32_t per_task, int64_t* out, int32_t* num_samples) {
    *num_samples = 0;
    return (int)pick_samples(dp, per_task, out, num_samples);
}
