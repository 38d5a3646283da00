// test_loader_text.c -- plain text as corrupted pieces: nothing is lost, other spans in every epoch,
// resumable.
#include "../dataloader/loader.h"

#include "data_maker.h"

static uint64_t seed;

// ByT5's ids: bytes are 3 ... 258, sentinels 259 ... 383.
enum { PAD = 0, EOT = 1, FIRST_BYTE = 3, FIRST_SENTINEL = 259, VOCAB = 384, NUM_TEXTS = 60, LONGEST = 400 };

static char dir[64], pattern[80];

// The texts that the files hold, without end-of-text.
static int32_t text_tokens[NUM_TEXTS];
static int32_t texts[NUM_TEXTS][LONGEST];

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

static Loader* open_loader(const char* path, const LoaderOptions* options) {
    Loader* loader = NULL;
    CHECK_OK(loader_open(&loader, path, options));
    if (loader == NULL) { exit(1); }
    return loader;
}

// The text of a drawn sample; its length.
static int32_t undo(const Loader* loader, const LoaderSample* sample, int32_t first_sentinel, int32_t step,
                    int32_t eot, int32_t* text) {
    static int32_t tokens[1000];
    CHECK_OK(loader_read(loader, sample, tokens));
    const int32_t* target = tokens + sample->n_input;
    int32_t n = 0, num_spans = 0;
    CHECK_EQ(tokens[sample->n_input - 1], eot);
    CHECK_EQ(target[sample->n_target - 1], eot);
    for (int32_t i = 0; i < sample->n_input - 1; i++) {
        if (tokens[i] != first_sentinel + num_spans * step) {
            text[n++] = tokens[i];
            continue;
        }
        CHECK_EQ(*target, tokens[i]);
        target++;
        num_spans++;
        while (*target != eot && *target != first_sentinel + num_spans * step) { text[n++] = *target++; }
    }
    CHECK_EQ(target + 1 - tokens, sample->n_input + sample->n_target);
    return n;
}

// One pass in file order: every text comes whole, in pieces, and every piece but the last is as long as fits.
static void check_pass(const char* path, int32_t first_sentinel, int32_t step, int32_t eot) {
    LoaderOptions options = text_options();
    options.shuffle = false;
    options.sentinel_first = first_sentinel;
    options.sentinel_step = step;
    Loader* loader = open_loader(path, &options);
    Arena arena = {0};
    int32_t t = 0, at = 0, num_pieces = 0, piece_tokens = 0;
    int64_t num_tokens = 0;
    while (t < NUM_TEXTS && text_tokens[t] == 0) { t++; }
    for (LoaderBatch batch = {0}; !batch.end && test_failures == 0;) {
        CHECK_OK(loader_next(loader, &batch, &arena));
        for (int32_t i = 0; i < batch.num_samples; i++, num_pieces++) {
            const LoaderSample* sample = &batch.samples[i];
            int32_t text[LONGEST], n = undo(loader, sample, first_sentinel, step, eot, text);
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
    SampleVocab vocab = {VOCAB, EOT, PAD, TOKENIZER_BYT5, input_end, 0, 0};
    SampleWriter* writer = NULL;
    for (int32_t t = 0; t < NUM_TEXTS; t++) {
        char path[128];
        snprintf(path, sizeof path, "%s/text_%d.bin", dir, t / 40);
        if (t % 40 == 0) { CHECK_OK(sample_writer_open(&writer, path, &vocab)); }
        int32_t input[LONGEST + 1], target[LONGEST + 1], n = text_tokens[t];
        int32_t n_input = rng_below(&rng, 3) ? rng_between(&rng, 0, n) : 0;
        memcpy(input, texts[t], sizeof *input * (size_t)n_input);
        memcpy(target, texts[t] + n_input, sizeof *target * (size_t)(n - n_input));
        target[n - n_input] = EOT;
        if (input_end == INPUT_END_EOT) { input[n_input] = EOT; }
        CHECK_OK(sample_writer_add(writer, "text", input, n_input + (input_end == INPUT_END_EOT), target,
                                   n - n_input + 1));
        if (t % 40 == 39 || t == NUM_TEXTS - 1) { CHECK_OK(sample_writer_finish(writer)); }
    }
}

static void every_text_comes_whole(void) {
    text_tokens[0] = 1;
    text_tokens[1] = 0;  // input </s>, target </s>
    text_tokens[NUM_TEXTS - 1] = 0;
    write_samples(INPUT_END_EOT);
    check_pass(pattern, FIRST_SENTINEL, 1, EOT);
    check_pass(pattern, 383, -1, EOT);
    LoaderOptions options = text_options();
    Loader* loader = open_loader(pattern, &options);
    CHECK_EQ(loader_info(loader)->num_skipped, 2);
    CHECK_EQ(loader_info(loader)->num_cut, 0);
    loader_close(loader);
    text_tokens[1] = 7;
    text_tokens[NUM_TEXTS - 1] = 2;
    write_samples(INPUT_END_NONE);
    check_pass(pattern, FIRST_SENTINEL, 1, EOT);
}

// A document of an llm.c file begins with end-of-text, the first of a shard perhaps not.
static void documents_come_whole(void) {
    static int32_t tokens[NUM_TEXTS * (LONGEST + 1)];
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

// Draw `num_steps` batches; all tokens of all samples go to `out`.
static int32_t draw(Loader* loader, int num_steps, int32_t* out, LoaderBatch* last, Arena* arena) {
    int32_t n = 0;
    for (int step = 0; step < num_steps; step++) {
        CHECK_OK(loader_next(loader, last, arena));
        for (int32_t i = 0; i < last->num_samples; i++) {
            CHECK_OK(loader_read(loader, &last->samples[i], out + n));
            n += last->samples[i].n_input + last->samples[i].n_target;
        }
    }
    return n;
}

static void equal_seeds_and_resumed_runs_have_equal_spans(void) {
    static int32_t a[50000], b[50000], c[50000];
    LoaderOptions options = text_options();
    Loader *first = open_loader(pattern, &options), *second = open_loader(pattern, &options);
    options.seed += 77;
    Loader* resumed = open_loader(pattern, &options);
    Arena arena = {0};
    LoaderBatch batch, other;
    int32_t n = draw(first, 20, a, &batch, &arena);
    CHECK_EQ(draw(second, 20, b, &other, &arena), n);
    CHECK(memcmp(a, b, sizeof *a * (size_t)n) == 0);
    CHECK(draw(resumed, 20, b, &other, &arena) != n || memcmp(a, b, sizeof *a * (size_t)n) != 0);
    CHECK_OK(loader_restore(resumed, batch.position, batch.position_bytes));
    n = draw(first, 20, b, &batch, &arena);
    CHECK_EQ(draw(resumed, 20, c, &other, &arena), n);
    CHECK(memcmp(b, c, sizeof *b * (size_t)n) == 0);
    loader_close(first);
    loader_close(second);
    loader_close(resumed);
    arena_free(&arena);
}

// A piece has other spans in another epoch, and the same text; without shuffling, the same for every seed.
static void epochs_have_spans_of_their_own(void) {
    enum { MOST = 400 };
    static int32_t before[MOST][200], now[200];
    static bool seen[MOST];
    LoaderOptions options = text_options();
    Loader* loader = open_loader(pattern, &options);
    int32_t num_samples = (int32_t)loader_info(loader)->num_samples, num_compared = 0, num_equal = 0;
    CHECK(num_samples < MOST);
    Arena arena = {0};
    for (int32_t drawn = 0; drawn < 2 * num_samples && test_failures == 0;) {
        LoaderBatch batch;
        CHECK_OK(loader_next(loader, &batch, &arena));
        for (int32_t i = 0; i < batch.num_samples; i++, drawn++) {
            const LoaderSample* sample = &batch.samples[i];
            int32_t n = sample->n_input + sample->n_target, text[2][200];
            CHECK_OK(loader_read(loader, sample, seen[sample->id] ? now : before[sample->id]));
            if (seen[sample->id] && n > 60) {
                num_compared++;
                num_equal += memcmp(now, before[sample->id], sizeof *now * (size_t)n) == 0;
                LoaderSample fixed;
                CHECK_OK(loader_sample(loader, sample->id, &fixed));  // one task: in file order
                CHECK_EQ(undo(loader, sample, FIRST_SENTINEL, 1, EOT, text[0]),
                         undo(loader, &fixed, FIRST_SENTINEL, 1, EOT, text[1]));
                CHECK(memcmp(text[0], text[1], sizeof(int32_t) * 30) == 0);
            }
            seen[sample->id] = true;
        }
    }
    CHECK(num_compared > 10 && num_equal * 20 < num_compared);
    loader_close(loader);
    options.shuffle = false;
    static int32_t a[50000], b[50000];
    LoaderBatch batch;
    Loader* val = open_loader(pattern, &options);
    options.seed++;
    Loader* other = open_loader(pattern, &options);
    int32_t n = draw(val, 10, a, &batch, &arena);
    CHECK_EQ(draw(other, 10, b, &batch, &arena), n);
    CHECK(memcmp(a, b, sizeof *a * (size_t)n) == 0);
    loader_rewind(val);
    CHECK_EQ(draw(val, 10, b, &batch, &arena), n);
    CHECK(memcmp(a, b, sizeof *a * (size_t)n) == 0);
    loader_close(val);
    loader_close(other);
    arena_free(&arena);
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
        {TOKENIZER_BYT5, 384, 300, -1, 300, -1, 42, NULL},
        {TOKENIZER_BYT5, 384, 258, -1, 258, -1, 100, NULL},
        {TOKENIZER_BYT5, 384, 382, 0, 382, 1, 2, NULL},
        {TOKENIZER_SENTENCEPIECE, 32100, 0, 0, 32099, -1, 100, NULL},
        {TOKENIZER_SENTENCEPIECE, 32100, 0, 1, 32000, 1, 100, NULL},
        {TOKENIZER_SENTENCEPIECE, 32100, 32050, 0, 32050, -1, 51, NULL},
        {TOKENIZER_GPT2, 50257, 40000, 0, 40000, -1, 100, NULL},
        {TOKENIZER_GPT2, 50257, 0, 0, 0, 0, 0, "no sentinels for --span-corruption --->"},
        {TOKENIZER_BYTES, 257, 0, 0, 0, 0, 0, "no sentinels for --span-corruption --->"},
        {TOKENIZER_BYT5, 384, 50, -1, 0, 0, 0, "tokens 0 to 50 would be sentinels"},
        {TOKENIZER_BYT5, 384, 384, 1, 0, 0, 0, "would be sentinels"},
        {TOKENIZER_BYT5, 384, -5, 1, 0, 0, 0, "would be sentinels"},
        {TOKENIZER_BYT5, 384, INT32_MAX, 0, 0, 0, 0, "would be sentinels"},
    };
    char path[128];
    snprintf(path, sizeof path, "%s/kind.bin", dir);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int32_t target[1501];
        for (int32_t t = 0; t < 1500; t++) { target[t] = 3; }
        target[1500] = EOT;
        SampleVocab vocab = {cases[i].vocab, EOT, PAD, cases[i].tokenizer, INPUT_END_EOT, 0, 0};
        SampleWriter* writer;
        CHECK_OK(sample_writer_open(&writer, path, &vocab));
        CHECK_OK(sample_writer_add(writer, "text", target + 1500, 1, target, 1501));
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
        loader = open_loader(path, &options);
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
        options.mean_noise_span = 0;  // 225 of the 1500 tokens are noise
        loader = open_loader(path, &options);
        CHECK_OK(loader_sample(loader, 0, &sample));
        int32_t usual = cases[i].tokenizer == TOKENIZER_BYT5 ? 11 : 75;
        CHECK_EQ(sample.n_target, 225 + (usual < num_spans ? usual : num_spans) + 1);
        loader_close(loader);
    }
}

static void bad_options_and_other_positions_are_refused(void) {
    Loader* loader;
    LoaderOptions options = text_options();
    options.encoder_decoder = false;
    CHECK_FAILS(loader_open(&loader, pattern, &options), STATUS_BAD_OPTION, "--span-corruption on: needs");
    options = text_options();
    options.noise_density = 1;
    CHECK_FAILS(loader_open(&loader, pattern, &options), STATUS_BAD_OPTION, "--noise-density 1");
    options.noise_density = -0.1;
    CHECK_FAILS(loader_open(&loader, pattern, &options), STATUS_BAD_OPTION, "--noise-density -0.1");
    options = text_options();
    options.mean_noise_span = 0.5;
    CHECK_FAILS(loader_open(&loader, pattern, &options), STATUS_BAD_OPTION, "--mean-noise-span 0.5");
    options = text_options();
    options.max_target_tokens = 2;
    CHECK_FAILS(loader_open(&loader, pattern, &options), STATUS_BAD_OPTION, "targets of 2 tokens: too short");

    options = text_options();
    options.mean_noise_span = 4.1;  // no ties: a little more or less makes no other lengths
    options.noise_density = 0.1511;
    options.sentinel_first = 321;  // as many above as below
    loader = open_loader(pattern, &options);
    Arena arena = {0};
    LoaderBatch batch;
    CHECK_OK(loader_next(loader, &batch, &arena));
    LoaderSample wrong = batch.samples[0];
    wrong.n_input++;
    int32_t tokens[1000];
    CHECK_FAILS(loader_read(loader, &wrong, tokens), STATUS_OUT_OF_RANGE, "as corrupted it has");
    loader_close(loader);
    for (int i = 0; i < 5; i++) {
        options = text_options();
        options.sentinel_first = i == 1 ? 322 : 321;
        options.sentinel_step = i == 2 ? -1 : 0;
        options.mean_noise_span = i == 3 ? 4.1001 : 4.1;
        options.noise_density = i == 4 ? 0.151101 : 0.1511;
        loader = open_loader(pattern, &options);
        if (i == 0) {
            CHECK_OK(loader_restore(loader, batch.position, batch.position_bytes));
        } else {
            CHECK_FAILS(loader_restore(loader, batch.position, batch.position_bytes), STATUS_MISMATCH,
                        "other span corruption --->");
        }
        loader_close(loader);
    }
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    maker_dir_create(dir);
    snprintf(pattern, sizeof pattern, "%s/text_?.bin", dir);
    Rng rng = rng_seed(seed);
    for (int32_t t = 0; t < NUM_TEXTS; t++) {
        text_tokens[t] = rng_below(&rng, 3) ? rng_between(&rng, 1, 60) : rng_between(&rng, 1, LONGEST);
        for (int32_t i = 0; i < LONGEST; i++) { texts[t][i] = rng_between(&rng, FIRST_BYTE, 258); }
    }
    RUN(every_text_comes_whole);
    RUN(documents_come_whole);
    RUN(equal_seeds_and_resumed_runs_have_equal_spans);
    RUN(epochs_have_spans_of_their_own);
    RUN(sentinels_are_the_tokenizers);
    RUN(bad_options_and_other_positions_are_refused);
    maker_dir_remove(dir);
    return test_end();
}
