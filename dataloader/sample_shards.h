/*
sample_shards.h -- the files that match a glob as one body of samples, in the order of their names.

All files agree in vocabulary, end-of-text token and tokenizer. Tasks are united by name and numbered as they
first appear. A sample's id counts through all files.
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "../dynapipe_plugin/base/status.h"
#include "sample_file.h"

typedef struct {
    int32_t num_files;
    SampleFile* files;
    int64_t* first_sample;  // [num_files + 1] id of each file's first sample; last: their number
    int32_t num_tasks;
    const char** task_names;  // [num_tasks]; into the files
    int32_t** task_of;        // [num_files][tasks of that file] number among the united tasks
} SampleShards;

// cut_tokens > 0: llm.c documents are cut as llmc_tokens_cut says. tokens_only: no samples, see
// sample_file_open_tokens. A pattern that matches nothing is STATUS_IO.
Status sample_shards_open(SampleShards* out, const char* pattern, int32_t cut_tokens, bool tokens_only);
void sample_shards_close(SampleShards* shards);  // all-zero ones are fine

// File of a sample, id in [0, first_sample[num_files]).
int32_t sample_shards_file(const SampleShards* shards, int64_t id);
