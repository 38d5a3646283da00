/*
loader.h -- one stream of global batches drawn from a mixture of tasks; the same on every rank.

A global batch is "as many samples as fit batch_tokens": samples are drawn by task weight until the next one
would not fit (it begins the next batch); a sample longer than batch_tokens is a batch alone. The order is
decided by the seed alone: the mixture chooses the task, and within a task every sample comes once per epoch
of that task, each epoch in a fresh permutation. The position is a small plain record: saved and restored
exactly, and a copy goes with every batch, so that planning may run ahead.

A sample is too long where it runs more than max_seq_tokens tokens through the model. What is cut is the
input, where long_samples says; its tail (sample_file.h) stays in any case, and the target is kept whole, or
the sample is skipped: a model that learns truncated answers never learns to end one. Of a conversation the
last answers go first, whole ones, with what was said before them. A text without input, and a document of
llm.c's files, is cut into consecutive pieces and loses nothing, unless long_samples is skip. For an
encoder-decoder the two sides have limits of their own: its encoder reads the input (where it is empty, a
single end-of-text token), its decoder a start token and the target without its last.

With span corruption a sample is a piece of a text: input and target joined, or a document of an llm.c file,
cut so that no side is too long. Which of its tokens are noise changes from epoch to epoch; without shuffling
it is always the same, whatever the seed.
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "../dynapipe_plugin/plan/types.h"
#include "../util/arena.h"
#include "../util/status.h"
#include "sample_file.h"

typedef enum { MIXTURE_PROPORTIONAL, MIXTURE_TEMPERATURE, MIXTURE_WEIGHTS } MixtureKind;
// Of a long input what goes is in front of its tail, its beginning, or its middle.
typedef enum { LONG_CUT_END, LONG_CUT_START, LONG_CUT_MIDDLE, LONG_SKIP } LongSamples;

typedef struct {
    int64_t batch_tokens;    // global batch, in tokens run through the model
    int32_t max_seq_tokens;  // -t: longest sequence; longer samples are cut or skipped, and counted
    LongSamples long_samples;
    bool supervise_inputs;  // loss on all tokens, not only on targets (encoder-decoders: on targets anyway)
    bool encoder_decoder;   // inputs for an encoder, targets for a decoder; -t limits inputs then
    int32_t max_target_tokens;              // encoder_decoder: longest target
    bool span_corruption;                   // encoder_decoder: both sides are made of the samples' text
    double noise_density, mean_noise_span;  // 0: 0.15; 3 tokens, of bytes 20
    int32_t sentinel_first, sentinel_step;  // 0: those of the data's tokenizer
    MixtureKind mixture;  // proportional: weight = min(examples, cap); temperature: that ^ (1 / temperature)
    int64_t mixture_cap;  // 0: none
    double temperature;
    const char* weights;  // MIXTURE_WEIGHTS: "task=2,other=0.5"; unnamed tasks 0
    uint64_t seed;
    bool shuffle;  // false: every sample once, in file order (validation)
} LoaderOptions;

// One drawn sample: n_input + n_target tokens of sample `id` from first_token on, without the hole_tokens
// that follow hole_at of them. The model runs n_input + n_target - 1 tokens: each predicts the next. An
// encoder-decoder runs n_input (at least 1) and n_target. With span corruption: of a piece of text that
// begins at first_token, both sides as corrupted.
typedef struct {
    int64_t id;  // of all samples (pieces) of all files
    int32_t task;
    int32_t first_token;           // > 0 where the beginning was cut
    int32_t hole_at, hole_tokens;  // in the input
    int32_t n_input, n_target;
    int32_t n_answer, n_learnt;  // of the target: tokens up to its first gap; tokens in no gap
    uint64_t noise_key;          // span corruption: decides which spans; else 0
} LoaderSample;

typedef struct {
    int32_t num_samples;
    LoaderSample* samples;
    PlanSample* lengths;  // the same, as the planner sees them
    int64_t num_tokens;   // run through the model, both sides, without padding
    int64_t supervised_tokens;
    int64_t step;       // batches drawn before this one
    bool end;           // no shuffle: nothing left (num_samples may be 0)
    uint8_t* position;  // state *after* this batch, position_bytes long
    size_t position_bytes;
} LoaderBatch;

// Of many lengths those that no other is at least as long as on every side: what fits if these fit. Of
// samples cut at -t most often one or two, at most one for each length of input.
typedef struct {
    PlanSample* samples;  // [num_samples], in no order, but the same one for the same lengths
    int32_t num_samples, max_samples;
} LargestSamples;

Status largest_samples_add(LargestSamples* largest, const PlanSample* lengths);
void largest_samples_free(LargestSamples* largest);

typedef struct {
    int32_t num_tasks;
    const int64_t *task_cut, *task_skipped;  // [num_tasks] samples; skipped: texts without a token aside
    int32_t vocab, eot_token;
    int32_t pad_token;  // T5's decoder starts with it; -1: none
    SampleTokenizer tokenizer;
    uint64_t vocab_hash;     // 0: unknown
    int64_t num_samples;     // that can be drawn: without skipped ones
    int64_t num_tokens;      // run through the model, one pass over those samples
    int64_t num_cut;         // samples longer than the limits
    int64_t num_skipped;     // those, or texts without a token
    int64_t num_alone;       // samples longer than batch_tokens: each a batch alone
    int64_t longest_tokens;  // run through the model, of one sample
    int64_t num_batches;     // that one pass over those samples takes, at least
    LargestSamples largest;  // every sample is covered by one of these
    uint64_t seed;           // of the order that is drawn: the options', or that of a position
} LoaderInfo;

typedef struct Loader Loader;

// `pattern` as in llm.c: a glob; "*" matches many files, all must agree in vocab and tokenizer.
Status loader_open(Loader** out, const char* pattern, const LoaderOptions* options);
void loader_close(Loader* loader);
const LoaderInfo* loader_info(const Loader* loader);
const char* loader_task_name(const Loader* loader, int32_t task);
SampleShards* loader_shards(Loader* loader);

// Draw the next batch into the arena. Thread rule: one thread at a time. After an error: restore or close.
Status loader_next(Loader* loader, LoaderBatch* out, Arena* arena);
// Where it stands now, for loader_restore(); in the arena.
Status loader_position(const Loader* loader, const uint8_t** out, size_t* num_bytes, Arena* arena);
// Go on after a batch, on the seed it was drawn with. Other contents of a file, tasks, samples or cuts
// than the position was saved with are STATUS_MISMATCH, a damaged record STATUS_BAD_FORMAT; the loader then
// stays where it was. Files may have other names, in the same order.
Status loader_restore(Loader* loader, const uint8_t* position, size_t position_bytes);
void loader_rewind(Loader* loader);

// What follows is read-only: any thread.

// Sample `n` of those that can be drawn, grouped by task, cut like a drawn one.
Status loader_sample(const Loader* loader, int64_t n, LoaderSample* out);
// Sample `id` of all in the files (pieces, with span corruption), for streams with an order of their own;
// false where it is skipped or there is none. `pass`: any number, of this time through the data, which
// decides what is noise; 0: as without shuffling.
bool loader_sample_by_id(const Loader* loader, int64_t id, uint64_t pass, LoaderSample* out);
// Gaps in a drawn sample's target, in its own tokens; *out: they. (Where an input is cut, one answer is left,
// and no gap.)
int32_t loader_gaps(const Loader* loader, const LoaderSample* sample, const SampleGap** out);
// Tokens of a drawn sample, n_input + n_target of them.
Status loader_read(const Loader* loader, const LoaderSample* sample, int32_t* out);

// --- its parts -------------------------------------------------------------------------------------------

// Place i of the permutation of 0 ... n - 1 named by `key`; i < n, 1 <= n <= 2^62. Needs no memory.
uint64_t shuffle_index(uint64_t n, uint64_t key, uint64_t i);

// T5's pre-training objective: spans of a text become sentinels, and the target has them.
//
//     text    a b c d e f g h        noise: c d and h
//     input   a b <0> e f g <1> </s>
//     target  <0> c d <1> h </s>
//
// Raffel et al. (T5, JMLR 2020, section 3.1.4), in the numbers of its released code: of n tokens round(n *
// density) are noise, in round(noise / mean span) spans; the text begins with what stays and ends with noise,
// and the lengths of the spans, and of what lies between, are drawn from all that add up. So both sides'
// lengths follow from n alone. Where the sentinels are too few, there are fewer, longer spans.
typedef struct {
    double noise_density;                   // share of tokens, in (0, 1)
    double mean_span;                       // tokens, >= 1
    int32_t sentinel_first, sentinel_step;  // sentinel i is token first + i * step; step 1 or -1
    int32_t num_sentinels;                  // >= 1
    int32_t eot_token;                      // ends both sides
} SpanCorruption;

typedef struct {
    int32_t num_noise, num_spans;
    int32_t n_input, n_target;  // n - noise + spans + 1, noise + spans + 1
} SpanLengths;

enum { SPAN_CORRUPTION_MAX_TOKENS = 1 << 30 };

// Of a text of 1 <= num_tokens <= SPAN_CORRUPTION_MAX_TOKENS; no field shrinks where num_tokens grows.
SpanLengths span_corruption_lengths(const SpanCorruption* spans, int32_t num_tokens);
// The longest text whose two sides keep within limits; 0: none does.
int32_t span_corruption_longest(const SpanCorruption* spans, int32_t max_input_tokens,
                                int32_t max_target_tokens);
// Write n_input and n_target tokens. `key` decides which spans.
void span_corruption_apply(const SpanCorruption* spans, uint64_t key, const int32_t* text, int32_t num_tokens,
                           int32_t* input, int32_t* target);

// From which task the next sample comes. Shares: examples-proportional min(n, cap), as Raffel et al. (section
// 3.5.2), that to the power of 1 / temperature, or given weights. Draws follow a low-discrepancy sequence
// instead of dice: draw k looks at the fraction of (start + k * golden ratio) (a Kronecker sequence:
// Niederreiter 1992, chapter 3), so that after any number of draws every task has had its share to within a
// few samples, and a position is one number.
typedef struct {
    int32_t num_tasks;
    uint64_t* upto;  // [num_tasks] sum of the shares of tasks 0 ... k; at least 1, below 2^32
} Mixture;

// Weights are "task=2,other=0.5". Names need no quoting: they are looked for among the data's, the longest
// that fits first, so they may have "=" and "," in them. One with control characters or broken UTF-8 may be
// written as it is printed (\x1b). num_samples[k] can be drawn from task k; a task without samples has no
// share.
Status mixture_create(Mixture* out, const LoaderOptions* options, int32_t num_tasks,
                      const char* const* task_names, const int64_t* num_samples);
void mixture_free(Mixture* mixture);  // an all-zero one is fine
uint64_t mixture_start(uint64_t seed);
int32_t mixture_task(const Mixture* mixture, uint64_t point);  // the task that a point stands for
uint64_t mixture_next(uint64_t point);

typedef enum { SAMPLE_WHOLE, SAMPLE_CUT, SAMPLE_SKIPPED } SampleFate;

// A sample within the limits. It comes in whole: n_input, n_target and zeros in what follows from gaps and
// cuts. Of the options: max_seq_tokens, max_target_tokens, encoder_decoder, long_samples. `tail`: the last
// tokens of its input that stay. A skipped sample comes out whole.
SampleFate sample_cut(LoaderSample* sample, const LoaderOptions* options, const SampleGap* gaps,
                      int32_t num_gaps, int32_t tail);
