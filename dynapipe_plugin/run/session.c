// session.c -- open and close, ranks and hosts, ending together and early, checks of what a program hands in.
#include "session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "transport.h"
#include "../../util/program.h"

#ifdef DYNAPIPE_MPI
#include <mpi.h>
#endif

void dynapipe_print_version(FILE* out) {
#ifdef DYNAPIPE_MPI
    char name[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int num_chars = 0;
    MPI_Get_library_version(name, &num_chars);  // also before MPI_Init
    fprintf(out, "MPI: %.*s\n", (int)strcspn(name, ",\n"), name);
#else
    fprintf(out, "MPI: none, one process\n");
#endif
    session_device_print_version(out);
}

// --- where values live: in a CPU build, this process -------------------------------------------------------

#ifndef DYNAPIPE_CUDA

Status session_device_find(Dynapipe* dp) {
    if (dp->options.transport != TRANSPORT_CHOICE_NCCL) { return STATUS_OK; }
    return FAIL(STATUS_BAD_OPTION,
                "--transport nccl: this program computes on CPUs ---> leave it out, or make train_gpt2cu");
}

Status session_device_open(Dynapipe* dp, void* stream) {
    (void)stream;
    dp->links = &dp->transport;
    return STATUS_OK;
}

void session_device_print_version(FILE* out) {
    (void)out;
}

Status session_device_limit(Dynapipe* dp) {
    (void)dp;
    return STATUS_OK;
}

Status session_sums_open(Dynapipe* dp) {
    return sums_host_open(&dp->sums, &dp->replicas, &dp->tied, dp->device, NULL, 0);
}

int64_t session_device_used_bytes(const Dynapipe* dp) {
    (void)dp;
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (int64_t)usage.ru_maxrss * 1024 : 0;
}

void session_device_abort(Dynapipe* dp) {
    (void)dp;
}

void session_device_close(Dynapipe* dp) {
    sums_close(&dp->sums);
}
#endif

Status session_copy(Device device, void* to, const void* from, size_t num_bytes) {
    if (device.api != NULL) { return device.api->copy(device.ctx, to, from, (int64_t)num_bytes); }
    memcpy(to, from, num_bytes);
    return STATUS_OK;
}

// --- the roll call -----------------------------------------------------------------------------------------

enum { MOST_NAMED = 8 };
#define ROLL_NS INT64_C(2000000000)

// After STATUS_COMM, before the end: every rank that still runs calls rank 0, which prints who does not.
// Pending requests and their memory are left: the process ends.
static void roll_call(const Dynapipe* dp) {
    const Transport* t = &dp->transport;
    const bool listens = t->rank == 0;
    const int32_t num_requests = listens ? t->num_ranks : 1;
    void** requests = (void**)calloc((size_t)t->num_ranks, sizeof *requests);  // of rank r; NULL: done
    char *calls = (char*)calloc((size_t)t->num_ranks, 1), text[1024] = "";
    int32_t num_missing = 0, num_open = 0;
    if (requests == NULL || calls == NULL) { return; }
    for (int32_t r = listens; r < num_requests; r++) {
        Status status = listens ? t->api->irecv(t->ctx, r, TAG_ROLL, &calls[r], 1, &requests[r])
                                : t->api->isend(t->ctx, 0, TAG_ROLL, "!", 1, &requests[0]);
        num_open += status == STATUS_OK;
        if (status != STATUS_OK) { requests[r] = NULL; }
    }
    // Ranks give up at different times, within about a job. The first to end ends all.
    int64_t end_ns = clock_now_ns() + (listens ? 1 : 2) * ROLL_NS + dp->options.comm_timeout_s * ROLL_NS / 40;
    while (clock_now_ns() < end_ns && (num_open > 0 || !listens)) {
        for (int32_t r = 0; r < num_requests; r++) {
            int done = 0;
            if (requests[r] == NULL) { continue; }
            if (t->api->test(t->ctx, requests[r], &done) == STATUS_OK && !done) { continue; }
            requests[r] = NULL;
            num_open--;
        }
        usleep(1000);
    }
    for (int32_t r = 1; r < t->num_ranks && listens; r++) {
        if (calls[r] != '\0' || num_missing++ >= MOST_NAMED) { continue; }
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%srank %s", used > 0 ? ", " : "", TRANSPORT_RANK(t, r));
    }
    if (num_missing == 0) { return; }
    fprintf(stderr, "no message from %s", text);
    if (num_missing > MOST_NAMED) { fprintf(stderr, " and %d more", num_missing - MOST_NAMED); }
    fprintf(stderr,
            " ---> check that its host and network are up, and what its ranks do; a job longer than "
            "--comm-timeout %d looks the same\n",
            dp->options.comm_timeout_s);
    fflush(stderr);
}

// --- ending early --------------------------------------------------------------------------------------
// Ranks agree that the run ends early: by a signal to any of them, or by the time limit.

void dynapipe_watch_signals(Dynapipe* dp) {
    stop_signal_watch();
    if (dp != NULL) { dp->watches_signals = true; }
}

int32_t dynapipe_stop_signal(const Dynapipe* dp) {
    return dp->stop_signal;
}

double dynapipe_seconds(const Dynapipe* dp) {
    return dp->seconds;
}

double session_stop_mine(const Dynapipe* dp) {
    return dp->watches_signals ? stop_signal_seen() : 0;
}

// Of different signals, the smallest number: SIGINT (2), which sets the exit status, before the others.
void session_stop_take(Dynapipe* dp, const double* of_ranks, int32_t stride) {
    for (int32_t r = 0; r < dp->transport.num_ranks; r++) {
        int32_t number = (int32_t)of_ranks[(size_t)r * (size_t)stride];
        if (number != 0 && (dp->stop_signal == 0 || number < dp->stop_signal)) { dp->stop_signal = number; }
    }
}

Status session_most(Dynapipe* dp, double* value) {
    const void* of_ranks;
    TRY(collective_each(&dp->world, value, sizeof *value, &of_ranks));
    for (int32_t r = 0; r < dp->transport.num_ranks; r++) {
        *value = fmax(*value, ((const double*)of_ranks)[r]);
    }
    return STATUS_OK;
}

Status session_stop_agree(Dynapipe* dp) {
    if (!dp->watches_signals || dp->stop_signal != 0) { return STATUS_OK; }
    double seen = session_stop_mine(dp), least = seen != 0 ? -seen : -INFINITY;
    TRY(session_most(dp, &least));
    if (least > -INFINITY) { dp->stop_signal = (int32_t)-least; }
    return STATUS_OK;
}

// --- what a program hands in -------------------------------------------------------------------------------

// Numbers or functions, 8 bytes each.
Status interface_check_reserved(const char* name, const void* members, size_t num_bytes) {
    for (size_t i = 0; i < num_bytes / sizeof(uint64_t); i++) {
        uint64_t word;
        memcpy(&word, (const char*)members + i * sizeof word, sizeof word);
        if (word == 0) { continue; }
        return FAIL(
            STATUS_OUT_OF_RANGE,
            "%s[%zu] is set, which means nothing to this plugin ---> start the struct as zeros (memset, "
            "{0}); is dynapipe.h newer than the library? then compile both from one copy",
            name, i);
    }
    return STATUS_OK;
}

Status interface_check_model(const DynapipeModel_v1* api) {
    if (api == NULL) {
        return FAIL(STATUS_OUT_OF_RANGE, "no table of functions (api) ---> a DynapipeModel_v1");
    }
    const char* missing = api->name == NULL              ? "name"
                          : api->acts_bytes == NULL      ? "acts_bytes"
                          : api->scratch_bytes == NULL   ? "scratch_bytes"
                          : api->boundary_bytes == NULL  ? "boundary_bytes"
                          : api->forward == NULL         ? "forward"
                          : api->backward_inputs == NULL ? "backward_inputs"
                          : api->zero_gradients == NULL  ? "zero_gradients"
                                                         : NULL;
    if (missing != NULL) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "the model %s has no %s ---> of DynapipeModel_v1 only backward_weights, finish, and what "
                    "generation needs may be NULL",
                    api->name != NULL ? api->name : "without a name", missing);
    }
    return CHECK_RESERVED(DynapipeModel_v1, reserved, api);
}

Status interface_check_params(const DynapipeParams_v1* params, bool has_values) {
    const int64_t num_params = params != NULL ? params->num_params : 0;
    if (params == NULL || num_params < 0 ||
        (has_values && num_params > 0 && (params->params == NULL || params->grads == NULL))) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "%lld parameters, but no array of them or of their gradients ---> "
                    "DynapipeParams_v1.params and .grads",
                    (long long)num_params);
    }
    const int32_t types[] = {params->param_type, params->grad_type};
    for (int i = 0; i < 2; i++) {
        if (types[i] >= DYNAPIPE_FLOAT32 && types[i] <= DYNAPIPE_FLOAT16) { continue; }
        return FAIL(STATUS_OUT_OF_RANGE,
                    "parameters of type %d, gradients of type %d ---> DYNAPIPE_FLOAT32 (%d), "
                    "DYNAPIPE_BFLOAT16 (%d) or DYNAPIPE_FLOAT16 (%d)",
                    types[0], types[1], DYNAPIPE_FLOAT32, DYNAPIPE_BFLOAT16, DYNAPIPE_FLOAT16);
    }
    if (params->num_tied < 0 || (params->num_tied > 0 && params->tied == NULL)) {
        return FAIL(STATUS_OUT_OF_RANGE, "%d tied groups, but no list of them ---> DynapipeParams_v1.tied",
                    params->num_tied);
    }
    return CHECK_RESERVED(DynapipeParams_v1, reserved, params);
}

Status interface_check_blocks(const DynapipeBlocks_v1* blocks) {
    if (blocks->make == NULL || blocks->drop == NULL) {
        return FAIL(STATUS_OUT_OF_RANGE, "DynapipeBlocks_v1: %s is NULL ---> only update and why may be",
                    blocks->make == NULL ? "make" : "drop");
    }
    TRY(CHECK_RESERVED(DynapipeBlocks_v1, reserved, blocks));
    TRY(CHECK_RESERVED(DynapipeBlocks_v1, reserved_numbers, blocks));
    TRY(CHECK_RESERVED(DynapipeShapes_v1, reserved, &blocks->shapes));
    const int32_t num[] = {blocks->layer_blocks, blocks->dec_layer_blocks};
    if (num[0] < 0 || num[0] > CHAIN_MAX_BLOCKS || num[1] < 0 || num[1] > CHAIN_MAX_BLOCKS) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "DynapipeBlocks_v1: layer_blocks %d, dec_layer_blocks %d ---> a layer is 1 to %d blocks "
                    "(0: 1)",
                    num[0], num[1], CHAIN_MAX_BLOCKS);
    }
    const int32_t num_last = num[blocks->num_dec_layers > 0];
    if (blocks->last_in_rows != 0 &&
        (blocks->last_in_rows != 1 || num_last < 2 || blocks->shapes.head_has_layer)) {
        return FAIL(
            STATUS_OUT_OF_RANGE,
            "DynapipeBlocks_v1: last_in_rows %lld, layers of %d blocks, head_has_layer %d ---> 1 where a "
            "layer has several blocks and the head may be a range alone, else 0",
            (long long)blocks->last_in_rows, num_last, blocks->shapes.head_has_layer);
    }
    return interface_check_model(blocks->api);
}

// --- open and close ------------------------------------------------------------------------------------

// How long a rank that gives up waits for the others to give up too.
#define END_TOGETHER_NS INT64_C(2000000000)

const char* dynapipe_error(void) {
    return status_message();
}

static Status find_hosts(Dynapipe* dp) {
    const int32_t num_ranks = dp->transport.num_ranks;
    dp->hosts = (char(*)[TRANSPORT_HOST_CHARS])calloc((size_t)num_ranks, sizeof *dp->hosts);
    if (dp->hosts == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d hosts", num_ranks); }
    char* mine = dp->hosts[dp->transport.rank];
    if (gethostname(mine, TRANSPORT_HOST_CHARS - 1) != 0) { snprintf(mine, TRANSPORT_HOST_CHARS, "?"); }
    TRY(collective_share(&dp->world, dp->hosts, sizeof *dp->hosts));
    for (int32_t r = 1; r < num_ranks; r++) {
        if (strcmp(dp->hosts[r], dp->hosts[0]) != 0) { dp->transport.hosts = dp->hosts; }
    }
    return STATUS_OK;
}

void session_set_stages(Dynapipe* dp, int32_t num_stages) {
    dp->num_stages = num_stages;
    dp->num_replicas = dp->transport.num_ranks / num_stages;
    dp->stage = dp->transport.rank % num_stages;
    dp->replica = dp->transport.rank / num_stages;
}

// Where the number of stages is chosen, which needs the model's costs, there is one until then.
static Status place_ranks(Dynapipe* dp) {
    const int32_t num_ranks = dp->transport.num_ranks, R = dp->options.replicas;
    int32_t* P = &dp->options.num_stages;
    if (*P == 0 && R > 0 && num_ranks % R != 0) {
        return FAIL(STATUS_BAD_OPTION,
                    "--replicas %d: does not divide %d ranks ---> mpirun -np %d, or others", R, num_ranks, R);
    }
    if (*P == 0 && R > 0) { *P = num_ranks / R; }
    if (*P == 0 && num_ranks == 1) { *P = 1; }
    const char* given = session_options_of_stages(&dp->options);
    if (*P == 0 && given != NULL) {
        return FAIL(STATUS_BAD_OPTION, "%s: for how many stages? ---> --stages P", given);
    }
    session_set_stages(dp, *P > 0 ? *P : 1);
    const int32_t wanted = R > 0 ? R : dp->num_replicas > 0 ? dp->num_replicas : 1;
    if (dp->num_stages * wanted == num_ranks) { return STATUS_OK; }
    return FAIL(STATUS_BAD_OPTION,
                "--stages %d x --replicas %d are %d ranks, but %d were started ---> mpirun -np %d, or other "
                "numbers",
                dp->num_stages, wanted, dp->num_stages * wanted, num_ranks, dp->num_stages * wanted);
}

// The n ranks first, first + step, ...
static Status group_ranks(Collective* out, Dynapipe* dp, int32_t first, int32_t step, int32_t n) {
    int32_t* ranks = (int32_t*)malloc(sizeof *ranks * (size_t)n);
    if (ranks == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", n); }
    for (int32_t i = 0; i < n; i++) { ranks[i] = first + i * step; }
    Status status = collective_init(out, &dp->transport, ranks, n, dp->world.timeout_ns);
    free(ranks);
    return status;
}

Status session_group_ranks(Dynapipe* dp) {
    collective_free(&dp->replicas);
    collective_free(&dp->pipeline);
    TRY(group_ranks(&dp->replicas, dp, dp->stage, dp->num_stages, dp->num_replicas));
    return group_ranks(&dp->pipeline, dp, dp->replica * dp->num_stages, 1, dp->num_stages);
}

// The launcher started several processes, but each is alone.
static Status check_alone(void) {
    static const char* const launchers[][2] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                               {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"},
                                               {"PMI_SIZE", "PMI_RANK"},
                                               {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}};
    const char *started = NULL, *rank = NULL;
    for (int i = 0; i < 4 && started == NULL; i++) {  // the innermost
        started = getenv(launchers[i][0]);
        rank = getenv(launchers[i][1]);
    }
    if (started == NULL || atoi(started) < 2) { return STATUS_OK; }
    // rank 0 prints: mpirun ends all at the first exit
    for (unsigned left_s = rank != NULL && atoi(rank) > 0 ? 5 : 0; left_s > 0;) { left_s = sleep(left_s); }
#ifdef DYNAPIPE_MPI
    return FAIL(STATUS_BAD_OPTION,
                "%d processes were started, but by another MPI than this program's: each is alone ---> start "
                "it with the mpirun of the MPI that it was built with (DYNAPIPE_MPICC), under srun with the "
                "--mpi=... that this MPI supports",
                atoi(started));
#else
    return FAIL(STATUS_BAD_OPTION,
                "%d processes were started, but this program was built without MPI ---> build it with "
                "DYNAPIPE=1 where an mpicc is (DYNAPIPE_MPICC=/path/mpicc), or start one process",
                atoi(started));
#endif
}

static Status open_transport(Dynapipe* dp, int* argc, char*** argv) {
#ifdef DYNAPIPE_MPI
    TRY(transport_mpi_open(&dp->transport, argc, argv));
#else
    (void)argc;
    (void)argv;
    TRY(transport_loopback_open(&dp->transport, 1));
#endif
    return dp->transport.num_ranks == 1 ? check_alone() : STATUS_OK;
}

static Status session_open(Dynapipe* dp, int* argc, char*** argv, const char* const* own_options) {
    dp->command = session_run_command(*argc, *argv);
    session_refit_init(&dp->refit, false);
    if (dp->transport.api == NULL) { TRY(open_transport(dp, argc, argv)); }
    dp->world.timeout_ns = END_TOGETHER_NS;
    TRY(group_ranks(&dp->world, dp, 0, 1, dp->transport.num_ranks));
    TRY(session_options_take(&dp->options, argc, *argv, own_options));
    TRY(session_resplit_parse(&dp->resplit, dp->options.resplit));
    dp->refit.is_on = dp->options.refit == REFIT_AUTO;
    dp->world.timeout_ns = (int64_t)dp->options.comm_timeout_s * 1000000000;
    TRY(find_hosts(dp));
    TRY(session_same_options(dp, *argc, *argv));
    TRY(place_ranks(dp));
    TRY(session_group_ranks(dp));
    // Hosts may have different cores or numbers of ranks, but every rank must make the same plan: with the
    // times for the largest number of threads, which also needs the most scratch memory.
    double most = dp->num_threads = local_ranks_threads(dp->options.threads, dp->transport.num_ranks);
    TRY(session_most(dp, &most));
    dp->plan_threads = (int32_t)most;
    TRY(host_cores_find(&dp->cores, &dp->world, dp->num_threads));
    TRY(session_device_find(dp));
    return session_report_open(dp);
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
    Dynapipe* dp = (Dynapipe*)calloc(1, sizeof(Dynapipe));
    if (dp == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a session"); }
    dp->open_ns = clock_now_ns();
    Status status = session_open(dp, argc, argv, own_options);
    if (status == STATUS_OK && header_interface != DYNAPIPE_INTERFACE) {
        status = FAIL(STATUS_MISMATCH,
                      "the program was compiled with interface %d of dynapipe.h, the plugin's library is of "
                      "interface %d ---> compile both from the same dynapipe_plugin/ (make clean, then make)",
                      header_interface, DYNAPIPE_INTERFACE);
    }
    *out = dp;  // also after a failure: the caller asks it for its rank, so that only one rank prints the
                // error
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
    free(dp->position.text);
    free(dp->saved_costs);
    free(dp->task_names);
    free(dp->val_task);
    free(dp->task_sum);
    free(dp->rank_stats);
    session_machine_free(dp);
    arena_free(&dp->eval_arena);
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

// Wrong options and bad files are found by every rank alike: one rank prints the error and all leave in
// order. A rank that fails alone ends the others too.
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
    if (failed == STATUS_COMM) { roll_call(dp); }
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
