// test_pair_stream.c -- batches of one shape: every sample once in an epoch, its tokens the file's, seekable.
#include "../dataloader/streams.h"

#include "data_maker.h"

static uint64_t seed;

enum { NUM_SAMPLES = 50, LONGEST = 40, VOCAB = 300, ROWS = 7, TOKENS = 25, DEC_TOKENS = 12 };

static char dir[64], pattern[80];
static MadeData data;

static LoaderOptions stream_options(bool shuffle) {
    return (LoaderOptions){.max_seq_tokens = TOKENS,
                           .long_samples = LONG_CUT_START,
                           .max_target_tokens = DEC_TOKENS,
                           .seed = seed,
                           .shuffle = shuffle};
}

static PairStream* open_stream(int32_t rows, const LoaderOptions* options) {
    PairStream* stream = NULL;
    CHECK_OK(pair_stream_open(&stream, pattern, rows, options));
    if (stream == NULL) { exit(1); }
    return stream;
}

static int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

// Is row r sample `id`, padded? By the files alone.
static bool row_is(const DynapipeBatch* batch, int32_t r, int32_t id) {
    const MadeSample* made = &data.samples[id];
    int32_t n_input = least(made->n_input, TOKENS), n_target = made->n_target;
    for (int32_t i = 0; i < TOKENS; i++) {
        int32_t token = i < n_input ? maker_token(&data, id, made->n_input - n_input + i) : 0;
        if (n_input == 0 && i == 0) { token = VOCAB - 1; }
        if (batch->tokens[r * TOKENS + i] != token) { return false; }
    }
    for (int32_t i = 0; i < DEC_TOKENS; i++) {
        int32_t token = i > 0 && i < n_target ? maker_token(&data, id, made->n_input + i - 1) : 0;
        if (batch->dec_tokens[r * DEC_TOKENS + i] != token) { return false; }
    }
    return true;
}

static void check_shape(const DynapipeBatch* batch, int32_t rows) {
    CHECK_EQ(batch->num_seqs, rows);
    CHECK_EQ(batch->num_tokens, rows * TOKENS);
    CHECK_EQ(batch->num_dec_tokens, rows * DEC_TOKENS);
    CHECK_EQ(batch->max_seq_tokens, TOKENS);
    CHECK_EQ(batch->max_dec_seq_tokens, DEC_TOKENS);
    for (int32_t r = 0; r <= rows; r++) {
        CHECK_EQ(batch->cu_seqlens[r], r * TOKENS);
        CHECK_EQ(batch->dec_cu_seqlens[r], r * DEC_TOKENS);
    }
}

// Lengths, and a row for each target token.
static void check_row(const DynapipeBatch* batch, int32_t r, int32_t id, int32_t* row) {
    const MadeSample* made = &data.samples[id];
    int32_t n_input = least(made->n_input, TOKENS), n_target = made->n_target;
    CHECK_EQ(batch->seq_lens != NULL ? batch->seq_lens[r] : TOKENS, n_input > 0 ? n_input : 1);
    CHECK_EQ(batch->dec_seq_lens != NULL ? batch->dec_seq_lens[r] : DEC_TOKENS, n_target);
    for (int32_t i = 0; i < n_target; i++, (*row)++) {
        CHECK(*row < batch->num_rows);
        CHECK_EQ(batch->rows[*row], r * DEC_TOKENS + i);
        CHECK_EQ(batch->targets[*row], maker_token(&data, id, made->n_input + i));
    }
}

static void every_sample_comes_once_in_an_epoch(void) {
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        LoaderOptions options = stream_options(shuffle);
        PairStream* stream = open_stream(ROWS, &options);
        CHECK_EQ(pair_stream_info(stream)->num_batches, NUM_SAMPLES / ROWS);
        CHECK_EQ(loader_info(pair_stream_loader(stream))->pad_token, 0);
        int32_t times[NUM_SAMPLES] = {0}, first[NUM_SAMPLES], num_equal = 0;
        for (int32_t n = 0; n < 3 * NUM_SAMPLES && test_failures == 0;) {
            DynapipeBatch batch;
            CHECK_OK(pair_stream_next_batch(stream, &batch));
            check_shape(&batch, ROWS);
            int32_t row = 0;
            for (int32_t r = 0; r < ROWS; r++, n++) {
                int32_t id = 0;
                while (id < NUM_SAMPLES && !row_is(&batch, r, id)) { id++; }
                CHECK(id < NUM_SAMPLES);
                if (test_failures > 0) { break; }
                CHECK_EQ(times[id], n / NUM_SAMPLES);
                times[id]++;
                if (!shuffle) { CHECK_EQ(id, n % NUM_SAMPLES); }
                if (n < NUM_SAMPLES) { first[n] = id; }
                num_equal += n >= NUM_SAMPLES && n < 2 * NUM_SAMPLES && first[n - NUM_SAMPLES] == id;
                check_row(&batch, r, id, &row);
            }
            CHECK_EQ(batch.num_rows, row);
        }
        CHECK(!shuffle || num_equal < 10);
        pair_stream_close(stream);
    }
}

static uint64_t hash_batch(const DynapipeBatch* batch) {
    uint64_t hash = 0;
    for (int32_t i = 0; i < batch->num_tokens; i++) {
        hash = rng_mix(hash + (uint64_t)batch->tokens[i] + batch->token_keys[i]);
    }
    for (int32_t i = 0; i < batch->num_dec_tokens; i++) {
        hash = rng_mix(hash + (uint64_t)batch->dec_tokens[i] + batch->dec_token_keys[i]);
    }
    return hash;
}

static void positions_are_sought(void) {
    enum { BATCHES = 30 };
    LoaderOptions options = stream_options(true);
    PairStream* stream = open_stream(ROWS, &options);
    uint64_t hashes[BATCHES];
    DynapipeBatch batch;
    for (int i = 0; i < BATCHES; i++) {
        CHECK_EQ(pair_stream_info(stream)->position, i);
        CHECK_OK(pair_stream_next_batch(stream, &batch));
        hashes[i] = hash_batch(&batch);
        CHECK(i == 0 || hashes[i] != hashes[i - 1]);
    }
    Rng rng = rng_seed(seed);
    for (int round = 0; round < 50; round++) {
        int32_t i = rng_between(&rng, 0, BATCHES - 1);
        pair_stream_info(stream)->position = i;
        CHECK_OK(pair_stream_next_batch(stream, &batch));
        CHECK_EQ(hash_batch(&batch), hashes[i]);
    }
    pair_stream_info(stream)->position = 0;
    CHECK_OK(pair_stream_next_batch(stream, &batch));
    CHECK_EQ(hash_batch(&batch), hashes[0]);
    pair_stream_close(stream);
    options.seed++;
    stream = open_stream(ROWS, &options);
    CHECK_OK(pair_stream_next_batch(stream, &batch));
    CHECK(hash_batch(&batch) != hashes[0]);
    pair_stream_close(stream);
}

// More rows than samples: the batch goes on with the next epoch.
static void a_batch_may_hold_epochs(void) {
    LoaderOptions options = stream_options(false);
    PairStream* stream = open_stream(120, &options);
    CHECK_EQ(pair_stream_info(stream)->num_batches, 1);
    DynapipeBatch batch;
    CHECK_OK(pair_stream_next_batch(stream, &batch));
    check_shape(&batch, 120);
    for (int32_t r = 0; r < 120; r++) { CHECK(row_is(&batch, r, r % NUM_SAMPLES)); }
    pair_stream_close(stream);
}

static void skipped_samples_do_not_come(void) {
    LoaderOptions options = stream_options(false);
    options.long_samples = LONG_SKIP;
    PairStream* stream = open_stream(1, &options);
    int32_t num_short = 0;
    for (int32_t id = 0; id < NUM_SAMPLES; id++) {
        if (data.samples[id].n_input > TOKENS || data.samples[id].n_target > DEC_TOKENS) { continue; }
        num_short++;
        DynapipeBatch batch;
        CHECK_OK(pair_stream_next_batch(stream, &batch));
        CHECK(row_is(&batch, 0, id));
    }
    CHECK(num_short < NUM_SAMPLES);
    CHECK_EQ(pair_stream_info(stream)->num_batches, num_short);
    pair_stream_close(stream);
}

// Corrupted text: the shape holds, and the second epoch has other spans.
static void text_is_corrupted_anew(void) {
    LoaderOptions options = stream_options(true);
    options.span_corruption = true;
    options.sentinel_first = VOCAB - 2;
    options.sentinel_step = -1;
    options.mean_noise_span = 1;  // one span alone would always be the end
    PairStream* stream = open_stream(ROWS, &options);
    int64_t num_pieces = loader_info(pair_stream_loader(stream))->num_samples;
    uint64_t sums[2] = {0};  // of an epoch: the same samples, in any order
    DynapipeBatch batch;
    pair_stream_close(stream);
    stream = open_stream(1, &options);
    for (int64_t n = 0; n < 2 * num_pieces; n++) {
        CHECK_OK(pair_stream_next_batch(stream, &batch));
        check_shape(&batch, 1);
        uint64_t hash = 0;
        for (int32_t i = 0; i < TOKENS; i++) { hash = rng_mix(hash + (uint64_t)batch.tokens[i]); }
        sums[n / num_pieces] += hash;
    }
    CHECK(sums[0] != sums[1]);
    pair_stream_close(stream);
    options.shuffle = false;  // for validation: the same spans, as one pass like the other
    stream = open_stream(1, &options);
    sums[0] = sums[1] = 0;
    for (int64_t n = 0; n < 2 * num_pieces; n++) {
        CHECK_OK(pair_stream_next_batch(stream, &batch));
        for (int32_t i = 0; i < TOKENS; i++) {
            sums[n / num_pieces] = rng_mix(sums[n / num_pieces] + (uint64_t)batch.tokens[i]);
        }
    }
    CHECK_EQ(sums[0], sums[1]);
    pair_stream_close(stream);
}

static void impossible_batches_are_refused(void) {
    PairStream* stream;
    LoaderOptions options = stream_options(true);
    CHECK_FAILS(pair_stream_open(&stream, pattern, 0, &options), STATUS_BAD_OPTION, "-b 0, -t 25");
    CHECK_FAILS(pair_stream_open(&stream, pattern, 1 << 27, &options), STATUS_BAD_OPTION, "below 2^31");
    options.max_target_tokens = 0;
    CHECK_FAILS(pair_stream_open(&stream, pattern, 1, &options), STATUS_BAD_OPTION, "in a target");
    CHECK_FAILS(pair_stream_open(&stream, "/nowhere/*", 1, &options), STATUS_BAD_OPTION, "--->");
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    maker_dir_create(dir);
    snprintf(pattern, sizeof pattern, "%s/train_?.bin", dir);
    Rng rng = rng_seed(seed);
    data = maker_random(&rng, NUM_SAMPLES, 4, LONGEST, VOCAB);
    data.pairs = true;
    data.samples[3] = (MadeSample){1, 0, 5};
    data.samples[4] = (MadeSample){2, LONGEST, 3};
    data.samples[5] = (MadeSample){0, 9, DEC_TOKENS};
    data.samples[6] = (MadeSample){0, TOKENS, DEC_TOKENS};
    // No two alike: the test tells them by their tokens.
    for (int32_t id = 0; id < NUM_SAMPLES; id++) {
        data.samples[id].n_target += data.samples[id].n_target < 3;
        data.samples[id].n_target = least(data.samples[id].n_target, DEC_TOKENS);
    }
    maker_write(&data, 0, 20, dir, "train_0.bin");
    maker_write(&data, 20, NUM_SAMPLES, dir, "train_1.bin");
    RUN(every_sample_comes_once_in_an_epoch);
    RUN(positions_are_sought);
    RUN(a_batch_may_hold_epochs);
    RUN(skipped_samples_do_not_come);
    RUN(text_is_corrupted_anew);
    RUN(impossible_batches_are_refused);
    maker_dir_remove(dir);
    maker_free(&data);
    return test_end();
}
