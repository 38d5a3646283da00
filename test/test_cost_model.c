// test_cost_model.c -- costs of jobs, ranks and machines: formulas, tables, shares, analytic estimates.
#include "../dynapipe_plugin/plan/cost_model.h"
#include "../dynapipe_plugin/plan/planner.h"
#include "../dynapipe_plugin/plan/types.h"
#include "cost_one.h"
#include "random_plan.h"
#include "random_problem.h"
#include "test.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

static uint64_t seed;

// --- cost model ------------------------------------------------------------------------------------------
// monotone, saturating, additive over stages, exact text, refused nonsense.

static CostModel model, other;

static char* text_of(const CostModel* costs, const char* signature) {
    char* text = NULL;
    size_t num_bytes = 0;
    FILE* out = open_memstream(&text, &num_bytes);
    cost_file_print(costs, NULL, signature, out);
    fclose(out);
    return text;
}

static int64_t* field_of(MbShape* shape, int f) {
    int64_t* const fields[] = {&shape->num_seqs,          &shape->enc_tokens,     &shape->enc_squares,
                               &shape->dec_tokens,        &shape->dec_squares,    &shape->cross_products,
                               &shape->supervised_tokens, &shape->prefix_products};
    return fields[f];
}

static MbShape random_shape(Rng* rng) {
    MbShape shape = {0};
    for (int f = 0; f < FEATURE_COUNT; f++) {
        *field_of(&shape, f) = rng_between(rng, 0, rng_below(rng, 4) ? 3000 : 100000000);
        if (rng_below(rng, 20) == 0) { *field_of(&shape, f) <<= 30; }  // costs saturate
    }
    return shape;
}

// A known formula by hand: floor, constant, line, knots, slope before the first and after the last.
static void formula_has_the_documented_value(void) {
    CostFormula f = {.constant = 10, .floor = 25};
    f.curves[FEATURE_ENC_TOKENS] = (CostCurve){3, {100, 200, 400}, {50, 150, 190}};
    f.curves[FEATURE_SUPERVISED] = (CostCurve){1, {4}, {8}};
    const struct {
        int64_t tokens, supervised;
        double value;
    } cases[] = {{0, 0, 25},    {49, 0, 25},   {60, 0, 25},   {70, 0, 30},    {100, 0, 60},
                 {150, 3, 116}, {200, 0, 160}, {300, 0, 180}, {400, 10, 220}, {900, 0, 300}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        MbShape shape = {.enc_tokens = cases[i].tokens, .supervised_tokens = cases[i].supervised};
        CHECK_NEAR(cost_formula_value(&f, &shape), cases[i].value, 1e-9);
    }
    f.constant = 10,
    f.floor = 0;  // the first slope leads to -50 at no tokens, which must not eat the constant
    CHECK_NEAR(cost_formula_value(&f, &(MbShape){0}), 10, 0);
    CHECK_NEAR(cost_formula_value(&f, &(MbShape){.enc_tokens = 40}), 10, 0);
    CHECK_NEAR(cost_formula_value(&f, &(MbShape){.enc_tokens = 51}), 11, 1e-9);
}

// A larger shape never costs less; nothing is negative.
static void costs_are_monotone(void) {
    Rng rng = rng_seed(seed);
    for (int round = 0; round < 300; round++) {
        CostJobs jobs[4], more[4];
        CostStage stages[4];
        PlanRequest request = {.P = rng_between(&rng, 1, 4)};
        int32_t enc = rng_between(&rng, 2, 6), dec = rng_between(&rng, 0, 6), P = request.P;
        random_cost_model(&model, &rng, enc, dec);
        CHECK_OK(cost_model_check(&model));
        equal_stages(&request, plan_chain_num_blocks(&model.chain));
        for (int32_t s = 0; s < P; s++) {
            stages[s] = cost_stage_make(&model.chain, &request.placement.chunks[s], s == 0, s == P - 1);
        }
        RecomputeMode mode = rng_below(&rng, 2) ? RECOMPUTE_FULL : RECOMPUTE_NONE;
        MbShape shape = random_shape(&rng), larger = shape;
        *field_of(&larger, (int)rng_below(&rng, FEATURE_COUNT)) +=
            rng_between(&rng, 1, round % 3 ? 3 : 100000);
        cost_stages(jobs, &model, stages, P, mode, &shape);
        cost_stages(more, &model, stages, P, mode, &larger);
        for (int32_t s = 0; s < P; s++) {
            for (int kind = 0; kind < JOB_COUNT; kind++) {
                CHECK(jobs[s].job_ns[kind] >= 0 && jobs[s].job_ns[kind] <= more[s].job_ns[kind]);
            }
            CHECK(jobs[s].stored_bytes <= more[s].stored_bytes &&
                  jobs[s].forward_bytes <= more[s].forward_bytes);
            CHECK(jobs[s].boundary_bytes <= more[s].boundary_bytes &&
                  jobs[s].scratch_bytes <= more[s].scratch_bytes);
            if (mode == RECOMPUTE_NONE) { CHECK_EQ(jobs[s].job_ns[JOB_R] + jobs[s].forward_bytes, 0); }
        }
        CHECK_EQ(jobs[P - 1].boundary_bytes, 0);
    }
}

static void huge_costs_saturate(void) {
    Rng rng = rng_seed(seed + 2);
    MbShape shape = {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, 0, 0, 0};
    linear_cost_model(&model, &rng, 1024, 0);
    model.chain.enc_blocks = 3;
    BlockRange all = {0, 3 * 1024};
    CostStage stage = cost_stage_make(&model.chain, &all, true, true);
    model.parts[RECOMPUTE_NONE][PART_ENC_BLOCK].time_ns[JOB_F].constant = 1e18;
    CHECK_OK(cost_model_check(&model));
    CHECK_EQ(cost_job_ns(&model, &stage, JOB_F, RECOMPUTE_NONE, &shape), COST_LIMIT);
    CHECK_EQ(cost_stored_bytes(&model, &stage, RECOMPUTE_FULL, &shape), COST_LIMIT);
    model.part_state_bytes[PART_ENC_BLOCK] = COST_LIMIT;
    model.tied_head_state_bytes = model.part_state_bytes[PART_HEAD] + 1;
    CHECK_FAILS(cost_model_check(&model), STATUS_BAD_FORMAT, "tied head_state_bytes");
    model.tied_head_state_bytes = 0;
    model.tied_stack_bytes = -1;
    CHECK_FAILS(cost_model_check(&model), STATUS_BAD_FORMAT, "tied stack_bytes");
    CHECK_EQ(cost_state_bytes(&model, &stage), COST_LIMIT);
    model.comm_bytes_per_ns = 1e-300;
    CHECK_EQ(cost_transfer_ns(&model, INT64_MAX), COST_LIMIT);
    model.comm_bytes_per_ns = 0;
    CHECK_EQ(cost_transfer_ns(&model, 1000), 0);
}

// Three copies of T5's embedding at most: of the first stage, where the decoder begins, and of a tied head;
// biases of a stack go round where it has more than one stage.
static void copies_of_the_embedding_are_exchanged(void) {
    memset(&model, 0, sizeof model);
    model.chain = plan_chain_whole(3, 3);
    model.part_param_bytes[PART_ENC_BLOCK] = 1000;
    model.part_param_bytes[PART_DEC_BLOCK] = 2000;
    model.part_param_bytes[PART_EMBEDDING] = 400;
    model.part_param_bytes[ONCE_ENC] = model.part_param_bytes[ONCE_DEC] = 20;
    model.part_param_bytes[ONCE_ENC_END] = 7;
    model.part_state_bytes[PART_EMBEDDING] = 1600;
    model.reduce_bytes_per_ns = 2;
    model.update_ns_per_byte = 3;
    model.tied_param_bytes = 400;
    model.tied_stack_bytes = 20;
    for (int tied = 0; tied < 2; tied++) {
        int64_t once = tied ? 400 : 0, untied = 400 - once;  // there and back at 2 bytes per ns
        model.part_param_bytes[PART_HEAD] = 450;
        model.part_state_bytes[PART_HEAD] = 1800;
        model.tied_head_state_bytes = tied ? 1600 : 0;
        const struct {
            int32_t P, cuts[5];
            struct {
                int64_t tied_ns, param_bytes, state_bytes;
            } ranks[4];
        } cases[] = {
            {1, {0, 6}, {{0, 9497 + untied, 1800 + 4 * untied}}},
            {2, {0, 3, 6}, {{400, 3427, 1600}, {400, 6470 + untied, 1800 + 4 * untied}}},
            {3, {0, 2, 4, 6}, {{420, 2420, 1600}, {440, 3447, 1600}, {once + 20, 4470, 1800}}},
            {4, {0, 2, 4, 6, 6}, {{420, 2420, 1600}, {440, 3447, 1600}, {20, 4020, 0}, {once, 450, 1800}}},
        };
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            BlockRange stages[4];
            Placement placement = {0};
            CostRank ranks[4];
            for (int32_t s = 0; s < cases[i].P; s++) {
                stages[s] = (BlockRange){cases[i].cuts[s], cases[i].cuts[s + 1]};
            }
            placement_linear(&placement, stages, cases[i].P);
            cost_ranks_make(ranks, &model, &placement, cases[i].P);
            for (int32_t s = 0; s < cases[i].P; s++) {
                int64_t params = cases[i].ranks[s].param_bytes, tied_ns = cases[i].ranks[s].tied_ns;
                CHECK_EQ(cost_rank_update_ns(&model, &ranks[s], 1), 3 * params);
                CHECK_EQ(cost_rank_reduce_ns(&model, &ranks[s], 1), tied_ns);
                CHECK_EQ(cost_rank_reduce_ns(&model, &ranks[s], 2), tied_ns + (params + 1) / 2);
                CHECK_EQ(cost_rank_state_bytes(&model, &ranks[s]), cases[i].ranks[s].state_bytes);
            }
        }
    }
}

// The text says the same again, to the last bit, ranks included; a file belongs to one model; a broken model
// is not written.
static void files_keep_everything(void) {
    Rng rng = rng_seed(seed + 3);
    char path[] = "/tmp/test_cost_model_XXXXXX";
    close(mkstemp(path));
    for (int32_t round = 0; round < 60; round++) {
        MachineRank ranks[20];
        int32_t num_ranks = round % 20;
        random_cost_model(&model, &rng, rng_between(&rng, 1, 9), rng_between(&rng, 0, 9));
        model.parts[RECOMPUTE_FULL][PART_HEAD].offered = rng_below(&rng, 2);
        for (int32_t r = 0; r < num_ranks; r++) {
            ranks[r] = (MachineRank){.memory_limit_bytes = rng_below(&rng, 1000)};
            for (int k = 0; k < JOB_COUNT; k++) { ranks[r].slow[k] = 0.5 + rng_below(&rng, 1000) / 997.0; }
            ranks[r].link_latency_ns = rng_below(&rng, 1000) / 7.0;
            ranks[r].link_bytes_per_ns = rng_below(&rng, 1000) / 7.0;
        }
        Machine on = {.num_ranks = num_ranks, .ranks = ranks}, back;
        CHECK_OK(cost_file_save(&model, &on, path, "gpt2 C 8"));
        CHECK_OK(cost_file_load(&other, &back, path, "gpt2 C 8"));
        CHECK(machine_hash(&back) == machine_hash(&on));
        free((void*)back.ranks);
        char *text = text_of(&model, "gpt2 C 8"), *again = text_of(&other, "gpt2 C 8");
        CHECK(strcmp(text, again) == 0);
        CHECK_EQ(cost_mode_offered(&other, RECOMPUTE_FULL), model.parts[RECOMPUTE_FULL][PART_HEAD].offered);
        size_t rest = offsetof(CostModel, stage_stored_bytes);  // all that is not by part
        CHECK_EQ(memcmp((char*)&other + rest, (char*)&model + rest, sizeof model - rest), 0);
        free(text);
        free(again);
    }
    CHECK_OK(cost_file_load(&other, NULL, path, NULL));
    CHECK_FAILS(cost_file_load(&other, NULL, path, "gpt2 C 128"), STATUS_MISMATCH, "./profile_costs");
    CHECK_FAILS(cost_file_load(&other, NULL, "/no/such/file", NULL), STATUS_IO, "/no/such/file");
    const MachineRank stands_still = {.slow = {1, 0, 1, 1}};
    const Machine one = {.num_ranks = 1, .ranks = &stands_still};
    CHECK_FAILS(cost_file_save(&model, &one, path, NULL), STATUS_OUT_OF_RANGE, "0 times as long for B");
    model.comm_latency_ns = NAN;
    CHECK_FAILS(cost_file_save(&model, NULL, path, "x"), STATUS_BAD_FORMAT, "comm latency_ns");
    unlink(path);
}

// One edit of a good text each; the message names file and line, and what was expected.
static void broken_texts_are_refused(void) {
    static const struct {
        const char *from, *to, *words;
    } edits[] = {
        {"dynapipe-costs 7", "dynapipe-costs 6", "costs:1: expected 7, found '6'"},
        {"layers 2 0", "measured interface 1\nlayers 2 0", "expected ranks"},
        {"recompute none", "rank 1 slow\nrecompute none", "'1' is not a number in 0 ... 0"},
        {"recompute none", "rank 0 slow F 1 B 1 W 1 R 1 memory 0\nrecompute none", "expected link"},
        {"signature toy", "sign toy", "costs:2: expected signature"},
        {"layers 2 0", "layers 0 0", "layers: 0 and 0"},
        {"layers 2 0", "layers 2 0 1", "costs:3: expected blocks, found '1'"},
        {"blocks 2 1 ", "blocks 2 1 1 ", "costs:3: expected last_in_rows, found '1'"},
        {"last_in_rows 0", "last_in_rows 2", "costs:3: last_in_rows: "},
        {"blocks 2 1", "blocks 0 1", "costs:3: blocks: "},
        {"blocks 2 1", "blocks 4 1", "costs:3: blocks: "},
        {"layers 2 0", "layers 2.5 0", "'2.5' is not a number"},
        {"comm latency_ns ", "comm latency_ns 0x", "costs:4: latency_ns: "},
        {"comm latency_ns ", "comm latency_ns -", "comm latency_ns is -"},
        {"state embedding bytes", "state sofa bytes", "expected recompute, found 'state'"},
        {"recompute full job", "recompute full inside", "expected stored, found 'time'"},
        {"mode none time F const ", "mode none time F const nan", "a finite decimal number"},
        {"mode none time F const ", "mode none time F const 1e999", "a finite decimal number"},
        {"part enc_block2 mode none stored", "part enc_block2 mode full stored", "expected none"},
        {"enc_tokens 1:7\n", "enc_tokens\n", "'' is not a finite decimal number"},
        {"enc_tokens 1:7\n", "enc_tokens 1:7 enc_tokens 1:7\n", "every feature once"},
        {"enc_tokens 1:7\n", "enc_tokens 5:7 4:8\n", "do not ascend"},
        {"enc_tokens 1:7\n", "enc_tokens 0:7\n", "beyond 0"},
        {"enc_tokens 1:7\n", "enc_tokens 1:-7\n", "finite numbers, 0 to"},
        {"enc_tokens 1:7\n", "tokens 1:7\n", "a feature: seqs"},
        {"\nend\n", "\nend\nlayers 2 0\n", "expected the end of the file"},
    };
    Rng rng = rng_seed(seed + 5);
    linear_cost_model(&model, &rng, 2, 0);
    model.chain.enc_blocks = 2, model.chain.dec_blocks = 1, model.chain.last_in_rows = false;
    model.boundary_bytes = (CostFormula){.curves[FEATURE_ENC_TOKENS] = {1, {1}, {7}}};
    char* text = text_of(&model, "toy");
    CHECK_OK(cost_file_parse(&other, NULL, text, "costs", NULL));
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        char* place = strstr(text, edits[i].from);
        CHECK(place != NULL);
        if (!place) { continue; }
        char* broken = malloc(strlen(text) + strlen(edits[i].to) + 1);
        sprintf(broken, "%.*s%s%s", (int)(place - text), text, edits[i].to, place + strlen(edits[i].from));
        CHECK_FAILS(cost_file_parse(&other, NULL, broken, "costs", NULL), STATUS_BAD_FORMAT, edits[i].words);
        free(broken);
    }
    free(text);
}

// --- cost table ------------------------------------------------------------------------------------------
// the fast evaluation says what the formulas say, to the last bit.

static CostTable big_table;

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
    const int32_t *count = stage->count, bytes = quantity - COST_STORED;
    double sum = 0;
    if (!cost_mode_has(&model, mode, quantity)) { return 0; }
    if (bytes >= 0) { sum = cost_formula_value(cost_bytes_formula(&model, COST_BYTES_STAGE + bytes), shape); }
    for (int part = 0; part < PART_COUNT; part++) {
        const CostFormula* formula = cost_part_formula(&model, (int)mode, part, quantity);
        const bool by_rows = part == PART_HEAD || part == PART_LAST_BLOCK;
        const bool is_idle =
            by_rows ? shape->supervised_tokens == 0 : part < PART_DEC_BLOCK && shape->enc_tokens == 0;
        if (count[part] > 0 && (bytes >= 0 || !is_idle)) {
            sum += count[part] * cost_formula_value(formula, shape);
        }
    }
    for (int i = 0; i < ONCE_COUNT && bytes >= 0; i++) {
        const CostFormula* once = cost_bytes_formula(&model, COST_BYTES_ONCE + 2 * i + bytes);
        if (count[PART_COUNT + i] > 0) { sum += cost_formula_value(once, shape); }
    }
    return cost_round(sum);
}

static int64_t boundary_of(const CostStage* stage, const MbShape* shape) {
    double bytes = cost_formula_value(&model.boundary_bytes, shape);
    if (stage->blocks.end > plan_chain_first_dec(&model.chain)) {
        bytes += cost_formula_value(&model.dec_boundary_bytes, shape);
    }
    const bool has_rows =
        model.chain.last_in_rows && stage->blocks.end >= plan_chain_num_blocks(&model.chain) - 1;
    if (has_rows || stage->count[ONCE_CHAIN_END] > 0) {
        bytes = cost_formula_value(&model.head_in_bytes, shape);
    }
    return stage->count[PART_HEAD] > 0 ? 0 : cost_round(bytes);
}

static void check_jobs(const CostJobs* jobs, const CostStage* stage, RecomputeMode mode,
                       const MbShape* shape) {
    for (int kind = 0; kind < JOB_COUNT; kind++) {
        CHECK_EQ(jobs->job_ns[kind], quantity_of(stage, mode, kind, shape));
    }
    CHECK_EQ(jobs->stored_bytes, quantity_of(stage, mode, COST_STORED, shape));
    CHECK_EQ(jobs->forward_bytes, quantity_of(stage, mode, COST_FORWARD, shape));
    CHECK_EQ(jobs->boundary_bytes, boundary_of(stage, shape));
    MbShape whole = *shape;  // of a piece: what its sample needs
    *(shape->dec_tokens > 0 ? &whole.dec_squares : &whole.enc_squares) += 2 * shape->prefix_products;
    CHECK_EQ(jobs->scratch_bytes, cost_round(cost_formula_value(&model.scratch_bytes, &whole)));
    CHECK(jobs->part_bytes == 0 && jobs->factor_bytes == 0);
}

// Any cut of any model into stages, any mode, any shape: as evaluated one quantity of one stage at a time.
static void jobs_are_those_of_the_formulas(void) {
    Rng rng = rng_seed(seed);
    for (int round = 0; round < 1000; round++) {
        int32_t enc = rng_between(&rng, 1, 9), dec = rng_below(&rng, 2) ? rng_between(&rng, 1, 9) : 0;
        CostStage stages[7];
        CostJobs jobs[7], again[7], one;
        random_model(&rng, enc, dec);
        const int32_t num_blocks = plan_chain_num_blocks(&model.chain);
        int32_t P = rng_between(&rng, 1, num_blocks < 7 ? num_blocks : 7);
        PlanRequest request = {.P = P};
        equal_stages(&request, plan_chain_num_blocks(&model.chain));
        for (int32_t s = 0; s + 1 < P; s++) {  // uneven now and then
            if (rng_below(&rng, 3) > 0 ||
                request.placement.chunks[s + 1].end - request.placement.chunks[s].end < 2) {
                continue;
            }
            request.placement.chunks[s].end++;
            request.placement.chunks[s + 1].begin++;
        }
        for (int32_t s = 0; s < P; s++) {
            stages[s] = cost_stage_make(&model.chain, &request.placement.chunks[s], s == 0, s == P - 1);
        }
        stages[P - 1].count[ONCE_CHAIN_END] = rng_below(&rng, 2);
        stages[P - 1].count[PART_HEAD] = !stages[P - 1].count[ONCE_CHAIN_END];
        cost_table_init(&big_table, &model);
        for (int k = 0; k < 5; k++) {
            RecomputeMode mode = (RecomputeMode)rng_below(&rng, RECOMPUTE_COUNT);
            MbShape shape = random_shape(&rng);
            CostParts parts;
            cost_parts(&parts, &big_table, mode, &shape);
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

// --- cost rank -------------------------------------------------------------------------------------------
// what a rank has of any placement: every piece of the model somewhere, nothing twice on
// a rank; and shares of the head, which together are the head.

// The same, tensor by tensor: what of the embedding's matrix and the head's a stage has, in 1 / 2^20 of it.
typedef struct {
    double embedding, matrix;
} Tensors;

static Tensors tensors_of(const Placement* placement, int32_t s) {
    Tensors out = {0, 0};
    int32_t K = placement->num_chunks;
    for (int32_t k = 0; k < K; k++) {
        const int32_t first_dec = plan_chain_first_dec(&model.chain);
        bool begins_dec = model.chain.num_dec_layers > 0 && placement->chunks[k].begin <= first_dec &&
                          first_dec < placement->chunks[k].end;
        if (placement->stage_of[k] == s && (k == 0 || begins_dec)) { out.embedding = 1; }
    }
    int32_t begin = placement->head_begin[s], end = placement->head_begin[s + 1], Vp = model.head_vocab;
    if (!placement_has_share(placement, s)) { return out; }
    out.matrix = (end - begin) / (double)HEAD_UNITS;
    if (Vp > 0) {
        int32_t from = Vp * begin / HEAD_UNITS / 16 * 16, to = Vp * end / HEAD_UNITS / 16 * 16;
        out.matrix = ((end == HEAD_UNITS ? Vp : to) - from) / (double)Vp;
    }
    if (placement->head == HEAD_BY_ROWS) { out.matrix = 1; }
    if (model.head_is_tied && out.embedding > 0) { out.matrix = 0; }
    return out;
}

static double state_of(const Placement* placement, int32_t s) {
    const int64_t* state = model.part_state_bytes;
    Tensors tensors = tensors_of(placement, s);
    double sum =
        tensors.embedding * (double)state[PART_EMBEDDING] + tensors.matrix * (double)model.head_state_bytes;
    bool has[PIECE_COUNT] = {false};
    int32_t K = placement->num_chunks, enc = plan_chain_first_dec(&model.chain);
    for (int32_t k = 0; k < K; k++) {
        if (placement->stage_of[k] != s) { continue; }
        for (int32_t b = placement->chunks[k].begin; b < placement->chunks[k].end; b++) {
            int32_t j = b < enc ? b % model.chain.enc_blocks : (b - enc) % model.chain.dec_blocks;
            const bool in_rows = model.chain.last_in_rows && b == plan_chain_num_blocks(&model.chain) - 1;
            sum += (double)state[in_rows ? PART_LAST_BLOCK : (b < enc ? PART_ENC_BLOCK : PART_DEC_BLOCK) + j];
            has[b < enc ? ONCE_ENC : ONCE_DEC] = true;
            has[(b < enc ? ONCE_ENC_BLOCK : ONCE_DEC_BLOCK) + j] |= !in_rows;
            has[ONCE_ENC_END] |= b == enc - 1 && model.chain.num_dec_layers > 0;
        }
        has[placement->head == HEAD_WHOLE ? PART_HEAD : ONCE_CHAIN_END] |= k == K - 1;
    }
    for (int piece = 0; piece < PIECE_COUNT; piece++) { sum += has[piece] ? (double)state[piece] : 0; }
    if (has[PART_HEAD] && tensors.embedding > 0) { sum -= (double)model.tied_head_state_bytes; }
    return sum;
}

static void ranks_have_every_tensor_once(void) {
    Rng rng = rng_seed(seed);
    int32_t num_shared = 0;
    for (int32_t round = 0; round < 2000; round++) {
        int32_t P = rng_between(&rng, 1, 7), enc = rng_between(&rng, P, 3 * P);
        int32_t dec = rng_below(&rng, 2) ? rng_between(&rng, 1, 2 * P) : 0;
        Placement placement;
        CostRank ranks[PLAN_MAX_STAGES];
        random_cost_model(&model, &rng, enc, dec);
        random_placement(&placement, &rng, P, plan_chain_num_blocks(&model.chain));
        cost_ranks_make(ranks, &model, &placement, P);
        num_shared += placement.head != HEAD_WHOLE;
        for (int32_t s = 0; s < P; s++) {
            CHECK_NEAR(cost_rank_state_bytes(&model, &ranks[s]), state_of(&placement, s), 1);
        }
        for (int32_t s = 0; s < P && placement_is_linear(&placement, P); s++) {
            CostStage stage = cost_stage_make(&model.chain, &placement.chunks[s], s == 0, s == P - 1);
            CHECK_EQ(cost_state_bytes(&model, &stage), cost_rank_state_bytes(&model, &ranks[s]));
        }
    }
    CHECK(num_shared > 500);
}

// Gradients of the embedding's matrix: who alone has it exchanges nothing, who has a part exchanges that
// part. A head with a matrix of its own: by rows copies of it, by vocabulary nothing.
static void tied_gradients_are_exchanged(void) {
    static const struct {
        HeadSplit by;
        int16_t units, back;  // of stage 0; is the last chunk there too?
        int64_t tied[2], own[2];
    } cases[] = {{HEAD_WHOLE, 0, 0, {1000, 1000}, {0, 0}},
                 {HEAD_WHOLE, 0, 1, {0, 0}, {0, 0}},
                 {HEAD_BY_VOCABULARY, 256, 0, {750, 750}, {0, 0}},
                 {HEAD_BY_ROWS, 256, 0, {1000, 1000}, {1000, 1000}},
                 {HEAD_BY_ROWS, 1024, 0, {0, 0}, {0, 0}}};
    for (int i = 0; i < 10; i++) {
        bool tied = i % 2;
        CostRank ranks[2];
        model = (CostModel){.chain = plan_chain_whole(4, 0), .reduce_bytes_per_ns = 1, .head_is_tied = tied};
        model.tied_param_bytes = model.head_param_bytes = 1000;
        model.head_state_bytes = model.part_state_bytes[PART_EMBEDDING] = model.part_state_bytes[PART_HEAD] =
            4000;
        model.tied_head_state_bytes = tied ? 4000 : 0;
        Placement placement = {.num_chunks = 3, .chunks = {{0, 1}, {1, 3}, {3, 4}}, .stage_of = {0, 1, 1}};
        placement.stage_of[2] = !cases[i / 2].back;
        placement.head = (uint8_t)cases[i / 2].by;
        placement.head_begin[1] = cases[i / 2].units;
        placement.head_begin[2] = HEAD_UNITS;
        cost_ranks_make(ranks, &model, &placement, 2);
        for (int32_t s = 0; s < 2; s++) {
            CHECK_EQ(cost_rank_reduce_ns(&model, &ranks[s], 1),
                     2 * (tied ? cases[i / 2].tied : cases[i / 2].own)[s]);
        }
    }
}

// What the head takes for that many supervised rows and nothing else.
static double head_of_rows(const CostTable* table, int64_t rows, int kind) {
    CostParts parts;
    cost_parts(&parts, table, RECOMPUTE_NONE, &(MbShape){.supervised_tokens = rows});
    return parts.part[PART_HEAD][kind];
}

// Shares of any sizes take what the whole head takes, and its constant once more for every share; by rows
// none takes less than a head of its rows.
static void shares_are_the_head(void) {
    Rng rng = rng_seed(seed + 1);
    for (int32_t round = 0; round < 2000; round++) {
        int32_t P = rng_between(&rng, 1, 7), num = 0;
        Placement placement;
        CostTable table;
        CostParts parts;
        random_cost_model(&model, &rng, P, 0);
        do {
            random_placement(&placement, &rng, P, plan_chain_num_blocks(&model.chain));
        } while (placement.head == HEAD_WHOLE);
        cost_table_init(&table, &model);
        MbShape shape = {.num_seqs = 1, .enc_tokens = rng_between(&rng, 1, 900)};
        shape.supervised_tokens = rng_between(&rng, 0, (int32_t)shape.enc_tokens);
        cost_parts(&parts, &table, RECOMPUTE_NONE, &shape);
        const double *head = parts.part[PART_HEAD], *constant = parts.head_constant;
        double forward = 0, weights = 0;
        int64_t in_bytes = 0, part_bytes = 0;
        bool by_rows = placement.head == HEAD_BY_ROWS;
        for (int32_t s = 0; s < P; s++) {
            CostJobs jobs;
            cost_jobs_of_share(&jobs, &model, cost_share_of(&placement, s), &parts);
            CHECK(placement_has_share(&placement, s) ||
                  (jobs.job_ns[JOB_F] == 0 && jobs.boundary_bytes == 0));
            CHECK(jobs.job_ns[JOB_B] == 0 && jobs.job_ns[JOB_R] == 0 && jobs.forward_bytes == 0);
            CHECK(by_rows || !placement_has_share(&placement, s) ||
                  jobs.part_bytes == cost_round(parts.head_part_bytes));
            CostShare share = cost_share_of(&placement, s);
            double ns[JOB_W + 1], units = (double)(share.end - share.begin) / HEAD_UNITS;
            int64_t rows = cost_share_rows(shape.supervised_tokens, share.end) -
                           cost_share_rows(shape.supervised_tokens, share.begin);
            for (int kind = 0; kind <= JOB_W; kind++) {
                ns[kind] = units > 0 ? constant[kind] + units * (head[kind] - constant[kind]) : 0;
                if (by_rows && rows > 0) { ns[kind] = fmax(ns[kind], head_of_rows(&table, rows, kind)); }
            }
            CHECK_NEAR((double)jobs.job_ns[JOB_F], ns[JOB_F] + ns[JOB_B], 1);
            CHECK_NEAR((double)jobs.job_ns[JOB_W], ns[JOB_W], 1);
            forward += (double)jobs.job_ns[JOB_F];
            weights += (double)jobs.job_ns[JOB_W];
            in_bytes += jobs.boundary_bytes;
            part_bytes += jobs.part_bytes;
            num += placement_has_share(&placement, s);
        }
        double more = (num - 1) * (constant[JOB_F] + constant[JOB_B]);
        if (!by_rows) {
            CHECK_NEAR(forward, head[JOB_F] + head[JOB_B] + more, P);
            CHECK_NEAR(weights, head[JOB_W] + (num - 1) * constant[JOB_W], P);
        }
        int64_t all = shape.supervised_tokens > 0 ? cost_round(parts.head_in_bytes) : 0;
        if (by_rows) { CHECK(in_bytes == all && part_bytes == all); }
        if (!by_rows) { CHECK_EQ(in_bytes, num * cost_round(parts.head_in_bytes)); }
    }
}

// --- cost analytic ---------------------------------------------------------------------------------------
// the stand-in: GPT-2 and T5 by their flops, counted here again, and its shares of
// work.

// The stand-in: sane, monotone, doubling the rates halves the time, and its bytes are llmc/gpt2's.
static void analytic_gpt_is_sane(void) {
    CostAnalytic about = {.num_layers = 12,
                          .channels = 768,
                          .ffn_channels = 3072,
                          .tied_head = true,
                          .num_heads = 12,
                          .padded_vocab = 50304,
                          .max_tokens = 1024,
                          .bytes_per_value = 4,
                          .flops_per_ns = 40,
                          .attention_flops_per_ns = 20,
                          .bytes_per_ns = 10,
                          .comm_latency_ns = 5000,
                          .comm_bytes_per_ns = 5};
    BlockRange layers = {3, 6};
    const PlanChain chain = plan_chain_whole(12, 0);
    CostStage middle = cost_stage_make(&chain, &layers, false, false);
    MbShape shape = {0};
    mb_shape_add(&shape, 512, 0, 128);
    cost_model_analytic_gpt(&model, &about);
    CHECK_OK(cost_model_check(&model));
    CHECK(cost_mode_offered(&model, RECOMPUTE_FULL) && !cost_mode_offered(&model, RECOMPUTE_SELECTIVE));
    int64_t forward_ns = cost_job_ns(&model, &middle, JOB_F, RECOMPUTE_NONE, &shape);
    double flops_ns = 3 * (24.0 * 768 * 768 * 512 / 40 + 2.0 * 768 * 512 * 512 / 20);
    CHECK((double)forward_ns > flops_ns && (double)forward_ns < 1.5 * flops_ns);
    CHECK(cost_job_ns(&model, &middle, JOB_R, RECOMPUTE_NONE, &shape) == 0);
    CHECK_EQ(cost_job_ns(&model, &middle, JOB_R, RECOMPUTE_FULL, &shape), forward_ns);
    int64_t layer_bytes = (16 * 768 + 4 + 12) * INT64_C(4), spare_bytes = 3 * 768 * 4;
    CHECK_EQ(cost_stored_bytes(&model, &middle, RECOMPUTE_FULL, &shape),
             (3 * layer_bytes + spare_bytes) * (512 + 16));
    CHECK_EQ(cost_forward_bytes(&model, &middle, RECOMPUTE_FULL, &shape),
             (layer_bytes + spare_bytes) * (512 + 16));
    CHECK_EQ(cost_boundary_bytes(&model, &middle, &shape), 768 * 4 * (512 + 16));
    int64_t layer_params = 12 * 768 * 768 + 13 * 768;
    CHECK_EQ(cost_state_bytes(&model, &middle), 3 * layer_params * (8 + 8));
    model.num_shards = 3;
    CHECK_EQ(cost_state_bytes(&model, &middle), 3 * layer_params * 8 + layer_params * 8);
    about.flops_per_ns *= 2, about.attention_flops_per_ns *= 2, about.bytes_per_ns *= 2;
    cost_model_analytic_gpt(&other, &about);
    CHECK_NEAR(cost_job_ns(&other, &middle, JOB_F, RECOMPUTE_NONE, &shape), forward_ns / 2, 2);
}

// --- T5 ----------------------------------------------------------------------------------------------------

// A machine on which a flop takes 1 ns and nothing else takes time.
static CostAnalytic flops_only(int32_t channels, int32_t num_heads, int32_t ffn_channels, int32_t num_enc,
                               int32_t num_dec, bool gated, int32_t padded_vocab) {
    return (CostAnalytic){.num_layers = num_enc,
                          .num_dec_layers = num_dec,
                          .channels = channels,
                          .num_heads = num_heads,
                          .head_size = 64,
                          .ffn_channels = ffn_channels,
                          .gated = gated,
                          .padded_vocab = padded_vocab,
                          .bytes_per_value = 4,
                          .flops_per_ns = 1,
                          .attention_flops_per_ns = 1,
                          .bytes_per_ns = 1e15};
}

static double part_flops(int part, JobKind kind, const MbShape* shape) {
    return cost_formula_value(&model.parts[RECOMPUTE_NONE][part].time_ns[kind], shape);
}

// Every product of one layer, one by one, as llmc/t5 makes them: rows x columns x depth.
static void t5_flops_are_those_of_its_products(void) {
    const double C = 96, I = 2 * 64, F = 200, V = 384, Te = 700, Td = 90, R = 60;
    for (int gated = 0; gated < 2; gated++) {
        CostAnalytic about = flops_only(96, 2, 200, 3, 2, gated, 384);
        cost_model_analytic(&model, &about);
        MbShape shape = {.num_seqs = 1,
                         .enc_tokens = 700,
                         .enc_squares = 700 * 700,
                         .dec_tokens = 90,
                         .dec_squares = 90 * 90,
                         .cross_products = 700 * 90,
                         .supervised_tokens = 60};
        double ffn = 2 * C * F * (gated ? 3 : 2), enc = 2 * 4 * C * I * Te + ffn * Te;
        double dec = 2 * (4 + 2) * C * I * Td + 2 * 2 * C * I * Te + ffn * Td;
        double enc_attention = 2 * 2 * I * Te * Te, dec_attention = 2 * I * Td * Td + 2 * 2 * I * Te * Td;
        CHECK_NEAR(part_flops(PART_ENC_BLOCK, JOB_F, &shape), enc + enc_attention, 1);
        CHECK_NEAR(part_flops(PART_ENC_BLOCK, JOB_B, &shape), enc + 2.5 * enc_attention, 1);
        CHECK_NEAR(part_flops(PART_ENC_BLOCK, JOB_W, &shape), enc, 1);
        CHECK_NEAR(part_flops(PART_DEC_BLOCK, JOB_F, &shape), dec + dec_attention, 1);
        CHECK_NEAR(part_flops(PART_DEC_BLOCK, JOB_B, &shape), dec + 2.5 * dec_attention, 1);
        CHECK_NEAR(part_flops(PART_DEC_BLOCK, JOB_W, &shape), dec, 1);
        for (JobKind kind = JOB_F; kind <= JOB_W; kind++) {
            CHECK_NEAR(part_flops(PART_HEAD, kind, &shape), 2 * C * V * R, 1);
        }
    }
}

// --- machine ---------------------------------------------------------------------------------------------
// plans for ranks and links that differ: laws that hold whatever the method.

static RandomProblem problem;
static RandomMachine machine;

static Status plan(Plan* out, const Machine* on, Arena* arena) {
    PlanRequest request = problem.request;
    request.machine = on;
    return plan_make(out, &request, &problem.costs, problem.samples, problem.num_samples, arena);
}

// The best of the three ways to plan: ours, ours on stages of its choice, a baseline.
static void random_batch(Rng* rng, int32_t round, int32_t most_samples) {
    random_problem(&problem, rng, rng_between(rng, 4, most_samples));
    PlanRequest* request = &problem.request;
    int32_t L = rng_between(rng, 4, 10), dec = round % 5 == 0 ? L / 2 : 0, P = rng_between(rng, 1, 4);
    linear_cost_model(&problem.costs, rng, L - dec, dec);
    static const Batching batchings[] = {BATCHING_DYNAMIC, BATCHING_DYNAMIC, BATCHING_KK,
                                         BATCHING_PACKED_RAGGED, BATCHING_DYNAPIPE};
    Batching batching = batchings[round % 5];
    *request = (PlanRequest){.P = P,
                             .R = rng_between(rng, 1, 3),
                             .batching = batching,
                             .layout = batching == BATCHING_DYNAPIPE ? LAYOUT_PADDED : LAYOUT_RAGGED,
                             .recompute = RECOMPUTE_CHOICE_AUTO,
                             .memory_rule = round % 2 ? MEMORY_BUFFERS : MEMORY_ACTIVATIONS,
                             .choose_stages = round % 5 == 1,
                             .max_seq_tokens = 4096,
                             .effort = 8};
    equal_stages(request, plan_chain_num_blocks(&problem.costs.chain));
    random_samples(problem.samples, problem.num_samples, rng, 0, dec > 0);
}

// --- laws ------------------------------------------------------------------------------------------------

// A machine whose ranks all do what the cost model says is no machine.
static void ranks_that_are_alike_change_nothing(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    for (int32_t round = 0; round < 25; round++) {
        Plan with, without;
        arena_reset(&arena);
        random_batch(&rng, round, 40);
        problem.request.choose_stages = false;
        for (int32_t r = 0; r < problem.request.P * problem.request.R; r++) {
            machine.ranks[r] = machine_rank(NULL, r);
        }
        machine.machine = (Machine){problem.request.P * problem.request.R, machine.ranks, false};
        CHECK(!machine_differs(&machine.machine));
        CHECK_OK(plan(&without, NULL, &arena));
        CHECK_OK(plan(&with, &machine.machine, &arena));
        CHECK_EQ(with.makespan_ns, without.makespan_ns);
        CHECK(plan_hash(&with) == plan_hash(&without));
        CHECK_EQ(with.bound_ns, without.bound_ns);
    }
    arena_free(&arena);
}

// Each rank keeps to what it has; the plan says so itself, without the machine.
static void no_rank_gets_more_than_it_has(void) {
    Rng rng = rng_seed(seed + 4);
    Arena arena = {0};
    int num = 0;
    for (int32_t round = 0; round < 60; round++) {
        Plan made;
        arena_reset(&arena);
        random_batch(&rng, round, 40);
        problem.request.memory_rule = MEMORY_BUFFERS;
        random_problem_limit_memory(&problem, 40);
        int64_t least_bytes = problem.request.memory_limit_bytes;
        random_machine(&machine, &problem, &rng);
        if (round % 3 == 0) { problem.request.memory_limit_bytes = 0; }
        Status status = plan(&made, &machine.machine, &arena);
        if (status == STATUS_INFEASIBLE) { continue; }
        CHECK_OK(status);
        for (int32_t r = 0; r < made.P * made.R; r++) {
            int64_t own_bytes = machine.ranks[r].memory_limit_bytes;
            int64_t limit_bytes = own_bytes > 0 ? own_bytes : problem.request.memory_limit_bytes;
            CHECK_EQ(plan_limit_bytes(&made, r), limit_bytes);
            CHECK(limit_bytes == 0 || made.ranks[r].arena_bytes + made.ranks[r].state_bytes <= limit_bytes);
            num += own_bytes > least_bytes;
        }
    }
    CHECK(num > 50);
    arena_free(&arena);
}

// --- the machine itself ----------------------------------------------------------------------------------

// A transfer is as slow as the slowest link on its way, either direction; none to itself.
static void machines_change_times(void) {
    MachineRank ranks[4] = {{{1.5, 2, 3, 1}, 1000, 1, 4},
                            {{1, 1, 1, 1}, 0, 0, 1},
                            {{1, 1, 1, 1}, 0, 0, 2},
                            {{1, 1, 0, 1}, 0, 0, 0}};
    const Machine four = {.num_ranks = 4, .ranks = ranks};
    model = (CostModel){.comm_latency_ns = 10, .comm_bytes_per_ns = 8};
    CHECK_EQ(machine_job_ns(NULL, JOB_F, 7), 7);
    CHECK_EQ(machine_job_ns(&ranks[0], JOB_F, 7), 11);
    CHECK_EQ(machine_limit_bytes(&ranks[0], 5), 1000);
    CHECK_EQ(machine_limit_bytes(&ranks[1], 5), 5);
    CHECK_EQ(machine_transfer_ns(&ranks[3], &model, 800), 110);
    CHECK_EQ(machine_between_ns(ranks, &model, 2, 2, 800), 0);
    CHECK_EQ(machine_between_ns(ranks, &model, 0, 1, 800), 201);
    CHECK_EQ(machine_between_ns(ranks, &model, 3, 0, 800), 800);
    CHECK_EQ(machine_between_ns(NULL, &model, 3, 0, 800), 110);
    CHECK_EQ(machine_between_ns(NULL, &model, 3, 3, 800), 0);
    CHECK(machine_replica(NULL, 4) == NULL && machine_replica(&four, 1) == &ranks[1]);
    CHECK_FAILS(machine_check(&four, 3), STATUS_OUT_OF_RANGE, "tells of 4 ranks, there are 3 --->");
    CHECK_FAILS(machine_check(&four, 4), STATUS_OUT_OF_RANGE, "rank 3 takes 0 times as long for W --->");
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(formula_has_the_documented_value);
    RUN(costs_are_monotone);
    RUN(huge_costs_saturate);
    RUN(copies_of_the_embedding_are_exchanged);
    RUN(files_keep_everything);
    RUN(broken_texts_are_refused);
    RUN(jobs_are_those_of_the_formulas);
    RUN(ranks_have_every_tensor_once);
    RUN(tied_gradients_are_exchanged);
    RUN(shares_are_the_head);
    RUN(machines_change_times);
    RUN(analytic_gpt_is_sane);
    RUN(t5_flops_are_those_of_its_products);
    RUN(ranks_that_are_alike_change_nothing);
    RUN(no_rank_gets_more_than_it_has);
    return test_end();
}
