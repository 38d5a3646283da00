/*
completion.h -- what a whole model in one process writes behind prompts, through a cache of keys and values.

Several prompts share the calls: each has a slot of the cache, and one that has ended gives its slot to the
next in the list. A prompt goes through the model alone, then all that are open get a token in each call. What
is drawn depends on the prompt's own generator, so not on which others are there.
*/
#pragma once

#include "model.h"
#include "sampling.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const int32_t* prompt;  // (num_prompt), at least one; an encoder-decoder's input
    int num_prompt;
    int32_t* tokens;  // (max_tokens) what the model writes, without the end
    int num_tokens;   // out
    bool has_ended;   // out: with end_token; else cut by max_tokens or the model's longest sequence
} Completion;

typedef struct {
    int32_t start_token;  // of a decoder
    int32_t end_token;    // ends the text, and is no part of it; -1: none
    int max_tokens;       // of each text
    int max_slots;        // prompts at a time; 0: 16
    Sampling sampling;
    uint32_t seed;  // completion i draws from seed + i
    // (optional) after each token and after the last (token -1); false: this text ends here
    bool (*said)(void* context, const Completion* completion, int32_t token);
    void* context;
} CompletionOptions;

// Decoder-only: prompts are shorter than the model's longest sequence, where a text ends at the latest.
void completion_run(Model* model, const CompletionOptions* options, Completion* list, int num_completions);

#ifdef __cplusplus
}
#endif
