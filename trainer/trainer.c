// trainer.c -- the training run: data and ranks by the plugin (dynapipe.h), the model of -e or of an earlier
// run in -o (run_files.h), exports, validation, the loop.
#include "trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../dataloader/data_json.h"
#include "../dataloader/sample_file.h"
#include "../dynapipe_plugin/dynapipe.h"
#include "../llmc/checkpoint.h"
#include "../llmc/completion.h"
#include "../llmc/hf.h"
#include "../llmc/llmc_error.h"
#include "../llmc/optimizer.h"
#include "../util/checkpoint_files.h"
#include "../util/files.h"
#include "../util/options.h"
#include "../util/program.h"
#include "answers.h"
#include "llmc_model.h"
#include "run_files.h"
#include "train_flags.h"

enum { WRONG_USE = 2 };  // exit status

// The model's origin: a descriptor, a checkpoint, Hugging Face's files, -o's newest checkpoint.
typedef enum { MODEL_NEW, MODEL_CHECKPOINT, MODEL_HF, MODEL_RESUMED } ModelSource;

typedef struct {
    const ModelKind* kind;
    TrainFlags flags;
    Dynapipe* dp;
    bool is_main;  // rank 0, which prints and logs
    OpsContext* ops;
    DynapipeDataInfo_v1 info;
    int64_t batch_tokens;                       // of a step, over all ranks
    double peak_flops;                          // of all ranks; 0: unknown
    TokenText text;                             // of the data's tokens
    const char** task_names;                    // [info.num_tasks]
    double *task_loss, *exact_match, *rouge_l;  // [info.num_tasks], one allocation
    Model model;
    Model views[DYNAPIPE_MAX_RANGES];        // one for each range of the model
    HfConfig like;                           // of the files that the model was read from ...
    bool has_like;                           // ... if these were Hugging Face's
    TokenEnds ends;                          // of an answer: the data's, and what the model had beside it
    int bos_token;                           // of the generation_config.json beside it; HF_NO_TOKEN: none
    char generation[CHECKPOINT_PATH_CHARS];  // folder of that file; "": none
    Optimizer optimizer;
    double* squares;  // of parameters by tensor; NULL if not needed
    LrSchedule lr_schedule;
    RunFiles files;
    bool warned_of_output;  // standard output is lost
    Outlier loss_outlier, norm_outlier;
    int step, num_steps;                      // optimizer steps done, of the run
    char newest_path[CHECKPOINT_PATH_CHARS];  // of the run's folder in -e
    SaveInterval save_every;
    int saved_step;          // last saved or resumed
    double saved_s;          // when, by dynapipe_seconds()
    int best_task;           // whose score decides; -1: the loss
    double best_value;       // of validation, with --keep-best or --patience: loss, or score below zero ...
    int best_step;           // ... after this step; -1: none
    bool warned_of_model;    // a difference of -e was reported
    char* saved_model_name;  // -e at the begin of a resumed run
    bool has_kept_tokens;    // the data's tokenizer lies beside the checkpoints
} Trainer;

#define die(t, ...) run_end(&(t)->files, EXIT_FAILURE, __VA_ARGS__)
#define refuse(t, ...) run_end(&(t)->files, WRONG_USE, __VA_ARGS__)
#define check(t, code) run_check(&(t)->files, code)

static const char* path_of_best(const Trainer* t, char out[CHECKPOINT_PATH_CHARS]) {
    snprintf(out, CHECKPOINT_PATH_CHARS, "%.*s/model_best.bin", CHECKPOINT_PATH_CHARS - 32,
             t->flags.output_dir);
    return out;
}

// --- settings of the run -----------------------------------------------------------------------------------

enum { BEST_CHARS = 300 };

// What --keep-best and --patience follow; in a checkpoint's settings with step and value.
static const char* best_text(const Trainer* t, char out[BEST_CHARS]) {
    snprintf(out, BEST_CHARS, t->best_task < 0 ? "lowest validation loss" : "best score of %.200s",
             t->best_task < 0 ? "" : PRINTABLE(t->task_names[t->best_task]));
    return out;
}

static char* settings_of(const Trainer* t) {
    char *text = NULL, what[BEST_CHARS];
    size_t num_bytes;
    FILE* memory = open_memstream(&text, &num_bytes);
    if (memory == NULL) { return NULL; }
    train_flags_add_settings(&t->flags, memory);
    if (t->best_step >= 0) {
        fprintf(memory, "%s=%d %.17g\n", best_text(t, what), t->best_step, t->best_value);
    }
    settings_add_number(memory, "-d",
                        (double)t->batch_tokens);  // the flag's 0 depends on the number of ranks
    return fclose(memory) == 0 ? text : NULL;
}

static void compare_settings(Trainer* t, const char* saved) {
    if (saved == NULL) { return; }
    size_t num_chars;
    char what[BEST_CHARS];
    const char* best = settings_find(saved, best_text(t, what), &num_chars);
    if (best == NULL || sscanf(best, "%d %lf", &t->best_step, &t->best_value) != 2) { t->best_step = -1; }
    const char* model = settings_find(saved, "-e", &num_chars);
    // the default of -e, and what a warning has named already, is the model at the begin of the run
    if ((t->flags.model == t->kind->usual || t->warned_of_model) && model != NULL) {
        t->saved_model_name = strndup(model, num_chars);
        if (t->saved_model_name != NULL) { t->flags.model = t->saved_model_name; }
    }
    char* now = settings_of(t);
    if (now != NULL && t->is_main) { settings_print_differences(stderr, saved, now); }
    free(now);
}

// --- the data ----------------------------------------------------------------------------------------------

static void open_data(Trainer* t) {
    const TrainFlags* flags = &t->flags;
    int64_t rank_tokens = (int64_t)flags->rows * flags->seq_tokens;
    t->batch_tokens = flags->batch_tokens > 0 ? flags->batch_tokens : rank_tokens * dynapipe_num_ranks(t->dp);
    int32_t target_tokens = flags->target_tokens > 0 ? flags->target_tokens : flags->seq_tokens;
    DynapipeRun_v1 run = {
        .train_pattern = flags->train_pattern,
        .val_pattern = flags->val_pattern,
        .batch_tokens = t->batch_tokens,
        .max_seq_tokens = flags->seq_tokens,
        .max_target_tokens = t->kind->has_decoder ? target_tokens : 0,
        .rows = flags->rows,
        .num_steps = flags->steps,
        .zero_stage = flags->zero_stage,
        .overfit = flags->overfit,
        .skip_verify = flags->verify == 0,
    };
    check(t, dynapipe_open_data(t->dp, &run));
    check(t, dynapipe_data_info(t->dp, &t->info));
    t->files.vocab_hash = t->info.vocab_hash;
    size_t num_tasks = (size_t)t->info.num_tasks;
    t->task_loss = (double*)calloc(3 * num_tasks, sizeof(double));
    t->task_names = (const char**)calloc(num_tasks, sizeof(char*));
    if (t->task_loss == NULL || t->task_names == NULL) { die(t, "no memory for tasks"); }
    t->exact_match = t->task_loss + num_tasks;
    t->rouge_l = t->exact_match + num_tasks;
    for (size_t i = 0; i < num_tasks; i++) { t->task_names[i] = dynapipe_task_name(t->dp, (int32_t)i); }
    token_text_find(&t->text, flags->train_pattern);
    if (!t->is_main) { return; }
    if (!flags->verify) { printf("--verify 0: the data is not verified\n"); }
    printf("data: %lld samples of %d tasks, %lld tokens; %lld longer than -t %d cut, %lld skipped\n",
           (long long)t->info.num_samples, t->info.num_tasks, (long long)t->info.num_tokens,
           (long long)t->info.num_truncated, flags->seq_tokens, (long long)t->info.num_skipped);
}

// --- the model of -e ---------------------------------------------------------------------------------------

static bool ends_with(const char* text, const char* end) {
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static ModelSource source_of(const char* model) {
    return ends_with(model, ".bin") ? MODEL_CHECKPOINT : hf_checkpoint_is(model) ? MODEL_HF : MODEL_NEW;
}

// The newest checkpoint of a run's folder.
static void find_newest(Trainer* t) {
    const char* model = t->flags.model;
    int step = hf_checkpoint_is(model) ? -1 : checkpoint_find_latest(model);
    if (step < 0) { return; }
    if (t->is_main) { printf("-e %s: its newest checkpoint is of step %d\n", model, step); }
    checkpoint_path(t->newest_path, model, CHECKPOINT_MODEL_FILE, step);
    t->flags.model = t->newest_path;
}

// vocab, max_seq_len: of a new model. like: other fields of Hugging Face's files.
static bool read_config(const Trainer* t, ModelConfig* out, HfConfig* like, ModelSource source,
                        const char* path, int vocab, int max_seq_len) {
    switch (source) {
        case MODEL_RESUMED:
        case MODEL_CHECKPOINT: return llmc_ok(checkpoint_read_config(out, t->kind, path));
        case MODEL_HF: return hf_checkpoint_read_config(out, like, t->kind, path);
        default: return model_parse(out, t->kind, path, vocab, max_seq_len);
    }
}

// -y 1 uses the checkpoint's model; an -e of another shape is a mistake. One of the same shape still
// provides the other fields of an export.
static void compare_with_asked(Trainer* t, const ModelConfig* config, const char* path) {
    const char* model = t->flags.model;
    ModelConfig asked;
    ModelDifference difference;
    ModelSource source = source_of(model);
    bool known = read_config(t, &asked, &t->like, source, model, config->vocab, config->max_seq_len);
    if (known) { asked.tied_head = config->tied_head; }  // a file's tensors decide
    bool same = known && model_config_equal(&asked, config, &difference);
    t->has_like = same && source == MODEL_HF;
    t->warned_of_model = !same && model != t->kind->usual;
    if (!t->warned_of_model || !t->is_main) { return; }
    char shape[160];
    model_describe(shape, sizeof shape, config);
    fprintf(stderr,
            "warning: -e %s is not used: -y resumes %s,\n  %s ---> omit -e; another -o for a new run\n",
            model, path, shape);
}

// A checkpoint of llm.c does not name its tokenizer.
static void warn_of_vocabulary(const Trainer* t, const ModelConfig* config, ModelSource source,
                               const char* path) {
    if (source != MODEL_CHECKPOINT || t->files.model_seal.vocab_hash != 0 || !t->is_main) { return; }
    if (t->info.vocab >= config->vocab) { return; }
    fprintf(stderr,
            "warning: the data has %d ids, -e %s %d: were they made for one another? ---> data of this "
            "model's tokenizer (./prepare_data --tokenizer)\n",
            t->info.vocab, checkpoint_path_tail(path), config->vocab);
}

static void check_fits(Trainer* t, ModelConfig* config, const char* path) {
    const char* tail = checkpoint_path_tail(path);
    // llm.c's token files may be of a smaller vocabulary than they say; a decoder would start with their end
    const long long num_ids = config->kind->has_decoder ? t->info.vocab : (long long)t->info.num_ids;
    if (config->vocab < num_ids) {
        die(t,
            "-e %.80s: vocabulary %d, the data has %lld ids ---> another -e, or data of this model's "
            "tokenizer",
            tail, config->vocab, num_ids);
    }
    if (config->vocab < t->info.vocab && t->is_main) {
        printf("-i %s: its ids, at most %lld, are taken for those of the model's vocabulary of %d\n",
               t->flags.train_pattern, num_ids - 1, config->vocab);
    }
    // positions are parameters of GPT-2's, angles of Llama's, distances of T5's
    if (config->kind->positions != 0 && config->max_seq_len < t->flags.seq_tokens) {
        die(t, "-e %.80s: %d positions, -t is %d ---> another -e, or -t %d", tail, config->max_seq_len,
            t->flags.seq_tokens, config->max_seq_len);
    }
    if (config->kind->rotary && config->max_seq_len < t->flags.seq_tokens) {
        if (t->flags.steps == 0) { t->flags.seq_tokens = config->max_seq_len; }  // nothing is learnt
        if (t->flags.steps != 0 && t->is_main) {
            fprintf(stderr, "warning: %.80s was made for %d positions, -t is %d: it learns the others here\n",
                    tail, config->max_seq_len, t->flags.seq_tokens);
        }
        config->max_seq_len = t->flags.seq_tokens;
    }
    if (!attention_check(model_head_size(config), config->num_buckets, config->max_distance)) {
        die(t, "-e %.80s: %s", tail, status_message());
    }
}

static const char* folder_of(const char* path, char out[CHECKPOINT_PATH_CHARS]) {
    const char* slash = strrchr(path, '/');
    snprintf(out, CHECKPOINT_PATH_CHARS, "%.*s", slash != NULL ? (int)(slash - path) : 1,
             slash != NULL ? path : ".");
    return out;
}

// Does the tokenizer of Hugging Face's files map text to ids as the data's did?
static Status check_tokenizer(const Trainer* t, const char* path) {
    char folder[CHECKPOINT_PATH_CHARS], model[96], data[96];
    bool is_known;
    snprintf(model, sizeof model, "-e %.80s", checkpoint_path_tail(path));
    snprintf(data, sizeof data, "-i %.80s", checkpoint_path_tail(t->flags.train_pattern));
    TRY(vocab_check_folder(&is_known, hf_folder(path, folder), model, data,
                           (SampleTokenizer)t->info.tokenizer, t->info.vocab_hash));
    if (!is_known) { printf("%s: its tokenizer, or that of the data, is unknown: not compared\n", path); }
    return STATUS_OK;
}

// Hugging Face's files define begin and end tokens of generated text. With other tokens the model has to
// unlearn them, and without padding in the data the decoder has no start token. Chat models end answers with
// a token of their own, which a decoder-only model's data need not have: export_hf().
static void check_tokens_fit(Trainer* t, const char* path, bool has_end) {
    int pad = t->info.pad_token, eot = t->info.eot_token;
    const HfConfig* like = &t->like;
    if (!t->has_like) { return; }
    if (t->kind->has_decoder && pad < 0) {
        die(t,
            "-e %.80s: its decoder starts with token %d, the data has no padding token ---> data of this "
            "model's tokenizer: prepare_data --tokenizer, with the model's folder",
            checkpoint_path_tail(path), like->start_token);
    }
    bool other_start = t->kind->has_decoder && like->start_token != pad;
    bool other_end = has_end && like->ends.num > 0 && !token_ends_has(&like->ends, eot);
    if ((!other_start && !other_end) || !t->is_main) { return; }
    if (!t->kind->has_decoder) {
        fprintf(
            stderr,
            "warning: -e %s ends texts with token %d, the data with %d\n  ---> so does the model from now "
            "on; --export-hf writes %d as eos_token_id\n",
            checkpoint_path_tail(path), like->ends.ids[0], eot, eot);
        return;
    }
    fprintf(stderr,
            "warning: -e %s %s with token %d, the data with %d\n  ---> was it made with this model's "
            "tokenizer? (prepare_data --tokenizer)\n",
            checkpoint_path_tail(path), other_start ? "starts answers" : "ends texts",
            other_start ? like->start_token : like->ends.ids[0], other_start ? pad : eot);
}

static const char generation_file[] = "generation_config.json";

// Chat models have several ends, which a run keeps beside its checkpoints; one that never met the data's has
// learned it instead of its own.
static void find_ends(Trainer* t, const ModelConfig* config, ModelSource source, const char* path,
                      bool has_end) {
    char room[CHECKPOINT_PATH_CHARS];
    t->bos_token = HF_NO_TOKEN;
    if (source != MODEL_NEW) {
        const char* folder = t->has_like ? hf_folder(t->flags.model, room) : folder_of(path, room);
        if (!hf_ends_read(&t->ends, &t->bos_token, folder, config->vocab)) { die(t, "%s", status_message()); }
        if (run_has_bytes(folder, generation_file)) { memcpy(t->generation, room, sizeof room); }
    }
    if (t->has_like) { t->ends = t->like.ends; }
    if (has_end && !token_ends_has(&t->ends, t->info.eot_token)) {
        t->ends = (TokenEnds){{t->info.eot_token}, 1};
    }
}

static void fill_params(Trainer* t, ModelSource source, const char* path) {
    Model* m = &t->model;
    bool ok = true, is_new = source == MODEL_NEW;
    uint64_t* sum_read = run_owns_params(&t->files) ? &t->files.model_sum : NULL;
    SlowNotice* notice =
        run_notice_begin(&t->files, is_new ? "initialising parameters" : "reading parameters", -1,
                         is_new ? 0 : m->num_params * (int64_t)sizeof(floatX));
    switch (source) {
        case MODEL_NEW: model_init_random(m, dynapipe_seed(t->dp)); break;
        case MODEL_HF:
            ok = hf_checkpoint_read(path, CHECKPOINT_PARAMS, m, m->params, 0, m->num_params);
            break;
        default:
            ok = llmc_ok(checkpoint_read(path, CHECKPOINT_PARAMS, m, m->params, 0, m->num_params, sum_read));
    }
    slow_notice_end(notice);
    if (!ok && source == MODEL_RESUMED) { run_end_of_checkpoint(&t->files); }
    if (!ok) { die(t, "%s", status_message()); }
    if (source == MODEL_CHECKPOINT) { run_check_sums(&t->files, path, NULL); }
}

static void print_model(const Trainer* t, ModelSource source, const char* path) {
    char shape[160];
    const ModelConfig* config = &t->model.config;
    if (!t->is_main) { return; }
    model_describe(shape, sizeof shape, config);
    printf("%s: %s,\n  vocabulary %d, %lld parameters, %.300s; %s on %.60s\n", t->kind->name, shape,
           config->vocab, (long long)model_num_params(config), source == MODEL_NEW ? "new" : path,
           sizeof(floatX) == 2 ? "bf16" : "fp32", ops_device_name(t->ops));
    if (t->has_like && (float)t->like.dropout != (float)t->flags.dropout) {
        printf("config.json: dropout %g is not used ---> --dropout %g uses it (now %g)\n", t->like.dropout,
               t->like.dropout, t->flags.dropout);
    }
    if (t->kind->has_decoder && t->info.pad_token < 0) {
        printf("the data has no padding token: the decoder starts with end-of-text (%d)\n",
               t->info.eot_token);
    }
}

// --- this rank's part of the model -------------------------------------------------------------------------

static void part_of(const Trainer* t, ModelPart* out, const ModelConfig* config, const DynapipeRange* ranges,
                    int32_t num_ranges) {
    int32_t begin[OPS_MAX_SHARES + 1];
    int32_t head = dynapipe_head(t->dp, begin, OPS_MAX_SHARES + 1);
    *out = (ModelPart){.stage = dynapipe_stage(t->dp)};
    dynapipe_llmc_part(out, config, ranges, num_ranges);
    out->head = dynapipe_llmc_head(config, head, begin, dynapipe_num_stages(t->dp));
}

// Stages are chosen by the costs of the checkpoint, so that a resumed run has those it had.
static void restore_costs(Trainer* t, const ModelConfig* config) {
    char path[CHECKPOINT_PATH_CHARS];
    CheckpointRun run = {0};
    checkpoint_path(path, t->flags.output_dir, CHECKPOINT_STATE_FILE, t->files.resume_step);
    if (checkpoint_read_run(&run, path, config, NULL) != STATUS_OK) { run_end_of_checkpoint(&t->files); }
    if (run.record.position != NULL) {
        check(t, dynapipe_restore(t->dp, run.record.position, run.record.position_bytes, run.step));
    }
    free(run.record.position);
    free(run.record.settings);
}

static ModelPart choose_part(Trainer* t, const ModelConfig* config) {
    DynapipeCosts* costs;
    DynapipeRange ranges[DYNAPIPE_MAX_RANGES];
    ModelPart part;
    int32_t num_ranges;
    LlmcBlocks about;
    check(t, dynapipe_use_stream(t->dp, ops_stream(t->ops)));
    DynapipeBlocks_v1 blocks = dynapipe_llmc_blocks(&about, config, t->ops);
    check(t, dynapipe_measure(t->dp, &blocks, &costs));
    if (t->files.resume_step >= 0) { restore_costs(t, config); }
    check(t, dynapipe_choose_stages(t->dp, costs, ranges, DYNAPIPE_MAX_RANGES, &num_ranges));
    if (t->is_main) {
        printf("ranks: %d = %d stages x %d replicas, %d threads each; %d steps of at most %lld tokens\n",
               dynapipe_num_ranks(t->dp), dynapipe_num_stages(t->dp), dynapipe_num_replicas(t->dp),
               dynapipe_threads(t->dp), t->info.num_steps, (long long)t->batch_tokens);
    }
    part_of(t, &part, config, ranges, num_ranges);
    return part;
}

static void attach(Trainer* t) {
    Model* model = &t->model;
    double mine = t->flags.peak_tflops > 0 ? t->flags.peak_tflops * 1e12 : ops_peak_flops(t->ops);
    double peaks[2] = {mine, mine > 0};
    run_sums(&t->files, peaks, 2);
    t->peak_flops = peaks[1] == dynapipe_num_ranks(t->dp) ? peaks[0] : 0;
    DynapipeTied tied[MODEL_MAX_TIED];
    DynapipeParams_v1 params = dynapipe_llmc_params(model, tied);
    int32_t num_ranges = model->part.num_ranges, num_views = num_ranges + model->part.has_share;
    for (int32_t i = 0; i < num_views; i++) {
        t->views[i] = i < num_ranges ? model_view(model, i) : model_share_view(model);
        check(t, dynapipe_attach(t->dp, i, &dynapipe_llmc_model, &t->views[i], i == 0 ? &params : NULL));
    }
}

// Of the model in -e, or of the checkpoint to resume from, with values.
static ModelSource build_model(Trainer* t) {
    char path[CHECKPOINT_PATH_CHARS];
    ModelConfig config;
    ModelSource source = source_of(t->flags.model);
    run_find_begin(&t->files, source != MODEL_NEW);
    snprintf(path, sizeof path, "%s", t->flags.model);
    if (t->files.resume_step >= 0) {
        source = MODEL_RESUMED;
        checkpoint_path(path, t->flags.output_dir, CHECKPOINT_MODEL_FILE, t->files.resume_step);
    }
    if (!read_config(t, &config, &t->like, source, path, t->info.vocab, t->flags.seq_tokens)) {
        if (source == MODEL_RESUMED) { run_end_of_checkpoint(&t->files); }
        if (source == MODEL_NEW) { refuse(t, "%s", status_message()); }
        die(t, "%s", status_message());
    }
    if (source == MODEL_RESUMED || source == MODEL_CHECKPOINT) { run_read_seals(&t->files, path); }
    t->has_like = source == MODEL_HF;
    if (source == MODEL_RESUMED) { compare_with_asked(t, &config, path); }
    check_fits(t, &config, path);
    warn_of_vocabulary(t, &config, source, path);
    const bool has_end = t->info.eot_token < config.vocab;  // the data, one that the model knows
    check_tokens_fit(t, path, has_end);
    find_ends(t, &config, source, path, has_end);
    run_agree(&t->files, source == MODEL_HF && t->is_main ? check_tokenizer(t, path) : STATUS_OK);
    const ModelPart part = choose_part(t, &config);
    model_init_part(&t->model, &config, &part, t->ops);
    model_alloc_grads(&t->model);
    t->model.dropout = (float)t->flags.dropout;
    fill_params(t, source, path);
    attach(t);
    print_model(t, source, path);
    return source;
}

// One array, all ranks: `have` of the old model, `want` of the new. values[i] belongs to params[begin + i].
typedef struct {
    const Model* model;
    int64_t begin, end;
    void* values;
} PartArray;

static void move_array(Trainer* t, CheckpointBody body, size_t bytes_per_value, PartArray have,
                       PartArray want) {
    const PartArray sides[2] = {have, want};
    DynapipePiece_v1* pieces[2];
    int32_t num[2];
    for (int i = 0; i < 2; i++) {
        const PartArray* side = &sides[i];
        pieces[i] = (DynapipePiece_v1*)llmc_alloc(((size_t)side->model->num_slices + 1) * sizeof **pieces,
                                                  "a list of tensors");
        num[i] = dynapipe_llmc_pieces(pieces[i], side->model, side->begin, side->end, (uint64_t)body,
                                      (int32_t)bytes_per_value, side->values);
    }
    check(t, dynapipe_move(t->dp, pieces[0], num[0], pieces[1], num[1]));
    free(pieces[0]);
    free(pieces[1]);
}

// Between two steps: if layers move between ranks, makes a model of the new ones and fills it from the ranks
// that have them. The old optimizer's arrays are freed one by one, when their values have moved.
static void resplit(Trainer* t) {
    DynapipeRange ranges[DYNAPIPE_MAX_RANGES];
    int32_t num_ranges;
    ModelPart part;
    check(t, dynapipe_resplit(t->dp, ranges, DYNAPIPE_MAX_RANGES, &num_ranges));
    if (num_ranges == 0) { return; }
    Model before = t->model;
    Optimizer old = t->optimizer, *new = &t->optimizer;
    int64_t begin, end;
    part_of(t, &part, &before.config, ranges, num_ranges);
    model_free_grads(&before);
    model_init_raw(&t->model, &before.config, &part, before.ops);
    t->model.dropout = before.dropout;
    attach(t);
    dynapipe_shard(t->dp, &begin, &end);
    optimizer_init_raw(new, &old, begin, end);
    const struct {
        CheckpointBody body;
        float **have, *want;
    } arrays[] = {{CHECKPOINT_M, &old.m, new->m},
                  {CHECKPOINT_V, &old.v, new->v},
                  {CHECKPOINT_MASTER, &old.master, new->master}};
    for (int i = 0; i < 3 && *arrays[i].have != NULL; i++) {
        move_array(t, arrays[i].body, sizeof(float),
                   (PartArray){&before, old.begin, old.end, *arrays[i].have},
                   (PartArray){&t->model, begin, end, arrays[i].want});
        ops_release(before.ops, *arrays[i].have);
        *arrays[i].have = NULL;
    }
    move_array(t, CHECKPOINT_PARAMS, sizeof(floatX),
               (PartArray){&before, 0, before.num_params, before.params},
               (PartArray){&t->model, 0, t->model.num_params, t->model.params});
    optimizer_free(&old);
    model_free(&before);
}

// --- export ------------------------------------------------------------------------------------------------

// The tokens of config.json: of the first files, for a new model of the data.
static HfConfig config_to_export(const Trainer* t) {
    HfConfig out = t->has_like ? t->like : hf_config_of_model(&t->model.config, NULL);
    int pad = t->info.pad_token, eot = t->info.eot_token < out.shape.vocab ? t->info.eot_token : HF_NO_TOKEN;
    if (t->generation[0] != '\0') { out.generation = t->generation; }
    // what the model has learned to end with; with the first files' token generate() would never stop
    if (!t->kind->has_decoder || !t->has_like) { out.ends = t->ends; }
    if (t->has_like) { return out; }
    if (t->kind->has_decoder) {
        out.pad_token = pad >= 0 ? pad : HF_NO_TOKEN;
        out.start_token = pad >= 0 ? pad : eot;
    } else {
        // GPT-2's texts begin with their end; other tokenizers' begin is not in the data
        out.bos_token = t->bos_token == HF_NO_TOKEN && t->model.config.num_kv_heads == 0 ? eot : t->bos_token;
    }
    return out;
}

static void export_hf(Trainer* t) {
    char folder[CHECKPOINT_PATH_CHARS], model[CHECKPOINT_PATH_CHARS], what[BEST_CHARS];
    const char* directory = t->flags.export_dir;
    if (directory == NULL) { return; }
    HfConfig like = config_to_export(t);
    // of the model, whose tokenizer is the data's, first
    HfTokens tokens = {.folders = {t->has_like ? hf_folder(t->flags.model, model) : NULL,
                                   folder_of(t->flags.train_pattern, folder)},
                       .bytes = t->info.tokenizer == TOKENIZER_BYT5};
    SlowNotice* notice = run_notice_begin(&t->files, "exporting", -1, 0);
    bool saved = true;
    for (int phase = 0; phase < 3 && saved; phase++) {
        bool ok = phase == 0
                      ? !t->is_main || hf_checkpoint_create(directory, &t->model.config, &like, &tokens)
                  : phase == 1 ? !run_owns_params(&t->files) || hf_checkpoint_write(directory, &t->model)
                               : !t->is_main || hf_checkpoint_commit(directory);
        saved = run_all_succeeded(&t->files, ok ? STATUS_OK : status_last(), "--export-hf");
    }
    slow_notice_end(notice);
    t->files.save_failed |= !saved;
    if (!t->is_main) { return; }
    if (saved) {
        printf("exported %s\n", directory);
        if (t->flags.keep_best != NULL && t->best_step >= 0 && t->best_step != t->step) {
            printf("  of step %d; the %s was that of step %d ---> -e %s -t %d -x 0 --export-hf %s\n", t->step,
                   best_text(t, what), t->best_step, path_of_best(t, model), t->flags.seq_tokens, directory);
        }
    } else {
        hf_checkpoint_abort(directory);
    }
}

// --- checkpoints -------------------------------------------------------------------------------------------

// What Hugging Face's files said of ends and generation, which data.json has no room for.
static Status keep_generation(const Trainer* t) {
    char path[CHECKPOINT_PATH_CHARS];
    if (hf_checkpoint_is(t->flags.output_dir)) { return STATUS_OK; }
    snprintf(path, sizeof path, "%.*s/%s", CHECKPOINT_PATH_CHARS - 32, t->flags.output_dir, generation_file);
    if (!t->has_like && t->generation[0] == '\0') {
        unlink(path);  // of an earlier run
        return STATUS_OK;
    }
    const HfConfig config = config_to_export(t);
    char* text = hf_config_generation_text(&config);
    Status status = file_write(path, text, strlen(text));
    free(text);
    return status;
}

// With the first checkpoint, so that ./generate finds all files in one folder. The weights do not depend on
// it: a failed copy is only reported.
static void keep_tokens(Trainer* t) {
    char folder[CHECKPOINT_PATH_CHARS];
    if (t->has_kept_tokens) { return; }
    t->has_kept_tokens = true;
    if (data_json_copy(folder_of(t->flags.train_pattern, folder), t->flags.output_dir) != STATUS_OK ||
        keep_generation(t) != STATUS_OK) {
        fprintf(stderr, "warning: the tokenizer was not copied to the checkpoints: %s\n", status_message());
    }
}

// timed: nobody asked for it but the clock or a signal.
static void save(Trainer* t, bool timed) {
    char path[CHECKPOINT_PATH_CHARS], *settings = settings_of(t);
    const bool replaces = t->files.replaces_earlier;
    run_save(&t->files, t->step, settings, timed);
    free(settings);
    if (!t->is_main || t->files.save_failed) { return; }
    if (replaces && t->best_step < 0) { unlink(path_of_best(t, path)); }
    keep_tokens(t);
}

// Resumes from resume_step, whose model has been read.
static void resume(Trainer* t) {
    CheckpointRun run;
    run_read_state(&t->files, &run);
    t->step = run.step;
    check(t, dynapipe_restore(t->dp, run.record.position, run.record.position_bytes, run.step));
    compare_settings(t, run.record.settings);
    if (t->is_main) {
        char path[CHECKPOINT_PATH_CHARS];
        checkpoint_path(path, t->flags.output_dir, CHECKPOINT_STATE_FILE, t->step);
        printf("resumed from %s, step %d%s\n", path, t->step,
               t->step >= t->num_steps ? ": nothing is left to train ---> a larger -x" : "");
    }
    free(run.record.position);
    free(run.record.settings);
}

// --debug dump-gradients. Explicitly requested, so a failed write ends the run.
static void dump_gradients(Trainer* t) {
    const char* path = dynapipe_option(t->dp, "--dump-gradients");
    if (path == NULL || run_save_alone(&t->files, path, CHECKPOINT_FLOATS, t->step, "gradients")) { return; }
    die(t, "--debug dump-gradients: cannot be written ---> name a file where you may write");
}

// --- building the run --------------------------------------------------------------------------------------

// All that is wrong with the flags themselves, before anything is made: exit status 2.
static void check_flags(Trainer* t, OptimizerKind* kind) {
    const TrainFlags* flags = &t->flags;
    if (!optimizer_parse(kind, flags->optimizer)) { refuse(t, "--optimizer: %s", status_message()); }
    if (!lr_schedule_parse(&t->lr_schedule.kind, flags->lr_scheduler)) {
        refuse(t, "-k: %s", status_message());
    }
    if (flags->train_pattern == NULL) {
        refuse(t, "-i: no training data ---> -i DIR/train.bin; ./prepare_data makes it from JSONL");
    }
    const char* every = flags->checkpoint_every != NULL ? flags->checkpoint_every : SAVE_INTERVAL_USUAL;
    if (save_interval_parse(&t->save_every, "-n", every) != STATUS_OK) { refuse(t, "%s", status_message()); }
    bool wants_saves = flags->checkpoint_every != NULL && t->save_every.steps + t->save_every.seconds > 0;
    if (flags->output_dir == NULL && (flags->resume || wants_saves)) {
        refuse(t, "-y and -n need a folder ---> add -o DIR");
    }
    const char* best = flags->keep_best;
    if (flags->output_dir == NULL && best != NULL) {
        refuse(t, "--keep-best %.60s: no folder to keep a model in ---> add -o DIR", best);
    }
    if ((best != NULL || flags->patience > 0) && (flags->val_pattern == NULL || flags->val_every <= 0)) {
        refuse(t, "--keep-best and --patience: no validation ---> add -j FILES, and -v above 0");
    }
    if (best != NULL && strcmp(best, "loss") != 0 && flags->answers == 0) {
        refuse(t,
               "--keep-best %.60s: a task's score needs answers ---> --answers above 0, or --keep-best loss",
               PRINTABLE(best));
    }
    if (flags->resume && flags->overwrite) {
        refuse(
            t,
            "-y and --overwrite 1: one resumes the earlier run, the other replaces it ---> give one of them");
    }
}

// Of --keep-best, among the data's tasks.
static void find_best_task(Trainer* t) {
    const char* name = t->flags.keep_best;
    char known[400] = "loss";
    if (name == NULL || strcmp(name, "loss") == 0) { return; }
    for (int32_t k = 0; k < t->info.num_tasks; k++) {
        const size_t used = strlen(known);
        if (strcmp(name, t->task_names[k]) == 0) { t->best_task = k; }
        if (used > sizeof known - 80) { continue; }
        snprintf(known + used, sizeof known - used, ", %.64s", PRINTABLE(t->task_names[k]));
    }
    if (t->best_task < 0) {
        refuse(t, "--keep-best %.60s: no task of the data ---> one of: %s", PRINTABLE(name), known);
    }
}

static void build(Trainer* t) {
    OptimizerKind kind = OPTIMIZER_ADAMW;
    const TrainFlags* flags = &t->flags;
    check_flags(t, &kind);
    find_newest(t);
    run_folder_open(&t->files);
    t->ops = ops_create(dynapipe_threads(t->dp));
    open_data(t);
    find_best_task(t);
    t->num_steps = t->info.num_steps;
    t->lr_schedule.peak = (float)flags->lr;
    t->lr_schedule.warmup_steps = flags->warmup_steps;
    t->lr_schedule.num_steps = t->num_steps;
    t->lr_schedule.final_fraction = (float)flags->final_lr_fraction;
    ModelSource source = build_model(t);
    int64_t begin, end;
    dynapipe_shard(t->dp, &begin, &end);
    optimizer_init(&t->optimizer, kind, begin, end, (float)flags->weight_decay, dynapipe_seed(t->dp), t->ops);
    if (flags->betas != NULL) {
        t->optimizer.beta1 = (float)flags->beta[0], t->optimizer.beta2 = (float)flags->beta[1];
    }
    if (flags->eps > 0) { t->optimizer.eps = (float)flags->eps; }
    if (kind == OPTIMIZER_ADAMW_SCALED) {
        size_t num_tensors = (size_t)model_num_tensors(&t->model.config);
        t->squares = (double*)llmc_alloc(num_tensors * sizeof(double), "sums by tensor");
    }
    if (source == MODEL_RESUMED) {
        resume(t);
    } else if (source != MODEL_NEW && run_read_first_master(&t->files, source == MODEL_HF) != STATUS_OK) {
        die(t, "%s", status_message());
    }
    optimizer_set_master(&t->optimizer, &t->model);
    run_folder_begin(&t->files, t->step);
}

// --- validation and answers --------------------------------------------------------------------------------

// --answers of each task, fewer where there are many tasks.
static int answers_per_task(const Trainer* t) {
    enum { MOST_ANSWERS = 256 };
    int most = MOST_ANSWERS / t->info.num_tasks;
    return t->flags.answers < most ? t->flags.answers : most > 1 ? most : 1;
}

// Answers samples of every task; false: no task has a question.
static bool score_answers(Trainer* t) {
    int32_t num_samples = 0, per_task = answers_per_task(t), num_tasks = t->info.num_tasks;
    const DynapipeAnswer_v1* answers;
    int64_t* samples = (int64_t*)llmc_alloc(((size_t)per_task * (size_t)num_tasks + 1) * sizeof(int64_t),
                                            "samples to answer");
    check(t, dynapipe_pick_samples(t->dp, per_task, samples, &num_samples));
    check(t, dynapipe_generate(t->dp, samples, num_samples, t->flags.sample_tokens, &answers));
    free(samples);
    answers_score(t->exact_match, t->rouge_l, num_tasks, answers, num_samples, &t->text, &t->ends);
    return num_samples > 0;
}

static void print_validation(const Trainer* t, double loss, bool with_scores) {
    int32_t num_tasks = t->info.num_tasks, num_met = 0;
    for (int32_t k = 0; k < num_tasks; k++) { num_met += !isnan(t->task_loss[k]); }
    printf("val loss %f on %lld of %lld samples of ", loss, (long long)t->info.num_validated,
           (long long)t->info.num_val_samples);
    printf(num_met < num_tasks ? "%d of %d tasks"
           : num_tasks > 1     ? "all %d tasks"
                               : "%d task",
           num_met, num_tasks);
    if (with_scores) {
        printf(" | exact match %.1f %%, ROUGE-L %.1f", 100 * answers_mean(t->exact_match, num_tasks),
               100 * answers_mean(t->rouge_l, num_tasks));
    }
    answers_print_tasks(t->task_names, num_tasks, t->task_loss, with_scores ? t->exact_match : NULL,
                        with_scores ? t->rouge_l : NULL, answers_per_task(t));
    fflush(stdout);
}

// --keep-best, --patience. A validation repeated by a resumed run is no new one.
static void follow_best(Trainer* t, double loss) {
    char path[CHECKPOINT_PATH_CHARS], what[BEST_CHARS];
    const TrainFlags* flags = &t->flags;
    const bool keeps = flags->keep_best != NULL;
    const int task = t->best_task;
    if (!keeps && flags->patience == 0) { return; }
    const double value = task < 0 ? loss : -50 * (t->exact_match[task] + t->rouge_l[task]);
    const bool counts = task < 0 || value < 0;  // before the first right answer there is nothing to follow
    bool is_better = counts && (t->best_step < 0 || (t->step > t->best_step && value < t->best_value));
    double of_main[2] = {t->is_main && is_better, t->is_main && isnan(value)};  // rank 0 decides
    run_sums(&t->files, of_main, 2);
    if (task >= 0 && of_main[1] > 0) {
        die(t, "--keep-best %.60s: -j has no question of this task ---> another task, or --keep-best loss",
            PRINTABLE(flags->keep_best));
    }
    if (of_main[0] > 0) {
        t->best_step = t->step;
        t->best_value = value;
        bool saved = keeps && run_save_alone(&t->files, path_of_best(t, path), CHECKPOINT_PARAMS, t->step,
                                             "model_best.bin");
        t->files.save_failed |= keeps && !saved;
        if (!saved || !t->is_main) { return; }
        printf("saved %s: step %d, the %s\n", path, t->step, best_text(t, what));
        keep_tokens(t);
    } else if (flags->patience > 0 && t->best_step >= 0 &&
               t->step - t->best_step >= (int64_t)flags->patience * flags->val_every) {
        if (t->is_main && t->step < t->num_steps) {
            printf("--patience %d: the %s, %g, is that of step %d: stopping at step %d of %d\n",
                   flags->patience, best_text(t, what), fabs(t->best_value), t->best_step, t->step,
                   t->num_steps);
        }
        t->num_steps = t->step;  // the last step, with all that follows it
    }
}

static void validate(Trainer* t) {
    double loss;
    check(t, dynapipe_validate(t->dp, t->flags.val_samples, &loss, t->task_loss));
    check(t, dynapipe_data_info(t->dp, &t->info));
    bool with_scores = t->flags.answers > 0 && score_answers(t);
    if (dynapipe_stop_signal(t->dp) != 0) { return; }  // incomplete
    if (t->is_main) { print_validation(t, loss, with_scores); }
    DynapipeValidation_v1 validation = {
        .step = t->step,
        .loss = loss,
        .task_loss = t->task_loss,
        .exact_match = with_scores ? t->exact_match : NULL,
        .rouge_l = with_scores ? t->rouge_l : NULL,
        .log_dir = t->flags.output_dir,
    };
    check(t, dynapipe_report_validation(t->dp, &validation));
    main_log_val(&t->files.log, t->step, (float)loss);
    follow_best(t, loss);
}

static void show_answers(Trainer* t, int num_samples) {
    // samples are grouped by task: a long stride reaches another task each time
    enum { MOST_SHOWN = 4, STRIDE = 7919 };
    int64_t samples[MOST_SHOWN], num_val = t->info.num_val_samples;
    const DynapipeAnswer_v1* answers;
    if (num_samples > num_val) { num_samples = (int)num_val; }
    for (int i = 0; i < num_samples; i++) { samples[i] = (int64_t)(t->step + i) * STRIDE % num_val; }
    check(t, dynapipe_generate(t->dp, samples, num_samples, t->flags.sample_tokens, &answers));
    if (dynapipe_stop_signal(t->dp) != 0) { return; }
    for (int i = 0; i < num_samples && t->is_main; i++) { answers_show(&answers[i], &t->text, &t->ends); }
}

static bool every(int interval, int step, bool is_last) {
    return interval > 0 && (step % interval == 0 || is_last);
}

static void look_at_model(Trainer* t, bool is_last) {
    enum { SAMPLES_AT_END = 4 };
    if (t->flags.val_pattern == NULL) { return; }
    if (every(t->flags.val_every, t->step, is_last)) { validate(t); }
    if (t->step > 0 && every(t->flags.sample_every, t->step, is_last)) {
        show_answers(t, is_last ? SAMPLES_AT_END : 1);
    }
}

// --- the loop ----------------------------------------------------------------------------------------------

// Squares of every parameter's gradient once: each rank's shard, without tied copies.
static double gradient_norm(Trainer* t) {
    return sqrt(run_sum(
        &t->files, run_owns_moments(&t->files) ? optimizer_sum_of_squares(&t->optimizer, &t->model) : 0));
}

// If the optimizer scales steps by tensor: sums over all ranks that have parts of it.
static void scale_steps(Trainer* t) {
    if (t->squares == NULL) { return; }
    int num_tensors = model_num_tensors(&t->model.config);
    memset(t->squares, 0, (size_t)num_tensors * sizeof *t->squares);
    if (run_owns_moments(&t->files)) { optimizer_param_squares(&t->optimizer, &t->model, t->squares); }
    run_sums(&t->files, t->squares, num_tensors);
    optimizer_set_scales(&t->optimizer, &t->model, t->squares);
}

static double step_flops(const Trainer* t, const DynapipeStep_v1* last) {
    const ModelWork work = {.tokens = last->total_tokens - last->dec_tokens,
                            .squares = last->squares,
                            .dec_tokens = last->dec_tokens,
                            .dec_squares = last->dec_squares,
                            .cross_products = last->cross_products,
                            .rows = last->supervised_tokens};
    return model_flops(&t->model.config, &work);
}

static void train_step(Trainer* t) {
    const TrainFlags* flags = &t->flags;
    DynapipeStep_v1 last;
    check(t, dynapipe_step(t->dp, &last));
    if (t->step == 0) { dump_gradients(t); }
    DynapipeReport_v1 report = {.step = t->step + 1,
                                .norm = gradient_norm(t),
                                .lr = lr_schedule_at(&t->lr_schedule, t->step),
                                .loss_z = outlier_update(&t->loss_outlier, last.loss),
                                .log_dir = flags->output_dir,
                                .flops = step_flops(t, &last),
                                .peak_flops = t->peak_flops};
    report.norm_z = outlier_update(&t->norm_outlier, report.norm);
    if (!isfinite(last.loss) || !isfinite(report.norm)) {
        die(t, "the loss or its gradient is not a finite number ---> try a smaller -l or a longer -u");
    }
    bool skip = (flags->skip_loss_z > 0 && report.loss_z > flags->skip_loss_z) ||
                (flags->skip_norm_z > 0 && report.norm_z > flags->skip_norm_z);
    if (!skip) {
        scale_steps(t);
        optimizer_update(&t->optimizer, &t->model, (float)report.lr, t->step + 1,
                         optimizer_clip_scale(report.norm, (float)flags->grad_clip));
        check(t, dynapipe_share_params(t->dp));
    } else if (t->is_main) {
        printf("skipped the update of step %d: loss or norm is an outlier (-sl, -sg)\n", t->step + 1);
    }
    t->step++;
    check(t, dynapipe_report(t->dp, &report));
    main_log_train(&t->files.log, t->step, (float)last.loss, (float)report.lr, (float)report.norm);
    resplit(t);
    if (t->is_main) { standard_output_warn(&t->warned_of_output); }
}

// At the end, on a signal, or by the interval; no step twice.
static void maybe_save(Trainer* t, bool is_last, bool is_told) {
    const TrainFlags* flags = &t->flags;
    double now_s = dynapipe_seconds(t->dp);
    bool is_due = is_last || is_told || save_interval_is_due(&t->save_every, t->step, now_s - t->saved_s);
    if (flags->output_dir == NULL || t->step == t->saved_step || !is_due) { return; }
    save(t, !is_last && flags->checkpoint_every == NULL && flags->checkpoints_keep <= 0);
    t->saved_step = t->step;
    t->saved_s = now_s;
}

static void print_stopped(const Trainer* t, int first_step) {
    const char* directory = t->flags.output_dir;
    bool is_done = t->step >= t->num_steps;
    if (!t->is_main) { return; }
    printf("stopped by %s ", stop_signal_name(dynapipe_stop_signal(t->dp)));
    if (is_done) {
        printf("after the last step: the run is complete\n");
    } else if (t->step == first_step) {
        printf("before the first step of this run: nothing to save\n");
    } else {
        printf("after step %d of %d, ", t->step, t->num_steps);
        if (directory == NULL) {
            printf("not saved ---> -o DIR saves\n");
        } else if (t->files.save_failed) {
            printf("not saved ---> -y 1 resumes from the newest checkpoint in %s\n", directory);
        } else {
            printf("saved in %s ---> the same command with -y 1 resumes there\n", directory);
        }
    }
    if (t->flags.export_dir != NULL && !is_done) {
        printf("--export-hf %s: not exported yet; the resumed run exports at its end\n", t->flags.export_dir);
    }
    fflush(stdout);
}

// As in llm.c: validate, save, update; and once more at the end. A signal ends the run after the current
// step, or during validation, and saves. Returns the signal, 0: none.
static int train(Trainer* t) {
    int first_step = t->saved_step = t->step;
    resplit(t);  // restores the layer placement of a resumed run
    for (;;) {
        bool is_last = t->step >= t->num_steps;
        if (dynapipe_stop_signal(t->dp) == 0) { look_at_model(t, is_last); }
        is_last = t->step >= t->num_steps;  // --patience
        int stop_signal = dynapipe_stop_signal(t->dp);
        maybe_save(t, is_last, stop_signal != 0);
        if (stop_signal == 0) {  // a save waits for verification, which a signal ends
            stop_signal = dynapipe_stop_signal(t->dp);
            maybe_save(t, is_last, stop_signal != 0);
        }
        if (stop_signal != 0) { print_stopped(t, first_step); }
        if (stop_signal != 0 || is_last) { return stop_signal; }
        train_step(t);
    }
}

// --- the program -------------------------------------------------------------------------------------------

static void print_help(const ModelKind* kind) {
    printf("usage: mpirun -np RANKS ./train_%s -i FILES [options]\n"
           "Trains a %s on a mixture of tasks with samples of very different lengths. For every step a plan\n"
           "decides which samples form a microbatch, and what each rank computes when.\n"
           "RANKS = stages x replicas. One rank needs no mpirun.\n\n"
           "llm.c's flags, and others of training, each with a value [default]:\n",
           kind->name, kind->title);
    train_flags_print(stdout);
    printf("\n");
    dynapipe_print_options(stdout);
}

static void print_version(const ModelKind* kind) {
    char program[64];
    snprintf(program, sizeof program, "train_%s", kind->name);
    version_print(program, stdout);
    ops_print_version(stdout);
    dynapipe_print_version(stdout);
}

static void run_close(Trainer* t) {
    line_log_close(&t->files.log);
    optimizer_free(&t->optimizer);
    if (t->model.params != NULL) { model_free(&t->model); }
    token_text_free(&t->text);
    dynapipe_close(t->dp);  // finishes its work on the stream of ops first
    if (t->ops != NULL) { ops_free(t->ops); }
    free(t->squares);
    free(t->saved_model_name);
    free(t->task_loss);
    free(t->task_names);
    free(t);
}

int trainer_main(int argc, char** argv, const ModelKind* kind) {
    Trainer* t = (Trainer*)calloc(1, sizeof(Trainer));
    if (t == NULL) { return EXIT_FAILURE; }
    standard_output_open(true);
    if (version_is_wanted(argc, argv)) {
        print_version(kind);
        free(t);
        return standard_output_close(EXIT_SUCCESS, EXIT_FAILURE);
    }
    t->kind = kind;
    t->best_step = t->best_task = -1;
    dynapipe_watch_signals(NULL);
    const int code = dynapipe_open(&t->dp, &argc, &argv, train_flags_words());
    t->files = (RunFiles){
        .dp = t->dp, .flags = &t->flags, .model = &t->model, .optimizer = &t->optimizer, .resume_step = -1};
    check(t, code);
    dynapipe_watch_signals(t->dp);
    t->is_main = t->files.is_main = dynapipe_rank(t->dp) == 0;
    if (train_flags_want_help(argc, argv)) {
        if (t->is_main) { print_help(kind); }
        run_close(t);
        return standard_output_close(EXIT_SUCCESS, EXIT_FAILURE);
    }
    if (train_flags_parse(&t->flags, argc, argv, t->is_main ? stdout : NULL) != STATUS_OK) {
        refuse(t, "%s", status_message());
    }
    if (t->flags.model == NULL) { t->flags.model = kind->usual; }
    build(t);
    int stop_signal = train(t);
    if (t->step >= t->num_steps) { export_hf(t); }
    if (stop_signal == 0) { stop_signal = stop_signal_seen(); }  // too late, changes only the status
    bool failed = t->files.save_failed || t->files.log.num_lost > 0 || dynapipe_lost_lines(t->dp) > 0;
    run_close(t);
    return standard_output_close(failed ? EXIT_FAILURE : stop_signal_exit_status(stop_signal), EXIT_FAILURE);
}
