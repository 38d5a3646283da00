/*
llmc_cpu_main.h -- llm.c's CPU trainer behind the plugin's interface, and what main() says to it.

Included in the tree's train_gpt2.c just before main(), behind llmc_cpu.h. In main():

    int main(int argc, char** argv) {
        DYNAPIPE_OPEN(argc, argv)                // joins the ranks, takes the --options out of argv
        ...                                      // model and data loaders, as ever
        for (int step = DYNAPIPE_FIRST(&model, 0); DYNAPIPE_STEPS_OR(step) step <= 40; step++) {
            if (DYNAPIPE_WHOLE_AND step > 0 && step % 20 == 0) { ... samples of the model's text ... }

DYNAPIPE_FIRST checks (llmc_cpu_probe.h) and measures the model, leaves this rank its slice of it, and goes on
from a checkpoint if told to.

The loop's calls keep their names and mean: dataloader_*: nothing, the plugin has the data; gpt2_forward() on
training tokens: the first after an update is a step of all ranks, and mean_loss its loss, the others nothing;
on validation tokens: the validation; without targets: theirs; gpt2_zero_grad(), gpt2_backward(): done in the
step; gpt2_update(): theirs, on this rank's slice, then the report and maybe a checkpoint. With --fixed-length
all of them are theirs. Without -DDYNAPIPE the words above mean nothing and cost nothing.
*/
#pragma once
#ifndef DYNAPIPE
#define DYNAPIPE_OPEN(argc, argv)
#define DYNAPIPE_FIRST(model, first) first
#define DYNAPIPE_STEPS_OR(step)
#define DYNAPIPE_WHOLE_AND
#else

#ifdef _OPENMP
#include <omp.h>
#endif
#include <math.h>
#include <stdio.h>
#include "llmc_cpu_probe.h"

typedef struct {
    DynapipeLlmc* run;
    int is_on;  // 0: --fixed-length
    DynapipeModel_v1 api;
    DynapipeCpuRange* mine;                          // NULL before DYNAPIPE_FIRST
    const GPT2* whole;                               // their struct: of this rank's slice, since then
    const char *train_pattern, *val_pattern;         // the tree's, where no option names others
    const void *train_loader, *val_loader, *loader;  // the last: whose batch was asked for last
    int rows, seq_tokens;                            // the tree's B and T
    int first_step, step;                            // updates made before this run, and by now
    int validated_step;                              // that val_loss is of; -1: none
    int has_stepped;                                 // since the last update
    int* no_tokens[2];                               // (B, T) zeros: what loaders hold, training's and other
    float val_loss, loss, norm, lr;
} DynapipeCpuMain;

static DynapipeCpuMain dynapipe_cpu;

static inline int dynapipe_cpu_is_on(void) {
    return dynapipe_cpu.is_on;
}

// Both --fixed-length and the plugin take these options; before DYNAPIPE_OPEN there are none.
static inline const DynapipeLlmcOptions* dynapipe_cpu_options(void) {
    return dynapipe_llmc_options(dynapipe_cpu.run);
}

// What other ranks print to the terminal would be rank 0's lines again.
static inline void dynapipe_cpu_open(int* argc, char*** argv) {
    dynapipe_cpu.run = dynapipe_llmc_open(argc, argv, 1);
    dynapipe_cpu.is_on = dynapipe_llmc_is_on(dynapipe_cpu.run);
    dynapipe_cpu.validated_step = -1;
    if (!dynapipe_cpu_is_on()) { return; }
    if (dynapipe_rank(dynapipe_llmc_session(dynapipe_cpu.run)) != 0 &&
        freopen("/dev/null", "w", stdout) == NULL) {
        dynapipe_llmc_die(dynapipe_cpu.run, "no /dev/null");
    }
#ifdef _OPENMP
    omp_set_num_threads(dynapipe_threads(dynapipe_llmc_session(dynapipe_cpu.run)));
#endif
}

// --- model and data --------------------------------------------------------------------------------------

static inline const char* dynapipe_cpu_model_path(const char* theirs) {
    const char* path = dynapipe_cpu_options()->model;
    if (path == NULL) { path = theirs; }
    if (dynapipe_cpu_is_on()) { dynapipe_llmc_check_model_file(dynapipe_cpu.run, path); }
    return path;
}

static inline const char* dynapipe_cpu_data(const void* loader, const char* theirs) {
    const DynapipeLlmcOptions* options = dynapipe_cpu_options();
    const char* path = loader == dynapipe_cpu.train_loader ? options->train_data : options->val_data;
    return path != NULL ? path : theirs;
}

// The first loader is the training's, the second the validation's. Returns 1: theirs is not to be opened.
static inline int dynapipe_cpu_loader(void* loader, size_t loader_bytes, const char* pattern, int B, int T,
                                      ...) {
    if (dynapipe_cpu.train_loader == NULL) {
        dynapipe_cpu.train_loader = loader;
        dynapipe_cpu.train_pattern = pattern;
        dynapipe_cpu.rows = B;
        dynapipe_cpu.seq_tokens = T;
    } else {
        dynapipe_cpu.val_loader = loader;
        dynapipe_cpu.val_pattern = pattern;
    }
    if (!dynapipe_cpu_is_on()) { return 0; }
    memset(loader, 0, loader_bytes);
    int** no_tokens = &dynapipe_cpu.no_tokens[loader == dynapipe_cpu.val_loader];
    if (*no_tokens == NULL) { *no_tokens = (int*)calloc((size_t)B * (size_t)T, sizeof(int)); }
    if (*no_tokens == NULL) { dynapipe_llmc_die(dynapipe_cpu.run, "no memory for a batch"); }
    return 1;
}

static inline int dynapipe_cpu_next_batch(const void* loader) {
    dynapipe_cpu.loader = loader;
    return dynapipe_cpu_is_on();
}

static inline void dynapipe_cpu_open_data(const GPT2* model) {
    const DynapipeLlmcOptions* options = dynapipe_cpu_options();
    int num_ranks = dynapipe_num_ranks(dynapipe_llmc_session(dynapipe_cpu.run));
    int64_t rows = dynapipe_cpu.rows, seq_tokens = dynapipe_cpu.seq_tokens;
    DynapipeRun_v1 about;
    memset(&about, 0, sizeof about);
    about.train_pattern = options->train_data != NULL ? options->train_data : dynapipe_cpu.train_pattern;
    about.val_pattern = options->val_data;
    if (options->train_data == NULL && about.val_pattern == NULL) {
        about.val_pattern = dynapipe_cpu.val_pattern;
    }
    about.max_seq_tokens = options->max_tokens > 0 ? options->max_tokens : (int32_t)seq_tokens;
    about.rows = (int32_t)rows;
    about.batch_tokens = options->batch_tokens > 0 ? options->batch_tokens : rows * seq_tokens * num_ranks;
    about.num_steps = options->steps > 0 ? options->steps : -1;
    dynapipe_llmc_open_data(dynapipe_cpu.run, &about, model->config.max_seq_len, model->config.vocab_size);
}

// --- the cut ---------------------------------------------------------------------------------------------

// By rank 0, as all have the same model; the others wait, or end with it.
static inline void dynapipe_cpu_probe(const GPT2* model) {
    Dynapipe* session = dynapipe_llmc_session(dynapipe_cpu.run);
    double done = 0;
    if (dynapipe_rank(session) == 0 && dynapipe_probe(model) != 0) {
        dynapipe_llmc_die(dynapipe_cpu.run, dynapipe_cpu_why(NULL));
    }
    dynapipe_llmc_check(dynapipe_cpu.run, dynapipe_sum(session, &done, 1));
    if (dynapipe_cpu_options()->check_model) {
        printf(
            "ok   sequences alone in the program's own gpt2_forward() and gpt2_backward() give the same\n");
    }
}

// From here on their struct is this rank's slice: what they update, zero and free.
static inline void dynapipe_cpu_cut(GPT2* model) {
    DynapipeRange blocks;
    DynapipeParams_v1 params;
    void* range;
    int num_threads = 1;
#ifdef _OPENMP
    num_threads = dynapipe_threads(dynapipe_llmc_session(dynapipe_cpu.run));
#endif
    int code = dynapipe_cpu_describe(model, num_threads);
    if (code < 0) {
        dynapipe_llmc_die(dynapipe_cpu.run,
                          "ParameterTensors or ActivationTensors are not one tensor for each "
                          "size that fill_in_*_sizes() says, or these are not "
                          "num_parameters: this model cannot be cut ---> doc/porting.md");
    }
    dynapipe_llmc_check(dynapipe_cpu.run, code);
    dynapipe_cpu_probe(model);
    dynapipe_cpu.api = dynapipe_cpu_api();
    DynapipeBlocks_v1 description = dynapipe_cpu_blocks(&dynapipe_cpu.api);
    blocks = dynapipe_llmc_place(dynapipe_cpu.run, &description);
    if (dynapipe_cpu_make(NULL, blocks, 1, &range, &params) != 0) {
        dynapipe_llmc_die(dynapipe_cpu.run, dynapipe_cpu_why(NULL));
    }
    free(model->params_memory);
    dynapipe_cpu.mine = (DynapipeCpuRange*)range;
    *model = dynapipe_cpu.mine->model;
    dynapipe_llmc_attach(dynapipe_cpu.run, &dynapipe_cpu.api, range, &params);
}

// --- checkpoints -----------------------------------------------------------------------------------------

static inline DynapipeLlmcCheckpoint dynapipe_cpu_checkpoint(const GPT2* model, int32_t header[256]) {
    const GPT2Config* config = &dynapipe_cpu_model.config;
    int32_t fields[8] = {20240326,
                         3,
                         config->max_seq_len,
                         config->vocab_size,
                         config->num_layers,
                         config->num_heads,
                         config->channels,
                         config->padded_vocab_size};
    DynapipeLlmcCheckpoint checkpoint;
    memset(header, 0, 256 * sizeof(int32_t));
    memcpy(header, fields, sizeof fields);
    memset(&checkpoint, 0, sizeof checkpoint);
    checkpoint.directory = dynapipe_cpu_options()->output_dir;
    checkpoint.tensors = &dynapipe_cpu_model.tensors;
    checkpoint.slice = &dynapipe_cpu.mine->slice;
    checkpoint.model_header = header;
    checkpoint.model_header_bytes = 256 * (int32_t)sizeof(int32_t);
    checkpoint.param_bytes = (int32_t)sizeof(float);
    checkpoint.params = model->params_memory;
    checkpoint.m = model->m_memory;
    checkpoint.v = model->v_memory;
    return checkpoint;
}

static inline void dynapipe_cpu_save(const GPT2* model) {
    const DynapipeLlmcOptions* options = dynapipe_cpu_options();
    int32_t header[256];
    int is_last = dynapipe_cpu.step == dynapipe_llmc_num_steps(dynapipe_cpu.run);
    if (options->output_dir == NULL || dynapipe_cpu.step == dynapipe_cpu.first_step) { return; }
    if (!dynapipe_llmc_is_due(dynapipe_cpu.run, dynapipe_cpu.step) && !is_last) { return; }
    DynapipeLlmcCheckpoint checkpoint = dynapipe_cpu_checkpoint(model, header);
    dynapipe_llmc_save(dynapipe_cpu.run, &checkpoint, dynapipe_cpu.step);
}

static inline void dynapipe_cpu_resume(GPT2* model) {
    int32_t header[256];
    int32_t step = dynapipe_llmc_latest(dynapipe_cpu.run, dynapipe_cpu_options()->output_dir);
    if (step < 0) { return; }
    model->m_memory = (float*)calloc(model->num_parameters, sizeof(float));
    model->v_memory = (float*)calloc(model->num_parameters, sizeof(float));
    if (model->m_memory == NULL || model->v_memory == NULL) {
        dynapipe_llmc_die(dynapipe_cpu.run, "no memory for the optimizer");
    }
    DynapipeLlmcCheckpoint checkpoint = dynapipe_cpu_checkpoint(model, header);
    dynapipe_llmc_resume(dynapipe_cpu.run, &checkpoint, step);
    dynapipe_cpu.step = step;
}

// Told to end by a signal: saves what is not saved yet, and does not return.
static inline void dynapipe_cpu_end_if_told(const GPT2* model) {
    if (!dynapipe_llmc_is_told_to_end(dynapipe_cpu.run)) { return; }
    dynapipe_cpu_save(model);
    dynapipe_llmc_end(dynapipe_cpu.run, dynapipe_cpu_options()->output_dir, dynapipe_cpu.step);
}

// --- the loop --------------------------------------------------------------------------------------------

static inline void dynapipe_cpu_need_model(void) {
    if (!dynapipe_cpu_is_on() || dynapipe_cpu.mine != NULL) { return; }
    dynapipe_llmc_die(dynapipe_cpu.run,
                      "a step before the model is cut: DYNAPIPE_FIRST is missing in the training "
                      "loop ---> dynapipe_plugin/install.sh --check says where");
}

static inline int dynapipe_cpu_first(GPT2* model, int first) {
    if (!dynapipe_cpu_is_on()) { return first; }
    dynapipe_cpu_open_data(model);
    dynapipe_cpu_cut(model);
    if (dynapipe_cpu_options()->resume) { dynapipe_cpu_resume(model); }
    dynapipe_llmc_begin(dynapipe_cpu.run, dynapipe_cpu_options()->output_dir);
    dynapipe_cpu.whole = model;
    dynapipe_cpu.first_step = dynapipe_cpu.step;
    return dynapipe_cpu.step;
}

static inline int dynapipe_cpu_counts_steps(void) {
    dynapipe_cpu_need_model();
    return dynapipe_cpu_is_on() || dynapipe_cpu_options()->steps > 0;
}

// Their loop's condition: behind the last step's report and their line of it.
static inline int dynapipe_cpu_has_step(int step) {
    if (dynapipe_cpu_is_on()) { dynapipe_cpu_end_if_told(dynapipe_cpu.whole); }
    return step <
           (dynapipe_cpu_is_on() ? dynapipe_llmc_num_steps(dynapipe_cpu.run) : dynapipe_cpu_options()->steps);
}

// Sampling and the like is rank 0's, and only where it has all of the model.
static inline int dynapipe_cpu_whole(void) {
    return !dynapipe_cpu_is_on() || (dynapipe_llmc_is_whole(dynapipe_cpu.run) &&
                                     dynapipe_rank(dynapipe_llmc_session(dynapipe_cpu.run)) == 0);
}

// All of their batches of a validation are one of the plugin's.
static inline float dynapipe_cpu_validate(void) {
    if (dynapipe_cpu.validated_step != dynapipe_cpu.step) {
        const DynapipeLlmcOptions* options = dynapipe_cpu_options();
        dynapipe_cpu.val_loss = (float)dynapipe_llmc_validate(dynapipe_cpu.run, options->val_batches,
                                                              dynapipe_cpu.step, options->output_dir);
        dynapipe_cpu_end_if_told(dynapipe_cpu.whole);
        dynapipe_cpu.validated_step = dynapipe_cpu.step;
    }
    return dynapipe_cpu.val_loss;
}

// What it is by the values of its arguments: `inputs` are no_tokens where they are a loader's.
static inline void dynapipe_cpu_check_forward_args(const int* inputs, const int* targets) {
    int is_loaders = inputs == dynapipe_cpu.no_tokens[0] || inputs == dynapipe_cpu.no_tokens[1];
    if (targets == NULL && inputs != NULL && is_loaders) {
        dynapipe_llmc_die(dynapipe_cpu.run,
                          "gpt2_forward() of a loader's tokens without targets: the plugin has the data, and "
                          "tokens only in its steps ---> run that with --fixed-length");
    }
    if (targets == NULL && !dynapipe_llmc_is_whole(dynapipe_cpu.run)) {
        dynapipe_llmc_die(dynapipe_cpu.run,
                          "a forward pass of the whole model, which is cut: DYNAPIPE_WHOLE_AND is "
                          "missing ---> dynapipe_plugin/install.sh --check says where");
    }
    if (targets != NULL && dynapipe_cpu.loader == NULL) {
        dynapipe_llmc_die(dynapipe_cpu.run,
                          "gpt2_forward() with targets before dataloader_next_batch(): is it "
                          "a step or validation? ---> ask a loader first");
    }
}

// The first training forward after an update has all of its tokens, however often they go on to accumulate.
static inline float dynapipe_cpu_train(void) {
    if (dynapipe_cpu.has_stepped) {
        dynapipe_llmc_say_once(dynapipe_cpu.run,
                               "several training batches for one gpt2_update(): the first is a step of "
                               "--batch-tokens tokens, the others are passed over");
    } else {
        dynapipe_cpu.loss = (float)dynapipe_llmc_step(dynapipe_cpu.run);
        dynapipe_cpu.has_stepped = 1;
    }
    return dynapipe_cpu.loss;
}

// Whose targets these are; where they were copied, those of the loader that was asked last.
static inline int dynapipe_cpu_is_validation(const int* targets) {
    if (targets == dynapipe_cpu.no_tokens[0] || targets == dynapipe_cpu.no_tokens[1]) {
        return targets == dynapipe_cpu.no_tokens[1];
    }
    return dynapipe_cpu.loader == dynapipe_cpu.val_loader;
}

// Returns 1: done; 0: theirs is to run.
static inline int dynapipe_cpu_run_forward(GPT2* model, const int* inputs, const int* targets) {
    if (!dynapipe_cpu_is_on()) { return 0; }
    dynapipe_cpu_need_model();
    dynapipe_cpu_check_forward_args(inputs, targets);
    if (targets == NULL) { return 0; }
    model->mean_loss = dynapipe_cpu_is_validation(targets) ? dynapipe_cpu_validate() : dynapipe_cpu_train();
    return 1;
}

static inline float dynapipe_cpu_norm(const GPT2* model) {
    enum { MOST_SPANS = DYNAPIPE_MAX_TENSORS + 1 };
    DynapipeSpan spans[MOST_SPANS];
    int32_t num_spans;
    double squares = 0;
    dynapipe_llmc_check(dynapipe_cpu.run, dynapipe_counted(dynapipe_llmc_session(dynapipe_cpu.run), spans,
                                                           MOST_SPANS, &num_spans));
    for (int32_t s = 0; s < num_spans; s++) {
        squares +=
            dynapipe_cpu_sum_squares(model->grads_memory + spans[s].begin, spans[s].end - spans[s].begin);
    }
    return (float)dynapipe_llmc_norm(dynapipe_cpu.run, squares);
}

static inline float dynapipe_cpu_rate(float theirs) {
    double given = dynapipe_cpu_options()->lr;
    return dynapipe_cpu.lr = given > 0 ? (float)given : theirs;
}

static inline void dynapipe_cpu_before_update(const GPT2* model) {
    if (!dynapipe_cpu_is_on()) { return; }
    if (!dynapipe_cpu.has_stepped) {
        dynapipe_llmc_die(dynapipe_cpu.run,
                          "gpt2_update() without a gpt2_forward() of training tokens since the last one: no "
                          "gradients ---> ask the training loader, then forward, backward, update");
    }
    int32_t header[256];
    DynapipeLlmcCheckpoint checkpoint = dynapipe_cpu_checkpoint(model, header);
    dynapipe_llmc_dump_gradients(dynapipe_cpu.run, &checkpoint, model->grads_memory);
    dynapipe_cpu.norm = dynapipe_cpu_norm(model);
}

static inline void dynapipe_cpu_after_update(const GPT2* model) {
    if (!dynapipe_cpu_is_on()) { return; }
    DynapipeReport_v1 report;
    memset(&report, 0, sizeof report);
    dynapipe_cpu.has_stepped = 0;
    report.step = ++dynapipe_cpu.step;
    report.norm = dynapipe_cpu.norm;
    report.lr = dynapipe_cpu.lr;
    report.loss_z = report.norm_z = NAN;
    report.log_dir = dynapipe_cpu_options()->output_dir;
    dynapipe_llmc_end_step(dynapipe_cpu.run, &report);
    dynapipe_cpu_save(model);
}

static inline void dynapipe_cpu_close(void) {
    int status = dynapipe_llmc_close(dynapipe_cpu.run);
    for (int i = 0; i < 2; i++) {
        free(dynapipe_cpu.no_tokens[i]);
        dynapipe_cpu.no_tokens[i] = NULL;
    }
    free(dynapipe_cpu.mine);  // what it points to is the model's
    dynapipe_cpu.run = NULL;
    dynapipe_cpu.mine = NULL;
    if (status != 0) { exit(status); }  // their main() would return 0
}

// --- main's words, and what its calls mean ---------------------------------------------------------------

#define DYNAPIPE_OPEN(argc, argv) dynapipe_cpu_open(&argc, &argv);
#define DYNAPIPE_FIRST(model, first) dynapipe_cpu_first(model, first)
#define DYNAPIPE_STEPS_OR(step) dynapipe_cpu_counts_steps() ? dynapipe_cpu_has_step(step):
#define DYNAPIPE_WHOLE_AND dynapipe_cpu_whole()&&

#define gpt2_build_from_checkpoint(model, path) \
    (gpt2_build_from_checkpoint)(model, dynapipe_cpu_model_path(path))
#define dataloader_init(loader, pattern, ...)                                      \
    (dynapipe_cpu_loader(loader, sizeof *(loader), pattern, __VA_ARGS__)           \
         ? (void)((loader)->inputs = (loader)->targets =                           \
                      dynapipe_cpu.no_tokens[(loader) == dynapipe_cpu.val_loader]) \
         : (dataloader_init)(loader, dynapipe_cpu_data(loader, pattern), __VA_ARGS__))
#define dataloader_reset(loader) (dynapipe_cpu_is_on() ? (void)0 : (dataloader_reset)(loader))
#define dataloader_next_batch(loader) \
    (dynapipe_cpu_next_batch(loader) ? (void)0 : (dataloader_next_batch)(loader))
#define dataloader_free(loader) (dynapipe_cpu_is_on() ? (void)0 : (dataloader_free)(loader))
#define gpt2_forward(model, inputs, targets, ...)               \
    (dynapipe_cpu_run_forward(model, inputs, targets) ? (void)0 \
                                                      : (gpt2_forward)(model, inputs, targets, __VA_ARGS__))
#define gpt2_zero_grad(model) (dynapipe_cpu_is_on() ? (void)0 : (gpt2_zero_grad)(model))
#define gpt2_backward(model) (dynapipe_cpu_is_on() ? (void)0 : (gpt2_backward)(model))
#define gpt2_update(model, rate, ...)                                                               \
    (dynapipe_cpu_before_update(model), (gpt2_update)(model, dynapipe_cpu_rate(rate), __VA_ARGS__), \
     dynapipe_cpu_after_update(model))
#define gpt2_free(model) (dynapipe_cpu_close(), (gpt2_free)(model))

#endif
