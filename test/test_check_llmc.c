// test_check_llmc.c -- this repository's own models pass dynapipe_check_model(), and may be cut before any
// block; test/test_cuda_check.sh runs it on the emulator, too.
#include <math.h>
#include <string.h>

#include "../dynapipe_plugin/measure/measure_bytes.h"
#include "../dynapipe_plugin/run/session.h"
#include "../llmc/kinds.h"
#include "../llmc/llmc_error.h"
#include "../trainer/llmc_model.h"
#include "test.h"

#ifdef DYNAPIPE_CUDA
enum { ON_EMULATOR = true };
#else
enum { ON_EMULATOR = false };
#endif

static Dynapipe* dp;
static OpsContext* ops;
static Rng rng;

// The trainer's blocks, with dropout: which must be the same wherever a token stands.
typedef struct {
    LlmcBlocks inner;
    DynapipeBlocks_v1 blocks;
    float dropout;
} Maker;

static int make(void* ctx, DynapipeRange blocks, int has_values, void** model, DynapipeParams_v1* params) {
    Maker* maker = ctx;
    int code = maker->blocks.make(maker->blocks.ctx, blocks, has_values, model, params);
    if (code == 0) { ((Model*)*model)->dropout = maker->dropout; }
    return code;
}

static void drop(void* ctx, void* model) {
    Maker* maker = ctx;
    maker->blocks.drop(maker->blocks.ctx, model);
}

static void passes(const ModelKind* kind, const char* descriptor, float dropout) {
    ModelConfig config;
    CHECK(model_parse(&config, kind, descriptor, 50, 32));
    if (config.qkv_bias) {  // as Llama 3.1's
        config.rope_factor = 8000, config.rope_original = 16;
        config.rope_low_freq = 1000, config.rope_high_freq = 4000;
    }
    Maker maker = {.dropout = dropout};
    maker.blocks = dynapipe_llmc_blocks(&maker.inner, &config, ops);
    DynapipeBlocks_v1 blocks = maker.blocks;
    blocks.ctx = &maker;
    blocks.make = make;
    blocks.drop = drop;
    if (dynapipe_check_model(dp, &blocks, stdout) != 0) {
        printf("%s: %s\n", descriptor, dynapipe_error());
        test_failures++;
    }
}

static void gpt2_passes(void) {
    passes(&gpt2_kind, "l3c32h4", 0);
}

static void gpt2_with_dropout_passes(void) {
    passes(&gpt2_kind, "l2c32h4", 0.2F);
}

static const DynapipeModel_v1* gpt2_api;
static DynapipeModel_v1 wrong;

static int wrong_combine(void* model, const DynapipeBatch* batch, int32_t num_parts, const void* const* parts,
                         void* dout, void* const* factors, float* losses) {
    return gpt2_api->combine(model, batch, num_parts - (num_parts > 1), parts, dout, factors, losses);
}

static void a_forgotten_share_is_named(void) {
    ModelConfig config;
    LlmcBlocks inner;
    CHECK(model_parse(&config, &gpt2_kind, "l2c32h4", 50, 32));
    DynapipeBlocks_v1 blocks = dynapipe_llmc_blocks(&inner, &config, ops);
    gpt2_api = blocks.api;
    wrong = *blocks.api;
    wrong.combine = wrong_combine;
    blocks.api = &wrong;
    CHECK(dynapipe_check_model(dp, &blocks, NULL) != 0);
    CHECK(strstr(dynapipe_error(), "the head shared by vocabulary before block ") != NULL);
}

static void llama_passes(void) {
    passes(&llama_kind, "llama:l3c32h4g2", 0);
}

static void qwen2_with_dropout_passes(void) {
    passes(&llama_kind, "qwen2:l2c32h4g1k16", 0.2F);
}

static void t5_passes(void) {
    passes(&t5_kind, "t5:l2d3c32h4", 0);
}

static void flan_t5_with_dropout_passes(void) {
    passes(&t5_kind, "flan-t5:l2c32h4", 0.2F);
}

static void umt5_with_biases_in_every_layer_passes(void) {
    passes(&t5_kind, "umt5:l2d2c32h4", 0.2F);
}

// --- boundaries --------------------------------------------------------------------------------------------
// Wherever ranges begin and end, and whichever of them share a rank, losses and gradients are the whole
// model's within 1e-6 of the largest of the tensor: of whole samples and of pieces, kept and recomputed, with
// gradients of weights at once and late, with dropout.

enum { MOST_PIECES = 3, MOST_RANGES = 24, MOST_RANKS = 3, MOST_ROWS = 32, KEPT = MODEL_KEEP | MODEL_HEAD };
#define BOUNDARY_TOLERANCE 1e-6

typedef struct {
    int num_ranks, num_ranges;
    Model ranks[MOST_RANKS], ranges[MOST_RANGES];  // ranges along the chain: views of ranks, in turn
} Chain;

// cut_before[b]: a range begins with block b > 0; the last one may be the head alone.
static void chain_open(Chain* out, const ModelConfig* config, const bool* cut_before, int num_ranks,
                       float dropout) {
    const int N = model_num_blocks(config);
    ModelPart parts[MOST_RANKS] = {{0}};
    *out = (Chain){.num_ranks = num_ranks};
    for (int begin = 0, end = 1; begin <= N; begin = end++) {
        while (end < N && !cut_before[end]) { end++; }
        const bool is_last = end > N || !cut_before[end];
        ModelPart* part = &parts[out->num_ranges++ % num_ranks];
        part->ranges[part->num_ranges++] =
            (ModelRange){begin, end < N ? end : N, is_last ? MODEL_HAS_HEAD : MODEL_GOES_ON};
        if (is_last) { break; }
    }
    for (int r = 0; r < num_ranks; r++) {
        model_init_part(&out->ranks[r], config, &parts[r], ops);
        model_alloc_grads(&out->ranks[r]);
        model_init_random(&out->ranks[r], 42);
        out->ranks[r].dropout = dropout;
    }
    for (int i = 0; i < out->num_ranges; i++) {
        out->ranges[i] = model_view(&out->ranks[i % num_ranks], i / num_ranks);
    }
}

static void chain_close(Chain* chain) {
    for (int r = 0; r < chain->num_ranks; r++) { model_free(&chain->ranks[r]); }
}

// By place in the whole model; copies add.
static float* chain_gradients(const Chain* chain) {
    float* sums = calloc((size_t)model_num_params(&chain->ranks[0].config), sizeof *sums);
    for (int r = 0; r < chain->num_ranks; r++) {
        const Model* rank = &chain->ranks[r];
        float* grads = malloc((size_t)rank->num_params * sizeof *grads);
        ops_download(ops, grads, rank->grads, (size_t)rank->num_params * sizeof *grads);
        for (int i = 0; i < rank->num_slices; i++) {
            const TensorSlice* slice = &rank->slices[i];
            for (int64_t j = 0; j < slice->num_values; j++) {
                sums[slice->file_offset + j] += grads[slice->offset + j];
            }
        }
        free(grads);
    }
    return sums;
}

// On the device, full of NaN; released together.
static void* rooms[MOST_PIECES * MOST_RANGES * 8];
static int num_rooms;
static void* room(int64_t num_bytes) {
    void* host = malloc((size_t)num_bytes + 1);
    void* memory = ops_alloc_raw(ops, (size_t)num_bytes + 1, "a test");
    memset(host, 0xff, (size_t)num_bytes + 1);
    ops_upload(ops, memory, host, (size_t)num_bytes + 1);
    free(host);
    return rooms[num_rooms++] = memory;
}

typedef struct {
    bool recomputed[MOST_RANGES];  // forward without keeping anything, and again before backward
    bool is_late;                  // gradients of weights after all others
} How;

// Adds gradients. losses: of all pieces.
static void chain_run(Chain* chain, const ModelBatch* pieces, int num, const How* how, float* losses) {
    const int last = chain->num_ranges - 1;
    ModelBatch batch[MOST_PIECES][MOST_RANGES];
    void *in[MOST_PIECES][MOST_RANGES + 1] = {{0}}, *din[MOST_PIECES][MOST_RANGES + 1] = {{0}};
    void *acts[MOST_PIECES][MOST_RANGES], *scratch[MOST_PIECES][MOST_RANGES];
    float* losses_of[MOST_PIECES];
    for (int p = 0; p < num; losses += pieces[p++].num_rows) { losses_of[p] = losses; }
    for (int p = 0; p < num; p++) {
        for (int r = 0; r <= last; r++) {
            Model* range = &chain->ranges[r];
            ModelBatch* b = &batch[p][r];
            *b = pieces[p];
            if (p == 0) {
                b->kept = room(model_kept_bytes(range, b, false));
                b->dkept = room(model_kept_bytes(range, b, true));
            }
            b->kept = batch[0][r].kept;
            b->dkept = batch[0][r].dkept;
            acts[p][r] = room(model_acts_bytes(range, b, how->recomputed[r] ? 0 : KEPT));
            scratch[p][r] = room(model_scratch_bytes(range, b));
            if (r < last) {
                in[p][r + 1] = room(model_boundary_bytes(range, b, 1));
                din[p][r + 1] = room(model_boundary_bytes(range, b, 1));
            }
            model_forward(range, b, in[p][r], in[p][r + 1], acts[p][r], scratch[p][r], losses_of[p],
                          how->recomputed[r] ? 0 : KEPT);
        }
    }
    for (int i = 0; i < 2 * num * (last + 1); i++) {  // all, then late gradients of weights
        const bool is_late = i >= num * (last + 1);
        const int p = num - 1 - i / (last + 1) % num, r = last - i % (last + 1);
        Model* range = &chain->ranges[r];
        ModelBatch* b = &batch[p][r];
        if (!is_late && how->recomputed[r]) {
            acts[p][r] = room(model_acts_bytes(range, b, KEPT));
            model_forward(range, b, in[p][r], NULL, acts[p][r], scratch[p][r], losses_of[p], KEPT);
        }
        if (!is_late) {
            model_backward_inputs(range, b, in[p][r], acts[p][r], din[p][r + 1], din[p][r], scratch[p][r]);
        }
        if (is_late == how->is_late) {
            model_backward_weights(range, b, acts[p][r], din[p][r + 1], scratch[p][r]);
        }
    }
    ops_sync(ops);
    while (num_rooms > 0) { ops_release(ops, rooms[--num_rooms]); }
}

static double worst_difference(const float* found, const float* expected, int64_t count) {
    double largest = 0, worst = 0;
    for (int64_t i = 0; i < count; i++) {
        const double difference = fabs((double)found[i] - (double)expected[i]);
        largest = fmax(largest, fabs((double)expected[i]));
        if (!(difference <= worst)) { worst = isfinite(difference) ? difference : (double)INFINITY; }
    }
    return worst > 0 ? worst / largest : 0;
}

// Of the losses, and of each tensor's gradients.
static double worst_of_all(const Model* whole, const float* losses, const float* expected_losses,
                           int num_rows, const float* grads, const float* expected) {
    double worst = worst_difference(losses, expected_losses, num_rows);
    for (int i = 0; i < whole->num_slices; i++) {
        const TensorSlice* slice = &whole->slices[i];
        const int64_t at = slice->file_offset;
        worst = fmax(worst, worst_difference(grads + at, expected + at, slice->num_values));
    }
    return worst;
}

// A sample in so many pieces, and others beside the last one.
static void make_pieces(ModelBatch* out, int num, const ModelConfig* config, Arena* arena) {
    enum { LONG = 21 };
    MadeWindow samples[3] = {{11, {LONG, 0}, 12, {0, 0}}, {12, {5, 0}, 3, {0, 0}}, {13, {2, 0}, 1, {0, 0}}};
    ModelBatch whole;
    for (int i = 0; i < 3 && config->kind->has_decoder; i++) {
        samples[i].tokens[1] = samples[i].tokens[0];
        samples[i].tokens[0] = 9 - 3 * i;
    }
    CHECK_OK(made_batch(&whole, samples, 3, config->vocab, arena));
    whole.loss_scale = 1.0F / 16;
    out[0] = whole;
    for (int p = 0, begin = 0, end; p < num && num > 1; p++, begin = end) {
        end = p == num - 1 ? LONG : rng_between(&rng, begin + 1, LONG - (num - 1 - p));
        CHECK_OK(made_piece(&out[p], &whole, begin, end, arena));
    }
}

static void check_boundaries(const ModelConfig* config, float dropout) {
    const int N = model_num_blocks(config), num_ways = N + 1 + 2 * MOST_PIECES;
    const How plain = {.is_late = false};
    bool cut_before[MOST_RANGES] = {0};
    Chain whole;
    chain_open(&whole, config, cut_before, 1, dropout);
    for (int num = 1; num <= MOST_PIECES; num++) {
        Arena arena = {0};
        ModelBatch pieces[MOST_PIECES];
        float expected_losses[MOST_ROWS], losses[MOST_ROWS];
        make_pieces(pieces, num, config, &arena);
        model_zero_grads(&whole.ranks[0]);
        chain_run(&whole, pieces, num, &plain, expected_losses);
        float* expected = chain_gradients(&whole);
        // each boundary alone; all of them; some. The emulator has no time for all
        for (int way = ON_EMULATOR ? N + 1 : 1; way <= (ON_EMULATOR ? N + 2 : num_ways); way++) {
            How how = {.is_late = rng_below(&rng, 2)};
            Chain chain;
            int num_rows = 0, num_cuts = 0;
            for (int b = 1; b <= N; b++) {
                cut_before[b] = way <= N ? b == way : way == N + 1 || rng_below(&rng, 2) > 0;
                num_cuts += cut_before[b];
            }
            for (int r = 0; r < MOST_RANGES; r++) { how.recomputed[r] = rng_below(&rng, 2); }
            for (int p = 0; p < num; p++) { num_rows += pieces[p].num_rows; }
            const int num_ranks = rng_between(&rng, 1, num_cuts < MOST_RANKS ? num_cuts + 1 : MOST_RANKS);
            chain_open(&chain, config, cut_before, num_ranks, dropout);
            chain_run(&chain, pieces, num, &how, losses);
            float* grads = chain_gradients(&chain);
            const double worst =
                worst_of_all(&whole.ranks[0], losses, expected_losses, num_rows, grads, expected);
            CHECK(worst < BOUNDARY_TOLERANCE);
            chain_close(&chain);
            free(grads);
        }
        free(expected);
        arena_free(&arena);
    }
    chain_close(&whole);
}

static void boundaries_change_nothing(void) {
    static const struct {
        const ModelKind* kind;
        const char* descriptor;
    } models[] = {{&gpt2_kind, "l3c32h4"},
                  {&t5_kind, "t5:l2d2c32h4"},
                  {&t5_kind, "flan-t5:l1d2c32h4"},
                  {&t5_kind, "umt5:l2d1c32h4"},
                  {&llama_kind, "qwen2:l3c32h4g2"}};
    for (int i = 0; i < (ON_EMULATOR ? 2 : 5); i++) {
        ModelConfig config;
        CHECK(model_parse(&config, models[i].kind, models[i].descriptor, 50, 32));
        if (!ON_EMULATOR) { check_boundaries(&config, 0); }
        check_boundaries(&config, 0.2F);
    }
}

// On a GPU, the whole session; else without MPI.
int main(int argc, char** argv) {
    rng = rng_seed(test_seed(argc, argv));
#ifdef DYNAPIPE_CUDA
    CHECK_EQ(dynapipe_open(&dp, &argc, &argv, NULL), 0);
#else
    Dynapipe session = {.num_stages = 1, .num_replicas = 1};
    dp = &session;
    (void)argc;
    (void)argv;
#endif
    ops = ops_create(1);
    CHECK_EQ(dynapipe_use_stream(dp, ops_stream(ops)), 0);
    if (!ON_EMULATOR) {
        RUN(gpt2_passes);
        RUN(llama_passes);
        RUN(t5_passes);
        RUN(umt5_with_biases_in_every_layer_passes);
    }
    RUN(gpt2_with_dropout_passes);
    RUN(qwen2_with_dropout_passes);
    RUN(a_forgotten_share_is_named);
    RUN(flan_t5_with_dropout_passes);
    RUN(boundaries_change_nothing);
#ifdef DYNAPIPE_CUDA
    dynapipe_close(dp);
#else
    session_device_close(dp);
#endif
    ops_free(ops);
    return test_end();
}
