#include "model.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "floatx.h"
#include "llmc_error.h"
#include "mt19937.h"

// In pieces, because bf16 is converted on the host.
enum { PIECE_VALUES = 1 << 20 };

void device_values_upload(OpsContext* ops, floatX* memory, const float* host, size_t num_values) {
    if (sizeof(floatX) == sizeof(float)) {
        ops_upload(ops, memory, host, num_values * sizeof *memory);
        return;
    }
    floatX* piece = llmc_alloc(PIECE_VALUES * sizeof *piece, "values on their way");
    for (size_t begin = 0; begin < num_values; begin += PIECE_VALUES) {
        const size_t n = num_values - begin < PIECE_VALUES ? num_values - begin : PIECE_VALUES;
        floatx_from_floats(piece, host + begin, n);
        ops_upload(ops, memory + begin, piece, n * sizeof *piece);
    }
    free(piece);
}

void device_values_download(OpsContext* ops, float* host, const floatX* memory, size_t num_values) {
    if (sizeof(floatX) == sizeof(float)) {
        ops_download(ops, host, memory, num_values * sizeof *memory);
        return;
    }
    floatX* piece = llmc_alloc(PIECE_VALUES * sizeof *piece, "values on their way");
    for (size_t begin = 0; begin < num_values; begin += PIECE_VALUES) {
        const size_t n = num_values - begin < PIECE_VALUES ? num_values - begin : PIECE_VALUES;
        ops_download(ops, piece, memory + begin, n * sizeof *piece);
        floatx_to_floats(host + begin, piece, n);
    }
    free(piece);
}

void batch_check_range(const char* what, const int32_t* values, int num_values, int limit) {
    for (int i = 0; i < num_values; i++) {
        if (values[i] < 0 || values[i] >= limit) {
            fprintf(stderr,
                    "microbatch: %s %d at %d is not within 0 to %d ---> prepare the data for this model\n",
                    what, values[i], i, limit - 1);
            exit(1);
        }
    }
}

const int32_t* batch_stage(OpsContext* ops, const int32_t* values, int num_values) {
    return num_values > 0 && values != NULL ? ops_stage(ops, values, (size_t)num_values) : NULL;
}

// --- memory ------------------------------------------------------------------------------------------------

void model_alloc_grads(Model* model) {
    if (model->grads == NULL) {
        model->grads = ops_alloc(model->ops, (size_t)model->num_params * sizeof(float), "gradients");
    }
}

void model_free_grads(Model* model) {
    ops_release(model->ops, model->grads);
    model->grads = NULL;
}

void model_zero_grads(Model* model) {
    ops_zero(model->ops, model->grads, (size_t)model->num_params * sizeof(float));
}

void model_free(Model* model) {
    if (model == NULL || model->ops == NULL) { return; }
    ops_release(model->ops, model->params);
    ops_release(model->ops, model->grads);
    free(model->slices);
    *model = (Model){0};
}

// --- what a rank has --------------------------------------------------------------------------------------
// Its table of tensors, views of its pieces, what is tied to other ranks. The flat array has each tensor
// once, in checkpoint order, with the blocks of all ranges; for the whole model it is the body of a
// checkpoint.

ModelPart model_part(int block_begin, int block_end, bool has_head) {
    return (ModelPart){.num_ranges = 1,
                       .ranges = {{block_begin, block_end, has_head ? MODEL_HAS_HEAD : MODEL_GOES_ON}}};
}

// --- pieces ------------------------------------------------------------------------------------------------

// The properties of a view that need no tensors. Piece num_ranges is the share of the head.
static Model piece(const Model* model, int idx) {
    Model view = *model;
    if (idx == model->part.num_ranges) {
        view.block_begin = view.block_end = model_num_blocks(&model->config);
        view.is_first = view.is_last = false;
        view.has_head = true;
        return view;
    }
    const ModelRange* range = &model->part.ranges[idx];
    view.block_begin = range->block_begin;
    view.block_end = range->block_end;
    view.is_first = range->block_begin == 0;
    view.is_last = range->end != MODEL_GOES_ON;
    view.has_head = range->end == MODEL_HAS_HEAD;
    return view;
}

static int num_pieces(const Model* model) {
    return model->part.num_ranges + model->part.has_share;
}

static bool is_vocab_share(const Model* view) {
    return model_is_share(view) && view->part.head.sharing == MODEL_HEAD_BY_VOCAB;
}

// --- the table of tensors ----------------------------------------------------------------------------------

static void add_slice(Model* model, TensorSlice slice) {
    slice.offset = model->num_params;
    model->slices[model->num_slices++] = slice;
    model->num_params += slice.num_values;
}

// The block of its layer that a tensor belongs to; a bias table to attention, the first.
static int block_of(const ModelStack* stack, int t) {
    for (int j = 0; j < stack->num_blocks; j++) {
        const ModelBlock* b = &stack->blocks[j];
        const ModelLinear all[] = {b->norm, b->in, b->kv, b->out};
        for (int i = 0; i < 4; i++) {
            if (t == all[i].weight || t == all[i].bias) { return j; }
        }
    }
    return 0;
}

// Is a slice of a layer in the view?
static bool has_slice(const Model* view, const TensorSlice* slice, TensorPlace place) {
    const int s = place == TENSOR_PER_DEC_LAYER;
    const ModelStack* stack = &view->config.kind->stacks[s];
    const ModelBlocks blocks = model_blocks(view, s);
    const int block = slice->layer * stack->num_blocks + block_of(stack, slice->tensor);
    return blocks.begin <= block && block < blocks.end;
}

static void add_layers(Model* model, const TensorInfo* info, TensorSlice slice) {
    const int64_t begin_of_file = slice.file_offset;
    const int num_layers = model_num_copies(&model->config, info);
    for (int i = 0; i < model->part.num_ranges; i++) {
        const Model view = piece(model, i);
        for (slice.layer = 0; slice.layer < num_layers; slice.layer++) {
            slice.file_offset = begin_of_file + slice.layer * slice.num_values;
            if (has_slice(&view, &slice, info->place)) { add_slice(model, slice); }
        }
    }
}

// The first stage with a share by rows counts their common matrix, unless an embedding does.
static bool is_later_share(const Model* view) {
    const ModelHead* head = &view->part.head;
    return model_is_share(view) && head->sharing == MODEL_HEAD_BY_ROWS && head->begin[view->part.stage] > 0;
}

static int stack_of_bias(const ModelKind* kind, int t) {  // -1: no bias table
    return t == MODEL_EMBEDDING ? -1 : t == kind->stacks[0].bias ? 0 : t == kind->stacks[1].bias ? 1 : -1;
}

static bool has_blocks(const Model* view, int stack) {
    const ModelBlocks blocks = model_blocks(view, stack);
    return blocks.begin < blocks.end;
}

// A tensor outside the layers: is it in the view?
static bool has_whole(const Model* view, int t) {
    const ModelConfig* config = &view->config;
    const ModelKind* kind = config->kind;
    const ModelLinear enc_end = kind->stacks[0].norm_end;
    const bool begins_decoder = has_blocks(view, 1) && model_blocks(view, 1).begin == 0;
    if (t == model_head_tensor(config) && view->has_head) { return true; }
    if (t == MODEL_EMBEDDING) { return view->is_first || begins_decoder; }
    if (t == kind->positions) { return view->is_first; }
    if (stack_of_bias(kind, t) >= 0) { return has_blocks(view, stack_of_bias(kind, t)); }
    if (kind->has_decoder && (t == enc_end.weight || t == enc_end.bias)) {
        return has_blocks(view, 0) && model_blocks(view, 0).end == model_stack_blocks(config, 0);
    }
    return t != kind->head && view->is_last;  // the final norm
}

// Is it also in an earlier view of the chain?
static bool is_whole_copy(const Model* view, int t) {
    const int stack = stack_of_bias(view->config.kind, t);
    if (t == MODEL_EMBEDDING) { return !view->is_first; }
    return stack >= 0 && model_blocks(view, stack).begin > 0;
}

// May several ranges have it?
static bool is_tied(const ModelConfig* config, int t) {
    if (t == MODEL_EMBEDDING) { return config->kind->has_decoder || model_head_tensor(config) == t; }
    return stack_of_bias(config->kind, t) >= 0 && !config->bias_per_layer;
}

static void add_whole(Model* model, int t, TensorSlice slice) {
    const ModelHead* head = &model->part.head;
    const bool is_head = t == model_head_tensor(&model->config);
    bool has_all = false, has_rows = false, is_copy = true;
    for (int i = 0; i < num_pieces(model); i++) {
        const Model view = piece(model, i);
        if (!has_whole(&view, t)) { continue; }
        has_all = has_all || !is_vocab_share(&view);
        has_rows = true;
        is_copy = is_copy && (is_whole_copy(&view, t) || is_later_share(&view));
    }
    if (!has_rows) { return; }
    slice.tied_copy = is_copy;
    slice.tied = is_tied(&model->config, t) || (is_head && head->sharing == MODEL_HEAD_BY_ROWS);
    if (!has_all) {
        const int64_t C = model->config.channels;
        slice.first = head->begin[model->part.stage] * C;
        slice.num_values = head->begin[model->part.stage + 1] * C - slice.first;
        slice.file_offset += slice.first;
    }
    if (slice.num_values > 0) { add_slice(model, slice); }
}

static void make_slices(Model* model) {
    const ModelKind* kind = model->config.kind;
    int num_blocks = 0;  // and at most as many slices of a tensor
    for (int i = 0; i < model->part.num_ranges; i++) {
        num_blocks += model->part.ranges[i].block_end - model->part.ranges[i].block_begin;
    }
    assert(kind->num_tensors <= MODEL_MAX_TENSORS);
    model->slices =
        llmc_alloc(sizeof *model->slices * (size_t)(kind->num_tensors * (num_blocks + 1)), "tensor table");
    int64_t file_offset = 0;
    for (int t = 0; t < kind->num_tensors; t++) {
        const TensorInfo info = kind->tensor(&model->config, t);
        const TensorSlice slice = {.tensor = t,
                                   .layer = -1,
                                   .file_offset = file_offset,
                                   .num_values = info.rows * info.cols,
                                   .decay = info.decay};
        if (slice.num_values > 0) {
            if (info.place == TENSOR_WHOLE) {
                add_whole(model, t, slice);
            } else {
                add_layers(model, &info, slice);
            }
        }
        file_offset += model_num_copies(&model->config, &info) * slice.num_values;
    }
}

const TensorSlice* model_find(const Model* model, int tensor, int layer) {
    for (int i = 0; i < model->num_slices; i++) {
        if (model->slices[i].tensor == tensor && model->slices[i].layer == layer) {
            return &model->slices[i];
        }
    }
    return NULL;
}

// --- views -------------------------------------------------------------------------------------------------

static void find_head(Model* view) {
    const ModelConfig* config = &view->config;
    const TensorSlice* slice = model_find(view, model_head_tensor(config), -1);
    int begin = 0, end = config->padded_vocab;
    if (is_vocab_share(view)) {
        begin = view->part.head.begin[view->part.stage];
        end = view->part.head.begin[view->part.stage + 1];
    }
    view->head_id = begin;
    view->head_rows = end - begin;
    view->head_ids = end < config->vocab ? end - begin : begin < config->vocab ? config->vocab - begin : 0;
    // an empty tensor has no place
    view->head_offset = slice != NULL ? slice->offset + (int64_t)begin * config->channels - slice->first : 0;
}

static Model view_of(const Model* model, int idx) {
    Model view = piece(model, idx);
    for (int t = 0; t < MODEL_MAX_TENSORS; t++) { view.slice_idx[t] = -1; }
    for (int i = view.num_slices - 1; i >= 0; i--) {
        const TensorSlice* slice = &view.slices[i];
        const TensorPlace place = view.config.kind->tensor(&view.config, slice->tensor).place;
        if (slice->layer < 0 || has_slice(&view, slice, place)) { view.slice_idx[slice->tensor] = i; }
    }
    if (view.has_head) { find_head(&view); }
    return view;
}

Model model_view(const Model* model, int idx) {
    assert(0 <= idx && idx < model->part.num_ranges);
    return view_of(model, idx);
}

Model model_share_view(const Model* model) {
    assert(model->part.has_share);
    return view_of(model, model->part.num_ranges);
}

// --- the whole rank ---------------------------------------------------------------------------------------

static void check_part(const ModelConfig* config, const ModelPart* part) {
    const int N = model_num_blocks(config);
    assert(!part->has_share || (0 <= part->stage && part->stage < part->head.num_stages));
    assert(part->head.sharing != MODEL_HEAD_BY_VOCAB ||
           part->head.begin[part->head.num_stages] == config->padded_vocab);
    assert(0 <= part->num_ranges && part->num_ranges <= MODEL_MAX_RANGES);
    for (int i = 0; i < part->num_ranges; i++) {
        const ModelRange* range = &part->ranges[i];
        assert(0 <= range->block_begin && range->block_begin <= range->block_end && range->block_end <= N);
        assert(range->end == MODEL_GOES_ON ? range->block_begin < range->block_end : range->block_end == N);
        assert(i == 0 || part->ranges[i - 1].block_end <= range->block_begin);
        assert(range->end != MODEL_HAS_HEAD || part->head.sharing == MODEL_HEAD_WHOLE);
        assert(range->end != MODEL_FEEDS_HEAD || part->head.sharing != MODEL_HEAD_WHOLE);
        (void)range;
    }
    (void)N;
}

// Of pair c, in radians per position. "llama3" (Llama 3.1): between slow and unscaled ones a mean of the two.
static double rope_rate(const ModelConfig* config, int c) {
    const double pi = 3.141592653589793, factor = config->rope_factor / 1e3;
    const double rate = pow(config->rope_theta, -2.0 * c / model_head_size(config));
    if (config->rope_factor == 0) { return rate; }
    if (config->rope_original == 0) { return rate / factor; }
    const double turns = rate * config->rope_original / (2 * pi), low = config->rope_low_freq / 1e3;
    const double unscaled = fmin(fmax((turns - low) / (config->rope_high_freq / 1e3 - low), 0), 1);
    return rate * (unscaled + (1 - unscaled) / factor);
}

static Rope rope_of(const ModelConfig* config) {
    Rope out = {config->num_heads, model_kv_heads(config), model_head_size(config), {0}};
    for (int c = 0; c < out.head_size / 2; c++) { out.rates[c] = (float)rope_rate(config, c); }
    return out;
}

void model_init_counts(Model* model, const ModelConfig* config, const ModelPart* part, OpsContext* ops) {
    check_part(config, part);
    *model = (Model){.config = *config, .part = *part, .ops = ops};
    for (int t = 0; t < MODEL_MAX_TENSORS; t++) { model->slice_idx[t] = -1; }  // set for views only
    if (config->kind->rotary) { model->rope = rope_of(config); }
    make_slices(model);
    if (num_pieces(model) == 1) { *model = view_of(model, 0); }
}

void model_init_raw(Model* model, const ModelConfig* config, const ModelPart* part, OpsContext* ops) {
    model_init_counts(model, config, part, ops);
    model->params = ops_alloc_raw(ops, (size_t)model->num_params * sizeof(floatX), "parameters");
    model->grads = ops_alloc_raw(ops, (size_t)model->num_params * sizeof(float), "gradients");
}

void model_init_part(Model* model, const ModelConfig* config, const ModelPart* part, OpsContext* ops) {
    model_init_counts(model, config, part, ops);
    model->params = ops_alloc(ops, (size_t)model->num_params * sizeof(floatX), "parameters");
}

void model_init(Model* model, const ModelConfig* config, int block_begin, int block_end, bool has_head,
                OpsContext* ops) {
    const ModelPart part = model_part(block_begin, block_end, has_head);
    model_init_part(model, config, &part, ops);
}

// --- values, copies ----------------------------------------------------------------------------------------

void model_set_values(Model* model, const TensorSlice* slice, const float* values, int64_t first,
                      int64_t num_values) {
    const int64_t from = first > slice->first ? first : slice->first;
    const int64_t slice_end = slice->first + slice->num_values;
    const int64_t to = first + num_values < slice_end ? first + num_values : slice_end;
    if (from >= to) { return; }
    device_values_upload(model->ops, model->params + slice->offset + (from - slice->first),
                         values + (from - first), (size_t)(to - from));
}

// Pieces of the head's matrix, one per stage's share.
static int tie_shares(const Model* model, const TensorSlice* slice, ModelTied* out) {
    const ModelHead* head = &model->part.head;
    const int64_t C = model->config.channels, end = slice->first + slice->num_values;
    int num = 0;
    for (int s = 0; s < head->num_stages; s++) {
        const int64_t from = head->begin[s] * C;
        const int64_t to = head->begin[s + 1] * C;
        if (from == to || from < slice->first || to > end) { continue; }
        out[num++] = (ModelTied){.group = (s + 1) * MODEL_MAX_TENSORS + slice->tensor,
                                 .offset = slice->offset + from - slice->first,
                                 .num_values = to - from};
    }
    return num;
}

int model_tied(const Model* model, ModelTied out[MODEL_MAX_TIED]) {
    const int head_tensor = model_head_tensor(&model->config);
    int num = 0;
    for (int i = 0; i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        if (!slice->tied) { continue; }
        if (slice->tensor == head_tensor && model->part.head.sharing == MODEL_HEAD_BY_VOCAB) {
            num += tie_shares(model, slice, out + num);
        } else {
            out[num++] = (ModelTied){slice->tensor, slice->offset, slice->num_values};
        }
    }
    return num;
}

// --- random values -----------------------------------------------------------------------------------------

typedef struct {
    Model* model;
    Mt19937 generator;
    float* values;  // room for the largest tensor: normals are drawn in blocks of a tensor
} Draws;

// Rows [begin, begin + num_rows) of a tensor; `layer` counts in its stack, -1: outside.
static void draw(Draws* d, int tensor, int layer, int64_t begin, int64_t num_rows, float std) {
    const ModelConfig* config = &d->model->config;
    const TensorSlice* slice = model_find(d->model, tensor, layer);
    const int64_t cols = config->kind->tensor(config, tensor).cols, num_values = num_rows * cols;
    if (slice == NULL) {
        mt19937_normal_skip(&d->generator, (size_t)num_values);
        return;
    }
    mt19937_normal(&d->generator, d->values, (size_t)num_values, 0.0f, std);
    model_set_values(d->model, slice, d->values, begin * cols, num_values);
}

static void draw_all(Draws* d, int tensor, int layer, float std) {
    const ModelConfig* config = &d->model->config;
    draw(d, tensor, layer, 0, config->kind->tensor(config, tensor).rows, std);
}

static void draw_layer(Draws* d, const ModelStack* stack, int layer, const ModelStds* stds) {
    const ModelConfig* config = &d->model->config;
    const int64_t I = (int64_t)config->num_heads * model_head_size(config);
    for (int j = 0; j < stack->num_blocks; j++) {
        const ModelBlock* block = &stack->blocks[j];
        const bool is_ffn = block->type == BLOCK_FFN, is_self = block->type == BLOCK_SELF;
        if (is_self && stds->q != stds->kv) {
            for (int part = 0; part < 3; part++) {
                draw(d, block->in.weight, layer, part * I, I, part == 0 ? stds->q : stds->kv);
            }
        } else {
            draw_all(d, block->in.weight, layer, is_ffn ? stds->wi : stds->q);
        }
        for (int part = 0; part < 2 && block->type == BLOCK_CROSS; part++) {
            draw(d, block->kv.weight, layer, part * I, I, stds->kv);
        }
        draw_all(d, block->out.weight, layer, is_ffn ? stds->wo : stds->o);
    }
    if (stack->bias != 0 && config->bias_per_layer) { draw_all(d, stack->bias, layer, stds->bias); }
}

static bool is_norm_weight(const ModelKind* kind, int t) {
    bool is_norm = false;
    for (int s = 0; s < 2; s++) {
        const ModelStack* stack = &kind->stacks[s];
        is_norm |= stack->num_blocks > 0 && t == stack->norm_end.weight;
        for (int j = 0; j < stack->num_blocks; j++) { is_norm |= t == stack->blocks[j].norm.weight; }
    }
    return is_norm;
}

static void fill_norms(Draws* d) {
    const Model* model = d->model;
    for (int64_t c = 0; c < model->config.channels; c++) { d->values[c] = 1.0f; }
    for (int i = 0; i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        if (!is_norm_weight(model->config.kind, slice->tensor)) { continue; }
        device_values_upload(model->ops, model->params + slice->offset, d->values, (size_t)slice->num_values);
    }
}

static int64_t largest_tensor(const Model* model) {
    int64_t largest = 0;
    for (int i = 0; i < model->num_slices; i++) {
        const int64_t num_values = model_tensor_values(&model->config, model->slices[i].tensor);
        if (num_values > largest) { largest = num_values; }
    }
    return largest;
}

// The embedding (padding rows stay zero), positions, then by stack and layer the matrices in order of use,
// the stack's bias table, the head.
void model_init_random(Model* model, uint32_t seed) {
    const ModelConfig* config = &model->config;
    const ModelKind* kind = config->kind;
    const ModelStds stds = kind->stds(config);
    const size_t num_bytes = (size_t)largest_tensor(model) * sizeof(float);
    Draws d = {.model = model, .values = (float*)llmc_alloc(num_bytes, "a tensor's random values")};
    ops_zero(model->ops, model->params, (size_t)model->num_params * sizeof(floatX));
    mt19937_seed(&d.generator, seed);
    draw(&d, MODEL_EMBEDDING, -1, 0, config->vocab, stds.embedding);
    if (kind->positions != 0) { draw_all(&d, kind->positions, -1, stds.positions); }
    for (int s = 0; s < 2; s++) {
        const ModelStack* stack = &kind->stacks[s];
        const int num_layers = s == 0 ? config->num_layers : config->num_dec_layers;
        for (int l = 0; l < num_layers; l++) { draw_layer(&d, stack, l, &stds); }
        if (stack->bias != 0 && !config->bias_per_layer) { draw_all(&d, stack->bias, -1, stds.bias); }
    }
    if (model_head_tensor(config) != MODEL_EMBEDDING) {
        draw(&d, kind->head, -1, 0, config->vocab, stds.head);
    }
    fill_norms(&d);
    free(d.values);
}
