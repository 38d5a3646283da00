// Dropout in a GPT-2: the gradient is that of the loss with those values dropped, and the mask belongs to a
// sample's tokens, whatever stands beside them and however the model is cut.
#include <math.h>

#include "../llmc/llmc_error.h"
#include "gpt2_golden.h"
#include "test.h"

enum { LAYERS = 3, MAX_T = 96, LEN_A = 17, LEN_B = 30, LEN_C = 9 };

static OpsContext* ops;
static const ModelConfig config = {.kind = &gpt2_kind,
                                   .max_seq_len = 40,
                                   .vocab = 70,
                                   .num_layers = LAYERS,
                                   .num_heads = 2,
                                   .channels = 16,
                                   .padded_vocab = 128};

typedef struct {
    ModelBatch batch;
    int32_t cu_seqlens[5], tokens[MAX_T], positions[MAX_T], rows[MAX_T], targets[MAX_T];
    uint32_t keys[MAX_T];
} Own;

static void add_sample(Own* own, int id, int num_tokens) {
    ModelBatch* b = &own->batch;
    for (int i = 0; i < num_tokens; i++) {
        int t = b->num_tokens + i;
        own->tokens[t] = (id * 31 + i * 7) % config.vocab;
        own->positions[t] = i;
        own->keys[t] = (uint32_t)(id * 1000 + i) * 2654435761u;
        if (i % 2 == 0) { continue; }
        own->rows[b->num_rows] = t;
        own->targets[b->num_rows++] = (id * 13 + i * 5) % config.vocab;
    }
    b->num_tokens += num_tokens;
    if (num_tokens > b->max_seq_tokens) { b->max_seq_tokens = num_tokens; }
    own->cu_seqlens[++b->num_seqs] = b->num_tokens;
}

static void own_init(Own* own, float loss_scale) {
    *own = (Own){0};
    own->batch = (ModelBatch){.cu_seqlens = own->cu_seqlens,
                              .tokens = own->tokens,
                              .positions = own->positions,
                              .rows = own->rows,
                              .targets = own->targets,
                              .token_keys = own->keys,
                              .loss_scale = loss_scale};
}

typedef struct {
    int cuts[LAYERS + 2];  // layers of the slices, 0 behind the last
    bool recompute;
    float dropout;
} Way;

static void* poisoned(int64_t num_bytes) {
    void* memory = llmc_alloc((size_t)num_bytes, "a test");
    memset(memory, 0xff, (size_t)num_bytes);
    return memory;
}

// Runs all jobs over the slices; gradients are added to `grads` (the whole model's order). `shift` moves all
// parameters along a direction. Returns the sum of losses.
static double run(const Own* own, const Way* way, float shift, double* grads) {
    const ModelBatch* batch = &own->batch;
    Model models[LAYERS + 1];
    void *acts[LAYERS + 1], *scratch[LAYERS + 1], *x[LAYERS + 2] = {NULL}, *dx[LAYERS + 2] = {NULL};
    float losses[MAX_T];
    int P = 0, keep = MODEL_KEEP | MODEL_HEAD;
    for (; way->cuts[P + 1] > 0; P++) {
        Model* m = &models[P];
        model_init(m, &config, way->cuts[P], way->cuts[P + 1], way->cuts[P + 2] == 0, ops);
        model_alloc_grads(m);
        gpt2_golden_params(m);
        m->dropout = way->dropout;
        for (int i = 0; i < m->num_slices; i++) {
            const TensorSlice* s = &m->slices[i];
            for (int64_t j = 0; j < s->num_values; j++) {
                m->params[s->offset + j] += shift * (float)sin((double)(s->file_offset + j));
            }
        }
        acts[P] = poisoned(model_acts_bytes(m, batch, keep));
        scratch[P] = poisoned(model_scratch_bytes(m, batch));
        x[P + 1] = m->is_last ? NULL : poisoned(model_boundary_bytes(m, batch, 1));
        dx[P + 1] = m->is_last ? NULL : poisoned(model_boundary_bytes(m, batch, 1));
        model_forward(m, batch, x[P], x[P + 1], acts[P], scratch[P], losses, way->recompute ? 0 : keep);
    }
    for (int p = P - 1; p >= 0; p--) {
        if (way->recompute) {
            model_forward(&models[p], batch, x[p], NULL, acts[p], scratch[p], losses, keep);
        }
        model_backward_inputs(&models[p], batch, x[p], acts[p], dx[p + 1], dx[p], scratch[p]);
    }
    for (int p = 0; p < P; p++) {
        model_backward_weights(&models[p], batch, acts[p], dx[p + 1], scratch[p]);
        for (int i = 0; grads != NULL && i < models[p].num_slices; i++) {
            const TensorSlice* s = &models[p].slices[i];
            for (int64_t j = 0; j < s->num_values; j++) {
                grads[s->file_offset + j] += (double)models[p].grads[s->offset + j];
            }
        }
    }
    for (int p = 0; p < P; p++) {
        free(acts[p]);
        free(scratch[p]);
        free(x[p + 1]);
        free(dx[p + 1]);
        model_free(&models[p]);
    }
    double sum = 0;
    for (int i = 0; i < batch->num_rows; i++) { sum += (double)losses[i]; }
    return sum;
}

static const Way whole = {{0, LAYERS}, false, 0.2f};

static void three_samples(Own* own) {
    own_init(own, 1.0f);
    add_sample(own, 1, LEN_A);
    add_sample(own, 2, LEN_B);
    add_sample(own, 3, LEN_C);
}

static double worst(const double* a, const double* b, int64_t n) {
    double difference = 0, largest = 0;
    for (int64_t i = 0; i < n; i++) {
        difference = fmax(difference, fabs(a[i] - b[i]));
        largest = fmax(largest, fabs(b[i]));
    }
    return difference / largest;
}

static void the_gradient_is_the_dropped_losss(void) {
    static Own own;
    int64_t n = model_num_params(&config);
    double* grads = calloc((size_t)n, sizeof *grads);
    three_samples(&own);
    double loss = run(&own, &whole, 0, grads);
    const float h = 2e-4f;
    double slope = 0,
           measured = (run(&own, &whole, h, NULL) - run(&own, &whole, -h, NULL)) / (2.0 * (double)h);
    for (int64_t i = 0; i < n; i++) { slope += grads[i] * sin((double)i); }
    CHECK_NEAR(measured / slope, 1.0, 5e-3);
    Way without = whole;
    without.dropout = 0;
    CHECK(fabs(run(&own, &without, 0, NULL) - loss) > 1e-2);
    own.batch.token_keys = NULL;  // evaluation
    CHECK(run(&own, &whole, 0, NULL) == run(&own, &without, 0, NULL));
    free(grads);
}

static void masks_belong_to_samples(void) {
    static Own together, alone;
    int64_t n = model_num_params(&config);
    double *a = calloc((size_t)n, sizeof *a), *b = calloc((size_t)n, sizeof *b);
    three_samples(&together);
    double loss = run(&together, &whole, 0, a), sum = 0;
    const int lengths[] = {LEN_C, LEN_A, LEN_B}, ids[] = {3, 1, 2};
    for (int i = 0; i < 3; i++) {
        own_init(&alone, 1.0f);
        add_sample(&alone, ids[i], lengths[i]);
        sum += run(&alone, &whole, 0, b);
    }
    CHECK_NEAR(sum / loss, 1.0, 1e-6);
    CHECK(worst(b, a, n) < 2e-6);
    own_init(&alone, 1.0f);
    add_sample(&alone, 1, LEN_A);
    double before = run(&alone, &whole, 0, NULL);
    alone.keys[3] ^= 1;
    CHECK(fabs(run(&alone, &whole, 0, NULL) - before) > 1e-4);
    free(a);
    free(b);
}

static void slices_and_recomputation_change_nothing(void) {
    static Own own;
    int64_t n = model_num_params(&config);
    double *a = calloc((size_t)n, sizeof *a), *b = calloc((size_t)n, sizeof *b);
    three_samples(&own);
    double loss = run(&own, &whole, 0, a);
    const Way ways[] = {{{0, 1, 3}, false, 0.2f}, {{0, 2, 3, 3}, true, 0.2f}, {{0, 3}, true, 0.2f}};
    for (int w = 0; w < 3; w++) {
        memset(b, 0, (size_t)n * sizeof *b);
        CHECK_NEAR(run(&own, &ways[w], 0, b) / loss, 1.0, 1e-7);
        CHECK(worst(b, a, n) < 1e-6);
    }
    free(a);
    free(b);
}

int main(void) {
    ops = ops_create(1);
    RUN(the_gradient_is_the_dropped_losss);
    RUN(masks_belong_to_samples);
    RUN(slices_and_recomputation_change_nothing);
    ops_free(ops);
    return test_end();
}
