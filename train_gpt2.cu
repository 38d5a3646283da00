/*
train_gpt2.cu -- trains a GPT-2: parse, build, loop, free.

    make train_gpt2             one process, fixed-length batches, as in llm.c      (train_stock.c)
    make train_gpt2 DYNAPIPE=1  a task mixture on a dynamic pipeline of MPI ranks   (train_dynapipe.c)

The same file is plain C for the CPU build and CUDA for nvcc; it has no kernels. Where a step's gradients come
from is behind the functions source_*() of train_source.h: the one difference between the two programs.
*/
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "llmc/checkpoint.h"
#include "llmc/gpt2.h"
#include "llmc/llmc_error.h"
#include "llmc/logger.h"
#include "llmc/lr_schedule.h"
#include "llmc/optimizer.h"
#include "llmc/outlier.h"
#include "llmc/train_flags.h"
#include "train_source.h"

typedef struct {
    TrainFlags flags;
    Source* source;
    Gpt2 model;
    Optimizer optimizer;
    LrSchedule lr_schedule;
    Logger logger;
    Outlier loss_outlier, norm_outlier;
    int step, num_steps;  // optimizer steps done, of the run
    bool save_failed;     // the last checkpoint could not be written
} Trainer;

// --- checkpoints -----------------------------------------------------------------------------------------

// Every rank learns whether all succeeded; the first that failed says why.
static bool all_succeeded(Trainer* t, bool ok, const char* what, const char* error) {
    if (!ok) { fprintf(stderr, "warning: %s not saved: %s\n", what, error); }
    return source_sum(t->source, ok ? 0 : 1) == 0;
}

static bool create_files(Trainer* t, const char* model_path, const char* state_path, char* error) {
    const void* position;
    size_t position_bytes;
    source_position(t->source, &position, &position_bytes);
    CheckpointRun run = {.step = t->step,
                         .has_master = t->optimizer.master != NULL,
                         .position = (uint8_t*)(uintptr_t)position,
                         .position_bytes = position_bytes};
    return checkpoint_create_model(model_path, &t->model.config, error) &&
           checkpoint_create_state(state_path, &t->model.config, &run, error);
}

static bool write_slices(Trainer* t, const char* model_path, const char* state_path, char* error) {
    const Optimizer* o = &t->optimizer;
    bool ok = true;
    if (source_owns_params(t->source)) {
        ok = checkpoint_write(model_path, CHECKPOINT_PARAMS, &t->model, t->model.params, 0,
                              t->model.num_params, error);
    }
    if (ok && source_owns_moments(t->source)) {
        ok = checkpoint_write(state_path, CHECKPOINT_M, &t->model, o->m, o->begin, o->end, error) &&
             checkpoint_write(state_path, CHECKPOINT_V, &t->model, o->v, o->begin, o->end, error) &&
             (o->master == NULL ||
              checkpoint_write(state_path, CHECKPOINT_MASTER, &t->model, o->master, o->begin, o->end, error));
    }
    return ok;
}

// Written aside, renamed when every rank's part is on disk. A full disk costs this checkpoint, not the run.
static void save_checkpoint(Trainer* t) {
    char model_path[CHECKPOINT_PATH_CHARS], state_path[CHECKPOINT_PATH_CHARS], error[LLMC_ERROR_CHARS] = "";
    const char* directory = t->flags.output_dir;
    bool is_main = source_is_main(t->source), ok = true;
    checkpoint_path(model_path, directory, CHECKPOINT_MODEL_FILE, t->step);
    checkpoint_path(state_path, directory, CHECKPOINT_STATE_FILE, t->step);
    if (is_main) { ok = create_files(t, model_path, state_path, error); }
    bool saved = all_succeeded(t, ok, "checkpoint", error);
    if (saved) {
        ok = write_slices(t, model_path, state_path, error);
        saved = all_succeeded(t, ok, "checkpoint", error);
    }
    if (saved) {
        if (is_main) {
            checkpoint_unmark(directory, t->step);
            ok = checkpoint_commit(model_path, error) && checkpoint_commit(state_path, error) &&
                 checkpoint_mark_done(directory, t->step, error);
        }
        saved = all_succeeded(t, ok, "checkpoint", error);
    }
    t->save_failed = !saved;
    if (!is_main) { return; }
    if (saved) {
        checkpoint_prune(directory, t->step, t->flags.checkpoints_keep, t->flags.checkpoints_major);
        printf("saved %s\n", model_path);
    } else {
        checkpoint_abort(model_path);
        checkpoint_abort(state_path);
    }
}

// The float32 weights behind a model file's: of its state, where that has them, else of the file itself,
// which may be float32 where parameters are bf16. A build without master weights trains on what a state has
// of them.
static bool read_master(Trainer* t, const char* model_path, const char* state_path, bool state_has_master,
                        char* error) {
    Optimizer* o = &t->optimizer;
    const Gpt2* model = &t->model;
    if (o->master == NULL) {
        return !state_has_master || checkpoint_read(state_path, CHECKPOINT_MASTER, model, model->params, 0,
                                                    model->num_params, error);
    }
    o->master_is_set = true;
    return checkpoint_read(state_has_master ? state_path : model_path,
                           state_has_master ? CHECKPOINT_MASTER : CHECKPOINT_FLOATS, model, o->master,
                           o->begin, o->end, error);
}

static void resume(Trainer* t) {
    char path[CHECKPOINT_PATH_CHARS], model_path[CHECKPOINT_PATH_CHARS], error[LLMC_ERROR_CHARS];
    int step = checkpoint_find_latest(t->flags.output_dir);
    Optimizer* o = &t->optimizer;
    CheckpointRun run;
    checkpoint_path(path, t->flags.output_dir, CHECKPOINT_STATE_FILE, step);
    checkpoint_path(model_path, t->flags.output_dir, CHECKPOINT_MODEL_FILE, step);
    if (!checkpoint_read(path, CHECKPOINT_M, &t->model, o->m, o->begin, o->end, error) ||
        !checkpoint_read(path, CHECKPOINT_V, &t->model, o->v, o->begin, o->end, error) ||
        !checkpoint_read_run(&run, path, &t->model.config, error) ||
        !read_master(t, model_path, path, run.has_master, error)) {
        source_die(t->source, error);
    }
    t->step = run.step;
    if (run.position == NULL) {
        source_die(t->source, "-y 1: llm.c wrote this state, it has no place in our data ---> start with -e");
    }
    source_restore(t->source, run.position, run.position_bytes, run.step);
    free(run.position);
    if (source_is_main(t->source)) { printf("resumed from %s, step %d\n", path, t->step); }
}

// --- build -----------------------------------------------------------------------------------------------

static bool ends_with(const char* text, const char* end) {
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

// errno says why not.
static bool make_directory(const char* path) {
    struct stat about;
    if ((mkdir(path, 0755) != 0 && errno != EEXIST) || stat(path, &about) != 0) { return false; }
    if (!S_ISDIR(about.st_mode)) {
        errno = ENOTDIR;
        return false;
    }
    return access(path, W_OK | X_OK) == 0;
}

static void check_flags(Trainer* t) {
    TrainFlags* flags = &t->flags;
    if (flags->train_pattern == NULL) {
        source_die(t->source,
                   "-i: no training data ---> -i DIR/train.bin; ./prepare_data makes it from JSONL");
    }
    if (flags->output_dir == NULL && (flags->resume || flags->checkpoint_every > 0)) {
        source_die(t->source, "-y and -n need a directory ---> add -o DIR");
    }
    if (flags->output_dir != NULL && !make_directory(flags->output_dir)) {
        char why[LLMC_ERROR_CHARS];
        snprintf(why, sizeof why,
                 "-o %.80s: %s ---> choose a directory whose parent exists and that you may write",
                 flags->output_dir, strerror(errno));
        source_die(t->source, why);
    }
}

// -y 1 goes on with the checkpoint's model; an -e of another shape was meant for something else.
static void warn_of_other_model(const Trainer* t, const Gpt2Config* config, const char* path) {
    const char* model = t->flags.model;
    char error[LLMC_ERROR_CHARS];
    Gpt2Config asked;
    bool known = ends_with(model, ".bin")
                     ? checkpoint_read_config(&asked, model, error)
                     : gpt2_config_parse(&asked, model, config->vocab, config->max_seq_len, error);
    bool same = known && asked.num_layers == config->num_layers && asked.channels == config->channels &&
                asked.num_heads == config->num_heads;
    if (same || !t->flags.model_given || !source_is_main(t->source)) { return; }
    fprintf(stderr,
            "warning: -e %s is not used: -y 1 goes on with %s, %d layers, %d channels, %d heads ---> leave "
            "-e out; "
            "another -o for a new run\n",
            model, path, config->num_layers, config->channels, config->num_heads);
}

// The model that -e or the checkpoint to resume from describes, this rank's layers of it, filled.
static void build_model(Trainer* t) {
    char path[CHECKPOINT_PATH_CHARS], error[LLMC_ERROR_CHARS];
    const TrainFlags* flags = &t->flags;
    Gpt2Config config;
    bool resumes = flags->resume && checkpoint_find_latest(flags->output_dir) >= 0;
    bool from_file = resumes || ends_with(flags->model, ".bin");
    if (resumes) {
        checkpoint_path(path, flags->output_dir, CHECKPOINT_MODEL_FILE,
                        checkpoint_find_latest(flags->output_dir));
    } else {
        snprintf(path, sizeof path, "%s", flags->model);
    }
    bool ok = from_file ? checkpoint_read_config(&config, path, error)
                        : gpt2_config_parse(&config, flags->model, source_vocab(t->source), flags->seq_tokens,
                                            error);
    if (!ok) { source_die(t->source, error); }
    if (resumes) { warn_of_other_model(t, &config, path); }
    if (config.vocab < source_vocab(t->source) || config.max_seq_len < flags->seq_tokens) {
        snprintf(error, sizeof error,
                 "-e %.80s: vocabulary %d and %d positions, the data has %d ids, -t is %d ---> "
                 "another -e, data or -t",
                 llmc_path_tail(path), config.vocab, config.max_seq_len, source_vocab(t->source),
                 flags->seq_tokens);
        source_die(t->source, error);
    }
    int layer_begin, layer_end;
    bool is_last;
    source_layers(t->source, &config, &layer_begin, &layer_end, &is_last);
    gpt2_init(&t->model, config, layer_begin, layer_end, is_last, source_ops(t->source));
    gpt2_alloc_grads(&t->model);
    if (!from_file) {
        gpt2_init_random(&t->model, source_seed(t->source));
    } else if (!checkpoint_read(path, CHECKPOINT_PARAMS, &t->model, t->model.params, 0, t->model.num_params,
                                error)) {
        source_die(t->source, error);
    }
    source_attach(t->source, &t->model);
    if (source_is_main(t->source)) {
        printf("gpt2: %d layers, %d channels, %d heads, vocabulary %d, %lld parameters, %s; %s on %s\n",
               config.num_layers, config.channels, config.num_heads, config.vocab,
               (long long)gpt2_num_params(&config), from_file ? path : "new",
               sizeof(floatX) == 2 ? "bf16" : "fp32", ops_device_name(source_ops(t->source)));
    }
}

static void build(Trainer* t) {
    char error[LLMC_ERROR_CHARS];
    check_flags(t);
    source_open_data(t->source, &t->flags);
    t->num_steps = source_num_steps(t->source);
    t->lr_schedule.peak = (float)t->flags.lr;
    t->lr_schedule.warmup_steps = t->flags.warmup_steps;
    t->lr_schedule.num_steps = t->num_steps;
    t->lr_schedule.final_fraction = (float)t->flags.final_lr_fraction;
    if (!lr_schedule_parse(&t->lr_schedule.kind, t->flags.lr_scheduler, error)) {
        char message[LLMC_ERROR_CHARS + 8];
        snprintf(message, sizeof message, "-k: %s", error);
        source_die(t->source, message);
    }
    build_model(t);
    int64_t begin, end;
    source_shard(t->source, &begin, &end);
    optimizer_init(&t->optimizer, begin, end, (float)t->flags.weight_decay, source_seed(t->source),
                   source_ops(t->source));
    int latest = t->flags.output_dir != NULL ? checkpoint_find_latest(t->flags.output_dir) : -1;
    if (t->flags.resume && latest >= 0) {
        resume(t);
    } else if (ends_with(t->flags.model, ".bin") && !read_master(t, t->flags.model, NULL, false, error)) {
        source_die(t->source, error);
    }
    optimizer_set_master(&t->optimizer, &t->model);
    if (!t->flags.resume && latest >= 0 && source_is_main(t->source)) {
        fprintf(stderr,
                "warning: -o %s has an earlier run's checkpoints, up to step %d ---> -y 1 goes on from them; "
                "another -o keeps the runs apart\n",
                t->flags.output_dir, latest);
    }
    if (source_is_main(t->source) && t->flags.output_dir != NULL &&
        !logger_open(&t->logger, t->flags.output_dir, t->step > 0, error)) {
        source_die(t->source, error);
    }
}

// --- loop ------------------------------------------------------------------------------------------------

// Squares of every parameter's gradient once: a shard each, and not the tied copy.
static double gradient_norm(Trainer* t) {
    double sum = source_owns_moments(t->source) ? optimizer_sum_of_squares(&t->optimizer, &t->model) : 0;
    return sqrt(source_sum(t->source, sum));
}

// Asked for by name, so a run that cannot write them has failed.
static void dump_gradients(Trainer* t) {
    const char* path = source_dump_gradients(t->source);
    char error[LLMC_ERROR_CHARS] = "";
    if (path == NULL) { return; }
    bool is_main = source_is_main(t->source);
    bool ok = !is_main || checkpoint_create_gradients(path, &t->model.config, error);
    bool saved = all_succeeded(t, ok, "gradients", error);
    if (saved) {
        ok = !source_owns_moments(t->source) ||
             checkpoint_write(path, CHECKPOINT_FLOATS, &t->model, t->model.grads + t->optimizer.begin,
                              t->optimizer.begin, t->optimizer.end, error);
        saved = all_succeeded(t, ok, "gradients", error);
    }
    if (saved) {
        ok = !is_main || checkpoint_commit(path, error);
        saved = all_succeeded(t, ok, "gradients", error);
    }
    if (saved) { return; }
    if (is_main) { checkpoint_abort(path); }
    source_die(t->source, "--dump-gradients: cannot be written ---> name a file where you may write");
}

static void train_step(Trainer* t) {
    SourceStep about = {.loss = source_step(t->source), .norm = 0, .lr = 0, .loss_z = 0, .norm_z = 0};
    if (t->step == 0) { dump_gradients(t); }
    about.norm = gradient_norm(t);
    about.lr = lr_schedule_at(&t->lr_schedule, t->step);
    about.loss_z = outlier_update(&t->loss_outlier, about.loss);
    about.norm_z = outlier_update(&t->norm_outlier, about.norm);
    if (!isfinite(about.loss) || !isfinite(about.norm)) {
        source_die(t->source,
                   "the loss or its gradient is not a finite number ---> try a smaller -l or a longer -u");
    }
    bool skip = (t->flags.skip_loss_z > 0 && about.loss_z > t->flags.skip_loss_z) ||
                (t->flags.skip_norm_z > 0 && about.norm_z > t->flags.skip_norm_z);
    if (!skip) {
        float clip = optimizer_clip_scale(about.norm, 1);
        optimizer_update(&t->optimizer, &t->model, (float)about.lr, t->step + 1, clip);
        source_share_params(t->source);
    } else if (source_is_main(t->source)) {
        printf("skipped the update of step %d: loss or norm is an outlier (-sl, -sg)\n", t->step + 1);
    }
    t->step++;
    source_report(t->source, t->step, &about);
    logger_train(&t->logger, t->step, (float)about.loss, (float)about.lr, (float)about.norm);
}

static bool every(int interval, int step, bool is_last) {
    return interval > 0 && (step % interval == 0 || is_last);
}

enum { SAMPLES_AT_END = 4 };

// As in llm.c: look at the model, then save it, then improve it; once more at the end.
static void train(Trainer* t) {
    const TrainFlags* flags = &t->flags;
    int first_step = t->step;
    for (;;) {
        bool is_last = t->step >= t->num_steps;
        if (every(flags->val_every, t->step, is_last)) {
            double loss = source_validate(t->source, flags->val_batches);
            if (!isnan(loss)) { logger_val(&t->logger, t->step, (float)loss); }
        }
        if (t->step > 0 && every(flags->sample_every, t->step, is_last)) {
            source_show_samples(t->source, t->step, is_last ? SAMPLES_AT_END : 1, flags->sample_tokens);
        }
        bool wants_save =
            flags->output_dir != NULL && (is_last || every(flags->checkpoint_every, t->step, false));
        if (wants_save && t->step > first_step) { save_checkpoint(t); }
        if (is_last) { break; }
        train_step(t);
    }
}

static void print_help(void) {
    source_print_usage(stdout);
    printf("\nllm.c's flags, each with a value [default]:\n");
    train_flags_print(stdout);
    source_print_options(stdout);
}

int main(int argc, char** argv) {
    Trainer* t = (Trainer*)calloc(1, sizeof(Trainer));
    if (t == NULL) { return EXIT_FAILURE; }
    t->source = source_open(&argc, &argv);
    if (train_flags_want_help(argc, argv)) {
        if (source_is_main(t->source)) { print_help(); }
        source_close(t->source);
        return EXIT_SUCCESS;
    }
    const char* error = train_flags_parse(&t->flags, argc, argv);
    if (error != NULL) { source_die(t->source, error); }
    build(t);
    train(t);
    bool failed = t->save_failed;
    logger_close(&t->logger);
    optimizer_free(&t->optimizer);
    gpt2_free(&t->model);
    source_close(t->source);
    free(t);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
