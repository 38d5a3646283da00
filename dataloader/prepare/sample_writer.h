/*
sample_writer.h -- writes sample files (sample_file.h), one or several per split, and the task statistics of
prepare_data.
*/
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../../util/status.h"
#include "../sample_file.h"

// Tokens are 2 bytes if vocab <= 65536. A sample that breaks a rule of sample_file.h is refused; the writer
// can continue. After STATUS_IO finish fails as well. Writes FILE.tmp (with tokens in an unnamed file beside
// it until then) and renames it in finish.
typedef struct SampleWriter SampleWriter;
Status sample_writer_open(SampleWriter** out, const char* path, const SampleVocab* vocab);
Status sample_writer_add(SampleWriter* writer, const char* task, const int32_t* input, int32_t n_input,
                         const int32_t* target, int32_t n_target);
Status sample_writer_add_gaps(SampleWriter* writer, const char* task, const int32_t* input, int32_t n_input,
                              const int32_t* target, int32_t n_target, const SampleGap* gaps,
                              int32_t num_gaps);
Status sample_writer_finish(SampleWriter* writer);  // frees it, also on failure
void sample_writer_abort(SampleWriter* writer);     // NULL is allowed

/*
One split of a data set as sample files of bounded length: FOLDER/train.bin or, as soon as a second file is
needed, FOLDER/train_000000.bin, train_000001.bin ... so that the glob FOLDER/train*.bin matches all.

A file begins if the next sample would exceed the limit, and has at least one sample. Finishing removes the
sample files that an earlier run left after the last of these names, because the glob would match them.
*/

typedef struct {
    const char *folder, *split;  // borrowed
    int64_t shard_tokens;        // per file
    SampleVocab vocab;
    int64_t num_samples, num_tokens;  // of all files
    int64_t tokens_in_file;           // of the open file
    int32_t num_files;                // begun
    int32_t num_removed;              // files of earlier runs, set by finish
    SampleWriter* writer;             // NULL: none open
} ShardWriter;

// The first file is opened with the first sample: a split without samples has none.
Status shard_writer_add(ShardWriter* shards, const char* task, const int32_t* input, int32_t n_input,
                        const int32_t* target, int32_t n_target, const SampleGap* gaps, int32_t num_gaps);
Status shard_writer_finish(ShardWriter* shards);

/*
Statistics of each task: its samples, which of them are held out, and their lengths.

Validation split, in two passes over the samples: task_table_count() all of them, then task_table_holds_out().
A sample is held out if the hash of its content is below fraction * 2^64. So the split depends on seed and
content, not on order, file or other samples, and equal samples stay together. Each task of two or more
samples has at least one on each side: the sample of lowest hash is held out if no other is, the one of
highest hash never if all would be.
*/

typedef struct {
    char* name;
    int64_t num_samples;  // counted
    int64_t num_below;    // with a hash below the threshold
    uint64_t lowest_hash, highest_hash;
    int64_t lowest_sample, highest_sample;            // sample numbers; the first if hashes are equal
    int64_t num_lengths, num_tokens, longest_tokens;  // the rest is counted by the caller
    int64_t num_cut, num_skipped;
    int64_t num_texts, num_pieces;  // too long texts and their pieces
} TaskRow;

typedef struct {
    double fraction;  // held out, in [0, 1)
    int32_t num_tasks, capacity;
    TaskRow* rows;
    json_t* by_name;  // numbers of rows
} TaskTable;

void task_table_close(TaskTable* table);
// Row of the task with this name, created if missing.
Status task_table_find(TaskTable* table, const char* name, int32_t* task);
// Pass 1: sample number `sample` (0, 1, 2 ... over all tasks) is in `task`.
void task_table_count(TaskTable* table, int32_t task, uint64_t hash, int64_t sample);
// Pass 2, with the same hash and number.
bool task_table_holds_out(const TaskTable* table, int32_t task, uint64_t hash, int64_t sample);
