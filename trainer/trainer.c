#include "trainer.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../util/files.h"
#include "../util/program.h"
#include "../llmc/llmc_error.h"

// --- build -----------------------------------------------------------------------------------------------

// With its parents. path: NULL where the flag was not given
static void must_be_directory(Trainer* t, const char* flag, const char* path) {
    char why[640];
    if (path == NULL) { return; }
    if (file_make_directory(path) != STATUS_OK) {
        snprintf(why, sizeof why, "%s %.600s", flag, status_message());
    } else if (access(path, W_OK | X_OK) != 0) {
        snprintf(why, sizeof why, "%s %.80s: %s ---> choose a directory that you may write", flag, path,
                 strerror(errno));
    } else {
        return;
    }
    source_die(t->source, why);
}

static void refuse_value(Trainer* t, const char* flag, const char* error) {
    char why[LLMC_ERROR_CHARS + 16];
    snprintf(why, sizeof why, "%s: %s", flag, error);
    source_refuse(t->source, why);
}

// All that is wrong with the flags themselves, before anything is made: exit status 2.
static void check_flags(Trainer* t, OptimizerKind* kind) {
    char error[LLMC_ERROR_CHARS];
    const TrainFlags* flags = &t->flags;
    if (!optimizer_parse(kind, flags->optimizer, error)) { refuse_value(t, "--optimizer", error); }
    if (!lr_schedule_parse(&t->lr_schedule.kind, flags->lr_scheduler, error)) {
        refuse_value(t, "-k", error);
    }
    if (flags->train_pattern == NULL) {
        source_refuse(t->source,
                      "-i: no training data ---> -i DIR/train.bin; ./prepare_data makes it from JSONL");
    }
    const char* every = flags->checkpoint_every != NULL ? flags->checkpoint_every : SAVE_INTERVAL_USUAL;
    if (save_interval_parse(&t->save_every, "-n", every) != STATUS_OK) {
        source_refuse(t->source, status_message());
    }
    bool wants_saves = flags->checkpoint_every != NULL && t->save_every.steps + t->save_every.seconds > 0;
    if (flags->output_dir == NULL && (flags->resume || wants_saves)) {
        source_refuse(t->source, "-y and -n need a directory ---> add -o DIR");
    }
    if (flags->resume && flags->overwrite) {
        source_refuse(t->source,
                      "-y and --overwrite 1: to go on from the earlier run, or to take its place? ---> give "
                      "one of the two");
    }
}

static void make_directories(Trainer* t) {
    const TrainFlags* flags = &t->flags;
    must_be_directory(t, "-o", flags->output_dir);
    must_be_directory(t, "--export-hf", flags->export_dir);  // now, not after hours of training
    char why[LLMC_ERROR_CHARS], message[LLMC_ERROR_CHARS + 16];
    if (flags->export_dir == NULL || hf_checkpoint_make_directory(flags->export_dir, why)) { return; }
    snprintf(message, sizeof message, "--export-hf %s", why);
    source_die(t->source, message);
}

static void build(Trainer* t) {
    char error[LLMC_ERROR_CHARS];
    OptimizerKind kind = OPTIMIZER_ADAMW;
    check_flags(t, &kind);
    make_directories(t);
    trainer_open_output(t);
    source_open_data(t->source, &t->flags);
    t->num_steps = source_num_steps(t->source);
    t->lr_schedule.peak = (float)t->flags.lr;
    t->lr_schedule.warmup_steps = t->flags.warmup_steps;
    t->lr_schedule.num_steps = t->num_steps;
    t->lr_schedule.final_fraction = (float)t->flags.final_lr_fraction;
    ModelSource source = trainer_build_model(t);
    int64_t begin, end;
    source_shard(t->source, &begin, &end);
    optimizer_init(&t->optimizer, kind, begin, end, (float)t->flags.weight_decay, source_seed(t->source),
                   source_ops(t->source));
    if (kind == OPTIMIZER_ADAMW_SCALED) {
        size_t num_tensors = (size_t)model_num_tensors(&t->model.config);
        t->squares = (double*)llmc_alloc(num_tensors * sizeof(double), "sums by tensor");
    }
    if (source == MODEL_RESUMED) {
        trainer_resume(t);
    } else if (!trainer_read_first_master(t, source, error)) {
        source_die(t->source, error);
    }
    optimizer_set_master(&t->optimizer, &t->model);
    trainer_begin_output(t, source);
}

// --- loop ------------------------------------------------------------------------------------------------

// Squares of every parameter's gradient once: a shard each, and not the tied copy.
static double gradient_norm(Trainer* t) {
    double sum = source_owns_moments(t->source) ? optimizer_sum_of_squares(&t->optimizer, &t->model) : 0;
    return sqrt(source_sum(t->source, sum));
}

// Where the optimizer's steps depend on the size of each tensor: over all ranks that have parts of it.
static void scale_steps(Trainer* t) {
    if (t->squares == NULL) { return; }
    int num_tensors = model_num_tensors(&t->model.config);
    memset(t->squares, 0, (size_t)num_tensors * sizeof *t->squares);
    if (source_owns_moments(t->source)) { optimizer_param_squares(&t->optimizer, &t->model, t->squares); }
    source_sums(t->source, t->squares, num_tensors);
    optimizer_set_scales(&t->optimizer, &t->model, t->squares);
}

static void train_step(Trainer* t) {
    SourceStep about = {.loss = source_step(t->source), .norm = 0, .lr = 0, .loss_z = 0, .norm_z = 0};
    if (t->step == 0) { trainer_dump_gradients(t); }
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
        scale_steps(t);
        optimizer_update(&t->optimizer, &t->model, (float)about.lr, t->step + 1, clip);
        source_share_params(t->source);
    } else if (source_is_main(t->source)) {
        printf("skipped the update of step %d: loss or norm is an outlier (-sl, -sg)\n", t->step + 1);
    }
    t->step++;
    source_report(t->source, t->step, &about);
    logger_train(&t->logger, t->step, (float)about.loss, (float)about.lr, (float)about.norm);
    trainer_resplit(t);
    trainer_check_printed(t);
}

static bool every(int interval, int step, bool is_last) {
    return interval > 0 && (step % interval == 0 || is_last);
}

// At the end, for a signal, or because it is time; no step twice.
static void maybe_save(Trainer* t, bool is_last, bool is_told) {
    const TrainFlags* flags = &t->flags;
    double now_s = source_seconds(t->source);
    bool is_due = is_last || is_told || save_interval_is_due(&t->save_every, t->step, now_s - t->saved_s);
    if (flags->output_dir == NULL || t->step == t->saved_step || !is_due) { return; }
    bool is_timed = !is_last && flags->checkpoint_every == NULL && flags->checkpoints_keep <= 0;
    if (is_timed) { checkpoint_timed_add(&t->timed, t->step); }
    trainer_save(t);
    t->saved_step = t->step;
    t->saved_s = now_s;
    if (t->save_failed) {
        checkpoint_timed_drop(&t->timed, t->step);
    } else if (is_timed && source_is_main(t->source)) {
        checkpoint_timed_forget(&t->timed, flags->output_dir, flags->checkpoints_major);
    }
}

enum { SAMPLES_AT_END = 4 };

static void look_at_model(Trainer* t, bool is_last) {
    const TrainFlags* flags = &t->flags;
    if (every(flags->val_every, t->step, is_last)) {
        double loss = source_validate(t->source, t->step, flags->val_batches);
        if (!isnan(loss)) { logger_val(&t->logger, t->step, (float)loss); }
    }
    if (t->step > 0 && every(flags->sample_every, t->step, is_last)) {
        source_show_samples(t->source, t->step, is_last ? SAMPLES_AT_END : 1, flags->sample_tokens);
    }
}

// Told to end before the last step.
static void say_stopped(const Trainer* t, int first_step) {
    const char *name = stop_signal_name(source_stop_signal(t->source)), *directory = t->flags.output_dir;
    if (!source_is_main(t->source)) { return; }
    if (t->step == first_step) {
        printf("stopped by %s before the first step of this run: nothing to save\n", name);
    } else if (directory == NULL) {
        printf("stopped by %s after step %d of %d, nothing is saved ---> -o DIR saves\n", name, t->step,
               t->num_steps);
    } else if (t->save_failed) {
        printf("stopped by %s after step %d of %d, which is not saved ---> -y 1 goes on from the newest that "
               "%s has\n",
               name, t->step, t->num_steps, directory);
    } else {
        printf("stopped by %s after step %d of %d, saved in %s ---> the same command with -y 1 goes on from "
               "there\n",
               name, t->step, t->num_steps, directory);
    }
    if (t->flags.export_dir != NULL) {
        printf("--export-hf %s: not exported yet, the run that goes on does that at its end\n",
               t->flags.export_dir);
    }
    fflush(stdout);
}

// Told to end when all steps were done: the model is complete, saved and exported as ever.
static void say_left_out(const Trainer* t) {
    const TrainFlags* flags = &t->flags;
    bool looks = (flags->val_every > 0 && flags->val_pattern != NULL) || flags->sample_every > 0;
    if (!source_is_main(t->source)) { return; }
    printf("%s after the last step: the run is complete%s\n", stop_signal_name(source_stop_signal(t->source)),
           looks ? ", but for what was left of its last validation and samples" : "");
    fflush(stdout);
}

// As in llm.c: look at the model, then save it, then improve it; once more at the end. A signal ends it at
// the next step's end, or in the middle of a look, and what was done is saved. Returns the signal, 0: none.
static int train(Trainer* t) {
    int first_step = t->saved_step = t->step;
    trainer_resplit(t);  // a run that goes on has the layers where they were
    for (;;) {
        bool is_last = t->step >= t->num_steps;
        if (source_stop_signal(t->source) == 0) { look_at_model(t, is_last); }
        int stop_signal = source_stop_signal(t->source);
        if (is_last && stop_signal != 0) { say_left_out(t); }
        maybe_save(t, is_last, stop_signal != 0);
        if (stop_signal == 0) {  // a save waits for the data, and ends that for a signal
            stop_signal = source_stop_signal(t->source);
            maybe_save(t, is_last, stop_signal != 0);
        }
        if (stop_signal != 0 && !is_last) { say_stopped(t, first_step); }
        if (stop_signal != 0 || is_last) { return stop_signal; }
        train_step(t);
    }
}

static void print_help(const ModelKind* kind) {
    source_print_usage(stdout, kind);
    printf("\nllm.c's flags, each with a value [default]:\n");
    train_flags_print(stdout);
    source_print_options(stdout);
}

static void print_version(const ModelKind* kind) {
    char program[64];
    snprintf(program, sizeof program, "train_%s", kind->name);
    version_print(program, stdout);
    ops_print_version(stdout);
    source_print_version(stdout);
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
    t->source = source_open(&argc, &argv, kind);
    if (train_flags_want_help(argc, argv)) {
        if (source_is_main(t->source)) { print_help(kind); }
        source_close(t->source);
        return standard_output_close(EXIT_SUCCESS, EXIT_FAILURE);
    }
    const char* error = train_flags_parse(&t->flags, argc, argv);
    if (error != NULL) { source_refuse(t->source, error); }
    if (source_is_main(t->source)) { train_flags_print_passed_over(argc, argv, stdout); }
    if (t->flags.model == NULL) { t->flags.model = kind->usual; }
    build(t);
    int stop_signal = train(t);
    if (t->step >= t->num_steps) { trainer_export(t); }
    if (stop_signal == 0) { stop_signal = stop_signal_seen(); }  // too late to change more than the status
    bool failed = t->save_failed || trainer_has_lost(t);
    trainer_close_output(t);
    optimizer_free(&t->optimizer);
    free(t->squares);
    free(t->saved_model_name);
    model_free(&t->model);
    source_close(t->source);
    free(t);
    return standard_output_close(failed ? EXIT_FAILURE : stop_signal_exit_status(stop_signal), EXIT_FAILURE);
}
