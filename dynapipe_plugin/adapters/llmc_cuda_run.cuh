/*
llmc_cuda_run.cuh -- a run of llm.c's CUDA trainer with the plugin: what its main() calls in place of their
functions. Part of llmc_cuda_main.cuh.
*/
#pragma once

#include "llmc_cuda_check.cuh"

typedef struct {
    DynapipeModel_v1 api;
    DynapipeCudaRange mine;  // its view: their model, with other activations
    int num_layers;          // of the whole model
    const char *train_pattern, *val_pattern, *log_dir;
    DataLoader *train_loader, *val_loader;
    int rows, max_tokens;  // -b, -t
    int64_t batch_tokens;  // of a step over all ranks, at most
    int val_max_batches;
    int num_steps;             // made and reported so far
    bool is_open;              // a step is made, and not reported yet
    DynapipeReport_v1 report;  // of that step
    int first_step;            // made before this run
    DYNAPIPE_TREE_MODEL* model;
    bool has_validated;  // val_loss is of now
    float val_loss;
} DynapipeCudaMain;

static DynapipeCudaMain dynapipe_cuda;

static inline bool dynapipe_cuda_is_on(void) {
    return dynapipe_llmc_is_on(dynapipe_cuda_run) != 0;
}

static Dynapipe* dynapipe_cuda_session(void) {
    return dynapipe_llmc_session(dynapipe_cuda_run);
}

// --- before the model ------------------------------------------------------------------------------------

// num_processes is what main() reckons with; their own communication sees none of it, nor NCCL's handles.
static MultiGpuConfig dynapipe_cuda_config(void) {
    MultiGpuConfig config = {};
    config.process_rank = dynapipe_rank(dynapipe_cuda_session());
    config.num_processes = dynapipe_num_ranks(dynapipe_cuda_session());
    cudaCheck(cudaGetDevice(&config.local_device_idx));
    return config;
}

static int dynapipe_cuda_zero_stage(int zero_stage) {
    if (!dynapipe_cuda_is_on() || zero_stage == 0) { return zero_stage; }
    dynapipe_llmc_say_once(dynapipe_cuda_run,
                           "| ZeRO with the plugin: their update takes whole tensors, so each replica "
                           "keeps all of its stage (-z 0)");
    return 0;
}

// The first is for training, the second for validation. Nothing is opened.
static void dynapipe_cuda_loader(DataLoader* loader, const char* pattern, int B, int T) {
    memset((void*)loader, 0, sizeof *loader);
    if (dynapipe_cuda.train_pattern == NULL) {
        dynapipe_cuda.train_pattern = pattern;
        dynapipe_cuda.train_loader = loader;
        dynapipe_cuda.rows = B;
        dynapipe_cuda.max_tokens = T;
    } else {
        dynapipe_cuda.val_pattern = pattern;
        dynapipe_cuda.val_loader = loader;
    }
}

// --- the model -------------------------------------------------------------------------------------------

// llm.c's classifier never ends where a row has fewer than 1024 packs of 16 bytes. A tree with another one
// defines this as 1.
#ifndef DYNAPIPE_TREE_LEAST_VOCAB
#define DYNAPIPE_TREE_LEAST_VOCAB (1024 * (int)x128::size)
#endif

static void dynapipe_cuda_check_model(const DYNAPIPE_TREE_MODEL* model) {
    if (model->config.vocab_size >= DYNAPIPE_TREE_LEAST_VOCAB) { return; }
    dynapipe_llmc_die(dynapipe_cuda_run,
                      "llm.c's fused_classifier() never ends on so small a vocabulary (under 4096 ids "
                      "in float32, 8192 in 16 bits) ---> a larger one");
}

static DynapipeRun_v1 dynapipe_cuda_about(int max_steps, int64_t batch_tokens, int overfit) {
    DynapipeRun_v1 about = {};
    about.train_pattern = dynapipe_cuda.train_pattern;
    about.val_pattern = dynapipe_cuda.val_pattern;
    about.batch_tokens = batch_tokens;
    about.max_seq_tokens = dynapipe_cuda_model.max_tokens;
    about.rows = dynapipe_cuda.rows;
    about.num_steps = max_steps;
    about.overfit = overfit;
    return about;
}

// Model and patterns are there: opens the data, measures, cuts.
static void dynapipe_cuda_start(DYNAPIPE_TREE_MODEL* model, int max_steps, int64_t batch_tokens,
                                int val_max_batches, int overfit, const char* log_dir) {
    DynapipeCudaModel* all = &dynapipe_cuda_model;
    if (!dynapipe_cuda_is_on()) { return; }
    dynapipe_cuda_check_model(model);
    all->whole = model;
    dynapipe_cuda.model = model;
    all->stream = main_stream;
    all->max_tokens = std::min(dynapipe_cuda.max_tokens, model->config.max_seq_len / 8 * 8);
    dynapipe_cuda.num_layers = model->config.num_layers;
    dynapipe_cuda.batch_tokens = batch_tokens;
    dynapipe_cuda.val_max_batches = val_max_batches;
    dynapipe_cuda.log_dir = log_dir;
    dynapipe_llmc_check(dynapipe_cuda_run, dynapipe_cuda_tensors(&all->tensors, &model->config));
    dynapipe_cuda_check_params(model);
    dynapipe_cuda_check_acts(model);
    dynapipe_llmc_check(dynapipe_cuda_run, dynapipe_use_stream(dynapipe_cuda_session(), main_stream));
    DynapipeRun_v1 about = dynapipe_cuda_about(max_steps, batch_tokens, overfit);
    dynapipe_llmc_open_data(dynapipe_cuda_run, &about, model->config.max_seq_len, model->config.vocab_size);
    dynapipe_cuda.val_loader->num_tokens = (size_t)batch_tokens;  // so that they count one batch
    dynapipe_cuda.train_loader->num_tokens =
        (size_t)dynapipe_llmc_num_steps(dynapipe_cuda_run) * (size_t)batch_tokens;
    DYNAPIPE_TREE_PREPARE(model, all->max_tokens);
    dynapipe_cuda.api = dynapipe_cuda_api();
    DynapipeBlocks_v1 blocks = dynapipe_cuda_blocks(all, &dynapipe_cuda.api);
    dynapipe_cuda_check_tree(&blocks.shapes);
    dynapipe_cuda.mine.slice = dynapipe_cuda_cut(model, dynapipe_llmc_place(dynapipe_cuda_run, &blocks));
}

// State of theirs for the slice. Activations of their own serve samples of text, which only a whole model
// has.
static void dynapipe_cuda_allocate(DYNAPIPE_TREE_MODEL* model, int B, int T) {
    bool is_ours = dynapipe_cuda_is_on();
    DYNAPIPE_TREE(allocate_state)
    (model, is_ours && dynapipe_num_stages(dynapipe_cuda_session()) > 1 ? 1 : B, T);
    if (!is_ours) { return; }
    DynapipeCudaRange* mine = &dynapipe_cuda.mine;
    model->rng_state -= (unsigned long long)multi_gpu_config.process_rank;  // all ranks round alike
    dynapipe_cuda_begin_state(model);
    mine->view = *model;
    dynapipe_cuda_point_view(&mine->view, &mine->slice);
    DynapipeParams_v1 params = dynapipe_cuda_params(mine);
    dynapipe_llmc_attach(dynapipe_cuda_run, &dynapipe_cuda.api, mine, &params);
}

// --- the end of a step -----------------------------------------------------------------------------------

// Parameters and report of the step made last. Called by all ranks: behind the update, or where that was
// passed over (an outlier) at their next call.
static void dynapipe_cuda_end_step(void) {
    if (!dynapipe_cuda.is_open) { return; }
    DynapipeReport_v1* report = &dynapipe_cuda.report;
    report->step = ++dynapipe_cuda.num_steps;
    report->log_dir = dynapipe_cuda.log_dir;
    dynapipe_cuda.is_open = false;
    dynapipe_llmc_end_step(dynapipe_cuda_run, report);
}

// --- checkpoints -----------------------------------------------------------------------------------------

static void dynapipe_cuda_to_host(void* host, const void* values, size_t num_bytes) {
    cudaCheck(cudaMemcpy(host, values, num_bytes, cudaMemcpyDeviceToHost));
}

static void dynapipe_cuda_from_host(void* values, const void* host, size_t num_bytes) {
    cudaCheck(cudaMemcpy(values, host, num_bytes, cudaMemcpyHostToDevice));
}

// header: what its model file begins with.
static DynapipeLlmcCheckpoint dynapipe_cuda_checkpoint(DYNAPIPE_TREE_MODEL* model, const char* directory,
                                                       const std::string& header) {
    static const DynapipeCopies copies = {dynapipe_cuda_to_host, dynapipe_cuda_from_host};
    DynapipeLlmcCheckpoint checkpoint = {};
    checkpoint.directory = directory;
    checkpoint.tensors = &dynapipe_cuda_model.tensors;
    checkpoint.slice = &dynapipe_cuda.mine.slice;
    checkpoint.model_header = header.data();
    checkpoint.model_header_bytes = (int32_t)header.size();
    checkpoint.param_bytes = (int32_t)sizeof(floatX);
    checkpoint.params = model->params_memory;
    checkpoint.m = model->m_memory;
    checkpoint.v = model->v_memory;
    checkpoint.master = model->master_weights;
    checkpoint.copies = &copies;
    checkpoint.rng_states[0] = model->rng_state;
    checkpoint.rng_states[1] = model->rng_state_last_update;
    return checkpoint;
}

// What a model file of theirs begins with: their writer, on a model of all layers and no values.
static std::string dynapipe_cuda_header(const DYNAPIPE_TREE_MODEL* model, const std::string& beside) {
    std::string path = beside + ".header" + std::to_string(multi_gpu_config.process_rank);
    DYNAPIPE_TREE_MODEL empty = *model;
    empty.config.num_layers = dynapipe_cuda.num_layers;
    empty.num_parameters_bytes = 0;
    DYNAPIPE_TREE(write_to_checkpoint)(&empty, path.c_str());
    std::string header;
    FILE* file = fopenCheck(path.c_str(), "rb");
    for (int c = fgetc(file); c != EOF; c = fgetc(file)) { header += (char)c; }
    fcloseCheck(file);
    remove(path.c_str());
    return header;
}

// Without a look at what is open: `step` is made and reported.
static void dynapipe_cuda_write(const char* directory, int step, DYNAPIPE_TREE_MODEL* model) {
    std::string header = dynapipe_cuda_header(model, std::string(directory) + "/model");
    DynapipeLlmcCheckpoint checkpoint = dynapipe_cuda_checkpoint(model, directory, header);
    cudaCheck(cudaDeviceSynchronize());
    dynapipe_llmc_save(dynapipe_cuda_run, &checkpoint, step);
}

// By the clock, or as a signal ends the run.
static void dynapipe_cuda_save_if_due(void) {
    int step = dynapipe_cuda.num_steps;
    if (dynapipe_cuda.log_dir == NULL || step == dynapipe_cuda.first_step) { return; }
    if (!dynapipe_llmc_is_due(dynapipe_cuda_run, step)) { return; }
    dynapipe_cuda_write(dynapipe_cuda.log_dir, step, dynapipe_cuda.model);
}

// Told to end by a signal: saves what is not saved yet, and does not return. Where their loop calls us next,
// behind its own lines about the step.
static void dynapipe_cuda_end_if_told(void) {
    if (!dynapipe_llmc_is_told_to_end(dynapipe_cuda_run)) { return; }
    dynapipe_cuda_end_step();
    dynapipe_cuda_save_if_due();
    cudaCheck(cudaDeviceSynchronize());
    dynapipe_llmc_end(dynapipe_cuda_run, dynapipe_cuda.log_dir, dynapipe_cuda.num_steps);
}

static void dynapipe_cuda_save(const char* directory, int step, DYNAPIPE_TREE_MODEL* model) {
    dynapipe_cuda_end_step();
    dynapipe_cuda_write(directory, step, model);
    dynapipe_cuda_end_if_told();
}

// filename: of their state in the checkpoint's folder; which step is looked up there.
static void dynapipe_cuda_resume(int* step, DYNAPIPE_TREE_MODEL* model, const char* filename) {
    std::string directory(filename);
    directory.resize(directory.rfind('/'));
    std::string header = dynapipe_cuda_header(model, directory + "/model");
    DynapipeLlmcCheckpoint checkpoint = dynapipe_cuda_checkpoint(model, directory.c_str(), header);
    *step = dynapipe_llmc_latest(dynapipe_cuda_run, directory.c_str());
    dynapipe_llmc_resume(dynapipe_cuda_run, &checkpoint, *step);
    model->rng_state = checkpoint.rng_states[0];
    model->rng_state_last_update = checkpoint.rng_states[1];
    dynapipe_cuda.num_steps = dynapipe_cuda.first_step = *step;
}

// --- the loop --------------------------------------------------------------------------------------------

static void dynapipe_cuda_step(DYNAPIPE_TREE_MODEL* model, int micro_step) {
    if (micro_step > 0) { return; }
    dynapipe_cuda_end_step();
    dynapipe_cuda_end_if_told();
    dynapipe_llmc_begin(dynapipe_cuda_run, dynapipe_cuda.log_dir);
    model->mean_loss = (float)dynapipe_llmc_step(dynapipe_cuda_run);
    dynapipe_cuda.report = {};
    dynapipe_cuda.report.norm = dynapipe_cuda.report.loss_z = dynapipe_cuda.report.norm_z = NAN;
    dynapipe_cuda.is_open = true;
}

// A z-score of theirs: of the loss, or behind the norm of that.
static double dynapipe_cuda_z(double z) {
    DynapipeReport_v1* report = &dynapipe_cuda.report;
    (std::isnan(report->norm) ? report->loss_z : report->norm_z) = (float)z;
    return z;
}

template <class Rate, class... Rest>
static void dynapipe_cuda_update(DYNAPIPE_TREE_MODEL* model, Rate rate, Rest... rest) {
    DYNAPIPE_TREE(update)(model, rate, rest...);
    if (!dynapipe_cuda_is_on()) { return; }
    dynapipe_cuda.report.lr = (float)rate;
    dynapipe_cuda_end_step();
    dynapipe_cuda_save_if_due();
}

// That a rank works on, for the flops of its slice.
static int dynapipe_cuda_rank_tokens(int num_tokens) {
    if (!dynapipe_cuda_is_on()) { return num_tokens; }
    return (int)(dynapipe_cuda.batch_tokens / dynapipe_num_replicas(dynapipe_cuda_session()));
}

static void dynapipe_cuda_reset(void) {
    dynapipe_cuda_end_if_told();
    dynapipe_cuda.has_validated = false;
}

// All of the validation at the first call behind a reset; the same for each batch that they count.
static float dynapipe_cuda_validate(void) {
    dynapipe_cuda_end_step();
    if (!dynapipe_cuda.has_validated) {
        dynapipe_cuda.val_loss = (float)dynapipe_llmc_validate(
            dynapipe_cuda_run, dynapipe_cuda.val_max_batches, dynapipe_cuda.num_steps, dynapipe_cuda.log_dir);
        dynapipe_cuda_end_if_told();
    }
    dynapipe_cuda.has_validated = true;
    return dynapipe_cuda.val_loss;
}

// The first step's gradients, where --dump-gradients asks for them.
static void dynapipe_cuda_dump(DYNAPIPE_TREE_MODEL* model) {
    const char* path = dynapipe_option(dynapipe_cuda_session(), "--dump-gradients");
    static bool has_dumped;
    if (path == NULL || has_dumped) { return; }
    has_dumped = true;
    std::string header = dynapipe_cuda_header(model, path);
    DynapipeLlmcCheckpoint checkpoint = dynapipe_cuda_checkpoint(model, NULL, header);
    dynapipe_llmc_dump_gradients(dynapipe_cuda_run, &checkpoint, model->grads_memory);
}

// Of all ranks, each parameter once.
static float dynapipe_cuda_norm(DYNAPIPE_TREE_MODEL* model) {
    enum { MAX_SPANS = 256 };
    DynapipeSpan spans[MAX_SPANS];
    int32_t num_spans;
    dynapipe_llmc_check(dynapipe_cuda_run,
                        dynapipe_counted(dynapipe_cuda_session(), spans, MAX_SPANS, &num_spans));
    double squares = 0.0;
    for (int i = 0; i < num_spans; i++) {
        squares += dynapipe_cuda_sum_squares(model->grads_memory, spans[i]);
    }
    dynapipe_cuda_dump(model);
    return dynapipe_cuda.report.norm = (float)dynapipe_llmc_norm(dynapipe_cuda_run, squares);
}

// --- the end ---------------------------------------------------------------------------------------------

// While the stream still lives.
static void dynapipe_cuda_close(void) {
    dynapipe_cuda_end_step();
    cudaCheck(cudaDeviceSynchronize());
    dynapipe_staging_free(&dynapipe_cuda_model.staging);
    dynapipe_rooms_free(&dynapipe_cuda_model.rooms);
    const int status = dynapipe_llmc_close(dynapipe_cuda_run);
    dynapipe_cuda_run = NULL;
    if (status != 0) { exit(status); }  // their main() would return 0
}
