// fuzz_model.c -- targets for checkpoints and Hugging Face files; each is built alone, with -DFUZZ_NAME
// (dev/fuzz.sh).
#include "fuzz.h"

#ifdef FUZZ_checkpoint
/*
checkpoint: a model file and the state beside it, changed: refused with a remedy, or what is read is
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
#include "../../llmc/kinds.h"
#include "../../llmc/llmc_error.h"
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
        model_init(&k->model, &k->config, 0, model_num_blocks(&k->config), true, ops_create(1));
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
#endif

#ifdef FUZZ_checkpoint_names
// checkpoint_names: any names in a directory of checkpoints, one a line: a step counts as done where
// its very mark is there; what goes is a checkpoint's, and of the step or kind that was meant. libFuzzer:
// -max_len=160
#include <limits.h>
#include <stdio.h>

#include "../../llmc/checkpoint.h"
#include "memory_files.h"

static const char folder[] = "memory";

static void put_names(const FuzzWords* words) {
    memory_directory_clear();
    for (int i = 1; i < words->argc; i++) { memory_directory_add(words->argv[i]); }
}

static const char* name_of(const char* format, int step) {
    static char name[64];
    snprintf(name, sizeof name, format, step);
    return name;
}

// How many steps are done.
static int require_marks(void) {
    int *steps, num_steps = checkpoint_list_done(folder, &steps), newest = -1;
    for (int i = 0; i < num_steps; i++) {
        REQUIRE(memory_directory_has(name_of("DONE_%08d", steps[i])) && steps[i] > newest);
        REQUIRE(checkpoint_find_before(folder, steps[i]) == newest);
        if (steps[i] < INT_MAX) { newest = steps[i]; }  // what "the newest" asks for lies below
    }
    REQUIRE(checkpoint_find_latest(folder) == newest);
    int num_marks = 0;
    for (int i = 0; i < memory_directory_count(); i++) {
        const char* name = memory_directory_name(i);
        long long step = strncmp(name, "DONE_", 5) == 0 ? atoll(name + 5) : -1;
        num_marks += step >= 0 && step <= INT_MAX && strcmp(name, name_of("DONE_%08d", (int)step)) == 0;
    }
    REQUIRE(num_marks == num_steps);
    free(steps);
    return num_steps;
}

// What went begins and ends as a checkpoint's files do. Returns how many went.
static int require_ours_went(const char* tail) {
    static const char* const begins[] = {"DONE_", "model_", "state_"};
    int num_gone = 0;
    for (int i = 0; i < memory_directory_count(); i++) {
        const char* name = memory_directory_name(i);
        if (memory_directory_is_there(i)) { continue; }
        bool is_ours = false;
        for (int k = 0; k < 3; k++) { is_ours = is_ours || strncmp(name, begins[k], 5 + (k > 0)) == 0; }
        size_t num_chars = strlen(name), tail_chars = strlen(tail);
        REQUIRE(is_ours && num_chars >= 13 + tail_chars && strcmp(name + num_chars - tail_chars, tail) == 0);
        num_gone++;
    }
    return num_gone;
}

static void require_unmark(const FuzzWords* words, int step) {
    put_names(words);
    checkpoint_remove_later(folder, step);
    REQUIRE(checkpoint_find_latest(folder) <= step);
    for (int i = 0; i < memory_directory_count(); i++) {
        REQUIRE(memory_directory_is_there(i) || atoi(strchr(memory_directory_name(i), '_') + 1) > step);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    FuzzWords words;
    fuzz_words_split(&words, "", data, num_bytes);
    put_names(&words);
    int num_done = require_marks();
    REQUIRE(checkpoint_remove_leftovers(folder) == require_ours_went(".tmp"));
    put_names(&words);
    int num_marks = checkpoint_remove_others(folder, -1);
    REQUIRE(num_marks == num_done && require_ours_went("") >= num_marks);
    REQUIRE(checkpoint_find_latest(folder) == -1);
    require_unmark(&words, num_bytes > 0 ? data[0] : 0);
    put_names(&words);
    checkpoint_prune(folder, INT_MAX - 1, 1, 0);
    REQUIRE(num_done == 0 || checkpoint_find_latest(folder) >= 0);
    free(words.text);
    return 0;
}
#endif

#ifdef FUZZ_descriptor
// descriptor: any text as -e names a new model: a shape that passes the kind's own check, or an
// error with a remedy. libFuzzer: -max_len=64
#include "../../llmc/kinds.h"
#include "../../llmc/llmc_error.h"

static void try_one(bool parsed, bool is_valid, const ModelConfig* config) {
    if (!parsed) {
        REQUIRE(fuzz_has_remedy(status_message()));
        return;
    }
    REQUIRE(is_valid && config->padded_vocab >= config->vocab && config->padded_vocab % 128 == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    char* text = fuzz_text(data, num_bytes);
    ModelConfig config = {0};
    bool parsed = model_parse(&config, &gpt2_kind, text, 0, 0);
    try_one(parsed, parsed && model_check(&config, "again"), &config);
    parsed = model_parse(&config, &t5_kind, text, 384, 64);
    try_one(parsed, parsed && model_check(&config, "again"), &config);
    parsed = model_parse(&config, &llama_kind, text, 384, 64);
    try_one(parsed, parsed && model_check(&config, "again"), &config);
    free(text);
    return 0;
}
#endif

#ifdef FUZZ_hf_checkpoint
// hf_checkpoint: a config.json, behind the first empty line the JSON header of a .safetensors file
// with zeros for values: a model whose names and shapes all fit, or refused with a remedy. The length of the
// header is put right, as random bytes never have it. libFuzzer: -max_len=4096
#include "../../llmc/kinds.h"
#include "../../llmc/hf.h"
#include "../../llmc/llmc_error.h"
#include "memory_files.h"

enum { MOST_VALUE_BYTES = 1 << 16 };

// As many zeros as the last number of the last "data_offsets" asks for.
static size_t value_bytes_of(const char* header) {
    const char* last = NULL;
    for (const char* at = header; (at = strstr(at, "data_offsets")) != NULL; at++) { last = at; }
    const char* comma = last != NULL ? strchr(last, ',') : NULL;
    unsigned long long num_bytes = comma != NULL ? strtoull(comma + 1, NULL, 10) : 0;
    return num_bytes <= MOST_VALUE_BYTES ? (size_t)num_bytes : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    size_t header_at, config_bytes = fuzz_first_bytes(data, num_bytes, &header_at);
    uint64_t header_bytes = num_bytes - header_at;
    char* header = fuzz_text(data + header_at, header_bytes);
    size_t value_bytes = value_bytes_of(header);
    uint8_t* file = calloc(1, 8 + header_bytes + value_bytes);
    REQUIRE(file != NULL);
    memcpy(file, &header_bytes, 8);
    memcpy(file + 8, header, header_bytes);
    free(header);
    memory_files_set("memory/config.json", data, config_bytes);
    memory_files_set("memory/model.safetensors", file, 8 + header_bytes + value_bytes);
    const ModelKind* const kinds[] = {&gpt2_kind, &t5_kind, &llama_kind};
    for (int i = 0; i < 3; i++) {
        ModelConfig config;
        HfConfig details;
        if (hf_checkpoint_read_config(&config, &details, kinds[i], "memory/model.safetensors")) {
            REQUIRE(config.kind == kinds[i] && model_check(&config, "again"));
        } else {
            REQUIRE(fuzz_has_remedy(status_message()));
        }
    }
    free(file);
    return 0;
}
#endif

#ifdef FUZZ_hf_config
// hf_config: any bytes as a config.json: refused with a remedy, or the numbers are in range and what
// we would write of it is read back alike.
#include <stdlib.h>
#include <string.h>

#include "../../llmc/hf.h"
#include "../../llmc/llmc_error.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    HfConfig config, back;
    if (!hf_config_parse(&config, (const char*)data, num_bytes, "fuzz.json")) {
        REQUIRE(strncmp(status_message(), "fuzz.json:", 10) == 0 &&
                strstr(status_message(), " ---> ") != NULL);
        return 0;
    }
    const ModelConfig* shape = &config.shape;
    REQUIRE(shape->vocab >= 1 && shape->padded_vocab >= shape->vocab && shape->padded_vocab % 128 == 0);
    REQUIRE(shape->channels >= 1 && shape->num_heads >= 1 && shape->num_layers >= 1 &&
            shape->max_seq_len >= 1);
    REQUIRE((config.type == HF_GPT2 || config.type >= HF_LLAMA) == (shape->num_dec_layers == 0));
    REQUIRE((config.type >= HF_LLAMA) == (shape->num_kv_heads > 0));
    char* text = hf_config_text(&config, "float32");
    REQUIRE(hf_config_parse(&back, text, strlen(text), "back.json"));
    REQUIRE(back.shape.vocab == shape->vocab && back.shape.num_layers == shape->num_layers);
    REQUIRE(back.shape.num_dec_layers == shape->num_dec_layers && back.shape.gated == shape->gated);
    REQUIRE(back.shape.num_kv_heads == shape->num_kv_heads && back.shape.rope_theta == shape->rope_theta &&
            back.shape.norm_eps == shape->norm_eps);
    REQUIRE(memcmp(&back.shape.rope_factor, &shape->rope_factor, 4 * sizeof(int)) == 0);
    free(text);
    return 0;
}
#endif

#ifdef FUZZ_safetensors
// safetensors: any bytes as a safetensors file: refused with a remedy, or every tensor lies in the
// file, none on another, and can be read to its end.
#include "../../llmc/llmc_error.h"
#include "../../llmc/safetensors.h"
#include "memory_files.h"

static void require_sane(const Safetensors* file, size_t num_bytes) {
    int64_t sum_bytes = 0;
    for (int i = 0; i < file->num_tensors; i++) {
        const SafetensorsTensor* tensor = &file->tensors[i];
        REQUIRE(safetensors_find(file, tensor->name) == tensor);
        REQUIRE(tensor->begin >= 8 && tensor->begin <= tensor->end && tensor->end <= (int64_t)num_bytes);
        sum_bytes += tensor->end - tensor->begin;
        if (tensor->dtype == SAFETENSORS_OTHER) { continue; }
        REQUIRE(tensor->num_values <= (int64_t)num_bytes);
        float* values = malloc((size_t)tensor->num_values * sizeof *values + 1);
        REQUIRE(safetensors_read(file, tensor, values, 0, tensor->num_values));
        free(values);
    }
    REQUIRE(sum_bytes <= (int64_t)num_bytes - 8);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    Safetensors file;
    memory_files_set("memory/a.safetensors", data, num_bytes);
    if (safetensors_open(&file, "memory/a.safetensors")) {
        require_sane(&file, num_bytes);
        safetensors_close(&file);
    } else {
        REQUIRE(fuzz_has_remedy(status_message()));
    }
    return 0;
}
#endif

#ifdef FUZZ_safetensors_index
// safetensors_index: any bytes as model.safetensors.index.json beside two shards: refused with a
// remedy, or just the tensors of the shards that it names. libFuzzer: -max_len=512
#include "../../llmc/llmc_error.h"
#include "../../llmc/safetensors.h"
#include "memory_files.h"

static void set_shard(const char* name, const char* header, char file[128]) {
    uint64_t header_bytes = strlen(header);
    memcpy(file, &header_bytes, 8);
    memcpy(file + 8, header, header_bytes + 9);  // and 8 bytes of zeros, which follow
    memory_files_set(name, file, 8 + header_bytes + 8);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    static char shards[2][128];
    static char first[100] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
    static char second[100] = "{\"b\":{\"dtype\":\"F16\",\"shape\":[2,2],\"data_offsets\":[0,8]}}";
    set_shard("memory/1.safetensors", first, shards[0]);
    set_shard("memory/2.safetensors", second, shards[1]);
    memory_files_set("memory/model.safetensors.index.json", data, num_bytes);
    Safetensors file;
    if (safetensors_open(&file, "memory/model.safetensors.index.json")) {
        REQUIRE(file.num_files >= 1 && file.num_files <= 2 && file.num_tensors == file.num_files);
        for (int i = 0; i < file.num_tensors; i++) {
            float values[4];
            REQUIRE(safetensors_read(&file, &file.tensors[i], values, 0, file.tensors[i].num_values));
        }
        safetensors_close(&file);
    } else {
        REQUIRE(fuzz_has_remedy(status_message()));
    }
    return 0;
}
#endif
