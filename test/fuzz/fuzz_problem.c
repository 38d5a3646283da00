// fuzz_problem.c -- any bytes as a planning problem, in either form: a problem whose numbers are all in range
// comes out, or an error with a remedy; and a small one can be planned, or is refused with a reason.
#include <stdlib.h>
#include <string.h>

#include "../../dynapipe_plugin/plan/planner.h"
#include "../../dynapipe_plugin/plan/problem.h"
#include "../../tool/problem.h"
#include "fuzz.h"

enum { MAX_SAMPLES = 24, MAX_RANKS = 16, EFFORT = 8 };  // of what is planned too

static void require_sane(const Problem* problem) {
    const PlanRequest* request = &problem->request;
    int32_t num_layers = problem->costs.num_enc_layers + problem->costs.num_dec_layers;
    REQUIRE(problem->num_samples >= 1 && problem->num_samples <= PROBLEM_MAX_SAMPLES);
    REQUIRE(request->P >= 1 && request->P <= PLAN_MAX_STAGES && request->R >= 1 &&
            request->R <= PLAN_MAX_REPLICAS);
    REQUIRE(num_layers >= request->P && num_layers <= COST_MAX_LAYERS);
    REQUIRE(request->placement.chunks[0].layer_begin == 0 &&
            request->placement.chunks[request->P - 1].layer_end == num_layers);
    for (int32_t i = 0; i < problem->num_samples; i++) {
        const PlanSample* sample = &problem->samples[i];
        REQUIRE(sample->enc_tokens >= 1 && sample->enc_tokens <= 2 * PROBLEM_MAX_TOKENS);
        REQUIRE(sample->dec_tokens >= 0 && sample->dec_tokens <= PROBLEM_MAX_TOKENS + 2);
        REQUIRE(sample->supervised_tokens >= 0 && sample->supervised_tokens <= 2 * PROBLEM_MAX_TOKENS);
    }
    REQUIRE(cost_model_check(&problem->costs) == STATUS_OK);
}

// plan_make checks what it hands out.
static void plan(Problem* problem, Arena* arena) {
    Plan out;
    PlanRequest* request = &problem->request;
    if (problem->num_samples > MAX_SAMPLES || request->P * request->R > MAX_RANKS) { return; }
    request->effort = EFFORT;
    Status status = plan_make(&out, request, &problem->costs, problem->samples, problem->num_samples, arena);
    REQUIRE(status == STATUS_OK || status == STATUS_INFEASIBLE || status == STATUS_BAD_OPTION ||
            status == STATUS_OUT_OF_RANGE);
    REQUIRE(status != STATUS_OK || out.bound_over_ns == 0);
    REQUIRE(status == STATUS_OK || strstr(status_message(), "--->") != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    static const ProblemOptions both[] = {
        {.stages = 2, .batch_tokens = 500, .model = "l2c16h2"},
        {.stages = 2, .batch_tokens = 500, .max_target_tokens = 50, .model = "t5:l2d1c32h1"},
    };
    static Problem problem;
    static CostModel costs_of[2];
    const ProblemOptions* options = &both[num_bytes % 2];
    CostModel* costs = &costs_of[num_bytes % 2];
    static Arena arena;
    REQUIRE(costs->num_enc_layers > 0 || problem_csv_costs(costs, options, 0) == STATUS_OK);
    const char* text = (const char*)data;
    bool json = num_bytes > 0 && text[0] == '{';
    Status status = json ? problem_json_parse(&problem, text, num_bytes, "fuzz.json", &arena)
                         : problem_csv_parse(&problem, text, num_bytes, "fuzz.csv", options, costs, &arena);
    if (status == STATUS_OK) {
        require_sane(&problem);
        plan(&problem, &arena);
    } else {
        REQUIRE(status == STATUS_BAD_FORMAT || status == STATUS_BAD_OPTION || status == STATUS_OUT_OF_RANGE);
        REQUIRE(strstr(status_message(), "--->") != NULL);
    }
    arena_reset(&arena);
    return 0;
}
