// Writing: every process lays the file out alike, one makes it, all write their ranges.
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "floatx.h"
#include "llmc_error.h"
#include "safetensors.h"

enum { LENGTH_BYTES = 8, PIECE_VALUES = 4096 };

static const char* const dtype_names[] = {"F32", "F16", "BF16"};

static int64_t bytes_per_value(SafetensorsDtype dtype) {
    return dtype == SAFETENSORS_F32 ? 4 : 2;
}

static json_t* tensor_entry(const SafetensorsTensor* tensor) {
    json_t* shape = json_array();
    for (int i = 0; i < tensor->num_dims; i++) {
        json_array_append_new(shape, json_integer(tensor->dims[i]));
    }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", tensor->dtype_name, "shape", shape, "data_offsets",
                     (json_int_t)tensor->begin, (json_int_t)tensor->end);
}

// Length, JSON, blanks up to a multiple of 8, so that values are aligned. free() it.
static char* make_header(const json_t* root, int64_t* header_bytes) {
    char* text = json_dumps(root, JSON_COMPACT | JSON_PRESERVE_ORDER);
    if (text == NULL) { return NULL; }
    size_t text_bytes = strlen(text), padded = (text_bytes + 7) / 8 * 8;
    char* header = llmc_alloc(LENGTH_BYTES + padded, "a header");
    for (int i = 0; i < LENGTH_BYTES; i++) { header[i] = (char)(padded >> 8 * i & 255); }
    memset(header + LENGTH_BYTES, ' ', padded);
    memcpy(header + LENGTH_BYTES, text, text_bytes);
    free(text);
    *header_bytes = (int64_t)(LENGTH_BYTES + padded);
    return header;
}

bool safetensors_layout(Safetensors* out, const SafetensorsTensor* tensors, int num_tensors, char* error) {
    Safetensors file = {.num_tensors = num_tensors};
    file.tensors = llmc_alloc((size_t)num_tensors * sizeof *tensors, "names of tensors");
    json_t* root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    int64_t at = 0;
    for (int i = 0; i < num_tensors; i++) {
        SafetensorsTensor* tensor = &file.tensors[i];
        *tensor = tensors[i];
        char* name = llmc_alloc(strlen(tensors[i].name) + 1, "a name");
        tensor->name = strcpy(name, tensors[i].name);
        snprintf(tensor->dtype_name, sizeof tensor->dtype_name, "%s", dtype_names[tensor->dtype]);
        tensor->num_values = 1;
        for (int k = 0; k < tensor->num_dims; k++) { tensor->num_values *= tensor->dims[k]; }
        tensor->begin = at;
        tensor->end = at += bytes_per_value(tensor->dtype) * tensor->num_values;
        json_object_set_new(root, name, tensor_entry(tensor));
    }
    bool ok = json_object_size(root) == (size_t)num_tensors + 1;
    file.header = ok ? make_header(root, &file.header_bytes) : NULL;
    json_decref(root);
    if (file.header == NULL || file.header_bytes > SAFETENSORS_MAX_HEADER_BYTES) {
        safetensors_close(&file);
        return llmc_fail(error, "%d tensors: names are not unique, or not UTF-8 ---> a mistake of the caller",
                         num_tensors);
    }
    for (int i = 0; i < num_tensors; i++) {
        file.tensors[i].begin += file.header_bytes;
        file.tensors[i].end += file.header_bytes;
    }
    file.num_bytes = file.header_bytes + at;
    safetensors_sort(&file);
    *out = file;
    return true;
}

bool safetensors_create(const Safetensors* layout, const char* path, char* error) {
    CheckpointFile file;
    return checkpoint_file_create(&file, path, layout->num_bytes, error) &&
           checkpoint_file_write(&file, layout->header, layout->header_bytes, 0, error) &&
           checkpoint_file_sync(&file, error);
}

bool safetensors_write(CheckpointFile* out, const SafetensorsTensor* tensor, const float* values,
                       int64_t begin, int64_t end, char* error) {
    if (tensor->dtype == SAFETENSORS_F32) {
        return checkpoint_file_write(out, values, 4 * (end - begin), tensor->begin + 4 * begin, error);
    }
    uint16_t halves[PIECE_VALUES];
    for (int64_t at = begin; at < end;) {
        int64_t num = end - at < PIECE_VALUES ? end - at : PIECE_VALUES;
        for (int64_t i = 0; i < num; i++) { halves[i] = floatx_bf16_bits(values[at - begin + i]); }
        if (!checkpoint_file_write(out, halves, 2 * num, tensor->begin + 2 * at, error)) { return false; }
        at += num;
    }
    return true;
}
