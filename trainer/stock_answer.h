/*
stock_answer.h -- a greedy answer of a whole model in one process, through a cache of keys and values.
*/
#pragma once

#include "../llmc/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const int32_t* prompt;  // (num_prompt), at least one; an encoder-decoder's input
    int num_prompt;
    int32_t start_token;  // of a decoder
    int32_t end_token;    // ends the answer, and is no part of it; -1: none
    int max_tokens;       // of the answer
} StockQuestion;

// Answer to `out` (max_tokens); returns how many tokens. A decoder-only model stops at its longest sequence.
int stock_answer(Model* model, const StockQuestion* question, int32_t* out);

#ifdef __cplusplus
}
#endif
