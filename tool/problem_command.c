#include "problem_command.h"

#include <stdlib.h>

int problem_command(const ToolUsage* usage, void* options, int argc, char** argv, ProblemCommand* run) {
    bool help;
    Status status = tool_take(usage, options, &argc, argv, &help);
    if (status != STATUS_OK || help) { return status == STATUS_OK ? TOOL_OK : tool_fail(status); }
    Arena arena = {0};
    Problem* problem = calloc(1, sizeof *problem);
    status = problem != NULL ? run(options, argv[1], problem, &arena) : FAIL(STATUS_NO_MEMORY, "no memory");
    free(problem);
    arena_free(&arena);
    return status == STATUS_OK ? TOOL_OK : tool_fail(status);
}
