// What takes longer than two seconds is said, with how far it is; what does not is not.
#include <stdatomic.h>
#include <unistd.h>

#include "../util/program.h"
#include "test.h"

static _Atomic int64_t bytes;

static int64_t bytes_done(void) {
    return atomic_load(&bytes);
}

// What is printed in `seconds` of waiting.
static char* printed(int64_t (*done)(void), double seconds) {
    static char text[512];
    int ends[2];
    CHECK_EQ(pipe(ends), 0);
    fflush(stdout);
    int before = dup(STDOUT_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    SlowNotice* notice = slow_notice_begin("saving step 7", done, 3 << 29);
    atomic_fetch_add(&bytes, 1 << 29);
    usleep((useconds_t)(seconds * 1e6));
    int64_t begin_ns = clock_now_ns();
    slow_notice_end(notice);
    int64_t took_ns = clock_now_ns() - begin_ns;
    fflush(stdout);
    dup2(before, STDOUT_FILENO);
    close(before);
    close(ends[1]);
    ssize_t num_bytes = read(ends[0], text, sizeof text - 1);
    close(ends[0]);
    text[num_bytes > 0 ? num_bytes : 0] = '\0';
    CHECK(took_ns < 500000000);  // does not wait for its next line
    return text;
}

static void what_is_quick_is_silent(void) {
    CHECK(strcmp(printed(NULL, 0.1), "") == 0);
}

static void what_is_slow_is_said(void) {
    CHECK(strcmp(printed(bytes_done, 2.5), "saving step 7: 0.50 of 1.50 GiB, 2 s\n") == 0);
}

static void lines_come_less_and_less_often(void) {
    CHECK(strcmp(printed(NULL, 4.5), "saving step 7: 2 s\nsaving step 7: 4 s\n") == 0);
}

int main(void) {
    RUN(what_is_quick_is_silent);
    RUN(what_is_slow_is_said);
    RUN(lines_come_less_and_less_often);
    slow_notice_end(NULL);
    return test_end();
}
