// trainer.cuh -- what the made-up CUDA trainer has besides its model: ranks, loader, log, random numbers; the
// family's names.
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "tokens.h"

// --- ranks: one
// ---------------------------------------------------------------------------------------------
typedef struct {
    int process_rank, num_processes, local_device_idx, zero_stage;
    size_t shard_num_parameters;
} MultiGpuConfig;

MultiGpuConfig multi_gpu_config;
#define printf0(...) (multi_gpu_config.process_rank == 0 ? printf(__VA_ARGS__) : 0)

inline MultiGpuConfig multi_gpu_config_init(int num_processes, int process_rank) {
    cudaCheck(cudaSetDevice(0));
    return MultiGpuConfig{process_rank, num_processes, 0, 0, 0};
}
inline void multi_gpu_config_free(MultiGpuConfig* config) {
    config->num_processes = 0;
}
inline void set_zero_configs(MultiGpuConfig* config, int zero_stage, size_t num_parameters) {
    config->zero_stage = zero_stage;
    config->shard_num_parameters = num_parameters;
}
inline float multi_gpu_cpu_float_sum(float value, MultiGpuConfig* config) {
    return value * (float)config->num_processes;
}

// --- log, random numbers
// ------------------------------------------------------------------------------------------
typedef struct {
    int is_main;
} Logger;
inline void logger_log_train(Logger* logger, int step, float loss, float rate, float norm) {
    if (logger->is_main) { printf("step %d: train loss %.9g, norm %.6g, rate %g\n", step, loss, norm, rate); }
}

inline unsigned int random_u32(unsigned long long* state) {
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned int)(*state >> 32);
}
