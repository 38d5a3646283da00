// Generation with a cache says what the whole decoder says: token by token, several sequences at a time in
// any slots, over slices, each kind of T5.
#include "t5_chain.h"
#include "test.h"

enum { SLOTS = 4, MAX_TOKENS = 12, MAX_ENC = 40, ROUNDS = 6 };

static OpsContext* ops;

typedef struct {
    int32_t asked[MAX_ENC], said[MAX_TOKENS + 1];
    int num_asked, num_said, num_cached;  // said[0]: the start
} Sequence;

typedef struct {
    Model slices[T5_CHAIN_MAX_SLICES];
    void* caches[T5_CHAIN_MAX_SLICES];
    int P;
} Chain;

static void open_model(Model* model, const ModelConfig* config, int begin, int end, bool is_last) {
    model_init(model, config, begin, end, is_last, ops);
    t5_golden_params(model);
    model->dropout = 0.3f;  // which generation must not know
}

// The likeliest token behind what was said, by the forward pass of training.
static int32_t next_of_text(Model* model, const Sequence* s) {
    int32_t cu_enc[2] = {0, s->num_asked}, cu_dec[2] = {0, s->num_said}, row = s->num_said - 1, target = 0;
    ModelBatch batch = {.num_seqs = 1,
                        .num_tokens = s->num_asked,
                        .num_rows = 1,
                        .max_seq_tokens = s->num_asked,
                        .cu_seqlens = cu_enc,
                        .tokens = s->asked,
                        .rows = &row,
                        .targets = &target,
                        .num_dec_tokens = s->num_said,
                        .max_dec_seq_tokens = s->num_said,
                        .dec_cu_seqlens = cu_dec,
                        .dec_tokens = s->said};
    void* acts = t5_chain_poisoned(model_acts_bytes(model, &batch, MODEL_HEAD));
    void* scratch = t5_chain_poisoned(model_scratch_bytes(model, &batch));
    float loss;
    int32_t next;
    model_forward(model, &batch, NULL, NULL, acts, scratch, &loss, MODEL_HEAD);
    argmax_rows(&next, model->last_logits, 1, model->config.vocab, model->config.padded_vocab, ops);
    free(acts);
    free(scratch);
    return next;
}

static void chain_open(Chain* chain, const ModelConfig* config, const int* cuts) {
    *chain = (Chain){0};
    for (; cuts[chain->P + 1] > 0; chain->P++) {
        int p = chain->P;
        open_model(&chain->slices[p], config, cuts[p], cuts[p + 1], cuts[p + 2] == 0);
        ModelCache about = {.num_slots = SLOTS, .max_tokens = MAX_TOKENS, .max_enc_tokens = MAX_ENC};
        chain->caches[p] = t5_chain_poisoned(model_cache_bytes(&chain->slices[p], &about));
    }
}

static void chain_close(Chain* chain) {
    for (int p = 0; p < chain->P; p++) {
        free(chain->caches[p]);
        model_free(&chain->slices[p]);
    }
}

// What is new of these sequences, through all slices.
static void infer(Chain* chain, Sequence* all, const int32_t* slots, int num, int32_t* next) {
    int32_t tokens[SLOTS * MAX_ENC], said[SLOTS * MAX_TOKENS], cu_enc[SLOTS + 1] = {0},
                                                                              cu_dec[SLOTS + 1] = {0};
    int32_t num_before[SLOTS], num_enc[SLOTS];
    for (int b = 0; b < num; b++) {
        Sequence* s = &all[slots[b]];
        bool asks = s->num_cached == 0;
        num_before[b] = s->num_cached;
        num_enc[b] = s->num_asked;
        for (int i = 0; asks && i < s->num_asked; i++) { tokens[cu_enc[b] + i] = s->asked[i]; }
        cu_enc[b + 1] = cu_enc[b] + (asks ? s->num_asked : 0);
        cu_dec[b + 1] = cu_dec[b];
        while (s->num_cached < s->num_said) { said[cu_dec[b + 1]++] = s->said[s->num_cached++]; }
    }
    ModelBatch batch = {.num_seqs = num,
                        .num_tokens = cu_enc[num],
                        .num_rows = num,
                        .max_seq_tokens = MAX_ENC,
                        .cu_seqlens = cu_enc,
                        .tokens = tokens,
                        .num_dec_tokens = cu_dec[num],
                        .max_dec_seq_tokens = 1,
                        .dec_cu_seqlens = cu_dec,
                        .dec_tokens = said};
    void* x[T5_CHAIN_MAX_SLICES + 1] = {NULL};
    for (int p = 0; p < chain->P; p++) {
        Model* m = &chain->slices[p];
        ModelCache cache = {.num_slots = SLOTS,
                            .max_tokens = MAX_TOKENS,
                            .max_enc_tokens = MAX_ENC,
                            .slots = slots,
                            .num_before = num_before,
                            .num_enc = num_enc,
                            .memory = chain->caches[p]};
        void* scratch = t5_chain_poisoned(model_infer_bytes(m, &batch));
        x[p + 1] = t5_chain_poisoned(model_boundary_bytes(m, &batch, 1));
        model_infer(m, &batch, &cache, x[p], m->is_last ? NULL : x[p + 1], scratch, next);
        free(scratch);
    }
    for (int p = 1; p <= chain->P; p++) { free(x[p]); }
}

static void the_cache_says_what_the_decoder_says(void) {
    const int lengths[SLOTS] = {1, 40, 17, 5};
    int num_different = 0;
    for (int g = 0; g < T5_NUM_GOLDENS; g++) {
        T5Golden golden;
        t5_golden_load(&golden, t5_golden_names[g]);
        const ModelConfig* config = &golden.config;
        const int L = model_num_layers(config), Le = config->num_layers;
        const int ways[][T5_CHAIN_MAX_SLICES] = {{0, L}, {0, 1, L}, {0, Le, L, L}, {0, Le - 1, Le + 1, L}};
        Model whole;
        open_model(&whole, config, 0, L, true);
        for (int w = 0; w < 4; w++) {
            Chain chain;
            Sequence all[SLOTS] = {0};
            int32_t order[SLOTS] = {3, 0, 1, 2}, next[SLOTS];
            chain_open(&chain, config, ways[w]);
            for (int s = 0; s < SLOTS; s++) {
                all[s].num_asked = lengths[s];
                all[s].num_said = s == 2 ? 3 : 1;  // one begins with more than the start
                for (int i = 0; i < lengths[s]; i++) {
                    all[s].asked[i] = (s * 17 + i * 5 + g) % config->vocab;
                }
                for (int i = 0; i < 3; i++) { all[s].said[i] = i * 7 % config->vocab; }
            }
            for (int round = 0, num = SLOTS; round < ROUNDS; round++) {
                infer(&chain, all, order, num, next);
                for (int b = 0; b < num; b++) {
                    Sequence* s = &all[order[b]];
                    CHECK_EQ(next[b], next_of_text(&whole, s));
                    num_different += next[b] != s->said[s->num_said - 1];
                    s->said[s->num_said++] = next[b];
                }
                if (round == 2) { order[1] = order[--num]; }  // one is done
            }
            chain_close(&chain);
        }
        model_free(&whole);
        t5_golden_free(&golden);
    }
    CHECK(num_different > 20);
}

int main(void) {
    ops = ops_create(1);
    RUN(the_cache_says_what_the_decoder_says);
    ops_free(ops);
    return test_end();
}
