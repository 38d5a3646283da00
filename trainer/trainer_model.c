// trainer_model.c -- the model that -e describes or names: read from a checkpoint, from Hugging Face's files,
// or new; and given back as Hugging Face's.
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "../llmc/llmc_error.h"
#include "trainer.h"

static bool ends_with(const char* text, const char* end) {
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static ModelSource source_of(const char* model) {
    return ends_with(model, ".bin") ? MODEL_CHECKPOINT : hf_checkpoint_is(model) ? MODEL_HF : MODEL_NEW;
}

static bool is_directory(const char* path) {
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

// What is no descriptor may have been meant as a path.
static bool parse_new(ModelConfig* out, const ModelKind* kind, const char* text, int vocab, int max_seq_len,
                      char* error) {
    if (model_parse(out, kind, text, vocab, max_seq_len, error)) { return true; }
    if (is_directory(text)) {
        return llmc_fail(error,
                         "-e %.80s: a folder without config.json ---> one that transformers saved, with "
                         "config.json and *.safetensors; or a model_*.bin",
                         llmc_path_tail(text));
    }
    bool is_path = strchr(text, '/') != NULL || ends_with(text, ".safetensors");
    return is_path &&
           llmc_fail(error, "-e %.80s: no such file or folder ---> check the path", llmc_path_tail(text));
}

// vocab, max_seq_len: of a new model. like (may be NULL): what Hugging Face's files say besides.
static bool read_config(const Trainer* t, ModelConfig* out, HfConfig* like, ModelSource source,
                        const char* path, int vocab, int max_seq_len, char* error) {
    switch (source) {
        case MODEL_RESUMED:
        case MODEL_CHECKPOINT: return checkpoint_read_config(out, t->kind, path, error);
        case MODEL_HF: return hf_checkpoint_read_config(out, like, t->kind, path, error);
        default: return parse_new(out, t->kind, path, vocab, max_seq_len, error);
    }
}

// -y 1 goes on with the checkpoint's model; an -e of another shape was meant for something else. One of the
// same shape still says what an export has besides weights.
static void compare_with_asked(Trainer* t, const ModelConfig* config, const char* path) {
    const char* model = t->flags.model;
    char error[LLMC_ERROR_CHARS];
    ModelConfig asked;
    ModelSource source = source_of(model);
    bool known = read_config(t, &asked, &t->like, source, model, config->vocab, config->max_seq_len, error);
    ModelDifference difference;
    if (known && config->kind->has_decoder) {
        asked.tied_head = config->tied_head;
    }  // a file decides by its tensors
    bool same = known && model_config_equal(&asked, config, &difference);
    t->has_like = same && source == MODEL_HF;
    t->warned_of_model = !same && t->flags.model_given;
    if (!t->warned_of_model || !source_is_main(t->source)) { return; }
    char shape[160];
    config->kind->describe(shape, sizeof shape, config);
    fprintf(stderr,
            "warning: -e %s is not used: -y 1 goes on with %s,\n  %s ---> leave -e out; another -o for a new "
            "run\n",
            model, path, shape);
}

static void check_data_fits(const Trainer* t, const ModelConfig* config, const char* path) {
    char why[LLMC_ERROR_CHARS];
    int num_ids = source_vocab(t->source);
    if (config->vocab < num_ids) {
        snprintf(
            why, sizeof why,
            "-e %.80s: vocabulary %d, the data has %d ids ---> another -e, or data of this model's tokenizer",
            llmc_path_tail(path), config->vocab, num_ids);
        source_die(t->source, why);
    }
    // positions are parameters of GPT-2's; T5's are distances
    if (!config->kind->has_decoder && config->max_seq_len < t->flags.seq_tokens) {
        snprintf(why, sizeof why, "-e %.80s: %d positions, -t is %d ---> another -e, or -t %d",
                 llmc_path_tail(path), config->max_seq_len, t->flags.seq_tokens, config->max_seq_len);
        source_die(t->source, why);
    }
}

static void check_device_fits(const Trainer* t, const ModelConfig* config, const char* path) {
    char what[LLMC_ERROR_CHARS], why[2 * LLMC_ERROR_CHARS];
    if (attention_check(model_head_size(config), config->num_buckets, config->max_distance, what)) { return; }
    snprintf(why, sizeof why, "-e %.80s: %s", llmc_path_tail(path), what);
    source_die(t->source, why);
}

// Hugging Face's files say which tokens begin and end what the model writes: with others it has to unlearn
// its own, and without padding in the data there is nothing to begin with.
static void check_tokens_fit(const Trainer* t, const char* path) {
    char why[LLMC_ERROR_CHARS];
    int pad = source_pad_token(t->source), eot = source_eot_token(t->source);
    const HfConfig* like = &t->like;
    if (!t->has_like) { return; }
    if (t->kind->has_decoder && pad < 0) {
        snprintf(
            why, sizeof why,
            "-e %.80s: its decoder starts with token %d, the data has no padding token ---> data of this "
            "model's tokenizer: prepare_data --tokenizer sentencepiece, byt5 or hf",
            llmc_path_tail(path), like->start_token);
        source_die(t->source, why);
    }
    bool other_start = t->kind->has_decoder && like->start_token != pad;
    bool other_end = like->eos_token != HF_NO_TOKEN && like->eos_token != eot;
    if ((!other_start && !other_end) || !source_is_main(t->source)) { return; }
    fprintf(stderr,
            "warning: -e %s %s with token %d, the data with %d\n  ---> was it made with this model's "
            "tokenizer? (prepare_data --tokenizer)\n",
            llmc_path_tail(path), other_start ? "starts answers" : "ends texts",
            other_start ? like->start_token : like->eos_token, other_start ? pad : eot);
}

static void fill_params(Trainer* t, ModelSource source, const char* path) {
    char error[LLMC_ERROR_CHARS];
    Model* m = &t->model;
    bool ok = true, is_new = source == MODEL_NEW;
    uint64_t* sum = source_owns_params(t->source) ? &t->begun.model_sum : NULL;
    SlowNotice* notice = trainer_notice(t, is_new ? "drawing parameters" : "reading parameters", -1,
                                        is_new ? 0 : m->num_params * (int64_t)sizeof(floatX));
    switch (source) {
        case MODEL_NEW: t->kind->init_random(m, source_seed(t->source)); break;
        case MODEL_HF:
            ok = hf_checkpoint_read(path, CHECKPOINT_PARAMS, m, m->params, 0, m->num_params, error);
            break;
        default: ok = checkpoint_read(path, CHECKPOINT_PARAMS, m, m->params, 0, m->num_params, sum, error);
    }
    slow_notice_end(notice);
    if (!ok && source == MODEL_RESUMED) { trainer_die_of_checkpoint(t, error); }
    if (!ok) { source_die(t->source, error); }
    if (source == MODEL_CHECKPOINT) { trainer_check_sums(t, path, NULL); }
}

// Behind what is there, or in a line of its own. Returns the column behind it.
static int print_piece(const char* text, int column) {
    enum { LINE_CHARS = 100 };
    if (column + 1 + (int)strlen(text) <= LINE_CHARS) { return column + printf(" %s", text); }
    return printf("\n  %s", text) - 1;
}

static void print_model(const Trainer* t, ModelSource source, const char* path) {
    char shape[160], text[400];
    const ModelConfig* config = &t->model.config;
    if (!source_is_main(t->source)) { return; }
    t->kind->describe(shape, sizeof shape, config);
    int column = printf("%s: %s,", t->kind->name, shape);
    snprintf(text, sizeof text, "vocabulary %d, %lld parameters,", config->vocab,
             (long long)model_num_params(config));
    column = print_piece(text, column);
    snprintf(text, sizeof text, "%.300s; %s on %.60s", source == MODEL_NEW ? "new" : path,
             sizeof(floatX) == 2 ? "bf16" : "fp32", ops_device_name(source_ops(t->source)));
    print_piece(text, column);
    printf("\n");
    if (t->kind->has_decoder && source_pad_token(t->source) < 0) {
        printf("the data has no padding token: the decoder starts with end-of-text (%d)\n",
               source_eot_token(t->source));
    }
}

ModelSource trainer_build_model(Trainer* t) {
    char path[CHECKPOINT_PATH_CHARS], error[LLMC_ERROR_CHARS];
    const TrainFlags* flags = &t->flags;
    ModelConfig config;
    ModelSource source = source_of(flags->model);
    trainer_find_begin(t, source);
    snprintf(path, sizeof path, "%s", flags->model);
    if (t->resume_step >= 0) {
        source = MODEL_RESUMED;
        checkpoint_path(path, flags->output_dir, CHECKPOINT_MODEL_FILE, t->resume_step);
    }
    if (!read_config(t, &config, &t->like, source, path, source_vocab(t->source), flags->seq_tokens, error)) {
        if (source == MODEL_RESUMED) { trainer_die_of_checkpoint(t, error); }
        if (source == MODEL_NEW) { source_refuse(t->source, error); }
        source_die(t->source, error);
    }
    if (source == MODEL_RESUMED || source == MODEL_CHECKPOINT) { trainer_read_seals(t, source, path); }
    t->has_like = source == MODEL_HF;
    if (source == MODEL_RESUMED) { compare_with_asked(t, &config, path); }
    check_data_fits(t, &config, path);
    check_device_fits(t, &config, path);
    check_tokens_fit(t, path);
    const ModelPart part = source_part(t->source, &config);
    model_init_part(&t->model, &config, &part, source_ops(t->source));
    model_alloc_grads(&t->model);
    t->model.dropout = (float)flags->dropout;
    fill_params(t, source, path);
    source_attach(t->source, &t->model);
    print_model(t, source, path);
    return source;
}

bool trainer_read_first_master(Trainer* t, ModelSource source, char* error) {
    Optimizer* o = &t->optimizer;
    if (source == MODEL_NEW || o->master == NULL) { return true; }
    if (source == MODEL_CHECKPOINT) { return trainer_read_master(t, t->flags.model, NULL, false, error); }
    o->master_is_set = true;
    return hf_checkpoint_read(t->flags.model, CHECKPOINT_FLOATS, &t->model, o->master, o->begin, o->end,
                              error);
}

const char* trainer_data_folder(const Trainer* t, char out[CHECKPOINT_PATH_CHARS]) {
    const char *pattern = t->flags.train_pattern, *slash = strrchr(pattern, '/');
    snprintf(out, CHECKPOINT_PATH_CHARS, "%.*s", slash != NULL ? (int)(slash - pattern) : 1,
             slash != NULL ? pattern : ".");
    return out;
}

// What config.json says of tokens where none was read: as the data has them.
static HfConfig config_of_data(const Trainer* t) {
    HfConfig out = hf_config_of_model(&t->model.config, NULL);
    int pad = source_pad_token(t->source);
    out.eos_token = source_eot_token(t->source);
    if (t->kind->has_decoder) {
        out.pad_token = pad >= 0 ? pad : HF_NO_TOKEN;
        out.start_token = pad >= 0 ? pad : out.eos_token;
    } else {
        out.bos_token = out.eos_token;
    }
    return out;
}

void trainer_export(Trainer* t) {
    char error[LLMC_ERROR_CHARS] = "", folder[CHECKPOINT_PATH_CHARS];
    const char* directory = t->flags.export_dir;
    if (directory == NULL) { return; }
    bool is_main = source_is_main(t->source);
    const HfConfig like = t->has_like ? t->like : config_of_data(t);
    HfTokens tokens = {.folder = trainer_data_folder(t, folder), .bytes = source_has_byt5_tokens(t->source)};
    SlowNotice* notice = trainer_notice(t, "exporting", -1, 0);
    bool ok = !is_main || hf_checkpoint_create(directory, &t->model.config, &like, &tokens, error);
    bool saved = trainer_all_succeeded(t, ok, "--export-hf", error);
    if (saved) {
        ok = !source_owns_params(t->source) || hf_checkpoint_write(directory, &t->model, error);
        saved = trainer_all_succeeded(t, ok, "--export-hf", error);
    }
    if (saved) {
        ok = !is_main || hf_checkpoint_commit(directory, error);
        saved = trainer_all_succeeded(t, ok, "--export-hf", error);
    }
    slow_notice_end(notice);
    if (!saved) {
        if (is_main) { hf_checkpoint_abort(directory); }
        t->save_failed = true;
    } else if (is_main) {
        printf("exported %s\n", directory);
    }
}
