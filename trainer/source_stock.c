#include "source_stock.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../dataloader/collate.h"
#include "../dataloader/sample_file.h"
#include "../llmc/completion.h"
#include "../llmc/llmc_error.h"
#include "answers.h"
#include "source.h"
#include "../util/options.h"
#include "../util/program.h"

// The number of processes according to the launcher's environment; 1: no launcher known.
static int launched_processes(void) {
    static const char* const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"};
    const char* text = NULL;
    for (int i = 0; i < 3 && text == NULL; i++) { text = getenv(names[i]); }
    // SLURM_NTASKS is also set for a batch script, which is one process; a step of srun has a rank.
    const char *step = getenv("SLURM_STEP_ID"), *name = getenv("SLURM_STEP_NAME");
    bool is_script = name == NULL || strcmp(name, "batch") == 0 || strcmp(name, "interactive") == 0;
    if (text == NULL && step != NULL && !is_script) { text = getenv("SLURM_STEP_NUM_TASKS"); }
    return text != NULL ? atoi(text) : 1;
}

// Ends the program (status 2) if a launcher started several processes; the first prints the remedy.
// name: of the trainer, after "train_".
static void launched_must_be_alone(const char* name) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *other = getenv("PMI_RANK");
    int num_processes = launched_processes();
    if (num_processes <= 1) { return; }
    if (rank == NULL) { rank = other != NULL ? other : getenv("SLURM_PROCID"); }
    if (rank == NULL || strcmp(rank, "0") == 0) {
        fprintf(stderr,
                "error: %d processes were started, and this build of train_%s is for one: each would train a "
                "copy ---> make train_%s DYNAPIPE=1, or start it without mpirun\n",
                num_processes, name, name);
    } else {
        sleep(1);  // mpirun ends all with the first exit, so rank 0 must print before
    }
    exit(2);  // wrong use
}

// --- batches of fixed length -------------------------------------------------------------------------------

static void check(Status status) {
    if (status == STATUS_OK) { return; }
    fprintf(stderr, "error: %s\n", status_message());
    exit(EXIT_FAILURE);
}

static void open_tokens(StockStream* s, const char* pattern, bool shuffle, uint64_t seed) {
    size_t n = (size_t)s->rows * (size_t)s->seq_tokens;
    check(token_stream_open(&s->tokens, pattern, s->rows, s->seq_tokens, shuffle, seed));
    s->inputs = llmc_alloc((4 * n + (size_t)s->rows + 1) * sizeof(int32_t), "a batch");
    s->targets = s->inputs + n;
    s->positions = s->targets + n;
    s->every_row = s->positions + n;
    s->cu_seqlens = s->every_row + n;
    for (size_t i = 0; i < n; i++) {
        s->positions[i] = (int32_t)(i % (size_t)s->seq_tokens);
        s->every_row[i] = (int32_t)i;
    }
    for (int b = 0; b <= s->rows; b++) { s->cu_seqlens[b] = b * s->seq_tokens; }
}

static void stock_stream_open(StockStream* out, const TrainFlags* flags, const ModelKind* kind,
                              const char* pattern, bool shuffle, uint64_t seed) {
    *out = (StockStream){.rows = flags->rows, .seq_tokens = flags->seq_tokens, .seed = seed};
    if (!kind->has_decoder) {
        open_tokens(out, pattern, shuffle, seed);
        size_t n = (size_t)out->rows * (size_t)out->seq_tokens;
        if (flags->dropout > 0) { out->keys = llmc_alloc(n * sizeof(uint32_t), "keys of dropout"); }
        return;
    }
    out->target_tokens = flags->target_tokens > 0 ? flags->target_tokens : flags->seq_tokens;
    LoaderOptions options = {.batch_tokens = 1,
                             .max_seq_tokens = out->seq_tokens,
                             .encoder_decoder = true,
                             .max_target_tokens = out->target_tokens,
                             .temperature = 1,
                             .seed = seed,
                             .shuffle = shuffle};
    check(pair_stream_open(&out->pairs, pattern, out->rows, &options));
}

static void stock_stream_close(StockStream* s) {
    token_stream_close(s->tokens);
    pair_stream_close(s->pairs);
    free(s->inputs);
    free(s->keys);
    *s = (StockStream){0};
}

// The largest counts that a batch can have, without arrays.
static ModelBatch stock_stream_shape(const StockStream* s) {
    ModelBatch batch = {.num_seqs = s->rows,
                        .num_tokens = s->rows * s->seq_tokens,
                        .num_rows = s->rows * (s->pairs != NULL ? s->target_tokens : s->seq_tokens),
                        .max_seq_tokens = s->seq_tokens};
    if (s->pairs != NULL) {
        batch.num_dec_tokens = s->rows * s->target_tokens;
        batch.max_dec_seq_tokens = s->target_tokens;
    }
    return batch;
}

static ModelBatch next_pairs(StockStream* s) {
    DynapipeBatch b;
    check(pair_stream_next_batch(s->pairs, &b));
    return (ModelBatch){.num_seqs = b.num_seqs,
                        .num_tokens = b.num_tokens,
                        .num_rows = b.num_rows,
                        .max_seq_tokens = b.max_seq_tokens,
                        .cu_seqlens = b.cu_seqlens,
                        .tokens = b.tokens,
                        .positions = b.positions,
                        .rows = b.rows,
                        .targets = b.targets,
                        .seq_lens = b.seq_lens,
                        .token_keys = b.token_keys,
                        .num_dec_tokens = b.num_dec_tokens,
                        .max_dec_seq_tokens = b.max_dec_seq_tokens,
                        .dec_cu_seqlens = b.dec_cu_seqlens,
                        .dec_tokens = b.dec_tokens,
                        .dec_positions = b.dec_positions,
                        .dec_seq_lens = b.dec_seq_lens,
                        .dec_token_keys = b.dec_token_keys};
}

// For the next batch, one sample per row.
static void fill_keys(StockStream* s) {
    const CollateParams params = {.seed = s->seed, .step = token_stream_info(s->tokens)->position};
    for (int b = 0; b < s->rows && s->keys != NULL; b++) {
        uint32_t* row = s->keys + (size_t)b * (size_t)s->seq_tokens;
        for (int t = 0; t < s->seq_tokens; t++) { row[t] = collate_token_key(&params, b, t, false); }
    }
}

// Arrays are valid until the next call. loss_scale is 0.
static ModelBatch stock_stream_next(StockStream* s) {
    if (s->pairs != NULL) { return next_pairs(s); }
    fill_keys(s);
    check(token_stream_next_batch(s->tokens, s->inputs, s->targets));
    ModelBatch batch = stock_stream_shape(s);
    batch.cu_seqlens = s->cu_seqlens;
    batch.tokens = s->inputs;
    batch.positions = s->positions;
    batch.rows = s->every_row;
    batch.targets = s->targets;
    batch.token_keys = s->keys;
    return batch;
}

static StreamInfo* stock_stream_info(const StockStream* s) {
    return s->pairs != NULL ? pair_stream_info(s->pairs) : token_stream_info(s->tokens);
}

static int32_t stock_stream_start_token(const StockStream* s) {
    int32_t pad = stock_stream_info(s)->pad_token;
    return pad >= 0 ? pad : stock_stream_info(s)->eot_token;
}

// --- the source --------------------------------------------------------------------------------------------
// Gradients from llm.c's loop: fixed-length batches of rows x tokens, one process.

enum { STOCK_SEED = 42 };

typedef struct {
    bool quiet;
} StockOptions;

static const OptionSpec specs[] = {
    {"--quiet", OPTION_BOOL, offsetof(StockOptions, quiet), NULL, 0, 0, NULL, NULL, "no line for each step"},
};
enum { NUM_SPECS = sizeof specs / sizeof specs[0] };

struct Source {
    StockOptions options;
    const ModelKind* kind;
    TrainFlags flags;
    OpsContext* ops;
    Model* model;
    StockStream train, val;
    SampleVerify* verify;  // NULL with --verify 0
    bool says_left;        // some data was not verified
    TokenText text;
    int num_steps, micro_steps;  // of the run; per optimizer step
    int step;                    // completed
    int64_t* position;           // of checkpoints: batches drawn, then the content_ids of -i's files
    int64_t open_ns, begin_ns;   // of the run, of the current step
    double steps_ms;             // of the steps of this process ...
    int num_timed;               // ... and how many they are
    float* losses;               // of all batches of a step
    void *acts, *scratch;        // on the device
};

void source_die(Source* source, const char* why) {
    (void)source;
    fprintf(stderr, "error: %s\n", why);
    exit(EXIT_FAILURE);
}

void source_refuse(Source* source, const char* why) {
    (void)source;
    fprintf(stderr, "error: %s\n", why);
    exit(2);
}

static void source_stock_check(Source* source, Status status) {
    if (status != STATUS_OK) { source_die(source, status_message()); }
}

// Other words belong to the trainer, which checks them.
static void take_options(Source* source, int* argc, char** argv) {
    int kept = 1;
    for (int i = 1; i < *argc; i++) {
        if (strcmp(argv[i], "--quiet") == 0) {
            source->options.quiet = true;
        } else {
            argv[kept++] = argv[i];
        }
    }
    *argc = kept;
}

Source* source_open(int* argc, char*** argv, const ModelKind* kind) {
    Source* source = (Source*)calloc(1, sizeof(Source));
    if (source == NULL) { exit(EXIT_FAILURE); }
    if (!train_flags_want_help(*argc, *argv)) { launched_must_be_alone(kind->name); }
    take_options(source, argc, *argv);
    source->kind = kind;
    source->open_ns = clock_now_ns();
    stop_signal_watch();
    return source;
}

void source_close(Source* source) {
    sample_verify_stop(source->verify);
    stock_stream_close(&source->train);
    stock_stream_close(&source->val);
    token_text_free(&source->text);
    if (source->ops != NULL) {
        ops_release(source->ops, source->acts);
        ops_release(source->ops, source->scratch);
    }
    ops_free(source->ops);
    free(source->losses);
    free(source->position);
    free(source);
}

void source_print_usage(FILE* out, const ModelKind* kind) {
    fprintf(out,
            "usage: ./train_%s -i FILES [flags]\n"
            "Trains a %s on fixed-length batches in one process. `make train_%s DYNAPIPE=1` builds the\n"
            "trainer of task mixtures on a dynamic pipeline, with --options.\n",
            kind->name, kind->title, kind->name);
}

void source_print_options(FILE* out) {
    options_print(specs, NUM_SPECS, out);
}

void source_print_version(FILE* out) {
    fprintf(out, "no plugin: one process\n");
}

bool source_is_main(const Source* source) {
    (void)source;
    return true;
}

int source_rank(const Source* source) {
    (void)source;
    return 0;
}

int source_num_ranks(const Source* source) {
    (void)source;
    return 1;
}

int source_stop_signal(const Source* source) {
    (void)source;
    return stop_signal_seen();
}

double source_seconds(const Source* source) {
    return (double)(clock_now_ns() - source->open_ns) / 1e9;
}

static void open_validation(Source* source) {
    const TrainFlags* flags = &source->flags;
    if (flags->val_pattern == NULL) { return; }
    stock_stream_open(&source->val, flags, source->kind, flags->val_pattern, false, 0);
    source_stock_check(source, sample_shards_check_vocab(stock_stream_info(&source->train)->shards,
                                                         stock_stream_info(&source->val)->shards));
}

static size_t position_bytes(Source* source) {
    return (size_t)(1 + stock_stream_info(&source->train)->shards->num_files) * sizeof(int64_t);
}

// The data is verified during training, as with the plugin (sample_file.h).
static void open_verification(Source* source) {
    SampleShards* shards[2] = {stock_stream_info(&source->train)->shards};
    bool has_val = source->flags.val_pattern != NULL;
    if (has_val) { shards[1] = stock_stream_info(&source->val)->shards; }
    source->position = (int64_t*)llmc_alloc(position_bytes(source), "the position");
    memset(source->position, 0, position_bytes(source));
    if (source->flags.verify == 0) { return; }
    source_stock_check(source, sample_verify_start(&source->verify, shards, has_val ? 2 : 1, 0, 1));
}

// Waits until all is read or the run is told to end; a resumed run verifies again.
static void wait_until_verified(Source* source) {
    enum { TURN_NS = 100000000 };
    bool is_done = false;
    while (!is_done && stop_signal_seen() == 0) {
        source_stock_check(source, sample_verify_wait(source->verify, TURN_NS, &is_done));
    }
    source_stock_check(source, sample_verify_damage(source->verify));
    int64_t left_bytes = sample_verify_left_bytes(source->verify);
    if (left_bytes == 0 || source->says_left) { return; }
    printf("told to end before all of the data is verified: %s are left, which a run that goes on reads\n",
           BYTES_TEXT(left_bytes));
    source->says_left = true;
}

// Ids of llm.c files that have not been read are kept from an earlier run.
void source_verify_data(Source* source) {
    const SampleShards* shards = stock_stream_info(&source->train)->shards;
    wait_until_verified(source);
    for (int32_t f = 0; f < shards->num_files; f++) {
        uint64_t id = shards->files[f].content_id;
        if (id != 0) { memcpy(&source->position[1 + f], &id, sizeof id); }
    }
}

void source_open_data(Source* source, const TrainFlags* flags) {
#ifdef LLMC_CUDA
    if (flags->log_kernels != NULL) { ops_log_kernels(source_ops(source), flags->log_kernels); }
#endif
    source->flags = *flags;
    stock_stream_open(&source->train, flags, source->kind, flags->train_pattern, true, STOCK_SEED);
    ModelBatch shape = stock_stream_shape(&source->train);
    int64_t rows_tokens = shape.num_tokens + shape.num_dec_tokens;
    int64_t batch_tokens = flags->batch_tokens > 0 ? flags->batch_tokens : rows_tokens;
    if (batch_tokens % rows_tokens != 0) {
        char why[160];
        snprintf(why, sizeof why, "-d %lld: not a multiple of the %lld tokens of -b %d rows ---> give one",
                 (long long)batch_tokens, (long long)rows_tokens, flags->rows);
        source_die(source, why);
    }
    if (flags->zero_stage > 0) { printf("-z 1: passed over: one process has nobody to share with\n"); }
    source->micro_steps = (int)(batch_tokens / rows_tokens);
    open_validation(source);
    open_verification(source);
    int64_t epoch_steps = stock_stream_info(&source->train)->num_batches / source->micro_steps;
    source->num_steps = flags->steps >= 0 ? flags->steps : (int)epoch_steps;
    token_text_find(&source->text, flags->train_pattern);
    size_t num_losses = (size_t)shape.num_rows * (size_t)source->micro_steps;
    source->losses = (float*)llmc_alloc(num_losses * sizeof(float), "losses");
    printf("%lld training tokens, %lld batches of %d rows\n",
           (long long)stock_stream_info(&source->train)->num_tokens,
           (long long)stock_stream_info(&source->train)->num_batches, flags->rows);
}

int source_vocab(const Source* source) {
    return stock_stream_info(&source->train)->vocab;
}

uint64_t source_vocab_hash(const Source* source) {
    return stock_stream_info(&source->train)->vocab_hash;
}

bool source_has_byt5_tokens(const Source* source) {
    return stock_stream_info(&source->train)->tokenizer == TOKENIZER_BYT5;
}

int source_eot_token(const Source* source) {
    return stock_stream_info(&source->train)->eot_token;
}

int source_pad_token(const Source* source) {
    return stock_stream_info(&source->train)->pad_token;
}

int source_num_steps(const Source* source) {
    return source->num_steps;
}

int64_t source_batch_tokens(const Source* source) {
    ModelBatch shape = stock_stream_shape(&source->train);
    return (int64_t)(shape.num_tokens + shape.num_dec_tokens) * source->micro_steps;
}

uint32_t source_seed(const Source* source) {
    (void)source;
    return STOCK_SEED;
}

OpsContext* source_ops(Source* source) {
    if (source->ops == NULL) { source->ops = ops_create(0); }
    return source->ops;
}

ModelPart source_part(Source* source, const ModelConfig* config) {
    (void)source;
    return model_part(0, model_num_layers(config), true);
}

void source_attach(Source* source, Model* model) {
    ModelBatch shape = stock_stream_shape(&source->train);
    int64_t acts_bytes = model_acts_bytes(model, &shape, MODEL_KEEP | MODEL_HEAD);
    source->model = model;
    source->acts = ops_alloc(source->ops, (size_t)acts_bytes, "activations");
    source->scratch = ops_alloc(source->ops, (size_t)model_scratch_bytes(model, &shape), "scratch");
}

// Supervised tokens of the current step: they vary for pairs, so the batches are drawn twice.
static int64_t count_rows(Source* source) {
    int64_t position = stock_stream_info(&source->train)->position, num_rows = 0;
    if (!source->kind->has_decoder) {
        return (int64_t)stock_stream_shape(&source->train).num_rows * source->micro_steps;
    }
    for (int micro = 0; micro < source->micro_steps; micro++) {
        num_rows += stock_stream_next(&source->train).num_rows;
    }
    stock_stream_info(&source->train)->position = position;
    return num_rows;
}

double source_step(Source* source) {
    source->begin_ns = clock_now_ns();
    source_stock_check(source, sample_verify_damage(source->verify));
    model_zero_grads(source->model);
    if (source->flags.overfit) { stock_stream_info(&source->train)->position = 0; }
    int64_t num_rows = count_rows(source), at = 0;
    for (int micro = 0; micro < source->micro_steps; micro++) {
        ModelBatch batch = stock_stream_next(&source->train);
        batch.loss_scale = (float)(1.0 / (double)num_rows);
        model_forward(source->model, &batch, NULL, NULL, source->acts, source->scratch, source->losses + at,
                      MODEL_KEEP | MODEL_HEAD);
        model_backward_inputs(source->model, &batch, NULL, source->acts, NULL, NULL, source->scratch);
        model_backward_weights(source->model, &batch, source->acts, NULL, source->scratch);
        at += batch.num_rows;
    }
    ops_sync(source->ops);
    double loss = 0;
    for (int64_t i = 0; i < at; i++) { loss += (double)source->losses[i]; }
    source->position[0] = stock_stream_info(&source->train)->position;
    if (++source->step == source->num_steps) { wait_until_verified(source); }
    return loss / (double)num_rows;
}

void source_shard(const Source* source, int64_t* begin, int64_t* end) {
    *begin = 0;
    *end = source->model->num_params;
}

void source_share_params(Source* source) {
    (void)source;
}

// Model FLOPs of a step: rows of whole windows; for pairs padding counts, since it is computed.
static double step_flops(const Source* source) {
    const ModelBatch shape = stock_stream_shape(&source->train);
    const int64_t n = source->micro_steps, enc = shape.max_seq_tokens, dec = shape.max_dec_seq_tokens;
    const ModelWork work = {.tokens = n * shape.num_tokens,
                            .squares = n * shape.num_tokens * enc,
                            .dec_tokens = n * shape.num_dec_tokens,
                            .dec_squares = n * shape.num_dec_tokens * dec,
                            .cross_products = n * shape.num_seqs * enc * dec,
                            .rows = n * shape.num_rows};
    return model_flops(&source->model->config, &work);
}

void source_report(Source* source, int step, const SourceStep* about) {
    double ms = (double)(clock_now_ns() - source->begin_ns) / 1e6;
    ModelBatch shape = stock_stream_shape(&source->train);
    double tokens = (double)source->micro_steps * (shape.num_tokens + shape.num_dec_tokens);
    double mean_ms = (source->steps_ms += ms) / ++source->num_timed;
    double peak = source->flags.peak_tflops * 1e12;
    if (peak == 0) { peak = ops_peak_flops(source->ops); }
    StepLine line = {.step = step,
                     .num_steps = source->num_steps,
                     .loss = about->loss,
                     .norm = about->norm,
                     .lr = about->lr,
                     .ms = ms,
                     .tokens_per_s = tokens * 1e3 / ms,
                     .mfu = peak > 0 ? step_flops(source) / peak / ms * 1e3 : 0,
                     .seconds_left = mean_ms / 1e3 * (source->num_steps - step)};
    char text[STEP_LINE_CHARS];
    if (source->options.quiet) { return; }
    printf("%s\n", step_line_print(text, &line));
    fflush(stdout);
}

bool source_resplit(Source* source, const ModelConfig* config, ModelPart* part) {
    (void)source;
    (void)config;
    (void)part;
    return false;
}

void source_move(Source* source, int array, size_t bytes_per_value, const SourceArray* have,
                 const SourceArray* want) {
    (void)source;
    (void)array;
    (void)bytes_per_value;
    (void)have;
    (void)want;
}

int64_t source_lost_lines(const Source* source) {
    (void)source;
    return 0;
}

void source_sums(Source* source, double* values, int num_values) {
    (void)source;
    (void)values;
    (void)num_values;
}

bool source_owns_params(const Source* source) {
    (void)source;
    return true;
}

bool source_owns_moments(const Source* source) {
    (void)source;
    return true;
}

double source_validate(Source* source, int step, int max_batches) {
    (void)step;
    if (source->flags.val_pattern == NULL) { return NAN; }
    int64_t available = stock_stream_info(&source->val)->num_batches;
    int num_batches = max_batches < 0 || max_batches > available ? (int)available : max_batches;
    double loss = 0, num_rows = 0;
    stock_stream_info(&source->val)->position = 0;
    for (int i = 0; i < num_batches; i++) {
        if (stop_signal_seen() != 0) { return NAN; }
        ModelBatch batch = stock_stream_next(&source->val);
        batch.token_keys = batch.dec_token_keys = NULL;  // no dropout
        model_forward(source->model, &batch, NULL, NULL, source->acts, source->scratch, source->losses,
                      MODEL_HEAD);
        ops_sync(source->ops);
        for (int r = 0; r < batch.num_rows; r++) { loss += (double)source->losses[r]; }
        num_rows += batch.num_rows;
    }
    printf("val loss %f\n", loss / num_rows);
    return loss / num_rows;
}

// As in llm.c: text from the end-of-text token only. Greedy, so that runs can be compared.
static void show_text(Source* source, int max_tokens) {
    int32_t eot = stock_stream_info(&source->train)->eot_token;
    int32_t* said = (int32_t*)llmc_alloc(sizeof(int32_t) * (size_t)max_tokens, "a sample");
    int limit = source->flags.seq_tokens < max_tokens ? source->flags.seq_tokens : max_tokens;
    CompletionOptions options = {.end_token = -1, .max_tokens = limit - 1};
    Completion text = {.prompt = &eot, .num_prompt = 1, .tokens = said};
    completion_run(source->model, &options, &text, 1);
    printf("  sample  ");
    answers_print_text(&source->text, said, text.num_tokens);
    printf("\n");
    free(said);
}

// Prints a validation sample, its answer, the right one.
static void show_answer(Source* source, int64_t idx, int max_tokens) {
    const Loader* loader = pair_stream_loader(source->val.pairs);
    LoaderSample sample;
    int32_t* tokens = NULL;
    Status status = loader_sample(loader, idx % loader_info(loader)->num_samples, &sample);
    if (status == STATUS_OK) {
        size_t num_tokens = (size_t)(sample.n_input + sample.n_target + max_tokens + 1);
        tokens = (int32_t*)llmc_alloc(sizeof(int32_t) * num_tokens, "an answer");
        status = loader_read(loader, &sample, tokens);
    }
    if (status != STATUS_OK) { source_die(source, status_message()); }
    int32_t *said = tokens + sample.n_input + sample.n_target,
            eot = stock_stream_info(&source->val)->eot_token;
    CompletionOptions options = {
        .start_token = stock_stream_start_token(&source->val), .end_token = eot, .max_tokens = max_tokens};
    Completion text = {.prompt = sample.n_input > 0 ? tokens : &eot,
                       .num_prompt = sample.n_input > 0 ? sample.n_input : 1,
                       .tokens = said};
    completion_run(source->model, &options, &text, 1);
    DynapipeAnswer_v1 answer = {.num_prompt = text.num_prompt,
                                .num_target = sample.n_answer,
                                .num_answer = text.num_tokens,
                                .prompt = text.prompt,
                                .target = tokens + sample.n_input,
                                .answer = said};
    answers_show(&answer, &source->text, eot);
    free(tokens);
}

void source_show_samples(Source* source, int idx, int num_samples, int max_tokens) {
    enum { STRIDE = 7919 };  // samples are grouped by task: a long stride reaches another task each time
    if (!source->kind->has_decoder) {
        show_text(source, max_tokens);
        return;
    }
    for (int i = 0; i < num_samples && source->val.pairs != NULL && stop_signal_seen() == 0; i++) {
        show_answer(source, (int64_t)(idx + i) * STRIDE, max_tokens);
    }
}

void source_position(const Source* source, const void** out, size_t* num_bytes) {
    *out = source->position;
    *num_bytes = position_bytes((Source*)(uintptr_t)source);
}

// The plugin's position in the data begins with its options (run/session_options.c).
static bool is_of_the_plugin(const void* position, size_t num_bytes) {
    return num_bytes >= 7 && memcmp(position, "dpipopt", 7) == 0;
}

void source_restore(Source* source, const void* position, size_t num_bytes, int step) {
    const SampleShards* shards = stock_stream_info(&source->train)->shards;
    if (is_of_the_plugin(position, num_bytes)) {
        char why[160];
        snprintf(
            why, sizeof why,
            "the checkpoint was saved by the plugin's build ---> resume with it: make train_%s DYNAPIPE=1",
            source->kind->name);
        source_die(source, why);
    }
    // The id of an llm.c file is known after it has been read.
    wait_until_verified(source);
    int64_t num_ids = (int64_t)(num_bytes / sizeof(int64_t)) - 1;
    source_stock_check(source, sample_shards_check_contents(shards, (const int64_t*)position + 1, num_ids));
    memcpy(source->position, position, position_bytes(source));
    source->step = step;
    stock_stream_info(&source->train)->position = source->position[0];
}

const char* source_dump_gradients(const Source* source) {
    (void)source;
    return NULL;
}
