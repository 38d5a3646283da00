/*
train_t5.cu -- trains a T5 (1.0 and 1.1, FLAN-T5, ByT5, mT5, umT5).

    make train_t5             one process
    make train_t5 DYNAPIPE=1  a pipeline of MPI ranks

The same file is plain C for the CPU build and CUDA for nvcc; it has no kernels. The trainer is
trainer/trainer.c, the model llmc/t5.c.
*/
#include "llmc/kinds.h"
#include "trainer/trainer.h"

int main(int argc, char** argv) {
    return trainer_main(argc, argv, &t5_kind);
}
