// session_stages.c -- the stage split of a run and the effort of its plans, from batches as the mixture draws
// them.
#include <math.h>
#include <string.h>

#include "../../util/program.h"
#include "../plan/planner.h"
#include "../plan/problem/placement_make.h"
#include "session.h"

enum { LEAST_PLANNING_NS = 1000000, MOST_PLANNING_NS = 400000000 };

// What x ms of search leave undone is worth about x0 / x of the step, x0 = 0.1 ms (doc/decisions.md).
#define PLANNING_LOSS_NS INT64_C(100000)

Status session_mixture(StageBatch out[SESSION_MIXTURE], int32_t* num_batches, Dynapipe* dp, Arena* arena) {
    const uint8_t* position;
    size_t num_bytes;
    *num_batches = 0;
    TRY(loader_position(dp->train, &position, &num_bytes, arena));
    loader_rewind(dp->train);
    Status status = STATUS_OK;
    for (int b = 0; b < SESSION_MIXTURE && status == STATUS_OK; b++) {
        LoaderBatch batch;
        status = loader_next(dp->train, &batch, arena);
        if (status == STATUS_OK && batch.num_samples > 0) {
            out[(*num_batches)++] = (StageBatch){batch.lengths, batch.num_samples};
        }
    }
    TRY(status);
    return loader_restore(dp->train, position, num_bytes);
}

// With x of planning a step loses x / threads (ranks plan on cores that compute) + replicas * x0 / x * step:
// least where both are equal.
int64_t session_planning_ns(int64_t step_ns, int32_t num_threads, int32_t num_replicas) {
    double product = (double)step_ns * (double)PLANNING_LOSS_NS * num_threads * num_replicas;
    double best_ns = floor(sqrt(product));
    return best_ns < LEAST_PLANNING_NS  ? LEAST_PLANNING_NS
           : best_ns > MOST_PLANNING_NS ? MOST_PLANNING_NS
                                        : (int64_t)best_ns;
}

// A step of an average batch on the cores there are: as planned, where every thread has one.
static int64_t average_step_ns(const Dynapipe* dp, const StageChoice* choice) {
    const SessionResplit* resplit = &dp->resplit;
    Arena arena = {0};
    Status status = STATUS_OK;
    int64_t sum_ns = 0;
    if (!session_shares_cores(dp) || choice->makespan_ns == 0) { return choice->makespan_ns; }
    for (int32_t b = 0; b < resplit->num_batches && status == STATUS_OK; b++) {
        const StageBatch* batch = &resplit->batches[b];
        Plan plan;
        int64_t **instr_ns, step_ns = 0;
        arena_reset(&arena);
        status = plan_make(&plan, &dp->request, &dp->costs, batch->samples, batch->num_samples, &arena);
        if (status == STATUS_OK) { status = session_predict(&instr_ns, &step_ns, dp, &plan, &arena); }
        sum_ns += step_ns;
    }
    arena_free(&arena);
    return status == STATUS_OK ? sum_ns / resplit->num_batches : choice->makespan_ns;
}

// "4,4,3,1" or "0:2,1:3,1:3,0:2+rows:256,768" (placement_make.h), broken behind a comma where the line is
// long. Returns the columns used of the last line.
static int print_placement(const Dynapipe* dp, const Placement* placement, int column) {
    enum { MOST_COLUMNS = 88 };
    char text[PLACEMENT_CHARS];
    placement_print(text, placement, dp->num_stages);
    for (const char* at = text; *at != '\0'; at++) {
        column += printf("%c", *at);
        if (*at == ',' && column >= MOST_COLUMNS) { column = printf("\n        ") - 1; }
    }
    return column;
}

// Behind what is there, or in a line of its own. Returns the column behind it.
static int print_words(const char* words, int column) {
    enum { MOST_COLUMNS = 100 };
    int num_chars = (int)strlen(words);
    if (column + 1 + num_chars <= MOST_COLUMNS) { return column + printf(" %s", words); }
    return printf("\n        %s", words) - 1;
}

static void print_choice(const Dynapipe* dp, const StageChoice* choice, int32_t num_batches, double seconds) {
    int64_t step_ns = average_step_ns(dp, choice);
    bool is_told = session_placed_by_list(dp) && choice->num_splits <= 1;
    int column = print_placement(dp, &choice->placement, printf("stages: "));
    if (placement_is_linear(&choice->placement, dp->num_stages)) { column += printf(" layers"); }
    char how[80] = "(as told);", about[120];
    if (!is_told) {
        snprintf(how, sizeof how, "(of %d splits planned for %d batches, %.1f s);", choice->num_splits,
                 num_batches, seconds);
    }
    int num_chars =
        snprintf(about, sizeof about, "a step of about %s%s", TIME_TEXT(step_ns + session_update_ns(dp), 3),
                 step_ns != choice->makespan_ns ? " on these cores" : "");
    if (dp->request.effort > 0) {
        snprintf(about + num_chars, sizeof about - (size_t)num_chars, ", planned at --effort %d",
                 dp->request.effort);
    }
    column = print_words(how, column);
    print_words(about, column);
    printf("\n");
    const Progress* progress = &dp->progress;
    if (progress->reason != NULL && dp->transport.num_ranks > 1) {
        printf("messages %s: %s\n", progress_words(progress->pulls), progress->reason);
    }
    fflush(stdout);
}

// Every sample of the data has to fit on its stages, in the step that draws it: after hours, maybe.
static Status check_largest(const PlanRequest* request, const CostModel* costs,
                            const LargestSamples* largest) {
    const ShapeRules* rules = &request->rules;
    bool is_limited = request->memory_limit_bytes > 0 || rules->max_squares > 0 || rules->max_tokens > 0;
    for (int32_t r = 0; r < request->P * request->R; r++) {
        is_limited |= machine_rank(request->machine, r).memory_limit_bytes > 0;
    }
    PlanRequest alone = *request;
    alone.choose_stages = false;
    alone.placements = PLACEMENT_GIVEN;
    alone.heads = HEAD_CHOICE_GIVEN;
    alone.effort = 1;
    Arena arena = {0};
    Status status = STATUS_OK;
    for (int32_t i = 0; i < largest->num_samples && is_limited && status == STATUS_OK; i++) {
        Plan plan;
        arena_reset(&arena);
        status = plan_make(&plan, &alone, costs, &largest->samples[i], 1, &arena);
    }
    arena_free(&arena);
    if (status != STATUS_INFEASIBLE) { return status; }
    return FAIL(status, "of the data's largest samples, whenever it is drawn (a smaller -t cuts it): %s",
                status_message());
}

// Where the split for the mixture leaves no room for one of the data's largest samples, one for both.
static Status search_stages(StageChoice* out, PlanRequest* request, const CostModel* costs,
                            StageBatch batches[SESSION_MIXTURE + 1], int32_t num_batches,
                            const LargestSamples* largest) {
    char failure[1024];
    TRY(stage_search(out, request, costs, batches, num_batches));
    request->placement = out->placement;
    Status status = check_largest(request, costs, largest);
    if (status != STATUS_INFEASIBLE || !request->choose_stages) { return status; }
    snprintf(failure, sizeof failure, "%s", status_message());
    batches[num_batches] = (StageBatch){largest->samples, largest->num_samples};
    status = stage_search(out, request, costs, batches, num_batches + 1);
    if (status == STATUS_OK) {
        request->placement = out->placement;
        status = check_largest(request, costs, largest);
    }
    return status == STATUS_INFEASIBLE ? FAIL(status, "%s", failure) : status;
}

// Every rank would find the same; where ranks share cores each would wait for all others to have found it. So
// the first one searches, and tells the choice, or why there is none.
static Status choose_on_first(StageChoice* out, Dynapipe* dp, StageBatch* batches) {
    enum { WAITS = 10 };               // times the usual wait for a message
    static const LargestSamples none;  // a run that only looks at the model draws none to train on
    struct {
        StageChoice choice;
        Status status;
        char message[1024];
    } found = {0};
    if (dp->transport.rank == 0) {
        PlanRequest request = dp->request;
        SlowNotice* notice = slow_notice_begin("choosing stages for the mixture", NULL, 0);
        found.status = search_stages(&found.choice, &request, &dp->costs, batches, dp->resplit.num_batches,
                                     dp->num_steps > 0 ? loader_largest(dp->train) : &none);
        slow_notice_end(notice);
        if (found.status != STATUS_OK) {
            snprintf(found.message, sizeof found.message, "%s", status_message());
        }
    }
    int64_t timeout_ns = dp->world.timeout_ns;
    dp->world.timeout_ns = WAITS * timeout_ns;
    Status status =
        dp->world.num_ranks > 1 ? collective_broadcast(&dp->world, &found, sizeof found, 0) : STATUS_OK;
    dp->world.timeout_ns = timeout_ns;
    TRY(status);
    *out = found.choice;
    return found.status == STATUS_OK ? STATUS_OK : FAIL(found.status, "%s", found.message);
}

Status session_stages_choose(Dynapipe* dp) {
    StageChoice choice;
    SessionResplit* resplit = &dp->resplit;
    int64_t begin_ns = clock_now_ns();
    if (session_shares_cores(dp)) { dp->refit.is_on = false; }
    StageBatch* batches = ARENA_NEW(&resplit->arena, StageBatch, SESSION_MIXTURE + 1);
    if (batches == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for batches"); }
    TRY(session_mixture(batches, &resplit->num_batches, dp, &resplit->arena));
    resplit->batches = batches;
    TRY(choose_on_first(&choice, dp, batches));
    dp->request.placement = choice.placement;
    dp->request.choose_stages = false;
    dp->request.placements = PLACEMENT_GIVEN;
    dp->request.heads = HEAD_CHOICE_GIVEN;
    if (dp->options.effort == 0 && choice.makespan_ns > 0) {
        int64_t planning_ns = session_planning_ns(choice.makespan_ns, dp->plan_threads, dp->num_replicas);
        dp->request.effort = plan_effort(&dp->request, planning_ns);
    }
    if (dp->transport.rank == 0) {
        session_account_warn(dp);
        print_choice(dp, &choice, resplit->num_batches, (double)(clock_now_ns() - begin_ns) / 1e9);
    }
    return STATUS_OK;
}
