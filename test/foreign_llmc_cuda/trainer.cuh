// trainer.cuh -- what the made-up CUDA trainer has besides its model: ranks, loader, log, random numbers; the
// family's names.
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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

// --- tokens: consecutive windows of a file of 16-bit numbers
// ----------------------------------------------------
typedef struct {
    int B, T;
    size_t num_tokens, next;
    uint16_t* tokens;
    int *inputs, *targets;
} DataLoader;

inline void dataloader_reset(DataLoader* loader) {
    loader->next = 0;
}
inline void dataloader_init(DataLoader* loader, const char* path, int B, int T, int rank, int num_ranks,
                            int shuffles) {
    (void)rank, (void)num_ranks, (void)shuffles;
    FILE* file = fopenCheck(path, "rb");
    fseek(file, 0, SEEK_END);
    *loader = {};
    loader->B = B;
    loader->T = T;
    loader->num_tokens = (size_t)ftell(file) / 2;
    loader->tokens = (uint16_t*)mallocCheck(loader->num_tokens * 2);
    loader->inputs = (int*)mallocCheck(sizeof(int) * B * T);
    loader->targets = (int*)mallocCheck(sizeof(int) * B * T);
    fseek(file, 0, SEEK_SET);
    if (fread(loader->tokens, 2, loader->num_tokens, file) != loader->num_tokens) { exit(1); }
    fclose(file);
}
inline void dataloader_next_batch(DataLoader* loader) {
    for (int i = 0; i < loader->B * loader->T; i++, loader->next++) {
        loader->inputs[i] = loader->tokens[loader->next % (loader->num_tokens - 1)];
        loader->targets[i] = loader->tokens[loader->next % (loader->num_tokens - 1) + 1];
    }
}
inline void dataloader_free(DataLoader* loader) {
    free(loader->tokens);
    free(loader->inputs);
    free(loader->targets);
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
