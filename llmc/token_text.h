/*
token_text.h -- from token ids to text, for printing what a model writes. Decoding only.

Reads llm.c's gpt2_tokenizer.bin, little-endian: 256 uint32 (magic 20240328, version 1 or 2, number of tokens,
[3] the end-of-text token in version 2), then for each token a length byte (1 to 255) and that many bytes.
Version 1 means end-of-text 50256.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int num_tokens;
    int eot_token;     // -1: none known
    uint8_t* bytes;    // of all tokens, one after the other
    uint32_t* begins;  // (num_tokens + 1)
} TokenText;

// An all-zero TokenText knows no token: everything prints as an id.
bool token_text_load(TokenText* out, const char* path, char* error);
// tokenizer.bin beside the data files that `pattern` names (prepare_data puts it there); else knows no token.
void token_text_find(TokenText* out, const char* pattern);
// Ids 0 to 255 are the bytes themselves.
void token_text_init_bytes(TokenText* out, int eot_token);
void token_text_free(TokenText* text);

// The bytes of a token, not terminated; NULL and 0 where unknown.
const uint8_t* token_text_piece(const TokenText* text, int32_t token, size_t* num_bytes);

// Write tokens as text: unknown ones as "[id]", end-of-text as "<|endoftext|>", bytes that would upset a
// terminal (control characters other than newline and tab) as "\xNN".
void token_text_print(const TokenText* text, FILE* out, const int32_t* tokens, int num_tokens);

#ifdef __cplusplus
}
#endif
