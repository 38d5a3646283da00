/*
sample_writer.h -- writes sample files (sample_file.h), one or several per split, and the task statistics of
prepare_data.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../../util/status.h"
#include "../sample_file.h"

// Tokens are 2 bytes if vocab <= 65536. A sample that breaks a rule of SampleIndex or has an id outside the
// vocabulary is refused; the writer can continue. After STATUS_IO finish fails as well. Writes FILE.tmp
// (with tokens in an unnamed file beside it until then) and renames it in finish.
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

A file begins if the next sample would exceed the limit, and has at least one sample. Finishing removes sample
files of an earlier run with such names that this one did not write, because the glob would match them.
*/

typedef struct {
    const char *folder, *split;  // borrowed
    int64_t shard_tokens;        // per file
    SampleVocab vocab;
    int64_t num_samples, num_tokens;  // of all files
    int64_t tokens_in_file;           // of the open file
    int32_t num_files;                // closed ones; after finish: all
    int32_t num_removed;              // files of earlier runs, set by finish
    SampleWriter* writer;             // NULL: none open
} ShardWriter;

// The first file is opened with the first sample: a split without samples has none.
void shard_writer_init(ShardWriter* shards, const char* folder, const char* split, int64_t shard_tokens,
                       const SampleVocab* vocab);
Status shard_writer_add(ShardWriter* shards, const char* task, const int32_t* input, int32_t n_input,
                        const int32_t* target, int32_t n_target, const SampleGap* gaps, int32_t num_gaps);
Status shard_writer_finish(ShardWriter* shards);
void shard_writer_abort(ShardWriter* shards);  // removes the open file; an all-zero writer is allowed

/*
Statistics of each task: its samples, which of them are held out, and their lengths.

Validation split, in two passes over the samples: task_table_count() all of them, then task_table_holds_out().
A sample is held out if the hash of its content is below fraction * 2^64. So the split depends on seed and
content, not on order, file or other samples, and equal samples stay together. Each task of two or more
samples has at least one on each side: the sample of lowest hash is held out if no other is, the one of
highest hash never if all would be.

Lengths are counted in a histogram of bounded memory: exact below 1024, then 64 steps per octave (quantiles at
most 1.6 % low).
*/

enum {
    TASK_TABLE_EXACT = 1024,
    TASK_TABLE_STEPS = 64,
    TASK_TABLE_BINS = TASK_TABLE_EXACT + 21 * TASK_TABLE_STEPS
};

typedef struct {
    char* name;           // NUL-terminated
    int64_t num_samples;  // counted
    int64_t num_below;    // with a hash below the threshold
    uint64_t lowest_hash, highest_hash;
    int64_t lowest_sample,
        highest_sample;                               // sample numbers; the first if hashes are equal
    int64_t num_lengths, num_tokens, longest_tokens;  // added
    int64_t num_cut, num_skipped;                     // set by the caller
    int64_t num_texts, num_pieces;                    // too long texts and their pieces; set by the caller
    uint32_t* histogram;                              // [TASK_TABLE_BINS]
} TaskRow;

typedef struct {
    int32_t num_tasks, capacity;
    int32_t max_tasks;
    TaskRow* rows;
    int32_t* slots;  // rows by name, linear probing; -1: free
    uint32_t slot_mask;
    double fraction;     // 0: nothing is held out
    uint64_t threshold;  // fraction * 2^64
} TaskTable;

// fraction in [0, 1). On failure there is nothing to free.
Status task_table_open(TaskTable* table, double fraction, int32_t max_tasks);
void task_table_close(TaskTable* table);  // an all-zero table is allowed

// Row of the task with this name, created if missing; STATUS_OUT_OF_RANGE beyond max_tasks.
Status task_table_find(TaskTable* table, const char* name, size_t name_bytes, int32_t* task);

// Pass 1: sample number `sample` (0, 1, 2 ... over all tasks) is in `task`.
void task_table_count(TaskTable* table, int32_t task, uint64_t hash, int64_t sample);
// Pass 2, with the same hash and number.
bool task_table_holds_out(const TaskTable* table, int32_t task, uint64_t hash, int64_t sample);

void task_table_add_length(TaskTable* table, int32_t task, int64_t tokens);
// Smallest length that a `quantile` (0 ... 1) of the row's samples does not exceed; 0 without samples.
int64_t task_table_quantile(const TaskRow* row, double quantile);
