// Writing. The tokenizer's files, the configs and the weights stand aside as *.tmp until commit; the weights
// come last, so that they never stand beside another model's config.
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device_values.h"
#include "hf_checkpoint.h"
#include "hf_names.h"
#include "llmc_error.h"
#include "safetensors.h"

enum { PIECE_VALUES = 1 << 20, MAX_TOKENIZER_BYTES = 1 << 28 };

#ifdef LLMC_BF16
static const SafetensorsDtype DTYPE = SAFETENSORS_BF16;
static const char DTYPE_NAME[] = "bfloat16";
#else
static const SafetensorsDtype DTYPE = SAFETENSORS_F32;
static const char DTYPE_NAME[] = "float32";
#endif

static const char WEIGHTS[] = "model.safetensors";
static const char* const tokenizer_files[] = {
    "spiece.model",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "data.json"};  // data.json is ours: template, what ends an input
enum { NUM_TOKENIZER_FILES = sizeof tokenizer_files / sizeof *tokenizer_files };
static const char* const config_files[] = {"config.json", "generation_config.json"};

// <pad>, </s>, <unk>, 256 bytes, 125 sentinels: 384 tokens.
static const char BYTE_TOKENIZER[] = "{\n"
                                     "  \"tokenizer_class\": \"ByT5Tokenizer\",\n"
                                     "  \"extra_ids\": 125,\n"
                                     "  \"pad_token\": \"<pad>\",\n"
                                     "  \"eos_token\": \"</s>\",\n"
                                     "  \"unk_token\": \"<unk>\"\n"
                                     "}\n";

static bool join(char out[CHECKPOINT_PATH_CHARS], const char* directory, const char* name, char* error) {
    int num_chars = snprintf(out, CHECKPOINT_PATH_CHARS, "%s/%s", directory, name);
    return (num_chars > 0 && num_chars < CHECKPOINT_PATH_CHARS - 8) ||
           llmc_fail(error, "%s: path too long ---> use a shorter one", llmc_path_tail(directory));
}

static bool exists(const char* path) {
    struct stat info;
    return stat(path, &info) == 0;
}

// --- small files -------------------------------------------------------------------------------------------

static bool write_tmp(const char* directory, const char* name, const void* bytes, int64_t num_bytes,
                      char* error) {
    char path[CHECKPOINT_PATH_CHARS];
    CheckpointFile file;
    return join(path, directory, name, error) && checkpoint_file_create(&file, path, num_bytes, error) &&
           checkpoint_file_write(&file, bytes, num_bytes, 0, error) && checkpoint_file_sync(&file, error);
}

static bool copy_tmp(const char* directory, const char* name, const char* from, char* error) {
    CheckpointFile file;
    if (!checkpoint_file_open(&file, from, error)) { return false; }
    bool ok = file.num_bytes <= MAX_TOKENIZER_BYTES ||
              llmc_fail(error, "%s: %lld bytes ---> a tokenizer's file has at most %d", llmc_path_tail(from),
                        (long long)file.num_bytes, MAX_TOKENIZER_BYTES);
    char* bytes = ok ? llmc_alloc((size_t)file.num_bytes, "a tokenizer's file") : NULL;
    ok = ok && checkpoint_file_read(&file, bytes, file.num_bytes, 0, error) &&
         write_tmp(directory, name, bytes, file.num_bytes, error);
    free(bytes);
    checkpoint_file_close(&file);
    return ok;
}

static bool write_tokenizer(const char* directory, const HfTokens* tokens, char* error) {
    const bool bytes = tokens != NULL && tokens->bytes;
    const size_t config_bytes = sizeof BYTE_TOKENIZER - 1;
    if (bytes && !write_tmp(directory, "tokenizer_config.json", BYTE_TOKENIZER, config_bytes, error)) {
        return false;
    }
    for (int i = 0; tokens != NULL && tokens->folder != NULL && i < NUM_TOKENIZER_FILES; i++) {
        char from[CHECKPOINT_PATH_CHARS];
        if (bytes && i != NUM_TOKENIZER_FILES - 1) { continue; }  // others' files: bytes have none
        if (!join(from, tokens->folder, tokenizer_files[i], error)) { return false; }
        if (exists(from) && !copy_tmp(directory, tokenizer_files[i], from, error)) { return false; }
    }
    return true;
}

static bool write_configs(const char* directory, const HfConfig* config, char* error) {
    char* text = hf_config_text(config, DTYPE_NAME);
    char* generation = hf_config_generation_text(config);
    bool ok = write_tmp(directory, config_files[0], text, (int64_t)strlen(text), error) &&
              write_tmp(directory, config_files[1], generation, (int64_t)strlen(generation), error);
    free(text);
    free(generation);
    return ok;
}

// --- the weights' file -------------------------------------------------------------------------------------

static SafetensorsTensor file_tensor(const HfPart* part, char* name, const ModelConfig* config) {
    SafetensorsTensor tensor = {.name = name, .dtype = DTYPE, .num_dims = part->is_vector ? 1 : 2};
    snprintf(name, HF_NAME_CHARS, "%.15s%.80s", hf_names_prefix(config), part->name);
    tensor.dims[0] = part->is_vector || part->transposed ? part->cols : part->rows;
    tensor.dims[1] = part->is_vector ? 0 : part->transposed ? part->rows : part->cols;
    return tensor;
}

static bool make_layout(Safetensors* out, const ModelConfig* config, char* error) {
    int num_tensors = 0;
    for (HfNames names = {.config = config}; hf_names_next(&names) != NULL;) { num_tensors++; }
    SafetensorsTensor* tensors = llmc_alloc((size_t)num_tensors * sizeof *tensors, "names of tensors");
    char(*texts)[HF_NAME_CHARS] = llmc_alloc((size_t)num_tensors * sizeof *texts, "names of tensors");
    HfNames names = {.config = config};
    for (int i = 0; i < num_tensors; i++) {
        tensors[i] = file_tensor(hf_names_next(&names), texts[i], config);
    }
    bool ok = safetensors_layout(out, tensors, num_tensors, error);
    free(tensors);
    free(texts);
    return ok;
}

bool hf_checkpoint_make_directory(const char* directory, char* error) {
    char index[CHECKPOINT_PATH_CHARS];
    if (!join(index, directory, "model.safetensors.index.json", error)) { return false; }
    if (exists(index)) {
        return llmc_fail(error, "%s: has the shards of another model ---> export to an empty directory",
                         llmc_path_tail(directory));
    }
    return mkdir(directory, 0777) == 0 || errno == EEXIST ||
           llmc_fail(error, "%s: cannot make directory: %s ---> choose a place where you may write",
                     llmc_path_tail(directory), strerror(errno));
}

bool hf_checkpoint_create(const char* directory, const ModelConfig* config, const HfConfig* like,
                          const HfTokens* tokens, char* error) {
    const HfConfig theirs = hf_config_of_model(config, like);
    char path[CHECKPOINT_PATH_CHARS];
    Safetensors layout;
    if (!hf_checkpoint_make_directory(directory, error) || !join(path, directory, WEIGHTS, error) ||
        !make_layout(&layout, config, error)) {
        return false;
    }
    bool ok = safetensors_create(&layout, path, error) && write_configs(directory, &theirs, error) &&
              write_tokenizer(directory, tokens, error);
    safetensors_close(&layout);
    if (!ok) { hf_checkpoint_abort(directory); }
    return ok;
}

// --- values ------------------------------------------------------------------------------------------------

typedef struct {
    const Model* model;
    const Safetensors* layout;
    CheckpointFile* file;
    float* piece;  // PIECE_VALUES
} Target;

// Values [begin, end) of a part whose first value would be at `offset` of the rank's array.
static bool write_straight(const Target* target, const SafetensorsTensor* tensor, int64_t offset,
                           int64_t begin, int64_t end, float factor, char* error) {
    for (int64_t at = begin; at < end; at += PIECE_VALUES) {
        int64_t num = end - at < PIECE_VALUES ? end - at : PIECE_VALUES;
        device_values_download(target->model->ops, target->piece, target->model->params + (offset + at),
                               (size_t)num);
        for (int64_t i = 0; i < num && factor != 1.0f; i++) { target->piece[i] *= factor; }
        if (!safetensors_write(target->file, tensor, target->piece, at, at + num, error)) { return false; }
    }
    return true;
}

static bool write_transposed(const Target* target, const SafetensorsTensor* tensor, const HfPart* part,
                             int64_t offset, char* error) {
    const int64_t rows = part->rows, cols = part->cols;
    float* ours = llmc_alloc((size_t)(2 * rows * cols) * sizeof *ours, "a tensor to transpose");
    float* theirs = ours + rows * cols;
    device_values_download(target->model->ops, ours, target->model->params + offset, (size_t)(rows * cols));
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++) { theirs[j * rows + i] = ours[i * cols + j]; }
    }
    bool ok = safetensors_write(target->file, tensor, theirs, 0, rows * cols, error);
    free(ours);
    return ok;
}

static bool write_slice(const Target* target, const TensorSlice* slice, char* error) {
    const ModelConfig* config = &target->model->config;
    HfPart parts[HF_MAX_PARTS];
    int num_parts = hf_names_parts(parts, config, slice->tensor, slice->layer);
    // transformers scales before every umT5's head; ours is scaled where it is tied
    const bool is_scaled = config->bias_per_layer && !config->tied_head;
    for (int p = 0; p < num_parts; p++) {
        char name[HF_NAME_CHARS];
        const SafetensorsTensor wanted = file_tensor(&parts[p], name, config);
        const SafetensorsTensor* tensor = safetensors_find(target->layout, wanted.name);
        const int64_t part_begin = parts[p].row_begin * parts[p].cols - slice->first;  // in the slice
        const int64_t left = slice->num_values - part_begin;
        const int64_t begin = part_begin < 0 ? -part_begin : 0;
        const int64_t end = tensor->num_values < left ? tensor->num_values : left;
        float factor =
            is_scaled && strcmp(parts[p].name, "lm_head.weight") == 0 ? sqrtf((float)config->channels) : 1.0f;
        bool ok = parts[p].transposed
                      ? write_transposed(target, tensor, &parts[p], slice->offset + part_begin, error)
                      : write_straight(target, tensor, slice->offset + part_begin, begin, end, factor, error);
        if (!ok) { return false; }
    }
    return true;
}

bool hf_checkpoint_write(const char* directory, const Model* model, char* error) {
    char path[CHECKPOINT_PATH_CHARS];
    Safetensors layout;
    CheckpointFile file;
    if (!join(path, directory, WEIGHTS, error) || !make_layout(&layout, &model->config, error)) {
        return false;
    }
    if (!checkpoint_file_open_tmp(&file, path, error)) {
        safetensors_close(&layout);
        return false;
    }
    const Target target = {model, &layout, &file,
                           llmc_alloc(PIECE_VALUES * sizeof(float), "values on their way")};
    bool ok = file.num_bytes == layout.num_bytes ||
              llmc_fail(error, "%s.tmp: is of another model ---> export each run to a directory of its own",
                        llmc_path_tail(path));
    for (int i = 0; ok && i < model->num_slices; i++) {
        ok = model->slices[i].tied_copy || write_slice(&target, &model->slices[i], error);
    }
    free(target.piece);
    safetensors_close(&layout);
    if (!ok) { checkpoint_file_close(&file); }
    return ok && checkpoint_file_sync(&file, error);
}

// --- all at once -------------------------------------------------------------------------------------------

static bool commit_one(const char* directory, const char* name, char* error) {
    char path[CHECKPOINT_PATH_CHARS], tmp[CHECKPOINT_PATH_CHARS + 8];
    if (!join(path, directory, name, error)) { return false; }
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    return !exists(tmp) || checkpoint_file_rename(path, error);
}

bool hf_checkpoint_commit(const char* directory, char* error) {
    char path[CHECKPOINT_PATH_CHARS];
    for (int i = 0; i < NUM_TOKENIZER_FILES; i++) {
        if (!commit_one(directory, tokenizer_files[i], error)) { return false; }
    }
    return commit_one(directory, config_files[0], error) && commit_one(directory, config_files[1], error) &&
           join(path, directory, WEIGHTS, error) && checkpoint_file_rename(path, error);
}

void hf_checkpoint_abort(const char* directory) {
    char path[CHECKPOINT_PATH_CHARS];
    for (int i = 0; i < NUM_TOKENIZER_FILES + 3; i++) {
        const char* name = i < NUM_TOKENIZER_FILES        ? tokenizer_files[i]
                           : i == NUM_TOKENIZER_FILES + 2 ? WEIGHTS
                                                          : config_files[i - NUM_TOKENIZER_FILES];
        if (join(path, directory, name, NULL)) { checkpoint_file_remove_tmp(path); }
    }
}
