#include "search_lean.h"
#include "../simulate.h"

#include <string.h>

#include "../schedule.h"

enum { STEPS = 64 };

typedef struct {
    SearchState* state;
    int64_t most_ns;
    int64_t least_bytes[PLAN_MAX_STAGES];  // the largest micro-batch alone
    int64_t peak_bytes[PLAN_MAX_STAGES];   // held so far
    int64_t* budget;
    Arena* scratch;
} Lean;

static Status measure(int64_t peak_bytes[PLAN_MAX_STAGES], int64_t* sum_bytes, const Lean* lean) {
    const SearchState* state = lean->state;
    PipeSchedule schedule;
    PipeTimeline timeline;
    arena_reset(lean->scratch);
    PipeProblem pipe = search_state_pipe(state);
    TRY(pipe_adaptive_build(&schedule, &pipe, state->order, &state->rule, lean->scratch));
    TRY(pipe_simulate(&timeline, &pipe, &schedule, lean->scratch));
    memcpy(peak_bytes, timeline.peak_bytes, sizeof timeline.peak_bytes);
    *sum_bytes = 0;
    for (int32_t s = 0; s < state->P; s++) { *sum_bytes += peak_bytes[s]; }
    return STATUS_OK;
}

static void set_limit(Lean* lean, int32_t s, int32_t step) {
    int64_t least_bytes = lean->least_bytes[s], most_bytes = lean->peak_bytes[s];
    int64_t more_bytes = most_bytes > least_bytes ? (most_bytes - least_bytes) / STEPS * step : 0;
    lean->state->rule.most_bytes[s] = least_bytes + more_bytes + 1;
}

// The lowest step at which stages [begin, end) are fast enough, above it what they had.
static Status lower(Lean* lean, int32_t begin, int32_t end) {
    SearchState* state = lean->state;
    PipeAdaptiveRule good = state->rule;
    for (int32_t low = 0, high = STEPS - 1; low <= high && *lean->budget > 0;) {
        int32_t step = (low + high) / 2;
        int64_t makespan_ns;
        for (int32_t s = begin; s < end; s++) { set_limit(lean, s, step); }
        TRY(search_state_simulate(&makespan_ns, state, lean->most_ns, lean->budget, lean->scratch));
        if (makespan_ns <= lean->most_ns) {
            good = state->rule;
            state->makespan_ns = makespan_ns;
            high = step - 1;
        } else {
            low = step + 1;
        }
    }
    state->rule = good;
    return STATUS_OK;
}

Status search_lean(SearchState* state, int64_t most_ns, int64_t* budget, Arena* scratch) {
    Lean lean = {.state = state, .most_ns = most_ns, .budget = budget, .scratch = scratch};
    const PipeAdaptiveRule before = state->rule;
    const int64_t before_ns = state->makespan_ns;
    int64_t before_bytes, after_bytes;
    if (state->N == 0 || before_ns > most_ns) { return STATUS_OK; }
    PipeProblem pipe = search_state_pipe(state);
    TRY(measure(lean.peak_bytes, &before_bytes, &lean));
    for (int32_t s = 0; s < state->P; s++) {
        for (int32_t m = 0; m < state->M; m++) {
            int64_t alone_bytes = pipe_alone_bytes(&pipe, s, m);
            if (alone_bytes > lean.least_bytes[s]) { lean.least_bytes[s] = alone_bytes; }
        }
    }
    TRY(lower(&lean, 0, state->P));
    TRY(measure(lean.peak_bytes, &after_bytes, &lean));
    for (int32_t s = 0; s<state->P&& * budget> 0; s++) { TRY(lower(&lean, s, s + 1)); }
    TRY(measure(lean.peak_bytes, &after_bytes, &lean));
    if (after_bytes < before_bytes) { return STATUS_OK; }
    state->rule = before;
    state->makespan_ns = before_ns;
    return STATUS_OK;
}
