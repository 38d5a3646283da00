/*
hf_unigram.h -- a Unigram tokenizer.json as the SentencePiece model that it was once made from.

The model is a ModelProto (sentencepiece_model.proto of the sentencepiece library) in Google's wire format:
pieces with scores and types, the character map, names of the special pieces. Checked on the way: that nothing
in the file asks for what the library would do otherwise.
*/
#pragma once

#include <stddef.h>
#include <jansson.h>
#include "../../util/status.h"

// The caller frees *model. `name` stands in messages.
Status hf_unigram_to_model(const json_t* root, const char* name, char** model, size_t* num_bytes);

// For messages and comparisons: the "type" of a part; "null" where it is missing, "?" where it has none.
const char* hf_unigram_type(const json_t* part);
