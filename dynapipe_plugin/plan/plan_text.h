/*
plan_text.h -- plans as text and as timelines.

One row of an ASCII timeline, fed with jobs in the order of time.

    stage 0 |aabbccdd............AAAAeeBBBBffCCCC..DDDD..EEEE..FFFF| idle 33 %

One column is makespan / width; it shows the job that runs at its middle. Letter = micro-batch: lower case
forward, upper case backward; + weight gradients, ~ forward again, . idle. Where a stage has several chunks or
a share of the head, a row below shows which one runs:

            |000000111111            111100                        |
*/
#pragma once

#include <stdio.h>
#include "plan.h"
#include "types.h"

#define TIMELINE_LEGEND \
    "letter = micro-batch: a forward, A backward, + weight gradients, ~ forward again, . idle"

#define TIMELINE_CHUNKS ";\nbelow it the chunk, 0 to 9, a to z, * its share of the head"

typedef struct {
    FILE* out;
    int32_t width, column;
    int64_t makespan_ns, busy_ns;
} TimelineRow;

// Prints "stage s |".
void timeline_row_open(TimelineRow* row, int32_t s, int64_t makespan_ns, int32_t width, FILE* out);
void timeline_row_add(TimelineRow* row, JobKind kind, int32_t mb, int64_t begin_ns, int64_t end_ns);
void timeline_row_close(TimelineRow* row);

// The row below that of stage s; same columns.
void timeline_row_open_chunks(TimelineRow* row, int32_t s, int64_t makespan_ns, int32_t width, FILE* out);
void timeline_row_add_chunk(TimelineRow* row, int32_t chunk, bool is_share, int64_t begin_ns, int64_t end_ns);
void timeline_row_close_chunks(TimelineRow* row);

// --- words of the text form --------------------------------------------------------------------------

// The words of a plan's text form, for printing and parsing.

#define PLAN_MAGIC "dynapipe-plan 2"

extern const char* const plan_instr_words[INSTR_COUNT];
extern const char* const plan_buffer_words[BUFFER_COUNT];
extern const char* const plan_head_words[HEAD_COUNT];
extern const char* const plan_layout_words[LAYOUT_COUNT];
extern const char* const plan_recompute_words[RECOMPUTE_COUNT];

static inline bool plan_instr_is_job(InstrKind kind) {
    return kind <= INSTR_REC;
}

// The job kind of a job instruction.
JobKind plan_instr_job(InstrKind kind);

// Characters that names of policies may have: a-z 0-9 _ - + . ; not empty, shorter than the field.
bool plan_name_is_valid(const char* name);
