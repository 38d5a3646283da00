/*
loader.h -- one stream of global batches drawn from a mixture of tasks; the same on every rank.

Samples are drawn by task weight until the next one would not fit batch_tokens; it begins the next batch. A
sample longer than batch_tokens is a batch alone. The order depends on the seed only: the mixture chooses the
task, and each epoch of a task is a new permutation of its samples. The position is a small record that can be
saved and restored exactly; each batch has a copy, so that planning may run ahead.

A sample is too long if it runs more than max_seq_tokens tokens through the model. Then its input is cut as
long_samples tells; the input's tail (sample_file.h) is kept, and so is the whole target, otherwise the sample
is skipped: a model that learns truncated answers never learns to end one. Of a conversation the last answers
are removed first, whole ones, with what precedes them. A text without input, and a document of llm.c's files,
is cut into consecutive pieces without loss unless long_samples is skip. For an encoder-decoder each side has
its own limit: the encoder reads the input (one end-of-text token if it is empty), the decoder a start token
and the target without its last.

With span corruption a sample is a piece of a text (input and target joined, or a document of an llm.c file),
cut so that both sides fit. Its noise changes from epoch to epoch; without shuffling it is always the same.
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "../dynapipe_plugin/plan/types.h"
#include "../util/arena.h"
#include "../util/status.h"
#include "sample_file.h"

typedef enum { MIXTURE_PROPORTIONAL, MIXTURE_TEMPERATURE, MIXTURE_WEIGHTS } MixtureKind;
// Where a long input is cut: before its tail, at its beginning, or in its middle.
typedef enum { LONG_CUT_END, LONG_CUT_START, LONG_CUT_MIDDLE, LONG_SKIP } LongSamples;

typedef struct {
    int64_t batch_tokens;    // global batch, in tokens run through the model
    int32_t max_seq_tokens;  // -t: longest sequence; longer samples are cut or skipped, and counted
    LongSamples long_samples;
    bool supervise_inputs;      // loss on all tokens, not only targets (encoder-decoders: targets only)
    bool encoder_decoder;       // inputs for an encoder, targets for a decoder; -t limits inputs then
    int32_t max_target_tokens;  // encoder_decoder: longest target
    bool span_corruption;       // encoder_decoder: both sides are made from the samples' text
    double noise_density, mean_noise_span;  // 0: 0.15; 3 tokens, or 20 for bytes
    int32_t sentinel_first, sentinel_step;  // 0: from the data's tokenizer
    MixtureKind mixture;  // proportional: weight = min(examples, cap); temperature: that ^ (1 / temperature)
    int64_t mixture_cap;  // 0: none
    double temperature;
    const char* weights;  // MIXTURE_WEIGHTS: "task=2,other=0.5"; unnamed tasks 0
    uint64_t seed;
    bool shuffle;  // false: every sample once, in file order (validation)
} LoaderOptions;

// One drawn sample: n_input + n_target tokens of sample `id` from first_token on, without the hole_tokens
// after hole_at of them. A decoder-only model runs n_input + n_target - 1 tokens: each predicts the next.
// An encoder-decoder runs n_input (at least 1) and n_target. With span corruption: a piece of text that
// begins at first_token, and the lengths of both corrupted sides.
typedef struct {
    int64_t id;  // of all samples (pieces) of all files
    int32_t task;
    int32_t first_token;           // > 0 if the beginning was cut
    int32_t hole_at, hole_tokens;  // in the input
    int32_t n_input, n_target;
    int32_t n_answer, n_learnt;  // of the target: tokens up to its first gap; tokens outside gaps
    uint64_t noise_key;          // selects the spans of span corruption; otherwise 0
} LoaderSample;

typedef struct {
    int32_t num_samples;
    LoaderSample* samples;
    PlanSample* lengths;  // the same for the planner
    int64_t num_tokens;   // run through the model, both sides, without padding
    int64_t supervised_tokens;
    int64_t step;       // batches drawn before this one
    bool end;           // no shuffle: no samples left (num_samples may be 0)
    uint8_t* position;  // state *after* this batch, position_bytes long
    size_t position_bytes;
} LoaderBatch;

// The lengths that no other sample matches or exceeds on every side: if these fit, all fit. Often one or
// two, at most one for each input length.
typedef struct {
    PlanSample* samples;  // [num_samples] in a deterministic order
    int32_t num_samples, max_samples;
} LargestSamples;

Status largest_samples_add(LargestSamples* largest, const PlanSample* lengths);
void largest_samples_free(LargestSamples* largest);

typedef struct {
    int32_t num_tasks;
    int64_t *task_cut, *task_skipped;     // [num_tasks] samples; skipped: without empty texts
    int64_t *task_samples, *task_picked;  // [num_tasks] usable ones, and of them those in loader_pick()
    int32_t vocab, eot_token, num_ids;    // num_ids: as in SampleFile, of all files
    int32_t pad_token;                    // first token of T5's decoder; -1: none
    SampleTokenizer tokenizer;
    uint64_t vocab_hash;     // 0: unknown
    int64_t num_samples;     // usable, without skipped ones
    int64_t num_tokens;      // run through the model in one pass over those samples
    int64_t num_cut;         // samples longer than the limits
    int64_t num_skipped;     // too long, or empty texts
    int64_t num_alone;       // samples longer than batch_tokens: each a batch alone
    int64_t longest_tokens;  // run through the model, of one sample
    int64_t num_batches;     // of one pass over those samples, at least
    LargestSamples largest;  // every sample is covered by one of these
    uint64_t seed;           // seed of the order: from the options or a position
    uint64_t pick_hash;      // of the data and the picked samples
} LoaderInfo;

typedef struct Loader Loader;

// `pattern` as in llm.c: a glob; "*" matches many files, all must agree in vocab and tokenizer.
Status loader_open(Loader** out, const char* pattern, const LoaderOptions* options);
void loader_close(Loader* loader);
const LoaderInfo* loader_info(const Loader* loader);
const char* loader_task_name(const Loader* loader, int32_t task);
SampleShards* loader_shards(Loader* loader);

// Draws the next batch into the arena. One thread at a time. After an error: restore or close.
Status loader_next(Loader* loader, LoaderBatch* out, Arena* arena);
// The current position for loader_restore(), in the arena.
Status loader_position(const Loader* loader, const uint8_t** out, size_t* num_bytes, Arena* arena);
// Continues after a batch, with its seed. Changed file contents, tasks, samples or cuts are
// STATUS_MISMATCH, a damaged record STATUS_BAD_FORMAT; the loader is then unchanged. Files may be renamed,
// in the same order.
Status loader_restore(Loader* loader, const uint8_t* position, size_t position_bytes);
void loader_rewind(Loader* loader);
// Without shuffle: rewinds, and from now on a pass has about max_samples (< 0: all), equally many of each
// task and at least one, spread over the task. They depend only on the data. Returns their number.
int64_t loader_pick(Loader* loader, int64_t max_samples);

// The following functions are read-only: any thread.

// Usable sample `n`, grouped by task, cut like a drawn one.
Status loader_sample(const Loader* loader, int64_t n, LoaderSample* out);
// The gaps in a drawn sample's target, in its own tokens, to *out. (If the input is cut, one answer and no
// gap is left.)
int32_t loader_gaps(const Loader* loader, const LoaderSample* sample, const SampleGap** out);
// The n_input + n_target tokens of a drawn sample.
Status loader_read(const Loader* loader, const LoaderSample* sample, int32_t* out);

// --- parts of the loader ----------------------------------------------------------------------------------

// Element i of the permutation of 0 ... n - 1 selected by `key`; i < n, 1 <= n <= 2^62. Needs no memory.
uint64_t shuffle_index(uint64_t n, uint64_t key, uint64_t i);

// T5's pre-training objective (Raffel et al., JMLR 2020, section 3.1.4, with the rounding of its released
// code): spans of a text are replaced by sentinels, and the target contains them.
//
//     text    a b c d e f g h        noise: c d and h
//     input   a b <0> e f g <1> </s>
//     target  <0> c d <1> h </s>
//
// Of n tokens round(n * density) are noise, in round(noise / mean span) spans; the text begins with unchanged
// tokens and ends with noise. The lengths of spans and of the parts between are drawn uniformly from all that
// have these sums, so both sides' lengths depend on n only. With too few sentinels there are fewer, longer
// spans.
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

// For a text of 1 <= num_tokens <= SPAN_CORRUPTION_MAX_TOKENS; every field is non-decreasing in num_tokens.
SpanLengths span_corruption_lengths(const SpanCorruption* spans, int32_t num_tokens);
// The longest text whose two sides are within limits; 0: none.
int32_t span_corruption_longest(const SpanCorruption* spans, int32_t max_input_tokens,
                                int32_t max_target_tokens);
// Writes n_input and n_target tokens. `key` selects the spans.
void span_corruption_apply(const SpanCorruption* spans, uint64_t key, const int32_t* text, int32_t num_tokens,
                           int32_t* input, int32_t* target);

// Selects the task of the next sample. Shares: examples-proportional min(n, cap), as Raffel et al. (section
// 3.5.2), raised to 1 / temperature, or given weights. Draw k uses the fraction of (start + k * golden
// ratio), a low-discrepancy Kronecker sequence (Niederreiter 1992, chapter 3): after any number of draws
// every task has its share to within a few samples, and a position is one number.
typedef struct {
    int32_t num_tasks;
    uint64_t* upto;  // [num_tasks] sum of the shares of tasks 0 ... k; at least 1, below 2^32
} Mixture;

// Weights are "task=2,other=0.5". Names need no quoting and may contain "=" and ",": the longest matching
// name of the data is taken. Control characters or invalid UTF-8 may be given in printed form (\x1b).
// num_samples[k] can be drawn from task k; a task without samples has no share.
Status mixture_create(Mixture* out, const LoaderOptions* options, int32_t num_tasks,
                      const char* const* task_names, const int64_t* num_samples);
void mixture_free(Mixture* mixture);  // an all-zero one is allowed
uint64_t mixture_start(uint64_t seed);
int32_t mixture_task(const Mixture* mixture, uint64_t point);  // the task of a point
uint64_t mixture_next(uint64_t point);

typedef enum { SAMPLE_WHOLE, SAMPLE_CUT, SAMPLE_SKIPPED } SampleFate;

// Cuts a sample to the limits. On entry it is whole: n_input, n_target and zeros in the fields for gaps and
// cuts. Uses max_seq_tokens, max_target_tokens, encoder_decoder and long_samples of the options. `tail`:
// tokens at the end of the input that are kept. A skipped sample is returned whole.
SampleFate sample_cut(LoaderSample* sample, const LoaderOptions* options, const SampleGap* gaps,
                      int32_t num_gaps, int32_t tail);
