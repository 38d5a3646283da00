#include "plan_views.h"
#include "../dynapipe_plugin/plan/simulate.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "../dynapipe_plugin/plan/cost_model.h"
#include "../dynapipe_plugin/plan/draft.h"
#include "../dynapipe_plugin/plan/plan_text.h"
#include "../dynapipe_plugin/plan/instructions.h"
#include "../dynapipe_plugin/plan/schedule.h"
#include "../dynapipe_plugin/plan/placement.h"
#include "problem.h"
#include "timeline_svg.h"
#include "../util/files.h"
#include "../util/program.h"

static Status plan_memory_check(const PlanMemory* memory, const Plan* plan, const PlanRequest* request);

Status plan_file_load(Plan* out, const char* path, Arena* arena) {
    char *text, why[700];
    size_t num_bytes = 0;
    TRY(file_read_text(&text, &num_bytes, path));
    Status status = num_bytes > 0 && text[0] == '{' ? FAIL(STATUS_BAD_FORMAT, "%s: a plan as JSON", path)
                    : memchr(text, '\0', num_bytes) ? FAIL(STATUS_BAD_FORMAT, "%s: no text", path)
                                                    : plan_parse(out, text, path, arena);
    free(text);
    if (status == STATUS_OK || strstr(status_message(), "--->") != NULL) { return status; }
    snprintf(why, sizeof why, "%s", status_message());
    return FAIL(status, "%s ---> give a plan's text form, from plan --text FILE", why);
}

// --- checking a plan --------------------------------------------------------------------------------------

// --- structure -------------------------------------------------------------------------------------------

// One sample of a micro-batch gets all its supervised tokens, one of a window all its decoder tokens: the
// plan holds only the sums, and plan_check only compares sums.
static void take_samples(const Plan* plan, const PlanMicrobatch* mb, PlanSample* samples) {
    int64_t supervised = mb->shape.supervised_tokens;
    for (int32_t i = mb->sequence_begin; i < mb->sequence_end; i++) {
        const PlanSequence* seq = &plan->sequences[i];
        for (int32_t k = seq->segment_begin; k < seq->segment_end; k++) {
            int32_t id = plan->segments[k].sample_idx;
            if (id < 0 || id >= plan->N) { continue; }
            samples[id].enc_tokens = plan->segments[k].num_tokens;
            samples[id].dec_tokens = k == seq->segment_begin ? seq->dec_tokens : 0;
            samples[id].supervised_tokens = supervised < INT32_MAX ? (int32_t)supervised : INT32_MAX;
            supervised = 0;
        }
    }
}

Status plan_verify_structure(const Plan* plan, Arena* arena) {
    if (plan->N < 1 || plan->N > plan->num_segments) {
        return FAIL(STATUS_INVALID_PLAN, "plan: %d samples in %d segments ---> every sample needs one",
                    plan->N, plan->num_segments);
    }
    PlanSample* samples;
    ARENA_TRY_NEW(samples, arena, PlanSample, plan->N);
    for (int32_t m = 0; m < plan->M; m++) {
        const PlanMicrobatch* mb = &plan->mbs[m];
        bool sane = mb->sequence_begin >= 0 && mb->sequence_begin <= mb->sequence_end &&
                    mb->sequence_end <= plan->num_sequences;
        for (int32_t i = mb->sequence_begin; sane && i < mb->sequence_end; i++) {
            const PlanSequence* seq = &plan->sequences[i];
            sane = seq->segment_begin >= 0 && seq->segment_end <= plan->num_segments;
        }
        if (sane) { take_samples(plan, mb, samples); }  // otherwise plan_check reports the error
    }
    return plan_check(plan, samples, plan->N);
}

// --- against a problem -----------------------------------------------------------------------------------

static Status verify_stages(const Plan* plan, const Problem* problem) {
    const CostModel* costs = &problem->costs;
    int32_t num_layers = costs->num_enc_layers + costs->num_dec_layers;
    if (plan->P != problem->request.P || plan->R != problem->request.R) {
        return FAIL(
            STATUS_INVALID_PLAN,
            "plan: %d stages x %d replicas, the problem has %d x %d ---> give the problem it was made for",
            plan->P, plan->R, problem->request.P, problem->request.R);
    }
    int32_t layer_end = plan->placement.chunks[plan->placement.num_chunks - 1].layer_end;
    if (layer_end != num_layers) {
        return FAIL(STATUS_INVALID_PLAN,
                    "plan: its chunks have %d layers, the problem has %d ---> give the "
                    "problem it was made for",
                    layer_end, num_layers);
    }
    CostRank has[PLAN_MAX_STAGES];
    cost_ranks_make(has, costs, &plan->placement, plan->P);
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        int64_t state_bytes = cost_rank_state_bytes(costs, &has[r % plan->P]);
        if (plan->ranks[r].state_bytes == state_bytes) { continue; }
        return FAIL(
            STATUS_INVALID_PLAN,
            "rank %d: %lld bytes of model state, the problem's costs give %lld ---> give the problem it "
            "was made for",
            r, (long long)plan->ranks[r].state_bytes, (long long)state_bytes);
    }
    return STATUS_OK;
}

// The job lists of one replica; micro-batches are counted from its first.
static Status schedule_make(PipeSchedule* out, const Plan* plan, int32_t r, int32_t first_mb,
                            const PipeProblem* pipe, Arena* arena) {
    TRY(pipe_schedule_init(out, pipe, arena));
    for (int32_t s = 0; s < plan->P; s++) {
        const PlanRank* rank = &plan->ranks[r * plan->P + s];
        for (int32_t i = 0; i < rank->num_instrs; i++) {
            const PlanInstr* instr = &rank->instrs[i];
            if (!plan_instr_is_job((InstrKind)instr->kind)) { continue; }
            pipe_schedule_push(out, s, plan_instr_job((InstrKind)instr->kind), instr->chunk,
                               instr->mb - first_mb);
        }
    }
    return STATUS_OK;
}

// Simulates micro-batches [begin, end) of the plan on replica r and returns the makespan.
static Status replica_simulate(int64_t* makespan_ns, const Plan* plan, const PlanProblem* batch, int32_t r,
                               int32_t begin, int32_t end, Arena* arena) {
    int32_t M = end - begin;
    Microbatch* mbs;
    int32_t* places;
    uint8_t* modes;
    ARENA_TRY_NEW(mbs, arena, Microbatch, M);
    ARENA_TRY_NEW(places, arena, int32_t, M);
    int32_t K = plan->placement.num_chunks;
    ARENA_TRY_NEW(modes, arena, uint8_t, (int64_t)K * M);
    for (int32_t m = 0; m < M; m++) {
        const PlanMicrobatch* mb = &plan->mbs[begin + m];
        mbs[m] = (Microbatch){.layout = (MbLayout)mb->layout, .shape = mb->shape};
        places[m] = m;
        for (int32_t k = 0; k < K; k++) { modes[m * K + k] = mb->recompute[k]; }
    }
    MicrobatchList list = {.num_mbs = M, .mbs = mbs};
    ReplicaProblem replica;
    PipeSchedule schedule;
    PipeTimeline timeline;
    TRY(replica_problem_make(&replica, batch, &list, r, places, M, modes, arena));
    TRY(schedule_make(&schedule, plan, r, begin, &replica.pipe, arena));
    TRY(pipe_simulate(&timeline, &replica.pipe, &schedule, arena));
    *makespan_ns = replica_lists_makespan(plan->ranks + r * plan->P, &replica.pipe, &schedule, &timeline);
    return STATUS_OK;
}

static Status verify_makespan(const Plan* plan, const Problem* problem, Arena* arena) {
    PlanRequest request = problem->request;
    PlanProblem batch;
    int64_t slowest_ns = 0;
    int32_t begin = 0;
    request.placement = plan->placement;
    TRY(plan_problem_init(&batch, &request, &problem->costs, problem->samples, problem->num_samples));
    for (int32_t r = 0; r < plan->R; r++) {
        int32_t end = begin;
        int64_t ns = 0;
        while (end < plan->M && plan->mbs[end].replica == r) { end++; }
        TRY(replica_simulate(&ns, plan, &batch, r, begin, end, arena));
        if (ns > slowest_ns) { slowest_ns = ns; }
        begin = end;
    }
    if (slowest_ns == plan->makespan_ns) { return STATUS_OK; }
    return FAIL(
        STATUS_INVALID_PLAN,
        "plan: says %lld ns, the simulator finds %lld with the problem's costs ---> give the problem it was "
        "made for, or plan again",
        (long long)plan->makespan_ns, (long long)slowest_ns);
}

Status plan_verify_problem(const Plan* plan, const Problem* problem, Arena* arena) {
    TRY(plan_check(plan, problem->samples, problem->num_samples));
    TRY(verify_stages(plan, problem));
    TRY(verify_makespan(plan, problem, arena));
    PlanMemory* memory;
    ARENA_TRY_NEW(memory, arena, PlanMemory, plan->P * plan->R);
    TRY(plan_memory_make(memory, plan, &problem->costs, problem->request.memory_rule));
    return plan_memory_check(memory, plan, &problem->request);
}

// --- differences between two plans ------------------------------------------------------------------------
// From coarse to fine: size, policy, placement and head; micro-batches (matched by their samples) that only
// one plan has, or whose replica, padding or recomputation differs; the first different job of each rank
// among common micro-batches; predictions. Equal parts are counted.

enum { MAX_LISTED = 8, MAX_SAMPLES = 6 };  // lines of one kind; samples per line

typedef struct {
    const Plan *a, *b;
    FILE* out;
    int32_t num_differences, equal_values, equal_mbs, equal_orders;
    int32_t* twin;       // [a->M] the micro-batch of b with the same samples, -1: none
    int32_t* twin_of_b;  // [b->M] the same of a
} Diff;

__attribute__((format(printf, 2, 3))) static void differ(Diff* diff, const char* fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vfprintf(diff->out, fmt, args);
    va_end(args);
    diff->num_differences++;
}

static void diff_text(Diff* diff, const char* what, const char* a, const char* b) {
    if (strcmp(a, b) == 0) {
        diff->equal_values++;
    } else {
        differ(diff, "%s: %s, %s\n", what, a, b);
    }
}

// Prints both values in `unit`, and the difference of the second from the first.
static void diff_number(Diff* diff, const char* what, int64_t a, int64_t b, double unit, const char* name) {
    if (a == b) {
        diff->equal_values++;
    } else {
        differ(diff, "%s: %.12g%s, %.12g%s", what, (double)a / unit, name, (double)b / unit, name);
        if (a > 0 && name[0] != '\0') {
            fprintf(diff->out, " (%+.2f %%)", 100.0 * (double)(b - a) / (double)a);
        }
        fprintf(diff->out, "\n");
    }
}

// "layers 0 to 3 on stage 1"; of a head "by rows: 512 0 512".
static void chunk_text(char* out, size_t room, const Placement* placement, int32_t k) {
    if (k >= placement->num_chunks) {
        snprintf(out, room, "none");
    } else {
        snprintf(out, room, "layers %d to %d on stage %d", placement->chunks[k].layer_begin,
                 placement->chunks[k].layer_end - 1, placement->stage_of[k]);
    }
}

static void head_text(char* out, size_t room, const Plan* plan) {
    const Placement* placement = &plan->placement;
    int used = snprintf(out, room, "%s", plan_head_words[placement->head]);
    for (int32_t s = 0; s < plan->P && placement->head != HEAD_WHOLE && (size_t)used < room; s++) {
        used += snprintf(out + used, room - (size_t)used, " %d",
                         placement->head_begin[s + 1] - placement->head_begin[s]);
    }
}

static void diff_head(Diff* diff) {
    const Plan *a = diff->a, *b = diff->b;
    int32_t K =
        a->placement.num_chunks > b->placement.num_chunks ? a->placement.num_chunks : b->placement.num_chunks;
    char text[2][1024], name[32];
    diff_number(diff, "stages", a->P, b->P, 1, "");
    diff_number(diff, "replicas", a->R, b->R, 1, "");
    diff_number(diff, "samples", a->N, b->N, 1, "");
    diff_number(diff, "microbatches", a->M, b->M, 1, "");
    diff_number(diff, "messages are pulled", a->pulls, b->pulls, 1, "");
    diff_text(diff, "policy", a->policy, b->policy);
    diff_text(diff, "schedule", a->schedule, b->schedule);
    diff_number(diff, "memory limit", a->memory_limit_bytes, b->memory_limit_bytes, 1, " B");
    for (int32_t k = 0; k < K; k++) {
        snprintf(name, sizeof name, "chunk %d", k);
        chunk_text(text[0], sizeof text[0], &a->placement, k);
        chunk_text(text[1], sizeof text[1], &b->placement, k);
        diff_text(diff, name, text[0], text[1]);
    }
    head_text(text[0], sizeof text[0], a);
    head_text(text[1], sizeof text[1], b);
    diff_text(diff, "head", text[0], text[1]);
}

// --- micro-batches ----------------------------------------------------------------------------------------

static int32_t first_segment(const Plan* plan, int32_t m) {
    return plan->sequences[plan->mbs[m].sequence_begin].segment_begin;
}

static int32_t end_segment(const Plan* plan, int32_t m) {
    return plan->sequences[plan->mbs[m].sequence_end - 1].segment_end;
}

// Fills twin[m] for every micro-batch of `plan`. In a checked plan each sample id is in range and occurs
// once.
static Status twins_make(int32_t** out, const Plan* plan, const Plan* other, Arena* arena) {
    int32_t* owner;
    ARENA_TRY_NEW(*out, arena, int32_t, plan->M);
    ARENA_TRY_NEW(owner, arena, int32_t, other->N);
    for (int32_t m = 0; m < other->M; m++) {
        for (int32_t k = first_segment(other, m); k < end_segment(other, m); k++) {
            owner[other->segments[k].sample_idx] = m;
        }
    }
    for (int32_t m = 0; m < plan->M; m++) {
        int32_t begin = first_segment(plan, m), end = end_segment(plan, m), twin = -2;
        for (int32_t k = begin; k < end; k++) {
            int32_t sample = plan->segments[k].sample_idx, mb = sample < other->N ? owner[sample] : -1;
            twin = twin == -2 || twin == mb ? mb : -1;
        }
        bool same = twin >= 0 && end_segment(other, twin) - first_segment(other, twin) == end - begin;
        (*out)[m] = same ? twin : -1;
    }
    return STATUS_OK;
}

static void list_lonely(Diff* diff, const Plan* plan, const int32_t* twin, const char* which) {
    int32_t num = 0;
    for (int32_t m = 0; m < plan->M; m++) {
        if (twin[m] >= 0 || num++ >= MAX_LISTED) { continue; }
        int32_t begin = first_segment(plan, m), num_samples = end_segment(plan, m) - begin;
        differ(diff, "only in %s: microbatch %d, replica %d, %" PRId64 " tokens, samples", which, m,
               plan->mbs[m].replica, plan->mbs[m].shape.enc_tokens + plan->mbs[m].shape.dec_tokens);
        for (int32_t k = 0; k < num_samples && k < MAX_SAMPLES; k++) {
            fprintf(diff->out, " %d", plan->segments[begin + k].sample_idx);
        }
        fprintf(diff->out, "%s\n", num_samples > MAX_SAMPLES ? " ..." : "");
    }
    if (num > MAX_LISTED) { differ(diff, "only in %s: %d more\n", which, num - MAX_LISTED); }
}

static void diff_twins(Diff* diff) {
    int32_t num = 0, K = diff->a->placement.num_chunks;
    for (int32_t m = 0; m < diff->a->M; m++) {
        if (diff->twin[m] < 0) { continue; }
        const PlanMicrobatch *x = &diff->a->mbs[m], *y = &diff->b->mbs[diff->twin[m]];
        bool recompute =
            diff->b->placement.num_chunks == K && memcmp(x->recompute, y->recompute, (size_t)K) != 0;
        bool padding = x->layout != y->layout || memcmp(&x->shape, &y->shape, sizeof x->shape) != 0;
        bool same = x->replica == y->replica && !recompute && !padding;
        diff->equal_mbs += same;
        if (same || num++ >= MAX_LISTED) { continue; }
        differ(diff, "microbatch %d, %d:%s%s%s\n", m, diff->twin[m],
               x->replica != y->replica ? " another replica" : "", padding ? " padded otherwise" : "",
               recompute ? " recomputed otherwise" : "");
    }
    if (num > MAX_LISTED) {
        differ(diff, "%d more microbatches on other replicas or in other modes\n", num - MAX_LISTED);
    }
}

// --- orders -----------------------------------------------------------------------------------------------

// The next job of a micro-batch that both plans have.
static const PlanInstr* next_job(const PlanRank* rank, int32_t* i, const int32_t* twin) {
    while (*i < rank->num_instrs) {
        const PlanInstr* instr = &rank->instrs[(*i)++];
        if (plan_instr_is_job((InstrKind)instr->kind) && twin[instr->mb] >= 0) { return instr; }
    }
    return NULL;
}

static void print_job(FILE* out, const Plan* plan, const PlanInstr* job, int32_t mb) {
    if (job == NULL) {
        fprintf(out, "nothing more");
    } else if (job->chunk >= plan->placement.num_chunks) {
        fprintf(out, "%s %d of the head", plan_instr_words[job->kind], mb);
    } else {
        fprintf(out, "%s %d of chunk %d", plan_instr_words[job->kind], mb, job->chunk);
    }
}

// The first job of each rank that differs, if both plans have the same pieces.
static void diff_orders(Diff* diff) {
    const Plan *a = diff->a, *b = diff->b;
    int32_t num = 0, num_common = 0;
    for (int32_t m = 0; m < a->M; m++) { num_common += diff->twin[m] >= 0; }
    if (a->P != b->P || a->R != b->R || a->placement.num_chunks != b->placement.num_chunks ||
        a->placement.head != b->placement.head || num_common == 0) {
        return;
    }
    for (int32_t r = 0; r < a->P * a->R; r++) {
        int32_t i = 0, k = 0, place = -1;
        const PlanInstr *x, *y;
        do {
            x = next_job(&a->ranks[r], &i, diff->twin);
            y = next_job(&b->ranks[r], &k, diff->twin_of_b);
            place++;
        } while (x != NULL && y != NULL && x->kind == y->kind && diff->twin[x->mb] == y->mb &&
                 x->chunk == y->chunk);
        bool same = x == NULL && y == NULL;
        diff->equal_orders += same;
        if (same || num++ >= MAX_LISTED) { continue; }
        differ(diff, "replica %d, stage %d: job %d is ", r / a->P, r % a->P, place);
        print_job(diff->out, a, x, x != NULL ? x->mb : -1);
        fprintf(diff->out, ", ");
        print_job(diff->out, b, y, y != NULL ? diff->twin_of_b[y->mb] : -1);
        fprintf(diff->out, "\n");
    }
    if (num > MAX_LISTED) { differ(diff, "%d more ranks with other orders\n", num - MAX_LISTED); }
}

static int64_t fullest_bytes(const Plan* plan) {
    int64_t most = 0;
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        int64_t bytes = plan->ranks[r].arena_bytes + plan->ranks[r].state_bytes;
        most = bytes > most ? bytes : most;
    }
    return most;
}

Status plan_diff(const Plan* a, const Plan* b, FILE* out, int32_t* num_differences, Arena* arena) {
    Diff diff = {.a = a, .b = b, .out = out};
    TRY(twins_make(&diff.twin, a, b, arena));
    TRY(twins_make(&diff.twin_of_b, b, a, arena));
    diff_head(&diff);
    list_lonely(&diff, a, diff.twin, "the first");
    list_lonely(&diff, b, diff.twin_of_b, "the second");
    diff_twins(&diff);
    diff_orders(&diff);
    diff_number(&diff, "makespan", a->makespan_ns, b->makespan_ns, 1e6, " ms");
    diff_number(&diff, "bound", a->bound_ns, b->bound_ns, 1e6, " ms");
    diff_number(&diff, "memory of the fullest rank", fullest_bytes(a), fullest_bytes(b), 1, " B");
    if (diff.num_differences == 0 && plan_hash(a) != plan_hash(b)) {
        differ(&diff, "the same jobs, but their transfers, buffers or times differ: see diff of the texts\n");
    }
    if (diff.num_differences > 0) {
        fprintf(out, "equal: %d values, %d of %d microbatches, orders of %d of %d ranks\n", diff.equal_values,
                diff.equal_mbs, a->M, diff.equal_orders, a->P * a->R);
    }
    *num_differences = diff.num_differences;
    return STATUS_OK;
}

// --- peak memory ------------------------------------------------------------------------------------------

// The inputs that the prices of a plan's jobs depend on.
typedef struct {
    const Plan* plan;
    const CostModel* costs;
    CostTable table;
    CostStage chunks[PLAN_MAX_CHUNKS];
    CostRank has[PLAN_MAX_STAGES];  // of the model
} Prices;

static void prices_init(Prices* out, const Plan* plan, const CostModel* costs) {
    out->plan = plan;
    out->costs = costs;
    cost_table_init(&out->table, costs);
    cost_ranks_make(out->has, costs, &plan->placement, plan->P);
    for (int32_t k = 0; k < plan->placement.num_chunks; k++) {
        out->chunks[k] = cost_chunk_make(costs, &plan->placement, k);
    }
}

// The price of a job's chunk or head share. Returns whether its F keeps nothing.
static bool price(CostJobs* out, const Prices* prices, const PlanInstr* job) {
    const Placement* placement = &prices->plan->placement;
    const PlanMicrobatch* mb = &prices->plan->mbs[job->mb];
    CostParts parts;
    if (job->chunk >= placement->num_chunks) {
        cost_parts(&parts, &prices->table, RECOMPUTE_NONE, &mb->shape);
        cost_jobs_of_share(out, prices->costs, cost_share_of(placement, job->chunk - placement->num_chunks),
                           &parts);
        return false;
    }
    RecomputeMode mode = (RecomputeMode)mb->recompute[job->chunk];
    cost_parts(&parts, &prices->table, mode, &mb->shape);
    cost_jobs_of_stage(out, prices->costs, &prices->chunks[job->chunk], &parts);
    return mode != RECOMPUTE_NONE && prices->costs->recompute_is_job[mode];
}

// nothing is held after it
static bool is_last_job(const Prices* prices, const PlanRank* rank, int32_t i) {
    const PlanInstr* job = &rank->instrs[i];
    bool splits = job->chunk >= prices->plan->placement.num_chunks;  // does a W follow?
    for (int32_t k = i + 1; k < rank->num_instrs && job->kind == INSTR_BWD && !splits; k++) {
        const PlanInstr* other = &rank->instrs[k];
        splits = other->kind == INSTR_WGT && other->mb == job->mb && other->chunk == job->chunk;
    }
    return job->kind == INSTR_WGT || (job->kind == INSTR_BWD && !splits);
}

// A stage runs one job after the other, so its list is in order of time.
static void hold_activations(PlanMemory* out, const Prices* prices, int32_t r) {
    const PlanRank* rank = &prices->plan->ranks[r];
    int32_t num_held = 0;
    int64_t held_bytes = 0;
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        if (!plan_instr_is_job((InstrKind)instr->kind)) { continue; }
        CostJobs jobs;
        bool drops = price(&jobs, prices, instr), is_last = is_last_job(prices, rank, i);
        int64_t during_bytes = held_bytes;  // while this job runs
        bool takes = instr->kind == (drops ? INSTR_REC : INSTR_FWD);
        if (instr->kind == INSTR_FWD) { num_held++; }
        if (takes) { during_bytes = held_bytes += jobs.stored_bytes; }
        if (drops && instr->kind == INSTR_FWD) { during_bytes += jobs.forward_bytes; }
        if (num_held > out->most_held) { out->most_held = num_held; }
        if (during_bytes > out->peak_bytes) {
            out->peak_bytes = during_bytes;
            out->peak_ns = instr->begin_ns;
            out->peak_mb = instr->mb;
        }
        held_bytes -= is_last ? jobs.stored_bytes : 0;
        num_held -= is_last;
    }
}

Status plan_memory_make(PlanMemory* out, const Plan* plan, const CostModel* costs, MemoryRule rule) {
    Prices* prices = malloc(sizeof *prices);
    if (prices == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory to count a plan's memory"); }
    prices_init(prices, plan, costs);
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        int64_t state_bytes = cost_rank_state_bytes(costs, &prices->has[r % plan->P]);
        out[r] = (PlanMemory){.state_bytes = state_bytes, .peak_mb = -1};
        hold_activations(&out[r], prices, r);
        if (rule == MEMORY_ACTIVATIONS) { continue; }
        out[r].peak_bytes = plan->ranks[r].arena_bytes;
        out[r].peak_ns = 0;
        out[r].peak_mb = -1;
    }
    free(prices);
    return STATUS_OK;
}

// The rank of stage s with the highest peak, over all replicas.
static int32_t plan_memory_fullest(const PlanMemory* memory, const Plan* plan, int32_t s) {
    int32_t fullest = s;
    for (int32_t r = s; r < plan->P * plan->R; r += plan->P) {
        if (memory[r].peak_bytes > memory[fullest].peak_bytes) { fullest = r; }
    }
    return fullest;
}

// Checks against the limits of the request. STATUS_INFEASIBLE names the stage, the excess bytes and a
// remedy.
static Status plan_memory_check(const PlanMemory* memory, const Plan* plan, const PlanRequest* request) {
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        int64_t limit_bytes = problem_limit_bytes(request, r);
        int64_t over_bytes = memory[r].state_bytes + memory[r].peak_bytes - limit_bytes;
        if (limit_bytes == 0 || over_bytes <= 0) { continue; }
        return FAIL(
            STATUS_INFEASIBLE,
            "replica %d, stage %d: holds %lld bytes of activations beside %lld of model state, %lld over "
            "the limit ---> raise --memory-limit, allow --recompute auto, or use more stages",
            r / plan->P, r % plan->P, (long long)memory[r].peak_bytes, (long long)memory[r].state_bytes,
            (long long)over_bytes);
    }
    return STATUS_OK;
}

static void print_bar(int64_t num_bytes, int64_t limit_bytes, FILE* out) {
    enum { WIDTH = 4 };  // so that a row has 100 columns
    int64_t filled = limit_bytes > 0 ? num_bytes * WIDTH / limit_bytes : 0;
    fprintf(out, "  |");
    for (int i = 0; i < WIDTH; i++) { fputc(i < filled ? '#' : '.', out); }
    fprintf(out, "|%4.0f %%", 100.0 * (double)num_bytes / (double)limit_bytes);
}

static int32_t layers_of(const Plan* plan, int32_t s) {
    int32_t num_layers = 0;
    for (int32_t k = 0; k < plan->placement.num_chunks; k++) {
        const LayerRange* layers = &plan->placement.chunks[k];
        if (plan->placement.stage_of[k] == s) { num_layers += layers->layer_end - layers->layer_begin; }
    }
    return num_layers;
}

static double share_percent(const Placement* placement, int32_t s) {
    return 100.0 * (placement->head_begin[s + 1] - placement->head_begin[s]) / HEAD_UNITS;
}

void plan_memory_print(const PlanMemory* memory, const Plan* plan, const PlanRequest* request, FILE* out) {
    fprintf(out, "memory of each stage at its peak; %s\n",
            request->memory_rule == MEMORY_ACTIVATIONS
                ? "what backward needs, buffers of transfers not counted"
                : "every buffer, as laid out");
    bool shares = plan->placement.head != HEAD_WHOLE;
    fprintf(out, "  stage  layers%s  replica     state  activations  together     limit  in flight\n",
            shares ? "    head" : "");
    for (int32_t s = 0; s < plan->P; s++) {
        int32_t r = plan_memory_fullest(memory, plan, s);
        const PlanMemory* stage = &memory[r];
        int64_t together_bytes = stage->state_bytes + stage->peak_bytes;
        int64_t limit_bytes = problem_limit_bytes(request, r);
        fprintf(out, "  %5d  %6d", s, layers_of(plan, s));
        if (shares) { fprintf(out, "  %4.1f %%", share_percent(&plan->placement, s)); }
        fprintf(out, "  %7d  %8s  %11s  %8s", r / plan->P, BYTES_TEXT(stage->state_bytes),
                BYTES_TEXT(stage->peak_bytes), BYTES_TEXT(together_bytes));
        if (limit_bytes > 0) {
            fprintf(out, "  %8s  %9d", BYTES_TEXT(limit_bytes), stage->most_held);
            print_bar(together_bytes, limit_bytes, out);
        } else {
            fprintf(out, "      none  %9d", stage->most_held);
        }
        fprintf(out, "\n");
    }
}

// --- explanation of a plan --------------------------------------------------------------------------------

static double percent(int64_t part, int64_t whole) {
    return whole > 0 ? 100.0 * (double)part / (double)whole : 0;
}

// "8", or "5+3" of two stacks: of a stage's chunks one after the other.
static void print_stage_layers(const PlanExplain* about, int32_t s, FILE* out) {
    const Placement* placement = &about->plan->placement;
    const char* before = " ";
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        char layers[PROBLEM_LAYERS_CHARS];
        if (placement->stage_of[k] != s) { continue; }
        problem_layers_text(layers, about->costs, &placement->chunks[k]);
        fprintf(out, "%s%s", before, layers);
        before = "/";
    }
}

static void explain_stages(const PlanExplain* about, FILE* out) {
    const Plan* plan = about->plan;
    const Placement* placement = &plan->placement;
    fprintf(out, about->costs->num_dec_layers > 0 ? "- Stages: encoder+decoder layers" : "- Stages: layers");
    for (int32_t s = 0; s < plan->P; s++) { print_stage_layers(about, s, out); }
    fprintf(out, "%s",
            about->request->choose_stages ? ", chosen so that embedding and head fit in" : ", as given");
    int32_t begin = about->costs->num_enc_layers;
    for (int32_t k = 0; k < placement->num_chunks && about->costs->num_dec_layers > 0; k++) {
        LayerRange layers = placement->chunks[k];
        if (layers.layer_begin < begin && begin < layers.layer_end) {
            fprintf(out, "; stage %d holds the last encoder and the first decoder layers",
                    placement->stage_of[k]);
        }
    }
    fprintf(out, ".\n");
}

// Where the chunks are, in the order in which a micro-batch passes them, and which ranks have the head.
static void explain_placement(const Plan* plan, FILE* out) {
    const Placement* placement = &plan->placement;
    if (placement_is_linear(placement, plan->P)) { return; }
    fprintf(out, "- Placement: a microbatch passes stages");
    for (int32_t k = 0; k < placement->num_chunks; k++) { fprintf(out, " %d", placement->stage_of[k]); }
    if (placement->head == HEAD_WHOLE) {
        fprintf(out, "; the last one has the head.\n");
        return;
    }
    fprintf(out, "; the head is shared by %s,", placement->head == HEAD_BY_ROWS ? "rows" : "vocabulary");
    for (int32_t s = 0; s < plan->P; s++) {
        int32_t units = placement->head_begin[s + 1] - placement->head_begin[s];
        fprintf(out, " %.0f", 100.0 * units / HEAD_UNITS);
    }
    fprintf(out, " %% of it on each stage.\n");
}

// --- lost time --------------------------------------------------------------------------------------------

typedef struct {
    int64_t busy_ns, before_ns, between_ns, after_ns;
} Idle;

static Idle idle_of(const Plan* plan, int32_t r) {
    Idle idle = {.after_ns = plan->makespan_ns};
    int64_t end_ns = 0;
    bool first = true;
    for (int32_t i = 0; i < plan->ranks[r].num_instrs; i++) {
        const PlanInstr* job = &plan->ranks[r].instrs[i];
        if (!plan_instr_is_job((InstrKind)job->kind)) { continue; }
        *(first ? &idle.before_ns : &idle.between_ns) += job->begin_ns - end_ns;
        idle.busy_ns += job->end_ns - job->begin_ns;
        end_ns = job->end_ns;
        first = false;
    }
    idle.after_ns -= end_ns;
    return idle;
}

// The busiest rank limits the pace; its waits delay all.
static void explain_pace(const Plan* plan, FILE* out) {
    int32_t busiest = 0;
    int64_t sum_ns = 0;
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        int64_t busy_ns = idle_of(plan, r).busy_ns;
        if (busy_ns > idle_of(plan, busiest).busy_ns) { busiest = r; }
        sum_ns += busy_ns;
    }
    Idle idle = idle_of(plan, busiest);
    int64_t mean_ns = sum_ns / ((int64_t)plan->P * plan->R);
    fprintf(out,
            "- Pace: stage %d of replica %d works most, %s of %s (mean %s). It begins after %s, "
            "waits %s in between, and the step goes on %s after its last job.\n",
            busiest % plan->P, busiest / plan->P, TIME_TEXT(idle.busy_ns, 6), TIME_TEXT(plan->makespan_ns, 6),
            TIME_TEXT(mean_ns, 6), TIME_TEXT(idle.before_ns, 4), TIME_TEXT(idle.between_ns, 4),
            TIME_TEXT(idle.after_ns, 4));
}

static void explain_loss(const Waterfall* fall, FILE* out) {
    // A remedy for each part.
    static const char* const advice[WATERFALL_COUNT] = {
        [WATERFALL_COMMUNICATION] = "faster links, or fewer replicas",
        [WATERFALL_MEMORY] = "more memory, or --recompute auto",
        [WATERFALL_RECOMPUTE] = "more memory, or more stages",
        [WATERFALL_LAUNCH] = "fewer, larger microbatches, if memory and ramp allow",
        [WATERFALL_PADDING] = "--layout ragged",
        [WATERFALL_ORDER] = "more --effort, --split-backward auto",
        [WATERFALL_RAMP] = "larger batches, fewer stages, or --split-backward auto",
        [WATERFALL_STAGES] = "--stage-split auto, --placement auto, --head auto",
        [WATERFALL_REPLICAS] = "more --effort, or larger batches",
        [WATERFALL_EFFICIENCY] = "larger microbatches",
    };
    int64_t lost_ns = fall->makespan_ns - fall->bound_ns;
    fprintf(out, "- Lost against the bound: %s, %.1f %% of the step.\n", TIME_TEXT(lost_ns, 4),
            percent(lost_ns, fall->makespan_ns));
    for (int part = 0; part < WATERFALL_COUNT; part++) {
        if (percent(fall->part_ns[part], fall->makespan_ns) < 0.5) { continue; }
        fprintf(out, "    %.1f %% to %s ---> %s\n", percent(fall->part_ns[part], fall->makespan_ns),
                waterfall_names[part], advice[part]);
    }
}

// Lines of at most LINE_CHARS, broken at spaces; later lines are indented like the first word of the first.
static void print_wrapped(const char* text, FILE* out) {
    enum { LINE_CHARS = 100 };
    while (*text != '\0') {
        int length = (int)strcspn(text, "\n"), indent = (int)strspn(text, " -"), used = 0;
        for (int at = 0; at < length;) {
            int room = LINE_CHARS - used, left = length - at, take = left;
            if (left > room) {
                for (take = room; take > 0 && text[at + take] != ' ';) { take--; }
                if (take <= indent) { take = (int)strcspn(text + at, " \n"); }
            }
            fprintf(out, "%.*s\n", take, text + at);
            at += take + (at + take < length);
            used = indent;
            if (at < length) { fprintf(out, "%*s", indent, ""); }
        }
        if (length == 0) { fprintf(out, "\n"); }
        text += length + (text[length] == '\n');
    }
}

void plan_explain_print(const PlanExplain* about, FILE* out) {
    char* text = NULL;
    size_t num_bytes;
    FILE* words = open_memstream(&text, &num_bytes);
    if (words == NULL) { return; }
    explain_stages(about, words);
    explain_placement(about->plan, words);
    explain_pace(about->plan, words);
    explain_loss(about->waterfall, words);
    if (fclose(words) == 0) { print_wrapped(text, out); }
    free(text);
}

// --- published format -------------------------------------------------------------------------------------

static const double NS_PER_MS = 1e6;

Status plan_json_check(const Plan* plan) {
    for (int32_t m = 0; m < plan->M; m++) {
        if (plan->mbs[m].layout != LAYOUT_PACKED) { continue; }
        return FAIL(STATUS_BAD_OPTION,
                    "--json: policy %s attends across the samples of a pack, which the form cannot say ---> "
                    "--policy packed-ragged",
                    plan->policy);
    }
    return STATUS_OK;
}

static json_t* chunk_layers(const PlanJson* about, int32_t k, int32_t stage) {
    const LayerRange* layers = &about->plan->placement.chunks[k];
    int32_t num[2] = {0, 0};
    for (int32_t l = layers->layer_begin; l < layers->layer_end; l++) { num[l >= about->num_enc_layers]++; }
    return stage < 0 ? json_pack("[i,i]", num[0], num[1]) : json_pack("[i,i,i]", stage, num[0], num[1]);
}

// stage_layers of the plain pipeline; else the placement. A head split by vocabulary is divided into
// HEAD_UNITS, in proportion to the shares.
static void add_placement(json_t* root, const PlanJson* about) {
    const Placement* placement = &about->plan->placement;
    bool is_linear = placement_is_linear(placement, about->plan->P);
    json_t *chunks = json_array(), *share = json_array();
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        json_array_append_new(chunks, chunk_layers(about, k, is_linear ? -1 : placement->stage_of[k]));
    }
    for (int32_t s = 0; s < about->plan->P && placement->head != HEAD_WHOLE; s++) {
        double units = placement->head_begin[s + 1] - placement->head_begin[s];
        json_array_append_new(share, json_real(units / HEAD_UNITS));
    }
    if (is_linear) {
        json_object_set(root, "stage_layers", chunks);
    } else if (placement->head == HEAD_WHOLE) {
        json_object_set_new(root, "placement", json_pack("{s:O}", "chunks", chunks));
    } else {
        json_object_set_new(root, "placement",
                            json_pack("{s:O,s:{s:s,s:O}}", "chunks", chunks, "head", "by",
                                      head_names[placement->head], "share", share));
    }
    json_decref(chunks);
    json_decref(share);
}

static json_t* microbatch_json(const Plan* plan, int32_t m) {
    const PlanMicrobatch* mb = &plan->mbs[m];
    json_t *samples = json_array(), *recompute = json_array();
    for (int32_t k = first_segment(plan, m); k < end_segment(plan, m); k++) {
        json_array_append_new(samples, json_integer(plan->segments[k].sample_idx));
    }
    for (int32_t k = 0; k < plan->placement.num_chunks; k++) {
        json_array_append_new(recompute, json_string(cost_mode_names[mb->recompute[k]]));
    }
    return json_pack("{s:o,s:b,s:o}", "samples", samples, "padded", mb->layout == LAYOUT_PADDED, "recompute",
                     recompute);
}

// Jobs of the plain pipeline, of one of several chunks, or of a share of the head.
static json_t* order_json(const Plan* plan, int32_t rank, int32_t first_mb) {
    static const char* const kinds[] = {"F", "B", "W", "R"};
    bool is_linear = placement_is_linear(&plan->placement, plan->P);
    json_t* order = json_array();
    for (int32_t i = 0; i < plan->ranks[rank].num_instrs; i++) {
        const PlanInstr* instr = &plan->ranks[rank].instrs[i];
        if (!plan_instr_is_job((InstrKind)instr->kind)) { continue; }
        JobKind kind = plan_instr_job((InstrKind)instr->kind);
        int32_t m = instr->mb - first_mb;
        bool is_share = instr->chunk >= plan->placement.num_chunks;
        const char* name = !is_share ? kinds[kind] : kind == JOB_F ? "H" : "V";
        json_array_append_new(order, is_linear || is_share ? json_pack("[s,i]", name, m)
                                                           : json_pack("[s,i,i]", name, m, instr->chunk));
    }
    return order;
}

void plan_json_print(FILE* out, const void* plan_json) {
    const PlanJson* about = plan_json;
    const Plan* plan = about->plan;
    json_t *root = json_object(), *replicas = json_array();
    int32_t m = 0;
    add_placement(root, about);
    for (int32_t r = 0; r < plan->R; r++) {
        int32_t first_mb = m;
        json_t *mbs = json_array(), *stages = json_array();
        for (; m < plan->M && plan->mbs[m].replica == r; m++) {
            json_array_append_new(mbs, microbatch_json(plan, m));
        }
        for (int32_t s = 0; s < plan->P; s++) {
            json_array_append_new(stages, order_json(plan, r * plan->P + s, first_mb));
        }
        json_array_append_new(replicas, json_pack("{s:o,s:o}", "microbatches", mbs, "stages", stages));
    }
    json_object_set_new(root, "replicas", replicas);
    json_object_set_new(root, "predicted_makespan_ms", json_real((double)plan->makespan_ns / NS_PER_MS));
    json_object_set_new(root, "lower_bound_ms", json_real((double)plan->bound_ns / NS_PER_MS));
    json_object_set_new(root, "planning_cpu_ms", json_real((double)about->planning_cpu_ns / NS_PER_MS));
    json_object_set_new(root, "policy", json_string(plan->policy));
    json_object_set_new(root, "schedule", json_string(plan->schedule));
    json_dumpf(root, out, JSON_REAL_PRECISION(15));
    fputc('\n', out);
    json_decref(root);
}
