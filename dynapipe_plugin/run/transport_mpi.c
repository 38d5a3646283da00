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

So it is measured when the transport opens (sender_must_help, about 30 ms): where messages do not arrive
by the receiver's efforts alone, a thread of this transport calls MPI every PROGRESS_NAP_NS while requests
are in flight. All MPI calls are then made under one lock, which needs MPI_THREAD_SERIALIZED. Where MPI gives
less, there is no such thread, and messages wait for the sender's next call.

A receive is matched with MPI_Improbe when its message has come, its length compared, and only then received:
Open MPI 4.1's single copy writes past the end of a posted receive that is too short for a large message.
This costs no overlap: the receiver's part of the work is done inside its MPI calls anyway, or by the thread.

Messages above TRANSPORT_MPI_CHUNK_BYTES (MPI counts are ints) go in several parts on the same tag, behind a
first part that holds the length.
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
#include <unistd.h>

#include "../base/clock.h"
#include "../base/simulated.h"

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
    MpiRequest* next;  // among the unmatched, or the spare ones
    bool is_receive;
    int32_t peer, tag;
    unsigned char* data;
    size_t num_bytes;
    uint64_t length;   // first part of a message in several parts
    bool is_mismatch;  // a part had got_bytes instead of what was expected
    uint64_t got_bytes;
    int32_t num_parts, max_parts, parts_begun, parts_done;
    MPI_Request* parts;
};

typedef struct {
    MPI_Comm comm;
    int32_t rank, num_ranks;
    bool finalize;  // MPI was initialised here
    bool has_thread;
    pthread_t thread;
    atomic_bool stop;
    pthread_mutex_t lock;  // around MPI calls and what follows, where there is a thread
    int32_t in_flight;
    MpiRequest* unmatched;  // receives whose message has not come (whole), oldest first
    MpiRequest* spare;
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

// --- requests --------------------------------------------------------------------------------------------
static MpiRequest* request_create(Mpi* mpi, size_t num_bytes) {
    size_t chunk = TRANSPORT_MPI_CHUNK_BYTES;
    int32_t num_parts = num_bytes <= chunk ? 1 : 1 + (int32_t)((num_bytes + chunk - 1) / chunk);
    MpiRequest* r = mpi->spare;
    if (r != NULL) {
        mpi->spare = r->next;
    } else {
        r = calloc(1, sizeof *r);
        if (r == NULL) { return NULL; }
    }
    if (num_parts > r->max_parts) {
        MPI_Request* parts = realloc(r->parts, (size_t)num_parts * sizeof *parts);
        if (parts == NULL) {
            r->next = mpi->spare;
            mpi->spare = r;
            return NULL;
        }
        r->parts = parts;
        r->max_parts = num_parts;
    }
    *r = (MpiRequest){.num_bytes = num_bytes,
                      .length = num_bytes,
                      .num_parts = num_parts,
                      .max_parts = r->max_parts,
                      .parts = r->parts};
    return r;
}

// Where part i lies, and its length.
static unsigned char* part_place(MpiRequest* r, int32_t i, int* num_bytes) {
    if (r->num_parts > 1 && i == 0) {
        *num_bytes = (int)sizeof r->length;
        return (unsigned char*)&r->length;
    }
    size_t begin = (size_t)(r->num_parts > 1 ? i - 1 : i) * TRANSPORT_MPI_CHUNK_BYTES;
    size_t rest = r->num_bytes - begin;
    *num_bytes = (int)(rest < TRANSPORT_MPI_CHUNK_BYTES ? rest : TRANSPORT_MPI_CHUNK_BYTES);
    return r->data + begin;
}

static int begin_send(const Mpi* mpi, MpiRequest* r) {
    for (int rc; r->parts_begun < r->num_parts; r->parts_begun++) {
        int num_bytes;
        unsigned char* place = part_place(r, r->parts_begun, &num_bytes);
        rc = MPI_Isend(place, num_bytes, MPI_BYTE, r->peer, r->tag, mpi->comm, &r->parts[r->parts_begun]);
        if (rc != MPI_SUCCESS) { return rc; }
    }
    return MPI_SUCCESS;
}

// Receive the parts that have come, in order. Only for the oldest unmatched receive of its peer and tag.
static int begin_receive(const Mpi* mpi, MpiRequest* r) {
    while (r->parts_begun < r->num_parts && !r->is_mismatch) {
        int has_come = 0, got_bytes = 0, num_bytes;
        MPI_Status status;
#ifdef DYNAPIPE_SIMULATED  // which has no MPI_Improbe
        int rc = MPI_Iprobe(r->peer, r->tag, mpi->comm, &has_come, &status);
#else
        MPI_Message message;
        int rc = MPI_Improbe(r->peer, r->tag, mpi->comm, &has_come, &message, &status);
#endif
        if (rc != MPI_SUCCESS || !has_come) { return rc; }
        unsigned char* place = part_place(r, r->parts_begun, &num_bytes);
        MPI_Get_count(&status, MPI_BYTE, &got_bytes);
        r->is_mismatch = got_bytes != num_bytes;
        r->got_bytes = (uint64_t)got_bytes;
        if (r->is_mismatch) { return MPI_SUCCESS; }
#ifdef DYNAPIPE_SIMULATED
        rc = MPI_Irecv(place, num_bytes, MPI_BYTE, r->peer, r->tag, mpi->comm, &r->parts[r->parts_begun]);
#else
        rc = MPI_Imrecv(place, num_bytes, MPI_BYTE, &message, &r->parts[r->parts_begun]);
#endif
        if (rc != MPI_SUCCESS) { return rc; }
        r->parts_begun++;
        if (r->num_parts == 1 || r->parts_begun > 1) { continue; }
        rc = MPI_Wait(&r->parts[0], MPI_STATUS_IGNORE);  // 8 bytes that are here already
        if (rc != MPI_SUCCESS) { return rc; }
        r->got_bytes = r->length;
        r->is_mismatch = r->length != r->num_bytes;
    }
    return MPI_SUCCESS;
}

static bool is_behind(const Mpi* mpi, const MpiRequest* r) {
    for (const MpiRequest* older = mpi->unmatched; older != r; older = older->next) {
        if (older->peer == r->peer && older->tag == r->tag) { return true; }
    }
    return false;
}

// Begin every unmatched receive with that peer and tag (-1: any) whose message has come.
static int match_receives(Mpi* mpi, int32_t peer, int32_t tag) {
    for (MpiRequest** link = &mpi->unmatched; *link != NULL;) {
        MpiRequest* r = *link;
        bool is_asked_for = peer < 0 || (r->peer == peer && r->tag == tag);
        if (is_asked_for && !is_behind(mpi, r)) {
            int rc = begin_receive(mpi, r);
            if (rc != MPI_SUCCESS) { return rc; }
        }
        if (r->parts_begun == r->num_parts) {
            *link = r->next;
        } else {
            link = &r->next;
        }
    }
    return MPI_SUCCESS;
}

static void* progress_main(void* arg) {
    Mpi* mpi = arg;
    while (!atomic_load(&mpi->stop)) {
        int any = 0;
        pthread_mutex_lock(&mpi->lock);
        if (mpi->in_flight > 0) {  // an error here comes back when the receive is tested
            match_receives(mpi, -1, -1);
            MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, mpi->comm, &any, MPI_STATUS_IGNORE);
        }
        pthread_mutex_unlock(&mpi->lock);
        nap(PROGRESS_NAP_NS);
    }
    return NULL;
}

static const char* verb(bool is_receive) {
    return is_receive ? "receive from" : "send to";
}

static Status post(Mpi* mpi, MpiRequest wanted, void** request) {
    if (wanted.peer < 0 || wanted.peer >= mpi->num_ranks || wanted.tag < 0) {
        return FAIL(STATUS_OUT_OF_RANGE, "mpi: rank %d, tag %d from rank %d: there are ranks 0..%d",
                    (int)wanted.peer, (int)wanted.tag, (int)mpi->rank, (int)mpi->num_ranks - 1);
    }
    enter(mpi);
    MpiRequest* r = request_create(mpi, wanted.num_bytes);
    leave(mpi);
    if (r == NULL) { return FAIL(STATUS_NO_MEMORY, "mpi: no memory for a request"); }
    r->is_receive = wanted.is_receive;
    r->peer = wanted.peer;
    r->tag = wanted.tag;
    r->data = wanted.data;
    int rc = MPI_SUCCESS;
    enter(mpi);
    mpi->in_flight++;
    if (r->is_receive) {
        MpiRequest** last = &mpi->unmatched;
        while (*last != NULL) { last = &(*last)->next; }
        *last = r;
    } else {
        rc = begin_send(mpi, r);
    }
    leave(mpi);
    *request = r;
    return rc == MPI_SUCCESS ? STATUS_OK : mpi_fail(mpi, rc, verb(r->is_receive), r->peer, r->tag);
}

static Status mpi_isend(void* ctx, int32_t peer, int32_t tag, const void* data, size_t num_bytes,
                        void** request) {
    // Of a send, the data is only read.
    MpiRequest r = {
        .peer = peer, .tag = tag, .data = (unsigned char*)(uintptr_t)data, .num_bytes = num_bytes};
    return post(ctx, r, request);
}

static Status mpi_irecv(void* ctx, int32_t peer, int32_t tag, void* data, size_t num_bytes, void** request) {
    MpiRequest r = {.is_receive = true, .peer = peer, .tag = tag, .data = data, .num_bytes = num_bytes};
    return post(ctx, r, request);
}

static Status test_parts(Mpi* mpi, MpiRequest* r) {
    int rc = MPI_SUCCESS, done = 1;
    if (r->parts_begun < r->num_parts) { rc = match_receives(mpi, r->peer, r->tag); }
    while (rc == MPI_SUCCESS && done && r->parts_done < r->parts_begun) {
        rc = MPI_Test(&r->parts[r->parts_done], &done, MPI_STATUS_IGNORE);
        if (rc == MPI_SUCCESS && done) { r->parts_done++; }
    }
    if (rc != MPI_SUCCESS) { return mpi_fail(mpi, rc, verb(r->is_receive), r->peer, r->tag); }
    if (r->is_mismatch) {
        return FAIL(STATUS_MISMATCH, "mpi: rank %d expects %zu bytes, tag %d, but rank %d sends %llu",
                    (int)mpi->rank, r->num_bytes, (int)r->tag, (int)r->peer,
                    (unsigned long long)r->got_bytes);
    }
    return STATUS_OK;
}

static Status mpi_test(void* ctx, void* request, int* done) {
    Mpi* mpi = ctx;
    MpiRequest* r = request;
    enter(mpi);
    Status status = test_parts(mpi, r);
    *done = status == STATUS_OK && r->parts_done == r->num_parts;
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
    Mpi* mpi = ctx;
    if (strncmp(why, "rank ", 5) != 0) { fprintf(stderr, "rank %d: ", (int)mpi->rank); }
    fprintf(stderr, "%s\n", why);
    fflush(NULL);
    if (getenv("OMPI_COMM_WORLD_SIZE") != NULL) { _exit(1); }
    enter(mpi);
    MPI_Abort(mpi->comm, 1);
}

// --- opening and closing ---------------------------------------------------------------------------------
static Status mpi_close(void* ctx) {
    Mpi* mpi = ctx;
    if (mpi->has_thread) {
        atomic_store(&mpi->stop, true);
        pthread_join(mpi->thread, NULL);
        pthread_mutex_destroy(&mpi->lock);
    }
    int32_t rank = mpi->rank, in_flight = mpi->in_flight;
    while (mpi->spare != NULL) {
        MpiRequest* next = mpi->spare->next;
        free(mpi->spare->parts);
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
    if (SIMULATED) { return STATUS_OK; }  // messages move by themselves there
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

static Status check_tags(MPI_Comm comm) {
    const int* largest = NULL;
    int has_it = 0;
    MPI_Comm_get_attr(comm, MPI_TAG_UB, &largest, &has_it);
    if (has_it && *largest >= 2 * TRANSPORT_TAG_END - 1) { return STATUS_OK; }
    return FAIL(STATUS_COMM, "mpi: tags up to %d, %d are needed ---> use another MPI, such as Open MPI",
                has_it ? *largest : 32767, 2 * TRANSPORT_TAG_END - 1);
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
    Status status = check_tags(mpi->comm);
    mpi->finalize = !initialized;
    mpi->rank = rank;
    mpi->num_ranks = num_ranks;
    if (status == STATUS_OK) { status = start_progress(mpi); }
    if (status != STATUS_OK) {
        MPI_Comm_free(&mpi->comm);
        free(mpi);
        return status;
    }
    *out = (Transport){.api = &mpi_api, .ctx = mpi, .rank = rank, .num_ranks = num_ranks};
    return STATUS_OK;
}
