/*
checkpoint_timed.h -- checkpoints that nobody asked for must not fill a disk: a run keeps so many of those
that the clock, or the signal that ended a piece of it, had it save. Two, as the newest may turn out damaged.

    checkpoint_timed_add(&timed, step);                     // before such a save
    checkpoint_timed_print(&timed, settings);               // goes into each record, so that the run's next
    checkpoint_timed_read(&timed, saved_settings);          // piece goes on forgetting
    checkpoint_timed_forget(&timed, directory, multiples);  // once the step is saved, and when a run goes on
*/
#pragma once

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CHECKPOINT_TIMED_KEPT = 2 };

// Newest first, 0: none. One more than is kept: a run that is killed before it has forgotten does so later.
typedef struct {
    int steps[CHECKPOINT_TIMED_KEPT + 1];
} CheckpointTimed;

void checkpoint_timed_add(CheckpointTimed* timed, int step);
// It could not be saved after all.
void checkpoint_timed_drop(CheckpointTimed* timed, int step);
// A line among a run's settings (CheckpointRun).
void checkpoint_timed_print(const CheckpointTimed* timed, FILE* settings);
void checkpoint_timed_read(CheckpointTimed* timed, const char* settings);  // none where there is no such line
// Deletes what is beyond those kept, unless it is a multiple of keep_multiples_of (0: none is). Returns what.
int checkpoint_timed_forget(CheckpointTimed* timed, const char* directory, int keep_multiples_of);

#ifdef __cplusplus
}
#endif
