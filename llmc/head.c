// head.c -- jobs of a share of the head (model.h), which do not depend on the kind of model.
#include <assert.h>
#include <stddef.h>

#include "llmc_error.h"
#include "model.h"

static const int64_t X_BYTES = sizeof(floatX), FLOAT_BYTES = sizeof(float);
static char nowhere[1];  // base if only bytes are needed

// --- division of the head ---------------------------------------------------------------------------------

ModelHead head_of_places(const ModelConfig* config, ModelSharing sharing, int num_stages,
                         const int32_t* places) {
    ModelHead head = {.sharing = sharing, .num_stages = num_stages};
    assert(num_stages <= OPS_MAX_SHARES);
    for (int s = 0; s <= num_stages; s++) {
        const int64_t row = (int64_t)config->padded_vocab * places[s] / MODEL_HEAD_PLACES;
        head.begin[s] = sharing != MODEL_HEAD_BY_VOCAB   ? places[s]
                        : places[s] == MODEL_HEAD_PLACES ? config->padded_vocab
                                                         : (int32_t)(row / 16 * 16);
    }
    return head;
}

static bool is_by_vocab(const Model* view) {
    return view->part.head.sharing == MODEL_HEAD_BY_VOCAB;
}

// --- memory ------------------------------------------------------------------------------------------------

// A part by vocabulary: for each row the loss statistics of classifier_share(), and with KEEP the two terms
// of its gradient.
typedef struct {
    float* stats;            // (num_rows, 3)
    floatX *sums, *targets;  // (num_rows, C)
    int64_t num_bytes;
} Part;

static Part split_part(const ModelConfig* config, int num_rows, int flags, const void* memory) {
    const int64_t R = model_round_up(num_rows), row_bytes = config->channels * X_BYTES;
    char *const begin = (char*)(uintptr_t)memory, *cursor = begin;
    Part part = {.stats = (float*)(void*)model_take(&cursor, R * 3 * FLOAT_BYTES)};
    if (flags & MODEL_KEEP) {
        part.sums = (floatX*)(void*)model_take(&cursor, R * row_bytes);
        part.targets = (floatX*)(void*)model_take(&cursor, R * row_bytes);
    }
    part.num_bytes = cursor - begin;
    return part;
}

int64_t head_rows_bytes(const ModelConfig* config, int num_rows) {
    return (int64_t)num_rows * config->channels * X_BYTES;
}
int64_t head_part_bytes(const ModelConfig* config, int num_rows, int flags) {
    return split_part(config, num_rows, flags, nowhere).num_bytes;
}
int64_t head_factor_bytes(int num_rows) {
    return model_round_up(num_rows) * 2 * FLOAT_BYTES;
}

typedef struct {
    int num_rows;    // capacity
    floatX* rows;    // (num_rows, C) the hidden states, with KEEP
    float* stats;    // as in a part, with KEEP, by vocabulary
    floatX* logits;  // (num_rows, head_rows), with KEEP replaced by the values that gradients need
    int64_t num_bytes;
} Acts;

static Acts split_acts(const Model* share, int num_rows, int flags, void* memory) {
    int64_t R = model_round_up(num_rows);
    char *const begin = (char*)memory, *cursor = begin;
    Acts acts = {.rows = NULL};
    if (flags & MODEL_KEEP) {
        acts.rows = (floatX*)(void*)model_take(&cursor, R * share->config.channels * X_BYTES);
        if (is_by_vocab(share)) { acts.stats = (float*)(void*)model_take(&cursor, R * 3 * FLOAT_BYTES); }
    } else if (R > MODEL_HEAD_ROWS) {
        R = MODEL_HEAD_ROWS;
    }
    acts.num_rows = (int)R;
    acts.logits = (floatX*)(void*)model_take(&cursor, R * share->head_rows * X_BYTES);
    acts.num_bytes = cursor - begin;
    return acts;
}

int64_t head_acts_bytes(const Model* share, const ModelBatch* batch, int flags) {
    return split_acts(share, batch->num_rows, flags, nowhere).num_bytes;
}

// --- training ----------------------------------------------------------------------------------------------

const floatX* head_matrix(const Model* view) {
    return view->params + view->head_offset;
}

// Begins a job.
static const int32_t* stage_targets(const Model* share, const ModelBatch* batch) {
    ops_stage_begin(share->ops);
    batch_check_range("target", batch->targets, batch->num_rows, share->config.vocab);
    return batch_stage(share->ops, batch->targets, batch->num_rows);
}

static void logits_forward(const Model* view, floatX* logits, const floatX* rows, int num_rows) {
    if (view->head_rows == 0) { return; }
    matmul_forward(logits, rows, head_matrix(view), NULL, num_rows, view->config.channels, view->head_rows,
                   view->ops);
}

void head_rows_forward(const Model* view, float* numbers, floatX* logits, const floatX* rows,
                       const int32_t* targets, int num_rows, float dlogits_scale) {
    logits_forward(view, logits, rows, num_rows);
    if (is_by_vocab(view)) {
        classifier_share(numbers, logits, targets, dlogits_scale != 0.0f, num_rows, view->head_id,
                         view->head_ids, view->head_rows, view->ops);
    } else {
        fused_classifier(numbers, logits, targets, dlogits_scale, num_rows, view->head_ids, view->head_rows,
                         view->ops);
    }
}

void head_forward(const Model* share, const ModelBatch* batch, const void* in, void* out, void* memory,
                  float* losses, int flags) {
    const int R = batch->num_rows, C = share->config.channels, per_row = is_by_vocab(share) ? 3 : 1;
    if (R == 0 || flags == 0) { return; }
    const bool keep = flags & MODEL_KEEP;
    const Acts acts = split_acts(share, R, flags, memory);
    const int32_t* targets = stage_targets(share, batch);
    float* numbers = !is_by_vocab(share) ? ops_results(share->ops, losses, (size_t)R)
                     : keep              ? acts.stats
                                         : split_part(&share->config, R, flags, out).stats;
    const floatX* rows = (const floatX*)in;
    assert(!keep || batch->loss_scale != 0.0f);  // 0 would leave logits in place of the gradients
    if (keep) {
        ops_copy(share->ops, acts.rows, in, (size_t)head_rows_bytes(&share->config, R));
        rows = acts.rows;
    }
    for (int begin = 0; begin < R; begin += acts.num_rows) {
        const int num_rows = R - begin < acts.num_rows ? R - begin : acts.num_rows;
        head_rows_forward(share, numbers + (int64_t)begin * per_row, acts.logits, rows + (int64_t)begin * C,
                          targets + begin, num_rows, keep ? batch->loss_scale : 0.0f);
    }
    if (!is_by_vocab(share)) { ops_deliver(share->ops, losses, numbers, (size_t)R); }
}

void head_backward_inputs(const Model* share, const ModelBatch* batch, void* memory, void* din) {
    const int R = batch->num_rows, C = share->config.channels;
    OpsContext* ops = share->ops;
    if (R == 0) { return; }
    const Acts acts = split_acts(share, R, MODEL_KEEP, memory);
    floatX* sums = (floatX*)din;
    if (is_by_vocab(share)) {
        const int32_t* targets = stage_targets(share, batch);
        const Part part = split_part(&share->config, R, MODEL_KEEP, din);
        ops_copy(ops, part.stats, acts.stats, (size_t)R * 3 * sizeof(float));
        target_rows(part.targets, head_matrix(share), targets, R, share->head_id, share->head_ids, C, ops);
        sums = part.sums;
    }
    if (share->head_rows > 0) {
        matmul_backward_input(sums, acts.logits, head_matrix(share), R, C, share->head_rows, ops);
    } else {
        ops_zero(ops, sums, (size_t)head_rows_bytes(&share->config, R));
    }
}

void head_backward_weights(const Model* share, const ModelBatch* batch, void* memory, const void* dout) {
    const int R = batch->num_rows, C = share->config.channels;
    if (R == 0 || share->head_rows == 0) { return; }
    const Acts acts = split_acts(share, R, MODEL_KEEP, memory);
    if (is_by_vocab(share)) {
        const int32_t* targets = stage_targets(share, batch);
        classifier_factors(acts.logits, acts.rows, (const float*)dout, targets, R, C, share->head_id,
                           share->head_ids, share->head_rows, share->ops);
    }
    matmul_backward_weight(share->grads + share->head_offset, NULL, acts.logits, acts.rows, R, C,
                           share->head_rows, share->ops);
}

void head_combine(Model* view, const ModelBatch* batch, int num_parts, const void* const* parts, void* dout,
                  void* const* factors, float* losses) {
    const int R = batch->num_rows;
    const float *stats[OPS_MAX_SHARES], *to_read[OPS_MAX_SHARES];
    const floatX *sums[OPS_MAX_SHARES], *targets[OPS_MAX_SHARES];
    float* to_write[OPS_MAX_SHARES];
    assert(model_feeds_head(view) && is_by_vocab(view) && num_parts <= OPS_MAX_SHARES);
    if (R == 0) { return; }
    for (int i = 0; i < num_parts; i++) {
        const Part part = split_part(&view->config, R, dout != NULL ? MODEL_KEEP : 0, parts[i]);
        stats[i] = part.stats;
        sums[i] = part.sums;
        targets[i] = part.targets;
        to_read[i] = to_write[i] = dout != NULL ? (float*)factors[i] : NULL;
    }
    ops_stage_begin(view->ops);
    float* results = ops_results(view->ops, losses, (size_t)R);
    classifier_combine(results, to_write, stats, dout != NULL ? batch->loss_scale : 0.0f, R, num_parts,
                       view->ops);
    if (dout != NULL) {
        combine_parts((floatX*)dout, sums, targets, to_read, R, view->config.channels, num_parts, view->ops);
    }
    ops_deliver(view->ops, losses, results, (size_t)R);
}

// --- generation --------------------------------------------------------------------------------------------

// The result of a share.
typedef struct {
    float logit;
    int32_t id;
} Pick;

int64_t head_pick_bytes(const ModelBatch* batch) {
    return batch->num_seqs * (int64_t)sizeof(Pick);
}

int64_t head_infer_bytes(const Model* share, const ModelBatch* batch) {
    return model_round_up(batch->num_seqs) * share->head_rows * X_BYTES;
}

void head_likeliest(const Model* view, int32_t* next, floatX* logits, const floatX* rows, int num_rows) {
    logits_forward(view, logits, rows, num_rows);
    argmax_rows(next, logits, num_rows, view->head_ids, view->head_rows, view->ops);
}

void head_infer(const Model* share, const ModelBatch* batch, const void* in, void* out, void* scratch) {
    const int B = batch->num_seqs;
    if (B == 0) { return; }
    Pick* picks = (Pick*)llmc_alloc((size_t)B * (sizeof *picks + sizeof(float) + sizeof(int32_t)), "picks");
    float* logits = (float*)(picks + B);
    int32_t* ids = (int32_t*)(logits + B);
    logits_forward(share, (floatX*)scratch, (const floatX*)in, B);
    argmax_share(logits, ids, (const floatX*)scratch, B, share->head_id, share->head_ids, share->head_rows,
                 share->ops);
    for (int i = 0; i < B; i++) { picks[i] = (Pick){logits[i], ids[i]}; }
    ops_upload(share->ops, out, picks, (size_t)B * sizeof *picks);
    free(picks);
}

void head_pick(const Model* view, const ModelBatch* batch, int num_picks, const void* const* picks,
               int32_t* next) {
    const size_t B = (size_t)batch->num_seqs;
    if (B == 0) { return; }
    Pick* best = (Pick*)llmc_alloc(2 * B * sizeof *best, "picks");
    Pick* other = best + B;
    ops_download(view->ops, best, picks[0], B * sizeof *best);
    for (int s = 1; s < num_picks; s++) {
        ops_download(view->ops, other, picks[s], B * sizeof *other);
        for (size_t i = 0; i < B; i++) {
            if (other[i].logit > best[i].logit) { best[i] = other[i]; }
        }
    }
    for (size_t i = 0; i < B; i++) { next[i] = best[i].id; }
    free(best);
}
