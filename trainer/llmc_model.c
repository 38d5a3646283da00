// llmc_model.c -- this repository's models for the plugin: model table, parameters, ranges to measure or
// check.
#include "llmc_model.h"

#include <ctype.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include "../llmc/model.h"
#include "../llmc/llmc_error.h"
#include "../llmc/kinds.h"
#include "../llmc/optimizer.h"

// The view must be first: it is the argument of the plugin's calls.
typedef struct {
    Model view, model;
    DynapipeTied tied[MODEL_MAX_TIED];
    Optimizer optimizer;
    bool has_optimizer;
} Range;

// --- values ------------------------------------------------------------------------------------------------

// Values by their place in the whole model. The usual initialisation draws the whole model for every slice,
// which takes seconds for a large one.
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
        model_init_random(model, SEED);
    } else {
        fill_values(model);
    }
}

// --- ranges ------------------------------------------------------------------------------------------------

// As if other stages had the remaining blocks.
static ModelPart part_of(const ModelConfig* config, DynapipeRange blocks) {
    ModelPart part = {.stage = 1};
    bool by_rows = blocks.head == DYNAPIPE_HEAD_BY_ROWS;
    dynapipe_llmc_part(&part, config, &blocks, 1);
    if (blocks.head == DYNAPIPE_HEAD_AS_BLOCKS) { return part; }
    part.head = (ModelHead){.sharing = by_rows ? MODEL_HEAD_BY_ROWS : MODEL_HEAD_BY_VOCAB, .num_stages = 3};
    part.head.begin[1] = by_rows ? 0 : blocks.vocab_begin;
    part.head.begin[2] = by_rows ? MODEL_HEAD_PLACES : blocks.vocab_end;
    part.head.begin[3] = by_rows ? MODEL_HEAD_PLACES : config->padded_vocab;
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

// A step with learning rate 0, after the gradient norm.
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
        .layer_blocks = config->kind->stacks[0].num_blocks,
        .dec_layer_blocks = config->kind->stacks[1].num_blocks,
        .last_in_rows = 1,
        .vocab = config->vocab,
        .padded_vocab = config->padded_vocab,
        .max_seq_tokens = config->kind->has_decoder ? 0 : config->max_seq_len,
        .optimizer_bytes = optimizer_floats * (int32_t)sizeof(float),
        .make = make,
        .drop = drop,
        .update = update,
    };
}

// --- the model table --------------------------------------------------------------------------------------

static int64_t acts_bytes(void* model, const DynapipeBatch* batch, int flags) {
    return model_acts_bytes(model, batch, flags);
}

static int64_t scratch_bytes(void* model, const DynapipeBatch* batch) {
    return model_scratch_bytes(model, batch);
}

static int64_t boundary_bytes(void* model, const DynapipeBatch* batch, int is_behind) {
    return model_boundary_bytes(model, batch, is_behind);
}

static int64_t kept_bytes(void* model, const DynapipeBatch* batch, int is_gradient) {
    return model_kept_bytes(model, batch, is_gradient);
}

static int forward(void* model, const DynapipeBatch* batch, const void* in, void* out, void* acts,
                   void* scratch, float* losses, int flags) {
    model_forward(model, batch, in, out, acts, scratch, losses, flags);
    return 0;
}

static int backward_inputs(void* model, const DynapipeBatch* batch, const void* in, void* acts,
                           const void* dout, void* din, void* scratch) {
    model_backward_inputs(model, batch, in, acts, dout, din, scratch);
    return 0;
}

static int backward_weights(void* model, const DynapipeBatch* batch, void* acts, const void* dout,
                            void* scratch) {
    model_backward_weights(model, batch, acts, dout, scratch);
    return 0;
}

static void zero_gradients(void* model) {
    model_zero_grads(model);
}

static int finish(void* model) {
    ops_sync(((const Model*)model)->ops);
    return 0;
}

static int64_t cache_bytes(void* model, const DynapipeCache* cache) {
    return model_cache_bytes(model, cache);
}

static int64_t infer_bytes(void* model, const DynapipeBatch* batch) {
    return model_infer_bytes(model, batch);
}

static int infer(void* model, const DynapipeBatch* batch, const DynapipeCache* cache, const void* in,
                 void* out, void* scratch, int32_t* next) {
    model_infer(model, batch, cache, in, out, scratch, next);
    return 0;
}

static int64_t part_bytes(void* model, const DynapipeBatch* batch, int flags) {
    return head_part_bytes(&((const Model*)model)->config, batch->num_rows, flags);
}

static int64_t factor_bytes(void* model, const DynapipeBatch* batch) {
    (void)model;
    return head_factor_bytes(batch->num_rows);
}

static int combine(void* model, const DynapipeBatch* batch, int32_t num_parts, const void* const* parts,
                   void* dout, void* const* factors, float* losses) {
    head_combine(model, batch, num_parts, parts, dout, factors, losses);
    return 0;
}

static int64_t pick_bytes(void* model, const DynapipeBatch* batch) {
    (void)model;
    return head_pick_bytes(batch);
}

static int pick(void* model, const DynapipeBatch* batch, int32_t num_parts, const void* const* picks,
                int32_t* next) {
    head_pick(model, batch, num_parts, picks, next);
    return 0;
}

const DynapipeModel_v1 dynapipe_llmc_model = {
    .name = "llmc",
    .acts_bytes = acts_bytes,
    .scratch_bytes = scratch_bytes,
    .boundary_bytes = boundary_bytes,
    .forward = forward,
    .backward_inputs = backward_inputs,
    .backward_weights = backward_weights,
    .zero_gradients = zero_gradients,
    .finish = finish,
    .cache_bytes = cache_bytes,
    .infer_bytes = infer_bytes,
    .infer = infer,
    .part_bytes = part_bytes,
    .factor_bytes = factor_bytes,
    .combine = combine,
    .pick_bytes = pick_bytes,
    .pick = pick,
    .kept_bytes = kept_bytes,
};

// --- parameters, blocks ----------------------------------------------------------------------------------

DynapipeParams_v1 dynapipe_llmc_params(const Model* model, DynapipeTied tied[MODEL_MAX_TIED]) {
    ModelTied pieces[MODEL_MAX_TIED];
    DynapipeParams_v1 params = {
        .params = model->params,
        .grads = model->grads,
        .num_params = model->num_params,
        .param_type = sizeof(floatX) == 2 ? DYNAPIPE_BFLOAT16 : DYNAPIPE_FLOAT32,
        .grad_type = DYNAPIPE_FLOAT32,
        .num_tied = model_tied(model, pieces),
        .tied = tied,
    };
    for (int i = 0; i < params.num_tied; i++) {
        tied[i] = (DynapipeTied){pieces[i].group, pieces[i].offset, pieces[i].num_values};
    }
    return params;
}

int32_t dynapipe_llmc_pieces(DynapipePiece_v1* out, const Model* model, int64_t begin, int64_t end,
                             uint64_t key, int32_t bytes_per_value, void* values) {
    int32_t num = 0;
    int64_t joined = begin;  // end of the last piece, in the slice
    for (int i = 0; i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        int64_t from = slice->offset > begin ? slice->offset : begin;
        int64_t to = slice->offset + slice->num_values < end ? slice->offset + slice->num_values : end;
        if (from >= to) { continue; }
        int64_t place = slice->file_offset + from - slice->offset;
        DynapipePiece_v1* last = num > 0 ? &out[num - 1] : NULL;
        if (last != NULL && joined == from && last->begin + last->count == place) {
            last->count += to - from;
        } else {
            out[num++] =
                (DynapipePiece_v1){.key = key,
                                   .begin = place,
                                   .count = to - from,
                                   .bytes_per_value = bytes_per_value,
                                   .values = (unsigned char*)values + (from - begin) * bytes_per_value};
        }
        joined = to;
    }
    return num;
}

// The plugin's blocks count the embeddings: 0, and after the encoder's blocks the decoder's.
static ModelRange range_of(const ModelConfig* config, DynapipeRange blocks) {
    int num_blocks = model_num_blocks(config), num_enc = model_stack_blocks(config, 0);
    int head = num_blocks + 1 + (config->num_dec_layers > 0 ? 1 : 0);
    int ends[2] = {blocks.begin, blocks.end};
    for (int i = 0; i < 2; i++) {
        int block = ends[i] > 0 ? ends[i] - 1 : 0;  // without the embedding's
        if (config->num_dec_layers > 0 && ends[i] > num_enc + 1) { block--; }
        ends[i] = block < num_blocks ? block : num_blocks;
    }
    return (ModelRange){ends[0], ends[1],
                        blocks.end > head                    ? MODEL_HAS_HEAD
                        : blocks.head == DYNAPIPE_HEAD_FEEDS ? MODEL_FEEDS_HEAD
                                                             : MODEL_GOES_ON};
}

void dynapipe_llmc_part(ModelPart* out, const ModelConfig* config, const DynapipeRange* ranges,
                        int32_t num_ranges) {
    out->num_ranges = 0;
    out->has_share = false;
    for (int32_t i = 0; i < num_ranges; i++) {
        bool is_share =
            ranges[i].head == DYNAPIPE_HEAD_BY_ROWS || ranges[i].head == DYNAPIPE_HEAD_BY_VOCABULARY;
        if (!is_share) { out->ranges[out->num_ranges++] = range_of(config, ranges[i]); }
        out->has_share |= is_share;
    }
}

ModelHead dynapipe_llmc_head(const ModelConfig* config, int32_t head, const int32_t* begin,
                             int32_t num_stages) {
    if (head == DYNAPIPE_HEAD_AS_BLOCKS) { return (ModelHead){.sharing = MODEL_HEAD_WHOLE}; }
    return head_of_places(config, head == DYNAPIPE_HEAD_BY_ROWS ? MODEL_HEAD_BY_ROWS : MODEL_HEAD_BY_VOCAB,
                          num_stages, begin);
}
