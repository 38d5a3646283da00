/*
fuzz_checkpoint.c -- any bytes as a model file or a state file: refused with a remedy, or every value of it
can be read, and the run's record is whole.

The first byte of an input: bit 0 a state file, else a model file; bit 1 of T5, else of GPT-2; bit 2 begins
with a true file of a tiny model and takes the rest as changes to it, three bytes each: place (16 bits, from
the end where bit 3 is set) and value; bit 4 cuts it there.
*/
// libFuzzer: -max_len=300
#include <stdio.h>
#include <unistd.h>

#include "../../dynapipe_plugin/base/file_io.h"
#include "../../llmc/checkpoint.h"
#include "../../llmc/gpt2.h"
#include "../../llmc/llmc_error.h"
#include "../../llmc/t5.h"
#include "fuzz.h"
#include "memory_files.h"

enum { HOW_STATE = 1, HOW_T5 = 2, HOW_TRUE = 4, HOW_FROM_END = 8, HOW_CUT = 16, VOCAB = 20 };

typedef struct {
    ModelConfig config;
    Model model;  // all layers
    float* values;
    uint8_t* files[2];  // as written: model, state
    size_t num_bytes[2];
} Known;

static Known known[2];  // GPT-2, T5

static void keep_file(Known* k, int which, const char* path, const CheckpointBody* bodies, int num_bodies) {
    char error[LLMC_ERROR_CHARS];
    for (int i = 0; i < num_bodies; i++) {
        REQUIRE(checkpoint_write(path, bodies[i], &k->model, k->values, 0, k->model.num_params, error));
    }
    char* text;
    REQUIRE(checkpoint_commit(path, error) && file_read_text(&text, &k->num_bytes[which], path) == STATUS_OK);
    k->files[which] = (uint8_t*)text;
    unlink(path);
}

static void write_files(Known* k) {
    static const CheckpointBody params[] = {CHECKPOINT_PARAMS}, moments[] = {CHECKPOINT_M, CHECKPOINT_V};
    char path[64], error[LLMC_ERROR_CHARS];
    uint8_t position[] = "where the data stands";
    const CheckpointRun run = {.step = 7, .position = position, .position_bytes = sizeof position};
    snprintf(path, sizeof path, "build/fuzz/checkpoint_%ld.bin", (long)getpid());
    k->values = calloc((size_t)k->model.num_params, sizeof *k->values);
    REQUIRE(k->values != NULL && checkpoint_create_model(path, &k->config, error));
    keep_file(k, 0, path, params, 1);
    REQUIRE(checkpoint_create_state(path, &k->config, &run, error));
    keep_file(k, 1, path, moments, 2);
}

int LLVMFuzzerInitialize(int* argc, char*** argv) {
    static const char* const descriptors[] = {"l1c4h1", "t5:l1c4h1f4"};
    (void)argc;
    (void)argv;
    char error[LLMC_ERROR_CHARS];
    for (int i = 0; i < 2; i++) {
        Known* k = &known[i];
        REQUIRE(model_parse(&k->config, i == 0 ? &gpt2_kind : &t5_kind, descriptors[i], VOCAB, 8, error));
        model_init(&k->model, &k->config, 0, model_num_layers(&k->config), true, ops_create(1));
        write_files(k);
    }
    return 0;
}

static uint8_t* make_file(const Known* k, const uint8_t* data, size_t num_bytes, size_t* file_bytes) {
    uint8_t how = data[0];
    data++, num_bytes--;
    if (!(how & HOW_TRUE)) {
        *file_bytes = num_bytes;
        return (uint8_t*)fuzz_text(data, num_bytes);
    }
    *file_bytes = k->num_bytes[how & HOW_STATE];
    uint8_t* file = (uint8_t*)fuzz_text(k->files[how & HOW_STATE], *file_bytes);
    for (size_t i = 0; i + 2 < num_bytes; i += 3) {
        size_t place = (data[i] | (size_t)data[i + 1] << 8) % *file_bytes;
        file[how & HOW_FROM_END ? *file_bytes - 1 - place : place] = data[i + 2];
    }
    if ((how & HOW_CUT) && num_bytes >= 2) { *file_bytes -= (data[0] | (size_t)data[1] << 8) % *file_bytes; }
    return file;
}

static void try_body(const Known* k, CheckpointBody body) {
    char error[LLMC_ERROR_CHARS] = "";
    const Model* model = &k->model;
    bool ok = checkpoint_read("memory/a.bin", body, model, k->values, 0, model->num_params, error);
    REQUIRE(ok || fuzz_has_remedy(error));
}

static void try_model(const Known* k, bool with_values) {
    char error[LLMC_ERROR_CHARS] = "";
    ModelConfig config;
    if (checkpoint_read_config(&config, k->config.kind, "memory/a.bin", error)) {
        REQUIRE(config.kind->check(&config, "again", error));
    } else {
        REQUIRE(fuzz_has_remedy(error));
    }
    if (with_values) { try_body(k, CHECKPOINT_PARAMS); }
}

static void try_state(const Known* k, size_t file_bytes, bool with_values) {
    char error[LLMC_ERROR_CHARS] = "";
    CheckpointRun run;
    if (checkpoint_read_run(&run, "memory/a.bin", &k->config, error)) {
        REQUIRE(run.step >= 0 && run.position_bytes < file_bytes);
        REQUIRE((run.position != NULL) == (run.position_bytes > 0) || run.position_bytes == 0);
        free(run.position);
    } else {
        REQUIRE(fuzz_has_remedy(error));
    }
    if (with_values) {
        try_body(k, CHECKPOINT_V);
        try_body(k, CHECKPOINT_MASTER);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    if (num_bytes < 1) { return 0; }
    const Known* k = &known[(data[0] & HOW_T5) != 0];
    bool with_values =
        num_bytes % 32 == 5;  // pieces of millions of values take a hundred times the headers' time
    size_t file_bytes;
    uint8_t* file = make_file(k, data, num_bytes, &file_bytes);
    memory_files_set("memory/a.bin", file, file_bytes);
    if (data[0] & HOW_STATE) {
        try_state(k, file_bytes, with_values);
    } else {
        try_model(k, with_values);
    }
    free(file);
    return 0;
}
