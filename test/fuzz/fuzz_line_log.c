// fuzz_line_log.c -- any bytes as the main.log that a killed run left, the first one the step that a run goes
// on from: cut back to whole lines of steps so far, and gone on from. libFuzzer: -max_len=400
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../trainer/logger.h"
#include "fuzz.h"

static char folder[64], path[80];
static int fd;
static char text[8192];  // the file as it is, or as it was

int LLVMFuzzerInitialize(int* argc, char*** argv) {
    (void)argc;
    (void)argv;
    snprintf(folder, sizeof folder, "build/fuzz/line_log_%ld", (long)getpid());
    snprintf(path, sizeof path, "%s/main.log", folder);
    REQUIRE(mkdir(folder, 0755) == 0);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    REQUIRE(fd >= 0);
    return 0;
}

static void put(const uint8_t* data, size_t num_bytes) {
    REQUIRE(ftruncate(fd, 0) == 0 && pwrite(fd, data, num_bytes, 0) == (ssize_t)num_bytes);
}

static size_t look(void) {
    ssize_t num_bytes = pread(fd, text, sizeof text, 0);
    REQUIRE(num_bytes >= 0);
    return (size_t)num_bytes;
}

// The step that a line begins with as the program writes it; -1: none.
static int step_of(const uint8_t* line, size_t num_bytes) {
    char begin[24] = "";
    int step, num_chars = 0;
    memcpy(begin, line, num_bytes < sizeof begin - 1 ? num_bytes : sizeof begin - 1);
    bool is_step = sscanf(begin, "s:%9d trl:%n", &step, &num_chars) == 1 && num_chars > 0;
    return is_step ? step : -1;
}

static void require_cut(const uint8_t* data, size_t num_bytes, size_t num_kept, int step) {
    REQUIRE(num_kept <= num_bytes && memcmp(text, data, num_kept) == 0);
    REQUIRE(num_kept == 0 || data[num_kept - 1] == '\n');
    for (size_t at = 0; at < num_kept; at++) {
        if (at == 0 || data[at - 1] == '\n') { REQUIRE(step_of(data + at, num_kept - at) <= step); }
    }
    bool is_torn = memchr(data + num_kept, '\n', num_bytes - num_kept) == NULL;
    REQUIRE(is_torn || (data[num_kept] == 's' && data[num_kept + 1] == ':'));
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    if (num_bytes < 1) { return 0; }
    int step = data[0];
    data++, num_bytes--;
    Logger logger;
    put(data, num_bytes);
    REQUIRE(logger_open(&logger, folder) == STATUS_OK);
    REQUIRE(look() == num_bytes);
    REQUIRE(logger_cut(&logger, step) == STATUS_OK);
    size_t num_kept = look();
    require_cut(data, num_bytes, num_kept, step);
    REQUIRE(logger_cut(&logger, step) == STATUS_OK && look() == num_kept);
    logger_train(&logger, step + 1, 1, 1e-4f, 1);
    size_t num_now = look();
    REQUIRE(num_now > num_kept && text[num_now - 1] == '\n' && memcmp(text, data, num_kept) == 0);
    logger_train(&logger, step + 1, 1, 1e-4f, 1);  // the same again takes its place
    REQUIRE(look() == num_now && !logger_has_lost(&logger));
    logger_close(&logger);
    return 0;
}
