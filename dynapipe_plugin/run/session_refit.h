/*
session_refit.h -- what steps that ran say of the costs, agreed on by the ranks, used by plans from a fixed
later step on (--refit).

Planning runs ahead in a thread of its own and every rank must make the same plans. So
    1. every rank notes the jobs and sends of its steps (trace_jobs.h, trace_links.h); not of the first step
       after the start, a restore or a move of layers
    2. after steps 4, 8, 12, .. of the run all agree on factors of the cost model's terms, of each rank and
       kind of job, and of each link (refit_solve.h): a version
    3. plans use a version from the first step on that nobody can have planned by then
With --plan-before there is no such step: nothing is measured.

A checkpoint keeps versions and sums, so that a resumed run plans as the whole one, up to the first plan that
uses what both agree on later, each from its own steps; what the whole run had noted since the last agreement
the resumed one has not. To save changes nothing for the run that goes on, however often it does. What is
measured differs from run to run, and so may the plans: --refit off plans from the cost file alone.
*/
#pragma once

#include <pthread.h>

#include "../dynapipe.h"
#include "../plan/cost/refit_solve.h"
#include "collective.h"
#include "trace.h"

enum { SESSION_REFIT_EVERY = 4 };

// Times as long as the cost file and its machine say, in steps of 1 / SCALE_ONE.
typedef struct {
    RefitRank jobs;
    double link, link_seen;  // of the link behind the rank: for plans; by the last steps (0: nothing seen)
} RefitOfRank;

typedef struct {
    int32_t agreed;      // after so many steps of the run
    int32_t first_step;  // of the plans that use it, counted from 0
    CostScale scale;
    RefitOfRank* ranks;  // [num_ranks]
} RefitVersion;

// A version as plans take it.
typedef struct {
    int32_t agreed;
    CostModel costs;
    MachineRank* ranks;  // [num_ranks]
    Machine machine;     // of no ranks, where there is nothing to say of them
} RefitModel;

// What was said last, in how many times as long.
enum { REFIT_WORDS = 4 };  // embedding, layers, attention, head

typedef struct {
    bool is_on;
    int32_t rank, num_ranks, num_ahead;
    uint64_t base;           // hash of the costs and the machine that factors are of; 0: of any
    const CostModel* costs;  // borrowed
    const Machine* machine;  // borrowed; NULL: all ranks are alike
    bool skips;              // the next step is not measured
    TraceJobs jobs;
    TraceLinks links;
    RefitSums history[SIDE_COUNT];  // of all ranks, the same on all
    pthread_mutex_t lock;           // of versions: the planning thread reads them
    RefitVersion* versions;         // [num_versions] rising
    int32_t num_versions;
    RefitModel *planned, *now;  // of the planning thread, of the steps' thread
    double said_words[REFIT_WORDS];
    double* said_ranks;  // [num_ranks]
    uint8_t* position;   // of the loader and the record, for a checkpoint
} SessionRefit;

void session_refit_init(SessionRefit* refit, bool is_on);
void session_refit_free(SessionRefit* refit);
// What was agreed on so far; while nobody plans.
void session_refit_forget(SessionRefit* refit);

// Models of versions go; session_refit_start() makes new ones.
void session_refit_unplan(SessionRefit* refit);

// Before the first step is planned, num_ahead steps ahead. Versions of another number of ranks keep what they
// say of terms; of other costs nothing.
Status session_refit_start(SessionRefit* refit, const CostModel* costs, const Machine* machine, int32_t rank,
                           int32_t num_ranks, int32_t num_ahead);

// A step of this rank. knows_when: as trace_links_add() has it.
Status session_refit_note(SessionRefit* refit, const Plan* plan, const TraceRank* trace, bool knows_when);
// After so many steps of the run: a collective where they agree.
Status session_refit_agree(SessionRefit* refit, Collective* world, int32_t steps_done);
// Nothing is planned from this step on: plans of it use what is known now. On all ranks alike.
void session_refit_hasten(SessionRefit* refit, int32_t step_idx);

// For the planning thread, until it asks again: what the plan of a step (counted from 0) is made with.
// Returns after how many steps that was agreed on; 0: it is the cost file alone.
int32_t session_refit_costs(SessionRefit* refit, int64_t step_idx, const CostModel** costs,
                            const Machine** machine);

// --- of a session ---
int32_t session_refit_plan_with(Dynapipe* dp, int64_t step_idx, const CostModel** costs,
                                const Machine** machine);
// Between two steps, on all ranks alike: what was agreed on last; true: in the step just run, else both are
// as they were. Valid until the next step.
bool session_refit_now(Dynapipe* dp, const CostModel** costs, const Machine** machine);

// session_refit_record.c
// A checkpoint's record; *num_bytes becomes what is the loader's.
Status session_refit_restore(SessionRefit* refit, const void* position, size_t* num_bytes);
// The loader's position with the record behind it, if there is anything to record.
Status session_refit_position(SessionRefit* refit, const void** position, size_t* num_bytes);

// session_refit_say.c
// A line for what has changed by more than 5 % since the last. `sums`: what terms took by the cost file.
void session_refit_say(SessionRefit* refit, const RefitVersion* version, const RefitSums sums[SIDE_COUNT],
                       FILE* out);
// The record of metrics.jsonl about the last version, for the caller to free; NULL: no memory.
char* session_refit_json(const SessionRefit* refit);
