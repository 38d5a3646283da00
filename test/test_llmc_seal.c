// test_llmc_seal.c -- the adapters' seals and records are those of this repository's trainers: what one
// writes the other takes, and what one refuses so does the other.
#include <stdlib.h>
#include <unistd.h>

#include "../dynapipe_plugin/adapters/llmc_record.h"
#include "../dynapipe_plugin/adapters/llmc_seal.h"
#include "../util/numbers.h"
#include "../util/status.h"
#include "../util/checkpoint_files.h"
#include "../llmc/checkpoint_record.h"
#include "../util/checkpoint_files.h"
#include "test.h"

static char error[256];
static uint64_t seed;

static void fill(int32_t* header, Rng* rng) {
    for (int i = 0; i < DYNAPIPE_SEAL_BEGIN; i++) { header[i] = (int32_t)rng_u64(rng); }
    for (int i = DYNAPIPE_SEAL_BEGIN; i < DYNAPIPE_SEAL_HEADER_INTS; i++) { header[i] = 0; }
}

static void put(const char* path, const int32_t* header) {
    CheckpointFile file;
    CHECK(checkpoint_file_create(&file, path, 1024) &&
          checkpoint_file_write(&file, header, 1024, 0) && checkpoint_file_sync(&file));
}

static void sums_are_the_same(void) {
    Rng rng = rng_seed(seed);
    uint64_t values[100];
    for (int i = 0; i < 100; i++) { values[i] = rng_u64(&rng); }
    for (int bytes = 2; bytes <= 4; bytes += 2) {
        uint64_t ours = 5, theirs = 5;
        for (int64_t first = 0; first < (int64_t)1 << 40; first = 3 * first + 1) {
            checkpoint_seal_add(&ours, first, values, 100, bytes);
            dynapipe_seal_add(&theirs, first, values, 100, bytes);
            CHECK(ours == theirs && ours != 5);
        }
    }
}

static void seals_are_the_same(void) {
    char path[] = "/tmp/test_llmc_seal_XXXXXX";
    int fd = mkstemp(path);
    Rng rng = rng_seed(seed + 1);
    for (int i = 0; i < 20; i++) {
        int32_t header[DYNAPIPE_SEAL_HEADER_INTS], read[DYNAPIPE_SEAL_HEADER_INTS];
        fill(header, &rng);
        DynapipeSeal mine = {.step = i, .body_sum = rng_u64(&rng), .vocab_hash = i % 2 ? rng_u64(&rng) : 0};
        mine.model_sum = rng_u64(&rng);
        CheckpointSeal theirs = {.step = mine.step,
                                 .body_sum = mine.body_sum,
                                 .vocab_hash = mine.vocab_hash,
                                 .model_sum = mine.model_sum};
        put(path, header);
        CHECK(checkpoint_seal_write(path, &theirs) && checkpoint_file_rename(path));
        dynapipe_seal_write(header, &mine);
        FILE* file = fopen(path, "rb");
        CHECK(file != NULL && fread(read, 1024, 1, file) == 1);
        fclose(file);
        CHECK(memcmp(read, header, sizeof header) == 0);
        DynapipeSeal back;
        CHECK_OK(dynapipe_seal_read(&back, header, path));
        CHECK(back.is_sealed && back.step == i && back.body_sum == mine.body_sum);
        CHECK(back.vocab_hash == mine.vocab_hash && back.model_sum == mine.model_sum);
        for (int bit = 0; bit < 8 * 1024; bit += 1 + (int)rng_below(&rng, 40)) {
            header[bit / 32] ^= (int32_t)(1u << bit % 32);
            CHECK(dynapipe_seal_read(&back, header, path) == STATUS_BAD_FORMAT);
            header[bit / 32] ^= (int32_t)(1u << bit % 32);
        }
    }
    close(fd);
    unlink(path);
}

static void foreign_parts_are_refused(void) {
    int32_t model[DYNAPIPE_SEAL_HEADER_INTS] = {20240326, 3, 8},
            state[DYNAPIPE_SEAL_HEADER_INTS] = {20240527};
    int32_t plain[DYNAPIPE_SEAL_HEADER_INTS] = {0};
    DynapipeSeal model_seal = {.step = 40, .body_sum = 5, .vocab_hash = 7};
    memcpy(&state[DYNAPIPE_SEAL_STATE_MODEL], model, 4 * DYNAPIPE_SEAL_STATE_MODEL_INTS);
    state[10] = 40;
    dynapipe_seal_write(model, &model_seal);
    static const struct {
        DynapipeSeal state;
        const char* words;
    } cases[] = {{{.step = 41, .model_sum = 5, .vocab_hash = 7}, "sealed at step 41, not 40"},
                 {{.step = 40, .model_sum = 6, .vocab_hash = 7}, "saved beside other weights"},
                 {{.step = 40, .model_sum = 5, .vocab_hash = 8}, "of a run on vocabulary"},
                 {{.step = 40, .model_sum = 5, .vocab_hash = 7}, NULL}};
    for (int i = 0; i < 4; i++) {
        dynapipe_seal_write(state, &cases[i].state);
        Status status = dynapipe_seal_check_pair(model, "model", state, "state", 40);
        CHECK(cases[i].words == NULL
                  ? status == STATUS_OK
                  : status == STATUS_BAD_FORMAT && strstr(status_message(), cases[i].words) != NULL);
    }
    CHECK_FAILS(dynapipe_seal_check_pair(plain, "model", state, "state", 40), STATUS_BAD_FORMAT,
                "not sealed");
    CHECK_FAILS(dynapipe_seal_check_pair(model, "model", plain, "state", 40), STATUS_BAD_FORMAT,
                "not sealed");
    CHECK_OK(dynapipe_seal_check_pair(plain, "model", plain, "state", 40));
    state[DYNAPIPE_SEAL_STATE_MODEL + 2] = 9;
    dynapipe_seal_write(state, &cases[3].state);
    CHECK_FAILS(dynapipe_seal_check_pair(model, "model", state, "state", 40), STATUS_BAD_FORMAT,
                "of another shape");
    state[10] = 41;
    CHECK_FAILS(dynapipe_seal_check_pair(model, "model", state, "state", 40), STATUS_BAD_FORMAT,
                "step 41 in its header, but it was sealed at step 40");
    model_seal.is_sealed = 1;
    CHECK_FAILS(dynapipe_seal_check(&model_seal, "model", 6), STATUS_BAD_FORMAT, "not those that were saved");
}

enum { VALUES_BYTES = 40 };  // of a state, before its record

// As our trainers write it, at VALUES_BYTES.
static int64_t write_ours(uint8_t* bytes, const char* path, const CheckpointRun* run, uint64_t* sum) {
    CheckpointFile file;
    int64_t num_bytes = VALUES_BYTES + checkpoint_record_bytes(run);
    CHECK(checkpoint_file_create(&file, path, num_bytes) &&
          checkpoint_record_write(&file, run, VALUES_BYTES, VALUES_BYTES / 4, sum) &&
          checkpoint_file_read(&file, bytes, num_bytes, 0));
    checkpoint_file_close(&file);
    checkpoint_file_remove_tmp(path);
    return num_bytes;
}

// And as they read it; bytes: from the record on.
static bool read_ours(CheckpointRun* out, const char* path, const void* bytes, int64_t num_bytes,
                      uint64_t* sum) {
    CheckpointFile file;
    CHECK(checkpoint_file_create(&file, path, VALUES_BYTES + num_bytes) &&
          checkpoint_file_write(&file, bytes, num_bytes, VALUES_BYTES));
    bool ok = checkpoint_record_read(out, &file, VALUES_BYTES, VALUES_BYTES / 4, sum);
    checkpoint_file_close(&file);
    checkpoint_file_remove_tmp(path);
    return ok;
}

// Whoever wrote it: the same position, and as much for the file's sum. Settings are for our trainers alone.
static void records_are_the_same(void) {
    static char* const settings[] = {NULL, "mixture=weights\nl=0.001\n"};
    char path[] = "/tmp/test_llmc_seal_XXXXXX", position[] = "somewhere in the data";
    int fd = mkstemp(path);
    for (int i = 0; i < 2; i++) {
        uint8_t bytes[256];
        CheckpointRun run = {.position = (uint8_t*)position, .position_bytes = sizeof position};
        run.settings = settings[i];
        uint64_t sum = 0, theirs = 0, again = 0;
        int64_t num_bytes = write_ours(bytes, path, &run, &sum) - VALUES_BYTES;
        uint8_t* record_bytes = bytes + VALUES_BYTES;
        LlmcRecord record;
        CHECK_OK(dynapipe_record_read(&record, record_bytes, num_bytes, path));
        CHECK_EQ(record.position_bytes, sizeof position);
        CHECK_EQ(record.settings_bytes, settings[i] != NULL ? strlen(settings[i]) : 0);
        CHECK(memcmp(record_bytes + sizeof record, position, sizeof position) == 0);
        dynapipe_seal_add(&theirs, VALUES_BYTES / 4, &record.hash, 2, 4);
        CHECK(theirs == sum);
        for (int64_t at = 0; at < num_bytes; at++) {
            record_bytes[at] ^= 4;
            CHECK_FAILS(dynapipe_record_read(&record, record_bytes, num_bytes, path), STATUS_BAD_FORMAT,
                        at < 8 ? "no position in the data" : "is damaged");
            record_bytes[at] ^= 4;
            CHECK(dynapipe_record_read(&record, record_bytes, at, path) == STATUS_BAD_FORMAT);
        }
        if (settings[i] != NULL) { continue; }
        record = dynapipe_record_of(position, sizeof position);
        CHECK(memcmp(&record, record_bytes, sizeof record) == 0);
        memcpy(record_bytes, &record, sizeof record);
        CheckpointRun read = {0};
        CHECK(read_ours(&read, path, record_bytes, num_bytes, &again) && again == sum);
        CHECK(read.position != NULL && read.settings != NULL && read.settings[0] == '\0');
        CHECK(read.position_bytes == sizeof position &&
              memcmp(read.position, position, sizeof position) == 0);
        free(read.position);
        free(read.settings);
    }
    close(fd);
    unlink(path);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(sums_are_the_same);
    RUN(seals_are_the_same);
    RUN(foreign_parts_are_refused);
    RUN(records_are_the_same);
    return test_end();
}
