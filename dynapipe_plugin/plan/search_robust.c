#include "search_robust.h"

#include "pipe_schedule.h"
#include "replay.h"

enum { TRIALS = 40, SEED = 1, MOST_IN_FLIGHT = 5 };

// P90 of this state with this rule; INT64_MAX where it does not fit. makespan_ns: without noise.
static Status judge(int64_t* p90_ns, int64_t* makespan_ns, const SearchState* state,
                    const PipeAdaptiveRule* rule, int32_t noise_permille, Arena* scratch) {
    PipeSchedule schedule;
    ReplayResult result;
    int64_t budget = 0;  // does not count: a few simulations
    arena_reset(scratch);
    *p90_ns = INT64_MAX;
    TRY(pipe_adaptive_makespan(makespan_ns, &state->pipe, state->order, rule, INT64_MAX, &budget, scratch));
    if (*makespan_ns == INT64_MAX) { return STATUS_OK; }
    TRY(pipe_adaptive_build(&schedule, &state->pipe, state->order, rule, scratch));
    TRY(pipe_replay(&result, &state->pipe, &schedule, noise_permille, TRIALS, SEED, scratch));
    *p90_ns = result.p90_ns;
    return STATUS_OK;
}

Status search_robust(SearchState** best, SearchState* finalists, int32_t num, int32_t noise_permille,
                     Arena* scratch) {
    int64_t best_p90_ns = INT64_MAX, best_ns = finalists[0].makespan_ns;
    PipeAdaptiveRule best_rule = finalists[0].rule;
    *best = &finalists[0];
    for (int32_t i = 0; i < num; i++) {
        for (int32_t k = 0; k <= MOST_IN_FLIGHT; k++) {  // 0: as the state has it
            PipeAdaptiveRule rule = finalists[i].rule;
            int64_t p90_ns, makespan_ns;
            for (int32_t s = 0; s < finalists[i].P && k > 0; s++) {
                rule.max_in_flight[s] = k == MOST_IN_FLIGHT ? finalists[i].M : k * (finalists[i].P - s);
            }
            TRY(judge(&p90_ns, &makespan_ns, &finalists[i], &rule, noise_permille, scratch));
            if (p90_ns >= best_p90_ns) { continue; }
            best_p90_ns = p90_ns;
            best_ns = makespan_ns;
            best_rule = rule;
            *best = &finalists[i];
        }
    }
    (*best)->rule = best_rule;
    (*best)->makespan_ns = best_ns;
    return STATUS_OK;
}
