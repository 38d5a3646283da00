#include "device_values.h"

#include <stdlib.h>

#include "floatx.h"
#include "llmc_error.h"

enum { PIECE_VALUES = 1 << 20 };

static size_t piece_at(size_t begin, size_t num_values) {
    return num_values - begin < PIECE_VALUES ? num_values - begin : PIECE_VALUES;
}

static void* piece_alloc(size_t num_values, size_t bytes_per_value) {
    return llmc_alloc(piece_at(0, num_values) * bytes_per_value, "values on their way");
}

#ifdef LLMC_BF16
void device_values_upload(OpsContext* ops, floatX* memory, const float* host, size_t num_values) {
    floatX* piece = piece_alloc(num_values, sizeof *piece);
    for (size_t begin = 0; begin < num_values; begin += PIECE_VALUES) {
        size_t n = piece_at(begin, num_values);
        floatx_from_floats(piece, host + begin, n);
        ops_upload(ops, memory + begin, piece, n * sizeof *piece);
    }
    free(piece);
}

void device_values_download(OpsContext* ops, float* host, const floatX* memory, size_t num_values) {
    floatX* piece = piece_alloc(num_values, sizeof *piece);
    for (size_t begin = 0; begin < num_values; begin += PIECE_VALUES) {
        size_t n = piece_at(begin, num_values);
        ops_download(ops, piece, memory + begin, n * sizeof *piece);
        floatx_to_floats(host + begin, piece, n);
    }
    free(piece);
}
#else
void device_values_upload(OpsContext* ops, floatX* memory, const float* host, size_t num_values) {
    ops_upload(ops, memory, host, num_values * sizeof *memory);
}

void device_values_download(OpsContext* ops, float* host, const floatX* memory, size_t num_values) {
    ops_download(ops, host, memory, num_values * sizeof *memory);
}
#endif

void device_values_fill(OpsContext* ops, floatX* memory, float value, size_t num_values) {
    float* piece = piece_alloc(num_values, sizeof *piece);
    for (size_t i = 0; i < piece_at(0, num_values); i++) { piece[i] = value; }
    for (size_t begin = 0; begin < num_values; begin += PIECE_VALUES) {
        device_values_upload(ops, memory + begin, piece, piece_at(begin, num_values));
    }
    free(piece);
}

void device_values_to_floats(OpsContext* ops, float* out, const floatX* in, size_t num_values) {
    float* piece = piece_alloc(num_values, sizeof *piece);
    for (size_t begin = 0; begin < num_values; begin += PIECE_VALUES) {
        size_t n = piece_at(begin, num_values);
        device_values_download(ops, piece, in + begin, n);
        ops_upload(ops, out + begin, piece, n * sizeof *piece);
    }
    free(piece);
}
