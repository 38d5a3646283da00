// random_problem.c -- see random_problem.h.
#include "random_problem.h"

#include <string.h>

#include "../dynapipe_plugin/plan/types.h"

static double uniform(Rng* rng, double lo, double hi) {
    return lo + (hi - lo) * rng_below(rng, 1000001) / 1e6;
}

// A curve whose values at `reach` are about `top`.
static void random_curve(CostCurve* out, Rng* rng, double reach, double top) {
    out->num_knots = rng_between(rng, 1, 5);
    double x = uniform(rng, 0.01, 0.1) * reach, y = uniform(rng, 0, 0.2) * top;
    if (out->num_knots == 1) { y = x / reach * top * uniform(rng, 0.2, 1); }
    for (int i = 0; i < out->num_knots; i++) {
        out->x[i] = x;
        out->y[i] = y;
        x += uniform(rng, 0.05, 0.5) * reach;
        y += uniform(rng, 0, 0.5) * top;
    }
}

static void random_formula(CostFormula* out, Rng* rng, bool time) {
    memset(out, 0, sizeof *out);
    out->constant = rng_below(rng, 2) ? uniform(rng, 0, 3e5) : 0;
    out->floor = rng_below(rng, 3) ? 0 : uniform(rng, 0, 6e5);
    random_curve(&out->curves[FEATURE_ENC_TOKENS], rng, 2000, time ? 4e6 : 8e7);
    if (rng_below(rng, 2)) { random_curve(&out->curves[FEATURE_ENC_SQUARES], rng, 4e6, time ? 2e6 : 4e7); }
    if (rng_below(rng, 3) == 0) {
        random_curve(&out->curves[FEATURE_SUPERVISED], rng, 500, time ? 1e6 : 2e7);
    }
    if (rng_below(rng, 4) == 0) {
        random_curve(&out->curves[FEATURE_DEC_TOKENS], rng, 500, time ? 1e6 : 2e7);
    }
    if (rng_below(rng, 4) == 0) {
        random_curve(&out->curves[FEATURE_CROSS_PRODUCTS], rng, 1e6, time ? 1e6 : 1e7);
    }
}

static void line_formula(CostFormula* out, Rng* rng, bool time) {
    memset(out, 0, sizeof *out);
    cost_formula_add_line(out, FEATURE_ENC_TOKENS, uniform(rng, 100, time ? 5000 : 50000));
    if (time) { cost_formula_add_line(out, FEATURE_ENC_SQUARES, uniform(rng, 0, 2)); }
}

typedef void FormulaMaker(CostFormula* out, Rng* rng, bool time);

static void model_make(CostModel* out, Rng* rng, int32_t num_enc, int32_t num_dec, FormulaMaker* make) {
    memset(out, 0, sizeof *out);
    out->chain = plan_chain_whole(num_enc, num_dec);
    Rng copy = *rng, fork = rng_seed(rng_u64(&copy));  // what follows is drawn as before
    if (rng_below(&fork, 2)) {
        out->chain.enc_blocks = rng_between(&fork, 1, CHAIN_MAX_BLOCKS);
        out->chain.dec_blocks = rng_between(&fork, 1, CHAIN_MAX_BLOCKS);
        out->chain.last_in_rows =
            rng_below(&fork, 2) && (num_dec > 0 ? out->chain.dec_blocks : out->chain.enc_blocks) > 1;
    }
    out->recompute_is_job[RECOMPUTE_FULL] = true;
    for (int part = 0; part < PART_COUNT; part++) {
        CostPartMode *none = &out->parts[RECOMPUTE_NONE][part], *full = &out->parts[RECOMPUTE_FULL][part];
        Rng* from = part == PART_LAST_BLOCK ? &fork : rng;
        for (int kind = 0; kind < JOB_COUNT; kind++) { make(&none->time_ns[kind], from, true); }
        make(&none->stored_bytes, from, false);
        *full = *none;
        make(&full->forward_bytes, from, false);
        memset(&none->time_ns[JOB_R], 0, sizeof none->time_ns[JOB_R]);
        none->offered = full->offered = true;
        out->part_state_bytes[part] = rng_between(from, 0, 1000000);
        out->part_param_bytes[part] = out->part_state_bytes[part] / 4;
    }
    make(&out->stage_stored_bytes, rng, false);
    make(&out->stage_forward_bytes, rng, false);
    make(&out->boundary_bytes, rng, false);
    make(&out->dec_boundary_bytes, rng, false);
    make(&out->scratch_bytes, rng, false);
    out->comm_latency_ns = rng_between(rng, 0, 20000);
    out->comm_bytes_per_ns = rng_between(rng, 0, 100);
    out->reduce_bytes_per_ns = rng_between(rng, 0, 10);
    out->update_ns_per_byte = rng_between(rng, 0, 3) * 0.1;
    out->tied_param_bytes = rng_between(rng, 0, 100000);
    // not drawn: what follows stays as it was
    int64_t head = out->part_state_bytes[PART_HEAD], embedding = out->part_state_bytes[PART_EMBEDDING];
    int64_t less = head < embedding ? head : embedding;
    out->tied_head_state_bytes = head % 2 && out->tied_param_bytes <= less / 4 ? less / 2 : 0;
    out->head_is_tied = out->tied_head_state_bytes > 0;
    out->head_state_bytes = out->head_is_tied ? out->tied_head_state_bytes : head / 2;
    out->head_param_bytes = out->head_state_bytes / 4;
    out->head_vocab = (int32_t)(head % 3) * 320;
    out->head_in_bytes = out->boundary_bytes;
    out->head_part_bytes = out->stage_stored_bytes;
    out->head_factor_bytes = out->dec_boundary_bytes;
    if (num_dec == 0) { return; }
    out->tied_stack_bytes = out->tied_param_bytes / 7;
    for (int piece = PART_COUNT; piece < PIECE_COUNT; piece++) {
        int i = piece - PART_COUNT;
        out->part_state_bytes[piece] = head / (piece + 1);
        out->part_param_bytes[piece] = out->part_state_bytes[piece] / 4;
        out->once_stored_bytes[i] = out->parts[RECOMPUTE_NONE][i % PART_COUNT].stored_bytes;
        out->once_forward_bytes[i] = out->parts[RECOMPUTE_FULL][i % PART_COUNT].forward_bytes;
    }
}

void random_cost_model(CostModel* out, Rng* rng, int32_t num_enc_layers, int32_t num_dec_layers) {
    model_make(out, rng, num_enc_layers, num_dec_layers, random_formula);
}

void linear_cost_model(CostModel* out, Rng* rng, int32_t num_enc_layers, int32_t num_dec_layers) {
    model_make(out, rng, num_enc_layers, num_dec_layers, line_formula);
}

void random_samples(PlanSample* out, int32_t num_samples, Rng* rng, int kind, bool decoder) {
    for (int32_t i = 0; i < num_samples; i++) {
        int32_t tokens = rng_between(rng, 1, rng_below(rng, 10) == 0 ? 2000 : 200);
        int32_t supervised = rng_between(rng, 0, tokens);
        out[i] = plan_sample(tokens, decoder ? rng_between(rng, 0, 100) : 0, supervised);
        if (kind == 1) { out[i] = out[0]; }
        if (kind == 3) { out[i].supervised_tokens = 0; }
    }
    if (kind == 2) { out[rng_below(rng, (uint32_t)num_samples)].enc_tokens = 30000; }
}

void equal_stages(PlanRequest* request, int32_t num_blocks) {
    for (int32_t s = 0; s < request->P; s++) {
        request->placement.chunks[s] = (BlockRange){(int32_t)((int64_t)num_blocks * s / request->P),
                                                    (int32_t)((int64_t)num_blocks * (s + 1) / request->P)};
    }
}

void head_alone_stages(PlanRequest* request, int32_t num_blocks) {
    request->P--;
    equal_stages(request, num_blocks);
    request->placement.chunks[request->P++] = (BlockRange){num_blocks, num_blocks};
}

void random_problem(RandomProblem* out, Rng* rng, int32_t num_samples) {
    int32_t P = rng_between(rng, 1, 6), num_enc = rng_between(rng, P, 3 * P);
    bool decoder = rng_below(rng, 4) == 0;
    int32_t num_dec = decoder ? rng_between(rng, 1, P) : 0;
    random_cost_model(&out->costs, rng, num_enc, num_dec);
    out->request = (PlanRequest){.P = P,
                                 .R = rng_between(rng, 1, 4),
                                 .recompute = RECOMPUTE_CHOICE_AUTO,
                                 .layout = rng_below(rng, 2) ? LAYOUT_RAGGED : LAYOUT_PADDED,
                                 .max_seq_tokens = rng_below(rng, 2) ? 4096 : 0,
                                 .mb_tokens = rng_below(rng, 2) ? rng_between(rng, 1, 9000) : 0,
                                 .mb_samples = rng_below(rng, 2) ? rng_between(rng, 1, 9) : 0};
    const int32_t num_blocks = plan_chain_num_blocks(&out->costs.chain);
    equal_stages(&out->request, num_blocks);
    Rng copy = *rng, fork = rng_seed(rng_u64(&copy));  // what follows is drawn as before
    if (P > 1 && rng_below(&fork, 4) == 0) { head_alone_stages(&out->request, num_blocks); }
    if (decoder && rng_below(&fork, 2)) { out->request.max_target_tokens = rng_between(&fork, 1, 200); }
    out->num_samples = num_samples;
    random_samples(out->samples, num_samples, rng, (int)rng_below(rng, 4), decoder);
}

void random_problem_limit_memory(RandomProblem* problem, int32_t percent) {
    PlanProblem mp;
    int64_t limit = 0;
    problem->request.memory_limit_bytes = 0;
    if (plan_problem_init(&mp, &problem->request, &problem->costs, problem->samples, problem->num_samples)) {
        return;
    }
    for (int32_t i = 0; i < problem->num_samples; i++) {
        MbShape shape = {0};
        mb_shape_add(&shape, microbatch_pad_tokens(&mp, problem->samples[i].enc_tokens, 1),
                     microbatch_pad_tokens(&mp, problem->samples[i].dec_tokens, 1),
                     problem->samples[i].supervised_tokens);
        for (int32_t s = 0; s < mp.P; s++) {
            int64_t state = cost_rank_state_bytes(&problem->costs, &mp.has[s]);
            int64_t alone = microbatch_alone_bytes(&mp, s, RECOMPUTE_NONE, &shape) + state;
            limit = alone > limit ? alone : limit;
        }
    }
    problem->request.memory_limit_bytes = limit + limit / 100 * percent + 1;
}

void random_machine(RandomMachine* out, const RandomProblem* problem, Rng* rng) {
    const PlanRequest* request = &problem->request;
    bool one_for_all_jobs = rng_below(rng, 2) == 0;
    *out = (RandomMachine){.machine = {.num_ranks = request->P * request->R, .ranks = out->ranks}};
    for (int32_t r = 0; r < out->machine.num_ranks; r++) {
        MachineRank* rank = &out->ranks[r];
        for (int kind = 0; kind < JOB_COUNT; kind++) {
            rank->slow[kind] =
                one_for_all_jobs && kind > 0 ? rank->slow[0] : rng_between(rng, 50, 200) / 100.0;
        }
        if (rng_below(rng, 2)) {
            rank->link_latency_ns = rng_between(rng, 0, 20000);
            rank->link_bytes_per_ns = rng_between(rng, 1, 1000) / 100.0;
        }
        if (request->memory_limit_bytes > 0 && rng_below(rng, 2)) {
            rank->memory_limit_bytes = request->memory_limit_bytes / 100 * rng_between(rng, 100, 200) + 1;
        }
    }
}
