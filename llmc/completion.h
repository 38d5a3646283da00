/*
completion.h -- text generation: the next token from a model's logits, tokens as text, completion of prompts.

p_i = exp(x_i / temperature) / sum, over the top_k largest logits, reduced to the fewest of them (most likely
first) whose probabilities sum to top_p or more

Temperature 0 takes the most likely token. Top-p is the nucleus sampling of Holtzman et al. 2020. Ties are
broken by the lower id, as in argmax_rows (ops.h), so the result depends on logits and seed only.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "model.h"
#include "mt19937.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    double temperature;  // >= 0
    int top_k;           // 0: all
    double top_p;        // (0, 1]; 1: all
} Sampling;

typedef struct {
    double logit;
    int32_t id;
} SamplingPlace;

// logits: (vocab), finite; work: room for vocab places. Draws one number, none at temperature 0.
int32_t sampling_pick(const float* logits, int vocab, const Sampling* sampling, Mt19937* generator,
                      SamplingPlace* work);

// --- tokens as text ----------------------------------------------------------------------------------------
/*
Token ids to text, for output. Decoding only.

Reads llm.c's gpt2_tokenizer.bin, little-endian: 256 uint32 (magic 20240328, version 1 or 2, number of tokens,
[3] the end-of-text token in version 2), then for each token a length byte (1 to 255) and that many bytes.
Version 1 means end-of-text 50256.
*/

typedef struct {
    int num_tokens;
    int eot_token;     // -1: none known
    uint8_t* bytes;    // of all tokens, one after the other
    uint32_t* begins;  // (num_tokens + 1)
} TokenText;

// An all-zero TokenText has no tokens: everything prints as an id.
bool token_text_load(TokenText* out, const char* path);
// Reads tokenizer.bin beside the data files of `pattern` (written by prepare_data); without it, no tokens.
void token_text_find(TokenText* out, const char* pattern);
// Ids 0 to 255 are the bytes themselves.
void token_text_init_bytes(TokenText* out, int eot_token);
void token_text_free(TokenText* text);

// The bytes of a token, not terminated; NULL and 0 where unknown.
const uint8_t* token_text_piece(const TokenText* text, int32_t token, size_t* num_bytes);

// Prints tokens as text: unknown ones as "[id]", end-of-text as "<|endoftext|>", bytes that control a
// terminal (control characters other than newline and tab) as "\xNN".
void token_text_print(const TokenText* text, FILE* out, const int32_t* tokens, int num_tokens);

// --- completion --------------------------------------------------------------------------------------------
/*
Completes prompts with a whole model in one process, through a cache of keys and values.

Several prompts share the calls: each has a slot of the cache, and a finished one gives its slot to the next.
A prompt goes through the model alone, then every open one gets a token per call. Each prompt has its own
random generator, so its text does not depend on the others.
*/

// Tokens that end a text; none: num 0.
enum { TOKEN_MOST_ENDS = 16 };
typedef struct {
    int32_t ids[TOKEN_MOST_ENDS];
    int num;
} TokenEnds;

bool token_ends_has(const TokenEnds* ends, int32_t token);

typedef struct {
    const int32_t* prompt;  // (num_prompt), at least one; an encoder-decoder's input
    int num_prompt;
    int32_t* tokens;  // (max_tokens) generated, without what ends it
    int num_tokens;   // out
    bool has_ended;   // out: by one of the ends; otherwise cut by max_tokens or the model's longest sequence
} Completion;

typedef struct {
    int32_t start_token;  // of a decoder
    TokenEnds ends;       // of a text, not included
    int max_tokens;       // of each text
    int max_slots;        // prompts at a time; 0: 16
    Sampling sampling;
    uint32_t seed;  // completion i draws from seed + i
    // (optional) after each token and after the last (token -1); false ends this text
    bool (*said)(void* context, const Completion* completion, int32_t token);
    void* context;
} CompletionOptions;

// Decoder-only: prompts must be shorter than the model's longest sequence, where a text ends at the latest.
void completion_run(Model* model, const CompletionOptions* options, Completion* list, int num_completions);

#ifdef __cplusplus
}
#endif
