/*
fuzz_position.c -- any bytes as the position in the data that a checkpoint keeps (the loader's record, behind
it what ranks agreed on, and the split of a run whose layers moved): refused, or batches can be drawn from
there and the same position comes out again.

The first byte of an input: bit 0 begins with a true record and takes the rest as changes to it (pairs of
place and value); bit 1 puts the record's hash right, which random bytes never meet; bit 2: of a loader in
file order; bit 3: a record of a split with changes (bit 1: and its hash right), read before the others.
*/
// libFuzzer: -max_len=256
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../../dataloader/loader.h"
#include "../../dataloader/prepare/sample_writer.h"
#include "../../dataloader/sample_file.h"
#include "../../util/numbers.h"
#include "../../dynapipe_plugin/plan/placement.h"
#include "../../dynapipe_plugin/run/session.h"
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

// Three stages, 8 layers, one replica.
static void session_make(Dynapipe* dp) {
    static const LayerRange stages[3] = {{0, 3}, {3, 6}, {6, 8}};
    *dp = (Dynapipe){.num_stages = 3, .num_replicas = 1};
    dp->costs.num_enc_layers = 8;
    placement_linear(&dp->request.placement, stages, 3);
}

// Bytes behind which a record of a split may stand. Whatever it says: a split of this model, or none.
static void require_split(const uint8_t* position, size_t num_bytes) {
    static Dynapipe dp;
    size_t left_bytes = num_bytes;
    session_make(&dp);
    session_resplit_restore(&dp, position, &left_bytes);
    const SessionResplit* resplit = &dp.resplit;
    REQUIRE(left_bytes <= num_bytes && dp.request.effort >= 0 && dp.request.effort <= 1000000000);
    if (resplit->has_restored) {
        REQUIRE(placement_check(&resplit->restored, 3, 8, false) == STATUS_OK);
        REQUIRE(placement_check(&resplit->before, 3, 8, false) == STATUS_OK);
    }
    free(dp.resplit.times_then);
}

// As a run writes it whose layers moved, then changed. Its hash and "DPSPLIT3" are its last 16 bytes; before
// them the values of two placements (of three chunks each), the times, and the record's own fields.
static void try_split(const uint8_t* data, size_t num_bytes, bool mends) {
    enum {
        LOADERS = 8,
        VALUES = 2 * (2 + 2 * 3 + 4) * sizeof(int32_t),
        TIMES = 3 * sizeof(double),
        FIELDS = 32,
        HASHED = VALUES + TIMES + FIELDS
    };
    static const LayerRange before[3] = {{0, 2}, {2, 5}, {5, 8}};
    static Dynapipe dp;
    const uint8_t loaders_own[LOADERS] = {0};
    const void* position = loaders_own;
    size_t all_bytes = LOADERS;
    session_make(&dp);
    dp.resplit.has_moved = true;
    placement_linear(&dp.resplit.before, before, 3);
    dp.resplit.times_then = calloc(3, sizeof(double));
    REQUIRE(session_resplit_position(&dp, &position, &all_bytes) == STATUS_OK);
    REQUIRE(all_bytes == LOADERS + HASHED + 16);
    uint8_t* bytes = malloc(all_bytes);
    REQUIRE(bytes != NULL);
    memcpy(bytes, position, all_bytes);
    for (size_t i = 0; i + 1 < num_bytes; i += 2) { bytes[LOADERS + data[i] % (HASHED + 16)] = data[i + 1]; }
    if (mends) {
        uint64_t hash = hash_finish(hash_bytes(hash_bytes(HASH_SEED, bytes + LOADERS, VALUES + TIMES),
                                               bytes + LOADERS + VALUES + TIMES, FIELDS));
        memcpy(bytes + LOADERS + HASHED, &hash, sizeof hash);
    }
    require_split(bytes, all_bytes);
    free(bytes);
    free(dp.resplit.times_then);
    free(dp.resplit.record);
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
    if (data[0] & 8) { try_split(data + 1, num_bytes - 1, data[0] & 2); }
    size_t input_bytes = make_input(input, data, num_bytes);
    require_split(input, input_bytes);
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
