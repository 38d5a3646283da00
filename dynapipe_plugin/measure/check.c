/*
check.c -- dynapipe_check_model(): a model run on tiny micro-batches in guarded memory, and laws that its
results must keep.

A law returns STATUS_OK or the first thing it found. What it made is given back after it: nothing here frees.
*/

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../plan/plan.h"
#include "../plan/problem.h"
#include "../plan/types.h"
#include "../run/executor.h"
#include "../run/session.h"
#include <stdbool.h>
#include "../dynapipe.h"
#include "../run/device.h"
#include "../../util/arena.h"
#include "../../util/numbers.h"
#include "../../util/status.h"

// --- memory ----------------------------------------------------------------------------------------------

// num_bytes where values live (or of this process), between two guards.
typedef struct CheckerBuffer CheckerBuffer;
struct CheckerBuffer {
    unsigned char* memory;  // aligned to PLAN_BUFFER_ALIGN
    int64_t num_bytes;
    bool on_host;
    CheckerBuffer* next;  // of the checker's list
};

// A range of the model that make() gave.
typedef struct CheckerRange CheckerRange;
struct CheckerRange {
    DynapipeRange blocks;
    void* model;
    DynapipeParams_v1 params;
    CheckerRange* next;  // of the checker's list
};

typedef struct {
    const DynapipeBlocks_v1* blocks;
    Device device;
    Arena arena;             // host memory of the law at hand
    CheckerBuffer* buffers;  // of the law at hand
    CheckerRange* ranges;
    int32_t num_blocks;     // embedding(s), layers, head
    double tolerance;       // relative, of sums of gradients in another order
    double epsilon;         // of the coarsest type that values are kept in
    bool is_fast;           // no guards, no garbage: for the thousands of forwards of finite differences
    bool is_queued;         // finish() is not called behind every job
    bool guards_are_known;  // to be written over: nothing more is run
} Checker;

// Of this process, zeroed. NULL: no memory.
#define CHECKER_NEW(checker, Type, count) ARENA_NEW(&(checker)->arena, Type, count)

// --- micro-batches ---------------------------------------------------------------------------------------

// Tokens, targets and keys follow from `id`: the same wherever the sequence stands.
typedef struct {
    int32_t id, num_tokens, num_dec_tokens;
    int32_t num_rows;  // the last ones are supervised (of the decoder, if there is one)
} CheckerSequence;

typedef struct {
    DynapipeBatch batch;
    char what[112];  // "2 sequences of 5, 3 tokens, padded to 8"
} CheckerBatch;

// padding: windows are that many tokens longer than the longest; 0: as the shapes ask, else ragged.
Status checker_batch(Checker* c, CheckerBatch* out, const CheckerSequence* sequences, int32_t num_sequences,
                     int32_t padding);
enum { CHECKER_STANDARD = 3, CHECKER_MOST_SEQUENCES = 4 };

// --- chains and jobs -------------------------------------------------------------------------------------

// The whole model, in ranges.
typedef struct {
    CheckerRange** ranges;
    int32_t num_ranges;
    int64_t num_values;  // of all parameters
} CheckerChain;

// cuts: blocks that a range begins with, ascending, without 0.
Status checker_chain(Checker* c, CheckerChain* out, const int32_t* cuts, int32_t num_cuts);

// One micro-batch on its way through a chain. Buffers of every range are its own: what the neighbour gets is
// copied.
typedef struct {
    const CheckerChain* chain;
    const CheckerBatch* of;
    CheckerBuffer* (*acts)[4], **in, **out, **din, **dout, **scratch;  // [num_ranges]; acts by flags
    CheckerBuffer* losses;                                             // (num_rows), host
} CheckerWork;

enum { CHECKER_KEEP = DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD };

// --- comparing -------------------------------------------------------------------------------------------

typedef struct {
    int64_t num_off, idx;    // how many differ, the one that differs most
    double expected, found;  // there
} CheckerDifference;

// --- laws ------------------------------------------------------------------------------------------------

static Status checker_gradients(Checker* c, const CheckerChain* chain, float** out);

static Status checker_params(Checker* c, const CheckerChain* chain, float** out);

static void checker_zero_gradients(const Checker* c, const CheckerChain* chain);

static int32_t checker_cuts(const Checker* c, int32_t* out);

static Status checker_copy(const Checker* c, void* to, const void* from, int64_t num_bytes);

static Status checker_buffer_damage(const Checker* c, const CheckerBuffer* buffer, int64_t* before,
                                    int64_t* behind);

static Status checker_buffer_spoil(const Checker* c, const CheckerBuffer* buffer);

static Status checker_buffer(Checker* c, CheckerBuffer** out, int64_t num_bytes, bool on_host);

static Status checker_no_memory(void);

// More than `tolerance` of the larger of both and the array's root mean square; not a number always differs.
static bool checker_differ(const float* expected, const float* found, int64_t num_values, double tolerance,
                           CheckerDifference* out) {
    double squares = 0, worst = 0;
    *out = (CheckerDifference){0};
    for (int64_t i = 0; i < num_values; i++) {
        if (isfinite(expected[i])) { squares += (double)expected[i] * expected[i]; }
    }
    double typical = num_values > 0 ? sqrt(squares / (double)num_values) : 0;
    for (int64_t i = 0; i < num_values; i++) {
        double a = expected[i], b = found[i], larger = fabs(a) > fabs(b) ? fabs(a) : fabs(b);
        double off = fabs(a - b) / (larger + typical + 1e-30);
        if (off <= tolerance) { continue; }  // false for what is not a number
        out->num_off++;
        if (out->num_off > 1 && !(off > worst) && !isnan(off)) { continue; }
        if (out->num_off > 1 && isnan(worst)) { continue; }
        worst = off;
        out->idx = i;
        out->expected = a;
        out->found = b;
    }
    return out->num_off > 0;
}

// "value 17 of 640: 0.25 expected, 0.5 found; 12 of them differ"
static const char* checker_difference_text(char out[160], const CheckerDifference* difference,
                                           int64_t num_values) {
    snprintf(out, 160, "value %lld of %lld: %.6g expected, %.6g found; %lld of them differ",
             (long long)difference->idx, (long long)num_values, difference->expected, difference->found,
             (long long)difference->num_off);
    return out;
}

// --- checker_batch --------------------
// checker_batch.c -- made-up micro-batches, small, as the model's shapes ask for them.

// Gradients of a row's loss are multiplied by it: a power of two, so that doubling it is exact.
#define LOSS_SCALE 0.125F

// --- lengths ---------------------------------------------------------------------------------------------

static int32_t checker_length(const Checker* c, int32_t num_tokens) {
    int32_t most = c->blocks->max_seq_tokens;
    return most > 0 && num_tokens > most ? most : num_tokens;
}

static int32_t length_of(const CheckerSequence* sequence, bool is_decoder) {
    return is_decoder ? sequence->num_dec_tokens : sequence->num_tokens;
}

// What windows are padded to; 0: they are not.
static int32_t padded_tokens(const Checker* c, const CheckerSequence* sequences, int32_t num_sequences,
                             bool is_decoder, int32_t padding) {
    const ShapeRules rules = session_rules(&c->blocks->shapes);
    int32_t longest = 0, most = c->blocks->max_seq_tokens;
    if (!rules.padded && padding == 0) { return 0; }
    for (int32_t i = 0; i < num_sequences; i++) {
        int32_t length = length_of(&sequences[i], is_decoder);
        if (length > longest) { longest = length; }
    }
    longest += padding;
    if (most > 0 && longest > most) { longest = most; }
    return (int32_t)shape_rules_round(&rules, longest, num_sequences);
}

// Not more than the kernels take at a time?
static bool is_allowed(const Checker* c, const CheckerSequence* sequences, int32_t num_sequences,
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

static void shorten(CheckerSequence* sequence, int32_t num_tokens, bool has_decoder) {
    if (sequence->num_tokens > num_tokens) { sequence->num_tokens = num_tokens; }
    if (sequence->num_dec_tokens > num_tokens) { sequence->num_dec_tokens = num_tokens; }
    int32_t supervised = length_of(sequence, has_decoder);
    if (sequence->num_rows > supervised) { sequence->num_rows = supervised; }
}

// One sequence; four, of which one is not supervised; a longer and a short one, which fill round sizes.
static int32_t checker_standard(const Checker* c, CheckerSequence out[CHECKER_MOST_SEQUENCES], int32_t idx) {
    static const struct {
        int32_t num_sequences;
        CheckerSequence sequences[CHECKER_MOST_SEQUENCES];  // id, tokens, decoder's, rows
    } standard[CHECKER_STANDARD] = {
        {1, {{1, 7, 4, 3}}},
        {4, {{2, 5, 3, 2}, {3, 1, 2, 1}, {4, 3, 1, 0}, {5, 4, 5, 4}}},
        {2, {{6, 30, 2, 15}, {7, 2, 30, 1}}},  // 32 tokens, 16 rows: what sizes are rounded up to
    };
    const bool has_decoder = c->blocks->num_dec_layers > 0;
    int32_t num_sequences = standard[idx].num_sequences, longest = 0;
    for (int32_t i = 0; i < num_sequences; i++) {
        out[i] = standard[idx].sequences[i];
        if (!has_decoder) { out[i].num_dec_tokens = 0; }
        shorten(&out[i], checker_length(c, INT32_MAX), has_decoder);
        if (out[i].num_tokens > longest) { longest = out[i].num_tokens; }
        if (out[i].num_dec_tokens > longest) { longest = out[i].num_dec_tokens; }
    }
    while (num_sequences > 1 && !is_allowed(c, out, num_sequences, 0)) { num_sequences--; }
    while (longest > 1 && !is_allowed(c, out, num_sequences, 0)) { shorten(&out[0], --longest, has_decoder); }
    return num_sequences;
}

// One side of a micro-batch being filled.
typedef struct {
    int32_t *cu_seqlens, *tokens, *positions, *seq_lens;
    uint32_t* keys;
    int32_t num_tokens, longest;
    bool has_padding;
} Side;

static Status make_side(Checker* c, Side* side, const CheckerSequence* sequences, int32_t num_sequences,
                        bool is_decoder, int32_t T) {
    int32_t most = 0;
    for (int32_t i = 0; i < num_sequences; i++) {
        int32_t length = length_of(&sequences[i], is_decoder);
        most += T > 0 ? T : length;
    }
    *side = (Side){.cu_seqlens = CHECKER_NEW(c, int32_t, num_sequences + 1),
                   .tokens = CHECKER_NEW(c, int32_t, most),
                   .positions = CHECKER_NEW(c, int32_t, most),
                   .seq_lens = CHECKER_NEW(c, int32_t, num_sequences),
                   .keys = CHECKER_NEW(c, uint32_t, most)};
    if (!side->cu_seqlens || !side->tokens || !side->positions || !side->seq_lens || !side->keys) {
        return checker_no_memory();
    }
    for (int32_t i = 0; i < num_sequences; i++) {
        Rng rng = rng_seed((uint64_t)sequences[i].id * 2 + is_decoder);
        int32_t length = length_of(&sequences[i], is_decoder);
        int32_t window = T > 0 ? T : length;
        for (int32_t t = 0; t < window; t++) {
            int32_t at = side->num_tokens + t;
            side->tokens[at] = rng_between(&rng, 0, c->blocks->vocab - 1);
            side->positions[at] = t;
            side->keys[at] = (uint32_t)rng_u64(&rng);
        }
        side->seq_lens[i] = length;
        side->has_padding |= window > length;
        side->num_tokens += window;
        side->cu_seqlens[i + 1] = side->num_tokens;
        if (window > side->longest) { side->longest = window; }
    }
    return STATUS_OK;
}

// --- the whole -------------------------------------------------------------------------------------------

static Status make_rows(Checker* c, DynapipeBatch* batch, const Side* side,
                        const CheckerSequence* sequences) {
    int32_t *rows = CHECKER_NEW(c, int32_t, side->num_tokens),
            *targets = CHECKER_NEW(c, int32_t, side->num_tokens),
            *tasks = CHECKER_NEW(c, int32_t, side->num_tokens);
    if (rows == NULL || targets == NULL || tasks == NULL) { return checker_no_memory(); }
    for (int32_t i = 0; i < batch->num_seqs; i++) {
        Rng rng = rng_seed((uint64_t)sequences[i].id + 1000003);
        for (int32_t r = 0; r < sequences[i].num_rows; r++) {
            int32_t behind = sequences[i].num_rows - r;  // counted from the sequence's end
            rows[batch->num_rows] = side->cu_seqlens[i] + side->seq_lens[i] - behind;
            targets[batch->num_rows++] = rng_between(&rng, 0, c->blocks->vocab - 1);
        }
    }
    batch->rows = rows;
    batch->targets = targets;
    batch->row_tasks = tasks;
    return STATUS_OK;
}

static void describe(CheckerBatch* out, const CheckerSequence* sequences, bool has_decoder, int32_t T) {
    int32_t num_seqs = out->batch.num_seqs;
    size_t room = sizeof out->what;
    int used = snprintf(out->what, room, "%d sequence%s of ", (int)num_seqs, num_seqs > 1 ? "s" : "");
    for (int32_t i = 0; i < num_seqs && used < (int)room; i++) {
        used += snprintf(out->what + used, room - (size_t)used, i > 0 ? ", %d" : "%d",
                         (int)sequences[i].num_tokens);
        if (!has_decoder || used >= (int)room) { continue; }
        used += snprintf(out->what + used, room - (size_t)used, "+%d", (int)sequences[i].num_dec_tokens);
    }
    if (used >= (int)room) { return; }
    used += snprintf(out->what + used, room - (size_t)used, " tokens");
    if (T > 0 && used < (int)room) {
        snprintf(out->what + used, room - (size_t)used, ", padded to %d", (int)T);
    }
}

static void count_pairs(DynapipeBatch* batch, const Side* enc, const Side* dec) {
    for (int32_t i = 0; i < batch->num_seqs; i++) {
        int64_t a = enc->cu_seqlens[i + 1] - enc->cu_seqlens[i];
        int64_t b = batch->num_dec_tokens > 0 ? dec->cu_seqlens[i + 1] - dec->cu_seqlens[i] : 0;
        batch->num_squares += a * a;
        batch->num_dec_squares += b * b;
        batch->num_cross += a * b;
    }
}

Status checker_batch(Checker* c, CheckerBatch* out, const CheckerSequence* sequences, int32_t num_sequences,
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
    *out = (CheckerBatch){.batch = {.num_seqs = num_sequences,
                                    .num_tokens = enc.num_tokens,
                                    .max_seq_tokens = enc.longest,
                                    .cu_seqlens = enc.cu_seqlens,
                                    .tokens = enc.tokens,
                                    .positions = enc.positions,
                                    .seq_lens = enc.has_padding ? enc.seq_lens : NULL,
                                    .token_keys = enc.keys,
                                    .loss_scale = LOSS_SCALE}};
    DynapipeBatch* batch = &out->batch;
    if (has_decoder) {
        int32_t dec_T = padded_tokens(c, sequences, num_sequences, true, padding);
        TRY(make_side(c, &dec, sequences, num_sequences, true, dec_T));
        batch->num_dec_tokens = dec.num_tokens;
        batch->max_dec_seq_tokens = dec.longest;
        batch->dec_cu_seqlens = dec.cu_seqlens;
        batch->dec_tokens = dec.tokens;
        batch->dec_positions = dec.positions;
        batch->dec_seq_lens = dec.has_padding ? dec.seq_lens : NULL;
        batch->dec_token_keys = dec.keys;
    }
    count_pairs(batch, &enc, &dec);
    describe(out, sequences, has_decoder, T);
    return make_rows(c, batch, has_decoder ? &dec : &enc, sequences);
}

// --- checker_run --------------------
// checker_run.c -- a micro-batch through a chain, job by job, as the executor would run it: every buffer of
// exactly the bytes promised, rubbish in whatever a job may not rely on.

enum { MOST_BUFFERS = 7 };

// One call of the model, for what is said about it.
typedef struct {
    const char* function;
    const CheckerRange* range;
    const CheckerBatch* of;
    struct {
        const char* name;
        CheckerBuffer* buffer;
        unsigned char* before;  // contents, where the call may only read; NULL: it may write
    } uses[MOST_BUFFERS];
    int num_uses;
} Job;

// --- around a call ---------------------------------------------------------------------------------------

static void* use(Job* job, const char* name, CheckerBuffer* buffer) {
    if (buffer == NULL) { return NULL; }
    job->uses[job->num_uses].name = name;
    job->uses[job->num_uses++].buffer = buffer;
    return buffer->memory;
}

// A buffer that the call may only read.
static Status use_const(Checker* c, Job* job, const char* name, CheckerBuffer* buffer, const void** out) {
    *out = use(job, name, buffer);
    if (buffer == NULL || c->is_fast) { return STATUS_OK; }
    unsigned char* copy = CHECKER_NEW(c, unsigned char, buffer->num_bytes);
    if (copy == NULL) { return checker_no_memory(); }
    job->uses[job->num_uses - 1].before = copy;
    return checker_copy(c, copy, buffer->memory, buffer->num_bytes);
}

static const char* remedy(const char* buffer) {
    if (strcmp(buffer, "acts") == 0) {
        return "acts_bytes() says less than is used for these flags, or an index runs over num_tokens";
    }
    if (strcmp(buffer, "scratch") == 0) {
        return "scratch_bytes() is what the neediest of forward, backward_inputs and backward_weights uses";
    }
    if (strcmp(buffer, "losses") == 0) { return "one loss for each supervised row, not for each token"; }
    return "boundary_bytes() says less than is written there";
}

static Status check_guards(Checker* c, const Job* job) {
    for (int i = 0; i < job->num_uses; i++) {
        int64_t before = 0, behind = 0;
        const CheckerBuffer* buffer = job->uses[i].buffer;
        TRY(checker_buffer_damage(c, buffer, &before, &behind));
        if (before == 0 && behind == 0) { continue; }
        c->guards_are_known = true;
        return FAIL(
            STATUS_MISMATCH,
            "%s of blocks [%d, %d) wrote at least %lld bytes %s its %s (%s; %lld bytes were asked for) "
            "---> %s",
            job->function, (int)job->range->blocks.begin, (int)job->range->blocks.end,
            (long long)(behind > 0 ? behind : before), behind > 0 ? "behind" : "before", job->uses[i].name,
            job->of->what, (long long)buffer->num_bytes, remedy(job->uses[i].name));
    }
    return STATUS_OK;
}

static Status check_const(Checker* c, const Job* job) {
    for (int i = 0; i < job->num_uses; i++) {
        const CheckerBuffer* buffer = job->uses[i].buffer;
        if (job->uses[i].before == NULL) { continue; }
        unsigned char* now = malloc((size_t)buffer->num_bytes + 1);
        if (now == NULL) { return checker_no_memory(); }
        Status status = checker_copy(c, now, buffer->memory, buffer->num_bytes);
        bool same = status == STATUS_OK && memcmp(now, job->uses[i].before, (size_t)buffer->num_bytes) == 0;
        free(now);
        TRY(status);
        if (same) { continue; }
        return FAIL(
            STATUS_MISMATCH,
            "%s of blocks [%d, %d) changed its %s (%s) ---> it may only be read: it is read again later, "
            "or on its way to another rank",
            job->function, (int)job->range->blocks.begin, (int)job->range->blocks.end, job->uses[i].name,
            job->of->what);
    }
    return STATUS_OK;
}

static Status end_job(Checker* c, const Job* job, int code) {
    const DynapipeModel_v1* api = c->blocks->api;
    const char* function = job->function;
    if (code == 0 && api->finish != NULL && !c->is_queued) {
        code = api->finish(job->range->model);
        if (code != 0) { function = "finish"; }
    }
    if (code != 0) {
        const char* why = c->blocks->why != NULL ? c->blocks->why(c->blocks->ctx) : "";
        return FAIL(STATUS_MISMATCH, "%s of blocks [%d, %d) returned error %d (%s) %s", function,
                    (int)job->range->blocks.begin, (int)job->range->blocks.end, code, job->of->what, why);
    }
    if (c->is_fast) { return STATUS_OK; }
    TRY(check_guards(c, job));
    return check_const(c, job);
}

static Status make_buffer(Checker* c, CheckerBuffer** out, int64_t num_bytes) {
    return *out != NULL ? STATUS_OK : checker_buffer(c, out, num_bytes, false);
}

// --- a micro-batch ---------------------------------------------------------------------------------------

static CheckerBuffer** new_list(Checker* c, int32_t num_ranges, bool* ok) {
    CheckerBuffer** list = CHECKER_NEW(c, CheckerBuffer*, num_ranges);
    *ok &= list != NULL;
    return list;
}

static Status checker_work(Checker* c, CheckerWork* out, const CheckerChain* chain,
                           const CheckerBatch* batch) {
    bool ok = true;
    int32_t num_ranges = chain->num_ranges;
    *out = (CheckerWork){.chain = chain, .of = batch};
    out->acts = arena_alloc_array(&c->arena, (size_t)num_ranges, sizeof *out->acts);
    out->in = new_list(c, num_ranges, &ok);
    out->out = new_list(c, num_ranges, &ok);
    out->din = new_list(c, num_ranges, &ok);
    out->dout = new_list(c, num_ranges, &ok);
    out->scratch = new_list(c, num_ranges, &ok);
    if (!ok || out->acts == NULL) { return checker_no_memory(); }
    const DynapipeModel_v1* api = c->blocks->api;
    for (int32_t r = 0; r < num_ranges; r++) {
        void* model = chain->ranges[r]->model;
        TRY(make_buffer(c, &out->scratch[r], api->scratch_bytes(model, &batch->batch)));
        if (r == 0) { continue; }
        int64_t before_bytes = api->boundary_bytes(model, &batch->batch, 0);
        TRY(make_buffer(c, &out->in[r], before_bytes));
        TRY(make_buffer(c, &out->din[r], before_bytes));
        int64_t behind_bytes = api->boundary_bytes(chain->ranges[r - 1]->model, &batch->batch, 1);
        if (before_bytes != behind_bytes) {
            return FAIL(
                STATUS_MISMATCH,
                "%s: %lld bytes leave blocks [%d, %d), %lld enter [%d, %d) ---> boundary_bytes(is_behind "
                "1) of the one and (0) of the other are the same activation",
                batch->what, (long long)behind_bytes, (int)chain->ranges[r - 1]->blocks.begin,
                (int)chain->ranges[r - 1]->blocks.end, (long long)before_bytes,
                (int)chain->ranges[r]->blocks.begin, (int)chain->ranges[r]->blocks.end);
        }
        TRY(make_buffer(c, &out->out[r - 1], behind_bytes));
        TRY(make_buffer(c, &out->dout[r - 1], behind_bytes));
    }
    return checker_buffer(c, &out->losses, batch->batch.num_rows * (int64_t)sizeof(float), true);
}

static Status forward_range(Checker* c, CheckerWork* work, int32_t r, int flags, bool again) {
    const DynapipeModel_v1* api = c->blocks->api;
    const DynapipeBatch* batch = &work->of->batch;
    const CheckerRange* range = work->chain->ranges[r];
    bool is_last = r == work->chain->num_ranges - 1;
    Job job = {.function = "forward", .range = range, .of = work->of};
    const void* in;
    TRY(make_buffer(c, &work->acts[r][flags], api->acts_bytes(range->model, batch, flags)));
    TRY(checker_buffer_spoil(c, work->acts[r][flags]));
    TRY(checker_buffer_spoil(c, work->scratch[r]));
    if (is_last) { TRY(checker_buffer_spoil(c, work->losses)); }
    if (!is_last && !again) { TRY(checker_buffer_spoil(c, work->out[r])); }
    TRY(use_const(c, &job, "in", work->in[r], &in));
    void* out = again ? NULL : use(&job, "out", work->out[r]);
    void* acts = use(&job, "acts", work->acts[r][flags]);
    void* scratch = use(&job, "scratch", work->scratch[r]);
    bool has_losses = is_last && (flags & DYNAPIPE_FORWARD_HEAD);
    float* losses = has_losses ? use(&job, "losses", work->losses) : NULL;
    TRY(end_job(c, &job, api->forward(range->model, batch, in, out, acts, scratch, losses, flags)));
    if (is_last || again) { return STATUS_OK; }
    return checker_copy(c, work->in[r + 1]->memory, work->out[r]->memory, work->out[r]->num_bytes);
}

// All ranges, first to last. again: as an executor recomputes, `out` is NULL and `in` what came before.
static Status checker_forward(Checker* c, CheckerWork* work, int flags, bool again) {
    for (int32_t r = 0; r < work->chain->num_ranges; r++) { TRY(forward_range(c, work, r, flags, again)); }
    return STATUS_OK;
}

static Status backward_inputs_range(Checker* c, CheckerWork* work, int32_t r) {
    const CheckerRange* range = work->chain->ranges[r];
    Job job = {.function = "backward_inputs", .range = range, .of = work->of};
    const void *in, *dout;
    TRY(checker_buffer_spoil(c, work->scratch[r]));
    if (r > 0) { TRY(checker_buffer_spoil(c, work->din[r])); }
    TRY(use_const(c, &job, "in", work->in[r], &in));
    TRY(use_const(c, &job, "dout", work->dout[r], &dout));
    void* acts = use(&job, "acts", work->acts[r][CHECKER_KEEP]);
    void* din = use(&job, "din", work->din[r]);
    void* scratch = use(&job, "scratch", work->scratch[r]);
    TRY(end_job(
        c, &job,
        c->blocks->api->backward_inputs(range->model, &work->of->batch, in, acts, dout, din, scratch)));
    if (r == 0) { return STATUS_OK; }
    TRY(checker_copy(c, work->dout[r - 1]->memory, work->din[r]->memory, work->din[r]->num_bytes));
    TRY(checker_buffer_spoil(c, work->din[r]));
    return checker_buffer_spoil(c, work->in[r]);  // its memory has another use from here on
}

static Status checker_backward_inputs(Checker* c, CheckerWork* work) {
    for (int32_t r = work->chain->num_ranges - 1; r >= 0; r--) { TRY(backward_inputs_range(c, work, r)); }
    return STATUS_OK;
}

static Status checker_backward_weights(Checker* c, CheckerWork* work) {
    if (c->blocks->api->backward_weights == NULL) { return STATUS_OK; }
    for (int32_t r = work->chain->num_ranges - 1; r >= 0; r--) {
        const CheckerRange* range = work->chain->ranges[r];
        Job job = {.function = "backward_weights", .range = range, .of = work->of};
        const void* dout;
        TRY(checker_buffer_spoil(c, work->scratch[r]));
        TRY(use_const(c, &job, "dout", work->dout[r], &dout));
        void* acts = use(&job, "acts", work->acts[r][CHECKER_KEEP]);
        void* scratch = use(&job, "scratch", work->scratch[r]);
        TRY(end_job(c, &job,
                    c->blocks->api->backward_weights(range->model, &work->of->batch, acts, dout, scratch)));
    }
    return STATUS_OK;
}

static Status checker_step(Checker* c, CheckerWork* work) {
    TRY(checker_forward(c, work, CHECKER_KEEP, false));
    TRY(checker_backward_inputs(c, work));
    return checker_backward_weights(c, work);
}

// What backward finds in acts lies elsewhere from now on, and where it lay is rubbish.
static Status checker_move_acts(Checker* c, CheckerWork* work) {
    for (int32_t r = 0; r < work->chain->num_ranges; r++) {
        CheckerBuffer *from = work->acts[r][CHECKER_KEEP], *to;
        TRY(checker_buffer(c, &to, from->num_bytes, false));
        TRY(checker_copy(c, to->memory, from->memory, from->num_bytes));
        TRY(checker_buffer_spoil(c, from));
        work->acts[r][CHECKER_KEEP] = to;
    }
    return STATUS_OK;
}

static Status checker_finish(Checker* c, const CheckerWork* work) {
    for (int32_t r = 0; r < work->chain->num_ranges; r++) {
        Job job = {.function = "forward or backward", .range = work->chain->ranges[r], .of = work->of};
        TRY(end_job(c, &job, 0));
    }
    return STATUS_OK;
}

// --- what came out ---------------------------------------------------------------------------------------

static const float* checker_losses(const CheckerWork* work) {
    return (const float*)(const void*)work->losses->memory;
}

// `out` of all ranges but the last, as bytes here.
static Status checker_outputs(Checker* c, const CheckerWork* work, unsigned char** out, int64_t* num_bytes) {
    *num_bytes = 0;
    for (int32_t r = 0; r + 1 < work->chain->num_ranges; r++) { *num_bytes += work->out[r]->num_bytes; }
    unsigned char* to = CHECKER_NEW(c, unsigned char, *num_bytes);
    if (to == NULL) { return checker_no_memory(); }
    *out = to;
    for (int32_t r = 0; r + 1 < work->chain->num_ranges; r++) {
        TRY(checker_copy(c, to, work->out[r]->memory, work->out[r]->num_bytes));
        to += work->out[r]->num_bytes;
    }
    return STATUS_OK;
}

// --- checker_memory --------------------
// checker_memory.c -- buffers between guards; values there and back.

enum { LEAST_GUARD_BYTES = 16 * PLAN_BUFFER_ALIGN, GUARD_PATTERN = 0xa5, SPOILED = 0xff };

// As long as the buffer and some more: who forgets one of several arrays stays inside.
static int64_t guard_bytes(int64_t num_bytes) {
    return (num_bytes + PLAN_BUFFER_ALIGN - 1) / PLAN_BUFFER_ALIGN * PLAN_BUFFER_ALIGN + LEAST_GUARD_BYTES;
}

static Status checker_no_memory(void) {
    return FAIL(STATUS_NO_MEMORY, "no memory to check the model ---> check a smaller one");
}

static void free_memory(const Checker* c, const CheckerBuffer* buffer) {
    unsigned char* whole = buffer->memory - guard_bytes(buffer->num_bytes);
    if (c->device.api != NULL && !buffer->on_host) {
        c->device.api->release(c->device.ctx, whole);
    } else {
        free(whole);
    }
}

static void checker_release(Checker* c) {
    for (CheckerBuffer* buffer = c->buffers; buffer != NULL; buffer = buffer->next) {
        free_memory(c, buffer);
    }
    for (CheckerRange* range = c->ranges; range != NULL; range = range->next) {
        c->blocks->drop(c->blocks->ctx, range->model);
    }
    c->buffers = NULL;
    c->ranges = NULL;
    arena_reset(&c->arena);
}

static Status checker_copy(const Checker* c, void* to, const void* from, int64_t num_bytes) {
    if (num_bytes == 0) { return STATUS_OK; }
    if (c->device.api != NULL) { return c->device.api->copy(c->device.ctx, to, from, num_bytes); }
    memcpy(to, from, (size_t)num_bytes);
    return STATUS_OK;
}

// --- guards ----------------------------------------------------------------------------------------------

static Status fill(const Checker* c, unsigned char* to, int value, int64_t num_bytes) {
    unsigned char pattern[1024];
    if (c->device.api == NULL) {
        memset(to, value, (size_t)num_bytes);
        return STATUS_OK;
    }
    memset(pattern, value, sizeof pattern);
    for (int64_t at = 0; at < num_bytes; at += (int64_t)sizeof pattern) {
        int64_t left = num_bytes - at;
        TRY(checker_copy(c, to + at, pattern,
                         left < (int64_t)sizeof pattern ? left : (int64_t)sizeof pattern));
    }
    return STATUS_OK;
}

static Status checker_buffer(Checker* c, CheckerBuffer** out, int64_t num_bytes, bool on_host) {
    if (num_bytes < 0) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "a buffer of %lld bytes is asked for ---> acts_bytes(), "
                    "scratch_bytes() and boundary_bytes() are never negative",
                    (long long)num_bytes);
    }
    int64_t guard = guard_bytes(num_bytes), whole_bytes = 3 * guard;
    CheckerBuffer* buffer = CHECKER_NEW(c, CheckerBuffer, 1);
    if (buffer == NULL) { return checker_no_memory(); }
    void* whole = NULL;
    if (c->device.api != NULL && !on_host) {
        TRY(c->device.api->alloc(c->device.ctx, &whole, whole_bytes));
    } else {
        whole = aligned_alloc(PLAN_BUFFER_ALIGN, (size_t)whole_bytes);
    }
    if (whole == NULL) { return checker_no_memory(); }
    *buffer = (CheckerBuffer){(unsigned char*)whole + guard, num_bytes, on_host, c->buffers};
    c->buffers = buffer;
    *out = buffer;
    TRY(fill(c, whole, GUARD_PATTERN, whole_bytes));
    return checker_buffer_spoil(c, buffer);
}

// 0xff: not a number in every type, and no valid index.
static Status checker_buffer_spoil(const Checker* c, const CheckerBuffer* buffer) {
    return c->is_fast ? STATUS_OK : fill(c, buffer->memory, SPOILED, buffer->num_bytes);
}

// Bytes of the guards that were written over: how far before and behind the buffer; 0: none.
static Status checker_buffer_damage(const Checker* c, const CheckerBuffer* buffer, int64_t* before,
                                    int64_t* behind) {
    int64_t guard = guard_bytes(buffer->num_bytes);
    unsigned char* guards = malloc((size_t)(2 * guard));
    if (guards == NULL) { return checker_no_memory(); }
    unsigned char* last = guards + guard;
    Status status = checker_copy(c, guards, buffer->memory - guard, guard);
    if (status == STATUS_OK) { status = checker_copy(c, last, buffer->memory + buffer->num_bytes, guard); }
    *before = *behind = 0;
    for (int64_t i = 0; i < guard && status == STATUS_OK; i++) {
        if (last[i] != GUARD_PATTERN) { *behind = i + 1; }
        if (guards[guard - 1 - i] != GUARD_PATTERN) { *before = i + 1; }
    }
    free(guards);
    return status;
}

// --- values ----------------------------------------------------------------------------------------------

static double checker_epsilon(int32_t type) {
    return type == DYNAPIPE_FLOAT32 ? 0x1p-24 : type == DYNAPIPE_FLOAT16 ? 0x1p-11 : 0x1p-8;
}

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float from_half(uint16_t half) {
    int exponent = half >> 10 & 31, mantissa = half & 1023;
    float magnitude = exponent == 31 ? (mantissa != 0 ? NAN : INFINITY)
                      : exponent > 0 ? ldexpf((float)(1024 + mantissa), exponent - 25)
                                     : ldexpf((float)mantissa, -24);
    return half >> 15 != 0 ? -magnitude : magnitude;
}

// Of numbers that parameters are; to nearest.
static uint16_t to_half(float value) {
    int exponent;
    float magnitude = fabsf(value);
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    if (!(magnitude < 65504.0F)) { return (uint16_t)(sign | 0x7c00); }
    (void)frexpf(magnitude, &exponent);  // magnitude < 2^exponent
    if (exponent < -13) { return (uint16_t)(sign + (uint16_t)lrintf(ldexpf(magnitude, 24))); }
    int32_t mantissa = (int32_t)lrintf(ldexpf(magnitude, 11 - exponent));  // 1024 ... 2048
    return (uint16_t)(sign + ((exponent + 14) << 10) + mantissa - 1024);
}

static uint16_t to_bfloat(float value) {
    uint32_t bits = to_bits(value);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Values of a DynapipeType where values live, as floats here, and back (rounded).
static Status checker_read_values(Checker* c, float* to, const void* from, int32_t type, int64_t num_values) {
    if (type == DYNAPIPE_FLOAT32) { return checker_copy(c, to, from, num_values * 4); }
    uint16_t* halves = malloc((size_t)num_values * sizeof *halves + 1);
    if (halves == NULL) { return checker_no_memory(); }
    Status status = checker_copy(c, halves, from, num_values * 2);
    for (int64_t i = 0; i < num_values; i++) {
        to[i] = type == DYNAPIPE_FLOAT16 ? from_half(halves[i]) : from_bits((uint32_t)halves[i] << 16);
    }
    free(halves);
    return status;
}

static Status checker_write_values(Checker* c, void* to, const float* from, int32_t type,
                                   int64_t num_values) {
    if (type == DYNAPIPE_FLOAT32) { return checker_copy(c, to, from, num_values * 4); }
    uint16_t* halves = malloc((size_t)num_values * sizeof *halves + 1);
    if (halves == NULL) { return checker_no_memory(); }
    for (int64_t i = 0; i < num_values; i++) {
        halves[i] = type == DYNAPIPE_FLOAT16 ? to_half(from[i]) : to_bfloat(from[i]);
    }
    Status status = checker_copy(c, to, halves, num_values * 2);
    free(halves);
    return status;
}

// --- checker_slopes --------------------
/*
checker_slopes.c -- the law of gradients: for a direction d in the space of parameters,

    (L(p + h d) - L(p - h d)) / 2h = sum of gradient * d        L: loss_scale * sum of losses of a micro-batch

Directions are confined to a piece of the flat array, so that small tensors count as much as large ones: one
with the signs of the gradients (shows wrong sizes), one with signs drawn by lot (shows what is missing).
Parameters are moved at random first: what starts as zeros would hide what stands behind it. What cannot be
seen above the rounding of the losses is passed over.
*/

enum { MOST_PIECES = 64, MOST_COARSE_PIECES = 6, NUM_STEPS = 6, WIDEST = 2 };

typedef struct {
    Checker* c;
    CheckerRange* range;  // the whole model
    CheckerWork work;
    float *params, *gradients, *moved;  // (num_params), as kept by the model; moved: of a piece
    double loss, loss_noise;            // at these parameters; what rounding does to it
    bool is_coarse;                     // parameters of 8 or 11 bits
    Rng rng;
} Slopes;

static double unit(Rng* rng) {  // [-1, 1)
    return (double)(int32_t)(uint32_t)rng_u64(rng) * 0x1p-31;
}

static Status evaluate(Slopes* s, double* out) {
    TRY(checker_forward(s->c, &s->work, CHECKER_KEEP, false));
    const DynapipeBatch* batch = &s->work.of->batch;
    *out = 0;
    for (int32_t r = 0; r < batch->num_rows; r++) { *out += (double)checker_losses(&s->work)[r]; }
    *out *= (double)batch->loss_scale;
    return STATUS_OK;
}

static Status write_params(Slopes* s, const float* values, int64_t begin, int64_t count) {
    const DynapipeParams_v1* params = &s->range->params;
    int64_t value_bytes = params->param_type == DYNAPIPE_FLOAT32 ? 4 : 2;
    return checker_write_values(s->c, (char*)params->params + begin * value_bytes, values, params->param_type,
                                count);
}

static double typical_value(const float* params, int64_t count) {
    double squares = 0;
    for (int64_t i = 0; i < count; i++) { squares += (double)params[i] * params[i]; }
    double typical = sqrt(squares / (double)count);
    return typical > 0.02 ? typical : 0.02;  // GPT-2's weights start so
}

// --- one direction ---------------------------------------------------------------------------------------

typedef struct {
    double slope, measured, noise;
    double usual;  // size of a slope with signs drawn by lot; one may be nearly 0 by chance
} Slope;

// Along signs[begin, begin + count) * step: as gradients say, and as losses do. What the parameters really
// became counts, rounding included.
static Status measure(Slopes* s, Slope* out, const signed char* signs, int64_t begin, int64_t count,
                      double step) {
    double losses[2], squares = 0;
    *out = (Slope){.noise = s->loss_noise / 2};
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < count; i++) {
            double moved = s->params[begin + i] + (side == 0 ? step : -step) * signs[i];
            s->moved[i] = (float)moved;
        }
        TRY(write_params(s, s->moved, begin, count));
        TRY(checker_read_values(s->c, s->moved,
                                (char*)s->range->params.params +
                                    begin * (s->range->params.param_type == DYNAPIPE_FLOAT32 ? 4 : 2),
                                s->range->params.param_type, count));
        for (int64_t i = 0; i < count; i++) {
            double way = ((double)s->moved[i] - s->params[begin + i]) / 2;
            out->slope += (side == 0 ? way : -way) * s->gradients[begin + i];
            squares += 2 * way * way * s->gradients[begin + i] * s->gradients[begin + i];
        }
        TRY(evaluate(s, &losses[side]));
    }
    out->usual = sqrt(squares);
    out->measured = (losses[0] - losses[1]) / 2;
    return write_params(s, s->params + begin, begin, count);
}

// So long that parameters change by a fiftieth (rounded to 8 bits: a quarter), the loss by no more than that.
static double first_step(const Slopes* s, int64_t begin, int64_t count) {
    double steepness = 0, share = s->is_coarse ? 0.25 : 0.02;
    for (int64_t i = begin; i < begin + count; i++) { steepness += fabs((double)s->gradients[i]); }
    double step = share * typical_value(s->params + begin, count);
    return steepness * step > share * s->loss ? share * s->loss / steepness : step;
}

// A curved loss (one with kinks, too) needs a short step, a flat one a long one: any of a few may do.
static Status check_direction(Slopes* s, const signed char* signs, int64_t begin, int64_t count) {
    static const double steps[NUM_STEPS] = {1, 0.25, 4, 0x1p-4, 0x1p-6, 0x1p-8},
                        coarse_steps[NUM_STEPS] = {1, 0.5, 4, 2, 0.25, 0.125};
    double step = first_step(s, begin, count), share = s->is_coarse ? 0.2 : 0.01;
    const double seen = s->is_coarse ? 0.3 : 0.01;  // a short step agrees with anything, for noise
    Slope first = {0};
    for (int i = 0; i < NUM_STEPS; i++) {
        Slope slope;
        TRY(measure(s, &slope, signs, begin, count, step * (s->is_coarse ? coarse_steps : steps)[i]));
        double larger = fmax(slope.usual, fmax(fabs(slope.slope), fabs(slope.measured)));
        bool agrees = fabs(slope.slope - slope.measured) <= share * larger + slope.noise;
        bool is_seen = slope.noise <= seen * larger;
        if (agrees && (is_seen || i == WIDEST)) { return STATUS_OK; }
        if (i == 0) { first = slope; }
    }
    return FAIL(
        STATUS_MISMATCH,
        "parameters [%lld, %lld) of %lld of the whole model (%s): moved a little, the loss changes by %.4g, "
        "by the gradients it would by %.4g ---> zero, or far off: a term of backward is missing; off by a "
        "factor: loss_scale or a mean; the piece of the array says which tensor",
        (long long)begin, (long long)(begin + count), (long long)s->range->params.num_params,
        s->work.of->what, first.measured, first.slope);
}

// The steepest single parameter of a piece.
static Status check_steepest(Slopes* s, int64_t begin, int64_t count) {
    int64_t steepest = begin;
    const signed char up = 1;
    for (int64_t i = begin; i < begin + count; i++) {
        if (fabsf(s->gradients[i]) > fabsf(s->gradients[steepest])) { steepest = i; }
    }
    return check_direction(s, &up, steepest, 1);
}

static Status check_piece(Slopes* s, int64_t begin, int64_t count) {
    signed char* signs = CHECKER_NEW(s->c, signed char, count);
    if (signs == NULL) { return checker_no_memory(); }
    for (int by_lot = 0; by_lot < (s->is_coarse ? 1 : 2); by_lot++) {
        for (int64_t i = 0; i < count; i++) {
            float gradient =
                by_lot || s->gradients[begin + i] == 0 ? (float)unit(&s->rng) : s->gradients[begin + i];
            signs[i] = gradient < 0 ? -1 : 1;
        }
        TRY(check_direction(s, signs, begin, count));
    }
    return s->is_coarse ? STATUS_OK : check_steepest(s, begin, count);
}

// --- the whole -------------------------------------------------------------------------------------------

// Random parameters near the model's own, as it can keep them, and the gradients there.
static Status set_up(Slopes* s) {
    Checker* c = s->c;
    int64_t num_params = s->range->params.num_params;
    s->moved = CHECKER_NEW(c, float, num_params);
    if (s->moved == NULL) { return checker_no_memory(); }
    TRY(checker_params(c, s->work.chain, &s->params));
    for (int64_t begin = 0; begin < num_params; begin += 64) {
        int64_t count = num_params - begin < 64 ? num_params - begin : 64;
        double typical = typical_value(s->params + begin, count);
        for (int64_t i = begin; i < begin + count; i++) {
            s->params[i] += (float)(0.3 * typical * unit(&s->rng));
        }
    }
    TRY(write_params(s, s->params, 0, num_params));
    TRY(checker_params(c, s->work.chain, &s->params));  // rounded
    checker_zero_gradients(c, s->work.chain);
    TRY(checker_step(c, &s->work));
    TRY(checker_gradients(c, s->work.chain, &s->gradients));
    const DynapipeBatch* batch = &s->work.of->batch;
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
        if (status == STATUS_MISMATCH) {  // a kink of the loss may lie just there: elsewhere, then
            TRY(set_up(s));
            status = check_piece(s, begin, end - begin);
        }
        TRY(status);
    }
    return STATUS_OK;
}

static Status checker_law_slopes(Checker* c) {
    CheckerChain whole;
    CheckerSequence sequences[CHECKER_MOST_SEQUENCES];
    CheckerBatch batch;
    TRY(checker_chain(c, &whole, NULL, 0));
    TRY(checker_batch(c, &batch, sequences, checker_standard(c, sequences, 1), 0));
    Slopes s = {.c = c, .range = whole.ranges[0], .rng = rng_seed(7)};
    s.is_coarse = s.range->params.param_type != DYNAPIPE_FLOAT32;
    TRY(checker_work(c, &s.work, &whole, &batch));
    TRY(set_up(&s));
    c->is_fast = true;
    Status status = check_pieces(&s);
    c->is_fast = false;
    return status;
}

// --- checker_jobs --------------------
// checker_jobs.c -- laws of a range's jobs, on the model cut wherever it can be: memory, recomputation, the
// divided backward, sums of gradients.

// How the model is cut: into the smallest ranges, or into few, in which several layers come to share a place.
typedef enum { CUT_SMALL, CUT_LARGE } Cut;

// The standard micro-batches on their way through the chain.
typedef struct {
    CheckerChain chain;
    CheckerBatch batches[CHECKER_STANDARD];
    CheckerWork works[CHECKER_STANDARD];
} Setting;

static Status checker_jobs_set_up(Checker* c, Setting** out, Cut cut) {
    Setting* s = CHECKER_NEW(c, Setting, 1);
    int32_t* cuts = CHECKER_NEW(c, int32_t, c->num_blocks);
    if (s == NULL || cuts == NULL) { return checker_no_memory(); }
    int32_t num_cuts = checker_cuts(c, cuts), middle = num_cuts / 2;
    if (cut == CUT_LARGE) {
        cuts += middle;
        num_cuts = num_cuts > 2;
    }
    TRY(checker_chain(c, &s->chain, cuts, num_cuts));
    for (int32_t i = 0; i < CHECKER_STANDARD; i++) {
        CheckerSequence sequences[CHECKER_MOST_SEQUENCES];
        TRY(checker_batch(c, &s->batches[i], sequences, checker_standard(c, sequences, i), 0));
        TRY(checker_work(c, &s->works[i], &s->chain, &s->batches[i]));
    }
    *out = s;
    return STATUS_OK;
}

// From zero: the gradients that one micro-batch leaves.
static Status gradients_of(Checker* c, const CheckerChain* chain, CheckerWork* work, float** out) {
    checker_zero_gradients(c, chain);
    TRY(checker_step(c, work));
    return checker_gradients(c, chain, out);
}

static Status compare_gradients(const CheckerChain* chain, const float* expected, const float* found,
                                double tolerance, const char* what, const char* remedy) {
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        char text[160];
        CheckerDifference difference;
        int64_t num_params = chain->ranges[r]->params.num_params;
        if (checker_differ(expected, found, num_params, tolerance, &difference)) {
            return FAIL(STATUS_MISMATCH, "%s: gradients of blocks [%d, %d): %s ---> %s", what,
                        (int)chain->ranges[r]->blocks.begin, (int)chain->ranges[r]->blocks.end,
                        checker_difference_text(text, &difference, num_params), remedy);
        }
        expected += num_params;
        found += num_params;
    }
    return STATUS_OK;
}

// --- memory ----------------------------------------------------------------------------------------------

static Status check_untouched(Checker* c, const Setting* s, const float* before, bool gradients,
                              const char* function) {
    float* now;
    TRY(gradients ? checker_gradients(c, &s->chain, &now) : checker_params(c, &s->chain, &now));
    if (memcmp(before, now, (size_t)s->chain.num_values * sizeof *now) == 0) { return STATUS_OK; }
    return FAIL(STATUS_MISMATCH, "%s changed %s ---> %s", function, gradients ? "gradients" : "parameters",
                gradients ? "a forward runs more often than its backward (recomputation, validation)"
                          : "parameters are the optimizer's to change, between steps");
}

static Status check_numbers(const float* values, int64_t num_values, const char* what, const char* remedy) {
    for (int64_t i = 0; i < num_values; i++) {
        if (isfinite(values[i])) { continue; }
        return FAIL(STATUS_MISMATCH, "%s: value %lld of %lld is not a number ---> %s", what, (long long)i,
                    (long long)num_values, remedy);
    }
    return STATUS_OK;
}

// Buffers came filled with what is no number.
static Status check_all_numbers(Checker* c, const Setting* s) {
    const float* gradients;
    char what[64];
    float* all;
    for (int32_t i = 0; i < CHECKER_STANDARD; i++) {
        TRY(check_numbers(
            checker_losses(&s->works[i]), s->batches[i].batch.num_rows, "losses",
            "forward writes all of losses and out (adds to neither), and reads no acts or scratch "
            "that it has not written"));
    }
    TRY(checker_gradients(c, &s->chain, &all));
    gradients = all;
    for (int32_t r = 0; r < s->chain.num_ranges; r++) {
        DynapipeRange blocks = s->chain.ranges[r]->blocks;
        int64_t num_params = s->chain.ranges[r]->params.num_params;
        snprintf(what, sizeof what, "gradients of blocks [%d, %d)", (int)blocks.begin, (int)blocks.end);
        TRY(check_numbers(
            gradients, num_params, what,
            "backward_inputs writes all of din (adds nothing to it) and reads acts as forward left "
            "them; backward_weights reads acts as backward_inputs left them, and dout: not scratch, "
            "and not `in`, whose memory has another use by then"));
        gradients += num_params;
    }
    return STATUS_OK;
}

// Guards are looked at behind every call (checker_run.c).
static Status check_bytes(Checker* c, Cut cut) {
    Setting* s;
    float *params, *gradients;
    TRY(checker_jobs_set_up(c, &s, cut));
    TRY(checker_params(c, &s->chain, &params));
    checker_zero_gradients(c, &s->chain);
    TRY(checker_gradients(c, &s->chain, &gradients));
    for (int32_t i = 0; i < CHECKER_STANDARD; i++) {
        TRY(checker_forward(c, &s->works[i], 0, false));
        TRY(checker_forward(c, &s->works[i], DYNAPIPE_FORWARD_HEAD, false));
        TRY(checker_forward(c, &s->works[i], CHECKER_KEEP, false));
    }
    TRY(check_untouched(c, s, gradients, true, "forward"));
    for (int32_t i = 0; i < CHECKER_STANDARD; i++) {
        TRY(checker_backward_inputs(c, &s->works[i]));
        TRY(checker_backward_weights(c, &s->works[i]));
    }
    TRY(check_untouched(c, s, params, false, "forward, backward_inputs or backward_weights"));
    return check_all_numbers(c, s);
}

static Status checker_law_bytes(Checker* c) {
    TRY(check_bytes(c, CUT_SMALL));
    return check_bytes(c, CUT_LARGE);
}

// --- the forward again -----------------------------------------------------------------------------------

static Status compare_losses(const CheckerWork* work, const float* expected, const char* what,
                             const char* remedy, double tolerance) {
    char text[160];
    CheckerDifference difference;
    int32_t num_rows = work->of->batch.num_rows;
    if (!checker_differ(expected, checker_losses(work), num_rows, tolerance, &difference)) {
        return STATUS_OK;
    }
    return FAIL(STATUS_MISMATCH, "losses of %s (%s): %s ---> %s", what, work->of->what,
                checker_difference_text(text, &difference, num_rows), remedy);
}

static Status compare_outputs(Checker* c, const CheckerWork* work, const unsigned char* expected,
                              int64_t num_bytes, const char* what, const char* remedy) {
    unsigned char* found;
    int64_t first = 0;
    TRY(checker_outputs(c, work, &found, &num_bytes));
    if (memcmp(expected, found, (size_t)num_bytes) == 0) { return STATUS_OK; }
    while (expected[first] == found[first]) { first++; }
    int32_t r = 0;
    while (first >= work->out[r]->num_bytes) { first -= work->out[r++]->num_bytes; }
    return FAIL(STATUS_MISMATCH, "out of blocks [%d, %d), %s (%s), differs from byte %lld of %lld on ---> %s",
                (int)work->chain->ranges[r]->blocks.begin, (int)work->chain->ranges[r]->blocks.end, what,
                work->of->what, (long long)first, (long long)work->out[r]->num_bytes, remedy);
}

static Status check_forward_again(Checker* c, const Setting* s, CheckerWork* work) {
    static const char* const remedy =
        "same inputs, same bits: does forward read acts or scratch before it has written there, state that "
        "it "
        "left in the model, or a counter of random numbers (batch->token_keys is for dropout)?";
    unsigned char* kept;
    int64_t num_bytes;
    float *losses = CHECKER_NEW(c, float, work->of->batch.num_rows), *expected, *found;
    if (losses == NULL) { return checker_no_memory(); }
    TRY(gradients_of(c, &s->chain, work, &expected));
    TRY(checker_outputs(c, work, &kept, &num_bytes));
    memcpy(losses, checker_losses(work), (size_t)work->of->batch.num_rows * sizeof *losses);
    TRY(checker_forward(c, work, CHECKER_KEEP, false));
    TRY(compare_outputs(c, work, kept, num_bytes, "of the same forward again", remedy));
    TRY(checker_forward(c, work, DYNAPIPE_FORWARD_HEAD, false));
    TRY(compare_losses(work, losses, "a forward with HEAD alone", "validation calls it so", c->tolerance));
    TRY(checker_forward(c, work, 0, false));
    TRY(compare_outputs(c, work, kept, num_bytes, "with flags 0",
                        "flags say what is kept in acts, not what is computed"));
    checker_zero_gradients(c, &s->chain);
    TRY(checker_forward(c, work, CHECKER_KEEP, true));
    TRY(compare_losses(work, losses, "a forward recomputed (out NULL)", remedy, 0));
    TRY(checker_backward_inputs(c, work));
    TRY(checker_backward_weights(c, work));
    TRY(checker_gradients(c, &s->chain, &found));
    return compare_gradients(&s->chain, expected, found, c->tolerance, "after a recomputed forward",
                             "with KEEP, acts must hold all that backward reads, also where out is NULL");
}

static Status check_forwards(Checker* c, Cut cut) {
    Setting* s;
    TRY(checker_jobs_set_up(c, &s, cut));
    for (int32_t i = 0; i < CHECKER_STANDARD; i++) {
        TRY(check_forward_again(c, s, &s->works[i]));
        CheckerBatch evaluated = s->batches[i];
        evaluated.batch.token_keys = evaluated.batch.dec_token_keys = NULL;  // as in validation
        CheckerWork work;
        TRY(checker_work(c, &work, &s->chain, &evaluated));
        TRY(checker_forward(c, &work, DYNAPIPE_FORWARD_HEAD, false));
    }
    return STATUS_OK;
}

static Status checker_law_forward(Checker* c) {
    TRY(check_forwards(c, CUT_SMALL));
    return check_forwards(c, CUT_LARGE);
}

// --- backward --------------------------------------------------------------------------------------------

// F1 B1 W1 F2 B2 W2 against F1 F2 B1 B2 W2 W1, each in its own acts, which lie elsewhere before B1 and W2.
static Status checker_law_divided(Checker* c) {
    Setting* s;
    float *joint, *divided;
    TRY(checker_jobs_set_up(c, &s, CUT_SMALL));
    CheckerWork *one = &s->works[1], *other = &s->works[2];
    checker_zero_gradients(c, &s->chain);
    TRY(checker_step(c, one));
    TRY(checker_step(c, other));
    TRY(checker_gradients(c, &s->chain, &joint));
    checker_zero_gradients(c, &s->chain);
    TRY(checker_forward(c, one, CHECKER_KEEP, false));
    TRY(checker_forward(c, other, CHECKER_KEEP, false));
    TRY(checker_move_acts(c, one));
    TRY(checker_backward_inputs(c, one));
    TRY(checker_backward_inputs(c, other));
    TRY(checker_move_acts(c, other));
    TRY(checker_backward_weights(c, other));
    TRY(checker_backward_weights(c, one));
    TRY(checker_gradients(c, &s->chain, &divided));
    return compare_gradients(
        &s->chain, joint, divided, c->tolerance,
        "two micro-batches under way at once, weights' gradients last",
        "what backward needs lies in that micro-batch's acts: not in scratch (another "
        "job writes there), not in "
        "the model, not in `in` (gone after backward_inputs); acts may move: no pointer into "
        "them is kept");
}

static Status queue_jobs(Checker* c, CheckerWork* one, CheckerWork* other) {
    TRY(checker_forward(c, one, CHECKER_KEEP, false));
    TRY(checker_forward(c, other, CHECKER_KEEP, false));
    TRY(checker_backward_inputs(c, one));
    TRY(checker_backward_inputs(c, other));
    TRY(checker_backward_weights(c, other));
    return checker_backward_weights(c, one);
}

// The jobs of two micro-batches one behind the other, in the same scratch, as a stage runs them, and waited
// for once. (The whole model: what its ranges hand on would be waited for.)
static Status checker_law_queued(Checker* c) {
    static const char* const remedy =
        "a job may still be queued when the next one is called: what kernels read (copies of tokens, rows, "
        "targets and so on) is that micro-batch's own until finish(), or is copied in the queue's order";
    CheckerChain whole;
    CheckerBatch batches[2];
    CheckerWork works[2];
    float *waited, *queued, *losses[2];
    TRY(checker_chain(c, &whole, NULL, 0));
    checker_zero_gradients(c, &whole);
    for (int i = 0; i < 2; i++) {
        CheckerSequence sequences[CHECKER_MOST_SEQUENCES];
        TRY(checker_batch(c, &batches[i], sequences, checker_standard(c, sequences, i + 1), 0));
        TRY(checker_work(c, &works[i], &whole, &batches[i]));
        TRY(checker_step(c, &works[i]));
        losses[i] = CHECKER_NEW(c, float, batches[i].batch.num_rows);
        if (losses[i] == NULL) { return checker_no_memory(); }
        memcpy(losses[i], checker_losses(&works[i]), (size_t)batches[i].batch.num_rows * sizeof(float));
        TRY(checker_buffer_spoil(c, works[i].losses));
    }
    TRY(checker_gradients(c, &whole, &waited));
    checker_zero_gradients(c, &whole);
    bool is_larger = works[0].scratch[0]->num_bytes > works[1].scratch[0]->num_bytes;
    works[is_larger].scratch[0] = works[!is_larger].scratch[0];
    c->is_fast = c->is_queued = true;
    Status status = queue_jobs(c, &works[0], &works[1]);
    c->is_queued = false;
    if (status == STATUS_OK) { status = checker_finish(c, &works[0]); }
    c->is_fast = false;
    TRY(status);
    for (int i = 0; i < 2; i++) {
        TRY(compare_losses(&works[i], losses[i], "jobs that are waited for once", remedy, c->tolerance));
    }
    TRY(checker_gradients(c, &whole, &queued));
    return compare_gradients(&whole, waited, queued, c->tolerance, "jobs that are waited for once", remedy);
}

// Gradients that are not numbers, then zero_gradients().
static Status check_zeroed(Checker* c, const Setting* s) {
    for (int32_t r = 0; r < s->chain.num_ranges; r++) {
        const DynapipeParams_v1* params = &s->chain.ranges[r]->params;
        float* rubbish = CHECKER_NEW(c, float, params->num_params);
        if (rubbish == NULL) { return checker_no_memory(); }
        for (int64_t i = 0; i < params->num_params; i++) { rubbish[i] = NAN; }
        TRY(checker_write_values(c, params->grads, rubbish, params->grad_type, params->num_params));
    }
    float* found;
    checker_zero_gradients(c, &s->chain);
    TRY(checker_gradients(c, &s->chain, &found));
    for (int64_t i = 0; i < s->chain.num_values; i++) {
        if (found[i] == 0) { continue; }
        return FAIL(STATUS_MISMATCH,
                    "zero_gradients left %.3g in value %lld of %lld (all ranges) ---> it zeroes all of "
                    "params->grads",
                    (double)found[i], (long long)i, (long long)s->chain.num_values);
    }
    return STATUS_OK;
}

static Status check_loss_scale(Checker* c, Setting* s, const float* gradients) {
    CheckerBatch doubled = s->batches[1];
    CheckerWork work;
    float *scaled, *losses = CHECKER_NEW(c, float, doubled.batch.num_rows);
    if (losses == NULL) { return checker_no_memory(); }
    memcpy(losses, checker_losses(&s->works[1]), (size_t)doubled.batch.num_rows * sizeof *losses);
    doubled.batch.loss_scale *= 2;
    TRY(checker_work(c, &work, &s->chain, &doubled));
    TRY(gradients_of(c, &s->chain, &work, &scaled));
    TRY(compare_losses(&work, losses, "a micro-batch with twice the loss_scale",
                       "losses are cross entropies in nats; loss_scale belongs to gradients alone", 0));
    for (int64_t i = 0; i < s->chain.num_values; i++) { scaled[i] /= 2; }
    return compare_gradients(
        &s->chain, gradients, scaled, c->tolerance, "half of those with twice the loss_scale",
        "every row's gradient starts as loss_scale * (softmax - target), without a mean over "
        "rows or tokens");
}

static Status checker_law_sums(Checker* c) {
    Setting* s;
    float *one, *other, *both;
    TRY(checker_jobs_set_up(c, &s, CUT_SMALL));
    TRY(check_zeroed(c, s));
    TRY(gradients_of(c, &s->chain, &s->works[1], &one));
    TRY(check_loss_scale(c, s, one));
    TRY(gradients_of(c, &s->chain, &s->works[2], &other));
    TRY(checker_step(c, &s->works[1]));
    TRY(checker_gradients(c, &s->chain, &both));
    for (int64_t i = 0; i < s->chain.num_values; i++) { one[i] += other[i]; }
    return compare_gradients(&s->chain, one, both, c->tolerance, "two micro-batches one after the other",
                             "gradients are added (+=): zero_gradients() alone zeroes them, once a step");
}

// --- checker_chain --------------------
// checker_chain.c -- ranges of the model as make() gives them, and the whole model out of several.

static const char* why(const Checker* c) {
    return c->blocks->why != NULL ? c->blocks->why(c->blocks->ctx) : "without words (blocks->why is NULL)";
}

// --- ranges ----------------------------------------------------------------------------------------------

static Status check_params(const CheckerRange* range) {
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
        if (tied->group >= 0 && tied->begin >= 0 && tied->count > 0 &&
            tied->begin + tied->count <= params->num_params) {
            continue;
        }
        return FAIL(STATUS_MISMATCH,
                    "blocks [%d, %d): tied group %d is values [%lld, %lld) of %lld ---> begin and count are "
                    "values (not bytes) of this range's own array",
                    begin, end, (int)tied->group, (long long)tied->begin,
                    (long long)(tied->begin + tied->count), (long long)params->num_params);
    }
    return STATUS_OK;
}

static Status checker_range(Checker* c, CheckerRange** out, DynapipeRange blocks, bool has_values) {
    CheckerRange* range = CHECKER_NEW(c, CheckerRange, 1);
    if (range == NULL) { return checker_no_memory(); }
    range->blocks = blocks;
    int code = c->blocks->make(c->blocks->ctx, blocks, has_values, &range->model, &range->params);
    if (code != 0) {
        return FAIL(STATUS_MISMATCH,
                    "make() of blocks [%d, %d) of %d returned error %d: %s ---> a stage may be any "
                    "contiguous blocks; block 0 is the embedding, block %d the head",
                    (int)blocks.begin, (int)blocks.end, (int)c->num_blocks, code, why(c),
                    (int)c->num_blocks - 1);
    }
    range->next = c->ranges;
    c->ranges = range;
    *out = range;
    TRY(check_params(range));
    if (!has_values || (range->params.params != NULL && range->params.grads != NULL)) { return STATUS_OK; }
    return FAIL(STATUS_MISMATCH,
                "make() of blocks [%d, %d) gave no %s ---> with has_values 1 it fills params->params and "
                "params->grads",
                (int)blocks.begin, (int)blocks.end,
                range->params.params == NULL ? "parameters" : "gradients");
}

// The embedding is no stage alone, a decoder's embedding goes with the layer behind it.
static int32_t checker_cuts(const Checker* c, int32_t* out) {
    int32_t num_cuts = 0;
    for (int32_t b = 2; b < c->num_blocks; b++) {
        bool behind_dec_embedding = c->blocks->num_dec_layers > 0 && b == c->blocks->num_layers + 2;
        bool is_head = b == c->num_blocks - 1;
        if (behind_dec_embedding || (is_head && c->blocks->shapes.head_has_layer)) { continue; }
        out[num_cuts++] = b;
    }
    return num_cuts;
}

Status checker_chain(Checker* c, CheckerChain* out, const int32_t* cuts, int32_t num_cuts) {
    *out = (CheckerChain){.ranges = CHECKER_NEW(c, CheckerRange*, num_cuts + 1), .num_ranges = num_cuts + 1};
    if (out->ranges == NULL) { return checker_no_memory(); }
    for (int32_t r = 0; r <= num_cuts; r++) {
        DynapipeRange blocks = {.begin = r > 0 ? cuts[r - 1] : 0,
                                .end = r < num_cuts ? cuts[r] : c->num_blocks};
        TRY(checker_range(c, &out->ranges[r], blocks, true));
        out->num_values += out->ranges[r]->params.num_params;
    }
    return STATUS_OK;
}

// The first range of the chain that has a copy of that group, and which values it is there; NULL: none.
static const DynapipeTied* checker_first_copy(const CheckerChain* chain, int32_t group,
                                              const CheckerRange** out) {
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        const DynapipeParams_v1* params = &chain->ranges[r]->params;
        for (int32_t i = 0; i < params->num_tied; i++) {
            if (params->tied[i].group != group) { continue; }
            *out = chain->ranges[r];
            return &params->tied[i];
        }
    }
    return NULL;
}

// --- values ----------------------------------------------------------------------------------------------

static void checker_zero_gradients(const Checker* c, const CheckerChain* chain) {
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        c->blocks->api->zero_gradients(chain->ranges[r]->model);
    }
}

static Status read_all(Checker* c, const CheckerChain* chain, bool gradients, float** out) {
    float* to = CHECKER_NEW(c, float, chain->num_values);
    if (to == NULL) { return checker_no_memory(); }
    *out = to;
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        const DynapipeParams_v1* params = &chain->ranges[r]->params;
        TRY(checker_read_values(c, to, gradients ? params->grads : params->params,
                                gradients ? params->grad_type : params->param_type, params->num_params));
        to += params->num_params;
    }
    return STATUS_OK;
}

// All of the chain's, range by range: (chain->num_values).
static Status checker_params(Checker* c, const CheckerChain* chain, float** out) {
    return read_all(c, chain, false, out);
}

static Status checker_gradients(Checker* c, const CheckerChain* chain, float** out) {
    return read_all(c, chain, true, out);
}

// --- checker_ranges --------------------
// checker_ranges.c -- laws of what is asked before anything runs: sizes of ranges, bytes of buffers.

// --- ranges ----------------------------------------------------------------------------------------------

// Sums of gradients in another order differ by some hundreds of roundings of float32; where values have 8 or
// 11 bits, activations do too, and fewer may add up.
static void set_tolerance(Checker* c, const DynapipeParams_v1* params) {
    double of_params = checker_epsilon(params->param_type), of_grads = checker_epsilon(params->grad_type);
    c->epsilon = of_params > of_grads ? of_params : of_grads;
    c->tolerance = c->epsilon * (c->epsilon < 0x1p-20 ? 512 : 16);
}

// A tied copy is as long, and holds the same values, as the first one of the chain.
static Status check_copy(Checker* c, const CheckerChain* chain, int32_t r, const DynapipeTied* tied) {
    const CheckerRange *range = chain->ranges[r], *first = NULL;
    const DynapipeTied* original = checker_first_copy(chain, tied->group, &first);
    if (first == range) { return STATUS_OK; }
    if (original->count != tied->count) {
        return FAIL(STATUS_MISMATCH,
                    "tied group %d has %lld values in blocks [%d, %d), %lld in [%d, %d) ---> all copies of a "
                    "group have the same count",
                    (int)tied->group, (long long)original->count, (int)first->blocks.begin,
                    (int)first->blocks.end, (long long)tied->count, (int)range->blocks.begin,
                    (int)range->blocks.end);
    }
    const CheckerRange* both[2] = {first, range};
    const int64_t begins[2] = {original->begin, tied->begin};
    float* values[2];
    for (int i = 0; i < 2; i++) {
        const DynapipeParams_v1* params = &both[i]->params;
        int64_t value_bytes = params->param_type == DYNAPIPE_FLOAT32 ? 4 : 2;
        values[i] = CHECKER_NEW(c, float, tied->count);
        if (values[i] == NULL) { return checker_no_memory(); }
        TRY(checker_read_values(c, values[i], (const char*)params->params + begins[i] * value_bytes,
                                params->param_type, tied->count));
    }
    if (memcmp(values[0], values[1], (size_t)tied->count * sizeof(float)) == 0) { return STATUS_OK; }
    return FAIL(
        STATUS_MISMATCH,
        "the copies of tied group %d in blocks [%d, %d) and [%d, %d) hold different values ---> make() "
        "gives a block the same values in every range; do params->tied's begins point at the tensor?",
        (int)tied->group, (int)first->blocks.begin, (int)first->blocks.end, (int)range->blocks.begin,
        (int)range->blocks.end);
}

static Status check_cut(Checker* c, const CheckerRange* whole, int32_t cut) {
    CheckerChain chain;
    TRY(checker_chain(c, &chain, &cut, 1));
    int64_t num_copies = 0;
    for (int32_t r = 0; r < 2; r++) {
        const DynapipeParams_v1* params = &chain.ranges[r]->params;
        for (int32_t i = 0; i < params->num_tied; i++) {
            const CheckerRange* first = NULL;
            (void)checker_first_copy(&chain, params->tied[i].group, &first);
            if (first != chain.ranges[r]) { num_copies += params->tied[i].count; }
            TRY(check_copy(c, &chain, r, &params->tied[i]));
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
    for (int32_t i = 0; i < CHECKER_STANDARD; i++) {
        CheckerSequence sequences[CHECKER_MOST_SEQUENCES];
        CheckerBatch* batch = CHECKER_NEW(c, CheckerBatch, 1);
        CheckerWork work;
        if (batch == NULL) { return checker_no_memory(); }
        TRY(checker_batch(c, batch, sequences, checker_standard(c, sequences, i), 0));
        TRY(checker_work(c, &work, &chain, batch));  // which compares boundaries
    }
    return STATUS_OK;
}

static Status check_without_values(Checker* c, const CheckerRange* with) {
    CheckerRange* without;
    TRY(checker_range(c, &without, with->blocks, false));
    if (without->params.num_params == with->params.num_params) { return STATUS_OK; }
    return FAIL(
        STATUS_MISMATCH,
        "blocks [%d, %d): make() counts %lld parameters with has_values 0, %lld with 1 ---> only memory "
        "may be left out, no count",
        (int)with->blocks.begin, (int)with->blocks.end, (long long)without->params.num_params,
        (long long)with->params.num_params);
}

static Status checker_law_ranges(Checker* c) {
    CheckerRange* whole;
    int32_t* cuts = CHECKER_NEW(c, int32_t, c->num_blocks);
    if (cuts == NULL) { return checker_no_memory(); }
    int32_t num_cuts = checker_cuts(c, cuts);
    TRY(checker_range(c, &whole, (DynapipeRange){.begin = 0, .end = c->num_blocks}, true));
    set_tolerance(c, &whole->params);
    TRY(check_without_values(c, whole));
    for (int32_t i = 0; i < num_cuts; i++) { TRY(check_cut(c, whole, cuts[i])); }
    return STATUS_OK;
}

// --- bytes -----------------------------------------------------------------------------------------------

enum { NUM_SIZES = 6 };
static const char* const size_names[NUM_SIZES] = {
    "acts_bytes() with flags 0", "acts_bytes() with HEAD",         "acts_bytes() with KEEP | HEAD",
    "scratch_bytes()",           "boundary_bytes() behind blocks", "boundary_bytes() before blocks"};

static void ask(int64_t out[NUM_SIZES], const Checker* c, const CheckerRange* range,
                const DynapipeBatch* batch) {
    const DynapipeModel_v1* api = c->blocks->api;
    bool is_first = range->blocks.begin == 0, is_last = range->blocks.end == c->num_blocks;
    out[0] = api->acts_bytes(range->model, batch, 0);
    out[1] = api->acts_bytes(range->model, batch, DYNAPIPE_FORWARD_HEAD);
    out[2] = api->acts_bytes(range->model, batch, CHECKER_KEEP);
    out[3] = api->scratch_bytes(range->model, batch);
    out[4] = is_last ? 0 : api->boundary_bytes(range->model, batch, 1);
    out[5] = is_first ? 0 : api->boundary_bytes(range->model, batch, 0);
}

// The same counts, other contents.
static Status forget_contents(Checker* c, DynapipeBatch* batch) {
    const int32_t* zeros =
        CHECKER_NEW(c, int32_t, batch->num_tokens + batch->num_dec_tokens + batch->num_seqs + 1);
    if (zeros == NULL) { return checker_no_memory(); }
    batch->cu_seqlens = batch->tokens = batch->positions = batch->rows = batch->targets = batch->row_tasks =
        zeros;
    batch->token_keys = NULL;
    batch->seq_lens = batch->dec_seq_lens = NULL;
    if (batch->num_dec_tokens > 0) {
        batch->dec_cu_seqlens = batch->dec_tokens = batch->dec_positions = zeros;
        batch->dec_token_keys = NULL;
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

static Status make_grid(Checker* c, CheckerBatch* out) {
    static const int32_t seqs[3] = {1, 2, 4}, lengths[3] = {1, 6, 17}, dec_lengths[2] = {1, 5};
    for (int i = 0; i < GRID; i++) {
        CheckerSequence sequences[CHECKER_MOST_SEQUENCES];
        int32_t num_seqs = seqs[i % 3], num_tokens = checker_length(c, lengths[i / 3 % 3]);
        int32_t num_dec_tokens = c->blocks->num_dec_layers > 0 ? dec_lengths[i / 9 % 2] : 0;
        int32_t supervised = num_dec_tokens > 0 ? num_dec_tokens : num_tokens;
        for (int32_t s = 0; s < num_seqs; s++) {
            sequences[s] = (CheckerSequence){s, num_tokens, num_dec_tokens, i / 18 == 0 ? 1 : supervised};
        }
        TRY(checker_batch(c, &out[i], sequences, num_seqs, 0));
    }
    return STATUS_OK;
}

static Status check_range_bytes(Checker* c, const CheckerRange* range, CheckerBatch* grid) {
    int begin = range->blocks.begin, end = range->blocks.end;
    int64_t(*sizes)[NUM_SIZES] = arena_alloc_array(&c->arena, GRID, sizeof *sizes);
    if (sizes == NULL) { return checker_no_memory(); }
    for (int i = 0; i < GRID; i++) {
        int64_t again[NUM_SIZES];
        DynapipeBatch counts = grid[i].batch;
        ask(sizes[i], c, range, &counts);
        TRY(forget_contents(c, &counts));
        ask(again, c, range, &counts);
        for (int k = 0; k < NUM_SIZES; k++) {
            if (sizes[i][k] == again[k]) { continue; }
            return FAIL(
                STATUS_MISMATCH,
                "%s of blocks [%d, %d): %lld, and %lld when the arrays hold something else (%s) ---> the "
                "planner knows the counts only: num_*, max_*",
                size_names[k], begin, end, (long long)sizes[i][k], (long long)again[k], grid[i].what);
        }
    }
    for (int pair = 0; pair < GRID * GRID; pair++) {
        int a = pair / GRID, b = pair % GRID;
        for (int k = 0; k < NUM_SIZES && covers(&grid[b].batch, &grid[a].batch); k++) {
            if (sizes[b][k] >= sizes[a][k]) { continue; }
            return FAIL(
                STATUS_MISMATCH,
                "%s of blocks [%d, %d): %lld for %s, with %d rows, but %lld for %s, with %d rows ---> "
                "never less for more of anything",
                size_names[k], begin, end, (long long)sizes[a][k], grid[a].what, (int)grid[a].batch.num_rows,
                (long long)sizes[b][k], grid[b].what, (int)grid[b].batch.num_rows);
        }
    }
    return STATUS_OK;
}

static Status checker_law_counts(Checker* c) {
    CheckerChain chain;
    CheckerBatch* grid = CHECKER_NEW(c, CheckerBatch, GRID);
    int32_t* cuts = CHECKER_NEW(c, int32_t, c->num_blocks);
    if (grid == NULL || cuts == NULL) { return checker_no_memory(); }
    TRY(make_grid(c, grid));
    TRY(checker_chain(c, &chain, cuts, checker_cuts(c, cuts)));
    for (int32_t r = 0; r < chain.num_ranges; r++) {
        CheckerRange* without;
        TRY(checker_range(c, &without, chain.ranges[r]->blocks, false));
        TRY(check_range_bytes(c, chain.ranges[r], grid));
        int64_t with_values[NUM_SIZES], without_values[NUM_SIZES];
        ask(with_values, c, chain.ranges[r], &grid[GRID - 1].batch);
        ask(without_values, c, without, &grid[GRID - 1].batch);
        if (memcmp(with_values, without_values, sizeof with_values) == 0) { continue; }
        return FAIL(
            STATUS_MISMATCH,
            "blocks [%d, %d) ask for other bytes when made with has_values 0 ---> bytes follow from the "
            "model's shape alone",
            (int)without->blocks.begin, (int)without->blocks.end);
    }
    return STATUS_OK;
}

// --- checker_groups --------------------
// checker_groups.c -- laws of one micro-batch done in different ways: the chain cut, its samples in other
// company, its windows padded.

// What a micro-batch gave on a chain.
typedef struct {
    float *losses, *gradients;  // (rows), (chain's values)
} Results;

static Status run(Checker* c, Results* out, const CheckerChain* chain, const CheckerBatch* batch) {
    CheckerWork work;
    size_t num_rows = (size_t)batch->batch.num_rows;
    out->losses = CHECKER_NEW(c, float, num_rows);
    if (out->losses == NULL) { return checker_no_memory(); }
    checker_zero_gradients(c, chain);
    TRY(checker_work(c, &work, chain, batch));
    TRY(checker_step(c, &work));
    memcpy(out->losses, checker_losses(&work), num_rows * sizeof(float));
    return checker_gradients(c, chain, &out->gradients);
}

static Status compare(const float* expected, const float* found, int64_t num_values, double tolerance,
                      const char* what, const char* values, const char* remedy) {
    char text[160];
    CheckerDifference difference;
    if (!checker_differ(expected, found, num_values, tolerance, &difference)) { return STATUS_OK; }
    return FAIL(STATUS_MISMATCH, "%s, %s: %s ---> %s", what, values,
                checker_difference_text(text, &difference, num_values), remedy);
}

// --- cuts ------------------------------------------------------------------------------------------------

// Where a parameter lies in the array of a range is the range's own affair: those of the whole and of its
// pieces are paired by value.
typedef struct {
    float param, gradient;
} Pair;

static int pair_order(const void* a, const void* b) {
    const Pair *x = a, *y = b;
    if (x->param != y->param) { return x->param < y->param ? -1 : 1; }
    return x->gradient < y->gradient ? -1 : x->gradient > y->gradient;
}

// The first copy of a tied group gets the sum of all, the others go. Returns how many pairs are left.
static int64_t tie(const CheckerChain* chain, Pair* pairs) {
    int64_t begin = 0, num_left = 0;
    for (int32_t r = 0; r < chain->num_ranges; r++) {
        const CheckerRange* range = chain->ranges[r];
        for (int32_t i = 0; i < range->params.num_tied; i++) {
            const DynapipeTied* tied = &range->params.tied[i];
            const CheckerRange* first = NULL;
            const DynapipeTied* original = checker_first_copy(chain, tied->group, &first);
            int64_t first_begin = 0;
            for (int32_t k = 0; chain->ranges[k] != first; k++) {
                first_begin += chain->ranges[k]->params.num_params;
            }
            for (int64_t v = 0; v < tied->count && first != range; v++) {
                pairs[first_begin + original->begin + v].gradient += pairs[begin + tied->begin + v].gradient;
                pairs[begin + tied->begin + v].param = INFINITY;
            }
        }
        begin += range->params.num_params;
    }
    for (int64_t v = 0; v < chain->num_values; v++) {
        if (pairs[v].param != INFINITY) { pairs[num_left++] = pairs[v]; }
    }
    return num_left;
}

// Sorted pairs of the chain, as two arrays.
static Status sorted(Checker* c, const CheckerChain* chain, float* gradients, float** params,
                     int64_t* num_left) {
    Pair* pairs = CHECKER_NEW(c, Pair, chain->num_values);
    if (pairs == NULL) { return checker_no_memory(); }
    TRY(checker_params(c, chain, params));
    for (int64_t v = 0; v < chain->num_values; v++) { pairs[v] = (Pair){(*params)[v], gradients[v]}; }
    *num_left = tie(chain, pairs);
    qsort(pairs, (size_t)*num_left, sizeof *pairs, pair_order);
    for (int64_t v = 0; v < *num_left; v++) {
        (*params)[v] = pairs[v].param;
        gradients[v] = pairs[v].gradient;
    }
    return STATUS_OK;
}

static Status checker_groups_check_cut(Checker* c, const Results* whole, const float* whole_params,
                                       int64_t num_values, const CheckerBatch* batch, const int32_t* cuts,
                                       int32_t num_cuts) {
    CheckerChain chain;
    Results results;
    float* params;
    int64_t num_left;
    char what[224];
    snprintf(what, sizeof what, "the model cut before block %d%s (%s)", (int)cuts[0],
             num_cuts > 1 ? " and wherever else it can be" : "", batch->what);
    TRY(checker_chain(c, &chain, cuts, num_cuts));
    TRY(run(c, &results, &chain, batch));
    TRY(compare(
        whole->losses, results.losses, batch->batch.num_rows, c->tolerance, what, "losses",
        "what a range computes from `in` is what the whole computes there; layers count from blocks.begin"));
    TRY(sorted(c, &chain, results.gradients, &params, &num_left));
    TRY(compare(whole_params, params, num_left < num_values ? num_left : num_values, 0, what, "parameters",
                "make() gives a block the same values in every range that has it"));
    return compare(
        whole->gradients, results.gradients, num_values, c->tolerance, what,
        "gradients, sorted by parameter, tied copies added",
        "backward_inputs of the later range leaves in din the gradient of all it got as `in` (written, "
        "not added); each copy of a tied tensor has the gradient of its own use only");
}

static Status checker_law_cuts(Checker* c) {
    CheckerChain whole;
    int32_t* cuts = CHECKER_NEW(c, int32_t, c->num_blocks);
    if (cuts == NULL) { return checker_no_memory(); }
    int32_t num_cuts = checker_cuts(c, cuts);
    TRY(checker_chain(c, &whole, NULL, 0));
    for (int32_t b = 0; b < CHECKER_STANDARD; b++) {
        CheckerBatch* batch = CHECKER_NEW(c, CheckerBatch, 1);
        CheckerSequence sequences[CHECKER_MOST_SEQUENCES];
        Results results;
        float* params;
        int64_t num_values;
        if (batch == NULL) { return checker_no_memory(); }
        TRY(checker_batch(c, batch, sequences, checker_standard(c, sequences, b), 0));
        TRY(run(c, &results, &whole, batch));
        TRY(sorted(c, &whole, results.gradients, &params, &num_values));
        for (int32_t i = 0; i < num_cuts; i++) {
            TRY(checker_groups_check_cut(c, &results, params, num_values, batch, &cuts[i], 1));
        }
        TRY(checker_groups_check_cut(c, &results, params, num_values, batch, cuts, num_cuts));
    }
    return STATUS_OK;
}

// --- company ---------------------------------------------------------------------------------------------

// The samples of a micro-batch, each alone: losses in their order, gradients added.
static Status run_alone(Checker* c, Results* out, const CheckerChain* chain, const CheckerSequence* sequences,
                        int32_t num_sequences, int32_t num_rows) {
    out->losses = CHECKER_NEW(c, float, num_rows);
    out->gradients = CHECKER_NEW(c, float, chain->num_values);
    if (out->losses == NULL || out->gradients == NULL) { return checker_no_memory(); }
    int32_t row = 0;
    for (int32_t i = 0; i < num_sequences; i++) {
        CheckerBatch* alone = CHECKER_NEW(c, CheckerBatch, 1);
        Results one;
        if (alone == NULL) { return checker_no_memory(); }
        TRY(checker_batch(c, alone, &sequences[i], 1, 0));
        if (alone->batch.num_rows == 0) { continue; }  // nothing to learn: no gradients
        TRY(run(c, &one, chain, alone));
        for (int32_t r = 0; r < alone->batch.num_rows; r++) { out->losses[row++] = one.losses[r]; }
        for (int64_t v = 0; v < chain->num_values; v++) { out->gradients[v] += one.gradients[v]; }
    }
    return STATUS_OK;
}

// Against `expected`, in another layout.
static Status check_same(Checker* c, const Results* expected, const CheckerChain* chain,
                         const CheckerBatch* batch, const char* than, const char* remedy) {
    Results results;
    char what[224];
    snprintf(what, sizeof what, "%s, against %s", batch->what, than);
    TRY(run(c, &results, chain, batch));
    TRY(compare(expected->losses, results.losses, batch->batch.num_rows, c->tolerance, what, "losses",
                remedy));
    return compare(expected->gradients, results.gradients, chain->num_values, c->tolerance, what, "gradients",
                   remedy);
}

static Status checker_law_grouping(Checker* c) {
    CheckerChain whole;
    TRY(checker_chain(c, &whole, NULL, 0));
    for (int32_t b = 1; b < CHECKER_STANDARD; b++) {
        CheckerBatch* batch = CHECKER_NEW(c, CheckerBatch, 1);
        CheckerSequence sequences[CHECKER_MOST_SEQUENCES];
        Results alone;
        if (batch == NULL) { return checker_no_memory(); }
        int32_t num_sequences = checker_standard(c, sequences, b);
        TRY(checker_batch(c, batch, sequences, num_sequences, 0));
        TRY(run_alone(c, &alone, &whole, sequences, num_sequences, batch->batch.num_rows));
        TRY(check_same(
            c, &alone, &whole, batch, "the same samples one by one",
            "attention stays inside a window (cu_seqlens), positions restart in it, losses stand in the "
            "order of batch->rows, no mean is taken over a micro-batch, dropout goes by token_keys"));
    }
    return STATUS_OK;
}

static Status checker_law_padding(Checker* c) {
    CheckerChain whole;
    TRY(checker_chain(c, &whole, NULL, 0));
    for (int32_t b = 0; b < CHECKER_STANDARD; b++) {
        CheckerBatch* batches = CHECKER_NEW(c, CheckerBatch, 2);
        CheckerSequence sequences[CHECKER_MOST_SEQUENCES];
        Results plain;
        if (batches == NULL) { return checker_no_memory(); }
        int32_t num_sequences = checker_standard(c, sequences, b);
        TRY(checker_batch(c, &batches[0], sequences, num_sequences, 0));
        TRY(checker_batch(c, &batches[1], sequences, num_sequences, 3));
        TRY(run(c, &plain, &whole, &batches[0]));
        TRY(check_same(
            c, &plain, &whole, &batches[1], batches[0].what,
            "a window's tokens are those before seq_lens; padding behind them has no loss, and what looks "
            "ahead (encoders, cross-attention) must not see it"));
    }
    return STATUS_OK;
}

// --- checker_heads --------------------
/*
checker_heads.c -- law of a shared head: shares by rows and by vocabulary give the losses, the gradient that
goes back and the matrix' gradient that a head in one piece gives.

The last layers [cut, head) run behind the whole model's activation there: with the head in their range, then
feeding shares of it. What comes back before `cut` is compared with the former; the matrix' gradient with that
of one share by rows, which has all of them.
*/

enum { MOST_SHARES = 2, ID_MULTIPLE = 16 };

// What one way to share the head gave.
typedef struct {
    float *losses, *din, *matrix;
    int64_t num_din, num_matrix;
} Shared;

// One micro-batch in it.
typedef struct {
    Checker* c;
    const CheckerBatch* of;
    CheckerRange *feeds, *shares[MOST_SHARES];
    DynapipeBatch batches[MOST_SHARES];  // by rows: of their rows
    CheckerBuffer *hidden, *acts, *scratch, *dout, *din, *share_acts[MOST_SHARES], *parts[MOST_SHARES],
        *factors[MOST_SHARES];
    int32_t num_shares;
    bool by_rows;
} Sharing;

static Status make_shares(Sharing* s, int32_t cut) {
    Checker* c = s->c;
    int32_t head = c->num_blocks - 1, half = s->of->batch.num_rows / 2;
    int64_t vocab = c->blocks->padded_vocab > 0 ? c->blocks->padded_vocab : c->blocks->vocab;
    int32_t middle = c->blocks->vocab / 2 / ID_MULTIPLE * ID_MULTIPLE;  // ids on both sides, if there are 32
    TRY(checker_range(c, &s->feeds, (DynapipeRange){.begin = cut, .end = head, .head = DYNAPIPE_HEAD_FEEDS},
                      true));
    for (int32_t i = 0; i < s->num_shares; i++) {
        bool is_last = i == s->num_shares - 1;
        DynapipeRange blocks = {.begin = head, .end = head + 1, .head = DYNAPIPE_HEAD_BY_ROWS};
        s->batches[i] = s->of->batch;
        if (s->by_rows) {
            int32_t begin = i == 0 ? 0 : half, end = is_last ? s->of->batch.num_rows : half;
            s->batches[i].num_rows = end - begin;
            s->batches[i].rows += begin;
            s->batches[i].targets += begin;
            s->batches[i].row_tasks += begin;
        } else {
            blocks.head = DYNAPIPE_HEAD_BY_VOCABULARY;
            blocks.vocab_begin = i == 0 ? 0 : middle;
            blocks.vocab_end = is_last ? (int32_t)vocab : middle;
        }
        TRY(checker_range(c, &s->shares[i], blocks, true));
    }
    return STATUS_OK;
}

static Status make_buffers(Sharing* s) {
    Checker* c = s->c;
    const DynapipeModel_v1* api = c->blocks->api;
    const DynapipeBatch* batch = &s->of->batch;
    int64_t scratch_bytes = api->scratch_bytes(s->feeds->model, batch);
    for (int32_t i = 0; i < s->num_shares; i++) {
        void* model = s->shares[i]->model;
        int64_t own = api->scratch_bytes(model, &s->batches[i]);
        int64_t part = s->by_rows ? api->boundary_bytes(model, &s->batches[i], 0)
                                  : api->part_bytes(model, batch, CHECKER_KEEP);
        if (own > scratch_bytes) { scratch_bytes = own; }
        TRY(checker_buffer(c, &s->share_acts[i], api->acts_bytes(model, &s->batches[i], CHECKER_KEEP),
                           false));
        TRY(checker_buffer(c, &s->parts[i], part, false));
        if (!s->by_rows) { TRY(checker_buffer(c, &s->factors[i], api->factor_bytes(model, batch), false)); }
    }
    TRY(checker_buffer(c, &s->hidden, api->boundary_bytes(s->feeds->model, batch, 1), false));
    TRY(checker_buffer(c, &s->dout, s->hidden->num_bytes, false));
    TRY(checker_buffer(c, &s->din, api->boundary_bytes(s->feeds->model, batch, 0), false));
    TRY(checker_buffer(c, &s->acts, api->acts_bytes(s->feeds->model, batch, CHECKER_KEEP), false));
    return checker_buffer(c, &s->scratch, scratch_bytes, false);
}

static Status call(const char* what, int code) {
    if (code == 0) { return STATUS_OK; }
    return FAIL(STATUS_MISMATCH, "%s of a shared head returned error %d", what, code);
}

// Hidden states of the share's rows lie behind those of the shares before it; parts by rows alike.
static Status run_share(Sharing* s, int32_t i, int64_t at_bytes, float* losses) {
    const DynapipeModel_v1* api = s->c->blocks->api;
    void* model = s->shares[i]->model;
    const DynapipeBatch* batch = &s->batches[i];
    if (batch->num_rows == 0) { return STATUS_OK; }
    TRY(call("forward()", api->forward(model, batch, s->hidden->memory + at_bytes, NULL,
                                       s->share_acts[i]->memory, s->scratch->memory, losses, CHECKER_KEEP)));
    unsigned char* part = s->by_rows ? s->dout->memory + at_bytes : s->parts[i]->memory;
    return call("backward_inputs()",
                api->backward_inputs(model, batch, s->hidden->memory + at_bytes, s->share_acts[i]->memory,
                                     NULL, part, s->scratch->memory));
}

static Status finish(const Sharing* s) {
    const DynapipeModel_v1* api = s->c->blocks->api;
    return call("finish()", api->finish != NULL ? api->finish(s->feeds->model) : 0);
}

static Status run_jobs(Sharing* s, const void* in, float* losses) {
    const DynapipeModel_v1* api = s->c->blocks->api;
    const DynapipeBatch* batch = &s->of->batch;
    const void* parts[MOST_SHARES];
    void* factors[MOST_SHARES];
    int64_t at_bytes = 0;
    TRY(call("forward()", api->forward(s->feeds->model, batch, in, s->hidden->memory, s->acts->memory,
                                       s->scratch->memory, NULL, CHECKER_KEEP)));
    for (int32_t i = 0; i < s->num_shares; i++) {
        float* mine = s->by_rows ? losses + (s->batches[i].targets - batch->targets) : NULL;
        TRY(run_share(s, i, at_bytes, mine));
        if (s->by_rows) { at_bytes += s->parts[i]->num_bytes; }
        parts[i] = s->parts[i]->memory;
        factors[i] = s->by_rows ? NULL : s->factors[i]->memory;
    }
    if (!s->by_rows) {
        TRY(call("combine()", api->combine(s->feeds->model, batch, s->num_shares, parts, s->dout->memory,
                                           factors, losses)));
    }
    TRY(call("backward_inputs()", api->backward_inputs(s->feeds->model, batch, in, s->acts->memory,
                                                       s->dout->memory, s->din->memory, s->scratch->memory)));
    for (int32_t i = 0; i < s->num_shares; i++) {
        if (s->batches[i].num_rows == 0) { continue; }
        TRY(call("backward_weights()",
                 api->backward_weights(s->shares[i]->model, &s->batches[i], s->share_acts[i]->memory,
                                       factors[i], s->scratch->memory)));
    }
    return finish(s);
}

static Status read_results(Sharing* s, Shared* out) {
    Checker* c = s->c;
    int32_t type = s->feeds->params.param_type;
    out->num_din = s->din->num_bytes / (type == DYNAPIPE_FLOAT32 ? 4 : 2);
    out->num_matrix = 0;
    for (int32_t i = 0; i < s->num_shares; i++) {
        int64_t n = s->shares[i]->params.num_params;
        out->num_matrix = s->by_rows ? n : out->num_matrix + n;
    }
    out->din = CHECKER_NEW(c, float, out->num_din);
    out->matrix = CHECKER_NEW(c, float, out->num_matrix);
    float* one = CHECKER_NEW(c, float, out->num_matrix);
    if (out->din == NULL || out->matrix == NULL || one == NULL) { return checker_no_memory(); }
    memset(out->matrix, 0, (size_t)out->num_matrix * sizeof *out->matrix);
    TRY(checker_read_values(c, out->din, s->din->memory, type, out->num_din));
    int64_t begin = 0;
    for (int32_t i = 0; i < s->num_shares; i++) {
        const DynapipeParams_v1* params = &s->shares[i]->params;
        TRY(checker_read_values(c, one, params->grads, params->grad_type, params->num_params));
        for (int64_t k = 0; k < params->num_params; k++) { out->matrix[begin + k] += one[k]; }
        begin += s->by_rows ? 0 : params->num_params;
    }
    return STATUS_OK;
}

static Status share(Checker* c, Shared* out, const CheckerBatch* batch, int32_t cut, const void* in,
                    bool by_rows, int32_t num_shares) {
    Sharing s = {.c = c, .of = batch, .by_rows = by_rows, .num_shares = num_shares};
    CheckerBuffer* losses;
    TRY(make_shares(&s, cut));
    TRY(make_buffers(&s));
    TRY(checker_buffer_spoil(c, s.din));
    TRY(checker_buffer(c, &losses, (int64_t)sizeof(float) * batch->batch.num_rows, true));
    c->blocks->api->zero_gradients(s.feeds->model);
    for (int32_t i = 0; i < num_shares; i++) { c->blocks->api->zero_gradients(s.shares[i]->model); }
    out->losses = (float*)(void*)losses->memory;
    TRY(run_jobs(&s, in, out->losses));
    return read_results(&s, out);
}

static Status checker_heads_compare(const Checker* c, const float* expected, const float* found,
                                    int64_t num_values, const char* what, const char* of,
                                    const CheckerBatch* batch) {
    CheckerDifference difference;
    char words[160];
    if (!checker_differ(expected, found, num_values, c->tolerance, &difference)) { return STATUS_OK; }
    return FAIL(STATUS_MISMATCH,
                "the head shared %s: %s (%s): %s ---> DynapipeModel_v1: shares and combine()", of, what,
                batch->what, checker_difference_text(words, &difference, num_values));
}

// What neither wrote: places behind the tokens.
static void forget_padding(float* a, float* b, int64_t num_values) {
    for (int64_t i = 0; i < num_values; i++) {
        if (isnan(a[i]) && isnan(b[i])) { a[i] = b[i] = 0; }
    }
}

static Status check_batch(Checker* c, const CheckerBatch* batch, int32_t cut) {
    static const struct {
        const char* words;
        bool by_rows;
        int32_t num_shares;
    } ways[] = {{"by rows, in one share", true, 1},
                {"by rows", true, 2},
                {"by vocabulary", false, 2},
                {"by vocabulary, in one share", false, 1}};
    CheckerChain chain;
    CheckerWork work;
    Shared first = {0}, shared;
    int64_t num_rows = batch->batch.num_rows;
    TRY(checker_chain(c, &chain, &cut, 1));
    TRY(checker_work(c, &work, &chain, batch));
    checker_zero_gradients(c, &chain);
    TRY(checker_forward(c, &work, CHECKER_KEEP, false));
    CheckerBuffer* in;  // which is rubbish behind backward
    TRY(checker_buffer(c, &in, work.in[1]->num_bytes, false));
    TRY(checker_copy(c, in->memory, work.in[1]->memory, in->num_bytes));
    TRY(checker_backward_inputs(c, &work));
    TRY(checker_backward_weights(c, &work));
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        TRY(share(c, &shared, batch, cut, in->memory, ways[i].by_rows, ways[i].num_shares));
        if (i == 0) { first = shared; }
        float* din = CHECKER_NEW(c, float, shared.num_din);
        if (din == NULL) { return checker_no_memory(); }
        TRY(checker_read_values(c, din, work.dout[0]->memory, chain.ranges[1]->params.param_type,
                                shared.num_din));
        forget_padding(din, shared.din, shared.num_din);
        TRY(checker_heads_compare(c, (const float*)(const void*)work.losses->memory, shared.losses, num_rows,
                                  "losses", ways[i].words, batch));
        TRY(checker_heads_compare(c, din, shared.din, shared.num_din, "gradient before the last layer",
                                  ways[i].words, batch));
        if (shared.num_matrix != first.num_matrix) {
            return FAIL(
                STATUS_MISMATCH,
                "the head shared %s: %lld parameters, %lld in one share by rows ---> a share has rows "
                "of the head's matrix and nothing else; padded_vocab is all of them",
                ways[i].words, (long long)shared.num_matrix, (long long)first.num_matrix);
        }
        TRY(checker_heads_compare(c, first.matrix, shared.matrix, shared.num_matrix, "gradient of the matrix",
                                  ways[i].words, batch));
    }
    return STATUS_OK;
}

static Status checker_law_heads(Checker* c) {
    bool can = executor_can_share(c->blocks->api, HEAD_BY_VOCABULARY) && !c->blocks->shapes.head_has_layer;
    int32_t* cuts = CHECKER_NEW(c, int32_t, c->num_blocks);
    if (cuts == NULL) { return checker_no_memory(); }
    int32_t num_cuts = checker_cuts(c, cuts);
    for (int32_t i = 0; i < CHECKER_STANDARD && can && num_cuts > 1; i++) {
        CheckerSequence sequences[CHECKER_MOST_SEQUENCES];
        CheckerBatch* batch = CHECKER_NEW(c, CheckerBatch, 1);
        if (batch == NULL) { return checker_no_memory(); }
        TRY(checker_batch(c, batch, sequences, checker_standard(c, sequences, i), 0));
        TRY(check_batch(c, batch, cuts[num_cuts - 2]));
    }
    return STATUS_OK;
}

// --- check_model --------------------
// check_model.c -- dynapipe_check_model(): every law on a model, a line said for each.

static const struct {
    const char* what;
    Status (*law)(Checker* c);
} laws[] = {
    {"ranges can be made, their sizes add up", checker_law_ranges},
    {"bytes follow from counts, and grow with them", checker_law_counts},
    {"promised bytes suffice, and are read where written", checker_law_bytes},
    {"gradients add, loss_scale scales them alone", checker_law_sums},
    {"a forward again gives the same", checker_law_forward},
    {"backward divided and delayed gives the joint one's gradients", checker_law_divided},
    {"jobs queued and waited for once give the same", checker_law_queued},
    {"every cut gives the whole's losses and gradients", checker_law_cuts},
    {"a shared head gives the whole's losses and gradients", checker_law_heads},
    {"grouping samples changes nothing", checker_law_grouping},
    {"padding changes nothing", checker_law_padding},
    {"gradients are those of finite differences", checker_law_slopes},
};
enum { NUM_LAWS = sizeof laws / sizeof laws[0] };

static Status check_blocks(const DynapipeBlocks_v1* blocks) {
    TRY(interface_check_blocks(blocks));
    ShapeRules rules = session_rules(&blocks->shapes);
    TRY(shape_rules_valid(&rules));
    if (blocks->num_layers < 2 || blocks->num_dec_layers < 0 || blocks->vocab < 2) {
        return FAIL(
            STATUS_BAD_OPTION,
            "%d layers, %d of a decoder, %d ids: a model that nothing can be seen on ---> check one of at "
            "least 2 layers (2 to 4 will do) and 2 ids",
            (int)blocks->num_layers, (int)blocks->num_dec_layers, (int)blocks->vocab);
    }
    return STATUS_OK;
}

static Status run_law(Checker* c, int idx, FILE* out) {
    Status status = laws[idx].law(c);
    if (out != NULL && status == STATUS_OK) { fprintf(out, "ok   %s\n", laws[idx].what); }
    if (out != NULL && status != STATUS_OK) {
        fprintf(out, "FAIL %s: %s\n", laws[idx].what, status_message());
    }
    if (out != NULL) { fflush(out); }
    checker_release(c);
    return status;
}

static Status run_laws(Checker* c, FILE* out) {
    char first_words[1024] = "";
    Status first = STATUS_OK;
    for (int i = 0; i < NUM_LAWS; i++) {
        Status status = run_law(c, i, out);
        bool is_the_models = status == STATUS_OK || status == STATUS_MISMATCH;
        if (status != STATUS_OK && first == STATUS_OK) {
            first = status;
            snprintf(first_words, sizeof first_words, "%s", status_message());
        }
        bool ends = c->guards_are_known || (i == 0 && status != STATUS_OK);  // what comes would be chance
        if (!is_the_models || ends) { break; }
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
    Checker c = {.blocks = blocks,
                 .device = dp->device,
                 .num_blocks =
                     blocks->num_layers + 2 + (blocks->num_dec_layers > 0 ? blocks->num_dec_layers + 1 : 0)};
    status = run_laws(&c, out);
    arena_free(&c.arena);
    return status;
}

int dynapipe_check_model(Dynapipe* dp, const DynapipeBlocks_v1* blocks, FILE* out) {
    return (int)check_model(dp, blocks, out);
}
