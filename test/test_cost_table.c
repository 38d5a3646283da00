// test_cost_table.c -- the fast evaluation says what the formulas say, to the last bit.
#include "../dynapipe_plugin/plan/cost_model.h"
#include "cost_one.h"

#include "random_problem.h"
#include "test.h"

static uint64_t seed;
static CostModel model;
static CostTable table;

static int64_t random_count(Rng* rng) {
    switch (rng_below(rng, 5)) {
        case 0: return 0;
        case 1: return rng_between(rng, 1, 200);
        case 2: return (int64_t)rng_below(rng, 1u << 31) << 31;  // costs saturate
        default: return rng_between(rng, 0, 5000000);
    }
}

static MbShape random_shape(Rng* rng) {
    return (MbShape){.num_seqs = random_count(rng),
                     .enc_tokens = random_count(rng),
                     .enc_squares = random_count(rng),
                     .dec_tokens = random_count(rng),
                     .dec_squares = random_count(rng),
                     .cross_products = random_count(rng),
                     .supervised_tokens = random_count(rng)};
}

// Every second model is of lines, some have a mode that recomputes inside backward, some formulas are zero.
static void random_model(Rng* rng, int32_t enc, int32_t dec) {
    if (rng_below(rng, 2)) {
        random_cost_model(&model, rng, enc, dec);
    } else {
        linear_cost_model(&model, rng, enc, dec);
    }
    for (int part = 0; part < PART_COUNT; part++) {
        model.parts[RECOMPUTE_SELECTIVE][part] = model.parts[RECOMPUTE_FULL][part];
        model.parts[RECOMPUTE_SELECTIVE][part].time_ns[JOB_R].constant += 7;
        for (int kind = 0; kind < JOB_COUNT; kind++) {
            if (rng_below(rng, 6) == 0) {
                model.parts[rng_below(rng, 3)][part].time_ns[kind] = (CostFormula){0};
            }
        }
    }
    model.recompute_is_job[RECOMPUTE_SELECTIVE] = rng_below(rng, 2);
}

// By the formulas, one quantity of one chunk at a time.
static int64_t quantity_of(const CostStage* stage, RecomputeMode mode, int quantity, const MbShape* shape) {
    const CostFormula* whole = quantity == COST_STORED    ? &model.stage_stored_bytes
                               : quantity == COST_FORWARD ? &model.stage_forward_bytes
                                                          : NULL;
    bool is_job = model.recompute_is_job[mode];
    double sum = whole != NULL ? cost_formula_value(whole, shape) : 0;
    int32_t count[PIECE_COUNT];
    if (!is_job && (quantity == COST_FORWARD || quantity == (int)JOB_R)) { return 0; }
    cost_stage_parts(count, &model, stage);
    for (int part = 0; part < PART_COUNT; part++) {
        const CostPartMode* m = &model.parts[mode][part];
        const CostFormula* formula = quantity == COST_STORED    ? &m->stored_bytes
                                     : quantity == COST_FORWARD ? &m->forward_bytes
                                                                : &m->time_ns[quantity];
        if (count[part] > 0) { sum += count[part] * cost_formula_value(formula, shape); }
    }
    for (int i = 0; i < ONCE_COUNT && whole != NULL; i++) {
        const CostFormula* once =
            quantity == COST_STORED ? &model.once_stored_bytes[i] : &model.once_forward_bytes[i];
        if (count[PART_COUNT + i] > 0) { sum += cost_formula_value(once, shape); }
    }
    return cost_round(sum);
}

static int64_t boundary_of(const CostStage* stage, const MbShape* shape) {
    double bytes = cost_formula_value(&model.boundary_bytes, shape);
    if (stage->layers.layer_end > model.num_enc_layers) {
        bytes += cost_formula_value(&model.dec_boundary_bytes, shape);
    }
    if (stage->feeds_head) { bytes = cost_formula_value(&model.head_in_bytes, shape); }
    return stage->has_head ? 0 : cost_round(bytes);
}

static void check_jobs(const CostJobs* jobs, const CostStage* stage, RecomputeMode mode,
                       const MbShape* shape) {
    for (int kind = 0; kind < JOB_COUNT; kind++) {
        CHECK_EQ(jobs->job_ns[kind], quantity_of(stage, mode, kind, shape));
        CHECK_EQ(jobs->job_ns[kind], cost_job_ns(&model, stage, (JobKind)kind, mode, shape));
    }
    CHECK_EQ(jobs->stored_bytes, quantity_of(stage, mode, COST_STORED, shape));
    CHECK_EQ(jobs->stored_bytes, cost_stored_bytes(&model, stage, mode, shape));
    CHECK_EQ(jobs->forward_bytes, quantity_of(stage, mode, COST_FORWARD, shape));
    CHECK_EQ(jobs->forward_bytes, cost_forward_bytes(&model, stage, mode, shape));
    CHECK_EQ(jobs->boundary_bytes, boundary_of(stage, shape));
    CHECK_EQ(jobs->boundary_bytes, cost_boundary_bytes(&model, stage, shape));
    CHECK_EQ(jobs->scratch_bytes, cost_round(cost_formula_value(&model.scratch_bytes, shape)));
    CHECK(jobs->part_bytes == 0 && jobs->factor_bytes == 0);
}

// Any cut of any model into stages, any mode, any shape: as evaluated one quantity of one stage at a time.
static void jobs_are_those_of_the_formulas(void) {
    Rng rng = rng_seed(seed);
    for (int round = 0; round < 1000; round++) {
        int32_t enc = rng_between(&rng, 1, 9), dec = rng_below(&rng, 2) ? rng_between(&rng, 1, 9) : 0;
        int32_t P = rng_between(&rng, 1, enc + dec < 7 ? enc + dec : 7);
        PlanRequest request = {.P = P};
        CostStage stages[7];
        CostJobs jobs[7], again[7], one;
        random_model(&rng, enc, dec);
        equal_stages(&request, enc + dec);
        for (int32_t s = 0; s + 1 < P; s++) {  // uneven now and then
            if (rng_below(&rng, 3) > 0 ||
                request.placement.chunks[s + 1].layer_end - request.placement.chunks[s].layer_end < 2) {
                continue;
            }
            request.placement.chunks[s].layer_end++;
            request.placement.chunks[s + 1].layer_begin++;
        }
        for (int32_t s = 0; s < P; s++) {
            stages[s] = cost_stage_make(&model, &request.placement.chunks[s], s, P);
        }
        stages[P - 1].feeds_head = rng_below(&rng, 2);
        stages[P - 1].has_head = !stages[P - 1].feeds_head;
        cost_table_init(&table, &model);
        for (int k = 0; k < 5; k++) {
            RecomputeMode mode = (RecomputeMode)rng_below(&rng, RECOMPUTE_COUNT);
            MbShape shape = random_shape(&rng);
            CostParts parts;
            cost_parts(&parts, &table, mode, &shape);
            cost_jobs_of_stages(jobs, &model, stages, P, &parts);
            cost_stages(again, &model, stages, P, mode, &shape);
            for (int32_t s = 0; s < P; s++) {
                cost_jobs_of_stage(&one, &model, &stages[s], &parts);
                check_jobs(&jobs[s], &stages[s], mode, &shape);
                CHECK_EQ(memcmp(&jobs[s], &one, sizeof one), 0);
                CHECK_EQ(memcmp(&jobs[s], &again[s], sizeof one), 0);
            }
        }
    }
}

// Before rounding, too.
static void parts_are_the_formulas_to_the_last_bit(void) {
    Rng rng = rng_seed(seed + 3);
    for (int round = 0; round < 1000; round++) {
        random_model(&rng, 3, 3);
        cost_table_init(&table, &model);
        RecomputeMode mode = (RecomputeMode)rng_below(&rng, RECOMPUTE_COUNT);
        MbShape shape = random_shape(&rng);
        CostParts parts;
        cost_parts(&parts, &table, mode, &shape);
        for (int part = 0; part < PART_COUNT; part++) {
            const CostPartMode* m = &model.parts[mode][part];
            for (int kind = 0; kind < JOB_COUNT; kind++) {
                bool used = kind != JOB_R || model.recompute_is_job[mode];
                CHECK(parts.part[part][kind] == (used ? cost_formula_value(&m->time_ns[kind], &shape) : 0));
            }
            CHECK(parts.part[part][COST_STORED] == cost_formula_value(&m->stored_bytes, &shape));
        }
        CHECK(parts.stage[COST_STORED] == cost_formula_value(&model.stage_stored_bytes, &shape));
    }
}

// Parts are per layer: moving a layer between two stages needs no new evaluation.
static void parts_serve_every_split(void) {
    Rng rng = rng_seed(seed + 1);
    for (int round = 0; round < 200; round++) {
        random_model(&rng, 4, 4);
        cost_table_init(&table, &model);
        MbShape shape = random_shape(&rng);
        CostParts parts;
        cost_parts(&parts, &table, RECOMPUTE_FULL, &shape);
        for (int32_t cut = 1; cut < 8; cut++) {
            LayerRange layers[2] = {{0, cut}, {cut, 8}};
            for (int32_t s = 0; s < 2; s++) {
                CostStage stage = cost_stage_make(&model, &layers[s], s, 2);
                CostJobs jobs;
                cost_jobs_of_stage(&jobs, &model, &stage, &parts);
                check_jobs(&jobs, &stage, RECOMPUTE_FULL, &shape);
            }
        }
    }
}

// A model without decoder layers has nothing of them, whatever its formulas say.
static void absent_parts_cost_nothing(void) {
    Rng rng = rng_seed(seed + 2);
    random_cost_model(&model, &rng, 3, 0);
    cost_table_init(&table, &model);
    CostParts parts;
    MbShape shape = {1, 100, 10000, 100, 10000, 10000, 50};
    cost_parts(&parts, &table, RECOMPUTE_NONE, &shape);
    for (int q = 0; q < COST_QUANTITIES; q++) { CHECK_EQ(parts.part[PART_DEC_LAYER][q], 0); }
    CHECK(parts.part[PART_ENC_LAYER][JOB_F] > 0);
    CHECK_EQ(parts.part[PART_ENC_LAYER][JOB_R] + parts.part[PART_ENC_LAYER][COST_FORWARD], 0);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(jobs_are_those_of_the_formulas);
    RUN(parts_are_the_formulas_to_the_last_bit);
    RUN(parts_serve_every_split);
    RUN(absent_parts_cost_nothing);
    return test_end();
}
