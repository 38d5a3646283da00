// session_data.c -- the data of a run, and what it asks of the planner.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../util/status.h"
#include "../plan/problem/shape_rules.h"
#include "interface.h"
#include "session.h"

enum { MAX_STEP_SAMPLES = 1 << 20 };  // the search grows with them; beyond, -d is a slip of the finger

static LoaderOptions loader_options(const Dynapipe* dp, bool shuffle) {
    const SessionOptions* options = &dp->options;
    return (LoaderOptions){
        .batch_tokens = dp->run.batch_tokens,
        .max_seq_tokens = dp->run.max_seq_tokens,
        .long_samples = (LongSamples)options->long_samples,
        .supervise_inputs = options->loss_on == 1,
        .encoder_decoder = dp->run.max_target_tokens > 0,
        .max_target_tokens = dp->run.max_target_tokens,
        .span_corruption = options->span_corruption == 1,
        .noise_density = options->noise_density,
        .mean_noise_span = options->mean_noise_span,
        .sentinel_first = options->sentinel_first,
        .sentinel_step = options->sentinel_step,
        .mixture = (MixtureKind)options->mixture,
        .mixture_cap = options->mixture_cap,
        .temperature = options->temperature,
        .weights = options->weights,
        .seed = (uint64_t)options->seed,
        .shuffle = shuffle,
    };
}

CollateParams session_collate_params(const Dynapipe* dp, uint64_t seed, int64_t step_idx) {
    return (CollateParams){.seed = seed,
                           .step = step_idx,
                           .supervise_inputs = dp->options.loss_on == 1,
                           .encoder_decoder = dp->run.max_target_tokens > 0,
                           .pad_token = -1,
                           .start_token = -1};
}

// The training data's tasks in its order, then those that only the validation data has.
static Status number_tasks(Dynapipe* dp) {
    int32_t num_train = loader_num_tasks(dp->train);
    int32_t num_val = dp->val != NULL ? loader_num_tasks(dp->val) : 0;
    size_t most = (size_t)num_train + (size_t)num_val;
    dp->task_names = calloc(most + 1, sizeof *dp->task_names);
    dp->val_task = calloc((size_t)num_val + 1, sizeof *dp->val_task);
    dp->task_sum = calloc(3 * most + 1, sizeof *dp->task_sum);
    if (dp->task_names == NULL || dp->val_task == NULL || dp->task_sum == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for %zu tasks", most);
    }
    for (int32_t t = 0; t < num_train; t++) { dp->task_names[t] = loader_task_name(dp->train, t); }
    dp->num_tasks = num_train;
    for (int32_t v = 0; v < num_val; v++) {
        const char* name = loader_task_name(dp->val, v);
        int32_t t = 0;
        while (t < dp->num_tasks && strcmp(dp->task_names[t], name) != 0) { t++; }
        if (t == dp->num_tasks) { dp->task_names[dp->num_tasks++] = name; }
        dp->val_task[v] = t;
    }
    dp->task_rows = dp->task_sum + dp->num_tasks;
    dp->task_loss = dp->task_sum + 2 * dp->num_tasks;
    return STATUS_OK;
}

// A step draws its samples from the data as often as it takes.
static Status check_step_fits(const Dynapipe* dp) {
    double mean_tokens = (double)loader_num_tokens(dp->train) / (double)loader_num_samples(dp->train);
    double most_tokens = floor(mean_tokens * MAX_STEP_SAMPLES);
    if ((double)dp->run.batch_tokens <= most_tokens) { return STATUS_OK; }
    return FAIL(
        STATUS_BAD_OPTION,
        "-d %lld: about %.0f samples in a step, of %lld in the data ---> at most -d %.0f (%d samples)",
        (long long)dp->run.batch_tokens, (double)dp->run.batch_tokens / mean_tokens,
        (long long)loader_num_samples(dp->train), most_tokens, MAX_STEP_SAMPLES);
}

// The loader lets a long sample be a batch alone, whatever -d says.
static void warn_of_long_samples(const Dynapipe* dp) {
    if (loader_num_alone(dp->train) == 0 || dp->transport.rank != 0) { return; }
    long long longest = loader_longest_tokens(dp->train);
    fprintf(stderr,
            "warning: -d %lld: %lld of %lld samples are longer, up to %lld tokens; each of them is a step "
            "alone\n  ---> -d %lld or more, or a shorter -t\n",
            (long long)dp->run.batch_tokens, (long long)loader_num_alone(dp->train),
            (long long)loader_num_samples(dp->train), longest, longest);
}

// Which tasks lost how much to -t, so that nobody trains on half of the data unawares.
static void say_cuts(const Dynapipe* dp) {
    enum { TASKS_SHOWN = 8 };
    static const char* const ways[] = {"cut-input-end", "cut-input-start", "cut-input-middle", "skip"};
    const Loader* loader = dp->train;
    if (dp->transport.rank != 0 || loader_num_cut(loader) + loader_num_skipped(loader) == 0) { return; }
    int32_t num_tasks = 0;
    for (int32_t k = 0; k < loader_num_tasks(loader); k++) {
        long long cut = loader_task_cut(loader, k), skipped = loader_task_skipped(loader, k);
        if (cut + skipped == 0 || num_tasks++ >= TASKS_SHOWN) { continue; }
        fprintf(stderr, "%s%s", num_tasks == 1 ? "longer than -t: " : "; ",
                PRINTABLE(loader_task_name(loader, k)));
        if (cut > 0) { fprintf(stderr, " %lld cut", cut); }
        if (skipped > 0) { fprintf(stderr, "%s %lld skipped", cut > 0 ? "," : "", skipped); }
    }
    if (num_tasks > TASKS_SHOWN) { fprintf(stderr, "; and %d tasks more", num_tasks - TASKS_SHOWN); }
    if (num_tasks > 0) { fprintf(stderr, " (--long-samples %s)\n", ways[dp->options.long_samples]); }
}

static Status open_data(Dynapipe* dp, const DynapipeRun_v1* run) {
    TRY(interface_check_run(run));
    dp->run = *run;
    LoaderOptions options = loader_options(dp, true);
    TRY(loader_open(&dp->train, run->train_pattern, &options));
    TRY(check_step_fits(dp));
    if (run->val_pattern != NULL) {
        options = loader_options(dp, false);
        TRY(loader_open(&dp->val, run->val_pattern, &options));
    }
    TRY(session_same_run(dp));
    TRY(session_verify_start(dp));
    warn_of_long_samples(dp);
    say_cuts(dp);
    int64_t steps = run->num_steps;
    if (steps < 0) { steps = loader_num_batches(dp->train); }
    dp->num_steps = (int32_t)(steps < INT32_MAX ? steps : INT32_MAX);
    TRY(session_report_check(dp));
    size_t ranks = (size_t)dp->transport.num_ranks;
    dp->rank_stats = calloc(ranks * SESSION_STATS + 1, sizeof(double));
    if (dp->rank_stats == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %zu ranks", ranks); }
    return number_tasks(dp);
}

int dynapipe_open_data(Dynapipe* dp, const DynapipeRun_v1* run) {
    return (int)open_data(dp, run);
}

int dynapipe_data_info(const Dynapipe* dp, DynapipeDataInfo_v1* out) {
    *out = (DynapipeDataInfo_v1){
        .vocab = loader_vocab(dp->train),
        .eot_token = loader_eot_token(dp->train),
        .tokenizer = loader_tokenizer(dp->train),
        .pad_token = loader_pad_token(dp->train),
        .num_tasks = dp->num_tasks,
        .num_samples = loader_num_samples(dp->train),
        .num_tokens = loader_num_tokens(dp->train),
        .num_truncated = loader_num_cut(dp->train),
        .num_skipped = loader_num_skipped(dp->train),
        .num_val_samples = dp->val != NULL ? loader_num_samples(dp->val) : 0,
        .num_steps = dp->num_steps,
        .vocab_hash = loader_vocab_hash(dp->train),
    };
    return 0;
}

const char* dynapipe_task_name(const Dynapipe* dp, int32_t task) {
    return task >= 0 && task < dp->num_tasks ? dp->task_names[task] : "?";
}

ShapeRules session_rules(const DynapipeShapes_v1* shapes) {
    return (ShapeRules){.padded = shapes->padded != 0,
                        .seq_multiple = shapes->seq_multiple,
                        .tokens_multiple = shapes->tokens_multiple,
                        .max_squares = shapes->max_squares,
                        .max_tokens = shapes->max_tokens,
                        .max_seqs = shapes->max_seqs,
                        .head_has_layer = shapes->head_has_layer != 0};
}

static void fill_request(Dynapipe* dp, const DynapipeCosts* costs) {
    const SessionOptions* options = &dp->options;
    PlanRequest* request = &dp->request;
    request->batching = (Batching)options->batching;
    request->layout = (MbLayout)options->layout;
    request->rules = session_rules(&costs->shapes);
    request->schedule = (ScheduleChoice)options->schedule;
    request->recompute = (RecomputeChoice)options->recompute;
    request->split_backward =
        costs->has_weights_job ? (SplitBackward)options->split_backward : SPLIT_BACKWARD_OFF;
    request->P = dp->num_stages;
    request->R = dp->num_replicas;
    request->one_replica = dp->num_replicas > 1;
    request->my_replica = dp->replica;
    request->memory_limit_bytes = options->memory_limit_bytes;
    request->machine = &dp->machine;
    request->max_seq_tokens = dp->run.max_seq_tokens;
    request->max_target_tokens = dp->run.max_target_tokens;
    request->mb_tokens = options->mb_tokens;
    request->mb_samples = options->mb_tokens > 0 ? 0 : dp->run.rows;
    request->effort = options->effort;
    request->memory_slack_permille = PLAN_MEMORY_SLACK_PERMILLE;
}

// Can this model be run on so many stages, and with these options?
static Status check_model(const Dynapipe* dp, const DynapipeCosts* costs) {
    int32_t num_layers = costs->model.num_enc_layers + costs->model.num_dec_layers;
    int32_t num_ranks = dp->transport.num_ranks, P = num_layers < num_ranks ? num_layers : num_ranks;
    while (P > 1 && num_ranks % P != 0) { P--; }
    if (dp->num_stages > num_layers) {
        return FAIL(
            STATUS_BAD_OPTION,
            "--stages %d: the model has %d layers, and every stage needs one ---> at most --stages %d, "
            "on %d ranks --stages %d --replicas %d",
            dp->num_stages, num_layers, num_layers, num_ranks, P, num_ranks / P);
    }
    if (!costs->has_weights_job && dp->options.split_backward == SPLIT_BACKWARD_ON) {
        return FAIL(STATUS_BAD_OPTION,
                    "--split-backward on: the model's backward cannot be divided (it has no "
                    "backward_weights) ---> --split-backward auto");
    }
    return STATUS_OK;
}

static Status choose_stages(Dynapipe* dp, DynapipeCosts* costs, int32_t max_ranges) {
    TRY(check_model(dp, costs));
    dp->costs = costs->model;
    TRY(cost_model_check(&dp->costs));
    TRY(session_machine_take(dp, &costs->machine));
    if (dp->links == NULL) { TRY(session_device_open(dp, NULL)); }
    TRY(session_device_limit(dp));
    fill_request(dp, costs);
    TRY(session_placed_request(dp, costs->shares_head, max_ranges));
    TRY(shape_rules_check(&dp->request));
    TRY(session_same_model(dp));
    TRY(session_stages_choose(dp));
    return session_resplit_begin(dp);
}

int dynapipe_choose_stages(Dynapipe* dp, DynapipeCosts* costs, DynapipeRange* out, int32_t max_ranges,
                           int32_t* num_ranges) {
    *num_ranges = 0;
    Status status = choose_stages(dp, costs, max_ranges);
    free(costs);
    if (status == STATUS_OK) { status = session_ranges(dp, out, max_ranges, num_ranges); }
    return status == STATUS_OK ? (int)session_stop_agree(dp) : (int)status;
}
