// test_collate.c -- a micro-batch in every layout equals what the definition says, token by token.
#include "../dataloader/collate.h"

#include "data_maker.h"

static uint64_t seed;

enum { NUM_SAMPLES = 120, LONGEST = 60, VOCAB = 400, MAX_BATCH = 600 };

static char dir[64], path[80];
static MadeData data;

typedef enum { RAGGED, PADDED, PACKED, SLICED, NUM_LAYOUTS } Layout;

typedef struct {
    PlanSequence sequences[MAX_BATCH];
    PlanSegment segments[MAX_BATCH];
    int32_t num_sequences, num_segments;
} Windows;

// Deal the samples of a batch into windows: one each, or one to four each; a slice is half of a sample.
static void deal(Windows* out, Rng* rng, const LoaderBatch* batch, Layout layout) {
    *out = (Windows){0};
    int32_t longest = 0, i = 0;
    while (i < batch->num_samples) {
        PlanSequence* sequence = &out->sequences[out->num_sequences++];
        sequence->segment_begin = out->num_segments;
        int32_t take = layout == PACKED ? rng_between(rng, 1, 4) : 1;
        for (int32_t n = 0; n < take && i < batch->num_samples; n++, i++) {
            PlanSegment segment = {i, 0, batch->lengths[i].enc_tokens};
            if (layout == SLICED) {
                segment.first_token = rng_between(rng, 0, segment.num_tokens - 1);
                segment.num_tokens = rng_between(rng, 1, segment.num_tokens - segment.first_token);
            }
            out->segments[out->num_segments++] = segment;
            sequence->enc_tokens += segment.num_tokens;
        }
        sequence->segment_end = out->num_segments;
        if (layout == PACKED) { sequence->enc_tokens += rng_between(rng, 0, 5); }
        longest = sequence->enc_tokens > longest ? sequence->enc_tokens : longest;
    }
    for (int32_t s = 0; s < out->num_sequences && layout == PADDED; s++) {
        out->sequences[s].enc_tokens = longest;
    }
}

// The definition: place p of a window belongs to token i of a sample, or to none.
static bool find_place(const Windows* windows, int32_t s, int32_t p, int32_t* sample_idx, int32_t* i) {
    for (int32_t g = windows->sequences[s].segment_begin; g < windows->sequences[s].segment_end; g++) {
        if (p < windows->segments[g].num_tokens) {
            *sample_idx = windows->segments[g].sample_idx;
            *i = windows->segments[g].first_token + p;
            return true;
        }
        p -= windows->segments[g].num_tokens;
    }
    return false;
}

// Where token i of a drawn sample stands in the file's.
static int32_t source_place(const LoaderSample* sample, int32_t i) {
    return sample->first_token + i + (i >= sample->hole_at ? sample->hole_tokens : 0);
}

static void check_batch(const DynapipeBatch* got, const Windows* windows, const LoaderBatch* batch,
                        const CollateParams* params) {
    int32_t at = 0, row = 0, longest = 0, num_padding = 0;
    int64_t num_squares = 0;
    CHECK_EQ(got->num_seqs, windows->num_sequences);
    CHECK_EQ(got->cu_seqlens[0], 0);
    for (int32_t s = 0; s < windows->num_sequences && test_failures == 0; s++) {
        int32_t first_position = windows->segments[windows->sequences[s].segment_begin].first_token;
        for (int32_t p = 0; p < windows->sequences[s].enc_tokens; p++, at++) {
            int32_t sample_idx, i;
            bool real = find_place(windows, s, p, &sample_idx, &i);
            CHECK_EQ(got->positions[at], first_position + p);
            if (!real) {
                CHECK_EQ(got->tokens[at], VOCAB - 1);
                CHECK(row == got->num_rows || got->rows[row] > at);
                num_padding++;
                continue;
            }
            const LoaderSample* sample = &batch->samples[sample_idx];
            CHECK_EQ(got->tokens[at], maker_token(&data, sample->id, source_place(sample, i)));
            CHECK_EQ(got->token_keys[at], collate_token_key(params, sample_idx, i, false));
            int32_t next = source_place(sample, i + 1);
            if (params->supervise_inputs ||
                (i + 1 >= sample->n_input && !maker_in_gap(&data.gaps[sample->id], next))) {
                CHECK(row < got->num_rows);
                CHECK_EQ(got->rows[row], at);
                CHECK_EQ(got->targets[row], maker_token(&data, sample->id, next));
                CHECK_EQ(got->row_tasks[row], sample->task);
                row++;
            }
        }
        CHECK_EQ(got->cu_seqlens[s + 1], at);
        int32_t num_real = 0, sample_idx, i;
        while (find_place(windows, s, num_real, &sample_idx, &i)) { num_real++; }
        CHECK(got->seq_lens == NULL || got->seq_lens[s] == num_real);
        longest = windows->sequences[s].enc_tokens > longest ? windows->sequences[s].enc_tokens : longest;
        num_squares += (int64_t)windows->sequences[s].enc_tokens * windows->sequences[s].enc_tokens;
    }
    CHECK_EQ(got->num_tokens, at);
    CHECK_EQ(got->num_rows, row);
    CHECK_EQ(got->max_seq_tokens, longest);
    CHECK_EQ(got->num_squares, num_squares);
    CHECK(got->num_dec_squares == 0 && got->num_cross == 0);
    CHECK((got->seq_lens == NULL) == (num_padding == 0));
    CHECK_EQ(got->num_dec_tokens, 0);
    CHECK(got->dec_tokens == NULL && got->dec_cu_seqlens == NULL && got->dec_seq_lens == NULL);
}

static void every_layout_equals_its_definition(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    for (int round = 0; round < 60 && test_failures == 0; round++) {
        LoaderOptions options = {.batch_tokens = rng_between(&rng, 1, MAX_BATCH),
                                 .max_seq_tokens = rng_between(&rng, 5, LONGEST),
                                 .long_samples = (LongSamples)(round % 3),
                                 .supervise_inputs = round % 2,
                                 .seed = (uint64_t)round,
                                 .shuffle = true};
        Loader* loader = NULL;
        CHECK_OK(loader_open(&loader, path, &options));
        for (int layout = 0; layout < NUM_LAYOUTS; layout++) {
            LoaderBatch batch;
            Windows windows;
            DynapipeBatch got;
            CHECK_OK(loader_next(loader, &batch, &arena));
            deal(&windows, &rng, &batch, (Layout)layout);
            CollateParams params = {.seed = 7,
                                    .step = round,
                                    .supervise_inputs = options.supervise_inputs,
                                    .pad_token = -1,
                                    .start_token = -1};
            CHECK_OK(collate(&got, loader, &batch, windows.sequences, windows.num_sequences, windows.segments,
                             &params, &arena));
            check_batch(&got, &windows, &batch, &params);
            if (layout != SLICED) { CHECK_EQ(got.num_rows, batch.supervised_tokens); }
        }
        loader_close(loader);
        arena_reset(&arena);
    }
    arena_free(&arena);
}

static void impossible_windows_are_refused(void) {
    LoaderOptions options = {.batch_tokens = 300, .max_seq_tokens = LONGEST, .shuffle = true};
    Loader* loader = NULL;
    Arena arena = {0};
    LoaderBatch batch;
    CHECK_OK(loader_open(&loader, path, &options));
    CHECK_OK(loader_next(loader, &batch, &arena));
    CollateParams params = {.pad_token = -1, .start_token = -1};
    int32_t n = batch.lengths[0].enc_tokens;
    struct {
        PlanSequence sequence;
        PlanSegment segment;
        const char* words;
    } cases[] = {
        {{0, 1, n, 0}, {batch.num_samples, 0, 1}, "segment of sample"},
        {{0, 1, n, 0}, {-1, 0, 1}, "segment of sample -1"},
        {{0, 1, n + 1, 0}, {0, 0, n + 1}, "segment of sample 0: tokens 0"},
        {{0, 1, n, 0}, {0, -1, n}, "segment of sample 0: tokens -1"},
        {{0, 1, n, 0}, {0, 1, n}, "segment of sample 0: tokens 1"},
        {{0, 1, n, 0}, {0, INT32_MAX, INT32_MAX}, "segment of sample 0"},
        {{0, 1, n, 0}, {0, 0, 0}, "and 0 more"},
        {{0, 1, n - 1, 0}, {0, 0, n}, "sequence 0"},
        {{0, 0, n, 0}, {0, 0, n}, "sequence 0: 0 tokens"},
        {{0, 1, n, 1}, {0, 0, n}, "decoder 0 in 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        DynapipeBatch got;
        CHECK_FAILS(collate(&got, loader, &batch, &cases[i].sequence, 1, &cases[i].segment, &params, &arena),
                    STATUS_INVALID_PLAN, cases[i].words);
    }
    PlanSequence huge[2] = {{0, 1, INT32_MAX, 0}, {0, 1, INT32_MAX, 0}};
    PlanSegment whole = {0, 0, n};
    DynapipeBatch got;
    CHECK_FAILS(collate(&got, loader, &batch, huge, 2, &whole, &params, &arena), STATUS_INVALID_PLAN,
                "2 sequences");
    CHECK_OK(collate(&got, loader, &batch, NULL, 0, NULL, &params, &arena));
    CHECK(got.num_tokens == 0 && got.num_rows == 0 && got.cu_seqlens[0] == 0);
    loader_close(loader);
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    maker_dir_create(dir);
    snprintf(path, sizeof path, "%s/a.bin", dir);
    Rng rng = rng_seed(seed);
    data = maker_random(&rng, NUM_SAMPLES, 5, LONGEST, VOCAB);
    maker_add_gaps(&rng, &data);
    for (int32_t id = 0; id < NUM_SAMPLES; id++) {  // texts would be cut into pieces with ids of their own
        bool is_text = data.samples[id].n_input == 0 && data.gaps[id].num_gaps == 0;
        data.samples[id].n_input += is_text;
    }
    data.input_tail = 2;
    maker_write(&data, 0, NUM_SAMPLES, dir, "a.bin");
    RUN(every_layout_equals_its_definition);
    RUN(impossible_windows_are_refused);
    maker_dir_remove(dir);
    maker_free(&data);
    return test_end();
}
