/*
lr_schedule.h -- llm.c's learning rates over the steps of a run.

    warm-up, s < u:   peak (s + 1) / u                              (not for constant)
    cosine            q peak + (1 + cos(pi x)) / 2 (1 - q) peak     x = (s - u) / (steps - u)
    linear            peak - x (1 - q) peak
    constant          peak
    wsd               peak up to 80 % of the steps, then q peak + (1 - sqrt(x)) (1 - q) peak   x: from there
to the end
*/
#pragma once

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { LR_COSINE, LR_LINEAR, LR_CONSTANT, LR_WSD, LR_NUM_KINDS } LrKind;

typedef struct {
    LrKind kind;
    float peak;            // -l
    int warmup_steps;      // -u
    int num_steps;         // -x
    float final_fraction;  // -q: the last rate over the peak
} LrSchedule;

// "cosine" | "linear" | "constant" | "wsd"; false: `error` (256 characters) lists them.
bool lr_schedule_parse(LrKind* out, const char* name, char* error);

// The rate of step s = 0, 1, ...; steps behind the last have the last's.
float lr_schedule_at(const LrSchedule* schedule, int step);

#ifdef __cplusplus
}
#endif
