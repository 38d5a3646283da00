/*
hf_names.h -- what Hugging Face calls the tensors of a Model: each of ours is one, two or three of theirs.

    HfPart parts[HF_MAX_PARTS];
    int num_parts = hf_names_parts(parts, &config, tensor, layer);   // enc_qkv of layer 3: q, k, v of that
block

A part is rows [row_begin, row_begin + rows) of our tensor. Rows that no part covers are the vocabulary's
padding, zero.
*/
#pragma once

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { HF_MAX_PARTS = 3, HF_NAME_CHARS = 96 };

typedef struct {
    char name[HF_NAME_CHARS];  // GPT-2: without "transformer."
    int64_t row_begin, rows, cols;
    bool is_vector;   // one dimension in the file (rows is 1)
    bool transposed;  // (cols, rows) in the file: GPT-2's "Conv1D"
} HfPart;

// layer: of its stack, as TensorSlice.layer (-1: of none). At least 1 part.
int hf_names_parts(HfPart out[HF_MAX_PARTS], const ModelConfig* config, int tensor, int layer);

// All parts of the whole model:  HfNames at = {.config = &config};  for (const HfPart* part; (part =
// hf_names_next(&at));)
typedef struct {
    const ModelConfig* config;
    int tensor, layer, part, num_parts;  // of the next
    HfPart parts[HF_MAX_PARTS];
} HfNames;
const HfPart* hf_names_next(HfNames* at);  // NULL: that was the last; valid until the next call

// GPT-2's bodies have "transformer." before all names but the head's, or nothing.
const char* hf_names_prefix(const ModelConfig* config);
// Of a name without prefix: buffers that old versions saved.
bool hf_names_is_buffer(const ModelConfig* config, const char* name);
// Names that a tied copy of the embedding may have: the next one after `name` (NULL: the first), NULL behind
// the last.
const char* hf_names_embedding_copy(const ModelConfig* config, const char* name);

#ifdef __cplusplus
}
#endif
