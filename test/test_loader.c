// test_loader.c -- one stream from a seed: complete, within its budget, and picked up exactly where it was
// left.
#include "../dataloader/loader.h"

#include "data_maker.h"

static uint64_t seed;

enum { NUM_TASKS = 4, NUM_SAMPLES = 300, LONGEST = 200, VOCAB = 500 };

// Three files of random samples that every test reads.
static char dir[64], pattern[80];
static MadeData data;

static LoaderOptions usual_options(void) {
    return (LoaderOptions){.batch_tokens = 700, .max_seq_tokens = LONGEST, .seed = seed, .shuffle = true};
}

static Loader* open_loader(const LoaderOptions* options) {
    Loader* loader = NULL;
    CHECK_OK(loader_open(&loader, pattern, options));
    if (loader == NULL) { exit(1); }
    return loader;
}

static bool equal_batches(const LoaderBatch* a, const LoaderBatch* b) {
    return a->num_samples == b->num_samples && a->step == b->step && a->end == b->end &&
           a->num_tokens == b->num_tokens && a->supervised_tokens == b->supervised_tokens &&
           memcmp(a->samples, b->samples, (size_t)a->num_samples * sizeof *a->samples) == 0 &&
           memcmp(a->lengths, b->lengths, (size_t)a->num_samples * sizeof *a->lengths) == 0 &&
           a->position_bytes == b->position_bytes && memcmp(a->position, b->position, a->position_bytes) == 0;
}

static void equal_seeds_draw_equal_streams(void) {
    LoaderOptions options = usual_options(), other_options = options;
    other_options.seed++;
    Loader *a = open_loader(&options), *b = open_loader(&options), *other = open_loader(&other_options);
    Arena arena = {0};
    int num_same = 0;
    for (int step = 0; step < 60; step++) {
        LoaderBatch x, y, z;
        CHECK_OK(loader_next(a, &x, &arena));
        CHECK_OK(loader_next(b, &y, &arena));
        CHECK_OK(loader_next(other, &z, &arena));
        CHECK(equal_batches(&x, &y));
        CHECK_EQ(x.step, step);
        num_same += x.samples[0].id == z.samples[0].id;
    }
    CHECK(num_same < 10);
    loader_close(a);
    loader_close(b);
    loader_close(other);
    arena_free(&arena);
}

// From the position of every batch, a loader opened on another seed goes on exactly as the first one did.
static void every_position_is_restored_exactly(void) {
    enum { STEPS = 70 };
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        LoaderOptions options = usual_options();
        options.shuffle = shuffle;
        Loader* loader = open_loader(&options);
        options.seed += 99;
        Arena arena = {0};
        LoaderBatch batches[STEPS], again;
        for (int step = 0; step < STEPS; step++) { CHECK_OK(loader_next(loader, &batches[step], &arena)); }
        Loader* other = open_loader(&options);
        for (int step = STEPS - 2; step >= 0 && test_failures == 0; step--) {
            CHECK_OK(loader_restore(other, batches[step].position, batches[step].position_bytes));
            for (int next = step + 1; next < STEPS && next < step + 5; next++) {
                CHECK_OK(loader_next(other, &again, &arena));
                CHECK(equal_batches(&again, &batches[next]));
            }
        }
        loader_rewind(loader);
        CHECK_OK(loader_next(loader, &again, &arena));
        CHECK(equal_batches(&again, &batches[0]));
        loader_close(loader);
        loader_close(other);
        arena_free(&arena);
    }
}

// Within a task, draws n*e ... n*(e+1) - 1 are all its n samples, in an order of their own.
static void every_epoch_of_a_task_is_complete(void) {
    LoaderOptions options = usual_options();
    options.mixture = MIXTURE_TEMPERATURE;
    options.temperature = 3;
    Loader* loader = open_loader(&options);
    Arena arena = {0};
    int32_t of_task[NUM_TASKS] = {0}, drawn[NUM_TASKS] = {0}, times[NUM_SAMPLES] = {0}, num_equal = 0;
    static int64_t first_epoch[NUM_TASKS][NUM_SAMPLES];
    int32_t task_of_made[NUM_TASKS];
    for (int32_t k = 0; k < NUM_TASKS; k++) {
        for (int32_t m = 0; m < NUM_TASKS; m++) {
            if (strcmp(loader_task_name(loader, k), maker_task_name(m)) == 0) { task_of_made[m] = k; }
        }
    }
    for (int32_t id = 0; id < NUM_SAMPLES; id++) { of_task[task_of_made[data.samples[id].task]]++; }
    for (int step = 0; step < 200; step++) {
        LoaderBatch batch;
        CHECK_OK(loader_next(loader, &batch, &arena));
        CHECK(!batch.end);
        for (int32_t i = 0; i < batch.num_samples; i++) {
            int64_t id = batch.samples[i].id;
            int32_t k = batch.samples[i].task;
            CHECK_EQ(k, task_of_made[data.samples[id].task]);
            int32_t epoch = drawn[k] / of_task[k], place = drawn[k] % of_task[k];
            CHECK_EQ(times[id], epoch);
            times[id]++;
            drawn[k]++;
            if (epoch == 0) { first_epoch[k][place] = id; }
            num_equal += epoch == 1 && first_epoch[k][place] == id;
        }
    }
    for (int32_t k = 0; k < NUM_TASKS; k++) { CHECK(drawn[k] > 3 * of_task[k]); }
    CHECK(num_equal < 30);  // about one a task where epochs are independent
    loader_close(loader);
    arena_free(&arena);
}

// As many samples as fit: never more than the budget, and the next sample would not have fit.
static void batches_are_full(void) {
    Rng rng = rng_seed(seed);
    for (int round = 0; round < 20; round++) {
        LoaderOptions options = usual_options();
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
                const LoaderSample* sample = &batch.samples[i];
                int32_t run = sample->n_input + sample->n_target - 1;
                int32_t supervised = 0;                         // token t predicts t + 1
                const MadeGaps* gaps = &data.gaps[sample->id];  // nothing is cut here
                for (int32_t t = 0; t < run; t++) {
                    bool learnt = t + 1 >= sample->n_input && !maker_in_gap(gaps, t + 1);
                    supervised += options.supervise_inputs || learnt;
                }
                CHECK_EQ(batch.lengths[i].enc_tokens, run);
                CHECK_EQ(batch.lengths[i].dec_tokens, 0);
                CHECK_EQ(batch.lengths[i].supervised_tokens, supervised);
                num_tokens += run;
                supervised_tokens += supervised;
            }
            CHECK_EQ(batch.num_tokens, num_tokens);
            CHECK_EQ(batch.supervised_tokens, supervised_tokens);
            CHECK(num_tokens <= options.batch_tokens || batch.num_samples == 1);
            CHECK_OK(loader_next(loader, &next, &arena));
            CHECK(batch.end ? next.num_samples == 0
                            : num_tokens + next.lengths[0].enc_tokens > options.batch_tokens);
            batch = next;
        }
        loader_close(loader);
        arena_free(&arena);
    }
}

static void without_shuffle_every_sample_comes_once_in_order(void) {
    LoaderOptions options = usual_options();
    options.shuffle = false;
    Loader* loader = open_loader(&options);
    Arena arena = {0};
    CHECK_EQ(loader_info(loader)->num_samples, NUM_SAMPLES);
    for (int pass = 0; pass < 2; pass++) {
        int64_t id = 0, num_tokens = 0;
        LoaderBatch batch = {0};
        while (!batch.end && id < NUM_SAMPLES) {
            CHECK_OK(loader_next(loader, &batch, &arena));
            num_tokens += batch.num_tokens;
            for (int32_t i = 0; i < batch.num_samples; i++, id++) {
                CHECK_EQ(batch.samples[i].id, id);
                int32_t tokens[LONGEST];
                CHECK_OK(loader_read(loader, &batch.samples[i], tokens));
                for (int32_t t = 0; t < batch.samples[i].n_input + batch.samples[i].n_target; t++) {
                    CHECK_EQ(tokens[t], maker_token(&data, id, t));
                }
            }
        }
        CHECK(batch.end);
        CHECK_EQ(id, NUM_SAMPLES);
        CHECK_EQ(num_tokens, loader_info(loader)->num_tokens);
        CHECK_OK(loader_next(loader, &batch, &arena));
        CHECK(batch.end && batch.num_samples == 0 && batch.num_tokens == 0);
        loader_rewind(loader);
    }
    LoaderSample beyond = {.id = NUM_SAMPLES, .n_input = 1, .n_target = 1};
    int32_t token[2];
    CHECK_FAILS(loader_read(loader, &beyond, token), STATUS_OUT_OF_RANGE, "sample 300 of 300");
    loader_close(loader);
    arena_free(&arena);
}

// With shuffling and skipping, what is skipped never comes.
static void skipped_samples_are_never_drawn(void) {
    LoaderOptions options = usual_options();
    options.max_seq_tokens = 20;
    options.long_samples = LONG_SKIP;
    Loader* loader = open_loader(&options);
    Arena arena = {0};
    for (int step = 0; step < 50; step++) {
        LoaderBatch batch;
        CHECK_OK(loader_next(loader, &batch, &arena));
        for (int32_t i = 0; i < batch.num_samples; i++) { CHECK(batch.lengths[i].enc_tokens <= 20); }
    }
    loader_close(loader);
    arena_free(&arena);
}

// The mixture reaches the stream: counts of tasks over many batches, for the three kinds.
static void tasks_come_in_their_proportions(void) {
    double of_task[NUM_TASKS] = {0};
    for (int32_t id = 0; id < NUM_SAMPLES; id++) { of_task[data.samples[id].task]++; }
    for (int kind = 0; kind < 3; kind++) {
        LoaderOptions options = usual_options();
        options.mixture = (MixtureKind)kind;
        options.mixture_cap = 70;
        options.temperature = 2;
        options.weights = "sort=3,copy=1";
        Loader* loader = open_loader(&options);
        double share[NUM_TASKS], whole = 0, drawn[NUM_TASKS] = {0}, num_drawn = 0;
        for (int k = 0; k < NUM_TASKS; k++) {
            double capped = of_task[k] < 70 ? of_task[k] : 70;
            double weight[] = {0, 3, 1, 0};  // add, sort, copy, facts
            share[k] = kind == 0 ? capped : kind == 1 ? __builtin_sqrt(capped) : weight[k];
            whole += share[k];
        }
        Arena arena = {0};
        for (int step = 0; step < 300; step++) {
            LoaderBatch batch;
            arena_reset(&arena);
            CHECK_OK(loader_next(loader, &batch, &arena));
            for (int32_t i = 0; i < batch.num_samples; i++, num_drawn++) {
                const char* name = loader_task_name(loader, batch.samples[i].task);
                for (int k = 0; k < NUM_TASKS; k++) { drawn[k] += strcmp(name, maker_task_name(k)) == 0; }
            }
        }
        CHECK(num_drawn > 1000);
        for (int k = 0; k < NUM_TASKS; k++) { CHECK_NEAR(drawn[k], num_drawn * share[k] / whole, 6); }
        loader_close(loader);
        arena_free(&arena);
    }
}

static void wrong_positions_are_refused(void) {
    LoaderOptions options = usual_options();
    Loader* loader = open_loader(&options);
    Arena arena = {0};
    LoaderBatch first, second, again;
    CHECK_OK(loader_next(loader, &first, &arena));
    CHECK_OK(loader_next(loader, &second, &arena));
    for (size_t n = 0; n <= first.position_bytes + 8; n++) {
        uint8_t* copy = calloc(1, n + 1);
        memcpy(copy, first.position, n < first.position_bytes ? n : first.position_bytes);
        CHECK(n == first.position_bytes || loader_restore(loader, copy, n) == STATUS_BAD_FORMAT);
        free(copy);
    }
    for (size_t bit = 0; bit < 8 * first.position_bytes; bit++) {
        first.position[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK_FAILS(loader_restore(loader, first.position, first.position_bytes),
                    strstr(status_message(), "saved with") ? STATUS_MISMATCH : STATUS_BAD_FORMAT, "--->");
        first.position[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    // None of that moved the loader.
    CHECK_OK(loader_next(loader, &again, &arena));
    CHECK_EQ(again.step, 2);
    CHECK_OK(loader_restore(loader, first.position, first.position_bytes));
    CHECK_OK(loader_next(loader, &again, &arena));
    CHECK(equal_batches(&again, &second));
    loader_close(loader);

    char one_file[80];
    snprintf(one_file, sizeof one_file, "%s/train_1.bin", dir);
    CHECK_OK(loader_open(&loader, one_file, &options));
    CHECK_FAILS(loader_restore(loader, first.position, first.position_bytes), STATUS_MISMATCH,
                "train_1.bin: saved with 3 files of data, now it is one of 1 --->");
    loader_close(loader);
    options.max_seq_tokens = 50;
    options.long_samples = LONG_SKIP;
    loader = open_loader(&options);
    CHECK_FAILS(loader_restore(loader, first.position, first.position_bytes), STATUS_MISMATCH,
                "saved with 300 samples, the data has");
    loader_close(loader);
    options = usual_options();
    options.max_seq_tokens = 120;  // cuts, but skips nothing
    loader = open_loader(&options);
    CHECK_FAILS(loader_restore(loader, first.position, first.position_bytes), STATUS_MISMATCH,
                "resume with the same data and -t");
    CHECK_OK(loader_next(loader, &second, &arena));
    loader_close(loader);
    options.long_samples = LONG_CUT_MIDDLE;  // as many tokens, but others
    loader = open_loader(&options);
    CHECK_FAILS(loader_restore(loader, second.position, second.position_bytes), STATUS_MISMATCH,
                "saved with another longest target, other cuts");
    loader_close(loader);
    options = usual_options();
    options.shuffle = false;
    loader = open_loader(&options);
    CHECK_FAILS(loader_restore(loader, first.position, first.position_bytes), STATUS_MISMATCH,
                "saved with shuffling");
    loader_close(loader);
    arena_free(&arena);
}

// Shards of an llm.c data set are one task; long documents are cut, and every prediction is made once.
static void llmc_documents_lose_nothing(void) {
    char path[128];
    int32_t tokens[1000], num_predictions = 0;
    Rng rng = rng_seed(seed);
    for (int f = 0; f < 2; f++) {
        for (int32_t i = 0; i < 1000; i++) {
            tokens[i] = i == 0 || rng_below(&rng, 120) == 0 ? 50256 : (int32_t)rng_below(&rng, 50256);
            num_predictions += i > 0 && tokens[i] != 50256;
        }
        snprintf(path, sizeof path, "%s/web_train_00000%d.bin", dir, f);
        maker_write_llmc(path, 20240520, 1, tokens, 1000);
    }
    snprintf(path, sizeof path, "%s/web_train_*.bin", dir);
    LoaderOptions options = usual_options();
    options.max_seq_tokens = 50;
    options.shuffle = false;
    Loader* loader = NULL;
    Arena arena = {0};
    LoaderBatch batch = {0};
    CHECK_OK(loader_open(&loader, path, &options));
    CHECK_EQ(loader_info(loader)->num_tasks, 1);
    CHECK(strcmp(loader_task_name(loader, 0), "web") == 0);
    CHECK_EQ(loader_info(loader)->vocab, 50257);
    CHECK_EQ(loader_info(loader)->eot_token, 50256);
    CHECK_EQ((int32_t)loader_info(loader)->tokenizer, TOKENIZER_GPT2);
    CHECK_EQ(loader_info(loader)->num_cut, 0);
    CHECK_EQ(loader_info(loader)->num_tokens, num_predictions);
    int64_t supervised_tokens = 0;
    while (!batch.end) {
        CHECK_OK(loader_next(loader, &batch, &arena));
        for (int32_t i = 0; i < batch.num_samples; i++) { CHECK(batch.lengths[i].enc_tokens <= 50); }
        supervised_tokens += batch.supervised_tokens;
    }
    CHECK_EQ(supervised_tokens, num_predictions);
    loader_close(loader);
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    maker_dir_create(dir);
    snprintf(pattern, sizeof pattern, "%s/train_?.bin", dir);
    Rng rng = rng_seed(seed);
    data = maker_random(&rng, NUM_SAMPLES, NUM_TASKS, LONGEST, VOCAB);
    maker_add_gaps(&rng, &data);
    data.input_tail = 2;
    for (int32_t f = 0; f < 3; f++) {
        char name[32];
        snprintf(name, sizeof name, "train_%d.bin", f);
        maker_write(&data, f * 100, f * 100 + 100, dir, name);
    }
    RUN(equal_seeds_draw_equal_streams);
    RUN(every_position_is_restored_exactly);
    RUN(every_epoch_of_a_task_is_complete);
    RUN(batches_are_full);
    RUN(without_shuffle_every_sample_comes_once_in_order);
    RUN(skipped_samples_are_never_drawn);
    RUN(tasks_come_in_their_proportions);
    RUN(wrong_positions_are_refused);
    RUN(llmc_documents_lose_nothing);
    maker_dir_remove(dir);
    maker_free(&data);
    return test_end();
}
