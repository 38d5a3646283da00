// Laws of the staging rings: arrays arrive as they were at ops_stage(), whatever the caller does to them next
// and however far the card is behind; they live until the second ops_stage_begin(); losses are with the
// caller after ops_sync(). Each law under several orders of the emulator's streams (EMU_SEED; on a card:
// repeats).
#include "../ops_test.h"

#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../llmc/cuda/staging.h"

enum { NUM_ORDERS = 6, NUM_STAGED = 3, MAX_LEN = 900, NUM_JOBS = 120, RING_BYTES = 32 << 10 };

typedef struct {
    const int32_t* device[NUM_STAGED];
    int len[NUM_STAGED];
} Job;

static int32_t value_of(int job, int array, int i) {
    return 1 + i + 1000 * array + 10000 * job;
}

// What an operation on the compute stream sees, kept for later: behind `busy`, which keeps the card busy.
static void look(int32_t* to, const int32_t* from, int len, char* busy, size_t busy_bytes) {
    cudaStream_t stream = (cudaStream_t)ops_stream(ops);
    CHECK(cudaMemsetAsync(busy, 1, busy_bytes, stream) == cudaSuccess);
    CHECK(cudaMemcpyAsync(to, from, (size_t)len * sizeof *to, cudaMemcpyDeviceToDevice, stream) ==
          cudaSuccess);
}

// Stages a job's arrays from one buffer, overwritten after each.
static Job stage_job(int job, int max_len) {
    static int32_t buffer[1 << 20];
    Job now = {.len = {0}};
    ops_stage_begin(ops);
    for (int k = 0; k < NUM_STAGED; k++) {
        now.len[k] = rng_between(&test_rng, 0, max_len);
        for (int i = 0; i < now.len[k]; i++) { buffer[i] = value_of(job, k, i); }
        now.device[k] = ops_stage(ops, buffer, (size_t)now.len[k]);
        memset(buffer, 0x77, (size_t)now.len[k] * sizeof *buffer);
    }
    return now;
}

// Jobs look at their own arrays, and at those of the job before, until the next begins.
static void run_jobs(int num_jobs, int max_len, size_t busy_bytes) {
    const size_t max_values = (size_t)num_jobs * NUM_STAGED * 2 * (size_t)max_len;
    int32_t* seen = ops_alloc(ops, max_values * sizeof *seen, "a test");
    char* busy = ops_alloc(ops, busy_bytes, "a test");
    Job* jobs = calloc((size_t)num_jobs, sizeof *jobs);
    int32_t* host = malloc(max_values * sizeof *host);
    size_t used = 0;
    for (int j = 0; j < num_jobs; j++) {
        jobs[j] = stage_job(j, max_len);
        for (int of = j > 0 ? j - 1 : 0; of <= j; of++) {
            for (int k = 0; k < NUM_STAGED; k++) {
                look(seen + used, jobs[of].device[k], jobs[of].len[k], busy, busy_bytes);
                used += (size_t)jobs[of].len[k];
            }
        }
    }
    ops_download(ops, host, seen, used * sizeof *host);
    size_t at = 0;
    int num_wrong = 0;
    for (int j = 0; j < num_jobs; j++) {
        for (int of = j > 0 ? j - 1 : 0; of <= j; of++) {
            for (int k = 0; k < NUM_STAGED; k++) {
                for (int i = 0; i < jobs[of].len[k]; i++) { num_wrong += host[at++] != value_of(of, k, i); }
            }
        }
    }
    CHECK_EQ(num_wrong, 0);
    free(host);
    free(jobs);
    ops_release(ops, busy);
    ops_release(ops, seen);
}

// About 8 jobs fit; 120 are queued, faster than the card works.
static void arrays_arrive_while_the_ring_goes_round(void) {
    staging_resize(ops, RING_BYTES);
    run_jobs(NUM_JOBS, MAX_LEN, 1 << 16);
    CHECK_EQ(staging_num_misfits(ops), 0);
}

static void arrays_arrive_from_the_default_ring(void) {
    staging_resize(ops, STAGING_RING_BYTES);
    run_jobs(300, 40, 1 << 12);  // more jobs than events
    CHECK_EQ(staging_num_misfits(ops), 0);
}

// Arrays that are larger than the ring, or than what two jobs leave of it.
static void jobs_larger_than_the_ring_are_served(void) {
    staging_resize(ops, 4096);
    run_jobs(30, 2000, 1 << 12);
    CHECK(staging_num_misfits(ops) > 10);
    staging_resize(ops, RING_BYTES);
}

// While there is room, the host does not wait: what was queued before 30 jobs is not done when they are
// queued.
static void the_host_runs_ahead(void) {
    const bool is_emulator = strstr(ops_device_name(ops), "emulat") != NULL;
    const size_t busy_bytes = (size_t)(is_emulator ? 16 << 10 : 256 << 20);  // on a card 0.1 ms each
    char* busy = ops_alloc(ops, busy_bytes, "a test");
    cudaStream_t stream = (cudaStream_t)ops_stream(ops);
    cudaEvent_t done;
    float losses[30];
    CHECK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming) == cudaSuccess);
    for (int i = 0; i < 200; i++) { CHECK(cudaMemsetAsync(busy, i, busy_bytes, stream) == cudaSuccess); }
    CHECK(cudaEventRecord(done, stream) == cudaSuccess);
    for (int j = 0; j < 30; j++) {
        (void)stage_job(j, 40);
        ops_deliver(ops, losses + j, ops_results(ops, losses + j, 1), 1);
    }
    CHECK_EQ(cudaEventQuery(done), cudaErrorNotReady);
    ops_sync(ops);
    CHECK(cudaEventDestroy(done) == cudaSuccess);
    ops_release(ops, busy);
}

// Losses of many microbatches, each computed (copied) from what the job staged, with one ops_sync() at the
// end.
static void deliver_jobs(int num_jobs, int values_per_job) {
    float* losses = calloc((size_t)(num_jobs * values_per_job), sizeof *losses);
    float* source = calloc((size_t)values_per_job, sizeof *source);
    cudaStream_t stream = (cudaStream_t)ops_stream(ops);
    for (int j = 0; j < num_jobs; j++) {
        ops_stage_begin(ops);
        for (int i = 0; i < values_per_job; i++) { source[i] = (float)(j * values_per_job + i + 1); }
        const int32_t* staged = ops_stage(ops, (const int32_t*)source, (size_t)values_per_job);
        float* results = ops_results(ops, losses + j * values_per_job, (size_t)values_per_job);
        CHECK(cudaMemcpyAsync(results, staged, (size_t)values_per_job * sizeof *results,
                              cudaMemcpyDeviceToDevice, stream) == cudaSuccess);
        ops_deliver(ops, losses + j * values_per_job, results, (size_t)values_per_job);
    }
    ops_sync(ops);
    int num_wrong = 0;
    for (int i = 0; i < num_jobs * values_per_job; i++) { num_wrong += losses[i] != (float)(i + 1); }
    CHECK_EQ(num_wrong, 0);
    free(source);
    free(losses);
}

static void losses_arrive(void) {
    staging_resize(ops, RING_BYTES);
    deliver_jobs(100, 500);
    staging_resize(ops, STAGING_RING_BYTES);
    deliver_jobs(200, 3);
    deliver_jobs(1, 100000);
}

// More deliveries in one job than the list holds.
static void many_losses_of_one_job_arrive(void) {
    enum { NUM = 9000 };
    float* losses = calloc(NUM, sizeof *losses);
    static Case c;
    Array* values = in_f(&c, NUM, 1.0);
    case_upload(&c);
    ops_stage_begin(ops);
    for (int i = 0; i < NUM; i++) { ops_deliver(ops, losses + i, (float*)values->device + i, 1); }
    ops_sync(ops);
    CHECK(memcmp(losses, values->host, NUM * sizeof *losses) == 0);
    CHECK(case_release(&c));
    free(losses);
}

// Up and down again, around the size of the pinned pieces.
static void large_arrays_travel_in_pieces(void) {
    const size_t piece = (size_t)8 << 20, sizes[] = {1, piece - 1, piece, piece + 3, 3 * piece + 12345};
    for (int k = 0; k < 5; k++) {
        unsigned char *there = malloc(sizes[k]), *back = calloc(1, sizes[k]);
        for (size_t i = 0; i < sizes[k]; i++) { there[i] = (unsigned char)(i * 7 + i / 4093 + (size_t)k); }
        void* device = ops_alloc(ops, sizes[k], "a test");
        ops_upload(ops, device, there, sizes[k]);
        ops_download(ops, back, device, sizes[k]);
        CHECK(memcmp(there, back, sizes[k]) == 0);
        ops_zero(ops, device, sizes[k] - 1);  // queued behind, seen by the download
        ops_download(ops, back, device, sizes[k]);
        CHECK(back[0] == (sizes[k] > 1 ? 0 : there[0]) && back[sizes[k] - 1] == there[sizes[k] - 1]);
        ops_release(ops, device);
        free(back);
        free(there);
    }
}

static void run_all(void) {
    RUN(arrays_arrive_while_the_ring_goes_round);
    RUN(arrays_arrive_from_the_default_ring);
    RUN(the_host_runs_ahead);
    RUN(jobs_larger_than_the_ring_are_served);
    RUN(losses_arrive);
    RUN(many_losses_of_one_job_arrive);
    RUN(large_arrays_travel_in_pieces);
}

static int num_args;
static char** args;

// All laws, in a process per order: the emulator reads EMU_SEED when it begins.
static void laws_hold_whatever_the_order_of_streams(void) {
    for (int order = 1; order < NUM_ORDERS; order++) {
        int status = 0;
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            char text[16];
            snprintf(text, sizeof text, "%d", order);
            setenv("EMU_SEED", text, 1);
            if (freopen("/dev/null", "w", stdout) == NULL) { exit(1); }
            ops_test_begin(num_args, args);
            run_all();
            exit(ops_test_end());
        }
        const bool ended = waitpid(child, &status, 0) == child;
        if (!ended || status != 0) { printf("EMU_SEED=%d %s fails\n", order, args[0]); }
        CHECK(ended && status == 0);
    }
}

int main(int argc, char** argv) {
    num_args = argc, args = argv;
    RUN(laws_hold_whatever_the_order_of_streams);  // before this process opens the card
    ops_test_begin(argc, argv);
    run_all();
    return ops_test_end();
}
