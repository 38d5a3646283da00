// test_check_model.c -- dynapipe_check_model(): right models pass, every mistake is found and named. The
// mistakes are those that one who writes a model makes, put around a small GPT-2 of this repository.
#include <stdbool.h>

#include "../dynapipe_plugin/run/session.h"
#include "../llmc/kinds.h"
#include "../llmc/llmc_error.h"
#include "../trainer/llmc_model.h"
#include "test.h"

// --- the model ---------------------------------------------------------------------------------------------

// clang-format off
#define FAULTS(X)                                                                                               \
    X(NONE) X(SCRATCH_OVERRUN) X(ACTS_TOO_FEW) X(LOSS_FOR_EACH_TOKEN) X(WRITES_BEFORE_OUT) X(CHANGES_IN)        \
    X(FEWER_BYTES_FOR_MORE_ROWS) X(BYTES_FROM_ARRAYS) X(BOUNDARIES_DISAGREE) X(NEGATIVE_BYTES)                  \
    X(OUT_IS_ADDED_TO) X(FORWARD_REMEMBERS) X(FORWARD_ADDS_GRADIENTS) X(NO_ACTS_WITHOUT_OUT)                    \
    X(STATE_IN_MODEL) X(STATE_IN_SCRATCH) X(WEIGHTS_READ_IN) X(GRADIENTS_ASSIGNED) X(ZEROES_HALF)               \
    X(LOSS_IS_SCALED) X(MEAN_OVER_ROWS) X(TIED_NOT_LISTED) X(TIED_ELSEWHERE) X(DIN_OFF) X(OTHER_LAYERS)         \
    X(HEAD_NOT_ALONE) X(NO_PARAMS) X(FEWER_PARAMS_WITHOUT_VALUES) X(ACROSS_WINDOWS) X(ROWS_REVERSED)            \
    X(POINTER_IN_ACTS) X(ONE_STAGING) X(GRADIENT_3_PERCENT) X(PADDING_IS_SEEN) X(NO_GRADIENT)                   \
    X(FORWARD_FAILS) X(FLAGS_0_STAY_AT_A_LAYER) X(KEPT_IS_OF_THE_PIECE) X(ACTS_GROW) X(SCRATCH_GROWS)           \
    X(LAYERS_UNDIVIDED) X(LAYERS_OF_THREE) X(LAST_BY_TOKENS)                                                                      \
    X(NUM_FAULTS)
// clang-format on
#define X(name) name,
typedef enum { FAULTS(X) } Fault;
#undef X

typedef struct {
    Fault fault;
    bool no_weights_job;           // backward_inputs does all
    bool is_queued;                // jobs are done in finish(), as if there were a device
    bool is_bf16;                  // parameters
    int32_t max_tokens, max_seqs;  // of a batch; 0: any
    LlmcBlocks inner;
    DynapipeBlocks_v1 blocks;  // of it
    DynapipeModel_v1 api;
} Tiny;

// A call that waits for finish(). Batches live as long as their microbatch.
typedef struct {
    enum { JOB_FORWARD, JOB_INPUTS, JOB_WEIGHTS } kind;
    const DynapipeBatch* batch;
    const void *in, *dout;
    void *out, *acts, *scratch, *din;
    float* losses;
    int flags;
} Job;

enum {
    LAYERS = 3,
    HEAD = 2 * LAYERS + 1,  // of each attention and feed-forward
    MOST_JOBS = 16,
    KEPT_FLOATS = 16,
    KEPT = DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD
};

typedef struct {
    const Tiny* tiny;
    Model* model;
    DynapipeRange blocks;
    int64_t num_params;
    float* grads;
    uint16_t* half;  // the parameters in bf16
    DynapipeTied tied[MODEL_MAX_TIED];
    Job queue[MOST_JOBS];
    int32_t num_queued;
    // of faults: the microbatch that came last, and what belongs in acts
    int32_t staged[64];
    float kept[KEPT_FLOATS];
    const float* in;
    const DynapipeBatch* last;
} Range;

static const DynapipeModel_v1* const llmc = &dynapipe_llmc_model;

static bool has(const Range* range, Fault fault) {
    return range->tiny->fault == fault;
}

static bool is_last(const Range* range) {
    return range->blocks.end == HEAD + 1;
}

static int64_t tiny_acts_bytes(void* model, const DynapipeBatch* batch, int flags) {
    const Range* range = model;
    int64_t bytes = llmc->acts_bytes(range->model, batch, flags);
    if (has(range, FEWER_BYTES_FOR_MORE_ROWS) && flags == KEPT) {
        bytes += (1 << 20) - 1000 * batch->num_rows;
    }
    if (has(range, NEGATIVE_BYTES)) { return -1; }
    if (has(range, ACTS_GROW)) { bytes += batch->num_prefix; }
    return bytes + (has(range, POINTER_IN_ACTS) && (flags & DYNAPIPE_FORWARD_KEEP) ? 64 : 0);
}

static int64_t tiny_scratch_bytes(void* model, const DynapipeBatch* batch) {
    const Range* range = model;
    DynapipeBatch about = *batch;
    if (has(range, BYTES_FROM_ARRAYS)) { about.num_tokens = batch->cu_seqlens[batch->num_seqs]; }
    return llmc->scratch_bytes(range->model, &about) + (int64_t)sizeof(float[KEPT_FLOATS]) +
           (has(range, SCRATCH_GROWS) ? 4096 * batch->kept_begin : 0);
}

static int64_t tiny_kept_bytes(void* model, const DynapipeBatch* batch, int is_gradient) {
    const Range* range = model;
    return llmc->kept_bytes(range->model, batch, is_gradient) +
           (has(range, KEPT_IS_OF_THE_PIECE) && is_gradient ? batch->num_tokens : 0);
}

static int64_t tiny_boundary_bytes(void* model, const DynapipeBatch* batch, int is_after) {
    const Range* range = model;
    return llmc->boundary_bytes(range->model, batch, is_after) +
           (has(range, BOUNDARIES_DISAGREE) && is_after ? 4 : 0) +
           (has(range, LAST_BY_TOKENS) && (is_after ? range->blocks.end : range->blocks.begin) >= HEAD - 1
                ? 4 * batch->num_tokens
                : 0);
}

// The batch as a model with a fault reads it.
static DynapipeBatch seen(const Range* range, const DynapipeBatch* batch, int32_t* numbers) {
    DynapipeBatch b = *batch;
    if (has(range, MEAN_OVER_ROWS)) { b.loss_scale /= (float)(b.num_rows > 0 ? b.num_rows : 1); }
    if (has(range, ACROSS_WINDOWS)) {
        numbers[0] = 0;
        numbers[1] = b.num_tokens;
        b.cu_seqlens = numbers;
        b.num_seqs = 1;
        b.max_seq_tokens = b.num_tokens;
        b.num_squares = (int64_t)b.num_tokens * b.num_tokens;
    }
    if (has(range, PADDING_IS_SEEN)) {  // positions count down to the window's end
        for (int32_t i = 0; i < b.num_seqs; i++) {
            for (int32_t t = b.cu_seqlens[i]; t < b.cu_seqlens[i + 1]; t++) {
                numbers[t] = b.cu_seqlens[i + 1] - 1 - t;
            }
        }
        b.positions = numbers;
    }
    return b;
}

static int tiny_forward(void* model, const DynapipeBatch* batch, const void* in, void* out, void* acts,
                        void* scratch, float* losses, int flags) {
    Range* range = model;
    int32_t numbers[256];
    const Tiny* tiny = range->tiny;
    const bool keep = flags & DYNAPIPE_FORWARD_KEEP;
    const int64_t acts_bytes = llmc->acts_bytes(range->model, batch, flags);
    DynapipeBatch b = seen(range, batch, numbers);
    float* x = out;
    if (tiny->max_tokens > 0 && b.num_tokens > tiny->max_tokens) { return 8; }
    if (tiny->max_seqs > 0 && b.num_seqs > tiny->max_seqs) { return 9; }
    if (has(range, FORWARD_FAILS) && is_last(range)) { return 5; }
    if (has(range, NO_ACTS_WITHOUT_OUT) && out == NULL && !is_last(range)) { return 0; }
    float before = x != NULL && has(range, OUT_IS_ADDED_TO) ? x[0] : 0;
    int code = llmc->forward(range->model, &b, in, out, acts, scratch, losses, flags);
    range->in = in;
    if (has(range, CHANGES_IN) && in != NULL) { ((float*)(uintptr_t)in)[0] += 1; }
    if (has(range, FORWARD_ADDS_GRADIENTS)) { range->grads[0] += 1; }
    if (has(range, ACTS_TOO_FEW) && keep) { ((float*)acts)[acts_bytes / 4] = 0; }
    if (has(range, STATE_IN_MODEL) && keep) { memcpy(range->kept, acts, sizeof range->kept); }
    if (has(range, POINTER_IN_ACTS) && keep) { memcpy((char*)acts + acts_bytes, &acts, sizeof acts); }
    if (x != NULL) {
        if (has(range, FORWARD_REMEMBERS) && range->last == batch) { x[0] += 1; }
        if (has(range, OUT_IS_ADDED_TO)) { x[0] += 0 * before; }
        if (has(range, WRITES_BEFORE_OUT)) { x[-2] = 0; }
        bool is_long = range->blocks.end - range->blocks.begin > 2;
        if (has(range, FLAGS_0_STAY_AT_A_LAYER) && flags == 0 && is_long) { x[0] += 1; }
    }
    range->last = batch;
    for (int32_t r = 0; losses != NULL && r < b.num_rows; r++) {
        const int32_t other = b.num_rows - 1 - r;
        if (has(range, LOSS_IS_SCALED)) { losses[r] *= b.loss_scale; }
        if (has(range, ROWS_REVERSED) && r < other) {
            const float loss = losses[r];
            losses[r] = losses[other];
            losses[other] = loss;
        }
    }
    for (int32_t t = b.num_rows; losses != NULL && has(range, LOSS_FOR_EACH_TOKEN) && t < b.num_tokens; t++) {
        losses[t] = 0;
    }
    return code;
}

static int tiny_backward_weights(void* model, const DynapipeBatch* batch, void* acts, const void* dout,
                                 void* scratch) {
    Range* range = model;
    int32_t numbers[256];
    DynapipeBatch b = seen(range, batch, numbers);
    const size_t bytes = (size_t)range->num_params * sizeof(float);
    float* grads = malloc(bytes);
    memcpy(grads, range->grads, bytes);
    if (has(range, GRADIENTS_ASSIGNED)) { memset(range->grads, 0, bytes); }
    if (has(range, STATE_IN_SCRATCH)) {
        memcpy(acts, (char*)scratch + llmc->scratch_bytes(range->model, batch), sizeof range->kept);
    }
    if (has(range, WEIGHTS_READ_IN) && range->in != NULL) { range->grads[0] += 0 * range->in[0]; }
    if (has(range, POINTER_IN_ACTS)) {
        void* then;
        memcpy(&then, (char*)acts + llmc->acts_bytes(range->model, batch, KEPT), sizeof then);
        range->grads[0] += then != acts;
    }
    int code = llmc->backward_weights(range->model, &b, acts, dout, scratch);
    for (int64_t i = 0; i < range->num_params; i++) {
        const float added = range->grads[i] - grads[i];
        if (has(range, GRADIENT_3_PERCENT)) { range->grads[i] += 0.03F * added; }
        if (has(range, NO_GRADIENT)) { range->grads[i] -= added; }
    }
    free(grads);
    return code;
}

static int tiny_backward_inputs(void* model, const DynapipeBatch* batch, const void* in, void* acts,
                                const void* dout, void* din, void* scratch) {
    Range* range = model;
    int32_t numbers[256];
    DynapipeBatch b = seen(range, batch, numbers);
    char* after = (char*)scratch + llmc->scratch_bytes(range->model, batch);
    if (has(range, SCRATCH_OVERRUN)) { ((float*)(void*)(after + sizeof range->kept))[15] = 0; }
    if (has(range, STATE_IN_MODEL)) { memcpy(acts, range->kept, sizeof range->kept); }
    int code = llmc->backward_inputs(range->model, &b, in, acts, dout, din, scratch);
    if (has(range, STATE_IN_SCRATCH)) {
        memcpy(after, acts, sizeof range->kept);
        memset(acts, 0xff, sizeof range->kept);
    }
    // four to eight times what is tolerated; of 16 bits more
    const float off = range->tiny->is_bf16 ? 1.0F : 0x1p-12F;
    const int64_t num_din = din != NULL ? llmc->boundary_bytes(range->model, batch, 0) / 4 : 0;
    for (int64_t i = 0; has(range, DIN_OFF) && i < num_din; i++) { ((float*)din)[i] *= 1 + off; }
    if (code != 0 || !range->tiny->no_weights_job) { return code; }
    return tiny_backward_weights(model, batch, acts, dout, scratch);
}

static void tiny_zero_gradients(void* model) {
    Range* range = model;
    const int64_t count = has(range, ZEROES_HALF) ? range->num_params / 2 : range->num_params;
    memset(range->grads, 0, (size_t)count * sizeof(float));
}

// --- a queue -----------------------------------------------------------------------------------------------

static int enqueue(Range* range, Job job) {
    if (range->num_queued == MOST_JOBS) { return 4; }
    memcpy(range->staged, job.batch->tokens, (size_t)job.batch->num_tokens * sizeof(int32_t));
    range->queue[range->num_queued++] = job;
    return 0;
}

static int queued_finish(void* model) {
    Range* range = model;
    int code = 0;
    for (int32_t i = 0; i < range->num_queued && code == 0; i++) {
        const Job* j = &range->queue[i];
        DynapipeBatch b = *j->batch;
        if (has(range, ONE_STAGING)) { b.tokens = range->staged; }
        code = j->kind == JOB_FORWARD
                   ? tiny_forward(range, &b, j->in, j->out, j->acts, j->scratch, j->losses, j->flags)
               : j->kind == JOB_INPUTS
                   ? tiny_backward_inputs(range, &b, j->in, j->acts, j->dout, j->din, j->scratch)
                   : tiny_backward_weights(range, &b, j->acts, j->dout, j->scratch);
    }
    range->num_queued = 0;
    return code;
}

static int queued_forward(void* model, const DynapipeBatch* batch, const void* in, void* out, void* acts,
                          void* scratch, float* losses, int flags) {
    return enqueue(model, (Job){JOB_FORWARD, batch, in, NULL, out, acts, scratch, NULL, losses, flags});
}

static int queued_backward_inputs(void* model, const DynapipeBatch* batch, const void* in, void* acts,
                                  const void* dout, void* din, void* scratch) {
    return enqueue(model, (Job){JOB_INPUTS, batch, in, dout, NULL, acts, scratch, din, NULL, 0});
}

static int queued_backward_weights(void* model, const DynapipeBatch* batch, void* acts, const void* dout,
                                   void* scratch) {
    return enqueue(model, (Job){JOB_WEIGHTS, batch, NULL, dout, NULL, acts, scratch, NULL, NULL, 0});
}

// --- blocks ------------------------------------------------------------------------------------------------

// Rounded, and the copy that the checker reads.
static void round_params(Range* range, DynapipeParams_v1* params) {
    range->half = malloc((size_t)range->num_params * sizeof *range->half);
    for (int64_t i = 0; i < range->num_params; i++) {
        uint32_t bits;
        memcpy(&bits, &range->model->params[i], sizeof bits);
        range->half[i] = (uint16_t)(bits >> 16);
        bits &= 0xffff0000U;
        memcpy(&range->model->params[i], &bits, sizeof bits);
    }
    params->params = range->half;
}

static int tiny_make(void* ctx, DynapipeRange blocks, int has_values, void** model,
                     DynapipeParams_v1* params) {
    const Tiny* tiny = ctx;
    if (tiny->fault == HEAD_NOT_ALONE && blocks.begin == HEAD) { return 7; }
    Range* range = calloc(1, sizeof *range);
    range->tiny = tiny;
    range->blocks = blocks;
    int code = tiny->blocks.make(tiny->blocks.ctx, blocks, has_values, (void**)&range->model, params);
    range->num_params = params->num_params;
    range->grads = params->grads;
    if (tiny->is_bf16) { params->param_type = DYNAPIPE_BFLOAT16; }
    if (tiny->is_bf16 && has_values) { round_params(range, params); }
    for (int64_t i = 0;
         tiny->fault == OTHER_LAYERS && has_values && blocks.begin > 0 && i < range->num_params; i++) {
        const bool is_tied = params->num_tied > 0 && i < params->tied[0].begin + params->tied[0].count;
        if (!is_tied) { range->model->params[i] *= 1.5F; }
    }
    memcpy(range->tied, params->tied, (size_t)params->num_tied * sizeof *range->tied);
    params->tied = range->tied;
    if (tiny->fault == FEWER_PARAMS_WITHOUT_VALUES && !has_values) { params->num_params--; }
    if (tiny->fault == NO_PARAMS) { params->params = NULL; }
    if (tiny->fault == TIED_NOT_LISTED) { params->num_tied = 0; }
    if (tiny->fault == TIED_ELSEWHERE && blocks.begin > 0 && params->num_tied > 0) {
        range->tied[0].begin += 8;
    }
    *model = range;
    return code;
}

static void tiny_drop(void* ctx, void* model) {
    Range* range = model;
    const Tiny* tiny = ctx;
    tiny->blocks.drop(tiny->blocks.ctx, range->model);
    free(range->half);
    free(range);
}

static const char* tiny_why(void* ctx) {
    const Tiny* tiny = ctx;
    return tiny->fault == HEAD_NOT_ALONE ? "a head needs a layer" : "tiny words";
}

static OpsContext* ops;

static DynapipeBlocks_v1 tiny_blocks(Tiny* tiny) {
    ModelConfig config;
    CHECK(model_parse(&config, &gpt2_kind, "l3c8h2", 11, 32));
    tiny->blocks = dynapipe_llmc_blocks(&tiny->inner, &config, ops);
    tiny->api = (DynapipeModel_v1){.name = "tiny",
                                   .acts_bytes = tiny_acts_bytes,
                                   .scratch_bytes = tiny_scratch_bytes,
                                   .boundary_bytes = tiny_boundary_bytes,
                                   .kept_bytes = tiny_kept_bytes,
                                   .forward = tiny_forward,
                                   .backward_inputs = tiny_backward_inputs,
                                   .backward_weights = tiny->no_weights_job ? NULL : tiny_backward_weights,
                                   .zero_gradients = tiny_zero_gradients};
    if (tiny->is_queued) {
        tiny->api.forward = queued_forward;
        tiny->api.backward_inputs = queued_backward_inputs;
        tiny->api.backward_weights = queued_backward_weights;
        tiny->api.finish = queued_finish;
    }
    DynapipeBlocks_v1 blocks = tiny->blocks;
    blocks.api = &tiny->api;
    blocks.ctx = tiny;
    blocks.make = tiny_make;
    blocks.drop = tiny_drop;
    blocks.why = tiny_why;
    if (tiny->fault == LAYERS_UNDIVIDED) { blocks.layer_blocks = 1, blocks.last_in_rows = 0; }
    if (tiny->fault == LAYERS_OF_THREE) { blocks.layer_blocks = 3; }
    blocks.shapes = (DynapipeShapes_v1){.max_tokens = tiny->max_tokens, .max_seqs = tiny->max_seqs};
    return blocks;
}

// --- the checker -------------------------------------------------------------------------------------------

static Dynapipe* dp;

// What was said, for the test's own eyes: every line.
static char said[8192];

static int check(const DynapipeBlocks_v1* blocks) {
    FILE* out = tmpfile();
    if (out == NULL) { return -1; }
    int code = dynapipe_check_model(dp, blocks, out);
    rewind(out);
    size_t length = fread(said, 1, sizeof said - 1, out);
    said[length] = '\0';
    fclose(out);
    return code;
}

static int lines_with(const char* begin) {
    int count = 0;
    for (const char* line = said; *line != '\0'; line = strchr(line, '\n') + 1) {
        count += strncmp(line, begin, strlen(begin)) == 0;
    }
    return count;
}

static void passes(Tiny* tiny, const DynapipeShapes_v1* shapes) {
    DynapipeBlocks_v1 blocks = tiny_blocks(tiny);
    if (shapes != NULL) { blocks.shapes = *shapes; }
    if (blocks.shapes.head_has_layer) { blocks.last_in_rows = 0; }
    CHECK_EQ(check(&blocks), 0);
    CHECK_EQ(lines_with("ok   "), 15);
    if (lines_with("FAIL ") > 0) { printf("%s", said); }
}

static void a_right_model_passes(void) {
    passes(&(Tiny){0}, NULL);
    passes(&(Tiny){.no_weights_job = true}, NULL);
    passes(&(Tiny){.is_queued = true}, NULL);
}

static void shapes_are_kept_to(void) {
    passes(&(Tiny){0}, &(DynapipeShapes_v1){.padded = 1});
    passes(&(Tiny){0}, &(DynapipeShapes_v1){.padded = 1, .seq_multiple = 4, .tokens_multiple = 16});
    passes(&(Tiny){.max_tokens = 9}, NULL);
    passes(&(Tiny){.max_seqs = 1}, NULL);
    passes(&(Tiny){.max_tokens = 32, .max_seqs = 2},
           &(DynapipeShapes_v1){
               .padded = 1, .seq_multiple = 4, .tokens_multiple = 16, .max_tokens = 32, .max_seqs = 2});
    passes(&(Tiny){.fault = HEAD_NOT_ALONE}, &(DynapipeShapes_v1){.head_has_layer = 1});
}

static void sixteen_bits_pass(void) {
    passes(&(Tiny){.is_bf16 = true}, NULL);
}

static const char* const fault_names[] = {
#define X(name) #name,
    FAULTS(X)
#undef X
};

static const struct {
    Fault fault;
    const char* words;  // of the first thing found
} findings[] = {
    {SCRATCH_OVERRUN, "blocks [7, 8), 1 sequence of 7 tokens, 3 rows: backward_inputs wrote at least 64 "
                      "bytes after its scratch"},
    {ACTS_TOO_FEW,
     "blocks [0, 2), 1 sequence of 7 tokens, 3 rows: forward wrote at least 4 bytes after its acts"},
    {LOSS_FOR_EACH_TOKEN, "after its losses"},
    {WRITES_BEFORE_OUT,
     "blocks [0, 2), 1 sequence of 7 tokens, 3 rows: forward wrote at least 8 bytes before its out"},
    {CHANGES_IN, "blocks [2, 3), 1 sequence of 7 tokens, 3 rows: forward changed its in"},
    {FEWER_BYTES_FOR_MORE_ROWS, "2 sequences of 2 tokens, 2 rows: acts_bytes() with KEEP | HEAD: "},
    {BYTES_FROM_ARRAYS, " when the arrays hold something else"},
    {BOUNDARIES_DISAGREE,
     "blocks [2, 3), 1 sequence of 7 tokens, 3 rows: bytes that leave the blocks before"},
    {NEGATIVE_BYTES, "a buffer of -1 bytes is asked for"},
    {OUT_IS_ADDED_TO, "losses: value 0 of 3 is not a number"},
    {FORWARD_REMEMBERS, "the same forward again, 1 sequence of 7 tokens, 3 rows: losses: "},
    {FLAGS_0_STAY_AT_A_LAYER,
     "a forward that keeps nothing, recomputed (out NULL), 1 sequence of 7 tokens, 3 rows: losses: "},
    {FORWARD_ADDS_GRADIENTS,
     "the same forward again, 1 sequence of 7 tokens, 3 rows, blocks [0, 2): gradients: value 0 of "},
    {NO_ACTS_WITHOUT_OUT,
     "recomputed (out NULL), 1 sequence of 7 tokens, 3 rows, blocks [0, 2): gradients: "},
    {STATE_IN_MODEL, "two microbatches under way at once"},
    {STATE_IN_SCRATCH, "1 sequence of 7 tokens, 3 rows, blocks [0, 2): gradients: value "},
    {WEIGHTS_READ_IN, "1 sequence of 7 tokens, 3 rows, blocks [2, 3): gradients: value 0 of "},
    {POINTER_IN_ACTS, "acts may move: no pointer into them is kept"},
    {ONE_STAGING, "jobs that are waited for once, 1 sequence of 7 tokens, 3 rows: losses: "},
    {GRADIENTS_ASSIGNED, "gradients are added (+=)"},
    {ZEROES_HALF, "zero_gradients left"},
    {LOSS_IS_SCALED, "losses are cross entropies in nats; loss_scale belongs to gradients alone"},
    {MEAN_OVER_ROWS,
     "against the same samples one by one, 4 sequences of 13 tokens, 7 rows, blocks [0, 8): gradients: "},
    {TIED_NOT_LISTED, "in params->tied of each that has it"},
    {TIED_ELSEWHERE, "the model cut before block 2, 1 sequence of 7 tokens, 3 rows: parameters without tied "
                     "copies, and of the whole, or other values: "},
    {DIN_OFF, "the model cut before block 2, 1 sequence of 7 tokens, 3 rows: gradients"},
    {OTHER_LAYERS, "make() gives a block the same values in every range that has it"},
    {HEAD_NOT_ALONE, "blocks [7, 8) of 8: make() returned error 7: a head needs a layer"},
    {NO_PARAMS, "make() of blocks [0, 8) of 8: 3912 parameters, but no array of them"},
    {FEWER_PARAMS_WITHOUT_VALUES, "with has_values 0 and 1: parameters: 3911 and 3912"},
    {ACROSS_WINDOWS, "attention stays inside a window"},
    {ROWS_REVERSED, "losses stand in the order of batch->rows"},
    {PADDING_IS_SEEN, "without padding, 1 sequence of 10 tokens, 3 rows, with padding: losses: "},
    {NO_GRADIENT, "by the gradients it would by"},
    {GRADIENT_3_PERCENT, "by the gradients it would by"},
    {KEPT_IS_OF_THE_PIECE, "kept_bytes() of the first piece, and here: "},
    {ACTS_GROW, "what pieces share belongs in kept_bytes()"},
    {SCRATCH_GROWS, "scratch_bytes(), and with the tokens before it: "},
    {LAYERS_UNDIVIDED, "blocks 2 and 3, the same of two layers: parameters: "},
    {LAYERS_OF_THREE, "blocks 2 and 5, the same of two layers: parameters: "},
    {LAST_BY_TOKENS, "1 sequence of 6 tokens, 1 rows: boundary_bytes() after blocks: "},
    {FORWARD_FAILS, "blocks [7, 8), 1 sequence of 7 tokens, 3 rows: forward returned error 5: tiny words"},
};

// The error is the first line that fails, and each names a remedy.
static void every_mistake_is_named(void) {
    int num_findings = (int)(sizeof findings / sizeof findings[0]);
    CHECK_EQ(num_findings, NUM_FAULTS - 1);
    for (int i = 0; i < num_findings; i++) {
        Tiny tiny = {.fault = findings[i].fault, .is_queued = findings[i].fault == ONE_STAGING};
        DynapipeBlocks_v1 blocks = tiny_blocks(&tiny);
        bool failed = check(&blocks) != 0 && lines_with("FAIL ") > 0;
        const char* line = strstr(said, "FAIL ");
        bool is_first = failed && strstr(line, dynapipe_error()) != NULL &&
                        strstr(line, dynapipe_error()) < strchr(line, '\n');
        bool is_named = is_first && strstr(dynapipe_error(), findings[i].words) != NULL;
        if (is_named) { continue; }
        printf("%s: \"%s\" expected, %s\n%s\n", fault_names[findings[i].fault], findings[i].words,
               dynapipe_error(), said);
        CHECK(is_named);
    }
}

// Rounded to 8 bits: finite differences see little then, the other laws as much as before.
static void sixteen_bits_hide_no_disorder(void) {
    static const Fault faults[] = {DIN_OFF, GRADIENTS_ASSIGNED, LOSS_IS_SCALED, STATE_IN_MODEL,
                                   MEAN_OVER_ROWS};
    for (int i = 0; i < 5; i++) {
        Tiny tiny = {.fault = faults[i], .is_bf16 = true};
        DynapipeBlocks_v1 blocks = tiny_blocks(&tiny);
        CHECK(check(&blocks) != 0);
        if (lines_with("FAIL ") == 0) { printf("%s\n", fault_names[faults[i]]); }
    }
}

static void a_table_with_holes_is_named(void) {
    Tiny tiny = {0};
    DynapipeBlocks_v1 blocks = tiny_blocks(&tiny);
    tiny.api.zero_gradients = NULL;
    CHECK(check(&blocks) != 0 && strstr(dynapipe_error(), "the model tiny has no zero_gradients") != NULL);
    blocks = tiny_blocks(&tiny);
    blocks.num_layers = 1;
    CHECK(check(&blocks) != 0 && strstr(dynapipe_error(), "take one of at least 2 layers") != NULL);
    blocks = tiny_blocks(&tiny);
    blocks.shapes.padded = 1;
    blocks.shapes.seq_multiple = 65536;
    blocks.shapes.tokens_multiple = 65535;
    CHECK(check(&blocks) != 0 && strstr(dynapipe_error(), "multiple of 4294901760 tokens") != NULL);
    blocks = tiny_blocks(&tiny);
    blocks.shapes.reserved[2] = 1;
    CHECK(check(&blocks) != 0 && strstr(dynapipe_error(), "DynapipeShapes_v1.reserved[2] is set") != NULL);
    blocks = tiny_blocks(&tiny);
    blocks.make = NULL;
    CHECK(dynapipe_check_model(dp, &blocks, NULL) != 0 && strstr(dynapipe_error(), "make is NULL") != NULL);
}

int main(void) {
    Dynapipe session = {.num_stages = 1, .num_replicas = 1};  // without MPI
    dp = &session;
    ops = ops_create(1);
    RUN(a_right_model_passes);
    RUN(shapes_are_kept_to);
    RUN(sixteen_bits_pass);
    RUN(every_mistake_is_named);
    RUN(sixteen_bits_hide_no_disorder);
    RUN(a_table_with_holes_is_named);
    session_device_close(dp);
    ops_free(ops);
    return test_end();
}
