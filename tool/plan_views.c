// plan_views.c -- see plan_views.h.
#include "plan_views.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../dynapipe_plugin/plan/placement.h"
#include "../util/program.h"

static int32_t first_segment(const Plan* plan, int32_t m) {
    return plan->sequences[plan->mbs[m].sequence_begin].segment_begin;
}

static int32_t end_segment(const Plan* plan, int32_t m) {
    return plan->sequences[plan->mbs[m].sequence_end - 1].segment_end;
}

Status plan_account_make(PlanAccount* out, const Plan* plan, const Problem* problem, Arena* arena) {
    const PlanProblem* batch;
    CostRank has[PLAN_MAX_STAGES];
    *out = (PlanAccount){.makespan_ns = 0};
    ARENA_TRY_NEW(out->rank, arena, PlanMemory, plan->P * plan->R);
    TRY(plan_batch_make(&batch, plan, &problem->request, &problem->costs, problem->samples, arena));
    for (int32_t r = 0; r < plan->R; r++) {
        PipeTimeline timeline;
        TRY(plan_replica_simulate(&timeline, plan, batch, r, arena));
        if (timeline.makespan_ns > out->makespan_ns) { out->makespan_ns = timeline.makespan_ns; }
        for (int32_t s = 0; s < plan->P; s++) {
            out->rank[r * plan->P + s].peak_bytes = timeline.peak_bytes[s];
        }
    }
    cost_ranks_make(has, &problem->costs, &plan->placement, plan->P);
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        PlanMemory* memory = &out->rank[r];
        memory->state_bytes = cost_rank_state_bytes(&problem->costs, &has[r % plan->P]);
        if (problem->request.memory_rule == MEMORY_BUFFERS) {
            memory->peak_bytes = plan->ranks[r].arena_bytes;
        }
    }
    return STATUS_OK;
}

// --- memory of each stage ---------------------------------------------------------------------------------

void plan_memory_print(const PlanAccount* account, const Plan* plan, const Problem* problem, FILE* out) {
    const Placement* placement = &plan->placement;
    bool shares = placement->head != HEAD_WHOLE;
    fprintf(out,
            "memory of each stage at its peak; %s\n"
            "  stage  layers%s  replica     state  activations  together     limit\n",
            problem->request.memory_rule == MEMORY_ACTIVATIONS
                ? "what backward needs, buffers of transfers not counted"
                : "every buffer, as laid out",
            shares ? "    head" : "");
    for (int32_t s = 0; s < plan->P; s++) {
        int32_t fullest = s;
        char layers[LAYERS_CHARS];
        for (int32_t r = s; r < plan->P * plan->R; r += plan->P) {
            if (account->rank[r].peak_bytes > account->rank[fullest].peak_bytes) { fullest = r; }
        }
        const PlanMemory* stage = &account->rank[fullest];
        int64_t together_bytes = stage->state_bytes + stage->peak_bytes;
        int64_t limit_bytes = problem_limit_bytes(&problem->request, fullest);
        fprintf(out, "  %5d  %6s", s, layers_text(layers, placement_layers(placement, &plan->chain, s)));
        if (shares) {
            fprintf(out, "  %4.1f %%",
                    100.0 * (placement->head_begin[s + 1] - placement->head_begin[s]) / HEAD_UNITS);
        }
        fprintf(out, "  %7d  %8s  %11s  %8s  %8s", fullest / plan->P, BYTES_TEXT(stage->state_bytes),
                BYTES_TEXT(stage->peak_bytes), BYTES_TEXT(together_bytes),
                limit_bytes > 0 ? BYTES_TEXT(limit_bytes) : "none");
        if (limit_bytes > 0) {
            fprintf(out, "  %4.0f %%", 100.0 * (double)together_bytes / (double)limit_bytes);
        }
        fprintf(out, "\n");
    }
}

// --- explanation of a plan --------------------------------------------------------------------------------

static void explain_stages(const Plan* plan, const Problem* problem, FILE* out) {
    const Placement* placement = &plan->placement;
    fprintf(out, "- Stages: %slayers", plan->chain.num_dec_layers > 0 ? "encoder+decoder " : "");
    for (int32_t s = 0; s < plan->P; s++) {
        const char* before = " ";
        for (int32_t k = 0; k < placement->num_chunks; k++) {
            char layers[PROBLEM_LAYERS_CHARS];
            if (placement->stage_of[k] != s) { continue; }
            problem_layers_text(layers, &plan->chain, &placement->chunks[k]);
            fprintf(out, "%s%s", before, layers);
            before = "/";
        }
    }
    fprintf(out, problem->request.choose_stages ? ", chosen so that embedding and head fit in.\n"
                                                : ", as given.\n");
    if (placement_is_linear(placement, plan->P)) { return; }
    fprintf(out, "- Placement: a microbatch passes stages");
    for (int32_t k = 0; k < placement->num_chunks; k++) { fprintf(out, " %d", placement->stage_of[k]); }
    fprintf(out,
            placement->head == HEAD_WHOLE ? "; the last one has the head.\n"
                                          : ";\n  each stage has a share of the head (by %s).\n",
            placement->head == HEAD_BY_ROWS ? "rows" : "vocabulary");
}

// The busiest rank limits the pace; its waits delay all.
static void explain_pace(const Plan* plan, FILE* out) {
    int32_t num_ranks = plan->P * plan->R, busiest = 0;
    int64_t sum_ns = 0, most_ns = 0, begin_ns = 0, end_ns = 0;
    for (int32_t r = 0; r < num_ranks; r++) {
        int64_t busy_ns = 0, first_ns = -1, last_ns = 0;
        for (int32_t i = 0; i < plan->ranks[r].num_instrs; i++) {
            const PlanInstr* job = &plan->ranks[r].instrs[i];
            if (!plan_instr_is_job((InstrKind)job->kind)) { continue; }
            if (first_ns < 0) { first_ns = job->begin_ns; }
            busy_ns += job->end_ns - job->begin_ns;
            last_ns = job->end_ns;
        }
        sum_ns += busy_ns;
        if (busy_ns > most_ns) { busiest = r, most_ns = busy_ns, begin_ns = first_ns, end_ns = last_ns; }
    }
    fprintf(out,
            "- Pace: stage %d of replica %d works most, %s of %s (mean %s). It begins after %s,\n"
            "  waits %s in between, and the step goes on %s after its last job.\n",
            busiest % plan->P, busiest / plan->P, TIME_TEXT(most_ns, 4), TIME_TEXT(plan->makespan_ns, 4),
            TIME_TEXT(sum_ns / num_ranks, 4), TIME_TEXT(begin_ns, 4),
            TIME_TEXT(end_ns - begin_ns - most_ns, 4), TIME_TEXT(plan->makespan_ns - end_ns, 4));
}

static double percent(int64_t part, int64_t whole) {
    return whole > 0 ? 100.0 * (double)part / (double)whole : 0;
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
        [WATERFALL_STAGES] = "more memory, other --stages, or auto for --placement, --head",
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

void plan_explain_print(const Plan* plan, const Problem* problem, const Waterfall* waterfall, FILE* out) {
    explain_stages(plan, problem, out);
    explain_pace(plan, out);
    explain_loss(waterfall, out);
}

// --- published format -------------------------------------------------------------------------------------

Status plan_json_check(const Plan* plan) {
    for (int32_t m = 0; m < plan->M; m++) {
        if (plan->mbs[m].layout != LAYOUT_PACKED) { continue; }
        return FAIL(STATUS_BAD_OPTION,
                    "--json: policy %s attends across the samples of a pack, which the format cannot express "
                    "---> --policy packed-ragged",
                    plan->policy);
    }
    return STATUS_OK;
}

// stage_layers of the plain pipeline; else the placement. A head split by vocabulary is divided into
// HEAD_UNITS, in proportion to the shares.
static void add_placement(json_t* root, const PlanJson* about) {
    const Placement* placement = &about->plan->placement;
    const PlanChain* chain = &about->plan->chain;
    bool is_linear = placement_is_linear(placement, about->plan->P);
    json_t *chunks = json_array(), *share = json_array();
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        double num[2];
        json_t* chunk = is_linear ? json_array() : json_pack("[i]", placement->stage_of[k]);
        plan_chain_lengths(num, chain, &placement->chunks[k]);
        for (int i = 0; i < 2; i++) {
            json_array_append_new(chunk, num[i] == floor(num[i]) ? json_integer((json_int_t)num[i])
                                                                 : json_real(num[i]));
        }
        json_array_append_new(chunks, chunk);
    }
    if (is_linear) {
        json_object_set_new(root, "stage_layers", chunks);
    } else {
        json_object_set_new(root, "placement", json_pack("{s:o}", "chunks", chunks));
    }
    for (int32_t s = 0; s < about->plan->P && placement->head != HEAD_WHOLE; s++) {
        double units = placement->head_begin[s + 1] - placement->head_begin[s];
        json_array_append_new(share, json_real(units / HEAD_UNITS));
    }
    if (placement->head != HEAD_WHOLE) {
        json_object_set_new(json_object_get(root, "placement"), "head",
                            json_pack("{s:s,s:O}", "by", head_names[placement->head], "share", share));
    }
    json_decref(share);
}

static json_t* microbatch_json(const Plan* plan, int32_t m) {
    const PlanMicrobatch* mb = &plan->mbs[m];
    json_t *samples = json_array(), *recompute = json_array();
    bool has_piece = plan_has_piece(plan, m);
    for (int32_t k = first_segment(plan, m) + has_piece; k < end_segment(plan, m); k++) {
        json_array_append_new(samples, json_integer(plan->segments[k].sample_idx));
    }
    for (int32_t k = 0; k < plan->placement.num_chunks; k++) {
        json_array_append_new(recompute, json_string(cost_mode_names[mb->recompute[k]]));
    }
    json_t* json = json_pack("{s:o,s:b,s:o}", "samples", samples, "padded", mb->layout == LAYOUT_PADDED,
                             "recompute", recompute);
    if (has_piece) {
        const PlanSegment* piece = &plan->segments[first_segment(plan, m)];
        int32_t end = piece->first_token + piece->num_tokens;
        json_object_set_new(
            json, "piece",
            json_pack("{s:i,s:i,s:i}", "sample", piece->sample_idx, "begin", piece->first_token, "end", end));
    }
    return json;
}

// Jobs of the plain pipeline, of one of several chunks, or of a share of the head.
static json_t* order_json(const Plan* plan, int32_t rank, int32_t first_mb, int32_t first_dec) {
    static const char* const kinds[] = {"F", "B", "W", "R"};
    bool is_linear = placement_is_linear(&plan->placement, plan->P);
    json_t* order = json_array();
    for (int32_t i = 0; i < plan->ranks[rank].num_instrs; i++) {
        const PlanInstr* instr = &plan->ranks[rank].instrs[i];
        if (!plan_instr_is_job((InstrKind)instr->kind)) { continue; }
        JobKind kind = plan_instr_job((InstrKind)instr->kind);
        int32_t m = instr->mb - first_mb;
        const bool is_idle =
            plan->mbs[instr->mb].shape.enc_tokens == 0;  // later pieces have no encoder's jobs
        if (is_idle && instr->chunk < first_dec) { continue; }
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
    int32_t m = 0, first_dec = 0;  // the first chunk with layers of a decoder
    while (first_dec < plan->placement.num_chunks &&
           plan->placement.chunks[first_dec].end <= plan_chain_first_dec(&plan->chain)) {
        first_dec++;
    }
    add_placement(root, about);
    for (int32_t r = 0; r < plan->R; r++) {
        int32_t first_mb = m;
        json_t *mbs = json_array(), *stages = json_array();
        for (; m < plan->M && plan->mbs[m].replica == r; m++) {
            json_array_append_new(mbs, microbatch_json(plan, m));
        }
        for (int32_t s = 0; s < plan->P; s++) {
            json_array_append_new(stages, order_json(plan, r * plan->P + s, first_mb, first_dec));
        }
        json_array_append_new(replicas, json_pack("{s:o,s:o}", "microbatches", mbs, "stages", stages));
    }
    json_object_set_new(root, "replicas", replicas);
    json_object_set_new(root, "predicted_makespan_ms", json_real((double)plan->makespan_ns / 1e6));
    json_object_set_new(root, "lower_bound_ms", json_real((double)plan->bound_ns / 1e6));
    json_object_set_new(root, "planning_cpu_ms", json_real((double)about->planning_cpu_ns / 1e6));
    json_object_set_new(root, "policy", json_string(plan->policy));
    json_object_set_new(root, "schedule", json_string(plan->schedule));
    json_dumpf(root, out, JSON_REAL_PRECISION(15));
    fputc('\n', out);
    json_decref(root);
}
