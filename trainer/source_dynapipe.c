// source_dynapipe.c -- gradients from the plugin: a task mixture on a dynamic pipeline of ranks.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../dynapipe_plugin/adapters/llmc_model.h"
#include "../dynapipe_plugin/dynapipe.h"
#include "../llmc/token_text.h"
#include "source.h"

struct Source {
    Dynapipe* dp;
    const ModelKind* kind;
    DynapipeRange blocks;  // of this rank
    OpsContext* ops;
    TrainFlags flags;
    DynapipeDataInfo_v1 info;
    int64_t batch_tokens;  // of a step
    TokenText text;
    double* task_loss;
};

// Every rank finds the same errors in options and data; one says so, all end.
static void check(Source* source, int code) {
    if (code == 0) { return; }
    dynapipe_abort(source->dp, dynapipe_error());
    exit(dynapipe_exit_status(code));
}

void source_die(Source* source, const char* why) {
    dynapipe_abort(source->dp, why);
    exit(EXIT_FAILURE);
}

Source* source_open(int* argc, char*** argv, const ModelKind* kind) {
    Source* source = (Source*)calloc(1, sizeof(Source));
    if (source == NULL) { exit(EXIT_FAILURE); }
    source->kind = kind;
    check(source, dynapipe_open(&source->dp, argc, argv));
    return source;
}

void source_close(Source* source) {
    token_text_free(&source->text);
    dynapipe_close(source->dp);  // what it queued on the stream of ops is done
    ops_free(source->ops);
    free(source->task_loss);
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

bool source_is_main(const Source* source) {
    return dynapipe_rank(source->dp) == 0;
}

void source_open_data(Source* source, const TrainFlags* flags) {
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
    };
    check(source, dynapipe_open_data(source->dp, &run));
    check(source, dynapipe_data_info(source->dp, &source->info));
    source->task_loss = (double*)calloc((size_t)source->info.num_tasks, sizeof(double));
    token_text_find(&source->text, flags->train_pattern);
    if (!source_is_main(source)) { return; }
    const DynapipeDataInfo_v1* info = &source->info;
    printf("data: %lld samples of %d tasks, %lld tokens; %lld longer than -t %d truncated, %lld skipped\n",
           (long long)info->num_samples, info->num_tasks, (long long)info->num_tokens,
           (long long)info->num_truncated, flags->seq_tokens, (long long)info->num_skipped);
}

int source_vocab(const Source* source) {
    return source->info.vocab;
}

int source_num_steps(const Source* source) {
    return source->info.num_steps;
}

uint32_t source_seed(const Source* source) {
    return dynapipe_seed(source->dp);
}

OpsContext* source_ops(Source* source) {
    if (source->ops == NULL) { source->ops = ops_create(dynapipe_threads(source->dp)); }
    return source->ops;
}

void source_layers(Source* source, const ModelConfig* config, int* layer_begin, int* layer_end,
                   bool* is_last) {
    DynapipeCosts* costs;
    int32_t num_ranges;
    check(source, dynapipe_use_stream(source->dp, ops_stream(source_ops(source))));
    check(source, dynapipe_llmc_costs(&costs, source->dp, config, source->flags.zero_stage));
    check(source, dynapipe_choose_stages(source->dp, costs, &source->blocks, 1, &num_ranges));
    if (source_is_main(source)) {
        printf("ranks: %d = %d stages x %d replicas, threads per rank %d; %d steps of at most %lld tokens\n",
               dynapipe_num_ranks(source->dp), dynapipe_num_stages(source->dp),
               dynapipe_num_replicas(source->dp), dynapipe_threads(source->dp), source->info.num_steps,
               (long long)source->batch_tokens);
    }
    dynapipe_llmc_layers(layer_begin, layer_end, is_last, config, source->blocks);
}

void source_attach(Source* source, Model* model) {
    DynapipeTied tied[MODEL_MAX_TENSORS];
    DynapipeParams_v1 params = dynapipe_llmc_params(model, tied);
    check(source, dynapipe_attach(source->dp, 0, &dynapipe_llmc_model, model, &params));
}

double source_step(Source* source) {
    DynapipeStep_v1 step;
    check(source, dynapipe_step(source->dp, &step));
    return step.loss;
}

void source_shard(const Source* source, int64_t* begin, int64_t* end) {
    dynapipe_shard(source->dp, 0, begin, end);
}

void source_share_params(Source* source) {
    check(source, dynapipe_share_params(source->dp));
}

void source_report(Source* source, int step, const SourceStep* about) {
    DynapipeReport_v1 report = {
        .step = step,
        .norm = about->norm,
        .lr = about->lr,
        .loss_z = about->loss_z,
        .norm_z = about->norm_z,
        .log_dir = source->flags.output_dir,
    };
    check(source, dynapipe_report(source->dp, &report));
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

// Losses of all tasks in columns, as many as a line takes.
static void print_task_losses(const Source* source) {
    enum { LINE_CHARS = 110, NAME_CHARS = 24 };
    int name_chars = 1;
    for (int t = 0; t < source->info.num_tasks; t++) {
        int chars = (int)strlen(dynapipe_task_name(source->dp, t));
        name_chars = chars > name_chars ? chars : name_chars;
    }
    name_chars = name_chars > NAME_CHARS ? NAME_CHARS : name_chars;
    int num_columns = LINE_CHARS / (name_chars + 9), column = 0;
    for (int t = 0; t < source->info.num_tasks; t++) {
        if (isnan(source->task_loss[t])) { continue; }
        printf("%s  %-*.*s %6.3f", column % num_columns == 0 ? "\n" : "", name_chars, name_chars,
               dynapipe_task_name(source->dp, t), source->task_loss[t]);
        column++;
    }
    printf("\n");
}

double source_validate(Source* source, int max_batches) {
    if (source->flags.val_pattern == NULL) { return NAN; }
    double loss;
    check(source, dynapipe_validate(source->dp, max_batches, &loss, source->task_loss));
    if (source_is_main(source)) {
        printf("val loss %f", loss);
        print_task_losses(source);
        fflush(stdout);
    }
    return loss;
}

// One line of the text's beginning (or its end, which in a long prompt says what it asks).
static void print_excerpt(const Source* source, const char* title, const int32_t* tokens, int num_tokens,
                          bool of_end) {
    enum { EXCERPT_BYTES = 96 };
    char* text = NULL;
    size_t num_bytes = 0;
    FILE* memory = open_memstream(&text, &num_bytes);
    if (memory == NULL) { return; }
    token_text_print(&source->text, memory, tokens, num_tokens);
    if (fclose(memory) != 0) { return; }
    while (num_bytes > 0 && text[num_bytes - 1] == '\n') { num_bytes--; }
    size_t begin = of_end && num_bytes > EXCERPT_BYTES ? num_bytes - EXCERPT_BYTES : 0;
    size_t end = num_bytes > begin + EXCERPT_BYTES ? begin + EXCERPT_BYTES : num_bytes;
    while (begin > 0 && begin < end && ((uint8_t)text[begin] & 0xC0) == 0x80) { begin++; }  // whole letters
    while (end < num_bytes && end > begin && ((uint8_t)text[end] & 0xC0) == 0x80) { end--; }
    printf("  %-8s %s", title, begin > 0 ? "..." : "");
    for (size_t i = begin; i < end; i++) {
        text[i] == '\n' ? (void)fputs(" / ", stdout) : (void)fputc(text[i], stdout);
    }
    printf("%s\n", num_bytes == 0 ? "(nothing)" : end < num_bytes ? "..." : "");
    free(text);
}

static void show_sample(Source* source, int idx, int max_tokens, int32_t* answer) {
    int32_t num_answer, num_prompt, num_target;
    const int32_t *prompt, *target;
    check(source, dynapipe_generate(source->dp, idx, max_tokens, answer, &num_answer, &prompt, &num_prompt,
                                    &target, &num_target));
    if (source_is_main(source)) {
        printf("\n");
        if (num_target > 0 && target[num_target - 1] == source->info.eot_token) { num_target--; }
        print_excerpt(source, "asked", prompt, num_prompt, true);
        print_excerpt(source, "answers", answer, num_answer, false);
        print_excerpt(source, "right", target, num_target, false);
        fflush(stdout);
    }
}

void source_show_samples(Source* source, int idx, int num_samples, int max_tokens) {
    if (source->flags.val_pattern == NULL) { return; }
    int32_t* answer = (int32_t*)malloc(sizeof(int32_t) * (size_t)max_tokens);
    if (answer == NULL) { source_die(source, "no memory for an answer ---> give a smaller -g"); }
    for (int i = 0; i < num_samples; i++) { show_sample(source, idx + i, max_tokens, answer); }
    free(answer);
}

void source_position(const Source* source, const void** out, size_t* num_bytes) {
    check((Source*)(uintptr_t)source, dynapipe_position(source->dp, out, num_bytes));
}

void source_restore(Source* source, const void* position, size_t num_bytes, int step) {
    check(source, dynapipe_restore(source->dp, position, num_bytes, step));
}

const char* source_dump_gradients(const Source* source) {
    return dynapipe_option(source->dp, "--dump-gradients");
}
