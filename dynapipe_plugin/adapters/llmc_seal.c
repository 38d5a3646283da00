#include "llmc_seal.h"

#include <string.h>

enum { SEAL_MAGIC = 0x5ea1ed01, SEAL_VERSION = 1, SEAL_INTS = 12, SEALED_INTS = 254 };
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

void dynapipe_seal_add(uint64_t* sum, int64_t first, const void* values, int64_t num_values,
                       int32_t value_bytes) {
    uint64_t total = 0;
    if (value_bytes == 4) {
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
    dynapipe_seal_add(&sum, 0, header, SEALED_INTS, 4);
    return sum;
}

void dynapipe_seal_write(int32_t* header, const DynapipeSeal* seal) {
    SealInts ints = {.magic = SEAL_MAGIC,
                     .version = SEAL_VERSION,
                     .body_sum = seal->body_sum,
                     .vocab_hash = seal->vocab_hash,
                     .model_sum = seal->model_sum,
                     .step = seal->step};
    memcpy(&header[DYNAPIPE_SEAL_BEGIN], &ints, sizeof ints);
    ints.header_sum = header_sum(header);
    memcpy(&header[DYNAPIPE_SEAL_BEGIN], &ints, sizeof ints);
}

Status dynapipe_seal_read(DynapipeSeal* out, const int32_t* header, const char* path) {
    SealInts ints;
    static const SealInts none;
    memcpy(&ints, &header[DYNAPIPE_SEAL_BEGIN], sizeof ints);
    *out = (DynapipeSeal){.is_sealed = 0};
    if (memcmp(&ints, &none, sizeof none) == 0) { return STATUS_OK; }
    bool is_whole = ints.magic == SEAL_MAGIC && ints.header_sum == header_sum(header);
    if (!is_whole && ints.magic == SEAL_MAGIC && header[0] == STATE_MAGIC &&
        header[STATE_STEP] != ints.step) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: step %d in its header, but it was sealed at step %d: edited or damaged ---> use "
                    "another checkpoint",
                    path, header[STATE_STEP], ints.step);
    }
    if (!is_whole || ints.version != SEAL_VERSION) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: its header is not the one that was sealed: edited or damaged ---> use another "
                    "checkpoint",
                    path);
    }
    *out = (DynapipeSeal){1, ints.step, ints.body_sum, ints.vocab_hash, ints.model_sum, ints.header_sum};
    return STATUS_OK;
}

static Status check_one(const DynapipeSeal* seal, const char* path, int32_t step) {
    if (!seal->is_sealed) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: not sealed, the file beside it is: replaced or damaged ---> use another checkpoint",
                    path);
    }
    if (seal->step == step) { return STATUS_OK; }
    return FAIL(STATUS_BAD_FORMAT,
                "%s: sealed at step %d, not %d as its name says ---> use another checkpoint", path,
                seal->step, step);
}

Status dynapipe_seal_check_pair(const int32_t* model_header, const char* model_path,
                                const int32_t* state_header, const char* state_path, int32_t step) {
    DynapipeSeal model, state;
    TRY(dynapipe_seal_read(&model, model_header, model_path));
    TRY(dynapipe_seal_read(&state, state_header, state_path));
    if (!model.is_sealed && !state.is_sealed) { return STATUS_OK; }
    TRY(check_one(&model, model_path, step));
    TRY(check_one(&state, state_path, step));
    enum { KEPT_BYTES = 4 * DYNAPIPE_SEAL_STATE_MODEL_INTS };
    if (memcmp(&state_header[DYNAPIPE_SEAL_STATE_MODEL], model_header, KEPT_BYTES) != 0) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: of a model of another shape than the model file's ---> use another checkpoint",
                    state_path);
    }
    if (model.vocab_hash != state.vocab_hash) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: of a run on vocabulary %016llx, the model file's is %016llx ---> use another "
                    "checkpoint",
                    state_path, (unsigned long long)state.vocab_hash, (unsigned long long)model.vocab_hash);
    }
    if (state.model_sum == model.body_sum) { return STATUS_OK; }
    return FAIL(STATUS_BAD_FORMAT,
                "%s: saved beside other weights (sum %016llx, the model file's is %016llx) ---> use another "
                "checkpoint",
                state_path, (unsigned long long)state.model_sum, (unsigned long long)model.body_sum);
}

Status dynapipe_seal_check(const DynapipeSeal* seal, const char* path, uint64_t sum) {
    if (!seal->is_sealed || seal->body_sum == sum) { return STATUS_OK; }
    return FAIL(STATUS_BAD_FORMAT,
                "%s: its contents are not those that were saved (sum %016llx, sealed %016llx): damaged ---> "
                "use another checkpoint",
                path, (unsigned long long)sum, (unsigned long long)seal->body_sum);
}
