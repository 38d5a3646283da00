/*
cost_file.h -- a cost model and the machine it was measured on, in one file (cost_model_io.c has its text).
*/
#pragma once

#include <stdio.h>

#include "cost_model.h"
#include "machine.h"

// As cost_model_load() and the like, with what the file says of each rank. *machine (NULL: not wanted) has no
// ranks where it says nothing; else free((void*)machine->ranks).
Status cost_file_load(CostModel* out, Machine* machine, const char* path, const char* signature);
Status cost_file_parse(CostModel* out, Machine* machine, const char* text, const char* name,
                       const char* signature);
Status cost_file_save(const CostModel* model, const Machine* machine, const char* path,
                      const char* signature);
void cost_file_print(const CostModel* model, const Machine* machine, const char* signature, FILE* out);
