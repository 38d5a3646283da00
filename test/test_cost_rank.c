// test_cost_rank.c -- what a rank has of any placement: every piece of the model somewhere, nothing twice on
// a rank; and shares of the head, which together are the head.
#include <math.h>
#include <string.h>

#include "../dynapipe_plugin/plan/cost_model.h"
#include "random_plan.h"
#include "random_problem.h"
#include "test.h"

static uint64_t seed;
static CostModel model;

// The same, tensor by tensor: what of the embedding's matrix and the head's a stage has, in 1 / 2^20 of it.
typedef struct {
    double embedding, matrix;
} Tensors;

static Tensors tensors_of(const Placement* placement, int32_t s) {
    Tensors out = {0, 0};
    int32_t K = placement->num_chunks;
    for (int32_t k = 0; k < K; k++) {
        LayerRange layers = placement->chunks[k];
        bool begins_dec = model.num_dec_layers > 0 && layers.layer_begin <= model.num_enc_layers &&
                          model.num_enc_layers < layers.layer_end;
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
    int32_t K = placement->num_chunks, enc = model.num_enc_layers;
    for (int32_t k = 0; k < K; k++) {
        LayerRange layers = placement->chunks[k];
        if (placement->stage_of[k] != s) { continue; }
        for (int32_t l = layers.layer_begin; l < layers.layer_end; l++) {
            sum += (double)state[l < enc ? PART_ENC_LAYER : PART_DEC_LAYER];
            has[l < enc ? ONCE_ENC : ONCE_DEC] = true;
            has[ONCE_ENC_END] |= l == enc - 1 && model.num_dec_layers > 0;
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
        random_placement(&placement, &rng, P, enc + dec);
        cost_ranks_make(ranks, &model, &placement, P);
        num_shared += placement.head != HEAD_WHOLE;
        for (int32_t s = 0; s < P; s++) {
            CHECK_NEAR(cost_rank_state_bytes(&model, &ranks[s]), state_of(&placement, s), 1);
        }
        for (int32_t s = 0; s < P && placement_is_linear(&placement, P); s++) {
            CostStage stage = cost_stage_make(&model, &placement.chunks[s], s, P);
            CHECK_EQ(cost_state_bytes(&model, &stage), cost_rank_state_bytes(&model, &ranks[s]));
            CHECK_EQ(cost_reduce_ns(&model, &stage, 3), cost_rank_reduce_ns(&model, &ranks[s], 3));
            CHECK_EQ(cost_update_ns(&model, &stage, 1.5), cost_rank_update_ns(&model, &ranks[s], 1.5));
        }
    }
    CHECK(num_shared > 500);
}

// Gradients of the embedding's matrix: who alone has it exchanges nothing, who has a part exchanges that
// part.
static void tied_gradients_are_exchanged(void) {
    memset(&model, 0, sizeof model);
    model.num_enc_layers = 4;
    model.reduce_bytes_per_ns = 1;
    model.tied_param_bytes = model.head_param_bytes = 1000;
    model.head_state_bytes = model.tied_head_state_bytes = 4000;
    model.part_state_bytes[PART_EMBEDDING] = model.part_state_bytes[PART_HEAD] = 4000;
    model.head_is_tied = true;
    const struct {
        Placement placement;
        int64_t tied[2];
    } cases[] = {
        {{.num_chunks = 2, .chunks = {{0, 2}, {2, 4}}, .stage_of = {0, 1}}, {1000, 1000}},
        {{.num_chunks = 3, .chunks = {{0, 1}, {1, 3}, {3, 4}}, .stage_of = {0, 1, 0}}, {0, 0}},
        {{.num_chunks = 2,
          .chunks = {{0, 2}, {2, 4}},
          .stage_of = {0, 1},
          .head = HEAD_BY_VOCABULARY,
          .head_begin = {0, 256, 1024}},
         {750, 750}},
        {{.num_chunks = 2,
          .chunks = {{0, 2}, {2, 4}},
          .stage_of = {0, 1},
          .head = HEAD_BY_ROWS,
          .head_begin = {0, 256, 1024}},
         {1000, 1000}},
        {{.num_chunks = 2,
          .chunks = {{0, 2}, {2, 4}},
          .stage_of = {0, 1},
          .head = HEAD_BY_ROWS,
          .head_begin = {0, 1024, 1024}},
         {0, 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CostRank ranks[2];
        cost_ranks_make(ranks, &model, &cases[i].placement, 2);
        for (int32_t s = 0; s < 2; s++) {
            CHECK_EQ(cost_rank_reduce_ns(&model, &ranks[s], 1), 2 * cases[i].tied[s]);
        }
    }
    model.head_is_tied = false;  // the head has a matrix of its own: by rows copies of it, by vocabulary none
    model.tied_head_state_bytes = 0;
    CostRank ranks[2];
    cost_ranks_make(ranks, &model, &cases[3].placement, 2);
    CHECK(cost_rank_reduce_ns(&model, &ranks[0], 1) == 2000 &&
          cost_rank_reduce_ns(&model, &ranks[1], 1) == 2000);
    cost_ranks_make(ranks, &model, &cases[2].placement, 2);
    CHECK(cost_rank_reduce_ns(&model, &ranks[0], 1) == 0 && cost_rank_reduce_ns(&model, &ranks[1], 1) == 0);
    CHECK_EQ(cost_rank_state_bytes(&model, &ranks[0]), 4000 + 1000);
    CHECK_EQ(cost_rank_state_bytes(&model, &ranks[1]), 3000);
}

// Shares of any sizes take what the whole head takes, and its constant once more for every share.
static void shares_are_the_head(void) {
    Rng rng = rng_seed(seed + 1);
    for (int32_t round = 0; round < 2000; round++) {
        int32_t P = rng_between(&rng, 1, 7), num = 0;
        Placement placement;
        CostTable table;
        CostParts parts;
        random_cost_model(&model, &rng, P, 0);
        do { random_placement(&placement, &rng, P, P); } while (placement.head == HEAD_WHOLE);
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
            forward += (double)jobs.job_ns[JOB_F];
            weights += (double)jobs.job_ns[JOB_W];
            in_bytes += jobs.boundary_bytes;
            part_bytes += jobs.part_bytes;
            num += placement_has_share(&placement, s);
        }
        double more = (num - 1) * (constant[JOB_F] + constant[JOB_B]);
        CHECK_NEAR(forward, head[JOB_F] + head[JOB_B] + more, P);
        CHECK_NEAR(weights, head[JOB_W] + (num - 1) * constant[JOB_W], P);
        int64_t all = shape.supervised_tokens > 0 ? cost_round(parts.head_in_bytes) : 0;
        if (by_rows) { CHECK(in_bytes == all && part_bytes == all); }
        if (!by_rows) { CHECK_EQ(in_bytes, num * cost_round(parts.head_in_bytes)); }
    }
}

// A transfer is as slow as the slowest link on its way, either direction; none to itself.
static void transfers_pass_all_links_between(void) {
    MachineRank ranks[4] = {
        {.link_bytes_per_ns = 4}, {.link_bytes_per_ns = 1}, {.link_bytes_per_ns = 2}, {.slow = {1}}};
    memset(&model, 0, sizeof model);
    model.comm_bytes_per_ns = 8;
    CHECK_EQ(machine_between_ns(ranks, &model, 2, 2, 800), 0);
    CHECK_EQ(machine_between_ns(ranks, &model, 0, 1, 800), 200);
    CHECK_EQ(machine_between_ns(ranks, &model, 0, 2, 800), 800);
    CHECK_EQ(machine_between_ns(ranks, &model, 3, 0, 800), 800);
    CHECK_EQ(machine_between_ns(ranks, &model, 3, 2, 800), 400);
    CHECK_EQ(machine_between_ns(NULL, &model, 3, 0, 800), 100);
    CHECK_EQ(machine_between_ns(NULL, &model, 3, 3, 800), 0);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(ranks_have_every_tensor_once);
    RUN(tied_gradients_are_exchanged);
    RUN(shares_are_the_head);
    RUN(transfers_pass_all_links_between);
    return test_end();
}
