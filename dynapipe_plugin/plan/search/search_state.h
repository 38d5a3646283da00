/*
search_state.h -- one replica while the search improves it: which samples form which micro-batch, in which
order they enter stage 0, what is recomputed where, and the rule of the adaptive schedule.

Everything that the simulator needs is kept up to date: a change of one micro-batch costs its column of
prices, a change of the placement all of them. Merging and dividing change the number of micro-batches;
none is ever empty.
*/
#pragma once

#include "../draft/pipe_costs.h"
#include "../schedule.h"

typedef struct {
    const PlanProblem* problem;                // samples, costs, modes, limits
    const MachineRank* ranks;                  // [P] that run it; NULL: all alike
    Placement placement;                       // that is tried
    CostStage chunks[PLAN_MAX_CHUNKS];         // of it
    int64_t available_bytes[PLAN_MAX_STAGES];  // memory limit - model state, with it
    MbLayout layout;                           // RAGGED or PADDED
    int32_t P, M, N;                           // stages, micro-batches, samples of this replica
    int32_t K, num_rows;                       // chunks; with shares of the head
    int32_t max_mbs;                           // that there is room for
    int32_t* ids;                              // [N] sample ids; a sample is its place in here
    int32_t *mb_of, *next, *prev;              // [N]; chains end with -1
    int32_t *head, *count;                     // [M] first sample, number of samples
    MbShape* shape;                            // [M]
    uint8_t* mode;                             // [K * M] RecomputeMode, mode[k * M + m]
    int64_t* scratch_bytes;                    // [M]
    PipeCost* cost;                            // [rows * M] what pipe.cost points to
    int32_t* order;                            // [M]
    PipeProblem pipe;                          // its placement: search_state_pipe()
    PipeAdaptiveRule rule;
    int64_t makespan_ns;  // INT64_MAX: does not fit in memory
} SearchState;

// `mb_of` says where every sample goes; order 0..M-1, everything in `mode`, the rule as adaptive has it. The
// stages' model state must fit (plan_problem_init, search_state_set_placement).
Status search_state_init(SearchState* out, const PlanProblem* problem, int32_t replica, MbLayout layout,
                         const int32_t* ids, int32_t num_ids, const int32_t* mb_of, int32_t num_mbs,
                         RecomputeMode mode, bool split_backward, const Placement* placement, Arena* arena);
// A copy of its own, in `arena`.
Status search_state_copy(SearchState* out, const SearchState* in, Arena* arena);
// The other way round: what `in` holds into the memory of `out`, which has the same sizes.
void search_state_assign(SearchState* out, const SearchState* in);

// Other layers, stages and shares, as many chunks, the head shared as it is or whole as it is. False where
// parameters, gradients and optimizer of some stage do not fit: all is left as it was.
bool search_state_set_placement(SearchState* state, const Placement* placement);

// What the simulator is given; borrows the state.
PipeProblem search_state_pipe(const SearchState* state);

void search_state_move_sample(SearchState* state, int32_t sample, int32_t to);  // shapes only
// Two micro-batches become one, at the place of `to` in the order; the last one takes the number of `from`.
void search_state_merge(SearchState* state, int32_t to, int32_t from);
// Every second sample of micro-batch m goes into a new one, behind it in the order. False: no room, or one
// sample.
bool search_state_divide(SearchState* state, int32_t m);
// Another sample in its place, priced.
void search_state_replace(SearchState* state, int32_t sample, int32_t id);
void search_state_price(SearchState* state, int32_t m);  // after shapes or modes changed
// In every chunk, for every micro-batch: the first mode in which it keeps no more than `percent` of an equal
// share of the stage's memory among all that its chunks have in flight; the last mode where none does.
void search_state_fit_modes(SearchState* state, int32_t percent);
// Order by work, smallest first and last.
Status search_state_small_ends(SearchState* state, Arena* arena);
void search_state_limits(SearchState* state);  // after prices changed

// The makespan, at most cutoff_ns: INT64_MAX beyond. Does not touch state->makespan_ns. Takes what it walks
// from *budget (pipe_adaptive.h).
Status search_state_simulate(int64_t* makespan_ns, const SearchState* state, int64_t cutoff_ns,
                             int64_t* budget, Arena* scratch);
