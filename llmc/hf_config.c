// hf_config.c -- a model's config.json, read and written.
// Tables of fields, one for each family, for reading and writing. Defaults are those of configuration_*.py of
// these families in transformers 5.
#include "hf.h"

#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../util/checkpoint_files.h"
#include "kinds.h"
#include "llmc_error.h"

enum { MAX_CONFIG_BYTES = 1 << 20, MOST = 1 << 30, DEFAULT_MAX_SEQ_LEN = 512, PADDED = 128 };

static const char* const type_names[HF_NUM_TYPES] = {"gpt2", "t5", "mt5", "umt5", "llama", "qwen2"};

// --- fields ------------------------------------------------------------------------------------------------

typedef struct {
    const char *key, *alias;  // transformers accepts either
    size_t offset;            // of an int of ModelConfig
    int fallback[HF_NUM_TYPES];
} Dim;

#define DIM(key, alias, field, gpt2, t5, mt5, umt5) \
    {                                               \
        key, alias, offsetof(ModelConfig, field), { \
            gpt2, t5, mt5, umt5, 0, 0               \
        }                                           \
    }
#define LLAMA_DIM(key, field, llama, qwen2)        \
    {                                              \
        key, NULL, offsetof(ModelConfig, field), { \
            0, 0, 0, 0, llama, qwen2               \
        }                                          \
    }
static const Dim gpt2_dims[] = {
    DIM("vocab_size", NULL, vocab, 50257, 0, 0, 0),
    DIM("n_positions", "max_position_embeddings", max_seq_len, 1024, 0, 0, 0),
    DIM("n_embd", "hidden_size", channels, 768, 0, 0, 0),
    DIM("n_layer", "num_hidden_layers", num_layers, 12, 0, 0, 0),
    DIM("n_head", "num_attention_heads", num_heads, 12, 0, 0, 0),
};
static const Dim t5_dims[] = {
    DIM("vocab_size", NULL, vocab, 0, 32128, 250112, 250112),
    DIM("d_model", "hidden_size", channels, 0, 512, 512, 512),
    DIM("d_kv", "head_dim", head_size, 0, 64, 64, 64),
    DIM("d_ff", NULL, ffn_channels, 0, 2048, 1024, 1024),
    DIM("num_layers", "num_hidden_layers", num_layers, 0, 6, 8, 8),
    DIM("num_heads", "num_attention_heads", num_heads, 0, 8, 6, 6),
    DIM("relative_attention_num_buckets", NULL, num_buckets, 0, 32, 32, 32),
    DIM("relative_attention_max_distance", NULL, max_distance, 0, 128, 128, 128),
};
static const Dim llama_dims[] = {
    LLAMA_DIM("vocab_size", vocab, 32000, 151936),
    LLAMA_DIM("max_position_embeddings", max_seq_len, 2048, 32768),
    LLAMA_DIM("hidden_size", channels, 4096, 4096),
    LLAMA_DIM("intermediate_size", ffn_channels, 11008, 22016),
    LLAMA_DIM("num_hidden_layers", num_layers, 32, 32),
    LLAMA_DIM("num_attention_heads", num_heads, 32, 32),
};
#undef DIM
#undef LLAMA_DIM
#define NUM(array) ((int)(sizeof(array) / sizeof *(array)))

static int* dim_of(ModelConfig* shape, const Dim* dim) {
    return (int*)((char*)shape + dim->offset);
}

typedef struct {
    const char* name;  // of the file
    json_t* root;
} Reader;

// If `nullable`, null counts as missing.
static json_t* find(const Reader* r, const char* key, bool nullable) {
    json_t* value = json_object_get(r->root, key);
    return nullable && json_is_null(value) ? NULL : value;
}

static bool fits(const Reader* r, const char* key, const json_t* value, bool has_type, const char* type) {
    return value == NULL || has_type || llmc_fail("%s: %s ---> must be %s", r->name, key, type);
}

static bool read_int(const Reader* r, const char* key, const char* alias, bool nullable, int low,
                     int fallback, int* out) {
    json_t* value = find(r, key, nullable);
    if (value == NULL && alias != NULL && (value = find(r, alias, nullable)) != NULL) { key = alias; }
    json_int_t number = value == NULL ? fallback : json_integer_value(value);
    if ((value != NULL && !json_is_integer(value)) || number < low || number > MOST) {
        return llmc_fail("%s: %s ---> must be a whole number in %d ... %d", r->name, key, low, MOST);
    }
    *out = (int)number;
    return true;
}

static bool read_bool(const Reader* r, const char* key, bool fallback, bool* out) {
    json_t* value = find(r, key, false);
    *out = value == NULL ? fallback : json_is_true(value);
    return fits(r, key, value, json_is_boolean(value), "true or false");
}

static bool read_text(const Reader* r, const char* key, const char* fallback, const char** out) {
    json_t* value = find(r, key, false);
    *out = value == NULL ? fallback : json_string_value(value);
    return fits(r, key, value, json_is_string(value), "a text");
}

// A positive number that times `unit` is a whole one.
static bool read_scaled(const Reader* r, json_t* value, const char* key, double unit, double fallback,
                        int* out) {
    const double number = (value == NULL ? fallback : json_number_value(value)) * unit;
    if (!fits(r, key, value, json_is_number(value), "a number")) { return false; }
    if (number > 0.5 && number < MOST && fabs(number - round(number)) <= 1e-6 * number) {
        *out = (int)round(number);
        return true;
    }
    return llmc_fail("%s: %s is %g, which is not supported ---> use another model", r->name, key,
                     number / unit);
}

static bool read_epsilon(const Reader* r, const char* key, double fallback, ModelConfig* shape) {
    return read_scaled(r, find(r, key, false), key, 1e9, fallback, &shape->norm_eps);
}

static const char ends_key[] = "eos_token_id";

static bool token_of(const Reader* r, const char* key, const json_t* value, int fallback, int* out) {
    json_int_t number = value == NULL         ? fallback
                        : json_is_null(value) ? HF_NO_TOKEN
                                              : json_integer_value(value);
    if ((value != NULL && !json_is_null(value) && !json_is_integer(value)) || number < HF_NO_TOKEN ||
        number > MOST) {
        return llmc_fail("%s: %s ---> must be a token's number%s or null", r->name, key,
                         strcmp(key, ends_key) == 0 ? ", a list of them" : "");
    }
    *out = (int)number;
    return true;
}

static bool read_token(const Reader* r, const char* key, int fallback, int* out) {
    return token_of(r, key, json_object_get(r->root, key), fallback, out);
}

static bool in_vocab(const Reader* r, const char* key, int token, int vocab) {
    return token < vocab ||
           llmc_fail("%s: %s: token %d is beyond the vocabulary of %d ---> only numbers below that", r->name,
                     key, token, vocab);
}

// A token, or a list of them. A default beyond the vocabulary is none.
static bool read_ends(const Reader* r, int fallback, int vocab, TokenEnds* out) {
    const json_t* value = json_object_get(r->root, ends_key);
    const size_t num = json_is_array(value) ? json_array_size(value) : 1;
    *out = (TokenEnds){.num = 0};
    if (num > TOKEN_MOST_ENDS) {
        return llmc_fail("%s: %s: a list of %zu tokens ---> at most %d", r->name, ends_key, num,
                         TOKEN_MOST_ENDS);
    }
    for (size_t i = 0; i < num; i++) {
        const json_t* token = json_is_array(value) ? json_array_get(value, i) : value;
        int end;
        if (!token_of(r, ends_key, token, fallback < vocab ? fallback : HF_NO_TOKEN, &end) ||
            !in_vocab(r, ends_key, end, vocab)) {
            return false;
        }
        if (end != HF_NO_TOKEN) { out->ids[out->num++] = end; }
    }
    return true;
}

// --- required values --------------------------------------------------------------------------------------

static bool require_bool(const Reader* r, const char* key, bool wanted, const char* why) {
    bool value = wanted;
    if (!read_bool(r, key, wanted, &value)) { return false; }
    return value == wanted || llmc_fail("%s: %s is %s, which is not supported: %s ---> use another model",
                                        r->name, key, value ? "true" : "false", why);
}

static bool require_text(const Reader* r, const char* key, const char* wanted) {
    const char* value = NULL;
    if (!read_text(r, key, wanted, &value)) { return false; }
    return strcmp(value, wanted) == 0 ||
           llmc_fail("%s: %s is \"%.40s\", which is not supported, \"%s\" is ---> use another model", r->name,
                     key, value, wanted);
}

// Reject heads of other tasks and half models by class name, before a tensor is missed.
static bool require_architecture(const Reader* r) {
    static const char* const known[] = {"GPT2LMHeadModel",
                                        "GPT2Model",
                                        "T5ForConditionalGeneration",
                                        "T5WithLMHeadModel",
                                        "T5Model",
                                        "MT5ForConditionalGeneration",
                                        "MT5Model",
                                        "UMT5ForConditionalGeneration",
                                        "UMT5Model",
                                        "LlamaForCausalLM",
                                        "Qwen2ForCausalLM"};
    json_t* list = find(r, "architectures", true);
    if (!fits(r, "architectures", list, json_is_array(list), "a list of names")) { return false; }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char* name = json_string_value(json_array_get(list, i));
        bool is_known = false;
        for (int k = 0; k < NUM(known) && name != NULL; k++) {
            is_known = is_known || strcmp(name, known[k]) == 0;
        }
        if (!is_known) {
            return llmc_fail(
                "%s: architectures: %.60s is not supported ---> use a ...ForConditionalGeneration, "
                "GPT2LMHeadModel, LlamaForCausalLM or Qwen2ForCausalLM",
                r->name, name == NULL ? "what is no text" : name);
        }
    }
    return find(r, "quantization_config", true) == NULL ||
           llmc_fail("%s: quantization_config is not supported ---> use weights in F32, F16 or BF16",
                     r->name);
}

// --- the families ------------------------------------------------------------------------------------------

static bool read_dims(const Reader* r, HfConfig* config, const Dim* dims, int num_dims) {
    for (int i = 0; i < num_dims; i++) {
        int* out = dim_of(&config->shape, &dims[i]);
        if (!read_int(r, dims[i].key, dims[i].alias, false, 1, dims[i].fallback[config->type], out)) {
            return false;
        }
    }
    ModelConfig* shape = &config->shape;
    shape->padded_vocab = (shape->vocab + PADDED - 1) / PADDED * PADDED;
    return true;
}

static bool read_dropout(const Reader* r, const char* key, double* out) {
    json_t* value = find(r, key, false);
    *out = value == NULL ? 0.1 : json_number_value(value);
    return ((value == NULL || json_is_number(value)) && *out >= 0 && *out < 1) ||
           llmc_fail("%s: %s ---> must be a number in 0 ... 1", r->name, key);
}

// Most names are of the approximation by tanh.
static bool read_gelu(const Reader* r, ModelConfig* shape) {
    static const char* const names[] = {"gelu", "gelu_python", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"};
    const char* name = NULL;
    if (!read_text(r, "activation_function", "gelu_new", &name)) { return false; }
    for (int i = 0; i < NUM(names); i++) {
        shape->exact_gelu = i < 2;
        if (strcmp(name, names[i]) == 0) { return true; }
    }
    return llmc_fail("%s: activation_function is \"%.40s\", which is not supported, \"gelu\" and "
                     "\"gelu_new\" are ---> use another model",
                     r->name, name);
}

static bool read_gpt2(const Reader* r, HfConfig* config) {
    ModelConfig* shape = &config->shape;
    bool tied = true;
    if (!read_dims(r, config, gpt2_dims, NUM(gpt2_dims)) ||
        !read_int(r, "n_inner", NULL, true, 1, shape->channels <= MOST / 4 ? 4 * shape->channels : MOST,
                  &shape->ffn_channels) ||
        !read_gelu(r, shape) || !read_epsilon(r, "layer_norm_epsilon", 1e-5, shape) ||
        !read_bool(r, "tie_word_embeddings", true, &tied)) {
        return false;
    }
    if (shape->channels % shape->num_heads != 0) {
        return llmc_fail("%s: n_embd %d is no multiple of n_head %d ---> use another model", r->name,
                         shape->channels, shape->num_heads);
    }
    shape->tied_head = tied;
    config->start_token = HF_NO_TOKEN;
    int last_word = 50256;
    return require_bool(r, "scale_attn_weights", true, "scores are divided by the root of the head's size") &&
           require_bool(r, "scale_attn_by_inverse_layer_idx", false, "all layers are scaled alike") &&
           require_bool(r, "add_cross_attention", false, "there is no encoder") &&
           require_bool(r, "is_encoder_decoder", false, "there is no encoder") &&
           read_dropout(r, "resid_pdrop", &config->dropout) &&
           read_token(r, "bos_token_id", last_word, &config->bos_token) &&
           read_ends(r, last_word, shape->vocab, &config->ends) &&
           read_token(r, "pad_token_id", HF_NO_TOKEN, &config->pad_token);
}

// feed_forward_proj decides; dense_act_fn and is_gated_act follow from it and may be present.
static bool read_feed_forward(const Reader* r, HfConfig* config) {
    const char* name = NULL;
    if (!read_text(r, "feed_forward_proj", config->type == HF_T5 ? "relu" : "gated-gelu", &name)) {
        return false;
    }
    bool gated = strcmp(name, "gated-gelu") == 0;
    if (!gated && strcmp(name, "relu") != 0) {
        return llmc_fail(
            "%s: feed_forward_proj is \"%.40s\", which is not supported, \"relu\" and \"gated-gelu\" are "
            "---> use another model",
            r->name, name);
    }
    config->shape.gated = gated;
    return require_text(r, "dense_act_fn", gated ? "gelu_new" : "relu") &&
           require_bool(r, "is_gated_act", gated, "it contradicts feed_forward_proj");
}

// transformers 5 ties every T5 (unless the tensors differ) and keeps the old flag's meaning in
// scale_decoder_outputs; mT5 never scales.
static bool read_head(const Reader* r, HfConfig* config) {
    bool flag = true;
    if (!read_bool(r, "tie_word_embeddings", true, &flag)) { return false; }
    config->shape.tied_head = flag;
    return config->type == HF_MT5 || read_bool(r, "scale_decoder_outputs", flag, &config->head_scaled);
}

static bool read_t5(const Reader* r, HfConfig* config) {
    ModelConfig* shape = &config->shape;
    if (!read_dims(r, config, t5_dims, NUM(t5_dims)) ||
        !read_int(r, "num_decoder_layers", NULL, true, 1, shape->num_layers, &shape->num_dec_layers) ||
        !read_int(r, "n_positions", NULL, true, 1, DEFAULT_MAX_SEQ_LEN, &shape->max_seq_len) ||
        !read_feed_forward(r, config) || !read_head(r, config)) {
        return false;
    }
    shape->bias_per_layer = config->type == HF_UMT5;
    return read_epsilon(r, "layer_norm_epsilon", 1e-6, shape) &&
           require_bool(r, "is_encoder_decoder", true, "both stacks are needed") &&
           require_bool(r, "is_decoder", false, "both stacks are needed") &&
           read_dropout(r, "dropout_rate", &config->dropout) &&
           read_token(r, "pad_token_id", 0, &config->pad_token) &&
           read_token(r, "bos_token_id", HF_NO_TOKEN, &config->bos_token) &&
           read_ends(r, 1, shape->vocab, &config->ends) &&
           read_token(r, "decoder_start_token_id", config->pad_token, &config->start_token) &&
           in_vocab(r, "decoder_start_token_id", config->start_token, shape->vocab);
}

// transformers 5 has rope_parameters, 4 rope_theta and rope_scaling, which is null where nothing is scaled,
// and goes before.
static bool read_rope(const Reader* r, ModelConfig* shape) {
    static const char* const keys[] = {"rope_scaling", "rope_parameters"};
    char name[200];
    const int i = find(r, keys[0], true) == NULL;
    json_t* about = find(r, keys[i], true);
    const Reader in = {name, about};
    if (!fits(r, keys[i], about, json_is_object(about), "an object")) { return false; }
    snprintf(name, sizeof name, "%s: %s", r->name, keys[i]);
    json_t *theta = find(&in, "rope_theta", true), *factor = find(&in, "factor", true);
    const char* type = factor == NULL ? "default" : "unknown";
    if (!read_text(&in, "type", type, &type) || !read_text(&in, "rope_type", type, &type) ||
        !read_scaled(r, theta != NULL ? theta : find(r, "rope_theta", false), "rope_theta", 1, 10000,
                     &shape->rope_theta)) {
        return false;
    }
    if (strcmp(type, "default") == 0) { return true; }
    const bool is_llama3 = strcmp(type, "llama3") == 0;
    if (!is_llama3 && strcmp(type, "linear") != 0) {
        return llmc_fail("%s: type \"%.40s\" is not supported, \"default\", \"linear\" and \"llama3\" are "
                         "---> use another model",
                         name, type);
    }
    if (!read_scaled(&in, factor, "factor", 1e3, 0, &shape->rope_factor)) { return false; }
    return !is_llama3 ||
           (read_int(&in, "original_max_position_embeddings", NULL, true, 1, 0, &shape->rope_original) &&
            read_scaled(&in, find(&in, "low_freq_factor", true), "low_freq_factor", 1e3, 0,
                        &shape->rope_low_freq) &&
            read_scaled(&in, find(&in, "high_freq_factor", true), "high_freq_factor", 1e3, 0,
                        &shape->rope_high_freq));
}

static bool read_llama(const Reader* r, HfConfig* config) {
    ModelConfig* shape = &config->shape;
    const bool is_qwen = config->type == HF_QWEN2;
    bool tied = false;
    if (!read_dims(r, config, llama_dims, NUM(llama_dims)) ||
        !read_int(r, "num_key_value_heads", NULL, true, 1, shape->num_heads, &shape->num_kv_heads) ||
        !read_int(r, "head_dim", NULL, true, 1, shape->channels / shape->num_heads, &shape->head_size) ||
        !read_rope(r, shape) || !read_epsilon(r, "rms_norm_eps", 1e-6, shape) ||
        !read_bool(r, "tie_word_embeddings", false, &tied)) {
        return false;
    }
    shape->gated = 1;
    shape->tied_head = tied;
    shape->qkv_bias = is_qwen;
    config->start_token = HF_NO_TOKEN;
    config->dropout = 0;
    return require_text(r, "hidden_act", "silu") &&
           (is_qwen || require_bool(r, "attention_bias", false, "only Qwen2 has biases of q, k and v")) &&
           require_bool(r, "mlp_bias", false, "the feed-forward has no biases") &&
           require_bool(r, "use_sliding_window", false, "all tokens before are seen") &&
           read_token(r, "pad_token_id", HF_NO_TOKEN, &config->pad_token) &&
           read_token(r, "bos_token_id", is_qwen ? HF_NO_TOKEN : 1, &config->bos_token) &&
           read_ends(r, is_qwen ? HF_NO_TOKEN : 2, shape->vocab, &config->ends);
}

static bool read_config(const Reader* r, HfConfig* config) {
    const char* type = NULL;
    if (!read_text(r, "model_type", NULL, &type)) { return false; }
    if (type == NULL) {
        return llmc_fail(
            "%s: model_type is missing ---> must be \"gpt2\", \"t5\", \"mt5\", \"umt5\", \"llama\" or "
            "\"qwen2\"",
            r->name);
    }
    for (int i = 0; i < HF_NUM_TYPES; i++) {
        if (strcmp(type, type_names[i]) != 0) { continue; }
        config->type = (HfType)i;
        return require_architecture(r) && (i == HF_GPT2   ? read_gpt2(r, config)
                                           : i < HF_LLAMA ? read_t5(r, config)
                                                          : read_llama(r, config));
    }
    return llmc_fail(
        "%s: model_type \"%.40s\" is not supported ---> use a gpt2, t5, mt5, umt5, llama or qwen2", r->name,
        type);
}

const char* hf_config_type(const HfConfig* config) {
    return type_names[config->type];
}

const ModelKind* hf_config_kind(const HfConfig* config) {
    return config->type == HF_GPT2 ? &gpt2_kind : config->type < HF_LLAMA ? &t5_kind : &llama_kind;
}

// root NULL: no object.
static Reader reader_of(const char* text, size_t num_bytes, const char* name) {
    json_error_t reason;
    json_t* root = json_loadb(text, num_bytes, JSON_REJECT_DUPLICATES, &reason);
    if (root == NULL) {
        llmc_fail("%s:%d: %.120s ---> give one JSON object", name, reason.line, reason.text);
    } else if (!json_is_object(root)) {
        llmc_fail("%s: no JSON object ---> use a model's config.json", name);
        json_decref(root);
        root = NULL;
    }
    return (Reader){name, root};
}

bool hf_config_parse(HfConfig* out, const char* text, size_t num_bytes, const char* name) {
    Reader r = reader_of(text, num_bytes, name);
    HfConfig config = {0};
    bool ok = r.root != NULL && read_config(&r, &config);
    json_decref(r.root);
    if (ok) { *out = config; }
    return ok;
}

// To be freed.
static bool read_file(char** text, size_t* num_bytes, const char* path) {
    CheckpointFile file;
    if (!llmc_ok(checkpoint_file_open(&file, path))) { return false; }
    bool ok = file.num_bytes <= MAX_CONFIG_BYTES ||
              llmc_fail("%s: %lld bytes ---> a config has at most %d", checkpoint_path_tail(path),
                        (long long)file.num_bytes, MAX_CONFIG_BYTES);
    *num_bytes = (size_t)file.num_bytes;
    *text = ok ? llmc_alloc(*num_bytes, "a config") : NULL;
    ok = ok && llmc_ok(checkpoint_file_read(&file, *text, file.num_bytes, 0));
    if (!ok) { free(*text); }
    checkpoint_file_close(&file);
    return ok;
}

enum { GENERATION_CHARS = CHECKPOINT_PATH_CHARS + 32 };

// A folder's generation_config.json; root NULL: none there, or it is broken (false).
static bool read_generation(Reader* out, char path[GENERATION_CHARS], const char* folder) {
    char* text;
    size_t num_bytes;
    *out = (Reader){.root = NULL};
    snprintf(path, GENERATION_CHARS, "%.*s/generation_config.json", CHECKPOINT_PATH_CHARS, folder);
    if (access(path, F_OK) != 0) { return true; }
    if (!read_file(&text, &num_bytes, path)) { return false; }
    *out = reader_of(text, num_bytes, checkpoint_path_tail(path));
    free(text);
    return out->root != NULL;
}

bool hf_ends_read(TokenEnds* out, int* bos_token, const char* folder, int vocab) {
    char path[GENERATION_CHARS];
    TokenEnds ends = {.num = 0};
    Reader r;
    if (!read_generation(&r, path, folder)) { return false; }
    bool ok = r.root == NULL || (read_ends(&r, HF_NO_TOKEN, vocab, &ends) &&
                                 read_token(&r, "bos_token_id", HF_NO_TOKEN, bos_token));
    json_decref(r.root);
    if (ok && ends.num > 0) { *out = ends; }
    return ok;
}

const char* hf_folder(const char* path, char out[CHECKPOINT_PATH_CHARS]) {
    struct stat about;
    const char* slash = strrchr(path, '/');
    if (stat(path, &about) != 0 || !S_ISDIR(about.st_mode)) {
        if (slash == NULL) { path = "."; }
        snprintf(out, CHECKPOINT_PATH_CHARS, "%.*s", slash != NULL ? (int)(slash - path) : 1, path);
    } else {
        snprintf(out, CHECKPOINT_PATH_CHARS, "%s", path);
    }
    return out;
}

bool hf_config_read(HfConfig* out, const char* path) {
    char folder[CHECKPOINT_PATH_CHARS], config_path[CHECKPOINT_PATH_CHARS + 16], *text;
    size_t num_bytes;
    snprintf(config_path, sizeof config_path, "%s/config.json", hf_folder(path, folder));
    if (!read_file(&text, &num_bytes, config_path)) { return false; }
    bool ok = hf_config_parse(out, text, num_bytes, checkpoint_path_tail(config_path));
    free(text);
    return ok && hf_ends_read(&out->ends, &(int){0}, folder, out->shape.vocab);
}

// --- writing -----------------------------------------------------------------------------------------------

HfConfig hf_config_of_model(const ModelConfig* config, const HfConfig* like) {
    HfConfig out = {.type = HF_GPT2, .shape = *config, .dropout = 0.1};
    const bool is_t5 = config->num_dec_layers > 0;
    if (is_t5) { out.type = config->bias_per_layer ? HF_UMT5 : HF_T5; }
    const bool is_rotary = config->num_kv_heads > 0;
    if (is_rotary) {
        out.type = config->qkv_bias ? HF_QWEN2 : HF_LLAMA;
        out.dropout = 0;
    }
    // mT5 has no factor, so not a tied head of ours
    if (like != NULL && like->type == HF_MT5 && !config->tied_head) { out.type = HF_MT5; }
    // a T5's head has the factor where it is tied; transformers scales every umT5's
    out.head_scaled = is_t5 && (config->tied_head || config->bias_per_layer);
    out.pad_token = is_t5 ? 0 : HF_NO_TOKEN;
    out.ends = (TokenEnds){{is_t5 ? 1 : config->vocab - 1}, 1};
    out.bos_token = is_t5 ? HF_NO_TOKEN : config->vocab - 1;
    out.start_token = is_t5 ? 0 : HF_NO_TOKEN;
    if (like != NULL) {
        out.pad_token = like->pad_token;
        out.bos_token = like->bos_token;
        out.ends = like->ends;
        out.start_token = like->start_token;
        out.dropout = like->dropout;
        out.generation = like->generation;
    }
    return out;
}

static void put(json_t* root, const char* key, json_t* value) {
    json_object_set_new(root, key, value);
}

static void put_token(json_t* root, const char* key, int token) {
    if (token != HF_NO_TOKEN) { put(root, key, json_integer(token)); }
}

static void put_ends(json_t* root, const TokenEnds* ends) {
    json_t* list = json_array();
    for (int i = 0; i < ends->num; i++) { json_array_append_new(list, json_integer(ends->ids[i])); }
    if (ends->num > 0) { json_object_set(root, ends_key, ends->num > 1 ? list : json_array_get(list, 0)); }
    json_decref(list);
}

static void put_tokens(json_t* root, const HfConfig* config) {
    put_token(root, "bos_token_id", config->bos_token);
    const bool is_llama = config->type == HF_LLAMA;  // absent, it would be 1
    if (is_llama && config->bos_token == HF_NO_TOKEN) { put(root, "bos_token_id", json_null()); }
    put_token(root, "decoder_start_token_id", config->start_token);
    put_ends(root, &config->ends);
    put_token(root, "pad_token_id", config->pad_token);
}

static void put_dims(json_t* root, const HfConfig* config, const Dim* dims, int num_dims) {
    ModelConfig shape = config->shape;
    for (int i = 0; i < num_dims; i++) { put(root, dims[i].key, json_integer(*dim_of(&shape, &dims[i]))); }
}

static void put_gpt2(json_t* root, const HfConfig* config) {
    const ModelConfig* shape = &config->shape;
    put_dims(root, config, gpt2_dims, NUM(gpt2_dims));
    put(root, "activation_function", json_string(shape->exact_gelu ? "gelu" : "gelu_new"));
    put(root, "layer_norm_epsilon", json_real(shape->norm_eps * 1e-9));
    if (shape->ffn_channels != 4 * shape->channels) {
        put(root, "n_inner", json_integer(shape->ffn_channels));
    }
    static const char* const dropouts[] = {"attn_pdrop", "embd_pdrop", "resid_pdrop"};
    for (int i = 0; i < 3; i++) { put(root, dropouts[i], json_real(config->dropout)); }
    put(root, "tie_word_embeddings", json_boolean(shape->tied_head));
}

static void put_t5(json_t* root, const HfConfig* config) {
    const ModelConfig* shape = &config->shape;
    put_dims(root, config, t5_dims, NUM(t5_dims));
    put(root, "num_decoder_layers", json_integer(shape->num_dec_layers));
    put(root, "feed_forward_proj", json_string(shape->gated ? "gated-gelu" : "relu"));
    put(root, "dense_act_fn", json_string(shape->gated ? "gelu_new" : "relu"));
    put(root, "is_gated_act", json_boolean(shape->gated));
    put(root, "is_encoder_decoder", json_true());
    put(root, "layer_norm_epsilon", json_real(shape->norm_eps * 1e-9));
    put(root, "dropout_rate", json_real(config->dropout));
    put(root, "tie_word_embeddings", json_boolean(shape->tied_head));
    if (config->type == HF_T5) { put(root, "scale_decoder_outputs", json_boolean(config->head_scaled)); }
}

// rope_theta as transformers 4 has it, which 5 reads as well.
static void put_llama(json_t* root, const HfConfig* config) {
    const ModelConfig* shape = &config->shape;
    put_dims(root, config, llama_dims, NUM(llama_dims));
    put(root, "num_key_value_heads", json_integer(shape->num_kv_heads));
    put(root, "head_dim", json_integer(shape->head_size));
    put(root, "hidden_act", json_string("silu"));
    put(root, "rms_norm_eps", json_real(shape->norm_eps * 1e-9));
    put(root, "rope_theta", json_real(shape->rope_theta));
    if (shape->rope_factor > 0) {
        json_t* rope = json_pack("{s:s, s:f}", "rope_type", shape->rope_original > 0 ? "llama3" : "linear",
                                 "factor", shape->rope_factor / 1e3);
        put(root, "rope_scaling", rope);
        if (shape->rope_original > 0) {
            put(rope, "original_max_position_embeddings", json_integer(shape->rope_original));
            put(rope, "low_freq_factor", json_real(shape->rope_low_freq / 1e3));
            put(rope, "high_freq_factor", json_real(shape->rope_high_freq / 1e3));
        }
    }
    put(root, "attention_dropout", json_real(config->dropout));
    put(root, "tie_word_embeddings", json_boolean(shape->tied_head));
    if (config->type == HF_LLAMA) { put(root, "attention_bias", json_false()); }
    put(root, config->type == HF_LLAMA ? "mlp_bias" : "use_sliding_window", json_false());
}

static char* dump(json_t* root) {
    char* text = json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(10));
    json_decref(root);
    size_t num_chars = strlen(text);
    char* lines = llmc_alloc(num_chars + 2, "a config");
    memcpy(lines, text, num_chars);
    lines[num_chars] = '\n';
    free(text);
    return lines;
}

char* hf_config_text(const HfConfig* config, const char* dtype) {
    static const char* const architectures[HF_NUM_TYPES] = {"GPT2LMHeadModel",
                                                            "T5ForConditionalGeneration",
                                                            "MT5ForConditionalGeneration",
                                                            "UMT5ForConditionalGeneration",
                                                            "LlamaForCausalLM",
                                                            "Qwen2ForCausalLM"};
    json_t* root =
        json_pack("{s:s, s:[s], s:s, s:b}", "model_type", type_names[config->type], "architectures",
                  architectures[config->type], "torch_dtype", dtype, "use_cache", 1);
    put_tokens(root, config);
    if (config->type == HF_GPT2) {
        put_gpt2(root, config);
    } else if (config->type >= HF_LLAMA) {
        put_llama(root, config);
    } else {
        put_t5(root, config);
    }
    return dump(root);
}

char* hf_config_generation_text(const HfConfig* config) {
    char path[GENERATION_CHARS];
    Reader theirs = {.root = NULL};
    if (config->generation != NULL) { read_generation(&theirs, path, config->generation); }
    json_t* root = theirs.root != NULL ? theirs.root : json_pack("{s:b}", "_from_model_config", 1);
    if (theirs.root != NULL) {
        put_ends(root, &config->ends);
    } else {
        put_tokens(root, config);
    }
    return dump(root);
}
