// Descriptors are the families' published sizes (their config.json), and "l2c64h4" for any other shape.
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llmc_error.h"
#include "t5.h"
#include "t5_bucket.h"

typedef struct {
    const char* name;
    int num_layers, num_dec_layers, channels, num_heads, head_size, ffn_channels;
} T5Size;

typedef struct {
    const char* name;
    int vocab;
    bool gated, tied_head, bias_per_layer;
    const T5Size* sizes;  // to the one without a name
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
enum { NUM_FAMILIES = sizeof families / sizeof *families, DEFAULT_SEQ_LEN = 1024, MAX_HEAD_SIZE = 256 };

// Of the descriptor up to its colon; *text moves behind it.
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

// A letter and its count, digits only, 1 to 2^30; *text moves behind them.
static bool parse_letter_and_count(const char** text, char letter, int* out) {
    if (**text != letter || !isdigit((unsigned char)(*text)[1])) { return false; }
    char* end;
    long value = strtol(*text + 1, &end, 10);
    if (value < 1 || value > 1 << 30) { return false; }
    *text = end;
    *out = (int)value;
    return true;
}

// Letters in this order; k and f may be absent, d too.
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

bool t5_config_parse(ModelConfig* out, const char* descriptor, int vocab, int max_seq_len) {
    const char* text = descriptor;
    const T5Family* family = find_family(&text);
    if (family == NULL) { return fail_unknown(descriptor, NULL); }
    ModelConfig config = {
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
    if (!t5_config_check(&config, what)) { return false; }
    *out = config;
    return true;
}

bool t5_config_check(const ModelConfig* config, const char* what) {
    const struct {
        const char* name;
        int value, min, max;
    } fields[] = {
        {"the longest sequence", config->max_seq_len, 1, OPS_MAX_IDS},
        {"the vocabulary", config->vocab, 2, OPS_MAX_IDS},  // pad and end
        {"encoder layers", config->num_layers, 1, 1 << 12},
        {"decoder layers", config->num_dec_layers, 1, 1 << 12},
        {"heads", config->num_heads, 1, 1 << 12},
        {"channels", config->channels, 1, 1 << 16},
        {"the head size", config->head_size, 1, MAX_HEAD_SIZE},
        {"feed-forward channels", config->ffn_channels, 1, 1 << 18},
        {"position buckets", config->num_buckets, 4, T5_MAX_BUCKETS},
        {"the buckets' distance", config->max_distance, config->num_buckets / 2 + 1, 1 << 24},
        {"the padded vocabulary", config->padded_vocab, 1, OPS_MAX_IDS},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (fields[i].value < fields[i].min || fields[i].value > fields[i].max) {
            return llmc_fail("%s: %s %d ---> must be %d to %d", what, fields[i].name, fields[i].value,
                             fields[i].min, fields[i].max);
        }
    }
    if (config->num_buckets % 2 != 0) {
        return llmc_fail("%s: position buckets %d ---> must be even, half for each direction", what,
                         config->num_buckets);
    }
    if (config->padded_vocab < config->vocab) {
        return llmc_fail("%s: padded vocabulary %d is less than the vocabulary %d ---> use another file",
                         what, config->padded_vocab, config->vocab);
    }
    return true;
}

double t5_flops(const ModelConfig* config, const ModelWork* work) {
    const double C = config->channels, I = (double)config->num_heads * config->head_size, V = config->vocab;
    const double ffn = (config->gated ? 3 : 2) * C * config->ffn_channels;  // weights
    const double enc_layer = 2 * (4 * C * I + ffn) * (double)work->tokens + 4 * I * (double)work->squares;
    const double dec_layer = 2 * (6 * C * I + ffn) * (double)work->dec_tokens +
                             4 * C * I * (double)work->tokens +  // keys and values of the encoder's output
                             2 * I * (double)work->dec_squares + 4 * I * (double)work->cross_products;
    const double head = 2 * C * V * (double)work->rows;
    return 3 * (config->num_layers * enc_layer + config->num_dec_layers * dec_layer + head);
}
