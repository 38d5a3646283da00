/*
train_llama.cu -- trains a Llama or what is built like one (TinyLlama, Qwen2).

    make train_llama             one process
    make train_llama DYNAPIPE=1  a pipeline of MPI ranks

The same file is plain C for the CPU build and CUDA for nvcc; it has no kernels. The trainer is
trainer/trainer.c, the model a table in llmc/kinds.c.
*/
#include "llmc/kinds.h"
#include "trainer/trainer.h"

int main(int argc, char** argv) {
    return trainer_main(argc, argv, &llama_kind);
}
