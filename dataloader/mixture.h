/*
mixture.h -- from which task the next sample comes.

Shares: examples-proportional min(n, cap), as Raffel et al. (T5, JMLR 2020, section 3.5.2), that to the power
of 1 / temperature, or given weights. Draws follow a low-discrepancy sequence instead of dice: draw k looks at
the fraction of (start + k * golden ratio) (a Kronecker sequence: Niederreiter 1992, chapter 3), so that after
any number of draws every task has had its share to within a few samples, and a position is one number.
*/
#pragma once

#include <stdint.h>
#include "../util/status.h"
#include "loader.h"

typedef struct {
    int32_t num_tasks;
    uint64_t* upto;  // [num_tasks] sum of the shares of tasks 0 ... k; at least 1, below 2^32
} Mixture;

// Weights are "task=2,other=0.5". Names need no quoting: they are looked for among the data's, the longest
// that fits first, so they may have "=" and "," in them. One with control characters or broken UTF-8 may be
// written as it is printed (\x1b).
//
// num_samples[k] can be drawn from task k; a task without samples has no share. Messages name the option of
// the trainer and the task.
Status mixture_create(Mixture* out, const LoaderOptions* options, int32_t num_tasks,
                      const char* const* task_names, const int64_t* num_samples);
void mixture_free(Mixture* mixture);  // an all-zero one is fine

uint64_t mixture_start(uint64_t seed);
int32_t mixture_task(const Mixture* mixture, uint64_t point);  // the task that a point stands for
uint64_t mixture_next(uint64_t point);
