/*
tasks.h -- learnable made-up tasks, for `make run` and tests: one function per task writes one sample.

Lengths are FLAN-like: most samples have 10-60 bytes; documents and long lists have a tail in which twice the
length is half as likely (Pareto, exponent 1), cut at the limit. Targets are short and of a small alphabet, so
that a small model with the bytes tokenizer shows falling loss within a hundred steps. Integers only: a seed
gives the same bytes everywhere.
*/
#pragma once

#include <stdint.h>
#include "../util/numbers.h"

// A growing text, NUL-terminated; all zero is empty. Ends the program where memory is out.
typedef struct {
    char* text;
    int32_t num_bytes, capacity;
} TaskText;

void task_text_add(TaskText* text, const char* format, ...) __attribute__((format(printf, 2, 3)));
void task_text_clear(TaskText* text);
void task_text_free(TaskText* text);

typedef struct {
    TaskText inputs, targets;
} TaskSample;

typedef struct {
    const char* name;
    int32_t share;  // weight among all tasks
    // Write a sample of at most max_bytes (>= TASK_MIN_BYTES), inputs and targets together.
    void (*make)(TaskSample* out, Rng* rng, int32_t max_bytes);
} TaskSpec;

enum { TASK_MIN_BYTES = 120, NUM_TASK_NAMES = 16 };

extern const TaskSpec task_short_specs[];  // tasks_short.c
extern const int task_num_short_specs;
extern const TaskSpec task_long_specs[];  // tasks_long.c
extern const int task_num_long_specs;
extern const TaskSpec task_easy_specs[];  // tasks_easy.c
extern const int task_num_easy_specs;

// A number >= base with a heavy tail: within [base, 2 base) half of the time, [2 base, 4 base) a quarter,
// ..., at most `limit`.
int32_t task_tail(Rng* rng, int32_t base, int32_t limit);

// `count` different numbers of 0 ... n - 1 in random order; n <= 64.
void task_draw_distinct(Rng* rng, int32_t n, int32_t count, int32_t* out);

extern const char* const task_names[NUM_TASK_NAMES];  // of people
