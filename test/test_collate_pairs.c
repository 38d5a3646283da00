// test_collate_pairs.c -- an encoder-decoder's micro-batch equals what the definition says, on both sides.
#include "../dataloader/collate.h"

#include "data_maker.h"

static uint64_t seed;

enum { NUM_SAMPLES = 150, LONGEST = 60, VOCAB = 400, START = 3, MAX_BATCH = 600 };

static char dir[64], path[80];
static MadeData data;

typedef enum { RAGGED, PADDED, PACKED, NUM_LAYOUTS } Layout;

typedef struct {
    PlanSequence sequences[MAX_BATCH];
    PlanSegment segments[MAX_BATCH];
    int32_t num_sequences;
} Windows;

// Deal the samples, in a random order, one to a window or a few.
static void deal(Windows* out, Rng* rng, const LoaderBatch* batch, Layout layout) {
    *out = (Windows){0};
    int32_t longest = 0, longest_dec = 0;
    for (int32_t i = 0; i < batch->num_samples; i++) {
        int32_t j = rng_between(rng, 0, i);
        out->segments[i] = out->segments[j];
        out->segments[j] = (PlanSegment){i, 0, batch->lengths[i].enc_tokens};
    }
    for (int32_t i = 0; i < batch->num_samples;) {
        PlanSequence* sequence = &out->sequences[out->num_sequences++];
        sequence->segment_begin = i;
        int32_t take = layout == PACKED ? rng_between(rng, 1, 4) : 1;
        for (int32_t n = 0; n < take && i < batch->num_samples; n++, i++) {
            sequence->enc_tokens += batch->lengths[out->segments[i].sample_idx].enc_tokens;
            sequence->dec_tokens += batch->lengths[out->segments[i].sample_idx].dec_tokens;
        }
        sequence->segment_end = i;
        if (layout == PACKED) {
            sequence->enc_tokens += rng_between(rng, 0, 2) * rng_between(rng, 0, 3);
            sequence->dec_tokens += rng_between(rng, 0, 2) * rng_between(rng, 0, 3);
        }
        longest = sequence->enc_tokens > longest ? sequence->enc_tokens : longest;
        longest_dec = sequence->dec_tokens > longest_dec ? sequence->dec_tokens : longest_dec;
    }
    for (int32_t s = 0; s < out->num_sequences && layout == PADDED; s++) {
        out->sequences[s].enc_tokens = longest;
        out->sequences[s].dec_tokens = longest_dec;
    }
}

// Token i of a side of a sample, by the files alone. Targets: what the decoder's token i predicts.
static int32_t input_token(const LoaderSample* sample, int32_t i) {
    const MadeSample* made = &data.samples[sample->id];
    if (made->n_input == 0) { return VOCAB - 1; }
    return maker_token(&data, sample->id, made->n_input - sample->n_input + i);
}

static int32_t target_token(const LoaderSample* sample, int32_t i) {
    return maker_token(&data, sample->id, data.samples[sample->id].n_input + i);
}

// Place p of a window's side: token i of the sample it returns, or NULL for padding.
static const LoaderSample* find_place(const Windows* windows, const LoaderBatch* batch, int32_t s, int32_t p,
                                      bool is_decoder, int32_t* sample_idx, int32_t* i) {
    for (int32_t g = windows->sequences[s].segment_begin; g < windows->sequences[s].segment_end; g++) {
        const LoaderSample* sample = &batch->samples[windows->segments[g].sample_idx];
        int32_t num_tokens = is_decoder ? sample->n_target : sample->n_input > 0 ? sample->n_input : 1;
        if (p < num_tokens) {
            *sample_idx = windows->segments[g].sample_idx;
            *i = p;
            return sample;
        }
        p -= num_tokens;
    }
    return NULL;
}

static void check_side(const DynapipeBatch* got, const Windows* windows, const LoaderBatch* batch,
                       const CollateParams* params, bool is_decoder) {
    const int32_t* cu_seqlens = is_decoder ? got->dec_cu_seqlens : got->cu_seqlens;
    const int32_t* tokens = is_decoder ? got->dec_tokens : got->tokens;
    const int32_t* positions = is_decoder ? got->dec_positions : got->positions;
    const int32_t* seq_lens = is_decoder ? got->dec_seq_lens : got->seq_lens;
    const uint32_t* keys = is_decoder ? got->dec_token_keys : got->token_keys;
    int32_t at = 0, row = 0, longest = 0, num_padding = 0;
    CHECK_EQ(cu_seqlens[0], 0);
    for (int32_t s = 0; s < windows->num_sequences && test_failures == 0; s++) {
        int32_t num_tokens = is_decoder ? windows->sequences[s].dec_tokens : windows->sequences[s].enc_tokens;
        int32_t num_real = 0;
        for (int32_t p = 0; p < num_tokens; p++, at++) {
            int32_t sample_idx, i;
            const LoaderSample* sample = find_place(windows, batch, s, p, is_decoder, &sample_idx, &i);
            CHECK_EQ(positions[at], p);
            if (sample == NULL) {
                CHECK_EQ(tokens[at], params->pad_token >= 0 ? params->pad_token : 0);
                num_padding++;
                continue;
            }
            num_real++;
            CHECK_EQ(keys[at], collate_token_key(params, sample_idx, i, is_decoder));
            if (!is_decoder) {
                CHECK_EQ(tokens[at], input_token(sample, i));
                continue;
            }
            int32_t start = params->start_token >= 0 ? params->start_token : 0;
            CHECK_EQ(tokens[at], i == 0 ? start : target_token(sample, i - 1));
            CHECK(row < got->num_rows);
            CHECK_EQ(got->rows[row], at);
            CHECK_EQ(got->targets[row], target_token(sample, i));
            CHECK_EQ(got->row_tasks[row], sample->task);
            row++;
        }
        CHECK_EQ(cu_seqlens[s + 1], at);
        CHECK(seq_lens == NULL || seq_lens[s] == num_real);
        longest = num_tokens > longest ? num_tokens : longest;
    }
    CHECK((seq_lens == NULL) == (num_padding == 0));
    CHECK_EQ(is_decoder ? got->num_dec_tokens : got->num_tokens, at);
    CHECK_EQ(is_decoder ? got->max_dec_seq_tokens : got->max_seq_tokens, longest);
    if (is_decoder) { CHECK_EQ(got->num_rows, row); }
}

static void check_squares(const DynapipeBatch* got, const Windows* windows) {
    int64_t enc = 0, dec = 0, cross = 0;
    for (int32_t s = 0; s < windows->num_sequences; s++) {
        int64_t num_enc = windows->sequences[s].enc_tokens, num_dec = windows->sequences[s].dec_tokens;
        enc += num_enc * num_enc;
        dec += num_dec * num_dec;
        cross += num_enc * num_dec;
    }
    CHECK_EQ(got->num_squares, enc);
    CHECK_EQ(got->num_dec_squares, dec);
    CHECK_EQ(got->num_cross, cross);
}

static LoaderOptions pair_options(void) {
    return (LoaderOptions){.batch_tokens = 500,
                           .max_seq_tokens = LONGEST,
                           .encoder_decoder = true,
                           .max_target_tokens = LONGEST,
                           .long_samples = LONG_CUT_START,
                           .shuffle = true};
}

static void both_sides_equal_their_definition(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int32_t num_empty = 0, num_cut = 0;
    for (int round = 0; round < 60 && test_failures == 0; round++) {
        LoaderOptions options = pair_options();
        options.batch_tokens = rng_between(&rng, 1, MAX_BATCH);
        options.max_seq_tokens = rng_between(&rng, 1, LONGEST);
        options.max_target_tokens = rng_between(&rng, 1, LONGEST);
        options.supervise_inputs = round % 2;
        options.seed = (uint64_t)round;
        CollateParams params = {.seed = 7,
                                .step = round,
                                .supervise_inputs = options.supervise_inputs,
                                .encoder_decoder = true,
                                .pad_token = round % 3 == 0 ? 5 : -1,
                                .start_token = round % 4 == 0 ? START : -1};
        Loader* loader = NULL;
        CHECK_OK(loader_open(&loader, path, &options));
        for (int layout = 0; layout < NUM_LAYOUTS; layout++) {
            LoaderBatch batch;
            Windows windows;
            DynapipeBatch got;
            CHECK_OK(loader_next(loader, &batch, &arena));
            deal(&windows, &rng, &batch, (Layout)layout);
            CHECK_OK(collate(&got, loader, &batch, windows.sequences, windows.num_sequences, windows.segments,
                             &params, &arena));
            CHECK_EQ(got.num_seqs, windows.num_sequences);
            check_side(&got, &windows, &batch, &params, false);
            check_side(&got, &windows, &batch, &params, true);
            check_squares(&got, &windows);
            CHECK_EQ(got.num_rows, batch.supervised_tokens);
            for (int32_t i = 0; i < batch.num_samples; i++) {
                const MadeSample* made = &data.samples[batch.samples[i].id];
                num_empty += made->n_input == 0;
                num_cut += batch.samples[i].n_input < made->n_input;
            }
        }
        loader_close(loader);
        arena_reset(&arena);
    }
    CHECK(num_empty > 10 && num_cut > 10);
    arena_free(&arena);
}

// Of thousands of tokens hardly two have the same key; another step, seed, side or sample has other keys, and
// every bit is set about half the time.
static void keys_tell_tokens_apart(void) {
    enum { SAMPLES = 40, TOKENS = 50, NUM_KEYS = 2 * SAMPLES * TOKENS * 3 };
    static uint32_t keys[NUM_KEYS];
    int32_t n = 0, num_equal = 0, num_set[32] = {0};
    CollateParams params[3] = {
        {.seed = seed, .step = 1}, {.seed = seed, .step = 2}, {.seed = seed + 1, .step = 1}};
    for (int p = 0; p < 3; p++) {
        for (int32_t s = 0; s < SAMPLES; s++) {
            for (int32_t i = 0; i < 2 * TOKENS; i++) {
                keys[n++] = collate_token_key(&params[p], s, i / 2, i % 2);
            }
        }
    }
    for (int32_t a = 0; a < n; a++) {
        for (int32_t b = 0; b < a; b++) { num_equal += keys[a] == keys[b]; }
        for (int bit = 0; bit < 32; bit++) { num_set[bit] += keys[a] >> bit & 1; }
    }
    CHECK(num_equal <= 2);  // n^2 / 2^33 = 0.017 are expected
    for (int bit = 0; bit < 32; bit++) { CHECK_NEAR(num_set[bit], n / 2.0, 5 * 0.5 * __builtin_sqrt(n)); }
}

static void impossible_pairs_are_refused(void) {
    LoaderOptions options = pair_options();
    Loader* loader = NULL;
    Arena arena = {0};
    LoaderBatch batch;
    CHECK_OK(loader_open(&loader, path, &options));
    CHECK_OK(loader_next(loader, &batch, &arena));
    int32_t s = 0;
    while (batch.lengths[s].enc_tokens < 3 || batch.lengths[s].dec_tokens < 3) { s++; }
    CollateParams params = {.encoder_decoder = true, .pad_token = -1, .start_token = -1};
    int32_t n = batch.lengths[s].enc_tokens, m = batch.lengths[s].dec_tokens;
    struct {
        PlanSequence sequence;
        PlanSegment segment;
        const char* words;
    } cases[] = {
        {{0, 1, n, m}, {batch.num_samples, 0, n}, "segment of sample"},
        {{0, 1, n, m}, {s, 0, n - 1}, "tokens 0 and"},  // no part of a pair
        {{0, 1, n, m}, {s, 1, n - 1}, "tokens 1 and"},
        {{0, 1, n + 1, m}, {s, 0, n + 1}, "tokens 0 and"},
        {{0, 1, n - 1, m}, {s, 0, n}, "sequence 0"},
        {{0, 1, n, m - 1}, {s, 0, n}, "sequence 0"},
        {{0, 1, n, 0}, {s, 0, n}, "sequence 0"},
    };
    DynapipeBatch got;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_FAILS(collate(&got, loader, &batch, &cases[i].sequence, 1, &cases[i].segment, &params, &arena),
                    STATUS_INVALID_PLAN, cases[i].words);
    }
    PlanSegment whole = {s, 0, n};
    PlanSequence huge[2] = {{0, 1, n, INT32_MAX}, {0, 1, n, INT32_MAX}};
    CHECK_FAILS(collate(&got, loader, &batch, huge, 2, &whole, &params, &arena), STATUS_INVALID_PLAN,
                "2 sequences");
    CHECK_OK(collate(&got, loader, &batch, NULL, 0, NULL, &params, &arena));
    CHECK(got.num_tokens == 0 && got.num_dec_tokens == 0 && got.num_rows == 0 && got.dec_cu_seqlens[0] == 0);
    loader_close(loader);
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    maker_dir_create(dir);
    snprintf(path, sizeof path, "%s/a.bin", dir);
    Rng rng = rng_seed(seed);
    data = maker_random(&rng, NUM_SAMPLES, 5, LONGEST, VOCAB);
    data.pairs = true;
    for (int32_t id = 0; id < 20; id++) { data.samples[id].n_input = 0; }
    for (int32_t id = 0; id < 20; id++) { data.samples[id].n_target += 1; }
    maker_write(&data, 0, NUM_SAMPLES, dir, "a.bin");
    RUN(both_sides_equal_their_definition);
    RUN(keys_tell_tokens_apart);
    RUN(impossible_pairs_are_refused);
    maker_dir_remove(dir);
    maker_free(&data);
    return test_end();
}
