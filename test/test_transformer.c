// Laws of a model, whole or cut before any of its blocks: losses, logits and gradients are what PyTorch and
// Hugging Face compute; generation says what the forward says. That grouping and sharing change nothing, nor
// cuts with pieces of samples, and gradients those of finite differences, is test_check_llmc.c; any placement
// on any ranks, test_gradients.c; a GPU, test_cuda_check.sh and test_cuda_train.sh; bytes,
// test_measure_llmc.c.
#include "../llmc/kinds.h"
#include "../llmc/llmc_error.h"

#include <math.h>

#include "../util/numbers.h"
#include "model_golden.h"
#include "test.h"

static OpsContext* ops;
static Rng rng;

enum { MOST_ROWS = 64, MOST_RANGES = 32, KEPT = MODEL_KEEP | MODEL_HEAD };

// --- models ------------------------------------------------------------------------------------------------

// The ranges of a model that is cut, and what goes from one to the next.
typedef struct {
    int num_ranges;
    Model ranges[MOST_RANGES];
    void *acts[MOST_RANGES], *scratch[MOST_RANGES], *in[MOST_RANGES + 1], *din[MOST_RANGES + 1];
} Chain;

// Full of NaN.
static void* room(int64_t num_bytes) {
    void* memory = llmc_alloc_raw((size_t)num_bytes + 64, "a test");
    return memset(memory, 0xff, (size_t)num_bytes + 64);
}

// cut_before[b]: a range begins with block b > 0; the last one may be the head alone.
static void chain_open(Chain* out, const ModelConfig* config, const bool* cut_before) {
    const int N = model_num_blocks(config);
    *out = (Chain){0};
    for (int begin = 0, end = 1; begin <= N; begin = end++) {
        while (end < N && !cut_before[end]) { end++; }
        const bool is_last = end > N || (end == N && !cut_before[N]);
        Model* range = &out->ranges[out->num_ranges++];
        CHECK(out->num_ranges <= MOST_RANGES);
        model_init(range, config, begin, end < N ? end : N, is_last, ops);
        model_alloc_grads(range);
        model_golden_params(range);
        if (is_last) { return; }
    }
}

static void chain_release(Chain* chain) {
    for (int r = 0; r < chain->num_ranges; r++) {
        free(chain->acts[r]);
        free(chain->scratch[r]);
        free(chain->in[r]);
        free(chain->din[r]);
        chain->acts[r] = chain->scratch[r] = chain->in[r] = chain->din[r] = NULL;
    }
}

static void chain_close(Chain* chain) {
    chain_release(chain);
    for (int r = 0; r < chain->num_ranges; r++) { model_free(&chain->ranges[r]); }
}

static Model* last_range(Chain* chain) {
    return &chain->ranges[chain->num_ranges - 1];
}

// By place in the whole model; copies add.
static float* chain_gradients(const Chain* chain) {
    float* sums = calloc((size_t)model_num_params(&chain->ranges[0].config), sizeof *sums);
    for (int r = 0; r < chain->num_ranges; r++) {
        const Model* range = &chain->ranges[r];
        for (int i = 0; i < range->num_slices; i++) {
            const TensorSlice* slice = &range->slices[i];
            for (int64_t j = 0; j < slice->num_values; j++) {
                sums[slice->file_offset + j] += range->grads[slice->offset + j];
            }
        }
    }
    return sums;
}

// --- what others compute -----------------------------------------------------------------------------------

// Of any tensor, in units of its largest value, at least a twentieth of the largest of all: what is the small
// rest of larger terms (a bias table where there are few keys) has their rounding.
static double worst_grad(const Model* whole, const float* grads, const float* expected) {
    double worst = 0.0, most = 0.0;
    for (int64_t i = 0; i < whole->num_params; i++) { most = fmax(most, fabs((double)expected[i])); }
    for (int i = 0; i < whole->num_slices; i++) {
        double largest = most / 20.0, difference = 0.0;
        for (int64_t j = 0; j < whole->slices[i].num_values; j++) {
            const int64_t at = whole->slices[i].offset + j;
            const double x = (double)grads[at], y = (double)expected[at];
            largest = fmax(largest, fabs(y));
            difference = isfinite(x) ? fmax(difference, fabs(x - y)) : (double)INFINITY;
        }
        if (difference > 0.0) { worst = fmax(worst, difference / largest); }
    }
    return worst;
}

static double worst_loss(const float* a, const float* b, int num_rows) {
    double worst = 0.0;
    for (int i = 0; i < num_rows; i++) {
        const double error = fabs((double)a[i] - (double)b[i]) / (1.0 + fabs((double)b[i]));
        if (!(error <= worst)) { worst = isfinite(error) ? error : (double)INFINITY; }
    }
    return worst;
}

// Losses, and with KEEP gradients, which are added. last_logits live until the next run.
static void run(Chain* chain, const ModelBatch* batch, int flags, float* losses) {
    const int num = chain->num_ranges;
    chain_release(chain);
    for (int r = 0; r < num; r++) {
        Model* range = &chain->ranges[r];
        chain->acts[r] = room(model_acts_bytes(range, batch, flags));
        chain->scratch[r] = room(model_scratch_bytes(range, batch));
        if (r + 1 < num) {
            chain->in[r + 1] = room(model_boundary_bytes(range, batch, 1));
            chain->din[r + 1] = room(model_boundary_bytes(range, batch, 1));
        }
        model_forward(range, batch, chain->in[r], chain->in[r + 1], chain->acts[r], chain->scratch[r], losses,
                      flags);
    }
    for (int r = num - 1; r >= 0 && flags & MODEL_KEEP; r--) {
        Model* range = &chain->ranges[r];
        model_backward_inputs(range, batch, chain->in[r], chain->acts[r], chain->din[r + 1], chain->din[r],
                              chain->scratch[r]);
        model_backward_weights(range, batch, chain->acts[r], chain->din[r + 1], chain->scratch[r]);
    }
}

static void check_golden(const ModelGolden* g, const Model* whole, const bool* cut_before) {
    const int num_rows = g->batch.num_rows;
    Chain chain;
    float losses[MOST_ROWS];
    double difference = 0.0, most = 0.0;
    CHECK(num_rows <= MOST_ROWS);  // logits of all at once
    chain_open(&chain, &g->config, cut_before);
    run(&chain, &g->batch, KEPT, losses);
    CHECK(worst_loss(losses, g->losses, num_rows) < 1e-6);
    float* grads = chain_gradients(&chain);
    CHECK(worst_grad(whole, grads, g->grads) < 1e-5);
    // the tolerance is tight: a change of one gradient by 1 % of the largest is seen
    for (int64_t i = 0; i < whole->num_params; i++) { most = fmax(most, fabs((double)grads[i])); }
    grads[0] += 0.01f * (float)most;
    CHECK(worst_grad(whole, grads, g->grads) > 1e-5);
    free(grads);
    run(&chain, &g->batch, MODEL_HEAD, losses);
    CHECK(worst_loss(losses, g->losses, num_rows) < 1e-6);
    for (int i = 0; i < num_rows; i++) {
        for (int v = 0; v < g->config.vocab; v++) {
            const double ours = last_range(&chain)->last_logits[i * g->config.padded_vocab + v];
            difference = fmax(difference, fabs(ours - (double)g->logits[i * g->config.vocab + v]));
        }
    }
    CHECK(difference < 1e-5);
    if (g->dropped_losses != NULL) {
        for (int r = 0; r < chain.num_ranges; r++) { chain.ranges[r].dropout = MODEL_GOLDEN_DROPOUT; }
        run(&chain, &g->batch, KEPT, losses);
        CHECK(worst_loss(losses, g->dropped_losses, num_rows) < 1e-6);
    }
    chain_close(&chain);
}

// Whole, cut before each block alone, and before all of them.
static void pytorch_and_hugging_face_agree(void) {
    for (int i = 0; i < MODEL_NUM_GOLDENS; i++) {
        ModelGolden golden;
        Model whole;
        model_golden_load(&golden, i);
        const int N = model_num_blocks(&golden.config);
        const ModelPart part = model_part(0, N, true);
        model_init_counts(&whole, &golden.config, &part, ops);
        for (int cut = 0; cut <= N + 1; cut++) {
            bool cut_before[MOST_RANGES];
            for (int b = 0; b <= N; b++) { cut_before[b] = b == cut || cut == N + 1; }
            check_golden(&golden, &whole, cut_before);
        }
        model_free(&whole);
        model_golden_free(&golden);
    }
}

// --- scaled angles -----------------------------------------------------------------------------------------

// As transformers has them (modeling_rope_utils.py: _compute_llama3_parameters), branch by branch.
static double published_rate(const ModelConfig* config, double rate) {
    const double factor = config->rope_factor / 1000.0, original = config->rope_original;
    if (config->rope_factor == 0) { return rate; }
    if (config->rope_original == 0) { return rate / factor; }
    const double low = config->rope_low_freq / 1000.0, high = config->rope_high_freq / 1000.0;
    const double wavelength = 2 * acos(-1.0) / rate;
    if (wavelength < original / high) { return rate; }
    if (wavelength > original / low) { return rate / factor; }
    const double smooth = (original / wavelength - low) / (high - low);
    return (1 - smooth) * rate / factor + smooth * rate;
}

static void rates_are_the_published(void) {
    static const int scales[][4] = {
        {0}, {2500}, {8000, 8192, 1000, 4000}, {32000, 8192, 1000, 4000}, {8000, 300, 500, 9000}};
    int num_kinds[3] = {0};  // unscaled, between, divided
    for (int i = 0; i < 5; i++) {
        ModelConfig config;
        CHECK(model_parse(&config, &llama_kind, i % 2 == 0 ? "llama:l1c64h1" : "qwen2:l1c128h1", 50, 32));
        memcpy(&config.rope_factor, scales[i], sizeof scales[i]);
        const ModelPart part = model_part(0, 2, true);
        Model model;
        model_init_counts(&model, &config, &part, ops);
        for (int c = 0; c < config.head_size / 2; c++) {
            const double plain = pow(config.rope_theta, -2.0 * c / config.head_size);
            const double rate = (double)model.rope.rates[c];
            CHECK(fabs(rate - published_rate(&config, plain)) < 1e-7 * rate);
            if (i < 2) { continue; }
            const double ratio = plain / rate;
            num_kinds[ratio < 1.000001 ? 0 : ratio < config.rope_factor / 1000.0 - 1e-5 ? 1 : 2]++;
        }
        model_free(&model);
    }
    CHECK(num_kinds[0] > 10 && num_kinds[1] > 3 && num_kinds[2] > 10);
}

// "linear" by 2 at doubled positions is no scaling, bit for bit; at the same ones it is another model.
static void linear_scaling_divides_positions(void) {
    for (int i = 0; i < MODEL_NUM_GOLDENS; i++) {
        static const bool cut_before[MOST_RANGES] = {false};
        ModelGolden golden;
        model_golden_load(&golden, i);
        int32_t doubled[256];
        float losses[3][MOST_ROWS], *grads[3];
        for (int way = 0; way < 3 && golden.config.kind->rotary; way++) {
            ModelBatch batch = golden.batch;
            ModelConfig config = golden.config;
            Chain chain;
            CHECK(batch.num_tokens <= 256 && batch.num_rows <= MOST_ROWS);
            for (int t = 0; t < batch.num_tokens; t++) { doubled[t] = 2 * batch.positions[t]; }
            if (way > 0) { config.rope_factor = 2000; }
            if (way == 1) { batch.positions = doubled; }
            chain_open(&chain, &config, cut_before);
            run(&chain, &batch, KEPT, losses[way]);
            grads[way] = chain_gradients(&chain);
            const size_t num_bytes = (size_t)chain.ranges[0].num_params * sizeof(float);
            CHECK_EQ(memcmp(losses[way], losses[0], (size_t)batch.num_rows * sizeof(float)) == 0, way < 2);
            CHECK_EQ(memcmp(grads[way], grads[0], num_bytes) == 0, way < 2);
            chain_close(&chain);
        }
        for (int way = 0; way < 3 && golden.config.kind->rotary; way++) { free(grads[way]); }
        model_golden_free(&golden);
    }
}

// --- the last feed-forward ---------------------------------------------------------------------------------

// What the last block keeps and gets grows with its rows alone.
static void the_last_feed_forward_has_rows_only(void) {
    for (int i = 0; i < MODEL_NUM_GOLDENS; i++) {
        ModelGolden golden;
        Model last;
        model_golden_load(&golden, i);
        const int N = model_num_blocks(&golden.config);
        const ModelPart part = model_part(N - 1, N, true);
        model_init_counts(&last, &golden.config, &part, ops);
        ModelBatch few = {.num_seqs = 2, .num_tokens = 128, .num_rows = 32, .max_seq_tokens = 64};
        if (golden.config.kind->has_decoder) { few.num_dec_tokens = 128, few.max_dec_seq_tokens = 64; }
        ModelBatch many = few, more_rows = few;
        *(golden.config.kind->has_decoder ? &many.num_dec_tokens : &many.num_tokens) *= 4;
        more_rows.num_rows *= 3;
        for (int flags = 0; flags <= KEPT; flags += KEPT) {
            CHECK_EQ(model_acts_bytes(&last, &many, flags), model_acts_bytes(&last, &few, flags));
        }
        CHECK(model_acts_bytes(&last, &more_rows, KEPT) > 2 * model_acts_bytes(&last, &few, KEPT));
        CHECK_EQ(model_boundary_bytes(&last, &many, false), model_boundary_bytes(&last, &few, false));
        CHECK_EQ(model_boundary_bytes(&last, &few, false), 4 * 32 * golden.config.channels);
        model_free(&last);
        model_golden_free(&golden);
    }
}

// --- generation --------------------------------------------------------------------------------------------

enum { SLOTS = 4, ROUNDS = 4, MOST_TOKENS = 40 };

// What the model says: ROUNDS tokens of each slot.
static void generate(Chain* chain, const ModelBatch* prompt, int32_t said[ROUNDS][SLOTS]) {
    const bool has_decoder = chain->ranges[0].config.kind->has_decoder;
    void* memory[MOST_RANGES];
    int32_t slots[SLOTS], num_before[SLOTS] = {0}, num_enc[SLOTS], ones[SLOTS + 1], none[SLOTS + 1] = {0};
    int32_t positions[SLOTS];
    ModelCache cache = {.num_slots = SLOTS,
                        .max_tokens = MOST_TOKENS,
                        .max_enc_tokens = has_decoder ? MOST_TOKENS : 0,
                        .slots = slots,
                        .num_before = num_before,
                        .num_enc = num_enc};
    for (int s = 0; s <= SLOTS; s++) { ones[s] = s; }
    for (int s = 0; s < SLOTS; s++) {
        slots[s] = SLOTS - 1 - s;
        num_enc[s] = prompt->cu_seqlens[s + 1] - prompt->cu_seqlens[s];
    }
    for (int r = 0; r < chain->num_ranges; r++) {
        memory[r] = room(model_cache_bytes(&chain->ranges[r], &cache));
    }
    ModelBatch batch = *prompt;
    for (int round = 0; round < ROUNDS; round++) {
        chain_release(chain);
        for (int r = 0; r < chain->num_ranges; r++) {
            Model* range = &chain->ranges[r];
            const bool is_last = r == chain->num_ranges - 1;
            chain->scratch[r] = room(model_infer_bytes(range, &batch));
            if (!is_last) { chain->in[r + 1] = room(model_boundary_bytes(range, &batch, 1)); }
            cache.memory = memory[r];
            model_infer(range, &batch, &cache, chain->in[r], chain->in[r + 1], chain->scratch[r],
                        said[round]);
        }
        const int32_t* cu = has_decoder ? batch.dec_cu_seqlens : batch.cu_seqlens;
        for (int s = 0; s < SLOTS; s++) {
            num_before[s] += cu[s + 1] - cu[s];
            positions[s] = num_before[s];
        }
        if (has_decoder) {
            batch.num_tokens = 0;
            batch.cu_seqlens = none;
            batch.num_dec_tokens = SLOTS;
            batch.dec_cu_seqlens = ones;
            batch.dec_tokens = said[round];
        } else {
            batch.num_tokens = SLOTS;
            batch.cu_seqlens = ones;
            batch.tokens = said[round];
            batch.positions = positions;
        }
    }
    for (int r = 0; r < chain->num_ranges; r++) { free(memory[r]); }
}

// The likeliest token after what was said in slot s, by the forward pass of training.
static int32_t next_by_forward(Chain* chain, const ModelBatch* prompt, int32_t said[ROUNDS][SLOTS], int s,
                               int round) {
    const ModelConfig* config = &chain->ranges[0].config;
    const bool has_decoder = config->kind->has_decoder;
    const int32_t* cu = has_decoder ? prompt->dec_cu_seqlens : prompt->cu_seqlens;
    const int32_t* from = has_decoder ? prompt->dec_tokens : prompt->tokens;
    int32_t text[MOST_TOKENS], positions[MOST_TOKENS], num = 0, target = 0, next;
    for (int t = cu[s]; t < cu[s + 1]; t++) { text[num++] = from[t]; }
    for (int i = 0; i < round; i++) { text[num++] = said[i][s]; }
    for (int t = 0; t < num; t++) { positions[t] = t; }
    const int32_t row = num - 1, begins[2] = {0, num},
                  enc[2] = {0, prompt->cu_seqlens[s + 1] - prompt->cu_seqlens[s]};
    ModelBatch batch = {.num_seqs = 1,
                        .num_tokens = num,
                        .num_rows = 1,
                        .max_seq_tokens = MOST_TOKENS,
                        .cu_seqlens = begins,
                        .tokens = text,
                        .positions = positions,
                        .rows = &row,
                        .targets = &target};
    if (has_decoder) {
        batch.num_tokens = enc[1];
        batch.cu_seqlens = enc;
        batch.tokens = prompt->tokens + prompt->cu_seqlens[s];
        batch.num_dec_tokens = num;
        batch.max_dec_seq_tokens = MOST_TOKENS;
        batch.dec_cu_seqlens = begins;
        batch.dec_tokens = text;
        batch.dec_positions = positions;
    }
    float loss;
    run(chain, &batch, MODEL_HEAD, &loss);
    argmax_rows(&next, last_range(chain)->last_logits, 1, config->vocab, config->padded_vocab, ops);
    return next;
}

static int32_t any_windows(int32_t cu_seqlens[SLOTS + 1], int32_t* tokens, int32_t* positions,
                           int32_t vocab) {
    cu_seqlens[0] = 0;
    for (int s = 0; s < SLOTS; s++) {
        cu_seqlens[s + 1] = cu_seqlens[s] + rng_between(&rng, 1, MOST_TOKENS - ROUNDS);
        for (int32_t t = cu_seqlens[s]; t < cu_seqlens[s + 1]; t++) {
            tokens[t] = (int32_t)rng_below(&rng, (uint32_t)vocab);
            positions[t] = t - cu_seqlens[s];
        }
    }
    return cu_seqlens[SLOTS];
}

static void generation_says_what_the_forward_says(void) {
    enum { ALL = SLOTS * MOST_TOKENS };
    int num_different = 0;
    for (int k = 0; k < 6 * MODEL_NUM_GOLDENS; k++) {
        ModelGolden golden;
        Chain chain;
        bool cut_before[MOST_RANGES];
        int32_t said[ROUNDS][SLOTS], cu_seqlens[SLOTS + 1], dec_cu_seqlens[SLOTS + 1];
        int32_t tokens[ALL], dec_tokens[ALL], positions[ALL], dec_positions[ALL];
        model_golden_load(&golden, k % MODEL_NUM_GOLDENS);
        const ModelConfig* config = &golden.config;
        for (int b = 0; b < MOST_RANGES; b++) {
            cut_before[b] = (int)rng_below(&rng, 6) < k / MODEL_NUM_GOLDENS;
        }
        chain_open(&chain, config, cut_before);
        ModelBatch prompt = {.num_seqs = SLOTS,
                             .num_rows = SLOTS,
                             .max_seq_tokens = MOST_TOKENS,
                             .cu_seqlens = cu_seqlens,
                             .tokens = tokens,
                             .positions = positions};
        prompt.num_tokens = any_windows(cu_seqlens, tokens, positions, config->vocab);
        if (config->kind->has_decoder) {
            prompt.num_dec_tokens = any_windows(dec_cu_seqlens, dec_tokens, dec_positions, config->vocab);
            prompt.max_dec_seq_tokens = MOST_TOKENS;
            prompt.dec_cu_seqlens = dec_cu_seqlens;
            prompt.dec_tokens = dec_tokens;
            prompt.dec_positions = dec_positions;
        }
        generate(&chain, &prompt, said);
        for (int i = 0; i < ROUNDS * SLOTS; i++) {
            const int round = i / SLOTS, s = i % SLOTS;
            CHECK_EQ(said[round][s], next_by_forward(&chain, &prompt, said, s, round));
            num_different += said[round][s] != said[0][0];
        }
        chain_close(&chain);
        model_golden_free(&golden);
    }
    CHECK(num_different > 50);  // not one answer to everything
}

int main(int argc, char** argv) {
    rng = rng_seed(test_seed(argc, argv));
    ops = ops_create(0);
    RUN(pytorch_and_hugging_face_agree);
    RUN(rates_are_the_published);
    RUN(linear_scaling_divides_positions);
    RUN(the_last_feed_forward_has_rows_only);
    RUN(generation_says_what_the_forward_says);
    ops_free(ops);
    return test_end();
}
