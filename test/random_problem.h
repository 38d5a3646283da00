// random_problem.h -- random cost models, samples and batching problems for the tests of the planner.
#pragma once

#include "../util/numbers.h"
#include "../dynapipe_plugin/plan/problem.h"

enum { RANDOM_MAX_SAMPLES = 4096 };

// Large: allocate on the heap or keep static.
typedef struct {
    CostModel costs;
    PlanRequest request;
    PlanSample samples[RANDOM_MAX_SAMPLES];
    int32_t num_samples;
} RandomProblem;

// Every curve kind (none, a line, several knots, some with a line that begins below zero), floors and
// constants.
void random_cost_model(CostModel* out, Rng* rng, int32_t num_enc_layers, int32_t num_dec_layers);
// Straight lines only, nothing constant: cost is additive over samples.
void linear_cost_model(CostModel* out, Rng* rng, int32_t num_enc_layers, int32_t num_dec_layers);

// Lengths with a heavy tail; `kind` picks the odd ones: 0 mixed, 1 all equal, 2 one giant, 3 nothing
// supervised.
void random_samples(PlanSample* out, int32_t num_samples, Rng* rng, int kind, bool decoder);

// A whole problem: random model, P, R, layers, samples; no memory limit.
void random_problem(RandomProblem* out, Rng* rng, int32_t num_samples);
// A memory limit under which every sample fits alone on every stage, `percent` above the tightest such limit.
void random_problem_limit_memory(RandomProblem* problem, int32_t percent);
// Ranks and links that differ: speeds of `problem` by up to 4, every rate; limits only where the problem has
// one, none below it.
typedef struct {
    Machine machine;
    MachineRank ranks[64];
} RandomMachine;
void random_machine(RandomMachine* out, const RandomProblem* problem, Rng* rng);

// Blocks spread evenly over the stages of `request`; over all but the last, which has the head alone.
void equal_stages(PlanRequest* request, int32_t num_blocks);
void head_alone_stages(PlanRequest* request, int32_t num_blocks);
