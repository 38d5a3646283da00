/*
program.h -- what every program needs: clocks, --version, checked standard output, stop signals, progress
lines, save intervals, and formats of times and sizes.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- clocks ----------------------------------------------------------------------------------------------

// Monotonic wall time; the planner never reads a clock.
static inline int64_t clock_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

// Processor time of this thread: the cost of planning regardless of other load, also under a simulator,
// whose clock_gettime is a macro.
static inline int64_t clock_cpu_ns(void) {
    struct timespec now;
    (clock_gettime)(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

// --- simulated --------------------------------------------------------------------------------------------

// For ranks under SimGrid's SMPI (`make simulated`): all run in one thread of one process, one after the
// other, each with a clock of its own. So a rank has no other threads: background work is done in the
// foreground while the clock is stopped.

#ifdef DYNAPIPE_SIMULATED
enum { SIMULATED = 1 };
// Functions of SMPI, which it calls around every MPI function.
void smpi_bench_end(void);
void smpi_bench_begin(void);
#else
enum { SIMULATED = 0 };
#endif

// Stops the clock until it is started again: no clock_now_ns() and no message in between.
static inline void simulated_clock_stop(void) {
#ifdef DYNAPIPE_SIMULATED
    smpi_bench_end();
#endif
}

static inline void simulated_clock_go_on(void) {
#ifdef DYNAPIPE_SIMULATED
    smpi_bench_begin();
#endif
}

// --- version -------------------------------------------------------------------------------------------

// From `git describe`: 12 digits, "-dirty" if files had been edited; "unknown" if the build had no git.
const char* version_commit(void);
// "train_gpt2 of DynaPipe for llm.c, commit 1234567890ab" and the compiler, a line.
void version_print(const char* program, FILE* out);
bool version_is_wanted(int argc, char** argv);

// --- standard output -----------------------------------------------------------------------------------

// Printed output has arrived, or the program fails with a message: a full disk, a closed descriptor or pipe.

// First call in main(). A closed standard stream cannot become one of our files; a file size limit (ulimit
// -f) is a write error like a full disk, not a signal. outlives_readers: output to a closed pipe (head -1)
// is dropped and the program continues.
void standard_output_open(bool outlives_readers);
// The same check for a program that continues: warns on stderr the first time. *has_warned: warned before.
bool standard_output_warn(bool* has_warned);
// Last call in main(): returns exit_status, or if_lost with a message on stderr.
int standard_output_close(int exit_status, int if_lost);

// --- stop signal ------------------------------------------------------------------------------------------

// SIGTERM, SIGINT (Ctrl-C), SIGUSR1 (Slurm's --signal) and SIGUSR2 (SIGINT as mpirun.sh hands it on, which
// sets the status of that itself) are recorded, and the program ends after saving. A
// second SIGINT ends it at once with status 130; a signal that was ignored at start (nohup, `&` in a script)
// stays ignored. The record is per process, as signals are: the only mutable global of the plugin.

void stop_signal_watch(void);  // may be called again
// The first of these signals that came; 0: none.
int stop_signal_seen(void);
const char* stop_signal_name(int number);  // "SIGTERM"
// The exit status after an orderly stop: 130 for SIGINT, as shells expect, otherwise 0.
int stop_signal_exit_status(int number);

// --- slow notice ---------------------------------------------------------------------------------------

// Prints progress lines if work takes longer than two seconds: "saving step 100: 0.52 of 1.38 GiB, 2 s",
// after 2, 4, 8, 16 and then every 30 seconds, from a sleeping thread. Whole lines, because a program under
// mpirun may see a terminal although its output goes to a file.

typedef struct SlowNotice SlowNotice;

// `done`: bytes since the process began, of which `total` more are expected; called by the thread. NULL:
// only the time is printed. Returns NULL if no thread can be made; nothing is printed then.
SlowNotice* slow_notice_begin(const char* what, int64_t (*done)(void), int64_t total);
void slow_notice_end(SlowNotice* notice);  // NULL is allowed

// --- save interval -------------------------------------------------------------------------------------

// How often a run saves: "100" (steps), "90s", "10m" or "2h" (wall clock), "0" (only at the end).

// The default limits the loss of a killed run. A save of a large model takes a minute.
#define SAVE_INTERVAL_USUAL "10m"

typedef struct {
    int32_t steps;    // 0: not by steps
    int32_t seconds;  // 0: not by time
} SaveInterval;

// `option`: its name in messages. STATUS_BAD_OPTION.
Status save_interval_parse(SaveInterval* out, const char* option, const char* text);
// Is a save due after step `step`, so many seconds after the last save (or the begin)?
bool save_interval_is_due(const SaveInterval* every, int32_t step, double seconds);

// --- step line -----------------------------------------------------------------------------------------

// A training step in a line of at most 100 columns:
//
//     step   12/1000  loss 2.345678  norm 1.2345  lr 3.0e-04  51.20 ms  40.1k tok/s  1.25 GiB  2m10s left

enum { STEP_LINE_COLUMNS = 100, STEP_LINE_CHARS = STEP_LINE_COLUMNS + 1 };

typedef struct {
    int32_t step, num_steps;
    double loss, norm, lr;
    double ms, tokens_per_s;
    double mfu;           // model FLOPs per peak FLOPs, 0 to 1; 0: the peak is unknown
    double bytes;         // of the rank with the highest use; 0: unknown
    double seconds_left;  // < 0: unknown
} StepLine;

// If the line is too long: fewer digits, then one space between the fields, then no memory, then cut at
// column 100.
const char* step_line_print(char out[STEP_LINE_CHARS], const StepLine* line);

enum { DURATION_CHARS = 16 };
// "8s", "2m10s", "1h02m", "3d04h"
const char* duration_text(char out[DURATION_CHARS], double seconds);

enum { TIME_CHARS = 24 };
char* text_room(void);  // TIME_CHARS, one of 16 buffers of this thread, for arguments of printf
// "51.2 ms" with 3 digits, "51.20 ms" with 4: ms below a second, then s.
const char* time_text(char out[TIME_CHARS], double ns, int digits);
#define TIME_TEXT(ns, digits) time_text(text_room(), (double)(ns), (digits))

enum { BYTES_CHARS = TIME_CHARS };
// "41.3 GiB", "0.25 GiB", below 0.1 GiB "51.2 MiB", then "3.50 KiB", then "12 B".
const char* bytes_text(char out[BYTES_CHARS], double num_bytes);
#define BYTES_TEXT(num_bytes) bytes_text(text_room(), (double)(num_bytes))

#ifdef __cplusplus
}
#endif
