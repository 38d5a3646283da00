/*
train_gpt2.cu -- trains a GPT-2.

    make train_gpt2             one process
    make train_gpt2 DYNAPIPE=1  a pipeline of MPI ranks

The same file is plain C for the CPU build and CUDA for nvcc; it has no kernels. The trainer is
trainer/trainer.c, the model llmc/gpt2.c.
*/
#include "llmc/kinds.h"
#include "trainer/trainer.h"

int main(int argc, char** argv) {
    return trainer_main(argc, argv, &gpt2_kind);
}
