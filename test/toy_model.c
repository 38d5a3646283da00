#include "toy_model.h"

#include <string.h>

#include "../util/program.h"
#include "random_plan.h"

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
                                 .num_squares = (int64_t)num_tokens * num_tokens,
                                 .cu_seqlens = out->cu_seqlens,
                                 .tokens = out->tokens,
                                 .positions = out->positions,
                                 .rows = out->rows,
                                 .targets = out->targets,
                                 .row_tasks = out->row_tasks,
                                 .loss_scale = 1};
}

// Channels of what goes into layer l.
static int32_t width(int32_t l) {
    static const int32_t widths[] = {5, 5, 8, 8, 3, 3, 3};
    return l < 7 ? widths[l] : 6;
}

static int32_t widths_before(int32_t begin, int32_t l) {
    int32_t sum = 0;
    for (int32_t k = begin; k < l; k++) { sum += width(k); }
    return sum;
}

// Kept of layer l: what goes in, and the gradient of what comes out, (tokens, width) each.
static float* kept_x(const ToyModel* toy, const DynapipeBatch* batch, void* acts, int32_t l) {
    return (float*)acts + batch->num_tokens * widths_before(toy->layer_begin, l);
}

static float* kept_dy(const ToyModel* toy, const DynapipeBatch* batch, void* acts, int32_t l) {
    float* behind_x = kept_x(toy, batch, acts, toy->layer_end);
    return behind_x + batch->num_tokens * widths_before(toy->layer_begin + 1, l + 1);
}

static int64_t floats(int64_t num_values) {
    return num_values * (int64_t)sizeof(float);
}

static bool is_share(const ToyModel* toy) {
    return toy->head == DYNAPIPE_HEAD_BY_ROWS || toy->head == DYNAPIPE_HEAD_BY_VOCABULARY;
}

static int64_t toy_boundary_bytes(void* model, const DynapipeBatch* batch, int is_behind) {
    const ToyModel* toy = model;
    if (is_share(toy) || (is_behind && toy->head == DYNAPIPE_HEAD_FEEDS)) {
        return floats(batch->num_rows * width(toy->layer_end));
    }
    return floats(batch->num_tokens * width(is_behind ? toy->layer_end : toy->layer_begin));
}

// Else: the activation in work.
static int64_t toy_acts_bytes(void* model, const DynapipeBatch* batch, int flags) {
    const ToyModel* toy = model;
    int32_t kept = widths_before(toy->layer_begin, toy->layer_end) +
                   widths_before(toy->layer_begin + 1, toy->layer_end + 1);
    if (is_share(toy)) { return floats(batch->num_rows * width(toy->layer_end)); }
    return floats(batch->num_tokens * (flags & DYNAPIPE_FORWARD_KEEP ? kept : C));
}

static int64_t toy_scratch_bytes(void* model, const DynapipeBatch* batch) {
    (void)model;
    return floats(batch->num_tokens * C) + 4;
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

static float head_weight(int32_t v) {
    return v % 5 < 2 ? -1.0f : 1.0f;
}

// Sum over ids [begin, end) of h[v] * x[v % W], and its gradient.
static float head_sum(const float* x, float* gradient, int32_t channels, int32_t begin, int32_t end) {
    float sum = 0;
    for (int32_t c = 0; c < channels; c++) { gradient[c] = 0; }
    for (int32_t v = begin; v < end; v++) {
        sum += head_weight(v) * x[v % channels];
        gradient[v % channels] += head_weight(v);
    }
    return sum;
}

static void add_head_gradient(ToyModel* toy, const float* x, float factor, int32_t channels) {
    for (int32_t v = toy->vocab_begin; v < toy->vocab_end; v++) { toy->dh[v] += factor * x[v % channels]; }
}

// dy: (num_tokens, channels) the gradient of x, NULL: not kept. The weights' gradient at once.
static void head(ToyModel* toy, const DynapipeBatch* batch, const float* x, float* dy, int32_t channels,
                 float* losses) {
    if (dy != NULL) { memset(dy, 0, (size_t)(batch->num_tokens * channels) * sizeof *dy); }
    for (int32_t r = 0; r < batch->num_rows; r++) {
        const float* row = x + batch->rows[r] * C;
        float gradient[C], target = (float)batch->targets[r];
        losses[r] = target * head_sum(row, gradient, channels, toy->vocab_begin, toy->vocab_end);
        if (dy == NULL) { continue; }
        for (int32_t c = 0; c < channels; c++) {
            dy[batch->rows[r] * channels + c] = target * batch->loss_scale * gradient[c];
        }
        add_head_gradient(toy, row, target * batch->loss_scale, channels);
    }
}

// Rows of C values in scratch, of which `channels` count, to or from rows that are just as long.
static void pack(float* to, const float* work, int32_t num_tokens, int32_t channels) {
    for (int32_t i = 0; i < num_tokens * channels; i++) { to[i] = work[i / channels * C + i % channels]; }
}

static void unpack(float* work, const float* from, int32_t num_tokens, int32_t channels) {
    for (int32_t i = 0; i < num_tokens * channels; i++) { work[i / channels * C + i % channels] = from[i]; }
}

static void layer_forward(float* x, int32_t l) {  // one token
    float y[C];
    for (int32_t c = 0; c < width(l + 1); c++) { y[c] = weight(l, c) * x[c % width(l)] + bias(l, c); }
    memcpy(x, y, (size_t)width(l + 1) * sizeof *x);
}

static void layer_backward(float* grad, int32_t l) {
    float dx[C] = {0};
    for (int32_t c = 0; c < width(l + 1); c++) { dx[c % width(l)] += weight(l, c) * grad[c]; }
    memcpy(grad, dx, (size_t)width(l) * sizeof *grad);
}

static void embed(float* x, const DynapipeBatch* batch) {
    for (int32_t t = 0; t < batch->num_tokens; t++) {
        for (int32_t c = 0; c < width(0); c++) {
            x[t * C + c] = (float)(batch->tokens[t] + c + batch->positions[t] % 3);
        }
    }
}

// --- a share of the head ---------------------------------------------------------------------------------
// A part by vocabulary: sums (num_rows), then, with KEEP, their gradients (num_rows, W). acts: the hidden
// states, whose gradients are made of nothing else.
static int64_t toy_part_bytes(void* model, const DynapipeBatch* batch, int flags) {
    const ToyModel* toy = model;
    return floats(batch->num_rows * (1 + (flags & DYNAPIPE_FORWARD_KEEP ? width(toy->layer_end) : 0)));
}

static int64_t toy_factor_bytes(void* model, const DynapipeBatch* batch) {
    (void)model;
    return floats(batch->num_rows);
}

static int share_forward(ToyModel* toy, const DynapipeBatch* batch, const float* in, float* out, float* acts,
                         float* losses, int flags) {
    int32_t channels = width(toy->layer_end);
    bool by_rows = toy->head == DYNAPIPE_HEAD_BY_ROWS, keep = flags & DYNAPIPE_FORWARD_KEEP;
    toy->num_violations += in == NULL || acts == NULL || (losses != NULL) != by_rows ||
                           (out != NULL) != (!by_rows && !keep) || batch->num_rows == 0;
    for (int32_t r = 0; r < batch->num_rows; r++) {
        float gradient[C];
        float sum = head_sum(in + r * channels, gradient, channels, toy->vocab_begin, toy->vocab_end);
        if (by_rows) { losses[r] = sum * (float)batch->targets[r]; }
        if (out != NULL) { out[r] = sum; }
    }
    memset(acts, 0xee, (size_t)toy_acts_bytes(toy, batch, flags));
    if (keep) { memcpy(acts, in, (size_t)toy_boundary_bytes(toy, batch, 0)); }
    return 0;
}

static void share_backward_inputs(ToyModel* toy, const DynapipeBatch* batch, const float* x, float* din) {
    int32_t channels = width(toy->layer_end);
    bool by_rows = toy->head == DYNAPIPE_HEAD_BY_ROWS;
    for (int32_t r = 0; r < batch->num_rows; r++) {
        float gradient[C], factor = by_rows ? (float)batch->targets[r] * batch->loss_scale : 1;
        float sum = head_sum(x + r * channels, gradient, channels, toy->vocab_begin, toy->vocab_end);
        float* row = din + (by_rows ? 0 : batch->num_rows) + r * channels;
        if (!by_rows) { din[r] = sum; }
        for (int32_t c = 0; c < channels; c++) { row[c] = factor * gradient[c]; }
    }
}

static void share_backward_weights(ToyModel* toy, const DynapipeBatch* batch, float* x,
                                   const float* factors) {
    int32_t channels = width(toy->layer_end);
    toy->num_violations += (factors == NULL) != (toy->head == DYNAPIPE_HEAD_BY_ROWS);
    for (int32_t r = 0; r < batch->num_rows; r++) {
        float factor = factors != NULL ? factors[r] : (float)batch->targets[r] * batch->loss_scale;
        add_head_gradient(toy, x + r * channels, factor, channels);
    }
    memset(x, 0xee, (size_t)toy_acts_bytes(toy, batch, DYNAPIPE_FORWARD_KEEP));  // once only
}

static int toy_combine(void* model, const DynapipeBatch* batch, int32_t num_parts, const void* const* parts,
                       void* dout, void* const* factors, float* losses) {
    ToyModel* toy = model;
    int32_t channels = width(toy->layer_end);
    toy->num_violations += toy->head != DYNAPIPE_HEAD_FEEDS || (dout == NULL) != (factors == NULL);
    for (int32_t r = 0; r < batch->num_rows; r++) {
        float sum = 0, target = (float)batch->targets[r], gradient[C] = {0};
        for (int32_t p = 0; p < num_parts; p++) {
            const float* part = parts[p];
            sum += part[r];
            for (int32_t c = 0; c < channels && dout != NULL; c++) {
                gradient[c] += part[batch->num_rows + r * channels + c];
            }
            if (factors != NULL) { ((float*)factors[p])[r] = target * batch->loss_scale; }
        }
        losses[r] = sum * target;
        for (int32_t c = 0; c < channels && dout != NULL; c++) {
            ((float*)dout)[r * channels + c] = target * batch->loss_scale * gradient[c];
        }
    }
    return 0;
}

// --- a range of layers -----------------------------------------------------------------------------------
static int toy_forward(void* model, const DynapipeBatch* batch, const void* in, void* out, void* acts,
                       void* scratch, float* losses, int flags) {
    ToyModel* toy = model;
    int32_t T = batch->num_tokens, end = toy->layer_end;
    bool keep = flags & DYNAPIPE_FORWARD_KEEP, with_head = toy->is_last && flags & DYNAPIPE_FORWARD_HEAD;
    int rc = begin_job(toy, batch);
    if (rc != 0) { return rc; }
    if (is_share(toy)) { return share_forward(toy, batch, in, out, acts, losses, flags); }
    toy->num_violations +=
        (in == NULL) != toy->is_first || acts == NULL || scratch == NULL || (with_head && losses == NULL);
    float* x = scratch;
    if (toy->is_first) {
        embed(x, batch);
    } else {
        unpack(x, in, T, width(toy->layer_begin));
    }
    if (!keep) { memset(acts, 0xee, (size_t)toy_acts_bytes(model, batch, flags)); }  // it may be used
    for (int32_t l = toy->layer_begin; l < end; l++) {
        bool is_in = l == toy->layer_begin && !toy->is_first;  // kept by the executor
        if (keep && !is_in) { pack(kept_x(toy, batch, acts, l), x, T, width(l)); }
        for (int32_t t = 0; t < T; t++) { layer_forward(x + t * C, l); }
    }
    if (out != NULL && toy->head == DYNAPIPE_HEAD_FEEDS) {
        for (int32_t r = 0; r < batch->num_rows; r++) {
            pack((float*)out + r * width(end), x + batch->rows[r] * C, 1, width(end));
        }
    } else if (out != NULL) {
        pack(out, x, T, width(end));
    }
    if (with_head) {
        head(toy, batch, x, keep ? kept_dy(toy, batch, acts, end - 1) : NULL, width(end), losses);
    }
    scribble(scratch, batch);
    return 0;
}

// The gradient of all tokens from that of the supervised ones.
static const float* spread_rows(const DynapipeBatch* batch, float* out, const float* rows, int32_t channels) {
    memset(out, 0, (size_t)(batch->num_tokens * channels) * sizeof *out);
    for (int32_t r = 0; r < batch->num_rows; r++) {
        memcpy(out + batch->rows[r] * channels, rows + r * channels, (size_t)channels * sizeof *out);
    }
    return out;
}

static int toy_backward_inputs(void* model, const DynapipeBatch* batch, const void* in, void* acts,
                               const void* dout, void* din, void* scratch) {
    ToyModel* toy = model;
    int32_t T = batch->num_tokens, begin = toy->layer_begin, last = toy->layer_end - 1;
    int rc = begin_job(toy, batch);
    if (rc != 0) { return rc; }
    if (is_share(toy)) {
        share_backward_inputs(toy, batch, acts, din);
        return 0;
    }
    toy->num_violations += (in == NULL) != toy->is_first || (dout == NULL) != toy->is_last ||
                           (din == NULL) != toy->is_first || acts == NULL || scratch == NULL;
    float* grad = scratch;
    if (!toy->is_first) { memcpy(acts, in, (size_t)toy_boundary_bytes(model, batch, 0)); }
    bool feeds = toy->head == DYNAPIPE_HEAD_FEEDS;
    if (feeds) { dout = spread_rows(batch, kept_dy(toy, batch, acts, last), dout, width(last + 1)); }
    unpack(grad, toy->is_last ? kept_dy(toy, batch, acts, last) : dout, T, width(last + 1));
    for (int32_t l = last; l >= begin; l--) {
        if (l < last) { pack(kept_dy(toy, batch, acts, l), grad, T, width(l + 1)); }
        for (int32_t t = 0; t < T; t++) { layer_backward(grad + t * C, l); }
    }
    if (din != NULL) { pack(din, grad, T, width(begin)); }
    scribble(scratch, batch);
    return 0;
}

static int toy_backward_weights(void* model, const DynapipeBatch* batch, void* acts, const void* dout,
                                void* scratch) {
    ToyModel* toy = model;
    int rc = begin_job(toy, batch);
    if (rc != 0) { return rc; }
    if (is_share(toy)) {
        share_backward_weights(toy, batch, acts, dout);
        return 0;
    }
    toy->num_violations += (dout == NULL) != toy->is_last || acts == NULL || scratch == NULL;
    for (int32_t l = toy->layer_begin; l < toy->layer_end; l++) {
        bool is_out = l == toy->layer_end - 1 && !toy->is_last && toy->head != DYNAPIPE_HEAD_FEEDS;
        const float *x = kept_x(toy, batch, acts, l), *dy = is_out ? dout : kept_dy(toy, batch, acts, l);
        for (int32_t i = 0; i < batch->num_tokens * width(l + 1); i++) {
            int32_t t = i / width(l + 1), c = i % width(l + 1);
            toy->da[l][c] += x[t * width(l) + c % width(l)] * dy[i];
            toy->db[l][c] += dy[i];
        }
    }
    memset(acts, 0xee, (size_t)toy_acts_bytes(model, batch, DYNAPIPE_FORWARD_KEEP));  // once only
    scribble(scratch, batch);
    return 0;
}

static void toy_zero_gradients(void* model) {
    ToyModel* toy = model;
    memset(toy->da, 0, sizeof toy->da);
    memset(toy->db, 0, sizeof toy->db);
    memset(toy->dh, 0, sizeof toy->dh);
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
    .part_bytes = toy_part_bytes,
    .factor_bytes = toy_factor_bytes,
    .combine = toy_combine,
};

// === plans ===============================================================================================

static int32_t num_chunks(const ToyPlan* toy) {
    return toy->plan.placement.num_chunks;
}

static int32_t num_rows(const ToyPlan* toy) {
    return num_chunks(toy) + (toy->plan.placement.head == HEAD_WHOLE ? 0 : toy->plan.P);
}

static bool row_is_share(const ToyPlan* toy, int32_t row) {
    return row >= num_chunks(toy);
}

static bool by_vocabulary(const ToyPlan* toy) {
    return toy->plan.placement.head == HEAD_BY_VOCABULARY;
}

// --- batches -----------------------------------------------------------------------------------------------

// With the counts of a microbatch; its tokens, as many of them supervised, are made up.
static void make_batch(ToyBatch* out, uint64_t seed, const MbShape* shape) {
    int32_t num_supervised = (int32_t)shape->supervised_tokens;
    Rng rng = rng_seed(seed);
    toy_batch_init(out, seed, (int32_t)shape->enc_tokens);
    out->batch.num_seqs = (int32_t)shape->num_seqs;
    out->batch.num_squares = shape->enc_squares;
    out->batch.num_rows = num_supervised;
    for (int32_t i = 0; i < num_supervised; i++) {
        out->rows[i] = (int32_t)((int64_t)i * shape->enc_tokens / num_supervised);
        out->targets[i] = rng_between(&rng, -2, 2);
    }
}

// Exactly what the model asks for.
static void model_bytes(RankBytes* out, int64_t* scratch_bytes, const Plan* plan, int32_t m, int32_t row,
                        void* context) {
    const ToyPlan toy = {.plan = *plan, .num_layers = ((const ToyPlan*)context)->num_layers};
    ToyModel model = toy_plan_model(&toy, row);
    ToyBatch made;
    DynapipeBatch* b = &made.batch;
    make_batch(&made, 1, &plan->mbs[m].shape);
    bool feeds = row == num_chunks(&toy) - 1 && plan->placement.head != HEAD_WHOLE;
    if (row_is_share(&toy, row) && !by_vocabulary(&toy)) {
        const int16_t* begin = &plan->placement.head_begin[row - num_chunks(&toy)];
        b->num_rows = b->num_rows * begin[1] / HEAD_UNITS - b->num_rows * begin[0] / HEAD_UNITS;
    }
    *out = (RankBytes){.acts_bytes = toy_api.acts_bytes(&model, b, DYNAPIPE_FORWARD_KEEP),
                       .forward_bytes = toy_api.acts_bytes(&model, b, 0),
                       .in_bytes = row > 0 ? toy_api.boundary_bytes(&model, b, 0) : 0};
    if (!row_is_share(&toy, row) && (feeds || !model.is_last)) {
        out->out_bytes = toy_api.boundary_bytes(&model, b, 1);
    }
    if (row_is_share(&toy, row)) {
        out->part_bytes =
            by_vocabulary(&toy) ? toy_api.part_bytes(&model, b, DYNAPIPE_FORWARD_KEEP) : out->in_bytes;
        out->factor_bytes = by_vocabulary(&toy) ? toy_api.factor_bytes(&model, b) : 0;
    }
    *scratch_bytes = toy_api.scratch_bytes(&model, b);
}

// --- plans -------------------------------------------------------------------------------------------------

static bool every_chunk_has_layers(const Placement* placement) {
    bool all = true;
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        all &= placement->chunks[k].begin < placement->chunks[k].end;
    }
    return all;
}

static void make(ToyPlan* out, Rng* rng, int32_t P, int32_t R, int32_t num_samples, bool placed,
                 Arena* arena) {
    RandomPlan about = {.P = P,
                        .R = R,
                        .num_samples = num_samples,
                        .max_tokens = TOY_MAX_ROWS / 4,  // a microbatch has 4 samples at most
                        .recompute = true,
                        .bytes = model_bytes,
                        .context = out,
                        .placed = placed,
                        .tight = true};
    do {
        out->num_layers = about.num_layers = rng_between(rng, P, TOY_MAX_LAYERS);
        random_plan(&out->plan, rng, &about, arena);
    } while (!every_chunk_has_layers(&out->plan.placement));
    out->batches = ARENA_NEW(arena, ToyBatch, out->plan.M);
    for (int32_t m = 0; m < out->plan.M; m++) {
        make_batch(&out->batches[m], rng_u64(rng), &out->plan.mbs[m].shape);
    }
}

void toy_plan_make(ToyPlan* out, Rng* rng, int32_t P, int32_t R, int32_t num_samples, Arena* arena) {
    make(out, rng, P, R, num_samples, true, arena);
}

void toy_plan_make_linear(ToyPlan* out, Rng* rng, int32_t P, int32_t R, int32_t M, Arena* arena) {
    do { make(out, rng, P, R, 2 * M, false, arena); } while (out->plan.M != M);
}

static int32_t stage_of(const ToyPlan* toy, int32_t row) {
    return row_is_share(toy, row) ? row - num_chunks(toy) : toy->plan.placement.stage_of[row];
}

static bool has_row(const ToyPlan* toy, int32_t row) {
    return !row_is_share(toy, row) || placement_has_share(&toy->plan.placement, stage_of(toy, row));
}

static ToyModel share_model(const ToyPlan* toy, int32_t s) {
    const Placement* placement = &toy->plan.placement;
    ToyModel model = {.layer_begin = toy->num_layers, .layer_end = toy->num_layers, .vocab_end = TOY_VOCAB};
    model.head = by_vocabulary(toy) ? DYNAPIPE_HEAD_BY_VOCABULARY : DYNAPIPE_HEAD_BY_ROWS;
    if (!by_vocabulary(toy)) { return model; }
    model.vocab_begin = TOY_VOCAB * placement->head_begin[s] / HEAD_UNITS / 16 * 16;
    model.vocab_end = TOY_VOCAB * placement->head_begin[s + 1] / HEAD_UNITS / 16 * 16;
    return model;
}

ToyModel toy_plan_model(const ToyPlan* toy, int32_t row) {
    if (row_is_share(toy, row)) { return share_model(toy, stage_of(toy, row)); }
    bool is_last = row == num_chunks(toy) - 1, is_shared = toy->plan.placement.head != HEAD_WHOLE;
    return (ToyModel){.layer_begin = toy->plan.placement.chunks[row].begin,
                      .layer_end = toy->plan.placement.chunks[row].end,
                      .is_first = row == 0,
                      .is_last = is_last && !is_shared,
                      .head = is_last && is_shared ? DYNAPIPE_HEAD_FEEDS : DYNAPIPE_HEAD_AS_BLOCKS,
                      .vocab_end = TOY_VOCAB};
}

int32_t toy_plan_rows(const ToyPlan* toy, int32_t rank, int32_t rows[TOY_MAX_ROWS_HERE]) {
    int32_t n = 0;
    for (int32_t row = 0; row < num_rows(toy); row++) {
        if (has_row(toy, row) && stage_of(toy, row) == rank % toy->plan.P) { rows[n++] = row; }
    }
    return n;
}

void toy_plan_remove(ToyPlan* toy, int32_t rank, int32_t idx) {
    PlanRank* list = &toy->plan.ranks[rank];
    list->num_instrs--;
    memmove(&list->instrs[idx], &list->instrs[idx + 1],
            (size_t)(list->num_instrs - idx) * sizeof *list->instrs);
}

int32_t toy_plan_find(const ToyPlan* toy, int32_t rank, InstrKind kind, int32_t mb) {
    const PlanRank* list = &toy->plan.ranks[rank];
    for (int32_t i = 0; i < list->num_instrs; i++) {
        if (list->instrs[i].kind == kind && (mb < 0 || list->instrs[i].mb == mb)) { return i; }
    }
    return -1;
}

void toy_plan_run_directly(const ToyPlan* toy, ToyModel* model, float losses[][TOY_MAX_ROWS]) {
    static _Alignas(64) unsigned char acts[1 << 20], scratch[1 << 16];
    *model =
        (ToyModel){.layer_end = toy->num_layers, .is_first = true, .is_last = true, .vocab_end = TOY_VOCAB};
    for (int32_t m = 0; m < toy->plan.M; m++) {
        const DynapipeBatch* batch = &toy->batches[m].batch;
        toy_api.forward(model, batch, NULL, NULL, acts, scratch, losses[m],
                        DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD);
        toy_api.backward_inputs(model, batch, NULL, acts, NULL, NULL, scratch);
        toy_api.backward_weights(model, batch, acts, NULL, scratch);
    }
}
