#include "llmc_model.h"

#include "../llmc/head.h"

// --- the model table -------------------------------------------------------------------------------------

static ModelBatch model_batch(const DynapipeBatch* batch) {
    return (ModelBatch){
        .num_seqs = batch->num_seqs,
        .num_tokens = batch->num_tokens,
        .num_rows = batch->num_rows,
        .max_seq_tokens = batch->max_seq_tokens,
        .cu_seqlens = batch->cu_seqlens,
        .tokens = batch->tokens,
        .positions = batch->positions,
        .rows = batch->rows,
        .targets = batch->targets,
        .loss_scale = batch->loss_scale,
        .seq_lens = batch->seq_lens,
        .token_keys = batch->token_keys,
        .num_dec_tokens = batch->num_dec_tokens,
        .max_dec_seq_tokens = batch->max_dec_seq_tokens,
        .dec_cu_seqlens = batch->dec_cu_seqlens,
        .dec_tokens = batch->dec_tokens,
        .dec_positions = batch->dec_positions,
        .dec_seq_lens = batch->dec_seq_lens,
        .dec_token_keys = batch->dec_token_keys,
    };
}

static ModelCache model_cache(const DynapipeCache* cache) {
    return (ModelCache){
        .num_slots = cache->num_slots,
        .max_tokens = cache->max_tokens,
        .max_enc_tokens = cache->max_enc_tokens,
        .slots = cache->slots,
        .num_before = cache->num_before,
        .num_enc = cache->num_enc,
        .memory = cache->memory,
    };
}

_Static_assert((int)DYNAPIPE_FORWARD_KEEP == (int)MODEL_KEEP && (int)DYNAPIPE_FORWARD_HEAD == (int)MODEL_HEAD,
               "both sides number their flags alike");

static const ModelKind* kind_of(const void* model) {
    return ((const Model*)model)->config.kind;
}

static int64_t acts_bytes(void* model, const DynapipeBatch* batch, int flags) {
    ModelBatch view = model_batch(batch);
    return kind_of(model)->acts_bytes(model, &view, flags);
}

static int64_t scratch_bytes(void* model, const DynapipeBatch* batch) {
    ModelBatch view = model_batch(batch);
    return kind_of(model)->scratch_bytes(model, &view);
}

static int64_t boundary_bytes(void* model, const DynapipeBatch* batch, int is_behind) {
    ModelBatch view = model_batch(batch);
    return kind_of(model)->boundary_bytes(model, &view, is_behind);
}

static int forward(void* model, const DynapipeBatch* batch, const void* in, void* out, void* acts,
                   void* scratch, float* losses, int flags) {
    ModelBatch view = model_batch(batch);
    kind_of(model)->forward(model, &view, in, out, acts, scratch, losses, flags);
    return 0;
}

static int backward_inputs(void* model, const DynapipeBatch* batch, const void* in, void* acts,
                           const void* dout, void* din, void* scratch) {
    ModelBatch view = model_batch(batch);
    kind_of(model)->backward_inputs(model, &view, in, acts, dout, din, scratch);
    return 0;
}

static int backward_weights(void* model, const DynapipeBatch* batch, void* acts, const void* dout,
                            void* scratch) {
    ModelBatch view = model_batch(batch);
    kind_of(model)->backward_weights(model, &view, acts, dout, scratch);
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
    ModelCache view = model_cache(cache);
    return kind_of(model)->cache_bytes(model, &view);
}

static int64_t infer_bytes(void* model, const DynapipeBatch* batch) {
    ModelBatch view = model_batch(batch);
    return kind_of(model)->infer_bytes(model, &view);
}

static int infer(void* model, const DynapipeBatch* batch, const DynapipeCache* cache, const void* in,
                 void* out, void* scratch, int32_t* next) {
    ModelBatch view = model_batch(batch);
    ModelCache cache_view = cache != NULL ? model_cache(cache) : (ModelCache){0};
    kind_of(model)->infer(model, &view, &cache_view, in, out, scratch, next);
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
    ModelBatch view = model_batch(batch);
    head_combine(model, &view, num_parts, parts, dout, factors, losses);
    return 0;
}

static int64_t pick_bytes(void* model, const DynapipeBatch* batch) {
    (void)model;
    ModelBatch view = model_batch(batch);
    return head_pick_bytes(&view);
}

static int pick(void* model, const DynapipeBatch* batch, int32_t num_parts, const void* const* picks,
                int32_t* next) {
    ModelBatch view = model_batch(batch);
    head_pick(model, &view, num_parts, picks, next);
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
    int64_t joined = begin;  // what the last piece has, in the slice
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

// Blocks count the embeddings: 0, and behind the encoder's layers the decoder's.
static ModelRange layers_of(const ModelConfig* config, DynapipeRange blocks) {
    int num_layers = model_num_layers(config), num_enc = config->num_layers;
    int head = num_layers + 1 + (config->num_dec_layers > 0 ? 1 : 0);
    int ends[2] = {blocks.begin, blocks.end};
    for (int i = 0; i < 2; i++) {
        int layer = ends[i] > 0 ? ends[i] - 1 : 0;  // without the embedding's block
        if (config->num_dec_layers > 0 && ends[i] > num_enc + 1) { layer--; }
        ends[i] = layer < num_layers ? layer : num_layers;
    }
    return (ModelRange){ends[0], ends[1],
                        blocks.end > head                    ? MODEL_HAS_HEAD
                        : blocks.head == DYNAPIPE_HEAD_FEEDS ? MODEL_FEEDS_HEAD
                                                             : MODEL_GOES_ON};
}

void dynapipe_llmc_part(ModelPart* out, const ModelConfig* config, const DynapipeRange* ranges,
                        int32_t num_ranges) {
    out->num_ranges = 0;
    for (int32_t i = 0; i < num_ranges; i++) {
        bool is_share =
            ranges[i].head == DYNAPIPE_HEAD_BY_ROWS || ranges[i].head == DYNAPIPE_HEAD_BY_VOCABULARY;
        if (!is_share) { out->ranges[out->num_ranges++] = layers_of(config, ranges[i]); }
    }
}

void dynapipe_llmc_head(ModelHead* out, int32_t head, const int32_t* begin, int32_t num_stages) {
    *out = (ModelHead){.sharing = MODEL_HEAD_WHOLE};
    if (head != DYNAPIPE_HEAD_BY_ROWS && head != DYNAPIPE_HEAD_BY_VOCABULARY) { return; }
    out->sharing = head == DYNAPIPE_HEAD_BY_ROWS ? MODEL_HEAD_BY_ROWS : MODEL_HEAD_BY_VOCAB;
    out->num_stages = num_stages;
    for (int32_t s = 0; s <= num_stages; s++) { out->begin[s] = begin[s]; }
}
