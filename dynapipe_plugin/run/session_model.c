// session_model.c -- where the model lies: what the options allow, the stages for the mixture, the model
// attached.
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../plan/planner.h"
#include "../plan/placement.h"
#include "../plan/problem.h"
#include "session.h"
#include "../../util/program.h"

// The embedding is block 0, the decoder's follows the encoder's layers, the head is last.
static DynapipeRange chunk_blocks(const Dynapipe* dp, int32_t k) {
    const Placement* placement = &dp->request.placement;
    const BlockRange* blocks = &placement->chunks[k];
    const PlanChain* chain = &dp->costs.chain;
    const int32_t first_dec = chain->num_dec_layers > 0 ? plan_chain_first_dec(chain) : INT32_MAX;
    bool is_last = k == placement->num_chunks - 1, is_shared = placement->head != HEAD_WHOLE;
    int32_t begin = blocks->begin + 1 + (blocks->begin > first_dec),
            end = blocks->end + 1 + (blocks->end > first_dec);
    return (DynapipeRange){.begin = k == 0 ? 0 : begin,
                           .end = is_last && !is_shared ? end + 1 : end,
                           .head = is_last && is_shared ? DYNAPIPE_HEAD_FEEDS : DYNAPIPE_HEAD_AS_BLOCKS};
}

// The first id of a position among HEAD_UNITS.
static int32_t first_id(const Dynapipe* dp, int32_t units) {
    int64_t num_ids = dp->costs.head_vocab;
    return (int32_t)(units == HEAD_UNITS ? num_ids : num_ids * units / HEAD_UNITS / 16 * 16);
}

static DynapipeRange share_blocks(const Dynapipe* dp, int32_t s) {
    const Placement* placement = &dp->request.placement;
    const PlanChain* chain = &dp->costs.chain;
    int32_t head = plan_chain_num_blocks(chain) + 1 + (chain->num_dec_layers > 0);
    DynapipeRange range = {.begin = head, .end = head + 1, .head = DYNAPIPE_HEAD_BY_ROWS};
    if (placement->head == HEAD_BY_ROWS) { return range; }
    range.head = DYNAPIPE_HEAD_BY_VOCABULARY;
    range.vocab_begin = first_id(dp, placement->head_begin[s]);
    range.vocab_end = first_id(dp, placement->head_begin[s + 1]);
    return range;
}

int32_t session_last_stage(const Dynapipe* dp) {
    const Placement* placement = &dp->request.placement;
    return placement->stage_of[placement->num_chunks - 1];
}

int32_t session_num_ranges(const Dynapipe* dp) {
    const Placement* placement = &dp->request.placement;
    int32_t num_ranges = placement_has_share(placement, dp->stage);
    for (int32_t k = 0; k < placement->num_chunks; k++) { num_ranges += placement->stage_of[k] == dp->stage; }
    return num_ranges;
}

Status session_ranges(const Dynapipe* dp, DynapipeRange* out, int32_t max_ranges, int32_t* num_ranges) {
    const Placement* placement = &dp->request.placement;
    int32_t needed = session_num_ranges(dp);
    *num_ranges = 0;
    if (needed > max_ranges || needed > DYNAPIPE_MAX_RANGES) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "rank %d has %d ranges of blocks, there is room for %d (DYNAPIPE_MAX_RANGES %d) ---> "
                    "more room, or --placement linear",
                    dp->transport.rank, needed, max_ranges, DYNAPIPE_MAX_RANGES);
    }
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        if (placement->stage_of[k] == dp->stage) { out[(*num_ranges)++] = chunk_blocks(dp, k); }
    }
    if (placement_has_share(placement, dp->stage)) { out[(*num_ranges)++] = share_blocks(dp, dp->stage); }
    return STATUS_OK;
}

int32_t dynapipe_head(const Dynapipe* dp, int32_t* begin, int32_t max_begins) {
    static const int32_t heads[] = {DYNAPIPE_HEAD_AS_BLOCKS, DYNAPIPE_HEAD_BY_ROWS,
                                    DYNAPIPE_HEAD_BY_VOCABULARY};
    const Placement* placement = &dp->request.placement;
    for (int32_t s = 0; s <= dp->num_stages && s < max_begins && placement->head != HEAD_WHOLE; s++) {
        begin[s] = placement->head_begin[s];
    }
    return heads[placement->head];
}

// --- what the options give -----------------------------------------------------------------------------
// What --placement and --head allow: whether this program can do it, what is left to choose, and whether a
// checkpoint's placement agrees.

bool session_placed_by_list(const Dynapipe* dp) {
    return placement_choice(dp->options.placement) == PLACEMENT_GIVEN ||
           head_choice(dp->options.head) == HEAD_CHOICE_GIVEN;
}

static Status check(const Dynapipe* dp, HeadSplit shares_head, int32_t max_ranges) {
    const PlanRequest* request = &dp->request;
    const PlacementChoice shape = request->placements;
    const HeadChoice head = request->heads;
    const bool asks_shape = shape == PLACEMENT_GIVEN ? !placement_is_linear(&request->placement, request->P)
                                                     : shape != PLACEMENT_AUTO && shape != PLACEMENT_LINEAR;
    const bool asks_shares = head != HEAD_CHOICE_AUTO && head != HEAD_CHOICE_WHOLE;
    if (max_ranges < 2 && (asks_shape || asks_shares)) {
        return FAIL(
            STATUS_BAD_OPTION,
            "%s: this program takes one range of the model's blocks a rank ---> leave it out, or give "
            "dynapipe_choose_stages() room for more",
            asks_shape ? "--placement" : "--head");
    }
    bool by_vocabulary = head == HEAD_CHOICE_VOCABULARY && shares_head == HEAD_BY_ROWS;
    if (asks_shares && (shares_head == HEAD_WHOLE || by_vocabulary)) {
        return FAIL(
            STATUS_BAD_OPTION, "--head: the model's head cannot be shared in that way%s ---> --head %sauto",
            shares_head == HEAD_WHOLE ? " (it has no part_bytes, factor_bytes, combine or backward_weights, "
                                        "or cannot stand alone, and no shapes.head_by_rows)"
                                      : ", by rows only",
            shares_head == HEAD_WHOLE ? "" : "rows or ");
    }
    return STATUS_OK;
}

static Status take(const Dynapipe* dp, PlanRequest* request) {
    return placement_words_take(request, &dp->costs.chain, dp->options.placement, dp->options.head);
}

static Status session_placed_request(Dynapipe* dp, HeadSplit shares_head, int32_t max_ranges) {
    PlanRequest* request = &dp->request;
    placement_linear(&request->placement, request->placement.chunks, request->P);
    request->choose_stages = true;
    TRY(take(dp, request));
    TRY(check(dp, shares_head, max_ranges));
    // A program with room for one range of blocks gets one.
    if (max_ranges < 2 && request->placements == PLACEMENT_AUTO) { request->placements = PLACEMENT_LINEAR; }
    if (max_ranges < 2 || shares_head == HEAD_WHOLE) { request->heads = HEAD_CHOICE_WHOLE; }
    if (request->P == 1) {  // nothing to choose, no rank to share with
        if (request->placements != PLACEMENT_GIVEN) {
            placement_linear(&request->placement, request->placement.chunks, 1);
        }
        placement_share_head(&request->placement, HEAD_WHOLE, 1);
        request->placements = PLACEMENT_GIVEN;
        request->heads = HEAD_CHOICE_GIVEN;
    }
    return STATUS_OK;
}

bool session_placed_fits(const Dynapipe* dp, const Placement* placement) {
    const int32_t P = dp->num_stages;
    PlanRequest given = {.rules = dp->request.rules, .P = P};
    placement_linear(&given.placement, given.placement.chunks, P);
    if (take(dp, &given) != STATUS_OK) { return false; }
    Placement chunks = *placement, head = given.placement;  // each with the other's head
    placement_copy_head(&chunks, &given.placement);
    placement_copy_head(&head, placement);
    bool chunks_fit = given.placements == PLACEMENT_GIVEN ? placement_equal(&chunks, &given.placement, P)
                                                          : placement_is_of(placement, given.placements, P);
    bool head_fits = given.heads == HEAD_CHOICE_GIVEN  ? placement_equal(&head, &given.placement, P)
                     : given.heads == HEAD_CHOICE_AUTO ? true
                                                       : placement->head == given.heads - HEAD_CHOICE_WHOLE;
    return chunks_fit && (head_fits || P == 1);
}

// --- machine -------------------------------------------------------------------------------------------
// How the ranks and links of this run differ: as measured, by free memory; how messages move.

Status session_messages_find(Dynapipe* dp, int32_t* messages) {
    const bool moves_alone = dp->device.api != NULL;
    if (*messages != MESSAGES_UNKNOWN || host_cores_short(&dp->cores) >= 0) { return STATUS_OK; }
    *messages = moves_alone ? MESSAGES_ALONE : MESSAGES_PULLED;
    // a named file has to be enough for the same plans in every run
    return moves_alone || dp->options.costs != NULL ? STATUS_OK : messages_measure(messages, &dp->world);
}

void session_messages_apply(Dynapipe* dp) {
    const DynapipeTransport_v1* api = dp->transport.api;
    int32_t messages = dp->costs.measured.messages;
    bool is_on, has_thread = messages > MESSAGES_PULLED && host_cores_short(&dp->cores) < 0;
    dp->machine.pulls = messages == MESSAGES_PULLED;
    if (api == NULL || api->progress == NULL) { return; }
    (void)api->progress(dp->transport.ctx, has_thread ? messages : 0, &is_on);
}

// Measured limits are rounded down to multiples of this, so that a library that takes a little more changes
// no plan.
#define LIMIT_STEP_BYTES (INT64_C(64) << 20)
// Where memory differs by less, all ranks have the least of all.
#define ALIKE 0.97

// Equal ranks, to be changed, where none were known to differ.
static Status need_ranks(Dynapipe* dp) {
    int32_t num_ranks = dp->transport.num_ranks;
    if (dp->machine_ranks != NULL) { return STATUS_OK; }
    dp->machine_ranks = (MachineRank*)malloc((size_t)num_ranks * sizeof *dp->machine_ranks);
    if (dp->machine_ranks == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks); }
    for (int32_t r = 0; r < num_ranks; r++) { dp->machine_ranks[r] = machine_rank(NULL, r); }
    dp->machine.num_ranks = num_ranks;
    dp->machine.ranks = dp->machine_ranks;
    return STATUS_OK;
}

Status session_machine_take(Dynapipe* dp, const Machine* machine) {
    TRY(machine_check(machine, dp->transport.num_ranks));
    dp->request.machine = &dp->machine;
    if (machine->num_ranks == 0) { return STATUS_OK; }
    TRY(need_ranks(dp));
    memcpy(dp->machine_ranks, machine->ranks, (size_t)machine->num_ranks * sizeof *machine->ranks);
    return STATUS_OK;
}

Status session_machine_restore(Dynapipe* dp, const Machine* machine) {
    if (machine->num_ranks == 0 && dp->machine_ranks == NULL) { return STATUS_OK; }
    TRY(need_ranks(dp));
    for (int32_t r = 0; r < dp->machine.num_ranks; r++) {
        MachineRank* rank = &dp->machine_ranks[r];
        int64_t limit_bytes = rank->memory_limit_bytes;
        *rank = machine_rank(machine, r);
        rank->memory_limit_bytes = limit_bytes;
    }
    if (machine_differs(&dp->machine)) { return STATUS_OK; }
    free(dp->machine_ranks);
    dp->machine_ranks = NULL;
    dp->machine.num_ranks = 0;
    dp->machine.ranks = NULL;
    return STATUS_OK;
}

void session_machine_free(Dynapipe* dp) {
    free(dp->machine_ranks);
    dp->machine_ranks = NULL;
    dp->machine = (Machine){0};
}

// --- memory ------------------------------------------------------------------------------------------------

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static Status set_limits(Dynapipe* dp, const double* limit_bytes) {
    int64_t* common = &dp->options.memory_limit_bytes;
    double least = limit_bytes[0], most = limit_bytes[0];
    for (int32_t r = 1; r < dp->transport.num_ranks; r++) {
        least = limit_bytes[r] < least ? limit_bytes[r] : least;
        most = limit_bytes[r] > most ? limit_bytes[r] : most;
    }
    if (*common == 0) { *common = (int64_t)(least > ALIKE * most ? least : most); }
    dp->request.memory_limit_bytes = *common;
    if (least >= (double)*common) { return STATUS_OK; }
    TRY(need_ranks(dp));
    for (int32_t r = 0; r < dp->transport.num_ranks; r++) {
        bool has_less = limit_bytes[r] < (double)*common;
        dp->machine_ranks[r].memory_limit_bytes = has_less ? (int64_t)limit_bytes[r] : 0;
    }
    return STATUS_OK;
}

Status session_machine_limit(Dynapipe* dp, int64_t mine_bytes) {
    double limit = (double)larger(mine_bytes / LIMIT_STEP_BYTES * LIMIT_STEP_BYTES, LIMIT_STEP_BYTES);
    const void* limits;
    TRY(collective_each(&dp->world, &limit, sizeof limit, &limits));
    return set_limits(dp, (const double*)limits);
}

Status session_machine_take_bytes(Dynapipe* dp, int64_t mine_bytes) {
    double most = (double)larger(mine_bytes, 0);
    TRY(session_most(dp, &most));
    int64_t whole = ((int64_t)most + LIMIT_STEP_BYTES - 1) / LIMIT_STEP_BYTES * LIMIT_STEP_BYTES;
    int64_t* common = &dp->options.memory_limit_bytes;
    *common = dp->request.memory_limit_bytes = larger(*common - whole, LIMIT_STEP_BYTES);
    for (int32_t r = 0; r < dp->machine.num_ranks; r++) {
        int64_t* own = &dp->machine_ranks[r].memory_limit_bytes;
        if (*own > 0) { *own = larger(*own - whole, LIMIT_STEP_BYTES); }
    }
    return STATUS_OK;
}

int64_t session_machine_limit_bytes(const Dynapipe* dp) {
    const int32_t rank = dp->transport.rank;
    int64_t own = rank < dp->machine.num_ranks ? dp->machine_ranks[rank].memory_limit_bytes : 0;
    return own > 0 ? own : dp->options.memory_limit_bytes;
}

// --- stages --------------------------------------------------------------------------------------------
// The stage split of a run and the effort of its plans, from batches drawn from the mixture.

enum { LEAST_PLANNING_NS = 1000000, MOST_PLANNING_NS = 400000000 };

// x ms of search leave about x0 / x of the step to gain, x0 = 0.1 ms (doc/decisions.md).
#define PLANNING_LOSS_NS INT64_C(100000)

Status session_mixture(StageBatch out[SESSION_MIXTURE], int32_t* num_batches, Dynapipe* dp, Arena* arena) {
    const uint8_t* position = NULL;
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
// the minimum is where both are equal.
int64_t session_planning_ns(int64_t step_ns, int32_t num_threads, int32_t num_replicas) {
    double product = (double)step_ns * (double)PLANNING_LOSS_NS * num_threads * num_replicas;
    double best_ns = floor(sqrt(product));
    return best_ns < LEAST_PLANNING_NS  ? (int64_t)LEAST_PLANNING_NS
           : best_ns > MOST_PLANNING_NS ? (int64_t)MOST_PLANNING_NS
                                        : (int64_t)best_ns;
}

int32_t session_effort(const Dynapipe* dp, int64_t step_ns) {
    if (dp->options.effort > 0 || step_ns == 0) { return dp->request.effort; }
    return plan_effort(&dp->request, session_planning_ns(step_ns, dp->plan_threads, dp->num_replicas));
}

// Numbers of stages that were compared, and what was found for the best.
enum { MAX_SHAPES = 32 };
typedef struct {
    StageChoice choice;
    int32_t num_stages;
    int32_t num_shapes, stages_of[MAX_SHAPES];
    int64_t step_ns[MAX_SHAPES];  // 0: it does not fit
    Status status;
    char message[1024];
} ShapeChoice;

// "4,4,3,1" or "0:2,1:3,1:3,0:2+rows:256,768", and on the next lines how it was found.
static void print_choice(const Dynapipe* dp, const ShapeChoice* found, int32_t num_batches, double seconds) {
    const StageChoice* choice = &found->choice;
    char text[PLACEMENT_CHARS];
    placement_print(text, &choice->placement, &dp->costs.chain, dp->num_stages);
    printf("stages: %s%s", text, placement_is_linear(&choice->placement, dp->num_stages) ? " layers" : "");
    if (session_placed_by_list(dp) && choice->num_splits <= 1) {
        printf(" (as given);");
    } else if (choice->num_splits > 1) {
        printf("%s (%d placements compared on %d batches in %.1f s);", strlen(text) > 40 ? "\n       " : "",
               choice->num_splits, num_batches, seconds);
    }
    printf("\n        a step of about %s\n", TIME_TEXT(choice->makespan_ns + session_update_ns(dp), 3));
    for (int32_t i = 0; i < found->num_shapes && found->num_shapes > 1; i++) {
        const int32_t P = found->stages_of[i];
        printf("%s%d x %d: %s%s", i == 0 ? "        stages x replicas: " : ", ", P,
               dp->transport.num_ranks / P,
               found->step_ns[i] > 0 ? TIME_TEXT(found->step_ns[i], 3) : "not possible",
               i < found->num_shapes - 1 ? "" : "\n");
    }
    if (dp->num_stages > 1 && dp->device.api == NULL) {
        printf("messages %s\n", messages_text(dp->costs.measured.messages));
    }
    fflush(stdout);
}

// Every sample of the data must fit on its stages in the step that draws it, which may come after hours.
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
    return FAIL(
        status,
        "one of the data's largest samples (a smaller -t cuts it) would end the run when it is drawn: %s",
        status_message());
}

// The model's state alone is more than a rank's memory, however its layers lie.
static Status check_state(const PlanRequest* request, const CostModel* costs) {
    CostRank ranks[PLAN_MAX_STAGES];
    const PlacementScale scale = placement_scale_make(request, costs, NULL, 0, 0);
    const int64_t* limits = scale.limit_bytes;
    Placement placement = request->placement;
    bool is_given = !request->choose_stages;
    if (!is_given) { TRY(placement_make(&placement, PLACEMENT_LINEAR, false, request->P, &costs->chain)); }
    if (!is_given) { placement_make_room(&placement, &scale, false); }
    cost_ranks_make(ranks, costs, &placement, request->P);
    for (int32_t s = 0; s < request->P; s++) {
        int64_t state = cost_rank_state_bytes(costs, &ranks[s]);
        if (limits[s] == 0 || state <= limits[s]) { continue; }
        return FAIL(
            STATUS_INFEASIBLE,
            "--memory-limit: parameters, gradients and the optimizer's state alone take %s on rank %d, the "
            "limit is %s ---> a higher limit (such as 12G), more --stages, or -z 1 with "
            "--replicas",
            BYTES_TEXT(state), s, BYTES_TEXT(limits[s]));
    }
    return STATUS_OK;
}

// Where the split for the mixture leaves no room for one of the data's largest samples, a split with room for
// it.
static Status search_stages(StageChoice* out, PlanRequest* request, const CostModel* costs,
                            StageBatch batches[SESSION_MIXTURE + 1], int32_t num_batches,
                            const LargestSamples* largest, int64_t planning_ns) {
    char failure[STATUS_MESSAGE_BYTES];
    TRY(stage_search(out, request, costs, batches, num_batches, planning_ns));
    request->placement = out->placement;
    Status status = check_largest(request, costs, largest);
    if (status != STATUS_INFEASIBLE || !request->choose_stages) { return status; }
    snprintf(failure, sizeof failure, "%s", status_message());
    batches[num_batches] = (StageBatch){largest->samples, largest->num_samples};
    status = stage_search(out, request, costs, batches, num_batches + 1, planning_ns);
    if (status == STATUS_OK) {
        request->placement = out->placement;
        status = check_largest(request, costs, largest);
    }
    return status == STATUS_INFEASIBLE ? FAIL(status, "%s", failure) : status;
}

// --- choosing ------------------------------------------------------------------------------------------

ShapeRules session_rules(const DynapipeShapes_v1* shapes) {
    return (ShapeRules){.padded = shapes->padded != 0,
                        .seq_multiple = shapes->seq_multiple,
                        .tokens_multiple = shapes->tokens_multiple,
                        .max_squares = shapes->max_squares,
                        .max_tokens = shapes->max_tokens,
                        .max_seqs = shapes->max_seqs,
                        .head_has_layer = shapes->head_has_layer != 0,
                        .head_by_rows = shapes->head_by_rows != 0};
}

static void fill_request(Dynapipe* dp, const DynapipeCosts* costs) {
    const SessionOptions* options = &dp->options;
    PlanRequest* request = &dp->request;
    request->batching = (Batching)options->batching;
    request->layout = (MbLayout)options->layout;
    request->rules = session_rules(&costs->shapes);
    request->schedule = (ScheduleChoice)options->schedule;
    request->recompute = (RecomputeChoice)options->recompute;
    request->split_backward =
        costs->has_weights_job ? (SplitBackward)options->split_backward : SPLIT_BACKWARD_OFF;
    request->P = dp->num_stages;
    request->R = dp->num_replicas;
    request->one_replica = dp->num_replicas > 1;
    request->my_replica = dp->replica;
    request->memory_limit_bytes = options->memory_limit_bytes;
    request->machine = &dp->machine;
    request->max_seq_tokens = dp->run.max_seq_tokens;
    request->max_target_tokens = dp->run.max_target_tokens;
    request->mb_tokens = options->mb_tokens;
    request->mb_samples = options->mb_tokens > 0 ? 0 : dp->run.rows;
    request->effort = options->effort;
    (void)plan_slices_parse(&request->max_pieces, options->slices);  // checked with the options
}

// Can this model be run on this many stages, and with these options?
static Status check_model(const Dynapipe* dp, const DynapipeCosts* costs) {
    const PlanChain* chain = &costs->model.chain;
    int32_t num_blocks = plan_chain_num_blocks(chain);
    if (dp->num_stages > num_blocks) {
        return FAIL(
            STATUS_BAD_OPTION,
            "--stages %d: the model has %d layers, %d blocks together, and every stage needs one ---> at "
            "most --stages %d, or --stages auto",
            dp->num_stages, chain->num_enc_layers + chain->num_dec_layers, num_blocks, num_blocks);
    }
    if (!costs->has_weights_job && dp->options.split_backward == SPLIT_BACKWARD_ON) {
        return FAIL(STATUS_BAD_OPTION,
                    "--split-backward on: the model's backward cannot be divided (it has no "
                    "backward_weights) ---> --split-backward auto");
    }
    if (isdigit((unsigned char)*dp->options.slices) && dp->request.max_pieces > 1 &&
        !cost_takes_pieces(&dp->costs)) {
        return FAIL(STATUS_BAD_OPTION,
                    "--slices %s: the model takes no pieces of a sample (it has no kept_bytes) ---> "
                    "--slices auto",
                    dp->options.slices);
    }
    return STATUS_OK;
}

// What a step is on so many stages.
static Status set_stages(Dynapipe* dp, const DynapipeCosts* costs, int32_t max_ranges, int32_t num_stages) {
    session_set_stages(dp, num_stages);
    dp->costs.num_shards = dp->run.zero_stage > 0 ? dp->num_replicas : 1;
    fill_request(dp, costs);
    TRY(check_model(dp, costs));
    TRY(session_placed_request(dp, costs->shares_head, max_ranges));
    return shape_rules_check(&dp->request);
}

static Status search_placement(StageChoice* out, Dynapipe* dp, StageBatch* batches, int64_t planning_ns) {
    static const LargestSamples none = {0};  // a run that only inspects the model draws none to train on
    const LargestSamples* largest = dp->num_steps > 0 ? &loader_info(dp->train)->largest : &none;
    PlanRequest request = dp->request;
    Status status =
        search_stages(out, &request, &dp->costs, batches, dp->resplit.num_batches, largest, planning_ns);
    if (status == STATUS_INFEASIBLE) { (void)check_state(&dp->request, &dp->costs); }  // says it better
    return status;
}

// Of planning; a run that is told how much to plan for a step spends in proportion.
static int64_t choice_ns(const Dynapipe* dp) {
    enum { NS_PER_EFFORT = 10000000 };
    const int64_t told_ns = (int64_t)dp->options.effort * NS_PER_EFFORT;
    return told_ns > 0 && told_ns < STAGE_SEARCH_USUAL_NS ? told_ns : STAGE_SEARCH_USUAL_NS;
}

enum { SHAPE_GAIN = 50 };  // a part of the step that more stages must save: predictions are no more exact

// Every number of stages that divides the ranks, in a part of the usual time each; then the best in all of
// it.
static Status search_shapes(ShapeChoice* found, Dynapipe* dp, const DynapipeCosts* costs, int32_t max_ranges,
                            StageBatch* batches) {
    const int32_t num_ranks = dp->transport.num_ranks;
    const int32_t num_blocks = plan_chain_num_blocks(&costs->model.chain);
    int64_t best_ns = INT64_MAX;
    Status status = STATUS_OK;
    for (int32_t P = 1; P <= num_blocks && P <= PLAN_MAX_STAGES && found->num_shapes < MAX_SHAPES; P++) {
        if (num_ranks % P == 0) { found->stages_of[found->num_shapes++] = P; }
    }
    for (int32_t i = 0; i < found->num_shapes; i++) {
        StageChoice choice;
        Status shape = set_stages(dp, costs, max_ranges, found->stages_of[i]);
        if (shape == STATUS_OK) {
            shape = search_placement(&choice, dp, batches, choice_ns(dp) / found->num_shapes);
        }
        if (shape != STATUS_OK) {
            if (shape != STATUS_INFEASIBLE && shape != STATUS_BAD_OPTION) { return shape; }
            status = shape;
            continue;
        }
        dp->request.placement = choice.placement;
        found->step_ns[i] = choice.makespan_ns + session_update_ns(dp);
        if (best_ns < INT64_MAX && found->step_ns[i] > best_ns - best_ns / SHAPE_GAIN) { continue; }
        best_ns = found->step_ns[i];
        found->num_stages = found->stages_of[i];
    }
    if (found->num_stages == 0) { return status; }
    TRY(set_stages(dp, costs, max_ranges, found->num_stages));
    return search_placement(&found->choice, dp, batches, choice_ns(dp));
}

// Every rank would find the same; ranks that share cores would slow each other down. So the first one
// searches, and sends the choice or the error.
static Status choose_on_first(ShapeChoice* found, Dynapipe* dp, const DynapipeCosts* costs,
                              int32_t max_ranges, StageBatch* batches) {
    enum { WAITS = 10 };  // times the usual wait for a message
    *found = (ShapeChoice){.num_stages = dp->options.num_stages};
    if (dp->transport.rank == 0) {
        SlowNotice* notice = slow_notice_begin("choosing stages for the mixture", NULL, 0);
        if (found->num_stages > 0) {
            found->status = set_stages(dp, costs, max_ranges, found->num_stages);
            if (found->status == STATUS_OK) {
                found->status = search_placement(&found->choice, dp, batches, choice_ns(dp));
            }
        } else {
            found->status = search_shapes(found, dp, costs, max_ranges, batches);
        }
        slow_notice_end(notice);
        if (found->status != STATUS_OK) {
            snprintf(found->message, sizeof found->message, "%s", status_message());
        }
    }
    int64_t timeout_ns = dp->world.timeout_ns;
    dp->world.timeout_ns = WAITS * timeout_ns;
    Status status =
        dp->world.num_ranks > 1 ? collective_broadcast(&dp->world, found, sizeof *found, 0) : STATUS_OK;
    dp->world.timeout_ns = timeout_ns;
    TRY(status);
    return found->status == STATUS_OK ? STATUS_OK : FAIL(found->status, "%s", found->message);
}

enum { GAIN_BATCHES = 2 };

static Status session_stages_choose(Dynapipe* dp, const DynapipeCosts* costs, int32_t max_ranges) {
    ShapeChoice found;
    SessionResplit* resplit = &dp->resplit;
    int64_t begin_ns = clock_now_ns();
    if (session_shares_cores(dp)) { dp->refit.is_on = false; }
    StageBatch* batches = ARENA_NEW(&resplit->arena, StageBatch, SESSION_MIXTURE + 1);
    if (batches == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for batches"); }
    TRY(session_mixture(batches, &resplit->num_batches, dp, &resplit->arena));
    resplit->batches = batches;
    TRY(choose_on_first(&found, dp, costs, max_ranges, batches));
    TRY(set_stages(dp, costs, max_ranges, found.num_stages));
    TRY(session_group_ranks(dp));
    dp->request.placement = found.choice.placement;
    dp->request.choose_stages = false;
    dp->request.placements = PLACEMENT_GIVEN;
    dp->request.heads = HEAD_CHOICE_GIVEN;
    dp->request.effort = session_effort(dp, found.choice.makespan_ns);
    if (dp->transport.rank > 0) { return STATUS_OK; }
    session_account_warn(dp);
    print_choice(dp, &found, resplit->num_batches, (double)(clock_now_ns() - begin_ns) / 1e9);
    const int32_t num_batches = resplit->num_batches < GAIN_BATCHES ? resplit->num_batches : GAIN_BATCHES;
    if (dp->request.batching == BATCHING_DYNAMIC && !session_placed_by_list(dp)) {
        (void)stage_print_gain(stdout, &dp->request, &dp->costs, batches, num_batches);  // for information
    }
    return STATUS_OK;
}

static Status choose_stages(Dynapipe* dp, DynapipeCosts* costs, int32_t max_ranges) {
    dp->costs = costs->model;
    TRY(cost_model_check(&dp->costs));
    bool differ;
    TRY(session_machine_take(dp, &costs->machine));
    TRY(session_costs_restore(dp, &differ));
    session_messages_apply(dp);
    if (dp->links == NULL) { TRY(session_device_open(dp, NULL)); }
    TRY(session_device_limit(dp));
    TRY(set_stages(dp, costs, max_ranges, dp->num_stages));
    Placement later;
    bool is_told;
    TRY(session_stages_choose(dp, costs, max_ranges));
    return session_resplit_told(dp, &later, &is_told);
}

int dynapipe_choose_stages(Dynapipe* dp, DynapipeCosts* costs, DynapipeRange* out, int32_t max_ranges,
                           int32_t* num_ranges) {
    *num_ranges = 0;
    Status status = choose_stages(dp, costs, max_ranges);
    free(costs);
    if (status == STATUS_OK) { status = session_ranges(dp, out, max_ranges, num_ranges); }
    return status == STATUS_OK ? (int)session_stop_agree(dp) : (int)status;
}

// --- attaching -------------------------------------------------------------------------------------------

static Status check_attach(const Dynapipe* dp, int32_t idx, const DynapipeModel_v1* api,
                           const DynapipeParams_v1* params) {
    int32_t num_ranges = session_num_ranges(dp);
    if (dp->links == NULL) {
        return FAIL(STATUS_BAD_OPTION,
                    "a model before its stage is known ---> dynapipe_choose_stages() comes before "
                    "dynapipe_attach()");
    }
    if (idx < 0 || idx >= num_ranges) {
        return FAIL(STATUS_OUT_OF_RANGE, "a model for range %d: this rank has %d ---> 0 <= idx < *num_ranges",
                    idx, num_ranges);
    }
    if (dp->ranges[idx].api != NULL) {
        return FAIL(STATUS_OUT_OF_RANGE, "range %d has a model already ---> attach each range once", idx);
    }
    TRY(interface_check_model(api));
    if (!executor_can_share(api, (HeadSplit)dp->request.placement.head)) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "the model %s cannot share its head: no part_bytes, factor_bytes, combine ---> --head "
                    "whole, or give it these",
                    api->name);
    }
    if (idx == 0) { return interface_check_params(params, true); }
    if (params == NULL) { return STATUS_OK; }
    return FAIL(
        STATUS_OUT_OF_RANGE,
        "range %d: parameters are those of all ranges together ---> with range 0; NULL with the others", idx);
}

static int32_t first_missing(const Dynapipe* dp) {
    int32_t num_ranges = session_num_ranges(dp), missing = 0;
    while (missing < num_ranges && dp->ranges[missing].api != NULL) { missing++; }
    return missing;
}

// All ranges are there.
static Status open_model(Dynapipe* dp) {
    int64_t timeout_ns = (int64_t)dp->options.comm_timeout_s * 1000000000;
    TRY(session_sums_open(dp));
    TRY(executor_create(&dp->executor, dp->ranges, session_num_ranges(dp), dp->links, timeout_ns));
    executor_use_device(dp->executor, dp->device);
    return STATUS_OK;
}

// A collective.
static Status take_params(Dynapipe* dp, const DynapipeParams_v1* params) {
    dp->params = *params;
    dp->params.num_tied = 0;
    dp->params.tied = NULL;  // the program's: in dp->tied
    return tied_groups_open(&dp->tied, &dp->world, dp->num_stages, params);
}

int dynapipe_attach(Dynapipe* dp, int32_t idx, const DynapipeModel_v1* api, void* model,
                    const DynapipeParams_v1* params) {
    Status status = check_attach(dp, idx, api, params);
    if (status == STATUS_OK && idx == 0) { status = take_params(dp, params); }
    if (status != STATUS_OK) { return (int)status; }
    dp->ranges[idx] = (ExecutorRange){api, model};
    if (first_missing(dp) < session_num_ranges(dp)) { return 0; }
    status = open_model(dp);
    if (status != STATUS_OK) { dp->ranges[idx] = (ExecutorRange){NULL, NULL}; }
    return (int)status;
}

void session_model_detach(Dynapipe* dp) {
    executor_free(dp->executor);
    dp->executor = NULL;
    sums_close(&dp->sums);
    tied_groups_free(&dp->tied);
    session_release(dp);
    dp->params = (DynapipeParams_v1){0};
    memset(dp->ranges, 0, sizeof dp->ranges);
    dp->eval_tokens = 0;  // of another stage
}

Status session_need_model(const Dynapipe* dp) {
    if (dp->executor != NULL) { return STATUS_OK; }
    return FAIL(STATUS_BAD_OPTION,
                "rank %d: no model for range %d of %d ---> dynapipe_attach() for each range that "
                "dynapipe_choose_stages() gave",
                dp->transport.rank, first_missing(dp), session_num_ranges(dp));
}

// --- what is counted -------------------------------------------------------------------------------------

// The first stage with a copy counts it.
static bool counts_group(const Dynapipe* dp, const TiedGroup* group) {
    int32_t first = 0;
    while (!tied_holders_have(&dp->tied.holders[group->holders], first)) { first++; }
    return first == dp->stage;
}

// Of the copies that another stage counts, the first that ends after `at`; NULL: none.
static const TiedGroup* next_left_out(const Dynapipe* dp, int64_t at) {
    const TiedGroup* next = NULL;
    for (int32_t i = 0; i < dp->tied.num_groups; i++) {
        const TiedGroup* group = &dp->tied.groups[i];
        if (counts_group(dp, group) || group->begin + group->count <= at) { continue; }
        if (next == NULL || group->begin < next->begin) { next = group; }
    }
    return next;
}

static Status add_span(DynapipeSpan* out, int32_t max_spans, int32_t* num_spans, int64_t begin, int64_t end) {
    if (begin >= end) { return STATUS_OK; }
    if (*num_spans == max_spans) {
        return FAIL(STATUS_OUT_OF_RANGE, "room for %d spans ---> one more than the rank has tied groups",
                    max_spans);
    }
    out[(*num_spans)++] = (DynapipeSpan){begin, end};
    return STATUS_OK;
}

int dynapipe_counted(const Dynapipe* dp, DynapipeSpan* out, int32_t max_spans, int32_t* num_spans) {
    int64_t begin, end;
    *num_spans = 0;
    TRY(session_need_model(dp));
    dynapipe_shard(dp, &begin, &end);
    bool all_have_it = dp->run.zero_stage == 0 || dp->num_replicas == 1;
    if (all_have_it && dp->replica > 0) { return STATUS_OK; }  // the first replica's are the same
    while (begin < end) {
        const TiedGroup* group = next_left_out(dp, begin);
        int64_t until = group != NULL && group->begin < end ? group->begin : end;
        TRY(add_span(out, max_spans, num_spans, begin, until));
        begin = until < end ? group->begin + group->count : end;
    }
    return STATUS_OK;
}
