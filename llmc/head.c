#include "head.h"

#include <assert.h>
#include <stddef.h>

#include "batch_stage.h"
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

// --- who has what ------------------------------------------------------------------------------------------

bool head_has_share(const ModelHead* head, int stage) {
    return 0 <= stage && stage < head->num_stages && head->begin[stage] < head->begin[stage + 1];
}

int head_matrix_row(const ModelConfig* config, int place) {
    const int64_t row = (int64_t)config->padded_vocab * place / HEAD_PLACES;
    return place == HEAD_PLACES ? config->padded_vocab : (int)(row / 16 * 16);
}

// --- messages ----------------------------------------------------------------------------------------------

// A part: what is said of the rows' losses, and with KEEP their gradient, by vocabulary in two terms.
typedef struct {
    float* numbers;          // by rows (num_rows) losses; by vocabulary (num_rows, 3) as classifier_share()
    floatX *sums, *targets;  // (num_rows, C) by rows the gradient and NULL
} Part;

// NULL memory: only how many bytes.
static int64_t split_part(Part* out, const ModelConfig* config, HeadSharing sharing, int num_rows, int flags,
                          const void* memory) {
    const int64_t R = round_up_16(num_rows), RC = R * config->channels;
    char* cursor = (char*)(uintptr_t)memory;
    const char* begin = cursor;
    *out = (Part){0};
    out->numbers = (float*)(void*)take(&cursor, R * (sharing == HEAD_SHARED_BY_VOCAB ? 3 : 1) * FLOAT_BYTES);
    if (flags & MODEL_KEEP) {
        out->sums = (floatX*)(void*)take(&cursor, RC * X_BYTES);
        if (sharing == HEAD_SHARED_BY_VOCAB) { out->targets = (floatX*)(void*)take(&cursor, RC * X_BYTES); }
    }
    return cursor - begin;
}

int64_t head_rows_bytes(const ModelConfig* config, int num_rows) {
    return (int64_t)num_rows * config->channels * X_BYTES;
}

int64_t head_part_bytes(const ModelConfig* config, HeadSharing sharing, int num_rows, int flags) {
    static char nowhere[1];
    Part part;
    return split_part(&part, config, sharing, num_rows, flags, nowhere);
}

int64_t head_factors_bytes(int num_rows) {
    return round_up_16(num_rows) * 2 * FLOAT_BYTES;
}

// --- a share's jobs ----------------------------------------------------------------------------------------

typedef struct {
    int num_rows;    // that fit
    floatX* rows;    // (num_rows, C) the hidden states, with KEEP
    float* numbers;  // as a part's, with KEEP
    floatX* logits;  // (num_rows, head_rows), with KEEP what their gradients come from
} Acts;

static int64_t split_acts(Acts* out, const Model* share, int num_rows, int flags, const void* memory) {
    const int per_row = share->part.head.sharing == HEAD_SHARED_BY_VOCAB ? 3 : 1;
    int64_t R = round_up_16(num_rows);
    char* cursor = (char*)(uintptr_t)memory;
    const char* begin = cursor;
    *out = (Acts){0};
    if (flags & MODEL_KEEP) {
        out->rows = (floatX*)(void*)take(&cursor, R * share->config.channels * X_BYTES);
        out->numbers = (float*)(void*)take(&cursor, R * per_row * FLOAT_BYTES);
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

static bool is_by_vocab(const Model* share) {
    return share->part.head.sharing == HEAD_SHARED_BY_VOCAB;
}

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

static void share_forward(const Model* share, float* numbers, floatX* logits, const floatX* rows,
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

void head_forward(const Model* share, const ModelBatch* batch, const void* in, void* out, void* acts,
                  int flags) {
    const int R = batch->num_rows, C = share->config.channels, per_row = is_by_vocab(share) ? 3 : 1;
    if (R == 0 || flags == 0) { return; }
    const int32_t* targets = stage_targets(share, batch);
    Acts kept;
    split_acts(&kept, share, R, flags, acts);
    if (flags & MODEL_KEEP) {
        assert(batch->loss_scale != 0.0f);  // 0 would leave logits where backward expects their gradients
        ops_copy(share->ops, kept.rows, in, (size_t)head_rows_bytes(&share->config, R));
        share_forward(share, kept.numbers, kept.logits, kept.rows, targets, R, batch->loss_scale);
        return;
    }
    Part part;
    split_part(&part, &share->config, share->part.head.sharing, R, flags, out);
    for (int begin = 0; begin < R; begin += kept.num_rows) {
        const int num_rows = R - begin < kept.num_rows ? R - begin : kept.num_rows;
        share_forward(share, part.numbers + (int64_t)begin * per_row, kept.logits,
                      (const floatX*)in + (int64_t)begin * C, targets + begin, num_rows, 0.0f);
    }
}

void head_backward_inputs(const Model* share, const ModelBatch* batch, void* acts, void* din) {
    const int R = batch->num_rows, C = share->config.channels, per_row = is_by_vocab(share) ? 3 : 1;
    OpsContext* ops = share->ops;
    if (R == 0) { return; }
    Acts kept;
    Part part;
    split_acts(&kept, share, R, MODEL_KEEP | MODEL_HEAD, acts);
    split_part(&part, &share->config, share->part.head.sharing, R, MODEL_KEEP | MODEL_HEAD, din);
    ops_copy(ops, part.numbers, kept.numbers, (size_t)R * (size_t)per_row * sizeof(float));
    if (share->head_rows > 0) {
        matmul_backward_input(part.sums, kept.logits, matrix(share), R, C, share->head_rows, ops);
    } else {
        ops_zero(ops, part.sums, (size_t)head_rows_bytes(&share->config, R));
    }
    if (!is_by_vocab(share)) { return; }
    const int32_t* targets = stage_targets(share, batch);
    target_rows(part.targets, matrix(share), targets, R, share->head_id, share->head_ids, C, ops);
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

// --- where the hidden states come from ---------------------------------------------------------------------

static void combine_rows(const Model* view, int num_rows, const void* const* parts, void* dout,
                         float* results, int flags) {
    const ModelHead* head = &view->part.head;
    for (int s = 0; s < head->num_stages; s++) {
        const int begin = head_batch_row(num_rows, head->begin[s]);
        const int num = head_batch_row(num_rows, head->begin[s + 1]) - begin;
        if (num == 0) { continue; }
        Part part;
        split_part(&part, &view->config, HEAD_SHARED_BY_ROWS, num, flags, parts[s]);
        ops_copy(view->ops, results + begin, part.numbers, (size_t)num * sizeof(float));
        if (!(flags & MODEL_KEEP)) { continue; }
        ops_copy(view->ops, (floatX*)dout + (int64_t)begin * view->config.channels, part.sums,
                 (size_t)head_rows_bytes(&view->config, num));
    }
}

static void combine_vocab(const Model* view, const ModelBatch* batch, const void* const* parts, void* dout,
                          void* const* factors, float* results, int flags) {
    const ModelHead* head = &view->part.head;
    const float *numbers[OPS_MAX_SHARES], *to_read[OPS_MAX_SHARES];
    const floatX *sums[OPS_MAX_SHARES], *targets[OPS_MAX_SHARES];
    float* to_write[OPS_MAX_SHARES];
    int num_shares = 0;
    for (int s = 0; s < head->num_stages; s++) {
        if (!head_has_share(head, s)) { continue; }
        Part part;
        split_part(&part, &view->config, HEAD_SHARED_BY_VOCAB, batch->num_rows, flags, parts[s]);
        numbers[num_shares] = part.numbers;
        sums[num_shares] = part.sums;
        targets[num_shares] = part.targets;
        to_read[num_shares] = to_write[num_shares] = flags & MODEL_KEEP ? (float*)factors[s] : NULL;
        num_shares++;
    }
    const float scale = flags & MODEL_KEEP ? batch->loss_scale : 0.0f;
    classifier_combine(results, to_write, numbers, scale, batch->num_rows, num_shares, view->ops);
    if (!(flags & MODEL_KEEP)) { return; }
    combine_parts((floatX*)dout, sums, targets, to_read, batch->num_rows, view->config.channels, num_shares,
                  view->ops);
}

void head_combine(Model* view, const ModelBatch* batch, const void* const* parts, void* dout,
                  void* const* factors, float* losses, int flags) {
    const int R = batch->num_rows;
    assert(model_feeds_head(view) && view->part.head.sharing != HEAD_NOT_SHARED);
    if (R == 0) { return; }
    ops_stage_begin(view->ops);
    float* results = ops_results(view->ops, losses, (size_t)R);
    if (view->part.head.sharing == HEAD_SHARED_BY_ROWS) {
        combine_rows(view, R, parts, dout, results, flags);
    } else {
        combine_vocab(view, batch, parts, dout, factors, results, flags);
    }
    ops_deliver(view->ops, losses, results, (size_t)R);
}

// --- generation --------------------------------------------------------------------------------------------

int64_t head_answer_bytes(const Model* share, int num_rows) {
    return round_up_16(num_rows) * share->head_rows * X_BYTES;
}

void head_answer(const Model* share, int num_rows, const void* in, void* scratch, HeadAnswer* answers) {
    if (num_rows == 0) { return; }
    float* values = llmc_alloc((size_t)num_rows * sizeof *values, "answers");
    int32_t* ids = llmc_alloc((size_t)num_rows * sizeof *ids, "answers");
    logits_forward(share, (floatX*)scratch, (const floatX*)in, num_rows);
    argmax_share(values, ids, (const floatX*)scratch, num_rows, share->head_id, share->head_ids,
                 share->head_rows, share->ops);
    for (int i = 0; i < num_rows; i++) { answers[i] = (HeadAnswer){values[i], ids[i]}; }
    free(values);
    free(ids);
}

void head_choose(const ModelHead* head, const HeadAnswer* const* answers, int num_rows, int32_t* next) {
    const HeadAnswer* best = NULL;
    for (int i = 0; i < num_rows; i++, best = NULL) {
        for (int s = 0; s < head->num_stages; s++) {
            if (!head_has_share(head, s)) { continue; }
            const int begin =
                head->sharing == HEAD_SHARED_BY_ROWS ? head_batch_row(num_rows, head->begin[s]) : 0;
            const int end = head->sharing == HEAD_SHARED_BY_ROWS
                                ? head_batch_row(num_rows, head->begin[s + 1])
                                : num_rows;
            if (i < begin || i >= end) { continue; }
            const HeadAnswer* mine = &answers[s][i - begin];
            if (best == NULL || mine->logit > best->logit) { best = mine; }
        }
        assert(best != NULL);
        next[i] = best->id;
    }
}
