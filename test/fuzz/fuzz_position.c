/*
fuzz_position.c -- any bytes as the position in the data that a checkpoint keeps (the loader's record, and
what ranks agreed on behind it): refused, or batches can be drawn from there and the same position comes
out again.

The first byte of an input: bit 0 begins with a true record and takes the rest as changes to it (pairs of
place and value); bit 1 puts the record's hash right, which random bytes never meet; bit 2: of a loader in
file order.
*/
// libFuzzer: -max_len=256
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../../dataloader/loader.h"
#include "../../dataloader/sample_file.h"
#include "../../dynapipe_plugin/base/hash.h"
#include "../../dynapipe_plugin/run/session_refit.h"
#include "fuzz.h"

enum { MAX_RECORD = 512, NUM_SAMPLES = 20 };

static Loader* loaders[2];  // shuffled; in file order
static uint8_t records[2][MAX_RECORD];
static size_t record_bytes;

static void write_samples(const char* path) {
    const SampleVocab vocab = {
        .num_tokens = 257, .eot_token = 256, .pad_token = -1, .tokenizer = TOKENIZER_BYTES};
    const int32_t tokens[] = {65, 66, 67, 68, 256};
    SampleWriter* writer;
    REQUIRE(sample_writer_open(&writer, path, &vocab) == STATUS_OK);
    for (int i = 0; i < NUM_SAMPLES; i++) {
        REQUIRE(sample_writer_add(writer, i % 3 == 0 ? "sums" : "words", tokens, 1 + i % 4, tokens + 3, 2) ==
                STATUS_OK);
    }
    REQUIRE(sample_writer_finish(writer) == STATUS_OK);
}

int LLVMFuzzerInitialize(int* argc, char*** argv) {
    (void)argc;
    (void)argv;
    char path[64];
    snprintf(path, sizeof path, "build/fuzz/position_%ld.bin", (long)getpid());
    write_samples(path);
    Arena arena = {0};
    for (int i = 0; i < 2; i++) {
        const LoaderOptions options = {.batch_tokens = 16, .max_seq_tokens = 8, .seed = 1, .shuffle = i == 0};
        LoaderBatch batch;
        REQUIRE(loader_open(&loaders[i], path, &options) == STATUS_OK);
        REQUIRE(loader_next(loaders[i], &batch, &arena) == STATUS_OK && batch.position_bytes < MAX_RECORD);
        record_bytes = batch.position_bytes;
        memcpy(records[i], batch.position, record_bytes);
    }
    unlink(path);
    arena_free(&arena);
    return 0;
}

static size_t make_input(uint8_t out[MAX_RECORD], const uint8_t* data, size_t num_bytes) {
    uint8_t how = data[0];
    size_t out_bytes = record_bytes;
    data++, num_bytes--;
    if (how & 1) {
        memcpy(out, records[(how & 4) != 0], record_bytes);
        for (size_t i = 0; i + 1 < num_bytes; i += 2) { out[data[i] % record_bytes] = data[i + 1]; }
    } else {
        out_bytes = num_bytes < MAX_RECORD ? num_bytes : MAX_RECORD;
        memcpy(out, data, out_bytes);
    }
    if ((how & 2) && out_bytes == record_bytes) {
        uint64_t hash = hash_finish(hash_bytes(HASH_SEED, out, out_bytes - sizeof hash));
        memcpy(out + out_bytes - sizeof hash, &hash, sizeof hash);
    }
    return out_bytes;
}

static void require_usable(Loader* loader, const uint8_t* position, size_t num_bytes, Arena* arena) {
    const uint8_t* now;
    size_t now_bytes;
    LoaderBatch batch;
    REQUIRE(loader_position(loader, &now, &now_bytes, arena) == STATUS_OK);
    // all but magic, tasks, shuffling (any number but 0 is yes) and the hash
    REQUIRE(now_bytes == num_bytes && memcmp(now + 16, position + 16, num_bytes - 24) == 0);
    for (int i = 0; i < 2; i++) {
        REQUIRE(loader_next(loader, &batch, arena) == STATUS_OK && (batch.num_samples >= 1 || batch.end));
        for (int32_t k = 0; k < batch.num_samples; k++) {
            REQUIRE(batch.samples[k].id >= 0 && batch.samples[k].id < NUM_SAMPLES);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    static Arena arena;
    uint8_t input[MAX_RECORD];
    if (num_bytes < 2) { return 0; }
    size_t input_bytes = make_input(input, data, num_bytes);
    SessionRefit refit = {.is_on = true};
    REQUIRE(session_refit_restore(&refit, input, &input_bytes) == STATUS_OK ||
            fuzz_has_remedy(status_message()));
    session_refit_forget(&refit);
    free(refit.versions);
    Loader* loader = loaders[(data[0] & 4) != 0];
    Status status = loader_restore(loader, input, input_bytes);
    if (status == STATUS_OK) {
        require_usable(loader, input, input_bytes, &arena);
    } else {
        REQUIRE((status == STATUS_BAD_FORMAT || status == STATUS_MISMATCH) &&
                fuzz_has_remedy(status_message()));
    }
    arena_reset(&arena);
    return 0;
}
