// trainer_resplit.c -- layers that move to another rank in mid-run: a model of the new ones, filled with what
// ranks have of the old. Array after array, each old one dropped once its values are where they belong.
#include "trainer.h"

typedef struct {
    Model model;
    Optimizer optimizer;
} Part;

// One of the optimizer's arrays; `have` goes.
static void move_floats(Trainer* t, CheckpointBody body, const Part* before, float** have, float* want) {
    SourceArray from = {&before->model, before->optimizer.begin, before->optimizer.end, *have};
    SourceArray to = {&t->model, t->optimizer.begin, t->optimizer.end, want};
    source_move(t->source, (int)body, sizeof(float), &from, &to);
    ops_release(before->model.ops, *have);
    *have = NULL;
}

static void move_params(Trainer* t, const Part* before) {
    SourceArray from = {&before->model, 0, before->model.num_params, before->model.params};
    SourceArray to = {&t->model, 0, t->model.num_params, t->model.params};
    source_move(t->source, CHECKPOINT_PARAMS, sizeof(floatX), &from, &to);
}

void trainer_resplit(Trainer* t) {
    int64_t begin, end;
    ModelPart part;
    if (!source_resplit(t->source, &t->model.config, &part)) { return; }
    Part before = {t->model, t->optimizer};
    model_free_grads(&before.model);
    model_init_raw(&t->model, &before.model.config, &part, before.model.ops);
    t->model.dropout = before.model.dropout;
    source_attach(t->source, &t->model);
    source_shard(t->source, &begin, &end);
    optimizer_init_raw(&t->optimizer, &before.optimizer, begin, end);
    move_floats(t, CHECKPOINT_M, &before, &before.optimizer.m, t->optimizer.m);
    move_floats(t, CHECKPOINT_V, &before, &before.optimizer.v, t->optimizer.v);
    if (before.optimizer.master != NULL) {
        move_floats(t, CHECKPOINT_MASTER, &before, &before.optimizer.master, t->optimizer.master);
    }
    move_params(t, &before);
    optimizer_free(&before.optimizer);
    model_free(&before.model);
}
