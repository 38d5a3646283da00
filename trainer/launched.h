/*
launched.h -- a program for one process that mpirun or srun starts as several: each would do the same work and
write over the others' files.
*/
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

// Ends the program (status 2) where a launcher started more than one process; the first says what to do.
// name: of the trainer, behind "train_".
void launched_must_be_alone(const char* name);

#ifdef __cplusplus
}
#endif
