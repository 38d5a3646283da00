#include "session_noise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char record_magic[8] = "DPNOISE1";  // no 0 at the end

Status session_noise_parse(SessionNoise* out, const char* text) {
    *out = (SessionNoise){.is_known = true};
    if (strcmp(text, "off") == 0) { return STATUS_OK; }
    if (strcmp(text, "on") == 0) {
        out->permille = SESSION_NOISE_ON_PERMILLE;
        return STATUS_OK;
    }
    if (strcmp(text, "auto") == 0) {
        *out = (SessionNoise){.is_auto = true};
        return STATUS_OK;
    }
    char* end;
    double noise = strtod(text, &end);
    if (end == text || *end != '\0' || !(noise >= 0 && noise * 1000 <= SESSION_NOISE_MOST_PERMILLE)) {
        return FAIL(STATUS_BAD_OPTION,
                    "--robust %.40s ---> auto, on, off, or a deviation from 0 to %g, e.g. 0.05", text,
                    SESSION_NOISE_MOST_PERMILLE / 1000.0);
    }
    out->permille = (int32_t)lround(noise * 1000);
    return STATUS_OK;
}

int32_t session_noise_round(double deviation) {
    static const int32_t scale[] = {0, 10, 20, 50, 100, 200};
    enum { NUM_SCALE = sizeof scale / sizeof scale[0] };
    for (int i = 0; i + 1 < NUM_SCALE; i++) {
        if (deviation * 1000 < (scale[i] + scale[i + 1]) / 2.0) { return scale[i]; }
    }
    return scale[NUM_SCALE - 1];
}

void session_noise_start(SessionNoise* noise, int32_t next_step, int32_t num_ahead) {
    noise->num_steps = 0;
    if (!noise->is_known) {
        int64_t first_step = (int64_t)next_step + SESSION_NOISE_END + num_ahead;
        noise->first_step = first_step < INT32_MAX ? (int32_t)first_step : INT32_MAX;
    }
}

int32_t session_noise_permille(const SessionNoise* noise, int64_t step) {
    return step >= noise->first_step ? noise->permille : 0;
}

void session_noise_restore(SessionNoise* noise, const void* position, size_t* num_bytes) {
    SessionNoiseRecord record;
    if (*num_bytes < sizeof record) { return; }
    memcpy(&record, (const uint8_t*)position + *num_bytes - sizeof record, sizeof record);
    if (memcmp(record.magic, record_magic, sizeof record_magic) != 0) { return; }
    *num_bytes -= sizeof record;
    bool valid =
        record.permille >= 0 && record.permille <= SESSION_NOISE_MOST_PERMILLE && record.first_step >= 0;
    if (!noise->is_auto || !valid) { return; }
    noise->is_known = true;
    noise->permille = record.permille;
    noise->first_step = record.first_step;
}

Status session_noise_position(SessionNoise* noise, const void** position, size_t* num_bytes) {
    if (!noise->is_auto || !noise->is_known) { return STATUS_OK; }
    SessionNoiseRecord record = {.permille = noise->permille, .first_step = noise->first_step};
    memcpy(record.magic, record_magic, sizeof record_magic);
    uint8_t* grown = realloc(noise->position, *num_bytes + sizeof record);
    if (grown == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for the position in the data"); }
    memcpy(grown, *position, *num_bytes);
    memcpy(grown + *num_bytes, &record, sizeof record);
    noise->position = grown;
    *position = grown;
    *num_bytes += sizeof record;
    return STATUS_OK;
}

void session_noise_free(SessionNoise* noise) {
    trace_noise_free(&noise->measured);
    free(noise->position);
    noise->position = NULL;
}
