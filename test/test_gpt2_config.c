// Descriptors: llm.c's tables, free shapes, and what is said about everything else.
#include "../llmc/llmc_error.h"
#include "../llmc/gpt2.h"

#include "test.h"

static ModelConfig parse(const char* descriptor) {
    ModelConfig config = {0};
    bool ok = model_parse(&config, &gpt2_kind, descriptor, 0, 0);
    if (!ok) { printf("%s\n", status_message()); }
    CHECK(ok);
    return config;
}

// Parameter counts of llm.c's models, padded vocabulary included.
static void tables_are_llmcs(void) {
    static const struct {
        const char* descriptor;
        int64_t num_params;
        int num_layers, channels, num_heads;
    } models[] = {
        {"d6", 30357504, 6, 384, 6},
        {"d12", 124475904, 12, 768, 12},
        {"gpt2:d24", 354871296, 24, 1024, 16},
        {"d36", 774090240, 36, 1280, 20},
        {"d48", 1557686400, 48, 1600, 25},
        {"d60", 2754259200, 60, 1920, 30},
        {"d72", 7316887680, 72, 2880, 30},
        {"d84", 12220657920, 84, 3456, 36},
        {"gpt3:c384", 30750720, 6, 384, 6},
        {"gpt3:c768", 125262336, 12, 768, 12},
        {"gpt3:c1024", 355919872, 24, 1024, 16},
        {"gpt3:c1536", 760372224, 24, 1536, 16},
        {"gpt3:c2048", 1315819520, 24, 2048, 16},
        {"gpt3:c2560", 2651673600, 32, 2560, 32},
        {"gpt3:c4096", 6658596864, 32, 4096, 32},
        {"gpt3:c12288", 174604836864, 96, 12288, 96},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        ModelConfig config = parse(models[i].descriptor);
        CHECK_EQ(model_num_params(&config), models[i].num_params);
        CHECK_EQ(config.num_layers, models[i].num_layers);
        CHECK_EQ(config.channels, models[i].channels);
        CHECK_EQ(config.num_heads, models[i].num_heads);
        CHECK_EQ(config.vocab, 50257);
        CHECK_EQ(config.padded_vocab, 50304);
        CHECK_EQ(config.max_seq_len, strncmp(models[i].descriptor, "gpt3", 4) == 0 ? 2048 : 1024);
    }
}

static void free_shapes_take_the_callers_vocabulary(void) {
    ModelConfig config;
    CHECK(model_parse(&config, &gpt2_kind, "l4c128h4", 257, 4096));
    CHECK_EQ(config.num_layers, 4);
    CHECK_EQ(config.channels, 128);
    CHECK_EQ(config.num_heads, 4);
    CHECK_EQ(config.vocab, 257);
    CHECK_EQ(config.padded_vocab, 384);
    CHECK_EQ(config.max_seq_len, 4096);
    CHECK(model_parse(&config, &gpt2_kind, "d12", 256, 77));
    CHECK_EQ(config.padded_vocab, 256);
}

static void fails_with(const char* descriptor, int vocab, int max_seq_len, const char* words) {
    ModelConfig config = {.num_layers = -5};
    bool ok = model_parse(&config, &gpt2_kind, descriptor, vocab, max_seq_len);
    if (ok || strstr(status_message(), words) == NULL) {
        printf("\"%s\": %s\n", descriptor, ok ? "taken" : status_message());
        CHECK(false);
    }
    CHECK_EQ(config.num_layers, -5);
}

static void the_rest_is_refused_with_a_remedy(void) {
    static const char* unknown[] = {
        "",           "d",        "d13",  "d12x",          "12",
        "gpt3:c5140", "gpt3:d12", "c768", "gpt2:",         "gpt4:d12",
        "D12",        "d-12",     "d 12", "model.bin.txt", "d99999999999999999999"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        fails_with(unknown[i], 0, 0, "---> use d6 d12");
    }
    static const char* malformed[] = {"l4",        "l4c128",  "l4c128h",  "l0c128h4",  "l4c-1h4",
                                      "l4c128h4 ", "lc128h4", "l4h4c128", "l4c128h4x", "l99999999999c8h1"};
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
        fails_with(malformed[i], 0, 0, "---> write e.g. l4c128h4");
    }
    fails_with("l4c130h4", 0, 0, "130 channels cannot be shared by 4 heads ---> ");
    fails_with("l5000c8h1", 0, 0, "layers 5000 ---> must be 1 to 4096");
    fails_with("l1c100000h1", 0, 0, "channels 100000 ---> must be");
    fails_with("d12", -1, 0, "the vocabulary -1 ---> must be");
    fails_with("d12", 0, -7, "the longest sequence -7 ---> must be");
    fails_with("d12", (1 << 24) + 1, 0, "the vocabulary 16777217 ---> must be 1 to 16777216");
    fails_with("d12", 2147483647, 0, "the vocabulary 2147483647 ---> must be");
}

int main(void) {
    RUN(tables_are_llmcs);
    RUN(free_shapes_take_the_callers_vocabulary);
    RUN(the_rest_is_refused_with_a_remedy);
    return test_end();
}
