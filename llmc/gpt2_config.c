// Descriptors are llm.c's tables (facts: its gpt_build_from_descriptor), and "l4c128h4" for any other shape.
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpt2.h"
#include "llmc_error.h"

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

// Digits only, 1 <= value <= 2^30; *text moves behind them.
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

bool gpt2_config_parse(ModelConfig* out, const char* descriptor, int vocab, int max_seq_len) {
    ModelConfig config = {.vocab = vocab, .max_seq_len = max_seq_len};
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
    if (!gpt2_config_check(&config, what)) { return false; }
    *out = config;
    return true;
}

bool gpt2_config_check(const ModelConfig* config, const char* what) {
    const struct {
        const char* name;
        int value, max;
    } fields[] = {
        {"the longest sequence", config->max_seq_len, OPS_MAX_IDS},
        {"the vocabulary", config->vocab, OPS_MAX_IDS},
        {"layers", config->num_layers, 1 << 12},
        {"heads", config->num_heads, 1 << 12},
        {"channels", config->channels, 1 << 16},
        {"the padded vocabulary", config->padded_vocab, OPS_MAX_IDS},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (fields[i].value < 1 || fields[i].value > fields[i].max) {
            return llmc_fail("%s: %s %d ---> must be 1 to %d", what, fields[i].name, fields[i].value,
                             fields[i].max);
        }
    }
    if (config->padded_vocab < config->vocab) {
        return llmc_fail("%s: padded vocabulary %d is less than the vocabulary %d ---> use another file",
                         what, config->padded_vocab, config->vocab);
    }
    if (config->channels % config->num_heads != 0) {
        return llmc_fail(
            "%s: %d channels cannot be shared by %d heads ---> make channels a multiple of heads", what,
            config->channels, config->num_heads);
    }
    return true;
}

double gpt2_flops(const ModelConfig* config, const ModelWork* work) {
    const double L = config->num_layers, C = config->channels, V = config->vocab;
    const double layers = L * (24 * C * C * (double)work->tokens + 2 * C * (double)work->squares);
    return 3 * (layers + 2 * C * V * (double)work->rows);
}
