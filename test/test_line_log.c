// Laws of a run's log: lines are whole or not there, a run that goes on cuts it back to its step, a disk that
// is full for a while or a folder that is removed costs no line that could be kept.
#include "../util/files.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test.h"

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

// Lost is the line that could not be written, not the one whose place it was to take.
static void a_full_disk_keeps_the_line_that_was_to_go(void) {
    LineLog log;
    put("1 loss: a\n1 val: b\n");
    CHECK_EQ(line_log_open(&log, path, key, false), STATUS_OK);
    CHECK_EQ(line_log_cut(&log, 1), STATUS_OK);
    int said = stop_hearing();
    limit_files(22);
    line_log_write(&log, "1 val: longer than b");
    CHECK(text_is("1 loss: a\n1 val: b\n"));
    CHECK_EQ(log.num_lost, 1);
    line_log_write(&log, "1 val: cd");  // what fits still takes it
    CHECK(text_is("1 loss: a\n1 val: cd\n"));
    limit_files(RLIM_INFINITY);
    hear_again(said);
    line_log_write(&log, "1 val: longer than b");
    CHECK(text_is("1 loss: a\n1 val: longer than b\n"));
    CHECK_EQ(log.num_lost, 1);
    line_log_close(&log);
}

// Removed while the disk is full: its lines are kept until there is room to make it again.
static void what_is_removed_waits_for_room(void) {
    LineLog log;
    put("1 loss: a\n2 loss: b\n");
    CHECK_EQ(line_log_open(&log, path, key, true), STATUS_OK);
    CHECK_EQ(line_log_cut(&log, 2), STATUS_OK);
    int said = stop_hearing();
    CHECK(unlink(path) == 0);
    for (int i = 0; i < 2; i++) {
        limit_files(15);
        line_log_write(&log, "3 loss: c");
        CHECK(text_is(""));
    }
    limit_files(RLIM_INFINITY);
    line_log_write(&log, "4 loss: d");
    hear_again(said);
    CHECK(text_is("1 loss: a\n2 loss: b\n4 loss: d\n"));
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
    CHECK(text_is("1 loss: a\n2 loss: b\n"));
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
    CHECK(text_is("1 loss: a\n2 loss: b\n5 loss: e\n"));
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

int main(void) {
    if (mkdtemp(directory) == NULL) { return 1; }
    snprintf(path, sizeof path, "%s/log", directory);
    RUN(is_cut_back_to_a_step);
    RUN(a_line_about_the_same_takes_the_last_ones_place);
    RUN(a_full_disk_costs_lines_and_no_halves);
    RUN(a_full_disk_keeps_the_line_that_was_to_go);
    RUN(what_is_removed_waits_for_room);
    RUN(what_is_removed_is_made_again);
    RUN(serves_one_run_where_locked);
    unlink(path);
    rmdir(directory);
    return test_end();
}
