/*
t5.c -- T5 and its descendants as kinds of one model. Descriptors are the families' published sizes (their
config.json), and "l2c64h4" for any other shape.
*/
#include "t5.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llmc_error.h"

static TensorInfo tensor_info(const ModelConfig* config, int tensor) {
    const int64_t C = config->channels, Vp = config->padded_vocab, F = config->ffn_channels;
    const int64_t NH = config->num_heads, I = NH * config->head_size, NB = config->num_buckets;
    const int64_t F2 = config->gated ? 2 * F : F, head_rows = config->tied_head ? 0 : Vp;
    const TensorPlace enc_bias_place = config->bias_per_layer ? TENSOR_PER_LAYER : TENSOR_WHOLE;
    const TensorPlace dec_bias_place = config->bias_per_layer ? TENSOR_PER_DEC_LAYER : TENSOR_WHOLE;
    switch ((T5Tensor)tensor) {
#define X(name, place, rows, cols, decay) \
    case T5_##name: return (TensorInfo){#name, place, rows, cols, decay};
        T5_TENSORS(X)
#undef X
        default: return (TensorInfo){0};
    }
}

// Hugging Face's (T5PreTrainedModel._init_weights). Scores are not scaled, so q is drawn smaller instead.
static ModelStds stds(const ModelConfig* config) {
    const double C = config->channels, HS = config->head_size, I = config->num_heads * HS;
    const float std = (float)pow(C, -0.5);
    return (ModelStds){.embedding = 1.0f,
                       .q = (float)pow(C * HS, -0.5),
                       .kv = std,
                       .o = (float)pow(I, -0.5),
                       .wi = std,
                       .wo = (float)pow((double)config->ffn_channels, -0.5),
                       .bias = std,
                       .head = 1.0f};
}

typedef struct {
    const char* name;
    int num_layers, num_dec_layers, channels, num_heads, head_size, ffn_channels;
} T5Size;

typedef struct {
    const char* name;
    int vocab;
    bool gated, tied_head, bias_per_layer;
    const T5Size* sizes;  // the last one has no name
} T5Family;

static const T5Size t5_sizes[] = {
    {"small", 6, 6, 512, 8, 64, 2048},      {"base", 12, 12, 768, 12, 64, 3072},
    {"large", 24, 24, 1024, 16, 64, 4096},  {"3b", 24, 24, 1024, 32, 128, 16384},
    {"11b", 24, 24, 1024, 128, 128, 65536}, {0},
};
static const T5Size t5v11_sizes[] = {
    {"small", 8, 8, 512, 6, 64, 1024},     {"base", 12, 12, 768, 12, 64, 2048},
    {"large", 24, 24, 1024, 16, 64, 2816}, {"xl", 24, 24, 2048, 32, 64, 5120},
    {"xxl", 24, 24, 4096, 64, 64, 10240},  {0},
};
static const T5Size byt5_sizes[] = {
    {"small", 12, 4, 1472, 6, 64, 3584},   {"base", 18, 6, 1536, 12, 64, 3968},
    {"large", 36, 12, 1536, 16, 64, 3840}, {"xl", 36, 12, 2560, 32, 64, 6720},
    {"xxl", 36, 12, 4672, 64, 64, 12352},  {0},
};
static const T5Size umt5_sizes[] = {
    {"small", 8, 8, 512, 6, 64, 1024},
    {"base", 12, 12, 768, 12, 64, 2048},
    {"xl", 24, 24, 2048, 32, 64, 5120},
    {"xxl", 24, 24, 4096, 64, 64, 10240},
    {0},
};

// clang-format off
static const T5Family families[] = {
    // name     vocabulary  gated  tied   bias per layer
    {"t5",          32128,  false, true,  false, t5_sizes},
    {"t5v1.1",      32128,  true,  false, false, t5v11_sizes},
    {"flan-t5",     32128,  true,  false, false, t5v11_sizes},
    {"byt5",          384,  true,  false, false, byt5_sizes},
    {"mt5",        250112,  true,  false, false, t5v11_sizes},
    {"umt5",       256384,  true,  true,  true,  umt5_sizes},
};
// clang-format on
enum { NUM_FAMILIES = sizeof families / sizeof *families, DEFAULT_SEQ_LEN = 1024 };

// The length of the descriptor's family up to the colon; *text moves after it.
static const T5Family* find_family(const char** text) {
    for (int i = 0; i < NUM_FAMILIES; i++) {
        size_t num_chars = strlen(families[i].name);
        if (strncmp(*text, families[i].name, num_chars) == 0 && (*text)[num_chars] == ':') {
            *text += num_chars + 1;
            return &families[i];
        }
    }
    return NULL;
}

// A letter and its count, digits only, 1 to 2^30; *text moves after them.
static bool parse_letter_and_count(const char** text, char letter, int* out) {
    if (**text != letter || !isdigit((unsigned char)(*text)[1])) { return false; }
    char* end;
    long value = strtol(*text + 1, &end, 10);
    if (value < 1 || value > 1 << 30) { return false; }
    *text = end;
    *out = (int)value;
    return true;
}

// Letters in this order; d, k and f are optional.
static bool parse_shape(ModelConfig* out, const T5Family* family, const char* text) {
    if (!parse_letter_and_count(&text, 'l', &out->num_layers)) { return false; }
    out->num_dec_layers = out->num_layers;
    if (*text == 'd' && !parse_letter_and_count(&text, 'd', &out->num_dec_layers)) { return false; }
    if (!parse_letter_and_count(&text, 'c', &out->channels) ||
        !parse_letter_and_count(&text, 'h', &out->num_heads)) {
        return false;
    }
    const bool has_head_size = *text == 'k';
    if (has_head_size && !parse_letter_and_count(&text, 'k', &out->head_size)) { return false; }
    const bool has_ffn = *text == 'f';
    if (has_ffn && !parse_letter_and_count(&text, 'f', &out->ffn_channels)) { return false; }
    const int64_t C = out->channels, F = family->gated ? (C * 5 / 2 + 7) / 8 * 8 : 4 * C;
    if (!has_head_size) { out->head_size = C % out->num_heads == 0 ? (int)(C / out->num_heads) : 0; }
    if (!has_ffn) { out->ffn_channels = F < INT_MAX ? (int)F : INT_MAX; }
    return *text == '\0';
}

static bool parse_name(ModelConfig* out, const T5Family* family, const char* text) {
    for (const T5Size* s = family->sizes; s->name != NULL; s++) {
        if (strcmp(text, s->name) != 0) { continue; }
        out->num_layers = s->num_layers;
        out->num_dec_layers = s->num_dec_layers;
        out->channels = s->channels;
        out->num_heads = s->num_heads;
        out->head_size = s->head_size;
        out->ffn_channels = s->ffn_channels;
        return true;
    }
    return false;
}

static bool fail_unknown(const char* descriptor, const T5Family* family) {
    if (family == NULL) {
        return llmc_fail(
            "model \"%.40s\" is unknown ---> use t5: t5v1.1: flan-t5: byt5: mt5: umt5: and a size, "
            "such as t5:small, or a shape, such as byt5:l2c64h4",
            descriptor);
    }
    char names[80] = "";
    for (const T5Size* s = family->sizes; s->name != NULL; s++) {
        snprintf(names + strlen(names), sizeof names - strlen(names), " %s:%s", family->name, s->name);
    }
    return llmc_fail("model \"%.40s\" is unknown ---> use%s, or a shape such as %s:l2c64h4 or "
                     "%s:l2d3c64h4k16f256",
                     descriptor, names, family->name, family->name);
}

static bool parse_descriptor(ModelConfig* out, const char* descriptor, int vocab, int max_seq_len) {
    const char* text = descriptor;
    const T5Family* family = find_family(&text);
    if (family == NULL) { return fail_unknown(descriptor, NULL); }
    ModelConfig config = {
        .kind = &t5_kind,
        .vocab = vocab != 0 ? vocab : family->vocab,
        .max_seq_len = max_seq_len != 0 ? max_seq_len : DEFAULT_SEQ_LEN,
        .num_buckets = 32,
        .max_distance = 128,
        .gated = family->gated,
        .tied_head = family->tied_head,
        .bias_per_layer = family->bias_per_layer,
    };
    const bool is_known = *text == 'l' && isdigit((unsigned char)text[1]) ? parse_shape(&config, family, text)
                                                                          : parse_name(&config, family, text);
    if (!is_known) { return fail_unknown(descriptor, family); }
    config.padded_vocab = config.vocab <= INT_MAX - 127 ? (config.vocab + 127) / 128 * 128 : config.vocab;
    char what[64];
    snprintf(what, sizeof what, "model \"%.40s\"", descriptor);
    if (config.head_size == 0) {
        return llmc_fail(
            "%s: %d channels cannot be shared by %d heads ---> make channels a multiple of heads, or "
            "name the head size, such as %s:l2c64h4k16",
            what, config.channels, config.num_heads, family->name);
    }
    if (!model_check(&config, what)) { return false; }
    *out = config;
    return true;
}

const ModelKind t5_kind = {
    .name = "t5",
    .title = "T5",
    .usual = "t5:small",
    .has_decoder = true,
    .num_tensors = T5_NUM_TENSORS,
    .checkpoint_magic = 20191023,  // of the paper, arXiv 1910.10683
    .stacks = {{
                   .norm_self = {T5_enc_norm1, 0},
                   .qkv = {T5_enc_qkv, 0},
                   .o = {T5_enc_o, 0},
                   .norm_ffn = {T5_enc_norm2, 0},
                   .wi = {T5_enc_wi, 0},
                   .wo = {T5_enc_wo, 0},
                   .norm_end = {T5_enc_norm, 0},
                   .bias = T5_enc_bias,
               },
               {
                   .norm_self = {T5_dec_norm1, 0},
                   .qkv = {T5_dec_qkv, 0},
                   .o = {T5_dec_o, 0},
                   .norm_cross = {T5_dec_norm2, 0},
                   .xq = {T5_dec_xq, 0},
                   .xkv = {T5_dec_xkv, 0},
                   .xo = {T5_dec_xo, 0},
                   .norm_ffn = {T5_dec_norm3, 0},
                   .wi = {T5_dec_wi, 0},
                   .wo = {T5_dec_wo, 0},
                   .norm_end = {T5_dec_norm, 0},
                   .bias = T5_dec_bias,
                   .is_causal = true,
               }},
    .head = T5_head,
    .activation = MODEL_RELU,
    .drops_more = true,
    .parse = parse_descriptor,
    .tensor = tensor_info,
    .stds = stds,
};
