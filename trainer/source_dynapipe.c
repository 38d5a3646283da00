// source_dynapipe.c -- gradients from the plugin: a task mixture on a dynamic pipeline of ranks.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../dataloader/sample_file.h"
#include "../dynapipe_plugin/dynapipe.h"
#include "../llmc/completion.h"
#include "answers.h"
#include "llmc_model.h"
#include "source.h"

struct Source {
    Dynapipe* dp;
    const ModelKind* kind;
    Model views[DYNAPIPE_MAX_RANGES];  // of the model, one for each range
    OpsContext* ops;
    TrainFlags flags;
    DynapipeDataInfo_v1 info;
    int64_t batch_tokens;  // of a step
    TokenText text;
    const char** task_names;                    // [num_tasks]
    DynapipeStep_v1 last;                       // step
    double peak_flops;                          // of all ranks; 0: unknown
    double *task_loss, *exact_match, *rouge_l;  // [num_tasks], one allocation
};

// Every rank finds the same errors in options and data; one prints, all end.
static void check(Source* source, int code) {
    if (code == 0) { return; }
    dynapipe_abort(source->dp, dynapipe_error());
    exit(dynapipe_exit_status(code));
}

void source_die(Source* source, const char* why) {
    dynapipe_abort(source->dp, why);
    exit(EXIT_FAILURE);
}

void source_refuse(Source* source, const char* why) {
    dynapipe_abort(source->dp, why);
    exit(2);
}

Source* source_open(int* argc, char*** argv, const ModelKind* kind) {
    Source* source = (Source*)calloc(1, sizeof(Source));
    if (source == NULL) { exit(EXIT_FAILURE); }
    source->kind = kind;
    dynapipe_watch_signals(NULL);
    check(source, dynapipe_open(&source->dp, argc, argv, train_flags_words()));
    dynapipe_watch_signals(source->dp);
    return source;
}

void source_close(Source* source) {
    token_text_free(&source->text);
    dynapipe_close(source->dp);  // finish its work on the stream of ops first
    ops_free(source->ops);
    free(source->task_loss);
    free(source->task_names);
    free(source);
}

void source_print_usage(FILE* out, const ModelKind* kind) {
    fprintf(out,
            "usage: mpirun -np RANKS ./train_%s -i FILES [flags] [--options]\n"
            "Trains a %s on a mixture of tasks with samples of very different lengths. Every step a plan "
            "says\n"
            "which samples form a micro-batch and which rank runs what when. RANKS = stages x replicas.\n",
            kind->name, kind->title);
}

void source_print_options(FILE* out) {
    fprintf(out, "\n");
    dynapipe_print_options(out);
}

void source_print_version(FILE* out) {
    dynapipe_print_version(out);
}

bool source_is_main(const Source* source) {
    return dynapipe_rank(source->dp) == 0;
}

int source_rank(const Source* source) {
    return dynapipe_rank(source->dp);
}

int source_num_ranks(const Source* source) {
    return dynapipe_num_ranks(source->dp);
}

int source_stop_signal(const Source* source) {
    return dynapipe_stop_signal(source->dp);
}

double source_seconds(const Source* source) {
    return dynapipe_seconds(source->dp);
}

void source_open_data(Source* source, const TrainFlags* flags) {
#ifdef LLMC_CUDA
    if (flags->log_kernels != NULL) { ops_log_kernels(source_ops(source), flags->log_kernels); }
#endif
    source->flags = *flags;
    int64_t rank_tokens = (int64_t)flags->rows * flags->seq_tokens;
    source->batch_tokens =
        flags->batch_tokens > 0 ? flags->batch_tokens : rank_tokens * dynapipe_num_ranks(source->dp);
    DynapipeRun_v1 run = {
        .train_pattern = flags->train_pattern,
        .val_pattern = flags->val_pattern,
        .batch_tokens = source->batch_tokens,
        .max_seq_tokens = flags->seq_tokens,
        .max_target_tokens = !source->kind->has_decoder ? 0
                             : flags->target_tokens > 0 ? flags->target_tokens
                                                        : flags->seq_tokens,
        .rows = flags->rows,
        .num_steps = flags->steps,
        .zero_stage = flags->zero_stage,
        .overfit = flags->overfit,
        .skip_verify = flags->verify == 0,
    };
    check(source, dynapipe_open_data(source->dp, &run));
    check(source, dynapipe_data_info(source->dp, &source->info));
    size_t num_tasks = (size_t)source->info.num_tasks;
    source->task_loss = (double*)calloc(3 * num_tasks, sizeof(double));
    source->exact_match = source->task_loss + num_tasks;
    source->rouge_l = source->exact_match + num_tasks;
    source->task_names = (const char**)calloc(num_tasks, sizeof(char*));
    if (source->task_loss == NULL || source->task_names == NULL) {
        source_die(source, "no memory for tasks");
    }
    for (int t = 0; t < source->info.num_tasks; t++) {
        source->task_names[t] = dynapipe_task_name(source->dp, t);
    }
    token_text_find(&source->text, flags->train_pattern);
    if (!source_is_main(source)) { return; }
    if (!flags->verify) { printf("--verify 0: the data is taken as it is\n"); }
    const DynapipeDataInfo_v1* info = &source->info;
    printf("data: %lld samples of %d tasks, %lld tokens; %lld longer than -t %d cut, %lld skipped\n",
           (long long)info->num_samples, info->num_tasks, (long long)info->num_tokens,
           (long long)info->num_truncated, flags->seq_tokens, (long long)info->num_skipped);
}

int source_vocab(const Source* source) {
    return source->info.vocab;
}

uint64_t source_vocab_hash(const Source* source) {
    return source->info.vocab_hash;
}

bool source_has_byt5_tokens(const Source* source) {
    return source->info.tokenizer == TOKENIZER_BYT5;
}

int source_eot_token(const Source* source) {
    return source->info.eot_token;
}

int source_pad_token(const Source* source) {
    return source->info.pad_token;
}

int source_num_steps(const Source* source) {
    return source->info.num_steps;
}

int64_t source_batch_tokens(const Source* source) {
    return source->batch_tokens;
}

uint32_t source_seed(const Source* source) {
    return dynapipe_seed(source->dp);
}

OpsContext* source_ops(Source* source) {
    if (source->ops == NULL) { source->ops = ops_create(dynapipe_threads(source->dp)); }
    return source->ops;
}

static void part_of(ModelPart* out, const Source* source, const ModelConfig* config,
                    const DynapipeRange* ranges, int32_t num_ranges) {
    int32_t begin[OPS_MAX_SHARES + 1];
    int32_t head = dynapipe_head(source->dp, begin, OPS_MAX_SHARES + 1);
    *out = (ModelPart){.stage = dynapipe_stage(source->dp)};
    dynapipe_llmc_part(out, config, ranges, num_ranges);
    out->head = dynapipe_llmc_head(config, head, begin, dynapipe_num_stages(source->dp));
}

ModelPart source_part(Source* source, const ModelConfig* config) {
    DynapipeCosts* costs;
    DynapipeRange ranges[DYNAPIPE_MAX_RANGES];
    ModelPart part;
    int32_t num_ranges;
    check(source, dynapipe_use_stream(source->dp, ops_stream(source_ops(source))));
    LlmcBlocks about;
    DynapipeBlocks_v1 blocks = dynapipe_llmc_blocks(&about, config, source_ops(source));
    check(source, dynapipe_measure(source->dp, &blocks, &costs));
    check(source, dynapipe_choose_stages(source->dp, costs, ranges, DYNAPIPE_MAX_RANGES, &num_ranges));
    if (source_is_main(source)) {
        printf("ranks: %d = %d stages x %d replicas, threads per rank %d; %d steps of at most %lld tokens\n",
               dynapipe_num_ranks(source->dp), dynapipe_num_stages(source->dp),
               dynapipe_num_replicas(source->dp), dynapipe_threads(source->dp), source->info.num_steps,
               (long long)source->batch_tokens);
    }
    part_of(&part, source, config, ranges, num_ranges);
    return part;
}

// Sum over all ranks, if all are known.
static void add_peaks(Source* source) {
    double mine = source->flags.peak_tflops * 1e12;
    if (mine == 0) { mine = ops_peak_flops(source_ops(source)); }
    double sums[2] = {mine, mine > 0};
    source_sums(source, sums, 2);
    source->peak_flops = sums[1] == dynapipe_num_ranks(source->dp) ? sums[0] : 0;
}

void source_attach(Source* source, Model* model) {
    add_peaks(source);
    DynapipeTied tied[MODEL_MAX_TIED];
    DynapipeParams_v1 params = dynapipe_llmc_params(model, tied);
    int32_t num_ranges = model->part.num_ranges, num_views = num_ranges + model->part.has_share;
    for (int32_t i = 0; i < num_views; i++) {
        source->views[i] = i < num_ranges ? model_view(model, i) : model_share_view(model);
        check(source, dynapipe_attach(source->dp, i, &dynapipe_llmc_model, &source->views[i],
                                      i == 0 ? &params : NULL));
    }
}

double source_step(Source* source) {
    check(source, dynapipe_step(source->dp, &source->last));
    return source->last.loss;
}

void source_shard(const Source* source, int64_t* begin, int64_t* end) {
    dynapipe_shard(source->dp, begin, end);
}

void source_share_params(Source* source) {
    check(source, dynapipe_share_params(source->dp));
}

static double step_flops(const Source* source) {
    const DynapipeStep_v1* last = &source->last;
    const ModelWork work = {.tokens = last->total_tokens - last->dec_tokens,
                            .squares = last->squares,
                            .dec_tokens = last->dec_tokens,
                            .dec_squares = last->dec_squares,
                            .cross_products = last->cross_products,
                            .rows = last->supervised_tokens};
    return model_flops(&source->views[0].config, &work);
}

void source_report(Source* source, int step, const SourceStep* about) {
    DynapipeReport_v1 report = {
        .step = step,
        .norm = about->norm,
        .lr = about->lr,
        .loss_z = about->loss_z,
        .norm_z = about->norm_z,
        .log_dir = source->flags.output_dir,
        .flops = step_flops(source),
        .peak_flops = source->peak_flops,
    };
    check(source, dynapipe_report(source->dp, &report));
}

// --- layers that move --------------------------------------------------------------------------------------

bool source_resplit(Source* source, const ModelConfig* config, ModelPart* part) {
    DynapipeRange ranges[DYNAPIPE_MAX_RANGES];
    int32_t num_ranges;
    check(source, dynapipe_resplit(source->dp, ranges, DYNAPIPE_MAX_RANGES, &num_ranges));
    if (num_ranges == 0) { return false; }
    part_of(part, source, config, ranges, num_ranges);
    return true;
}

void source_move(Source* source, int array, size_t bytes_per_value, const SourceArray* have,
                 const SourceArray* want) {
    const SourceArray* sides[2] = {have, want};
    DynapipePiece_v1* pieces[2];
    int32_t num[2];
    for (int i = 0; i < 2; i++) {
        const SourceArray* side = sides[i];
        pieces[i] = (DynapipePiece_v1*)calloc((size_t)side->model->num_slices + 1, sizeof **pieces);
        if (pieces[i] == NULL) { source_die(source, "no memory for a list of tensors"); }
        num[i] = dynapipe_llmc_pieces(pieces[i], side->model, side->begin, side->end, (uint64_t)array,
                                      (int32_t)bytes_per_value, side->values);
    }
    check(source, dynapipe_move(source->dp, pieces[0], num[0], pieces[1], num[1]));
    free(pieces[0]);
    free(pieces[1]);
}

int64_t source_lost_lines(const Source* source) {
    return dynapipe_lost_lines(source->dp);
}

void source_sums(Source* source, double* values, int num_values) {
    check(source, dynapipe_sum(source->dp, values, num_values));
}

bool source_owns_params(const Source* source) {
    return dynapipe_replica(source->dp) == 0;
}

bool source_owns_moments(const Source* source) {
    return dynapipe_replica(source->dp) == 0 || source->flags.zero_stage > 0;
}

// --- validation, answers -----------------------------------------------------------------------------------

// --answers of each task, fewer where there are many tasks.
static int answers_per_task(const Source* source) {
    enum { MOST_ANSWERS = 256 };
    int most = MOST_ANSWERS / source->info.num_tasks;
    return source->flags.answers < most ? source->flags.answers : most > 1 ? most : 1;
}

// Answers samples of every task; false: no task has a question.
static bool score_answers(Source* source) {
    int32_t num_samples = 0, per_task = answers_per_task(source);
    const DynapipeAnswer_v1* answers;
    int64_t* samples =
        (int64_t*)calloc((size_t)per_task * (size_t)source->info.num_tasks + 1, sizeof(int64_t));
    if (samples == NULL) {
        source_die(source, "no memory for samples to answer ---> give a smaller --answers");
    }
    check(source, dynapipe_pick_samples(source->dp, per_task, samples, &num_samples));
    check(source, dynapipe_generate(source->dp, samples, num_samples, source->flags.sample_tokens, &answers));
    free(samples);
    answers_score(source->exact_match, source->rouge_l, source->info.num_tasks, answers, num_samples,
                  &source->text, source->info.eot_token);
    return num_samples > 0;
}

static void print_validation(const Source* source, double loss, bool with_scores) {
    printf("val loss %f", loss);
    if (with_scores) {
        printf(" | exact match %.1f %%, ROUGE-L %.1f (%d answers a task)",
               100 * answers_mean(source->exact_match, source->info.num_tasks),
               100 * answers_mean(source->rouge_l, source->info.num_tasks), answers_per_task(source));
    }
    answers_print_tasks(source->task_names, source->info.num_tasks, source->task_loss,
                        with_scores ? source->exact_match : NULL, with_scores ? source->rouge_l : NULL);
    fflush(stdout);
}

double source_validate(Source* source, int step, int max_batches) {
    if (source->flags.val_pattern == NULL) { return NAN; }
    double loss;
    check(source, dynapipe_validate(source->dp, max_batches, &loss, source->task_loss));
    bool with_scores = source->flags.answers > 0 && score_answers(source);
    if (source_stop_signal(source) != 0) { return NAN; }
    if (source_is_main(source)) { print_validation(source, loss, with_scores); }
    DynapipeValidation_v1 validation = {
        .step = step,
        .loss = loss,
        .task_loss = source->task_loss,
        .exact_match = with_scores ? source->exact_match : NULL,
        .rouge_l = with_scores ? source->rouge_l : NULL,
        .log_dir = source->flags.output_dir,
    };
    check(source, dynapipe_report_validation(source->dp, &validation));
    return loss;
}

void source_show_samples(Source* source, int idx, int num_samples, int max_tokens) {
    enum {
        MOST_SHOWN = 16,
        STRIDE = 7919
    };  // samples are grouped by task: a long stride reaches another task each time
    int64_t samples[MOST_SHOWN] = {0};
    const DynapipeAnswer_v1* answers;
    if (source->flags.val_pattern == NULL) { return; }
    num_samples = num_samples < MOST_SHOWN ? num_samples : MOST_SHOWN;
    for (int i = 0; i < num_samples; i++) {
        samples[i] = (int64_t)(idx + i) * STRIDE % source->info.num_val_samples;
    }
    check(source, dynapipe_generate(source->dp, samples, num_samples, max_tokens, &answers));
    if (source_stop_signal(source) != 0) { return; }
    for (int i = 0; i < num_samples && source_is_main(source); i++) {
        answers_show(&answers[i], &source->text, source->info.eot_token);
    }
}

void source_position(const Source* source, const void** out, size_t* num_bytes) {
    check((Source*)(uintptr_t)source, dynapipe_position(source->dp, out, num_bytes));
}

void source_verify_data(Source* source) {
    const void* position;
    size_t num_bytes;
    source_position(source, &position, &num_bytes);  // waits for it
}

void source_restore(Source* source, const void* position, size_t num_bytes, int step) {
    check(source, dynapipe_restore(source->dp, position, num_bytes, step));
}

const char* source_dump_gradients(const Source* source) {
    return dynapipe_option(source->dp, "--dump-gradients");
}
