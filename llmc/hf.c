// hf.c -- Hugging Face checkpoints: names of tensors, config.json, weights.
#include "hf.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../util/checkpoint_files.h"
#include "llmc_error.h"
#include "kinds.h"
#include "safetensors.h"

enum { MAX_PARTS = 3, NAME_CHARS = 112, PIECE_VALUES = 1 << 20 };

static bool join(char out[CHECKPOINT_PATH_CHARS], const char* directory, const char* name) {
    int num_chars = snprintf(out, CHECKPOINT_PATH_CHARS, "%s/%s", directory, name);
    return (num_chars > 0 && num_chars < CHECKPOINT_PATH_CHARS - 8) ||
           llmc_fail("%s: path too long ---> use a shorter one", checkpoint_path_tail(directory));
}

static bool exists(const char* path) {
    struct stat info;
    return stat(path, &info) == 0;
}

// --- names -------------------------------------------------------------------------------------------------

// (rows, cols) of a tensor of ours, from its value `begin` on. What is in no part is the vocabulary's
// padding, zero.
typedef struct {
    char name[NAME_CHARS];  // GPT-2: without "transformer."
    int64_t begin, rows, cols;
    bool is_vector;   // one dimension in the file (rows is 1)
    bool transposed;  // (cols, rows) in the file: GPT-2's "Conv1D"
} Part;

static bool is_gpt2(const ModelConfig* config) {
    return config->kind == &gpt2_kind;
}
static bool is_llama(const ModelConfig* config) {
    return config->kind == &llama_kind;
}

// Rows of part p of {a,b} or {q,k,v}: equal ones, but where heads of keys are fewer than of queries.
static int64_t part_of(const ModelConfig* config, int64_t num_rows, int num_parts, int p) {
    const int64_t of_q = (int64_t)config->num_heads * model_head_size(config);
    return num_parts < 3 ? num_rows / num_parts : p == 0 ? of_q : (num_rows - of_q) / 2;
}

// layer: in its stack, as TensorSlice.layer (-1: none). How many: at least 1.
static int parts_of(Part out[MAX_PARTS], const ModelConfig* config, int tensor, int layer) {
    const TensorInfo info = config->kind->tensor(config, tensor);
    const bool of_vocab = tensor == MODEL_EMBEDDING || tensor == model_head_tensor(config);
    const char* names = info.hf_names;
    const int before = (int)strcspn(names, "{"),
              after = (int)strcspn(names, "}") + (strchr(names, '}') != NULL);
    int num_parts = 0;
    for (const char* at = names + before; num_parts == 0 || *at == ','; num_parts++) {
        const int num_chars = *at == '\0' ? 0 : (int)strcspn(at + 1, ",}");
        char pattern[NAME_CHARS];
        snprintf(pattern, sizeof pattern, "%.*s%.*s%s", before, names, num_chars, at + (*at != '\0'),
                 names + after);
        const char* place = strstr(pattern, "%d");
        if (place == NULL) {
            memcpy(out[num_parts].name, pattern, sizeof pattern);
        } else {
            snprintf(out[num_parts].name, NAME_CHARS, "%.*s%d%.80s", (int)(place - pattern), pattern,
                     layer < 0 ? 0 : layer, place + 2);
        }
        at += num_chars + (*at != '\0');
    }
    int64_t begin = 0;
    for (int p = 0; p < num_parts; p++) {
        const bool is_vector = info.rows == 1 && !info.decay;
        const int64_t all = is_vector ? info.cols : of_vocab ? config->vocab : info.rows;
        const int64_t mine = part_of(config, all, num_parts, p);
        out[p].begin = begin;
        out[p].rows = is_vector ? 1 : mine;
        out[p].cols = is_vector ? mine : info.cols;
        begin += out[p].rows * out[p].cols;
        out[p].is_vector = is_vector;
        out[p].transposed = is_gpt2(config) && info.place == TENSOR_PER_LAYER && info.decay;
    }
    return num_parts;
}

// Of the whole model; free() them.
static Part* all_parts(const ModelConfig* config, int* num_parts) {
    Part* parts =
        llmc_alloc_raw(MAX_PARTS * (size_t)model_num_tensors(config) * sizeof *parts, "names of tensors");
    *num_parts = 0;
    for (int t = 0; t < config->kind->num_tensors; t++) {
        const TensorInfo info = config->kind->tensor(config, t);
        const int num_layers = model_num_copies(config, &info);
        for (int l = 0; l < num_layers; l++) { *num_parts += parts_of(parts + *num_parts, config, t, l); }
    }
    return parts;
}

// The names in GPT-2's bodies have the prefix "transformer.", or none.
static const char* hf_names_prefix(const ModelConfig* config) {
    return is_gpt2(config) ? "transformer." : "";
}
static const char HEAD[] = "lm_head.weight";
static const char* prefix_of(const char* name, const char* prefix) {
    return strcmp(name, HEAD) == 0 ? "" : prefix;  // the head has none
}

// "h.", a number, `end`.
static bool is_layers(const char* name, const char* end) {
    if (strncmp(name, "h.", 2) != 0) { return false; }
    size_t num_digits = strspn(name + 2, "0123456789");
    return num_digits > 0 && strcmp(name + 2 + num_digits, end) == 0;
}

// Buffers saved by old versions; name without prefix.
static bool hf_names_is_buffer(const ModelConfig* config, const char* name) {
    if (is_gpt2(config)) { return is_layers(name, ".attn.bias") || is_layers(name, ".attn.masked_bias"); }
    if (is_llama(config)) {
        static const char end[] = ".self_attn.rotary_emb.inv_freq";
        const char* at = strstr(name, end);
        return at != NULL && at[sizeof end - 1] == '\0';
    }
    return strcmp(name, "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight") == 0;
}

// Names of tied copies of the embedding: the one after `name` (NULL: the first), NULL at the end.
static const char* hf_names_embedding_copy(const ModelConfig* config, const char* name) {
    static const char* const t5[] = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", NULL};
    static const char* const none[] = {NULL};
    const char* const* names = config->kind == &t5_kind ? t5 : none;
    while (name != NULL && strcmp(*names++, name) != 0) {}
    return *names;
}

// --- config.json -------------------------------------------------------------------------------------------
// Tables of fields, one for each family, for reading and writing. Defaults are those of configuration_*.py of
// these families in transformers 5.

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

// A token, or the first of several (eos_token_id may be a list).
static bool read_token(const Reader* r, const char* key, int fallback, int* out) {
    json_t* value = json_object_get(r->root, key);
    if (json_array_size(value) > 0) { value = json_array_get(value, 0); }
    json_int_t number = value == NULL         ? fallback
                        : json_is_null(value) ? HF_NO_TOKEN
                                              : json_integer_value(value);
    if ((value != NULL && !json_is_null(value) && !json_is_integer(value)) || number < HF_NO_TOKEN ||
        number > MOST) {
        return llmc_fail("%s: %s ---> must be a token's number or null", r->name, key);
    }
    *out = (int)number;
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
           read_token(r, "eos_token_id", last_word, &config->eos_token) &&
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
           read_token(r, "eos_token_id", 1, &config->eos_token) &&
           read_token(r, "decoder_start_token_id", config->pad_token, &config->start_token);
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
           read_token(r, "eos_token_id", is_qwen ? HF_NO_TOKEN : 2, &config->eos_token);
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

const ModelKind* hf_config_kind(const HfConfig* config) {
    return config->type == HF_GPT2 ? &gpt2_kind : config->type < HF_LLAMA ? &t5_kind : &llama_kind;
}

bool hf_config_parse(HfConfig* out, const char* text, size_t num_bytes, const char* name) {
    json_error_t reason;
    Reader r = {.name = name};
    r.root = json_loadb(text, num_bytes, JSON_REJECT_DUPLICATES, &reason);
    if (r.root == NULL) {
        return llmc_fail("%s:%d: %.120s ---> give one JSON object", name, reason.line, reason.text);
    }
    HfConfig config = {0};
    bool ok = json_is_object(r.root) ? read_config(&r, &config)
                                     : llmc_fail("%s: no JSON object ---> use a model's config.json", name);
    json_decref(r.root);
    if (ok) { *out = config; }
    return ok;
}

bool hf_config_read(HfConfig* out, const char* path) {
    struct stat info;
    const bool is_directory = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    const char* slash = strrchr(path, '/');
    char folder[CHECKPOINT_PATH_CHARS], config_path[CHECKPOINT_PATH_CHARS];
    snprintf(folder, sizeof folder, "%.*s",
             is_directory    ? CHECKPOINT_PATH_CHARS
             : slash == NULL ? 0
                             : (int)(slash - path),
             path);
    if (!is_directory && slash == NULL) { strcpy(folder, "."); }
    if (!join(config_path, folder, "config.json")) { return false; }
    CheckpointFile file;
    if (!llmc_ok(checkpoint_file_open(&file, config_path))) { return false; }
    const char* name = checkpoint_path_tail(config_path);
    bool ok = false;
    if (file.num_bytes > MAX_CONFIG_BYTES) {
        llmc_fail("%s: %lld bytes ---> a config has at most %d", name, (long long)file.num_bytes,
                  MAX_CONFIG_BYTES);
    } else {
        char* text = llmc_alloc((size_t)file.num_bytes, "a config");
        ok = llmc_ok(checkpoint_file_read(&file, text, file.num_bytes, 0)) &&
             hf_config_parse(out, text, (size_t)file.num_bytes, name);
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

// generation_config.json: the tokens that generate() starts and ends with.
static char* hf_config_generation_text(const HfConfig* config) {
    json_t* root = json_pack("{s:b}", "_from_model_config", 1);
    put_tokens(root, config);
    return dump(root);
}

// --- weights, read -----------------------------------------------------------------------------------------
// First all names and shapes of the file are checked against the whole model, then the slice's values are
// read.

bool hf_checkpoint_is(const char* path) {
    struct stat info;
    const size_t num_chars = strlen(path);
    if (stat(path, &info) != 0) { return false; }
    if (S_ISDIR(info.st_mode)) {
        char config[CHECKPOINT_PATH_CHARS];
        return join(config, path, "config.json") && exists(config);
    }
    static const char* const ends[] = {".safetensors", ".safetensors.index.json"};
    for (int i = 0; i < 2; i++) {
        size_t end_chars = strlen(ends[i]);
        if (num_chars >= end_chars && strcmp(path + num_chars - end_chars, ends[i]) == 0) { return true; }
    }
    return false;
}

// An open checkpoint and the prefix of its names.
typedef struct {
    Safetensors file;
    HfConfig config;     // shape.kind is set; tied_head is verified
    const char* prefix;  // "transformer." or ""
} Source;

static const SafetensorsTensor* hf_checkpoint_find(const Source* source, const char* name) {
    char full[NAME_CHARS + 16];
    snprintf(full, sizeof full, "%.15s%.111s", prefix_of(name, source->prefix), name);
    return safetensors_find(&source->file, full);
}

// --- names and shapes --------------------------------------------------------------------------------------

static bool fail_shape(const Source* source, const SafetensorsTensor* tensor, const Part* part) {
    char theirs[96] = "", ours[48];
    for (int i = 0; i < tensor->num_dims && strlen(theirs) < 64; i++) {
        size_t at = strlen(theirs);
        snprintf(theirs + at, sizeof theirs - at, "%s%lld", i == 0 ? "" : ", ", (long long)tensor->dims[i]);
    }
    const int64_t rows = part->transposed ? part->cols : part->rows;
    const int64_t cols = part->transposed ? part->rows : part->cols;
    if (part->is_vector) {
        snprintf(ours, sizeof ours, "%lld", (long long)cols);
    } else {
        snprintf(ours, sizeof ours, "%lld, %lld", (long long)rows, (long long)cols);
    }
    return llmc_fail(
        "%s: %.90s: shape [%s], config.json asks for [%s] ---> use the config.json of these weights",
        safetensors_path(&source->file, tensor), tensor->name, theirs, ours);
}

static bool check_part(const Source* source, const SafetensorsTensor* tensor, const Part* part) {
    const int64_t* dims = tensor->dims;
    bool ok = part->is_vector    ? tensor->num_dims == 1 && dims[0] == part->cols
              : part->transposed ? tensor->num_dims == 2 && dims[0] == part->cols && dims[1] == part->rows
                                 : tensor->num_dims == 2 && dims[0] == part->rows && dims[1] == part->cols;
    if (!ok) { return fail_shape(source, tensor, part); }
    return tensor->dtype != SAFETENSORS_OTHER ||
           llmc_fail("%s: %.90s: dtype %s ---> save the model as F32, F16 or BF16",
                     safetensors_path(&source->file, tensor), tensor->name, tensor->dtype_name);
}

// NULL: missing. A head that is not there is the embedding.
static const SafetensorsTensor* find_part(const Source* source, const Part* part) {
    const SafetensorsTensor* tensor = hf_checkpoint_find(source, part->name);
    bool is_head = tensor == NULL && strcmp(part->name, HEAD) == 0;
    return is_head ? hf_checkpoint_find(source, "shared.weight") : tensor;
}

// Tensors of the file that the model has, as flags.
static bool find_parts(const Source* source, bool* is_known) {
    int num_parts;
    Part* parts = all_parts(&source->config.shape, &num_parts);
    bool ok = true;
    for (int p = 0; ok && p < num_parts; p++) {
        const SafetensorsTensor* tensor = find_part(source, &parts[p]);
        ok = tensor != NULL ? check_part(source, tensor, &parts[p])
                            : llmc_fail("%s: %s%s is missing ---> use the config.json of these weights",
                                        checkpoint_path_tail(source->file.files[0].path),
                                        prefix_of(parts[p].name, source->prefix), parts[p].name);
        if (ok) { is_known[tensor - source->file.tensors] = true; }
    }
    free(parts);
    return ok;
}

static bool check_no_others(const Source* source, const bool* is_known) {
    const ModelConfig* config = &source->config.shape;
    const size_t prefix_chars = strlen(source->prefix);
    for (int i = 0; i < source->file.num_tensors; i++) {
        const SafetensorsTensor* tensor = &source->file.tensors[i];
        bool has_prefix = strncmp(tensor->name, source->prefix, prefix_chars) == 0;
        if (is_known[i] || (has_prefix && hf_names_is_buffer(config, tensor->name + prefix_chars))) {
            continue;
        }
        bool is_copy = config->tied_head && strcmp(tensor->name, HEAD) == 0;
        for (const char* name = NULL; (name = hf_names_embedding_copy(config, name)) != NULL;) {
            is_copy = is_copy || strcmp(tensor->name, name) == 0;
        }
        if (is_copy) { continue; }
        return llmc_fail("%s: %.90s is no tensor of this model ---> use the config.json of these weights",
                         safetensors_path(&source->file, tensor), tensor->name);
    }
    return true;
}

static bool check_tensors(const Source* source) {
    bool* is_known = llmc_alloc((size_t)source->file.num_tensors * sizeof *is_known, "names of tensors");
    bool ok = find_parts(source, is_known) && check_no_others(source, is_known);
    free(is_known);
    return ok;
}

// --- the head ----------------------------------------------------------------------------------------------

// Do two tensors of the same shape have equal values? Stops at the first difference.
static bool compare(const Source* source, const SafetensorsTensor* a, const SafetensorsTensor* b,
                    bool* same) {
    *same = a->num_dims == b->num_dims && memcmp(a->dims, b->dims, sizeof a->dims) == 0;
    float* values = llmc_alloc(2 * PIECE_VALUES * sizeof *values, "values to compare");
    bool ok = true;
    for (int64_t at = 0; ok && *same && at < a->num_values; at += PIECE_VALUES) {
        int64_t end = a->num_values - at < PIECE_VALUES ? a->num_values : at + PIECE_VALUES;
        ok = safetensors_read(&source->file, a, values, at, end) &&
             safetensors_read(&source->file, b, values + PIECE_VALUES, at, end);
        *same = ok && memcmp(values, values + PIECE_VALUES, (size_t)(end - at) * sizeof *values) == 0;
    }
    free(values);
    return ok;
}

static const SafetensorsTensor* find_embedding(const Source* source) {
    Part parts[MAX_PARTS];
    parts_of(parts, &source->config.shape, 0, -1);  // the first tensor of every kind
    return hf_checkpoint_find(source, parts[0].name);
}

// Copies of the embedding must be copies.
static bool check_copies(const Source* source, const SafetensorsTensor* embedding) {
    for (const char* name = NULL; (name = hf_names_embedding_copy(&source->config.shape, name)) != NULL;) {
        const SafetensorsTensor* tensor = hf_checkpoint_find(source, name);
        bool same = true;
        if (tensor != NULL && !compare(source, embedding, tensor, &same)) { return false; }
        if (!same) {
            return llmc_fail("%s: %s differs from %s, which is not supported ---> use another model",
                             safetensors_path(&source->file, tensor), name, embedding->name);
        }
    }
    return true;
}

// Tied or not, determined from the tensors. A T5's tied head without the factor is read as one of its own
// that begins with the embedding's values, as ours has the factor where it is tied.
static bool find_head(Source* source, const SafetensorsTensor* embedding) {
    HfConfig* config = &source->config;
    const SafetensorsTensor* head = hf_checkpoint_find(source, HEAD);
    const bool is_t5 = config->shape.kind == &t5_kind,
               may_tie = is_t5 ? config->head_scaled : config->shape.tied_head;
    bool tied = head == NULL && may_tie;
    if (head != NULL && may_tie && !compare(source, embedding, head, &tied)) { return false; }
    config->shape.tied_head = tied;
    return true;
}

static bool look_at_head(Source* source) {
    const SafetensorsTensor* embedding = find_embedding(source);
    if (embedding == NULL) {
        return llmc_fail("%s: the embedding is missing (shared.weight, wte.weight or "
                         "model.embed_tokens.weight) ---> use a "
                         "whole model",
                         checkpoint_path_tail(source->file.files[0].path));
    }
    return check_copies(source, embedding) && find_head(source, embedding);
}

// --- opening -----------------------------------------------------------------------------------------------

static bool read_shape(Source* source, const ModelKind* kind, const char* path) {
    if (!hf_config_read(&source->config, path)) { return false; }
    const ModelKind* theirs = hf_config_kind(&source->config);
    if (kind != NULL && kind != theirs) {
        return llmc_fail("%s: model_type \"%s\" is no %s ---> train it with train_%s",
                         checkpoint_path_tail(path), type_names[source->config.type], kind->title,
                         theirs->name);
    }
    source->config.shape.kind = theirs;
    return model_check(&source->config.shape, checkpoint_path_tail(path));
}

static bool open_source(Source* out, const ModelKind* kind, const char* path) {
    Source source = {0};
    if (!read_shape(&source, kind, path) || !safetensors_open(&source.file, path)) { return false; }
    source.prefix = hf_names_prefix(&source.config.shape);
    if (find_embedding(&source) == NULL) { source.prefix = ""; }
    if (!look_at_head(&source)) {
        safetensors_close(&source.file);
        return false;
    }
    *out = source;
    return true;
}

bool hf_checkpoint_read_config(ModelConfig* out, HfConfig* details, const ModelKind* kind, const char* path) {
    Source source;
    if (!open_source(&source, kind, path)) { return false; }
    bool ok = check_tensors(&source);
    safetensors_close(&source.file);
    if (!ok) { return false; }
    *out = source.config.shape;
    if (details != NULL) { *details = source.config; }
    return true;
}

// --- values ------------------------------------------------------------------------------------------------

// The destination of one tensor's values.
typedef struct {
    const Source* source;
    CheckpointBody body;
    const Model* model;
    void* values;        // of the device
    int64_t first;       // values[0] belongs to params[first]
    int64_t begin, end;  // of params: the requested part
} Target;

// Stores num_values at `offset` of the flat array; values outside [begin, end) are skipped.
static void hf_checkpoint_put(const Target* target, const float* values, int64_t offset, int64_t num_values) {
    int64_t from = offset > target->begin ? offset : target->begin;
    int64_t to = offset + num_values < target->end ? offset + num_values : target->end;
    if (from >= to) { return; }
    OpsContext* ops = target->model->ops;
    size_t num = (size_t)(to - from);
    if (target->body == CHECKPOINT_PARAMS) {
        device_values_upload(ops, (floatX*)target->values + (from - target->first), values + (from - offset),
                             num);
    } else {
        ops_upload(ops, (float*)target->values + (from - target->first), values + (from - offset),
                   num * sizeof(float));
    }
}

static bool read_values(const Target* target, const SafetensorsTensor* tensor, float* out, int64_t begin,
                        int64_t end, float factor) {
    const Safetensors* file = &target->source->file;
    if (!safetensors_read(file, tensor, out, begin, end)) { return false; }
    for (int64_t i = 0; i < end - begin; i++) {
        out[i] *= factor;
        if (!isfinite(out[i])) {
            return llmc_fail("%s: %.90s: value %lld is NaN or infinite ---> use another checkpoint",
                             safetensors_path(file, tensor), tensor->name, (long long)(begin + i));
        }
    }
    return true;
}

// in (rows, cols)
static void transpose(float* out, const float* in, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++) { out[j * rows + i] = in[i * cols + j]; }
    }
}

// A transposed one as a whole, since its rows are the file's columns.
static bool read_part(const Target* target, const SafetensorsTensor* tensor, const Part* part, int64_t offset,
                      float factor) {
    const int64_t num_values = part->rows * part->cols, step = part->transposed ? num_values : PIECE_VALUES;
    int64_t from = target->begin > offset ? target->begin - offset : 0;
    int64_t to = target->end - offset < num_values ? target->end - offset : num_values;
    if (part->transposed) { from = 0, to = num_values; }
    float *theirs = llmc_alloc_raw((size_t)(2 * step) * sizeof *theirs, "values of a tensor"), *ours = theirs;
    bool ok = true;
    for (int64_t at = from; ok && at < to; at += step) {
        const int64_t num = to - at < step ? to - at : step;
        ok = read_values(target, tensor, theirs, at, at + num, factor);
        if (ok && part->transposed) { transpose(ours = theirs + step, theirs, part->cols, part->rows); }
        if (ok) { hf_checkpoint_put(target, ours, offset + at, num); }
    }
    free(theirs);
    return ok;
}

// The vocabulary's padding.
static void put_zeros(const Target* target, int64_t offset, int64_t num_values) {
    float* zeros = llmc_alloc(PIECE_VALUES * sizeof *zeros, "padding");
    for (int64_t at = 0; at < num_values; at += PIECE_VALUES) {
        const int64_t num = num_values - at < PIECE_VALUES ? num_values - at : PIECE_VALUES;
        hf_checkpoint_put(target, zeros, offset + at, num);
    }
    free(zeros);
}

static bool read_slice(const Target* target, const TensorSlice* slice) {
    const HfConfig* config = &target->source->config;
    Part parts[MAX_PARTS];
    int num_parts = parts_of(parts, &config->shape, slice->tensor, slice->layer);
    const int64_t tensor_offset = slice->offset - slice->first;
    int64_t num_done = 0;
    for (int p = 0; p < num_parts; p++) {
        const SafetensorsTensor* tensor = find_part(target->source, &parts[p]);
        int64_t offset = tensor_offset + parts[p].begin;
        num_done = parts[p].begin + parts[p].rows * parts[p].cols;
        if (offset >= target->end || tensor_offset + num_done <= target->begin) { continue; }
        // our untied heads are not scaled: theirs absorb the factor
        bool is_scaled = config->head_scaled && !config->shape.tied_head;
        float factor = is_scaled && strcmp(parts[p].name, HEAD) == 0
                           ? 1.0f / sqrtf((float)config->shape.channels)
                           : 1.0f;
        if (!read_part(target, tensor, &parts[p], offset, factor)) { return false; }
    }
    int64_t num_values = model_tensor_values(&config->shape, slice->tensor);
    if (num_done < num_values) { put_zeros(target, tensor_offset + num_done, num_values - num_done); }
    return true;
}

static bool check_same_shape(Source* source, const Model* model, const char* path) {
    ModelDifference difference;
    // known from the tensors at model creation; -t may change it if positions are relative
    source->config.shape.tied_head = model->config.tied_head;
    if (source->config.type != HF_GPT2) { source->config.shape.max_seq_len = model->config.max_seq_len; }
    if (!model_config_equal(&source->config.shape, &model->config, &difference)) {
        return llmc_fail("%s: %s is %d, this run's is %d ---> %s", checkpoint_path_tail(path),
                         difference.field, difference.theirs, difference.ours, difference.remedy);
    }
    return true;
}

bool hf_checkpoint_read(const char* path, CheckpointBody body, const Model* model, void* values,
                        int64_t begin, int64_t end) {
    Source source;
    if (!open_source(&source, model->config.kind, path)) { return false; }
    bool ok = check_same_shape(&source, model, path) && check_tensors(&source);
    Target target = {&source, body, model, values, begin, 0, 0};
    for (int i = 0; ok && i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        const int64_t slice_end = slice->offset + slice->num_values;
        target.begin = slice->offset > begin ? slice->offset : begin;
        target.end = slice_end < end ? slice_end : end;
        if (target.begin >= target.end) { continue; }
        ok = read_slice(&target, slice);
    }
    safetensors_close(&source.file);
    return ok;
}

// --- weights, written --------------------------------------------------------------------------------------
// The tokenizer's files, the configs and the weights are *.tmp until commit; the weights are renamed last,
// so that they never accompany another model's config.

enum { MAX_TOKENIZER_BYTES = 1 << 28 };

#ifdef LLMC_BF16
static const SafetensorsDtype DTYPE = SAFETENSORS_BF16;
static const char DTYPE_NAME[] = "bfloat16";
#else
static const SafetensorsDtype DTYPE = SAFETENSORS_F32;
static const char DTYPE_NAME[] = "float32";
#endif

// In the order of their renaming; data.json is ours: template, end of inputs.
static const char* const files[] = {"spiece.model",
                                    "tokenizer.model",
                                    "tokenizer.json",
                                    "tokenizer_config.json",
                                    "special_tokens_map.json",
                                    "added_tokens.json",
                                    "vocab.json",
                                    "merges.txt",
                                    "data.json",
                                    "config.json",
                                    "generation_config.json",
                                    "model.safetensors"};
enum { NUM_TOKENIZER_FILES = 9, CONFIG_FILE = 9, GENERATION_FILE, WEIGHTS_FILE, NUM_FILES };

// <pad>, </s>, <unk>, 256 bytes, 125 sentinels: 384 tokens.
static const char BYTE_TOKENIZER[] = "{\n"
                                     "  \"tokenizer_class\": \"ByT5Tokenizer\",\n"
                                     "  \"extra_ids\": 125,\n"
                                     "  \"pad_token\": \"<pad>\",\n"
                                     "  \"eos_token\": \"</s>\",\n"
                                     "  \"unk_token\": \"<unk>\"\n"
                                     "}\n";

// --- small files -------------------------------------------------------------------------------------------

static bool write_tmp(const char* directory, const char* name, const void* bytes, int64_t num_bytes) {
    char path[CHECKPOINT_PATH_CHARS];
    CheckpointFile file;
    return join(path, directory, name) && llmc_ok(checkpoint_file_create(&file, path, num_bytes)) &&
           llmc_ok(checkpoint_file_write(&file, bytes, num_bytes, 0)) && llmc_ok(checkpoint_file_sync(&file));
}

static bool copy_tmp(const char* directory, const char* name, const char* from) {
    CheckpointFile file;
    if (!llmc_ok(checkpoint_file_open(&file, from))) { return false; }
    bool ok = file.num_bytes <= MAX_TOKENIZER_BYTES ||
              llmc_fail("%s: %lld bytes ---> a tokenizer's file has at most %d", checkpoint_path_tail(from),
                        (long long)file.num_bytes, MAX_TOKENIZER_BYTES);
    char* bytes = ok ? llmc_alloc((size_t)file.num_bytes, "a tokenizer's file") : NULL;
    ok = ok && llmc_ok(checkpoint_file_read(&file, bytes, file.num_bytes, 0)) &&
         write_tmp(directory, name, bytes, file.num_bytes);
    free(bytes);
    checkpoint_file_close(&file);
    return ok;
}

static bool write_tokenizer(const char* directory, const HfTokens* tokens) {
    const bool bytes = tokens != NULL && tokens->bytes;
    const size_t config_bytes = sizeof BYTE_TOKENIZER - 1;
    if (bytes && !write_tmp(directory, "tokenizer_config.json", BYTE_TOKENIZER, config_bytes)) {
        return false;
    }
    for (int i = 0; tokens != NULL && i < NUM_TOKENIZER_FILES; i++) {
        if (bytes && i != NUM_TOKENIZER_FILES - 1) { continue; }  // not for byte tokenizers
        for (int f = 0; f < 2; f++) {
            char from[CHECKPOINT_PATH_CHARS];
            const char* folder = tokens->folders[f];
            if (folder == NULL) { continue; }
            if (!join(from, folder, files[i])) { return false; }
            if (!exists(from)) { continue; }
            if (!copy_tmp(directory, files[i], from)) { return false; }
            break;
        }
    }
    return true;
}

static bool write_configs(const char* directory, const HfConfig* config) {
    char* text = hf_config_text(config, DTYPE_NAME);
    char* generation = hf_config_generation_text(config);
    bool ok = write_tmp(directory, files[CONFIG_FILE], text, (int64_t)strlen(text)) &&
              write_tmp(directory, files[GENERATION_FILE], generation, (int64_t)strlen(generation));
    free(text);
    free(generation);
    return ok;
}

// --- the weights' file -------------------------------------------------------------------------------------

static SafetensorsTensor file_tensor(const Part* part, char* name, const ModelConfig* config) {
    SafetensorsTensor tensor = {.name = name, .dtype = DTYPE, .num_dims = part->is_vector ? 1 : 2};
    snprintf(name, NAME_CHARS, "%.15s%.95s", prefix_of(part->name, hf_names_prefix(config)), part->name);
    tensor.dims[0] = part->is_vector || part->transposed ? part->cols : part->rows;
    tensor.dims[1] = part->is_vector ? 0 : part->transposed ? part->rows : part->cols;
    return tensor;
}

static bool make_layout(Safetensors* out, const ModelConfig* config) {
    int num_parts;
    Part* parts = all_parts(config, &num_parts);
    SafetensorsTensor* tensors = llmc_alloc((size_t)num_parts * sizeof *tensors, "names of tensors");
    for (int i = 0; i < num_parts; i++) {
        const Part part = parts[i];
        tensors[i] = file_tensor(&part, parts[i].name, config);
    }
    const bool ok = safetensors_layout(out, tensors, num_parts);
    free(tensors);
    free(parts);
    return ok;
}

bool hf_checkpoint_make_directory(const char* directory) {
    char index[CHECKPOINT_PATH_CHARS];
    if (!join(index, directory, "model.safetensors.index.json")) { return false; }
    if (exists(index)) {
        return llmc_fail("%s: has the shards of another model ---> export to an empty directory",
                         checkpoint_path_tail(directory));
    }
    return mkdir(directory, 0777) == 0 || errno == EEXIST ||
           llmc_fail("%s: cannot make directory: %s ---> choose a place where you may write",
                     checkpoint_path_tail(directory), strerror(errno));
}

bool hf_checkpoint_create(const char* directory, const ModelConfig* config, const HfConfig* like,
                          const HfTokens* tokens) {
    const HfConfig theirs = hf_config_of_model(config, like);
    char path[CHECKPOINT_PATH_CHARS];
    Safetensors layout;
    if (!hf_checkpoint_make_directory(directory) || !join(path, directory, files[WEIGHTS_FILE]) ||
        !make_layout(&layout, config)) {
        return false;
    }
    bool ok = safetensors_create(&layout, path) && write_configs(directory, &theirs) &&
              write_tokenizer(directory, tokens);
    safetensors_close(&layout);
    if (!ok) { hf_checkpoint_abort(directory); }
    return ok;
}

// --- values ------------------------------------------------------------------------------------------------

typedef struct {
    const Model* model;
    const Safetensors* layout;
    CheckpointFile* file;
} Output;

// Values [begin, end) of a part whose first value is at `offset` of the rank's array.
static bool write_part(const Output* target, const SafetensorsTensor* tensor, const Part* part,
                       int64_t offset, int64_t begin, int64_t end, float factor) {
    const int64_t step = part->transposed ? part->rows * part->cols : PIECE_VALUES;
    float *ours = llmc_alloc_raw((size_t)(2 * step) * sizeof *ours, "values of a tensor"), *theirs = ours;
    bool ok = true;
    for (int64_t at = begin; ok && at < end; at += step) {
        const int64_t num = end - at < step ? end - at : step;
        device_values_download(target->model->ops, ours, target->model->params + (offset + at), (size_t)num);
        for (int64_t i = 0; i < num && factor != 1.0f; i++) { ours[i] *= factor; }
        if (part->transposed) { transpose(theirs = ours + step, ours, part->rows, part->cols); }
        ok = safetensors_write(target->file, tensor, theirs, at, at + num);
    }
    free(ours);
    return ok;
}

static bool write_slice(const Output* target, const TensorSlice* slice) {
    const ModelConfig* config = &target->model->config;
    Part parts[MAX_PARTS];
    int num_parts = parts_of(parts, config, slice->tensor, slice->layer);
    // transformers scales the input of every umT5 head; ours is scaled if it is tied
    const bool is_scaled = config->bias_per_layer && !config->tied_head;
    for (int p = 0; p < num_parts; p++) {
        char name[NAME_CHARS];
        const SafetensorsTensor wanted = file_tensor(&parts[p], name, config);
        const SafetensorsTensor* tensor = safetensors_find(target->layout, wanted.name);
        const int64_t part_begin = parts[p].begin - slice->first;  // in the slice
        const int64_t left = slice->num_values - part_begin;
        const int64_t begin = part_begin < 0 ? -part_begin : 0;
        const int64_t end = tensor->num_values < left ? tensor->num_values : left;
        float factor = is_scaled && strcmp(parts[p].name, HEAD) == 0 ? sqrtf((float)config->channels) : 1.0f;
        if (!write_part(target, tensor, &parts[p], slice->offset + part_begin, begin, end, factor)) {
            return false;
        }
    }
    return true;
}

bool hf_checkpoint_write(const char* directory, const Model* model) {
    char path[CHECKPOINT_PATH_CHARS];
    Safetensors layout;
    CheckpointFile file;
    if (!join(path, directory, files[WEIGHTS_FILE]) || !make_layout(&layout, &model->config)) {
        return false;
    }
    if (!llmc_ok(checkpoint_file_open_tmp(&file, path))) {
        safetensors_close(&layout);
        return false;
    }
    const Output target = {model, &layout, &file};
    bool ok = file.num_bytes == layout.num_bytes ||
              llmc_fail("%s.tmp: is of another model ---> export each run to a directory of its own",
                        checkpoint_path_tail(path));
    for (int i = 0; ok && i < model->num_slices; i++) {
        ok = model->slices[i].tied_copy || write_slice(&target, &model->slices[i]);
    }
    safetensors_close(&layout);
    if (!ok) { checkpoint_file_close(&file); }
    return ok && llmc_ok(checkpoint_file_sync(&file));
}

bool hf_checkpoint_commit(const char* directory) {
    for (int i = 0; i < NUM_FILES; i++) {
        char path[CHECKPOINT_PATH_CHARS], tmp[CHECKPOINT_PATH_CHARS + 8];
        if (!join(path, directory, files[i])) { return false; }
        snprintf(tmp, sizeof tmp, "%s.tmp", path);
        if ((exists(tmp) || i == WEIGHTS_FILE) && !llmc_ok(checkpoint_file_rename(path))) { return false; }
    }
    return true;
}

void hf_checkpoint_abort(const char* directory) {
    for (int i = 0; i < NUM_FILES; i++) {
        char path[CHECKPOINT_PATH_CHARS];
        if (join(path, directory, files[i])) { checkpoint_file_remove_tmp(path); }
    }
}

// --- any model ---------------------------------------------------------------------------------------------

bool models_is_checkpoint(const char* model) {
    const size_t num_chars = strlen(model);
    return num_chars > 4 && strcmp(model + num_chars - 4, ".bin") == 0;
}

bool models_read_config(ModelConfig* out, const char* model, int vocab, int max_seq_len) {
    if (models_is_checkpoint(model)) { return llmc_ok(checkpoint_read_config(out, NULL, model)); }
    if (hf_checkpoint_is(model)) { return hf_checkpoint_read_config(out, NULL, NULL, model); }
    return model_parse(out, models_kind_of(model), model, vocab, max_seq_len);
}
