// test_cost_analytic.c -- the stand-in: GPT-2 and T5 by their flops, counted here again, and its shares of
// work.
#include "../dynapipe_plugin/plan/planner.h"
#include "../dynapipe_plugin/plan/types.h"
#include "cost_one.h"
#include "test.h"

static CostModel model, other;

// The stand-in: sane, monotone, doubling the rates halves the time, and its bytes are llmc/gpt2's.
static void analytic_gpt_is_sane(void) {
    CostAnalytic about = {.num_layers = 12,
                          .channels = 768,
                          .num_heads = 12,
                          .padded_vocab = 50304,
                          .max_tokens = 1024,
                          .bytes_per_value = 4,
                          .flops_per_ns = 40,
                          .attention_flops_per_ns = 20,
                          .bytes_per_ns = 10,
                          .comm_latency_ns = 5000,
                          .comm_bytes_per_ns = 5,
                          .num_replicas = 2,
                          .zero_stage = 1};
    LayerRange layers = {3, 6};
    CostStage middle = cost_stage_make(&model, &layers, 1, 4);
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
    CHECK_EQ(cost_state_bytes(&model, &middle), 3 * layer_params * (8 + 4));
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

typedef struct {
    double encoder, decoder, cross_keys, head;  // shares of a forward; cross_keys is part of the decoder's
} Shares;

static Shares shares_of(const CostAnalytic* about, int32_t enc_tokens, int32_t dec_tokens) {
    cost_model_analytic(&model, about);
    CHECK_OK(cost_model_check(&model));
    MbShape shape = {0}, keys = {.enc_tokens = enc_tokens};
    mb_shape_add(&shape, enc_tokens, dec_tokens, dec_tokens);
    double enc = about->num_layers * part_flops(PART_ENC_LAYER, JOB_F, &shape);
    double dec = about->num_dec_layers * part_flops(PART_DEC_LAYER, JOB_F, &shape);
    double cross = about->num_dec_layers * part_flops(PART_DEC_LAYER, JOB_F, &keys);
    double head = part_flops(PART_HEAD, JOB_F, &shape), sum = enc + dec + head;
    return (Shares){enc / sum, dec / sum, cross / sum, head / sum};
}

// What is known of the families, roughly: an XL's encoder has 67 % at 512 + 114 tokens, 77 % at 512 + 32,
// ByT5 small's 88 %; keys and values of cross-attention are 12 % of an XL at 512 + 114.
static void t5_shares_are_those_known(void) {
    CostAnalytic xl = flops_only(2048, 32, 5120, 24, 24, true, 32128);
    CostAnalytic byt5 = flops_only(1472, 6, 3584, 12, 4, true, 384);
    Shares longer = shares_of(&xl, 512, 114), shorter = shares_of(&xl, 512, 32);
    CHECK_NEAR(longer.encoder, 0.67, 0.035);
    CHECK_NEAR(longer.cross_keys, 0.12, 0.01);
    CHECK_NEAR(shorter.encoder, 0.77, 0.035);
    CHECK_NEAR(shares_of(&byt5, 512, 114).encoder, 0.88, 0.035);
    // counted by hand
    CHECK_NEAR(longer.encoder, 0.695, 0.001);
    CHECK_NEAR(longer.cross_keys, 0.116, 0.001);
    CHECK_NEAR(longer.head, 0.008, 0.001);
    CHECK_NEAR(shorter.encoder, 0.804, 0.001);
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
        CHECK_NEAR(part_flops(PART_ENC_LAYER, JOB_F, &shape), enc + enc_attention, 1);
        CHECK_NEAR(part_flops(PART_ENC_LAYER, JOB_B, &shape), enc + 2.5 * enc_attention, 1);
        CHECK_NEAR(part_flops(PART_ENC_LAYER, JOB_W, &shape), enc, 1);
        CHECK_NEAR(part_flops(PART_DEC_LAYER, JOB_F, &shape), dec + dec_attention, 1);
        CHECK_NEAR(part_flops(PART_DEC_LAYER, JOB_B, &shape), dec + 2.5 * dec_attention, 1);
        CHECK_NEAR(part_flops(PART_DEC_LAYER, JOB_W, &shape), dec, 1);
        for (JobKind kind = JOB_F; kind <= JOB_W; kind++) {
            CHECK_NEAR(part_flops(PART_HEAD, kind, &shape), 2 * C * V * R, 1);
        }
    }
}

static void t5_is_sane(void) {
    CostAnalytic about = flops_only(512, 8, 2048, 6, 6, false, 32128);
    about.flops_per_ns = 40, about.attention_flops_per_ns = 20, about.bytes_per_ns = 10;
    about.launch_ns = 1000, about.tied_head = true;
    LayerRange layers = {4, 8};
    MbShape shape = {0};
    mb_shape_add(&shape, 512, 114, 114);
    cost_model_analytic(&model, &about);
    CHECK_OK(cost_model_check(&model));
    CHECK(model.num_enc_layers == 6 && model.num_dec_layers == 6);
    CHECK(cost_mode_offered(&model, RECOMPUTE_FULL) && !cost_mode_offered(&model, RECOMPUTE_SELECTIVE));
    CostStage middle = cost_stage_make(&model, &layers, 1, 3);
    int64_t forward_ns = cost_job_ns(&model, &middle, JOB_F, RECOMPUTE_NONE, &shape);
    CHECK_EQ(cost_job_ns(&model, &middle, JOB_R, RECOMPUTE_NONE, &shape), 0);
    CHECK_EQ(cost_job_ns(&model, &middle, JOB_R, RECOMPUTE_FULL, &shape), forward_ns);
    CHECK(cost_forward_bytes(&model, &middle, RECOMPUTE_FULL, &shape) <
          cost_stored_bytes(&model, &middle, RECOMPUTE_FULL, &shape) / 2);
    // a decoder layer is priced by both lengths, an encoder layer by its own alone
    MbShape more_enc = shape, more_dec = shape;
    more_enc.enc_tokens += 100, more_dec.dec_tokens += 100;
    CHECK(part_flops(PART_DEC_LAYER, JOB_F, &more_enc) > part_flops(PART_DEC_LAYER, JOB_F, &shape));
    CHECK(part_flops(PART_ENC_LAYER, JOB_F, &more_dec) == part_flops(PART_ENC_LAYER, JOB_F, &shape));
    about.flops_per_ns *= 2, about.attention_flops_per_ns *= 2, about.bytes_per_ns *= 2, about.launch_ns /= 2;
    cost_model_analytic(&other, &about);
    CHECK_NEAR(cost_job_ns(&other, &middle, JOB_F, RECOMPUTE_NONE, &shape), forward_ns / 2, 2);
}

int main(void) {
    RUN(analytic_gpt_is_sane);
    RUN(t5_shares_are_those_known);
    RUN(t5_flops_are_those_of_its_products);
    RUN(t5_is_sane);
    return test_end();
}
