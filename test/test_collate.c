// test_collate.c -- batches as models read them: every token once, at its place, with the right target; and
// the stock trainer's streams.

#include "../dataloader/collate.h"
#include "data_maker.h"

static uint64_t seed;

// --- collate ----------------------------------------------------------------------------------------------

enum { NUM_SAMPLES = 150, LONGEST = 60, VOCAB = 400, MAX_BATCH = 600 };

static char made_dir[64], chats_path[80], pairs_path[80];
static MadeData chats, pairs;

typedef enum { RAGGED, PADDED, PACKED, NUM_LAYOUTS } Layout;

typedef struct {
    PlanSequence sequences[MAX_BATCH];
    PlanSegment segments[MAX_BATCH];
    int32_t num_sequences;
} Windows;

static int32_t most(int32_t a, int32_t b) {
    return a > b ? a : b;
}

// Deal the samples of a batch, in a random order, into windows: one each, or one to four each.
static void deal(Windows* out, Rng* rng, const LoaderBatch* batch, Layout layout, bool is_pairs) {
    *out = (Windows){0};
    int32_t longest = 0, longest_dec = 0;
    for (int32_t i = 0; i < batch->num_samples; i++) {
        int32_t j = rng_between(rng, 0, i);
        out->segments[i] = out->segments[j];
        out->segments[j] = (PlanSegment){i, 0, batch->lengths[i].enc_tokens};
    }
    for (int32_t i = 0; i < batch->num_samples;) {
        PlanSequence* sequence = &out->sequences[out->num_sequences++];
        int32_t take = layout == PACKED ? rng_between(rng, 1, 4) : 1;
        sequence->segment_begin = i;
        for (int32_t n = 0; n < take && i < batch->num_samples; n++, i++) {
            PlanSegment* segment = &out->segments[i];
            sequence->enc_tokens += segment->num_tokens;
            sequence->dec_tokens += batch->lengths[segment->sample_idx].dec_tokens;
        }
        sequence->segment_end = i;
        if (layout == PACKED) {
            sequence->enc_tokens += rng_between(rng, 0, 2) * rng_between(rng, 0, 3);
            sequence->dec_tokens += is_pairs ? rng_between(rng, 0, 2) * rng_between(rng, 0, 3) : 0;
        }
        longest = most(longest, sequence->enc_tokens);
        longest_dec = most(longest_dec, sequence->dec_tokens);
    }
    for (int32_t s = 0; s < out->num_sequences && layout == PADDED; s++) {
        out->sequences[s].enc_tokens = longest;
        out->sequences[s].dec_tokens = longest_dec;
    }
}

// The definition: place p of a window's side belongs to token *i of the sample that is returned, or to none.
static const LoaderSample* find_place(const Windows* windows, const LoaderBatch* batch, int32_t s, int32_t p,
                                      bool is_decoder, int32_t* sample_idx, int32_t* i) {
    for (int32_t g = windows->sequences[s].segment_begin; g < windows->sequences[s].segment_end; g++) {
        const PlanSegment* segment = &windows->segments[g];
        const LoaderSample* sample = &batch->samples[segment->sample_idx];
        int32_t num_tokens = is_decoder ? sample->n_target : segment->num_tokens;
        *sample_idx = segment->sample_idx;
        *i = p;
        if (p < num_tokens) { return sample; }
        p -= num_tokens;
    }
    return NULL;
}

// Token i of a drawn sample, by the file alone: the cut input, then the target.
static int32_t source_place(const LoaderSample* sample, int32_t i) {
    return sample->first_token + i + (i >= sample->hole_at ? sample->hole_tokens : 0);
}

static int32_t source_token(const MadeData* data, const LoaderSample* sample, int32_t i) {
    return maker_token(data, sample->id, source_place(sample, i));
}

typedef struct {
    int32_t num_tokens, num_seqs, longest, num_padding;
    const int32_t *cu_seqlens, *tokens, *positions, *seq_lens;
    const uint32_t* keys;
} GotSide;

static GotSide side_of(const DynapipeBatch* got, bool is_decoder) {
    return is_decoder
               ? (GotSide){got->num_dec_tokens, got->num_seqs,   got->max_dec_seq_tokens, 0,
                           got->dec_cu_seqlens, got->dec_tokens, got->dec_positions,      got->dec_seq_lens,
                           got->dec_token_keys}
               : (GotSide){got->num_tokens, got->num_seqs, got->max_seq_tokens, 0,
                           got->cu_seqlens, got->tokens,   got->positions,      got->seq_lens,
                           got->token_keys};
}

static void check_side(const DynapipeBatch* got, const Windows* windows, const LoaderBatch* batch,
                       const CollateParams* params, const MadeData* data, bool is_decoder) {
    GotSide side = side_of(got, is_decoder);
    const int32_t pad = data->pairs ? 0 : VOCAB - 1;
    int32_t at = 0, row = 0, longest = 0;
    CHECK_EQ(side.num_seqs, windows->num_sequences);
    CHECK_EQ(side.cu_seqlens[0], 0);
    for (int32_t s = 0; s < windows->num_sequences && test_failures == 0; s++) {
        const PlanSequence* sequence = &windows->sequences[s];
        int32_t num_tokens = is_decoder ? sequence->dec_tokens : sequence->enc_tokens, num_real = 0;
        for (int32_t p = 0; p < num_tokens; p++, at++) {
            int32_t sample_idx, i;
            const LoaderSample* sample = find_place(windows, batch, s, p, is_decoder, &sample_idx, &i);
            CHECK_EQ(side.positions[at], p);
            if (sample == NULL) {
                CHECK_EQ(side.tokens[at], pad);
                side.num_padding++;
                continue;
            }
            num_real++;
            CHECK_EQ(side.keys[at], collate_token_key(params, sample_idx, i, is_decoder));
            int32_t place = is_decoder ? sample->n_input + i - 1 : i, next = source_place(sample, place + 1);
            int32_t token = is_decoder && i == 0 ? pad
                            : data->pairs && !is_decoder && !sample->n_input
                                ? VOCAB - 1
                                : source_token(data, sample, place);
            CHECK_EQ(side.tokens[at], token);
            bool is_learnt = data->pairs
                                 ? is_decoder
                                 : params->supervise_inputs || (place + 1 >= sample->n_input &&
                                                                !maker_in_gap(&data->gaps[sample->id], next));
            if (!is_learnt) { continue; }
            CHECK(row < got->num_rows);
            CHECK_EQ(got->rows[row], at);
            CHECK_EQ(got->targets[row], source_token(data, sample, place + 1));
            CHECK_EQ(got->row_tasks[row++], sample->task);
        }
        CHECK_EQ(side.cu_seqlens[s + 1], at);
        CHECK(side.seq_lens == NULL || side.seq_lens[s] == num_real);
        longest = most(longest, num_tokens);
    }
    CHECK((side.seq_lens == NULL) == (side.num_padding == 0));
    CHECK_EQ(side.num_tokens, at);
    CHECK_EQ(side.longest, longest);
    if (is_decoder || !data->pairs) { CHECK_EQ(got->num_rows, row); }
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

// Any layout of the batches of one stack's conversations, and of an encoder-decoder's pairs. Of pairs, too:
// how many were cut and skipped.
static void every_layout_equals_its_definition(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    for (int round = 0; round < 120 && test_failures == 0; round++) {
        bool is_pairs = round % 2;
        const MadeData* data = is_pairs ? &pairs : &chats;
        LoaderOptions options = {.batch_tokens = rng_between(&rng, 1, MAX_BATCH),
                                 .max_seq_tokens = rng_between(&rng, 5, LONGEST),
                                 .max_target_tokens = rng_between(&rng, 1, LONGEST),
                                 .encoder_decoder = is_pairs,
                                 .long_samples = (LongSamples)(round / 2 % 4),
                                 .supervise_inputs = round / 2 % 2,
                                 .seed = (uint64_t)round,
                                 .shuffle = true};
        CollateParams params = {.seed = 7,
                                .step = round,
                                .supervise_inputs = options.supervise_inputs,
                                .encoder_decoder = is_pairs};
        Loader* loader = NULL;
        CHECK_OK(loader_open(&loader, is_pairs ? pairs_path : chats_path, &options));
        int64_t num_cut = 0, num_skipped = 0;
        for (int32_t id = 0; id < NUM_SAMPLES && is_pairs; id++) {
            bool is_long = data->samples[id].n_input > options.max_seq_tokens;
            bool skipped = data->samples[id].n_target > options.max_target_tokens ||
                           (is_long && options.long_samples == LONG_SKIP);
            num_skipped += skipped;
            num_cut += is_long && !skipped;
        }
        CHECK(!is_pairs || loader_info(loader)->num_cut == num_cut);
        CHECK(!is_pairs || loader_info(loader)->num_skipped == num_skipped);
        for (int layout = 0; layout < NUM_LAYOUTS; layout++) {
            LoaderBatch batch;
            Windows windows;
            DynapipeBatch got;
            CHECK_OK(loader_next(loader, &batch, &arena));
            deal(&windows, &rng, &batch, (Layout)layout, is_pairs);
            CHECK_OK(collate(&got, loader, &batch, windows.sequences, windows.num_sequences, windows.segments,
                             &params, &arena));
            check_side(&got, &windows, &batch, &params, data, false);
            if (is_pairs) { check_side(&got, &windows, &batch, &params, data, true); }
            CHECK(is_pairs ||
                  (got.dec_tokens == NULL && got.dec_cu_seqlens == NULL && got.num_dec_tokens == 0));
            check_squares(&got, &windows);
            CHECK_EQ(got.num_rows, batch.supervised_tokens);
        }
        loader_close(loader);
        arena_reset(&arena);
    }
    arena_free(&arena);
}

// Tokens [begin, end) of the whole's first window, and its other windows where they are there.
static void check_piece_side(const GotSide* got, const GotSide* whole, int32_t begin, int32_t end) {
    CHECK(got->seq_lens == NULL);
    for (int32_t s = 0; s <= got->num_seqs; s++) {
        CHECK_EQ(got->cu_seqlens[s], s == 0 ? 0 : (s == 1 ? end : whole->cu_seqlens[s]) - begin);
    }
    CHECK_EQ(got->num_tokens, got->cu_seqlens[got->num_seqs]);
    for (int32_t t = 0; t < got->num_tokens && test_failures == 0; t++) {
        CHECK_EQ(got->tokens[t], whole->tokens[begin + t]);
        CHECK_EQ(got->positions[t], whole->positions[begin + t]);
        CHECK_EQ(got->keys[t], whole->keys[begin + t]);
    }
}

static void check_piece(const DynapipeBatch* got, const DynapipeBatch* whole, bool is_pairs, int32_t begin,
                        int32_t end, int32_t* row) {
    GotSide side = side_of(got, is_pairs), all = side_of(whole, is_pairs), enc = side_of(got, false),
            all_enc = side_of(whole, false);
    int32_t num_enc = is_pairs ? whole->cu_seqlens[1] : 0;
    int64_t num_cross = is_pairs ? (int64_t)num_enc * (end - begin) : 0;
    check_piece_side(&side, &all, begin, end);
    if (is_pairs) { check_piece_side(&enc, &all_enc, begin == 0 ? 0 : num_enc, num_enc); }
    for (int32_t s = 1; s < got->num_seqs && is_pairs; s++) {
        num_cross += (int64_t)(enc.cu_seqlens[s + 1] - enc.cu_seqlens[s]) *
                     (side.cu_seqlens[s + 1] - side.cu_seqlens[s]);
    }
    CHECK_EQ(got->num_cross, num_cross);
    for (int32_t r = 0; r < got->num_rows; r++, ++*row) {
        CHECK_EQ(got->rows[r], whole->rows[*row] - begin);
        CHECK_EQ(got->targets[r], whole->targets[*row]);
        CHECK_EQ(got->row_tasks[r], whole->row_tasks[*row]);
    }
    CHECK(got->kept_tokens == all.cu_seqlens[1] && got->kept_begin == begin &&
          got->kept_enc_tokens == num_enc);
    CHECK_EQ(got->num_prefix, (int64_t)begin * (end - begin));
    for (int32_t t = 0; t < begin; t++) { CHECK_EQ(got->kept_keys[t], all.keys[t]); }
    for (int32_t t = 0; t < num_enc; t++) { CHECK_EQ(got->kept_enc_keys[t], all_enc.keys[t]); }
}

static void pieces_joined_are_the_whole(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int num_cut = 0;
    for (int round = 0; round < 120 && test_failures == 0; round++) {
        bool is_pairs = round % 2;
        LoaderOptions options = {.batch_tokens = rng_between(&rng, 1, MAX_BATCH),
                                 .max_seq_tokens = LONGEST,
                                 .max_target_tokens = LONGEST,
                                 .encoder_decoder = is_pairs,
                                 .supervise_inputs = round / 2 % 2,
                                 .seed = (uint64_t)round,
                                 .shuffle = true};
        CollateParams params = {.seed = 7,
                                .step = round,
                                .supervise_inputs = options.supervise_inputs,
                                .encoder_decoder = is_pairs};
        Loader* loader = NULL;
        LoaderBatch batch;
        Windows windows;
        DynapipeBatch whole, got;
        CHECK_OK(loader_open(&loader, is_pairs ? pairs_path : chats_path, &options));
        CHECK_OK(loader_next(loader, &batch, &arena));
        deal(&windows, &rng, &batch, RAGGED, is_pairs);
        CHECK_OK(collate(&whole, loader, &batch, windows.sequences, windows.num_sequences, windows.segments,
                         &params, &arena));
        CHECK(whole.kept_tokens == 0 && whole.kept_keys == NULL);
        int32_t num_tokens = is_pairs ? whole.dec_cu_seqlens[1] : whole.cu_seqlens[1], row = 0;
        PlanSequence* sequence = &windows.sequences[0];
        PlanSegment* segment = &windows.segments[0];
        for (int32_t begin = 0, end; begin < num_tokens && num_tokens > 1; begin = end) {
            int32_t most_tokens = begin == 0 ? num_tokens - 1 : num_tokens - begin;
            segment->first_token = begin;
            segment->num_tokens = rng_between(&rng, 1, most_tokens);
            end = begin + segment->num_tokens;
            *(is_pairs ? &sequence->dec_tokens : &sequence->enc_tokens) = segment->num_tokens;
            if (is_pairs && begin > 0) { sequence->enc_tokens = 0; }
            int32_t num = windows.num_sequences;
            if (end < num_tokens) { num = 1; }
            CHECK_OK(
                collate(&got, loader, &batch, windows.sequences, num, windows.segments, &params, &arena));
            check_piece(&got, &whole, is_pairs, begin, end, &row);
            num_cut++;
        }
        CHECK(row == whole.num_rows || num_tokens == 1);
        loader_close(loader);
        arena_reset(&arena);
    }
    CHECK(num_cut > 200);
    arena_free(&arena);
}

// llm.c's files may be of a vocabulary without the end-of-text token that padding is made of.
static void padding_is_below_the_largest_id(void) {
    LoaderOptions options = {.batch_tokens = 300, .max_seq_tokens = LONGEST};
    CollateParams params = {0};
    PlanSequence padded = {0, 1, 4, 0};
    PlanSegment whole = {0, 0, 2};
    Loader* loader = NULL;
    Arena arena = {0};
    LoaderBatch batch;
    DynapipeBatch got;
    char path[80];
    snprintf(path, sizeof path, "%s/small.bin", made_dir);
    maker_write_llmc(path, 20240520, 1, (int32_t[]){1, 2, 1}, 3);
    CHECK_OK(loader_open(&loader, path, &options));
    CHECK_OK(loader_next(loader, &batch, &arena));
    CHECK_OK(collate(&got, loader, &batch, &padded, 1, &whole, &params, &arena));
    for (int32_t t = 0; t < 4; t++) { CHECK(got.tokens[t] < loader_info(loader)->num_ids); }
    loader_close(loader);
    arena_free(&arena);
}

// Of thousands of tokens hardly two have the same key; another step, seed, side or sample has
// other keys, and every bit is set about half the time.
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

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    Rng rng = rng_seed(seed);
    maker_dir_create(made_dir);
    snprintf(chats_path, sizeof chats_path, "%s/chats.bin", made_dir);
    snprintf(pairs_path, sizeof pairs_path, "%s/pairs.bin", made_dir);
    chats = maker_random(&rng, NUM_SAMPLES, 5, LONGEST, VOCAB);
    pairs = maker_random(&rng, NUM_SAMPLES, 5, LONGEST, VOCAB);
    maker_add_gaps(&rng, &chats);
    chats.input_tail = 2;
    pairs.pairs = true;
    for (int32_t id = 0; id < NUM_SAMPLES; id++) {  // texts would be cut into pieces with ids of their own
        chats.samples[id].n_input += chats.samples[id].n_input == 0 && chats.gaps[id].num_gaps == 0;
        if (id >= 20) { continue; }
        pairs.samples[id].n_input = 0;
        pairs.samples[id].n_target += 1;
    }
    maker_write(&chats, 0, NUM_SAMPLES, made_dir, "chats.bin");
    maker_write(&pairs, 0, NUM_SAMPLES, made_dir, "pairs.bin");
    RUN(every_layout_equals_its_definition);
    RUN(pieces_joined_are_the_whole);
    RUN(padding_is_below_the_largest_id);
    RUN(keys_tell_tokens_apart);
    maker_dir_remove(made_dir);
    maker_free(&chats);
    maker_free(&pairs);
    return test_end();
}
