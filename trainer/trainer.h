// trainer.h -- the trainer, for any kind of model; a program calls it from main(). Returns the exit status.
#pragma once

#include "../llmc/model.h"

#ifdef __cplusplus
extern "C" {
#endif

int trainer_main(int argc, char** argv, const ModelKind* kind);

#ifdef __cplusplus
}
#endif
