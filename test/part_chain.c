#include "part_chain.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void poison(OpsContext* ops, void* memory, int64_t num_bytes) {
    unsigned char* nans = malloc((size_t)num_bytes + 1);
    memset(nans, 0xff, (size_t)num_bytes);
    ops_upload(ops, memory, nans, (size_t)num_bytes);
    free(nans);
}

static void* poisoned(OpsContext* ops, int64_t num_bytes) {
    void* memory = ops_alloc_raw(ops, (size_t)num_bytes + 64, "a test");
    poison(ops, memory, num_bytes + 64);
    return memory;
}

// --- who has what ------------------------------------------------------------------------------------------

// Ascending places at which stages begin; some have none.
static void places_random(Rng* rng, int num_ranks, int32_t* places) {
    memset(places, 0, sizeof *places * (size_t)num_ranks);
    for (int s = 1; s < num_ranks; s++) {
        places[s] = rng_below(rng, 4) == 0 ? places[s - 1] : rng_between(rng, 0, MODEL_HEAD_PLACES);
    }
    for (int i = 1; i < num_ranks; i++) {  // a handful: by insertion
        for (int k = i; k > 0 && places[k] < places[k - 1]; k--) {
            const int32_t kept = places[k];
            places[k] = places[k - 1];
            places[k - 1] = kept;
        }
    }
    places[num_ranks] = MODEL_HEAD_PLACES;
}

void part_layout_share(PartLayout* layout, const ModelConfig* config, ModelSharing sharing,
                       const int32_t* places) {
    for (int r = 0; r < layout->num_ranks; r++) {
        layout->parts[r].head = head_of_places(config, sharing, layout->num_ranks, places);
        layout->parts[r].stage = r;
        layout->parts[r].has_share = places[r] < places[r + 1];
    }
}

static void add_range(ModelPart* part, ModelRange range) {
    part->ranges[part->num_ranges++] = range;
}

PartLayout part_layout_random(Rng* rng, const ModelConfig* config, ModelSharing sharing) {
    const int L = model_num_layers(config);
    PartLayout out = {.num_ranks = rng_between(rng, 1, 5)};
    const ModelEnd end = sharing == MODEL_HEAD_WHOLE ? MODEL_HAS_HEAD : MODEL_FEEDS_HEAD;
    const bool is_end_alone = rng_below(rng, 4) == 0;
    if (sharing != MODEL_HEAD_WHOLE) {
        int32_t places[PART_CHAIN_MAX_RANKS + 1];
        places_random(rng, out.num_ranks, places);
        part_layout_share(&out, config, sharing, places);
    }
    for (int begin = 0; begin < L;) {
        const int num = 1 + rng_between(rng, 0, 2);
        const int stop = begin + num < L ? begin + num : L;
        const bool is_end = stop == L && !is_end_alone;
        ModelPart* part = &out.parts[rng_below(rng, (uint32_t)out.num_ranks)];
        add_range(part, (ModelRange){begin, stop, is_end ? end : MODEL_GOES_ON});
        begin = stop;
    }
    if (is_end_alone) {
        add_range(&out.parts[rng_below(rng, (uint32_t)out.num_ranks)], (ModelRange){L, L, end});
    }
    return out;
}

// --- microbatches -----------------------------------------------------------------------------------------

void part_batch_random(PartBatch* out, Rng* rng, const ModelConfig* config, int num_seqs, int most_rows) {
    const bool has_decoder = config->kind->has_decoder;
    const uint32_t V = (uint32_t)config->vocab;
    *out = (PartBatch){0};
    ModelBatch* b = &out->batch;
    *b = (ModelBatch){.num_seqs = num_seqs,
                      .cu_seqlens = out->cu_seqlens,
                      .tokens = out->tokens,
                      .positions = out->positions,
                      .rows = out->rows,
                      .targets = out->targets,
                      .token_keys = out->keys,
                      .loss_scale = 0.07f};
    if (has_decoder) {
        b->dec_cu_seqlens = out->dec_cu_seqlens;
        b->dec_tokens = out->dec_tokens;
        b->dec_positions = out->dec_positions;
        b->dec_token_keys = out->dec_keys;
    }
    for (int i = 0; i < num_seqs; i++) {
        const int enc = rng_between(rng, 1, 40), dec = has_decoder ? rng_between(rng, 1, 40) : 0;
        for (int t = 0; t < enc; t++, b->num_tokens++) {
            out->tokens[b->num_tokens] = (int32_t)rng_below(rng, V);
            out->positions[b->num_tokens] = t;
            out->keys[b->num_tokens] = (uint32_t)rng_u64(rng);
        }
        for (int t = 0; t < dec; t++, b->num_dec_tokens++) {
            out->dec_tokens[b->num_dec_tokens] = (int32_t)rng_below(rng, V);
            out->dec_positions[b->num_dec_tokens] = t;
            out->dec_keys[b->num_dec_tokens] = (uint32_t)rng_u64(rng);
        }
        out->cu_seqlens[i + 1] = b->num_tokens;
        out->dec_cu_seqlens[i + 1] = b->num_dec_tokens;
        if (enc > b->max_seq_tokens) { b->max_seq_tokens = enc; }
        if (dec > b->max_dec_seq_tokens) { b->max_dec_seq_tokens = dec; }
    }
    const int num_places = has_decoder ? b->num_dec_tokens : b->num_tokens;
    for (int t = 0; t < num_places && b->num_rows < most_rows; t++) {
        if (num_places > most_rows && rng_below(rng, 3) == 0) { continue; }
        out->rows[b->num_rows] = t;
        out->targets[b->num_rows++] = (int32_t)rng_below(rng, V);
    }
}

// --- ranks, chunks -----------------------------------------------------------------------------------------

void part_fill(Model* model, const float* params) {
    for (int i = 0; i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        model_set_values(model, slice, params + slice->file_offset, slice->first, slice->num_values);
    }
}

typedef struct {
    Model view;
    void *acts, *scratch, *in, *out, *din;  // in: of a share, its own
} Chunk;

typedef struct {
    Model models[PART_CHAIN_MAX_RANKS];
    Chunk chunks[PART_CHAIN_MAX_CHUNKS];  // in the chain's order
    int num_ranks, num_chunks;
    Chunk shares[PART_CHAIN_MAX_RANKS];  // by stage
    ModelBatch batches[PART_CHAIN_MAX_RANKS];
    // of the shares by vocabulary, ascending
    void *parts[PART_CHAIN_MAX_RANKS], *factors[PART_CHAIN_MAX_RANKS];
    int num_parts;
    ModelHead head;
} Ranks;

static void sort_chunks(Ranks* ranks) {
    for (int i = 1; i < ranks->num_chunks; i++) {
        for (int j = i; j > 0; j--) {
            Chunk *a = &ranks->chunks[j - 1], *b = &ranks->chunks[j];
            if (a->view.layer_begin < b->view.layer_begin ||
                (a->view.layer_begin == b->view.layer_begin && a->view.layer_end <= b->view.layer_end)) {
                break;
            }
            const Chunk kept = *a;
            *a = *b;
            *b = kept;
        }
    }
}

static void ranks_open(Ranks* ranks, const PartRun* run, const PartLayout* layout) {
    *ranks = (Ranks){.num_ranks = layout->num_ranks, .head = layout->parts[0].head};
    for (int r = 0; r < layout->num_ranks; r++) {
        Model* model = &ranks->models[r];
        model_init_part(model, run->config, &layout->parts[r], run->ops);
        model_alloc_grads(model);
        model->dropout = run->dropout;
        part_fill(model, run->params);
        for (int i = 0; i < layout->parts[r].num_ranges; i++) {
            ranks->chunks[ranks->num_chunks++].view = model_view(model, i);
        }
        if (layout->parts[r].has_share) { ranks->shares[r].view = model_share_view(model); }
    }
    sort_chunks(ranks);
}

static void chunk_alloc(Chunk* c, const ModelBatch* batch, int flags) {

    c->acts = poisoned(c->view.ops, model_acts_bytes(&c->view, batch, flags));
    c->scratch = poisoned(c->view.ops, model_scratch_bytes(&c->view, batch));
    c->out = poisoned(c->view.ops, model_boundary_bytes(&c->view, batch, 1));
    c->din = poisoned(c->view.ops, model_boundary_bytes(&c->view, batch, 0));
}

static void chunk_free(OpsContext* ops, Chunk* c) {
    ops_release(ops, c->acts);
    ops_release(ops, c->scratch);
    ops_release(ops, c->in);
    ops_release(ops, c->out);
    ops_release(ops, c->din);
}

static void add_grads(const Model* model, float* whole) {
    float* grads = malloc((size_t)model->num_params * sizeof *grads + 1);
    ops_download(model->ops, grads, model->grads, (size_t)model->num_params * sizeof *grads);
    for (int i = 0; i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        for (int64_t j = 0; j < slice->num_values; j++) {
            whole[slice->file_offset + j] += grads[slice->offset + j];
        }
    }
    free(grads);
}

static void ranks_close(Ranks* ranks, float* grads) {
    OpsContext* ops = ranks->models[0].ops;
    ops_sync(ops);  // losses are there
    for (int i = 0; i < ranks->num_chunks; i++) { chunk_free(ops, &ranks->chunks[i]); }
    for (int r = 0; r < ranks->num_ranks; r++) {
        if (grads != NULL) { add_grads(&ranks->models[r], grads); }
        chunk_free(ops, &ranks->shares[r]);
        ops_release(ops, ranks->parts[r]);
        ops_release(ops, ranks->factors[r]);
        model_free(&ranks->models[r]);
    }
}

// --- the head's shares -------------------------------------------------------------------------------------

// Of share s: all rows, or its own.
static ModelBatch share_batch(const ModelHead* head, int s, const ModelBatch* batch, int* row_begin) {
    ModelBatch own = *batch;
    *row_begin = 0;
    if (head->sharing == MODEL_HEAD_BY_VOCAB) { return own; }
    *row_begin = head_batch_row(batch->num_rows, head->begin[s]);
    own.num_rows = head_batch_row(batch->num_rows, head->begin[s + 1]) - *row_begin;
    own.targets = batch->targets + *row_begin;
    own.rows = NULL;  // of the layers
    return own;
}

static void run_share(Ranks* ranks, int s, const ModelBatch* batch, const floatX* rows, void* drows,
                      float* losses, int flags) {
    Chunk* c = &ranks->shares[s];
    const ModelConfig* config = &c->view.config;

    int row_begin;
    ranks->batches[s] = share_batch(&ranks->head, s, batch, &row_begin);
    const ModelBatch* own = &ranks->batches[s];
    const int64_t in_bytes = head_rows_bytes(config, own->num_rows);
    const bool by_vocab = ranks->head.sharing == MODEL_HEAD_BY_VOCAB;
    assert(model_boundary_bytes(&c->view, own, 0) == in_bytes);
    c->in = poisoned(c->view.ops, in_bytes);
    c->acts = poisoned(c->view.ops, model_acts_bytes(&c->view, own, flags));
    c->scratch = poisoned(c->view.ops, model_scratch_bytes(&c->view, own));
    void* part = (floatX*)drows + (drows != NULL ? (int64_t)row_begin * config->channels : 0);
    if (by_vocab) {
        part = ranks->parts[ranks->num_parts] =
            poisoned(c->view.ops, head_part_bytes(config, own->num_rows, flags));
        ranks->factors[ranks->num_parts++] = poisoned(c->view.ops, head_factor_bytes(own->num_rows));
    } else {
        losses += row_begin;
    }
    ops_copy(c->view.ops, c->in, rows + (int64_t)row_begin * config->channels, (size_t)in_bytes);
    if (flags & MODEL_KEEP) {
        model_forward(&c->view, own, c->in, NULL, c->acts, c->scratch, by_vocab ? NULL : losses, flags);
        model_backward_inputs(&c->view, own, c->in, c->acts, NULL, part, c->scratch);
    } else {
        model_forward(&c->view, own, c->in, part, c->acts, c->scratch, by_vocab ? NULL : losses, flags);
    }
    poison(c->view.ops, c->in, in_bytes);
}

// The shares' work, and what they make together: losses, and with KEEP the rows' gradient.
static void run_shares(Ranks* ranks, Chunk* feeds, const ModelBatch* batch, void* drows, float* losses,
                       int flags) {
    for (int s = 0; s < ranks->num_ranks; s++) {
        if (ranks->shares[s].view.has_head) { run_share(ranks, s, batch, feeds->out, drows, losses, flags); }
    }
    if (ranks->head.sharing == MODEL_HEAD_BY_ROWS) { return; }
    head_combine(&feeds->view, batch, ranks->num_parts, (const void* const*)ranks->parts, drows,
                 drows != NULL ? ranks->factors : NULL, losses);
}

// --- a microbatch -----------------------------------------------------------------------------------------

// Forward of all chunks; returns the last one.
static Chunk* forward_all(Ranks* ranks, const ModelBatch* batch, float* losses, int flags, int acts_flags) {
    Chunk* last = NULL;
    for (int k = 0; k < ranks->num_chunks; k++) {
        Chunk* c = &ranks->chunks[k];
        const void* in = last != NULL ? last->out : NULL;
        chunk_alloc(c, batch, acts_flags);
        void* acts = c->acts;
        if (flags != acts_flags) {  // of its own length, so that nothing beyond is touched
            acts = poisoned(c->view.ops, model_acts_bytes(&c->view, batch, flags));
        }
        model_forward(&c->view, batch, in, c->view.has_head ? NULL : c->out, acts, c->scratch, losses, flags);
        if (acts != c->acts) { ops_release(c->view.ops, acts); }
        last = c;
    }
    return last;
}

void part_chain_train(const PartRun* run, const PartLayout* layout, const ModelBatch* batch, int options,
                      float* losses, float* grads) {
    enum { KEPT = MODEL_KEEP | MODEL_HEAD };
    const bool recompute = options & PART_CHAIN_RECOMPUTE;
    Ranks ranks;
    ranks_open(&ranks, run, layout);

    const int K = ranks.num_chunks;
    Chunk* last = forward_all(&ranks, batch, losses, recompute ? 0 : KEPT, KEPT);
    void *drows = poisoned(run->ops, head_rows_bytes(run->config, batch->num_rows)), *dout = NULL;
    if (model_feeds_head(&last->view)) {
        run_shares(&ranks, last, batch, drows, losses, KEPT);
        dout = drows;
    }
    for (int k = K - 1; k >= 0; k--) {
        Chunk* c = &ranks.chunks[k];
        const void* in = k > 0 ? ranks.chunks[k - 1].out : NULL;
        if (recompute) { model_forward(&c->view, batch, in, NULL, c->acts, c->scratch, losses, KEPT); }
        poison(run->ops, c->scratch, model_scratch_bytes(&c->view, batch));
        model_backward_inputs(&c->view, batch, in, c->acts, dout, k > 0 ? c->din : NULL, c->scratch);
        dout = c->din;
    }
    for (int k = 0; k < K; k++) {
        Chunk* c = &ranks.chunks[k];
        if (k > 0) { poison(run->ops, ranks.chunks[k - 1].out, model_boundary_bytes(&c->view, batch, 0)); }
        const void* d = k + 1 < K ? ranks.chunks[k + 1].din : model_feeds_head(&c->view) ? drows : NULL;
        model_backward_weights(&c->view, batch, c->acts, d, c->scratch);
    }
    for (int s = 0, i = 0; s < ranks.num_ranks; s++) {
        Chunk* c = &ranks.shares[s];
        if (!c->view.has_head) { continue; }
        const bool by_vocab = ranks.head.sharing == MODEL_HEAD_BY_VOCAB;
        model_backward_weights(&c->view, &ranks.batches[s], c->acts, by_vocab ? ranks.factors[i++] : NULL,
                               c->scratch);
    }
    ops_release(run->ops, drows);
    ranks_close(&ranks, grads);
}

void part_chain_validate(const PartRun* run, const PartLayout* layout, const ModelBatch* batch,
                         float* losses) {
    Ranks ranks;
    ranks_open(&ranks, run, layout);
    Chunk* last = forward_all(&ranks, batch, losses, MODEL_HEAD, MODEL_HEAD);
    if (model_feeds_head(&last->view)) { run_shares(&ranks, last, batch, NULL, losses, MODEL_HEAD); }
    ranks_close(&ranks, NULL);
}

// --- generation --------------------------------------------------------------------------------------------

struct PartGeneration {
    Ranks ranks;
    void* caches[PART_CHAIN_MAX_CHUNKS];
};

PartGeneration* part_generation_open(const PartRun* run, const PartLayout* layout, const ModelCache* about) {
    PartGeneration* g = calloc(1, sizeof *g);
    ranks_open(&g->ranks, run, layout);
    for (int k = 0; k < g->ranks.num_chunks; k++) {
        g->caches[k] = poisoned(run->ops, model_cache_bytes(&g->ranks.chunks[k].view, about));
    }
    return g;
}

// By rows one share has all ids: the first.
static void choose(PartGeneration* g, const Model* feeds, const ModelBatch* rows, void* hidden,
                   int32_t* next) {
    void* picks[PART_CHAIN_MAX_RANKS];
    int num_picks = 0;
    for (int s = 0; s < g->ranks.num_ranks; s++) {
        if (!g->ranks.shares[s].view.has_head ||
            (num_picks > 0 && g->ranks.head.sharing == MODEL_HEAD_BY_ROWS)) {
            continue;
        }
        Model* share = &g->ranks.shares[s].view;

        void* scratch = poisoned(share->ops, model_infer_bytes(share, rows));
        picks[num_picks] = poisoned(share->ops, head_pick_bytes(rows));
        model_infer(share, rows, NULL, hidden, picks[num_picks++], scratch, NULL);
        ops_release(share->ops, scratch);
    }
    head_pick(feeds, rows, num_picks, (const void* const*)picks, next);
    for (int i = 0; i < num_picks; i++) { ops_release(feeds->ops, picks[i]); }
}

void part_generation_call(PartGeneration* g, const ModelBatch* batch, const ModelCache* cache,
                          int32_t* next) {
    ModelBatch rows = *batch;  // that the head is asked of
    rows.num_rows = batch->num_seqs;
    void* in = NULL;
    for (int k = 0; k < g->ranks.num_chunks; k++) {
        Model* view = &g->ranks.chunks[k].view;

        ModelCache own = *cache;
        own.memory = g->caches[k];
        void *scratch = poisoned(view->ops, model_infer_bytes(view, batch)),
             *out = poisoned(view->ops, model_boundary_bytes(view, &rows, 1));
        model_infer(view, batch, &own, in, view->has_head ? NULL : out, scratch, next);
        if (model_feeds_head(view)) { choose(g, view, &rows, out, next); }
        ops_release(view->ops, scratch);
        ops_release(view->ops, in);
        in = out;
    }
    ops_release(g->ranks.models[0].ops, in);
}

void part_generation_close(PartGeneration* g) {
    for (int k = 0; k < g->ranks.num_chunks; k++) { ops_release(g->ranks.models[0].ops, g->caches[k]); }
    ranks_close(&g->ranks, NULL);
    free(g);
}
