// case_problem.c -- see case_problem.h.
#include "case_problem.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../tool/problem.h"

const char* const case_names[] = {
    "gpt2_s4_r1_flan_1k", "gpt_s4_r1_flan_2k", "gpt_s4_r1_long_8k", "gpt_s4_r2_flan_4k_tight",
    "gpt_s8_r2_flan_4k",  "t5_s4_r1_flan_2k",  "t5_s8_r2_flan_4k",  NULL};

bool case_available(void) {
    return access(CASE_DIRECTORY "/reference.json", R_OK) == 0;
}

static json_t* load(const char* name) {
    char path[256];
    json_error_t error;
    snprintf(path, sizeof path, "%s/%s.json", CASE_DIRECTORY, name);
    json_t* root = json_load_file(path, 0, &error);
    if (!root) { printf("%s:%d: %s\n", path, error.line, error.text); }
    return root;
}

static double number(const char* key, json_t* object) {
    return json_number_value(json_object_get(object, key));
}

bool case_problem_load(CaseProblem* out, const char* name) {
    static const ProblemOptions none;
    char path[256];
    Arena arena = {0};
    Problem* problem = calloc(1, sizeof *problem);
    snprintf(path, sizeof path, "%s/%s.json", CASE_DIRECTORY, name);
    Status status = problem != NULL ? problem_load(problem, path, &none, &arena) : STATUS_NO_MEMORY;
    bool fits = status == STATUS_OK && problem->num_samples <= CASE_MAX_SAMPLES;
    if (status != STATUS_OK) { printf("%s: %s\n", path, status_message()); }
    if (status == STATUS_OK && !fits) { printf("%s: more than %d samples\n", name, CASE_MAX_SAMPLES); }
    if (fits) {
        *out = (CaseProblem){.request = problem->request,
                             .num_samples = problem->num_samples,
                             .encoder_decoder = problem->encoder_decoder};
        out->costs = problem->costs;
        out->request.batching = BATCHING_DYNAPIPE;
        out->request.layout = LAYOUT_PADDED;
        memcpy(out->samples, problem->samples, (size_t)problem->num_samples * sizeof(PlanSample));
    }
    free(problem);
    arena_free(&arena);
    return fits;
}

bool case_reference_load(CaseReference* out, const char* name) {
    json_t* root = load("reference");
    if (!root) { return false; }
    json_t* entry = json_object_get(root, name);
    *out = (CaseReference){.makespan_ms = number("makespan_ms", entry),
                           .objective_ms = number("objective_ms", entry),
                           .bound_ms = number("bound_ms", json_object_get(entry, "evaluated")),
                           .num_mbs = (int32_t)number("microbatches", entry)};
    json_decref(root);
    return entry != NULL;
}

Status case_problem_init(PlanProblem* out, const CaseProblem* problem) {
    TRY(plan_problem_init(out, &problem->request, &problem->costs, problem->samples, problem->num_samples));
    return STATUS_OK;
}
