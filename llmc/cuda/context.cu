// context.cu -- the card, its streams and handles; where the machine cannot serve, a line that says what is
// missing, and exit status 2.
#include "context.h"
#include "../peak_flops.h"
#include "matmul_cache.h"
#include "matmul_log.h"
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
    matmul_log_free(ops->matmul_log);
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
