/*
text_pieces.h -- the texts of sample files, cut into pieces of at most so many tokens.

The text of a sample is its input and target without the end-of-text tokens that end them; that of an llm.c
document is without the one that begins it. Pieces follow one another, and only the last of a text is shorter
than the others; a text of no token has none. Pieces are numbered in the order of the samples.
*/
#pragma once

#include <stdint.h>
#include "../util/status.h"
#include "sample_shards.h"

typedef struct {
    int32_t piece_tokens;
    int64_t num_pieces, num_empty;  // num_empty: texts of no token
    int64_t* first_piece;           // [samples + 1] of each sample; last: num_pieces
} TextPieces;

// Tokens [first_token, first_token + num_tokens) of the text of a sample.
typedef struct {
    int64_t sample_id;  // of all samples of all files
    int32_t first_token, num_tokens;
} TextPiece;

// piece_tokens >= 1. The other calls take the same shards.
Status text_pieces_init(TextPieces* out, const SampleShards* shards, int32_t piece_tokens);
void text_pieces_free(TextPieces* pieces);  // all-zero ones are fine

TextPiece text_pieces_get(const TextPieces* pieces, const SampleShards* shards, int64_t idx);
Status text_pieces_read(const SampleShards* shards, const TextPiece* piece, int32_t* out);
