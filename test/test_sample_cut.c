// test_sample_cut.c -- what is drawn of samples that are too long equals its definition, place by place.
#include "../dataloader/loader.h"

#include "data_maker.h"

static uint64_t seed;

enum { NUM_TASKS = 4, NUM_SAMPLES = 300, LONGEST = 200, VOCAB = 500 };

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

// What the loader has ids for: samples, and texts as consecutive pieces, of which each begins with the last
// token of the one before.
typedef struct {
    int32_t id, begin;
    bool is_piece;
} MadePiece;

static int32_t made_pieces(int32_t limit, LongSamples way, MadePiece* out) {
    int32_t num = 0;
    for (int32_t id = 0; id < NUM_SAMPLES; id++) {
        const MadeSample* made = &data.samples[id];
        bool cut = made->n_input == 0 && data.gaps[id].num_gaps == 0 && made->n_target > limit + 1;
        out[num++] = (MadePiece){id, 0, cut && way != LONG_SKIP};
        for (int32_t at = limit; cut && way != LONG_SKIP && at < made->n_target - 1; at += limit) {
            out[num++] = (MadePiece){id, at, true};
        }
    }
    return num;
}

// The definition, on all places of a sample: which of them are drawn. 0: it is skipped.
static int32_t places_drawn(const MadePiece* piece, int32_t limit, LongSamples way, int32_t out[LONGEST]) {
    const MadeSample* made = &data.samples[piece->id];
    const MadeGaps* gaps = &data.gaps[piece->id];
    int32_t tail = data.input_tail;
    int32_t most = limit + 1, length = made->n_input + made->n_target, num = 0;
    int32_t target_end = length, n_input = made->n_input;
    if (length > most && way == LONG_SKIP) { return 0; }
    if (piece->is_piece) {
        for (int32_t i = piece->begin; i <= piece->begin + limit && i < length; i++) { out[num++] = i; }
        return num;
    }
    if (length > most) {  // drop whole answers while that is enough
        for (int32_t g = gaps->num_gaps - 1; g >= 0 && target_end > most; g--) {
            target_end = (int32_t)gaps->gaps[g].begin;
        }
    }
    if (target_end > most) {
        n_input = most - (target_end - made->n_input);
        if (made->n_input == 0) { target_end = most; }
        if (made->n_input > 0 && n_input < 1) { return 0; }
        if (made->n_input == 0) { n_input = 0; }
    }
    if (tail > n_input) { tail = n_input; }
    for (int32_t i = 0; i < made->n_input; i++) {
        int32_t from_end = made->n_input - i;
        int32_t front = way == LONG_CUT_START ? 0 : way == LONG_CUT_END ? n_input : (n_input + 1) / 2;
        if (front > n_input - tail) { front = n_input - tail; }
        if (n_input == made->n_input || i < front || from_end <= n_input - front) { out[num++] = i; }
    }
    for (int32_t i = made->n_input; i < target_end; i++) { out[num++] = i; }
    return num;
}

static void check_drawn(const Loader* loader, const LoaderSample* drawn, const MadePiece* piece,
                        const int32_t* places, int32_t num_places) {
    const MadeSample* made = &data.samples[piece->id];
    const MadeGaps* made_gaps = &data.gaps[piece->id];
    int32_t tokens[LONGEST + 1], n_learnt = 0, n_answer = 0, first_target = made->n_input;
    if (piece->begin > 0) { first_target = piece->begin + 1; }
    CHECK_EQ(drawn->n_input + drawn->n_target, num_places);
    CHECK_OK(loader_read(loader, drawn, tokens));
    for (int32_t i = 0; i < num_places; i++) {
        CHECK_EQ(tokens[i], maker_token(&data, piece->id, places[i]));
        bool learnt = places[i] >= first_target && !maker_in_gap(made_gaps, places[i]);
        CHECK_EQ(i >= drawn->n_input, places[i] >= first_target);
        n_answer += learnt && n_answer == places[i] - first_target;
        n_learnt += learnt;
    }
    CHECK_EQ(drawn->n_learnt, n_learnt);
    CHECK_EQ(drawn->n_answer, n_answer);
    const SampleGap* gaps;
    int32_t num_gaps = loader_gaps(loader, drawn, &gaps), num_met = 0;
    for (int32_t g = 0; g < made_gaps->num_gaps; g++) {
        num_met += (int32_t)made_gaps->gaps[g].end <= places[num_places - 1];
    }
    CHECK_EQ(num_gaps, num_met);
    CHECK(num_gaps == 0 || gaps[0].begin == made_gaps->gaps[0].begin);
}

static void long_samples_are_cut_or_skipped_and_counted(void) {
    static MadePiece pieces[NUM_SAMPLES * LONGEST];
    int32_t num_texts = 0;
    for (int32_t limit = 1; limit <= LONGEST; limit += 13) {
        for (int way = LONG_CUT_END; way <= LONG_SKIP; way++) {
            LoaderOptions options = usual_options();
            options.max_seq_tokens = limit;
            options.long_samples = (LongSamples)way;
            options.shuffle = false;
            int64_t num_cut = 0, num_skipped = 0, of_task[NUM_TASKS] = {0};
            int32_t places[LONGEST + 1], num_pieces = made_pieces(limit, options.long_samples, pieces);
            num_texts += num_pieces > NUM_SAMPLES;
            for (int32_t id = 0; id < num_pieces; id++) {
                const MadeSample* made = &data.samples[pieces[id].id];
                int32_t num = places_drawn(&pieces[id], limit, options.long_samples, places);
                bool less = num < made->n_input + made->n_target && !pieces[id].is_piece;
                num_skipped += num == 0;
                num_cut += num > 0 && less;
                of_task[made->task] += less;
            }
            if (num_skipped == num_pieces) { continue; }
            Loader* loader = open_loader(&options);
            CHECK_EQ(loader_info(loader)->num_cut, num_cut);
            CHECK_EQ(loader_info(loader)->num_skipped, num_skipped);
            CHECK_EQ(loader_info(loader)->num_samples, num_pieces - num_skipped);
            for (int32_t k = 0; k < loader_info(loader)->num_tasks; k++) {
                int32_t made_task = 0;
                while (strcmp(loader_task_name(loader, k), maker_task_name(made_task)) != 0) { made_task++; }
                CHECK_EQ(loader_info(loader)->task_cut[k] + loader_info(loader)->task_skipped[k],
                         of_task[made_task]);
            }
            Arena arena = {0};
            LoaderBatch batch = {0};
            int64_t num_samples = 0, num_tokens = 0;
            while (!batch.end && test_failures == 0) {
                CHECK_OK(loader_next(loader, &batch, &arena));
                for (int32_t i = 0; i < batch.num_samples; i++) {
                    const MadePiece* piece = &pieces[batch.samples[i].id];
                    int32_t num = places_drawn(piece, limit, options.long_samples, places);
                    check_drawn(loader, &batch.samples[i], piece, places, num);
                }
                num_samples += batch.num_samples;
                num_tokens += batch.num_tokens;
            }
            CHECK_EQ(num_samples, loader_info(loader)->num_samples);
            CHECK_EQ(num_tokens, loader_info(loader)->num_tokens);
            loader_close(loader);
            arena_free(&arena);
        }
    }
    CHECK(num_texts > 0);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    maker_dir_create(dir);
    snprintf(pattern, sizeof pattern, "%s/train.bin", dir);
    Rng rng = rng_seed(seed);
    data = maker_random(&rng, NUM_SAMPLES, NUM_TASKS, LONGEST, VOCAB);
    maker_add_gaps(&rng, &data);
    data.input_tail = 2;
    maker_write(&data, 0, NUM_SAMPLES, dir, "train.bin");
    RUN(long_samples_are_cut_or_skipped_and_counted);
    maker_dir_remove(dir);
    maker_free(&data);
    return test_end();
}
