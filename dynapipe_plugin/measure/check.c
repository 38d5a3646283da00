/*
check.c -- dynapipe_check_model(): a model run on tiny micro-batches in guarded memory, and the laws that its
results must keep.

A model is made in ranges (a chain), and a micro-batch passes through them job by job, as the executor would
run it: every buffer has exactly the bytes that were asked for, between guards, and whatever a job may not
rely on holds NaN. A law returns STATUS_OK or the first thing it found; what it made is released when it
returns.
*/
#include <math.h>
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
#include "../run/executor.h"
#include "../run/session.h"

// num_bytes where values live (or in this process), between two guards.
typedef struct CheckBuffer {
    unsigned char* data;  // aligned to PLAN_BUFFER_ALIGN
    int64_t num_bytes;
    bool on_host;
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
    void* temp;  // scratch of this file's functions
    size_t temp_bytes;
    int32_t num_blocks;     // embedding(s), layers, head
    double tolerance;       // relative, of sums of gradients in another order
    double epsilon;         // of the coarsest type that values are kept in
    bool is_fast;           // no guards, no NaN: for the thousands of forwards of finite differences
    bool is_queued;         // finish() is not called after every job
    bool guards_are_known;  // to be overwritten: no more jobs run
} Checker;

#define CHECK_NEW(pointer, Type, count) ARENA_TRY_NEW(pointer, &c->arena, Type, count)

// Two arguments of a message about a range: "blocks [%d, %d)".
#define BLOCKS(range) (int)(range)->blocks.begin, (int)(range)->blocks.end

enum { CHECK_KEEP = DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD };

// --- memory ----------------------------------------------------------------------------------------------

enum { LEAST_GUARD_BYTES = 16 * PLAN_BUFFER_ALIGN, GUARD_PATTERN = 0xa5, SPOILED = 0xff };

// As long as the buffer and a little more: a forgotten array overruns by no more.
static int64_t guard_bytes(int64_t num_bytes) {
    return (num_bytes + PLAN_BUFFER_ALIGN - 1) / PLAN_BUFFER_ALIGN * PLAN_BUFFER_ALIGN + LEAST_GUARD_BYTES;
}

static bool check_on_device(const Checker* c, bool on_host) {
    return c->device.api != NULL && !on_host;
}

static void check_release(Checker* c) {
    for (CheckBuffer* b = c->buffers; b != NULL; b = b->next) {
        unsigned char* whole = b->data - guard_bytes(b->num_bytes);
        if (check_on_device(c, b->on_host)) {
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

static Status check_temp(Checker* c, int64_t num_bytes) {
    if ((size_t)num_bytes <= c->temp_bytes) { return STATUS_OK; }
    void* grown = realloc(c->temp, (size_t)num_bytes);
    if (grown == NULL) { return FAIL(STATUS_NO_MEMORY, "no host memory left"); }
    c->temp = grown;
    c->temp_bytes = (size_t)num_bytes;
    return STATUS_OK;
}

static Status check_copy(const Checker* c, void* to, const void* from, int64_t num_bytes) {
    if (num_bytes == 0) { return STATUS_OK; }
    if (c->device.api != NULL) { return c->device.api->copy(c->device.ctx, to, from, num_bytes); }
    memcpy(to, from, (size_t)num_bytes);
    return STATUS_OK;
}

static Status check_fill(Checker* c, unsigned char* to, int value, int64_t num_bytes) {
    if (c->device.api == NULL) {
        memset(to, value, (size_t)num_bytes);
        return STATUS_OK;
    }
    TRY(check_temp(c, num_bytes));
    memset(c->temp, value, (size_t)num_bytes);
    return check_copy(c, to, c->temp, num_bytes);
}

// 0xff: NaN in every type, and no valid index.
static Status check_spoil(Checker* c, const CheckBuffer* buffer) {
    if (c->is_fast || buffer == NULL) { return STATUS_OK; }
    return check_fill(c, buffer->data, SPOILED, buffer->num_bytes);
}

static Status check_buffer(Checker* c, CheckBuffer** out, int64_t num_bytes, bool on_host) {
    if (num_bytes < 0) {
        return FAIL(
            STATUS_OUT_OF_RANGE,
            "a buffer of %lld bytes is asked for ---> acts_bytes(), scratch_bytes() and boundary_bytes() "
            "are never negative",
            (long long)num_bytes);
    }
    int64_t guard = guard_bytes(num_bytes), whole_bytes = 3 * guard;
    CheckBuffer* buffer;
    void* whole = NULL;
    CHECK_NEW(buffer, CheckBuffer, 1);
    if (check_on_device(c, on_host)) {
        TRY(c->device.api->alloc(c->device.ctx, &whole, whole_bytes));
    } else {
        whole = aligned_alloc(PLAN_BUFFER_ALIGN, (size_t)whole_bytes);
    }
    if (whole == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory to check the model ---> check a smaller one");
    }
    *buffer = (CheckBuffer){(unsigned char*)whole + guard, num_bytes, on_host, c->buffers};
    c->buffers = buffer;
    *out = buffer;
    TRY(check_fill(c, (unsigned char*)whole, GUARD_PATTERN, whole_bytes));
    return check_spoil(c, buffer);
}

// Bytes of the guards that were overwritten: how far before and after the buffer; 0: none.
static Status check_damage(Checker* c, const CheckBuffer* buffer, int64_t* before, int64_t* after) {
    int64_t guard = guard_bytes(buffer->num_bytes);
    TRY(check_temp(c, 2 * guard));
    unsigned char *first = (unsigned char*)c->temp, *last = first + guard;
    TRY(check_copy(c, first, buffer->data - guard, guard));
    TRY(check_copy(c, last, buffer->data + buffer->num_bytes, guard));
    *before = *after = 0;
    for (int64_t i = 0; i < guard; i++) {
        if (last[i] != GUARD_PATTERN) { *after = i + 1; }
        if (first[guard - 1 - i] != GUARD_PATTERN) { *before = i + 1; }
    }
    return STATUS_OK;
}

// --- values ----------------------------------------------------------------------------------------------

static int64_t check_value_bytes(int32_t type) {
    return type == DYNAPIPE_FLOAT32 ? 4 : 2;
}

// Values of a DynapipeType where values live, as floats here, and back (rounded).
static Status check_read(Checker* c, float* to, const void* from, int32_t type, int64_t num_values) {
    if (type == DYNAPIPE_FLOAT32) { return check_copy(c, to, from, num_values * 4); }
    TRY(check_temp(c, num_values * 2));
    const uint16_t* halves = (const uint16_t*)c->temp;
    TRY(check_copy(c, c->temp, from, num_values * 2));
    for (int64_t i = 0; i < num_values; i++) {
        to[i] = type == DYNAPIPE_FLOAT16 ? half_from_float16(halves[i]) : half_from_bfloat16(halves[i]);
    }
    return STATUS_OK;
}

static Status check_write(Checker* c, void* to, const float* from, int32_t type, int64_t num_values) {
    if (type == DYNAPIPE_FLOAT32) { return check_copy(c, to, from, num_values * 4); }
    TRY(check_temp(c, num_values * 2));
    uint16_t* halves = (uint16_t*)c->temp;
    for (int64_t i = 0; i < num_values; i++) {
        halves[i] = type == DYNAPIPE_FLOAT16 ? half_to_float16(from[i]) : half_to_bfloat16(from[i]);
    }
    return check_copy(c, to, halves, num_values * 2);
}

// STATUS_MISMATCH where values differ by more than `tolerance` of the larger of both and the array's root
// mean square: "<what>: value 17 of 640: 0.25 expected, 0.5 found; 12 of them differ ---> <remedy>", with the
// value that differs most. NaN always differs.
static Status check_same(const float* expected, const float* found, int64_t num_values, double tolerance,
                         const char* remedy, const char* what, ...) __attribute__((format(printf, 6, 7)));
static Status check_same(const float* expected, const float* found, int64_t num_values, double tolerance,
                         const char* remedy, const char* what, ...) {
    double squares = 0, worst = 0;
    int64_t num_off = 0, at = 0;
    for (int64_t i = 0; i < num_values; i++) {
        if (isfinite(expected[i])) { squares += (double)expected[i] * expected[i]; }
    }
    double typical = num_values > 0 ? sqrt(squares / (double)num_values) : 0;
    for (int64_t i = 0; i < num_values; i++) {
        double a = expected[i], b = found[i], larger = fabs(a) > fabs(b) ? fabs(a) : fabs(b);
        double off = fabs(a - b) / (larger + typical + 1e-30);
        if (isnan(off)) { off = INFINITY; }
        if (off <= tolerance) { continue; }
        if (num_off++ == 0 || off > worst) {
            worst = off;
            at = i;
        }
    }
    if (num_off == 0) { return STATUS_OK; }
    char words[320];
    va_list args;
    va_start(args, what);
    vsnprintf(words, sizeof words, what, args);
    va_end(args);
    return FAIL(STATUS_MISMATCH,
                "%s: value %lld of %lld: %.6g expected, %.6g found; %lld of them differ ---> %s", words,
                (long long)at, (long long)num_values, (double)expected[at], (double)found[at],
                (long long)num_off, remedy);
}

static Status check_numbers(const float* values, int64_t num_values, const char* what, const char* remedy) {
    for (int64_t i = 0; i < num_values; i++) {
        if (isfinite(values[i])) { continue; }
        return FAIL(STATUS_MISMATCH, "%s: value %lld of %lld is not a number ---> %s", what, (long long)i,
                    (long long)num_values, remedy);
    }
    return STATUS_OK;
}

// --- ranges of the model -----------------------------------------------------------------------------------

static Status check_range_params(const CheckRange* range) {
    const DynapipeParams_v1* params = &range->params;
    TRY(interface_check_params(params));
    int begin = range->blocks.begin, end = range->blocks.end;
    bool types_are_known = params->param_type >= DYNAPIPE_FLOAT32 && params->param_type <= DYNAPIPE_FLOAT16 &&
                           params->grad_type >= DYNAPIPE_FLOAT32 && params->grad_type <= DYNAPIPE_FLOAT16;
    if (!types_are_known) {
        return FAIL(STATUS_MISMATCH,
                    "blocks [%d, %d): param_type %d, grad_type %d ---> values of DynapipeType", begin, end,
                    (int)params->param_type, (int)params->grad_type);
    }
    if (params->num_tied < 0 || (params->num_tied > 0 && params->tied == NULL)) {
        return FAIL(STATUS_MISMATCH,
                    "blocks [%d, %d): %d tied groups, but no list of them ---> params->tied lists them",
                    begin, end, (int)params->num_tied);
    }
    for (int32_t i = 0; i < params->num_tied; i++) {
        const DynapipeTied* tied = &params->tied[i];
        int64_t tied_end = tied->begin + tied->count;
        if (tied->group >= 0 && tied->begin >= 0 && tied->count > 0 && tied_end <= params->num_params) {
            continue;
        }
        return FAIL(STATUS_MISMATCH,
                    "blocks [%d, %d): tied group %d is values [%lld, %lld) of %lld ---> begin and count are "
                    "values (not bytes) of this range's own array",
                    begin, end, (int)tied->group, (long long)tied->begin, (long long)tied_end,
                    (long long)params->num_params);
    }
    return STATUS_OK;
}

static const char* check_why(const Checker* c) {
    return c->blocks->why != NULL ? c->blocks->why(c->blocks->ctx) : "no message (blocks->why is NULL)";
}

static Status check_range(Checker* c, CheckRange** out, DynapipeRange blocks, bool has_values) {
    CheckRange* range;
    CHECK_NEW(range, CheckRange, 1);
    range->blocks = blocks;
    int code = c->blocks->make(c->blocks->ctx, blocks, has_values, &range->model, &range->params);
    if (code != 0) {
        return FAIL(
            STATUS_MISMATCH,
            "make() of blocks [%d, %d) of %d returned error %d: %s ---> a stage may be any contiguous "
            "blocks; block 0 is the embedding, block %d the head",
            (int)blocks.begin, (int)blocks.end, (int)c->num_blocks, code, check_why(c),
            (int)c->num_blocks - 1);
    }
    range->next = c->ranges;
    c->ranges = range;
    *out = range;
    TRY(check_range_params(range));
    if (!has_values || (range->params.params != NULL && range->params.grads != NULL)) { return STATUS_OK; }
    return FAIL(STATUS_MISMATCH,
                "make() of blocks [%d, %d) gave no %s ---> with has_values 1 it fills params->params and "
                "params->grads",
                (int)blocks.begin, (int)blocks.end,
                range->params.params == NULL ? "parameters" : "gradients");
}

// cuts: blocks that a range begins with, ascending, without 0.
static Status check_chain(Checker* c, CheckChain* out, const int32_t* cuts, int32_t num_cuts) {
    *out = (CheckChain){.num_ranges = num_cuts + 1};
    CHECK_NEW(out->ranges, CheckRange*, num_cuts + 1);
    for (int32_t r = 0; r <= num_cuts; r++) {
        DynapipeRange blocks = {.begin = r > 0 ? cuts[r - 1] : 0,
                                .end = r < num_cuts ? cuts[r] : c->num_blocks};
        TRY(check_range(c, &out->ranges[r], blocks, true));
        out->ranges[r]->begin = out->num_values;
        out->num_values += out->ranges[r]->params.num_params;
    }
    return STATUS_OK;
}

// Where the model can be cut: the embedding is no stage alone, a decoder's embedding goes with the next
// layer.
static Status check_cuts(Checker* c, int32_t** out, int32_t* num_cuts) {
    CHECK_NEW(*out, int32_t, c->num_blocks);
    *num_cuts = 0;
    for (int32_t b = 2; b < c->num_blocks; b++) {
        bool after_dec_embedding = c->blocks->num_dec_layers > 0 && b == c->blocks->num_layers + 2;
        bool is_head = b == c->num_blocks - 1;
        if (after_dec_embedding || (is_head && c->blocks->shapes.head_has_layer)) { continue; }
        (*out)[(*num_cuts)++] = b;
    }
    return STATUS_OK;
}

static Status check_smallest_ranges(Checker* c, CheckChain* out) {
    int32_t *cuts, num_cuts;
    TRY(check_cuts(c, &cuts, &num_cuts));
    return check_chain(c, out, cuts, num_cuts);
}

// The first range of the chain with a copy of that group, and its values there.
static const DynapipeTied* check_first_copy(const CheckChain* chain, int32_t group, int32_t* out) {
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        const DynapipeParams_v1* params = &chain->ranges[r]->params;
        for (int32_t i = 0; i < params->num_tied; i++) {
            *out = r;
            if (params->tied[i].group == group) { return &params->tied[i]; }
        }
    }
    return NULL;
}

static void check_zero_gradients(const Checker* c, const CheckChain* chain) {
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        c->blocks->api->zero_gradients(chain->ranges[r]->model);
    }
}

static Status check_read_all(Checker* c, const CheckChain* chain, bool gradients, float** out) {
    CHECK_NEW(*out, float, chain->num_values);
    float* to = *out;
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        const DynapipeParams_v1* params = &chain->ranges[r]->params;
        TRY(check_read(c, to, gradients ? params->grads : params->params,
                       gradients ? params->grad_type : params->param_type, params->num_params));
        to += params->num_params;
    }
    return STATUS_OK;
}

// All of the chain's, range by range: (chain->num_values).
static Status check_params(Checker* c, const CheckChain* chain, float** out) {
    return check_read_all(c, chain, false, out);
}

static Status check_gradients(Checker* c, const CheckChain* chain, float** out) {
    return check_read_all(c, chain, true, out);
}

static Status check_same_gradients(const CheckChain* chain, const float* expected, const float* found,
                                   double tolerance, const char* what, const char* remedy) {
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        const CheckRange* range = chain->ranges[r];
        TRY(check_same(expected, found, range->params.num_params, tolerance, remedy,
                       "%s: gradients of blocks [%d, %d)", what, BLOCKS(range)));
        expected += range->params.num_params;
        found += range->params.num_params;
    }
    return STATUS_OK;
}

// --- micro-batches ---------------------------------------------------------------------------------------

// Tokens, targets and keys follow from `id`: the same wherever the sequence stands.
typedef struct {
    int32_t id, num_tokens, num_dec_tokens;
    int32_t num_rows;  // the last ones are supervised (of the decoder, if there is one)
} CheckSequence;

typedef struct {
    DynapipeBatch batch;
    char what[112];  // "2 sequences of 5, 3 tokens, padded to 8"
} CheckBatch;

enum { CHECK_STANDARD = 3, CHECK_MOST_SEQUENCES = 4 };

// Gradients of a row's loss are multiplied by it: a power of two, so that doubling it is exact.
#define LOSS_SCALE 0.125F

static int32_t check_length(const Checker* c, int32_t num_tokens) {
    int32_t most = c->blocks->max_seq_tokens;
    return most > 0 && num_tokens > most ? most : num_tokens;
}

static int32_t length_of(const CheckSequence* sequence, bool is_decoder) {
    return is_decoder ? sequence->num_dec_tokens : sequence->num_tokens;
}

// What windows are padded to; 0: they are not.
static int32_t padded_tokens(const Checker* c, const CheckSequence* sequences, int32_t num_sequences,
                             bool is_decoder, int32_t padding) {
    const ShapeRules rules = session_rules(&c->blocks->shapes);
    int32_t longest = 0;
    if (!rules.padded && padding == 0) { return 0; }
    for (int32_t i = 0; i < num_sequences; i++) {
        int32_t length = length_of(&sequences[i], is_decoder);
        if (length > longest) { longest = length; }
    }
    return (int32_t)shape_rules_round(&rules, check_length(c, longest + padding), num_sequences);
}

// Within the kernels' limits?
static bool is_allowed(const Checker* c, const CheckSequence* sequences, int32_t num_sequences,
                       int32_t padding) {
    const ShapeRules rules = session_rules(&c->blocks->shapes);
    const bool has_decoder = c->blocks->num_dec_layers > 0;
    int32_t T = padded_tokens(c, sequences, num_sequences, false, padding);
    int32_t dec_T = has_decoder ? padded_tokens(c, sequences, num_sequences, true, padding) : 0;
    MbShape shape = {0};
    for (int32_t i = 0; i < num_sequences; i++) {
        int32_t length = length_of(&sequences[i], false), dec_length = length_of(&sequences[i], true);
        mb_shape_add(&shape, T > 0 ? T : length, dec_T > 0 ? dec_T : dec_length, 0);
    }
    return shape_rules_allow(&rules, &shape);
}

static void shorten(CheckSequence* sequence, int32_t num_tokens, bool has_decoder) {
    if (sequence->num_tokens > num_tokens) { sequence->num_tokens = num_tokens; }
    if (sequence->num_dec_tokens > num_tokens) { sequence->num_dec_tokens = num_tokens; }
    int32_t supervised = length_of(sequence, has_decoder);
    if (sequence->num_rows > supervised) { sequence->num_rows = supervised; }
}

// One sequence; four, of which one is not supervised; a long and a short one, with sizes that need no
// rounding.
static int32_t check_standard(const Checker* c, CheckSequence out[CHECK_MOST_SEQUENCES], int32_t idx) {
    static const struct {
        int32_t num_sequences;
        CheckSequence sequences[CHECK_MOST_SEQUENCES];  // id, tokens, decoder's, rows
    } standard[CHECK_STANDARD] = {
        {1, {{1, 7, 4, 3}}},
        {4, {{2, 5, 3, 2}, {3, 1, 2, 1}, {4, 3, 1, 0}, {5, 4, 5, 4}}},
        {2, {{6, 30, 2, 15}, {7, 2, 30, 1}}},  // 32 tokens, 16 rows: what sizes are rounded up to
    };
    const bool has_decoder = c->blocks->num_dec_layers > 0;
    int32_t num_sequences = standard[idx].num_sequences, longest = 0;
    for (int32_t i = 0; i < num_sequences; i++) {
        out[i] = standard[idx].sequences[i];
        if (!has_decoder) { out[i].num_dec_tokens = 0; }
        shorten(&out[i], check_length(c, INT32_MAX), has_decoder);
        if (out[i].num_tokens > longest) { longest = out[i].num_tokens; }
        if (out[i].num_dec_tokens > longest) { longest = out[i].num_dec_tokens; }
    }
    while (num_sequences > 1 && !is_allowed(c, out, num_sequences, 0)) { num_sequences--; }
    while (longest > 1 && !is_allowed(c, out, num_sequences, 0)) { shorten(&out[0], --longest, has_decoder); }
    return num_sequences;
}

// One side of a micro-batch, encoder or decoder.
typedef struct {
    int32_t *cu_seqlens, *tokens, *positions, *seq_lens;
    uint32_t* keys;
    int32_t num_tokens, longest;
    int64_t num_squares;
    bool has_padding;
} Side;

static Status make_side(Checker* c, Side* side, const CheckSequence* sequences, int32_t num_sequences,
                        bool is_decoder, int32_t T) {
    int32_t most = 0;
    for (int32_t i = 0; i < num_sequences; i++) { most += T > 0 ? T : length_of(&sequences[i], is_decoder); }
    *side = (Side){0};
    CHECK_NEW(side->cu_seqlens, int32_t, num_sequences + 1);
    CHECK_NEW(side->tokens, int32_t, most);
    CHECK_NEW(side->positions, int32_t, most);
    CHECK_NEW(side->seq_lens, int32_t, num_sequences);
    CHECK_NEW(side->keys, uint32_t, most);
    for (int32_t i = 0; i < num_sequences; i++) {
        Rng rng = rng_seed((uint64_t)sequences[i].id * 2 + is_decoder);
        int32_t length = length_of(&sequences[i], is_decoder), window = T > 0 ? T : length;
        for (int32_t t = 0; t < window; t++) {
            int32_t at = side->num_tokens + t;
            side->tokens[at] = rng_between(&rng, 0, c->blocks->vocab - 1);
            side->positions[at] = t;
            side->keys[at] = (uint32_t)rng_u64(&rng);
        }
        side->seq_lens[i] = length;
        side->has_padding |= window > length;
        side->num_tokens += window;
        side->num_squares += (int64_t)window * window;
        side->cu_seqlens[i + 1] = side->num_tokens;
        if (window > side->longest) { side->longest = window; }
    }
    return STATUS_OK;
}

static Status make_rows(Checker* c, DynapipeBatch* batch, const Side* side, const CheckSequence* sequences) {
    int32_t *rows, *targets, *tasks;
    CHECK_NEW(rows, int32_t, side->num_tokens);
    CHECK_NEW(targets, int32_t, side->num_tokens);
    CHECK_NEW(tasks, int32_t, side->num_tokens);
    for (int32_t i = 0; i < batch->num_seqs; i++) {
        Rng rng = rng_seed((uint64_t)sequences[i].id + 1000003);
        for (int32_t left = sequences[i].num_rows; left > 0; left--) {  // counted from the sequence's end
            rows[batch->num_rows] = side->cu_seqlens[i] + side->seq_lens[i] - left;
            targets[batch->num_rows++] = rng_between(&rng, 0, c->blocks->vocab - 1);
        }
    }
    batch->rows = rows;
    batch->targets = targets;
    batch->row_tasks = tasks;
    return STATUS_OK;
}

static void describe(CheckBatch* out, const CheckSequence* sequences, bool has_decoder, int32_t T) {
    int32_t num_seqs = out->batch.num_seqs;
    size_t room = sizeof out->what;  // for 4 sequences at most
    int used = snprintf(out->what, room, "%d sequence%s of ", (int)num_seqs, num_seqs > 1 ? "s" : "");
    for (int32_t i = 0; i < num_seqs; i++) {
        used += snprintf(out->what + used, room - (size_t)used, i > 0 ? ", %d" : "%d",
                         (int)sequences[i].num_tokens);
        if (!has_decoder) { continue; }
        used += snprintf(out->what + used, room - (size_t)used, "+%d", (int)sequences[i].num_dec_tokens);
    }
    used += snprintf(out->what + used, room - (size_t)used, " tokens");
    if (T > 0) { snprintf(out->what + used, room - (size_t)used, ", padded to %d", (int)T); }
}

// padding: windows are that many tokens longer than the longest; 0: as the shapes ask, else ragged.
static Status check_batch(Checker* c, CheckBatch** out, const CheckSequence* sequences, int32_t num_sequences,
                          int32_t padding) {
    bool has_decoder = c->blocks->num_dec_layers > 0;
    Side enc, dec = {0};
    while (padding > 0 && !is_allowed(c, sequences, num_sequences, padding)) { padding--; }
    int32_t T = padded_tokens(c, sequences, num_sequences, false, padding);
    TRY(make_side(c, &enc, sequences, num_sequences, false, T));
    if (c->blocks->max_seq_tokens > 0 && enc.longest > c->blocks->max_seq_tokens) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "windows must be padded to %d tokens, max_seq_tokens is %d ---> check a model that takes "
                    "longer sequences",
                    (int)enc.longest, (int)c->blocks->max_seq_tokens);
    }
    CHECK_NEW(*out, CheckBatch, 1);
    DynapipeBatch* batch = &(*out)->batch;
    batch->num_seqs = num_sequences;
    batch->num_tokens = enc.num_tokens;
    batch->max_seq_tokens = enc.longest;
    batch->num_squares = enc.num_squares;
    batch->cu_seqlens = enc.cu_seqlens;
    batch->tokens = enc.tokens;
    batch->positions = enc.positions;
    batch->seq_lens = enc.has_padding ? enc.seq_lens : NULL;
    batch->token_keys = enc.keys;
    batch->loss_scale = LOSS_SCALE;
    if (has_decoder) {
        TRY(make_side(c, &dec, sequences, num_sequences, true,
                      padded_tokens(c, sequences, num_sequences, true, padding)));
        batch->num_dec_tokens = dec.num_tokens;
        batch->max_dec_seq_tokens = dec.longest;
        batch->num_dec_squares = dec.num_squares;
        batch->dec_cu_seqlens = dec.cu_seqlens;
        batch->dec_tokens = dec.tokens;
        batch->dec_positions = dec.positions;
        batch->dec_seq_lens = dec.has_padding ? dec.seq_lens : NULL;
        batch->dec_token_keys = dec.keys;
    }
    for (int32_t i = 0; i < num_sequences && has_decoder; i++) {
        batch->num_cross += (int64_t)(enc.cu_seqlens[i + 1] - enc.cu_seqlens[i]) *
                            (dec.cu_seqlens[i + 1] - dec.cu_seqlens[i]);
    }
    describe(*out, sequences, has_decoder, T);
    return make_rows(c, batch, has_decoder ? &dec : &enc, sequences);
}

static Status check_standard_batch(Checker* c, CheckBatch** out, int32_t idx, int32_t padding) {
    CheckSequence sequences[CHECK_MOST_SEQUENCES];
    int32_t num_sequences = check_standard(c, sequences, idx);
    return check_batch(c, out, sequences, num_sequences, padding);
}

// --- jobs ------------------------------------------------------------------------------------------------

// One micro-batch on its way through a chain. Every range has its own buffers: what its neighbour gets is
// copied.
typedef struct {
    CheckBuffer *acts[4], *in, *out, *din, *dout, *scratch;  // acts by flags
} PassRange;

typedef struct {
    const CheckChain* chain;
    const CheckBatch* of;
    PassRange* at;        // [num_ranges]
    CheckBuffer* losses;  // (num_rows), host
} CheckPass;

typedef enum { CALL_FORWARD, CALL_BACKWARD_INPUTS, CALL_BACKWARD_WEIGHTS, CALL_FINISH } CallKind;

enum { MOST_USES = 7 };

// One call of the model: its buffers.
typedef struct {
    CallKind kind;
    const CheckRange* range;
    const CheckBatch* of;
    struct {
        const char* name;
        CheckBuffer* buffer;
        unsigned char* before;  // contents that the call may only read; NULL: it may write
    } uses[MOST_USES];
    int num_uses;
} CheckCall;

static const char* call_name(CallKind kind) {
    static const char* const names[] = {"forward", "backward_inputs", "backward_weights", "finish"};
    return names[kind];
}

static void* call_use(CheckCall* call, const char* name, CheckBuffer* buffer) {
    if (buffer == NULL) { return NULL; }
    call->uses[call->num_uses].name = name;
    call->uses[call->num_uses].before = NULL;
    call->uses[call->num_uses++].buffer = buffer;
    return buffer->data;
}

static Status call_read(Checker* c, CheckCall* call, const char* name, CheckBuffer* buffer,
                        const void** out) {
    *out = call_use(call, name, buffer);
    if (buffer == NULL || c->is_fast) { return STATUS_OK; }
    unsigned char* copy;
    CHECK_NEW(copy, unsigned char, buffer->num_bytes);
    call->uses[call->num_uses - 1].before = copy;
    return check_copy(c, copy, buffer->data, buffer->num_bytes);
}

static const char* overrun_remedy(const char* buffer) {
    if (strcmp(buffer, "acts") == 0) {
        return "acts_bytes() returns less than is used for these flags, or an index runs over num_tokens";
    }
    if (strcmp(buffer, "scratch") == 0) {
        return "scratch_bytes() is what the neediest of forward, backward_inputs and backward_weights uses";
    }
    if (strcmp(buffer, "losses") == 0) { return "one loss for each supervised row, not for each token"; }
    return "boundary_bytes() returns less than is written there";
}

// Guards are intact, and read-only buffers are unchanged.
static Status call_check_buffers(Checker* c, const CheckCall* call) {
    int begin = call->range->blocks.begin, end = call->range->blocks.end;
    for (int i = 0; i < call->num_uses; i++) {
        const CheckBuffer* buffer = call->uses[i].buffer;
        int64_t before = 0, after = 0;
        TRY(check_damage(c, buffer, &before, &after));
        if (before == 0 && after == 0) { continue; }
        c->guards_are_known = true;
        return FAIL(
            STATUS_MISMATCH,
            "%s of blocks [%d, %d) wrote at least %lld bytes %s its %s (%s; %lld bytes were asked for) "
            "---> %s",
            call_name(call->kind), begin, end, (long long)(after > 0 ? after : before),
            after > 0 ? "after" : "before", call->uses[i].name, call->of->what, (long long)buffer->num_bytes,
            overrun_remedy(call->uses[i].name));
    }
    for (int i = 0; i < call->num_uses; i++) {
        const CheckBuffer* buffer = call->uses[i].buffer;
        if (call->uses[i].before == NULL) { continue; }
        TRY(check_temp(c, buffer->num_bytes + 1));
        TRY(check_copy(c, c->temp, buffer->data, buffer->num_bytes));
        if (memcmp(c->temp, call->uses[i].before, (size_t)buffer->num_bytes) == 0) { continue; }
        return FAIL(STATUS_MISMATCH,
                    "%s of blocks [%d, %d) changed its %s (%s) ---> it may only be read: it is read again "
                    "later, or being sent to another rank",
                    call_name(call->kind), begin, end, call->uses[i].name, call->of->what);
    }
    return STATUS_OK;
}

static Status call_end(Checker* c, const CheckCall* call, int code) {
    const DynapipeModel_v1* api = c->blocks->api;
    CallKind kind = call->kind;
    if (code == 0 && api->finish != NULL && !c->is_queued) {
        code = api->finish(call->range->model);
        kind = CALL_FINISH;
    }
    if (code != 0) {
        return FAIL(STATUS_MISMATCH, "%s of blocks [%d, %d) returned error %d (%s) %s", call_name(kind),
                    BLOCKS(call->range), code, call->of->what, check_why(c));
    }
    return c->is_fast ? STATUS_OK : call_check_buffers(c, call);
}

static Status check_pass(Checker* c, CheckPass* out, const CheckChain* chain, const CheckBatch* of) {
    const DynapipeModel_v1* api = c->blocks->api;
    const DynapipeBatch* batch = &of->batch;
    *out = (CheckPass){.chain = chain, .of = of};
    CHECK_NEW(out->at, PassRange, chain->num_ranges);
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        const CheckRange* range = chain->ranges[r];
        PassRange* at = &out->at[r];
        TRY(check_buffer(c, &at->scratch, api->scratch_bytes(range->model, batch), false));
        if (r == 0) { continue; }
        const CheckRange* before = chain->ranges[r - 1];
        int64_t enter_bytes = api->boundary_bytes(range->model, batch, 0);
        int64_t leave_bytes = api->boundary_bytes(before->model, batch, 1);
        TRY(check_buffer(c, &at->in, enter_bytes, false));
        TRY(check_buffer(c, &at->din, enter_bytes, false));
        if (enter_bytes != leave_bytes) {
            return FAIL(
                STATUS_MISMATCH,
                "%s: %lld bytes leave blocks [%d, %d), %lld enter [%d, %d) ---> boundary_bytes(is_behind "
                "1) of the one and (0) of the other are the same activation",
                of->what, (long long)leave_bytes, BLOCKS(before), (long long)enter_bytes, BLOCKS(range));
        }
        TRY(check_buffer(c, &at[-1].out, leave_bytes, false));
        TRY(check_buffer(c, &at[-1].dout, leave_bytes, false));
    }
    return check_buffer(c, &out->losses, batch->num_rows * (int64_t)sizeof(float), true);
}

static const float* pass_losses(const CheckPass* pass) {
    return (const float*)(const void*)pass->losses->data;
}

// One job of one range. flags: of a forward. again: as when an executor recomputes, `out` is NULL and `in` as
// before.
static Status pass_call(Checker* c, CheckPass* pass, int32_t r, CallKind kind, int flags, bool again) {
    const DynapipeModel_v1* api = c->blocks->api;
    const DynapipeBatch* batch = &pass->of->batch;
    const CheckRange* range = pass->chain->ranges[r];
    PassRange* at = &pass->at[r];
    bool is_last = r == pass->chain->num_ranges - 1, is_forward = kind == CALL_FORWARD;
    bool has_losses = is_forward && is_last && (flags & DYNAPIPE_FORWARD_HEAD);
    CheckBuffer** kept = &at->acts[is_forward ? flags : CHECK_KEEP];
    CheckBuffer* written = is_forward                     ? (again ? NULL : at->out)
                           : kind == CALL_BACKWARD_INPUTS ? at->din
                                                          : NULL;
    if (*kept == NULL) { TRY(check_buffer(c, kept, api->acts_bytes(range->model, batch, flags), false)); }
    if (is_forward) { TRY(check_spoil(c, *kept)); }
    if (is_forward && is_last) { TRY(check_spoil(c, pass->losses)); }
    TRY(check_spoil(c, at->scratch));
    TRY(check_spoil(c, written));
    CheckCall call = {.kind = kind, .range = range, .of = pass->of};
    const void *in = NULL, *dout = NULL;
    if (kind != CALL_BACKWARD_WEIGHTS) { TRY(call_read(c, &call, "in", at->in, &in)); }
    if (!is_forward) { TRY(call_read(c, &call, "dout", at->dout, &dout)); }
    void* to = call_use(&call, is_forward ? "out" : "din", written);
    void* acts = call_use(&call, "acts", *kept);
    void* scratch = call_use(&call, "scratch", at->scratch);
    float* losses = has_losses ? (float*)call_use(&call, "losses", pass->losses) : NULL;
    int code = is_forward ? api->forward(range->model, batch, in, to, acts, scratch, losses, flags)
               : kind == CALL_BACKWARD_INPUTS
                   ? api->backward_inputs(range->model, batch, in, acts, dout, to, scratch)
                   : api->backward_weights(range->model, batch, acts, dout, scratch);
    TRY(call_end(c, &call, code));
    if (is_forward && written != NULL) {
        return check_copy(c, at[1].in->data, written->data, written->num_bytes);
    }
    if (kind != CALL_BACKWARD_INPUTS || r == 0) { return STATUS_OK; }
    TRY(check_copy(c, at[-1].dout->data, at->din->data, at->din->num_bytes));
    TRY(check_spoil(c, at->din));
    return check_spoil(c, at->in);  // its memory is reused from here on
}

static Status pass_forward(Checker* c, CheckPass* pass, int flags, bool again) {
    for (int32_t r = 0; r < pass->chain->num_ranges; r++) {
        TRY(pass_call(c, pass, r, CALL_FORWARD, flags, again));
    }
    return STATUS_OK;
}

static Status pass_backward_inputs(Checker* c, CheckPass* pass) {
    for (int32_t r = pass->chain->num_ranges - 1; r >= 0; r--) {
        TRY(pass_call(c, pass, r, CALL_BACKWARD_INPUTS, CHECK_KEEP, false));
    }
    return STATUS_OK;
}

static Status pass_backward_weights(Checker* c, CheckPass* pass) {
    for (int32_t r = pass->chain->num_ranges - 1; r >= 0 && c->blocks->api->backward_weights != NULL; r--) {
        TRY(pass_call(c, pass, r, CALL_BACKWARD_WEIGHTS, CHECK_KEEP, false));
    }
    return STATUS_OK;
}

static Status pass_step(Checker* c, CheckPass* pass) {
    TRY(pass_forward(c, pass, CHECK_KEEP, false));
    TRY(pass_backward_inputs(c, pass));
    return pass_backward_weights(c, pass);
}

// Moves acts for backward to another place; the old place is overwritten.
static Status pass_move_acts(Checker* c, CheckPass* pass) {
    for (int32_t r = 0; r < pass->chain->num_ranges; r++) {
        CheckBuffer *from = pass->at[r].acts[CHECK_KEEP], *to;
        TRY(check_buffer(c, &to, from->num_bytes, false));
        TRY(check_copy(c, to->data, from->data, from->num_bytes));
        TRY(check_spoil(c, from));
        pass->at[r].acts[CHECK_KEEP] = to;
    }
    return STATUS_OK;
}

static Status pass_copy_losses(Checker* c, const CheckPass* pass, float** out) {
    CHECK_NEW(*out, float, pass->of->batch.num_rows);
    memcpy(*out, pass->losses->data, (size_t)pass->losses->num_bytes);
    return STATUS_OK;
}

static Status pass_same_losses(const CheckPass* pass, const float* expected, const char* what,
                               const char* remedy, double tolerance) {
    return check_same(expected, pass_losses(pass), pass->of->batch.num_rows, tolerance, remedy,
                      "losses of %s (%s)", what, pass->of->what);
}

// From zero: the gradients of one microbatch.
static Status pass_gradients(Checker* c, CheckPass* pass, float** out) {
    check_zero_gradients(c, pass->chain);
    TRY(pass_step(c, pass));
    return check_gradients(c, pass->chain, out);
}

// The results of a micro-batch on a chain.
typedef struct {
    float *losses, *gradients;  // (rows), (chain's values)
} Results;

static Status check_run(Checker* c, Results* out, const CheckChain* chain, const CheckBatch* batch) {
    CheckPass pass;
    TRY(check_pass(c, &pass, chain, batch));
    TRY(pass_gradients(c, &pass, &out->gradients));
    return pass_copy_losses(c, &pass, &out->losses);
}

// --- laws of sizes ---------------------------------------------------------------------------------------

// Sums of gradients in another order differ by some hundreds of roundings of float32; where values have 8 or
// 11 bits, activations do too, and fewer may add up.
static void set_tolerance(Checker* c, const DynapipeParams_v1* params) {
    static const double epsilons[] = {0x1p-24, 0x1p-8, 0x1p-11};  // by DynapipeType
    c->epsilon = fmax(epsilons[params->param_type], epsilons[params->grad_type]);
    c->tolerance = c->epsilon * (c->epsilon < 0x1p-20 ? 512 : 16);
}

// A tied copy is as long, and holds the same values, as the first one of the chain.
static Status check_tied_copy(Checker* c, const CheckChain* chain, int32_t r, const DynapipeTied* tied) {
    int32_t first = 0;
    const DynapipeTied* both[2] = {check_first_copy(chain, tied->group, &first), tied};
    const CheckRange* ranges[2] = {chain->ranges[first], chain->ranges[r]};
    const DynapipeRange *a = &ranges[0]->blocks, *b = &ranges[1]->blocks;
    float* values[2];
    if (first == r) { return STATUS_OK; }
    if (both[0]->count != tied->count) {
        return FAIL(STATUS_MISMATCH,
                    "tied group %d has %lld values in blocks [%d, %d), %lld in [%d, %d) ---> all copies of a "
                    "group have the same count",
                    (int)tied->group, (long long)both[0]->count, (int)a->begin, (int)a->end,
                    (long long)tied->count, (int)b->begin, (int)b->end);
    }
    for (int i = 0; i < 2; i++) {
        const DynapipeParams_v1* params = &ranges[i]->params;
        CHECK_NEW(values[i], float, tied->count);
        TRY(check_read(c, values[i],
                       (const char*)params->params + both[i]->begin * check_value_bytes(params->param_type),
                       params->param_type, tied->count));
    }
    if (memcmp(values[0], values[1], (size_t)tied->count * sizeof(float)) == 0) { return STATUS_OK; }
    return FAIL(
        STATUS_MISMATCH,
        "the copies of tied group %d in blocks [%d, %d) and [%d, %d) hold different values ---> make() "
        "gives a block the same values in every range; do params->tied's begins point at the tensor?",
        (int)tied->group, (int)a->begin, (int)a->end, (int)b->begin, (int)b->end);
}

static Status check_cut_sizes(Checker* c, const CheckRange* whole, int32_t cut) {
    CheckChain chain;
    TRY(check_chain(c, &chain, &cut, 1));
    int64_t num_copies = 0;
    for (int32_t r = 0; r < 2; r++) {
        const DynapipeParams_v1* params = &chain.ranges[r]->params;
        for (int32_t i = 0; i < params->num_tied; i++) {
            int32_t first = 0;
            (void)check_first_copy(&chain, params->tied[i].group, &first);
            if (first != r) { num_copies += params->tied[i].count; }
            TRY(check_tied_copy(c, &chain, r, &params->tied[i]));
        }
    }
    if (chain.num_values - num_copies != whole->params.num_params) {
        return FAIL(
            STATUS_MISMATCH,
            "blocks [0, %d) and [%d, %d) have %lld parameters without %lld of tied copies, the whole "
            "model has %lld ---> every tensor is in one range, or in params->tied of each that has it",
            (int)cut, (int)cut, (int)c->num_blocks, (long long)(chain.num_values - num_copies),
            (long long)num_copies, (long long)whole->params.num_params);
    }
    for (int32_t i = 0; i < CHECK_STANDARD; i++) {
        CheckBatch* batch;
        CheckPass pass;
        TRY(check_standard_batch(c, &batch, i, 0));
        TRY(check_pass(c, &pass, &chain, batch));  // which compares boundaries
    }
    return STATUS_OK;
}

static Status law_ranges(Checker* c) {
    CheckRange *whole, *without;
    int32_t *cuts, num_cuts;
    const DynapipeRange all = {.begin = 0, .end = c->num_blocks};
    TRY(check_cuts(c, &cuts, &num_cuts));
    TRY(check_range(c, &whole, all, true));
    set_tolerance(c, &whole->params);
    TRY(check_range(c, &without, all, false));
    if (without->params.num_params != whole->params.num_params) {
        return FAIL(STATUS_MISMATCH,
                    "blocks [%d, %d): make() counts %lld parameters with has_values 0, %lld with 1 ---> only "
                    "memory may be left out, no count",
                    (int)all.begin, (int)all.end, (long long)without->params.num_params,
                    (long long)whole->params.num_params);
    }
    for (int32_t i = 0; i < num_cuts; i++) { TRY(check_cut_sizes(c, whole, cuts[i])); }
    return STATUS_OK;
}

enum { NUM_SIZES = 6 };
static const char* const size_names[NUM_SIZES] = {
    "acts_bytes() with flags 0", "acts_bytes() with HEAD",        "acts_bytes() with KEEP | HEAD",
    "scratch_bytes()",           "boundary_bytes() after blocks", "boundary_bytes() before blocks"};

static void ask_sizes(int64_t out[NUM_SIZES], const Checker* c, const CheckRange* range,
                      const DynapipeBatch* batch) {
    const DynapipeModel_v1* api = c->blocks->api;
    bool is_first = range->blocks.begin == 0, is_last = range->blocks.end == c->num_blocks;
    out[0] = api->acts_bytes(range->model, batch, 0);
    out[1] = api->acts_bytes(range->model, batch, DYNAPIPE_FORWARD_HEAD);
    out[2] = api->acts_bytes(range->model, batch, CHECK_KEEP);
    out[3] = api->scratch_bytes(range->model, batch);
    out[4] = is_last ? 0 : api->boundary_bytes(range->model, batch, 1);
    out[5] = is_first ? 0 : api->boundary_bytes(range->model, batch, 0);
}

// The same counts, other contents.
static Status forget_contents(Checker* c, DynapipeBatch* batch) {
    int32_t* zeros;
    CHECK_NEW(zeros, int32_t, batch->num_tokens + batch->num_dec_tokens + batch->num_seqs + 1);
    batch->cu_seqlens = batch->tokens = batch->positions = zeros;
    batch->rows = batch->targets = batch->row_tasks = zeros;
    batch->token_keys = batch->dec_token_keys = NULL;
    batch->seq_lens = batch->dec_seq_lens = NULL;
    if (batch->num_dec_tokens > 0) {
        batch->dec_cu_seqlens = batch->dec_tokens = batch->dec_positions = zeros;
    }
    return STATUS_OK;
}

// Does b have at least as much of everything?
static bool covers(const DynapipeBatch* b, const DynapipeBatch* a) {
    return b->num_seqs >= a->num_seqs && b->num_tokens >= a->num_tokens && b->num_rows >= a->num_rows &&
           b->max_seq_tokens >= a->max_seq_tokens && b->num_squares >= a->num_squares &&
           b->num_dec_tokens >= a->num_dec_tokens && b->max_dec_seq_tokens >= a->max_dec_seq_tokens &&
           b->num_dec_squares >= a->num_dec_squares && b->num_cross >= a->num_cross;
}

enum { GRID = 36 };  // 3 numbers of sequences, 3 lengths, 2 of the decoder's, 2 of rows

static Status make_grid(Checker* c, CheckBatch** out) {
    static const int32_t seqs[3] = {1, 2, 4}, lengths[3] = {1, 6, 17}, dec_lengths[2] = {1, 5};
    for (int i = 0; i < GRID; i++) {
        CheckSequence sequences[CHECK_MOST_SEQUENCES];
        int32_t num_seqs = seqs[i % 3], num_tokens = check_length(c, lengths[i / 3 % 3]);
        int32_t num_dec_tokens = c->blocks->num_dec_layers > 0 ? dec_lengths[i / 9 % 2] : 0;
        int32_t supervised = num_dec_tokens > 0 ? num_dec_tokens : num_tokens;
        for (int32_t s = 0; s < num_seqs; s++) {
            sequences[s] = (CheckSequence){s, num_tokens, num_dec_tokens, i / 18 == 0 ? 1 : supervised};
        }
        TRY(check_batch(c, &out[i], sequences, num_seqs, 0));
    }
    return STATUS_OK;
}

static Status check_range_bytes(Checker* c, const CheckRange* range, CheckBatch* const* grid) {
    int begin = range->blocks.begin, end = range->blocks.end;
    int64_t sizes[GRID][NUM_SIZES];
    for (int i = 0; i < GRID; i++) {
        int64_t again[NUM_SIZES];
        DynapipeBatch counts = grid[i]->batch;
        ask_sizes(sizes[i], c, range, &counts);
        TRY(forget_contents(c, &counts));
        ask_sizes(again, c, range, &counts);
        for (int k = 0; k < NUM_SIZES; k++) {
            if (sizes[i][k] == again[k]) { continue; }
            return FAIL(STATUS_MISMATCH,
                        "%s of blocks [%d, %d): %lld, and %lld when the arrays hold something else (%s) ---> "
                        "the planner knows the counts only: num_*, max_*",
                        size_names[k], begin, end, (long long)sizes[i][k], (long long)again[k],
                        grid[i]->what);
        }
    }
    for (int pair = 0; pair < GRID * GRID; pair++) {
        int a = pair / GRID, b = pair % GRID;
        for (int k = 0; k < NUM_SIZES && covers(&grid[b]->batch, &grid[a]->batch); k++) {
            if (sizes[b][k] >= sizes[a][k]) { continue; }
            return FAIL(
                STATUS_MISMATCH,
                "%s of blocks [%d, %d): %lld for %s, with %d rows, but %lld for %s, with %d rows ---> "
                "never less for more of anything",
                size_names[k], begin, end, (long long)sizes[a][k], grid[a]->what,
                (int)grid[a]->batch.num_rows, (long long)sizes[b][k], grid[b]->what,
                (int)grid[b]->batch.num_rows);
        }
    }
    return STATUS_OK;
}

static Status law_counts(Checker* c) {
    CheckChain chain;
    CheckBatch* grid[GRID];
    TRY(make_grid(c, grid));
    TRY(check_smallest_ranges(c, &chain));
    for (int32_t r = 0; r < chain.num_ranges; r++) {
        CheckRange* without;
        int64_t with_values[NUM_SIZES], without_values[NUM_SIZES];
        TRY(check_range(c, &without, chain.ranges[r]->blocks, false));
        TRY(check_range_bytes(c, chain.ranges[r], grid));
        ask_sizes(with_values, c, chain.ranges[r], &grid[GRID - 1]->batch);
        ask_sizes(without_values, c, without, &grid[GRID - 1]->batch);
        if (memcmp(with_values, without_values, sizeof with_values) == 0) { continue; }
        return FAIL(
            STATUS_MISMATCH,
            "blocks [%d, %d) ask for other bytes when made with has_values 0 ---> bytes follow from the "
            "model's shape alone",
            BLOCKS(without));
    }
    return STATUS_OK;
}

// --- laws of jobs ----------------------------------------------------------------------------------------

// The standard micro-batches on a model cut into the smallest ranges, or (is_large) into few, in which
// several layers come to share a place.
typedef struct {
    CheckChain chain;
    CheckPass passes[CHECK_STANDARD];
} Setting;

static Status make_setting(Checker* c, Setting* out, bool is_large) {
    int32_t *cuts, num_cuts;
    TRY(check_cuts(c, &cuts, &num_cuts));
    TRY(is_large ? check_chain(c, &out->chain, cuts + num_cuts / 2, num_cuts > 2)
                 : check_chain(c, &out->chain, cuts, num_cuts));
    for (int32_t i = 0; i < CHECK_STANDARD; i++) {
        CheckBatch* batch;
        TRY(check_standard_batch(c, &batch, i, 0));
        TRY(check_pass(c, &out->passes[i], &out->chain, batch));
    }
    return STATUS_OK;
}

static Status check_untouched(Checker* c, const CheckChain* chain, const float* before, bool gradients,
                              const char* function) {
    float* now;
    TRY(check_read_all(c, chain, gradients, &now));
    if (memcmp(before, now, (size_t)chain->num_values * sizeof *now) == 0) { return STATUS_OK; }
    return FAIL(STATUS_MISMATCH, "%s changed %s ---> %s", function, gradients ? "gradients" : "parameters",
                gradients ? "a forward runs more often than its backward (recomputation, validation)"
                          : "parameters are the optimizer's to change, between steps");
}

// Buffers came filled with NaN.
static Status check_all_numbers(Checker* c, const Setting* s) {
    float* gradients;
    for (int32_t i = 0; i < CHECK_STANDARD; i++) {
        TRY(check_numbers(
            pass_losses(&s->passes[i]), s->passes[i].of->batch.num_rows, "losses",
            "forward writes all of losses and out (adds to neither), and reads no acts or scratch "
            "that it has not written"));
    }
    TRY(check_gradients(c, &s->chain, &gradients));
    for (int32_t r = 0; r < s->chain.num_ranges; r++) {
        char what[64];
        const CheckRange* range = s->chain.ranges[r];
        snprintf(what, sizeof what, "gradients of blocks [%d, %d)", BLOCKS(range));
        TRY(check_numbers(
            gradients, range->params.num_params, what,
            "backward_inputs writes all of din (adds nothing to it) and reads acts as forward left "
            "them; backward_weights reads acts as backward_inputs left them, and dout: not "
            "scratch, and not `in`, whose memory has another use by then"));
        gradients += range->params.num_params;
    }
    return STATUS_OK;
}

// Guards are checked after every call.
static Status check_bytes(Checker* c, bool is_large) {
    Setting s;
    float *params, *gradients;
    TRY(make_setting(c, &s, is_large));
    TRY(check_params(c, &s.chain, &params));
    check_zero_gradients(c, &s.chain);
    TRY(check_gradients(c, &s.chain, &gradients));
    for (int32_t i = 0; i < CHECK_STANDARD; i++) {
        TRY(pass_forward(c, &s.passes[i], 0, false));
        TRY(pass_forward(c, &s.passes[i], DYNAPIPE_FORWARD_HEAD, false));
        TRY(pass_forward(c, &s.passes[i], CHECK_KEEP, false));
    }
    TRY(check_untouched(c, &s.chain, gradients, true, "forward"));
    for (int32_t i = 0; i < CHECK_STANDARD; i++) {
        TRY(pass_backward_inputs(c, &s.passes[i]));
        TRY(pass_backward_weights(c, &s.passes[i]));
    }
    TRY(check_untouched(c, &s.chain, params, false, "forward, backward_inputs or backward_weights"));
    return check_all_numbers(c, &s);
}

static Status law_bytes(Checker* c) {
    TRY(check_bytes(c, false));
    return check_bytes(c, true);
}

// `out` of all ranges but the last, as bytes here.
static Status copy_outputs(Checker* c, const CheckPass* pass, unsigned char** out) {
    int64_t num_bytes = 0;
    for (int32_t r = 0; r + 1 < pass->chain->num_ranges; r++) { num_bytes += pass->at[r].out->num_bytes; }
    CHECK_NEW(*out, unsigned char, num_bytes);
    unsigned char* to = *out;
    for (int32_t r = 0; r + 1 < pass->chain->num_ranges; r++) {
        TRY(check_copy(c, to, pass->at[r].out->data, pass->at[r].out->num_bytes));
        to += pass->at[r].out->num_bytes;
    }
    return STATUS_OK;
}

static Status same_outputs(Checker* c, const CheckPass* pass, const unsigned char* expected, const char* what,
                           const char* remedy) {
    unsigned char* found;
    TRY(copy_outputs(c, pass, &found));
    for (int32_t r = 0; r + 1 < pass->chain->num_ranges; r++) {
        int64_t first = 0, num_bytes = pass->at[r].out->num_bytes;
        while (first < num_bytes && expected[first] == found[first]) { first++; }
        if (first < num_bytes) {
            const DynapipeRange* blocks = &pass->chain->ranges[r]->blocks;
            return FAIL(STATUS_MISMATCH,
                        "out of blocks [%d, %d), %s (%s), differs from byte %lld of %lld on ---> %s",
                        (int)blocks->begin, (int)blocks->end, what, pass->of->what, (long long)first,
                        (long long)num_bytes, remedy);
        }
        expected += num_bytes;
        found += num_bytes;
    }
    return STATUS_OK;
}

static Status check_forward_again(Checker* c, CheckPass* pass) {
    static const char* const remedy =
        "same inputs, same bits: does forward read acts or scratch before it has written there, state that "
        "it "
        "left in the model, or a counter of random numbers (batch->token_keys is for dropout)?";
    unsigned char* outputs;
    float *losses, *expected, *found;
    TRY(pass_gradients(c, pass, &expected));
    TRY(copy_outputs(c, pass, &outputs));
    TRY(pass_copy_losses(c, pass, &losses));
    TRY(pass_forward(c, pass, CHECK_KEEP, false));
    TRY(same_outputs(c, pass, outputs, "of the same forward again", remedy));
    TRY(pass_forward(c, pass, DYNAPIPE_FORWARD_HEAD, false));
    TRY(pass_same_losses(pass, losses, "a forward with HEAD alone", "validation calls it so", c->tolerance));
    TRY(pass_forward(c, pass, 0, false));
    TRY(same_outputs(c, pass, outputs, "with flags 0",
                     "flags choose what is kept in acts, not what is computed"));
    check_zero_gradients(c, pass->chain);
    TRY(pass_forward(c, pass, CHECK_KEEP, true));
    TRY(pass_same_losses(pass, losses, "a forward recomputed (out NULL)", remedy, 0));
    TRY(pass_backward_inputs(c, pass));
    TRY(pass_backward_weights(c, pass));
    TRY(check_gradients(c, pass->chain, &found));
    return check_same_gradients(pass->chain, expected, found, c->tolerance, "after a recomputed forward",
                                "with KEEP, acts must hold all that backward reads, also where out is NULL");
}

static Status law_forward(Checker* c) {
    for (int is_large = 0; is_large < 2; is_large++) {
        Setting s;
        TRY(make_setting(c, &s, is_large));
        for (int32_t i = 0; i < CHECK_STANDARD; i++) {
            CheckBatch evaluated = *s.passes[i].of;
            CheckPass pass;
            TRY(check_forward_again(c, &s.passes[i]));
            evaluated.batch.token_keys = evaluated.batch.dec_token_keys = NULL;  // as in validation
            TRY(check_pass(c, &pass, &s.chain, &evaluated));
            TRY(pass_forward(c, &pass, DYNAPIPE_FORWARD_HEAD, false));
        }
    }
    return STATUS_OK;
}

// F1 B1 W1 F2 B2 W2 against F1 F2 B1 B2 W2 W1, each in its own acts, which lie elsewhere before B1 and W2.
static Status law_divided(Checker* c) {
    Setting s;
    float *joint, *divided;
    TRY(make_setting(c, &s, false));
    CheckPass *one = &s.passes[1], *other = &s.passes[2];
    check_zero_gradients(c, &s.chain);
    TRY(pass_step(c, one));
    TRY(pass_step(c, other));
    TRY(check_gradients(c, &s.chain, &joint));
    check_zero_gradients(c, &s.chain);
    TRY(pass_forward(c, one, CHECK_KEEP, false));
    TRY(pass_forward(c, other, CHECK_KEEP, false));
    TRY(pass_move_acts(c, one));
    TRY(pass_backward_inputs(c, one));
    TRY(pass_backward_inputs(c, other));
    TRY(pass_move_acts(c, other));
    TRY(pass_backward_weights(c, other));
    TRY(pass_backward_weights(c, one));
    TRY(check_gradients(c, &s.chain, &divided));
    return check_same_gradients(
        &s.chain, joint, divided, c->tolerance,
        "two micro-batches under way at once, weights' gradients last",
        "what backward needs lies in that micro-batch's acts: not in scratch (another "
        "job writes there), not in the model, not in `in` (gone after backward_inputs); "
        "acts may move: no pointer into them is kept");
}

static Status queue_jobs(Checker* c, CheckPass* one, CheckPass* other) {
    TRY(pass_forward(c, one, CHECK_KEEP, false));
    TRY(pass_forward(c, other, CHECK_KEEP, false));
    TRY(pass_backward_inputs(c, one));
    TRY(pass_backward_inputs(c, other));
    TRY(pass_backward_weights(c, other));
    return pass_backward_weights(c, one);
}

// The jobs of two micro-batches one after the other, in the same scratch, as a stage runs them, with one wait
// at the end. (The whole model: copies between ranges would wait.)
static Status law_queued(Checker* c) {
    static const char* const remedy =
        "a job may still be queued when the next one is called: what kernels read (copies of tokens, rows, "
        "targets and so on) is that micro-batch's own until finish(), or is copied in the queue's order";
    CheckChain whole;
    CheckBatch* batches[2];
    CheckPass passes[2];
    float *waited, *queued, *losses[2];
    TRY(check_chain(c, &whole, NULL, 0));
    check_zero_gradients(c, &whole);
    for (int i = 0; i < 2; i++) {
        TRY(check_standard_batch(c, &batches[i], i + 1, 0));
        TRY(check_pass(c, &passes[i], &whole, batches[i]));
        TRY(pass_step(c, &passes[i]));
        TRY(pass_copy_losses(c, &passes[i], &losses[i]));
        TRY(check_spoil(c, passes[i].losses));
    }
    TRY(check_gradients(c, &whole, &waited));
    check_zero_gradients(c, &whole);
    bool is_larger = passes[0].at->scratch->num_bytes > passes[1].at->scratch->num_bytes;
    passes[is_larger].at->scratch = passes[!is_larger].at->scratch;
    c->is_fast = c->is_queued = true;
    Status status = queue_jobs(c, &passes[0], &passes[1]);
    c->is_queued = false;
    if (status == STATUS_OK) {
        CheckCall end = {.kind = CALL_FINISH, .range = whole.ranges[0], .of = batches[0]};
        status = call_end(c, &end, 0);
    }
    c->is_fast = false;
    TRY(status);
    for (int i = 0; i < 2; i++) {
        TRY(pass_same_losses(&passes[i], losses[i], "jobs that are waited for once", remedy, c->tolerance));
    }
    TRY(check_gradients(c, &whole, &queued));
    return check_same_gradients(&whole, waited, queued, c->tolerance, "jobs that are waited for once",
                                remedy);
}

// NaN gradients, then zero_gradients().
static Status check_zeroed(Checker* c, const CheckChain* chain) {
    float* found;
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        const DynapipeParams_v1* params = &chain->ranges[r]->params;
        float* nans;
        CHECK_NEW(nans, float, params->num_params);
        for (int64_t i = 0; i < params->num_params; i++) { nans[i] = NAN; }
        TRY(check_write(c, params->grads, nans, params->grad_type, params->num_params));
    }
    check_zero_gradients(c, chain);
    TRY(check_gradients(c, chain, &found));
    for (int64_t i = 0; i < chain->num_values; i++) {
        if (found[i] == 0) { continue; }
        return FAIL(STATUS_MISMATCH,
                    "zero_gradients left %.3g in value %lld of %lld (all ranges) ---> it zeroes all of "
                    "params->grads",
                    (double)found[i], (long long)i, (long long)chain->num_values);
    }
    return STATUS_OK;
}

static Status law_sums(Checker* c) {
    Setting s;
    CheckPass doubled;
    float *one, *other, *both, *scaled, *losses;
    TRY(make_setting(c, &s, false));
    TRY(check_zeroed(c, &s.chain));
    TRY(pass_gradients(c, &s.passes[1], &one));
    CheckBatch twice = *s.passes[1].of;
    twice.batch.loss_scale *= 2;
    TRY(pass_copy_losses(c, &s.passes[1], &losses));
    TRY(check_pass(c, &doubled, &s.chain, &twice));
    TRY(pass_gradients(c, &doubled, &scaled));
    TRY(pass_same_losses(&doubled, losses, "a micro-batch with twice the loss_scale",
                         "losses are cross entropies in nats; loss_scale belongs to gradients alone", 0));
    for (int64_t i = 0; i < s.chain.num_values; i++) { scaled[i] /= 2; }
    TRY(check_same_gradients(
        &s.chain, one, scaled, c->tolerance, "half of those with twice the loss_scale",
        "every row's gradient starts as loss_scale * (softmax - target), without a mean over "
        "rows or tokens"));
    TRY(pass_gradients(c, &s.passes[2], &other));
    TRY(pass_step(c, &s.passes[1]));
    TRY(check_gradients(c, &s.chain, &both));
    for (int64_t i = 0; i < s.chain.num_values; i++) { one[i] += other[i]; }
    return check_same_gradients(&s.chain, one, both, c->tolerance, "two micro-batches one after the other",
                                "gradients are added (+=): zero_gradients() alone zeroes them, once a step");
}

// --- laws of one micro-batch done in different ways --------------------------------------------------------

// Each range lays out its parameters as it likes: those of the whole and of its pieces are paired by value.
typedef struct {
    float param, gradient;
} Pair;

static int pair_order(const void* a, const void* b) {
    const Pair *x = (const Pair*)a, *y = (const Pair*)b;
    if (x->param != y->param) { return x->param < y->param ? -1 : 1; }
    return x->gradient < y->gradient ? -1 : x->gradient > y->gradient;
}

// The first copy of a tied group gets the sum of all, the others go. Returns how many pairs are left.
static int64_t tie_pairs(const CheckChain* chain, Pair* pairs) {
    int64_t num_left = 0;
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        const DynapipeParams_v1* params = &chain->ranges[r]->params;
        for (int32_t i = 0; i < params->num_tied; i++) {
            const DynapipeTied* tied = &params->tied[i];
            int32_t first = 0;
            const DynapipeTied* original = check_first_copy(chain, tied->group, &first);
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
    return num_left;
}

// Pairs of the chain in order, as two arrays.
static Status sort_pairs(Checker* c, const CheckChain* chain, float* gradients, float** params,
                         int64_t* num_left) {
    Pair* pairs;
    CHECK_NEW(pairs, Pair, chain->num_values);
    TRY(check_params(c, chain, params));
    for (int64_t v = 0; v < chain->num_values; v++) { pairs[v] = (Pair){(*params)[v], gradients[v]}; }
    *num_left = tie_pairs(chain, pairs);
    qsort(pairs, (size_t)*num_left, sizeof *pairs, pair_order);
    for (int64_t v = 0; v < *num_left; v++) {
        (*params)[v] = pairs[v].param;
        gradients[v] = pairs[v].gradient;
    }
    return STATUS_OK;
}

typedef struct {
    Results results;
    const CheckBatch* batch;
    float* params;
    int64_t num_values;
} WholeRun;

static Status check_cut(Checker* c, const WholeRun* whole, const int32_t* cuts, int32_t num_cuts) {
    CheckChain chain;
    Results results;
    float* params;
    int64_t num_left, num_values = whole->num_values;
    char what[224];
    snprintf(what, sizeof what, "the model cut before block %d%s (%s)", (int)cuts[0],
             num_cuts > 1 ? " and wherever else it can be" : "", whole->batch->what);
    TRY(check_chain(c, &chain, cuts, num_cuts));
    TRY(check_run(c, &results, &chain, whole->batch));
    TRY(check_same(whole->results.losses, results.losses, whole->batch->batch.num_rows, c->tolerance,
                   "what a range computes from `in` is what the whole computes there; layers count from "
                   "blocks.begin",
                   "%s, losses", what));
    TRY(sort_pairs(c, &chain, results.gradients, &params, &num_left));
    TRY(check_same(whole->params, params, num_left < num_values ? num_left : num_values, 0,
                   "make() gives a block the same values in every range that has it", "%s, parameters",
                   what));
    return check_same(whole->results.gradients, results.gradients, num_values, c->tolerance,
                      "backward_inputs of the later range leaves in din the gradient of all it got as `in` "
                      "(written, not added); each copy of a tied tensor has the gradient of its own use only",
                      "%s, gradients, sorted by parameter, tied copies added", what);
}

static Status law_cuts(Checker* c) {
    CheckChain whole;
    int32_t *cuts, num_cuts;
    TRY(check_cuts(c, &cuts, &num_cuts));
    TRY(check_chain(c, &whole, NULL, 0));
    for (int32_t b = 0; b < CHECK_STANDARD; b++) {
        CheckBatch* batch;
        WholeRun run;
        TRY(check_standard_batch(c, &batch, b, 0));
        TRY(check_run(c, &run.results, &whole, batch));
        TRY(sort_pairs(c, &whole, run.results.gradients, &run.params, &run.num_values));
        run.batch = batch;
        for (int32_t i = 0; i < num_cuts; i++) { TRY(check_cut(c, &run, &cuts[i], 1)); }
        TRY(check_cut(c, &run, cuts, num_cuts));
    }
    return STATUS_OK;
}

// The samples of a micro-batch, each alone: losses in their order, gradients added.
static Status run_alone(Checker* c, Results* out, const CheckChain* chain, const CheckSequence* sequences,
                        int32_t num_sequences, int32_t num_rows) {
    int32_t row = 0;
    CHECK_NEW(out->losses, float, num_rows);
    CHECK_NEW(out->gradients, float, chain->num_values);
    for (int32_t i = 0; i < num_sequences; i++) {
        CheckBatch* alone;
        Results one;
        TRY(check_batch(c, &alone, &sequences[i], 1, 0));
        if (alone->batch.num_rows == 0) { continue; }  // nothing to learn: no gradients
        TRY(check_run(c, &one, chain, alone));
        for (int32_t r = 0; r < alone->batch.num_rows; r++) { out->losses[row++] = one.losses[r]; }
        for (int64_t v = 0; v < chain->num_values; v++) { out->gradients[v] += one.gradients[v]; }
    }
    return STATUS_OK;
}

// `expected`, in another layout.
static Status check_layout(Checker* c, const Results* expected, const CheckChain* chain,
                           const CheckBatch* batch, const char* than, const char* remedy) {
    Results results;
    TRY(check_run(c, &results, chain, batch));
    TRY(check_same(expected->losses, results.losses, batch->batch.num_rows, c->tolerance, remedy,
                   "%s, against %s, losses", batch->what, than));
    return check_same(expected->gradients, results.gradients, chain->num_values, c->tolerance, remedy,
                      "%s, against %s, gradients", batch->what, than);
}

static Status law_grouping(Checker* c) {
    CheckChain whole;
    TRY(check_chain(c, &whole, NULL, 0));
    for (int32_t b = 1; b < CHECK_STANDARD; b++) {
        CheckBatch* batch;
        CheckSequence sequences[CHECK_MOST_SEQUENCES];
        Results alone;
        int32_t num_sequences = check_standard(c, sequences, b);
        TRY(check_batch(c, &batch, sequences, num_sequences, 0));
        TRY(run_alone(c, &alone, &whole, sequences, num_sequences, batch->batch.num_rows));
        TRY(check_layout(
            c, &alone, &whole, batch, "the same samples one by one",
            "attention stays inside a window (cu_seqlens), positions restart in it, losses stand in "
            "the order of batch->rows, no mean is taken over a micro-batch, dropout goes by "
            "token_keys"));
    }
    return STATUS_OK;
}

static Status law_padding(Checker* c) {
    CheckChain whole;
    TRY(check_chain(c, &whole, NULL, 0));
    for (int32_t b = 0; b < CHECK_STANDARD; b++) {
        CheckBatch *plain, *padded;
        Results results;
        TRY(check_standard_batch(c, &plain, b, 0));
        TRY(check_standard_batch(c, &padded, b, 3));
        TRY(check_run(c, &results, &whole, plain));
        TRY(check_layout(
            c, &results, &whole, padded, plain->what,
            "a window's tokens are those before seq_lens; padding after them has no loss, and what "
            "looks ahead (encoders, cross-attention) must not see it"));
    }
    return STATUS_OK;
}

// --- law of a shared head --------------------------------------------------------------------------------
// Shares by rows and by vocabulary give the same losses, gradient of inputs and gradient of the matrix as a
// head in one piece. The last layers [cut, head) run after the whole model's activation there: with the head
// in their range, then feeding shares of it. The gradient before `cut` is compared with the former; the
// matrix' gradient with that of one share by rows, which has all of it.

enum { MOST_SHARES = 2, ID_MULTIPLE = 16 };

typedef struct {
    const CheckBatch* of;
    const CheckBuffer* in;
    CheckRange *feeds, *shares[MOST_SHARES];
    DynapipeBatch batches[MOST_SHARES];  // by rows: of their rows
    CheckBuffer *hidden, *acts, *scratch, *dout, *din, *losses;
    CheckBuffer *share_acts[MOST_SHARES], *parts[MOST_SHARES], *factors[MOST_SHARES];
    int32_t num_shares;
    bool by_rows;
    float *found_din, *matrix;
    int64_t num_din, num_matrix;
} Sharing;

static Status make_shares(Checker* c, Sharing* s, int32_t cut) {
    int32_t head = c->num_blocks - 1, num_rows = s->of->batch.num_rows;
    int32_t vocab = c->blocks->padded_vocab > 0 ? (int32_t)c->blocks->padded_vocab : c->blocks->vocab;
    int32_t middle = c->blocks->vocab / 2 / ID_MULTIPLE * ID_MULTIPLE;  // ids on both sides, if there are 32
    DynapipeRange feeds = {.begin = cut, .end = head, .head = DYNAPIPE_HEAD_FEEDS};
    TRY(check_range(c, &s->feeds, feeds, true));
    for (int32_t i = 0; i < s->num_shares; i++) {
        bool is_last = i == s->num_shares - 1;
        DynapipeRange blocks = {.begin = head, .end = head + 1, .head = DYNAPIPE_HEAD_BY_ROWS};
        s->batches[i] = s->of->batch;
        if (s->by_rows) {
            int32_t begin = i == 0 ? 0 : num_rows / 2, end = is_last ? num_rows : num_rows / 2;
            s->batches[i].num_rows = end - begin;
            s->batches[i].rows += begin;
            s->batches[i].targets += begin;
            s->batches[i].row_tasks += begin;
        } else {
            blocks.head = DYNAPIPE_HEAD_BY_VOCABULARY;
            blocks.vocab_begin = i == 0 ? 0 : middle;
            blocks.vocab_end = is_last ? vocab : middle;
        }
        TRY(check_range(c, &s->shares[i], blocks, true));
    }
    return STATUS_OK;
}

static Status make_buffers(Checker* c, Sharing* s) {
    const DynapipeModel_v1* api = c->blocks->api;
    const DynapipeBatch* batch = &s->of->batch;
    void* feeds = s->feeds->model;
    int64_t scratch_bytes = api->scratch_bytes(feeds, batch);
    for (int32_t i = 0; i < s->num_shares; i++) {
        void* model = s->shares[i]->model;
        int64_t own_bytes = api->scratch_bytes(model, &s->batches[i]);
        int64_t part_bytes = s->by_rows ? api->boundary_bytes(model, &s->batches[i], 0)
                                        : api->part_bytes(model, batch, CHECK_KEEP);
        if (own_bytes > scratch_bytes) { scratch_bytes = own_bytes; }
        TRY(check_buffer(c, &s->share_acts[i], api->acts_bytes(model, &s->batches[i], CHECK_KEEP), false));
        TRY(check_buffer(c, &s->parts[i], part_bytes, false));
        if (!s->by_rows) { TRY(check_buffer(c, &s->factors[i], api->factor_bytes(model, batch), false)); }
    }
    TRY(check_buffer(c, &s->losses, (int64_t)sizeof(float) * batch->num_rows, true));
    TRY(check_buffer(c, &s->hidden, api->boundary_bytes(feeds, batch, 1), false));
    TRY(check_buffer(c, &s->dout, s->hidden->num_bytes, false));
    TRY(check_buffer(c, &s->din, api->boundary_bytes(feeds, batch, 0), false));
    TRY(check_buffer(c, &s->acts, api->acts_bytes(feeds, batch, CHECK_KEEP), false));
    return check_buffer(c, &s->scratch, scratch_bytes, false);
}

static Status share_call(const char* what, int code) {
    if (code == 0) { return STATUS_OK; }
    return FAIL(STATUS_MISMATCH, "%s of a shared head returned error %d", what, code);
}

// Hidden states of the share's rows come after those of the shares before it; parts by rows alike.
static Status run_share(const DynapipeModel_v1* api, Sharing* s, int32_t i, int64_t at_bytes, float* losses) {
    void* model = s->shares[i]->model;
    const DynapipeBatch* batch = &s->batches[i];
    if (batch->num_rows == 0) { return STATUS_OK; }
    TRY(share_call("forward()", api->forward(model, batch, s->hidden->data + at_bytes, NULL,
                                             s->share_acts[i]->data, s->scratch->data, losses, CHECK_KEEP)));
    unsigned char* part = s->by_rows ? s->dout->data + at_bytes : s->parts[i]->data;
    return share_call("backward_inputs()",
                      api->backward_inputs(model, batch, s->hidden->data + at_bytes, s->share_acts[i]->data,
                                           NULL, part, s->scratch->data));
}

static Status run_sharing(const DynapipeModel_v1* api, Sharing* s) {
    const DynapipeBatch* batch = &s->of->batch;
    void *feeds = s->feeds->model, *factors[MOST_SHARES] = {NULL};
    const void* parts[MOST_SHARES];
    float* losses = (float*)(void*)s->losses->data;
    int64_t at_bytes = 0;
    TRY(share_call("forward()", api->forward(feeds, batch, s->in->data, s->hidden->data, s->acts->data,
                                             s->scratch->data, NULL, CHECK_KEEP)));
    for (int32_t i = 0; i < s->num_shares; i++) {
        TRY(run_share(api, s, i, at_bytes,
                      s->by_rows ? losses + (s->batches[i].targets - batch->targets) : NULL));
        if (s->by_rows) { at_bytes += s->parts[i]->num_bytes; }
        parts[i] = s->parts[i]->data;
        if (!s->by_rows) { factors[i] = s->factors[i]->data; }
    }
    if (!s->by_rows) {
        TRY(share_call("combine()",
                       api->combine(feeds, batch, s->num_shares, parts, s->dout->data, factors, losses)));
    }
    TRY(share_call("backward_inputs()", api->backward_inputs(feeds, batch, s->in->data, s->acts->data,
                                                             s->dout->data, s->din->data, s->scratch->data)));
    for (int32_t i = 0; i < s->num_shares; i++) {
        if (s->batches[i].num_rows == 0) { continue; }
        TRY(share_call("backward_weights()",
                       api->backward_weights(s->shares[i]->model, &s->batches[i], s->share_acts[i]->data,
                                             factors[i], s->scratch->data)));
    }
    return share_call("finish()", api->finish != NULL ? api->finish(feeds) : 0);
}

static Status read_sharing(Checker* c, Sharing* s) {
    int32_t type = s->feeds->params.param_type;
    int64_t begin = 0;
    float* one;
    s->num_din = s->din->num_bytes / check_value_bytes(type);
    for (int32_t i = 0; i < s->num_shares; i++) {
        s->num_matrix = s->shares[i]->params.num_params + (s->by_rows ? 0 : s->num_matrix);
    }
    CHECK_NEW(s->found_din, float, s->num_din);
    CHECK_NEW(s->matrix, float, s->num_matrix);
    CHECK_NEW(one, float, s->num_matrix);
    TRY(check_read(c, s->found_din, s->din->data, type, s->num_din));
    for (int32_t i = 0; i < s->num_shares; i++) {
        const DynapipeParams_v1* params = &s->shares[i]->params;
        TRY(check_read(c, one, params->grads, params->grad_type, params->num_params));
        for (int64_t k = 0; k < params->num_params; k++) { s->matrix[begin + k] += one[k]; }
        begin += s->by_rows ? 0 : params->num_params;
    }
    return STATUS_OK;
}

static Status share_head(Checker* c, Sharing* s, int32_t cut) {
    TRY(make_shares(c, s, cut));
    TRY(make_buffers(c, s));
    c->blocks->api->zero_gradients(s->feeds->model);
    for (int32_t i = 0; i < s->num_shares; i++) { c->blocks->api->zero_gradients(s->shares[i]->model); }
    TRY(run_sharing(c->blocks->api, s));
    return read_sharing(c, s);
}

static Status check_sharings(Checker* c, const CheckBatch* batch, int32_t cut) {
    static const char* const remedy = "DynapipeModel_v1: shares and combine()";
    static const struct {
        const char* words;
        bool by_rows;
        int32_t num_shares;
    } ways[] = {{"by rows, in one share", true, 1},
                {"by rows", true, 2},
                {"by vocabulary", false, 2},
                {"by vocabulary, in one share", false, 1}};
    CheckChain chain;
    CheckPass pass;
    CheckBuffer* in;
    Sharing first = {0};
    TRY(check_chain(c, &chain, &cut, 1));
    TRY(check_pass(c, &pass, &chain, batch));
    check_zero_gradients(c, &chain);
    TRY(pass_forward(c, &pass, CHECK_KEEP, false));
    TRY(check_buffer(c, &in, pass.at[1].in->num_bytes, false));  // backward spoils pass.at[1].in
    TRY(check_copy(c, in->data, pass.at[1].in->data, in->num_bytes));
    TRY(pass_backward_inputs(c, &pass));
    TRY(pass_backward_weights(c, &pass));
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        Sharing s = {.of = batch, .in = in, .num_shares = ways[i].num_shares, .by_rows = ways[i].by_rows};
        float* din;
        TRY(share_head(c, &s, cut));
        if (i == 0) { first = s; }
        CHECK_NEW(din, float, s.num_din);
        TRY(check_read(c, din, pass.at[0].dout->data, chain.ranges[1]->params.param_type, s.num_din));
        for (int64_t k = 0; k < s.num_din; k++) {  // padding, which neither wrote
            if (isnan(din[k]) && isnan(s.found_din[k])) { din[k] = s.found_din[k] = 0; }
        }
        TRY(check_same(pass_losses(&pass), (const float*)(const void*)s.losses->data, batch->batch.num_rows,
                       c->tolerance, remedy, "the head shared %s: losses (%s)", ways[i].words, batch->what));
        TRY(check_same(din, s.found_din, s.num_din, c->tolerance, remedy,
                       "the head shared %s: gradient before the last layer (%s)", ways[i].words,
                       batch->what));
        if (s.num_matrix != first.num_matrix) {
            return FAIL(
                STATUS_MISMATCH,
                "the head shared %s: %lld parameters, %lld in one share by rows ---> a share has rows of "
                "the head's matrix and nothing else; padded_vocab is all of them",
                ways[i].words, (long long)s.num_matrix, (long long)first.num_matrix);
        }
        TRY(check_same(first.matrix, s.matrix, s.num_matrix, c->tolerance, remedy,
                       "the head shared %s: gradient of the matrix (%s)", ways[i].words, batch->what));
    }
    return STATUS_OK;
}

static Status law_heads(Checker* c) {
    bool can = executor_can_share(c->blocks->api, HEAD_BY_VOCABULARY) && !c->blocks->shapes.head_has_layer;
    int32_t *cuts, num_cuts;
    TRY(check_cuts(c, &cuts, &num_cuts));
    for (int32_t i = 0; i < CHECK_STANDARD && can && num_cuts > 1; i++) {
        CheckBatch* batch;
        TRY(check_standard_batch(c, &batch, i, 0));
        TRY(check_sharings(c, batch, cuts[num_cuts - 2]));
    }
    return STATUS_OK;
}

// --- law of gradients ------------------------------------------------------------------------------------
// For a direction d in the space of parameters,
//
//     (L(p + h d) - L(p - h d)) / 2h = sum of gradient * d     L: loss_scale * sum of losses of a micro-batch
//
// Directions are confined to a piece of the flat array, so that small tensors count as much as large ones:
// one with the signs of the gradients (shows wrong sizes), one with random signs (shows what is missing), and
// the steepest parameter alone. Parameters are moved at random first: what starts as zeros would hide what
// comes after it. Effects below the rounding of the losses are skipped.

enum { MOST_PIECES = 64, MOST_COARSE_PIECES = 6, NUM_STEPS = 6, WIDEST = 2 };

typedef struct {
    Checker* c;
    CheckRange* range;  // the whole model
    CheckPass pass;
    float *params, *gradients, *moved;  // (num_params), as kept by the model; moved: of a piece
    double loss, loss_noise;            // at these parameters; the size of rounding errors
    bool is_coarse;                     // parameters of 8 or 11 bits
    Rng rng;
} Slopes;

static double unit(Rng* rng) {  // [-1, 1)
    return (double)(int32_t)(uint32_t)rng_u64(rng) * 0x1p-31;
}

static Status evaluate(Slopes* s, double* out) {
    const DynapipeBatch* batch = &s->pass.of->batch;
    TRY(pass_forward(s->c, &s->pass, CHECK_KEEP, false));
    *out = 0;
    for (int32_t r = 0; r < batch->num_rows; r++) { *out += (double)pass_losses(&s->pass)[r]; }
    *out *= (double)batch->loss_scale;
    return STATUS_OK;
}

// Values of the model's parameters from `begin` on; with read_back, `values` become those stored.
static Status write_params(Slopes* s, float* values, int64_t begin, int64_t count, bool read_back) {
    int32_t type = s->range->params.param_type;
    char* place = (char*)s->range->params.params + begin * check_value_bytes(type);
    TRY(check_write(s->c, place, values, type, count));
    return read_back ? check_read(s->c, values, place, type, count) : STATUS_OK;
}

static double typical_value(const float* params, int64_t count) {
    double squares = 0;
    for (int64_t i = 0; i < count; i++) { squares += (double)params[i] * params[i]; }
    double typical = sqrt(squares / (double)count);
    return typical > 0.02 ? typical : 0.02;  // GPT-2's initial weights
}

typedef struct {
    double slope, measured, noise;
    double usual;  // slope with random signs; one may be nearly 0 by chance
} Slope;

// Along signs[0, count) * step: by the gradients, and by the losses.
static Status measure_slope(Slopes* s, Slope* out, const signed char* signs, int64_t begin, int64_t count,
                            double step) {
    double losses[2], squares = 0;
    *out = (Slope){.noise = s->loss_noise / 2};
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < count; i++) {
            s->moved[i] = (float)(s->params[begin + i] + (side == 0 ? step : -step) * signs[i]);
        }
        TRY(write_params(s, s->moved, begin, count, true));
        for (int64_t i = 0; i < count; i++) {
            double way = ((double)s->moved[i] - s->params[begin + i]) / 2, gradient = s->gradients[begin + i];
            out->slope += (side == 0 ? way : -way) * gradient;
            squares += 2 * way * way * gradient * gradient;
        }
        TRY(evaluate(s, &losses[side]));
    }
    out->usual = sqrt(squares);
    out->measured = (losses[0] - losses[1]) / 2;
    return write_params(s, s->params + begin, begin, count, false);
}

// A step that changes parameters by a fiftieth at most (rounded to 8 bits: a quarter), and the loss by no
// more than that.
static double first_step(const Slopes* s, int64_t begin, int64_t count) {
    double steepness = 0, share = s->is_coarse ? 0.25 : 0.02;
    for (int64_t i = begin; i < begin + count; i++) { steepness += fabs((double)s->gradients[i]); }
    double step = share * typical_value(s->params + begin, count);
    return steepness * step > share * s->loss ? share * s->loss / steepness : step;
}

// A curved loss (or one with kinks) needs a short step, a flat one a long step: one of a few must agree.
static Status check_direction(Slopes* s, const signed char* signs, int64_t begin, int64_t count) {
    static const double fine_steps[NUM_STEPS] = {1, 0.25, 4, 0x1p-4, 0x1p-6, 0x1p-8},
                        coarse_steps[NUM_STEPS] = {1, 0.5, 4, 2, 0.25, 0.125};
    const double* steps = s->is_coarse ? coarse_steps : fine_steps;
    double step = first_step(s, begin, count), share = s->is_coarse ? 0.2 : 0.01;
    const double seen = s->is_coarse ? 0.3 : 0.01;  // a short step agrees with anything within its noise
    Slope first = {0};
    for (int i = 0; i < NUM_STEPS; i++) {
        Slope slope;
        TRY(measure_slope(s, &slope, signs, begin, count, step * steps[i]));
        double larger = fmax(slope.usual, fmax(fabs(slope.slope), fabs(slope.measured)));
        bool agrees = fabs(slope.slope - slope.measured) <= share * larger + slope.noise;
        if (agrees && (slope.noise <= seen * larger || i == WIDEST)) { return STATUS_OK; }
        if (i == 0) { first = slope; }
    }
    return FAIL(
        STATUS_MISMATCH,
        "parameters [%lld, %lld) of %lld of the whole model (%s): moved a little, the loss changes by "
        "%.4g, by the gradients it would by %.4g ---> zero, or far off: a term of backward is missing; "
        "off by a factor: loss_scale or a mean; the piece of the array tells which tensor",
        (long long)begin, (long long)(begin + count), (long long)s->range->params.num_params,
        s->pass.of->what, first.measured, first.slope);
}

static Status check_piece(Slopes* s, int64_t begin, int64_t count) {
    Checker* c = s->c;
    signed char* signs;
    int64_t steepest = begin;
    CHECK_NEW(signs, signed char, count);
    for (int is_random = 0; is_random < (s->is_coarse ? 1 : 2); is_random++) {
        for (int64_t i = 0; i < count; i++) {
            float gradient = s->gradients[begin + i];
            if (is_random || gradient == 0) { gradient = (float)unit(&s->rng); }
            signs[i] = gradient < 0 ? -1 : 1;
        }
        TRY(check_direction(s, signs, begin, count));
    }
    if (s->is_coarse) { return STATUS_OK; }
    for (int64_t i = begin; i < begin + count; i++) {
        if (fabsf(s->gradients[i]) > fabsf(s->gradients[steepest])) { steepest = i; }
    }
    signs[0] = 1;
    return check_direction(s, signs, steepest, 1);
}

// Random parameters near the model's own, as stored, and the gradients there.
static Status move_params(Slopes* s) {
    Checker* c = s->c;
    const DynapipeBatch* batch = &s->pass.of->batch;
    int64_t num_params = s->range->params.num_params;
    CHECK_NEW(s->moved, float, num_params);
    TRY(check_params(c, s->pass.chain, &s->params));
    for (int64_t begin = 0; begin < num_params; begin += 64) {
        int64_t count = num_params - begin < 64 ? num_params - begin : 64;
        double typical = typical_value(s->params + begin, count);
        for (int64_t i = begin; i < begin + count; i++) {
            s->params[i] += (float)(0.3 * typical * unit(&s->rng));
        }
    }
    TRY(write_params(s, s->params, 0, num_params, true));
    TRY(pass_gradients(c, &s->pass, &s->gradients));
    TRY(evaluate(s, &s->loss));
    s->loss_noise = 4 * c->epsilon * (fabs(s->loss) + batch->num_rows * (double)batch->loss_scale);
    return STATUS_OK;
}

static Status check_pieces(Slopes* s) {
    int64_t num_params = s->range->params.num_params, most = s->is_coarse ? MOST_COARSE_PIECES : MOST_PIECES;
    int64_t num_pieces = num_params < most ? num_params : most;
    for (int64_t k = 0; k < num_pieces; k++) {
        int64_t begin = num_params * k / num_pieces, end = num_params * (k + 1) / num_pieces;
        Status status = check_piece(s, begin, end - begin);
        if (status == STATUS_MISMATCH) {  // a kink of the loss may be exactly there: try elsewhere
            TRY(move_params(s));
            status = check_piece(s, begin, end - begin);
        }
        TRY(status);
    }
    return STATUS_OK;
}

static Status law_slopes(Checker* c) {
    CheckChain whole;
    CheckBatch* batch;
    TRY(check_chain(c, &whole, NULL, 0));
    TRY(check_standard_batch(c, &batch, 1, 0));
    Slopes s = {.c = c, .range = whole.ranges[0], .rng = rng_seed(7)};
    s.is_coarse = s.range->params.param_type != DYNAPIPE_FLOAT32;
    TRY(check_pass(c, &s.pass, &whole, batch));
    TRY(move_params(&s));
    c->is_fast = true;
    Status status = check_pieces(&s);
    c->is_fast = false;
    return status;
}

// --- all laws --------------------------------------------------------------------------------------------

static const struct {
    const char* what;
    Status (*law)(Checker* c);
} laws[] = {
    {"ranges can be made, their sizes add up", law_ranges},
    {"bytes follow from counts, and grow with them", law_counts},
    {"promised bytes suffice, and are read where written", law_bytes},
    {"gradients add, loss_scale scales them alone", law_sums},
    {"a forward again gives the same", law_forward},
    {"backward divided and delayed gives the joint one's gradients", law_divided},
    {"jobs queued and waited for once give the same", law_queued},
    {"every cut gives the whole's losses and gradients", law_cuts},
    {"a shared head gives the whole's losses and gradients", law_heads},
    {"grouping samples changes nothing", law_grouping},
    {"padding changes nothing", law_padding},
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

// A line for each law; the message of the first failure.
static Status run_laws(Checker* c, FILE* out) {
    char first_words[1024] = "";
    Status first = STATUS_OK;
    for (int i = 0; i < NUM_LAWS; i++) {
        Status status = laws[i].law(c);
        check_release(c);
        if (out != NULL && status == STATUS_OK) { fprintf(out, "ok   %s\n", laws[i].what); }
        if (out != NULL && status != STATUS_OK) {
            fprintf(out, "FAIL %s: %s\n", laws[i].what, status_message());
        }
        if (out != NULL) { fflush(out); }
        if (status != STATUS_OK && first == STATUS_OK) {
            first = status;
            snprintf(first_words, sizeof first_words, "%s", status_message());
        }
        bool is_the_models = status == STATUS_OK || status == STATUS_MISMATCH;
        if (!is_the_models || c->guards_are_known || (i == 0 && status != STATUS_OK)) { break; }
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
    Checker c = {.blocks = blocks, .device = dp->device};
    c.num_blocks = blocks->num_layers + 2 + (blocks->num_dec_layers > 0 ? blocks->num_dec_layers + 1 : 0);
    status = run_laws(&c, out);
    arena_free(&c.arena);
    free(c.temp);
    return status;
}

int dynapipe_check_model(Dynapipe* dp, const DynapipeBlocks_v1* blocks, FILE* out) {
    return (int)check_model(dp, blocks, out);
}
