// context.cu -- the card, its streams and handles, memory; errors that a user can mend end with exit
// status 2.
#include "context.h"

#include <string.h>

static void die_without_card(const char* why) {
    fprintf(stderr,
            "%s ---> ./train_gpt2 trains on the CPU (make train_gpt2); see nvidia-smi for cards and driver\n",
            why);
    exit(2);
}

OpsContext* ops_create(int num_threads) {
    (void)num_threads;
    int device = 0, num_devices = 0;
    cudaError_t error = cudaGetDeviceCount(&num_devices);
    if (error != cudaSuccess) { die_without_card(cudaGetErrorString(error)); }
    if (num_devices == 0) { die_without_card("no NVIDIA GPU"); }
    OpsContext* ops = (OpsContext*)calloc(1, sizeof *ops);
    if (ops == NULL) { die_without_card("no memory for a context"); }
    CUDA_CHECK(cudaGetDevice(&device));
    cudaDeviceProp about;
    CUDA_CHECK(cudaGetDeviceProperties(&about, device));
    snprintf(ops->name, sizeof ops->name, "%s", about.name);
    ops->num_sms = about.multiProcessorCount;
    CUDA_CHECK(cudaStreamCreateWithFlags(&ops->stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&ops->copy_stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaMalloc((void**)&ops->partials, OPS_PARTIAL_FLOATS * sizeof(float)));
    CUDA_CHECK(cudaMallocHost((void**)&ops->sum, sizeof *ops->sum));
    return ops;
}

void ops_free(OpsContext* ops) {
    if (ops == NULL) { return; }
    CUDA_CHECK(cudaStreamSynchronize(ops->stream));
    CUDA_CHECK(cudaFree(ops->partials));
    CUDA_CHECK(cudaFreeHost(ops->sum));
    CUDA_CHECK(cudaStreamDestroy(ops->copy_stream));
    CUDA_CHECK(cudaStreamDestroy(ops->stream));
    free(ops);
}

int ops_num_threads(const OpsContext* ops) {
    (void)ops;
    return 1;
}

void* ops_stream(const OpsContext* ops) {
    return ops->stream;
}

const char* ops_device_name(const OpsContext* ops) {
    return ops->name;
}

void* ops_alloc(OpsContext* ops, size_t num_bytes, const char* what) {
    void* memory = NULL;
    if (cudaMalloc(&memory, num_bytes > 0 ? num_bytes : 256) != cudaSuccess) {
        size_t free_bytes = 0, total_bytes = 0;
        cudaMemGetInfo(&free_bytes, &total_bytes);
        fprintf(stderr,
                "no memory for %zu bytes of %s, %s has %zu of %zu left ---> a smaller model or more stages\n",
                num_bytes, what, ops->name, free_bytes, total_bytes);
        exit(EXIT_FAILURE);
    }
    ops_zero(ops, memory, num_bytes);
    return memory;
}

void ops_release(OpsContext* ops, void* memory) {
    CUDA_CHECK(cudaStreamSynchronize(ops->stream));
    CUDA_CHECK(cudaFree(memory));
}

void ops_zero(OpsContext* ops, void* memory, size_t num_bytes) {
    if (num_bytes > 0) { CUDA_CHECK(cudaMemsetAsync(memory, 0, num_bytes, ops->stream)); }
}

void ops_upload(OpsContext* ops, void* memory, const void* host, size_t num_bytes) {
    if (num_bytes == 0) { return; }
    CUDA_CHECK(cudaMemcpyAsync(memory, host, num_bytes, cudaMemcpyHostToDevice, ops->stream));
    ops_sync(ops);
}

void ops_download(OpsContext* ops, void* host, const void* memory, size_t num_bytes) {
    if (num_bytes == 0) { return; }
    CUDA_CHECK(cudaMemcpyAsync(host, memory, num_bytes, cudaMemcpyDeviceToHost, ops->stream));
    ops_sync(ops);
}

void ops_sync(OpsContext* ops) {
    CUDA_CHECK(cudaStreamSynchronize(ops->stream));
}
