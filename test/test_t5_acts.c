// Buffers are what planning prices them at: straight lines of counts, sums over layers; what a slice has of
// tensors.
#include "../llmc/t5.h"

#include "t5_chain.h"
#include "test.h"

static uint64_t seed;
static OpsContext* ops;

static const ModelConfig config = {
    .kind = &t5_kind,
    .max_seq_len = 64,
    .vocab = 200,
    .padded_vocab = 256,
    .num_layers = 3,
    .num_dec_layers = 3,
    .channels = 24,
    .num_heads = 2,
    .head_size = 8,
    .ffn_channels = 40,
    .num_buckets = 32,
    .max_distance = 128,
    .gated = true,
    .tied_head = true,
};

static uint32_t draw(uint32_t limit) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % limit;
}

static ModelBatch counts(int tokens, int dec_tokens, int rows) {
    return (ModelBatch){.num_seqs = 1, .num_tokens = tokens, .num_dec_tokens = dec_tokens, .num_rows = rows};
}

static int64_t acts(const Model* model, int tokens, int dec_tokens, int rows, int flags) {
    const ModelBatch batch = counts(tokens, dec_tokens, rows);
    return model_acts_bytes(model, &batch, flags);
}

static int64_t blocks(int count) {
    return (count + 15) / 16;
}

static const int cuts[][3] = {{0, 6, 1}, {0, 2, 0}, {0, 3, 0}, {1, 3, 0}, {1, 4, 0}, {2, 6, 0},
                              {3, 5, 0}, {3, 6, 1}, {4, 6, 1}, {4, 5, 0}, {6, 6, 1}};
enum { NUM_CUTS = sizeof cuts / sizeof *cuts };

static void acts_are_linear(void) {
    for (int k = 0; k < NUM_CUTS; k++) {
        Model model;
        model_init(&model, &config, cuts[k][0], cuts[k][1], cuts[k][2], ops);
        const int keep = MODEL_KEEP | MODEL_HEAD;
        const int64_t enc = acts(&model, 16, 0, 0, keep), dec = acts(&model, 0, 16, 0, keep);
        const int64_t row = acts(&model, 0, 0, 16, keep);
        CHECK_EQ(enc > 0, cuts[k][0] < cuts[k][1]);
        CHECK_EQ(dec > 0, cuts[k][1] > 3 && cuts[k][0] < 6);
        CHECK_EQ(row > 0, cuts[k][2]);
        for (int i = 0; i < 50; i++) {
            const int te = (int)draw(1000), td = (int)draw(500), r = (int)draw(500);
            CHECK_EQ(acts(&model, te, td, r, keep), blocks(te) * enc + blocks(td) * dec + blocks(r) * row);
            CHECK_EQ(acts(&model, te, td, r, 0),
                     blocks(te) * acts(&model, 16, 0, 0, 0) + blocks(td) * acts(&model, 0, 16, 0, 0));
            CHECK_EQ(acts(&model, te, td, r, keep) % 64, 0);
            CHECK(acts(&model, te, td, r, 0) <= acts(&model, te, td, r, keep));
        }
        model_free(&model);
    }
}

// A layer more costs what a layer costs, wherever it is added; what else a slice has does not depend on their
// number.
static void acts_are_sums_over_layers(void) {
    Model model;
    int64_t bytes[7][7] = {{0}};
    for (int begin = 1; begin < 6; begin++) {
        for (int end = begin + 1; end < 6; end++) {
            model_init(&model, &config, begin, end, false, ops);
            bytes[begin][end] = acts(&model, 333, 77, 0, MODEL_KEEP);
            model_free(&model);
        }
    }
    const int64_t enc_layer = bytes[1][4] - bytes[2][4], dec_layer = bytes[2][5] - bytes[2][4];
    CHECK(enc_layer > 0 && dec_layer > 0);
    CHECK_EQ(bytes[1][5], bytes[2][4] + enc_layer + dec_layer);
    CHECK_EQ(bytes[3][5], bytes[3][4] + dec_layer);
    CHECK_EQ(bytes[4][5],
             bytes[3][5] - dec_layer - (int64_t)sizeof(float) * 80 * 24);  // not the embedding's output
}

// A planner that prices each count by itself and adds up is on the safe side: together they need no more.
static void scratch_of_parts_covers_the_whole(void) {
    for (int k = 0; k < NUM_CUTS; k++) {
        Model model;
        model_init(&model, &config, cuts[k][0], cuts[k][1], cuts[k][2], ops);
        const ModelBatch nothing = {0};
        const int64_t least = model_scratch_bytes(&model, &nothing);
        bool is_covered = true, is_tight = false;
        for (int i = 0; i < 200; i++) {
            const ModelBatch batch = {.num_tokens = (int)draw(1000),
                                      .num_dec_tokens = (int)draw(800),
                                      .num_rows = (int)draw(500),
                                      .num_seqs = (int)draw(40)};
            const ModelBatch parts[] = {{.num_tokens = batch.num_tokens},
                                        {.num_dec_tokens = batch.num_dec_tokens},
                                        {.num_rows = batch.num_rows},
                                        {.num_seqs = batch.num_seqs}};
            const int64_t num_bytes = model_scratch_bytes(&model, &batch);
            int64_t sum = least;
            for (int j = 0; j < 4; j++) { sum += model_scratch_bytes(&model, &parts[j]) - least; }
            is_covered = is_covered && num_bytes <= sum + 4 * 64 && num_bytes % 64 == 0;
            is_tight = is_tight || 3 * num_bytes >= sum;
        }
        CHECK(is_covered);
        CHECK(is_tight);
        model_free(&model);
    }
}

static void boundaries_hold_what_crosses_them(void) {
    const ModelBatch batch = counts(33, 7, 7);
    const int64_t enc = 48 * 24 * (int64_t)sizeof(floatX), dec = 16 * 24 * (int64_t)sizeof(floatX);
    const int64_t behind[] = {0, enc, enc, enc, enc + dec, enc + dec, dec};
    for (int cut = 1; cut <= 6; cut++) {
        Model before, after;
        model_init(&before, &config, 0, cut, false, ops);
        model_init(&after, &config, cut, 6, true, ops);
        CHECK_EQ(model_boundary_bytes(&before, &batch, 1), behind[cut]);
        CHECK_EQ(model_boundary_bytes(&after, &batch, 0), behind[cut]);
        model_free(&before);
        model_free(&after);
    }
}

// The head alone keeps nothing of a token, and all of a row.
static void the_head_alone_keeps_rows_only(void) {
    Model head, last;
    model_init(&head, &config, 6, 6, true, ops);
    model_init(&last, &config, 5, 6, true, ops);
    CHECK_EQ(head.num_slices, 2);  // shared, dec_norm
    CHECK_EQ(head.num_params, 256 * 24 + 24);
    for (int flags = MODEL_HEAD; flags <= (MODEL_HEAD | MODEL_KEEP); flags++) {
        for (int rows = 0; rows < 300; rows += 7) {
            CHECK_EQ(acts(&head, 500, 300, rows, flags),
                     acts(&last, 500, 300, rows, flags) - acts(&last, 500, 300, 0, flags));
        }
    }
    CHECK_EQ(acts(&head, 500, 300, 300, 0), 0);
    model_free(&head);
    model_free(&last);
}

// Over any cuts: each value of the model once, but for copies of tied tensors; a tensor that several slices
// have is one of those.
static void slices_share_tied_tensors_only(void) {
    for (int variant = 0; variant < 4; variant++) {
        ModelConfig own = config;
        own.tied_head = variant & 1;
        own.bias_per_layer = variant & 2;
        for (int a = 1; a <= 6; a++) {
            for (int b = a; b <= 6; b++) {
                const int ends[] = {a, b, 6};
                int64_t num_own = 0, num_seen[T5_NUM_TENSORS] = {0};
                for (int p = 0, begin = 0; p < 3; begin = ends[p++]) {
                    if (begin == ends[p] && p < 2) { continue; }
                    Model model;
                    model_init(&model, &own, begin, ends[p], p == 2, ops);
                    for (int i = 0; i < model.num_slices; i++) {
                        const TensorSlice* slice = &model.slices[i];
                        num_own += slice->tied_copy ? 0 : slice->num_values;
                        CHECK(!slice->tied_copy || slice->tied);
                        if (slice->layer >= 0) { continue; }
                        CHECK_EQ(slice->tied_copy, num_seen[slice->tensor] > 0);
                        num_seen[slice->tensor]++;
                    }
                    model_free(&model);
                }
                CHECK_EQ(num_own, model_num_params(&own));
            }
        }
    }
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    ops = ops_create(0);
    RUN(acts_are_linear);
    RUN(acts_are_sums_over_layers);
    RUN(scratch_of_parts_covers_the_whole);
    RUN(boundaries_hold_what_crosses_them);
    RUN(the_head_alone_keeps_rows_only);
    RUN(slices_share_tied_tensors_only);
    ops_free(ops);
    return test_end();
}
