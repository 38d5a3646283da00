// checker_memory.c -- buffers between guards; values there and back.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../plan/lists/plan.h"
#include "checker.h"

enum { LEAST_GUARD_BYTES = 16 * PLAN_BUFFER_ALIGN, GUARD_PATTERN = 0xa5, SPOILED = 0xff };

// As long as the buffer and some more: who forgets one of several arrays stays inside.
static int64_t guard_bytes(int64_t num_bytes) {
    return (num_bytes + PLAN_BUFFER_ALIGN - 1) / PLAN_BUFFER_ALIGN * PLAN_BUFFER_ALIGN + LEAST_GUARD_BYTES;
}

Status checker_no_memory(void) {
    return FAIL(STATUS_NO_MEMORY, "no memory to check the model ---> check a smaller one");
}

static void free_memory(const Checker* c, const CheckerBuffer* buffer) {
    unsigned char* whole = buffer->memory - guard_bytes(buffer->num_bytes);
    if (c->device.api != NULL && !buffer->on_host) {
        c->device.api->release(c->device.ctx, whole);
    } else {
        free(whole);
    }
}

void checker_release(Checker* c) {
    for (CheckerBuffer* buffer = c->buffers; buffer != NULL; buffer = buffer->next) {
        free_memory(c, buffer);
    }
    for (CheckerRange* range = c->ranges; range != NULL; range = range->next) {
        c->blocks->drop(c->blocks->ctx, range->model);
    }
    c->buffers = NULL;
    c->ranges = NULL;
    arena_reset(&c->arena);
}

Status checker_copy(const Checker* c, void* to, const void* from, int64_t num_bytes) {
    if (num_bytes == 0) { return STATUS_OK; }
    if (c->device.api != NULL) { return c->device.api->copy(c->device.ctx, to, from, num_bytes); }
    memcpy(to, from, (size_t)num_bytes);
    return STATUS_OK;
}

// --- guards ----------------------------------------------------------------------------------------------

static Status fill(const Checker* c, unsigned char* to, int value, int64_t num_bytes) {
    unsigned char pattern[1024];
    if (c->device.api == NULL) {
        memset(to, value, (size_t)num_bytes);
        return STATUS_OK;
    }
    memset(pattern, value, sizeof pattern);
    for (int64_t at = 0; at < num_bytes; at += (int64_t)sizeof pattern) {
        int64_t left = num_bytes - at;
        TRY(checker_copy(c, to + at, pattern,
                         left < (int64_t)sizeof pattern ? left : (int64_t)sizeof pattern));
    }
    return STATUS_OK;
}

Status checker_buffer(Checker* c, CheckerBuffer** out, int64_t num_bytes, bool on_host) {
    if (num_bytes < 0) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "a buffer of %lld bytes is asked for ---> acts_bytes(), "
                    "scratch_bytes() and boundary_bytes() are never negative",
                    (long long)num_bytes);
    }
    int64_t guard = guard_bytes(num_bytes), whole_bytes = 3 * guard;
    CheckerBuffer* buffer = CHECKER_NEW(c, CheckerBuffer, 1);
    if (buffer == NULL) { return checker_no_memory(); }
    void* whole = NULL;
    if (c->device.api != NULL && !on_host) {
        TRY(c->device.api->alloc(c->device.ctx, &whole, whole_bytes));
    } else {
        whole = aligned_alloc(PLAN_BUFFER_ALIGN, (size_t)whole_bytes);
    }
    if (whole == NULL) { return checker_no_memory(); }
    *buffer = (CheckerBuffer){(unsigned char*)whole + guard, num_bytes, on_host, c->buffers};
    c->buffers = buffer;
    *out = buffer;
    TRY(fill(c, whole, GUARD_PATTERN, whole_bytes));
    return checker_buffer_spoil(c, buffer);
}

Status checker_buffer_spoil(const Checker* c, const CheckerBuffer* buffer) {
    return c->is_fast ? STATUS_OK : fill(c, buffer->memory, SPOILED, buffer->num_bytes);
}

Status checker_buffer_damage(const Checker* c, const CheckerBuffer* buffer, int64_t* before,
                             int64_t* behind) {
    int64_t guard = guard_bytes(buffer->num_bytes);
    unsigned char* guards = malloc((size_t)(2 * guard));
    if (guards == NULL) { return checker_no_memory(); }
    unsigned char* last = guards + guard;
    Status status = checker_copy(c, guards, buffer->memory - guard, guard);
    if (status == STATUS_OK) { status = checker_copy(c, last, buffer->memory + buffer->num_bytes, guard); }
    *before = *behind = 0;
    for (int64_t i = 0; i < guard && status == STATUS_OK; i++) {
        if (last[i] != GUARD_PATTERN) { *behind = i + 1; }
        if (guards[guard - 1 - i] != GUARD_PATTERN) { *before = i + 1; }
    }
    free(guards);
    return status;
}

// --- values ----------------------------------------------------------------------------------------------

double checker_epsilon(int32_t type) {
    return type == DYNAPIPE_FLOAT32 ? 0x1p-24 : type == DYNAPIPE_FLOAT16 ? 0x1p-11 : 0x1p-8;
}

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float from_half(uint16_t half) {
    int exponent = half >> 10 & 31, mantissa = half & 1023;
    float magnitude = exponent == 31 ? (mantissa != 0 ? NAN : INFINITY)
                      : exponent > 0 ? ldexpf((float)(1024 + mantissa), exponent - 25)
                                     : ldexpf((float)mantissa, -24);
    return half >> 15 != 0 ? -magnitude : magnitude;
}

// Of numbers that parameters are; to nearest.
static uint16_t to_half(float value) {
    int exponent;
    float magnitude = fabsf(value);
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    if (!(magnitude < 65504.0F)) { return (uint16_t)(sign | 0x7c00); }
    (void)frexpf(magnitude, &exponent);  // magnitude < 2^exponent
    if (exponent < -13) { return (uint16_t)(sign + (uint16_t)lrintf(ldexpf(magnitude, 24))); }
    int32_t mantissa = (int32_t)lrintf(ldexpf(magnitude, 11 - exponent));  // 1024 ... 2048
    return (uint16_t)(sign + ((exponent + 14) << 10) + mantissa - 1024);
}

static uint16_t to_bfloat(float value) {
    uint32_t bits = to_bits(value);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

Status checker_read_values(Checker* c, float* to, const void* from, int32_t type, int64_t num_values) {
    if (type == DYNAPIPE_FLOAT32) { return checker_copy(c, to, from, num_values * 4); }
    uint16_t* halves = malloc((size_t)num_values * sizeof *halves + 1);
    if (halves == NULL) { return checker_no_memory(); }
    Status status = checker_copy(c, halves, from, num_values * 2);
    for (int64_t i = 0; i < num_values; i++) {
        to[i] = type == DYNAPIPE_FLOAT16 ? from_half(halves[i]) : from_bits((uint32_t)halves[i] << 16);
    }
    free(halves);
    return status;
}

Status checker_write_values(Checker* c, void* to, const float* from, int32_t type, int64_t num_values) {
    if (type == DYNAPIPE_FLOAT32) { return checker_copy(c, to, from, num_values * 4); }
    uint16_t* halves = malloc((size_t)num_values * sizeof *halves + 1);
    if (halves == NULL) { return checker_no_memory(); }
    for (int64_t i = 0; i < num_values; i++) {
        halves[i] = type == DYNAPIPE_FLOAT16 ? to_half(from[i]) : to_bfloat(from[i]);
    }
    Status status = checker_copy(c, to, halves, num_values * 2);
    free(halves);
    return status;
}
