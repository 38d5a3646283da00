// What is exported is read back bit for bit, by us and (dev/check_hf_export.py) by transformers, whoever
// wrote which slice; what fails leaves nothing behind.
#include "../llmc/hf.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../llmc/llmc_error.h"
#include "../llmc/safetensors.h"
#include "hf_golden.h"
#include "test.h"

static OpsContext* ops;
static char directory[] = "/tmp/test_hf_export_XXXXXX";

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

static float values[HF_GOLDEN_MAX_VOCAB * 128];

static void write_text(const char* path, const char* text) {
    FILE* file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0);
    if (file != NULL) { fclose(file); }
}

// Slices cut at `cut` write the folder, each for itself.
static bool export_slices(const char* folder, const char* from, int cut, const HfTokens* tokens) {
    Model whole;
    HfConfig details;
    ModelConfig config;
    if (!load(&whole, from, 0, -1, true)) { return false; }
    bool ok = hf_checkpoint_read_config(&config, &details, whole.config.kind, from) &&
              hf_checkpoint_create(folder, &whole.config, &details, tokens);
    const int N = model_num_blocks(&whole.config);
    model_free(&whole);
    Model slice;
    for (int s = 0; ok && s < 2; s++) {
        if (s == 0 && cut == 0) { continue; }
        ok = load(&slice, from, s == 0 ? 0 : cut, s == 0 ? cut : N, s == 1) &&
             hf_checkpoint_write(folder, &slice);
        model_free(&slice);
    }
    ok = ok && hf_checkpoint_commit(folder);
    if (!ok) { printf("%s\n", status_message()); }
    return ok;
}

// Every tensor of `from` but buffers is in `folder`, bit for bit, and no other.
static void check_same_tensors(const char* folder, const char* from, const char* prefix) {
    Safetensors ours, theirs;
    static float other[HF_GOLDEN_MAX_VOCAB * 128];
    CHECK(safetensors_open(&ours, folder));
    CHECK(safetensors_open(&theirs, from));
    int num_same = 0;
    for (int i = 0; i < theirs.num_tensors; i++) {
        char name[256];
        snprintf(name, sizeof name, "%s%s", prefix, theirs.tensors[i].name);
        const SafetensorsTensor* tensor = safetensors_find(&ours, name);
        if (tensor == NULL && strstr(name, ".attn.") != NULL && strstr(name, "bias") != NULL) { continue; }
        CHECK(tensor != NULL);
        if (tensor == NULL) { continue; }
        CHECK_EQ(tensor->num_dims, theirs.tensors[i].num_dims);
        CHECK(memcmp(tensor->dims, theirs.tensors[i].dims, sizeof tensor->dims) == 0);
        CHECK(safetensors_read(&ours, tensor, values, 0, tensor->num_values));
        CHECK(safetensors_read(&theirs, &theirs.tensors[i], other, 0, tensor->num_values));
        CHECK(memcmp(values, other, (size_t)tensor->num_values * sizeof *values) == 0);
        num_same++;
    }
    CHECK_EQ(num_same, ours.num_tensors);
    safetensors_close(&ours);
    safetensors_close(&theirs);
}

static void exports_are_read_back_bit_for_bit(void) {
    for (int i = 0; i < HF_GOLDEN_NUM; i++) {
        ModelConfig config;
        CHECK(hf_checkpoint_read_config(&config, NULL, hf_golden_kind(hf_golden_path(hf_golden_names[i])),
                                        hf_golden_path(hf_golden_names[i])));
        for (int cut = 0; cut <= model_num_blocks(&config); cut++) {
            char folder[256], from[256], command[300];
            snprintf(folder, sizeof folder, "%s", path_of("export", ""));
            snprintf(from, sizeof from, "%s", hf_golden_path(hf_golden_names[i]));
            CHECK(export_slices(folder, from, cut, NULL));
            check_same_tensors(folder, from,
                               strcmp(hf_golden_names[i], "gpt2_bare") == 0 ? "transformer." : "");
            HfConfig ours, theirs;
            CHECK(hf_config_read(&ours, folder) && hf_config_read(&theirs, from));
            CHECK(ours.type == theirs.type && ours.head_scaled == theirs.head_scaled &&
                  ours.shape.tied_head == theirs.shape.tied_head);
            Model model;
            if (load(&model, folder, 0, -1, true)) {
                CHECK_NEAR(hf_golden_logits_difference(&model, hf_golden_names[i]), 0, 2e-5);
                model_free(&model);
            }
            snprintf(command, sizeof command, "rm -r %s", folder);
            CHECK_EQ(system(command), 0);
        }
    }
}

static bool exists(const char* folder, const char* name) {
    return access(path_of(folder, name), F_OK) == 0;
}

static void tokenizers_go_along(void) {
    char folder[256], source[256], more[256];
    snprintf(folder, sizeof folder, "%s", path_of("bytes", ""));
    CHECK(export_slices(folder, hf_golden_path("byt5"), 0, &(HfTokens){.bytes = true}));
    CHECK(exists("bytes", "tokenizer_config.json") && exists("bytes", "generation_config.json"));
    snprintf(source, sizeof source, "%s", path_of("tokens", ""));
    CHECK_EQ(mkdir(source, 0777), 0);
    write_text(path_of("tokens", "spiece.model"), "a model");
    write_text(path_of("tokens", "tokenizer.json"), "{}");
    CHECK_EQ(mkdir(path_of("more", ""), 0777), 0);
    write_text(path_of("more", "spiece.model"), "another");
    write_text(path_of("more", "special_tokens_map.json"), "{}");
    write_text(path_of("tokens", "pytorch_model.bin"), "not this");
    snprintf(folder, sizeof folder, "%s", path_of("copied", ""));
    snprintf(more, sizeof more, "%s", path_of("more", ""));
    CHECK(export_slices(folder, hf_golden_path("t5"), 2, &(HfTokens){.folders = {source, more}}));
    CHECK(exists("copied", "spiece.model") && exists("copied", "tokenizer.json") &&
          exists("copied", "special_tokens_map.json"));
    CHECK(!exists("copied", "merges.txt") && !exists("copied", "pytorch_model.bin"));
    char text[16] = "";
    FILE* file = fopen(path_of("copied", "spiece.model"), "r");
    CHECK(file != NULL && fgets(text, sizeof text, file) != NULL && strcmp(text, "a model") == 0);
    if (file != NULL) { fclose(file); }
}

static void failed_exports_change_nothing(void) {
    char folder[256];
    snprintf(folder, sizeof folder, "%s", path_of("failed", ""));
    Model model;
    if (!load(&model, hf_golden_path("t5"), 0, -1, true)) { return; }
    CHECK(!hf_checkpoint_write(folder, &model) && strstr(status_message(), " ---> ") != NULL);
    CHECK(hf_checkpoint_create(folder, &model.config, NULL, &(HfTokens){.bytes = true}));
    CHECK(!exists("failed", "model.safetensors") && !exists("failed", "config.json"));
    CHECK(exists("failed", "model.safetensors.tmp") && exists("failed", "config.json.tmp"));
    hf_checkpoint_abort(folder);
    CHECK(!exists("failed", "model.safetensors.tmp") && !exists("failed", "config.json.tmp"));
    CHECK(!exists("failed", "tokenizer_config.json.tmp") && !exists("failed", "generation_config.json.tmp"));
    CHECK(!hf_checkpoint_create("/nowhere/at/all", &model.config, NULL, NULL));
    CHECK(strstr(status_message(), "cannot make directory") != NULL);
    write_text(path_of("failed", "model.safetensors.index.json"), "{}");
    CHECK(!hf_checkpoint_create(folder, &model.config, NULL, NULL));
    CHECK(strstr(status_message(), "has the shards of another model") != NULL);
    model_free(&model);
}

int main(int argc, char** argv) {
    test_seed(argc, argv);
    CHECK(mkdtemp(directory) != NULL);
    ops = ops_create(1);
    RUN(exports_are_read_back_bit_for_bit);
    RUN(tokenizers_go_along);
    RUN(failed_exports_change_nothing);
    ops_free(ops);
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", directory);
    if (system(command) != 0) { printf("%s is left\n", directory); }
    return test_end();
}
