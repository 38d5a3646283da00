#include "memory_curve.h"

#include "plan_message.h"

static void add_step(MemoryCurve* curve, int64_t begin_ns, int64_t num_bytes) {
    if (curve->num_steps > 0 && curve->steps[curve->num_steps - 1].num_bytes == num_bytes) { return; }
    curve->steps[curve->num_steps++] = (MemoryStep){begin_ns, num_bytes};
    if (num_bytes > curve->peak_bytes) {
        curve->peak_bytes = num_bytes;
        curve->peak_ns = begin_ns;
    }
}

Status memory_curve_make(MemoryCurve* out, const PlanRank* rank, MemoryRule rule, Arena* arena) {
    int32_t num_instrs = rank->num_instrs;
    MemoryCurve curve = {.steps = ARENA_NEW(arena, MemoryStep, 2 * (size_t)num_instrs + 1)};
    int64_t* change_bytes = ARENA_NEW(arena, int64_t, (size_t)num_instrs + 1);  // before each instruction
    if (curve.steps == NULL || change_bytes == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory to draw %d instructions ---> free memory", num_instrs);
    }
    for (int32_t i = 0; i < rank->num_buffers; i++) {
        const PlanBuffer* buffer = &rank->buffers[i];
        if (rule == MEMORY_ACTIVATIONS && buffer->kind != BUFFER_ACTS) { continue; }
        if (buffer->instr_begin < 0 || buffer->instr_end > num_instrs ||
            buffer->instr_end < buffer->instr_begin) {
            return FAIL(STATUS_INVALID_PLAN,
                        "buffer %d lives over instructions %d to %d of %d ---> check the plan first", i,
                        buffer->instr_begin, buffer->instr_end, num_instrs);
        }
        int64_t units = buffer->num_bytes / PLAN_BUFFER_ALIGN + (buffer->num_bytes % PLAN_BUFFER_ALIGN > 0);
        change_bytes[buffer->instr_begin] += units * PLAN_BUFFER_ALIGN;
        change_bytes[buffer->instr_end] -= units * PLAN_BUFFER_ALIGN;
    }
    int64_t now_ns = 0, alive_bytes = 0;
    for (int32_t i = 0; i < num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        bool is_job = instr->kind <= INSTR_REC;
        bool is_wait = plan_instr_is_wait(instr->kind);
        if (is_job && instr->begin_ns > now_ns) { now_ns = instr->begin_ns; }
        alive_bytes += change_bytes[i];
        add_step(&curve, now_ns, alive_bytes);
        if ((is_job || is_wait) && instr->end_ns > now_ns) { now_ns = instr->end_ns; }
    }
    alive_bytes += change_bytes[num_instrs];
    add_step(&curve, now_ns, alive_bytes);
    *out = curve;
    return STATUS_OK;
}
