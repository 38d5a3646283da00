/*
llmc_tensors.h -- the tensors of a model of llm.c's family, and the part of them that a range of blocks has.

The family keeps a model as one array: tensor after tensor in a fixed order, in each all layers one after the
other (what a checkpoint's body is, too). A slice is the same with fewer layers, and without the tensors that
its blocks do not use: they have 0 values there, everything else of the family's code stays as it is.

    DynapipeTensors tensors;        // once, from fill_in_parameter_sizes() of the tree
    dynapipe_tensors_init(&tensors, NUM_PARAMETER_TENSORS, num_layers, sizes_of_1_layer, sizes_of_2, where);
    DynapipeSlice slice = dynapipe_tensors_slice(&tensors, blocks);
    for each tensor i of the slice: values [slice.begin[i], + slice.count[i]) are [slice.whole[i], ...) of all

Knows nothing of how values are computed, of what type they are, or where they live.
*/
#pragma once

#include "../dynapipe.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DYNAPIPE_MAX_TENSORS = 64 };

// Which ranges have a tensor: the one with the embedding, those with layers (a part of it each), the one with
// the head. FIRST | LAST: a tied copy in each of the two.
enum { DYNAPIPE_TENSOR_FIRST = 1, DYNAPIPE_TENSOR_LAYERS = 2, DYNAPIPE_TENSOR_LAST = 4 };

typedef struct {
    int32_t num_tensors, num_layers;
    int32_t where[DYNAPIPE_MAX_TENSORS];
    int64_t count[DYNAPIPE_MAX_TENSORS];  // values of tensor i; with LAYERS: of one layer of it
} DynapipeTensors;

// What a range of blocks has. Its arrays (parameters, gradients, m, v) have num_values values each.
typedef struct {
    int32_t num_layers;
    int32_t has_first, has_last;
    int64_t num_values;
    int64_t begin[DYNAPIPE_MAX_TENSORS];  // where tensor i begins in the slice's arrays
    int64_t count[DYNAPIPE_MAX_TENSORS];  // its values there, 0: not in this slice
    int64_t whole[DYNAPIPE_MAX_TENSORS];  // where these values begin in the whole model's arrays
    int32_t num_tied;
    DynapipeTied tied[DYNAPIPE_MAX_TENSORS];  // of the tensors that first and last have, where this is one
} DynapipeSlice;

// sizes_of_1, sizes_of_2: values of each tensor of this model with 1 and with 2 layers. Those that grow are
// of the layers, whatever `where` says of them; the others are where it says. Returns 0, or an error if
// dynapipe_error() has to say something of these numbers.
int dynapipe_tensors_init(DynapipeTensors* out, int32_t num_tensors, int32_t num_layers,
                          const size_t* sizes_of_1, const size_t* sizes_of_2, const int32_t* where);
int64_t dynapipe_tensors_total(const DynapipeTensors* tensors);  // values of the whole model
DynapipeSlice dynapipe_tensors_slice(const DynapipeTensors* tensors, DynapipeRange blocks);

// How values get to and from host memory; NULL in place of the struct: they are in host memory.
typedef struct {
    void (*to_host)(void* host, const void* values, size_t num_bytes);
    void (*from_host)(void* values, const void* host, size_t num_bytes);
} DynapipeCopies;

// The whole model's values in a file, from byte `at` on. *sum grows by that of the values that go by
// (llmc_seal.h), as values of a body that begins at byte file_at; without a tied tensor's copy. NULL: nobody
// asks.
typedef struct {
    int64_t at;
    int32_t value_bytes;
    int64_t file_at;
    uint64_t* sum;
} DynapipeBody;

// The slice's values to and from such a file. Of a tied tensor the last's copy is read but not written (the
// first's is). The file is there and long enough.
int dynapipe_tensors_write(const char* path, const DynapipeBody* body, const DynapipeSlice* slice,
                           const DynapipeTensors* tensors, const void* values, const DynapipeCopies* copies);
int dynapipe_tensors_read(const char* path, const DynapipeBody* body, const DynapipeSlice* slice,
                          const DynapipeTensors* tensors, void* values, const DynapipeCopies* copies);

#ifdef __cplusplus
}
#endif
