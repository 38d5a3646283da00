/*
device.h -- where a model's values live, and the queue of work on them: a GPU's memory and compute stream.

A Device whose api is NULL is this process: its memory is the heap's, and work is done when a call returns.
Nothing here waits for the device unless stated. Marks are places in the queue of work:

    TRY(api->begin(ctx, 2));              // forgets all marks, makes room for two
    TRY(api->mark(ctx, &a)); ... jobs are queued ... TRY(api->mark(ctx, &b));
    TRY(api->is_done(ctx, b, &done));     // the device has passed it
    TRY(api->mark_ns(ctx, b, &end_ns));   // when
    TRY(api->settle(ctx));                // once all is done: the device's clock is compared with ours
*/
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "../../util/status.h"

typedef struct {
    // Memory of the device, aligned to PLAN_BUFFER_ALIGN. Both wait until the queue is empty.
    Status (*alloc)(void* ctx, void** out, int64_t num_bytes);  // STATUS_NO_MEMORY
    void (*release)(void* ctx, void* memory);                   // NULL is allowed
    Status (*memory_bytes)(void* ctx, int64_t* free_bytes, int64_t* total_bytes);
    // Between any two places, this process's memory or the device's: waits for what is queued, then for the
    // copy.
    Status (*copy)(void* ctx, void* to, const void* from, int64_t num_bytes);

    Status (*begin)(void* ctx, int32_t num_marks);
    Status (*mark)(void* ctx, int32_t* out);
    Status (*is_done)(void* ctx, int32_t mark, int* done);
    Status (*mark_ns)(void* ctx, int32_t mark, int64_t* out_ns);  // clock_now_ns() time; of a mark passed
    Status (*settle)(void* ctx);                                  // waits until the queue is empty

    // (optional, may be NULL) a name for what is queued in between, for profilers: "fwd mb 3"
    void (*range_begin)(void* ctx, const char* text);
    void (*range_end)(void* ctx);
    void (*close)(void* ctx);
} DynapipeDevice_v1;

typedef struct {
    const DynapipeDevice_v1* api;  // NULL: this process
    void* ctx;
} Device;

static inline void device_close(Device* device) {
    if (device->api != NULL) { device->api->close(device->ctx); }
    device->api = NULL;
}
