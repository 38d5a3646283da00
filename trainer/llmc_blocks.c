// llmc_blocks.c -- ranges of this repository's models, made to be measured or checked and given back.
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "../llmc/device_values.h"
#include "../llmc/llmc_error.h"
#include "../llmc/models.h"
#include "../llmc/optimizer.h"
#include "llmc_model.h"

// A range while it lives. The view stands first: it is what the plugin's calls get.
typedef struct {
    Model view, model;
    DynapipeTied tied[MODEL_MAX_TIED];
    Optimizer optimizer;
    bool has_optimizer;
} Range;

// --- values ------------------------------------------------------------------------------------------------

// By place in the whole model. The usual initialisation draws all of it for every slice: seconds, for a large
// one.
static void fill_values(const Model* model) {
    enum { PIECE = 1 << 20 };
    float* piece = llmc_alloc(PIECE * sizeof *piece, "parameters to measure");
    for (int t = 0; t < model->num_slices; t++) {
        const TensorSlice* slice = &model->slices[t];
        for (int64_t begin = 0; begin < slice->num_values; begin += PIECE) {
            int64_t n = slice->num_values - begin < PIECE ? slice->num_values - begin : PIECE;
            uint64_t place = (uint64_t)(slice->file_offset + begin);
            for (int64_t i = 0; i < n; i++) {
                uint32_t mixed = (uint32_t)(place + (uint64_t)i) * 2654435761u;
                piece[i] = (float)((mixed >> 8) % 2001) * 2e-5f - 0.02f;
            }
            device_values_upload(model->ops, model->params + slice->offset + begin, piece, (size_t)n);
        }
    }
    free(piece);
}

static void make_values(Model* model, const ModelConfig* config) {
    enum { FEW_PARAMS = 4000000, SEED = 42 };
    model_alloc_grads(model);
    if (model_num_params(config) <= FEW_PARAMS) {
        config->kind->init_random(model, SEED);
    } else {
        fill_values(model);
    }
}

// --- ranges ------------------------------------------------------------------------------------------------

// The place among MODEL_HEAD_PLACES at which an id of the padded vocabulary begins.
static int32_t place_of(const ModelConfig* config, int32_t id) {
    return (int32_t)(((int64_t)id * MODEL_HEAD_PLACES + config->padded_vocab - 1) / config->padded_vocab);
}

// As if other stages had what it has not. The one that feeds the head has no share itself.
static ModelPart part_of(const ModelConfig* config, DynapipeRange blocks) {
    bool by_vocabulary = blocks.head == DYNAPIPE_HEAD_BY_VOCABULARY;
    ModelPart part = {.stage = 1};
    int32_t begin[4] = {0, 0, MODEL_HEAD_PLACES, MODEL_HEAD_PLACES};
    if (by_vocabulary) {
        begin[1] = place_of(config, blocks.vocab_begin);
        begin[2] = place_of(config, blocks.vocab_end);
    } else if (blocks.head == DYNAPIPE_HEAD_FEEDS) {
        begin[1] = MODEL_HEAD_PLACES;
    }
    bool is_shared = blocks.head != DYNAPIPE_HEAD_AS_BLOCKS;
    dynapipe_llmc_part(&part, config, &blocks, 1);
    dynapipe_llmc_head(&part.head,
                       blocks.head == DYNAPIPE_HEAD_BY_ROWS ? DYNAPIPE_HEAD_BY_ROWS
                       : is_shared                          ? DYNAPIPE_HEAD_BY_VOCABULARY
                                                            : DYNAPIPE_HEAD_AS_BLOCKS,
                       begin, 3);
    return part;
}

static int make(void* ctx, DynapipeRange blocks, int has_values, void** model, DynapipeParams_v1* params) {
    const LlmcBlocks* about = (const LlmcBlocks*)ctx;
    Range* range = (Range*)calloc(1, sizeof *range);
    if (range == NULL) { return -1; }
    const ModelPart part = part_of(&about->config, blocks);
    if (has_values) {
        model_init_part(&range->model, &about->config, &part, about->ops);
        make_values(&range->model, &about->config);
    } else {
        model_init_counts(&range->model, &about->config, &part, about->ops);
    }
    range->view = part.num_ranges > 0 ? model_view(&range->model, 0) : model_share_view(&range->model);
    *params = dynapipe_llmc_params(&range->model, range->tied);
    *model = &range->view;
    return 0;
}

static void drop(void* ctx, void* model) {
    (void)ctx;
    Range* range = (Range*)model;
    if (range->has_optimizer) { optimizer_free(&range->optimizer); }
    model_free(&range->model);
    free(range);
}

// A step of no length, behind the norm of the gradients.
static int update(void* ctx, void* model) {
    (void)ctx;
    Range* range = (Range*)model;
    Model* values = &range->model;
    if (!range->has_optimizer) {
        optimizer_init(&range->optimizer, OPTIMIZER_ADAMW, 0, values->num_params, 0, 0, values->ops);
        range->has_optimizer = true;
    }
    double sum = optimizer_sum_of_squares(&range->optimizer, values);
    optimizer_update(&range->optimizer, values, 0, 1, optimizer_clip_scale(sum, 1));
    return 0;
}

// --- the whole ---------------------------------------------------------------------------------------------

// "gpt2 C 768 NH 12 Vp 50304 threads 1", on a GPU "gpt2 C 768 NH 12 Vp 50304 bf16 NVIDIA_H200"; "t5 C 512 NH
// 6 HS 64 F 1024 gated Vp 32128 threads 1".
static void write_signature(char* out, size_t out_bytes, const ModelConfig* config, const OpsContext* ops) {
    char shape[160];
    models_signature(shape, sizeof shape, config);
    int n = snprintf(out, out_bytes, "%s Vp %d ", shape, config->padded_vocab);
    if (n < 0 || (size_t)n >= out_bytes) { return; }
    if (ops_stream(ops) == NULL) {
        snprintf(out + n, out_bytes - (size_t)n, "threads %d", ops_num_threads(ops));
        return;
    }
    n += snprintf(out + n, out_bytes - (size_t)n, "%s ", sizeof(floatX) == 2 ? "bf16" : "fp32");
    const char* name = ops_device_name(ops);
    for (; *name != '\0' && (size_t)n + 1 < out_bytes; name++) {
        out[n++] = isalnum((unsigned char)*name) || *name == '-' || *name == '.' ? *name : '_';
        out[n] = '\0';
    }
}

DynapipeBlocks_v1 dynapipe_llmc_blocks(LlmcBlocks* ctx, const ModelConfig* config, OpsContext* ops) {
    // m and v in float32, and a master where parameters are not
    const int32_t optimizer_floats = sizeof(floatX) < sizeof(float) ? 3 : 2;
    ctx->config = *config;
    ctx->ops = ops;
    write_signature(ctx->signature, sizeof ctx->signature, config, ops);
    return (DynapipeBlocks_v1){
        .api = &dynapipe_llmc_model,
        .ctx = ctx,
        .signature = ctx->signature,
        .num_layers = config->num_layers,
        .num_dec_layers = config->num_dec_layers,
        .vocab = config->vocab,
        .padded_vocab = config->padded_vocab,
        .max_seq_tokens = config->kind->has_decoder ? 0 : config->max_seq_len,
        .optimizer_bytes = optimizer_floats * (int32_t)sizeof(float),
        .make = make,
        .drop = drop,
        .update = update,
    };
}
