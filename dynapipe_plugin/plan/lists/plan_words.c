#include "plan_words.h"

#include <string.h>

#define X(name, text) text,
const char* const plan_instr_words[INSTR_COUNT] = {INSTR_LIST(X)};
const char* const plan_buffer_words[BUFFER_COUNT] = {BUFFER_LIST(X)};
#undef X

const char* const plan_head_words[HEAD_COUNT] = {
    [HEAD_WHOLE] = "whole", [HEAD_BY_ROWS] = "rows", [HEAD_BY_VOCABULARY] = "vocabulary"};

const char* const plan_layout_words[LAYOUT_COUNT] = {
    [LAYOUT_RAGGED] = "ragged", [LAYOUT_PADDED] = "padded", [LAYOUT_PACKED] = "packed"};

const char* const plan_recompute_words[RECOMPUTE_COUNT] = {
    [RECOMPUTE_NONE] = "none", [RECOMPUTE_SELECTIVE] = "selective", [RECOMPUTE_FULL] = "full"};

JobKind plan_instr_job(InstrKind kind) {
    switch (kind) {
        case INSTR_FWD: return JOB_F;
        case INSTR_BWD: return JOB_B;
        case INSTR_WGT: return JOB_W;
        default: return JOB_R;
    }
}

bool plan_name_is_valid(const char* name) {
    size_t length = strlen(name);
    return length > 0 && length < sizeof((Plan*)0)->policy &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-+.") == length;
}

InstrKind plan_kind_there(InstrKind kind) {
    switch (kind) {
        case INSTR_SEND_ACT: return INSTR_RECV_ACT;
        case INSTR_RECV_ACT: return INSTR_SEND_ACT;
        case INSTR_SEND_GRAD: return INSTR_RECV_GRAD;
        case INSTR_RECV_GRAD: return INSTR_SEND_GRAD;
        case INSTR_SEND_FACT: return INSTR_RECV_FACT;
        case INSTR_RECV_FACT: return INSTR_SEND_FACT;
        default: return kind;
    }
}

int32_t plan_chunk_there(const Plan* plan, const PlanInstr* instr) {
    int32_t K = plan->placement.num_chunks, share = K + instr->peer % plan->P;
    bool to_share = plan->placement.head != HEAD_WHOLE && instr->chunk == K - 1;
    switch ((InstrKind)instr->kind) {
        case INSTR_SEND_ACT:
        case INSTR_RECV_GRAD: return to_share ? share : instr->chunk + 1;
        case INSTR_RECV_ACT:
        case INSTR_SEND_GRAD: return instr->chunk < K ? instr->chunk - 1 : K - 1;
        default: return instr->chunk;
    }
}
