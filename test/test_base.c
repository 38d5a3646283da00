// test_base.c -- arena, options, files, hash, random numbers: the ground everything stands on.
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../util/arena.h"
#include "../util/files.h"
#include "../util/numbers.h"
#include "../util/options.h"
#include "test.h"

static uint64_t seed;

// Memory is zeroed, aligned, disjoint; after a reset the same requests need no new block.
static void arena_gives_zeroed_disjoint_memory(void) {
    Arena arena = {0};
    Rng rng = rng_seed(seed);
    for (int round = 0; round < 3; round++) {
        unsigned char* items[200];
        size_t lengths[200];
        for (int i = 0; i < 200; i++) {
            lengths[i] = rng_below(&rng, 5000);
            items[i] = arena_alloc(&arena, lengths[i]);
            CHECK_EQ((uintptr_t)items[i] % 16, 0);
            for (size_t k = 0; k < lengths[i]; k++) { test_failures += items[i][k] != 0; }
            memset(items[i], i + 1, lengths[i]);
        }
        for (int i = 0; i < 200; i++) {
            for (size_t k = 0; k < lengths[i]; k++) {
                test_failures += items[i][k] != (unsigned char)(i + 1);
            }
        }
        arena_reset(&arena);
    }
    CHECK(arena_alloc_array(&arena, SIZE_MAX / 2, 8) == NULL);
    arena_free(&arena);
}

typedef struct {
    bool check;
    int32_t stages;
    int64_t limit_bytes;
    double rate;
    const char* trace;
    int32_t schedule;
} TestOptions;

static const OptionSpec specs[] = {
    {"--check", OPTION_BOOL, offsetof(TestOptions, check), NULL, 0, 0, NULL, NULL, "check"},
    {"--stages", OPTION_INT, offsetof(TestOptions, stages), "1", 1, 64, NULL, "P", "stages"},
    {"--memory-limit", OPTION_INT64, offsetof(TestOptions, limit_bytes), "0", 0, 0, NULL, "BYTES", "limit"},
    {"--rate", OPTION_DOUBLE, offsetof(TestOptions, rate), "0.5", 0, 1, NULL, "X", "rate"},
    {"--trace", OPTION_STRING, offsetof(TestOptions, trace), NULL, 0, 0, NULL, "FILE", "trace"},
    {"--schedule", OPTION_CHOICE, offsetof(TestOptions, schedule), "auto", 0, 0, "auto|1f1b|gpipe", NULL,
     "order"},
};
enum { NUM_SPECS = sizeof specs / sizeof specs[0] };

static Status take(TestOptions* options, int* argc, char** argv) {
    *options = (TestOptions){0};
    TRY(options_defaults(specs, NUM_SPECS, options));
    return options_take(specs, NUM_SPECS, options, argc, argv, NULL);
}

// The host's own options stay, with their values, whichever way they are written.
static void own_options_stay(void) {
    char* argv[] = {"prog", "--dropout", "--check", "--stages", "3", "--out=x", "--check", NULL};
    const char* const own[] = {"--dropout", "--out", NULL};
    int argc = 7;
    TestOptions options = {0};
    CHECK_OK(options_defaults(specs, NUM_SPECS, &options));
    CHECK_OK(options_take(specs, NUM_SPECS, &options, &argc, argv, own));
    CHECK_EQ(argc, 4);
    CHECK(strcmp(argv[1], "--dropout") == 0 && strcmp(argv[2], "--check") == 0 &&
          strcmp(argv[3], "--out=x") == 0);
    CHECK_EQ(options.stages, 3);
}

// Long options leave argv, everything else stays in order.
static void options_are_taken_out_of_argv(void) {
    char* argv[] = {"prog",    "-b",         "4",     "--stages", "3", "-t", "64", "--memory-limit=2G",
                    "--check", "--schedule", "gpipe", NULL};
    int argc = 11;
    TestOptions options;
    CHECK_OK(take(&options, &argc, argv));
    CHECK_EQ(argc, 5);
    CHECK(strcmp(argv[1], "-b") == 0 && strcmp(argv[4], "64") == 0);
    CHECK_EQ(options.stages, 3);
    CHECK_EQ(options.limit_bytes, 2LL << 30);
    CHECK(options.check && options.schedule == 2 && options.trace == NULL && options.rate == 0.5);
}

static void bad_options_name_what_is_valid(void) {
    static const struct {
        const char *option, *value, *words;
    } cases[] = {
        {"--stages", "8x", "not a whole number"},    {"--stages", "0", "outside 1 ... 64"},
        {"--stages", NULL, "needs a value"},         {"--stagse", "2", "did you mean --stages"},
        {"--schedule", "zigzag", "auto|1f1b|gpipe"}, {"--rate", "nan", "not a number"},
        {"--check=1", NULL, "takes no value"},       {"--memory-limit", "99999999999G", "--memory-limit"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char* argv[] = {"prog", (char*)cases[i].option, (char*)cases[i].value, NULL};
        int argc = cases[i].value == NULL ? 2 : 3;
        TestOptions options;
        CHECK_FAILS(take(&options, &argc, argv), STATUS_BAD_OPTION, cases[i].words);
    }
}

// What was there survives a failed or abandoned write; a committed one replaces it whole.
static void files_are_replaced_whole(void) {
    char dir[] = "/tmp/dynapipe_base_XXXXXX", path[64];
    CHECK(mkdtemp(dir) != NULL);
    snprintf(path, sizeof path, "%s/file", dir);
    for (int round = 0; round < 2; round++) {
        FileWriter writer;
        CHECK_OK(file_writer_open(&writer, path));
        for (int i = 0; i < 300000; i++) { file_writer_write(&writer, &i, sizeof i); }
        CHECK_OK(round == 0 ? file_writer_commit(&writer) : (file_writer_abort(&writer), STATUS_OK));
        FileMap map;
        CHECK_OK(file_map_open(&map, path));
        CHECK_EQ(map.num_bytes, 1200000);
        CHECK_EQ(((const int32_t*)map.data)[299999], 299999);
        file_map_close(&map);
    }
    CHECK_FAILS(file_make_directory(path), STATUS_IO, path);
    unlink(path);
    rmdir(dir);
}

// A device is written, not replaced; behind links, so that a mistake costs a link.
static void devices_stay_devices(void) {
    static const char* const devices[] = {"/dev/null", "/dev/full"};
    char dir[] = "/tmp/dynapipe_base_XXXXXX", path[64];
    CHECK(mkdtemp(dir) != NULL);
    snprintf(path, sizeof path, "%s/link", dir);
    for (int i = 0; i < 2; i++) {
        FileWriter writer;
        struct stat info;
        if (stat(devices[i], &info) != 0 || !S_ISCHR(info.st_mode)) { continue; }
        CHECK_EQ(symlink(devices[i], path), 0);
        CHECK_OK(file_writer_open(&writer, path));
        file_writer_write(&writer, "x", 1);
        if (i == 0) { CHECK_OK(file_writer_commit(&writer)); }
        if (i == 1) { CHECK_FAILS(file_writer_commit(&writer), STATUS_IO, "--->"); }
        CHECK(lstat(path, &info) == 0 && S_ISLNK(info.st_mode));
        unlink(path);
    }
    CHECK_EQ(rmdir(dir), 0);
}

// One flipped bit anywhere changes the hash; halves at multiples of 8 compose.
static void hash_sees_every_bit(void) {
    unsigned char data[77];
    Rng rng = rng_seed(seed);
    for (size_t i = 0; i < sizeof data; i++) { data[i] = (unsigned char)rng_u64(&rng); }
    uint64_t whole = hash_finish(hash_bytes(HASH_SEED, data, sizeof data));
    CHECK(whole == hash_finish(hash_bytes(hash_bytes(HASH_SEED, data, 40), data + 40, 37)));
    for (size_t bit = 0; bit < 8 * sizeof data; bit++) {
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        CHECK(whole != hash_finish(hash_bytes(HASH_SEED, data, sizeof data)));
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
}

static void random_numbers_fill_their_range(void) {
    Rng rng = rng_seed(seed);
    int counts[7] = {0};
    for (int i = 0; i < 70000; i++) { counts[rng_between(&rng, -3, 3) + 3]++; }
    for (int i = 0; i < 7; i++) { CHECK_NEAR(counts[i], 10000, 500); }
}

// A limit on the length of files is an errno (its signal would end this program), and half of a part may be
// there. Where a machine is full likewise: /dev/full.
static void parts_of_files_fail_with_a_reason(void) {
    char path[] = "/tmp/test_base_XXXXXX", text[8] = "";
    int fd = mkstemp(path), full = open("/dev/full", O_WRONLY);
    struct rlimit before, limit;
    getrlimit(RLIMIT_FSIZE, &before);
    limit = (struct rlimit){.rlim_cur = 100, .rlim_max = before.rlim_max};
    CHECK_EQ(file_reserve(fd, 90), 0);
    CHECK_EQ(lseek(fd, 0, SEEK_END), 90);
    fflush(stdout);
    setrlimit(RLIMIT_FSIZE, &limit);
    int part = file_write_at(fd, "abcdef", 6, 94), beyond = file_write_at(fd, "abcdef", 6, 95);
    int reserved = file_reserve(fd, 200);
    setrlimit(RLIMIT_FSIZE, &before);
    CHECK_EQ(part, 0);
    CHECK_EQ(beyond, EFBIG);
    CHECK_EQ(reserved, EFBIG);
    CHECK_EQ(file_reserve(fd, 0), 0);
    CHECK(pread(fd, text, 8, 94) == 6 && strcmp(text, "aabcde") == 0);
    CHECK_EQ(file_write_at(full, "x", 1, 0), ENOSPC);
    CHECK_EQ(file_write_at(-1, "x", 1, 0), EBADF);
    CHECK_EQ(file_sync_folder(path), 0);
    CHECK_EQ(file_sync_folder("beside"), 0);
    CHECK_EQ(file_sync_folder("/top"), 0);
    CHECK_EQ(file_sync_folder("/nowhere/at/all"), ENOENT);
    close(full);
    close(fd);
    unlink(path);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(arena_gives_zeroed_disjoint_memory);
    RUN(own_options_stay);
    RUN(options_are_taken_out_of_argv);
    RUN(bad_options_name_what_is_valid);
    RUN(files_are_replaced_whole);
    RUN(devices_stay_devices);
    RUN(parts_of_files_fail_with_a_reason);
    RUN(hash_sees_every_bit);
    RUN(random_numbers_fill_their_range);
    return test_end();
}
