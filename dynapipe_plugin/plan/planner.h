/*
planner.h -- lengths + costs + memory limit + layout + options -> plan. A pure function.

No I/O, no clock, no threads, no globals: the same arguments give the same plan, byte for byte, on every rank,
compiler and optimisation level.

A method makes a draft (draft.h): micro-batches, replicas, order, recomputation, stages.
    ours            search_draft: first answers by rule (search_first, search_fill), local search with the
                    simulator in the loop (search_moves on search_state); where that ends early, the same
                    again in less memory
    the paper's     original_draft
    baselines       policy_drafts: microbatch_fixed | microbatch_kk | ..., replica_balance, pipe_*
Then, for every method: replica_fit (into memory), comm_order, rank_list, memory_layout, lower_bound,
plan_check. In training the stage split is chosen once a run, from a sample of the mixture (stage_search.h).
*/
#pragma once

#include "../base/arena.h"
#include "cost_model.h"
#include "machine.h"
#include "plan.h"

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

// Shapes of placements. GIVEN: as many chunks and where they are as PlanRequest.placement says.
typedef enum {
    PLACEMENT_GIVEN,
    PLACEMENT_AUTO,
    PLACEMENT_LINEAR,       // chunk s on stage s
    PLACEMENT_INTERLEAVED,  // chunk k on stage k mod P (Narayanan et al., SC'21)
    PLACEMENT_VEE,          // down the stages and up again (Qi et al., NeurIPS'24)
    PLACEMENT_STACKS,       // encoder over all stages, then decoder over all, in the same or the opposite order
    PLACEMENT_COUNT
} PlacementChoice;
typedef enum { HEAD_CHOICE_GIVEN, HEAD_CHOICE_AUTO, HEAD_CHOICE_WHOLE, HEAD_CHOICE_ROWS, HEAD_CHOICE_VOCABULARY, HEAD_CHOICE_COUNT } HeadChoice;

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
    bool choose_stages;  // the search may move layers between chunks: `placement` is where it begins
    PlacementChoice placements;  // and among which placements it may choose besides
    HeadChoice heads;
    int64_t memory_limit_bytes;           // per rank, model state included; 0: no limit
    MemoryRule memory_rule;
    const Machine* machine;     // in what ranks and links differ, borrowed; NULL: in nothing
    int32_t max_seq_tokens;     // longest sequence the model takes; padding never goes beyond
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

// Fill `out`, all memory from `arena`. Returns STATUS_INFEASIBLE with stage, bytes over and a remedy where
// nothing fits; every plan handed out has passed plan_check.
Status plan_make(Plan* out, const PlanRequest* request, const CostModel* costs, const PlanSample* samples,
                 int32_t num_samples, Arena* arena);

// The --effort that takes about this long on one core; 0 (the default) where the request leaves nothing to
// search. From counts alone, no clock: the same on every machine.
int32_t plan_effort(const PlanRequest* request, int64_t planning_ns);

// Layers onto request->P stages: minimise the slowest stage for the samples of `num_batches` global batches,
// embedding and head priced in, within request->memory_limit_bytes (exact: dynamic program over contiguous
// ranges). Every stage gets at least one layer, but the last may have the head alone (where the rules let
// it). request->stages and batching are not looked at.
Status stage_split_make(LayerRange* out, const PlanRequest* request, const CostModel* costs,
                        const PlanSample* samples, int32_t num_samples, int32_t num_batches);

// "4,4,3,1": layers of each of P stages, digits only, that add up to num_layers; the last of several may be
// 0, the head alone, unless head_has_layer. STATUS_BAD_OPTION says which numbers it must be.
Status stage_split_parse(LayerRange* out, int32_t P, int32_t num_layers, bool head_has_layer,
                         const char* text);

// The shape of one sequence list, from lengths; used by every pass and by run/ for evaluation batches.
void mb_shape_add(MbShape* shape, int32_t enc_tokens, int32_t dec_tokens, int32_t supervised_tokens);
