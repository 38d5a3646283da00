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
#include "measure_bytes.h"

// num_bytes where values live (or in this process), between two guards.
typedef struct CheckBuffer {
    unsigned char* data;  // aligned to PLAN_BUFFER_ALIGN
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
    Status status;  // of the law at hand
} Checker;

#define CHECK_NEW(c, Type, count) ((Type*)check_alloc(c, (int64_t)(count), sizeof(Type)))

// Two arguments of a message about a range: "blocks [%d, %d)".
#define BLOCKS(range) (int)(range)->blocks.begin, (int)(range)->blocks.end

enum { CHECK_KEEP = DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD };

static void fail(Checker* c, const char* fmt, ...) __attribute__((format(printf, 2, 3), noreturn));
static void fail(Checker* c, const char* fmt, ...) {
    char words[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(words, sizeof words, fmt, args);
    va_end(args);
    c->status = FAIL(STATUS_MISMATCH, "%s", words);
    longjmp(c->end_of_law, 1);
}

static void must(Checker* c, Status status) {
    c->status = status;
    if (status != STATUS_OK) { longjmp(c->end_of_law, 1); }
}

// --- memory ----------------------------------------------------------------------------------------------

enum { LEAST_GUARD_BYTES = 16 * PLAN_BUFFER_ALIGN, GUARD_PATTERN = 0xa5, SPOILED = 0xff };

static void* check_alloc(Checker* c, int64_t count, size_t item_bytes) {
    void* memory = arena_alloc_array(&c->arena, (size_t)count, item_bytes);
    if (memory == NULL) { must(c, FAIL(STATUS_NO_MEMORY, "no host memory left")); }
    return memory;
}

// As long as the buffer and a little more: a forgotten array overruns by no more.
static int64_t guard_bytes(int64_t num_bytes) {
    return (num_bytes + PLAN_BUFFER_ALIGN - 1) / PLAN_BUFFER_ALIGN * PLAN_BUFFER_ALIGN + LEAST_GUARD_BYTES;
}

static unsigned char* check_temp(Checker* c, int64_t num_bytes) {
    if ((size_t)num_bytes > c->temp_bytes) {
        unsigned char* grown = (unsigned char*)realloc(c->temp, (size_t)num_bytes);
        if (grown == NULL) { must(c, FAIL(STATUS_NO_MEMORY, "no host memory left")); }
        c->temp = grown;
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

static void check_fill(Checker* c, unsigned char* to, int value, int64_t num_bytes) {
    void* values = c->device.api == NULL ? to : check_temp(c, num_bytes + 1);
    memset(values, value, (size_t)num_bytes);
    if (values != to) { check_copy(c, to, values, num_bytes); }
}

// 0xff: NaN in every type, and no valid index.
static void check_spoil(Checker* c, const CheckBuffer* buffer) {
    if (!c->is_fast && buffer != NULL) { check_fill(c, buffer->data, SPOILED, buffer->num_bytes); }
}

static CheckBuffer* check_buffer(Checker* c, int64_t num_bytes, bool on_host) {
    if (num_bytes < 0) {
        fail(
            c,
            "a buffer of %lld bytes is asked for ---> acts_bytes(), scratch_bytes() and boundary_bytes() are "
            "never negative",
            (long long)num_bytes);
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
    if (whole == NULL) {
        must(c, FAIL(STATUS_NO_MEMORY, "no memory to check the model ---> check a smaller one"));
    }
    buffer->data = (unsigned char*)whole + guard;
    buffer->num_bytes = num_bytes;
    buffer->next = c->buffers;
    c->buffers = buffer;
    check_fill(c, (unsigned char*)whole, GUARD_PATTERN, 3 * guard);
    check_spoil(c, buffer);
    return buffer;
}

static void check_release(Checker* c) {
    for (CheckBuffer* b = c->buffers; b != NULL; b = b->next) {
        unsigned char* whole = b->data - guard_bytes(b->num_bytes);
        if (b->on_device) {
            c->device.api->release(c->device.ctx, whole);
        } else {
            free(whole);
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
    int64_t guard = guard_bytes(buffer->num_bytes), before = 0, after = 0;
    unsigned char *first = check_temp(c, 2 * guard), *last = first + guard;
    check_copy(c, first, buffer->data - guard, guard);
    check_copy(c, last, buffer->data + buffer->num_bytes, guard);
    for (int64_t i = 0; i < guard; i++) {
        if (last[i] != GUARD_PATTERN) { after = i + 1; }
        if (first[guard - 1 - i] != GUARD_PATTERN) { before = i + 1; }
    }
    return after > 0 ? after : -before;
}

static unsigned char* check_bytes_of(Checker* c, const CheckBuffer* buffer) {
    unsigned char* bytes = CHECK_NEW(c, unsigned char, buffer->num_bytes);
    check_copy(c, bytes, buffer->data, buffer->num_bytes);
    return bytes;
}

// --- values ----------------------------------------------------------------------------------------------

static int64_t value_bytes(int32_t type) {
    return type == DYNAPIPE_FLOAT32 ? 4 : 2;
}

// Values of a DynapipeType where values live, as floats here.
static void check_read(Checker* c, float* to, const void* from, int32_t type, int64_t num_values) {
    if (type == DYNAPIPE_FLOAT32) {
        check_copy(c, to, from, num_values * 4);
        return;
    }
    const uint16_t* halves = (const uint16_t*)(const void*)check_temp(c, num_values * 2 + 1);
    check_copy(c, c->temp, from, num_values * 2);
    for (int64_t i = 0; i < num_values; i++) {
        to[i] = type == DYNAPIPE_FLOAT16 ? half_from_float16(halves[i]) : half_from_bfloat16(halves[i]);
    }
}

// Fails where values differ by more than `tolerance` of the larger of both and the array's root mean square:
// "<what>: value 17 of 640: 0.25 expected, 0.5 found; 12 of them differ ---> <remedy>", with the value that
// differs most. NaN always differs.
static void check_same(Checker* c, const float* expected, const float* found, int64_t num_values,
                       double tolerance, const char* remedy, const char* what, ...)
    __attribute__((format(printf, 7, 8)));
static void check_same(Checker* c, const float* expected, const float* found, int64_t num_values,
                       double tolerance, const char* remedy, const char* what, ...) {
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
        if (num_off++ == 0 || off > worst) {
            worst = off;
            at = i;
        }
    }
    if (num_off == 0) { return; }
    char words[320];
    va_list args;
    va_start(args, what);
    vsnprintf(words, sizeof words, what, args);
    va_end(args);
    fail(c, "%s: value %lld of %lld: %.6g expected, %.6g found; %lld of them differ ---> %s", words,
         (long long)at, (long long)num_values, (double)expected[at], (double)found[at], (long long)num_off,
         remedy);
}

// --- ranges of the model -----------------------------------------------------------------------------------

static const char* check_why(const Checker* c) {
    return c->blocks->why != NULL ? c->blocks->why(c->blocks->ctx) : "no message (blocks->why is NULL)";
}

static void check_params(Checker* c, const CheckRange* range) {
    const DynapipeParams_v1* params = &range->params;
    must(c, CHECK_RESERVED(DynapipeParams_v1, reserved, params));
    const int32_t types[] = {params->param_type, params->grad_type};
    for (int i = 0; i < 2; i++) {
        if (types[i] >= DYNAPIPE_FLOAT32 && types[i] <= DYNAPIPE_FLOAT16) { continue; }
        fail(c, "blocks [%d, %d): param_type %d, grad_type %d ---> values of DynapipeType", BLOCKS(range),
             (int)types[0], (int)types[1]);
    }
    if (params->num_tied < 0 || (params->num_tied > 0 && params->tied == NULL)) {
        fail(c, "blocks [%d, %d): %d tied groups, but no list of them ---> params->tied lists them",
             BLOCKS(range), (int)params->num_tied);
    }
    for (int32_t i = 0; i < params->num_tied; i++) {
        const DynapipeTied* tied = &params->tied[i];
        int64_t end = tied->begin + tied->count;
        if (tied->group >= 0 && tied->begin >= 0 && tied->count > 0 && end <= params->num_params) {
            continue;
        }
        fail(c,
             "blocks [%d, %d): tied group %d is values [%lld, %lld) of %lld ---> begin and count are values "
             "(not bytes) of this range's own array",
             BLOCKS(range), (int)tied->group, (long long)tied->begin, (long long)end,
             (long long)params->num_params);
    }
}

static CheckRange* check_range(Checker* c, DynapipeRange blocks, bool has_values) {
    CheckRange* range = CHECK_NEW(c, CheckRange, 1);
    range->blocks = blocks;
    int code = c->blocks->make(c->blocks->ctx, blocks, has_values, &range->model, &range->params);
    if (code != 0) {
        fail(c,
             "make() of blocks [%d, %d) of %d returned error %d: %s ---> a stage may be any contiguous "
             "blocks; "
             "block 0 is the embedding, block %d the head",
             BLOCKS(range), (int)c->num_blocks, code, check_why(c), (int)c->num_blocks - 1);
    }
    range->next = c->ranges;
    c->ranges = range;
    check_params(c, range);
    if (has_values && (range->params.params == NULL || range->params.grads == NULL)) {
        fail(c,
             "make() of blocks [%d, %d) gave no %s ---> with has_values 1 it fills params->params and "
             "params->grads",
             BLOCKS(range), range->params.params == NULL ? "parameters" : "gradients");
    }
    return range;
}

// cuts: blocks that a range begins with, ascending, without 0.
static CheckChain check_chain(Checker* c, const int32_t* cuts, int32_t num_cuts) {
    CheckChain chain = {CHECK_NEW(c, CheckRange*, num_cuts + 1), num_cuts + 1, 0};
    for (int32_t r = 0; r <= num_cuts; r++) {
        DynapipeRange blocks = {.begin = r > 0 ? cuts[r - 1] : 0,
                                .end = r < num_cuts ? cuts[r] : c->num_blocks};
        chain.ranges[r] = check_range(c, blocks, true);
        chain.ranges[r]->begin = chain.num_values;
        chain.num_values += chain.ranges[r]->params.num_params;
    }
    return chain;
}

// The embedding is no stage alone, a decoder's embedding goes with the next block.
static Status find_cuts(Checker* c) {
    const DynapipeBlocks_v1* blocks = c->blocks;
    const PlanChain layers = measure_chain(blocks);
    const int32_t num_enc = plan_chain_first_dec(&layers);
    c->num_blocks = plan_chain_num_blocks(&layers) + 2 + (c->has_decoder ? 1 : 0);
    c->cuts = (int32_t*)calloc((size_t)c->num_blocks, sizeof *c->cuts);
    if (c->cuts == NULL) { return FAIL(STATUS_NO_MEMORY, "no host memory left"); }
    for (int32_t b = 2; b < c->num_blocks; b++) {
        bool after_dec_embedding = c->has_decoder && b == num_enc + 2;
        bool is_head = b == c->num_blocks - 1;
        if (after_dec_embedding || (is_head && blocks->shapes.head_has_layer)) { continue; }
        c->cuts[c->num_cuts++] = b;
    }
    return STATUS_OK;
}

// Ways to cut the model: at each place alone; at every third, every second, every place, so that ranges begin
// and end with any blocks of a layer; then not at all.
enum { STRIDES = 6 };
static CheckChain cut_chain(Checker* c, int32_t way) {
    static const struct {
        int32_t first, stride;
    } strides[STRIDES] = {{0, 3}, {1, 3}, {2, 3}, {0, 2}, {1, 2}, {0, 1}};
    int32_t *cuts = CHECK_NEW(c, int32_t, c->num_cuts + 1), num = 0, first = way, stride = c->num_cuts;
    if (way >= c->num_cuts + STRIDES) { return check_chain(c, NULL, 0); }
    if (way >= c->num_cuts) {
        first = strides[way - c->num_cuts].first;
        stride = strides[way - c->num_cuts].stride;
    }
    for (int32_t i = first; i < c->num_cuts; i += stride) { cuts[num++] = c->cuts[i]; }
    return check_chain(c, cuts, num);
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

static void zero_gradients(const Checker* c, const CheckChain* chain) {
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        c->blocks->api->zero_gradients(chain->ranges[r]->model);
    }
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

// `expected` against the chain's gradients as they are (`found` NULL), or these.
static void same_gradients(Checker* c, const CheckChain* chain, const float* expected, const float* found,
                           const char* what, const char* remedy) {
    if (found == NULL) { found = values_of(c, chain, true); }
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        const CheckRange* range = chain->ranges[r];
        check_same(c, expected + range->begin, found + range->begin, range->params.num_params, c->tolerance,
                   remedy, "%s: gradients of blocks [%d, %d)", what, BLOCKS(range));
    }
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

// The tokens that all windows of a side are padded to; 0: they are not.
static int32_t padded_tokens(const Checker* c, const MadeWindow* samples, int32_t num, int side,
                             int32_t padding) {
    const ShapeRules rules = session_rules(&c->blocks->shapes);
    int32_t longest = 0;
    for (int32_t i = 0; i < num; i++) {
        if (samples[i].tokens[side] > longest) { longest = samples[i].tokens[side]; }
    }
    if ((!rules.padded && padding == 0) || longest == 0) { return 0; }
    return (int32_t)shape_rules_round(&rules, at_most(c, longest + padding), num);
}

// Within the kernels' limits?
static bool is_allowed(const Checker* c, const MadeWindow* samples, int32_t num, int32_t padding) {
    const ShapeRules rules = session_rules(&c->blocks->shapes);
    int32_t enc = padded_tokens(c, samples, num, 0, padding),
            dec = padded_tokens(c, samples, num, 1, padding);
    MbShape shape = {0};
    for (int32_t i = 0; i < num; i++) {
        mb_shape_add(&shape, enc > 0 ? enc : samples[i].tokens[0], dec > 0 ? dec : samples[i].tokens[1], 0);
    }
    return shape_rules_allow(&rules, &shape);
}

static void shorten(const Checker* c, MadeWindow* sample, int32_t num_tokens) {
    for (int side = 0; side < 2; side++) {
        if (sample->tokens[side] > num_tokens) { sample->tokens[side] = num_tokens; }
    }
    int32_t supervised = sample->tokens[c->has_decoder];
    if (sample->num_rows > supervised) { sample->num_rows = supervised; }
}

// Shorter, and fewer, until they are allowed. Returns how many.
static int32_t fit_samples(const Checker* c, MadeWindow* samples, int32_t num, int32_t longest) {
    longest = at_most(c, longest);
    for (int32_t i = 0; i < num; i++) { shorten(c, &samples[i], longest); }
    while (num > 1 && !is_allowed(c, samples, num, 0)) { num--; }
    while (longest > 1 && !is_allowed(c, samples, num, 0)) { shorten(c, &samples[0], --longest); }
    return num;
}

// One sample; four, of which one is not supervised; a long and a short one, with sizes that need no rounding.
static int32_t standard_samples(const Checker* c, MadeWindow out[MOST_SAMPLES], int32_t idx) {
    static const MadeWindow standard[CHECK_STANDARD][MOST_SAMPLES] = {
        {{1, {7, 4}, 3, {0, 0}}},
        {{2, {5, 3}, 2, {0, 0}}, {3, {1, 2}, 1, {0, 0}}, {4, {3, 1}, 0, {0, 0}}, {5, {4, 5}, 4, {0, 0}}},
        {{6, {30, 2}, 15, {0, 0}},
         {7, {2, 30}, 1, {0, 0}}},  // 32 tokens, 16 rows: what sizes are rounded up to
    };
    int32_t num = idx == 0 ? 1 : idx == 1 ? 4 : 2;
    for (int32_t i = 0; i < num; i++) {
        out[i] = standard[idx][i];
        if (!c->has_decoder) { out[i].tokens[1] = 0; }
    }
    return fit_samples(c, out, num, 30);
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
    while (padding > 0 && !is_allowed(c, samples, num, padding)) { padding--; }
    for (int32_t i = 0; i < num; i++) {
        windows[i] = samples[i];
        for (int side = 0; side < 2; side++) {
            windows[i].padded[side] = padded_tokens(c, samples, num, side, padding);
        }
    }
    int32_t T = windows[0].padded[0];
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

static CheckBatch* standard_batch(Checker* c, int32_t idx, int32_t padding) {
    MadeWindow samples[MOST_SAMPLES];
    int32_t num = standard_samples(c, samples, idx);
    return check_batch(c, samples, num, padding);
}

// --- jobs ------------------------------------------------------------------------------------------------

// One microbatch on its way through a chain. Every range has its own buffers: what its neighbour gets is
// copied.
typedef struct {
    CheckBuffer *acts[4], *in, *out, *din, *dout, *scratch;  // acts by flags
    CheckBuffer *kept, *dkept;                               // of a piece, shared with the sample's others
} PassRange;

typedef struct {
    const CheckChain* chain;
    CheckBatch* of;
    PassRange* at;        // [num_ranges]
    CheckBuffer* losses;  // (num_rows), host
} CheckPass;

static CheckPass check_pass(Checker* c, const CheckChain* chain, CheckBatch* of) {
    const DynapipeModel_v1* api = c->blocks->api;
    const DynapipeBatch* batch = &of->batch;
    CheckPass pass = {chain, of, CHECK_NEW(c, PassRange, chain->num_ranges), NULL};
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        const CheckRange* range = chain->ranges[r];
        PassRange* at = &pass.at[r];
        at->scratch = check_buffer(c, api->scratch_bytes(range->model, batch), false);
        if (r == 0) { continue; }
        const CheckRange* before = chain->ranges[r - 1];
        int64_t enter_bytes = api->boundary_bytes(range->model, batch, 0);
        int64_t leave_bytes = api->boundary_bytes(before->model, batch, 1);
        if (enter_bytes != leave_bytes) {
            fail(c,
                 "%s: %lld bytes leave blocks [%d, %d), %lld enter [%d, %d) ---> boundary_bytes(is_behind 1) "
                 "of the one and (0) of the other are the same activation",
                 of->what, (long long)leave_bytes, BLOCKS(before), (long long)enter_bytes, BLOCKS(range));
        }
        CheckBuffer** const boundary[] = {&at->in, &at->din, &at[-1].out, &at[-1].dout};
        for (int i = 0; i < 4; i++) { *boundary[i] = check_buffer(c, enter_bytes, false); }
    }
    pass.losses = check_buffer(c, batch->num_rows * (int64_t)sizeof(float), true);
    return pass;
}

static const float* losses_of(const CheckPass* pass) {
    return (const float*)(const void*)pass->losses->data;
}

typedef enum { CALL_FORWARD, CALL_BACKWARD_INPUTS, CALL_BACKWARD_WEIGHTS, CALL_FINISH } CallKind;

static const char* const call_names[] = {"forward", "backward_inputs", "backward_weights", "finish"};

// A buffer of one call of the model.
typedef struct {
    const char* name;
    CheckBuffer* buffer;          // NULL: the call has none
    const unsigned char* before;  // contents that the call may only read; NULL: it may write
} CheckUse;

enum { USE_WRITTEN, USE_ACTS, USE_SCRATCH, USE_LOSSES, USE_KEPT, USE_DKEPT, USE_IN, USE_DOUT, NUM_USES };

static void* data_of(const CheckBuffer* buffer) {
    return buffer != NULL ? buffer->data : NULL;
}

static const char* overrun_remedy(int use) {
    return use == USE_ACTS ? "acts_bytes() returns less than is used for these flags, or an index runs over "
                             "num_tokens"
           : use == USE_SCRATCH ? "scratch_bytes() is what the neediest of forward, backward_inputs and "
                                  "backward_weights uses"
           : use == USE_LOSSES  ? "one loss for each supervised row, not for each token"
           : use == USE_KEPT || use == USE_DKEPT ? "kept_bytes() returns less than is written there"
                                                 : "boundary_bytes() returns less than is written there";
}

// Guards are intact, and read-only buffers are unchanged.
static void check_uses(Checker* c, const CheckUse uses[NUM_USES], const CheckPass* pass,
                       const CheckRange* range, const char* name) {
    for (int i = 0; i < NUM_USES; i++) {
        int64_t damage = uses[i].buffer != NULL ? check_damage(c, uses[i].buffer) : 0;
        if (damage == 0) { continue; }
        c->is_overwritten = true;
        fail(c,
             "%s of blocks [%d, %d) wrote at least %lld bytes %s its %s (%s; %lld bytes were asked for) ---> "
             "%s",
             name, BLOCKS(range), llabs(damage), damage > 0 ? "after" : "before", uses[i].name,
             pass->of->what, (long long)uses[i].buffer->num_bytes, overrun_remedy(i));
    }
    for (int i = 0; i < NUM_USES; i++) {
        if (uses[i].before == NULL) { continue; }
        int64_t num_bytes = uses[i].buffer->num_bytes;
        unsigned char* now = check_temp(c, num_bytes + 1);
        check_copy(c, now, uses[i].buffer->data, num_bytes);
        if (memcmp(now, uses[i].before, (size_t)num_bytes) == 0) { continue; }
        fail(c,
             "%s of blocks [%d, %d) changed its %s (%s) ---> it may only be read: it is read again later, or "
             "being sent to another rank",
             name, BLOCKS(range), uses[i].name, pass->of->what);
    }
}

static void check_code(Checker* c, const CheckPass* pass, const CheckRange* range, CallKind kind, int code) {
    const DynapipeModel_v1* api = c->blocks->api;
    if (code == 0 && api->finish != NULL && !c->is_queued) {
        code = api->finish(range->model);
        kind = CALL_FINISH;
    }
    if (code == 0) { return; }
    fail(c, "%s of blocks [%d, %d) returned error %d (%s) %s", call_names[kind], BLOCKS(range), code,
         pass->of->what, check_why(c));
}

// One job of one range. flags: of a forward. again: as when an executor recomputes, `out` is NULL and `in` as
// before.
static void pass_call(Checker* c, CheckPass* pass, int32_t r, CallKind kind, int flags, bool again) {
    const DynapipeModel_v1* api = c->blocks->api;
    DynapipeBatch* batch = &pass->of->batch;
    const CheckRange* range = pass->chain->ranges[r];
    PassRange* at = &pass->at[r];
    bool is_forward = kind == CALL_FORWARD, is_last = r == pass->chain->num_ranges - 1;
    bool has_losses = is_forward && is_last && (flags & DYNAPIPE_FORWARD_HEAD);
    CheckBuffer** acts = &at->acts[flags];
    CheckBuffer* written = is_forward                     ? (again ? NULL : at->out)
                           : kind == CALL_BACKWARD_INPUTS ? at->din
                                                          : NULL;
    if (*acts == NULL) { *acts = check_buffer(c, api->acts_bytes(range->model, batch, flags), false); }
    if (is_forward) { check_spoil(c, *acts); }
    if (is_forward && is_last) { check_spoil(c, pass->losses); }
    check_spoil(c, at->scratch);
    check_spoil(c, written);
    CheckUse uses[NUM_USES] = {{is_forward ? "out" : "din", written, NULL},
                               {"acts", *acts, NULL},
                               {"scratch", at->scratch, NULL},
                               {"losses", has_losses ? pass->losses : NULL, NULL},
                               {"kept", at->kept, NULL},
                               {"dkept", at->dkept, NULL},
                               {"in", kind == CALL_BACKWARD_WEIGHTS ? NULL : at->in, NULL},
                               {"dout", is_forward ? NULL : at->dout, NULL}};
    for (int i = USE_IN; i < NUM_USES && !c->is_fast; i++) {
        if (uses[i].buffer != NULL) { uses[i].before = check_bytes_of(c, uses[i].buffer); }
    }
    void *in = data_of(uses[USE_IN].buffer), *dout = data_of(uses[USE_DOUT].buffer), *to = data_of(written);
    float* losses = (float*)data_of(uses[USE_LOSSES].buffer);
    void *kept = (*acts)->data, *scratch = at->scratch->data;
    batch->kept = data_of(at->kept), batch->dkept = is_forward ? NULL : data_of(at->dkept);
    int code = is_forward ? api->forward(range->model, batch, in, to, kept, scratch, losses, flags)
               : kind == CALL_BACKWARD_INPUTS
                   ? api->backward_inputs(range->model, batch, in, kept, dout, to, scratch)
                   : api->backward_weights(range->model, batch, kept, dout, scratch);
    check_code(c, pass, range, kind, code);
    if (!c->is_fast) { check_uses(c, uses, pass, range, call_names[kind]); }
    if (is_forward && written != NULL) { check_copy(c, at[1].in->data, written->data, written->num_bytes); }
    if (kind != CALL_BACKWARD_INPUTS || r == 0) { return; }
    check_copy(c, at[-1].dout->data, at->din->data, at->din->num_bytes);
    check_spoil(c, at->din);
    check_spoil(c, at->in);  // its memory is reused from here on
}

// All ranges, in the order of the job.
static void pass_run(Checker* c, CheckPass* pass, CallKind kind, int flags, bool again) {
    int32_t num = pass->chain->num_ranges;
    if (kind == CALL_BACKWARD_WEIGHTS && c->blocks->api->backward_weights == NULL) { return; }
    for (int32_t i = 0; i < num; i++) {
        pass_call(c, pass, kind == CALL_FORWARD ? i : num - 1 - i, kind, flags, again);
    }
}

static void pass_job(Checker* c, CheckPass* pass, CallKind kind) {
    pass_run(c, pass, kind, CHECK_KEEP, false);
}

static void pass_step(Checker* c, CheckPass* pass) {
    pass_job(c, pass, CALL_FORWARD);
    pass_job(c, pass, CALL_BACKWARD_INPUTS);
    pass_job(c, pass, CALL_BACKWARD_WEIGHTS);
}

// Moves acts for backward to another place; the old place is overwritten.
static void pass_move_acts(Checker* c, CheckPass* pass) {
    for (int32_t r = 0; r < pass->chain->num_ranges; r++) {
        CheckBuffer *from = pass->at[r].acts[CHECK_KEEP], *to = check_buffer(c, from->num_bytes, false);
        check_copy(c, to->data, from->data, from->num_bytes);
        check_spoil(c, from);
        pass->at[r].acts[CHECK_KEEP] = to;
    }
}

static float* copy_losses(Checker* c, const CheckPass* pass) {
    float* losses = CHECK_NEW(c, float, pass->of->batch.num_rows);
    memcpy(losses, pass->losses->data, (size_t)pass->losses->num_bytes);
    return losses;
}

static void same_losses(Checker* c, const CheckPass* pass, const float* expected, const char* what,
                        const char* remedy, double tolerance) {
    check_same(c, expected, losses_of(pass), pass->of->batch.num_rows, tolerance, remedy, "losses of %s (%s)",
               what, pass->of->what);
}

// From zero: the gradients of one microbatch.
static float* pass_gradients(Checker* c, CheckPass* pass) {
    zero_gradients(c, pass->chain);
    pass_step(c, pass);
    return values_of(c, pass->chain, true);
}

// The results of a microbatch on a chain.
typedef struct {
    float *losses, *gradients;  // (rows), (chain's values)
} Results;

static Results check_run(Checker* c, const CheckChain* chain, CheckBatch* batch) {
    CheckPass pass = check_pass(c, chain, batch);
    Results results;
    results.gradients = pass_gradients(c, &pass);
    results.losses = copy_losses(c, &pass);
    return results;
}

// --- laws of sizes ---------------------------------------------------------------------------------------

// A tied copy is as long, and holds the same values, as the first one of the chain.
static void check_tied_copy(Checker* c, const CheckChain* chain, int32_t r, const DynapipeTied* tied) {
    int32_t first = 0;
    const DynapipeTied* original = first_copy(chain, tied->group, &first);
    const CheckRange *a = chain->ranges[first], *b = chain->ranges[r];
    if (first == r) { return; }
    if (original->count != tied->count) {
        fail(c,
             "tied group %d has %lld values in blocks [%d, %d), %lld in [%d, %d) ---> all copies of a group "
             "have the same count",
             (int)tied->group, (long long)original->count, BLOCKS(a), (long long)tied->count, BLOCKS(b));
    }
    const float* params = values_of(c, chain, false);
    if (memcmp(params + a->begin + original->begin, params + b->begin + tied->begin,
               (size_t)tied->count * sizeof *params) != 0) {
        fail(c,
             "the copies of tied group %d in blocks [%d, %d) and [%d, %d) hold different values ---> make() "
             "gives a block the same values in every range; do params->tied's begins point at the tensor?",
             (int)tied->group, BLOCKS(a), BLOCKS(b));
    }
}

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
        if (of_earlier == of_later) { continue; }
        fail(c,
             "blocks [%d, %d) and [%d, %d), the same of two layers, have %lld and %lld parameters ---> "
             "layer_blocks and dec_layer_blocks are the blocks of a layer; layers of a stack are alike",
             (int)earlier.begin, (int)earlier.end, (int)later.begin, (int)later.end, (long long)of_earlier,
             (long long)of_later);
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
    if (without->num_params != whole->num_params) {
        fail(c,
             "blocks [0, %d): make() counts %lld parameters with has_values 0, %lld with 1 ---> only memory "
             "may "
             "be left out, no count",
             (int)c->num_blocks, (long long)without->num_params, (long long)whole->num_params);
    }
    // an encoder's last block may have the norm after it
    const PlanChain layers = measure_chain(c->blocks);
    const int32_t num_enc = plan_chain_first_dec(&layers);
    check_layers_alike(c, 1, 1 + num_enc - c->has_decoder, layers.enc_blocks);
    check_layers_alike(c, 2 + num_enc, c->num_blocks - 1, layers.dec_blocks);
    for (int32_t i = 0; i < c->num_cuts; i++) {
        CheckChain chain = check_chain(c, &c->cuts[i], 1);
        int64_t num_copies = 0;
        for (int32_t r = 0; r < 2; r++) {
            const DynapipeParams_v1* params = &chain.ranges[r]->params;
            for (int32_t k = 0; k < params->num_tied; k++) {
                int32_t first = 0;
                (void)first_copy(&chain, params->tied[k].group, &first);
                if (first != r) { num_copies += params->tied[k].count; }
                check_tied_copy(c, &chain, r, &params->tied[k]);
            }
        }
        if (chain.num_values - num_copies != whole->num_params) {
            fail(c,
                 "blocks [0, %d) and [%d, %d) have %lld parameters without %lld of tied copies, the whole "
                 "model "
                 "has %lld ---> every tensor is in one range, or in params->tied of each that has it",
                 (int)c->cuts[i], (int)c->cuts[i], (int)c->num_blocks,
                 (long long)(chain.num_values - num_copies), (long long)num_copies,
                 (long long)whole->num_params);
        }
        for (int32_t b = 0; b < CHECK_STANDARD; b++) {  // compares boundaries
            (void)check_pass(c, &chain, standard_batch(c, b, 0));
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
    int64_t sizes[GRID][NUM_SIZES], again[NUM_SIZES];
    for (int i = 0; i < GRID; i++) {
        DynapipeBatch counts = forget_contents(c, grid[i]->batch);
        ask_sizes(sizes[i], c, range, &grid[i]->batch);
        ask_sizes(again, c, range, &counts);
        for (int k = 0; k < NUM_SIZES; k++) {
            if (sizes[i][k] == again[k]) { continue; }
            fail(c,
                 "%s of blocks [%d, %d): %lld, and %lld when the arrays hold something else (%s) ---> the "
                 "planner knows the counts only: num_*, max_*",
                 size_names[k], BLOCKS(range), (long long)sizes[i][k], (long long)again[k], grid[i]->what);
        }
    }
    const bool in_rows = c->blocks->last_in_rows && range->blocks.end >= c->num_blocks - 2;
    for (int pair = 0; pair < GRID * GRID; pair++) {
        int a = pair / GRID, b = pair % GRID;
        if (in_rows && grid[a]->batch.num_rows == grid[b]->batch.num_rows && sizes[a][4] != sizes[b][4]) {
            fail(c,
                 "%s [%d, %d): %lld for %s, %lld for %s, with as many rows ---> where last_in_rows is 1, the "
                 "last block gets and gives hidden states of supervised rows alone",
                 size_names[4], BLOCKS(range), (long long)sizes[a][4], grid[a]->what, (long long)sizes[b][4],
                 grid[b]->what);
        }
        for (int k = 0; k < NUM_SIZES && covers(&grid[b]->batch, &grid[a]->batch); k++) {
            if (sizes[b][k] >= sizes[a][k]) { continue; }
            fail(c,
                 "%s of blocks [%d, %d): %lld for %s, with %d rows, but %lld for %s, with %d rows ---> never "
                 "less for more of anything",
                 size_names[k], BLOCKS(range), (long long)sizes[a][k], grid[a]->what,
                 (int)grid[a]->batch.num_rows, (long long)sizes[b][k], grid[b]->what,
                 (int)grid[b]->batch.num_rows);
        }
    }
    ask_sizes(again, c, check_range(c, range->blocks, false), &grid[GRID - 1]->batch);
    if (memcmp(again, sizes[GRID - 1], sizeof again) != 0) {
        fail(c,
             "blocks [%d, %d) ask for other bytes when made with has_values 0 ---> bytes follow from the "
             "model's shape alone",
             BLOCKS(range));
    }
}

static void law_counts(Checker* c) {
    CheckBatch* grid[GRID];
    make_grid(c, grid);
    CheckChain chain = check_chain(c, c->cuts, c->num_cuts);
    for (int32_t r = 0; r < chain.num_ranges; r++) { check_sizes(c, chain.ranges[r], grid); }
}

// --- laws of jobs ----------------------------------------------------------------------------------------

// The standard microbatches on a model cut into the smallest ranges, or (is_large) into few, in which several
// layers come to share a place.
typedef struct {
    CheckChain chain;
    CheckPass passes[CHECK_STANDARD];
} Setting;

static void make_setting(Checker* c, Setting* out, bool is_large) {
    out->chain = is_large ? check_chain(c, c->cuts + c->num_cuts / 2, c->num_cuts > 2)
                          : check_chain(c, c->cuts, c->num_cuts);
    for (int32_t i = 0; i < CHECK_STANDARD; i++) {
        out->passes[i] = check_pass(c, &out->chain, standard_batch(c, i, 0));
    }
}

static void check_untouched(Checker* c, const CheckChain* chain, const float* before, bool gradients,
                            const char* function) {
    const float* now = values_of(c, chain, gradients);
    if (memcmp(before, now, (size_t)chain->num_values * sizeof *now) == 0) { return; }
    fail(c, "%s changed %s ---> %s", function, gradients ? "gradients" : "parameters",
         gradients ? "a forward runs more often than its backward (recomputation, validation)"
                   : "parameters are the optimizer's to change, between steps");
}

static void check_numbers(Checker* c, const float* values, int64_t num_values, const char* what,
                          const char* remedy) {
    for (int64_t i = 0; i < num_values; i++) {
        if (isfinite(values[i])) { continue; }
        fail(c, "%s: value %lld of %lld is not a number ---> %s", what, (long long)i, (long long)num_values,
             remedy);
    }
}

// Buffers came filled with NaN; guards are checked after every call.
static void law_bytes(Checker* c) {
    for (int is_large = 0; is_large < 2; is_large++) {
        Setting s;
        make_setting(c, &s, is_large);
        zero_gradients(c, &s.chain);
        const float *params = values_of(c, &s.chain, false), *gradients = values_of(c, &s.chain, true);
        for (int32_t i = 0; i < CHECK_STANDARD; i++) {
            pass_run(c, &s.passes[i], CALL_FORWARD, 0, false);
            pass_run(c, &s.passes[i], CALL_FORWARD, DYNAPIPE_FORWARD_HEAD, false);
            pass_job(c, &s.passes[i], CALL_FORWARD);
        }
        check_untouched(c, &s.chain, gradients, true, "forward");
        for (int32_t i = 0; i < CHECK_STANDARD; i++) {
            pass_job(c, &s.passes[i], CALL_BACKWARD_INPUTS);
            pass_job(c, &s.passes[i], CALL_BACKWARD_WEIGHTS);
        }
        check_untouched(c, &s.chain, params, false, "forward, backward_inputs or backward_weights");
        for (int32_t i = 0; i < CHECK_STANDARD; i++) {
            check_numbers(c, losses_of(&s.passes[i]), s.passes[i].of->batch.num_rows, "losses",
                          "forward writes all of losses and out (adds to neither), and reads no acts or "
                          "scratch that it has not written");
        }
        gradients = values_of(c, &s.chain, true);
        for (int32_t r = 0; r < s.chain.num_ranges; r++) {
            char what[64];
            const CheckRange* range = s.chain.ranges[r];
            snprintf(what, sizeof what, "gradients of blocks [%d, %d)", BLOCKS(range));
            check_numbers(
                c, gradients + range->begin, range->params.num_params, what,
                "backward_inputs writes all of din (adds nothing to it) and reads acts as forward "
                "left them; backward_weights reads acts as backward_inputs left them, and dout: not "
                "scratch, and not `in`, whose memory has another use by then");
        }
    }
}

// `out` of all ranges but the last, as bytes here.
static unsigned char** copy_outputs(Checker* c, const CheckPass* pass) {
    unsigned char** outputs = CHECK_NEW(c, unsigned char*, pass->chain->num_ranges);
    for (int32_t r = 0; r + 1 < pass->chain->num_ranges; r++) {
        outputs[r] = check_bytes_of(c, pass->at[r].out);
    }
    return outputs;
}

static void same_outputs(Checker* c, const CheckPass* pass, unsigned char** expected, const char* what,
                         const char* remedy) {
    unsigned char** found = copy_outputs(c, pass);
    for (int32_t r = 0; r + 1 < pass->chain->num_ranges; r++) {
        int64_t first = 0, num_bytes = pass->at[r].out->num_bytes;
        while (first < num_bytes && expected[r][first] == found[r][first]) { first++; }
        if (first == num_bytes) { continue; }
        fail(c, "out of blocks [%d, %d), %s (%s), differs from byte %lld of %lld on ---> %s",
             BLOCKS(pass->chain->ranges[r]), what, pass->of->what, (long long)first, (long long)num_bytes,
             remedy);
    }
}

static void check_forward_again(Checker* c, CheckPass* pass) {
    static const char* const remedy =
        "same inputs, same bits: does forward read acts or scratch before it has written there, state that "
        "it "
        "left in the model, or a counter of random numbers (batch->token_keys is for dropout)?";
    const float* expected = pass_gradients(c, pass);
    unsigned char** outputs = copy_outputs(c, pass);
    const float* losses = copy_losses(c, pass);
    pass_job(c, pass, CALL_FORWARD);
    same_outputs(c, pass, outputs, "of the same forward again", remedy);
    pass_run(c, pass, CALL_FORWARD, DYNAPIPE_FORWARD_HEAD, false);
    same_losses(c, pass, losses, "a forward with HEAD alone", "validation calls it so", c->tolerance);
    pass_run(c, pass, CALL_FORWARD, 0, false);
    same_outputs(c, pass, outputs, "with flags 0", "flags choose what is kept in acts, not what is computed");
    zero_gradients(c, pass->chain);
    pass_run(c, pass, CALL_FORWARD, CHECK_KEEP, true);
    same_losses(c, pass, losses, "a forward recomputed (out NULL)", remedy, 0);
    pass_job(c, pass, CALL_BACKWARD_INPUTS);
    pass_job(c, pass, CALL_BACKWARD_WEIGHTS);
    same_gradients(c, pass->chain, expected, NULL, "after a recomputed forward",
                   "with KEEP, acts must hold all that backward reads, also where out is NULL");
}

static void law_forward(Checker* c) {
    for (int is_large = 0; is_large < 2; is_large++) {
        Setting s;
        make_setting(c, &s, is_large);
        for (int32_t i = 0; i < CHECK_STANDARD; i++) {
            check_forward_again(c, &s.passes[i]);
            CheckBatch evaluated = *s.passes[i].of;
            evaluated.batch.token_keys = evaluated.batch.dec_token_keys = NULL;  // as in validation
            CheckPass pass = check_pass(c, &s.chain, &evaluated);
            pass_run(c, &pass, CALL_FORWARD, DYNAPIPE_FORWARD_HEAD, false);
        }
    }
}

// F1 B1 W1 F2 B2 W2 against F1 F2 B1 B2 W2 W1, each in its own acts, which lie elsewhere before B1 and W2.
static void law_divided(Checker* c) {
    Setting s;
    make_setting(c, &s, false);
    CheckPass *one = &s.passes[1], *other = &s.passes[2];
    zero_gradients(c, &s.chain);
    pass_step(c, one);
    pass_step(c, other);
    const float* joint = values_of(c, &s.chain, true);
    zero_gradients(c, &s.chain);
    pass_job(c, one, CALL_FORWARD);
    pass_job(c, other, CALL_FORWARD);
    pass_move_acts(c, one);
    pass_job(c, one, CALL_BACKWARD_INPUTS);
    pass_job(c, other, CALL_BACKWARD_INPUTS);
    pass_move_acts(c, other);
    pass_job(c, other, CALL_BACKWARD_WEIGHTS);
    pass_job(c, one, CALL_BACKWARD_WEIGHTS);
    same_gradients(c, &s.chain, joint, NULL, "two microbatches under way at once, weights' gradients last",
                   "what backward needs lies in that microbatch's acts: not in scratch (another job writes "
                   "there), not in the model, not in `in` (gone after backward_inputs); acts may move: no "
                   "pointer into them is kept");
}

// The jobs of two microbatches one after the other, in the same scratch, as a stage runs them, with one wait
// at the end. (The whole model: copies between ranges would wait.)
static void law_queued(Checker* c) {
    static const char* const remedy =
        "a job may still be queued when the next one is called: what kernels read (copies of tokens, rows, "
        "targets and so on) is that microbatch's own until finish(), or is copied in the queue's order";
    CheckChain whole = check_chain(c, NULL, 0);
    CheckPass passes[2];
    float* losses[2];
    zero_gradients(c, &whole);
    for (int i = 0; i < 2; i++) {
        passes[i] = check_pass(c, &whole, standard_batch(c, i + 1, 0));
        pass_step(c, &passes[i]);
        losses[i] = copy_losses(c, &passes[i]);
        check_spoil(c, passes[i].losses);
    }
    const float* waited = values_of(c, &whole, true);
    zero_gradients(c, &whole);
    bool is_larger = passes[0].at->scratch->num_bytes > passes[1].at->scratch->num_bytes;
    passes[is_larger].at->scratch = passes[!is_larger].at->scratch;
    c->is_fast = c->is_queued = true;
    for (int i = 0; i < 2; i++) { pass_job(c, &passes[i], CALL_FORWARD); }
    for (int i = 0; i < 2; i++) { pass_job(c, &passes[i], CALL_BACKWARD_INPUTS); }
    for (int i = 1; i >= 0; i--) { pass_job(c, &passes[i], CALL_BACKWARD_WEIGHTS); }
    c->is_fast = c->is_queued = false;
    check_code(c, &passes[0], whole.ranges[0], CALL_FINISH, 0);
    for (int i = 0; i < 2; i++) {
        same_losses(c, &passes[i], losses[i], "jobs that are waited for once", remedy, c->tolerance);
    }
    same_gradients(c, &whole, waited, NULL, "jobs that are waited for once", remedy);
}

static void law_sums(Checker* c) {
    Setting s;
    make_setting(c, &s, false);
    for (int32_t r = 0; r < s.chain.num_ranges; r++) {  // NaN gradients, then zero_gradients()
        const DynapipeParams_v1* params = &s.chain.ranges[r]->params;
        check_fill(c, (unsigned char*)params->grads, SPOILED,
                   params->num_params * value_bytes(params->grad_type));
    }
    zero_gradients(c, &s.chain);
    const float* zeros = values_of(c, &s.chain, true);
    for (int64_t i = 0; i < s.chain.num_values; i++) {
        if (zeros[i] == 0) { continue; }
        fail(
            c,
            "zero_gradients left %.3g in value %lld of %lld (all ranges) ---> it zeroes all of params->grads",
            (double)zeros[i], (long long)i, (long long)s.chain.num_values);
    }
    float* one = pass_gradients(c, &s.passes[1]);
    const float* losses = copy_losses(c, &s.passes[1]);
    CheckBatch twice = *s.passes[1].of;
    twice.batch.loss_scale *= 2;
    CheckPass doubled = check_pass(c, &s.chain, &twice);
    float* scaled = pass_gradients(c, &doubled);
    same_losses(c, &doubled, losses, "a microbatch with twice the loss_scale",
                "losses are cross entropies in nats; loss_scale belongs to gradients alone", 0);
    for (int64_t i = 0; i < s.chain.num_values; i++) { scaled[i] /= 2; }
    same_gradients(c, &s.chain, one, scaled, "half of those with twice the loss_scale",
                   "every row's gradient starts as loss_scale * (softmax - target), without a mean over rows "
                   "or tokens");
    const float* other = pass_gradients(c, &s.passes[2]);
    pass_step(c, &s.passes[1]);
    for (int64_t i = 0; i < s.chain.num_values; i++) { one[i] += other[i]; }
    same_gradients(c, &s.chain, one, NULL, "two microbatches one after the other",
                   "gradients are added (+=): zero_gradients() alone zeroes them, once a step");
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

// Pairs of the chain in order, as two arrays; the first copy of a tied group gets the sum of all, the others
// go. Returns how many are left.
static int64_t sort_pairs(Checker* c, const CheckChain* chain, float* gradients, float** params) {
    Pair* pairs = CHECK_NEW(c, Pair, chain->num_values);
    int64_t num_left = 0;
    *params = values_of(c, chain, false);
    for (int64_t v = 0; v < chain->num_values; v++) { pairs[v] = (Pair){(*params)[v], gradients[v]}; }
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        for (int32_t i = 0; i < chain->ranges[r]->params.num_tied; i++) {
            const DynapipeTied* tied = &chain->ranges[r]->params.tied[i];
            int32_t first = 0;
            const DynapipeTied* original = first_copy(chain, tied->group, &first);
            for (int64_t v = 0; v < tied->count && first != r; v++) {
                Pair* copy = &pairs[chain->ranges[r]->begin + tied->begin + v];
                pairs[chain->ranges[first]->begin + original->begin + v].gradient += copy->gradient;
                copy->param = INFINITY;
            }
        }
    }
    for (int64_t v = 0; v < chain->num_values; v++) {
        if (pairs[v].param != INFINITY) { pairs[num_left++] = pairs[v]; }
    }
    qsort(pairs, (size_t)num_left, sizeof *pairs, pair_order);
    for (int64_t v = 0; v < num_left; v++) {
        (*params)[v] = pairs[v].param;
        gradients[v] = pairs[v].gradient;
    }
    return num_left;
}

static void law_cuts(Checker* c) {
    CheckChain whole = check_chain(c, NULL, 0);
    for (int32_t b = 0; b < CHECK_STANDARD; b++) {
        CheckBatch* batch = standard_batch(c, b, 0);
        Results expected = check_run(c, &whole, batch);
        float *params, *found_params;
        int64_t num_values = sort_pairs(c, &whole, expected.gradients, &params);
        for (int32_t way = 0; way < c->num_cuts + STRIDES; way++) {
            char what[224];
            CheckChain chain = cut_chain(c, way);
            if (chain.num_ranges == 1) { continue; }
            snprintf(what, sizeof what, "the model cut before block %d%s (%s)",
                     (int)chain.ranges[1]->blocks.begin, chain.num_ranges > 2 ? " and elsewhere" : "",
                     batch->what);
            Results found = check_run(c, &chain, batch);
            check_same(c, expected.losses, found.losses, batch->batch.num_rows, c->tolerance,
                       "what a range computes from `in` is what the whole computes there; blocks count from "
                       "blocks.begin",
                       "%s, losses", what);
            int64_t num_left = sort_pairs(c, &chain, found.gradients, &found_params);
            check_same(c, params, found_params, num_left < num_values ? num_left : num_values, 0,
                       "make() gives a block the same values in every range that has it", "%s, parameters",
                       what);
            check_same(
                c, expected.gradients, found.gradients, num_values, c->tolerance,
                "backward_inputs of the later range leaves in din the gradient of all it got as `in` "
                "(written, not added); each copy of a tied tensor has the gradient of its own use only",
                "%s, gradients, sorted by parameter, tied copies added", what);
        }
    }
}

// `expected`, in another layout.
static void check_layout(Checker* c, const Results* expected, const CheckChain* chain, CheckBatch* batch,
                         const char* than, const char* remedy) {
    Results found = check_run(c, chain, batch);
    check_same(c, expected->losses, found.losses, batch->batch.num_rows, c->tolerance, remedy,
               "%s, against %s, losses", batch->what, than);
    check_same(c, expected->gradients, found.gradients, chain->num_values, c->tolerance, remedy,
               "%s, against %s, gradients", batch->what, than);
}

// Against each sample alone: losses in their order, gradients added.
static void law_grouping(Checker* c) {
    CheckChain whole = check_chain(c, NULL, 0);
    for (int32_t b = 1; b < CHECK_STANDARD; b++) {
        MadeWindow samples[MOST_SAMPLES];
        int32_t num = standard_samples(c, samples, b), row = 0;
        CheckBatch* batch = check_batch(c, samples, num, 0);
        Results sum = {CHECK_NEW(c, float, batch->batch.num_rows), CHECK_NEW(c, float, whole.num_values)};
        for (int32_t i = 0; i < num; i++) {
            CheckBatch* alone = check_batch(c, &samples[i], 1, 0);
            if (alone->batch.num_rows == 0) { continue; }  // nothing to learn: no gradients
            Results one = check_run(c, &whole, alone);
            for (int32_t r = 0; r < alone->batch.num_rows; r++) { sum.losses[row++] = one.losses[r]; }
            for (int64_t v = 0; v < whole.num_values; v++) { sum.gradients[v] += one.gradients[v]; }
        }
        check_layout(
            c, &sum, &whole, batch, "the same samples one by one",
            "attention stays inside a window (cu_seqlens), positions restart in it, losses stand in "
            "the order of batch->rows, no mean is taken over a microbatch, dropout goes by token_keys");
    }
}

static void law_padding(Checker* c) {
    CheckChain whole = check_chain(c, NULL, 0);
    for (int32_t b = 0; b < CHECK_STANDARD; b++) {
        CheckBatch* plain = standard_batch(c, b, 0);
        Results expected = check_run(c, &whole, plain);
        check_layout(c, &expected, &whole, standard_batch(c, b, 3), plain->what,
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
static void check_piece_bytes(Checker* c, const CheckRange* range, const CheckBatch* piece,
                              const CheckBatch* whole, int32_t end, const PassRange* first) {
    const DynapipeModel_v1* api = c->blocks->api;
    const DynapipeBatch* b = &piece->batch;
    DynapipeBatch uncut = *b, joined;  // a window of its own; with all earlier tokens
    must(c, made_piece(&joined, &whole->batch, 0, end, &c->arena));
    DynapipeBatch* others[] = {&uncut, &joined};
    for (int i = 0; i < 2; i++) {
        others[i]->kept_tokens = others[i]->kept_begin = others[i]->kept_enc_tokens = 0;
        others[i]->num_prefix = 0;
        others[i]->num_rows = b->num_rows;
    }
    for (int is_gradient = 0; is_gradient < 2; is_gradient++) {
        int64_t mine = api->kept_bytes(range->model, b, is_gradient),
                firsts = (is_gradient ? first->dkept : first->kept)->num_bytes;
        if (mine == firsts) { continue; }
        fail(c,
             "kept_bytes(%d) of blocks [%d, %d) is %lld for the first piece, %lld for %s ---> read "
             "kept_tokens and kept_enc_tokens alone",
             is_gradient, BLOCKS(range), (long long)firsts, (long long)mine, piece->what);
    }
    for (int flags = 0; flags <= CHECK_KEEP; flags += CHECK_KEEP) {
        int64_t mine = api->acts_bytes(range->model, b, flags),
                most = api->acts_bytes(range->model, &uncut, flags);
        if (mine <= most) { continue; }
        fail(c,
             "acts_bytes() of blocks [%d, %d) is %lld for %s, %lld for a sample of that length ---> what "
             "pieces share belongs in kept_bytes()",
             BLOCKS(range), (long long)mine, piece->what, (long long)most);
    }
    int64_t mine = api->scratch_bytes(range->model, b), most = api->scratch_bytes(range->model, &joined);
    if (mine <= most) { return; }
    fail(c,
         "scratch_bytes() of blocks [%d, %d) is %lld for %s, %lld with the tokens before it ---> a piece "
         "needs no more than these tokens together",
         BLOCKS(range), (long long)mine, piece->what, (long long)most);
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
            const CheckRange* range = chain->ranges[r];
            PassRange *at = &out[p].at[r], *first = &out[0].at[r];
            if (p == 0) {
                at->kept = check_buffer(c, api->kept_bytes(range->model, &out[p].of->batch, 0), false);
                at->dkept = check_buffer(c, api->kept_bytes(range->model, &out[p].of->batch, 1), false);
            }
            at->kept = first->kept;
            at->dkept = first->dkept;
            check_piece_bytes(c, range, out[p].of, whole, end, first);
        }
    }
}

static void check_pieces(Checker* c, const CheckChain* chain, int num, bool is_recomputed, bool is_divided,
                         Rng* rng) {
    static const char* const remedy = "a piece's tokens see the earlier pieces' through `kept`; a backward "
                                      "adds the gradients of their keys and "
                                      "values to dkept (the last piece's writes them) and takes those of its "
                                      "own; positions begin at kept_begin";
    MadeWindow samples[3] = {
        {11, {CUT_TOKENS, 0}, 12, {0, 0}}, {12, {5, 0}, 3, {0, 0}}, {13, {2, 0}, 1, {0, 0}}};
    CheckPass passes[MOST_CUT];
    int32_t row = 0;
    for (int i = 0; i < 3 && c->has_decoder; i++) {
        samples[i].tokens[1] = samples[i].tokens[0];
        samples[i].tokens[0] = 9 - 3 * i;
    }
    int32_t num_samples = fit_samples(c, samples, 3, CUT_TOKENS);
    if (samples[0].tokens[c->has_decoder] < num) { return; }
    CheckBatch* whole = check_batch(c, samples, num_samples, 0);
    Results expected = check_run(c, chain, whole);
    float* losses = CHECK_NEW(c, float, whole->batch.num_rows);
    make_pieces(c, passes, num, chain, whole, rng);
    zero_gradients(c, chain);
    for (int p = 0; p < num; p++) {
        pass_run(c, &passes[p], CALL_FORWARD, is_recomputed ? 0 : CHECK_KEEP, false);
    }
    for (int p = num - 1; p >= 0; p--) {
        if (is_recomputed) { pass_run(c, &passes[p], CALL_FORWARD, CHECK_KEEP, true); }
        pass_job(c, &passes[p], CALL_BACKWARD_INPUTS);
        if (!is_divided) { pass_job(c, &passes[p], CALL_BACKWARD_WEIGHTS); }
    }
    for (int p = 0; p < num; p++) {
        if (is_divided) { pass_job(c, &passes[p], CALL_BACKWARD_WEIGHTS); }
        memcpy(losses + row, losses_of(&passes[p]), (size_t)passes[p].losses->num_bytes);
        row += passes[p].of->batch.num_rows;
    }
    check_same(c, expected.losses, losses, whole->batch.num_rows, c->tolerance, remedy,
               "%d pieces of %s, losses", num, whole->what);
    same_gradients(c, chain, expected.gradients, NULL, whole->what, remedy);
}

static void law_pieces(Checker* c) {
    Rng rng = rng_seed(5);
    if (c->blocks->api->kept_bytes == NULL || c->blocks->shapes.padded) { return; }
    for (int32_t way = c->num_cuts + STRIDES; way >= 0; way--) {
        CheckChain chain = cut_chain(c, way);
        check_pieces(c, &chain, 2 + way % 3, way % 2, way / 2 % 2, &rng);
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

typedef struct {
    CheckRange* range;
    DynapipeBatch batch;  // by rows: of its rows
    void *acts, *scratch, *factor;
    int64_t at_bytes;  // by rows: of its hidden states among all
} Share;

typedef struct {
    float *losses, *din, *matrix;
    int64_t num_din, num_matrix;
} ShareResults;

static void* fresh_bytes(Checker* c, int64_t num_bytes) {
    return check_buffer(c, num_bytes, false)->data;
}

static void share_call(Checker* c, const char* call, const ShareWay* way, int code) {
    if (code != 0) {
        fail(c, "%s of a head shared %s returned error %d: %s", call, way->words, code, check_why(c));
    }
}

static Share make_share(Checker* c, const ShareWay* way, const CheckBatch* of, int32_t i) {
    const DynapipeModel_v1* api = c->blocks->api;
    int32_t head = c->num_blocks - 1, begin = i == 0 ? 0 : of->batch.num_rows / 2;
    int32_t vocab = c->blocks->padded_vocab > 0 ? (int32_t)c->blocks->padded_vocab : c->blocks->vocab;
    int32_t middle = c->blocks->vocab / 2 / ID_MULTIPLE * ID_MULTIPLE;  // ids on both sides, if there are 32
    bool is_last = i == way->num - 1, by_rows = way->head == DYNAPIPE_HEAD_BY_ROWS;
    DynapipeRange blocks = {.begin = head, .end = head + 1, .head = way->head};
    Share share = {NULL, of->batch, NULL, NULL, NULL, 0};
    if (by_rows) {
        share.batch.num_rows = (is_last ? of->batch.num_rows : of->batch.num_rows / 2) - begin;
        share.batch.rows += begin;
        share.batch.targets += begin;
        share.batch.row_tasks += begin;
    } else {
        blocks.vocab_begin = i == 0 ? 0 : middle;
        blocks.vocab_end = is_last ? vocab : middle;
    }
    share.range = check_range(c, blocks, true);
    void* model = share.range->model;
    api->zero_gradients(model);
    share.acts = fresh_bytes(c, api->acts_bytes(model, &share.batch, CHECK_KEEP));
    share.scratch = fresh_bytes(c, api->scratch_bytes(model, &share.batch));
    share.factor = by_rows ? NULL : fresh_bytes(c, api->factor_bytes(model, &share.batch));
    return share;
}

// By rows the matrix' gradients add, by vocabulary they follow each other.
static void read_matrix(Checker* c, ShareResults* out, const Share* shares, const ShareWay* way) {
    bool adds = way->head == DYNAPIPE_HEAD_BY_ROWS;
    for (int32_t i = 0; i < way->num; i++) {
        int64_t num = shares[i].range->params.num_params;
        out->num_matrix = adds ? num : out->num_matrix + num;
    }
    out->matrix = CHECK_NEW(c, float, out->num_matrix);
    int64_t at = 0;
    for (int32_t i = 0; i < way->num; i++) {
        const DynapipeParams_v1* params = &shares[i].range->params;
        float* one = CHECK_NEW(c, float, params->num_params);
        check_read(c, one, params->grads, params->grad_type, params->num_params);
        for (int64_t k = 0; k < params->num_params; k++) { out->matrix[at + k] += one[k]; }
        at += adds ? 0 : params->num_params;
    }
}

static ShareResults run_shares(Checker* c, const ShareWay* way, int32_t cut, const CheckBatch* of,
                               const CheckBuffer* in) {
    const DynapipeModel_v1* api = c->blocks->api;
    const DynapipeBatch* batch = &of->batch;
    bool by_rows = way->head == DYNAPIPE_HEAD_BY_ROWS;
    DynapipeRange blocks = {.begin = cut, .end = c->num_blocks - 1, .head = DYNAPIPE_HEAD_FEEDS};
    CheckRange* range = check_range(c, blocks, true);
    void *feeds = range->model, *parts[MOST_SHARES] = {NULL}, *factors[MOST_SHARES] = {NULL};
    Share shares[MOST_SHARES];
    ShareResults out = {CHECK_NEW(c, float, batch->num_rows), NULL, NULL, 0, 0};
    int64_t hidden_bytes = api->boundary_bytes(feeds, batch, 1), at_bytes = 0;
    unsigned char* hidden = (unsigned char*)fresh_bytes(c, hidden_bytes);
    unsigned char* dout = (unsigned char*)fresh_bytes(c, hidden_bytes);
    float* losses = (float*)(void*)check_buffer(c, (int64_t)sizeof(float) * batch->num_rows, true)->data;
    CheckBuffer* din = check_buffer(c, api->boundary_bytes(feeds, batch, 0), false);
    void* acts = fresh_bytes(c, api->acts_bytes(feeds, batch, CHECK_KEEP));
    void* scratch = fresh_bytes(c, api->scratch_bytes(feeds, batch));
    api->zero_gradients(feeds);
    share_call(c, "forward()", way,
               api->forward(feeds, batch, in->data, hidden, acts, scratch, NULL, CHECK_KEEP));
    for (int32_t i = 0; i < way->num; i++) {
        shares[i] = make_share(c, way, of, i);
        Share* s = &shares[i];
        void* model = s->range->model;
        factors[i] = s->factor;
        s->at_bytes = at_bytes;
        if (by_rows) { at_bytes += api->boundary_bytes(model, &s->batch, 0); }
        parts[i] = by_rows ? dout + s->at_bytes
                           : (unsigned char*)fresh_bytes(c, api->part_bytes(model, batch, CHECK_KEEP));
        if (s->batch.num_rows == 0) { continue; }
        float* own_losses = by_rows ? losses + (s->batch.targets - batch->targets) : NULL;
        share_call(c, "forward()", way,
                   api->forward(model, &s->batch, hidden + s->at_bytes, NULL, s->acts, s->scratch, own_losses,
                                CHECK_KEEP));
        share_call(c, "backward_inputs()", way,
                   api->backward_inputs(model, &s->batch, hidden + s->at_bytes, s->acts, NULL, parts[i],
                                        s->scratch));
    }
    if (!by_rows) {
        share_call(c, "combine()", way,
                   api->combine(feeds, batch, way->num, (const void* const*)parts, dout, factors, losses));
    }
    share_call(c, "backward_inputs()", way,
               api->backward_inputs(feeds, batch, in->data, acts, dout, din->data, scratch));
    for (int32_t i = 0; i < way->num && api->backward_weights != NULL; i++) {
        Share* s = &shares[i];
        if (s->batch.num_rows == 0) { continue; }
        share_call(c, "backward_weights()", way,
                   api->backward_weights(s->range->model, &s->batch, s->acts, factors[i], s->scratch));
    }
    share_call(c, "finish()", way, api->finish != NULL ? api->finish(feeds) : 0);
    out.num_din = din->num_bytes / value_bytes(range->params.param_type);
    out.din = CHECK_NEW(c, float, out.num_din);
    check_read(c, out.din, din->data, range->params.param_type, out.num_din);
    memcpy(out.losses, losses, (size_t)batch->num_rows * sizeof *losses);
    read_matrix(c, &out, shares, way);
    return out;
}

static void check_sharings(Checker* c, CheckBatch* batch, int32_t cut, bool by_vocabulary) {
    static const char* const remedy = "DynapipeModel_v1: shares of the head, and combine()";
    static const ShareWay ways[] = {{"by rows, in one share", DYNAPIPE_HEAD_BY_ROWS, 1},
                                    {"by rows", DYNAPIPE_HEAD_BY_ROWS, 2},
                                    {"by vocabulary", DYNAPIPE_HEAD_BY_VOCABULARY, 2},
                                    {"by vocabulary, in one share", DYNAPIPE_HEAD_BY_VOCABULARY, 1}};
    CheckChain chain = check_chain(c, &cut, 1);
    CheckPass pass = check_pass(c, &chain, batch);
    ShareResults first = {NULL, NULL, NULL, 0, 0};
    zero_gradients(c, &chain);
    pass_job(c, &pass, CALL_FORWARD);
    CheckBuffer* in = check_buffer(c, pass.at[1].in->num_bytes, false);  // backward spoils pass.at[1].in
    check_copy(c, in->data, pass.at[1].in->data, in->num_bytes);
    pass_job(c, &pass, CALL_BACKWARD_INPUTS);
    pass_job(c, &pass, CALL_BACKWARD_WEIGHTS);
    for (int i = 0; i < (by_vocabulary ? 4 : 2); i++) {
        const char* words = ways[i].words;
        ShareResults found = run_shares(c, &ways[i], cut, batch, in);
        float* din = CHECK_NEW(c, float, found.num_din);
        check_read(c, din, pass.at[0].dout->data, chain.ranges[1]->params.param_type, found.num_din);
        for (int64_t k = 0; k < found.num_din; k++) {  // padding, which neither wrote
            if (isnan(din[k]) && isnan(found.din[k])) { din[k] = found.din[k] = 0; }
        }
        if (i == 0) { first = found; }
        check_same(c, losses_of(&pass), found.losses, batch->batch.num_rows, c->tolerance, remedy,
                   "the head shared %s: losses (%s)", words, batch->what);
        check_same(c, din, found.din, found.num_din, c->tolerance, remedy,
                   "the head shared %s: gradient before block %d (%s)", words, (int)cut, batch->what);
        if (found.num_matrix != first.num_matrix) {
            fail(
                c,
                "the head shared %s: %lld parameters, %lld in one share by rows ---> a share has rows of the "
                "head's matrix and nothing else; padded_vocab is all of them",
                words, (long long)found.num_matrix, (long long)first.num_matrix);
        }
        check_same(c, first.matrix, found.matrix, found.num_matrix, c->tolerance, remedy,
                   "the head shared %s: gradient of the matrix (%s)", words, batch->what);
    }
}

static void law_heads(Checker* c) {
    bool by_vocabulary = executor_can_share(c->blocks->api, HEAD_BY_VOCABULARY);
    bool can = (by_vocabulary || c->blocks->shapes.head_by_rows) && !c->blocks->shapes.head_has_layer;
    const int32_t num_cuts = c->num_cuts - 1;  // without the head alone
    for (int32_t i = 0; (i < CHECK_STANDARD || i < num_cuts) && can && num_cuts > 0; i++) {
        check_sharings(c, standard_batch(c, i % CHECK_STANDARD, 0), c->cuts[num_cuts - 1 - i % num_cuts],
                       by_vocabulary);
    }
    MadeWindow unsupervised = {14, {3, c->has_decoder ? 3 : 0}, 0, {0, 0}};  // as a piece may be
    if (can && num_cuts > 0 && c->blocks->api->kept_bytes != NULL) {
        check_sharings(c, check_batch(c, &unsupervised, 1, 0), c->cuts[num_cuts - 1], by_vocabulary);
    }
}

// --- law of gradients ------------------------------------------------------------------------------------
// For a direction d in the space of parameters,
//
//     (L(p + h d) - L(p - h d)) / 2h = sum of gradient * d     L: loss_scale * sum of losses of a microbatch
//
// Directions are confined to a piece of the flat array, so that small tensors count as much as large ones:
// one with the signs of the gradients (shows wrong sizes), one with random signs (shows what is missing), and
// the steepest parameter alone. Parameters are moved at random first: what starts as zeros would hide what
// comes after it.
//
// A step that is too long for the curvature or crosses kinks (ReLU) errs by about its bend, the difference
// between the slopes of its two sides; one that is too short errs by the rounding of the losses. The
// gradients are wrong where they are off by more than both, at most places of several.

enum { MOST_PIECES = 64, NUM_STEPS = 7, NUM_PLACES = 5 };
#define SLOPE_TOLERANCE 0.01

typedef struct {
    Checker* c;
    CheckRange* range;  // the whole model
    CheckPass pass;
    float *start, *params, *gradients, *moved;  // (num_params), as kept by the model; moved: of a piece
    double loss, noise;                         // at these parameters; rounding errors of a difference
    Rng rng;
} Slopes;

static double unit(Rng* rng) {  // [-1, 1)
    return (double)(int32_t)(uint32_t)rng_u64(rng) * 0x1p-31;
}

static double evaluate(Slopes* s) {
    const DynapipeBatch* batch = &s->pass.of->batch;
    double loss = 0;
    pass_job(s->c, &s->pass, CALL_FORWARD);
    for (int32_t r = 0; r < batch->num_rows; r++) { loss += (double)losses_of(&s->pass)[r]; }
    return loss * (double)batch->loss_scale;
}

static void write_params(Slopes* s, const float* values, int64_t begin, int64_t count) {
    check_copy(s->c, (float*)s->range->params.params + begin, values, count * (int64_t)sizeof *values);
}

static double typical_value(const float* params, int64_t count) {
    double squares = 0;
    for (int64_t i = 0; i < count; i++) { squares += (double)params[i] * params[i]; }
    return fmax(sqrt(squares / (double)count), 0.02);  // GPT-2's initial weights
}

typedef struct {
    double slope, measured;  // by the gradients, by the losses
    double larger;           // of both, and of the slope with random signs: one may be nearly 0 by chance
    double bend;             // half the difference between both sides
    double error;            // what `measured` may be off by
} Slope;

// Along signs[0, count) * step.
static Slope measure_slope(Slopes* s, const signed char* signs, int64_t begin, int64_t count, double step) {
    Slope out = {0};
    double squares = 0, bend = 0;
    for (int side = -1; side <= 1; side += 2) {
        for (int64_t i = 0; i < count; i++) {
            s->moved[i] = (float)(s->params[begin + i] + side * step * signs[i]);
        }
        write_params(s, s->moved, begin, count);
        for (int64_t i = 0; i < count; i++) {
            double way = ((double)s->moved[i] - s->params[begin + i]) / 2, gradient = s->gradients[begin + i];
            out.slope += side * way * gradient;
            squares += 2 * way * way * gradient * gradient;
        }
        double change = (evaluate(s) - s->loss) / 2;
        out.measured += side * change;
        bend += change;
    }
    out.larger = sqrt(squares);
    out.bend = fabs(bend);
    write_params(s, s->params + begin, begin, count);
    return out;
}

typedef enum { SLOPE_AGREES, SLOPE_UNCLEAR, SLOPE_WRONG } SlopeVerdict;

// Each step is a quarter of the one before it. The longest but one changes parameters by a fiftieth at most,
// and the loss by no more than that. *sharpest: the step that errs least, where none agrees.
static SlopeVerdict check_direction(Slopes* s, Slope* sharpest, const signed char* signs, int64_t begin,
                                    int64_t count) {
    const double MOST = 0.02;
    double steepness = 0, step = MOST * typical_value(s->params + begin, count), least = INFINITY;
    Slope slopes[NUM_STEPS];
    SlopeVerdict verdict = SLOPE_AGREES;  // effects below the rounding of the losses are skipped
    for (int64_t i = begin; i < begin + count; i++) { steepness += fabs((double)s->gradients[i]); }
    if (steepness * step > MOST * s->loss) { step = MOST * s->loss / steepness; }
    for (int i = 0; i < NUM_STEPS; i++) {
        int at = i > 1 ? i : 1 - i;  // the longest one seldom helps
        Slope* slope = &slopes[at];
        *slope = measure_slope(s, signs, begin, count, step * ldexp(4, -2 * at));
        slope->larger = fmax(slope->larger, fmax(fabs(slope->slope), fabs(slope->measured)));
        double tolerated = SLOPE_TOLERANCE * slope->larger;
        if (s->noise <= tolerated && fabs(slope->slope - slope->measured) <= tolerated + s->noise) {
            return SLOPE_AGREES;
        }
    }
    for (int i = 1; i < NUM_STEPS; i++) {
        Slope* slope = &slopes[i];
        slope->error = s->noise + 2 * fmax(slope->bend, fabs(slope->measured - slopes[i - 1].measured / 4));
        if (slope->larger <= s->noise || slope->error / slope->larger >= least) { continue; }
        least = slope->error / slope->larger;
        *sharpest = *slope;
        bool is_off = fabs(slope->slope - slope->measured) > SLOPE_TOLERANCE * slope->larger + slope->error;
        verdict = is_off ? SLOPE_WRONG : SLOPE_UNCLEAR;
    }
    return verdict;
}

static SlopeVerdict check_piece(Slopes* s, Slope* wrong, int64_t begin, int64_t count) {
    signed char* signs = CHECK_NEW(s->c, signed char, count);
    SlopeVerdict worst = SLOPE_AGREES;
    int64_t steepest = begin;
    for (int64_t i = begin; i < begin + count; i++) {
        if (fabsf(s->gradients[i]) > fabsf(s->gradients[steepest])) { steepest = i; }
    }
    for (int way = 0; way < 3 && worst != SLOPE_WRONG; way++) {
        Slope slope = {0};
        for (int64_t i = 0; i < count; i++) {
            float gradient = s->gradients[begin + i];
            if (way == 1 || gradient == 0) { gradient = (float)unit(&s->rng); }
            signs[i] = gradient < 0 ? -1 : 1;
        }
        SlopeVerdict verdict = way < 2 ? check_direction(s, &slope, signs, begin, count)
                                       : check_direction(s, &slope, signs, steepest, 1);
        if (verdict == SLOPE_WRONG) { *wrong = slope; }
        if (verdict > worst) { worst = verdict; }
    }
    return worst;
}

// Random parameters near the model's own, as stored, and the gradients there.
static void move_params(Slopes* s) {
    const DynapipeBatch* batch = &s->pass.of->batch;
    int64_t num_params = s->range->params.num_params;
    for (int64_t begin = 0; begin < num_params; begin += 64) {
        int64_t count = num_params - begin < 64 ? num_params - begin : 64;
        double typical = typical_value(s->start + begin, count);
        for (int64_t i = begin; i < begin + count; i++) {
            s->params[i] = s->start[i] + (float)(0.3 * typical * unit(&s->rng));
        }
    }
    write_params(s, s->params, 0, num_params);
    s->gradients = pass_gradients(s->c, &s->pass);
    s->loss = evaluate(s);
    s->noise = 2 * s->c->epsilon * (fabs(s->loss) + batch->num_rows * (double)batch->loss_scale);
}

static void law_slopes(Checker* c) {
    CheckChain whole = check_chain(c, NULL, 0);
    Slopes s = {.c = c, .range = whole.ranges[0], .rng = rng_seed(7)};
    if (s.range->params.param_type != DYNAPIPE_FLOAT32) { return; }  // 8 or 11 bits see too little
    int num_wrong[MOST_PIECES] = {0};
    bool agrees[MOST_PIECES] = {false};
    Slope wrong = {0};
    s.pass = check_pass(c, &whole, standard_batch(c, 1, 0));
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
            if (num_wrong[k] <= NUM_PLACES / 2) { continue; }
            fail(
                c,
                "parameters [%lld, %lld) of %lld of the whole model (%s): moved a little, the loss changes "
                "by %.4g (to within %.1g), by the gradients it would by %.4g, and so at %d of %d places ---> "
                "zero, or far off: a term of backward is missing; off by a factor: loss_scale or a mean; the "
                "piece of the array tells which tensor",
                (long long)begin, (long long)end, (long long)whole.num_values, s.pass.of->what,
                wrong.measured, wrong.error, wrong.slope, num_wrong[k], place + 1);
        }
    }
}

// --- all laws --------------------------------------------------------------------------------------------

static const struct {
    const char* what;
    void (*law)(Checker* c);
} laws[] = {
    {"ranges can be made, their sizes add up", law_ranges},
    {"bytes follow from counts, and grow with them", law_counts},
    {"promised bytes suffice, and are read where written", law_bytes},
    {"gradients add, loss_scale scales them alone", law_sums},
    {"a forward again gives the same", law_forward},
    {"backward divided and delayed gives the joint one's gradients", law_divided},
    {"jobs queued and waited for once give the same", law_queued},
    {"every cut gives the whole's losses and gradients", law_cuts},
    {"grouping samples changes nothing", law_grouping},
    {"padding changes nothing", law_padding},
    {"pieces of a sample give the whole's losses and gradients", law_pieces},
    {"a shared head gives the whole's losses and gradients", law_heads},
    {"gradients are those of finite differences", law_slopes},
};
enum { NUM_LAWS = sizeof laws / sizeof laws[0] };

static Status check_blocks(const DynapipeBlocks_v1* blocks) {
    TRY(interface_check_blocks(blocks));
    ShapeRules rules = session_rules(&blocks->shapes);
    TRY(shape_rules_valid(&rules));
    if (blocks->num_layers < 2 || blocks->num_dec_layers < 0 || blocks->vocab < 2) {
        return FAIL(
            STATUS_BAD_OPTION,
            "%d layers, %d of a decoder, %d ids: too small a model to check ---> take one of at least 2 "
            "layers (2 to 4 will do) and 2 ids",
            (int)blocks->num_layers, (int)blocks->num_dec_layers, (int)blocks->vocab);
    }
    return STATUS_OK;
}

static Status run_law(Checker* c, void (*law)(Checker* c)) {
    c->status = STATUS_OK;
    if (setjmp(c->end_of_law) == 0) { law(c); }
    c->is_fast = c->is_queued = false;
    check_release(c);
    return c->status;
}

// A line for each law; the message of the first failure.
static Status run_laws(Checker* c, FILE* out) {
    char first_words[1024] = "";
    Status first = STATUS_OK;
    for (int i = 0; i < NUM_LAWS; i++) {
        Status status = run_law(c, laws[i].law);
        if (out != NULL) {
            fprintf(out, status == STATUS_OK ? "ok   %s%s%s\n" : "FAIL %s%s%s\n", laws[i].what,
                    status == STATUS_OK ? "" : ": ", status == STATUS_OK ? "" : status_message());
            fflush(out);
        }
        if (status != STATUS_OK && first == STATUS_OK) {
            first = status;
            snprintf(first_words, sizeof first_words, "%s", status_message());
        }
        bool is_the_models = status == STATUS_OK || status == STATUS_MISMATCH;
        if (!is_the_models || c->is_overwritten || (i == 0 && status != STATUS_OK)) { break; }
    }
    return first == STATUS_OK ? first : FAIL(first, "%s", first_words);
}

static Status check_model(Dynapipe* dp, const DynapipeBlocks_v1* blocks, FILE* out) {
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

int dynapipe_check_model(Dynapipe* dp, const DynapipeBlocks_v1* blocks, FILE* out) {
    return (int)check_model(dp, blocks, out);
}
