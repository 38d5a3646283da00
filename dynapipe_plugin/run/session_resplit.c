#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../util/program.h"
#include "../../util/numbers.h"
#include "../plan/cost/cost_share.h"
#include "../plan/planner.h"
#include "../plan/problem/placement_make.h"
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

static bool is_present(const Dynapipe* dp, const Placement* placement) {
    return placement_equal(placement, &dp->request.placement, dp->num_stages);
}

// --- is there something to look at? ------------------------------------------------------------------------

static MbShape shape_of_batches(const Dynapipe* dp) {
    MbShape shape = {0};
    for (int32_t b = 0; b < dp->resplit.num_batches; b++) {
        const StageBatch* batch = &dp->resplit.batches[b];
        for (int32_t i = 0; i < batch->num_samples; i++) {
            const PlanSample* sample = &batch->samples[i];
            mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
        }
    }
    return shape;
}

static void add_jobs(int64_t job_ns[JOB_COUNT], const CostJobs* jobs) {
    for (int32_t kind = JOB_F; kind <= JOB_W; kind++) { job_ns[kind] += jobs->job_ns[kind]; }
}

// What the jobs of every rank take of the samples of all batches, in one micro-batch, in its chunks and its
// share of the head: to be compared with itself.
static void rank_times(double* out, const Dynapipe* dp, const CostModel* costs, const Machine* machine) {
    const Placement* placement = &dp->request.placement;
    int64_t job_ns[PLAN_MAX_STAGES][JOB_COUNT] = {{0}};
    MbShape shape = shape_of_batches(dp);
    CostTable table;
    CostParts parts;
    CostJobs jobs;
    cost_table_init(&table, costs);
    cost_parts(&parts, &table, RECOMPUTE_NONE, &shape);
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        CostStage chunk = cost_chunk_make(costs, placement, k);
        cost_jobs_of_stage(&jobs, costs, &chunk, &parts);
        add_jobs(job_ns[placement->stage_of[k]], &jobs);
    }
    for (int32_t s = 0; s < dp->num_stages && placement->head != HEAD_WHOLE; s++) {
        cost_jobs_of_share(&jobs, costs, cost_share_of(placement, s), &parts);
        add_jobs(job_ns[s], &jobs);
    }
    for (int32_t r = 0; r < dp->num_stages * dp->num_replicas; r++) {
        MachineRank about = machine_rank(machine, r);
        out[r] = 0;
        for (int32_t kind = JOB_F; kind <= JOB_W; kind++) {
            out[r] += (double)machine_job_ns(&about, (JobKind)kind, job_ns[r % dp->num_stages][kind]);
        }
    }
}

static Status keep_times(Dynapipe* dp, const CostModel* costs, const Machine* machine) {
    SessionResplit* resplit = &dp->resplit;
    int32_t num_ranks = dp->num_stages * dp->num_replicas;
    if (resplit->times_then == NULL) {
        resplit->times_then = calloc((size_t)num_ranks, sizeof *resplit->times_then);
    }
    if (resplit->times_then == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks); }
    rank_times(resplit->times_then, dp, costs, machine);
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
    rank_times(now, dp, costs, machine);
    *out = session_resplit_differs(dp->resplit.times_then, now, num_ranks);
    free(now);
    return STATUS_OK;
}

// --- does it pay? ------------------------------------------------------------------------------------------

// While layers move, a rank holds what it had and what it gets.
static bool both_fit(const Dynapipe* dp, const CostModel* costs, const Machine* machine,
                     const Placement* placement) {
    CostRank before[PLAN_MAX_STAGES], behind[PLAN_MAX_STAGES];
    bool fits = true;
    cost_ranks_make(before, costs, &dp->request.placement, dp->num_stages);
    cost_ranks_make(behind, costs, placement, dp->num_stages);
    for (int32_t r = 0; r < dp->num_stages * dp->num_replicas; r++) {
        int32_t s = r % dp->num_stages;
        int64_t own_bytes = machine_rank(machine, r).memory_limit_bytes;
        int64_t limit_bytes = own_bytes > 0 ? own_bytes : dp->options.memory_limit_bytes;
        fits &= limit_bytes == 0 ||
                cost_rank_state_bytes(costs, &before[s]) + cost_rank_state_bytes(costs, &behind[s]) <=
                    limit_bytes;
    }
    return fits;
}

// Where each layer is.
static void stages_of_layers(int16_t out[COST_MAX_LAYERS], const Placement* placement) {
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        const LayerRange* layers = &placement->chunks[k];
        for (int32_t l = layers->layer_begin; l < layers->layer_end; l++) { out[l] = placement->stage_of[k]; }
    }
}

// Units of the head that stage s has in `now` and had not before.
static int32_t gained_units(const Placement* before, const Placement* now, int32_t s) {
    if (now->head == HEAD_WHOLE || before->head != now->head) { return 0; }
    int32_t begin = now->head_begin[s], end = now->head_begin[s + 1];
    int32_t kept_begin = before->head_begin[s] > begin ? before->head_begin[s] : begin;
    int32_t kept_end = before->head_begin[s + 1] < end ? before->head_begin[s + 1] : end;
    return end - begin - (kept_end > kept_begin ? kept_end - kept_begin : 0);
}

// The most that a stage gets of what it has not.
static int64_t most_gained_bytes(const CostModel* costs, const Placement* before, const Placement* now,
                                 int32_t P) {
    static const int32_t units = HEAD_UNITS;
    int16_t was[COST_MAX_LAYERS] = {0}, is[COST_MAX_LAYERS] = {0};
    int64_t gained_bytes[PLAN_MAX_STAGES] = {0}, most_bytes = 0;
    stages_of_layers(was, before);
    stages_of_layers(is, now);
    for (int32_t l = 0; l < costs->num_enc_layers + costs->num_dec_layers; l++) {
        CostPart part = l < costs->num_enc_layers ? PART_ENC_LAYER : PART_DEC_LAYER;
        if (was[l] != is[l]) { gained_bytes[is[l]] += costs->part_state_bytes[part]; }
    }
    for (int32_t s = 0; s < P; s++) {
        gained_bytes[s] += costs->head_state_bytes / units * gained_units(before, now, s);
        most_bytes = gained_bytes[s] > most_bytes ? gained_bytes[s] : most_bytes;
    }
    return most_bytes;
}

// What the rank that gets most gets, at the pace of a link; what the largest rank copies; and the steps that
// are planned anew while nobody computes.
static int64_t move_ns(const Dynapipe* dp, const CostModel* costs, const StageChoice* choice) {
    int64_t state_bytes = 0;
    CostRank has[PLAN_MAX_STAGES];
    cost_ranks_make(has, costs, &choice->placement, dp->num_stages);
    for (int32_t s = 0; s < dp->num_stages; s++) {
        int64_t all_bytes = cost_rank_state_bytes(costs, &has[s]);
        state_bytes = all_bytes > state_bytes ? all_bytes : state_bytes;
    }
    int64_t moved_bytes =
        most_gained_bytes(costs, &dp->request.placement, &choice->placement, dp->num_stages);
    int64_t planning_ns = session_planning_ns(choice->makespan_ns, dp->plan_threads, dp->num_replicas);
    return cost_transfer_ns(costs, moved_bytes) + (int64_t)(COPY_NS_PER_BYTE * (double)state_bytes) +
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
        resplit->has_moved && placement_equal(&choice->placement, &resplit->before, dp->num_stages);
    ResplitOffer offer = {.present_ns = present_ns,
                          .then_ns = choice->makespan_ns,
                          .move_ns = move_ns(dp, costs, choice),
                          .steps_left = dp->num_steps - dp->next_step,
                          .is_back = is_back};
    return session_resplit_pays(&offer);
}

static void say_move(const Dynapipe* dp, const Placement* placement, const char* why) {
    char from[PLACEMENT_CHARS], to[PLACEMENT_CHARS];
    if (dp->transport.rank != 0) { return; }
    placement_print(from, &dp->request.placement, dp->num_stages);
    placement_print(to, placement, dp->num_stages);
    int column = printf("layers move behind step %d: stages %s become %s", dp->next_step, from, to);
    printf(column + strlen(why) > 97 ? "\n  (%s)\n" : " (%s)\n", why);
    fflush(stdout);
}

// A step that is planned with other costs than those of the search plans as long as a step of that length.
static int32_t effort_for(const Dynapipe* dp, int64_t makespan_ns) {
    if (dp->options.effort != 0 || makespan_ns == 0) { return dp->request.effort; }
    int64_t planning_ns = session_planning_ns(makespan_ns, dp->plan_threads, dp->num_replicas);
    return plan_effort(&dp->request, planning_ns);
}

// What the corrected costs ask for; `placement` as it is: nothing.
static Status search(Dynapipe* dp, const CostModel* costs, const Machine* machine, Placement* placement) {
    SessionResplit* resplit = &dp->resplit;
    StageChoice choice;
    int64_t present_ns, begin_ns = clock_now_ns();
    PlanRequest request = dp->request;
    request.machine = machine;
    request.choose_stages = true;
    request.placements = PLACEMENT_GIVEN;
    request.heads = HEAD_CHOICE_GIVEN;
    TRY(keep_times(dp, costs, machine));
    resplit->has_searched = true;
    TRY(stage_search_again(&choice, &present_ns, &request, costs, resplit->batches, resplit->num_batches,
                           SEARCH_NS));
    double search_s = (double)(clock_now_ns() - begin_ns) / 1e9;
    bool moves = present_ns > 0 && !is_present(dp, &choice.placement) &&
                 pays(dp, costs, &choice, present_ns) && both_fit(dp, costs, machine, &choice.placement);
    if (!moves) { return STATUS_OK; }
    char why[160];
    snprintf(why, sizeof why, "a step of about %s in place of %s; %d splits looked at in %.1f s",
             TIME_TEXT(choice.makespan_ns, 3), TIME_TEXT(present_ns, 3), choice.num_splits, search_s);
    say_move(dp, &choice.placement, why);
    *placement = choice.placement;
    resplit->effort_then = effort_for(dp, choice.makespan_ns);
    return STATUS_OK;
}

bool session_resplit_may_look(const Dynapipe* dp) {
    const SessionResplit* resplit = &dp->resplit;
    bool rests = resplit->has_moved && dp->next_step < resplit->moved_step + REST_STEPS;
    bool is_fixed = resplit->kind != RESPLIT_AUTO || session_placed_by_list(dp) || dp->num_stages == 1;
    return !rests && !is_fixed && dp->next_step < dp->num_steps;
}

static Status look(Dynapipe* dp, Placement* placement) {
    SessionResplit* resplit = &dp->resplit;
    const CostModel* costs;
    const Machine* machine;
    if (session_refit_now(dp, &costs, &machine)) { resplit->is_due = true; }
    if (!resplit->is_due || !session_resplit_may_look(dp)) { return STATUS_OK; }
    resplit->is_due = false;
    bool changed = false;
    TRY(has_changed(&changed, dp, costs, machine));
    return changed ? search(dp, costs, machine, placement) : STATUS_OK;
}

// The placement from here on; *moves false: the present one.
static Status decide(Dynapipe* dp, Placement* placement, bool* moves) {
    SessionResplit* resplit = &dp->resplit;
    bool is_told;
    *placement = dp->request.placement;
    TRY(session_resplit_told(dp, placement, &is_told));
    bool is_restored = resplit->has_restored && !is_told;
    if (is_restored) { *placement = resplit->restored; }
    resplit->has_restored = false;
    resplit->effort_then = dp->request.effort;
    // Behind a checkpoint's step it was decided before that was saved.
    bool is_resumed = dp->now == NULL;
    if (!is_told && !is_restored && !is_resumed) { TRY(look(dp, placement)); }
    *moves = !is_present(dp, placement);
    if (*moves && (is_told || is_restored)) {
        say_move(dp, placement, is_told ? "as told" : "as the checkpoint has it");
    }
    if (*moves && !is_restored) {
        resplit->before = dp->request.placement;
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

static Status apply(Dynapipe* dp, const Placement* placement) {
    char what[64], text[PLACEMENT_CHARS];
    placement_print(text, placement, dp->num_stages);
    uint64_t hash = hash_finish(hash_bytes(HASH_SEED, text, strlen(text)));
    snprintf(what, sizeof what, "hash of the stages behind step %d", dp->next_step);
    TRY(collective_all_equal_u64(&dp->world, hash, what));
    TRY(unplan(dp));
    if (dp->resplit.moved_step == dp->next_step) { session_refit_hasten(&dp->refit, dp->next_step); }
    session_model_detach(dp);
    dp->request.effort = dp->resplit.effort_then;  // nobody plans
    dp->request.placement = *placement;
    dp->resplit.is_moving = true;
    dp->resplit.moved_bytes = 0;
    return renew_times(dp);
}

static Status resplit(Dynapipe* dp, DynapipeRange* out, int32_t max_ranges, int32_t* num_ranges) {
    Placement placement;
    bool moves;
    dp->resplit.is_asked = true;
    dp->resplit.asked_ns = clock_now_ns();
    TRY(session_need_model(dp));
    if (max_ranges < 1) { return FAIL(STATUS_OUT_OF_RANGE, "no room for this rank's range of blocks"); }
    TRY(decide(dp, &placement, &moves));
    if (moves) { TRY(apply(dp, &placement)); }
    dp->resplit.has_restored_times = false;
    if (!moves) { return STATUS_OK; }
    TRY(session_ranges(dp, out, max_ranges, num_ranges));
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
    Placement placement;
    bool found;
    TRY(session_resplit_told(dp, &placement, &found));
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
        printf("moved %s between ranks in %s\n", BYTES_TEXT(resplit->moved_bytes),
               TIME_TEXT(resplit->moved_ns - resplit->asked_ns, 3));
        fflush(stdout);
    }
    resplit->is_moving = false;
    return STATUS_OK;
}
