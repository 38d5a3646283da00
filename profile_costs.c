/*
profile_costs.c -- measures what a stage costs on this machine without any data, and writes the file that
--costs reads.

    mpirun -np 2 ./profile_costs --model d12 --tokens 2048 --out costs.txt
    mpirun -np 2 ./profile_costs --model flan-t5:base --tokens 1024 --target-tokens 256 --out costs.txt

Training measures its own costs (dynapipe_plugin/measure/) and keeps them; this program makes a file to read,
copy, or give to ./dynapipe plan. Start it with as many ranks per machine as training will have. On GPUs it is
./profile_costscu.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/options.h"
#include "util/program.h"
#include "dynapipe_plugin/measure/measure.h"
#include "dynapipe_plugin/plan/cost_model.h"
#include "dynapipe_plugin/plan/types.h"
#include "llmc/hf.h"
#include "llmc/kinds.h"
#include "trainer/llmc_model.h"

typedef struct {
    const char *model, *out;
    int32_t seq_tokens, target_tokens, mb_tokens, vocab;
    double seconds;
} ProfileOptions;

// clang-format off
static const OptionSpec specs[] = {
    {"--model",   OPTION_STRING, offsetof(ProfileOptions, model),      "d12",       0, 0,    NULL, "DESC", "the model, as the trainer's -e: a shape, a checkpoint *.bin, or the folder of a run or of Hugging Face's files"},
    {"--tokens",  OPTION_INT,    offsetof(ProfileOptions, seq_tokens), "1024",      32, 1e6, NULL, "N", "longest sequence, as the trainer's -t"},
    {"--target-tokens", OPTION_INT, offsetof(ProfileOptions, target_tokens), "0", 0, 1e6, NULL, "N", "of an encoder-decoder model: longest target, as the trainer's; 0: a quarter of --tokens"},
    {"--mb-tokens", OPTION_INT,  offsetof(ProfileOptions, mb_tokens),  "0",         0, 1e6,  NULL, "N", "largest microbatch to measure; 0: --tokens, on a GPU 16384 or more"},
    {"--vocab",   OPTION_INT,    offsetof(ProfileOptions, vocab),      "0",         0, 1e7,  NULL, "N", "vocabulary of the data (257: the bytes tokenizer); 0: the model's own"},
    {"--seconds", OPTION_DOUBLE, offsetof(ProfileOptions, seconds),    "8",         0, 1e6,  NULL, "S", "seconds to measure in all, roughly; a small model takes less"},
    {"--out",     OPTION_STRING, offsetof(ProfileOptions, out),        "costs.txt", 0, 0,    NULL, "FILE", "cost file to write"},
};
// clang-format on
enum { NUM_SPECS = sizeof specs / sizeof specs[0] };
static const char* const own_options[] = {"--model", "--tokens",  "--target-tokens", "--mb-tokens",
                                          "--vocab", "--seconds", "--out",           NULL};

typedef struct {
    ProfileOptions options;
    Dynapipe* dp;
    OpsContext* ops;
    ModelConfig config;
    DynapipeCosts* costs;
    MachineRank* found;  // each rank and its link, as measured
} Profiler;

// --- the summary -------------------------------------------------------------------------------------------

static void print_links(const CostModel* costs) {
    printf("transfers: %.1f us + %.2f GB/s; sums: %.2f GB/s; update: %.2f ns per parameter\n",
           costs->comm_latency_ns / 1e3, costs->comm_bytes_per_ns, costs->reduce_bytes_per_ns,
           costs->update_ns_per_byte * (double)sizeof(float));
}

// Each rank relative to the mean, and the link to the next one.
static void print_ranks(const Profiler* p) {
    const int32_t num_ranks = dynapipe_num_ranks(p->dp);
    if (num_ranks < 2) { return; }
    printf("%12s %12s %12s %12s   times the mean job; link to the next rank\n", "rank", "F", "B", "W");
    for (int32_t r = 0; r < num_ranks; r++) {
        const MachineRank* rank = &p->found[r];
        printf("%12d %12.3f %12.3f %12.3f", r, rank->slow[JOB_F], rank->slow[JOB_B], rank->slow[JOB_W]);
        if (r + 1 < num_ranks) {
            printf("   %.1f us + %.2f GB/s", rank->link_latency_ns / 1e3, rank->link_bytes_per_ns);
        }
        printf("\n");
    }
    bool differ = p->costs->machine.num_ranks > 0;
    printf("%s\n", differ ? "plans are made for ranks and links that differ so"
                          : "no more than noise: plans are made for ranks and links that are alike");
}

// --- measuring ---------------------------------------------------------------------------------------------

static int32_t longest_target(const ProfileOptions* options, const ModelKind* kind) {
    if (!kind->has_decoder) { return 0; }
    return options->target_tokens > 0 ? options->target_tokens : (options->seq_tokens + 3) / 4;
}

// One sequence does not fill a GPU.
static int32_t largest_micro_batch(const ProfileOptions* options, bool is_gpu) {
    enum { GPU_TOKENS = 16384 };
    int32_t num_tokens = options->mb_tokens;
    if (num_tokens == 0 && is_gpu) { num_tokens = GPU_TOKENS; }
    int32_t longest =
        options->target_tokens > options->seq_tokens ? options->target_tokens : options->seq_tokens;
    return num_tokens > longest ? num_tokens : longest;
}

static Status read_model(Profiler* p) {
    const ProfileOptions* options = &p->options;
    if (!models_read_config(&p->config, options->model, options->vocab, options->seq_tokens)) {
        return FAIL(STATUS_BAD_OPTION, "--model: %s", status_message());
    }
    if (!attention_check(model_head_size(&p->config), p->config.num_buckets, p->config.max_distance)) {
        return FAIL(STATUS_BAD_OPTION, "--model %s: %s", options->model, status_message());
    }
    if (options->target_tokens > 0 && !p->config.kind->has_decoder) {
        return FAIL(STATUS_BAD_OPTION, "--target-tokens: %s has no decoder ---> leave it out",
                    options->model);
    }
    return STATUS_OK;
}

static Status profile(Profiler* p) {
    const ProfileOptions* options = &p->options;
    LlmcBlocks about;
    DynapipeBlocks_v1 blocks = dynapipe_llmc_blocks(&about, &p->config, p->ops);
    TRY((Status)dynapipe_use_stream(p->dp, ops_stream(p->ops)));
    Measure m = {.dp = p->dp,
                 .blocks = &blocks,
                 .lengths = {options->seq_tokens, longest_target(options, p->config.kind)},
                 .max_tokens = largest_micro_batch(options, ops_stream(p->ops) != NULL),
                 .budget_ns = (int64_t)(options->seconds * 1e9)};
    const int32_t num_ranks = dynapipe_num_ranks(p->dp);
    p->costs = measure_costs_new(num_ranks);
    p->found = calloc((size_t)num_ranks, sizeof *p->found);
    if (p->costs == NULL || p->found == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a cost model"); }
    TRY(measure_fresh(p->costs, p->found, &m));
    TRY(session_messages_find(p->dp, &p->costs->model.measured.messages));
    if (dynapipe_rank(p->dp) != 0) { return STATUS_OK; }
    TRY(cost_file_save(&p->costs->model, &p->costs->machine, options->out, blocks.signature));
    print_links(&p->costs->model);
    print_ranks(p);
    printf("wrote %s (%s)\n", options->out, blocks.signature);
    return STATUS_OK;
}

static Status run(Profiler* p, int* argc, char*** argv) {
    TRY((Status)dynapipe_open(&p->dp, argc, argv, own_options));
    TRY(options_defaults(specs, NUM_SPECS, &p->options));
    TRY(options_take(specs, NUM_SPECS, &p->options, argc, *argv, NULL));
    if (*argc > 1 && (strcmp((*argv)[1], "--help") == 0 || strcmp((*argv)[1], "-h") == 0)) {
        if (dynapipe_rank(p->dp) != 0) { return STATUS_OK; }
        printf("usage: mpirun -np RANKS ./profile_costs [options]\n");
        options_print(specs, NUM_SPECS, stdout);
        printf("and --threads, --transport of the trainer\n");
        return STATUS_OK;
    }
    if (*argc > 1) { return FAIL(STATUS_BAD_OPTION, "%s: not an option ---> --help lists all", (*argv)[1]); }
    TRY(read_model(p));
    p->ops = ops_create(dynapipe_threads(p->dp));
    return profile(p);
}

int main(int argc, char** argv) {
    Profiler p = {0};
    standard_output_open(false);
    if (version_is_wanted(argc, argv)) {
        version_print("profile_costs", stdout);
        ops_print_version(stdout);
        dynapipe_print_version(stdout);
        return standard_output_close(EXIT_SUCCESS, EXIT_FAILURE);
    }
    Status status = run(&p, &argc, &argv);
    if (status != STATUS_OK) { dynapipe_abort(p.dp, dynapipe_error()); }
    dynapipe_close(p.dp);  // finish its work on the stream of ops first
    ops_free(p.ops);
    free(p.costs);
    free(p.found);
    return standard_output_close(dynapipe_exit_status((int)status), EXIT_FAILURE);
}
