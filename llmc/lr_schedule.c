#include "lr_schedule.h"

#include <math.h>
#include <string.h>

#include "llmc_error.h"

static const char* const kind_names[LR_NUM_KINDS] = {"cosine", "linear", "constant", "wsd"};
static const double PI = 3.14159265358979323846;

bool lr_schedule_parse(LrKind* out, const char* name, char* error) {
    for (int kind = 0; kind < LR_NUM_KINDS; kind++) {
        if (strcmp(name, kind_names[kind]) == 0) {
            *out = (LrKind)kind;
            return true;
        }
    }
    return llmc_fail(error, "learning-rate schedule \"%.40s\" ---> use cosine, linear, constant or wsd",
                     name);
}

// How far step is from begin to end, 0 to 1.
static float progress(int step, int begin, int end) {
    if (step >= end) { return 1.0f; }
    return step <= begin ? 0.0f : (float)(step - begin) / (float)(end - begin);
}

float lr_schedule_at(const LrSchedule* schedule, int step) {
    const float peak = schedule->peak, last = peak * schedule->final_fraction;
    if (schedule->kind == LR_CONSTANT) { return peak; }
    if (step < schedule->warmup_steps) { return peak * (float)(step + 1) / (float)schedule->warmup_steps; }
    float x = progress(step, schedule->warmup_steps, schedule->num_steps);
    switch (schedule->kind) {
        case LR_COSINE: return last + 0.5f * (1.0f + cosf((float)(PI * (double)x))) * (peak - last);
        case LR_LINEAR: return peak - x * (peak - last);
        default: break;
    }
    int decay_begin = (int)(0.8f * (float)schedule->num_steps);
    if (step < decay_begin) { return peak; }
    return last + (1.0f - sqrtf(progress(step, decay_begin, schedule->num_steps))) * (peak - last);
}
