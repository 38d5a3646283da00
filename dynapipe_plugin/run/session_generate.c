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
    DynapipeBatch call;  // what follows: arrays for num_slots sequences
    int32_t *tokens, *positions, *cu_seqlens, *dec_tokens, *dec_positions, *dec_cu_seqlens;
    int32_t *slots, *num_before, *num_enc, *next;
    int32_t* sample_of;  // [num_slots] the answer that a slot generates
} Generation;

static Status no_memory(void) {
    return FAIL(STATUS_NO_MEMORY, "no memory for answers ---> a smaller -g, or -s 0");
}

static ExecutorPass pass_of(const Generation* g, const DynapipeBatch* batch) {
    return (ExecutorPass){.placement = &g->dp->request.placement,
                          .num_stages = g->dp->num_stages,
                          .batches = batch,
                          .num_batches = 1,
                          .cache = &g->cache,
                          .next = g->next,
                          .arena = g->dp->memory,
                          .arena_bytes = g->call_bytes};
}

// --- memory ------------------------------------------------------------------------------------------------

// Decoder-only: prompt and answer are one sequence, as long as the model takes. Returns what it needs.
static int64_t size_cache(Generation* g, int32_t num_slots) {
    int32_t together = g->longest_prompt + g->max_tokens, longest = g->dp->run.max_seq_tokens;
    int32_t most = g->longest_prompt > PREFILL_TOKENS ? g->longest_prompt : PREFILL_TOKENS;
    g->cache.num_slots = num_slots;
    g->cache.max_tokens = g->has_decoder ? g->max_tokens + 1 : together < longest ? together : longest;
    g->cache.max_enc_tokens = g->has_decoder ? g->longest_prompt : 0;
    g->prefill_tokens = num_slots * g->longest_prompt < most ? num_slots * g->longest_prompt : most;
    DynapipeBatch batch = {.num_seqs = num_slots,
                           .num_tokens = g->prefill_tokens,
                           .num_rows = num_slots,
                           .max_seq_tokens = g->longest_prompt,
                           .num_squares = (int64_t)g->prefill_tokens * g->longest_prompt};
    if (g->has_decoder) {
        batch.num_dec_tokens = num_slots;
        batch.max_dec_seq_tokens = 1;
        batch.num_dec_squares = num_slots;
        batch.num_cross = g->prefill_tokens;
    }
    ExecutorPass pass = pass_of(g, &batch);
    int64_t cache_bytes = 0;
    executor_pass_bytes(&g->call_bytes, &cache_bytes, g->dp->executor, &pass);
    return g->call_bytes + cache_bytes;
}

// As many slots as fit in every rank's memory. A collective.
static Status choose_slots(Generation* g) {
    Dynapipe* dp = g->dp;
    int32_t most = (g->num_samples + dp->num_replicas - 1) / dp->num_replicas;
    int32_t num_slots = most < MOST_SLOTS ? most : MOST_SLOTS;
    while (num_slots > 0 && size_cache(g, num_slots) > session_arena_limit(dp)) { num_slots /= 2; }
    double least = -num_slots;
    TRY(session_most(dp, &least));
    g->num_slots = (int32_t)-least;
    if (g->num_slots == 0) {
        return FAIL(STATUS_INFEASIBLE,
                    "--memory-limit %lld: not one answer fits ---> raise it, or -s 0 and --answers 0",
                    (long long)dp->options.memory_limit_bytes);
    }
    TRY(session_reserve(dp, size_cache(g, g->num_slots)));
    g->cache.memory = (unsigned char*)dp->memory + g->call_bytes;
    return STATUS_OK;
}

static Status allocate(Generation* g) {
    int32_t** arrays[] = {&g->tokens,        &g->positions,      &g->cu_seqlens, &g->dec_tokens,
                          &g->dec_positions, &g->dec_cu_seqlens, &g->slots,      &g->num_before,
                          &g->num_enc,       &g->next,           &g->sample_of};
    for (int i = 0; i < 11; i++) {
        *arrays[i] = ARENA_NEW(&g->dp->eval_arena, int32_t, (i < 2 ? g->prefill_tokens : g->num_slots) + 1);
        if (*arrays[i] == NULL) { return no_memory(); }
    }
    g->cache.slots = g->slots;
    g->cache.num_before = g->num_before;
    g->cache.num_enc = g->num_enc;
    return STATUS_OK;
}

// --- one call of the pipeline ------------------------------------------------------------------------------

static void call_begin(Generation* g) {
    g->call = (DynapipeBatch){.cu_seqlens = g->cu_seqlens,
                              .tokens = g->tokens,
                              .positions = g->positions,
                              .dec_cu_seqlens = g->dec_cu_seqlens,
                              .dec_tokens = g->dec_tokens,
                              .dec_positions = g->dec_positions};
}

static void add_token(Generation* g, bool is_dec, int32_t token, int32_t position) {
    int32_t* count = is_dec ? &g->call.num_dec_tokens : &g->call.num_tokens;
    (is_dec ? g->dec_tokens : g->tokens)[*count] = token;
    (is_dec ? g->dec_positions : g->positions)[(*count)++] = position;
}

// The prompt of a slot (the only side's, or the encoder's), or its last token (an encoder-decoder's first:
// its start).
static void call_add(Generation* g, int32_t slot, bool with_prompt) {
    DynapipeBatch* call = &g->call;
    const DynapipeAnswer_v1* answer = &g->answers[g->sample_of[slot]];
    const LoaderInfo* info = loader_info(g->dp->val);
    const int32_t i = call->num_seqs++, first = call->num_tokens, n = answer->num_answer;
    const int32_t together = answer->num_prompt + n - 1, start = info->pad_token;
    g->slots[i] = slot;
    g->num_enc[i] = g->has_decoder ? answer->num_prompt : 0;
    g->num_before[i] = g->has_decoder ? n : with_prompt ? 0 : together;
    for (int32_t k = 0; with_prompt && k < answer->num_prompt; k++) {
        add_token(g, false, answer->prompt[k], k);
    }
    if (!with_prompt || g->has_decoder) {
        int32_t token = n > 0 ? answer->answer[n - 1] : start >= 0 ? start : info->eot_token;
        add_token(g, g->has_decoder, token, g->has_decoder ? n : together);
    }
    int32_t num_new = call->num_tokens - first;
    g->cu_seqlens[i + 1] = call->num_tokens;
    g->dec_cu_seqlens[i + 1] = call->num_dec_tokens;
    if (num_new > call->max_seq_tokens) { call->max_seq_tokens = num_new; }
    call->num_squares += (int64_t)num_new * num_new;
    call->num_rows = call->num_seqs;
    if (!g->has_decoder) { return; }
    call->max_dec_seq_tokens = 1;
    call->num_dec_squares = call->num_dec_tokens;
    call->num_cross += num_new;
}

// Is the slot's answer complete with this token?
static bool add_answer(Generation* g, int32_t slot, int32_t token) {
    DynapipeAnswer_v1* answer = &g->answers[g->sample_of[slot]];
    if (token == loader_info(g->dp->val)->eot_token) { return true; }
    ((int32_t*)(uintptr_t)answer->answer)[answer->num_answer++] = token;
    bool full = !g->has_decoder && answer->num_prompt + answer->num_answer > g->cache.max_tokens;
    return full || answer->num_answer == g->max_tokens;
}

// The next tokens of the call's sequences, on every rank of the replica; unfinished slots go to `going`.
static Status call_run(Generation* g, int32_t* going, int32_t* num_going) {
    Dynapipe* dp = g->dp;
    if (g->call.num_seqs == 0) { return STATUS_OK; }
    ExecutorPass pass = pass_of(g, &g->call);
    TRY(executor_run_pass(dp->executor, &pass));
    size_t num_bytes = sizeof *g->next * (size_t)g->call.num_seqs;
    TRY(collective_broadcast(&dp->pipeline, g->next, num_bytes, session_last_stage(dp)));
    for (int32_t b = 0; b < g->call.num_seqs; b++) {
        if (!add_answer(g, g->slots[b], g->next[b])) { going[(*num_going)++] = g->slots[b]; }
    }
    return STATUS_OK;
}

// --- all answers of a replica ------------------------------------------------------------------------------

// One a slot: the prompts in calls of bounded size, then token by token.
static Status answer_together(Generation* g, const int32_t* samples, int32_t num) {
    int32_t *going, num_going = 0;
    ARENA_TRY_NEW(going, &g->dp->eval_arena, int32_t, num);
    call_begin(g);
    for (int32_t slot = 0; slot < num; slot++) {
        g->sample_of[slot] = samples[slot];
        if (g->call.num_tokens + g->answers[samples[slot]].num_prompt > g->prefill_tokens) {
            TRY(call_run(g, going, &num_going));
            call_begin(g);
        }
        call_add(g, slot, true);
    }
    TRY(call_run(g, going, &num_going));
    while (num_going > 0) {
        call_begin(g);
        for (int32_t i = 0; i < num_going; i++) { call_add(g, going[i], false); }
        num_going = 0;
        TRY(call_run(g, going, &num_going));
    }
    return STATUS_OK;
}

static Status answer_mine(Generation* g) {
    Dynapipe* dp = g->dp;
    int32_t* mine;
    ARENA_TRY_NEW(mine, &dp->eval_arena, int32_t, g->num_slots);
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
    const int32_t width = g->max_tokens + 1;
    double* values;
    ARENA_TRY_NEW(values, &dp->eval_arena, double, (int64_t)width * g->num_samples);
    for (int32_t i = 0; i < g->num_samples; i++) {
        const DynapipeAnswer_v1* answer = &g->answers[i];
        double* row = values + (int64_t)i * width;
        bool is_mine = dp->stage == 0 && i % dp->num_replicas == dp->replica;
        for (int32_t k = 0; is_mine && k < answer->num_answer; k++) { row[1 + k] = answer->answer[k]; }
        row[0] = is_mine ? answer->num_answer : 0;
    }
    TRY(collective_all_reduce_sum(&dp->world, values, width * g->num_samples));
    for (int32_t i = 0; i < g->num_samples; i++) {
        DynapipeAnswer_v1* answer = &g->answers[i];
        const double* row = values + (int64_t)i * width;
        answer->num_answer = (int32_t)row[0];
        for (int32_t k = 0; k < answer->num_answer; k++) {
            ((int32_t*)(uintptr_t)answer->answer)[k] = (int32_t)row[1 + k];
        }
    }
    return STATUS_OK;
}

// Of a sample without input (plain text) the first token is the prompt.
static Status read_samples(Generation* g, const int64_t* samples) {
    Dynapipe* dp = g->dp;
    for (int32_t i = 0; i < g->num_samples; i++) {
        LoaderSample sample;
        int32_t *tokens, *answer;
        TRY(loader_sample(dp->val, samples[i], &sample));
        ARENA_TRY_NEW(tokens, &dp->eval_arena, int32_t, sample.n_input + sample.n_target + 1);
        ARENA_TRY_NEW(answer, &dp->eval_arena, int32_t, g->max_tokens + 1);
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
    ARENA_TRY_NEW(g->answers, &dp->eval_arena, DynapipeAnswer_v1, g->num_samples);
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

int dynapipe_pick_samples(const Dynapipe* dp, int32_t per_task, int64_t* out, int32_t* num_samples) {
    int64_t num_val = dp->val != NULL ? loader_info(dp->val)->num_samples : 0;
    int64_t* counts = (int64_t*)calloc(2 * (size_t)dp->num_tasks + 1, sizeof *counts);
    int32_t task;
    *num_samples = 0;
    if (counts == NULL) { return (int)no_memory(); }
    int64_t* met = counts + dp->num_tasks;
    for (int64_t n = 0; n < num_val; n++) {
        if (is_question(dp, n, &task)) { counts[task]++; }
    }
    for (int64_t n = 0; n < num_val; n++) {
        if (!is_question(dp, n, &task)) { continue; }
        // every (count / per_task)-th, so that samples are spread over the file
        int64_t wanted = counts[task] < per_task ? counts[task] : per_task, k = met[task]++;
        if ((k + 1) * wanted / counts[task] > k * wanted / counts[task]) { out[(*num_samples)++] = n; }
    }
    free(counts);
    return STATUS_OK;
}
