#include "checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../util/numbers.h"
#include "kinds.h"
#include "llmc_error.h"

enum { MODEL_VERSION_FP32 = 3, MODEL_VERSION_BF16 = 5 };
#ifdef LLMC_BF16
enum { MODEL_VERSION = MODEL_VERSION_BF16 };  // version written by this build
#else
enum { MODEL_VERSION = MODEL_VERSION_FP32 };
#endif

static int64_t value_bytes(int32_t model_version) {
    return model_version == MODEL_VERSION_BF16 ? 2 : 4;
}

static int64_t model_bytes(const ModelConfig* config, int32_t version) {
    return CHECKPOINT_HEADER_BYTES + value_bytes(version) * model_num_params(config);
}

// Where the run's record begins in a state file.
static int64_t state_bytes(const ModelConfig* config, bool has_master) {
    return CHECKPOINT_HEADER_BYTES + (has_master ? 12 : 8) * model_num_params(config);
}

static bool is_of_model_file(CheckpointBody body) {
    return body == CHECKPOINT_PARAMS || body == CHECKPOINT_FLOATS;
}

// --- from device to file and back, in pieces --------------------------------------------------------------

enum { PIECE_VALUES = 1 << 20 };  // maximum

// A file's values in transit, of either length.
typedef struct {
    CheckpointFile file;
    CheckpointBody body;
    const Model* model;
    int64_t bytes_per_value;
    int64_t begin;     // of the body, in values of its file
    uint64_t* sum;     // sum of these values; NULL: not needed
    float* values;     // a piece
    uint16_t* halves;  // the piece as a version 5 file has it
} Body;

// For a slice of that many values. version: the model file's.
static void body_open(Body* out, CheckpointBody body, const Model* model, int32_t version, int64_t num_values,
                      uint64_t* sum) {
    const int64_t num_before = body == CHECKPOINT_V ? 1 : body == CHECKPOINT_MASTER ? 2 : 0;
    const size_t most = (size_t)(num_values < PIECE_VALUES ? num_values : PIECE_VALUES);
    out->body = body;
    out->model = model;
    out->bytes_per_value = is_of_model_file(body) ? value_bytes(version) : 4;
    out->begin = num_before * model_num_params(&model->config);
    out->sum = sum;
    out->values = (float*)llmc_alloc(most * sizeof(float), "values of a file");
    out->halves = (uint16_t*)llmc_alloc(most * sizeof(uint16_t), "values of a file");
}

static void body_close(Body* body) {
    free(body->values);
    free(body->halves);
}

static void* file_values(const Body* body) {
    return body->bytes_per_value == 4 ? (void*)body->values : body->halves;
}

// A run of values that is contiguous both in the slice's flat array and in the file.
typedef struct {
    int64_t begin, num_values;  // in the flat array
    int64_t file_offset;        // in the body, in values
} Run;

static int64_t file_byte(const Body* body, const Run* piece) {
    return CHECKPOINT_HEADER_BYTES + body->bytes_per_value * (body->begin + piece->file_offset);
}

static void add_to_sum(const Body* body, const Run* piece) {
    checkpoint_sum_add(body->sum, body->begin + piece->file_offset, file_values(body), piece->num_values,
                       (int)body->bytes_per_value);
}

static Status piece_write(Body* body, const void* values, const Run* piece) {
    const size_t n = (size_t)piece->num_values;
    if (body->body == CHECKPOINT_PARAMS) {
        device_values_download(body->model->ops, body->values, (const floatX*)values, n);
    } else {
        ops_download(body->model->ops, body->values, values, n * sizeof(float));
    }
    if (body->bytes_per_value == 2) {
        for (size_t i = 0; i < n; i++) { body->halves[i] = half_to_bfloat16(body->values[i]); }
    }
    add_to_sum(body, piece);
    return checkpoint_file_write(&body->file, file_values(body), body->bytes_per_value * piece->num_values,
                                 file_byte(body, piece));
}

// Report a damaged value here with its name, rather than later as a NaN loss.
static Status check_finite(const Body* body, const Run* piece) {
    const Model* model = body->model;
    for (int64_t j = 0; j < piece->num_values; j++) {
        if (isfinite(body->values[j])) { continue; }
        const TensorSlice* slice = model->slices;
        while (slice->offset + slice->num_values <= piece->begin + j) { slice++; }
        char layer[32] = "";
        if (slice->layer >= 0) { snprintf(layer, sizeof layer, " of layer %d", slice->layer); }
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: value %lld of %s%s is no finite number ---> use another checkpoint",
                    checkpoint_path_tail(body->file.path),
                    (long long)(slice->first + piece->begin + j - slice->offset),
                    model->config.kind->tensor(&model->config, slice->tensor).name, layer);
    }
    return STATUS_OK;
}

static Status piece_read(Body* body, void* values, const Run* piece) {
    const size_t n = (size_t)piece->num_values;
    TRY(checkpoint_file_read(&body->file, file_values(body), body->bytes_per_value * piece->num_values,
                             file_byte(body, piece)));
    add_to_sum(body, piece);
    if (body->bytes_per_value == 2) {
        for (size_t i = 0; i < n; i++) { body->values[i] = half_from_bfloat16(body->halves[i]); }
    }
    TRY(check_finite(body, piece));
    if (body->body == CHECKPOINT_PARAMS) {
        device_values_upload(body->model->ops, (floatX*)values, body->values, n);
    } else {
        ops_upload(body->model->ops, values, body->values, n * sizeof(float));
    }
    return STATUS_OK;
}

// The next run within [begin, end), from slice *idx on, of values that this slice counts or of its copies;
// false: none left. Adjacent tensors are joined.
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

// All of the body's values [begin, end), to or from `values`.
static Status move_values(Body* body, void* values, int64_t begin, int64_t end, bool writes,
                          bool tied_copies) {
    const int64_t value_size =
        body->body == CHECKPOINT_PARAMS ? (int64_t)sizeof(floatX) : (int64_t)sizeof(float);
    Run run;
    for (int idx = 0; next_run(&run, body->model, begin, end, tied_copies, &idx);) {
        for (int64_t done = 0; done < run.num_values; done += PIECE_VALUES) {
            const int64_t left = run.num_values - done;
            const Run piece = {run.begin + done, left < PIECE_VALUES ? left : PIECE_VALUES,
                               run.file_offset + done};
            char* at = (char*)values + (piece.begin - begin) * value_size;
            TRY(writes ? piece_write(body, at, &piece) : piece_read(body, at, &piece));
        }
    }
    return STATUS_OK;
}

// --- writing -----------------------------------------------------------------------------------------------

static void fill_model_header(int32_t* header, const ModelConfig* config, int32_t version) {
    memset(header, 0, CHECKPOINT_HEADER_BYTES);
    model_to_header(header, config);
    header[1] = version;
}

static Status create_model(const char* path, const ModelConfig* config, int32_t version) {
    int32_t header[CHECKPOINT_HEADER_INTS];
    CheckpointFile file;
    fill_model_header(header, config, version);
    TRY(checkpoint_file_create(&file, path, model_bytes(config, version)));
    TRY(checkpoint_file_write(&file, header, CHECKPOINT_HEADER_BYTES, 0));
    return checkpoint_file_sync(&file);
}

Status checkpoint_create_model(const char* path, const ModelConfig* config) {
    return create_model(path, config, MODEL_VERSION);
}

Status checkpoint_create_gradients(const char* path, const ModelConfig* config) {
    return create_model(path, config, MODEL_VERSION_FP32);
}

Status checkpoint_create_state(const char* path, const ModelConfig* config, const CheckpointRun* run,
                               uint64_t* sum) {
    int32_t header[CHECKPOINT_HEADER_INTS] = {CHECKPOINT_STATE_MAGIC, CHECKPOINT_STATE_VERSION, 1, 0};
    int32_t model[CHECKPOINT_HEADER_INTS];
    const int64_t at = state_bytes(config, run->has_master), num_values = (at - CHECKPOINT_HEADER_BYTES) / 4;
    CheckpointFile file;
    header[CHECKPOINT_STATE_STEP] = run->step;
    header[CHECKPOINT_STATE_MASTER] = run->has_master;
    fill_model_header(model, config, MODEL_VERSION);
    memcpy(&header[CHECKPOINT_STATE_MODEL], model, sizeof(int32_t) * CHECKPOINT_STATE_MODEL_INTS);
    TRY(checkpoint_file_create(&file, path, at + checkpoint_record_bytes(&run->record)));
    TRY(checkpoint_file_write(&file, header, CHECKPOINT_HEADER_BYTES, 0));
    TRY(checkpoint_record_write(&file, &run->record, at, num_values, sum));
    return checkpoint_file_sync(&file);
}

Status checkpoint_write(const char* path, CheckpointBody body, const Model* model, const void* values,
                        int64_t begin, int64_t end, uint64_t* sum) {
    Body out;
    TRY(checkpoint_file_open_tmp(&out.file, path));
    const int32_t version = body == CHECKPOINT_PARAMS ? MODEL_VERSION : MODEL_VERSION_FP32;
    body_open(&out, body, model, version, end - begin, sum);
    Status status = move_values(&out, (void*)(uintptr_t)values, begin, end, true, false);
    body_close(&out);
    return status == STATUS_OK ? checkpoint_file_sync(&out.file) : status;
}

// --- reading -----------------------------------------------------------------------------------------------

static Status check_model_header(const CheckpointFile* file, const int32_t* header, const ModelKind* kind,
                                 ModelConfig* out) {
    const char* path = checkpoint_path_tail(file->path);
    const ModelKind* theirs = model_header_kind(header);
    if (kind == NULL && theirs == NULL) {
        return FAIL(STATUS_BAD_FORMAT, "%s: magic %d is no model's ---> use a model_*.bin", path, header[0]);
    }
    if (kind == NULL) { kind = theirs; }
    if (theirs != kind) {
        return FAIL(STATUS_BAD_FORMAT, "%s: magic %d is no %s's ---> use a model_*.bin of this trainer", path,
                    header[0], kind->title);
    }
    if (header[1] != MODEL_VERSION_FP32 && header[1] != MODEL_VERSION_BF16) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: version %d is not %d or %d ---> write the file anew with a current program", path,
                    header[1], MODEL_VERSION_FP32, MODEL_VERSION_BF16);
    }
    ModelConfig config;
    model_from_header(&config, kind, header);
    if (!model_check(&config, path)) { return status_last(); }
    int64_t num_bytes = model_bytes(&config, header[1]);
    if (file->num_bytes != num_bytes) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: %lld bytes, but its header asks for %lld ---> copy or download it again", path,
                    (long long)file->num_bytes, (long long)num_bytes);
    }
    *out = config;
    return STATUS_OK;
}

static Status open_and_read_header(CheckpointFile* file, const char* path, int32_t* header) {
    TRY(checkpoint_file_open(file, path));
    Status status =
        file->num_bytes >= CHECKPOINT_HEADER_BYTES
            ? checkpoint_file_read(file, header, CHECKPOINT_HEADER_BYTES, 0)
            : FAIL(STATUS_BAD_FORMAT,
                   "%s: %lld bytes are too few for a header of %d ---> use another checkpoint",
                   checkpoint_path_tail(path), (long long)file->num_bytes, CHECKPOINT_HEADER_BYTES);
    if (status != STATUS_OK) { checkpoint_file_close(file); }
    return status;
}

Status checkpoint_read_config(ModelConfig* out, const ModelKind* kind, const char* path) {
    CheckpointFile file;
    int32_t header[CHECKPOINT_HEADER_INTS];
    TRY(open_and_read_header(&file, path, header));
    Status status = check_model_header(&file, header, kind, out);
    checkpoint_file_close(&file);
    return status;
}

static Status check_state_header(const CheckpointFile* file, const int32_t* header,
                                 const ModelConfig* config) {
    const char* path = checkpoint_path_tail(file->path);
    if (header[0] != CHECKPOINT_STATE_MAGIC) {
        return FAIL(STATUS_BAD_FORMAT, "%s: magic %d is not %d: no optimizer state ---> use a state_*.bin",
                    path, header[0], CHECKPOINT_STATE_MAGIC);
    }
    if (header[1] != CHECKPOINT_STATE_VERSION) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: version %d is not %d ---> write the file anew with a current program", path,
                    header[1], CHECKPOINT_STATE_VERSION);
    }
    if (header[CHECKPOINT_STATE_PROCESSES] != 1 || header[CHECKPOINT_STATE_RANK] != 0) {
        return FAIL(
            STATUS_BAD_FORMAT,
            "%s: process %d of %d wrote it ---> only llm.c can resume this; begin from its model_*.bin "
            "with -e",
            path, header[CHECKPOINT_STATE_RANK], header[CHECKPOINT_STATE_PROCESSES]);
    }
    if (header[CHECKPOINT_STATE_STEP] < 0) {
        return FAIL(STATUS_BAD_FORMAT, "%s: step %d is below 0 ---> use another checkpoint", path,
                    header[CHECKPOINT_STATE_STEP]);
    }
    int64_t num_bytes = state_bytes(config, header[CHECKPOINT_STATE_MASTER] != 0);
    if (file->num_bytes >= num_bytes) { return STATUS_OK; }
    return FAIL(
        STATUS_BAD_FORMAT,
        "%s: %lld bytes, but this model's state has %lld ---> use the state beside the model file, whole",
        path, (long long)file->num_bytes, (long long)num_bytes);
}

static Status check_body(const CheckpointFile* file, const int32_t* header, CheckpointBody body,
                         const ModelConfig* ours) {
    const char* path = checkpoint_path_tail(file->path);
    ModelConfig theirs;
    ModelDifference d;
    if (is_of_model_file(body)) {
        TRY(check_model_header(file, header, ours->kind, &theirs));
        if (model_config_equal(&theirs, ours, &d)) { return STATUS_OK; }
        return FAIL(STATUS_BAD_FORMAT, "%s: %s is %d, this run's is %d ---> %s", path, d.field, d.theirs,
                    d.ours, d.remedy);
    }
    TRY(check_state_header(file, header, ours));
    if (body != CHECKPOINT_MASTER || header[CHECKPOINT_STATE_MASTER] != 0) { return STATUS_OK; }
    return FAIL(STATUS_BAD_FORMAT, "%s: has no master weights ---> use the model file's", path);
}

Status checkpoint_read(const char* path, CheckpointBody body, const Model* model, void* values, int64_t begin,
                       int64_t end, uint64_t* sum) {
    Body in;
    int32_t header[CHECKPOINT_HEADER_INTS];
    TRY(open_and_read_header(&in.file, path, header));
    Status status = check_body(&in.file, header, body, &model->config);
    if (status == STATUS_OK) {
        body_open(&in, body, model, header[1], end - begin, sum);
        status = move_values(&in, values, begin, end, false, false);
        in.sum = NULL;  // copies are summed elsewhere
        if (status == STATUS_OK) { status = move_values(&in, values, begin, end, false, true); }
        body_close(&in);
    }
    checkpoint_file_close(&in.file);
    return status;
}

Status checkpoint_read_run(CheckpointRun* out, const char* path, const ModelConfig* config, uint64_t* sum) {
    CheckpointFile file;
    int32_t header[CHECKPOINT_HEADER_INTS];
    TRY(open_and_read_header(&file, path, header));
    CheckpointRun run = {0};
    Status status = check_state_header(&file, header, config);
    run.step = header[CHECKPOINT_STATE_STEP];
    run.has_master = header[CHECKPOINT_STATE_MASTER] != 0;
    // llm.c's shuffling: the following data belongs to its loader
    if (status == STATUS_OK && header[CHECKPOINT_STATE_SHUFFLES] == 0) {
        int64_t at = state_bytes(config, run.has_master);
        status = checkpoint_record_read(&run.record, &file, at, (at - CHECKPOINT_HEADER_BYTES) / 4, sum);
    }
    checkpoint_file_close(&file);
    if (status == STATUS_OK) { *out = run; }
    return status;
}
