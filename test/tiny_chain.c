#include "tiny_chain.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../util/numbers.h"

enum { V = 11, C = 6, L = 3, HEAD = L + 1 };
enum { LAYER_VALUES = 2 * C * C + C, EMBEDDING_VALUES = V * C };

typedef struct {
    Tiny* tiny;
    int32_t layer_begin, layer_end;
    bool is_first, is_last;
    float *params, *grads;
    int64_t num_params;
    DynapipeTied tied[2];
    int32_t num_calls;
    float kept[64 * C];  // for faults: what belongs in acts
    struct TinyJob* queue;
    int32_t num_queued;
    int32_t staged[64];  // for a fault: the tokens of the microbatch that came last
    const float* in;
} Range;

static bool has(const Range* range, TinyFault fault) {
    return range->tiny->fault == fault;
}

// --- parameters ------------------------------------------------------------------------------------------

// Embedding first, if the range has one; then the layers: W (C, C), U (C, C), b (C); then the head's copy.
static int64_t layer_offset(const Range* range, int32_t l) {
    return (range->is_first ? EMBEDDING_VALUES : 0) + (int64_t)(l - range->layer_begin) * LAYER_VALUES;
}

static int64_t head_offset(const Range* range) {
    return range->is_first ? 0 : layer_offset(range, range->layer_end);
}

static float param(const Range* range, int64_t idx) {
    if (range->tiny->param_type == DYNAPIPE_FLOAT32) { return range->params[idx]; }
    uint32_t bits = (uint32_t)((const uint16_t*)(const void*)range->params)[idx] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void set_params(Range* range, int64_t offset, int64_t count, uint64_t seed) {
    Rng rng = rng_seed(seed);
    for (int64_t i = offset; i < offset + count; i++) {
        float value = (float)(int32_t)(uint32_t)rng_u64(&rng) * 0x1p-32F;  // [-1/2, 1/2)
        if (range->tiny->param_type == DYNAPIPE_FLOAT32) {
            range->params[i] = value;
        } else {
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            ((uint16_t*)(void*)range->params)[i] = (uint16_t)(bits >> 16);
        }
    }
}

// --- bytes -----------------------------------------------------------------------------------------------

static int64_t floats(int64_t num_values) {
    return num_values * (int64_t)sizeof(float);
}

static int64_t tiny_acts_bytes(void* model, const DynapipeBatch* batch, int flags) {
    const Range* range = model;
    bool keep = flags & DYNAPIPE_FORWARD_KEEP;
    int64_t num_layers = range->layer_end - range->layer_begin, T = batch->num_tokens, R = batch->num_rows;
    int64_t kept = num_layers * 3 * T * C + (range->is_last ? T * C + R * V : 0);  // see below
    if (has(range, TINY_ACTS_TOO_FEW) && keep) { kept--; }
    if (has(range, TINY_FEWER_BYTES_FOR_MORE_ROWS)) { kept += 1000 - 2 * R * V; }
    if (has(range, TINY_NEGATIVE_BYTES)) { return -1; }
    if (has(range, TINY_POINTER_IN_ACTS)) { return keep ? floats(kept) + 16 : 0; }
    return keep ? floats(kept) : 0;
}

static int64_t tiny_scratch_bytes(void* model, const DynapipeBatch* batch) {
    const Range* range = model;
    int64_t T = batch->num_tokens;
    if (has(range, TINY_BYTES_FROM_ARRAYS)) { T = batch->cu_seqlens[batch->num_seqs]; }
    return floats(3 * T * C);
}

static int64_t tiny_boundary_bytes(void* model, const DynapipeBatch* batch, int is_behind) {
    const Range* range = model;
    return floats((int64_t)batch->num_tokens * C) +
           (has(range, TINY_BOUNDARIES_DISAGREE) && is_behind ? 4 : 0);
}

// --- a layer ---------------------------------------------------------------------------------------------

// acts of a layer: its input x, the mean m, its step y = tanh(..), (T, C) each; behind the layers what leaves
// them (T, C) and the gradient of logits (R, V). backward_inputs turns y into the gradient before tanh.
static float* acts_of(const Range* range, const DynapipeBatch* batch, void* acts, int32_t l) {
    return (float*)acts + (int64_t)(l - range->layer_begin) * 3 * batch->num_tokens * C;
}

// For a fault: behind all of them, where the last layer's x lies.
static unsigned char* kept_pointer(const Range* range, const DynapipeBatch* batch, void* acts) {
    int64_t behind = range->is_last ? (int64_t)batch->num_tokens * C + (int64_t)batch->num_rows * V : 0;
    return (unsigned char*)(acts_of(range, batch, acts, range->layer_end) + behind);
}

static int32_t window_begin(const Range* range, const DynapipeBatch* batch, int32_t t) {
    int32_t i = 0;
    while (batch->cu_seqlens[i + 1] <= t) { i++; }
    return has(range, TINY_ACROSS_WINDOWS) ? 0 : batch->cu_seqlens[i];
}

// What the mean over a window's first tokens divides by. (A fault: by the window's length, padding included.)
static float count_before(const Range* range, const DynapipeBatch* batch, int32_t t) {
    int32_t begin = window_begin(range, batch, t), i = 0;
    while (batch->cu_seqlens[i + 1] <= t) { i++; }
    return has(range, TINY_PADDING_IS_SEEN) ? (float)(batch->cu_seqlens[i + 1] - begin)
                                            : (float)(t - begin + 1);
}

static void mean_forward(const Range* range, const DynapipeBatch* batch, float* m, const float* x) {
    for (int32_t t = 0; t < batch->num_tokens; t++) {
        for (int32_t c = 0; c < C; c++) {
            float sum = 0;
            for (int32_t k = window_begin(range, batch, t); k <= t; k++) { sum += x[k * C + c]; }
            m[t * C + c] = sum / count_before(range, batch, t);
        }
    }
}

static void layer_forward(const Range* range, int32_t l, float* y, const float* x, const float* m,
                          int32_t num_tokens, bool with_bias) {
    int64_t at = layer_offset(range, l);
    for (int32_t t = 0; t < num_tokens; t++) {
        for (int32_t c = 0; c < C; c++) {
            float sum = with_bias ? param(range, at + 2 * C * C + c) : 0;
            for (int32_t k = 0; k < C; k++) {
                sum += param(range, at + c * C + k) * x[t * C + k];
                sum += param(range, at + C * C + c * C + k) * m[t * C + k];
            }
            y[t * C + c] = tanhf(sum);
        }
    }
}

// dx: in, of the layer's output; out, of its input. dm: scratch.
static void layer_backward(const Range* range, const DynapipeBatch* batch, int32_t l, float* y, float* dx,
                           float* dm) {
    int32_t T = batch->num_tokens;
    int64_t at = layer_offset(range, l);
    for (int32_t i = 0; i < T * C; i++) {
        y[i] = dx[i] * (1 - y[i] * (has(range, TINY_SLOPE_OF_TANH) ? 1 : y[i]));
    }
    for (int32_t i = 0; i < T * C && !has(range, TINY_NO_BIAS_GRADIENT); i++) {
        range->grads[at + 2 * C * C + i % C] +=
            has(range, TINY_BIAS_GRADIENT_3_PERCENT) ? 1.03F * y[i] : y[i];
    }
    for (int32_t t = 0; t < T; t++) {
        for (int32_t k = 0; k < C; k++) {
            float of_x = 0, of_m = 0;
            for (int32_t c = 0; c < C; c++) {
                of_x += param(range, at + c * C + k) * y[t * C + c];
                of_m += param(range, at + C * C + c * C + k) * y[t * C + c];
            }
            dx[t * C + k] += of_x;
            dm[t * C + k] = has(range, TINY_NO_GRADIENT_OF_MEAN) ? 0 : of_m / count_before(range, batch, t);
        }
    }
    for (int32_t t = 0; t < T; t++) {
        for (int32_t k = window_begin(range, batch, t); k <= t; k++) {
            for (int32_t c = 0; c < C; c++) { dx[k * C + c] += dm[t * C + c]; }
        }
    }
}

// --- head ------------------------------------------------------------------------------------------------

static void head_forward(const Range* range, const DynapipeBatch* batch, const float* x, float* dlogits,
                         float* losses) {
    int64_t at = head_offset(range);
    for (int32_t r = 0; r < batch->num_rows; r++) {
        float logits[V], sum = 0, largest = -INFINITY;
        const float* row = x + batch->rows[r] * C;
        for (int32_t v = 0; v < V; v++) {
            logits[v] = 0;
            for (int32_t c = 0; c < C; c++) { logits[v] += param(range, at + v * C + c) * row[c]; }
            largest = logits[v] > largest ? logits[v] : largest;
        }
        for (int32_t v = 0; v < V; v++) { sum += expf(logits[v] - largest); }
        float loss = largest + logf(sum) - logits[batch->targets[r]];
        losses[has(range, TINY_ROWS_REVERSED) ? batch->num_rows - 1 - r : r] =
            has(range, TINY_LOSS_IS_SCALED) ? loss * batch->loss_scale : loss;
        float scale = batch->loss_scale / (has(range, TINY_MEAN_OVER_ROWS) ? (float)batch->num_rows : 1.0F);
        for (int32_t v = 0; v < V && dlogits != NULL; v++) {
            float p = expf(logits[v] - largest) / sum;
            dlogits[r * V + v] = scale * (p - (v == batch->targets[r] ? 1 : 0));
        }
    }
    if (has(range, TINY_LOSS_FOR_EACH_TOKEN)) {
        for (int32_t t = batch->num_rows; t < batch->num_tokens; t++) { losses[t] = 0; }
    }
}

static void head_backward(const Range* range, const DynapipeBatch* batch, const float* dlogits, float* dx) {
    memset(dx, 0, (size_t)(batch->num_tokens * C) * sizeof *dx);
    for (int32_t i = 0; i < batch->num_rows * V; i++) {
        for (int32_t c = 0; c < C; c++) {
            dx[batch->rows[i / V] * C + c] += dlogits[i] * param(range, head_offset(range) + i % V * C + c);
        }
    }
}

// --- the table -------------------------------------------------------------------------------------------

static void add(const Range* range, int64_t idx, float value) {
    range->grads[idx] = has(range, TINY_GRADIENTS_ASSIGNED) ? value : range->grads[idx] + value;
}

static int tiny_forward(void* model, const DynapipeBatch* batch, const void* in, void* out, void* acts,
                        void* scratch, float* losses, int flags) {
    Range* range = model;
    int32_t T = batch->num_tokens;
    size_t bytes = (size_t)floats((int64_t)T * C);
    bool keep = (flags & DYNAPIPE_FORWARD_KEEP) &&
                !(has(range, TINY_NO_ACTS_WITHOUT_OUT) && out == NULL && !range->is_last);
    float *x = scratch, *m = x + T * C, *y = m + T * C;
    const Tiny* tiny = range->tiny;
    if (tiny->max_tokens > 0 && T > tiny->max_tokens) { return 8; }
    if (tiny->max_seqs > 0 && batch->num_seqs > tiny->max_seqs) { return 9; }
    if (has(range, TINY_FORWARD_FAILS) && range->is_last) { return 5; }
    for (int32_t i = 0; i < T * C && range->is_first; i++) {
        x[i] = param(range, batch->tokens[i / C] * C + i % C);
    }
    if (!range->is_first) { memcpy(x, in, bytes); }
    range->in = in;
    if (has(range, TINY_CHANGES_IN) && in != NULL) { ((float*)(uintptr_t)in)[0] += 1; }
    if (has(range, TINY_FORWARD_COUNTS)) { x[0] += 1e-6F * (float)range->num_calls++; }
    if (has(range, TINY_FORWARD_ADDS_GRADIENTS)) { range->grads[0] += 1; }
    for (int32_t l = range->layer_begin; l < range->layer_end; l++) {
        float* kept = keep ? acts_of(range, batch, acts, l) : NULL;
        int32_t used = flags == 0 && has(range, TINY_FLAGS_0_STAY_AT_A_LAYER) ? range->layer_begin : l;
        mean_forward(range, batch, m, x);
        layer_forward(range, used, y, x, m, T, flags != 0 || !has(range, TINY_FLAGS_0_LEAVE_OUT_BIAS));
        if (keep) { memcpy(kept, x, 3 * bytes); }  // x, m, y
        if (keep && has(range, TINY_POINTER_IN_ACTS)) {
            memcpy(kept_pointer(range, batch, acts), &kept, sizeof kept);
        }
        if (has(range, TINY_STATE_IN_MODEL)) { memcpy(range->kept, x, bytes); }
        for (int32_t i = 0; i < T * C; i++) { x[i] += y[i]; }
    }
    for (int32_t i = 0; i < T * C && out != NULL; i++) {
        ((float*)out)[i] = x[i] + (has(range, TINY_OUT_IS_ADDED_TO) ? 0 * ((float*)out)[i] : 0);
    }
    if (has(range, TINY_WRITES_BEFORE_OUT) && out != NULL) { ((float*)out)[-2] = 0; }
    float* left = keep && range->is_last ? acts_of(range, batch, acts, range->layer_end) : NULL;
    if (left != NULL) { memcpy(left, x, bytes); }
    if (losses != NULL) { head_forward(range, batch, x, left != NULL ? left + T * C : NULL, losses); }
    return 0;
}

static int tiny_backward_weights(void* model, const DynapipeBatch* batch, void* acts, const void* dout,
                                 void* scratch) {
    const Range* range = model;
    int32_t T = batch->num_tokens;
    (void)dout;
    for (int32_t l = range->layer_begin; l < range->layer_end; l++) {
        const float *x = acts_of(range, batch, acts, l), *m = x + T * C, *dz = m + T * C;
        if (has(range, TINY_STATE_IN_MODEL)) { x = range->kept; }
        if (has(range, TINY_POINTER_IN_ACTS)) { memcpy(&x, kept_pointer(range, batch, acts), sizeof x); }
        if (has(range, TINY_STATE_IN_SCRATCH)) { dz = (const float*)scratch + 2 * T * C; }
        if (has(range, TINY_WEIGHTS_READ_IN) && range->in != NULL) { x = range->in; }
        for (int32_t i = 0; i < C * C; i++) {
            float of_w = 0, of_u = 0;
            for (int32_t t = 0; t < T; t++) {
                of_w += dz[t * C + i / C] * x[t * C + i % C];
                of_u += dz[t * C + i / C] * m[t * C + i % C];
            }
            add(range, layer_offset(range, l) + i, of_w);
            add(range, layer_offset(range, l) + C * C + i, of_u);
        }
    }
    if (!range->is_last) { return 0; }
    const float *x = acts_of(range, batch, acts, range->layer_end), *dlogits = x + T * C;
    for (int32_t i = 0; i < batch->num_rows * V; i++) {
        for (int32_t c = 0; c < C; c++) {
            range->grads[head_offset(range) + i % V * C + c] += dlogits[i] * x[batch->rows[i / V] * C + c];
        }
    }
    return 0;
}

static int tiny_backward_inputs(void* model, const DynapipeBatch* batch, const void* in, void* acts,
                                const void* dout, void* din, void* scratch) {
    Range* range = model;
    int32_t T = batch->num_tokens;
    size_t bytes = (size_t)floats((int64_t)T * C);
    float *dx = scratch, *dm = dx + T * C;
    (void)in;
    if (has(range, TINY_SCRATCH_OVERRUN)) { ((float*)scratch)[3 * T * C + 15] = 0; }
    if (range->is_last) {
        head_backward(range, batch, acts_of(range, batch, acts, range->layer_end) + T * C, dx);
    } else {
        memcpy(dx, dout, bytes);
    }
    for (int32_t l = range->layer_end - 1; l >= range->layer_begin; l--) {
        float* y = acts_of(range, batch, acts, l) + 2 * T * C;
        layer_backward(range, batch, l, y, dx, dm);
        if (has(range, TINY_STATE_IN_SCRATCH)) { memcpy(dm + T * C, y, bytes); }
    }
    // four to eight times what is tolerated; of 16 bits more
    const float off = range->tiny->param_type == DYNAPIPE_BFLOAT16 ? 1.0f : 0x1p-12f;
    for (int32_t i = 0; i < T * C; i++) {
        if (range->is_first) { range->grads[batch->tokens[i / C] * C + i % C] += dx[i]; }
        if (din != NULL) { ((float*)din)[i] = has(range, TINY_DIN_OFF) ? dx[i] * (1 + off) : dx[i]; }
    }
    return range->tiny->no_weights_job ? tiny_backward_weights(model, batch, acts, dout, scratch) : 0;
}

// --- a queue ---------------------------------------------------------------------------------------------

typedef enum { TINY_F, TINY_B, TINY_W } TinyJobKind;

// A call that waits for finish(). Batches live as long as their microbatch.
typedef struct TinyJob {
    TinyJobKind kind;
    const DynapipeBatch* batch;
    const void *in, *dout;
    void *out, *acts, *scratch, *din;
    float* losses;
    int flags;
} TinyJob;

enum { MOST_JOBS = 16 };

static int enqueue(Range* range, TinyJob job) {
    if (range->queue == NULL) { range->queue = calloc(MOST_JOBS, sizeof *range->queue); }
    if (range->queue == NULL || range->num_queued == MOST_JOBS) { return 4; }
    size_t num_tokens = (size_t)job.batch->num_tokens;
    memcpy(range->staged, job.batch->tokens, num_tokens * sizeof(int32_t));
    range->queue[range->num_queued++] = job;
    return 0;
}

static int run_queued(Range* range, const TinyJob* job) {
    DynapipeBatch batch = *job->batch;
    if (has(range, TINY_ONE_STAGING)) { batch.tokens = range->staged; }
    if (job->kind == TINY_F) {
        return tiny_forward(range, &batch, job->in, job->out, job->acts, job->scratch, job->losses,
                            job->flags);
    }
    if (job->kind == TINY_W) {
        return tiny_backward_weights(range, &batch, job->acts, job->dout, job->scratch);
    }
    return tiny_backward_inputs(range, &batch, job->in, job->acts, job->dout, job->din, job->scratch);
}

static int queued_finish(void* model) {
    Range* range = model;
    int code = 0;
    for (int32_t i = 0; i < range->num_queued && code == 0; i++) {
        code = run_queued(range, &range->queue[i]);
    }
    range->num_queued = 0;
    return code;
}

static int queued_forward(void* model, const DynapipeBatch* batch, const void* in, void* out, void* acts,
                          void* scratch, float* losses, int flags) {
    return enqueue(model, (TinyJob){.kind = TINY_F,
                                    .batch = batch,
                                    .in = in,
                                    .out = out,
                                    .acts = acts,
                                    .scratch = scratch,
                                    .losses = losses,
                                    .flags = flags});
}

static int queued_backward_inputs(void* model, const DynapipeBatch* batch, const void* in, void* acts,
                                  const void* dout, void* din, void* scratch) {
    return enqueue(model, (TinyJob){.kind = TINY_B,
                                    .batch = batch,
                                    .in = in,
                                    .acts = acts,
                                    .dout = dout,
                                    .din = din,
                                    .scratch = scratch});
}

static int queued_backward_weights(void* model, const DynapipeBatch* batch, void* acts, const void* dout,
                                   void* scratch) {
    return enqueue(model,
                   (TinyJob){.kind = TINY_W, .batch = batch, .acts = acts, .dout = dout, .scratch = scratch});
}

static void tiny_zero_gradients(void* model) {
    Range* range = model;
    int64_t count = has(range, TINY_ZEROES_HALF) ? range->num_params / 2 : range->num_params;
    memset(range->grads, 0, (size_t)floats(count));
}

// --- blocks ----------------------------------------------------------------------------------------------

static void list_tied(Range* range, DynapipeParams_v1* params) {
    const Tiny* tiny = range->tiny;
    if (tiny->fault == TINY_TIED_NOT_LISTED || !(range->is_first || range->is_last)) { return; }
    int64_t begin = range->is_first ? 0 : head_offset(range);
    if (tiny->fault == TINY_TIED_ELSEWHERE && !range->is_first && range->layer_end > range->layer_begin) {
        begin -= C;
    }
    range->tied[0] = (DynapipeTied){3, begin, EMBEDDING_VALUES};
    params->tied = range->tied;
    params->num_tied = 1;
}

static int tiny_make(void* ctx, DynapipeRange blocks, int has_values, void** model,
                     DynapipeParams_v1* params) {
    Tiny* tiny = ctx;
    if (tiny->fault == TINY_HEAD_NOT_ALONE && blocks.begin == HEAD) { return 7; }
    Range* range = calloc(1, sizeof *range);
    if (range == NULL) { return 1; }
    range->tiny = tiny;
    range->is_first = blocks.begin == 0;
    range->is_last = blocks.end == HEAD + 1;
    range->layer_begin = range->is_first ? 0 : blocks.begin - 1;
    range->layer_end = range->is_last ? L : blocks.end - 1;
    range->num_params =
        layer_offset(range, range->layer_end) + (range->is_last && !range->is_first ? EMBEDDING_VALUES : 0);
    if (tiny->fault == TINY_FEWER_PARAMS_WITHOUT_VALUES && !has_values) { range->num_params--; }
    *params = (DynapipeParams_v1){.num_params = range->num_params, .param_type = tiny->param_type};
    if (has_values) {
        range->params = calloc((size_t)range->num_params, sizeof(float));
        range->grads = calloc((size_t)range->num_params, sizeof(float));
        if (range->is_first) { set_params(range, 0, EMBEDDING_VALUES, 100); }
        if (range->is_last) { set_params(range, head_offset(range), EMBEDDING_VALUES, 100); }
        for (int32_t l = range->layer_begin; l < range->layer_end; l++) {
            int32_t number = tiny->fault == TINY_LAYERS_FROM_0 ? l - range->layer_begin : l;
            set_params(range, layer_offset(range, l), LAYER_VALUES, 200 + (uint64_t)number);
        }
        params->params = tiny->fault == TINY_NO_PARAMS ? NULL : range->params;
        params->grads = range->grads;
    }
    list_tied(range, params);
    *model = range;
    return 0;
}

static void tiny_drop(void* ctx, void* model) {
    Range* range = model;
    (void)ctx;
    free(range->params);
    free(range->grads);
    free(range->queue);
    free(range);
}

static const char* tiny_why(void* ctx) {
    const Tiny* tiny = ctx;
    return tiny->fault == TINY_HEAD_NOT_ALONE ? "a head needs a layer" : "tiny words";
}

DynapipeBlocks_v1 tiny_blocks(Tiny* tiny) {
    tiny->api = (DynapipeModel_v1){.name = "tiny",
                                   .acts_bytes = tiny_acts_bytes,
                                   .scratch_bytes = tiny_scratch_bytes,
                                   .boundary_bytes = tiny_boundary_bytes,
                                   .forward = tiny_forward,
                                   .backward_inputs = tiny_backward_inputs,
                                   .backward_weights = tiny->no_weights_job ? NULL : tiny_backward_weights,
                                   .zero_gradients = tiny_zero_gradients};
    if (tiny->is_queued) {
        tiny->api.forward = queued_forward;
        tiny->api.backward_inputs = queued_backward_inputs;
        tiny->api.backward_weights = queued_backward_weights;
        tiny->api.finish = queued_finish;
    }
    return (DynapipeBlocks_v1){.api = &tiny->api,
                               .ctx = tiny,
                               .signature = "tiny",
                               .num_layers = L,
                               .vocab = V,
                               .max_seq_tokens = 32,
                               .shapes = {.max_tokens = tiny->max_tokens, .max_seqs = tiny->max_seqs},
                               .make = tiny_make,
                               .drop = tiny_drop,
                               .why = tiny_why};
}
