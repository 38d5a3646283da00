// context.cu -- the card, its streams and handles; where the machine cannot serve, a line that says what is
// missing, and exit status 2.
#include "context.h"
#include "../peak_flops.h"
#include "matmul.h"
#include "staging.h"
#include <string.h>

enum { MIN_CAPABILITY = 80 };  // bf16 on tensor cores and cp.async: Ampere and later

static void die(const char* why, const char* what_to_do) {
    fprintf(stderr, "%s ---> %s; make train_gpt2, make train_t5: the same on the CPU\n", why, what_to_do);
    exit(2);
}

static void check_driver(void) {
    int num_devices = 0, driver = 0, runtime = 0;
    char why[256];
    const cudaError_t error = cudaGetDeviceCount(&num_devices);
    if (error == cudaSuccess && num_devices > 0) { return; }
    (void)cudaDriverGetVersion(&driver);  // 0 where there is none
    (void)cudaRuntimeGetVersion(&runtime);
    if (error == cudaErrorInsufficientDriver && driver > 0) {
        snprintf(why, sizeof why, "the NVIDIA driver is for CUDA %d.%d, this program for %d.%d",
                 driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
        die(why, "a newer driver, or build with an older toolkit: make NVCC=/usr/local/cuda-12.x/bin/nvcc");
    }
    if (error == cudaErrorInsufficientDriver || error == cudaErrorStubLibrary) {
        die("no NVIDIA driver on this machine", "run where nvidia-smi lists a GPU");
    }
    if (error == cudaSuccess || error == cudaErrorNoDevice) {
        die("no NVIDIA GPU is visible", "run where nvidia-smi lists a GPU, and see CUDA_VISIBLE_DEVICES");
    }
    snprintf(why, sizeof why, "no usable NVIDIA GPU: %s", cudaGetErrorString(error));
    die(why, "nvidia-smi shows cards and driver");
}

// Compute capability 8.0 or later; the caller chose the device by cudaSetDevice().
static void describe_card(OpsContext* ops) {
    int device = 0;
    cudaDeviceProp about;
    char why[512];
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaGetDeviceProperties(&about, device));
    snprintf(ops->name, sizeof ops->name, "%.*s", (int)sizeof ops->name - 1, about.name);
    ops->num_sms = about.multiProcessorCount;
    ops->capability = 10 * about.major + about.minor;
    if (ops->capability >= MIN_CAPABILITY) { return; }
    snprintf(why, sizeof why, "GPU %d, %s, has compute capability %d.%d, the kernels need %d.%d", device,
             ops->name, about.major, about.minor, MIN_CAPABILITY / 10, MIN_CAPABILITY % 10);
    die(why, "a card of 2020 or later (A100, H100, RTX 30); CUDA_VISIBLE_DEVICES chooses among several");
}

OpsContext* ops_create(int num_threads) {
    (void)num_threads;
    check_driver();
    OpsContext* ops = (OpsContext*)calloc(1, sizeof *ops);
    if (ops == NULL) { die("no host memory for a context", "free some"); }
    describe_card(ops);
    CUDA_CHECK(cudaStreamCreateWithFlags(&ops->stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&ops->copy_stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaMalloc((void**)&ops->partials, OPS_PARTIAL_FLOATS * sizeof(float)));
    CUDA_CHECK(cudaMallocHost((void**)&ops->sum, sizeof *ops->sum));
    for (int i = 0; i < 2; i++) {
        CUDA_CHECK(cudaMallocHost((void**)&ops->bounce[i], OPS_BOUNCE_BYTES));
        CUDA_CHECK(cudaEventCreateWithFlags(&ops->bounced[i], cudaEventDisableTiming));
    }
    CUBLAS_CHECK(cublasLtCreate(&ops->blas));
    // 32 MiB is what cuBLAS takes for itself on Hopper; split-K of a weight gradient uses more where it may.
    ops->blas_workspace_bytes = (size_t)(ops->capability >= 90 ? 64 : 32) << 20;
    CUDA_CHECK(cudaMalloc(&ops->blas_workspace, ops->blas_workspace_bytes));
    ops->matmuls = matmul_cache_create(ops->capability);
    ops->staging = staging_create();
    return ops;
}

void ops_free(OpsContext* ops) {
    if (ops == NULL) { return; }
    ops_sync(ops);
    CUDA_CHECK(cudaStreamSynchronize(ops->copy_stream));
    staging_free(ops->staging);
    matmul_cache_free(ops->matmuls);
    CUDA_CHECK(cudaFree(ops->blas_workspace));
    CUBLAS_CHECK(cublasLtDestroy(ops->blas));
    for (int i = 0; i < 2; i++) {
        CUDA_CHECK(cudaEventDestroy(ops->bounced[i]));
        CUDA_CHECK(cudaFreeHost(ops->bounce[i]));
    }
    CUDA_CHECK(cudaFreeHost(ops->sum));
    CUDA_CHECK(cudaFree(ops->partials));
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

double ops_peak_flops(const OpsContext* ops) {
#if defined(LLMC_BF16)
    return peak_flops(ops->name, PEAK_BF16);
#elif defined(LLMC_TF32)
    return peak_flops(ops->name, PEAK_TF32);
#else
    return peak_flops(ops->name, PEAK_FP32);
#endif
}

void ops_print_version(FILE* out) {
    int version = 0;
    cudaRuntimeGetVersion(&version);
    fprintf(out, "CUDA: %d.%d\n", version / 1000, version % 1000 / 10);
}

// --- memory ------------------------------------------------------------------------------------------------
// Memory of the card, and large transfers to it and from it: parameters, checkpoints.
//
// Transfers pass through two pinned buffers: while the card copies one, the host fills or empties the other.
// So a transfer costs the slower of the two, and no page of the caller has to be locked. They go through the
// stream of the operations, behind what is queued there.

void* ops_alloc_raw(OpsContext* ops, size_t num_bytes, const char* what) {
    void* memory = NULL;
    if (cudaMalloc(&memory, num_bytes > 0 ? num_bytes : 256) != cudaSuccess) {
        size_t free_bytes = 0, total_bytes = 0;
        cudaMemGetInfo(&free_bytes, &total_bytes);
        fprintf(
            stderr,
            "no memory for %zu bytes of %s: %zu of %zu are left on %s ---> a smaller model or microbatch, "
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
