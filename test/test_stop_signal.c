// test_stop_signal.c -- signals that ask a program to end are noted, and give its exit status; how often a
// run saves, as text.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../util/program.h"
#include "test.h"

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
    CHECK_EQ(stop_signal_exit_status(SIGUSR1), 0);
    CHECK_EQ(stop_signal_exit_status(0), 0);
    CHECK(strcmp(stop_signal_name(SIGUSR1), "SIGUSR1") == 0);
}

static void intervals_are_read(void) {
    static const struct {
        const char* text;
        int32_t steps, seconds;
    } good[] = {{"0", 0, 0},
                {"100", 100, 0},
                {"90s", 0, 90},
                {"10m", 0, 600},
                {"2h", 0, 7200},
                {"2000000000", 2000000000, 0},
                {SAVE_INTERVAL_USUAL, 0, 600}};
    static const char* const bad[] = {
        "",   "-1", "5x",  "m",   "5mm",        "5 m",      " 5",
        "0m", "+5", "1.5", "5m ", "2000000001", "9999999h", "99999999999999999999"};
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

int main(int argc, char** argv) {
    (void)argc;
    (void)argv;
    RUN(signals_are_noted);
    RUN(intervals_are_read);
    RUN(saves_are_due);
    return test_end();
}
