/*
sample_writer.h -- writes sample files (sample_file.h): one, or a split of a data set in several; and what
prepare_data counts of each task.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../../util/status.h"
#include "../sample_file.h"

// Tokens are 2 bytes where vocab <= 65536. A sample that breaks a rule of SampleIndex, or has an id outside
// the vocabulary, is refused and not added; the writer can go on. After STATUS_IO finish fails as well.
// Writes FILE.tmp (and keeps tokens in a nameless file beside it until then) and renames it in finish.
typedef struct SampleWriter SampleWriter;
Status sample_writer_open(SampleWriter** out, const char* path, const SampleVocab* vocab);
Status sample_writer_add(SampleWriter* writer, const char* task, const int32_t* input, int32_t n_input,
                         const int32_t* target, int32_t n_target);
Status sample_writer_add_gaps(SampleWriter* writer, const char* task, const int32_t* input, int32_t n_input,
                              const int32_t* target, int32_t n_target, const SampleGap* gaps,
                              int32_t num_gaps);
Status sample_writer_finish(SampleWriter* writer);  // frees it, also on failure
void sample_writer_abort(SampleWriter* writer);     // NULL is fine

/*
One split of a data set as sample files of bounded length: FOLDER/train.bin, or, once a
second file is needed, FOLDER/train_000000.bin, train_000001.bin ... so that the glob FOLDER/train*.bin finds
them all.

A sample is never cut: a file begins where the next sample would exceed the limit, and has one sample at
least. Finishing removes sample files that an earlier run left under these names and this one did not write,
since the glob would mix them in.
*/

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

/*
What prepare_data knows of each task: its samples, which of them are held out, and their
lengths.

Validation split, in two passes over the samples: task_table_count() all of them, then ask
task_table_holds_out(). A sample is held out where the hash of its content lies below fraction * 2^64: so the
split depends on the seed and the content alone, not on order, file or other samples, and equal samples stay
together. Besides, each task of two or more samples has at least one on either side: the sample of lowest hash
is always held out where none else would be, the one of highest hash never where all would be.

Lengths go into a histogram of bounded memory: exact below 1024, then 64 steps an octave (quantiles 1.6 % low
at most).
*/

enum {
    TASK_TABLE_EXACT = 1024,
    TASK_TABLE_STEPS = 64,
    TASK_TABLE_BINS = TASK_TABLE_EXACT + 21 * TASK_TABLE_STEPS
};

typedef struct {
    char* name;           // NUL-terminated
    int64_t num_samples;  // counted
    int64_t num_below;    // of them with a hash below the threshold
    uint64_t lowest_hash, highest_hash;
    int64_t lowest_sample,
        highest_sample;  // their number, in order of counting; the first where hashes are equal
    int64_t num_lengths, num_tokens, longest_tokens;  // added
    int64_t num_cut, num_skipped;                     // for whoever counts them
    int64_t num_texts, num_pieces;                    // texts that are too long, and their pieces; the same
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
void task_table_close(TaskTable* table);  // an all-zero table is fine

// Row of the task with this name, made at need; STATUS_OUT_OF_RANGE beyond max_tasks.
Status task_table_find(TaskTable* table, const char* name, size_t name_bytes, int32_t* task);

// Pass 1: sample number `sample` (0, 1, 2 ... over all tasks) belongs to `task`.
void task_table_count(TaskTable* table, int32_t task, uint64_t hash, int64_t sample);
// Pass 2, with the same hash and number.
bool task_table_holds_out(const TaskTable* table, int32_t task, uint64_t hash, int64_t sample);

void task_table_add_length(TaskTable* table, int32_t task, int64_t tokens);
// Smallest length that a `quantile` (0 ... 1) of the row's samples does not exceed; 0 without samples.
int64_t task_table_quantile(const TaskRow* row, double quantile);
