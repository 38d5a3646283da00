#include "toy_model.h"

#include <string.h>

#include "../dynapipe_plugin/base/clock.h"
#include "../dynapipe_plugin/base/rng.h"

enum { C = TOY_CHANNELS };

static float weight(int32_t l, int32_t c) {
    return (l + c) % 3 == 0 ? -1.0f : 1.0f;
}

static float bias(int32_t l, int32_t c) {
    return (float)((l * 7 + c * 3) % 5 - 2);
}

void toy_batch_init(ToyBatch* out, uint64_t seed, int32_t num_tokens) {
    *out = (ToyBatch){0};
    Rng rng = rng_seed(seed);
    int32_t num_rows = 0;
    for (int32_t t = 0; t < num_tokens; t++) {
        out->tokens[t] = rng_between(&rng, -3, 3);
        out->positions[t] = t;
        if (t < num_tokens / 2) { continue; }
        out->rows[num_rows] = t;
        out->targets[num_rows++] = rng_between(&rng, -2, 2);
    }
    out->cu_seqlens[1] = num_tokens;
    out->batch = (DynapipeBatch){.num_seqs = 1,
                                 .num_tokens = num_tokens,
                                 .num_rows = num_rows,
                                 .max_seq_tokens = num_tokens,
                                 .cu_seqlens = out->cu_seqlens,
                                 .tokens = out->tokens,
                                 .positions = out->positions,
                                 .rows = out->rows,
                                 .targets = out->targets,
                                 .row_tasks = out->row_tasks,
                                 .loss_scale = 1};
}

static int32_t num_layers(const ToyModel* toy) {
    return toy->layer_end - toy->layer_begin;
}

static int32_t width(const DynapipeBatch* batch) {  // floats of one activation
    return batch->num_tokens * C;
}

static int64_t toy_boundary_bytes(void* model, const DynapipeBatch* batch, int is_behind) {
    (void)model;
    (void)is_behind;
    return (int64_t)width(batch) * (int64_t)sizeof(float);
}

// Kept: x and dy of every layer. Else: the activation in work.
static int64_t toy_acts_bytes(void* model, const DynapipeBatch* batch, int flags) {
    return toy_boundary_bytes(model, batch, 0) * (flags & DYNAPIPE_FORWARD_KEEP ? 2 * num_layers(model) : 1);
}

static int64_t toy_scratch_bytes(void* model, const DynapipeBatch* batch) {
    return toy_boundary_bytes(model, batch, 0) + 4;
}

static int begin_job(ToyModel* toy, const DynapipeBatch* batch) {
    toy->num_jobs++;
    int64_t end_ns = clock_now_ns() + (int64_t)toy->pause_ns * (batch->num_tokens % 7);
    while (toy->pause_ns > 0 && clock_now_ns() < end_ns) {}
    return toy->num_jobs == toy->fail_at_job ? 77 : 0;
}

static void scribble(void* scratch, const DynapipeBatch* batch) {
    memset(scratch, 0xee, (size_t)toy_scratch_bytes(NULL, batch));
}

static void head(const DynapipeBatch* batch, const float* x, float* dy, float* losses, float loss_scale) {
    if (dy != NULL) { memset(dy, 0, (size_t)width(batch) * sizeof *dy); }
    for (int32_t r = 0; r < batch->num_rows; r++) {
        float sum = 0, target = (float)batch->targets[r];
        for (int32_t c = 0; c < C; c++) {
            sum += x[batch->rows[r] * C + c];
            if (dy != NULL) { dy[batch->rows[r] * C + c] = target * loss_scale; }
        }
        losses[r] = sum * target;
    }
}

static int toy_forward(void* model, const DynapipeBatch* batch, const void* in, void* out, void* acts,
                       void* scratch, float* losses, int flags) {
    ToyModel* toy = model;
    int32_t n = width(batch), L = num_layers(toy);
    bool keep = flags & DYNAPIPE_FORWARD_KEEP, with_head = toy->is_last && flags & DYNAPIPE_FORWARD_HEAD;
    int rc = begin_job(toy, batch);
    if (rc != 0) { return rc; }
    toy->num_violations +=
        (in == NULL) != toy->is_first || acts == NULL || scratch == NULL || (with_head && losses == NULL);
    float *x = scratch, *saved = acts;
    for (int32_t i = 0; i < n; i++) {
        x[i] = toy->is_first ? (float)(batch->tokens[i / C] + i % C + batch->positions[i / C] % 3)
                             : ((const float*)in)[i];
    }
    if (!keep) { memcpy(acts, x, (size_t)n * sizeof *x); }  // may be overwritten layer by layer
    for (int32_t l = 0; l < L; l++) {
        if (keep && (l > 0 || toy->is_first)) { memcpy(saved + l * n, x, (size_t)n * sizeof *x); }
        for (int32_t i = 0; i < n; i++) {
            x[i] = weight(toy->layer_begin + l, i % C) * x[i] + bias(toy->layer_begin + l, i % C);
        }
    }
    if (out != NULL) { memcpy(out, x, (size_t)n * sizeof *x); }
    if (with_head) { head(batch, x, keep ? saved + (2 * L - 1) * n : NULL, losses, batch->loss_scale); }
    scribble(scratch, batch);
    return 0;
}

static int toy_backward_inputs(void* model, const DynapipeBatch* batch, const void* in, void* acts,
                               const void* dout, void* din, void* scratch) {
    ToyModel* toy = model;
    int32_t n = width(batch), L = num_layers(toy);
    int rc = begin_job(toy, batch);
    if (rc != 0) { return rc; }
    toy->num_violations += (in == NULL) != toy->is_first || (dout == NULL) != toy->is_last ||
                           (din == NULL) != toy->is_first || acts == NULL || scratch == NULL;
    float *x = acts, *dy = x + L * n, *grad = scratch;
    if (!toy->is_first) { memcpy(x, in, (size_t)n * sizeof *x); }
    memcpy(grad, toy->is_last ? (const void*)(dy + (L - 1) * n) : dout, (size_t)n * sizeof *grad);
    for (int32_t l = L - 1; l >= 0; l--) {
        if (l < L - 1) { memcpy(dy + l * n, grad, (size_t)n * sizeof *grad); }
        for (int32_t i = 0; i < n; i++) { grad[i] *= weight(toy->layer_begin + l, i % C); }
    }
    if (din != NULL) { memcpy(din, grad, (size_t)n * sizeof *grad); }
    scribble(scratch, batch);
    return 0;
}

static int toy_backward_weights(void* model, const DynapipeBatch* batch, void* acts, const void* dout,
                                void* scratch) {
    ToyModel* toy = model;
    int32_t n = width(batch), L = num_layers(toy);
    int rc = begin_job(toy, batch);
    if (rc != 0) { return rc; }
    toy->num_violations += (dout == NULL) != toy->is_last || acts == NULL || scratch == NULL;
    const float *x = acts, *kept = x + L * n;
    for (int32_t l = 0; l < L; l++) {
        const float* dy = l == L - 1 && !toy->is_last ? (const float*)dout : kept + l * n;
        for (int32_t i = 0; i < n; i++) {
            toy->da[toy->layer_begin + l][i % C] += x[l * n + i] * dy[i];
            toy->db[toy->layer_begin + l][i % C] += dy[i];
        }
    }
    memset(acts, 0xee, (size_t)(2 * L * n) * sizeof *x);  // once only
    scribble(scratch, batch);
    return 0;
}

static void toy_zero_gradients(void* model) {
    ToyModel* toy = model;
    memset(toy->da, 0, sizeof toy->da);
    memset(toy->db, 0, sizeof toy->db);
}

const DynapipeModel_v1 toy_api = {
    .name = "toy",
    .acts_bytes = toy_acts_bytes,
    .scratch_bytes = toy_scratch_bytes,
    .boundary_bytes = toy_boundary_bytes,
    .forward = toy_forward,
    .backward_inputs = toy_backward_inputs,
    .backward_weights = toy_backward_weights,
    .zero_gradients = toy_zero_gradients,
};
