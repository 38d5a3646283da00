// checker_jobs.c -- laws of a range's jobs, on the model cut wherever it can be: memory, recomputation, the
// divided backward, sums of gradients.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "checker.h"

// How the model is cut: into the smallest ranges, or into few, in which several layers come to share a place.
typedef enum { CUT_SMALL, CUT_LARGE } Cut;

// The standard micro-batches on their way through the chain.
typedef struct {
    CheckerChain chain;
    CheckerBatch batches[CHECKER_STANDARD];
    CheckerWork works[CHECKER_STANDARD];
} Setting;

static Status set_up(Checker* c, Setting** out, Cut cut) {
    Setting* s = CHECKER_NEW(c, Setting, 1);
    int32_t* cuts = CHECKER_NEW(c, int32_t, c->num_blocks);
    if (s == NULL || cuts == NULL) { return checker_no_memory(); }
    int32_t num_cuts = checker_cuts(c, cuts), middle = num_cuts / 2;
    if (cut == CUT_LARGE) {
        cuts += middle;
        num_cuts = num_cuts > 2;
    }
    TRY(checker_chain(c, &s->chain, cuts, num_cuts));
    for (int32_t i = 0; i < CHECKER_STANDARD; i++) {
        CheckerSequence sequences[CHECKER_MOST_SEQUENCES];
        TRY(checker_batch(c, &s->batches[i], sequences, checker_standard(c, sequences, i), 0));
        TRY(checker_work(c, &s->works[i], &s->chain, &s->batches[i]));
    }
    *out = s;
    return STATUS_OK;
}

// From zero: the gradients that one micro-batch leaves.
static Status gradients_of(Checker* c, const CheckerChain* chain, CheckerWork* work, float** out) {
    checker_zero_gradients(c, chain);
    TRY(checker_step(c, work));
    return checker_gradients(c, chain, out);
}

static Status compare_gradients(const CheckerChain* chain, const float* expected, const float* found,
                                double tolerance, const char* what, const char* remedy) {
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        char text[160];
        CheckerDifference difference;
        int64_t num_params = chain->ranges[r]->params.num_params;
        if (checker_differ(expected, found, num_params, tolerance, &difference)) {
            return FAIL(STATUS_MISMATCH, "%s: gradients of blocks [%d, %d): %s ---> %s", what,
                        (int)chain->ranges[r]->blocks.begin, (int)chain->ranges[r]->blocks.end,
                        checker_difference_text(text, &difference, num_params), remedy);
        }
        expected += num_params;
        found += num_params;
    }
    return STATUS_OK;
}

// --- memory ----------------------------------------------------------------------------------------------

static Status check_untouched(Checker* c, const Setting* s, const float* before, bool gradients,
                              const char* function) {
    float* now;
    TRY(gradients ? checker_gradients(c, &s->chain, &now) : checker_params(c, &s->chain, &now));
    if (memcmp(before, now, (size_t)s->chain.num_values * sizeof *now) == 0) { return STATUS_OK; }
    return FAIL(STATUS_MISMATCH, "%s changed %s ---> %s", function, gradients ? "gradients" : "parameters",
                gradients ? "a forward runs more often than its backward (recomputation, validation)"
                          : "parameters are the optimizer's to change, between steps");
}

static Status check_numbers(const float* values, int64_t num_values, const char* what, const char* remedy) {
    for (int64_t i = 0; i < num_values; i++) {
        if (isfinite(values[i])) { continue; }
        return FAIL(STATUS_MISMATCH, "%s: value %lld of %lld is not a number ---> %s", what, (long long)i,
                    (long long)num_values, remedy);
    }
    return STATUS_OK;
}

// Buffers came filled with what is no number.
static Status check_all_numbers(Checker* c, const Setting* s) {
    const float* gradients;
    char what[64];
    float* all;
    for (int32_t i = 0; i < CHECKER_STANDARD; i++) {
        TRY(check_numbers(
            checker_losses(&s->works[i]), s->batches[i].batch.num_rows, "losses",
            "forward writes all of losses and out (adds to neither), and reads no acts or scratch "
            "that it has not written"));
    }
    TRY(checker_gradients(c, &s->chain, &all));
    gradients = all;
    for (int32_t r = 0; r < s->chain.num_ranges; r++) {
        DynapipeRange blocks = s->chain.ranges[r]->blocks;
        int64_t num_params = s->chain.ranges[r]->params.num_params;
        snprintf(what, sizeof what, "gradients of blocks [%d, %d)", (int)blocks.begin, (int)blocks.end);
        TRY(check_numbers(
            gradients, num_params, what,
            "backward_inputs writes all of din (adds nothing to it) and reads acts as forward left "
            "them; backward_weights reads acts as backward_inputs left them, and dout: not scratch, "
            "and not `in`, whose memory has another use by then"));
        gradients += num_params;
    }
    return STATUS_OK;
}

// Guards are looked at behind every call (checker_run.c).
static Status check_bytes(Checker* c, Cut cut) {
    Setting* s;
    float *params, *gradients;
    TRY(set_up(c, &s, cut));
    TRY(checker_params(c, &s->chain, &params));
    checker_zero_gradients(c, &s->chain);
    TRY(checker_gradients(c, &s->chain, &gradients));
    for (int32_t i = 0; i < CHECKER_STANDARD; i++) {
        TRY(checker_forward(c, &s->works[i], 0, false));
        TRY(checker_forward(c, &s->works[i], DYNAPIPE_FORWARD_HEAD, false));
        TRY(checker_forward(c, &s->works[i], CHECKER_KEEP, false));
    }
    TRY(check_untouched(c, s, gradients, true, "forward"));
    for (int32_t i = 0; i < CHECKER_STANDARD; i++) {
        TRY(checker_backward_inputs(c, &s->works[i]));
        TRY(checker_backward_weights(c, &s->works[i]));
    }
    TRY(check_untouched(c, s, params, false, "forward, backward_inputs or backward_weights"));
    return check_all_numbers(c, s);
}

Status checker_law_bytes(Checker* c) {
    TRY(check_bytes(c, CUT_SMALL));
    return check_bytes(c, CUT_LARGE);
}

// --- the forward again -----------------------------------------------------------------------------------

static Status compare_losses(const CheckerWork* work, const float* expected, const char* what,
                             const char* remedy, double tolerance) {
    char text[160];
    CheckerDifference difference;
    int32_t num_rows = work->of->batch.num_rows;
    if (!checker_differ(expected, checker_losses(work), num_rows, tolerance, &difference)) {
        return STATUS_OK;
    }
    return FAIL(STATUS_MISMATCH, "losses of %s (%s): %s ---> %s", what, work->of->what,
                checker_difference_text(text, &difference, num_rows), remedy);
}

static Status compare_outputs(Checker* c, const CheckerWork* work, const unsigned char* expected,
                              int64_t num_bytes, const char* what, const char* remedy) {
    unsigned char* found;
    int64_t first = 0;
    TRY(checker_outputs(c, work, &found, &num_bytes));
    if (memcmp(expected, found, (size_t)num_bytes) == 0) { return STATUS_OK; }
    while (expected[first] == found[first]) { first++; }
    int32_t r = 0;
    while (first >= work->out[r]->num_bytes) { first -= work->out[r++]->num_bytes; }
    return FAIL(STATUS_MISMATCH, "out of blocks [%d, %d), %s (%s), differs from byte %lld of %lld on ---> %s",
                (int)work->chain->ranges[r]->blocks.begin, (int)work->chain->ranges[r]->blocks.end, what,
                work->of->what, (long long)first, (long long)work->out[r]->num_bytes, remedy);
}

static Status check_forward_again(Checker* c, const Setting* s, CheckerWork* work) {
    static const char* const remedy =
        "same inputs, same bits: does forward read acts or scratch before it has written there, state that "
        "it "
        "left in the model, or a counter of random numbers (batch->token_keys is for dropout)?";
    unsigned char* kept;
    int64_t num_bytes;
    float *losses = CHECKER_NEW(c, float, work->of->batch.num_rows), *expected, *found;
    if (losses == NULL) { return checker_no_memory(); }
    TRY(gradients_of(c, &s->chain, work, &expected));
    TRY(checker_outputs(c, work, &kept, &num_bytes));
    memcpy(losses, checker_losses(work), (size_t)work->of->batch.num_rows * sizeof *losses);
    TRY(checker_forward(c, work, CHECKER_KEEP, false));
    TRY(compare_outputs(c, work, kept, num_bytes, "of the same forward again", remedy));
    TRY(checker_forward(c, work, DYNAPIPE_FORWARD_HEAD, false));
    TRY(compare_losses(work, losses, "a forward with HEAD alone", "validation calls it so", c->tolerance));
    TRY(checker_forward(c, work, 0, false));
    TRY(compare_outputs(c, work, kept, num_bytes, "with flags 0",
                        "flags say what is kept in acts, not what is computed"));
    checker_zero_gradients(c, &s->chain);
    TRY(checker_forward(c, work, CHECKER_KEEP, true));
    TRY(compare_losses(work, losses, "a forward recomputed (out NULL)", remedy, 0));
    TRY(checker_backward_inputs(c, work));
    TRY(checker_backward_weights(c, work));
    TRY(checker_gradients(c, &s->chain, &found));
    return compare_gradients(&s->chain, expected, found, c->tolerance, "after a recomputed forward",
                             "with KEEP, acts must hold all that backward reads, also where out is NULL");
}

static Status check_forwards(Checker* c, Cut cut) {
    Setting* s;
    TRY(set_up(c, &s, cut));
    for (int32_t i = 0; i < CHECKER_STANDARD; i++) {
        TRY(check_forward_again(c, s, &s->works[i]));
        CheckerBatch evaluated = s->batches[i];
        evaluated.batch.token_keys = evaluated.batch.dec_token_keys = NULL;  // as in validation
        CheckerWork work;
        TRY(checker_work(c, &work, &s->chain, &evaluated));
        TRY(checker_forward(c, &work, DYNAPIPE_FORWARD_HEAD, false));
    }
    return STATUS_OK;
}

Status checker_law_forward(Checker* c) {
    TRY(check_forwards(c, CUT_SMALL));
    return check_forwards(c, CUT_LARGE);
}

// --- backward --------------------------------------------------------------------------------------------

// F1 B1 W1 F2 B2 W2 against F1 F2 B1 B2 W2 W1, each in its own acts, which lie elsewhere before B1 and W2.
Status checker_law_divided(Checker* c) {
    Setting* s;
    float *joint, *divided;
    TRY(set_up(c, &s, CUT_SMALL));
    CheckerWork *one = &s->works[1], *other = &s->works[2];
    checker_zero_gradients(c, &s->chain);
    TRY(checker_step(c, one));
    TRY(checker_step(c, other));
    TRY(checker_gradients(c, &s->chain, &joint));
    checker_zero_gradients(c, &s->chain);
    TRY(checker_forward(c, one, CHECKER_KEEP, false));
    TRY(checker_forward(c, other, CHECKER_KEEP, false));
    TRY(checker_move_acts(c, one));
    TRY(checker_backward_inputs(c, one));
    TRY(checker_backward_inputs(c, other));
    TRY(checker_move_acts(c, other));
    TRY(checker_backward_weights(c, other));
    TRY(checker_backward_weights(c, one));
    TRY(checker_gradients(c, &s->chain, &divided));
    return compare_gradients(
        &s->chain, joint, divided, c->tolerance,
        "two micro-batches under way at once, weights' gradients last",
        "what backward needs lies in that micro-batch's acts: not in scratch (another "
        "job writes there), not in "
        "the model, not in `in` (gone after backward_inputs); acts may move: no pointer into "
        "them is kept");
}

static Status queue_jobs(Checker* c, CheckerWork* one, CheckerWork* other) {
    TRY(checker_forward(c, one, CHECKER_KEEP, false));
    TRY(checker_forward(c, other, CHECKER_KEEP, false));
    TRY(checker_backward_inputs(c, one));
    TRY(checker_backward_inputs(c, other));
    TRY(checker_backward_weights(c, other));
    return checker_backward_weights(c, one);
}

// The jobs of two micro-batches one behind the other, in the same scratch, as a stage runs them, and waited
// for once. (The whole model: what its ranges hand on would be waited for.)
Status checker_law_queued(Checker* c) {
    static const char* const remedy =
        "a job may still be queued when the next one is called: what kernels read (copies of tokens, rows, "
        "targets and so on) is that micro-batch's own until finish(), or is copied in the queue's order";
    CheckerChain whole;
    CheckerBatch batches[2];
    CheckerWork works[2];
    float *waited, *queued, *losses[2];
    TRY(checker_chain(c, &whole, NULL, 0));
    checker_zero_gradients(c, &whole);
    for (int i = 0; i < 2; i++) {
        CheckerSequence sequences[CHECKER_MOST_SEQUENCES];
        TRY(checker_batch(c, &batches[i], sequences, checker_standard(c, sequences, i + 1), 0));
        TRY(checker_work(c, &works[i], &whole, &batches[i]));
        TRY(checker_step(c, &works[i]));
        losses[i] = CHECKER_NEW(c, float, batches[i].batch.num_rows);
        if (losses[i] == NULL) { return checker_no_memory(); }
        memcpy(losses[i], checker_losses(&works[i]), (size_t)batches[i].batch.num_rows * sizeof(float));
        TRY(checker_buffer_spoil(c, works[i].losses));
    }
    TRY(checker_gradients(c, &whole, &waited));
    checker_zero_gradients(c, &whole);
    bool is_larger = works[0].scratch[0]->num_bytes > works[1].scratch[0]->num_bytes;
    works[is_larger].scratch[0] = works[!is_larger].scratch[0];
    c->is_fast = c->is_queued = true;
    Status status = queue_jobs(c, &works[0], &works[1]);
    c->is_queued = false;
    if (status == STATUS_OK) { status = checker_finish(c, &works[0]); }
    c->is_fast = false;
    TRY(status);
    for (int i = 0; i < 2; i++) {
        TRY(compare_losses(&works[i], losses[i], "jobs that are waited for once", remedy, c->tolerance));
    }
    TRY(checker_gradients(c, &whole, &queued));
    return compare_gradients(&whole, waited, queued, c->tolerance, "jobs that are waited for once", remedy);
}

// Gradients that are not numbers, then zero_gradients().
static Status check_zeroed(Checker* c, const Setting* s) {
    for (int32_t r = 0; r < s->chain.num_ranges; r++) {
        const DynapipeParams_v1* params = &s->chain.ranges[r]->params;
        float* rubbish = CHECKER_NEW(c, float, params->num_params);
        if (rubbish == NULL) { return checker_no_memory(); }
        for (int64_t i = 0; i < params->num_params; i++) { rubbish[i] = NAN; }
        TRY(checker_write_values(c, params->grads, rubbish, params->grad_type, params->num_params));
    }
    float* found;
    checker_zero_gradients(c, &s->chain);
    TRY(checker_gradients(c, &s->chain, &found));
    for (int64_t i = 0; i < s->chain.num_values; i++) {
        if (found[i] == 0) { continue; }
        return FAIL(STATUS_MISMATCH,
                    "zero_gradients left %.3g in value %lld of %lld (all ranges) ---> it zeroes all of "
                    "params->grads",
                    (double)found[i], (long long)i, (long long)s->chain.num_values);
    }
    return STATUS_OK;
}

static Status check_loss_scale(Checker* c, Setting* s, const float* gradients) {
    CheckerBatch doubled = s->batches[1];
    CheckerWork work;
    float *scaled, *losses = CHECKER_NEW(c, float, doubled.batch.num_rows);
    if (losses == NULL) { return checker_no_memory(); }
    memcpy(losses, checker_losses(&s->works[1]), (size_t)doubled.batch.num_rows * sizeof *losses);
    doubled.batch.loss_scale *= 2;
    TRY(checker_work(c, &work, &s->chain, &doubled));
    TRY(gradients_of(c, &s->chain, &work, &scaled));
    TRY(compare_losses(&work, losses, "a micro-batch with twice the loss_scale",
                       "losses are cross entropies in nats; loss_scale belongs to gradients alone", 0));
    for (int64_t i = 0; i < s->chain.num_values; i++) { scaled[i] /= 2; }
    return compare_gradients(
        &s->chain, gradients, scaled, c->tolerance, "half of those with twice the loss_scale",
        "every row's gradient starts as loss_scale * (softmax - target), without a mean over "
        "rows or tokens");
}

Status checker_law_sums(Checker* c) {
    Setting* s;
    float *one, *other, *both;
    TRY(set_up(c, &s, CUT_SMALL));
    TRY(check_zeroed(c, s));
    TRY(gradients_of(c, &s->chain, &s->works[1], &one));
    TRY(check_loss_scale(c, s, one));
    TRY(gradients_of(c, &s->chain, &s->works[2], &other));
    TRY(checker_step(c, &s->works[1]));
    TRY(checker_gradients(c, &s->chain, &both));
    for (int64_t i = 0; i < s->chain.num_values; i++) { one[i] += other[i]; }
    return compare_gradients(&s->chain, one, both, c->tolerance, "two micro-batches one after the other",
                             "gradients are added (+=): zero_gradients() alone zeroes them, once a step");
}
