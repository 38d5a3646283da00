/*
session_options.h -- the plugin's command line: one table for parsing, ranges, defaults and --help.
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "../../util/status.h"

typedef enum { TRANSPORT_CHOICE_AUTO, TRANSPORT_CHOICE_NCCL, TRANSPORT_CHOICE_MPI } TransportChoice;

typedef enum { REFIT_AUTO, REFIT_OFF } RefitChoice;

typedef enum { MEASURE_AUTO, MEASURE_AGAIN } MeasureChoice;

typedef struct {
    // layout of ranks
    int32_t stages, replicas;
    const char* stage_split;       // "4,4,3,1": layers per stage
    const char *placement, *head;  // as placement_words.h; NULL: auto
    // planning
    int32_t batching, layout, schedule, recompute, split_backward;
    int64_t memory_limit_bytes;
    const char* costs;
    int32_t measure;  // MeasureChoice
    double measure_seconds;
    int32_t effort, plan_ahead;
    bool plan_before;
    int32_t mb_tokens;
    int32_t refit;  // RefitChoice
    const char* resplit;
    // data
    int32_t long_samples, loss_on, mixture;
    int32_t span_corruption;
    double noise_density, mean_noise_span;
    int32_t sentinel_first, sentinel_step;
    int64_t mixture_cap;
    double temperature;
    const char* weights;
    int64_t seed;
    // runtime
    int32_t threads, comm_timeout_s;
    int32_t transport;  // TransportChoice
    int32_t progress;   // ProgressChoice
    bool check;
    // looking inside
    const char *trace, *dump_plan, *dump_gradients;
    int32_t show_step;
    bool print_plan;
    bool quiet, verbose;
} SessionOptions;

// own: the program's own --options, as options_take.
Status session_options_take(SessionOptions* out, int* argc, char** argv, const char* const* own);
void session_options_print(FILE* out);
// A string option's value by name; NULL if not given or no such option.
const char* session_options_string(const SessionOptions* options, const char* name);
// All of them, as lines of settings.h.
void session_options_all(const SessionOptions* options, FILE* out);
// Those that say what is learned from what, in which order: lines of settings.h. Where and how it is computed
// may change on the way.
void session_options_settings(const SessionOptions* options, FILE* out);
