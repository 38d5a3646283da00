#include "plan_explain.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../util/program.h"
#include "../dynapipe_plugin/plan/lists/plan_words.h"
#include "problem_machine.h"
#include "problem_place.h"

static double percent(int64_t part, int64_t whole) {
    return whole > 0 ? 100.0 * (double)part / (double)whole : 0;
}

// --- what was chosen -------------------------------------------------------------------------------------

static int64_t tokens_of(const Plan* plan, int32_t m) {
    return plan->mbs[m].shape.enc_tokens + plan->mbs[m].shape.dec_tokens;
}

// Micro-batches of replica r: how many, and the first of them.
static int32_t count_of(const Plan* plan, int32_t r, int32_t* first) {
    int32_t num = 0;
    for (int32_t m = plan->M - 1; m >= 0; m--) {
        if (plan->mbs[m].replica != r) { continue; }
        *first = m;
        num++;
    }
    return num;
}

static void explain_microbatches(const Plan* plan, FILE* out) {
    int64_t least = INT64_MAX, most = 0, sum = 0, num_padded = 0;
    int32_t first = 0, num = count_of(plan, 0, &first), last = num > 0 ? first + num - 1 : 0;
    for (int32_t m = 0; m < plan->M; m++) {
        int64_t tokens = tokens_of(plan, m);
        least = tokens < least ? tokens : least;
        most = tokens > most ? tokens : most;
        sum += tokens;
        num_padded += plan->mbs[m].layout != LAYOUT_RAGGED;
    }
    fprintf(out,
            "- Micro-batches: %d of %d samples, %" PRId64 " to %" PRId64 " tokens (mean %" PRId64
            "); replica 0 begins with %" PRId64 " and ends with %" PRId64 ". %s.\n",
            plan->M, plan->N, least, most, sum / plan->M, tokens_of(plan, first), tokens_of(plan, last),
            num_padded == 0 ? "Nothing is padded" : "Samples are padded to the longest of their micro-batch");
}

// "8", or "5+3" of two stacks: of a stage's chunks one behind the other.
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

// Where chunks lie, in the order in which a micro-batch passes them, and who has the head.
static void explain_placement(const Plan* plan, FILE* out) {
    const Placement* placement = &plan->placement;
    if (placement_is_linear(placement, plan->P)) { return; }
    fprintf(out, "- Placement: a micro-batch passes stages");
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

static void explain_schedule(const Plan* plan, FILE* out) {
    int64_t num_w = 0, num_b = 0;  // of chunks; a share's W is always one
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        for (int32_t i = 0; i < plan->ranks[r].num_instrs; i++) {
            bool of_share = plan->ranks[r].instrs[i].chunk >= plan->placement.num_chunks;
            num_w += plan->ranks[r].instrs[i].kind == INSTR_WGT && !of_share;
            num_b += plan->ranks[r].instrs[i].kind == INSTR_BWD;
        }
    }
    fprintf(out, "- Schedule: %s; %s.\n", plan->schedule,
            num_w == 0       ? "weight gradients are part of the backward"
            : num_w == num_b ? "weight gradients are jobs of their own, which fill waits"
                             : "some weight gradients are jobs of their own, which fill waits");
}

static void explain_memory(const PlanExplain* about, FILE* out) {
    const Plan* plan = about->plan;
    int32_t K = plan->placement.num_chunks;
    int64_t num_recomputed = 0, num_all = (int64_t)plan->M * K;
    for (int32_t m = 0; m < plan->M; m++) {
        for (int32_t k = 0; k < K; k++) { num_recomputed += plan->mbs[m].recompute[k] != RECOMPUTE_NONE; }
    }
    int32_t fullest = 0;
    for (int32_t r = 1; r < plan->P * plan->R; r++) {
        int64_t most = about->memory[fullest].state_bytes + about->memory[fullest].peak_bytes;
        if (about->memory[r].state_bytes + about->memory[r].peak_bytes > most) { fullest = r; }
    }
    const PlanMemory* memory = &about->memory[fullest];
    fprintf(out, "- Memory: stage %d of replica %d is the fullest, %s", fullest % plan->P, fullest / plan->P,
            BYTES_TEXT(memory->state_bytes + memory->peak_bytes));
    int64_t limit_bytes = problem_limit_bytes(about->request, fullest);
    if (limit_bytes > 0) {
        fprintf(out, " of %s (%.0f %%)", BYTES_TEXT(limit_bytes),
                percent(memory->state_bytes + memory->peak_bytes, limit_bytes));
    }
    if (num_recomputed == 0) {
        fprintf(out, "; nothing is recomputed.\n");
    } else {
        fprintf(out, "; %.0f %% of the forwards (micro-batch x chunk) are recomputed to fit.\n",
                percent(num_recomputed, num_all));
    }
}

// --- where the rest goes ---------------------------------------------------------------------------------

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

// The busiest rank sets the pace; what it waits is lost for all.
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
    // What to try against each part.
    static const char* const advice[WATERFALL_COUNT] = {
        [WATERFALL_COMMUNICATION] = "faster links, or fewer replicas",
        [WATERFALL_MEMORY] = "more memory, or --recompute auto",
        [WATERFALL_RECOMPUTE] = "more memory, or more stages",
        [WATERFALL_LAUNCH] = "fewer, larger micro-batches, if memory and ramp allow",
        [WATERFALL_PADDING] = "--layout ragged",
        [WATERFALL_ORDER] = "more --effort, --split-backward auto",
        [WATERFALL_RAMP] = "larger batches, fewer stages, or --split-backward auto",
        [WATERFALL_STAGES] = "--stage-split auto, --placement auto, --head auto",
        [WATERFALL_REPLICAS] = "more --effort, or larger batches",
        [WATERFALL_EFFICIENCY] = "larger micro-batches",
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

// Lines of at most LINE_CHARS, broken at spaces; what goes on is indented as far as its line's first word.
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
    explain_microbatches(about->plan, words);
    explain_stages(about, words);
    explain_placement(about->plan, words);
    explain_schedule(about->plan, words);
    explain_memory(about, words);
    explain_pace(about->plan, words);
    explain_loss(about->waterfall, words);
    if (fclose(words) == 0) { print_wrapped(text, out); }
    free(text);
}
