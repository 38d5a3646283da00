/*
profile_costs.c -- measures what a stage costs on this machine, and writes the file that --costs reads.

    mpirun -np 2 ./profile_costs --model d12 --tokens 2048 --out costs.txt
    mpirun -np 2 ./profile_costs --model flan-t5:base --tokens 1024 --target-tokens 256 --out costs.txt

Start it with as many ranks per machine as training will have: all compute at the same time, so that what they
share (memory bandwidth, cache) is in the times. What is measured: adapters/model_profile.h. Transfers go
between ranks 0 and 1 as in training (on GPUs by NCCL; --transport mpi: through the host). Every quantity is
the mean over the ranks. The same file is
./profile_costscu on GPUs.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynapipe_plugin/adapters/model_profile.h"
#include "dynapipe_plugin/adapters/llmc_model.h"
#include "dynapipe_plugin/base/clock.h"
#include "dynapipe_plugin/base/options.h"
#include "dynapipe_plugin/plan/planner.h"
#include "dynapipe_plugin/run/collective.h"
#include "dynapipe_plugin/run/link_probe.h"
#include "dynapipe_plugin/run/local_ranks.h"
#include "llmc/models.h"
#ifdef LLMC_CUDA
#include <cuda_runtime.h>
#endif

// A rank that waits longer for another is alone: one point takes seconds.
#define TIMEOUT_NS INT64_C(300000000000)

typedef struct {
    const char *model, *out;
    int32_t seq_tokens, target_tokens, mb_tokens, vocab, threads, transport;
    double seconds;
} ProfileOptions;

// clang-format off
static const OptionSpec specs[] = {
    {"--model",   OPTION_STRING, offsetof(ProfileOptions, model),      "d12",       0, 0,    NULL, "DESC", "shape of the model, as the trainer's -e"},
    {"--tokens",  OPTION_INT,    offsetof(ProfileOptions, seq_tokens), "1024",      32, 1e6, NULL, "N", "longest sequence, as the trainer's -t"},
    {"--target-tokens", OPTION_INT, offsetof(ProfileOptions, target_tokens), "0", 0, 1e6, NULL, "N", "of an encoder-decoder model: longest target, as the trainer's; 0: a quarter of --tokens"},
    {"--mb-tokens", OPTION_INT,  offsetof(ProfileOptions, mb_tokens),  "0",         0, 1e6,  NULL, "N", "largest micro-batch to measure; 0: --tokens, on a GPU 16384 or more"},
    {"--vocab",   OPTION_INT,    offsetof(ProfileOptions, vocab),      "0",         0, 1e7,  NULL, "N", "vocabulary of the data (257: the bytes tokenizer); 0: the model's own"},
    {"--threads", OPTION_INT,    offsetof(ProfileOptions, threads),    "0",         0, 1024, NULL, "N", "cores of a rank; 0: OMP_NUM_THREADS, else all cores / ranks"},
    {"--transport", OPTION_CHOICE, offsetof(ProfileOptions, transport), "auto", 0, 0, "auto|nccl|mpi", NULL, "between GPUs, as the trainer's; auto: mpi where ranks share a GPU, else nccl"},
    {"--seconds", OPTION_DOUBLE, offsetof(ProfileOptions, seconds),    "0.3",       0, 1e3,  NULL, "S", "time for one point"},
    {"--out",     OPTION_STRING, offsetof(ProfileOptions, out),        "costs.txt", 0, 0,    NULL, "FILE", "cost file to write"},
};
// clang-format on
enum { NUM_SPECS = sizeof specs / sizeof specs[0] };

typedef struct {
    ProfileOptions options;
    Transport transport;
    Collective world;  // all ranks
    int32_t num_threads;
    ModelConfig config;
    CostModel costs;
} Profiler;

static Status open_ranks(Profiler* p, int* argc, char*** argv) {
#ifdef DYNAPIPE_MPI
    TRY(transport_mpi_open(&p->transport, argc, argv));
#else
    TRY(transport_loopback_open(&p->transport, 1));
#endif
    TRY(options_defaults(specs, NUM_SPECS, &p->options));
    TRY(options_take(specs, NUM_SPECS, &p->options, argc, *argv, NULL));
    int32_t num_ranks = p->transport.num_ranks;
    int32_t* ranks = malloc(sizeof(int32_t) * (size_t)num_ranks);
    if (ranks == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks); }
    for (int32_t r = 0; r < num_ranks; r++) { ranks[r] = r; }
    Status status = collective_init(&p->world, &p->transport, ranks, num_ranks, TIMEOUT_NS);
    free(ranks);
    p->num_threads = local_ranks_threads(p->options.threads, num_ranks);
    return status;
}

// A card for each rank of a machine; they share where there are more ranks, as in training. What is wrong
// with a card, ops_create() says.
static void choose_card(int32_t rank) {
#ifdef LLMC_CUDA
    int num_cards = 0;
    if (cudaGetDeviceCount(&num_cards) == cudaSuccess && num_cards > 0) {
        (void)cudaSetDevice(local_ranks_index(rank) % num_cards);
    }
#else
    (void)rank;
#endif
}

static void sync_ranks(void* ctx) {
    collective_barrier(&((Profiler*)ctx)->world);
}

// Where there is one rank, memory's own rate.
static Status measure_transfers(Profiler* p, OpsContext* ops) {
    LinkCosts links;
    TRY(link_probe(&links, &p->world, ops_stream(ops), (TransportChoice)p->options.transport));
    bool known = links.bytes_per_ns > 0;
    p->costs.comm_latency_ns = known ? links.latency_ns : 20e3;
    p->costs.comm_bytes_per_ns = known ? links.bytes_per_ns : 3;
    p->costs.reduce_bytes_per_ns = p->costs.comm_bytes_per_ns;
    return STATUS_OK;
}

// --- the mean over the ranks -----------------------------------------------------------------------------

// Every measured number of the model in a row, so that one sum does for all.
static int32_t visit_numbers(CostModel* costs, double* values, bool store, double scale) {
    int32_t n = 0;
    for (int part = 0; part < PART_COUNT; part++) {
        for (int kind = 0; kind < JOB_COUNT; kind++) {
            for (int f = 0; f < FEATURE_COUNT; f++) {
                CostCurve* curve = &costs->parts[RECOMPUTE_NONE][part].time_ns[kind].curves[f];
                for (int k = 0; k < curve->num_knots; k++, n++) {
                    if (store) { curve->y[k] = values[n] * scale; }
                    if (!store && values != NULL) { values[n] = curve->y[k]; }
                }
            }
        }
    }
    if (store) { costs->update_ns_per_byte = values[n] * scale; }
    if (!store && values != NULL) { values[n] = costs->update_ns_per_byte; }
    return n + 1;
}

static Status average_over_ranks(Profiler* p) {
    int32_t n = visit_numbers(&p->costs, NULL, false, 1);
    double* values = malloc(sizeof(double) * (size_t)n);
    if (values == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d numbers", n); }
    visit_numbers(&p->costs, values, false, 1);
    Status status = collective_all_reduce_sum(&p->world, values, n);
    if (status == STATUS_OK) { visit_numbers(&p->costs, values, true, 1.0 / p->transport.num_ranks); }
    free(values);
    return status;
}

static void print_row(const Profiler* p, int part, const char* tokens, const MbShape* shape,
                      const char* what) {
    printf("%12s", tokens);
    for (JobKind kind = JOB_F; kind <= JOB_W; kind++) {
        printf(" %12.3f",
               cost_formula_value(&p->costs.parts[RECOMPUTE_NONE][part].time_ns[kind], shape) / 1e6);
    }
    printf("   %s\n", what);
}

static void print_layer(const Profiler* p) {
    for (int32_t t = 32; t <= p->options.seq_tokens; t *= 4) {
        char text[32];
        MbShape whole = {.num_seqs = 1, .enc_tokens = t, .enc_squares = (int64_t)t * t}, parts = whole;
        parts.enc_squares = 32 * (int64_t)t;
        snprintf(text, sizeof text, "%d", t);
        print_row(p, PART_ENC_LAYER, text, &parts, "sequences of 32");
        if (t > 32) { print_row(p, PART_ENC_LAYER, text, &whole, "one sequence"); }
    }
}

static void print_decoder_layer(const Profiler* p, int32_t max_target_tokens) {
    for (int32_t t = 32; t <= p->options.seq_tokens; t *= 4) {
        char text[32];
        MbShape shape = {0};
        int32_t target = t / 4 < max_target_tokens ? t / 4 : max_target_tokens;
        mb_shape_add(&shape, t, target, target);
        snprintf(text, sizeof text, "%d + %d", t, target);
        print_row(p, PART_DEC_LAYER, text, &shape, "one sequence");
    }
}

static void print_summary(const Profiler* p, int32_t max_target_tokens) {
    const bool has_dec = p->config.kind->has_decoder;
    printf("%12s %12s %12s %12s   one %slayer, ms\n", "tokens", "F", "B", "W", has_dec ? "encoder " : "");
    print_layer(p);
    if (has_dec) {
        printf("%12s %12s %12s %12s   one decoder layer, ms\n", "tokens", "F", "B", "W");
        print_decoder_layer(p, max_target_tokens);
    }
    printf("transfers: %.1f us + %.2f GB/s; update: %.2f ns per parameter\n", p->costs.comm_latency_ns / 1e3,
           p->costs.comm_bytes_per_ns, p->costs.update_ns_per_byte * (double)sizeof(float));
}

// A GPU is far from full with one sequence.
static int32_t largest_micro_batch(const ProfileOptions* options, const OpsContext* ops) {
    enum { GPU_TOKENS = 16384 };
    int32_t num_tokens = options->mb_tokens;
    if (num_tokens == 0 && ops_stream(ops) != NULL) { num_tokens = GPU_TOKENS; }
    int32_t longest =
        options->target_tokens > options->seq_tokens ? options->target_tokens : options->seq_tokens;
    return num_tokens > longest ? num_tokens : longest;
}

static int32_t longest_target(const ProfileOptions* options, const ModelKind* kind) {
    if (!kind->has_decoder) { return 0; }
    return options->target_tokens > 0 ? options->target_tokens : (options->seq_tokens + 3) / 4;
}

static Status profile(Profiler* p) {
    char error[256];
    const ProfileOptions* options = &p->options;
    if (!models_read_config(&p->config, options->model, options->vocab, options->seq_tokens, error)) {
        return FAIL(STATUS_BAD_OPTION, "--model: %s", error);
    }
    const ModelKind* kind = p->config.kind;
    if (!attention_check(model_head_size(&p->config), p->config.num_buckets, p->config.max_distance, error)) {
        return FAIL(STATUS_BAD_OPTION, "--model %s: %s", options->model, error);
    }
    int32_t max_target_tokens = longest_target(options, kind);
    if (options->target_tokens > 0 && !kind->has_decoder) {
        return FAIL(STATUS_BAD_OPTION, "--target-tokens: %s has no decoder ---> leave it out",
                    options->model);
    }
    choose_card(p->transport.rank);
    OpsContext* ops = ops_create(p->num_threads);
    ModelProfile about = {.config = p->config,
                          .max_tokens = largest_micro_batch(options, ops),
                          .max_seq_tokens = options->seq_tokens,
                          .max_target_tokens = max_target_tokens,
                          .budget_ns = (int64_t)(options->seconds * 1e9)};
    model_profile_measure(&p->costs, &about, ops, sync_ranks, p);
    char signature[400];
    dynapipe_llmc_signature(signature, sizeof signature, &p->config, ops);
    Status status = average_over_ranks(p);
    if (status == STATUS_OK) { status = measure_transfers(p, ops); }
    ops_free(ops);
    TRY(status);
    if (p->transport.rank != 0) { return STATUS_OK; }
    for (int part = 0; part < PART_COUNT; part++) {
        p->costs.parts[RECOMPUTE_NONE][part].offered = p->costs.parts[RECOMPUTE_FULL][part].offered = true;
    }
    p->costs.recompute_is_job[RECOMPUTE_FULL] = true;
    model_profile_set_recompute(&p->costs);
    p->costs.num_enc_layers = p->config.num_layers;
    p->costs.num_dec_layers = p->config.num_dec_layers;
    TRY(cost_model_check(&p->costs));
    TRY(cost_model_save(&p->costs, options->out, signature));
    print_summary(p, max_target_tokens);
    printf("wrote %s (%s)\n", options->out, signature);
    return STATUS_OK;
}

static void print_help(void) {
    printf("usage: mpirun -np RANKS ./profile_costs [options]\n");
    options_print(specs, NUM_SPECS, stdout);
}

int main(int argc, char** argv) {
    Profiler p = {0};
    Status status = open_ranks(&p, &argc, &argv);
    bool help = argc > 1 && strcmp(argv[1], "--help") == 0;
    if (status == STATUS_OK && argc > 1 && !help) {
        status = FAIL(STATUS_BAD_OPTION, "%s: not an option ---> --help lists all", argv[1]);
    }
    if (status == STATUS_OK && help && p.transport.rank == 0) { print_help(); }
    if (status == STATUS_OK && !help) { status = profile(&p); }
    if (status != STATUS_OK && p.transport.rank == 0) { fprintf(stderr, "error: %s\n", status_message()); }
    collective_free(&p.world);
    transport_close(&p.transport);
    return status == STATUS_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
