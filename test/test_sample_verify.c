// test_sample_verify.c -- every chunk is read by one rank, and no damage to a file of samples goes unseen.
#include "../dataloader/sample_file.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include "../util/program.h"
#include "data_maker.h"
#include "slow_disk.h"

enum { NUM_FILES = 3, LONG_TOKENS = 700000 };  // a sample of 1.3 MiB

static uint64_t seed;

static Status wait_all(SampleVerify* verify) {
    bool is_done = false;
    Status status = STATUS_OK;
    while (status == STATUS_OK && !is_done) { status = sample_verify_wait(verify, 1000000000, &is_done); }
    return status;
}
static char dir[64];

// Files of 2.7, 0.0 and 1.3 MiB: 5 chunks or so.
static void write_files(void) {
    static MadeSample samples[] = {{0, LONG_TOKENS, 3}, {1, 5, LONG_TOKENS}, {0, 3, 2}, {2, LONG_TOKENS, 1}};
    MadeData data = {.vocab = 300, .num_samples = 4, .samples = samples};
    maker_write(&data, 0, 2, dir, "a.bin");
    maker_write(&data, 2, 3, dir, "b.bin");
    maker_write(&data, 3, 4, dir, "c.bin");
}

static void path_of(char path[128], const char* name) {
    snprintf(path, 128, "%s/%s", dir, name);
}

static void flip(const char* name, int64_t bit) {
    char path[128];
    unsigned char byte = 0;
    path_of(path, name);
    int fd = open(path, O_RDWR);
    CHECK(pread(fd, &byte, 1, bit / 8) == 1);
    byte ^= (unsigned char)(1 << bit % 8);
    CHECK(pwrite(fd, &byte, 1, bit / 8) == 1);
    close(fd);
}

static SampleShards open_all(bool tokens_only) {
    SampleShards shards = {0};
    char pattern[128];
    path_of(pattern, "*.bin");
    CHECK_OK(sample_shards_open(&shards, pattern, 0, tokens_only));
    return shards;
}

// Of how many parts each finds damage; `message`: of the last that did.
static int parts_with_damage(SampleShards* shards, int32_t num_parts, char message[1024]) {
    int found = 0;
    for (int32_t p = 0; p < num_parts; p++) {
        SampleVerify* verify;
        CHECK_OK(sample_verify_start(&verify, &shards, 1, p, num_parts));
        Status status = wait_all(verify);
        CHECK(status == STATUS_OK || status == STATUS_BAD_FORMAT);
        CHECK_EQ(sample_verify_damage(verify), status);
        CHECK(status != STATUS_OK || sample_verify_left_bytes(verify) == 0);
        found += status != STATUS_OK;
        if (status != STATUS_OK) { snprintf(message, 1024, "%s", status_message()); }
        sample_verify_stop(verify);
    }
    return found;
}

static void whole_files_are_whole(void) {
    char message[1024] = "";
    SampleShards shards = open_all(false);
    for (int32_t parts = 1; parts < 12; parts++) { CHECK_EQ(parts_with_damage(&shards, parts, message), 0); }
    sample_shards_close(&shards);
}

// A flipped token is found by one rank of however many there are, and the message says where.
static void one_rank_finds_each_damage(void) {
    SampleShards shards = open_all(false);
    Rng rng = rng_seed(seed);
    for (int32_t round = 0; round < 40; round++) {
        static const char* const names[] = {"a.bin", "b.bin", "c.bin"};
        int32_t f = round % NUM_FILES, num_parts = 1 + (int32_t)rng_below(&rng, 9);
        const SampleFile* file = &shards.files[f];
        int64_t at = file->tokens_at + (int64_t)rng_below(&rng, (uint32_t)file->num_tokens * 2);
        if (round < 6) { at = round < 3 ? file->tokens_at : (int64_t)file->map.num_bytes - 1; }
        flip(names[f], 8 * at + round % 8);
        char message[1024] = "", *words;
        CHECK_EQ(parts_with_damage(&shards, num_parts, message), 1);
        CHECK(strstr(message, file->path) != NULL && strstr(message, "---> run prepare_data again") != NULL);
        words = strstr(message, ": bytes ");
        long long begin = -1, last = -1;
        CHECK(words != NULL && sscanf(words, ": bytes %lld ... %lld are not", &begin, &last) == 2);
        CHECK(begin <= at && at <= last && last - begin < SAMPLE_FORMAT_CHUNK_BYTES);
        flip(names[f], 8 * at + round % 8);
    }
    sample_shards_close(&shards);
}

// Anywhere in a file: refused when it is opened, or found afterwards. 400 of 400.
static void no_flipped_bit_goes_unseen(void) {
    Rng rng = rng_seed(seed + 1);
    int at_open = 0, found = 0;
    for (int round = 0; round < 400; round++) {
        char path[128], message[1024];
        path_of(path, round % 2 ? "a.bin" : "b.bin");
        SampleFile file;
        CHECK_OK(sample_file_open(&file, path, false));
        uint32_t bytes = (uint32_t)(rng_below(&rng, 2) ? file.map.num_bytes : (size_t)file.tokens_at);
        int64_t bit = 8 * (int64_t)rng_below(&rng, bytes) + rng_below(&rng, 8);
        sample_file_close(&file);
        flip(round % 2 ? "a.bin" : "b.bin", bit);
        SampleShards shards = {0};
        Status status = sample_shards_open(&shards, path, 0, round % 3 == 0);
        if (status != STATUS_OK) {
            CHECK_EQ(status, STATUS_BAD_FORMAT);
            CHECK(strstr(status_message(), path) != NULL && strstr(status_message(), "---> ") != NULL);
            at_open++;
        } else {
            found += parts_with_damage(&shards, 2, message);
            sample_shards_close(&shards);
        }
        flip(round % 2 ? "a.bin" : "b.bin", bit);
    }
    CHECK(at_open > 100 && found > 50);
    CHECK_EQ(at_open + found, 400);
}

// Nobody need wait for the end, nor ask; nothing is left running (the sanitizers would say so).
static void it_can_be_stopped_at_any_time(void) {
    SampleShards shards = open_all(false);
    SampleShards* twice[] = {&shards, &shards};
    for (int round = 0; round < 20; round++) {
        SampleVerify* verify;
        CHECK_OK(sample_verify_start(&verify, twice, round % 3, 0, 1));
        if (round % 4 == 1) { usleep(300); }
        CHECK_OK(sample_verify_damage(verify));
        if (round % 4 == 2) { CHECK_OK(wait_all(verify)); }
        if (round % 4 == 2) { CHECK_OK(wait_all(verify)); }
        sample_verify_stop(verify);
    }
    sample_verify_stop(NULL);
    CHECK_OK(sample_verify_damage(NULL));
    CHECK_OK(wait_all(NULL));
    sample_shards_close(&shards);
}

// Who waits is back in time, even where a single chunk takes longer; a thread that it brought goes on.
static void nobody_waits_longer_than_he_will(void) {
    SampleShards shards = open_all(false);
    SampleShards* list[] = {&shards};
    SampleVerify* verify;
    bool is_done;
    atomic_store(&slow_disk_ms, 2000);
    atomic_store(&slow_disk_chunks, 1000);  // all
    atomic_store(&slow_disk_asked, 0);
    CHECK_OK(sample_verify_start(&verify, list, 1, 0, 1));
    int64_t begin_ns = clock_now_ns();
    for (int turn = 0; turn < 4; turn++) {
        CHECK_OK(sample_verify_wait(verify, 50000000, &is_done));
        CHECK(!is_done);
    }
    int64_t took_ns = clock_now_ns() - begin_ns;
    CHECK(took_ns >= 200000000 && took_ns < 1800000000);
    CHECK(sample_verify_left_bytes(verify) > 3 << 20);
    CHECK(atomic_load(&slow_disk_asked) <= 2);  // the thread and the one at this priority
    atomic_store(&slow_disk_chunks, 0);
    CHECK_OK(wait_all(verify));
    CHECK_EQ(sample_verify_left_bytes(verify), 0);
    sample_verify_stop(verify);
    sample_shards_close(&shards);
}

// Without anybody waiting, damage shows in the end.
static void the_thread_finds_damage_by_itself(void) {
    SampleShards shards = open_all(false);
    SampleShards* list[] = {&shards};
    SampleVerify* verify;
    int64_t at = shards.files[2].tokens_at + 77;
    flip("c.bin", 8 * at);
    CHECK_OK(sample_verify_start(&verify, list, 1, 0, 1));
    for (int i = 0; i < 10000 && sample_verify_damage(verify) == STATUS_OK; i++) { usleep(1000); }
    CHECK_FAILS(sample_verify_damage(verify), STATUS_BAD_FORMAT, "c.bin: bytes ");
    CHECK_FAILS(wait_all(verify), STATUS_BAD_FORMAT, "c.bin: bytes ");
    sample_verify_stop(verify);
    flip("c.bin", 8 * at);
    sample_shards_close(&shards);
}

// llm.c's files have nothing to be compared with, but a name of their contents, whoever reads them.
static void llmc_files_get_the_same_id_either_way(void) {
    enum { NUM_TOKENS = 1200000 };
    int32_t* tokens = malloc(NUM_TOKENS * sizeof *tokens);
    uint64_t ids[2] = {0};
    char path[128];
    path_of(path, "text.bin");
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < NUM_TOKENS; i++) { tokens[i] = i % 1000 == 0 ? 50256 : i % 50000; }
        if (round == 1) { tokens[NUM_TOKENS - 5]++; }
        maker_write_llmc(path, 20240520, 1, tokens, NUM_TOKENS);
        SampleShards scanned = {0}, plain = {0};
        CHECK_OK(sample_shards_open(&scanned, path, 0, false));
        CHECK_OK(sample_shards_open(&plain, path, 0, true));
        CHECK(scanned.files[0].content_id != 0 && plain.files[0].content_id == 0);
        SampleShards* list[] = {&scanned, &plain};
        SampleVerify* verify;
        CHECK_OK(sample_verify_start(&verify, list, 2, 0, 1));
        CHECK_OK(wait_all(verify));
        CHECK(plain.files[0].content_id == scanned.files[0].content_id);
        ids[round] = plain.files[0].content_id;
        sample_verify_stop(verify);
        sample_shards_close(&scanned);
        sample_shards_close(&plain);
    }
    CHECK(ids[0] != ids[1]);
    free(tokens);
    unlink(path);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    maker_dir_create(dir);
    write_files();
    RUN(whole_files_are_whole);
    RUN(one_rank_finds_each_damage);
    RUN(no_flipped_bit_goes_unseen);
    RUN(it_can_be_stopped_at_any_time);
    RUN(nobody_waits_longer_than_he_will);
    RUN(the_thread_finds_damage_by_itself);
    RUN(llmc_files_get_the_same_id_either_way);
    maker_dir_remove(dir);
    return test_end();
}
