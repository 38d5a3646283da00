/*
report.h -- training runs as one HTML page: losses, speed, padding, idle time, predictions, memory, planning.

C reads what the runs logged and writes it as JSON into the page; tool/report.html draws it, without a
network.
    {"kind":"run","command":..,"commit":..,"model":..,"machine":..,"options":{..},"step":N}   each start, at N
    {"step":N,"loss":..,"task_loss":{..},..}                                                  each step
    {"validation":N,"loss":..,"task_loss":{..}}   with exact_match and rouge_l by task where there were
answers
    {"refit":N,..}                                             ranks take other times than predicted

A resumed run has some steps twice; the later ones count. Missing or non-numeric values become null. A
truncated last line is ignored and reported.
*/
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "../util/status.h"

enum { REPORT_MAX_RUNS = 8 };

// One run as an object for the page (a new reference), from metrics.jsonl or its folder. Steps ascend.
// STATUS_BAD_FORMAT names file and line.
//     name, cut_line (0: none), about {command, commit, model, machine, options}, resumes [step],
//     refits [step], steps [[step, values of `columns` .., {task: loss}]], columns [key], tasks {name: true},
//     validations [[step, loss, {task: loss}, {task: exact match}, {task: ROUGE-L}]]
Status report_run_load(json_t** run, const char* path_or_folder);

void report_print(FILE* out, const json_t* runs);
