#include "program.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
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

static const int watched[] = {SIGTERM, SIGINT, SIGUSR1};
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
    if (number != SIGUSR1 && is_under_mpirun) { never_wait_to_print(); }
    if (seen == 0) { seen = number; }
}

// Interrupted calls continue (SA_RESTART), so files and messages are not affected.
void stop_signal_watch(void) {
    is_under_mpirun = getenv("OMPI_COMM_WORLD_SIZE") != NULL;
    struct sigaction action = {0}, before;
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
    return number == SIGTERM ? "SIGTERM" : number == SIGINT ? "SIGINT" : number == SIGUSR1 ? "SIGUSR1" : "?";
}

int stop_signal_exit_status(int number) {
    return number == SIGINT ? INTERRUPTED_STATUS : 0;
}

// --- slow notice ---------------------------------------------------------------------------------------

enum { FIRST_S = 2, MOST_S = 30 };

struct SlowNotice {
    char what[128];
    int64_t (*done)(void);
    int64_t begin_bytes, total;
    int64_t begin_ns;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool is_over;
};

static void say(const SlowNotice* notice) {
    const double gib = 1.0 / (1 << 30), seconds = (double)(clock_now_ns() - notice->begin_ns) / 1e9;
    if (notice->done == NULL) {
        printf("%s: %.0f s\n", notice->what, seconds);
    } else {
        printf("%s: %.2f of %.2f GiB, %.0f s\n", notice->what,
               (double)(notice->done() - notice->begin_bytes) * gib, (double)notice->total * gib, seconds);
    }
    fflush(stdout);
}

static void* watch(void* arg) {
    SlowNotice* notice = (SlowNotice*)arg;
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    pthread_mutex_lock(&notice->lock);
    int pause_s = FIRST_S;
    while (!notice->is_over) {
        at.tv_sec += pause_s;
        while (!notice->is_over && pthread_cond_timedwait(&notice->ended, &notice->lock, &at) == 0) {}
        if (!notice->is_over) { say(notice); }
        int64_t passed_s = (clock_now_ns() - notice->begin_ns) / 1000000000;
        pause_s = passed_s < MOST_S ? (int)passed_s : MOST_S;  // 2, 4, 8, 16 ...
        if (pause_s < FIRST_S) { pause_s = FIRST_S; }
    }
    pthread_mutex_unlock(&notice->lock);
    return NULL;
}

// Signals are for the main thread.
static bool start(SlowNotice* notice) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    bool ok = pthread_create(&notice->thread, NULL, watch, notice) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return ok;
}

SlowNotice* slow_notice_begin(const char* what, int64_t (*done)(void), int64_t total) {
    SlowNotice* notice = SIMULATED ? NULL : (SlowNotice*)calloc(1, sizeof *notice);
    if (notice == NULL) { return NULL; }
    snprintf(notice->what, sizeof notice->what, "%s", what);
    notice->done = done;
    notice->begin_bytes = done != NULL ? done() : 0;
    notice->total = total;
    notice->begin_ns = clock_now_ns();
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&notice->lock, NULL);
    pthread_cond_init(&notice->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (start(notice)) { return notice; }
    pthread_cond_destroy(&notice->ended);
    pthread_mutex_destroy(&notice->lock);
    free(notice);
    return NULL;
}

void slow_notice_end(SlowNotice* notice) {
    if (notice == NULL) { return; }
    pthread_mutex_lock(&notice->lock);
    notice->is_over = true;
    pthread_cond_signal(&notice->ended);
    pthread_mutex_unlock(&notice->lock);
    pthread_join(notice->thread, NULL);
    pthread_cond_destroy(&notice->ended);
    pthread_mutex_destroy(&notice->lock);
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

static void print_rate(char* out, size_t out_bytes, double rate) {
    const char* unit = rate >= 999.5e6 ? "G" : rate >= 999.5e3 ? "M" : rate >= 9999.5 ? "k" : "";
    double divided = rate / (*unit == 'G' ? 1e9 : *unit == 'M' ? 1e6 : *unit == 'k' ? 1e3 : 1);
    snprintf(out, out_bytes, *unit != '\0' && divided < 99.95 ? "%.1f%s tok/s" : "%.0f%s tok/s", divided,
             unit);
}

enum { MOST_FIELDS = 9, FIELD_CHARS = 48 };

typedef struct {
    char text[MOST_FIELDS][FIELD_CHARS];
    int num;
} Fields;

static char* next_field(Fields* fields) {
    return fields->text[fields->num++];
}

// Only the known fields; has_memory: also the memory.
static void fields_fill(Fields* fields, const StepLine* line, int digits, bool has_memory) {
    char text[DURATION_CHARS];
    fields->num = 0;
    snprintf(next_field(fields), FIELD_CHARS, "step %4d/%d", line->step, line->num_steps);
    snprintf(next_field(fields), FIELD_CHARS, "loss %.*f", digits, line->loss);
    snprintf(next_field(fields), FIELD_CHARS, "norm %.*f", digits - 2, line->norm);
    snprintf(next_field(fields), FIELD_CHARS, "lr %.1e", line->lr);
    time_text(next_field(fields), line->ms * 1e6, 4);
    print_rate(next_field(fields), FIELD_CHARS, line->tokens_per_s);
    if (line->mfu > 0) { snprintf(next_field(fields), FIELD_CHARS, "%.0f%% MFU", 100 * line->mfu); }
    if (has_memory && line->bytes > 0) { bytes_text(next_field(fields), line->bytes); }
    if (line->seconds_left >= 0) {
        snprintf(next_field(fields), FIELD_CHARS, "%s left", duration_text(text, line->seconds_left));
    }
}

// Appends one field; false: no room.
static bool join(char out[STEP_LINE_CHARS], size_t* num_chars, const char* text) {
    size_t more = strlen(text);
    if (*num_chars + more > STEP_LINE_COLUMNS) { return false; }
    memcpy(out + *num_chars, text, more + 1);
    *num_chars += more;
    return true;
}

// False if the line was cut.
static bool fields_join(char out[STEP_LINE_CHARS], const Fields* fields, const char* gap) {
    size_t num_chars = 0;
    for (int k = 0; k < fields->num; k++) {
        size_t before = num_chars;
        if ((k > 0 && !join(out, &num_chars, gap)) || !join(out, &num_chars, fields->text[k])) {
            out[before] = '\0';
            return false;
        }
    }
    return true;
}

const char* step_line_print(char out[STEP_LINE_CHARS], const StepLine* line) {
    static const int digits[] = {6, 4, 4, 3, 3};
    enum { NUM_WAYS = sizeof digits / sizeof digits[0] };
    for (int way = 0; way < NUM_WAYS; way++) {
        Fields fields;
        fields_fill(&fields, line, digits[way], way < NUM_WAYS - 1);
        if (fields_join(out, &fields, way < 2 ? "  " : " ")) { break; }
    }
    return out;
}
