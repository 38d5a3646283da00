// problem_load.c -- see problem_load.h.
#include "problem_load.h"

#include <ctype.h>
#include <stdlib.h>

#include "../dynapipe_plugin/base/file_io.h"
#include "problem_costs.h"
#include "problem_csv.h"
#include "problem_json.h"
#include "problem_machine.h"

// What a published problem says itself.
static Status refuse_options(const ProblemOptions* options, const char* name) {
    const char* given = options->stages              ? "--stages"
                        : options->replicas          ? "--replicas"
                        : options->batch_tokens      ? "--batch-tokens"
                        : options->batch             ? "--batch"
                        : options->max_tokens        ? "--max-tokens"
                        : options->max_target_tokens ? "--max-target-tokens"
                        : options->shuffle           ? "--shuffle"
                        : options->costs             ? "--costs"
                        : options->model             ? "--model"
                                                     : NULL;
    if (given == NULL) { return STATUS_OK; }
    return FAIL(STATUS_BAD_OPTION, "%s: %s says that itself ---> leave it out, or edit the file", given,
                name);
}

static Status parse(Problem* out, const char* text, size_t num_bytes, const char* path,
                    const ProblemOptions* options, Arena* arena) {
    size_t first = 0;
    while (first < num_bytes && isspace((unsigned char)text[first])) { first++; }
    if (first < num_bytes && text[first] == '{') {
        TRY(refuse_options(options, path));
        TRY(problem_json_parse(out, text, num_bytes, path, arena));
    } else {
        CostModel* costs = ARENA_NEW(arena, CostModel, 1);
        if (costs == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for costs", path); }
        TRY(problem_csv_costs(costs, options));
        TRY(problem_csv_parse(out, text, num_bytes, path, options, costs, arena));
    }
    if (options->memory_limit_bytes > 0) { out->request.memory_limit_bytes = options->memory_limit_bytes; }
    return problem_machine_make(out, options, arena);
}

Status problem_load(Problem* out, const char* path, const ProblemOptions* options, Arena* arena) {
    char* text = NULL;
    size_t num_bytes = 0;
    TRY(file_read_text(&text, &num_bytes, path));
    Status status = parse(out, text, num_bytes, path, options, arena);
    free(text);
    return status;
}
