// search.c -- see search.h. What each part and constant contributes: dev/results/ablation.md.
#include "search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../util/numbers.h"
#include "placement.h"
#include "schedule.h"
#include "simulate.h"

enum { MAX_PLACES = 48, MAX_RULES = RECOMPUTE_COUNT + 6, MAX_PROBES = 4 };
enum { USUAL_END = 40 };  // Candidate.end_percent
enum { NUM_COORDINATES = 5, NUM_SETTINGS = NUM_COORDINATES * 10 };

// Which samples a replica computes, and in which of its num_mbs micro-batches each is.
typedef struct {
    int32_t num_ids, num_mbs;
    int32_t *ids, *mb_of;  // [num_ids]; mb_of NULL: not filled yet
} Share;

typedef struct Deal {
    int32_t num_mbs, end_percent;  // wanted, of a replica
    Share* shares;                 // [R]
    struct Deal* next;
} Deal;

// What is recomputed at first.
typedef struct {
    RecomputeMode mode;     // in chunks before early_percent of them, the first mode after that; or ...
    int32_t share_percent;  // where a micro-batch keeps more than this part of its share of memory; 0: `mode`
    int32_t early_percent;
} ModeRule;

typedef struct {
    Placement placement;
    int32_t num_mbs;      // of a replica
    int32_t end_percent;  // size of the first and last, in percent of the body's; P at each end grow from it
    int32_t before;       // quarters of the micro-batches that enter before the largest
    int32_t in_flight;    // i: chunk k may hold i (K - k) micro-batches; 0: 2 (K - k) - 1; -i: i
    ModeRule rule;
    int32_t next_setting, misses;  // to be tried; tried since one was better
    int64_t makespan_ns;           // of the slowest replica that it is tried on; INT64_MAX: does not fit
} Candidate;

// One replica while the search improves it; its arrays lie in one block, so that a copy is one memcpy.
typedef struct {
    const PlanProblem* problem;
    const MachineRank* ranks;                  // [P] that run it; NULL: all alike
    int32_t replica, P, K, num_rows, M, N;     // M micro-batches, N samples; 0: nothing to do
    Placement placement;                       // and what is derived from it:
    CostStage chunks[PLAN_MAX_CHUNKS];         // .
    int64_t available_bytes[PLAN_MAX_STAGES];  // memory limit - model state
    size_t block_bytes;
    char* block;
    PipeCost* cost;          // [rows * M]
    int64_t* scratch_bytes;  // [M]
    MbShape* shape;          // [M]
    int32_t *ids, *mb_of;    // [N]
    int32_t* order;          // [M]
    uint8_t* mode;           // [M * K] RecomputeMode
    PipeProblem pipe;
    PipeAdaptiveRule rule;
    int64_t makespan_ns;
} State;

typedef struct {
    const PlanProblem* problem;
    MbLayout layout;
    const PipePolicy* policy;  // the schedule that is prescribed; NULL: adaptive
    int64_t budget;            // jobs that may still be simulated, and other work converted to jobs
    int32_t num_weights;       // 1, or 2: work in encoder layers and in decoder layers
    int64_t* weight[2];        // [num_samples] in 2^-40 of the batch
    int32_t* by_size;          // [num_samples] ids, largest first
    int32_t* replica;          // [R] in an order that depends on their ranks only: all below count in it
    double* slow;              // [R] how many times as long a replica takes for the same samples
    int32_t probe[PLAN_MAX_REPLICAS];  // replicas that candidates are tried on, the most informative first
    int32_t num_probes;
    Share* dealt;  // [R] ragged: the samples of each replica
    Deal* deals;   // one for every number of micro-batches tried
    Rng rng;
    Arena lists, tries, simulator;  // kept; of one candidate; of one simulation
} Search;

// --- samples into micro-batches ---------------------------------------------------------------------------

typedef struct {
    int64_t key;
    int32_t id;
} Keyed;

// Descending, ties to the smaller id.
static int compare_keyed(const void* a, const void* b) {
    const Keyed *x = (const Keyed*)a, *y = (const Keyed*)b;
    if (x->key != y->key) { return x->key > y->key ? -1 : 1; }
    return (x->id > y->id) - (x->id < y->id);
}

static int64_t size_of(const Search* search, int32_t id) {
    int64_t a = search->weight[0][id], b = search->weight[search->num_weights - 1][id];
    return a > b ? a : b;
}

static void add_sample(MbShape* shape, const PlanSample* sample) {
    mb_shape_add(shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
}

static MbShape whole_batch(const PlanProblem* problem) {
    MbShape all = {0};
    for (int32_t i = 0; i < problem->num_samples; i++) { add_sample(&all, &problem->samples[i]); }
    return all;
}

static MbShape average_shape(const PlanProblem* problem, int64_t num_mbs) {
    const MbShape all = whole_batch(problem);
    return (MbShape){all.num_seqs / num_mbs,         all.enc_tokens / num_mbs,  all.enc_squares / num_mbs,
                     all.dec_tokens / num_mbs,       all.dec_squares / num_mbs, all.cross_products / num_mbs,
                     all.supervised_tokens / num_mbs};
}

// F, B and W of the encoder's part of the model and of the decoder's, or of all of it.
static void work_of(double work_ns[2], const Search* search, const MbShape* shape) {
    const CostModel* costs = search->problem->costs;
    CostParts parts;
    cost_parts(&parts, &search->problem->table, search->problem->modes[0], shape);
    const int32_t num[PART_COUNT] = {[PART_EMBEDDING] = 1,
                                     [PART_ENC_LAYER] = costs->num_enc_layers,
                                     [PART_DEC_LAYER] = costs->num_dec_layers,
                                     [PART_HEAD] = 1};
    work_ns[0] = work_ns[1] = 0;
    for (int part = 0; part < PART_COUNT; part++) {
        bool is_dec = search->num_weights > 1 && (part == PART_DEC_LAYER || part == PART_HEAD);
        for (int kind = 0; kind < JOB_COUNT && num[part] > 0; kind++) {
            work_ns[is_dec] += num[part] * parts.part[part][kind];
        }
    }
}

// What each sample adds to an average micro-batch.
static Status weigh(Search* search) {
    const PlanProblem* problem = search->problem;
    int32_t N = problem->num_samples, num_mbs = 4 * problem->P * problem->R;
    const MbShape average = average_shape(problem, num_mbs);
    double without[2], with[2], sum[2] = {0}, *added;
    Keyed* keyed;
    search->num_weights = problem->costs->num_dec_layers > 0 ? 2 : 1;
    ARENA_TRY_NEW(keyed, &search->lists, Keyed, N);
    ARENA_TRY_NEW(added, &search->lists, double, 2 * (int64_t)N);
    ARENA_TRY_NEW(search->by_size, &search->lists, int32_t, N);
    for (int k = 0; k < 2; k++) { ARENA_TRY_NEW(search->weight[k], &search->lists, int64_t, N); }
    work_of(without, search, &average);
    for (int32_t i = 0; i < N; i++) {
        MbShape shape = average;
        add_sample(&shape, &problem->samples[i]);
        work_of(with, search, &shape);
        for (int k = 0; k < 2; k++) { sum[k] += added[2 * i + k] = fmax(with[k] - without[k], 1); }
    }
    for (int32_t i = 0; i < N; i++) {
        for (int k = 0; k < 2; k++) {
            search->weight[k][i] = (int64_t)(added[2 * i + k] / sum[k] * 0x1p40) + 1;
        }
        keyed[i] = (Keyed){size_of(search, i), i};
    }
    qsort(keyed, (size_t)N, sizeof *keyed, compare_keyed);
    for (int32_t i = 0; i < N; i++) { search->by_size[i] = keyed[i].id; }
    return STATUS_OK;
}

typedef struct {
    double load[2], per_capacity;
    int32_t num;
} Bin;

// The least filled bin for the sample; an empty one where must_be_empty.
static int32_t emptiest(const Search* search, const Bin* bins, int32_t num_bins, int32_t id,
                        bool must_be_empty) {
    double a = (double)search->weight[0][id], b = search->num_weights > 1 ? (double)search->weight[1][id] : 0;
    double least = INFINITY;
    int32_t best = 0;
    for (int32_t i = 0; i < num_bins; i++) {
        double x = bins[i].load[0] + a, y = bins[i].load[1] + b,
               full = (x > y ? x : y) * bins[i].per_capacity;
        if (full >= least || (must_be_empty && bins[i].num > 0)) { continue; }
        least = full;
        best = i;
    }
    return best;
}

// Largest first, each where it fills least (LPT, Graham 1969), work in encoder and decoder layers counted
// separately.
static void fill_bins(int32_t* bin_of, const Search* search, Bin* bins, int32_t num_bins, const int32_t* ids,
                      int32_t num_ids) {
    int32_t num_empty = num_bins;
    for (int32_t i = 0; i < num_ids; i++) {
        Bin* bin = &bins[bin_of[i] = emptiest(search, bins, num_bins, ids[i], num_ids - i <= num_empty)];
        num_empty -= bin->num++ == 0;
        for (int k = 0; k < search->num_weights; k++) { bin->load[k] += (double)search->weight[k][ids[i]]; }
    }
}

static Status fill_ragged(Share* share, Search* search, int32_t num_mbs, int32_t end_percent) {
    Bin* bins;
    int32_t depth = search->problem->P;
    arena_reset(&search->tries);
    ARENA_TRY_NEW(bins, &search->tries, Bin, num_mbs);
    ARENA_TRY_NEW(share->mb_of, &search->lists, int32_t, share->num_ids);
    for (int32_t b = 0; b < num_mbs; b++) {
        int32_t end = b < num_mbs - 1 - b ? b : num_mbs - 1 - b;
        bins[b].per_capacity = end >= depth ? 1 : 100.0 / (end_percent + (100.0 - end_percent) * end / depth);
    }
    fill_bins(share->mb_of, search, bins, num_mbs, share->ids, share->num_ids);
    share->num_mbs = num_mbs;
    search->budget -= (int64_t)share->num_ids * num_mbs / 20;
    return STATUS_OK;
}

// Samples to replicas, for ragged micro-batches.
static Status deal_samples(Search* search) {
    int32_t N = search->problem->num_samples, R = search->problem->R, *replica_of, *ids;
    Bin* bins;
    ARENA_TRY_NEW(bins, &search->lists, Bin, R);
    ARENA_TRY_NEW(replica_of, &search->lists, int32_t, N);
    ARENA_TRY_NEW(ids, &search->lists, int32_t, N);
    ARENA_TRY_NEW(search->dealt, &search->lists, Share, R);
    search->deals = NULL;
    for (int32_t r = 0; r < R; r++) { bins[r].per_capacity = search->slow[r]; }
    fill_bins(replica_of, search, bins, R, search->by_size, N);
    for (int32_t r = 0; r < R; r++) {
        Share* share = &search->dealt[r];
        share->ids = ids;
        for (int32_t i = 0; i < N; i++) {
            if (replica_of[i] == r) { ids[share->num_ids++] = search->by_size[i]; }
        }
        ids += share->num_ids;
    }
    return STATUS_OK;
}

enum { MAX_CUTS = 256 };     // places where a batch may be cut
enum { PADDED_MOST = 125 };  // work of the largest padded micro-batch, in percent of an average one's

// Consecutive samples as padded micro-batches: the cuts of least work where none takes longer than `limit`.
// cut[k]: where the micro-batch that ends before sample k begins.
static void cut_padded(int32_t* cut, double* least, Search* search, const int32_t* ids, double limit) {
    const PlanProblem* problem = search->problem;
    int32_t N = problem->num_samples, step = (N + MAX_CUTS - 1) / MAX_CUTS;
    if (shape_rules_limit(&problem->request->rules)) { step = 1; }
    least[0] = 0;
    for (int32_t end = N % step == 0 ? step : N % step; end <= N; end += step) {
        int32_t enc = 0, dec = 0;
        int64_t supervised = 0;
        least[end] = INFINITY;
        for (int32_t begin = end - 1; begin >= 0; begin--) {
            const PlanSample* sample = &problem->samples[ids[begin]];
            int64_t num = end - begin;
            double work_ns[2];
            enc = sample->enc_tokens > enc ? sample->enc_tokens : enc;
            dec = sample->dec_tokens > dec ? sample->dec_tokens : dec;
            supervised += sample->supervised_tokens;
            if ((N - begin) % step != 0 && begin > 0) { continue; }
            int64_t T = microbatch_pad_tokens(problem, enc, num),
                    Td = microbatch_pad_targets(problem, dec, num);
            const MbShape shape = {num,           num * T,      num * T * T, num * Td,
                                   num * Td * Td, num * T * Td, supervised};
            work_of(work_ns, search, &shape);
            search->budget -= 4;
            double work = work_ns[0] + work_ns[1];
            bool fits = work <= limit && shape_rules_allow(&problem->request->rules, &shape);
            if (num > step && !fits) { break; }
            if (least[begin] + work >= least[end]) { continue; }
            least[end] = least[begin] + work;
            cut[end] = begin;
        }
    }
}

// Padded: samples of similar length form a micro-batch; these are distributed over the replicas.
static Status fill_padded(Deal* deal, Search* search) {
    const PlanProblem* problem = search->problem;
    int32_t N = problem->num_samples, R = problem->R, num = 0, *ids, *cut;
    Keyed* keyed;
    double work_ns[2], *load_ns, *least;
    arena_reset(&search->tries);
    ARENA_TRY_NEW(ids, &search->lists, int32_t, 3 * (int64_t)N);
    ARENA_TRY_NEW(cut, &search->tries, int32_t, N + 1);
    ARENA_TRY_NEW(keyed, &search->tries, Keyed, N);
    ARENA_TRY_NEW(load_ns, &search->tries, double, R);
    int32_t *replica_ids = ids + N, *mb_of = ids + 2 * (int64_t)N;
    TRY(sample_order_make(ids, problem->samples, N, &search->tries));
    const MbShape average = average_shape(problem, (int64_t)deal->num_mbs * R);
    work_of(work_ns, search, &average);
    ARENA_TRY_NEW(least, &search->tries, double, N + 1);
    cut_padded(cut, least, search, ids, (work_ns[0] + work_ns[1]) * PADDED_MOST / 100);
    for (int32_t end = N; end > 0; end = cut[end]) {
        keyed[num++] = (Keyed){(int64_t)(least[end] - least[cut[end]]), end};
    }
    qsort(keyed, (size_t)num, sizeof *keyed, compare_keyed);
    int32_t* replica_of;
    ARENA_TRY_NEW(replica_of, &search->tries, int32_t, num);
    for (int32_t b = 0; b < num; b++) {
        int32_t best = 0;
        for (int32_t r = 1; r < R; r++) {
            double here = (load_ns[r] + (double)keyed[b].key) * search->slow[r];
            if (here < (load_ns[best] + (double)keyed[b].key) * search->slow[best]) { best = r; }
        }
        load_ns[replica_of[b] = best] += (double)keyed[b].key;
    }
    for (int32_t r = 0; r < R; r++) {
        Share* share = &deal->shares[r];
        share->ids = replica_ids, share->mb_of = mb_of;
        for (int32_t b = 0; b < num; b++) {
            if (replica_of[b] != r) { continue; }
            for (int32_t i = cut[keyed[b].id]; i < keyed[b].id; i++) {
                share->ids[share->num_ids] = ids[i];
                share->mb_of[share->num_ids++] = share->num_mbs;
            }
            share->num_mbs++;
        }
        replica_ids += share->num_ids, mb_of += share->num_ids;
    }
    return STATUS_OK;
}

// Replica r's samples in about this many micro-batches.
static Status share_of(const Share** out, Search* search, const Candidate* candidate, int32_t r) {
    Deal* deal = search->deals;
    int32_t num_mbs = candidate->num_mbs, end_percent = candidate->end_percent;
    while (deal != NULL && (deal->num_mbs != num_mbs || deal->end_percent != end_percent)) {
        deal = deal->next;
    }
    if (deal == NULL) {
        ARENA_TRY_NEW(deal, &search->lists, Deal, 1);
        ARENA_TRY_NEW(deal->shares, &search->lists, Share, search->problem->R);
        deal->num_mbs = num_mbs, deal->end_percent = end_percent;
        deal->next = search->deals;
        search->deals = deal;
        if (search->layout == LAYOUT_PADDED) { TRY(fill_padded(deal, search)); }
    }
    Share* share = &deal->shares[r];
    if (share->mb_of == NULL) {
        *share = search->dealt[r];
        if (share->num_ids > 0) {
            TRY(fill_ragged(share, search, num_mbs < share->num_ids ? num_mbs : share->num_ids, end_percent));
        }
    }
    *out = share;
    return STATUS_OK;
}

// --- one replica ------------------------------------------------------------------------------------------

static void state_layout(State* state, char* block) {
    int64_t rows = state->num_rows, M = state->M, N = state->N;
    state->block = block;
    state->cost = (PipeCost*)block;
    state->shape = (MbShape*)(state->cost + rows * M);
    state->scratch_bytes = (int64_t*)(state->shape + M);
    state->ids = (int32_t*)(state->scratch_bytes + M);
    state->mb_of = state->ids + N;
    state->order = state->mb_of + N;
    state->mode = (uint8_t*)(state->order + M);
    state->pipe.cost = state->cost;
}

// Copies the contents of `from` into the memory of `to`, which has the same sizes.
static void state_assign(State* to, const State* from) {
    char* block = to->block;
    memcpy(block, from->block, from->block_bytes);
    *to = *from;
    state_layout(to, block);
}

static Status state_copy(State* to, const State* from, Arena* arena) {
    State copy = *from;
    if (from->N > 0) {
        copy.block = (char*)arena_alloc_raw(arena, from->block_bytes);
        if (copy.block == NULL) { return FAIL(STATUS_NO_MEMORY, "search: no host memory left"); }
        state_assign(&copy, from);
    }
    *to = copy;
    return STATUS_OK;
}

// Shape of micro-batch m; m -1: of all.
static void state_shape(State* state, MbLayout layout, int32_t m) {
    const PlanProblem* problem = state->problem;
    int32_t first = m < 0 ? 0 : m, last = m < 0 ? state->M - 1 : m;
    memset(state->shape + first, 0, sizeof *state->shape * (size_t)(last - first + 1));
    for (int32_t i = 0; i < state->N; i++) {
        if (m < 0 || state->mb_of[i] == m) {
            add_sample(&state->shape[state->mb_of[i]], &problem->samples[state->ids[i]]);
        }
    }
    for (int32_t b = first; b <= last && layout == LAYOUT_PADDED; b++) {
        MbShape* shape = &state->shape[b];
        int32_t enc = 0, dec = 0;
        for (int32_t i = 0; i < state->N; i++) {
            const PlanSample* sample = &problem->samples[state->ids[i]];
            if (state->mb_of[i] != b) { continue; }
            enc = sample->enc_tokens > enc ? sample->enc_tokens : enc;
            dec = sample->dec_tokens > dec ? sample->dec_tokens : dec;
        }
        int64_t num = shape->num_seqs, T = microbatch_pad_tokens(problem, enc, num);
        int64_t Td = microbatch_pad_targets(problem, dec, num);
        *shape = (MbShape){
            num, num * T, num * T * T, num * Td, num * Td * Td, num * T * Td, shape->supervised_tokens};
    }
}

static void state_price(State* state, int32_t m) {
    const PipePlace place = {state->problem, state->ranks, &state->placement, state->chunks, state->P};
    state->scratch_bytes[m] = pipe_costs_make(state->cost + m, NULL, state->M, &place,
                                              state->mode + (int64_t)m * state->K, 1, &state->shape[m]);
}

static PipeProblem state_pipe(const State* state) {
    PipeProblem pipe = state->pipe;
    pipe.placement = &state->placement;
    return pipe;
}

// After prices have changed.
static void state_limits(State* state) {
    PipeProblem pipe = state_pipe(state);
    int64_t scratch_bytes = 0;
    for (int32_t m = 0; m < state->M; m++) {
        if (state->scratch_bytes[m] > scratch_bytes) { scratch_bytes = state->scratch_bytes[m]; }
    }
    pipe_limits_make(&pipe, state->problem, state->available_bytes, state->problem->headroom_bytes,
                     scratch_bytes, state->shape);
    memcpy(state->pipe.memory_limit_bytes, pipe.memory_limit_bytes, sizeof pipe.memory_limit_bytes);
}

// False where parameters, gradients and optimizer of some stage do not fit.
static bool state_place(State* state, const Placement* placement) {
    const PlanProblem* problem = state->problem;
    CostRank has[PLAN_MAX_STAGES];
    cost_ranks_make(has, problem->costs, placement, state->P);
    for (int32_t s = 0; s < state->P; s++) {
        state->available_bytes[s] = plan_problem_available(problem, machine_stage(state->ranks, s), &has[s]);
        if (state->available_bytes[s] <= 0) { return false; }
        state->pipe.tail_ns[s] = cost_rank_reduce_ns(problem->costs, &has[s], problem->R);
    }
    state->placement = *placement;
    for (int32_t k = 0; k < state->K; k++) {
        state->chunks[k] = cost_chunk_make(problem->costs, placement, k);
    }
    return true;
}

// In every chunk the first mode in which the micro-batch keeps no more than `percent` of an equal share of
// the stage's memory among all that its chunks have in flight; the last mode where none does.
static void set_modes_by_share(State* state, int32_t m, int32_t percent) {
    const PlanProblem* problem = state->problem;
    int32_t in_flight[PLAN_MAX_STAGES] = {0};
    bool known[RECOMPUTE_COUNT] = {false};
    CostParts parts[RECOMPUTE_COUNT];
    for (int32_t k = 0; k < state->K; k++) {
        in_flight[state->placement.stage_of[k]] += microbatch_in_flight(state->P, state->K, k);
    }
    for (int32_t k = 0; k < state->K; k++) {
        int32_t s = state->placement.stage_of[k], i = 0;
        int64_t share =
            (state->available_bytes[s] - problem->headroom_bytes[s]) / in_flight[s] / 100 * percent;
        for (; i < problem->num_modes - 1; i++) {
            CostJobs jobs;
            if (!known[i]) { cost_parts(&parts[i], &problem->table, problem->modes[i], &state->shape[m]); }
            known[i] = true;
            cost_jobs_of_stage(&jobs, problem->costs, &state->chunks[k], &parts[i]);
            if (jobs.stored_bytes <= share) { break; }
        }
        state->mode[(int64_t)m * state->K + k] = (uint8_t)problem->modes[i];
    }
}

static void set_modes(State* state, const ModeRule* rule) {
    int32_t K = state->K;
    for (int32_t m = 0; m < state->M; m++) {
        for (int32_t k = 0; k < K; k++) {
            bool is_early = 100 * k < rule->early_percent * K;
            state->mode[(int64_t)m * K + k] = (uint8_t)(is_early ? rule->mode : state->problem->modes[0]);
        }
        if (rule->share_percent > 0) { set_modes_by_share(state, m, rule->share_percent); }
    }
}

static int64_t jobs_ns(const int64_t ns[JOB_COUNT]) {
    return ns[JOB_F] + ns[JOB_B] + ns[JOB_W] + ns[JOB_R];
}

// The smallest enter first and last: they fill and drain the pipeline.
static Status set_order(State* state, int32_t quarters, Arena* arena) {
    Keyed* keyed;
    int32_t front = 0, back = state->M - 1;
    ARENA_TRY_NEW(keyed, arena, Keyed, state->M);
    for (int32_t m = 0; m < state->M; m++) {
        keyed[m].id = m;
        for (int32_t row = 0; row < state->num_rows; row++) {
            keyed[m].key -= jobs_ns(pipe_cost(&state->pipe, row, m)->job_ns);
        }
    }
    qsort(keyed, (size_t)state->M, sizeof *keyed, compare_keyed);
    for (int32_t k = 0; k < state->M; k++) {
        bool is_before = (k + 1) * quarters / 4 > k * quarters / 4;
        state->order[is_before ? front++ : back--] = keyed[k].id;
    }
    return STATUS_OK;
}

// Replica r by the candidate's settings; *fits false: the model state does not fit.
static Status state_make(State* out, bool* fits, Search* search, const Candidate* candidate, int32_t r,
                         Arena* arena) {
    const PlanProblem* problem = search->problem;
    const Share* share;
    TRY(share_of(&share, search, candidate, r));
    State state = {
        .problem = problem,
        .ranks = plan_problem_ranks(problem, search->replica[r]),
        .replica = search->replica[r],
        .P = problem->P,
        .K = candidate->placement.num_chunks,
        .num_rows = placement_num_rows(&candidate->placement, problem->P),
        .M = share->num_mbs,
        .N = share->num_ids,
        .pipe = {.P = problem->P, .M = share->num_mbs, .pulls = machine_pulls(problem->request->machine)}};
    *fits = state_place(&state, &candidate->placement);
    *out = state;
    if (!*fits || state.N == 0) { return STATUS_OK; }
    size_t M = (size_t)state.M, cells = (size_t)state.num_rows * M;
    state.block_bytes = cells * sizeof *state.cost + M * (sizeof *state.shape + sizeof *state.scratch_bytes) +
                        (2 * (size_t)state.N + M) * sizeof(int32_t) + M * (size_t)state.K;
    char* block = (char*)arena_alloc(arena, state.block_bytes);
    if (block == NULL) { return FAIL(STATUS_NO_MEMORY, "search: no host memory left"); }
    state_layout(&state, block);
    memcpy(state.ids, share->ids, (size_t)state.N * sizeof *state.ids);
    memcpy(state.mb_of, share->mb_of, (size_t)state.N * sizeof *state.mb_of);
    state_shape(&state, search->layout, -1);
    set_modes(&state, &candidate->rule);
    for (int32_t m = 0; m < state.M; m++) { state_price(&state, m); }
    state_limits(&state);
    TRY(set_order(&state, candidate->before, arena));
    PipeProblem pipe = state_pipe(&state);
    state.rule = pipe_adaptive_rule(&pipe, problem->request->split_backward != SPLIT_BACKWARD_OFF);
    for (int32_t k = 0; k < state.K && candidate->in_flight != 0; k++) {
        int32_t i = candidate->in_flight;
        state.rule.max_in_flight[k] = i < 0 ? -i : i * (state.K - k);
    }
    search->budget -= 4 * (int64_t)state.num_rows * state.M;
    *out = state;
    return STATUS_OK;
}

// Under the prescribed schedule.
static Status simulate_policy(int64_t* makespan_ns, Search* search, const State* state,
                              const PipeProblem* pipe, int64_t cutoff_ns) {
    PipeSchedule schedule;
    PipeTimeline timeline;
    search->budget -= 4 * (int64_t)state->num_rows * state->M;
    Status status =
        search->policy->build(&schedule, pipe, state->order, state->rule.split_backward, &search->simulator);
    if (status == STATUS_INFEASIBLE) { return STATUS_OK; }
    TRY(status);
    TRY(pipe_simulate(&timeline, pipe, &schedule, &search->simulator));
    for (int32_t s = 0; s < state->P; s++) {
        if (timeline.peak_bytes[s] > pipe->memory_limit_bytes[s]) { return STATUS_OK; }
    }
    if (timeline.makespan_ns <= cutoff_ns) { *makespan_ns = timeline.makespan_ns; }
    return STATUS_OK;
}

enum { OVERHEAD_JOBS = 30 };  // of a simulation: copying, limits

// At most cutoff_ns; INT64_MAX beyond, or where it does not fit.
static Status simulate(int64_t* makespan_ns, Search* search, const State* state, int64_t cutoff_ns) {
    const ShapeRules* rules = &state->problem->request->rules;
    *makespan_ns = 0;
    if (state->N == 0) { return STATUS_OK; }
    *makespan_ns = INT64_MAX;
    for (int32_t m = 0; m < state->M && shape_rules_limit(rules); m++) {
        if (shape_rules_allow(rules, &state->shape[m])) { continue; }
        search->budget--;
        return STATUS_OK;
    }
    PipeProblem pipe = state_pipe(state);
    arena_reset(&search->simulator);
    search->budget -= OVERHEAD_JOBS + state->N / 16;
    if (search->policy != NULL) { return simulate_policy(makespan_ns, search, state, &pipe, cutoff_ns); }
    return pipe_adaptive_makespan(makespan_ns, &pipe, state->order, &state->rule, cutoff_ns, &search->budget,
                                  &search->simulator);
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
        const Share* share;
        TRY(share_of(&share, search, candidate, r));  // (uses the arena of tries)
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

static Status try_candidate(Candidate* best, Search* search, Candidate candidate, int64_t cutoff_ns) {
    TRY(evaluate(&candidate, search, cutoff_ns));
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

// Another setting of the candidate: the i-th of NUM_SETTINGS; false: there is none, or it is already set.
static bool change_setting(Candidate* candidate, const PlanProblem* problem, int32_t i) {
    const bool is_padded = problem->request->layout == LAYOUT_PADDED;
    static const int32_t count_percent[] = {75, 133, 50, 200, 90, 111};
    static const int32_t in_flight_percent[] = {0, 100, 150, 200, 300};  // of P; 0: 2 (K - k) - 1
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
        default:
            candidate->end_percent = value == 0 ? 100 : USUAL_END;
            return value <= 1 && candidate->end_percent != before.end_percent && !is_padded;
    }
}

enum { TELLING = 1000 };  // relative difference of makespans below which settings count as equal

// Coordinate descent over settings, continued from the last call. Ends where the budget reaches stop.
static Status tune_settings(Candidate* best, Search* search, int64_t stop) {
    while (best->misses < NUM_SETTINGS && search->budget > stop) {
        Candidate candidate = *best;
        int64_t before = best->makespan_ns;
        int32_t i = best->next_setting;
        best->next_setting = candidate.next_setting = (i + 1) % NUM_SETTINGS;
        best->misses++;
        if (!change_setting(&candidate, search->problem, i)) { continue; }
        TRY(try_candidate(best, search, candidate, before - before / TELLING));
        if (best->makespan_ns < before) { best->misses = 0; }
    }
    return STATUS_OK;
}

// One layer over one boundary of the chain, or over all boundaries between two chunks.
static bool draw_layer(Placement* placement, Search* search) {
    int32_t K = placement->num_chunks;
    bool has_layer = search->problem->request->rules.head_has_layer;
    if (K < 2 || !search->problem->request->choose_stages) { return false; }
    int32_t from = (int32_t)rng_below(&search->rng, (uint32_t)K),
            to = from + (rng_below(&search->rng, 2) ? 1 : -1);
    if (rng_below(&search->rng, 2) == 0) { to = (int32_t)rng_below(&search->rng, (uint32_t)K); }
    if (to < 0 || to >= K || to == from) { return false; }
    placement_shift_layer(placement, from, to);
    return stage_may_have(&placement->chunks[from], from, K, has_layer);
}

// Some units of the head from one stage to another.
static bool draw_share(Placement* placement, Search* search) {
    const PlanRequest* request = search->problem->request;
    int32_t P = request->P, units = HEAD_UNITS >> (3 + rng_below(&search->rng, 5));
    bool is_told = request->heads == HEAD_CHOICE_GIVEN && request->placements != PLACEMENT_GIVEN;
    if (P < 2 || placement->head == HEAD_WHOLE || is_told || !request->choose_stages) { return false; }
    int32_t from = (int32_t)rng_below(&search->rng, (uint32_t)P),
            to = (int32_t)rng_below(&search->rng, (uint32_t)P);
    int32_t has = placement->head_begin[from + 1] - placement->head_begin[from];
    if (units > has) { units = has; }
    for (int32_t s = from; s < to; s++) { placement->head_begin[s + 1] -= (int16_t)units; }
    for (int32_t s = to; s < from; s++) { placement->head_begin[s + 1] += (int16_t)units; }
    return units > 0 && from != to;
}

// Layers and shares of the head, while there is budget.
static Status tune_placement(Candidate* best, Search* search, int64_t stop) {
    int32_t K = best->placement.num_chunks;
    for (int32_t misses = 0; misses < 3 * K * K && search->budget > stop; misses++) {
        Candidate candidate = *best;
        bool of_head = best->placement.head != HEAD_WHOLE && rng_below(&search->rng, 3) == 0;
        if (!(of_head ? draw_share : draw_layer)(&candidate.placement, search)) { continue; }
        int64_t before = best->makespan_ns;
        TRY(try_candidate(best, search, candidate, best->makespan_ns));
        if (best->makespan_ns < before) { misses = best->misses = 0; }
    }
    return STATUS_OK;
}

// --- placements -------------------------------------------------------------------------------------------

typedef struct {
    double layer_ns[2], embedding_ns, head_ns;
} Work;

static Work work_make(const PlanProblem* problem) {
    CostParts parts;
    const MbShape all = whole_batch(problem);
    cost_parts(&parts, &problem->table, problem->modes[0], &all);
    double ns[PART_COUNT];
    for (int part = 0; part < PART_COUNT; part++) {
        ns[part] = parts.part[part][JOB_F] + parts.part[part][JOB_B] + parts.part[part][JOB_W];
    }
    return (Work){{ns[PART_ENC_LAYER], ns[PART_DEC_LAYER]}, ns[PART_EMBEDDING], ns[PART_HEAD]};
}

// Squares of the stages' work; *most_ns: of the most loaded.
static double loads(double load_ns[PLAN_MAX_STAGES], double* most_ns, const PlanProblem* problem,
                    const Work* work, const Placement* placement) {
    int32_t P = problem->P, K = placement->num_chunks, num_enc = problem->costs->num_enc_layers;
    double squares = 0;
    for (int32_t s = 0; s < P; s++) {
        bool is_shared = placement->head != HEAD_WHOLE;
        double units = is_shared ? placement->head_begin[s + 1] - placement->head_begin[s] : 0;
        load_ns[s] = units / HEAD_UNITS * work->head_ns;
    }
    for (int32_t k = 0; k < K; k++) {
        int32_t begin = placement->chunks[k].layer_begin, end = placement->chunks[k].layer_end;
        int32_t enc_end = end < num_enc ? end : num_enc, enc = enc_end > begin ? enc_end - begin : 0;
        bool has_head = k == K - 1 && placement->head == HEAD_WHOLE;
        load_ns[placement->stage_of[k]] += enc * work->layer_ns[0] + (end - begin - enc) * work->layer_ns[1] +
                                           (k == 0 ? work->embedding_ns : 0) + (has_head ? work->head_ns : 0);
    }
    *most_ns = 0;
    for (int32_t s = 0; s < P; s++) {
        load_ns[s] *= problem->stage_slow[s];
        squares += load_ns[s] * load_ns[s];
        *most_ns = fmax(*most_ns, load_ns[s]);
    }
    return squares;
}

// The move of one layer off the most loaded stage that helps most; false: none does.
static bool relieve(Placement* placement, const PlanProblem* problem, const Work* work) {
    int32_t K = placement->num_chunks;
    double load_ns[PLAN_MAX_STAGES], after_ns[PLAN_MAX_STAGES], most_ns, unused_ns;
    double least = loads(load_ns, &most_ns, problem, work, placement) * (1 - 1e-9);
    const bool has_layer = problem->request->rules.head_has_layer || placement->head != HEAD_WHOLE;
    Placement best = *placement;
    bool found = false;
    for (int32_t pair = 0; pair < K * K; pair++) {
        int32_t from = pair / K, to = pair % K;
        if (load_ns[placement->stage_of[from]] < most_ns ||
            placement->stage_of[to] == placement->stage_of[from]) {
            continue;
        }
        placement_shift_layer(placement, from, to);
        bool may_have = stage_may_have(&placement->chunks[from], from, K, has_layer);
        double squares = may_have ? loads(after_ns, &unused_ns, problem, work, placement) : INFINITY;
        if (squares < least) {
            least = squares;
            best = *placement;
            found = true;
        }
        placement_shift_layer(placement, to, from);
    }
    *placement = best;
    return found;
}

// With every head that the request allows, layers balanced. Where a stage's state leaves little room, also
// with more room.
static int32_t add_places(Placement* out, int32_t num, const PlanProblem* problem, const Work* work,
                          const Placement* shape) {
    const PlanRequest* request = problem->request;
    const PlacementRoom room = {problem->costs, problem->limit_bytes, problem->P, ROOM_WANTED,
                                request->rules.head_has_layer};
    for (int head = HEAD_WHOLE; head <= HEAD_BY_VOCABULARY; head++) {
        bool is_asked = request->heads == HEAD_CHOICE_AUTO || (int)request->heads - HEAD_CHOICE_WHOLE == head;
        if (request->heads == HEAD_CHOICE_GIVEN) { is_asked = head == problem->placement.head; }
        if (head == HEAD_BY_VOCABULARY && request->rules.head_by_rows) { is_asked = false; }
        if (!is_asked || num > MAX_PLACES - 2) { continue; }
        Placement place = *shape;
        if (request->heads == HEAD_CHOICE_GIVEN) {
            placement_copy_head(&place, &problem->placement);
        } else {
            placement_share_head(&place, (HeadSplit)head, problem->P);
        }
        for (int32_t i = 0; i < 2 * problem->P && request->choose_stages && relieve(&place, problem, work);
             i++) {}
        if (placement_has_room(&room, &place)) { out[num++] = place; }
        if (!request->choose_stages || placement_lack(&room, &place) == 0) { continue; }
        Placement roomy = place;
        placement_make_room(&roomy, &room, request->heads != HEAD_CHOICE_GIVEN);
        if (placement_has_room(&room, &roomy) && !placement_equal(&roomy, &place, problem->P)) {
            out[num++] = roomy;
        }
    }
    return num;
}

// Those whose model state leaves most room come first: they need the fewest micro-batches.
static void sort_by_room(Placement* places, int32_t num, const PlanProblem* problem) {
    const PlacementRoom room = {problem->costs, problem->limit_bytes, problem->P, ROOM_WANTED,
                                problem->request->rules.head_has_layer};
    int64_t lacks[MAX_PLACES];
    for (int32_t i = 0; i < num; i++) {
        const Placement place = places[i];
        int64_t lack = placement_lack(&room, &place);
        int32_t k = i;
        for (; k > 0 && lacks[k - 1] > lack; k--) { lacks[k] = lacks[k - 1], places[k] = places[k - 1]; }
        lacks[k] = lack, places[k] = place;
    }
}

static int32_t make_places(Placement out[MAX_PLACES], const PlanProblem* problem) {
    const PlanRequest* request = problem->request;
    const PlacementChoice asked = request->placements;
    const Work work = work_make(problem);
    int32_t P = problem->P, num_enc = problem->costs->num_enc_layers,
            num_dec = problem->costs->num_dec_layers;
    int32_t num = 0;
    if (P == 1 || asked == PLACEMENT_GIVEN || asked == PLACEMENT_AUTO || asked == PLACEMENT_LINEAR) {
        out[num++] = problem->placement;
    }
    if (P == 1) { return num; }
    if (asked == PLACEMENT_GIVEN) {
        return request->heads == HEAD_CHOICE_GIVEN
                   ? num
                   : add_places(out, num, problem, &work, &problem->placement);
    }
    for (int32_t passes = 1; passes <= 4; passes++) {  // chunks a stage
        for (int turns = 0; turns <= (passes > 1); turns++) {
            bool by_stack = num_dec > 0 && passes % 2 == 0;
            PlacementChoice kind = passes == 1 ? PLACEMENT_LINEAR
                                   : turns     ? PLACEMENT_VEE
                                               : PLACEMENT_INTERLEAVED;
            bool is_asked =
                asked == PLACEMENT_AUTO || asked == kind || (by_stack && asked == PLACEMENT_STACKS);
            Placement shape;
            if (!is_asked || !placement_deal(&shape, passes, turns, by_stack, P, num_enc, num_dec)) {
                continue;
            }
            num = add_places(out, num, problem, &work, &shape);
        }
    }
    if (num == 0) { out[num++] = problem->placement; }
    sort_by_room(out, num, problem);
    return num;
}

// --- construct --------------------------------------------------------------------------------------------

enum { USUAL_COUNT = 3 };  // micro-batches for each stage, where memory allows no more

// Micro-batches of a replica: so many that stage s can keep P - s of them where nothing is recomputed, and
// that the kernels take their sequences, tokens and squares.
static int32_t usual_count(const PlanProblem* problem, const Placement* placement) {
    MbShape all = whole_batch(problem);
    double needed[PLAN_MAX_STAGES] = {0};
    CostRank has[PLAN_MAX_STAGES];
    CostParts parts;
    int32_t P = problem->P, K = placement->num_chunks, N = problem->num_samples;
    int64_t most = shape_rules_least_mbs(&problem->request->rules, &all), usual = USUAL_COUNT * P;
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
        double num_mbs = needed[s] / (double)(free_bytes > 1 ? free_bytes : 1);
        if (num_mbs > (double)most) { most = num_mbs < N ? (int64_t)num_mbs + 1 : N; }
    }
    most = most / problem->R > usual ? most / problem->R : usual;
    return (int32_t)(most < N ? most : N);
}

// A placement with usual settings; where these do not fit, with more micro-batches and more recomputation.
static Status try_place(Candidate* out, Search* search, const Placement* placement, int64_t cutoff_ns) {
    const PlanProblem* problem = search->problem;
    int32_t num_mbs = usual_count(problem, placement);
    ModeRule rules[MAX_RULES];
    int32_t num_rules = mode_rules(rules, problem, placement->num_chunks);
    out->placement = *placement;
    out->makespan_ns = cutoff_ns;
    int32_t most = (problem->num_samples + problem->R - 1) / problem->R;
    for (int64_t count = num_mbs;; count *= 2) {
        Candidate candidate = {.placement = *placement,
                               .num_mbs = (int32_t)(count < most ? count : most),
                               .end_percent = USUAL_END,
                               .before = 2};
        candidate.in_flight = -candidate.num_mbs;
        for (int32_t i = 0; i < num_rules; i++) {
            candidate.rule = rules[i];
            bool is_tried = i < 2 || i == num_rules - 1;
            if (out->num_mbs == 0 && is_tried) {
                TRY(try_candidate(out, search, candidate, out->makespan_ns));
            }
        }
        if (out->num_mbs > 0 || count >= most) { break; }
        if (cutoff_ns < INT64_MAX && count > 4 * num_mbs) { break; }
    }
    if (out->num_mbs == 0) { out->makespan_ns = INT64_MAX; }
    return STATUS_OK;
}

enum {
    LEFT_FOR_FIELD = 45,
    LEFT_FOR_LAYERS = 30,
    FIELD = 12,
    FINALISTS = 3
};  // LEFT_FOR: percent of the budget left after it

static Status construct(Candidate* best, Search* search) {
    const PlanProblem* problem = search->problem;
    const int64_t whole = search->budget;
    Placement* places;
    Candidate* field;
    int64_t fastest_ns = INT64_MAX;
    ARENA_TRY_NEW(places, &search->lists, Placement, MAX_PLACES);
    int32_t num_places = make_places(places, problem), num = 0;
    ARENA_TRY_NEW(field, &search->lists, Candidate, num_places);
    int32_t num_probes = search->num_probes;
    if (!problem->differs) { search->num_probes = 1; }
    for (int32_t i = 0; i < num_places; i++) {
        if (num > 0 && search->budget < whole * 3 / 4) { break; }
        TRY(try_place(&field[num], search, &places[i],
                      fastest_ns < INT64_MAX ? fastest_ns + fastest_ns / 3 : INT64_MAX));
        if (field[num].makespan_ns == INT64_MAX) { continue; }
        if (field[num].makespan_ns < fastest_ns) { fastest_ns = field[num].makespan_ns; }
        num++;
    }
    search->num_probes = num_probes;
    if (num == 0) { return FAIL(STATUS_INFEASIBLE, "search: nothing fits in memory"); }
    qsort(field, (size_t)num, sizeof *field, compare_candidates);
    if (num > FIELD) { num = FIELD; }
    int64_t part = search->budget - whole * LEFT_FOR_FIELD / 100;
    for (int32_t round = 0, before = 0; num != before; round++) {
        before = num;
        for (int32_t i = 0; i < num; i++) {
            if (i > 0) {
                Candidate as_first = field[0];
                as_first.placement = field[i].placement;
                as_first.misses = 0;
                TRY(try_candidate(&field[i], search, as_first, field[i].makespan_ns));
            }
            TRY(tune_settings(&field[i], search, search->budget - part / 3 / num));
        }
        qsort(field, (size_t)num, sizeof *field, compare_candidates);
        if (num > FINALISTS) { num = (num + 1) / 2; }
    }
    for (int32_t i = 0; i < num && problem->P > 1; i++) {
        part = (search->budget - whole * LEFT_FOR_LAYERS / 100) / (num - i);
        TRY(tune_placement(&field[i], search, search->budget - part));
        TRY(tune_settings(&field[i], search, search->budget - part / 4));
    }
    qsort(field, (size_t)num, sizeof *field, compare_candidates);
    *best = field[0];
    return STATUS_OK;
}

// --- improve ----------------------------------------------------------------------------------------------

// A sample to another micro-batch, or two change places.
static bool move_sample(State* state, Rng* rng, MbLayout layout) {
    int32_t i = (int32_t)rng_below(rng, (uint32_t)state->N), j = (int32_t)rng_below(rng, (uint32_t)state->N);
    bool swaps = rng_below(rng, 2) == 0;
    int32_t from = state->mb_of[i],
            to = swaps ? state->mb_of[j] : (int32_t)rng_below(rng, (uint32_t)state->M);
    if (from == to || (!swaps && state->shape[from].num_seqs == 1)) { return false; }
    state->mb_of[i] = to;
    if (swaps) { state->mb_of[j] = from; }
    state_shape(state, layout, from);
    state_shape(state, layout, to);
    state_price(state, from);
    state_price(state, to);
    state_limits(state);
    return true;
}

// One micro-batch is recomputed in another way in one chunk, up to it, or from it on.
static bool move_mode(State* state, Rng* rng) {
    const PlanProblem* problem = state->problem;
    int32_t m = (int32_t)rng_below(rng, (uint32_t)state->M),
            first = (int32_t)rng_below(rng, (uint32_t)state->K);
    int32_t last = first, changed = 0;
    RecomputeMode mode = problem->modes[rng_below(rng, (uint32_t)problem->num_modes)];
    uint32_t range = rng_below(rng, 4);
    if (range == 0) { last = state->K - 1; }
    if (range == 1) { first = 0; }
    for (int32_t k = first; k <= last; k++) {
        uint8_t* at = &state->mode[(int64_t)m * state->K + k];
        changed += *at != mode;
        *at = (uint8_t)mode;
    }
    if (changed == 0) { return false; }
    state_price(state, m);
    state_limits(state);
    return true;
}

enum { MODE_MOVES = 20 };  // percent of all, where memory is limited

static bool move(State* state, Search* search, bool modes) {
    if (modes && rng_below(&search->rng, 100) < MODE_MOVES) { return move_mode(state, &search->rng); }
    return move_sample(state, &search->rng, search->layout);
}

// Changes are kept unless they make it slower. Ends at stop_ns, or where the budget reaches `stop`.
static Status improve(State* now, Search* search, int64_t stop_ns, int64_t stop) {
    State trial;
    bool modes = search->problem->has_limit && search->problem->num_modes > 1;
    if (now->N == 0) { return STATUS_OK; }
    arena_reset(&search->tries);
    TRY(state_copy(&trial, now, &search->tries));
    // an impossible move costs no simulation, but must not repeat without end
    for (int64_t tries = search->budget - stop; tries > 0 && search->budget > stop; tries--) {
        int64_t ns;
        if (now->makespan_ns <= stop_ns) { break; }
        if (move(&trial, search, modes)) {
            TRY(simulate(&ns, search, &trial, now->makespan_ns));
            if (ns <= now->makespan_ns && ns < INT64_MAX) {
                trial.makespan_ns = ns;
                state_assign(now, &trial);
                continue;
            }
        }
        state_assign(&trial, now);
    }
    return STATUS_OK;
}

static void replace(State* state, MbLayout layout, int32_t i, int32_t id) {
    int32_t m = state->mb_of[i];
    state->ids[i] = id;
    state_shape(state, layout, m);
    state_price(state, m);
    state_limits(state);
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
        if (size_of(search, id) <= size_of(search, fast->ids[j])) { continue; }
        replace(&a, search->layout, i, fast->ids[j]);
        TRY(simulate(&a.makespan_ns, search, &a, slow->makespan_ns - 1));
        b.makespan_ns = INT64_MAX;
        if (a.makespan_ns < slow->makespan_ns) {
            replace(&b, search->layout, j, id);
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

static Status draft_replica(Draft* out, const Search* search, const State* state, int32_t* ids,
                            Arena* arena) {
    bool split = state->rule.split_backward;
    DraftReplica* replica = &out->replica[state->replica];
    *replica = (DraftReplica){.makespan_ns = state->makespan_ns};
    replica->variant = search->policy == NULL ? (PipeVariant){split ? "adaptive+w" : "adaptive",
                                                              &pipe_policy_adaptive, split, true, state->rule}
                                              : (PipeVariant){.name = search->policy == &pipe_policy_1f1b
                                                                          ? split ? "1f1b+w" : "1f1b"
                                                                      : split ? "gpipe+w"
                                                                              : "gpipe",
                                                              .policy = search->policy,
                                                              .split_backward = split};
    replica->M = state->M;
    ARENA_TRY_NEW(replica->mbs, arena, int32_t, state->M);
    ARENA_TRY_NEW(replica->modes, arena, uint8_t, (int64_t)state->K * state->M);
    for (int32_t k = 0; k < state->M; k++) {
        int32_t m = state->order[k], num = 0;
        for (int32_t i = 0; i < state->N; i++) {
            if (state->mb_of[i] == m) { ids[num++] = state->ids[i]; }
        }
        qsort(ids, (size_t)num, sizeof *ids, compare_ids);
        microbatch_list_append(&out->list, search->problem, search->layout,
                               (RecomputeMode)state->mode[(int64_t)m * state->K], ids, num);
        replica->mbs[k] = out->list.num_mbs - 1;
        for (int32_t c = 0; c < state->K; c++) {
            replica->modes[(int64_t)c * state->M + k] = state->mode[(int64_t)m * state->K + c];
        }
    }
    return STATUS_OK;
}

static Status make_draft(Draft* out, const Search* search, const State* states, Arena* arena) {
    const PlanProblem* problem = search->problem;
    int32_t N = problem->num_samples, R = problem->R, slowest, fastest, *ids;
    find_ends(&slowest, &fastest, states, R);
    Draft draft = {.placement = states[0].placement, .makespan_ns = states[slowest].makespan_ns};
    ARENA_TRY_NEW(ids, arena, int32_t, N);
    ARENA_TRY_NEW(draft.replica, arena, DraftReplica, R);
    TRY(microbatch_list_reserve(&draft.list, N, N, arena));
    for (int32_t r = 0; r < R; r++) { TRY(draft_replica(&draft, search, &states[r], ids, arena)); }
    *out = draft;
    return STATUS_OK;
}

enum { JOB_NS = 30 };  // per job of a simulation, with the rest of planning included

// An effort counts simulations of 5 P micro-batches: their jobs F, B and W.
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
static int64_t budget_jobs(const PlanProblem* problem, int32_t effort) {
    int64_t N = problem->num_samples, R = problem->R, num_mbs = usual_count(problem, &problem->placement);
    int64_t evaluation = OVERHEAD_JOBS + 7 * 3 * problem->P * num_mbs;  // F, B, W and prices of 3 P rows
    int64_t jobs = 400000 * R + 450 * N, most = 4000000 + 400 * N / R, least = USUAL_EVALUATIONS * evaluation;
    if (effort > 0) {
        jobs = effort * effort_jobs(problem->P), most = INT64_MAX,
        least = LEAST_EVALUATIONS * evaluation * (R < MAX_PROBES ? R : (int32_t)MAX_PROBES);
    }
    jobs = jobs < most ? jobs : most;
    return jobs > least ? jobs : least;
}

// Where nothing is known to fit: one sample a micro-batch, everything recomputed. replica_plan_fit may still
// make it fit.
static Candidate last_resort(const PlanProblem* problem) {
    Candidate candidate = {
        .placement = problem->placement, .num_mbs = problem->num_samples, .end_percent = 100};
    candidate.rule = (ModeRule){problem->modes[problem->num_modes - 1], 0, 100};
    candidate.in_flight = -problem->num_samples;
    return candidate;
}

static int compare_ranks(const PlanProblem* problem, int32_t a, int32_t b) {
    size_t bytes = (size_t)problem->P * sizeof(MachineRank);
    return problem->differs ? memcmp(plan_problem_ranks(problem, a), plan_problem_ranks(problem, b), bytes)
                            : 0;
}

// Replicas sorted by their ranks, so that the plan does not depend on how they are numbered.
static Status sort_replicas(Search* search) {
    const PlanProblem* problem = search->problem;
    ARENA_TRY_NEW(search->replica, &search->lists, int32_t, problem->R);
    ARENA_TRY_NEW(search->slow, &search->lists, double, problem->R);
    for (int32_t r = 0; r < problem->R; r++) {
        int32_t i = r;
        for (; i > 0 && compare_ranks(problem, search->replica[i - 1], r) > 0; i--) {
            search->replica[i] = search->replica[i - 1];
        }
        search->replica[i] = r;
    }
    for (int32_t r = 0; r < problem->R; r++) {
        search->slow[r] = problem->replica_slow[search->replica[r]];
        search->probe[r] = r;
    }
    search->num_probes = problem->R < MAX_PROBES ? problem->R : MAX_PROBES;
    return STATUS_OK;
}

enum { OWN_PART = 4 };  // of the budget, for settings of unequal replicas

// Each group of equal replicas gets settings of its own where there are several. (Padded samples would have
// to be distributed anew.)
static Status make_states(State* states, Search* search, const Candidate* best) {
    const PlanProblem* problem = search->problem;
    const int32_t *replica = search->replica, R = problem->R;
    bool own = search->layout != LAYOUT_PADDED && best->makespan_ns < INT64_MAX &&
               compare_ranks(problem, replica[0], replica[R - 1]) != 0;
    int64_t part = search->budget / OWN_PART / R;
    Candidate settings = *best;
    for (int32_t r = 0; r < R; r++) {
        bool fits;
        if (own && (r == 0 || compare_ranks(problem, replica[r - 1], replica[r]) != 0)) {
            settings = *best;
            settings.misses = 0;
            search->num_probes = 1, search->probe[0] = r;
            TRY(evaluate(&settings, search, INT64_MAX));
            TRY(tune_settings(&settings, search, search->budget - part));
        }
        TRY(state_make(&states[r], &fits, search, &settings, r, &search->lists));
        if (!fits) { return FAIL(STATUS_INFEASIBLE, "search: replica %d does not fit", replica[r]); }
        TRY(simulate(&states[r].makespan_ns, search, &states[r], INT64_MAX));
    }
    return STATUS_OK;
}

static Status search_all(Draft* out, Search* search, Arena* arena) {
    const PlanProblem* problem = search->problem;
    int32_t R = problem->R;
    Candidate best;
    State* states;
    ARENA_TRY_NEW(states, &search->lists, State, R);
    TRY(sort_replicas(search));
    TRY(weigh(search));
    TRY(deal_samples(search));
    Status status = construct(&best, search);
    if (status == STATUS_INFEASIBLE) {
        best = last_resort(problem);
        best.makespan_ns = INT64_MAX;
        status = STATUS_OK;
    }
    TRY(status);
    TRY(make_states(states, search, &best));
    if (best.makespan_ns < INT64_MAX) { TRY(improve_all(states, search)); }
    return make_draft(out, search, states, arena);
}

Status search_draft(Draft* out, const PlanProblem* problem, int32_t effort, Arena* arena) {
    const ScheduleChoice schedule = problem->request->schedule;
    Search search = {.problem = problem,
                     .layout = problem->request->layout,
                     .policy = schedule == SCHEDULE_GPIPE  ? &pipe_policy_gpipe
                               : schedule == SCHEDULE_1F1B ? &pipe_policy_1f1b
                                                           : NULL,
                     .budget = budget_jobs(problem, effort),
                     .rng = rng_seed((uint64_t)problem->num_samples)};
    Status status = search_all(out, &search, arena);
    arena_free(&search.lists);
    arena_free(&search.tries);
    arena_free(&search.simulator);
    return status;
}
