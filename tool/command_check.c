// command_check.c -- ./dynapipe check: every rule a plan must keep.
#include <inttypes.h>

#include "../util/status.h"
#include "../util/program.h"
#include "plan_file.h"
#include "problem_command.h"
#include "problem_load.h"
#include "plan_verify.h"

typedef struct {
    ProblemOptions problem;
    const char* problem_path;
} CheckOptions;

// clang-format off
static const OptionSpec specs[] = {
    {"--problem", OPTION_STRING, offsetof(CheckOptions, problem_path), NULL, 0, 0, NULL, "FILE", "the problem it was made for: check samples, times and memory as well"},
    PROBLEM_OPTIONS(CheckOptions, problem),
};
// clang-format on

static const ToolUsage usage = {
    .arguments = "PLAN.txt",
    .about =
        "Checks a plan's text: every sample once, inputs before jobs, buffers apart, sends meet receives,\n"
        "no deadlock. Exit status 1 and the broken rule where it is not valid, 3 where it does not fit.\n",
    .specs = specs,
    .num_specs = sizeof specs / sizeof specs[0],
    .min_files = 1,
    .max_files = 1,
};

static Status run(const void* taken, const char* path, Problem* problem, Arena* arena) {
    const CheckOptions* options = taken;
    Plan plan;
    TRY(plan_file_load(&plan, path, arena));
    if (options->problem_path != NULL) {
        TRY(problem_load(problem, options->problem_path, &options->problem, arena));
        TRY(plan_verify_problem(&plan, problem, arena));
    } else {
        TRY(plan_verify_structure(&plan, arena));
    }
    printf("%s: valid%s;\n  %d micro-batches of %d samples, %d stages x %d replicas, %s, hash %016" PRIx64
           "\n",
           PRINTABLE(path), options->problem_path != NULL ? ", times and memory as the problem has them" : "",
           plan.M, plan.N, plan.P, plan.R, TIME_TEXT(plan.makespan_ns, 6), plan_hash(&plan));
    return STATUS_OK;
}

int command_check(int argc, char** argv) {
    CheckOptions options = {0};
    return problem_command(&usage, &options, argc, argv, run);
}
