/*
memory.cu -- memory of the card, and large transfers to it and from it: parameters, checkpoints.

Transfers pass through two pinned buffers: while the card copies one, the host fills or empties the other. So
a transfer costs the slower of the two, and no page of the caller has to be locked. They go through the
stream of the operations, behind what is queued there.
*/
#include "context.h"

#include <string.h>

void* ops_alloc_raw(OpsContext* ops, size_t num_bytes, const char* what) {
    void* memory = NULL;
    if (cudaMalloc(&memory, num_bytes > 0 ? num_bytes : 256) != cudaSuccess) {
        size_t free_bytes = 0, total_bytes = 0;
        cudaMemGetInfo(&free_bytes, &total_bytes);
        fprintf(
            stderr,
            "no memory for %zu bytes of %s: %zu of %zu are left on %s ---> a smaller model or micro-batch, "
            "more stages, or end other programs on the card (nvidia-smi)\n",
            num_bytes, what, free_bytes, total_bytes, ops->name);
        exit(EXIT_FAILURE);
    }
    return memory;
}

void* ops_alloc(OpsContext* ops, size_t num_bytes, const char* what) {
    void* memory = ops_alloc_raw(ops, num_bytes, what);
    ops_zero(ops, memory, num_bytes);
    CUDA_CHECK(cudaStreamSynchronize(ops->stream));  // zeros for other streams too
    return memory;
}

void ops_release(OpsContext* ops, void* memory) {
    CUDA_CHECK(cudaStreamSynchronize(ops->stream));
    CUDA_CHECK(cudaFree(memory));
}

void ops_zero(OpsContext* ops, void* memory, size_t num_bytes) {
    if (num_bytes > 0) { CUDA_CHECK(cudaMemsetAsync(memory, 0, num_bytes, ops->stream)); }
}

void ops_copy(OpsContext* ops, void* to, const void* from, size_t num_bytes) {
    if (num_bytes == 0) { return; }
    CUDA_CHECK(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDeviceToDevice, ops->stream));
}

static size_t piece_bytes(size_t num_bytes, size_t begin) {
    const size_t left = num_bytes - begin, most = OPS_BOUNCE_BYTES;
    return left < most ? left : most;
}

void ops_upload(OpsContext* ops, void* memory, const void* host, size_t num_bytes) {
    int i = 0;
    for (size_t begin = 0; begin < num_bytes; begin += OPS_BOUNCE_BYTES, i ^= 1) {
        const size_t bytes = piece_bytes(num_bytes, begin);
        CUDA_CHECK(cudaEventSynchronize(ops->bounced[i]));  // the piece before the last has left
        memcpy(ops->bounce[i], (const char*)host + begin, bytes);
        CUDA_CHECK(cudaMemcpyAsync((char*)memory + begin, ops->bounce[i], bytes, cudaMemcpyHostToDevice,
                                   ops->stream));
        CUDA_CHECK(cudaEventRecord(ops->bounced[i], ops->stream));
    }
    if (num_bytes > 0) { CUDA_CHECK(cudaStreamSynchronize(ops->stream)); }
}

void ops_download(OpsContext* ops, void* host, const void* memory, size_t num_bytes) {
    const size_t num_pieces = (num_bytes + OPS_BOUNCE_BYTES - 1) / OPS_BOUNCE_BYTES;
    for (size_t k = 0; k <= num_pieces && num_pieces > 0; k++) {
        if (k < num_pieces) {
            const size_t begin = k * OPS_BOUNCE_BYTES;
            CUDA_CHECK(cudaMemcpyAsync(ops->bounce[k % 2], (const char*)memory + begin,
                                       piece_bytes(num_bytes, begin), cudaMemcpyDeviceToHost, ops->stream));
            CUDA_CHECK(cudaEventRecord(ops->bounced[k % 2], ops->stream));
        }
        if (k > 0) {  // the piece before, while this one travels
            const size_t begin = (k - 1) * OPS_BOUNCE_BYTES;
            CUDA_CHECK(cudaEventSynchronize(ops->bounced[(k - 1) % 2]));
            memcpy((char*)host + begin, ops->bounce[(k - 1) % 2], piece_bytes(num_bytes, begin));
        }
    }
}
