/*
cost_file.h -- cost models and machines as text.

The words of a cost file in order, with their positions, and the form of its numbers.
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "cost_model.h"
#include "../../util/status.h"

// Never reads past the terminating 0.
typedef struct {
    const char* name;    // of the file, for messages
    const char* cursor;  // after the last word
    const char* word;    // the last word, not terminated
    int word_bytes;
    int line, field;
} CostReader;

// --- formulas ----------------------------------------------------------------------------------------

/*
A formula in a cost file: the rest of its line.

    const 1200.5 floor 0 enc_tokens 128:1.2e6 256:2.3e6 enc_squares 1:35
*/

// --- machines ----------------------------------------------------------------------------------------

/*
The lines of a cost file in which ranks differ.

    rank 2 slow F 1.5 B 1.5 W 1.4 R 1.5 memory 0 link latency_ns 0 bytes_per_ns 0
*/

// --- whole files -------------------------------------------------------------------------------------

// A cost model and the machine it was measured on, in one file: as cost_model_load() and the like, with the
// lines of each rank. *machine (NULL: not wanted) has no ranks where the file has no such lines; else
// free((void*)machine->ranks).
Status cost_file_load(CostModel* out, Machine* machine, const char* path, const char* signature);
Status cost_file_save(const CostModel* model, const Machine* machine, const char* path,
                      const char* signature);
// The same as text in memory, for a checked model; `name` is for messages.
void cost_file_print(const CostModel* model, const Machine* machine, const char* signature, FILE* out);
Status cost_file_parse(CostModel* out, Machine* machine, const char* text, const char* name,
                       const char* signature);
