#include "llmc_tensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../util/files.h"
#include "../../util/status.h"
#include "llmc_seal.h"

// --- what there is ---------------------------------------------------------------------------------------

int dynapipe_tensors_init(DynapipeTensors* out, int32_t num_tensors, int32_t num_layers,
                          const size_t* sizes_of_1, const size_t* sizes_of_2, const int32_t* where) {
    *out = (DynapipeTensors){.num_tensors = num_tensors, .num_layers = num_layers};
    if (num_tensors < 1 || num_tensors > DYNAPIPE_MAX_TENSORS || num_layers < 1) {
        return (int)FAIL(
            STATUS_OUT_OF_RANGE,
            "a model of %d tensors and %d layers ---> at least 1 of each, and at most %d tensors "
            "(DYNAPIPE_MAX_TENSORS)",
            num_tensors, num_layers, DYNAPIPE_MAX_TENSORS);
    }
    for (int32_t i = 0; i < num_tensors; i++) {
        bool grows = sizes_of_2[i] > sizes_of_1[i];
        if (grows && sizes_of_2[i] != 2 * sizes_of_1[i]) {
            return (int)FAIL(
                STATUS_OUT_OF_RANGE,
                "parameter tensor %d: %zu values with one layer, %zu with two: this model cannot "
                "be cut ---> layers that are all alike, each tensor with all of them in a row",
                i, sizes_of_1[i], sizes_of_2[i]);
        }
        if (!grows && where[i] == 0) {
            return (int)FAIL(STATUS_OUT_OF_RANGE,
                             "parameter tensor %d is of no layer, and nothing says which range needs it ---> "
                             "say so in the adapter (where[%d])",
                             i, i);
        }
        out->where[i] = grows ? DYNAPIPE_TENSOR_LAYERS : where[i];
        out->count[i] = (int64_t)sizes_of_1[i];
    }
    return 0;
}

static bool of_layers(const DynapipeTensors* tensors, int32_t i) {
    return (tensors->where[i] & DYNAPIPE_TENSOR_LAYERS) != 0;
}

static int64_t whole_count(const DynapipeTensors* tensors, int32_t i) {
    return tensors->count[i] * (of_layers(tensors, i) ? tensors->num_layers : 1);
}

int64_t dynapipe_tensors_total(const DynapipeTensors* tensors) {
    int64_t total = 0;
    for (int32_t i = 0; i < tensors->num_tensors; i++) { total += whole_count(tensors, i); }
    return total;
}

// --- a slice ---------------------------------------------------------------------------------------------

static bool in_slice(const DynapipeSlice* slice, int32_t where) {
    return (slice->has_first && (where & DYNAPIPE_TENSOR_FIRST) != 0) ||
           (slice->has_last && (where & DYNAPIPE_TENSOR_LAST) != 0);
}

static bool is_tied(const DynapipeTensors* tensors, int32_t i) {
    enum { BOTH = DYNAPIPE_TENSOR_FIRST | DYNAPIPE_TENSOR_LAST };
    return (tensors->where[i] & BOTH) == BOTH;
}

// Blocks: the embedding is 0, layer l is l + 1, the head num_layers + 1.
DynapipeSlice dynapipe_tensors_slice(const DynapipeTensors* tensors, DynapipeRange blocks) {
    int32_t L = tensors->num_layers, layer_begin = blocks.begin > 0 ? blocks.begin - 1 : 0;
    int32_t layer_end = blocks.end - 1 < L ? blocks.end - 1 : L;
    DynapipeSlice slice = {.num_layers = layer_end - layer_begin,
                           .has_first = blocks.begin == 0,
                           .has_last = blocks.end == L + 2};
    int64_t whole = 0;
    for (int32_t i = 0; i < tensors->num_tensors; i++) {
        int64_t count = tensors->count[i];
        slice.begin[i] = slice.num_values;
        slice.whole[i] = whole;
        if (of_layers(tensors, i)) {
            slice.count[i] = slice.num_layers * count;
            slice.whole[i] += layer_begin * count;
        } else if (in_slice(&slice, tensors->where[i])) {
            slice.count[i] = count;
            if (is_tied(tensors, i)) {
                slice.tied[slice.num_tied++] = (DynapipeTied){i, slice.begin[i], count};
            }
        }
        slice.num_values += slice.count[i];
        whole += whole_count(tensors, i);
    }
    return slice;
}

// --- files -----------------------------------------------------------------------------------------------

enum { PIECE_BYTES = 1 << 22 };  // between a device and a file

typedef struct {
    const char* path;
    int fd;
    const DynapipeCopies* copies;
    bool is_reading;
    char* piece;  // [PIECE_BYTES]; NULL: values are in host memory
    int32_t value_bytes;
    int64_t begin_byte;  // in the file, of the body that `sum` is of
    uint64_t* sum;       // of the values that go by; NULL: nobody asks
} Mover;

static void add_to_sum(const Mover* mover, const char* host, int64_t num_bytes, int64_t at) {
    if (mover->sum == NULL) { return; }
    int64_t first = (at - mover->begin_byte) / mover->value_bytes;
    dynapipe_seal_add(mover->sum, first, host, num_bytes / mover->value_bytes, mover->value_bytes);
}

static Status read_bytes(const Mover* mover, char* host, int64_t num_bytes, int64_t at) {
    while (num_bytes > 0) {
        ssize_t moved = pread(mover->fd, host, (size_t)num_bytes, (off_t)at);
        if (moved < 0 && errno == EINTR) { continue; }
        if (moved <= 0) {
            return FAIL(STATUS_IO, "%s: reading at byte %lld: %s ---> copy the checkpoint again", mover->path,
                        (long long)at, moved == 0 ? "it ends" : strerror(errno));
        }
        host += moved;
        num_bytes -= moved;
        at += moved;
    }
    return STATUS_OK;
}

static Status move_bytes(const Mover* mover, char* host, int64_t num_bytes, int64_t at) {
    int error = 0;
    if (mover->is_reading) {
        TRY(read_bytes(mover, host, num_bytes, at));
    } else {
        error = file_write_at(mover->fd, host, (size_t)num_bytes, at);
    }
    if (error != 0) {
        return FAIL(STATUS_IO, "%s: writing %lld bytes at %lld: %s ---> free room on that disk", mover->path,
                    (long long)num_bytes, (long long)at, strerror(error));
    }
    add_to_sum(mover, host, num_bytes, at);
    return STATUS_OK;
}

static Status move_values(const Mover* mover, char* values, int64_t num_bytes, int64_t at) {
    if (mover->piece == NULL) { return move_bytes(mover, values, num_bytes, at); }
    for (int64_t done = 0; done < num_bytes; done += PIECE_BYTES) {
        int64_t part = num_bytes - done < PIECE_BYTES ? num_bytes - done : PIECE_BYTES;
        if (!mover->is_reading) { mover->copies->to_host(mover->piece, values + done, (size_t)part); }
        TRY(move_bytes(mover, mover->piece, part, at + done));
        if (mover->is_reading) { mover->copies->from_host(values + done, mover->piece, (size_t)part); }
    }
    return STATUS_OK;
}

static Status move_tensors(const Mover* mover, int64_t at, const DynapipeSlice* slice,
                           const DynapipeTensors* tensors, char* values) {
    Mover uncounted = *mover;
    uncounted.sum = NULL;
    for (int32_t i = 0; i < tensors->num_tensors; i++) {
        bool is_copy = is_tied(tensors, i) && !slice->has_first;
        if (slice->count[i] == 0 || (is_copy && !mover->is_reading)) { continue; }
        TRY(move_values(is_copy ? &uncounted : mover, values + slice->begin[i] * mover->value_bytes,
                        slice->count[i] * mover->value_bytes, at + slice->whole[i] * mover->value_bytes));
    }
    return STATUS_OK;
}

static Status move_slice(Mover* mover, int64_t at, const DynapipeSlice* slice, const DynapipeTensors* tensors,
                         char* values) {
    mover->fd = open(mover->path, mover->is_reading ? O_RDONLY : O_WRONLY);
    if (mover->fd < 0) {
        return FAIL(STATUS_IO, "%s: %s ---> all ranks must see the same folder", mover->path,
                    strerror(errno));
    }
    if (mover->copies != NULL) { mover->piece = malloc(PIECE_BYTES); }
    Status status = mover->copies != NULL && mover->piece == NULL
                        ? FAIL(STATUS_NO_MEMORY, "no memory for a piece of %s", mover->path)
                        : move_tensors(mover, at, slice, tensors, values);
    if (status == STATUS_OK && !mover->is_reading && fsync(mover->fd) != 0) {
        status = FAIL(STATUS_IO, "%s: %s ---> free room on that disk", mover->path, strerror(errno));
    }
    free(mover->piece);
    close(mover->fd);
    return status;
}

int dynapipe_tensors_write(const char* path, const DynapipeBody* body, const DynapipeSlice* slice,
                           const DynapipeTensors* tensors, const void* values, const DynapipeCopies* copies) {
    Mover mover = {.path = path,
                   .copies = copies,
                   .value_bytes = body->value_bytes,
                   .begin_byte = body->file_at,
                   .sum = body->sum};
    return (int)move_slice(&mover, body->at, slice, tensors, (char*)(uintptr_t)values);
}

int dynapipe_tensors_read(const char* path, const DynapipeBody* body, const DynapipeSlice* slice,
                          const DynapipeTensors* tensors, void* values, const DynapipeCopies* copies) {
    Mover mover = {.path = path,
                   .copies = copies,
                   .is_reading = true,
                   .value_bytes = body->value_bytes,
                   .begin_byte = body->file_at,
                   .sum = body->sum};
    return (int)move_slice(&mover, body->at, slice, tensors, values);
}
