// kinds.c -- GPT-2, T5 and Llama as tables; descriptors, and what else depends on a model's config only.
#include "kinds.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "../util/checkpoint_files.h"
#include "llmc_error.h"
#include "t5_bucket.h"

enum {
    LLMC_MAGIC = 20240326,  // of llm.c's GPT-2
    GPT2_EPS = 10000        // of the norms, times 1e9
};

// --- tables ------------------------------------------------------------------------------------------------

#define WHOLE TENSOR_WHOLE
#define LAYER TENSOR_PER_LAYER
#define DEC_LAYER TENSOR_PER_DEC_LAYER
#define ENC "encoder.block.%d.layer."
#define DEC "decoder.block.%d.layer."
#define X(name, place, rows, cols, decay, hf_names) \
    case X_NAME(name):                              \
        return (TensorInfo){#name, place, rows, cols, decay, hf_names};
#define X_NAME(name) GPT2_##name
static TensorInfo gpt2_tensor(const ModelConfig* config, int tensor) {
    const int64_t C = config->channels, Vp = config->padded_vocab, maxT = config->max_seq_len;
    const int64_t F = config->ffn_channels, head_rows = config->tied_head ? 0 : Vp;
    switch ((Gpt2Tensor)tensor) {
        GPT2_TENSORS(X)
        default: return (TensorInfo){0};
    }
}
#undef X_NAME
#define X_NAME(name) T5_##name
static TensorInfo t5_tensor(const ModelConfig* config, int tensor) {
    const int64_t C = config->channels, Vp = config->padded_vocab, F = config->ffn_channels;
    const int64_t NH = config->num_heads, I = NH * config->head_size, NB = config->num_buckets;
    const int64_t F2 = config->gated ? 2 * F : F, head_rows = config->tied_head ? 0 : Vp;
    const TensorPlace enc_bias_place = config->bias_per_layer ? LAYER : WHOLE;
    const TensorPlace dec_bias_place = config->bias_per_layer ? DEC_LAYER : WHOLE;
    switch ((T5Tensor)tensor) {
        T5_TENSORS(X)
        default: return (TensorInfo){0};
    }
}
#undef X_NAME
#define X_NAME(name) LLAMA_##name
static TensorInfo llama_tensor(const ModelConfig* config, int tensor) {
    const int64_t C = config->channels, Vp = config->padded_vocab, F = config->ffn_channels;
    const int64_t I = (int64_t)config->num_heads * config->head_size, W = model_qkv_width(config);
    const int64_t bias = config->qkv_bias, head_rows = config->tied_head ? 0 : Vp;
    switch ((LlamaTensor)tensor) {
        LLAMA_TENSORS(X)
        default: return (TensorInfo){0};
    }
}
#undef X_NAME
#undef X

// The two that write into the residual stream are scaled by 1 / sqrt(2 L) (Radford et al. 2019).
static ModelStds gpt2_stds(const ModelConfig* config) {
    const float std = 0.02f, residual = 0.02f * (1.0f / sqrtf(2.0f * (float)config->num_layers));
    return (ModelStds){.embedding = std,
                       .positions = std,
                       .q = std,
                       .kv = std,
                       .o = residual,
                       .wi = std,
                       .wo = residual,
                       .head = std};
}

// Hugging Face's (T5PreTrainedModel._init_weights). Scores are not scaled, so q is drawn smaller instead.
static ModelStds t5_stds(const ModelConfig* config) {
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

// Hugging Face's (initializer_range).
static ModelStds llama_stds(const ModelConfig* config) {
    (void)config;
    const float std = 0.02f;
    return (ModelStds){.embedding = std, .q = std, .kv = std, .o = std, .wi = std, .wo = std, .head = std};
}

const ModelKind gpt2_kind = {
    .name = "gpt2",
    .title = "GPT-2",
    .usual = "d12",
    .num_tensors = GPT2_NUM_TENSORS,
    .checkpoint_magic = 20190214,  // where a number is not llm.c's; of the paper's day
    .stacks = {{
        .num_blocks = 2,
        .blocks = {{.type = BLOCK_SELF,
                    .norm = {GPT2_ln1w, GPT2_ln1b},
                    .in = {GPT2_qkvw, GPT2_qkvb},
                    .out = {GPT2_attprojw, GPT2_attprojb}},
                   {.type = BLOCK_FFN,
                    .norm = {GPT2_ln2w, GPT2_ln2b},
                    .in = {GPT2_fcw, GPT2_fcb},
                    .out = {GPT2_fcprojw, GPT2_fcprojb}}},
        .norm_end = {GPT2_lnfw, GPT2_lnfb},
        .is_causal = true,
    }},
    .positions = GPT2_wpe,
    .head = GPT2_head,
    .activation = MODEL_GELU,
    .scaled_scores = true,
    .tensor = gpt2_tensor,
    .stds = gpt2_stds,
};

const ModelKind t5_kind = {
    .name = "t5",
    .title = "T5",
    .usual = "t5:small",
    .has_decoder = true,
    .num_tensors = T5_NUM_TENSORS,
    .checkpoint_magic = 20191023,  // of the paper, arXiv 1910.10683
    .stacks =
        {{
             .num_blocks = 2,
             .blocks = {{.type = BLOCK_SELF, .norm = {T5_enc_norm1}, .in = {T5_enc_qkv}, .out = {T5_enc_o}},
                        {.type = BLOCK_FFN, .norm = {T5_enc_norm2}, .in = {T5_enc_wi}, .out = {T5_enc_wo}}},
             .norm_end = {T5_enc_norm},
             .bias = T5_enc_bias,
         },
         {
             .num_blocks = 3,
             .blocks = {{.type = BLOCK_SELF, .norm = {T5_dec_norm1}, .in = {T5_dec_qkv}, .out = {T5_dec_o}},
                        {.type = BLOCK_CROSS,
                         .norm = {T5_dec_norm2},
                         .in = {T5_dec_xq},
                         .kv = {T5_dec_xkv},
                         .out = {T5_dec_xo}},
                        {.type = BLOCK_FFN, .norm = {T5_dec_norm3}, .in = {T5_dec_wi}, .out = {T5_dec_wo}}},
             .norm_end = {T5_dec_norm},
             .bias = T5_dec_bias,
             .is_causal = true,
         }},
    .head = T5_head,
    .activation = MODEL_RELU,
    .scaled_head = true,
    .drops_more = true,
    .tensor = t5_tensor,
    .stds = t5_stds,
};

const ModelKind llama_kind = {
    .name = "llama",
    .title = "Llama",
    .usual = "llama:l12c768h12",
    .num_tensors = LLAMA_NUM_TENSORS,
    .checkpoint_magic = 20230227,  // of the paper, arXiv 2302.13971
    .stacks = {{
        .num_blocks = 2,
        .blocks =
            {{.type = BLOCK_SELF, .norm = {LLAMA_norm1}, .in = {LLAMA_qkv, LLAMA_qkvb}, .out = {LLAMA_o}},
             {.type = BLOCK_FFN, .norm = {LLAMA_norm2}, .in = {LLAMA_gate_up}, .out = {LLAMA_down}}},
        .norm_end = {LLAMA_norm},
        .is_causal = true,
    }},
    .head = LLAMA_head,
    .activation = MODEL_SILU,
    .scaled_scores = true,
    .rotary = true,
    .tensor = llama_tensor,
    .stds = llama_stds,
};

// --- descriptors -------------------------------------------------------------------------------------------

typedef struct {
    const char* name;
    int num_layers, num_dec_layers, channels, num_heads, head_size, ffn_channels, num_kv_heads;
} Size;

typedef struct {
    const ModelKind* kind;
    const char* name;
    int vocab, max_seq_len;
    bool gated, tied_head, bias_per_layer;
    Size sizes[9];  // the last one has no name
} Family;

// clang-format off
#define T5V11_SIZES \
    {{"small", 8, 8, 512, 6, 64, 1024, 0},     {"base", 12, 12, 768, 12, 64, 2048, 0}, {"large", 24, 24, 1024, 16, 64, 2816, 0}, \
     {"xl", 24, 24, 2048, 32, 64, 5120, 0},    {"xxl", 24, 24, 4096, 64, 64, 10240, 0}}
static const Family families[] = {
    // name               vocabulary longest gated  tied   bias per layer
    {&gpt2_kind, "gpt2",       50257,  1024, false, false, false,
     {{"d6", 6, 0, 384, 6, 0, 0, 0},    {"d12", 12, 0, 768, 12, 0, 0, 0},  {"d24", 24, 0, 1024, 16, 0, 0, 0}, {"d36", 36, 0, 1280, 20, 0, 0, 0},
      {"d48", 48, 0, 1600, 25, 0, 0, 0}, {"d60", 60, 0, 1920, 30, 0, 0, 0}, {"d72", 72, 0, 2880, 30, 0, 0, 0}, {"d84", 84, 0, 3456, 36, 0, 0, 0}}},
    {&gpt2_kind, "gpt3",       50257,  2048, false, false, false,
     {{"c384", 6, 0, 384, 6, 0, 0, 0},  {"c768", 12, 0, 768, 12, 0, 0, 0}, {"c1024", 24, 0, 1024, 16, 0, 0, 0}, {"c1536", 24, 0, 1536, 16, 0, 0, 0},
      {"c2048", 24, 0, 2048, 16, 0, 0, 0}, {"c2560", 32, 0, 2560, 32, 0, 0, 0}, {"c4096", 32, 0, 4096, 32, 0, 0, 0}, {"c12288", 96, 0, 12288, 96, 0, 0, 0}}},
    {&t5_kind, "t5",           32128,  1024, false, true,  false,
     {{"small", 6, 6, 512, 8, 64, 2048, 0},    {"base", 12, 12, 768, 12, 64, 3072, 0}, {"large", 24, 24, 1024, 16, 64, 4096, 0},
      {"3b", 24, 24, 1024, 32, 128, 16384, 0}, {"11b", 24, 24, 1024, 128, 128, 65536, 0}}},
    {&t5_kind, "t5v1.1",       32128,  1024, true,  false, false, T5V11_SIZES},
    {&t5_kind, "flan-t5",      32128,  1024, true,  false, false, T5V11_SIZES},
    {&t5_kind, "byt5",           384,  1024, true,  false, false,
     {{"small", 12, 4, 1472, 6, 64, 3584, 0},  {"base", 18, 6, 1536, 12, 64, 3968, 0}, {"large", 36, 12, 1536, 16, 64, 3840, 0},
      {"xl", 36, 12, 2560, 32, 64, 6720, 0},   {"xxl", 36, 12, 4672, 64, 64, 12352, 0}}},
    {&t5_kind, "mt5",         250112,  1024, true,  false, false, T5V11_SIZES},
    {&t5_kind, "umt5",        256384,  1024, true,  true,  true,
     {{"small", 8, 8, 512, 6, 64, 1024, 0},    {"base", 12, 12, 768, 12, 64, 2048, 0}, {"xl", 24, 24, 2048, 32, 64, 5120, 0},
      {"xxl", 24, 24, 4096, 64, 64, 10240, 0}}},
    {&llama_kind, "llama",     32000,  4096, true,  false, false,
     {{"7b", 32, 0, 4096, 32, 128, 11008, 32}, {"13b", 40, 0, 5120, 40, 128, 13824, 40}}},
    {&llama_kind, "tinyllama", 32000,  2048, true,  false, false, {{"1.1b", 22, 0, 2048, 32, 64, 5632, 4}}},
    {&llama_kind, "qwen2",    151936, 32768, true,  true,  false,
     {{"0.5b", 24, 0, 896, 14, 64, 4864, 2}, {"1.5b", 28, 0, 1536, 12, 128, 8960, 2}}},
};
// clang-format on
enum { NUM_FAMILIES = sizeof families / sizeof *families };

// By the name before the colon; *text moves after it. NULL: unknown.
static const Family* find_family(const ModelKind* kind, const char** text) {
    for (int i = 0; i < NUM_FAMILIES; i++) {
        const size_t num_chars = strlen(families[i].name);
        if (families[i].kind == kind && strncmp(*text, families[i].name, num_chars) == 0 &&
            (*text)[num_chars] == ':') {
            *text += num_chars + 1;
            return &families[i];
        }
    }
    return kind == &gpt2_kind ? &families[0] : NULL;  // "d12" is "gpt2:d12"
}

// A letter and its count, digits only, 1 to 2^30; *text moves after them.
static bool parse_count(const char** text, char letter, int* out) {
    if (**text != letter || !isdigit((unsigned char)(*text)[1])) { return false; }
    char* end;
    const long value = strtol(*text + 1, &end, 10);
    if (value < 1 || value > 1 << 30) { return false; }
    *text = end;
    *out = (int)value;
    return true;
}

// The numbers that llm.c's GPT-2 does not name.
static void gpt2_usual(ModelConfig* config) {
    const int64_t F = 4 * (int64_t)config->channels;
    config->ffn_channels = F >= 0 && F < INT_MAX ? (int)F : INT_MAX;
    config->norm_eps = GPT2_EPS;
    config->tied_head = 1;
}

// Letters in this order; d (T5's), g (Llama's), k and f (of both) are optional.
static bool parse_shape(ModelConfig* out, const char* text) {
    const bool is_t5 = out->kind == &t5_kind, is_llama = out->kind == &llama_kind;
    if (!parse_count(&text, 'l', &out->num_layers)) { return false; }
    out->num_dec_layers = is_t5 ? out->num_layers : 0;
    if (is_t5 && *text == 'd' && !parse_count(&text, 'd', &out->num_dec_layers)) { return false; }
    if (!parse_count(&text, 'c', &out->channels) || !parse_count(&text, 'h', &out->num_heads)) {
        return false;
    }
    if (!is_t5 && !is_llama) {
        gpt2_usual(out);
        return *text == '\0';
    }
    const int64_t C = out->channels, ffn = is_llama ? C * 8 / 3 : C * 5 / 2;
    const int64_t F = out->gated ? (ffn + 7) / 8 * 8 : 4 * C;
    out->num_kv_heads = is_llama ? out->num_heads : 0;
    if (is_llama && *text == 'g' && !parse_count(&text, 'g', &out->num_kv_heads)) { return false; }
    out->head_size = C % out->num_heads == 0 ? (int)(C / out->num_heads) : 0;
    out->ffn_channels = F < INT_MAX ? (int)F : INT_MAX;
    if (*text == 'k' && !parse_count(&text, 'k', &out->head_size)) { return false; }
    if (*text == 'f' && !parse_count(&text, 'f', &out->ffn_channels)) { return false; }
    return *text == '\0';
}

static bool parse_name(ModelConfig* out, const Family* family, const char* text) {
    for (const Size* s = family->sizes; s->name != NULL; s++) {
        if (strcmp(text, s->name) != 0) { continue; }
        out->num_layers = s->num_layers;
        out->num_dec_layers = s->num_dec_layers;
        out->channels = s->channels;
        out->num_heads = s->num_heads;
        out->head_size = s->head_size;
        out->ffn_channels = s->ffn_channels;
        out->num_kv_heads = s->num_kv_heads;
        if (out->kind == &gpt2_kind) { gpt2_usual(out); }
        return true;
    }
    return false;
}

// It may be a mistyped path.
static bool fail_unknown(const char* descriptor, const ModelKind* kind, const Family* family) {
    static const char weights[] = ".safetensors";
    const size_t num_chars = strlen(descriptor), num_end = sizeof weights - 1;
    struct stat about;
    if (stat(descriptor, &about) == 0 && S_ISDIR(about.st_mode)) {
        return llmc_fail("%.80s: a folder without config.json or a finished checkpoint ---> one that "
                         "transformers saved, with config.json and *.safetensors; or that of a run",
                         checkpoint_path_tail(descriptor));
    }
    if (strchr(descriptor, '/') != NULL ||
        (num_chars > num_end && strcmp(descriptor + num_chars - num_end, weights) == 0)) {
        return llmc_fail("%.80s: no such file or folder ---> check the path",
                         checkpoint_path_tail(descriptor));
    }
    const ModelKind* theirs = models_kind_of(descriptor);
    const char* text = descriptor;
    if (theirs != kind && theirs != &gpt2_kind && find_family(theirs, &text) != NULL) {
        return llmc_fail("model \"%.40s\" is no %s ---> train_%s takes it", descriptor, kind->title,
                         theirs->name);
    }
    if (family == NULL) {
        return llmc_fail("model \"%.40s\" is unknown ---> use %s", descriptor,
                         kind == &t5_kind ? "t5: t5v1.1: flan-t5: byt5: mt5: umt5: and a size, such as "
                                            "t5:small, or a shape, such as byt5:l2c64h4"
                                          : "llama: tinyllama: qwen2: and a size, such as "
                                            "qwen2:0.5b, or a shape, such as llama:l4c128h4");
    }
    if (family->kind == &gpt2_kind) {
        return llmc_fail(
            "model \"%.40s\" is unknown ---> use d6 d12 d24 d36 d48 d60 d72 d84, gpt3:c384 c768 c1024 c1536 "
            "c2048 "
            "c2560 c4096 c12288, layers-channels-heads such as l4c128h4, a checkpoint *.bin, or the folder "
            "of a "
            "run or of Hugging Face's files",
            descriptor);
    }
    char names[80] = "";
    for (const Size* s = family->sizes; s->name != NULL; s++) {
        snprintf(names + strlen(names), sizeof names - strlen(names), " %s:%s", family->name, s->name);
    }
    return llmc_fail("model \"%.40s\" is unknown ---> use%s, or a shape such as %s:l2c64h4 or %s:%s",
                     descriptor, names, family->name, family->name,
                     kind == &t5_kind ? "l2d3c64h4k16f256" : "l2c64h4g2k16f256");
}

bool model_parse(ModelConfig* out, const ModelKind* kind, const char* descriptor, int vocab,
                 int max_seq_len) {
    const char* text = descriptor;
    const Family* family = find_family(kind, &text);
    if (family == NULL) { return fail_unknown(descriptor, kind, NULL); }
    const bool is_t5 = kind == &t5_kind, is_llama = kind == &llama_kind;
    const bool is_qwen = strcmp(family->name, "qwen2") == 0;
    ModelConfig config = {
        .max_seq_len = max_seq_len != 0 ? max_seq_len : family->max_seq_len,
        .vocab = vocab != 0 ? vocab : family->vocab,
        .num_buckets = is_t5 ? 32 : 0,
        .max_distance = is_t5 ? 128 : 0,
        .gated = family->gated,
        .tied_head = family->tied_head,
        .bias_per_layer = family->bias_per_layer,
        .rope_theta = is_qwen    ? 1000000
                      : is_llama ? 10000
                                 : 0,
        .norm_eps = is_t5 || is_qwen ? 1000 : 10000,
        .qkv_bias = is_qwen,
        .kind = kind,
    };
    config.padded_vocab = config.vocab <= INT_MAX - 127 ? (config.vocab + 127) / 128 * 128 : config.vocab;
    const bool is_shape = *text == 'l' && isdigit((unsigned char)text[1]);
    if (!(is_shape ? parse_shape(&config, text) : parse_name(&config, family, text))) {
        return fail_unknown(descriptor, kind, family);
    }
    char what[64];
    snprintf(what, sizeof what, "model \"%.40s\"", descriptor);
    if (!model_check(&config, what)) { return false; }
    *out = config;
    return true;
}

void models_signature(char* out, size_t out_bytes, const ModelConfig* config) {
    if (config->kind == &gpt2_kind) {
        const int F = config->ffn_channels == 4 * config->channels ? 0 : config->ffn_channels;
        char width[24] = "";
        if (F > 0) { snprintf(width, sizeof width, " F %d", F); }
        snprintf(out, out_bytes, "gpt2 C %d NH %d%s%s", config->channels, config->num_heads, width,
                 config->exact_gelu ? " exact" : "");
    } else if (config->kind == &llama_kind) {
        snprintf(out, out_bytes, "llama C %d NH %d KV %d HS %d F %d", config->channels, config->num_heads,
                 config->num_kv_heads, config->head_size, config->ffn_channels);
    } else {
        snprintf(out, out_bytes, "t5 C %d NH %d HS %d F %d%s", config->channels, config->num_heads,
                 config->head_size, config->ffn_channels, config->gated ? " gated" : "");
    }
}

void model_describe(char* out, size_t out_chars, const ModelConfig* config) {
    if (config->kind == &gpt2_kind) {
        char width[40] = "";
        if (config->ffn_channels != 4 * config->channels) {
            snprintf(width, sizeof width, ", feed-forward of %d", config->ffn_channels);
        }
        snprintf(out, out_chars, "%d layers, %d channels, %d heads%s%s%s", config->num_layers,
                 config->channels, config->num_heads, width, config->exact_gelu ? ", exact GELU" : "",
                 config->tied_head ? "" : ", a head of its own");
    } else if (config->kind == &llama_kind) {
        snprintf(out, out_chars, "%d layers, %d channels, %d heads of %d on %d of keys, feed-forward of %d",
                 config->num_layers, config->channels, config->num_heads, config->head_size,
                 config->num_kv_heads, config->ffn_channels);
    } else {
        snprintf(out, out_chars, "%d + %d layers, %d channels, %d heads of %d, %sfeed-forward of %d",
                 config->num_layers, config->num_dec_layers, config->channels, config->num_heads,
                 config->head_size, config->gated ? "gated " : "", config->ffn_channels);
    }
}

// --- fields ------------------------------------------------------------------------------------------------

#define MODEL_REMEDY "give this checkpoint to -e, or leave -e out"
enum { GPT2 = 1, T5 = 2, LLAMA = 4, ALL = GPT2 | T5 | LLAMA };
// In the order of a header's ints, from [2] on; 0 in those of other kinds. The first six are llm.c's.
static const struct {
    const char *name, *remedy;
    size_t offset;
    int kinds, min, max;
} fields[] = {
    {"longest sequence", "start with the same -t", offsetof(ModelConfig, max_seq_len), ALL, 1, OPS_MAX_IDS},
    {"vocabulary", "use data made with this checkpoint's tokenizer", offsetof(ModelConfig, vocab), ALL, 1,
     OPS_MAX_IDS},
    {"layers", MODEL_REMEDY, offsetof(ModelConfig, num_layers), ALL, 1, 1 << 12},
    {"heads", MODEL_REMEDY, offsetof(ModelConfig, num_heads), ALL, 1, 1 << 12},
    {"channels", MODEL_REMEDY, offsetof(ModelConfig, channels), ALL, 1, 1 << 16},
    {"padded vocabulary", "use another checkpoint", offsetof(ModelConfig, padded_vocab), ALL, 1, OPS_MAX_IDS},
    {"decoder layers", MODEL_REMEDY, offsetof(ModelConfig, num_dec_layers), T5, 1, 1 << 12},
    {"head size", MODEL_REMEDY, offsetof(ModelConfig, head_size), T5 | LLAMA, 1, 256},
    {"feed-forward channels", MODEL_REMEDY, offsetof(ModelConfig, ffn_channels), ALL, 1, 1 << 18},
    {"relative position buckets", MODEL_REMEDY, offsetof(ModelConfig, num_buckets), T5, 4, T5_MAX_BUCKETS},
    {"largest relative distance", MODEL_REMEDY, offsetof(ModelConfig, max_distance), T5, 3, 1 << 24},
    {"gated feed-forward", MODEL_REMEDY, offsetof(ModelConfig, gated), T5 | LLAMA, 0, 1},
    {"tied head", MODEL_REMEDY, offsetof(ModelConfig, tied_head), ALL, 0, 1},
    {"bias table per layer", MODEL_REMEDY, offsetof(ModelConfig, bias_per_layer), T5, 0, 1},
    {"heads of keys", MODEL_REMEDY, offsetof(ModelConfig, num_kv_heads), LLAMA, 1, 1 << 12},
    {"rope_theta", MODEL_REMEDY, offsetof(ModelConfig, rope_theta), LLAMA, 1, 1 << 30},
    {"1e9 times the norms' eps", MODEL_REMEDY, offsetof(ModelConfig, norm_eps), ALL, 1, 1 << 27},
    {"bias of q, k and v", MODEL_REMEDY, offsetof(ModelConfig, qkv_bias), LLAMA, 0, 1},
    {"exact GELU", MODEL_REMEDY, offsetof(ModelConfig, exact_gelu), GPT2, 0, 1},
    {"1000 times rope's factor", MODEL_REMEDY, offsetof(ModelConfig, rope_factor), LLAMA, 0, 1 << 30},
    {"rope's original positions", MODEL_REMEDY, offsetof(ModelConfig, rope_original), LLAMA, 0, 1 << 30},
    {"1000 times low_freq_factor", MODEL_REMEDY, offsetof(ModelConfig, rope_low_freq), LLAMA, 0, 1 << 30},
    {"1000 times high_freq_factor", MODEL_REMEDY, offsetof(ModelConfig, rope_high_freq), LLAMA, 0, 1 << 30},
};
enum { HEADER_BEGIN = 2, LLMC_FIELDS = 6, NUM_FIELDS = sizeof fields / sizeof *fields };

static bool has_field(const ModelKind* kind, int i) {
    return fields[i].kinds & (kind == &gpt2_kind ? GPT2 : kind == &t5_kind ? T5 : LLAMA);
}
static int* field_of(ModelConfig* config, int i) {
    return (int*)(void*)((char*)config + fields[i].offset);
}
static int value_of(const ModelConfig* config, int i) {
    return *(const int*)(const void*)((const char*)config + fields[i].offset);
}

// Is it a GPT-2 whose other numbers are llm.c's?
static bool is_llmc(const ModelConfig* config) {
    return config->kind == &gpt2_kind && config->ffn_channels == 4 * (int64_t)config->channels &&
           config->norm_eps == GPT2_EPS && config->tied_head && !config->exact_gelu;
}

void model_to_header(int32_t* header, const ModelConfig* config) {
    const int num_fields = is_llmc(config) ? LLMC_FIELDS : NUM_FIELDS;
    header[0] = is_llmc(config) ? LLMC_MAGIC : config->kind->checkpoint_magic;
    for (int i = 0; i < num_fields; i++) {
        if (has_field(config->kind, i)) { header[HEADER_BEGIN + i] = value_of(config, i); }
    }
}

const ModelKind* model_header_kind(const int32_t* header) {
    static const ModelKind* const kinds[] = {&gpt2_kind, &t5_kind, &llama_kind};
    if (header[0] == LLMC_MAGIC) { return &gpt2_kind; }
    for (int i = 0; i < 3; i++) {
        if (header[0] == kinds[i]->checkpoint_magic) { return kinds[i]; }
    }
    return NULL;
}

void model_from_header(ModelConfig* out, const ModelKind* kind, const int32_t* header) {
    *out = (ModelConfig){.kind = kind};
    for (int i = 0; i < NUM_FIELDS; i++) {
        if (has_field(kind, i)) { *field_of(out, i) = header[HEADER_BEGIN + i]; }
    }
    if (header[0] == LLMC_MAGIC) { gpt2_usual(out); }
}

bool model_check(const ModelConfig* config, const char* what) {
    const bool shares_channels = config->head_size == 0 && config->num_heads > 0;
    if (shares_channels && config->channels % config->num_heads != 0) {
        return llmc_fail(
            "%s: %d channels cannot be shared by %d heads ---> make channels a multiple of heads%s", what,
            config->channels, config->num_heads,
            config->kind != &gpt2_kind ? ", or name the head size, such as l2c64h4k16" : "");
    }
    for (int i = 0; i < NUM_FIELDS; i++) {
        const int value = value_of(config, i);
        if (!has_field(config->kind, i) || (value >= fields[i].min && value <= fields[i].max)) { continue; }
        return llmc_fail("%s: %s %d ---> must be %d to %d", what, fields[i].name, value, fields[i].min,
                         fields[i].max);
    }
    if (config->num_buckets % 2 != 0) {
        return llmc_fail("%s: %d position buckets ---> must be even, half for each direction", what,
                         config->num_buckets);
    }
    if (config->kind->has_decoder && config->max_distance <= config->num_buckets / 2) {
        return llmc_fail("%s: largest relative distance %d ---> must be more than half the buckets", what,
                         config->max_distance);
    }
    if (config->kind->rotary && (config->head_size % 2 != 0 || !config->gated)) {
        return llmc_fail("%s: head size %d, feed-forward %sgated ---> must be even, and gated", what,
                         config->head_size, config->gated ? "" : "not ");
    }
    if (config->kind->rotary && config->num_heads % config->num_kv_heads != 0) {
        return llmc_fail("%s: %d heads of queries, %d of keys ---> make the first a multiple of the second",
                         what, config->num_heads, config->num_kv_heads);
    }
    if (config->rope_original > 0 && config->rope_low_freq >= config->rope_high_freq) {
        return llmc_fail("%s: low_freq_factor %g, high_freq_factor %g ---> must be in this order", what,
                         config->rope_low_freq / 1e3, config->rope_high_freq / 1e3);
    }
    return config->padded_vocab >= config->vocab ||
           llmc_fail("%s: padded vocabulary %d is less than the vocabulary %d ---> use another file", what,
                     config->padded_vocab, config->vocab);
}

bool model_config_equal(const ModelConfig* theirs, const ModelConfig* ours, ModelDifference* difference) {
    // positions are parameters of GPT-2; others have no such limit
    for (int i = ours->kind->positions == 0; i < NUM_FIELDS; i++) {
        if (!has_field(ours->kind, i) || value_of(theirs, i) == value_of(ours, i)) { continue; }
        *difference =
            (ModelDifference){fields[i].name, fields[i].remedy, value_of(theirs, i), value_of(ours, i)};
        return false;
    }
    return true;
}

// --- counts ------------------------------------------------------------------------------------------------

int model_num_blocks(const ModelConfig* config) {
    return model_stack_blocks(config, 0) + model_stack_blocks(config, 1);
}

int64_t model_tensor_values(const ModelConfig* config, int tensor) {
    const TensorInfo info = config->kind->tensor(config, tensor);
    return info.rows * info.cols;
}

int model_num_copies(const ModelConfig* config, const TensorInfo* info) {
    return info->rows == 0                       ? 0
           : info->place == TENSOR_PER_LAYER     ? config->num_layers
           : info->place == TENSOR_PER_DEC_LAYER ? config->num_dec_layers
                                                 : 1;
}

// Of tensors before `tensor`, all layers'.
static int num_before(const ModelConfig* config, int tensor, int64_t* num_values) {
    int num = 0;
    *num_values = 0;
    for (int t = 0; t < tensor; t++) {
        const TensorInfo info = config->kind->tensor(config, t);
        const int copies = model_num_copies(config, &info);
        num += copies;
        *num_values += copies * info.rows * info.cols;
    }
    return num;
}

int64_t model_num_params(const ModelConfig* config) {
    int64_t num_params;
    num_before(config, config->kind->num_tensors, &num_params);
    return num_params;
}

int model_num_tensors(const ModelConfig* config) {
    int64_t num_values;
    return num_before(config, config->kind->num_tensors, &num_values);
}

int model_tensor_number(const ModelConfig* config, const TensorSlice* slice) {
    int64_t num_values;
    return num_before(config, slice->tensor, &num_values) + (slice->layer > 0 ? slice->layer : 0);
}

double model_flops(const ModelConfig* config, const ModelWork* work) {
    const double C = config->channels, I = (double)config->num_heads * model_head_size(config);
    const double W = model_qkv_width(config);
    const double ffn = (config->gated ? 3 : 2) * C * config->ffn_channels;  // weights
    const double pairs = config->kind->stacks[0].is_causal ? 2 : 4;
    const double layer = 2 * (C * (W + I) + ffn) * (double)work->tokens + pairs * I * (double)work->squares;
    const double dec_layer = 2 * (6 * C * I + ffn) * (double)work->dec_tokens +
                             4 * C * I * (double)work->tokens +  // keys and values of the encoder's output
                             2 * I * (double)work->dec_squares + 4 * I * (double)work->cross_products;
    const double head = 2 * C * config->vocab * (double)work->rows;
    const int64_t last_tokens = config->kind->has_decoder ? work->dec_tokens : work->tokens;
    const double left_out = 2 * ffn * (double)(last_tokens - work->rows);  // of the last feed-forward
    return 3 * (config->num_layers * layer + config->num_dec_layers * dec_layer + head - left_out);
}
