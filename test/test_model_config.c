// Descriptors of all kinds: llm.c's and Hugging Face's sizes, free shapes, and the remedy for everything
// else; T5's header and initial values.
#include "../llmc/kinds.h"
#include "../llmc/llmc_error.h"

#include <math.h>

#include "test.h"

static OpsContext* ops;

static ModelConfig parse(const ModelKind* kind, const char* descriptor, int vocab) {
    ModelConfig config = {0};
    const bool ok = model_parse(&config, kind, descriptor, vocab, 0);
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
        ModelConfig config = parse(&gpt2_kind, models[i].descriptor, 0);
        CHECK_EQ(model_num_params(&config), models[i].num_params);
        CHECK_EQ(config.num_layers, models[i].num_layers);
        CHECK_EQ(config.channels, models[i].channels);
        CHECK_EQ(config.num_heads, models[i].num_heads);
        CHECK_EQ(config.vocab, 50257);
        CHECK_EQ(config.padded_vocab, 50304);
        CHECK_EQ(config.max_seq_len, strncmp(models[i].descriptor, "gpt3", 4) == 0 ? 2048 : 1024);
    }
}

// Parameter counts of Hugging Face's classes with these shapes (transformers 5.23); rows of padding are ours.
static void sizes_are_hugging_faces(void) {
    static const struct {
        const char* descriptor;
        int64_t num_params;
        int num_layers, num_dec_layers, channels, vocab;
    } models[] = {
        {"t5:small", 60506624, 6, 6, 512, 32128},          {"t5:base", 222903552, 12, 12, 768, 32128},
        {"t5:large", 737668096, 24, 24, 1024, 32128},      {"t5:3b", 2851598336, 24, 24, 1024, 32128},
        {"t5:11b", 11307321344, 24, 24, 1024, 32128},      {"t5v1.1:small", 76961152, 8, 8, 512, 32128},
        {"flan-t5:small", 76961152, 8, 8, 512, 32128},     {"flan-t5:base", 247577856, 12, 12, 768, 32128},
        {"flan-t5:large", 783150080, 24, 24, 1024, 32128}, {"flan-t5:xl", 2849757184, 24, 24, 2048, 32128},
        {"flan-t5:xxl", 11135332352, 24, 24, 4096, 32128}, {"byt5:small", 299637760, 12, 4, 1472, 384},
        {"byt5:base", 581653248, 18, 6, 1536, 384},        {"byt5:large", 1228183552, 36, 12, 1536, 384},
        {"byt5:xl", 3737801728, 36, 12, 2560, 384},        {"byt5:xxl", 12906899328, 36, 12, 4672, 384},
        {"mt5:small", 300176768, 8, 8, 512, 250112},       {"mt5:xxl", 12921057280, 24, 24, 4096, 250112},
        {"umt5:small", 175333376, 8, 8, 512, 256384},      {"umt5:base", 395140608, 12, 12, 768, 256384},
        {"umt5:xl", 3243282432, 24, 24, 2048, 256384},     {"umt5:xxl", 11922382848, 24, 24, 4096, 256384},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        ModelConfig config = parse(&t5_kind, models[i].descriptor, 0);
        CHECK_EQ(config.vocab, models[i].vocab);
        CHECK_EQ(config.padded_vocab % 128, 0);
        CHECK_EQ(config.num_layers, models[i].num_layers);
        CHECK_EQ(config.num_dec_layers, models[i].num_dec_layers);
        CHECK_EQ(config.channels, models[i].channels);
        CHECK_EQ(config.max_seq_len, 1024);
        int64_t padding = (int64_t)(config.padded_vocab - config.vocab) * config.channels;
        CHECK_EQ(model_num_params(&config) - padding * (config.tied_head ? 1 : 2), models[i].num_params);
    }
}

// Parameter counts of the released checkpoints.
static void llamas_are_those_released(void) {
    static const struct {
        const char* descriptor;
        int64_t num_params;
        int max_seq_len, num_kv_heads, rope_theta, norm_eps, qkv_bias;
    } models[] = {{"llama:7b", 6738415616, 4096, 32, 10000, 10000, 0},
                  {"llama:13b", 13015864320, 4096, 40, 10000, 10000, 0},
                  {"tinyllama:1.1b", 1100048384, 2048, 4, 10000, 10000, 0},
                  {"qwen2:0.5b", 494032768, 32768, 2, 1000000, 1000, 1},
                  {"qwen2:1.5b", 1543714304, 32768, 2, 1000000, 1000, 1}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        CHECK(models_kind_of(models[i].descriptor) == &llama_kind);
        const ModelConfig c = parse(&llama_kind, models[i].descriptor, 0);
        const int64_t padding = (int64_t)(c.padded_vocab - c.vocab) * c.channels;
        CHECK_EQ(model_num_params(&c) - padding * (c.tied_head ? 1 : 2), models[i].num_params);
        CHECK_EQ(c.max_seq_len, models[i].max_seq_len);
        CHECK(c.num_kv_heads == models[i].num_kv_heads && c.rope_theta == models[i].rope_theta);
        CHECK(c.norm_eps == models[i].norm_eps && c.qkv_bias == models[i].qkv_bias && c.gated);
    }
    const ModelConfig c = parse(&llama_kind, "llama:l4c128h4g2k24f100", 0);
    CHECK(c.num_kv_heads == 2 && c.head_size == 24 && c.ffn_channels == 100 && model_qkv_width(&c) == 192);
    const ModelConfig plain = parse(&llama_kind, "llama:l4c64h4", 0);
    CHECK(plain.num_kv_heads == 4 && plain.head_size == 16 && plain.ffn_channels == 176);
}

static void free_shapes_are_what_they_name(void) {
    static const struct {
        const ModelKind* kind;
        const char* descriptor;
        int vocab, max_seq_len, padded_vocab, layers, dec_layers, channels, heads, head_size, ffn, seq_len;
    } shapes[] = {
        {&gpt2_kind, "l4c128h4", 257, 4096, 384, 4, 0, 128, 4, 0, 512, 4096},
        {&gpt2_kind, "d12", 256, 77, 256, 12, 0, 768, 12, 0, 3072, 77},
        {&t5_kind, "t5:l2d3c64h4k24f100", 257, 0, 384, 2, 3, 64, 4, 24, 100, 1024},
        {&t5_kind, "mt5:l5c30h4k8", 257, 0, 384, 5, 5, 30, 4, 8, 80, 1024},  // 75, rounded up to 8
        {&t5_kind, "flan-t5:l1c8h1f9", 100, 77, 128, 1, 1, 8, 1, 8, 9, 77},
    };
    for (int i = 0; i < 5; i++) {
        ModelConfig c;
        CHECK(model_parse(&c, shapes[i].kind, shapes[i].descriptor, shapes[i].vocab, shapes[i].max_seq_len));
        CHECK(c.vocab == shapes[i].vocab && c.padded_vocab == shapes[i].padded_vocab);
        CHECK(c.num_layers == shapes[i].layers && c.num_dec_layers == shapes[i].dec_layers);
        CHECK(c.channels == shapes[i].channels && c.num_heads == shapes[i].heads &&
              c.max_seq_len == shapes[i].seq_len);
        CHECK(c.head_size == shapes[i].head_size && c.ffn_channels == shapes[i].ffn);
    }
}

static void families_differ(void) {
    const ModelConfig t5 = parse(&t5_kind, "t5:l2c64h4", 0), byt5 = parse(&t5_kind, "byt5:l2c64h4", 0),
                      umt5 = parse(&t5_kind, "umt5:l2c64h4", 0);
    CHECK(!t5.gated && t5.tied_head && !t5.bias_per_layer && t5.ffn_channels == 256);
    CHECK(byt5.gated && !byt5.tied_head && !byt5.bias_per_layer && byt5.ffn_channels == 160 &&
          byt5.vocab == 384);
    CHECK(umt5.gated && umt5.tied_head && umt5.bias_per_layer);
    CHECK(byt5.num_buckets == 32 && byt5.max_distance == 128);
}

static void fails_with(const ModelKind* kind, const char* descriptor, int vocab, int max_seq_len,
                       const char* words) {
    ModelConfig config = {.num_layers = -5};
    const bool ok = model_parse(&config, kind, descriptor, vocab, max_seq_len);
    if (ok || strstr(status_message(), words) == NULL) {
        printf("\"%s\": %s\n", descriptor, ok ? "taken" : status_message());
        CHECK(false);
    }
    CHECK_EQ(config.num_layers, -5);
}

static void the_rest_is_refused_with_a_remedy(void) {
    static const struct {
        const ModelKind* kind;
        const char *words, *descriptors[32];
    } families[] = {
        {&gpt2_kind,
         "---> use d6 d12",
         {"",           "d",        "d13",      "d12x",          "12",
          "gpt3:c5140", "gpt3:d12", "c768",     "gpt2:",         "gpt4:d12",
          "D12",        "d-12",     "d 12",     "model.bin.txt", "d99999999999999999999",
          "l4",         "l4c128",   "l4c128h",  "l0c128h4",      "l4c-1h4",
          "l4c128h4 ",  "lc128h4",  "l4h4c128", "l4c128h4x",     "l99999999999c8h1"}},
        {&t5_kind,
         "---> use t5: t5v1.1: flan-t5: byt5: mt5: umt5:",
         {"", "t5", "small", "d12", "gpt2:d12", "T5:small", "t5-small", "x5:small", "t5 :base"}},
        {&t5_kind,
         "---> use byt5:small byt5:base byt5:large byt5:xl byt5:xxl, or a shape",
         {"byt5:", "byt5:xs", "byt5:small ", "byt5:l2", "byt5:l2c64", "byt5:l2c64h", "byt5:l0c64h4",
          "byt5:l2c64h4f", "byt5:l2c64h4k", "byt5:l2c64h4f9k8", "byt5:l2h4c64", "byt5:l-1c8h1",
          "byt5:l2dc64h4", "byt5:l99999999999c8h1"}},
        {&llama_kind, "---> use llama: tinyllama: qwen2:", {"", "llama", "l4c128h4", "llama2:7b", "d12"}},
        {&llama_kind,
         "---> use qwen2:0.5b qwen2:1.5b, or a shape",
         {"qwen2:", "qwen2:7b", "qwen2:l2c64h4k16g2", "qwen2:l2d2c64h4", "qwen2:l2c64h4g"}}};
    for (int i = 0; i < 5; i++) {
        for (int k = 0; families[i].descriptors[k] != NULL; k++) {
            fails_with(families[i].kind, families[i].descriptors[k], 0, 0, families[i].words);
        }
    }
    fails_with(&gpt2_kind, "qwen2:0.5b", 0, 0, "is no GPT-2 ---> train_llama takes it");
    fails_with(&t5_kind, "llama:l4c128h4", 0, 0, "is no T5 ---> train_llama takes it");
    fails_with(&llama_kind, "flan-t5:base", 0, 0, "is no Llama ---> train_t5 takes it");
    fails_with(&gpt2_kind, "my-t5", 0, 0, "---> use d6 d12");  // a mistyped path
    fails_with(&gpt2_kind, "l4c130h4", 0, 0, "130 channels cannot be shared by 4 heads ---> ");
    fails_with(&gpt2_kind, "l5000c8h1", 0, 0, "layers 5000 ---> must be 1 to 4096");
    fails_with(&gpt2_kind, "l1c100000h1", 0, 0, "channels 100000 ---> must be");
    fails_with(&gpt2_kind, "d12", -1, 0, "vocabulary -1 ---> must be");
    fails_with(&gpt2_kind, "d12", 0, -7, "longest sequence -7 ---> must be");
    fails_with(&gpt2_kind, "d12", (1 << 24) + 1, 0, "vocabulary 16777217 ---> must be 1 to 16777216");
    fails_with(&gpt2_kind, "d12", 2147483647, 0, "vocabulary 2147483647 ---> must be");
    fails_with(&t5_kind, "t5:xl", 0, 0, "---> use t5:small t5:base t5:large t5:3b t5:11b,");
    fails_with(&t5_kind, "umt5:large", 0, 0, "---> use umt5:small umt5:base umt5:xl umt5:xxl,");
    fails_with(&t5_kind, "t5:l2c66h4", 0, 0, "66 channels cannot be shared by 4 heads ---> ");
    fails_with(&t5_kind, "t5:l5000c8h1", 0, 0, "layers 5000 ---> must be 1 to 4096");
    fails_with(&t5_kind, "t5:l1d5000c8h1", 0, 0, "decoder layers 5000 ---> must be 1 to 4096");
    fails_with(&t5_kind, "t5:l1c100000h1k8", 0, 0, "channels 100000 ---> must be");
    fails_with(&t5_kind, "t5:small", (1 << 24) + 1, 0, "vocabulary 16777217 ---> must be 1 to 16777216");
    fails_with(&t5_kind, "t5:l1c512h1", 0, 0, "head size 512 ---> must be 1 to 256");
    fails_with(&t5_kind, "t5:l1c8h1f999999", 0, 0, "feed-forward channels 999999 ---> must be");
    fails_with(&t5_kind, "t5:small", -1, 0, "vocabulary -1 ---> must be");
    fails_with(&t5_kind, "t5:small", 0, -7, "longest sequence -7 ---> must be");
    fails_with(&t5_kind, "t5:small", 2147483647, 0, "vocabulary 2147483647 ---> must be");
    fails_with(&llama_kind, "llama:l1c64h4g3", 0, 0, "4 heads of queries, 3 of keys ---> ");
    fails_with(&llama_kind, "llama:l1c60h4k15", 0, 0, "head size 15, feed-forward gated ---> must be even");
    fails_with(&llama_kind, "llama:l1c1024h2", 0, 0, "head size 512 ---> must be 1 to 256");
    ModelConfig config = parse(&t5_kind, "t5:small", 0);
    config.num_buckets = 31;
    CHECK(!model_check(&config, "file") &&
          strstr(status_message(), "file: 31 position buckets ---> must be even"));
    config.num_buckets = 32, config.max_distance = 16;
    CHECK(!model_check(&config, "file") && strstr(status_message(), "distance 16 ---> must be more"));
    config.max_distance = 17, config.rope_original = 8, config.rope_low_freq = config.rope_high_freq = 4000;
    CHECK(!model_check(&config, "file") &&
          strstr(status_message(), "low_freq_factor 4, high_freq_factor 4 ---> must be in this order"));
    config.rope_original = 0, config.padded_vocab = 100;
    CHECK(!model_check(&config, "file") && strstr(status_message(), "padded vocabulary 100 is less"));
}

static void headers_carry_all_of_it(void) {
    const char* descriptors[] = {"t5:l2d3c64h4k24f100", "byt5:small", "umt5:l1c8h1", "llama:l1c8h2g1",
                                 "qwen2:l1c8h2"};
    for (int i = 0; i < 5; i++) {
        const ModelKind* kind = models_kind_of(descriptors[i]);
        ModelConfig config = parse(kind, descriptors[i], 250);
        if (i == 3) { memcpy(&config.rope_factor, (int[]){8000, 8192, 1000, 4000}, 4 * sizeof(int)); }
        int32_t header[256] = {0};
        ModelConfig back = {0};
        model_to_header(header, &config);
        model_from_header(&back, kind, header);
        ModelDifference difference;
        CHECK(model_config_equal(&back, &config, &difference));
        CHECK_EQ(back.max_seq_len, config.max_seq_len);
        static const int places[5][5] = {{12}, {12}, {12}, {17, 21, 22, 23, 24}, {17}};
        for (int k = 0; k < 5 && places[i][k] != 0; k++) {
            header[places[i][k]] ^= 1;
            model_from_header(&back, kind, header);
            CHECK(!model_config_equal(&back, &config, &difference));
            header[places[i][k]] ^= 1;
        }
    }
    // llm.c's models as llm.c has them; others must not look like them
    for (int i = 0; i < 5; i++) {
        ModelConfig config = parse(&gpt2_kind, "l2c8h2", 50), back;
        ModelDifference difference;
        int* const numbers[] = {&config.ffn_channels, &config.norm_eps, &config.exact_gelu,
                                &config.tied_head};
        if (i > 0) { *numbers[i - 1] ^= 1; }
        int32_t header[256] = {0}, num_more = 0;
        model_to_header(header, &config);
        for (int k = 8; k < 256; k++) { num_more += header[k] != 0; }
        CHECK(i == 0 ? header[0] == 20240326 && num_more == 0 : header[0] != 20240326);
        CHECK(model_header_kind(header) == &gpt2_kind);
        model_from_header(&back, &gpt2_kind, header);
        CHECK(model_config_equal(&back, &config, &difference) && back.tied_head == config.tied_head);
    }
    char text[100];
    const ModelConfig config = parse(&t5_kind, "byt5:l2d3c64h4", 0);
    model_describe(text, sizeof text, &config);
    CHECK(strcmp(text, "2 + 3 layers, 64 channels, 4 heads of 16, gated feed-forward of 160") == 0);
}

// --- initial values ---------------------------------------------------------------------------------------

static double std_of(const Model* model, T5Tensor tensor, int layer, int64_t begin_row, int64_t num_rows) {
    const int64_t cols = t5_kind.tensor(&model->config, tensor).cols;
    const float* values = model_tensor(model, tensor, layer) + begin_row * cols;
    double squares = 0.0;
    for (int64_t i = 0; i < num_rows * cols; i++) { squares += (double)values[i] * (double)values[i]; }
    return sqrt(squares / (double)(num_rows * cols));
}

static void initial_values_are_hugging_faces(void) {
    const ModelConfig config = parse(&t5_kind, "flan-t5:l2d1c96h4k32f80", 500);
    Model model;
    model_init(&model, &config, 0, model_num_blocks(&config), true, ops);
    model_init_random(&model, 42);
    const int64_t C = 96, HS = 32, I = 128, F = 80;
    const struct {
        T5Tensor tensor;
        int64_t begin_row, num_rows;
        double std;
    } parts[] = {
        {T5_shared, 0, 500, 1.0},
        {T5_head, 0, 500, 1.0},
        {T5_enc_qkv, 0, I, 1.0 / sqrt((double)(C * HS))},
        {T5_enc_qkv, I, I, 1.0 / sqrt((double)C)},
        {T5_enc_qkv, 2 * I, I, 1.0 / sqrt((double)C)},
        {T5_enc_o, 0, C, 1.0 / sqrt((double)I)},
        {T5_enc_wi, 0, F, 1.0 / sqrt((double)C)},
        {T5_enc_wi, F, F, 1.0 / sqrt((double)C)},
        {T5_enc_wo, 0, C, 1.0 / sqrt((double)F)},
        {T5_enc_bias, 0, 32, 1.0 / sqrt((double)C)},
        {T5_dec_qkv, 0, I, 1.0 / sqrt((double)(C * HS))},
        {T5_dec_xq, 0, I, 1.0 / sqrt((double)(C * HS))},
        {T5_dec_xkv, 0, I, 1.0 / sqrt((double)C)},
        {T5_dec_xkv, I, I, 1.0 / sqrt((double)C)},
        {T5_dec_xo, 0, C, 1.0 / sqrt((double)I)},
        {T5_dec_wo, 0, C, 1.0 / sqrt((double)F)},
        {T5_dec_bias, 0, 32, 1.0 / sqrt((double)C)},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        double std = std_of(&model, parts[i].tensor, 0, parts[i].begin_row, parts[i].num_rows);
        double values = (double)(parts[i].num_rows * t5_kind.tensor(&config, parts[i].tensor).cols);
        CHECK_NEAR(std / parts[i].std, 1.0, 4.0 / sqrt(2.0 * values));  // four deviations of a deviation
    }
    CHECK(std_of(&model, T5_shared, 0, 500, 12) == 0.0 && std_of(&model, T5_head, 0, 500, 12) == 0.0);
    const T5Tensor norms[] = {T5_enc_norm1, T5_enc_norm2, T5_enc_norm, T5_dec_norm1,
                              T5_dec_norm2, T5_dec_norm3, T5_dec_norm};
    for (int i = 0; i < 7; i++) {
        for (int64_t c = 0; c < C; c++) { CHECK(model_tensor(&model, norms[i], 0)[c] == 1.0f); }
    }
    model_free(&model);
}

int main(void) {
    ops = ops_create(0);
    RUN(tables_are_llmcs);
    RUN(sizes_are_hugging_faces);
    RUN(llamas_are_those_released);
    RUN(free_shapes_are_what_they_name);
    RUN(families_differ);
    RUN(the_rest_is_refused_with_a_remedy);
    RUN(headers_carry_all_of_it);
    RUN(initial_values_are_hugging_faces);
    ops_free(ops);
    return test_end();
}
