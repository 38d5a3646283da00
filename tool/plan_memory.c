#include "plan_memory.h"

#include "../dynapipe_plugin/plan/lists/plan_words.h"
#include "problem.h"

static const double BYTES_PER_MB = 1e6;

// A stage runs one job after the other, so its list is the order of time.
static void hold_activations(PlanMemory* out, const Plan* plan, int32_t r, const CostModel* costs,
                             const CostStage* stage) {
    const PlanRank* rank = &plan->ranks[r];
    int32_t s = r % plan->P, num_held = 0;
    int64_t held_bytes = 0;
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        if (!plan_instr_is_job((InstrKind)instr->kind)) { continue; }
        const PlanMicrobatch* mb = &plan->mbs[instr->mb];
        RecomputeMode mode = (RecomputeMode)mb->recompute[s];
        bool drops = mode != RECOMPUTE_NONE && costs->recompute_is_job[mode];
        int64_t stored_bytes = cost_stored_bytes(costs, stage, mode, &mb->shape);
        int64_t during_bytes = held_bytes;  // while this job runs
        bool takes = instr->kind == (drops ? INSTR_REC : INSTR_FWD);
        if (instr->kind == INSTR_FWD) { num_held++; }
        if (takes) { during_bytes = held_bytes += stored_bytes; }
        if (drops && instr->kind == INSTR_FWD) {
            during_bytes += cost_forward_bytes(costs, stage, mode, &mb->shape);
        }
        if (num_held > out->most_held) { out->most_held = num_held; }
        if (during_bytes > out->peak_bytes) {
            out->peak_bytes = during_bytes;
            out->peak_ns = instr->begin_ns;
            out->peak_mb = instr->mb;
        }
        bool splits = false;  // does a W of it follow?
        for (int32_t k = i + 1; k < rank->num_instrs && instr->kind == INSTR_BWD && !splits; k++) {
            splits = rank->instrs[k].kind == INSTR_WGT && rank->instrs[k].mb == instr->mb;
        }
        if (instr->kind == INSTR_WGT || (instr->kind == INSTR_BWD && !splits)) {
            held_bytes -= stored_bytes;
            num_held--;
        }
    }
}

Status plan_memory_make(PlanMemory* out, const Plan* plan, const CostModel* costs, MemoryRule rule) {
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        int32_t s = r % plan->P;
        CostStage stage = cost_stage_make(costs, &plan->placement.chunks[s], s, plan->P);
        out[r] = (PlanMemory){.state_bytes = cost_state_bytes(costs, &stage), .peak_mb = -1};
        hold_activations(&out[r], plan, r, costs, &stage);
        if (rule == MEMORY_ACTIVATIONS) { continue; }
        out[r].peak_bytes = plan->ranks[r].arena_bytes;
        out[r].peak_ns = 0;
        out[r].peak_mb = -1;
    }
    return STATUS_OK;
}

int32_t plan_memory_fullest(const PlanMemory* memory, const Plan* plan, int32_t s) {
    int32_t fullest = s;
    for (int32_t r = s; r < plan->P * plan->R; r += plan->P) {
        if (memory[r].peak_bytes > memory[fullest].peak_bytes) { fullest = r; }
    }
    return fullest;
}

Status plan_memory_check(const PlanMemory* memory, const Plan* plan, const PlanRequest* request) {
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
    enum { WIDTH = 20 };
    int64_t filled = limit_bytes > 0 ? num_bytes * WIDTH / limit_bytes : 0;
    fprintf(out, "  |");
    for (int i = 0; i < WIDTH; i++) { fputc(i < filled ? '#' : '.', out); }
    fprintf(out, "| %3.0f %%", 100.0 * (double)num_bytes / (double)limit_bytes);
}

void plan_memory_print(const PlanMemory* memory, const Plan* plan, const PlanRequest* request, FILE* out) {
    fprintf(out, "memory of each stage at its peak, MB (10^6 bytes); %s\n",
            request->memory_rule == MEMORY_ACTIVATIONS
                ? "what backward needs, buffers of transfers not counted"
                : "every buffer, as laid out");
    fprintf(out, "  stage  layers  replica      state  activations   together      limit  in flight\n");
    for (int32_t s = 0; s < plan->P; s++) {
        int32_t r = plan_memory_fullest(memory, plan, s);
        const PlanMemory* stage = &memory[r];
        int64_t together_bytes = stage->state_bytes + stage->peak_bytes;
        int64_t limit_bytes = problem_limit_bytes(request, r);
        fprintf(out, "  %5d  %6d  %7d  %9.1f  %11.1f  %9.1f", s,
                plan->placement.chunks[s].layer_end - plan->placement.chunks[s].layer_begin, r / plan->P,
                (double)stage->state_bytes / BYTES_PER_MB, (double)stage->peak_bytes / BYTES_PER_MB,
                (double)together_bytes / BYTES_PER_MB);
        if (limit_bytes > 0) {
            fprintf(out, "  %9.1f  %9d", (double)limit_bytes / BYTES_PER_MB, stage->most_held);
            print_bar(together_bytes, limit_bytes, out);
        } else {
            fprintf(out, "       none  %9d", stage->most_held);
        }
        fprintf(out, "\n");
    }
}
