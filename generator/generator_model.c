// generator_model.c -- the model that a path names: the newest checkpoint of a folder, a file, Hugging Face's
// files; and the tokenizer beside it.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../llmc/checkpoint.h"
#include "../llmc/cpu/context.h"
#include "../llmc/hf_checkpoint.h"
#include "../llmc/llmc_error.h"
#include "../llmc/models.h"
#include "generator.h"

// What llmc/ says of a file, as a status.
#define FAIL_LLMC(error) FAIL(STATUS_BAD_FORMAT, "%s", (error))

static Status find_weights(GeneratorModel* g, const char* path, bool* is_hf) {
    struct stat about;
    *is_hf = false;
    if (stat(path, &about) != 0) {
        return FAIL(
            STATUS_IO,
            "%s: %s ---> the folder of a run (-o of the trainer), a model_*.bin, or a folder of Hugging "
            "Face's files",
            path, strerror(errno));
    }
    snprintf(g->path, sizeof g->path, "%s", path);
    if (hf_checkpoint_is(path)) {
        *is_hf = true;
        return STATUS_OK;
    }
    if (!S_ISDIR(about.st_mode) && !models_is_checkpoint(path)) {
        return FAIL(
            STATUS_BAD_FORMAT,
            "%s: no model ---> the folder of a run (-o of the trainer), a model_*.bin, or a folder of "
            "Hugging Face's files",
            path);
    }
    if (!S_ISDIR(about.st_mode)) { return STATUS_OK; }
    int step = checkpoint_find_latest(path);
    if (step < 0) {
        return FAIL(
            STATUS_IO,
            "%s: no checkpoint there, no Hugging Face's files ---> train with -o %s, or name another folder",
            path, path);
    }
    checkpoint_path(g->path, path, CHECKPOINT_MODEL_FILE, step);
    return STATUS_OK;
}

static void folder_of(char* out, size_t out_bytes, const char* path) {
    struct stat about;
    const char* slash = strrchr(path, '/');
    if (stat(path, &about) == 0 && S_ISDIR(about.st_mode)) {
        snprintf(out, out_bytes, "%s", path);
    } else if (slash == NULL) {
        snprintf(out, out_bytes, ".");
    } else {
        snprintf(out, out_bytes, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    }
}

static void make_model(GeneratorModel* g, const ModelConfig* config, int num_threads) {
    g->ops = ops_create(num_threads);
    model_init(&g->model, config, 0, model_num_layers(config), true, g->ops);
}

// Every value is read once, as training does, and must be what was saved.
static Status read_checkpoint(GeneratorModel* g, int num_threads, uint64_t* vocab_hash) {
    char error[LLMC_ERROR_CHARS];
    ModelConfig config;
    CheckpointSeal seal;
    uint64_t sum = 0;
    if (!models_read_config(&config, g->path, 0, 0, error)) { return FAIL_LLMC(error); }
    if (!checkpoint_seal_read(&seal, g->path, error)) { return FAIL_LLMC(error); }
    make_model(g, &config, num_threads);
    Model* m = &g->model;
    if (!checkpoint_read(g->path, CHECKPOINT_PARAMS, m, m->params, 0, m->num_params, &sum, error)) {
        return FAIL_LLMC(error);
    }
    if (seal.is_sealed && !checkpoint_seal_check(&seal, g->path, sum, error)) { return FAIL_LLMC(error); }
    *vocab_hash = seal.is_sealed ? seal.vocab_hash : 0;
    return STATUS_OK;
}

static Status read_hf(GeneratorModel* g, int num_threads, HfConfig* details) {
    char error[LLMC_ERROR_CHARS];
    ModelConfig config;
    if (!models_read_config(&config, g->path, 0, 0, error) ||
        !hf_checkpoint_read_config(&config, details, config.kind, g->path, error)) {
        return FAIL_LLMC(error);
    }
    make_model(g, &config, num_threads);
    Model* m = &g->model;
    if (!hf_checkpoint_read(g->path, CHECKPOINT_PARAMS, m, m->params, 0, m->num_params, error)) {
        return FAIL_LLMC(error);
    }
    return STATUS_OK;
}

// What was trained with one tokenizer has nothing to say in another's tokens.
static Status check_tokens(const GeneratorModel* g, const char* folder, uint64_t vocab_hash) {
    const SampleVocab* vocab = &g->tokens.data.vocab;
    if (vocab_hash != 0 && vocab->hash != vocab_hash) {
        return FAIL(
            STATUS_MISMATCH,
            "%s: trained with another tokenizer than %s has ---> --tokenizer DIR, the folder of its data",
            g->path, folder);
    }
    if (vocab->num_tokens > g->model.config.padded_vocab) {
        return FAIL(STATUS_MISMATCH,
                    "%s: %d tokens, the model has %d ---> --tokenizer DIR, the folder of its data", folder,
                    vocab->num_tokens, g->model.config.vocab);
    }
    return STATUS_OK;
}

static Status open_model(GeneratorModel* g, const GeneratorOptions* options) {
    char folder[4096];
    bool is_hf;
    uint64_t vocab_hash = 0;
    if (options->quiet) { ops_keep_quiet(); }
    HfConfig details = {.start_token = HF_NO_TOKEN, .eos_token = HF_NO_TOKEN};
    TRY(find_weights(g, options->model, &is_hf));
    folder_of(folder, sizeof folder, g->path);
    if (options->tokenizer != NULL) { snprintf(folder, sizeof folder, "%s", options->tokenizer); }
    TRY(tokenizer_folder_open(&g->tokens, folder));
    TRY(is_hf ? read_hf(g, options->threads, &details) : read_checkpoint(g, options->threads, &vocab_hash));
    TRY(check_tokens(g, folder, vocab_hash));
    const SampleVocab* vocab = &g->tokens.data.vocab;
    g->end_token = details.eos_token != HF_NO_TOKEN ? details.eos_token : vocab->eot_token;
    g->start_token = vocab->pad_token >= 0 ? vocab->pad_token : vocab->eot_token;
    if (details.start_token != HF_NO_TOKEN) { g->start_token = details.start_token; }
    return STATUS_OK;
}

Status generator_model_open(GeneratorModel* out, const GeneratorOptions* options) {
    *out = (GeneratorModel){0};
    Status status = open_model(out, options);
    if (status != STATUS_OK) { generator_model_close(out); }
    return status;
}

void generator_model_close(GeneratorModel* g) {
    if (g->ops != NULL) {
        model_free(&g->model);
        ops_free(g->ops);
        g->ops = NULL;
    }
    tokenizer_folder_close(&g->tokens);
}
