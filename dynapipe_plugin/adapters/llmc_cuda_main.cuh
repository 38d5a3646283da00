/*
llmc_cuda_main.cuh -- llm.c's CUDA trainer with the plugin: what main() says, and what its calls mean then.

Included in the tree's train_gpt2.cu (train_llama3.cu) just before main(), behind llmc_cuda.cuh. In main():

    DYNAPIPE_OPEN(argc, argv)                        // first; takes the --options out of argv
    DYNAPIPE_BATCH(tokens_per_fwdbwd, total_batch_size)  // -d may be any number: one call makes a whole step
    ...                                              // model and loaders are there:
    DYNAPIPE_START(model, max_steps, total_batch_size, val_max_steps, overfit_single_batch, output_log_dir)
    if (DYNAPIPE_WHOLE(...)) { ... }                 // what needs the whole model on this rank
    DYNAPIPE_TOKENS(tokens_processed)                // of a step

The loop's calls keep their names and mean: multi_gpu_config_*: the plugin's ranks; dataloader_*: nothing, the
plugin has the data (-i, -j: sample files or llm.c's); gpt2_forward() and gpt2_backward_and_reduce() on
training tokens: together one step of all ranks, its loss in mean_loss; gpt2_validate(): the validation; the
norm: of all ranks; gpt2_update(): theirs, on this rank's slice, and the end of the step (where it is passed
over, the next call of all ranks is that); write_checkpoint(), load_state(): files of one process, written and
read by all. With --fixed-length all of them are theirs. Without -DDYNAPIPE the words above mean nothing and
cost nothing.
*/
#pragma once
#ifndef DYNAPIPE
#define DYNAPIPE_OPEN(argc, argv)
#define DYNAPIPE_BATCH(tokens_per_call, batch_tokens)
#define DYNAPIPE_START(...)
#define DYNAPIPE_TOKENS(tokens)
#define DYNAPIPE_WHOLE(condition) condition
#else

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "llmc_cuda.cuh"

// Behind their functions the names are their own again.
#undef encoder_forward
#undef encoder_backward
#undef matmul_forward_cublaslt
#undef matmul_backward
#undef layernorm_backward
#undef rmsnorm_backward
#undef fused_classifier
#undef cudaMemcpy
#undef cudaMemset
#undef cudaDeviceSynchronize
#undef random_u32
#undef adamw_update
#undef init_from_master

#include "llmc_cuda_blocks.cuh"
#include "llmc_cuda_run.cuh"

// --- their names in main() -------------------------------------------------------------------------------

#define DYNAPIPE_OPEN(argc, argv) dynapipe_cuda_run = dynapipe_llmc_open(&(argc), &(argv), 0);
#define DYNAPIPE_BATCH(tokens_per_call, batch_tokens) \
    if (dynapipe_cuda_is_on() && (batch_tokens) > 0) { tokens_per_call = batch_tokens; }
#define DYNAPIPE_TOKENS(tokens) \
    if (dynapipe_cuda_is_on()) { tokens = (size_t)dynapipe_cuda.batch_tokens; }
#define DYNAPIPE_START(model, ...) dynapipe_cuda_start(&(model), __VA_ARGS__);
#define DYNAPIPE_WHOLE(condition) \
    ((condition) && (!dynapipe_cuda_is_on() || dynapipe_llmc_is_whole(dynapipe_cuda_run)))

#define DYNAPIPE_OR(ours, theirs) (dynapipe_cuda_is_on() ? (ours) : (theirs))
#define multi_gpu_config_init(...) DYNAPIPE_OR(dynapipe_cuda_config(), multi_gpu_config_init(__VA_ARGS__))
#define multi_gpu_config_free(config) DYNAPIPE_OR(dynapipe_cuda_close(), multi_gpu_config_free(config))
#define set_zero_configs(config, zero_stage, ...) \
    set_zero_configs(config, dynapipe_cuda_zero_stage(zero_stage), __VA_ARGS__)
#define dataloader_init(loader, pattern, B, T, ...)          \
    DYNAPIPE_OR(dynapipe_cuda_loader(loader, pattern, B, T), \
                dataloader_init(loader, pattern, B, T, __VA_ARGS__))
#define dataloader_reset(loader) DYNAPIPE_OR(dynapipe_cuda_reset(), dataloader_reset(loader))
#define dataloader_next_batch(loader) DYNAPIPE_OR(dynapipe_cuda_end_if_told(), dataloader_next_batch(loader))
#define dataloader_free(loader) DYNAPIPE_OR((void)0, dataloader_free(loader))
#define update_detector(...) dynapipe_cuda_z(update_detector(__VA_ARGS__))
#define write_checkpoint(directory, step, model, ...)       \
    DYNAPIPE_OR(dynapipe_cuda_save(directory, step, model), \
                write_checkpoint(directory, step, model, __VA_ARGS__))
#define load_state(step, model, loader, filename) \
    DYNAPIPE_OR(dynapipe_cuda_resume(step, model, filename), load_state(step, model, loader, filename))

// For both families' names; only the tree's own are functions. Calls without tokens are those on the
// plugin's.
#define DYNAPIPE_UNLESS_OURS(inputs, ours, theirs) \
    (dynapipe_cuda_is_on() && (inputs) == NULL ? (ours) : (theirs))
#define gpt2_allocate_state(model, B, T) dynapipe_cuda_allocate(model, B, T)
#define gpt2_forward(model, inputs, ...) \
    DYNAPIPE_UNLESS_OURS(inputs, (void)0, gpt2_forward(model, inputs, __VA_ARGS__))
#define gpt2_backward_and_reduce(model, inputs, targets, num_steps, micro_step) \
    DYNAPIPE_UNLESS_OURS(inputs, dynapipe_cuda_step(model, micro_step),         \
                         gpt2_backward_and_reduce(model, inputs, targets, num_steps, micro_step))
#define gpt2_validate(model, inputs, ...) \
    DYNAPIPE_UNLESS_OURS(inputs, dynapipe_cuda_validate(), gpt2_validate(model, inputs, __VA_ARGS__))
#define gpt2_calculate_grad_norm(model, config) \
    DYNAPIPE_OR(dynapipe_cuda_norm(model), gpt2_calculate_grad_norm(model, config))
#define gpt2_update(...) dynapipe_cuda_update(__VA_ARGS__)
#define gpt2_estimate_mfu(model, num_tokens, seconds) \
    gpt2_estimate_mfu(model, dynapipe_cuda_rank_tokens(num_tokens), seconds)
#define llama3_allocate_state(model, B, T) dynapipe_cuda_allocate(model, B, T)
#define llama3_forward(model, inputs, ...) \
    DYNAPIPE_UNLESS_OURS(inputs, (void)0, llama3_forward(model, inputs, __VA_ARGS__))
#define llama3_backward_and_reduce(model, inputs, targets, num_steps, micro_step) \
    DYNAPIPE_UNLESS_OURS(inputs, dynapipe_cuda_step(model, micro_step),           \
                         llama3_backward_and_reduce(model, inputs, targets, num_steps, micro_step))
#define llama3_validate(model, inputs, ...) \
    DYNAPIPE_UNLESS_OURS(inputs, dynapipe_cuda_validate(), llama3_validate(model, inputs, __VA_ARGS__))
#define llama3_calculate_grad_norm(model, config) \
    DYNAPIPE_OR(dynapipe_cuda_norm(model), llama3_calculate_grad_norm(model, config))
#define llama3_update(...) dynapipe_cuda_update(__VA_ARGS__)
#define llama3_estimate_mfu(model, num_tokens, seconds) \
    llama3_estimate_mfu(model, dynapipe_cuda_rank_tokens(num_tokens), seconds)

#endif
