#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../base/clock.h"
#include "../base/hash.h"
#include "../plan/planner.h"
#include "../plan/types/mb_shape.h"
#include "piece_move.h"
#include "session.h"
#include "session_refit.h"

// Times of a rank, against those of the others, that are off by less than this since the split was searched:
// another search finds the same.
static const double LEAST_CHANGE = 0.05;
// What a move must win of a step; back to the split before, more: times that go to and fro are no reason to
// carry layers after them.
static const double LEAST_GAIN = 0.05, LEAST_GAIN_BACK = 0.10;
enum { REST_STEPS = 10 };             // between two moves
#define SEARCH_NS INT64_C(600000000)  // of planning
// Pages of arrays that are new, and the copy of what stays on its rank: 0.5 s of a core a GiB.
static const double COPY_NS_PER_BYTE = 0.5;

void session_resplit_free(SessionResplit* resplit) {
    arena_free(&resplit->arena);
    free(resplit->times_then);
    free(resplit->position);
    free(resplit->record);
}

static size_t stages_bytes(const Dynapipe* dp) {
    return (size_t)dp->num_stages * sizeof *dp->request.placement.chunks;
}

// --- is there something to look at? ------------------------------------------------------------------------

// What a rank's jobs take of the samples of all batches, in one micro-batch: to be compared with itself.
static double rank_time(const Dynapipe* dp, const CostModel* costs, const Machine* machine, int32_t rank) {
    MbShape shape = {0};
    int32_t s = rank % dp->num_stages;
    CostStage stage = cost_stage_make(costs, &dp->request.placement.chunks[s], s, dp->num_stages);
    MachineRank about = machine_rank(machine, rank);
    for (int32_t b = 0; b < dp->resplit.num_batches; b++) {
        const StageBatch* batch = &dp->resplit.batches[b];
        for (int32_t i = 0; i < batch->num_samples; i++) {
            const PlanSample* sample = &batch->samples[i];
            mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
        }
    }
    double sum = 0;
    for (int32_t kind = JOB_F; kind <= JOB_W; kind++) {
        int64_t job_ns = cost_job_ns(costs, &stage, (JobKind)kind, RECOMPUTE_NONE, &shape);
        sum += (double)machine_job_ns(&about, (JobKind)kind, job_ns);
    }
    return sum;
}

static Status keep_times(Dynapipe* dp, const CostModel* costs, const Machine* machine) {
    SessionResplit* resplit = &dp->resplit;
    int32_t num_ranks = dp->num_stages * dp->num_replicas;
    if (resplit->times_then == NULL) {
        resplit->times_then = calloc((size_t)num_ranks, sizeof *resplit->times_then);
    }
    if (resplit->times_then == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks); }
    for (int32_t r = 0; r < num_ranks; r++) { resplit->times_then[r] = rank_time(dp, costs, machine, r); }
    return STATUS_OK;
}

bool session_resplit_differs(const double* then, const double* now, int32_t num_ranks) {
    double least = INFINITY, most = 0;
    for (int32_t r = 0; r < num_ranks; r++) {
        double ratio = then[r] > 0 ? now[r] / then[r] : 1;
        least = ratio < least ? ratio : least;
        most = ratio > most ? ratio : most;
    }
    return most > least * (1 + LEAST_CHANGE);
}

static Status has_changed(bool* out, const Dynapipe* dp, const CostModel* costs, const Machine* machine) {
    int32_t num_ranks = dp->num_stages * dp->num_replicas;
    double* now = malloc((size_t)num_ranks * sizeof *now);
    if (now == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks); }
    for (int32_t r = 0; r < num_ranks; r++) { now[r] = rank_time(dp, costs, machine, r); }
    *out = session_resplit_differs(dp->resplit.times_then, now, num_ranks);
    free(now);
    return STATUS_OK;
}

// --- does it pay? ------------------------------------------------------------------------------------------

// While layers move, a rank holds what it had and what it gets.
static bool both_fit(const Dynapipe* dp, const CostModel* costs, const Machine* machine,
                     const LayerRange* stages) {
    bool fits = true;
    for (int32_t r = 0; r < dp->num_stages * dp->num_replicas; r++) {
        int32_t s = r % dp->num_stages;
        CostStage before = cost_stage_make(costs, &dp->request.placement.chunks[s], s, dp->num_stages);
        CostStage behind = cost_stage_make(costs, &stages[s], s, dp->num_stages);
        int64_t own_bytes = machine_rank(machine, r).memory_limit_bytes;
        int64_t limit_bytes = own_bytes > 0 ? own_bytes : dp->options.memory_limit_bytes;
        fits &= limit_bytes == 0 ||
                cost_state_bytes(costs, &before) + cost_state_bytes(costs, &behind) <= limit_bytes;
    }
    return fits;
}

// What travels over the busiest boundary, at the pace of a link between stages; what the largest rank copies;
// and the steps that are planned anew while nobody computes.
static int64_t move_ns(const Dynapipe* dp, const CostModel* costs, const StageChoice* choice) {
    int64_t most_bytes = 0, state_bytes = 0;
    for (int32_t s = 0; s < dp->num_stages; s++) {
        LayerRange moved = {choice->placement.chunks[s].layer_end, dp->request.placement.chunks[s].layer_end};
        if (moved.layer_begin > moved.layer_end) { moved = (LayerRange){moved.layer_end, moved.layer_begin}; }
        CostStage layers = {.layers = moved};
        CostStage stage = cost_stage_make(costs, &choice->placement.chunks[s], s, dp->num_stages);
        int64_t moved_bytes = cost_state_bytes(costs, &layers), all_bytes = cost_state_bytes(costs, &stage);
        most_bytes = moved_bytes > most_bytes ? moved_bytes : most_bytes;
        state_bytes = all_bytes > state_bytes ? all_bytes : state_bytes;
    }
    int64_t planning_ns = session_planning_ns(choice->makespan_ns, dp->plan_threads, dp->num_replicas);
    return cost_transfer_ns(costs, most_bytes) + (int64_t)(COPY_NS_PER_BYTE * (double)state_bytes) +
           planning_ns * (dp->options.plan_ahead + 1);
}

bool session_resplit_pays(const ResplitOffer* offer) {
    double least_gain = offer->is_back ? LEAST_GAIN_BACK : LEAST_GAIN;
    int64_t gain_ns = offer->present_ns - offer->then_ns;
    return (double)gain_ns > least_gain * (double)offer->present_ns && offer->steps_left > 0 &&
           gain_ns > offer->move_ns / offer->steps_left;
}

// From the present split to that of `choice`, which makes a step of an average batch so much shorter.
static bool pays(const Dynapipe* dp, const CostModel* costs, const StageChoice* choice, int64_t present_ns) {
    const SessionResplit* resplit = &dp->resplit;
    bool is_back =
        resplit->has_moved && memcmp(choice->placement.chunks, resplit->before, stages_bytes(dp)) == 0;
    ResplitOffer offer = {.present_ns = present_ns,
                          .then_ns = choice->makespan_ns,
                          .move_ns = move_ns(dp, costs, choice),
                          .steps_left = dp->num_steps - dp->next_step,
                          .is_back = is_back};
    return session_resplit_pays(&offer);
}

static void print_split(const Dynapipe* dp, const LayerRange* stages) {
    for (int32_t s = 0; s < dp->num_stages; s++) {
        printf("%s%d", s > 0 ? "," : "", stages[s].layer_end - stages[s].layer_begin);
    }
}

static void say_move(const Dynapipe* dp, const LayerRange* stages, const char* why) {
    if (dp->transport.rank != 0) { return; }
    printf("layers move behind step %d: stages ", dp->next_step);
    print_split(dp, dp->request.placement.chunks);
    printf(" become ");
    print_split(dp, stages);
    printf(" (%s)\n", why);
    fflush(stdout);
}

// A step that is planned with other costs than those of the search plans as long as a step of that length.
static int32_t effort_for(const Dynapipe* dp, int64_t makespan_ns) {
    if (dp->options.effort != 0 || makespan_ns == 0) { return dp->request.effort; }
    int64_t planning_ns = session_planning_ns(makespan_ns, dp->plan_threads, dp->num_replicas);
    return plan_effort(&dp->request, planning_ns);
}

// What the corrected costs ask for; `stages` as they are: nothing.
static Status search(Dynapipe* dp, const CostModel* costs, const Machine* machine, LayerRange* stages) {
    SessionResplit* resplit = &dp->resplit;
    StageChoice choice;
    int64_t present_ns, begin_ns = clock_now_ns();
    PlanRequest request = dp->request;
    request.machine = machine;
    request.choose_stages = true;
    TRY(keep_times(dp, costs, machine));
    resplit->has_searched = true;
    TRY(stage_search_again(&choice, &present_ns, &request, costs, resplit->batches, resplit->num_batches,
                           SEARCH_NS));
    double search_s = (double)(clock_now_ns() - begin_ns) / 1e9;
    bool moves = present_ns > 0 &&
                 memcmp(choice.placement.chunks, dp->request.placement.chunks, stages_bytes(dp)) != 0 &&
                 pays(dp, costs, &choice, present_ns) &&
                 both_fit(dp, costs, machine, choice.placement.chunks);
    if (!moves) { return STATUS_OK; }
    char why[160];
    snprintf(why, sizeof why, "a step of about %.0f ms in place of %.0f ms; %d splits looked at in %.1f s",
             (double)choice.makespan_ns / 1e6, (double)present_ns / 1e6, choice.num_splits, search_s);
    say_move(dp, choice.placement.chunks, why);
    memcpy(stages, choice.placement.chunks, stages_bytes(dp));
    resplit->effort_then = effort_for(dp, choice.makespan_ns);
    return STATUS_OK;
}

bool session_resplit_may_look(const Dynapipe* dp) {
    const SessionResplit* resplit = &dp->resplit;
    bool rests = resplit->has_moved && dp->next_step < resplit->moved_step + REST_STEPS;
    bool is_fixed = resplit->kind != RESPLIT_AUTO || dp->options.stage_split != NULL || dp->num_stages == 1;
    return !rests && !is_fixed && dp->next_step < dp->num_steps;
}

static Status look(Dynapipe* dp, LayerRange* stages) {
    SessionResplit* resplit = &dp->resplit;
    const CostModel* costs;
    const Machine* machine;
    if (session_refit_now(dp, &costs, &machine)) { resplit->is_due = true; }
    if (!resplit->is_due || !session_resplit_may_look(dp)) { return STATUS_OK; }
    resplit->is_due = false;
    bool changed = false;
    TRY(has_changed(&changed, dp, costs, machine));
    return changed ? search(dp, costs, machine, stages) : STATUS_OK;
}

// The split from here on; *moves false: the present one.
static Status decide(Dynapipe* dp, LayerRange* stages, bool* moves) {
    SessionResplit* resplit = &dp->resplit;
    bool is_told;
    memcpy(stages, dp->request.placement.chunks, stages_bytes(dp));
    TRY(session_resplit_told(dp, stages, &is_told));
    bool is_restored = resplit->has_restored && !is_told;
    if (is_restored) { memcpy(stages, resplit->restored, sizeof resplit->restored); }
    resplit->has_restored = false;
    resplit->effort_then = dp->request.effort;
    // Behind a checkpoint's step it was decided before that was saved.
    bool is_resumed = dp->now == NULL;
    if (!is_told && !is_restored && !is_resumed) { TRY(look(dp, stages)); }
    *moves = memcmp(stages, dp->request.placement.chunks, stages_bytes(dp)) != 0;
    if (*moves && (is_told || is_restored)) {
        say_move(dp, stages, is_told ? "as told" : "as the checkpoint has it");
    }
    if (*moves && !is_restored) {
        memcpy(resplit->before, dp->request.placement.chunks, sizeof resplit->before);
        resplit->has_moved = true;
        resplit->moved_step = dp->next_step;
    }
    return STATUS_OK;
}

// --- moving ------------------------------------------------------------------------------------------------

// Steps that are planned go; their samples are drawn again.
static Status unplan(Dynapipe* dp) {
    SessionResplit* resplit = &dp->resplit;
    if (dp->now == NULL) {  // no step yet, or moved just now
        session_plan_stop(dp);
        return STATUS_OK;
    }
    void* position = malloc(dp->now->batch.position_bytes);
    if (position == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for the position in the data"); }
    memcpy(position, dp->now->batch.position, dp->now->batch.position_bytes);
    free(resplit->position);
    resplit->position = position;
    resplit->position_bytes = dp->now->batch.position_bytes;
    session_plan_stop(dp);
    return loader_restore(dp->train, resplit->position, resplit->position_bytes);
}

// What ranks take of their layers from now on; a run that goes on has it from where the whole one looked.
static Status renew_times(Dynapipe* dp) {
    SessionResplit* resplit = &dp->resplit;
    const CostModel* costs;
    const Machine* machine;
    if (resplit->has_restored_times) { return STATUS_OK; }
    (void)session_refit_now(dp, &costs, &machine);
    return keep_times(dp, costs, machine);
}

static Status apply(Dynapipe* dp, const LayerRange* stages) {
    char what[64];
    uint64_t hash = hash_finish(hash_bytes(HASH_SEED, stages, stages_bytes(dp)));
    snprintf(what, sizeof what, "hash of the stages behind step %d", dp->next_step);
    TRY(collective_all_equal_u64(&dp->world, hash, what));
    TRY(unplan(dp));
    if (dp->resplit.moved_step == dp->next_step) { session_refit_hasten(&dp->refit, dp->next_step); }
    session_model_detach(dp);
    dp->request.effort = dp->resplit.effort_then;  // nobody plans
    placement_linear(&dp->request.placement, stages, dp->num_stages);
    dp->resplit.is_moving = true;
    dp->resplit.moved_bytes = 0;
    return renew_times(dp);
}

static Status resplit(Dynapipe* dp, DynapipeRange* out, int32_t max_ranges, int32_t* num_ranges) {
    LayerRange stages[PLAN_MAX_STAGES];
    bool moves;
    dp->resplit.is_asked = true;
    dp->resplit.asked_ns = clock_now_ns();
    TRY(session_need_model(dp));
    if (max_ranges < 1) { return FAIL(STATUS_OUT_OF_RANGE, "no room for this rank's range of blocks"); }
    TRY(decide(dp, stages, &moves));
    if (moves) { TRY(apply(dp, stages)); }
    dp->resplit.has_restored_times = false;
    if (!moves) { return STATUS_OK; }
    out[(*num_ranges)++] = session_stage_blocks(dp, dp->stage);
    return STATUS_OK;
}

int dynapipe_resplit(Dynapipe* dp, DynapipeRange* out, int32_t max_ranges, int32_t* num_ranges) {
    *num_ranges = 0;
    return (int)resplit(dp, out, max_ranges, num_ranges);
}

static Status read_device(void* ctx, void* to, const void* from, size_t num_bytes) {
    return session_device_read(ctx, to, from, num_bytes);
}

static Status write_device(void* ctx, void* to, const void* from, size_t num_bytes) {
    return session_device_write(ctx, to, from, num_bytes);
}

int dynapipe_move(Dynapipe* dp, const DynapipePiece_v1* have, int32_t num_have, const DynapipePiece_v1* want,
                  int32_t num_want) {
    const PieceMemory device = {.read = read_device, .write = write_device, .ctx = dp};
    const PieceLists lists = {have, want, num_have, num_want};
    int64_t moved_bytes = 0;
    Status status =
        piece_move(&dp->world, dp->num_stages, dp->device.api != NULL ? &device : NULL, &lists, &moved_bytes);
    dp->resplit.moved_bytes += moved_bytes;
    dp->resplit.moved_ns = clock_now_ns();
    return (int)status;
}

// --- around it ---------------------------------------------------------------------------------------------

Status session_resplit_begin(Dynapipe* dp) {
    LayerRange stages[PLAN_MAX_STAGES];
    bool found;
    TRY(session_resplit_told(dp, stages, &found));
    return keep_times(dp, &dp->costs, dp->request.machine);
}

Status session_resplit_check(Dynapipe* dp) {
    SessionResplit* resplit = &dp->resplit;
    if (resplit->kind == RESPLIT_TOLD && !resplit->is_asked && dp->next_step > dp->first_step) {
        return FAIL(STATUS_BAD_OPTION,
                    "--resplit %.60s: this program cannot move layers (it never calls dynapipe_resplit()) "
                    "---> leave it out, or --resplit off",
                    resplit->told);
    }
    if (resplit->is_moving && dp->transport.rank == 0) {
        printf("moved %.1f MiB between ranks in %.2f s\n", (double)resplit->moved_bytes / 1048576,
               (double)(resplit->moved_ns - resplit->asked_ns) / 1e9);
        fflush(stdout);
    }
    resplit->is_moving = false;
    return STATUS_OK;
}
