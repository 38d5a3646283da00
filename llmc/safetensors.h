/*
safetensors.h -- named tensors in safetensors files: one file or several shards, read and written by ranges.

    Safetensors file;
    if (!safetensors_open(&file, "model.safetensors")) { ... }
    const SafetensorsTensor* tensor = safetensors_find(&file, "shared.weight");
    safetensors_read(&file, tensor, values, begin, end);      // converted to float32
    safetensors_close(&file);

A file is uint64 number of header bytes (little-endian), a JSON header {"NAME": {"dtype": "F32", "shape": [2,
3], "data_offsets": [begin, end]}, ..., "__metadata__": {...}}, then the values. An index names the shards,
{"weight_map": {"NAME": "FILE", ...}}. Opening checks the header: values are contiguous, without overlap or
gap, each as long as shape and dtype require, up to the end of the file. Nothing here ends the program: on
false status_message() names file, tensor and remedy. (test_safetensors.c, fuzzed.)

Writing, by any number of processes with the same list of tensors:

    each rank:   safetensors_layout(&file, tensors, num_tensors)
    rank 0:      safetensors_create(&file, path)
    -- barrier --
    each rank:   checkpoint_file_open_tmp(&out, path), safetensors_write(&out, tensor, ...) of its ranges of
                 tensors from safetensors_find(), checkpoint_file_sync(&out)
    -- barrier, with "did all succeed?" --
    rank 0:      checkpoint_file_rename(path), or checkpoint_file_remove_tmp(path)
*/
#pragma once

#include "../util/checkpoint_files.h"

#ifdef __cplusplus
extern "C" {
#endif

// Types that can be read and written; a file may contain others, which cannot be read.
typedef enum { SAFETENSORS_F32, SAFETENSORS_F16, SAFETENSORS_BF16, SAFETENSORS_OTHER } SafetensorsDtype;

enum { SAFETENSORS_MAX_DIMS = 8, SAFETENSORS_MAX_FILES = 512, SAFETENSORS_MAX_HEADER_BYTES = 100000000 };

typedef struct {
    const char* name;
    SafetensorsDtype dtype;
    char dtype_name[16];  // as in the file
    int num_dims;         // 0: one value
    int64_t dims[SAFETENSORS_MAX_DIMS];
    int64_t num_values;
    int file_idx;
    int64_t begin, end;  // bytes of the file
} SafetensorsTensor;

typedef struct {
    int num_tensors;
    SafetensorsTensor* tensors;  // ascending name
    int num_files;
    CheckpointFile* files;  // open
    char* header;           // of a layout: the bytes before the values
    int64_t header_bytes, num_bytes;
} Safetensors;

// `path`: a *.safetensors, an index *.json, or a directory with model.safetensors.index.json or
// model.safetensors. On failure there is nothing to close.
bool safetensors_open(Safetensors* out, const char* path);
void safetensors_close(Safetensors* file);  // an all-zero one is allowed
const SafetensorsTensor* safetensors_find(const Safetensors* file, const char* name);  // NULL: none
// Where the tensor lies, for messages.
const char* safetensors_path(const Safetensors* file, const SafetensorsTensor* tensor);
// values[i] = the tensor's value begin + i, begin + i < end, row-major. Exact: float32 contains F16 and
// BF16.
bool safetensors_read(const Safetensors* file, const SafetensorsTensor* tensor, float* values, int64_t begin,
                      int64_t end);

// Input: name, dtype (F32 or BF16), num_dims and dims, with unique names; the rest is filled in
// out->tensors. The file keeps the order of `tensors`. Close it like an opened one.
bool safetensors_layout(Safetensors* out, const SafetensorsTensor* tensors, int num_tensors);
bool safetensors_create(const Safetensors* layout, const char* path);  // PATH.tmp with its header
// As safetensors_read; BF16 is rounded to nearest.
bool safetensors_write(CheckpointFile* out, const SafetensorsTensor* tensor, const float* values,
                       int64_t begin, int64_t end);

#ifdef __cplusplus
}
#endif
