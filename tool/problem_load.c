// problem_load.c -- see problem_load.h.
#include "problem_load.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "../util/files.h"
#include "problem_costs.h"
#include "problem_csv.h"
#include "problem_json.h"
#include "problem_machine.h"
#include "problem_samples.h"

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
                        : options->vocab             ? "--vocab"
                                                     : NULL;
    if (given == NULL) { return STATUS_OK; }
    return FAIL(STATUS_BAD_OPTION, "%s: %s says that itself ---> leave it out, or edit the file", given,
                name);
}

// `text`: the file's; NULL: sample files, of which the lengths will do.
static Status parse_lengths(Problem* out, const char* text, size_t num_bytes, const char* path,
                            const ProblemOptions* options, Arena* arena) {
    CostModel* costs = ARENA_NEW(arena, CostModel, 1);
    if (costs == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for costs", path); }
    int32_t vocab = 0;
    if (text == NULL) { TRY(problem_samples_vocab(&vocab, path)); }
    TRY(problem_csv_costs(costs, options, vocab));
    char* lengths = NULL;
    if (text == NULL) {
        TRY(problem_samples_lengths(&lengths, &num_bytes, path, options, costs->num_dec_layers > 0));
        text = lengths;
    }
    Status status = problem_csv_parse(out, text, num_bytes, path, options, costs, arena);
    free(lengths);
    return status;
}

// JSON that has nothing of a problem; records of data, most likely.
static bool is_data(const char* text) {
    return (text[0] == '{' || text[0] == '[') && strstr(text, "\"cost_model\"") == NULL &&
           strstr(text, "\"n_stages\"") == NULL && strstr(text, "\"samples\"") == NULL;
}

static Status fail_data(const char* path) {
    return FAIL(
        STATUS_BAD_FORMAT,
        "%s: neither a planning problem nor lengths ---> if these are records of data: ./prepare_data --out "
        "DIR %s, then plan 'DIR/train*.bin'",
        path, path);
}

static Status parse(Problem* out, const char* text, size_t num_bytes, const char* path,
                    const ProblemOptions* options, Arena* arena) {
    size_t first = 0;
    if (num_bytes >= 3 &&
        memcmp(text, "\xef\xbb\xbf", 3) == 0) {  // a byte-order mark, as spreadsheets write it
        text += 3;
        num_bytes -= 3;
    }
    while (first < num_bytes && isspace((unsigned char)text[first])) { first++; }
    if (first < num_bytes && is_data(text + first)) { return fail_data(path); }
    if (first < num_bytes && text[first] == '{') {
        TRY(refuse_options(options, path));
        TRY(problem_json_parse(out, text, num_bytes, path, arena));
    } else {
        TRY(parse_lengths(out, text, num_bytes, path, options, arena));
    }
    if (options->memory_limit_bytes > 0) { out->request.memory_limit_bytes = options->memory_limit_bytes; }
    return problem_machine_make(out, options, arena);
}

Status problem_load(Problem* out, const char* path, const ProblemOptions* options, Arena* arena) {
    char* text = NULL;
    size_t num_bytes = 0;
    bool is_samples;
    TRY(problem_samples_recognize(&is_samples, path));
    if (!is_samples) { TRY(file_read_text(&text, &num_bytes, path)); }
    Status status = parse(out, text, num_bytes, path, options, arena);
    free(text);
    return status;
}
