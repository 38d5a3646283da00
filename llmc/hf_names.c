// One table, keyed by kind and our name of the tensor.
#include "hf_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// WORDS: a matrix of the vocabulary's rows, ours is padded; GATED, PLAIN: a matrix of such feed-forwards
// only.
typedef enum { MATRIX, VECTOR, TRANSPOSED, WORDS, GATED, PLAIN } Form;

typedef struct {
    const char *kind, *tensor;
    Form form;
    const char* names[HF_MAX_PARTS];  // %d: the layer
} Row;

// clang-format off
#define GPT2_ROW(tensor, form, name) {"gpt2", tensor, form, {name}}
#define T5_ROW(tensor, form, ...)    {"t5", tensor, form, {__VA_ARGS__}}
#define ENC "encoder.block.%d.layer."
#define DEC "decoder.block.%d.layer."
static const Row rows[] = {
    GPT2_ROW("wte",      WORDS,      "wte.weight"),
    GPT2_ROW("wpe",      MATRIX,     "wpe.weight"),
    GPT2_ROW("ln1w",     VECTOR,     "h.%d.ln_1.weight"),
    GPT2_ROW("ln1b",     VECTOR,     "h.%d.ln_1.bias"),
    GPT2_ROW("qkvw",     TRANSPOSED, "h.%d.attn.c_attn.weight"),
    GPT2_ROW("qkvb",     VECTOR,     "h.%d.attn.c_attn.bias"),
    GPT2_ROW("attprojw", TRANSPOSED, "h.%d.attn.c_proj.weight"),
    GPT2_ROW("attprojb", VECTOR,     "h.%d.attn.c_proj.bias"),
    GPT2_ROW("ln2w",     VECTOR,     "h.%d.ln_2.weight"),
    GPT2_ROW("ln2b",     VECTOR,     "h.%d.ln_2.bias"),
    GPT2_ROW("fcw",      TRANSPOSED, "h.%d.mlp.c_fc.weight"),
    GPT2_ROW("fcb",      VECTOR,     "h.%d.mlp.c_fc.bias"),
    GPT2_ROW("fcprojw",  TRANSPOSED, "h.%d.mlp.c_proj.weight"),
    GPT2_ROW("fcprojb",  VECTOR,     "h.%d.mlp.c_proj.bias"),
    GPT2_ROW("lnfw",     VECTOR,     "ln_f.weight"),
    GPT2_ROW("lnfb",     VECTOR,     "ln_f.bias"),

    T5_ROW("shared",    WORDS,  "shared.weight"),
    T5_ROW("enc_norm1", VECTOR, ENC "0.layer_norm.weight"),
    T5_ROW("enc_qkv",   MATRIX, ENC "0.SelfAttention.q.weight", ENC "0.SelfAttention.k.weight", ENC "0.SelfAttention.v.weight"),
    T5_ROW("enc_o",     MATRIX, ENC "0.SelfAttention.o.weight"),
    T5_ROW("enc_bias",  MATRIX, ENC "0.SelfAttention.relative_attention_bias.weight"),
    T5_ROW("enc_norm2", VECTOR, ENC "1.layer_norm.weight"),
    T5_ROW("enc_wi",    PLAIN,  ENC "1.DenseReluDense.wi.weight"),
    T5_ROW("enc_wi",    GATED,  ENC "1.DenseReluDense.wi_0.weight", ENC "1.DenseReluDense.wi_1.weight"),
    T5_ROW("enc_wo",    MATRIX, ENC "1.DenseReluDense.wo.weight"),
    T5_ROW("enc_norm",  VECTOR, "encoder.final_layer_norm.weight"),
    T5_ROW("dec_norm1", VECTOR, DEC "0.layer_norm.weight"),
    T5_ROW("dec_qkv",   MATRIX, DEC "0.SelfAttention.q.weight", DEC "0.SelfAttention.k.weight", DEC "0.SelfAttention.v.weight"),
    T5_ROW("dec_o",     MATRIX, DEC "0.SelfAttention.o.weight"),
    T5_ROW("dec_bias",  MATRIX, DEC "0.SelfAttention.relative_attention_bias.weight"),
    T5_ROW("dec_norm2", VECTOR, DEC "1.layer_norm.weight"),
    T5_ROW("dec_xq",    MATRIX, DEC "1.EncDecAttention.q.weight"),
    T5_ROW("dec_xkv",   MATRIX, DEC "1.EncDecAttention.k.weight", DEC "1.EncDecAttention.v.weight"),
    T5_ROW("dec_xo",    MATRIX, DEC "1.EncDecAttention.o.weight"),
    T5_ROW("dec_norm3", VECTOR, DEC "2.layer_norm.weight"),
    T5_ROW("dec_wi",    PLAIN,  DEC "2.DenseReluDense.wi.weight"),
    T5_ROW("dec_wi",    GATED,  DEC "2.DenseReluDense.wi_0.weight", DEC "2.DenseReluDense.wi_1.weight"),
    T5_ROW("dec_wo",    MATRIX, DEC "2.DenseReluDense.wo.weight"),
    T5_ROW("dec_norm",  VECTOR, "decoder.final_layer_norm.weight"),
    T5_ROW("head",      WORDS,  "lm_head.weight"),
};
// clang-format on

static const Row* find_row(const ModelConfig* config, const char* tensor) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const Row* row = &rows[i];
        if (strcmp(row->kind, config->kind->name) != 0 || strcmp(row->tensor, tensor) != 0) { continue; }
        if (row->form == (config->gated ? PLAIN : GATED)) { continue; }
        return row;
    }
    fprintf(stderr, "hf_names: %s has no name for %s ---> a bug, add it to the table\n", config->kind->name,
            tensor);
    abort();
}

static void print_name(char* out, const char* format, int layer) {
    const char* place = strstr(format, "%d");
    if (place == NULL) {
        snprintf(out, HF_NAME_CHARS, "%s", format);
    } else {
        snprintf(out, HF_NAME_CHARS, "%.*s%d%s", (int)(place - format), format, layer, place + 2);
    }
}

int hf_names_parts(HfPart out[HF_MAX_PARTS], const ModelConfig* config, int tensor, int layer) {
    const TensorInfo info = config->kind->tensor(config, tensor);
    const Row* row = find_row(config, info.name);
    int num_parts = 0;
    while (num_parts < HF_MAX_PARTS && row->names[num_parts] != NULL) { num_parts++; }
    const int64_t padding = row->form == WORDS ? config->padded_vocab - config->vocab : 0;
    for (int p = 0; p < num_parts; p++) {
        const int64_t part_rows = (info.rows - padding) / num_parts;
        out[p] = (HfPart){.row_begin = p * part_rows, .rows = part_rows, .cols = info.cols};
        out[p].is_vector = row->form == VECTOR;
        out[p].transposed = row->form == TRANSPOSED;
        print_name(out[p].name, row->names[p], layer < 0 ? 0 : layer);
    }
    return num_parts;
}

// 0: this config has no such tensor.
static int num_layers_of(const ModelConfig* config, int tensor) {
    const TensorInfo info = config->kind->tensor(config, tensor);
    return info.rows == 0                       ? 0
           : info.place == TENSOR_PER_LAYER     ? config->num_layers
           : info.place == TENSOR_PER_DEC_LAYER ? config->num_dec_layers
                                                : 1;
}

const HfPart* hf_names_next(HfNames* at) {
    if (at->part == at->num_parts) {
        at->layer += at->num_parts > 0;
        while (at->tensor < at->config->kind->num_tensors &&
               at->layer >= num_layers_of(at->config, at->tensor)) {
            at->tensor++;
            at->layer = 0;
        }
        if (at->tensor == at->config->kind->num_tensors) { return NULL; }
        at->num_parts = hf_names_parts(at->parts, at->config, at->tensor, at->layer);
        at->part = 0;
    }
    return &at->parts[at->part++];
}

const char* hf_names_prefix(const ModelConfig* config) {
    return strcmp(config->kind->name, "gpt2") == 0 ? "transformer." : "";
}

// "h.", a number, `end`.
static bool is_layers(const char* name, const char* end) {
    if (strncmp(name, "h.", 2) != 0) { return false; }
    size_t num_digits = strspn(name + 2, "0123456789");
    return num_digits > 0 && strcmp(name + 2 + num_digits, end) == 0;
}

bool hf_names_is_buffer(const ModelConfig* config, const char* name) {
    if (strcmp(config->kind->name, "gpt2") == 0) {
        return is_layers(name, ".attn.bias") || is_layers(name, ".attn.masked_bias");
    }
    return strcmp(name, "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight") == 0;
}

const char* hf_names_embedding_copy(const ModelConfig* config, const char* name) {
    static const char* const t5[] = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", NULL};
    static const char* const gpt2[] = {"lm_head.weight", NULL};
    const char* const* names = strcmp(config->kind->name, "gpt2") == 0 ? gpt2 : t5;
    while (name != NULL && strcmp(*names++, name) != 0) {}
    return *names;
}
