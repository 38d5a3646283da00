// fuzz_plan.c -- targets for plans, problems, costs, what the tool reads; each is built alone, with
// -DFUZZ_NAME (dev/fuzz.sh).
#include "fuzz.h"

#ifdef FUZZ_commands
/*
commands: any words as a command line of ./dynapipe: it ends with one of its exit statuses. The first
word chooses the command; memory/problem, memory/lengths and memory/metrics are there to be read,
nothing can be written.

Numbers of more than four digits are left out, a model's layers of more than two: an effort of a
million, and a thousand layers on 64 stages, do what they say, for seconds.
*/
// libFuzzer: -max_len=160 -close_fd_mask=3
#include <ctype.h>

#include "../../util/files.h"
#include "../../tool/commands.h"
#include "memory_files.h"

enum { MOST_DIGITS = 4, MOST_LAYER_DIGITS = 2 };

static void set_from(const char* name, const char* path) {
    char* text;
    size_t num_bytes;
    REQUIRE(file_read_text(&text, &num_bytes, path) == STATUS_OK);
    memory_files_set(name, text, num_bytes);
}

int LLVMFuzzerInitialize(int* argc, char*** argv) {
    (void)argc;
    (void)argv;
    set_from("memory/problem", "build/fuzz/seeds/problem/one_sample");
    set_from("memory/lengths", "build/fuzz/seeds/problem/lengths_named");
    set_from("memory/metrics", "build/fuzz/seeds/metrics/steps");
    return 0;
}

static bool is_slow(const uint8_t* data, size_t num_bytes) {
    int digits = 0, most = MOST_DIGITS;
    for (size_t i = 0; i < num_bytes; i++) {
        if (!isdigit(data[i])) {
            most = data[i] == 'l' || data[i] == 'd' ? MOST_LAYER_DIGITS : MOST_DIGITS;
            digits = 0;
            continue;
        }
        bool is_scaled = i + 1 < num_bytes && data[i + 1] != '\0' && strchr("KMGe", data[i + 1]) != NULL;
        if (++digits > most || is_scaled) { return true; }
    }
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    static const char* const names[] = {"plan", "report"};
    if (num_bytes < 1 || is_slow(data + 1, num_bytes - 1)) { return 0; }
    FuzzWords words;
    fuzz_words_split(&words, "command", data + 1, num_bytes - 1);
    char** argv = calloc((size_t)words.argc + 2, sizeof *argv);
    REQUIRE(argv != NULL);
    argv[0] = words.argv[0];
    argv[1] = (char*)(uintptr_t)names[data[0] % 2];
    memcpy(argv + 2, words.argv + 1, (size_t)(words.argc - 1) * sizeof *argv);
    memory_files_only(true);
    int status = tool_main(words.argc + 1, argv);
    memory_files_only(false);
    REQUIRE(status >= TOOL_OK && status <= TOOL_INFEASIBLE);
    free(argv);
    free(words.text);
    return 0;
}
#endif

#ifdef FUZZ_cost_model
// cost_model: any bytes as a cost file: refused with its name, or a sane model that prints itself.
#include <stdlib.h>
#include <string.h>

#include "../../dynapipe_plugin/plan/cost_model.h"

static char* text_of(const CostModel* model) {
    char* text = NULL;
    size_t num_bytes = 0;
    FILE* out = open_memstream(&text, &num_bytes);
    REQUIRE(out != NULL);
    cost_file_print(model, NULL, "fuzz", out);
    fclose(out);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    static CostModel model, again;
    char* text = fuzz_text(data, num_bytes);
    Status status = cost_file_parse(&model, NULL, text, "fuzz.txt", NULL);
    if (status != STATUS_OK) {
        REQUIRE(status == STATUS_BAD_FORMAT && strncmp(status_message(), "fuzz.txt:", 9) == 0);
    } else {
        REQUIRE(cost_model_check(&model) == STATUS_OK);
        char *once = text_of(&model), *twice;
        REQUIRE(cost_file_parse(&again, NULL, once, "again.txt", "fuzz") == STATUS_OK);
        twice = text_of(&again);
        REQUIRE(strcmp(once, twice) == 0);
        free(once);
        free(twice);
    }
    free(text);
    return 0;
}
#endif

#ifdef FUZZ_metrics
// metrics: any bytes as metrics.jsonl: refused with file and line, or rising steps that a page can be drawn
// of. libFuzzer: -max_len=1024
#include <stdio.h>

#include "../../tool/report.h"
#include "memory_files.h"

static void require_rising(const json_t* run, const char* list) {
    const json_t* rows = json_object_get(run, list);
    for (size_t i = 1; i < json_array_size(rows); i++) {
        const json_t *before = json_array_get(rows, i - 1), *row = json_array_get(rows, i);
        REQUIRE(json_number_value(json_array_get(row, 0)) > json_number_value(json_array_get(before, 0)));
    }
}

// No control characters, whatever names of tasks hold.
static void draw(const json_t* run) {
    char* page = NULL;
    size_t num_bytes;
    FILE* out = open_memstream(&page, &num_bytes);
    REQUIRE(out != NULL);
    json_t* runs = json_pack("[O,O]", run, run);
    report_print(out, runs);
    fclose(out);
    json_decref(runs);
    for (size_t i = 0; i < num_bytes; i++) {
        REQUIRE((unsigned char)page[i] >= 0x20 || page[i] == '\n' || page[i] == '\t');
    }
    free(page);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    memory_files_set("memory/metrics.jsonl", data, num_bytes);
    json_t* run;
    Status status = report_run_load(&run, "memory/metrics.jsonl");
    if (status == STATUS_OK) {
        require_rising(run, "steps");
        require_rising(run, "validations");
        if (num_bytes % 8 == 0) { draw(run); }  // a page costs as much as fifty parsings
        json_decref(run);
    } else {
        REQUIRE(status == STATUS_BAD_FORMAT && strncmp(status_message(), "memory/metrics.jsonl:", 21) == 0);
        REQUIRE(fuzz_has_remedy(status_message()));
    }
    return 0;
}
#endif

#ifdef FUZZ_placement
// placement: a byte for the number of stages and whether the head has a layer, then --placement, and
// behind the first line's end --head: a placement that keeps its rules, or an error. libFuzzer: -max_len=128
#include "../../dynapipe_plugin/plan/placement.h"

enum { MOST_STAGES = 16 };
static const PlanChain chain = {7, 5, 2, 3, true};

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    if (num_bytes < 1) { return 0; }
    const int32_t P = 1 + data[0] % MOST_STAGES;
    const bool head_has_layer = data[0] & 128;
    static Placement placement;
    char *text = fuzz_text(data + 1, num_bytes - 1), *head = strchr(text, '\n');
    if (head != NULL) { *head++ = 0; }
    placement = (Placement){.head = HEAD_WHOLE};
    Status status = placement_parse(&placement, P, &chain, head_has_layer, text);
    REQUIRE(status == STATUS_OK || placement.num_chunks == 0);
    if (status == STATUS_OK && head != NULL) { status = placement_parse_head(&placement, P, head); }
    if (status == STATUS_OK) {
        REQUIRE(placement_check(&placement, P, &chain, head_has_layer) == STATUS_OK);
    } else {
        REQUIRE(fuzz_has_remedy(status_message()));
    }
    free(text);
    return 0;
}
#endif

#ifdef FUZZ_problem
// problem: any bytes as a planning problem, in either form: a problem whose numbers are all in range
// comes out, or an error with a remedy; and a small one can be planned, or is refused with a reason.
#include <stdlib.h>
#include <string.h>

#include "../../dynapipe_plugin/plan/planner.h"
#include "../../dynapipe_plugin/plan/problem.h"
#include "../../tool/problem.h"

enum { MAX_SAMPLES = 24, MAX_RANKS = 16, EFFORT = 8 };  // of what is planned too

static void require_sane(const Problem* problem) {
    const PlanRequest* request = &problem->request;
    const PlanChain* chain = &problem->costs.chain;
    int32_t num_blocks = plan_chain_num_blocks(chain);
    REQUIRE(problem->num_samples >= 1 && problem->num_samples <= PROBLEM_MAX_SAMPLES);
    REQUIRE(request->P >= 1 && request->P <= PLAN_MAX_STAGES && request->R >= 1 &&
            request->R <= PLAN_MAX_REPLICAS);
    REQUIRE(num_blocks >= request->P && chain->num_enc_layers + chain->num_dec_layers <= COST_MAX_LAYERS);
    REQUIRE(request->placement.chunks[0].begin == 0 &&
            request->placement.chunks[request->P - 1].end == num_blocks);
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
    REQUIRE(costs->chain.num_enc_layers > 0 || problem_csv_costs(costs, options, 0, 0) == STATUS_OK);
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
#endif
