// test_measure_llmc.c -- the cost model's bytes are those of our models, of every kind: what any slice asks
// for, state of every stage, tied copies included.
#include "../util/numbers.h"
#include "../dynapipe_plugin/measure/measure_bytes.h"
#include "../dynapipe_plugin/plan/cost_model.h"
#include "../dynapipe_plugin/plan/types.h"
#include "../dynapipe_plugin/run/session.h"
#include "../llmc/kinds.h"
#include "../llmc/model.h"
#include "../trainer/llmc_model.h"
#include "cost_one.h"
#include "test.h"

enum { GPT2, LLAMA, QWEN2, T5, FLAN, UMT5, LOPSIDED, NUM_CONFIGS };
static ModelConfig configs[NUM_CONFIGS];
static OpsContext* ops;

static void configs_are_known(void) {
    static const char* const descriptors[NUM_CONFIGS] = {"l5c32h2",
                                                         "llama:l5c32h4f128",
                                                         "qwen2:l4c32h4g1k16f192",
                                                         "t5:l3d3c32h2",
                                                         "flan-t5:l2d4c32h2k32f72",
                                                         "umt5:l3d2c32h2",
                                                         "byt5:l4d1c48h2k16f40"};
    for (int i = 0; i < NUM_CONFIGS; i++) {
        CHECK(model_parse(&configs[i], models_kind_of(descriptors[i]), descriptors[i], 250, 64));
        if (status_message()[0] != '\0') { printf("     %s\n", status_message()); }
    }
}

static DynapipeCosts* costs_make(const ModelConfig* config, int32_t num_shards) {
    LlmcBlocks about;
    DynapipeBlocks_v1 blocks = dynapipe_llmc_blocks(&about, config, ops);
    MeasureLengths lengths = {4096, config->kind->has_decoder ? 4096 : 0};
    DynapipeCosts* costs = calloc(1, sizeof *costs);
    costs->model.chain = measure_chain(&blocks);
    for (int part = 0; part < PART_COUNT; part++) {
        costs->model.parts[RECOMPUTE_NONE][part].offered = costs->model.parts[RECOMPUTE_FULL][part].offered =
            true;
    }
    costs->model.recompute_is_job[RECOMPUTE_FULL] = true;
    CHECK_OK(measure_bytes_fill(&costs->model, &blocks, &lengths));
    costs->model.num_shards = num_shards;
    CHECK_OK(cost_model_check(&costs->model));
    return costs;
}

// Stage [begin, end) of a chain of layers; the last where is_last, the first where it begins at 0.
static CostStage stage_of(const CostModel* costs, int32_t begin, int32_t end, bool is_last) {
    const BlockRange blocks = {begin, end};
    return cost_stage_make(&costs->chain, &blocks, begin == 0, is_last);
}

// A slice that a stage may have.
static void draw_slice(Rng* rng, int32_t L, int32_t* begin, int32_t* end, bool* is_last) {
    *begin = rng_between(rng, 0, L);
    *end = *begin == L ? L : rng_between(rng, *begin + 1, L);
    *is_last = *end == L && (*begin == L || rng_below(rng, 2));
}

// Parameters of the slice that a stage has.
static int64_t slice_params(const ModelConfig* config, int32_t begin, int32_t end, bool is_last) {
    Model model;
    model_init(&model, config, begin, end, is_last, ops);
    int64_t num_params = model.num_params;
    model_free(&model);
    return num_params;
}

// --- state -------------------------------------------------------------------------------------------------

// Where a stack has two layers nobody can tell its final norm from a part of each.
static int64_t state_spare(const ModelConfig* config) {
    bool is_short = config->num_dec_layers > 0 && config->num_layers == 2;
    return is_short ? 16 * 2 * config->channels : 0;
}

// Every slice: parameters, gradients, m, v.
static void state_is_that_of_the_slices(void) {
    for (int i = 0; i < NUM_CONFIGS; i++) {
        int32_t L = model_num_blocks(&configs[i]);
        DynapipeCosts* costs = costs_make(&configs[i], 1);
        for (int32_t begin = 0; begin <= L; begin++) {
            for (int32_t end = begin < L ? begin + 1 : L; end <= L; end++) {
                for (int is_last = begin == L; is_last <= (end == L); is_last++) {
                    CostStage stage = stage_of(&costs->model, begin, end, is_last);
                    int64_t asked = 16 * slice_params(&configs[i], begin, end, is_last);
                    int64_t given = cost_state_bytes(&costs->model, &stage);
                    CHECK(given >= asked && given <= asked + state_spare(&configs[i]));
                }
            }
        }
        free(costs);
    }
}

// ZeRO-1 shares m and v: at most one byte more than an equal share.
static void replicas_share_moments(void) {
    for (int i = 0; i < NUM_CONFIGS; i++) {
        DynapipeCosts* costs = costs_make(&configs[i], 3);
        int32_t L = model_num_blocks(&configs[i]);
        for (int32_t cut = 1; cut < L; cut++) {
            for (int32_t s = 0; s < 2; s++) {
                const int32_t begin = s == 0 ? 0 : cut, end = s == 0 ? cut : L;
                CostStage stage = stage_of(&costs->model, begin, end, s == 1);
                int64_t num_params = slice_params(&configs[i], begin, end, s == 1),
                        bytes = cost_state_bytes(&costs->model, &stage);
                int64_t least = 8 * num_params + (8 * num_params + 2) / 3;
                CHECK(bytes >= least && bytes <= least + 1 + state_spare(&configs[i]));
            }
        }
        free(costs);
    }
}

// --- activations -------------------------------------------------------------------------------------------

// Windows of any lengths; of two sides, any beside any. Half of the microbatches begin with a piece.
static ModelBatch draw_counts(Rng* rng, bool has_dec, MbShape* shape) {
    ModelBatch counts = {.num_seqs = rng_between(rng, 1, rng_below(rng, 2) ? 5 : 200)};
    int32_t longest = rng_between(rng, 1, 3000 / counts.num_seqs + 20);
    int32_t longest_dec =
        has_dec ? rng_between(rng, 1, rng_below(rng, 2) ? 100 : 4000 / counts.num_seqs + 20) : 0;
    bool has_piece = rng_below(rng, 2) > 0;
    *shape = (MbShape){0};
    for (int32_t i = 0; i < counts.num_seqs; i++) {
        int32_t n = rng_between(rng, 1, longest), m = has_dec ? rng_between(rng, 1, longest_dec) : 0;
        if (rng_below(rng, 8) == 0) { n = 1; }
        if (has_dec && rng_below(rng, 8) == 0) { m = 1; }
        const PlanSample sample = plan_sample(n, m, 0);
        const int32_t all = plan_sample_tokens(&sample);
        int32_t begin = 0, end = all;
        if (has_piece && i == 0) {
            begin = rng_between(rng, 0, all - 1);
            if (rng_below(rng, 2)) { end = rng_between(rng, begin + 1, all); }
            if (end < all) { counts.num_seqs = 1; }
            counts.kept_tokens = all, counts.kept_begin = begin, counts.kept_enc_tokens = has_dec ? n : 0;
        }
        n = !has_dec ? end - begin : begin == 0 ? n : 0, m = has_dec ? end - begin : 0;
        mb_shape_add_piece(shape, &sample, begin, end);
        counts.max_seq_tokens = n > counts.max_seq_tokens ? n : counts.max_seq_tokens;
        counts.max_dec_seq_tokens = m > counts.max_dec_seq_tokens ? m : counts.max_dec_seq_tokens;
    }
    counts.num_tokens = (int32_t)shape->enc_tokens;
    counts.num_dec_tokens = (int32_t)shape->dec_tokens;
    counts.num_rows = rng_between(rng, 0, has_dec ? counts.num_dec_tokens : counts.num_tokens);
    shape->supervised_tokens = counts.num_rows;
    return counts;
}

// What GPT-2's stages are given beyond what their slices ask for: per part 16 tokens and rows of rounding,
// and for the head alone the slots that only a stage with layers needs.
static int64_t gpt2_spare(const ModelConfig* config, int64_t num_layers, int64_t tokens) {
    int64_t C = config->channels, slot = 4 * (num_layers > 0 ? 0 : 5 * C);
    int64_t row = 4 * (2 * C + 2 + config->padded_vocab), token = 4 * (num_layers * (15 * C + 6) + 6 * C);
    return slot * tokens + 32 * (token + slot) + 32 * row;
}

// T5's: rounding; the slot where a decoder begins, which every stage with its layers is given; the encoder's
// output, which every stage where the encoder ends is; the decoder's, for the head alone.
static int64_t t5_spare(const ModelConfig* config, int64_t num_layers, const ModelBatch* counts) {
    int64_t C = config->channels, I = (int64_t)config->num_heads * config->head_size,
            F = config->ffn_channels;
    int64_t token = 4 * (num_layers + 1) * (8 * C + 8 * I + 3 * F + 2 * config->num_heads + 5);
    int64_t row = 4 * (2 * C + 2 + config->padded_vocab),
            enc_tokens = num_layers > 0 ? counts->num_tokens : 0;
    return 32 * token + 32 * row + 4 * C * (counts->num_dec_tokens + enc_tokens);
}

// Any slice of any kind and any counts: never less than it asks for, and little more. (The buffers of a
// forward that keeps nothing are priced as any block's, by tokens.)
static void activations_are_those_of_the_slices(void) {
    Rng rng = rng_seed(9);
    DynapipeCosts* all[NUM_CONFIGS];
    for (int i = 0; i < NUM_CONFIGS; i++) { all[i] = costs_make(&configs[i], 1); }
    for (int round = 0; round < 400; round++) {
        const ModelConfig* config = &configs[round % NUM_CONFIGS];
        const ModelKind* kind = config->kind;
        int32_t begin, end, last = model_num_blocks(config) - 1;
        bool is_last;
        draw_slice(&rng, model_num_blocks(config), &begin, &end, &is_last);
        DynapipeCosts* costs = all[round % NUM_CONFIGS];
        CostStage stage = stage_of(&costs->model, begin, end, is_last);
        Model model;
        model_init(&model, config, begin, end, is_last, ops);
        for (int32_t i = 0; i < 60; i++) {
            MbShape shape;
            ModelBatch counts = draw_counts(&rng, kind->has_decoder, &shape);
            int64_t asked = model_acts_bytes(&model, &counts, MODEL_KEEP | MODEL_HEAD);
            int64_t given = cost_stored_bytes(&costs->model, &stage, RECOMPUTE_NONE, &shape);
            int64_t spare = kind->has_decoder ? t5_spare(config, end - begin, &counts)
                                              : gpt2_spare(config, end - begin, counts.num_tokens);
            CHECK(given >= asked && given <= asked + spare);
            CHECK_EQ(given, cost_stored_bytes(&costs->model, &stage, RECOMPUTE_FULL, &shape));
            asked = model_acts_bytes(&model, &counts, 0);
            given = cost_forward_bytes(&costs->model, &stage, RECOMPUTE_FULL, &shape);
            CHECK(given >= asked && (begin >= last || given <= asked + spare));
            CHECK(cost_scratch_bytes(&costs->model, &stage, &shape) >= model_scratch_bytes(&model, &counts));
            PlanSample cut = plan_sample(counts.kept_tokens, 0, 0);
            if (kind->has_decoder) { cut = plan_sample(counts.kept_enc_tokens, counts.kept_tokens, 0); }
            for (int is_gradient = 0; is_gradient < 2; is_gradient++) {
                CHECK_EQ(cost_kept_bytes(&costs->model, &stage, &cut, is_gradient),
                         model_kept_bytes(&model, &counts, is_gradient));
            }
        }
        model_free(&model);
    }
    for (int i = 0; i < NUM_CONFIGS; i++) { free(all[i]); }
}

// The activation after a slice; after the last cross-attention there is only the decoder's, and both are
// priced.
static void boundaries_are_those_of_the_slices(void) {
    Rng rng = rng_seed(10);
    for (int i = 0; i < NUM_CONFIGS; i++) {
        const ModelKind* kind = configs[i].kind;
        int32_t L = model_num_blocks(&configs[i]);
        DynapipeCosts* costs = costs_make(&configs[i], 1);
        for (int32_t end = 1; end <= L; end++) {
            CostStage stage = stage_of(&costs->model, end - 1, end, false);
            Model model;
            model_init(&model, &configs[i], end - 1, end, false, ops);
            for (int k = 0; k < 50; k++) {
                MbShape shape;
                ModelBatch counts = draw_counts(&rng, kind->has_decoder, &shape);
                int64_t asked = model_boundary_bytes(&model, &counts, 1);
                int64_t given = cost_boundary_bytes(&costs->model, &stage, &shape);
                int64_t row = 4 * configs[i].channels;
                int64_t more = kind->has_decoder && end >= L - 1 ? row * (counts.num_tokens + 16) : 0;
                CHECK(given >= asked && given <= asked + 2 * 16 * row + more);
            }
            model_free(&model);
        }
        free(costs);
    }
}

// The rest of what is sent: the embedding's copies, and the biases of a stack.
static void tied_gradients_are_those_of_the_kind(void) {
    const int64_t wte = 256 * 32 * 4, biases = 32 * 2 * 4;
    const int64_t tied[NUM_CONFIGS] = {wte, 0, wte, wte, wte, wte, 256 * 48 * 4};
    const int64_t head[NUM_CONFIGS] = {4 * wte, 0, 4 * wte, 4 * wte, 0, 4 * wte, 0};
    const int64_t stack[NUM_CONFIGS] = {0, 0, 0, biases, biases, 0, biases};
    for (int i = 0; i < NUM_CONFIGS; i++) {
        DynapipeCosts* costs = costs_make(&configs[i], 1);
        CHECK_EQ(costs->model.tied_param_bytes, tied[i]);
        CHECK_EQ(costs->model.tied_head_state_bytes, head[i]);
        CHECK_EQ(costs->model.tied_stack_bytes, stack[i]);
        free(costs);
    }
}

// The estimate's own bytes, which ./dynapipe plans with, are these, but for what differs by where the decoder
// begins and ends.
static void estimated_bytes_are_near(void) {
    Rng rng = rng_seed(11);
    for (int i = T5; i < NUM_CONFIGS; i++) {
        const ModelConfig* config = &configs[i];
        int32_t L = model_num_blocks(config);
        CostAnalytic about = {.num_layers = config->num_layers,
                              .num_dec_layers = config->num_dec_layers,
                              .by_blocks = true,
                              .channels = config->channels,
                              .num_heads = config->num_heads,
                              .head_size = config->head_size,
                              .ffn_channels = config->ffn_channels,
                              .gated = config->gated,
                              .tied_head = config->tied_head,
                              .padded_vocab = config->padded_vocab,
                              .bytes_per_value = 4,
                              .flops_per_ns = 1,
                              .attention_flops_per_ns = 1,
                              .bytes_per_ns = 1};
        CostModel* estimate = calloc(1, sizeof *estimate);
        DynapipeCosts* costs = costs_make(config, 1);
        cost_model_analytic(estimate, &about);
        CHECK_OK(cost_model_check(estimate));
        for (int k = 0; k < 300; k++) {
            int32_t begin, end;
            bool is_last;
            MbShape shape;
            draw_counts(&rng, true, &shape);
            draw_slice(&rng, L, &begin, &end, &is_last);
            CostStage stage = stage_of(estimate, begin, end, is_last);
            for (RecomputeMode mode = RECOMPUTE_NONE; mode <= RECOMPUTE_FULL; mode += RECOMPUTE_FULL) {
                double stored = (double)cost_stored_bytes(&costs->model, &stage, mode, &shape);
                double forward = (double)cost_forward_bytes(&costs->model, &stage, mode, &shape);
                double state = (double)cost_state_bytes(&costs->model, &stage);
                double rounding = 16.0 * 4 * (config->padded_vocab + 100 * config->channels);
                // (a part of a decoder's layer is estimated with what the whole has once)
                bool is_part = end > plan_chain_first_dec(&estimate->chain) && end - begin < 3;
                if (is_part) {
                    CHECK((double)cost_stored_bytes(estimate, &stage, mode, &shape) >= 0.98 * stored);
                }
                if (is_part) { continue; }
                CHECK_NEAR(cost_stored_bytes(estimate, &stage, mode, &shape), stored,
                           0.02 * stored + rounding);
                CHECK_NEAR(cost_forward_bytes(estimate, &stage, mode, &shape), forward,
                           0.02 * forward + rounding);
                CHECK_NEAR(cost_state_bytes(estimate, &stage), state,
                           i == UMT5 ? 0.02 * state : (double)state_spare(config));
            }
            double scratch = (double)cost_scratch_bytes(&costs->model, &stage, &shape);
            CHECK_NEAR(cost_scratch_bytes(estimate, &stage, &shape), scratch, scratch + 250000);
            double boundary = (double)cost_boundary_bytes(&costs->model, &stage, &shape);
            CHECK_NEAR(cost_boundary_bytes(estimate, &stage, &shape), boundary,
                       0.02 * boundary + 2 * 16.0 * 4 * config->channels);
        }
        free(costs);
        free(estimate);
    }
}

// --- a shared head -----------------------------------------------------------------------------------------

// Stage 1 has all layers and feeds the head (and has what of it lies before `begin`), stage 2 this share.
static Placement shared_placement(int32_t L, HeadSplit head, int32_t begin, int32_t end) {
    const int16_t begins[] = {0, 0, (int16_t)begin, (int16_t)end, HEAD_UNITS};
    Placement placement = {.num_chunks = 1, .head = (uint8_t)head};
    placement.chunks[0] = (BlockRange){0, L};
    placement.stage_of[0] = 1;
    memcpy(placement.head_begin, begins, sizeof begins);
    return placement;
}

static ModelPart shared_part(const ModelConfig* config, const Placement* placement, int32_t stage) {
    ModelPart part = {.stage = stage, .has_share = placement_has_share(placement, stage)};
    int32_t begin[5];
    for (int32_t s = 0; s <= 4; s++) { begin[s] = placement->head_begin[s]; }
    part.head = head_of_places(
        config, placement->head == HEAD_BY_ROWS ? MODEL_HEAD_BY_ROWS : MODEL_HEAD_BY_VOCAB, 4, begin);
    if (stage == 1) {
        part.num_ranges = 1;
        part.ranges[0] = (ModelRange){0, model_num_blocks(config), MODEL_FEEDS_HEAD};
    }
    return part;
}

// Of the chunk that feeds the head, of what travels, and of a share: never less than is asked for.
static void check_shared(const DynapipeCosts* costs, const CostTable* table, Model* feeds, Model* share,
                         const Placement* placement, const DynapipeBatch* asked, const MbShape* shape) {
    const DynapipeModel_v1* api = &dynapipe_llmc_model;
    const int keep = DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD;
    CostStage stage = cost_chunk_make(&costs->model, placement, 0);
    DynapipeBatch rows = *asked;
    CostParts parts;
    CostJobs jobs;
    cost_parts(&parts, table, RECOMPUTE_NONE, shape);
    cost_jobs_of_share(&jobs, &costs->model, cost_share_of(placement, 2), &parts);
    CHECK(cost_stored_bytes(&costs->model, &stage, RECOMPUTE_NONE, shape) >=
          api->acts_bytes(feeds, asked, keep));
    CHECK(cost_forward_bytes(&costs->model, &stage, RECOMPUTE_FULL, shape) >=
          api->acts_bytes(feeds, asked, 0));
    CHECK(cost_boundary_bytes(&costs->model, &stage, shape) >= api->boundary_bytes(feeds, asked, 1));
    if (placement->head == HEAD_BY_ROWS) {
        int32_t begin, end;
        executor_loss_rows(placement, 2, asked->num_rows, &begin, &end);
        rows.num_rows = end - begin;
    } else {
        CHECK(jobs.part_bytes >= api->part_bytes(share, asked, keep));
        CHECK(jobs.factor_bytes >= api->factor_bytes(share, asked));
    }
    CHECK(jobs.boundary_bytes >= api->boundary_bytes(share, &rows, 0));
    CHECK(jobs.stored_bytes >= api->acts_bytes(share, &rows, keep));
    CHECK(jobs.scratch_bytes >= api->scratch_bytes(share, &rows));
}

// Stages 1 and 2 of 4 have something.
static void check_placed(const ModelConfig* config, const DynapipeCosts* costs, const CostTable* table,
                         const Placement* placement, Rng* rng) {
    Model all[2];
    CostRank ranks[4];
    cost_ranks_make(ranks, &costs->model, placement, 4);
    for (int32_t s = 1; s < 3; s++) {
        const ModelPart part = shared_part(config, placement, s);
        model_init_counts(&all[s - 1], config, &part, ops);
        int64_t given = cost_rank_state_bytes(&costs->model, &ranks[s]), asked = 16 * all[s - 1].num_params;
        CHECK(given >= asked && given <= asked + state_spare(config) + 16);
    }
    Model feeds = model_view(&all[0], 0), share = model_share_view(&all[1]);
    for (int n = 0; n < 40; n++) {
        MbShape shape;
        const DynapipeBatch asked = draw_counts(rng, config->kind->has_decoder, &shape);
        check_shared(costs, table, &feeds, &share, placement, &asked, &shape);
    }
    for (int i = 0; i < 2; i++) { model_free(&all[i]); }
}

static void shared_heads_get_what_they_ask_for(void) {
    static const int32_t shares[][2] = {{0, 1024}, {0, 512}, {512, 640}, {3, 1021}, {1000, 1024}, {7, 8}};
    static CostTable table;
    Rng rng = rng_seed(12);
    for (int i = 0; i < NUM_CONFIGS; i++) {
        DynapipeCosts* costs = costs_make(&configs[i], 1);
        cost_table_init(&table, &costs->model);
        CHECK_EQ(costs->model.head_vocab, configs[i].padded_vocab);
        for (int k = 0; k < 12; k++) {
            Placement placement = shared_placement(model_num_blocks(&configs[i]),
                                                   k % 2 == 0 ? HEAD_BY_ROWS : HEAD_BY_VOCABULARY,
                                                   shares[k / 2][0], shares[k / 2][1]);
            check_placed(&configs[i], costs, &table, &placement, &rng);
        }
        free(costs);
    }
}

int main(void) {
    ops = ops_create(1);
    RUN(configs_are_known);
    RUN(state_is_that_of_the_slices);
    RUN(replicas_share_moments);
    RUN(activations_are_those_of_the_slices);
    RUN(boundaries_are_those_of_the_slices);
    RUN(tied_gradients_are_those_of_the_kind);
    RUN(estimated_bytes_are_near);
    RUN(shared_heads_get_what_they_ask_for);
    ops_free(ops);
    return test_end();
}
