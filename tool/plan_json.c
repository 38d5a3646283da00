#include "plan_json.h"

#include "../dynapipe_plugin/plan/lists/plan_words.h"
#include "../dynapipe_plugin/plan/problem/placement_make.h"

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

static void chunk_layers(int32_t num[2], const PlanJson* about, int32_t k) {
    LayerRange layers = about->plan->placement.chunks[k];
    num[0] = num[1] = 0;
    for (int32_t l = layers.layer_begin; l < layers.layer_end; l++) { num[l >= about->num_enc_layers]++; }
}

static void print_stages(const PlanJson* about, FILE* out) {
    fprintf(out, "\"stage_layers\": [");
    for (int32_t s = 0; s < about->plan->P; s++) {
        int32_t num[2];
        chunk_layers(num, about, s);
        fprintf(out, "%s[%d, %d]", s > 0 ? ", " : "", num[0], num[1]);
    }
    fprintf(out, "]");
}

// Of a head by vocabulary the matrix is divided by units of HEAD_UNITS, as the shares say.
static void print_placement(const PlanJson* about, FILE* out) {
    const Placement* placement = &about->plan->placement;
    fprintf(out, "\"placement\": {\"chunks\": [");
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        int32_t num[2];
        chunk_layers(num, about, k);
        fprintf(out, "%s[%d, %d, %d]", k > 0 ? ", " : "", placement->stage_of[k], num[0], num[1]);
    }
    fprintf(out, "]");
    for (int32_t s = 0; s < about->plan->P && placement->head != HEAD_WHOLE; s++) {
        int32_t units = placement->head_begin[s + 1] - placement->head_begin[s];
        if (s == 0) {
            fprintf(out, ", \"head\": {\"by\": \"%s\", \"share\": [", head_names[placement->head]);
        }
        fprintf(out, "%s%.10g", s > 0 ? ", " : "", (double)units / HEAD_UNITS);
        if (s == about->plan->P - 1) { fprintf(out, "]}"); }
    }
    fprintf(out, "}");
}

static void print_microbatch(const Plan* plan, const PlanMicrobatch* mb, FILE* out) {
    int32_t begin = plan->sequences[mb->sequence_begin].segment_begin;
    int32_t end = plan->sequences[mb->sequence_end - 1].segment_end;
    fprintf(out, "{\"samples\": [");
    for (int32_t k = begin; k < end; k++) {
        fprintf(out, "%s%d", k > begin ? ", " : "", plan->segments[k].sample_idx);
    }
    fprintf(out, "], \"padded\": %s, \"recompute\": [", mb->layout == LAYOUT_PADDED ? "true" : "false");
    for (int32_t k = 0; k < plan->placement.num_chunks; k++) {
        fprintf(out, "%s\"%s\"", k > 0 ? ", " : "", plan_recompute_words[mb->recompute[k]]);
    }
    fprintf(out, "]}");
}

// A job of the plain pipeline, of one of several chunks, or of a share of the head.
static void print_job(const Plan* plan, const PlanInstr* instr, int32_t first_mb, FILE* out) {
    JobKind kind = plan_instr_job((InstrKind)instr->kind);
    int32_t m = instr->mb - first_mb;
    if (placement_is_linear(&plan->placement, plan->P)) {
        fprintf(out, "[\"%c\", %d]", "FBWR"[kind], m);
    } else if (instr->chunk < plan->placement.num_chunks) {
        fprintf(out, "[\"%c\", %d, %d]", "FBWR"[kind], m, instr -> chunk);
    } else {
        fprintf(out, "[\"%c\", %d]", kind == JOB_F ? 'H' : 'V', m);
    }
}

static void print_orders(const Plan* plan, int32_t r, int32_t first_mb, FILE* out) {
    for (int32_t s = 0; s < plan->P; s++) {
        const PlanRank* rank = &plan->ranks[r * plan->P + s];
        const char* comma = "";
        fprintf(out, "%s\n    [", s > 0 ? "," : "");
        for (int32_t i = 0; i < rank->num_instrs; i++) {
            const PlanInstr* instr = &rank->instrs[i];
            if (!plan_instr_is_job((InstrKind)instr->kind)) { continue; }
            fprintf(out, "%s", comma);
            print_job(plan, instr, first_mb, out);
            comma = ", ";
        }
        fprintf(out, "]");
    }
}

void plan_json_print(FILE* out, const void* plan_json) {
    const PlanJson* about = plan_json;
    const Plan* plan = about->plan;
    int32_t m = 0;
    fprintf(out, "{");
    (placement_is_linear(&plan->placement, plan->P) ? print_stages : print_placement)(about, out);
    fprintf(out, ",\n \"replicas\": [");
    for (int32_t r = 0; r < plan->R; r++) {
        int32_t first_mb = m;
        fprintf(out, "%s\n  {\"microbatches\": [", r > 0 ? "," : "");
        for (; m < plan->M && plan->mbs[m].replica == r; m++) {
            fprintf(out, "%s\n    ", m > first_mb ? "," : "");
            print_microbatch(plan, &plan->mbs[m], out);
        }
        fprintf(out, "],\n   \"stages\": [");
        print_orders(plan, r, first_mb, out);
        fprintf(out, "]}");
    }
    fprintf(out,
            "],\n \"predicted_makespan_ms\": %.6f, \"lower_bound_ms\": %.6f, \"planning_cpu_ms\": %.3f,\n"
            " \"policy\": \"%s\", \"schedule\": \"%s\"}\n",
            (double)plan->makespan_ns / NS_PER_MS, (double)plan->bound_ns / NS_PER_MS,
            (double)about->planning_cpu_ns / NS_PER_MS, plan->policy, plan->schedule);
}
