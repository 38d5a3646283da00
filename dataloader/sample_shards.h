/*
sample_shards.h -- the files that match a glob as one body of samples, in the order of their names. (Without
tokenizer.bin, which prepare_data puts beside them.)

All files agree in vocabulary, end-of-text token and tokenizer. Tasks are united by name and numbered as they
first appear. A sample's id counts through all files.
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "../util/status.h"
#include "sample_file.h"

typedef struct {
    int32_t num_files;
    SampleFile* files;
    int64_t* first_sample;  // [num_files + 1] id of each file's first sample; last: their number
    int32_t num_tasks;
    const char** task_names;  // [num_tasks]; into the files
    int32_t** task_of;        // [num_files][tasks of that file] number among the united tasks
    const SampleFile* known;  // the first whose vocabulary's hash is known; else the first
} SampleShards;

// cut_tokens > 0: texts are cut into pieces, as llmc_tokens_cut and text_cut say. tokens_only: no samples,
// see sample_file_open_tokens. A pattern that matches nothing is STATUS_IO.
Status sample_shards_open(SampleShards* out, const char* pattern, int32_t cut_tokens, bool tokens_only);
// The first of the files that it would open, malloc'ed; a name that is no pattern stands for itself.
Status sample_shards_first_path(char** out, const char* pattern);
void sample_shards_close(SampleShards* shards);  // all-zero ones are fine

// Were both made with one tokenizer, as far as the files say? STATUS_MISMATCH names a file of each.
Status sample_shards_check_vocab(const SampleShards* a, const SampleShards* b);

// The content_ids of all files, in order, to be kept with what depends on them: 8 bytes each, any alignment.
void sample_shards_write_contents(const SampleShards* shards, void* ids);
// Are the contents still those that were kept? STATUS_MISMATCH names the file that is another one. An id of
// 0, kept or now, is not known.
Status sample_shards_check_contents(const SampleShards* shards, const void* ids, int64_t num_ids);

// File of a sample, id in [0, first_sample[num_files]).
int32_t sample_shards_file(const SampleShards* shards, int64_t id);
