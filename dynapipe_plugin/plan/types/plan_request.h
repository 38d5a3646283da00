/*
plan_request.h -- what is asked of the planner: method, layout, stages and replicas, memory, effort.
*/
#pragma once

#include "plan_types.h"

struct Machine;  // machine.h

typedef enum {
    BATCHING_DYNAMIC,        // ours
    BATCHING_DYNAPIPE,       // the original's, all of it (original.c; spec sections b to g)
    BATCHING_PACKED,         // dense attention over packs of max_seq_tokens
    BATCHING_PACKED_RAGGED,  // the same packs by best fit decreasing, attention per sample
    BATCHING_PADDED,         // fixed number of samples per micro-batch, padded to their longest
    BATCHING_TOKENS,         // fixed token budget, samples sorted by length
    BATCHING_KK,             // equal work by largest differencing, small ones at both ends
    BATCHING_COUNT
} Batching;

typedef enum {
    SCHEDULE_AUTO,
    SCHEDULE_GPIPE,
    SCHEDULE_1F1B,
    SCHEDULE_ADAPTIVE,
    SCHEDULE_COUNT
} ScheduleChoice;
typedef enum { RECOMPUTE_CHOICE_NONE, RECOMPUTE_CHOICE_FULL, RECOMPUTE_CHOICE_AUTO } RecomputeChoice;
typedef enum { SPLIT_BACKWARD_AUTO, SPLIT_BACKWARD_ON, SPLIT_BACKWARD_OFF } SplitBackward;

// Shapes of placements. GIVEN: as many chunks, and where they are, as PlanRequest.placement says.
typedef enum {
    PLACEMENT_GIVEN,
    PLACEMENT_AUTO,
    PLACEMENT_LINEAR,       // chunk s on stage s
    PLACEMENT_INTERLEAVED,  // chunk k on stage k mod P (Narayanan et al., SC'21)
    PLACEMENT_VEE,          // down the stages and up again (Qi et al., NeurIPS'24)
    PLACEMENT_STACKS,  // the encoder over all stages, then the decoder, in the same or the opposite direction
    PLACEMENT_COUNT
} PlacementChoice;

// GIVEN: as PlanRequest.placement says. Where placements are GIVEN too, its shares are where the search
// begins (if choose_stages), else they stay.
typedef enum {
    HEAD_CHOICE_GIVEN,
    HEAD_CHOICE_AUTO,
    HEAD_CHOICE_WHOLE,
    HEAD_CHOICE_ROWS,
    HEAD_CHOICE_VOCABULARY,
    HEAD_CHOICE_COUNT
} HeadChoice;

// PlanRequest.memory_slack_permille of the tools and of training: 0.3 %.
enum { PLAN_MEMORY_SLACK_PERMILLE = 3 };

// What counts against the memory limit besides model state.
typedef enum {
    MEMORY_BUFFERS,     // every buffer of the instruction lists, as laid out: what training needs
    MEMORY_ACTIVATIONS  // only what backward needs, F to B (or W): the rule of published planning problems.
                        // The plan's own arenas may be larger, and it says that it has no limit (0).
} MemoryRule;

typedef struct {
    Batching batching;
    MbLayout layout;  // RAGGED or PADDED, for dynamic, dynapipe and tokens
    ShapeRules rules;
    ScheduleChoice schedule;
    RecomputeChoice recompute;
    SplitBackward split_backward;
    int32_t P, R;
    Placement placement;
    bool choose_stages;          // the search may move layers between chunks: `placement` is where it begins
    PlacementChoice placements;  // and among which placements it may choose besides
    HeadChoice heads;
    int64_t memory_limit_bytes;  // per rank, model state included; 0: no limit
    MemoryRule memory_rule;
    const struct Machine* machine;  // in what ranks and links differ, borrowed; NULL: in nothing
    int32_t max_seq_tokens;         // longest sequence the model takes; padding never goes beyond
    int32_t max_target_tokens;  // of the decoder's side, where it has a limit of its own; 0: max_seq_tokens
    int32_t mb_tokens;   // budget of packed, packed-ragged, tokens and kk; 0: the longest, both sides' limits
    int32_t mb_samples;  // of padded; 0: chosen so that an average micro-batch has mb_tokens
    int32_t memory_slack_permille;  // of ours: of plans so much slower than the fastest, at most, the one
                                    // that holds least; 0: the fastest
    int32_t effort;                 // simulations the search may spend; 0: the default
    // Instruction lists, their memory and checks of my_replica alone: what a rank runs. All else, and every
    // decision, is the same whatever these say.
    bool one_replica;
    int32_t my_replica;
} PlanRequest;
