#include "session.h"

#include <stdlib.h>
#include <string.h>

#include "../../util/program.h"

// How long a rank that gives up waits for the others to do the same.
#define END_TOGETHER_NS INT64_C(2000000000)

const char* dynapipe_error(void) {
    return status_message();
}

static Status place_ranks(Dynapipe* dp) {
    int32_t num_ranks = dp->transport.num_ranks;
    int32_t P = dp->options.stages, R = dp->options.replicas;
    if (R == 0) { R = num_ranks / P > 0 ? num_ranks / P : 1; }
    if (P * R != num_ranks) {
        return FAIL(STATUS_BAD_OPTION,
                    "--stages %d x --replicas %d are %d ranks, but %d were started ---> mpirun -np %d, or "
                    "other numbers",
                    P, R, P * R, num_ranks, P * R);
    }
    dp->num_stages = P;
    dp->num_replicas = R;
    dp->stage = dp->transport.rank % P;
    dp->replica = dp->transport.rank / P;
    return STATUS_OK;
}

// `ranks` has room for all.
static Status group_ranks(Dynapipe* dp, int32_t* ranks) {
    int32_t P = dp->num_stages, R = dp->num_replicas;
    int64_t timeout_ns = (int64_t)dp->options.comm_timeout_s * 1000000000;
    for (int32_t r = 0; r < R; r++) { ranks[r] = r * P + dp->stage; }
    TRY(collective_init(&dp->replicas, &dp->transport, ranks, R, timeout_ns));
    for (int32_t s = 0; s < P; s++) { ranks[s] = dp->replica * P + s; }
    return collective_init(&dp->pipeline, &dp->transport, ranks, P, timeout_ns);
}

// Hosts may have different cores or numbers of ranks, but every rank must make the same plan: with what the
// largest number of threads costs, which is also the one that needs the most scratch memory.
static Status agree_on_threads(Dynapipe* dp) {
    int32_t num_ranks = dp->transport.num_ranks;
    double* threads = calloc((size_t)num_ranks, sizeof *threads);
    if (threads == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks); }
    dp->num_threads = local_ranks_threads(dp->options.threads, dp->transport.num_ranks);
    threads[dp->transport.rank] = dp->num_threads;
    Status status = collective_share(&dp->world, threads, sizeof *threads);
    for (int32_t r = 0; r < num_ranks; r++) {
        if (threads[r] > dp->plan_threads) { dp->plan_threads = (int32_t)threads[r]; }
    }
    free(threads);
    return status;
}

static Status open_transport(Dynapipe* dp, int* argc, char*** argv) {
#ifdef DYNAPIPE_MPI
    TRY(transport_mpi_open(&dp->transport, argc, argv));
#else
    (void)argc;
    (void)argv;
    TRY(transport_loopback_open(&dp->transport, 1));
#endif
    return STATUS_OK;
}

static Status session_open(Dynapipe* dp, int* argc, char*** argv, const char* const* own_options) {
    dp->command = session_run_command(*argc, *argv);
    if (dp->transport.api == NULL) { TRY(open_transport(dp, argc, argv)); }
    int32_t num_ranks = dp->transport.num_ranks;
    int32_t* ranks = malloc(sizeof(int32_t) * (size_t)num_ranks);
    if (ranks == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks); }
    for (int32_t i = 0; i < num_ranks; i++) { ranks[i] = i; }
    Status status = collective_init(&dp->world, &dp->transport, ranks, num_ranks, END_TOGETHER_NS);
    if (status == STATUS_OK) { status = session_options_take(&dp->options, argc, *argv, own_options); }
    session_refit_init(&dp->refit, dp->options.refit == REFIT_AUTO);
    if (status == STATUS_OK) { status = session_resplit_parse(&dp->resplit, dp->options.resplit); }
    dp->world.timeout_ns = (int64_t)dp->options.comm_timeout_s * 1000000000;
    if (status == STATUS_OK) { status = session_hosts_gather(dp); }
    if (status == STATUS_OK) { status = session_same_options(dp, *argc, *argv); }
    if (status == STATUS_OK && dp->options.check) {
        Transport inner = dp->transport;
        status = transport_check_open(&dp->transport, inner);
    }
    if (status == STATUS_OK) { status = place_ranks(dp); }
    if (status == STATUS_OK) { status = group_ranks(dp, ranks); }
    free(ranks);
    if (status == STATUS_OK) { status = agree_on_threads(dp); }
    if (status == STATUS_OK) { status = host_cores_find(&dp->cores, &dp->world, dp->num_threads); }
    if (status == STATUS_OK) { status = session_device_find(dp); }
    return status == STATUS_OK ? session_report_open(dp) : status;
}

Status session_open_on(Dynapipe** out, Transport* transport, int* argc, char*** argv) {
    Dynapipe* dp = (Dynapipe*)calloc(1, sizeof(Dynapipe));
    if (dp == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a session"); }
    *out = dp;
    dp->open_ns = clock_now_ns();
    dp->transport = *transport;
    *transport = (Transport){0};
    return session_open(dp, argc, argv, NULL);
}

int dynapipe_open_as(int32_t header_interface, Dynapipe** out, int* argc, char*** argv,
                     const char* const* own_options) {
    *out = NULL;
    Dynapipe* dp = calloc(1, sizeof(Dynapipe));
    if (dp == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a session"); }
    dp->open_ns = clock_now_ns();
    Status status = session_open(dp, argc, argv, own_options);
    if (status == STATUS_OK && header_interface != DYNAPIPE_INTERFACE) {
        status = FAIL(STATUS_MISMATCH,
                      "the program was compiled with interface %d of dynapipe.h, the plugin's library is of "
                      "interface %d ---> compile both from the same dynapipe_plugin/ (make clean, then make)",
                      header_interface, DYNAPIPE_INTERFACE);
    }
    *out = dp;  // also after a failure: the caller asks it for its rank, so that one rank alone complains
    return (int)status;
}

void dynapipe_close(Dynapipe* dp) {
    if (dp == NULL) { return; }
    session_plan_stop(dp);
    session_report_close(dp);
    session_verify_stop(dp);
    loader_close(dp->train);
    loader_close(dp->val);
    executor_free(dp->executor);
    session_refit_free(&dp->refit);
    session_resplit_free(&dp->resplit);
    session_release(dp);
    session_device_close(dp);
    free(dp->position);
    free(dp->task_names);
    free(dp->val_task);
    free(dp->task_sum);
    free(dp->rank_stats);
    session_machine_free(dp);
    arena_free(&dp->eval_arena);
    free(dp->tied_given);
    tied_groups_free(&dp->tied);
    arena_free(&dp->account_arena);
    host_cores_free(&dp->cores);
    collective_free(&dp->pipeline);
    collective_free(&dp->replicas);
    collective_free(&dp->world);
    free(dp->hosts);
    free(dp->command);
    transport_close(&dp->transport);
    free(dp);
}

// Wrong options and bad files are found by every rank alike: then one says so and all leave in order. A rank
// that is alone with its trouble takes the others down.
void dynapipe_abort(Dynapipe* dp, const char* why) {
    if (dp == NULL || dp->transport.api == NULL) {
        fprintf(stderr, "error: %s\n", why);
        return;
    }
    char message[1024];
    Status failed = status_last();
    snprintf(message, sizeof message, "error: %s", why);  // `why` may be this thread's last message
    dp->world.timeout_ns = END_TOGETHER_NS;
    if (dp->world.num_ranks == 0 || collective_barrier(&dp->world) == STATUS_OK) {
        if (dp->transport.rank == 0) { fprintf(stderr, "%s\n", message); }
        transport_close(&dp->transport);
        return;
    }
    if (failed == STATUS_COMM) { session_roll_call(dp); }
    if (dp->transport.api->abort != NULL) { dp->transport.api->abort(dp->transport.ctx, message); }
}

int dynapipe_exit_status(int error) {
    return error == STATUS_OK                                        ? EXIT_SUCCESS
           : error == STATUS_NO_DEVICE || error == STATUS_BAD_OPTION ? 2
                                                                     : EXIT_FAILURE;
}

int dynapipe_use_stream(Dynapipe* dp, void* stream) {
    dp->stream = stream;
    return (int)session_device_open(dp, stream);
}

void dynapipe_print_options(FILE* out) {
    session_options_print(out);
}

const char* dynapipe_option(const Dynapipe* dp, const char* name) {
    return session_options_string(&dp->options, name);
}

int32_t dynapipe_rank(const Dynapipe* dp) {
    return dp->transport.rank;
}

int32_t dynapipe_num_ranks(const Dynapipe* dp) {
    return dp->transport.num_ranks;
}

int32_t dynapipe_stage(const Dynapipe* dp) {
    return dp->stage;
}

int32_t dynapipe_num_stages(const Dynapipe* dp) {
    return dp->num_stages;
}

int32_t dynapipe_replica(const Dynapipe* dp) {
    return dp->replica;
}

int32_t dynapipe_num_replicas(const Dynapipe* dp) {
    return dp->num_replicas;
}

uint32_t dynapipe_seed(const Dynapipe* dp) {
    return (uint32_t)dp->options.seed;
}

int32_t dynapipe_threads(const Dynapipe* dp) {
    return dp->num_threads;
}

int dynapipe_sum(Dynapipe* dp, double* values, int32_t num_values) {
    return (int)collective_all_reduce_sum(&dp->world, values, num_values);
}
