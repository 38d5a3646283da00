/*
bound.c -- see bound.h. What the samples have in common, lines below the cost formulas, speeds of ranks; then
the bound of a given placement, of the best split of the layers, and of any placement.
*/
#include "bound.h"

#include <math.h>
#include <string.h>

typedef struct {
    double constant, rate[FEATURE_COUNT];
} Line;

typedef enum { GIVEN, ANY_SPLIT, ANY_PLACEMENT } Freedom;

enum { NUM_LONGEST = 4 };

// Of ranks: entry s of those of stage s in all replicas, entry P of all.
typedef struct {
    const PlanProblem* problem;
    Freedom freedom;
    bool head_is_whole;            // in every placement considered
    double total[FEATURE_COUNT];   // over all samples, unpadded
    double least[FEATURE_COUNT];   // the smallest above 0 of any sample, so of any microbatch
    PlanSample shortest;           // each of its lengths the shortest of any sample
    int32_t longest[NUM_LONGEST];  // samples of which one probably has the longest chain
    Line line[RECOMPUTE_COUNT][PART_COUNT][JOB_COUNT];
    MachineRank fastest[PLAN_MAX_STAGES + 1];           // in each kind of job and on its link as fast as any
    double share_slow[PLAN_MAX_STAGES + 1][JOB_COUNT];  // of a replica's share of the work (speed_make)
    double most_slow;
    int32_t max_pieces;  // of a sample
    bool head_idles;     // and the last block: a microbatch may have no supervised tokens
} Bound;

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int32_t shorter(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static void samples_make(Bound* it) {
    const PlanProblem* problem = it->problem;
    int64_t most[NUM_LONGEST] = {-1, -1, -1, -1};
    it->shortest = problem->samples[0];
    for (int32_t i = 0; i < problem->num_samples; i++) {
        const PlanSample* s = &problem->samples[i];
        const int64_t by[NUM_LONGEST] = {s->enc_tokens, s->dec_tokens, (int64_t)s->enc_tokens + s->dec_tokens,
                                         s->supervised_tokens};
        MbShape alone = {0};
        double x[FEATURE_COUNT];
        mb_shape_add(&alone, s->enc_tokens, s->dec_tokens, s->supervised_tokens);
        cost_shape_features(x, &alone);
        x[FEATURE_SEQS] = 0;  // packing may join sequences
        for (int f = 0; f < FEATURE_COUNT; f++) {
            it->total[f] += x[f];
            if (x[f] > 0 && (it->least[f] == 0 || x[f] < it->least[f])) { it->least[f] = x[f]; }
        }
        for (int k = 0; k < NUM_LONGEST; k++) {
            if (by[k] > most[k]) { most[k] = by[k], it->longest[k] = i; }
        }
        it->shortest = plan_sample(shorter(it->shortest.enc_tokens, s->enc_tokens),
                                   shorter(it->shortest.dec_tokens, s->dec_tokens),
                                   shorter(it->shortest.supervised_tokens, s->supervised_tokens));
        it->head_idles |= s->supervised_tokens < (it->max_pieces > 1 ? plan_sample_tokens(s) : 1);
    }
    if (it->max_pieces == 1) { return; }
    for (int f = 0; f < FEATURE_COUNT; f++) { it->least[f] = 1; }
    int32_t* cut = it->shortest.dec_tokens > 0 ? &it->shortest.dec_tokens : &it->shortest.enc_tokens;
    *cut = shorter(*cut, PIECE_TILE);
    it->shortest.supervised_tokens = 0;
}

// What certainly goes through all chunks and back at once: sample i, or the longest of its pieces.
static PlanSample undivided(const Bound* it, int32_t i) {
    PlanSample sample = it->problem->samples[i];
    if (it->max_pieces == 1) { return sample; }
    int32_t* cut = sample.dec_tokens > 0 ? &sample.dec_tokens : &sample.enc_tokens;
    *cut = (*cut + it->max_pieces - 1) / it->max_pieces;
    sample.supervised_tokens = 0;
    return sample;
}

// --- lines -----------------------------------------------------------------------------------------------
//
// A microbatch pays max(floor, const + sum over features c_f(x_f)) for a job of a part, at least
//     const + sum over features rate_f * x_f,    rate_f = min over x >= least_f of c_f(x) / x
// which on a piecewise linear c is at least_f, at a knot or, far out, the last slope. Lines add up over
// microbatches, and so do those of their samples.

static double curve_rate(const CostCurve* c, double least) {
    int n = c->num_knots;
    if (n == 0 || least == 0) { return 0; }
    if (n == 1) { return c->y[0] / c->x[0]; }
    double rate =
        fmin(cost_curve_value(c, least) / least, (c->y[n - 1] - c->y[n - 2]) / (c->x[n - 1] - c->x[n - 2]));
    for (int i = 0; i < n; i++) {
        if (c->x[i] > least) { rate = fmin(rate, c->y[i] / c->x[i]); }
    }
    return rate;
}

static void lines_make(Bound* it) {
    const CostModel* costs = it->problem->costs;
    for (int i = 0; i < RECOMPUTE_COUNT * PART_COUNT * JOB_COUNT; i++) {
        int kind = i % JOB_COUNT, part = i / JOB_COUNT % PART_COUNT, mode = i / JOB_COUNT / PART_COUNT;
        const CostFormula* formula = &costs->parts[mode][part].time_ns[kind];
        Line* line = &it->line[mode][part][kind];
        if (!cost_mode_has(costs, (RecomputeMode)mode, kind)) { continue; }
        line->constant = formula->constant;
        for (int f = 0; f < FEATURE_COUNT; f++) {
            line->rate[f] = curve_rate(&formula->curves[f], it->least[f]);
        }
        // of a sample of T tokens in pieces of t after p others: T^2 = sum of t^2 + 2 t p
        double* squares =
            &line->rate[costs->chain.num_dec_layers > 0 ? FEATURE_DEC_SQUARES : FEATURE_ENC_SQUARES];
        if (it->max_pieces > 1) { *squares = fmin(*squares, line->rate[FEATURE_PREFIX_PRODUCTS] / 2); }
    }
}

// Entry i, of `num` ranks. Of these, the slowest takes at least the mean of their times with any weights.
// With weights y_r proportional to 1 / (how slow r is in the mean) and adding up to 1 it takes
//     sum of y_r slow_r work_r >= (min over r of y_r slow_r) * (all their work).
static void speed_make(Bound* it, int32_t i, int32_t first, int32_t num, int32_t step) {
    const Machine* machine = it->problem->request->machine;
    const CostModel* costs = it->problem->costs;
    MachineRank* fastest = &it->fastest[i];
    double sum = 0;
    for (int32_t r = 0; r < num; r++) {
        MachineRank rank = machine_rank(machine, first + r * step);
        sum += 1 / machine_slow(&rank);
    }
    for (int32_t r = 0; r < num; r++) {
        MachineRank rank = machine_rank(machine, first + r * step);
        if (rank.link_bytes_per_ns <= 0) {
            rank.link_bytes_per_ns = costs->comm_bytes_per_ns > 0 ? costs->comm_bytes_per_ns : INFINITY;
            rank.link_latency_ns = costs->comm_bytes_per_ns > 0 ? costs->comm_latency_ns : 0;
        }
        if (r == 0) { *fastest = rank; }
        for (int kind = 0; kind < JOB_COUNT; kind++) {
            double share = rank.slow[kind] / machine_slow(&rank) * (num / sum);
            fastest->slow[kind] = fmin(fastest->slow[kind], rank.slow[kind]);
            it->share_slow[i][kind] = r == 0 ? share : fmin(it->share_slow[i][kind], share);
            it->most_slow = fmax(it->most_slow, rank.slow[kind]);
        }
        fastest->link_latency_ns = fmin(fastest->link_latency_ns, rank.link_latency_ns);
        fastest->link_bytes_per_ns = fmax(fastest->link_bytes_per_ns, rank.link_bytes_per_ns);
    }
}

// A replica's share of what all samples take in one part on the ranks of entry i, and one microbatch's
// constant; each feature in the mode that is cheapest for it. `share`: of a shared head, where F and B are
// one job and nothing is recomputed; 0: the whole part.
static double work_ns(const Bound* it, int part, int32_t i, double share) {
    const PlanProblem* problem = it->problem;
    const double* slow = it->share_slow[i];
    double constant = INFINITY, rate[FEATURE_COUNT] = {0}, work = 0;
    const bool may_idle = (part == PART_HEAD || part == PART_LAST_BLOCK) && it->head_idles;
    for (int k = 0; k < (share > 0 ? 1 : problem->num_modes); k++) {
        Line sum = {0};
        for (int kind = 0; kind < JOB_COUNT; kind++) {
            const Line* line = &it->line[share > 0 ? RECOMPUTE_NONE : problem->modes[k]][part][kind];
            int as = share > 0 && kind == JOB_B ? JOB_F : kind;
            if (!may_idle) { sum.constant += line->constant * it->fastest[i].slow[as]; }
            for (int f = 0; f < FEATURE_COUNT; f++) { sum.rate[f] += line->rate[f] * slow[as]; }
        }
        constant = fmin(constant, sum.constant);
        for (int f = 0; f < FEATURE_COUNT; f++) {
            rate[f] = k == 0 ? sum.rate[f] : fmin(rate[f], sum.rate[f]);
        }
    }
    for (int f = 0; f < FEATURE_COUNT; f++) {
        if (!may_idle || f == FEATURE_SUPERVISED) { work += rate[f] * it->total[f]; }
    }
    return constant + (share > 0 ? share : 1) * work / problem->R;
}

// Rounding: a job may be half a nanosecond shorter than its formula, and as much after it was scaled to its
// rank; a stage has 4 jobs of every sample in each of its chunks, a chain all chunks twice. Sums err by less
// than one part in 10^12.
static int64_t floor_ns(double time_ns, const Bound* it) {
    const PlanProblem* problem = it->problem;
    double chunks = problem->num_rows, of_stage = chunks;
    if (it->freedom != GIVEN) {  // a chunk of every block, the head's, and shares of it
        chunks = plan_chain_num_blocks(&problem->costs->chain) + 1 + problem->P;
        of_stage = it->freedom == ANY_SPLIT ? 1 : chunks / problem->P;
    } else if (placement_is_linear(&problem->placement, problem->P)) {
        of_stage = 1;
    }
    double slack_ns =
        (2.0 * problem->num_samples * of_stage + 4 * chunks) * (problem->differs ? 1 + it->most_slow : 1);
    double safe = time_ns * (1 - 1e-12) - slack_ns;
    return safe <= 0 ? 0 : safe < (double)COST_LIMIT ? (int64_t)safe : COST_LIMIT;
}

// Of one sample alone, each kind of job of each part in its cheapest mode, on an average rank.
static CostParts sample_parts(const Bound* it, const PlanSample* sample) {
    const PlanProblem* problem = it->problem;
    MbShape shape = {0};
    CostParts least, one;
    mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
    cost_parts(&least, &problem->table, problem->modes[0], &shape);
    for (int k = 1; k <= problem->num_modes; k++) {
        bool of_share = k == problem->num_modes;  // nothing is recomputed there
        if (of_share && it->head_is_whole) { break; }
        cost_parts(&one, &problem->table, of_share ? RECOMPUTE_NONE : problem->modes[k], &shape);
        for (int part = of_share ? PART_HEAD : 0; part < PART_COUNT; part++) {
            for (int kind = 0; kind < JOB_COUNT; kind++) {
                least.part[part][kind] = fmin(least.part[part][kind], one.part[part][kind]);
            }
        }
    }
    return least;
}

// --- a given placement -----------------------------------------------------------------------------------

// A sample alone: all forwards in the order of the chunks, the slowest share of the head where it is shared,
// all backwards, weight gradients and reduction; lowers arrival_ns to when it reaches each stage first.
static int64_t chain_ns(int64_t* arrival_ns, const Bound* it, const PlanSample* sample) {
    const PlanProblem* problem = it->problem;
    const Placement* placement = &problem->placement;
    const int32_t K = placement->num_chunks, last = placement->stage_of[K - 1];
    const CostParts parts = sample_parts(it, sample);
    CostJobs jobs;
    int64_t back_ns[PLAN_MAX_CHUNKS], after_ns[PLAN_MAX_CHUNKS], time_ns = 0, longest_ns = 0, head_ns = 0;
    for (int32_t k = 0; k < K; k++) {
        int32_t s = placement->stage_of[k], next = k < K - 1 ? placement->stage_of[k + 1] : s;
        const MachineRank* rank = &it->fastest[s];
        cost_jobs_of_stage(&jobs, problem->costs, &problem->chunks[k], &parts);
        int64_t hop_ns = machine_between_ns(it->fastest, problem->costs, s, next, jobs.boundary_bytes);
        arrival_ns[s] = time_ns < arrival_ns[s] ? time_ns : arrival_ns[s];
        back_ns[k] = hop_ns + machine_job_ns(rank, JOB_B, jobs.job_ns[JOB_B]);
        after_ns[k] = machine_job_ns(rank, JOB_W, jobs.job_ns[JOB_W]) +
                      cost_rank_reduce_ns(problem->costs, &problem->has[s], problem->R);
        time_ns += hop_ns + machine_job_ns(rank, JOB_F, jobs.job_ns[JOB_F]);
    }
    for (int32_t s = 0; s < problem->P; s++) {
        const MachineRank* rank = &it->fastest[s];
        if (!placement_has_share(placement, s)) { continue; }
        cost_jobs_of_share(&jobs, problem->costs, cost_share_of(placement, s), &parts);
        if (placement->head == HEAD_BY_ROWS) {  // a larger microbatch may send a row less: only the latency
            jobs.boundary_bytes = jobs.part_bytes = 0;
        }
        int64_t begin_ns =
            time_ns + machine_between_ns(it->fastest, problem->costs, last, s, jobs.boundary_bytes);
        int64_t end_ns = begin_ns + machine_job_ns(rank, JOB_F, jobs.job_ns[JOB_F]);
        int64_t sent_ns = machine_between_ns(it->fastest, problem->costs, s, last, jobs.part_bytes);
        arrival_ns[s] = begin_ns < arrival_ns[s] ? begin_ns : arrival_ns[s];
        head_ns = larger(head_ns, end_ns + sent_ns - time_ns);
        longest_ns =
            larger(longest_ns, end_ns + machine_job_ns(rank, JOB_W, jobs.job_ns[JOB_W]) +
                                   cost_rank_reduce_ns(problem->costs, &problem->has[s], problem->R));
    }
    time_ns += head_ns;
    for (int32_t k = K - 1; k >= 0; k--) {
        time_ns += back_ns[k];
        longest_ns = larger(longest_ns, time_ns + after_ns[k]);
    }
    return longest_ns;
}

static void given_placement(LowerBound* out, const Bound* it) {
    const PlanProblem* problem = it->problem;
    const Placement* placement = &problem->placement;
    int64_t arrival_ns[PLAN_MAX_STAGES], ignored_ns[PLAN_MAX_STAGES] = {0};
    double work[PLAN_MAX_STAGES] = {0};
    for (int32_t s = 0; s < problem->P; s++) {
        arrival_ns[s] = INT64_MAX;
        if (placement_has_share(placement, s)) {
            int32_t units = placement->head_begin[s + 1] - placement->head_begin[s];
            work[s] = work_ns(it, PART_HEAD, s, (double)units / HEAD_UNITS);
        }
    }
    for (int32_t k = 0; k < problem->K; k++) {
        const int32_t *count = problem->chunks[k].count, s = placement->stage_of[k];
        for (int part = 0; part < PART_COUNT; part++) {
            if (count[part] > 0) { work[s] += count[part] * work_ns(it, part, s, 0); }
        }
    }
    chain_ns(arrival_ns, it, &it->shortest);
    for (int k = 0; k < NUM_LONGEST; k++) {
        const PlanSample sample = undivided(it, it->longest[k]);
        out->chain_ns = larger(out->chain_ns, chain_ns(ignored_ns, it, &sample));
    }
    for (int32_t s = 0; s < problem->P; s++) {
        int64_t time_ns = arrival_ns[s] + floor_ns(work[s], it) +
                          cost_rank_reduce_ns(problem->costs, &problem->has[s], problem->R);
        out->stage_ns = larger(out->stage_ns, time_ns);
    }
}

// --- any placement ---------------------------------------------------------------------------------------

static int part_of(const Bound* it, int32_t block) {
    return cost_part_of_block(&it->problem->costs->chain, block);
}

static double reduce_ns(const Bound* it, int part) {
    const CostModel* costs = it->problem->costs;
    return (double)costs->part_param_bytes[part] * cost_reduce_ns_per_byte(costs, it->problem->R);
}

// A sample's job in a part on the fastest rank; of the largest share where the head may be shared.
static double job_ns(const Bound* it, const CostParts* parts, int part, JobKind kind) {
    const double* slow = it->fastest[it->problem->P].slow;
    bool is_shared = part == PART_HEAD && !it->head_is_whole;
    return parts->part[part][kind] *
           (is_shared ? fmin(slow[JOB_F], slow[JOB_B]) / it->problem->P : slow[kind]);
}

// Between any two chunks.
static int64_t least_bytes(const Bound* it, const CostParts* parts) {
    const int64_t bytes = parts->enc_boundary_bytes, of_rows = cost_round(parts->head_in_bytes);
    return it->problem->costs->chain.last_in_rows && of_rows < bytes ? of_rows : bytes;
}

static double quickest_transfer_ns(const Bound* it, const CostParts* parts) {
    const int64_t num_bytes = least_bytes(it, parts);
    double least = it->problem->P > 1 ? INFINITY : 0;
    for (int32_t s = 0; s < it->problem->P - 1; s++) {
        least = fmin(least, (double)machine_transfer_ns(&it->fastest[s], it->problem->costs, num_bytes));
    }
    return least;
}

// All parts there and back, weight gradients of the first block and its embedding, their reduction.
static void any_chain(LowerBound* out, const Bound* it) {
    int32_t count[PART_COUNT];
    double longest = 0;
    cost_model_count(count, &it->problem->costs->chain);
    for (int k = 0; k < NUM_LONGEST; k++) {
        const PlanSample sample = undivided(it, it->longest[k]);
        CostParts parts = sample_parts(it, &sample);
        double time = 2 * (it->problem->P - 1) * quickest_transfer_ns(it, &parts);
        for (int part = 0; part < PART_COUNT; part++) {
            time += count[part] * (job_ns(it, &parts, part, JOB_F) + job_ns(it, &parts, part, JOB_B));
            if (part != PART_EMBEDDING && part != part_of(it, 0)) { continue; }
            time += job_ns(it, &parts, part, JOB_W) + reduce_ns(it, part);
        }
        longest = fmax(longest, time);
    }
    out->chain_ns = floor_ns(longest, it);
}

// One chunk a stage: the slowest stage of the best split,
//     g(p, l) = min { max(g(p-1, k), bound of blocks k..l-1 as stage p) : p <= k < l }
// with at least one block on every stage but the last, which may be the head alone.
static double best_split_ns(const Bound* it) {
    enum { MOST = 2 * COST_MAX_LAYERS * CHAIN_MAX_BLOCKS + 1 };
    const CostModel* costs = it->problem->costs;
    const int32_t P = it->problem->P, L = plan_chain_num_blocks(&costs->chain);
    CostParts shortest = sample_parts(it, &it->shortest);
    double best[MOST], next[MOST], arrival[MOST], links_ns = 0, work[PART_COUNT];
    arrival[0] = job_ns(it, &shortest, PART_EMBEDDING, JOB_F);
    for (int32_t l = 0; l < L; l++) {
        arrival[l + 1] = arrival[l] + job_ns(it, &shortest, part_of(it, l), JOB_F);
    }
    for (int32_t l = 0; l <= L; l++) { best[l] = l == 0 ? 0 : INFINITY; }
    for (int32_t s = 0; s < P; s++) {
        int32_t begin_last = s == P - 1 && s > 0 ? L : L - 1;
        for (int part = 0; part < PART_COUNT; part++) { work[part] = work_ns(it, part, s, 0); }
        if (s > 0) {
            links_ns += (double)machine_transfer_ns(&it->fastest[s - 1], costs, least_bytes(it, &shortest));
        }
        for (int32_t l = 0; l <= L; l++) { next[l] = INFINITY; }
        for (int32_t begin = s; begin <= begin_last; begin++) {
            double time =
                s > 0 ? arrival[begin] + links_ns : work[PART_EMBEDDING] + reduce_ns(it, PART_EMBEDDING);
            if (s == P - 1) { time += work[PART_HEAD]; }
            if (s == P - 1 && begin == L) { next[L] = fmin(next[L], fmax(best[L], time)); }
            for (int32_t l = begin; l < L; l++) {
                int part = part_of(it, l);
                time += work[part] + reduce_ns(it, part);
                if (s < P - 1 || l == L - 1) { next[l + 1] = fmin(next[l + 1], fmax(best[begin], time)); }
            }
        }
        memcpy(best, next, (size_t)(L + 1) * sizeof *best);
    }
    return best[L];
}

static double whole_work_ns(const Bound* it) {
    const int32_t all = it->problem->P;
    int32_t count[PART_COUNT];
    cost_model_count(count, &it->problem->costs->chain);
    double head = work_ns(it, PART_HEAD, all, 0);
    double work = it->head_is_whole ? head : fmin(head, work_ns(it, PART_HEAD, all, 1));
    for (int part = 0; part < PART_HEAD; part++) {
        if (count[part] > 0) { work += count[part] * work_ns(it, part, all, 0); }
    }
    return work;
}

// Every stage has a chunk, every chunk but the last a block (the last may be the head alone). In the order
// in which a microbatch first reaches the stages, the i-th begins after i blocks and i transfers. Work
// spread evenly over the rest of the step:
//     time >= (work / R + sum of these arrivals + reduction) / P
static double any_placement_ns(const Bound* it) {
    int32_t P = it->problem->P, L = plan_chain_num_blocks(&it->problem->costs->chain);
    CostParts shortest = sample_parts(it, &it->shortest);
    double link_ns = quickest_transfer_ns(it, &shortest);
    double arrival = job_ns(it, &shortest, PART_EMBEDDING, JOB_F);
    double time = whole_work_ns(it) + reduce_ns(it, PART_EMBEDDING);
    for (int32_t l = 0; l < L; l++) {
        arrival += job_ns(it, &shortest, part_of(it, l), JOB_F) + link_ns;
        time += reduce_ns(it, part_of(it, l)) + (l + 1 < P ? arrival : 0);
    }
    return time / P;
}

// --- the bound -------------------------------------------------------------------------------------------

static void freedom_set(Bound* it) {
    const PlanProblem* problem = it->problem;
    const PlanRequest* request = problem->request;
    bool is_given = request->placements == PLACEMENT_GIVEN;
    bool one_each = request->placements == PLACEMENT_LINEAR ||
                    (is_given && placement_is_linear(&problem->placement, problem->P));
    it->head_is_whole = request->heads == HEAD_CHOICE_WHOLE ||
                        (request->heads == HEAD_CHOICE_GIVEN && problem->placement.head == HEAD_WHOLE);
    bool head_stays = request->heads == HEAD_CHOICE_GIVEN ||
                      (request->heads == HEAD_CHOICE_WHOLE && problem->placement.head == HEAD_WHOLE);
    it->freedom = is_given && head_stays && !request->choose_stages ? GIVEN
                  : one_each && it->head_is_whole                   ? ANY_SPLIT
                                                                    : ANY_PLACEMENT;
}

void lower_bound_make(LowerBound* out, const PlanProblem* problem) {
    Bound bound = {.problem = problem, .most_slow = 1, .max_pieces = plan_problem_max_pieces(problem)};
    Bound* it = &bound;
    *out = (LowerBound){0};
    samples_make(it);
    freedom_set(it);
    lines_make(it);
    for (int32_t s = 0; s < problem->P; s++) { speed_make(it, s, s, problem->R, problem->P); }
    speed_make(it, problem->P, 0, problem->P * problem->R, 1);
    if (it->freedom == GIVEN) {
        given_placement(out, it);
    } else {
        any_chain(out, it);
        out->stage_ns = floor_ns(it->freedom == ANY_SPLIT ? best_split_ns(it) : any_placement_ns(it), it);
    }
    out->work_ns = floor_ns(whole_work_ns(it) / problem->P, it);
    out->bound_ns = larger(out->work_ns, larger(out->chain_ns, out->stage_ns));
}
