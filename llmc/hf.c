// hf.c -- Hugging Face checkpoints: names of tensors, weights.
#include "hf.h"

#include <errno.h>
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
                         checkpoint_path_tail(path), hf_config_type(&source->config), kind->title,
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
    char newest[CHECKPOINT_PATH_CHARS];
    const int step = hf_checkpoint_is(model) ? -1 : checkpoint_find_latest(model);
    if (step >= 0) {
        checkpoint_path(newest, model, CHECKPOINT_MODEL_FILE, step);
        model = newest;
    }
    if (models_is_checkpoint(model)) { return llmc_ok(checkpoint_read_config(out, NULL, model)); }
    if (hf_checkpoint_is(model)) { return hf_checkpoint_read_config(out, NULL, NULL, model); }
    return model_parse(out, models_kind_of(model), model, vocab, max_seq_len);
}
