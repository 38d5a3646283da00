/*
stop_signal.h -- a program that is asked to end: SIGTERM, SIGINT (Ctrl-C) and SIGUSR1 (Slurm's --signal) are
noted, and the program ends where it has saved.

    stop_signal_watch();                            // first in main(): what comes from now on is noted
    ... if (stop_signal_seen() != 0) { ... }        // at the end of a step

A second SIGINT ends the process at once, with status 130: whoever presses Ctrl-C twice will not wait. A
signal that was ignored when the program began (nohup, `&` in a script) stays ignored. The note is the
process's, as signals are: the one global of the plugin that is written to.
*/
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

void stop_signal_watch(void);  // calling it again changes nothing
// The first of these signals that came; 0: none.
int stop_signal_seen(void);
const char* stop_signal_name(int number);  // "SIGTERM"
// What a program ends with that was asked to end by it, in order: 130 for SIGINT, as shells expect, else 0.
int stop_signal_exit_status(int number);

#ifdef __cplusplus
}
#endif
