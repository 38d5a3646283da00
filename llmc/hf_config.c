// Tables of fields, one for each family; the same tables read and write. Defaults are those of
// configuration_gpt2.py, configuration_t5.py, configuration_mt5.py and configuration_umt5.py of
// transformers 5.
#include "hf_config.h"

#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "checkpoint_file.h"
#include "llmc_error.h"

enum { MAX_CONFIG_BYTES = 1 << 20, MOST = 1 << 30, DEFAULT_MAX_SEQ_LEN = 512, PADDED = 128 };

static const char* const type_names[HF_NUM_TYPES] = {"gpt2", "t5", "mt5", "umt5"};

const char* hf_type_name(HfType type) {
    return type_names[type];
}

// --- fields ------------------------------------------------------------------------------------------------

typedef struct {
    const char *key, *alias;  // transformers reads either
    size_t offset;            // of an int of ModelConfig
    int fallback[HF_NUM_TYPES];
} Dim;

#define DIM(key, alias, field, gpt2, t5, mt5, umt5) \
    {                                               \
        key, alias, offsetof(ModelConfig, field), { \
            gpt2, t5, mt5, umt5                     \
        }                                           \
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
#undef DIM
#define NUM(array) ((int)(sizeof(array) / sizeof *(array)))

static int* dim_of(ModelConfig* shape, const Dim* dim) {
    return (int*)((char*)shape + dim->offset);
}

typedef struct {
    const char* name;  // of the file
    json_t* root;
    char* error;
} Reader;

// null counts as missing where `nullable`.
static json_t* find(const Reader* r, const char* key, bool nullable) {
    json_t* value = json_object_get(r->root, key);
    return nullable && json_is_null(value) ? NULL : value;
}

static bool read_int(const Reader* r, const char* key, const char* alias, bool nullable, int low,
                     int fallback, int* out) {
    json_t* value = find(r, key, nullable);
    if (value == NULL && alias != NULL && (value = find(r, alias, nullable)) != NULL) { key = alias; }
    json_int_t number = value == NULL ? fallback : json_integer_value(value);
    if ((value != NULL && !json_is_integer(value)) || number < low || number > MOST) {
        return llmc_fail(r->error, "%s: %s ---> must be a whole number in %d ... %d", r->name, key, low,
                         MOST);
    }
    *out = (int)number;
    return true;
}

static bool read_bool(const Reader* r, const char* key, bool fallback, bool* out) {
    json_t* value = find(r, key, false);
    if (value != NULL && !json_is_boolean(value)) {
        return llmc_fail(r->error, "%s: %s ---> must be true or false", r->name, key);
    }
    *out = value == NULL ? fallback : json_is_true(value);
    return true;
}

static bool read_text(const Reader* r, const char* key, const char* fallback, const char** out) {
    json_t* value = find(r, key, false);
    if (value != NULL && !json_is_string(value)) {
        return llmc_fail(r->error, "%s: %s ---> must be a text", r->name, key);
    }
    *out = value == NULL ? fallback : json_string_value(value);
    return true;
}

// A token, or the first of several (eos_token_id may be a list).
static bool read_token(const Reader* r, const char* key, int fallback, int* out) {
    json_t* value = json_object_get(r->root, key);
    if (json_array_size(value) > 0) { value = json_array_get(value, 0); }
    json_int_t number = value == NULL         ? fallback
                        : json_is_null(value) ? HF_NO_TOKEN
                                              : json_integer_value(value);
    if ((value != NULL && !json_is_null(value) && !json_is_integer(value)) || number < HF_NO_TOKEN ||
        number > MOST) {
        return llmc_fail(r->error, "%s: %s ---> must be a token's number or null", r->name, key);
    }
    *out = (int)number;
    return true;
}

// --- what must be as we run it -----------------------------------------------------------------------------

static bool require_bool(const Reader* r, const char* key, bool wanted, const char* why) {
    bool value = wanted;
    if (!read_bool(r, key, wanted, &value)) { return false; }
    return value == wanted ||
           llmc_fail(r->error, "%s: %s is %s, which is not supported: %s ---> use another model", r->name,
                     key, value ? "true" : "false", why);
}

static bool require_text(const Reader* r, const char* key, const char* wanted) {
    const char* value = NULL;
    if (!read_text(r, key, wanted, &value)) { return false; }
    return strcmp(value, wanted) == 0 ||
           llmc_fail(r->error,
                     "%s: %s is \"%.40s\", which is not supported, \"%s\" is ---> use another model", r->name,
                     key, value, wanted);
}

static bool require_epsilon(const Reader* r, double wanted) {
    json_t* value = find(r, "layer_norm_epsilon", false);
    double epsilon = json_number_value(value);
    if (value != NULL && !json_is_number(value)) {
        return llmc_fail(r->error, "%s: layer_norm_epsilon ---> must be a number", r->name);
    }
    return value == NULL || fabs(epsilon - wanted) <= 1e-6 * wanted ||
           llmc_fail(r->error,
                     "%s: layer_norm_epsilon is %g, which is not supported, %g is ---> use another model",
                     r->name, epsilon, wanted);
}

// Heads of other tasks, or half of the model, are told by the class's name before a tensor is missed.
static bool require_architecture(const Reader* r) {
    static const char* const known[] = {"GPT2LMHeadModel",
                                        "GPT2Model",
                                        "T5ForConditionalGeneration",
                                        "T5WithLMHeadModel",
                                        "T5Model",
                                        "MT5ForConditionalGeneration",
                                        "MT5Model",
                                        "UMT5ForConditionalGeneration",
                                        "UMT5Model"};
    json_t* list = find(r, "architectures", true);
    if (list != NULL && !json_is_array(list)) {
        return llmc_fail(r->error, "%s: architectures ---> must be a list of names", r->name);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char* name = json_string_value(json_array_get(list, i));
        bool is_known = false;
        for (int k = 0; k < NUM(known) && name != NULL; k++) {
            is_known = is_known || strcmp(name, known[k]) == 0;
        }
        if (!is_known) {
            return llmc_fail(
                r->error,
                "%s: architectures: %.60s is not supported ---> use a ...ForConditionalGeneration or "
                "GPT2LMHeadModel",
                r->name, name == NULL ? "what is no text" : name);
        }
    }
    return find(r, "quantization_config", true) == NULL ||
           llmc_fail(r->error,
                     "%s: quantization_config is not supported ---> use weights in F32, F16 or BF16",
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
           llmc_fail(r->error, "%s: %s ---> must be a number in 0 ... 1", r->name, key);
}

static bool read_gpt2(const Reader* r, HfConfig* config) {
    ModelConfig* shape = &config->shape;
    int num_inner = 0;
    if (!read_dims(r, config, gpt2_dims, NUM(gpt2_dims)) ||
        !read_int(r, "n_inner", NULL, true, 1, shape->channels <= MOST / 4 ? 4 * shape->channels : MOST,
                  &num_inner)) {
        return false;
    }
    if (num_inner != 4 * (int64_t)shape->channels) {
        return llmc_fail(r->error,
                         "%s: n_inner is %d, which is not supported, 4 n_embd is ---> use another model",
                         r->name, num_inner);
    }
    if (shape->channels % shape->num_heads != 0) {
        return llmc_fail(r->error, "%s: n_embd %d is no multiple of n_head %d ---> use another model",
                         r->name, shape->channels, shape->num_heads);
    }
    shape->tied_head = true;
    config->start_token = HF_NO_TOKEN;
    int last_word = 50256;
    return require_text(r, "activation_function", "gelu_new") && require_epsilon(r, 1e-5) &&
           require_bool(r, "scale_attn_weights", true, "scores are divided by the root of the head's size") &&
           require_bool(r, "scale_attn_by_inverse_layer_idx", false, "all layers are scaled alike") &&
           require_bool(r, "add_cross_attention", false, "there is no encoder") &&
           require_bool(r, "is_encoder_decoder", false, "there is no encoder") &&
           require_bool(r, "tie_word_embeddings", true, "the head is the embedding") &&
           read_dropout(r, "resid_pdrop", &config->dropout) &&
           read_token(r, "bos_token_id", last_word, &config->bos_token) &&
           read_token(r, "eos_token_id", last_word, &config->eos_token) &&
           read_token(r, "pad_token_id", HF_NO_TOKEN, &config->pad_token);
}

// feed_forward_proj decides; dense_act_fn and is_gated_act follow from it and may be there as well.
static bool read_feed_forward(const Reader* r, HfConfig* config) {
    const char* name = NULL;
    if (!read_text(r, "feed_forward_proj", config->type == HF_T5 ? "relu" : "gated-gelu", &name)) {
        return false;
    }
    bool gated = strcmp(name, "gated-gelu") == 0;
    if (!gated && strcmp(name, "relu") != 0) {
        return llmc_fail(
            r->error,
            "%s: feed_forward_proj is \"%.40s\", which is not supported, \"relu\" and \"gated-gelu\" are "
            "---> use another model",
            r->name, name);
    }
    config->shape.gated = gated;
    return require_text(r, "dense_act_fn", gated ? "gelu_new" : "relu") &&
           require_bool(r, "is_gated_act", gated, "it contradicts feed_forward_proj");
}

// transformers 5 ties every T5 (unless the tensors differ) and keeps the old flag's meaning in
// scale_decoder_outputs; mT5 never scales, umT5 always.
static bool read_head(const Reader* r, HfConfig* config) {
    bool flag = true;
    if (!read_bool(r, "tie_word_embeddings", true, &flag)) { return false; }
    config->shape.tied_head = flag;
    if (config->type == HF_T5) { return read_bool(r, "scale_decoder_outputs", flag, &config->head_scaled); }
    config->head_scaled = config->type == HF_UMT5;
    return true;
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
    return require_epsilon(r, 1e-6) &&
           require_bool(r, "is_encoder_decoder", true, "both stacks are needed") &&
           require_bool(r, "is_decoder", false, "both stacks are needed") &&
           read_dropout(r, "dropout_rate", &config->dropout) &&
           read_token(r, "pad_token_id", 0, &config->pad_token) &&
           read_token(r, "bos_token_id", HF_NO_TOKEN, &config->bos_token) &&
           read_token(r, "eos_token_id", 1, &config->eos_token) &&
           read_token(r, "decoder_start_token_id", config->pad_token, &config->start_token);
}

static bool read_config(const Reader* r, HfConfig* config) {
    const char* type = NULL;
    if (!read_text(r, "model_type", NULL, &type)) { return false; }
    if (type == NULL) {
        return llmc_fail(r->error,
                         "%s: model_type is missing ---> must be \"gpt2\", \"t5\", \"mt5\" or \"umt5\"",
                         r->name);
    }
    for (int i = 0; i < HF_NUM_TYPES; i++) {
        if (strcmp(type, type_names[i]) != 0) { continue; }
        config->type = (HfType)i;
        return require_architecture(r) && (i == HF_GPT2 ? read_gpt2(r, config) : read_t5(r, config));
    }
    return llmc_fail(r->error, "%s: model_type \"%.40s\" is not supported ---> use a gpt2, t5, mt5 or umt5",
                     r->name, type);
}

bool hf_config_parse(HfConfig* out, const char* text, size_t num_bytes, const char* name, char* error) {
    json_error_t reason;
    Reader r = {.name = name, .error = error};
    r.root = json_loadb(text, num_bytes, JSON_REJECT_DUPLICATES, &reason);
    if (r.root == NULL) {
        return llmc_fail(error, "%s:%d: %.120s ---> give one JSON object", name, reason.line, reason.text);
    }
    HfConfig config = {0};
    bool ok = json_is_object(r.root)
                  ? read_config(&r, &config)
                  : llmc_fail(error, "%s: no JSON object ---> use a model's config.json", name);
    json_decref(r.root);
    if (ok) { *out = config; }
    return ok;
}

bool hf_config_read(HfConfig* out, const char* path, char* error) {
    struct stat info;
    bool is_directory = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    const char* slash = strrchr(path, '/');
    int folder_chars = is_directory ? (int)strlen(path) : slash == NULL ? 0 : (int)(slash - path);
    const char* folder = folder_chars > 0 ? path : slash == path ? "" : ".";
    char config_path[CHECKPOINT_PATH_CHARS];
    int num_chars = snprintf(config_path, sizeof config_path, "%.*s/config.json",
                             folder_chars > 0 ? folder_chars : (int)strlen(folder), folder);
    if (num_chars < 0 || (size_t)num_chars >= sizeof config_path) {
        return llmc_fail(error, "%s: path too long ---> use a shorter one", llmc_path_tail(path));
    }
    CheckpointFile file;
    if (!checkpoint_file_open(&file, config_path, error)) { return false; }
    const char* name = llmc_path_tail(config_path);
    bool ok = false;
    if (file.num_bytes > MAX_CONFIG_BYTES) {
        llmc_fail(error, "%s: %lld bytes ---> a config has at most %d", name, (long long)file.num_bytes,
                  MAX_CONFIG_BYTES);
    } else {
        char* text = llmc_alloc((size_t)file.num_bytes, "a config");
        ok = checkpoint_file_read(&file, text, file.num_bytes, 0, error) &&
             hf_config_parse(out, text, (size_t)file.num_bytes, name, error);
        free(text);
    }
    checkpoint_file_close(&file);
    return ok;
}

// --- writing -----------------------------------------------------------------------------------------------

HfConfig hf_config_of_model(const ModelConfig* config, const HfConfig* like) {
    HfConfig out = {.type = HF_GPT2, .shape = *config, .dropout = 0.1};
    const bool is_t5 = config->num_dec_layers > 0;
    if (is_t5) { out.type = config->bias_per_layer ? HF_UMT5 : HF_T5; }
    // a T5's head has the factor where it is tied; transformers scales every umT5's
    out.head_scaled = is_t5 && (config->tied_head || config->bias_per_layer);
    out.pad_token = is_t5 ? 0 : HF_NO_TOKEN;
    out.eos_token = is_t5 ? 1 : config->vocab - 1;
    out.bos_token = is_t5 ? HF_NO_TOKEN : config->vocab - 1;
    out.start_token = is_t5 ? 0 : HF_NO_TOKEN;
    if (like != NULL) {
        out.pad_token = like->pad_token;
        out.bos_token = like->bos_token;
        out.eos_token = like->eos_token;
        out.start_token = like->start_token;
        out.dropout = like->dropout;
    }
    return out;
}

static void put(json_t* root, const char* key, json_t* value) {
    json_object_set_new(root, key, value);
}

static void put_token(json_t* root, const char* key, int token) {
    if (token != HF_NO_TOKEN) { put(root, key, json_integer(token)); }
}

static void put_tokens(json_t* root, const HfConfig* config) {
    put_token(root, "bos_token_id", config->bos_token);
    put_token(root, "decoder_start_token_id", config->start_token);
    put_token(root, "eos_token_id", config->eos_token);
    put_token(root, "pad_token_id", config->pad_token);
}

static void put_dims(json_t* root, const HfConfig* config, const Dim* dims, int num_dims) {
    ModelConfig shape = config->shape;
    for (int i = 0; i < num_dims; i++) { put(root, dims[i].key, json_integer(*dim_of(&shape, &dims[i]))); }
}

static void put_gpt2(json_t* root, const HfConfig* config) {
    put_dims(root, config, gpt2_dims, NUM(gpt2_dims));
    put(root, "activation_function", json_string("gelu_new"));
    put(root, "layer_norm_epsilon", json_real(1e-5));
    static const char* const dropouts[] = {"attn_pdrop", "embd_pdrop", "resid_pdrop"};
    for (int i = 0; i < 3; i++) { put(root, dropouts[i], json_real(config->dropout)); }
    put(root, "tie_word_embeddings", json_true());
}

static void put_t5(json_t* root, const HfConfig* config) {
    const ModelConfig* shape = &config->shape;
    put_dims(root, config, t5_dims, NUM(t5_dims));
    put(root, "num_decoder_layers", json_integer(shape->num_dec_layers));
    put(root, "feed_forward_proj", json_string(shape->gated ? "gated-gelu" : "relu"));
    put(root, "dense_act_fn", json_string(shape->gated ? "gelu_new" : "relu"));
    put(root, "is_gated_act", json_boolean(shape->gated));
    put(root, "is_encoder_decoder", json_true());
    put(root, "layer_norm_epsilon", json_real(1e-6));
    put(root, "dropout_rate", json_real(config->dropout));
    put(root, "tie_word_embeddings", json_boolean(shape->tied_head));
    if (config->type == HF_T5) { put(root, "scale_decoder_outputs", json_boolean(config->head_scaled)); }
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
    static const char* const architectures[HF_NUM_TYPES] = {"GPT2LMHeadModel", "T5ForConditionalGeneration",
                                                            "T5ForConditionalGeneration",
                                                            "UMT5ForConditionalGeneration"};
    HfConfig theirs = *config;
    if (theirs.type == HF_MT5) { theirs.type = HF_T5; }
    json_t* root = json_pack("{s:s, s:[s], s:s, s:b}", "model_type", type_names[theirs.type], "architectures",
                             architectures[theirs.type], "torch_dtype", dtype, "use_cache", 1);
    put_tokens(root, &theirs);
    if (theirs.type == HF_GPT2) {
        put_gpt2(root, &theirs);
    } else {
        put_t5(root, &theirs);
    }
    return dump(root);
}

char* hf_config_generation_text(const HfConfig* config) {
    json_t* root = json_pack("{s:b}", "_from_model_config", 1);
    put_tokens(root, config);
    return dump(root);
}
