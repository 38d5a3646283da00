/*
step_line.h -- what a training step was like, in a line of at most 100 columns; how times and numbers of
bytes are written in lines for people. (In tables whose columns are compared the unit stands above them.)

    step   12/1000  loss 2.345678  norm 1.2345  lr 3.0e-04  51.20 ms  40.1k tok/s  1.25 GiB  2m10s left
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

// Where it gets too long: fewer digits, then one space between the fields; then the memory is left out, and
// what is behind the 100th column.
const char* step_line_print(char out[STEP_LINE_CHARS], const StepLine* line);

enum { DURATION_CHARS = 16 };
// "8s", "2m10s", "1h02m", "3d04h"
const char* duration_text(char out[DURATION_CHARS], double seconds);

enum { TIME_CHARS = 24 };
// "51.2 ms" of 3 digits, "51.20 ms" of 4: ms below a second, s from there on.
const char* time_text(char out[TIME_CHARS], double ns, int digits);
#define TIME_TEXT(ns, digits) time_text((char[TIME_CHARS]){0}, (double)(ns), (digits))  // C only

enum { BYTES_CHARS = 24 };
// "41.3 GiB", "0.25 GiB", below a tenth of one "51.2 MiB", then "3.50 KiB", then "12 B".
const char* bytes_text(char out[BYTES_CHARS], double num_bytes);
#define BYTES_TEXT(num_bytes) bytes_text((char[BYTES_CHARS]){0}, (double)(num_bytes))  // C only

#ifdef __cplusplus
}
#endif
