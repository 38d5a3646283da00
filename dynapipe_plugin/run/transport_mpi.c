/*
transport_mpi.c -- MPI point-to-point on a duplicate of MPI_COMM_WORLD.

Who moves a large message? MPI implementations move it inside MPI calls. With single-copy shared memory (Open
MPI's vader with CMA) the receiver pulls it alone; with copies through shared memory, or TCP, the sender must
keep calling MPI, and a sender that computes stalls its receiver. Measured on two cores, Open MPI 4.1.4:
rank 0 posts a message and computes 100 ms without calling MPI, rank 1 posts its receive 20 ms later:

    received after (ms)             64 KB   1 MB   8 MB
    single copy (CMA)                20.3   20.4   22.3
    copies through shared memory    100.5   98.9  108.5
    the same, eager limit 16 MB      24.0   24.2   22.6   (memory: 16 MB per message slot)

So it is measured when the transport opens (sender_must_help, about 30 ms): where messages do not arrive
by the receiver's efforts alone, a thread of this transport calls MPI every PROGRESS_NAP_NS while requests
are in flight. All MPI calls are then made under one lock, which needs MPI_THREAD_SERIALIZED. Where MPI gives
less, there is no such thread, and messages wait for the sender's next call.

Messages above CHUNK_BYTES go as several, on the same tag, in order: MPI counts are ints.
*/
#include "transport.h"

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../base/clock.h"

#ifndef TRANSPORT_MPI_CHUNK_BYTES
#define TRANSPORT_MPI_CHUNK_BYTES (1 << 30)
#endif

enum {
    PROGRESS_NAP_NS = 100 * 1000,
    PROBE_BYTES = 1 << 20,
    PROBE_TRIES = 3,
    PROBE_QUIET_NS = 10 * 1000 * 1000,  // the sender keeps away from MPI for so long
    PROBE_SOON_NS = 5 * 1000 * 1000,    // the receiver must have it by then
};

typedef struct MpiRequest MpiRequest;
struct MpiRequest {
    MpiRequest* next;  // among the spare ones
    bool is_receive;
    int32_t peer, tag;
    size_t num_bytes;
    int32_t num_chunks, max_chunks, chunks_done;
    MPI_Request* chunks;
};

typedef struct {
    MPI_Comm comm;
    int32_t rank, num_ranks;
    bool finalize;  // MPI was initialised here
    atomic_int in_flight;
    MpiRequest* spare;
    bool has_thread;
    pthread_t thread;
    atomic_bool stop;
    pthread_mutex_t lock;  // around MPI calls, where there is a thread
} Mpi;

static void enter(Mpi* mpi) {
    if (mpi->has_thread) { pthread_mutex_lock(&mpi->lock); }
}

static void leave(Mpi* mpi) {
    if (mpi->has_thread) { pthread_mutex_unlock(&mpi->lock); }
}

static Status mpi_fail(const Mpi* mpi, int rc, const char* what, int32_t peer, int32_t tag) {
    int class = 0, length = 0;
    char text[MPI_MAX_ERROR_STRING] = "";
    MPI_Error_class(rc, &class);
    MPI_Error_string(rc, text, &length);
    return FAIL(class == MPI_ERR_TRUNCATE ? STATUS_MISMATCH : STATUS_COMM,
                "mpi: rank %d, %s rank %d, tag %d: %s", (int)mpi->rank, what, (int)peer, (int)tag, text);
}

static void nap(int64_t ns) {
    struct timespec time = {0, ns};
    nanosleep(&time, NULL);
}

static void* progress_main(void* arg) {
    Mpi* mpi = arg;
    while (!atomic_load(&mpi->stop)) {
        if (atomic_load(&mpi->in_flight) > 0) {
            int any = 0;
            pthread_mutex_lock(&mpi->lock);
            MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, mpi->comm, &any, MPI_STATUS_IGNORE);
            pthread_mutex_unlock(&mpi->lock);
        }
        nap(PROGRESS_NAP_NS);
    }
    return NULL;
}

// --- requests
// -------------------------------------------------------------------------------------------------
static MpiRequest* request_create(Mpi* mpi, size_t num_bytes) {
    size_t chunk = TRANSPORT_MPI_CHUNK_BYTES;
    int32_t num_chunks = num_bytes == 0 ? 1 : (int32_t)((num_bytes + chunk - 1) / chunk);
    MpiRequest* r = mpi->spare;
    if (r != NULL) {
        mpi->spare = r->next;
    } else {
        r = calloc(1, sizeof *r);
        if (r == NULL) { return NULL; }
    }
    if (num_chunks > r->max_chunks) {
        MPI_Request* chunks = realloc(r->chunks, (size_t)num_chunks * sizeof *chunks);
        if (chunks == NULL) {
            r->next = mpi->spare;
            mpi->spare = r;
            return NULL;
        }
        r->chunks = chunks;
        r->max_chunks = num_chunks;
    }
    r->num_chunks = num_chunks;
    r->chunks_done = 0;
    return r;
}

static int chunk_length(const MpiRequest* r, int32_t i) {
    size_t begin = (size_t)i * TRANSPORT_MPI_CHUNK_BYTES;
    size_t rest = r->num_bytes - begin;
    return (int)(rest < TRANSPORT_MPI_CHUNK_BYTES ? rest : TRANSPORT_MPI_CHUNK_BYTES);
}

static Status post(Mpi* mpi, bool is_receive, int32_t peer, int32_t tag, unsigned char* data,
                   size_t num_bytes, void** request) {
    if (peer < 0 || peer >= mpi->num_ranks || tag < 0) {
        return FAIL(STATUS_OUT_OF_RANGE, "mpi: rank %d, tag %d from rank %d: there are ranks 0..%d",
                    (int)peer, (int)tag, (int)mpi->rank, (int)mpi->num_ranks - 1);
    }
    MpiRequest* r = request_create(mpi, num_bytes);
    if (r == NULL) { return FAIL(STATUS_NO_MEMORY, "mpi: no memory for a request"); }
    r->is_receive = is_receive;
    r->peer = peer;
    r->tag = tag;
    r->num_bytes = num_bytes;
    int rc = MPI_SUCCESS;
    enter(mpi);
    for (int32_t i = 0; i < r->num_chunks && rc == MPI_SUCCESS; i++) {
        unsigned char* chunk = data + (size_t)i * TRANSPORT_MPI_CHUNK_BYTES;
        int length = chunk_length(r, i);
        rc = is_receive ? MPI_Irecv(chunk, length, MPI_BYTE, peer, tag, mpi->comm, &r->chunks[i])
                        : MPI_Isend(chunk, length, MPI_BYTE, peer, tag, mpi->comm, &r->chunks[i]);
    }
    leave(mpi);
    if (rc != MPI_SUCCESS) { return mpi_fail(mpi, rc, is_receive ? "receive from" : "send to", peer, tag); }
    atomic_fetch_add(&mpi->in_flight, 1);
    *request = r;
    return STATUS_OK;
}

static Status mpi_isend(void* ctx, int32_t peer, int32_t tag, const void* data, size_t num_bytes,
                        void** request) {
    // MPI takes the same pointer as const again.
    return post(ctx, false, peer, tag, (unsigned char*)(uintptr_t)data, num_bytes, request);
}

static Status mpi_irecv(void* ctx, int32_t peer, int32_t tag, void* data, size_t num_bytes, void** request) {
    return post(ctx, true, peer, tag, data, num_bytes, request);
}

// Chunks arrive in order, so waiting for the first one that is missing is enough.
static Status test_chunks(Mpi* mpi, MpiRequest* r) {
    while (r->chunks_done < r->num_chunks) {
        int32_t i = r->chunks_done;
        int done = 0, num_bytes = 0;
        MPI_Status status;
        int rc = MPI_Test(&r->chunks[i], &done, &status);
        if (rc != MPI_SUCCESS) {
            return mpi_fail(mpi, rc, r->is_receive ? "receive from" : "send to", r->peer, r->tag);
        }
        if (!done) { return STATUS_OK; }
        r->chunks_done++;
        if (!r->is_receive) { continue; }
        MPI_Get_count(&status, MPI_BYTE, &num_bytes);
        if (num_bytes != chunk_length(r, i)) {
            return FAIL(STATUS_MISMATCH, "mpi: rank %d expects %zu bytes, tag %d, but rank %d sends %zu",
                        (int)mpi->rank, r->num_bytes, (int)r->tag, (int)r->peer,
                        (size_t)i * TRANSPORT_MPI_CHUNK_BYTES + (size_t)num_bytes);
        }
    }
    return STATUS_OK;
}

static Status mpi_test(void* ctx, void* request, int* done) {
    Mpi* mpi = ctx;
    MpiRequest* r = request;
    *done = 0;
    enter(mpi);
    Status status = test_chunks(mpi, r);
    leave(mpi);
    if (status == STATUS_OK && r->chunks_done == r->num_chunks) {
        *done = 1;
        r->next = mpi->spare;
        mpi->spare = r;
        atomic_fetch_sub(&mpi->in_flight, 1);
    }
    return status;
}

static void mpi_abort(void* ctx, const char* why) {
    Mpi* mpi = ctx;
    fprintf(stderr, "rank %d: %s\n", (int)mpi->rank, why);
    fflush(stderr);
    enter(mpi);
    MPI_Abort(mpi->comm, 1);
}

// --- opening and closing
// --------------------------------------------------------------------------------------
static Status mpi_close(void* ctx) {
    Mpi* mpi = ctx;
    int32_t in_flight = atomic_load(&mpi->in_flight);
    if (mpi->has_thread) {
        atomic_store(&mpi->stop, true);
        pthread_join(mpi->thread, NULL);
        pthread_mutex_destroy(&mpi->lock);
    }
    int32_t rank = mpi->rank;
    while (mpi->spare != NULL) {
        MpiRequest* next = mpi->spare->next;
        free(mpi->spare->chunks);
        free(mpi->spare);
        mpi->spare = next;
    }
    if (in_flight > 0) {  // finalizing now could wait for ever
        free(mpi);
        return FAIL(STATUS_COMM, "mpi: rank %d closes with %d requests in flight", (int)rank, (int)in_flight);
    }
    int rc = MPI_Comm_free(&mpi->comm);
    bool finalize = mpi->finalize;
    free(mpi);
    if (rc == MPI_SUCCESS && finalize) { rc = MPI_Finalize(); }
    return rc == MPI_SUCCESS ? STATUS_OK : FAIL(STATUS_COMM, "mpi: rank %d could not finalize", (int)rank);
}

// One try of the probe: `sender` posts and stays away from MPI, `receiver` polls. Returns whether it came
// soon.
static bool probe_once(MPI_Comm comm, unsigned char* data, int32_t peer, bool is_sender) {
    MPI_Request request;
    int64_t begin_ns = clock_now_ns();
    if (is_sender) {
        MPI_Isend(data, PROBE_BYTES, MPI_BYTE, peer, 0, comm, &request);
        nap(PROBE_QUIET_NS);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        return true;
    }
    int done = 0;
    MPI_Irecv(data, PROBE_BYTES, MPI_BYTE, peer, 0, comm, &request);
    while (!done) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (!done) { nap(50 * 1000); }
    }
    return clock_now_ns() - begin_ns < PROBE_SOON_NS;
}

// Does a large message between neighbours wait until its sender calls MPI? Every rank gets the same answer. A
// busy machine may delay a try; so only PROBE_TRIES late ones out of PROBE_TRIES count.
static Status sender_must_help(const Mpi* mpi, bool* out) {
    unsigned char* data = calloc(1, PROBE_BYTES);
    if (data == NULL) { return FAIL(STATUS_NO_MEMORY, "mpi: no memory for the opening probe"); }
    int late = 0, any_late = 0;
    for (int32_t parity = 0; parity < 2;
         parity++) {  // first ranks 0 -> 1, 2 -> 3 ..., then 1 -> 2, 3 -> 4 ...
        bool is_sender = mpi->rank % 2 == parity;
        int32_t peer = is_sender ? mpi->rank + 1 : mpi->rank - 1;
        int num_late = 0;
        for (int32_t i = 0; i < PROBE_TRIES; i++) {
            MPI_Barrier(mpi->comm);
            if (peer < 0 || peer >= mpi->num_ranks) { continue; }
            num_late += !probe_once(mpi->comm, data, peer, is_sender);
        }
        late |= num_late == PROBE_TRIES;
    }
    free(data);
    int rc = MPI_Allreduce(&late, &any_late, 1, MPI_INT, MPI_MAX, mpi->comm);
    if (rc != MPI_SUCCESS) { return mpi_fail(mpi, rc, "probe of", mpi->rank, 0); }
    *out = any_late != 0;
    return STATUS_OK;
}

static const DynapipeTransport_v1 mpi_api = {
    .name = "mpi",
    .isend = mpi_isend,
    .irecv = mpi_irecv,
    .test = mpi_test,
    .abort = mpi_abort,
    .close = mpi_close,
};

static Status start_progress(Mpi* mpi) {
    int level = MPI_THREAD_SINGLE;
    bool must_help = false;
    MPI_Query_thread(&level);
    if (mpi->num_ranks > 1) { TRY(sender_must_help(mpi, &must_help)); }
    if (!must_help || level < MPI_THREAD_SERIALIZED) { return STATUS_OK; }
    pthread_mutex_init(&mpi->lock, NULL);
    if (pthread_create(&mpi->thread, NULL, progress_main, mpi) != 0) {
        pthread_mutex_destroy(&mpi->lock);
        return FAIL(STATUS_NO_MEMORY, "mpi: could not start a thread");
    }
    mpi->has_thread = true;
    return STATUS_OK;
}

Status transport_mpi_open(Transport* out, int* argc, char*** argv) {
    int initialized = 0, provided = 0, rank = 0, num_ranks = 0;
    MPI_Initialized(&initialized);
    if (!initialized && MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) {
        return FAIL(STATUS_COMM, "mpi: MPI_Init_thread failed ---> start the program with mpirun");
    }
    Mpi* mpi = calloc(1, sizeof *mpi);
    if (mpi == NULL) { return FAIL(STATUS_NO_MEMORY, "mpi: no memory for the transport"); }
    if (MPI_Comm_dup(MPI_COMM_WORLD, &mpi->comm) != MPI_SUCCESS) {
        free(mpi);
        return FAIL(STATUS_COMM, "mpi: MPI_COMM_WORLD cannot be duplicated");
    }
    MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(mpi->comm, &rank);
    MPI_Comm_size(mpi->comm, &num_ranks);
    mpi->finalize = !initialized;
    mpi->rank = rank;
    mpi->num_ranks = num_ranks;
    Status status = start_progress(mpi);
    if (status != STATUS_OK) {
        MPI_Comm_free(&mpi->comm);
        free(mpi);
        return status;
    }
    *out = (Transport){.api = &mpi_api, .ctx = mpi, .rank = rank, .num_ranks = num_ranks};
    return STATUS_OK;
}
