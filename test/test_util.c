// test_util.c -- laws of util/: status and names, arenas, numbers, files, logs, options, and what programs
// do.
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../util/arena.h"
#include "../util/files.h"
#include "../util/numbers.h"
#include "../util/options.h"
#include "test.h"
#include "../util/status.h"
#include "../util/program.h"

static uint64_t seed;

// --- base --------------------

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

// A limit on the length of files is an errno, and half of a part may be there. A full disk likewise.
static void parts_of_files_fail_with_a_reason(void) {
    char path[] = "/tmp/test_base_XXXXXX", text[8] = "";
    int fd = mkstemp(path), full = open("/dev/full", O_WRONLY);
    struct rlimit before, limit;
    getrlimit(RLIMIT_FSIZE, &before);
    limit = (struct rlimit){.rlim_cur = 100, .rlim_max = before.rlim_max};
    fflush(stdout);
    setrlimit(RLIMIT_FSIZE, &limit);
    int part = file_write_at(fd, "abcdef", 6, 94), beyond = file_write_at(fd, "abcdef", 6, 95);
    setrlimit(RLIMIT_FSIZE, &before);
    CHECK_EQ(part, 0);
    CHECK_EQ(beyond, EFBIG);
    CHECK(pread(fd, text, 8, 94) == 6 && strcmp(text, "aabcde") == 0);
    CHECK_EQ(file_write_at(full, "x", 1, 0), ENOSPC);
    CHECK_EQ(file_write_at(-1, "x", 1, 0), EBADF);
    CHECK_EQ(file_sync_folder(path), 0);
    CHECK_EQ(file_sync_folder("beside"), 0);
    CHECK_EQ(file_sync_folder("/top"), 0);
    CHECK_EQ(file_sync_folder("/nowhere/at/all"), ENOENT);
    close(fd);
    close(full);
    unlink(path);
}

// --- printable --------------------

static void controls_and_broken_utf8_become_hex(void) {
    static const char* const cases[][2] = {
        {"a\x1b[31mred\x07\n", "a\\x1b[31mred\\x07\\x0a"},
        {"\x7f\x01", "\\x7f\\x01"},
        {"\xc2\x9b", "\\xc2\\x9b"},           // C1: the one-character form of ESC [
        {"\xe2\x80\xae", "\\xe2\\x80\\xae"},  // U+202E turns the line
        {"\xe2\x81\xa6|\xd8\x9c|\xe2\x80\xa8|\xe2\x80\xa9|\xef\xbb\xbf",
         "\\xe2\\x81\\xa6|\\xd8\\x9c|\\xe2\\x80\\xa8|\\xe2\\x80\\xa9|\\xef\\xbb\\xbf"},
        {"\xff\xfe", "\\xff\\xfe"},
        {"\xc3", "\\xc3"},  // cut
        {"\xe2\x82", "\\xe2\\x82"},
        {"\xc0\xaf", "\\xc0\\xaf"},                    // '/' in two bytes
        {"\xe0\x80\xaf", "\\xe0\\x80\\xaf"},           // in three
        {"\xed\xa0\x80", "\\xed\\xa0\\x80"},           // half a surrogate pair
        {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},  // beyond U+10FFFF
        {"\x80|\xc3\xa4", "\\x80|ä"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char out[256];
        CHECK(strcmp(printable(out, sizeof out, cases[i][0]), cases[i][1]) == 0);
    }
}

static void cut_text_ends_in_dots_within_its_room(void) {
    const char* text = "ab\x1b"
                       "ä中";
    const char* whole = "ab\\x1bä中";
    for (size_t room = 0; room < 16; room++) {
        char out[17];
        memset(out, '#', sizeof out);
        printable(out, room, text);
        CHECK(out[room] == '#');
        if (room == 0) { continue; }
        CHECK(strlen(out) < room);
        if (strlen(whole) < room) {
            CHECK(strcmp(out, whole) == 0);
        } else {
            size_t dots = room - 1 < 3 ? room - 1 : 3, kept = strlen(out) - dots;
            CHECK(strncmp(out + kept, "...", dots) == 0 && strncmp(out, whole, kept) == 0);
            CHECK((whole[kept] & 0xc0) != 0x80 && !(kept > 2 && kept < 6));  // not within a character or \x1b
        }
    }
}

static void messages_are_one_plain_line(void) {
    CHECK_EQ(FAIL(STATUS_IO, "task '%s':\nlost ---> %s", "\x1b[2J", "ä\xff"), STATUS_IO);
    CHECK(strcmp(status_message(), "task '\\x1b[2J':\\x0alost ---> ä\\xff") == 0);
    CHECK_EQ(FAIL(STATUS_IO, "again: %s", status_message()), STATUS_IO);
    CHECK(strcmp(status_message(), "again: task '\\x1b[2J':\\x0alost ---> ä\\xff") == 0);
}

// Random bytes: what comes out is plain, valid, and itself unchanged by a second time.
static void random_bytes_become_plain(void) {
    Rng rng = rng_seed(seed);
    for (int round = 0; round < 20000; round++) {
        char text[24], out[4 * sizeof text + 1], twice[sizeof out];
        size_t num_bytes = rng_below(&rng, sizeof text);
        for (size_t i = 0; i < num_bytes; i++) {
            static const unsigned char likely[] = {0xc2, 0xe2, 0x80, 0x81, 0xaa, 0xed, 0xa0, 0xf4, 0x9b, 'a'};
            uint32_t any = (uint32_t)rng_below(&rng, 512);
            text[i] = (char)(any < 256 ? any : likely[any % sizeof likely]);
        }
        printable_bytes(out, sizeof out, text, num_bytes);
        for (const char* at = out; *at != '\0'; at++) {
            test_failures += (unsigned char)*at < 0x20 || *at == 0x7f;
        }
        printable(twice, sizeof twice, out);
        test_failures += strcmp(out, twice) != 0;
    }
    CHECK_EQ(test_failures, 0);
}

// --- half --------------------

typedef struct {
    float (*from)(uint16_t value);
    uint16_t (*to)(float value);
    int exponent_bits;
} Format;

static const Format formats[] = {{half_from_bfloat16, half_to_bfloat16, 8},
                                 {half_from_float16, half_to_float16, 5}};

// By the definition: sign, exponent, fraction.
static double by_definition(const Format* f, uint32_t value) {
    int fraction_bits = 15 - f->exponent_bits, bias = (1 << (f->exponent_bits - 1)) - 1;
    int exponent = (int)(value >> fraction_bits) & ((1 << f->exponent_bits) - 1);
    double fraction = (double)(value & ((1u << fraction_bits) - 1)), one = (double)(1u << fraction_bits);
    double size = exponent > 0 ? ldexp(1 + fraction / one, exponent - bias) : ldexp(fraction / one, 1 - bias);
    return value & 0x8000u ? -size : size;
}

static bool is_finite(const Format* f, uint32_t value) {
    uint32_t exponent = ((1u << f->exponent_bits) - 1) << (15 - f->exponent_bits);
    return (value & exponent) != exponent;
}

static void every_value_comes_back(void) {
    for (int i = 0; i < 2; i++) {
        const Format* f = &formats[i];
        for (uint32_t v = 0; v < 0x10000; v++) {
            float value = f->from((uint16_t)v);
            bool is_infinite = !is_finite(f, v) && (v & ((1u << (15 - f->exponent_bits)) - 1)) == 0;
            if (is_finite(f, v)) { CHECK((double)value == by_definition(f, v)); }
            CHECK_EQ(isnan(value) != 0, !is_finite(f, v) && !is_infinite);
            CHECK_EQ(isinf(value) != 0, is_infinite);
            CHECK_EQ(signbit(value) != 0, v >= 0x8000);
            if (!isnan(value)) { CHECK_EQ(f->to(value), v); }
            if (isnan(value)) { CHECK(isnan(f->from(f->to(value)))); }
        }
    }
}

// Between every two neighbours, on both sides of zero; the last one's neighbour is where infinity begins.
static void what_lies_between_goes_to_the_nearer(void) {
    for (int i = 0; i < 2; i++) {
        const Format* f = &formats[i];
        for (uint32_t v = 0; v < 0x10000; v++) {
            if (!is_finite(f, v)) { continue; }
            uint32_t next = v + 1;
            double low = by_definition(f, v);
            double step = is_finite(f, next) ? by_definition(f, next) - low : low - by_definition(f, v - 1);
            float middle = (float)(low + step / 2);
            CHECK((double)middle == low + step / 2 || isinf(middle));
            if (isinf(middle)) { continue; }  // beyond all floats
            CHECK_EQ(f->to(middle), v % 2 == 0 ? v : next);
            float towards_zero = v >= 0x8000 ? INFINITY : -INFINITY;
            CHECK_EQ(f->to(nextafterf(middle, towards_zero)), v);
            CHECK_EQ(f->to(nextafterf(middle, -towards_zero)), next);
        }
    }
}

// --- page memory --------------------

static long faults(void) {
    struct rusage usage;
    CHECK_EQ(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_minflt;
}

static bool is_all(const unsigned char* data, int64_t begin, int64_t end, unsigned char value) {
    bool right = true;
    for (int64_t i = begin; i < end; i++) { right &= data[i] == value; }
    return right;
}

static void what_grows_keeps_its_contents(void) {
    Rng rng = rng_seed(seed);
    for (int trial = 0; trial < 20; trial++) {
        PageMemory memory = {0};
        for (int64_t asked = 1; asked < 24 << 20; asked += rng_between(&rng, 1, (int32_t)asked + 9000)) {
            int64_t before = memory.num_bytes;
            CHECK(page_memory_grow(&memory, asked));
            CHECK(memory.num_bytes >= asked);
            CHECK(is_all(memory.data, 0, before, 7));
            CHECK(is_all(memory.data, before, memory.num_bytes, 0));
            memset(memory.data, 7, (size_t)memory.num_bytes);
            CHECK(page_memory_grow(&memory, asked / 2));  // never smaller
        }
        page_memory_free(&memory);
        CHECK(memory.data == NULL && memory.num_bytes == 0);
    }
}

static void pages_are_there_before_they_are_used(void) {
    PageMemory memory = {0};
    const int64_t num_bytes = 16 << 20;
    CHECK(page_memory_grow(&memory, num_bytes));
    long before = faults();
    memset(memory.data, 1, (size_t)num_bytes);
    CHECK(faults() - before < num_bytes / 4096 / 16);
    page_memory_free(&memory);
}

// --- line log --------------------

static char directory[] = "/tmp/test_line_log_XXXXXX";
static char path[256];

// "12 loss: ..." is about step 12's loss.
static size_t key(int64_t* step, const char* line, size_t num_bytes) {
    int number, num_chars = 0;
    if (sscanf(line, "%d %*[a-z]:%n", &number, &num_chars) != 1 || num_chars == 0) { return 0; }
    *step = number;
    return (size_t)num_chars <= num_bytes ? (size_t)num_chars : 0;
}

static bool text_is(const char* expected) {
    char text[1 << 12] = "";
    FILE* file = fopen(path, "r");
    size_t num_bytes = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file != NULL) { fclose(file); }
    text[num_bytes] = '\0';
    if (strcmp(text, expected) != 0) { printf("is:\n%s", text); }
    return strcmp(text, expected) == 0;
}

static void put(const char* text) {
    FILE* file = fopen(path, "w");
    if (file == NULL || fputs(text, file) < 0 || fclose(file) != 0) { exit(1); }
}

static void is_cut_back_to_a_step(void) {
    static const struct {
        const char *before, *after;
        int step;
    } cases[] = {
        {"1 loss: a\n2 loss: b\n2 val: c\n3 loss: d\n", "1 loss: a\n2 loss: b\n2 val: c\n", 2},
        {"1 loss: a\n2 loss: b\n", "1 loss: a\n2 loss: b\n", 5},
        {"1 loss: a\n2 loss: b", "1 loss: a\n", 5},  // torn
        {"1 loss: a\n3 loss: b\n2 loss: c\n", "1 loss: a\n", 2},
        {"# words\n1 loss: a\n\n2 loss: b\n", "# words\n1 loss: a\n\n", 1},
        {"1 loss: a\n", "", -1},
        {"1 loss: a\n", "", 0},
        {"0 val: a\n1 loss: a\n", "0 val: a\n", 0},
        {"", "", 7},
        {"torn", "", 7},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        LineLog log;
        put(cases[i].before);
        CHECK_EQ(line_log_open(&log, path, key, false), STATUS_OK);
        CHECK(text_is(cases[i].before));  // until it is cut it stays as it was
        CHECK_EQ(line_log_cut(&log, cases[i].step), STATUS_OK);
        CHECK(text_is(cases[i].after));
        line_log_write(&log, "9 loss: z");
        char with_line[256];
        snprintf(with_line, sizeof with_line, "%s9 loss: z\n", cases[i].after);
        CHECK(text_is(with_line));
        line_log_close(&log);
    }
}

static void a_line_about_the_same_takes_the_last_ones_place(void) {
    LineLog log;
    put("1 loss: a\n1 val: b\n");
    CHECK_EQ(line_log_open(&log, path, key, false), STATUS_OK);
    CHECK_EQ(line_log_cut(&log, 1), STATUS_OK);
    line_log_write(&log, "1 val: longer than b");
    line_log_write(&log, "1 val: c");
    line_log_write(&log, "1 loss: d");
    line_log_write(&log, "words");
    line_log_write(&log, "words");
    CHECK(text_is("1 loss: a\n1 val: c\n1 loss: d\nwords\nwords\n"));
    line_log_close(&log);
}

// A limit on file sizes stands in for a full disk; what is said meanwhile may go to a file, too.
static void limit_files(rlim_t num_bytes) {
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = num_bytes < limit.rlim_max ? num_bytes : limit.rlim_max;
    setrlimit(RLIMIT_FSIZE, &limit);
}

// What the log says goes nowhere until hear_again(): RLIMIT_FSIZE is stderr's, too, where that is a file.
static int stop_hearing(void) {
    fflush(stdout);
    int said = dup(2), nowhere = open("/dev/null", O_WRONLY);
    CHECK(said >= 0 && dup2(nowhere, 2) == 2 && close(nowhere) == 0);
    return said;
}

static void hear_again(int said) {
    CHECK(dup2(said, 2) == 2 && close(said) == 0);
}

static void a_full_disk_costs_lines_and_no_halves(void) {
    LineLog log;
    put("");
    CHECK_EQ(line_log_open(&log, path, key, false), STATUS_OK);
    CHECK_EQ(line_log_cut(&log, 0), STATUS_OK);
    line_log_write(&log, "1 loss: a");
    int said = stop_hearing();
    limit_files(15);
    line_log_write(&log, "2 loss: the half of this line would fit");
    line_log_write(&log, "3 loss: nor this");
    CHECK(text_is("1 loss: a\n"));
    CHECK_EQ(log.num_lost, 2);
    line_log_write(&log, "4 z:");  // what is short enough
    CHECK(text_is("1 loss: a\n4 z:\n"));
    CHECK(!log.is_failing);
    limit_files(RLIM_INFINITY);
    hear_again(said);
    line_log_write(&log, "5 loss: there is room again");
    CHECK(text_is("1 loss: a\n4 z:\n5 loss: there is room again\n"));
    CHECK_EQ(log.num_lost, 2);
    line_log_close(&log);
}

static void what_is_removed_is_made_again(void) {
    LineLog log;
    char folder[128], file[256];
    snprintf(folder, sizeof folder, "%s/a", directory);
    snprintf(file, sizeof file, "%s/log", folder);
    mkdir(folder, 0755);
    CHECK_EQ(line_log_open(&log, file, key, true), STATUS_OK);
    line_log_write(&log, "1 loss: a");
    CHECK(unlink(file) == 0 && rmdir(folder) == 0);
    line_log_write(&log, "2 loss: b");
    char* here = strcpy((char[256]){0}, path);
    strcpy(path, file);
    CHECK(text_is("2 loss: b\n"));
    CHECK_EQ(log.num_lost, 0);
    LineLog other;
    CHECK_EQ(line_log_open(&other, file, key, true), STATUS_IO);  // the new file is locked, too
    // somebody else's file in its place, and a place that cannot be written, are left alone
    CHECK(unlink(file) == 0);
    put("theirs\n");
    line_log_write(&log, "3 loss: c");
    CHECK(text_is("theirs\n"));
    CHECK(unlink(file) == 0 && rmdir(folder) == 0);
    strcpy(path, folder);
    put("a file in place of the folder\n");
    line_log_write(&log, "4 loss: d");
    CHECK_EQ(log.num_lost, 2);
    CHECK(text_is("a file in place of the folder\n") && unlink(folder) == 0);
    line_log_write(&log, "5 loss: e");
    strcpy(path, file);
    CHECK(text_is("5 loss: e\n"));
    line_log_close(&log);
    CHECK(unlink(file) == 0 && rmdir(folder) == 0);
    strcpy(path, here);
}

static void serves_one_run_where_locked(void) {
    LineLog log, other;
    CHECK_EQ(line_log_open(&log, path, key, true), STATUS_OK);
    CHECK_EQ(line_log_open(&other, path, key, true), STATUS_IO);
    CHECK(strstr(status_message(), "another run writes here --->") != NULL);
    line_log_close(&log);
    CHECK_EQ(line_log_open(&other, path, key, true), STATUS_OK);
    line_log_close(&other);
    line_log_close(&other);
    line_log_write(&other, "into a closed one: nothing");
    CHECK_EQ(line_log_open(&other, "/nowhere/at/all", key, true), STATUS_IO);
}

// --- stop signal --------------------

// In a process of its own, as the note is never taken back: `body`'s exit status, or 256 + the signal that
// ended it.
static int status_of(int (*body)(void)) {
    int status;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) { _exit(body()); }
    if (child < 0 || waitpid(child, &status, 0) != child) { return -1; }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

static int first_is_kept(void) {
    stop_signal_watch();
    if (stop_signal_seen() != 0) { return 1; }
    raise(SIGUSR1);
    raise(SIGTERM);
    raise(SIGINT);
    stop_signal_watch();
    return stop_signal_seen() == SIGUSR1 ? 0 : 2;
}

static int second_interrupt(void) {
    stop_signal_watch();
    raise(SIGINT);
    if (stop_signal_seen() != SIGINT) { return 1; }
    raise(SIGINT);
    return 2;
}

static int ignored_stays_ignored(void) {
    signal(SIGINT, SIG_IGN);
    stop_signal_watch();
    raise(SIGINT);
    raise(SIGINT);
    return stop_signal_seen();
}

static int not_watched(void) {
    raise(SIGUSR1);
    return 0;
}

static void signals_are_noted(void) {
    CHECK_EQ(status_of(first_is_kept), 0);
    CHECK_EQ(status_of(second_interrupt), 130);
    CHECK_EQ(status_of(ignored_stays_ignored), 0);
    CHECK_EQ(status_of(not_watched), 256 + SIGUSR1);
    CHECK_EQ(stop_signal_exit_status(SIGINT), 130);
    CHECK_EQ(stop_signal_exit_status(SIGTERM), 0);
    CHECK(strcmp(stop_signal_name(SIGUSR1), "SIGUSR1") == 0);
    CHECK(strcmp(stop_signal_name(SIGUSR2), "SIGINT") == 0);
}

static void intervals_are_read(void) {
    static const struct {
        const char* text;
        int32_t steps, seconds;
    } good[] = {{"0", 0, 0}, {"100", 100, 0}, {"90s", 0, 90}, {"2h", 0, 7200}, {SAVE_INTERVAL_USUAL, 0, 600}};
    static const char* const bad[] = {"", "-1", "5x", "m", "5 m", "0m", "1.5", "2000000001", "9999999h"};
    SaveInterval every;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        CHECK_OK(save_interval_parse(&every, "-n", good[i].text));
        CHECK_EQ(every.steps, good[i].steps);
        CHECK_EQ(every.seconds, good[i].seconds);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK_FAILS(save_interval_parse(&every, "-n", bad[i]), STATUS_BAD_OPTION, "-n: '");
    }
}

static void saves_are_due(void) {
    const SaveInterval steps = {.steps = 3}, time = {.seconds = 60}, never = {0};
    CHECK(save_interval_is_due(&steps, 3, 0) && save_interval_is_due(&steps, 6, 0));
    CHECK(!save_interval_is_due(&steps, 4, 1e9));
    CHECK(save_interval_is_due(&time, 1, 60) && !save_interval_is_due(&time, 1, 59.9));
    CHECK(!save_interval_is_due(&never, 0, 1e9));
}

// --- slow notice --------------------

static _Atomic int64_t bytes;

static int64_t bytes_done(void) {
    return atomic_load(&bytes);
}

// What is printed until a first line is there (waits: false: until the end, which comes at once).
static char* printed(bool waits) {
    static char text[512];
    int ends[2];
    CHECK_EQ(pipe(ends), 0);
    fflush(stdout);
    int before = dup(STDOUT_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    SlowNotice* notice = slow_notice_begin("saving step 7", bytes_done, 3 << 29);
    atomic_fetch_add(&bytes, 1 << 29);
    ssize_t num_bytes = waits ? read(ends[0], text, sizeof text - 1) : 0;
    slow_notice_end(notice);
    dup2(before, STDOUT_FILENO);
    close(before);
    close(ends[1]);
    if (!waits) { num_bytes = read(ends[0], text, sizeof text - 1); }
    close(ends[0]);
    text[num_bytes > 0 ? num_bytes : 0] = '\0';
    return text;
}

static void only_what_is_slow_is_reported(void) {
    int seconds = 0, num_chars = 0;
    CHECK(strcmp(printed(false), "") == 0);
    const char* text = printed(true);
    CHECK(sscanf(text, "saving step 7: 0.50 of 1.50 GiB, %d s\n%n", &seconds, &num_chars) == 1 &&
          num_chars > 0);
    CHECK(seconds >= 2);
}

// --- step line --------------------

static void usual_runs_have_all_fields(void) {
    char text[STEP_LINE_CHARS];
    StepLine line = {.step = 12,
                     .num_steps = 1000,
                     .loss = 2.345678,
                     .norm = 1.2345,
                     .lr = 3e-4,
                     .ms = 51.2,
                     .tokens_per_s = 40100,
                     .bytes = 1.25 * (1 << 30),
                     .seconds_left = 130};
    step_line_print(text, &line);
    CHECK(strcmp(text,
                 "step   12/1000  loss 2.345678  norm 1.2345  lr 3.0e-04  51.20 ms  40.1k tok/s  1.25 GiB  "
                 "2m10s left") == 0);
}

static void no_line_is_too_long(void) {
    static const double values[] = {0, 1e-9, 0.5, 99.96, 1234.5, 987654.4, 3e9, 1e300, NAN, INFINITY};
    enum { NUM_VALUES = sizeof values / sizeof values[0] };
    Rng rng = rng_seed(5);
    for (int i = 0; i < 20000; i++) {
        char text[STEP_LINE_CHARS];
        double v[8];
        for (int k = 0; k < 8; k++) { v[k] = values[rng_below(&rng, NUM_VALUES)]; }
        StepLine line = {.step = 2000000000,
                         .num_steps = 2000000000,
                         .loss = v[0] > 1e9 ? 1e9 : v[0],
                         .norm = v[1] > 1e9 ? 1e9 : v[1],
                         .lr = v[2],
                         .ms = v[3],
                         .tokens_per_s = v[4],
                         .mfu = v[5],
                         .bytes = v[6],
                         .seconds_left = v[7]};
        CHECK(strlen(step_line_print(text, &line)) <= 100);
        CHECK(strncmp(text, "step 2000000000/2000000000 ", 27) == 0);
    }
}

static void times_and_bytes_have_the_unit_that_suits(void) {
    static const struct {
        double value;
        int digits;  // of a time; 0: bytes
        const char* want;
    } cases[] = {{0, 0, "0 B"},
                 {101, 0, "101 B"},
                 {512, 0, "0.50 KiB"},
                 {9.996 * 1024, 0, "10.0 KiB"},
                 {101.8 * (1 << 20), 0, "102 MiB"},
                 {102.4 * (1 << 20), 0, "0.10 GiB"},
                 {99.96 * (1 << 30), 0, "100 GiB"},
                 {1536.0 * (1 << 30), 0, "1536 GiB"},
                 {-1.5 * (1 << 30), 0, "-1.50 GiB"},
                 {0, 3, "0 ms"},
                 {51.2e6, 4, "51.20 ms"},
                 {9.996e6, 3, "10.0 ms"},
                 {999.4e6, 3, "999 ms"},
                 {999.6e6, 3, "1.00 s"},
                 {-18493.902e6, 6, "-18.4939 s"},
                 {12345e9, 3, "12345 s"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[TIME_CHARS];
        const char* is = cases[i].digits > 0 ? time_text(text, cases[i].value, cases[i].digits)
                                             : bytes_text(text, cases[i].value);
        CHECK(strcmp(is, cases[i].want) == 0);
    }
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(arena_gives_zeroed_disjoint_memory);
    RUN(options_are_taken_out_of_argv);
    RUN(bad_options_name_what_is_valid);
    RUN(files_are_replaced_whole);
    RUN(devices_stay_devices);
    RUN(parts_of_files_fail_with_a_reason);
    RUN(hash_sees_every_bit);
    RUN(random_numbers_fill_their_range);
    RUN(controls_and_broken_utf8_become_hex);
    RUN(cut_text_ends_in_dots_within_its_room);
    RUN(messages_are_one_plain_line);
    RUN(random_bytes_become_plain);
    RUN(every_value_comes_back);
    RUN(what_lies_between_goes_to_the_nearer);
    RUN(what_grows_keeps_its_contents);
    RUN(pages_are_there_before_they_are_used);
    if (mkdtemp(directory) == NULL) { return 1; }
    snprintf(path, sizeof path, "%s/log", directory);
    RUN(is_cut_back_to_a_step);
    RUN(a_line_about_the_same_takes_the_last_ones_place);
    RUN(a_full_disk_costs_lines_and_no_halves);
    RUN(what_is_removed_is_made_again);
    RUN(serves_one_run_where_locked);
    unlink(path);
    rmdir(directory);
    RUN(signals_are_noted);
    RUN(intervals_are_read);
    RUN(saves_are_due);
    RUN(only_what_is_slow_is_reported);
    slow_notice_end(NULL);
    RUN(usual_runs_have_all_fields);
    RUN(no_line_is_too_long);
    RUN(times_and_bytes_have_the_unit_that_suits);
    return test_end();
}
