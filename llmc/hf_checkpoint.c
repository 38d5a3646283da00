// Reading. First all names and shapes of the file against the whole model, then the values of the slice.
#include "hf_checkpoint.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "device_values.h"
#include "hf_names.h"
#include "llmc_error.h"
#include "safetensors.h"

enum { PIECE_VALUES = 1 << 20, FULL_NAME_CHARS = HF_NAME_CHARS + 16 };

bool hf_checkpoint_is(const char* path) {
    struct stat info;
    size_t num_chars = strlen(path);
    if (stat(path, &info) != 0) { return false; }
    if (S_ISDIR(info.st_mode)) {
        char config[CHECKPOINT_PATH_CHARS];
        int num = snprintf(config, sizeof config, "%s/config.json", path);
        return num > 0 && (size_t)num < sizeof config && stat(config, &info) == 0;
    }
    static const char* const ends[] = {".safetensors", ".safetensors.index.json"};
    for (int i = 0; i < 2; i++) {
        size_t end_chars = strlen(ends[i]);
        if (num_chars >= end_chars && strcmp(path + num_chars - end_chars, ends[i]) == 0) { return true; }
    }
    return false;
}

// A checkpoint that is open, and how its names begin.
typedef struct {
    Safetensors file;
    HfConfig config;     // shape.kind is set; tied_head is the truth
    const char* prefix;  // "transformer." or ""
} Source;

static const SafetensorsTensor* find(const Source* source, const char* name, bool with_prefix) {
    char full[FULL_NAME_CHARS];
    snprintf(full, sizeof full, "%.15s%.95s", with_prefix ? source->prefix : "", name);
    return safetensors_find(&source->file, full);
}

// --- names and shapes --------------------------------------------------------------------------------------

static bool fail_shape(const Source* source, const SafetensorsTensor* tensor, const HfPart* part,
                       char* error) {
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
        error, "%s: %.90s: shape [%s], config.json asks for [%s] ---> use the config.json of these weights",
        safetensors_path(&source->file, tensor), tensor->name, theirs, ours);
}

static bool check_part(const Source* source, const SafetensorsTensor* tensor, const HfPart* part,
                       char* error) {
    const int64_t* dims = tensor->dims;
    bool ok = part->is_vector    ? tensor->num_dims == 1 && dims[0] == part->cols
              : part->transposed ? tensor->num_dims == 2 && dims[0] == part->cols && dims[1] == part->rows
                                 : tensor->num_dims == 2 && dims[0] == part->rows && dims[1] == part->cols;
    if (!ok) { return fail_shape(source, tensor, part, error); }
    return tensor->dtype != SAFETENSORS_OTHER ||
           llmc_fail(error, "%s: %.90s: dtype %s ---> save the model as F32, F16 or BF16",
                     safetensors_path(&source->file, tensor), tensor->name, tensor->dtype_name);
}

// Tensors of the file that the model has, as flags.
static bool find_parts(const Source* source, bool* is_known, char* error) {
    HfNames names = {.config = &source->config.shape};
    for (const HfPart* part; (part = hf_names_next(&names)) != NULL;) {
        const SafetensorsTensor* tensor = find(source, part->name, true);
        if (tensor == NULL) {
            return llmc_fail(error, "%s: %s%s is missing ---> use the config.json of these weights",
                             llmc_path_tail(source->file.files[0].path), source->prefix, part->name);
        }
        if (!check_part(source, tensor, part, error)) { return false; }
        is_known[tensor - source->file.tensors] = true;
    }
    return true;
}

static bool check_no_others(const Source* source, const bool* is_known, char* error) {
    const ModelConfig* config = &source->config.shape;
    const size_t prefix_chars = strlen(source->prefix);
    for (int i = 0; i < source->file.num_tensors; i++) {
        const SafetensorsTensor* tensor = &source->file.tensors[i];
        bool has_prefix = strncmp(tensor->name, source->prefix, prefix_chars) == 0;
        if (is_known[i] || (has_prefix && hf_names_is_buffer(config, tensor->name + prefix_chars))) {
            continue;
        }
        bool is_copy = config->tied_head && strcmp(tensor->name, "lm_head.weight") == 0;
        for (const char* name = NULL; (name = hf_names_embedding_copy(config, name)) != NULL;) {
            is_copy = is_copy || strcmp(tensor->name, name) == 0;
        }
        if (is_copy) { continue; }
        return llmc_fail(error,
                         "%s: %.90s is no tensor of this model ---> use the config.json of these weights",
                         safetensors_path(&source->file, tensor), tensor->name);
    }
    return true;
}

static bool check_tensors(const Source* source, char* error) {
    bool* is_known = llmc_alloc((size_t)source->file.num_tensors * sizeof *is_known, "names of tensors");
    bool ok = find_parts(source, is_known, error) && check_no_others(source, is_known, error);
    free(is_known);
    return ok;
}

// --- the head ----------------------------------------------------------------------------------------------

// Are two tensors of one shape the same, value by value? Ends at the first difference.
static bool compare(const Source* source, const SafetensorsTensor* a, const SafetensorsTensor* b, bool* same,
                    char* error) {
    *same = a->num_dims == b->num_dims && memcmp(a->dims, b->dims, sizeof a->dims) == 0;
    float* values = llmc_alloc(2 * PIECE_VALUES * sizeof *values, "values to compare");
    bool ok = true;
    for (int64_t at = 0; ok && *same && at < a->num_values; at += PIECE_VALUES) {
        int64_t end = a->num_values - at < PIECE_VALUES ? a->num_values : at + PIECE_VALUES;
        ok = safetensors_read(&source->file, a, values, at, end, error) &&
             safetensors_read(&source->file, b, values + PIECE_VALUES, at, end, error);
        *same = ok && memcmp(values, values + PIECE_VALUES, (size_t)(end - at) * sizeof *values) == 0;
    }
    free(values);
    return ok;
}

static const SafetensorsTensor* find_embedding(const Source* source) {
    HfPart parts[HF_MAX_PARTS];
    hf_names_parts(parts, &source->config.shape, 0, -1);  // the first tensor of every kind
    return find(source, parts[0].name, true);
}

// Copies of the embedding must be copies.
static bool check_copies(const Source* source, const SafetensorsTensor* embedding, char* error) {
    for (const char* name = NULL; (name = hf_names_embedding_copy(&source->config.shape, name)) != NULL;) {
        const SafetensorsTensor* tensor = find(source, name, false);
        bool same = true;
        if (tensor != NULL && !compare(source, embedding, tensor, &same, error)) { return false; }
        if (!same) {
            return llmc_fail(error, "%s: %s differs from %s, which is not supported ---> use another model",
                             safetensors_path(&source->file, tensor), name, embedding->name);
        }
    }
    return true;
}

// Of a T5: tied or not, by the tensors.
static bool find_head(Source* source, const SafetensorsTensor* embedding, char* error) {
    HfConfig* config = &source->config;
    const SafetensorsTensor* head = find(source, "lm_head.weight", false);
    config->shape.tied_head = head == NULL;
    if (head != NULL && config->head_scaled &&
        !compare(source, embedding, head, &config->shape.tied_head, error)) {
        return false;
    }
    return config->head_scaled || !config->shape.tied_head ||
           llmc_fail(
               error,
               "%s: lm_head.weight is missing, and config.json wants no factor before a tied head ---> save "
               "lm_head.weight too",
               llmc_path_tail(source->file.files[0].path));
}

static bool look_at_head(Source* source, char* error) {
    const SafetensorsTensor* embedding = find_embedding(source);
    if (embedding == NULL) {
        return llmc_fail(error,
                         "%s: the embedding is missing (shared.weight or wte.weight) ---> use a whole model",
                         llmc_path_tail(source->file.files[0].path));
    }
    return check_copies(source, embedding, error) &&
           (source->config.type == HF_GPT2 || find_head(source, embedding, error));
}

// --- opening -----------------------------------------------------------------------------------------------

static bool read_shape(Source* source, const ModelKind* kind, const char* path, char* error) {
    if (!hf_config_read(&source->config, path, error)) { return false; }
    const bool is_gpt2 = source->config.type == HF_GPT2;
    if (strcmp(kind->name, is_gpt2 ? "gpt2" : "t5") != 0) {
        return llmc_fail(error, "%s: model_type \"%s\" is no %s ---> train it with train_%s",
                         llmc_path_tail(path), hf_type_name(source->config.type), kind->title,
                         is_gpt2 ? "gpt2" : "t5");
    }
    source->config.shape.kind = kind;
    return kind->check(&source->config.shape, llmc_path_tail(path), error);
}

static bool open_source(Source* out, const ModelKind* kind, const char* path, char* error) {
    Source source = {0};
    if (!read_shape(&source, kind, path, error) || !safetensors_open(&source.file, path, error)) {
        return false;
    }
    source.prefix = hf_names_prefix(&source.config.shape);
    if (find_embedding(&source) == NULL) { source.prefix = ""; }
    if (!look_at_head(&source, error)) {
        safetensors_close(&source.file);
        return false;
    }
    *out = source;
    return true;
}

bool hf_checkpoint_read_config(ModelConfig* out, HfConfig* details, const ModelKind* kind, const char* path,
                               char* error) {
    Source source;
    if (!open_source(&source, kind, path, error)) { return false; }
    bool ok = check_tensors(&source, error);
    safetensors_close(&source.file);
    if (!ok) { return false; }
    *out = source.config.shape;
    if (details != NULL) { *details = source.config; }
    return true;
}

// --- values ------------------------------------------------------------------------------------------------

// Where values of one tensor of ours go.
typedef struct {
    const Source* source;
    CheckpointBody body;
    const Model* model;
    void* values;        // of the device
    int64_t first;       // values[0] belongs to params[first]
    int64_t begin, end;  // of params: what is wanted of the slice at hand
    float* piece;        // PIECE_VALUES
} Target;

// num_values at `offset` of the flat array; what lies outside [begin, end) is left out.
static void put(const Target* target, const float* values, int64_t offset, int64_t num_values) {
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
                        int64_t end, float factor, char* error) {
    const Safetensors* file = &target->source->file;
    if (!safetensors_read(file, tensor, out, begin, end, error)) { return false; }
    for (int64_t i = 0; i < end - begin; i++) {
        out[i] *= factor;
        if (!isfinite(out[i])) {
            return llmc_fail(error, "%s: %.90s: value %lld is NaN or infinite ---> use another checkpoint",
                             safetensors_path(file, tensor), tensor->name, (long long)(begin + i));
        }
    }
    return true;
}

// Whole, since its rows are the file's columns.
static bool read_transposed(const Target* target, const SafetensorsTensor* tensor, const HfPart* part,
                            int64_t offset, char* error) {
    const int64_t rows = part->rows, cols = part->cols;
    float* theirs = llmc_alloc((size_t)(2 * rows * cols) * sizeof *theirs, "a tensor to transpose");
    float* ours = theirs + rows * cols;
    bool ok = read_values(target, tensor, theirs, 0, rows * cols, 1.0f, error);
    for (int64_t i = 0; ok && i < rows; i++) {
        for (int64_t j = 0; j < cols; j++) { ours[i * cols + j] = theirs[j * rows + i]; }
    }
    if (ok) { put(target, ours, offset, rows * cols); }
    free(theirs);
    return ok;
}

static bool read_straight(const Target* target, const SafetensorsTensor* tensor, const HfPart* part,
                          int64_t offset, float factor, char* error) {
    int64_t from = target->begin > offset ? target->begin - offset : 0, num_values = part->rows * part->cols;
    int64_t to = target->end - offset < num_values ? target->end - offset : num_values;
    for (int64_t at = from; at < to; at += PIECE_VALUES) {
        int64_t num = to - at < PIECE_VALUES ? to - at : PIECE_VALUES;
        if (!read_values(target, tensor, target->piece, at, at + num, factor, error)) { return false; }
        put(target, target->piece, offset + at, num);
    }
    return true;
}

// The vocabulary's padding.
static void put_zeros(const Target* target, int64_t offset, int64_t num_values) {
    memset(target->piece, 0, PIECE_VALUES * sizeof *target->piece);
    for (int64_t at = 0; at < num_values; at += PIECE_VALUES) {
        int64_t num = num_values - at < PIECE_VALUES ? num_values - at : PIECE_VALUES;
        put(target, target->piece, offset + at, num);
    }
}

static bool read_slice(const Target* target, const TensorSlice* slice, char* error) {
    const HfConfig* config = &target->source->config;
    HfPart parts[HF_MAX_PARTS];
    int num_parts = hf_names_parts(parts, &config->shape, slice->tensor, slice->layer);
    const int64_t tensor_offset = slice->offset - slice->first;
    int64_t num_done = 0;
    for (int p = 0; p < num_parts; p++) {
        const SafetensorsTensor* tensor = find(target->source, parts[p].name, true);
        int64_t offset = tensor_offset + parts[p].row_begin * parts[p].cols;
        num_done = (parts[p].row_begin + parts[p].rows) * parts[p].cols;
        if (offset >= target->end || tensor_offset + num_done <= target->begin) { continue; }
        // our untied heads are not scaled: theirs takes the factor in
        bool is_scaled = config->head_scaled && !config->shape.tied_head;
        float factor = is_scaled && strcmp(parts[p].name, "lm_head.weight") == 0
                           ? 1.0f / sqrtf((float)config->shape.channels)
                           : 1.0f;
        bool ok = parts[p].transposed ? read_transposed(target, tensor, &parts[p], offset, error)
                                      : read_straight(target, tensor, &parts[p], offset, factor, error);
        if (!ok) { return false; }
    }
    int64_t num_values = model_tensor_values(&config->shape, slice->tensor);
    if (num_done < num_values) { put_zeros(target, tensor_offset + num_done, num_values - num_done); }
    return true;
}

static bool check_same_shape(Source* source, const Model* model, const char* path, char* error) {
    ModelDifference difference;
    // known from the tensors when the model was made; -t may ask for another length where positions are
    // relative
    source->config.shape.tied_head = model->config.tied_head;
    if (source->config.type != HF_GPT2) { source->config.shape.max_seq_len = model->config.max_seq_len; }
    if (!model_config_equal(&source->config.shape, &model->config, &difference)) {
        return llmc_fail(error, "%s: %s is %d, this run's is %d ---> %s", llmc_path_tail(path),
                         difference.field, difference.theirs, difference.ours, difference.remedy);
    }
    return true;
}

bool hf_checkpoint_read(const char* path, CheckpointBody body, const Model* model, void* values,
                        int64_t begin, int64_t end, char* error) {
    Source source;
    if (!open_source(&source, model->config.kind, path, error)) { return false; }
    bool ok = check_same_shape(&source, model, path, error) && check_tensors(&source, error);
    Target target = {&source, body, model, values, begin, 0, 0, NULL};
    target.piece = llmc_alloc(PIECE_VALUES * sizeof *target.piece, "values on their way");
    for (int i = 0; ok && i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        const int64_t slice_end = slice->offset + slice->num_values;
        target.begin = slice->offset > begin ? slice->offset : begin;
        target.end = slice_end < end ? slice_end : end;
        if (target.begin >= target.end) { continue; }
        ok = read_slice(&target, slice, error);
    }
    free(target.piece);
    safetensors_close(&source.file);
    return ok;
}
