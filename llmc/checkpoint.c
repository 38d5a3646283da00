#include "checkpoint.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_record.h"
#include "model.h"
#include "floatx.h"
#include "llmc_error.h"

enum { HEADER_INTS = 256, HEADER_BYTES = 4 * HEADER_INTS };
enum { MODEL_VERSION_FP32 = 3, MODEL_VERSION_BF16 = 5 };
enum { STATE_MAGIC = 20240527, STATE_VERSION = 1, STATE_MASTER = 4, STATE_SHUFFLES = 5, STATE_STEP = 10 };
#ifdef LLMC_BF16
enum { MODEL_VERSION = MODEL_VERSION_BF16 };  // that this build writes
#else
enum { MODEL_VERSION = MODEL_VERSION_FP32 };
#endif

static int64_t value_bytes(int32_t model_version) {
    return model_version == MODEL_VERSION_BF16 ? 2 : 4;
}

static int64_t model_bytes(const ModelConfig* config, int32_t version) {
    return HEADER_BYTES + value_bytes(version) * model_num_params(config);
}

// Where the run's record begins in a state file.
static int64_t state_bytes(const ModelConfig* config, bool has_master) {
    return HEADER_BYTES + (has_master ? 12 : 8) * model_num_params(config);
}

static bool is_of_model_file(CheckpointBody body) {
    return body == CHECKPOINT_PARAMS || body == CHECKPOINT_FLOATS;
}

// Where a body's values begin among those of its file.
static int64_t body_begin(CheckpointBody body, const ModelConfig* config) {
    int64_t num_before = body == CHECKPOINT_V ? 1 : body == CHECKPOINT_MASTER ? 2 : 0;
    return num_before * model_num_params(config);
}

// --- from device to file and back, a piece at a time -----------------------------------------------------

enum { PIECE_VALUES = 1 << 20 };  // at most

typedef struct {
    float* values;
    uint16_t* halves;  // as a version 5 file has them
} Piece;

// For pieces of a slice of so many values.
static Piece piece_alloc(int64_t num_values) {
    size_t most = (size_t)(num_values < PIECE_VALUES ? num_values : PIECE_VALUES);
    return (Piece){llmc_alloc(most * sizeof(float), "values of a file"),
                   llmc_alloc(most * sizeof(uint16_t), "values of a file")};
}

static void piece_free(const Piece* piece) {
    free(piece->values);
    free(piece->halves);
}

static void piece_download(const Piece* piece, CheckpointBody body, const Model* model, const void* values,
                           int64_t at, int64_t num_values) {
    if (body == CHECKPOINT_PARAMS) {
        device_values_download(model->ops, piece->values, (const floatX*)values + at, (size_t)num_values);
    } else {
        ops_download(model->ops, piece->values, (const float*)values + at,
                     (size_t)num_values * sizeof(float));
    }
}

static void piece_upload(const Piece* piece, CheckpointBody body, const Model* model, void* values,
                         int64_t at, int64_t num_values) {
    if (body == CHECKPOINT_PARAMS) {
        device_values_upload(model->ops, (floatX*)values + at, piece->values, (size_t)num_values);
    } else {
        ops_upload(model->ops, (float*)values + at, piece->values, (size_t)num_values * sizeof(float));
    }
}

// A file's values of one or another length, and the sum of those that went by.
typedef struct {
    CheckpointFile file;
    int64_t bytes_per_value;
    int64_t begin;  // of the body, in values
    uint64_t* sum;  // NULL: nobody asks
} Body;

static void body_add(const Body* body, const Piece* piece, int64_t first, int64_t num_values) {
    if (body->sum == NULL) { return; }
    const void* values = body->bytes_per_value == 4 ? (const void*)piece->values : piece->halves;
    checkpoint_seal_add(body->sum, body->begin + first, values, num_values, body->bytes_per_value);
}

static int64_t body_byte(const Body* body, int64_t first) {
    return HEADER_BYTES + body->bytes_per_value * (body->begin + first);
}

static bool piece_write(const Piece* piece, Body* body, int64_t first, int64_t num_values, char* error) {
    const void* values = piece->values;
    if (body->bytes_per_value == 2) {
        for (int64_t i = 0; i < num_values; i++) { piece->halves[i] = floatx_bf16_bits(piece->values[i]); }
        values = piece->halves;
    }
    body_add(body, piece, first, num_values);
    return checkpoint_file_write(&body->file, values, body->bytes_per_value * num_values,
                                 body_byte(body, first), error);
}

static bool piece_read(const Piece* piece, const Body* body, int64_t first, int64_t num_values, char* error) {
    void* values = body->bytes_per_value == 4 ? (void*)piece->values : piece->halves;
    if (!checkpoint_file_read(&body->file, values, body->bytes_per_value * num_values, body_byte(body, first),
                              error)) {
        return false;
    }
    body_add(body, piece, first, num_values);
    if (body->bytes_per_value == 2) {
        for (int64_t i = 0; i < num_values; i++) { piece->values[i] = floatx_bf16_float(piece->halves[i]); }
    }
    return true;
}

// --- writing ---------------------------------------------------------------------------------------------

static void fill_model_header(int32_t* header, const ModelConfig* config, int32_t version) {
    memset(header, 0, HEADER_BYTES);
    config->kind->to_header(header, config);
    header[0] = config->kind->checkpoint_magic;
    header[1] = version;
}

static bool create_model(const char* path, const ModelConfig* config, int32_t version, char* error) {
    int32_t header[HEADER_INTS];
    fill_model_header(header, config, version);
    CheckpointFile file;
    return checkpoint_file_create(&file, path, model_bytes(config, version), error) &&
           checkpoint_file_write(&file, header, HEADER_BYTES, 0, error) && checkpoint_file_sync(&file, error);
}

bool checkpoint_create_model(const char* path, const ModelConfig* config, char* error) {
    return create_model(path, config, MODEL_VERSION, error);
}

bool checkpoint_create_gradients(const char* path, const ModelConfig* config, char* error) {
    return create_model(path, config, MODEL_VERSION_FP32, error);
}

bool checkpoint_create_state(const char* path, const ModelConfig* config, const CheckpointRun* run,
                             uint64_t* sum, char* error) {
    int32_t header[HEADER_INTS] = {STATE_MAGIC, STATE_VERSION, 1, 0}, model[HEADER_INTS];
    header[STATE_STEP] = run->step;
    header[STATE_MASTER] = run->has_master;
    fill_model_header(model, config, MODEL_VERSION);
    memcpy(&header[CHECKPOINT_STATE_MODEL], model, sizeof(int32_t) * CHECKPOINT_STATE_MODEL_INTS);
    int64_t at = state_bytes(config, run->has_master), num_values = (at - HEADER_BYTES) / 4;
    CheckpointFile file;
    return checkpoint_file_create(&file, path, at + checkpoint_record_bytes(run), error) &&
           checkpoint_file_write(&file, header, HEADER_BYTES, 0, error) &&
           checkpoint_record_write(&file, run, at, num_values, sum, error) &&
           checkpoint_file_sync(&file, error);
}

// A run of values that is contiguous both in the slice's flat array and in the file.
typedef struct {
    int64_t begin, num_values;  // in the flat array
    int64_t file_offset;        // in the body, in values
} Run;

// The next run within [begin, end), from slice *idx on, of what this slice counts or of its copies of what an
// earlier one counts; false: none left. Neighbouring tensors are joined.
static bool next_run(Run* out, const Model* model, int64_t begin, int64_t end, bool tied_copies, int* idx) {
    *out = (Run){0};
    for (; *idx < model->num_slices; (*idx)++) {
        const TensorSlice* slice = &model->slices[*idx];
        int64_t from = slice->offset > begin ? slice->offset : begin;
        int64_t to = slice->offset + slice->num_values < end ? slice->offset + slice->num_values : end;
        if (from >= to || slice->tied_copy != tied_copies) { continue; }
        int64_t file_offset = slice->file_offset + from - slice->offset;
        if (out->num_values == 0) { *out = (Run){.begin = from, .file_offset = file_offset}; }
        bool joins =
            from == out->begin + out->num_values && file_offset == out->file_offset + out->num_values;
        if (!joins) { return true; }
        out->num_values += to - from;
    }
    return out->num_values > 0;
}

// The next piece of a run, in file order; false: none left.
static bool next_piece(Run* out, const Run* run) {
    out->begin += out->num_values;
    out->file_offset += out->num_values;
    int64_t left = run->begin + run->num_values - out->begin;
    out->num_values = left < PIECE_VALUES ? left : PIECE_VALUES;
    return left > 0;
}

bool checkpoint_write(const char* path, CheckpointBody body, const Model* model, const void* values,
                      int64_t begin, int64_t end, uint64_t* sum, char* error) {
    Body out = {.bytes_per_value = body == CHECKPOINT_PARAMS ? value_bytes(MODEL_VERSION) : 4,
                .begin = body_begin(body, &model->config),
                .sum = sum};
    if (!checkpoint_file_open_tmp(&out.file, path, error)) { return false; }
    Piece piece = piece_alloc(end - begin);
    bool ok = true;
    Run run;
    for (int idx = 0; ok && next_run(&run, model, begin, end, false, &idx);) {
        Run part = {.begin = run.begin, .file_offset = run.file_offset};
        while (ok && next_piece(&part, &run)) {
            piece_download(&piece, body, model, values, part.begin - begin, part.num_values);
            ok = piece_write(&piece, &out, part.file_offset, part.num_values, error);
        }
    }
    piece_free(&piece);
    return ok && checkpoint_file_sync(&out.file, error);
}

bool checkpoint_commit(const char* path, char* error) {
    return checkpoint_file_rename(path, error);
}

void checkpoint_abort(const char* path) {
    checkpoint_file_remove_tmp(path);
}

// --- reading ---------------------------------------------------------------------------------------------

static bool check_model_header(const CheckpointFile* file, const int32_t* header, const ModelKind* kind,
                               ModelConfig* out, char* error) {
    const char* path = llmc_path_tail(file->path);
    if (header[0] != kind->checkpoint_magic) {
        return llmc_fail(error, "%s: magic %d is not %d: no %s model ---> use a model_*.bin of this trainer",
                         path, header[0], kind->checkpoint_magic, kind->name);
    }
    if (header[1] != MODEL_VERSION_FP32 && header[1] != MODEL_VERSION_BF16) {
        return llmc_fail(error,
                         "%s: version %d is not %d or %d ---> write the file anew with a current program",
                         path, header[1], MODEL_VERSION_FP32, MODEL_VERSION_BF16);
    }
    ModelConfig config;
    kind->from_header(&config, header);
    config.kind = kind;
    if (!kind->check(&config, path, error)) { return false; }
    int64_t num_bytes = model_bytes(&config, header[1]);
    if (file->num_bytes != num_bytes) {
        return llmc_fail(error, "%s: %lld bytes, but its header asks for %lld ---> copy or download it again",
                         path, (long long)file->num_bytes, (long long)num_bytes);
    }
    *out = config;
    return true;
}

static bool open_and_read_header(CheckpointFile* file, const char* path, int32_t* header, char* error) {
    if (!checkpoint_file_open(file, path, error)) { return false; }
    if (file->num_bytes < HEADER_BYTES) {
        llmc_fail(error, "%s: %lld bytes are too few for a header of %d ---> use another checkpoint",
                  llmc_path_tail(path), (long long)file->num_bytes, HEADER_BYTES);
    } else if (checkpoint_file_read(file, header, HEADER_BYTES, 0, error)) {
        return true;
    }
    checkpoint_file_close(file);
    return false;
}

bool checkpoint_read_config(ModelConfig* out, const ModelKind* kind, const char* path, char* error) {
    CheckpointFile file;
    int32_t header[HEADER_INTS];
    if (!open_and_read_header(&file, path, header, error)) { return false; }
    bool ok = check_model_header(&file, header, kind, out, error);
    checkpoint_file_close(&file);
    return ok;
}

static bool check_same_config(const char* path, const ModelConfig* theirs, const ModelConfig* ours,
                              char* error) {
    ModelDifference d;
    return model_config_equal(theirs, ours, &d) ||
           llmc_fail(error, "%s: %s is %d, this run's is %d ---> %s", llmc_path_tail(path), d.field, d.theirs,
                     d.ours, d.remedy);
}

static bool check_state_header(const CheckpointFile* file, const int32_t* header, const ModelConfig* config,
                               char* error) {
    const char* path = llmc_path_tail(file->path);
    if (header[0] != STATE_MAGIC) {
        return llmc_fail(error, "%s: magic %d is not %d: no optimizer state ---> use a state_*.bin", path,
                         header[0], STATE_MAGIC);
    }
    if (header[1] != STATE_VERSION) {
        return llmc_fail(error, "%s: version %d is not %d ---> write the file anew with a current program",
                         path, header[1], STATE_VERSION);
    }
    if (header[2] != 1 || header[3] != 0) {
        return llmc_fail(error,
                         "%s: process %d of %d wrote it ---> only llm.c can resume this; begin from its "
                         "model_*.bin with -e",
                         path, header[3], header[2]);
    }
    if (header[STATE_STEP] < 0) {
        return llmc_fail(error, "%s: step %d is below 0 ---> use another checkpoint", path,
                         header[STATE_STEP]);
    }
    int64_t num_bytes = state_bytes(config, header[STATE_MASTER] != 0);
    if (file->num_bytes < num_bytes) {
        return llmc_fail(
            error,
            "%s: %lld bytes, but this model's state has %lld ---> use the state beside the model "
            "file, whole",
            path, (long long)file->num_bytes, (long long)num_bytes);
    }
    return true;
}

static bool check_has_master(const char* path, const int32_t* header, char* error) {
    return header[STATE_MASTER] != 0 ||
           llmc_fail(error, "%s: has no master weights ---> use the model file's", llmc_path_tail(path));
}

static bool open_body(Body* out, const char* path, CheckpointBody body, const ModelConfig* config,
                      char* error) {
    CheckpointFile* file = &out->file;
    int32_t header[HEADER_INTS];
    if (!open_and_read_header(file, path, header, error)) { return false; }
    ModelConfig theirs;
    bool ok = is_of_model_file(body) ? check_model_header(file, header, config->kind, &theirs, error) &&
                                           check_same_config(path, &theirs, config, error)
                                     : check_state_header(file, header, config, error);
    if (ok && body == CHECKPOINT_MASTER) { ok = check_has_master(path, header, error); }
    if (!ok) { checkpoint_file_close(file); }
    out->bytes_per_value = is_of_model_file(body) ? value_bytes(header[1]) : 4;
    out->begin = body_begin(body, config);
    return ok;
}

// Values [begin, end) of the slice as read: a damaged one is told here, by its name, rather than as a loss
// that is NaN.
static bool check_finite(const char* path, const Model* model, const float* values, int64_t begin,
                         int64_t end, char* error) {
    for (int i = 0; i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        int64_t from = slice->offset > begin ? slice->offset : begin;
        int64_t to = slice->offset + slice->num_values < end ? slice->offset + slice->num_values : end;
        for (int64_t j = from; j < to; j++) {
            if (isfinite(values[j - begin])) { continue; }
            char layer[32] = "";
            if (slice->layer >= 0) { snprintf(layer, sizeof layer, " of layer %d", slice->layer); }
            return llmc_fail(error, "%s: value %lld of %s%s is no finite number ---> use another checkpoint",
                             llmc_path_tail(path), (long long)(slice->first + j - slice->offset),
                             model->config.kind->tensor(&model->config, slice->tensor).name, layer);
        }
    }
    return true;
}

static bool read_run(const Body* in, const Piece* piece, CheckpointBody body, const Model* model,
                     void* values, int64_t begin, const Run* run, char* error) {
    Run part = {.begin = run->begin, .file_offset = run->file_offset};
    while (next_piece(&part, run)) {
        if (!piece_read(piece, in, part.file_offset, part.num_values, error) ||
            !check_finite(in->file.path, model, piece->values, part.begin, part.begin + part.num_values,
                          error)) {
            return false;
        }
        piece_upload(piece, body, model, values, part.begin - begin, part.num_values);
    }
    return true;
}

bool checkpoint_read(const char* path, CheckpointBody body, const Model* model, void* values, int64_t begin,
                     int64_t end, uint64_t* sum, char* error) {
    Body in = {.sum = NULL};
    if (!open_body(&in, path, body, &model->config, error)) { return false; }
    Piece piece = piece_alloc(end - begin);
    bool ok = true;
    Run run;
    for (int copies = 0; copies < 2; copies++) {
        in.sum = copies ? NULL : sum;
        for (int idx = 0; ok && next_run(&run, model, begin, end, copies, &idx);) {
            ok = read_run(&in, &piece, body, model, values, begin, &run, error);
        }
    }
    piece_free(&piece);
    checkpoint_file_close(&in.file);
    return ok;
}

bool checkpoint_read_run(CheckpointRun* out, const char* path, const ModelConfig* config, uint64_t* sum,
                         char* error) {
    CheckpointFile file;
    int32_t header[HEADER_INTS];
    if (!open_and_read_header(&file, path, header, error)) { return false; }
    CheckpointRun run = {0};
    bool ok = check_state_header(&file, header, config, error);
    if (ok) {
        run.step = header[STATE_STEP];
        run.has_master = header[STATE_MASTER] != 0;
        // llm.c's shuffling: what follows is its loader's
        bool is_ours = header[STATE_SHUFFLES] == 0;
        int64_t at = state_bytes(config, run.has_master), num_values = (at - HEADER_BYTES) / 4;
        ok = !is_ours || checkpoint_record_read(&run, &file, at, num_values, sum, error);
    }
    checkpoint_file_close(&file);
    if (ok) { *out = run; }
    return ok;
}
