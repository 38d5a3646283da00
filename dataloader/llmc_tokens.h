/*
llmc_tokens.h -- llm.c's own token files as sample files.

A 1024-byte header of int32 (magic, version, number of tokens), then the tokens: magic 20240520 version 1 has
uint16 tokens of GPT-2 (end-of-text 50256), magic 20240801 version 7 uint32 tokens of Llama 3 (128000).
Every document begins with the end-of-text token; a sample is one document, n_input 1, n_target the rest. What
stands before the first end-of-text token (a document that began in the shard before) is a document as well.
Documents of a single token are dropped and counted. The one task bears the file's name without folder,
".bin", a shard number and "_train" or "_val", so that all shards of a data set are one task.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include "../util/status.h"
#include "sample_file.h"

bool llmc_tokens_recognize(const void* data, size_t num_bytes);
bool llmc_tokens_is(const SampleFile* file);  // was `file` opened (with its index) from such a file?
bool llmc_tokens_begins(const SampleFile* file, int64_t sample);  // with end-of-text: all but a shard's first

// Fill `file`, whose path is set, from the bytes of a token file. On failure the caller closes `file`.
// with_index: find the documents, which reads the whole file, and gives it a content_id. verify: check every
// token id.
Status llmc_tokens_parse(SampleFile* file, const void* data, size_t num_bytes, bool with_index, bool verify);

// The content_id of a file whose chunks have these hashes: these files store none.
uint64_t llmc_tokens_content_id(const SampleFile* file, const uint64_t* chunk_hashes);

// Cut every document into consecutive pieces that run at most max_model_tokens tokens through the model. The
// last token of a piece is the input of the next, so every token is still predicted once. Does nothing to
// files of the other format, whose inputs and targets belong together.
Status llmc_tokens_cut(SampleFile* file, int32_t max_model_tokens);
