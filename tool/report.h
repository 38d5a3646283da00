/*
report.h -- training runs as one HTML page: losses, speed, padding, idle time, predictions, memory, planning.

C reads what the runs logged and writes it as JSON into the page; tool/report.html draws it, without a
network.
    {"kind":"run","command":..,"commit":..,"model":..,"machine":..,"options":{..},"step":N}   each start, at N
    {"step":N,"loss":..,"task_loss":{..},..}                                                  each step
    {"kind":"validation","step":N,"loss":..,"tasks":{..}}, or {"validation":N,"loss":..,"task_loss":{..}},
        both with exact_match and rouge_l by task where there were answers
    {"refit":N,..}                                             measured steps corrected the costs
Validation losses come from main.log beside metrics.jsonl where no record has them.

A run that went back to a checkpoint has steps twice; the later ones count. A value that is missing, NaN or no
number is null in the page. A last line that was cut off is left out and mentioned.
*/
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "trace_view.h"

enum { REPORT_MAX_RUNS = 8 };

// One run, as the page takes it (a new reference): metrics.jsonl, or the folder that it lies in. steps rise.
// STATUS_BAD_FORMAT names file and line.
//     name, cut_line (0: none), about {command, commit, model, machine, options}, resumes [step], refits
//     [step] steps [[step, values of `columns` .., {task: loss}]], columns [key], tasks {name: true},
//     num_ranks validations [[step, loss, {task: loss}, {task: exact match}, {task: ROUGE-L}]]
Status report_run_load(json_t** run, const char* path_or_folder);
// The value of a step's record; NAN: unknown.
double report_run_value(const json_t* run, size_t step_idx, const char* key);

// `trace`: one step of the first run explained, or NULL.
void report_print(FILE* out, const json_t* runs, const TraceReplay* trace);
