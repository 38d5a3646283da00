// microbatch_price.c -- see microbatch_price.h; the rules are those of microbatch_cost.
#include "microbatch_price.h"

#include <string.h>

#include "shape_rules.h"

// --- which stages matter ----------------------------------------------------------------------------------

// At least as many of every part that takes time: never faster, since no part has negative costs.
static bool dominates(const int32_t a[PART_COUNT], const int32_t b[PART_COUNT]) {
    for (int part = 0; part < PART_COUNT; part++) {
        if (a[part] < b[part]) { return false; }
    }
    return true;
}

static bool formula_is_zero(const CostFormula* formula) {
    bool is_zero = formula->constant == 0 && formula->floor == 0;
    for (int f = 0; f < FEATURE_COUNT; f++) { is_zero &= formula->curves[f].num_knots == 0; }
    return is_zero;
}

static void slow_choose(MicrobatchPricer* out) {
    const PlanProblem* problem = out->problem;
    const double* slow = problem->stage_slow;
    int32_t counts[PLAN_MAX_STAGES][PIECE_COUNT] = {{0}};
    for (int32_t k = 0; k < problem->K; k++) {  // (a share is no number of parts: what is left is below)
        int32_t parts[PIECE_COUNT];
        cost_stage_parts(parts, problem->costs, &problem->chunks[k]);
        for (int part = 0; part < PART_COUNT; part++) {
            counts[problem->placement.stage_of[k]][part] += parts[part];
        }
    }
    for (int32_t s = 0; s < problem->P; s++) {
        for (int part = 0; part < PART_COUNT; part++) {
            bool takes_time = false;
            for (int kind = 0; kind < JOB_COUNT; kind++) {
                takes_time |= !formula_is_zero(&problem->costs->parts[out->mode][part].time_ns[kind]);
            }
            if (!takes_time) { counts[s][part] = 0; }
        }
        for (int piece = PART_COUNT; piece < PIECE_COUNT; piece++) { counts[s][piece] = 0; }
    }
    for (int32_t s = 0; s < problem->P; s++) {
        bool needed = true;
        for (int32_t k = 0; k < problem->P && needed; k++) {
            bool over = k != s && slow[k] >= slow[s] && dominates(counts[k], counts[s]);
            needed = !over || (slow[s] >= slow[k] && dominates(counts[s], counts[k]) && s < k);
        }
        if (!needed) { continue; }
        out->stage_of[out->num_slow] = s;
        memcpy(out->slow[out->num_slow++], counts[s], sizeof counts[s]);
    }
}

static BoundaryKind boundary_of(const PlanProblem* problem, int32_t s) {
    if (s < 0 || !problem->count_buffers || problem->chunks[s].has_head) { return BOUNDARY_NONE; }
    return problem->chunks[s].layers.layer_end > problem->costs->num_enc_layers ? BOUNDARY_DEC : BOUNDARY_ENC;
}

static void memory_add(MicrobatchPricer* out, const PriceMemory* stage) {
    for (int32_t i = 0; i < out->num_memory; i++) {
        PriceMemory* other = &out->memory[i];
        bool same = memcmp(other->count, stage->count, sizeof stage->count) == 0 && other->in == stage->in &&
                    other->out == stage->out;
        if (!same) { continue; }
        if (stage->alone_limit_bytes < other->alone_limit_bytes) {
            other->alone_limit_bytes = stage->alone_limit_bytes;
        }
        if (stage->held_limit_bytes < other->held_limit_bytes) {
            other->held_limit_bytes = stage->held_limit_bytes;
        }
        return;
    }
    out->memory[out->num_memory++] = *stage;
}

void microbatch_pricer_make(MicrobatchPricer* out, const PlanProblem* problem, RecomputeMode mode,
                            MicrobatchShare share) {
    memset(out, 0, sizeof *out);
    out->problem = problem;
    out->mode = mode;
    out->share = share;
    out->is_linear = placement_is_linear(&problem->placement, problem->P);
    out->is_job = problem->costs->recompute_is_job[mode];
    slow_choose(out);
    for (int32_t s = 0; s < problem->P && out->is_linear; s++) {
        int64_t parts = share == SHARE_PIPELINE ? problem->P - s : share == SHARE_UNIFORM ? problem->P : 1;
        PriceMemory stage = {.in = boundary_of(problem, s - 1),
                             .out = boundary_of(problem, s),
                             .alone_limit_bytes = problem->available_bytes[s],
                             .held_limit_bytes = problem->available_bytes[s] / parts};
        cost_stage_parts(stage.count, problem->costs, &problem->chunks[s]);
        memory_add(out, &stage);
    }
}

// --- prices -----------------------------------------------------------------------------------------------

// The same additions in the same order as cost_jobs_of_stage.
static int64_t quantity_round(const CostParts* parts, const int32_t count[PIECE_COUNT], int quantity) {
    double sum = parts->stage[quantity];
    for (int part = 0; part < PART_COUNT; part++) {
        if (count[part] > 0) { sum += count[part] * parts->part[part][quantity]; }
    }
    for (int i = 0; parts->has_once && quantity >= COST_STORED && i < ONCE_COUNT; i++) {
        if (count[PART_COUNT + i] > 0) { sum += parts->once[i][quantity - COST_STORED]; }
    }
    return cost_round(sum);
}

static void fits_set(MicrobatchCost* cost, const MicrobatchPricer* pricer, const CostParts* parts) {
    int64_t boundary[3] = {0, parts->enc_boundary_bytes, parts->dec_boundary_bytes};
    int64_t fixed_bytes =
        pricer->problem->count_buffers ? parts->scratch_bytes + 5 * (int64_t)PLAN_BUFFER_ALIGN : 0;
    for (int32_t i = 0; i < pricer->num_memory; i++) {
        const PriceMemory* stage = &pricer->memory[i];
        int64_t in = boundary[stage->in], out = boundary[stage->out];
        int64_t stored_bytes = quantity_round(parts, stage->count, COST_STORED);
        int64_t kept_bytes =
            pricer->is_job ? quantity_round(parts, stage->count, COST_FORWARD) : stored_bytes;
        int64_t backward_bytes = stored_bytes + 2 * in + out, forward_bytes = kept_bytes + in + out;
        int64_t alone_bytes = backward_bytes > forward_bytes ? backward_bytes : forward_bytes;
        cost->fits_alone &= alone_bytes + fixed_bytes <= stage->alone_limit_bytes;
        cost->fits_held &= stored_bytes + in <= stage->held_limit_bytes;
    }
    cost->fits_held &= cost->fits_alone;
}

MicrobatchCost microbatch_price(const MicrobatchPricer* pricer, const MbShape* shape) {
    const ShapeRules* rules = &pricer->problem->request->rules;
    MicrobatchCost cost = {.fits_alone = shape_rules_allow(rules, shape), .fits_held = true};
    CostParts parts;
    if (!pricer->is_linear) { return microbatch_cost(pricer->problem, pricer->mode, pricer->share, shape); }
    cost_parts(&parts, &pricer->problem->table, pricer->mode, shape);
    for (int32_t i = 0; i < pricer->num_slow; i++) {
        int64_t ns = 0;
        for (int kind = 0; kind < JOB_COUNT; kind++) { ns += quantity_round(&parts, pricer->slow[i], kind); }
        ns = plan_problem_stage_ns(pricer->problem, pricer->stage_of[i], ns);
        cost.work_ns = ns > cost.work_ns ? ns : cost.work_ns;
    }
    fits_set(&cost, pricer, &parts);
    return cost;
}

// --- the line below ---------------------------------------------------------------------------------------

// The steepest line from the origin that stays below the curve. Between knots the ratio y / x is monotone, so
// its least is at a knot, far out, or where the first segment was cut off at 0.
static double slope_below(const CostCurve* curve) {
    int n = curve->num_knots;
    const double *x = curve->x, *y = curve->y;
    if (n == 0) { return 0; }
    if (n == 1) { return y[0] / x[0]; }
    if (y[0] - x[0] * ((y[1] - y[0]) / (x[1] - x[0])) < 0) { return 0; }
    double least = (y[n - 1] - y[n - 2]) / (x[n - 1] - x[n - 2]);
    for (int i = 0; i < n; i++) {
        if (x[i] > 0 && y[i] / x[i] < least) { least = y[i] / x[i]; }
    }
    return least;
}

static double line_of_stage(double slope[FEATURE_COUNT], const MicrobatchPricer* pricer,
                            const int32_t count[PIECE_COUNT]) {
    double constant = 0;
    const CostPartMode* parts = pricer->problem->costs->parts[pricer->mode];
    for (int f = 0; f < FEATURE_COUNT; f++) { slope[f] = 0; }
    for (int part = 0; part < PART_COUNT; part++) {
        for (int kind = 0; kind < JOB_COUNT && count[part] > 0; kind++) {
            const CostFormula* formula = &parts[part].time_ns[kind];
            if (kind == (int)JOB_R && !pricer->is_job) { continue; }
            constant += count[part] * formula->constant;
            for (int f = 0; f < FEATURE_COUNT; f++) {
                slope[f] += count[part] * slope_below(&formula->curves[f]);
            }
        }
    }
    return constant;
}

void microbatch_price_line(double* constant, double slope[FEATURE_COUNT], const MicrobatchPricer* pricer) {
    double best = -1;
    for (int32_t i = 0; i < pricer->num_slow; i++) {
        double slow = pricer->problem->stage_slow[pricer->stage_of[i]];
        double b[FEATURE_COUNT], c = slow * line_of_stage(b, pricer, pricer->slow[i]), sum = c;
        for (int f = 0; f < FEATURE_COUNT; f++) { sum += b[f] *= slow; }
        if (sum <= best) { continue; }
        best = sum;
        *constant = c;
        memcpy(slope, b, sizeof b);
    }
}
