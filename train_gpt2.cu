/*
train_gpt2.cu -- trains a GPT-2.

    make train_gpt2             one process, fixed-length batches, as in llm.c (trainer/source_stock.c)
    make train_gpt2 DYNAPIPE=1  a task mixture on a dynamic pipeline of MPI ranks (trainer/source_dynapipe.c)

The same file is plain C for the CPU build and CUDA for nvcc; it has no kernels. The common
part of the trainers is in trainer/trainer.h, the model in llmc/gpt2.h.
*/
#include "llmc/gpt2.h"
#include "trainer/trainer.h"

int main(int argc, char** argv) {
    return trainer_main(argc, argv, &gpt2_kind);
}
