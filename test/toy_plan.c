#include "toy_plan.h"

#include <string.h>

#include "random_plan.h"

static int32_t num_chunks(const ToyPlan* toy) {
    return toy->plan.placement.num_chunks;
}

static int32_t num_rows(const ToyPlan* toy) {
    return num_chunks(toy) + (toy->plan.placement.head == HEAD_WHOLE ? 0 : toy->plan.P);
}

static bool is_share(const ToyPlan* toy, int32_t row) {
    return row >= num_chunks(toy);
}

static bool by_vocabulary(const ToyPlan* toy) {
    return toy->plan.placement.head == HEAD_BY_VOCABULARY;
}

// --- batches -----------------------------------------------------------------------------------------------

// With the counts of a microbatch; its tokens, as many of them supervised, are made up.
static void make_batch(ToyBatch* out, uint64_t seed, const MbShape* shape) {
    int32_t num_supervised = (int32_t)shape->supervised_tokens;
    Rng rng = rng_seed(seed);
    toy_batch_init(out, seed, (int32_t)shape->enc_tokens);
    out->batch.num_seqs = (int32_t)shape->num_seqs;
    out->batch.num_squares = shape->enc_squares;
    out->batch.num_rows = num_supervised;
    for (int32_t i = 0; i < num_supervised; i++) {
        out->rows[i] = (int32_t)((int64_t)i * shape->enc_tokens / num_supervised);
        out->targets[i] = rng_between(&rng, -2, 2);
    }
}

// Exactly what the model asks for.
static void model_bytes(RankBytes* out, int64_t* scratch_bytes, const Plan* plan, int32_t m, int32_t row,
                        void* context) {
    const ToyPlan toy = {.plan = *plan, .num_layers = ((const ToyPlan*)context)->num_layers};
    ToyModel model = toy_plan_model(&toy, row);
    ToyBatch made;
    DynapipeBatch* b = &made.batch;
    make_batch(&made, 1, &plan->mbs[m].shape);
    bool feeds = row == num_chunks(&toy) - 1 && plan->placement.head != HEAD_WHOLE;
    if (is_share(&toy, row) && !by_vocabulary(&toy)) {
        const int16_t* begin = &plan->placement.head_begin[row - num_chunks(&toy)];
        b->num_rows = b->num_rows * begin[1] / HEAD_UNITS - b->num_rows * begin[0] / HEAD_UNITS;
    }
    *out = (RankBytes){.acts_bytes = toy_api.acts_bytes(&model, b, DYNAPIPE_FORWARD_KEEP),
                       .forward_bytes = toy_api.acts_bytes(&model, b, 0),
                       .in_bytes = row > 0 ? toy_api.boundary_bytes(&model, b, 0) : 0};
    if (!is_share(&toy, row) && (feeds || !model.is_last)) {
        out->out_bytes = toy_api.boundary_bytes(&model, b, 1);
    }
    if (is_share(&toy, row)) {
        out->part_bytes =
            by_vocabulary(&toy) ? toy_api.part_bytes(&model, b, DYNAPIPE_FORWARD_KEEP) : out->in_bytes;
        out->factor_bytes = by_vocabulary(&toy) ? toy_api.factor_bytes(&model, b) : 0;
    }
    *scratch_bytes = toy_api.scratch_bytes(&model, b);
}

// --- plans -------------------------------------------------------------------------------------------------

static bool every_chunk_has_layers(const Placement* placement) {
    bool all = true;
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        all &= placement->chunks[k].layer_begin < placement->chunks[k].layer_end;
    }
    return all;
}

static void make(ToyPlan* out, Rng* rng, int32_t P, int32_t R, int32_t num_samples, bool placed,
                 Arena* arena) {
    RandomPlan about = {.P = P,
                        .R = R,
                        .num_samples = num_samples,
                        .max_tokens = TOY_MAX_ROWS / 4,  // a microbatch has 4 samples at most
                        .recompute = true,
                        .bytes = model_bytes,
                        .context = out,
                        .placed = placed,
                        .tight = true};
    do {
        out->num_layers = about.num_layers = rng_between(rng, P, TOY_MAX_LAYERS);
        random_plan(&out->plan, rng, &about, arena);
    } while (!every_chunk_has_layers(&out->plan.placement));
    out->batches = ARENA_NEW(arena, ToyBatch, out->plan.M);
    for (int32_t m = 0; m < out->plan.M; m++) {
        make_batch(&out->batches[m], rng_u64(rng), &out->plan.mbs[m].shape);
    }
}

void toy_plan_make(ToyPlan* out, Rng* rng, int32_t P, int32_t R, int32_t num_samples, Arena* arena) {
    make(out, rng, P, R, num_samples, true, arena);
}

void toy_plan_make_linear(ToyPlan* out, Rng* rng, int32_t P, int32_t R, int32_t M, Arena* arena) {
    do { make(out, rng, P, R, 2 * M, false, arena); } while (out->plan.M != M);
}

static int32_t stage_of(const ToyPlan* toy, int32_t row) {
    return is_share(toy, row) ? row - num_chunks(toy) : toy->plan.placement.stage_of[row];
}

static bool has_row(const ToyPlan* toy, int32_t row) {
    return !is_share(toy, row) || placement_has_share(&toy->plan.placement, stage_of(toy, row));
}

static ToyModel share_model(const ToyPlan* toy, int32_t s) {
    const Placement* placement = &toy->plan.placement;
    ToyModel model = {.layer_begin = toy->num_layers, .layer_end = toy->num_layers, .vocab_end = TOY_VOCAB};
    model.head = by_vocabulary(toy) ? DYNAPIPE_HEAD_BY_VOCABULARY : DYNAPIPE_HEAD_BY_ROWS;
    if (!by_vocabulary(toy)) { return model; }
    model.vocab_begin = TOY_VOCAB * placement->head_begin[s] / HEAD_UNITS / 16 * 16;
    model.vocab_end = TOY_VOCAB * placement->head_begin[s + 1] / HEAD_UNITS / 16 * 16;
    return model;
}

ToyModel toy_plan_model(const ToyPlan* toy, int32_t row) {
    if (is_share(toy, row)) { return share_model(toy, stage_of(toy, row)); }
    bool is_last = row == num_chunks(toy) - 1, is_shared = toy->plan.placement.head != HEAD_WHOLE;
    return (ToyModel){.layer_begin = toy->plan.placement.chunks[row].layer_begin,
                      .layer_end = toy->plan.placement.chunks[row].layer_end,
                      .is_first = row == 0,
                      .is_last = is_last && !is_shared,
                      .head = is_last && is_shared ? DYNAPIPE_HEAD_FEEDS : DYNAPIPE_HEAD_AS_BLOCKS,
                      .vocab_end = TOY_VOCAB};
}

int32_t toy_plan_rows(const ToyPlan* toy, int32_t rank, int32_t rows[TOY_MAX_ROWS_HERE]) {
    int32_t n = 0;
    for (int32_t row = 0; row < num_rows(toy); row++) {
        if (has_row(toy, row) && stage_of(toy, row) == rank % toy->plan.P) { rows[n++] = row; }
    }
    return n;
}

void toy_plan_remove(ToyPlan* toy, int32_t rank, int32_t idx) {
    PlanRank* list = &toy->plan.ranks[rank];
    list->num_instrs--;
    memmove(&list->instrs[idx], &list->instrs[idx + 1],
            (size_t)(list->num_instrs - idx) * sizeof *list->instrs);
}

int32_t toy_plan_find(const ToyPlan* toy, int32_t rank, InstrKind kind, int32_t mb) {
    const PlanRank* list = &toy->plan.ranks[rank];
    for (int32_t i = 0; i < list->num_instrs; i++) {
        if (list->instrs[i].kind == kind && (mb < 0 || list->instrs[i].mb == mb)) { return i; }
    }
    return -1;
}

void toy_plan_run_directly(const ToyPlan* toy, ToyModel* model, float losses[][TOY_MAX_ROWS]) {
    static _Alignas(64) unsigned char acts[1 << 20], scratch[1 << 16];
    *model =
        (ToyModel){.layer_end = toy->num_layers, .is_first = true, .is_last = true, .vocab_end = TOY_VOCAB};
    for (int32_t m = 0; m < toy->plan.M; m++) {
        const DynapipeBatch* batch = &toy->batches[m].batch;
        toy_api.forward(model, batch, NULL, NULL, acts, scratch, losses[m],
                        DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD);
        toy_api.backward_inputs(model, batch, NULL, acts, NULL, NULL, scratch);
        toy_api.backward_weights(model, batch, acts, NULL, scratch);
    }
}
