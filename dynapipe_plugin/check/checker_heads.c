/*
checker_heads.c -- law of a shared head: shares by rows and by vocabulary give the losses, the gradient that
goes back and the matrix' gradient that a head in one piece gives.

The last layers [cut, head) run behind the whole model's activation there: with the head in their range, then
feeding shares of it. What comes back before `cut` is compared with the former; the matrix' gradient with that
of one share by rows, which has all of them.
*/
#include <math.h>
#include <string.h>

#include "../run/executor.h"
#include "checker.h"

enum { MOST_SHARES = 2, ID_MULTIPLE = 16 };

// What one way to share the head gave.
typedef struct {
    float *losses, *din, *matrix;
    int64_t num_din, num_matrix;
} Shared;

// One micro-batch in it.
typedef struct {
    Checker* c;
    const CheckerBatch* of;
    CheckerRange *feeds, *shares[MOST_SHARES];
    DynapipeBatch batches[MOST_SHARES];  // by rows: of their rows
    CheckerBuffer *hidden, *acts, *scratch, *dout, *din, *share_acts[MOST_SHARES], *parts[MOST_SHARES],
        *factors[MOST_SHARES];
    int32_t num_shares;
    bool by_rows;
} Sharing;

static Status make_shares(Sharing* s, int32_t cut) {
    Checker* c = s->c;
    int32_t head = c->num_blocks - 1, half = s->of->batch.num_rows / 2;
    int64_t vocab = c->blocks->padded_vocab > 0 ? c->blocks->padded_vocab : c->blocks->vocab;
    int32_t middle = c->blocks->vocab / 2 / ID_MULTIPLE * ID_MULTIPLE;  // ids on both sides, if there are 32
    TRY(checker_range(c, &s->feeds, (DynapipeRange){.begin = cut, .end = head, .head = DYNAPIPE_HEAD_FEEDS},
                      true));
    for (int32_t i = 0; i < s->num_shares; i++) {
        bool is_last = i == s->num_shares - 1;
        DynapipeRange blocks = {.begin = head, .end = head + 1, .head = DYNAPIPE_HEAD_BY_ROWS};
        s->batches[i] = s->of->batch;
        if (s->by_rows) {
            int32_t begin = i == 0 ? 0 : half, end = is_last ? s->of->batch.num_rows : half;
            s->batches[i].num_rows = end - begin;
            s->batches[i].rows += begin;
            s->batches[i].targets += begin;
            s->batches[i].row_tasks += begin;
        } else {
            blocks.head = DYNAPIPE_HEAD_BY_VOCABULARY;
            blocks.vocab_begin = i == 0 ? 0 : middle;
            blocks.vocab_end = is_last ? (int32_t)vocab : middle;
        }
        TRY(checker_range(c, &s->shares[i], blocks, true));
    }
    return STATUS_OK;
}

static Status make_buffers(Sharing* s) {
    Checker* c = s->c;
    const DynapipeModel_v1* api = c->blocks->api;
    const DynapipeBatch* batch = &s->of->batch;
    int64_t scratch_bytes = api->scratch_bytes(s->feeds->model, batch);
    for (int32_t i = 0; i < s->num_shares; i++) {
        void* model = s->shares[i]->model;
        int64_t own = api->scratch_bytes(model, &s->batches[i]);
        int64_t part = s->by_rows ? api->boundary_bytes(model, &s->batches[i], 0)
                                  : api->part_bytes(model, batch, CHECKER_KEEP);
        if (own > scratch_bytes) { scratch_bytes = own; }
        TRY(checker_buffer(c, &s->share_acts[i], api->acts_bytes(model, &s->batches[i], CHECKER_KEEP),
                           false));
        TRY(checker_buffer(c, &s->parts[i], part, false));
        if (!s->by_rows) { TRY(checker_buffer(c, &s->factors[i], api->factor_bytes(model, batch), false)); }
    }
    TRY(checker_buffer(c, &s->hidden, api->boundary_bytes(s->feeds->model, batch, 1), false));
    TRY(checker_buffer(c, &s->dout, s->hidden->num_bytes, false));
    TRY(checker_buffer(c, &s->din, api->boundary_bytes(s->feeds->model, batch, 0), false));
    TRY(checker_buffer(c, &s->acts, api->acts_bytes(s->feeds->model, batch, CHECKER_KEEP), false));
    return checker_buffer(c, &s->scratch, scratch_bytes, false);
}

static Status call(const char* what, int code) {
    if (code == 0) { return STATUS_OK; }
    return FAIL(STATUS_MISMATCH, "%s of a shared head returned error %d", what, code);
}

// Hidden states of the share's rows lie behind those of the shares before it; parts by rows alike.
static Status run_share(Sharing* s, int32_t i, int64_t at_bytes, float* losses) {
    const DynapipeModel_v1* api = s->c->blocks->api;
    void* model = s->shares[i]->model;
    const DynapipeBatch* batch = &s->batches[i];
    if (batch->num_rows == 0) { return STATUS_OK; }
    TRY(call("forward()", api->forward(model, batch, s->hidden->memory + at_bytes, NULL,
                                       s->share_acts[i]->memory, s->scratch->memory, losses, CHECKER_KEEP)));
    unsigned char* part = s->by_rows ? s->dout->memory + at_bytes : s->parts[i]->memory;
    return call("backward_inputs()",
                api->backward_inputs(model, batch, s->hidden->memory + at_bytes, s->share_acts[i]->memory,
                                     NULL, part, s->scratch->memory));
}

static Status finish(const Sharing* s) {
    const DynapipeModel_v1* api = s->c->blocks->api;
    return call("finish()", api->finish != NULL ? api->finish(s->feeds->model) : 0);
}

static Status run_jobs(Sharing* s, const void* in, float* losses) {
    const DynapipeModel_v1* api = s->c->blocks->api;
    const DynapipeBatch* batch = &s->of->batch;
    const void* parts[MOST_SHARES];
    void* factors[MOST_SHARES];
    int64_t at_bytes = 0;
    TRY(call("forward()", api->forward(s->feeds->model, batch, in, s->hidden->memory, s->acts->memory,
                                       s->scratch->memory, NULL, CHECKER_KEEP)));
    for (int32_t i = 0; i < s->num_shares; i++) {
        float* mine = s->by_rows ? losses + (s->batches[i].targets - batch->targets) : NULL;
        TRY(run_share(s, i, at_bytes, mine));
        if (s->by_rows) { at_bytes += s->parts[i]->num_bytes; }
        parts[i] = s->parts[i]->memory;
        factors[i] = s->by_rows ? NULL : s->factors[i]->memory;
    }
    if (!s->by_rows) {
        TRY(call("combine()", api->combine(s->feeds->model, batch, s->num_shares, parts, s->dout->memory,
                                           factors, losses)));
    }
    TRY(call("backward_inputs()", api->backward_inputs(s->feeds->model, batch, in, s->acts->memory,
                                                       s->dout->memory, s->din->memory, s->scratch->memory)));
    for (int32_t i = 0; i < s->num_shares; i++) {
        if (s->batches[i].num_rows == 0) { continue; }
        TRY(call("backward_weights()",
                 api->backward_weights(s->shares[i]->model, &s->batches[i], s->share_acts[i]->memory,
                                       factors[i], s->scratch->memory)));
    }
    return finish(s);
}

static Status read_results(Sharing* s, Shared* out) {
    Checker* c = s->c;
    int32_t type = s->feeds->params.param_type;
    out->num_din = s->din->num_bytes / (type == DYNAPIPE_FLOAT32 ? 4 : 2);
    out->num_matrix = 0;
    for (int32_t i = 0; i < s->num_shares; i++) {
        int64_t n = s->shares[i]->params.num_params;
        out->num_matrix = s->by_rows ? n : out->num_matrix + n;
    }
    out->din = CHECKER_NEW(c, float, out->num_din);
    out->matrix = CHECKER_NEW(c, float, out->num_matrix);
    float* one = CHECKER_NEW(c, float, out->num_matrix);
    if (out->din == NULL || out->matrix == NULL || one == NULL) { return checker_no_memory(); }
    memset(out->matrix, 0, (size_t)out->num_matrix * sizeof *out->matrix);
    TRY(checker_read_values(c, out->din, s->din->memory, type, out->num_din));
    int64_t begin = 0;
    for (int32_t i = 0; i < s->num_shares; i++) {
        const DynapipeParams_v1* params = &s->shares[i]->params;
        TRY(checker_read_values(c, one, params->grads, params->grad_type, params->num_params));
        for (int64_t k = 0; k < params->num_params; k++) { out->matrix[begin + k] += one[k]; }
        begin += s->by_rows ? 0 : params->num_params;
    }
    return STATUS_OK;
}

static Status share(Checker* c, Shared* out, const CheckerBatch* batch, int32_t cut, const void* in,
                    bool by_rows, int32_t num_shares) {
    Sharing s = {.c = c, .of = batch, .by_rows = by_rows, .num_shares = num_shares};
    CheckerBuffer* losses;
    TRY(make_shares(&s, cut));
    TRY(make_buffers(&s));
    TRY(checker_buffer_spoil(c, s.din));
    TRY(checker_buffer(c, &losses, (int64_t)sizeof(float) * batch->batch.num_rows, true));
    c->blocks->api->zero_gradients(s.feeds->model);
    for (int32_t i = 0; i < num_shares; i++) { c->blocks->api->zero_gradients(s.shares[i]->model); }
    out->losses = (float*)(void*)losses->memory;
    TRY(run_jobs(&s, in, out->losses));
    return read_results(&s, out);
}

static Status compare(const Checker* c, const float* expected, const float* found, int64_t num_values,
                      const char* what, const char* of, const CheckerBatch* batch) {
    CheckerDifference difference;
    char words[160];
    if (!checker_differ(expected, found, num_values, c->tolerance, &difference)) { return STATUS_OK; }
    return FAIL(STATUS_MISMATCH,
                "the head shared %s: %s (%s): %s ---> DynapipeModel_v1: shares and combine()", of, what,
                batch->what, checker_difference_text(words, &difference, num_values));
}

// What neither wrote: places behind the tokens.
static void forget_padding(float* a, float* b, int64_t num_values) {
    for (int64_t i = 0; i < num_values; i++) {
        if (isnan(a[i]) && isnan(b[i])) { a[i] = b[i] = 0; }
    }
}

static Status check_batch(Checker* c, const CheckerBatch* batch, int32_t cut) {
    static const struct {
        const char* words;
        bool by_rows;
        int32_t num_shares;
    } ways[] = {{"by rows, in one share", true, 1},
                {"by rows", true, 2},
                {"by vocabulary", false, 2},
                {"by vocabulary, in one share", false, 1}};
    CheckerChain chain;
    CheckerWork work;
    Shared first = {0}, shared;
    int64_t num_rows = batch->batch.num_rows;
    TRY(checker_chain(c, &chain, &cut, 1));
    TRY(checker_work(c, &work, &chain, batch));
    checker_zero_gradients(c, &chain);
    TRY(checker_forward(c, &work, CHECKER_KEEP, false));
    CheckerBuffer* in;  // which is rubbish behind backward
    TRY(checker_buffer(c, &in, work.in[1]->num_bytes, false));
    TRY(checker_copy(c, in->memory, work.in[1]->memory, in->num_bytes));
    TRY(checker_backward_inputs(c, &work));
    TRY(checker_backward_weights(c, &work));
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        TRY(share(c, &shared, batch, cut, in->memory, ways[i].by_rows, ways[i].num_shares));
        if (i == 0) { first = shared; }
        float* din = CHECKER_NEW(c, float, shared.num_din);
        if (din == NULL) { return checker_no_memory(); }
        TRY(checker_read_values(c, din, work.dout[0]->memory, chain.ranges[1]->params.param_type,
                                shared.num_din));
        forget_padding(din, shared.din, shared.num_din);
        TRY(compare(c, (const float*)(const void*)work.losses->memory, shared.losses, num_rows, "losses",
                    ways[i].words, batch));
        TRY(compare(c, din, shared.din, shared.num_din, "gradient before the last layer", ways[i].words,
                    batch));
        if (shared.num_matrix != first.num_matrix) {
            return FAIL(
                STATUS_MISMATCH,
                "the head shared %s: %lld parameters, %lld in one share by rows ---> a share has rows "
                "of the head's matrix and nothing else; padded_vocab is all of them",
                ways[i].words, (long long)shared.num_matrix, (long long)first.num_matrix);
        }
        TRY(compare(c, first.matrix, shared.matrix, shared.num_matrix, "gradient of the matrix",
                    ways[i].words, batch));
    }
    return STATUS_OK;
}

Status checker_law_heads(Checker* c) {
    bool can = executor_can_share(c->blocks->api, HEAD_BY_VOCABULARY) && !c->blocks->shapes.head_has_layer;
    int32_t* cuts = CHECKER_NEW(c, int32_t, c->num_blocks);
    if (cuts == NULL) { return checker_no_memory(); }
    int32_t num_cuts = checker_cuts(c, cuts);
    for (int32_t i = 0; i < CHECKER_STANDARD && can && num_cuts > 1; i++) {
        CheckerSequence sequences[CHECKER_MOST_SEQUENCES];
        CheckerBatch* batch = CHECKER_NEW(c, CheckerBatch, 1);
        if (batch == NULL) { return checker_no_memory(); }
        TRY(checker_batch(c, batch, sequences, checker_standard(c, sequences, i), 0));
        TRY(check_batch(c, batch, cuts[num_cuts - 2]));
    }
    return STATUS_OK;
}
