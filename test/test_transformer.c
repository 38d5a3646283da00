// Laws of a whole model: losses, logits and gradients are what PyTorch and Hugging Face compute; generation
// says what the whole forward says; losses of a shared head keep their digits. That any cut, grouping and
// sharing is the whole model, and gradients those of finite differences, is test_check_llmc.c; any placement
// on any ranks, test_gradients.c; a GPU, test_cuda_check.sh and test_cuda_train.sh. Bytes:
// test_measure_llmc.c.
#include "../llmc/floatx.h"
#include "../llmc/kinds.h"
#include "../llmc/llmc_error.h"

#include <math.h>

#include "../util/numbers.h"
#include "model_golden.h"
#include "test.h"

static OpsContext* ops;
static Rng rng;

enum { VOCAB = 131, MAX_SEQS = 4, MAX_TOKENS = 40 * MAX_SEQS, KEPT = MODEL_KEEP | MODEL_HEAD };
enum { NUM_KINDS = 4 };

// --- models ------------------------------------------------------------------------------------------------

static ModelConfig config_of(int k) {
    static const struct {
        const ModelKind* kind;
        const char* descriptor;
    } kinds[] = {
        {&gpt2_kind, "l4c48h3"},                // tied
        {&t5_kind, "t5:l2d3c48h3k16f40"},       // tied, scaled
        {&t5_kind, "flan-t5:l2d2c32h2k16f40"},  // a head of its own, gated
        {&t5_kind, "umt5:l1d2c32h2k16f40"},     // biases per layer
    };
    ModelConfig config;
    if (!model_parse(&config, kinds[k].kind, kinds[k].descriptor, VOCAB, 64)) {
        printf("%s\n", status_message());
        exit(1);
    }
    return config;
}

static void whole_model(Model* out, const ModelConfig* config) {
    model_init(out, config, 0, model_num_layers(config), true, ops);
    model_alloc_grads(out);
    model_golden_params(out);
}

// Full of NaN.
static void* room(int64_t num_bytes) {
    void* memory = llmc_alloc_raw((size_t)num_bytes + 64, "a test");
    return memset(memory, 0xff, (size_t)num_bytes + 64);
}

// --- microbatches ------------------------------------------------------------------------------------------

typedef struct {
    ModelBatch batch;  // points at what follows
    int32_t cu_seqlens[MAX_SEQS + 1], dec_cu_seqlens[MAX_SEQS + 1];
    int32_t tokens[MAX_TOKENS], dec_tokens[MAX_TOKENS];
    int32_t positions[MAX_TOKENS], dec_positions[MAX_TOKENS];
    int32_t rows[MAX_TOKENS], targets[MAX_TOKENS];
} Batch;

static int32_t add_side(int32_t* cu_seqlens, int32_t* tokens, int32_t* positions) {
    const int32_t num = rng_between(&rng, 1, MAX_TOKENS / MAX_SEQS);
    for (int t = 0; t < num; t++) {
        tokens[cu_seqlens[0] + t] = (int32_t)rng_below(&rng, VOCAB);
        positions[cu_seqlens[0] + t] = t;
    }
    cu_seqlens[1] = cu_seqlens[0] + num;
    return num;
}

// Sequences of any lengths; every second token of the side that answers is supervised.
static void batch_random(Batch* out, const ModelConfig* config, int num_seqs) {
    const bool has_decoder = config->kind->has_decoder;
    *out = (Batch){.batch = {.num_seqs = num_seqs,
                             .cu_seqlens = out->cu_seqlens,
                             .tokens = out->tokens,
                             .positions = out->positions,
                             .rows = out->rows,
                             .targets = out->targets,
                             .loss_scale = 0.07f}};
    ModelBatch* b = &out->batch;
    for (int i = 0; i < num_seqs; i++) {
        b->num_tokens += add_side(&out->cu_seqlens[i], out->tokens, out->positions);
        if (!has_decoder) { continue; }
        b->num_dec_tokens += add_side(&out->dec_cu_seqlens[i], out->dec_tokens, out->dec_positions);
    }
    b->max_seq_tokens = MAX_TOKENS / MAX_SEQS;
    if (has_decoder) {
        b->max_dec_seq_tokens = MAX_TOKENS / MAX_SEQS;
        b->dec_cu_seqlens = out->dec_cu_seqlens;
        b->dec_tokens = out->dec_tokens;
        b->dec_positions = out->dec_positions;
    }
    for (int t = 0; t < (has_decoder ? b->num_dec_tokens : b->num_tokens); t += 2) {
        out->rows[b->num_rows] = t;
        out->targets[b->num_rows++] = (int32_t)rng_below(&rng, VOCAB);
    }
}

// --- what others compute -----------------------------------------------------------------------------------

// Of any tensor, in units of its largest value, at least a twentieth of the largest of all: what is the small
// rest of larger terms (a bias table where there are few keys) has their rounding.
static double worst_grad(const Model* whole, const float* expected) {
    double worst = 0.0, most = 0.0;
    for (int64_t i = 0; i < whole->num_params; i++) { most = fmax(most, fabs((double)expected[i])); }
    for (int i = 0; i < whole->num_slices; i++) {
        double largest = most / 20.0, difference = 0.0;
        for (int64_t j = 0; j < whole->slices[i].num_values; j++) {
            const int64_t at = whole->slices[i].offset + j;
            const double x = (double)whole->grads[at], y = (double)expected[at];
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

// Losses, and with KEEP gradients, which are added.
static void run(Model* whole, const ModelBatch* batch, int flags, float* losses) {
    void *acts = room(model_acts_bytes(whole, batch, flags)),
         *scratch = room(model_scratch_bytes(whole, batch));
    model_forward(whole, batch, NULL, NULL, acts, scratch, losses, flags);
    if (flags & MODEL_KEEP) {
        model_backward_inputs(whole, batch, NULL, acts, NULL, NULL, scratch);
        model_backward_weights(whole, batch, acts, NULL, scratch);
    }
    free(acts);
    free(scratch);
}

static void check_golden(const ModelGolden* g) {
    const int num_rows = g->batch.num_rows;
    Model whole;
    float losses[64];
    double difference = 0.0;
    CHECK(num_rows <= 64);  // logits of all at once
    whole_model(&whole, &g->config);
    run(&whole, &g->batch, KEPT, losses);
    CHECK(worst_loss(losses, g->losses, num_rows) < 1e-6);
    CHECK(worst_grad(&whole, g->grads) < 1e-5);
    // the tolerance is tight: a change of one gradient by 1 % of the largest is seen
    double most = 0.0;
    for (int64_t i = 0; i < whole.num_params; i++) { most = fmax(most, fabs((double)whole.grads[i])); }
    whole.grads[0] += 0.01f * (float)most;
    CHECK(worst_grad(&whole, g->grads) > 1e-5);
    run(&whole, &g->batch, MODEL_HEAD, losses);
    CHECK(worst_loss(losses, g->losses, num_rows) < 1e-6);
    for (int i = 0; i < num_rows; i++) {
        for (int v = 0; v < g->config.vocab; v++) {
            const double ours = whole.last_logits[i * g->config.padded_vocab + v];
            difference = fmax(difference, fabs(ours - (double)g->logits[i * g->config.vocab + v]));
        }
    }
    CHECK(difference < 1e-5);
    if (g->dropped_losses != NULL) {
        whole.dropout = MODEL_GOLDEN_DROPOUT;
        run(&whole, &g->batch, KEPT, losses);
        CHECK(worst_loss(losses, g->dropped_losses, num_rows) < 1e-6);
    }
    model_free(&whole);
}

static void pytorch_and_hugging_face_agree(void) {
    for (int i = 0; i < MODEL_NUM_GOLDENS; i++) {
        ModelGolden golden;
        model_golden_load(&golden, i);
        check_golden(&golden);
        model_golden_free(&golden);
    }
}

// --- a shared head -----------------------------------------------------------------------------------------

// Targets that are all but certain: what is left of the loss to six digits, by vocabulary from parts of it.
static void small_losses_keep_their_digits(void) {
    enum { CERTAIN = 77, STAGES = 3 };
    static const int32_t places[STAGES + 1] = {0, 300, 700, MODEL_HEAD_PLACES};
    Batch own;
    Model whole, ranks[STAGES];
    const ModelConfig config = config_of(0);
    const int C = config.channels, L = model_num_layers(&config);
    float losses[MAX_TOKENS], whole_losses[MAX_TOKENS];
    void* parts[STAGES];
    batch_random(&own, &config, 2);
    const ModelBatch* batch = &own.batch;
    for (int i = 0; i < batch->num_rows; i++) { own.targets[i] = CERTAIN; }
    whole_model(&whole, &config);
    for (int c = 0; c < C; c++) {  // every normed row is of ones, so a logit is the sum of the matrix' row
        whole.params[model_find(&whole, GPT2_lnfw, -1)->offset + c] = 0.0f;
        whole.params[model_find(&whole, GPT2_lnfb, -1)->offset + c] = 1.0f;
        whole.params[model_find(&whole, GPT2_wte, -1)->offset + CERTAIN * C + c] = 25.0f / (float)C;
    }
    run(&whole, batch, MODEL_HEAD, whole_losses);
    void* rows = room(head_rows_bytes(&config, batch->num_rows));
    for (int s = 0; s < STAGES; s++) {
        ModelPart part = {.num_ranges = s == 0, .ranges = {{0, L, MODEL_FEEDS_HEAD}}};
        part.head = head_of_places(&config, MODEL_HEAD_BY_VOCAB, STAGES, places);
        part.stage = s;
        part.has_share = true;
        model_init_part(&ranks[s], &config, &part, ops);
        for (int i = 0; i < ranks[s].num_slices; i++) {
            const TensorSlice* slice = &ranks[s].slices[i];
            model_set_values(&ranks[s], slice, whole.params + slice->file_offset, slice->first,
                             slice->num_values);
        }
        Model view = s == 0 ? model_view(&ranks[0], 0) : model_share_view(&ranks[s]);
        void *acts = room(model_acts_bytes(&view, batch, MODEL_HEAD)),
             *scratch = room(model_scratch_bytes(&view, batch));
        if (s == 0) {
            model_forward(&view, batch, NULL, rows, acts, scratch, NULL, MODEL_HEAD);
            free(acts);
            view = model_share_view(&ranks[0]);
            acts = room(model_acts_bytes(&view, batch, MODEL_HEAD));
        }
        parts[s] = room(head_part_bytes(&config, batch->num_rows, MODEL_HEAD));
        model_forward(&view, batch, rows, parts[s], acts, scratch, NULL, MODEL_HEAD);
        free(acts);
        free(scratch);
    }
    Model feeds = model_view(&ranks[0], 0);
    head_combine(&feeds, batch, STAGES, (const void* const*)parts, NULL, NULL, losses);
    for (int i = 0; i < batch->num_rows; i++) {
        CHECK(whole_losses[i] > 0.0f && whole_losses[i] < 1e-8f);
        CHECK_NEAR((double)(losses[i] / whole_losses[i]), 1.0, 1e-5);
    }
    for (int s = 0; s < STAGES; s++) {
        free(parts[s]);
        model_free(&ranks[s]);
    }
    free(rows);
    model_free(&whole);
}

// --- generation --------------------------------------------------------------------------------------------

enum { SLOTS = MAX_SEQS, ROUNDS = 4, MOST_TOKENS = 50 };

// What the model says: ROUNDS tokens of each slot.
static void generate(Model* whole, const ModelBatch* prompt, int32_t said[ROUNDS][SLOTS]) {
    const bool has_decoder = whole->config.kind->has_decoder;
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
    cache.memory = room(model_cache_bytes(whole, &cache));
    ModelBatch batch = *prompt;
    for (int round = 0; round < ROUNDS; round++) {
        void* scratch = room(model_infer_bytes(whole, &batch));
        model_infer(whole, &batch, &cache, NULL, NULL, scratch, said[round]);
        free(scratch);
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
    free(cache.memory);
}

// The likeliest token after what was said in slot s, by the forward pass of training.
static int32_t next_by_forward(Model* whole, const ModelBatch* prompt, int32_t said[ROUNDS][SLOTS], int s,
                               int round) {
    const bool has_decoder = whole->config.kind->has_decoder;
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
    run(whole, &batch, MODEL_HEAD, &loss);
    argmax_rows(&next, whole->last_logits, 1, whole->config.vocab, whole->config.padded_vocab, ops);
    return next;
}

static void generation_says_what_the_forward_says(void) {
    int num_different = 0;
    for (int k = 0; k < NUM_KINDS; k++) {
        const ModelConfig config = config_of(k);
        Model whole;
        whole_model(&whole, &config);
        for (int round = 0; round < 6; round++) {
            Batch own;
            int32_t said[ROUNDS][SLOTS];
            batch_random(&own, &config, SLOTS);
            generate(&whole, &own.batch, said);
            for (int i = 0; i < ROUNDS; i++) {
                for (int s = 0; s < SLOTS; s++) {
                    CHECK_EQ(said[i][s], next_by_forward(&whole, &own.batch, said, s, i));
                    num_different += said[i][s] != said[0][0];
                }
            }
        }
        model_free(&whole);
    }
    CHECK(num_different > 100 / 3);  // not one answer to everything
}

int main(int argc, char** argv) {
    rng = rng_seed(test_seed(argc, argv));
    ops = ops_create(0);
    RUN(pytorch_and_hugging_face_agree);
    RUN(small_losses_keep_their_digits);
    RUN(generation_says_what_the_forward_says);
    ops_free(ops);
    return test_end();
}
