/*
gpt2.c -- GPT-2 as a kind of model. Shapes of checkpoints, initialisation and numerics are llm.c's,
descriptors its tables (facts: its gpt_build_from_descriptor), and "l4c128h4" for any other shape.
*/
#include "gpt2.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llmc_error.h"

static TensorInfo tensor_info(const ModelConfig* config, int tensor) {
    const int64_t C = config->channels, Vp = config->padded_vocab, maxT = config->max_seq_len;
    switch ((Gpt2Tensor)tensor) {
#define X(name, per_layer, rows, cols, decay) \
    case GPT2_##name:                         \
        return (TensorInfo){#name, per_layer ? TENSOR_PER_LAYER : TENSOR_WHOLE, rows, cols, decay};
        GPT2_TENSORS(X)
#undef X
        default: return (TensorInfo){0};
    }
}

// The two that write into the residual stream are scaled by 1 / sqrt(2 L) (Radford et al. 2019).
static ModelStds stds(const ModelConfig* config) {
    const float std = 0.02f, residual = 0.02f * (1.0f / sqrtf(2.0f * (float)config->num_layers));
    return (ModelStds){
        .embedding = std, .positions = std, .q = std, .kv = std, .o = residual, .wi = std, .wo = residual};
}

typedef struct {
    int depth, channels, num_heads;
} Gpt2Row;

static const Gpt2Row gpt2_rows[] = {
    {6, 384, 6},    {12, 768, 12},  {24, 1024, 16}, {36, 1280, 20},
    {48, 1600, 25}, {60, 1920, 30}, {72, 2880, 30}, {84, 3456, 36},
};
static const Gpt2Row gpt3_rows[] = {
    {6, 384, 6},    {12, 768, 12},  {24, 1024, 16}, {24, 1536, 16},
    {24, 2048, 16}, {32, 2560, 32}, {32, 4096, 32}, {96, 12288, 96},
};
enum { NUM_ROWS = sizeof gpt2_rows / sizeof *gpt2_rows };
_Static_assert(sizeof gpt3_rows == sizeof gpt2_rows, "one NUM_ROWS for both tables");

// Digits only, 1 <= value <= 2^30; *text moves after them.
static bool parse_count(const char** text, int* out) {
    if (!isdigit((unsigned char)**text)) { return false; }
    char* end;
    long value = strtol(*text, &end, 10);
    if (value < 1 || value > 1 << 30) { return false; }
    *text = end;
    *out = (int)value;
    return true;
}

static bool parse_letter_and_count(const char** text, char letter, int* out) {
    if (**text != letter) { return false; }
    (*text)++;
    return parse_count(text, out);
}

static bool parse_table(ModelConfig* out, const char* text, bool is_gpt3) {
    int wanted;
    if (!parse_letter_and_count(&text, is_gpt3 ? 'c' : 'd', &wanted) || *text != '\0') { return false; }
    const Gpt2Row* rows = is_gpt3 ? gpt3_rows : gpt2_rows;
    for (int i = 0; i < NUM_ROWS; i++) {
        if (wanted == (is_gpt3 ? rows[i].channels : rows[i].depth)) {
            out->num_layers = rows[i].depth;
            out->channels = rows[i].channels;
            out->num_heads = rows[i].num_heads;
            return true;
        }
    }
    return false;
}

static bool parse_descriptor(ModelConfig* out, const char* descriptor, int vocab, int max_seq_len) {
    ModelConfig config = {.vocab = vocab, .max_seq_len = max_seq_len, .kind = &gpt2_kind};
    bool is_gpt3 = strncmp(descriptor, "gpt3:", 5) == 0;
    const char* text = descriptor;
    if (is_gpt3 || strncmp(descriptor, "gpt2:", 5) == 0) { text += 5; }
    if (!is_gpt3 && *text == 'l') {
        if (!parse_letter_and_count(&text, 'l', &config.num_layers) ||
            !parse_letter_and_count(&text, 'c', &config.channels) ||
            !parse_letter_and_count(&text, 'h', &config.num_heads) || *text != '\0') {
            return llmc_fail("model \"%.40s\" is not layers, channels, heads ---> write e.g. l4c128h4",
                             descriptor);
        }
    } else if (!parse_table(&config, text, is_gpt3)) {
        return llmc_fail("model \"%.40s\" is unknown ---> use d6 d12 d24 d36 d48 d60 d72 d84, gpt3:c384 c768 "
                         "c1024 c1536 c2048 c2560 c4096 c12288, layers-channels-heads such as l4c128h4, or a "
                         "checkpoint *.bin",
                         descriptor);
    }
    if (vocab == 0) { config.vocab = 50257; }
    if (max_seq_len == 0) { config.max_seq_len = is_gpt3 ? 2048 : 1024; }
    config.padded_vocab = config.vocab <= INT_MAX - 127 ? (config.vocab + 127) / 128 * 128 : config.vocab;
    char what[64];
    snprintf(what, sizeof what, "model \"%.40s\"", descriptor);
    if (!model_check(&config, what)) { return false; }
    *out = config;
    return true;
}

const ModelKind gpt2_kind = {
    .name = "gpt2",
    .title = "GPT-2",
    .usual = "d12",
    .num_tensors = GPT2_NUM_TENSORS,
    .checkpoint_magic = 20240326,
    .stacks = {{
        .norm_self = {GPT2_ln1w, GPT2_ln1b},
        .qkv = {GPT2_qkvw, GPT2_qkvb},
        .o = {GPT2_attprojw, GPT2_attprojb},
        .norm_ffn = {GPT2_ln2w, GPT2_ln2b},
        .wi = {GPT2_fcw, GPT2_fcb},
        .wo = {GPT2_fcprojw, GPT2_fcprojb},
        .norm_end = {GPT2_lnfw, GPT2_lnfb},
        .is_causal = true,
    }},
    .positions = GPT2_wpe,
    .activation = MODEL_GELU,
    .scaled_scores = true,
    .parse = parse_descriptor,
    .tensor = tensor_info,
    .stds = stds,
};
