/*
prepare_report.h -- what prepare_data says: bad records, progress, each file's form, a table of tasks.
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "../records/record_form.h"
#include "../shard_writer.h"
#include "../task_table.h"

typedef struct {
    bool quiet;       // no form, no progress, no bad record but in sum
    int64_t num_bad;  // records
    int32_t num_files;
    int64_t total_bytes, done_bytes;  // of this pass
    int64_t start_ns, begin_ns, shown_ns;
    bool progress_shown;
} PrepareReport;

void prepare_report_begin_pass(PrepareReport* report, int64_t total_bytes);

// On a terminal one line that renews itself; in a log a line every 10 seconds; nothing on short work.
void prepare_report_progress(PrepareReport* report, const char* what, int64_t bytes_of_file);
void prepare_report_end_line(PrepareReport* report);

// Counts it; the first are shown, with the last status message.
void prepare_report_bad(PrepareReport* report);

// "train.jsonl: 52,002 records, Alpaca (instruction, input -> output)"; of_form[RECORD_FORMS].
void prepare_report_file(PrepareReport* report, const char* path, const RecordFields* fields,
                         const int64_t* of_form, int64_t num_bad);

// Lengths in tokens that run through the model, as -t has them.
void prepare_report_tasks(const PrepareReport* report, TaskTable* tasks);  // sorts them by name
void prepare_report_cuts(const TaskTable* tasks, int32_t max_tokens, const char* way);
void prepare_report_end(const PrepareReport* report, const char* folder, const ShardWriter* train,
                        const ShardWriter* val);
void prepare_report_skipped(const PrepareReport* report, const TaskTable* tasks,
                            int32_t max_tokens);                                // when quiet
void prepare_report_folders(const PrepareReport* report, int32_t num_folders);  // passed over
void prepare_report_foreign(const PrepareReport* report, const char* folder, const char* file);
