#include "checkpoint_seal.h"

#include <string.h>

#include "checkpoint_file.h"
#include "llmc_error.h"

enum { HEADER_INTS = 256, HEADER_BYTES = 4 * HEADER_INTS };
enum { SEAL_MAGIC = 0x5ea1ed01, SEAL_VERSION = 1, SEAL_INTS = 12, SEAL_BEGIN = HEADER_INTS - SEAL_INTS };
enum { SEALED_STEP = 252, SEALED_INTS = 254 };  // ints that the last two are the sum of
enum { STATE_MAGIC = 20240527, STATE_STEP = 10 };

typedef struct {
    int32_t magic, version;
    uint64_t body_sum, vocab_hash, model_sum;
    int32_t step, zero;
    uint64_t header_sum;
} SealInts;
_Static_assert(sizeof(SealInts) == 4 * SEAL_INTS, "12 ints");

// Every line is one to one in 64 bits, the first one in `bits` for a given index: another value at a place is
// always another number. (Multipliers and shifts of splitmix64, Steele et al. 2014.)
static inline uint64_t mix(uint64_t index, uint32_t bits) {
    uint64_t x = (index + 1) * 0x9e3779b97f4a7c15u + bits;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

void checkpoint_seal_add(uint64_t* sum, int64_t first, const void* values, int64_t num_values,
                         int64_t bytes_per_value) {
    uint64_t total = 0;
    if (bytes_per_value == 4) {
        const uint32_t* words = values;
        for (int64_t i = 0; i < num_values; i++) { total += mix((uint64_t)(first + i), words[i]); }
    } else {
        const uint16_t* halves = values;
        for (int64_t i = 0; i < num_values; i++) { total += mix((uint64_t)(first + i), halves[i]); }
    }
    *sum += total;
}

static uint64_t header_sum(const int32_t* header) {
    uint64_t sum = 0;
    checkpoint_seal_add(&sum, 0, header, SEALED_INTS, 4);
    return sum;
}

// --- writing and reading ---------------------------------------------------------------------------------

bool checkpoint_seal_write(const char* path, const CheckpointSeal* seal, char* error) {
    CheckpointFile file;
    int32_t header[HEADER_INTS];
    if (!checkpoint_file_open_tmp(&file, path, error)) { return false; }
    if (!checkpoint_file_read(&file, header, HEADER_BYTES, 0, error)) {
        checkpoint_file_close(&file);
        return false;
    }
    SealInts ints = {.magic = SEAL_MAGIC,
                     .version = SEAL_VERSION,
                     .body_sum = seal->body_sum,
                     .vocab_hash = seal->vocab_hash,
                     .model_sum = seal->model_sum,
                     .step = seal->step};
    memcpy(&header[SEAL_BEGIN], &ints, sizeof ints);
    ints.header_sum = header_sum(header);
    memcpy(&header[SEAL_BEGIN], &ints, sizeof ints);
    return checkpoint_file_write(&file, header, HEADER_BYTES, 0, error) && checkpoint_file_sync(&file, error);
}

static bool check_header(const int32_t* header, const SealInts* ints, const char* path, char* error) {
    const char* tail = llmc_path_tail(path);
    if (ints->magic == SEAL_MAGIC && ints->header_sum == header_sum(header)) {
        return ints->version == SEAL_VERSION ||
               llmc_fail(error, "%s: seal of version %d is not %d ---> use the program that wrote it", tail,
                         ints->version, SEAL_VERSION);
    }
    if (header[0] == STATE_MAGIC && ints->magic == SEAL_MAGIC && header[STATE_STEP] != ints->step) {
        return llmc_fail(error,
                         "%s: step %d in its header, but it was sealed at step %d: edited or damaged ---> "
                         "use another checkpoint",
                         tail, header[STATE_STEP], ints->step);
    }
    return llmc_fail(error,
                     "%s: its header is not the one that was sealed: edited or damaged ---> use another "
                     "checkpoint",
                     tail);
}

static bool read_header(int32_t* header, const char* path, char* error) {
    CheckpointFile file;
    if (!checkpoint_file_open(&file, path, error)) { return false; }
    bool ok = checkpoint_file_read(&file, header, HEADER_BYTES, 0, error);
    checkpoint_file_close(&file);
    return ok;
}

bool checkpoint_seal_read(CheckpointSeal* out, const char* path, char* error) {
    int32_t header[HEADER_INTS];
    if (!read_header(header, path, error)) { return false; }
    SealInts ints;
    static const SealInts none;
    memcpy(&ints, &header[SEAL_BEGIN], sizeof ints);
    *out = (CheckpointSeal){.is_sealed = false};
    if (memcmp(&ints, &none, sizeof none) == 0) { return true; }
    if (!check_header(header, &ints, path, error)) { return false; }
    *out = (CheckpointSeal){.is_sealed = true,
                            .step = ints.step,
                            .body_sum = ints.body_sum,
                            .vocab_hash = ints.vocab_hash,
                            .model_sum = ints.model_sum};
    return true;
}

// --- checks ----------------------------------------------------------------------------------------------

bool checkpoint_seal_check(const CheckpointSeal* seal, const char* path, uint64_t sum, char* error) {
    if (!seal->is_sealed || seal->body_sum == sum) { return true; }
    return llmc_fail(error,
                     "%s: its contents are not those that were saved (sum %016llx, sealed %016llx): damaged "
                     "---> use another checkpoint",
                     llmc_path_tail(path), (unsigned long long)sum, (unsigned long long)seal->body_sum);
}

// The shape that the state was saved for, by the ints that it keeps of the model file's header.
static bool check_same_model(const char* model_path, const char* state_path, const ModelKind* kind,
                             char* error) {
    int32_t model[HEADER_INTS], state[HEADER_INTS];
    if (!read_header(model, model_path, error) || !read_header(state, state_path, error)) { return false; }
    const int32_t* kept = &state[CHECKPOINT_STATE_MODEL];
    enum { KEPT_BYTES = 4 * CHECKPOINT_STATE_MODEL_INTS };
    if (memcmp(kept, model, KEPT_BYTES) == 0) { return true; }
    int32_t header[HEADER_INTS] = {0};
    memcpy(header, kept, KEPT_BYTES);
    ModelConfig ours, theirs;
    ModelDifference d = {.field = "header", .theirs = header[1], .ours = model[1]};
    if (header[0] == model[0]) {
        kind->from_header(&theirs, header);
        kind->from_header(&ours, model);
        ours.kind = theirs.kind = kind;
        model_config_equal(&theirs, &ours, &d);
    }
    return llmc_fail(error,
                     "%s: of a model whose %s is %d, the model file's is %d: not of this model ---> %s",
                     llmc_path_tail(state_path), d.field, d.theirs, d.ours, "use another checkpoint");
}

static bool check_step(const CheckpointSeal* seal, const char* path, int step, char* error) {
    return seal->step == step ||
           llmc_fail(error, "%s: sealed at step %d, not %d as its name says ---> use another checkpoint",
                     llmc_path_tail(path), seal->step, step);
}

static bool check_sealed(const CheckpointSeal* seal, const char* path, char* error) {
    return seal->is_sealed ||
           llmc_fail(error,
                     "%s: not sealed, the file beside it is: replaced or damaged ---> use another checkpoint",
                     llmc_path_tail(path));
}

bool checkpoint_seal_check_pair(const CheckpointSeal* model, const char* model_path,
                                const CheckpointSeal* state, const char* state_path, const ModelKind* kind,
                                int step, char* error) {
    if (!model->is_sealed && !state->is_sealed) { return true; }
    if (!check_sealed(model, model_path, error) || !check_sealed(state, state_path, error) ||
        !check_step(model, model_path, step, error) || !check_step(state, state_path, step, error) ||
        !check_same_model(model_path, state_path, kind, error)) {
        return false;
    }
    if (model->vocab_hash != state->vocab_hash) {
        return llmc_fail(error,
                         "%s: of a run on vocabulary %016llx, the model file's is %016llx: not of this model "
                         "---> use another checkpoint",
                         llmc_path_tail(state_path), (unsigned long long)state->vocab_hash,
                         (unsigned long long)model->vocab_hash);
    }
    return state->model_sum == model->body_sum ||
           llmc_fail(error,
                     "%s: saved beside other weights (sum %016llx, the model file's is %016llx) ---> use "
                     "another checkpoint",
                     llmc_path_tail(state_path), (unsigned long long)state->model_sum,
                     (unsigned long long)model->body_sum);
}
