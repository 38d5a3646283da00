// trainer_checkpoint.c -- checkpoints by all ranks together, and going on from them.
#include <stdio.h>
#include <stdlib.h>

#include "../dataloader/data_json.h"
#include "../llmc/checkpoint_file.h"
#include "../llmc/llmc_error.h"
#include "trainer.h"

bool trainer_all_succeeded(Trainer* t, bool ok, const char* what, const char* error) {
    if (!ok) { fprintf(stderr, "warning: %s not saved: %s\n", what, error); }
    return source_sum(t->source, ok ? 0 : 1) == 0;
}

// The same, with the sums of all ranks' parts: no collective more than without.
static bool all_wrote(Trainer* t, bool ok, uint64_t* model_sum, uint64_t* state_sum, const char* what,
                      const char* error) {
    if (!ok) { fprintf(stderr, "warning: %s not saved: %s\n", what, error); }
    return trainer_add_sums(t, ok, model_sum, state_sum);
}

// What a checkpoint is made of, and the sums of what this rank wrote of it.
typedef struct {
    char model_path[CHECKPOINT_PATH_CHARS], state_path[CHECKPOINT_PATH_CHARS];
    uint64_t model_sum, state_sum;
} Saving;

static bool create_files(Trainer* t, Saving* saving, char* error) {
    const void* position;
    size_t position_bytes;
    source_position(t->source, &position, &position_bytes);
    CheckpointRun run = {.step = t->step,
                         .has_master = t->optimizer.master != NULL,
                         .position = (uint8_t*)(uintptr_t)position,
                         .position_bytes = position_bytes,
                         .settings = trainer_settings(t)};
    bool ok = checkpoint_create_model(saving->model_path, &t->model.config, error) &&
              checkpoint_create_state(saving->state_path, &t->model.config, &run, &saving->state_sum, error);
    free(run.settings);
    return ok;
}

static bool write_slices(Trainer* t, Saving* saving, char* error) {
    const Optimizer* o = &t->optimizer;
    const Model* model = &t->model;
    const char* path = saving->state_path;
    uint64_t* sum = &saving->state_sum;
    bool ok = true;
    if (source_owns_params(t->source)) {
        ok = checkpoint_write(saving->model_path, CHECKPOINT_PARAMS, model, model->params, 0,
                              model->num_params, &saving->model_sum, error);
    }
    if (ok && source_owns_moments(t->source)) {
        ok = checkpoint_write(path, CHECKPOINT_M, model, o->m, o->begin, o->end, sum, error) &&
             checkpoint_write(path, CHECKPOINT_V, model, o->v, o->begin, o->end, sum, error) &&
             (o->master == NULL ||
              checkpoint_write(path, CHECKPOINT_MASTER, model, o->master, o->begin, o->end, sum, error));
    }
    return ok;
}

// Every rank's part is on disk, and their sums are there.
static bool commit(Trainer* t, const Saving* saving, char* error) {
    const char* directory = t->flags.output_dir;
    CheckpointSeal seal = {
        .step = t->step, .body_sum = saving->model_sum, .vocab_hash = source_vocab_hash(t->source)};
    CheckpointSeal state_seal = seal;
    state_seal.body_sum = saving->state_sum;
    state_seal.model_sum = saving->model_sum;
    if (!checkpoint_seal_write(saving->model_path, &seal, error) ||
        !checkpoint_seal_write(saving->state_path, &state_seal, error)) {
        return false;
    }
    checkpoint_unmark(directory, t->step);
    if (!checkpoint_commit(saving->model_path, error) || !checkpoint_commit(saving->state_path, error)) {
        return false;
    }
    int num_later = checkpoint_remove_later(directory, t->step);
    if (num_later > 0 && !t->replaces_earlier) {
        printf("-o %s: %d checkpoints of steps after %d, which the run left, are removed\n", directory,
               num_later, t->step);
    }
    return checkpoint_mark_done(directory, t->step, error);
}

static bool save(Trainer* t, Saving* saving) {
    char error[LLMC_ERROR_CHARS] = "";
    bool is_main = source_is_main(t->source), ok = !is_main || create_files(t, saving, error);
    if (!trainer_all_succeeded(t, ok, "checkpoint", error)) { return false; }
    ok = write_slices(t, saving, error);
    if (!all_wrote(t, ok, &saving->model_sum, &saving->state_sum, "checkpoint", error)) { return false; }
    ok = !is_main || commit(t, saving, error);
    return trainer_all_succeeded(t, ok, "checkpoint", error);
}

// With the first checkpoint, so that ./generate has all it needs in one folder. The weights do not depend on
// it: what cannot be copied is said.
static void keep_tokens(Trainer* t) {
    char folder[CHECKPOINT_PATH_CHARS];
    if (t->has_kept_tokens) { return; }
    t->has_kept_tokens = true;
    if (data_json_copy(trainer_data_folder(t, folder), t->flags.output_dir) != STATUS_OK) {
        fprintf(stderr, "warning: the data's tokenizer is not beside the checkpoints: %s\n",
                status_message());
    }
}

// Of this rank, for the lines on how far it is.
static int64_t bytes_to_save(const Trainer* t) {
    const Optimizer* o = &t->optimizer;
    int64_t moments = source_owns_moments(t->source) ? o->end - o->begin : 0;
    int64_t params = source_owns_params(t->source) ? t->model.num_params : 0;
    return params * (int64_t)sizeof(floatX) + moments * (int64_t)sizeof(float) * (o->master != NULL ? 3 : 2);
}

SlowNotice* trainer_notice(const Trainer* t, const char* doing, int step, int64_t num_bytes) {
    char what[96];
    if (!source_is_main(t->source)) { return NULL; }
    snprintf(what, sizeof what, step >= 0 ? "%s step %d" : "%s", doing, step);
    return slow_notice_begin(what, num_bytes > 0 ? checkpoint_file_bytes_done : NULL, num_bytes);
}

void trainer_save(Trainer* t) {
    Saving saving = {.model_sum = 0};
    const char* directory = t->flags.output_dir;
    source_verify_data(t->source);
    checkpoint_path(saving.model_path, directory, CHECKPOINT_MODEL_FILE, t->step);
    checkpoint_path(saving.state_path, directory, CHECKPOINT_STATE_FILE, t->step);
    SlowNotice* notice = trainer_notice(t, "saving", t->step, bytes_to_save(t));
    bool saved = save(t, &saving);
    slow_notice_end(notice);
    t->save_failed = !saved;
    if (!source_is_main(t->source)) { return; }
    if (saved) {
        checkpoint_prune(directory, t->step, t->flags.checkpoints_keep, t->flags.checkpoints_major);
        printf("saved %s\n", saving.model_path);
        trainer_replace_earlier(t);
        keep_tokens(t);
    } else {
        checkpoint_abort(saving.model_path);
        checkpoint_abort(saving.state_path);
    }
}

// The float32 weights behind a model file's: of its state, where that has them, else of the file itself,
// which may be float32 where parameters are bf16. A build without master weights trains on what a state has
// of them.
bool trainer_read_master(Trainer* t, const char* model_path, const char* state_path, bool state_has_master,
                         char* error) {
    Optimizer* o = &t->optimizer;
    const Model* model = &t->model;
    uint64_t* sum = &t->begun.state_sum;
    if (o->master == NULL) {
        if (!source_owns_params(t->source)) { sum = NULL; }
        return !state_has_master || checkpoint_read(state_path, CHECKPOINT_MASTER, model, model->params, 0,
                                                    model->num_params, sum, error);
    }
    o->master_is_set = true;
    if (!state_has_master) {  // counted as parameters
        return checkpoint_read(model_path, CHECKPOINT_FLOATS, model, o->master, o->begin, o->end, NULL,
                               error);
    }
    if (!source_owns_moments(t->source)) { sum = NULL; }
    return checkpoint_read(state_path, CHECKPOINT_MASTER, model, o->master, o->begin, o->end, sum, error);
}

// The state's values and record.
static bool read_state(Trainer* t, CheckpointRun* run, const char* model_path, const char* path,
                       char* error) {
    const Optimizer* o = &t->optimizer;
    uint64_t* sum = source_owns_moments(t->source) ? &t->begun.state_sum : NULL;
    uint64_t* record_sum = source_is_main(t->source) ? &t->begun.state_sum : NULL;
    return checkpoint_read(path, CHECKPOINT_M, &t->model, o->m, o->begin, o->end, sum, error) &&
           checkpoint_read(path, CHECKPOINT_V, &t->model, o->v, o->begin, o->end, sum, error) &&
           checkpoint_read_run(run, path, &t->model.config, record_sum, error) &&
           trainer_read_master(t, model_path, path, run->has_master, error);
}

void trainer_resume(Trainer* t) {
    char path[CHECKPOINT_PATH_CHARS], model_path[CHECKPOINT_PATH_CHARS], error[LLMC_ERROR_CHARS];
    CheckpointRun run;
    checkpoint_path(path, t->flags.output_dir, CHECKPOINT_STATE_FILE, t->resume_step);
    checkpoint_path(model_path, t->flags.output_dir, CHECKPOINT_MODEL_FILE, t->resume_step);
    SlowNotice* notice = trainer_notice(t, "reading the state of", t->resume_step, bytes_to_save(t));
    if (!read_state(t, &run, model_path, path, error)) { trainer_die_of_checkpoint(t, error); }
    slow_notice_end(notice);
    trainer_check_sums(t, model_path, path);
    if (run.position == NULL) {
        source_die(t->source, "-y: llm.c wrote this state, it has no place in our data ---> start with -e");
    }
    if (t->flags.verify && !t->begun.state.is_sealed) {
        llmc_fail(error, "%s: its seal is gone, the run's record is there: edited", llmc_path_tail(path));
        trainer_die_of_checkpoint(t, error);
    }
    t->step = run.step;
    source_restore(t->source, run.position, run.position_bytes, run.step);
    checkpoint_timed_read(&t->timed, run.settings);  // before settings are compared: it is one
    trainer_compare_settings(t, run.settings);
    if (source_is_main(t->source)) {
        checkpoint_timed_forget(&t->timed, t->flags.output_dir, t->flags.checkpoints_major);
    }
    free(run.position);
    free(run.settings);
    if (source_is_main(t->source)) { printf("resumed from %s, step %d\n", path, t->step); }
}

void trainer_dump_gradients(Trainer* t) {
    const char* path = source_dump_gradients(t->source);
    char error[LLMC_ERROR_CHARS] = "";
    if (path == NULL) { return; }
    bool is_main = source_is_main(t->source);
    uint64_t sum = 0, none = 0;
    bool ok = !is_main || checkpoint_create_gradients(path, &t->model.config, error);
    bool saved = trainer_all_succeeded(t, ok, "gradients", error);
    if (saved) {
        ok = !source_owns_moments(t->source) ||
             checkpoint_write(path, CHECKPOINT_FLOATS, &t->model, t->model.grads + t->optimizer.begin,
                              t->optimizer.begin, t->optimizer.end, &sum, error);
        saved = all_wrote(t, ok, &sum, &none, "gradients", error);
    }
    if (saved) {
        const CheckpointSeal seal = {
            .step = t->step, .body_sum = sum, .vocab_hash = source_vocab_hash(t->source)};
        ok = !is_main || (checkpoint_seal_write(path, &seal, error) && checkpoint_commit(path, error));
        saved = trainer_all_succeeded(t, ok, "gradients", error);
    }
    if (saved) { return; }
    if (is_main) { checkpoint_abort(path); }
    source_die(t->source, "--dump-gradients: cannot be written ---> name a file where you may write");
}
