// Generation with a cache of keys and values says what the whole text says: token by token, several sequences
// at a time in any slots, over slices.
#include "../llmc/llmc_error.h"
#include "gpt2_golden.h"
#include "test.h"

enum { LAYERS = 3, SLOTS = 5, MAX_TOKENS = 24, MAX_NEW = SLOTS * MAX_TOKENS };

static OpsContext* ops;
static const ModelConfig config = {.kind = &gpt2_kind,
                                   .max_seq_len = MAX_TOKENS,
                                   .vocab = 70,
                                   .num_layers = LAYERS,
                                   .num_heads = 2,
                                   .channels = 16,
                                   .padded_vocab = 128};

static void model_open(Model* model, int begin, int end, bool is_last) {
    model_init(model, &config, begin, end, is_last, ops);
    gpt2_golden_params(model);
    for (int64_t i = 0; i < model->num_params; i++) { model->params[i] *= 2; }  // so that answers vary
}

// The likeliest token behind a text, by the forward pass of training.
static int32_t next_of_text(Model* model, const int32_t* text, int num_tokens) {
    int32_t cu_seqlens[2] = {0, num_tokens}, positions[MAX_TOKENS], row = num_tokens - 1, target = 0;
    for (int i = 0; i < num_tokens; i++) { positions[i] = i; }
    ModelBatch batch = {.num_seqs = 1,
                        .num_tokens = num_tokens,
                        .num_rows = 1,
                        .max_seq_tokens = num_tokens,
                        .cu_seqlens = cu_seqlens,
                        .tokens = text,
                        .positions = positions,
                        .rows = &row,
                        .targets = &target};
    void* acts = llmc_alloc((size_t)model_acts_bytes(model, &batch, MODEL_HEAD), "acts");
    void* scratch = llmc_alloc((size_t)model_scratch_bytes(model, &batch), "scratch");
    float loss;
    model_forward(model, &batch, NULL, NULL, acts, scratch, &loss, MODEL_HEAD);
    int32_t next;
    argmax_rows(&next, model->last_logits, 1, config.vocab, config.padded_vocab, ops);
    free(acts);
    free(scratch);
    return next;
}

typedef struct {
    int32_t text[MAX_TOKENS + 1];
    int num_tokens, num_cached;
} Sequence;

typedef struct {
    Model slices[LAYERS + 1];
    void* caches[LAYERS + 1];
    int P;
} Chain;

static void chain_open(Chain* chain, const int* cuts) {
    *chain = (Chain){0};
    for (; cuts[chain->P + 1] > 0; chain->P++) {
        int p = chain->P;
        model_open(&chain->slices[p], cuts[p], cuts[p + 1], cuts[p + 2] == 0);
        ModelCache about = {.num_slots = SLOTS, .max_tokens = MAX_TOKENS};
        size_t num_bytes = (size_t)model_cache_bytes(&chain->slices[p], &about);
        chain->caches[p] = llmc_alloc(num_bytes, "cache");
        memset(chain->caches[p], 0xff, num_bytes);  // NaN: nothing may be read that was not written
    }
}

static void chain_close(Chain* chain) {
    for (int p = 0; p < chain->P; p++) {
        free(chain->caches[p]);
        model_free(&chain->slices[p]);
    }
}

// The uncached tokens of these sequences, through all slices.
static void infer(Chain* chain, Sequence* all, const int32_t* slots, int num, int32_t* next) {
    int32_t tokens[MAX_NEW], positions[MAX_NEW], cu_seqlens[SLOTS + 1] = {0}, num_before[SLOTS];
    for (int b = 0; b < num; b++) {
        Sequence* s = &all[slots[b]];
        int at = cu_seqlens[b];
        num_before[b] = s->num_cached;
        for (; s->num_cached < s->num_tokens; s->num_cached++, at++) {
            tokens[at] = s->text[s->num_cached];
            positions[at] = s->num_cached;
        }
        cu_seqlens[b + 1] = at;
    }
    ModelBatch batch = {.num_seqs = num,
                        .num_tokens = cu_seqlens[num],
                        .cu_seqlens = cu_seqlens,
                        .tokens = tokens,
                        .positions = positions};
    void* x[LAYERS + 2] = {NULL};
    for (int p = 0; p < chain->P; p++) {
        Model* m = &chain->slices[p];
        ModelCache cache = {.num_slots = SLOTS,
                            .max_tokens = MAX_TOKENS,
                            .slots = slots,
                            .num_before = num_before,
                            .memory = chain->caches[p]};
        size_t num_bytes = (size_t)model_infer_bytes(m, &batch);
        void* scratch = llmc_alloc(num_bytes, "scratch");
        memset(scratch, 0xff, num_bytes);
        x[p + 1] = llmc_alloc((size_t)model_boundary_bytes(m, &batch, true), "x");
        model_infer(m, &batch, &cache, x[p], m->is_last ? NULL : x[p + 1], scratch, next);
        free(scratch);
    }
    for (int p = 1; p <= chain->P; p++) { free(x[p]); }
}

static void the_cache_says_what_the_text_says(void) {
    const int ways[][LAYERS + 3] = {{0, 3, 0}, {0, 1, 3, 0}, {0, 2, 3, 3, 0}};
    const int32_t lengths[SLOTS] = {1, 7, 3, 16, 5};
    int num_different = 0;
    Model whole;
    model_open(&whole, 0, LAYERS, true);
    for (int w = 0; w < 3; w++) {
        Chain chain;
        Sequence all[SLOTS] = {0};
        int32_t order[SLOTS] = {3, 0, 4, 1, 2}, next[SLOTS];
        chain_open(&chain, ways[w]);
        for (int s = 0; s < SLOTS; s++) {
            all[s].num_tokens = lengths[s];
            for (int i = 0; i < lengths[s]; i++) { all[s].text[i] = (s * 17 + i * 5) % config.vocab; }
        }
        for (int round = 0, num = SLOTS; round < 8; round++) {
            infer(&chain, all, order, num, next);
            for (int b = 0; b < num; b++) {
                Sequence* s = &all[order[b]];
                CHECK_EQ(next[b], next_of_text(&whole, s->text, s->num_tokens));
                num_different += next[b] != s->text[s->num_tokens - 1];
                s->text[s->num_tokens++] = next[b];
            }
            if (round % 3 == 2) {  // one is done
                num--;
                order[round % (num + 1)] = order[num];
            }
        }
        chain_close(&chain);
    }
    CHECK(num_different > 20);
    model_free(&whole);
}

int main(void) {
    ops = ops_create(1);
    RUN(the_cache_says_what_the_text_says);
    ops_free(ops);
    return test_end();
}
