// test_loader.c -- batches in order, by weight, within limits; resumed bit for bit; and the parts that draw
// them.
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "../dataloader/loader.h"
#include "../util/numbers.h"
#include "test.h"
#include "data_maker.h"

static uint64_t seed;

// --- shuffle --------------------

static void every_number_comes_once(void) {
    Rng rng = rng_seed(seed);
    unsigned char* seen = malloc(70000);
    for (int round = 0; round < 120; round++) {
        uint64_t n = round < 70 ? (uint64_t)round + 1 : 1 + rng_below(&rng, 70000), key = rng_u64(&rng);
        memset(seen, 0, n);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t place = shuffle_index(n, key, i);
            CHECK(place < n);
            if (place < n) { seen[place]++; }
        }
        for (uint64_t i = 0; i < n; i++) { test_failures += seen[i] != 1; }
    }
    free(seen);
    CHECK(shuffle_index((uint64_t)1 << 62, 5, 17) < (uint64_t)1 << 62);
}

// --- mixture --------------------

enum { K = 5 };
static const char* const names[K] = {"add", "sort", "a=b", "none", "copy"};
static const int64_t examples[K] = {10, 400, 3000, 0, 90};

// Draw and compare with the expected shares: at every moment within a few samples, far inside what dice would
// do (their standard deviation after 20,000 draws is up to 70).
static void check_shares(const LoaderOptions* options, const double expected[K]) {
    Mixture mixture;
    CHECK_OK(mixture_create(&mixture, options, K, names, examples));
    double whole = 0;
    for (int k = 0; k < K; k++) { whole += expected[k]; }
    for (uint64_t s = 0; s < 5; s++) {
        int64_t drawn[K] = {0};
        uint64_t point = mixture_start(seed + s);
        for (int64_t i = 1; i <= 20000 && test_failures == 0; i++) {
            drawn[mixture_task(&mixture, point)]++;
            point = mixture_next(point);
            for (int k = 0; k < K; k++) { CHECK_NEAR(drawn[k], (double)i * expected[k] / whole, 6); }
        }
        for (int k = 0; k < K; k++) { CHECK(expected[k] > 0 || drawn[k] == 0); }
    }
    mixture_free(&mixture);
}

static void shares_are_as_asked(void) {
    static const struct {
        LoaderOptions options;
        double shares[K];
    } cases[] = {
        {{.mixture = MIXTURE_PROPORTIONAL}, {10, 400, 3000, 0, 90}},
        {{.mixture = MIXTURE_PROPORTIONAL, .mixture_cap = 300}, {10, 300, 300, 0, 90}},
        {{.mixture = MIXTURE_TEMPERATURE, .temperature = 2, .mixture_cap = 900},
         {3.1622777, 20, 30, 0, 9.4868330}},
        {{.mixture = MIXTURE_TEMPERATURE, .temperature = 1, .mixture_cap = 900}, {10, 400, 900, 0, 90}},
        {{.mixture = MIXTURE_TEMPERATURE, .temperature = 1e6}, {1, 1, 1, 0, 1}},
        {{.mixture = MIXTURE_TEMPERATURE, .temperature = 0.05, .mixture_cap = 900}, {0, 9.0453e-8, 1, 0, 0}},
        {{.mixture = MIXTURE_WEIGHTS, .weights = "sort=3,copy=1"}, {0, 3, 0, 0, 1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_shares(&cases[i].options, cases[i].shares);
    }
}

// Names of any bytes, some within others.
static void names_of_any_bytes_are_weighed(void) {
    static const char* const odd[] = {"a",   "a=1",    "a=1,b", "b",       ",",           "=",
                                      "ä ö", "\xff\n", "b=",    "a=1,b=2", "\x1b[31mred", "中,文=1"};
    enum { NUM_ODD = sizeof odd / sizeof odd[0] };
    static const struct {
        const char* text;
        double weights[NUM_ODD];
    } cases[] = {
        {"a=2,b=3", {2, 0, 0, 3}},
        {"a=1=4,a=1,b=5", {0, 4, 5}},
        {"a=1,b=2=7,,=1,==2", {0, 0, 0, 0, 1, 2, 0, 0, 0, 7}},
        {"ä ö=1,中,文=1=3,b==1", {0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 3}},
        {"\xff\n=1,\x1b[31mred=2", {0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 2}},
        {"\\xff\\x0a=1,\\x1b[31mred=2", {0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 2}},
    };
    int64_t one[NUM_ODD];
    for (int k = 0; k < NUM_ODD; k++) { one[k] = 1; }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        LoaderOptions options = {.mixture = MIXTURE_WEIGHTS, .weights = cases[i].text};
        Mixture mixture = {0};
        CHECK_OK(mixture_create(&mixture, &options, NUM_ODD, odd, one));
        double whole = 0, upto = 0;
        for (int k = 0; k < NUM_ODD; k++) { whole += cases[i].weights[k]; }
        for (int k = 0; k < NUM_ODD && mixture.upto != NULL; k++) {
            upto += cases[i].weights[k] / whole;
            CHECK_NEAR((double)mixture.upto[k] / 2147483648.0, upto, 1e-8);
        }
        mixture_free(&mixture);
    }
}

static void bad_mixtures_name_the_remedy(void) {
    static const struct {
        LoaderOptions options;
        const char* words;
    } cases[] = {
        {{.mixture = MIXTURE_WEIGHTS}, "'' is no task=number --->"},
        {{.mixture = MIXTURE_WEIGHTS, .weights = "ad=1"}, "for tasks of the data: add, sort"},
        {{.mixture = MIXTURE_WEIGHTS, .weights = "add"}, "'add' is no task=number"},
        {{.mixture = MIXTURE_WEIGHTS, .weights = "add=1,"}, "'' is no task=number"},
        {{.mixture = MIXTURE_WEIGHTS, .weights = "add=nan"}, "'add=nan' is no"},
        {{.mixture = MIXTURE_WEIGHTS, .weights = "add=,sort=1"}, "'add=' is no"},
        {{.mixture = MIXTURE_WEIGHTS, .weights = "add=1,sort=2,add=3"}, "task 'add' twice"},
        {{.mixture = MIXTURE_WEIGHTS, .weights = "add=0"}, "every task has weight 0"},
        {{.mixture = MIXTURE_WEIGHTS, .weights = "none=1,add=1"}, "task 'none' has no sample"},
        {{.mixture = MIXTURE_TEMPERATURE}, "temperature: 0 ---> use a number above 0"},
        {{.mixture = MIXTURE_PROPORTIONAL, .mixture_cap = -1}, "cap: -1 --->"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Mixture mixture = {0};
        CHECK_FAILS(mixture_create(&mixture, &cases[i].options, K, names, examples), STATUS_BAD_OPTION,
                    cases[i].words);
        CHECK(mixture.upto == NULL);
    }
}

// --- span corruption --------------------

enum { EOT = 1, FIRST_SENTINEL = 32099, TEXT_VOCAB = 32000, LONGEST = 3000 };

static SpanCorruption t5_spans(void) {
    return (SpanCorruption){0.15, 3, FIRST_SENTINEL, -1, 100, EOT};
}

static SpanCorruption random_spans(Rng* rng) {
    return (SpanCorruption){.noise_density = rng_between(rng, 1, 99) / 100.0,
                            .mean_span = rng_between(rng, 2, 40) / 2.0,
                            .sentinel_first = 50000,
                            .sentinel_step = rng_below(rng, 2) ? 1 : -1,
                            .num_sentinels = rng_below(rng, 3) ? rng_between(rng, 1, 12) : 1000,
                            .eot_token = EOT};
}

// What a corrupted text is, read back: its spans, and the text.
typedef struct {
    int32_t num_spans, num_tokens;
    int32_t kept[LONGEST], noise[LONGEST];  // lengths, of what is before span i and of span i
    int32_t text[LONGEST];
} Undone;

static int32_t sentinel_of(const SpanCorruption* spans, int32_t token) {
    int32_t i = (token - spans->sentinel_first) * spans->sentinel_step;
    return i >= 0 && i < spans->num_sentinels ? i : -1;
}

static bool undo(Undone* out, const SpanCorruption* spans, const int32_t* input, int32_t n_input,
                 const int32_t* target, int32_t n_target) {
    out->num_spans = out->num_tokens = 0;
    int32_t t = 0, num_kept = 0;
    if (input[n_input - 1] != spans->eot_token || target[n_target - 1] != spans->eot_token) { return false; }
    for (int32_t i = 0; i < n_input - 1; i++) {
        int32_t s = sentinel_of(spans, input[i]);
        if (s < 0) {
            out->text[out->num_tokens++] = input[i];
            num_kept++;
            continue;
        }
        if (s != out->num_spans || target[t++] != input[i]) { return false; }
        int32_t num_noise = 0;
        for (; t < n_target - 1 && sentinel_of(spans, target[t]) < 0; t++, num_noise++) {
            out->text[out->num_tokens++] = target[t];
        }
        out->kept[out->num_spans] = num_kept;
        out->noise[out->num_spans++] = num_noise;
        num_kept = 0;
    }
    return t == n_target - 1 && num_kept == 0;  // the text ends with noise
}

static void corrupt_and_undo(Undone* out, const SpanCorruption* spans, uint64_t key, int32_t num_tokens) {
    static int32_t text[LONGEST], sides[4 * LONGEST];
    for (int32_t i = 0; i < num_tokens; i++) {
        text[i] = 2 + (int32_t)(rng_mix((uint64_t)i + seed) % (TEXT_VOCAB - 2));
    }
    SpanLengths lengths = span_corruption_lengths(spans, num_tokens);
    int32_t n = lengths.n_input + lengths.n_target;
    for (int32_t i = 0; i <= n; i++) { sides[i] = -7; }
    span_corruption_apply(spans, key, text, num_tokens, sides, sides + lengths.n_input);
    CHECK_EQ(sides[n], -7);
    CHECK(undo(out, spans, sides, lengths.n_input, sides + lengths.n_input, lengths.n_target));
    CHECK_EQ(out->num_tokens, num_tokens);
    CHECK(memcmp(out->text, text, sizeof *text * (size_t)num_tokens) == 0);
    CHECK_EQ(out->num_spans, lengths.num_spans);
    int32_t num_noise = 0;
    for (int32_t i = 0; i < out->num_spans; i++) {
        CHECK(out->noise[i] >= 1);
        CHECK(out->kept[i] >= 1 || num_tokens == 1);
        num_noise += out->noise[i];
    }
    CHECK_EQ(num_noise, lengths.num_noise);
}

static void undoing_gives_back_the_text(void) {
    Rng rng = rng_seed(seed);
    static Undone undone;
    for (int round = 0; round < 2000 && test_failures == 0; round++) {
        SpanCorruption spans = round % 4 == 0 ? t5_spans() : random_spans(&rng);
        int32_t num_tokens = round % 3 ? rng_between(&rng, 1, 40) : rng_between(&rng, 1, LONGEST);
        if (round < 20) { num_tokens = round + 1; }
        corrupt_and_undo(&undone, &spans, rng_u64(&rng), num_tokens);
    }
}

// The share of noise and the mean span are as asked wherever the text is long enough, and nothing shrinks.
static void lengths_are_as_asked(void) {
    Rng rng = rng_seed(seed);
    for (int round = 0; round < 60; round++) {
        SpanCorruption spans = round == 0 ? t5_spans() : random_spans(&rng);
        SpanLengths before = {0};
        for (int32_t n = 1; n <= LONGEST && test_failures == 0; n++) {
            SpanLengths now = span_corruption_lengths(&spans, n);
            double noise = n * spans.noise_density, wanted = now.num_noise / spans.mean_span;
            bool least = now.num_noise == 1 && noise < 1, most = now.num_noise == n - 1 && noise > n - 1;
            CHECK(fabs(now.num_noise - noise) <= 0.5 || least || most || n == 1);
            CHECK(now.num_noise >= 1 && (now.num_noise < n || n == 1));
            bool no_more = now.num_spans == spans.num_sentinels || now.num_spans == n - now.num_noise;
            CHECK(fabs(now.num_spans - wanted) <= 0.5 || (now.num_spans == 1 && wanted < 1) ||
                  (no_more && wanted > now.num_spans) || n == 1);
            CHECK(now.num_spans >= 1 && now.num_spans <= spans.num_sentinels);
            CHECK_EQ(now.n_input, n - now.num_noise + now.num_spans + 1);
            CHECK_EQ(now.n_target, now.num_noise + now.num_spans + 1);
            CHECK(now.n_input >= before.n_input && now.n_target >= before.n_target);
            before = now;
        }
    }
}

// Of T5: inputs of 512 tokens are made of 568 and have targets of 114.
static void the_longest_text_is_the_longest(void) {
    SpanCorruption spans = t5_spans();
    CHECK_EQ(span_corruption_longest(&spans, 512, 1000), 568);
    CHECK_EQ(span_corruption_longest(&spans, 512, 114), 568);
    CHECK(span_corruption_longest(&spans, 512, 113) < 568);
    SpanLengths lengths = span_corruption_lengths(&spans, 568);
    CHECK(lengths.num_noise == 85 && lengths.num_spans == 28);
    CHECK(lengths.n_input == 512 && lengths.n_target == 114);
    Rng rng = rng_seed(seed);
    for (int round = 0; round < 300; round++) {
        spans = random_spans(&rng);
        int32_t max_input = rng_between(&rng, 1, 300), max_target = rng_between(&rng, 1, 300), longest = 0;
        for (int32_t n = 1; n <= max_input + max_target; n++) {
            lengths = span_corruption_lengths(&spans, n);
            if (lengths.n_input <= max_input && lengths.n_target <= max_target) { longest = n; }
        }
        CHECK_EQ(span_corruption_longest(&spans, max_input, max_target), longest);
    }
}

// 12 tokens, 6 of them noise, in 3 spans: 10 divisions of the kept ones times 10 of the noise, all as often.
static void every_division_is_as_likely(void) {
    enum { DRAWS = 40000, CELLS = 100 };
    SpanCorruption spans = {0.5, 2, 50000, 1, 100, EOT};
    static Undone undone;
    int32_t count[36][36] = {0}, num_cells = 0;
    for (int32_t i = 0; i < DRAWS; i++) {
        corrupt_and_undo(&undone, &spans, seed * 1000003u + (uint64_t)i, 12);
        CHECK_EQ(undone.num_spans, 3);
        if (test_failures > 0) { return; }
        count[undone.kept[0] * 6 + undone.kept[1]][undone.noise[0] * 6 + undone.noise[1]]++;
    }
    double expected = (double)DRAWS / CELLS, chi_square = 0;
    for (int k = 0; k < 36; k++) {
        for (int n = 0; n < 36; n++) {
            if (count[k][n] == 0) { continue; }
            num_cells++;
            chi_square += (count[k][n] - expected) * (count[k][n] - expected) / expected;
        }
    }
    CHECK_EQ(num_cells, CELLS);
    CHECK(chi_square < CELLS - 1 + 6 * sqrt(2.0 * (CELLS - 1)));  // six standard deviations above its mean
}

// --- largest samples --------------------

static bool covers(const PlanSample* a, const PlanSample* b) {
    return a->enc_tokens >= b->enc_tokens && a->dec_tokens >= b->dec_tokens &&
           a->supervised_tokens >= b->supervised_tokens;
}

static int32_t num_covering(const LargestSamples* largest, const PlanSample* lengths) {
    int32_t num = 0;
    for (int32_t i = 0; i < largest->num_samples; i++) { num += covers(&largest->samples[i], lengths); }
    return num;
}

static void all_are_covered_by_few(void) {
    enum { NUM = 300 };
    Rng rng = rng_seed(seed);
    for (int32_t round = 0; round < 50; round++) {
        LargestSamples largest = {0};
        PlanSample all[NUM];
        int32_t most = round % 5 == 0 ? 3 : 500;
        for (int32_t i = 0; i < NUM; i++) {
            all[i] = plan_sample(rng_between(&rng, 1, most), round % 2 * rng_between(&rng, 1, most),
                                 rng_between(&rng, 1, most));
            CHECK_OK(largest_samples_add(&largest, &all[i]));
        }
        for (int32_t i = 0; i < NUM; i++) { CHECK(num_covering(&largest, &all[i]) >= 1); }
        for (int32_t i = 0; i < largest.num_samples; i++) {
            CHECK_EQ(num_covering(&largest, &largest.samples[i]), 1);
        }
        largest_samples_free(&largest);
        CHECK_EQ(largest.num_samples, 0);
    }
}

// --- loader -----------------------------------------------------------------------------------------------

enum { NUM_TASKS = 4, NUM_SAMPLES = 300, LONGEST_SAMPLE = 200, VOCAB = 500 };

// Three files of random samples, conversations among them, that every test reads.
static char dir[64], pattern[80];
static MadeData data;

static LoaderOptions usual_options(void) {
    return (LoaderOptions){
        .batch_tokens = 700, .max_seq_tokens = LONGEST_SAMPLE, .seed = seed, .shuffle = true};
}

static Loader* open_path(const char* path, const LoaderOptions* options) {
    Loader* loader = NULL;
    CHECK_OK(loader_open(&loader, path, options));
    if (loader == NULL) { exit(1); }
    return loader;
}

static Loader* open_loader(const LoaderOptions* options) {
    return open_path(pattern, options);
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
static int32_t places_drawn(const MadePiece* piece, int32_t limit, LongSamples way,
                            int32_t out[LONGEST_SAMPLE]) {
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
    int32_t tokens[LONGEST_SAMPLE + 1], n_learnt = 0, n_answer = 0, first_target = made->n_input;
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

// In file order, every sample within the limits once, cut by definition; all of the others are counted.
static void long_samples_are_cut_or_skipped_and_counted(void) {
    static MadePiece pieces[NUM_SAMPLES * LONGEST_SAMPLE];
    int32_t num_texts = 0;
    for (int32_t limit = 5; limit <= LONGEST_SAMPLE; limit += 13) {
        for (int way = LONG_CUT_END; way <= LONG_SKIP; way++) {
            LoaderOptions options = usual_options();
            options.max_seq_tokens = limit;
            options.long_samples = (LongSamples)way;
            options.shuffle = false;
            int64_t num_cut = 0, num_skipped = 0, of_task[NUM_TASKS] = {0};
            int32_t places[LONGEST_SAMPLE + 1], num_pieces = made_pieces(limit, options.long_samples, pieces);
            num_texts += num_pieces > NUM_SAMPLES;
            for (int32_t id = 0; id < num_pieces; id++) {
                const MadeSample* made = &data.samples[pieces[id].id];
                int32_t num = places_drawn(&pieces[id], limit, options.long_samples, places);
                bool less = num < made->n_input + made->n_target && !pieces[id].is_piece;
                num_skipped += num == 0;
                num_cut += num > 0 && less;
                of_task[made->task] += less;
            }
            Loader* loader = open_loader(&options);
            const LoaderInfo* info = loader_info(loader);
            CHECK_EQ(info->num_cut, num_cut);
            CHECK_EQ(info->num_skipped, num_skipped);
            CHECK_EQ(info->num_samples, num_pieces - num_skipped);
            for (int32_t k = 0; k < info->num_tasks; k++) {
                int32_t made_task = 0;
                while (strcmp(loader_task_name(loader, k), maker_task_name(made_task)) != 0) { made_task++; }
                CHECK_EQ(info->task_cut[k] + info->task_skipped[k], of_task[made_task]);
            }
            Arena arena = {0};
            LoaderBatch batch = {0};
            int64_t num_samples = 0, num_tokens = 0, last_id = -1;
            while (!batch.end && test_failures == 0) {
                CHECK_OK(loader_next(loader, &batch, &arena));
                for (int32_t i = 0; i < batch.num_samples; i++) {
                    const MadePiece* piece = &pieces[batch.samples[i].id];
                    int32_t num = places_drawn(piece, limit, options.long_samples, places);
                    check_drawn(loader, &batch.samples[i], piece, places, num);
                    CHECK(batch.samples[i].id > last_id);
                    last_id = batch.samples[i].id;
                }
                num_samples += batch.num_samples;
                num_tokens += batch.num_tokens;
            }
            CHECK_EQ(num_samples, info->num_samples);
            CHECK_EQ(num_tokens, info->num_tokens);
            CHECK_OK(loader_next(loader, &batch, &arena));
            CHECK(batch.end && batch.num_samples == 0 && batch.num_tokens == 0);
            loader_close(loader);
            arena_free(&arena);
        }
    }
    CHECK(num_texts > 0);
}

// Equally many of each task (or all), at even distances, the same whatever the batch; each number of samples
// has a hash of its own.
static void a_pick_covers_every_task(void) {
    uint64_t last_hash = 0;
    for (int64_t most = 1; most <= NUM_SAMPLES; most += 23) {
        bool picked[2][NUM_SAMPLES] = {{false}};
        for (int round = 0; round < 2; round++) {
            LoaderOptions options = usual_options();
            options.shuffle = false;
            options.batch_tokens = round == 0 ? 700 : 90;
            Loader* loader = open_loader(&options);
            const LoaderInfo* info = loader_info(loader);
            Arena arena = {0};
            LoaderBatch batch = {0};
            int64_t num = loader_pick(loader, most), each = 0, met[NUM_TASKS] = {0};
            int32_t place[NUM_TASKS] = {0};
            CHECK(num <= (most > NUM_TASKS ? most : NUM_TASKS) && num > most - NUM_TASKS);
            CHECK(info->pick_hash != last_hash || round == 1 || most <= NUM_TASKS);
            last_hash = info->pick_hash;
            while (!batch.end) {
                CHECK_OK(loader_next(loader, &batch, &arena));
                for (int32_t i = 0; i < batch.num_samples; i++) { picked[round][batch.samples[i].id] = true; }
            }
            for (int64_t n = 0; n < NUM_SAMPLES; n++) {
                LoaderSample sample;
                CHECK_OK(loader_sample(loader, n, &sample));
                int32_t k = sample.task;
                met[k] += picked[round][sample.id];
                double even =
                    (double)++place[k] * (double)info->task_picked[k] / (double)info->task_samples[k];
                CHECK(fabs((double)met[k] - even) <= 1);
                CHECK(picked[round][sample.id] == picked[0][sample.id]);
            }
            for (int32_t k = 0; k < NUM_TASKS; k++) { each = met[k] > each ? met[k] : each; }
            for (int32_t k = 0; k < NUM_TASKS; k++) {
                num -= met[k];
                CHECK(met[k] == each || met[k] == place[k]);
            }
            CHECK_EQ(num, 0);
            loader_close(loader);
            arena_free(&arena);
        }
    }
}

// Tasks come by their weights; within a task, draws n*e ... n*(e+1) - 1 are all its n samples, in an order of
// their own.
static void every_epoch_of_a_task_is_complete(void) {
    LoaderOptions options = usual_options();
    options.mixture = MIXTURE_WEIGHTS;
    options.weights = "sort=3,add=1,copy=1,facts=1";
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
    int32_t num_drawn = 0;
    for (int32_t k = 0; k < NUM_TASKS; k++) {
        CHECK(drawn[k] > 3 * of_task[k]);
        num_drawn += drawn[k];
    }
    CHECK_NEAR(drawn[task_of_made[1]], num_drawn * 0.5, 6);
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
        int64_t num_alone = 0, shared_tokens = 0;
        for (int32_t id = 0; id < NUM_SAMPLES; id++) {
            int64_t run = data.samples[id].n_input + data.samples[id].n_target - 1;
            num_alone += run > options.batch_tokens;
            shared_tokens += run > options.batch_tokens ? 0 : run;
        }
        CHECK_EQ(loader_info(loader)->num_alone, num_alone);
        CHECK_EQ(loader_info(loader)->num_batches,
                 num_alone + (shared_tokens + options.batch_tokens - 1) / options.batch_tokens);
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

static void check_refused(const LoaderBatch* saved, const char* path, LoaderOptions options,
                          const char* words) {
    Loader* loader = open_path(path, &options);
    CHECK_FAILS(loader_restore(loader, saved->position, saved->position_bytes), STATUS_MISMATCH, words);
    loader_close(loader);
}

static void wrong_positions_are_refused(void) {
    LoaderOptions options = usual_options(), cut = options, other = options;
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
    loader_close(loader);

    other.max_seq_tokens = 50;
    other.long_samples = LONG_SKIP;
    check_refused(&first, pattern, other, "saved with another number of samples");
    cut.max_seq_tokens = 120;  // cuts, but skips nothing
    check_refused(&first, pattern, cut, "saved with other task names or lengths");
    loader = open_loader(&cut);
    CHECK_OK(loader_next(loader, &second, &arena));
    loader_close(loader);
    cut.long_samples = LONG_CUT_MIDDLE;  // as many tokens, but others
    check_refused(&second, pattern, cut, "other cuts");
    other = options;
    other.shuffle = false;
    check_refused(&first, pattern, other, "saved with the other --shuffle");

    // Other text of the same lengths is another file; the same under another name is not.
    char moved[64], files[80];
    maker_dir_create(moved);
    snprintf(files, sizeof files, "%s/*.bin", moved);
    maker_write(&data, 0, 100, moved, "a.bin");
    maker_write(&data, 100, 200, moved, "b.bin");
    check_refused(&first, files, options, "a.bin: saved with 3 files of data, now it is one of 2");
    maker_write(&data, 200, 300, moved, "c.bin");
    loader = open_path(files, &options);
    CHECK_OK(loader_restore(loader, first.position, first.position_bytes));
    loader_close(loader);
    MadeData changed = data;  // tokens are by id: other ones
    changed.samples += 100;
    changed.gaps += 100;
    maker_write(&changed, 0, 100, moved, "b.bin");
    check_refused(&first, files, options, "b.bin: saved with other contents of this file");
    maker_dir_remove(moved);
    arena_free(&arena);
}

static void what_cannot_be_opened_is_named(void) {
    static MadeSample samples[] = {{0, 50, 10}, {0, 10, 80}};
    MadeData made = {.vocab = VOCAB, .num_samples = 2, .samples = samples};
    maker_write(&made, 0, 2, dir, "long.bin");
    maker_write(&made, 0, 0, dir, "empty.bin");
    maker_write(&made, 0, 1, dir, "torn.bin");
    const struct {
        const char* file;
        LoaderOptions options;
        Status status;
        const char* words;
    } cases[] = {
        {"val*.bin", {.batch_tokens = 9, .max_seq_tokens = 9}, STATUS_IO, "val*.bin: no file matches --->"},
        {"torn.bin", {.batch_tokens = 9, .max_seq_tokens = 9}, STATUS_BAD_FORMAT, "torn.bin: truncated"},
        {"empty.bin",
         {.batch_tokens = 9, .max_seq_tokens = 9},
         STATUS_BAD_FORMAT,
         "empty.bin: no samples --->"},
        {"long.bin", {.max_seq_tokens = 9}, STATUS_BAD_OPTION, "-d: 0"},
        {"long.bin", {.batch_tokens = 9}, STATUS_BAD_OPTION, "-t: 0"},
        {"long.bin",
         {.batch_tokens = 9, .max_seq_tokens = 58, .long_samples = LONG_SKIP},
         STATUS_BAD_OPTION,
         "long.bin: all 2 samples are longer than -t 58"},
        {"long.bin",
         {.batch_tokens = 9, .max_seq_tokens = 9, .encoder_decoder = true},
         STATUS_BAD_OPTION,
         "0 tokens in a target --->"},
        {"train_0.bin",
         {.batch_tokens = 9, .max_seq_tokens = 9, .encoder_decoder = true, .max_target_tokens = 9},
         STATUS_BAD_OPTION,
         "run prepare_data again with --turns apart"},
    };
    char path[128];
    snprintf(path, sizeof path, "%s/torn.bin", dir);
    CHECK_EQ(truncate(path, 120), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Loader* loader;
        snprintf(path, sizeof path, "%s/%s", dir, cases[i].file);
        CHECK_FAILS(loader_open(&loader, path, &cases[i].options), cases[i].status, cases[i].words);
    }
}

// --- loader text --------------------

// ByT5's ids: bytes are 3 ... 258, sentinels 259 ... 383.
enum {
    PAD = 0,
    BYT5_EOT = 1,
    FIRST_BYTE = 3,
    BYT5_FIRST_SENTINEL = 259,
    BYT5_VOCAB = 384,
    NUM_TEXTS = 60,
    LONGEST_TEXT = 400
};

static char text_pattern[80];

// The texts that the files hold, without end-of-text.
static int32_t text_tokens[NUM_TEXTS];
static int32_t texts[NUM_TEXTS][LONGEST_TEXT];

static LoaderOptions text_options(void) {
    return (LoaderOptions){.batch_tokens = 900,
                           .max_seq_tokens = 100,
                           .encoder_decoder = true,
                           .max_target_tokens = 40,
                           .span_corruption = true,
                           .mean_noise_span = 4,
                           .seed = seed,
                           .shuffle = true};
}

// The text of a drawn sample; its length.
static int32_t undo_drawn(const Loader* loader, const LoaderSample* sample, const SpanCorruption* spans,
                          int32_t* text) {
    static int32_t tokens[1000];
    static Undone undone;
    CHECK_OK(loader_read(loader, sample, tokens));
    CHECK(undo(&undone, spans, tokens, sample->n_input, tokens + sample->n_input, sample->n_target));
    memcpy(text, undone.text, (size_t)undone.num_tokens * sizeof *text);
    return undone.num_tokens;
}

// One pass in file order: every text comes whole, in pieces, and every piece but the last is as long as fits.
static void check_pass(const char* path, int32_t first_sentinel, int32_t step, int32_t eot) {
    LoaderOptions options = text_options();
    options.shuffle = false;
    options.sentinel_first = first_sentinel;
    options.sentinel_step = step;
    SpanCorruption spans = {0, 0, first_sentinel, step, 100, eot};
    Loader* loader = open_path(path, &options);
    Arena arena = {0};
    int32_t t = 0, at = 0, num_pieces = 0, piece_tokens = 0;
    int64_t num_tokens = 0;
    while (t < NUM_TEXTS && text_tokens[t] == 0) { t++; }
    for (LoaderBatch batch = {0}; !batch.end && test_failures == 0;) {
        CHECK_OK(loader_next(loader, &batch, &arena));
        for (int32_t i = 0; i < batch.num_samples; i++, num_pieces++) {
            const LoaderSample* sample = &batch.samples[i];
            int32_t text[LONGEST_TEXT], n = undo_drawn(loader, sample, &spans, text);
            CHECK(t < NUM_TEXTS);
            CHECK(at + n <= text_tokens[t]);
            if (test_failures > 0) { break; }
            CHECK(memcmp(text, texts[t] + at, sizeof *text * (size_t)n) == 0);
            CHECK_EQ(sample->id, num_pieces);
            CHECK_EQ(sample->first_token, at);
            CHECK_EQ(batch.lengths[i].enc_tokens, sample->n_input);
            CHECK_EQ(batch.lengths[i].dec_tokens, sample->n_target);
            CHECK_EQ(batch.lengths[i].supervised_tokens, sample->n_target);
            CHECK(sample->n_input <= 100 && sample->n_target <= 40);
            at += n;
            if (at < text_tokens[t]) {
                CHECK(sample->n_input == 100 || sample->n_target == 40 || sample->n_target == 39);
                CHECK(piece_tokens == 0 || n == piece_tokens);
                piece_tokens = n;
                continue;
            }
            at = 0;
            for (t++; t < NUM_TEXTS && text_tokens[t] == 0;) { t++; }
        }
        num_tokens += batch.num_tokens;
    }
    CHECK_EQ(t, NUM_TEXTS);
    CHECK_EQ(num_pieces, loader_info(loader)->num_samples);
    CHECK_EQ(num_tokens, loader_info(loader)->num_tokens);
    CHECK(piece_tokens > 50);
    loader_close(loader);
    arena_free(&arena);
}

// Texts as samples of two files, divided into input and target somewhere.
static void write_samples(SampleInputEnd input_end) {
    Rng rng = rng_seed(seed + 5);
    SampleVocab vocab = {BYT5_VOCAB, BYT5_EOT, PAD, TOKENIZER_BYT5, input_end, 0, 0};
    SampleWriter* writer = NULL;
    for (int32_t t = 0; t < NUM_TEXTS; t++) {
        char path[128];
        snprintf(path, sizeof path, "%s/text_%d.bin", dir, t / 40);
        if (t % 40 == 0) { CHECK_OK(sample_writer_open(&writer, path, &vocab)); }
        int32_t tokens[LONGEST_TEXT + 2], n = text_tokens[t], end = input_end == INPUT_END_EOT;
        int32_t n_input = rng_below(&rng, 3) ? rng_between(&rng, 0, n) : 0;
        memcpy(tokens, texts[t], sizeof *tokens * (size_t)n_input);
        tokens[n_input] = BYT5_EOT;
        memcpy(tokens + n_input + end, texts[t] + n_input, sizeof *tokens * (size_t)(n - n_input));
        tokens[n + end] = BYT5_EOT;
        CHECK_OK(sample_writer_add(writer, "text", tokens, n_input + end, n - n_input + 1, NULL, 0));
        if (t % 40 == 39 || t == NUM_TEXTS - 1) { CHECK_OK(sample_writer_finish(writer)); }
    }
}

static void every_text_comes_whole(void) {
    text_tokens[0] = 1;
    text_tokens[1] = 0;  // input </s>, target </s>
    text_tokens[NUM_TEXTS - 1] = 0;
    write_samples(INPUT_END_EOT);
    check_pass(text_pattern, BYT5_FIRST_SENTINEL, 1, BYT5_EOT);
    check_pass(text_pattern, 383, -1, BYT5_EOT);
    LoaderOptions options = text_options();
    Loader* loader = open_path(text_pattern, &options);
    CHECK_EQ(loader_info(loader)->num_skipped, 2);
    CHECK_EQ(loader_info(loader)->num_cut, 0);
    loader_close(loader);
    text_tokens[1] = 7;
    text_tokens[NUM_TEXTS - 1] = 2;
    write_samples(INPUT_END_NONE);
    check_pass(text_pattern, BYT5_FIRST_SENTINEL, 1, BYT5_EOT);
}

// A document of an llm.c file begins with end-of-text, the first of a shard perhaps not.
static void documents_come_whole(void) {
    static int32_t tokens[NUM_TEXTS * (LONGEST_TEXT + 1)];
    for (int with_eot = 0; with_eot < 2; with_eot++) {
        int32_t n = 0, first_tokens = text_tokens[0];
        text_tokens[0] = with_eot ? 1 : 5;
        for (int32_t t = 0; t < NUM_TEXTS; t++) {
            if (t > 0 || with_eot) { tokens[n++] = 50256; }
            for (int32_t i = 0; i < text_tokens[t]; i++) { tokens[n++] = texts[t][i]; }
        }
        char path[128];
        snprintf(path, sizeof path, "%s/web_train_000000.bin", dir);
        maker_write_llmc(path, 20240520, 1, tokens, n);
        check_pass(path, 40000, -1, 50256);
        text_tokens[0] = first_tokens;
    }
}

static bool equal_lengths(const PlanSample* a, const PlanSample* b) {
    return a->enc_tokens == b->enc_tokens && a->dec_tokens == b->dec_tokens &&
           a->supervised_tokens == b->supervised_tokens && a->num_spans == b->num_spans &&
           (a->num_spans == 0 || memcmp(a->spans, b->spans, (size_t)a->num_spans * sizeof *a->spans) == 0);
}

static bool equal_batches(const LoaderBatch* a, const LoaderBatch* b) {
    for (int32_t i = 0; i < a->num_samples && i < b->num_samples; i++) {
        if (!equal_lengths(&a->lengths[i], &b->lengths[i])) { return false; }
    }
    return a->num_samples == b->num_samples && a->step == b->step && a->end == b->end &&
           a->num_tokens == b->num_tokens && a->supervised_tokens == b->supervised_tokens &&
           memcmp(a->samples, b->samples, (size_t)a->num_samples * sizeof *a->samples) == 0 &&
           a->position_bytes == b->position_bytes && memcmp(a->position, b->position, a->position_bytes) == 0;
}

// From the position of every batch, a loader opened on another seed goes on exactly as the first one did: in
// random order, in file order, and with span corruption, whose spans follow from noise_key.
static void every_position_is_restored_exactly(void) {
    enum { STEPS = 70 };
    write_samples(INPUT_END_EOT);
    for (int kind = 0; kind < 3; kind++) {
        LoaderOptions options = kind < 2 ? usual_options() : text_options();
        const char* path = kind < 2 ? pattern : text_pattern;
        options.shuffle = kind != 1;
        Loader* loader = open_path(path, &options);
        options.seed += 99;
        Arena arena = {0};
        LoaderBatch batches[STEPS], again;
        for (int step = 0; step < STEPS; step++) { CHECK_OK(loader_next(loader, &batches[step], &arena)); }
        Loader* other = open_path(path, &options);
        CHECK_OK(loader_next(other, &again, &arena));
        CHECK(kind == 1 || memcmp(again.samples, batches[0].samples, sizeof *again.samples) != 0);
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

// What a tokenizer keeps for sentinels, and what the options make of it: the sentinels of a text with many
// spans.
static void sentinels_are_the_tokenizers(void) {
    static const struct {
        SampleTokenizer tokenizer;
        int32_t vocab, first, step;  // asked for
        int32_t got_first, got_step, num_spans;
        const char* words;  // of a refusal
    } cases[] = {
        {TOKENIZER_BYT5, 384, 0, 0, 259, 1, 125, NULL},
        {TOKENIZER_BYT5, 384, 0, -1, 383, -1, 125, NULL},
        {TOKENIZER_BYT5, 384, 258, -1, 258, -1, 100, NULL},
        {TOKENIZER_SENTENCEPIECE, 32100, 0, 0, 32099, -1, 100, NULL},
        {TOKENIZER_SENTENCEPIECE, 32100, 32050, 0, 32050, -1, 51, NULL},
        {TOKENIZER_GPT2, 50257, 40000, 0, 40000, -1, 100, NULL},
        {TOKENIZER_GPT2, 50257, 0, 0, 0, 0, 0, "no sentinels for --span-corruption --->"},
        {TOKENIZER_BYT5, 384, 50, -1, 0, 0, 0, "tokens 0 to 50 would be sentinels"},
        {TOKENIZER_BYT5, 384, INT32_MAX, 0, 0, 0, 0, "would be sentinels"},
    };
    char path[128];
    snprintf(path, sizeof path, "%s/kind.bin", dir);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int32_t all[1502] = {BYT5_EOT};
        for (int32_t t = 1; t <= 1500; t++) { all[t] = 3; }
        all[1501] = BYT5_EOT;
        SampleVocab vocab = {cases[i].vocab, BYT5_EOT, PAD, cases[i].tokenizer, INPUT_END_EOT, 0, 0};
        SampleWriter* writer;
        CHECK_OK(sample_writer_open(&writer, path, &vocab));
        CHECK_OK(sample_writer_add(writer, "text", all, 1, 1501, NULL, 0));
        CHECK_OK(sample_writer_finish(writer));
        LoaderOptions options = {.batch_tokens = 1,
                                 .max_seq_tokens = 5000,
                                 .encoder_decoder = true,
                                 .max_target_tokens = 5000,
                                 .span_corruption = true,
                                 .mean_noise_span = 1,
                                 .sentinel_first = cases[i].first,
                                 .sentinel_step = cases[i].step};
        Loader* loader;
        if (cases[i].words != NULL) {
            CHECK_FAILS(loader_open(&loader, path, &options), STATUS_BAD_OPTION, cases[i].words);
            continue;
        }
        loader = open_path(path, &options);
        LoaderSample sample;
        CHECK_OK(loader_sample(loader, 0, &sample));
        int32_t tokens[4000], num_spans = 0;
        CHECK_OK(loader_read(loader, &sample, tokens));
        for (int32_t t = 0; t < sample.n_input - 1; t++) {
            if (tokens[t] == 3) { continue; }
            CHECK_EQ(tokens[t], cases[i].got_first + num_spans * cases[i].got_step);
            num_spans++;
        }
        CHECK_EQ(num_spans, cases[i].num_spans);
        loader_close(loader);
    }
}

static void bad_options_and_other_positions_are_refused(void) {
    LoaderOptions options = text_options(), wrong[5];
    static const char* const words[] = {"--span-corruption on: needs", "--noise-density 1",
                                        "--noise-density -0.1", "--mean-noise-span 0.5",
                                        "targets of 2 tokens: too short"};
    for (int i = 0; i < 5; i++) { wrong[i] = options; }
    wrong[0].encoder_decoder = false;
    wrong[1].noise_density = 1;
    wrong[2].noise_density = -0.1;
    wrong[3].mean_noise_span = 0.5;
    wrong[4].max_target_tokens = 2;
    for (int i = 0; i < 5; i++) {
        Loader* loader;
        CHECK_FAILS(loader_open(&loader, text_pattern, &wrong[i]), STATUS_BAD_OPTION, words[i]);
    }

    options.mean_noise_span = 4.1;  // no ties: a little more or less makes no other lengths
    options.noise_density = 0.1511;
    options.sentinel_first = 321;  // as many above as below
    Loader* loader = open_path(text_pattern, &options);
    Arena arena = {0};
    LoaderBatch batch;
    CHECK_OK(loader_next(loader, &batch, &arena));
    loader_close(loader);
    for (int i = 0; i < 4; i++) { wrong[i] = options; }
    wrong[0].sentinel_first = 322;
    wrong[1].sentinel_step = -1;
    wrong[2].mean_noise_span = 4.1001;
    wrong[3].noise_density = 0.151101;
    for (int i = 0; i < 4; i++) {
        check_refused(&batch, text_pattern, wrong[i], "other span corruption --->");
    }
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    Rng rng;
    RUN(every_number_comes_once);
    RUN(shares_are_as_asked);
    RUN(names_of_any_bytes_are_weighed);
    RUN(bad_mixtures_name_the_remedy);
    RUN(undoing_gives_back_the_text);
    RUN(lengths_are_as_asked);
    RUN(the_longest_text_is_the_longest);
    RUN(every_division_is_as_likely);
    RUN(all_are_covered_by_few);
    maker_dir_create(dir);
    snprintf(pattern, sizeof pattern, "%s/train_?.bin", dir);
    snprintf(text_pattern, sizeof text_pattern, "%s/text_?.bin", dir);
    rng = rng_seed(seed);
    data = maker_random(&rng, NUM_SAMPLES, NUM_TASKS, LONGEST_SAMPLE, VOCAB);
    maker_add_gaps(&rng, &data);
    data.input_tail = 2;
    maker_write(&data, 0, 100, dir, "train_0.bin");
    maker_write(&data, 100, 200, dir, "train_1.bin");
    maker_write(&data, 200, 300, dir, "train_2.bin");
    for (int32_t t = 0; t < NUM_TEXTS; t++) {
        text_tokens[t] = rng_between(&rng, 1, rng_below(&rng, 3) ? 60 : LONGEST_TEXT);
        for (int32_t i = 0; i < LONGEST_TEXT; i++) { texts[t][i] = rng_between(&rng, FIRST_BYTE, 258); }
    }
    RUN(long_samples_are_cut_or_skipped_and_counted);
    RUN(a_pick_covers_every_task);
    RUN(every_epoch_of_a_task_is_complete);
    RUN(batches_are_full);
    RUN(wrong_positions_are_refused);
    RUN(what_cannot_be_opened_is_named);
    RUN(every_position_is_restored_exactly);
    RUN(every_text_comes_whole);
    RUN(documents_come_whole);
    RUN(sentinels_are_the_tokenizers);
    RUN(bad_options_and_other_positions_are_refused);
    maker_dir_remove(dir);
    maker_free(&data);
    return test_end();
}
