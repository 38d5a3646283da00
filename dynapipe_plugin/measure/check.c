/*
check.c -- dynapipe_check_model(): a model run on tiny microbatches in guarded memory, and the laws that its
results must keep.

A model is made in ranges (a chain), and a microbatch passes through them job by job, as the executor would
run it: every buffer has exactly the bytes that were asked for, between guards, and whatever a job may not
rely on holds NaN. A law that is broken ends with must(), which jumps out of it; what it made is on the
checker's lists and is released there.
*/
#include <math.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../util/arena.h"
#include "../../util/numbers.h"
#include "../../util/status.h"
#include "../dynapipe.h"
#include "../plan/plan.h"
#include "../plan/types.h"
#include "../run/collective.h"
#include "../run/device.h"
#include "../run/session.h"
#include "measure.h"
#include "slopes.h"

// num_bytes where values live (or in this process), between two guards.
typedef struct CheckBuffer {
    Device device;
    unsigned char *whole, *data;
    int64_t num_bytes;
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
    const CheckRange** ranges;
    int32_t num_ranges;
    int64_t num_values;  // of all parameters
} CheckChain;

struct Checker;
typedef struct {
    const char* what;
    void (*check)(struct Checker* c);
    // of law_order(): jobs of one or two microbatches, against each of these alone
    const char* jobs;
    bool is_exact;   // losses have the same bits
    bool is_queued;  // on the whole model, in the same scratch
    float scale;     // of loss_scale: a power of two
    const char* remedy;
} Law;

typedef struct Checker {
    const Law* law;  // at hand
    const DynapipeBlocks_v1* blocks;
    const DynapipeModel_v1* api;  // of blocks
    Device device;
    Arena arena;           // host memory of the law at hand
    CheckBuffer* buffers;  // of the law at hand
    CheckRange* ranges;
    unsigned char* temp;  // scratch of this file's functions
    int64_t temp_bytes;
    PlanChain layers;
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
    char about[320];  // what its message is about
} Checker;

#define CHECK_NEW(c, Type, count) \
    ((Type*)allocated(c, arena_alloc_array(&(c)->arena, (size_t)(count), sizeof(Type))))

// Two arguments of a message about a range: "blocks [%d, %d)".
#define BLOCKS(range) (int)(range)->blocks.begin, (int)(range)->blocks.end

static void must(Checker* c, Status status) {
    c->status = status;
    if (status != STATUS_OK) { longjmp(c->end_of_law, 1); }
}

// What messages are about, until the next call.
#define ABOUT(c, ...) snprintf((c)->about, sizeof(c)->about, __VA_ARGS__)

// "blocks [2, 3), 1 sequence of 7 tokens: <words> ---> <remedy>", and out of the law.
#define BREAK_LAW(c, remedy, words, ...) \
    must(c, FAIL(STATUS_MISMATCH, "%s: " words " ---> %s", (c)->about, __VA_ARGS__, remedy))

static void check_counts(Checker* c, const char* what, int64_t a, int64_t b, bool holds, const char* remedy) {
    if (!holds) { BREAK_LAW(c, remedy, "%s: %lld and %lld", what, (long long)a, (long long)b); }
}

// --- memory ----------------------------------------------------------------------------------------------

enum { LEAST_GUARD_BYTES = 16 * PLAN_BUFFER_ALIGN, GUARD_PATTERN = 0xa5, SPOILED = 0xff };

static void* allocated(Checker* c, void* memory) {
    if (memory == NULL) {
        must(c, FAIL(STATUS_NO_MEMORY, "no memory left to check the model ---> check a smaller one"));
    }
    return memory;
}

// As long as the buffer and a little more: a forgotten array overruns by no more.
static int64_t guard_bytes(int64_t num_bytes) {
    return (num_bytes + PLAN_BUFFER_ALIGN - 1) / PLAN_BUFFER_ALIGN * PLAN_BUFFER_ALIGN + LEAST_GUARD_BYTES;
}

static unsigned char* check_temp(Checker* c, int64_t num_bytes) {
    if (num_bytes >= c->temp_bytes) {
        c->temp = (unsigned char*)allocated(c, realloc(c->temp, (size_t)num_bytes + 1));
        c->temp_bytes = num_bytes + 1;
    }
    return c->temp;
}

static void check_copy(Checker* c, void* to, const void* from, int64_t num_bytes) {
    if (num_bytes > 0) { must(c, session_copy(c->device, to, from, (size_t)num_bytes)); }
}

static unsigned char* copy_to_temp(Checker* c, const void* from, int64_t num_bytes) {
    check_copy(c, check_temp(c, num_bytes), from, num_bytes);
    return c->temp;
}

static void check_fill(Checker* c, void* to, int value, int64_t num_bytes) {
    check_copy(c, to, memset(check_temp(c, num_bytes), value, (size_t)num_bytes), num_bytes);
}

// 0xff: NaN in every type, and no valid index.
static void check_spoil(Checker* c, const CheckBuffer* buffer) {
    if (!c->is_fast && buffer != NULL) { check_fill(c, buffer->data, SPOILED, buffer->num_bytes); }
}

// offset: of its address from a multiple of PLAN_BUFFER_ALIGN, less than that.
static CheckBuffer* buffer_at(Checker* c, Device device, int64_t num_bytes, int64_t offset) {
    if (num_bytes < 0) {
        BREAK_LAW(c, "acts_bytes(), scratch_bytes() and the like are never negative",
                  "a buffer of %lld bytes is asked for", (long long)num_bytes);
    }
    const int64_t guard = guard_bytes(num_bytes);
    CheckBuffer* buffer = CHECK_NEW(c, CheckBuffer, 1);
    void* whole = NULL;
    if (device.api != NULL) {
        must(c, device.api->alloc(device.ctx, &whole, 3 * guard));
    } else {
        whole = aligned_alloc(PLAN_BUFFER_ALIGN, (size_t)(3 * guard));
    }
    buffer->device = device;
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
    return buffer_at(c, c->device, num_bytes, 0);
}

static CheckBuffer* losses_buffer(Checker* c, const DynapipeBatch* batch) {
    const Device host = {NULL, NULL};
    return buffer_at(c, host, batch->num_rows * (int64_t)sizeof(float), 0);
}

static void check_release(Checker* c) {
    for (CheckBuffer* b = c->buffers; b != NULL; b = b->next) {
        if (b->device.api != NULL) {
            b->device.api->release(b->device.ctx, b->whole);
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

// How many bytes after the buffer, or before it (negative), were overwritten; 0: none.
static int64_t check_damage(Checker* c, const CheckBuffer* buffer) {
    const int64_t guard = guard_bytes(buffer->num_bytes) - PLAN_BUFFER_ALIGN, end = guard + buffer->num_bytes;
    const unsigned char* bytes = copy_to_temp(c, buffer->data - guard, end + guard);
    for (int64_t i = guard; i > 0; i--) {
        if (bytes[end + i - 1] != GUARD_PATTERN) { return i; }
    }
    for (int64_t i = guard; i > 0; i--) {
        if (bytes[guard - i] != GUARD_PATTERN) { return -i; }
    }
    return 0;
}

static uint64_t check_hash(Checker* c, const CheckBuffer* buffer) {
    return hash_bytes(HASH_SEED, copy_to_temp(c, buffer->data, buffer->num_bytes), (size_t)buffer->num_bytes);
}

// --- values ----------------------------------------------------------------------------------------------

// Values of a DynapipeType where values live, as floats here.
static float* check_read(Checker* c, float* to, const void* from, int32_t type, int64_t num_values) {
    if (type == DYNAPIPE_FLOAT32) {
        check_copy(c, to, from, num_values * 4);
        return to;
    }
    const uint16_t* halves = (const uint16_t*)(const void*)copy_to_temp(c, from, num_values * 2);
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
    if (!isfinite(found[at])) {
        BREAK_LAW(c, remedy, "%s: value %lld of %lld is not a number", what, (long long)at,
                  (long long)num_values);
    }
    BREAK_LAW(c, remedy, "%s: value %lld of %lld: %.6g expected, %.6g found; %lld of them differ", what,
              (long long)at, (long long)num_values, (double)expected[at], (double)found[at],
              (long long)num_off);
}

// --- ranges of the model -----------------------------------------------------------------------------------

static const char* check_why(const Checker* c) {
    return c->blocks->why != NULL ? c->blocks->why(c->blocks->ctx) : "no message (blocks->why is NULL)";
}

static CheckRange* check_range(Checker* c, DynapipeRange blocks, bool has_values) {
    CheckRange* range = CHECK_NEW(c, CheckRange, 1);
    range->blocks = blocks;
    ABOUT(c, "blocks [%d, %d) of %d", BLOCKS(range), (int)c->num_blocks);
    int code = c->blocks->make(c->blocks->ctx, blocks, has_values, &range->model, &range->params);
    if (code != 0) {
        BREAK_LAW(c, "a stage may be any contiguous blocks; block 0 is the embedding, the last the head",
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
                     tied->begin >= 0 && tied->count > 0 &&
                         tied->count <= range->params.num_params - tied->begin,
                     "they are values (not bytes) of this range's own array");
    }
    return range;
}

// The embedding is no stage alone, a decoder's embedding goes with the next block.
static bool is_cut(const Checker* c, int32_t block) {
    const bool after_dec_embedding = c->has_decoder && block == plan_chain_first_dec(&c->layers) + 2;
    return block > 1 && block < c->num_blocks - c->blocks->shapes.head_has_layer && !after_dec_embedding;
}

static Status find_cuts(Checker* c) {
    c->num_blocks = plan_chain_num_blocks(&c->layers) + 2 + c->has_decoder;
    c->cuts = (int32_t*)calloc((size_t)c->num_blocks, sizeof *c->cuts);
    if (c->cuts == NULL) { return FAIL(STATUS_NO_MEMORY, "no host memory left"); }
    for (int32_t b = 0; b < c->num_blocks; b++) {
        if (is_cut(c, b)) { c->cuts[c->num_cuts++] = b; }
    }
    return STATUS_OK;
}

// Ways to cut the model: nowhere; at every place; at every second; then at each place alone (in ranges of
// several layers, which come to share buffers).
enum { WHOLE = -1, FINEST, EVEN, ODD, ALONE_AT };
static CheckChain check_chain(Checker* c, int32_t way) {
    CheckChain chain = {CHECK_NEW(c, const CheckRange*, c->num_cuts + 1), 0, 0};
    const int32_t stride = way == FINEST ? 1 : way < ALONE_AT ? 2 : c->num_cuts;
    int32_t next = way == WHOLE ? c->num_cuts : way < ALONE_AT ? way == ODD : way - ALONE_AT;
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

// All NaN before, so that zero_gradients() has to write them.
static void zero_gradients(Checker* c, const CheckChain* chain) {
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        const DynapipeParams_v1* params = &chain->ranges[r]->params;
        check_fill(c, params->grads, SPOILED,
                   params->num_params * collective_type_bytes((DynapipeType)params->grad_type));
        c->api->zero_gradients(chain->ranges[r]->model);
    }
    check_same(c, "zero_gradients left gradients", CHECK_NEW(c, float, chain->num_values),
               values_of(c, chain, true), chain->num_values, 0, "it zeroes all of params->grads");
}

// --- microbatches ----------------------------------------------------------------------------------------

typedef struct {
    DynapipeBatch batch;
    char what[112];  // "2 sequences of 16 tokens, 3 rows, with padding"
} CheckBatch;

enum { CHECK_STANDARD = 3, MOST_SAMPLES = 4 };

// Gradients of a row's loss are multiplied by it: a power of two, so that doubling it is exact.
#define LOSS_SCALE 0.125F

// padding: windows are that many tokens longer than the longest, if kernels allow it; 0: as the shapes ask.
static CheckBatch* check_batch(Checker* c, MadeWindow* samples, int32_t* num, int32_t padding) {
    CheckBatch* out = CHECK_NEW(c, CheckBatch, 1);
    DynapipeBatch* b = &out->batch;
    char dec[16] = "";
    must(c, made_fit(samples, num, c->blocks, padding));
    must(c, made_batch(b, samples, *num, c->blocks->vocab, &c->arena));
    b->loss_scale = LOSS_SCALE;
    if (c->has_decoder) { snprintf(dec, sizeof dec, " + %d", (int)b->num_dec_tokens); }
    snprintf(out->what, sizeof out->what, "%d sequence%s of %d%s tokens, %d rows%s", (int)*num,
             *num > 1 ? "s" : "", (int)b->num_tokens, dec, (int)b->num_rows,
             samples->padded[0] > 0 ? ", with padding" : "");
    return out;
}

// One sample; four, of which one is not supervised; a long and a short one, with sizes that need no rounding.
static CheckBatch* standard_samples(Checker* c, MadeWindow out[MOST_SAMPLES], int32_t* num, int32_t idx) {
    static const MadeWindow standard[CHECK_STANDARD][MOST_SAMPLES] = {
        {{1, {7, 4}, 3, {0, 0}}},
        {{2, {5, 3}, 2, {0, 0}}, {3, {1, 2}, 1, {0, 0}}, {4, {3, 1}, 0, {0, 0}}, {5, {4, 5}, 4, {0, 0}}},
        {{6, {30, 2}, 15, {0, 0}},
         {7, {2, 30}, 1, {0, 0}}},  // 32 tokens, 16 rows: what sizes are rounded up to
    };
    memcpy(out, standard[idx], sizeof standard[idx]);
    for (int32_t i = 0; i < MOST_SAMPLES && !c->has_decoder; i++) { out[i].tokens[1] = 0; }
    *num = idx == 0 ? 1 : idx == 1 ? 4 : 2;
    return check_batch(c, out, num, 0);
}

static CheckBatch* standard_batch(Checker* c, int32_t idx) {
    MadeWindow samples[MOST_SAMPLES];
    int32_t num;
    return standard_samples(c, samples, &num, idx);
}

// --- jobs ------------------------------------------------------------------------------------------------
// A job is a letter. F: forward. N: forward that keeps nothing. V: for losses alone. E: the same, as
// validation calls it. R: a forward again, as an executor recomputes: without `out`, `in` as before. B, W:
// backward of inputs, of weights. M: acts move.

enum { CHECK_KEEP = DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD };

// A range and a microbatch. `out` and `dout` are `in` and `din` of the next range.
typedef struct {
    const CheckRange* range;
    CheckBatch* of;
    CheckBuffer *acts[CHECK_KEEP + 1], *in, *out, *din, *dout, *scratch;  // acts by flags
    CheckBuffer* losses;        // (num_rows), host; NULL: not the last range
    CheckBuffer *kept, *dkept;  // of a piece, shared with the sample's others
} CheckStage;

// One microbatch on its way through a chain.
typedef struct {
    const CheckChain* chain;
    CheckBatch* of;
    CheckStage* stages;  // [chain->num_ranges]
} CheckPass;

static CheckStage check_stage(Checker* c, const CheckRange* range, CheckBatch* of) {
    CheckStage s = {.range = range, .of = of};
    s.scratch = check_buffer(c, c->api->scratch_bytes(range->model, &of->batch));
    if (range->blocks.begin > 0) {
        int64_t num_bytes = c->api->boundary_bytes(range->model, &of->batch, 0);
        s.in = check_buffer(c, num_bytes);
        s.din = check_buffer(c, num_bytes);
    }
    if (range->blocks.end < c->num_blocks) {
        int64_t num_bytes = c->api->boundary_bytes(range->model, &of->batch, 1);
        s.out = check_buffer(c, num_bytes);
        s.dout = check_buffer(c, num_bytes);
    } else {
        s.losses = losses_buffer(c, &of->batch);
    }
    return s;
}

static CheckPass check_pass(Checker* c, const CheckChain* chain, CheckBatch* of) {
    CheckPass pass = {chain, of, CHECK_NEW(c, CheckStage, chain->num_ranges)};
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        pass.stages[r] = check_stage(c, chain->ranges[r], of);
        if (r == 0) { continue; }
        const int64_t leave = pass.stages[r - 1].out->num_bytes, enter = pass.stages[r].in->num_bytes;
        ABOUT(c, "blocks [%d, %d), %s", BLOCKS(chain->ranges[r]), of->what);
        check_counts(c, "bytes that leave the blocks before and enter these", leave, enter, leave == enter,
                     "boundary_bytes(is_behind 1) of the one and (0) of the other are the same activation");
        pass.stages[r].in = pass.stages[r - 1].out;
        pass.stages[r].din = pass.stages[r - 1].dout;
    }
    return pass;
}

static float* losses_of(const CheckPass* pass) {
    return (float*)(void*)pass->stages[pass->chain->num_ranges - 1].losses->data;
}

// A buffer of one call of the model.
typedef struct {
    const char* name;
    const CheckBuffer* buffer;  // NULL: the call has none
    const char* remedy;         // of an overrun
} CheckUse;

enum { NUM_READ = 2, NUM_USES = 8 };  // the first two may only be read

static void* data_of(const CheckBuffer* buffer) {
    return buffer != NULL ? buffer->data : NULL;
}

// Guards are intact, and buffers that may only be read have their hashes.
static void check_uses(Checker* c, const CheckUse uses[NUM_USES], const uint64_t before[NUM_READ],
                       const char* call) {
    for (const CheckUse* use = uses; use < uses + NUM_USES; use++) {
        const int64_t damage = use->buffer != NULL ? check_damage(c, use->buffer) : 0;
        c->is_overwritten = damage != 0;
        if (damage == 0) { continue; }
        BREAK_LAW(c, use->remedy, "%s wrote at least %lld bytes %s its %s (%lld bytes were asked for)", call,
                  llabs(damage), damage > 0 ? "after" : "before", use->name,
                  (long long)use->buffer->num_bytes);
    }
    for (int i = 0; i < NUM_READ; i++) {
        if (uses[i].buffer == NULL || check_hash(c, uses[i].buffer) == before[i]) { continue; }
        BREAK_LAW(c, "it may only be read: it is read again later, or being sent to another rank",
                  "%s changed its %s", call, uses[i].name);
    }
}

static void check_code(Checker* c, const CheckStage* s, const char* call, int code) {
    if (code == 0 && c->api->finish != NULL && !c->is_queued) {
        code = c->api->finish(s->range->model);
        call = "finish";
    }
    if (code == 0) { return; }
    BREAK_LAW(c, "what kernels cannot take belongs in DynapipeShapes_v1", "%s returned error %d: %s", call,
              code, check_why(c));
}

static void stage_call(Checker* c, CheckStage* s, char job) {
    static const char* const of_boundary = "boundary_bytes() returns less than is written there";
    static const char* const of_kept = "kept_bytes() returns less than is written there";
    const char* call = job == 'B' ? "backward_inputs" : job == 'W' ? "backward_weights" : "forward";
    const bool is_forward = job != 'B' && job != 'W';
    const int flags = job == 'N' ? 0 : job == 'V' || job == 'E' ? DYNAPIPE_FORWARD_HEAD : CHECK_KEEP;
    const DynapipeModel_v1* api = c->api;
    DynapipeBatch* batch = &s->of->batch;
    void* model = s->range->model;
    CheckBuffer** acts = &s->acts[flags];
    CheckBuffer* in = job == 'W' ? NULL : s->in;
    CheckBuffer* dout = is_forward ? NULL : s->dout;
    CheckBuffer* losses = is_forward && flags != 0 ? s->losses : NULL;
    CheckBuffer* written = job == 'R' || job == 'W' ? NULL : is_forward ? s->out : s->din;
    uint64_t before[NUM_READ] = {0};
    ABOUT(c, "blocks [%d, %d), %s", BLOCKS(s->range), s->of->what);
    if (*acts == NULL) { *acts = check_buffer(c, api->acts_bytes(model, batch, flags)); }
    check_spoil(c, is_forward ? *acts : NULL);
    check_spoil(c, is_forward ? s->losses : NULL);
    check_spoil(c, s->scratch);
    check_spoil(c, written);
    const CheckUse uses[NUM_USES] = {
        {"in", in, of_boundary},
        {"dout", dout, of_boundary},
        {is_forward ? "out" : "din", written, of_boundary},
        {"acts", *acts,
         "acts_bytes() returns less than is used for these flags, or an index runs over num_tokens"},
        {"scratch", s->scratch,
         "scratch_bytes() is what the neediest of forward, backward_inputs and backward_weights uses"},
        {"losses", losses, "one loss for each supervised row, not for each token"},
        {"kept", s->kept, of_kept},
        {"dkept", s->dkept, of_kept}};
    for (int i = 0; i < NUM_READ && !c->is_fast; i++) {
        if (uses[i].buffer != NULL) { before[i] = check_hash(c, uses[i].buffer); }
    }
    batch->kept = data_of(s->kept), batch->dkept = is_forward ? NULL : data_of(s->dkept);
    check_code(c, s, call,
               is_forward ? api->forward(model, batch, data_of(in), data_of(written), (*acts)->data,
                                         s->scratch->data, (float*)data_of(losses), flags)
               : job == 'B'
                   ? api->backward_inputs(model, batch, data_of(in), (*acts)->data, data_of(dout),
                                          data_of(written), s->scratch->data)
                   : api->backward_weights(model, batch, (*acts)->data, data_of(dout), s->scratch->data));
    if (!c->is_fast) { check_uses(c, uses, before, call); }
}

// Acts for backward get another place; the old place is overwritten.
static void move_acts(Checker* c, CheckStage* s) {
    CheckBuffer *from = s->acts[CHECK_KEEP], *to = check_buffer(c, from->num_bytes);
    check_copy(c, to->data, from->data, from->num_bytes);
    check_spoil(c, from);
    s->acts[CHECK_KEEP] = to;
}

// Of all ranges.
static void pass_job(Checker* c, CheckPass* pass, char job) {
    const int32_t num = pass->chain->num_ranges;
    const bool is_backward = job == 'B' || job == 'W';
    DynapipeBatch* batch = &pass->of->batch;
    const DynapipeBatch with_keys = *batch;
    if (job == 'W' && c->api->backward_weights == NULL) { return; }
    if (job == 'E') { batch->token_keys = batch->dec_token_keys = NULL; }  // no dropout
    for (int32_t i = 0; i < num; i++) {
        CheckStage* s = &pass->stages[is_backward ? num - 1 - i : i];
        if (job == 'M') {
            move_acts(c, s);
            continue;
        }
        stage_call(c, s, job);
        check_spoil(c, job == 'B' ? s->in : NULL);  // its memory is reused from here on
    }
    batch->token_keys = with_keys.token_keys, batch->dec_token_keys = with_keys.dec_token_keys;
}

// What jobs leave. Losses of several microbatches in their order, sums of their gradients.
typedef struct {
    float *losses, *gradients;
    int64_t num_losses, num_gradients;
} Results;

// `to` may be all zeros, and so may `from`.
static void add_results(Checker* c, Results* to, const Results* from) {
    const Results a = *to;
    *to = (Results){.num_losses = a.num_losses + from->num_losses,
                    .num_gradients = a.num_gradients > 0 ? a.num_gradients : from->num_gradients};
    to->losses = CHECK_NEW(c, float, to->num_losses);
    to->gradients = CHECK_NEW(c, float, to->num_gradients);
    for (int64_t i = 0; i < to->num_losses; i++) {
        to->losses[i] = i < a.num_losses ? a.losses[i] : from->losses[i - a.num_losses];
    }
    for (int64_t v = 0; v < a.num_gradients; v++) { to->gradients[v] += a.gradients[v]; }
    for (int64_t v = 0; v < from->num_gradients; v++) { to->gradients[v] += from->gradients[v]; }
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
        check_code(c, passes->stages, "finish", 0);
    }
    for (int32_t i = 0; i < num; i++) {
        const Results own = {losses_of(&passes[i]), NULL, passes[i].of->batch.num_rows, 0};
        add_results(c, &out, &own);
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
    ABOUT(c, "%s, %s", what, of);
    check_same(c, "losses", expected->losses, found->losses, expected->num_losses, loss_tolerance, remedy);
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        const CheckRange* range = chain->ranges[r];
        ABOUT(c, "%s, %s, blocks [%d, %d)", what, of, BLOCKS(range));
        check_same(c, "gradients", expected->gradients + range->begin, found->gradients + range->begin,
                   range->params.num_params, c->tolerance, remedy);
    }
}

// --- laws of sizes ---------------------------------------------------------------------------------------

// Blocks [begin, end) of a stack: those that can be a range have as many parameters as the same of an earlier
// layer.
static void check_layers_alike(Checker* c, int32_t begin, int32_t end, int32_t of_layer) {
    for (int32_t b = begin + of_layer; b < end; b++) {
        const int32_t earlier = b - of_layer;
        if (!is_cut(c, earlier) || !is_cut(c, earlier + 1) || !is_cut(c, b + 1)) { continue; }
        int64_t counts[2];
        for (int i = 0; i < 2; i++) {
            const DynapipeRange one = {.begin = i == 0 ? earlier : b, .end = (i == 0 ? earlier : b) + 1};
            counts[i] = check_range(c, one, false)->params.num_params;
        }
        ABOUT(c, "blocks %d and %d, the same of two layers", (int)earlier, (int)b);
        check_counts(c, "parameters", counts[0], counts[1], counts[0] == counts[1],
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
    ABOUT(c, "the whole model made with has_values 0 and 1");
    check_counts(c, "parameters", without->num_params, whole->num_params,
                 without->num_params == whole->num_params, "only memory may be left out, no count");
    // an encoder's last block may have the norm after it
    const int32_t num_enc = plan_chain_first_dec(&c->layers);
    check_layers_alike(c, 1, 1 + num_enc - c->has_decoder, c->layers.enc_blocks);
    check_layers_alike(c, 2 + num_enc, c->num_blocks - 1, c->layers.dec_blocks);
}

enum { NUM_SIZES = 6, GRID = 36 };  // 3 numbers of sequences, 3 lengths, 2 of the decoder's, 2 of rows
static const char* const size_names[NUM_SIZES] = {
    "acts_bytes() with flags 0", "acts_bytes() with HEAD",        "acts_bytes() with KEEP | HEAD",
    "scratch_bytes()",           "boundary_bytes() after blocks", "boundary_bytes() before blocks"};

static void ask_sizes(int64_t out[NUM_SIZES], const Checker* c, const CheckRange* range,
                      const DynapipeBatch* batch) {
    static const int flags[3] = {0, DYNAPIPE_FORWARD_HEAD, CHECK_KEEP};
    for (int i = 0; i < 3; i++) { out[i] = c->api->acts_bytes(range->model, batch, flags[i]); }
    out[3] = c->api->scratch_bytes(range->model, batch);
    out[4] = range->blocks.end == c->num_blocks ? 0 : c->api->boundary_bytes(range->model, batch, 1);
    out[5] = range->blocks.begin == 0 ? 0 : c->api->boundary_bytes(range->model, batch, 0);
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

static CheckBatch* grid_batch(Checker* c, int i) {
    static const int32_t seqs[3] = {1, 2, 4}, lengths[3] = {1, 6, 17}, dec_lengths[2] = {1, 5};
    MadeWindow samples[MOST_SAMPLES];
    int32_t num = seqs[i % 3];
    for (int32_t s = 0; s < num; s++) {
        const int32_t dec_tokens = c->has_decoder ? dec_lengths[i / 9 % 2] : 0,
                      num_rows = i / 18 == 0 ? 1 : lengths[2];  // or all
        samples[s] = (MadeWindow){s, {lengths[i / 3 % 3], dec_tokens}, num_rows, {0, 0}};
    }
    return check_batch(c, samples, &num, 0);
}

static void check_sizes(Checker* c, const CheckRange* range, CheckBatch* const* grid) {
    const bool in_rows = c->blocks->last_in_rows && range->blocks.end >= c->num_blocks - 2;
    const CheckRange* without = check_range(c, range->blocks, false);
    int64_t sizes[GRID][NUM_SIZES], bare[NUM_SIZES];
    for (int i = 0; i < GRID; i++) {
        const DynapipeBatch counts = forget_contents(c, grid[i]->batch);
        ask_sizes(sizes[i], c, range, &grid[i]->batch);
        ask_sizes(bare, c, without, &counts);
        ABOUT(c, "blocks [%d, %d), %s", BLOCKS(range), grid[i]->what);
        for (int k = 0; k < NUM_SIZES; k++) {
            check_counts(c, size_names[k], sizes[i][k], bare[k], sizes[i][k] == bare[k],
                         "the planner knows the counts only, num_* and max_*: the same when the arrays hold "
                         "something else, and with has_values 0");
        }
    }
    for (int pair = 0; pair < GRID * GRID; pair++) {
        const int a = pair / GRID, b = pair % GRID;
        const DynapipeBatch *less = &grid[a]->batch, *more = &grid[b]->batch;
        ABOUT(c, "blocks [%d, %d), %s and %s", BLOCKS(range), grid[a]->what, grid[b]->what);
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
    for (int i = 0; i < GRID; i++) { grid[i] = grid_batch(c, i); }
    CheckChain chain = check_chain(c, FINEST);
    for (int32_t r = 0; r < chain.num_ranges; r++) { check_sizes(c, chain.ranges[r], grid); }
}

// --- laws of jobs ----------------------------------------------------------------------------------------

// Of passes[0], or of both, which leave these results alone. Guards are checked after every call, and what
// may not be read is NaN.
static void check_order(Checker* c, CheckPass passes[2], const Results alone[2]) {
    const Law* law = c->law;
    const int32_t num = strchr(law->jobs, '1') != NULL ? 2 : 1;
    Results expected = {0};
    DynapipeBatch* batch = &passes[0].of->batch;
    for (int32_t i = 0; i < num; i++) { add_results(c, &expected, &alone[i]); }
    for (int64_t v = 0; v < expected.num_gradients; v++) { expected.gradients[v] *= law->scale; }
    batch->loss_scale *= law->scale;
    if (law->is_queued) {
        CheckStage *x = passes[0].stages, *y = passes[1].stages;
        x->scratch = y->scratch = x->scratch->num_bytes > y->scratch->num_bytes ? x->scratch : y->scratch;
        check_spoil(c, x->losses);
        check_spoil(c, y->losses);
    }
    c->is_fast = c->is_queued = law->is_queued;
    const Results found = run_jobs(c, passes, num, law->jobs);
    c->is_fast = false;
    batch->loss_scale /= law->scale;
    same_results(c, passes->chain, &expected, &found, law->is_exact ? 0 : c->tolerance, law->what,
                 passes->of->what, law->remedy);
}

// On a model in the smallest ranges, and in few.
static void law_order(Checker* c) {
    const bool is_queued = c->law->is_queued;
    const int32_t ways[2] = {is_queued ? WHOLE : FINEST, coarse(c)};
    for (int w = 0; w < (is_queued ? 1 : 2); w++) {
        CheckChain chain = check_chain(c, ways[w]);
        CheckPass passes[CHECK_STANDARD + 1];
        Results alone[CHECK_STANDARD + 1];
        for (int32_t i = 0; i < CHECK_STANDARD; i++) {
            passes[i] = check_pass(c, &chain, standard_batch(c, i));
            alone[i] = run_jobs(c, &passes[i], 1, ALONE);
        }
        passes[CHECK_STANDARD] = passes[0], alone[CHECK_STANDARD] = alone[0];
        for (int32_t i = 0; i < CHECK_STANDARD; i++) { check_order(c, &passes[i], &alone[i]); }
    }
}

// --- laws of one microbatch done in different ways ---------------------------------------------------------

static bool has_group(const CheckRange* range, int32_t group) {
    for (int32_t i = 0; i < range->params.num_tied; i++) {
        if (range->params.tied[i].group == group) { return true; }
    }
    return false;
}

// What a chain has, however its ranges lay out their parameters.
typedef struct {
    float* gradients;    // (num_sums), added by the bits of their parameters: so do copies of a tied tensor
    int64_t num_params;  // without the copies of groups that an earlier range has
    uint64_t hash;       // of all of these
} Gathered;

static Gathered gather(Checker* c, const CheckChain* chain, const float* gradients, int64_t num_sums) {
    const float* params = values_of(c, chain, false);
    Gathered out = {CHECK_NEW(c, float, num_sums), chain->num_values, 0};
    for (int64_t v = 0; v < chain->num_values; v++) {
        const uint64_t hash = rng_mix(half_bits(params[v]));
        out.gradients[hash % (uint64_t)num_sums] += gradients[v];
        out.hash += hash;
    }
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        const CheckRange* range = chain->ranges[r];
        for (int32_t i = 0; i < range->params.num_tied; i++) {
            const DynapipeTied* tied = &range->params.tied[i];
            const float* values = params + range->begin + tied->begin;
            bool is_copy = false;
            for (int32_t q = 0; q < r; q++) { is_copy |= has_group(chain->ranges[q], tied->group); }
            for (int64_t v = 0; v < tied->count && is_copy; v++) {
                out.hash -= rng_mix(half_bits(values[v]));
            }
            out.num_params -= is_copy ? tied->count : 0;
        }
    }
    return out;
}

static void law_cuts(Checker* c) {
    CheckChain whole = check_chain(c, WHOLE);
    for (int32_t b = 0; b < CHECK_STANDARD; b++) {
        CheckBatch* batch = standard_batch(c, b);
        Results expected = check_run(c, &whole, batch);
        const Gathered all = gather(c, &whole, expected.gradients, whole.num_values);
        for (int32_t way = 0; way < ALONE_AT + c->num_cuts; way++) {
            CheckChain chain = check_chain(c, (way + ALONE_AT) % (ALONE_AT + c->num_cuts));
            if (chain.num_ranges == 1) { continue; }
            Results found = check_run(c, &chain, batch);
            ABOUT(c, "the model cut before block %d%s, %s", (int)chain.ranges[1]->blocks.begin,
                  chain.num_ranges > 2 ? " and elsewhere" : "", batch->what);
            const Gathered cut = gather(c, &chain, found.gradients, whole.num_values);
            check_counts(
                c, "parameters without tied copies, and of the whole, or other values", cut.num_params,
                all.num_params, cut.num_params == all.num_params && cut.hash == all.hash,
                "make() gives a block the same values in every range that has it; a tensor is in one "
                "range, or in params->tied of each that has it: all of it, in values (not bytes)");
            check_same(c, "losses", expected.losses, found.losses, batch->batch.num_rows, c->tolerance,
                       "what a range computes from `in` is what the whole computes there; blocks count from "
                       "blocks.begin");
            check_same(c, "gradients, by parameter, tied copies added", all.gradients, cut.gradients,
                       whole.num_values, c->tolerance,
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
        int32_t num, one = 1;
        CheckBatch *batch = standard_samples(c, samples, &num, b), *padded = check_batch(c, samples, &num, 3);
        Results together = check_run(c, &whole, batch), longer = check_run(c, &whole, padded), sum = {0};
        for (int32_t i = 0; i < num; i++) {
            CheckBatch* alone = check_batch(c, &samples[i], &one, 0);
            if (alone->batch.num_rows == 0) { continue; }  // nothing to learn: no gradients
            const Results own = check_run(c, &whole, alone);
            add_results(c, &sum, &own);
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

// Of a piece that ends at `end` in a range, against what plans give it. first: the sample's first piece.
static void check_piece_bytes(Checker* c, const CheckStage* s, const CheckBatch* whole, int32_t end,
                              const CheckStage* first) {
    const DynapipeModel_v1* api = c->api;
    const DynapipeBatch* b = &s->of->batch;
    void* model = s->range->model;
    DynapipeBatch uncut = *b, joined;  // a window of its own; with all earlier tokens
    must(c, made_piece(&joined, &whole->batch, 0, end, &c->arena));
    DynapipeBatch* others[] = {&uncut, &joined};
    ABOUT(c, "blocks [%d, %d), %s", BLOCKS(s->range), s->of->what);
    for (int i = 0; i < 2; i++) {
        others[i]->kept_tokens = others[i]->kept_begin = others[i]->kept_enc_tokens = 0;
        others[i]->num_prefix = 0;
        others[i]->num_rows = b->num_rows;
        const int64_t firsts = (i > 0 ? first->dkept : first->kept)->num_bytes,
                      kept = api->kept_bytes(model, b, i);
        check_counts(c, "kept_bytes() of the first piece, and here", firsts, kept, firsts == kept,
                     "read kept_tokens and kept_enc_tokens alone");
        const int flags = i > 0 ? CHECK_KEEP : 0;
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
    const int32_t num_tokens = (c->has_decoder ? whole->batch.dec_cu_seqlens : whole->batch.cu_seqlens)[1];
    for (int32_t p = 0, begin = 0, end; p < num; p++, begin = end) {
        end = p == num - 1 ? num_tokens : rng_between(rng, begin + 1, num_tokens - (num - 1 - p));
        CheckBatch* piece = CHECK_NEW(c, CheckBatch, 1);
        must(c, made_piece(&piece->batch, &whole->batch, begin, end, &c->arena));
        snprintf(piece->what, sizeof piece->what, "tokens [%d, %d) of %d%s", (int)begin, (int)end,
                 (int)num_tokens, piece->batch.num_seqs > 1 ? ", and other sequences" : "");
        out[p] = check_pass(c, chain, piece);
        for (int32_t r = 0; r < chain->num_ranges; r++) {
            CheckStage *at = &out[p].stages[r], *first = &out[0].stages[r];
            if (p == 0) {
                at->kept = check_buffer(c, c->api->kept_bytes(at->range->model, &at->of->batch, 0));
                at->dkept = check_buffer(c, c->api->kept_bytes(at->range->model, &at->of->batch, 1));
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
    int32_t num_samples = 3;
    char what[32];
    for (int i = 0; i < 3 && c->has_decoder; i++) {
        samples[i].tokens[1] = samples[i].tokens[0];
        samples[i].tokens[0] = 9 - 3 * i;
    }
    CheckBatch* whole = check_batch(c, samples, &num_samples, 0);
    if (samples[0].tokens[c->has_decoder] < num) { return; }
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
    } orders[] = {{2, "N0 N1 R1 B1 R0 B0 W0 W1"},
                  {3, "F0 F1 F2 B2 W2 B1 W1 B0 W0"},
                  {4, "F0 F1 F2 F3 B3 B2 B1 B0 W0 W1 W2 W3"},
                  {4, "N0 N1 N2 N3 R3 B3 W3 R2 B2 W2 R1 B1 W1 R0 B0 W0"}};
    Rng rng = rng_seed(5);
    if (c->api->kept_bytes == NULL || c->blocks->shapes.padded) { return; }
    for (int32_t way = ALONE_AT + c->num_cuts - 1; way >= WHOLE; way--) {
        CheckChain chain = check_chain(c, way);
        const int i = (way + 1) % 4;
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

// The next share, of rows from `row` on, and what it reads of the hidden states.
static CheckStage make_share(Checker* c, const ShareWay* way, const CheckStage* feeds, CheckChain* shares,
                             int32_t row, int64_t at_bytes) {
    const int32_t vocab = c->blocks->padded_vocab > 0 ? (int32_t)c->blocks->padded_vocab : c->blocks->vocab;
    const int32_t middle = c->blocks->vocab / 2 / ID_MULTIPLE * ID_MULTIPLE;  // ids on both sides, of 32
    const bool is_last = shares->num_ranges == way->num - 1, by_rows = way->head == DYNAPIPE_HEAD_BY_ROWS;
    DynapipeRange blocks = {.begin = c->num_blocks - 1, .end = c->num_blocks, .head = way->head};
    CheckBatch* of = CHECK_NEW(c, CheckBatch, 1);
    *of = *feeds->of;
    if (by_rows) {
        of->batch.num_rows = is_last ? of->batch.num_rows - row : of->batch.num_rows / 2;
        of->batch.rows += row;
        of->batch.targets += row;
        of->batch.row_tasks += row;
    } else {
        blocks.vocab_begin = shares->num_ranges == 0 ? 0 : middle;
        blocks.vocab_end = is_last ? vocab : middle;
    }
    CheckRange* range = check_range(c, blocks, true);
    CheckStage s = check_stage(c, range, of);
    range->begin = shares->num_values;
    shares->num_values += range->params.num_params;
    shares->ranges[shares->num_ranges++] = range;
    c->api->zero_gradients(range->model);
    if (by_rows) {  // a slice of the hidden states, of their gradient
        s.in = buffer_at(c, c->device, s.in->num_bytes, at_bytes % PLAN_BUFFER_ALIGN);
        s.din = buffer_at(c, c->device, s.in->num_bytes, at_bytes % PLAN_BUFFER_ALIGN);
    } else {
        s.din = check_buffer(c, c->api->part_bytes(range->model, &of->batch, CHECK_KEEP));
        s.losses = NULL;
    }
    check_copy(c, s.in->data, feeds->out->data + at_bytes, s.in->num_bytes);
    return s;
}

// Losses, and the gradient of the matrix: by rows those of shares add, by vocabulary they follow each other.
// Fills feeds->din.
static Results run_shares(Checker* c, const ShareWay* way, CheckStage* feeds) {
    const DynapipeModel_v1* api = c->api;
    const DynapipeBatch* batch = &feeds->of->batch;
    const bool by_rows = way->head == DYNAPIPE_HEAD_BY_ROWS;
    CheckBuffer* losses = losses_buffer(c, batch);
    const CheckRange* ranges[MOST_SHARES];
    CheckChain chain = {ranges, 0, 0};
    CheckStage shares[MOST_SHARES];
    Results out = {(float*)(void*)losses->data, NULL, batch->num_rows, 0};
    void *parts[MOST_SHARES], *factors[MOST_SHARES] = {NULL};
    int64_t at_bytes = 0;
    api->zero_gradients(feeds->range->model);
    stage_call(c, feeds, 'F');
    for (int32_t i = 0, row = 0; i < way->num; i++) {
        CheckStage* s = &shares[i];
        *s = make_share(c, way, feeds, &chain, row, at_bytes);
        parts[i] = s->din->data;
        if (s->of->batch.num_rows > 0) {
            stage_call(c, s, 'F');
            stage_call(c, s, 'B');
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
        check_code(c, feeds, "combine",
                   api->combine(feeds->range->model, batch, way->num, (const void* const*)parts,
                                feeds->dout->data, factors, out.losses));
    }
    stage_call(c, feeds, 'B');
    for (CheckStage* s = shares; s < shares + way->num && api->backward_weights != NULL; s++) {
        if (s->of->batch.num_rows > 0) { stage_call(c, s, 'W'); }
    }
    out.gradients = values_of(c, &chain, true);
    out.num_gradients = by_rows ? ranges[0]->params.num_params : chain.num_values;
    for (int64_t v = out.num_gradients; v < chain.num_values; v++) {
        out.gradients[v - out.num_gradients] += out.gradients[v];
    }
    return out;
}

static void check_sharings(Checker* c, CheckBatch* batch, int32_t at, bool by_vocabulary) {
    static const char* const remedy = "DynapipeModel_v1: shares of the head, and combine()";
    static const ShareWay ways[] = {{"by rows, in one share", DYNAPIPE_HEAD_BY_ROWS, 1},
                                    {"by rows", DYNAPIPE_HEAD_BY_ROWS, 2},
                                    {"by vocabulary", DYNAPIPE_HEAD_BY_VOCABULARY, 2}};
    CheckChain chain = check_chain(c, ALONE_AT + at);
    CheckPass pass = check_pass(c, &chain, batch);
    const DynapipeRange blocks = {
        .begin = c->cuts[at], .end = c->num_blocks - 1, .head = DYNAPIPE_HEAD_FEEDS};
    Results expected = run_jobs(c, &pass, 1, ALONE);
    CheckStage* before = pass.stages;
    stage_call(c, before, 'F');  // (its `out` was spoiled)
    const int32_t type = chain.ranges[1]->params.param_type;
    const int64_t num_din = before->dout->num_bytes / collective_type_bytes((DynapipeType)type);
    float *din = CHECK_NEW(c, float, num_din), *found_din = CHECK_NEW(c, float, num_din);
    for (int i = 0; i < (by_vocabulary ? 3 : 2); i++) {
        CheckStage feeds = check_stage(c, check_range(c, blocks, true), batch);
        check_copy(c, feeds.in->data, before->out->data, feeds.in->num_bytes);
        Results found = run_shares(c, &ways[i], &feeds);
        if (i == 0) { expected.gradients = found.gradients, expected.num_gradients = found.num_gradients; }
        check_read(c, din, before->dout->data, type, num_din);
        check_read(c, found_din, feeds.din->data, type, num_din);
        for (int64_t k = 0; k < num_din; k++) {  // padding, which neither wrote
            if (isnan(din[k]) && isnan(found_din[k])) { din[k] = found_din[k] = 0; }
        }
        ABOUT(c, "the head shared %s before block %d, %s", ways[i].words, (int)c->cuts[at], batch->what);
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
    const bool by_vocabulary = executor_can_share(c->api, HEAD_BY_VOCABULARY);
    const int32_t num_cuts = c->num_cuts - 1;                                // without the head alone
    MadeWindow unsupervised = {14, {3, c->has_decoder ? 3 : 0}, 0, {0, 0}};  // as a piece may be
    int32_t one = 1;
    if (c->blocks->shapes.head_has_layer || num_cuts < 1) { return; }
    if (!by_vocabulary && !c->blocks->shapes.head_by_rows) { return; }
    for (int32_t i = 0; i < CHECK_STANDARD || i < num_cuts; i++) {
        check_sharings(c, standard_batch(c, i % CHECK_STANDARD), num_cuts - 1 - i % num_cuts, by_vocabulary);
    }
    if (c->api->kept_bytes == NULL) { return; }
    check_sharings(c, check_batch(c, &unsupervised, &one, 0), num_cuts - 1, by_vocabulary);
}

// --- law of gradients ------------------------------------------------------------------------------------

typedef struct {
    Checker* c;
    CheckPass pass;  // of the whole model
} Slopes;

static void write_params(void* ctx, const float* values, int64_t begin, int64_t count) {
    const Slopes* s = (const Slopes*)ctx;
    float* params = (float*)s->pass.chain->ranges[0]->params.params;
    check_copy(s->c, params + begin, values, count * (int64_t)sizeof *values);
}

static double loss_of(void* ctx) {
    Slopes* s = (Slopes*)ctx;
    const DynapipeBatch* batch = &s->pass.of->batch;
    double loss = 0;
    pass_job(s->c, &s->pass, 'F');
    for (int32_t r = 0; r < batch->num_rows; r++) { loss += (double)losses_of(&s->pass)[r]; }
    return loss * (double)batch->loss_scale;
}

static const float* gradients_of(void* ctx) {
    Slopes* s = (Slopes*)ctx;
    return run_jobs(s->c, &s->pass, 1, ALONE).gradients;
}

static void law_slopes(Checker* c) {
    CheckChain whole = check_chain(c, WHOLE);
    const int64_t n = whole.num_values;
    if (whole.ranges[0]->params.param_type != DYNAPIPE_FLOAT32) { return; }  // 8 or 11 bits see too little
    Slopes s = {c, check_pass(c, &whole, standard_batch(c, 1))};
    const SlopesFunction f = {.ctx = &s,
                              .num_params = n,
                              .start = values_of(c, &whole, false),
                              .write = write_params,
                              .loss = loss_of,
                              .gradients = gradients_of,
                              .noise = c->epsilon,
                              .room = CHECK_NEW(c, float, 3 * n)};
    SlopesFinding found;
    c->is_fast = true;
    if (!slopes_contradict(&found, &f)) { return; }
    ABOUT(c, "parameters [%lld, %lld) of %lld", (long long)found.begin, (long long)found.end, (long long)n);
    BREAK_LAW(c,
              "zero, or far off: a term of backward is missing; off by a factor: loss_scale or a mean; "
              "the piece of the array tells which tensor",
              "moved a little, the loss rises by %.5g one way and falls by %.5g the other way, by the "
              "gradients it would by %.5g; the like at %d of %d random places",
              found.rise, found.fall, found.expected, (int)found.num_contradicting, (int)found.num_places);
}

// --- all laws --------------------------------------------------------------------------------------------

static const Law laws[] = {
    {"the model can be made, its layers are alike", law_ranges, NULL, false, false, 0, NULL},
    {"bytes follow from counts, and grow with them", law_counts, NULL, false, false, 0, NULL},
    {"promised bytes suffice, and are read where written", law_order, ALONE, true, false, 1,
     "forward writes all of losses and out, backward_inputs all of din (none is added to); forward reads no "
     "acts or scratch that it has not written, backward_inputs acts as forward left them, backward_weights "
     "acts as backward_inputs left them, and dout: not scratch, and not `in`, whose memory is reused by "
     "then"},
    {"the same forward again", law_order, "F0 F0 B0 W0", true, false, 1,
     "same inputs, same bits: does forward read acts or scratch before it has written there, state that it "
     "left in the model, or a counter of random numbers (batch->token_keys is for dropout)? It changes no "
     "gradients and no parameters: recomputation and validation run it, too"},
    {"a forward with HEAD alone", law_order, "E0 F0 B0 W0 V0", false, false, 1, "validation calls it so"},
    {"a forward that keeps nothing, recomputed (out NULL)", law_order, "N0 R0 B0 W0", true, false, 1,
     "flags choose what is kept in acts, not what is computed; with KEEP, acts must hold all that backward "
     "reads, also where out is NULL"},
    {"two microbatches one after the other", law_order, "F0 B0 W0 F1 B1 W1", false, false, 1,
     "gradients are added (+=): zero_gradients() alone zeroes them, once a step"},
    {"twice the loss_scale", law_order, "F0 B0 W0", true, false, 2,
     "every row's gradient starts as loss_scale * (softmax - target), without a mean over rows or tokens; "
     "losses are cross entropies in nats; loss_scale belongs to gradients alone"},
    {"two microbatches under way at once, weights' gradients last", law_order, "F0 F1 M0 B0 B1 M1 W1 W0",
     false, false, 1,
     "what backward needs lies in that microbatch's acts: not in scratch (another job writes there), not in "
     "the model, not in `in` (gone after backward_inputs); acts may move: no pointer into them is kept"},
    {"jobs that are waited for once", law_order, "F0 F1 B0 B1 W1 W0", false, true, 1,
     "a job may still be queued when the next one is called: what kernels read (copies of tokens, rows, "
     "targets and so on) is that microbatch's own until finish(), or is copied in the queue's order"},
    {"every cut gives the whole's losses and gradients", law_cuts, NULL, false, false, 0, NULL},
    {"grouping and padding samples changes nothing", law_grouping, NULL, false, false, 0, NULL},
    {"pieces of a sample give the whole's losses and gradients", law_pieces, NULL, false, false, 0, NULL},
    {"a shared head gives the whole's losses and gradients", law_heads, NULL, false, false, 0, NULL},
    {"gradients are those of finite differences", law_slopes, NULL, false, false, 0, NULL},
};
enum { NUM_LAWS = sizeof laws / sizeof laws[0] };

static Status run_law(Checker* c) {
    c->status = STATUS_OK;
    if (setjmp(c->end_of_law) == 0) { c->law->check(c); }
    c->is_fast = c->is_queued = false;
    check_release(c);
    return c->status;
}

// A line for each law; the message of the first failure.
static Status run_laws(Checker* c, FILE* out) {
    char first_words[STATUS_MESSAGE_BYTES];
    Status first = STATUS_OK;
    for (int i = 0; i < NUM_LAWS; i++) {
        c->law = &laws[i];
        const Status status = run_law(c);
        if (out != NULL && status == STATUS_OK) { fprintf(out, "ok   %s\n", c->law->what); }
        if (out != NULL && status != STATUS_OK) {
            fprintf(out, "FAIL %s: %s\n", c->law->what, status_message());
        }
        if (out != NULL) { fflush(out); }
        if (status == STATUS_OK) { continue; }
        if (first == STATUS_OK) { snprintf(first_words, sizeof first_words, "%s", status_message()); }
        if (first == STATUS_OK) { first = status; }
        if (i == 0 || c->is_overwritten || status != STATUS_MISMATCH) { break; }
    }
    return first == STATUS_OK ? first : FAIL(first, "%s", first_words);
}

static Status check_size(const DynapipeBlocks_v1* blocks) {
    TRY(measure_check(blocks));
    if (blocks->num_layers >= 2 && blocks->num_dec_layers >= 0 && blocks->vocab >= 2) { return STATUS_OK; }
    return FAIL(STATUS_BAD_OPTION,
                "%d layers, %d of a decoder, %d ids: too small a model to check ---> take one of at least 2 "
                "layers (2 to 4 will do) and 2 ids",
                (int)blocks->num_layers, (int)blocks->num_dec_layers, (int)blocks->vocab);
}

int dynapipe_check_model(Dynapipe* dp, const DynapipeBlocks_v1* blocks, FILE* out) {
    Status status = check_size(blocks);
    if (status != STATUS_OK && out != NULL) {
        fprintf(out, "FAIL the model's table: %s\n", status_message());
    }
    TRY(status);
    if (dp->links == NULL) { TRY(session_device_open(dp, NULL)); }
    Checker c = {.blocks = blocks,
                 .api = blocks->api,
                 .device = dp->device,
                 .layers = measure_chain(blocks),
                 .has_decoder = blocks->num_dec_layers > 0};
    status = find_cuts(&c);
    if (status == STATUS_OK) { status = run_laws(&c, out); }
    arena_free(&c.arena);
    free(c.cuts);
    free(c.temp);
    return status;
}
