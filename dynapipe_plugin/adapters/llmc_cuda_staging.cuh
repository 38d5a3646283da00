/*
llmc_cuda_staging.cuh -- pinned memory between a batch and the device: ids and targets on their way there,
losses on their way back; and what their backward of the embedding prepares on the host. Part of
llmc_cuda_main.cuh.

Nothing is given back before finish(), so the host never waits in between; there it all begins anew. More is
asked of the driver only where a step needs more than any step before.
*/
#pragma once

typedef struct {
    float* losses;        // (num_rows) of the caller
    const float* values;  // (num_tokens) pinned
    const int32_t* rows;  // [num_rows] of the batch
    int32_t num_rows;
} DynapipeDelivery;

typedef struct {
    char** chunks;  // pinned
    size_t* chunk_bytes;
    int num_chunks, chunk;  // chunk: the one in use
    size_t used_bytes;      // of it
    DynapipeDelivery* deliveries;
    int num_deliveries, max_deliveries;
} DynapipeCudaStaging;

template <class T> static void dynapipe_staging_grow(T** list, int num_items) {
    *list = (T*)realloc((void*)*list, sizeof(T) * (size_t)num_items);
    if (*list == NULL) {
        fprintf(stderr, "no memory for a list of %d\n", num_items);
        exit(EXIT_FAILURE);
    }
}

static void* dynapipe_staging_take(DynapipeCudaStaging* s, size_t num_bytes) {
    num_bytes = (num_bytes + 63) / 64 * 64;
    while (s->chunk < s->num_chunks && s->used_bytes + num_bytes > s->chunk_bytes[s->chunk]) {
        s->chunk++;
        s->used_bytes = 0;
    }
    if (s->chunk == s->num_chunks) {
        size_t chunk_bytes = std::max(num_bytes, (size_t)1 << 20);
        dynapipe_staging_grow(&s->chunks, s->num_chunks + 1);
        dynapipe_staging_grow(&s->chunk_bytes, s->num_chunks + 1);
        cudaCheck(cudaMallocHost((void**)&s->chunks[s->num_chunks], chunk_bytes));
        s->chunk_bytes[s->num_chunks++] = chunk_bytes;
    }
    void* taken = s->chunks[s->chunk] + s->used_bytes;
    s->used_bytes += num_bytes;
    return taken;
}

// inputs: (num_tokens), targets: (2, num_tokens) the id to predict, and whether there is one; NULL: not
// needed.
static void dynapipe_staging_ids(DynapipeCudaStaging* s, int* inputs, int* targets,
                                 const DynapipeBatch* batch, cudaStream_t stream) {
    size_t n = (size_t)batch->num_tokens;
    if (inputs != NULL) {
        int* ids = (int*)dynapipe_staging_take(s, sizeof(int) * n);
        memcpy(ids, batch->tokens, sizeof(int) * n);
        cudaCheck(cudaMemcpyAsync(inputs, ids, sizeof(int) * n, cudaMemcpyHostToDevice, stream));
    }
    if (targets != NULL) {
        int* ids = (int*)dynapipe_staging_take(s, 2 * sizeof(int) * n);
        memset(ids, 0, 2 * sizeof(int) * n);
        for (int i = 0; i < batch->num_rows; i++) {
            ids[batch->rows[i]] = batch->targets[i];
            ids[n + (size_t)batch->rows[i]] = 1;
        }
        cudaCheck(cudaMemcpyAsync(targets, ids, 2 * sizeof(int) * n, cudaMemcpyHostToDevice, stream));
    }
}

// values (num_tokens), on the device: those of the batch's rows are in `losses` after finish().
static void dynapipe_staging_deliver(DynapipeCudaStaging* s, float* losses, const float* values,
                                     const DynapipeBatch* batch, cudaStream_t stream) {
    size_t num_bytes = sizeof(float) * (size_t)batch->num_tokens;
    float* there = (float*)dynapipe_staging_take(s, num_bytes);
    cudaCheck(cudaMemcpyAsync(there, values, num_bytes, cudaMemcpyDeviceToHost, stream));
    if (s->num_deliveries == s->max_deliveries) {
        s->max_deliveries = 2 * s->max_deliveries + 64;
        dynapipe_staging_grow(&s->deliveries, s->max_deliveries);
    }
    s->deliveries[s->num_deliveries++] = {losses, there, batch->rows, batch->num_rows};
}

static int dynapipe_staging_finish(DynapipeCudaStaging* s, cudaStream_t stream) {
    cudaError_t code = cudaStreamSynchronize(stream);
    for (int i = 0; i < s->num_deliveries; i++) {
        const DynapipeDelivery* d = &s->deliveries[i];
        for (int k = 0; k < d->num_rows; k++) { d->losses[k] = d->values[d->rows[k]]; }
    }
    s->num_deliveries = s->chunk = 0;
    s->used_bytes = 0;
    return (int)code;
}

static void dynapipe_staging_free(DynapipeCudaStaging* s) {
    for (int i = 0; i < s->num_chunks; i++) { cudaCheck(cudaFreeHost(s->chunks[i])); }
    free(s->chunks);
    free(s->chunk_bytes);
    free(s->deliveries);
    memset(s, 0, sizeof *s);
}

// --- their preparation of the embedding's gradient -------------------------------------------------------

// Written by the host, then read in the order of the stream: two by turns, so the host waits for the job
// before the last one at most, which leaves work to the device.
enum { DYNAPIPE_NUM_ROOMS = 2 };
typedef struct {
    int* indices;  // (capacity) pinned
    int4* buckets;
    size_t capacity;
    cudaEvent_t is_read;  // NULL: never used
} DynapipeRoom;

typedef struct {
    DynapipeRoom rooms[DYNAPIPE_NUM_ROOMS];
    int next;
} DynapipeRooms;

static void dynapipe_room_free(DynapipeRoom* room) {
    if (room->capacity == 0) { return; }
    cudaCheck(cudaFreeHost(room->indices));
    cudaCheck(cudaFreeHost(room->buckets));
    room->capacity = 0;
}

// Record is_read behind the copies.
static DynapipeRoom* dynapipe_rooms_next(DynapipeRooms* all, size_t num_items) {
    DynapipeRoom* room = &all->rooms[all->next];
    all->next = (all->next + 1) % DYNAPIPE_NUM_ROOMS;
    if (room->is_read == NULL) {
        cudaCheck(cudaEventCreateWithFlags(&room->is_read, cudaEventDisableTiming));
    } else {
        cudaCheck(cudaEventSynchronize(room->is_read));
    }
    if (num_items <= room->capacity) { return room; }
    dynapipe_room_free(room);
    room->capacity = num_items + num_items / 2;
    cudaCheck(cudaMallocHost((void**)&room->indices, room->capacity * sizeof(int)));
    cudaCheck(cudaMallocHost((void**)&room->buckets, room->capacity * sizeof(int4)));
    return room;
}

static void dynapipe_rooms_free(DynapipeRooms* all) {
    for (DynapipeRoom& room : all->rooms) {
        if (room.is_read != NULL) { cudaCheck(cudaEventDestroy(room.is_read)); }
        dynapipe_room_free(&room);
        room = {};
    }
}
