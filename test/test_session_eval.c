// test_session_eval.c -- validation cuts its data so that every row is counted once and both sides of a
// micro-batch keep to what memory allows.
#include <math.h>
#include <signal.h>

#include "../dynapipe_plugin/run/session.h"
#include "data_maker.h"
#include "test.h"

enum { LONGEST_INPUT = 40, LONGEST_TARGET = 14, ENC_BYTES = 640, DEC_BYTES = 1280 };

// A model that only counts.
typedef struct {
    int32_t num_calls, num_rows, most_tokens, most_dec_tokens;
    int64_t most_bytes;
    ShapeRules rules;  // that every batch must keep
    int32_t num_padded;
    bool answers;      // has infer()
    int32_t raise_at;  // a signal comes in this call; 0: none
} Counter;

static int64_t acts_bytes(void* model, const DynapipeBatch* batch, int flags) {
    (void)model;
    (void)flags;
    return (int64_t)batch->num_tokens * ENC_BYTES + (int64_t)batch->num_dec_tokens * DEC_BYTES;
}

static int64_t no_bytes(void* model, const DynapipeBatch* batch) {
    (void)model;
    (void)batch;
    return 0;
}

static int64_t boundary_bytes(void* model, const DynapipeBatch* batch, int is_behind) {
    (void)model;
    (void)batch;
    (void)is_behind;
    return 0;
}

// Windows of one side as the rules have them.
static void check_side(const ShapeRules* rules, const int32_t* cu_seqlens, int32_t num_seqs, int32_t longest,
                       int64_t num_squares) {
    int64_t squares = 0;
    for (int32_t i = 0; i < num_seqs; i++) {
        int32_t n = cu_seqlens[i + 1] - cu_seqlens[i];
        squares += (int64_t)n * n;
        if (!rules->padded) { continue; }
        CHECK_EQ(n, longest);
        CHECK_EQ(n % rules->seq_multiple, 0);
        CHECK_EQ(n * num_seqs % rules->tokens_multiple, 0);
    }
    CHECK_EQ(squares, num_squares);
    if (rules->max_squares > 0) { CHECK(squares <= rules->max_squares); }
    if (rules->max_seqs > 0) { CHECK(num_seqs <= rules->max_seqs); }
}

static int forward(void* model, const DynapipeBatch* batch, const void* in, void* out, void* acts,
                   void* scratch, float* losses, int flags) {
    (void)in;
    (void)out;
    (void)acts;
    (void)scratch;
    (void)flags;
    Counter* counter = model;
    int64_t num_bytes = acts_bytes(model, batch, 0);
    check_side(&counter->rules, batch->cu_seqlens, batch->num_seqs, batch->max_seq_tokens,
               batch->num_squares);
    if (batch->num_dec_tokens > 0) {
        check_side(&counter->rules, batch->dec_cu_seqlens, batch->num_seqs, batch->max_dec_seq_tokens,
                   batch->num_dec_squares);
    }
    counter->num_padded += batch->seq_lens != NULL;
    if (++counter->num_calls == counter->raise_at) { raise(SIGUSR1); }
    counter->num_rows += batch->num_rows;
    if (batch->num_tokens > counter->most_tokens) { counter->most_tokens = batch->num_tokens; }
    if (batch->num_dec_tokens > counter->most_dec_tokens) {
        counter->most_dec_tokens = batch->num_dec_tokens;
    }
    if (num_bytes > counter->most_bytes) { counter->most_bytes = num_bytes; }
    for (int32_t i = 0; i < batch->num_rows; i++) { losses[i] = (float)batch->row_tasks[i] + 1; }
    return batch->token_keys != NULL || batch->dec_token_keys != NULL;  // nothing is dropped here
}

static int64_t cache_bytes(void* model, const DynapipeCache* cache) {
    (void)model;
    return cache->num_slots;
}

static int infer(void* model, const DynapipeBatch* batch, const DynapipeCache* cache, const void* in,
                 void* out, void* scratch, int32_t* next) {
    Counter* counter = model;
    int64_t squares = 0, dec_squares = 0, cross = 0;
    (void)cache;
    (void)in;
    (void)out;
    (void)scratch;
    for (int32_t i = 0; i < batch->num_seqs; i++) {
        int64_t enc = batch->cu_seqlens[i + 1] - batch->cu_seqlens[i];
        int64_t dec = batch->num_dec_tokens > 0 ? batch->dec_cu_seqlens[i + 1] - batch->dec_cu_seqlens[i] : 0;
        squares += enc * enc;
        dec_squares += dec * dec;
        cross += enc * dec;
        next[i] = 3;
    }
    CHECK_EQ(batch->num_squares, squares);
    CHECK_EQ(batch->num_dec_squares, dec_squares);
    CHECK_EQ(batch->num_cross, cross);
    counter->num_calls++;
    return 0;
}

static int backward_inputs(void* model, const DynapipeBatch* batch, const void* in, void* acts,
                           const void* dout, void* din, void* scratch) {
    (void)model;
    (void)batch;
    (void)in;
    (void)acts;
    (void)dout;
    (void)din;
    (void)scratch;
    return 1;
}

static void zero_gradients(void* model) {
    (void)model;
}

static const DynapipeModel_v1 counter_api = {.name = "counter",
                                             .acts_bytes = acts_bytes,
                                             .scratch_bytes = no_bytes,
                                             .boundary_bytes = boundary_bytes,
                                             .forward = forward,
                                             .backward_inputs = backward_inputs,
                                             .zero_gradients = zero_gradients};

// Samples of two tasks; the one of task 0 that is longest on both sides comes first.
static MadeData make_data(Rng* rng, int32_t num_samples) {
    MadeData data = {.vocab = 60, .pairs = true, .num_samples = num_samples};
    data.samples = calloc((size_t)num_samples, sizeof *data.samples);
    for (int32_t i = 0; i < num_samples; i++) {
        data.samples[i] = (MadeSample){i % 2, rng_between(rng, 1, LONGEST_INPUT / 2),
                                       rng_between(rng, 1, LONGEST_TARGET / 2)};
    }
    data.samples[0] = (MadeSample){0, LONGEST_INPUT, LONGEST_TARGET};
    return data;
}

// A session of one rank with these validation data and the counter in it.
static Dynapipe* open_session(const char* path, Counter* counter, int32_t max_target_tokens) {
    static DynapipeModel_v1 api;
    api = counter_api;
    if (counter->answers) {
        api.infer = infer;
        api.infer_bytes = no_bytes;
        api.cache_bytes = cache_bytes;
    }
    char* argv[] = {"test", NULL};
    int argc = 1, rank = 0;
    Dynapipe* dp = calloc(1, sizeof *dp);
    CHECK(dp != NULL);
    CHECK_OK(transport_loopback_open(&dp->transport, 1));
    CHECK_OK(session_options_take(&dp->options, &argc, argv, NULL));
    CHECK_OK(collective_init(&dp->world, &dp->transport, &rank, 1, 0));
    CHECK_OK(collective_init(&dp->replicas, &dp->transport, &rank, 1, 0));
    dp->num_stages = dp->num_replicas = dp->request.P = 1;
    dp->request.placement.num_chunks = 1;
    dp->request.rules = counter->rules;
    DynapipeRun_v1 run = {.train_pattern = path,
                          .val_pattern = path,
                          .batch_tokens = 200,
                          .max_seq_tokens =
                              max_target_tokens > 0 ? LONGEST_INPUT : LONGEST_INPUT + LONGEST_TARGET,
                          .max_target_tokens = max_target_tokens,
                          .num_steps = 1};
    CHECK_OK((Status)dynapipe_open_data(dp, &run));
    CHECK_OK(session_device_open(dp, NULL));
    DynapipeParams_v1 params = {0};
    CHECK_OK((Status)dynapipe_attach(dp, 0, &api, counter, &params));
    return dp;
}

static void check_validation(const char* path, const MadeData* data, int32_t max_target_tokens,
                             ShapeRules rules) {
    Counter counter = {.rules = rules};
    Dynapipe* dp = open_session(path, &counter, max_target_tokens);
    int32_t num_targets[2] = {0};
    for (int32_t i = 0; i < data->num_samples; i++) {
        num_targets[data->samples[i].task] += data->samples[i].n_target;
    }
    double loss, task_loss[2];
    CHECK_OK((Status)dynapipe_validate(dp, -1, &loss, task_loss));
    CHECK_EQ(counter.num_rows, num_targets[0] + num_targets[1]);
    CHECK_EQ(task_loss[0], 1.0);
    CHECK_EQ(task_loss[1], 2.0);
    CHECK(fabs(loss * counter.num_rows - num_targets[0] - 2.0 * num_targets[1]) < 1e-9);
    CHECK(counter.most_tokens <= dp->run.max_seq_tokens && counter.most_dec_tokens <= max_target_tokens);
    CHECK(counter.num_calls < data->num_samples);  // several a time
    CHECK_EQ(counter.num_padded > 0, rules.padded);
    dynapipe_close(dp);
}

static void every_row_is_counted_once(void) {
    char dir[64], path[128];
    Rng rng = rng_seed(1);
    maker_dir_create(dir);
    snprintf(path, sizeof path, "%s/val.bin", dir);
    MadeData data = make_data(&rng, 60);
    maker_write(&data, 0, 60, dir, "val.bin");
    check_validation(path, &data, LONGEST_TARGET, (ShapeRules){0});
    check_validation(path, &data, 0, (ShapeRules){0});
    // 40 + 14, and together 54, are multiples of 2; half of the squares that the tokens alone would let
    check_validation(path, &data, LONGEST_TARGET,
                     (ShapeRules){.padded = true, .seq_multiple = 2, .tokens_multiple = 2});
    check_validation(path, &data, 0, (ShapeRules){.padded = true, .seq_multiple = 1, .tokens_multiple = 6});
    check_validation(path, &data, 0, (ShapeRules){.max_squares = 54 * 54});
    check_validation(path, &data, 0, (ShapeRules){.max_seqs = 2});
    maker_free(&data);
    maker_dir_remove(dir);
}

// The longest sample alone is more than the kernels count.
static void a_sample_beyond_the_kernels_is_named(void) {
    char dir[64], path[128];
    Rng rng = rng_seed(3);
    maker_dir_create(dir);
    snprintf(path, sizeof path, "%s/val.bin", dir);
    MadeData data = make_data(&rng, 10);
    maker_write(&data, 0, 10, dir, "val.bin");
    Counter counter = {.rules = {.max_squares = LONGEST_INPUT * LONGEST_INPUT - 1}};
    Dynapipe* dp = open_session(path, &counter, LONGEST_TARGET);
    double loss;
    CHECK_FAILS((Status)dynapipe_validate(dp, -1, &loss, NULL), STATUS_INFEASIBLE,
                "a sample of 40 + 14 tokens: squared lengths of 1600 and 196, products of 560; the model's "
                "kernels count up to 1599 of each (max_squares) --->");
    dynapipe_close(dp);
    maker_free(&data);
    maker_dir_remove(dir);
}

static void generation_counts_its_windows(void) {
    char dir[64], path[128];
    Rng rng = rng_seed(5);
    maker_dir_create(dir);
    snprintf(path, sizeof path, "%s/val.bin", dir);
    MadeData data = make_data(&rng, 30);
    maker_write(&data, 0, 30, dir, "val.bin");
    for (int sides = 1; sides <= 2; sides++) {
        Counter counter = {.answers = true};
        Dynapipe* dp = open_session(path, &counter, sides == 2 ? LONGEST_TARGET : 0);
        const DynapipeAnswer_v1* answers;
        int64_t samples[] = {3, 0, 7, 20};
        CHECK_OK((Status)dynapipe_generate(dp, samples, 4, 5, &answers));
        CHECK_EQ(answers[0].num_answer, 5);
        CHECK_EQ(counter.num_calls, 5);
        dynapipe_close(dp);
    }
    maker_free(&data);
    maker_dir_remove(dir);
}

static void a_model_without_infer_says_so(void) {
    char dir[64], path[128];
    Rng rng = rng_seed(4);
    maker_dir_create(dir);
    snprintf(path, sizeof path, "%s/val.bin", dir);
    MadeData data = make_data(&rng, 10);
    maker_write(&data, 0, 10, dir, "val.bin");
    Counter counter = {0};
    Dynapipe* dp = open_session(path, &counter, LONGEST_TARGET);
    const DynapipeAnswer_v1* answers;
    int64_t sample = 0;
    CHECK_FAILS((Status)dynapipe_generate(dp, &sample, 1, 5, &answers), STATUS_BAD_OPTION,
                "the model counter cannot answer: it has no infer()");
    dynapipe_close(dp);
    maker_free(&data);
    maker_dir_remove(dir);
}

// As much as the longest pair takes: nothing changes. A byte less: a sample that does not fit is named, with
// both sides of what would.
static void a_memory_limit_counts_both_sides(void) {
    char dir[64], path[128];
    Rng rng = rng_seed(2);
    maker_dir_create(dir);
    snprintf(path, sizeof path, "%s/val.bin", dir);
    MadeData data = make_data(&rng, 40);
    maker_write(&data, 0, 40, dir, "val.bin");
    int64_t longest_bytes = LONGEST_INPUT * ENC_BYTES + LONGEST_TARGET * DEC_BYTES;
    Counter counter = {0};
    Dynapipe* dp = open_session(path, &counter, LONGEST_TARGET);
    double loss;
    dp->options.memory_limit_bytes = longest_bytes;
    CHECK_OK((Status)dynapipe_validate(dp, -1, &loss, NULL));
    CHECK_EQ(dp->eval_tokens, LONGEST_INPUT);
    CHECK_EQ(dp->eval_target_tokens, LONGEST_TARGET);
    CHECK(counter.most_bytes <= longest_bytes);
    dynapipe_close(dp);
    dp = open_session(path, &counter, LONGEST_TARGET);
    dp->options.memory_limit_bytes = longest_bytes - 1;
    CHECK_FAILS((Status)dynapipe_validate(dp, -1, &loss, NULL), STATUS_INFEASIBLE,
                "a sample of 40 + 14 tokens, but --memory-limit");
    CHECK(strstr(status_message(), "leaves room for 39 + 14 --->") != NULL);
    dynapipe_close(dp);
    // Without that sample, half of the memory.
    maker_write(&data, 1, 40, dir, "val.bin");
    counter = (Counter){0};
    dp = open_session(path, &counter, LONGEST_TARGET);
    dp->options.memory_limit_bytes = longest_bytes / 2 + DEC_BYTES;
    CHECK_OK((Status)dynapipe_validate(dp, -1, &loss, NULL));
    CHECK(counter.most_bytes <= dp->options.memory_limit_bytes && counter.num_calls > 1);
    CHECK(counter.most_tokens <= dp->eval_tokens && counter.most_dec_tokens <= dp->eval_target_tokens);
    dynapipe_close(dp);
    maker_free(&data);
    maker_dir_remove(dir);
}

// It is seen between batches, and what was asked for is not there: no loss of half the data. Last of all, as
// the process has seen a signal from then on.
static void a_signal_breaks_off(void) {
    char dir[64], path[128];
    Rng rng = rng_seed(6);
    maker_dir_create(dir);
    snprintf(path, sizeof path, "%s/val.bin", dir);
    MadeData data = make_data(&rng, 120);
    maker_write(&data, 0, 120, dir, "val.bin");
    Counter whole = {0}, counter = {.answers = true};
    Dynapipe* dp = open_session(path, &whole, LONGEST_TARGET);
    double loss;
    dynapipe_watch_signals(dp);
    CHECK_OK((Status)dynapipe_validate(dp, -1, &loss, NULL));
    CHECK(isfinite(loss));
    CHECK_EQ(dynapipe_stop_signal(dp), 0);
    dynapipe_close(dp);
    dp = open_session(path, &counter, LONGEST_TARGET);
    dynapipe_watch_signals(dp);
    counter.raise_at = 2;
    CHECK_OK((Status)dynapipe_validate(dp, -1, &loss, NULL));
    CHECK(isnan(loss));
    CHECK_EQ(dynapipe_stop_signal(dp), SIGUSR1);
    CHECK(counter.num_calls >= 2 && counter.num_calls < whole.num_calls / 2);
    const DynapipeAnswer_v1* answers;
    int64_t samples[] = {3, 0};
    counter.num_calls = 0;
    CHECK_OK((Status)dynapipe_generate(dp, samples, 2, 5, &answers));
    CHECK_EQ(counter.num_calls, 0);
    dynapipe_close(dp);
    maker_free(&data);
    maker_dir_remove(dir);
}

int main(void) {
    RUN(every_row_is_counted_once);
    RUN(a_memory_limit_counts_both_sides);
    RUN(a_sample_beyond_the_kernels_is_named);
    RUN(generation_counts_its_windows);
    RUN(a_model_without_infer_says_so);
    RUN(a_signal_breaks_off);
    return test_end();
}
