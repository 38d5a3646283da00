/*
plan_diff.c -- micro-batches are the same where they have the same samples, wherever they stand.

From the outside in: size, policy, placement of chunks and head; micro-batches that only one plan has; those
that both have but on another replica, padded or recomputed otherwise; the first job of each rank that is
another one; predictions. What is equal is counted, not listed. Orders are compared by the micro-batches that
both plans have, under the first plan's numbers.
*/
#include "plan_diff.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "../util/program.h"
#include "../dynapipe_plugin/plan/lists/plan_words.h"
#include "../dynapipe_plugin/plan/pipe/pipe_schedule.h"
#include "svg.h"

enum { MAX_LISTED = 8, MAX_SAMPLES = 6 };  // lines of one kind, samples in one of them

typedef struct {
    const Plan *a, *b;
    FILE* out;
    int32_t num_differences;
    int32_t equal_values, equal_chunks, equal_mbs, equal_orders;
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

// --- size, policy, stages --------------------------------------------------------------------------------

static void diff_number(Diff* diff, const char* what, int64_t a, int64_t b) {
    if (a == b) {
        diff->equal_values++;
    } else {
        differ(diff, "%s: %" PRId64 ", %" PRId64 "\n", what, a, b);
    }
}

static void diff_text(Diff* diff, const char* what, const char* a, const char* b) {
    if (strcmp(a, b) == 0) {
        diff->equal_values++;
    } else {
        differ(diff, "%s: %s, %s\n", what, a, b);
    }
}

static double percent_more(int64_t a, int64_t b) {
    return a > 0 ? 100.0 * (double)(b - a) / (double)a : 0;
}

// In bytes where three digits would not tell them apart.
static void diff_bytes(Diff* diff, const char* what, int64_t a, int64_t b) {
    char text[2][SVG_NUMBER_BYTES];
    if (a == b) {
        diff->equal_values++;
    } else if (strcmp(bytes_text(text[0], (double)a), bytes_text(text[1], (double)b)) == 0) {
        differ(diff, "%s: %" PRId64 " B, %" PRId64 " B\n", what, a, b);
    } else {
        differ(diff, "%s: %s, %s (%+.2f %%)\n", what, text[0], text[1], percent_more(a, b));
    }
}

static void diff_ms(Diff* diff, const char* what, int64_t a_ns, int64_t b_ns) {
    if (a_ns == b_ns) {
        diff->equal_values++;
        return;
    }
    bool is_long = a_ns >= 1000000000 && b_ns >= 1000000000;
    const char* unit = is_long ? "s" : "ms";
    const int decimals = is_long ? 9 : 6;
    const double unit_ns = is_long ? 1e9 : 1e6;
    differ(diff, "%s: %.*f %s, %.*f %s (%+.2f %%)\n", what, decimals, (double)a_ns / unit_ns, unit, decimals,
           (double)b_ns / unit_ns, unit, percent_more(a_ns, b_ns));
}

static void print_layers(char* out, size_t out_bytes, const LayerRange* layers) {
    if (layers->layer_begin == layers->layer_end) {
        snprintf(out, out_bytes, "no layers");
    } else if (layers->layer_begin == layers->layer_end - 1) {
        snprintf(out, out_bytes, "layer %d", layers->layer_begin);
    } else {
        snprintf(out, out_bytes, "layers %d to %d", layers->layer_begin, layers->layer_end - 1);
    }
}

// "layers 0 to 3 on stage 1".
static void print_chunk(char* out, size_t out_bytes, const Placement* placement, int32_t k) {
    char layers[40];
    print_layers(layers, sizeof layers, &placement->chunks[k]);
    snprintf(out, out_bytes, "%s on stage %d", layers, placement->stage_of[k]);
}

static bool same_chunk(const Placement* a, const Placement* b, int32_t k) {
    return a->chunks[k].layer_begin == b->chunks[k].layer_begin &&
           a->chunks[k].layer_end == b->chunks[k].layer_end && a->stage_of[k] == b->stage_of[k];
}

// "whole", "by rows: 512 0 512".
static void print_split(char* out, size_t out_bytes, const Placement* placement, int32_t P) {
    int used = snprintf(out, out_bytes, "%s%s", placement->head == HEAD_WHOLE ? "" : "by ",
                        plan_head_words[placement->head]);
    for (int32_t s = 0; s < P && placement->head != HEAD_WHOLE && (size_t)used < out_bytes; s++) {
        int32_t units = placement->head_begin[s + 1] - placement->head_begin[s];
        used += snprintf(out + used, out_bytes - (size_t)used, "%s%d", s == 0 ? ": " : " ", units);
    }
}

static void diff_placement(Diff* diff) {
    const Placement *a = &diff->a->placement, *b = &diff->b->placement;
    char text[2][1024];
    int32_t num = 0;
    diff_number(diff, "chunks", a->num_chunks, b->num_chunks);
    for (int32_t k = 0; k < a->num_chunks && k < b->num_chunks; k++) {
        bool same = same_chunk(a, b, k);
        diff->equal_chunks += same;
        if (same || num++ >= MAX_LISTED) { continue; }
        print_chunk(text[0], sizeof text[0], a, k);
        print_chunk(text[1], sizeof text[1], b, k);
        differ(diff, "chunk %d: %s, %s\n", k, text[0], text[1]);
    }
    if (num > MAX_LISTED) { differ(diff, "%d more chunks have other layers or stages\n", num - MAX_LISTED); }
    print_split(text[0], sizeof text[0], a, diff->a->P);
    print_split(text[1], sizeof text[1], b, diff->b->P);
    diff_text(diff, "head", text[0], text[1]);
}

static void diff_head(Diff* diff) {
    const Plan *a = diff->a, *b = diff->b;
    diff_number(diff, "stages", a->P, b->P);
    diff_number(diff, "replicas", a->R, b->R);
    diff_number(diff, "samples", a->N, b->N);
    diff_number(diff, "micro-batches", a->M, b->M);
    diff_text(diff, "policy", a->policy, b->policy);
    diff_text(diff, "schedule", a->schedule, b->schedule);
    diff_number(diff, "messages are pulled", a->pulls, b->pulls);
    diff_bytes(diff, "memory limit", a->memory_limit_bytes, b->memory_limit_bytes);
    diff_placement(diff);
}

// --- micro-batches ---------------------------------------------------------------------------------------

static int32_t first_segment(const Plan* plan, int32_t m) {
    return plan->sequences[plan->mbs[m].sequence_begin].segment_begin;
}

static int32_t end_segment(const Plan* plan, int32_t m) {
    return plan->sequences[plan->mbs[m].sequence_end - 1].segment_end;
}

// owner[sample] = its micro-batch. Sample ids of a checked plan are in range and there once.
static Status owners_make(int32_t** out, const Plan* plan, Arena* arena) {
    ARENA_TRY_NEW(*out, arena, int32_t, plan->N);
    for (int32_t m = 0; m < plan->M; m++) {
        for (int32_t k = first_segment(plan, m); k < end_segment(plan, m); k++) {
            (*out)[plan->segments[k].sample_idx] = m;
        }
    }
    return STATUS_OK;
}

// twin[m] of every micro-batch of `plan` in the other one.
static Status twins_make(int32_t** out, const Plan* plan, const Plan* other, Arena* arena) {
    int32_t* owner;
    ARENA_TRY_NEW(*out, arena, int32_t, plan->M);
    TRY(owners_make(&owner, other, arena));
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
        differ(diff, "only in %s: micro-batch %d, replica %d, %" PRId64 " tokens, samples", which, m,
               plan->mbs[m].replica, plan->mbs[m].shape.enc_tokens + plan->mbs[m].shape.dec_tokens);
        for (int32_t k = 0; k < num_samples && k < MAX_SAMPLES; k++) {
            fprintf(diff->out, " %d", plan->segments[begin + k].sample_idx);
        }
        fprintf(diff->out, "%s\n", num_samples > MAX_SAMPLES ? " ..." : "");
    }
    if (num > MAX_LISTED) { differ(diff, "only in %s: %d more\n", which, num - MAX_LISTED); }
}

static void diff_twins(Diff* diff) {
    int32_t num = 0;
    for (int32_t m = 0; m < diff->a->M; m++) {
        if (diff->twin[m] < 0) { continue; }
        const PlanMicrobatch *x = &diff->a->mbs[m], *y = &diff->b->mbs[diff->twin[m]];
        int32_t K = diff->a->placement.num_chunks;
        bool recompute =
            diff->b->placement.num_chunks == K && memcmp(x->recompute, y->recompute, (size_t)K) != 0;
        bool padding = x->layout != y->layout || memcmp(&x->shape, &y->shape, sizeof x->shape) != 0;
        if (x->replica == y->replica && !recompute && !padding) {
            diff->equal_mbs++;
            continue;
        }
        if (num++ >= MAX_LISTED) { continue; }
        differ(diff, "micro-batch %d, %d:%s%s%s\n", m, diff->twin[m],
               x->replica != y->replica ? " another replica" : "", padding ? " padded otherwise" : "",
               recompute ? " recomputed otherwise" : "");
    }
    if (num > MAX_LISTED) {
        differ(diff, "%d more micro-batches on other replicas or in other modes\n", num - MAX_LISTED);
    }
}

// --- orders ----------------------------------------------------------------------------------------------

// The next job of a micro-batch that the other plan has, too.
static const PlanInstr* next_job(const PlanRank* rank, int32_t* i, const int32_t* twin) {
    while (*i < rank->num_instrs) {
        const PlanInstr* instr = &rank->instrs[(*i)++];
        if (plan_instr_is_job((InstrKind)instr->kind) && twin[instr->mb] >= 0) { return instr; }
    }
    return NULL;
}

// mb: the job's micro-batch in the first plan.
static void print_job(FILE* out, const Plan* plan, const PlanInstr* job, int32_t mb) {
    if (job == NULL) {
        fprintf(out, "nothing more");
    } else if (job->chunk >= plan->placement.num_chunks) {
        fprintf(out, "%s %d of the head", plan_instr_words[job->kind], mb);
    } else {
        fprintf(out, "%s %d of chunk %d", plan_instr_words[job->kind], mb, job->chunk);
    }
}

// Shares are the same of each other, whatever number they have behind the chunks.
static bool same_piece(const Diff* diff, const PlanInstr* x, const PlanInstr* y) {
    bool share = x->chunk >= diff->a->placement.num_chunks;
    return share ? y->chunk >= diff->b->placement.num_chunks : x->chunk == y->chunk;
}

static int32_t num_common(const Diff* diff) {
    int32_t num = 0;
    for (int32_t m = 0; m < diff->a->M; m++) { num += diff->twin[m] >= 0; }
    return num;
}

// The first job that is another one; the same micro-batch counts by its samples. Nothing can be said of
// pieces that have no counterpart, nor where no micro-batch has.
static void diff_orders(Diff* diff) {
    int32_t num = 0, num_ranks = diff->a->P * diff->a->R;
    bool same_pieces = diff->a->placement.num_chunks == diff->b->placement.num_chunks &&
                       diff->a->placement.head == diff->b->placement.head;
    if (diff->a->P != diff->b->P || diff->a->R != diff->b->R || !same_pieces || num_common(diff) == 0) {
        return;
    }
    for (int32_t r = 0; r < num_ranks; r++) {
        int32_t i = 0, k = 0, place = 0;
        const PlanInstr *x, *y;
        bool same;
        do {
            x = next_job(&diff->a->ranks[r], &i, diff->twin);
            y = next_job(&diff->b->ranks[r], &k, diff->twin_of_b);
            same = x != NULL && y != NULL && x->kind == y->kind && diff->twin[x->mb] == y->mb &&
                   same_piece(diff, x, y);
            place++;
        } while (same);
        bool all_same = x == NULL && y == NULL;
        diff->equal_orders += all_same;
        if (all_same || num++ >= MAX_LISTED) { continue; }
        differ(diff, "replica %d, stage %d: job %d is ", r / diff->a->P, r % diff->a->P, place - 1);
        print_job(diff->out, diff->a, x, x != NULL ? x->mb : -1);
        fprintf(diff->out, ", ");
        print_job(diff->out, diff->b, y, y != NULL ? diff->twin_of_b[y->mb] : -1);
        fprintf(diff->out, "\n");
    }
    if (num > MAX_LISTED) { differ(diff, "%d more ranks with other orders\n", num - MAX_LISTED); }
}

static void diff_memory(Diff* diff) {
    if (diff->a->P != diff->b->P || diff->a->R != diff->b->R) { return; }
    int64_t most[2] = {0, 0};
    for (int32_t r = 0; r < diff->a->P * diff->a->R; r++) {
        int64_t bytes[2] = {diff->a->ranks[r].arena_bytes + diff->a->ranks[r].state_bytes,
                            diff->b->ranks[r].arena_bytes + diff->b->ranks[r].state_bytes};
        for (int i = 0; i < 2; i++) { most[i] = bytes[i] > most[i] ? bytes[i] : most[i]; }
    }
    diff_bytes(diff, "memory of the fullest rank", most[0], most[1]);
}

static void print_equal(const Diff* diff) {
    const Plan* a = diff->a;
    fprintf(diff->out, "equal: %d values, %d of %d chunks, %d of %d micro-batches", diff->equal_values,
            diff->equal_chunks, a->placement.num_chunks, diff->equal_mbs, a->M);
    fprintf(diff->out, ", orders of %d of %d ranks\n", diff->equal_orders, a->P * a->R);
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
    diff_ms(&diff, "makespan", a->makespan_ns, b->makespan_ns);
    diff_ms(&diff, "bound", a->bound_ns, b->bound_ns);
    diff_memory(&diff);
    if (diff.num_differences == 0 && plan_hash(a) != plan_hash(b)) {
        differ(&diff, "the same jobs, but their transfers, buffers or times differ: see diff of the texts\n");
    }
    if (diff.num_differences > 0) { print_equal(&diff); }
    *num_differences = diff.num_differences;
    return STATUS_OK;
}
