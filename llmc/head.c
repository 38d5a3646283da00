#include "head.h"

#include <assert.h>
#include <stddef.h>

#include "model.h"
#include "llmc_error.h"

enum { HEAD_CHUNK_ROWS = 64 };  // rows of logits at a time, without KEEP

static const int64_t X_BYTES = sizeof(floatX), FLOAT_BYTES = sizeof(float);

// 16 values are 64 bytes in float32, and 16 rows of an even number of bf16 values.
static int64_t round_up_16(int64_t count) {
    return (count + 15) / 16 * 16;
}

static char* take(char** cursor, int64_t num_bytes) {
    char* begin = *cursor;
    *cursor += num_bytes;
    return begin;
}

// --- division of the head ---------------------------------------------------------------------------------

static int32_t matrix_row(const ModelConfig* config, int32_t place) {
    const int64_t row = (int64_t)config->padded_vocab * place / MODEL_HEAD_PLACES;
    return place == MODEL_HEAD_PLACES ? config->padded_vocab : (int32_t)(row / 16 * 16);
}

ModelHead head_of_places(const ModelConfig* config, ModelSharing sharing, int num_stages,
                         const int32_t* places) {
    ModelHead head = {.sharing = sharing, .num_stages = num_stages};
    assert(num_stages <= OPS_MAX_SHARES);
    for (int s = 0; s <= num_stages; s++) {
        head.begin[s] = sharing == MODEL_HEAD_BY_VOCAB ? matrix_row(config, places[s]) : places[s];
    }
    return head;
}

// --- messages ----------------------------------------------------------------------------------------------

// A part by vocabulary: for each row the loss statistics of classifier_share(), and with KEEP the two terms
// of its gradient.
typedef struct {
    float* stats;            // (num_rows, 3)
    floatX *sums, *targets;  // (num_rows, C)
} Part;

// Returns its bytes.
static int64_t split_part(Part* out, const ModelConfig* config, int num_rows, int flags, const void* memory) {
    const int64_t R = round_up_16(num_rows), RC = R * config->channels;
    char* cursor = (char*)(uintptr_t)memory;
    const char* begin = cursor;
    *out = (Part){.stats = (float*)(void*)take(&cursor, R * 3 * FLOAT_BYTES)};
    if (flags & MODEL_KEEP) {
        out->sums = (floatX*)(void*)take(&cursor, RC * X_BYTES);
        out->targets = (floatX*)(void*)take(&cursor, RC * X_BYTES);
    }
    return cursor - begin;
}

int64_t head_rows_bytes(const ModelConfig* config, int num_rows) {
    return (int64_t)num_rows * config->channels * X_BYTES;
}

int64_t head_part_bytes(const ModelConfig* config, int num_rows, int flags) {
    static char nowhere[1];
    Part part;
    return split_part(&part, config, num_rows, flags, nowhere);
}

int64_t head_factor_bytes(int num_rows) {
    return round_up_16(num_rows) * 2 * FLOAT_BYTES;
}

// --- a share's jobs ----------------------------------------------------------------------------------------

typedef struct {
    int num_rows;    // capacity
    floatX* rows;    // (num_rows, C) the hidden states, with KEEP
    float* stats;    // as in a part, with KEEP, by vocabulary
    floatX* logits;  // (num_rows, head_rows), with KEEP replaced by the values that gradients need
} Acts;

static bool is_by_vocab(const Model* share) {
    return share->part.head.sharing == MODEL_HEAD_BY_VOCAB;
}

static int64_t split_acts(Acts* out, const Model* share, int num_rows, int flags, const void* memory) {
    int64_t R = round_up_16(num_rows);
    char* cursor = (char*)(uintptr_t)memory;
    const char* begin = cursor;
    *out = (Acts){0};
    if (flags & MODEL_KEEP) {
        out->rows = (floatX*)(void*)take(&cursor, R * share->config.channels * X_BYTES);
        if (is_by_vocab(share)) { out->stats = (float*)(void*)take(&cursor, R * 3 * FLOAT_BYTES); }
    } else if (R > HEAD_CHUNK_ROWS) {
        R = HEAD_CHUNK_ROWS;
    }
    out->num_rows = (int)R;
    out->logits = (floatX*)(void*)take(&cursor, R * share->head_rows * X_BYTES);
    return cursor - begin;
}

int64_t head_acts_bytes(const Model* share, const ModelBatch* batch, int flags) {
    static char nowhere[1];
    Acts acts;
    return split_acts(&acts, share, batch->num_rows, flags, nowhere);
}

static const floatX* matrix(const Model* share) {
    return share->params + share->head_offset;
}

// Begins a job.
static const int32_t* stage_targets(const Model* share, const ModelBatch* batch) {
    ops_stage_begin(share->ops);
    batch_check_range("target", batch->targets, batch->num_rows, share->config.vocab);
    return batch_stage(share->ops, batch->targets, batch->num_rows);
}

static void logits_forward(const Model* share, floatX* logits, const floatX* rows, int num_rows) {
    if (share->head_rows == 0) { return; }
    matmul_forward(logits, rows, matrix(share), NULL, num_rows, share->config.channels, share->head_rows,
                   share->ops);
}

// numbers: losses, or by vocabulary stats.
static void rows_forward(const Model* share, float* numbers, floatX* logits, const floatX* rows,
                         const int32_t* targets, int num_rows, float dlogits_scale) {
    logits_forward(share, logits, rows, num_rows);
    if (is_by_vocab(share)) {
        classifier_share(numbers, logits, targets, dlogits_scale != 0.0f, num_rows, share->head_id,
                         share->head_ids, share->head_rows, share->ops);
    } else {
        fused_classifier(numbers, logits, targets, dlogits_scale, num_rows, share->head_ids, share->head_rows,
                         share->ops);
    }
}

static void forward_kept(const Model* share, const ModelBatch* batch, const void* in, void* acts,
                         const int32_t* targets, float* results) {
    const int R = batch->num_rows;
    Acts kept;
    assert(batch->loss_scale != 0.0f);  // 0 would leave logits in place of the gradients
    split_acts(&kept, share, R, MODEL_KEEP | MODEL_HEAD, acts);
    ops_copy(share->ops, kept.rows, in, (size_t)head_rows_bytes(&share->config, R));
    rows_forward(share, is_by_vocab(share) ? kept.stats : results, kept.logits, kept.rows, targets, R,
                 batch->loss_scale);
}

static void forward_losses(const Model* share, const ModelBatch* batch, const void* in, void* out, void* acts,
                           const int32_t* targets, float* results) {
    const int R = batch->num_rows, per_row = is_by_vocab(share) ? 3 : 1;
    Acts chunk;
    Part part;
    split_acts(&chunk, share, R, MODEL_HEAD, acts);
    split_part(&part, &share->config, R, MODEL_HEAD, out);
    float* numbers = is_by_vocab(share) ? part.stats : results;
    for (int begin = 0; begin < R; begin += chunk.num_rows) {
        const int num_rows = R - begin < chunk.num_rows ? R - begin : chunk.num_rows;
        rows_forward(share, numbers + (int64_t)begin * per_row, chunk.logits,
                     (const floatX*)in + (int64_t)begin * share->config.channels, targets + begin, num_rows,
                     0.0f);
    }
}

void head_forward(const Model* share, const ModelBatch* batch, const void* in, void* out, void* acts,
                  float* losses, int flags) {
    const int R = batch->num_rows;
    if (R == 0 || flags == 0) { return; }
    const int32_t* targets = stage_targets(share, batch);
    float* results = is_by_vocab(share) ? NULL : ops_results(share->ops, losses, (size_t)R);
    if (flags & MODEL_KEEP) {
        forward_kept(share, batch, in, acts, targets, results);
    } else {
        forward_losses(share, batch, in, out, acts, targets, results);
    }
    if (results != NULL) { ops_deliver(share->ops, losses, results, (size_t)R); }
}

void head_backward_inputs(const Model* share, const ModelBatch* batch, void* acts, void* din) {
    const int R = batch->num_rows, C = share->config.channels;
    OpsContext* ops = share->ops;
    if (R == 0) { return; }
    Acts kept;
    split_acts(&kept, share, R, MODEL_KEEP | MODEL_HEAD, acts);
    Part part = {.sums = (floatX*)din};
    if (is_by_vocab(share)) {
        const int32_t* targets = stage_targets(share, batch);
        split_part(&part, &share->config, R, MODEL_KEEP | MODEL_HEAD, din);
        ops_copy(ops, part.stats, kept.stats, (size_t)R * 3 * sizeof(float));
        target_rows(part.targets, matrix(share), targets, R, share->head_id, share->head_ids, C, ops);
    }
    if (share->head_rows > 0) {
        matmul_backward_input(part.sums, kept.logits, matrix(share), R, C, share->head_rows, ops);
    } else {
        ops_zero(ops, part.sums, (size_t)head_rows_bytes(&share->config, R));
    }
}

void head_backward_weights(const Model* share, const ModelBatch* batch, void* acts, const void* dout) {
    const int R = batch->num_rows, C = share->config.channels;
    if (R == 0 || share->head_rows == 0) { return; }
    Acts kept;
    split_acts(&kept, share, R, MODEL_KEEP | MODEL_HEAD, acts);
    if (is_by_vocab(share)) {
        const int32_t* targets = stage_targets(share, batch);
        classifier_factors(kept.logits, kept.rows, (const float*)dout, targets, R, C, share->head_id,
                           share->head_ids, share->head_rows, share->ops);
    }
    matmul_backward_weight(share->grads + share->head_offset, NULL, kept.logits, kept.rows, R, C,
                           share->head_rows, share->ops);
}

// --- the rank with the hidden states ----------------------------------------------------------------------

void head_combine(Model* view, const ModelBatch* batch, int num_parts, const void* const* parts, void* dout,
                  void* const* factors, float* losses) {
    const int R = batch->num_rows;
    const float *stats[OPS_MAX_SHARES], *to_read[OPS_MAX_SHARES];
    const floatX *sums[OPS_MAX_SHARES], *targets[OPS_MAX_SHARES];
    float* to_write[OPS_MAX_SHARES];
    assert(model_feeds_head(view) && is_by_vocab(view) && num_parts <= OPS_MAX_SHARES);
    if (R == 0) { return; }
    for (int i = 0; i < num_parts; i++) {
        Part part;
        split_part(&part, &view->config, R, dout != NULL ? MODEL_KEEP | MODEL_HEAD : MODEL_HEAD, parts[i]);
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
    return round_up_16(batch->num_seqs) * share->head_rows * X_BYTES;
}

void head_infer(const Model* share, const ModelBatch* batch, const void* in, void* out, void* scratch) {
    const int B = batch->num_seqs;
    if (B == 0) { return; }
    float* logits = llmc_alloc((size_t)B * sizeof *logits, "picks");
    int32_t* ids = llmc_alloc((size_t)B * sizeof *ids, "picks");
    Pick* picks = llmc_alloc((size_t)B * sizeof *picks, "picks");
    logits_forward(share, (floatX*)scratch, (const floatX*)in, B);
    argmax_share(logits, ids, (const floatX*)scratch, B, share->head_id, share->head_ids, share->head_rows,
                 share->ops);
    for (int i = 0; i < B; i++) { picks[i] = (Pick){logits[i], ids[i]}; }
    ops_upload(share->ops, out, picks, (size_t)B * sizeof *picks);
    free(logits);
    free(ids);
    free(picks);
}

void head_pick(const Model* view, const ModelBatch* batch, int num_picks, const void* const* picks,
               int32_t* next) {
    const int B = batch->num_seqs;
    if (B == 0) { return; }
    Pick* best = llmc_alloc((size_t)B * sizeof *best, "picks");
    Pick* other = llmc_alloc((size_t)B * sizeof *other, "picks");
    ops_download(view->ops, best, picks[0], (size_t)B * sizeof *best);
    for (int s = 1; s < num_picks; s++) {
        ops_download(view->ops, other, picks[s], (size_t)B * sizeof *other);
        for (int i = 0; i < B; i++) {
            if (other[i].logit > best[i].logit) { best[i] = other[i]; }
        }
    }
    for (int i = 0; i < B; i++) { next[i] = best[i].id; }
    free(best);
    free(other);
}
