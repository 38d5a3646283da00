/*
save_interval.h -- how often a run saves: "100" (steps), "90s", "10m" or "2h" (wall clock), "0" (at its end
only). Written once for everybody's -n and --checkpoint-every.
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

// Where nothing is said: what a run that is killed loses, at most. A save of a large model takes a minute.
#define SAVE_INTERVAL_USUAL "10m"

typedef struct {
    int32_t steps;    // 0: not by steps
    int32_t seconds;  // 0: not by time
} SaveInterval;

// `option`: its name, for the message. STATUS_BAD_OPTION.
Status save_interval_parse(SaveInterval* out, const char* option, const char* text);
// Is it time, after step `step`, so many seconds after the last save (or the begin)?
bool save_interval_is_due(const SaveInterval* every, int32_t step, double seconds);

#ifdef __cplusplus
}
#endif
