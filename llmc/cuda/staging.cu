// staging.cu -- pinned and device rings, their events, and losses on their way to the caller.
#include "staging.h"
#include "context.h"

#include <string.h>

enum {
    ALIGN_BYTES = 256,      // of every array
    MAX_JOBS = 256,         // the host is not more jobs ahead of the card
    MAX_DELIVERIES = 8192,  // between two ops_sync(): room for a step's microbatches
};

// Job j: the operations between the j-th ops_stage_begin() and the next.
typedef struct {
    cudaEvent_t done;     // on the compute stream: nothing behind it uses the job's arrays
    uint64_t end_offset;  // the ring below this is free then
} StagingJob;

// An array that did not fit.
typedef struct StagingBlock {
    struct StagingBlock* next;
    char *host, *device;
    size_t num_bytes;
    int64_t job;  // that used it last
} StagingBlock;

typedef struct {
    float* host;          // borrowed, until ops_sync()
    const float* pinned;  // in the ring
    size_t num_values;
    int64_t job;
} StagingDelivery;

typedef struct {
    char *host, *device;
} StagingSpan;

struct OpsStaging {
    char *host, *device;  // the rings: pinned, on the card
    uint64_t ring_bytes;
    uint64_t head, tail;     // bytes ever taken, ever given back; offset in the ring: % ring_bytes
    int64_t job, first_job;  // the one that arrays are taken for; the oldest whose region is not given back
    StagingJob jobs[MAX_JOBS];
    cudaEvent_t uploaded;  // on the copy stream, behind the last array
    StagingBlock* blocks;
    int64_t num_misfits;
    StagingDelivery deliveries[MAX_DELIVERIES];  // a queue
    int first_delivery, num_deliveries;
};

static void alloc_rings(OpsStaging* staging, uint64_t ring_bytes) {
    staging->ring_bytes = (ring_bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    staging->head = staging->tail = 0;
    CUDA_CHECK(cudaMallocHost((void**)&staging->host, staging->ring_bytes));
    CUDA_CHECK(cudaMalloc((void**)&staging->device, staging->ring_bytes));
}

OpsStaging* staging_create(void) {
    OpsStaging* staging = (OpsStaging*)calloc(1, sizeof *staging);
    if (staging == NULL) {
        fprintf(stderr, "no host memory for the staging rings ---> free some\n");
        exit(EXIT_FAILURE);
    }
    for (int i = 0; i < MAX_JOBS; i++) {
        CUDA_CHECK(cudaEventCreateWithFlags(&staging->jobs[i].done, cudaEventDisableTiming));
    }
    CUDA_CHECK(cudaEventCreateWithFlags(&staging->uploaded, cudaEventDisableTiming));
    alloc_rings(staging, STAGING_RING_BYTES);
    return staging;
}

static void free_rings(OpsStaging* staging) {
    CUDA_CHECK(cudaFreeHost(staging->host));
    CUDA_CHECK(cudaFree(staging->device));
    while (staging->blocks != NULL) {
        StagingBlock* block = staging->blocks;
        staging->blocks = block->next;
        CUDA_CHECK(cudaFreeHost(block->host));
        CUDA_CHECK(cudaFree(block->device));
        free(block);
    }
}

void staging_free(OpsStaging* staging) {
    if (staging == NULL) { return; }
    free_rings(staging);
    CUDA_CHECK(cudaEventDestroy(staging->uploaded));
    for (int i = 0; i < MAX_JOBS; i++) { CUDA_CHECK(cudaEventDestroy(staging->jobs[i].done)); }
    free(staging);
}

void staging_resize(OpsContext* ops, size_t ring_bytes) {
    OpsStaging* staging = ops->staging;
    ops_sync(ops);
    free_rings(staging);
    alloc_rings(staging, ring_bytes);
    for (int i = 0; i < MAX_JOBS; i++) { staging->jobs[i].end_offset = 0; }
}

int64_t staging_num_misfits(const OpsContext* ops) {
    return ops->staging->num_misfits;
}

// Hands out what has arrived of jobs up to `last_job`. The caller has waited for them.
static void deliver(OpsStaging* staging, int64_t last_job) {
    while (staging->num_deliveries > 0) {
        const StagingDelivery* next = &staging->deliveries[staging->first_delivery];
        if (next->job > last_job) { return; }
        memcpy(next->host, next->pinned, next->num_values * sizeof(float));
        staging->first_delivery = (staging->first_delivery + 1) % MAX_DELIVERIES;
        staging->num_deliveries--;
    }
}

// --- regions -----------------------------------------------------------------------------------------------
// Waits for the oldest job and gives its region back; false where that is one whose arrays may still be used.
static bool retire(OpsStaging* staging) {
    if (staging->first_job > staging->job - 2) { return false; }
    const StagingJob* job = &staging->jobs[staging->first_job % MAX_JOBS];
    CUDA_CHECK(cudaEventSynchronize(job->done));
    deliver(staging, staging->first_job);  // its landing places are about to be used again
    if (job->end_offset > staging->tail) { staging->tail = job->end_offset; }
    staging->first_job++;
    return true;
}

void ops_stage_begin(OpsContext* ops) {
    OpsStaging* staging = ops->staging;
    staging->jobs[staging->job % MAX_JOBS].end_offset = staging->head;
    staging->job++;
    if (staging->job - staging->first_job >= MAX_JOBS) { (void)retire(staging); }
    if (staging->job >= 2) {
        CUDA_CHECK(cudaEventRecord(staging->jobs[(staging->job - 2) % MAX_JOBS].done, ops->stream));
    }
}

// Memory of its own for an array that does not fit. Jobs but the current and the last are retired by now.
static StagingSpan take_block(OpsContext* ops, size_t num_bytes) {
    OpsStaging* staging = ops->staging;
    if (staging->num_misfits++ == 0) {
        fprintf(stderr,
                "note: %zu bytes of one job do not fit into the staging ring of %llu bytes, the host waits "
                "---> staging_resize(), or smaller microbatches\n",
                num_bytes, (unsigned long long)staging->ring_bytes);
    }
    StagingBlock* block = staging->blocks;
    while (block != NULL && (block->job >= staging->first_job || block->num_bytes < num_bytes)) {
        block = block->next;
    }
    if (block == NULL) {
        block = (StagingBlock*)calloc(1, sizeof *block);
        if (block == NULL) { CUDA_CHECK(cudaErrorMemoryAllocation); }
        CUDA_CHECK(cudaMallocHost((void**)&block->host, num_bytes));
        CUDA_CHECK(cudaMalloc((void**)&block->device, num_bytes));
        block->num_bytes = num_bytes;
        block->next = staging->blocks;
        staging->blocks = block;
    }
    block->job = staging->job;
    return {block->host, block->device};
}

// Memory for the current job, pinned and on the card.
static StagingSpan take(OpsContext* ops, size_t num_bytes) {
    OpsStaging* staging = ops->staging;
    const uint64_t bytes = (num_bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    do {
        uint64_t offset = staging->head % staging->ring_bytes, skip = 0;
        if (offset + bytes > staging->ring_bytes) {
            skip = staging->ring_bytes - offset;
        }  // to the beginning
        if (staging->head == staging->tail) { staging->tail += skip, staging->head += skip, skip = 0; }
        if (staging->head + skip + bytes - staging->tail <= staging->ring_bytes) {
            offset = (staging->head + skip) % staging->ring_bytes;
            staging->head += skip + bytes;
            return {staging->host + offset, staging->device + offset};
        }
    } while (retire(staging));
    return take_block(ops, bytes);
}

// --- ops.h -------------------------------------------------------------------------------------------------
// A copy and an event per array: an operation may be queued right behind each. Arrays of a job that lie in
// one buffer of the caller travel as one.
const int32_t* ops_stage(OpsContext* ops, const int32_t* host, size_t num_values) {
    const size_t num_bytes = num_values * sizeof *host;
    const StagingSpan span = take(ops, num_bytes);
    if (num_bytes == 0) { return (const int32_t*)span.device; }
    memcpy(span.host, host, num_bytes);
    CUDA_CHECK(cudaMemcpyAsync(span.device, span.host, num_bytes, cudaMemcpyHostToDevice, ops->copy_stream));
    CUDA_CHECK(cudaEventRecord(ops->staging->uploaded, ops->copy_stream));
    CUDA_CHECK(cudaStreamWaitEvent(ops->stream, ops->staging->uploaded, 0));
    return (const int32_t*)span.device;
}

float* ops_results(OpsContext* ops, float* host, size_t num_values) {
    (void)host;
    return (float*)take(ops, num_values * sizeof(float)).device;
}

// On the compute stream: on the copy stream the uploads of later jobs would wait behind this job's kernels.
void ops_deliver(OpsContext* ops, float* host, const float* results, size_t num_values) {
    if (num_values == 0) { return; }
    OpsStaging* staging = ops->staging;
    if (staging->num_deliveries == MAX_DELIVERIES) { ops_sync(ops); }
    const StagingSpan span = take(ops, num_values * sizeof(float));
    CUDA_CHECK(
        cudaMemcpyAsync(span.host, results, num_values * sizeof(float), cudaMemcpyDeviceToHost, ops->stream));
    const int idx = (staging->first_delivery + staging->num_deliveries++) % MAX_DELIVERIES;
    staging->deliveries[idx] = {host, (const float*)span.host, num_values, staging->job};
}

void ops_sync(OpsContext* ops) {
    CUDA_CHECK(cudaStreamSynchronize(ops->stream));
    deliver(ops->staging, INT64_MAX);
}
