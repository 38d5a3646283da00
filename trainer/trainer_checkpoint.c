// trainer_checkpoint.c -- checkpoints by all ranks together, and going on from them.
#include <stdio.h>
#include <stdlib.h>

#include "../llmc/llmc_error.h"
#include "trainer.h"

bool trainer_all_succeeded(Trainer* t, bool ok, const char* what, const char* error) {
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

void trainer_save(Trainer* t) {
    char model_path[CHECKPOINT_PATH_CHARS], state_path[CHECKPOINT_PATH_CHARS], error[LLMC_ERROR_CHARS] = "";
    const char* directory = t->flags.output_dir;
    bool is_main = source_is_main(t->source), ok = true;
    source_verify_data(t->source);
    checkpoint_path(model_path, directory, CHECKPOINT_MODEL_FILE, t->step);
    checkpoint_path(state_path, directory, CHECKPOINT_STATE_FILE, t->step);
    if (is_main) { ok = create_files(t, model_path, state_path, error); }
    bool saved = trainer_all_succeeded(t, ok, "checkpoint", error);
    if (saved) {
        ok = write_slices(t, model_path, state_path, error);
        saved = trainer_all_succeeded(t, ok, "checkpoint", error);
    }
    if (saved) {
        if (is_main) {
            checkpoint_unmark(directory, t->step);
            ok = checkpoint_commit(model_path, error) && checkpoint_commit(state_path, error) &&
                 checkpoint_mark_done(directory, t->step, error);
        }
        saved = trainer_all_succeeded(t, ok, "checkpoint", error);
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
bool trainer_read_master(Trainer* t, const char* model_path, const char* state_path, bool state_has_master,
                         char* error) {
    Optimizer* o = &t->optimizer;
    const Model* model = &t->model;
    if (o->master == NULL) {
        return !state_has_master || checkpoint_read(state_path, CHECKPOINT_MASTER, model, model->params, 0,
                                                    model->num_params, error);
    }
    o->master_is_set = true;
    return checkpoint_read(state_has_master ? state_path : model_path,
                           state_has_master ? CHECKPOINT_MASTER : CHECKPOINT_FLOATS, model, o->master,
                           o->begin, o->end, error);
}

void trainer_resume(Trainer* t) {
    char path[CHECKPOINT_PATH_CHARS], model_path[CHECKPOINT_PATH_CHARS], error[LLMC_ERROR_CHARS];
    int step = checkpoint_find_latest(t->flags.output_dir);
    Optimizer* o = &t->optimizer;
    CheckpointRun run;
    checkpoint_path(path, t->flags.output_dir, CHECKPOINT_STATE_FILE, step);
    checkpoint_path(model_path, t->flags.output_dir, CHECKPOINT_MODEL_FILE, step);
    if (!checkpoint_read(path, CHECKPOINT_M, &t->model, o->m, o->begin, o->end, error) ||
        !checkpoint_read(path, CHECKPOINT_V, &t->model, o->v, o->begin, o->end, error) ||
        !checkpoint_read_run(&run, path, &t->model.config, error) ||
        !trainer_read_master(t, model_path, path, run.has_master, error)) {
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

void trainer_dump_gradients(Trainer* t) {
    const char* path = source_dump_gradients(t->source);
    char error[LLMC_ERROR_CHARS] = "";
    if (path == NULL) { return; }
    bool is_main = source_is_main(t->source);
    bool ok = !is_main || checkpoint_create_gradients(path, &t->model.config, error);
    bool saved = trainer_all_succeeded(t, ok, "gradients", error);
    if (saved) {
        ok = !source_owns_moments(t->source) ||
             checkpoint_write(path, CHECKPOINT_FLOATS, &t->model, t->model.grads + t->optimizer.begin,
                              t->optimizer.begin, t->optimizer.end, error);
        saved = trainer_all_succeeded(t, ok, "gradients", error);
    }
    if (saved) {
        ok = !is_main || checkpoint_commit(path, error);
        saved = trainer_all_succeeded(t, ok, "gradients", error);
    }
    if (saved) { return; }
    if (is_main) { checkpoint_abort(path); }
    source_die(t->source, "--dump-gradients: cannot be written ---> name a file where you may write");
}
