/*
planner.h -- lengths + costs + memory limit + layout + options -> plan. A pure function.

No I/O, no clock, no threads, no globals: the same arguments give the same plan, byte for byte, on every rank,
compiler and optimisation level.

A method makes drafts (draft.h): micro-batches, replicas, order, recomputation, placement.
    ours            plan_search: first answers by rule (search_first, search_fill), local search with the
                    simulator in the loop (search_moves on search_state); where that ends early, the same
                    again in less memory
    the paper's     original_draft
    baselines       policy_drafts: microbatch_fixed | microbatch_kk | ..., balance_replicas, pipe_*
Each is made to fit into memory (plan_drafts: memory_fit), and the best gets its lists: comm_order,
rank_list, memory_layout, lower_bound, plan_check. In training the placement is chosen once a run, from a
sample of the mixture (stage_search.h). The method in words, with a worked step: doc/method.md.
*/
#pragma once

#include "../../util/arena.h"
#include "cost_model.h"
#include "plan.h"
#include "types.h"

// Fill `out`, all memory from `arena`. Returns STATUS_INFEASIBLE with stage, bytes over and a remedy where
// nothing fits; every plan handed out has passed plan_check.
Status plan_make(Plan* out, const PlanRequest* request, const CostModel* costs, const PlanSample* samples,
                 int32_t num_samples, Arena* arena);

// The --effort that takes about this long on one core; 0 (the default) where the request leaves nothing to
// search. From counts alone, no clock: the same on every machine.
int32_t plan_effort(const PlanRequest* request, int64_t planning_ns);
