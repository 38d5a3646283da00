#include "program.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef DYNAPIPE_COMMIT
#define DYNAPIPE_COMMIT "unknown"
#endif
#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

const char* version_commit(void) {
    return DYNAPIPE_COMMIT;
}

void version_print(const char* program, FILE* out) {
    fprintf(out, "%s of DynaPipe for llm.c, commit %s (%s)\n", program, version_commit(), COMPILER);
}

bool version_is_wanted(int argc, char** argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--version") == 0) { return true; }
    }
    return false;
}

// --- standard output -----------------------------------------------------------------------------------

// Opened read-only, so printing there fails as it does without a descriptor.
void standard_output_open(bool outlives_readers) {
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) { continue; }
        if (open("/dev/null", O_RDONLY) != fd) { return; }
    }
    signal(SIGXFSZ, SIG_IGN);
    if (outlives_readers) { signal(SIGPIPE, SIG_IGN); }
}

// Was any output lost? Flushes the buffer. errno holds the reason, 0: unknown.
static bool standard_output_is_lost(void) {
    bool lost_before = ferror(stdout) != 0;
    errno = 0;
    bool lost_now = fflush(stdout) != 0;
    return lost_before || lost_now;
}

static const char* reason(void) {
    return errno != 0 ? strerror(errno) : "is the disk full, its reader gone?";
}

bool standard_output_warn(bool* has_warned) {
    bool is_lost = standard_output_is_lost();
    if (is_lost && !*has_warned) {
        fprintf(stderr, "warning: standard output: cannot be written: %s (the run goes on without it)\n",
                reason());
    }
    *has_warned |= is_lost;
    return is_lost;
}

int standard_output_close(int exit_status, int if_lost) {
    if (!standard_output_is_lost()) { return exit_status; }
    fprintf(stderr, "error: standard output: cannot be written: %s ---> redirect it elsewhere\n", reason());
    return if_lost;
}

// --- stop signal ---------------------------------------------------------------------------------------

enum { INTERRUPTED_STATUS = 130 };  // 128 + SIGINT

static const int watched[] = {SIGTERM, SIGINT, SIGUSR2, SIGUSR1};
static volatile sig_atomic_t seen, num_interrupts;

static bool is_under_mpirun;  // read by the handler, so set before it is installed

// A terminating mpirun of Open MPI no longer reads the ranks' output, so a blocking write would wait until
// the SIGKILL. From now on output that does not fit is dropped.
static void never_wait_to_print(void) {
    int saved_errno = errno, flags = fcntl(STDOUT_FILENO, F_GETFL);
    if (flags >= 0) { fcntl(STDOUT_FILENO, F_SETFL, flags | O_NONBLOCK); }
    errno = saved_errno;
}

static void note(int number) {
    if (number == SIGINT && num_interrupts++ > 0) { _exit(INTERRUPTED_STATUS); }
    if ((number == SIGTERM || number == SIGINT) && is_under_mpirun) { never_wait_to_print(); }
    if (seen == 0) { seen = number; }
}

// Interrupted calls continue (SA_RESTART), so files and messages are not affected.
void stop_signal_watch(void) {
    is_under_mpirun = getenv("OMPI_COMM_WORLD_SIZE") != NULL;
    struct sigaction action = {0}, before;
    signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes is an error like a full disk
    action.sa_handler = note;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof watched / sizeof watched[0]; i++) {
        if (sigaction(watched[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL) {
            sigaction(watched[i], &action, NULL);
        }
    }
}

int stop_signal_seen(void) {
    return (int)seen;
}

const char* stop_signal_name(int number) {
    return number == SIGTERM                       ? "SIGTERM"
           : number == SIGINT || number == SIGUSR2 ? "SIGINT"
           : number == SIGUSR1                     ? "SIGUSR1"
                                                   : "?";
}

int stop_signal_exit_status(int number) {
    return number == SIGINT ? INTERRUPTED_STATUS : 0;
}

// --- slow notice ---------------------------------------------------------------------------------------

struct SlowNotice {
    char what[128];
    int64_t (*done)(void);
    int64_t begin_bytes, total;
    int64_t begin_ns;
    pthread_t thread;
    sem_t ended;
};

static void* watch(void* arg) {
    SlowNotice* notice = (SlowNotice*)arg;
    const double gib = 1.0 / (1 << 30);
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    for (int seconds = 2;; seconds = seconds < 30 ? seconds : 30) {  // after 2, 4, 8, 16, 32, 62 ...
        at.tv_sec += seconds;
        int rc;
        do { rc = sem_timedwait(&notice->ended, &at); } while (rc != 0 && errno == EINTR);
        if (rc == 0) { return NULL; }
        double passed_s = (double)(clock_now_ns() - notice->begin_ns) / 1e9;
        if (notice->done == NULL) {
            printf("%s: %.0f s\n", notice->what, passed_s);
        } else {
            printf("%s: %.2f of %.2f GiB, %.0f s\n", notice->what,
                   (double)(notice->done() - notice->begin_bytes) * gib, (double)notice->total * gib,
                   passed_s);
        }
        fflush(stdout);
        seconds = (int)passed_s > 2 ? (int)passed_s : 2;
    }
}

SlowNotice* slow_notice_begin(const char* what, int64_t (*done)(void), int64_t total) {
    SlowNotice* notice = SIMULATED ? NULL : (SlowNotice*)calloc(1, sizeof *notice);
    if (notice == NULL) { return NULL; }
    snprintf(notice->what, sizeof notice->what, "%s", what);
    notice->done = done;
    notice->begin_bytes = done != NULL ? done() : 0;
    notice->total = total;
    notice->begin_ns = clock_now_ns();
    sem_init(&notice->ended, 0, 0);
    sigset_t all, before;  // signals are for the main thread
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int error = pthread_create(&notice->thread, NULL, watch, notice);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) { return notice; }
    free(notice);
    return NULL;
}

void slow_notice_end(SlowNotice* notice) {
    if (notice == NULL) { return; }
    sem_post(&notice->ended);
    pthread_join(notice->thread, NULL);
    sem_destroy(&notice->ended);
    free(notice);
}

// --- save interval -------------------------------------------------------------------------------------

enum { MOST = 2000000000 };  // steps, or seconds

static int64_t seconds_of(char unit) {
    return unit == 's' ? 1 : unit == 'm' ? 60 : unit == 'h' ? 3600 : 0;
}

Status save_interval_parse(SaveInterval* out, const char* option, const char* text) {
    char* end = NULL;
    errno = 0;
    long long number = isdigit((unsigned char)text[0]) ? strtoll(text, &end, 10) : -1;
    bool is_steps = end != NULL && end[0] == '\0';
    int64_t unit = end != NULL && end[0] != '\0' && end[1] == '\0' ? seconds_of(end[0]) : 0;
    bool fits = errno == 0 && number >= 0 && number <= MOST / (unit > 0 ? unit : 1);
    if (!fits || !(is_steps || (unit > 0 && number > 0))) {
        return FAIL(STATUS_BAD_OPTION,
                    "%s: '%.40s' ---> give steps (100), a time (90s, 10m, 2h), or 0 for one at the end only",
                    option, text);
    }
    *out = (SaveInterval){.steps = is_steps ? (int32_t)number : 0,
                          .seconds = is_steps ? 0 : (int32_t)(number * unit)};
    return STATUS_OK;
}

bool save_interval_is_due(const SaveInterval* every, int32_t step, double seconds) {
    if (every->steps > 0) { return step % every->steps == 0; }
    return every->seconds > 0 && seconds >= every->seconds;
}

// --- step line -----------------------------------------------------------------------------------------

const char* duration_text(char out[DURATION_CHARS], double seconds) {
    int64_t s = seconds < 1e9 ? (int64_t)(seconds + 0.5) : 1000000000, m = s / 60, h = m / 60;
    int d = (int)(h / 24);
    if (m == 0) {
        snprintf(out, DURATION_CHARS, "%ds", (int)s);
    } else if (h == 0) {
        snprintf(out, DURATION_CHARS, "%dm%02ds", (int)m, (int)(s % 60));
    } else if (d == 0) {
        snprintf(out, DURATION_CHARS, "%dh%02dm", (int)h, (int)(m % 60));
    } else {
        snprintf(out, DURATION_CHARS, "%dd%02dh", d, (int)(h % 24));
    }
    return out;
}

// Decimals after the point for a total of `digits` digits.
static int decimals_of(double value, int digits) {
    double size = fabs(value), power = 10;
    for (digits--; digits > 0 && size >= power - 0.5 * pow(10, -digits); digits--) { power *= 10; }
    return digits;
}

char* text_room(void) {
    enum { NUM_ROOMS = 16 };
    static _Thread_local char rooms[NUM_ROOMS][TIME_CHARS];
    static _Thread_local unsigned next;
    return rooms[next++ % NUM_ROOMS];
}

const char* time_text(char out[TIME_CHARS], double ns, int digits) {
    double ms = ns / 1e6;
    bool is_long = fabs(ms) >= 1000 - 0.5 * pow(10, 3 - digits);  // avoids "1000 ms" for 999.9
    double value = is_long ? ms / 1000 : ms;
    snprintf(out, TIME_CHARS, "%.*f %s", value != 0 ? decimals_of(value, digits) : 0, value,
             is_long ? "s" : "ms");
    return out;
}

const char* bytes_text(char out[BYTES_CHARS], double num_bytes) {
    static const char* const units[] = {"GiB", "MiB", "KiB"};
    double value = num_bytes / (1 << 30);
    int unit = 0;
    for (; unit < 2 && fabs(value) < 0.0995; unit++) { value *= 1024; }
    if (fabs(value) < 0.0995) {
        snprintf(out, BYTES_CHARS, "%.0f B", num_bytes);
    } else {
        int decimals = decimals_of(value, 3);
        snprintf(out, BYTES_CHARS, "%.*f %s", decimals, value, units[unit]);
    }
    return out;
}

const char* step_line_print(char out[STEP_LINE_CHARS], const StepLine* line) {
    static const int digits[] = {6, 4, 4, 3, 3};
    enum { NUM_WAYS = sizeof digits / sizeof digits[0] };
    double rate = line->tokens_per_s;
    const char* unit = rate >= 999.5e6 ? "G" : rate >= 999.5e3 ? "M" : rate >= 9999.5 ? "k" : "";
    rate /= *unit == 'G' ? 1e9 : *unit == 'M' ? 1e6 : *unit == 'k' ? 1e3 : 1;
    for (int way = 0, num_chars = STEP_LINE_CHARS; way < NUM_WAYS && num_chars > STEP_LINE_COLUMNS; way++) {
        char text[STEP_LINE_CHARS], mfu[400] = "", memory[40] = "", left[40] = "";
        const char* gap = way < 2 ? "  " : " ";
        if (line->mfu > 0) { snprintf(mfu, sizeof mfu, "%s%.0f%% MFU", gap, 100 * line->mfu); }
        if (way < NUM_WAYS - 1 && line->bytes > 0) {
            snprintf(memory, sizeof memory, "%s%s", gap, BYTES_TEXT(line->bytes));
        }
        if (line->seconds_left >= 0) {
            char duration[DURATION_CHARS];
            snprintf(left, sizeof left, "%s%s left", gap, duration_text(duration, line->seconds_left));
        }
        num_chars =
            snprintf(text, sizeof text, "step %4d/%d%sloss %.*f%snorm %.*f%slr %.1e%s%s%s%.*f%s tok/s%s%s%s",
                     line->step, line->num_steps, gap, digits[way], line->loss, gap, digits[way] - 2,
                     line->norm, gap, line->lr, gap, TIME_TEXT(line->ms * 1e6, 4), gap,
                     *unit != '\0' && rate < 99.95, rate, unit, mfu, memory, left);
        strcpy(out, text);
    }
    return out;
}
