// Against PyTorch (dev/golden_gpt2.py), and the laws: cut into slices, grouped, padded, recomputed: the same
// gradients.
#include "../llmc/gpt2.h"

#include <math.h>

#include "gpt2_golden.h"
#include "test.h"

static uint64_t seed;
static OpsContext* ops;

// float32 sums of some hundred terms in another order
static const double SUM_TOLERANCE = 1e-5;

enum { MAX_SLICES = 4, RECOMPUTE = 1 };

static void* poisoned(int64_t num_bytes) {
    void* memory = aligned_alloc(64, (size_t)num_bytes + 64);
    memset(memory, 0xff, (size_t)num_bytes);  // NaN
    return memory;
}

typedef struct {
    Model model;
    void *acts, *scratch;
    floatX *in, *out, *din;  // boundary behind and before
} Stage;

static void stage_open(Stage* stage, ModelConfig config, int begin, int end, bool is_last,
                       const ModelBatch* batch) {
    model_init(&stage->model, &config, begin, end, is_last, ops);
    model_alloc_grads(&stage->model);
    gpt2_golden_params(&stage->model);
    int flags = MODEL_KEEP | MODEL_HEAD;
    stage->acts = poisoned(model_acts_bytes(&stage->model, batch, flags));
    stage->scratch = poisoned(model_scratch_bytes(&stage->model, batch));
    stage->out = poisoned(model_boundary_bytes(&stage->model, batch, false));
    stage->din = poisoned(model_boundary_bytes(&stage->model, batch, false));
}

static void stage_close(Stage* stage) {
    model_free(&stage->model);
    free(stage->acts);
    free(stage->scratch);
    free(stage->out);
    free(stage->din);
}

// Add a slice's gradients to the whole model's; both ends of a tied tensor add to the same place.
static void add_grads(const Model* model, float* whole) {
    for (int i = 0; i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        for (int64_t j = 0; j < slice->num_values; j++) {
            whole[slice->file_offset + j] += model->grads[slice->offset + j];
        }
    }
}

// With this scale of every row's gradient.
static void forward_scaled(Model* model, const ModelBatch* batch, const floatX* in, floatX* out, void* acts,
                           void* scratch, float* losses, float scale, int flags) {
    ModelBatch scaled = *batch;
    scaled.loss_scale = scale;
    model_forward(model, &scaled, in, out, acts, scratch, losses, flags);
}

// All jobs of one micro-batch over slices [cuts[i], cuts[i + 1]), a 0 behind the last cut: losses (num_rows),
// gradients added to `grads`. W runs after all of B, first slice first.
static void run_chain(ModelConfig config, const ModelBatch* batch, const int* cuts, int options, float scale,
                      float* losses, float* grads) {
    Stage stages[MAX_SLICES];
    int P = 0, keep = MODEL_KEEP | MODEL_HEAD;
    for (; cuts[P + 1] > 0; P++) {
        Stage* s = &stages[P];
        stage_open(s, config, cuts[P], cuts[P + 1], cuts[P + 2] == 0, batch);
        const floatX* in = P > 0 ? stages[P - 1].out : NULL;
        floatX* out = s->model.is_last ? NULL : s->out;
        forward_scaled(&s->model, batch, in, out, s->acts, s->scratch, losses, scale,
                       options & RECOMPUTE ? 0 : keep);
    }
    for (int p = P - 1; p >= 0; p--) {
        Stage* s = &stages[p];
        const floatX *in = p > 0 ? stages[p - 1].out : NULL, *dout = p < P - 1 ? stages[p + 1].din : NULL;
        if (options & RECOMPUTE) {
            int64_t num_bytes = model_acts_bytes(&s->model, batch, keep);
            memset(s->acts, 0xff, (size_t)num_bytes);
            forward_scaled(&s->model, batch, in, NULL, s->acts, s->scratch, losses, scale, keep);
        }
        model_backward_inputs(&s->model, batch, in, s->acts, dout, p > 0 ? s->din : NULL, s->scratch);
    }
    for (int p = 0; p < P; p++) {
        Stage* s = &stages[p];
        if (p > 0) { memset(stages[p - 1].out, 0xff, (size_t)model_boundary_bytes(&s->model, batch, false)); }
        model_backward_weights(&s->model, batch, s->acts, p < P - 1 ? stages[p + 1].din : NULL, s->scratch);
        add_grads(&s->model, grads);
    }
    for (int p = 0; p < P; p++) { stage_close(&stages[p]); }
}

static const int WHOLE[] = {0, 3, 0};

// Worst relative error of any tensor of two whole-model gradients.
static double worst_error(ModelConfig config, const float* a, const float* b) {
    Model model;
    model_init(&model, &config, 0, config.num_layers, true, ops);
    double error = gpt2_golden_worst_error(&model, a, b);
    model_free(&model);
    return error;
}

static double worst_loss_error(const float* a, const float* b, int num_rows) {
    double worst = 0.0;
    for (int i = 0; i < num_rows; i++) {
        double error = fabs((double)a[i] - (double)b[i]) / (1.0 + fabs((double)b[i]));
        if (!(error <= worst)) { worst = error; }
    }
    return worst;
}

static float* zeros(int64_t num_values) {
    return calloc((size_t)num_values + 1, sizeof(float));
}

static void pytorch_agrees(void) {
    Gpt2Golden golden;
    gpt2_golden_load(&golden);
    const ModelBatch* batch = &golden.batch;
    float *losses = zeros(batch->num_rows), *grads = zeros(golden.num_params);
    run_chain(golden.config, batch, WHOLE, 0, 1.0f / (float)batch->num_rows, losses, grads);
    CHECK(worst_loss_error(losses, golden.losses, batch->num_rows) < 1e-6);
    double error = worst_error(golden.config, grads, golden.grads);
    CHECK(error < SUM_TOLERANCE);
    // the tolerance is tight: a change of one gradient by 1 % of its tensor's largest is seen
    grads[0] += 0.01f;
    CHECK(worst_error(golden.config, grads, golden.grads) > SUM_TOLERANCE);
    free(losses);
    free(grads);
    gpt2_golden_free(&golden);
}

static void logits_agree_with_pytorch(void) {
    Gpt2Golden golden;
    gpt2_golden_load(&golden);
    const ModelBatch* batch = &golden.batch;
    Stage stage;
    stage_open(&stage, golden.config, 0, 3, true, batch);
    float* losses = zeros(batch->num_rows);
    free(stage.acts);
    stage.acts = poisoned(model_acts_bytes(&stage.model, batch, MODEL_HEAD));
    forward_scaled(&stage.model, batch, NULL, NULL, stage.acts, stage.scratch, losses, 0.0f, MODEL_HEAD);
    CHECK(worst_loss_error(losses, golden.losses, batch->num_rows) < 1e-6);
    int V = golden.config.vocab, Vp = golden.config.padded_vocab;
    double difference = 0.0;
    for (int i = 0; i < batch->num_rows; i++) {
        for (int v = 0; v < V; v++) {
            difference = fmax(difference, fabs((double)stage.model.last_logits[i * Vp + v] -
                                               (double)golden.logits[i * V + v]));
        }
    }
    CHECK(batch->num_rows <= 64);
    CHECK(difference < 1e-5);
    stage_close(&stage);
    free(losses);
    gpt2_golden_free(&golden);
}

// Any cut, the head alone too, with and without recompute. Recompute must give the same bits.
static void slices_make_the_whole(void) {
    static const int cuts[][6] = {{0, 1, 3}, {0, 2, 3}, {0, 1, 2, 3}, {0, 3}, {0, 3, 3}, {0, 1, 2, 3, 3}};
    Gpt2Golden golden;
    gpt2_golden_load(&golden);
    const ModelBatch* batch = &golden.batch;
    float scale = 1.0f / (float)batch->num_rows;
    for (int i = 0; i < 6; i++) {
        float *losses[2], *grads[2];
        for (int recompute = 0; recompute < 2; recompute++) {
            losses[recompute] = zeros(batch->num_rows);
            grads[recompute] = zeros(golden.num_params);
            run_chain(golden.config, batch, cuts[i], recompute, scale, losses[recompute], grads[recompute]);
        }
        CHECK(worst_loss_error(losses[0], golden.losses, batch->num_rows) < 1e-6);
        CHECK(worst_error(golden.config, grads[0], golden.grads) < SUM_TOLERANCE);
        CHECK(memcmp(losses[0], losses[1], sizeof(float) * (size_t)batch->num_rows) == 0);
        CHECK(memcmp(grads[0], grads[1], sizeof(float) * (size_t)golden.num_params) == 0);
        for (int k = 0; k < 2; k++) {
            free(losses[k]);
            free(grads[k]);
        }
    }
    gpt2_golden_free(&golden);
}

// --- random batches --------------------------------------------------------------------------------------

enum { MAX_SEQS = 12, MAX_TOKENS = 800 };

typedef struct {
    ModelBatch batch;
    int32_t cu_seqlens[MAX_SEQS + 1], tokens[MAX_TOKENS], positions[MAX_TOKENS], rows[MAX_TOKENS],
        targets[MAX_TOKENS];
} OwnBatch;

static uint32_t draw(uint32_t limit) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % limit;
}

static void batch_begin(OwnBatch* own) {
    *own = (OwnBatch){0};
    own->batch = (ModelBatch){.cu_seqlens = own->cu_seqlens,
                              .tokens = own->tokens,
                              .positions = own->positions,
                              .rows = own->rows,
                              .targets = own->targets};
}

// Sequence i of `from`, and then `padding` more tokens.
static void batch_add_sequence(OwnBatch* own, const ModelBatch* from, int i, int padding,
                               int32_t padding_token) {
    ModelBatch* batch = &own->batch;
    int begin = from->cu_seqlens[i], end = from->cu_seqlens[i + 1], at = batch->num_tokens;
    for (int t = begin; t < end + padding; t++, batch->num_tokens++) {
        own->tokens[batch->num_tokens] = t < end ? from->tokens[t] : padding_token;
        own->positions[batch->num_tokens] = t - begin;
    }
    for (int r = 0; r < from->num_rows; r++) {
        if (from->rows[r] < begin || from->rows[r] >= end) { continue; }
        own->rows[batch->num_rows] = from->rows[r] - begin + at;
        own->targets[batch->num_rows++] = from->targets[r];
    }
    own->cu_seqlens[++batch->num_seqs] = batch->num_tokens;
    int seq_tokens = end - begin + padding;
    if (seq_tokens > batch->max_seq_tokens) { batch->max_seq_tokens = seq_tokens; }
}

static void batch_random(OwnBatch* own, ModelConfig config, int num_seqs, int percent_supervised) {
    batch_begin(own);
    ModelBatch* batch = &own->batch;
    for (int i = 0; i < num_seqs; i++) {
        int num_tokens = 1 + (int)draw((uint32_t)config.max_seq_len);
        for (int t = 0; t < num_tokens; t++, batch->num_tokens++) {
            own->tokens[batch->num_tokens] = (int32_t)draw((uint32_t)config.vocab);
            own->positions[batch->num_tokens] = t;
            if ((int)draw(100) >= percent_supervised) { continue; }
            own->targets[batch->num_rows] = (int32_t)draw((uint32_t)config.vocab);
            own->rows[batch->num_rows++] = batch->num_tokens;
        }
        own->cu_seqlens[++batch->num_seqs] = batch->num_tokens;
        if (num_tokens > batch->max_seq_tokens) { batch->max_seq_tokens = num_tokens; }
    }
}

static const ModelConfig odd_config = {.kind = &gpt2_kind,
                                       .max_seq_len = 61,
                                       .vocab = 131,
                                       .num_layers = 2,
                                       .num_heads = 3,
                                       .channels = 36,
                                       .padded_vocab = 256};

// The law that planning rests on: how sequences are grouped does not matter, nor does padding behind them.
static void grouping_and_padding_change_nothing(void) {
    static OwnBatch together, alone, padded;
    const int whole[] = {0, 2, 0}, cut[] = {0, 1, 2, 0}, head_alone[] = {0, 2, 2, 0};
    int64_t num_params = model_num_params(&odd_config);
    for (int round = 0; round < 4; round++) {
        batch_random(&together, odd_config, 1 + (int)draw(8), 10 + (int)draw(90));
        const ModelBatch* batch = &together.batch;
        if (batch->num_rows == 0) { continue; }
        float scale = 1.0f / (float)batch->num_rows;
        float *losses = zeros(batch->num_rows), *grads = zeros(num_params);
        float *losses_alone = zeros(batch->num_rows), *grads_alone = zeros(num_params);
        float *losses_padded = zeros(batch->num_rows), *grads_padded = zeros(num_params);
        run_chain(odd_config, batch, whole, 0, scale, losses, grads);
        int row = 0;
        batch_begin(&padded);
        for (int i = 0; i < batch->num_seqs; i++) {
            batch_begin(&alone);
            batch_add_sequence(&alone, batch, i, 0, 0);
            run_chain(odd_config, &alone.batch, round % 2 ? head_alone : cut, 0, scale, losses_alone + row,
                      grads_alone);
            row += alone.batch.num_rows;
            int room = odd_config.max_seq_len - (batch->cu_seqlens[i + 1] - batch->cu_seqlens[i]);
            batch_add_sequence(&padded, batch, i, (int)draw((uint32_t)room + 1), 130);
        }
        CHECK_EQ(row, batch->num_rows);
        run_chain(odd_config, &padded.batch, round % 2 ? cut : head_alone, RECOMPUTE, scale, losses_padded,
                  grads_padded);
        CHECK(worst_loss_error(losses_alone, losses, row) < 1e-6);
        CHECK(worst_loss_error(losses_padded, losses, row) < 1e-6);
        CHECK(worst_error(odd_config, grads_alone, grads) < SUM_TOLERANCE);
        CHECK(worst_error(odd_config, grads_padded, grads) < SUM_TOLERANCE);
        float* all[] = {losses, grads, losses_alone, grads_alone, losses_padded, grads_padded};
        for (int k = 0; k < 6; k++) { free(all[k]); }
    }
}

// More rows than one chunk of logits holds: every loss is right, and row 0's logits are the ones left.
static void evaluation_in_chunks(void) {
    static OwnBatch own;
    batch_random(&own, odd_config, 9, 95);
    const ModelBatch* batch = &own.batch;
    CHECK(batch->num_rows > 2 * 64);
    float *losses = zeros(batch->num_rows), *kept_losses = zeros(batch->num_rows);
    Stage stage;
    stage_open(&stage, odd_config, 0, 2, true, batch);
    forward_scaled(&stage.model, batch, NULL, NULL, stage.acts, stage.scratch, kept_losses, 1.0f,
                   MODEL_KEEP | MODEL_HEAD);
    CHECK(stage.model.last_logits == NULL);
    int64_t num_bytes = model_acts_bytes(&stage.model, batch, MODEL_HEAD);
    CHECK(num_bytes < model_acts_bytes(&stage.model, batch, MODEL_KEEP | MODEL_HEAD));
    free(stage.acts);
    stage.acts = poisoned(num_bytes);
    forward_scaled(&stage.model, batch, NULL, NULL, stage.acts, stage.scratch, losses, 0.0f, MODEL_HEAD);
    CHECK(worst_loss_error(losses, kept_losses, batch->num_rows) < 1e-6);
    double sum = 0.0;
    for (int v = 0; v < odd_config.vocab; v++) { sum += exp((double)stage.model.last_logits[v]); }
    CHECK_NEAR(log(sum) - (double)stage.model.last_logits[batch->targets[0]], losses[0], 1e-5);
    stage_close(&stage);
    free(losses);
    free(kept_losses);
}

static void nothing_supervised_gives_zero_gradients(void) {
    static OwnBatch own;
    batch_random(&own, odd_config, 3, 0);
    CHECK_EQ(own.batch.num_rows, 0);
    const int cuts[2][5] = {{0, 1, 2}, {0, 2, 2}};
    int64_t num_params = model_num_params(&odd_config);
    float *grads = zeros(num_params), loss = 5.0f;
    for (int i = 0; i < 2; i++) { run_chain(odd_config, &own.batch, cuts[i], 0, 1.0f, &loss, grads); }
    for (int64_t i = 0; i < num_params; i++) { CHECK(grads[i] == 0.0f); }
    CHECK(loss == 5.0f);
    free(grads);
}

static int64_t acts_bytes(const Model* model, int num_tokens, int num_rows, int flags) {
    const ModelBatch counts = {.num_seqs = 1, .num_tokens = num_tokens, .num_rows = num_rows};
    return model_acts_bytes(model, &counts, flags);
}

static void bytes_are_linear(void) {
    for (int cut = 0; cut < 4; cut++) {
        Model model;
        ModelConfig config = {.kind = &gpt2_kind,
                              .max_seq_len = 64,
                              .vocab = 200,
                              .num_layers = 4,
                              .num_heads = 2,
                              .channels = 24,
                              .padded_vocab = 256};
        model_init(&model, &config, cut & 1 ? 1 : 0, cut & 2 ? 3 : 4, !(cut & 2), ops);
        int flags = MODEL_KEEP | MODEL_HEAD;
        int64_t token = acts_bytes(&model, 16, 0, flags), row = acts_bytes(&model, 0, 16, flags);
        CHECK(token > 0);
        CHECK_EQ(row > 0, model.is_last);
        for (int i = 1; i < 50; i++) {
            int64_t tokens = draw(1000) + 1, rows = draw(1000);
            CHECK_EQ(acts_bytes(&model, (int)tokens, (int)rows, flags),
                     (tokens + 15) / 16 * token + (rows + 15) / 16 * row);
            CHECK_EQ(acts_bytes(&model, (int)tokens, (int)rows, 0),
                     (tokens + 15) / 16 * acts_bytes(&model, 1, 0, 0));
            CHECK_EQ(acts_bytes(&model, (int)tokens, (int)rows, flags) % 64, 0);
            CHECK_EQ(acts_bytes(&model, (int)tokens, (int)rows, MODEL_KEEP) % 64, 0);
        }
        CHECK(acts_bytes(&model, 16, 0, 0) < token / 2);
        model_free(&model);
    }
}

// The head alone keeps nothing of a token, and all of a row.
static void the_head_alone_keeps_rows_only(void) {
    Model head, last;
    model_init(&head, &odd_config, 2, 2, true, ops);
    model_init(&last, &odd_config, 1, 2, true, ops);
    CHECK_EQ(head.num_slices, 3);  // wte, lnfw, lnfb
    CHECK_EQ(head.num_params, 256 * 36 + 2 * 36);
    for (int flags = MODEL_HEAD; flags <= (MODEL_HEAD | MODEL_KEEP); flags++) {
        for (int rows = 0; rows < 300; rows += 7) {
            CHECK_EQ(acts_bytes(&head, 500, rows, flags),
                     acts_bytes(&last, 500, rows, flags) - acts_bytes(&last, 500, 0, flags));
        }
    }
    CHECK_EQ(acts_bytes(&head, 500, 300, 0), 0);
    model_free(&head);
    model_free(&last);
}

static void zeroed_gradients_are_zero(void) {
    ModelConfig config = {.kind = &gpt2_kind,
                          .max_seq_len = 1024,
                          .vocab = 20000,
                          .num_layers = 1,
                          .num_heads = 2,
                          .channels = 64,
                          .padded_vocab = 20096};
    Model model;
    model_init(&model, &config, 0, 1, true, ops);
    model_alloc_grads(&model);
    memset(model.grads, 0xff, (size_t)model.num_params * sizeof(floatX));
    CHECK(model.num_params > 1 << 20 && model.num_params % (1 << 20) != 0);
    model_zero_grads(&model);
    int64_t num_left = 0;
    for (int64_t i = 0; i < model.num_params; i++) { num_left += model.grads[i] != 0.0f; }
    CHECK_EQ(num_left, 0);
    model_free(&model);
}

static void random_init_is_cut_not_changed(void) {
    ModelConfig config = {.kind = &gpt2_kind,
                          .max_seq_len = 33,
                          .vocab = 101,
                          .num_layers = 3,
                          .num_heads = 2,
                          .channels = 10,
                          .padded_vocab = 128};
    Model whole, slice;
    model_init(&whole, &config, 0, 3, true, ops);
    CHECK_EQ(whole.num_params, model_num_params(&config));
    model_init_random(&whole, 42);
    for (int i = 101 * 10; i < 128 * 10; i++) { CHECK(whole.params[i] == 0.0f); }
    CHECK(whole.params[101 * 10 - 1] != 0.0f);
    for (int begin = 0; begin <= 3; begin++) {
        for (int end = begin; end <= 3; end++) {
            for (int is_last = begin == end; is_last <= (end == 3); is_last++) {
                model_init(&slice, &config, begin, end, is_last, ops);
                model_init_random(&slice, 42);
                CHECK(gpt2_golden_worst_error(&slice, slice.params, whole.params) == 0.0);
                model_free(&slice);
            }
        }
    }
    // standard deviations 0.02 and 0.02 / sqrt(2 L), from the draws themselves
    const Gpt2Tensor tensors[] = {GPT2_fcw, GPT2_fcprojw};
    for (int k = 0; k < 2; k++) {
        double squares = 0.0;
        int64_t num_values = 3 * 4 * 10 * 10;
        const float* values = whole.params + whole.slices[whole.slice_idx[tensors[k]]].offset;
        for (int64_t i = 0; i < num_values; i++) { squares += (double)values[i] * (double)values[i]; }
        CHECK_NEAR(sqrt(squares / (double)num_values) * (k == 0 ? 1.0 : sqrt(6.0)), 0.02, 0.0015);
    }
    model_free(&whole);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    ops = ops_create(0);
    RUN(pytorch_agrees);
    RUN(logits_agree_with_pytorch);
    RUN(slices_make_the_whole);
    RUN(grouping_and_padding_change_nothing);
    RUN(evaluation_in_chunks);
    RUN(nothing_supervised_gives_zero_gradients);
    RUN(bytes_are_linear);
    RUN(the_head_alone_keeps_rows_only);
    RUN(zeroed_gradients_are_zero);
    RUN(random_init_is_cut_not_changed);
    ops_free(ops);
    return test_end();
}
