#include "plan_words.h"

#include <string.h>

#define X(name, text) text,
const char* const plan_instr_words[INSTR_COUNT] = {INSTR_LIST(X)};
const char* const plan_buffer_words[BUFFER_COUNT] = {BUFFER_LIST(X)};
#undef X

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
