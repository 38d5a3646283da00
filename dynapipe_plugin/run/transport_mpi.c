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
    the same, with our thread        22-24  23-28  37-50

(Other programs busy on both cores: 20 / 21 / 30 with single copy, 20-40 / 24-80 / 37-160 with our thread.
Shorter naps, or more calls for each, made no difference that could be told from noise.)

A receiver that computes does not pull: a message that comes during one of its jobs moves when the job has
ended. A thread of this transport can call MPI now and then while requests are in flight; all MPI calls are
then made under one lock, which needs MPI_THREAD_SERIALIZED. Whether it pays is measured (hosts.h).

A receive is posted at once, so that whatever can move a message by itself (a network card, a simulated
network) begins when both sides are there. The price: Open MPI 4.1's single copy writes past the end of a
posted receive that is too short for a large message. So ranks compare what they will send and receive before
a step (collective.h); lengths are compared again here when a message has come.
*/
#include "transport.h"

#include <limits.h>
#include <mpi.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../util/program.h"

enum { MOVED_NS = 3000, MOST_LOOKS = 256 };

typedef struct MpiRequest MpiRequest;
struct MpiRequest {
    MpiRequest* next;  // among the spare ones
    bool is_receive;
    int32_t peer, tag;
    size_t num_bytes;
    MPI_Request handle;
};

typedef struct {
    MPI_Comm comm;
    int32_t rank;
    bool finalize;  // MPI was initialised by this transport
    bool has_thread;
    pthread_t thread;
    int64_t nap_ns;        // of the thread, between two polls
    bool stop;             // by __atomic calls
    pthread_mutex_t lock;  // around MPI calls and what follows, where there is a thread
    int32_t in_flight;
    MpiRequest* spare;
} Mpi;

static void enter(Mpi* mpi) {
    if (mpi->has_thread) { pthread_mutex_lock(&mpi->lock); }
}

static void leave(Mpi* mpi) {
    if (mpi->has_thread) { pthread_mutex_unlock(&mpi->lock); }
}

static Status mpi_fail(const Mpi* mpi, int rc, const char* what, int32_t peer, int32_t tag) {
    int length = 0;
    char text[MPI_MAX_ERROR_STRING] = "";
    MPI_Error_string(rc, text, &length);
    return FAIL(STATUS_COMM, "mpi: rank %d, %s rank %d, tag %d: %s", (int)mpi->rank, what, (int)peer,
                (int)tag, text);
}

static void nap(int64_t ns) {
    struct timespec time = {0, ns};
    nanosleep(&time, NULL);
}

// --- requests --------------------------------------------------------------------------------------------
// One MPI call that tests no request and moves what is posted. Returns whether it took long enough to have
// moved something: a piece of a message is about 10 us of copying, an empty poll much less.
static bool look(Mpi* mpi) {
    int any = 0;
    pthread_mutex_lock(&mpi->lock);
    int64_t begin_ns = clock_now_ns();
    if (mpi->in_flight > 0) { MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, mpi->comm, &any, MPI_STATUS_IGNORE); }
    bool has_moved = clock_now_ns() - begin_ns > MOVED_NS;
    pthread_mutex_unlock(&mpi->lock);
    return has_moved;
}

// Where a message comes in pieces, the next one follows soon.
static void* progress_main(void* arg) {
    Mpi* mpi = (Mpi*)arg;
    while (!__atomic_load_n(&mpi->stop, __ATOMIC_SEQ_CST)) {
        for (int i = 0; i < MOST_LOOKS && look(mpi); i++) {}
        nap(mpi->nap_ns);
    }
    return NULL;
}

static const char* verb(bool is_receive) {
    return is_receive ? "receive from" : "send to";
}

static Status post(Mpi* mpi, MpiRequest wanted, void* data, void** request) {
    if (wanted.num_bytes > INT_MAX) {  // MPI counts are ints
        return FAIL(STATUS_OUT_OF_RANGE,
                    "mpi: a message of %zu bytes, at most %d are possible ---> a smaller -t",
                    wanted.num_bytes, INT_MAX);
    }
    enter(mpi);
    MpiRequest* r = mpi->spare;
    if (r != NULL) {
        mpi->spare = r->next;
    } else {
        r = (MpiRequest*)malloc(sizeof *r);
    }
    int rc = MPI_SUCCESS;
    if (r != NULL) {
        *r = wanted;
        mpi->in_flight++;
        const int count = (int)r->num_bytes;
        rc = r->is_receive ? MPI_Irecv(data, count, MPI_BYTE, r->peer, r->tag, mpi->comm, &r->handle)
                           : MPI_Isend(data, count, MPI_BYTE, r->peer, r->tag, mpi->comm, &r->handle);
    }
    leave(mpi);
    if (r == NULL) { return FAIL(STATUS_NO_MEMORY, "mpi: no memory for a request"); }
    *request = r;
    return rc == MPI_SUCCESS ? STATUS_OK : mpi_fail(mpi, rc, verb(r->is_receive), r->peer, r->tag);
}

static Status mpi_isend(void* ctx, int32_t peer, int32_t tag, const void* data, size_t num_bytes,
                        void** request) {
    // Of a send, the data is only read.
    return post((Mpi*)ctx, (MpiRequest){.peer = peer, .tag = tag, .num_bytes = num_bytes},
                (void*)(uintptr_t)data, request);
}

static Status mpi_irecv(void* ctx, int32_t peer, int32_t tag, void* data, size_t num_bytes, void** request) {
    return post((Mpi*)ctx, (MpiRequest){.is_receive = true, .peer = peer, .tag = tag, .num_bytes = num_bytes},
                data, request);
}

// Of a received message: does it have the expected length?
static Status check_length(const Mpi* mpi, const MpiRequest* r, const MPI_Status* status) {
    int got_bytes = 0;
    MPI_Get_count(status, MPI_BYTE, &got_bytes);
    if ((size_t)got_bytes == r->num_bytes) { return STATUS_OK; }
    return FAIL(STATUS_MISMATCH, "mpi: rank %d expects %zu bytes, tag %d, but rank %d sends %d",
                (int)mpi->rank, r->num_bytes, (int)r->tag, (int)r->peer, got_bytes);
}

static Status fail_test(const Mpi* mpi, const MpiRequest* r, int rc) {
    int error_class = 0;
    MPI_Error_class(rc, &error_class);
    if (error_class != MPI_ERR_TRUNCATE) { return mpi_fail(mpi, rc, verb(r->is_receive), r->peer, r->tag); }
    return FAIL(STATUS_MISMATCH, "mpi: rank %d expects %zu bytes, tag %d, but rank %d sends more",
                (int)mpi->rank, r->num_bytes, (int)r->tag, (int)r->peer);
}

static Status test_request(const Mpi* mpi, MpiRequest* r, int* done) {
    MPI_Status status;
    int rc = MPI_Test(&r->handle, done, &status);
    if (rc != MPI_SUCCESS) {
        *done = 0;
        return fail_test(mpi, r, rc);
    }
    return *done && r->is_receive ? check_length(mpi, r, &status) : STATUS_OK;
}

static Status mpi_test(void* ctx, void* request, int* done) {
    Mpi* mpi = (Mpi*)ctx;
    MpiRequest* r = (MpiRequest*)request;
    enter(mpi);
    *done = 0;
    Status status = test_request(mpi, r, done);
    if (*done) {
        r->next = mpi->spare;
        mpi->spare = r;
        mpi->in_flight--;
    }
    leave(mpi);
    return status;
}

// Open MPI's mpirun ends all ranks when one exits without finalizing, always; after MPI_Abort it crashed or
// hung in 17 of 320 runs in which another rank was finalizing at that moment (4.1.4). Elsewhere, MPI_Abort.
static void mpi_abort(void* ctx, const char* why) {
    Mpi* mpi = (Mpi*)ctx;
    if (strncmp(why, "rank ", 5) != 0) { fprintf(stderr, "rank %d: ", (int)mpi->rank); }
    fprintf(stderr, "%s\n", why);
    fflush(NULL);
    if (getenv("OMPI_COMM_WORLD_SIZE") != NULL) { _exit(1); }
    enter(mpi);
    MPI_Abort(mpi->comm, 1);
}

// --- progress ----------------------------------------------------------------------------------------------
static void progress_stop(Mpi* mpi) {
    if (!mpi->has_thread) { return; }
    __atomic_store_n(&mpi->stop, true, __ATOMIC_SEQ_CST);
    pthread_join(mpi->thread, NULL);
    pthread_mutex_destroy(&mpi->lock);
    mpi->has_thread = false;
}

static Status mpi_progress(void* ctx, int64_t nap_ns, bool* is_on) {
    Mpi* mpi = (Mpi*)ctx;
    int level = MPI_THREAD_SINGLE;
    progress_stop(mpi);
    MPI_Query_thread(&level);
    *is_on = nap_ns > 0 && level >= MPI_THREAD_SERIALIZED && !SIMULATED;
    if (!*is_on) { return STATUS_OK; }
    mpi->nap_ns = nap_ns;
    __atomic_store_n(&mpi->stop, false, __ATOMIC_SEQ_CST);
    pthread_mutex_init(&mpi->lock, NULL);
    if (pthread_create(&mpi->thread, NULL, progress_main, mpi) != 0) {
        pthread_mutex_destroy(&mpi->lock);
        return FAIL(STATUS_NO_MEMORY, "mpi: could not start a thread");
    }
    mpi->has_thread = true;
    return STATUS_OK;
}

static int64_t mpi_progress_cpu_ns(void* ctx) {
    const Mpi* mpi = (const Mpi*)ctx;
    clockid_t clock;
    struct timespec time;
    if (!mpi->has_thread || pthread_getcpuclockid(mpi->thread, &clock) != 0) { return 0; }
    return clock_gettime(clock, &time) == 0 ? (int64_t)time.tv_sec * 1000000000 + time.tv_nsec : 0;
}

// --- opening and closing ---------------------------------------------------------------------------------
static Status mpi_close(void* ctx) {
    Mpi* mpi = (Mpi*)ctx;
    progress_stop(mpi);
    int32_t rank = mpi->rank, in_flight = mpi->in_flight;
    while (mpi->spare != NULL) {
        MpiRequest* next = mpi->spare->next;
        free(mpi->spare);
        mpi->spare = next;
    }
    if (in_flight > 0) {  // finalizing now could wait forever
        free(mpi);
        return FAIL(STATUS_COMM, "mpi: rank %d closes with %d requests in flight", (int)rank, (int)in_flight);
    }
    int rc = MPI_Comm_free(&mpi->comm);
    bool finalize = mpi->finalize;
    free(mpi);
    if (rc == MPI_SUCCESS && finalize) { rc = MPI_Finalize(); }
    return rc == MPI_SUCCESS ? STATUS_OK : FAIL(STATUS_COMM, "mpi: rank %d could not finalize", (int)rank);
}

static const DynapipeTransport_v1 mpi_api = {
    .isend = mpi_isend,
    .irecv = mpi_irecv,
    .test = mpi_test,
    .abort = mpi_abort,
    .close = mpi_close,
    .progress = mpi_progress,
    .progress_cpu_ns = mpi_progress_cpu_ns,
};

static Status check_tags(MPI_Comm comm) {
    const int* largest = NULL;
    int has_it = 0;
    MPI_Comm_get_attr(comm, MPI_TAG_UB, &largest, &has_it);
    if (has_it && *largest >= TRANSPORT_TAG_END - 1) { return STATUS_OK; }
    return FAIL(STATUS_COMM, "mpi: tags up to %d, %d are needed ---> use another MPI, such as Open MPI",
                has_it ? *largest : 32767, TRANSPORT_TAG_END - 1);
}

Status transport_mpi_open(Transport* out, int* argc, char*** argv) {
    int initialized = 0, provided = 0, rank = 0, num_ranks = 0;
    MPI_Initialized(&initialized);
    if (!initialized && MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) {
        return FAIL(STATUS_COMM, "mpi: MPI_Init_thread failed ---> start the program with mpirun");
    }
    Mpi* mpi = (Mpi*)calloc(1, sizeof *mpi);
    if (mpi == NULL) { return FAIL(STATUS_NO_MEMORY, "mpi: no memory for the transport"); }
    if (MPI_Comm_dup(MPI_COMM_WORLD, &mpi->comm) != MPI_SUCCESS) {
        free(mpi);
        return FAIL(STATUS_COMM, "mpi: MPI_COMM_WORLD cannot be duplicated");
    }
    MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(mpi->comm, &rank);
    MPI_Comm_size(mpi->comm, &num_ranks);
    Status status = check_tags(mpi->comm);
    mpi->finalize = !initialized;
    mpi->rank = rank;
    if (status != STATUS_OK) {
        MPI_Comm_free(&mpi->comm);
        free(mpi);
        return status;
    }
    *out = (Transport){.api = &mpi_api, .ctx = mpi, .rank = rank, .num_ranks = num_ranks};
    return STATUS_OK;
}
