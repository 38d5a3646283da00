/*
loader.h -- one stream of global batches drawn from a mixture of tasks; the same on every rank.

A global batch is "as many samples as fit batch_tokens": samples are drawn by task weight until the next one
would not fit (it begins the next batch); a sample longer than batch_tokens is a batch alone. Order is decided
by the seed alone: mixture.h chooses the task, and within a task every sample comes once per epoch of that
task, each epoch in a fresh permutation (shuffle.h). The position is a small plain record: saved and restored
exactly, and a copy goes with every batch, so that planning may run ahead.

A sample is too long where it runs more than max_seq_tokens tokens through the model. What is cut is the
input, where long_samples says; its tail (sample_file.h) stays in any case, and the target is kept whole, or
the sample is skipped: who learns answers that break off never learns to end one. Of a conversation the last
answers go first, whole ones, with what was said before them. A text without input, and a document of llm.c's
files, is cut into consecutive pieces and loses nothing (text_cut.h, llmc_tokens.h), unless long_samples is
skip. For an encoder-decoder the two sides have limits of their own.

With span corruption (span_corruption.h) a sample is a piece of a text: input and target joined, or a document
of an llm.c file, cut so that no side is too long. Which of its tokens are noise changes from epoch to epoch;
without shuffling it is always the same, whatever the seed.
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "../util/arena.h"
#include "../util/status.h"
#include "../dynapipe_plugin/plan/types/plan_types.h"
#include "largest_samples.h"
#include "sample_shards.h"

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
    const char* weights;  // MIXTURE_WEIGHTS: "task=2,other=0.5"; unnamed tasks 0 (mixture.h)
    uint64_t seed;
    bool shuffle;  // false: every sample once, in file order (validation)
} LoaderOptions;

// One drawn sample: n_input + n_target tokens of sample `id` from first_token on, without the hole_tokens
// that stand there behind hole_at of them. The model runs n_input + n_target - 1 tokens: each predicts the
// next. An encoder-decoder runs n_input (at least 1) and n_target. With span corruption: of a piece of text
// that begins at first_token, both sides as corrupted.
typedef struct {
    int64_t id;  // of all samples (pieces) of all files
    int32_t task;
    int32_t first_token;           // > 0 where the beginning was cut
    int32_t hole_at, hole_tokens;  // in the input
    int32_t n_input, n_target;
    int32_t n_answer, n_learnt;  // of the target: tokens up to its first gap; tokens in no gap
    uint64_t noise_key;          // span corruption: says which spans; else 0
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

typedef struct Loader Loader;

// `pattern` as in llm.c: a glob; "*" matches many files, all must agree in vocab and tokenizer.
Status loader_open(Loader** out, const char* pattern, const LoaderOptions* options);
void loader_close(Loader* loader);
int32_t loader_num_tasks(const Loader* loader);
const char* loader_task_name(const Loader* loader, int32_t task);
int32_t loader_vocab(const Loader* loader);
int32_t loader_eot_token(const Loader* loader);
int32_t loader_tokenizer(const Loader* loader);    // SampleTokenizer
int32_t loader_pad_token(const Loader* loader);    // T5's decoder starts with it; -1: none
int32_t loader_input_end(const Loader* loader);    // SampleInputEnd
uint64_t loader_vocab_hash(const Loader* loader);  // 0: unknown
SampleShards* loader_shards(Loader* loader);       // the files; for sample_verify.h
int64_t loader_num_samples(const Loader* loader);  // that can be drawn: without skipped ones
int64_t loader_num_tokens(const Loader* loader);   // run through the model, one pass over those samples
int64_t loader_num_cut(const Loader* loader);      // samples longer than the limits
int64_t loader_num_skipped(const Loader* loader);  // those, or texts without a token
int64_t loader_task_cut(const Loader* loader, int32_t task);      // of one task
int64_t loader_task_skipped(const Loader* loader, int32_t task);  // of one task, texts without a token aside
int64_t loader_num_alone(const Loader* loader);       // samples longer than batch_tokens: each a batch alone
int64_t loader_longest_tokens(const Loader* loader);  // run through the model, of one sample
const LargestSamples* loader_largest(const Loader* loader);  // every sample is covered by one of these
int64_t loader_num_batches(const Loader* loader);  // that one pass over those samples takes, at least

// Draw the next batch into the arena. Thread rule: one thread at a time. After an error: restore or close.
Status loader_next(Loader* loader, LoaderBatch* out, Arena* arena);
// Where it stands now, for loader_restore(); in the arena.
Status loader_position(const Loader* loader, const uint8_t** out, size_t* num_bytes, Arena* arena);
// Go on behind a batch, on the seed it was drawn with. Other contents of a file, tasks, samples or cuts
// than the position was saved with are STATUS_MISMATCH, a damaged record STATUS_BAD_FORMAT; the loader then
// stays where it was. Files may have other names, in the same order.
Status loader_restore(Loader* loader, const uint8_t* position, size_t position_bytes);
void loader_rewind(Loader* loader);
uint64_t
loader_seed(const Loader* loader);  // of the order that is drawn: the options', or that of a position

// Sample `n` of those that can be drawn, grouped by task, 0 <= n < loader_num_samples, cut like a drawn
// one. Read-only: any thread.
Status loader_sample(const Loader* loader, int64_t n, LoaderSample* out);

// Sample `id` of all in the files (pieces, with span corruption), for streams with an order of their own;
// false where it is skipped or there is none. `pass`: any number, of this time through the data, which
// decides what is noise; 0: as without shuffling. Read-only: any thread.
bool loader_sample_by_id(const Loader* loader, int64_t id, uint64_t pass, LoaderSample* out);

// Gaps in a drawn sample's target, in its own tokens; *out: they. (Where an input is cut, one answer is left,
// and no gap.) Read-only: any thread.
int32_t loader_gaps(const Loader* loader, const LoaderSample* sample, const SampleGap** out);

// Tokens of a drawn sample, n_input + n_target of them. Read-only: any thread.
Status loader_read(const Loader* loader, const LoaderSample* sample, int32_t* out);
