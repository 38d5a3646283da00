#include "plan_json.h"

#include "../dynapipe_plugin/plan/lists/plan_words.h"

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

static void print_stages(const PlanJson* about, FILE* out) {
    const Plan* plan = about->plan;
    fprintf(out, "{\"stage_layers\": [");
    for (int32_t s = 0; s < plan->P; s++) {
        LayerRange layers = plan->placement.chunks[s];
        int32_t num_enc = 0;
        for (int32_t l = layers.layer_begin; l < layers.layer_end; l++) {
            num_enc += l < about->num_enc_layers;
        }
        fprintf(out, "%s[%d, %d]", s > 0 ? ", " : "", num_enc,
                layers.layer_end - layers.layer_begin - num_enc);
    }
    fprintf(out, "],\n \"replicas\": [");
}

static void print_microbatch(const Plan* plan, const PlanMicrobatch* mb, FILE* out) {
    int32_t begin = plan->sequences[mb->sequence_begin].segment_begin;
    int32_t end = plan->sequences[mb->sequence_end - 1].segment_end;
    fprintf(out, "{\"samples\": [");
    for (int32_t k = begin; k < end; k++) {
        fprintf(out, "%s%d", k > begin ? ", " : "", plan->segments[k].sample_idx);
    }
    fprintf(out, "], \"padded\": %s, \"recompute\": [", mb->layout == LAYOUT_PADDED ? "true" : "false");
    for (int32_t s = 0; s < plan->P; s++) {
        fprintf(out, "%s\"%s\"", s > 0 ? ", " : "", plan_recompute_words[mb->recompute[s]]);
    }
    fprintf(out, "]}");
}

static void print_orders(const Plan* plan, int32_t r, int32_t first_mb, FILE* out) {
    for (int32_t s = 0; s < plan->P; s++) {
        const PlanRank* rank = &plan->ranks[r * plan->P + s];
        const char* comma = "";
        fprintf(out, "%s\n    [", s > 0 ? "," : "");
        for (int32_t i = 0; i < rank->num_instrs; i++) {
            const PlanInstr* instr = &rank->instrs[i];
            if (!plan_instr_is_job((InstrKind)instr->kind)) { continue; }
            fprintf(out, "%s[\"%c\", %d]", comma, "FBWR"[plan_instr_job((InstrKind)instr->kind)],
                    instr -> mb - first_mb);
            comma = ", ";
        }
        fprintf(out, "]");
    }
}

void plan_json_print(FILE* out, const void* plan_json) {
    const PlanJson* about = plan_json;
    const Plan* plan = about->plan;
    int32_t m = 0;
    print_stages(about, out);
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
