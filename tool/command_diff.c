// command_diff.c -- ./dynapipe diff: what differs between two plans.
#include "plan_diff.h"
#include "plan_file.h"
#include "plan_verify.h"
#include "tool.h"

static const ToolUsage usage = {
    .arguments = "A.txt B.txt",
    .about =
        "Says what differs between two plans (plan --text FILE): micro-batches, replicas, orders, makespan,\n"
        "memory; the value of A first. Exit status 1 where something does.\n",
    .min_files = 2,
    .max_files = 2,
};

static Status run(char** paths, int32_t* num_differences, Arena* arena) {
    Plan plans[2];
    for (int i = 0; i < 2; i++) {
        TRY(plan_file_load(&plans[i], paths[i], arena));
        TRY(plan_verify_structure(&plans[i], arena));
    }
    TRY(plan_diff(&plans[0], &plans[1], stdout, num_differences, arena));
    if (*num_differences == 0) { printf("the same plan\n"); }
    return STATUS_OK;
}

int command_diff(int argc, char** argv) {
    bool help;
    int32_t num_differences = 0;
    Status status = tool_take(&usage, NULL, &argc, argv, &help);
    if (status != STATUS_OK || help) { return status == STATUS_OK ? TOOL_OK : tool_fail(status); }
    Arena arena = {0};
    status = run(argv + 1, &num_differences, &arena);
    arena_free(&arena);
    if (status != STATUS_OK) { return tool_fail(status); }
    return num_differences == 0 ? TOOL_OK : TOOL_FAILED;
}
