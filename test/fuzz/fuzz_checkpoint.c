/*
fuzz_checkpoint.c -- a model file and the state beside it, changed: refused with a remedy, or what is read is
what the files hold. While their seals are as written nothing is accepted but what was saved.

The first byte of an input: bit 0 the state file is changed, else the model file; bit 1 of T5, else of GPT-2;
bit 2 the rest of the input are changes, three bytes each: place (16 bits, from the end where bit 3 is set)
and value, else it is the whole file; bit 4 cuts it there; bit 5 what is changed is sealed anew, bit 6 with
its record's hash; bit 7 places count from the record (bit 3: from the headers' seal).
*/
// libFuzzer: -max_len=300
#include <stdio.h>
#include <unistd.h>

#include "../../util/files.h"
#include "../../llmc/checkpoint.h"
#include "../../llmc/gpt2.h"
#include "../../llmc/llmc_error.h"
#include "../../llmc/t5.h"
#include "fuzz.h"
#include "memory_files.h"

enum { STATE = 1, T5 = 2, CHANGES = 4, FROM_END = 8, CUT = 16, RESEAL = 32, REHASH = 64, AT_RECORD = 128 };
enum { VOCAB = 20, STEP = 7, HEADER_BYTES = 1024, RECORD_BYTES = 32, SEAL_AT = 4 * 244 };

typedef struct {
    ModelConfig config;
    Model model;  // all layers
    float* values;
    uint8_t* files[2];  // as written: model, state
    size_t num_bytes[2];
} Known;

typedef struct {
    const uint8_t* bytes;
    size_t num_bytes;
    CheckpointSeal seal;
    uint64_t sum;  // of what was read
} Loaded;

static Known known[2];  // GPT-2, T5
static const char* const paths[2] = {"memory/model.bin", "memory/state.bin"};

// --- as a run saves ----------------------------------------------------------------------------------------

static void keep_file(Known* k, int which, const char* path, CheckpointSeal* seal, CheckpointBody first,
                      CheckpointBody last) {
    for (CheckpointBody body = first; body <= last; body++) {
        for (int64_t i = 0; i < k->model.num_params; i++) { k->values[i] = (float)(i % 99 + body) / 8; }
        REQUIRE(llmc_ok(
            checkpoint_write(path, body, &k->model, k->values, 0, k->model.num_params, &seal->body_sum)));
    }
    char* text;
    REQUIRE(llmc_ok(checkpoint_seal_write(path, seal)) && llmc_ok(checkpoint_file_rename(path)));
    REQUIRE(file_read_text(&text, &k->num_bytes[which], path) == STATUS_OK);
    k->files[which] = (uint8_t*)text;
    unlink(path);
}

static void save(Known* k, bool has_master) {
    char path[64];
    uint8_t position[] = "where the data stands";
    char settings[] = "-l=0.0003\n--mixture=proportional\n";
    const CheckpointRun run = {
        .step = STEP, .has_master = has_master, .record = {position, sizeof position, settings}};
    snprintf(path, sizeof path, "build/fuzz/checkpoint_%ld.bin", (long)getpid());
    k->values = calloc((size_t)k->model.num_params, sizeof *k->values);
    CheckpointSeal model = {.step = STEP, .vocab_hash = 77}, state = model;
    REQUIRE(k->values != NULL && llmc_ok(checkpoint_create_model(path, &k->config)));
    keep_file(k, 0, path, &model, CHECKPOINT_PARAMS, CHECKPOINT_PARAMS);
    state.model_sum = model.body_sum;
    REQUIRE(llmc_ok(checkpoint_create_state(path, &k->config, &run, &state.body_sum)));
    keep_file(k, 1, path, &state, CHECKPOINT_M, has_master ? CHECKPOINT_MASTER : CHECKPOINT_V);
}

int LLVMFuzzerInitialize(int* argc, char*** argv) {
    static const char* const descriptors[] = {"l1c4h1", "t5:l1c4h1f4"};
    (void)argc;
    (void)argv;
    for (int i = 0; i < 2; i++) {
        Known* k = &known[i];
        REQUIRE(model_parse(&k->config, i == 0 ? &gpt2_kind : &t5_kind, descriptors[i], VOCAB, 8));
        model_init(&k->model, &k->config, 0, model_num_layers(&k->config), true, ops_create(1));
        save(k, i == 1);
    }
    return 0;
}

// --- what is changed ---------------------------------------------------------------------------------------

static size_t record_at(const Known* k) {
    size_t num_bodies = k == &known[1] ? 3 : 2;
    return HEADER_BYTES + num_bodies * (k->num_bytes[0] - HEADER_BYTES);
}

// The place that a change names.
static size_t place_of(const Known* k, uint8_t how, size_t place, size_t num_bytes) {
    if (how & AT_RECORD) { place += how & FROM_END ? SEAL_AT : record_at(k); }
    place %= num_bytes;
    return (how & FROM_END) && !(how & AT_RECORD) ? num_bytes - 1 - place : place;
}

static uint8_t* make_file(const Known* k, const uint8_t* data, size_t num_bytes, size_t* file_bytes) {
    uint8_t how = data[0];
    data++, num_bytes--;
    if (!(how & CHANGES)) {
        *file_bytes = num_bytes;
        return (uint8_t*)fuzz_text(data, num_bytes);
    }
    *file_bytes = k->num_bytes[how & STATE];
    uint8_t* file = (uint8_t*)fuzz_text(k->files[how & STATE], *file_bytes);
    for (size_t i = 0; i + 2 < num_bytes; i += 3) {
        file[place_of(k, how, data[i] | (size_t)data[i + 1] << 8, *file_bytes)] = data[i + 2];
    }
    if ((how & CUT) && num_bytes >= 2) { *file_bytes -= (data[0] | (size_t)data[1] << 8) % *file_bytes; }
    return file;
}

static uint64_t fnv1a(const uint8_t* bytes, size_t num_bytes, uint64_t hash) {
    for (size_t i = 0; i < num_bytes; i++) { hash = (hash ^ bytes[i]) * 0x100000001b3u; }
    return hash;
}

static void rehash(const Known* k, uint8_t* file, size_t num_bytes) {
    size_t at = record_at(k), texts_at = at + RECORD_BYTES;
    if (num_bytes < texts_at) { return; }
    uint64_t hash = fnv1a(file + at + 8, 16, 0xcbf29ce484222325u);  // both numbers
    hash = fnv1a(file + texts_at, num_bytes - texts_at, hash);
    memcpy(file + at + 24, &hash, sizeof hash);
}

// By the seal's description in checkpoint_files.h: as a program would that meant what it wrote.
static void reseal(const Known* k, bool is_state, uint8_t* file, size_t num_bytes) {
    int32_t header[CHECKPOINT_HEADER_INTS];
    if (num_bytes < HEADER_BYTES) { return; }
    memcpy(header, file, sizeof header);
    CheckpointSeal seal = {.step = STEP, .vocab_hash = 77};
    size_t at = is_state && record_at(k) < num_bytes ? record_at(k) : num_bytes;
    int64_t num_values = (int64_t)(at - HEADER_BYTES) / 4;
    checkpoint_sum_add(&seal.body_sum, 0, file + HEADER_BYTES, num_values, 4);
    if (is_state && num_bytes >= at + RECORD_BYTES) {
        checkpoint_sum_add(&seal.body_sum, num_values, file + at + 24, 2, 4);
    }
    if (is_state) { memcpy(&seal.model_sum, k->files[0] + SEAL_AT + 8, 8); }
    checkpoint_seal_put(header, &seal);
    memcpy(file, header, sizeof header);
}

// --- as a run goes on --------------------------------------------------------------------------------------

static bool read_body(const Known* k, Loaded* file, CheckpointBody body) {
    const Model* model = &k->model;
    const char* path = paths[body != CHECKPOINT_PARAMS];
    if (!llmc_ok(checkpoint_read(path, body, model, k->values, 0, model->num_params, &file->sum))) {
        return false;
    }
    size_t body_at = body == CHECKPOINT_V ? 1 : body == CHECKPOINT_MASTER ? 2 : 0;
    body_at = HEADER_BYTES + body_at * (k->num_bytes[0] - HEADER_BYTES);
    for (int i = 0; i < model->num_slices; i++) {
        const TensorSlice* s = &model->slices[i];
        const uint8_t* in_file = file->bytes + body_at + 4 * (size_t)s->file_offset;
        REQUIRE(memcmp(k->values + s->offset, in_file, 4 * (size_t)s->num_values) == 0);
    }
    return true;
}

static bool read_run(const Known* k, Loaded* state) {
    CheckpointRun run;
    if (!llmc_ok(checkpoint_read_run(&run, paths[1], &k->config, &state->sum))) { return false; }
    size_t at = record_at(k) + RECORD_BYTES;
    REQUIRE(run.step >= 0 && (run.record.position == NULL) == (run.record.settings == NULL));
    if (run.record.position != NULL && run.has_master == (k == &known[1])) {
        REQUIRE(memcmp(run.record.position, state->bytes + at, run.record.position_bytes) == 0);
        REQUIRE(at + run.record.position_bytes + strlen(run.record.settings) <= state->num_bytes);
    }
    free(run.record.position);
    free(run.record.settings);
    bool ok = true;
    CheckpointBody last = run.has_master && k == &known[1] ? CHECKPOINT_MASTER : CHECKPOINT_V;
    for (CheckpointBody body = CHECKPOINT_M; ok && body <= last; body++) { ok = read_body(k, state, body); }
    return ok;
}

static bool check_seals(Loaded files[2]) {
    int32_t headers[2][CHECKPOINT_HEADER_INTS];
    for (int i = 0; i < 2; i++) {
        memcpy(headers[i], files[i].bytes, HEADER_BYTES);
        if (checkpoint_seal_get(&files[i].seal, headers[i], paths[i]) == STATUS_OK) { continue; }
        REQUIRE(fuzz_has_remedy(status_message()));
        return false;
    }
    return checkpoint_seal_check_pair(headers[0], paths[0], headers[1], paths[1], STEP) == STATUS_OK;
}

static bool load(const Known* k, Loaded files[2]) {
    ModelConfig config;
    if (!llmc_ok(checkpoint_read_config(&config, k->config.kind, paths[0]))) { return false; }
    REQUIRE(model_check(&config, "again"));
    if (files[1].num_bytes < HEADER_BYTES) {
        CheckpointSeal seal;
        return llmc_ok(checkpoint_seal_read(&seal, paths[1]));
    }
    return check_seals(files) && read_body(k, &files[0], CHECKPOINT_PARAMS) && read_run(k, &files[1]) &&
           llmc_ok(checkpoint_seal_check(&files[0].seal, paths[0], files[0].sum)) &&
           llmc_ok(checkpoint_seal_check(&files[1].seal, paths[1], files[1].sum));
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    if (num_bytes < 1) { return 0; }
    uint8_t how = data[0];
    const Known* k = &known[(how & T5) != 0];
    size_t file_bytes;
    uint8_t* file = make_file(k, data, num_bytes, &file_bytes);
    if ((how & REHASH) && (how & STATE)) { rehash(k, file, file_bytes); }
    if (how & RESEAL) { reseal(k, how & STATE, file, file_bytes); }
    Loaded files[2] = {{.bytes = k->files[0], .num_bytes = k->num_bytes[0]},
                       {.bytes = k->files[1], .num_bytes = k->num_bytes[1]}};
    files[how & STATE].bytes = file;
    files[how & STATE].num_bytes = file_bytes;
    for (int i = 0; i < 2; i++) { memory_files_set(paths[i], files[i].bytes, files[i].num_bytes); }
    if (!load(k, files)) {
        REQUIRE(fuzz_has_remedy(status_message()));
    } else if (!(how & RESEAL)) {
        REQUIRE(file_bytes == k->num_bytes[how & STATE]);
        REQUIRE(memcmp(file, k->files[how & STATE], file_bytes) == 0);
    }
    free(file);
    return 0;
}
