// test_check_llmc.c -- this repository's own models pass dynapipe_check_model().
#include <stdlib.h>

#include "../dynapipe_plugin/adapters/llmc_model.h"
#include "../dynapipe_plugin/run/session.h"
#include "../llmc/gpt2.h"
#include "../llmc/llmc_error.h"
#include "../llmc/t5.h"
#include "test.h"

static Dynapipe* dp;

typedef struct {
    ModelConfig config;
    OpsContext* ops;
    float dropout;
} Maker;

typedef struct {
    Model model;
    DynapipeTied tied[MODEL_MAX_TENSORS];
} Made;

static int make(void* ctx, DynapipeRange blocks, int has_values, void** model, DynapipeParams_v1* params) {
    const Maker* maker = ctx;
    Made* made = calloc(1, sizeof *made);
    int layer_begin, layer_end;
    bool is_last;
    dynapipe_llmc_layers(&layer_begin, &layer_end, &is_last, &maker->config, blocks);
    model_init(&made->model, &maker->config, layer_begin, layer_end, is_last, maker->ops);
    made->model.dropout = maker->dropout;
    if (has_values) {
        model_alloc_grads(&made->model);
        maker->config.kind->init_random(&made->model, 42);
    }
    *params = dynapipe_llmc_params(&made->model, made->tied);
    *model = made;
    return 0;
}

static void drop(void* ctx, void* model) {
    (void)ctx;
    model_free(&((Made*)model)->model);
    free(model);
}

static void passes(const ModelKind* kind, const char* descriptor, float dropout) {
    char error[LLMC_ERROR_CHARS];
    Maker maker = {.ops = ops_create(1), .dropout = dropout};
    CHECK(model_parse(&maker.config, kind, descriptor, 50, 32, error));
    DynapipeBlocks_v1 blocks = {.api = &dynapipe_llmc_model,
                                .ctx = &maker,
                                .signature = descriptor,
                                .num_layers = maker.config.num_layers,
                                .num_dec_layers = maker.config.num_dec_layers,
                                .vocab = 50,
                                .max_seq_tokens = 32,
                                .make = make,
                                .drop = drop};
    CHECK_EQ(dynapipe_use_stream(dp, ops_stream(maker.ops)), 0);
    if (dynapipe_check_model(dp, &blocks, stdout) != 0) {
        printf("%s: %s\n", descriptor, dynapipe_error());
        test_failures++;
    }
    ops_free(maker.ops);
}

static void gpt2_passes(void) {
    passes(&gpt2_kind, "l3c32h4", 0);
}

static void gpt2_with_dropout_passes(void) {
    passes(&gpt2_kind, "l2c32h4", 0.2F);
}

static void t5_passes(void) {
    passes(&t5_kind, "t5:l2d3c32h4", 0);
}

static void flan_t5_with_dropout_passes(void) {
    passes(&t5_kind, "flan-t5:l2c32h4", 0.2F);
}

int main(void) {
    Dynapipe session = {.num_stages = 1, .num_replicas = 1};  // without MPI
    dp = &session;
    RUN(gpt2_passes);
    RUN(gpt2_with_dropout_passes);
    RUN(t5_passes);
    RUN(flan_t5_with_dropout_passes);
    session_device_close(dp);
    return test_end();
}
