// search.c -- see search.h. What each part and constant contributes: dev/results/ablation.md.
#include "search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../util/numbers.h"
#include "deal.h"
#include "placement.h"

enum { MAX_RULES = RECOMPUTE_COUNT + 6, MAX_PROBES = 4 };
enum { USUAL_END = 40 };  // Candidate.end_percent
enum { NUM_COORDINATES = 6, NUM_SETTINGS = NUM_COORDINATES * 10 };
enum { OVERHEAD_JOBS = 30 };  // of a simulation: copying, limits

// What is recomputed at first.
typedef struct {
    RecomputeMode mode;     // in chunks before early_percent of them, the first mode after that; or ...
    int32_t share_percent;  // where a microbatch keeps more than this part of its share of memory; 0: `mode`
    int32_t early_percent;
} ModeRule;

typedef struct {
    Placement placement;
    int32_t num_mbs, end_percent, num_pieces;  // of a replica: Deal
    int32_t before;                            // quarters of the microbatches that enter before the largest
    int32_t in_flight;  // i: chunk k may hold i (K - k) microbatches; 0: 2 (K - k) - 1; -i: i
    ModeRule rule;
    int32_t next_setting, misses;  // to be tried; tried since one was better
    int64_t makespan_ns;           // of the slowest replica that it is tried on; INT64_MAX: does not fit
} Candidate;

// One replica while the search improves it.
typedef struct {
    ReplicaProblem problem;  // microbatches in any order; its block has the arrays below, too
    int32_t N;               // samples; 0: nothing to do
    int32_t *ids, *mb_of;    // [N]
    int32_t* order;          // [M]
    size_t block_bytes;
    PipeAdaptiveRule rule;
    int64_t makespan_ns;
} State;

// The best candidates of a search, in which nothing and in which something is cut; num_mbs 0: none.
struct SearchHint {
    Candidate whole, cut;
};

typedef struct {
    const PlanProblem* problem;
    SearchHint* found;
    bool is_padded, cuts;      // cuts: candidates have samples in pieces
    const PipePolicy* policy;  // the schedule that is prescribed; NULL: adaptive
    int64_t budget;            // jobs that may still be simulated, and other work converted to jobs
    int32_t* replica;  // [R] in the order of their ranks, by which all below count: numbers change no plan
    Dealer dealer;
    int32_t probe[MAX_PROBES];  // replicas that candidates are tried on, the most informative first
    int32_t num_probes;
    Rng rng;
    Arena lists, tries, simulator;  // kept; of one candidate; of one simulation
} Search;

// --- one replica ------------------------------------------------------------------------------------------

// Without a block: its size alone.
static void state_layout(State* state, char* block) {
    size_t used = replica_problem_layout(&state->problem, block);
    if (block != NULL) {
        state->ids = (int32_t*)(void*)(block + used);
        state->mb_of = state->ids + state->N;
        state->order = state->mb_of + state->N;
    }
    state->block_bytes = used + (2 * (size_t)state->N + (size_t)state->problem.pipe.M) * sizeof(int32_t);
}

static Status state_alloc(State* state, Arena* arena) {
    state_layout(state, NULL);
    char* block = (char*)arena_alloc(arena, state->block_bytes);
    if (block == NULL) { return FAIL(STATUS_NO_MEMORY, "search: no host memory left"); }
    state_layout(state, block);
    return STATUS_OK;
}

// Copies the contents of `from` into the memory of `to`, which has the same sizes.
static void state_assign(State* to, const State* from) {
    char* block = to->problem.block;
    memcpy(block, from->problem.block, from->block_bytes);
    *to = *from;
    state_layout(to, block);
}

static Status state_copy(State* to, const State* from, Arena* arena) {
    *to = *from;
    TRY(state_alloc(to, arena));
    state_assign(to, from);
    return STATUS_OK;
}

// Is sample i of the replica cut? Then the last piece is in its microbatch.
static bool is_cut(const State* state, int32_t i) {
    const PlanSegment* piece = &state->problem.piece[state->mb_of[i]];
    return piece->num_tokens > 0 && piece->sample_idx == state->ids[i];
}

// Shapes of microbatches first ... last.
static void state_shape(State* state, bool is_padded, int32_t first, int32_t last) {
    const PlanProblem* problem = state->problem.place->problem;
    MbShape* shapes = state->problem.shape;
    memset(shapes + first, 0, sizeof *shapes * (size_t)(last - first + 1));
    for (int32_t i = 0; i < state->N; i++) {
        int32_t m = state->mb_of[i];
        if (m < first || m > last || is_cut(state, i)) { continue; }
        const PlanSample* sample = &problem->samples[state->ids[i]];
        mb_shape_add(&shapes[m], sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
    }
    for (int32_t m = first; m <= last; m++) {
        const PlanSegment* piece = &state->problem.piece[m];
        if (piece->num_tokens == 0) { continue; }
        mb_shape_add_piece(&shapes[m], &problem->samples[piece->sample_idx], piece->first_token,
                           piece->first_token + piece->num_tokens);
    }
    for (int32_t m = first; m <= last && is_padded; m++) {
        int32_t enc = 0, dec = 0;
        for (int32_t i = 0; i < state->N; i++) {
            const PlanSample* sample = &problem->samples[state->ids[i]];
            if (state->mb_of[i] != m) { continue; }
            enc = sample->enc_tokens > enc ? sample->enc_tokens : enc;
            dec = sample->dec_tokens > dec ? sample->dec_tokens : dec;
        }
        shapes[m] = padded_shape(problem, shapes[m].num_seqs, enc, dec, shapes[m].supervised_tokens);
    }
}

// How many pieces the sample is cut into whose piece microbatch m has; 1: none.
static int32_t pieces_of(const State* state, int32_t m) {
    const PlanSegment* piece = state->problem.piece;
    int32_t num = 0;
    for (int32_t i = 0; i < state->problem.pipe.M && piece[m].num_tokens > 0; i++) {
        num += piece[i].num_tokens > 0 && piece[i].sample_idx == piece[m].sample_idx;
    }
    return num > 0 ? num : 1;
}

// In every chunk the first mode in which the microbatch keeps no more than `percent` of an equal share of
// the stage's memory among all that its chunks have in flight, pieces of a sample, which are there together,
// as one; the last mode where none does.
static void set_modes_by_share(State* state, int32_t m, int32_t percent) {
    const PipePlace* place = state->problem.place;
    const PlanProblem* problem = place->problem;
    int32_t K = place->placement.num_chunks, in_flight[PLAN_MAX_STAGES] = {0};
    const int32_t num = pieces_of(state, m);
    bool known[RECOMPUTE_COUNT] = {false};
    CostParts parts[RECOMPUTE_COUNT];
    for (int32_t k = 0; k < K; k++) {
        in_flight[place->placement.stage_of[k]] += microbatch_in_flight(problem->P, K, k);
    }
    for (int32_t k = 0; k < K; k++) {
        int32_t s = place->placement.stage_of[k], i = 0;
        int64_t share =
            (place->available_bytes[s] - problem->headroom_bytes[s]) / in_flight[s] / 100 * percent;
        for (; i < problem->num_modes - 1; i++) {
            CostJobs jobs;
            if (!known[i]) {
                cost_parts(&parts[i], &problem->table, problem->modes[i], &state->problem.shape[m]);
            }
            known[i] = true;
            cost_jobs_of_stage(&jobs, problem->costs, &place->chunks[k], &parts[i]);
            if (jobs.stored_bytes * num <= share) { break; }
        }
        state->problem.modes[m * K + k] = (uint8_t)problem->modes[i];
    }
}

// The smallest enter first and last: they fill and drain the pipeline. Pieces of a sample are one.
static Status set_order(State* state, int32_t quarters, Arena* arena) {
    const PipeProblem* pipe = &state->problem.pipe;
    Keyed* keyed;
    int32_t front = 0, back = pipe->M, num = 0, *after;
    ARENA_TRY_NEW(keyed, arena, Keyed, pipe->M);
    ARENA_TRY_NEW(after, arena, int32_t, pipe->M);
    for (int32_t m = 0; m < pipe->M; m++) { after[m] = -1; }
    for (int32_t m = 0; m < pipe->M; m++) {
        int32_t before = pipe_piece_before(pipe, m);
        if (before >= 0) { after[before] = m; }
    }
    for (int32_t first = 0; first < pipe->M; first++) {
        if (pipe_piece_before(pipe, first) >= 0) { continue; }
        keyed[num].id = first;
        for (int32_t m = first; m >= 0; m = after[m]) {
            for (int32_t row = 0; row < pipe_num_rows(pipe); row++) {
                const int64_t* ns = pipe_cost(pipe, row, m)->job_ns;
                keyed[num].key -= ns[JOB_F] + ns[JOB_B] + ns[JOB_W] + ns[JOB_R];
            }
        }
        num++;
    }
    qsort(keyed, (size_t)num, sizeof *keyed, compare_keyed);
    for (int32_t k = 0; k < num; k++) {
        bool is_before = (k + 1) * quarters / 4 > k * quarters / 4;
        int32_t at = front;
        if (!is_before) {
            for (int32_t m = keyed[k].id; m >= 0; m = after[m]) { back--; }
            at = back;
        }
        for (int32_t m = keyed[k].id; m >= 0; m = after[m]) { state->order[at++] = m; }
        if (is_before) { front = at; }
    }
    return STATUS_OK;
}

static Status deal(const Share** out, Search* search, const Candidate* candidate, int32_t r) {
    search->dealer.spent = 0;
    TRY(dealer_share(out, &search->dealer, candidate->num_mbs, candidate->end_percent, candidate->num_pieces,
                     r));
    search->budget -= search->dealer.spent;
    return STATUS_OK;
}

// Replica r by the candidate's settings; *fits false: the model state does not fit.
static Status state_make(State* out, bool* fits, Search* search, const Candidate* candidate, int32_t r,
                         Arena* arena) {
    const PlanProblem* problem = search->problem;
    const ModeRule* rule = &candidate->rule;
    int32_t K = candidate->placement.num_chunks;
    const Share* share = NULL;
    PipePlace* place;
    TRY(deal(&share, search, candidate, r));
    place = (PipePlace*)arena_alloc_raw(arena, sizeof *place);
    if (place == NULL) { return FAIL(STATUS_NO_MEMORY, "search: no host memory left"); }
    *fits = pipe_place_make(place, problem, &candidate->placement, search->replica[r]);
    State state = {
        .problem = {.place = place, .pipe = pipe_place_problem(place, share->num_mbs), .may_split = true},
        .N = share->num_ids};
    *out = state;
    if (!*fits || state.N == 0) { return STATUS_OK; }
    TRY(state_alloc(&state, arena));
    memcpy(state.problem.headroom_bytes, problem->headroom_bytes, sizeof problem->headroom_bytes);
    memcpy(state.ids, share->ids, (size_t)state.N * sizeof *state.ids);
    memcpy(state.mb_of, share->mb_of, (size_t)state.N * sizeof *state.mb_of);
    memset(state.problem.piece, 0, sizeof *state.problem.piece * (size_t)share->num_mbs);
    if (share->piece != NULL) {
        memcpy(state.problem.piece, share->piece, sizeof *share->piece * (size_t)share->num_mbs);
    }
    replica_problem_link(&state.problem);
    state_shape(&state, search->is_padded, 0, share->num_mbs - 1);
    for (int32_t m = 0; m < share->num_mbs; m++) {
        for (int32_t k = 0; k < K; k++) {
            bool is_early = 100 * k < rule->early_percent * K;
            state.problem.modes[m * K + k] = (uint8_t)(is_early ? rule->mode : problem->modes[0]);
        }
        if (rule->share_percent > 0) { set_modes_by_share(&state, m, rule->share_percent); }
        replica_problem_price(&state.problem, m);
    }
    replica_problem_limit(&state.problem);
    TRY(set_order(&state, candidate->before, arena));
    state.rule =
        pipe_adaptive_rule(&state.problem.pipe, problem->request->split_backward != SPLIT_BACKWARD_OFF);
    for (int32_t k = 0; k < K && candidate->in_flight != 0; k++) {
        int32_t i = candidate->in_flight;
        state.rule.max_in_flight[k] = i < 0 ? -i : i * (K - k);
    }
    search->budget -= 4 * (int64_t)pipe_num_rows(&state.problem.pipe) * share->num_mbs;
    *out = state;
    return STATUS_OK;
}

// Under the prescribed schedule.
static Status simulate_policy(int64_t* makespan_ns, Search* search, const State* state, int64_t cutoff_ns) {
    const PipeProblem* pipe = &state->problem.pipe;
    PipeSchedule schedule;
    PipeTimeline timeline;
    search->budget -= 4 * (int64_t)pipe_num_rows(pipe) * pipe->M;
    TRY(search->policy->build(&schedule, pipe, state->order, state->rule.split_backward, &search->simulator));
    TRY(pipe_simulate(&timeline, pipe, &schedule, &search->simulator));
    for (int32_t s = 0; s < pipe->P; s++) {
        if (timeline.peak_bytes[s] > pipe->memory_limit_bytes[s]) { return STATUS_OK; }
    }
    if (timeline.makespan_ns <= cutoff_ns) { *makespan_ns = timeline.makespan_ns; }
    return STATUS_OK;
}

// At most cutoff_ns; INT64_MAX beyond, or where it does not fit.
static Status simulate(int64_t* makespan_ns, Search* search, const State* state, int64_t cutoff_ns) {
    const ShapeRules* rules = &search->problem->request->rules;
    *makespan_ns = state->N == 0 ? 0 : INT64_MAX;
    if (state->N == 0) { return STATUS_OK; }
    for (int32_t m = 0; m < state->problem.pipe.M && shape_rules_limit(rules); m++) {
        if (shape_rules_allow(rules, &state->problem.shape[m])) { continue; }
        search->budget--;
        return STATUS_OK;
    }
    arena_reset(&search->simulator);
    search->budget -= OVERHEAD_JOBS + state->N / 16;
    if (search->policy != NULL) { return simulate_policy(makespan_ns, search, state, cutoff_ns); }
    return pipe_adaptive_makespan(makespan_ns, &state->problem.pipe, state->order, &state->rule, cutoff_ns,
                                  &search->budget, &search->simulator);
}

// --- candidates -------------------------------------------------------------------------------------------

// On the probes; INT64_MAX where it is not faster than cutoff_ns, or does not fit.
static Status evaluate(Candidate* candidate, Search* search, int64_t cutoff_ns) {
    candidate->makespan_ns = 0;
    for (int32_t i = 0; i < search->num_probes; i++) {
        State state;
        bool fits;
        int64_t ns = INT64_MAX;
        int32_t r = search->probe[i];
        arena_reset(&search->tries);
        TRY(state_make(&state, &fits, search, candidate, r, &search->tries));
        if (fits) { TRY(simulate(&ns, search, &state, cutoff_ns - (cutoff_ns < INT64_MAX))); }
        if (ns > candidate->makespan_ns) {
            candidate->makespan_ns = ns;
            memmove(search->probe + 1, search->probe, (size_t)i * sizeof *search->probe);
            search->probe[0] = r;
        }
        if (ns == INT64_MAX) { break; }
    }
    return STATUS_OK;
}

static int compare_candidates(const void* a, const void* b) {
    const Candidate *x = (const Candidate*)a, *y = (const Candidate*)b;
    return (x->makespan_ns > y->makespan_ns) - (x->makespan_ns < y->makespan_ns);
}

static Status try_candidate(Candidate* best, Search* search, Candidate candidate) {
    TRY(evaluate(&candidate, search, best->makespan_ns));
    if (candidate.makespan_ns < best->makespan_ns) { *best = candidate; }
    return STATUS_OK;
}

static int32_t mode_rules(ModeRule out[MAX_RULES], const PlanProblem* problem, int32_t num_chunks) {
    static const int32_t share_percent[] = {100, 60, 160}, early_percent[] = {50, 25, 75};
    int32_t num = 0, last = problem->num_modes - 1;
    out[num++] = (ModeRule){problem->modes[0], 0, 100};
    for (int32_t k = 0; k < 3 && problem->has_limit && last > 0; k++) {
        out[num++] = (ModeRule){problem->modes[0], share_percent[k], 100};
        if (num_chunks > problem->P) { out[num++] = (ModeRule){problem->modes[last], 0, early_percent[k]}; }
    }
    for (int32_t k = 1; k <= last && problem->has_limit; k++) {
        out[num++] = (ModeRule){problem->modes[k], 0, 100};
    }
    return num;
}

enum { NUM_CUTS = 5, MOST_USUAL_PIECES = 8 };
static const int32_t num_pieces[NUM_CUTS] = {2, 4, 8, 3, 6};

// Another setting of the candidate: the i-th of NUM_SETTINGS; false: there is none, or it is already set.
static bool change_setting(Candidate* candidate, const Search* search, int32_t i) {
    static const int32_t count_percent[] = {75, 133, 50, 200, 90, 111};
    static const int32_t in_flight_percent[] = {0, 100, 150, 200, 300};  // of P; 0: 2 (K - k) - 1
    const PlanProblem* problem = search->problem;
    const Candidate before = *candidate;
    ModeRule rules[MAX_RULES];
    int32_t num_rules = mode_rules(rules, problem, candidate->placement.num_chunks);
    int32_t value = i / NUM_COORDINATES;
    switch (i % NUM_COORDINATES) {
        case 0:
            if (value >= 6) { return false; }
            candidate->num_mbs = (before.num_mbs * count_percent[value] + 50) / 100;
            if (candidate->num_mbs == before.num_mbs) {
                candidate->num_mbs += count_percent[value] > 100 ? 1 : -1;
            }
            if (before.in_flight == -before.num_mbs) { candidate->in_flight = -candidate->num_mbs; }
            return candidate->num_mbs >= 1 && candidate->num_mbs <= problem->num_samples;
        case 1:
            if (value >= num_rules) { return false; }
            candidate->rule = rules[value];
            return memcmp(&candidate->rule, &before.rule, sizeof before.rule) != 0;
        case 2:
            candidate->in_flight = value < 5    ? -problem->P * in_flight_percent[value] / 100
                                   : value == 5 ? -before.num_mbs
                                                : value - 5;
            return candidate->in_flight != before.in_flight;
        case 3: candidate->before = value; return value <= 4 && value != before.before;
        case 4:
            if (value >= NUM_CUTS || before.num_pieces == 1) { return false; }
            candidate->num_pieces = num_pieces[value];
            return candidate->num_pieces != before.num_pieces;
        default:
            candidate->end_percent = value == 0 ? 100 : USUAL_END;
            return value <= 1 && candidate->end_percent != before.end_percent && !search->is_padded;
    }
}

// Coordinate descent over settings, continued from the last call. Ends where the budget reaches stop.
static Status tune_settings(Candidate* best, Search* search, int64_t stop) {
    while (best->misses < NUM_SETTINGS && search->budget > stop) {
        Candidate candidate = *best;
        int64_t before = best->makespan_ns;
        int32_t i = best->next_setting;
        best->next_setting = candidate.next_setting = (i + 1) % NUM_SETTINGS;
        best->misses++;
        if (!change_setting(&candidate, search, i)) { continue; }
        TRY(try_candidate(best, search, candidate));
        if (best->makespan_ns < before) { best->misses = 0; }
    }
    return STATUS_OK;
}

// A layer or a block over one boundary of the chain, or over all boundaries between two chunks.
static bool move_layer(Placement* placement, Search* search) {
    int32_t K = placement->num_chunks;
    if (K < 2 || !search->problem->request->choose_stages) { return false; }
    int32_t from = (int32_t)rng_below(&search->rng, (uint32_t)K),
            to = from + (rng_below(&search->rng, 2) ? 1 : -1);
    if (rng_below(&search->rng, 2) == 0) { to = (int32_t)rng_below(&search->rng, (uint32_t)K); }
    if (to < 0 || to >= K || to == from) { return false; }
    placement_shift(placement, &search->problem->costs->chain, from, to);
    return stage_may_have(&placement->chunks[from], from, K, search->problem->request->rules.head_has_layer);
}

// Some units of the head from one stage to another.
static bool move_share(Placement* placement, Search* search) {
    const PlanRequest* request = search->problem->request;
    int32_t P = request->P, units = HEAD_UNITS >> (3 + rng_below(&search->rng, 5));
    bool is_told = request->heads == HEAD_CHOICE_GIVEN && request->placements != PLACEMENT_GIVEN;
    if (P < 2 || placement->head == HEAD_WHOLE || is_told || !request->choose_stages) { return false; }
    int32_t from = (int32_t)rng_below(&search->rng, (uint32_t)P),
            to = (int32_t)rng_below(&search->rng, (uint32_t)P);
    int32_t has = placement->head_begin[from + 1] - placement->head_begin[from];
    if (units > has) { units = has; }
    placement_move_units(placement, from, to, units);
    return units > 0 && from != to;
}

// Layers and shares of the head, while there is budget.
static Status tune_placement(Candidate* best, Search* search, int64_t stop) {
    int32_t K = best->placement.num_chunks;
    for (int32_t misses = 0; misses < 3 * K * K && search->budget > stop; misses++) {
        Candidate candidate = *best;
        bool of_head = best->placement.head != HEAD_WHOLE && rng_below(&search->rng, 3) == 0;
        if (!(of_head ? move_share : move_layer)(&candidate.placement, search)) { continue; }
        int64_t before = best->makespan_ns;
        TRY(try_candidate(best, search, candidate));
        if (best->makespan_ns < before) { misses = best->misses = 0; }
    }
    return STATUS_OK;
}

// --- construct --------------------------------------------------------------------------------------------

enum { USUAL_COUNT = 3 };  // microbatches for each stage, where memory allows no more

// Microbatches of a batch so that stage s can keep P - s of them where nothing is recomputed.
static double count_by_memory(const PlanProblem* problem, const Placement* placement) {
    const MbShape all = average_shape(problem, 1);
    double needed[PLAN_MAX_STAGES] = {0}, most = 0;
    CostRank has[PLAN_MAX_STAGES];
    CostParts parts;
    int32_t P = problem->P, K = placement->num_chunks;
    cost_parts(&parts, &problem->table, problem->modes[0], &all);
    cost_ranks_make(has, problem->costs, placement, P);
    for (int32_t k = 0; k < K && problem->has_limit; k++) {
        CostJobs jobs;
        CostStage chunk = cost_chunk_make(problem->costs, placement, k);
        cost_jobs_of_stage(&jobs, problem->costs, &chunk, &parts);
        needed[placement->stage_of[k]] += (double)jobs.stored_bytes * microbatch_in_flight(P, K, k);
    }
    for (int32_t s = 0; s < P && problem->limit_bytes[s] > 0; s++) {
        int64_t free_bytes = problem->limit_bytes[s] - cost_rank_state_bytes(problem->costs, &has[s]);
        most = fmax(most, needed[s] / (double)(free_bytes > 1 ? free_bytes : 1));
    }
    return fmin(most, problem->num_samples);
}

// Of a replica: these, or as many as the kernels' limits on sequences, tokens and squares require.
static int32_t usual_count(const PlanProblem* problem, const Placement* placement) {
    const MbShape all = average_shape(problem, 1);
    int64_t most = shape_rules_least_mbs(&problem->request->rules, &all), usual = USUAL_COUNT * problem->P;
    double by_memory = count_by_memory(problem, placement);
    if (by_memory > (double)most) { most = (int64_t)by_memory + 1; }
    most = most / problem->R > usual ? most / problem->R : usual;
    return (int32_t)(most < problem->num_samples ? most : problem->num_samples);
}

static int32_t usual_pieces(const Search* search, int64_t num_mbs) {
    double num = ceil(dealer_longest_part(&search->dealer, num_mbs));
    return num < 2 ? 2 : num < MOST_USUAL_PIECES ? (int32_t)num : MOST_USUAL_PIECES;
}

// A placement with usual settings; where these do not fit, with more microbatches and more recomputation.
static Status try_place(Candidate* out, Search* search, const Placement* placement, int64_t cutoff_ns) {
    const PlanProblem* problem = search->problem;
    int32_t num_mbs = usual_count(problem, placement);
    ModeRule rules[MAX_RULES];
    int32_t num_rules = mode_rules(rules, problem, placement->num_chunks);
    int32_t most = (problem->num_samples + problem->R - 1) / problem->R;
    *out = (Candidate){.placement = *placement, .makespan_ns = cutoff_ns};
    for (int64_t count = num_mbs; out->num_mbs == 0; count *= 2) {
        Candidate candidate = {.placement = *placement,
                               .num_mbs = (int32_t)(count < most ? count : most),
                               .end_percent = USUAL_END,
                               .num_pieces =
                                   search->cuts ? usual_pieces(search, count < most ? count : most) : 1,
                               .before = 2};
        candidate.in_flight = -candidate.num_mbs;
        for (int32_t i = 0; i < num_rules; i++) {
            candidate.rule = rules[i];
            if (i < 2 || (i == num_rules - 1 && out->num_mbs == 0)) {
                TRY(try_candidate(out, search, candidate));
            }
        }
        if (count >= most || (cutoff_ns < INT64_MAX && count > 4 * num_mbs)) { break; }
    }
    for (int32_t pieces = 2; out->num_mbs == 0 && search->cuts && pieces <= PLAN_MAX_PIECES; pieces *= 2) {
        Candidate candidate = {.placement = *placement,
                               .num_mbs = most,
                               .end_percent = 100,
                               .num_pieces = pieces,
                               .in_flight = 1};
        for (int32_t i = 0; i < num_rules;
             i += num_rules == 1 ? 1 : num_rules - 1) {  // none recomputed, or all
            candidate.rule = rules[i];
            TRY(try_candidate(out, search, candidate));
        }
    }
    if (out->num_mbs == 0) { out->makespan_ns = INT64_MAX; }
    return STATUS_OK;
}

enum { LEFT_FOR_FIELD = 45, LEFT_FOR_LAYERS = 30 };  // percent of the budget left after each
enum { FIELD = 12, FINALISTS = 3 };
enum { WHOLE_LIMIT = 1000 };  // PlacementScale.wanted: no stage may have less room than the tightest had

// Where nothing is known to fit: one sample a microbatch, everything recomputed. replica_plan_fit may still
// make it fit.
static Candidate last_resort(const PlanProblem* problem) {
    return (Candidate){.placement = problem->placement,
                       .num_mbs = problem->num_samples,
                       .end_percent = 100,
                       .num_pieces = 1,
                       .in_flight = -problem->num_samples,
                       .rule = {problem->modes[problem->num_modes - 1], 0, 100},
                       .makespan_ns = INT64_MAX};
}

// Where memory is limited: the placement with its stages levelled, if that is faster.
static Status level_placement(Candidate* best, Search* search) {
    const PlanProblem* problem = search->problem;
    const PlanRequest* request = problem->request;
    Candidate level = *best;
    if (!problem->has_limit || !request->choose_stages) { return STATUS_OK; }
    const PlacementScale scale =
        placement_scale_make(request, problem->costs, problem->samples, problem->num_samples, WHOLE_LIMIT);
    placement_level_in_room(&level.placement, &scale, request->heads != HEAD_CHOICE_GIVEN);
    if (placement_equal(&level.placement, &best->placement, problem->P)) { return STATUS_OK; }
    return try_candidate(best, search, level);
}

// order: of places, those that need the fewest microbatches first; all others may find no budget left. The
// best of seeds is in the field, too.
static Status construct(Candidate* best, Search* search, const Placement* places, const Keyed* order,
                        int32_t num_places, const Candidate* seeds, int32_t num_seeds) {
    const PlanProblem* problem = search->problem;
    const int64_t whole = search->budget;
    const int32_t num_probes = search->num_probes;
    Candidate* field;
    int64_t fastest_ns = INT64_MAX;
    int32_t num = 0;
    ARENA_TRY_NEW(field, &search->lists, Candidate, (int64_t)num_places + 2);
    if (!problem->differs) { search->num_probes = 1; }
    field[0].makespan_ns = INT64_MAX;
    for (int32_t i = 0; i < num_seeds; i++) { TRY(try_candidate(&field[0], search, seeds[i])); }
    fastest_ns = field[0].makespan_ns;
    num = fastest_ns < INT64_MAX;
    for (int32_t i = 0; i < num_places; i++) {
        if (num > 0 && search->budget < whole * 3 / 4) { break; }
        TRY(try_place(&field[num], search, &places[order[i].id],
                      fastest_ns < INT64_MAX ? fastest_ns + fastest_ns / 3 : INT64_MAX));
        if (field[num].makespan_ns == INT64_MAX) { continue; }
        if (field[num].makespan_ns < fastest_ns) { fastest_ns = field[num].makespan_ns; }
        num++;
    }
    search->num_probes = num_probes;
    *best = last_resort(problem);
    if (num == 0) { return STATUS_OK; }
    qsort(field, (size_t)num, sizeof *field, compare_candidates);
    if (num > FIELD) { num = FIELD; }
    if (field[0].rule.share_percent > 0) {  // the same with nothing recomputed: no step of tuning leads there
        Candidate* plain = &field[num];
        *plain = field[0];
        plain->rule = (ModeRule){problem->modes[0], 0, 100};
        TRY(evaluate(plain, search, INT64_MAX));
        num += plain->makespan_ns < INT64_MAX;
    }
    // The first replica decides; without a pipeline what microbatches cost besides samples counts in all.
    for (int32_t i = 0; i < num && problem->P == 1; i++) { TRY(evaluate(&field[i], search, INT64_MAX)); }
    qsort(field, (size_t)num, sizeof *field, compare_candidates);
    int64_t part = search->budget - whole * LEFT_FOR_FIELD / 100;
    for (int32_t before = 0; num != before;) {
        before = num;
        for (int32_t i = 0; i < num; i++) {
            if (i > 0) {
                Candidate as_first = field[0];
                as_first.placement = field[i].placement;
                as_first.misses = 0;
                TRY(try_candidate(&field[i], search, as_first));
            }
            TRY(tune_settings(&field[i], search, search->budget - part / 3 / num));
        }
        qsort(field, (size_t)num, sizeof *field, compare_candidates);
        if (num > FINALISTS) { num = (num + 1) / 2; }
    }
    for (int32_t i = 0; i < num && problem->P > 1; i++) {
        part = (search->budget - whole * LEFT_FOR_LAYERS / 100) / (num - i);
        TRY(level_placement(&field[i], search));
        TRY(tune_placement(&field[i], search, search->budget - part));
        TRY(tune_settings(&field[i], search, search->budget - part / 4));
    }
    qsort(field, (size_t)num, sizeof *field, compare_candidates);
    *best = field[0];
    return STATUS_OK;
}

// --- improve ----------------------------------------------------------------------------------------------

// After the samples or modes of a microbatch have changed.
static void reprice(State* state, bool is_padded, int32_t m) {
    state_shape(state, is_padded, m, m);
    replica_problem_price(&state->problem, m);
}

// A piece that is not its sample's last is alone.
static bool has_more(const State* state, int32_t m) {
    const PlanSegment* piece = &state->problem.piece[m];
    const PlanSample* samples = state->problem.place->problem->samples;
    return piece->num_tokens > 0 &&
           piece->first_token + piece->num_tokens < plan_sample_tokens(&samples[piece->sample_idx]);
}

// Some tiles of tokens from a piece to the one before it, or back.
static bool move_boundary(State* state, Rng* rng) {
    int32_t m = (int32_t)rng_below(rng, (uint32_t)state->problem.pipe.M), before;
    int32_t tokens = PIECE_TILE << rng_below(rng, 3), sign = rng_below(rng, 2) == 0 ? -1 : 1;
    if ((before = pipe_piece_before(&state->problem.pipe, m)) < 0) { return false; }
    PlanSegment *piece = &state->problem.piece[m], *first = &state->problem.piece[before];
    if (piece->num_tokens <= sign * tokens || first->num_tokens <= -sign * tokens) { return false; }
    piece->first_token += sign * tokens;
    piece->num_tokens -= sign * tokens;
    first->num_tokens += sign * tokens;
    reprice(state, false, before);
    reprice(state, false, m);
    return true;
}

// A sample to another microbatch, or two change places.
static bool move_sample(State* state, Rng* rng, bool is_padded) {
    int32_t i = (int32_t)rng_below(rng, (uint32_t)state->N), j = (int32_t)rng_below(rng, (uint32_t)state->N);
    bool swaps = rng_below(rng, 2) == 0;
    int32_t from = state->mb_of[i],
            to = swaps ? state->mb_of[j] : (int32_t)rng_below(rng, (uint32_t)state->problem.pipe.M);
    if (from == to || (!swaps && state->problem.shape[from].num_seqs == 1)) { return false; }
    if (is_cut(state, i) || (swaps && is_cut(state, j)) || has_more(state, to)) { return false; }
    state->mb_of[i] = to;
    if (swaps) { state->mb_of[j] = from; }
    reprice(state, is_padded, from);
    reprice(state, is_padded, to);
    return true;
}

// One microbatch is recomputed in another way in one chunk, up to it, or from it on.
static bool move_mode(State* state, Rng* rng) {
    const PlanProblem* problem = state->problem.place->problem;
    int32_t K = state->problem.place->placement.num_chunks,
            m = (int32_t)rng_below(rng, (uint32_t)state->problem.pipe.M);
    int32_t first = (int32_t)rng_below(rng, (uint32_t)K), last = first, changed = 0;
    uint8_t mode = (uint8_t)problem->modes[rng_below(rng, (uint32_t)problem->num_modes)];
    uint32_t range = rng_below(rng, 4);
    if (range == 0) { last = K - 1; }
    if (range == 1) { first = 0; }
    for (int32_t k = first; k <= last; k++) {
        uint8_t* at = &state->problem.modes[m * K + k];
        changed += *at != mode;
        *at = mode;
    }
    if (changed > 0) { replica_problem_price(&state->problem, m); }
    return changed > 0;
}

enum { MODE_MOVES = 20 };      // percent of all, where memory is limited
enum { BOUNDARY_MOVES = 20 };  // where samples are cut

// Changes are kept unless they make it slower. Ends at stop_ns, or where the budget reaches `stop`.
static Status improve(State* now, Search* search, int64_t stop_ns, int64_t stop) {
    State trial;
    bool modes = search->problem->has_limit && search->problem->num_modes > 1;
    bool cuts = now->problem.pipe.piece_before != NULL;
    if (now->N == 0) { return STATUS_OK; }
    arena_reset(&search->tries);
    TRY(state_copy(&trial, now, &search->tries));
    // an impossible move costs no simulation, but must not repeat without end
    for (int64_t tries = search->budget - stop; tries > 0 && search->budget > stop; tries--) {
        int64_t ns = INT64_MAX;
        if (now->makespan_ns <= stop_ns) { break; }
        bool of_mode = modes && rng_below(&search->rng, 100) < MODE_MOVES;
        bool of_pieces = cuts && !of_mode && rng_below(&search->rng, 100) < BOUNDARY_MOVES;
        if (of_mode     ? move_mode(&trial, &search->rng)
            : of_pieces ? move_boundary(&trial, &search->rng)
                        : move_sample(&trial, &search->rng, search->is_padded)) {
            replica_problem_limit(&trial.problem);
            TRY(simulate(&ns, search, &trial, now->makespan_ns));
        }
        trial.makespan_ns = ns;
        state_assign(ns < INT64_MAX ? now : &trial, ns < INT64_MAX ? &trial : now);
    }
    return STATUS_OK;
}

static void replace(State* state, bool is_padded, int32_t i, int32_t id) {
    state->ids[i] = id;
    reprice(state, is_padded, state->mb_of[i]);
    replica_problem_limit(&state->problem);
}

// Two samples change replicas where that makes the slower of both faster.
static Status exchange(State* slow, State* fast, Search* search, int64_t stop) {
    State a, b;
    if (slow->N == 0 || fast->N == 0) { return STATUS_OK; }
    arena_reset(&search->tries);
    TRY(state_copy(&a, slow, &search->tries));
    TRY(state_copy(&b, fast, &search->tries));
    while (search->budget > stop && slow->makespan_ns > fast->makespan_ns) {
        int32_t i = (int32_t)rng_below(&search->rng, (uint32_t)slow->N);
        int32_t j = (int32_t)rng_below(&search->rng, (uint32_t)fast->N), id = slow->ids[i];
        search->budget--;  // draws are cheap, but with samples of one size nothing else is spent
        if (dealer_size_of(&search->dealer, id) <= dealer_size_of(&search->dealer, fast->ids[j])) {
            continue;
        }
        if (is_cut(slow, i) || is_cut(fast, j)) { continue; }
        replace(&a, search->is_padded, i, fast->ids[j]);
        TRY(simulate(&a.makespan_ns, search, &a, slow->makespan_ns - 1));
        b.makespan_ns = INT64_MAX;
        if (a.makespan_ns < slow->makespan_ns) {
            replace(&b, search->is_padded, j, id);
            TRY(simulate(&b.makespan_ns, search, &b, slow->makespan_ns - 1));
        }
        bool helps = b.makespan_ns < slow->makespan_ns;
        state_assign(helps ? slow : &a, helps ? &a : slow);
        state_assign(helps ? fast : &b, helps ? &b : fast);
    }
    return STATUS_OK;
}

static void find_ends(int32_t* slowest, int32_t* fastest, const State* states, int32_t R) {
    *slowest = *fastest = 0;
    for (int32_t r = 1; r < R; r++) {
        if (states[r].makespan_ns > states[*slowest].makespan_ns) { *slowest = r; }
        if (states[r].makespan_ns < states[*fastest].makespan_ns) { *fastest = r; }
    }
}

// All replicas once, then the slowest repeatedly.
static Status improve_all(State* states, Search* search) {
    int32_t R = search->problem->R, slowest, fastest, rounds = 2 * R + 4;
    if (R == 1) { return improve(&states[0], search, 0, 0); }
    int64_t part = search->budget / 2 / R;
    for (int32_t r = 0; r < R; r++) { TRY(improve(&states[r], search, 0, search->budget - part)); }
    for (int32_t round = 0; round < rounds && search->budget > 0; round++) {
        part = search->budget / (rounds - round);
        int64_t stop = search->budget - part;
        find_ends(&slowest, &fastest, states, R);
        TRY(exchange(&states[slowest], &states[fastest], search, stop + part / 2));
        find_ends(&slowest, &fastest, states, R);
        TRY(improve(&states[slowest], search, states[fastest].makespan_ns, stop));
    }
    return STATUS_OK;
}

// --- the draft --------------------------------------------------------------------------------------------

static int compare_ids(const void* a, const void* b) {
    int32_t x = *(const int32_t*)a, y = *(const int32_t*)b;
    return (x > y) - (x < y);
}

static Status draft_replica(DraftReplica* out, MicrobatchList* list, const Search* search, const State* state,
                            int32_t* ids, Arena* arena) {
    const PlanProblem* problem = search->problem;
    const PipePolicy* policy = search->policy != NULL ? search->policy : &pipe_policy_adaptive;
    bool is_split = state->rule.split_backward, adapts = policy == &pipe_policy_adaptive;
    int32_t M = state->problem.pipe.M, K = state->problem.place->placement.num_chunks;
    const char* name = adapts                        ? (is_split ? "adaptive+w" : "adaptive")
                       : policy == &pipe_policy_1f1b ? (is_split ? "1f1b+w" : "1f1b")
                                                     : (is_split ? "gpipe+w" : "gpipe");
    *out = (DraftReplica){
        .variant = {name, policy, is_split, adapts, state->rule}, .M = M, .makespan_ns = state->makespan_ns};
    ARENA_TRY_NEW(out->mbs, arena, int32_t, M);
    ARENA_TRY_NEW(out->modes, arena, uint8_t, (int64_t)K * M);
    for (int32_t i = 0; i < M; i++) {
        int32_t m = state->order[i], num = 0;
        const uint8_t* modes = state->problem.modes + m * K;
        for (int32_t k = 0; k < state->N; k++) {
            if (state->mb_of[k] == m && !is_cut(state, k)) { ids[num++] = state->ids[k]; }
        }
        qsort(ids, (size_t)num, sizeof *ids, compare_ids);
        if (state->problem.piece[m].num_tokens > 0) {
            microbatch_list_open(list, LAYOUT_RAGGED, (RecomputeMode)modes[0]);
            microbatch_list_add_piece(list, problem, &state->problem.piece[m]);
            for (int32_t k = 0; k < num; k++) {
                const PlanSample* sample = &problem->samples[ids[k]];
                microbatch_list_add(list, problem, &ids[k], 1, sample->enc_tokens, sample->dec_tokens);
            }
            microbatch_list_close(list, problem);
        } else {
            microbatch_list_append(list, problem, problem->request->layout, (RecomputeMode)modes[0], ids,
                                   num);
        }
        out->mbs[i] = list->num_mbs - 1;
        memcpy(out->modes + i * K, modes, (size_t)K);
    }
    return STATUS_OK;
}

static Status make_draft(Draft* out, const Search* search, const State* states, const Placement* placement,
                         Arena* arena) {
    const PlanProblem* problem = search->problem;
    int32_t N = problem->num_samples, R = problem->R, num_cut = 0, slowest, fastest, *ids;
    find_ends(&slowest, &fastest, states, R);
    Draft draft = {.placement = *placement, .makespan_ns = states[slowest].makespan_ns};
    ARENA_TRY_NEW(ids, arena, int32_t, N);
    ARENA_TRY_NEW(draft.replica, arena, DraftReplica, R);
    for (int32_t r = 0; r < R; r++) {
        for (int32_t m = 0; m < states[r].problem.pipe.M; m++) {
            num_cut += states[r].N > 0 && states[r].problem.piece[m].num_tokens > 0;
        }
    }
    TRY(microbatch_list_reserve(&draft.list, N + num_cut, N + num_cut, arena));
    for (int32_t r = 0; r < R; r++) {
        TRY(draft_replica(&draft.replica[search->replica[r]], &draft.list, search, &states[r], ids, arena));
    }
    *out = draft;
    return STATUS_OK;
}

enum { JOB_NS = 30 };  // per job of a simulation, with the rest of planning included

// An effort counts simulations of 5 P microbatches: their jobs F, B and W.
static int64_t effort_jobs(int32_t P) {
    return 15 * (int64_t)P * P;
}

int32_t search_effort(int32_t P, int64_t search_ns) {
    int64_t effort = search_ns / JOB_NS / effort_jobs(P);
    return effort < 1 ? 1 : effort > INT32_MAX ? INT32_MAX : (int32_t)effort;
}

enum { LEAST_EVALUATIONS = 40, USUAL_EVALUATIONS = 150 };  // of a candidate on one replica

// By default what takes about 20 ms of a core per replica of a few hundred samples, more for large batches,
// less per replica where there are many, and enough for some candidates in any case.
static int64_t budget_jobs(const PlanProblem* problem, int64_t num_mbs) {
    int64_t N = problem->num_samples, R = problem->R, effort = problem->request->effort;
    int64_t evaluation = OVERHEAD_JOBS + 7 * 3 * problem->P * num_mbs;  // F, B, W and prices of 3 P rows
    int64_t jobs = 400000 * R + 450 * N, most = 4000000 + 400 * N / R, least = USUAL_EVALUATIONS * evaluation;
    if (effort > 0) {
        jobs = effort * effort_jobs(problem->P), most = INT64_MAX,
        least = LEAST_EVALUATIONS * evaluation * (R < MAX_PROBES ? R : (int32_t)MAX_PROBES);
    }
    jobs = jobs < most ? jobs : most;
    return jobs > least ? jobs : least;
}

static Status sort_replicas(Search* search) {
    const PlanProblem* problem = search->problem;
    size_t bytes = (size_t)problem->P * sizeof *plan_problem_ranks(problem, 0);
    ARENA_TRY_NEW(search->replica, &search->lists, int32_t, problem->R);
    for (int32_t r = 0; r < problem->R; r++) {
        int32_t i = r;
        for (; i > 0 && problem->differs &&
               memcmp(plan_problem_ranks(problem, search->replica[i - 1]), plan_problem_ranks(problem, r),
                      bytes) > 0;
             i--) {
            search->replica[i] = search->replica[i - 1];
        }
        search->replica[i] = r;
    }
    return STATUS_OK;
}

// The replica of the largest sample is tried first, then those of most samples.
static void choose_probes(Search* search) {
    const Share* dealt = search->dealer.dealt;
    int32_t R = search->problem->R, largest = 0;
    while (dealt[largest].num_ids == 0 || dealt[largest].ids[0] != search->dealer.by_size[0]) { largest++; }
    search->probe[search->num_probes++] = largest;
    for (int32_t r = 0; r < R; r++) {
        int32_t i = search->num_probes;
        if (r == largest) { continue; }
        if (i < MAX_PROBES) { search->num_probes++; }
        for (; i > 1 && dealt[search->probe[i - 1]].num_ids < dealt[r].num_ids; i--) {
            if (i < MAX_PROBES) { search->probe[i] = search->probe[i - 1]; }
        }
        if (i < MAX_PROBES) { search->probe[i] = r; }
    }
}

static Status make_states(State* states, Search* search, const Candidate* best) {
    for (int32_t r = 0; r < search->problem->R; r++) {
        bool fits;
        TRY(state_make(&states[r], &fits, search, best, r, &search->lists));
        if (!fits) { return FAIL(STATUS_INFEASIBLE, "search: replica %d does not fit", search->replica[r]); }
        TRY(simulate(&states[r].makespan_ns, search, &states[r], INT64_MAX));
    }
    return STATUS_OK;
}

static int64_t slowest_ns(const State* states, int32_t R) {
    int32_t slowest, fastest;
    find_ends(&slowest, &fastest, states, R);
    return states[slowest].makespan_ns;
}

enum { CUTS_BUDGET = 30 };            // percent of the budget
static const double LEAST_CUT = 0.5;  // of an average microbatch

// A second search, of candidates whose long samples are cut. What the first one found stays if it is faster:
// cuts then cost time, but no plan gets worse by them.
static Status search_cuts(State** states, Candidate* best, Search* search, const Placement* places,
                          const Keyed* order, int32_t num_places, const Candidate* before) {
    const int32_t R = search->problem->R;
    Candidate cut, seeds[NUM_CUTS + 1];
    int32_t num_seeds = 0;
    State* pieces;
    search->cuts = true;
    if (dealer_longest_part(&search->dealer, best->num_mbs) < LEAST_CUT) { return STATUS_OK; }
    if (before->num_mbs > 0) { seeds[num_seeds++] = *before; }
    for (int32_t i = 0; i < NUM_CUTS && best->makespan_ns < INT64_MAX; i++) {
        seeds[num_seeds] = *best;
        seeds[num_seeds].next_setting = seeds[num_seeds].misses = 0;
        seeds[num_seeds++].num_pieces = num_pieces[i];
    }
    TRY(construct(&cut, search, places, order, num_places, seeds, num_seeds));
    search->found->cut = cut;
    if (cut.makespan_ns == INT64_MAX) { return STATUS_OK; }
    ARENA_TRY_NEW(pieces, &search->lists, State, R);
    TRY(make_states(pieces, search, &cut));
    TRY(improve_all(pieces, search));
    if (slowest_ns(pieces, R) < slowest_ns(*states, R)) { *best = cut, *states = pieces; }
    return STATUS_OK;
}

static Status search_all(Draft* out, Search* search, const Placement* places, int32_t num_places,
                         const SearchHint* before, Arena* arena) {
    int32_t R = search->problem->R;
    Candidate best;
    State* states;
    Keyed* order;
    int64_t sum = 0, least;
    ARENA_TRY_NEW(search->found, arena, SearchHint, 1);
    *search->found = (SearchHint){0};
    ARENA_TRY_NEW(states, &search->lists, State, R);
    ARENA_TRY_NEW(order, &search->lists, Keyed, num_places);
    for (int32_t i = 0; i < num_places; i++) {
        order[i] = (Keyed){-(int64_t)(1000 * count_by_memory(search->problem, &places[i])), i};
        sum += usual_count(search->problem, &places[i]);
    }
    qsort(order, (size_t)num_places, sizeof *order, compare_keyed);
    least = usual_count(search->problem, &places[order[0].id]);
    search->budget =
        budget_jobs(search->problem, sum / num_places < 4 * least ? sum / num_places : 4 * least);
    TRY(sort_replicas(search));
    TRY(dealer_make(&search->dealer, search->problem, search->replica));
    search->budget -= search->dealer.spent;
    choose_probes(search);
    if (before->whole.num_mbs > 0) { search->budget /= 2; }
    const int64_t whole = search->budget;
    TRY(construct(&best, search, places, order, num_places, &before->whole, before->whole.num_mbs > 0));
    search->found->whole = best;
    TRY(make_states(states, search, &best));
    if (best.makespan_ns < INT64_MAX) { TRY(improve_all(states, search)); }
    if (plan_problem_max_pieces(search->problem) > 1) {
        search->budget = whole * CUTS_BUDGET / 100;
        TRY(search_cuts(&states, &best, search, places, order, num_places, &before->cut));
    }
    TRY(make_draft(out, search, states, &best.placement, arena));
    out->hint = search->found;
    return STATUS_OK;
}

Status search_draft(Draft* out, const PlanProblem* problem, const Placement* places, int32_t num_places,
                    const Draft* before, Arena* arena) {
    static const SearchHint none = {0};
    const ScheduleChoice schedule = problem->request->schedule;
    Search search = {.problem = problem,
                     .is_padded = problem->request->layout == LAYOUT_PADDED,
                     .policy = schedule == SCHEDULE_GPIPE  ? &pipe_policy_gpipe
                               : schedule == SCHEDULE_1F1B ? &pipe_policy_1f1b
                                                           : NULL,
                     .rng = rng_seed((uint64_t)problem->num_samples)};
    Status status =
        search_all(out, &search, places, num_places, before != NULL ? before->hint : &none, arena);
    dealer_free(&search.dealer);
    arena_free(&search.lists);
    arena_free(&search.tries);
    arena_free(&search.simulator);
    return status;
}
