// command_plan.c -- ./dynapipe plan: one batch planned, shown, and written in every form asked for.
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "../util/program.h"
#include "../util/status.h"
#include "../dynapipe_plugin/plan/bound/waterfall.h"
#include "../dynapipe_plugin/plan/pipe/pipe_schedule.h"
#include "../dynapipe_plugin/plan/planner.h"
#include "../dynapipe_plugin/run/trace.h"
#include "plan_explain.h"
#include "plan_json.h"
#include "plan_memory.h"
#include "problem_command.h"
#include "problem_load.h"
#include "problem_machine.h"
#include "problem_place.h"
#include "timeline_svg.h"

typedef struct {
    ProblemOptions problem;
    int32_t policy, compare, layout, schedule, split_backward, recompute;
    int32_t effort, mb_tokens, width;
    double noise;
    const char *stage_split, *placement, *head, *json, *svg, *trace, *text;
    bool explain;
} PlanOptions;

#define FIELD(f) offsetof(PlanOptions, f)
// Choices stand in the order of the enums in plan_request.h.
// clang-format off
static const OptionSpec specs[] = {
    {"--policy",         OPTION_CHOICE, FIELD(policy),         "auto", 0, 0, "auto|dynapipe|packed|packed-ragged|padded|tokens|kk", NULL,
     "how samples form micro-batches. auto: the best found; dynapipe: as in the EuroSys'24 paper; the others are baselines"},
    {"--layout",         OPTION_CHOICE, FIELD(layout),         "auto", 0, 0, "auto|ragged|padded", NULL, "tokens of a micro-batch, for auto, dynapipe, tokens. auto: padded for dynapipe, else ragged"},
    {"--schedule",       OPTION_CHOICE, FIELD(schedule),       "auto", 0, 0, "auto|gpipe|1f1b|adaptive", NULL, "pipeline order"},
    {"--split-backward", OPTION_CHOICE, FIELD(split_backward), "auto", 0, 0, "auto|on|off", NULL, "weight gradients as jobs of their own"},
    {"--stage-split",    OPTION_STRING, FIELD(stage_split),    NULL,   0, 0, NULL, "SPLIT", "layers of each stage: auto (the search may move them), equal, or L,L,.. (encoder layers first); default: auto for policy auto, else equal"},
    {"--placement",      OPTION_STRING, FIELD(placement),      NULL,   0, 0, NULL, "WHERE", "auto, linear, interleaved, vee, stacks, or stage:layers of every chunk along the model, such as 0:3,1:3,1:3,0:3; default: auto where the search may move layers, else linear"},
    {"--head",           OPTION_STRING, FIELD(head),           NULL,   0, 0, NULL, "SPLIT", "the head: auto, whole, rows, vocabulary, or vocabulary:256,256,512,0 (rows:..), a share of 1024 for each stage; default as --placement: auto or whole"},
    {"--recompute",      OPTION_CHOICE, FIELD(recompute),      "auto", 0, 0, "none|full|auto", NULL, "run forward again instead of keeping activations"},
    {"--effort",         OPTION_INT,    FIELD(effort),         "0",    0, 1e9, NULL, "N", "simulations the search may spend; 0: its default"},
    {"--mb-tokens",      OPTION_INT,    FIELD(mb_tokens),      "0",    0, 1e9, NULL, "N", "tokens of a micro-batch for packed, packed-ragged, padded, tokens; 0: the longest sample"},
    {"--json",           OPTION_STRING, FIELD(json),           NULL,   0, 0, NULL, "FILE", "write the plan in the published form (- : stdout, and nothing else)"},
    {"--text",           OPTION_STRING, FIELD(text),           NULL,   0, 0, NULL, "FILE", "write the plan as text, for check and diff (- : the same)"},
    {"--svg",            OPTION_STRING, FIELD(svg),            NULL,   0, 0, NULL, "FILE", "draw the timeline (- : the same)"},
    {"--compare",        OPTION_CHOICE, FIELD(compare),        "none", 0, 0, "none|dynapipe|packed|packed-ragged|padded|tokens|kk", NULL, "with --svg: draw this plan above the best of that policy (best order, size of micro-batches and split of layers, one chunk a stage), on one time axis"},
    {"--trace",          OPTION_STRING, FIELD(trace),          NULL,   0, 0, NULL, "FILE", "write the timeline for Perfetto or chrome://tracing"},
    {"--explain",        OPTION_BOOL,   FIELD(explain),        NULL,   0, 0, NULL, NULL, "say what was chosen and where the time goes"},
    {"--width",          OPTION_INT,    FIELD(width),          "80",  20, 1000, NULL, "N", "columns of the timeline"},
    PROBLEM_OPTIONS(PlanOptions, problem),
};
// clang-format on
enum { LAYOUT_CHOICE_AUTO, LAYOUT_CHOICE_RAGGED, LAYOUT_CHOICE_PADDED };

static const ToolUsage usage = {
    .arguments = "PROBLEM.json|LENGTHS.csv|train.bin",
    .about = "Plans one batch and prints micro-batches, timeline, memory and bound.\n",
    .specs = specs,
    .num_specs = sizeof specs / sizeof specs[0],
    .min_files = 1,
    .max_files = 1,
};

static Status request_make(Problem* problem, const PlanOptions* options) {
    PlanRequest* request = &problem->request;
    bool padded = options->layout == LAYOUT_CHOICE_PADDED ||
                  (options->layout == LAYOUT_CHOICE_AUTO && options->policy == BATCHING_DYNAPIPE);
    request->batching = (Batching)options->policy;
    request->layout = padded ? LAYOUT_PADDED : LAYOUT_RAGGED;
    request->schedule = (ScheduleChoice)options->schedule;
    request->split_backward = (SplitBackward)options->split_backward;
    request->recompute = (RecomputeChoice)options->recompute;
    request->effort = options->effort;
    request->memory_slack_permille = PLAN_MEMORY_SLACK_PERMILLE;
    request->mb_tokens = options->mb_tokens;
    const char* split = options->stage_split != NULL            ? options->stage_split
                        : request->batching == BATCHING_DYNAMIC ? "auto"
                                                                : "equal";
    bool is_split = isdigit((unsigned char)split[0]);
    if (is_split && options->placement != NULL && strcmp(options->placement, "linear") != 0) {
        return FAIL(STATUS_BAD_OPTION,
                    "--stage-split %.40s: is for one chunk a stage ---> leave it out, or --placement linear",
                    PRINTABLE(split));
    }
    TRY(problem_split_stages(problem, split));
    return problem_place(problem, options->placement, options->head);
}

static void print_text(FILE* out, const void* plan) {
    plan_print(plan, out);
}

// Only the prediction.
static Status write_trace(const Plan* plan, MemoryRule rule, const char* path) {
    TraceWriter writer = {0};
    TRY(trace_writer_open(&writer, path));
    TraceStep step = {.step = 1,
                      .plan = plan,
                      .plan_hash = plan_hash(plan),
                      .num_ranks = plan->P * plan->R,
                      .memory_rule = rule};
    Status status = trace_writer_add_step(&writer, &step);
    Status closed = trace_writer_close(&writer);
    return status != STATUS_OK ? status : closed;
}

static int64_t longest_tokens(const Problem* problem) {
    int64_t longest = 1;
    for (int32_t i = 0; i < problem->num_samples; i++) {
        int64_t tokens = problem->samples[i].enc_tokens + problem->samples[i].dec_tokens;
        longest = tokens > longest ? tokens : longest;
    }
    return longest;
}

// The fastest plan of that policy: any order, backward split or not, micro-batches of its own size or up to 4
// times the longest sample, layers where its search puts them, one chunk a stage. A failure where none fits.
static Status make_best(Plan* out, const PlanOptions* options, const char* path, Arena* arena) {
    static const int32_t schedules[] = {SCHEDULE_AUTO, SCHEDULE_ADAPTIVE}, halves[] = {0, 3, 4, 6, 8};
    bool found = false;
    Status status = STATUS_OK;
    for (int i = 0; i < 20; i++) {
        PlanOptions other = *options;
        Problem problem;
        Plan plan;
        TRY(problem_load(&problem, path, &options->problem, arena));
        other.policy = options->compare;
        other.layout = LAYOUT_CHOICE_AUTO;
        other.schedule = schedules[i % 2];
        other.mb_tokens = (int32_t)(longest_tokens(&problem) * halves[i / 4] / 2);
        if (i / 2 % 2 == 1 && options->split_backward == SPLIT_BACKWARD_AUTO) {
            other.split_backward = SPLIT_BACKWARD_ON;
        }
        other.stage_split = "auto";
        other.placement = other.head = NULL;
        TRY(request_make(&problem, &other));
        status =
            plan_make(&plan, &problem.request, &problem.costs, problem.samples, problem.num_samples, arena);
        if (status != STATUS_OK && status != STATUS_INFEASIBLE) { return status; }
        if (status != STATUS_OK || (found && plan.makespan_ns >= out->makespan_ns)) { continue; }
        *out = plan;
        found = true;
    }
    return found ? STATUS_OK : status;
}

// Two plans at the width of a page.
static Status draw_both(const PlanOptions* options, const TimelineSvgInfo* info, const Plan* plan,
                        const char* path, Arena* arena) {
    Plan best;
    char name[48];
    TRY(make_best(&best, options, path, arena));
    TimelineSvgInfo of_both = *info;
    of_both.plot_px = 640;
    snprintf(name, sizeof name, "%s at its best", best.policy);
    const char* first = strcmp(plan->policy, "dynamic") == 0 ? "dynamic micro-batches" : plan->policy;
    TimelineSvgPlan plans[] = {{plan, first, info->memory_limit_bytes},
                               {&best, name, info->memory_limit_bytes}};
    return timeline_svg_write_plans(options->svg, plans, 2, &of_both);
}

static Status draw(const PlanOptions* options, const Problem* problem, const Plan* plan, const char* path,
                   Arena* arena) {
    int32_t num_ranks = plan->P * plan->R;
    int64_t* limits_bytes;
    ARENA_TRY_NEW(limits_bytes, arena, int64_t, num_ranks);
    for (int32_t r = 0; r < num_ranks; r++) { limits_bytes[r] = problem_limit_bytes(&problem->request, r); }
    const char* slash = strrchr(path, '/');
    TimelineSvgInfo info = {.title = slash != NULL ? slash + 1 : path,
                            .memory_limit_bytes = limits_bytes,
                            .memory_rule = problem->request.memory_rule};
    if (options->compare != 0) { return draw_both(options, &info, plan, path, arena); }
    return timeline_svg_write(options->svg, plan, &info);
}

static Status write_files(const PlanOptions* options, const char* path, const Problem* problem,
                          const Plan* plan, int64_t planning_cpu_ns, Arena* arena) {
    PlanJson json = {plan, problem->costs.num_enc_layers, planning_cpu_ns};
    if (options->json != NULL) {
        TRY(plan_json_check(plan));
        TRY(tool_write(options->json, plan_json_print, &json));
    }
    if (options->text != NULL) { TRY(tool_write(options->text, print_text, plan)); }
    if (options->trace != NULL) { TRY(write_trace(plan, problem->request.memory_rule, options->trace)); }
    return options->svg != NULL ? draw(options, problem, plan, path, arena) : STATUS_OK;
}

static bool is_stdout(const char* path) {
    return path != NULL && strcmp(path, "-") == 0;
}

// Two outputs in one place would leave the second, or both, one after the other.
static Status check_places(const PlanOptions* options) {
    if (options->compare != 0 && options->svg == NULL) {
        return FAIL(STATUS_BAD_OPTION, "--compare: is for a picture ---> --svg FILE as well");
    }
    const char* const names[] = {"--json", "--text", "--svg", "--trace"};
    const char* const paths[] = {options->json, options->text, options->svg, options->trace};
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < i; k++) {
            if (paths[i] == NULL || paths[k] == NULL || strcmp(paths[i], paths[k]) != 0) { continue; }
            return FAIL(STATUS_BAD_OPTION, "%s and %s: both to '%s' ---> name two files", names[k], names[i],
                        paths[i]);
        }
    }
    return STATUS_OK;
}

static Status show(const PlanOptions* options, const Problem* problem, const Plan* plan,
                   int64_t planning_cpu_ns, Arena* arena) {
    const PlanRequest* request = &problem->request;
    Waterfall waterfall;
    PlanMemory* memory;
    ARENA_TRY_NEW(memory, arena, PlanMemory, plan->P * plan->R);
    TRY(plan_memory_make(memory, plan, &problem->costs, request->memory_rule));
    TRY(waterfall_make(&waterfall, plan, &problem->costs, request, problem->samples, problem->num_samples,
                       arena));
    plan_print_microbatches(plan, stdout);
    printf("\n");
    plan_print_timeline(plan, options->width, stdout);
    printf("\n");
    plan_memory_print(memory, plan, request, stdout);
    printf("\n");
    waterfall_print(&waterfall, stdout);
    if (options->explain) {
        PlanExplain about = {plan, request, &problem->costs, memory, &waterfall};
        printf("\n");
        plan_explain_print(&about, stdout);
    }
    printf("\nplanned in %s of one core\n", TIME_TEXT(planning_cpu_ns, 3));
    return STATUS_OK;
}

static Status run(const void* taken, const char* path, Problem* problem, Arena* arena) {
    const PlanOptions* options = taken;
    Plan plan;
    TRY(check_places(options));
    TRY(problem_load(problem, path, &options->problem, arena));
    TRY(request_make(problem, options));
    int64_t begin_ns = clock_cpu_ns();
    TRY(plan_make(&plan, &problem->request, &problem->costs, problem->samples, problem->num_samples, arena));
    if (plan.bound_over_ns > 0) {
        return FAIL(
            STATUS_INVALID_PLAN,
            "%s: the lower bound lies %lld ns above this plan's makespan, %lld ns: one of them is wrong "
            "---> please report it, with the problem and the options",
            path, (long long)plan.bound_over_ns, (long long)plan.makespan_ns);
    }
    int64_t planning_cpu_ns = clock_cpu_ns() - begin_ns;
    TRY(write_files(options, path, problem, &plan, planning_cpu_ns, arena));
    if (is_stdout(options->json) || is_stdout(options->text) || is_stdout(options->svg)) { return STATUS_OK; }
    return show(options, problem, &plan, planning_cpu_ns, arena);
}

int command_plan(int argc, char** argv) {
    PlanOptions options = {0};
    return problem_command(&usage, &options, argc, argv, run);
}
