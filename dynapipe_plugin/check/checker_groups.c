// checker_groups.c -- laws of one micro-batch done in different ways: the chain cut, its samples in other
// company, its windows padded.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checker.h"

// What a micro-batch gave on a chain.
typedef struct {
    float *losses, *gradients;  // (rows), (chain's values)
} Results;

static Status run(Checker* c, Results* out, const CheckerChain* chain, const CheckerBatch* batch) {
    CheckerWork work;
    size_t num_rows = (size_t)batch->batch.num_rows;
    out->losses = CHECKER_NEW(c, float, num_rows);
    if (out->losses == NULL) { return checker_no_memory(); }
    checker_zero_gradients(c, chain);
    TRY(checker_work(c, &work, chain, batch));
    TRY(checker_step(c, &work));
    memcpy(out->losses, checker_losses(&work), num_rows * sizeof(float));
    return checker_gradients(c, chain, &out->gradients);
}

static Status compare(const float* expected, const float* found, int64_t num_values, double tolerance,
                      const char* what, const char* values, const char* remedy) {
    char text[160];
    CheckerDifference difference;
    if (!checker_differ(expected, found, num_values, tolerance, &difference)) { return STATUS_OK; }
    return FAIL(STATUS_MISMATCH, "%s, %s: %s ---> %s", what, values,
                checker_difference_text(text, &difference, num_values), remedy);
}

// --- cuts ------------------------------------------------------------------------------------------------

// Where a parameter lies in the array of a range is the range's own affair: those of the whole and of its
// pieces are paired by value.
typedef struct {
    float param, gradient;
} Pair;

static int pair_order(const void* a, const void* b) {
    const Pair *x = a, *y = b;
    if (x->param != y->param) { return x->param < y->param ? -1 : 1; }
    return x->gradient < y->gradient ? -1 : x->gradient > y->gradient;
}

// The first copy of a tied group gets the sum of all, the others go. Returns how many pairs are left.
static int64_t tie(const CheckerChain* chain, Pair* pairs) {
    int64_t begin = 0, num_left = 0;
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        const CheckerRange* range = chain->ranges[r];
        for (int32_t i = 0; i < range->params.num_tied; i++) {
            const DynapipeTied* tied = &range->params.tied[i];
            const CheckerRange* first;
            const DynapipeTied* original = checker_first_copy(chain, tied->group, &first);
            int64_t first_begin = 0;
            for (int32_t k = 0; chain->ranges[k] != first; k++) {
                first_begin += chain->ranges[k]->params.num_params;
            }
            for (int64_t v = 0; v < tied->count && first != range; v++) {
                pairs[first_begin + original->begin + v].gradient += pairs[begin + tied->begin + v].gradient;
                pairs[begin + tied->begin + v].param = INFINITY;
            }
        }
        begin += range->params.num_params;
    }
    for (int64_t v = 0; v < chain->num_values; v++) {
        if (pairs[v].param != INFINITY) { pairs[num_left++] = pairs[v]; }
    }
    return num_left;
}

// Sorted pairs of the chain, as two arrays.
static Status sorted(Checker* c, const CheckerChain* chain, float* gradients, float** params,
                     int64_t* num_left) {
    Pair* pairs = CHECKER_NEW(c, Pair, chain->num_values);
    if (pairs == NULL) { return checker_no_memory(); }
    TRY(checker_params(c, chain, params));
    for (int64_t v = 0; v < chain->num_values; v++) { pairs[v] = (Pair){(*params)[v], gradients[v]}; }
    *num_left = tie(chain, pairs);
    qsort(pairs, (size_t)*num_left, sizeof *pairs, pair_order);
    for (int64_t v = 0; v < *num_left; v++) {
        (*params)[v] = pairs[v].param;
        gradients[v] = pairs[v].gradient;
    }
    return STATUS_OK;
}

static Status check_cut(Checker* c, const Results* whole, const float* whole_params, int64_t num_values,
                        const CheckerBatch* batch, const int32_t* cuts, int32_t num_cuts) {
    CheckerChain chain;
    Results results;
    float* params;
    int64_t num_left;
    char what[224];
    snprintf(what, sizeof what, "the model cut before block %d%s (%s)", (int)cuts[0],
             num_cuts > 1 ? " and wherever else it can be" : "", batch->what);
    TRY(checker_chain(c, &chain, cuts, num_cuts));
    TRY(run(c, &results, &chain, batch));
    TRY(compare(
        whole->losses, results.losses, batch->batch.num_rows, c->tolerance, what, "losses",
        "what a range computes from `in` is what the whole computes there; layers count from blocks.begin"));
    TRY(sorted(c, &chain, results.gradients, &params, &num_left));
    TRY(compare(whole_params, params, num_left < num_values ? num_left : num_values, 0, what, "parameters",
                "make() gives a block the same values in every range that has it"));
    return compare(
        whole->gradients, results.gradients, num_values, c->tolerance, what,
        "gradients, sorted by parameter, tied copies added",
        "backward_inputs of the later range leaves in din the gradient of all it got as `in` (written, "
        "not added); each copy of a tied tensor has the gradient of its own use only");
}

Status checker_law_cuts(Checker* c) {
    CheckerChain whole;
    int32_t* cuts = CHECKER_NEW(c, int32_t, c->num_blocks);
    if (cuts == NULL) { return checker_no_memory(); }
    int32_t num_cuts = checker_cuts(c, cuts);
    TRY(checker_chain(c, &whole, NULL, 0));
    for (int32_t b = 0; b < CHECKER_STANDARD; b++) {
        CheckerBatch* batch = CHECKER_NEW(c, CheckerBatch, 1);
        CheckerSequence sequences[CHECKER_MOST_SEQUENCES];
        Results results;
        float* params;
        int64_t num_values;
        if (batch == NULL) { return checker_no_memory(); }
        TRY(checker_batch(c, batch, sequences, checker_standard(c, sequences, b), 0));
        TRY(run(c, &results, &whole, batch));
        TRY(sorted(c, &whole, results.gradients, &params, &num_values));
        for (int32_t i = 0; i < num_cuts; i++) {
            TRY(check_cut(c, &results, params, num_values, batch, &cuts[i], 1));
        }
        TRY(check_cut(c, &results, params, num_values, batch, cuts, num_cuts));
    }
    return STATUS_OK;
}

// --- company ---------------------------------------------------------------------------------------------

// The samples of a micro-batch, each alone: losses in their order, gradients added.
static Status run_alone(Checker* c, Results* out, const CheckerChain* chain, const CheckerSequence* sequences,
                        int32_t num_sequences, int32_t num_rows) {
    out->losses = CHECKER_NEW(c, float, num_rows);
    out->gradients = CHECKER_NEW(c, float, chain->num_values);
    if (out->losses == NULL || out->gradients == NULL) { return checker_no_memory(); }
    int32_t row = 0;
    for (int32_t i = 0; i < num_sequences; i++) {
        CheckerBatch* alone = CHECKER_NEW(c, CheckerBatch, 1);
        Results one;
        if (alone == NULL) { return checker_no_memory(); }
        TRY(checker_batch(c, alone, &sequences[i], 1, 0));
        if (alone->batch.num_rows == 0) { continue; }  // nothing to learn: no gradients
        TRY(run(c, &one, chain, alone));
        for (int32_t r = 0; r < alone->batch.num_rows; r++) { out->losses[row++] = one.losses[r]; }
        for (int64_t v = 0; v < chain->num_values; v++) { out->gradients[v] += one.gradients[v]; }
    }
    return STATUS_OK;
}

// Against `expected`, in another layout.
static Status check_same(Checker* c, const Results* expected, const CheckerChain* chain,
                         const CheckerBatch* batch, const char* than, const char* remedy) {
    Results results;
    char what[224];
    snprintf(what, sizeof what, "%s, against %s", batch->what, than);
    TRY(run(c, &results, chain, batch));
    TRY(compare(expected->losses, results.losses, batch->batch.num_rows, c->tolerance, what, "losses",
                remedy));
    return compare(expected->gradients, results.gradients, chain->num_values, c->tolerance, what, "gradients",
                   remedy);
}

Status checker_law_grouping(Checker* c) {
    CheckerChain whole;
    TRY(checker_chain(c, &whole, NULL, 0));
    for (int32_t b = 1; b < CHECKER_STANDARD; b++) {
        CheckerBatch* batch = CHECKER_NEW(c, CheckerBatch, 1);
        CheckerSequence sequences[CHECKER_MOST_SEQUENCES];
        Results alone;
        if (batch == NULL) { return checker_no_memory(); }
        int32_t num_sequences = checker_standard(c, sequences, b);
        TRY(checker_batch(c, batch, sequences, num_sequences, 0));
        TRY(run_alone(c, &alone, &whole, sequences, num_sequences, batch->batch.num_rows));
        TRY(check_same(
            c, &alone, &whole, batch, "the same samples one by one",
            "attention stays inside a window (cu_seqlens), positions restart in it, losses stand in the "
            "order of batch->rows, no mean is taken over a micro-batch, dropout goes by token_keys"));
    }
    return STATUS_OK;
}

Status checker_law_padding(Checker* c) {
    CheckerChain whole;
    TRY(checker_chain(c, &whole, NULL, 0));
    for (int32_t b = 0; b < CHECKER_STANDARD; b++) {
        CheckerBatch* batches = CHECKER_NEW(c, CheckerBatch, 2);
        CheckerSequence sequences[CHECKER_MOST_SEQUENCES];
        Results plain;
        if (batches == NULL) { return checker_no_memory(); }
        int32_t num_sequences = checker_standard(c, sequences, b);
        TRY(checker_batch(c, &batches[0], sequences, num_sequences, 0));
        TRY(checker_batch(c, &batches[1], sequences, num_sequences, 3));
        TRY(run(c, &plain, &whole, &batches[0]));
        TRY(check_same(
            c, &plain, &whole, &batches[1], batches[0].what,
            "a window's tokens are those before seq_lens; padding behind them has no loss, and what looks "
            "ahead (encoders, cross-attention) must not see it"));
    }
    return STATUS_OK;
}
