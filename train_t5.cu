/*
train_t5.cu -- trains a T5 (T5 1.0 and 1.1, FLAN-T5, ByT5, mT5, umT5).

    make train_t5             one process, fixed-length batches of pairs, as in llm.c (trainer/source_stock.c)
    make train_t5 DYNAPIPE=1  a task mixture on a dynamic pipeline of MPI ranks (trainer/source_dynapipe.c)

The same file is plain C for the CPU build and CUDA for nvcc; it has no kernels. The common
part of the trainers is in trainer/trainer.h, the model in llmc/t5.h.
*/
#include "llmc/t5.h"
#include "trainer/trainer.h"

int main(int argc, char** argv) {
    return trainer_main(argc, argv, &t5_kind);
}
