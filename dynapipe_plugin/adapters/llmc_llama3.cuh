/*
llmc_llama3.cuh -- llmc_cuda.cuh for llm.c's branch llama3: other names, a head of its own where GPT-2 has its
positions, and a table of rotations that their allocate_state() makes.

Included in the tree's train_llama3.cu behind its other headers, with llmc_cuda_main.cuh before main().
*/
#pragma once
#ifdef DYNAPIPE

#define DYNAPIPE_TREE(function) llama3_##function
#define DYNAPIPE_TREE_MODEL LLama3
#define DYNAPIPE_TREE_CONFIG LLama3Config
#define DYNAPIPE_TREE_NAME "llama3"
#define DYNAPIPE_TREE_HEAD wlmhead
#define DYNAPIPE_TREE_POSITIONS wte
#define DYNAPIPE_TREE_PREPARE(model, T) dynapipe_llama3_prepare(model, T)

#include "llmc_cuda.cuh"

// Their model before it has a state, for T positions.
template <class Model> static void dynapipe_llama3_prepare(Model* model, int T) {
    int num_dims = model->config.channels / model->config.num_heads;
    size_t num_bytes = (size_t)T * num_dims * sizeof(floatX);
    floatX* table = (floatX*)mallocCheck(num_bytes);
    precompute_freqs_cis(table, num_dims, T, model->config.rope_theta, model->config.use_scaled_rope);
    if (model->freqs_cis != NULL) { cudaCheck(cudaFree(model->freqs_cis)); }
    cudaCheck(cudaMalloc((void**)&model->freqs_cis, num_bytes));
    cudaCheck(cudaMemcpy(model->freqs_cis, table, num_bytes, cudaMemcpyHostToDevice));
    free(table);
}

#endif
