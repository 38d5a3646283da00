// Reading. Jansson parses the header; every value in it is checked before use.
#include "safetensors.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "floatx.h"
#include "llmc_error.h"

enum { LENGTH_BYTES = 8, MAX_INDEX_BYTES = 1 << 26 };
static const int64_t MOST_VALUES = (int64_t)1 << 53;

static const struct {
    char name[12];
    int bytes;
} dtypes[] = {
    {"F32", 4},     {"F16", 2},     {"BF16", 2},    {"F64", 8}, {"BOOL", 1}, {"U8", 1},
    {"I8", 1},      {"U16", 2},     {"I16", 2},     {"U32", 4}, {"I32", 4},  {"U64", 8},
    {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"I64", 8},
};
_Static_assert((int)SAFETENSORS_F32 == 0 && (int)SAFETENSORS_BF16 == 2, "the first of dtypes, in this order");

// --- what is open ------------------------------------------------------------------------------------------

void safetensors_close(Safetensors* file) {
    for (int i = 0; i < file->num_tensors; i++) { free((char*)file->tensors[i].name); }
    for (int i = 0; i < file->num_files; i++) { checkpoint_file_close(&file->files[i]); }
    free(file->tensors);
    free(file->files);
    free(file->header);
    *file = (Safetensors){0};
}

static int compare_names(const void* a, const void* b) {
    return strcmp(((const SafetensorsTensor*)a)->name, ((const SafetensorsTensor*)b)->name);
}

static void safetensors_sort(Safetensors* file) {
    if (file->num_tensors > 0) {
        qsort(file->tensors, (size_t)file->num_tensors, sizeof *file->tensors, compare_names);
    }
}

const SafetensorsTensor* safetensors_find(const Safetensors* file, const char* name) {
    SafetensorsTensor wanted = {.name = name};
    if (file->num_tensors == 0) { return NULL; }
    return bsearch(&wanted, file->tensors, (size_t)file->num_tensors, sizeof *file->tensors, compare_names);
}

const char* safetensors_path(const Safetensors* file, const SafetensorsTensor* tensor) {
    return checkpoint_path_tail(file->files[tensor->file_idx].path);
}

static SafetensorsTensor* grow(Safetensors* file, int num_more) {
    size_t num_tensors = (size_t)file->num_tensors;
    SafetensorsTensor* tensors =
        llmc_alloc((num_tensors + (size_t)num_more) * sizeof *tensors, "names of tensors");
    if (num_tensors > 0) { memcpy(tensors, file->tensors, num_tensors * sizeof *tensors); }
    free(file->tensors);
    file->tensors = tensors;
    return &tensors[num_tensors];
}

static char* copy_text(const char* text) {
    char* copy = llmc_alloc(strlen(text) + 1, "a name");
    return strcpy(copy, text);
}

// --- one file's header -------------------------------------------------------------------------------------

// Parses bytes [offset, offset + num_bytes) as a JSON object; NULL: `error` holds the reason.
static json_t* read_json(const CheckpointFile* file, int64_t offset, int64_t num_bytes) {
    const char* path = checkpoint_path_tail(file->path);
    char* text = llmc_alloc((size_t)num_bytes, "a header");
    if (!llmc_ok(checkpoint_file_read(file, text, num_bytes, offset))) {
        free(text);
        return NULL;
    }
    json_error_t reason;
    json_t* root = json_loadb(text, (size_t)num_bytes, JSON_REJECT_DUPLICATES, &reason);
    free(text);
    if (root == NULL) {
        llmc_fail("%s: header: %.90s at byte %d ---> download or write the file again", path, reason.text,
                  reason.position);
    } else if (!json_is_object(root)) {
        llmc_fail("%s: header is no JSON object {...} ---> download or write the file again", path);
        json_decref(root);
        root = NULL;
    }
    return root;
}

static bool read_dtype(SafetensorsTensor* tensor, const char* path, json_t* entry) {
    const char* name = json_string_value(json_object_get(entry, "dtype"));
    if (name == NULL || strlen(name) >= sizeof tensor->dtype_name) {
        return llmc_fail("%s: %.80s: dtype ---> must be a name such as \"F32\"", path, tensor->name);
    }
    strcpy(tensor->dtype_name, name);
    tensor->dtype = SAFETENSORS_OTHER;
    for (int i = 0; i < SAFETENSORS_OTHER; i++) {
        if (strcmp(name, dtypes[i].name) == 0) { tensor->dtype = (SafetensorsDtype)i; }
    }
    return true;
}

static bool read_shape(SafetensorsTensor* tensor, const char* path, json_t* entry) {
    json_t* shape = json_object_get(entry, "shape");
    size_t num_dims = json_array_size(shape);
    if (!json_is_array(shape) || num_dims > SAFETENSORS_MAX_DIMS) {
        return llmc_fail("%s: %.80s: shape ---> must be a list of at most %d whole numbers", path,
                         tensor->name, SAFETENSORS_MAX_DIMS);
    }
    tensor->num_dims = (int)num_dims;
    tensor->num_values = 1;
    for (size_t i = 0; i < num_dims; i++) {
        json_t* dim = json_array_get(shape, i);
        json_int_t value = json_integer_value(dim);
        if (!json_is_integer(dim) || value < 0 || value > MOST_VALUES) {
            return llmc_fail("%s: %.80s: shape[%zu] ---> must be a whole number in 0 ... 2^53", path,
                             tensor->name, i);
        }
        tensor->dims[i] = value;
        if (value > 0 && tensor->num_values > MOST_VALUES / value) {
            return llmc_fail("%s: %.80s: shape has more than 2^53 values ---> download the file again", path,
                             tensor->name);
        }
        tensor->num_values *= value;
    }
    return true;
}

// The tensor is after the header, inside the file, and as long as shape and dtype require.
static bool read_offsets(SafetensorsTensor* tensor, const CheckpointFile* file, int64_t data_begin,
                         json_t* entry) {
    const char* path = checkpoint_path_tail(file->path);
    json_t* offsets = json_object_get(entry, "data_offsets");
    json_t *first = json_array_get(offsets, 0), *second = json_array_get(offsets, 1);
    json_int_t begin = json_integer_value(first), end = json_integer_value(second);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(second) || begin < 0 ||
        end < begin) {
        return llmc_fail("%s: %.80s: data_offsets ---> must be [begin, end], whole numbers, begin <= end",
                         path, tensor->name);
    }
    int64_t data_bytes = file->num_bytes - data_begin;
    if (end > data_bytes) {
        return llmc_fail("%s: %.80s: data_offsets end at %lld, the values at %lld ---> download it again",
                         path, tensor->name, (long long)end, (long long)data_bytes);
    }
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(tensor->dtype_name, dtypes[i].name) != 0) { continue; }
        if (end - begin != dtypes[i].bytes * tensor->num_values) {
            return llmc_fail("%s: %.80s: data_offsets hold %lld bytes, shape and dtype %s ask for %lld ---> "
                             "download it again",
                             path, tensor->name, (long long)(end - begin), tensor->dtype_name,
                             (long long)(dtypes[i].bytes * tensor->num_values));
        }
    }
    tensor->begin = data_begin + begin;
    tensor->end = data_begin + end;
    return true;
}

static bool read_tensor(SafetensorsTensor* tensor, const CheckpointFile* file, int64_t data_begin,
                        json_t* entry) {
    const char* path = checkpoint_path_tail(file->path);
    if (!json_is_object(entry)) {
        return llmc_fail("%s: %.80s ---> must be an object of dtype, shape, data_offsets", path,
                         tensor->name);
    }
    return read_dtype(tensor, path, entry) && read_shape(tensor, path, entry) &&
           read_offsets(tensor, file, data_begin, entry);
}

static int compare_begins(const void* a, const void* b) {
    const SafetensorsTensor *x = a, *y = b;
    if (x->begin != y->begin) { return x->begin < y->begin ? -1 : 1; }
    return x->end < y->end ? -1 : x->end > y->end;
}

// The values are contiguous and fill the file. Sorts tensors by place.
static bool check_cover(const CheckpointFile* file, SafetensorsTensor* tensors, int num_tensors,
                        int64_t data_begin) {
    const char* path = checkpoint_path_tail(file->path);
    if (num_tensors > 0) { qsort(tensors, (size_t)num_tensors, sizeof *tensors, compare_begins); }
    int64_t at = data_begin;
    for (int i = 0; i < num_tensors; i++) {
        if (tensors[i].begin < at) {
            return llmc_fail("%s: %.60s: data_offsets overlap those of %.60s ---> write the file again", path,
                             tensors[i].name, tensors[i - 1].name);
        }
        if (tensors[i].begin > at) {
            return llmc_fail(
                "%s: %.80s: %lld bytes before its data_offsets belong to none ---> write it again", path,
                tensors[i].name, (long long)(tensors[i].begin - at));
        }
        at = tensors[i].end;
    }
    return at == file->num_bytes ||
           llmc_fail("%s: %lld bytes at its end belong to no tensor ---> download it again", path,
                     (long long)(file->num_bytes - at));
}

static bool read_header_length(const CheckpointFile* file, int64_t* header_bytes) {
    const char* path = checkpoint_path_tail(file->path);
    uint8_t bytes[LENGTH_BYTES];
    if (file->num_bytes < LENGTH_BYTES) {
        return llmc_fail("%s: %lld bytes are no safetensors file ---> download it again", path,
                         (long long)file->num_bytes);
    }
    if (!llmc_ok(checkpoint_file_read(file, bytes, LENGTH_BYTES, 0))) { return false; }
    uint64_t length = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) { length = length << 8 | bytes[i]; }
    uint64_t room = (uint64_t)file->num_bytes - LENGTH_BYTES;
    if (length > room || length > SAFETENSORS_MAX_HEADER_BYTES) {
        return llmc_fail("%s: header of %llu bytes, but the file has %llu and %d are allowed ---> %s", path,
                         (unsigned long long)length, (unsigned long long)room, SAFETENSORS_MAX_HEADER_BYTES,
                         "download it again (is it a safetensors file?)");
    }
    *header_bytes = (int64_t)length;
    return true;
}

// Adds the tensors of files[file_idx], in the order of their places.
static bool read_header(Safetensors* out, int file_idx) {
    const CheckpointFile* file = &out->files[file_idx];
    int64_t header_bytes = 0;
    if (!read_header_length(file, &header_bytes)) { return false; }
    json_t* root = read_json(file, LENGTH_BYTES, header_bytes);
    if (root == NULL) { return false; }
    const int64_t data_begin = LENGTH_BYTES + header_bytes;
    SafetensorsTensor* added = grow(out, (int)json_object_size(root));
    const int num_before = out->num_tensors;
    const char* name;
    json_t* entry;
    bool ok = true;
    json_object_foreach(root, name, entry) {
        if (strcmp(name, "__metadata__") == 0) { continue; }
        SafetensorsTensor* tensor = &out->tensors[out->num_tensors++];
        *tensor = (SafetensorsTensor){.name = copy_text(name), .file_idx = file_idx};
        ok = read_tensor(tensor, file, data_begin, entry);
        if (!ok) { break; }
    }
    json_decref(root);
    return ok && check_cover(file, added, out->num_tensors - num_before, data_begin);
}

// --- opening -----------------------------------------------------------------------------------------------

static bool is_directory(const char* path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static bool exists(const char* path) {
    struct stat info;
    return stat(path, &info) == 0;
}

static bool ends_with(const char* text, const char* end) {
    size_t num_text = strlen(text), num_end = strlen(end);
    return num_text >= num_end && strcmp(text + num_text - num_end, end) == 0;
}

static bool open_one(Safetensors* out, const char* path) {
    if (out->num_files == SAFETENSORS_MAX_FILES) {
        return llmc_fail("%s: more than %d files ---> save the model in fewer shards",
                         checkpoint_path_tail(path), SAFETENSORS_MAX_FILES);
    }
    if (out->files == NULL) {
        out->files = llmc_alloc(SAFETENSORS_MAX_FILES * sizeof *out->files, "open files");
    }
    if (!llmc_ok(checkpoint_file_open(&out->files[out->num_files], path))) { return false; }
    out->num_files++;
    return read_header(out, out->num_files - 1);
}

// Adds the index's files[] in the order of their first tensor; a shard's name is a plain file name beside
// the index.
static bool open_shard(Safetensors* out, const char* index_path, const char* name, const char* shard) {
    if (shard == NULL || *shard == '\0' || strchr(shard, '/') != NULL || strcmp(shard, "..") == 0 ||
        strcmp(shard, ".") == 0) {
        return llmc_fail("%s: weight_map: %.80s ---> must name a file beside the index",
                         checkpoint_path_tail(index_path), name);
    }
    const char* slash = strrchr(index_path, '/');
    int directory_chars = slash == NULL ? 0 : (int)(slash - index_path) + 1;
    char path[CHECKPOINT_PATH_CHARS];
    int num_chars = snprintf(path, sizeof path, "%.*s%s", directory_chars, index_path, shard);
    if (num_chars < 0 || (size_t)num_chars >= sizeof path) {
        return llmc_fail("%s: path too long ---> use a shorter directory", checkpoint_path_tail(index_path));
    }
    for (int i = 0; i < out->num_files; i++) {
        if (strcmp(out->files[i].path, path) == 0) { return true; }
    }
    return open_one(out, path);
}

// Every tensor of every shard must be in the index, in that shard, and vice versa.
static bool check_index(const Safetensors* file, const char* index_path, json_t* map) {
    const char* path = checkpoint_path_tail(index_path);
    for (int i = 0; i < file->num_tensors; i++) {
        const SafetensorsTensor* tensor = &file->tensors[i];
        const char* shard = json_string_value(json_object_get(map, tensor->name));
        const char* slash = strrchr(file->files[tensor->file_idx].path, '/');
        const char* theirs = slash == NULL ? file->files[tensor->file_idx].path : slash + 1;
        if (shard == NULL || strcmp(shard, theirs) != 0) {
            return llmc_fail("%s: %.60s: %.60s is in it, the index says %.60s ---> use one set of shards",
                             path, tensor->name, theirs, shard == NULL ? "nothing" : shard);
        }
    }
    const char* name;
    json_t* value;
    json_object_foreach(map, name, value) {
        if (safetensors_find(file, name) == NULL) {
            return llmc_fail("%s: weight_map: %.80s is not in %.60s ---> use one set of shards", path, name,
                             json_string_value(value));
        }
    }
    return true;
}

static bool open_shards(Safetensors* out, const char* path, json_t* root) {
    json_t *map = json_object_get(root, "weight_map"), *value;
    if (!json_is_object(map) || json_object_size(map) == 0) {
        return llmc_fail("%s: weight_map ---> must be an object of tensors and their files",
                         checkpoint_path_tail(path));
    }
    const char* name;
    json_object_foreach(map, name, value) {
        if (!open_shard(out, path, name, json_string_value(value))) { return false; }
    }
    safetensors_sort(out);
    return check_index(out, path, map);
}

static bool open_index(Safetensors* out, const char* path) {
    CheckpointFile file;
    if (!llmc_ok(checkpoint_file_open(&file, path))) { return false; }
    json_t* root = NULL;
    if (file.num_bytes > MAX_INDEX_BYTES) {
        llmc_fail("%s: %lld bytes ---> an index has at most %d", checkpoint_path_tail(path),
                  (long long)file.num_bytes, MAX_INDEX_BYTES);
    } else {
        root = read_json(&file, 0, file.num_bytes);
    }
    checkpoint_file_close(&file);
    if (root == NULL) { return false; }
    bool ok = open_shards(out, path, root);
    json_decref(root);
    return ok;
}

static bool find_in_directory(char* out, const char* directory) {
    static const char* const names[] = {"model.safetensors.index.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        int num_chars = snprintf(out, CHECKPOINT_PATH_CHARS, "%s/%s", directory, names[i]);
        if (num_chars > 0 && num_chars < CHECKPOINT_PATH_CHARS && exists(out)) { return true; }
    }
    return llmc_fail(
        "%s: has no model.safetensors ---> where there is a pytorch_model.bin, save the model anew with "
        "a current transformers",
        checkpoint_path_tail(directory));
}

bool safetensors_open(Safetensors* out, const char* path) {
    char found[CHECKPOINT_PATH_CHARS];
    if (is_directory(path)) {
        if (!find_in_directory(found, path)) { return false; }
        path = found;
    }
    Safetensors file = {0};
    bool ok = ends_with(path, ".json") ? open_index(&file, path) : open_one(&file, path);
    if (!ok) {
        safetensors_close(&file);
        return false;
    }
    safetensors_sort(&file);
    *out = file;
    return true;
}

// --- values ------------------------------------------------------------------------------------------------

enum { PIECE_VALUES = 4096 };

bool safetensors_read(const Safetensors* file, const SafetensorsTensor* tensor, float* values, int64_t begin,
                      int64_t end) {
    const CheckpointFile* in = &file->files[tensor->file_idx];
    if (tensor->dtype == SAFETENSORS_OTHER) {
        return llmc_fail("%s: %.80s: dtype %s ---> save the model as F32, F16 or BF16",
                         safetensors_path(file, tensor), tensor->name, tensor->dtype_name);
    }
    if (tensor->dtype == SAFETENSORS_F32) {
        return llmc_ok(checkpoint_file_read(in, values, 4 * (end - begin), tensor->begin + 4 * begin));
    }
    uint16_t halves[PIECE_VALUES];
    for (int64_t at = begin; at < end;) {
        int64_t num = end - at < PIECE_VALUES ? end - at : PIECE_VALUES;
        if (!llmc_ok(checkpoint_file_read(in, halves, 2 * num, tensor->begin + 2 * at))) { return false; }
        for (int64_t i = 0; i < num; i++) {
            values[at - begin + i] = tensor->dtype == SAFETENSORS_BF16 ? half_from_bfloat16(halves[i])
                                                                       : half_from_float16(halves[i]);
        }
        at += num;
    }
    return true;
}

// --- writing -----------------------------------------------------------------------------------------------
// Every process computes the same layout, one creates the file, all write their ranges.

static json_t* tensor_entry(const SafetensorsTensor* tensor) {
    json_t* shape = json_array();
    for (int i = 0; i < tensor->num_dims; i++) {
        json_array_append_new(shape, json_integer(tensor->dims[i]));
    }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", tensor->dtype_name, "shape", shape, "data_offsets",
                     (json_int_t)tensor->begin, (json_int_t)tensor->end);
}

// Length, JSON, blanks up to a multiple of 8 to align the values. free() it.
static char* make_header(const json_t* root, int64_t* header_bytes) {
    char* text = json_dumps(root, JSON_COMPACT | JSON_PRESERVE_ORDER);
    if (text == NULL) { return NULL; }
    size_t text_bytes = strlen(text), padded = (text_bytes + 7) / 8 * 8;
    char* header = llmc_alloc(LENGTH_BYTES + padded, "a header");
    for (int i = 0; i < LENGTH_BYTES; i++) { header[i] = (char)(padded >> 8 * i & 255); }
    memset(header + LENGTH_BYTES, ' ', padded);
    memcpy(header + LENGTH_BYTES, text, text_bytes);
    free(text);
    *header_bytes = (int64_t)(LENGTH_BYTES + padded);
    return header;
}

bool safetensors_layout(Safetensors* out, const SafetensorsTensor* tensors, int num_tensors) {
    Safetensors file = {.num_tensors = num_tensors};
    file.tensors = llmc_alloc((size_t)num_tensors * sizeof *tensors, "names of tensors");
    json_t* root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    int64_t at = 0;
    for (int i = 0; i < num_tensors; i++) {
        SafetensorsTensor* tensor = &file.tensors[i];
        *tensor = tensors[i];
        tensor->name = copy_text(tensors[i].name);
        snprintf(tensor->dtype_name, sizeof tensor->dtype_name, "%s", dtypes[tensor->dtype].name);
        tensor->num_values = 1;
        for (int k = 0; k < tensor->num_dims; k++) { tensor->num_values *= tensor->dims[k]; }
        tensor->begin = at;
        tensor->end = at += dtypes[tensor->dtype].bytes * tensor->num_values;
        json_object_set_new(root, tensor->name, tensor_entry(tensor));
    }
    bool ok = json_object_size(root) == (size_t)num_tensors + 1;
    file.header = ok ? make_header(root, &file.header_bytes) : NULL;
    json_decref(root);
    if (file.header == NULL || file.header_bytes > SAFETENSORS_MAX_HEADER_BYTES) {
        safetensors_close(&file);
        return llmc_fail("%d tensors: names are not unique, or not UTF-8 ---> a mistake of the caller",
                         num_tensors);
    }
    for (int i = 0; i < num_tensors; i++) {
        file.tensors[i].begin += file.header_bytes;
        file.tensors[i].end += file.header_bytes;
    }
    file.num_bytes = file.header_bytes + at;
    safetensors_sort(&file);
    *out = file;
    return true;
}

bool safetensors_create(const Safetensors* layout, const char* path) {
    CheckpointFile file;
    return llmc_ok(checkpoint_file_create(&file, path, layout->num_bytes)) &&
           llmc_ok(checkpoint_file_write(&file, layout->header, layout->header_bytes, 0)) &&
           llmc_ok(checkpoint_file_sync(&file));
}

bool safetensors_write(CheckpointFile* out, const SafetensorsTensor* tensor, const float* values,
                       int64_t begin, int64_t end) {
    if (tensor->dtype == SAFETENSORS_F32) {
        return llmc_ok(checkpoint_file_write(out, values, 4 * (end - begin), tensor->begin + 4 * begin));
    }
    uint16_t halves[PIECE_VALUES];
    for (int64_t at = begin; at < end;) {
        int64_t num = end - at < PIECE_VALUES ? end - at : PIECE_VALUES;
        for (int64_t i = 0; i < num; i++) { halves[i] = half_to_bfloat16(values[at - begin + i]); }
        if (!llmc_ok(checkpoint_file_write(out, halves, 2 * num, tensor->begin + 2 * at))) { return false; }
        at += num;
    }
    return true;
}
