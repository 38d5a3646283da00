// memory.c -- memory and ordering of ops.h on a CPU: device memory is host memory, and every call completes
// before it returns.
#include <string.h>

#include "../llmc_error.h"
#include "../ops.h"

void* ops_stream(const OpsContext* ops) {
    (void)ops;
    return NULL;
}

const char* ops_device_name(const OpsContext* ops) {
    (void)ops;
    return "cpu";
}

double ops_peak_flops(const OpsContext* ops) {
    (void)ops;
    return 0;
}

void* ops_alloc(OpsContext* ops, size_t num_bytes, const char* what) {
    (void)ops;
    return llmc_alloc(num_bytes, what);
}

void* ops_alloc_raw(OpsContext* ops, size_t num_bytes, const char* what) {
    (void)ops;
    return llmc_alloc_raw(num_bytes, what);
}

void ops_release(OpsContext* ops, void* memory) {
    (void)ops;
    free(memory);
}

// In pieces on all threads, because one thread does not use the full memory bandwidth.
void ops_zero(OpsContext* ops, void* memory, size_t num_bytes) {
    const size_t piece = (size_t)4 << 20;
#pragma omp parallel for num_threads(ops_num_threads(ops)) if (num_bytes > piece)
    for (size_t begin = 0; begin < num_bytes; begin += piece) {
        size_t left = num_bytes - begin;
        memset((char*)memory + begin, 0, left < piece ? left : piece);
    }
}

void ops_copy(OpsContext* ops, void* to, const void* from, size_t num_bytes) {
    const size_t piece = (size_t)4 << 20;
#pragma omp parallel for num_threads(ops_num_threads(ops)) if (num_bytes > piece)
    for (size_t begin = 0; begin < num_bytes; begin += piece) {
        size_t left = num_bytes - begin;
        memcpy((char*)to + begin, (const char*)from + begin, left < piece ? left : piece);
    }
}

void values_to_floats(float* out, const floatX* inp, size_t num_values, OpsContext* ops) {
    ops_copy(ops, out, inp, num_values * sizeof *out);  // floatX is float here
}

void ops_upload(OpsContext* ops, void* memory, const void* host, size_t num_bytes) {
    (void)ops;
    if (num_bytes > 0) { memcpy(memory, host, num_bytes); }
}

void ops_download(OpsContext* ops, void* host, const void* memory, size_t num_bytes) {
    (void)ops;
    if (num_bytes > 0) { memcpy(host, memory, num_bytes); }
}

void ops_stage_begin(OpsContext* ops) {
    (void)ops;
}

const int32_t* ops_stage(OpsContext* ops, const int32_t* host, size_t num_values) {
    (void)ops, (void)num_values;
    return host;
}

float* ops_results(OpsContext* ops, float* host, size_t num_values) {
    (void)ops, (void)num_values;
    return host;
}

void ops_deliver(OpsContext* ops, float* host, const float* results, size_t num_values) {
    (void)ops, (void)host, (void)results, (void)num_values;  // results is host
}

void ops_sync(OpsContext* ops) {
    (void)ops;
}
