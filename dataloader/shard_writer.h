/*
shard_writer.h -- one split of a data set as sample files of bounded length: FOLDER/train.bin, or, once a
second file is needed, FOLDER/train_000000.bin, train_000001.bin ... so that the glob FOLDER/train*.bin finds
them all.

A sample is never cut: a file begins where the next sample would exceed the limit, and has one sample at
least. Finishing removes sample files that an earlier run left under these names and this one did not write,
since the glob would mix them in.
*/
#pragma once

#include <stdint.h>
#include "../util/status.h"
#include "sample_file.h"

typedef struct {
    const char *folder, *split;  // borrowed
    int64_t shard_tokens;        // limit of a file
    SampleVocab vocab;
    int64_t num_samples, num_tokens;  // of all files
    int64_t tokens_in_file;           // of the open one
    int32_t num_files;                // closed ones; after finish: all
    int32_t num_removed;              // files of earlier runs, by finish
    SampleWriter* writer;             // NULL: none open
} ShardWriter;

// Opens no file before the first sample: a split without samples writes none.
void shard_writer_init(ShardWriter* shards, const char* folder, const char* split, int64_t shard_tokens,
                       const SampleVocab* vocab);
Status shard_writer_add(ShardWriter* shards, const char* task, const int32_t* input, int32_t n_input,
                        const int32_t* target, int32_t n_target, const SampleGap* gaps, int32_t num_gaps);
Status shard_writer_finish(ShardWriter* shards);
void shard_writer_abort(ShardWriter* shards);  // drops the open file; an all-zero writer is fine
