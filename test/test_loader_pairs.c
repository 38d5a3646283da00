// test_loader_pairs.c -- the stream as an encoder-decoder sees it: two sides, each within its own limit.
#include "../dataloader/loader.h"

#include "data_maker.h"

static uint64_t seed;

enum { NUM_TASKS = 4, NUM_SAMPLES = 300, LONGEST = 200, VOCAB = 500 };

static char dir[64], path[80];
static MadeData data;

static LoaderOptions pair_options(void) {
    return (LoaderOptions){.batch_tokens = 700,
                           .max_seq_tokens = LONGEST,
                           .encoder_decoder = true,
                           .max_target_tokens = LONGEST,
                           .seed = seed,
                           .shuffle = true};
}

static Loader* open_loader(const LoaderOptions* options) {
    Loader* loader = NULL;
    CHECK_OK(loader_open(&loader, path, options));
    if (loader == NULL) { exit(1); }
    return loader;
}

static int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

// What is drawn of a sample: the end of its input, all of its target, and its tokens are the file's.
static void check_drawn(const Loader* loader, const LoaderSample* drawn, const LoaderOptions* options) {
    const MadeSample* made = &data.samples[drawn->id];
    CHECK_EQ(drawn->n_input, least(made->n_input, options->max_seq_tokens));
    CHECK_EQ(drawn->n_target, made->n_target);
    int32_t tokens[2 * LONGEST];
    CHECK_OK(loader_read(loader, drawn, tokens));
    for (int32_t i = 0; i < drawn->n_input; i++) {
        CHECK_EQ(tokens[i], maker_token(&data, drawn->id, made->n_input - drawn->n_input + i));
    }
    for (int32_t i = 0; i < drawn->n_target; i++) {
        CHECK_EQ(tokens[drawn->n_input + i], maker_token(&data, drawn->id, made->n_input + i));
    }
}

static void long_sides_are_cut_or_skipped_and_counted(void) {
    Rng rng = rng_seed(seed);
    for (int round = 0; round < 24 && test_failures == 0; round++) {
        LoaderOptions options = pair_options();
        options.max_seq_tokens = rng_between(&rng, 2, round % 2 ? 30 : LONGEST);
        options.max_target_tokens = rng_between(&rng, 2, round % 3 ? 30 : LONGEST);
        options.long_samples = round % 4 < 2 ? LONG_CUT_START : LONG_SKIP;
        options.shuffle = false;
        int64_t num_cut = 0, num_skipped = 0, num_tokens = 0, num_drawn = 0;
        bool skip = options.long_samples == LONG_SKIP;
        for (int32_t id = 0; id < NUM_SAMPLES; id++) {
            const MadeSample* made = &data.samples[id];
            bool input_long = made->n_input > options.max_seq_tokens;
            bool skipped = made->n_target > options.max_target_tokens || (skip && input_long);
            num_skipped += skipped;
            num_cut += input_long && !skipped;
        }
        Loader* loader = open_loader(&options);
        CHECK_EQ(loader_info(loader)->num_cut, num_cut);
        CHECK_EQ(loader_info(loader)->num_skipped, num_skipped);
        CHECK_EQ(loader_info(loader)->num_samples, NUM_SAMPLES - num_skipped);
        Arena arena = {0};
        for (LoaderBatch batch = {0}; !batch.end && test_failures == 0;) {
            CHECK_OK(loader_next(loader, &batch, &arena));
            for (int32_t i = 0; i < batch.num_samples; i++, num_drawn++) {
                const MadeSample* made = &data.samples[batch.samples[i].id];
                check_drawn(loader, &batch.samples[i], &options);
                CHECK(!skip || (batch.samples[i].n_input == made->n_input &&
                                batch.samples[i].n_target == made->n_target));
            }
            num_tokens += batch.num_tokens;
        }
        CHECK_EQ(num_drawn, loader_info(loader)->num_samples);
        CHECK_EQ(num_tokens, loader_info(loader)->num_tokens);
        loader_close(loader);
        arena_free(&arena);
    }
    LoaderOptions options = pair_options();
    options.max_target_tokens = 0;
    Loader* loader;
    CHECK_FAILS(loader_open(&loader, path, &options), STATUS_BAD_OPTION, "0 tokens in a target --->");
}

// Both sides count, an empty input as one token; as many samples as fit.
static void both_sides_fill_a_batch(void) {
    Rng rng = rng_seed(seed);
    int32_t num_empty = 0;
    for (int round = 0; round < 20; round++) {
        LoaderOptions options = pair_options();
        options.batch_tokens = rng_between(&rng, 1, 1000);
        options.shuffle = round % 3 > 0;
        options.supervise_inputs = round % 2;
        Loader* loader = open_loader(&options);
        Arena arena = {0};
        LoaderBatch batch = {0}, next;
        CHECK_OK(loader_next(loader, &batch, &arena));
        for (int step = 0; step < 40 && batch.num_samples > 0; step++) {
            int64_t num_tokens = 0, supervised_tokens = 0;
            for (int32_t i = 0; i < batch.num_samples; i++) {
                const MadeSample* made = &data.samples[batch.samples[i].id];
                CHECK_EQ(batch.lengths[i].enc_tokens, made->n_input > 0 ? made->n_input : 1);
                CHECK_EQ(batch.lengths[i].dec_tokens, made->n_target);
                CHECK_EQ(batch.lengths[i].supervised_tokens, made->n_target);
                num_empty += made->n_input == 0;
                num_tokens += batch.lengths[i].enc_tokens + batch.lengths[i].dec_tokens;
                supervised_tokens += made->n_target;
            }
            CHECK_EQ(batch.num_tokens, num_tokens);
            CHECK_EQ(batch.supervised_tokens, supervised_tokens);
            CHECK(num_tokens <= options.batch_tokens || batch.num_samples == 1);
            CHECK_OK(loader_next(loader, &next, &arena));
            CHECK(batch.end ? next.num_samples == 0
                            : num_tokens + next.lengths[0].enc_tokens + next.lengths[0].dec_tokens >
                                  options.batch_tokens);
            batch = next;
        }
        loader_close(loader);
        arena_free(&arena);
    }
    CHECK(num_empty > 0);
}

static void positions_know_the_longest_target(void) {
    LoaderOptions options = pair_options();
    Loader* loader = open_loader(&options);
    Arena arena = {0};
    LoaderBatch first, second, again;
    CHECK_OK(loader_next(loader, &first, &arena));
    CHECK_OK(loader_next(loader, &second, &arena));
    CHECK_OK(loader_restore(loader, first.position, first.position_bytes));
    CHECK_OK(loader_next(loader, &again, &arena));
    CHECK_EQ(again.num_samples, second.num_samples);
    CHECK(memcmp(again.samples, second.samples, sizeof(LoaderSample) * (size_t)again.num_samples) == 0);
    loader_close(loader);
    options.max_target_tokens++;  // no sample is that long: the data looks the same
    loader = open_loader(&options);
    CHECK_FAILS(loader_restore(loader, first.position, first.position_bytes), STATUS_MISMATCH,
                "another longest target");
    loader_close(loader);
    options.encoder_decoder = false;
    loader = open_loader(&options);
    CHECK_FAILS(loader_restore(loader, first.position, first.position_bytes), STATUS_MISMATCH,
                "data position: saved with");
    loader_close(loader);
    arena_free(&arena);
}

static void plain_text_has_no_targets(void) {
    char text[128];
    int32_t tokens[] = {50256, 1, 2, 3, 50256, 5, 6};
    snprintf(text, sizeof text, "%s/web_train_000000.bin", dir);
    maker_write_llmc(text, 20240520, 1, tokens, 7);
    LoaderOptions options = pair_options();
    Loader* loader;
    CHECK_FAILS(loader_open(&loader, text, &options), STATUS_BAD_OPTION, "web_train_000000.bin: plain text");
    CHECK_FAILS(loader_open(&loader, text, &options), STATUS_BAD_OPTION, "--span-corruption on");
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    maker_dir_create(dir);
    snprintf(path, sizeof path, "%s/train.bin", dir);
    Rng rng = rng_seed(seed);
    data = maker_random(&rng, NUM_SAMPLES, NUM_TASKS, LONGEST, VOCAB);
    for (int32_t id = 0; id < 10; id++) {
        data.samples[id].n_input = 0;
        data.samples[id].n_target += 1;
    }
    maker_write(&data, 0, NUM_SAMPLES, dir, "train.bin");
    RUN(long_sides_are_cut_or_skipped_and_counted);
    RUN(both_sides_fill_a_batch);
    RUN(positions_know_the_longest_target);
    RUN(plain_text_has_no_targets);
    maker_dir_remove(dir);
    maker_free(&data);
    return test_end();
}
