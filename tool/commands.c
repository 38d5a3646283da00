#include "commands.h"

#include <string.h>
#include "../dynapipe_plugin/plan/planner.h"
#include "../dynapipe_plugin/plan/stage_search.h"
#include "plan_views.h"
#include "problem.h"
#include "report.h"
#include "timeline_svg.h"
#include "waterfall.h"
#include "../util/files.h"
#include "../util/program.h"
#include "../util/status.h"

// One call of a command: its options, the files named, memory for all it makes.
typedef struct {
    const void* options;
    int num_files;
    char** files;
    Arena* arena;
} Call;

// Writes a temporary file, then renames it ("-": stdout). print() writes to the given stream.
typedef void ToolPrint(FILE* out, const void* what);

static Status tool_write(const char* path, ToolPrint* print, const void* what) {
    if (strcmp(path, "-") == 0) {
        print(stdout, what);
        return STATUS_OK;
    }
    FileWriter writer;
    TRY(file_writer_open(&writer, path));
    print(writer.file, what);
    return file_writer_commit(&writer);
}

// --- ./dynapipe plan ---------------------------------------------------------------------------------------

typedef struct {
    ProblemOptions problem;
    int32_t policy, compare, layout, schedule, split_backward, recompute;
    int32_t effort, mb_tokens;
    const char *placement, *head, *slices, *json, *svg, *text;
} PlanOptions;

#define FIELD(f) offsetof(PlanOptions, f)
// Choices stand in the order of the enums in plan_request.h.
// clang-format off
static const OptionSpec command_plan_specs[] = {
    {"--policy",         OPTION_CHOICE, FIELD(policy),         "auto", 0, 0, "auto|dynapipe|packed|packed-ragged|padded|tokens|kk", NULL,
     "how samples form microbatches. auto: the best found; dynapipe: as in the EuroSys'24 paper; the others are baselines"},
    {"--layout",         OPTION_CHOICE, FIELD(layout),         "auto", 0, 0, "auto|ragged|padded", NULL, "tokens of a microbatch, for auto, dynapipe, tokens. auto: padded for dynapipe, else ragged"},
    {"--schedule",       OPTION_CHOICE, FIELD(schedule),       "auto", 0, 0, "auto|gpipe|1f1b|adaptive", NULL, "pipeline order"},
    {"--split-backward", OPTION_CHOICE, FIELD(split_backward), "auto", 0, 0, "auto|on|off", NULL, "weight gradients as jobs of their own"},
    {"--placement",      OPTION_STRING, FIELD(placement),      NULL,   0, 0, NULL, "WHERE", "auto, linear, interleaved, vee, stacks, equal (linear, equally many layers on each stage), layers of each stage (encoder first), such as 4,4.5,3.5, or stage:layers of every chunk, such as 0:3,1:3,1:3,0:3; default: auto for policy auto, else equal"},
    {"--head",           OPTION_STRING, FIELD(head),           NULL,   0, 0, NULL, "SPLIT", "the head: auto, whole, rows, vocabulary, or vocabulary:256,256,512,0 (rows:..), a share of 1024 for each stage; default: auto, with --placement equal whole"},
    {"--recompute",      OPTION_CHOICE, FIELD(recompute),      "auto", 0, 0, "none|full|auto", NULL, "run forward again instead of keeping activations"},
    {"--slices",         OPTION_STRING, FIELD(slices),         "auto", 0, 0, NULL, "N", "cut long samples along their tokens into at most N pieces, for auto; off: never; auto: up to 8"},
    {"--effort",         OPTION_INT,    FIELD(effort),         "0",    0, 1e9, NULL, "N", "simulations the search may spend; 0: its default"},
    {"--mb-tokens",      OPTION_INT,    FIELD(mb_tokens),      "0",    0, 1e9, NULL, "N", "tokens of a microbatch for packed, packed-ragged, padded, tokens; 0: the longest sample"},
    {"--json",           OPTION_STRING, FIELD(json),           NULL,   0, 0, NULL, "FILE", "write the plan in the published format (-: stdout, which then has nothing else)"},
    {"--text",           OPTION_STRING, FIELD(text),           NULL,   0, 0, NULL, "FILE", "write the plan as text (-: stdout)"},
    {"--svg",            OPTION_STRING, FIELD(svg),            NULL,   0, 0, NULL, "FILE", "draw the timeline (-: stdout)"},
    {"--compare",        OPTION_CHOICE, FIELD(compare),        "none", 0, 0, "none|dynapipe|packed|packed-ragged|padded|tokens|kk|whole", NULL, "with --svg: draw this plan above the best of that policy (best order, size of microbatches and split of layers, one chunk a stage), on one time axis; whole: above what --slices off gives"},
    PROBLEM_OPTIONS(PlanOptions, problem),
};
// clang-format on
enum { LAYOUT_CHOICE_AUTO, LAYOUT_CHOICE_RAGGED, LAYOUT_CHOICE_PADDED };

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
    request->mb_tokens = options->mb_tokens;
    TRY(plan_slices_parse(&request->max_pieces, options->slices));
    const char *placement = options->placement, *head = options->head;
    const bool is_fixed = options->schedule == SCHEDULE_GPIPE || options->schedule == SCHEDULE_1F1B;
    const bool is_dynamic = request->batching == BATCHING_DYNAMIC;
    if (placement == NULL) { placement = !is_dynamic ? "equal" : is_fixed ? "linear" : "auto"; }
    if (head == NULL && is_fixed) { head = "whole"; }  // these schedules know no shares
    return problem_place(problem, placement, head);
}

static void print_text(FILE* out, const void* plan) {
    plan_print(plan, out);
}

typedef struct {
    TimelinePlan plans[2];
    int32_t num_plans;
    TimelineInfo info;
    Status status;
} PlanPicture;

static void print_svg(FILE* out, const void* taken) {
    PlanPicture* picture = (PlanPicture*)(uintptr_t)taken;
    picture->status = timeline_svg_print(out, picture->plans, picture->num_plans, &picture->info);
}

// Two plans side by side take one page width.
static Status draw(const PlanOptions* options, const Problem* problem, const Plan* plan, const char* path,
                   Arena* arena) {
    bool compares = options->compare != 0;
    const char *slash = strrchr(path, '/'), *name = plan->policy;
    Plan best;
    char best_name[48];
    int64_t* limits_bytes;
    ARENA_TRY_NEW(limits_bytes, arena, int64_t, plan->P * plan->R);
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        limits_bytes[r] = problem_limit_bytes(&problem->request, r);
    }
    if (options->compare == BATCHING_COUNT) {
        PlanRequest whole = problem->request;
        whole.max_pieces = 1;
        TRY(plan_make(&best, &whole, &problem->costs, problem->samples, problem->num_samples, arena));
        snprintf(best_name, sizeof best_name, "samples whole");
        name = "long samples in pieces";
    } else if (compares) {
        const StageBatch batch = {problem->samples, problem->num_samples};
        TRY(stage_rival_plan(&best, &problem->request, &problem->costs, &batch, (Batching)options->compare,
                             SCHEDULE_AUTO, arena));
        snprintf(best_name, sizeof best_name, "%s at its best", best.policy);
        if (strcmp(name, "dynamic") == 0) { name = "dynamic microbatches"; }
    }
    PlanPicture picture = {.plans = {{plan, name}, {&best, best_name}},
                           .num_plans = compares ? 2 : 1,
                           .info = {.title = slash != NULL ? slash + 1 : path,
                                    .memory_rule = problem->request.memory_rule,
                                    .memory_limit_bytes = limits_bytes,
                                    .plot_px = compares ? 640 : 0}};
    Status status = tool_write(options->svg, print_svg, &picture);
    return picture.status != STATUS_OK ? picture.status : status;
}

static Status write_files(const PlanOptions* options, const char* path, const Problem* problem,
                          const Plan* plan, int64_t planning_cpu_ns, Arena* arena) {
    PlanJson json = {plan, planning_cpu_ns};
    if (options->json != NULL) {
        TRY(plan_json_check(plan));
        TRY(tool_write(options->json, plan_json_print, &json));
    }
    if (options->text != NULL) { TRY(tool_write(options->text, print_text, plan)); }
    return options->svg != NULL ? draw(options, problem, plan, path, arena) : STATUS_OK;
}

static bool is_stdout(const char* path) {
    return path != NULL && strcmp(path, "-") == 0;
}

static Status show(const PlanOptions* options, const Problem* problem, const Plan* plan,
                   int64_t planning_cpu_ns, Arena* arena) {
    const PlanRequest* request = &problem->request;
    Waterfall waterfall;
    PlanAccount account;
    TRY(plan_account_make(&account, plan, problem, arena));
    TRY(waterfall_make(&waterfall, plan, &problem->costs, request, problem->samples, arena));
    plan_print_microbatches(plan, stdout);
    printf("\n");
    plan_print_timeline(plan, PLAN_TIMELINE_COLUMNS, stdout);
    printf("\n");
    plan_memory_print(&account, plan, problem, stdout);
    printf("\n");
    waterfall_print(&waterfall, stdout);
    printf("\n");
    plan_explain_print(plan, problem, &waterfall, stdout);
    printf("\nplanned in %s of one core\n", TIME_TEXT(planning_cpu_ns, 3));
    // Of somebody's own data, where layers may move for ours as for rivals; not of published problems.
    const StageBatch batch = {problem->samples, problem->num_samples};
    const bool is_fair = options->policy == BATCHING_DYNAMIC && request->choose_stages;
    return is_fair && request->memory_rule == MEMORY_BUFFERS
               ? stage_print_gain(stdout, request, &problem->costs, &batch, 1)
               : STATUS_OK;
}

static Status command_plan(Call* call) {
    const PlanOptions* options = call->options;
    const char* path = call->files[0];
    Arena* arena = call->arena;
    Problem* problem;
    Plan plan;
    if (options->compare != 0 && options->svg == NULL) {
        return FAIL(STATUS_BAD_OPTION, "--compare: is for a picture ---> --svg FILE as well");
    }
    if (is_stdout(options->json) + is_stdout(options->text) + is_stdout(options->svg) > 1) {
        return FAIL(STATUS_BAD_OPTION,
                    "--json, --text, --svg: only one fits on standard output ---> FILE for the others");
    }
    ARENA_TRY_NEW(problem, arena, Problem, 1);
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

// --- ./dynapipe report -------------------------------------------------------------------------------------

typedef struct {
    const char* out;
} ReportOptions;

// clang-format off
static const OptionSpec command_report_specs[] = {
    {"-o", OPTION_STRING, offsetof(ReportOptions, out), "report.html", 0, 0, NULL, "FILE", "the page (-: standard output)"},
};
// clang-format on

static void print_report(FILE* out, const void* runs) {
    report_print(out, runs);
}

static Status load_report(json_t* runs, const Call* call) {
    const ReportOptions* options = call->options;
    for (int k = 0; k < call->num_files; k++) {
        json_t* run;
        TRY(report_run_load(&run, call->files[k]));
        json_array_append_new(runs, run);
    }
    TRY(tool_write(options->out, print_report, runs));
    if (strcmp(options->out, "-") == 0) { return STATUS_OK; }
    printf("%s:", options->out);
    for (int k = 0; k < call->num_files; k++) {
        const json_t* run = json_array_get(runs, (size_t)k);
        printf("%s %zu steps, %zu tasks",
               k == 0       ? ""
               : k % 3 == 0 ? ";\n "
                            : ";",
               json_array_size(json_object_get(run, "steps")),
               json_object_size(json_object_get(run, "tasks")));
    }
    printf("\n");
    return STATUS_OK;
}

static Status command_report(Call* call) {
    json_t* runs = json_array();
    Status status = load_report(runs, call);
    json_decref(runs);
    return status;
}

// --- all commands ------------------------------------------------------------------------------------------

typedef struct {
    const char *name, *arguments, *help, *about;  // help: one line; about: of its own --help
    const OptionSpec* specs;
    int num_specs, max_files;
    Status (*run)(Call* call);
} Command;

#define SPECS(table) table, sizeof table / sizeof *table
static const Command commands[] = {
    {"plan", "PROBLEM.json|LENGTHS.csv|train.bin", "plan one batch: table, timeline, memory, bound",
     "Plans one batch and prints microbatches, timeline, memory and bound.\n", SPECS(command_plan_specs), 1,
     command_plan},
    {"report", "RUN...", "training runs as one page of charts",
     "Draws what the trainer logged in its -o directory (or metrics.jsonl in there): loss, loss\n"
     "per task, throughput, padding, idle time, predicted against measured step time, MFU, memory\n"
     "and planning, over the steps. Several runs stand side by side. The page needs no network.\n",
     SPECS(command_report_specs), REPORT_MAX_RUNS, command_report},
};
enum { NUM_COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(const Command* command) {
    if (command != NULL) {
        printf("usage: ./dynapipe %s %s [options]\n%s", command->name, command->arguments, command->about);
        printf("options [default]:\n");
        options_print(command->specs, command->num_specs, stdout);
        return;
    }
    printf("usage: ./dynapipe COMMAND FILE... [options]\n\n");
    for (int i = 0; i < NUM_COMMANDS; i++) {
        printf("  %-7s %-34s %s\n", commands[i].name, commands[i].arguments, commands[i].help);
    }
    printf("\n./dynapipe COMMAND --help lists its options. Exit status: 0 done; 1 it failed;\n"
           "2 wrong use; 3 nothing fits in memory.\n");
}

static Status run_command(Call* call, const Command* command, void* options, int argc, char** argv) {
    TRY(options_defaults(command->specs, command->num_specs, options));
    TRY(options_take(command->specs, command->num_specs, options, &argc, argv, NULL));
    if (options_want_help(argc, argv)) {
        print_help(command);
        return STATUS_OK;
    }
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-' && argv[i][1] != '\0') {
            return FAIL(STATUS_BAD_OPTION, "%s: unknown option ---> --help lists all", argv[i]);
        }
    }
    call->options = options;
    call->num_files = argc - 1;
    call->files = argv + 1;
    if (call->num_files < 1 || call->num_files > command->max_files) {
        return FAIL(STATUS_BAD_OPTION,
                    "%s: %d files ---> usage: ./dynapipe %s %s [options]; --help lists them", command->name,
                    call->num_files, command->name, command->arguments);
    }
    return command->run(call);
}

static Status find_command(const Command** out, int argc, char** argv) {
    *out = NULL;
    for (int i = 0; i < NUM_COMMANDS && argc > 1; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) { *out = &commands[i]; }
    }
    if (*out != NULL) { return STATUS_OK; }
    return argc < 2
               ? FAIL(STATUS_BAD_OPTION, "no command ---> ./dynapipe --help lists them")
               : FAIL(STATUS_BAD_OPTION, "%s: no such command ---> ./dynapipe --help lists them", argv[1]);
}

int tool_main(int argc, char** argv) {
    union {
        PlanOptions plan;
        ReportOptions report;
    } options;
    Arena arena = {0};
    Call call = {.arena = &arena};
    const Command* command;
    memset(&options, 0, sizeof options);
    if (argc > 1 && (strcmp(argv[1], "help") == 0 || options_want_help(2, argv))) {
        print_help(NULL);
        return TOOL_OK;
    }
    if (version_is_wanted(argc, argv)) {
        version_print("dynapipe", stdout);
        return TOOL_OK;
    }
    Status status = find_command(&command, argc, argv);
    if (status == STATUS_OK) { status = run_command(&call, command, &options, argc - 1, argv + 1); }
    arena_free(&arena);
    if (status == STATUS_OK) { return TOOL_OK; }
    fprintf(stderr, "error: %s\n", status_message());
    return status == STATUS_INFEASIBLE   ? TOOL_INFEASIBLE
           : status == STATUS_BAD_OPTION ? TOOL_WRONG_USE
                                         : TOOL_FAILED;
}
