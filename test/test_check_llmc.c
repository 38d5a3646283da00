// test_check_llmc.c -- this repository's own models pass dynapipe_check_model(); test/test_cuda_check.sh runs
// it on the emulator, too.
#include <string.h>

#include "../dynapipe_plugin/run/session.h"
#include "../llmc/kinds.h"
#include "../llmc/llmc_error.h"
#include "../trainer/llmc_model.h"
#include "test.h"

static Dynapipe* dp;
static OpsContext* ops;

// The trainer's blocks, with dropout: which must be the same wherever a token stands.
typedef struct {
    LlmcBlocks inner;
    DynapipeBlocks_v1 blocks;
    float dropout;
} Maker;

static int make(void* ctx, DynapipeRange blocks, int has_values, void** model, DynapipeParams_v1* params) {
    Maker* maker = ctx;
    int code = maker->blocks.make(maker->blocks.ctx, blocks, has_values, model, params);
    if (code == 0) { ((Model*)*model)->dropout = maker->dropout; }
    return code;
}

static void drop(void* ctx, void* model) {
    Maker* maker = ctx;
    maker->blocks.drop(maker->blocks.ctx, model);
}

static void passes(const ModelKind* kind, const char* descriptor, float dropout) {
    ModelConfig config;
    CHECK(model_parse(&config, kind, descriptor, 50, 32));
    Maker maker = {.dropout = dropout};
    maker.blocks = dynapipe_llmc_blocks(&maker.inner, &config, ops);
    DynapipeBlocks_v1 blocks = maker.blocks;
    blocks.ctx = &maker;
    blocks.make = make;
    blocks.drop = drop;
    if (dynapipe_check_model(dp, &blocks, stdout) != 0) {
        printf("%s: %s\n", descriptor, dynapipe_error());
        test_failures++;
    }
}

static void gpt2_passes(void) {
    passes(&gpt2_kind, "l3c32h4", 0);
}

static void gpt2_with_dropout_passes(void) {
    passes(&gpt2_kind, "l2c32h4", 0.2F);
}

static const DynapipeModel_v1* gpt2_api;
static DynapipeModel_v1 wrong;

static int wrong_combine(void* model, const DynapipeBatch* batch, int32_t num_parts, const void* const* parts,
                         void* dout, void* const* factors, float* losses) {
    return gpt2_api->combine(model, batch, num_parts - (num_parts > 1), parts, dout, factors, losses);
}

static void a_forgotten_share_is_named(void) {
    ModelConfig config;
    LlmcBlocks inner;
    CHECK(model_parse(&config, &gpt2_kind, "l2c32h4", 50, 32));
    DynapipeBlocks_v1 blocks = dynapipe_llmc_blocks(&inner, &config, ops);
    gpt2_api = blocks.api;
    wrong = *blocks.api;
    wrong.combine = wrong_combine;
    blocks.api = &wrong;
    CHECK(dynapipe_check_model(dp, &blocks, NULL) != 0);
    CHECK(strstr(dynapipe_error(), "the head shared by vocabulary: losses") != NULL);
}

static void t5_passes(void) {
    passes(&t5_kind, "t5:l2d3c32h4", 0);
}

static void flan_t5_with_dropout_passes(void) {
    passes(&t5_kind, "flan-t5:l2c32h4", 0.2F);
}

static void umt5_with_biases_in_every_layer_passes(void) {
    passes(&t5_kind, "umt5:l2d2c32h4", 0.2F);
}

// On a GPU, the whole session; else without MPI.
int main(int argc, char** argv) {
#ifdef DYNAPIPE_CUDA
    CHECK_EQ(dynapipe_open(&dp, &argc, &argv, NULL), 0);
#else
    Dynapipe session = {.num_stages = 1, .num_replicas = 1};
    dp = &session;
    (void)argc;
    (void)argv;
#endif
    ops = ops_create(1);
    CHECK_EQ(dynapipe_use_stream(dp, ops_stream(ops)), 0);
    RUN(gpt2_passes);
    RUN(gpt2_with_dropout_passes);
    RUN(a_forgotten_share_is_named);
    RUN(t5_passes);
    RUN(flan_t5_with_dropout_passes);
    RUN(umt5_with_biases_in_every_layer_passes);
#ifdef DYNAPIPE_CUDA
    dynapipe_close(dp);
#else
    session_device_close(dp);
#endif
    ops_free(ops);
    return test_end();
}
