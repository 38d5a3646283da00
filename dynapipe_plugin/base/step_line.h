/*
step_line.h -- what a training step was like, in a line of at most 100 columns; how long times and large
numbers are written in lines for people.

    step   12/1000  loss 2.345678  norm 1.2345  lr 3.0e-04  51.2 ms  40.1k tok/s  1.25 GiB  2m10s left
*/
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { STEP_LINE_COLUMNS = 100, STEP_LINE_CHARS = STEP_LINE_COLUMNS + 1 };

typedef struct {
    int32_t step, num_steps;
    double loss, norm, lr;
    double ms, tokens_per_s;
    double mfu;           // model FLOPs of the peak's, a share of 1; 0: the peak is unknown
    double bytes;         // of the fullest rank; 0: unknown
    double seconds_left;  // < 0: unknown
} StepLine;

// What does not fit is left out, from the memory on.
const char* step_line_print(char out[STEP_LINE_CHARS], const StepLine* line);

enum { DURATION_CHARS = 16 };
// "8s", "2m10s", "1h02m", "3d04h"
const char* duration_text(char out[DURATION_CHARS], double seconds);

#ifdef __cplusplus
}
#endif
