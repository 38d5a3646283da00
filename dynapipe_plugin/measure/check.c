/*
check.c -- dynapipe_check_model(): a model run on tiny microbatches in guarded memory, and the laws that its
results must keep.

A model is made in ranges (a chain), and a microbatch passes through them job by job, as the executor would
run it: every buffer has exactly the bytes that were asked for, between guards, and whatever a job may not
rely on holds NaN. A law that is broken ends with fail(), which jumps out of it; what it made is on the
checker's lists and is released there.
*/
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../util/arena.h"
#include "../../util/numbers.h"
#include "../../util/status.h"
#include "../dynapipe.h"
#include "../plan/plan.h"
#include "../plan/problem.h"
#include "../plan/types.h"
#include "../run/device.h"
#include "../run/session.h"
#include "measure.h"

// num_bytes where values live (or in this process), between two guards.
typedef struct CheckBuffer {
    unsigned char *whole, *data;
    int64_t num_bytes;
    bool on_device;
    struct CheckBuffer* next;  // of the checker's list
} CheckBuffer;

// A range of the model returned by make().
typedef struct CheckRange {
    DynapipeRange blocks;
    void* model;
    DynapipeParams_v1 params;
    int64_t begin;            // of its values among the chain's
    struct CheckRange* next;  // of the checker's list
} CheckRange;

// The whole model, in ranges.
typedef struct {
    CheckRange** ranges;
    int32_t num_ranges;
    int64_t num_values;  // of all parameters
} CheckChain;

typedef struct {
    const DynapipeBlocks_v1* blocks;
    Device device;
    Arena arena;           // host memory of the law at hand
    CheckBuffer* buffers;  // of the law at hand
    CheckRange* ranges;
    unsigned char* temp;  // scratch of this file's functions
    size_t temp_bytes;
    int32_t num_blocks;       // embedding(s), layers' blocks, head
    int32_t *cuts, num_cuts;  // blocks before which the model can be cut
    bool has_decoder;
    double tolerance;     // relative, of sums of gradients in another order
    double epsilon;       // of the coarsest type that values are kept in
    bool is_fast;         // no guards, no NaN: for the thousands of forwards of finite differences
    bool is_queued;       // finish() is not called after every job
    bool is_overwritten;  // the model wrote outside its buffers: no more jobs run
    jmp_buf end_of_law;
    Status status;    // of the law at hand
    char about[256];  // what its message is about
} Checker;

#define CHECK_NEW(c, Type, count) ((Type*)check_alloc(c, (int64_t)(count), sizeof(Type)))

// Two arguments of a message about a range: "blocks [%d, %d)".
#define BLOCKS(range) (int)(range)->blocks.begin, (int)(range)->blocks.end

enum { CHECK_KEEP = DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD };

static void must(Checker* c, Status status) {
    c->status = status;
    if (status != STATUS_OK) { longjmp(c->end_of_law, 1); }
}

// What messages are about, until the next call.
static void about(Checker* c, const char* fmt, ...) __attribute__((format(printf, 2, 3)));
static void about(Checker* c, const char* fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(c->about, sizeof c->about, fmt, args);
    va_end(args);
}

// "blocks [2, 3), 1 sequence of 7 tokens: <words> ---> <remedy>"
static void fail(Checker* c, const char* remedy, const char* fmt, ...)
    __attribute__((format(printf, 3, 4), noreturn));
static void fail(Checker* c, const char* remedy, const char* fmt, ...) {
    char words[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(words, sizeof words, fmt, args);
    va_end(args);
    must(c, FAIL(STATUS_MISMATCH, "%s: %s ---> %s", c->about, words, remedy));
    abort();
}

static void check_counts(Checker* c, const char* what, int64_t a, int64_t b, bool holds, const char* remedy) {
    if (!holds) { fail(c, remedy, "%s: %lld and %lld", what, (long long)a, (long long)b); }
}

// --- memory ----------------------------------------------------------------------------------------------

enum { LEAST_GUARD_BYTES = 16 * PLAN_BUFFER_ALIGN, GUARD_PATTERN = 0xa5, SPOILED = 0xff };

static void* allocated(Checker* c, void* memory) {
    if (memory == NULL) {
        must(c, FAIL(STATUS_NO_MEMORY, "no memory left to check the model ---> check a smaller one"));
    }
    return memory;
}

static void* check_alloc(Checker* c, int64_t count, size_t item_bytes) {
    return allocated(c, arena_alloc_array(&c->arena, (size_t)count, item_bytes));
}

// As long as the buffer and a little more: a forgotten array overruns by no more.
static int64_t guard_bytes(int64_t num_bytes) {
    return (num_bytes + PLAN_BUFFER_ALIGN - 1) / PLAN_BUFFER_ALIGN * PLAN_BUFFER_ALIGN + LEAST_GUARD_BYTES;
}

static unsigned char* check_temp(Checker* c, int64_t num_bytes) {
    if ((size_t)num_bytes > c->temp_bytes) {
        c->temp = (unsigned char*)allocated(c, realloc(c->temp, (size_t)num_bytes));
        c->temp_bytes = (size_t)num_bytes;
    }
    return c->temp;
}

static void check_copy(Checker* c, void* to, const void* from, int64_t num_bytes) {
    if (num_bytes == 0) { return; }
    if (c->device.api != NULL) {
        must(c, c->device.api->copy(c->device.ctx, to, from, num_bytes));
    } else {
        memcpy(to, from, (size_t)num_bytes);
    }
}

static void check_fill(Checker* c, void* to, int value, int64_t num_bytes) {
    void* values = c->device.api == NULL ? to : check_temp(c, num_bytes + 1);
    memset(values, value, (size_t)num_bytes);
    if (values != to) { check_copy(c, to, values, num_bytes); }
}

// 0xff: NaN in every type, and no valid index.
static void check_spoil(Checker* c, const CheckBuffer* buffer) {
    if (!c->is_fast && buffer != NULL) { check_fill(c, buffer->data, SPOILED, buffer->num_bytes); }
}

// offset: of its address from a multiple of PLAN_BUFFER_ALIGN, less than that.
static CheckBuffer* buffer_at(Checker* c, int64_t num_bytes, bool on_host, int64_t offset) {
    if (num_bytes < 0) {
        fail(c, "acts_bytes(), scratch_bytes() and the like are never negative",
             "a buffer of %lld bytes is asked for", (long long)num_bytes);
    }
    int64_t guard = guard_bytes(num_bytes);
    CheckBuffer* buffer = CHECK_NEW(c, CheckBuffer, 1);
    void* whole = NULL;
    buffer->on_device = c->device.api != NULL && !on_host;
    if (buffer->on_device) {
        must(c, c->device.api->alloc(c->device.ctx, &whole, 3 * guard));
    } else {
        whole = aligned_alloc(PLAN_BUFFER_ALIGN, (size_t)(3 * guard));
    }
    buffer->whole = (unsigned char*)allocated(c, whole);
    buffer->data = buffer->whole + guard + offset;
    buffer->num_bytes = num_bytes;
    buffer->next = c->buffers;
    c->buffers = buffer;
    check_fill(c, whole, GUARD_PATTERN, 3 * guard);
    check_spoil(c, buffer);
    return buffer;
}

static CheckBuffer* check_buffer(Checker* c, int64_t num_bytes) {
    return buffer_at(c, num_bytes, false, 0);
}

static void check_release(Checker* c) {
    for (CheckBuffer* b = c->buffers; b != NULL; b = b->next) {
        if (b->on_device) {
            c->device.api->release(c->device.ctx, b->whole);
        } else {
            free(b->whole);
        }
    }
    for (CheckRange* range = c->ranges; range != NULL; range = range->next) {
        c->blocks->drop(c->blocks->ctx, range->model);
    }
    c->buffers = NULL;
    c->ranges = NULL;
    arena_reset(&c->arena);
}

// How many bytes before the buffer (negative) or after it were overwritten; 0: none.
static int64_t check_damage(Checker* c, const CheckBuffer* buffer) {
    int64_t guard = guard_bytes(buffer->num_bytes) - PLAN_BUFFER_ALIGN, before = 0, after = 0;
    unsigned char *first = check_temp(c, 2 * guard), *last = first + guard;
    check_copy(c, first, buffer->data - guard, guard);
    check_copy(c, last, buffer->data + buffer->num_bytes, guard);
    for (int64_t i = 0; i < guard; i++) {
        if (last[i] != GUARD_PATTERN) { after = i + 1; }
        if (first[guard - 1 - i] != GUARD_PATTERN) { before = i + 1; }
    }
    return after > 0 ? after : -before;
}

// --- values ----------------------------------------------------------------------------------------------

static int64_t value_bytes(int32_t type) {
    return type == DYNAPIPE_FLOAT32 ? 4 : 2;
}

// Values of a DynapipeType where values live, as floats here.
static float* check_read(Checker* c, float* to, const void* from, int32_t type, int64_t num_values) {
    if (type == DYNAPIPE_FLOAT32) {
        check_copy(c, to, from, num_values * 4);
        return to;
    }
    const uint16_t* halves = (const uint16_t*)(const void*)check_temp(c, num_values * 2 + 1);
    check_copy(c, c->temp, from, num_values * 2);
    for (int64_t i = 0; i < num_values; i++) {
        to[i] = type == DYNAPIPE_FLOAT16 ? half_from_float16(halves[i]) : half_from_bfloat16(halves[i]);
    }
    return to;
}

// Fails where values differ by more than `tolerance` of the larger of both and the array's root mean square:
// "<what>: value 17 of 640: 0.25 expected, 0.5 found; 12 of them differ", with the value that differs most.
// NaN always differs.
static void check_same(Checker* c, const char* what, const float* expected, const float* found,
                       int64_t num_values, double tolerance, const char* remedy) {
    double squares = 0, worst = 0;
    int64_t num_off = 0, at = 0;
    for (int64_t i = 0; i < num_values; i++) {
        if (isfinite(expected[i])) { squares += (double)expected[i] * expected[i]; }
    }
    double typical = num_values > 0 ? sqrt(squares / (double)num_values) : 0;
    for (int64_t i = 0; i < num_values; i++) {
        double a = expected[i], b = found[i];
        double off = fabs(a - b) / (fmax(fabs(a), fabs(b)) + typical + 1e-30);
        if (isnan(off)) { off = INFINITY; }
        if (off <= tolerance) { continue; }
        if (num_off++ == 0 || off > worst) { worst = off, at = i; }
    }
    if (num_off == 0) { return; }
    fail(c, remedy, "%s: value %lld of %lld: %.6g expected, %.6g found; %lld of them differ", what,
         (long long)at, (long long)num_values, (double)expected[at], (double)found[at], (long long)num_off);
}

static void check_numbers(Checker* c, const char* what, const float* values, int64_t num_values,
                          const char* remedy) {
    for (int64_t i = 0; i < num_values; i++) {
        if (isfinite(values[i])) { continue; }
        fail(c, remedy, "%s: value %lld of %lld is not a number", what, (long long)i, (long long)num_values);
    }
}

// --- ranges of the model -----------------------------------------------------------------------------------

static const char* check_why(const Checker* c) {
    return c->blocks->why != NULL ? c->blocks->why(c->blocks->ctx) : "no message (blocks->why is NULL)";
}

static CheckRange* check_range(Checker* c, DynapipeRange blocks, bool has_values) {
    CheckRange* range = CHECK_NEW(c, CheckRange, 1);
    range->blocks = blocks;
    about(c, "blocks [%d, %d) of %d", BLOCKS(range), (int)c->num_blocks);
    int code = c->blocks->make(c->blocks->ctx, blocks, has_values, &range->model, &range->params);
    if (code != 0) {
        fail(c, "a stage may be any contiguous blocks; block 0 is the embedding, the last the head",
             "make() returned error %d: %s", code, check_why(c));
    }
    range->next = c->ranges;
    c->ranges = range;
    if (interface_check_params(&range->params, has_values) != STATUS_OK) {
        must(c, FAIL(STATUS_MISMATCH, "make() of %s: %s", c->about, status_message()));
    }
    for (int32_t i = 0; i < range->params.num_tied; i++) {
        const DynapipeTied* tied = &range->params.tied[i];
        check_counts(c, "begin and count of a tied group", tied->begin, tied->count,
                     tied->group >= 0 && tied->begin >= 0 && tied->count > 0 &&
                         tied->count <= range->params.num_params - tied->begin,
                     "they are values (not bytes) of this range's own array");
    }
    return range;
}

// The embedding is no stage alone, a decoder's embedding goes with the next block.
static Status find_cuts(Checker* c) {
    const PlanChain layers = measure_chain(c->blocks);
    c->num_blocks = plan_chain_num_blocks(&layers) + 2 + c->has_decoder;
    c->cuts = (int32_t*)calloc((size_t)c->num_blocks, sizeof *c->cuts);
    if (c->cuts == NULL) { return FAIL(STATUS_NO_MEMORY, "no host memory left"); }
    for (int32_t b = 2; b < c->num_blocks - c->blocks->shapes.head_has_layer; b++) {
        bool after_dec_embedding = c->has_decoder && b == plan_chain_first_dec(&layers) + 2;
        if (!after_dec_embedding) { c->cuts[c->num_cuts++] = b; }
    }
    return STATUS_OK;
}

// Ways to cut the model: at every place, every second, every third, so that ranges begin and end with any
// blocks of a layer; then at each place alone (in ranges of several layers, which come to share buffers).
enum { WHOLE = -1, FINEST, ALONE_AT = 6 };
static CheckChain check_chain(Checker* c, int32_t way) {
    static const int32_t strides[ALONE_AT][2] = {{0, 1}, {0, 2}, {1, 2},
                                                 {0, 3}, {1, 3}, {2, 3}};  // first, stride
    CheckChain chain = {CHECK_NEW(c, CheckRange*, c->num_cuts + 1), 0, 0};
    int32_t next = way - ALONE_AT, stride = c->num_cuts;
    if (way == WHOLE) { next = c->num_cuts; }
    if (way >= 0 && way < ALONE_AT) { next = strides[way][0], stride = strides[way][1]; }
    for (int32_t begin = 0, end; begin < c->num_blocks; begin = end, next += stride) {
        end = next < c->num_cuts ? c->cuts[next] : c->num_blocks;
        CheckRange* range = check_range(c, (DynapipeRange){.begin = begin, .end = end}, true);
        range->begin = chain.num_values;
        chain.num_values += range->params.num_params;
        chain.ranges[chain.num_ranges++] = range;
    }
    return chain;
}

static int32_t coarse(const Checker* c) {
    return c->num_cuts > 2 ? ALONE_AT + c->num_cuts / 2 : WHOLE;
}

// The first range of the chain with a copy of that group, and its values there.
static const DynapipeTied* first_copy(const CheckChain* chain, int32_t group, int32_t* out) {
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        const DynapipeParams_v1* params = &chain->ranges[r]->params;
        for (int32_t i = 0; i < params->num_tied; i++) {
            *out = r;
            if (params->tied[i].group == group) { return &params->tied[i]; }
        }
    }
    return NULL;
}

// All of the chain's, range by range: (chain->num_values).
static float* values_of(Checker* c, const CheckChain* chain, bool gradients) {
    float* values = CHECK_NEW(c, float, chain->num_values);
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        const DynapipeParams_v1* params = &chain->ranges[r]->params;
        check_read(c, values + chain->ranges[r]->begin, gradients ? params->grads : params->params,
                   gradients ? params->grad_type : params->param_type, params->num_params);
    }
    return values;
}

// From NaN to zero. Returns the zeros.
static float* zero_gradients(Checker* c, const CheckChain* chain) {
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        const DynapipeParams_v1* params = &chain->ranges[r]->params;
        check_fill(c, params->grads, SPOILED, params->num_params * value_bytes(params->grad_type));
        c->blocks->api->zero_gradients(chain->ranges[r]->model);
    }
    float* zeros = values_of(c, chain, true);
    for (int64_t i = 0; i < chain->num_values; i++) {
        if (zeros[i] == 0) { continue; }
        fail(c, "it zeroes all of params->grads", "zero_gradients left %.3g in value %lld of %lld",
             (double)zeros[i], (long long)i, (long long)chain->num_values);
    }
    return zeros;
}

// --- microbatches ----------------------------------------------------------------------------------------

typedef struct {
    DynapipeBatch batch;
    char what[112];  // "2 sequences of 5, 3 tokens, padded to 8"
} CheckBatch;

enum { CHECK_STANDARD = 3, MOST_SAMPLES = 4 };

// Gradients of a row's loss are multiplied by it: a power of two, so that doubling it is exact.
#define LOSS_SCALE 0.125F

static int32_t at_most(const Checker* c, int32_t num_tokens) {
    int32_t most = c->blocks->max_seq_tokens;
    return most > 0 && num_tokens > most ? most : num_tokens;
}

// Pads all windows of a side to one length, `padding` more than the longest, where it is positive or kernels
// ask for it. Within the kernels' limits?
static bool pad_samples(const Checker* c, MadeWindow* samples, int32_t num, int32_t padding) {
    const ShapeRules rules = session_rules(&c->blocks->shapes);
    int32_t longest[2] = {0, 0};
    MbShape shape = {0};
    for (int32_t i = 0; i < 2 * num; i++) {
        int32_t tokens = samples[i / 2].tokens[i % 2];
        if (tokens > longest[i % 2]) { longest[i % 2] = tokens; }
    }
    for (int32_t i = 0; i < num; i++) {
        int32_t lengths[2];
        for (int side = 0; side < 2; side++) {
            bool pads = (rules.padded || padding > 0) && longest[side] > 0;
            int32_t wanted = at_most(c, longest[side] + padding);
            samples[i].padded[side] = pads ? (int32_t)shape_rules_round(&rules, wanted, num) : 0;
            lengths[side] = pads ? samples[i].padded[side] : samples[i].tokens[side];
        }
        mb_shape_add(&shape, lengths[0], lengths[1], 0);
    }
    return shape_rules_allow(&rules, &shape);
}

// Fewer, then shorter, until they are allowed. Returns how many.
static int32_t fit_samples(const Checker* c, MadeWindow* samples, int32_t num, int32_t longest) {
    for (longest = at_most(c, longest);;) {
        for (int32_t i = 0; i < 2 * num; i++) {
            int32_t* tokens = &samples[i / 2].tokens[i % 2];
            if (*tokens > longest) { *tokens = longest; }
        }
        for (int32_t i = 0; i < num; i++) {
            int32_t supervised = samples[i].tokens[c->has_decoder];
            if (samples[i].num_rows > supervised) { samples[i].num_rows = supervised; }
        }
        if (pad_samples(c, samples, num, 0) || (num == 1 && longest <= 1)) { return num; }
        *(num > 1 ? &num : &longest) -= 1;
    }
}

// One sample; four, of which one is not supervised; a long and a short one, with sizes that need no rounding.
static int32_t standard_samples(const Checker* c, MadeWindow out[MOST_SAMPLES], int32_t idx) {
    static const MadeWindow standard[CHECK_STANDARD][MOST_SAMPLES] = {
        {{1, {7, 4}, 3, {0, 0}}},
        {{2, {5, 3}, 2, {0, 0}}, {3, {1, 2}, 1, {0, 0}}, {4, {3, 1}, 0, {0, 0}}, {5, {4, 5}, 4, {0, 0}}},
        {{6, {30, 2}, 15, {0, 0}},
         {7, {2, 30}, 1, {0, 0}}},  // 32 tokens, 16 rows: what sizes are rounded up to
    };
    memcpy(out, standard[idx], sizeof standard[idx]);
    for (int32_t i = 0; i < MOST_SAMPLES && !c->has_decoder; i++) { out[i].tokens[1] = 0; }
    return fit_samples(c, out, idx == 0 ? 1 : idx == 1 ? 4 : 2, 30);
}

static void describe(const Checker* c, CheckBatch* out, const MadeWindow* samples, int32_t T) {
    int32_t num = out->batch.num_seqs;
    size_t room = sizeof out->what;  // for 4 samples at most
    int used = snprintf(out->what, room, "%d sequence%s of ", (int)num, num > 1 ? "s" : "");
    for (int32_t i = 0; i < num; i++) {
        const int32_t* tokens = samples[i].tokens;
        used += snprintf(out->what + used, room - (size_t)used, c->has_decoder ? "%s%d+%d" : "%s%d",
                         i > 0 ? ", " : "", (int)tokens[0], (int)tokens[1]);
    }
    used += snprintf(out->what + used, room - (size_t)used, " tokens");
    if (T > 0) { snprintf(out->what + used, room - (size_t)used, ", padded to %d", (int)T); }
}

// padding: windows are that many tokens longer than the longest; 0: as the shapes ask, else ragged.
static CheckBatch* check_batch(Checker* c, const MadeWindow* samples, int32_t num, int32_t padding) {
    CheckBatch* out = CHECK_NEW(c, CheckBatch, 1);
    MadeWindow windows[MOST_SAMPLES];
    memcpy(windows, samples, (size_t)num * sizeof *samples);
    while (!pad_samples(c, windows, num, padding) && padding > 0) { padding--; }
    const int32_t T = windows[0].padded[0];
    if (at_most(c, T) < T) {
        must(c,
             FAIL(STATUS_OUT_OF_RANGE,
                  "windows must be padded to %d tokens, max_seq_tokens is %d ---> check a model that takes "
                  "longer sequences",
                  (int)T, (int)c->blocks->max_seq_tokens));
    }
    must(c, made_batch(&out->batch, windows, num, c->blocks->vocab, &c->arena));
    out->batch.loss_scale = LOSS_SCALE;
    describe(c, out, samples, T);
    return out;
}

static CheckBatch* standard_batch(Checker* c, int32_t idx) {
    MadeWindow samples[MOST_SAMPLES];
    int32_t num = standard_samples(c, samples, idx);
    return check_batch(c, samples, num, 0);
}

// --- jobs ------------------------------------------------------------------------------------------------

// A range and a microbatch. Every range has its own buffers: what its neighbour gets is copied.
typedef struct {
    const CheckRange* range;
    CheckBatch* of;
    CheckBuffer *acts[4], *in, *out, *din, *dout, *scratch;  // acts by flags
    CheckBuffer* losses;                                     // (num_rows), host; NULL: not the last range
    CheckBuffer *kept, *dkept;                               // of a piece, shared with the sample's others
} CheckStage;

// One microbatch on its way through a chain.
typedef struct {
    const CheckChain* chain;
    CheckBatch* of;
    CheckStage* stages;  // [chain->num_ranges]
} CheckPass;

static CheckStage check_stage(Checker* c, const CheckRange* range, CheckBatch* of) {
    const DynapipeModel_v1* api = c->blocks->api;
    CheckStage s = {.range = range, .of = of};
    s.scratch = check_buffer(c, api->scratch_bytes(range->model, &of->batch));
    if (range->blocks.begin > 0) {
        int64_t num_bytes = api->boundary_bytes(range->model, &of->batch, 0);
        s.in = check_buffer(c, num_bytes);
        s.din = check_buffer(c, num_bytes);
    }
    if (range->blocks.end < c->num_blocks) {
        int64_t num_bytes = api->boundary_bytes(range->model, &of->batch, 1);
        s.out = check_buffer(c, num_bytes);
        s.dout = check_buffer(c, num_bytes);
    } else {
        s.losses = buffer_at(c, of->batch.num_rows * (int64_t)sizeof(float), true, 0);
    }
    return s;
}

static CheckPass check_pass(Checker* c, const CheckChain* chain, CheckBatch* of) {
    CheckPass pass = {chain, of, CHECK_NEW(c, CheckStage, chain->num_ranges)};
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        pass.stages[r] = check_stage(c, chain->ranges[r], of);
        if (r == 0) { continue; }
        const int64_t leave = pass.stages[r - 1].out->num_bytes, enter = pass.stages[r].in->num_bytes;
        about(c, "blocks [%d, %d), %s", BLOCKS(chain->ranges[r]), of->what);
        check_counts(c, "bytes that leave the blocks before and enter these", leave, enter, leave == enter,
                     "boundary_bytes(is_behind 1) of the one and (0) of the other are the same activation");
    }
    return pass;
}

static float* losses_of(const CheckPass* pass) {
    return (float*)(void*)pass->stages[pass->chain->num_ranges - 1].losses->data;
}

typedef enum {
    CALL_FORWARD,
    CALL_BACKWARD_INPUTS,
    CALL_BACKWARD_WEIGHTS,
    CALL_FINISH,
    CALL_COMBINE
} CallKind;

static const char* const call_names[] = {"forward", "backward_inputs", "backward_weights", "finish",
                                         "combine"};

// A buffer of one call of the model.
typedef struct {
    const char* name;
    CheckBuffer* buffer;          // NULL: the call has none
    bool is_read;                 // and not written
    const char* remedy;           // of an overrun
    const unsigned char* before;  // contents that the call may only read
} CheckUse;

enum { NUM_USES = 8 };

static void* data_of(const CheckBuffer* buffer) {
    return buffer != NULL ? buffer->data : NULL;
}

// Guards are intact, and read-only buffers are unchanged.
static void check_uses(Checker* c, const CheckUse uses[NUM_USES], const char* call) {
    for (const CheckUse* use = uses; use < uses + NUM_USES; use++) {
        int64_t damage = use->buffer != NULL ? check_damage(c, use->buffer) : 0;
        c->is_overwritten = damage != 0;
        if (damage == 0) { continue; }
        fail(c, use->remedy, "%s wrote at least %lld bytes %s its %s (%lld bytes were asked for)", call,
             llabs(damage), damage > 0 ? "after" : "before", use->name, (long long)use->buffer->num_bytes);
    }
    for (const CheckUse* use = uses; use < uses + NUM_USES; use++) {
        if (use->before == NULL) { continue; }
        const int64_t num_bytes = use->buffer->num_bytes;
        unsigned char* now = check_temp(c, num_bytes + 1);
        check_copy(c, now, use->buffer->data, num_bytes);
        if (memcmp(now, use->before, (size_t)num_bytes) == 0) { continue; }
        fail(c, "it may only be read: it is read again later, or being sent to another rank",
             "%s changed its %s", call, use->name);
    }
}

static void check_code(Checker* c, const CheckStage* s, CallKind kind, int code) {
    const DynapipeModel_v1* api = c->blocks->api;
    if (code == 0 && api->finish != NULL && !c->is_queued) {
        code = api->finish(s->range->model);
        kind = CALL_FINISH;
    }
    if (code == 0) { return; }
    fail(c, "what kernels cannot take belongs in DynapipeShapes_v1", "%s returned error %d: %s",
         call_names[kind], code, check_why(c));
}

// flags: of a forward. again: as when an executor recomputes, `out` is NULL and `in` as before.
static void stage_call(Checker* c, CheckStage* s, CallKind kind, int flags, bool again) {
    static const char* const of_boundary = "boundary_bytes() returns less than is written there";
    static const char* const of_kept = "kept_bytes() returns less than is written there";
    const DynapipeModel_v1* api = c->blocks->api;
    DynapipeBatch* batch = &s->of->batch;
    void* model = s->range->model;
    bool is_forward = kind == CALL_FORWARD;
    CheckBuffer** acts = &s->acts[flags];
    CheckBuffer* in = kind == CALL_BACKWARD_WEIGHTS ? NULL : s->in;
    CheckBuffer* dout = is_forward ? NULL : s->dout;
    CheckBuffer* losses = is_forward && (flags & DYNAPIPE_FORWARD_HEAD) ? s->losses : NULL;
    CheckBuffer* written = is_forward ? (again ? NULL : s->out) : in != NULL ? s->din : NULL;
    about(c, "blocks [%d, %d), %s", BLOCKS(s->range), s->of->what);
    if (*acts == NULL) { *acts = check_buffer(c, api->acts_bytes(model, batch, flags)); }
    check_spoil(c, is_forward ? *acts : NULL);
    check_spoil(c, is_forward ? s->losses : NULL);
    check_spoil(c, s->scratch);
    check_spoil(c, written);
    CheckUse uses[NUM_USES] = {
        {is_forward ? "out" : "din", written, false, of_boundary, NULL},
        {"acts", *acts, false,
         "acts_bytes() returns less than is used for these flags, or an index runs over num_tokens", NULL},
        {"scratch", s->scratch, false,
         "scratch_bytes() is what the neediest of forward, backward_inputs and backward_weights uses", NULL},
        {"losses", losses, false, "one loss for each supervised row, not for each token", NULL},
        {"kept", s->kept, false, of_kept, NULL},
        {"dkept", s->dkept, false, of_kept, NULL},
        {"in", in, true, of_boundary, NULL},
        {"dout", dout, true, of_boundary, NULL}};
    for (int i = 0; i < NUM_USES && !c->is_fast; i++) {
        if (!uses[i].is_read || uses[i].buffer == NULL) { continue; }
        unsigned char* bytes = CHECK_NEW(c, unsigned char, uses[i].buffer->num_bytes);
        check_copy(c, bytes, uses[i].buffer->data, uses[i].buffer->num_bytes);
        uses[i].before = bytes;
    }
    batch->kept = data_of(s->kept), batch->dkept = is_forward ? NULL : data_of(s->dkept);
    int code = is_forward ? api->forward(model, batch, data_of(in), data_of(written), (*acts)->data,
                                         s->scratch->data, (float*)data_of(losses), flags)
               : kind == CALL_BACKWARD_INPUTS
                   ? api->backward_inputs(model, batch, data_of(in), (*acts)->data, data_of(dout),
                                          data_of(written), s->scratch->data)
                   : api->backward_weights(model, batch, (*acts)->data, data_of(dout), s->scratch->data);
    check_code(c, s, kind, code);
    if (!c->is_fast) { check_uses(c, uses, call_names[kind]); }
}

// Acts for backward get another place; the old place is overwritten.
static void move_acts(Checker* c, CheckStage* s) {
    CheckBuffer *from = s->acts[CHECK_KEEP], *to = check_buffer(c, from->num_bytes);
    check_copy(c, to->data, from->data, from->num_bytes);
    check_spoil(c, from);
    s->acts[CHECK_KEEP] = to;
}

// Of all ranges: F: forward. N: forward that keeps nothing. V: for losses alone. E: the same, as validation
// calls it. R: recomputed. B, W: backward of inputs, of weights. M: acts move.
static void pass_job(Checker* c, CheckPass* pass, char job) {
    const int32_t num = pass->chain->num_ranges;
    const CallKind kind = job == 'B'   ? CALL_BACKWARD_INPUTS
                          : job == 'W' ? CALL_BACKWARD_WEIGHTS
                                       : CALL_FORWARD;
    const int flags = job == 'N' ? 0 : job == 'V' || job == 'E' ? DYNAPIPE_FORWARD_HEAD : CHECK_KEEP;
    DynapipeBatch* batch = &pass->of->batch;
    const DynapipeBatch before = *batch;
    if (job == 'W' && c->blocks->api->backward_weights == NULL) { return; }
    if (job == 'E') { batch->token_keys = batch->dec_token_keys = NULL; }  // no dropout
    for (int32_t i = 0; i < num; i++) {
        CheckStage* s = &pass->stages[kind == CALL_FORWARD ? i : num - 1 - i];
        if (job == 'M') {
            move_acts(c, s);
            continue;
        }
        stage_call(c, s, kind, flags, job == 'R');
        if (kind == CALL_FORWARD && job != 'R' && s->out != NULL) {
            check_copy(c, s[1].in->data, s->out->data, s->out->num_bytes);
        }
        if (kind != CALL_BACKWARD_INPUTS || s->din == NULL) { continue; }
        check_copy(c, s[-1].dout->data, s->din->data, s->din->num_bytes);
        check_spoil(c, s->din);
        check_spoil(c, s->in);  // its memory is reused from here on
    }
    batch->token_keys = before.token_keys, batch->dec_token_keys = before.dec_token_keys;
}

// What jobs leave.
typedef struct {
    float *losses, *gradients;
    int64_t num_losses, num_gradients;
} Results;

// Losses of both, gradients added. b may be all zeros, and so may a.
static Results add_results(Checker* c, const Results* a, const Results* b) {
    const int64_t num = a->num_gradients > 0 ? a->num_gradients : b->num_gradients;
    Results sum = {CHECK_NEW(c, float, a->num_losses + b->num_losses), CHECK_NEW(c, float, num),
                   a->num_losses + b->num_losses, num};
    for (int64_t i = 0; i < sum.num_losses; i++) {
        sum.losses[i] = i < a->num_losses ? a->losses[i] : b->losses[i - a->num_losses];
    }
    for (int64_t v = 0; v < a->num_gradients; v++) { sum.gradients[v] += a->gradients[v]; }
    for (int64_t v = 0; v < b->num_gradients; v++) { sum.gradients[v] += b->gradients[v]; }
    return sum;
}

#define ALONE "F0 B0 W0"

// "F1": job F of passes[1]. From zero gradients on.
static Results run_jobs(Checker* c, CheckPass* passes, int32_t num, const char* jobs) {
    Results out = {0};
    zero_gradients(c, passes->chain);
    for (const char* job = jobs; *job != '\0'; job += job[2] == ' ' ? 3 : 2) {
        pass_job(c, &passes[job[1] - '0'], job[0]);
    }
    if (c->is_queued) {
        c->is_queued = false;
        check_code(c, passes->stages, CALL_FINISH, 0);
    }
    for (int32_t i = 0; i < num; i++) {
        Results own = {losses_of(&passes[i]), NULL, passes[i].of->batch.num_rows, 0};
        out = add_results(c, &out, &own);
    }
    out.gradients = values_of(c, passes->chain, true);
    out.num_gradients = passes->chain->num_values;
    return out;
}

static Results check_run(Checker* c, const CheckChain* chain, CheckBatch* batch) {
    CheckPass pass = check_pass(c, chain, batch);
    return run_jobs(c, &pass, 1, ALONE);
}

// what, of: "two microbatches one after the other, 1 sequence of 7 tokens".
static void same_results(Checker* c, const CheckChain* chain, const Results* expected, const Results* found,
                         double loss_tolerance, const char* what, const char* of, const char* remedy) {
    about(c, "%s, %s", what, of);
    check_same(c, "losses", expected->losses, found->losses, expected->num_losses, loss_tolerance, remedy);
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        const CheckRange* range = chain->ranges[r];
        about(c, "%s, %s, blocks [%d, %d)", what, of, BLOCKS(range));
        check_same(c, "gradients", expected->gradients + range->begin, found->gradients + range->begin,
                   range->params.num_params, c->tolerance, remedy);
    }
}

// --- laws of sizes ---------------------------------------------------------------------------------------

static bool is_cut(const Checker* c, int32_t block) {
    for (int32_t i = 0; i < c->num_cuts; i++) {
        if (c->cuts[i] == block) { return true; }
    }
    return false;
}

// Blocks [begin, end) of a stack: those that can be a range have as many parameters as the same of an earlier
// layer.
static void check_layers_alike(Checker* c, int32_t begin, int32_t end, int32_t of_layer) {
    for (int32_t b = begin + of_layer; b < end; b++) {
        const DynapipeRange earlier = {.begin = b - of_layer, .end = b - of_layer + 1},
                            later = {.begin = b, .end = b + 1};
        if (!is_cut(c, earlier.begin) || !is_cut(c, earlier.end) || !is_cut(c, later.end)) { continue; }
        const int64_t of_earlier = check_range(c, earlier, false)->params.num_params,
                      of_later = check_range(c, later, false)->params.num_params;
        about(c, "blocks %d and %d, the same of two layers", (int)earlier.begin, (int)later.begin);
        check_counts(c, "parameters", of_earlier, of_later, of_earlier == of_later,
                     "layer_blocks and dec_layer_blocks are the blocks of a layer; layers are alike");
    }
}

static void law_ranges(Checker* c) {
    static const double epsilons[] = {0x1p-24, 0x1p-8, 0x1p-11};  // by DynapipeType
    const DynapipeRange all = {.begin = 0, .end = c->num_blocks};
    const DynapipeParams_v1 *whole = &check_range(c, all, true)->params,
                            *without = &check_range(c, all, false)->params;
    // Sums in another order differ by some hundreds of roundings of float32; where values have 8 or 11 bits,
    // activations do too, and fewer may add up.
    c->epsilon = fmax(epsilons[whole->param_type], epsilons[whole->grad_type]);
    c->tolerance = c->epsilon * (c->epsilon < 0x1p-20 ? 512 : 16);
    about(c, "the whole model made with has_values 0 and 1");
    check_counts(c, "parameters", without->num_params, whole->num_params,
                 without->num_params == whole->num_params, "only memory may be left out, no count");
    // an encoder's last block may have the norm after it
    const PlanChain layers = measure_chain(c->blocks);
    const int32_t num_enc = plan_chain_first_dec(&layers);
    check_layers_alike(c, 1, 1 + num_enc - c->has_decoder, layers.enc_blocks);
    check_layers_alike(c, 2 + num_enc, c->num_blocks - 1, layers.dec_blocks);
    for (int32_t i = 0; i < c->num_cuts; i++) {
        CheckChain chain = check_chain(c, ALONE_AT + i);
        for (int32_t b = 0; b < CHECK_STANDARD; b++) {  // compares boundaries
            (void)check_pass(c, &chain, standard_batch(c, b));
        }
    }
}

enum { NUM_SIZES = 6, GRID = 36 };  // 3 numbers of sequences, 3 lengths, 2 of the decoder's, 2 of rows
static const char* const size_names[NUM_SIZES] = {
    "acts_bytes() with flags 0", "acts_bytes() with HEAD",        "acts_bytes() with KEEP | HEAD",
    "scratch_bytes()",           "boundary_bytes() after blocks", "boundary_bytes() before blocks"};

static void ask_sizes(int64_t out[NUM_SIZES], const Checker* c, const CheckRange* range,
                      const DynapipeBatch* batch) {
    const DynapipeModel_v1* api = c->blocks->api;
    out[0] = api->acts_bytes(range->model, batch, 0);
    out[1] = api->acts_bytes(range->model, batch, DYNAPIPE_FORWARD_HEAD);
    out[2] = api->acts_bytes(range->model, batch, CHECK_KEEP);
    out[3] = api->scratch_bytes(range->model, batch);
    out[4] = range->blocks.end == c->num_blocks ? 0 : api->boundary_bytes(range->model, batch, 1);
    out[5] = range->blocks.begin == 0 ? 0 : api->boundary_bytes(range->model, batch, 0);
}

// The same counts, other contents.
static DynapipeBatch forget_contents(Checker* c, DynapipeBatch batch) {
    int32_t* zeros = CHECK_NEW(c, int32_t, batch.num_tokens + batch.num_dec_tokens + batch.num_seqs + 1);
    batch.cu_seqlens = batch.tokens = batch.positions = batch.rows = batch.targets = batch.row_tasks = zeros;
    batch.token_keys = batch.dec_token_keys = NULL;
    batch.seq_lens = batch.dec_seq_lens = NULL;
    if (batch.num_dec_tokens > 0) { batch.dec_cu_seqlens = batch.dec_tokens = batch.dec_positions = zeros; }
    return batch;
}

// Does b have at least as much of everything?
static bool covers(const DynapipeBatch* b, const DynapipeBatch* a) {
    return b->num_seqs >= a->num_seqs && b->num_tokens >= a->num_tokens && b->num_rows >= a->num_rows &&
           b->max_seq_tokens >= a->max_seq_tokens && b->num_squares >= a->num_squares &&
           b->num_dec_tokens >= a->num_dec_tokens && b->max_dec_seq_tokens >= a->max_dec_seq_tokens &&
           b->num_dec_squares >= a->num_dec_squares && b->num_cross >= a->num_cross;
}

static void make_grid(Checker* c, CheckBatch** out) {
    static const int32_t seqs[3] = {1, 2, 4}, lengths[3] = {1, 6, 17}, dec_lengths[2] = {1, 5};
    for (int i = 0; i < GRID; i++) {
        MadeWindow samples[MOST_SAMPLES];
        for (int32_t s = 0; s < seqs[i % 3]; s++) {
            int32_t dec_tokens = c->has_decoder ? dec_lengths[i / 9 % 2] : 0;
            samples[s] = (MadeWindow){s, {at_most(c, lengths[i / 3 % 3]), dec_tokens}, 1, {0, 0}};
            if (i / 18 == 1) { samples[s].num_rows = samples[s].tokens[c->has_decoder]; }
        }
        out[i] = check_batch(c, samples, seqs[i % 3], 0);
    }
}

static void check_sizes(Checker* c, const CheckRange* range, CheckBatch* const* grid) {
    const bool in_rows = c->blocks->last_in_rows && range->blocks.end >= c->num_blocks - 2;
    const CheckRange* without = check_range(c, range->blocks, false);
    int64_t sizes[GRID][NUM_SIZES], again[NUM_SIZES], bare[NUM_SIZES];
    for (int i = 0; i < GRID; i++) {
        DynapipeBatch counts = forget_contents(c, grid[i]->batch);
        ask_sizes(sizes[i], c, range, &grid[i]->batch);
        ask_sizes(again, c, range, &counts);
        ask_sizes(bare, c, without, &grid[i]->batch);
        about(c, "blocks [%d, %d), %s", BLOCKS(range), grid[i]->what);
        for (int k = 0; k < NUM_SIZES; k++) {
            if (sizes[i][k] != again[k]) {
                fail(c, "the planner knows the counts only: num_*, max_*",
                     "%s: %lld, but %lld when the arrays hold something else", size_names[k],
                     (long long)sizes[i][k], (long long)again[k]);
            }
            if (sizes[i][k] != bare[k]) {
                fail(c, "bytes follow from the model's shape alone", "%s: %lld, but %lld with has_values 0",
                     size_names[k], (long long)sizes[i][k], (long long)bare[k]);
            }
        }
    }
    for (int pair = 0; pair < GRID * GRID; pair++) {
        const int a = pair / GRID, b = pair % GRID;
        const DynapipeBatch *less = &grid[a]->batch, *more = &grid[b]->batch;
        about(c, "blocks [%d, %d), %s (%d rows) and %s (%d rows)", BLOCKS(range), grid[a]->what,
              (int)less->num_rows, grid[b]->what, (int)more->num_rows);
        check_counts(c, size_names[4], sizes[a][4], sizes[b][4],
                     !in_rows || less->num_rows != more->num_rows || sizes[a][4] == sizes[b][4],
                     "with last_in_rows 1, the last block gets and gives hidden states of supervised rows "
                     "alone");
        for (int k = 0; k < NUM_SIZES && covers(more, less); k++) {
            check_counts(c, size_names[k], sizes[a][k], sizes[b][k], sizes[a][k] <= sizes[b][k],
                         "never less for more of anything");
        }
    }
}

static void law_counts(Checker* c) {
    CheckBatch* grid[GRID];
    make_grid(c, grid);
    CheckChain chain = check_chain(c, FINEST);
    for (int32_t r = 0; r < chain.num_ranges; r++) { check_sizes(c, chain.ranges[r], grid); }
}

// --- laws of jobs ----------------------------------------------------------------------------------------

// Buffers came filled with NaN; guards are checked after every call.
static void law_bytes(Checker* c) {
    for (int32_t i = 0; i < 2 * CHECK_STANDARD; i++) {
        CheckChain chain = check_chain(c, i < CHECK_STANDARD ? FINEST : coarse(c));
        CheckPass pass = check_pass(c, &chain, standard_batch(c, i % CHECK_STANDARD));
        const size_t num_bytes = (size_t)chain.num_values * sizeof(float);
        const float *params = values_of(c, &chain, false), *zeros = zero_gradients(c, &chain);
        for (const char* job = "NVEF"; *job != '\0'; job++) { pass_job(c, &pass, *job); }
        if (memcmp(zeros, values_of(c, &chain, true), num_bytes) != 0) {
            fail(c, "it runs more often than its backward (recomputation, validation)",
                 "forward changed gradients");
        }
        check_numbers(c, "losses", losses_of(&pass), pass.of->batch.num_rows,
                      "forward writes all of losses and out (adds to neither), and reads no acts or scratch "
                      "that it has not written");
        pass_job(c, &pass, 'B');
        pass_job(c, &pass, 'W');
        if (memcmp(params, values_of(c, &chain, false), num_bytes) != 0) {
            fail(c, "they are the optimizer's to change, between steps", "a job changed parameters");
        }
        const float* gradients = values_of(c, &chain, true);
        for (int32_t r = 0; r < chain.num_ranges; r++) {
            about(c, "blocks [%d, %d), %s", BLOCKS(chain.ranges[r]), pass.of->what);
            check_numbers(
                c, "gradients", gradients + chain.ranges[r]->begin, chain.ranges[r]->params.num_params,
                "backward_inputs writes all of din (adds nothing to it) and reads acts as forward "
                "left them; backward_weights reads acts as backward_inputs left them, and dout: not "
                "scratch, and not `in`, whose memory has another use by then");
        }
    }
}

// Jobs of one or two microbatches, against each of these alone.
typedef struct {
    const char *what, *jobs;
    bool is_exact;   // losses have the same bits
    bool is_queued;  // on the whole model (copies between ranges would wait), in the same scratch
    float scale;     // of loss_scale: a power of two
    const char* remedy;
} Order;

// One order, of passes[0], or of both.
static void check_order(Checker* c, const Order* order, CheckPass passes[2], const Results* a,
                        const Results* b) {
    const int32_t num = strchr(order->jobs, '1') != NULL ? 2 : 1;
    const Results none = {0}, expected = add_results(c, a, num > 1 ? b : &none);
    DynapipeBatch* batch = &passes[0].of->batch;
    for (int64_t v = 0; v < expected.num_gradients; v++) { expected.gradients[v] *= order->scale; }
    batch->loss_scale *= order->scale;
    if (order->is_queued) {
        CheckStage *x = passes[0].stages, *y = passes[1].stages;
        x->scratch = y->scratch = x->scratch->num_bytes > y->scratch->num_bytes ? x->scratch : y->scratch;
        check_spoil(c, x->losses);
        check_spoil(c, y->losses);
    }
    c->is_fast = c->is_queued = order->is_queued;
    const Results found = run_jobs(c, passes, num, order->jobs);
    c->is_fast = false;
    batch->loss_scale /= order->scale;
    same_results(c, passes->chain, &expected, &found, order->is_exact ? 0 : c->tolerance, order->what,
                 passes->of->what, order->remedy);
}

// On a model in the smallest ranges, and in few.
static void law_orders(Checker* c, const Order* orders) {
    const int32_t ways[2] = {orders->is_queued ? WHOLE : FINEST, coarse(c)};
    for (int w = 0; w < (orders->is_queued ? 1 : 2); w++) {
        CheckChain chain = check_chain(c, ways[w]);
        CheckPass passes[CHECK_STANDARD + 1];
        Results alone[CHECK_STANDARD + 1];
        for (int32_t i = 0; i <= CHECK_STANDARD; i++) {
            passes[i] = check_pass(c, &chain, standard_batch(c, i % CHECK_STANDARD));
            alone[i] = run_jobs(c, &passes[i], 1, ALONE);
        }
        for (const Order* order = orders; order->what != NULL; order++) {
            for (int32_t i = 0; i < CHECK_STANDARD; i++) {
                check_order(c, order, &passes[i], &alone[i], &alone[i + 1]);
            }
        }
    }
}

// --- laws of one microbatch done in different ways ---------------------------------------------------------

// Each range lays out its parameters as it likes: those of the whole and of its pieces are paired by value.
typedef struct {
    float param, gradient;
} Pair;

static int pair_order(const void* a, const void* b) {
    const Pair *x = (const Pair*)a, *y = (const Pair*)b;
    if (x->param != y->param) { return x->param < y->param ? -1 : 1; }
    return x->gradient < y->gradient ? -1 : x->gradient > y->gradient;
}

// Gradients of the chain in the order of their parameters; the first copy of a tied group has the sum of all,
// the others go. Returns how many are left.
static int64_t sort_gradients(Checker* c, const CheckChain* chain, float* gradients) {
    const float* params = values_of(c, chain, false);
    Pair* pairs = CHECK_NEW(c, Pair, chain->num_values);
    int64_t num_left = 0;
    for (int64_t v = 0; v < chain->num_values; v++) { pairs[v] = (Pair){params[v], gradients[v]}; }
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        for (int32_t i = 0; i < chain->ranges[r]->params.num_tied; i++) {
            const DynapipeTied* tied = &chain->ranges[r]->params.tied[i];
            int32_t first = 0;
            const DynapipeTied* original = first_copy(chain, tied->group, &first);
            Pair *to = &pairs[chain->ranges[first]->begin + original->begin],
                 *from = &pairs[chain->ranges[r]->begin + tied->begin];
            for (int64_t v = 0; v < tied->count && first != r; v++, to++, from++) {
                if (tied->count != original->count || from->param != to->param) {
                    fail(
                        c,
                        "all copies of a group have one count, and make() gives a block the same values in "
                        "every range; do params->tied's begins point at the tensor?",
                        "the copies of tied group %d in ranges %d and %d have %lld and %lld values, or other "
                        "ones",
                        (int)tied->group, (int)first, (int)r, (long long)original->count,
                        (long long)tied->count);
                }
                to->gradient += from->gradient;
                from->param = INFINITY;
            }
        }
    }
    for (int64_t v = 0; v < chain->num_values; v++) {
        if (pairs[v].param != INFINITY) { pairs[num_left++] = pairs[v]; }
    }
    qsort(pairs, (size_t)num_left, sizeof *pairs, pair_order);
    for (int64_t v = 0; v < num_left; v++) { gradients[v] = pairs[v].gradient; }
    return num_left;
}

static void law_cuts(Checker* c) {
    CheckChain whole = check_chain(c, WHOLE);
    for (int32_t b = 0; b < CHECK_STANDARD; b++) {
        CheckBatch* batch = standard_batch(c, b);
        Results expected = check_run(c, &whole, batch);
        const int64_t num_values = sort_gradients(c, &whole, expected.gradients);
        for (int32_t way = 0; way < ALONE_AT + c->num_cuts; way++) {
            CheckChain chain = check_chain(c, (way + ALONE_AT) % (ALONE_AT + c->num_cuts));
            if (chain.num_ranges == 1) { continue; }
            Results found = check_run(c, &chain, batch);
            about(c, "the model cut before block %d%s, %s", (int)chain.ranges[1]->blocks.begin,
                  chain.num_ranges > 2 ? " and elsewhere" : "", batch->what);
            const int64_t num_found = sort_gradients(c, &chain, found.gradients);
            check_counts(c, "parameters without tied copies, and of the whole", num_found, num_values,
                         num_found == num_values,
                         "every tensor is in one range, or in params->tied of each that has it");
            check_same(c, "losses", expected.losses, found.losses, batch->batch.num_rows, c->tolerance,
                       "what a range computes from `in` is what the whole computes there; blocks count from "
                       "blocks.begin; make() gives a block the same values in every range that has it");
            check_same(c, "gradients, sorted by parameter, tied copies added", expected.gradients,
                       found.gradients, num_values, c->tolerance,
                       "backward_inputs of the later range leaves in din the gradient of all it got as `in` "
                       "(written, not added); each copy of a tied tensor has the gradient of its own use "
                       "only");
        }
    }
}

// Against each sample alone, losses in their order and gradients added; and with longer windows.
static void law_grouping(Checker* c) {
    CheckChain whole = check_chain(c, WHOLE);
    for (int32_t b = 0; b < CHECK_STANDARD; b++) {
        MadeWindow samples[MOST_SAMPLES];
        int32_t num = standard_samples(c, samples, b);
        CheckBatch *batch = check_batch(c, samples, num, 0), *padded = check_batch(c, samples, num, 3);
        Results together = check_run(c, &whole, batch), longer = check_run(c, &whole, padded), sum = {0};
        for (int32_t i = 0; i < num; i++) {
            CheckBatch* alone = check_batch(c, &samples[i], 1, 0);
            if (alone->batch.num_rows == 0) { continue; }  // nothing to learn: no gradients
            Results one = check_run(c, &whole, alone);
            sum = add_results(c, &sum, &one);
        }
        same_results(c, &whole, &sum, &together, c->tolerance, "against the same samples one by one",
                     batch->what,
                     "attention stays inside a window (cu_seqlens), positions restart in it, losses stand in "
                     "the order of batch->rows, no mean is taken over a microbatch, dropout goes by "
                     "token_keys");
        same_results(c, &whole, &together, &longer, c->tolerance, "against the same without padding",
                     padded->what,
                     "a window's tokens are those before seq_lens; padding after them has no loss, and what "
                     "looks ahead (encoders, cross-attention) must not see it");
    }
}

// --- law of pieces ----------------------------------------------------------------------------------------
// A sample cut along its tokens, each piece in a microbatch of its own: forward in their order, backward in
// the opposite one.

enum { MOST_CUT = 4, CUT_TOKENS = 21 };

static CheckBatch* piece_batch(Checker* c, const CheckBatch* whole, int32_t begin, int32_t end) {
    CheckBatch* out = CHECK_NEW(c, CheckBatch, 1);
    must(c, made_piece(&out->batch, &whole->batch, begin, end, &c->arena));
    snprintf(out->what, sizeof out->what, "tokens [%d, %d) of %d%s", (int)begin, (int)end,
             (int)out->batch.kept_tokens, out->batch.num_seqs > 1 ? ", and other sequences" : "");
    return out;
}

// Of a piece that ends at `end` in a range, against what plans give it. first: the sample's first piece.
static void check_piece_bytes(Checker* c, const CheckStage* s, const CheckBatch* whole, int32_t end,
                              const CheckStage* first) {
    const DynapipeModel_v1* api = c->blocks->api;
    const DynapipeBatch* b = &s->of->batch;
    void* model = s->range->model;
    DynapipeBatch uncut = *b, joined;  // a window of its own; with all earlier tokens
    must(c, made_piece(&joined, &whole->batch, 0, end, &c->arena));
    DynapipeBatch* others[] = {&uncut, &joined};
    about(c, "blocks [%d, %d), %s", BLOCKS(s->range), s->of->what);
    for (int i = 0; i < 2; i++) {
        others[i]->kept_tokens = others[i]->kept_begin = others[i]->kept_enc_tokens = 0;
        others[i]->num_prefix = 0;
        others[i]->num_rows = b->num_rows;
        const int64_t firsts = (i > 0 ? first->dkept : first->kept)->num_bytes,
                      kept = api->kept_bytes(model, b, i);
        check_counts(c, "kept_bytes() of the first piece, and here", firsts, kept, firsts == kept,
                     "read kept_tokens and kept_enc_tokens alone");
    }
    for (int flags = 0; flags <= CHECK_KEEP; flags += CHECK_KEEP) {
        const int64_t mine = api->acts_bytes(model, b, flags), most = api->acts_bytes(model, &uncut, flags);
        check_counts(c, "acts_bytes(), and of a sample of that length", mine, most, mine <= most,
                     "what pieces share belongs in kept_bytes()");
    }
    const int64_t mine = s->scratch->num_bytes, most = api->scratch_bytes(model, &joined);
    check_counts(c, "scratch_bytes(), and with the tokens before it", mine, most, mine <= most,
                 "a piece needs no more than these tokens together");
}

// One pass for each piece; every range's `kept` and `dkept` are theirs together.
static void make_pieces(Checker* c, CheckPass* out, int num, const CheckChain* chain, const CheckBatch* whole,
                        Rng* rng) {
    const DynapipeModel_v1* api = c->blocks->api;
    const int32_t num_tokens = (c->has_decoder ? whole->batch.dec_cu_seqlens : whole->batch.cu_seqlens)[1];
    for (int32_t p = 0, begin = 0, end; p < num; p++, begin = end) {
        end = p == num - 1 ? num_tokens : rng_between(rng, begin + 1, num_tokens - (num - 1 - p));
        out[p] = check_pass(c, chain, piece_batch(c, whole, begin, end));
        for (int32_t r = 0; r < chain->num_ranges; r++) {
            CheckStage *at = &out[p].stages[r], *first = &out[0].stages[r];
            if (p == 0) {
                at->kept = check_buffer(c, api->kept_bytes(at->range->model, &at->of->batch, 0));
                at->dkept = check_buffer(c, api->kept_bytes(at->range->model, &at->of->batch, 1));
            }
            at->kept = first->kept;
            at->dkept = first->dkept;
            check_piece_bytes(c, at, whole, end, first);
        }
    }
}

static void check_pieces(Checker* c, const CheckChain* chain, int num, const char* jobs, Rng* rng) {
    MadeWindow samples[3] = {
        {11, {CUT_TOKENS, 0}, 12, {0, 0}}, {12, {5, 0}, 3, {0, 0}}, {13, {2, 0}, 1, {0, 0}}};
    CheckPass passes[MOST_CUT];
    char what[32];
    for (int i = 0; i < 3 && c->has_decoder; i++) {
        samples[i].tokens[1] = samples[i].tokens[0];
        samples[i].tokens[0] = 9 - 3 * i;
    }
    int32_t num_samples = fit_samples(c, samples, 3, CUT_TOKENS);
    if (samples[0].tokens[c->has_decoder] < num) { return; }
    CheckBatch* whole = check_batch(c, samples, num_samples, 0);
    Results expected = check_run(c, chain, whole);
    make_pieces(c, passes, num, chain, whole, rng);
    Results found = run_jobs(c, passes, num, jobs);
    snprintf(what, sizeof what, "%d pieces of a sample", num);
    same_results(c, chain, &expected, &found, c->tolerance, what, whole->what,
                 "a piece's tokens see the earlier pieces' through `kept`; a backward adds the gradients of "
                 "their keys and values to dkept (the last piece's writes them) and takes those of its own; "
                 "positions begin at kept_begin");
}

static void law_pieces(Checker* c) {
    static const struct {
        int num;
        const char* jobs;
    } orders[] = {{2, "F0 F1 B1 W1 B0 W0"},
                  {3, "N0 N1 N2 R2 B2 W2 R1 B1 W1 R0 B0 W0"},
                  {4, "F0 F1 F2 F3 B3 B2 B1 B0 W0 W1 W2 W3"},
                  {2, "N0 N1 R1 B1 R0 B0 W0 W1"},
                  {3, "F0 F1 F2 B2 W2 B1 W1 B0 W0"},
                  {4, "N0 N1 N2 N3 R3 B3 W3 R2 B2 W2 R1 B1 W1 R0 B0 W0"}};
    Rng rng = rng_seed(5);
    if (c->blocks->api->kept_bytes == NULL || c->blocks->shapes.padded) { return; }
    for (int32_t way = ALONE_AT + c->num_cuts - 1; way >= WHOLE; way--) {
        CheckChain chain = check_chain(c, way);
        const int i = (way + 1) % 6;
        check_pieces(c, &chain, orders[i].num, orders[i].jobs, &rng);
    }
}

// --- law of a shared head --------------------------------------------------------------------------------
// Shares of the head give the losses and the gradient before the last blocks, [cut, head), of a head in one
// piece, and one gradient of the matrix however it is shared.

enum { MOST_SHARES = 2, ID_MULTIPLE = 16 };

typedef struct {
    const char* words;
    int32_t head, num;  // DynapipeHead; shares
} ShareWay;

// Share i, of rows [*row, *row + its own), and what it reads of the hidden states.
static CheckStage make_share(Checker* c, const ShareWay* way, const CheckStage* feeds, int32_t i, int32_t row,
                             int64_t at_bytes) {
    const DynapipeModel_v1* api = c->blocks->api;
    const int32_t vocab = c->blocks->padded_vocab > 0 ? (int32_t)c->blocks->padded_vocab : c->blocks->vocab;
    const int32_t middle = c->blocks->vocab / 2 / ID_MULTIPLE * ID_MULTIPLE;  // ids on both sides, of 32
    const bool is_last = i == way->num - 1, by_rows = way->head == DYNAPIPE_HEAD_BY_ROWS;
    DynapipeRange blocks = {.begin = c->num_blocks - 1, .end = c->num_blocks, .head = way->head};
    CheckBatch* of = CHECK_NEW(c, CheckBatch, 1);
    *of = *feeds->of;
    if (by_rows) {
        of->batch.num_rows = is_last ? of->batch.num_rows - row : of->batch.num_rows / 2;
        of->batch.rows += row;
        of->batch.targets += row;
        of->batch.row_tasks += row;
    } else {
        blocks.vocab_begin = i == 0 ? 0 : middle;
        blocks.vocab_end = is_last ? vocab : middle;
    }
    CheckStage s = check_stage(c, check_range(c, blocks, true), of);
    void* model = s.range->model;
    api->zero_gradients(model);
    if (by_rows) {  // a slice of the hidden states, of their gradient
        s.in = buffer_at(c, s.in->num_bytes, false, at_bytes % PLAN_BUFFER_ALIGN);
        s.din = buffer_at(c, s.in->num_bytes, false, at_bytes % PLAN_BUFFER_ALIGN);
    } else {
        s.din = check_buffer(c, api->part_bytes(model, &of->batch, CHECK_KEEP));
        s.losses = NULL;
    }
    check_copy(c, s.in->data, feeds->out->data + at_bytes, s.in->num_bytes);
    return s;
}

// Losses, and the gradient of the matrix: by rows those of shares add, by vocabulary they follow each other.
// Fills feeds->din.
static Results run_shares(Checker* c, const ShareWay* way, CheckStage* feeds) {
    const DynapipeModel_v1* api = c->blocks->api;
    const DynapipeBatch* batch = &feeds->of->batch;
    const bool by_rows = way->head == DYNAPIPE_HEAD_BY_ROWS;
    CheckStage shares[MOST_SHARES];
    Results out = {CHECK_NEW(c, float, batch->num_rows), NULL, batch->num_rows, 0};
    void *parts[MOST_SHARES], *factors[MOST_SHARES] = {NULL};
    int64_t at_bytes = 0;
    api->zero_gradients(feeds->range->model);
    stage_call(c, feeds, CALL_FORWARD, CHECK_KEEP, false);
    for (int32_t i = 0, row = 0; i < way->num; i++) {
        CheckStage* s = &shares[i];
        *s = make_share(c, way, feeds, i, row, at_bytes);
        out.num_gradients = s->range->params.num_params + (by_rows ? 0 : out.num_gradients);
        parts[i] = s->din->data;
        if (s->of->batch.num_rows > 0) {
            stage_call(c, s, CALL_FORWARD, CHECK_KEEP, false);
            stage_call(c, s, CALL_BACKWARD_INPUTS, CHECK_KEEP, false);
        }
        if (by_rows) {
            check_copy(c, feeds->dout->data + at_bytes, s->din->data, s->din->num_bytes);
            memcpy(out.losses + row, s->losses->data, (size_t)s->losses->num_bytes);
            at_bytes += s->din->num_bytes;
            row += s->of->batch.num_rows;
        } else {
            s->dout = check_buffer(c, api->factor_bytes(s->range->model, batch));
            factors[i] = s->dout->data;
        }
    }
    if (!by_rows) {
        CheckBuffer* losses = buffer_at(c, out.num_losses * (int64_t)sizeof(float), true, 0);
        check_code(c, feeds, CALL_COMBINE,
                   api->combine(feeds->range->model, batch, way->num, (const void* const*)parts,
                                feeds->dout->data, factors, (float*)data_of(losses)));
        memcpy(out.losses, losses->data, (size_t)losses->num_bytes);
    }
    stage_call(c, feeds, CALL_BACKWARD_INPUTS, CHECK_KEEP, false);
    out.gradients = CHECK_NEW(c, float, out.num_gradients);
    float* to = out.gradients;
    for (CheckStage* s = shares; s < shares + way->num; s++) {
        const DynapipeParams_v1* params = &s->range->params;
        if (s->of->batch.num_rows > 0 && api->backward_weights != NULL) {
            stage_call(c, s, CALL_BACKWARD_WEIGHTS, CHECK_KEEP, false);
        }
        const float* one = check_read(c, CHECK_NEW(c, float, params->num_params), params->grads,
                                      params->grad_type, params->num_params);
        for (int64_t k = 0; k < params->num_params; k++) { to[k] += one[k]; }
        to += by_rows ? 0 : params->num_params;
    }
    return out;
}

static void check_sharings(Checker* c, CheckBatch* batch, int32_t at, bool by_vocabulary) {
    static const char* const remedy = "DynapipeModel_v1: shares of the head, and combine()";
    static const ShareWay ways[] = {{"by rows, in one share", DYNAPIPE_HEAD_BY_ROWS, 1},
                                    {"by rows", DYNAPIPE_HEAD_BY_ROWS, 2},
                                    {"by vocabulary", DYNAPIPE_HEAD_BY_VOCABULARY, 2},
                                    {"by vocabulary, in one share", DYNAPIPE_HEAD_BY_VOCABULARY, 1}};
    CheckChain chain = check_chain(c, ALONE_AT + at);
    CheckPass pass = check_pass(c, &chain, batch);
    const DynapipeRange blocks = {
        .begin = c->cuts[at], .end = c->num_blocks - 1, .head = DYNAPIPE_HEAD_FEEDS};
    Results expected = run_jobs(c, &pass, 1, ALONE);
    const CheckStage* before = pass.stages;
    const int32_t type = chain.ranges[1]->params.param_type;
    const int64_t num_din = before->dout->num_bytes / value_bytes(type);
    float *din = CHECK_NEW(c, float, num_din), *found_din = CHECK_NEW(c, float, num_din);
    for (int i = 0; i < (by_vocabulary ? 4 : 2); i++) {
        CheckStage feeds = check_stage(c, check_range(c, blocks, true), batch);
        check_copy(c, feeds.in->data, before->out->data, feeds.in->num_bytes);
        Results found = run_shares(c, &ways[i], &feeds);
        if (i == 0) { expected.gradients = found.gradients, expected.num_gradients = found.num_gradients; }
        check_read(c, din, before->dout->data, type, num_din);
        check_read(c, found_din, feeds.din->data, type, num_din);
        for (int64_t k = 0; k < num_din; k++) {  // padding, which neither wrote
            if (isnan(din[k]) && isnan(found_din[k])) { din[k] = found_din[k] = 0; }
        }
        about(c, "the head shared %s before block %d, %s", ways[i].words, (int)c->cuts[at], batch->what);
        check_same(c, "losses", expected.losses, found.losses, expected.num_losses, c->tolerance, remedy);
        check_same(c, "gradient before the blocks", din, found_din, num_din, c->tolerance, remedy);
        check_counts(c, "parameters, and in one share by rows", found.num_gradients, expected.num_gradients,
                     found.num_gradients == expected.num_gradients,
                     "a share has rows of the head's matrix and nothing else; padded_vocab is all of them");
        check_same(c, "gradient of the matrix", expected.gradients, found.gradients, found.num_gradients,
                   c->tolerance, remedy);
    }
}

static void law_heads(Checker* c) {
    const bool by_vocabulary = executor_can_share(c->blocks->api, HEAD_BY_VOCABULARY);
    const int32_t num_cuts = c->num_cuts - 1;                                // without the head alone
    MadeWindow unsupervised = {14, {3, c->has_decoder ? 3 : 0}, 0, {0, 0}};  // as a piece may be
    if (c->blocks->shapes.head_has_layer || num_cuts < 1) { return; }
    if (!by_vocabulary && !c->blocks->shapes.head_by_rows) { return; }
    for (int32_t i = 0; i < CHECK_STANDARD || i < num_cuts; i++) {
        check_sharings(c, standard_batch(c, i % CHECK_STANDARD), num_cuts - 1 - i % num_cuts, by_vocabulary);
    }
    if (c->blocks->api->kept_bytes == NULL) { return; }
    check_sharings(c, check_batch(c, &unsupervised, 1, 0), num_cuts - 1, by_vocabulary);
}

// --- law of gradients ------------------------------------------------------------------------------------
// For a direction d in the space of parameters,
//
//     (L(p + h d) - L(p - h d)) / 2h = sum of gradient * d     L: loss_scale * sum of losses of a microbatch
//
// Directions are confined to a piece of the flat array, so that small tensors count as much as large ones:
// one with the signs of the gradients (shows wrong sizes), and one with random signs (shows what is missing).
// Parameters are moved at random first: what starts as zeros would hide what
// comes after it.
//
// A step that is too long for the curvature or crosses kinks (ReLU) has another slope than a shorter one; one
// that is too short errs by the rounding of the losses. The gradients are wrong where they are off by more
// than both at every place of several: where a kink misleads is by chance.

enum { MOST_PIECES = 64, NUM_STEPS = 6, NUM_PLACES = 5 };
#define SLOPE_TOLERANCE 0.01

typedef struct {
    Checker* c;
    CheckRange* range;  // the whole model
    CheckPass pass;
    float *start, *params, *gradients, *moved;  // (num_params), as kept by the model; moved: of a piece
    double loss, noise;                         // at these parameters; rounding errors of a difference
    Rng rng;
} Slopes;

// What a step changes the loss by.
typedef struct {
    double expected, measured;  // by the gradients, by the losses
    double larger;              // of both, and of one with random signs: one may be nearly 0 by chance
    double error;               // what `measured` may be off by (check_direction)
} Slope;

static double unit(Rng* rng) {  // [-1, 1)
    return (double)(int32_t)(uint32_t)rng_u64(rng) * 0x1p-31;
}

static double evaluate(Slopes* s) {
    const DynapipeBatch* batch = &s->pass.of->batch;
    double loss = 0;
    pass_job(s->c, &s->pass, 'F');
    for (int32_t r = 0; r < batch->num_rows; r++) { loss += (double)losses_of(&s->pass)[r]; }
    return loss * (double)batch->loss_scale;
}

static void write_params(Slopes* s, const float* values, int64_t begin, int64_t count) {
    check_copy(s->c, (float*)s->range->params.params + begin, values, count * (int64_t)sizeof *values);
}

// Along signs[0, count) * step.
static Slope measure_slope(Slopes* s, const signed char* signs, int64_t begin, int64_t count, double step) {
    Slope out = {0};
    double squares = 0;
    for (int side = -1; side <= 1; side += 2) {
        for (int64_t i = 0; i < count; i++) {
            s->moved[i] = (float)(s->params[begin + i] + side * step * signs[i]);
        }
        write_params(s, s->moved, begin, count);
        for (int64_t i = 0; i < count; i++) {
            double change = ((double)s->moved[i] - s->params[begin + i]) / 2 * s->gradients[begin + i];
            out.expected += side * change;
            squares += 2 * change * change;
        }
        out.measured += side * evaluate(s) / 2;
    }
    write_params(s, s->params + begin, begin, count);
    out.larger = fmax(sqrt(squares), fmax(fabs(out.expected), fabs(out.measured)));
    return out;
}

typedef enum { SLOPE_AGREES, SLOPE_UNCLEAR, SLOPE_WRONG } SlopeVerdict;

// Each step is a quarter of the one before it; the first changes parameters by a fiftieth at most, and the
// loss by no more than that. *wrong: the shortest step that disagrees.
static SlopeVerdict check_direction(Slopes* s, Slope* wrong, const signed char* signs, int64_t begin,
                                    int64_t count) {
    const double MOST = 0.02, GPT2_INITIAL = 0.02;
    double squares = 0, steepness = 0, before = INFINITY;
    SlopeVerdict verdict = SLOPE_AGREES;  // effects below the rounding of the losses are skipped
    for (int64_t i = begin; i < begin + count; i++) {
        squares += (double)s->params[i] * s->params[i];
        steepness += fabs((double)s->gradients[i]);
    }
    double step = MOST * fmax(sqrt(squares / (double)count), GPT2_INITIAL);
    if (steepness * step > MOST * s->loss) { step = MOST * s->loss / steepness; }
    for (int i = 0; i < NUM_STEPS; i++, step /= 4) {
        Slope slope = measure_slope(s, signs, begin, count, step);
        const double off = fabs(slope.expected - slope.measured), tolerated = SLOPE_TOLERANCE * slope.larger;
        if (s->noise <= tolerated && off <= tolerated + s->noise) { return SLOPE_AGREES; }
        if (slope.larger <= s->noise) { break; }
        slope.error = s->noise + 2 * fabs(slope.measured - before / 4);
        before = slope.measured;
        bool disagrees = off > tolerated + slope.error;
        if (disagrees) { *wrong = slope; }
        verdict = disagrees || verdict == SLOPE_WRONG ? SLOPE_WRONG : SLOPE_UNCLEAR;
    }
    return verdict;
}

static SlopeVerdict check_piece(Slopes* s, Slope* wrong, int64_t begin, int64_t count) {
    signed char* signs = CHECK_NEW(s->c, signed char, count);
    SlopeVerdict worst = SLOPE_AGREES;
    for (int way = 0; way < 2 && worst != SLOPE_WRONG; way++) {
        for (int64_t i = 0; i < count; i++) {
            float gradient = s->gradients[begin + i];
            if (way == 1 || gradient == 0) { gradient = (float)unit(&s->rng); }
            signs[i] = gradient < 0 ? -1 : 1;
        }
        SlopeVerdict verdict = check_direction(s, wrong, signs, begin, count);
        if (verdict > worst) { worst = verdict; }
    }
    return worst;
}

// Random parameters near the model's own, as stored, and the gradients there.
static void move_params(Slopes* s) {
    const DynapipeBatch* batch = &s->pass.of->batch;
    for (int64_t i = 0; i < s->range->params.num_params; i++) {
        s->params[i] = s->start[i] + (float)(0.3 * fmax(fabs((double)s->start[i]), 0.02) * unit(&s->rng));
    }
    write_params(s, s->params, 0, s->range->params.num_params);
    s->gradients = run_jobs(s->c, &s->pass, 1, ALONE).gradients;
    s->loss = evaluate(s);
    s->noise = 2 * s->c->epsilon * (fabs(s->loss) + batch->num_rows * (double)batch->loss_scale);
}

static void law_slopes(Checker* c) {
    CheckChain whole = check_chain(c, WHOLE);
    Slopes s = {.c = c, .range = whole.ranges[0], .rng = rng_seed(7)};
    if (s.range->params.param_type != DYNAPIPE_FLOAT32) { return; }  // 8 or 11 bits see too little
    int num_wrong[MOST_PIECES] = {0};
    bool agrees[MOST_PIECES] = {false};
    Slope wrong = {0};
    s.pass = check_pass(c, &whole, standard_batch(c, 1));
    s.moved = CHECK_NEW(c, float, whole.num_values);
    s.params = CHECK_NEW(c, float, whole.num_values);
    s.start = values_of(c, &whole, false);
    c->is_fast = true;
    const int64_t most = MOST_PIECES, num_pieces = whole.num_values < most ? whole.num_values : most;
    for (int place = 0; place < NUM_PLACES; place++) {
        move_params(&s);
        for (int64_t k = 0; k < num_pieces; k++) {
            int64_t begin = whole.num_values * k / num_pieces, end = whole.num_values * (k + 1) / num_pieces;
            if (agrees[k]) { continue; }
            SlopeVerdict verdict = check_piece(&s, &wrong, begin, end - begin);
            agrees[k] = verdict == SLOPE_AGREES;
            num_wrong[k] += verdict == SLOPE_WRONG;
            if (num_wrong[k] < NUM_PLACES) { continue; }
            fail(c,
                 "zero, or far off: a term of backward is missing; off by a factor: loss_scale or a mean; "
                 "the piece of the array tells which tensor",
                 "parameters [%lld, %lld) of %lld moved a little, the loss changes by %.4g (to within %.1g), "
                 "by the gradients it would by %.4g, and so at %d of %d places",
                 (long long)begin, (long long)end, (long long)whole.num_values, wrong.measured, wrong.error,
                 wrong.expected, num_wrong[k], place + 1);
        }
    }
}

// --- all laws --------------------------------------------------------------------------------------------

typedef struct {
    const char* what;
    void (*law)(Checker* c);  // NULL: of orders
    Order orders[4];
} Law;

static const Law laws[] = {
    {"ranges can be made, their sizes add up", law_ranges, {{0}}},
    {"bytes follow from counts, and grow with them", law_counts, {{0}}},
    {"promised bytes suffice, and are read where written", law_bytes, {{0}}},
    {"a forward again gives the same",
     NULL,
     {{"the same forward again", "F0 F0 B0 W0", true, false, 1,
       "same inputs, same bits: does forward read acts or scratch before it has written there, state that it "
       "left in the model, or a counter of random numbers (batch->token_keys is for dropout)?"},
      {"a forward with HEAD alone", "F0 B0 W0 V0", false, false, 1, "validation calls it so"},
      {"a forward that keeps nothing, recomputed (out NULL)", "N0 R0 B0 W0", true, false, 1,
       "flags choose what is kept in acts, not what is computed; with KEEP, acts must hold all that backward "
       "reads, also where out is NULL"}}},
    {"gradients add, loss_scale scales them alone",
     NULL,
     {{"two microbatches one after the other", "F0 B0 W0 F1 B1 W1", false, false, 1,
       "gradients are added (+=): zero_gradients() alone zeroes them, once a step"},
      {"twice the loss_scale", "F0 B0 W0", true, false, 2,
       "every row's gradient starts as loss_scale * (softmax - target), without a mean over rows or tokens; "
       "losses are cross entropies in nats; loss_scale belongs to gradients alone"}}},
    {"backward divided and delayed gives the joint one's gradients",
     NULL,
     {{"two microbatches under way at once, weights' gradients last", "F0 F1 M0 B0 B1 M1 W1 W0", false, false,
       1,
       "what backward needs lies in that microbatch's acts: not in scratch (another job writes there), not "
       "in "
       "the model, not in `in` (gone after backward_inputs); acts may move: no pointer into them is kept"}}},
    {"jobs queued and waited for once give the same",
     NULL,
     {{"jobs that are waited for once", "F0 F1 B0 B1 W1 W0", false, true, 1,
       "a job may still be queued when the next one is called: what kernels read (copies of tokens, rows, "
       "targets and so on) is that microbatch's own until finish(), or is copied in the queue's order"}}},
    {"every cut gives the whole's losses and gradients", law_cuts, {{0}}},
    {"grouping and padding samples changes nothing", law_grouping, {{0}}},
    {"pieces of a sample give the whole's losses and gradients", law_pieces, {{0}}},
    {"a shared head gives the whole's losses and gradients", law_heads, {{0}}},
    {"gradients are those of finite differences", law_slopes, {{0}}},
};
enum { NUM_LAWS = sizeof laws / sizeof laws[0] };

static Status check_blocks(const DynapipeBlocks_v1* blocks) {
    TRY(measure_check(blocks));
    if (blocks->num_layers < 2 || blocks->num_dec_layers < 0 || blocks->vocab < 2) {
        return FAIL(
            STATUS_BAD_OPTION,
            "%d layers, %d of a decoder, %d ids: too small a model to check ---> take one of at least 2 "
            "layers (2 to 4 will do) and 2 ids",
            (int)blocks->num_layers, (int)blocks->num_dec_layers, (int)blocks->vocab);
    }
    return STATUS_OK;
}

static Status run_law(Checker* c, const Law* law) {
    c->status = STATUS_OK;
    if (setjmp(c->end_of_law) == 0) {
        if (law->law != NULL) {
            law->law(c);
        } else {
            law_orders(c, law->orders);
        }
    }
    c->is_fast = c->is_queued = false;
    check_release(c);
    return c->status;
}

// A line for each law; the message of the first failure.
static Status run_laws(Checker* c, FILE* out) {
    char first_words[1024];
    Status first = STATUS_OK;
    for (int i = 0; i < NUM_LAWS; i++) {
        const Status status = run_law(c, &laws[i]);
        const bool is_ok = status == STATUS_OK;
        if (out != NULL) {
            fprintf(out, "%s %s%s%s\n", is_ok ? "ok  " : "FAIL", laws[i].what, is_ok ? "" : ": ",
                    is_ok ? "" : status_message());
            fflush(out);
        }
        if (is_ok) { continue; }
        if (first == STATUS_OK) { snprintf(first_words, sizeof first_words, "%s", status_message()); }
        if (first == STATUS_OK) { first = status; }
        if (i == 0 || c->is_overwritten || status != STATUS_MISMATCH) { break; }
    }
    return first == STATUS_OK ? first : FAIL(first, "%s", first_words);
}

int dynapipe_check_model(Dynapipe* dp, const DynapipeBlocks_v1* blocks, FILE* out) {
    Status status = check_blocks(blocks);
    if (status != STATUS_OK && out != NULL) {
        fprintf(out, "FAIL the model's table: %s\n", status_message());
    }
    TRY(status);
    if (dp->links == NULL) { TRY(session_device_open(dp, NULL)); }
    Checker* c = (Checker*)calloc(1, sizeof *c);
    if (c == NULL) { return FAIL(STATUS_NO_MEMORY, "no host memory left"); }
    c->blocks = blocks;
    c->device = dp->device;
    c->has_decoder = blocks->num_dec_layers > 0;
    status = find_cuts(c);
    if (status == STATUS_OK) { status = run_laws(c, out); }
    arena_free(&c->arena);
    free(c->cuts);
    free(c->temp);
    free(c);
    return status;
}
