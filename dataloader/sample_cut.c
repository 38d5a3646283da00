#include "sample_cut.h"

static bool too_long(const LoaderOptions* options, const LoaderSample* sample) {
    if (options->encoder_decoder) {
        return sample->n_input > options->max_seq_tokens || sample->n_target > options->max_target_tokens;
    }
    return sample->n_input + sample->n_target - 1 > options->max_seq_tokens;
}

// Leave out tokens of the input so that `most` stay, of them the last `tail` in any case.
static void cut_input(LoaderSample* sample, LongSamples way, int32_t most, int32_t tail) {
    if (sample->n_input <= most) { return; }
    int32_t left_out = sample->n_input - most;
    tail = tail < most ? tail : most;
    int32_t front = way == LONG_CUT_START ? 0 : way == LONG_CUT_END ? most : (most + 1) / 2;
    if (front > most - tail) { front = most - tail; }
    sample->n_input = most;
    sample->first_token = front == 0 ? left_out : 0;
    sample->hole_at = front;
    sample->hole_tokens = front == 0 ? 0 : left_out;
}

// The target up to the last gap before which no more than `most` of its tokens stand; all of it where it
// fits, 0 where its first answer does not.
static int32_t whole_answers(const LoaderSample* sample, const SampleGap* gaps, int32_t num_gaps,
                             int32_t most) {
    if (sample->n_target <= most) { return sample->n_target; }
    int32_t n_target = 0;
    for (int32_t g = 0; g < num_gaps; g++) {
        int32_t end = (int32_t)gaps[g].begin - sample->n_input;
        if (end <= most) { n_target = end; }
    }
    return n_target;
}

static void count_learnt(LoaderSample* sample, const SampleGap* gaps, int32_t num_gaps, int32_t n_input) {
    sample->n_answer = sample->n_learnt = sample->n_target;
    for (int32_t g = 0; g < num_gaps && (int32_t)gaps[g].begin < n_input + sample->n_target; g++) {
        if (g == 0) { sample->n_answer = (int32_t)gaps[g].begin - n_input; }
        sample->n_learnt -= (int32_t)(gaps[g].end - gaps[g].begin);
    }
}

// Within the limits by way of cuts; false where no cut does it.
static bool cut_sample(const LoaderOptions* options, LoaderSample* sample, const SampleGap* gaps,
                       int32_t num_gaps, int32_t tail) {
    if (options->encoder_decoder) {
        if (sample->n_target > options->max_target_tokens) { return false; }
        cut_input(sample, options->long_samples, options->max_seq_tokens, tail);
        return true;
    }
    int32_t most = options->max_seq_tokens + 1;
    int32_t n_target = whole_answers(sample, gaps, num_gaps, most - sample->n_input);
    if (n_target == 0) { n_target = whole_answers(sample, gaps, num_gaps, sample->n_answer); }
    if (sample->n_input == 0 && n_target > most) { n_target = most; }
    sample->n_target = n_target;
    if (n_target > most - (sample->n_input > 0)) { return false; }
    cut_input(sample, options->long_samples, most - n_target, tail);
    return true;
}

SampleFate sample_cut(LoaderSample* sample, const LoaderOptions* options, const SampleGap* gaps,
                      int32_t num_gaps, int32_t tail) {
    int32_t n_input = sample->n_input;
    count_learnt(sample, gaps, num_gaps, n_input);
    if (!too_long(options, sample)) { return SAMPLE_WHOLE; }
    LoaderSample cut = *sample;
    if (options->long_samples == LONG_SKIP || !cut_sample(options, &cut, gaps, num_gaps, tail)) {
        return SAMPLE_SKIPPED;
    }
    count_learnt(&cut, gaps, num_gaps, n_input);
    *sample = cut;
    return SAMPLE_CUT;
}
