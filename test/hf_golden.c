// The inputs are those of dev/golden_hf.py, one row for each token that is said.
#include "hf_golden.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../llmc/kinds.h"
#include "../llmc/llmc_error.h"
#include "../llmc/safetensors.h"

enum { ENC_TOKENS = 11, DEC_TOKENS = 6 };

const char* const hf_golden_names[HF_GOLDEN_NUM] = {"t5",        "flan",  "byt5",  "umt5",     "gpt2",
                                                    "gpt2_bare", "llama", "qwen2", "gpt2_like"};

const char* hf_golden_path(const char* name) {
    static char path[256];
    snprintf(path, sizeof path, "test/golden/hf_%s", name);
    return path;
}

const ModelKind* hf_golden_kind(const char* path) {
    HfConfig config;
    return hf_config_read(&config, path) ? hf_config_kind(&config) : &t5_kind;
}

bool hf_golden_load(Model* model, const char* path, int begin, int end, bool is_last, OpsContext* ops) {
    ModelConfig config;
    bool ok = hf_checkpoint_read_config(&config, NULL, hf_golden_kind(path), path);
    if (ok) {
        model_init(model, &config, begin, end < 0 ? model_num_blocks(&config) : end, is_last, ops);
        ok = hf_checkpoint_read(path, CHECKPOINT_PARAMS, model, model->params, 0, model->num_params);
        if (!ok) { model_free(model); }
    }
    if (!ok) { printf("%s\n", status_message()); }
    return ok;
}

typedef struct {
    int32_t cu_seqlens[2], dec_cu_seqlens[2];
    int32_t tokens[ENC_TOKENS], dec_tokens[DEC_TOKENS];
    int32_t rows[ENC_TOKENS], targets[ENC_TOKENS], positions[ENC_TOKENS];
} Inputs;

static ModelBatch make_batch(Inputs* in, bool has_decoder) {
    *in = (Inputs){.cu_seqlens = {0, ENC_TOKENS}, .dec_cu_seqlens = {0, DEC_TOKENS}};
    for (int i = 0; i < ENC_TOKENS; i++) {
        in->tokens[i] = (i * 7 + 3) % 48 + 2;
        in->rows[i] = in->positions[i] = i;
    }
    for (int i = 1; i < DEC_TOKENS; i++) { in->dec_tokens[i] = ((i - 1) * 5 + 2) % 48 + 2; }
    ModelBatch batch = {
        .num_seqs = 1, .num_tokens = ENC_TOKENS, .max_seq_tokens = ENC_TOKENS, .num_rows = ENC_TOKENS};
    batch.cu_seqlens = in->cu_seqlens;
    batch.tokens = in->tokens;
    batch.positions = in->positions;
    batch.rows = in->rows;
    batch.targets = in->targets;
    if (has_decoder) {
        batch.num_rows = batch.num_dec_tokens = batch.max_dec_seq_tokens = DEC_TOKENS;
        batch.dec_cu_seqlens = in->dec_cu_seqlens;
        batch.dec_tokens = in->dec_tokens;
        batch.dec_positions = in->positions;
    }
    return batch;
}

double hf_golden_logits_difference(Model* model, const char* name) {
    static float theirs[ENC_TOKENS * HF_GOLDEN_MAX_VOCAB];
    float losses[ENC_TOKENS];
    Inputs inputs;
    const ModelKind* kind = model->config.kind;
    ModelBatch batch = make_batch(&inputs, kind->has_decoder);
    void* acts = llmc_alloc((size_t)model_acts_bytes(model, &batch, MODEL_HEAD), "acts");
    void* scratch = llmc_alloc((size_t)model_scratch_bytes(model, &batch), "scratch");
    model_forward(model, &batch, NULL, NULL, acts, scratch, losses, MODEL_HEAD);
    ops_sync(model->ops);
    Safetensors file;
    if (!safetensors_open(&file, "test/golden/hf_logits.safetensors")) { return INFINITY; }
    const SafetensorsTensor* tensor = safetensors_find(&file, name);
    const int V = model->config.vocab, Vp = model->config.padded_vocab;
    bool ok = tensor != NULL && tensor->num_values == batch.num_rows * V &&
              safetensors_read(&file, tensor, theirs, 0, tensor->num_values);
    double difference = ok ? 0 : INFINITY;
    for (int i = 0; i < batch.num_rows; i++) {
        for (int v = 0; v < V; v++) {
            difference =
                fmax(difference, fabs((double)model->last_logits[i * Vp + v] - (double)theirs[i * V + v]));
        }
    }
    safetensors_close(&file);
    free(acts);
    free(scratch);
    return difference;
}
