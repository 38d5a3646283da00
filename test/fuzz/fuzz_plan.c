// fuzz_plan.c -- any bytes as plan text: a plan comes out, or an error; and print(parse(text)) is a fixed
// point: parsing it gives a plan of the same hash that prints the same text.
#include <stdlib.h>
#include <string.h>

#include "../../dynapipe_plugin/plan/replay.h"
#include "../../tool/plan_views.h"
#include "fuzz.h"

enum { MOST_SAMPLES = 10000 };

static char* print_text(const Plan* plan) {
    char* text = NULL;
    size_t num_bytes;
    FILE* stream = open_memstream(&text, &num_bytes);
    REQUIRE(stream != NULL);
    plan_print(plan, stream);
    fclose(stream);
    return text;
}

// The text carries a hash of its contents, which random changes never meet: put it right, so that what lies
// behind that check is tried as well.
static Status parse_repaired(Plan* plan, char* text, Arena* arena) {
    Status status = plan_parse(plan, text, "fuzz.plan", arena);
    const char* right = status == STATUS_OK ? NULL : strstr(status_message(), "contents have ");
    char* place = strstr(text, "\nhash ");
    if (right == NULL || place == NULL) { return status; }
    memcpy(place + strlen("\nhash "), right + strlen("contents have "), 16);
    return plan_parse(plan, text, "fuzz.plan", arena);
}

static Problem problem;  // what the seed "of_problem" is a plan of

int LLVMFuzzerInitialize(int* argc, char*** argv) {
    static Arena arena;
    const ProblemOptions none = {0};
    (void)argc;
    (void)argv;
    REQUIRE(problem_load(&problem, "build/fuzz/seeds/problem/one_sample", &none, &arena) == STATUS_OK);
    return 0;
}

// What the tool does with a plan: replay, show, compare, hold against its problem. A plan that breaks a rule
// is told so, with words.
static void use(const Plan* plan, const Plan* same, Arena* arena) {
    ReplayResult result;
    const ReplayNoise noise = {
        .noise_permille = 1000, .trials = 2, .slow_permille = REPLAY_MAX_SLOW_PERMILLE};
    (void)plan_replay(&result, plan, &noise, arena);
    if (plan->N > MOST_SAMPLES || plan_verify_structure(plan, arena) != STATUS_OK) { return; }
    int32_t num_differences = -1;
    FILE* nowhere = fopen("/dev/null", "we");
    REQUIRE(nowhere != NULL);
    plan_print_table(plan, nowhere);
    plan_print_timeline(plan, 80, nowhere);
    REQUIRE(plan_diff(plan, same, nowhere, &num_differences, arena) == STATUS_OK && num_differences == 0);
    fclose(nowhere);
    (void)plan_verify_problem(plan, &problem, arena);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    static Arena arena;
    Plan plan, again;
    char* text = fuzz_text(data, num_bytes);
    if (parse_repaired(&plan, text, &arena) == STATUS_OK) {
        char* printed = print_text(&plan);
        REQUIRE(plan_parse(&again, printed, "printed.plan", &arena) == STATUS_OK);
        char* reprinted = print_text(&again);
        REQUIRE(strcmp(printed, reprinted) == 0 && plan_hash(&plan) == plan_hash(&again));
        free(printed);
        free(reprinted);
        use(&plan, &again, &arena);
    }
    free(text);
    arena_reset(&arena);
    return 0;
}
