// checker_run.c -- a micro-batch through a chain, job by job, as the executor would run it: every buffer of
// exactly the bytes promised, rubbish in whatever a job may not rely on.
#include <stdlib.h>
#include <string.h>

#include "checker.h"

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
        int64_t before, behind;
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

Status checker_work(Checker* c, CheckerWork* out, const CheckerChain* chain, const CheckerBatch* batch) {
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

Status checker_forward(Checker* c, CheckerWork* work, int flags, bool again) {
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

Status checker_backward_inputs(Checker* c, CheckerWork* work) {
    for (int32_t r = work->chain->num_ranges - 1; r >= 0; r--) { TRY(backward_inputs_range(c, work, r)); }
    return STATUS_OK;
}

Status checker_backward_weights(Checker* c, CheckerWork* work) {
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

Status checker_step(Checker* c, CheckerWork* work) {
    TRY(checker_forward(c, work, CHECKER_KEEP, false));
    TRY(checker_backward_inputs(c, work));
    return checker_backward_weights(c, work);
}

Status checker_move_acts(Checker* c, CheckerWork* work) {
    for (int32_t r = 0; r < work->chain->num_ranges; r++) {
        CheckerBuffer *from = work->acts[r][CHECKER_KEEP], *to;
        TRY(checker_buffer(c, &to, from->num_bytes, false));
        TRY(checker_copy(c, to->memory, from->memory, from->num_bytes));
        TRY(checker_buffer_spoil(c, from));
        work->acts[r][CHECKER_KEEP] = to;
    }
    return STATUS_OK;
}

Status checker_finish(Checker* c, const CheckerWork* work) {
    for (int32_t r = 0; r < work->chain->num_ranges; r++) {
        Job job = {.function = "forward or backward", .range = work->chain->ranges[r], .of = work->of};
        TRY(end_job(c, &job, 0));
    }
    return STATUS_OK;
}

// --- what came out ---------------------------------------------------------------------------------------

const float* checker_losses(const CheckerWork* work) {
    return (const float*)(const void*)work->losses->memory;
}

Status checker_outputs(Checker* c, const CheckerWork* work, unsigned char** out, int64_t* num_bytes) {
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
