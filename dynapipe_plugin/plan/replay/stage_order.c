#include "stage_order.h"

#include <stdlib.h>

#include "../lists/plan_message.h"
#include "../lists/plan_words.h"
#include "../pipe/pipe_schedule.h"

// By begin, then by end: what takes no time goes first.
static int32_t compare_times(const PlanInstr* a, const PlanInstr* b) {
    if (a->begin_ns != b->begin_ns) { return a->begin_ns < b->begin_ns ? -1 : 1; }
    return (a->end_ns > b->end_ns) - (a->end_ns < b->end_ns);
}

// Pointers into one list.
static int compare_messages(const void* a, const void* b) {
    const PlanInstr *x = *(const PlanInstr*const*)a, *y = *(const PlanInstr*const*)b;
    int32_t order = compare_times(x, y);
    return order != 0 ? order : (x > y) - (x < y);
}

// Receives by their times.
static Status list_messages(const PlanInstr*** out, int32_t* num, const PlanRank* rank, Arena* arena) {
    const PlanInstr** messages;
    ARENA_TRY_NEW(messages, arena, const PlanInstr*, rank->num_instrs);
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        bool takes =
            instr->kind == INSTR_RECV_ACT || instr->kind == INSTR_RECV_GRAD || instr->kind == INSTR_RECV_FACT;
        if (takes) { messages[(*num)++] = instr; }
    }
    qsort(messages, (size_t)*num, sizeof *messages, compare_messages);
    *out = messages;
    return STATUS_OK;
}

Status stage_order(StageOrder* out, const Plan* plan, const PlanRank* rank, Arena* arena) {
    const PlanInstr** messages = NULL;
    int32_t num_messages = 0, next = 0;
    if (plan->pulls) { TRY(list_messages(&messages, &num_messages, rank, arena)); }
    out->num = 0;
    ARENA_TRY_NEW(out->instrs, arena, int32_t, rank->num_instrs);
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* job = &rank->instrs[i];
        if (!plan_instr_is_job((InstrKind)job->kind)) { continue; }
        while (next < num_messages && compare_times(messages[next], job) <= 0) {
            out->instrs[out->num++] = (int32_t)(messages[next++] - rank->instrs);
        }
        out->instrs[out->num++] = i;
    }
    while (next < num_messages) { out->instrs[out->num++] = (int32_t)(messages[next++] - rank->instrs); }
    return STATUS_OK;
}
