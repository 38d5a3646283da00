/*
session_noise.h -- the noise that plans of a run are chosen for (--robust): given, or measured and agreed on.

Planning runs ahead in a thread of its own and every rank must make the same plans. So with --robust auto
    1. every rank measures its own jobs in steps 3 to 10 after the start (trace_noise.h)
    2. after step 10 the ranks take the mean of what they measured, on the scale of session_noise_round
    3. plans use it from the first step on that nobody can have planned by then: `first_step`, which is known
       from the start
With --plan-before there is no such step. A checkpoint keeps what was agreed on, so that a resumed run makes
the plans that the whole run would have made; where it was saved earlier, the resumed run measures anew.
What is measured differs from run to run, and so may the plans: a fixed --robust X makes runs repeatable.
*/
#pragma once

#include "trace_noise.h"

enum {
    SESSION_NOISE_BEGIN = 2,  // steps before are left out: buffers grow, caches are cold
    SESSION_NOISE_END = 10,
    SESSION_NOISE_ON_PERMILLE = 50,    // --robust on
    SESSION_NOISE_MOST_PERMILLE = 500  // --robust X
};

typedef struct {
    bool is_auto;
    bool is_known;       // given, restored or agreed on
    int32_t permille;    // read by the planning thread for steps >= first_step only
    int32_t first_step;  // plans from this step on (counted from 0) use it
    int32_t num_steps;   // run since the start
    TraceNoise measured;
    uint8_t* position;  // of the loader and SessionNoiseRecord, for a checkpoint
} SessionNoise;

// Behind the loader's position in a checkpoint, where noise was agreed on.
typedef struct {
    char magic[8];
    int32_t permille, first_step;
} SessionNoiseRecord;

// "auto", "on", "off" or a number such as 0.05.
Status session_noise_parse(SessionNoise* out, const char* text);
// The next of 0, 10, 20, 50, 100, 200 permille: coarse, so that runs seldom differ; and no more, since what
// lies beyond says that the costs are wrong or cores are shared.
int32_t session_noise_round(double deviation);
// Before planning of step `next_step` begins, `num_ahead` steps ahead.
void session_noise_start(SessionNoise* noise, int32_t next_step, int32_t num_ahead);
// What the plan of a step (counted from 0) is chosen for.
int32_t session_noise_permille(const SessionNoise* noise, int64_t step);

// A checkpoint's record; *num_bytes becomes what is the loader's.
void session_noise_restore(SessionNoise* noise, const void* position, size_t* num_bytes);
// The loader's position with the record behind it, if there is anything to record.
Status session_noise_position(SessionNoise* noise, const void** position, size_t* num_bytes);
void session_noise_free(SessionNoise* noise);
