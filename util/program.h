/*
program.h -- what every program does: clocks, --version, standard output that must arrive, signals that ask it
to end, lines about slow work, how often to save, and how times and sizes are printed.
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

// Monotonic wall time; the planner never looks at a clock.
static inline int64_t clock_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

// Time this thread has spent on a core: what planning costs, whatever else the machine is doing, and under a
// simulator, whose clock_gettime is a macro, too.
static inline int64_t clock_cpu_ns(void) {
    struct timespec now;
    (clock_gettime)(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

// --- simulated -----------------------------------------------------------------------------------------

// What a rank must know that runs under a simulator: SimGrid's SMPI, built by `make simulated`.
//
// All ranks are there in one thread of one process, one after the other; each has a clock of its own, which
// runs by the processor time of what it computes, and stands while messages take the time of a network that
// does not exist. So a rank has no threads beside its own, and what they would do in the background is done
// in front while the clock stands.

#ifdef DYNAPIPE_SIMULATED
enum { SIMULATED = 1 };
// SMPI's own, which it calls around every MPI function.
void smpi_bench_end(void);
void smpi_bench_begin(void);
#else
enum { SIMULATED = 0 };
#endif

// What follows takes no time, until the clock goes on: no clock_now_ns() and no message in between.
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

// What was built: for --version, and for records of runs.

// As `git describe` names it: 12 digits, "-dirty" after them where files had been edited; "unknown" where
// the build does not say (another tree's, or one without git).
const char* version_commit(void);
// "train_gpt2 of DynaPipe for llm.c, commit 1234567890ab" and the compiler, a line.
void version_print(const char* program, FILE* out);
// Is --version among the arguments?
bool version_is_wanted(int argc, char** argv);

// --- standard output -----------------------------------------------------------------------------------

// What a program prints has arrived, or the program fails and says so: a full disk, a
// closed descriptor, a reader that is gone.
//
//     int main(...) {
//         standard_output_open(false);
//         ...
//         return standard_output_close(exit_status, EXIT_FAILURE);
//     }

// First thing in main(): a standard stream that is closed is never some file of ours; a limit on the length
// of files (ulimit -f) is an error of the write, as a full disk is, not a signal. outlives_readers: what is
// printed to a reader that has gone (head -1) is lost rather than the program.
void standard_output_open(bool outlives_readers);
// The same, said on stderr the first time; a program that goes on. *has_warned: whether that was before.
bool standard_output_warn(bool* has_warned);
// Last thing in main(): exit_status, or if_lost with a message on stderr.
int standard_output_close(int exit_status, int if_lost);

// --- stop signal ---------------------------------------------------------------------------------------

// A program that is asked to end: SIGTERM, SIGINT (Ctrl-C) and SIGUSR1 (Slurm's --signal) are
// noted, and the program ends where it has saved.
//
//     stop_signal_watch();                            // first in main(): what comes from now on is noted
//     ... if (stop_signal_seen() != 0) { ... }        // at the end of a step
//
// A second SIGINT ends the process at once, with status 130: whoever presses Ctrl-C twice will not wait. A
// signal that was ignored when the program began (nohup, `&` in a script) stays ignored. The note is the
// process's, as signals are: the one global of the plugin that is written to.

void stop_signal_watch(void);  // calling it again changes nothing
// The first of these signals that came; 0: none.
int stop_signal_seen(void);
const char* stop_signal_name(int number);  // "SIGTERM"
// What a program ends with that was asked to end by it, in order: 130 for SIGINT, as shells expect, else 0.
int stop_signal_exit_status(int number);

// --- slow notice ---------------------------------------------------------------------------------------

// A line on what is being done, where it takes longer than two seconds.
//
//     SlowNotice* notice = slow_notice_begin("saving step 100", bytes_written, num_bytes);
//     ...                                        // saving step 100: 0.52 of 1.38 GiB, 2 s
//     slow_notice_end(notice);
//
// Lines come after 2, 4, 8, 16 and then every 30 seconds, on standard output, from a thread that sleeps in
// between. Whole lines, as what mpirun starts may find a terminal where its output becomes a file.

typedef struct SlowNotice SlowNotice;

// `done`: bytes so far since the process began, of which `total` more are to come; called by the thread.
// NULL: the line has the time alone. NULL where there is no thread to be had; nothing is said then.
SlowNotice* slow_notice_begin(const char* what, int64_t (*done)(void), int64_t total);
void slow_notice_end(SlowNotice* notice);  // NULL is fine

// --- save interval -------------------------------------------------------------------------------------

// How often a run saves: "100" (steps), "90s", "10m" or "2h" (wall clock), "0" (at its end
// only). Written once for everybody's -n and --checkpoint-every.

// Where nothing is said: what a run that is killed loses, at most. A save of a large model takes a minute.
#define SAVE_INTERVAL_USUAL "10m"

typedef struct {
    int32_t steps;    // 0: not by steps
    int32_t seconds;  // 0: not by time
} SaveInterval;

// `option`: its name, for the message. STATUS_BAD_OPTION.
Status save_interval_parse(SaveInterval* out, const char* option, const char* text);
// Is it time, after step `step`, so many seconds after the last save (or the begin)?
bool save_interval_is_due(const SaveInterval* every, int32_t step, double seconds);

// --- step line -----------------------------------------------------------------------------------------

// What a training step was like, in a line of at most 100 columns; how times and numbers of
// bytes are written in lines for people. (In tables whose columns are compared the unit stands above them.)
//
//     step   12/1000  loss 2.345678  norm 1.2345  lr 3.0e-04  51.20 ms  40.1k tok/s  1.25 GiB  2m10s left

enum { STEP_LINE_COLUMNS = 100, STEP_LINE_CHARS = STEP_LINE_COLUMNS + 1 };

typedef struct {
    int32_t step, num_steps;
    double loss, norm, lr;
    double ms, tokens_per_s;
    double mfu;           // model FLOPs of the peak's, a share of 1; 0: the peak is unknown
    double bytes;         // of the fullest rank; 0: unknown
    double seconds_left;  // < 0: unknown
} StepLine;

// Where it gets too long: fewer digits, then one space between the fields; then the memory is left out, and
// what is after the 100th column.
const char* step_line_print(char out[STEP_LINE_CHARS], const StepLine* line);

enum { DURATION_CHARS = 16 };
// "8s", "2m10s", "1h02m", "3d04h"
const char* duration_text(char out[DURATION_CHARS], double seconds);

enum { TIME_CHARS = 24 };
char* text_room(void);  // TIME_CHARS, one of 16 of this thread: for arguments of printf
// "51.2 ms" of 3 digits, "51.20 ms" of 4: ms below a second, s from there on.
const char* time_text(char out[TIME_CHARS], double ns, int digits);
#define TIME_TEXT(ns, digits) time_text(text_room(), (double)(ns), (digits))

enum { BYTES_CHARS = TIME_CHARS };
// "41.3 GiB", "0.25 GiB", below a tenth of one "51.2 MiB", then "3.50 KiB", then "12 B".
const char* bytes_text(char out[BYTES_CHARS], double num_bytes);
#define BYTES_TEXT(num_bytes) bytes_text(text_room(), (double)(num_bytes))

#ifdef __cplusplus
}
#endif
