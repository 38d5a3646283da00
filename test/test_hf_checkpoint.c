// Hugging Face checkpoints compute what transformers computes of them, whole and in slices; broken ones are
// told by tensor or field.
#include "../llmc/hf.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../llmc/model.h"
#include "../llmc/kinds.h"
#include "../llmc/llmc_error.h"
#include "../llmc/safetensors.h"
#include "hf_golden.h"
#include "test.h"

static OpsContext* ops;
static char directory[] = "/tmp/test_hf_checkpoint_XXXXXX";

static const char* path_of(const char* folder, const char* name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s%s%s", directory, folder, *name == '\0' ? "" : "/", name);
    return path;
}

static bool load(Model* model, const char* path, int begin, int end, bool is_last) {
    bool ok = hf_golden_load(model, path, begin, end, is_last, ops);
    CHECK(ok);
    return ok;
}

// --- what they compute -------------------------------------------------------------------------------------

static void logits_are_those_of_transformers(void) {
    for (int i = 0; i < HF_GOLDEN_NUM; i++) {
        Model model;
        if (!load(&model, hf_golden_path(hf_golden_names[i]), 0, -1, true)) { continue; }
        CHECK_NEAR(hf_golden_logits_difference(&model, hf_golden_names[i]), 0, 2e-5);
        model_free(&model);
    }
}

static void padding_is_zero(void) {
    for (int i = 0; i < HF_GOLDEN_NUM; i++) {
        Model model;
        if (!load(&model, hf_golden_path(hf_golden_names[i]), 0, -1, true)) { continue; }
        // whatever the memory had before
        memset(model.params, 0x40, (size_t)model.num_params * sizeof *model.params);
        CHECK(hf_checkpoint_read(hf_golden_path(hf_golden_names[i]), CHECKPOINT_PARAMS, &model, model.params,
                                 0, model.num_params));
        const int64_t C = model.config.channels, V = model.config.vocab, Vp = model.config.padded_vocab;
        const floatX* embedding = model_tensor(&model, 0, 0);
        int num_wrong = 0;
        for (int64_t k = V * C; k < Vp * C; k++) { num_wrong += (float)embedding[k] != 0; }
        for (int64_t v = 0; v < V; v++) {
            num_wrong += (float)embedding[v * C] == 0 && (float)embedding[v * C + 1] == 0;
        }
        CHECK_EQ(num_wrong, 0);
        model_free(&model);
    }
}

// --- a checkpoint with something changed -------------------------------------------------------------------

typedef struct {
    const char* drop;        // left out
    const char *add, *like;  // a tensor more: the values of `like` (NULL: one zero) ...
    float factor;            // ... times this, where it is not 0
    const char* replace;     // its first two dimensions are exchanged; a vector becomes a matrix of one row
    const char* poison;      // its last value
    float poison_value;
} Edit;

static float values[HF_GOLDEN_MAX_VOCAB * 128];

static void read_for(const Safetensors* file, const char* name, const Edit* edit) {
    const bool is_added = edit->add != NULL && strcmp(name, edit->add) == 0;
    const SafetensorsTensor* tensor =
        safetensors_find(file, is_added && edit->like != NULL ? edit->like : name);
    values[0] = 0;
    if (tensor == NULL) { return; }
    CHECK(safetensors_read(file, tensor, values, 0, tensor->num_values));
    for (int64_t i = 0; is_added && edit->factor != 0 && i < tensor->num_values; i++) {
        values[i] *= edit->factor;
    }
    bool is_poisoned = edit->poison != NULL && strcmp(name, edit->poison) == 0;
    if (is_poisoned) { values[tensor->num_values - 1] = edit->poison_value; }
}

static void write_text(const char* path, const char* text) {
    FILE* file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0);
    if (file != NULL) { fclose(file); }
}

// As F32, in one file; config: NULL keeps the golden one. Returns the directory.
static const char* make_edited(const char* name, const Edit* edit, const char* config) {
    Safetensors in, out;
    SafetensorsTensor tensors[256];
    int num_tensors = 0;
    CHECK(safetensors_open(&in, hf_golden_path(name)));
    for (int i = 0; i < in.num_tensors; i++) {
        if (edit->drop != NULL && strcmp(in.tensors[i].name, edit->drop) == 0) { continue; }
        SafetensorsTensor* tensor = &tensors[num_tensors++];
        *tensor = in.tensors[i];
        tensor->dtype = SAFETENSORS_F32;
        if (edit->replace == NULL || strcmp(tensor->name, edit->replace) != 0) { continue; }
        int64_t rows = tensor->dims[0];
        tensor->dims[0] = tensor->num_dims == 1 ? 1 : tensor->dims[1];
        tensor->dims[1] = rows;
        tensor->num_dims = 2;
    }
    if (edit->add != NULL) {
        const SafetensorsTensor* like = edit->like == NULL ? NULL : safetensors_find(&in, edit->like);
        tensors[num_tensors] = like == NULL ? (SafetensorsTensor){.num_dims = 1, .dims = {1}} : *like;
        tensors[num_tensors].dtype = SAFETENSORS_F32;
        tensors[num_tensors++].name = edit->add;
    }
    mkdir(path_of("edited", ""), 0777);
    char path[256];
    snprintf(path, sizeof path, "%s", path_of("edited", "model.safetensors"));
    CheckpointFile file;
    CHECK(safetensors_layout(&out, tensors, num_tensors) && safetensors_create(&out, path));
    CHECK(llmc_ok(checkpoint_file_open_tmp(&file, path)));
    for (int i = 0; i < out.num_tensors; i++) {
        read_for(&in, out.tensors[i].name, edit);
        CHECK(safetensors_write(&file, &out.tensors[i], values, 0, out.tensors[i].num_values));
    }
    CHECK(llmc_ok(checkpoint_file_sync(&file)) && llmc_ok(checkpoint_file_rename(path)));
    safetensors_close(&in);
    safetensors_close(&out);
    if (config != NULL) {
        write_text(path_of("edited", "config.json"), config);
    } else {
        char command[600];
        snprintf(command, sizeof command, "cp test/golden/hf_%s/config.json %s", name, path_of("edited", ""));
        CHECK_EQ(system(command), 0);
    }
    return path_of("edited", "");
}

static void check_refused(const char* name, Edit edit, const char* config, const char* words, int line) {
    ModelConfig out;
    char path[256];
    snprintf(path, sizeof path, "%s", make_edited(name, &edit, config));
    bool ok = hf_checkpoint_read_config(&out, NULL, hf_golden_kind(path), path);
    if (ok) {
        Model model;
        model_init(&model, &out, 0, model_num_blocks(&out), true, ops);
        ok = hf_checkpoint_read(path, CHECKPOINT_PARAMS, &model, model.params, 0, model.num_params);
        model_free(&model);
    }
    if (ok || strstr(status_message(), words) == NULL || strstr(status_message(), " ---> ") == NULL) {
        printf("%s:%d: %s, \"%s\" instead of \"%s\"\n", __FILE__, line, ok ? "read" : "refused",
               status_message(), words);
        test_failures++;
    }
}
#define REFUSED(name, words, ...) check_refused(name, (Edit){__VA_ARGS__}, NULL, words, __LINE__)

#define ENC_Q "encoder.block.1.layer.0.SelfAttention.q.weight"
#define DEC_WO "decoder.block.0.layer.2.DenseReluDense.wo.weight"

static void wrong_tensors_are_refused(void) {
    REFUSED("t5", "shared.weight", .drop = "shared.weight");
    REFUSED("t5", ENC_Q " is missing", .drop = ENC_Q);
    REFUSED("t5", "decoder.final_layer_norm.weight is missing", .drop = "decoder.final_layer_norm.weight");
    REFUSED("umt5", "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight is missing",
            .drop = "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight");
    REFUSED("gpt2", "transformer.h.1.mlp.c_fc.bias is missing", .drop = "transformer.h.1.mlp.c_fc.bias");
    REFUSED("gpt2_bare", ": h.1.mlp.c_fc.bias is missing", .drop = "h.1.mlp.c_fc.bias");
    REFUSED("t5", "classifier.weight is no tensor of this model", .add = "classifier.weight");
    REFUSED("t5", "decoder.block.2.layer.0.layer_norm.weight is no tensor of this model",
            .add = "decoder.block.2.layer.0.layer_norm.weight");
    REFUSED("t5", "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight is no tensor",
            .add = "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight");
    REFUSED("gpt2", "transformer.h.x.attn.bias is no tensor", .add = "transformer.h.x.attn.bias");
    REFUSED("t5", DEC_WO ": shape [20, 16], config.json asks for [16, 20]", .replace = DEC_WO);
    REFUSED("t5", "final_layer_norm.weight: shape [1, 16], config.json asks for [16]",
            .replace = "encoder.final_layer_norm.weight");
    REFUSED("gpt2", "c_fc.weight: shape [64, 16], config.json asks for [16, 64]",
            .replace = "transformer.h.0.mlp.c_fc.weight");
    REFUSED("t5", DEC_WO ": value 319 is NaN or infinite", .poison = DEC_WO, .poison_value = NAN);
    REFUSED("gpt2", "c_proj.weight: value 1023 is NaN or infinite",
            .poison = "transformer.h.1.mlp.c_proj.weight", .poison_value = INFINITY);
    REFUSED("llama", "lm_head.weight is missing", .drop = "lm_head.weight");
    REFUSED("llama", "model.layers.1.self_attn.q_proj.bias is no tensor",
            .add = "model.layers.1.self_attn.q_proj.bias");
    REFUSED("qwen2", "model.layers.0.self_attn.k_proj.bias is missing",
            .drop = "model.layers.0.self_attn.k_proj.bias");
    REFUSED("t5", "encoder.embed_tokens.weight differs from shared.weight",
            .add = "encoder.embed_tokens.weight", .like = "shared.weight", .factor = 2);
}

static void wrong_configs_are_refused(void) {
#define T5_SHAPE "\"d_model\": 16, \"d_kv\": 4, \"num_heads\": 4, \"d_ff\": 20, \"num_layers\": 2, "
#define CONFIG_REFUSED(fields, words) \
    check_refused("t5", (Edit){0}, "{\"model_type\": \"t5\", " fields "}", words, __LINE__)
    CONFIG_REFUSED(T5_SHAPE "\"vocab_size\": 51",
                   "shared.weight: shape [50, 16], config.json asks for [51, 16]");
    CONFIG_REFUSED(T5_SHAPE "\"vocab_size\": 50, \"feed_forward_proj\": \"gated-gelu\"",
                   "wi_0.weight is missing");
    CONFIG_REFUSED(T5_SHAPE "\"vocab_size\": 50, \"num_decoder_layers\": 1", "decoder.block.1.");
    CONFIG_REFUSED(T5_SHAPE "\"vocab_size\": 50, \"num_decoder_layers\": 3", "decoder.block.2.");
    CONFIG_REFUSED(T5_SHAPE "\"vocab_size\": 50, \"relative_attention_num_buckets\": 16",
                   "relative_attention_bias");
    CONFIG_REFUSED("\"d_model\": 1000000", "channels 1000000");
    CONFIG_REFUSED("\"feed_forward_proj\": \"gated-silu\"", "config.json: feed_forward_proj");
    check_refused("t5", (Edit){0}, "{\"model_type\": \"gpt2\"}", "wte.weight", __LINE__);
    ModelConfig config;
    CHECK(!hf_checkpoint_read_config(&config, NULL, &gpt2_kind, hf_golden_path("t5")));
    CHECK(strstr(status_message(), "model_type \"t5\" is no GPT-2 ---> train it with train_t5") != NULL);
    CHECK(!hf_checkpoint_read_config(&config, NULL, &t5_kind, hf_golden_path("gpt2")));
    CHECK(strstr(status_message(), "train_gpt2") != NULL);
}

// A generation_config.json says where texts end, if it does; a broken one is no silence.
static void ends_are_the_generations(void) {
    TokenEnds ends = {{3}, 1};
    HfConfig config;
    char folder[256];
    int bos = 5;
    snprintf(folder, sizeof folder, "%s", make_edited("gpt2", &(Edit){0}, NULL));
    CHECK(hf_config_read(&config, folder) && config.ends.num == 1);
    CHECK(hf_ends_read(&ends, &bos, folder, 50) && ends.num == 1 && ends.ids[0] == 3 && bos == 5);
    write_text(path_of("edited", "generation_config.json"), "{\"eos_token_id\": null, \"bos_token_id\": 6}");
    CHECK(hf_ends_read(&ends, &bos, folder, 50) && ends.num == 1 && ends.ids[0] == 3 && bos == 6);
    write_text(path_of("edited", "generation_config.json"), "{\"eos_token_id\": [7, 8]}");
    CHECK(hf_ends_read(&ends, &bos, folder, 9) && ends.num == 2 && ends.ids[1] == 8);
    CHECK(hf_config_read(&config, folder) && config.ends.num == 2 && config.ends.ids[0] == 7);
    CHECK(!hf_ends_read(&ends, &bos, folder, 8));
    CHECK(strstr(status_message(),
                 "generation_config.json: eos_token_id: token 8 is beyond the vocabulary of 8 --->"));
    write_text(path_of("edited", "generation_config.json"), "[7]");
    CHECK(!hf_config_read(&config, folder));
    CHECK(strstr(status_message(), "generation_config.json: no JSON object --->") != NULL);
    unlink(path_of("edited", "generation_config.json"));
}

// No kind is asked for, and no other is tried.
static void a_broken_file_is_told_by_its_own_kind(void) {
    static const char* const kinds[] = {"gpt2", "t5", "llama"};
    ModelConfig config;
    char path[256], folder[256];
    for (int i = 0; i < 3; i++) {
        CHECK(models_read_config(&config, hf_golden_path(kinds[i]), 0, 0));
        CHECK(strcmp(config.kind->name, kinds[i]) == 0);
        snprintf(path, sizeof path, "%s", path_of("model.bin", ""));
        CHECK_OK(checkpoint_create_model(path, &config));
        CHECK_OK(checkpoint_file_rename(path));
        CHECK(models_read_config(&config, path, 0, 0) && strcmp(config.kind->name, kinds[i]) == 0);
        snprintf(folder, sizeof folder, "%s", path_of("run", ""));
        mkdir(folder, 0777);
        for (int step = 8; step < 10; step++) {  // of the last, nothing is finished
            char of_run[CHECKPOINT_PATH_CHARS];
            config.max_seq_len = step;
            checkpoint_path(of_run, folder, CHECKPOINT_MODEL_FILE, step);
            CHECK_OK(checkpoint_create_model(of_run, &config));
            if (step == 8) { CHECK_OK(checkpoint_file_rename(of_run)); }
        }
        CHECK_OK(checkpoint_mark_done(folder, 8, false));
        CHECK(models_read_config(&config, folder, 0, 0) && config.max_seq_len == 8);
        CHECK(strcmp(config.kind->name, kinds[i]) == 0);
        CHECK_EQ(truncate(path, 2000), 0);
        CHECK(!models_read_config(&config, path, 0, 0));
        CHECK(strstr(status_message(), "model.bin: 2000 bytes, but its header asks for ") != NULL);
        snprintf(path, sizeof path, "%s", make_edited(kinds[i], &(Edit){.add = "classifier.weight"}, NULL));
        CHECK(!models_read_config(&config, path, 0, 0));
        CHECK(strstr(status_message(), "classifier.weight is no tensor of this model") != NULL);
    }
    write_text(path_of("edited", "config.json"), "{\"model_type\": \"llama\", \"rope_scaling\": 2}");
    snprintf(path, sizeof path, "%s", path_of("edited", ""));
    CHECK(!models_read_config(&config, path, 0, 0));
    CHECK(strstr(status_message(), "rope_scaling ---> must be an object") != NULL);
    snprintf(path, sizeof path, "%s", path_of("none.bin", ""));
    write_text(path, "");
    CHECK_EQ(truncate(path, 2000), 0);
    CHECK(!models_read_config(&config, path, 0, 0));
    CHECK(strstr(status_message(), "none.bin: magic 0 is no model's --->") != NULL);
}

static void another_model_is_refused(void) {
    Model model;
    if (!load(&model, hf_golden_path("t5"), 0, -1, true)) { return; }
    CHECK(!hf_checkpoint_read(hf_golden_path("flan"), CHECKPOINT_PARAMS, &model, model.params, 0,
                              model.num_params));
    CHECK(strstr(status_message(), " is ") != NULL && strstr(status_message(), " ---> ") != NULL);
    model.config.max_seq_len = 77;  // -t of a run: any length will do
    CHECK(hf_checkpoint_read(hf_golden_path("t5"), CHECKPOINT_PARAMS, &model, model.params, 0,
                             model.num_params));
    model_free(&model);
}

// --- heads, copies, buffers --------------------------------------------------------------------------------

// As dev/golden_hf.py makes them.
static float golden_value(const char* name, uint32_t i) {
    uint32_t hash = 0x811c9dc5u;
    for (; *name != '\0'; name++) { hash = (hash ^ (uint8_t)*name) * 0x01000193u; }
    uint32_t x = i * 0x9e3779b9u + hash;
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    x ^= x >> 16;
    return (float)(x >> 25) / 128 - 0.5f;
}

// The file's lm_head.weight gets the values that the golden logits were made with.
static void set_head(const char* path) {
    Safetensors file;
    CHECK(safetensors_open(&file, path));
    const SafetensorsTensor* head = safetensors_find(&file, "lm_head.weight");
    for (int64_t i = 0; i < head->num_values; i++) {
        values[i] = golden_value("lm_head.weight", (uint32_t)i);
    }
    FILE* out = fopen(path, "r+b");
    CHECK(out != NULL && fseek(out, (long)head->begin, SEEK_SET) == 0);
    CHECK(fwrite(values, sizeof *values, (size_t)head->num_values, out) == (size_t)head->num_values);
    CHECK(fclose(out) == 0);
    safetensors_close(&file);
}

static void expect(const char* what, const char* name, const Edit* edit, bool tied, const char* logits) {
    char path[256];
    snprintf(path, sizeof path, "%s", make_edited(name, edit, NULL));
    if (strstr(logits, "_untied") != NULL) { set_head(path_of("edited", "model.safetensors")); }
    Model model;
    if (!load(&model, path, 0, -1, true)) {
        printf("%s\n", what);
        return;
    }
    CHECK_EQ(model.config.tied_head, tied);
    CHECK_NEAR(hf_golden_logits_difference(&model, logits), 0, 2e-5);
    model_free(&model);
}

static void tensors_decide_whether_the_head_is_tied(void) {
    expect("none", "t5", &(Edit){0}, true, "t5");
    expect("the same", "t5", &(Edit){.add = "lm_head.weight", .like = "shared.weight"}, true, "t5");
    expect("another", "t5", &(Edit){.add = "lm_head.weight", .like = "shared.weight"}, false, "t5_untied");
    expect("another", "umt5", &(Edit){.add = "lm_head.weight", .like = "shared.weight"}, false,
           "umt5_untied");
    expect("the same", "qwen2", &(Edit){.add = "lm_head.weight", .like = "model.embed_tokens.weight"}, true,
           "qwen2");
    expect("its own", "llama", &(Edit){0}, false, "llama");
    expect("GPT-2's", "gpt2", &(Edit){.add = "lm_head.weight", .like = "transformer.wte.weight"}, true,
           "gpt2");
    expect("another", "gpt2", &(Edit){.add = "lm_head.weight", .like = "transformer.wte.weight"}, false,
           "gpt2_untied");
    expect("its own", "gpt2_like", &(Edit){0}, false, "gpt2_like");
}

// T5 1.1 and mT5 as transformers 5 writes them: no lm_head.weight, and hidden states without the factor of
// 1/4.
static void a_tied_head_without_factor_is_the_embedding(void) {
    static const char* const configs[] = {
        "t5\", \"tie_word_embeddings\": false",
        "t5\", \"tie_word_embeddings\": true, \"scale_decoder_outputs\": false",
        "mt5\", \"feed_forward_proj\": \"relu\""};
    for (int i = 0; i < 3; i++) {
        char config[400], path[256];
        snprintf(config, sizeof config, "{" T5_SHAPE "\"vocab_size\": 50, \"model_type\": \"%s}", configs[i]);
        snprintf(path, sizeof path, "%s", make_edited("t5", &(Edit){0}, config));
        Model model;
        if (!load(&model, path, 0, -1, true)) { continue; }
        CHECK(!model.config.tied_head);
        floatX* head = model_tensor(&model, model_head_tensor(&model.config), 0);
        for (int64_t k = 0; k < 50 * 16; k++) { head[k] = (floatX)((float)head[k] / 4); }
        CHECK_NEAR(hf_golden_logits_difference(&model, "t5"), 0, 2e-5);
        model_free(&model);
    }
}

static void copies_and_buffers_are_passed_over(void) {
    expect("copy", "t5", &(Edit){.add = "encoder.embed_tokens.weight", .like = "shared.weight"}, true, "t5");
    expect("copy", "t5", &(Edit){.add = "decoder.embed_tokens.weight", .like = "shared.weight"}, true, "t5");
    expect("angles", "llama", &(Edit){.add = "model.layers.1.self_attn.rotary_emb.inv_freq"}, false, "llama");
    const char* unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight";
    expect("unused", "t5", &(Edit){.add = unused}, true, "t5");
}

static void paths_are_told_apart(void) {
    CHECK(hf_checkpoint_is("test/golden/hf_t5") && hf_checkpoint_is("test/golden/hf_t5/model.safetensors"));
    CHECK(hf_checkpoint_is("test/golden/hf_umt5/model.safetensors.index.json"));
    CHECK(!hf_checkpoint_is("test/golden") && !hf_checkpoint_is("test/golden/gpt2_small.bin"));
    CHECK(!hf_checkpoint_is("t5:small") && !hf_checkpoint_is("nowhere.safetensors"));
}

int main(int argc, char** argv) {
    test_seed(argc, argv);
    CHECK(mkdtemp(directory) != NULL);
    ops = ops_create(1);
    RUN(logits_are_those_of_transformers);
    RUN(padding_is_zero);
    RUN(wrong_tensors_are_refused);
    RUN(wrong_configs_are_refused);
    RUN(ends_are_the_generations);
    RUN(a_broken_file_is_told_by_its_own_kind);
    RUN(another_model_is_refused);
    RUN(tensors_decide_whether_the_head_is_tied);
    RUN(a_tied_head_without_factor_is_the_embedding);
    RUN(copies_and_buffers_are_passed_over);
    RUN(paths_are_told_apart);
    ops_free(ops);
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", directory);
    if (system(command) != 0) { printf("%s is left\n", directory); }
    return test_end();
}
